"""The facet and the datasets of a transaction in what OpenLineage's file transport writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy.engine import make_url

from airflow_tx import KafkaSource
from airflow_tx.base.dataset import Dataset
from airflow_tx.state.sql.mysql import MySql
from airflow_tx.state.sql.postgres import Postgres
from tests.lineage import Graph

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(sys.prefix) / "openlineage"


class Told(NamedTuple):
    """What the program has told, and the folder in which the chain is."""

    folder: Path
    events: dict[str, Any]
    without: Any
    conventions: dict[str, Any]

    def graph(self) -> Graph:
        return Graph.of(self.events.values())


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What the provider gets; in a process of its own, since it would listen to the tasks of all other tests here."""
    if not PACKAGES.is_dir():
        pytest.skip("needs the packages of requirements-openlineage.lock: script/env servers")
    folder = tmp_path_factory.mktemp("lineage")
    command = [sys.executable, "-m", "tests.integration.lineage_program", str(folder)]
    path = os.pathsep.join([str(ROOT), str(PACKAGES)])
    environment = {**os.environ, "PYTHONPATH": path, "AIRFLOW_HOME": str(folder)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Told(folder, **json.loads(done.stdout.splitlines()[-1]))


def test_the_events_of_a_transactional_task_contain_a_facet_with_the_transaction(told: Told) -> None:
    facet = told.events["numbers.begin"]["run"]["facets"]["airflow_tx"]
    facts = {name: facet.get(name) for name in ("topology", "txid", "attempt", "position", "rows", "restates")}
    assert facts == {"topology": "numbers", "txid": 1, "attempt": 1, "position": 10, "rows": None, "restates": None}


def test_events_of_a_task_without_a_transaction_contain_no_facet_and_no_dataset(told: Told) -> None:
    assert told.without == [{}, [], []]


def test_begin_reports_input_datasets_and_the_committer_reports_inputs_and_outputs(told: Told) -> None:
    database = ("sqlite", f"{told.folder}/shop.db.main.")
    files = ("file", f"{told.folder}/in")
    graph = told.graph()
    assert (graph.inputs["numbers.begin"], graph.outputs["numbers.begin"]) == (set(), set())
    assert (graph.inputs["orders.begin"], graph.outputs["orders.begin"]) == ({files}, set())
    assert graph.inputs["orders.commit"] == {files}
    tables = {(database[0], database[1] + name) for name in ("orders", "refused")}
    # An outlet of the committer is told beside them, as it is without them.
    assert graph.outputs["orders.commit"] == {*tables, ("file", "/marts/orders")}


def test_the_datasets_of_a_chain_form_one_connected_graph_from_the_files_to_the_totals(told: Told) -> None:
    graph = told.graph()
    for upstream, downstream in (("orders", "cleaned"), ("cleaned", "totals")):
        (read,) = graph.inputs[f"{downstream}.commit"]
        assert read in graph.outputs[f"{upstream}.commit"]
        assert graph.inputs[f"{downstream}.begin"] == {read}
    totals = ("sqlite", f"{told.folder}/shop.db.main.totals")
    assert totals in graph.reached_from(("file", f"{told.folder}/in"))
    assert graph.outputs["cleaned.commit"] == {("file", f"{told.folder}/cleaned")}


def test_dataset_names_equal_the_names_that_the_openlineage_client_would_use(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_TX_CONN_kafka", json.dumps({"conn_type": "kafka", "host": "k1"}))
    ours = {
        "postgres": Postgres().dataset(make_url("postgresql://db/shop"), "public", "orders"),
        "mysql": MySql().dataset(make_url("mysql+pymysql://db/shop"), "shop", "orders"),
        "kafka": KafkaSource("kafka", topic="orders").datasets()[0],
        "s3": Dataset.of_folder("s3a://lake/bronze/orders"),
        "gs": Dataset.of_folder("gs://lake/bronze/orders"),
        "file": Dataset.of_folder("/lake/orders"),
    }
    assert {name: list(each) for name, each in ours.items()} == told.conventions


def test_no_event_contains_a_user_name_or_a_password(told: Told) -> None:
    text = json.dumps(told.events)
    assert "s3cr3t" not in text
    assert "ulf" not in text
