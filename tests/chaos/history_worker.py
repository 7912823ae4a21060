"""One process of a recorded history. It begins, processes, commits, skips and reads at random, and may be killed.

Each operation is written down before it starts, and again once its outcome is known.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, Transaction, current_batch, persistent_aggregate
from airflow_tx.base import compat
from airflow_tx.base.errors import OutcomeUnknown, StateOutcomeUnknown, TxError
from airflow_tx.coordinator.lane import Lane
from airflow_tx.coordinator.lane_plan import LanePlan, lane_plan
from airflow_tx.ledger.answers import Begun, Joined
from airflow_tx.ledger.attempt import Token, of_lane
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import BoundCall, Ledger
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Counter, TransactionRecord
from airflow_tx.ledger.steps import commit, end
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.client import ClientConfig, connect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.operators.transaction import defined
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.sources.api import Batch, SourceKind
from airflow_tx.state import RedisState, SqlState, Sum
from airflow_tx.state.api import StateWrite, StoredState
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.commit.update import DagStates, states_of
from tests.chaos.mutant import break_rule
from tests.stage import StageRun
from tests.unit import bench
from tests.unit.bench import FakeTi, MemorySpec, Numbers

SESSION = 4.0
"""Seconds of silence after which ZooKeeper ends a session: less than the longest stop."""
KEYS = 5
_SKIPS = Audit("history", "at random")


@dataclass(frozen=True)
class Place:
    """Where a process works.

    :param states: the URLs of the databases of the states.
    """

    folder: str
    hosts: str
    states: tuple[str, ...]
    number: int
    seed: int
    mutant: str = ""

    @property
    def over(self) -> Path:
        """Name the file that is there when all processes are to end."""
        return Path(self.folder, "over")


class Operation:
    """An operation under way: what it has found, and its outcome."""

    value: int | None = None
    outcome = "ok"


class Recorder:
    """Writes down operations, line by line, so that a killed process leaves all that it has begun."""

    def __init__(self, place: Place) -> None:
        self._file = open(Path(place.folder, f"history-{place.number}-{os.getpid()}.jsonl"), "a", buffering=1)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    @contextmanager
    def operation(self, kind: str, **fields: Any) -> Iterator[Operation]:
        """Record what the block does. An error that is no refusal may have had its effect."""
        own = Operation()
        id_ = f"{os.getpid()}.{next(self._numbers)}"
        by = threading.current_thread().name
        self._write({"id": id_, "kind": kind, **fields, "by": by, "call": time.monotonic_ns()})
        try:
            yield own
        except BaseException as error:
            unknown = not isinstance(error, TxError) or isinstance(error, OutcomeUnknown | StateOutcomeUnknown)
            self._write({"id": id_, "outcome": "unknown" if unknown else "refused"})
            raise
        found = {} if own.value is None else {"value": own.value}
        self._write({"id": id_, "outcome": own.outcome, "return": time.monotonic_ns(), **found})

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._lock:
            self._file.write(json.dumps(line) + "\n")


def pause(chance: random.Random) -> None:
    """Wait for a moment, so that others come between."""
    time.sleep(chance.choice([0.0, 0.0, 0.0, 0.01, 0.1, 0.5]) * chance.random())


class Recorded(StoredState):
    """A state whose raises and writes are written down."""

    number = 0
    recorder: Recorder
    chance: random.Random

    def _written(self, write: StateWrite) -> int:
        pause(self.chance)
        kind = "write" if not write.raising else "raise" if write.rows is None else "raise_write"
        delta = sum(row["n"] for row in write.listed)
        with self.recorder.operation(kind, state=self.number, token=asdict(write.grant.token), delta=delta):
            return super()._written(write)


class RecordedSql(Recorded, SqlState):
    """Values in a database."""


class RecordedRedis(Recorded, RedisState):
    """Values in Redis."""


def recorded_state(url: str, number: int) -> RecordedSql | RecordedRedis:
    """Make the state at a URL, with a name of its own."""
    columns: Any = {"keys": ["word"], "values": {"n": Sum()}}
    if url.startswith("redis:"):
        return RecordedRedis.from_url(url, prefix=f"counted_{number}", **columns)
    return RecordedSql.from_url(url, table=f"counted_{number}", **columns)


def record_ends(recorder: Recorder, chance: random.Random) -> None:
    """Write down each step that ends a transaction, also one that is joined with another one."""
    run = Ledger.run

    def recorded(self: Ledger, step: Any, *args: Any, **kwargs: Any) -> Any:
        ends = _end_of(step, args) or next(filter(None, (_end_of(each, ()) for each in args)), None)
        if ends is None:
            return run(self, step, *args, **kwargs)
        pause(chance)
        kind, token = ends
        with recorder.operation(kind, token=asdict(token)) as own:
            answer: Any = run(self, step, *args, **kwargs)
            first = answer.first if isinstance(answer, Joined) else answer
            # It found the transaction final: by its own unanswered step, or by another process.
            own.outcome = "ok" if first.by_this_call else "unknown"
            return answer

    Ledger.run = recorded  # type: ignore[method-assign]


def _end_of(step: Any, args: Sequence[Any]) -> tuple[str, Token] | None:
    if isinstance(step, BoundCall) and step.step is commit.commit:
        return "mark", step.kwargs["token"]
    return ("skip", args[0]) if step is end.commit_skip else None


class Steps(Numbers):
    """A log of numbers; each attempt of a transaction may take more of them, or fewer."""

    kind = SourceKind.OPAQUE
    chance: random.Random = random.Random()

    def initialize_transaction(self, txid: int, position: Any) -> Batch:
        first = position or 0
        last = first + self.chance.randint(1, 4)
        return Batch([first, last], last, last - first)


def rows_of(numbers: Sequence[int], factor: int) -> list[dict[str, Any]]:
    """Add up numbers by key, with a factor that another attempt does not have."""
    found = dict[str, int]()
    for number in numbers:
        found[f"k{number % KEYS}"] = found.get(f"k{number % KEYS}", 0) + (number + 1) * factor
    return [{"word": word, "n": n} for word, n in sorted(found.items())]


class World:
    """The topology, as one process sees it."""

    def __init__(self, place: Place, store: Any) -> None:
        self.place = place
        self.store = store
        self.chance = chance = random.Random(place.seed)
        self.recorder = Recorder(place)
        record_ends(self.recorder, chance)
        self.states = [recorded_state(url, number) for number, url in enumerate(place.states)]
        for number, state in enumerate(self.states):
            state.number, state.recorder, state.chance = number, self.recorder, chance
        source = Steps()
        source.chance = chance

        @task
        def count() -> list[dict[str, Any]]:
            return rows_of([row["number"] for row in current_batch().read()], chance.randint(1, 9))

        with DAG("numbers", schedule=None, max_active_runs=8) as self.dag, Transaction(source=source):
            counted: Any = count()
            CommitOperator(task_id="commit", updates=[persistent_aggregate(counted, state=s) for s in self.states])
        spec, _ = defined("numbers")
        of_block = {name: getattr(spec, name) for name in ("begin", "tasks", "inside", "tables")}
        area = StagingArea(f"{place.folder}/staging")
        own: Any = {"max_pending": 4, "memory": store, "area": area, **of_block}
        self.spec = MemorySpec("numbers", "numbers", source, **own)
        self.plan: LanePlan = lane_plan(self.spec, self.dag)
        self.by_name: DagStates = states_of(self.dag)
        self.runs = dict[str, StageRun]()
        self._names = itertools.count(1)

    # --- what it does

    def work(self) -> None:
        """Do something at random, until the time is over."""
        actions = {self.begin: 50, self.continue_current: 80, self.skip_current: 1, self.total: 30, self.lane: 1}
        while not self.place.over.exists():
            (action,) = self.chance.choices(list(actions), list(actions.values()))
            try:
                action()
            except TxError as error:
                logging.info("%s", error)
            except Exception as error:  # noqa: BLE001 - as a task that fails: what it left is begun again
                logging.warning("%s: %s", type(error).__name__, error)

    def begin(self) -> None:
        """Begin a run, and commit it if it is its turn."""
        self._run(f"p{os.getpid()}-{next(self._names)}")

    def continue_current(self) -> None:
        """Do what is left of the transaction whose turn it is, perhaps as another attempt."""
        record = self._current()
        if record is None:
            return
        run = self.runs.get(record.run_id)
        if run is not None and run.begun.attempt.attempt == record.attempt:
            self._commit(run)
        # Another process may live, and gets time.
        elif self.chance.random() < (0.05 if of_lane(record.request) else 0.2):
            self._run(record.run_id)

    def skip_current(self) -> None:
        """Skip the transaction whose turn it is."""
        with self.recorder.operation("current") as own:
            current = own.value = self._turn()
        ledger = self.spec.ledger(self.store)
        ledger.run(end.note_skip, current, _SKIPS)
        take_skip(ledger, current, self.by_name, log=logging.getLogger("skip"))

    def total(self) -> None:
        """Read a state."""
        state = self.chance.choice(self.states)
        with self.recorder.operation("total", state=state.number) as own:
            own.value = sum(row["n"] for row in state.read())

    def lane(self) -> None:
        """Let a lane process and commit for some seconds."""
        lane = Lane(self.plan, self.store, FakeTi("coordinate", "c"), logging.getLogger("lane"), patience=1)
        until = time.monotonic() + 5 * self.chance.random()
        with lane.opened():
            while time.monotonic() < until and not lane.rests:
                lane.work(0.0)
                lane.wait(0.1)

    def _turn(self) -> int:
        self.store.sync()
        return Reader(self.store).peek(Counter, self.spec.paths.current).txid

    def _current(self) -> TransactionRecord | None:
        with self.recorder.operation("current") as own:
            current = own.value = self._turn()
        return Reader(self.store).peek_if_any(TransactionRecord, self.spec.paths.transaction(current))

    def _run(self, run_id: str) -> None:
        run = StageRun(self.spec, run_id)
        if not isinstance(run.begin(), Begun):
            return
        self.runs[run_id] = run
        (name,) = self.spec.tasks
        run.end(run.start(name), rows_of(range(*run.begun.metadata), self.chance.randint(1, 9)))
        self._commit(run)

    def _commit(self, run: StageRun) -> None:
        pause(self.chance)
        commit_in_turn(run.commit_of(self.plan.updates), self.store, patience=self.chance.choice([0.0, 0.3]))


def main(place: Place) -> None:
    """Work until the time is over, as a new process."""
    logging.basicConfig(filename=f"{place.folder}/log-{place.number}", level=logging.WARNING, force=True)
    break_rule(place.mutant)
    compat.is_current_try = lambda task_try: True
    # Ids of other processes are others.
    bench._ids = iter(lambda: random.SystemRandom().getrandbits(100), 0)
    client = connect(replace(ClientConfig(place.hosts), session_timeout=SESSION))
    store = ZooKeeperStore(client)

    def show_session(_: Any) -> None:
        if client.client_id is not None:
            number, password = client.client_id
            Path(place.folder, f"session-{place.number}").write_text(json.dumps([number, password.hex()]))

    client.add_listener(show_session)
    show_session(None)
    World(place, store).work()
