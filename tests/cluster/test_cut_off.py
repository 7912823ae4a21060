"""A committer loses one of the two stores that it writes to, or time: nothing of it counts once another took over."""

from __future__ import annotations

import pytest

from airflow_tx.testing.eventually import eventually
from tests.cluster.world import Topology, World


def cut_off_from_zookeeper(world: World, topology: Topology, *, env: dict[str, str] | None = None) -> str:
    """Let a committer write that has the turn, lost ZooKeeper, and was replaced; what it is answered."""
    old, new = topology.committer(world.near, env=env), topology.committer(world.far)
    old("whole", "r1")
    topology.processed(old, "r2")
    armed, answer = topology.paused(old, "r2", "commit.after_acquire")
    with world.near.without(*world.zookeepers):
        topology.processed(new, "r2")
        assert new("commit", "r2") == "committed"
        assert topology.exact("1.1", "2.2")
        armed.release()
        return str(answer.error)


def test_a_committer_cut_off_from_zookeeper_is_refused_after_a_newer_attempt_has_written(
    world: World, topology: Topology
) -> None:
    said = cut_off_from_zookeeper(world, topology)
    assert said.startswith("FenceOutranked"), said
    assert topology.exact("1.1", "2.2")


@pytest.mark.long
def test_the_write_of_a_cut_off_committer_is_counted_if_the_fence_check_is_removed(
    world: World, topology: Topology
) -> None:
    cut_off_from_zookeeper(world, topology, env={"FIRE_WITHOUT": "fence"})
    assert not topology.exact("1.1", "2.2")


@pytest.mark.long
def test_a_newer_grant_undoes_the_late_write_of_a_committer_cut_off_from_zookeeper(
    world: World, topology: Topology
) -> None:
    old, new = topology.committer(world.near), topology.committer(world.far)
    topology.processed(old, "r1")
    armed, answer = topology.paused(old, "r1", "commit.after_acquire")
    with world.near.without(*world.zookeepers):
        topology.processed(new, "r1")
        granted, committed = topology.paused(new, "r1", "commit.after_acquire")
        armed.release()  # the fence is not raised yet: it writes, and cannot mark
        eventually(lambda: topology.exact("1.1"), 240, "the one that is cut off has written")
        granted.release()
        assert committed.result == "committed"
        assert topology.exact("1.2")
        answer.get()
    assert topology.exact("1.2")
    assert old("commit", "r1") == "committed"  # it is, and by whom it was: nothing is left to do
    assert topology.exact("1.2")


@pytest.mark.long
def test_the_next_attempt_replaces_the_write_of_a_committer_cut_off_before_it_ended_the_commit(
    world: World, topology: Topology
) -> None:
    old, new = topology.committer(world.near), topology.committer(world.far)
    topology.processed(old, "r1")
    armed, answer = topology.paused(old, "r1", "commit.before_mark")
    with world.near.without(*world.zookeepers):
        assert topology.exact("1.1")
        armed.release()
        topology.await_no_owner()
        topology.processed(new, "r1")
        assert new("commit", "r1") == "committed"
        assert "cannot be reached" in answer.error or "may have happened" in answer.error
    assert topology.exact("1.2")


def test_a_committer_cut_off_from_the_database_fails_and_the_next_attempt_commits(
    world: World, topology: Topology
) -> None:
    old, new = topology.committer(world.near), topology.committer(world.far)
    old("whole", "r1")  # it keeps a connection, whose other end is gone in a moment
    topology.processed(old, "r2")
    armed, answer = topology.paused(old, "r2", "commit.after_acquire")
    with world.near.without(world.network.address):
        armed.release()
        assert answer.error.startswith("StateUnavailable")
        topology.processed(new, "r2")
        assert new("commit", "r2") == "committed"
    assert old("commit", "r2") == "committed"  # it is, and by whom it was: nothing is left to do
    assert topology.exact("1.1", "2.2")


@pytest.mark.long
def test_a_committer_cut_off_from_the_database_commits_when_the_network_is_back(
    world: World, topology: Topology
) -> None:
    committer = topology.committer(world.near)
    committer("whole", "r1")
    topology.processed(committer, "r2")
    armed, answer = topology.paused(committer, "r2", "commit.after_acquire")
    with world.near.without(world.network.address):
        armed.release()
        assert answer.error.startswith("StateUnavailable")
    assert committer("commit", "r2") == "committed"
    assert topology.exact("1.1", "2.1")


def test_a_process_that_slept_longer_than_its_session_is_outranked_when_it_wakes(
    world: World, topology: Topology
) -> None:
    old, new = topology.committer(world.near), topology.committer(world.far)
    topology.processed(old, "r1")
    armed, answer = topology.paused(old, "r1", "commit.after_acquire")
    old.pause()
    armed.release()
    topology.await_no_owner()
    topology.processed(new, "r1")
    assert new("commit", "r1") == "committed"
    old.wake()
    assert "utranked" in answer.error
    assert topology.exact("1.2")


def test_a_committer_on_a_lost_host_is_outranked_when_the_host_returns(world: World, topology: Topology) -> None:
    old, new = topology.committer(world.near), topology.committer(world.far)
    topology.processed(old, "r1")
    armed, answer = topology.paused(old, "r1", "commit.after_acquire")
    with world.near.without(*world.network.addresses):
        topology.await_no_owner()
        topology.processed(new, "r1")
        assert new("commit", "r1") == "committed"
    armed.release()
    assert "utranked" in answer.error
    assert topology.exact("1.2")
