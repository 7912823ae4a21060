"""Transactions on a standalone Spark: where drivers run, and what happens when a worker of Spark is lost."""

from __future__ import annotations

import pytest

from airflow_tx.testing.eventually import eventually
from tests.containers.cluster import FILES, PATIENCE, Cluster
from tests.containers.test_hosts import begin, end

REACHED = "/shared/data/executor.reached"
RELEASE = "/shared/data/executor.release"
SPARK_WORKERS = ("spark-worker-1", "spark-worker-2")


@pytest.mark.parametrize("name", ["submitted", "connected"])
def test_batches_are_counted_on_the_cluster(cluster: Cluster, name: str) -> None:
    begin(cluster, name)
    end(cluster, name)


def test_a_python_application_in_cluster_mode_is_refused_by_the_standalone_master(cluster: Cluster) -> None:
    cluster.write("submitted_to_cluster", 1, {"a": 1})
    cluster.wait_dag("submitted_to_cluster", PATIENCE)
    cluster.trigger("submitted_to_cluster", "r1")
    cluster.wait_run("submitted_to_cluster", "r1", state="failed", timeout=PATIENCE)
    log = cluster.task_log("submitted_to_cluster", "r1", "count")
    assert "Cluster deploy mode is currently not supported for python applications on standalone clusters" in log


def test_a_worker_of_spark_lost_in_a_job_costs_no_row_and_adds_none(cluster: Cluster) -> None:
    begin(cluster, "lost_executor")
    eventually(lambda: cluster.exists(REACHED), PATIENCE, "an executor is at work", interval=1)
    victim = next(worker for worker in SPARK_WORKERS if waits(cluster, worker))
    cluster.kill(victim)
    cluster.inside(FILES, "touch", RELEASE)
    end(cluster, "lost_executor")
    cluster.start(victim)


def waits(cluster: Cluster, worker: str) -> bool:
    """Whether an application's Python is at work in a container of Spark."""
    found = cluster.inside(worker, "sh", "-c", "pgrep -f pyspark.daemon || true")
    return bool(found.split())
