"""Airflow's REST API as tests need it: start runs, wait for them, clear and break them, read their logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import httpx

from airflow_tx.testing.eventually import Hopeless, eventually

Json = dict[str, Any]

RUN_ENDED = ("success", "failed")
TASK_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
_LOG_TAIL = 25
_LOCKED_TRIES = 5
_LOG_NOISE = frozenset(
    ("timestamp", "event", "level", "logger", "error_detail", "filename", "lineno")
    + ("dag_id", "run_id", "task_id", "map_index", "try_number", "ti_id")
)


class AirflowAnswer(AssertionError):
    """An API call that Airflow refused; the message holds its whole answer."""


class AirflowClient:
    """One Airflow, seen through its REST API.

    :param address: such as http://127.0.0.1:8080
    """

    def __init__(self, address: str, user: str, password: str) -> None:
        self.address = address
        self.user = user
        self.password = password
        self._http = httpx.Client(base_url=address, timeout=30, trust_env=False)
        # On SQLite an api-server that gets two requests to write at once blocks itself, and then the scheduler.
        self._one_at_a_time = threading.Lock()

    # --- DAGs

    def wait_dag(self, dag_id: str, timeout: float = 90) -> None:
        """Wait until the scheduler knows the DAG, unpaused."""
        what = f"DAG {dag_id} is known and not paused"

        def told() -> str:
            return f"import errors: {self.import_errors()}"

        eventually(lambda: self._known(dag_id), timeout, what, interval=0.3, explain=told)

    def pause(self, dag_id: str, paused: bool = True) -> None:
        """Pause or unpause a DAG."""
        self.call("PATCH", f"dags/{dag_id}", json={"is_paused": paused})

    def import_errors(self) -> dict[str, str]:
        """Per DAG file that cannot be imported, its traceback."""
        errors = self.call("GET", "importErrors", params={"limit": 100})["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in errors}

    # --- runs

    def trigger(
        self,
        dag_id: str,
        run_id: str,
        conf: Json | None = None,
        logical_date: datetime | None = None,
        *,
        interval: tuple[datetime, datetime] | None = None,
        partition_key: str | None = None,
    ) -> Json:
        """Start a run.

        :param interval: its data interval, if it is not the one that the schedule has for the logical date.
        """
        body: Json = {"dag_run_id": run_id, "conf": conf or {}, "partition_key": partition_key}
        body["logical_date"] = logical_date.isoformat() if logical_date else None
        if interval is not None:
            body["data_interval_start"], body["data_interval_end"] = (moment.isoformat() for moment in interval)
        return self._object("POST", f"dags/{dag_id}/dagRuns", json=body)

    def run(self, dag_id: str, run_id: str) -> Json:
        """A run as it is now."""
        return self._object("GET", _run(dag_id, run_id))

    def runs(self, dag_id: str) -> list[Json]:
        """The runs of a DAG, oldest first."""
        params: Json = {"limit": 1000, "order_by": "id"}
        found: list[Json] = self.call("GET", f"dags/{dag_id}/dagRuns", params=params)["dag_runs"]
        return found

    def wait_run(self, dag_id: str, run_id: str, *, state: str | None = "success", timeout: float = 120) -> Json:
        """Wait until a run has ended.

        :param state: what it should end as; None: whatever.
        :raises AssertionError: it ended otherwise, or not at all; with its tasks and their last log lines.
        """

        def ended() -> Json | None:
            run = self.run(dag_id, run_id)
            return run if run["state"] in RUN_ENDED else None

        run: Json = self.wait_for(ended, timeout, "the run has ended", dag_id, run_id)
        if state is not None and run["state"] != state:
            told = self.describe_run(dag_id, run_id)
            raise AssertionError(f"run {run_id} of {dag_id}: expected {state}, found {run['state']}\n{told}")
        return run

    def wait_runs(self, dag_id: str, states: Mapping[str, str], timeout: float = 120) -> None:
        """Wait until runs are in these states, per run_id; a run may pass through others, also through failed.

        :raises AssertionError: not in time; with the tasks of those that are not, and their last log lines.
        """

        def others() -> list[str]:
            return [run_id for run_id, state in states.items() if self.run(dag_id, run_id)["state"] != state]

        def told() -> str:
            return "\n".join(self.describe_run(dag_id, run_id) for run_id in others())

        what = f"{dag_id}: the runs are {dict(states)}"
        eventually(lambda: not others(), timeout, what, interval=0.3, explain=told)

    def set_run_state(self, dag_id: str, run_id: str, state: str) -> Json:
        """Mark a run success or failed, or queue it."""
        return self._object("PATCH", _run(dag_id, run_id), json={"state": state})

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """Delete a run, once the scheduler knows the end of its tasks: told later, it would take it for the end of
        those of another run with the same id."""
        ended = self.run(dag_id, run_id)["end_date"]
        if ended is not None:
            what = f"the scheduler has gone around since run {run_id} of {dag_id} ended"
            eventually(lambda: self._scheduled_at() > datetime.fromisoformat(ended), 60, what, interval=0.3)
        self.call("DELETE", _run(dag_id, run_id))

    def _scheduled_at(self) -> datetime:
        health = self.call("GET", "monitor/health")
        return datetime.fromisoformat(health["scheduler"]["latest_scheduler_heartbeat"])

    # --- clearing

    def clear_run(self, dag_id: str, run_id: str, *, only_failed: bool = False) -> None:
        """Clear a run: all of its tasks, or the failed ones."""
        self.call("POST", f"{_run(dag_id, run_id)}/clear", json={"dry_run": False, "only_failed": only_failed})

    def clear_runs(self, dag_id: str, run_ids: Sequence[str], *, only_failed: bool = False) -> None:
        """Clear several runs in one call, as those marked in the list of runs."""
        body = {"dry_run": False, "only_failed": only_failed, "dag_runs": [{"dag_run_id": each} for each in run_ids]}
        self.call("POST", f"dags/{dag_id}/clearDagRuns", json=body)

    def clear_range(
        self,
        dag_id: str,
        first: datetime,
        last: datetime,
        task_ids: Sequence[str] | None = None,
        *,
        downstream: bool = False,
        only_failed: bool = False,
    ) -> set[str]:
        """Clear tasks of all runs whose logical dates lie in a range, its ends included.

        :param task_ids: None: all.
        :return: ids of the runs that were cleared.
        """
        body: Json = {
            "dry_run": False,
            "start_date": first.isoformat(),
            "end_date": last.isoformat(),
            "include_downstream": downstream,
            "only_failed": only_failed,
        }
        if task_ids is not None:
            body["task_ids"] = list(task_ids)
        cleared = self.call("POST", f"dags/{dag_id}/clearTaskInstances", json=body)["task_instances"]
        return {task["dag_run_id"] for task in cleared}

    def clear(
        self,
        dag_id: str,
        run_id: str,
        task_ids: Sequence[str | tuple[str, int]] | None = None,
        *,
        downstream: bool = False,
        upstream: bool = False,
        only_failed: bool = False,
    ) -> list[str]:
        """Clear tasks of a run, as the button in Airflow's UI does.

        :param task_ids: None: all; a pair is one instance of a mapped task.
        :return: ids of the tasks that were cleared.
        """
        body: Json = {
            "dry_run": False,
            "dag_run_id": run_id,
            "include_downstream": downstream,
            "include_upstream": upstream,
            "only_failed": only_failed,
        }
        if task_ids is not None:
            body["task_ids"] = [list(task) if isinstance(task, tuple) else task for task in task_ids]
        cleared = self.call("POST", f"dags/{dag_id}/clearTaskInstances", json=body)["task_instances"]
        return [task["task_id"] for task in cleared]

    # --- backfills

    def create_backfill(
        self,
        dag_id: str,
        first: datetime,
        last: datetime,
        *,
        reprocess: str = "none",
        backwards: bool = False,
        max_active_runs: int = 10,
    ) -> None:
        """Backfill a DAG from `first` to `last`, both included.

        :param reprocess: dates that have a run already: none, failed or completed.
        """
        body: Json = {
            "dag_id": dag_id,
            "from_date": first.isoformat(),
            "to_date": last.isoformat(),
            "reprocess_behavior": reprocess,
            "run_backwards": backwards,
            "max_active_runs": max_active_runs,
        }
        self.call("POST", "backfills", json=body)

    def end_backfills(self, dag_id: str) -> None:
        """End the backfills of a DAG whose runs have ended; Airflow does so every 30 s, and refuses others before."""
        for backfill in self.call("GET", "backfills", params={"dag_id": dag_id})["backfills"]:
            if backfill["completed_at"] is None:
                try:
                    self.call("PUT", f"backfills/{backfill['id']}/cancel")
                except AirflowAnswer as answer:
                    if "already completed" not in str(answer):
                        raise

    # --- task instances

    def task_instances(self, dag_id: str, run_id: str) -> list[Json]:
        """Every task instance of a run, the mapped ones included."""
        answer = self.call("GET", f"{_run(dag_id, run_id)}/taskInstances", params={"limit": 1000})
        found: list[Json] = answer["task_instances"]
        return found

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Json:
        """One task instance as it is now."""
        return self._object("GET", _task(dag_id, run_id, task_id, map_index))

    def states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Per task its state; of a mapped one under `task[index]`."""
        return {_label(task): task["state"] for task in self.task_instances(dag_id, run_id)}

    def wait_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Collection[str] | str = TASK_ENDED,
        *,
        map_index: int = -1,
        timeout: float = 90,
    ) -> Json:
        """Wait until a task instance is in one of `states`."""
        wanted = (states,) if isinstance(states, str) else tuple(states)

        def there() -> Json | None:
            task = self.task(dag_id, run_id, task_id, map_index)
            if task["state"] in wanted:
                return task
            if task["state"] in TASK_ENDED:
                raise Hopeless(f"it is {task['state']}")
            return None

        task: Json = self.wait_for(there, timeout, f"{task_id} is {' or '.join(wanted)}", dag_id, run_id)
        return task

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Mark a task instance success, failed or skipped, whatever its process does."""
        self.call("PATCH", _task(dag_id, run_id, task_id, map_index), json={"new_state": state})

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """A value that a task pushed."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.call("GET", path, params={"map_index": map_index, "deserialize": "true"})["value"]

    # --- what happened

    def task_log(
        self, dag_id: str, run_id: str, task_id: str, map_index: int = -1, try_number: int | None = None
    ) -> str:
        """The log of a try as plain lines; None: the newest try."""
        if try_number is None:
            try_number = self.task(dag_id, run_id, task_id, map_index)["try_number"]
        path = f"{_run(dag_id, run_id)}/taskInstances/{task_id}/logs/{try_number}"
        answer = self.call("GET", path, params={"map_index": map_index, "full_content": "true"})
        return "\n".join(_line(entry) for entry in answer["content"])

    def whole_log(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
        """The logs of all tries of a task, oldest first."""
        last = self.task(dag_id, run_id, task_id, map_index)["try_number"]
        return "\n".join(
            self._log_or_reason(dag_id, run_id, task_id, map_index, number) for number in range(1, last + 1)
        )

    def events(self, dag_id: str, run_id: str) -> list[Json]:
        """Airflow's audit log of a run, oldest first."""
        params: Json = {"dag_id": dag_id, "run_id": run_id, "limit": 1000, "order_by": "when"}
        found: list[Json] = self.call("GET", "eventLogs", params=params)["event_logs"]
        return found

    def asset_events(self, dag_id: str) -> list[Json]:
        """The asset events that tasks of a DAG emitted, oldest first."""
        params: Json = {"source_dag_id": dag_id, "limit": 1000, "order_by": "timestamp"}
        found: list[Json] = self.call("GET", "assets/events", params=params)["asset_events"]
        return found

    def wait_for(self, check: Callable[[], Any], timeout: float, what: str, dag_id: str, run_id: str) -> Any:
        """`eventually`, which explains itself with the tasks and logs of a run."""

        def told() -> str:
            return self.describe_run(dag_id, run_id)

        return eventually(check, timeout, f"{dag_id} {run_id}: {what}", interval=0.3, explain=told)

    def describe_run(self, dag_id: str, run_id: str) -> str:
        """States of the tasks of a run, and the last log lines of those that did not succeed."""
        parts = [f"run {run_id} of {dag_id} is {self.run(dag_id, run_id)['state']}"]
        for task in self.task_instances(dag_id, run_id):
            parts.append(f"--- {_label(task)}: {task['state']} (try {task['try_number']})")
            if task["state"] not in ("success", None) and task["try_number"]:
                log = self._log_or_reason(dag_id, run_id, task["task_id"], task["map_index"], task["try_number"])
                parts += [f"    {line}" for line in log.splitlines()[-_LOG_TAIL:]]
        return "\n".join(parts)

    # --- the wire

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Call the API below /api/v2 and return the decoded answer; logs in when needed. Threads wait for each other.

        :raises AirflowAnswer: the status is not 2xx.
        """
        with self._one_at_a_time:
            answer = self._http.request(method, f"/api/v2/{path}", **arguments)
            if answer.status_code == 401:
                self._log_in()
                answer = self._http.request(method, f"/api/v2/{path}", **arguments)
            for _ in range(_LOCKED_TRIES):
                if answer.status_code != 500 or "Database error" not in answer.text:
                    break
                time.sleep(0.5)  # SQLite was locked, and nothing has happened
                answer = self._http.request(method, f"/api/v2/{path}", **arguments)
        if not answer.is_success:
            raise AirflowAnswer(f"{method} {path}: {answer.status_code} {answer.text[:2000]}")
        return answer.json() if answer.content else None

    def _object(self, method: str, path: str, **arguments: Any) -> Json:
        answer: Json = self.call(method, path, **arguments)
        return answer

    def _log_in(self) -> None:
        answer = self._http.post("/auth/token", json={"username": self.user, "password": self.password})
        answer.raise_for_status()
        self._http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def _known(self, dag_id: str) -> bool:
        dag = self.call("GET", f"dags/{dag_id}")
        return not dag["is_paused"] and not dag["is_stale"]

    def _log_or_reason(self, dag_id: str, run_id: str, task_id: str, map_index: int, try_number: int) -> str:
        try:
            return self.task_log(dag_id, run_id, task_id, map_index, try_number)
        except Exception as error:  # noqa: BLE001 - a description must not hide the failure it describes
            return f"(no log: {error})"


def _run(dag_id: str, run_id: str) -> str:
    return f"dags/{dag_id}/dagRuns/{run_id}"


def _task(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    path = f"{_run(dag_id, run_id)}/taskInstances/{task_id}"
    return path if map_index < 0 else f"{path}/{map_index}"


def _label(task: Json) -> str:
    return task["task_id"] if task["map_index"] < 0 else f"{task['task_id']}[{task['map_index']}]"


def _line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    details = [f"{key}={value}" for key, value in entry.items() if key not in _LOG_NOISE]
    errors = [f"{detail['exc_type']}: {detail['exc_value']}" for detail in entry.get("error_detail") or ()]
    return " ".join([str(entry.get("level", "")), str(entry["event"]), *details, *errors]).strip()
