"""Rows of Kafka: as Python dicts, or read by Spark's own connector; and the sizes of some, to guess the others'."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow_tx.connections.kafka import KafkaAddress
from airflow_tx.rows.spark import REFUSED_VALUE, fails
from airflow_tx.sources.kafka.offsets import KafkaRefused, KafkaUnreachable, needed
from airflow_tx.sources.kafka.positions import OffsetRange, split_name
from airflow_tx.sources.message import parsed_message

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_tx.rows.types import ColumnType

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
_WHERE = re.compile(
    re.escape(REFUSED_VALUE) + r"(topic \S+, partition \d+, offset \d+: [^\n]*?)(?= SQLSTATE|\n|$)"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NO_TIME = 253_402_300_800_000
"""Of the year 10000, in milliseconds."""


class OffsetsGone(Exception):
    """Rows that were to be read and are not there any more."""


class MisfitMessage(Exception):
    """A message of which a value cannot be taken; it says which message, and why."""


def read_messages(
    address: KafkaAddress,
    offsets: Mapping[str, OffsetRange],
    timeout: float,
    columns: Mapping[str, ColumnType] | None = None,
) -> Iterator[KafkaMessage]:
    """Read these rows in order, one partition after the other; give up after `timeout` seconds without any answer.

    :param columns: of the JSON object that a value is; None: it is bytes.
    :raises MisfitMessage: a value is none.
    """
    with consumer_of(address) as consumer:
        for name in sorted(offsets):
            if offsets[name].count:
                for message in _messages(address, consumer, name, offsets[name], timeout):
                    yield _row(message, columns)


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


def _row(message: Message, columns: Mapping[str, ColumnType] | None) -> KafkaMessage:
    value = _bytes(message.value())
    headers: Any = message.headers()
    try:
        parsed = value if None in (value, columns) else parsed_message(value or b"", columns)
        timestamp = _time(message)
    except ValueError as error:
        where = (
            f"topic {message.topic()}, partition {message.partition()}, offset {message.offset()}"
        )
        raise MisfitMessage(f"{where}: {error}") from None
    return {
        "key": _bytes(message.key()),
        "value": parsed,
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp,
        "headers": [{"key": key, "value": _bytes(value)} for key, value in headers]
        if headers
        else None,
    }


def _time(message: Message) -> datetime | None:
    kind, at = message.timestamp()
    try:
        return _EPOCH + timedelta(milliseconds=at) if kind and at >= 0 else None
    except OverflowError:
        raise ValueError(f"column timestamp = {at} ms") from None


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _size(message: Message) -> int:
    return sum(len(part) for part in (message.key(), message.value()) if part is not None)


def read_frame(
    spark: SparkSession,
    address: KafkaAddress,
    offsets: Mapping[str, OffsetRange],
    options: Mapping[str, str],
    columns: Mapping[str, ColumnType] | None,
) -> DataFrame:
    """Read exactly these rows, of all partitions; a value that is no JSON object of `columns` is an error."""
    wanted = {name: each for name, each in offsets.items() if each.count}
    if wanted:
        reader = spark.read.format("kafka").options(
            **address.spark_options(), **options, **_exactly(wanted)
        )
        rows = reader.load().select(*COLUMNS)
    else:
        rows = spark.createDataFrame([], SCHEMA)
    rows = _timely(rows)
    return rows if columns is None else _parsed(rows, columns)


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


def _parsed(rows: DataFrame, columns: Mapping[str, ColumnType]) -> DataFrame:
    from pyspark.sql import functions as F

    from airflow_tx.rows.spark_json import with_objects

    read, value, problem = with_objects(rows, "value", columns)
    checked = read.where(fails(F.when(problem.isNotNull(), _worded(problem)), otherwise=True))
    return checked.select(*(value.alias(name) if name == "value" else name for name in COLUMNS))


def _timely(rows: DataFrame) -> DataFrame:
    """Refuse a time that Python has not, where a query uses it."""
    from pyspark.sql import functions as F

    at = F.col("timestamp")
    problem = F.concat(F.lit("column timestamp = "), F.unix_millis(at), F.lit(" ms"))
    return rows.withColumn(
        "timestamp",
        F.when(
            at >= F.timestamp_millis(F.lit(_NO_TIME)),
            F.raise_error(_worded(problem)).cast("timestamp"),
        ).otherwise(at),
    )


def _worded(problem: Column) -> Column:
    """Word a problem with the message that has it."""
    from pyspark.sql import functions as F

    form = f"{REFUSED_VALUE}topic %s, partition %s, offset %s: %s"
    return F.format_string(form, "topic", "partition", "offset", problem)


def misfit_in(error: Exception) -> str | None:
    """Find which message does not fit and why, if that is what the error of a query says."""
    found = _WHERE.search(str(error))
    return found[1] if found else None


def lacks_connector(error: Exception) -> bool:
    text = str(error)
    return "Failed to find" in text and "kafka" in text


def lost_rows(error: Exception) -> bool:
    return any(said in str(error) for said in ("data may have been lost", "Cannot fetch offset"))
