"""The commands that a person types after each loss of each kind of state on a server, as the refusals advise."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.state import MemcachedState, RedisGuard, RedisState, SqlTable, Sum
from airflow_tx.state.persisted import as_aggregate
from tests.integration.databases import query
from tests.servers.memcached import LocalMemcached
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis
from tests.unit.bench import CountingStore
from tests.unit.commit.conftest import make, state
from tests.unit.commit.kinds import (
    BEFORE_THE_LOSS,
    LEDGER,
    LOST,
    ON_SERVERS,
    RESTATE,
    ROLL,
    UNNOTICED,
    Kind,
    Story,
    without_txids,
)
from tests.unit.conftest import log

__all__ = ["log", "make", "state"]


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


class InRedis(Kind):
    """A state in Redis: its keys are copied and put back."""

    def __init__(self, server: LocalRedis) -> None:
        self._server = server
        self._keys = f"t{uuid.uuid4().hex[:8]}"
        self.state = self.opened(server.url(), self._keys)

    def backup(self) -> Callable[[], None]:
        with self._server.client() as client:
            kept = {key: client.dump(key) for key in client.keys(f"{{{self._keys}}}:*")}

        def restore() -> None:
            self.lose()
            with self._server.client() as client:
                for key, content in kept.items():
                    client.restore(key, 0, content)

        return restore

    def opened(self, url: str, prefix: str) -> Any:
        return RedisState.from_url(url, prefix=prefix, keys=["word"], values={"count": Sum()})

    def lose(self) -> None:
        with self._server.client() as client:
            for key in client.keys(f"{{{self._keys}}}:*"):
                client.delete(key)


class GuardedInRedis(InRedis):
    """Commands of one's own behind a fence in Redis."""

    def opened(self, url: str, prefix: str) -> Any:
        own = f"{{{prefix}}}:own"
        return RedisGuard.from_url(
            url, prefix=prefix, commands=lambda rows: [["HINCRBY", own, row["word"], row["count"]] for row in rows]
        )

    def content(self) -> Any:
        with self._server.client() as client:
            return sorted(client.hgetall(f"{{{self._keys}}}:own").items())


class InMemcached(Kind):
    """A state in Memcached, which has no fence."""

    def __init__(self, server: LocalMemcached) -> None:
        prefix = f"t{uuid.uuid4().hex[:8]}"
        self._server = server
        self.state = as_aggregate(
            MemcachedState.opaque([server.address], prefix=prefix), ["word"], {"count": Sum()}, None
        )

    def content(self) -> Any:
        return self.state.multi_get([["a"], ["b"], ["c"]])

    def backup(self) -> Callable[[], None]:
        return self.lose

    def lose(self) -> None:
        host, port = self._server.address.split(":")
        with socket.create_connection((host, int(port))) as connected:
            connected.sendall(b"flush_all\r\n")
            assert connected.recv(16) == b"OK\r\n"


class TableInPostgres(Kind):
    """A table of PostgreSQL, which is copied with what is beside it."""

    def __init__(self, server: LocalPostgres, **options: Any) -> None:
        self._url = server.url(server.new_database())
        self._tables = ("words", "airflow_tx_fence", "airflow_tx_receipts", "airflow_tx_portions")
        self._options = options
        self.state = SqlTable.from_url(self._url, table="words", **options)

    def backup(self) -> Callable[[], None]:
        kept = f"kept{uuid.uuid4().hex[:8]}"
        for table in self._tables:
            query(self._url, f"CREATE TABLE {kept}_{table} AS SELECT * FROM {table}")

        def restore() -> None:
            for table in self._tables:
                query(self._url, f"DELETE FROM {table}")
                query(self._url, f"INSERT INTO {table} SELECT * FROM {kept}_{table}")

        return restore

    def lose(self) -> None:
        for table in self._tables:
            query(self._url, f"DROP TABLE {table}")
        self.state = SqlTable.from_url(self._url, table="words", **self._options)


KINDS: dict[str, tuple[str, Callable[[Any], Kind]]] = {
    "RedisState": ("redis", InRedis),
    "RedisGuard": ("redis", GuardedInRedis),
    "MemcachedState": ("memcached", InMemcached),
    "SqlTable": ("postgres", TableInPostgres),
    "SqlTable without rows in the journal": ("postgres", partial(TableInPostgres, journal_rows=False)),
}
ANSWERS: dict[str, dict[str, list[str]]] = {
    "RedisState": {"backup": [ROLL], "lost": [ROLL], "ledger lost": [LEDGER], "restated": [ROLL]},
    "RedisGuard": {event: BEFORE_THE_LOSS[event] for event in ("backup", "lost", "ledger lost")},
    "MemcachedState": UNNOTICED,
    "SqlTable": {"backup": [ROLL], "lost": [ROLL], "ledger lost": [LEDGER], "restated": [ROLL]},
    "SqlTable without rows in the journal": {event: [RESTATE] for event in ("backup", "lost", "restated")},
}


@pytest.fixture(scope="module")
def memcached() -> Any:
    with LocalMemcached() as server:
        yield server


@pytest.fixture(autouse=True)
def no_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "runs_of", lambda dag_id, run_ids: {})


@pytest.mark.parametrize(("name", "event"), [(kind, event) for kind, row in ANSWERS.items() for event in row])
def test_the_suggested_commands_recover_each_kind_of_state_on_a_server(
    make: Any, request: pytest.FixtureRequest, name: str, event: str
) -> None:
    fixture, made = KINDS[name]
    story = Story(make, made(request.getfixturevalue(fixture)))
    truth = getattr(story, event.replace(" ", "_"))()
    story.goes_on()
    expected = ANSWERS[name][event]
    assert story.typed == expected
    if RESTATE in expected:
        assert without_txids(story.mended) == without_txids(truth)
    else:
        assert (story.mended == truth) is (LOST not in expected and ANSWERS[name] is not UNNOTICED)


def test_each_public_state_that_uses_a_server_has_a_row_in_the_recovery_table() -> None:
    assert ON_SERVERS <= ANSWERS.keys() == KINDS.keys()
