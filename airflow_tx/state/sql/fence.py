"""The common part of all database states: the fence row, and the tables of portions and receipts.

Source: protocol.md §7.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.base.errors import StateDiffers, StateError
from airflow_tx.ledger import Receipt, Token
from airflow_tx.state import fence
from airflow_tx.state.api import Fence, Grant, StateWrite, StoredReceipt
from airflow_tx.state.keys import encode_key
from airflow_tx.state.sql.database import COMPLETE, StateDatabase, check_durable
from airflow_tx.state.sql.dialect import (
    OWN,
    as_typed,
    changed,
    inserted,
    row_of_state,
    statement_text,
    update_of,
)
from airflow_tx.state.sql.schema import (
    DEFINITION,
    FENCE_FORMAT,
    FENCE_TABLE,
    RAISED_BY,
    RECEIPTS_TABLE,
    SAMPLE,
    WROTE,
    fence_table,
    read_receipts,
    row_of,
)

# --- imprint ------------------------------------------------------------------------------------------------------
# A table's imprint is stored with its fence. The next raise compares the two, to detect lost rows.
# Source: protocol.md §7.
#
# The cost per commit does not depend on the table size. In a small table, the rows are counted. In
# a larger table, some of the last writer's rows are looked up.


COUNTED = 1_000
"""Maximum size of a table whose rows are counted."""
SAMPLED = 8
"""Number of keys of an update that an imprint keeps."""
# The key of the imprint in the definition of a fence row. The definition also has the aggregator of
# each value column.
IMPRINT = "tx_imprint"


@dataclass(frozen=True)
class Imprint:
    """The imprint of a table. Rows are deleted, or get smaller txids, only if an attempt is undone.

    :param txid: the transaction that wrote the keys, or that a guard has recorded. If the rows are counted, their
        highest txid.
    :param keys: some keys of the last write, as text.
    :param types: type by key column.
    :param rows: number of rows; None if the table has more than `COUNTED` rows.
    :param txids: sum of the txids of counted rows.
    """

    txid: int = 0
    keys: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    txids: int = 0

    @classmethod
    def of(cls, definition: Mapping[str, object]) -> Imprint | None:
        """Read the imprint from the definition in a fence row.

        Return None if it has no imprint, because no update is complete yet.
        """
        found = definition.get(IMPRINT)
        if not isinstance(found, dict):
            return None
        return cls(**{**found, "keys": tuple(found.get("keys", ()))})

    @property
    def text(self) -> dict[str, object]:
        """Return the imprint as plain JSON, omitting unknown values."""
        unknown = asdict(Imprint())
        return {name: value for name, value in asdict(self).items() if value != unknown[name]}

    def with_rows(self, now: Imprint) -> Imprint:
        """Return a copy with the row counts of another imprint."""
        return replace(self, rows=now.rows, txids=now.txids)

    def with_keys(self, wrote: Imprint, types: Mapping[str, str]) -> Imprint:
        """Return a copy with the keys of a write, if it has any."""
        if not wrote.keys:
            return self
        return replace(self, txid=wrote.txid, keys=wrote.keys[:SAMPLED], types=dict(types))

    def missing_keys(self, txids: Sequence[int | None]) -> str:
        """Describe the first key that is missing, or whose row is older than the imprint.

        Return "" if there is no such key.

        :param txids: the txid of each key's row; None if there is no such row.
        """
        for key, txid in zip(self.keys, txids, strict=True):
            if txid is None:
                return f"its key {key} is missing"
            if txid < self.txid:
                return f"its key {key} has a value of transaction {txid}, but its last value was of {self.txid}"
        return ""

    def missing(self, now: Imprint) -> str:
        """Describe which rows a table has lost since this imprint. Return "" if no loss is visible."""
        if self.rows is None:
            if now.rows is None:
                return ""
            return f"it has only {now.rows} of more than {COUNTED} rows"
        if now.rows is None:
            return ""
        if now.rows < self.rows:
            return f"it has only {now.rows} of {self.rows} rows"
        if now.txids < self.txids or now.txid < self.txid:
            return "some of its rows have values of earlier transactions"
        return ""


def sampled(kinds: Sequence[str], keys: Sequence[Sequence[object]]) -> list[str]:
    """Select some keys at equal intervals, from the first to the last. The keys are given column by column.

    :param kinds: type of each column.
    """
    if not keys:
        return []
    size = len(keys[0])
    numbers = sorted({size * each // SAMPLED for each in range(SAMPLED)})
    return [encode_key(kinds, [column[i] for column in keys]).decode() for i in numbers]


def sample_text(keys: Sequence[str]) -> str:
    """Return the sampled keys of a portion as text."""
    return json.dumps(list(keys))


def sample_of(texts: Sequence[str | None]) -> list[str]:
    """Select keys from the samples of several portions."""
    return [key for text in texts if text for key in json.loads(text)[:1]][:SAMPLED]


# --- fence --------------------------------------------------------------------------------------------------------


_TOKEN = tuple(each.name for each in fields(Token))


class FencedStore(StateDatabase):
    """The fence of one state in a database."""

    def begun(self, connection: Connection, write: StateWrite) -> SqlTransaction:
        """Begin a write. Raise the fence, or check that it already holds the grant."""
        if write.raising:
            kept = self.raise_fence(connection, write.grant)
        else:
            alone = write.complete or write.undoing
            kept = self.check_write(connection, write.grant, complete=alone)
        if write.undoing:
            self.undo(connection, write.grant)
        return SqlTransaction(self, connection, write, kept)

    @property
    def place(self) -> tuple[str, str]:
        """Return the schema and the name of the fence row.

        Every writer locks the fence rows of a database transaction in the order of these names.
        """
        return self._schema or "", self._identity

    def put(self, connection: Connection, write: StateWrite, sample: list[str]) -> int:
        """Add the rows of a write to the values, and return the number of keys.

        :param sample: list to which some of the keys are added, as text.
        """
        raise NotImplementedError

    # --- the fence ------------------------------------------------------------------------------------------------

    def read_fence(
        self, connection: Connection, *, lock: str | None = None, of: str = ""
    ) -> Fence | None:
        """Read the fence row. Lock it ("update", "share" or None) until the transaction ends.

        :param of: the earlier table of a state that was moved here; "" to read this state's row.
        :raises StateError: the values of the earlier table were not moved to this state.
        """
        found = self._read(connection, lock, self._identity_at(connection, of) if of else None)
        if of and found is not None:
            self._check_moved(connection, of)
        return None if found is None else found[0]

    def raise_fence(self, connection: Connection, grant: Grant) -> Imprint | None:
        """Raise the fence under its lock. Undo the writes of outranked tokens of this txid.

        :return: the imprint of the values.
        :raises FenceOutranked: see `airflow_tx.state.fence.raised`. FenceForeign, StateBehind and LedgerBehind are also
            raised as there.
        :raises StateError: the stored values were computed by other aggregators.
        """
        self._ensure_tables(connection)
        found = self._read(connection, "update")
        raised_before = None if found is None else found[0].token
        there = self._is_there(connection)
        if found is None:
            empty = partial(self._has_nothing, connection)
            first = fence.raised(None, grant, state=self.state, there=there, is_empty=empty)
            insert = self._dialect.insert_if_absent(self._fence)
            connection.execute(insert, inserted(self._fence_values(first)))
            # There was no row to lock, so another first grant may have inserted a row, which now
            # takes precedence.
            found = self._read(connection, "update")
            assert found is not None
            if found[0].token == grant.token and not fence.owns(grant, state=self.state):
                self._check_numbers(connection)
            there = there or self._is_there(connection)

        kept = Imprint.of(found[1])
        raised = fence.raised(
            found[0],
            grant,
            state=self.state,
            there=there,
            holds=partial(
                self.holds_for_good, connection, grant.txid, grant.token.birth, grant.incarnation
            ),
            missing=partial(self._missing_since, connection, found[1], kept),
        )
        self._check_definition(found[1])
        if raised_before is None or fence.may_have_written(raised_before, grant.token):
            # Inspecting the values must not hide a loss. If values are missing, keep the old
            # imprint, so that commits are still refused.
            keeps = grant.token.is_look and self._has_lost(connection, found[1])
            self.roll_back(connection, grant)
            kept = kept if keeps else self.imprint(connection)
        elif self.state in grant.grants:  # a roll forward may find later rows
            self.check_later(connection, raised_before.txid)
        connection.execute(*self._update(self._fence_values(raised, kept)))
        return kept

    def _check_numbers(self, connection: Connection) -> None:
        """Refuse values with txids in a table without a fence, such as a copy. The txids are from another ledger."""
        newest = self._newest_txid(connection)
        if newest:
            release = statement_text(connection.dialect, self._releasing(connection))
            raise fence.of_nobody(newest, state=self.state, release=release)

    def check_later(self, connection: Connection, txid: int) -> None:
        """Refuse values of transactions that are later than the transaction in the fence, which was the last one."""

    def _newest_txid(self, connection: Connection) -> int:
        """Read the greatest txid of the values. Return 0 if no value has a txid."""
        raise NotImplementedError

    def _releasing(self, connection: Connection) -> Any:
        """Return the statement that removes the txids of this ledger from the values, and keeps the values."""
        raise NotImplementedError

    def _has_lost(self, connection: Connection, definition: Mapping[str, Any]) -> bool:
        """Return whether values recorded by the fence are missing, so that a commit would be refused."""
        lost = self._missing_since(connection, definition, Imprint.of(definition))
        return bool(lost) or not self._is_there(connection)

    def put_back(self, connection: Connection, grant: Grant) -> None:
        """Restore the original fence that a *look* of a roll forward contains. Keep the imprint that the look stored.

        :raises FenceOutranked: the fence no longer holds this look.
        """
        found = self._read(connection, "update")
        back = fence.uncovered(None if found is None else found[0], grant, state=self.state)
        assert found is not None
        connection.execute(*self._update(self._fence_values(back, Imprint.of(found[1]))))

    def _missing_since(
        self, connection: Connection, definition: Mapping[str, Any], kept: Imprint | None
    ) -> str:
        self._check_definition(definition)
        return "" if kept is None else self.missing(connection, kept)

    def missing(self, connection: Connection, kept: Imprint) -> str:
        """Describe which values were lost since an imprint. Return "" if no loss is visible."""
        raise NotImplementedError

    def imprint(
        self, connection: Connection, kept: Imprint | None = None, wrote: Imprint | None = None
    ) -> Imprint | None:
        """Return an imprint of the current values, or None if there are none.

        :param kept: the previous imprint, if nothing was undone after it.
        :param wrote: transaction, keys and row count of a write after the previous imprint.
        """
        raise NotImplementedError

    def check_columns(self, connection: Connection) -> None:
        """Refuse a write if the columns of the table have changed. The database may have rounded the written values.

        :raises StateError: another session has changed the table since its columns were read.
        """

    def accept_values(self, connection: Connection, change: int) -> None:
        """Store a new imprint after a manual change of the values."""
        found = self._read(connection, "update")
        if found is not None:
            row = self._fence_values(fence.with_change(found[0], change), self.imprint(connection))
            connection.execute(*self._update(row))

    def _is_there(self, connection: Connection) -> bool:
        """Return whether the table or row that contains the state's values exists."""
        raise NotImplementedError

    def _has_nothing(self, connection: Connection) -> bool:
        """Return whether the state has no values."""
        return not self._is_there(connection)

    def holds_for_good(
        self, connection: Connection, txid: int, birth: str, incarnation: str
    ) -> bool:
        """Return whether the state has rows of a transaction that it cannot undo."""
        raise NotImplementedError

    def roll_back(self, connection: Connection, grant: Grant) -> None:
        """Undo the writes made under this txid, if the state can undo them."""

    def check_write(
        self, connection: Connection, grant: Grant, *, complete: bool
    ) -> Imprint | None:
        """Lock the fence until the transaction ends. Refuse the write unless the fence holds exactly this grant.

        Writers of one grant share the lock. Only the writer that will set `applied` takes an exclusive lock. Two
        writers that upgraded shared locks would deadlock.
        """
        stored = self._read(connection, "update" if complete else "share")
        fence.check_write(None if stored is None else stored[0], grant, state=self.state)
        return None if stored is None else Imprint.of(stored[1])

    def undo(self, connection: Connection, grant: Grant) -> None:
        """Undo the writes of the grant that the fence holds."""
        found = self._read(connection, "update")
        assert found is not None
        portions = self._portions.delete().where(self._portions.c.state == self._identity)
        if not connection.execute(portions).rowcount and not found[0].applied:
            return  # most grants have not written yet, so do not search the table
        self.roll_back(connection, grant)
        row = self._fence_values(replace(found[0], applied=False), self.imprint(connection))
        connection.execute(*self._update(row))

    def note_portion(self, connection: Connection, write: StateWrite, sample: list[str]) -> None:
        """Record a portion in the transaction that writes it."""
        self._ensure_tables(connection)
        row = {"state": self._identity, "chunk": write.chunk, SAMPLE: sample_text(sample)}
        row["nonce"] = write.grant.token.nonce
        connection.execute(self._dialect.insert_or_replace(self._portions), inserted(row))

    def check_portions(self, connection: Connection, grant: Grant) -> list[str]:
        """Check that the store has all confirmed portions, and delete the portion notes.

        :return: some of the written keys.
        :raises PortionsLost: the store has lost a portion.
        """
        if not grant.portions:
            return []
        own = self._portions.c.state == self._identity
        noted = sa.select(self._portions.c[SAMPLE])
        mine = noted.where(own, self._portions.c.nonce == grant.token.nonce)
        found = connection.execute(mine.order_by(self._portions.c.chunk)).scalars().all()
        fence.check_portions(len(found), grant, state=self.state, where=self.where)
        connection.execute(self._portions.delete().where(own))
        return sample_of(found)

    def set_applied(
        self, connection: Connection, receipt: Receipt | None, imprint: Imprint | None
    ) -> None:
        """Record in the fence that all updates of its grant are in the store. Store their receipt.

        :param receipt: the receipt of the transaction. It replaces the receipt of an earlier grant.
        """
        noted = {"applied": True, WROTE: self._is_there(connection)}
        update, values = self._update({**noted, DEFINITION: self._definition_text(imprint)})
        if receipt is None:
            connection.execute(update, values)
        else:
            values |= inserted(row_of(receipt, self._identity))
            self._dialect.update_and_put(connection, update, self._receipts, values)

    def at(self, connection: Connection, txid: int, newest: int) -> str:
        """Return the query for the values as of a final transaction. See `FencedState.at`."""
        raise NotImplementedError

    def _is_of(self, connection: Connection, txid: int, newest: int, kept: int = 0) -> Any:
        """Return an SQL condition that is true until a later transaction replaces the values as of this transaction.

        :param kept: number of transactions for which the state keeps the earlier values.
        :raises StateError: a later transaction has already replaced the values.
        """
        held = self.read_fence(connection)
        fence.check_as_of(held, txid, newest, state=self.state, kept=kept)
        return self._of_fence("txid") <= txid + kept

    def _of_fence(self, column: str) -> sa.ScalarSelect[Any]:
        """Return SQL for the value of a column of the fence row."""
        row = self._fence.alias("f").c
        return sa.select(row[column]).where(row.state == self._identity).scalar_subquery()

    def receipts(self, connection: Connection) -> list[StoredReceipt]:
        """Return the receipts that the state keeps, ordered by txid."""
        if not self._has_table(connection, RECEIPTS_TABLE):
            return []
        return read_receipts(connection, self._receipts, self._identity)

    def take_over(self, connection: Connection, place: str) -> None:
        """Take over the fence row of the table `place`, from which the state was moved.

        :raises StateError: the values were not moved to this state.
        """
        self._ensure_tables(connection)
        identity = self._identity_at(connection, place)
        self._check_moved(connection, place)
        for table in (self._fence, self._receipts):
            connection.execute(
                table.update().where(table.c.state == identity).values(state=self._identity)
            )

    def _identity_at(self, connection: Connection, place: str) -> str:
        """Return the name of the fence row of the table `place`, from which the state was moved."""
        schema, _, name = place.rpartition(".")
        return self._dialect.place(connection, schema or None, name)[1]

    def _check_moved(self, connection: Connection, place: str) -> None:
        """Refuse to take over the fence of the table `place` unless its values were moved to this state."""
        if not self._is_there(connection):
            schema, _, name = place.rpartition(".")
            quote = connection.dialect.identifier_preparer
            there = quote.format_table(sa.Table(name, sa.MetaData(), schema=schema or None))
            ddl = f"ALTER TABLE {there} RENAME TO {quote.quote(self._name)}"
            ddl = as_typed(connection.dialect, ddl)
            remedy = f"Nothing was changed. Move the values first: {ddl}"
            raise StateError(
                state=self.state, problem=f"there is no table {self._name}", remedy=remedy
            )

    def clear(self, connection: Connection) -> None:
        if self.read_fence(connection, lock="update") is not None:
            connection.execute(self._fence.delete().where(self._fence.c.state == self._identity))

    def release(self, connection: Connection) -> None:
        """Delete the fence row. Remove the txids from the values, and keep the values."""
        FencedStore.clear(self, connection)
        if self._is_there(connection):
            connection.execute(self._releasing(connection))

    def _read(
        self, connection: Connection, lock: str | None, identity: str | None = None
    ) -> tuple[Fence, dict[str, Any]] | None:
        if COMPLETE not in self._facts and not self._has_table(connection, FENCE_TABLE):
            return None
        query = row_of_state(self._fence, lock)
        own = {OWN: identity or self._identity}
        row = connection.execute(query, own).mappings().one_or_none()
        if row is None:
            return None
        if row["format"] != FENCE_FORMAT:
            problem = f"its fence row has format {row['format']}, but this version supports {FENCE_FORMAT}"
            raise StateDiffers(
                state=self.state, problem=problem, remedy="Upgrade airflow-provider-tx."
            )
        token = Token(**{name: row[name] for name in _TOKEN})
        kept = {"state": row[RAISED_BY], "wrote": bool(row[WROTE])}
        read = Fence(row["incarnation"], token, bool(row["applied"]), row["batch"], **kept)
        return read, json.loads(row[DEFINITION])

    def _check_definition(self, made: Mapping[str, Any]) -> None:
        """Refuse values computed by another aggregator, such as sums if the state now keeps maxima."""
        for name, aggregator in self._definition.items():
            if made.get(name, aggregator) != aggregator:
                problem = f"the stored values of column {name!r} were made by {made[name]!r}, "
                problem += f"but the DAG now has {aggregator!r}"
                remedy = f"Bring {made[name]!r} back, or give the state another table."
                raise StateDiffers(state=self.state, problem=problem, remedy=remedy)

    def _update(self, values: Mapping[str, Any]) -> tuple[sa.Update, dict[str, Any]]:
        return update_of(self._fence, tuple(values)), changed(self._identity, values)

    def _definition_text(self, imprint: Imprint | None) -> str:
        kept = {} if imprint is None else {IMPRINT: imprint.text}
        return json.dumps({**self._definition, **kept}, sort_keys=True)

    def _fence_values(self, row: Fence, imprint: Imprint | None = None) -> dict[str, Any]:
        of_the_fence = {
            "state": self._identity,
            "format": FENCE_FORMAT,
            "applied": row.applied,
            RAISED_BY: row.state,
        }
        of_the_state = {DEFINITION: self._definition_text(imprint), WROTE: row.wrote}
        of_the_grant = {"incarnation": row.incarnation, **row.token.to_json(), "batch": row.batch}
        return {**of_the_fence, **of_the_state, **of_the_grant}


@dataclass(frozen=True)
class SqlTransaction:
    """One write to a state, in a transaction of the database.

    :param kept: the imprint of the values before the write.
    :param switched: whether the states in the transaction need different session settings.
    :param sample: some of the written keys.
    :param rows: number of keys or rows that each `put` has written.
    """

    store: FencedStore
    connection: Connection
    write: StateWrite
    kept: Imprint | None
    switched: bool = False
    sample: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def put(self, write: StateWrite) -> int:
        with self.store.at_work(self.connection, switched=self.switched):
            self.rows.append(self.store.put(self.connection, write, self.sample))
        return self.rows[-1]

    def end(self, receipt: Receipt | None) -> None:
        with self.store.at_work(self.connection, switched=self.switched):
            self._end(receipt)

    def _end(self, receipt: Receipt | None) -> None:
        grant = self.write.grant
        if self.write.complete:
            keys = [*self.sample, *self.store.check_portions(self.connection, grant)]
            wrote = Imprint(grant.txid, tuple(keys), rows=sum(self.rows))
            imprint = self.store.imprint(self.connection, self.kept, wrote)
            self.store.set_applied(self.connection, receipt, imprint)
        elif self.write.rows is not None:
            self.store.note_portion(self.connection, self.write, self.sample)
            self.store.check_columns(self.connection)


def begun_together(
    connection: Connection, pairs: Sequence[tuple[FencedStore, StateWrite]]
) -> list[SqlTransaction]:
    """Begin the writes of several states in one transaction. Every writer begins them in the same order."""
    switched = len({store.runs_own_statements for store, _ in pairs}) > 1
    begun = dict[tuple[str, str], SqlTransaction]()
    for store, write in sorted(pairs, key=lambda pair: pair[0].place):
        with store.at_work(connection, switched=switched):
            begun[store.place] = replace(store.begun(connection, write), switched=switched)
    return [begun[store.place] for store, _ in pairs]


# --- table --------------------------------------------------------------------------------------------------------
# The table of a state in a database: its rows and their imprint.


# Number of rows in a portion: large enough to be efficient, and small enough for memory and a
# single statement.
ROWS_AT_ONCE = 10_000
FOUND = "the table, as found in the database"
_SHAPE = "the shape of the table when it was found"
LOOK_AGAIN = 10.0
"""Seconds between comparisons of a table whose shape has not changed, because a lane raises the fence many times per
second.
"""
_Found = TypeVar("_Found")


class OneTableStore(FencedStore, Generic[_Found]):
    """The store of a state whose values are in one table.

    From time to time, it compares the columns of the table with the state.
    """

    _looked_at = 0.0

    @property
    def _bare(self) -> sa.Table:
        """The state's table object without columns, for queries that read the columns from the database."""
        return sa.Table(self._name, sa.MetaData(), schema=self._schema)

    def raise_fence(self, connection: Connection, grant: Grant) -> Imprint | None:
        is_due = time.monotonic() - self._looked_at >= LOOK_AGAIN
        changed = is_due or self._shape_now(connection) != self._facts.get(_SHAPE)
        if changed:
            self._facts.pop(FOUND, None)
        kept = super().raise_fence(connection, grant)
        if changed or grant.last_txids.get(self.state) is None:
            self._check_family(connection)
        return kept

    def _check_numbers(self, connection: Connection) -> None:
        # Check this first, because the txids may be of another table that shares rows and has a
        # fence.
        self._check_family(connection)
        super()._check_numbers(connection)

    def _check_family(self, connection: Connection) -> None:
        """Refuse a table that shares rows with another table that has a fence.

        Each state would delete the other's rows.

        :raises StateDiffers: the message names both tables.
        """
        by_schema = dict[str, list[str]]()
        for schema, name in self._dialect.family(connection, self._bare):
            by_schema.setdefault(schema, []).append(name)
        for schema, names in by_schema.items():
            table = fence_table(schema)
            query = sa.select(table.c.state).where(table.c.state.in_(names)).limit(1)
            other = connection.execute(query).scalar()
            if other is not None:
                own = table.delete().where(table.c.state == other)
                ddl = statement_text(connection.dialect, own)
                raise StateDiffers(
                    state=self.state,
                    problem=f"tables {self._name} and {schema}.{other} share rows (partition or INHERITS), and both "
                    "have a fence: each update could delete rows of the other",
                    remedy="Nothing was written. Use one table for both updates. If no topology writes to the other "
                    f"table: {ddl}",
                )

    def _found(self, connection: Connection) -> _Found | None:
        """Return the table with the most recently read columns, or None if there is no table."""
        found: _Found | None = self._facts.get(FOUND)
        shape = None if found is not None else self._shape_now(connection)
        if shape is not None:
            found = self._look(connection)
            check_durable(connection, self._schema, [self._name], state=self.state)
            self._facts |= {FOUND: found, _SHAPE: shape}
            self._looked_at = time.monotonic()
        return found

    @cached_property
    def _shape(self) -> sa.ScalarSelect[Any]:
        return self._dialect.shape(self._schema, self._name)

    def _shape_now(self, connection: Connection) -> str | None:
        return self._dialect.read_shape(connection, self._shape)

    def check_columns(self, connection: Connection) -> None:
        self._check_shape(self._shape_now(connection))

    def _check_shape(self, shape: str | None) -> None:
        """Raise StateError if the shape of the table has changed since its columns were read.

        After a write, the open transaction prevents such changes.
        """
        if shape != self._facts.get(_SHAPE, shape):
            problem = f"table {self._name} was altered while this task wrote to it"
            remedy = "Nothing was written. Clear the commit task: it compares the columns again."
            raise StateError(state=self.state, problem=problem, remedy=remedy)

    def _look(self, connection: Connection) -> _Found:
        """Read the table from the database. Raise StateDiffers if it does not fit the state."""
        raise NotImplementedError

    def _is_there(self, connection: Connection) -> bool:
        return FOUND in self._facts or self._has_table(connection, self._name)
