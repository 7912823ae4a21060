"""A transaction's rows are counted on a Spark of several hosts, which are lost in the middle of its job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.hosts import Host
from tests.cluster.spark import NOTICE_SOON, SparkCluster
from tests.cluster.spark_jobs import Job, Workers
from tests.cluster.world import Topology, World

# What a task says whose work somebody else has done meanwhile.
REFUSED = ("AirflowFailException", "AirflowSkipException", "AirflowRescheduleException")


@pytest.mark.long
def test_an_application_on_spark_hosts_counts_each_batch(
    world: World, topology: Topology, spark_worker: Workers
) -> None:
    committer = spark_worker(world.near)
    assert committer("many", "r1,r2") == []
    assert topology.exact("1.1", "2.1")


def test_each_row_counts_once_although_an_executor_host_is_killed_during_the_job(
    world: World, topology: Topology, spark_worker: Workers, spark_hosts: SparkCluster, spark_job: Callable[..., Job]
) -> None:
    committer, lost = spark_worker(world.near), spark_hosts.workers[0]
    counting = spark_job(committer, "r1")
    lost.kill()
    counting.release()
    assert counting.answer.result is None
    assert committer("commit", "r1") == "committed"
    assert topology.exact("1.1")


@pytest.mark.long
def test_each_row_counts_once_although_an_executor_host_is_cut_off_during_the_job(
    world: World, topology: Topology, spark_worker: Workers, spark_hosts: SparkCluster, spark_job: Callable[..., Job]
) -> None:
    committer, lost = spark_worker(world.near, settings=NOTICE_SOON), spark_hosts.workers[0]
    counting = spark_job(committer, "r1")
    others = [each for each in [*spark_hosts.addresses, world.near.address] if each != lost.host.address]
    with lost.host.without(*others):
        counting.release()  # what is cut off writes on, to the same storage
        assert counting.answer.result is None
        assert committer("commit", "r1") == "committed"
        assert topology.exact("1.1")
    assert committer("many", "r2") == []
    assert topology.exact("1.1", "2.1")


def test_a_driver_that_returns_from_a_lost_host_is_refused_after_a_retry_on_another_host(
    world: World, topology: Topology, spark_worker: Workers, spark_job: Callable[..., Job]
) -> None:
    old, new = spark_worker(world.near), spark_worker(world.far)
    counting = spark_job(old, "r1")
    with world.near.without(*everybody_but(world.near, world)):
        new("take", counting.begun)
        new("work", "r1")
        assert new("commit", "r1") == "committed"
        assert topology.exact("1.1")
    counting.release()
    assert counting.answer.error.startswith(REFUSED)
    assert new("many", "r2") == []
    assert topology.exact("1.1", "2.1")


@pytest.mark.long
def test_a_driver_that_returns_from_a_lost_host_is_refused_after_a_replay(
    world: World, topology: Topology, spark_worker: Workers, spark_job: Callable[..., Job]
) -> None:
    old, new = spark_worker(world.near), spark_worker(world.far)
    counting = spark_job(old, "r1")
    with world.near.without(*everybody_but(world.near, world)):
        topology.processed(new, "r1")
    counting.release()
    assert counting.answer.error.startswith(REFUSED)
    assert new("commit", "r1") == "committed"
    assert topology.exact("1.2")


@pytest.mark.long
def test_another_host_commits_the_batch_of_a_driver_whose_host_never_returns(
    world: World, topology: Topology, spark_worker: Workers, spark_job: Callable[..., Job]
) -> None:
    old, new = spark_worker(world.near), spark_worker(world.far)
    counting = spark_job(old, "r1")
    world.near.kill()
    new("take", counting.begun)
    new("work", "r1")
    assert new("commit", "r1") == "committed"
    assert topology.exact("1.1")


def test_a_python_application_in_cluster_mode_is_refused_by_the_standalone_master(
    world: World, topology: Topology, spark_worker: Workers
) -> None:
    committer = spark_worker(world.near)
    committer("begin", "r1")
    assert committer.ask("work_in_cluster_mode", "r1").error.startswith("ApplicationFailed")
    line = "Cluster deploy mode is currently not supported for python applications on standalone clusters"
    assert line in committer.log.read_text()


def everybody_but(host: Host, world: World) -> list[str]:
    """The addresses of all others."""
    return [each for each in world.network.addresses if each != host.address]
