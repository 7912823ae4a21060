"""Accepted losses of a source's rows, and the position after them, from which the next batch begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.base.errors import LossRefused, PreviewOutdated, UnreadableRecord
from airflow_tx.ledger.answers import Repaired
from airflow_tx.ledger.api import Paths, Put
from airflow_tx.ledger.batch import WHOLE
from airflow_tx.ledger.batch_words import shortened
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.life import ACCEPT_LOSS
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState
from airflow_tx.ledger.records import Counter, Loss, RepairRecord, TopologyRecord, encode
from airflow_tx.ledger.steps.step import Audit, Decision, Stamp, next_repair

LOSSES_A_RECORD = 500
"""Maximum number of losses in one repair record."""


@dataclass(frozen=True)
class StartPosition:
    """The position from which the next batch of a source begins.

    :param position: position after the accepted losses, by partition if the source has partitions.
    :param lost: descriptions of the lost rows between the end of the previous transaction and `position`, by partition.
    """

    position: Any
    lost: Mapping[str, list[str]] = field(hash=False, default_factory=dict)

    def passed(self, after: Any) -> list[str]:
        """Return descriptions of the accepted losses before the batch.

        :param after: the position after the batch. For a partitioned source, the position of each partition that has
            rows in the batch.
        """
        return shortened(
            [
                what
                for partition, each in self.lost.items()
                if partition == WHOLE or partition in after
                for what in each
            ]
        )


def start_after(
    read: Reader, paths: Paths, topology: TopologyRecord, position: Any
) -> StartPosition:
    """Return the position from which the next batch begins, if the previous batch ended at `position`."""
    accepted = _accepted(read, paths, topology)
    if not accepted or position is None:
        return StartPosition(topology.origin if position is None else position)
    if not topology.partitioned:
        behind = losses_behind(accepted, WHOLE, position)
        return StartPosition(
            behind[-1].resume_at if behind else position,
            {WHOLE: [each.description for each in behind]},
        )
    places = {}
    lost = {}
    for partition, place in position.items():
        behind = losses_behind(accepted, partition, place)
        places[partition] = behind[-1].resume_at if behind else place
        lost[partition] = [each.description for each in behind]
    return StartPosition(places, lost)


def _accepted(read: Reader, paths: Paths, topology: TopologyRecord) -> dict[str, list[Loss]]:
    """Read the accepted losses that may still precede a batch, by partition. The last loss at a position counts."""
    found: dict[str, list[Loss]] = {}
    for number in topology.losses:
        for loss in read.peek(RepairRecord, paths.repair(number)).losses:
            before = found.get(loss.partition, [])
            others = [each for each in before if each.position != loss.position]
            found[loss.partition] = [*others, loss]
    return found


def losses_behind(accepted: Mapping[str, Sequence[Loss]], partition: str, place: Any) -> list[Loss]:
    """Return the consecutive losses from a position to the next position with rows."""
    behind: list[Loss] = []
    left = list(accepted.get(partition, []))
    # A loss may end where another begins. Return each loss once, since the losses might form a
    # circle.
    while (loss := next((each for each in left if each.position == place), None)) is not None:
        left.remove(loss)
        place = loss.resume_at
        behind.append(loss)
    return behind


def without_passed(
    read: Reader, paths: Paths, topology: TopologyRecord, txid: int
) -> TopologyRecord:
    """Return the topology record without the losses that no later batch can reach, now that `txid` ends.

    Losses after the position of `txid` or of an open transaction remain in the record. The repair record still shows
    who accepted a loss.
    """
    accepted = _accepted(read, paths, topology)
    if not accepted:
        return topology
    ahead: set[tuple[str, str]] = set()
    state = RotatingTransactionalState(read, paths)
    for each in range(txid, state.last_txid + 1):
        meta = state.get_state(each)
        places = (
            [(meta.position or {}), (meta.begin or {})]
            if topology.partitioned
            else [{WHOLE: meta.position}]
        )
        for partition, place in (item for found in places for item in found.items()):
            ahead |= {
                (partition, digest(loss.position))
                for loss in losses_behind(accepted, partition, place)
            }

    def is_ahead(number: int) -> bool:
        losses = read.peek(RepairRecord, paths.repair(number)).losses
        return any((each.partition, digest(each.position)) in ahead for each in losses)

    return replace(topology, losses=[number for number in topology.losses if is_ahead(number)])


def position_now(read: Reader, paths: Paths) -> Any:
    """Read the position of the source after the last final transaction. Return None before the first one."""
    topology = read.peek_if_any(TopologyRecord, paths.record)
    if topology is None:
        return None
    position = RotatingTransactionalState(read, paths).position_before(
        read.peek(Counter, paths.current).txid
    )
    return start_after(read, paths, topology, position).position


def deciding_from(read: Reader, paths: Paths) -> list[Any]:
    """Read every position from which the batch of a new transaction or of a replay will begin.

    :raises UnreadableRecord: there is no such topology, or the ledger is changing.
    """
    topology = read.peek(TopologyRecord, paths.record)
    current = read.peek(Counter, paths.current).txid
    allocated = read.peek(Counter, paths.allocated).txid
    # A transactional source decides a batch once, so its replays need no position.
    first = allocated + 1 if topology.source_kind == "transactional" else current
    state = RotatingTransactionalState(read, paths)
    positions = [state.position_before(txid) for txid in range(first, allocated + 2)]
    return [
        start_after(read, paths, topology, position).position
        for position in positions
        if position is not None
    ]


def next_position(read: Reader, paths: Paths) -> Any:
    """Read the position from which the next new transaction begins. Return None if there is none yet."""
    topology = read.peek_if_any(TopologyRecord, paths.record)
    if topology is None:
        return None
    while True:
        state = RotatingTransactionalState(read, paths)
        try:
            last = state.get_last_state()
        except UnreadableRecord:
            if read.peek(Counter, paths.allocated).txid == state.last_txid:
                raise
        else:
            return start_after(
                read, paths, topology, None if last is None else last.position
            ).position


def note_origin(read: Reader, stamp: Stamp, paths: Paths, position: Any) -> Decision[Any]:
    """Record the position from which the first transaction begins, unless one has already begun.

    :return: the position from which the next transaction begins.
    """
    topology = read.get(TopologyRecord, paths.record)
    allocated = read.get(Counter, paths.allocated)
    if allocated.txid > 0:
        return Decision(next_position(read, paths))
    if topology.origin == position:
        return Decision(position)
    changed = replace(topology, origin=position, op=stamp.op)
    # A `begin` that read the topology record before this step is refused, since it requires the old
    # counter.
    writes = (Put(paths.record, encode(changed)), Put(paths.allocated, encode(allocated)))
    return Decision(position, writes, paths.record)


def note_losses(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    losses: Sequence[Loss],
    audit: Audit,
    *,
    known: Sequence[int] | None = None,
) -> Decision[Repaired]:
    """Record that the loss of these rows is accepted. The rows before and after them will still be processed.

    :param known: numbers of the repairs that had accepted losses when these losses were found; None allows any.
    :raises LossRefused: nothing is lost.
    :raises PreviewOutdated: other losses were accepted since then.
    """
    topology = read.get(TopologyRecord, paths.record)
    if known is not None and topology.losses != [*known]:
        raise PreviewOutdated(what="The loss", topology=paths.topology)
    current = read.peek(Counter, paths.current)
    if not losses:
        raise LossRefused(topology=paths.topology)
    after = replace(topology, losses=[*topology.losses, next_repair(read, paths)], op=stamp.op)
    return audit.repair(
        read,
        stamp,
        paths,
        [Put(paths.record, encode(after))],
        what=ACCEPT_LOSS,
        after=after,
        current=current.txid,
        summary="lost, and in no batch: "
        + "; ".join(shortened([loss.description for loss in losses])),
        losses=[replace(loss, went_back=False) for loss in losses],
    )
