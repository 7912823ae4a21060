"""Topics of Kafka: the next offsets of every partition are a transaction.

Source: storm-transactional-topologies (TransactionalKafkaSpout, OpaqueTransactionalKafkaSpout).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    begins,
    chosen,
    life_of,
    losses,
    place_of,
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

    Rows that Kafka has deleted, or a topic that was made anew, stop both kinds until a person accepts the loss. A
    partition without a leader, or all of them, stops a transactional source; an opaque one goes on without it.

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
        look = self._look() if self._deciding is None else self._deciding[0]
        return sorted({*look.extents, *look.away})

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        places = self._places(position)
        try:
            with self._named():
                look = self._look()
                self._check(look, places)
                self._deciding = look, self._choose(look, places)
        except KafkaUnreachable as error:
            if self.kind is SourceKind.OPAQUE and places:
                # All of them are away.
                look = OffsetsSnapshot(away=dict.fromkeys(places, error.reason))
                self._deciding = look, {}
            else:
                raise self.refused(str(error).rstrip("."), "Nothing was allocated; the task tries again.") from None
        try:
            return super().decide(attempt, position)
        finally:
            self._deciding = None

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Json) -> Batch | None:
        look, taken = self._deciding or self._alone(partition, position)
        if partition in look.away:
            raise PartitionUnavailable(partition=partition, source=repr(self), reason=look.away[partition])
        if partition not in taken:
            return None
        topic_id, own = look.extents[partition].topic_id, taken[partition]
        rows: Json = {"topic_id": topic_id, "from": own.start, "to": own.end}
        return Batch(
            rows, place_of(topic_id, own.end, life_of(position)), own.count, start=place_of(topic_id, own.start)
        )

    def limit_reason(self, count: int, places: Mapping[str, Json]) -> str:
        assert self._deciding is not None
        look, _ = self._deciding
        there = sum(each.count for each in available(look, places, self.starting).values())
        return self._told.reason_for(count, there)

    def backlog(self, position: Json) -> int | None:
        places = self._places(position)
        try:
            with self._named():
                found = available(self._look(), places, self.starting)
        except KafkaUnreachable:
            return None
        return sum(max(each.count, 0) for each in found.values())

    def losses(self, position: Json) -> Sequence[Loss]:
        try:
            with self._named():
                return losses(self._look(), self._places(position))
        except KafkaUnreachable as error:
            raise self.refused(str(error).rstrip("."), "What is lost can only be told when it is there.") from None

    def _alone(self, partition: str, place: Json) -> tuple[OffsetsSnapshot, dict[str, OffsetRange]]:
        places = {} if place is None else self._places({partition: place})
        try:
            with self._named():
                look = self._look()
                look = replace(look, extents={name: each for name, each in look.extents.items() if name == partition})
                self._check(look, places)
                return look, self._choose(look, places)
        except KafkaUnreachable as error:
            return OffsetsSnapshot(away={partition: error.reason}), {}

    def _choose(self, look: OffsetsSnapshot, places: Mapping[str, Any]) -> dict[str, OffsetRange]:
        found = available(look, places, self.starting)
        there = {name: each.count for name, each in found.items() if each.count > 0}
        limit = self.limit
        if limit.bytes is not None and there:
            starts = {name: found[name].start for name in sorted(there, key=lambda name: -there[name])[:_MANY]}
            limit = limit.of_rows_of(kafka_rows.sample(self._address(), starts, self.timeout))
        self._told = limit
        return chosen(found, limit.shares(there), look, places, self.starting)

    def _check(self, look: OffsetsSnapshot, places: Mapping[str, Any]) -> None:
        """Refuse what is gone, and to begin with less than all."""
        lost = losses(look, places)
        if lost:
            named = "; ".join(loss.description for loss in lost[:_MANY]) + (" ..." if len(lost) > _MANY else "")
            remedy = (
                "Nothing was allocated. If they cannot be had again: airflow tx accept-loss TOPOLOGY --why TEXT; rows "
                "of an open transaction: airflow tx skip TOPOLOGY TXID --why TEXT."
            )
            raise self.refused(f"the rows that come next are gone: {named}", remedy)
        if missing := [topic for topic in look.missing if not self._left_out(topic, places)]:
            remedy = "Nothing was allocated. Create it, or correct the source's topic."
            raise self.refused(f"topic {', '.join(missing)} does not exist", remedy)
        new = begins(look, places)
        for name, reason in look.away.items():
            if split_name(name)[0] in new:
                remedy = "Nothing was allocated: where a topic begins is fixed for all of its partitions at once."
                raise self.refused(f"partition {name} cannot be reached: {reason}", remedy)

    def _left_out(self, topic: str, places: Mapping[str, Any]) -> bool:
        return self.kind is SourceKind.OPAQUE and any(split_name(name)[0] == topic for name in places)

    def _taking_part(self, places: Mapping[str, Json]) -> Sequence[str]:
        assert self._deciding is not None
        ids = self._deciding[0].ids
        # Of a topic that was made anew with fewer partitions, whose loss was accepted.
        over = {name for name, place in places.items() if place["topic_id"] == ids.get(split_name(name)[0], "")}  # type: ignore[index,call-overload]
        found = self.partitions()
        return super()._taking_part(
            {name: place for name, place in places.items() if name in found or name not in over}
        )

    def _places(self, position: Json) -> dict[str, Any]:
        if position is None:
            return {}
        if not isinstance(position, dict) or not all(_is_place(place) for place in position.values()):
            raise OtherSource(source=repr(self), problem=f"position {str(position)[:80]!r} has no offsets of Kafka")
        return position


def _is_place(place: Any) -> bool:
    counted = isinstance(place, dict) and all(isinstance(place.get(name, 0), int) for name in ("offset", "life"))
    return counted and "offset" in place and "topic_id" in place
