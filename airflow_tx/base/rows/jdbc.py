"""Database rows that Spark reads in parallel over JDBC, and the session settings of all readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy.engine import URL, Connection

from airflow_tx.base.rows.spark import spark_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


READER = "airflow_tx reader"
"""The application name of reader sessions on PostgreSQL. They never write, so no batch waits for them."""
_MYSQL = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', sql_auto_is_null = 0, sql_quote_show_create = 1, "
    # Lock requests must not wait for long.
    "sql_select_limit = 18446744073709551615, lock_wait_timeout = 1"
)
SETTINGS = {
    "postgresql": "SET standard_conforming_strings = on; SET quote_all_identifiers = off; "
    "SET extra_float_digits = 3; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; "
    "SET bytea_output = 'hex'; SET TimeZone = 'UTC'",
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
"""Statements that make every session read the same values, regardless of role, database or server settings."""


JDBC_DATABASES = ("postgresql", "mysql", "mariadb")
FETCHED = 10_000
DRIVERS = {
    "postgresql": ("org.postgresql.Driver", "org.postgresql:postgresql:42.7.7"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.3.0"),
}
"""The driver class that Spark loads, and its Maven coordinates."""
# PostgreSQL connection settings, each with its JDBC name.
_POSTGRES = {
    **{
        name: name
        for name in ("sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword", "options")
    },
    "channel_binding": "channelBinding",
    "gssencmode": "gssEncMode",
    "sslnegotiation": "sslNegotiation",
}
# Settings that JDBC may omit, since they do not affect the rows or the connection's security.
_OF_TASKS = (
    "application_name fallback_application_name client_encoding connect_timeout keepalives keepalives_idle "
    "keepalives_interval keepalives_count tcp_user_timeout target_session_attrs load_balance_hosts"
).split()


class NoJdbc(ValueError):
    """Signals that Spark cannot read a database. The message is a clause.

    :ivar remedy: how to solve the problem.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


@dataclass(frozen=True)
class JdbcQuery:
    """A query whose rows Spark reads.

    :param selected: table expression in SQL.
    :param columns: columns, as Spark expressions.
    :param predicates: SQL condition of each Spark partition.
    :param in_session: statements at the start of each session, from `session_of_spark`.
    """

    selected: str
    columns: Sequence[str]
    predicates: Sequence[str]
    in_session: str

    def frame(self, spark: SparkSession, url: URL) -> DataFrame:
        """Read the rows of the query.

        :raises NoJdbc: Spark cannot read them.
        """
        if unknown := _unknown_to_jdbc(url):
            raise NoJdbc(
                f"Spark reads with JDBC, which does not support {unknown}",
                f"Remove {unknown} from the extra of the connection, or read the batch in a Python task.",
            )
        options = {**_properties(url), "sessionInitStatement": self.in_session}
        # Spark filters these columns itself, since databases compare some values, such as texts,
        # differently.
        options |= {"pushDownPredicate": "false", "fetchsize": str(FETCHED)}
        try:
            read = spark_reader(spark, "jdbc").jdbc(
                _address(url), self.selected, predicates=list(self.predicates), properties=options
            )
            frame = read.selectExpr(*self.columns)
            frame.schema  # noqa: B018 - so that errors appear here
        except Exception as error:  # noqa: BLE001 - Spark's own errors have no common class
            raise _unreadable(error, url) from None
        return frame


def session_of_spark(connection: Connection, *, shared: bool) -> str:
    """Return the statements to run at the start of each Spark session.

    :param connection: connection to the database.
    :param shared: whether the session reads the snapshot of this connection's transaction, if the database supports
        this. The snapshot exists only while that transaction is open.
    """
    if connection.dialect.name != "postgresql":
        return SETTINGS["mysql"]
    if not shared:
        return SETTINGS["postgresql"]
    name = connection.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one()
    reading = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT"
    return f"{reading} '{name}'; {SETTINGS['postgresql']}"


def _unreadable(error: Exception, url: URL) -> NoJdbc:
    text = " ".join(str(error).split())
    text = text.replace(str(url.password), "***") if url.password else text
    if "No suitable driver" in text or "ClassNotFoundException" in text:
        name, package = DRIVERS[_family(url)]
        remedy = f"Give it to Spark: packages={package!r} of the operator, or its jar."
        return NoJdbc(f"Spark does not find the JDBC driver {name}", remedy)
    remedy = "Correct the connection, so that Spark reaches the database as this task does."
    return NoJdbc(f"Spark cannot read it: {text[:300]}", remedy)


def _family(url: URL) -> str:
    return "postgresql" if url.get_backend_name() == "postgresql" else "mysql"


def _address(url: URL) -> str:
    """Return the JDBC URL. The user and password are passed as options, which Spark does not show."""
    host = url.host or "127.0.0.1"
    where = f"[{host}]" if ":" in host else host
    if _family(url) == "postgresql":
        return f"jdbc:postgresql://{where}:{url.port or 5432}/{quote(url.database or url.username or '', safe='')}"
    return f"jdbc:mysql://{where}:{url.port or 3306}/{quote(url.database or '', safe='')}"


def _unknown_to_jdbc(url: URL) -> str:
    """Return a setting of the connection that Spark would ignore, or "" if there is none."""
    known = {*_POSTGRES, *_OF_TASKS}
    found = (each for each in url.query if each not in known)
    return next(found, "") if _family(url) == "postgresql" else ""


def _properties(url: URL) -> dict[str, str]:
    driver, _ = DRIVERS[_family(url)]
    # Name the driver. By URL alone, Spark does not find a driver in the application's packages.
    found = {"driver": driver, "user": url.username or "", "password": str(url.password or "")}
    query = {
        name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()
    }
    if _family(url) == "postgresql":
        return {
            **found,
            "ApplicationName": READER,
            **{jdbc: query[name] for name, jdbc in _POSTGRES.items() if name in query},
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
