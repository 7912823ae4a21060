"""The rows of transactions in a database table, for another topology that reads them. Source: protocol.md §7."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.base.errors import StateDiffers, StateError
from airflow_tx.base.rows import Exact, ExactColumns, JdbcQuery, Unreadable, sql_text
from airflow_tx.state.api import REJECTED_COLUMNS, TXID
from airflow_tx.state.sql.dialect import Dialect
from airflow_tx.state.upstream import UPSTREAM_TXID, RejectedFilter, TableSnapshot, check_free

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

ROW = "tx_row"
"""The column with the row's number in its transaction's output."""
ROWS_A_PART = 100_000
"""Maximum number of rows in a Spark partition, if the table has row numbers that divide its rows."""
_BUFFERED = 2_000
_KEYS = ("tx_key_0", "tx_key_1")


@dataclass(frozen=True)
class HeldSnapshot(TableSnapshot):
    """A database snapshot, which lasts as long as an open transaction."""

    connection: Connection
    held: ExitStack

    def close(self) -> None:
        # All rows have been read, so ignore the error if the server has closed the session.
        with suppress(StateError):
            self.held.close()


@dataclass(frozen=True)
class UpstreamRows:
    """Reads the rows that given transactions have committed to a table.

    :param columns: columns of the rows, excluding this package's columns.
    :param types: Arrow type by column.
    :param order: the txid column, and the column of the row number if the table has one.
    """

    table: sa.TableClause
    columns: ExactColumns
    types: Mapping[str, pa.DataType]
    order: Sequence[sa.ColumnElement[Any]]

    def counts(self, connection: Connection, txids: Collection[int]) -> dict[int, int]:
        """Count the rows of each of these transactions."""
        txid = self.order[0]
        query = sa.select(txid, sa.func.count()).where(txid.in_(txids)).group_by(txid)
        found = {int(number): count for number, count in map(tuple, connection.execute(query))}
        return {number: found.get(number, 0) for number in txids}

    def read(self, connection: Connection, txids: Collection[int]) -> Iterator[dict[str, Any]]:
        """Read the rows of these transactions in txid order. Only some rows are in memory at a time."""
        selected = self.columns.selected(self.table, self.order)
        query = sa.select(*selected).where(self.order[0].in_(txids)).order_by(*self.order)
        streamed = query.execution_options(stream_results=True, max_row_buffer=_BUFFERED)
        return map(self.columns.row, connection.execute(streamed))

    def query(self, dialect: sa.Dialect, counts: Mapping[int, int], in_session: str) -> JdbcQuery:
        """Build the query for Spark. It is the same query as for Python, divided into parts.

        :param counts: number of rows by txid.
        """
        keys = [key.label(name) for key, name in zip(self.order, _KEYS, strict=False)]
        selected = sa.select(*self.columns.selected(self.table, self.order), *keys)
        parts = [sql_text(each, dialect) for each in self._parts(counts)]
        text = f"({sql_text(selected, dialect)}) AS tx_rows"
        return JdbcQuery(text, self.columns.in_spark(), parts or ["1 = 0"], in_session)

    def _parts(self, counts: Mapping[int, int]) -> Iterator[sa.ColumnElement[bool]]:
        """Yield conditions that divide the rows into parts.

        Small transactions share a part, and large transactions have several parts.
        """
        txid, row = [sa.column(name, sa.BigInteger) for name in _KEYS]
        is_numbered = len(self.order) > 1
        few = list[int]()
        for number, count in counts.items():
            if is_numbered and count > ROWS_A_PART:
                yield from (sa.and_(txid == number, each) for each in _ranges(row, count))
                continue
            few += [number] * bool(count)
            if sum(map(counts.__getitem__, few)) >= ROWS_A_PART:
                yield txid.in_(few)
                few = []
        if few:
            yield txid.in_(few)


def _ranges(row: sa.ColumnClause[Any], count: int) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions that divide row numbers into ranges.

    The first range includes NULL, and the last one is open-ended.
    """
    cuts = range(ROWS_A_PART, count, ROWS_A_PART)
    yield sa.or_(row < cuts[0], row.is_(None))
    for start in cuts[:-1]:
        yield sa.and_(row >= start, row < start + ROWS_A_PART)
    yield row >= cuts[-1]


def upstream_rows(
    connection: Connection,
    dialect: Dialect,
    place: sa.Table,
    kinds: Mapping[str, str],
    *,
    state: str,
    upstream_txid: bool,
) -> UpstreamRows:
    """Return an object that reads the rows of a table.

    :param place: the table, without columns.
    :param kinds: type by column: a state type, or a database type if no state type fits.
    :raises StateDiffers: no reader supports the values of a column, the table has no txid column, or it already has a
        column `upstream_txid`.
    """
    with warnings.catch_warnings():
        # SQLAlchemy warns about types that it does not know, but `exact` handles them.
        warnings.simplefilter("ignore", sa.exc.SAWarning)
        found = sa.inspect(connection).get_columns(place.name, schema=place.schema)
    declared = {each["name"]: each["type"] for each in found}
    if TXID not in declared:
        problem = f"table {place.name} has no column {TXID}"
        raise StateDiffers(
            state=state, problem=problem, remedy="Name the table to which the rows are appended."
        )
    reads = dict[str, Exact]()
    types = dict[str, Any]()
    for name, kind in declared.items():
        if name in (TXID, ROW):
            continue
        try:
            reads[name], types[name] = dialect.reading(
                connection.dialect, kinds.get(name, str(kind)), kind
            )
        except Unreadable as error:
            problem = f"column {name} of table {place.name} is {kind}, and no reader can read its exact values"
            raise StateDiffers(state=state, problem=problem, remedy=f"{error}.") from None
    names = [*declared, UPSTREAM_TXID]
    table = sa.table(place.name, *map(sa.column, names), schema=place.schema)
    order = [table.c[name] for name in (TXID, ROW) if name in declared]
    if upstream_txid:
        import pyarrow as pa

        check_free(declared, state)
        reads[UPSTREAM_TXID] = Exact(lambda _: table.c[TXID])
        types[UPSTREAM_TXID] = pa.int64()
    place_of = ", ".join(each.name for each in order)

    def unfit(column: str, value: str, key: str) -> StateError:
        problem = f"column {column} of table {place.name} is {value} in the row whose {place_of} is {key}: "
        problem += "Python or Spark has no such value"
        remedy = "Restate that transaction with a value that every reader supports."
        return StateError(state=state, problem=problem, remedy=remedy)

    return UpstreamRows(table, ExactColumns(reads, unfit), types, order)


def rejected_query(
    table: sa.FromClause, wanted: RejectedFilter, most: int, *, counting: bool
) -> sa.Select[Any]:
    """Return the query of `CommittedTable.select_rejected`. It also works in a lake's query engine."""
    if counting:
        return _counts(table, wanted).limit(most)
    columns = [table.c[name] for name in REJECTED_COLUMNS]
    # Without ORDER BY, an engine may return different rows each time.
    return sa.select(*columns).where(*_wanted(table, wanted)).order_by(*columns).limit(most)


def _counts(table: sa.FromClause, wanted: RejectedFilter) -> sa.Select[Any]:
    txid, task, reason = (table.c[name] for name in (TXID, *REJECTED_COLUMNS[:2]))
    rows = sa.func.count()
    # The window functions cover all groups, because they are computed before LIMIT.
    query = sa.select(
        task,
        reason,
        rows.label("n_rows"),
        sa.func.count(txid.distinct()).label("n_txids"),
        sa.func.min(txid).label("first_txid"),
        sa.func.max(txid).label("last_txid"),
        rows.over().label("n_counts"),
        sa.func.sum(rows).over().label("n_all"),
    )
    grouped = query.where(*_wanted(table, wanted)).group_by(task, reason)
    return grouped.order_by(sa.desc("n_rows"), task, reason)


def _wanted(table: sa.FromClause, wanted: RejectedFilter) -> Iterator[sa.ColumnElement[bool]]:
    task, reason = (table.c[name] for name in REJECTED_COLUMNS[:2])
    yield table.c[TXID].between(wanted.first, wanted.last)
    if wanted.task is not None:
        mapped = f"{wanted.task}["
        yield (task == wanted.task) | (sa.func.substr(task, 1, len(mapped)) == mapped)
    if wanted.reason is not None:
        yield reason == wanted.reason
