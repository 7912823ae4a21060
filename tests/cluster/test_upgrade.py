"""A topology that an earlier release began goes on under this one, in the middle of transactions."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.state import SqlState, Sum
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.cluster.committer import REPOSITORY, Committer, expected
from tests.integration.pipeline import Pipeline
from tests.servers.postgres import LocalPostgres

# Nothing was released yet. This is a state of the package.
EARLIER = "fc4cc9e2"  # the first with the names of modules of now, which serialized sources and states have in them


def unpacked(commit: str, folder: Path, *paths: str) -> Path:
    """The package as it was, with the dependencies of now."""
    command = ["git", "-C", str(REPOSITORY), "archive", commit, "airflow_tx", *paths]
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"UPGRADE NOT TESTED: this clone has no commit {commit} (git fetch --unshallow)")
    tarfile.open(fileobj=io.BytesIO(done.stdout)).extractall(folder)  # of our own making
    return folder


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    return unpacked(EARLIER, tmp_path / "earlier", "tests/unit/bench.py", "tests/cluster/runs.py")


@pytest.fixture
def url(postgres: LocalPostgres) -> str:
    return postgres.url(postgres.new_database())


@pytest.fixture
def pipeline(zookeeper: LocalZooKeeper, zookeeper_root: str, url: str) -> Iterator[Pipeline]:
    """Steps of this release."""
    client = connect(ClientConfig(zookeeper.hosts))
    state = SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()})
    yield Pipeline(ZooKeeperStore(client), zookeeper_root, [state])
    disconnect(client)


def leave(commit: str, folder: Path, *arguments: str) -> None:
    """Let that release run `earlier_release.py`."""
    old = unpacked(commit, folder / "earlier", "tests/integration/pipeline.py")
    program = [sys.executable, str(Path(__file__).with_name("earlier_release.py")), *arguments]
    done = subprocess.run(program, env={**os.environ, "PYTHONPATH": str(old)}, cwd=old, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_records_of_an_earlier_release_go_on_under_this_release(
    tmp_path: Path, zookeeper: LocalZooKeeper, zookeeper_root: str, url: str, pipeline: Pipeline
) -> None:
    leave(EARLIER, tmp_path, zookeeper.hosts, zookeeper_root, url)
    assert pipeline.totals() == [1 + 2 + 3]
    assert [pipeline.run(run) for run in ("r3", "r4", "r5", "r6")] == [3, 4, 5, 6]
    assert pipeline.totals() == [sum(range(1, 7))]


@pytest.fixture
def worker(
    tmp_path: Path, zookeeper: LocalZooKeeper, zookeeper_root: str, url: str
) -> Iterator[Callable[..., Committer]]:
    """Makes processes of one topology, with this package or an earlier one."""
    made = list[Committer]()
    connection = {"host": zookeeper.hosts, "extra": {"chroot": zookeeper_root}}

    def make(package: Path = REPOSITORY, **env: str) -> Committer:
        made.append(Committer(tmp_path, connection, url, package=package, env=env))
        return made[-1]

    yield make
    for each in made:
        each.close()


def hand_over(old: Committer, new: Committer, run: str) -> None:
    new("take", json.dumps(old("give", run)))


def test_transactions_in_every_phase_go_on_under_this_release(
    earlier: Path, worker: Callable[..., Committer], tmp_path: Path
) -> None:
    failpoints = Failpoints(tmp_path / "failpoints")
    old, new = worker(earlier, **failpoints.environment), worker()
    assert old("many", "r1,r2") == []
    for run in ("r3", "r4"):
        old("begin", run)
        old("work", run)
    old("begin", "r5")
    for run in ("r3", "r4", "r5"):
        hand_over(old, new, run)
    armed = failpoints.arm("commit.before_mark", "kill", txid=3)
    old.ask("commit", "r3")
    eventually(lambda: armed.reached, 240, "the earlier release was killed between its write and its mark")
    old.process.wait()
    assert new("commit", "r3") == "committed"
    assert new("commit", "r4") == "committed"
    new("work", "r5")
    assert new("commit", "r5") == "committed"
    assert new("many", "r1,r2,r3") == []  # cleared: they are committed
    assert new("many", "r6,r7") == []
    totals = new("totals")
    assert totals == {**expected(7), **{f"of {txid}.1": 1 for txid in range(1, 8)}}


@pytest.mark.long
def test_a_replay_of_what_an_earlier_release_wrote_undoes_it(
    earlier: Path, worker: Callable[..., Committer], tmp_path: Path
) -> None:
    failpoints = Failpoints(tmp_path / "failpoints")
    old, new = worker(earlier, **failpoints.environment), worker()
    assert old("many", "r1") == []
    old("begin", "r2")
    old("work", "r2")
    armed = failpoints.arm("commit.before_mark", "pause", txid=2)
    zombie = old.ask("commit", "r2")
    eventually(lambda: armed.reached, 240, "the earlier release has written")
    assert new("many", "r2,r3") == []
    armed.release()
    zombie.get()
    assert new("totals") == {**expected(3), "of 1.1": 1, "of 2.2": 1, "of 3.1": 1}
