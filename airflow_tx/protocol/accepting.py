"""Rows that a source has lost, and that a person accepts as lost: it goes on behind them, on the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_tx.errors import LossRefused
from airflow_tx.protocol.audit import Audit, note
from airflow_tx.protocol.loss import WHOLE, Loss
from airflow_tx.protocol.metadata import position_before
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reading import Reader
from airflow_tx.protocol.records import Counter, TopologyRecord, digest, encode
from airflow_tx.protocol.requirement import Put
from airflow_tx.protocol.step import Decision, Repaired, Stamp

ACCEPT_LOSS = "accept-loss"


@dataclass(frozen=True)
class Place:
    """Where a source is told to go on.

    :param position: behind the accepted losses; of a partitioned source by partition.
    :param lost: by partition, the rows between there and where the transaction before ended, in words.
    """

    position: Any
    lost: Mapping[str, list[str]] = field(hash=False, default_factory=dict)

    @property
    def digest(self) -> str:
        """Tells an answer of the source from one that it gave before a loss was accepted."""
        return digest(self.position)

    def passed(self, after: Any) -> list[str]:
        """The lost rows that a batch leaves behind.

        :param after: where the source stands after it; of a partitioned source by partition, of those that take part.
        """
        return [
            what for partition, each in self.lost.items() if partition == WHOLE or partition in after for what in each
        ]


def going_on_at(topology: TopologyRecord, position: Any) -> Place:
    """Where a source goes on once the transaction before has ended at `position`."""
    if not topology.accepted or position is None:
        return Place(position)
    if not topology.partitioned:
        place, lost = _behind(topology, WHOLE, position)
        return Place(place, {WHOLE: lost})
    behind = {partition: _behind(topology, partition, place) for partition, place in position.items()}
    places = {partition: place for partition, (place, _) in behind.items()}
    return Place(places, {partition: lost for partition, (_, lost) in behind.items()})


def _behind(topology: TopologyRecord, partition: str, place: Any) -> tuple[Any, list[str]]:
    lost: list[str] = []
    left = list(topology.accepted.get(partition, []))
    # What is behind one loss may be the place of another one. Each counts once: they might lead in a circle.
    while (loss := next((each for each in left if each["place"] == place), None)) is not None:
        left.remove(loss)
        place = loss["goes_on"]
        lost.append(loss["what"])
    return place, lost


def standing(read: Reader, paths: Paths) -> Any:
    """Where the source stands after the last committed or skipped transaction; None before the first one."""
    topology = read.peek_if_any(TopologyRecord, paths.record)
    if topology is None:
        return None
    return going_on_at(topology, position_before(read, paths, read.peek(Counter, paths.current).txid)).position


def deciding_from(read: Reader, paths: Paths) -> list[Any]:
    """Every place from which the rows of a transaction will still be decided, by a new one or by a replay.

    :raises UnreadableRecord: there is no such topology, or the ledger changes just now.
    """
    topology = read.peek(TopologyRecord, paths.record)
    current, allocated = read.peek(Counter, paths.current).txid, read.peek(Counter, paths.allocated).txid
    # A transactional source decides once, and a replay has the same rows.
    first = allocated + 1 if topology.source_kind == "transactional" else current
    positions = [position_before(read, paths, txid) for txid in range(first, allocated + 2)]
    return [going_on_at(topology, position).position for position in positions if position is not None]


def accept_loss(read: Reader, stamp: Stamp, *, paths: Paths, losses: Sequence[Loss], audit: Audit) -> Decision:
    """Note that the rows of `losses` are lost: they are in no batch; everything before and after them is.

    :raises LossRefused: nothing is lost.
    """
    topology = read.get(TopologyRecord, paths.record)
    current = read.peek(Counter, paths.current)
    if not losses:
        raise LossRefused(topology=paths.topology)
    accepted = {partition: list(before) for partition, before in topology.accepted.items()}
    for loss in losses:
        others = [each for each in accepted.get(loss.partition, []) if each["place"] != loss.place]
        mine = {"place": loss.place, "goes_on": loss.goes_on, "what": loss.what, **audit.noted(stamp)}
        accepted[loss.partition] = [*others, mine]
    after = replace(topology, accepted=accepted, op=stamp.op)
    told = "lost, and in no batch: " + "; ".join(loss.what for loss in losses)
    noted = note(read, stamp, paths, audit, what=ACCEPT_LOSS, generation=after.generation, told=told)
    writes = (Put(paths.record, encode(after)), *noted)
    return Decision(writes, Repaired(after.generation, current.txid, told), paths.record)
