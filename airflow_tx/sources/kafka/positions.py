"""Which offsets come next, and which are gone: from where partitions stand and what Kafka has of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.protocol.batch import Loss

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class Extent:
    """What Kafka has of a partition.

    :param topic_id: of its topic, by which one that was deleted and made again differs; None of a Kafka before 2.8.
    :param first: the first offset that is left.
    :param end: the offset behind the last row that can be read: before the first transaction that is still open.
    """

    topic_id: str | None
    first: int
    end: int


@dataclass(frozen=True)
class OffsetsSnapshot:
    """What Kafka said of the topics at one time.

    :param extents: by partition, of those that could be asked.
    :param away: by partition, why it could not be asked.
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


def place_of(topic_id: str | None, offset: int, life: int = 0) -> dict[str, Any]:
    """A place as the ledger keeps it.

    :param life: how often the partition was cut or made anew, so that no place comes twice; 0 is left out.
    """
    place: dict[str, Any] = {"topic_id": topic_id, "offset": offset}
    return {**place, "life": life} if life else place


def life_of(place: Any) -> int:
    """How often the partition was cut or made anew before a place; of none, 0."""
    return int(place.get("life", 0)) if place else 0


def begins(look: OffsetsSnapshot, places: Mapping[str, Any]) -> set[str]:
    """Find the topics that no batch has taken up yet."""
    return {topic for topic in look.ids if not any(split_name(name)[0] == topic for name in places)}


def available(look: OffsetsSnapshot, places: Mapping[str, Any], starting: str) -> dict[str, OffsetRange]:
    """By partition, the offsets that come next.

    A partition that came after its topic was taken up begins at 0: what is missing there was never read by anybody.
    So it gets that place first, with no rows, and what is gone is told as of any other.
    """
    new = begins(look, places)
    found = {}
    for name, extent in look.extents.items():
        if name in places:
            start = places[name]["offset"]
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
    look: OffsetsSnapshot,
    places: Mapping[str, Any],
    starting: str,
) -> dict[str, OffsetRange]:
    """The offsets of one batch; empty if there is none.

    :param shares: how many each partition may give.
    """
    new = begins(look, places)
    taken = {name: OffsetRange(each.start, each.start + shares.get(name, 0)) for name, each in found.items()}
    # Where a topic begins is fixed for all its partitions at once, also for those that have nothing yet.
    first = {name for name in taken if split_name(name)[0] in new}
    cut = {name for name in taken if name not in places and name not in first and look.extents[name].first > 0}
    if not any(each.count for each in taken.values()) and not cut and not (first and starting == LATEST):
        return {}
    return {name: each for name, each in taken.items() if each.count or name in first or name in cut}


def losses(look: OffsetsSnapshot, places: Mapping[str, Any]) -> list[Loss]:
    """The rows that come next and are gone, by what the topics have now."""
    return [loss for name in sorted(places) for loss in _loss(name, places[name], look)]


def _loss(name: str, place: Mapping[str, Any], look: OffsetsSnapshot) -> Iterator[Loss]:
    topic, offset, extent = split_name(name)[0], place["offset"], look.extents.get(name)
    if name in look.away or topic not in look.ids:
        return
    topic_id, life = look.ids[topic], life_of(place)
    if None not in (topic_id, place["topic_id"]) and topic_id != place["topic_id"]:
        goes_on = extent.first if extent else 0
        what = f"{name}: all from offset {offset} on of topic {place['topic_id']}, which was deleted; "
        what += f"the topic of this name is now {topic_id}, " + (
            f"from offset {goes_on} on" if extent else "without this partition"
        )
        yield Loss(name, dict(place), place_of(topic_id, goes_on, life + 1), what)
    elif extent is None:
        return
    elif offset < extent.first:
        what = f"{name}: offsets {offset} to {extent.first - 1}, the first one left is {extent.first}"
        yield Loss(name, dict(place), place_of(topic_id, extent.first, life), what)
    elif offset > extent.end:
        what = f"{name}: offset {offset} was reached, and the partition now ends at {extent.end}: it was cut, and what "
        what += f"is written again at offsets {extent.end} to {offset - 1} is new"
        yield Loss(name, dict(place), place_of(topic_id, extent.end, life + 1), what)
