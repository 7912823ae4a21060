"""Databases and partitions that go away and come back, and older ones: what the table of promises says of them.

Whole transactions by the operators' code, with a ledger in a real ZooKeeper and states in a real PostgreSQL.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import SourceError, StateBehind, StateUnavailable
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.rebuild import state_lost
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.sources.files.source import PartitionedFileSource
from airflow_tx.sources.memory import MemorySource
from airflow_tx.state import SqlState, Sum
from airflow_tx.state.sql import fence
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.integration.databases import query
from tests.servers.postgres import LocalPostgres, postgres_program
from tests.stage import Stage, StageRun, update

Rows = list[dict[str, Any]]


class Numbered:
    """A topology whose transactions count their rows, one run after another."""

    def __init__(self, store: ZooKeeperStore, root: str, *states: SqlState, source: Any = None) -> None:
        self.stage = Stage(store, source, root=root)
        self.states = states
        self.seen: list[Any] = []

    def processed(self, run_id: str, **others: int) -> StageRun:
        """A run of which only the commit is left; it counts other keys, too."""
        run = StageRun(self.stage.spec, run_id)
        assert isinstance(run.begin(), Begun)
        processing = run.start()
        rows = list(CurrentBatch(processing).read())
        self.seen.append(rows)
        run.end(processing, [{"key": key, "n": n} for key, n in {"rows": len(rows), **others}.items()])
        return run

    def commit(self, run: StageRun) -> None:
        """Commit as a committer that has just started."""
        commit = run.commit_of([update(state) for state in self.states])
        commit.complete()
        commit.try_to_commit()

    def run(self, run_id: str, **others: int) -> None:
        self.commit(self.processed(run_id, **others))

    def committed(self) -> list[int]:
        """The transactions that the ledger holds for committed."""
        spec = self.stage.spec
        view = topology_view(self.stage.store, spec.ledger(self.stage.store).paths)
        return sorted(each.txid for each in view.transactions if each.status == "COMMITTED")


def counted(url: str, label: str) -> SqlState:
    return SqlState.from_url(url, table="counted", keys=["key"], values={"n": Sum()}, label=label)


def total(state: SqlState) -> int:
    return sum(row["n"] for row in state.read())


def restored(server: LocalPostgres, database: str, backup: str) -> None:
    """Put a whole database back to a copy of it."""
    _admin(server, f"DROP DATABASE {database} WITH (FORCE)", f"ALTER DATABASE {backup} RENAME TO {database}")


def backed_up(server: LocalPostgres, database: str, backup: str) -> None:
    ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    _admin(server, ended, f"CREATE DATABASE {backup} TEMPLATE {database}")


def _admin(server: LocalPostgres, *statements: str) -> None:
    engine = sa.create_engine(server.url(), poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connected:
        for statement in statements:
            connected.exec_driver_sql(statement)


def test_a_commit_fails_while_its_database_is_unreachable_and_the_next_try_counts_once(
    store: ZooKeeperStore, zookeeper_root: str, postgres: LocalPostgres, tmp_path: Path
) -> None:
    near, away = (
        counted(f"sqlite:///{tmp_path / 'near.db'}", "near"),
        counted(postgres.url(postgres.new_database()), "away"),
    )
    topology = Numbered(store, zookeeper_root, near, away)
    topology.run("r1")
    before = total(near)
    assert before == total(away) > 0
    run = topology.processed("r2")
    postgres.stop()
    try:
        with pytest.raises(
            StateUnavailable, match="State 'away.counted' .*cannot be reached: .*Clear the commit"
        ) as away_now:
            topology.commit(run)
        assert "\n" not in str(away_now.value)
        assert total(near) == before, "no state is written before all can be reached"
        assert topology.committed() == [1]
    finally:
        postgres.start()
    topology.commit(run)
    assert topology.committed() == [1, 2]
    assert total(near) == total(away) == 2 * before


def test_a_database_restored_from_an_older_backup_is_refused_with_the_repair_command(
    store: ZooKeeperStore, zookeeper_root: str, postgres: LocalPostgres, tmp_path: Path
) -> None:
    database = postgres.new_database()
    url = postgres.url(database)
    kept, state = counted(f"sqlite:///{tmp_path / 'kept.db'}", "kept"), counted(url, "shop")
    topology = Numbered(store, zookeeper_root, kept, state)
    topology.run("r1")
    backed_up(postgres, database, f"{database}_backup")
    topology.run("r2")
    restored(postgres, database, f"{database}_backup")
    held = [total(kept), total(counted(url, "shop"))]
    assert held[0] == 2 * held[1] > 0
    topology.states = kept, counted(url, "shop")
    run = topology.processed("r3")
    with pytest.raises(StateBehind, match=r"airflow tx repair numbers --state-lost shop\.counted") as refused:
        topology.commit(run)
    assert "\n" not in str(refused.value)
    assert [total(each) for each in topology.states] == held, "nothing is written on top of an older backup"
    topology.stage.spec.ledger(store).run(state_lost, "shop.counted", Audit("ann", "the backup is all there is"))
    topology.commit(run)
    assert topology.committed() == [1, 2, 3]
    one = held[1]
    assert [total(each) for each in topology.states] == [held[0] + one, held[1] + one]


ALL, ONE, NONE = 2, 1, 0
"""Of two transactions, what a table has left."""
LOST = {
    "restored alone from a dump": ("", ONE),
    "truncated": ("TRUNCATE counted", NONE),
    "a row deleted": ("DELETE FROM counted WHERE key = 'rows'", NONE),
    "a row deleted that the last transaction did not touch": ("DELETE FROM counted WHERE key = 'first'", ALL),
}
SMALL, LARGE = 1000, 0
CASES = [
    *(pytest.param(SMALL, *lost, id=f"small-{how}") for how, lost in LOST.items()),
    *(pytest.param(LARGE, *lost, id=f"large-{how}") for how, lost in LOST.items() if lost[1] != ALL),
]


@pytest.mark.parametrize(("counted_up_to", "statement", "left"), CASES)
def test_a_table_that_lost_values_but_kept_its_fence_is_refused_with_the_repair_command(
    store: ZooKeeperStore,
    zookeeper_root: str,
    postgres: LocalPostgres,
    monkeypatch: pytest.MonkeyPatch,
    counted_up_to: int,
    statement: str,
    left: int,
) -> None:
    monkeypatch.setattr(fence, "COUNTED", counted_up_to)
    url = postgres.url(postgres.new_database())
    topology = Numbered(store, zookeeper_root, counted(url, "shop"))
    topology.run("r1", first=0)
    one = total(counted(url, "shop"))
    dump = run_tool("pg_dump", url, "--clean", "--table=counted")
    topology.run("r2")
    if statement:
        query(url, statement)
    else:
        run_tool("psql", url, "--quiet", "--set=ON_ERROR_STOP=1", given=dump)
    held = total(counted(url, "shop"))
    assert held == left * one, "no error so far"
    topology.states = (counted(url, "shop"),)
    run = topology.processed("r3")
    with pytest.raises(
        StateBehind, match=r"says 2, but .* airflow tx repair numbers --state-lost shop\.counted"
    ) as refused:
        topology.commit(run)
    assert "\n" not in str(refused.value)
    assert total(counted(url, "shop")) == held, "nothing is written on top"
    topology.stage.spec.ledger(store).run(state_lost, "shop.counted", Audit("ann", "the dump is all there is"))
    topology.commit(run)
    assert topology.committed() == [1, 2, 3]
    assert total(counted(url, "shop")) == held + one


def test_verify_finds_a_lost_row_that_the_last_commit_did_not_change_in_a_large_table(
    store: ZooKeeperStore, zookeeper_root: str, postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "COUNTED", LARGE)
    url = postgres.url(postgres.new_database())
    topology = Numbered(store, zookeeper_root, counted(url, "shop"))
    topology.run("r1", first=7)
    topology.run("r2")
    paths = topology.stage.spec.ledger(store).paths
    query(url, "DELETE FROM counted WHERE key = 'first'")
    evidence = evidence_of({"shop.counted": counted(url, "shop")}, values=True)
    (found,) = verified(ledger_evidence(store, paths), evidence).findings
    assert re.search(r"state shop\.counted: its column n adds up to \d+, and its receipts to ", found)


def run_tool(tool: str, url: str, *arguments: str, given: str = "") -> str:
    """Run a program of PostgreSQL on a database; gives what it prints."""
    address = sa.engine.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    done = subprocess.run(
        [postgres_program(tool), *arguments, address], input=given, capture_output=True, text=True, check=True
    )
    return done.stdout


class Folders:
    """Two partitions, each a folder. One that is away is not listed."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._inbox, self._away = folder / "inbox", folder / "away"
        for region in ("eu", "us"):
            (self._inbox / region).mkdir(parents=True)
            for number in range(4):
                _write(self._inbox, region, number)
        self.source = PartitionedFileSource(f"{self._inbox}/*/*.csv", 1, kind=kind)

    def leave(self) -> None:
        (self._inbox / "us").rename(self._away)

    def come_back(self) -> None:
        self._away.rename(self._inbox / "us")


class Lists:
    """Two partitions that are always listed. One that is away cannot be reached."""

    def __init__(self, folder: Path, kind: str) -> None:
        partitions = {region: [{"region": region, "number": n} for n in range(4)] for region in ("eu", "us")}
        self.source = MemorySource(partitions, kind=kind)
        self._all = self.source.rows["us"]

    def leave(self) -> None:
        self.source.rows["us"] = []

    def come_back(self) -> None:
        self.source.rows["us"] = self._all


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("made", [Folders, Lists], ids=["gone", "cannot be reached"])
def test_a_partition_that_was_unreachable_keeps_its_position_and_each_row_counts_once(
    store: ZooKeeperStore, zookeeper_root: str, tmp_path: Path, made: type[Folders | Lists], kind: str
) -> None:
    partitions = made(tmp_path, kind)
    state = counted(f"sqlite:///{tmp_path / 'state.db'}", "counts")
    topology = Numbered(store, zookeeper_root, state, source=partitions.source)
    topology.run("r1")
    partitions.leave()
    if kind == "opaque":
        topology.run("r2")
        topology.run("r3")
        assert regions(topology.seen[1:]) == {"eu"}, "the others go on without it"
    else:
        with pytest.raises(SourceError, match="partition us "):
            topology.processed("r2")
    partitions.come_back()
    # One row of each a transaction: three more have all that is left.
    for number in (4, 5, 6):
        topology.run(f"r{number}")
    texts = [f"{row['region']}{row['number']}" for rows in topology.seen for row in rows]
    assert sorted(texts) == sorted(f"{region}{number}" for region in ("eu", "us") for number in range(4))
    assert total(state) == len(texts)


def regions(seen: Sequence[Rows]) -> set[str]:
    return {row["region"] for rows in seen for row in rows}


def _write(inbox: Path, region: str, number: int) -> None:
    (inbox / region / f"{number}.csv").write_text(f"region,number\n{region},{number}\n")
