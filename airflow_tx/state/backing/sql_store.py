"""One state in one database: transactions, fence row, roll-back and bulk upsert. Source: PROTOCOL §7."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from airflow_tx.errors import (
    ChunkConflict,
    StateError,
    StateLocked,
    StateOutcomeUnknown,
    StateUnavailable,
    TxidBehind,
)
from airflow_tx.protocol.attempt import Token
from airflow_tx.state import fence
from airflow_tx.state.api import FenceRow, Grant, StateKind
from airflow_tx.state.backing.sql_dialects import SumRefused, dialect_of
from airflow_tx.state.backing.sql_schema import (
    FENCE_FORMAT,
    FENCE_TABLE,
    PREV,
    RAISED_BY,
    SINGLE_KEY,
    WRITER,
    existing_key_types,
    fence_table,
    split_name,
    state_table,
)
from airflow_tx.state.columns import Columns, Row

# One portion of rows: large enough for the database, small enough for memory and for one statement.
ROWS_AT_ONCE = 10_000
_NOTHING = "Nothing of this update was written."
# Why a sum cannot be stored, and what to do; per type of the column.
_SUM_REFUSED = {
    "bigint": ("leaves 64 bits", 'Use Sum("numeric") with a new table.'),
    "double": ("is larger than any double", 'Use Sum("numeric") with a new table.'),
    "numeric": (
        "needs more digits than can be added exactly (1000)",
        'Round the numbers before writing, or use Sum("double") with a new table.',
    ),
}


class SqlStore:
    """What a SqlState does, inside transactions that it opens with `transaction()`.

    :param where: how messages name the database; no address, no password.
    """

    def __init__(self, url: URL, *, table: str, columns: Columns, kind: StateKind, where: str) -> None:
        self.columns, self.kind, self.where = columns, kind, where
        self._secret = str(url.password) if url.password else ""
        self._dialect = dialect_of(url)
        self._engine = self._dialect.engine(url)
        self._schema, self._name = split_name(table, columns)
        # Two spellings of one table name are one state: they share its fence.
        self._identity = self._dialect.identity(self._name)
        self._fence: sa.Table = fence_table(self._schema)
        self._placed = self._fence_complete = False
        self._key_types: dict[str, str] | None = None

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Iterator[Connection]:
        """One transaction of the database: committed at the end, undone by any error.

        :raises StateUnavailable: the database does not answer, or not in time.
        :raises StateOutcomeUnknown: it does not answer to the commit itself.
        :raises StateError: it refuses a statement.
        """
        committing, complete = False, self._fence_complete
        try:
            with self._engine.connect().execution_options(tx_reading=reading) as connection, connection.begin():
                self._place(connection)
                yield connection
                committing = not reading
            complete = self._fence_complete
        except SumRefused as refusal:
            raise self._sum_refused(refusal) from None
        except sa.exc.DBAPIError as error:
            raise self._failure(error, committing=committing) from None
        except (sa.exc.StatementError, OverflowError, UnicodeError) as error:
            raise self._refused(str(error).splitlines()[0]) from None
        finally:
            # What a transaction found of its own DDL is undone with it.
            self._fence_complete = complete

    def _place(self, connection: Connection) -> None:
        """Learn the schema of the tables, which the user may have left to the database."""
        if not self._placed:
            self._schema = self._dialect.schema(connection, self._schema, self._name)
            self._fence = fence_table(self._schema)
            self._placed = True

    # --- the fence ------------------------------------------------------------------------------------------------

    def read_fence(self, connection: Connection, *, lock: str | None = None) -> FenceRow | None:
        """The fence row, locked until the transaction ends.

        :param lock: "update", "share" or None.
        """
        if not sa.inspect(connection).has_table(self._fence.name, schema=self._schema):
            return None
        query = sa.select(*self._fence_columns(connection)).where(self._fence.c.state == self._identity)
        row = (
            connection.execute(query.with_for_update(read=lock == "share") if lock else query).mappings().one_or_none()
        )
        if row is None:
            return None
        if row["format"] != FENCE_FORMAT:
            raise StateError(
                state=self.columns.state,
                problem=f"its fence row has format {row['format']}, this version knows {FENCE_FORMAT}",
                remedy="Upgrade airflow-provider-tx.",
            )
        token = Token(row["generation"], row["txid"], row["attempt"], row["epoch"], row["nonce"])
        return FenceRow(row["incarnation"], token, bool(row["applied"]), row["batch"], row.get(RAISED_BY) or "")

    def raise_fence(self, connection: Connection, grant: Grant) -> None:
        """Raise the fence under its lock and undo what outranked tokens of this txid wrote."""
        self._ensure_fence_table(connection)
        stored = self.read_fence(connection, lock="update")
        raised = fence.raised(stored, grant, state=self.columns.state)
        if stored is None:
            insert = self._dialect.insert_if_absent(self._fence, self._fence_values(raised))
            if self._execute(connection, insert) == 0:
                # Nothing was there to lock, and another first grant came between: its row counts now.
                raised = fence.raised(self.read_fence(connection, lock="update"), grant, state=self.columns.state)
        self._put_fence(connection, raised)
        found = self._found(connection)
        # Under a fence that held this grant before, the roll-back is done: it was part of the same transaction.
        again = stored is not None and stored.token == grant.token
        if found is not None and self.kind is StateKind.OPAQUE and not again:
            self._roll_back(connection, found[0], grant.token)

    def check_write(self, connection: Connection, grant: Grant, *, complete: bool) -> None:
        """Refuse unless the fence holds exactly this grant; it stays so until the transaction ends.

        Writers of one grant share the lock; only the one that will set `applied` takes it alone, since two
        that wanted to upgrade a shared lock would wait for each other.
        """
        stored = self.read_fence(connection, lock="update" if complete else "share")
        fence.check_write(stored, grant, state=self.columns.state)

    def set_applied(self, connection: Connection, grant: Grant) -> None:
        """Note that all updates of the grant are in the store."""
        connection.execute(self._fence.update().where(self._fence.c.state == self._identity).values(applied=True))

    def _put_fence(self, connection: Connection, row: FenceRow) -> None:
        connection.execute(
            self._fence.update().where(self._fence.c.state == self._identity).values(self._fence_values(row))
        )

    def _fence_values(self, row: FenceRow) -> dict[str, Any]:
        of_the_fence = {"state": self._identity, "format": FENCE_FORMAT, "applied": row.applied, RAISED_BY: row.state}
        return {**of_the_fence, "incarnation": row.incarnation, **row.token.to_json(), "batch": row.batch}

    # --- the values -----------------------------------------------------------------------------------------------

    def put(self, connection: Connection, grant: Grant, rows: Iterable[Mapping[str, Any]], chunk: int) -> int:
        """Add rows to the stored values, a portion at a time; how many keys."""
        iterator = iter(rows)
        first = next(iterator, None)
        if first is None:
            return 0
        table, key_types = self._found_or_made(connection, first)
        keys, values = self._key_columns(table), [table.c[value] for value in self.columns.values]
        kinds = [key_types.get(key.name, "bigint") for key in keys] + [agg.type for agg in self.columns.values.values()]
        statement = self._upsert(table, [*keys, *values], grant.token, chunk)
        written = 0
        for portion in self.columns.portions(chain([first], iterator), key_types, size=ROWS_AT_ONCE):
            # A state without keys has one row, with a key of ours.
            arrays = portion if self.columns.keys else [[0], *portion]
            size = len(arrays[0])
            if self._dialect.execute_rows(connection, statement, kinds, arrays) != size:
                touched = set(zip(*arrays[: len(keys)], strict=True))
                raise self._conflict(connection, table, touched, grant.token, chunk)
            written += size
        return written

    def read(self, connection: Connection) -> list[dict[str, Any]]:
        """The current values, in the order of the keys."""
        found = self._found(connection)
        if found is None:
            return []
        table = found[0]
        names = (*self.columns.keys, *self.columns.values)
        query = sa.select(*[table.c[name] for name in names]).order_by(*table.primary_key.columns)
        return [dict(zip(names, row, strict=True)) for row in connection.execute(query).all()]

    def clear(self, connection: Connection) -> None:
        """Delete the fence row and all values."""
        if self.read_fence(connection, lock="update") is not None:
            connection.execute(self._fence.delete().where(self._fence.c.state == self._identity))
        found = self._found(connection)
        if found is not None:
            connection.execute(found[0].delete())

    def _upsert(self, table: sa.Table, columns: list[sa.Column[Any]], token: Token, chunk: int) -> Any:
        """The conditional upsert: same txid, from the previous value; others stay and are not counted."""
        writer, opaque = _writer(token, chunk), self.kind is StateKind.OPAQUE
        constants, same = dict(writer), table.c.tx_txid == writer["tx_txid"]
        if opaque:
            constants["tx_created"] = sa.true()
        insert = self._dialect.insert_rows(table, columns, constants)
        updated: dict[str, Any] = {name: insert.excluded[name] for name in writer}
        for number, (value, aggregator) in enumerate(self.columns.values.items()):
            stored, delta = table.c[value], insert.excluded[value]
            base = sa.case((same, table.c[PREV + value]), else_=stored) if opaque else stored
            combined = self._dialect.combined(aggregator.type, base, delta, number)
            updated[value] = combined if opaque else sa.case((same, stored), else_=combined)
            if opaque:
                updated[PREV + value] = base
        if opaque:
            updated["tx_created"] = sa.case((same, table.c.tx_created), else_=sa.false())
        return insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=updated, where=_may_update(table, writer)
        ).execution_options(preserve_rowcount=True)

    def _roll_back(self, connection: Connection, table: sa.Table, token: Token) -> None:
        outranked = sa.and_(table.c.tx_txid == token.txid, _of_another(table, _writer(token, 0)))
        connection.execute(table.delete().where(outranked, table.c.tx_created))
        restored = {table.c[value]: table.c[PREV + value] for value in self.columns.values}
        # What an earlier raise has rolled back keeps its writer; it need not be written again.
        changed = sa.or_(*[value.is_distinct_from(prev) for value, prev in restored.items()])
        connection.execute(table.update().where(outranked, changed).values(restored))

    def _conflict(
        self, connection: Connection, table: sa.Table, keys: set[Row], token: Token, chunk: int
    ) -> StateError:
        columns = self._key_columns(table)
        query = sa.select(*columns, table.c.tx_txid, table.c.tx_chunk).where(
            sa.not_(_may_update(table, _writer(token, chunk)))
        )
        for row in connection.execute(query):
            *key, txid, found = row
            if tuple(key) not in keys:
                continue
            if txid > token.txid:
                return TxidBehind(txid=token.txid, stored=txid)
            # A state without keys has one row, whose key is ours and not shown.
            shown = dict(zip(self.columns.keys, key, strict=False))
            return ChunkConflict(state=self.columns.state, key=shown, found=found, chunk=chunk, txid=token.txid)
        return self._refused("it did not take all rows of the update")

    # --- tables ---------------------------------------------------------------------------------------------------

    def _key_columns(self, table: sa.Table) -> list[sa.Column[Any]]:
        return [table.c[key] for key in self.columns.keys or (SINGLE_KEY,)]

    def _make(self, key_types: Mapping[str, str]) -> sa.Table:
        return state_table(self._schema, self._name, self.columns, key_types, self.kind, self._dialect)

    def _found(self, connection: Connection) -> tuple[sa.Table, dict[str, str]] | None:
        """The table and its key types, if it exists; its columns are compared once per object."""
        if not sa.inspect(connection).has_table(self._name, schema=self._schema):
            self._key_types = None
            return None
        if self._key_types is None:
            expected = self._make({key: self.columns.types.get(key, "text") for key in self.columns.keys})
            self._key_types = existing_key_types(connection, expected, self.columns, self._dialect)
        return self._make(self._key_types), self._key_types

    def _found_or_made(self, connection: Connection, first: Mapping[str, Any]) -> tuple[sa.Table, dict[str, str]]:
        found = self._found(connection)
        if found is None:
            self._dialect.lock_ddl(connection)
            # Another writer of the grant may have made it while this one waited.
            found = self._found(connection)
        if found is None:
            key_types = self.columns.key_types(first)
            found = self._make(key_types), key_types
            found[0].metadata.create_all(connection)
        return found

    def _ensure_fence_table(self, connection: Connection) -> None:
        if not sa.inspect(connection).has_table(self._fence.name, schema=self._schema):
            self._dialect.lock_ddl(connection)
            self._fence.metadata.create_all(connection)
        if len(self._fence_columns(connection)) < len(self._fence.c):
            self._dialect.lock_ddl(connection)
            if len(self._fence_columns(connection)) < len(self._fence.c):
                added = sa.schema.CreateColumn(self._fence.c[RAISED_BY]).compile(dialect=connection.dialect)
                named = connection.dialect.identifier_preparer.format_table(self._fence)
                connection.exec_driver_sql(f"ALTER TABLE {named} ADD COLUMN {added}")

    def _fence_columns(self, connection: Connection) -> list[sa.Column[Any]]:
        """Those that are there: a table of the first versions lacks one until the fence is raised."""
        if not self._fence_complete:
            found = {column["name"] for column in sa.inspect(connection).get_columns(FENCE_TABLE, schema=self._schema)}
            if not found.issuperset(self._fence.c.keys()):
                return [column for column in self._fence.c if column.name in found]
            self._fence_complete = True
        return list(self._fence.c)

    def _execute(self, connection: Connection, statement: Any) -> int:
        result = connection.execute(statement.execution_options(preserve_rowcount=True))
        return result.rowcount

    def _reason(self, error: sa.exc.DBAPIError) -> str:
        text = " ".join(str(error.orig).split())
        return text.replace(self._secret, "***") if self._secret else text

    def _failure(self, error: sa.exc.DBAPIError, *, committing: bool) -> StateError:
        reason, kind = self._reason(error), StateUnavailable
        if self._dialect.is_lock_timeout(error):
            kind = StateLocked
        elif not (isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError)) or error.connection_invalidated):
            return self._refused(reason)
        elif committing:
            kind = StateOutcomeUnknown
        return kind(state=self.columns.state, where=self.where, reason=reason)

    def _refused(self, reason: str) -> StateError:
        return StateError(state=self.columns.state, problem=f"the database says: {reason}", remedy=_NOTHING)

    def _sum_refused(self, refusal: SumRefused) -> StateError:
        name, aggregator = list(self.columns.values.items())[refusal.column]
        problem, remedy = _SUM_REFUSED[aggregator.type]
        return StateError(
            state=self.columns.state, problem=f"the sum of column {name} {problem}", remedy=f"{_NOTHING} {remedy}"
        )


def _writer(token: Token, chunk: int) -> dict[str, Any]:
    """The columns that say who wrote a row, as constants of the statement: they are the same for all its rows."""
    values = (token.txid, token.generation, token.attempt, token.epoch, chunk)
    return {name: sa.literal_column(str(int(value))) for name, value in zip(WRITER, values, strict=True)}


def _of_another(table: sa.Table, writer: dict[str, Any]) -> Any:
    return sa.or_(*[table.c[name] != writer[name] for name in ("tx_generation", "tx_attempt", "tx_epoch")])


def _may_update(table: sa.Table, writer: dict[str, Any]) -> Any:
    """Rows of an earlier transaction, of another attempt of this one, or of this very writer."""
    mine = sa.or_(_of_another(table, writer), table.c.tx_chunk == writer["tx_chunk"])
    return sa.or_(table.c.tx_txid < writer["tx_txid"], sa.and_(table.c.tx_txid == writer["tx_txid"], mine))
