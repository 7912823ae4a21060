"""The arguments of a Kafka source, and its emitter half: the rows at given offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_tx.connections.kafka import KafkaAddress
from airflow_tx.errors import OtherSource, RowsRefused, SourceError, TxError
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import EmittedRows, Json, SourceKind
from airflow_tx.sources.kafka import rows as kafka_rows
from airflow_tx.sources.kafka.last_message import last_messages
from airflow_tx.sources.kafka.offsets import KafkaOffsets, KafkaRefused, KafkaUnreachable
from airflow_tx.sources.kafka.positions import (
    EARLIEST,
    LATEST,
    LastMessage,
    OffsetRange,
    OffsetsSnapshot,
    end_position,
    last_message_of,
    split_name,
)
from airflow_tx.sources.message import declared_columns
from airflow_tx.sources.partitions import LogSource
from airflow_tx.sources.row_numbers import is_number_below, is_number_within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.rows.types import ColumnType

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
_RETRIED = "Nothing is lost; the task can be tried again."


class KafkaTopics(LogSource):
    """The base of `KafkaSource`: what the two halves share, and the emitter half."""

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
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
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
                remedy = "Logins belong into the connection; settings of the Java client go into its extra `spark`."
                raise self.unusable("options", name, remedy)
        return {str(name): str(value) for name, value in given.items()}

    def connections(self) -> Mapping[str, str]:
        return {self.conn_id: "kafka"}

    def close(self) -> None:
        self._offsets = None

    # --- the rows ----------------------------------------------------------------------------------------------------

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        offsets = self._checked(attempt, metadata)
        if spark is None:
            return self._rows(attempt, offsets)
        try:
            return kafka_rows.read_frame(
                spark, self._address(), offsets, self.options, self._columns()
            )
        except Exception as error:
            known = self.explain_error(attempt, error)
            if known is None:
                raise
            raise known from error

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
        if where := kafka_rows.misfit_in(error):
            return self._misfit(where, attempt)
        if kafka_rows.lacks_connector(error):
            remedy = f'Give it the jars: SparkBatchOperator(packages="{kafka_rows.CONNECTOR}"), or spark.jars.'
            return self.refused("Spark has no connector to Kafka", remedy)
        if kafka_rows.lost_rows(error):
            return self._gone_rows(attempt, "they were deleted while Spark read them")
        return None

    def _rows(
        self, attempt: TransactionAttempt, offsets: Mapping[str, OffsetRange]
    ) -> Iterator[Mapping[str, Any]]:
        try:
            with self._refusals(_RETRIED):
                yield from kafka_rows.read_messages(
                    self._address(), offsets, self.timeout, self._columns()
                )
        except kafka_rows.MisfitMessage as error:
            raise self._misfit(str(error), attempt) from None
        except kafka_rows.OffsetsGone as error:
            raise self._gone_rows(attempt, str(error)) from None

    def _columns(self) -> Mapping[str, ColumnType] | None:
        return declared_columns(self, "value_schema", self.value_schema)

    def _misfit(self, what: str, attempt: TransactionAttempt) -> RowsRefused:
        remedy = "Correct value_schema, then clear the task"
        if "column timestamp" in what:
            remedy = "Read the batch with Spark, without this column"
        skip = self.command("skip", attempt.txid)
        remedy += f"; or take the batch out of the way: {skip}"
        return self.rows_refused(f"a message does not fit: {what}", remedy)

    def _checked(self, attempt: TransactionAttempt, metadata: Any) -> dict[str, OffsetRange]:
        """Read the offsets of metadata, and check that Kafka has all of them."""
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
            raise self._gone_rows(attempt, f"{wanted}, the topic or partition was deleted")
        if None not in (extent.topic_id, rows["topic_id"]) and extent.topic_id != rows["topic_id"]:
            raise self._gone_rows(
                attempt, f"{wanted} of topic {rows['topic_id']}, now it is {extent.topic_id}"
            )
        if (
            rows["to"] > rows["from"]
            and not extent.first <= rows["from"] <= rows["to"] <= extent.end
        ):
            raise self._gone_rows(attempt, f"{wanted}, it has {extent.first} to {extent.end - 1}")

    # --- Kafka -------------------------------------------------------------------------------------------------------

    def _address(self) -> KafkaAddress:
        return KafkaAddress.of_connection(self.conn_id, what=type(self).__name__)

    def _snapshot(self, topics: Sequence[str] | None = None) -> OffsetsSnapshot:
        wanted = topics or self.topics
        if self._offsets is not None:
            with suppress(KafkaUnreachable):
                return self._offsets.snapshot(wanted)
        # A client that was connected to a node which is lost may look for no other node. A new client does.
        self._offsets = KafkaOffsets(self._address(), self.timeout)
        return self._offsets.snapshot(wanted)

    def _other_messages(
        self, snapshot: OffsetsSnapshot, positions: Mapping[str, Any]
    ) -> dict[str, LastMessage]:
        """Find partitions whose last message before a position is another one than was taken: which one it is now."""
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
        except kafka_rows.OffsetsGone as error:  # retention deleted them since the snapshot
            raise KafkaUnreachable(conn_id=self.conn_id, reason=str(error)) from None

    @contextmanager
    def _refusals(self, if_unreachable: str | None = None) -> Iterator[None]:
        """Turn a refusal of Kafka into one of the source; and no answer, too, if there is a remedy for it."""
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
        remedy = f"If they cannot be had again: {self.command('skip', attempt.txid)}."
        if self.kind is SourceKind.OPAQUE:
            remedy = "Clear begin: the replay has the rows that are left, or says what is lost."
        return self.refused(f"rows of transaction {attempt.txid} are gone: {what}", remedy)
