"""The rows of a SQL table read by a real Spark over JDBC: exactly those of the batch, in parallel ranges."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch
from airflow_tx.sources.sql.source import PartitionedSqlSource, SqlSource
from airflow_tx.testing.airflow import connection
from tests.servers import mariadb as of_mariadb
from tests.servers import postgres as of_postgres
from tests.servers.database import SqlServer
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres
from tests.servers.spark_session import jdbc_jars, skip_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ATTEMPT = TransactionAttempt(1, 1)
NAMES = ["50% off", "it's", "back\\slash", "é ☃", 'a "quoted" ?', "plain"]


@pytest.fixture(autouse=True)
def drivers() -> None:
    skip_without(jdbc_jars)


def connect(server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch) -> sa.Engine:
    """The connection `shop`."""
    known: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "schema": database}
    if isinstance(server, LocalPostgres):
        text, url = (
            connection("postgres", login=of_postgres.POSTGRES_USER, password=of_postgres.POSTGRES_PASSWORD, **known),
            server.url(database),
        )
    else:
        assert isinstance(server, LocalMariaDB)
        text, url = (
            connection("mysql", login=of_mariadb.MARIADB_USER, password=of_mariadb.MARIADB_PASSWORD, **known),
            server.url(database),
        )
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", text)
    return sa.create_engine(url, poolclass=sa.pool.NullPool)


def fill(engine: sa.Engine, rows: int) -> None:
    """Two tables of odd names and values."""
    table = sa.Table(
        "Orders %",
        sa.MetaData(),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("na me%", sa.String(20), nullable=False),
        sa.Column("n", sa.Integer),
        sa.Column("price", sa.Numeric(12, 2)),
        sa.PrimaryKeyConstraint("at", "na me%"),
    )
    table.create(engine)
    start = sa.literal("2026-01-01 23:59:59")
    with engine.begin() as connected:
        for number in range(rows):
            at = connected.execute(sa.select(sa.cast(start, sa.DateTime()))).scalar_one()
            values = {"at": at.replace(minute=number // 4), "na me%": f"{NAMES[number % 6]} {number:03}"}
            connected.execute(table.insert().values(**values, n=number, price=Decimal(number) / 4))


def plain(rows: Any) -> list[dict[str, Any]]:
    return sorted((row if isinstance(row, dict) else row.asDict() for row in rows), key=lambda row: row["n"])


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> sa.Engine:
    server: SqlServer = request.getfixturevalue(request.param)
    return connect(server, server.new_database(), monkeypatch)


def test_spark_reads_exactly_the_rows_of_each_batch_and_reads_them_in_ranges(
    spark: SparkSession, engine: sa.Engine
) -> None:
    fill(engine, 50)
    options: dict[str, Any] = {"order_by": ["at", "na me%"], "max_rows_per_batch": 21, "rows_per_read": 5}
    source = SqlSource("shop", "Orders %", **options)
    found: list[dict[str, Any]] = []
    counts, place = [], None
    while (batch := source.initialize_transaction(1, place)) is not None:
        frame: Any = source.emit_batch(ATTEMPT, batch.metadata, spark)
        rows = plain(frame.collect())
        without: Any = source.emit_batch(ATTEMPT, batch.metadata)
        assert rows == plain(without)
        # What the user's application filters is filtered by Spark, as Spark compares texts.
        assert frame.where("`na me%` LIKE 'IT%'").count() == 0
        counts.append((len(rows), frame.rdd.getNumPartitions()))
        found, place = found + rows, batch.position
        source.close()
    assert counts == [(21, 5), (21, 5), (8, 2)]
    assert sorted(row["n"] for row in found) == list(range(50))
    assert {row["n"]: row["price"] for row in found}[5] == Decimal("1.25")


def test_the_reader_on_the_page_reads_a_day_in_hourly_parts(
    spark: SparkSession, postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connect(postgres, postgres.new_database(), monkeypatch)
    with engine.begin() as connected:
        minutes = (
            "SELECT n, '2026-01-01T00:00:00Z'::timestamptz + n * interval '10 minutes' FROM generate_series(0, 200) n"
        )
        connected.execute(sa.text(f"CREATE TABLE orders (n, ordered_at) AS {minutes}"))
    page = (Path(__file__).parents[2] / "docs/howto/read-a-database-under-spark.md").read_text()
    (code,) = re.findall(r"```python\n# dags/shop_reading.py\n(.*?)```", page, re.DOTALL)
    named: dict[str, Any] = {}
    exec(code, named)
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)
    frame = named["orders"](start, start + timedelta(days=1), spark)
    assert sorted(row["n"] for row in frame.collect()) == list(range(144))
    assert frame.rdd.getNumPartitions() == 24


@pytest.mark.long
def test_times_from_mariadb_do_not_depend_on_the_time_zone_of_the_jvm(
    spark: SparkSession, mariadb: LocalMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    before = zones.getDefault()
    engine = connect(mariadb, mariadb.new_database(), monkeypatch)
    with engine.begin() as connected:
        connected.exec_driver_sql("SET time_zone = '+00:00'")
        connected.exec_driver_sql(
            "CREATE TABLE seen (at TIMESTAMP(6) NOT NULL, id INT PRIMARY KEY, wall DATETIME NULL, UNIQUE (at, id))"
        )
        connected.exec_driver_sql(
            "INSERT INTO seen VALUES ('2026-01-01 12:00:00.25', 1, '2026-03-08 02:30:00'), "
            "('2026-07-01 12:00:00', 2, NULL)"
        )
    source = SqlSource("shop", f"{engine.url.database}.seen", order_by=["at", "id"], rows_per_read=1)
    try:
        zones.setDefault(zones.getTimeZone("America/New_York"))
        frame: Any = source.emit_batch(ATTEMPT, taken(source).metadata, spark)
        found = frame.selectExpr("id", "unix_micros(at) AS at", "CAST(wall AS STRING) AS wall").collect()
    finally:
        zones.setDefault(before)
        source.close()
    assert frame.columns == ["at", "id", "wall"]
    assert sorted((row.id, row.at, row.wall) for row in found) == [
        (1, 1_767_268_800_250_000, "2026-03-08 02:30:00"),
        (2, 1_782_907_200_000_000, None),
    ]


@pytest.fixture
def orders(postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> sa.Engine:
    engine = connect(postgres, postgres.new_database(), monkeypatch)
    with engine.begin() as connected:
        connected.exec_driver_sql("CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, amount INTEGER)")
        connected.exec_driver_sql("INSERT INTO orders (amount) SELECT n FROM generate_series(1, 20) n")
    return engine


def taken(source: SqlSource | PartitionedSqlSource) -> Batch:
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    return batch


def test_rows_deleted_while_spark_reads_them_are_reported_as_missing_after_the_job(
    spark: SparkSession, orders: sa.Engine
) -> None:
    source = SqlSource("shop", "orders", columns=["amount"], rows_per_read=6)
    batch = taken(source)
    frame: Any = source.emit_batch(ATTEMPT, batch.metadata, spark)
    with orders.begin() as connected:
        connected.exec_driver_sql("DELETE FROM orders WHERE id IN (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)")
    assert sorted(row["amount"] for row in frame.collect()) == list(range(1, 21))
    assert frame.columns == ["amount"]
    assert of_postgres.POSTGRES_PASSWORD not in frame._jdf.queryExecution().toString()
    assert frame.count() == 20
    source.close()
    with pytest.raises(SourceError, match="had 20 rows after the beginning up to 20, but now has 9"):
        source.emit_batch(ATTEMPT, batch.metadata, spark)
    source.close()


def test_open_sessions_of_spark_do_not_delay_a_batch(spark: SparkSession, orders: sa.Engine) -> None:
    with orders.begin() as connected:
        connected.exec_driver_sql("CREATE TABLE given (id INTEGER PRIMARY KEY)")
        connected.exec_driver_sql("INSERT INTO given SELECT n FROM generate_series(1, 4) n")
    source = SqlSource("shop", "given", patience=0, max_rows_per_batch=2)
    first = taken(source)
    source.emit_batch(ATTEMPT, first.metadata, spark)  # in a transaction that is open until `close`
    assert source.initialize_transaction(2, first.position) is not None
    source.close()


@pytest.mark.lead
def test_the_tables_of_a_partitioned_source_are_read_as_one_data_frame(spark: SparkSession, orders: sa.Engine) -> None:
    with orders.begin() as connected:
        connected.exec_driver_sql("CREATE TABLE more (id BIGSERIAL PRIMARY KEY, amount INTEGER)")
        connected.exec_driver_sql("INSERT INTO more (amount) VALUES (100)")
    source = PartitionedSqlSource("shop", ["orders", "more"])
    frame: Any = source.emit_batch(ATTEMPT, taken(source).metadata, spark)
    assert sorted(row["amount"] for row in frame.collect()) == [*range(1, 21), 100]
    source.close()


@pytest.mark.long
def test_a_database_that_spark_cannot_reach_causes_a_one_line_error_without_the_password(
    spark: SparkSession, orders: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SqlSource("shop", "orders")
    batch = taken(source)
    # Python's driver understands it, Java's does not.
    monkeypatch.setenv(
        "AIRFLOW_CONN_SHOP", _with(orders, {"sslmode": "disable", "options": "-c no.such=x -c role=nobody"})
    )
    with pytest.raises(SourceError) as error:
        source.emit_batch(ATTEMPT, batch.metadata, spark)
    assert "\n" not in str(error.value)
    assert of_postgres.POSTGRES_PASSWORD not in str(error.value)


def _with(engine: sa.Engine, extra: dict[str, str]) -> str:
    url = engine.url
    known = {"host": url.host, "port": url.port, "login": url.username, "password": url.password}
    return connection("postgres", **known, schema=url.database, extra=extra)
