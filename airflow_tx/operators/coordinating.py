"""What the coordinator does next: a pure plan, from the ledger and the states of runs. Source: PROTOCOL §§5, 6.

Recovery goes by records, not by runs: an open transaction whose run is neither queued nor running is replayed, whatever
its run ended as. Nothing here knows the time: all that is kept are ages, which travel from one process to the next as
plain JSON, so a wall clock that jumps replays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from airflow_tx.errors import UnreadableRecord
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.chain import broken
from airflow_tx.protocol.metadata import position_before
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reading import Reader
from airflow_tx.protocol.records import Counter, Phase, TopologyRecord, TransactionRecord, digest
from airflow_tx.protocol.replaying import LIVE_RUN_STATES

RunStates = Mapping[str, "str | None"]
"""run_id → state of the run, None for one that does not exist; a run that was not asked for is missing."""

LONGEST_BACKOFF = 600.0
# A replay that somebody asked for this long ago, and of which nothing has come: whoever asked was killed.
FORGOTTEN = 60.0
# A committer that has just taken the turn, or gives it back, does not show for a moment.
SUSPICION = 3.0
_INCOMPLETE = (Phase.PROCESSING, Phase.FAILED)


# --- what is known -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """What holds for one topology.

    :param silence: seconds for which Airflow has to say that a committer runs which does not show, until it counts as
        dead. In that time one that is tried again is seen not to run.
    """

    max_pending: int
    max_replays: int
    backoff: float
    message_timeout: float
    silence: float = 20.0

    def wait(self, times: int) -> float:
        """Seconds to wait before something is tried that was tried so many times in a row."""
        return min(self.backoff * 2.0 ** min(times, 20), LONGEST_BACKOFF)


@dataclass(frozen=True)
class Look:
    """The ledger of a topology at one moment.

    :param now: the wall clock, for the age of what is seen for the first time.
    :param position: digest of the position after transaction `current` − 1.
    :param owner: whether a committer shows that it holds the turn; None: it would not show.
    :param busy: whether Airflow says that the committer of `current` is running; None: not asked.
    :param topology: None: there is no ledger yet.
    :param opened: the open transactions, from `current` to `allocated`.
    """

    now: datetime
    current: int = 1
    allocated: int = 0
    position: str = digest(None)
    owner: bool | None = None
    busy: bool | None = None
    topology: TopologyRecord | None = None
    opened: Mapping[int, TransactionRecord] = field(default_factory=dict)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs whose states matter."""
        yielded = self.topology.yielded if self.topology else {}
        return tuple(dict.fromkeys([*(record.run_id for record in self.opened.values()), *yielded]))

    def room(self, max_pending: int) -> bool:
        """Whether another transaction may be allocated."""
        return self.allocated + 1 < self.current + max_pending


class Finding(str, Enum):
    """What is the matter with an open transaction."""

    NOTHING = "nothing"
    UNBORN = "its run was never created"
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


@dataclass(frozen=True)
class Seen:
    """What was seen of one open transaction.

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
class Memory:
    """What the coordinator has seen so far; it may be lost, and then only waits begin anew.

    :param source_wait: seconds until the source may be asked again.
    :param source_failures: how many times in a row it failed.
    """

    seen: Mapping[int, Seen] = field(default_factory=dict)
    source_wait: float = 0.0
    source_failures: int = 0

    def tried(self, txid: int) -> Memory:
        """Its run was started, or could not be: the next time comes later."""
        one = self.seen.get(txid)
        return self if one is None else self._with(txid, replace(one, tries=one.tries + 1, lasts=0.0))

    def blocked(self, txid: int) -> Memory:
        """It is replayed no more in this attempt."""
        one = self.seen.get(txid)
        return self if one is None else self._with(txid, replace(one, blocked=True, finding=Finding.BLOCKED))

    def asked(self, wait: float) -> Memory:
        """The source answered; it is asked again after `wait` seconds."""
        return replace(self, source_wait=wait, source_failures=0)

    def failed(self, poll: float, longest: float = FORGOTTEN) -> Memory:
        """The source failed: it is asked again later and later."""
        wait = min(poll * 2.0 ** min(self.source_failures + 1, 20), max(longest, poll))
        return replace(self, source_wait=wait, source_failures=self.source_failures + 1)

    def _with(self, txid: int, one: Seen) -> Memory:
        return replace(self, seen={**self.seen, txid: one})

    def to_json(self) -> dict[str, Any]:
        """Plain JSON of all fields."""
        told = {str(txid): {**asdict(one), "finding": one.finding.value} for txid, one in self.seen.items()}
        return {"seen": told, "source_wait": self.source_wait, "source_failures": self.source_failures}

    @classmethod
    def from_json(cls, value: Any) -> Memory:
        """What `to_json` gave; of another version of this package, nothing."""
        try:
            seen = {int(txid): _seen_of(one) for txid, one in value["seen"].items()}
            return cls(seen, float(value["source_wait"]), int(value["source_failures"]))
        except (TypeError, KeyError, ValueError, AttributeError):
            return cls()


def _seen_of(value: Mapping[str, Any]) -> Seen:
    return Seen(**{**value, "finding": Finding(value["finding"])})


# --- what is to be done ------------------------------------------------------------------------------------------


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
    :param noted: it was asked for before, so that nobody has to be asked whether it may be.
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


Action = Allocate | Start | Replay | Examine | Return | CameBack | Unblock


@dataclass(frozen=True)
class Plan:
    """What to do now.

    :param wait: seconds after which something else will be due if nothing changes; None: nothing.
    :param memory: to be given to the next plan.
    """

    actions: tuple[Action, ...]
    wait: float | None
    memory: Memory


def plan(look: Look, states: RunStates, memory: Memory, *, elapsed: float, rules: Rules, ready: bool) -> Plan:
    """What is to be done: at most one action for each transaction.

    :param elapsed: seconds since the plan that gave `memory`.
    :param ready: whether the source has, or may have, rows for another transaction.
    """
    moved = frozenset(broken(look.opened, current=look.current, position=look.position))
    seen: dict[int, Seen] = {}
    actions: list[Action] = []
    waits: list[float] = []
    for txid, record in sorted(look.opened.items()):
        one = _seen(look, states, memory.seen.get(txid), elapsed, rules, txid, record, moved)
        seen[txid] = one
        due = _due(rules, record, one)
        if due is None:
            continue
        if due > one.lasts:
            waits.append(due - one.lasts)
        elif record.run_id in states:
            actions.append(_action(txid, record, one.finding))
    actions += _marks(look, states)
    if ready and look.room(rules.max_pending):
        actions.append(Allocate())
    after = replace(memory, seen=seen, source_wait=max(memory.source_wait - elapsed, 0.0))
    return Plan(tuple(actions), min(waits, default=None), after)


# --- one transaction ---------------------------------------------------------------------------------------------


def _seen(
    look: Look,
    states: RunStates,
    before: Seen | None,
    elapsed: float,
    rules: Rules,
    txid: int,
    record: TransactionRecord,
    moved: frozenset[int],
) -> Seen:
    if before is None or before.attempt != record.attempt:
        age = (look.now - datetime.fromisoformat(record.began)).total_seconds()
        working = min(max(age, 0.0), rules.message_timeout)
        # A new attempt is no success yet: what was tried before is remembered until it has acked everything.
        one = Seen(record.attempt, record.op, working=working, tries=before.tries if before else 0)
        elapsed = 0.0
    else:
        one = replace(before, working=before.working + elapsed)
    if record.request == "":
        one = replace(one, working=0.0)  # allocated for a run that has not begun
    if record.run_id not in states and not _is_blocked(look, one, txid, record):
        return replace(one, lasts=one.lasts + elapsed)  # as far as is known, nothing has changed
    found = _find(look, states, one, rules, txid, record, moved)
    lasts = one.lasts + elapsed if found is one.finding else 0.0
    fine = found is Finding.NOTHING and record.phase not in _INCOMPLETE
    return replace(one, op=record.op, finding=found, lasts=lasts, tries=0 if fine else one.tries)


def _find(
    look: Look, states: RunStates, one: Seen, rules: Rules, txid: int, record: TransactionRecord, moved: frozenset[int]
) -> Finding:
    if _is_blocked(look, one, txid, record):
        return Finding.BLOCKED
    state = states[record.run_id]
    if state in LIVE_RUN_STATES:
        return _find_live(look, states, one, rules, txid, record, moved)
    if record.skip is not None and txid != look.current:
        return Finding.NOTHING  # its turn will come, with whatever it has
    if is_noted(record):
        return Finding.NOTED
    if record.skip is not None:
        return Finding.SKIP
    if state is None and record.request == "":
        return Finding.UNBORN
    if record.yielded is not None:
        return Finding.YIELDED if _is_free(look, states, txid) else Finding.IN_THE_WAY
    if txid in moved:
        return Finding.MOVED if _is_decided(look, states, txid - 1, moved) else Finding.NOTHING
    return Finding.GONE if state is None else Finding.ENDED


def _find_live(
    look: Look, states: RunStates, one: Seen, rules: Rules, txid: int, record: TransactionRecord, moved: frozenset[int]
) -> Finding:
    if states[record.run_id] != "running":
        return Finding.NOTHING  # it begins as soon as it has a run slot
    if record.phase is Phase.COMMITTING and txid == look.current and record.skip is None:
        return _find_committer(look, one, record)
    begun = record.request != ""
    if begun and record.phase in _INCOMPLETE and one.working >= rules.message_timeout:
        return Finding.LATE
    if is_noted(record):
        return Finding.NOTHING  # on its way
    if txid in moved and _is_decided(look, states, txid - 1, moved):
        return Finding.MOVED  # its committer would find out, and fail
    return Finding.NOTHING


def _find_committer(look: Look, one: Seen, record: TransactionRecord) -> Finding:
    if look.owner is not False:
        return Finding.NOTHING
    # Airflow tries it again, and until that try has taken the turn nobody shows. Should it be killed meanwhile, Airflow
    # notices by itself, later.
    if look.busy is False or (one.finding is Finding.RETRYING and one.op == record.op):
        return Finding.RETRYING
    return Finding.SILENT if look.busy else Finding.SUSPECT


def _is_blocked(look: Look, one: Seen, txid: int, record: TransactionRecord) -> bool:
    mark = (look.topology.blocked if look.topology else None) or {}
    marked = (mark.get("txid"), mark.get("attempt")) == (txid, record.attempt)
    return record.skip is None and (marked or one.blocked)


def is_noted(record: TransactionRecord) -> bool:
    """Whether somebody has asked for a replay of this very attempt."""
    return record.replay is not None and record.replay["attempt"] == record.attempt


def _count(record: TransactionRecord) -> int:
    """How many automatic replays there were in a row."""
    note = record.replay or {}
    return int(note["count"]) if note.get("attempt") == record.attempt - 1 else 0


def _is_free(look: Look, states: RunStates, txid: int | None) -> bool:
    """Whether the run whose turn it is needs no run slot any more."""
    first = look.opened.get(look.current)
    return txid == look.current or first is None or states.get(first.run_id) == "running"


def _is_decided(look: Look, states: RunStates, txid: int, moved: frozenset[int]) -> bool:
    """Whether a transaction ends where its record says, as far as can be told."""
    record = look.opened.get(txid)
    if record is None:
        return True
    if txid in moved or record.phase is Phase.FAILED or is_noted(record):
        return False
    state = states.get(record.run_id)
    # Queued: it was cleared, and its begin decides anew; unless it was not begun at all.
    return state == "running" or (state == "queued" and record.request == "") or record.skip is not None


def _due(rules: Rules, record: TransactionRecord, one: Seen) -> float | None:
    """How long the finding has to last before something is done about it; None: nothing is."""
    again = 0.0 if one.tries == 0 else rules.wait(one.tries - 1)
    if one.finding is Finding.ENDED:
        return rules.wait(_count(record))
    if one.finding is Finding.NOTED:
        return min(FORGOTTEN * 2.0 ** min(max(one.tries - 1, 0), 20), LONGEST_BACKOFF)
    if one.finding is Finding.LATE:
        return rules.message_timeout if is_noted(record) else 0.0
    if one.finding is Finding.SUSPECT:
        return SUSPICION
    if one.finding is Finding.SILENT:
        return max(rules.silence, FORGOTTEN) if is_noted(record) else rules.silence
    if one.finding in (Finding.UNBORN, Finding.GONE, Finding.MOVED, Finding.SKIP, Finding.YIELDED):
        return again
    return None


def _action(txid: int, record: TransactionRecord, finding: Finding) -> Action:
    if finding is Finding.UNBORN:
        return Start(txid, record.run_id, record.key)
    if finding is Finding.SUSPECT:
        return Examine(txid)
    if finding is Finding.YIELDED:
        return Return(record.run_id, txid)
    counts = finding in (Finding.ENDED, Finding.LATE, Finding.SILENT)
    reason = record.error if finding is Finding.ENDED and record.error else finding.value
    kind = RestartDead if finding is Finding.SILENT else Replay
    return kind(txid, record.attempt, record.run_id, record.key, reason, counts, is_noted(record))


# --- the marks of the topology -----------------------------------------------------------------------------------


def _marks(look: Look, states: RunStates) -> Iterable[Action]:
    if look.topology is None:
        return
    blocked = look.topology.blocked
    if blocked is not None:
        record = look.opened.get(blocked["txid"])
        # One that was allocated later than `allocated` was read cannot be blocked yet.
        if record is None or record.attempt != blocked["attempt"] or record.skip is not None:
            yield Unblock(blocked["txid"])
    for run_id, entry in look.topology.yielded.items():
        action = _back(look, states, run_id, entry)
        if action is not None:
            yield action


def _back(look: Look, states: RunStates, run_id: str, entry: Mapping[str, Any]) -> Action | None:
    if entry["txid"] is not None:
        record = look.opened.get(entry["txid"])
        # Otherwise it is started as a transaction, see YIELDED.
        return CameBack(run_id) if record is None or record.yielded is None else None
    if any(record.run_id == run_id for record in look.opened.values()):
        return CameBack(run_id)  # it has a transaction by now
    if run_id not in states or states[run_id] in LIVE_RUN_STATES:
        return None  # it may be about to end
    if states[run_id] != "failed":
        return CameBack(run_id)
    return Return(run_id, None) if _is_free(look, states, None) else None


# --- the look ----------------------------------------------------------------------------------------------------


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Looker:
    """Reads a topology again and again, and what never changes only once.

    :param shows: whether its committer shows in the ledger while it holds the turn, as a single one does.
    """

    def __init__(self, store: Store, paths: Paths, *, shows: bool = True, now: Callable[[], datetime] = _now) -> None:
        self.store = store
        self._shows = shows
        self._paths = paths
        self._now = now
        # The digest of the position that a final transaction has left, and the position that is asked from next.
        self._base: tuple[int, str] | None = None
        self._next: tuple[int, Any] | None = None

    def look(self) -> Look | None:
        """The ledger as it is; None if it changed while it was read.

        :raises UnreadableRecord: naming the record.
        """
        read, paths = Reader(self.store), self._paths
        counter = read.peek_if_any(Counter, paths.current)
        if counter is None and read.peek_if_any(TopologyRecord, paths.record) is None:
            return Look(self._now())
        # Damaged, if there is no counter.
        current = (counter or read.peek(Counter, paths.current)).txid
        allocated = read.peek(Counter, paths.allocated).txid
        opened: dict[int, TransactionRecord] = {}
        # Backwards: one that starts where its predecessor does not end then did so at one moment.
        for txid in range(allocated, current - 1, -1):
            record = read.peek_if_any(TransactionRecord, paths.transaction(txid))
            if record is None:
                return None  # it became final
            opened[txid] = record
        position = self._position(read, current) if opened else digest(None)
        if position is None:
            return None
        owner = None
        if self._shows and current in opened and opened[current].phase is Phase.COMMITTING:
            owner = self.store.get(paths.owner) is not None
        return Look(
            now=self._now(),
            current=current,
            allocated=allocated,
            position=position,
            owner=owner,
            # The last one: whoever yields by now has said so in its record, too.
            topology=read.peek(TopologyRecord, paths.record),
            opened=dict(sorted(opened.items())),
        )

    def next_position(self, look: Look) -> Any:
        """From where the next transaction is decided.

        :raises UnreadableRecord: it changes just now, or is damaged.
        """
        if self._next is not None and self._next[0] == look.allocated:
            return self._next[1]
        position = position_before(Reader(self.store), self._paths, look.allocated + 1)
        # While it is open, a replay may move it.
        self._next = None if look.opened else (look.allocated, position)
        return position

    def _position(self, read: Reader, current: int) -> str | None:
        if self._base is None or self._base[0] != current:
            try:
                self._base = (current, digest(position_before(read, self._paths, current)))
            except UnreadableRecord:
                now = Reader(self.store).peek(Counter, self._paths.current).txid
                if now != current:
                    return None
                raise
        return self._base[1]
