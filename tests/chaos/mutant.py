"""The product with a rule taken out: what the judge of a run has to notice, or it would notice nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.model.mutants import Mutant

VARIABLE = "AIRFLOW_TX_CHAOS_MUTANT"
AGAIN = "again"
"""What a later grant of a transaction writes is added to what an earlier one has written, in place of replacing it."""
WHOLE = "whole"
"""A restatement adds its whole output to what the earlier transaction contributed, in place of replacing that."""
BOUND = "bound"
"""Whoever begins to restate a transaction counts at once, whatever becomes of it."""
STALE = "stale"
"""Whoever reads the table of another topology does not follow its corrections."""
_for_ever = ExitStack()


def break_rule(name: str) -> None:
    """Take one of RULES out of this process, and out of those that it forks; "": none.

    :raises AssertionError: the product no longer has it in these words.
    """
    if name:
        from tests.model.mutants import applied

        _for_ever.enter_context(applied(RULES[name]()))


def written_again() -> Mutant:
    """Give the product without AGAIN, in each kind of state that keeps values."""
    from airflow_tx.state.maps import OpaqueValue
    from airflow_tx.state.redis.fence import RedisFence
    from airflow_tx.state.redis.state import _RedisUpdate
    from airflow_tx.state.sql import schema, store
    from airflow_tx.state.sql.guard_store import GuardStore
    from tests.model.mutants import ONE, Mutant

    base = "sa.case((same, before), else_=prev if dialect.assigns_in_order else stored)"
    changes = (
        (schema.upsert, base, "stored"),
        (store.SqlStore.roll_back, "table.c.tx_txid == grant.txid", "sa.false()"),
        (RedisFence.raise_calls, "int(opaque)", "0"),
        (_RedisUpdate._bases, "int(held.is_of(grant.txid))", "0"),
        (GuardStore.put, "if last != grant.txid:", "if last is None or last >= 0:"),
        (OpaqueValue.get, "self.prev if txid == self.txid else self.value", "self.value"),
    )
    return Mutant("written again", changes, ONE)


def added_whole() -> Mutant:
    """Give the product without WHOLE."""
    from airflow_tx.transaction.commit import restatement
    from tests.model.mutants import ONE, Mutant

    return Mutant("added whole", ((restatement.differences, "if replaces is None:", "if True:"),), ONE)


def bound_at_begin() -> Mutant:
    """Give the product without BOUND."""
    from airflow_tx.ledger.steps.replay import Restatement
    from tests.model.mutants import ONE, Mutant

    bound = "return replace(self.binding, restating="
    return Mutant(
        "bound at begin", ((Restatement.bound, bound, "return replace(self.binding, txid=txid, restating="),), ONE
    )


def read_stale() -> Mutant:
    """Give the product without STALE."""
    from airflow_tx.ledger.upstream.corrections import CorrectionReader
    from tests.model.mutants import ONE, Mutant

    older = "counts.taken.end_of(line.first) >= line.txid"
    return Mutant("read stale", ((CorrectionReader._holds_up, older, "counts.taken is not None"),), ONE)


RULES: Mapping[str, Callable[[], Mutant]] = {
    AGAIN: written_again,
    WHOLE: added_whole,
    BOUND: bound_at_begin,
    STALE: read_stale,
}
"""Each gives the product without the rule."""
