"""The database of a state: transactions, database errors, and the tables of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import (
    ConfigError,
    StateDiffers,
    StateError,
    StateLocked,
    StateOutcomeUnknown,
    StateUnavailable,
)
from airflow_tx.base.remedy import Command
from airflow_tx.state.sql.dialect import Dialect, as_typed, keeping_engine
from airflow_tx.state.sql.mysql import MySql
from airflow_tx.state.sql.postgres import Postgres
from airflow_tx.state.sql.schema import (
    RECEIPTS_TABLE,
    check_receipts_table,
    fence_table,
    portions_table,
    receipts_table,
)
from airflow_tx.state.sql.sqlite import Sqlite

# --- durable ------------------------------------------------------------------------------------------------------
# Some tables do not support transactions, or are empty after a crash. They are refused before
# anything is read.


_POSTGRES = """
    SELECT s.nspname, c.relname, ''
    FROM pg_class c
    JOIN pg_namespace s
      ON s.oid = c.relnamespace,
    pg_class t
    JOIN pg_namespace n
      ON n.oid = t.relnamespace
    WHERE n.nspname = :schema
      AND t.relname IN :tables
      AND c.relpersistence = 'u'
      AND (
        c.oid = t.oid
        OR c.oid IN (
          SELECT relid
          FROM pg_partition_tree(t.oid)
        )
      )
"""
_MYSQL = """
    SELECT t.table_schema,
      t.table_name,
      t.engine
    FROM information_schema.tables t
    LEFT JOIN information_schema.engines e
      ON e.engine = t.engine
    WHERE t.table_schema
        = COALESCE(:schema, DATABASE())
      AND t.table_name IN :tables
      AND t.table_type = 'BASE TABLE'
      AND COALESCE(e.transactions, 'NO')
        <> 'YES'
"""
# For each SQLAlchemy dialect name: a query for unsafe tables, their problem, and the change that
# solves it.
_CHECKS: Mapping[str, tuple[str, str, str]] = {
    "postgresql": (
        _POSTGRES,
        "is UNLOGGED, so a crash of the server empties it",
        "SET LOGGED",
    ),
    "mysql": (
        _MYSQL,
        "has the engine {engine}, which has no transactions",
        "ENGINE=InnoDB",
    ),
}
_CHECKS = {**_CHECKS, "mariadb": _CHECKS["mysql"]}


def check_durable(
    connection: Connection, schema: str | None, tables: Sequence[str], *, state: str
) -> None:
    """Refuse tables whose content does not survive a crash or a rollback.

    :raises StateDiffers: such a table exists. The message contains the DDL to change it.
    """
    for problem, ddl in not_durable(connection, schema, tables):
        raise StateDiffers(
            state=state,
            problem=problem,
            remedy=f"Nothing was written. Change it, then clear the commit task: {ddl}",
        )


def not_durable(
    connection: Connection, schema: str | None, tables: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the problem, and the DDL that solves it, for each table that a crash or a rollback may leave incomplete."""
    if connection.dialect.name not in _CHECKS:
        return
    text, problem, change = _CHECKS[connection.dialect.name]
    query = sa.text(text).bindparams(sa.bindparam("tables", expanding=True))
    for place, name, engine in connection.execute(query, {"schema": schema, "tables": [*tables]}):
        table = sa.Table(name, sa.MetaData(), schema=place)
        named = connection.dialect.identifier_preparer.format_table(table)
        named = as_typed(connection.dialect, named)
        yield f"table {named} {problem.format(engine=engine)}", f"ALTER TABLE {named} {change}"


# --- database -----------------------------------------------------------------------------------------------------


# To support another database, write a subclass of `Dialect` and add it here.
DIALECTS: dict[str, type[Dialect]] = {
    "sqlite": Sqlite,
    "postgresql": Postgres,
    "mysql": MySql,
    "mariadb": MySql,
}
# Driver errors, and errors for values that the driver cannot send.
DRIVER_ERRORS = (sa.exc.StatementError, OverflowError, UnicodeError)
COMPLETE = "the tables of fences, portions and receipts exist"
NOTHING = "No row of this update was written."


class OfState(Exception):
    """Raised for a driver error that concerns one state in a transaction shared by several states."""

    def __init__(self, database: StateDatabase, error: Exception) -> None:
        super().__init__(error)
        self.database = database
        self.error = error


class StateDatabase:
    """The database of one state. Its methods run inside transactions that `transaction()` opens.

    :param state: name of the state, for messages.
    :param table: schema and name of the state's table, which shares the schema with the fence table. None is the
        default schema.
    :param where: name of the database in messages, without address or password.
    :param definition: name of the aggregator by value column. Values computed by another aggregator are refused.
    """

    # Whether the session has the settings that our statements need. If False, it has the user's
    # settings.
    runs_own_statements = True
    # Whether to keep the connection between transactions, because only our statements change the
    # session.
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
        self._keeps = self.keeps_connection and self._dialect.keeps_connection
        made = keeping_engine(self._dialect, url) if self._keeps else self._dialect.engine(url)
        self._engine = made
        self._schema, self._name = table
        # Two spellings of the name of a table mean the same state, which has one fence.
        self._identity = self._name
        self._definition = dict(definition or {})
        self._fence: sa.Table = fence_table(self._schema)
        self._portions: sa.Table = portions_table(self._schema)
        self._receipts: sa.Table = receipts_table(self._schema)
        self._placed = False
        # What this object has read about the database's tables. After a failed transaction, it
        # reads this again.
        self._facts: dict[str, Any] = {}

    @contextmanager
    def transaction(
        self, *, reading: bool = False, frozen: bool = False, beside: Sequence[StateDatabase] = ()
    ) -> Iterator[Connection]:
        """Open a transaction of the database. It commits at the end of the `with` block. Any error undoes it.

        :param reading: whether the transaction only reads.
        :param frozen: whether all statements see the snapshot of the first statement.
        :param beside: other states of the same database that share the transaction.
        :raises StateUnavailable: the database does not respond.
        :raises StateOutcomeUnknown: the database does not respond to the COMMIT.
        :raises StateError: the database refuses a statement.
        """
        committing = False
        done = False
        members = (self, *beside)
        try:
            moment = self._dialect.one_moment if frozen else {}
            own = all(each.runs_own_statements for each in members)
            # If any state changes the session, do not keep the connection.
            engine = next((each._engine for each in members if not each._keeps), self._engine)
            opened = engine.connect().execution_options(tx_reading=reading, tx_own=own, **moment)
            with opened as connection, _dropped_after_errors(connection), connection.begin():
                for each in members:
                    each._place(connection)
                yield connection
                committing = not reading
            done = True
        except OfState as failed:
            raise failed.database._worded(failed.error) from None
        except DRIVER_ERRORS as error:
            raise self._worded(error, committing=committing, beside=beside) from None
        finally:
            if not done:
                # The transaction's DDL is undone with it. Also, a missing table may have been
                # dropped.
                for each in members:
                    each._facts = {}

    @contextmanager
    def at_work(self, connection: Connection, *, switched: bool) -> Iterator[None]:
        """Run one state's statements in a shared transaction. Errors in the `with` block name this state.

        :param switched: whether the states in the transaction need different session settings.
        """
        if switched:
            self._dialect.set_forms(connection, own=self.runs_own_statements)
        try:
            yield
        except DRIVER_ERRORS as error:
            raise OfState(self, error) from None

    def _place(self, connection: Connection) -> None:
        """Determine the schema of the tables. If the user did not name one, the database decides."""
        if not self._placed:
            self._schema, self._identity = self._dialect.place(connection, self._schema, self._name)
            self._fence = fence_table(self._schema)
            self._portions = portions_table(self._schema)
            self._receipts = receipts_table(self._schema)
            self._placed = True

    def dataset(self, connection: Connection) -> Dataset:
        return self._dialect.dataset(connection.engine.url, self._schema, self._name)

    # --- tables ---------------------------------------------------------------------------------------------------

    def _has_table(self, connection: Connection, name: str) -> bool:
        return self._dialect.has_table(connection, self._schema, name)

    def _ensure_tables(self, connection: Connection) -> None:
        """Create the tables of fences, portions and receipts in the schema of the state, if they do not exist."""
        if COMPLETE in self._facts:
            return
        if self._missing(connection):
            with self._dialect.ddl(connection) as ddl:
                self._make_tables(ddl, self._missing(ddl))
        self._facts[COMPLETE] = True

    def _make_table(self, connection: Connection, table: sa.Table) -> None:
        """Create a table, unless another writer created it while this writer was waiting for the lock."""
        with self._dialect.ddl(connection) as ddl:
            if not self._has_table(ddl, table.name):
                self._make_tables(ddl, [table])

    def _make_tables(self, connection: Connection, tables: Sequence[sa.Table]) -> None:
        """Create tables.

        :raises StateError: the database refuses a statement. The message contains the statements, for a user with the
            required privileges.
        """
        # Compile the statements now, because a database may refuse all queries after an error.
        statements = "; ".join(self._statement_for(connection, table) for table in tables)
        try:
            for table in tables:
                self._dialect.create(connection, table)
        except sa.exc.DBAPIError as error:
            if self._dialect.is_lock_timeout(error) or self._dialect.is_unavailable(error):
                raise
            raise StateError(
                state=self.state,
                problem=f"it cannot create {', '.join(table.fullname for table in tables)}: the database says: "
                f"{self._reason(error)}",
                remedy=(
                    (
                        f"{NOTHING} If the user of the connection may not create tables, let a person who may "
                        f"run: {statements}. Give the user SELECT, INSERT, UPDATE and DELETE on them, and "
                        "clear the commit task. For all states at once: "
                    )
                    + Command.of("ddl", "DAG")
                ),
            ) from None

    def _statement_for(self, connection: Connection, table: sa.Table) -> str:
        """Return the statement that creates a table, on one line. Spaces in names are preserved."""
        return re.sub(r"\s*\n\s*", " ", self._dialect.definition(connection.dialect, table))

    def owner_ddl(self, connection: Connection) -> list[str]:
        """Return the statements that create or alter the tables that the state needs.

        The owner of the database runs them.

        :raises StateError: no statement can create what the state needs.
        """
        made = self._missing(connection, durable=False)
        own = self._own_table(connection)
        if own is not None and not self._has_table(connection, own.name):
            made.append(own)
        statements = [self._statement_for(connection, table) for table in made]
        if query := self._dialect.grantee_query:
            user = connection.execute(sa.text(query)).scalar_one()
            named = connection.dialect.identifier_preparer.format_table
            rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON"
            statements += [
                f"{rights} {as_typed(connection.dialect, named(table))} TO {user}" for table in made
            ]
        tables = [
            *(each.name for each in (self._fence, self._portions, self._receipts)),
            self._name,
        ]
        lost = [ddl for _, ddl in not_durable(connection, self._schema, tables)]
        return [*statements, *lost, *self._own_changes(connection)]

    def _own_table(self, connection: Connection) -> sa.Table | None:
        """Describe the state's own table.

        Return None if it has no table, or if the first rows decide its columns.
        """
        return None

    def _own_changes(self, connection: Connection) -> Iterator[str]:
        """Yield the DDL that the state's own table needs.

        If no DDL can help, yield an SQL comment that explains why.
        """
        return iter(())

    def _missing(self, connection: Connection, *, durable: bool = True) -> list[sa.Table]:
        """Return which of the tables of fences, portions and receipts are missing.

        :param durable: whether to refuse tables whose content would not survive a crash.
        :raises StateError: the table of receipts lacks a column.
        """
        tables = (self._fence, self._portions, self._receipts)
        found = self._dialect.column_names(
            connection, self._schema, [table.name for table in tables]
        )
        if found[RECEIPTS_TABLE]:
            check_receipts_table(self._receipts, found[RECEIPTS_TABLE], state=self.state)
        if durable:
            check_durable(connection, self._schema, list(found), state=self.state)
        return [table for table in tables if not found[table.name]]

    # --- failures -------------------------------------------------------------------------------------------------

    def _worded(
        self, error: Exception, *, committing: bool = False, beside: Sequence[StateDatabase] = ()
    ) -> StateError:
        if isinstance(error, sa.exc.DBAPIError):
            return self._failure(error, committing=committing, beside=beside)
        return self._refused(str(error).splitlines()[0])

    def _failure(
        self,
        error: sa.exc.DBAPIError,
        *,
        committing: bool,
        beside: Sequence[StateDatabase] = (),
    ) -> StateError:
        reason = self._reason(error)
        names = ", ".join(each.state for each in (self, *beside))
        kind = StateUnavailable
        if self._dialect.is_lock_timeout(error):
            kind = StateLocked
        elif not self._dialect.is_unavailable(error):
            # The error may concern the table of any state. For example, a table with a deferred
            # constraint may refuse the commit.
            return _refusal(names, reason) if beside else self._refused(reason)
        elif committing:
            kind = StateOutcomeUnknown
        return kind(state=names, where=self.where, reason=reason)

    def _reason(self, error: sa.exc.DBAPIError) -> str:
        text = " ".join(str(error.orig).split()).removesuffix(".")
        return text.replace(self._secret, "***") if self._secret else text

    def _refused(self, reason: str) -> StateError:
        return _refusal(self.state, reason)


def _refusal(state: str, reason: str) -> StateError:
    return StateError(state=state, problem=f"the database says: {reason}", remedy=NOTHING)


@contextmanager
def _dropped_after_errors(connection: Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.invalidate()
        raise
