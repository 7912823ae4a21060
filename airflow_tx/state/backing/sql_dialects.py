"""What differs between databases, and nothing else: types, locks, connections, the bulk upsert.

Another database is another subclass of `Dialect` and one line in `DIALECTS`. MySQL and MariaDB would need, besides: key
types of a fixed length with a binary collation, assignments in the order prev, value, txid, and tables made beforehand
(their DDL is not part of a transaction).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar

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


class Dialect:
    """One database.

    :cvar types: column type of ours -> type of SQLAlchemy.
    """

    types: ClassVar[dict[str, TypeEngine[Any]]]

    def engine(self, url: URL) -> Engine:
        """An engine without a pool: a connection must not outlive a fork, and a task needs it once or twice."""
        raise NotImplementedError

    def lock_ddl(self, connection: Connection) -> None:
        """Let only one of several first users create tables; held to the end of the transaction."""

    def found(self, connection: Connection, table: sa.Table) -> tuple[dict[str, str], list[str]]:
        """The columns a table has, with their types in our words, and its primary key."""
        raise NotImplementedError

    def checks(self, column: sa.Column[Any], kind: str) -> list[sa.CheckConstraint]:
        """Constraints without which the column would not be exact."""
        return []

    def combined(self, kind: str, base: Any, delta: Any) -> Any:
        """SQL for base + delta, where NULL changes nothing."""
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
        """Run what `insert_rows` gave for one portion of rows; how many were inserted or updated."""
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

    def combined(self, kind: str, base: Any, delta: Any) -> Any:
        """Decimals are added in Python, since SQLite would add them as floats."""
        return sa.func.tx_add(base, delta) if kind == "numeric" else super().combined(kind, base, delta)

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
        return connection.exec_driver_sql(str(compiled), rows, execution_options=options).rowcount

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
    def _on_connect(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None
        dbapi_connection.create_function("tx_add", 2, _add_texts, deterministic=True)
        # 64 MiB: with SQLite's 2 MiB, a large commit reads and writes its pages over and over.
        dbapi_connection.execute("PRAGMA cache_size = -65536")

    @staticmethod
    def _on_begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("tx_reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _add_texts(a: str | None, b: str | None) -> str | None:
    total = add(None if a is None else Decimal(a), None if b is None else Decimal(b))
    return None if total is None else format(total, "f")


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
        return sa.create_engine(
            url, poolclass=NullPool, hide_parameters=True, isolation_level="READ COMMITTED", connect_args=connect
        )

    def lock_ddl(self, connection: Connection) -> None:
        """An advisory lock: CREATE TABLE IF NOT EXISTS of two at once can fail."""
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('airflow_tx'))"))

    def found(self, connection: Connection, table: sa.Table) -> tuple[dict[str, str], list[str]]:
        """As in the catalog."""
        inspector = sa.inspect(connection)
        columns = inspector.get_columns(table.name, schema=table.schema)
        key = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
        return {column["name"]: pg_type(column["type"]) for column in columns}, list(key)

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
