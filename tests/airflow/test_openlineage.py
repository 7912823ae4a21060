"""The facet and the datasets of transactions in what a real Airflow writes through OpenLineage's file transport."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.lineage import Graph

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
_CHAIN = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, FileSource, Transaction, UpstreamSource
from airflow_tx import append, current_batch, persistent_aggregate
from airflow_tx.state import Count, DeltaTable, SqlState, SqlTable

orders = SqlTable("tx_state", table="orders")
cleaned = DeltaTable("FOLDER/cleaned")
totals = SqlState("tx_state", table="totals", keys=["day"], values={"orders": Count()})

@task
def read():
    return current_batch().arrow().read_all()

@task
def by_day():
    return [{"day": "1", "orders": len(list(current_batch().read()))}]

with DAG("first", schedule=None):
    with Transaction(source=FileSource("FOLDER/in/*.csv"), rejected=SqlTable("tx_state", table="refused")):
        CommitOperator(task_id="commit", updates=[append(read(), state=orders)])
with DAG("second", schedule=None):
    with Transaction(source=UpstreamSource(orders, topology="first")):
        CommitOperator(task_id="commit", updates=[append(read(), state=cleaned)])
with DAG("third", schedule=None):
    with Transaction(source=UpstreamSource(cleaned, topology="second")):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(by_day(), state=totals)])
"""
CHAIN = ("first", "second", "third")


@pytest.mark.long
def test_the_openlineage_events_of_tasks_name_the_transaction(tmp_path: Path, zookeeper: LocalZooKeeper) -> None:
    if not PACKAGES.is_dir():
        pytest.skip("needs the packages of requirements-openlineage.lock: script/env servers")
    dags, events = tmp_path / "dags", tmp_path / "events"
    dags.mkdir()
    (dags / "traced.py").write_text(_DAG)
    (dags / "chain.py").write_text(_CHAIN.replace("FOLDER", str(tmp_path)))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("day,amount\n1,10\n1,20\n")
    env = {
        "PYTHONPATH": str(PACKAGES),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "file", "log_file_path": str(events), "append": True}),
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
        "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(tmp_path / "state.db")),
        "AIRFLOW__TX__ROOT": "/airflow_tx_lineage",
    }

    def ended() -> list[Any]:
        """The events of the tasks that have ended well."""
        lines = events.read_text().splitlines() if events.exists() else []
        of_tasks = (each for each in map(json.loads, lines) if "." in each["job"]["name"])
        return [each for each in of_tasks if each["eventType"] == "COMPLETE"]

    def written() -> dict[tuple[str, str], Any]:
        """The facets of the tasks of the first DAG, by run and task."""
        return {
            (each["run"]["facets"]["airflow"]["dagRun"]["run_id"], task): each["run"]["facets"].get("airflow_tx")
            for each in ended()
            for dag, _, task in [each["job"]["name"].partition(".")]
            if dag == "traced"
        }

    with LocalAirflow(tmp_path / "home", dags, env) as airflow:
        airflow.wait_dag("traced")
        for run_id in ("r1", "r2"):
            airflow.trigger("traced", run_id)
            airflow.wait_run("traced", run_id)
        eventually(lambda: len(written()) == 6, 60, "every task is in the events", explain=airflow.component_logs)
        found = written()
        for dag in CHAIN:
            airflow.wait_dag(dag)
            airflow.trigger(dag, "r1")
            airflow.wait_run(dag, "r1")
        eventually(lambda: len(ended()) == 15, 60, "every task is in the events", explain=airflow.component_logs)
        graph = Graph.of(ended())

    def facts(run_id: str, task_id: str) -> dict[str, Any]:
        names = ("topology", "txid", "attempt", "position", "rows")
        return {name: found[run_id, task_id][name] for name in names if name in found[run_id, task_id]}

    first = {"topology": "traced", "txid": 1, "attempt": 1, "position": {"a": 2}}
    second = {**first, "txid": 2, "position": {"a": 3}}
    assert (facts("r1", "begin"), facts("r1", "commit")) == (first, {**first, "rows": 2})
    assert (facts("r2", "begin"), facts("r2", "commit")) == (second, {**second, "rows": 1})
    assert found["r1", "count"] is None

    def table(name: str) -> tuple[str, str]:
        return "sqlite", f"{tmp_path}/state.db.main.{name}"

    files = ("file", f"{tmp_path}/in")
    lake = ("file", f"{tmp_path}/cleaned")
    read = {"first": {files}, "second": {table("orders")}, "third": {lake}}
    assert {dag: graph.inputs[f"{dag}.begin"] for dag in CHAIN} == read
    assert {dag: graph.inputs[f"{dag}.commit"] for dag in CHAIN} == read
    wrote = {"first": {table("orders"), table("refused")}, "second": {lake}, "third": {table("totals")}}
    assert {dag: graph.outputs[f"{dag}.commit"] for dag in CHAIN} == wrote
    assert table("totals") in graph.reached_from(files)
