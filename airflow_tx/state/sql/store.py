"""The values of a state in a database.

This module rolls values back, and updates thousands of keys with upserts. Source: protocol.md §7.

If SQL can express every aggregator, 10,000 keys take one statement. Otherwise, a commit reads the values, combines them
in Python and writes them back, with two statements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from airflow_tx.base.errors import ChunkConflict, StateError, TxidBehind
from airflow_tx.ledger import holds_for_good
from airflow_tx.state.aggregators import PUSHED_DOWN, Cells, Columns, explained
from airflow_tx.state.api import Fence, Grant, StateKind, StateWrite, replaces
from airflow_tx.state.column_types import PREV, split_table
from airflow_tx.state.keys import decode_key, wanted_keys
from airflow_tx.state.maps import Writer
from airflow_tx.state.rows import CheckedRows
from airflow_tx.state.sql import fence
from airflow_tx.state.sql.database import NOTHING
from airflow_tx.state.sql.dialect import (
    Arrays,
    PrimaryKeys,
    SumRefused,
    TextLength,
    ValueRefused,
    check_lengths,
    statement_text,
)
from airflow_tx.state.sql.fence import (
    ROWS_AT_ONCE,
    Imprint,
    OneTableStore,
    SqlTransaction,
    sampled,
)
from airflow_tx.state.sql.schema import (
    OWN_KEY,
    WRITER,
    existing_table,
    has_own_key,
    lost_key,
    may_update,
    own_values,
    state_table,
    upsert,
    writer_of,
)

# The divisor that splits numbers into 32-bit halves, from which sums are computed.
_HALF = 2**32


@lru_cache
def _count(table: sa.Table, most: int, shape: sa.ScalarSelect[Any]) -> sa.Select[Any]:
    """Return a query that counts at most `most` + 1 rows.

    Building the query takes longer than sending it, so it is cached.
    """
    some = sa.select(table.c.tx_txid).limit(most + 1).subquery()
    numbers = [sa.func.coalesce(each(some.c.tx_txid), 0) for each in (sa.func.sum, sa.func.max)]
    return sa.select(sa.func.count(), *numbers, shape).select_from(some)


class StateTable(OneTableStore[tuple[sa.Table, dict[str, str]]]):
    """The table of a SqlState. The methods run inside transactions that `transaction()` opens."""

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
        definition = {name: aggregator.name for name, aggregator in columns.values.items()}
        names = (*columns.keys, *(PREV + value for value in columns.values))
        place = split_table(table, names, state=columns.state, also=PREV)
        super().__init__(url, state=columns.state, table=place, where=where, definition=definition)
        self.columns = columns
        self.kind = kind
        self._made: dict[tuple[Any, ...], sa.Table] = {}
        self._lengths: Mapping[str, TextLength] = {}

    def begun(self, connection: Connection, write: StateWrite) -> SqlTransaction:
        begun = super().begun(connection, write)
        if write.require is not None:
            write.require(partial(self.multi_get, connection))
        return begun

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
        """Read all rows in any order. Key columns come first in a row. The driver keeps only some rows in memory."""
        found = self._found(connection)
        if found is None:
            return
        query = self._every_row(found[0]).execution_options(yield_per=ROWS_AT_ONCE)
        try:
            yield from map(tuple, connection.execute(query))
        except sa.exc.DBAPIError as error:
            # Raise the error here. A caller that reads two states might attribute it to the wrong
            # one.
            raise self._failure(error, committing=False) from None

    def _every_row(self, table: sa.Table) -> sa.Select[Any]:
        return sa.select(*[table.c[name] for name in (*self.columns.keys, *self.columns.values)])

    def rows_by_grant(self, connection: Connection) -> dict[tuple[int, int, int], int]:
        found = self._found(connection)
        if found is None:
            return {}
        grant = [found[0].c[name] for name in ("tx_txid", "tx_attempt", "tx_epoch")]
        query = sa.select(*grant, sa.func.count()).group_by(*grant)
        return {
            (txid, attempt, epoch): count
            for txid, attempt, epoch, count in map(tuple, connection.execute(query))
        }

    def totals(
        self, connection: Connection, names: Collection[str], without: int = 0
    ) -> dict[str, int]:
        """Return the sum of each column over all keys.

        :param without: the transaction whose writes are ignored; 0 for none.
        """
        found = self._found(connection)
        if found is None or not names:
            return dict.fromkeys(names, 0)
        # Sum the upper and the lower half of each number, because a total may exceed the 64 bits of
        # SQLite's sums.
        half = sa.literal(_HALF, sa.BigInteger())
        columns = [_before(found[0], name, without) for name in names]
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
        values = list(self.columns.values)
        wanted = [found[0].c[name] for name in values]
        for start in range(0, len(whole), ROWS_AT_ONCE):
            portion = whole[start : start + ROWS_AT_ONCE]
            primary = self._primary(*found, [key for _, key in portion])
            for number, *row in self._dialect.look_up(connection, primary, wanted):
                result[portion[number][0]] = self.columns.completed(
                    dict(zip(values, row, strict=True))
                )
        return result

    def sole_values(
        self, connection: Connection, keys: Sequence[Cells], txids: Collection[int], own: int
    ) -> list[Cells | None]:
        """Read the values of keys. See `SoleWriterState.sole_values`."""
        nothing: Cells = (None,) * len(self.columns.values)
        result = list[Cells | None]([nothing] * len(keys))
        found = self._found(connection)
        if found is None:
            return result
        names = ["tx_txid", "tx_chunk", "tx_created", *self.columns.values]
        names += [PREV + name for name in self.columns.values]
        wanted = [found[0].c[name] for name in names]
        count = len(self.columns.values)
        for start in range(0, len(keys), ROWS_AT_ONCE):
            primary = self._primary(*found, keys[start : start + ROWS_AT_ONCE])
            for number, txid, chunk, created, *row in self._dialect.look_up(
                connection, primary, wanted
            ):
                if created and txid == own:
                    continue  # an earlier try of this transaction created the row
                alone = replaces(chunk) or (created and txid in txids)
                values = tuple(row[count:] if txid == own else row[:count])
                result[start + number] = values if alone else None
        return result

    def _primary(
        self, table: sa.Table, key_types: Mapping[str, str], keys: Sequence[Cells]
    ) -> PrimaryKeys:
        _, kinds = self._keys(table, key_types)
        arrays: list[Sequence[Any]] = list(zip(*keys, strict=True))
        if has_own_key(table):
            arrays.insert(0, own_values(kinds[1:], arrays, len(keys)))
        return PrimaryKeys.leading(table, kinds, arrays)

    def key_types(self, connection: Connection) -> dict[str, str] | None:
        found = self._found(connection)
        return None if found is None else dict(found[1])

    # --- the imprint ---------------------------------------------------------------------------------------------

    def _has_nothing(self, connection: Connection) -> bool:
        now = self.imprint(connection)
        return now is None or now.rows == 0

    def missing(self, connection: Connection, kept: Imprint) -> str:
        found = self._found(connection)
        if found is None:
            return ""
        if kept.rows is not None or not kept.keys or kept.types != found[1]:
            return kept.missing(self._counted(connection, found[0]))
        # The definition does not preserve the order of the types.
        kinds = [kept.types[name] for name in self.columns.keys]
        keys = [decode_key(kinds, key.encode()) for key in kept.keys]
        wanted = [found[0].c.tx_txid]
        looked_up = self._dialect.look_up(connection, self._primary(*found, keys), wanted)
        txids = dict(map(tuple, looked_up))
        return kept.missing_keys([txids.get(number) for number in range(len(keys))])

    def imprint(
        self, connection: Connection, kept: Imprint | None = None, wrote: Imprint | None = None
    ) -> Imprint | None:
        found = self._found(connection)
        if found is None:
            return None
        now = kept or Imprint()
        if kept is None or kept.rows is not None:
            now = now.with_rows(self._counted(connection, found[0]))
        else:
            self.check_columns(connection)
        return now if wrote is None else now.with_keys(wrote, found[1])

    def _counted(self, connection: Connection, table: sa.Table) -> Imprint:
        """Count the rows of a small table. Return an empty imprint for a large table."""
        rows, txids, last, shape = connection.execute(
            _count(table, fence.COUNTED, self._shape)
        ).one()
        self._check_shape(shape)
        return Imprint() if rows > fence.COUNTED else Imprint(last, rows=rows, txids=int(txids))

    # --- tables ---------------------------------------------------------------------------------------------------

    def _keys(self, table: sa.Table, key_types: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Return the key columns and their types. Primary key columns come first."""
        names = list(self.columns.keys)
        kinds = [key_types[key] for key in names]
        if not has_own_key(table):
            return names, kinds
        return [OWN_KEY, *names], ["bytes" if names else "bigint", *kinds]

    def _make(self, key_types: Mapping[str, str]) -> sa.Table:
        """Describe the table for these key types.

        Equal types return the same object, so that SQLAlchemy reuses compiled statements.
        """
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

    def _own_table(self, connection: Connection) -> sa.Table | None:
        known = self.columns.types.keys() >= {*self.columns.keys}
        return self._make(self.columns.types) if known else None

    def _own_changes(self, connection: Connection) -> Iterator[str]:
        if self._has_table(connection, self._name):
            yield from lost_key(
                connection,
                self.columns,
                self._make,
                self._dialect,
                schema=self._schema,
                name=self._name,
            )
        elif self._own_table(connection) is None:
            untyped = [key for key in self.columns.keys if key not in self.columns.types]
            yield f"-- table {self._name}: name the type of {', '.join(untyped)} in types= of the state"

    def _look(self, connection: Connection) -> tuple[sa.Table, dict[str, str]]:
        """Read the table, its key types and the maximum text lengths."""
        self._lengths = self._dialect.lengths(connection, self._bare)
        return existing_table(
            connection,
            self.columns,
            self._make,
            self._dialect,
            schema=self._schema,
            name=self._name,
        )


def _before(table: sa.Table, name: str, txid: int) -> Any:
    """Return SQL for a column's value before a transaction wrote to it."""
    if not txid:
        return table.c[name]
    wrote = sa.and_(table.c.tx_txid == txid, table.c.tx_epoch != 0)
    prev = sa.case((table.c.tx_created, sa.null()), else_=table.c[PREV + name])
    return sa.case((wrote, prev), else_=table.c[name])


class SqlStore(StateTable):
    """Reads and writes the values of a SqlState inside transactions that `transaction()` opens."""

    @cached_property
    def _upserts(self) -> dict[tuple[sa.Table, bool], Any]:
        return {}

    @cached_property
    def _pushed(self) -> bool:
        return all(name in PUSHED_DOWN for name in self._definition.values())

    def put(self, connection: Connection, write: StateWrite, sample: list[str]) -> int:
        """Combine the rows with the stored values in portions. Return the number of keys."""
        iterator = iter(write.rows or ())
        first = next(iterator, None)
        if first is None:
            return 0
        table, key_types = self._found_or_made(connection, first)
        keys, kinds = self._keys(table, key_types)
        names = [*keys, *self.columns.values]
        kinds = [*kinds, *(aggregator.type for aggregator in self.columns.values.values())]
        pushed = self._pushed and not replaces(write.chunk)
        if (table, pushed) not in self._upserts:
            self._upserts[table, pushed] = upsert(
                self._dialect,
                table,
                names,
                kinds,
                values=self.columns.values,
                kind=self.kind,
                pushed=pushed,
            )
        writer = Writer(write.grant.txid, write.grant.token, write.chunk)
        written = 0
        for portion in CheckedRows(self.columns).portions(
            chain([first], iterator), key_types, size=ROWS_AT_ONCE
        ):
            arrays = list(portion)
            if not sample:
                sample += sampled(list(key_types.values()), arrays[: len(self.columns.keys)])
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
        pushed = self._pushed and not replaces(writer.chunk)
        if not pushed:
            arrays = [*keys, *self._combined(connection, table, kinds, arrays, writer)]
        own_key = (OWN_KEY,) if has_own_key(table) else ()
        names = (*own_key, *self.columns.keys, *self.columns.values)
        check_lengths(self._lengths, names, arrays)
        numbers = list(writer_of(writer).values())
        if (
            self._dialect.execute_rows(
                connection, self._upserts[table, pushed], numbers, kinds, arrays
            )
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
        writer: Writer,
    ) -> Arrays:
        """Compute the new values from stored values and deltas, for aggregators that SQL cannot express.

        No other writer changes the rows before these values are written. Writers of other grants wait for the fence,
        and the upsert refuses other writers of this grant.
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
                same = stored_txid == writer.txid
                if same and not opaque:
                    after.append(base)
                    continue
                if same:
                    base = None if row[len(values)] else tuple(row[len(values) + 1 :])
            replacing = replaces(writer.chunk)
            after.append(self.columns.combined(key, base, delta, replacing=replacing))
        return list(zip(*after, strict=True))

    def at(self, connection: Connection, txid: int, newest: int) -> str:
        found = self._found(connection)
        if found is None:
            raise StateError(
                state=self.state, problem="it has no table", remedy="No row was written yet."
            )
        table = found[0]
        kept = int(self.kind is StateKind.OPAQUE)
        values: list[Any] = [table.c[name] for name in self.columns.values]
        asked = [self._is_of(connection, txid, newest, kept)]
        if kept:
            # The next transaction may be undone and written again, so read the previous values of
            # its rows.
            wrote = sa.and_(table.c.tx_txid == txid + 1, table.c.tx_epoch != 0)
            values = [
                sa.case((wrote, table.c[PREV + name]), else_=table.c[name]).label(name)
                for name in self.columns.values
            ]
            asked.append(~sa.and_(wrote, table.c.tx_created))
        keys = [table.c[name] for name in self.columns.keys]
        return statement_text(connection.dialect, sa.select(*keys, *values).where(*asked))

    def holds(self, connection: Connection, txid: int) -> bool:
        found = self._found(connection)
        if found is None:
            return False
        query = sa.select(found[0].c.tx_txid).where(found[0].c.tx_txid == txid).limit(1)
        return connection.execute(query).first() is not None

    def holds_for_good(
        self, connection: Connection, txid: int, birth: str, incarnation: str
    ) -> bool:
        own = self._fence_of(connection, txid)
        is_own = not own or holds_for_good(own, txid, birth, incarnation)
        return self.kind is not StateKind.OPAQUE and is_own and self.holds(connection, txid)

    def _fence_of(self, connection: Connection, txid: int) -> list[Fence]:
        """Return a list with the fence, or [] if the fence has another txid.

        Rows have no birth, but were written under the fence of their txid.
        """
        last = self.read_fence(connection)
        return [last] if last is not None and last.txid == txid else []

    def clear(self, connection: Connection) -> None:
        super().clear(connection)
        found = self._found(connection)
        if found is not None:
            connection.execute(found[0].delete())

    def _newest_txid(self, connection: Connection) -> int:
        found = self._found(connection)
        if found is None:
            return 0
        newest = connection.execute(sa.select(sa.func.max(found[0].c.tx_txid))).scalar_one()
        return newest or 0

    def _releasing(self, connection: Connection) -> sa.Update:
        found = self._found(connection)
        assert found is not None
        return found[0].update().values(self._of_nobody())

    def _of_nobody(self) -> dict[str, Any]:
        """Return the writer columns of rows that belong to no transaction."""
        opaque = self.kind is StateKind.OPAQUE
        return {**dict.fromkeys(WRITER, 0), **({"tx_created": False} if opaque else {})}

    def raise_fence(self, connection: Connection, grant: Grant) -> Imprint | None:
        kept = super().raise_fence(connection, grant)
        # Refuse a table with other columns before anything is written.
        self._found(connection)
        return kept

    def roll_back(self, connection: Connection, grant: Grant) -> None:
        found = self._found(connection)
        if found is None:
            return
        if self.kind is not StateKind.OPAQUE:
            self._forget_another(connection, found[0], grant)
            return
        table = found[0]
        written = table.c.tx_txid == grant.txid
        connection.execute(table.delete().where(written, table.c.tx_created))
        restored = {table.c[value]: table.c[PREV + value] for value in self.columns.values}
        # Set epoch 0, which no grant has. As a result, any writer may write the row next, and a row
        # is rolled back only once.
        epoch = table.c.tx_epoch
        connection.execute(table.update().where(written, epoch != 0).values({**restored, epoch: 0}))

    def _forget_another(self, connection: Connection, table: sa.Table, grant: Grant) -> None:
        """Remove the txid from rows that another transaction with the same txid wrote.

        A user has accepted these rows.
        """
        own = self._fence_of(connection, grant.txid)
        if own and not holds_for_good(own, grant.txid, grant.token.birth, grant.incarnation):
            of_it = table.update().where(table.c.tx_txid == grant.txid)
            connection.execute(of_it.values(self._of_nobody()))

    def _found_or_made(
        self, connection: Connection, first: Mapping[str, Any]
    ) -> tuple[sa.Table, dict[str, str]]:
        found = self._found(connection)
        if found is not None:
            return found
        key_types = CheckedRows(self.columns).key_types(first)
        self._make_table(connection, self._make(key_types))
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
            # A state without keys has one row. Its key is a column of this package, and is not
            # shown.
            shown = dict(zip(self.columns.keys, key, strict=False))
            return ChunkConflict(
                state=self.state, key=shown, found=found, chunk=writer.chunk, txid=writer.txid
            )
        return self._refused("the database did not store all rows of the update")

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
