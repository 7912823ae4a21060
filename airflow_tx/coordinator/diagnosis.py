"""The diagnosis of each open transaction: what is wrong with it, and for how long. Pure. Source: protocol.md §§5, 6.

Nothing here reads a clock. The coordinator keeps ages, which travel from one process to the next as plain JSON. So a
wall clock that jumps replays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any

from airflow_tx.coordinator.snapshot import LedgerSnapshot
from airflow_tx.protocol.attempt import of_lane
from airflow_tx.protocol.records import Phase, TransactionRecord
from airflow_tx.protocol.replay import LIVE_RUN_STATES

RunStates = Mapping[str, "str | None"]
"""run_id → state of the run, None for one that does not exist; a run that was not asked for is missing."""

LONGEST_BACKOFF = 600.0
# A replay was asked for this long ago, and no attempt followed: the process that asked was killed.
FORGOTTEN = 60.0
# A committer that has just taken the turn, or gives it back, does not show for a moment.
SUSPICION = 3.0
_INCOMPLETE = (Phase.PROCESSING, Phase.FAILED)


@dataclass(frozen=True)
class Rules:
    """What holds for one topology.

    :param silence: seconds for which Airflow has to say that a committer runs which does not show, until it counts as
        dead. In that time one that is tried again is seen not to run.
    :param lane: whether a lane begins transactions: not while one is restated, by a run.
    """

    max_pending: int
    max_replays: int
    backoff: float
    message_timeout: float
    silence: float = 20.0
    lane: bool = False

    def wait(self, times: int) -> float:
        """Seconds before a thing is tried again that was tried so many times in a row."""
        return min(self.backoff * 2.0 ** min(times, 20), LONGEST_BACKOFF)


class Finding(str, Enum):
    """The diagnosis of an open transaction."""

    NOTHING = "nothing"
    UNBORN = "its run was never created"
    LEFT = "it has left the lane"
    ENDED = "its run ended without a commit"
    GONE = "its run was deleted"
    NOTED = "its replay was asked for, and nothing came of it"
    LATE = "its processing takes longer than message_timeout"
    MOVED = "the transaction before it ended elsewhere than its batch starts"
    SKIP = "it is its turn, and a person wants it skipped"
    YIELDED = "it gave up its run slot, and the way is free"
    IN_THE_WAY = "it gave up its run slot, and the way is not free"
    SUSPECT = "its committer does not show"
    SILENT = "its committer is gone"
    RETRYING = "its committer is tried again by Airflow"
    BLOCKED = "a person has to look at it"
    WANTED = "a person wants it restated"


@dataclass(frozen=True)
class Health:
    """The known facts of one open transaction.

    :param op: of its record.
    :param lasts: seconds for which the finding has been the same.
    :param working: seconds since its attempt began.
    :param tries: how many times in a row it was started again to no avail.
    :param blocked: it is replayed no more in this attempt.
    """

    attempt: int
    op: str = ""
    finding: Finding = Finding.NOTHING
    lasts: float = 0.0
    working: float = 0.0
    tries: int = 0
    blocked: bool = False


@dataclass(frozen=True)
class CoordinatorMemory:
    """The memory of the coordinator; it may be lost, and then only waits begin again.

    :param health: of the open transactions, by txid.
    :param source_wait: seconds until the source may be asked again.
    :param source_failures: how many times in a row it failed.
    """

    health: Mapping[int, Health] = field(default_factory=dict)
    source_wait: float = 0.0
    source_failures: int = 0

    def tried(self, txid: int) -> CoordinatorMemory:
        """Note that a run was started, or could not be: the next time comes later."""
        one = self.health.get(txid)
        return (
            self if one is None else self._with(txid, replace(one, tries=one.tries + 1, lasts=0.0))
        )

    def blocked(self, txid: int) -> CoordinatorMemory:
        """Note that a transaction is replayed no more in this attempt."""
        one = self.health.get(txid)
        return (
            self
            if one is None
            else self._with(txid, replace(one, blocked=True, finding=Finding.BLOCKED))
        )

    def answered(self, wait: float) -> CoordinatorMemory:
        """Note that the source answered; it is asked again after `wait` seconds."""
        return replace(self, source_wait=wait, source_failures=0)

    def failed(self, poll: float, longest: float = FORGOTTEN) -> CoordinatorMemory:
        """Note that the source failed: it is asked again later and later."""
        wait = min(poll * 2.0 ** min(self.source_failures + 1, 20), max(longest, poll))
        return replace(self, source_wait=wait, source_failures=self.source_failures + 1)

    def _with(self, txid: int, one: Health) -> CoordinatorMemory:
        return replace(self, health={**self.health, txid: one})

    def to_json(self) -> dict[str, Any]:
        health = {
            str(txid): {**asdict(one), "finding": one.finding.value}
            for txid, one in self.health.items()
        }
        return {
            "health": health,
            "source_wait": self.source_wait,
            "source_failures": self.source_failures,
        }

    @classmethod
    def from_json(cls, value: Any) -> CoordinatorMemory:
        """Rebuild what `to_json` gave; of another version of this package, nothing."""
        try:
            health = {int(txid): _health_of(one) for txid, one in value["health"].items()}
            return cls(health, float(value["source_wait"]), int(value["source_failures"]))
        except (TypeError, KeyError, ValueError, AttributeError):
            return cls()


def _health_of(value: Mapping[str, Any]) -> Health:
    return Health(**{**value, "finding": Finding(value["finding"])})


# --- one transaction ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenTransaction:
    """One open transaction, with all known facts."""

    look: LedgerSnapshot
    states: RunStates
    rules: Rules
    txid: int
    record: TransactionRecord


def health_of(case: OpenTransaction, before: Health | None, elapsed: float) -> Health:
    """Judge a transaction now.

    :param before: what was known of it `elapsed` seconds ago, if it was.
    """
    look = case.look
    record = case.record
    if before is None or before.attempt != record.attempt:
        age = (look.now - datetime.fromisoformat(record.began)).total_seconds()
        working = min(max(age, 0.0), case.rules.message_timeout)
        # A new attempt is no success yet: what was tried before is remembered until it has acked everything.
        one = Health(
            record.attempt, record.op, working=working, tries=before.tries if before else 0
        )
        elapsed = 0.0
    else:
        one = replace(before, working=before.working + elapsed)
    if record.request == "":
        one = replace(one, working=0.0)  # allocated for a run that has not begun
    if record.run_id not in case.states and not _is_blocked(case, one):
        return replace(one, lasts=one.lasts + elapsed)  # as far as is known, nothing has changed
    found = _find(case, one)
    lasts = one.lasts + elapsed if found is one.finding else 0.0
    fine = found is Finding.NOTHING and record.phase not in _INCOMPLETE
    return replace(one, op=record.op, finding=found, lasts=lasts, tries=0 if fine else one.tries)


def _find(case: OpenTransaction, one: Health) -> Finding:
    record = case.record
    txid = case.txid
    if _is_blocked(case, one):
        return Finding.BLOCKED
    state = case.states[record.run_id]
    if state in LIVE_RUN_STATES:
        return _find_live(case, one)
    if txid in case.look.lane:
        return Finding.LATE if _is_late(case, one) else Finding.NOTHING
    return _find_stopped(case, state)


def _find_stopped(case: OpenTransaction, state: str | None) -> Finding:
    record = case.record
    txid = case.txid
    if record.skip is not None and txid != case.look.current:
        return Finding.NOTHING  # its turn will come
    if is_noted(record):
        return Finding.NOTED
    if record.skip is not None:
        return Finding.SKIP
    if state is None and record.request == "":
        return Finding.UNBORN
    if record.yielded is not None:
        return Finding.YIELDED if is_free(case.look, case.states, txid) else Finding.IN_THE_WAY
    if txid in case.look.stale:
        return Finding.MOVED if _is_decided(case, txid - 1) else Finding.NOTHING
    if state is None and of_lane(record.request):
        return Finding.LEFT
    return Finding.GONE if state is None else Finding.ENDED


def _find_live(case: OpenTransaction, one: Health) -> Finding:
    record = case.record
    txid = case.txid
    if case.states[record.run_id] != "running":
        return Finding.NOTHING  # it begins as soon as it has a run slot
    if record.phase is Phase.COMMITTING and txid == case.look.current and record.skip is None:
        return _find_committer(case, one)
    if _is_late(case, one):
        return Finding.LATE
    if is_noted(record):
        return Finding.NOTHING  # on its way
    if txid in case.look.stale and _is_decided(case, txid - 1):
        return Finding.MOVED  # its committer would find out, and fail
    return Finding.NOTHING


def _is_late(case: OpenTransaction, one: Health) -> bool:
    record = case.record
    begun = record.request != ""
    return begun and record.phase in _INCOMPLETE and one.working >= case.rules.message_timeout


def _find_committer(case: OpenTransaction, one: Health) -> Finding:
    look = case.look
    if look.owner is not False:
        return Finding.NOTHING
    # Airflow tries it again. Until that try takes the turn, no process is seen. If the try is killed before that,
    # Airflow notices later by itself.
    if look.busy is False or (one.finding is Finding.RETRYING and one.op == case.record.op):
        return Finding.RETRYING
    return Finding.SILENT if look.busy else Finding.SUSPECT


def _is_blocked(case: OpenTransaction, one: Health) -> bool:
    mark = case.look.topology.blocked
    if mark is None or case.record.skip is not None:
        return False  # an earlier one may have had the mark; now this one can get it
    return one.blocked or (mark["txid"], mark["attempt"]) == (case.txid, case.record.attempt)


def is_noted(record: TransactionRecord) -> bool:
    """Whether a replay of this very attempt was asked for."""
    return record.replay is not None and record.replay["attempt"] == record.attempt


def _count(record: TransactionRecord) -> int:
    """How many automatic replays there were in a row."""
    note = record.replay or {}
    return int(note["count"]) if note.get("attempt") == record.attempt - 1 else 0


def is_free(look: LedgerSnapshot, states: RunStates, txid: int | None) -> bool:
    """Whether the run whose turn it is needs no run slot any more."""
    first = look.opened.get(look.current)
    return txid == look.current or first is None or states.get(first.run_id) == "running"


def _is_decided(case: OpenTransaction, txid: int) -> bool:
    """Whether another transaction ends where its record says, as far as is known."""
    record = case.look.opened.get(txid)
    if record is None:
        return True
    if txid in case.look.stale or record.phase is Phase.FAILED or is_noted(record):
        return False
    state = case.states.get(record.run_id)
    # Queued: it was cleared, and its `begin` decides again; or it has never begun.
    return (
        state == "running"
        or (state == "queued" and record.request == "")
        or record.skip is not None
    )


def due_after(rules: Rules, record: TransactionRecord, one: Health) -> float | None:
    """How long the finding has to last before something is done about it; None: nothing is."""
    again = 0.0 if one.tries == 0 else rules.wait(one.tries - 1)
    if one.finding is Finding.ENDED and one.blocked:
        return 0.0
    if one.finding is Finding.ENDED:
        return again if record.for_good else rules.wait(_count(record))
    if one.finding is Finding.NOTED:
        return min(FORGOTTEN * 2.0 ** min(max(one.tries - 1, 0), 20), LONGEST_BACKOFF)
    if one.finding is Finding.LATE:
        return rules.message_timeout if is_noted(record) else 0.0
    if one.finding is Finding.SUSPECT:
        return SUSPICION
    if one.finding is Finding.SILENT:
        return max(rules.silence, FORGOTTEN) if is_noted(record) else rules.silence
    if one.finding in (
        Finding.UNBORN,
        Finding.LEFT,
        Finding.GONE,
        Finding.MOVED,
        Finding.SKIP,
        Finding.YIELDED,
    ):
        return again
    return None
