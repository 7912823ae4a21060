"""What differs between databases, and nothing else: types, locks, connections, the bulk upsert.

Another database is another subclass of `Dialect` and one line in `DIALECTS`. MySQL and MariaDB would need, besides: key
types of a fixed length with a binary collation, assignments in the order prev, value, txid, and tables made beforehand
(their DDL is not part of a transaction).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar, NoReturn

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.pool import NullPool
from sqlalchemy.types import TypeEngine

from airflow_tx.errors import ConfigError
from airflow_tx.state.aggregators import add
from airflow_tx.state.backing.sql_types import ExactDecimal, UtcTimestamp, array_literal, pg_type, sqlite_type

PARAM = "tx_p"
Constants = dict[str, Any]
# SQL of SQLite, as literals: a bulk statement has no parameters but the values of the rows.
LARGEST_DOUBLE: sa.ColumnClause[float] = sa.literal_column(repr(sys.float_info.max))
REAL: sa.ColumnClause[str] = sa.literal_column("'real'")
REFUSED = "tx_refused"
# What a PostgreSQL session gets unless its user, database or connection says otherwise: without them, a committer
# whose machine vanished would hold the fence until its TCP connection is given up, which takes hours.
TIMEOUTS = {"lock_timeout": "30s", "idle_in_transaction_session_timeout": "60s"}


class SumRefused(Exception):
    """A sum that its column cannot store.

    :param column: number of the value column.
    """

    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


class Dialect:
    """One database.

    :cvar types: column type of ours -> type of SQLAlchemy.
    """

    types: ClassVar[dict[str, TypeEngine[Any]]]

    def engine(self, url: URL) -> Engine:
        """An engine without a pool: a connection must not outlive a fork, and a task needs it once or twice."""
        raise NotImplementedError

    def identity(self, name: str) -> str:
        """The same text for all spellings of a table name that mean one table."""
        return name

    def schema(self, connection: Connection, schema: str | None, name: str) -> str | None:
        """The same schema for all spellings that mean one table."""
        raise NotImplementedError

    def lock_ddl(self, connection: Connection) -> None:
        """Let only one of several first users create tables; held to the end of the transaction."""

    def found(self, connection: Connection, table: sa.Table) -> tuple[dict[str, str], list[str]]:
        """The columns a table has, with their types in our words, and its primary key."""
        raise NotImplementedError

    def checks(self, column: sa.Column[Any], kind: str) -> list[sa.CheckConstraint]:
        """Constraints without which the column would not be exact."""
        return []

    def is_lock_timeout(self, error: sa.exc.DBAPIError) -> bool:
        """Whether a statement gave up because another session holds a lock."""
        raise NotImplementedError

    def combined(self, kind: str, base: Any, delta: Any, column: int) -> Any:
        """SQL for base + delta, where NULL changes nothing; it fails if the sum cannot be stored.

        :param column: number of the value column, for `SumRefused`.
        """
        return sa.func.coalesce(base + delta, base, delta)

    def insert_if_absent(self, table: sa.Table, values: dict[str, Any]) -> Any:
        """An insert that does nothing (rowcount 0) if the row is there."""
        raise NotImplementedError

    def insert_rows(self, table: sa.Table, columns: Sequence[sa.Column[Any]], constants: Constants) -> Any:
        """An insert of many rows, with an `excluded` namespace and `on_conflict_do_update`."""
        raise NotImplementedError

    def execute_rows(
        self, connection: Connection, statement: Any, kinds: Sequence[str], columns: Sequence[Sequence[Any]]
    ) -> int:
        """Run what `insert_rows` gave for one portion of rows; how many were inserted or updated.

        :raises SumRefused: a sum cannot be stored, where the dialect itself finds that.
        """
        raise NotImplementedError


class Sqlite(Dialect):
    """SQLite: one writer at a time; its transactions begin with BEGIN IMMEDIATE, which is the lock on the fence."""

    types: ClassVar[dict[str, TypeEngine[Any]]] = {
        "bigint": sa.BigInteger(),
        "double": sa.Double(),
        "numeric": ExactDecimal(),
        "text": sa.Text(),
        "boolean": sa.Boolean(),
        "date": sa.Date(),
        "timestamp": sa.DateTime(),
        "timestamptz": UtcTimestamp(),
    }

    def engine(self, url: URL) -> Engine:
        """An engine whose transactions are real ones: the driver's own begin comes too late and skips DDL."""
        if url.database in (None, "", ":memory:") or "memory" in url.query.values():
            raise ConfigError(
                option="SqlState url", value="an in-memory database", remedy="Use a file: sqlite:///path/to/file."
            )
        engine = sa.create_engine(
            url, poolclass=NullPool, hide_parameters=True, connect_args={"timeout": self._timeout(url)}
        )
        event.listen(engine, "connect", self._on_connect)
        event.listen(engine, "begin", self._on_begin)
        return engine

    def identity(self, name: str) -> str:
        """In lower case, as SQLite compares names: A to Z only."""
        return "".join(char.lower() if char.isascii() else char for char in name)

    def schema(self, connection: Connection, schema: str | None, name: str) -> str | None:
        """None for the file itself."""
        return None if schema is None or self.identity(schema) == "main" else schema

    def found(self, connection: Connection, table: sa.Table) -> tuple[dict[str, str], list[str]]:
        """As declared in the table."""
        rows = connection.execute(
            sa.text("SELECT name, type, pk FROM pragma_table_info(:name, :schema)"),
            {"name": table.name, "schema": table.schema or "main"},
        ).all()
        key = [name for _, name in sorted((pk, name) for name, _, pk in rows if pk)]
        return {name: sqlite_type(declared) for name, declared, _ in rows}, key

    def checks(self, column: sa.Column[Any], kind: str) -> list[sa.CheckConstraint]:
        """An integer sum that overflows would silently become a float."""
        if kind != "bigint":
            return []
        return [
            sa.CheckConstraint(
                sa.func.typeof(column).in_([sa.literal_column("'integer'"), sa.literal_column("'null'")])
            )
        ]

    def is_lock_timeout(self, error: sa.exc.DBAPIError) -> bool:
        """SQLITE_BUSY and SQLITE_LOCKED, as the driver words them."""
        return "is locked" in str(error.orig)

    def combined(self, kind: str, base: Any, delta: Any, column: int) -> Any:
        """Decimals are added in Python, since SQLite would add them as floats. An integer sum that overflows would
        become a float, and a float one infinite, for ever."""
        number: sa.ColumnClause[int] = sa.literal_column(str(column))
        if kind == "numeric":
            return sa.func.tx_add(base, delta, number)
        total = super().combined(kind, base, delta, column)
        bad = sa.func.abs(total) > LARGEST_DOUBLE if kind == "double" else sa.func.typeof(total) == REAL
        return sa.case((bad, sa.func.tx_refuse(number)), else_=total)

    def insert_if_absent(self, table: sa.Table, values: dict[str, Any]) -> Any:
        """INSERT ... ON CONFLICT DO NOTHING."""
        return sqlite.insert(table).values(values).on_conflict_do_nothing()

    def insert_rows(self, table: sa.Table, columns: Sequence[sa.Column[Any]], constants: Constants) -> Any:
        """INSERT ... VALUES, one parameter a column: a prepared statement for all rows."""
        values: dict[str, Any] = {
            column.name: sa.bindparam(f"{PARAM}{i}", type_=column.type) for i, column in enumerate(columns)
        }
        return sqlite.insert(table).values({**values, **constants})

    def execute_rows(
        self, connection: Connection, statement: Any, kinds: Sequence[str], columns: Sequence[Sequence[Any]]
    ) -> int:
        """One executemany, given to the driver directly: SQLAlchemy's work per row would take longer than SQLite's."""
        compiled = statement.compile(dialect=connection.dialect)
        order = [int(name.removeprefix(PARAM)) for name in compiled.positiontup]
        ready = [self._bound(connection, kinds[i], columns[i]) for i in order]
        rows = list(zip(*ready, strict=True))
        options = {"preserve_rowcount": True}
        try:
            return connection.exec_driver_sql(str(compiled), rows, execution_options=options).rowcount
        except sa.exc.OperationalError:
            if REFUSED in connection.info:
                raise SumRefused(connection.info.pop(REFUSED)) from None
            raise

    def _bound(self, connection: Connection, kind: str, values: Sequence[Any]) -> Sequence[Any]:
        process = self.types[kind].dialect_impl(connection.dialect).bind_processor(connection.dialect)
        return values if process is None else [process(value) for value in values]

    @staticmethod
    def _timeout(url: URL) -> float:
        value = url.query.get("timeout", "30")
        try:
            return float(str(value))
        except ValueError:
            raise ConfigError(
                option="SqlState connection, timeout", value=value, remedy="Give seconds, such as 30."
            ) from None

    @staticmethod
    def _on_connect(dbapi_connection: Any, record: Any) -> None:
        # An exception of a function reaches the caller without its text: which column it was is left here.
        def refuse(column: int) -> NoReturn:
            record.info[REFUSED] = column
            raise SumRefused(column)

        def add_texts(a: str | None, b: str | None, column: int) -> str | None:
            try:
                total = add(None if a is None else Decimal(a), None if b is None else Decimal(b))
            except ArithmeticError:
                refuse(column)
            return None if total is None else format(total, "f")

        dbapi_connection.isolation_level = None
        dbapi_connection.create_function("tx_add", 3, add_texts, deterministic=True)
        # Not deterministic: a constant call of such a function is made even if its result is not used.
        dbapi_connection.create_function("tx_refuse", 1, refuse)
        # 64 MiB: with SQLite's 2 MiB, a large commit reads and writes its pages over and over.
        dbapi_connection.execute("PRAGMA cache_size = -65536")

    @staticmethod
    def _on_begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("tx_reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


class Postgres(Dialect):
    """PostgreSQL, with any driver of SQLAlchemy; psycopg2 is the one that Airflow brings."""

    types: ClassVar[dict[str, TypeEngine[Any]]] = {
        "bigint": sa.BigInteger(),
        "double": sa.Double(),
        "numeric": sa.Numeric(),
        "text": sa.Text(),
        "boolean": sa.Boolean(),
        "date": sa.Date(),
        "timestamp": sa.TIMESTAMP(),
        "timestamptz": sa.TIMESTAMP(timezone=True),
    }

    def engine(self, url: URL) -> Engine:
        """READ COMMITTED whatever the server's default: the statement after a lock has to see what the holder wrote."""
        connect = (
            {"connect_timeout": 10} if "psycopg" in url.get_driver_name() and "connect_timeout" not in url.query else {}
        )
        engine = sa.create_engine(
            url, poolclass=NullPool, hide_parameters=True, isolation_level="READ COMMITTED", connect_args=connect
        )
        event.listen(engine, "begin", self._on_begin)
        return engine

    @staticmethod
    def _on_begin(connection: Connection) -> None:
        chosen = "SELECT name FROM pg_settings WHERE source IN ('client', 'user', 'database', 'database user')"
        for name, timeout in TIMEOUTS.items():
            connection.execute(
                sa.text(f"SELECT set_config(:name, :timeout, true) WHERE :name NOT IN ({chosen})"),
                {"name": name, "timeout": timeout},
            )

    def schema(self, connection: Connection, schema: str | None, name: str) -> str | None:
        """Where the search path finds the table, or would make it."""
        if schema is not None:
            return schema
        found = sa.text(
            "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = to_regclass(quote_ident(CAST(:name AS text)))), current_schema())"
        )
        where: str | None = connection.execute(found, {"name": name}).scalar_one()
        return where

    def lock_ddl(self, connection: Connection) -> None:
        """An advisory lock: CREATE TABLE IF NOT EXISTS of two at once can fail."""
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('airflow_tx'))"))

    def found(self, connection: Connection, table: sa.Table) -> tuple[dict[str, str], list[str]]:
        """As in the catalog."""
        inspector = sa.inspect(connection)
        columns = inspector.get_columns(table.name, schema=table.schema)
        key = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
        return {column["name"]: pg_type(column["type"]) for column in columns}, list(key)

    def is_lock_timeout(self, error: sa.exc.DBAPIError) -> bool:
        """lock_not_available and deadlock_detected."""
        code = getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlstate", None)
        return code in ("55P03", "40P01")

    def insert_if_absent(self, table: sa.Table, values: dict[str, Any]) -> Any:
        """INSERT ... ON CONFLICT DO NOTHING; it waits for another first writer to end."""
        return postgresql.insert(table).values(values).on_conflict_do_nothing()

    def insert_rows(self, table: sa.Table, columns: Sequence[sa.Column[Any]], constants: Constants) -> Any:
        """INSERT ... SELECT from arrays, one text parameter a column: thousands of rows in one statement."""
        arrays = [
            sa.cast(sa.bindparam(f"{PARAM}{i}", type_=sa.Text()), postgresql.ARRAY(column.type))
            for i, column in enumerate(columns)
        ]
        source = (
            sa.func.unnest(*arrays).table_valued(*[column.name for column in columns]).render_derived(name="tx_rows")
        )
        select = sa.select(*source.c, *constants.values())
        return postgresql.insert(table).from_select([*[column.name for column in columns], *constants], select)

    def execute_rows(
        self, connection: Connection, statement: Any, kinds: Sequence[str], columns: Sequence[Sequence[Any]]
    ) -> int:
        """One statement."""
        pairs = enumerate(zip(kinds, columns, strict=True))
        arrays = {f"{PARAM}{i}": array_literal(kind, column) for i, (kind, column) in pairs}
        return connection.execute(statement, arrays).rowcount


DIALECTS: dict[str, type[Dialect]] = {"sqlite": Sqlite, "postgresql": Postgres}


def dialect_of(url: URL) -> Dialect:
    """The dialect of a database URL.

    :raises ConfigError: a database that this state does not know.
    """
    backend = url.get_backend_name()
    if backend not in DIALECTS:
        raise ConfigError(option="SqlState database", value=backend, remedy=f"Use one of {', '.join(DIALECTS)}.")
    return DIALECTS[backend]()
