"""Every type of a column with its edge values: Python and Spark have what the database says, or both refuse it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.rows.arrow import readable
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.outputs.staging.row_hash import digest_of_batch
from airflow_tx.sources.sql.source import SqlSource
from airflow_tx.testing.airflow import connection
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import UNUSUAL_SETTINGS, LocalPostgres
from tests.servers.spark_session import jdbc_jars, skip_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ATTEMPT = TransactionAttempt(1, 1)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Said = Callable[[str], Any]


@dataclass(frozen=True)
class Type:
    """A type of a column.

    :param taken: values, as SQL.
    :param refused: values that Python or Spark does not have.
    :param asked: what the database is asked for the value of the column {0}, as a text.
    :param said: makes a value of its answer.
    """

    name: str
    taken: tuple[str, ...]
    refused: tuple[str, ...] = ()
    asked: str = "CAST({0} AS CHAR)"
    said: Said = str


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text[:19]).replace(microsecond=int(text[20:].ljust(6, "0")))


def instant(text: str) -> datetime:
    return wall(text).replace(tzinfo=timezone.utc)


def pg(
    name: str, *taken: str, refused: tuple[str, ...] = (), asked: str = "format('%%s', {0})", said: Said = str
) -> Type:
    return Type(name, taken, refused, asked, said)


def quoted(*texts: str) -> tuple[str, ...]:
    return tuple(f"'{text}'" for text in texts)


NO_TIMES = quoted("infinity", "-infinity", "20000-01-01", "0044-03-15 BC")
TIMES = quoted(
    "1500-01-01", "1582-10-10 12:00:00", "2026-03-08 02:30:00.25", "9999-12-31 23:59:59.999999", "0001-01-01"
)
LISTED = "array_to_json({0})::text"
DOUBLE = "CAST({0} AS double precision)::text"

POSTGRES = [
    pg("smallint", "-32768", "32767", said=int),
    pg("integer", "-2147483648", "2147483647", said=int),
    pg("bigint", "-9223372036854775808", "9223372036854775807", said=int),
    pg("oid", "4294967295", said=int),
    pg(
        "numeric", "12.340", "1.0000000000000000000000", "1e19", "-0.000000000000000001", "0",
        refused=("1e20", "1e-19", "'NaN'", "'Infinity'", "1e40"), said=Decimal,
    ),
    pg("numeric(12,2)", "1.5", "-9999999999.99", refused=("'NaN'",), said=Decimal),
    pg("numeric(38,0)", "99999999999999999999999999999999999999", said=Decimal),
    pg("numeric(38,38)", "0.00000000000000000000000000000000000001", said=Decimal),
    pg("numeric(50,5)", "1.5", "-123456789012345678901234567890123.12345", refused=("1e34",), said=Decimal),
    pg("numeric(5,-2)", "12345", said=Decimal),
    pg("numeric(3,5)", "0.00123", said=Decimal),
    pg("real", "0.1", "16777217", "'NaN'", "'-Infinity'", "-0.0", "1e-45", "3.4e38", asked=DOUBLE, said=float),
    pg("double precision", "0.1", "1e300", "5e-324", "'NaN'", "'Infinity'", "1234567.123456", asked=DOUBLE, said=float),
    pg("boolean", "true", "false", asked="{0}::int::text", said=lambda text: text == "1"),
    pg("bit(3)", "B'101'"),
    pg("bit(1)", "B'1'"),
    pg("bit varying(8)", "B'00101'"),
    pg("char(4)", "'a'"),
    pg("varchar(4)", "'a  '", "''"),
    pg("text", "E'a\\nb'", "'é ☃ 𝄞'", "'e\u0301'", "repeat('x', 131073)", r"E'\\N'", "'NULL'"),
    pg('"char"', "'a'"),
    pg("name", "'a'"),
    pg("bytea", r"'\x00ff5c'", "''", asked="encode({0}, 'hex')", said=bytes.fromhex),
    pg(
        "date", *quoted("1500-01-01", "1582-10-10", "0001-01-01", "9999-12-31", "2018-11-04"),
        refused=NO_TIMES, said=date.fromisoformat,
    ),
    pg("timestamp", *TIMES, refused=NO_TIMES, said=wall),
    pg("timestamp(0)", *TIMES[:3], said=wall),
    pg(
        "timestamptz",
        *quoted("1500-01-01 00:00+00", "2026-03-08 02:30:00.25-05", "9999-12-31 23:59:59.999999+00", "0001-01-01+00"),
        refused=NO_TIMES, asked="({0} AT TIME ZONE 'UTC')::text", said=instant,
    ),
    pg("time", *quoted("24:00:00", "00:00:00", "10:00:00.000001")),
    pg("timetz", *quoted("10:00:00+05:45")),
    pg("interval", *quoted("1 mon 2 days", "-100 hours", "1 year -00:00:00.000001")),
    pg("uuid", *quoted("3613B603-aa78-4d1a-98d1-cc28eca88852")),
    pg("json", *quoted('{"a":  1.10, "a": 12345678901234567890.123}', "null")),
    pg("jsonb", *quoted('{"a":  1.10, "b": 12345678901234567890.123}', "[]")),
    pg(
        "integer[]", *quoted("{1,NULL,2}", "{}", "[0:1]={1,2}"),
        refused=quoted("{{1,2},{3,4}}"), asked=LISTED, said=json.loads,
    ),
    pg("bigint[]", *quoted("{9223372036854775807}"), asked=LISTED, said=json.loads),
    pg("boolean[]", *quoted("{t,f}"), asked=LISTED, said=json.loads),
    pg("text[]", *quoted('{"a,b",NULL,"NULL","\\""}'), asked=LISTED, said=json.loads),
    pg("mood[]", *quoted("{sad}")),
    pg("code[]", *quoted("{a}")),
    pg("varchar(3)[]", *quoted("{a}"), asked=LISTED, said=json.loads),
    pg("numeric[]", *quoted("{1.10,NaN}")),
    pg("real[]", *quoted("{0.1}")),
    pg("timestamptz[]", *quoted('{"2026-01-01 00:00:00+00",infinity}')),
    pg("mood", "'sad'"),
    pg("point2", "ROW(1, 'a b')"),
    pg("int4range", *quoted("[1,5)", "empty")),
    pg("tstzrange", *quoted("[2026-01-01 00:00:00+00,)")),
    pg("int4multirange", *quoted("{[1,5)}")),
    pg("inet", *quoted("10.0.0.1", "10.0.0.0/8")),
    pg("cidr", *quoted("10.0.0.0/8")),
    pg("macaddr", *quoted("08:00:2b:01:02:03")),
    pg("xml", *quoted("<a> b</a>")),
    pg("tsvector", *quoted("a:1 b")),
    pg("point", *quoted("(1.5,2)")),
    pg("pg_lsn", *quoted("16/B374D848")),
    pg("positive", "1.5", said=Decimal),
    pg("positive_again", "1.5", said=Decimal),
    pg("code", "'x'"),
]  # fmt: skip

AS_DOUBLE = "CAST({0} * 1e0 AS CHAR)"
NO_DATES = quoted("0000-00-00", "2026-00-00", "0000-01-01")
MARIADB = [
    Type("TINYINT(1)", ("2", "-128", "0"), said=int),
    Type("BOOL", ("TRUE", "127"), said=int),
    Type("TINYINT UNSIGNED", ("255",), said=int),
    Type("SMALLINT UNSIGNED", ("65535",), said=int),
    Type("MEDIUMINT UNSIGNED", ("16777215",), said=int),
    Type("INT UNSIGNED ZEROFILL", ("5", "4294967295"), said=int),
    Type("BIGINT", ("-9223372036854775808",), said=int),
    Type("BIGINT UNSIGNED", ("18446744073709551615",), said=int),
    Type("DECIMAL(12,2)", ("1.50", "-9999999999.99"), said=Decimal),
    Type("DECIMAL(38,30)", ("12345678.123456789012345678901234567890",), said=Decimal),
    Type("DECIMAL(65,30)", ("1.5", "12345678.123456789012345678901234567890"), ("123456789",), said=Decimal),
    Type("DECIMAL(40,2)", (f"{10**35}.12",), (f"{10**37}.12",), said=Decimal),
    Type("FLOAT", ("16777217", "12345.678", "0.1", "-0e0", "3.4e38", "1e-45"), asked=AS_DOUBLE, said=float),
    Type("FLOAT(7,3)", ("1234.567",), asked=AS_DOUBLE, said=float),
    Type("DOUBLE", ("0.1", "1e300", "123456789.123456789", "5e-324"), said=float),
    Type("DOUBLE(30,2)", ("0.1", "1234567890123456.12"), asked=AS_DOUBLE, said=float),
    Type("BIT(1)", ("b'1'", "b'0'"), asked="HEX(CAST({0} AS BINARY))", said=bytes.fromhex),
    Type("BIT(8)", ("b'101'",), asked="HEX(CAST({0} AS BINARY))", said=bytes.fromhex),
    Type("BIT(64)", ("b'1'", "0xffffffffffffffff"), asked="HEX(CAST({0} AS BINARY))", said=bytes.fromhex),
    Type("CHAR(4)", ("'a  '", "''")),
    Type("CHAR(4) CHARACTER SET latin1", ("'é'",)),
    Type("VARCHAR(9)", ("'a  '", "''", "'é ☃ 𝄞'")),
    Type("LONGTEXT", ("REPEAT('x', 131073)", r"'a\nb\0'")),
    Type("VARBINARY(4)", ("x'00ff5c'", "''"), asked="HEX({0})", said=bytes.fromhex),
    Type("BINARY(4)", ("x'00ff'",), asked="HEX({0})", said=bytes.fromhex),
    Type("BLOB", ("x'00ff'",), asked="HEX({0})", said=bytes.fromhex),
    Type("TINYBLOB", ("x'00ff'",), asked="HEX({0})", said=bytes.fromhex),
    Type("MEDIUMBLOB", ("x'00ff'",), asked="HEX({0})", said=bytes.fromhex),
    Type("LONGBLOB", ("x'00ff'",), asked="HEX({0})", said=bytes.fromhex),
    Type("DATE", quoted("0001-01-01", "1582-10-10", "9999-12-31"), NO_DATES, said=date.fromisoformat),
    Type("DATETIME(6)", TIMES, quoted("0000-00-00", "2026-01-00"), said=wall),
    Type("DATETIME", quoted("2026-03-08 02:30:00"), said=wall),
    Type("TIMESTAMP(6) NULL", quoted("2026-03-08 02:30:00.25", "1970-01-01 00:00:01"), NO_DATES[:1], said=instant),
    Type("TIME(6)", quoted("-100:00:01", "838:59:59", "10:00:00.5")),
    Type("YEAR", ("2026", "'0000'", "2155"), said=int),
    Type("ENUM('a','b')", ("'a'", "''")),
    Type("SET('a','b')", ("'a,b'", "''")),
    Type("JSON", ("""'{"a": 1.10}'""",)),
]  # fmt: skip
OF_MARIADB = [Type("UUID", quoted("3613b603-aa78-4d1a-98d1-cc28eca88852"))]

POSTGRES_OWN = (
    "quote_all_identifiers = off",
    "extra_float_digits = 3",
    "array_nulls = on",
    "DateStyle = 'ISO, YMD'",
    "IntervalStyle = 'postgres'",
    "TimeZone = 'UTC'",
    "standard_conforming_strings = on",
)
MARIADB_OTHERS = {
    "sql_mode": "'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES'",
    "time_zone": "'+05:45'",
    "sql_select_limit": "1",
    "sql_quote_show_create": "0",
}
MARIADB_OWN = ("time_zone = '+00:00'", "sql_mode = 'ALLOW_INVALID_DATES'", "sql_select_limit = 18446744073709551615")


@pytest.fixture(autouse=True)
def drivers() -> None:
    skip_without(jdbc_jars)


class Shop:
    """A database of its own, which is the connection `shop`."""

    def __init__(self, server: LocalPostgres | LocalMariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
        self.maria = isinstance(server, LocalMariaDB)
        encoding: dict[str, Any] = {} if self.maria else {"client_encoding": "utf8"}
        self.engine = sa.create_engine(server.url(server.new_database()), poolclass=sa.pool.NullPool, **encoding)
        url = self.engine.url
        known = {"host": url.host, "port": url.port, "login": url.username, "password": url.password}
        kind = "mysql" if self.maria else "postgres"
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", connection(kind, **known, schema=url.database))

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connected:
            self.settle(connected)
            for statement in statements:
                connected.exec_driver_sql(statement.replace("%", "%%"))

    def settle(self, connected: sa.Connection) -> None:
        # The tables may hold what careless applications write.
        for each in MARIADB_OWN if self.maria else POSTGRES_OWN:
            connected.exec_driver_sql(f"SET {each}")

    def asked(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connected:
            self.settle(connected)
            return [tuple(row) for row in connected.exec_driver_sql(query)]


@pytest.fixture(
    params=["postgres", pytest.param("mariadb", marks=pytest.mark.lead), pytest.param("mysql", marks=pytest.mark.long)]
)
def server(request: pytest.FixtureRequest) -> LocalPostgres | LocalMariaDB:
    found: LocalPostgres | LocalMariaDB = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def shop(server: LocalPostgres | LocalMariaDB, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A database whose sessions begin with other settings than those that the readers need."""
    made = Shop(server, monkeypatch)
    if made.maria:
        before = {name: made.asked(f"SELECT @@GLOBAL.{name}")[0][0] for name in MARIADB_OTHERS}
        made.run(*(f"SET GLOBAL {name} = {value}" for name, value in MARIADB_OTHERS.items()))
        yield made
        made.run(*(f"SET GLOBAL {name} = {value!r}" for name, value in before.items()))
    else:
        made.run(*(f'ALTER DATABASE "{made.engine.url.database}" SET {each}' for each in UNUSUAL_SETTINGS))
        made.run(
            "CREATE TYPE mood AS ENUM ('sad')", "CREATE TYPE point2 AS (x integer, y text)",
            "CREATE DOMAIN positive AS numeric(12,2) CHECK (value > 0)", "CREATE DOMAIN positive_again AS positive",
            "CREATE DOMAIN code AS text",
        )  # fmt: skip
        yield made


@pytest.fixture
def types(server: LocalPostgres | LocalMariaDB) -> list[Type]:
    if not isinstance(server, LocalMariaDB):
        return POSTGRES
    return [*MARIADB, *(OF_MARIADB if type(server) is LocalMariaDB else ())]


def table(shop: Shop, types: list[Type], values: list[tuple[str, ...]]) -> None:
    """The table `edges`: a column c0, c1 ... of each type, and a row of all first values, of all second ones ..."""
    columns = ", ".join(f"c{number} {each.name}" for number, each in enumerate(types))
    shop.run(f"CREATE TABLE edges (id INTEGER PRIMARY KEY, {columns})")
    for row in range(max(map(len, values))):
        given = [each[row] if row < len(each) else "NULL" for each in values]
        shop.run(f"INSERT INTO edges VALUES ({row}, {', '.join(given)})")


def by_python(source: SqlSource) -> list[dict[str, Any]]:
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    rows: Any = source.emit_batch(ATTEMPT, batch.metadata)
    return [dict(row) for row in rows]


def by_arrow(source: SqlSource) -> Any:
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    return source.emit_arrow(ATTEMPT, batch.metadata).read_all()


def frame_of(source: SqlSource, spark: SparkSession) -> Any:
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    return source.emit_batch(ATTEMPT, batch.metadata, spark)


def by_spark(source: SqlSource, spark: SparkSession) -> list[dict[str, Any]]:
    frame = frame_of(source, spark)
    instants = {name for name, kind in frame.dtypes if kind == "timestamp"}
    micros = [f"unix_micros({name}) AS {name}" if name in instants else name for name in frame.columns]
    found = [row.asDict() for row in frame.selectExpr(*micros).orderBy("id").collect()]
    for row in found:
        for name in instants:
            row[name] = None if row[name] is None else EPOCH + timedelta(microseconds=row[name])
        row |= {name: bytes(value) for name, value in row.items() if isinstance(value, bytearray)}
    return found


def digest_of(table: Any) -> RowsDigest:
    return sum(map(digest_of_batch, table.to_batches()), RowsDigest(0))


def cell(value: Any) -> str:
    """The text by which values are compared: a number by its digits, and everything else by its type, too."""
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        digits = format(Decimal(value), "f")
        return "number " + (digits.rstrip("0").rstrip(".") if "." in digits else digits)
    return f"{type(value).__name__} {value!r}"


def test_python_and_spark_read_the_exact_values_of_the_database(
    spark: SparkSession, shop: Shop, types: list[Type]
) -> None:
    table(shop, types, [each.taken for each in types])
    asked = ", ".join(each.asked.format(f"c{number}") for number, each in enumerate(types))
    columns = ", ".join(f"c{number}" for number, _ in enumerate(types))
    said = shop.asked(f"SELECT {asked} FROM edges ORDER BY id")
    assert shop.asked(f"SELECT COUNT(*) FROM (SELECT {columns} FROM edges) e") == [(len(said),)]
    source = SqlSource("shop", "edges")
    python, frame, table_of_arrow = by_python(source), by_spark(source, spark), by_arrow(source)
    batches = table_of_arrow.to_pylist()
    source.close()
    wrong = []
    for number, each in enumerate(types):
        for row, value in enumerate(each.taken):
            cells = [
                cell(each.said(said[row][number])),
                cell(python[row][f"c{number}"]),
                cell(frame[row][f"c{number}"]),
                cell(batches[row][f"c{number}"]).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc"),
            ]
            wrong += [(each.name, value[:40], *(found[:90] for found in cells))] if len(set(cells)) > 1 else []
    assert wrong == []
    table_of_spark = readable(frame_of(source, spark).toArrow())
    source.close()
    for name in table_of_spark.column_names:
        digests = [digest_of(found.select([name])) for found in (table_of_spark, table_of_arrow)]
        assert digests[0] == digests[1], (name, table_of_spark.schema.field(name), table_of_arrow.schema.field(name))
    assert [row["id"] for row in python] == [row["id"] for row in frame] == list(range(len(said)))


def test_a_value_that_python_or_spark_cannot_represent_is_refused_by_both(
    spark: SparkSession, shop: Shop, types: list[Type]
) -> None:
    table(shop, types, [each.refused for each in types])
    frame_source = SqlSource("shop", "edges")
    assert frame_of(frame_source, spark).select("id").count() > 2  # Spark reads only the columns that it needs
    frame_source.close()
    wrong = []
    for number, each in enumerate(types):
        for row, value in enumerate(each.refused):
            shop.run("DROP TABLE IF EXISTS one", f"CREATE TABLE one AS SELECT * FROM edges WHERE id = {row}")
            shop.run("ALTER TABLE one ADD PRIMARY KEY (id)")
            source = SqlSource("shop", "one", columns=[f"c{number}"])
            errors = [error_of(lambda: by_python(source)), error_of(lambda: frame_of(source, spark).collect())]  # noqa: B023
            source.close()
            said = [f"column c{number} of table one is ", f" in the row whose id is {row}: Python or Spark has no such"]
            # Spark's own error for an array of several dimensions comes before ours.
            for error in errors[:1] if each.name.endswith("[]") else errors:
                wrong += [] if all(part in error for part in said) else [(each.name, value, error[:300])]
            assert "" not in errors
    assert wrong == []


def error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - those of Spark have no common class
        return str(error)
    return ""
