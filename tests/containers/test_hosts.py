"""What happens to hosts of a cluster while transactions run: each story ends with exact totals."""

from __future__ import annotations

from airflow_tx.testing.eventually import eventually
from tests.containers.cluster import PATIENCE, WORKERS, Cluster
from tests.containers.runs import TOTALS, begin, end, first_run, host_of


def test_tasks_of_one_run_on_different_workers_commit_as_one_transaction(cluster: Cluster) -> None:
    begin(cluster, "two_workers")
    end(cluster, "two_workers")
    tasks = cluster.task_instances("two_workers", "r1")
    assert {task["hostname"] for task in tasks if task["task_id"] == "meet"} == set(WORKERS)


def test_another_try_commits_the_transaction_of_a_worker_killed_during_the_commit(cluster: Cluster) -> None:
    point = cluster.arm("commit.before_mark", "killed_worker", txid=1)
    begin(cluster, "killed_worker")
    cluster.wait_reached(point)
    victim = host_of_commit(cluster, "killed_worker")
    cluster.kill(victim)
    end(cluster, "killed_worker")
    cluster.start(victim)


def test_a_worker_that_resumes_a_commit_after_its_session_expired_changes_no_total(cluster: Cluster) -> None:
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


def test_a_commit_is_not_lost_if_the_zookeeper_leader_is_killed(cluster: Cluster) -> None:
    point = cluster.arm("commit.before_mark", "killed_leader", txid=1)
    begin(cluster, "killed_leader")
    cluster.wait_reached(point)
    leader = cluster.leader()
    cluster.kill(leader)
    cluster.release(point)
    end(cluster, "killed_leader")
    cluster.start(leader)


def host_of_commit(cluster: Cluster, name: str) -> str:
    """The worker that commits."""
    return host_of(cluster, name, "commit", first_run(cluster, name))
