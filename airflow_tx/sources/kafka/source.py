"""Topics of Kafka: the next offsets of every partition are a transaction.

Source: storm-transactional-topologies (TransactionalKafkaSpout, OpaqueTransactionalKafkaSpout).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import OtherSource
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, Json, SourceKind
from airflow_tx.sources.kafka import rows as kafka_rows
from airflow_tx.sources.kafka.log import KafkaLog
from airflow_tx.sources.kafka.offsets import KafkaUnreachable
from airflow_tx.sources.kafka.positions import (
    LATEST,
    OffsetRange,
    OffsetsSnapshot,
    end_position,
    last_message_json,
    last_message_of,
    position_json,
    split_name,
)
from airflow_tx.sources.kafka.topics import KafkaTopics
from airflow_tx.sources.partitions import Gone, LogDecision

if TYPE_CHECKING:
    from airflow_tx.protocol.batch import Loss

log = logging.getLogger(__name__)

_MANY = 20


class KafkaSource(KafkaTopics):
    """The next offsets of every partition are a transaction; rows have key, value, topic, partition, offset, timestamp
    and headers.

    Only what is committed is read (``read_committed``): a batch ends before the first transaction that is open in
    Kafka. Offsets are counted, and markers and aborted rows have some, too: a batch has at most as many rows.

    Rows that Kafka has deleted, or a topic that was deleted and made again, stop both kinds until a person accepts the
    loss. A partition without a leader, or all of them, stops a transactional source; an opaque one leaves it out.

    :param conn_id: Airflow connection of type kafka; its extra contains the settings of librdkafka.
    :param topic: one topic, or several topics with commas between them: ``orders,returns``.
    :param starting: where the first transaction begins to read a topic: ``earliest`` or ``latest``. A partition that is
        added later always begins with its first row.
    :param value_schema: Spark DDL, such as ``user STRING, amount DOUBLE``: the source parses values as JSON, and makes
        a struct of each (without Spark, a dict). If a value does not fit the schema, the batch fails, and the error
        names the offset.
    :param options: options of Spark's connector, such as ``{"minPartitions": "8", "kafka.fetch.max.bytes": "..."}``.
    :param timeout: how many seconds to wait for an answer of Kafka.
    :param limits: the kind of the source, and the limits of a batch:

        - `kind`: ``transactional`` or ``opaque``;
        - `max_rows_per_batch`: the maximum number of offsets, over all partitions;
        - `max_bytes_per_batch`: the maximum size of keys and values, estimated from the next 200 rows;
        - `target_seconds`: how long processing should take. The source chooses the number of rows accordingly.
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
        # Without rows, a batch is only there to fix where partitions begin.
        given: Any = batch.metadata
        return batch if any(logs[name].latest or not logs[name].new for name in given) else None

    def sizes(self, decision: LogDecision) -> Sequence[int]:
        usable = decision.usable
        most = sorted(usable, key=lambda name: -(usable[name].available or 0))[:_MANY]
        starts = {name: usable[name].position["offset"] for name in most}
        return kafka_rows.sample(self._address(), starts, self.timeout) if starts else []

    def gone_words(self, gone: Mapping[str, Gone]) -> tuple[str, str]:
        named = "; ".join(each.description for each in list(gone.values())[:_MANY])
        more = " ..." if len(gone) > _MANY else ""
        remedy = f"If they cannot be had again: {self.command('accept-loss')}."
        return f"the rows that come next are gone: {named}{more}", remedy

    def backlog(self, position: Json) -> int | None:
        try:
            with self._refusals():
                return super().backlog(position)
        except KafkaUnreachable:
            return None

    def losses(self, position: Json) -> Sequence[Loss]:
        with self._refusals("Losses can only be found when Kafka can be reached."):
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
        """Put the last message of each partition into what the ledger keeps of a batch."""
        if batch is None:
            return None
        rows: Any = batch.metadata
        after: Any = batch.position
        # Before the first batch of a partition are messages that it leaves out.
        ranges = {
            name: OffsetRange(
                each["from"] if name in positions else snapshot.extents[name].first, each["to"]
            )
            for name, each in rows.items()
        }
        # Of a batch without a message, the last one of an earlier batch stays.
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
        """Name partitions that give nothing, since a transaction of Kafka is open."""
        taken: Any = {} if batch is None else batch.metadata
        for name, each in logs.items():
            if each.extent is None or not each.extent.waiting or taken.get(name):
                continue
            topic, number = split_name(name)
            log.warning(
                "%r gets nothing from partition %s: its %s offsets from %s on wait for a transaction of Kafka that "
                "is open at offset %s. Let its producer end it; if the producer is gone: kafka-transactions.sh "
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
        """Make the logs of the existing partitions, and of partitions that a topic of another id no longer has."""
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
        """Refuse to begin with less than all."""
        taken_up = {split_name(name)[0] for name in positions}
        left_out = taken_up if self.kind is SourceKind.OPAQUE else set()
        if missing := [topic for topic in snapshot.missing if topic not in left_out]:
            remedy = "Nothing was allocated. Create it, or correct the source's topic."
            raise self.refused(f"topic {', '.join(missing)} does not exist", remedy)
        for name, reason in snapshot.away.items():
            if split_name(name)[0] not in taken_up:
                remedy = "Nothing was allocated: where a topic begins is fixed for all of its partitions at once."
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
