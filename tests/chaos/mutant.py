"""The product with a rule taken out: what the judge of a run has to notice, or it would notice nothing."""

from __future__ import annotations

from contextlib import ExitStack

RULES = ("again",)
VARIABLE = "AIRFLOW_TX_CHAOS_MUTANT"
_for_ever = ExitStack()


def break_rule(name: str) -> None:
    """Take one of RULES out of this process, and out of those that it forks.

    `again`: what a grant writes that is not the first of its transaction replaces what the one before has written.
    """
    from airflow_tx.state.sql import schema, store
    from tests.model.mutants import ONE, Mutant, applied

    assert name in RULES
    base = "sa.case((same, before), else_=prev if dialect.assigns_in_order else stored)"
    outranked = "sa.and_(table.c.tx_txid == grant.txid, of_another(table, writer_of(grant.token)))"
    changes = ((schema.upsert, base, "stored"), (store.SqlStore.roll_back, outranked, "sa.false()"))
    _for_ever.enter_context(applied(Mutant("written again", changes, ONE)))
