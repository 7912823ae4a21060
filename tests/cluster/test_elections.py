"""Servers of the ensemble die, are cut off, are restarted, while transactions run: every one is exact."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.cluster.ensemble import ZooKeeperNode
from tests.cluster.hosts import Host
from tests.cluster.world import Topology, World


@pytest.fixture(autouse=True)
def whole_again(world: World) -> Iterator[None]:
    yield
    world.ensemble.start()


def recovered(what: str, began: float) -> None:
    """Say how long it took; nobody asserts it."""
    print(f"\nRECOVERY {what}: {time.monotonic() - began:.1f} s")


@pytest.mark.parametrize("at", ["before_acquire", "after_acquire", "before_mark"])
def test_a_commit_ends_exactly_once_in_the_same_task_although_the_zookeeper_leader_is_killed(
    world: World, topology: Topology, at: str
) -> None:
    committer = topology.committer(world.near)
    topology.processed(committer, "r1")
    armed, answer = topology.paused(committer, "r1", f"commit.{at}")
    leader, began = world.ensemble.leader, time.monotonic()
    leader.kill()
    armed.release()
    assert answer.result == "committed"
    recovered(f"leader killed, commit.{at}", began)
    assert topology.exact("1.1")
    leader.start()
    world.ensemble.whole()
    assert committer("many", "r2") == []
    assert topology.exact("1.1", "2.1")


@pytest.mark.long
@pytest.mark.parametrize("at", ["before_acquire", "after_acquire", "before_mark"])
def test_a_commit_is_exact_although_the_zookeeper_leader_is_cut_off(world: World, topology: Topology, at: str) -> None:
    committer = topology.committer(world.near)
    topology.processed(committer, "r1")
    armed, answer = topology.paused(committer, "r1", f"commit.{at}")
    leader = world.ensemble.leader
    others = [address for address in [*world.zookeepers, world.near.address] if address != leader.address]
    with host_of(leader).without(*others):
        began = time.monotonic()
        armed.release()
        said = answer.get()
        if "error" in said:  # as Airflow retries it
            assert said["error"] in ("StoreUnavailable", "NoConnection", "OutcomeUnknown"), said
            assert committer("commit", "r1") == "committed"
        recovered(f"leader cut off, commit.{at}", began)
        assert topology.exact("1.1")


@pytest.mark.long
def test_a_worker_cut_off_from_one_zookeeper_server_continues_with_the_other_servers(
    world: World, topology: Topology
) -> None:
    # As by default: one server that is cut off must not use up the time that there is for all.
    committer = topology.committer(world.near, env={"AIRFLOW__TX__SESSION_TIMEOUT": "10"})
    topology.processed(committer, "r1")
    armed, answer = topology.paused(committer, "r1", "commit.after_acquire")
    with world.near.without(serving(world).address):
        began = time.monotonic()
        armed.release()
        assert answer.result == "committed"
        recovered("the server of the client cut off", began)
        began = time.monotonic()
        assert committer("many", "r2,r3,r4") == []
        recovered("three transactions with one of three servers cut off", began)
    assert topology.exact("1.1", "2.1", "3.1", "4.1")


@pytest.mark.long
def test_no_task_commits_without_a_zookeeper_majority_and_the_same_task_commits_afterwards(
    world: World, topology: Topology
) -> None:
    committer = topology.committer(world.near)
    topology.processed(committer, "r1")
    armed, answer = topology.paused(committer, "r1", "commit.before_mark")
    first, second = world.ensemble.followers
    for node in (first, second):
        node.kill()
    armed.release()
    said = answer.get()
    assert said.get("error") in ("StoreUnavailable", "OutcomeUnknown"), said
    assert "\n" not in said["text"]
    began = time.monotonic()
    first.start()
    assert committer("many", "r1") == []
    recovered("majority back", began)
    # The server that was left may have the mark in its log: then it counts once others follow.
    assert topology.exact("1.1") or topology.exact("1.2")


@pytest.mark.long
def test_a_rolling_restart_of_all_zookeeper_servers_under_load_causes_no_error(
    world: World, topology: Topology
) -> None:
    workers, stop = [topology.committer(host) for host in (world.near, world.far)], world.folder / "stop"
    answers = [worker.ask("until", f"of{number} {stop}") for number, worker in enumerate(workers)]
    for node in list(world.ensemble.nodes):
        before, began = topology.count(), time.monotonic()
        node.restart()
        world.ensemble.whole()
        recovered(f"server {node.number} restarted", began)
        topology.await_more(before)
    stop.touch()
    said = [answer.result for answer in answers]
    assert [each["errors"] for each in said] == [[], []]
    assert topology.count() == sum(each["runs"] for each in said)


def host_of(node: ZooKeeperNode) -> Host:
    assert node.host is not None
    return node.host


def serving(world: World) -> ZooKeeperNode:
    """The server that the worker near by is connected to."""
    command = world.near.command("ss", "-Htn", "state", "established")
    peers = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return next(node for node in world.ensemble.nodes if node.hosts in peers)
