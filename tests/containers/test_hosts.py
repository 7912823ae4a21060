"""What happens to hosts of a cluster while transactions run: each story ends with exact totals."""

from __future__ import annotations

from collections import Counter

from airflow_tx.testing.eventually import eventually
from tests.containers.cluster import PATIENCE, WORKERS, Cluster

FILES = ({"a": 3, "b": 5}, {"b": 7}, {"a": 2, "c": 4})
TOTALS = Counter({"a": 5, "b": 12, "c": 4})
RUNS = ("r1", "r2", "r3")


def test_the_tasks_of_one_run_are_on_different_workers_and_commit_as_one(cluster: Cluster) -> None:
    begin(cluster, "two_workers")
    end(cluster, "two_workers")
    tasks = cluster.task_instances("two_workers", "r1")
    assert {task["hostname"] for task in tasks if task["task_id"] == "meet"} == set(WORKERS)


def test_a_worker_killed_while_it_commits_leaves_the_transaction_to_another_try(cluster: Cluster) -> None:
    point = cluster.arm("commit.before_mark", "killed_worker", txid=1)
    begin(cluster, "killed_worker")
    cluster.wait_reached(point)
    victim = host_of_commit(cluster, "killed_worker")
    cluster.kill(victim)
    end(cluster, "killed_worker")
    cluster.start(victim)


def test_a_worker_that_wakes_up_in_a_commit_after_its_session_has_ended_changes_nothing(cluster: Cluster) -> None:
    point = cluster.arm("commit.after_acquire", "frozen_worker", txid=1)
    begin(cluster, "frozen_worker")
    cluster.wait_reached(point)
    victim = host_of_commit(cluster, "frozen_worker")
    cluster.freeze(victim)
    try:
        end(cluster, "frozen_worker")
        cluster.release(point)  # so that it writes the moment it wakes up
    finally:
        cluster.thaw(victim)
    eventually(lambda: cluster.serves(victim), PATIENCE, f"{victim} serves", interval=2)
    assert cluster.totals("frozen_worker") == TOTALS


def test_a_leader_of_zookeeper_killed_during_a_commit_costs_no_transaction(cluster: Cluster) -> None:
    point = cluster.arm("commit.before_mark", "killed_leader", txid=1)
    begin(cluster, "killed_leader")
    cluster.wait_reached(point)
    leader = cluster.leader()
    cluster.kill(leader)
    cluster.release(point)
    end(cluster, "killed_leader")
    cluster.start(leader)


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


def host_of_commit(cluster: Cluster, name: str) -> str:
    """The worker that commits."""
    return host_of(cluster, name, "commit", first_run(cluster, name))


def host_of(cluster: Cluster, name: str, task_id: str, run_id: str) -> str:
    """The worker on which a task of a run is at work."""
    task = cluster.task(name, run_id, task_id)
    assert task["state"] == "running"
    return str(task["hostname"])


def first_run(cluster: Cluster, name: str) -> str:
    """The run that has transaction 1, whichever begins first."""
    return next(run_id for run_id in RUNS if cluster.xcom(name, run_id, "begin")["txid"] == 1)
