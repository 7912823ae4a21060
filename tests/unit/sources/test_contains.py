"""`Source.contains`: what a person looks for with `airflow tx find`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_tx.operations.actions.search import search_ledger
from airflow_tx.sources.api import Source
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.sources.kafka.source import KafkaSource
from airflow_tx.sources.memory import MemorySource
from airflow_tx.sources.redis.list import RedisListSource
from airflow_tx.sources.redis.stream import RedisStreamSource
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.sources.run.partition import RunPartitionSource
from airflow_tx.sources.sql.source import PartitionedSqlSource, SqlSource
from airflow_tx.sources.sql.table import Rows
from tests.stage import Stage, begin_run
from tests.unit.bench import run_of

FILES = {"folder": "/data/days", "files": [{"name": "2013-05-04.csv", "size": 1, "digest": "d"}]}
OFFSETS = {"orders-0": {"topic_id": "t", "from": 10, "to": 20}, "orders-1": {"topic_id": "t", "from": 50, "to": 51}}
ENTRIES = {"web": {"after": "100-0", "to": "200-5", "quantity": 9}}
IDS = Rows((10,), ((15,), (20,)), (5, 5)).to_json()
KAFKA, SQL = KafkaSource("kafka", topic="orders"), SqlSource("db", table="orders", order_by="id")


@pytest.mark.parametrize(
    ("source", "metadata", "what", "expected"),
    [
        (FileSource("/data/days/*.csv"), FILES, "2013-05-04.csv", True),
        (FileSource("/data/days/*.csv"), FILES, "days/2013-05-04.csv", True),
        (FileSource("/data/days/*.csv"), FILES, "05-04.csv", False),
        (PartitionedFileSource("/data/*/*.csv"), {"days": FILES}, "/data/days/2013-05-04.csv", True),
        (PartitionedFileSource("/data/*/*.csv"), {"days": FILES}, "2013-05-05.csv", False),
        (KAFKA, OFFSETS, "orders-0:10", True),
        (KAFKA, OFFSETS, "orders-0:20", False),
        (KAFKA, OFFSETS, "orders-1:10", False),
        (KAFKA, OFFSETS, "orders-2:10", False),
        (KAFKA, OFFSETS, "50", True),
        (MemorySource({"a": []}), {"a": {"from": 0, "to": 2}}, "a:1", True),
        (RedisListSource(lists=["web"]), {"web": {"from": 5, "quantity": 2, "last": "d"}}, "web:6", True),
        (RedisListSource(lists=["web"]), {"web": {"from": 5, "quantity": 2, "last": "d"}}, "web:7", False),
        (RedisStreamSource(streams=["web"]), ENTRIES, "web:200-5", True),
        (RedisStreamSource(streams=["web"]), ENTRIES, "100-0", False),
        (RedisStreamSource(streams=["web"]), ENTRIES, "no id", False),
        (SQL, IDS, "11", True),
        (SQL, IDS, "10", False),
        (SQL, IDS, "21", False),
        (SQL, IDS, "id", False),
        (PartitionedSqlSource(["db"], tables=["orders"], order_by="id"), {"db.orders": IDS}, "db.orders:20", True),
        (SQL, Rows(None, (("m",),), (1,)).to_json(), "m", True),
        (SQL, Rows(None, (("m",),), (1,)).to_json(), "a", None),
    ],
    ids=str,
)
def test_a_source_can_check_whether_its_batch_contains_a_value(
    source: Source, metadata: Any, what: str, expected: bool | None
) -> None:
    assert source.contains(metadata, what) is expected


def test_times_in_a_search_are_compared_in_their_time_zone() -> None:
    noon = datetime(2013, 5, 4, 12, tzinfo=timezone.utc)
    metadata = Rows(None, ((noon,),), (1,)).to_json()
    assert [SQL.contains(metadata, what) for what in ("2013-05-04T11:59:00", "2013-05-04T12:00:00+00:00")] == [True] * 2
    assert SQL.contains(metadata, "2013-05-04T13:00:00+00:00") is False


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("2013-05-04", True),
        ("2013-05-05", False),
        ("2013-05-04T23:59:59", True),
        ("2013-05-05T00:00:00+00:00", False),
        ("2013-05-05T01:00:00+02:00", True),
        ("yesterday", False),
    ],
)
def test_a_search_for_a_date_finds_the_interval_that_contains_it(what: str, expected: bool) -> None:
    source = DataIntervalSource("json.loads")
    metadata = {"from": "2013-05-04T00:00:00+00:00", "to": "2013-05-05T00:00:00+00:00"}
    assert source.contains(metadata, what) is expected


def test_a_search_interprets_a_day_in_the_time_zone_of_the_schedule_of_the_topology() -> None:
    stage = Stage(source=DataIntervalSource(), zone="Europe/Berlin")
    for number in (3, 4, 5):
        start = datetime(2013, 5, number, tzinfo=timezone(timedelta(hours=2)))
        dated = replace(run_of(f"r{number}"), interval_start=start, interval_end=start + timedelta(days=1))
        begin_run(stage.spec, dated.run_id, info=dated)
    found = search_ledger(stage.spec.ledger(stage.store), DataIntervalSource(), "2013-05-04", seconds=60.0)
    assert found.txids == (2,)


def test_a_search_finds_a_partition_by_its_complete_key_or_its_date() -> None:
    source = RunPartitionSource("json.loads")
    assert source.contains({"partition": "2013-05-04T00:00:00+00:00"}, "2013-05-04")
    assert source.contains({"partition": "eu"}, "eu")
    assert not source.contains({"partition": "eu"}, "e")


def test_a_source_without_a_search_method_returns_none() -> None:
    assert Source.contains(SQL, {}, "1") is None
