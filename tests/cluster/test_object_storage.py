"""Staging on a real S3: Spark writes by `s3a://`, Airflow reads by `s3://`, and the server dies in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.committer import Committer
from tests.cluster.hosts import Host
from tests.cluster.object_storage import S3Server
from tests.cluster.spark_jobs import Job, Workers
from tests.cluster.world import Topology, World
from tests.servers.spark_session import skipped_without_jars


@pytest.fixture(scope="module")
def s3(world: World) -> Iterator[S3Server]:
    with skipped_without_jars(), S3Server(world.network.address) as server:
        yield server


@pytest.fixture
def worker(s3: S3Server, spark_worker: Workers) -> Callable[[Host], Committer]:
    s3.start()
    return lambda host: spark_worker(host, settings=s3.spark_settings, env=s3.environment)


@pytest.mark.long
def test_rows_that_spark_writes_through_s3a_are_committed_from_s3(
    world: World, topology: Topology, worker: Callable[[Host], Committer], s3: S3Server
) -> None:
    counting, committing = worker(world.near), worker(world.far)
    topology.processed(counting, "r1")
    assert list(s3.bucket.rglob("*.parquet"))
    committing("take", json.dumps(counting("give", "r1")))
    assert committing("commit", "r1") == "committed"
    assert topology.exact("1.1")


@pytest.mark.long
def test_each_row_counts_once_although_the_s3_server_is_killed_twice(
    world: World,
    topology: Topology,
    worker: Callable[[Host], Committer],
    s3: S3Server,
    spark_job: Callable[..., Job],
) -> None:
    committer = worker(world.near)
    writing = spark_job(committer, "r1")
    s3.kill()
    writing.release()
    s3.start()
    said = writing.answer.get()
    if "error" in said:  # as Airflow retries it
        assert said["error"] == "ApplicationFailed", said
        committer("work", "r1")
    s3.kill()
    refused = committer.ask("commit", "r1").error
    assert refused.startswith("StagingUnreachable"), refused
    assert "\n" not in refused
    assert topology.totals() == {}
    s3.start()
    assert committer("commit", "r1") == "committed"
    assert topology.exact("1.1")
