"""A state that came back from a backup is written again: what the ledger notes of that. Source: docs/protocol.md §5."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from airflow_tx.base.errors import RepairRefused, RollingForward, UnreadableRecord
from airflow_tx.ledger.answers import Repaired
from airflow_tx.ledger.api import Paths, Put
from airflow_tx.ledger.attempt import Receipt
from airflow_tx.ledger.life import BEGAN, CHANGE, EMPTIED, ROLL_FORWARD
from airflow_tx.ledger.records import (
    Counter,
    RepairRecord,
    TopologyRecord,
    TransactionRecord,
    decode,
    encode,
)
from airflow_tx.ledger.steps.step import Audit, Decision, Reader, Stamp

GENERATIONS = 2
"""By how many a run raises the generation: one for a look at values that decide, one for what it writes."""


@dataclass(frozen=True)
class Rolling:
    """A run of the command has the states to itself: no grant from before it can mark, and none is given.

    :param generation: of the grants that write. The one before it is for the look at a state whose values decide.
    :param nonce: of this run; a later run replaces it.
    :param current: the transaction whose turn it is, with its `birth`; "": it has not begun.
    :param found: per state the last transaction that it had, before this run and earlier ones, which have died.
    """

    generation: int
    nonce: str
    current: int
    birth: str
    found: Mapping[str, int] = field(hash=False, default_factory=dict)


@dataclass(frozen=True)
class RolledState:
    """A state that was written again.

    :param found: the last transaction that it had; `last`: the last one that it has now.
    :param birth: of that, with `grant`: its attempt and epoch.
    :param whole: whether that is the last transaction that the ledger committed to it.
    :param change: the newest accepted change that its values have.
    :param heals: whether it has again what it had lost when a person accepted the loss.
    """

    found: int
    last: int
    birth: str
    grant: tuple[int, int]
    whole: bool
    change: int = 0
    heals: bool = True

    @classmethod
    def of(cls, receipt: Receipt, found: int, **how: Any) -> RolledState:
        """Make it of the receipt of the last transaction that it has."""
        grant = (receipt.attempt, receipt.epoch)
        return cls(found, receipt.txid, receipt.birth, grant, **how)


def check_not_rolling(paths: Paths, topology: TopologyRecord) -> None:
    """Refuse a step that needs the states, while they are written again.

    :raises RollingForward: naming since when, and how to end it.
    """
    noted = topology.rolling
    if noted is not None:
        states = " ".join(sorted(noted["found"]))
        raise RollingForward(topology=paths.topology, when=noted["when"], states=states)


def check_raw_not_rolling(paths: Paths, data: bytes | None) -> None:
    """Refuse as `check_not_rolling`, where the record may be missing, closed or damaged."""
    with suppress(UnreadableRecord):
        if data is not None:
            check_not_rolling(paths, decode(TopologyRecord, paths.record, data))


def begin_roll_forward(
    read: Reader, stamp: Stamp, paths: Paths, found: Mapping[str, int], audit: Audit
) -> Decision[Rolling]:
    """Take the states for this run of the command. An earlier run, which may have died, is outranked.

    :param found: per state that is to be written again the last transaction that it has.
    """
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current).txid
    opened = read.find(TransactionRecord, paths.transaction(current))
    generation = topology.generation + GENERATIONS
    before = topology.rolling or {"found": {}, "nonces": []}
    found = {**found, **before["found"]}
    run = {"found": found, "nonces": [*before["nonces"], stamp.op], "generation": generation}
    noted = {**audit.noted(stamp), **run}
    after = replace(topology, generation=generation, rolling=noted, op=stamp.op)
    birth = "" if opened is None else opened.birth
    rolling = Rolling(generation, stamp.op, current, birth, found)
    return Decision(rolling, (Put(paths.record, encode(after)),), paths.record)


def end_roll_forward(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    nonce: str,
    rolled: Mapping[str, RolledState],
    *,
    unchanged: Collection[int] = (),
    audit: Audit,
) -> Decision[Repaired]:
    """Give the states back to the line of transactions.

    If no state was written again, the refusals stay, though the generation has risen.

    :param nonce: of this run.
    :param unchanged: accepted changes that are wanted no more.
    :raises RepairRefused: a later run has taken over.
    """
    topology = read.get(TopologyRecord, paths.record)
    runs = (topology.rolling or {"nonces": [""]})["nonces"]
    if runs[-1] != nonce:
        raise RepairRefused(
            what=ROLL_FORWARD,
            topology=paths.topology,
            problem="another run of the command has taken over",
            remedy="That run continues. There is nothing to do.",
        )
    whole = {name: each for name, each in rolled.items() if each.whole}
    current = read.peek(Counter, paths.current).txid
    after = replace(
        topology,
        rolling=None,
        # A new generation lifts a permanent refusal.
        blocked=None if rolled else topology.blocked,
        states={**topology.states, **{name: each.last for name, each in whole.items()}},
        births={**topology.births, **{name: each.birth for name, each in whole.items()}},
        grants={**topology.grants, **{name: [*each.grant] for name, each in whole.items()}},
        taken_back_from=_held_from(read, paths, topology, whole),
        accepted={
            **topology.accepted,
            **{name: _accepted(topology, name, each) for name, each in whole.items()},
        },
        op=stamp.op,
    )
    told = "; ".join(
        f"state {name} had transactions up to {each.found}, and has those up to {each.last}"
        for name, each in sorted(rolled.items())
    )
    noted = {name: asdict(each) for name, each in rolled.items()}
    return audit.repair(
        read,
        stamp,
        paths,
        [
            Put(paths.record, encode(after)),
            *([] if rolled else _refused_still(read, stamp, paths, topology, current, runs=runs)),
        ],
        what=ROLL_FORWARD,
        after=after,
        current=current,
        summary=told or "no state was written again",
        change={
            "states": noted,
            "nonces": runs,
            **({"unchanged": [*unchanged]} if unchanged else {}),
        },
    )


def _accepted(topology: TopologyRecord, name: str, rolled: RolledState) -> dict[str, Any]:
    """Give the notes that the fence of a state is compared with from now on; none is of a loss any more."""
    before = topology.accepted.get(name, {})
    kept = {each: before[each] for each in (BEGAN, EMPTIED) if each in before}
    return {**kept, CHANGE: rolled.change} if rolled.change else kept


def _refused_still(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    topology: TopologyRecord,
    current: int,
    *,
    runs: Sequence[str],
) -> Iterator[Put]:
    """Note under the new generation that the commit whose turn it is was refused permanently.

    :param runs: the nonces of all runs since then, each of which has raised the generation.
    """
    record = read.find(TransactionRecord, paths.transaction(current))
    before = topology.generation - GENERATIONS * len(runs)
    if record is not None and 0 < before <= record.for_good:
        yield Put(
            paths.transaction(current),
            encode(replace(record, for_good=topology.generation, op=stamp.op)),
        )


def _held_from(
    read: Reader, paths: Paths, topology: TopologyRecord, whole: Mapping[str, RolledState]
) -> dict[str, int]:
    """Set back since when a state is sure to hold its transactions, if an accepted loss is made good."""
    kept = dict(topology.taken_back_from)
    lost = [
        repair
        for number in sorted(map(int, read.names_if_any(paths.repairs)), reverse=True)
        for repair in (read.peek(RepairRecord, paths.repair(number)),)
        if repair.change.get("state") in whole and "held_from" in repair.change
    ]
    for repair in lost:  # the newest first: each names what was known before it
        name = repair.change["state"]
        if repair.change["txid"] > whole[name].found and kept.get(name) == repair.change["txid"]:
            before: Any = repair.change["held_from"]
            kept.pop(name)
            if before:
                kept[name] = before
    return kept


def nonces(topology: TopologyRecord, repairs: Sequence[RepairRecord], state: str) -> set[str]:
    """Name the runs of the command that have written a state again, or do so now: its fence has the nonce of one."""
    now = [] if topology.rolling is None else topology.rolling["nonces"]
    done = [
        each.change["nonces"]
        for each in repairs
        if each.what == ROLL_FORWARD and state in each.change["states"]
    ]
    return {*now, *chain.from_iterable(done)}
