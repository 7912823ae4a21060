"""The Kafka source. A transaction takes the next offsets of every partition.

Source: storm-transactional-topologies (TransactionalKafkaSpout, OpaqueTransactionalKafkaSpout).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_tx.base.connections import KafkaAddress
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import (
    OtherSource,
    PartitionUnavailable,
    RowsRefused,
    SourceError,
    TxError,
)
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import Loss, TransactionAttempt
from airflow_tx.sources.api import Batch, EmittedRows, Json, RowTypes, SourceKind
from airflow_tx.sources.kafka import offsets as kafka_rows
from airflow_tx.sources.kafka.offsets import (
    EARLIEST,
    LATEST,
    Extent,
    KafkaOffsets,
    KafkaRefused,
    KafkaUnreachable,
    LastMessage,
    OffsetRange,
    OffsetsSnapshot,
    consumer_of,
    end_position,
    ends_partition,
    last_message_json,
    last_message_of,
    needed,
    position_json,
    some_messages,
    split_name,
)
from airflow_tx.sources.message import declared_columns
from airflow_tx.sources.partitions import (
    Gone,
    LogBatch,
    LogDecision,
    LogSnapshot,
    LogSource,
    PartitionLog,
    is_number_below,
    is_number_within,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from confluent_kafka import Consumer, Message
    from pyspark.sql import SparkSession

    from airflow_tx.base.rows import ColumnType


# --- log ----------------------------------------------------------------------------------------------------------
# One Kafka partition as a log, with its next offsets and the offsets that Kafka has deleted. This
# code does no I/O.


@dataclass(frozen=True)
class KafkaSnapshot(LogSnapshot):
    """A partition's state after an offset.

    :param begins: whether the batch sets a position for the partition, even without rows.
    """

    begins: bool = False


@dataclass(frozen=True)
class KafkaLog(PartitionLog):
    """One partition of Kafka as a log.

    :param name: name of the partition, such as orders-0.
    :param source: repr of the source, for errors.
    :param topic_id: current id of the topic with this name.
    :param extent: available offsets, or None if the topic has no such partition now.
    :param away: reason why the partition cannot be reached, or None if it can.
    :param new: whether the topic was never read by a batch.
    :param latest: whether a topic's first batch starts at the topic's end.
    :param other: current message before the position, if it differs from the message that was taken.
    """

    name: str
    source: str
    topic_id: str | None = None
    extent: Extent | None = None
    away: str | None = None
    new: bool = False
    latest: bool = False
    other: LastMessage | None = None

    def snapshot(self, position: Any) -> KafkaSnapshot:
        if self.away is not None:
            raise PartitionUnavailable(partition=self.name, source=self.source, reason=self.away)
        if position is None:
            return self._first()
        end = position["offset"] if self.extent is None else self.extent.end
        return KafkaSnapshot(position, max(end - position["offset"], 0), self._gone(position))

    def backlog(self, position: Any) -> int:
        """Count the offsets after a position. The number includes offsets that wait for an open Kafka transaction."""
        return super().backlog(position) + (self.extent.waiting if self.extent else 0)

    def _first(self) -> KafkaSnapshot:
        """Return the first snapshot of a partition. A partition that was added to a known topic starts at offset 0.

        If Kafka no longer has its first offsets, the partition gets position 0 without rows. The next decision then
        reports the lost rows, as for any partition.
        """
        assert self.extent is not None
        start = 0
        if self.new:
            start = self.extent.end if self.latest else self.extent.first
        lacks = start < self.extent.first
        available = 0 if lacks else self.extent.end - start
        return KafkaSnapshot(
            position_json(self.topic_id, start), available, begins=self.new or lacks
        )

    def take(self, snapshot: KafkaSnapshot, most: int | None) -> LogBatch | None:
        available = snapshot.available or 0
        count = available if most is None else min(available, most)
        if not count and not snapshot.begins:
            return None
        start = snapshot.position["offset"]
        end = start + count
        return LogBatch(
            {"topic_id": self.topic_id, "from": start, "to": end},
            position_json(
                self.topic_id,
                end,
                snapshot.position.get("life", 0),
                last_message_of(snapshot.position),
            ),
            count,
            start=position_json(self.topic_id, start),
            at_most=True,
            ended=count == available,
        )

    def _gone(self, position: Any) -> Gone | None:
        offset = position["offset"]
        life = position.get("life", 0)
        if (
            None not in (self.topic_id, position["topic_id"])
            and self.topic_id != position["topic_id"]
        ):
            what = f"{self.name}: all from offset {offset} on of topic {position['topic_id']}, which was deleted; "
            what += f"the topic of this name is now {self.topic_id}, "
            what += (
                f"from offset {self.extent.first} on" if self.extent else "without this partition"
            )
            return Gone(
                what,
                position_json(self.topic_id, self.extent.first if self.extent else 0, life + 1),
            )
        if self.extent is None:
            return None
        first = self.extent.first
        end = self.extent.end
        if offset < first:
            what = f"{self.name}: offsets {offset} to {first - 1}, the first one left is {first}"
            return Gone(what, position_json(self.topic_id, first, life))
        if offset > end:
            what = f"{self.name}: offset {offset} was reached, and the partition now ends at {end}: it was cut, and "
            what += f"what is written again at offsets {end} to {offset - 1} is new"
            return Gone(what, position_json(self.topic_id, end, life + 1), went_back=True)
        if self.other is not None:
            what = f"{self.name}: it was cut and written again: offset {self.other.offset} has another message than "
            what += f"was taken, and new messages before offset {offset} are in no batch"
            after = position_json(self.topic_id, offset, life + 1, self.other)
            return Gone(what, after, went_back=True)
        return None


# --- last message -------------------------------------------------------------------------------------------------
# The last message that was taken shows whether a partition was truncated and written again. Offsets
# alone do not, since the partition may have grown back to its old end.


_BACK = 2
"""Number of offsets to read first: the last message, and the marker that follows it in a Kafka transaction."""
_FURTHER = 16
# Fetch little data, since only one message per partition is needed.
_FETCHED = {"fetch.message.max.bytes": 65536, "queued.max.messages.kbytes": 16384}


def last_messages(
    address: KafkaAddress, ranges: Mapping[str, OffsetRange], timeout: float
) -> dict[str, LastMessage]:
    """Return the last message of each range. Ranges without messages are omitted.

    :param ranges: offsets to search, by partition. All partitions are searched in parallel.
    :param timeout: maximum seconds without a message.
    :raises KafkaUnreachable: no message came in time.
    """
    found: dict[str, LastMessage] = {}
    left = {name: each for name, each in ranges.items() if each.count > 0}
    if not left:
        return found
    back = _BACK
    with consumer_of(address, **_FETCHED) as consumer:
        while left:
            ends = {
                name: OffsetRange(max(each.start, each.end - back), each.end)
                for name, each in left.items()
            }
            last = _read_last(address, consumer, ends, timeout)
            found.update({name: _described(message) for name, message in last.items()})
            left = {
                name: OffsetRange(each.start, ends[name].start)
                for name, each in left.items()
                if name not in found and each.start < ends[name].start
            }
            back *= _FURTHER
    return found


def _read_last(
    address: KafkaAddress, consumer: Consumer, ranges: Mapping[str, OffsetRange], timeout: float
) -> dict[str, Message]:
    kafka = needed("confluent_kafka")
    places = {name: kafka.TopicPartition(*split_name(name)) for name in ranges}
    for name, place in places.items():
        place.offset = ranges[name].start
    consumer.assign(list(places.values()))
    names = {(place.topic, place.partition): name for name, place in places.items()}
    found: dict[str, Message] = {}
    left = set(ranges)
    give_up = time.monotonic() + timeout
    while left:
        messages = some_messages(consumer)
        for message in messages:
            name = names[message.topic() or "", message.partition() or 0]
            ended = ends_partition(address, message)
            offset = message.offset() or 0
            if not ended and offset < ranges[name].end:
                found[name] = message
            if name in left and (ended or offset + 1 >= ranges[name].end):
                left.remove(name)
                consumer.incremental_unassign([places[name]])
        if messages:
            give_up = time.monotonic() + timeout
        elif time.monotonic() > give_up:
            reason = f"partition {min(left)} gave no row for {timeout:g} s"
            raise KafkaUnreachable(conn_id=address.conn_id, reason=reason)
    return found


def _described(message: Message) -> LastMessage:
    offset = message.offset()
    assert offset is not None
    value = message.value()
    told = (message.timestamp(), message.key(), message.headers(), value is None)
    digest = blake2b(repr(told).encode(), digest_size=8)
    digest.update(value.encode() if isinstance(value, str) else value or b"")
    return LastMessage(offset, digest.hexdigest())


# --- topics -------------------------------------------------------------------------------------------------------
# The arguments of a Kafka source, and its emitter half, which reads the rows at given offsets.


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OURS = frozenset(
    {"assign", "subscribe", "subscribepattern", "failondataloss", "includeheaders"}
    | {
        "startingoffsets",
        "startingtimestamp",
        "startingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
    }
    | {"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"}
    | {"kafka.isolation.level", "kafka.bootstrap.servers", "kafka.group.id"}
)
_OF_THE_CONNECTION = ("kafka.sasl.", "kafka.ssl.", "kafka.security.")
_Rows = TypeVar("_Rows")
_RETRIED = "Nothing is lost; the task can be tried again."


class KafkaTopics(LogSource):
    """The base class of `KafkaSource`. It has the arguments and the emitter half."""

    rows_can_change: ClassVar[bool] = False
    always_written = ("starting", "value_schema", "timeout", "kind", "options")
    in_repr = ("topic", "kind")

    def __init__(
        self,
        conn_id: str = "kafka_default",
        *,
        topic: str,
        starting: str = EARLIEST,
        value_schema: str | None = None,
        options: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
        malformed: str = "refuse",
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.take_malformed(
            malformed,
            "" if value_schema else "Set value_schema. Without it, every value fits.",
        )
        self.conn_id = conn_id
        self.topics = self._topics(topic)
        if starting not in (EARLIEST, LATEST):
            remedy = 'Give "earliest" (all rows that Kafka still has) or "latest" (only new rows).'
            raise self.unusable("starting", starting, remedy)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout <= 0:
            raise self.unusable("timeout", timeout, "Give seconds, a number above 0.")
        self.starting = starting
        self.value_schema = value_schema
        self.options = self._options(options or {})
        self.timeout = timeout
        self._offsets: KafkaOffsets | None = None
        self.normalize(topic=",".join(self.topics), options=self.options)

    def _topics(self, given: str) -> tuple[str, ...]:
        topics = [each.strip() for each in given.split(",")] if isinstance(given, str) else []
        if (
            not topics
            or not all(_TOPIC.fullmatch(each) for each in topics)
            or len(set(topics)) < len(topics)
        ):
            remedy = "Give the name of a topic, or several with commas between them, each once."
            raise self.unusable("topic", given, remedy)
        return tuple(topics)

    def _options(self, given: Mapping[str, Any]) -> dict[str, str]:
        for name in given:
            if str(name).lower() in _OURS:
                raise self.unusable("options", name, "The source sets it: leave it out.")
            if str(name).lower().startswith(_OF_THE_CONNECTION):
                remedy = "Put logins into the connection, and settings of the Java client into its extra `spark`."
                raise self.unusable("options", name, remedy)
        return {str(name): str(value) for name, value in given.items()}

    def connections(self) -> Mapping[str, str]:
        return {self.conn_id: "kafka"}

    def datasets(self) -> list[Dataset]:
        server = self._address().first_server
        return [Dataset(f"kafka://{server}", topic) for topic in self.topics]

    def close(self) -> None:
        super().close()
        self._offsets = None

    # --- the rows ----------------------------------------------------------------------------------------------------

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        if spark is not None and self.value_schema is not None:
            return self._stage(spark, self.emit_arrow(attempt, metadata))
        offsets = self._checked(attempt, metadata)
        if spark is None:
            return self._rows(attempt, offsets)
        try:
            return kafka_rows.read_frame(spark, self._address(), offsets, self.options)
        except Exception as error:
            known = self.explain_error(attempt, error)
            if known is None:
                raise
            raise known from error

    def emit_arrow(self, attempt: TransactionAttempt, metadata: Json) -> pa.RecordBatchReader:
        import pyarrow as pa

        offsets = self._checked(attempt, metadata)
        columns = self._columns()
        batches = kafka_rows.read_pages(
            self._address(),
            offsets,
            self.timeout,
            columns,
            self.malformed_rows,
            rejects=self.malformed == "reject",
        )
        schema = pa.schema(kafka_rows.row_types(columns))
        return pa.RecordBatchReader.from_batches(schema, self._reading(attempt, batches))

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes:
        return kafka_rows.row_types(self._columns())

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        partition: str,
        metadata: Json,
        spark: SparkSession | None = None,
    ) -> EmittedRows:
        return self.emit_batch(attempt, {partition: metadata}, spark)

    def partition_contains(self, partition: str, metadata: Any, what: str) -> bool:
        return is_number_within(what, metadata["from"], metadata["to"])

    def partition_reaches(self, partition: str, position: Any, what: str) -> bool | None:
        return is_number_below(what, position["offset"])

    def explain_error(self, attempt: TransactionAttempt, error: Exception) -> TxError | None:
        if misfit := kafka_rows.misfit_in(error):
            return self._misfit(misfit, attempt)
        if kafka_rows.lacks_connector(error):
            remedy = f'Give it the jars: SparkBatchOperator(packages="{kafka_rows.CONNECTOR}"), or spark.jars.'
            return self.refused("Spark has no connector to Kafka", remedy)
        if kafka_rows.lost_rows(error):
            return self._gone_rows(attempt, "they were deleted while Spark read them")
        return None

    def _rows(
        self, attempt: TransactionAttempt, offsets: Mapping[str, OffsetRange]
    ) -> Iterator[Mapping[str, Any]]:
        rejects = self.malformed == "reject"
        rows: Iterator[Any] = kafka_rows.read_messages(
            self._address(), offsets, self.timeout, self._columns(), rejects=rejects
        )
        return self._reading(attempt, rows)

    def _reading(self, attempt: TransactionAttempt, rows: Iterator[_Rows]) -> Iterator[_Rows]:
        try:
            with self._refusals(_RETRIED):
                yield from rows
        except kafka_rows.MisfitMessage as error:
            raise self._misfit(error, attempt) from None
        except kafka_rows.OffsetsGone as error:
            raise self._gone_rows(attempt, str(error)) from None

    def _columns(self) -> Mapping[str, ColumnType] | None:
        return declared_columns(self, "value_schema", self.value_schema)

    def _misfit(self, error: kafka_rows.MisfitMessage, attempt: TransactionAttempt) -> RowsRefused:
        remedy = "Correct value_schema, then clear the task"
        if isinstance(error, kafka_rows.MisfitTime):
            remedy = "Read the batch with Spark and leave this column out"
        skip = self.command("skip", attempt.txid)
        remedy += ". Or skip the batch: "
        problem = f"a message does not fit: {error}"
        return self.rows_refused(problem, Remedy((remedy, skip)), error.place)

    def _checked(self, attempt: TransactionAttempt, metadata: Any) -> dict[str, OffsetRange]:
        """Return the offsets in the metadata, after checking that Kafka still has them all."""
        if not isinstance(metadata, dict) or not metadata:
            raise OtherSource(
                source=repr(self), problem=f"{str(metadata)[:80]!r} names no partition"
            )
        with self._refusals(_RETRIED):
            snapshot = self._snapshot(sorted({split_name(name)[0] for name in metadata}))
            for name, rows in metadata.items():
                self._check_there(attempt, snapshot, name, rows)
            ends = {name: end_position(rows) for name, rows in metadata.items()}
            if others := self._other_messages(snapshot, ends):
                what = "; ".join(
                    f"{name}: offset {last.offset} has another message than was taken"
                    for name, last in others.items()
                )
                raise self._gone_rows(attempt, what)
        return {name: OffsetRange(rows["from"], rows["to"]) for name, rows in metadata.items()}

    def _check_there(
        self, attempt: TransactionAttempt, snapshot: OffsetsSnapshot, name: str, rows: Any
    ) -> None:
        if name in snapshot.away:
            raise self.refused(
                f"partition {name} cannot be reached: {snapshot.away[name]}", _RETRIED
            )
        extent = snapshot.extents.get(name)
        wanted = f"{name}: offsets {rows['from']} to {rows['to'] - 1}"
        if extent is None:
            raise self._gone_rows(attempt, f"{wanted}, because the topic or partition was deleted")
        if None not in (extent.topic_id, rows["topic_id"]) and extent.topic_id != rows["topic_id"]:
            raise self._gone_rows(
                attempt,
                f"{wanted} of topic {rows['topic_id']}, which was replaced by topic {extent.topic_id}",
            )
        if (
            rows["to"] > rows["from"]
            and not extent.first <= rows["from"] <= rows["to"] <= extent.end
        ):
            raise self._gone_rows(
                attempt, f"{wanted}, but the partition has only {extent.first} to {extent.end - 1}"
            )

    # --- Kafka -------------------------------------------------------------------------------------------------------

    def _address(self) -> KafkaAddress:
        return KafkaAddress.of_connection(self.conn_id, what=type(self).__name__)

    def _snapshot(self, topics: Sequence[str] | None = None) -> OffsetsSnapshot:
        wanted = topics or self.topics
        if self._offsets is not None:
            with suppress(KafkaUnreachable):
                return self._offsets.snapshot(wanted)
        # A client whose node is lost may not connect to another node, but a new client does.
        self._offsets = KafkaOffsets(self._address(), self.timeout)
        return self._offsets.snapshot(wanted)

    def _other_messages(
        self, snapshot: OffsetsSnapshot, positions: Mapping[str, Any]
    ) -> dict[str, LastMessage]:
        """Return the message that Kafka now has before each position, if it differs from the message that was taken."""
        taken = {}
        ranges = {}
        for name, position in positions.items():
            last = last_message_of(position)
            extent = snapshot.extents.get(name)
            if last is None or extent is None or extent.end < position["offset"]:
                continue
            if None in (extent.topic_id, position["topic_id"]) or (
                extent.topic_id == position["topic_id"]
            ):
                taken[name] = last
                ranges[name] = OffsetRange(max(last.offset, extent.first), position["offset"])
        found = self._last_messages(ranges)
        return {name: last for name, last in found.items() if last != taken[name]}

    def _last_messages(self, ranges: Mapping[str, OffsetRange]) -> dict[str, LastMessage]:
        try:
            return last_messages(self._address(), ranges, self.timeout)
        except kafka_rows.OffsetsGone as error:  # retention deleted them after the snapshot
            raise KafkaUnreachable(conn_id=self.conn_id, reason=str(error)) from None

    @contextmanager
    def _refusals(self, if_unreachable: str | None = None) -> Iterator[None]:
        """Convert KafkaRefused errors to a SourceError.

        :param if_unreachable: remedy for the error KafkaUnreachable, which is also converted, or None to raise it
            unchanged.
        """
        try:
            yield
        except KafkaRefused as error:
            remedy = f"Correct user, password and certificates of connection {self.conn_id}, or the user's rights."
            raise self.refused(str(error).rstrip("."), remedy) from None
        except KafkaUnreachable as error:
            if if_unreachable is None:
                raise
            raise self.refused(str(error).rstrip("."), if_unreachable) from None

    def _gone_rows(self, attempt: TransactionAttempt, what: str) -> SourceError:
        remedy: Remedy | str = self._without_them("skip", attempt.txid)
        if self.kind is SourceKind.OPAQUE:
            remedy = "Clear begin: the replay reads the remaining rows, or lists the lost rows."
        return self.refused(f"rows of transaction {attempt.txid} are gone: {what}", remedy)

    def _without_them(self, action: str, txid: int | None = None) -> Remedy:
        return "If the rows cannot be restored: " + self.command(action, txid) + "."


# --- source -------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_MANY = 20


class KafkaSource(KafkaTopics):
    """A source of Kafka topics. A transaction takes the next offsets of every partition.

    A row has the columns key, value, topic, partition, offset, timestamp and headers. The source reads only committed
    messages (``read_committed``), so a batch ends before the first open Kafka transaction. Limits count offsets.
    Markers and aborted messages also have offsets, so a batch may have fewer rows.

    Both kinds of source stop if Kafka has deleted the next rows, or if a topic was deleted and created again. They
    continue after a user has accepted the loss. If a partition has no leader, a transactional source stops, and an
    opaque source omits the partition.

    :param conn_id: Airflow connection of type kafka. Its extra contains the settings of librdkafka.
    :param topic: one topic, or several comma-separated topics: ``orders,returns``.
    :param starting: where the first transaction starts reading a topic: ``earliest`` or ``latest``. Partitions that are
        added later are always read from their first row.
    :param value_schema: Spark DDL, such as ``user STRING, amount DOUBLE``. The source parses values as JSON into a
        struct (without Spark, a dict). If a value does not fit the schema, the batch fails, and the error names the
        offset.
    :param options: options of Spark's connector, such as ``{"minPartitions": "8", "kafka.fetch.max.bytes": "..."}``.
    :param timeout: seconds to wait for a response from Kafka.
    :param malformed: how to handle a message that does not fit the `value_schema`. ``refuse`` fails the batch.
        ``reject`` writes the message to the `rejected` table of the `Transaction`.
    :param limits: the kind of the source, and the limits of a batch:

        - `kind`: ``transactional`` or ``opaque``;
        - `max_rows_per_batch`: the maximum number of offsets, over all partitions;
        - `max_bytes_per_batch`: the maximum size of keys and values, estimated from the next 200 rows;
        - `target_seconds`: how long processing should take. The number of rows is chosen accordingly.
    """

    def logs(self, positions: Mapping[str, Json]) -> Mapping[str, KafkaLog]:
        return self._logs_of(self._snapshot(), positions)

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        positions = self.partition_positions(position)
        leaves_out = self.kind is SourceKind.OPAQUE and positions
        try:
            with self._refusals(
                None if leaves_out else "Nothing was allocated; the task tries again."
            ):
                snapshot = self._snapshot()
                self._check_begin(snapshot, positions)
                logs = self._logs_of(snapshot, positions)
                batch = self._with_last(self.decide_of(logs, positions), snapshot, positions)
        except KafkaUnreachable as error:
            logs = {name: KafkaLog(name, repr(self), away=error.reason) for name in positions}
            batch = self.decide_of(logs, positions)
        self._warn_of_waiting(logs, batch)
        if batch is None or batch.count:
            return batch
        # A batch without rows only records the positions at which partitions begin.
        given: Any = batch.metadata
        return batch if any(logs[name].latest or not logs[name].new for name in given) else None

    def sizes(self, decision: LogDecision) -> Sequence[int]:
        usable = decision.usable
        most = sorted(usable, key=lambda name: -(usable[name].available or 0))[:_MANY]
        starts = {name: usable[name].position["offset"] for name in most}
        return kafka_rows.sample(self._address(), starts, self.timeout) if starts else []

    def gone_words(self, gone: Mapping[str, Gone]) -> tuple[str, Remedy]:
        named = "; ".join(each.description for each in list(gone.values())[:_MANY])
        more = " ..." if len(gone) > _MANY else ""
        remedy = self._without_them("accept-loss")
        return f"the rows that come next are gone: {named}{more}", remedy

    def backlog(self, position: Json) -> int | None:
        try:
            with self._refusals():
                return super().backlog(position)
        except KafkaUnreachable:
            return None

    def losses(self, position: Json) -> Sequence[Loss]:
        with self._refusals("Lost rows can be found only if Kafka is reachable."):
            return super().losses(position)

    def refuses_again(self, metadata: Json) -> str | None:
        assert isinstance(metadata, dict)
        rows: dict[str, Any] = metadata
        starts = {
            name: position_json(each["topic_id"], each["from"]) for name, each in rows.items()
        }
        ends = {name: end_position(each) for name, each in rows.items()}
        with self._refusals("Nothing was allocated; the task tries again."):
            logs = self._logs_of(self._snapshot(), ends)
        asked = [(name, each) for places in (starts, ends) for name, each in places.items()]
        found = (logs[name].snapshot(place).gone for name, place in asked if name in logs)
        return next((gone.description for gone in found if gone is not None), None)

    def _with_last(
        self,
        batch: Batch | None,
        snapshot: OffsetsSnapshot,
        positions: Mapping[str, Any],
    ) -> Batch | None:
        """Add the last message of each partition to the metadata and to the position of a batch."""
        if batch is None:
            return None
        rows: Any = batch.metadata
        after: Any = batch.position
        # A partition's first batch may start after older messages, and the last message may be one
        # of them.
        ranges = {
            name: OffsetRange(
                each["from"] if name in positions else snapshot.extents[name].first, each["to"]
            )
            for name, each in rows.items()
        }
        # For a partition without messages in this batch, keep the last message of an earlier batch.
        last = {name: last_message_of(each) for name, each in after.items()} | self._last_messages(
            ranges
        )
        return replace(
            batch,
            metadata={
                name: {**each, **last_message_json(last[name])} for name, each in rows.items()
            },
            position={
                name: {**each, **last_message_json(last[name])} for name, each in after.items()
            },
        )

    def _warn_of_waiting(self, logs: Mapping[str, KafkaLog], batch: Batch | None) -> None:
        """Log a warning for each partition that has no new rows because of an open Kafka transaction."""
        taken: Any = {} if batch is None else batch.metadata
        for name, each in logs.items():
            if each.extent is None or not each.extent.waiting or taken.get(name):
                continue
            topic, number = split_name(name)
            log.warning(
                "%r reads nothing from partition %s: its %s offsets from %s on wait for a Kafka transaction that is "
                "open at offset %s. Let its producer end it. If the producer is gone: kafka-transactions.sh "
                "--bootstrap-server BROKER abort --topic %s --partition %s --start-offset %s",
                self,
                name,
                each.extent.waiting,
                each.extent.end,
                each.extent.end,
                topic,
                number,
                each.extent.end,
            )

    def _logs_of(
        self, snapshot: OffsetsSnapshot, positions: Mapping[str, Json]
    ) -> dict[str, KafkaLog]:
        """Return the logs of the existing partitions, and of known partitions that an existing topic no longer has."""
        taken_up = {split_name(name)[0] for name in positions}
        lacking = {name for name in positions if split_name(name)[0] in snapshot.ids}
        others = self._other_messages(snapshot, positions)
        found = {}
        for name in sorted({*snapshot.extents, *snapshot.away, *lacking}):
            topic, _ = split_name(name)
            found[name] = KafkaLog(
                name,
                repr(self),
                topic_id=snapshot.ids.get(topic),
                extent=snapshot.extents.get(name),
                away=snapshot.away.get(name),
                new=topic not in taken_up,
                latest=self.starting == LATEST,
                other=others.get(name),
            )
        return found

    def _check_begin(self, snapshot: OffsetsSnapshot, positions: Mapping[str, Json]) -> None:
        """Raise an error if a topic without a batch is missing or has an unreachable partition."""
        taken_up = {split_name(name)[0] for name in positions}
        left_out = taken_up if self.kind is SourceKind.OPAQUE else set()
        if missing := [topic for topic in snapshot.missing if topic not in left_out]:
            remedy = "Nothing was allocated. Create it, or correct the source's topic."
            raise self.refused(f"topic {', '.join(missing)} does not exist", remedy)
        for name, reason in snapshot.away.items():
            if split_name(name)[0] not in taken_up:
                remedy = "Nothing was allocated. The first batch of a topic must reach all of its partitions."
                raise self.refused(f"partition {name} cannot be reached: {reason}", remedy)

    def partition_positions(self, position: Json) -> dict[str, Any]:
        positions = super().partition_positions(position)
        if not all(_is_position(own) for own in positions.values()):
            raise OtherSource(
                source=repr(self),
                problem=f"position {str(position)[:80]!r} has no offsets of Kafka",
            )
        return positions


def _is_position(own: Any) -> bool:
    counted = isinstance(own, dict) and all(
        isinstance(own.get(name, 0), int) for name in ("offset", "life")
    )
    return counted and "offset" in own and "topic_id" in own
