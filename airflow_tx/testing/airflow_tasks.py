"""Airflow's REST API as tests need it: the wire, and the tasks of a run with their logs and XComs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import httpx

from airflow_tx.testing.eventually import Hopeless, eventually

JsonObject = dict[str, Any]

TASK_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
# Seconds; a busy machine takes its time.
AIRFLOW_PATIENCE = 300.0
_LOG_TAIL = 25
_LOCKED_TRIES = 5
_LOG_NOISE = frozenset(
    ("timestamp", "event", "level", "logger", "error_detail", "filename", "lineno")
    + ("dag_id", "run_id", "task_id", "map_index", "try_number", "ti_id")
)


class AirflowAnswer(AssertionError):
    """An API call that Airflow refused; the message holds its whole answer."""


class AirflowTasks:
    """The tasks of one Airflow.

    :param address: such as http://127.0.0.1:8080
    """

    def __init__(self, address: str, user: str, password: str) -> None:
        self.address = address
        self.user = user
        self.password = password
        self._http = httpx.Client(base_url=address, timeout=30, trust_env=False)
        # On SQLite an api-server that gets two requests to write at once blocks itself, and then the scheduler.
        self._one_at_a_time = threading.Lock()

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

    def _object(self, method: str, path: str, **arguments: Any) -> JsonObject:
        answer: JsonObject = self.call(method, path, **arguments)
        return answer

    def _log_in(self) -> None:
        answer = self._http.post("/auth/token", json={"username": self.user, "password": self.password})
        answer.raise_for_status()
        self._http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    # --- runs and their tasks

    def run(self, dag_id: str, run_id: str) -> JsonObject:
        return self._object("GET", run_path(dag_id, run_id))

    def task_instances(self, dag_id: str, run_id: str) -> list[JsonObject]:
        answer = self.call("GET", f"{run_path(dag_id, run_id)}/taskInstances", params={"limit": 1000})
        found: list[JsonObject] = answer["task_instances"]
        return found

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> JsonObject:
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
        timeout: float = AIRFLOW_PATIENCE,
    ) -> JsonObject:
        """Wait until a task instance is in one of `states`."""
        wanted = (states,) if isinstance(states, str) else tuple(states)

        def there() -> JsonObject | None:
            task = self.task(dag_id, run_id, task_id, map_index)
            if task["state"] in wanted:
                return task
            if task["state"] in TASK_ENDED:
                raise Hopeless(f"it is {task['state']}")
            return None

        task: JsonObject = self.wait_for(there, timeout, f"{task_id} is {' or '.join(wanted)}", dag_id, run_id)
        return task

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        self.call("PATCH", _task(dag_id, run_id, task_id, map_index), json={"new_state": state})

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        path = f"{run_path(dag_id, run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.call("GET", path, params={"map_index": map_index, "deserialize": "true"})["value"]

    # --- what happened

    def task_log(
        self, dag_id: str, run_id: str, task_id: str, map_index: int = -1, try_number: int | None = None
    ) -> str:
        """The log of a try as plain lines; None: the newest try."""
        if try_number is None:
            try_number = self.task(dag_id, run_id, task_id, map_index)["try_number"]
        path = f"{run_path(dag_id, run_id)}/taskInstances/{task_id}/logs/{try_number}"
        answer = self.call("GET", path, params={"map_index": map_index, "full_content": "true"})
        return "\n".join(_line(entry) for entry in answer["content"])

    def whole_log(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
        """The logs of all tries of a task, oldest first."""
        last = self.task(dag_id, run_id, task_id, map_index)["try_number"]
        return "\n".join(
            self._log_or_reason(dag_id, run_id, task_id, map_index, number) for number in range(1, last + 1)
        )

    def events(self, dag_id: str, run_id: str) -> list[JsonObject]:
        """Airflow's audit log of a run, oldest first."""
        params: JsonObject = {"dag_id": dag_id, "run_id": run_id, "limit": 1000, "order_by": "when"}
        found: list[JsonObject] = self.call("GET", "eventLogs", params=params)["event_logs"]
        return found

    def asset_events(self, dag_id: str) -> list[JsonObject]:
        """The asset events that tasks of a DAG emitted, oldest first."""
        params: JsonObject = {"source_dag_id": dag_id, "limit": 1000, "order_by": "timestamp"}
        found: list[JsonObject] = self.call("GET", "assets/events", params=params)["asset_events"]
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

    def _log_or_reason(self, dag_id: str, run_id: str, task_id: str, map_index: int, try_number: int) -> str:
        try:
            return self.task_log(dag_id, run_id, task_id, map_index, try_number)
        except Exception as error:  # noqa: BLE001 - a description must not hide the failure it describes
            return f"(no log: {error})"


def run_path(dag_id: str, run_id: str) -> str:
    return f"dags/{dag_id}/dagRuns/{run_id}"


def _task(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    path = f"{run_path(dag_id, run_id)}/taskInstances/{task_id}"
    return path if map_index < 0 else f"{path}/{map_index}"


def _label(task: JsonObject) -> str:
    return task["task_id"] if task["map_index"] < 0 else f"{task['task_id']}[{task['map_index']}]"


def _line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    details = [f"{key}={value}" for key, value in entry.items() if key not in _LOG_NOISE]
    errors = [f"{detail['exc_type']}: {detail['exc_value']}" for detail in entry.get("error_detail") or ()]
    return " ".join([str(entry.get("level", "")), str(entry["event"]), *details, *errors]).strip()
