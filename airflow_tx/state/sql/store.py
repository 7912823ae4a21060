"""A state's values in a database: roll-back, and the upsert of thousands of keys at once. Source: protocol.md §7.

Where SQL can express every aggregator, 10,000 keys take one statement; else two: they are read, combined and written.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from airflow_tx.errors import ChunkConflict, StateError, TxidBehind
from airflow_tx.state.aggregators import PUSHED_DOWN
from airflow_tx.state.api import Grant, StateKind, StateWrite
from airflow_tx.state.checked_rows import CheckedRows
from airflow_tx.state.columns import Cells, Columns, explained
from airflow_tx.state.keys import wanted_keys
from airflow_tx.state.sql.dialect import Arrays, PrimaryKeys, SumRefused, ValueRefused
from airflow_tx.state.sql.fence import NOTHING, FencedStore
from airflow_tx.state.sql.primary_key import OWN_KEY, has_own_key, own_values
from airflow_tx.state.sql.schema import (
    PREV,
    WRITER,
    existing_table,
    may_update,
    of_another,
    split_table,
    state_table,
    upsert,
    writer_of,
)
from airflow_tx.state.trident.values import Writer

# One portion of rows: large enough for the database, small enough for memory and for one statement.
ROWS_AT_ONCE = 10_000
LOOK_AGAIN = 10.0
"""Seconds between two comparisons of the columns of the table: a lane raises the fence many times a second."""
_TABLE = "the table, with the types of its key columns"
_HALF = 2**32


class SqlStore(FencedStore):
    """The work of a SqlState, inside transactions that it opens with `transaction()`."""

    def __init__(
        self,
        url: URL,
        *,
        table: str,
        columns: Columns,
        kind: StateKind,
        where: str,
        keeps_connection: bool,
    ) -> None:
        self.keeps_connection = keeps_connection
        self._looked_at = 0.0
        definition = {name: aggregator.name for name, aggregator in columns.values.items()}
        place = split_table(table, columns)
        super().__init__(url, state=columns.state, table=place, where=where, definition=definition)
        self.columns = columns
        self.kind = kind
        self._made: dict[tuple[Any, ...], sa.Table] = {}
        self._upserts: dict[sa.Table, Any] = {}
        self._pushed = all(name in PUSHED_DOWN for name in definition.values())

    def put(self, connection: Connection, write: StateWrite) -> int:
        """Add rows to the stored values, a portion at a time; returns how many keys."""
        iterator = iter(write.rows or ())
        first = next(iterator, None)
        if first is None:
            return 0
        table, key_types = self._found_or_made(connection, first)
        keys, kinds = self._keys(table, key_types)
        names = [*keys, *self.columns.values]
        kinds = [*kinds, *(aggregator.type for aggregator in self.columns.values.values())]
        if table not in self._upserts:
            self._upserts[table] = upsert(
                self._dialect,
                table,
                names,
                kinds,
                values=self.columns.values,
                kind=self.kind,
                pushed=self._pushed,
            )
        writer = Writer(write.grant.txid, write.grant.token, write.chunk)
        written = 0
        for portion in CheckedRows(self.columns).portions(
            chain([first], iterator), key_types, size=ROWS_AT_ONCE
        ):
            arrays = list(portion)
            if has_own_key(table):
                arrays.insert(
                    0, own_values(kinds[1 : len(keys)], portion[: len(self.columns.keys)], 1)
                )
            try:
                self._put_portion(connection, table, kinds, arrays, writer)
            except ValueRefused as refusal:
                raise self._value_refused(refusal, names, written, arrays) from None
            except SumRefused as refusal:
                raise self._sum_refused(refusal) from None
            written += len(arrays[0])
        return written

    def _put_portion(
        self,
        connection: Connection,
        table: sa.Table,
        kinds: Sequence[str],
        arrays: Arrays,
        writer: Writer,
    ) -> None:
        size = len(arrays[0])
        keys = arrays[: len(arrays) - len(self.columns.values)]
        if not self._pushed:
            arrays = [*keys, *self._combined(connection, table, kinds, arrays, writer.txid)]
        numbers = list(writer_of(writer).values())
        if (
            self._dialect.execute_rows(connection, self._upserts[table], numbers, kinds, arrays)
            != size
        ):
            own = keys[len(keys) - len(self.columns.keys) :] if self.columns.keys else keys
            raise self._conflict(connection, table, set(zip(*own, strict=True)), writer)

    def _combined(
        self,
        connection: Connection,
        table: sa.Table,
        kinds: Sequence[str],
        arrays: Arrays,
        txid: int,
    ) -> Arrays:
        """Compute the new values, in place of the deltas: for what SQL cannot express.

        No other writer changes the rows before they are written back. Writers of other grants wait for the fence, and
        the upsert refuses other writers of this grant.
        """
        split = len(arrays) - len(self.columns.values)
        keys = arrays[:split]
        deltas = arrays[split:]
        values = list(self.columns.values)
        opaque = self.kind is StateKind.OPAQUE
        wanted = [table.c.tx_txid, *[table.c[name] for name in values]]
        wanted += [table.c.tx_created, *[table.c[PREV + name] for name in values]] if opaque else []
        found = self._dialect.look_up(
            connection, PrimaryKeys.leading(table, kinds[:split], keys), wanted
        )
        stored = {number: row for number, *row in found}
        own = list(zip(*keys[len(keys) - len(self.columns.keys) :], strict=True)) or [()]
        after = []
        for number, (key, delta) in enumerate(zip(own, zip(*deltas, strict=True), strict=True)):
            base: Cells | None = None
            if number in stored:
                stored_txid, *row = stored[number]
                base = tuple(row[: len(values)])
                same = stored_txid == txid
                if same and not opaque:
                    after.append(base)
                    continue
                if same:
                    base = None if row[len(values)] else tuple(row[len(values) + 1 :])
            after.append(self.columns.combined(key, base, delta))
        return list(zip(*after, strict=True))

    def read(self, connection: Connection, limit: int | None = None) -> list[dict[str, Any]]:
        found = self._found(connection)
        if found is None:
            return []
        names = (*self.columns.keys, *self.columns.values)
        query = self._every_row(found[0]).order_by(
            *[found[0].c[name] for name in self.columns.keys]
        )
        query = query.limit(limit)
        return [
            self.columns.completed(dict(zip(names, row, strict=True)))
            for row in connection.execute(query)
        ]

    def each_row(self, connection: Connection) -> Iterator[Cells]:
        """Read all rows, key columns first, in no order; the driver holds some of them at a time."""
        found = self._found(connection)
        if found is None:
            return
        query = self._every_row(found[0]).execution_options(yield_per=ROWS_AT_ONCE)
        try:
            yield from map(tuple, connection.execute(query))
        except sa.exc.DBAPIError as error:
            # Raised here: a caller that reads two states at once would take it for an error of the other state.
            raise self._failure(error, committing=False) from None

    def _every_row(self, table: sa.Table) -> sa.Select[Any]:
        return sa.select(*[table.c[name] for name in (*self.columns.keys, *self.columns.values)])

    def totals(self, connection: Connection, names: Collection[str]) -> dict[str, int]:
        found = self._found(connection)
        if found is None or not names:
            return dict.fromkeys(names, 0)
        # In two parts: a total may leave 64 bits, in which SQLite adds up.
        half = sa.literal(_HALF, sa.BigInteger())
        columns = [found[0].c[name] for name in names]
        parts = [
            sa.func.sum(part)
            for each in columns
            for part in ((each - each % half) // half, each % half)
        ]
        row = [int(each or 0) for each in connection.execute(sa.select(*parts)).one()]
        return {
            name: high * _HALF + low
            for name, high, low in zip(names, row[::2], row[1::2], strict=True)
        }

    def multi_get(
        self, connection: Connection, keys: Sequence[Sequence[Any]]
    ) -> list[dict[str, Any] | None]:
        result = list[dict[str, Any] | None]([None] * len(keys))
        found = self._found(connection)
        whole = wanted_keys(self.columns, keys, None if found is None else found[1])
        if found is None:
            return result
        table, key_types = found
        _, kinds = self._keys(table, key_types)
        values = list(self.columns.values)
        wanted = [table.c[name] for name in values]
        for start in range(0, len(whole), ROWS_AT_ONCE):
            portion = whole[start : start + ROWS_AT_ONCE]
            arrays: list[Sequence[Any]] = list(zip(*[key for _, key in portion], strict=True))
            if has_own_key(table):
                arrays.insert(0, own_values(kinds[1:], arrays, len(portion)))
            primary = PrimaryKeys.leading(table, kinds, arrays)
            for number, *row in self._dialect.look_up(connection, primary, wanted):
                result[portion[number][0]] = self.columns.completed(
                    dict(zip(values, row, strict=True))
                )
        return result

    def holds(self, connection: Connection, txid: int) -> bool:
        found = self._found(connection)
        if found is None:
            return False
        query = sa.select(found[0].c.tx_txid).where(found[0].c.tx_txid == txid).limit(1)
        return connection.execute(query).first() is not None

    def holds_for_good(self, connection: Connection, txid: int) -> bool:
        return self.kind is not StateKind.OPAQUE and self.holds(connection, txid)

    def key_types(self, connection: Connection) -> dict[str, str] | None:
        found = self._found(connection)
        return None if found is None else dict(found[1])

    def clear(self, connection: Connection) -> None:
        super().clear(connection)
        found = self._found(connection)
        if found is not None:
            connection.execute(found[0].delete())

    def release(self, connection: Connection) -> None:
        """Delete the fence row; the values stay, and say no more of which transaction they are."""
        FencedStore.clear(self, connection)
        found = self._found(connection)
        if found is not None:
            writer = {
                **dict.fromkeys(WRITER, 0),
                **({"tx_created": False} if self.kind is StateKind.OPAQUE else {}),
            }
            connection.execute(found[0].update().values(writer))

    def raise_fence(self, connection: Connection, grant: Grant) -> None:
        is_due = time.monotonic() - self._looked_at >= LOOK_AGAIN
        if is_due or not self._has_table(connection, self._name):
            self._facts.pop(_TABLE, None)
        super().raise_fence(connection, grant)
        # A table of other columns is refused before anything is written.
        self._found(connection)

    def _is_there(self, connection: Connection) -> bool:
        return _TABLE in self._facts or self._has_table(connection, self._name)

    def roll_back(self, connection: Connection, grant: Grant) -> None:
        found = self._found(connection)
        if found is None or self.kind is not StateKind.OPAQUE:
            return
        table = found[0]
        outranked = sa.and_(
            table.c.tx_txid == grant.txid,
            of_another(table, writer_of(Writer(grant.txid, grant.token))),
        )
        connection.execute(table.delete().where(outranked, table.c.tx_created))
        restored = {table.c[value]: table.c[PREV + value] for value in self.columns.values}
        # Rows that an earlier raise has rolled back keep their writer and need no second write.
        changed = sa.or_(*[self._dialect.differs(value, prev) for value, prev in restored.items()])
        connection.execute(table.update().where(outranked, changed).values(restored))

    # --- tables ---------------------------------------------------------------------------------------------------

    def _keys(self, table: sa.Table, key_types: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Name the columns of ours and of the user that make a key, the primary key first, and their types."""
        names = list(self.columns.keys)
        kinds = [key_types[key] for key in names]
        if not has_own_key(table):
            return names, kinds
        return [OWN_KEY, *names], ["bytes" if names else "bigint", *kinds]

    def _make(self, key_types: Mapping[str, str]) -> sa.Table:
        """Describe the table: the same object for the same types, by which statements are known that were compiled."""
        types = tuple(key_types.items())
        if types not in self._made:
            self._made[types] = state_table(
                self.columns,
                key_types,
                self.kind,
                self._dialect,
                schema=self._schema,
                name=self._name,
            )
        return self._made[types]

    def _found(self, connection: Connection) -> tuple[sa.Table, dict[str, str]] | None:
        """Find the table and its key types, if it exists; its columns are compared now and then."""
        found: tuple[sa.Table, dict[str, str]] | None = self._facts.get(_TABLE)
        if found is None and self._has_table(connection, self._name):
            found = existing_table(
                connection,
                self.columns,
                self._make,
                self._dialect,
                schema=self._schema,
                name=self._name,
            )
            self._facts[_TABLE] = found
            self._looked_at = time.monotonic()
        return found

    def _found_or_made(
        self, connection: Connection, first: Mapping[str, Any]
    ) -> tuple[sa.Table, dict[str, str]]:
        found = self._found(connection)
        if found is not None:
            return found
        key_types = CheckedRows(self.columns).key_types(first)
        with self._dialect.ddl(connection) as ddl:
            # Another writer of the grant may have made it while this one waited.
            if not self._has_table(ddl, self._name):
                self._dialect.create(ddl, self._make(key_types))
        found = self._found(connection)
        assert found is not None
        return found

    # --- refusals -------------------------------------------------------------------------------------------------

    def _conflict(
        self, connection: Connection, table: sa.Table, keys: set[Cells], writer: Writer
    ) -> StateError:
        columns = [table.c[key] for key in self.columns.keys or (OWN_KEY,)]
        allowed = may_update(table, writer_of(writer))
        query = sa.select(*columns, table.c.tx_txid, table.c.tx_chunk).where(sa.not_(allowed))
        for row in connection.execute(query):
            *key, txid, found = row
            if tuple(key) not in keys:
                continue
            if txid > writer.txid:
                return TxidBehind(txid=writer.txid, stored=txid)
            # A state without keys has one row, whose key is ours and not shown.
            shown = dict(zip(self.columns.keys, key, strict=False))
            return ChunkConflict(
                state=self.state, key=shown, found=found, chunk=writer.chunk, txid=writer.txid
            )
        return self._refused("it did not take all rows of the update")

    def _sum_refused(self, refusal: SumRefused) -> StateError:
        name, aggregator = list(self.columns.values.items())[refusal.column]
        problem, remedy = explained(name, aggregator, ArithmeticError("cannot be stored"))
        return StateError(state=self.state, problem=problem, remedy=f"{NOTHING}{remedy}")

    def _value_refused(
        self, refusal: ValueRefused, names: Sequence[str], before: int, arrays: Arrays
    ) -> StateError:
        shown = {key: arrays[names.index(key)][refusal.row] for key in self.columns.keys}
        column = "" if refusal.column is None else f"{names[refusal.column]} "
        return StateError(
            state=self.state,
            problem=f"row {before + refusal.row} {shown}: {column}{refusal.problem}",
            remedy=f"{NOTHING} {refusal.remedy}",
        )
