"""A topology gets another name, another DAG, or an end; whatever dies in between, the command can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_tx.base.errors import (
    FenceForeign,
    MoveRefused,
    OutcomeUnknown,
    RequirementFailed,
    TopologyClaimed,
    UnreadableRecord,
)
from airflow_tx.ledger.api import Paths, Requirement, Store, Write, topologies
from airflow_tx.ledger.audit.move import Mover
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.state import MemoryState, Sum
from tests.integration.pipeline import Pipeline

AUDIT = Audit("ann", "the DAG was renamed")


class Dying(Exception):
    """The process is killed."""


class DyingStore(MemoryStore):
    """Kills who writes: after so many multis, before the next one or once it is done."""

    left: int | None = None
    done = False

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        if self.left == 0:
            if self.done:
                super().multi(requirements, writes)
            raise Dying
        self.left = None if self.left is None else self.left - 1
        super().multi(requirements, writes)


class HeldStore(MemoryStore):
    """Holds back the multi of one process, and lets it happen before the n-th multi of a rename."""

    held: tuple[Sequence[Requirement], Sequence[Write]] | None = None
    holds = False
    left: int | None = None
    happened: bool | None = None

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        if self.holds:
            self.held = (requirements, writes)
            raise Dying
        if self.left == 0 and self.held is not None:
            self._release(*self.held)
        self.left = None if self.left is None else self.left - 1
        super().multi(requirements, writes)

    def _release(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        self.held = None
        try:
            super().multi(requirements, writes)
            self.happened = True
        except RequirementFailed:
            self.happened = False


def pipelines(store: Store, root: str) -> tuple[Pipeline, Pipeline]:
    """A topology of both names on one state, of which the second one is what the renamed DAG is."""
    state = MemoryState("totals", values={"n": Sum()})
    old, new = (Pipeline(store, root, [state], topology=name) for name in ("old", "new"))
    old.request, new.request = TopologyRequest("old", "opaque", 8), TopologyRequest("new", "opaque", 8)
    new._tries = old._tries  # later tries are greater, in whatever DAG
    return old, new


def grown(store: Store, root: str) -> tuple[Pipeline, Pipeline]:
    """With final, skipped and open transactions."""
    old, new = pipelines(store, root)
    for run in ("r1", "r2", "r3"):
        old.run(run)
    old.process(old.begin("r4"))
    old.begin("r5")
    return old, new


def rename(old: Pipeline, new: Pipeline) -> Any:
    return Mover(old.ledger).rename(new.paths, "new", AUDIT)


def records(store: Store, path: str) -> dict[str, bytes]:
    node, children = store.get(path), store.children(path)
    found = {path: node.data} if node is not None else {}
    for name in children.names if children else ():
        found |= records(store, f"{path}/{name}")
    return found


def test_a_renamed_topology_continues_with_its_states_and_records_its_old_name(
    each_store: Store, zookeeper_root: str
) -> None:
    old, new = grown(each_store, zookeeper_root)
    assert rename(old, new).current == 4
    assert topologies(each_store, zookeeper_root) == ("new",)
    assert records(each_store, old.paths.base) == {}
    view = topology_view(each_store, new.paths)
    assert (view.record.dag_id, view.current, view.allocated) == ("new", 4, 5)
    assert {each.txid: each.status for each in view.transactions if each.open} == {4: "PROCESSED", 5: "PROCESSING"}
    assert [(each.what, each.told, each.who, each.why) for each in view.repairs] == [
        ("rename", "it was called old, of DAG old", "ann", "the DAG was renamed")
    ]
    assert [new.run(run) for run in ("r4", "r5", "r6")] == [4, 5, 6]
    assert new.totals() == [21]


def test_a_rename_replaces_transactions_that_the_renamed_dag_began_under_the_new_name(
    each_store: Store, zookeeper_root: str
) -> None:
    old, new = grown(each_store, zookeeper_root)
    begun = new.begin("r1")
    grant = new.acquire(begun, new.process(begun))
    with pytest.raises(FenceForeign, match="If the DAG was renamed: airflow tx rename OLD new --why TEXT"):
        new.write(grant, begun.metadata)
    rename(old, new)
    assert [new.run(run) for run in ("r4", "r5", "r6")] == [4, 5, 6]
    assert new.totals() == [21]


def test_a_topology_cannot_be_renamed_to_a_topology_that_has_committed_transactions(
    each_store: Store, zookeeper_root: str
) -> None:
    old, new = grown(each_store, zookeeper_root)
    other = Pipeline(each_store, zookeeper_root, [MemoryState("other", values={"n": Sum()})], topology="new")
    other.run("r1")
    before = records(each_store, zookeeper_root)
    with pytest.raises(MoveRefused, match="topology new of DAG 'dag' has committed transactions of its own"):
        rename(old, new)
    assert records(each_store, zookeeper_root) == before


def test_a_renamed_dag_continues_its_topology_after_a_person_assigns_the_topology_to_it(
    each_store: Store, zookeeper_root: str
) -> None:
    old, new = grown(each_store, zookeeper_root)
    old.request = new.request
    with pytest.raises(TopologyClaimed, match="If that DAG was renamed: airflow tx rename old --dag-id new --why TEXT"):
        old.begin("r6")
    Mover(old.ledger).claim("new", AUDIT)
    assert [old.run(run) for run in ("r4", "r5", "r6")] == [4, 5, 6]
    (noted,) = topology_view(each_store, old.paths).repairs
    assert (noted.told, noted.why) == ("it belongs to DAG new, and belonged to DAG old", "the DAG was renamed")


def test_a_command_on_a_topology_during_its_rename_is_refused_with_the_new_name(zookeeper_root: str) -> None:
    store = DyingStore()
    old, new = grown(store, zookeeper_root)
    store.left = 2
    with pytest.raises(Dying):
        rename(old, new)
    store.left = None
    for pipeline in (old, new):
        with pytest.raises(UnreadableRecord, match="being renamed to new: airflow tx rename old new --why TEXT"):
            pipeline.begin("r9")
    with pytest.raises(MoveRefused, match="being renamed to new"):
        Mover(old.ledger).close_for_deletion()
    with pytest.raises(MoveRefused, match="being renamed to new"):
        Mover(old.ledger).rename(Paths(zookeeper_root, "third"), "third", AUDIT)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_a_rename_killed_at_any_step_is_completed_by_the_same_command(
    zookeeper_root: str, monkeypatch: pytest.MonkeyPatch, *, done: bool, begun: bool
) -> None:
    monkeypatch.setattr("airflow_tx.ledger.audit.move._TOGETHER", 5)
    for left in range(1000):
        store = DyingStore()
        old, new = grown(store, zookeeper_root)
        if begun:
            new.begin("r1")
        store.left, store.done = left, done
        try:
            rename(old, new)
        except Dying:
            store.left = None
            if store.get(old.paths.record) is not None:
                rename(old, new)
        else:
            assert left > 5
            break
        assert topologies(store, zookeeper_root) == ("new",)
        assert records(store, old.paths.base) == {}
        assert [new.run(run) for run in ("r4", "r5", "r6")] == [4, 5, 6]
        assert new.totals() == [21]


def test_an_older_rename_call_is_refused_after_a_newer_call_has_taken_over(zookeeper_root: str) -> None:
    store = DyingStore()
    old, new = grown(store, zookeeper_root)
    first = Mover(old.ledger)
    op = first._close("being renamed to new: x", new.paths, "airflow tx rename old new --why TEXT")
    rename(old, new)
    before = records(store, zookeeper_root)
    with pytest.raises(MoveRefused, match="another call of the command has taken over"):
        Mover(new.ledger)._guarded(op, Mover(new.ledger)._emptied())
    assert records(store, zookeeper_root) == before


@pytest.mark.parametrize("run", ["r4", "r5", "r6"])
def test_begin_is_refused_after_a_rename_has_closed_the_ledger(
    zookeeper_root: str, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    monkeypatch.setattr("airflow_tx.ledger.audit.move._TOGETHER", 5)
    happened = []
    for left in range(1000):
        store = HeldStore()
        old, new = grown(store, zookeeper_root)
        store.holds = True
        with pytest.raises(Dying):
            old.begin(run)
        store.holds, store.left = False, left
        rename(old, new)
        if store.held is not None:
            break
        happened.append(store.happened)
        assert [new.run(each) for each in ("r4", "r5", "r6")] == [4, 5, 6]
        assert new.totals() == [21]
    assert happened == [True, *[False] * (len(happened) - 1)]
    assert len(happened) > 5


@pytest.mark.parametrize("done", [False, True])
def test_a_deletion_killed_at_any_step_is_completed_by_the_same_command(
    zookeeper_root: str, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    monkeypatch.setattr("airflow_tx.ledger.audit.move._TOGETHER", 5)
    for left in range(1000):
        store = DyingStore()
        old, _ = grown(store, zookeeper_root)
        store.left, store.done = left, done
        try:
            mover = Mover(old.ledger)
            mover.close_for_deletion()
            mover.delete()
        except Dying:
            store.left = None
            if store.get(old.paths.record) is not None:
                assert Mover(old.ledger).record().states == {"totals": 3}
                Mover(old.ledger).close_for_deletion()
                Mover(old.ledger).delete()
        else:
            assert left > 5
            break
        assert records(store, old.paths.base) == {}


def test_a_deletion_is_refused_if_a_transaction_has_begun_since_the_runs_were_read(zookeeper_root: str) -> None:
    store = MemoryStore()
    old, _ = grown(store, zookeeper_root)
    mover = Mover(old.ledger)
    allocated = mover.allocated()
    old.begin("r6")
    told = "transaction 6 has begun since the command checked the runs of open transactions"
    with pytest.raises(MoveRefused, match=told):
        mover.close_for_deletion(allocated)
    assert [old.run(run) for run in ("r4", "r5", "r6")] == [4, 5, 6]
    mover.close_for_deletion(mover.allocated())
    mover.delete()
    assert records(store, old.paths.base) == {}


def test_a_deletion_ends_even_if_the_reply_to_its_last_write_is_lost(zookeeper_root: str) -> None:
    class Losing(MemoryStore):
        def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
            super().multi(requirements, writes)
            if self.get(f"{zookeeper_root}/old") is None and any(write.path.endswith("/old") for write in writes):
                raise OutcomeUnknown(paths="old", reason="lost")

    old, _ = grown(Losing(), zookeeper_root)
    Mover(old.ledger).close_for_deletion()
    Mover(old.ledger).delete()
    assert records(old.store, old.paths.base) == {}
