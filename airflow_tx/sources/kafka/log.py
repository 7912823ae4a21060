"""One partition of Kafka as a log: which offsets come next, and which are gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_tx.errors import PartitionUnavailable
from airflow_tx.sources.kafka.positions import Extent, LastMessage, last_message_of, position_json
from airflow_tx.sources.partitions import Gone, LogBatch, LogSnapshot, PartitionLog


@dataclass(frozen=True)
class KafkaSnapshot(LogSnapshot):
    """The rows after an offset.

    :param begins: whether the partition gets a position now even if it has no rows.
    """

    begins: bool = False


@dataclass(frozen=True)
class KafkaLog(PartitionLog):
    """What Kafka said of one partition.

    :param name: of the partition.
    :param source: repr of the source.
    :param topic_id: id of the topic that has this name now.
    :param extent: its offsets; None: the topic has no such partition now.
    :param away: why it cannot be reached; None: it can.
    :param new: whether no batch has taken up its topic.
    :param latest: whether a new topic is read from its end on.
    :param other: the last message before the position, if it is another one than was taken.
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
        """Count the rows after a position, also rows that wait for an open transaction of Kafka."""
        return super().backlog(position) + (self.extent.waiting if self.extent else 0)

    def _first(self) -> KafkaSnapshot:
        """Begin a partition.

        One that came after its topic was taken up begins at 0: what is missing there was never read. It gets that
        position first, with no rows. The next decision finds what is gone, as of any other partition.
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
            return Gone(what, position_json(self.topic_id, end, life + 1))
        if self.other is not None:
            what = f"{self.name}: it was cut and written again: offset {self.other.offset} has another message than "
            what += f"was taken, and new messages before offset {offset} are in no batch"
            return Gone(what, position_json(self.topic_id, offset, life + 1, self.other))
        return None
