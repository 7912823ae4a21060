"""What all states in a database share: transactions, and the fence row. Source: protocol.md §7."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from airflow_tx.errors import (
    ConfigError,
    StateDiffers,
    StateError,
    StateLocked,
    StateOutcomeUnknown,
    StateUnavailable,
)
from airflow_tx.protocol.attempt import Token
from airflow_tx.protocol.receipt import Receipt
from airflow_tx.state import fence
from airflow_tx.state.api import Fence, Grant, StateWrite, StoredReceipt
from airflow_tx.state.sql.dialect import OWN, Dialect, changed, inserted, row_of_state, update_of
from airflow_tx.state.sql.engines import keeping_engine
from airflow_tx.state.sql.mysql import MySql
from airflow_tx.state.sql.postgres import Postgres
from airflow_tx.state.sql.schema import (
    DEFINITION,
    FENCE_FORMAT,
    FENCE_TABLE,
    RAISED_BY,
    RECEIPTS_TABLE,
    WROTE,
    check_receipts_table,
    fence_table,
    portions_table,
    read_receipts,
    receipts_table,
    row_of,
)
from airflow_tx.state.sql.sqlite import Sqlite

# Another database is another subclass of `Dialect`, and one entry here.
DIALECTS: dict[str, type[Dialect]] = {
    "sqlite": Sqlite,
    "postgresql": Postgres,
    "mysql": MySql,
    "mariadb": MySql,
}
COMPLETE = "the tables of fences, portions and receipts are there"
NOTHING = "No row of this update was written."
_TOKEN = tuple(each.name for each in fields(Token))


class FencedStore:
    """One fence in one database, inside transactions that `transaction()` opens.

    :param state: its name, for messages.
    :param table: schema, if one is given, and name of the table beside the fence.
    :param where: how messages name the database; no address, no password.
    :param definition: what made each value of the state; another one is refused.
    """

    # Between transactions: where no statements but ours leave traces in a session.
    keeps_connection = False

    def __init__(
        self,
        url: URL,
        *,
        state: str,
        table: tuple[str | None, str],
        where: str,
        definition: Mapping[str, str] | None = None,
    ) -> None:
        self.state = state
        self.where = where
        self._secret = str(url.password) if url.password else ""
        backend = url.get_backend_name()
        if backend not in DIALECTS:
            raise ConfigError(
                option="SqlState database",
                value=backend,
                remedy=f"Use one of {', '.join(DIALECTS)}.",
            )
        self._dialect = DIALECTS[backend]()
        keep = self.keeps_connection and self._dialect.keeps_connection
        self._engine = keeping_engine(self._dialect, url) if keep else self._dialect.engine(url)
        self._schema, self._name = table
        # Two spellings of one table name are one state: they share its fence.
        self._identity = self._name
        self._definition = dict(definition or {})
        self._fence: sa.Table = fence_table(self._schema)
        self._portions: sa.Table = portions_table(self._schema)
        self._receipts: sa.Table = receipts_table(self._schema)
        self._placed = False
        # What this object has found in the database. It looks again after a transaction that failed.
        self._facts: dict[str, Any] = {}

    @contextmanager
    def transaction(self, *, reading: bool = False, frozen: bool = False) -> Iterator[Connection]:
        """Open a transaction of the database: committed at the end, undone by any error.

        :param frozen: whether its statements see what was there at the first one.
        :raises StateUnavailable, StateOutcomeUnknown: it does not answer, or not to the commit; StateError: it refuses.
        """
        committing = False
        done = False
        try:
            moment = self._dialect.one_moment if frozen else {}
            opened = self._engine.connect().execution_options(tx_reading=reading, **moment)
            with opened as connection, _dropped_after_errors(connection), connection.begin():
                self._place(connection)
                yield connection
                committing = not reading
            done = True
        except sa.exc.DBAPIError as error:
            raise self._failure(error, committing=committing) from None
        except (sa.exc.StatementError, OverflowError, UnicodeError) as error:
            raise self._refused(str(error).splitlines()[0]) from None
        finally:
            if not done:
                # Its own DDL is undone with it, and a table that it missed may be gone.
                self._facts = {}

    def _place(self, connection: Connection) -> None:
        """Learn the schema of the tables, which the user may have left to the database."""
        if not self._placed:
            self._schema, self._identity = self._dialect.place(connection, self._schema, self._name)
            self._fence = fence_table(self._schema)
            self._portions = portions_table(self._schema)
            self._receipts = receipts_table(self._schema)
            self._placed = True

    def begun(self, connection: Connection, write: StateWrite) -> SqlTransaction:
        """Begin a write: raise the fence, or refuse unless it holds the grant."""
        if write.raising:
            self.raise_fence(connection, write.grant)
        else:
            self.check_write(connection, write.grant, complete=write.complete)
        return SqlTransaction(self, connection, write)

    def put(self, connection: Connection, write: StateWrite) -> int:
        """Add the rows of a write to the values; returns how many keys."""
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

    def raise_fence(self, connection: Connection, grant: Grant) -> None:
        """Raise the fence under its lock and undo what outranked tokens of this txid wrote.

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

        holds = partial(self.holds_for_good, connection, grant.txid)
        raised = fence.raised(found[0], grant, state=self.state, there=there, holds=holds)
        self._check_definition(found[1])
        connection.execute(*self._update(self._fence_values(raised)))
        if raised_before is None or fence.may_have_written(raised_before, grant.token):
            self.roll_back(connection, grant)

    def _is_there(self, connection: Connection) -> bool:
        """Whether the state's values have a table or row by now."""
        raise NotImplementedError

    def holds_for_good(self, connection: Connection, txid: int) -> bool:
        """Whether the state has something of a transaction that it cannot undo."""
        raise NotImplementedError

    def roll_back(self, connection: Connection, grant: Grant) -> None:
        """Undo what outranked tokens of this txid wrote, if the state can."""

    def check_write(self, connection: Connection, grant: Grant, *, complete: bool) -> None:
        """Refuse unless the fence holds exactly this grant; it stays so until the transaction ends.

        Writers of one grant share the lock; only the one that will set `applied` takes it alone, since two
        that wanted to upgrade a shared lock would wait for each other.
        """
        stored = self.read_fence(connection, lock="update" if complete else "share")
        fence.check_write(stored, grant, state=self.state)

    def note_portion(self, connection: Connection, grant: Grant, chunk: int) -> None:
        """Note a portion in the transaction that writes it."""
        self._ensure_tables(connection)
        row = {"state": self._identity, "chunk": chunk, "nonce": grant.token.nonce}
        connection.execute(self._dialect.insert_or_replace(self._portions), inserted(row))

    def check_portions(self, connection: Connection, grant: Grant) -> None:
        """Compare the existing portions with the confirmed ones, and forget them.

        :raises PortionsLost: the store lost some.
        """
        if not grant.portions:
            return
        own = self._portions.c.state == self._identity
        mine = sa.select(sa.func.count()).where(own, self._portions.c.nonce == grant.token.nonce)
        found = connection.execute(mine).scalar_one()
        fence.check_portions(found, grant, state=self.state, where=self.where)
        connection.execute(self._portions.delete().where(own))

    def set_applied(self, connection: Connection, receipt: Receipt | None) -> None:
        """Note that all updates of the grant that holds the fence are in the store, and keep their receipt.

        :param receipt: it takes the place of one that an earlier grant of its transaction has left.
        """
        update, values = self._update({"applied": True, WROTE: self._is_there(connection)})
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
    ) -> tuple[Fence, str] | None:
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
        return Fence(row["incarnation"], token, bool(row["applied"]), row["batch"], **kept), row[
            DEFINITION
        ]

    def _check_definition(self, stored: str) -> None:
        """Refuse values that another aggregator made: a sum is no maximum."""
        made = json.loads(stored)
        for name, aggregator in self._definition.items():
            if made.get(name, aggregator) != aggregator:
                problem = f"the stored values of column {name!r} were made by {made[name]!r}, "
                problem += f"the DAG now has {aggregator!r}"
                remedy = f"Bring {made[name]!r} back, or give the state another table."
                raise StateDiffers(state=self.state, problem=problem, remedy=remedy)

    def _update(self, values: Mapping[str, Any]) -> tuple[sa.Update, dict[str, Any]]:
        return update_of(self._fence, tuple(values)), changed(self._identity, values)

    def _fence_values(self, row: Fence) -> dict[str, Any]:
        of_the_fence = {
            "state": self._identity,
            "format": FENCE_FORMAT,
            "applied": row.applied,
            RAISED_BY: row.state,
        }
        of_the_state = {DEFINITION: json.dumps(self._definition, sort_keys=True), WROTE: row.wrote}
        of_the_grant = {"incarnation": row.incarnation, **row.token.to_json(), "batch": row.batch}
        return {**of_the_fence, **of_the_state, **of_the_grant}

    # --- tables ---------------------------------------------------------------------------------------------------

    def _has_table(self, connection: Connection, name: str) -> bool:
        return self._dialect.has_table(connection, self._schema, name)

    def _ensure_tables(self, connection: Connection) -> None:
        """Make the tables that stand beside the states of a schema."""
        if COMPLETE in self._facts:
            return
        if self._missing(connection):
            with self._dialect.ddl(connection) as ddl:
                for table in self._missing(ddl):
                    self._dialect.create(ddl, table)
        self._facts[COMPLETE] = True

    def _missing(self, connection: Connection) -> list[sa.Table]:
        """Find the tables that are not there.

        :raises StateError: the table of receipts is another one.
        """
        tables = (self._fence, self._portions, self._receipts)
        found = self._dialect.column_names(
            connection, self._schema, [table.name for table in tables]
        )
        if found[RECEIPTS_TABLE]:
            check_receipts_table(self._receipts, found[RECEIPTS_TABLE], state=self.state)
        return [table for table in tables if not found[table.name]]

    # --- failures -------------------------------------------------------------------------------------------------

    def _failure(self, error: sa.exc.DBAPIError, *, committing: bool) -> StateError:
        reason = self._reason(error)
        kind = StateUnavailable
        if self._dialect.is_lock_timeout(error):
            kind = StateLocked
        elif not self._dialect.is_unavailable(error):
            return self._refused(reason)
        elif committing:
            kind = StateOutcomeUnknown
        return kind(state=self.state, where=self.where, reason=reason)

    def _reason(self, error: sa.exc.DBAPIError) -> str:
        text = " ".join(str(error.orig).split())
        return text.replace(self._secret, "***") if self._secret else text

    def _refused(self, reason: str) -> StateError:
        return StateError(state=self.state, problem=f"the database says: {reason}", remedy=NOTHING)


@dataclass(frozen=True)
class SqlTransaction:
    """One write, in a transaction of the database."""

    store: FencedStore
    connection: Connection
    write: StateWrite

    def put(self) -> int:
        return self.store.put(self.connection, self.write)

    def end(self, receipt: Receipt | None) -> None:
        if self.write.complete:
            self.store.check_portions(self.connection, self.write.grant)
            self.store.set_applied(self.connection, receipt)
        elif self.write.rows is not None:
            self.store.note_portion(self.connection, self.write.grant, self.write.chunk)


@contextmanager
def _dropped_after_errors(connection: Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.invalidate()
        raise
