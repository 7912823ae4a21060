"""Offsets of Kafka: what it has of the partitions, and positions as the ledger keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True)
class Extent:
    """What Kafka has of a partition.

    :param topic_id: of its topic, by which one that was deleted and made again differs; None before Kafka 2.8.
    :param first: the first offset that is left.
    :param end: the offset behind the last row that can be read: before the first transaction that is still open.
    :param waiting: offsets from there on: of this transaction, and of what was written after it.
    """

    topic_id: str | None
    first: int
    end: int
    waiting: int = 0


@dataclass(frozen=True)
class LastMessage:
    """The last message that was taken of a partition.

    :param offset: its offset.
    :param digest: of its content and time.
    """

    offset: int
    digest: str


@dataclass(frozen=True)
class OffsetsSnapshot:
    """What Kafka said of the topics at one time.

    :param extents: by partition, of the partitions that answered.
    :param away: by partition, why it did not answer.
    :param missing: topics that do not exist.
    :param ids: by topic, its id.
    """

    extents: Mapping[str, Extent] = field(default_factory=dict)
    away: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    ids: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of a partition, `end` excluded."""

    start: int
    end: int

    @property
    def count(self) -> int:
        """Count the offsets; of rows, there are at most so many."""
        return self.end - self.start


def partition_name(topic: str, number: int) -> str:
    """Spell a partition as Kafka does: orders-0."""
    return f"{topic}-{number}"


def split_name(partition: str) -> tuple[str, int]:
    topic, _, number = partition.rpartition("-")
    return topic, int(number)


def position_json(
    topic_id: str | None, offset: int, life: int = 0, last: LastMessage | None = None
) -> dict[str, Any]:
    """Spell a position as the ledger keeps it.

    :param life: how often the partition was cut or made again, so that no position comes twice; 0 is left out.
    :param last: the last message before `offset`; None is left out.
    """
    position: dict[str, Any] = {"topic_id": topic_id, "offset": offset}
    if life:
        position["life"] = life
    return {**position, **last_message_json(last)}


def last_message_json(last: LastMessage | None) -> dict[str, Any]:
    """Spell the last message that was taken, as a part of a position or of a batch."""
    return {} if last is None else {"last": vars(last)}


def last_message_of(spelled: Mapping[str, Any]) -> LastMessage | None:
    """Read the last message that was taken from a position or a batch."""
    last = spelled.get("last")
    return None if last is None else LastMessage(**last)


def end_position(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Spell the position behind the rows of a partition in a batch."""
    return position_json(rows["topic_id"], rows["to"], last=last_message_of(rows))
