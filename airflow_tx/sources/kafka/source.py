"""Topics of Kafka: the next offsets of every partition are a transaction.

Source: storm-transactional-topologies (TransactionalKafkaSpout, OpaqueTransactionalKafkaSpout).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import OtherSource, PartitionUnavailable
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, Json, SourceKind
from airflow_tx.sources.kafka import rows as kafka_rows
from airflow_tx.sources.kafka.offsets import KafkaUnreachable
from airflow_tx.sources.kafka.positions import (
    OffsetRange,
    OffsetsSnapshot,
    available,
    chosen,
    life_of,
    losses,
    new_topics,
    position_json,
    split_name,
)
from airflow_tx.sources.kafka.topics import KafkaTopics

if TYPE_CHECKING:
    from airflow_tx.protocol.batch import Loss

_MANY = 20


class KafkaSource(KafkaTopics):
    """The next offsets of every partition are a transaction; rows have key, value, topic, partition, offset, timestamp
    and headers.

    Only what is committed is read (``read_committed``): a batch ends before the first transaction that is open in
    Kafka. Offsets are counted, and markers and aborted rows have some, too: a batch has at most as many rows.

    Rows that Kafka has deleted, or a topic that was deleted and made again, stop both kinds until a person accepts the
    loss. A partition without a leader, or all of them, stops a transactional source; an opaque one leaves it out.

    :param conn_id: Airflow connection of type kafka; its extra has the settings of librdkafka.
    :param topic: a topic, or several: ``orders,returns``.
    :param kind: ``transactional`` or ``opaque``.
    :param max_rows_per_batch: at most so many offsets, over all partitions.
    :param max_bytes_per_batch: at most so many bytes of keys and values, by the sizes of the next 200 rows.
    :param target_seconds: as many rows as are processed in so many seconds.
    :param starting: where a topic is taken up: ``earliest`` or ``latest``; a partition that is added later begins
        with its first row in any case.
    :param value_schema: Spark DDL, such as ``user STRING, amount DOUBLE``: values are JSON and become a struct (without
        Spark, a dict). A message that does not fit fails its batch, and names its offset.
    :param options: of Spark's connector, such as ``{"minPartitions": "8", "kafka.fetch.max.bytes": "..."}``.
    :param timeout: seconds to wait for an answer of Kafka.
    """

    _deciding: tuple[OffsetsSnapshot, dict[str, OffsetRange]] | None = None

    def partitions(self) -> list[str]:
        snapshot = self._snapshot() if self._deciding is None else self._deciding[0]
        return sorted({*snapshot.extents, *snapshot.away})

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        positions = self.partition_positions(position)
        leaves_out = self.kind is SourceKind.OPAQUE and positions
        try:
            with self._refusals(None if leaves_out else "Nothing was allocated; the task tries again."):
                snapshot = self._snapshot()
                self._check(snapshot, positions)
                self._deciding = snapshot, self._choose(snapshot, positions)
        except KafkaUnreachable as error:
            self._deciding = OffsetsSnapshot(away=dict.fromkeys(positions, error.reason)), {}
        try:
            return super().decide(attempt, position)
        finally:
            self._deciding = None

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Json) -> Batch | None:
        assert self._deciding is not None
        snapshot, taken = self._deciding
        if partition in snapshot.away:
            raise PartitionUnavailable(partition=partition, source=repr(self), reason=snapshot.away[partition])
        if partition not in taken:
            return None
        topic_id, own = snapshot.extents[partition].topic_id, taken[partition]
        rows: Json = {"topic_id": topic_id, "from": own.start, "to": own.end}
        after, start = position_json(topic_id, own.end, life_of(position)), position_json(topic_id, own.start)
        return Batch(rows, after, own.count, start=start, at_most=True)

    def limit_reason(self, count: int, positions: Mapping[str, Json]) -> str:
        assert self._deciding is not None
        snapshot, _ = self._deciding
        there = sum(each.count for each in available(snapshot, positions, self.starting).values())
        return self._limit.reason_for(count, there)

    def backlog(self, position: Json) -> int | None:
        positions = self.partition_positions(position)
        try:
            with self._refusals():
                found = available(self._snapshot(), positions, self.starting)
        except KafkaUnreachable:
            return None
        return sum(max(each.count, 0) for each in found.values())

    def losses(self, position: Json) -> Sequence[Loss]:
        with self._refusals("What is lost can only be found when it is there."):
            return losses(self._snapshot(), self.partition_positions(position))

    def _choose(self, snapshot: OffsetsSnapshot, positions: Mapping[str, Any]) -> dict[str, OffsetRange]:
        found = available(snapshot, positions, self.starting)
        there = {name: each.count for name, each in found.items() if each.count > 0}
        limit = self.limit
        if limit.bytes is not None and there:
            starts = {name: found[name].start for name in sorted(there, key=lambda name: -there[name])[:_MANY]}
            limit = limit.of_rows_of(kafka_rows.sample(self._address(), starts, self.timeout))
        self._limit = limit
        return chosen(found, limit.shares(there), snapshot, positions, self.starting)

    def _check(self, snapshot: OffsetsSnapshot, positions: Mapping[str, Any]) -> None:
        """Refuse what is gone, and to begin with less than all."""
        lost = losses(snapshot, positions)
        if lost:
            named = "; ".join(loss.description for loss in lost[:_MANY]) + (" ..." if len(lost) > _MANY else "")
            remedy = "Nothing was allocated. If they cannot be had again: airflow tx accept-loss TOPOLOGY --why TEXT; "
            remedy += "rows of an open transaction: airflow tx skip TOPOLOGY TXID --why TEXT."
            raise self.refused(f"the rows that come next are gone: {named}", remedy)
        if missing := [topic for topic in snapshot.missing if not self._left_out(topic, positions)]:
            remedy = "Nothing was allocated. Create it, or correct the source's topic."
            raise self.refused(f"topic {', '.join(missing)} does not exist", remedy)
        new = new_topics(snapshot, positions)
        for name, reason in snapshot.away.items():
            if split_name(name)[0] in new:
                remedy = "Nothing was allocated: where a topic begins is fixed for all of its partitions at once."
                raise self.refused(f"partition {name} cannot be reached: {reason}", remedy)

    def _left_out(self, topic: str, positions: Mapping[str, Any]) -> bool:
        return self.kind is SourceKind.OPAQUE and any(split_name(name)[0] == topic for name in positions)

    def _taking_part(self, positions: Mapping[str, Any], partitions: Sequence[str]) -> Sequence[str]:
        assert self._deciding is not None
        ids = self._deciding[0].ids
        # Of a topic that was made again with fewer partitions, whose loss was accepted.
        over = {name for name, own in positions.items() if own["topic_id"] == ids.get(split_name(name)[0], "")}
        kept = {name: own for name, own in positions.items() if name in partitions or name not in over}
        return super()._taking_part(kept, partitions)

    def partition_positions(self, position: Json) -> dict[str, Any]:
        positions = super().partition_positions(position)
        if not all(_is_position(own) for own in positions.values()):
            raise OtherSource(source=repr(self), problem=f"position {str(position)[:80]!r} has no offsets of Kafka")
        return positions


def _is_position(own: Any) -> bool:
    counted = isinstance(own, dict) and all(isinstance(own.get(name, 0), int) for name in ("offset", "life"))
    return counted and "offset" in own and "topic_id" in own
