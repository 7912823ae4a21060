"""The source suite on tables of PostgreSQL, SQLite, MariaDB and MySQL: by id, by time, and in shards."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_tx.sources.sql.source import PartitionedSqlSource, SqlSource
from airflow_tx.testing.airflow import connection
from airflow_tx.testing.suites.source_case import Row
from airflow_tx.testing.suites.source_suite import SourceSuite
from tests.servers import mariadb as of_mariadb
from tests.servers import postgres as of_postgres
from tests.servers.mariadb import LocalMariaDB
from tests.servers.mysql import LocalMySQL
from tests.servers.postgres import LocalPostgres

ID = {
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
}


def postgres_connection(server: LocalPostgres, database: str) -> str:
    return connection(
        "postgres",
        host="127.0.0.1",
        port=server.port,
        login=of_postgres.POSTGRES_USER,
        password=of_postgres.POSTGRES_PASSWORD,
        schema=database,
    )


class Shop:
    """A database with tables of orders, as a connection of Airflow."""

    def __init__(self, url: str, connection: str) -> None:
        self.connection = connection
        self.engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        self.number = 0

    def run(self, statement: str, **values: object) -> None:
        with self.engine.begin() as connected:
            connected.execute(sa.text(statement), values)

    def make(self, table: str) -> None:
        kind = ID[self.engine.dialect.name]
        self.run(f"CREATE TABLE {table} (id {kind}, product VARCHAR(40) NOT NULL, amount INTEGER)")

    def append(self, table: str, count: int) -> list[Row]:
        with self.engine.begin() as connected:
            for number in range(self.number, self.number + count):
                values = {"product": f"it's a {number}", "amount": number}
                connected.execute(sa.text(f"INSERT INTO {table} (product, amount) VALUES (:product, :amount)"), values)
            self.number += count
            query = f"SELECT id, product, amount FROM {table} ORDER BY id DESC LIMIT {count}"
            return [dict(row) for row in reversed(connected.execute(sa.text(query)).mappings().all())]


def _mysql_shop(server: LocalMariaDB) -> Shop:
    database = server.new_database()
    address = {"host": "127.0.0.1", "port": server.port, "schema": database}
    known = connection("mysql", login=of_mariadb.MARIADB_USER, password=of_mariadb.MARIADB_PASSWORD, **address)
    return Shop(server.url(database), known)


class TestSqlSource(SourceSuite):
    """On PostgreSQL."""

    kind = "transactional"
    secrets = (of_postgres.POSTGRES_PASSWORD,)

    @pytest.fixture(autouse=True)
    def place(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = shop
        shop.make("orders")
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", shop.connection)

    @pytest.fixture
    def shop(self, postgres: LocalPostgres) -> Shop:
        database = postgres.new_database()
        return Shop(postgres.url(database), postgres_connection(postgres, database))

    def make(self) -> SqlSource:
        return SqlSource("shop", "orders", kind=self.kind, max_rows_per_batch=3, rows_per_read=2)

    def add(self) -> list[Row]:
        return self.data.append("orders", 8)

    def lose_rows(self) -> None:
        self.data.run("DELETE FROM orders WHERE id = 2")


@pytest.mark.long
class TestSqlSourceOnMariaDB(TestSqlSource):
    secrets = (of_mariadb.MARIADB_PASSWORD,)

    @pytest.fixture
    def shop(self, mariadb: LocalMariaDB) -> Shop:
        return _mysql_shop(mariadb)


@pytest.mark.long
class TestSqlSourceOnMySQL(TestSqlSourceOnMariaDB):
    @pytest.fixture
    def shop(self, mysql: LocalMySQL) -> Shop:
        return _mysql_shop(mysql)


class TestSqlSourceOnSqlite(TestSqlSource):
    @pytest.fixture
    def shop(self, tmp_path: Path) -> Shop:
        path = tmp_path / "a shop?%41.db"
        engine = sa.URL.create("sqlite", database=str(path)).render_as_string()
        return Shop(engine, connection("sqlite", host=str(path)))


class TestSqlSourceByTime(SourceSuite):
    """Two rows share each time, and the limit cuts between them."""

    @pytest.fixture(autouse=True)
    def place(self, postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
        database = postgres.new_database()
        self.shop = Shop(postgres.url(database), postgres_connection(postgres, database))
        self.shop.run("CREATE TABLE seen (at TIMESTAMPTZ NOT NULL, id TEXT NOT NULL, PRIMARY KEY (at, id))")
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", self.shop.connection)
        self.at = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def make(self) -> SqlSource:
        return SqlSource("shop", "public.seen", order_by=["at", "id"], max_rows_per_batch=3, kind="opaque")

    def add(self) -> list[Row]:
        rows = []
        for _ in range(4):
            self.at += timedelta(microseconds=1)
            rows += [{"at": self.at, "id": name} for name in ("50%", "it's \\ é")]
        for row in rows:
            self.shop.run("INSERT INTO seen VALUES (:at, :id)", **row)
        return rows

    def lose_rows(self) -> None:
        self.shop.run("DELETE FROM seen WHERE at = (SELECT min(at) FROM seen) AND id = '50%'")


@pytest.mark.lead
@pytest.mark.worth("two databases a test, as shards have them")
class TestPartitionedSqlSource(SourceSuite):
    """Two shards, and a table that comes later."""

    kind = "transactional"
    secrets = (of_postgres.POSTGRES_PASSWORD,)

    @pytest.fixture(autouse=True)
    def place(self, postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shops, self.tables = [], ["orders"]
        for number in (1, 2):
            database = postgres.new_database()
            shop = Shop(postgres.url(database), postgres_connection(postgres, database))
            shop.number = 1_000 * number
            shop.make("orders")
            self.shops.append(shop)
            monkeypatch.setenv(f"AIRFLOW_CONN_SHARD_{number}", shop.connection)

    def make(self) -> PartitionedSqlSource:
        return PartitionedSqlSource(["shard_1", "shard_2"], self.tables, kind=self.kind, max_rows_per_batch=6)

    def add(self) -> list[Row]:
        return [row for shop in self.shops for row in shop.append("orders", 5)]

    def add_partition(self) -> list[Row]:
        for shop in self.shops:
            shop.make("returns")
        self.tables = ["orders", "returns"]
        return self.shops[1].append("returns", 2)

    def lose_partition(self) -> None:
        self.shops[1].run("ALTER TABLE orders RENAME TO away")

    def return_partition(self) -> None:
        self.shops[1].run("ALTER TABLE away RENAME TO orders")

    def lose_rows(self) -> None:
        self.shops[0].run("DELETE FROM orders WHERE id = 2")


@pytest.mark.long
class TestOpaquePartitionedSqlSource(TestPartitionedSqlSource):
    kind = "opaque"
