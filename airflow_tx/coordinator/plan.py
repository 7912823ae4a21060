"""The next actions of the coordinator: a pure plan, from the ledger and the states of runs. Source: protocol.md §§5, 6.

Recovery goes by records, not by runs: an open transaction without a queued or running run is replayed, for any
    end of its run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_tx.commit.run_slots import Comeback, comeback
from airflow_tx.coordinator.diagnosis import (
    CoordinatorMemory,
    Finding,
    Health,
    OpenTransaction,
    Rules,
    RunStates,
    due_after,
    health_of,
    is_free,
    is_noted,
)
from airflow_tx.coordinator.snapshot import LedgerSnapshot
from airflow_tx.protocol.records import TransactionRecord
from airflow_tx.protocol.replay import LIVE_RUN_STATES
from airflow_tx.protocol.wish import most_restated, wishes_to_start


@dataclass(frozen=True)
class Allocate:
    """Ask the source for another transaction, and create its run."""


@dataclass(frozen=True)
class Start:
    """Create the run of a transaction that was allocated for it."""

    txid: int
    run_id: str
    key: str


@dataclass(frozen=True)
class Replay:
    """Run a transaction again.

    :param reason: in words.
    :param counts: whether it counts against `max_replays`.
    :param noted: it was asked for before, so that no further question is needed.
    """

    txid: int
    attempt: int
    run_id: str
    key: str
    reason: str
    counts: bool
    noted: bool = False


@dataclass(frozen=True)
class RestartDead(Replay):
    """The same for a run that Airflow takes for running, though its committer is dead."""


@dataclass(frozen=True)
class Examine:
    """Ask Airflow whether the committer of a transaction runs: a trigger does not."""

    txid: int


@dataclass(frozen=True)
class Restate:
    """Start the run of a committed transaction that a person wants restated."""

    txid: int
    run_id: str
    key: str


@dataclass(frozen=True)
class Return:
    """Start a run again that has yielded.

    :param txid: its transaction; None: it has none yet.
    """

    run_id: str
    txid: int | None


@dataclass(frozen=True)
class CameBack:
    """Note that a run which had yielded needs no start any more."""

    run_id: str


@dataclass(frozen=True)
class Unblock:
    """Take away the mark of a transaction that a person has seen to."""

    txid: int


Action = Allocate | Start | Replay | Examine | Restate | Return | CameBack | Unblock


@dataclass(frozen=True)
class Plan:
    """What to do now.

    :param wait: seconds after which something else will be due if nothing changes; None: nothing.
    :param memory: to be given to the next plan.
    """

    actions: tuple[Action, ...]
    wait: float | None
    memory: CoordinatorMemory


def plan(
    look: LedgerSnapshot,
    states: RunStates,
    memory: CoordinatorMemory,
    *,
    elapsed: float,
    rules: Rules,
    ready: bool,
) -> Plan:
    """Decide the actions: at most one for each transaction.

    :param elapsed: seconds since the plan that gave `memory`.
    :param ready: whether the source has, or may have, rows for another transaction.
    """
    health: dict[int, Health] = {}
    actions: list[Action] = []
    waits: list[float] = []
    for txid, record in sorted(look.opened.items()):
        one = health_of(
            OpenTransaction(look, states, rules, txid, record), memory.health.get(txid), elapsed
        )
        health[txid] = one
        due = due_after(rules, record, one)
        if due is None:
            continue
        if due > one.lasts:
            waits.append(due - one.lasts)
        elif record.run_id in states:
            actions.append(_action(txid, record, one.finding))
    actions += _marks(look, states)
    for wish in look.wishes:
        health[wish.txid] = _wanted(memory.health.get(wish.txid), elapsed)
    actions += _restatements(look, states, rules, health)
    # A run that is about to restate a transaction has a place of the window, and a lane begins nothing beside it.
    waiting = sum(states.get(wish.run_id) in LIVE_RUN_STATES for wish in look.wishes)
    held_up = rules.lane and (look.restates or waiting > 0)
    if ready and not held_up and look.room(max(rules.max_pending - waiting, 1)):
        actions.append(Allocate())
    after = replace(memory, health=health, source_wait=max(memory.source_wait - elapsed, 0.0))
    return Plan(tuple(actions), min(waits, default=None), after)


def _action(txid: int, record: TransactionRecord, finding: Finding) -> Action:
    if finding is Finding.UNBORN:
        return Start(txid, record.run_id, record.key)
    if finding is Finding.SUSPECT:
        return Examine(txid)
    if finding is Finding.YIELDED:
        return Return(record.run_id, txid)
    counts = finding in (Finding.ENDED, Finding.LATE, Finding.SILENT)
    reason = (
        record.error if finding in (Finding.LEFT, Finding.ENDED) and record.error else finding.value
    )
    kind = RestartDead if finding is Finding.SILENT else Replay
    return kind(txid, record.attempt, record.run_id, record.key, reason, counts, is_noted(record))


# --- wishes ------------------------------------------------------------------------------------------------------


def _wanted(before: Health | None, elapsed: float) -> Health:
    """Remember how often the run of a wish was started, and when last."""
    if before is None or before.finding is not Finding.WANTED:
        return Health(0, finding=Finding.WANTED)
    return replace(before, lasts=before.lasts + elapsed)


def _restatements(
    look: LedgerSnapshot, states: RunStates, rules: Rules, health: Mapping[int, Health]
) -> Iterable[Action]:
    """Start the runs of wishes; one that was started in vain later and later, and at last no more."""
    limit = most_restated(rules.max_pending)
    for wish in wishes_to_start(look.wishes, look.opened, states, limit=limit):
        one = health[wish.txid]
        again = 0.0 if one.tries == 0 else rules.wait(one.tries - 1)
        if one.lasts >= again and one.tries <= rules.max_replays:
            yield Restate(wish.txid, wish.run_id, wish.key)


# --- the marks of the topology -----------------------------------------------------------------------------------


def _marks(look: LedgerSnapshot, states: RunStates) -> Iterable[Action]:
    blocked = look.topology.blocked
    if blocked is not None:
        record = look.opened.get(blocked["txid"])
        # A transaction that was allocated after `allocated` was read cannot be blocked yet.
        if record is None or record.attempt != blocked["attempt"] or record.skip is not None:
            yield Unblock(blocked["txid"])
    for run_id, entry in look.topology.yielded.items():
        action = _back(look, states, run_id, entry)
        if action is not None:
            yield action


def _back(
    look: LedgerSnapshot, states: RunStates, run_id: str, entry: Mapping[str, Any]
) -> Action | None:
    if entry["txid"] is not None:
        record = look.opened.get(entry["txid"])
        # Otherwise it is started as a transaction, see YIELDED.
        return CameBack(run_id) if record is None or record.yielded is None else None
    if any(record.run_id == run_id for record in look.opened.values()):
        return CameBack(run_id)  # it has a transaction now
    if run_id not in states:
        return None
    found = comeback(states[run_id], is_over=False, is_free=is_free(look, states, None))
    if found is Comeback.WAIT:
        return None
    return Return(run_id, None) if found is Comeback.START else CameBack(run_id)
