"""Trace 7: a state, or ZooKeeper, goes back in time. Refused with the right error, repaired by the command it names.

On a real ZooKeeper with real snapshots, and on SQLite files that are copied and put back.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import (
    FenceForeign,
    FenceOutranked,
    IncompleteBatch,
    LedgerBehind,
    Outranked,
    RenameRefused,
    RepairRefused,
    SkippedTransaction,
    StaleAttempt,
    StateBehind,
    StateMissing,
    StateRenamed,
    TxError,
    UnknownTransaction,
    UnreadableRecord,
)
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.attempt import TaskTry, Token
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs, ResetIncomplete, rename_state, state_lost
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.steps import end, processing
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.ledger.views.view import LedgerView, topology_view
from airflow_tx.state import Sum
from airflow_tx.state.api import Fence, StateKind
from airflow_tx.state.sql.state import SqlState
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.testing.suites.state_tools import batch_of
from airflow_tx.transaction.commit.handoff import take_skip
from tests.integration.databases import query
from tests.integration.pipeline import Pipeline

AUDIT = Audit(who="tester", why="trace 7")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalZooKeeper]:
    """Its own, because it is stopped and put back."""
    with LocalZooKeeper(fsync=False) as server:
        yield server


@pytest.fixture
def new_store(server: LocalZooKeeper) -> Iterator[Callable[[], ZooKeeperStore]]:
    """Makes a store on a client of its own: a server that went back serves no client from the future."""
    clients: list[Any] = []

    def make() -> ZooKeeperStore:
        while clients:
            disconnect(clients.pop())
        clients.append(connect(ClientConfig(server.hosts)))
        return ZooKeeperStore(clients[-1])

    yield make
    disconnect(clients.pop())


@pytest.fixture
def store(new_store: Callable[[], ZooKeeperStore]) -> ZooKeeperStore:
    return new_store()


class Databases:
    """SQLite files with one state each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def state(self, name: str, kind: str = "opaque") -> SqlState:
        url = f"sqlite:///{self._folder / name}.db"
        return SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()}, kind=kind, label=name)

    def back_up(self, name: str) -> None:
        shutil.copy(self._folder / f"{name}.db", self._folder / f"{name}.backup")

    def renamed(self, name: str) -> SqlState:
        url = f"sqlite:///{self._folder / name}.db"
        query(url, "ALTER TABLE totals RENAME TO sums")
        return SqlState.from_url(url, table="sums", keys=["key"], values={"n": Sum()}, label=name)

    def drop(self, name: str) -> None:
        query(f"sqlite:///{self._folder / name}.db", "DROP TABLE totals")

    def put_back(self, name: str) -> None:
        shutil.copy(self._folder / f"{name}.backup", self._folder / f"{name}.db")


@pytest.fixture
def databases(tmp_path: Path) -> Databases:
    return Databases(tmp_path)


def repair_named_by(error: TxError, pipeline: Pipeline) -> None:
    """Run exactly the command that the error names."""
    command = re.search(r"airflow tx repair (\S+) --(state-lost|ledger-lost)(?: (\S+))?", str(error))
    assert command is not None, error
    assert command[1] == pipeline.paths.topology
    fixes = Repairs(pipeline.ledger)
    if command[2] == "state-lost":
        pipeline.ledger.run(state_lost, command[3], AUDIT)
    else:
        fixes.ledger_lost(held_by(pipeline), pipeline.request, AUDIT)


def held_by(pipeline: Pipeline) -> list[HeldState]:
    fences = [(state, state.fence()) for state in pipeline.states]
    return [
        HeldState.of(
            state.name,
            undoable=state.kind is StateKind.OPAQUE,
            fence=fence,
            holds=state.holds,
        )
        for state, fence in fences
        if fence is not None
    ]


def snapshot(server: LocalZooKeeper, store: ZooKeeperStore, path: Path) -> None:
    store.sync()
    server.snapshot_to(path)


# --- a state went back -------------------------------------------------------------------------------------------


KINDS_AND_STATES = pytest.mark.parametrize(
    ("kind", "states"), [("opaque", "a"), pytest.param("transactional", "ab", marks=pytest.mark.long)]
)


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_state_restored_from_an_older_backup_is_refused_until_it_is_repaired(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases, kind: str
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a", kind), databases.state("b", kind)])
    pipeline.run("r1")
    databases.back_up("a")
    pipeline.run("r2")
    databases.put_back("a")
    with pytest.raises(StateBehind, match=r"committed transaction 2 to it, its fence says 1") as refusal:
        pipeline.run("r3")
    assert pipeline.totals() == [1, 3]
    repair_named_by(refusal.value, pipeline)
    pipeline.run("r3")
    pipeline.run("r4")
    assert pipeline.totals() == [1 + 3 + 4, 1 + 2 + 3 + 4]


def test_an_emptied_state_is_refused_until_it_is_repaired(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    pipeline.run("r1")
    pipeline.states[0].clear()
    with pytest.raises(StateBehind, match="its fence says nothing") as refusal:
        pipeline.run("r2")
    repair_named_by(refusal.value, pipeline)
    assert pipeline.run("r2") == 2
    assert pipeline.totals() == [2]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_state_whose_table_was_dropped_is_refused_until_it_is_repaired(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases, kind: str
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a", kind), databases.state("b", kind)])
    pipeline.run("r1")
    databases.drop("a")
    with pytest.raises(StateBehind, match=r"its fence says 1, but the written values are missing") as refusal:
        pipeline.run("r2")
    assert pipeline.totals() == [0, 1]
    repair_named_by(refusal.value, pipeline)
    pipeline.run("r2")
    pipeline.run("r3")
    assert pipeline.totals() == [2 + 3, 1 + 2 + 3]


def test_a_table_dropped_during_its_first_transaction_is_refused_until_it_is_repaired(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    begun = pipeline.begin("r1")
    pipeline.write(pipeline.acquire(begun, pipeline.process(begun)), begun.metadata)
    databases.drop("a")
    with pytest.raises(StateBehind, match="the written values are missing") as refusal:
        pipeline.run("r1")
    repair_named_by(refusal.value, pipeline)
    pipeline.run("r1")
    assert pipeline.totals() == [1]


def test_a_state_renamed_in_the_dag_is_refused_until_it_is_renamed_in_the_ledger(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a"), databases.state("b")])
    pipeline.run("r1")
    begun = pipeline.begin("r2")
    late = pipeline.acquire(begun, pipeline.process(begun))
    pipeline.write(late, begun.metadata)
    moved = databases.renamed("a")
    pipeline.states = [moved, pipeline.states[1]]
    with pytest.raises(StateMissing):  # it may hold something of transaction 2, under its old name
        pipeline.run("r2")
    moved.take_over("a.totals")
    pipeline.ledger.run(rename_state, "a.totals", "a.sums", audit=AUDIT)
    with pytest.raises(Outranked):
        pipeline.mark(late)
    pipeline.run("r2")
    pipeline.run("r3")
    assert pipeline.totals() == [1 + 2 + 3, 1 + 2 + 3]
    with pytest.raises(RenameRefused, match="has no state 'a.totals'.*Known states: a.sums, b.totals"):
        pipeline.ledger.run(rename_state, "a.totals", "a.more", audit=AUDIT)
    with pytest.raises(RenameRefused, match="already has state 'b.totals'"):
        pipeline.ledger.run(rename_state, "a.sums", "b.totals", audit=AUDIT)


def test_a_state_renamed_in_the_dag_is_refused_and_does_not_start_empty(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    pipeline.run("r1")
    pipeline.states = [databases.state("other")]
    advice = "tx state rename flights a.totals other.totals.*tx state forget flights a.totals"
    with pytest.raises(StateRenamed, match=f"no longer a.totals, which has transaction 1.*{advice}"):
        pipeline.run("r2")
    begun = pipeline.begin("r2")
    pipeline.ledger.run(end.note_skip, begun.attempt.txid, AUDIT)
    with pytest.raises(StateRenamed):
        take_skip(pipeline.ledger, 2, {state.name: state for state in pipeline.states}, log=None)
    pipeline.ledger.run(end.withdraw_skip, 2)
    pipeline.ledger.run(state_lost, "a.totals", AUDIT)  # forgotten
    pipeline.run("r2")
    assert pipeline.totals() == [2]


def test_a_dag_may_add_a_new_state_and_may_later_remove_another_state(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    one, two = databases.state("a"), databases.state("b")
    pipeline = Pipeline(store, zookeeper_root, [one])
    pipeline.run("r1")
    pipeline.states = [one, two]
    pipeline.run("r2")
    pipeline.states = [two]
    pipeline.run("r3")
    assert pipeline.totals() == [2 + 3]


def test_a_grant_from_before_the_repair_cannot_write_and_cannot_end_its_commit(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    pipeline.run("r1")
    begun = pipeline.begin("r2")
    old = pipeline.acquire(begun, pipeline.process(begun))
    pipeline.states[0].clear()
    pipeline.ledger.run(state_lost, pipeline.states[0].name, AUDIT)
    with pytest.raises(StateBehind):
        pipeline.write(old, begun.metadata)
    with pytest.raises(Outranked):
        pipeline.mark(old)
    pipeline.run("r2")
    assert pipeline.totals() == [2]


def test_a_repair_of_a_lost_state_is_refused_if_the_ledger_does_not_know_the_state(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    pipeline.run("r1")
    with pytest.raises(RepairRefused, match=r"no committed transaction of state 'nosuch'\. .*Known states: a\.totals"):
        pipeline.ledger.run(state_lost, "nosuch", AUDIT)


# --- ZooKeeper went back -----------------------------------------------------------------------------------------


@KINDS_AND_STATES
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before begin", marks=pytest.mark.long),
        pytest.param("after begin", marks=pytest.mark.lead),
        "after the grant",
    ],
)
def test_a_zookeeper_restored_from_an_older_snapshot_is_refused_until_it_is_repaired(
    server: LocalZooKeeper,
    store: ZooKeeperStore,
    new_store: Callable[[], ZooKeeperStore],
    zookeeper_root: str,
    databases: Databases,
    tmp_path: Path,
    kind: str,
    states: str,
    moment: str,
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state(name, kind) for name in states], kind=kind)
    pipeline.run("r1")
    if moment == "before begin":
        snapshot(server, store, tmp_path / "snapshot")
        pipeline.run("r2")
    else:
        begun = pipeline.begin("r2")
        processed = pipeline.process(begun)
        if moment == "after begin":
            snapshot(server, store, tmp_path / "snapshot")
            grant = pipeline.acquire(begun, processed)
        else:
            grant = pipeline.acquire(begun, processed)
            snapshot(server, store, tmp_path / "snapshot")
        pipeline.write(grant, begun.metadata)
        pipeline.mark(grant)
    pipeline.run("r3")
    server.restore_from(tmp_path / "snapshot")
    store = pipeline.store = new_store()

    with pytest.raises(LedgerBehind, match="its fence says transaction 3") as refusal:
        pipeline.run("r2")
    assert pipeline.totals() == [6] * len(states)
    repair_named_by(refusal.value, pipeline)

    view = topology_view(store, pipeline.paths)
    assert (view.current, view.allocated, view.transactions[0].txid) == (4, 3, 1)
    assert pipeline.run("r4") == 4
    assert pipeline.run("r5") == 5
    assert pipeline.totals() == [1 + 2 + 3 + 4 + 5] * len(states)


@KINDS_AND_STATES
@pytest.mark.parametrize(
    "by_interval", [False, pytest.param(True, marks=pytest.mark.long)], ids=["by position", "by data interval"]
)
def test_a_zookeeper_that_lost_exactly_one_transaction_is_refused_until_it_is_repaired(
    server: LocalZooKeeper,
    store: ZooKeeperStore,
    new_store: Callable[[], ZooKeeperStore],
    zookeeper_root: str,
    databases: Databases,
    tmp_path: Path,
    kind: str,
    states: str,
    by_interval: bool,
) -> None:
    pipeline = Pipeline(
        store,
        zookeeper_root,
        [databases.state(name, kind) for name in states],
        kind=kind,
        by_interval=by_interval,
    )
    pipeline.run("r1")
    snapshot(server, store, tmp_path / "snapshot")
    assert pipeline.run("r2") == 2
    server.restore_from(tmp_path / "snapshot")
    pipeline.store = new_store()
    for _ in range(3):  # a retry has a higher epoch, a replay a higher attempt
        with pytest.raises(
            LedgerBehind, match=r"its fence says transaction 2 \(another transaction with the same number"
        ) as refusal:
            assert pipeline.run("r3") == 2
    assert pipeline.totals() == [1 + 2] * len(states)
    late = pipeline.begin("r3")
    repair_named_by(refusal.value, pipeline)
    with pytest.raises(StaleAttempt, match="of another transaction with the same txid"):
        pipeline.complete(late)
    # Its own transaction is committed, and that of the run that began in between was another one.
    with pytest.raises(AssertionError, match="AlreadyCommitted"):
        pipeline.run("r2")
    assert pipeline.run("r3") == 3
    assert pipeline.run("r4") == 4
    assert pipeline.totals() == [1 + 2 + 3 + 4] * len(states)


def test_a_run_that_began_after_the_snapshot_is_never_reported_as_committed(
    server: LocalZooKeeper,
    store: ZooKeeperStore,
    new_store: Callable[[], ZooKeeperStore],
    zookeeper_root: str,
    databases: Databases,
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")], by_interval=True)
    pipeline.run("r1")
    open_before = pipeline.begin("r2")
    snapshot(server, store, tmp_path / "snapshot")
    for run in ("r2", "r3", "r4"):
        pipeline.run(run)
    server.restore_from(tmp_path / "snapshot")
    pipeline.store = new_store()
    assert pipeline.begin("r7").attempt.txid == 3
    assert pipeline.begin("r8").attempt.txid == 4
    with pytest.raises(LedgerBehind) as refusal:
        pipeline.run("r2")
    repair_named_by(refusal.value, pipeline)
    for committed in ("r1", "r2", "r4"):  # of r3 nobody knows any more
        with pytest.raises(AssertionError, match="AlreadyCommitted"):
            pipeline.begin(committed)
    with pytest.raises(StaleAttempt):
        pipeline.complete(open_before)
    assert [pipeline.run("r7"), pipeline.run("r8")] == [5, 6]
    assert pipeline.totals() == [1 + 2 + 3 + 4 + 7 + 8]


def test_a_rebuild_keeps_the_rows_of_a_readmission_that_has_not_committed(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")], by_interval=True)
    pipeline.run("r1")
    pipeline.begin("r2")
    pipeline.skip(2)
    pipeline.ledger.run(end.note_readmission, 2, AUDIT)
    assert pipeline.begin("r2").attempt.txid == 3
    Repairs(pipeline.ledger).ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    view = topology_view(store, pipeline.paths)
    assert [(each.txid, each.status) for each in view.transactions if each.txid == 2] == [(2, "SKIPPED")]
    pipeline.ledger.run(end.note_readmission, 2, AUDIT)
    assert pipeline.run("r2") == 3
    assert pipeline.totals() == [1 + 2]


def test_a_skip_that_the_ledger_lost_is_restored_from_the_states(
    server: LocalZooKeeper,
    store: ZooKeeperStore,
    new_store: Callable[[], ZooKeeperStore],
    zookeeper_root: str,
    databases: Databases,
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")], by_interval=True)
    pipeline.run("r1")
    snapshot(server, store, tmp_path / "snapshot")
    pipeline.begin("r2")
    pipeline.skip(2)
    server.restore_from(tmp_path / "snapshot")
    pipeline.store = new_store()
    Repairs(pipeline.ledger).ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    with pytest.raises(SkippedTransaction, match="airflow tx readmit flights 2"):
        pipeline.begin("r2")
    pipeline.ledger.run(end.note_readmission, 2, AUDIT)
    assert pipeline.run("r2") == 3
    assert pipeline.totals() == [1 + 2]


@pytest.mark.lead
def test_a_grant_that_a_restored_ledger_does_not_know_cannot_write_after_the_repair(
    server: LocalZooKeeper,
    store: ZooKeeperStore,
    new_store: Callable[[], ZooKeeperStore],
    zookeeper_root: str,
    databases: Databases,
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    pipeline.run("r1")
    snapshot(server, store, tmp_path / "snapshot")
    pipeline.run("r2")
    begun = pipeline.begin("zombie")
    zombie = pipeline.acquire(begun, pipeline.process(begun))
    server.restore_from(tmp_path / "snapshot")
    pipeline.store = new_store()
    Repairs(pipeline.ledger).ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    pipeline.run("r3")
    with pytest.raises(FenceOutranked):
        pipeline.write(zombie, 100)
    assert pipeline.totals() == [1 + 2 + 3]


@pytest.mark.lead
def test_a_run_that_was_open_in_the_snapshot_begins_again_and_a_committed_run_stays_committed(
    server: LocalZooKeeper,
    store: ZooKeeperStore,
    new_store: Callable[[], ZooKeeperStore],
    zookeeper_root: str,
    databases: Databases,
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    pipeline.run("r1")
    for run in ("r2", "r3", "r4"):
        pipeline.begin(run)
    snapshot(server, store, tmp_path / "snapshot")
    pipeline.run("r2")
    pipeline.run("r3")
    server.restore_from(tmp_path / "snapshot")
    pipeline.store = new_store()
    Repairs(pipeline.ledger).ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    with pytest.raises(AssertionError, match="AlreadyCommitted"):
        pipeline.run("r3")
    assert pipeline.run("r4") == 4
    assert pipeline.totals() == [1 + 2 + 3 + 4]


def test_a_lost_ledger_is_rebuilt_from_the_states(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    lost = Pipeline(store, f"{zookeeper_root}/lost", [databases.state("a"), databases.state("b")])
    for run in ("r1", "r2", "r3"):
        lost.run(run)
    before = topology_view(store, lost.paths).record
    pipeline = Pipeline(store, f"{zookeeper_root}/new", lost.states)
    Repairs(pipeline.ledger).ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    after = topology_view(store, pipeline.paths).record
    assert (after.incarnation, after.generation) == (before.incarnation, before.generation + 1)
    assert after.states == before.states == {"a.totals": 3, "b.totals": 3}
    assert pipeline.run("r4") == 4
    assert pipeline.totals() == [10, 10]


def test_a_new_ledger_is_refused_by_the_states_until_it_is_rebuilt_from_them(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    lost = Pipeline(store, f"{zookeeper_root}/lost", [databases.state("a")])
    lost.run("r1")
    before = topology_view(store, lost.paths).record
    pipeline = Pipeline(store, f"{zookeeper_root}/new", lost.states)
    with pytest.raises(FenceForeign) as refusal:
        pipeline.run("r2")
    repair_named_by(refusal.value, pipeline)
    after = topology_view(store, pipeline.paths).record
    assert (after.incarnation, after.generation) == (before.incarnation, before.generation + 1)
    assert pipeline.run("r2") == 2
    assert pipeline.totals() == [3]


def test_a_rebuild_does_not_take_over_states_of_another_topology(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    owner = Pipeline(store, zookeeper_root, [databases.state("a")], topology="owner")
    owner.run("r1")
    other = Pipeline(store, zookeeper_root, owner.states)
    with pytest.raises(FenceForeign) as refusal:
        other.run("r1")
    with pytest.raises(RepairRefused, match="its states belong to topology 'owner'"):
        repair_named_by(refusal.value, other)
    owner.run("r2")
    assert owner.totals() == [3]


def test_a_repair_is_refused_while_an_unreadable_topology_may_own_the_states(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    lost = Pipeline(store, f"{zookeeper_root}/lost", [databases.state("a")])
    lost.run("r1")
    pipeline = Pipeline(store, f"{zookeeper_root}/new", lost.states)
    broken = Pipeline(store, f"{zookeeper_root}/new", topology="broken")
    broken.begin("r1")
    store.multi([], [Put(broken.paths.record, b'{"format": 99}')])
    fixes = Repairs(pipeline.ledger)
    with pytest.raises(UnreadableRecord, match=broken.paths.record):
        fixes.ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    with pytest.raises(ResetIncomplete):
        Repairs(broken.ledger).reset(broken.request, AUDIT, clear=_unreachable)
    fixes.ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    assert pipeline.run("r2") == 2


def test_a_ledger_with_committed_transactions_is_not_rebuilt_from_other_states(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    lost = Pipeline(store, f"{zookeeper_root}/lost", [databases.state("a")])
    lost.run("r1")
    pipeline = Pipeline(store, f"{zookeeper_root}/new")
    pipeline.run("r1")
    pipeline.states = lost.states
    with pytest.raises(FenceForeign) as refusal:
        pipeline.run("r2")
    with pytest.raises(RepairRefused, match="has committed transactions of its own"):
        repair_named_by(refusal.value, pipeline)


@pytest.mark.parametrize(("raised", "written"), [(1, 0), (2, 0), (2, 1)])
def test_a_rebuild_reopens_a_transaction_that_was_killed_between_two_states(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases, raised: int, written: int
) -> None:
    lost = Pipeline(store, f"{zookeeper_root}/lost", [databases.state("a"), databases.state("b")])
    lost.run("r1")
    begun = lost.begin("r2")
    grant = lost.acquire(begun, lost.process(begun))
    for state in lost.states[:raised]:
        state.raise_fence(grant)
    for state in lost.states[:written]:
        state.write(grant, [{"key": "total", "n": begun.metadata}])
    pipeline = Pipeline(store, f"{zookeeper_root}/new", lost.states)
    repaired = Repairs(pipeline.ledger).ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    assert (repaired.current, repaired.generation) == (2, 2)
    assert pipeline.run("r2") == 2
    assert pipeline.run("r3") == 3
    assert pipeline.totals() == [6, 6]


def test_a_rebuild_works_if_the_first_transaction_was_killed_between_two_states(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    lost = Pipeline(store, f"{zookeeper_root}/lost", [databases.state("a"), databases.state("b")])
    begun = lost.begin("r1")
    grant = lost.acquire(begun, lost.process(begun))
    lost.states[0].raise_fence(grant)
    pipeline = Pipeline(store, f"{zookeeper_root}/new", lost.states)
    Repairs(pipeline.ledger).ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    assert pipeline.run("r1") == 1
    assert pipeline.run("r2") == 2
    assert pipeline.totals() == [3, 3]


def test_a_rebuild_is_refused_if_a_partly_written_transaction_cannot_be_undone(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    states = [databases.state("a", "transactional"), databases.state("b", "transactional")]
    lost = Pipeline(store, f"{zookeeper_root}/lost", states, kind="transactional")
    begun = lost.begin("r1")
    grant = lost.acquire(begun, lost.process(begun))
    for state in states:
        state.raise_fence(grant)
    states[0].write(grant, [{"key": "total", "n": 1}])
    pipeline = Pipeline(store, f"{zookeeper_root}/new", states, kind="transactional")
    with pytest.raises(RepairRefused, match=r"complete in state 'a\.totals', which cannot undo it"):
        Repairs(pipeline.ledger).ledger_lost(held_by(pipeline), pipeline.request, AUDIT)


@pytest.mark.parametrize("written", [0, 1])
def test_a_rebuild_reopens_a_transaction_only_if_no_state_without_undo_holds_the_transaction(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases, written: int
) -> None:
    state = databases.state("a", "transactional")
    lost = Pipeline(store, f"{zookeeper_root}/lost", [state], kind="transactional")
    lost.run("r1")
    begun = lost.begin("r2")
    grant = lost.acquire(begun, lost.process(begun))
    databases.back_up("a")
    state.raise_fence(grant)
    state.write(grant, [{"key": f"key {number}", "n": 1} for number in range(written)], complete=False)
    pipeline = Pipeline(store, f"{zookeeper_root}/new", [state], kind="transactional")
    fixes = Repairs(pipeline.ledger)
    if written:
        told = r"transaction 2 is half written in state 'a\.totals', which cannot undo it.*Restore all states"
        with pytest.raises(RepairRefused, match=told):
            fixes.ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
        databases.put_back("a")
        held = held_by(pipeline)
    else:
        held = [replace(each, holds=False) for each in held_by(pipeline)]
    fixes.ledger_lost(held, pipeline.request, AUDIT)
    assert pipeline.run("r2") == 2
    assert pipeline.totals() == [1 + 2]


def test_a_rebuild_from_states_at_different_transactions_is_refused(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a"), databases.state("b")])
    pipeline.run("r1")
    databases.back_up("a")
    pipeline.run("r2")
    pipeline.run("r3")
    fixes = Repairs(pipeline.ledger)
    databases.put_back("a")
    with pytest.raises(RepairRefused, match=r"'a\.totals' is at transaction 1, but another state is at transaction 3"):
        fixes.ledger_lost(held_by(pipeline), pipeline.request, AUDIT)
    with pytest.raises(RepairRefused, match="the ledger is at transaction 4, and the states say that 2 is next"):
        fixes.ledger_lost(held_by(pipeline)[:1], pipeline.request, AUDIT)
    with pytest.raises(RepairRefused, match="no state of the DAG has a fence"):
        fixes.ledger_lost([], pipeline.request, AUDIT)
    foreign = HeldState("c.totals", True, True, "other", Token(1, 3, 1, 1, "n"), True, batch_of())
    with pytest.raises(RepairRefused, match="different ledgers"):
        fixes.ledger_lost([*held_by(pipeline), foreign], pipeline.request, AUDIT)


@pytest.mark.parametrize("batch", ["null", "", "[]", '{"rows":1}'])
def test_a_fence_without_a_batch_is_not_used_for_a_rebuild(batch: str) -> None:
    fence = Fence("i", Token(1, 3, 1, 1, "n"), True, batch)
    with pytest.raises(UnreadableRecord, match=r"the fence of state 'a\.totals'"):
        HeldState.of("a.totals", undoable=True, fence=fence)


# --- everything anew ---------------------------------------------------------------------------------------------


def test_a_reset_starts_a_new_empty_ledger(store: ZooKeeperStore, zookeeper_root: str, databases: Databases) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a"), databases.state("b")])
    pipeline.run("r1")
    pipeline.run("r2")
    pipeline.process(pipeline.begin("r3"))
    before = topology_view(store, pipeline.paths).record.incarnation

    def clear() -> None:
        for state in pipeline.states:
            state.clear()

    Repairs(pipeline.ledger).reset(pipeline.request, AUDIT, clear=clear)
    view = topology_view(store, pipeline.paths)
    assert (view.current, view.allocated, view.transactions, view.record.states) == (1, 0, (), {})
    assert view.record.incarnation != before
    assert [pipeline.run("r1"), pipeline.run("r2")] == [1, 2]
    assert pipeline.totals() == [3, 3]


def test_a_task_from_before_a_reset_cannot_ack_even_if_record_versions_match(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    begun, zombie, own = pipeline.begin("r1"), pipeline.ledger, TaskTry("task0", -1, "try 1")
    zombie.start(begun.attempt, own)
    Repairs(pipeline.ledger).reset(pipeline.request, AUDIT, clear=pipeline.states[0].clear)
    again = pipeline.begin("r1")
    assert again.attempt == begun.attempt
    pipeline.ledger.start(again.attempt, TaskTry("task0", -1, "try 2"))
    with pytest.raises(StaleAttempt, match="of another transaction with the same txid"):
        zombie.run(processing.ack, begun.attempt, own, rows=1)
    with pytest.raises(IncompleteBatch):
        pipeline.complete(again)


def test_an_interrupted_reset_keeps_the_topology_closed_and_reports_the_reset(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    pipeline.run("r1")
    fixes = Repairs(pipeline.ledger)
    with pytest.raises(
        ResetIncomplete, match=r"not complete: a state cannot be reached\. .*repeat: airflow tx repair flights --reset"
    ):
        fixes.reset(pipeline.request, AUDIT, clear=_unreachable)
    for step in (lambda: pipeline.begin("r2"), lambda: topology_view(store, pipeline.paths)):
        with pytest.raises(UnreadableRecord, match="being reset: airflow tx repair flights --reset"):
            step()
    fixes.reset(pipeline.request, AUDIT, clear=pipeline.states[0].clear)
    assert pipeline.run("r1") == 1


def test_a_reset_of_a_lost_ledger_creates_a_new_ledger(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    lost = Pipeline(store, f"{zookeeper_root}/lost", [databases.state("a")])
    lost.run("r1")
    pipeline = Pipeline(store, f"{zookeeper_root}/new", lost.states)
    Repairs(pipeline.ledger).reset(pipeline.request, AUDIT, clear=pipeline.states[0].clear)
    assert pipeline.run("r1") == 1
    assert pipeline.totals() == [1]


def _unreachable() -> None:
    raise RuntimeError("a state cannot be reached")


def test_every_repair_is_recorded_with_person_time_and_reason(
    store: ZooKeeperStore, zookeeper_root: str, databases: Databases
) -> None:
    pipeline = Pipeline(store, zookeeper_root, [databases.state("a")])
    pipeline.run("r1")
    fixes = Repairs(pipeline.ledger)
    pipeline.ledger.run(state_lost, "a.totals", Audit("ada", "the disk died"))
    fixes.ledger_lost(held_by(pipeline), pipeline.request, Audit("bob", ""))
    fixes.reset(pipeline.request, Audit("eve", "start over"), clear=pipeline.states[0].clear)
    noted = LedgerView(store, pipeline.paths).repairs()
    assert [(each.number, each.what, each.who, each.why, each.generation) for each in noted] == [
        (1, "state-lost", "ada", "the disk died", 2),
        (2, "ledger-lost", "bob", "", 3),
        (3, "reset", "eve", "start over", 1),
    ]
    assert all(each.when and each.told for each in noted)


def test_a_topology_that_does_not_exist_cannot_be_repaired(store: ZooKeeperStore, zookeeper_root: str) -> None:
    pipeline = Pipeline(store, zookeeper_root)
    with pytest.raises(UnreadableRecord, match="missing"):
        pipeline.ledger.run(state_lost, "a", AUDIT)
    with pytest.raises(UnknownTransaction, match="topology 'flights'"):
        topology_view(store, pipeline.paths)


def test_a_connection_to_an_older_ensemble_is_reported_and_the_right_ensemble_still_works(
    databases: Databases, tmp_path: Path
) -> None:
    copied = tmp_path / "copied"
    with LocalZooKeeper(fsync=False) as newer, LocalZooKeeper(fsync=False) as older:
        client = connect(ClientConfig(newer.hosts))
        right = Pipeline(ZooKeeperStore(client), "/tx", [databases.state("a")])
        right.run("r1")
        disconnect(client)
        newer.snapshot_to(copied)
        older.restore_from(copied)
        clients = [connect(ClientConfig(each.hosts)) for each in (newer, older)]
        right, wrong = (Pipeline(ZooKeeperStore(each), "/tx", [databases.state("a")]) for each in clients)
        right.run("r2")
        with pytest.raises(LedgerBehind) as refused:
            wrong.run("r2")
        first = "First check that its connection names the right ZooKeeper"
        assert str(refused.value.advice).startswith(first)
        assert str(refused.value).index(first) < str(refused.value).index("--ledger-lost")
        assert "\n" not in str(refused.value)
        right.run("r3")  # as the connection names the right one again
        assert right.totals() == [6]
        for each in clients:
            disconnect(each)
