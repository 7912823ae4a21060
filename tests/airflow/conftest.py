"""One real Airflow on PostgreSQL, one real ZooKeeper and one SQLite state for every test in this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.postgres import LocalPostgres
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.airflow.stack import DAGS, Stack, environment, write_numbers


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The servers; started once, because that takes half a minute."""
    folder = tmp_path_factory.mktemp("airflow")
    (folder / "signals").mkdir()
    write_numbers(folder / "numbers")
    failpoints = Failpoints(folder / "failpoints")
    # On SQLite, Airflow's scheduler dies of "database is locked" on a busy machine, and all tests with it.
    with LocalZooKeeper(folder / "zookeeper", fsync=False) as zookeeper, LocalPostgres() as metadata:
        env = {
            **environment(folder, zookeeper.hosts),
            **failpoints.environment,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata.url(metadata.new_database()),
        }
        # In a folder to which tests may add DAG files.
        dags = shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        with LocalAirflow(folder / "home", dags, env) as airflow:
            yield Stack(folder, airflow, zookeeper, failpoints)
