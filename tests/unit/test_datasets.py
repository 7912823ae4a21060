"""Each public source and state names its place as OpenLineage does, or has a reason why not."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy.engine import make_url

import airflow_tx
from airflow_tx import (
    FileSource,
    KafkaSource,
    MemorySource,
    PartitionedFileSource,
    PartitionedSqlSource,
    RabbitQueueSource,
    RedisListSource,
    RedisNumberedSource,
    RedisStreamSource,
    SqlSource,
    UpstreamSource,
    state,
)
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import StateUnavailable
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.operators.commit import LineageOperator
from airflow_tx.sources.api import Source
from airflow_tx.state import (
    CachedMap,
    Count,
    DeltaTable,
    MemcachedState,
    MemoryMap,
    OpaqueMap,
    RedisMap,
    RedisState,
    RollBackMap,
    SnapshottableMap,
    SqlState,
    SqlTable,
    Sum,
)
from airflow_tx.state.sql.mysql import MySql
from airflow_tx.state.sql.postgres import Postgres
from airflow_tx.transaction.commit.update import partition_persist, persistent_aggregate

SECRET = "s3cr3t"
USER = "ulf"
CONNECTIONS: dict[str, dict[str, Any]] = {
    "broker": {"conn_type": "amqp", "host": "rabbit", "schema": "shop"},
    "cache": {"conn_type": "memcached", "host": "m1,m2:11212"},
    "kafka": {
        "conn_type": "kafka",
        "extra": {"bootstrap.servers": "SASL_SSL://k1:9093,k2:9093", "security.protocol": "SASL_SSL"},
    },
    "redis": {"conn_type": "redis", "host": "r1", "port": 6380, "extra": {"db": 3}},
}
COUNTS: dict[str, Any] = {"keys": ["word"], "values": {"n": Count()}}
SQLITE = "sqlite"

PLACES: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "FileSource": (lambda: FileSource("/in/days/*/*.csv"), [("file", "/in/days")]),
    "PartitionedFileSource": (
        lambda: PartitionedFileSource("s3a://bucket/in/*/*.csv"),
        [("s3://bucket", "in")],
    ),
    "KafkaSource": (
        lambda: KafkaSource("kafka", topic="orders,returns"),
        [("kafka://k1:9093", "orders"), ("kafka://k1:9093", "returns")],
    ),
    "RabbitQueueSource": (lambda: RabbitQueueSource("broker", queue="orders"), [("amqp://rabbit:5672", "shop.orders")]),
    "RedisListSource": (lambda: RedisListSource("redis", lists="orders"), [("redis://r1:6380", "3.orders")]),
    "RedisNumberedSource": (
        lambda: RedisNumberedSource("redis", databases=[0, 1]),
        [("redis://r1:6380", "0"), ("redis://r1:6380", "1")],
    ),
    "RedisStreamSource": (lambda: RedisStreamSource("redis", streams="orders"), [("redis://r1:6380", "3.orders")]),
    "SqlSource": (lambda: SqlSource("shop", "orders"), [(SQLITE, "{shop}.main.orders")]),
    "PartitionedSqlSource": (
        lambda: PartitionedSqlSource("shop", ["orders", "returns"]),
        [(SQLITE, "{shop}.main.orders"), (SQLITE, "{shop}.main.returns")],
    ),
    "UpstreamSource": (
        lambda: UpstreamSource(SqlTable("shop", table="orders"), topology="orders"),
        [(SQLITE, "{shop}.main.orders")],
    ),
    "SqlState": (lambda: SqlState("shop", table="totals", **COUNTS), [(SQLITE, "{shop}.main.totals")]),
    "SqlTable": (lambda: SqlTable("shop", table="orders"), [(SQLITE, "{shop}.main.orders")]),
    "DeltaTable": (lambda: DeltaTable("s3a://lake/bronze/orders"), [("s3://lake", "bronze/orders")]),
    "RedisState": (lambda: RedisState("redis", prefix="words", **COUNTS), [("redis://r1:6380", "3.words")]),
    "MemcachedState": (
        lambda: persistent_aggregate(None, state=MemcachedState.opaque("cache", prefix="w:"), **COUNTS).state,
        [("memcached://m1:11211,m2:11212", "w:")],
    ),
    "MapState": (
        lambda: persistent_aggregate(None, state=OpaqueMap(CachedMap(RedisMap("redis", prefix="w"))), **COUNTS).state,
        [("redis://r1:6380", "3.w")],
    ),
}
"""A source or a state of each name, and its datasets."""
NONE = {
    "DataIntervalSource": "the user's reader knows what it reads",
    "RunPartitionSource": "the user's reader knows what it reads",
    "MemorySource": "its rows are in the DAG file",
    "MemoryState": "its values are in this process",
    "StaticState": "nothing is written to it",
    "RedisGuard": "the user's script knows what it writes",
    "SqlGuard": "the user's statements know what they write",
    "QueryableState": "a base class",
    "FencedState": "a base class",
    "State": "a base class",
    "CommittedTable": "a base class",
}
"""Why another one has none."""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the connections, each with a login."""
    path = str(tmp_path / "shop.db")
    for name, given in {**CONNECTIONS, "shop": {"conn_type": "sqlite", "host": path}}.items():
        login = {"login": USER, "password": SECRET}
        monkeypatch.setenv(f"AIRFLOW_TX_CONN_{name}", json.dumps({**login, **given}))
    return path


def named(place: Any) -> Sequence[Dataset]:
    return place.datasets() if isinstance(place, Source) else [place.dataset()]


@pytest.mark.parametrize("name", PLACES)
def test_the_name_of_a_dataset_contains_no_user_and_no_password(name: str, shop: str) -> None:
    make, expected = PLACES[name]
    found = named(make())
    assert found == [(namespace, place.replace("{shop}", shop)) for namespace, place in expected]
    assert all(isinstance(each, Dataset) for each in found)
    assert not [each for each in found if SECRET in str(each) or USER in str(each)]


def test_each_public_source_and_state_has_a_dataset_or_a_documented_reason() -> None:
    bases = {"Source", "TransactionalSource", "PartitionedTransactionalSource", "OpaquePartitionedTransactionalSource"}
    public = {name: getattr(airflow_tx, name) for name in airflow_tx.__all__}
    sources = {name for name, each in public.items() if inspect.isclass(each) and issubclass(each, Source)}
    states = {name for name in state.__all__ if name.endswith(("State", "Guard", "Table"))}
    assert (sources - bases | states) == PLACES.keys() | NONE.keys()


@pytest.mark.parametrize(
    ("dialect", "url", "schema", "expected"),
    [
        (Postgres(), "postgresql://ulf:s3cr3t@db/shop", "public", ("postgres://db:5432", "shop.public.orders")),
        (MySql(), "mysql+pymysql://ulf:s3cr3t@db:3307/shop", "shop", ("mysql://db:3307", "shop.orders")),
    ],
)
def test_a_table_on_a_server_is_named_as_the_openlineage_specification_requires(
    dialect: Any, url: str, schema: str, expected: Any
) -> None:
    assert dialect.dataset(make_url(url), schema, "orders") == expected


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/lake/orders", ("file", "/lake/orders")),
        ("file:///lake/orders", ("file", "/lake/orders")),
        ("gcs://bucket/orders", ("gs://bucket", "orders")),
        ("abfs://container/orders", ("abfs://container", "orders")),
        ("s3://bucket", ("s3://bucket", "/")),
    ],
)
def test_a_folder_is_named_as_the_openlineage_specification_requires(uri: str, expected: Any) -> None:
    assert Dataset.of_folder(uri) == expected


@pytest.mark.parametrize("wrap", [SnapshottableMap, RollBackMap])
def test_a_state_that_wraps_a_map_has_the_dataset_of_the_map(wrap: Any) -> None:
    assert wrap(OpaqueMap(RedisMap("redis", prefix="w"))).dataset() == ("redis://r1:6380", "3.w")


def test_the_dataset_of_a_redis_socket_is_named_like_a_server() -> None:
    assert RedisMap.from_url("unix:///run/redis.sock", prefix="w").dataset() == ("redis:///run/redis.sock", "0.w")


class OwnState:
    """A state of the user's own, whose method of that name is another one."""

    def begin_commit(self, txid: int | None) -> None: ...

    def commit(self, txid: int | None) -> None: ...

    def update_state(self, rows: Any) -> None: ...

    def dataset(self) -> str:
        return "mine"


def test_custom_maps_and_states_have_no_dataset_unless_they_define_one() -> None:
    assert persistent_aggregate(None, state=OpaqueMap(MemoryMap()), **COUNTS).state.dataset() is None
    assert partition_persist(None, state=OwnState(), updater=OwnState()).state.dataset() is None


def test_a_state_and_a_source_of_the_same_table_have_the_same_dataset() -> None:
    orders = SqlTable("shop", table="Orders")
    assert [orders.dataset()] == UpstreamSource(orders, topology="orders").datasets()
    assert [orders.dataset()] == SqlSource("shop", "Orders").datasets()


# --- what a task keeps


BEGUN = Begun(TransactionAttempt(4, 1), [0, 1], 1, "", False)


class Away(MemorySource):
    """A source whose server is away."""

    asked = 0

    def datasets(self) -> list[Dataset]:
        type(self).asked += 1
        raise RuntimeError(SECRET)


class AwayTable(SqlTable):
    """A table whose database is away."""

    def dataset(self) -> Dataset:
        raise StateUnavailable(state=self.name, where="connection shop", reason="no route")


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let OpenLineage listen."""
    name = "airflow.providers.openlineage"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.mark.usefixtures("listening")
def test_a_dataset_that_cannot_be_computed_fails_no_task_and_is_logged_in_one_line(
    caplog: pytest.LogCaptureFixture, shop: str
) -> None:
    operator = LineageOperator()
    states = [AwayTable("shop", table="orders"), SqlState("shop", table="n", keys=[], values={"n": Sum()})]
    with caplog.at_level(logging.WARNING):
        operator.note_lineage("orders", BEGUN, source=Away({"a": []}), states=[*states, states[1]])
    assert operator._reads == []
    assert operator._writes == [(SQLITE, f"{shop}.main.n")]
    first, second = caplog.messages
    assert "OpenLineage gets no dataset for Away(" in first
    assert first.endswith("RuntimeError")
    assert SECRET not in first
    assert "no route" in second


def test_no_dataset_is_computed_unless_openlineage_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "airflow.providers.openlineage", raising=False)
    asked = Away.asked
    LineageOperator().note_lineage("orders", BEGUN, source=Away({"a": []}))
    assert Away.asked == asked
