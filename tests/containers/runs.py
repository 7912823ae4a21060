"""The runs of a topology on the cluster, from their files to exact totals."""

from __future__ import annotations

from collections import Counter

from tests.containers.cluster import PATIENCE, Cluster

FILES = ({"a": 3, "b": 5}, {"b": 7}, {"a": 2, "c": 4})


TOTALS = Counter({"a": 5, "b": 12, "c": 4})


RUNS = ("r1", "r2", "r3")


def begin(cluster: Cluster, name: str) -> None:
    """Write the files of a topology and trigger a run for each."""
    for number, keys in enumerate(FILES, start=1):
        cluster.write(name, number, keys)
    cluster.wait_dag(name, PATIENCE)
    for run_id in RUNS:
        cluster.trigger(name, run_id)


def end(cluster: Cluster, name: str) -> None:
    """Wait until every run has succeeded; a run whose tries were used up is cleared, as a person does."""
    for run_id in RUNS:
        if cluster.wait_run(name, run_id, state=None, timeout=PATIENCE)["state"] == "failed":
            cluster.clear_run(name, run_id, only_failed=True)
    for run_id in RUNS:
        cluster.wait_run(name, run_id, timeout=PATIENCE)
    assert cluster.totals(name) == TOTALS


def host_of(cluster: Cluster, name: str, task_id: str, run_id: str) -> str:
    """The worker on which a task of a run is at work."""
    task = cluster.task(name, run_id, task_id)
    assert task["state"] == "running"
    return str(task["hostname"])


def first_run(cluster: Cluster, name: str) -> str:
    """The run that has transaction 1, whichever begins first."""
    return next(run_id for run_id in RUNS if cluster.xcom(name, run_id, "begin")["txid"] == 1)
