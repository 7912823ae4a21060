"""What a DAG, a deferred task and an application hold of sources, states and triggers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest
from airflow._shared.module_loading import import_string

from airflow_tx import (
    DataIntervalSource,
    FileSource,
    KafkaSource,
    MemorySource,
    PartitionedFileSource,
    PartitionedSqlSource,
    RabbitQueueSource,
    RedisListSource,
    RedisNumberedSource,
    RedisStreamSource,
    RunPartitionSource,
    SqlSource,
)
from airflow_tx.base.compat.runs import IntervalSchedule
from airflow_tx.base.described import stored_name
from airflow_tx.coordinator.trigger import CoordinatorTrigger
from airflow_tx.sources.api import Source, rebuild
from airflow_tx.sources.run.data_interval import NextIntervalSource
from airflow_tx.sources.run.partition import IntervalSource
from airflow_tx.state import (
    Avg,
    CachedMap,
    Count,
    DeltaTable,
    Max,
    MemcachedState,
    MemoryMap,
    MemoryState,
    OpaqueMap,
    RedisGuard,
    RedisMap,
    RedisState,
    SqlGuard,
    SqlState,
    SqlTable,
    Sum,
    TransactionalMap,
)
from airflow_tx.state.persisted import PersistedState
from airflow_tx.state.trident import TridentAggregate
from airflow_tx.triggers.base import LedgerTrigger
from airflow_tx.triggers.order import OrderTrigger, ReadyTrigger
from airflow_tx.triggers.sensor import CommittedTrigger
from airflow_tx.triggers.turn import MessagesTrigger, TurnTrigger
from airflow_tx.triggers.watcher import CommitsTrigger
from tests.golden.written import check_golden

LIMITS: dict[str, Any] = {"max_rows_per_batch": 10, "max_bytes_per_batch": 1000, "target_seconds": 2.5}
MORE: dict[str, Any] = {"kind": "opaque", **LIMITS}
READER = "tests.golden.test_serialized.read"
OF_ROOMS: dict[type, list[str]] = {
    Source: ["airflow_tx.sources"],
    LedgerTrigger: ["airflow_tx.triggers", "airflow_tx.coordinator"],
}


def read(**_: Any) -> list[dict[str, Any]]:
    return []


def counted(rows: list[dict[str, Any]]) -> list[list[Any]]:
    return [["INCR", "n"] for _ in rows]


class Updater:
    def update_state(self, state: Any, rows: Any) -> None: ...


def sources() -> dict[str, Source]:
    """Each source by its shortest line, and with every argument."""
    return {
        "files": FileSource("data/*.csv"),
        "files, all": FileSource(
            "s3://bucket/data/*.json",
            files_per_batch=2,
            format="json",
            options={"mode": "FAILFAST"},
            schema="n INT",
            kind="opaque",
            max_bytes_per_batch=1000,
            conn_id="aws",
            spark_folder="s3a://bucket/data",
        ),
        "folders": PartitionedFileSource("data/*/*.csv", files_per_batch=1),
        "kafka": KafkaSource(topic="orders"),
        "kafka, all": KafkaSource(
            "kafka_shop",
            topic="orders,returns",
            starting="latest",
            value_schema="n INT",
            options={"minPartitions": 4},
            timeout=3.0,
            **MORE,
        ),
        "list": RedisListSource(lists="web"),
        "list, all": RedisListSource(["r1", "r2"], ["web", "app"], databases=[0, 1], schema="n INT", **MORE),
        "stream": RedisStreamSource(streams="orders"),
        "stream, all": RedisStreamSource(["r1", "r2"], ["a", "b"], databases=[0, 1], **MORE),
        "numbered": RedisNumberedSource(),
        "numbered, all": RedisNumberedSource("r1", prefix=["a:", "b:"], schema="n INT", move_cursor=True, **MORE),
        "table": SqlSource("shop", "orders"),
        "table, all": SqlSource(
            "shop",
            "public.orders",
            order_by=["day", "id"],
            columns=["id", "day", "n"],
            settle=3.0,
            patience=60.0,
            rows_per_read=7,
            **MORE,
        ),
        "tables": PartitionedSqlSource("shop", "orders"),
        "tables, all": PartitionedSqlSource(["shop_1", "shop_2"], ["orders", "returns"], order_by="id", **MORE),
        "queue": RabbitQueueSource("rabbit_shop", "orders"),
        "queue, all": RabbitQueueSource(
            "rabbit_shop",
            "orders",
            schema="n INT",
            identity="content",
            remember=10,
            max_deliveries=3,
            set_aside="dead",
            **LIMITS,
        ),
        "interval": DataIntervalSource(READER),
        "interval, all": DataIntervalSource(READER, {"table": "t"}, "opaque", in_order=True),
        "next interval": NextIntervalSource(READER, {"table": "t"}, "opaque", schedule=schedule()),
        "run partition": RunPartitionSource(READER, {"table": "t"}, "opaque"),
        "memory": MemorySource({"a": [{"n": 1}]}),
        "memory, all": MemorySource({"a": [{"n": 1}], "b": []}, per_batch=2, kind="opaque", schema="n INT"),
    }


def schedule() -> IntervalSchedule:
    from airflow.sdk import DAG, CronDataIntervalTimetable

    timetable = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
    start = datetime(2013, 1, 1, tzinfo=timezone.utc)
    return IntervalSchedule.of_dag(DAG("days", schedule=timetable, start_date=start, catchup=True))


def triggers() -> dict[str, LedgerTrigger]:
    where: dict[str, Any] = {
        "zookeeper_conn_id": "zk",
        "root": "/tx",
        "topology": "flights",
        "hold": 10.0,
        "since": 1.8e9,
    }
    slots = {"dag_id": "flights", "run_id": "r1"}
    return {
        "ready": ReadyTrigger(**where, max_pending=4, key="r1", slots=slots),
        "order": OrderTrigger(
            **where, max_pending=4, key="r1", after="2013-01-01T00:00:00+00:00", missing="2013-01-01T00:00:00+00:00"
        ),
        "turn": TurnTrigger(**where, txid=3, op="ab", mapped=["t"], waited=[["a", 1]]),
        "messages": MessagesTrigger(**where, txid=3, attempt=1, acker_store="redis", timeout=60.0, incarnation="life"),
        "committed": CommittedTrigger(**where, wanted={"txid": 3}),
        "commits": CommitsTrigger(**{**where, "hold": 0.0, "since": 0.0}, watcher="asset", every=2),
        "coordinator": CoordinatorTrigger(
            **where,
            dag_id="flights",
            source=["airflow_tx.sources.memory.MemorySource", {}],
            rules={"limit": 3},
            memory={},
            refresh=60.0,
        ),
    }


def states() -> dict[str, Any]:
    """Each state as a serialized DAG names it."""
    cached: Any = CachedMap(MemoryMap(), 5)
    values: dict[str, Any] = {"n": Sum(), "rows": Count(), "last": Max("timestamp"), "mean": Avg()}
    return {
        "sql": SqlState("db", table="s.totals", keys=["day"], values=values, kind="opaque", types={"day": "date"}),
        "redis": RedisState("cache", prefix="totals", keys=["word"], values={"n": Sum()}),
        "memory": MemoryState("totals", keys=["word"], values={"n": Sum()}),
        "sql guard": SqlGuard("db", name="counted", statements=[("INSERT INTO t VALUES (:n)", {"n": 1})]),
        "sql table": SqlTable("db", table="s.orders", types={"note": "text"}, add_columns=True),
        "redis guard": RedisGuard("cache", prefix="counted", commands=counted),
        "delta table": DeltaTable("s3://bucket/rows", partition_by=["day"], storage_options={"key": "secret"}),
        "map": TridentAggregate(OpaqueMap(MemoryMap()), keys=["word"], values={"n": Sum()}),
        "persisted": PersistedState(OpaqueMap(cached), Updater()),
        "redis map": TridentAggregate(
            TransactionalMap(RedisMap("cache", prefix="totals")), keys=["word"], values={"n": Sum()}
        ),
        "memcached": TridentAggregate(
            MemcachedState.opaque(["one:11211"], prefix="w:"), keys=["word"], values={"n": Sum()}
        ),
    }


def test_serialized_sources_match_the_golden_file() -> None:
    check_golden(
        "sources", {name: {"serialized": each.serialize(), "repr": repr(each)} for name, each in sources().items()}
    )


def test_a_source_can_be_rebuilt_from_its_serialized_form() -> None:
    for name, each in sources().items():
        assert rebuild(*each.serialize()).serialize() == each.serialize(), name


def test_serialized_states_match_the_golden_file() -> None:
    check_golden(
        "states", {name: {"serialized": each.serialize(), "repr": repr(each)} for name, each in states().items()}
    )


def test_serialized_triggers_match_the_golden_file() -> None:
    check_golden("triggers", {name: each.serialize() for name, each in triggers().items()})


def stored_classes(base: type) -> Iterator[type]:
    """Give the classes whose names a ledger, a descriptor or Airflow's database has."""
    for room in OF_ROOMS[base]:
        for module in walk_packages(import_module(room).__path__, f"{room}."):
            for each in vars(import_module(module.name)).values():
                own = inspect.isclass(each) and each.__module__ == module.name and not each.__name__.startswith("_")
                if own and issubclass(each, base) and not inspect.isabstract(each) and each is not IntervalSource:
                    yield each  # that one is made as one of its subclasses alone


@pytest.mark.parametrize("base", OF_ROOMS)
def test_a_stored_class_name_can_be_imported(base: type) -> None:
    found = list(stored_classes(base))
    assert [import_string(stored_name(each)) for each in found] == found


def test_the_stored_class_names_match_the_golden_file() -> None:
    check_golden(
        "stored_names", {base.__name__: sorted(set(map(stored_name, stored_classes(base)))) for base in OF_ROOMS}
    )
