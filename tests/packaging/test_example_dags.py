"""The example DAGs that come with the package: Airflow finds them, parses them, and they count."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.dag_processing.bundles import manager
from airflow.dag_processing.dagbag import DagBag

import airflow_tx
from airflow_tx.base import compat
from airflow_tx.spark.app import load_app
from airflow_tx.testing.dag_trial import trial

FOLDER = Path(airflow_tx.__file__).parent / "example_dags"
NAMES = ["example_spark_counts", "example_word_counts"]


@pytest.fixture(scope="module")
def bag() -> Iterator[DagBag]:
    # Airflow 3.2 takes those of its own into each DagBag.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
        yield DagBag(dag_folder=str(FOLDER))


@pytest.mark.skipif(compat.is_airflow_3_2(), reason="Airflow 3.2 shows no example DAGs of providers")
def test_airflow_finds_the_example_dags_by_the_name_of_the_distribution(caplog: pytest.LogCaptureFixture) -> None:
    found: list[manager._ExternalBundleConfig] = []
    with caplog.at_level(logging.ERROR):
        manager._add_provider_example_dags_to_bundle(found)
    (own,) = [each for each in found if each.name == "airflow-provider-tx-example-dags"]
    assert own.kwargs == {"path": str(FOLDER)}
    assert "airflow_provider_tx" not in caplog.text


def test_each_example_file_is_a_dag_or_an_application_of_a_dag(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert sorted(bag.dags) == NAMES


def test_no_example_dag_has_a_schedule(bag: DagBag) -> None:
    assert {type(dag.timetable).__name__ for dag in bag.dags.values()} == {"NullTimetable"}


@pytest.mark.lead
def test_the_example_dag_counts_words(bag: DagBag, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    database = {"conn_type": "sqlite", "host": str(tmp_path / "state.db")}
    monkeypatch.setenv("AIRFLOW_CONN_TX_STATE", json.dumps(database))
    rows = [{"text": "the cow jumped"}, {"text": "the dog"}]
    result = trial(bag.dags["example_word_counts"], rows=rows)
    assert result.state == "success"
    counted = {row["word"]: row["n"] for row in result.states["tx_state.example_word_counts"].read()}
    assert counted == {"the": 2, "cow": 1, "jumped": 1, "dog": 1}


def test_the_example_application_can_be_loaded() -> None:
    load_app(str(FOLDER / "example_spark_application.py"))
