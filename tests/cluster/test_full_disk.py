"""A disk is full: one clear line, nothing half done, and on it goes when there is room again."""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import StagingUnavailable, StateUnavailable, StoreError
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.outputs.staging.area import StagingArea, read_manifest, write_manifest, write_rows
from airflow_tx.state import SqlState, Sum
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Armed, Failpoints
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.testing.suites.state_tools import Grants, rows, totals
from tests.cluster.committer import Committer, expected
from tests.cluster.disks import SmallDisk, small_disk
from tests.cluster.ensemble import LocalEnsemble
from tests.integration.pipeline import Pipeline
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(24) as disk:
        yield disk


def test_staging_fails_on_a_full_disk_and_works_after_space_is_freed(disk: SmallDisk) -> None:
    area = StagingArea(str(disk.folder))
    where = area.try_dir("flights", TransactionAttempt(1, 1), TaskTry("count", -1, "1"))
    some: Any = [{"word": f"word {number}", "n": number} for number in range(50_000)]
    disk.fill()
    with pytest.raises(StagingUnavailable, match=r"flights/1/1/.* cannot be written: No space left .*Make room"):
        write_rows(where, "counts", some)
    assert not [each for each in where.files.list(where.child("counts")) if each.endswith(".parquet")]
    disk.free()
    write_manifest(where, {"counts": write_rows(where, "counts", some)})
    assert read_manifest(where).outputs["counts"].rows == 50_000


@pytest.fixture
def databases(disk: SmallDisk, postgres: LocalPostgres) -> Iterator[str]:
    """The URL of a database on the small disk."""
    place = disk.folder / "tablespace"
    place.mkdir()
    shutil.chown(place, "postgres", "postgres")
    admin = sa.create_engine(postgres.url(), poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    name = f"small_{uuid.uuid4().hex[:8]}"
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE TABLESPACE {name} LOCATION '{place}'"))
        connection.execute(sa.text(f"CREATE DATABASE {name} TABLESPACE {name}"))
    yield postgres.url(name)
    disk.free()
    with admin.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
        connection.execute(sa.text(f"DROP TABLESPACE {name}"))


def test_a_postgres_commit_fails_on_a_full_disk_and_works_after_space_is_freed(disk: SmallDisk, databases: str) -> None:
    write_on_a_full_disk(disk, databases, keys=20_000, says="No space left on device")


def write_on_a_full_disk(disk: SmallDisk, url: str, *, keys: int, says: str) -> None:
    """One transaction finds room; one is refused in one line, and counted once when there is room again."""
    grants, state = Grants(), SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()})
    grants.commit(1, state, {"a": 1})
    many = {"a": 1, **{f"key {number}": 1 for number in range(keys)}}
    grant = grants(2)
    disk.fill()
    with pytest.raises(StateUnavailable, match=says) as failure:
        state.raise_and_write(grant, rows(many))
    assert "\n" not in str(failure.value)
    disk.free()
    assert totals(state) == {"a": 1}
    state.raise_and_write(grant, rows(many))
    assert totals(state) == {**many, "a": 2}


@pytest.mark.long
def test_a_mariadb_commit_fails_on_a_full_disk_and_works_after_space_is_freed() -> None:
    with small_disk(400) as disk:
        server = LocalMariaDB()
        server.data_dir, server.log = disk.folder / "mariadb", disk.folder / "mariadb.log"
        with server:
            write_on_a_full_disk(disk, server.url(), keys=60_000, says="full")


def test_a_sqlite_commit_fails_on_a_full_disk_and_works_after_space_is_freed(disk: SmallDisk) -> None:
    write_on_a_full_disk(disk, f"sqlite:///{disk.folder}/state.db", keys=20_000, says="disk is full")


@pytest.mark.long
def test_totals_are_exact_after_a_single_zookeeper_server_on_a_full_disk_restarts(
    disk: SmallDisk, tmp_path: Path
) -> None:
    state = SqlState.from_url(f"sqlite:///{tmp_path}/state.db", table="totals", keys=["key"], values={"n": Sum()})
    with LocalZooKeeper(disk.folder / "zookeeper") as server:
        client = connect(ClientConfig(server.hosts))
        try:
            store = ZooKeeperStore(client, read_timeout=10, write_timeout=10)
            pipeline = Pipeline(store, "/airflow_tx", [state])
            pipeline.run("r1")
            disk.fill()
            with pytest.raises(StoreError) as failure:
                endlessly(pipeline)
            assert "\n" not in str(failure.value)
            disk.free()
            server.kill()
            server.start()
            eventually(lambda: client.connected, 240, "the client is served again")
            turn = pipeline.ledger.turn()
            last = pipeline.run("r0" if turn.record is None else turn.record.run_id)
            assert last == turn.current
            assert pipeline.totals() == [sum(range(1, last + 1))]
        finally:
            disconnect(client)


def endlessly(pipeline: Pipeline) -> None:
    """Run transactions, until the log of ZooKeeper finds no room."""
    for number in itertools.count(2):
        pipeline.run(f"r{number}")


@pytest.mark.long
def test_two_zookeepers_continue_when_the_disk_of_the_third_is_full(disk: SmallDisk, tmp_path: Path) -> None:
    folders = [disk.folder / "zookeeper", tmp_path / "second", tmp_path / "third"]
    with LocalEnsemble(folders=folders) as ensemble:
        committer = Committer(tmp_path, ensemble.hosts, f"sqlite:///{tmp_path}/state.db")
        try:
            assert committer("many", "r1") == []
            disk.fill()
            small, stop = ensemble.nodes[0], tmp_path / "stop"
            answer = committer.ask("until", f"full {stop}")
            eventually(lambda: small.mode == "", 240, "the server whose disk is full serves nobody")
            stop.touch()
            done = answer.result
            assert [error for error in done["errors"] if error.startswith("FAILED")] == []
            disk.free()
            small.kill()
            small.start()
            ensemble.whole()
            assert committer("many", "last") == []
            count = done["runs"] + 2
            assert committer("totals") == {**expected(count), **{f"of {txid}.1": 1 for txid in range(1, count + 1)}}
        finally:
            committer.close()


def test_a_commit_ends_exactly_once_although_its_database_restarts_during_the_commit(
    tmp_path: Path, zookeeper: LocalZooKeeper
) -> None:
    failpoints = Failpoints(tmp_path / "failpoints")
    with LocalPostgres(fsync=True) as server:
        committer = Committer(
            tmp_path,
            {"host": zookeeper.hosts, "extra": {"chroot": "/restarted"}},
            server.url(),
            env=failpoints.environment,
        )
        try:
            for number, at in enumerate(["after_acquire", "before_mark"], 1):
                committer("begin", f"r{number}")
                committer("work", f"r{number}")
                armed = failpoints.arm(f"commit.{at}", "pause")
                answer = committer.ask("commit", f"r{number}")
                await_reached(armed)
                server.kill()
                server.start()
                armed.release()
                assert answer.result == "committed"
            assert committer("totals") == {**expected(2), "of 1.1": 1, "of 2.1": 1}
        finally:
            committer.close()


def await_reached(armed: Armed) -> None:
    eventually(lambda: armed.reached, 240, "it is in the middle of its commit")
