"""A batch of a SQL table read by Spark over JDBC, its ranges in parallel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Dialect

from airflow_tx.errors import SourceError
from airflow_tx.sources.sql.database import READER, SETTINGS
from airflow_tx.sources.sql.positions import KeyRange, Rows
from airflow_tx.sources.sql.shard import Shard
from airflow_tx.sources.sql.table import KEY_TEXT, SHOWN_VALUE, Table
from airflow_tx.sources.sql.values import Element, Exact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUPPORTED = ("postgresql", "mysql", "mariadb")
FETCHED = 10_000
DRIVERS = {
    "postgresql": ("org.postgresql.Driver", "org.postgresql:postgresql:42.7.7"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.3.0"),
}
"""The class that Spark loads, and where it is."""
# Where an error has the value and the key of the row.
_VALUE, _KEY = "<value>", "<key>"
# Extras of a connection that JDBC has under the same name, or another one.
_POSTGRES = ("sslmode", "sslcert", "sslkey", "sslrootcert", "options")


class JdbcRows:
    """Reads the rows of a batch as a DataFrame.

    On PostgreSQL all of them are of one state of the database, however long Spark takes and however often it reads:
    the state in which they were counted. On MySQL and MariaDB they are counted just before.

    :param rows: which they are.
    """

    def __init__(self, shard: Shard, rows: Rows) -> None:
        self._shard = shard
        self._rows = rows
        self._held: Connection | None = None

    def frame(self, spark: SparkSession) -> DataFrame:
        """Read the rows, each range a partition of Spark; refuse if they differ from the decided ones."""
        try:
            return self._frame(spark)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the state of the database; Spark cannot read further rows afterwards."""
        held = self._held
        self._held = None
        if held is not None:
            held.close()

    def _frame(self, spark: SparkSession) -> DataFrame:
        database = self._shard.database
        with database.failures():
            self._held = database.hold()
            table = self._shard.checked(self._held)
            found = table.count(self._held, table.within(self._rows.whole))
            if found != self._rows.count:
                raise self._shard.changed(self._rows, found)
            in_session = self._snapshot(self._held)
            dialect = self._held.dialect
        if database.kind != "postgresql":
            self.close()  # it has no state that others could read
        query = Query(table, dialect)
        predicates = [query.predicate(each) for each in self._rows.ranges]
        options = {**_properties(database.url), "sessionInitStatement": in_session}
        # Spark compares the values that the database compares differently, such as texts.
        options |= {"pushDownPredicate": "false", "fetchsize": str(FETCHED)}
        try:
            read = spark.read.jdbc(
                _address(database.url), query.name, predicates=predicates, properties=options
            )
            frame = read.selectExpr(*query.columns)
            frame.schema  # noqa: B018 - so that what is wrong is found here
        except Exception as error:  # noqa: BLE001 - Spark's own errors have no common class
            raise self._unreadable(error) from None
        return frame

    def _snapshot(self, held: Connection) -> str:
        if self._shard.database.kind != "postgresql":
            return SETTINGS["mysql"]
        name = held.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one()
        reading = (
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT"
        )
        return f"{reading} '{name}'; {SETTINGS['postgresql']}"

    def _unreadable(self, error: Exception) -> SourceError:
        text = self._shard.database.scrubbed(str(error))
        if "No suitable driver" in text or "ClassNotFoundException" in text:
            name, package = DRIVERS[_family(self._shard.database.url)]
            remedy = f"Give it to Spark: packages={package!r} of the operator, or its jar."
            return self._shard.errors.refused(f"Spark does not find the JDBC driver {name}", remedy)
        remedy = "Correct the connection, so that Spark reaches the database as this task does."
        return self._shard.errors.refused(f"Spark cannot read it: {text[:300]}", remedy)


class Query:
    """Build the query by which Spark reads a table: the same one as Python's."""

    def __init__(self, table: Table, dialect: Dialect) -> None:
        self._table = table
        self._dialect = dialect
        self._keys: list[Element] = [
            sa.column(f"tx_key_{number}") for number, _ in enumerate(table.keys)
        ]

    @property
    def name(self) -> str:
        """Spell what is selected from."""
        keys = [key.label(f"tx_key_{number}") for number, key in enumerate(self._table.keys)]
        return f"({self._text(sa.select(*self._table.selected, *keys))}) AS tx_rows"

    @property
    def columns(self) -> list[str]:
        """List the columns as expressions of Spark."""
        return [self._column(name, each) for name, each in self._table.exact.items()]

    def predicate(self, rows: KeyRange) -> str:
        """Spell the condition of a range as text: Spark takes no parameters."""
        return self._text(self._table.within(rows, self._keys))

    def _text(self, statement: sa.ClauseElement) -> str:
        compiled = statement.compile(dialect=self._dialect, compile_kwargs={"literal_binds": True})
        return str(compiled).replace("%%", "%")

    def _column(self, name: str, read: Exact) -> str:
        """Cast a text if the cast is exact; else Spark raises the error that Python would."""
        column = f"`{name.replace('`', '``')}`"
        if read.pattern is None:
            return column
        text = f"concat({column}, '{read.zone}')" if read.zone else column
        made = f"if({column} RLIKE {_literal(f'^{read.pattern}$')}, try_cast({text} AS {read.spark}), NULL)"
        error = str(self._table.unfit(name, _VALUE, _KEY))
        words = ", ".join(
            {_VALUE: f"left({column}, {SHOWN_VALUE})", _KEY: KEY_TEXT}.get(part, _literal(part))
            for part in re.split(f"({_VALUE}|{_KEY})", error)
        )
        checked = f"coalesce({made}, raise_error(concat({words})))"
        return f"CASE WHEN {column} IS NOT NULL THEN {checked} END AS {column}"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _family(url: URL) -> str:
    return "postgresql" if url.get_backend_name() == "postgresql" else "mysql"


def _address(url: URL) -> str:
    """Spell what Spark connects to; user and password are options, which it does not show."""
    host = url.host or "127.0.0.1"
    where = f"[{host}]" if ":" in host else host
    if _family(url) == "postgresql":
        return f"jdbc:postgresql://{where}:{url.port or 5432}/{quote(url.database or url.username or '', safe='')}"
    return f"jdbc:mysql://{where}:{url.port or 3306}/{quote(url.database or '', safe='')}"


def _properties(url: URL) -> dict[str, str]:
    driver, _ = DRIVERS[_family(url)]
    # Named, because a driver that comes with the application is not found by its address.
    found = {"driver": driver, "user": url.username or "", "password": str(url.password or "")}
    query = {
        name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()
    }
    if _family(url) == "postgresql":
        return {
            **found,
            "ApplicationName": READER,
            **{name: query[name] for name in _POSTGRES if name in query},
        }
    return {**found, **_mysql_tls(query)}


def _mysql_tls(query: Mapping[str, Any]) -> dict[str, str]:
    checks_name = str(query.get("ssl_check_hostname", "true")).lower()
    if "ssl_ca" not in query:
        return {"sslMode": "REQUIRED"} if "ssl_check_hostname" in query else {}
    store = {
        "trustCertificateKeyStoreUrl": f"file:{query['ssl_ca']}",
        "trustCertificateKeyStoreType": "PEM",
    }
    return {"sslMode": "VERIFY_IDENTITY" if checks_name in ("true", "1") else "VERIFY_CA", **store}
