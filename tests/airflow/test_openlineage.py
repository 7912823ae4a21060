"""The facet of a transaction in what a real Airflow writes through OpenLineage's file transport."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

PACKAGES = Path(sys.prefix) / "openlineage"
"""Apart from the others: the provider listens to every task of an Airflow that has it."""
_DAG = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, MemorySource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import SqlState, Sum

with DAG("traced", schedule=None):
    with Transaction(source=MemorySource({"a": [{"n": 1}, {"n": 2}, {"n": 3}]}, per_batch=2)) as tx:
        @task
        def count(batch):
            return [{"key": "n", "total": sum(row["n"] for row in current_batch().read())}]
        state = SqlState("tx_state", table="traced", keys=["key"], values={"total": Sum()})
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(tx.batch), state=state)])
"""


@pytest.mark.long
def test_the_runs_of_our_tasks_name_their_transaction(tmp_path: Path, zookeeper: LocalZooKeeper) -> None:
    if not PACKAGES.is_dir():
        pytest.skip("needs the packages of requirements-openlineage.lock: script/env servers")
    dags, events = tmp_path / "dags", tmp_path / "events"
    dags.mkdir()
    (dags / "traced.py").write_text(_DAG)
    env = {
        "PYTHONPATH": str(PACKAGES),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "file", "log_file_path": str(events), "append": True}),
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
        "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(tmp_path / "state.db")),
        "AIRFLOW__TX__ROOT": "/airflow_tx_lineage",
    }

    def written() -> dict[tuple[str, str], Any]:
        """The facets of the tasks that have ended well, by run and task."""
        lines = events.read_text().splitlines() if events.exists() else []
        ended = [each for each in map(json.loads, lines) if each["eventType"] == "COMPLETE"]
        return {
            (each["run"]["facets"]["airflow"]["dagRun"]["run_id"], name): each["run"]["facets"].get("airflow_tx")
            for each in ended
            if (name := each["job"]["name"].removeprefix("traced.")) != "traced"
        }

    with LocalAirflow(tmp_path / "home", dags, env) as airflow:
        airflow.wait_dag("traced")
        for run_id in ("r1", "r2"):
            airflow.trigger("traced", run_id)
            airflow.wait_run("traced", run_id)
        eventually(lambda: len(written()) == 6, 60, "every task is in the events", explain=airflow.component_logs)
        found = written()

    def facts(run_id: str, task_id: str) -> dict[str, Any]:
        names = ("topology", "txid", "attempt", "position", "rows")
        return {name: found[run_id, task_id][name] for name in names if name in found[run_id, task_id]}

    first = {"topology": "traced", "txid": 1, "attempt": 1, "position": {"a": 2}}
    second = {**first, "txid": 2, "position": {"a": 3}}
    assert (facts("r1", "begin"), facts("r1", "commit")) == (first, {**first, "rows": 2})
    assert (facts("r2", "begin"), facts("r2", "commit")) == (second, {**second, "rows": 1})
    assert found["r1", "count"] is None
