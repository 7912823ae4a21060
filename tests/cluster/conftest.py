"""What breaks here is broken on purpose; nobody else's servers are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster.committer import Committer
    from tests.cluster.spark import SparkCluster
    from tests.cluster.spark_jobs import Job, Workers
    from tests.cluster.world import Topology, World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of this folder: none of it belongs to the default run."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("cluster")
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three ZooKeepers, a database and two workers' hosts."""
    from tests.cluster.hosts import require_network
    from tests.cluster.world import World

    require_network()
    with World(tmp_path_factory.mktemp("world")) as world:
        yield world


@pytest.fixture
def topology(world: World) -> Iterator[Topology]:
    """A topology of this test alone; all hosts reach each other again afterwards."""
    with world.topology() as topology:
        yield topology


@pytest.fixture(scope="session")
def spark_hosts(world: World) -> Iterator[SparkCluster]:
    """A Spark of three hosts."""
    from tests.cluster.spark import SparkCluster

    with SparkCluster(world.network) as cluster:
        yield cluster


@pytest.fixture
def spark_worker(topology: Topology, spark_hosts: SparkCluster, tmp_path: Path) -> Workers:
    """Starts workers' processes of one topology that submit to it."""
    from tests.cluster.spark_jobs import worker

    return partial(worker, topology, spark_hosts, tmp_path)


@pytest.fixture
def spark_job(spark_hosts: SparkCluster, tmp_path: Path) -> Iterator[Callable[[Committer, str], Job]]:
    """Brings a run to the middle of its Spark job."""
    from tests.cluster.spark_jobs import Job

    jobs = list[Job]()

    def start(committer: Committer, run: str) -> Job:
        jobs.append(Job(committer, run, tmp_path / run, spark_hosts))
        return jobs[-1]

    yield start
    for each in jobs:
        each.release()
    for lost in spark_hosts.workers:
        lost.start()
