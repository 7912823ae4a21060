"""Query the topics, partitions and offsets of Kafka in two round trips, and read messages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_tx.base.connections import KafkaAddress
from airflow_tx.base.errors import ConfigError, TxError
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import (
    ColumnType,
    NotProven,
    UnfitText,
    arrow_types_of,
    batch_rows,
    spark_reader,
)
from airflow_tx.sources.api import REFUSED_VALUE, MalformedRow
from airflow_tx.sources.message import (
    malformed_message,
    message_batches,
    message_column,
    parsed_message,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa  # type: ignore[import-untyped]
    from confluent_kafka import Consumer, KafkaError, Message
    from pyspark.sql import Column, DataFrame, SparkSession, functions as F

else:
    pa = LazyModule("pyarrow")
    F = LazyModule("pyspark.sql.functions")


# --- positions ----------------------------------------------------------------------------------------------------
# The offsets that Kafka has, and positions in their stored form.


EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True)
class Extent:
    """The offsets that a partition has.

    :param topic_id: id of the topic, or None before Kafka 2.8. The id changes if the topic is recreated.
    :param first: first available offset.
    :param end: offset after the last readable message, before the first open Kafka transaction.
    :param waiting: number of offsets from `end` on. They wait for the end of the open Kafka transaction.
    """

    topic_id: str | None
    first: int
    end: int
    waiting: int = 0


@dataclass(frozen=True)
class LastMessage:
    """The last message that was taken from a partition.

    :param offset: offset of the message.
    :param digest: digest of the content and time of the message.
    """

    offset: int
    digest: str


@dataclass(frozen=True)
class OffsetsSnapshot:
    """The state of some topics at one time.

    :param extents: offsets of each partition that responded.
    :param away: reason for each partition that did not respond.
    :param missing: topics that do not exist.
    :param ids: id of each topic.
    """

    extents: Mapping[str, Extent] = field(default_factory=dict)
    away: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    ids: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class OffsetRange:
    """A range of offsets of a partition. The offset `end` is exclusive."""

    start: int
    end: int

    @property
    def count(self) -> int:
        """Return the number of offsets, which is the maximum number of messages."""
        return self.end - self.start


def partition_name(topic: str, number: int) -> str:
    """Return the name of a partition in Kafka's style, such as orders-0."""
    return f"{topic}-{number}"


def split_name(partition: str) -> tuple[str, int]:
    topic, _, number = partition.rpartition("-")
    return topic, int(number)


def position_json(
    topic_id: str | None, offset: int, life: int = 0, last: LastMessage | None = None
) -> dict[str, Any]:
    """Return a position in its stored form.

    :param topic_id: id of the topic.
    :param offset: next offset to read.
    :param life: number of times that the partition was truncated or recreated, which keeps positions unique. 0 is
        omitted.
    :param last: last message before `offset`. None is omitted.
    """
    position: dict[str, Any] = {"topic_id": topic_id, "offset": offset}
    if life:
        position["life"] = life
    return {**position, **last_message_json(last)}


def last_message_json(last: LastMessage | None) -> dict[str, Any]:
    """Format the last message as an entry for a position or metadata. Return an empty entry for None."""
    return {} if last is None else {"last": vars(last)}


def last_message_of(spelled: Mapping[str, Any]) -> LastMessage | None:
    """Return the last message in a position or metadata, or None if there is none."""
    last = spelled.get("last")
    return None if last is None else LastMessage(**last)


def end_position(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position after the rows in a partition's metadata."""
    return position_json(rows["topic_id"], rows["to"], last=last_message_of(rows))


# --- offsets ------------------------------------------------------------------------------------------------------


_Extents: TypeAlias = "tuple[dict[str, Extent], dict[str, KafkaError]]"
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class KafkaUnreachable(TxError):
    """Signals that no Kafka broker responds."""

    template = "Kafka of connection {conn_id} cannot be reached: {reason}."


class KafkaRefused(TxError):
    """Signals that Kafka refuses the login of a connection, or its access to these topics."""

    template = "Kafka of connection {conn_id} refused the request: {reason}."


class KafkaOffsets:
    """A connection to a Kafka cluster.

    :param address: brokers and login.
    :param timeout: seconds to wait for a response.
    """

    def __init__(self, address: KafkaAddress, timeout: float) -> None:
        admin = needed("confluent_kafka.admin")
        self._address = address
        self._timeout = timeout
        self._said: list[KafkaError] = []
        # Without an error handler, librdkafka logs every refused connection.
        self._admin = admin.AdminClient(
            {**address.client, "log_level": 0, "error_cb": self._said.append}
        )

    def snapshot(self, topics: Sequence[str]) -> OffsetsSnapshot:
        """Query the current state of topics."""
        kafka = needed("confluent_kafka")
        described = self._admin.describe_topics(
            kafka.TopicCollection(list(topics)), request_timeout=self._timeout
        )
        self._wait(described.values())
        ids: dict[str, str | None] = {}
        partitions = []
        missing = []
        for topic in topics:
            error = self._error(described[topic])
            if error is None:
                found = described[topic].result()
                ids[topic] = (
                    None if str(found.topic_id).rstrip("=") == _NO_ID else str(found.topic_id)
                )
                partitions += [kafka.TopicPartition(topic, each.id) for each in found.partitions]
            elif error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                missing.append(topic)
            else:
                raise self._unreachable(error)
        extents, away = self._extents(partitions, ids)
        return OffsetsSnapshot(
            extents, {name: self._words(error) for name, error in away.items()}, missing, ids
        )

    def _extents(self, partitions: Sequence[Any], ids: Mapping[str, str | None]) -> _Extents:
        give_up = time.monotonic() + self._timeout
        while True:
            extents, away = self._request(partitions, ids)
            # A broker that has just started, or has just become a leader, briefly returns these
            # errors.
            if not any(_passes(error) for error in away.values()) or time.monotonic() > give_up:
                return extents, away
            self._admin.poll(0.1)

    def _request(self, partitions: Sequence[Any], ids: Mapping[str, str | None]) -> _Extents:
        if not partitions:
            return {}, {}
        spec = needed("confluent_kafka.admin").OffsetSpec
        level = needed("confluent_kafka").IsolationLevel
        asked = (
            (spec.earliest(), level.READ_COMMITTED),
            (spec.latest(), level.READ_COMMITTED),
            (spec.latest(), level.READ_UNCOMMITTED),
        )
        requests = [
            self._admin.list_offsets(
                dict.fromkeys(partitions, each),
                isolation_level=isolation,
                request_timeout=self._timeout,
            )
            for each, isolation in asked
        ]
        self._wait(future for answers in requests for future in answers.values())
        firsts, ends, writtens = (
            {(each.topic, each.partition): answers[each] for each in answers}
            for answers in requests
        )
        extents = {}
        away = {}
        for each, first in firsts.items():
            name = partition_name(*each)
            answers = (first, ends[each], writtens[each])
            error = next(filter(None, map(self._error, answers)), None)
            if error is None:
                start, end, written = (answer.result().offset for answer in answers)
                extents[name] = Extent(ids[each[0]], start, end, max(written - end, 0))
            else:
                away[name] = error
        return extents, away

    def _wait(self, futures: Iterable[Future[Any]]) -> None:
        waiting = list(futures)
        give_up = time.monotonic() + self._timeout + 5
        while not all(future.done() for future in waiting) and time.monotonic() < give_up:
            self._admin.poll(0.01)
            self._check_login()
        self._check_login()

    def _check_login(self) -> None:
        # Kafka reports a refused login only to the error handler. The request itself times out.
        kafka = needed("confluent_kafka").KafkaError
        for error in self._said:
            if error.code() in (kafka._AUTHENTICATION, kafka._SSL):
                raise self._refused(error)

    def _error(self, future: Future[Any]) -> KafkaError | None:
        kafka = needed("confluent_kafka")
        try:
            future.result(0)
        except kafka.KafkaException as failure:
            error: KafkaError = failure.args[0]
            codes = kafka.KafkaError
            if error.code() in (
                codes.TOPIC_AUTHORIZATION_FAILED,
                codes.CLUSTER_AUTHORIZATION_FAILED,
            ):
                raise self._refused(error) from None
            return error
        except TimeoutError:
            return kafka.KafkaError(kafka.KafkaError._TIMED_OUT)  # type: ignore[no-any-return]
        return None

    def _refused(self, error: KafkaError) -> KafkaRefused:
        return KafkaRefused(conn_id=self._address.conn_id, reason=self._words(error))

    def _unreachable(self, error: KafkaError) -> KafkaUnreachable:
        kafka = needed("confluent_kafka").KafkaError
        # Report the connection error and not the time-out that it causes.
        causes = [said for said in self._said if said.code() in (kafka._TRANSPORT, kafka._RESOLVE)]
        return KafkaUnreachable(
            conn_id=self._address.conn_id, reason=self._words(causes[-1] if causes else error)
        )

    def _words(self, error: KafkaError) -> str:
        text = re.sub(r" \(after \d+ms.*", "", " ".join(error.str().split()))
        return self._address.hide(text)


def _passes(error: KafkaError) -> bool:
    kafka = needed("confluent_kafka").KafkaError
    return error.code() in (
        kafka.NOT_LEADER_FOR_PARTITION,
        kafka.FENCED_LEADER_EPOCH,
        kafka.UNKNOWN_LEADER_EPOCH,
        kafka.OFFSET_NOT_AVAILABLE,
    )


def needed(module: str) -> Any:
    """Import a module of the client library.

    :raises ConfigError: the library is not installed. The error has the command that installs it.
    """
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        remedy = "Install the client where a Kafka topic is read: pip install 'airflow-provider-tx[kafka]'"
        raise ConfigError(
            option="KafkaSource", value="confluent-kafka", remedy=f"Not installed. {remedy}"
        ) from None


# --- rows ---------------------------------------------------------------------------------------------------------
# Read Kafka messages as Python dicts, as Arrow batches or with Spark's connector. Sample message
# sizes.


KafkaMessage = dict[str, Any]

SAMPLED_MESSAGES = 200
"""Number of messages in the sample for estimating message sizes."""
_AT_ONCE = 1000
_MANY = 20_000
"""The minimum number of offsets for reading with Arrow."""
_MESSAGES_OF_PAGE = 32_768
_BYTES_OF_PAGE = 8 * 1024 * 1024
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
"""The first moment of the year 10000, in milliseconds since 1970."""


class OffsetsGone(Exception):
    """Signals that Kafka no longer has some offsets of a batch."""


class MisfitMessage(Exception):
    """Signals that the value of a message is unusable. The error names the message and the reason.

    :ivar place: place of the value that the error quotes, or "" if it quotes no value.
    """

    def __init__(self, problem: str, place: str = "a message") -> None:
        super().__init__(problem)
        self.place = place


class MisfitTime(MisfitMessage):
    """Signals that Python cannot represent a message's time."""


def read_messages(
    address: KafkaAddress,
    offsets: Mapping[str, OffsetRange],
    timeout: float,
    columns: Mapping[str, ColumnType] | None = None,
    *,
    rejects: bool = False,
) -> Iterator[KafkaMessage | MalformedRow]:
    """Read messages in order, one partition after the other.

    Arrow only parses large batches, since loading it takes long.

    :param offsets: offsets to read, by partition.
    :param timeout: maximum seconds without a message.
    :param columns: columns of JSON values, or None for values that are bytes.
    :param rejects: whether to yield a `MalformedRow` for a value that does not fit its columns.
    :raises MisfitMessage: a value does not fit its columns.
    """
    if columns is not None and sum(each.count for each in offsets.values()) > _MANY:
        malformed: list[MalformedRow] = []
        for batch in read_pages(address, offsets, timeout, columns, malformed, rejects=rejects):
            yield from batch_rows(batch)
        yield from malformed
        return
    with consumer_of(address) as consumer:
        for name in sorted(offsets):
            if offsets[name].count:
                for message in _messages(address, consumer, name, offsets[name], timeout):
                    yield _row(message, columns, rejects=rejects)


def read_pages(
    address: KafkaAddress,
    offsets: Mapping[str, OffsetRange],
    timeout: float,
    columns: Mapping[str, ColumnType] | None,
    malformed: list[MalformedRow],
    *,
    rejects: bool,
) -> Iterator[pa.RecordBatch]:
    """Read the same messages as `read_messages`, as record batches.

    :param malformed: list to which malformed rows are added.
    """
    types = row_types(columns)
    with consumer_of(address) as consumer:
        for name in sorted(offsets):
            if offsets[name].count:
                messages = _messages(address, consumer, name, offsets[name], timeout)
                for page in _pages(messages):
                    rows = (_row(each, columns, rejects=rejects) for each in page)
                    make = partial(_batch, page, columns, types)
                    yield from message_batches(make, rows, types, malformed)


def _pages(messages: Iterable[Message]) -> Iterator[list[Message]]:
    page: list[Message] = []
    size = 0
    for message in messages:
        page.append(message)
        size += _size(message)
        if size >= _BYTES_OF_PAGE or len(page) >= _MESSAGES_OF_PAGE:
            yield page
            page = []
            size = 0
    if page:
        yield page


def _batch(
    page: Sequence[Message],
    columns: Mapping[str, ColumnType] | None,
    types: Mapping[str, pa.DataType],
) -> pa.RecordBatch:
    times = [at if kind and at >= 0 else None for kind, at in (each.timestamp() for each in page)]
    if any(at is not None and at >= _NO_TIME for at in times):
        raise NotProven("a time that Python cannot represent")
    headers = [each.headers() for each in page]
    values = {
        "key": pa.array([_bytes(each.key()) for each in page], types["key"]),
        "value": message_column([_bytes(each.value()) for each in page], columns, types["value"]),
        "topic": pa.repeat(page[0].topic(), len(page)),
        "partition": pa.repeat(pa.scalar(page[0].partition(), types["partition"]), len(page)),
        "offset": pa.array([each.offset() for each in page], types["offset"]),
        "timestamp": pa.array(times, pa.timestamp("ms", "UTC")).cast(types["timestamp"]),
        "headers": pa.array(map(_headers, headers), types["headers"])
        if any(headers)
        else pa.nulls(len(page), types["headers"]),
    }
    return pa.RecordBatch.from_pydict(values, pa.schema(types))


def row_types(columns: Mapping[str, ColumnType] | None) -> dict[str, Any]:
    """Return the Arrow types of the columns of `read_messages`."""
    value = pa.binary() if columns is None else pa.struct(list(arrow_types_of(columns).items()))
    header = pa.struct({"key": pa.string(), "value": pa.binary()})
    moment = pa.timestamp("us", "UTC")
    types = (pa.binary(), value, pa.string(), pa.int32(), pa.int64(), moment, pa.list_(header))
    return dict(zip(COLUMNS, types, strict=True))


def sample(address: KafkaAddress, starts: Mapping[str, int], timeout: float) -> list[int]:
    """Return the sizes of some of the next messages, in bytes."""
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
                    conn_id=address.conn_id, reason=f"no row arrived within {timeout:g} s"
                )
    return sizes


@contextmanager
def consumer_of(address: KafkaAddress, **settings: Any) -> Iterator[Consumer]:
    """Open a consumer, and close it after the `with` block.

    :param settings: additional settings of the consumer.
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
            # An end-of-partition event marks the end of the committed messages. Markers and aborted
            # messages leave gaps in the offsets before this end.
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
            reason = f"partition {name} returned no row for {timeout:g} s before offset {offsets.end - 1}"
            raise KafkaUnreachable(conn_id=address.conn_id, reason=reason)


def some_messages(consumer: Consumer) -> list[Message]:
    """Return the messages that have arrived. Wait briefly for the first one."""
    first = consumer.poll(0.2)
    return [] if first is None else [first, *consumer.consume(_AT_ONCE, timeout=0)]


def ends_partition(address: KafkaAddress, message: Message) -> bool:
    """Return whether a message is the end-of-partition event. Raise any other error in the message."""
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


def _row(
    message: Message, columns: Mapping[str, ColumnType] | None, *, rejects: bool
) -> KafkaMessage | MalformedRow:
    value = _bytes(message.value())
    try:
        parsed = value if None in (value, columns) else parsed_message(value or b"", columns)
    except ValueError as error:
        if rejects:
            return malformed_message(value, error, _place(message))
        place = UnfitText.place_of(error, within=_place(message))
        raise MisfitMessage(f"{_place(message)}: {error}", place) from None
    try:
        timestamp = _time(message)
    except ValueError as error:
        raise MisfitTime(f"{_place(message)}: {error}", _place(message)) from None
    return {
        "key": _bytes(message.key()),
        "value": parsed,
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp,
        "headers": _headers(message.headers()),
    }


def _headers(given: Any) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": _bytes(value)} for key, value in given] if given else None


def _place(message: Message) -> str:
    return f"topic {message.topic()}, partition {message.partition()}, offset {message.offset()}"


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
) -> DataFrame:
    """Read exactly these messages of all partitions with Spark's connector. The values are bytes."""
    wanted = {name: each for name, each in offsets.items() if each.count}
    if wanted:
        said = {**address.spark_options(), **options, **_exactly(wanted)}
        rows = spark_reader(spark, "kafka", said).load().select(*COLUMNS)
    else:
        rows = spark.createDataFrame([], SCHEMA)
    return _timely(rows)


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


def _timely(rows: DataFrame) -> DataFrame:
    """Add a check to a query, which fails on a time that Python cannot represent."""
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
    """Return an error text with the topic, partition, offset and problem."""
    form = f"{REFUSED_VALUE}topic %s, partition %s, offset %s: %s"
    return F.format_string(form, "topic", "partition", "offset", problem)


def misfit_in(error: Exception) -> MisfitTime | None:
    """Return the error of `_timely` if it made a query fail. Otherwise return None."""
    found = _WHERE.search(str(error))
    return MisfitTime(found[1]) if found else None


def lacks_connector(error: Exception) -> bool:
    text = str(error)
    return "Failed to find" in text and "kafka" in text


def lost_rows(error: Exception) -> bool:
    return any(said in str(error) for said in ("data may have been lost", "Cannot fetch offset"))
