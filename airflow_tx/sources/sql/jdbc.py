"""A batch of a SQL table read by Spark over JDBC, its ranges in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Dialect
from sqlalchemy.sql.util import ClauseAdapter

from airflow_tx.errors import SourceError
from airflow_tx.sources.sql.database import READER
from airflow_tx.sources.sql.positions import KeyRange, Rows
from airflow_tx.sources.sql.shard import Shard
from airflow_tx.sources.sql.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUPPORTED = ("postgresql", "mysql", "mariadb")
FETCHED = 10_000
DRIVERS = {
    "postgresql": ("org.postgresql.Driver", "org.postgresql:postgresql:42.7.7"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.3.0"),
}
"""The class that Spark loads, and where it is."""
_UTC = "SET time_zone = '+00:00'"
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
        form: Plain = (
            Plain(table, dialect) if database.kind == "postgresql" else InUtc(table, dialect)
        )
        predicates = [form.predicate(each) for each in self._rows.ranges]
        options = {**_properties(database.url), "sessionInitStatement": in_session}
        # Spark compares the values that the database compares differently, such as texts.
        options |= {"pushDownPredicate": "false", "fetchsize": str(FETCHED)}
        try:
            read = spark.read.jdbc(
                _address(database.url), form.name, predicates=predicates, properties=options
            )
            frame = read.selectExpr(*form.columns)
            frame.schema  # noqa: B018 - so that what is wrong is found here
        except Exception as error:  # noqa: BLE001 - Spark's own errors have no common class
            raise self._unreadable(error) from None
        return frame

    def _snapshot(self, held: Connection) -> str:
        if self._shard.database.kind != "postgresql":
            return _UTC
        name = held.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one()
        return f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{name}'"

    def _unreadable(self, error: Exception) -> SourceError:
        text = self._shard.database.scrubbed(str(error))
        if "No suitable driver" in text or "ClassNotFoundException" in text:
            name, package = DRIVERS[_family(self._shard.database.url)]
            remedy = f"Give it to Spark: packages={package!r} of the operator, or its jar."
            return self._shard.errors.refused(f"Spark does not find the JDBC driver {name}", remedy)
        remedy = "Correct the connection, so that Spark reaches the database as this task does."
        return self._shard.errors.refused(f"Spark cannot read it: {text[:300]}", remedy)


class Plain:
    """Build the queries by which Spark reads a table."""

    def __init__(self, table: Table, dialect: Dialect) -> None:
        self.table = table
        self.dialect = dialect

    @property
    def name(self) -> str:
        """Spell what is selected from."""
        return self.dialect.identifier_preparer.format_table(self.table.clause).replace("%%", "%")

    @property
    def columns(self) -> list[str]:
        """List its columns as expressions of Spark."""
        return [self.column(name) for name in self.table.columns]

    def column(self, name: str) -> str:
        return f"`{name.replace('`', '``')}`"

    def predicate(self, rows: KeyRange) -> str:
        """Spell the condition of a range as text: Spark takes no parameters."""
        return self.text(self.table.within(rows))

    def text(self, statement: sa.ClauseElement) -> str:
        """Spell a statement for others than the driver of Python, for which every percent sign is doubled."""
        compiled = statement.compile(dialect=self.dialect, compile_kwargs={"literal_binds": True})
        return str(compiled).replace("%%", "%")


class InUtc(Plain):
    """A table of MySQL or MariaDB: its times come as texts in UTC, for the driver reads times in the JVM's own zone."""

    def __init__(self, table: Table, dialect: Dialect) -> None:
        super().__init__(table, dialect)
        self._alias = table.clause.alias("tx_rows")
        self._texts = {
            column: f"tx_text_{number}" for number, column in enumerate(sorted(table.times))
        }

    @property
    def name(self) -> str:
        times = [
            sa.cast(self.table.clause.c[name], sa.CHAR).label(text)
            for name, text in self._texts.items()
        ]
        return f"({self.text(sa.select(*self.table.clause.c, *times))}) AS tx_rows"

    def predicate(self, rows: KeyRange) -> str:
        return self.text(ClauseAdapter(self._alias).traverse(self.table.within(rows)))

    def column(self, name: str) -> str:
        plain = super().column(name)
        text = self._texts.get(name)
        return (
            plain if text is None else f"CAST(concat({text}, '+00:00') AS TIMESTAMP_LTZ) AS {plain}"
        )


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
    if "ssl_ca" not in query:
        return {}
    store = {
        "trustCertificateKeyStoreUrl": f"file:{query['ssl_ca']}",
        "trustCertificateKeyStoreType": "PEM",
    }
    return {"sslMode": "VERIFY_CA", **store}
