"""One real Airflow, one real ZooKeeper and one SQLite state for every test in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.zookeeper import LocalZooKeeper
from tests.airflow.stack import DAGS, Stack, environment, write_numbers


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The servers; started once, because that takes half a minute."""
    folder = tmp_path_factory.mktemp("airflow")
    (folder / "signals").mkdir()
    write_numbers(folder / "numbers")
    failpoints = Failpoints(folder / "failpoints")
    with LocalZooKeeper(folder / "zookeeper", fsync=False) as zookeeper:
        env = {**environment(folder, zookeeper.hosts), **failpoints.environment}
        with LocalAirflow(folder / "home", DAGS, env) as airflow:
            yield Stack(folder, airflow, zookeeper, failpoints)
