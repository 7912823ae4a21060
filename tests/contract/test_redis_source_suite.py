"""The source suite over numbered messages, lists and streams, on real Redis servers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from airflow_tx.sources.api import Source
from airflow_tx.sources.redis.list import RedisListSource
from airflow_tx.sources.redis.numbered import RedisNumberedSource
from airflow_tx.sources.redis.stream import RedisStreamSource
from airflow_tx.testing.suites.source_case import Row
from airflow_tx.testing.suites.source_suite import SourceSuite
from tests.servers.redis import REDIS_PASSWORD, LocalRedis


@pytest.fixture(scope="module")
def servers() -> Iterator[list[LocalRedis]]:
    """Two servers that lose nothing when they end."""
    with LocalRedis(persistence="aof") as one, LocalRedis(persistence="aof") as other:
        yield [one, other]


class _OnTwoServers(SourceSuite):
    """Each test has keys of its own on both of them."""

    secrets: ClassVar[tuple[str, ...]] = (REDIS_PASSWORD, "127.0.0.1")
    knows_what_is_gone = True
    kind = "transactional"

    @pytest.fixture(autouse=True)
    def place(self, servers: list[LocalRedis], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.servers = dict(zip(("redis_a", "redis_b"), servers, strict=True))
        for conn_id, server in self.servers.items():
            there = {"conn_type": "redis", "host": "127.0.0.1", "port": server.port, "password": REDIS_PASSWORD}
            monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(there))
        self.key = f"k{uuid.uuid4().hex[:8]}:"
        self.conn_ids, self.keys, self.number = ["redis_a", "redis_b"], [self.key], 0
        self.begin()
        yield
        self.return_partition()

    def begin(self) -> None:
        """What is there before the first message."""

    def put(self, client: Any, key: str, number: int) -> tuple[str, Any]:
        """Add one message; its row's column and value of the place."""
        raise NotImplementedError

    def add(self) -> list[Row]:
        return [row for conn_id in self.conn_ids for key in self.keys for row in self.append(conn_id, key, 7)]

    def append(self, conn_id: str, key: str, count: int) -> list[Row]:
        client, rows = self.servers[conn_id].client(), []
        for _ in range(count):
            self.number += 1
            column, place = self.put(client, key, self.number)
            shown = self.message(self.number)
            rows.append({"partition": f"{conn_id}:{key}", column: place, "message": shown})
        return rows

    def message(self, number: int) -> Any:
        """What a row of it has."""
        return f"tweet {number}"

    def add_partition(self) -> list[Row]:
        self.keys.append(f"{self.key}more:")
        self.begin()
        return [row for conn_id in self.conn_ids for row in self.append(conn_id, self.keys[-1], 2)]

    def lose_partition(self) -> None:
        self.servers["redis_b"].kill()

    def return_partition(self) -> None:
        self.servers["redis_b"].start()


class TestNumberedMessages(_OnTwoServers):
    def begin(self) -> None:
        for conn_id in self.conn_ids:
            self.servers[conn_id].client().setnx(f"{self.keys[-1]}NEXT_WRITE", 1)

    def make(self) -> Source:
        return RedisNumberedSource(
            self.conn_ids, prefix=self.keys, max_rows_per_batch=6, kind=self.kind, move_cursor=True
        )

    def put(self, client: Any, key: str, number: int) -> tuple[str, Any]:
        place = int(client.get(f"{key}NEXT_WRITE"))
        client.mset({f"{key}{place}": self.message(number), f"{key}NEXT_WRITE": place + 1})
        return "number", place

    def lose_rows(self) -> None:
        self.servers["redis_a"].client().delete(f"{self.key}2")


@pytest.mark.long
class TestOpaqueNumberedMessages(TestNumberedMessages):
    kind = "opaque"


class TestLists(_OnTwoServers):
    def make(self) -> Source:
        return RedisListSource(self.conn_ids, lists=self.keys, max_rows_per_batch=6, kind=self.kind)

    def put(self, client: Any, key: str, number: int) -> tuple[str, Any]:
        return "number", client.rpush(key, self.message(number)) - 1

    def lose_rows(self) -> None:
        self.servers["redis_a"].client().ltrim(self.key, 0, 1)


@pytest.mark.long
class TestOpaqueLists(TestLists):
    kind = "opaque"


class TestStreams(_OnTwoServers):
    def make(self) -> Source:
        return RedisStreamSource(self.conn_ids, self.keys, max_rows_per_batch=6, kind=self.kind)

    def put(self, client: Any, key: str, number: int) -> tuple[str, Any]:
        return "id", client.xadd(key, self.message(number)).decode()

    def message(self, number: int) -> Any:
        return {"tweet": str(number), "user": "@ann"}

    def lose_rows(self) -> None:
        client = self.servers["redis_a"].client()
        client.xdel(self.key, client.xrange(self.key, count=2)[1][0])


@pytest.mark.long
class TestOpaqueStreams(TestStreams):
    kind = "opaque"
