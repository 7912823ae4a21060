"""Hosts whose clocks are an hour apart: transactions are exact all the same."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone

import pytest

from tests.cluster.committer import Committer
from tests.cluster.hosts import Host
from tests.cluster.world import Topology, World


@pytest.fixture(autouse=True)
def faketime() -> None:
    if shutil.which("faketime") is None:
        pytest.skip("CLOCKS NOT TESTED: faketime is missing (Debian: apt-get install faketime)")


def worker(topology: Topology, host: Host, hours: int) -> Committer:
    """A process whose clock is so many hours off."""
    made = topology.committer(host, before=("faketime", "--exclude-monotonic", "-f", f"{hours:+d}h"))
    off = datetime.fromisoformat(made("clock")) - datetime.now(timezone.utc)
    assert abs(off - timedelta(hours=hours)) < timedelta(minutes=20)
    return made


def test_two_hosts_whose_clocks_are_hours_apart_commit_in_turns(world: World, topology: Topology) -> None:
    ahead, behind = worker(topology, world.near, 1), worker(topology, world.far, -1)
    for number in range(3):
        assert ahead("many", f"a{number}") == []
        assert behind("many", f"b{number}") == []
    assert topology.exact(*(f"{txid}.1" for txid in range(1, 7)))


@pytest.mark.long
@pytest.mark.parametrize("hours", [1, -1])
def test_a_newer_attempt_outranks_an_older_attempt_despite_wrong_clocks(
    world: World, topology: Topology, hours: int
) -> None:
    old, new = worker(topology, world.near, -hours), worker(topology, world.far, hours)
    topology.processed(old, "r1")
    armed, answer = topology.paused(old, "r1", "commit.after_acquire")
    topology.processed(new, "r1")
    assert new("commit", "r1") == "committed"
    armed.release()
    assert "utranked" in answer.error
    assert topology.exact("1.2")
    assert old("many", "r2") == []
    assert topology.exact("1.2", "2.1")
