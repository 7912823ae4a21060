"""Every reader of messages takes the same values from the same bytes, or all of them refuse the batch."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from airflow_tx import KafkaSource, RedisListSource
from airflow_tx.base.errors import RowsRefused
from airflow_tx.base.remedy import Command
from airflow_tx.base.rows.types import nested_columns_of
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.kafka import offsets as kafka_offsets
from airflow_tx.sources.rabbit import QueueMessage, QueueRows
from tests.edges.messages import COLUMNS, LEFT, MESSAGES, SCHEMA, TAKEN, Message
from tests.servers.kafka import LocalKafka
from tests.servers.redis import LocalRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = TransactionAttempt(1, 1)
MAP = COLUMNS["MAP<STRING, DECIMAL(10,2)>"]
QUEUE = QueueRows("queue q", nested_columns_of(SCHEMA), Command("skip", "q", ("1",)), "source")


def texts(rows: Iterable[Any]) -> list[str]:
    """Spell rows so that 1 and 1.0, and -0.0 and 0.0, differ; and moments as all readers give them."""
    return [
        re.sub(r"tzinfo=(<UTC>|zoneinfo\.\w+\(key='UTC'\))", "tzinfo=datetime.timezone.utc", repr(row)) for row in rows
    ]


def expected() -> list[str]:
    return texts(each.row for each in TAKEN)


def collected(frame: Any, column: str) -> list[str]:
    """Collect what Spark has, as Python has it: Arrow gives a map as pairs."""
    rows = [row[column] for row in frame.select(column).toArrow().to_pylist()]
    return texts({**row, MAP: row[MAP] if row[MAP] is None else dict(row[MAP])} for row in rows)


@pytest.fixture(scope="module")
def topic(kafka: LocalKafka) -> str:
    name = f"edges-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(name)
    kafka.produce(name, [each.content for each in [*TAKEN, *LEFT]])
    return name


@pytest.fixture(scope="module")
def lists(redis: LocalRedis) -> str:
    name = f"edges-{uuid.uuid4().hex[:12]}"
    redis.client().rpush(name, *(each.content for each in [*TAKEN, *LEFT]))
    return name


@pytest.fixture(autouse=True)
def connections(kafka: LocalKafka, redis: LocalRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps(kafka.client_config())
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    password = redis.client().connection_pool.connection_kwargs["password"]
    known = {"conn_type": "redis", "host": "127.0.0.1", "port": redis.port, "password": password}
    monkeypatch.setenv("AIRFLOW_CONN_TWEETS", json.dumps(known))


def dicts(reader: Any) -> list[Any]:
    """Read record batches to their end."""
    return [row for batch in reader for row in batch.to_pylist(maps_as_pydicts="strict")]


def of_kafka(topic: str, first: int, count: int, spark: SparkSession | None = None, *, arrow: bool = False) -> Any:
    rows: Any = {f"{topic}-0": {"topic_id": None, "from": first, "to": first + count}}
    source = KafkaSource(topic=topic, value_schema=SCHEMA)
    return dicts(source.emit_arrow(FIRST, rows)) if arrow else source.emit_batch(FIRST, rows, spark)


def of_redis(name: str, first: int, count: int, spark: SparkSession | None = None, *, arrow: bool = False) -> Any:
    source = RedisListSource("tweets", lists=[name], schema=SCHEMA, max_rows_per_batch=count)
    (partition,) = source.partitions()
    batch: Any = source.decide(FIRST, {partition: {"next": first}})
    if arrow:
        return dicts(source.emit_arrow(FIRST, batch.metadata))
    rows: Any = source.emit_batch(FIRST, batch.metadata, spark)
    return rows if spark is not None else list(rows)


def of_rabbit(messages: Iterable[Message], *, arrow: bool = False) -> Any:
    taken = [QueueMessage("m", "r", "{}", each.content) for each in messages]
    return dicts(QUEUE.batches(taken)) if arrow else QUEUE.of(taken)


def test_record_batches_contain_the_exact_message_values_of_each_source(topic: str, lists: str) -> None:
    assert texts(row["value"] for row in of_kafka(topic, 0, len(TAKEN), arrow=True)) == expected()
    assert texts(row["message"] for row in of_redis(lists, 0, len(TAKEN), arrow=True)) == expected()
    assert texts(row["message"] for row in of_rabbit(TAKEN, arrow=True)) == expected()


def test_a_task_reads_the_exact_message_values_of_each_source(topic: str, lists: str) -> None:
    assert texts(row["value"] for row in of_kafka(topic, 0, len(TAKEN))) == expected()
    assert texts(row["message"] for row in of_redis(lists, 0, len(TAKEN))) == expected()
    assert texts(row["message"] for row in of_rabbit(TAKEN)) == expected()


@pytest.mark.parametrize("number", range(len(LEFT)), ids=lambda number: str(LEFT[number]))
def test_a_task_refuses_a_batch_that_contains_an_inexact_value(number: int, topic: str, lists: str) -> None:
    with pytest.raises(RowsRefused, match=f"topic {topic}, partition 0, offset {len(TAKEN) + number}: ") as refusal:
        list(of_kafka(topic, len(TAKEN) + number, 1))
    assert "\n" not in str(refusal.value)
    with pytest.raises(RowsRefused, match=f"topic {topic}, partition 0, offset {len(TAKEN) + number}: "):
        of_kafka(topic, len(TAKEN) + number, 1, arrow=True)
    for arrow in (False, True):
        with pytest.raises(RowsRefused, match="cannot be read"):
            of_redis(lists, len(TAKEN) + number, 1, arrow=arrow)
        with pytest.raises(RowsRefused, match="cannot be read"):
            of_rabbit([LEFT[number]], arrow=arrow)


@pytest.mark.parametrize("message", TAKEN, ids=str)
def test_record_batches_contain_every_value_that_a_task_can_read(message: Message) -> None:
    assert texts(of_rabbit([message], arrow=True)) == texts(of_rabbit([message]))


@pytest.mark.spark
def test_spark_reads_the_exact_message_values_of_each_source(topic: str, lists: str, spark: SparkSession) -> None:
    assert collected(of_kafka(topic, 0, len(TAKEN), spark), "value") == expected()
    assert collected(of_redis(lists, 0, len(TAKEN), spark), "message") == expected()


@pytest.mark.spark
def test_spark_refuses_a_batch_that_contains_an_inexact_value(topic: str, lists: str, spark: SparkSession) -> None:
    for number in range(len(LEFT)):
        with pytest.raises(RowsRefused, match=f"topic {topic}, partition 0, offset {len(TAKEN) + number}: "):
            of_kafka(topic, len(TAKEN) + number, 1, spark)
        with pytest.raises(RowsRefused, match="cannot be read"):
            of_redis(lists, len(TAKEN) + number, 1, spark)


def test_the_error_about_a_refused_value_shows_the_value_and_its_column() -> None:
    column = COLUMNS["BIGINT"]
    with pytest.raises(RowsRefused, match=re.escape(f"column {column} BIGINT = 19.99: it is no whole number")):
        of_rabbit([next(each for each in MESSAGES if b": 19.99" in each.content and column.encode() in each.content)])


def test_reading_kafka_messages_in_pages_returns_the_same_rows_as_reading_them_one_by_one(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = ", ".join(f"{name} {kind}" for kind, name in COLUMNS.items() if name != MAP)
    rows: Any = {f"{topic}-0": {"topic_id": None, "from": 0, "to": len(TAKEN) + len(LEFT)}}
    source: Any = KafkaSource(topic=topic, value_schema=schema, malformed="reject")
    one_by_one = list(source.emit_batch(FIRST, rows))
    monkeypatch.setattr(kafka_offsets, "_MANY", 0)
    for size in (1, 7):
        monkeypatch.setattr(kafka_offsets, "_MESSAGES_OF_PAGE", size)
        paged = list(source.emit_batch(FIRST, rows))
        assert sorted(map(repr, paged)) == sorted(map(repr, one_by_one))
