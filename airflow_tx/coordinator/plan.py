"""Plan the coordinator's next actions from the ledger and the states of runs; pure. Source: protocol.md §§5, 6.

The records, not the ends of runs, decide which transactions are replayed. The coordinator replays each open transaction
that has no queued or running run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from airflow_tx.ledger import (
    LIVE_RUN_STATES,
    LedgerReader,
    LedgerReading,
    Paths,
    Phase,
    ReadOnlyLedger,
    Store,
    TransactionRecord,
    Wish,
    most_restated,
    of_lane,
    wishes_to_start,
)
from airflow_tx.transaction import Comeback, comeback

# --- snapshot -----------------------------------------------------------------------------------------------------
# This section reads the ledger of a topology for its coordinator. Source: protocol.md §6.


@dataclass(frozen=True, kw_only=True)
class LedgerSnapshot(LedgerReading):
    """A reading of the ledger, and the facts about processes that work on the topology.

    :param now: the wall clock. It gives the age of an attempt that the coordinator sees for the first time.
    :param owner: whether a committer has its node in the ledger, or None if it never has a node, as in a lane.
    :param busy: whether the committer of `current` is running according to Airflow, or None if Airflow was not queried.
    :param lane: the txids of the open transactions that a lane works on, if they are known.
    :param wishes: requests for restatements that no run has begun.
    """

    now: datetime
    owner: bool | None = None
    busy: bool | None = None
    lane: frozenset[int] = frozenset()
    wishes: tuple[Wish, ...] = ()

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Return the run_ids of the runs whose states the plan needs."""
        runs = [record.run_id for record in self.opened.values()]
        wanted = [wish.run_id for wish in self.wishes]
        return tuple(dict.fromkeys([*runs, *self.topology.yielded, *wanted]))

    @property
    def restates(self) -> bool:
        """Return whether there is an open restatement."""
        return any(record.replaces is not None for record in self.opened.values())


def _now() -> datetime:
    return datetime.now(timezone.utc)


class SnapshotReader:
    """Reads a topology repeatedly, but records that never change only once.

    :param shows: whether the ledger shows that a committer holds the turn. A single committer is shown, and a commit
        phase is not.
    """

    def __init__(
        self, store: Store, paths: Paths, *, shows: bool = True, now: Callable[[], datetime] = _now
    ) -> None:
        self.store = store
        self._shows = shows
        self._paths = paths
        self._now = now
        self._ledger = LedgerReader(store, paths)
        # The last assigned txid, and the position after it if this transaction is final.
        self._next: tuple[int, Any] | None = None

    def look(self) -> LedgerSnapshot | None:
        """Return a reading of the ledger, or None if a transaction became final during the reading.

        :raises UnreadableRecord: a record is damaged or missing.
        """
        found = self._ledger.read()
        if found is None:
            return None
        ledger = ReadOnlyLedger(self.store, self._paths)
        return LedgerSnapshot(
            topology=found.topology,
            current=found.current,
            allocated=found.allocated,
            opened=found.opened,
            base=found.base,
            now=self._now(),
            owner=self._owner(found),
            lane=ledger.in_lane(found.opened),
            wishes=ledger.wishes() if found.exists else (),
        )

    def next_position(self, look: LedgerSnapshot) -> Any:
        """Return the position where the next batch begins, in the same way as `begin`.

        Skip losses that a user has accepted.

        :raises UnreadableRecord: a record is damaged, or has changed during the reading.
        """
        ledger = ReadOnlyLedger(self.store, self._paths)
        if self._next is not None and self._next[0] == look.allocated:
            position = self._next[1]
        else:
            position = ledger.position_before(look.allocated + 1)
            # A replay of an open transaction may move the position.
            self._next = None if look.opened else (look.allocated, position)
        if not look.exists:
            return position
        return ledger.start_after(look.topology, position)

    def _owner(self, found: LedgerReading) -> bool | None:
        first = found.opened.get(found.current)
        if not self._shows or first is None:
            return None
        if first.phase is not Phase.COMMITTING or of_lane(first.request):
            return None
        return self.store.get(self._paths.owner(first.nonce)) is not None


# --- diagnosis ----------------------------------------------------------------------------------------------------
# This section finds the problem of each open transaction, and how long it has lasted. It is pure.
# Source: protocol.md §§5, 6. It reads no clock. The coordinator stores ages, and passes them from
# one process to the next as plain JSON. A jump of the wall clock therefore causes no replay.


RunStates = Mapping[str, "str | None"]
"""The state of each run, by run_id. It is None if the run does not exist. A run with an unknown state has no entry."""

LONGEST_BACKOFF = 600.0
# The seconds after which a requested replay counts as forgotten. If no attempt has started, the
# process that requested it was killed.
FORGOTTEN = 60.0
# The seconds for which a committer may be missing in the ledger just after it has taken the turn,
# or while it returns it.
SUSPICION = 3.0
_INCOMPLETE = (Phase.PROCESSING, Phase.FAILED)


@dataclass(frozen=True)
class Rules:
    """The limits of one topology. All times are in seconds.

    :param max_pending: the maximum number of open transactions.
    :param max_replays: the maximum number of automatic replays in a row.
    :param backoff: seconds before the first replay.
    :param message_timeout: the longest time that the processing of an attempt may take.
    :param silence: the seconds after which a committer counts as dead if Airflow lists it as running, but it is not in
        the ledger. If Airflow retries the committer, its state changes within this time.
    :param lane: whether a lane begins transactions. It begins no transaction while a run restates one.
    """

    max_pending: int
    max_replays: int
    backoff: float
    message_timeout: float
    silence: float = 20.0
    lane: bool = False

    def wait(self, times: int) -> float:
        """Return the seconds to wait after this number of tries in a row."""
        return min(self.backoff * 2.0 ** min(times, 20), LONGEST_BACKOFF)


class Finding(str, Enum):
    """The findings about an open transaction."""

    NOTHING = "nothing"
    UNBORN = "its run was never created"
    LEFT = "it has left the lane"
    ENDED = "its run ended without a commit"
    GONE = "its run was deleted"
    NOTED = "its replay was asked for, and nothing came of it"
    LATE = "its processing takes longer than processing_timeout"
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
    """Facts about one open transaction.

    :param op: the `op` in the record of the transaction.
    :param lasts: the seconds since the finding last changed.
    :param working: seconds since the attempt began.
    :param tries: the number of starts in a row without success.
    :param blocked: whether the coordinator has stopped replaying this attempt.
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
    """The memory of the coordinator. If it is lost, only the waits start over.

    :param health: the facts about the open transactions, by txid.
    :param source_wait: seconds until the coordinator may query the source again.
    :param source_failures: the number of failures of the source in a row.
    """

    health: Mapping[int, Health] = field(default_factory=dict)
    source_wait: float = 0.0
    source_failures: int = 0

    def tried(self, txid: int) -> CoordinatorMemory:
        """Return the facts after a start of the run, which may have failed. The next wait is longer."""
        one = self.health.get(txid)
        return (
            self if one is None else self._with(txid, replace(one, tries=one.tries + 1, lasts=0.0))
        )

    def blocked(self, txid: int) -> CoordinatorMemory:
        """Return the facts after the coordinator has stopped replaying this attempt."""
        one = self.health.get(txid)
        return (
            self
            if one is None
            else self._with(txid, replace(one, blocked=True, finding=Finding.BLOCKED))
        )

    def answered(self, wait: float) -> CoordinatorMemory:
        """Return the memory after a response of the source, which is queried again after `wait` seconds."""
        return replace(self, source_wait=wait, source_failures=0)

    def failed(self, poll: float, longest: float = FORGOTTEN) -> CoordinatorMemory:
        """Return the memory after a failure of the source. The wait before the next query doubles."""
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
        """Create a memory from the result of `to_json`. Any other value becomes an empty memory."""
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
    """One open transaction with the facts about it."""

    look: LedgerSnapshot
    states: RunStates
    rules: Rules
    txid: int
    record: TransactionRecord


def health_of(case: OpenTransaction, before: Health | None, elapsed: float) -> Health:
    """Return the diagnosis of a transaction.

    :param before: the facts about it `elapsed` seconds ago, or None if they are unknown.
    """
    look = case.look
    record = case.record
    if before is None or before.attempt != record.attempt:
        age = (look.now - datetime.fromisoformat(record.began)).total_seconds()
        working = min(max(age, 0.0), case.rules.message_timeout)
        # A new attempt keeps the number of tries, which is reset when all tasks have acked.
        one = Health(
            record.attempt, record.op, working=working, tries=before.tries if before else 0
        )
        elapsed = 0.0
    else:
        one = replace(before, working=before.working + elapsed)
    if record.request == "":
        # The run for which the transaction was allocated has not begun.
        one = replace(one, working=0.0)
    if record.run_id not in case.states and not _is_blocked(case, one):
        return replace(one, lasts=one.lasts + elapsed)  # The state of the run is unknown.
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
        return Finding.NOTHING  # The transaction is skipped when it has the turn.
    is_unborn = state is None and record.request == ""
    # If the run was never created, the note in the record only gives the reason.
    if is_noted(record) and not is_unborn:
        return Finding.NOTED
    if record.skip is not None:
        return Finding.SKIP
    if is_unborn:
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
        return Finding.NOTHING  # The run waits for a run slot.
    if record.phase is Phase.COMMITTING and txid == case.look.current and record.skip is None:
        return _find_committer(case, one)
    if _is_late(case, one):
        return Finding.LATE
    if is_noted(record):
        return Finding.NOTHING  # The replay is about to begin.
    if txid in case.look.stale and _is_decided(case, txid - 1):
        return Finding.MOVED  # Its committer would find this, and fail.
    return Finding.NOTHING


def _is_late(case: OpenTransaction, one: Health) -> bool:
    record = case.record
    begun = record.request != ""
    return begun and record.phase in _INCOMPLETE and one.working >= case.rules.message_timeout


def _find_committer(case: OpenTransaction, one: Health) -> Finding:
    look = case.look
    if look.owner is not False:
        return Finding.NOTHING
    # Airflow retries the committer. The ledger shows no process until the retry takes the turn. If
    # the retry is killed before it takes the turn, Airflow detects this.
    if look.busy is False or (one.finding is Finding.RETRYING and one.op == case.record.op):
        return Finding.RETRYING
    return Finding.SILENT if look.busy else Finding.SUSPECT


def _is_blocked(case: OpenTransaction, one: Health) -> bool:
    mark = case.look.topology.blocked
    if mark is None or case.record.skip is not None:
        return False  # If no earlier transaction is marked, this one can be marked.
    return one.blocked or (mark.txid, mark.attempt) == (case.txid, case.record.attempt)


def is_noted(record: TransactionRecord) -> bool:
    """Return whether a replay of the current attempt was requested."""
    return record.replay is not None and record.replay.attempt == record.attempt


def _count(record: TransactionRecord) -> int:
    """Return the number of automatic replays in a row."""
    note = record.replay
    return note.count if note is not None and note.attempt == record.attempt - 1 else 0


def is_free(look: LedgerSnapshot, states: RunStates, txid: int | None) -> bool:
    """Return whether the transaction that has the turn needs no run slot: it is `txid`, or its run is running."""
    first = look.opened.get(look.current)
    return txid == look.current or first is None or states.get(first.run_id) == "running"


def _is_decided(case: OpenTransaction, txid: int) -> bool:
    """Return whether transaction `txid` will probably keep the end position in its record."""
    record = case.look.opened.get(txid)
    if record is None:
        return True
    if txid in case.look.stale or record.phase is Phase.FAILED or is_noted(record):
        return False
    state = case.states.get(record.run_id)
    # A queued run with a request was cleared. Its `begin` will decide the batch again.
    return (
        state == "running"
        or (state == "queued" and record.request == "")
        or record.skip is not None
    )


def due_after(rules: Rules, record: TransactionRecord, one: Health) -> float | None:
    """Return how many seconds a finding must last before the coordinator acts, or None if it does not act."""
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


# --- plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocate:
    """Let the source decide another batch, and create a run for it."""


@dataclass(frozen=True)
class Start:
    """Create the run of a transaction that was allocated for this run."""

    txid: int
    run_id: str
    key: str


@dataclass(frozen=True)
class Replay:
    """Replay a transaction.

    :param reason: the reason for logs and the ledger.
    :param counts: whether the replay counts against `max_replays`.
    :param noted: whether the ledger already has the request.
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
    """Replay a run that Airflow lists as running although its committer is dead."""


@dataclass(frozen=True)
class Examine:
    """Ask Airflow whether a transaction's committer is running. Only the task can do this, not the trigger."""

    txid: int


@dataclass(frozen=True)
class Restate:
    """Start a run that restates a committed transaction, as requested by a user."""

    txid: int
    run_id: str
    key: str


@dataclass(frozen=True)
class Return:
    """Restart a run that has yielded.

    :param txid: the transaction of the run, or None if the run has no transaction yet.
    """

    run_id: str
    txid: int | None


@dataclass(frozen=True)
class CameBack:
    """Record that a run that had yielded no longer needs to be started again."""

    run_id: str


@dataclass(frozen=True)
class Unblock:
    """Remove the block mark of a transaction after a user has acted."""

    txid: int


@dataclass(frozen=True)
class Follow:
    """Request restatements of the transactions that lack a correction of the upstream topology."""


Action = Allocate | Start | Replay | Examine | Restate | Return | CameBack | Unblock | Follow


@dataclass(frozen=True)
class Plan:
    """The actions to do now.

    :param wait: seconds until the next action is due if nothing changes, or None if no action will be due.
    :param memory: the input of the next plan.
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
    corrected: bool = False,
) -> Plan:
    """Return the actions to do now, at most one for each transaction.

    :param elapsed: seconds since the previous plan, which returned `memory`.
    :param ready: whether the source may have rows for another transaction.
    :param corrected: whether corrections of the upstream topology need an action.
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
    # A run that is about to restate a transaction counts towards `max_pending`. A lane begins no
    # transaction while such a run is open.
    waiting = sum(states.get(wish.run_id) in LIVE_RUN_STATES for wish in look.wishes)
    held_up = rules.lane and (look.restates or waiting > 0)
    actions += [Follow()] if corrected else []
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
    error = record.said if finding in (Finding.LEFT, Finding.ENDED) else ""
    reason = error or finding.value
    kind = RestartDead if finding is Finding.SILENT else Replay
    return kind(txid, record.attempt, record.run_id, record.key, reason, counts, is_noted(record))


# --- wishes ------------------------------------------------------------------------------------------------------


def _wanted(before: Health | None, elapsed: float) -> Health:
    """Return how often the run of a request was started, and the seconds since its last start."""
    if before is None or before.finding is not Finding.WANTED:
        return Health(0, finding=Finding.WANTED)
    return replace(before, lasts=before.lasts + elapsed)


def _restatements(
    look: LedgerSnapshot, states: RunStates, rules: Rules, health: Mapping[int, Health]
) -> Iterable[Action]:
    """Start the runs of requested restatements. A run that does not begin is started again after increasing waits."""
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
        record = look.opened.get(blocked.txid)
        # A transaction that was allocated after the reading of `allocated` cannot be blocked yet.
        if record is None or not blocked.holds(record):
            yield Unblock(blocked.txid)
    for run_id, entry in look.topology.yielded.items():
        action = _back(look, states, run_id, entry.txid)
        if action is not None:
            yield action


def _back(look: LedgerSnapshot, states: RunStates, run_id: str, txid: int | None) -> Action | None:
    if txid is not None:
        record = look.opened.get(txid)
        # If the record still has the mark `yielded`, the finding YIELDED starts the run.
        return CameBack(run_id) if record is None or record.yielded is None else None
    if any(record.run_id == run_id for record in look.opened.values()):
        return CameBack(run_id)  # The run has a transaction now.
    if run_id not in states:
        return None
    found = comeback(states[run_id], is_over=False, is_free=is_free(look, states, None))
    if found is Comeback.WAIT:
        return None
    return Return(run_id, None) if found is Comeback.START else CameBack(run_id)
