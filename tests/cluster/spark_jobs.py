"""Airflow's workers that submit to a Spark of several hosts, and jobs that stand still in the middle."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cluster.committer import Committer
from tests.cluster.hosts import Host
from tests.cluster.spark import SparkCluster, driver_settings
from tests.cluster.world import Topology

Workers = Callable[..., Committer]


def worker(
    topology: Topology,
    cluster: SparkCluster,
    tries: Path,
    host: Host,
    *,
    settings: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Committer:
    """Start a worker's process on a host.

    :param tries: a folder of all workers of the topology.
    :param settings: of its applications, besides those for small ones.
    """
    own = {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(cluster.connection),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": host.address,
        "FIRE_SETTINGS": json.dumps({**driver_settings(host), **(settings or {})}),
        "FIRE_TRIES": str(tries),
    }
    return topology.committer(host, module="tests.cluster.spark_runs", env={**own, **(env or {})})


class Job:
    """The Spark job of a run, whose tasks stand still, one on each worker of Spark.

    :ivar begun: what tasks of the run got before it.
    """

    def __init__(self, committer: Committer, run: str, folder: Path, cluster: SparkCluster) -> None:
        folder.mkdir()
        self._folder = folder
        committer("begin", run)
        self.begun = json.dumps(committer("give", run))
        self.answer = committer.ask("work", f"{run} {folder}")
        cluster.await_all(lambda address: (folder / address).exists())

    def release(self) -> None:
        """Let them go on."""
        (self._folder / "release").touch()
