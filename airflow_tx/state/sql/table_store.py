"""Write, remove and read the rows of each transaction in the table of a `SqlTable`. Source: protocol.md §7."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from airflow_tx.base.errors import ConfigError, StateDiffers, StateError
from airflow_tx.base.rows import (
    JDBC_DATABASES,
    NoJdbc,
    NoTable,
    empty_frame,
    reader_of_dicts,
    session_of_spark,
)
from airflow_tx.ledger import Receipt, holds_for_good
from airflow_tx.state import fence
from airflow_tx.state.api import REJECTED_COLUMNS, TXID, FenceMoved, Grant, StateWrite
from airflow_tx.state.arrow import RowTally
from airflow_tx.state.column_types import (
    LONGEST_NAME,
    STATE_TYPES,
    converted,
    is_name,
    split_table,
    type_of,
)
from airflow_tx.state.sql.database import DRIVER_ERRORS, NOTHING
from airflow_tx.state.sql.dialect import (
    Dialect,
    RowPortion,
    TextLength,
    ValueRefused,
    as_typed,
    check_lengths,
    inserted,
    own_type,
    statement_text,
)
from airflow_tx.state.sql.fence import FOUND, ROWS_AT_ONCE, Imprint, OneTableStore
from airflow_tx.state.sql.rows import ROW, HeldSnapshot, UpstreamRows, rejected_query, upstream_rows
from airflow_tx.state.sql.schema import RECEIPTS_TABLE, SAMPLE
from airflow_tx.state.upstream import (
    UPSTREAM_TXID,
    RejectedFilter,
    TableCounts,
    TableSnapshot,
    owned,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_OURS = {TXID: "bigint", ROW: "bigint"}
# The receipt of a restatement contains this text.
_RESTATING = '"replaces":{'
_FILLED = "the table has rows"
_AGAIN = "then clear the commit task"
_CHANGED = (
    f"{NOTHING} Remove the triggers, rules and conflict clauses of the table that change rows."
)
_Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class FoundTable:
    """A state's table, and facts about it from the database.

    :param state: name of the state that owns the table.
    :param types: type by column: a state type, or the name of the database type if no state type fits.
    :param filled: the columns that do not accept NULL.
    :param required: columns of `filled` without a default. Every row must have them.
    :param lengths: maximum length by text column, for the columns that have one.
    :param changes_others: whether a statement that inserts rows may change other rows.
    :param defaults: columns that get a value other than NULL in a row that lacks them.
    :param generated: the columns whose values the database computes.
    :param spelled: SQL declaration by state type, for the types that this database stores exactly.
    """

    state: str
    table: sa.Table
    types: Mapping[str, str]
    filled: frozenset[str]
    required: frozenset[str]
    lengths: Mapping[str, TextLength]
    changes_others: bool
    defaults: frozenset[str]
    generated: frozenset[str]
    spelled: Mapping[str, str]

    def check_columns(self, names: Sequence[str], start: int) -> None:
        """Refuse rows unless these columns fit the table.

        :param start: number of the first row with these columns.
        """
        if not names:
            raise _differs(
                self.state, "a row has no columns", "Return rows with at least one column."
            )
        if unknown := [name for name in names if name not in self.types]:
            problem = (
                f"column {unknown[0]} is in row {start}, but not in the first {ROWS_AT_ONCE} rows"
            )
            remedy = f"Name its type: add_columns=True, types={{{unknown[0]!r}: ...}}."
            raise _differs(self.state, problem, remedy)
        if computed := sorted(self.generated.intersection(names)):
            problem = f"column {computed[0]} of table {self.table.name} is generated"
            raise _differs(self.state, problem, f"Leave {computed[0]} out of the rows.")
        if missing := sorted(self.required.difference(names)):
            problem = (
                f"the rows lack column {missing[0]}, which is NOT NULL in table {self.table.name}"
            )
            raise _differs(
                self.state, problem, "Set a default for the column, then clear the commit task."
            )
        if foreign := [name for name in names if self.types[name] not in self.spelled]:
            kind = self.types[foreign[0]]
            problem = f"column {foreign[0]} of table {self.table.name} is {kind}, which would change the values"
            known = "; ".join(dict.fromkeys(self.spelled.values()))
            raise _differs(self.state, problem, f"Declare it as one of: {known}.")

    def converted(self, name: str, values: Sequence[Any], start: int) -> Sequence[Any]:
        """Convert the values of a column to its type.

        :param start: number of the first row, for the error message.
        """
        kind = self.types[name]
        try:
            ready = converted(kind, values)
        except (TypeError, ValueError, OverflowError):
            raise self._first_misfit(name, values, start) from None
        if name in self.filled and None in ready:
            row = start + list(ready).index(None)
            raise self.misfit(
                row, name, "is NULL, and the column is NOT NULL", "Let the task fill it."
            )
        return ready

    def _first_misfit(self, name: str, values: Sequence[Any], start: int) -> StateError:
        kind = self.types[name]
        remedy = f"The column is {kind}: let the task give such values."
        for row, value in enumerate(values, start):
            try:
                converted(kind, [value])
            except (TypeError, ValueError, OverflowError) as error:
                return self.misfit(row, name, f"{value!r:.80} {error}", remedy)
        raise AssertionError("a column that does not fit has a value that does not")

    def misfit(self, row: int, name: str | None, problem: str, remedy: str) -> StateError:
        """Return the error for a value, or for a row, that the table cannot store."""
        where = f"row {row}" if name is None else f"row {row}, column {name}"
        return StateError(
            state=self.state, problem=f"{where}: {problem}", remedy=f"{NOTHING} {remedy}"
        )


class TableLacks(FenceMoved):
    """Raised if a table needs more columns before rows can be written. The exception contains their types.

    :param store: the store that adds the columns; None if a user must add them.
    :param replaced: the columns of an empty table whose types must change.
    """

    def __init__(
        self,
        types: Mapping[str, str],
        store: TableStore | None = None,
        replaced: tuple[str, ...] = (),
    ) -> None:
        super().__init__(types, replaced)
        self.types = types
        self.replaced = replaced
        self._store = store

    def mend(self) -> None:
        assert self._store is not None
        self._store.change(self)


class _GivenRows(Iterator[RowPortion]):
    """Yields the rows of an update in portions, in the form that the database accepts.

    :ivar start: number of the first row of the last portion, whose columns are `names`.
    :ivar count: number of rows in all portions so far.
    """

    def __init__(
        self, found: FoundTable, dialect: Dialect, rows: RowTally, portions: Iterator[_Columns]
    ) -> None:
        self.start = self.count = 0
        self.names: tuple[str, ...] = ()
        self._rows = rows
        self._given = set[str]()
        self._lacking = set[str]()
        self._found = found
        self._dialect = dialect
        self._portions = portions

    def __next__(self) -> RowPortion:
        rows = next(self._portions)
        names = tuple(rows)
        self.start = self.count
        if not names or names != self.names:
            self._found.check_columns(names, self.start)
            self.names = names
        self.count += len(rows[names[0]])
        self._check_defaults(names)
        arrays = [self._found.converted(name, rows[name], self.start) for name in names]
        check_lengths(self._found.lengths, names, arrays)
        kinds = tuple(self._found.types[name] for name in names)
        if ROW not in self._found.types:
            return names, kinds, arrays
        return (*names, ROW), (*kinds, "bigint"), [*arrays, range(self.start, self.count)]

    def _check_defaults(self, names: Collection[str]) -> None:
        """Refuse rows if only some of them have a column with a default value."""
        defaults = self._found.defaults
        if not defaults:
            return
        self._given |= defaults.intersection(names)
        self._lacking |= defaults.difference(names) | defaults.intersection(self._rows.lacking)
        if both := sorted(self._given & self._lacking):
            problem = (
                f"column {both[0]} has a default, and some of the first {self.count} rows lack it"
            )
            remedy = f"{NOTHING} Return the column in every row or in no row; None is NULL."
            raise StateError(state=self._found.state, problem=problem, remedy=remedy)


class TableStore(OneTableStore[FoundTable]):
    """Reads and writes the table of a SqlTable inside transactions that `transaction()` opens."""

    keeps_connection = True

    def __init__(
        self,
        url: URL,
        *,
        table: str,
        types: Mapping[str, str],
        add_columns: bool,
        state: str,
        where: str,
    ) -> None:
        place = split_table(table, types, state=state)
        super().__init__(url, state=state, table=place, where=where)
        self._check_names([self._name])
        self._types = dict(types)
        self._adds_columns = add_columns

    # --- a write --------------------------------------------------------------------------------------------------

    def put(self, connection: Connection, write: StateWrite, sample: list[str]) -> int:
        """Delete the rows that this transaction replaces, and insert its rows. Return the number of inserted rows.

        :param sample: list to which the txids of deleted rows are added, as text.
        """
        if not write.complete:
            problem = "it received only a part of an update, but a table must receive all rows in one write"
            raise StateError(
                state=self.state, problem=problem, remedy="Pass all rows in one write."
            )
        rows = RowTally.of(write.rows or ())
        portions = rows.portions(ROWS_AT_ONCE)
        first = next(portions, None)
        found = self._found(connection) if first is None else self._fitting(connection, first)
        if found is None:
            return 0
        # Raising the fence did not delete the replaced rows, because readers would have missed them
        # until this write. A committer that runs again under the same grant may have other rows, so
        # its own rows are always deleted.
        taken = _replaced(write.grant)
        sample += map(str, taken)
        self._take_out(connection, found, taken)
        self._facts.pop(_FILLED, None)
        if first is None:
            return 0
        before = self._count_others(connection, found, write.grant.txid)
        given = _GivenRows(found, self._dialect, rows, chain([first], portions))
        try:
            written = self._dialect.append_rows(connection, found.table, write.grant.txid, given)
        except ValueRefused as refusal:
            name = None if refusal.column is None else given.names[refusal.column]
            row = given.start + refusal.row
            raise found.misfit(row, name, refusal.problem, refusal.remedy) from None
        if written != given.count:
            problem = f"the database has stored only {written} of {given.count} rows"
            raise StateError(state=self.state, problem=problem, remedy=_CHANGED)
        after = self._count_others(connection, found, write.grant.txid)
        if after != before:
            problem = f"the table had {before} rows of other transactions, but has {after} after {written} inserts"
            raise StateError(state=self.state, problem=problem, remedy=_CHANGED)
        self._facts[_FILLED] = True
        return written

    def _count_others(self, connection: Connection, found: FoundTable, txid: int) -> int:
        """Count the rows that an insert must not change, or return 0 if inserts cannot change other rows."""
        if not found.changes_others:
            return 0
        own = found.table.c[TXID].is_not_distinct_from(txid)
        query = sa.select(sa.func.count()).select_from(found.table).where(~own)
        count: int = connection.execute(query).scalar_one()
        return count

    def _take_out(self, connection: Connection, found: FoundTable, txids: Sequence[int]) -> None:
        connection.execute(found.table.delete().where(found.table.c[TXID].in_(txids)))

    # --- the fence ------------------------------------------------------------------------------------------------

    def roll_back(self, connection: Connection, grant: Grant) -> None:
        """Delete the transaction's rows for a skip or an inspection of the values, because no write follows."""
        found = self._found(connection)
        if found is not None and (grant.is_skip or grant.token.is_look):
            self._take_out(connection, found, [grant.txid])

    def holds_for_good(
        self, connection: Connection, txid: int, birth: str, incarnation: str
    ) -> bool:
        """Return whether this transaction is a restatement that has deleted the rows of its original transaction."""
        if not self._has_table(connection, RECEIPTS_TABLE):
            return False
        receipts = self._receipts
        query = sa.select(receipts.c.receipt).where(
            receipts.c.state == self._identity, receipts.c.txid == txid
        )
        found = (
            Receipt.from_json(json.loads(text)) for text in connection.execute(query).scalars()
        )
        return holds_for_good((each for each in found if each.takes_out), txid, birth, incarnation)

    def missing(self, connection: Connection, kept: Imprint) -> str:
        found = self._found(connection)
        if found is None or not kept.rows or self._rows_of(connection, found, kept.txid):
            return ""
        return f"the table has no row of the {kept.rows} rows of transaction {kept.txid}"

    def _has_nothing(self, connection: Connection) -> bool:
        return not self._newest_txid(connection)

    def imprint(
        self, connection: Connection, kept: Imprint | None = None, wrote: Imprint | None = None
    ) -> Imprint | None:
        found = self._found(connection)
        if found is None:
            return None
        # Never use a transaction without rows for the imprint, because it would hide the loss of
        # all other rows.
        now = self._newest(connection, found)
        if wrote is not None:
            self._check_count(connection, found, now, wrote)
        if kept is None or wrote is None or str(kept.txid) in wrote.keys:
            return now
        return kept if kept.rows and now.txid < kept.txid else now

    def _check_count(
        self, connection: Connection, found: FoundTable, now: Imprint, wrote: Imprint
    ) -> None:
        """Compare a transaction's number of rows in the table with the number that was written."""
        there = now.rows if now.txid == wrote.txid else self._rows_of(connection, found, wrote.txid)
        if there != wrote.rows:
            problem = f"transaction {wrote.txid} wrote {wrote.rows} rows, but the table has {there} of them"
            raise StateError(state=self.state, problem=problem, remedy=_CHANGED)

    def _newest(self, connection: Connection, found: FoundTable) -> Imprint:
        """Return an imprint with the row count of the newest transaction that has rows."""
        txid = found.table.c[TXID]
        newest = sa.select(sa.func.max(txid)).where(txid > 0).scalar_subquery()
        query = sa.select(sa.func.max(txid), sa.func.count(), self._shape).where(txid == newest)
        found_at, rows, shape = connection.execute(query).one()
        self._check_shape(shape)
        return Imprint(found_at or 0, rows=rows)

    def _rows_of(self, connection: Connection, found: FoundTable, txid: int) -> int:
        query = sa.select(sa.func.count()).where(found.table.c[TXID] == txid)
        count: int = connection.execute(query.select_from(found.table)).scalar_one()
        return count

    # --- answers --------------------------------------------------------------------------------------------------

    def holds(self, connection: Connection, txid: int) -> bool:
        found = self._found(connection)
        if found is not None and self._rows_of(connection, found, txid):
            return True
        # A restatement that wrote no rows may still have deleted the rows of another transaction.
        last = self.read_fence(connection)
        return last is not None and self.holds_for_good(
            connection, txid, last.birth, last.incarnation
        )

    def at(self, connection: Connection, txid: int, newest: int) -> str:
        found = self._found(connection)
        if found is None:
            raise StateError(
                state=self.state, problem="it has no table", remedy="No row was written yet."
            )
        receipts = self._receipts.alias("r").c
        of_life = receipts.incarnation == self._of_fence("incarnation")
        mine = sa.and_(receipts.state == self._identity, of_life)
        later = sa.select(receipts.receipt).where(mine, receipts.txid > txid)
        for text in connection.execute(later.order_by(receipts.txid)).scalars():
            self._check_kept(Receipt.from_json(json.loads(text)), txid, newest)
        # A restatement that is not final may already have deleted rows, or may delete them at any
        # time.
        restating = sa.func.replace(receipts.receipt, _RESTATING, "") != receipts.receipt
        taken = sa.select(receipts.txid).where(mine, receipts.txid > newest, restating)
        is_of = found.table.c[TXID] <= txid
        if TXID not in found.filled:
            is_of = sa.or_(is_of, found.table.c[TXID].is_(None))
        query = sa.select(sa.text("*")).select_from(found.table).where(is_of, ~taken.exists())
        return statement_text(connection.dialect, query)

    def _check_kept(self, later: Receipt, txid: int, newest: int) -> None:
        """Refuse to read rows as of a transaction if a later transaction has deleted some of them."""
        restated = 0 if later.replaces is None else later.replaces.txid
        if restated and (later.txid > newest or (later.takes_out and restated <= txid)):
            why = f"{later.txid} restated {restated} and deleted its rows"
            raise fence.not_as_of(txid, newest, later=later.txid, why=why, state=self.state)

    def rows_by_txid(self, connection: Connection) -> dict[int | None, int]:
        found = self._found(connection)
        if found is None:
            return {}
        txid = found.table.c[TXID]
        query = sa.select(txid, sa.func.count()).group_by(txid)
        counts: dict[int | None, int] = {}
        for number, count in map(tuple, connection.execute(query)):
            # Rows without a positive txid are from an earlier topology, or were inserted manually.
            own = number if number is not None and number > 0 else None
            counts[own] = counts.get(own, 0) + count
        return counts

    def read(self, connection: Connection, limit: int | None = None) -> list[dict[str, Any]]:
        found = self._found(connection)
        if found is None:
            return []
        order = [found.table.c[name] for name in _OURS if name in found.types]
        query = sa.select(found.table).order_by(*order).limit(limit)
        return [dict(row) for row in connection.execute(query).mappings()]

    def select_rejected(
        self, connection: Connection, wanted: RejectedFilter, most: int, *, counting: bool
    ) -> list[dict[str, Any]]:
        found = self._found(connection)
        if found is None or not found.types.keys() >= {*REJECTED_COLUMNS}:
            return []
        query = rejected_query(found.table, wanted, most, counting=counting)
        return [dict(row) for row in connection.execute(query).mappings()]

    # --- as a source ----------------------------------------------------------------------------------------------

    def counts(self, txids: Collection[int]) -> TableCounts:
        """Count the rows of transactions. See `CommittedTable.counts`."""
        wanted = owned(txids)
        snapshot = self._hold() if self._dialect.shares_moments else None
        try:
            with self._moment(snapshot) as connection:
                rows = self._upstream(connection)
                none = dict.fromkeys(wanted, 0)
                counts = none if rows is None else rows.counts(connection, wanted)
        except BaseException:
            if snapshot is not None:
                snapshot.close()
            raise
        return TableCounts(counts, snapshot)

    def row_types(self, *, upstream_txid: bool) -> dict[str, pa.DataType]:
        """Return the types of the columns. If there is no table yet, return the types that the state declares."""
        with self._moment(None) as connection:
            rows = self._upstream(connection, upstream_txid=upstream_txid)
        return self._row_types(rows, upstream_txid)

    def _row_types(self, rows: UpstreamRows | None, upstream_txid: bool) -> dict[str, pa.DataType]:
        if rows is not None:
            return dict(rows.types)
        types = {name: own_type(kind) for name, kind in self._types.items()}
        return {**types, UPSTREAM_TXID: own_type("bigint")} if upstream_txid else types

    def arrow(self, counted: TableCounts, *, upstream_txid: bool) -> pa.RecordBatchReader:
        """Stream the rows of transactions. See `CommittedTable.arrow`."""
        import pyarrow as pa

        with self._moment(counted.snapshot) as connection:
            rows = self._upstream(connection, upstream_txid=upstream_txid)
        types = self._row_types(rows, upstream_txid)

        def batches() -> Iterator[pa.RecordBatch]:
            with self._moment(counted.snapshot) as connection:
                read = iter(()) if rows is None else rows.read(connection, counted.rows)
                try:
                    yield from reader_of_dicts(read, types)
                except NoTable as error:
                    remedy = "Restate the transaction of that row."
                    raise StateError(state=self.state, problem=str(error), remedy=remedy) from None

        return pa.RecordBatchReader.from_batches(pa.schema(types), batches())

    def frame(self, spark: Any, counted: TableCounts, *, upstream_txid: bool) -> Any:
        """Return a DataFrame of the rows of transactions. See `CommittedTable.frame`."""
        url = self._engine.url
        if url.get_backend_name() not in JDBC_DATABASES:
            remedy = "Read it in a Python task, or keep the table in PostgreSQL, MySQL or MariaDB."
            option = f"SqlTable({self._name!r}) under Spark"
            raise ConfigError(option=option, value=url.get_backend_name(), remedy=remedy)
        with self._moment(counted.snapshot) as connection:
            rows = self._upstream(connection, upstream_txid=upstream_txid)
            if rows is not None:
                session = session_of_spark(connection, shared=counted.snapshot is not None)
                query = rows.query(connection.dialect, counted.rows, session)
        if rows is None:
            return empty_frame(spark, self._row_types(rows, upstream_txid))
        try:
            return query.frame(spark, url)
        except NoJdbc as error:
            raise StateError(state=self.state, problem=str(error), remedy=error.remedy) from None

    def _upstream(
        self, connection: Connection, *, upstream_txid: bool = False
    ) -> UpstreamRows | None:
        """Return an object that reads the rows. Return None if there is no table yet."""
        if not self._has_table(connection, self._name):
            return None
        kinds = self._declared(connection)
        return upstream_rows(
            connection,
            self._dialect,
            self._bare,
            kinds,
            state=self.state,
            upstream_txid=upstream_txid,
        )

    def _hold(self) -> HeldSnapshot:
        """Open a transaction that sees a snapshot of the database. It stays open while Spark or a task reads rows."""
        held = ExitStack()
        connection = held.enter_context(self.transaction(reading=True, frozen=True))
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        return HeldSnapshot(connection, held)

    @contextmanager
    def _moment(self, snapshot: TableSnapshot | None) -> Iterator[Connection]:
        """Yield the connection of a snapshot. Without a snapshot, open a new transaction."""
        if not isinstance(snapshot, HeldSnapshot):
            with self.transaction(reading=True, frozen=True) as connection:
                yield connection
            return
        try:
            self._place(snapshot.connection)
            yield snapshot.connection
        except DRIVER_ERRORS as error:
            raise self._worded(error) from None

    # --- a person -------------------------------------------------------------------------------------------------

    def clear(self, connection: Connection) -> None:
        super().clear(connection)
        found = self._found(connection)
        if found is not None:
            connection.execute(found.table.delete().where(found.table.c[TXID] > 0))

    def _newest_txid(self, connection: Connection) -> int:
        now = self.imprint(connection)
        return 0 if now is None else now.txid

    def check_later(self, connection: Connection, txid: int) -> None:
        found = self._found(connection)
        if found is None:
            return
        query = sa.select(sa.func.max(found.table.c[TXID]))
        newest = connection.execute(query).scalar_one() or 0
        if newest > txid:
            own = self._releasing(connection, after=txid)
            release = statement_text(connection.dialect, own)
            raise fence.of_nobody(newest, state=self.state, release=release, fenced=txid)

    def _releasing(self, connection: Connection, after: int = 0) -> sa.Update:
        found = self._found(connection)
        assert found is not None
        txid = found.table.c[TXID]
        # Make the txids negative. The next topology starts again with transaction 1, and its txids
        # must differ from these.
        least = connection.execute(sa.select(sa.func.min(txid))).scalar_one() or 0
        free = min(least, 0)
        return found.table.update().where(txid > after).values({TXID: sa.literal(free) - txid})

    # --- the table ------------------------------------------------------------------------------------------------

    def _look(self, connection: Connection) -> FoundTable:
        """Read the columns and the indexes of the table.

        :raises StateDiffers: transactions cannot append rows to the table. The message contains the DDL to change the
            table.
        """
        types = self._declared(connection)
        for problem, remedy, ddl in self._lacks(connection, types):
            raise _differs(self.state, problem, f"{remedy}, {_AGAIN}: {ddl}")
        inspector = sa.inspect(connection)
        columns = inspector.get_columns(self._name, schema=self._schema)
        numbered = self._dialect.numbered(connection, self._bare)
        filled = numbered.union(each["name"] for each in columns if not each["nullable"])
        generated = frozenset(each["name"] for each in columns if each.get("computed"))
        defaults = (
            generated.union(each["name"] for each in columns if _has_default(each)) | numbered
        )
        required = filled - defaults
        made = [
            sa.Column(name, self._dialect.types.get(kind, sa.types.NullType()), autoincrement=False)
            for name, kind in types.items()
        ]
        table = sa.Table(self._name, sa.MetaData(), *made, schema=self._schema)
        own = frozenset(_OURS)
        return FoundTable(
            self.state,
            table,
            types,
            filled,
            required - own,
            self._dialect.lengths(connection, self._bare),
            self._dialect.changes_others(connection, self._bare),
            defaults - own,
            generated,
            self._dialect.spelled(connection.dialect),
        )

    def _declared(self, connection: Connection) -> dict[str, str]:
        """Return the types of the columns in the database, by column."""
        found, _ = self._dialect.found(connection, self._bare)
        return {name: self._dialect.kept_as(kind) for name, kind in found.items()}

    def _lacks(
        self, connection: Connection, types: Mapping[str, str]
    ) -> Iterator[tuple[str, str, str]]:
        """Yield the problem, the remedy and the DDL for each column or index that the table needs and lacks.

        :raises StateDiffers: no DDL can solve the problem.
        """
        if types.get(TXID) != "bigint":
            problem, ddl = self._without_txid(connection, types)
            yield problem, "Change it", as_typed(connection.dialect, ddl)
        inspector = sa.inspect(connection)
        primary: Any = inspector.get_pk_constraint(self._name, schema=self._schema)
        indexes = inspector.get_indexes(self._name, schema=self._schema)
        keys = [primary["constrained_columns"], *(each["column_names"] for each in indexes)]
        if TXID not in [names[0] for names in keys if names]:
            self._check_is_table(inspector)
            named = connection.dialect.identifier_preparer.quote(f"{self._name[:40]}_{TXID}")
            ddl = f"CREATE INDEX {named} ON {self._quoted(connection)} ({TXID})"
            problem = f"no index of table {self._name} begins with {TXID}"
            yield problem, "Make one", as_typed(connection.dialect, ddl)

    def _without_txid(self, connection: Connection, types: Mapping[str, str]) -> tuple[str, str]:
        """Return the error text for a missing txid column, and the statement that adds or renames a column."""
        quote = connection.dialect.identifier_preparer.quote
        place = self._quoted(connection)
        alike = next((name for name in types if name.casefold() == TXID), "")
        if not alike:
            return (
                f"table {self._name} lacks column {TXID}",
                f"ALTER TABLE {place} ADD COLUMN {TXID} BIGINT",
            )
        other = f"{TXID}_other" if alike == TXID else TXID
        problem = f"table {self._name} has column {alike} of type {types[alike]}"
        problem += "" if alike == TXID else f"instead of {TXID}"
        return problem, f"ALTER TABLE {place} RENAME COLUMN {quote(alike)} TO {other}"

    def _check_is_table(self, inspector: sa.Inspector) -> None:
        """Refuse a view, because a view cannot have an index."""
        if self._name not in inspector.get_table_names(schema=self._schema):
            problem = f"{self._name} is a view, or another kind of table that cannot have an index"
            raise _differs(self.state, problem, "Set the table that the view reads.")

    def _own_table(self, connection: Connection) -> sa.Table | None:
        return self._described(self._types) if self._types else None

    def _own_changes(self, connection: Connection) -> Iterator[str]:
        if self._has_table(connection, self._name):
            yield from (ddl for *_, ddl in self._lacks(connection, self._declared(connection)))
        elif not self._types:
            yield f"-- table {self._name}: name the types of its columns in types= of the state"

    def _fitting(self, connection: Connection, rows: _Columns) -> FoundTable:
        """Return the table, if it has the columns of the rows. Create the table if it does not exist.

        :raises TableLacks: the table lacks columns, and the state may add them.
        :raises StateDiffers: the table lacks columns, and the state may not add them. The message contains the DDL.
        """
        names = dict.fromkeys([*rows, *self._types])
        self._check_names(names)
        if ours := [name for name in rows if name.casefold() in _OURS]:
            problem = f"the rows have a column {ours[0]}, a name that this state uses itself"
            raise _differs(self.state, problem, "Give it another name.")
        found = self._found(connection)
        self._check_cases({} if found is None else found.types, names)
        if found is None:
            self._make_table(connection, self._described(self._types_of(rows, names)))
            self._note_made(connection)
            return self._looked_again(connection)
        lacks = self._types_of(rows, [name for name in names if name not in found.types])
        others = {} if _FILLED in self._facts else self._others(rows, found)
        if (others or lacks) and self._is_empty(connection, found) and self._is_made(connection):
            # The table's types come from rows that no longer exist. The database may have kept the
            # table when it undid the rows.
            raise TableLacks({**lacks, **others}, self, tuple(others))
        if lacks and not self._adds_columns:
            problem = f"table {self._name} lacks column {next(iter(lacks))} of the rows"
            ddl = "; ".join(self._changes(connection, TableLacks(lacks)))
            ddl = as_typed(connection.dialect, ddl)
            raise _differs(
                self.state, problem, f"Set add_columns=True. Or alter the table, {_AGAIN}: {ddl}"
            )
        if lacks:
            raise TableLacks(lacks, self)
        return found

    def _note_made(self, connection: Connection) -> None:
        """Record the shape of the table that this state has created.

        The state does not change the columns of any other table.

        The record is a row of the portions table, written in the transaction that creates the state's table. Some
        databases keep both when they undo the rows.
        """
        with self._dialect.ddl(connection) as ddl:
            shape = self._dialect.read_shape(ddl, self._shape)
            row = {"state": self._made, "chunk": 0, "nonce": "", SAMPLE: shape}
            ddl.execute(self._dialect.insert_or_replace(self._portions), inserted(row))

    def _is_made(self, connection: Connection) -> bool:
        """Return whether the table still has the shape that it had when this state created it."""
        noted = sa.select(self._portions.c[SAMPLE]).where(self._portions.c.state == self._made)
        return connection.execute(noted).scalar_one_or_none() == self._shape_now(connection)

    @property
    def _made(self) -> str:
        return f"columns of {self._identity}"

    def _check_names(self, names: Iterable[object]) -> None:
        """Refuse a name that is invalid, or that some database would truncate."""
        for name in names:
            if not is_name(name):
                problem = f"{name!r} cannot be the name of a table or column"
                raise _differs(self.state, problem, f"Give it one of 1 to {LONGEST_NAME} bytes.")

    def _check_cases(self, present: Collection[str], names: Iterable[str]) -> None:
        """Refuse a new column whose name differs from another column only by case."""
        known = {name.casefold(): name for name in present}
        for name in names:
            other = known.setdefault(name.casefold(), name)
            if name != other and name not in present:
                problem = f"column {name} differs from column {other} by case alone"
                raise _differs(self.state, problem, f"Name it {other}, or give it another name.")

    def _is_empty(self, connection: Connection, found: FoundTable) -> bool:
        if _FILLED in self._facts:
            return False
        query = sa.select(sa.literal(1)).select_from(found.table).limit(1)
        return connection.execute(query).first() is None

    def _others(self, rows: _Columns, found: FoundTable) -> dict[str, str]:
        """Return the columns that would have a different type if these rows had created the table."""
        told = [
            name
            for name in rows
            if name in self._types or any(value is not None for value in rows[name])
        ]
        types = self._types_of(rows, [name for name in told if name in found.types])
        return {name: kind for name, kind in types.items() if kind != found.types[name]}

    def change(self, lacks: TableLacks) -> None:
        """Change the columns in a separate transaction, because some databases commit after each DDL statement."""
        with self.transaction() as connection:
            place = self._quoted(connection)
            is_made = self._is_made(connection)
            # Lock only if columns are replaced. A lock may need another privilege, and an added
            # column does not affect readers.
            alone = self._dialect.alone(connection, place) if lacks.replaced else nullcontext()
            with alone:
                found = self._looked_again(connection)
                if not lacks.replaced or (is_made and self._is_empty(connection, found)):
                    for statement in self._changes(connection, lacks, found):
                        connection.exec_driver_sql(statement)
            if is_made:
                self._note_made(connection)
            self._facts.clear()

    def _types_of(self, rows: _Columns, names: Iterable[str]) -> dict[str, str]:
        return {name: self._types.get(name) or self._type_in(rows, name) for name in names}

    def _type_in(self, rows: _Columns, name: str) -> str:
        kinds = {_kind_of(value) for value in rows[name] if value is not None}
        kind = _common(kinds)
        if kind is None:
            raise self._without_type(name, rows[name])
        return kind

    def _without_type(self, name: str, values: Sequence[Any]) -> StateError:
        """Return the error for a column with values of several types. It suggests a type for all values, if any."""
        present = [value for value in values if value is not None]
        kinds = {_kind_of(value) or type(value).__name__ for value in present}
        shown = f"its values are {', '.join(sorted(kinds))}" if kinds else "all are NULL"
        fitting = (kind for kind in ("text", *STATE_TYPES) if _fits(kind, present))
        named = next(fitting, None)
        remedy = f'Name it: types={{"{name}": "{named}"}}.'
        if named is None:
            remedy = f"Convert the values to one type in the task, such as str({name})."
        return StateError(
            state=self.state,
            problem=f"column {name} has no clear type in the first {len(values)} rows: {shown}",
            remedy=f"{NOTHING} {remedy}",
        )

    def _described(self, types: Mapping[str, str]) -> sa.Table:
        ours = [
            sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False) for name in _OURS
        ]
        columns = [self._column(name, kind) for name, kind in types.items()]
        key = sa.PrimaryKeyConstraint(*_OURS)
        return sa.Table(
            self._name,
            sa.MetaData(),
            *ours,
            *columns,
            key,
            schema=self._schema,
            sqlite_with_rowid=False,
        )

    def _column(self, name: str, kind: str) -> sa.Column[Any]:
        made = self._dialect.types[kind]
        checks = self._dialect.checks(sa.Column(name, made), kind)
        return sa.Column(name, made, *checks, comment=self._dialect.comment(kind))

    def _changes(
        self, connection: Connection, lacks: TableLacks, found: FoundTable | None = None
    ) -> Iterator[str]:
        """Yield the DDL for the columns that the table lacks. Another writer may have added the columns in `found`."""
        place = self._quoted(connection)
        quote = connection.dialect.identifier_preparer.quote
        for name in lacks.replaced:
            yield f"ALTER TABLE {place} DROP COLUMN {quote(name)}"
        table = self._described(lacks.types)
        for name in lacks.types:
            if found is None or name in lacks.replaced or name not in found.types:
                column = sa.schema.CreateColumn(table.c[name]).compile(dialect=connection.dialect)
                yield f"ALTER TABLE {place} ADD COLUMN {column}"

    def _looked_again(self, connection: Connection) -> FoundTable:
        self._facts.pop(FOUND, None)
        found = self._found(connection)
        assert found is not None
        return found

    def _quoted(self, connection: Connection) -> str:
        return str(connection.dialect.identifier_preparer.format_table(self._bare))


def _has_default(column: Mapping[str, Any]) -> bool:
    """Return whether the column gets a value other than NULL if an INSERT omits it."""
    default = column.get("default")
    is_null = default is None or str(default).upper().startswith("NULL")
    return not is_null or column.get("autoincrement") is True or column.get("identity") is not None


def _differs(state: str, problem: str, remedy: str) -> StateDiffers:
    return StateDiffers(state=state, problem=problem, remedy=f"{NOTHING} {remedy}")


def _kind_of(value: Any) -> str | None:
    return "json" if isinstance(value, (dict, list)) else type_of(value)


def _fits(kind: str, values: Sequence[Any]) -> bool:
    try:
        converted(kind, values)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _common(kinds: set[str | None]) -> str | None:
    """Return a type that represents the values of all these types exactly, or None if there is no such type."""
    if len(kinds) == 1:
        return next(iter(kinds))
    return next((wide for wide in ("double", "numeric") if kinds == {"bigint", wide}), None)


def _replaced(grant: Grant) -> list[int]:
    """Return the transactions whose rows a write deletes: its own transaction, and the transaction that it restates."""
    return [grant.txid] if grant.replaces is None else [grant.txid, grant.replaces]
