"""A topology in memory whose coordinator has a lane, and an Airflow that executes the runs when it is told to."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from re import findall
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, Transaction, current_batch, persistent_aggregate
from airflow_tx.base.compat import RunInfo
from airflow_tx.base.errors import OutcomeUnknown
from airflow_tx.coordinator.lane import Lane
from airflow_tx.coordinator.lane_plan import LanePlan, lane_plan
from airflow_tx.coordinator.plan import CoordinatorMemory, Plan, Rules
from airflow_tx.coordinator.worker import Coordination, Pace
from airflow_tx.ledger import LIVE_RUN_STATES
from airflow_tx.ledger.answers import Begun, WindowFull
from airflow_tx.ledger.api import Create, Delete, Paths, Put, Store, Write
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import TransactionRecord, decode
from airflow_tx.operators.transaction import defined
from airflow_tx.sources.api import SourceKind
from airflow_tx.state import Count, MemoryState, Sum
from airflow_tx.testing.deadline import Deadline
from airflow_tx.transaction.commit.check import Check
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.processing.outputs import RETURN_KEY
from tests.stage import StageRun
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers, run_of

PATHS = Paths("/airflow_tx", "numbers")
RULES = Rules(max_pending=4, max_replays=3, backoff=0.0, message_timeout=1000.0, silence=10.0)
TASK = "count"
LONG = 300.0
"""Seconds that a wait which should end may take on a slow machine."""
OF_BLOCK = ("begin", "tasks", "inside", "tables", "rejected", "max_rejected")
"""What the transaction of the world has of its block."""


def rows_of(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """What its task makes of the numbers of a batch."""
    return [{"key": "all", "rows": len(numbers), "sum": sum(numbers)}]


class CoordinatorTi(FakeTi):
    """A coordinator's task instance: Airflow knows of no task of the runs that it asks for."""

    def __init__(self, task_id: str, run_id: str, **more: Any) -> None:
        super().__init__(task_id, run_id, dag_id="numbers_coordinator", **more)

    def get_task_states(self, *, dag_id: str, run_ids: list[str], task_ids: Any = None) -> dict[str, Any]:
        return {}


class Bounded(Numbers):
    """So many transactions of ten numbers, and then nothing."""

    def __init__(self, count: int = 3) -> None:
        self.count = count

    def initialize_transaction(self, txid: int, position: Any) -> Any:
        return None if (position or 0) >= 10 * self.count else super().initialize_transaction(txid, position)


class OpaqueBounded(Bounded):
    kind = SourceKind.OPAQUE


class ShowingStore(CountingStore):
    """Shows what is announced, as ZooKeeper does, until the session of who announces it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, bytes] = {}

    @contextmanager
    def announce(self, path: str, data: bytes) -> Iterator[None]:
        self.shown[path] = data
        try:
            yield
        finally:
            self.shown.pop(path, None)

    def get(self, path: str) -> Any:
        if path in self.shown:
            return SimpleNamespace(data=self.shown[path], version=0)
        return super().get(path)


class ByLooks(Coordination):
    """A coordinator whose time passes by its looks, so that it is not idle sooner where each of them takes longer.

    No time passes while a run is executed that it has started.
    """

    def __init__(self, world: LaneWorld, pace: Pace, store: Store, log: Any, **more: Any) -> None:
        self._world = world
        self._time = 0.0
        ti = CoordinatorTi("coordinate", "c", runs=world.runs)
        super().__init__(
            world.plan().spec, pace, store, ti, log, memory=CoordinatorMemory(), clock=lambda: self._time, **more
        )

    def step(self) -> Plan:
        found = super().step()
        if not self._world.waits_for_a_run:
            self._time += self.pace.poll
        return found


@dataclass
class LaneWorld:
    """One topology.

    :param on_batch: what its task does with a batch, before it counts.
    :param key: the name of what its task gives; `paused`: which DAG is.
    :param executes: ends when somebody executes runs no more; None: nobody does.
    :ivar others: what was started of other DAGs: dag_id, run_id, whether it was reset, whether it has a date.
    """

    store: ShowingStore
    log: Any
    source: Any = field(default_factory=Bounded)
    on_batch: Callable[[Any], None] = lambda batch: None
    options: dict[str, Any] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    conf: dict[str, Any] = field(default_factory=dict)
    others: list[tuple[str, str, bool, bool]] = field(default_factory=list)
    paused: str = ""
    key: str = RETURN_KEY
    executes: Future[None] | None = None
    state: MemoryState = field(
        default_factory=lambda: MemoryState("totals", keys=["key"], values={"rows": Count(), "sum": Sum()})
    )

    def __post_init__(self) -> None:
        options = {"source": self.source, **self.block_options()}
        with DAG("numbers", max_active_runs=8, **self.dag_options()) as self.dag, Transaction(**options):
            given = self.counted()
            CommitOperator(task_id="commit", updates=[self.update_of(given)], checks=self.checks_of(given))
        spec, _ = defined("numbers")
        own = {"source": self.source, "max_pending": 4, "memory": self.store, **self.options}
        of_block = {name: getattr(spec, name) for name in OF_BLOCK}
        self.spec = MemorySpec("numbers", "numbers", **{**own, **of_block})

    def update_of(self, counted: Any) -> Update:
        """Make the update of its committer."""
        return persistent_aggregate(counted, state=self.state)

    def checks_of(self, counted: Any) -> Sequence[Check]:
        """Make the checks of its committer."""
        return ()

    def block_options(self) -> dict[str, Any]:
        """What the block says besides its source."""
        return {}

    def dag_options(self) -> dict[str, Any]:
        """What the DAG file says of its runs."""
        return {"schedule": None}

    def run_info(self, run_id: str) -> RunInfo:
        """A run as its tasks know it."""
        return run_of(run_id)

    def numbers(self, metadata: Any) -> Sequence[int]:
        """The numbers of a batch."""
        return range(*metadata)

    def counted(self) -> Any:
        """Make its task; what it gives to the committer."""

        @task
        def count() -> list[dict[str, Any]]:
            batch = current_batch()
            self.on_batch(batch)
            return rows_of([row["number"] for row in batch.read()])

        return count()

    @property
    def count(self) -> int:
        """How many transactions there are."""
        return int(self.source.count)

    # --- Airflow

    def earlier_live_run(self, dag_id: str, date: datetime) -> datetime | None:
        """The logical date of a run that is queued or running and comes before this date."""
        return None

    def start_run(
        self, dag_id: str, run_id: str, *, conf: Any = None, reset: bool = False, dated: bool = False, **more: Any
    ) -> bool:
        if dag_id != "numbers":
            self.others.append((dag_id, run_id, reset, dated))
            return True
        if run_id in self.runs and not reset:
            return False
        self.conf.setdefault(run_id, conf)
        self.runs[run_id] = "queued"
        return True

    def execute(self, run_id: str, seconds: float = LONG) -> Begun:
        """Execute a run, all of its tasks.

        :raises TimeoutError: its turn does not come.
        """
        deadline = Deadline(seconds)
        info = replace(self.run_info(run_id), conf=self.conf[run_id] or {})
        run = StageRun(self.spec, run_id, self.log)
        while isinstance(begun := run.begin(info=info, dag=self.dag), WindowFull):
            self._defer(deadline)
        assert isinstance(begun, Begun), begun
        self.runs[run_id] = "running"
        run.committer.runs = self.runs
        for each in {*self.spec.tasks} - {TASK}:
            run.start(each).ack()
            run.committer.states[each] = "success"
        run.end(run.start(TASK), rows_of(self.numbers(begun.metadata)), self.key)
        commit = run.commit_of(self.plan().updates, self.plan().checks)
        while commit_in_turn(commit, self.store, patience=1) is not None:
            self._defer(deadline)
        self.runs[run_id] = "success"
        return begun

    def _defer(self, deadline: Deadline) -> None:
        if deadline.left() <= 0:
            raise TimeoutError
        time.sleep(0.01)

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Let somebody execute each run soon after it was started, one after the other.

        :raises BaseException: what a run raises.
        """
        over = threading.Event()

        def execute() -> None:
            while not over.wait(0.01):
                for run_id, state in sorted(self.runs.items(), key=lambda item: [*map(int, findall(r"\d+", item[0]))]):
                    if state == "queued":
                        self.execute(run_id)

        with ThreadPoolExecutor(1) as pool:
            self.executes = pool.submit(execute)
            try:
                yield
            finally:
                over.set()
                executes, self.executes = self.executes, None
        executes.result()

    @property
    def waits_for_a_run(self) -> bool:
        """Whether somebody executes runs, and has still one to execute.

        :raises BaseException: what a run has raised.
        """
        if self.executes is None:
            return False
        if self.executes.done():
            self.executes.result()
        return not LIVE_RUN_STATES.isdisjoint([*self.runs.values()])

    # --- the coordinator

    def plan(self) -> LanePlan:
        return lane_plan(self.spec, self.dag)

    def lane(self, patience: float = LONG, store: Any = None, clock: Callable[[], float] = time.monotonic) -> Lane:
        ti = CoordinatorTi("coordinate", "c")
        return Lane(self.plan(), store or self.store, ti, self.log, patience=patience, clock=clock)

    def coordinate(self, lane: Lane | None = None, store: Any = None, alarms: Any = None, **pace: Any) -> Coordination:
        """Do what a coordinator with a lane does in its worker, until there is nothing to do."""
        lane = lane or self.lane(store=store)
        fields: dict[str, Any] = {"rules": RULES, "poll": 0.02, "linger": 0.1, "hold": 0.0, **pace}
        own = ByLooks(self, Pace(**fields), store or self.store, self.log, lane=lane, alarms=alarms)
        with lane.opened():
            own.work_until_idle()
        return own

    def coordinate_by_two(self) -> None:
        """Do what two coordinators, each with a lane, do at once."""
        with ThreadPoolExecutor(2) as pool:
            for each in [pool.submit(self.coordinate) for _ in range(2)]:
                each.result()

    def settle(self, **pace: Any) -> None:
        """Coordinate, again and again, until all that the source has is committed; runs are executed meanwhile."""
        self.settle_all(self.count, **pace)

    def settle_all(self, count: int, **pace: Any) -> None:
        """Coordinate, again and again, until so many transactions are final."""
        deadline = Deadline(LONG)
        while len(self.history) < count:
            assert deadline.left() > 0, f"{len(self.history)} of {count} transactions are final"
            self.coordinate(**pace)

    # --- what became of it

    def record(self, txid: int) -> TransactionRecord | None:
        path = PATHS.transaction(txid)
        node = self.store.get(path)
        return None if node is None else decode(TransactionRecord, path, node.data)

    @property
    def history(self) -> dict[int, TransactionRecord]:
        children = self.store.children(PATHS.histories)
        found = {}
        for name in children.names if children else ():
            path = PATHS.history(int(name))
            node = self.store.get(path)
            assert node is not None
            found[int(name)] = decode(TransactionRecord, path, node.data)
        return dict(sorted(found.items()))

    @property
    def totals(self) -> tuple[int, int]:
        """How many rows are counted, and their sum."""
        stored = self.state.database.rows.get(("all",))
        return (0, 0) if stored is None or stored.value is None else tuple(stored.value)

    def assert_exact(self, transactions: int) -> None:
        assert list(self.history) == list(range(1, transactions + 1))
        assert {entry.final.outcome.value for entry in self.history.values()} == {"COMMITTED"}
        assert self.totals == (10 * transactions, sum(range(10 * transactions)))


class LongerWorld(LaneWorld):
    """One topology whose rows go through two tasks."""

    def counted(self) -> Any:
        @task
        def read() -> list[int]:
            return [row["number"] for row in current_batch().read()]

        @task
        def count(numbers: list[int]) -> list[dict[str, Any]]:
            self.on_batch(current_batch())
            return rows_of(numbers)

        return count(read())  # type: ignore[arg-type]


class Killed(BaseException):
    """The process is gone."""


_VERBS = {Create: "+", Put: "=", Delete: "-"}
STEPS = {
    "+topology": "makes the ledger",
    "+transactions/N": "begins",
    "+history/N": "marks a commit",
    "=acks/N/N": "acks",
}
"""By the record that shows it, each step that a lane makes of every transaction."""
MULTIS = {*STEPS.values(), "notes", "checks"}
"""The kinds of multis: of these steps, of others, and those that write nothing."""
LOOKS = {"get topology", "get current", "get allocated"}
"""What a coordinator reads whenever it looks at its ledger."""


def _part(path: str) -> str:
    """Name a record of a ledger by its kind: `transactions/N` for any transaction."""
    parts = path.removeprefix(PATHS.base).removeprefix("/coordinator").strip("/").split("/")
    return "/".join([parts[0].partition("-")[0], *("N" for _ in parts[1:])])


def _kind_of(writes: Sequence[Write]) -> str:
    """Name a multi by the step that it is a part of."""
    written = {f"{_VERBS[type(each)]}{_part(each.path)}" for each in writes}
    return next((step for mark, step in STEPS.items() if mark in written), "notes" if written else "checks")


class MortalStore(Store):
    """The connection of a process that dies at its n-th request, before or after that has arrived.

    How many requests a process makes depends on its threads. Which kinds of requests it makes does not.

    :param last: the number of its last request; 0: it lives.
    :param kind: counts requests of this kind alone, such as `get topology`, or the multi of a step; "": all.
    :ivar seen: how many requests of each kind it was asked for.
    """

    def __init__(self, store: ShowingStore, last: int, kind: str = "", *, arrives: bool = False) -> None:
        self.store = store
        self.last = last
        self.kind = kind
        self.arrives = arrives
        self.seen: Counter[str] = Counter()
        self.dead = False
        self._lock = threading.Lock()

    def _sent(self, kind: str, request: Callable[[], Any]) -> Any:
        is_last = self._is_last(kind)
        self.dead |= is_last
        if not self.dead:
            return request()
        if is_last and self.arrives:
            request()
        self.store.shown.clear()
        raise Killed

    def _is_last(self, kind: str) -> bool:
        """Count a request, and answer whether it is the last one."""
        with self._lock:
            self.seen[kind] += 1
            count = self.seen[kind] if self.kind else self.seen.total()
            return self.kind in ("", kind) and count == self.last

    def get(self, path: str) -> Any:
        return self._sent(f"get {_part(path)}", lambda: self.store.get(path))

    def children(self, path: str) -> Any:
        return self._sent(f"children {_part(path)}", lambda: self.store.children(path))

    def multi(self, requirements: Any, writes: Any) -> None:
        self._sent(_kind_of(writes), lambda: self.store.multi(requirements, writes))

    def sync(self) -> None:
        self._sent("sync", self.store.sync)

    def ensure(self, path: str) -> None:
        self._sent(f"ensure {_part(path)}", lambda: self.store.ensure(path))

    def watch(self, *paths: str) -> Any:
        return self.store.watch(*paths)

    @contextmanager
    def announce(self, path: str, data: bytes) -> Iterator[None]:
        self.store.shown[path] = data
        yield


class LossyStore(MortalStore):
    """A connection that loses the reply to its n-th multi of a kind, which has arrived or not."""

    def _sent(self, kind: str, request: Callable[[], Any]) -> Any:
        return request()

    def multi(self, requirements: Any, writes: Any) -> None:
        is_lost = self._is_last(_kind_of(writes))
        if not is_lost or self.arrives:
            self.store.multi(requirements, writes)
        if is_lost:
            raise OutcomeUnknown(paths="", reason="lost")


def requests_of(make: Callable[[], Any], connection: type[MortalStore], **pace: Any) -> Iterator[tuple[str, int]]:
    """Name the requests that a lane makes while nothing fails: the kind of each, and its number among its kind.

    Each multi is named, and the first request of each kind that reads: what a later one finds, a multi has made.
    """
    world = make()
    store = connection(world.store, 0)
    world.coordinate(store=store, **pace)
    assert set(STEPS.values()) <= store.seen.keys()
    for kind, count in sorted(store.seen.items()):
        yield from ((kind, number) for number in range(1, count + 1 if kind in MULTIS else 2))


def killed_lanes(make: Callable[[], Any], *, arrives: bool, most: int = sys.maxsize, **pace: Any) -> Iterator[Any]:
    """Let a lane die at each request that `requests_of` names; runs end what each has left.

    :param make: makes a world.
    :param arrives: whether the last request of the process has reached the store.
    :param most: at so many requests of a kind it dies at most.
    :param pace: of the coordinator.
    """
    killed = set()
    for kind, number in requests_of(make, MortalStore, **pace):
        if number > most:
            continue
        world = make()
        mortal = MortalStore(world.store, number, kind, arrives=arrives)
        with suppress(Killed):
            world.coordinate(store=mortal, **pace)
        if mortal.dead:
            killed.add(kind)
        with world.executing():
            world.settle(**{**pace, "linger": 0.01, "poll": 0.005})
        yield world
    assert {*STEPS.values(), *LOOKS} <= killed
