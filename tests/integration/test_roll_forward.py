"""A state of a real database that came back from a backup, written again from the journal."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import StateBehind
from airflow_tx.ledger.audit.rebuild import state_lost
from airflow_tx.state import Aggregator, Max, Sum
from airflow_tx.state.redis.state import RedisState
from airflow_tx.state.sql.state import SqlState
from airflow_tx.transaction.commit import roll_forward as module
from tests.integration.databases import query
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis
from tests.unit.bench import CountingStore
from tests.unit.commit.backups import ADA, RollForwardTests, rolled, values
from tests.unit.commit.conftest import make, state
from tests.unit.commit.restated_run import Makes, begun, committed, rows
from tests.unit.commit.run import killed_before_the_mark
from tests.unit.conftest import log

__all__ = ["log", "make", "state"]
BESIDE = ("airflow_tx_fence", "airflow_tx_receipts", "airflow_tx_portions")


class InDatabase:
    """A state in a database of a server; a backup is a copy of its tables."""

    def __init__(self, url: str, made: Aggregator | None = None, kind: str = "opaque") -> None:
        self.url = url
        self.state: Any = SqlState.from_url(
            url, table="words", keys=["word"], values={"count": made or Sum()}, kind=kind
        )
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

    def lose(self, *txids: int) -> None:
        for txid in txids:
            query(self.url, f"DELETE FROM words WHERE tx_txid = {txid}")

    def beside(self) -> Any:
        return query(self.url, "SELECT * FROM airflow_tx_fence")

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

    def lose(self, *txids: int) -> None:
        """Lose the values of the words b, c and e, which these transactions have written."""
        with self._server.client() as client:
            client.hdel(f"{{{self.prefix}}}:values", '["b"]', '["c"]', '["e"]')

    def beside(self) -> Any:
        with self._server.client() as client:
            return client.hgetall(f"{{{self.prefix}}}:fence")

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
    return Makes(make, place)


class TestDatabases(RollForwardTests):
    """In PostgreSQL, MariaDB and Redis."""


@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize("kind", ["largest", "transactional"])
@pytest.mark.parametrize("server", ["postgres", pytest.param("mariadb", marks=pytest.mark.lead)])
def test_values_restored_without_their_fence_are_refused_until_a_person_accepts_them(
    make: Any, request: pytest.FixtureRequest, server: str, kind: str, died: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = request.getfixturevalue(server)
    made = Max() if kind == "largest" else Sum()
    place = InDatabase(running.url(running.new_database()), made, "opaque" if kind == "largest" else kind)
    run = torn(make, place)
    before = place.beside()
    if died:
        with monkeypatch.context() as patch:
            patch.setattr(module, "failpoint", killed)
            with pytest.raises(OSError, match="killed"):
                rolled(run, place)
        assert place.beside() != before
    (told,) = rolled(run, place)
    assert "from different moments" in told
    assert place.beside() == before
    goes_on_once_accepted(run, place)


def test_lost_redis_keys_are_refused_after_a_roll_forward_until_a_person_accepts_them(
    make: Any, redis: LocalRedis
) -> None:
    place = InRedis(redis)
    run = torn(make, place)
    before = place.beside()
    assert rolled(run, place) == []
    assert place.beside() == before
    goes_on_once_accepted(run, place)


def torn(make: Any, place: Any) -> Any:
    """Lose the values of transactions 2 and 3 while transaction 4 has written, and is not marked."""
    made = Makes(make, place)
    for words in ("a", "b", "ce"):
        committed(made, rows(**dict.fromkeys(words, 1)))
    run = begun(made, rows(d=4))
    killed_before_the_mark(run.commit())
    place.lose(2, 3)
    with pytest.raises(StateBehind):
        run.commit_now()
    return run


def goes_on_once_accepted(run: Any, place: Any) -> None:
    with pytest.raises(StateBehind):
        run.commit_now()
    run.spec.ledger(run.spec.memory).run(state_lost, place.state.name, ADA)
    run.commit_now()
    assert values(place) == {"a": 1, "d": 4}


def killed(name: str, **context: Any) -> None:
    raise OSError("killed")
