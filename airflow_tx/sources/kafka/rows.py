"""Rows of Kafka: as Python dicts, or read by Spark's own connector; and the sizes of some, to guess the others'."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_tx.connections.kafka import KafkaAddress
from airflow_tx.rows.json_objects import parsed_object
from airflow_tx.rows.types import columns_of
from airflow_tx.sources.kafka.offsets import KafkaRefused, KafkaUnreachable, needed
from airflow_tx.sources.kafka.positions import OffsetRange, split_name

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from pyspark.sql import DataFrame, SparkSession

KafkaMessage = dict[str, Any]

SAMPLED_MESSAGES = 200
"""Rows whose sizes are measured."""
_AT_ONCE = 1000
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:<Spark's version>"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_CORRUPT = "_tx_corrupt"
_MARK = "airflow_tx: no such value: "
_WHERE = re.compile(re.escape(_MARK) + r"(topic \S+, partition \d+, offset \d+)")


class OffsetsGone(Exception):
    """Rows that were to be read and are not there any more."""


def read_messages(
    address: KafkaAddress, offsets: Mapping[str, OffsetRange], timeout: float
) -> Iterator[KafkaMessage]:
    """Read these rows in order, one partition after the other; give up after `timeout` seconds without any answer."""
    with consumer_of(address) as consumer:
        for name in sorted(offsets):
            if offsets[name].count:
                for message in _messages(address, consumer, name, offsets[name], timeout):
                    yield _row(message)


def sample(address: KafkaAddress, starts: Mapping[str, int], timeout: float) -> list[int]:
    """Measure some of the next rows in the partitions."""
    kafka = needed("confluent_kafka")
    sizes: list[int] = []
    with consumer_of(address) as consumer:
        consumer.assign(
            [kafka.TopicPartition(*split_name(name), start) for name, start in starts.items()]
        )
        ended = 0
        give_up = time.monotonic() + timeout
        while len(sizes) < SAMPLED_MESSAGES and ended < len(starts):
            for message in some_messages(consumer):
                if ends_partition(address, message):
                    ended += 1
                else:
                    sizes.append(_size(message))
            if time.monotonic() > give_up:
                if sizes:
                    break
                raise KafkaUnreachable(
                    conn_id=address.conn_id, reason=f"no row came in {timeout:g} s"
                )
    return sizes


@contextmanager
def consumer_of(address: KafkaAddress, **settings: Any) -> Iterator[Consumer]:
    """Open a consumer that is assigned partitions, and closed behind the block.

    :param settings: of the consumer, beside the settings of every reader.
    """
    ours = {
        **address.client,
        "group.id": address.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 50,
        "log_level": 0,
        "error_cb": lambda error: None,
        **settings,
    }
    consumer: Consumer = needed("confluent_kafka").Consumer(ours)
    try:
        yield consumer
    finally:
        consumer.close()


def _messages(
    address: KafkaAddress, consumer: Consumer, name: str, offsets: OffsetRange, timeout: float
) -> Iterator[Message]:
    kafka = needed("confluent_kafka")
    consumer.assign([kafka.TopicPartition(*split_name(name), offsets.start)])
    give_up = time.monotonic() + timeout
    while True:
        messages = some_messages(consumer)
        for message in messages:
            # At the end of what is committed comes a note; before it, markers and aborted rows have offsets, too.
            ended = ends_partition(address, message)
            offset = message.offset() or 0
            if offset >= offsets.end:
                return
            if not ended:
                yield message
                if offset + 1 == offsets.end:
                    return
        if messages:
            give_up = time.monotonic() + timeout
        elif time.monotonic() > give_up:
            reason = f"partition {name} gave no row for {timeout:g} s, offset {offsets.end - 1} is not reached"
            raise KafkaUnreachable(conn_id=address.conn_id, reason=reason)


def some_messages(consumer: Consumer) -> list[Message]:
    """Take what has come; wait a moment for the first."""
    first = consumer.poll(0.2)
    return [] if first is None else [first, *consumer.consume(_AT_ONCE, timeout=0)]


def ends_partition(address: KafkaAddress, message: Message) -> bool:
    """Check whether a message says that the partition has no more now; raise what else is wrong."""
    error = message.error()
    kafka = needed("confluent_kafka").KafkaError
    if error is None:
        return False
    if error.code() == kafka._PARTITION_EOF:
        return True
    text = address.hide(" ".join(error.str().split()))
    if error.code() in (
        kafka._AUTO_OFFSET_RESET,
        kafka.OFFSET_OUT_OF_RANGE,
        kafka.UNKNOWN_TOPIC_OR_PART,
    ):
        raise OffsetsGone(text)
    if error.code() in (kafka._AUTHENTICATION, kafka._SSL, kafka.TOPIC_AUTHORIZATION_FAILED):
        raise KafkaRefused(conn_id=address.conn_id, reason=text)
    raise KafkaUnreachable(conn_id=address.conn_id, reason=text)


def _row(message: Message) -> KafkaMessage:
    kind, at = message.timestamp()
    headers: Any = message.headers()
    return {
        "key": _bytes(message.key()),
        "value": _bytes(message.value()),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": datetime.fromtimestamp(at / 1000, timezone.utc) if kind and at >= 0 else None,
        "headers": [{"key": key, "value": _bytes(value)} for key, value in headers]
        if headers
        else None,
    }


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _size(message: Message) -> int:
    return sum(len(part) for part in (message.key(), message.value()) if part is not None)


class Values:
    """Values that are JSON, as a schema in Spark's DDL has them; without Spark.

    :param schema: such as ``user STRING, amount DOUBLE``; only simple types can be had without Spark.
    :raises ValueError: it has another type.
    """

    def __init__(self, schema: str) -> None:
        self._columns = columns_of(schema)

    def read(self, value: bytes | None) -> dict[str, Any] | None:
        """Read the columns of a value; None of a message without one. ValueError: it does not fit."""
        if value is None:
            return None
        found = parsed_object(value.decode(), exact=True)
        return {
            name: None if found.get(name) is None else kind.of_json(found[name])
            for name, kind in self._columns.items()
        }


def read_frame(
    spark: SparkSession,
    address: KafkaAddress,
    offsets: Mapping[str, OffsetRange],
    options: Mapping[str, str],
    value_schema: str | None,
) -> DataFrame:
    """Read exactly these rows, of all partitions; a value that does not fit `value_schema`, in DDL, is an error."""
    wanted = {name: each for name, each in offsets.items() if each.count}
    if wanted:
        reader = spark.read.format("kafka").options(
            **address.spark_options(), **options, **_exactly(wanted)
        )
        rows = reader.load().select(*COLUMNS)
    else:
        rows = spark.createDataFrame([], SCHEMA)
    return rows if value_schema is None else _parsed(rows, value_schema)


def _exactly(offsets: Mapping[str, OffsetRange]) -> dict[str, str]:
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for name, each in sorted(offsets.items()):
        topic, number = split_name(name)
        assigned.setdefault(topic, []).append(number)
        starts.setdefault(topic, {})[str(number)] = each.start
        ends.setdefault(topic, {})[str(number)] = each.end
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }


def _parsed(rows: DataFrame, schema: str) -> DataFrame:
    from pyspark.sql import functions as F

    how = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = F.from_json(F.col("value").cast("string"), f"{schema}, {_CORRUPT} STRING", how)
    # Exploded, it is read once for each message, and also where the value is not used: Spark moves no filter below.
    read = rows.select("*", F.explode(F.array(parsed)).alias("_tx_value"))
    misfit = F.col("value").isNotNull() & (
        F.col("_tx_value").isNull() | F.col(f"_tx_value.{_CORRUPT}").isNotNull()
    )
    where = F.format_string(
        f"{_MARK}topic %s, partition %s, offset %s", "topic", "partition", "offset"
    )
    checked = read.where(
        F.when(misfit, F.raise_error(where).cast("boolean")).otherwise(F.lit(True))
    )
    value = F.when(F.col("value").isNotNull(), F.col("_tx_value").dropFields(_CORRUPT)).alias(
        "value"
    )
    return checked.select(*(value if name == "value" else name for name in COLUMNS))


def misfit_in(error: Exception) -> str | None:
    """Find which message does not fit, if that is what the error of a query says."""
    found = _WHERE.search(str(error))
    return found[1] if found else None


def lacks_connector(error: Exception) -> bool:
    text = str(error)
    return "Failed to find" in text and "kafka" in text


def lost_rows(error: Exception) -> bool:
    return any(said in str(error) for said in ("data may have been lost", "Cannot fetch offset"))
