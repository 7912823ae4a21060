"""The conditional upsert: for the same transaction from the previous value, else from the stored one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from airflow_tx.protocol.attempt import Token
from airflow_tx.state.aggregators import CombinerAggregator
from airflow_tx.state.api import StateKind
from airflow_tx.state.sql.dialect import Dialect
from airflow_tx.state.sql.schema import PREV, WRITER


def upsert(
    dialect: Dialect,
    table: sa.Table,
    names: Sequence[str],
    kinds: Sequence[str],
    values: Mapping[str, CombinerAggregator],
    token: Token,
    chunk: int,
    kind: StateKind,
    *,
    pushed: bool,
) -> Any:
    """An upsert of many rows by one writer; rows that it may not update stay and are not counted.

    :param names: columns that differ from row to row: those of the key, then the values.
    :param pushed: whether the rows bring deltas, or new values that were computed from what is stored.
    """
    writer, opaque = writer_of(token, chunk), kind is StateKind.OPAQUE
    constants, same = dict(writer), table.c.tx_txid == writer["tx_txid"]
    if opaque:
        constants["tx_created"] = sa.true()
    insert = dialect.insert_rows(table, [table.c[name] for name in names], kinds, constants)
    given = dialect.given(insert)
    updated: list[tuple[str, Any]] = []
    for number, (value, aggregator) in enumerate(values.items()):
        stored, prev = table.c[value], table.c.get(PREV + value)
        base: Any = stored
        if prev is not None:
            base = sa.case((same, prev), else_=stored)
            updated.append((prev.name, base))
            if dialect.assigns_in_order:
                base = prev
        new = given[value]
        if pushed:
            new = dialect.combined(aggregator.name, aggregator.type, base, new, number)
        updated.append((value, new if opaque else sa.case((same, stored), else_=new)))
    if opaque:
        updated.append(("tx_created", sa.case((same, table.c.tx_created), else_=sa.false())))
    # The txid last: all before it ask for the old one.
    updated += [(name, given[name]) for name in reversed(WRITER)]
    return dialect.or_update(insert, table, updated, may_update(table, writer))


def writer_of(token: Token, chunk: int) -> dict[str, Any]:
    """The columns that say who wrote a row, as constants of the statement: they are the same for all its rows."""
    values = (token.txid, token.generation, token.attempt, token.epoch, chunk)
    return {name: sa.literal_column(str(int(value))) for name, value in zip(WRITER, values, strict=True)}


def of_another(table: sa.Table, writer: Mapping[str, Any]) -> Any:
    """Rows of another grant."""
    return sa.or_(*[table.c[name] != writer[name] for name in ("tx_generation", "tx_attempt", "tx_epoch")])


def may_update(table: sa.Table, writer: Mapping[str, Any]) -> Any:
    """Rows of an earlier transaction, of another attempt of this one, or of this very writer."""
    mine = sa.or_(of_another(table, writer), table.c.tx_chunk == writer["tx_chunk"])
    return sa.or_(table.c.tx_txid < writer["tx_txid"], sa.and_(table.c.tx_txid == writer["tx_txid"], mine))
