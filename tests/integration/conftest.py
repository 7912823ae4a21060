"""Where a state or ledger under test lives: a place that no other test uses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.cli_runs import DAG_ID, Runs, state_of
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres


@pytest.fixture(params=["sqlite", "postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state.db'}"
    server: LocalPostgres | LocalMariaDB = request.getfixturevalue(request.param)
    return server.url()


@pytest.fixture(scope="session")
def commands(zookeeper: LocalZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """`airflow tx …`, in a process that lives as long as the run."""
    commands = Commands(tmp_path_factory.mktemp("cli"), zookeeper)
    yield commands
    commands.end()


@pytest.fixture
def table() -> str:
    """The name of a table that is not there."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def prefix() -> str:
    """A prefix of keys that are not there."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def grants() -> Grants:
    return Grants()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def runs(airflow: Commands) -> Iterator[Runs]:
    """The runs in Airflow's database, which are deleted after the test."""
    runs = Runs(airflow)
    yield runs
    runs.delete()


@pytest.fixture
def store(zookeeper: LocalZooKeeper, zookeeper_root: str) -> Iterator[ZooKeeperStore]:
    """A connection of its own to the ZooKeeper of the run. What the test leaves below its path is deleted."""
    client = connect(ClientConfig(zookeeper.hosts))
    yield ZooKeeperStore(client)
    if client.exists(zookeeper_root):
        client.delete(zookeeper_root, recursive=True)
    disconnect(client)


@pytest.fixture
def pipeline(airflow: Commands, store: ZooKeeperStore, zookeeper_root: str) -> Iterator[Pipeline]:
    """Transactions of the DAG of the commands, on two states of its database."""
    states = [state_of(airflow, table) for table in ("one", "two")]
    pipeline = Pipeline(store, zookeeper_root, states)
    pipeline.request = TopologyRequest(DAG_ID, "opaque", 8)
    yield pipeline
    for state in states:
        state.clear()
