"""What the real operators find around them in the explorer: their spec, source, states, task instance and Airflow."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from airflow_tx.base import compat
from airflow_tx.base.compat import RunInfo
from airflow_tx.base.config import Settings
from airflow_tx.ledger import Receipt
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.operations.actions import skip
from airflow_tx.sources.api import Batch, Source, SourceKind
from airflow_tx.state import Sum
from airflow_tx.state.api import QueryableState, StatePart, StateWrite, StoredState
from airflow_tx.state.arrow import RowTally
from airflow_tx.state.memory import MemoryDatabase, MemoryState
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.spec import PhaseSpec, TransactionSpec
from tests.model.machine import Env
from tests.model.shapes import TASK, Shape

LOG = logging.getLogger("tests.model")
LOG.setLevel(logging.CRITICAL)


@lru_cache
def memory_state(index: int, kind: str) -> MemoryState:
    """A real state; what it holds is put into it whenever it is used."""
    return MemoryState(
        f"s{index}", keys=["key"], values={"n": Sum()}, kind=kind, database=MemoryDatabase(), store="model"
    )


class ModelState(StoredState, QueryableState):
    """A state as a process has it: each call is one store transaction, made by the world on real `MemoryState`s.

    :param store: states with an equal one may be written in one transaction.
    """

    shown = "state"
    can_clear = True

    def __init__(self, env: Env, index: int, kind: str, store: str | None = None) -> None:
        real = memory_state(index, kind)
        self.name, self.kind, self.columns = real.name, real.kind, real.columns
        self.store_key = store
        self._env, self._index = env, index

    @contextmanager
    def _transactions(self, writes: Sequence[tuple[StoredState, StateWrite]]) -> Iterator[list[StatePart]]:
        pairs = [(state, write) for state, write in writes if isinstance(state, ModelState)]
        parts = [_ModelPart(state._index, write) for state, write in pairs]
        yield [*parts]
        self._env.ask("write", tuple(part.work() for part in parts))

    def holds(self, txid: int) -> bool:
        found: bool = self._env.ask("holds", self._index, txid)
        return found

    def fence(self) -> Any:
        return self._env.ask("fence", self._index)

    def key_types(self) -> dict[str, str]:
        return {"key": "text"}

    def multi_get(self, keys: Any) -> list[dict[str, Any] | None]:
        """Which keys there are; their values nobody asks for."""
        found = self._env.ask("multi_get", self._index, tuple(map(tuple, keys)))
        return [{} if there else None for there in found]

    def clear(self) -> None:
        self._env.ask("clear", self._index)


class Work(NamedTuple):
    """What one state is given in a store transaction.

    :param number: of the state.
    :param write: without its rows; `portions`: these, each with its chunk.
    """

    number: int
    write: StateWrite
    portions: tuple[tuple[int, tuple[Any, ...]], ...]

    def pair(self, kind: str) -> tuple[StoredState, StateWrite]:
        """Give the real state, and what it is to do."""
        state = memory_state(self.number, kind)
        parts = [(chunk, RowTally(rows, state.added_up)) for chunk, rows in self.portions]
        return state, replace(self.write, parts=lambda: parts)

    def __str__(self) -> str:
        what = [name for name in ("raising", "undoing", "complete") if getattr(self.write, name)]
        return f"s{self.number} {' '.join(what)} {[rows for _, rows in self.portions]}"


class _ModelPart:
    """Notes what is written; the store transaction itself is one call, at its end."""

    def __init__(self, index: int, write: StateWrite) -> None:
        self._index, self._write = index, replace(write, rows=None, parts=None)
        self._portions: list[tuple[int, tuple[Any, ...]]] = []

    def put(self, write: StateWrite) -> int:
        rows = tuple(write.rows or ())
        self._portions.append((write.chunk, rows))
        return len(rows)

    def end(self, receipt: Receipt | None) -> None:
        """Nothing: the world makes the same receipt."""

    def work(self) -> Work:
        return Work(self._index, self._write, tuple(self._portions))


class ModelSource(Source):
    """Rows that are numbered, per partition if it has any.

    :param size: how many rows a batch has at most.
    """

    shown = "source"

    def __init__(self, env: Env, shape: Shape, size: tuple[tuple[str, int], ...]) -> None:
        self.kind = SourceKind(shape.source)
        self.partitioned = shape.partitions  # type: ignore[misc]
        self.per_run = "recovers" in shape.people  # type: ignore[misc]
        self._env, self._shape, self._size = env, shape, size

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.model.product.ModelSource", {}

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        raise NotImplementedError

    def decide(self, attempt: Any, position: Any) -> Batch | None:
        # Rows that it has lost are lost for every process from that moment on.
        lost = self._env.ask("lost") if "loses" in self._shape.people else None
        if {"ahead", "lane"}.intersection(self._shape.people) and attempt.txid > self._shape.runs:
            return None
        found = {name: self._next(name, size, position, lost) for name, size in self._size}
        taken: dict[str, Any] = {name: rows for name, rows in found.items() if rows is not None}
        if not taken:
            return None
        if not self._shape.partitions:
            # A lane takes what a run stands for, which is there or not.
            named = run_id(self._shape, attempt.txid - 1) if "lane" in self._shape.people else ""
            return Batch(taken[""], taken[""][1], key=named, run_id=named)
        return Batch(taken, {name: rows[1] for name, rows in taken.items()})

    def _next(self, name: str, size: int, position: Any, lost: int | None) -> list[int] | None:
        start = (position.get(name) if isinstance(position, dict) else position) or 0
        if lost is not None and start == lost:
            from airflow_tx.base.errors import SourceError

            raise SourceError(source="model", problem=f"row {lost} is lost", remedy="Accept it.")
        limit = self._shape.rows
        end = start + size if limit is None else min(start + size, limit)
        return [start, end] if end > start else None


@dataclass(frozen=True)
class ModelSpec(TransactionSpec):
    """A `Transaction` block whose ledger is that of the world."""

    shown = "spec"
    env: Any = None

    @contextmanager
    def store(self) -> Iterator[Any]:
        yield self.env

    def ledger(self, store: Any) -> Ledger:
        return Ledger(store, self.paths, clock=self.env, ids=self.env)

    def staging(self) -> Any:
        return STAGING


class ModelFiles:
    """The files of the journal. One is named by its content, so all worlds may share them; none is ever old."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def write(self, name: str, content: bytes) -> None:
        self._contents[name] = content

    def read(self, name: str) -> bytes:
        return self._contents[name]

    def uri(self, name: str) -> str:
        return name

    def list(self, name: str) -> dict[str, int]:
        return {}


class NoStaging:
    """Nothing is staged: all output travels in XComs."""

    shown = "staging"

    def __init__(self) -> None:
        self.files = ModelFiles()

    @property
    def kept(self) -> NoStaging:
        return self

    def of_topology(self, incarnation: str) -> NoStaging:
        return self

    def remove(self, topology: str, txid: int) -> None:
        """Nothing."""

    def sweep(self, topology: str, txid: int) -> None:
        """Nothing."""


STAGING = NoStaging()


def spec_of(env: Env, shape: Shape, size: tuple[tuple[str, int], ...] = ()) -> ModelSpec:
    """The block of every run."""
    env.syncs = shape.lags
    phase = PhaseSpec("acquire", "mark", ("w0", "w1"), ("w0", "w1")) if shape.phase else None
    return ModelSpec(
        topology="model",
        dag_id="model",
        source=ModelSource(env, shape, size),
        max_pending=shape.window or shape.runs + 1,
        root="/tx",
        tasks=(TASK,),
        inside=shape.tasks[1:],
        phase=phase,
        env=env,
        journal=timedelta(days=30 if shape.restates else 0),
    )


def states_of(env: Env, shape: Shape) -> dict[str, Any]:
    """The states, as a process has them."""
    stores = ("model", "model", None) if shape.together else (None, None, None)
    made = [ModelState(env, index, shape.source, stores[index]) for index in range(shape.states)]
    return {state.name: state for state in made}


def updates_of(env: Env, shape: Shape, task: str) -> tuple[Update, ...]:
    """What a committer updates: of a phase each one state, otherwise all."""
    states = list(states_of(env, shape).values())
    if task in ("w0", "w1"):
        states = [states[int(task[1])]]
    return tuple(
        Update(SimpleNamespace(operator=SimpleNamespace(task_id=TASK), key=state.name), state, "worker")
        for state in states
    )


class ModelTi:
    """A task instance: what it asks Airflow for is answered by the world."""

    shown = "ti"
    dag_id = "model"
    map_index = -1
    dag_version_id = "v1"

    def __init__(self, env: Env, shape: Shape, run: int, task: str, task_try: str) -> None:
        self._env, self._shape, self._run = env, shape, run
        self.run_id = run_id(shape, run)
        self.task_id = task
        self.id = task_try
        self.task = SimpleNamespace(dag=SimpleNamespace(fileloc="", get_task=self._task))

    def _task(self, task: str) -> Any:
        return SimpleNamespace(updates=updates_of(self._env, self._shape, task))

    def get_task_states(self, *, dag_id: str, run_ids: list[str], task_ids: Any = None) -> Any:
        found = {}
        for each in run_ids:
            states = dict(self._env.ask("tasks", number_of(each)))
            found[each] = {task: states[task] for task in states if task_ids is None or task in task_ids}
        return found

    def get_dagrun_state(self, *, dag_id: str, run_id: str) -> Any:
        return self._env.ask("run", number_of(run_id))

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: Any = None) -> Any:
        text = self._env.ask("xcom", self._run, task_ids, key)
        return None if text is None else json.loads(text)


def run_id(shape: Shape, run: int) -> str:
    """What a run is called: by the coordinator after its transaction, where that one allocates."""
    return f"tx-{run + 1}" if "ahead" in shape.people else f"r{run}"


def number_of(run_id: str) -> int:
    return int(run_id[3:]) - 1 if run_id.startswith("tx-") else int(run_id[1:])


def run_info(shape: Shape, run: int) -> RunInfo:
    return RunInfo(run_id(shape, run), "manual", None, None, None, None, None, {})


class _Current:
    """The process that runs just now: there is one at a time."""

    env: Env


def _start_run(dag_id: str, run_id: str, *, conf: Any = None, reset: bool = False, interval: Any = None) -> bool:
    return bool(_Current.env.ask("start_run", number_of(run_id), reset))


def _clear_run(dag_id: str, run_id: str, *, noting: Callable[[], object] = bool, **options: bool) -> bool:
    noting()
    return _start_run(dag_id, run_id, reset=True)


def _create_run(
    dag_id: str, run_id: str, conf: Any = None, interval: Any = None, *, noting: Callable[[], object] = bool
) -> bool:
    noting()
    return _start_run(dag_id, run_id)


def _restart_dead(dag_id: str, run_id: str) -> bool:
    return _start_run(dag_id, run_id, reset=True)


def _runs_of(dag_id: str, run_ids: Any) -> Mapping[str, str]:
    found = {each: _Current.env.ask("run", number_of(each)) for each in run_ids if each}
    return {each: state for each, state in found.items() if state is not None}


@contextmanager
def installed() -> Iterator[None]:
    """Airflow's answers to what is not asked through a task instance are those of the world."""
    settings = Settings.load()
    with (
        patch.multiple(
            compat,
            start_run=_start_run,
            clear_run=_clear_run,
            create_run=_create_run,
            restart_dead=_restart_dead,
            runs_of=_runs_of,
            is_paused=lambda dag_id: False,
            why_none_starts=lambda dag_id: None,
            is_current_try=lambda task_try: bool(_Current.env.ask("current")),
            sends_metrics=lambda: False,
        ),
        patch.object(time, "sleep", lambda seconds: None),
        # Two that take one skip may outrank each other that often: once is enough to see what comes of it.
        patch.object(skip, "_PAUSES", ()),
        patch.object(Settings, "load", lambda: settings),
    ):
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def running(env: Env) -> None:
    """Let this process be the one that runs."""
    _Current.env = env
