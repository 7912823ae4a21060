"""What all states in a database share: the fence row, and what is noted beside it. Source: protocol.md §7."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.errors import StateDiffers, StateError
from airflow_tx.protocol.attempt import Token
from airflow_tx.protocol.receipt import Receipt
from airflow_tx.state import fence
from airflow_tx.state.api import Fence, Grant, StateWrite, StoredReceipt
from airflow_tx.state.sql.database import COMPLETE, StateDatabase
from airflow_tx.state.sql.dialect import OWN, changed, inserted, row_of_state, update_of
from airflow_tx.state.sql.imprint import IMPRINT, Imprint, sample_of, sample_text
from airflow_tx.state.sql.schema import (
    DEFINITION,
    FENCE_FORMAT,
    FENCE_TABLE,
    RAISED_BY,
    RECEIPTS_TABLE,
    SAMPLE,
    WROTE,
    read_receipts,
    row_of,
)

_TOKEN = tuple(each.name for each in fields(Token))


class FencedStore(StateDatabase):
    """One fence in one database."""

    def begun(self, connection: Connection, write: StateWrite) -> SqlTransaction:
        """Begin a write: raise the fence, or refuse unless it holds the grant."""
        if write.raising:
            kept = self.raise_fence(connection, write.grant)
        else:
            alone = write.complete or write.undoing
            kept = self.check_write(connection, write.grant, complete=alone)
        if write.undoing:
            self.undo(connection, write.grant)
        return SqlTransaction(self, connection, write, kept)

    def put(self, connection: Connection, write: StateWrite, sample: list[str]) -> int:
        """Add the rows of a write to the values; returns how many keys.

        :param sample: gets some of them, as text.
        """
        raise NotImplementedError

    # --- the fence ------------------------------------------------------------------------------------------------

    def read_fence(
        self, connection: Connection, *, lock: str | None = None, of: str = ""
    ) -> Fence | None:
        """Read the fence row, under a lock ("update", "share" or None) until the transaction ends.

        :param of: the place that a state was moved here from; "": read the row of this state.
        :raises StateError: what was written at the other place is not here.
        """
        found = self._read(connection, lock, self._identity_at(connection, of) if of else None)
        return None if found is None else found[0]

    def raise_fence(self, connection: Connection, grant: Grant) -> Imprint | None:
        """Raise the fence under its lock and undo what outranked tokens of this txid wrote.

        :return: the imprint of the values.
        :raises FenceOutranked, FenceForeign, StateBehind, LedgerBehind: as the fence's rules say.
        :raises StateError: the values in the store were made by other aggregators.
        """
        self._ensure_tables(connection)
        found = self._read(connection, "update")
        raised_before = None if found is None else found[0].token
        there = self._is_there(connection)
        if found is None:
            first = fence.raised(None, grant, state=self.state, there=there)
            insert = self._dialect.insert_if_absent(self._fence)
            connection.execute(insert, inserted(self._fence_values(first)))
            # There was no row to lock, so another first grant may have inserted one: that row counts now.
            found = self._read(connection, "update")
            assert found is not None
            there = there or self._is_there(connection)

        kept = Imprint.of(found[1])
        raised = fence.raised(
            found[0],
            grant,
            state=self.state,
            there=there,
            holds=partial(self.holds_for_good, connection, grant.txid),
            missing=partial(self._missing_since, connection, found[1], kept),
        )
        self._check_definition(found[1])
        if raised_before is None or fence.may_have_written(raised_before, grant.token):
            self.roll_back(connection, grant)
            kept = self.imprint(connection)
        connection.execute(*self._update(self._fence_values(raised, kept)))
        return kept

    def _missing_since(
        self, connection: Connection, definition: Mapping[str, Any], kept: Imprint | None
    ) -> str:
        self._check_definition(definition)
        return "" if kept is None else self.missing(connection, kept)

    def missing(self, connection: Connection, kept: Imprint) -> str:
        """Say what the values have lost since an imprint of them was made; "": nothing that shows."""
        raise NotImplementedError

    def imprint(
        self, connection: Connection, kept: Imprint | None = None, wrote: Imprint | None = None
    ) -> Imprint | None:
        """Make an imprint of the current values; None: there are none.

        :param kept: the one before it, if nothing was undone since.
        :param wrote: transaction and keys of a write since then.
        """
        raise NotImplementedError

    def accept_values(self, connection: Connection) -> None:
        """Make a new imprint: a person has changed the values on purpose."""
        if self._read(connection, "update") is not None:
            text = self._definition_text(self.imprint(connection))
            connection.execute(*self._update({DEFINITION: text}))

    def _is_there(self, connection: Connection) -> bool:
        """Whether the state's values have a table or row by now."""
        raise NotImplementedError

    def holds_for_good(self, connection: Connection, txid: int) -> bool:
        """Whether the state has something of a transaction that it cannot undo."""
        raise NotImplementedError

    def roll_back(self, connection: Connection, grant: Grant) -> None:
        """Undo what was written of this txid, if the state can."""

    def check_write(
        self, connection: Connection, grant: Grant, *, complete: bool
    ) -> Imprint | None:
        """Refuse unless the fence holds exactly this grant; it stays so until the transaction ends.

        Writers of one grant share the lock; only the one that will set `applied` takes it alone, since two
        that wanted to upgrade a shared lock would wait for each other.
        """
        stored = self._read(connection, "update" if complete else "share")
        fence.check_write(None if stored is None else stored[0], grant, state=self.state)
        return None if stored is None else Imprint.of(stored[1])

    def undo(self, connection: Connection, grant: Grant) -> None:
        """Undo what the grant that holds the fence has written."""
        found = self._read(connection, "update")
        assert found is not None
        portions = self._portions.delete().where(self._portions.c.state == self._identity)
        if not connection.execute(portions).rowcount and not found[0].applied:
            return  # most grants have written nothing yet: the table is not searched
        self.roll_back(connection, grant)
        row = self._fence_values(replace(found[0], applied=False), self.imprint(connection))
        connection.execute(*self._update(row))

    def note_portion(self, connection: Connection, write: StateWrite, sample: list[str]) -> None:
        """Note a portion in the transaction that writes it."""
        self._ensure_tables(connection)
        row = {"state": self._identity, "chunk": write.chunk, SAMPLE: sample_text(sample)}
        row["nonce"] = write.grant.token.nonce
        connection.execute(self._dialect.insert_or_replace(self._portions), inserted(row))

    def check_portions(self, connection: Connection, grant: Grant) -> list[str]:
        """Compare the existing portions with the confirmed ones, and forget them.

        :return: some of their keys.
        :raises PortionsLost: the store lost some.
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
        """Note that all updates of the grant that holds the fence are in the store, and keep their receipt.

        :param receipt: it takes the place of one that an earlier grant of its transaction has left.
        """
        noted = {"applied": True, WROTE: self._is_there(connection)}
        update, values = self._update({**noted, DEFINITION: self._definition_text(imprint)})
        if receipt is None:
            connection.execute(update, values)
        else:
            values |= inserted(row_of(receipt, self._identity))
            self._dialect.update_and_put(connection, update, self._receipts, values)

    def receipts(self, connection: Connection) -> list[StoredReceipt]:
        """Read the receipts that are kept, in the order of their txids."""
        if not self._has_table(connection, RECEIPTS_TABLE):
            return []
        return read_receipts(connection, self._receipts, self._identity)

    def take_over(self, connection: Connection, place: str) -> None:
        """Take the fence row of a state that was moved here from the table `place`.

        :raises StateError: what it wrote is not here.
        """
        self._ensure_tables(connection)
        identity = self._identity_at(connection, place)
        for table in (self._fence, self._receipts):
            connection.execute(
                table.update().where(table.c.state == identity).values(state=self._identity)
            )

    def _identity_at(self, connection: Connection, place: str) -> str:
        """Name the fence row of a state that was moved here from the table `place`.

        :raises StateError: what it wrote is not here.
        """
        schema, _, name = place.rpartition(".")
        _, identity = self._dialect.place(connection, schema or None, name)
        if not self._is_there(connection):
            remedy = f"Nothing was changed. Move the values first: ALTER TABLE {place} RENAME TO {self._name}"
            raise StateError(
                state=self.state, problem=f"there is no table {self._name}", remedy=remedy
            )
        return identity

    def clear(self, connection: Connection) -> None:
        if self.read_fence(connection, lock="update") is not None:
            connection.execute(self._fence.delete().where(self._fence.c.state == self._identity))

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
            problem = f"its fence row has format {row['format']}, this version knows {FENCE_FORMAT}"
            raise StateDiffers(
                state=self.state, problem=problem, remedy="Upgrade airflow-provider-tx."
            )
        token = Token(**{name: row[name] for name in _TOKEN})
        kept = {"state": row[RAISED_BY], "wrote": bool(row[WROTE])}
        read = Fence(row["incarnation"], token, bool(row["applied"]), row["batch"], **kept)
        return read, json.loads(row[DEFINITION])

    def _check_definition(self, made: Mapping[str, Any]) -> None:
        """Refuse values that another aggregator made: a sum is no maximum."""
        for name, aggregator in self._definition.items():
            if made.get(name, aggregator) != aggregator:
                problem = f"the stored values of column {name!r} were made by {made[name]!r}, "
                problem += f"the DAG now has {aggregator!r}"
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
    """One write, in a transaction of the database.

    :param kept: the imprint of the values before it.
    :param sample: some of the keys that it has written.
    """

    store: FencedStore
    connection: Connection
    write: StateWrite
    kept: Imprint | None
    sample: list[str] = field(default_factory=list)

    def put(self) -> int:
        return self.store.put(self.connection, self.write, self.sample)

    def end(self, receipt: Receipt | None) -> None:
        grant = self.write.grant
        if self.write.complete:
            keys = [*self.sample, *self.store.check_portions(self.connection, grant)]
            wrote = Imprint(grant.txid, tuple(keys))
            imprint = self.store.imprint(self.connection, self.kept, wrote)
            self.store.set_applied(self.connection, receipt, imprint)
        elif self.write.rows is not None:
            self.store.note_portion(self.connection, self.write, self.sample)
