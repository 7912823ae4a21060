"""A state's values in a database: roll-back, and the upsert of thousands of keys at once. Source: protocol.md §7.

Where SQL can express every aggregator, 10,000 keys take one statement; else two: they are read, combined and written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.base.errors import ChunkConflict, StateError, TxidBehind
from airflow_tx.ledger import holds_for_good
from airflow_tx.state.aggregators import PUSHED_DOWN, Cells, explained
from airflow_tx.state.api import Fence, Grant, StateKind, StateWrite, replaces
from airflow_tx.state.column_types import PREV
from airflow_tx.state.rows import CheckedRows
from airflow_tx.state.sql.database import NOTHING
from airflow_tx.state.sql.dialect import (
    Arrays,
    PrimaryKeys,
    SumRefused,
    ValueRefused,
    check_lengths,
    statement_text,
)
from airflow_tx.state.sql.fence import ROWS_AT_ONCE, Imprint, StateTable, sampled
from airflow_tx.state.sql.schema import (
    OWN_KEY,
    WRITER,
    has_own_key,
    may_update,
    own_values,
    upsert,
    writer_of,
)
from airflow_tx.state.trident.maps import Writer


class SqlStore(StateTable):
    """The work of a SqlState, inside transactions that it opens with `transaction()`."""

    @cached_property
    def _upserts(self) -> dict[tuple[sa.Table, bool], Any]:
        return {}

    @cached_property
    def _pushed(self) -> bool:
        return all(name in PUSHED_DOWN for name in self._definition.values())

    def put(self, connection: Connection, write: StateWrite, sample: list[str]) -> int:
        """Add rows to the stored values, a portion at a time; returns how many keys."""
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
            # Of the one transaction after it, which may be undone, and written again.
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
        """Read the fence, if it is of this txid: a row has no birth, and was written under the fence of its txid."""
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
        """Give what rows have as their writer that belong to no transaction."""
        opaque = self.kind is StateKind.OPAQUE
        return {**dict.fromkeys(WRITER, 0), **({"tx_created": False} if opaque else {})}

    def raise_fence(self, connection: Connection, grant: Grant) -> Imprint | None:
        kept = super().raise_fence(connection, grant)
        # A table of other columns is refused before anything is written.
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
        # No grant has epoch 0: any writer may come next, and a row is rolled back once.
        epoch = table.c.tx_epoch
        connection.execute(table.update().where(written, epoch != 0).values({**restored, epoch: 0}))

    def _forget_another(self, connection: Connection, table: sa.Table, grant: Grant) -> None:
        """Let the rows of another transaction of this number have no txid: a person has accepted them."""
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
