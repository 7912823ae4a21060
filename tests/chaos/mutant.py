"""The product with a rule taken out: what the judge of a run has to notice, or it would notice nothing."""

from __future__ import annotations

from contextlib import ExitStack

RULES = ("fence",)
VARIABLE = "AIRFLOW_TX_CHAOS_MUTANT"
_for_ever = ExitStack()
_CHECKS = """\
    _check_rank(stored, grant, state=state)
    _check_birth(stored, grant, last, state=state)
    _check_continuity(stored, grant, last, state=state)
"""


def break_rule(name: str) -> None:
    """Take one of RULES out of this process, and out of those that it forks: here whatever a fence refuses."""
    from airflow_tx.state import fence
    from tests.model.mutants import ONE, Mutant, applied

    assert name in RULES
    found = "stored is None or stored.incarnation != grant.incarnation or stored.token != grant.token"
    changes = ((fence.raised, _CHECKS, "    pass\n"), (fence.check_write, found, "False"))
    _for_ever.enter_context(applied(Mutant("no fence", changes, ONE)))
