"""A client of Airflow's REST API for tests: DAGs, runs, tasks, logs, XComs, clears and backfills."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import httpx

from airflow_tx.testing.eventually import Hopeless, eventually

JsonObject = dict[str, Any]

RUN_ENDED = ("success", "failed")
TASK_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
# The default wait in seconds, which is enough for a busy machine.
AIRFLOW_PATIENCE = 300.0
_LOG_TAIL = 25
_TRIES = 7
_LOG_NOISE = frozenset(
    ("timestamp", "event", "level", "logger", "error_detail", "filename", "lineno")
    + ("dag_id", "run_id", "task_id", "map_index", "try_number", "ti_id")
)


class AirflowAnswer(AssertionError):
    """Airflow has refused an API request. The message contains the response."""


class AirflowClient:
    """A client of one Airflow's REST API.

    :param address: base URL, such as http://127.0.0.1:8080
    :param user: the name of the user.
    :param password: the password of the user.
    """

    def __init__(self, address: str, user: str, password: str) -> None:
        self.address = address
        self.user = user
        self.password = password
        # A busy machine may respond late.
        patience = httpx.Timeout(30, read=120)
        self._http = httpx.Client(base_url=address, timeout=patience, trust_env=False)
        # On SQLite, an api-server with two concurrent write requests blocks itself, and then the
        # scheduler.
        self._one_at_a_time = threading.Lock()

    # --- requests

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a request to the API, and return the decoded response. Log in if necessary.

        :param method: the HTTP method.
        :param path: the path below /api/v2.
        :param arguments: the arguments of `httpx.Client.request`.
        :raises AirflowAnswer: the status is not 2xx.
        """
        with self._one_at_a_time:
            for _ in range(_TRIES):
                answer = self._http.request(method, f"/api/v2/{path}", **arguments)
                if answer.status_code == 401:
                    self._log_in()
                elif answer.status_code == 500 and "Database error" in answer.text:
                    time.sleep(0.5)  # SQLite was locked, and nothing was changed.
                else:
                    break
        if not answer.is_success:
            raise AirflowAnswer(f"{method} {path}: {answer.status_code} {answer.text[:2000]}")
        return answer.json() if answer.content else None

    def _object(self, method: str, path: str, **arguments: Any) -> JsonObject:
        answer: JsonObject = self.call(method, path, **arguments)
        return answer

    def listed(self, path: str, key: str, params: JsonObject | None = None) -> list[JsonObject]:
        """Return a list from the API, with a limit of 1,000 entries, since Airflow's default is 50."""
        found: list[JsonObject] = self.call("GET", path, params={"limit": 1000, **(params or {})})[
            key
        ]
        return found

    def _log_in(self) -> None:
        answer = self._http.post(
            "/auth/token", json={"username": self.user, "password": self.password}
        )
        answer.raise_for_status()
        self._http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    # --- DAGs

    def wait_dag(self, dag_id: str, timeout: float = AIRFLOW_PATIENCE) -> None:
        """Wait until Airflow has the DAG, unpaused."""
        what = f"DAG {dag_id} is known and not paused"

        def errors() -> str:
            return f"import errors: {self.import_errors()}"

        eventually(lambda: self._known(dag_id), timeout, what, interval=0.3, explain=errors)

    def pause(self, dag_id: str, paused: bool = True) -> None:
        self.call("PATCH", f"dags/{dag_id}", json={"is_paused": paused})

    def import_errors(self) -> dict[str, str]:
        """Return the traceback of each DAG file that cannot be imported, by file."""
        return {
            error["filename"]: error["stack_trace"]
            for error in self.listed("importErrors", "import_errors")
        }

    # --- runs

    def trigger(
        self,
        dag_id: str,
        run_id: str,
        conf: JsonObject | None = None,
        logical_date: datetime | None = None,
        *,
        interval: tuple[datetime, datetime] | None = None,
        partition_key: str | None = None,
    ) -> JsonObject:
        """Start a run.

        :param interval: the data interval of the run, if it differs from the interval that the schedule returns.
        """
        body: JsonObject = {
            "dag_run_id": run_id,
            "conf": conf or {},
            "partition_key": partition_key,
        }
        body["logical_date"] = logical_date.isoformat() if logical_date else None
        if interval is not None:
            body["data_interval_start"], body["data_interval_end"] = (
                moment.isoformat() for moment in interval
            )
        return self._object("POST", f"dags/{dag_id}/dagRuns", json=body)

    def runs(self, dag_id: str) -> list[JsonObject]:
        """Return the runs of a DAG, the oldest first."""
        return self.listed(f"dags/{dag_id}/dagRuns", "dag_runs", {"order_by": "id"})

    def wait_run(
        self,
        dag_id: str,
        run_id: str,
        *,
        state: str | None = "success",
        timeout: float = AIRFLOW_PATIENCE,
    ) -> JsonObject:
        """Wait until a run has ended.

        :param state: the expected state, or None for any state.
        :param timeout: the longest time to wait, in seconds.
        :raises AssertionError: the run has ended in another state, or has not ended in time. The error contains its
            tasks and its last log lines.
        """

        def ended() -> JsonObject | None:
            run = self.run(dag_id, run_id)
            return run if run["state"] in RUN_ENDED else None

        run: JsonObject = self.wait_for(ended, timeout, "the run has ended", dag_id, run_id)
        if state is not None and run["state"] != state:
            explained = self.describe_run(dag_id, run_id)
            raise AssertionError(
                f"run {run_id} of {dag_id}: expected {state}, found {run['state']}\n{explained}"
            )
        return run

    def wait_runs(
        self, dag_id: str, states: Mapping[str, str], timeout: float = AIRFLOW_PATIENCE
    ) -> None:
        """Wait until runs are in the expected states. Until then, a run may be in any other state, even failed.

        :param states: the expected states, by run_id.
        :param timeout: the longest time to wait, in seconds.
        :raises AssertionError: the time limit is exceeded. The error contains the tasks of all runs in another state,
            and their last log lines.
        """

        def others() -> list[str]:
            return [
                run_id
                for run_id, state in states.items()
                if self.run(dag_id, run_id)["state"] != state
            ]

        def explained() -> str:
            return "\n".join(self.describe_run(dag_id, run_id) for run_id in others())

        what = f"{dag_id}: the runs are {dict(states)}"
        eventually(lambda: not others(), timeout, what, interval=0.3, explain=explained)

    # --- clearing

    def clear_run(self, dag_id: str, run_id: str, *, only_failed: bool = False) -> None:
        """Clear all tasks of a run, or only the failed ones."""
        self.call(
            "POST",
            f"{run_path(dag_id, run_id)}/clear",
            json={"dry_run": False, "only_failed": only_failed},
        )

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
        """Clear tasks of a run, like the Clear button in Airflow's UI.

        :param task_ids: the tasks to clear, or None for all tasks. A pair selects one instance of a mapped task.
        :param downstream: whether downstream tasks are also cleared.
        :param upstream: whether upstream tasks are also cleared.
        :param only_failed: whether only failed tasks are cleared.
        :return: the ids of the cleared tasks.
        """
        body: JsonObject = {
            "dry_run": False,
            "dag_run_id": run_id,
            "include_downstream": downstream,
            "include_upstream": upstream,
            "only_failed": only_failed,
        }
        if task_ids is not None:
            body["task_ids"] = [
                list(task) if isinstance(task, tuple) else task for task in task_ids
            ]
        cleared = self.call("POST", f"dags/{dag_id}/clearTaskInstances", json=body)[
            "task_instances"
        ]
        return [task["task_id"] for task in cleared]

    def _known(self, dag_id: str) -> bool:
        dag = self.call("GET", f"dags/{dag_id}")
        return not dag["is_paused"] and not dag["is_stale"]

    # --- tasks

    def run(self, dag_id: str, run_id: str) -> JsonObject:
        return self._object("GET", run_path(dag_id, run_id))

    def task_instances(self, dag_id: str, run_id: str) -> list[JsonObject]:
        return self.listed(f"{run_path(dag_id, run_id)}/taskInstances", "task_instances")

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> JsonObject:
        return self._object("GET", task_path(dag_id, run_id, task_id, map_index))

    def states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the states of all tasks, by task_id. The name of a mapped task instance is `task_id[index]`."""
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

        task: JsonObject = self.wait_for(
            there, timeout, f"{task_id} is {' or '.join(wanted)}", dag_id, run_id
        )
        return task

    def xcom(
        self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1
    ) -> Any:
        path = f"{run_path(dag_id, run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.call("GET", path, params={"map_index": map_index, "deserialize": "true"})[
            "value"
        ]

    # --- logs

    def task_log(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        map_index: int = -1,
        try_number: int | None = None,
    ) -> str:
        """Return the log of a try as plain lines.

        :param try_number: the number of the try, or None for the newest try.
        """
        if try_number is None:
            try_number = self.task(dag_id, run_id, task_id, map_index)["try_number"]
        path = f"{run_path(dag_id, run_id)}/taskInstances/{task_id}/logs/{try_number}"
        answer = self.call("GET", path, params={"map_index": map_index, "full_content": "true"})
        return "\n".join(_line(entry) for entry in answer["content"])

    def whole_log(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
        """Return the logs of all tries of a task, oldest first."""
        last = self.task(dag_id, run_id, task_id, map_index)["try_number"]
        return "\n".join(
            self._log_or_reason(dag_id, run_id, task_id, map_index, number)
            for number in range(1, last + 1)
        )

    def wait_for(
        self, check: Callable[[], Any], timeout: float, what: str, dag_id: str, run_id: str
    ) -> Any:
        """Call `eventually`. If it fails, the error contains the tasks and logs of a run."""

        what = f"{dag_id} {run_id}: {what}"
        return eventually(
            check, timeout, what, interval=0.3, explain=lambda: self.describe_run(dag_id, run_id)
        )

    def describe_run(self, dag_id: str, run_id: str) -> str:
        """Return the states of all tasks of a run, and the last log lines of the tasks that did not succeed."""
        parts = [f"run {run_id} of {dag_id} is {self.run(dag_id, run_id)['state']}"]
        for task in self.task_instances(dag_id, run_id):
            parts.append(f"--- {_label(task)}: {task['state']} (try {task['try_number']})")
            if task["state"] not in ("success", None) and task["try_number"]:
                log = self._log_or_reason(
                    dag_id, run_id, task["task_id"], task["map_index"], task["try_number"]
                )
                parts += [f"    {line}" for line in log.splitlines()[-_LOG_TAIL:]]
        return "\n".join(parts)

    def _log_or_reason(
        self, dag_id: str, run_id: str, task_id: str, map_index: int, try_number: int
    ) -> str:
        try:
            return self.task_log(dag_id, run_id, task_id, map_index, try_number)
        except Exception as error:  # noqa: BLE001 - an error here must not hide the failure of the test
            return f"(no log: {error})"


def run_path(dag_id: str, run_id: str) -> str:
    return f"dags/{dag_id}/dagRuns/{run_id}"


def task_path(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    path = f"{run_path(dag_id, run_id)}/taskInstances/{task_id}"
    return path if map_index < 0 else f"{path}/{map_index}"


def _label(task: JsonObject) -> str:
    return task["task_id"] if task["map_index"] < 0 else f"{task['task_id']}[{task['map_index']}]"


def _line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    details = [f"{key}={value}" for key, value in entry.items() if key not in _LOG_NOISE]
    errors = [
        f"{detail['exc_type']}: {detail['exc_value']}" for detail in entry.get("error_detail") or ()
    ]
    return " ".join([str(entry.get("level", "")), str(entry["event"]), *details, *errors]).strip()
