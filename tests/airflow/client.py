"""What these tests do to an Airflow besides what every user of `LocalAirflow` does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_tx.base import compat
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.airflow_client import JsonObject, run_path, task_path
from airflow_tx.testing.eventually import eventually


class TriedAirflow(LocalAirflow):
    """An Airflow whose runs are cleared by the dozen, marked and deleted."""

    def set_run_state(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark a run success or failed, or queue it."""
        self.call("PATCH", run_path(dag_id, run_id), json={"state": state})

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """Delete a run, once the scheduler knows the end of its tasks: later it would end those of a run of this id."""
        ended = self.run(dag_id, run_id)["end_date"]
        if ended is not None:
            what = f"the scheduler has gone around since run {run_id} of {dag_id} ended"
            eventually(lambda: self._scheduled_at() > datetime.fromisoformat(ended), 240, what, interval=0.3)
        self.call("DELETE", run_path(dag_id, run_id))

    def _scheduled_at(self) -> datetime:
        health = self.call("GET", "monitor/health")
        return datetime.fromisoformat(health["scheduler"]["latest_scheduler_heartbeat"])

    def clear_runs(self, dag_id: str, run_ids: Sequence[str], *, only_failed: bool = False) -> None:
        """Clear several runs in one call, as those marked in the list of runs; in Airflow 3.2 one by one."""
        if compat.is_airflow_3_2():
            for each in run_ids:
                self.clear_run(dag_id, each, only_failed=only_failed)
            return
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

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        self.call("PATCH", task_path(dag_id, run_id, task_id, map_index), json={"new_state": state})

    def asset_events(self, dag_id: str) -> list[JsonObject]:
        """The asset events that tasks of a DAG emitted, oldest first."""
        return self.listed("assets/events", "asset_events", {"source_dag_id": dag_id, "order_by": "timestamp"})
