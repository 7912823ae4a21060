"""Airflow's REST API as tests need it: DAGs, runs, clears and backfills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from airflow_tx.testing.airflow_tasks import AIRFLOW_PATIENCE, AirflowAnswer, AirflowTasks, JsonObject, run_path
from airflow_tx.testing.eventually import eventually

RUN_ENDED = ("success", "failed")


class AirflowClient(AirflowTasks):
    """One Airflow, seen through its REST API."""

    # --- DAGs

    def wait_dag(self, dag_id: str, timeout: float = AIRFLOW_PATIENCE) -> None:
        """Wait until the scheduler knows the DAG, unpaused."""
        what = f"DAG {dag_id} is known and not paused"

        def explained() -> str:
            return f"import errors: {self.import_errors()}"

        eventually(lambda: self._known(dag_id), timeout, what, interval=0.3, explain=explained)

    def pause(self, dag_id: str, paused: bool = True) -> None:
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
        conf: JsonObject | None = None,
        logical_date: datetime | None = None,
        *,
        interval: tuple[datetime, datetime] | None = None,
        partition_key: str | None = None,
    ) -> JsonObject:
        """Start a run.

        :param interval: its data interval, if it is not the one that the schedule has for the logical date.
        """
        body: JsonObject = {"dag_run_id": run_id, "conf": conf or {}, "partition_key": partition_key}
        body["logical_date"] = logical_date.isoformat() if logical_date else None
        if interval is not None:
            body["data_interval_start"], body["data_interval_end"] = (moment.isoformat() for moment in interval)
        return self._object("POST", f"dags/{dag_id}/dagRuns", json=body)

    def runs(self, dag_id: str) -> list[JsonObject]:
        """The runs of a DAG, oldest first."""
        params: JsonObject = {"limit": 1000, "order_by": "id"}
        found: list[JsonObject] = self.call("GET", f"dags/{dag_id}/dagRuns", params=params)["dag_runs"]
        return found

    def wait_run(
        self, dag_id: str, run_id: str, *, state: str | None = "success", timeout: float = AIRFLOW_PATIENCE
    ) -> JsonObject:
        """Wait until a run has ended.

        :param state: what it should end as; None: whatever.
        :raises AssertionError: it ended otherwise, or not at all; with its tasks and their last log lines.
        """

        def ended() -> JsonObject | None:
            run = self.run(dag_id, run_id)
            return run if run["state"] in RUN_ENDED else None

        run: JsonObject = self.wait_for(ended, timeout, "the run has ended", dag_id, run_id)
        if state is not None and run["state"] != state:
            explained = self.describe_run(dag_id, run_id)
            raise AssertionError(f"run {run_id} of {dag_id}: expected {state}, found {run['state']}\n{explained}")
        return run

    def wait_runs(self, dag_id: str, states: Mapping[str, str], timeout: float = AIRFLOW_PATIENCE) -> None:
        """Wait until runs are in these states, per run_id; a run may pass through others, also through failed.

        :raises AssertionError: not in time; with the tasks of those that are not, and their last log lines.
        """

        def others() -> list[str]:
            return [run_id for run_id, state in states.items() if self.run(dag_id, run_id)["state"] != state]

        def explained() -> str:
            return "\n".join(self.describe_run(dag_id, run_id) for run_id in others())

        what = f"{dag_id}: the runs are {dict(states)}"
        eventually(lambda: not others(), timeout, what, interval=0.3, explain=explained)

    def set_run_state(self, dag_id: str, run_id: str, state: str) -> JsonObject:
        """Mark a run success or failed, or queue it."""
        return self._object("PATCH", run_path(dag_id, run_id), json={"state": state})

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """Delete a run, once the scheduler knows the end of its tasks: later it would end those of a run of this id."""
        ended = self.run(dag_id, run_id)["end_date"]
        if ended is not None:
            what = f"the scheduler has gone around since run {run_id} of {dag_id} ended"
            eventually(lambda: self._scheduled_at() > datetime.fromisoformat(ended), 60, what, interval=0.3)
        self.call("DELETE", run_path(dag_id, run_id))

    def _scheduled_at(self) -> datetime:
        health = self.call("GET", "monitor/health")
        return datetime.fromisoformat(health["scheduler"]["latest_scheduler_heartbeat"])

    # --- clearing

    def clear_run(self, dag_id: str, run_id: str, *, only_failed: bool = False) -> None:
        """Clear a run: all of its tasks, or the failed ones."""
        self.call("POST", f"{run_path(dag_id, run_id)}/clear", json={"dry_run": False, "only_failed": only_failed})

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
        body: JsonObject = {
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
        body: JsonObject = {
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
        body: JsonObject = {
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

    def _known(self, dag_id: str) -> bool:
        dag = self.call("GET", f"dags/{dag_id}")
        return not dag["is_paused"] and not dag["is_stale"]
