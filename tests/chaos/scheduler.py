"""A little scheduler: runs, tasks and their tries as Airflow has them, each try a process, without Airflow's weight.

What it may do to a run is what Airflow may do: execute the next task, retry one whose process has died or is silent,
execute all of them again while a process of before lives on, and end nobody at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Listener
from typing import Any

from airflow_tx.testing.processes import signal_process

TASKS = ("begin", "count", "commit")
LIVE = ("queued", "running")
RETRIES = 3
# Seconds: between two tries; until one that deferred itself goes on; a process of an earlier try, until it is ended.
_DELAY = 0.3
_DEFERRAL = 0.6
_SUFFERED = 6.0
_WAITING = ("up_for_retry", "deferred", "up_for_reschedule")


@dataclass
class Try:
    """A task of a run, at its current try."""

    state: str | None = None
    number: int = 0
    most: int = RETRIES
    id: str = ""
    due: float = 0.0
    process: Any = None
    xcoms: dict[str, Any] = field(default_factory=dict)


@dataclass
class LittleRun:
    """A run of a topology; one of a coordinator or a person has a single task."""

    dag_id: str
    run_id: str
    program: str
    conf: dict[str, Any]
    tasks: dict[str, Try]
    state: str = "queued"
    interval: tuple[str, str] | None = None

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def waits(self) -> bool:
        return any(found.state == "deferred" for found in self.tasks.values())


class LittleScheduler:
    """Executes runs, and answers their processes.

    :param spawn: starts a process of a program: a task of a run.
    :param slots: how many processes of tasks there are at once.
    """

    def __init__(
        self, address: str, spawn: Callable[[str, str, dict[str, Any]], Any], *, slots: int = 6, active: int = 4
    ) -> None:
        self.runs: dict[tuple[str, str], LittleRun] = {}
        self.lock = threading.RLock()
        self._spawn, self._slots, self._active = spawn, slots, active
        self._by_id: dict[str, tuple[LittleRun, Try]] = {}
        self._earlier: list[tuple[float, Any]] = []
        self._listener = Listener(address, "AF_UNIX", backlog=64)
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    # --- what a person does to runs

    def start(self, dag_id: str, run_id: str, program: str = "execute", **conf: Any) -> LittleRun:
        """Trigger a run."""
        with self.lock:
            tasks = TASKS if program == "execute" else (program,)
            run = LittleRun(dag_id, run_id, program, conf, {task: Try() for task in tasks})
            self.runs[dag_id, run_id] = run
            return run

    def clear(self, run: LittleRun, first: str = "begin") -> None:
        """Execute a task and those after it again; what executes one now is not the current try any more."""
        with self.lock:
            for task in TASKS[TASKS.index(first) :]:
                found = run.tasks[task]
                self._forget(found)
                run.tasks[task] = Try(number=found.number, most=found.number + RETRIES)
            run.state = "queued"

    def silent(self, pid: int) -> bool:
        """Take a process for dead, as Airflow does that hears nothing of it; False: it executes nothing current."""
        with self.lock:
            for run, found in self._current():
                if found.process is not None and found.process.pid == pid:
                    self._forget(found)
                    self._ended(run, found, "failed" if found.number > found.most else "up_for_retry")
                    return True
        return False

    def processes(self) -> list[tuple[LittleRun, str, int]]:
        """What is executed now: the run, the task and the pid."""
        with self.lock:
            return [
                (run, task, found.process.pid)
                for run in self.runs.values()
                for task, found in run.tasks.items()
                if found.process is not None and found.process.is_alive()
            ]

    def of(self, dag_id: str, program: str = "execute") -> list[LittleRun]:
        with self.lock:
            return [run for run in self.runs.values() if run.dag_id == dag_id and run.program == program]

    # --- the loop

    def step(self) -> None:
        """Look once, and start what can be started."""
        with self.lock:
            now = time.monotonic()
            self._end_earlier(now)
            for run, found in self._current():
                if found.process is not None and not found.process.is_alive():
                    found.process = None
                    if found.state == "running":  # it was killed
                        self._ended(run, found, "failed" if found.number > found.most else "up_for_retry")
            for run in [run for run in self.runs.values() if run.is_live]:
                self._advance(run, now)

    def _current(self) -> list[tuple[LittleRun, Try]]:
        return [(run, found) for run in self.runs.values() if run.is_live for found in run.tasks.values()]

    def _advance(self, run: LittleRun, now: float) -> None:
        if run.state == "queued":
            # One that waits has given its run slot up: the triggers of the product see to that.
            if sum(each.state == "running" and not each.waits for each in self.of(run.dag_id)) >= self._active:
                return
            run.state = "running"
        for task, found in run.tasks.items():
            if found.state in ("success", "skipped"):
                continue
            if found.state == "failed":
                run.state = "failed"
            elif found.state is None or (found.state in _WAITING and found.due <= now):
                self._execute(run, task, found)
            return
        run.state = "success"

    def _execute(self, run: LittleRun, task: str, found: Try) -> None:
        if run.program == "execute" and sum(each.program == "execute" for each, *_ in self.processes()) >= self._slots:
            return
        if found.state in (None, "up_for_retry"):
            self._by_id.pop(found.id, None)
            found.number += 1
            found.id = str(uuid.uuid4())
            found.xcoms = {}
        self._by_id[found.id] = (run, found)
        found.state = "running"
        told: dict[str, Any] = {
            "dag_id": run.dag_id,
            "run_id": run.run_id,
            "task_id": task,
            "id": found.id,
            "conf": run.conf,
        }
        told |= {"try_number": found.number, "max_tries": found.most, "interval": run.interval}
        found.process = self._spawn(run.program, run.dag_id, told)

    def _forget(self, found: Try) -> None:
        self._by_id.pop(found.id, None)
        if found.process is not None and found.process.is_alive():
            self._earlier.append((time.monotonic() + _SUFFERED, found.process))
        found.process = None

    def _end_earlier(self, now: float) -> None:
        for until, process in self._earlier:
            if until <= now and process.is_alive():
                signal_process(process.pid, 9)
        self._earlier = [(until, process) for until, process in self._earlier if process.is_alive()]

    def _ended(self, run: LittleRun, found: Try, state: str) -> None:
        found.due = time.monotonic() + (_DELAY if state == "up_for_retry" else _DEFERRAL)
        found.state = state
        if state == "skips all":
            found.state = "success"
            for other in run.tasks.values():
                if other is not found:
                    self._forget(other)
                    other.state = "skipped"
        elif state == "skipped":  # so are those after it
            after = list(run.tasks.values())
            for other in after[after.index(found) + 1 :]:
                other.state = "skipped"

    # --- what processes ask

    def _listen(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Any) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                question, arguments = connection.recv()
                with self.lock:
                    answer = getattr(self, f"_answer_{question}")(*arguments)
                connection.send(answer)

    def _answer_push(self, id_: str, key: str, value: Any) -> None:
        if id_ in self._by_id:
            self._by_id[id_][1].xcoms[key] = value

    def _answer_pull(self, dag_id: str, run_id: str, task: str, key: str) -> Any:
        run = self.runs.get((dag_id, run_id))
        return None if run is None else run.tasks[task].xcoms.get(key)

    def _answer_task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        run = self.runs.get((dag_id, run_id))
        return {} if run is None else {task: found.state for task, found in run.tasks.items()}

    def _answer_run_state(self, dag_id: str, run_id: str) -> str | None:
        run = self.runs.get((dag_id, run_id))
        return None if run is None else run.state

    def _answer_is_current(self, id_: str) -> bool:
        return id_ in self._by_id

    def _answer_start_run(
        self, dag_id: str, run_id: str, conf: dict[str, Any], reset: bool, interval: tuple[str, str] | None
    ) -> bool:
        dated = None if interval is None else self._dated(dag_id, interval)
        if dated is not None and dated.run_id != run_id:  # no two of a date
            if dated.is_live:
                return False
            run_id, reset = dated.run_id, True
        run = self.runs.get((dag_id, run_id))
        if run is None:
            self.start(dag_id, run_id, **conf).interval = interval
        elif reset:
            self.clear(run)
        return run is None or reset

    def _answer_start_dated(self, dag_id: str, run_id: str, interval: tuple[str, str]) -> bool:
        if self._dated(dag_id, interval) is not None:
            return False
        self.start(dag_id, run_id).interval = interval
        return True

    def _answer_dated(self, dag_id: str) -> list[tuple[str, str, str]]:
        """The start of the interval, the name and the state of each run that has one."""
        return [(run.interval[0], run.run_id, run.state) for run in self.of(dag_id) if run.interval is not None]

    def _dated(self, dag_id: str, interval: tuple[str, str]) -> LittleRun | None:
        return next(
            (run for run in self.of(dag_id) if run.interval is not None and run.interval[0] == interval[0]), None
        )

    def _answer_ended(self, id_: str, state: str) -> None:
        if id_ in self._by_id:
            run, found = self._by_id[id_]
            self._ended(run, found, state)
