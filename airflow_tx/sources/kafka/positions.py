"""Which offsets come next, and which are gone: by the positions and what Kafka has of the partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.protocol.batch import Loss

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class Extent:
    """What Kafka has of a partition.

    :param topic_id: of its topic, by which one that was deleted and made again differs; None before Kafka 2.8.
    :param first: the first offset that is left.
    :param end: the offset behind the last row that can be read: before the first transaction that is still open.
    """

    topic_id: str | None
    first: int
    end: int


@dataclass(frozen=True)
class OffsetsSnapshot:
    """What Kafka said of the topics at one time.

    :param extents: by partition, of those that answered.
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


def position_json(topic_id: str | None, offset: int, life: int = 0) -> dict[str, Any]:
    """Spell a position as the ledger keeps it.

    :param life: how often the partition was cut or made again, so that no position comes twice; 0 is left out.
    """
    position: dict[str, Any] = {"topic_id": topic_id, "offset": offset}
    return {**position, "life": life} if life else position


def life_of(position: Any) -> int:
    return int(position.get("life", 0)) if position else 0


def new_topics(snapshot: OffsetsSnapshot, positions: Mapping[str, Any]) -> set[str]:
    """Find the topics that no batch has taken up yet."""
    return {topic for topic in snapshot.ids if not any(split_name(name)[0] == topic for name in positions)}


def available(snapshot: OffsetsSnapshot, positions: Mapping[str, Any], starting: str) -> dict[str, OffsetRange]:
    """Find, by partition, the offsets that come next.

    A partition that came after its topic was taken up begins at 0: what is missing there was never read. So it gets
    that position first, with no rows, and what is gone is found as of any other.
    """
    new = new_topics(snapshot, positions)
    found = {}
    for name, extent in snapshot.extents.items():
        if name in positions:
            start = positions[name]["offset"]
        elif split_name(name)[0] in new:
            start = extent.end if starting == LATEST else extent.first
        else:
            start = 0
            if extent.first > 0:
                found[name] = OffsetRange(0, 0)
                continue
        found[name] = OffsetRange(start, extent.end)
    return found


def chosen(
    found: Mapping[str, OffsetRange],
    shares: Mapping[str, int],
    snapshot: OffsetsSnapshot,
    positions: Mapping[str, Any],
    starting: str,
) -> dict[str, OffsetRange]:
    """Choose the offsets of one batch, of each partition as many as its share; empty if there is none."""
    new = new_topics(snapshot, positions)
    taken = {name: OffsetRange(each.start, each.start + shares.get(name, 0)) for name, each in found.items()}
    # Where a topic begins is fixed for all its partitions at once, also for those that have nothing yet.
    first = {name for name in taken if split_name(name)[0] in new}
    cut = {name for name in taken if name not in positions and name not in first and snapshot.extents[name].first > 0}
    if not any(each.count for each in taken.values()) and not cut and not (first and starting == LATEST):
        return {}
    return {name: each for name, each in taken.items() if each.count or name in first or name in cut}


def losses(snapshot: OffsetsSnapshot, positions: Mapping[str, Any]) -> list[Loss]:
    """Find the rows that come next and are gone, by what the topics have now."""
    return [loss for name in sorted(positions) for loss in _loss(name, positions[name], snapshot)]


def _loss(name: str, position: Mapping[str, Any], snapshot: OffsetsSnapshot) -> Iterator[Loss]:
    topic, offset, extent = split_name(name)[0], position["offset"], snapshot.extents.get(name)
    if name in snapshot.away or topic not in snapshot.ids:
        return
    topic_id, life = snapshot.ids[topic], life_of(position)
    if None not in (topic_id, position["topic_id"]) and topic_id != position["topic_id"]:
        what = f"{name}: all from offset {offset} on of topic {position['topic_id']}, which was deleted; "
        what += f"the topic of this name is now {topic_id}, "
        what += f"from offset {extent.first} on" if extent else "without this partition"
        resume_at = position_json(topic_id, extent.first if extent else 0, life + 1)
        yield Loss(name, dict(position), resume_at, what)
    elif extent is None:
        return
    elif offset < extent.first:
        what = f"{name}: offsets {offset} to {extent.first - 1}, the first one left is {extent.first}"
        yield Loss(name, dict(position), position_json(topic_id, extent.first, life), what)
    elif offset > extent.end:
        what = f"{name}: offset {offset} was reached, and the partition now ends at {extent.end}: it was cut, and what "
        what += f"is written again at offsets {extent.end} to {offset - 1} is new"
        yield Loss(name, dict(position), position_json(topic_id, extent.end, life + 1), what)
