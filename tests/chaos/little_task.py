"""A task instance that is answered by the little scheduler, and so is what else a task asks Airflow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any
from uuid import UUID

from airflow_tx.base import compat
from tests.chaos.dates import DAY, FIRST
from tests.chaos.scheduler import LIVE


class TasksSkipped(Exception):
    """`begin` ends well, and skips the tasks of its run."""


@dataclass
class LittleTi:
    """What a task instance tells and asks.

    :param connection: to the little scheduler; threads wait for each other.
    """

    connection: Connection[Any, Any]
    dag_id: str
    run_id: str
    task_id: str
    id: str
    try_number: int
    max_tries: int
    conf: dict[str, Any]
    interval: tuple[str, str] | None = None
    map_index: int = -1
    dag_version_id: str = "v1"
    task: Any = None
    stats_tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self.id = UUID(self.id)  # type: ignore[assignment]

    @property
    def is_last(self) -> bool:
        return self.try_number > self.max_tries

    def asks(self, question: str, *arguments: Any) -> Any:
        """Ask the little scheduler."""
        with self._one_at_a_time:
            self.connection.send((question, arguments))
            return self.connection.recv()

    def xcom_push(self, key: str, value: Any) -> None:
        self.asks("push", str(self.id), key, value)

    def xcom_pull(self, *, task_ids: str, key: str = "return_value", map_indexes: Any = None) -> Any:
        return self.asks("pull", self.dag_id, self.run_id, task_ids, key)

    def get_task_states(self, *, dag_id: str, run_ids: list[str], task_ids: Any = None) -> dict[str, dict[str, Any]]:
        found = {each: self.asks("task_states", dag_id, each) for each in run_ids}
        return {
            run_id: {task: state for task, state in states.items() if task_ids is None or task in task_ids}
            for run_id, states in found.items()
        }

    def get_dagrun_state(self, *, dag_id: str, run_id: str) -> str | None:
        found: str | None = self.asks("run_state", dag_id, run_id)
        return found


def answered(ti: LittleTi) -> dict[str, Any]:
    """The functions of `compat` that ask Airflow for something else than through a task instance."""

    def start_run(
        dag_id: str,
        run_id: str,
        *,
        conf: Any = None,
        reset: bool = False,
        dated: bool = False,
        interval: Any = None,
    ) -> bool:
        dates = None if interval is None else tuple(each.isoformat() for each in interval)
        return bool(ti.asks("start_run", dag_id, run_id, dict(conf or {}), reset, dates))

    def clear_run(dag_id: str, run_id: str, *, noting: Callable[[], object] = bool, **options: bool) -> bool:
        if ti.asks("run_state", dag_id, run_id) is None:
            return False
        noting()
        return start_run(dag_id, run_id, reset=True)

    def create_run(
        dag_id: str,
        run_id: str,
        conf: Mapping[str, Any] | None = None,
        interval: Any = None,
        *,
        noting: Callable[[], object] = bool,
    ) -> bool:
        noting()
        return start_run(dag_id, run_id, conf=conf, interval=interval)

    def restart_dead(dag_id: str, run_id: str) -> bool:
        return clear_run(dag_id, run_id, past_limit=True)

    def runs_of(dag_id: str, run_ids: Collection[str]) -> dict[str, str]:
        found = {each: ti.asks("run_state", dag_id, each) for each in run_ids}
        return {each: state for each, state in found.items() if state is not None}

    def skip_tasks(operator: Any, own: Any, tasks: Any) -> None:
        raise TasksSkipped

    def is_skipped_by(own: Any, task_id: str) -> bool:
        return bool(ti.asks("task_states", own.dag_id, own.run_id).get(own.task_id) == "skipped")

    return {
        **_dated(ti),
        "start_run": start_run,
        "clear_run": clear_run,
        "create_run": create_run,
        "restart_dead": restart_dead,
        "runs_of": runs_of,
        "run_state": lambda own, dag_id, run_id: ti.asks("run_state", dag_id, run_id),
        "is_paused": lambda dag_id: False,
        "why_none_starts": lambda dag_id: None,
        "is_current_try": lambda task_try: bool(ti.asks("is_current", task_try.partition(".")[0])),
        "sends_metrics": lambda: False,
        "note_running": lambda own, context: None,
        "skip_tasks": skip_tasks,
        "is_skipped_by": is_skipped_by,
    }


def _dated(ti: LittleTi) -> dict[str, Any]:
    """Those about data intervals: the days of `dates`, one after the other."""

    def runs(dag_id: str) -> list[tuple[datetime, str, str]]:
        found = ti.asks("dated", dag_id)
        return sorted((datetime.fromisoformat(start), run_id, state) for start, run_id, state in found)

    def scheduled_intervals(dag_id: str, first: datetime, last: datetime) -> list[compat.ScheduledInterval]:
        days = [FIRST + number * DAY for number in range(max((last - FIRST) // DAY + 1, 0))]
        return [compat.ScheduledInterval(day, day, day + DAY, day + DAY) for day in days if first <= day <= last]

    def dated_runs(dag_id: str, intervals: Any) -> dict[datetime, compat.DatedRun]:
        return {start: compat.DatedRun(run_id, state) for start, run_id, state in runs(dag_id)}

    def create_backfill_run(dag_id: str, interval: compat.ScheduledInterval, user: str) -> bool:
        dates = (interval.start.isoformat(), interval.end.isoformat())
        return bool(ti.asks("start_dated", dag_id, f"backfill__{dates[0]}", dates))

    def earlier_live_run(dag_id: str, date: datetime) -> datetime | None:
        live = [start for start, _, state in runs(dag_id) if state in LIVE and start < date]
        return max(live, default=None)

    def runs_on(dag_id: str, date: datetime, states: Collection[str]) -> int:
        return sum(start == date and state in states for start, _, state in runs(dag_id))

    return {
        "scheduled_intervals": scheduled_intervals,
        "dated_runs": dated_runs,
        "create_backfill_run": create_backfill_run,
        "earlier_live_run": earlier_live_run,
        "runs_on": runs_on,
        "previous_end": lambda dag, start, end: start,
    }
