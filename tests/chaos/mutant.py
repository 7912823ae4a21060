"""The product with a rule taken out: what the judge of a run has to notice, or it would notice nothing."""

from __future__ import annotations

from contextlib import ExitStack

RULES = {
    "fence": "no fence at a write",
    "base": "base not compared",
    "token": "token not compared at the mark",
}
"""The mutants of the model that a run may be tried with."""
VARIABLE = "AIRFLOW_TX_CHAOS_MUTANT"
_for_ever = ExitStack()


def break_rule(name: str) -> None:
    """Take a rule out of this process, and out of those that it forks."""
    from tests.model.mutants import MUTANTS, applied

    _for_ever.enter_context(applied(next(mutant for mutant in MUTANTS if mutant.rule == RULES[name])))
