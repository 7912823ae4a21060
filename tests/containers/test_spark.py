"""Transactions on a standalone Spark: where drivers run, and what happens when a worker of Spark is lost."""

from __future__ import annotations

import pytest

from airflow_tx.testing.eventually import eventually
from tests.containers.cluster import FILES, PATIENCE, Cluster
from tests.containers.runs import begin, end, first_run, host_of

SPARK_WORKERS = ("spark-worker-1", "spark-worker-2")


@pytest.mark.parametrize("name", ["submitted", "connected"])
def test_spark_counts_the_batches_on_the_cluster_through_s3(cluster: Cluster, name: str) -> None:
    point = cluster.arm("commit.after_acquire", name, txid=1)
    begin(cluster, name)
    cluster.wait_reached(point)
    assert any(key.endswith(".parquet") for key in cluster.staged(name))
    cluster.release(point)
    end(cluster, name)


def test_a_python_application_in_cluster_mode_is_refused_by_the_standalone_master(cluster: Cluster) -> None:
    cluster.write("submitted_to_cluster", 1, {"a": 1})
    cluster.wait_dag("submitted_to_cluster", PATIENCE)
    cluster.trigger("submitted_to_cluster", "r1")
    cluster.wait_run("submitted_to_cluster", "r1", state="failed", timeout=PATIENCE)
    log = cluster.task_log("submitted_to_cluster", "r1", "count")
    assert "Cluster deploy mode is currently not supported for python applications on standalone clusters" in log


def test_each_row_counts_once_although_a_spark_worker_is_lost_during_the_job(cluster: Cluster) -> None:
    begin(cluster, "lost_executor")
    wait_at_work(cluster, "lost_executor")
    victim = next(worker for worker in SPARK_WORKERS if waits(cluster, worker))
    cluster.kill(victim)
    go_on(cluster, "lost_executor")
    end(cluster, "lost_executor")
    cluster.start(victim)


def test_another_try_commits_the_batch_of_a_driver_whose_host_was_lost(cluster: Cluster) -> None:
    begin(cluster, "lost_driver")
    wait_at_work(cluster, "lost_driver")
    victim = host_of(cluster, "lost_driver", "count", first_run(cluster, "lost_driver"))
    cluster.kill(victim)
    go_on(cluster, "lost_driver")
    end(cluster, "lost_driver")
    cluster.start(victim)


def wait_at_work(cluster: Cluster, name: str) -> None:
    """Wait until an executor stands still in the job of transaction 1."""
    eventually(lambda: cluster.exists(f"/shared/data/{name}.1.reached"), PATIENCE, "an executor works", interval=1)


def go_on(cluster: Cluster, name: str) -> None:
    """Let executors do their work."""
    cluster.inside(FILES, "touch", f"/shared/data/{name}.release")


def waits(cluster: Cluster, worker: str) -> bool:
    """Whether an application's Python is at work in a container of Spark."""
    found = cluster.inside(worker, "sh", "-c", "pgrep -f '[p]yspark.daemon' || true")
    return bool(found.split())
