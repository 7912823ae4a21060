"""A state of a real database that came back from a backup, written again from the journal."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.state import Sum
from airflow_tx.state.redis.state import RedisState
from airflow_tx.state.sql.state import SqlState
from tests.integration.databases import query
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis
from tests.stage import update
from tests.unit.bench import CountingStore
from tests.unit.commit.backups import RollForwardTests
from tests.unit.commit.conftest import make, state
from tests.unit.conftest import log

__all__ = ["log", "make", "state"]
BESIDE = ("airflow_tx_fence", "airflow_tx_receipts", "airflow_tx_portions")


class InDatabase:
    """A state in a database of a server; a backup is a copy of its tables."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.state: Any = SqlState.from_url(url, table="words", keys=["word"], values={"count": Sum()})
        self._copies = 0

    def backup(self) -> Callable[[], None]:
        self._copies += 1
        number = self._copies
        for table in ("words", *BESIDE):
            query(self.url, f"CREATE TABLE kept{number}_{table} AS SELECT * FROM {table}")
        return lambda: self._restore(number, ("words", *BESIDE))

    def _restore(self, number: int, tables: tuple[str, ...]) -> None:
        for table in tables:
            query(self.url, f"DELETE FROM {table}")
            query(self.url, f"INSERT INTO {table} SELECT * FROM kept{number}_{table}")

    def values_of(self, kept: Callable[[], None]) -> None:
        self.backup()
        now = self._copies
        kept()
        self._restore(now, BESIDE)

    def content(self) -> Any:
        names = [each["name"] for each in sa.inspect(sa.create_engine(self.url)).get_columns("words")]
        own = [name for name in names if name != "tx_generation"]
        return sorted(query(self.url, f"SELECT {', '.join(own)} FROM words"), key=str)


class InRedis:
    """A state in Redis; a backup is a copy of its keys."""

    def __init__(self, server: LocalRedis) -> None:
        self._server = server
        self.prefix = f"t{uuid.uuid4().hex[:8]}"
        self.state: Any = RedisState.from_url(server.url(), prefix=self.prefix, keys=["word"], values={"count": Sum()})

    def backup(self) -> Callable[[], None]:
        with self._server.client() as client:
            kept = {key: client.dump(key) for key in client.keys(f"{{{self.prefix}}}:*")}

        def restore() -> None:
            with self._server.client() as client:
                for key in client.keys(f"{{{self.prefix}}}:*"):
                    client.delete(key)
                for key, content in kept.items():
                    client.restore(key, 0, content)

        return restore

    def values_of(self, kept: Callable[[], None]) -> None:
        pytest.skip("Redis keeps no txid beside a value")

    def content(self) -> Any:
        with self._server.client() as client:
            return sorted(client.hgetall(f"{{{self.prefix}}}:values").items())


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.lead), "redis"])
def place(request: pytest.FixtureRequest) -> Any:
    server: Any = request.getfixturevalue(request.param)
    if isinstance(server, LocalRedis):
        return InRedis(server)
    assert isinstance(server, LocalPostgres | LocalMariaDB)
    return InDatabase(server.url(server.new_database()))


@pytest.fixture
def makes(make: Any, place: Any) -> Any:
    def made(run_id: str, **options: Any) -> Any:
        return make(run_id, **{"updates": [update(place.state)], **options})

    made.runs = {}  # type: ignore[attr-defined]
    return made


class TestDatabases(RollForwardTests):
    """In PostgreSQL, MariaDB and Redis."""
