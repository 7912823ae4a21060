"""A topology that is renamed, claimed or deleted: what stands in its way, in which portions it goes, who may go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_tx.base.errors import MoveRefused, OutcomeUnknown, UnknownTransaction, UnreadableRecord
from airflow_tx.ledger.api import Create, Delete, Paths, Put, Requirement, Write
from airflow_tx.ledger.audit import move
from airflow_tx.ledger.audit.move import Mover, mark_of
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import TopologyRecord, decode
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.state import MemoryState, Sum
from tests.model.driver import Run, Topology

AUDIT = Audit("ada", "the DAG was renamed")
NEW = Paths("/tx", "new")
RENAME = "airflow tx rename trace new --why TEXT"


class Listing(MemoryStore):
    """Lists the writes of every multi.

    :ivar before: what another process does before the next multi; the answer to that multi is lost if it returns True.
    """

    def __init__(self) -> None:
        super().__init__()
        self.multis: list[Sequence[Write]] = []
        self.before: Any = None

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        before, self.before = self.before, None
        lost = before is not None and before()
        super().multi(requirements, writes)
        self.multis.append(writes)
        if lost:
            raise OutcomeUnknown(paths="?", reason="lost")


@pytest.fixture
def store() -> Listing:
    return Listing()


@pytest.fixture
def topology(store: Listing) -> Topology:
    """Transaction 1 is committed, transaction 2 is open."""
    made = Topology(lambda: store, "/tx", [])
    Run(made, "r1").whole(1)
    Run(made, "r2").begin(1)
    return made


@pytest.fixture
def mover(topology: Topology) -> Mover:
    return Mover(topology.ledger())


def record(store: MemoryStore, paths: Paths) -> TopologyRecord:
    node = store.get(paths.record)
    assert node is not None
    return decode(TopologyRecord, paths.record, node.data)


def rename(mover: Mover, new: Paths = NEW, dag_id: str = "dag") -> Any:
    return mover.rename(new, dag_id, AUDIT)


def test_another_dag_can_take_over_a_topology_under_the_same_name(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    before = topology.topology
    done = mover.claim("another", AUDIT)
    after = topology.topology
    assert (done.generation, done.current) == (1, 2)
    assert done.summary == "it belongs to DAG another, and belonged to DAG trace"
    assert (after.dag_id, after.incarnation) == ("another", before.incarnation)
    assert after.op != before.op
    (noted,) = topology_view(store, topology.paths).repairs
    assert (noted.what, noted.told, noted.who, noted.why) == ("rename", done.summary, "ada", AUDIT.why)


def test_a_renamed_topology_continues_at_its_next_transaction_under_the_new_name(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    before = topology.topology
    done = rename(mover)
    after = record(store, NEW)
    assert (done.generation, done.current, done.summary) == (1, 2, "topology trace is called new now")
    assert (after.incarnation, after.dag_id) == (before.incarnation, "dag")
    assert after.op != before.op
    view = topology_view(store, NEW)
    assert {each.txid: each.open for each in view.transactions} == {1: False, 2: True}
    assert [(each.what, each.told) for each in view.repairs] == [("rename", "it was called trace, of DAG trace")]
    assert store.get(topology.paths.base) is None


def test_a_rename_that_was_killed_before_it_deleted_the_old_records_is_completed_when_repeated(
    store: Listing, topology: Topology, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = mover.record()
    assert mover.is_at(NEW, own) is False
    with monkeypatch.context() as patch:
        patch.setattr(mover, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            rename(mover)
    assert mover.is_at(NEW, own) is True
    after = record(store, NEW)
    assert rename(mover).current == 2
    assert record(store, NEW) == after
    assert store.get(topology.paths.base) is None


def killed() -> None:
    raise KeyboardInterrupt


def test_the_new_name_may_be_below_another_root(store: Listing, topology: Topology, mover: Mover) -> None:
    other = Paths("/other/root", "trace")
    rename(mover, other)
    assert topology_view(store, other).current == 2
    assert store.get(topology.paths.base) is None


def test_the_error_for_a_move_of_a_missing_topology_names_it(store: Listing) -> None:
    store.ensure("/tx")
    nobody = Mover(Topology(lambda: store, "/tx", []).ledger())
    with pytest.raises(UnknownTransaction, match="topology 'trace'"):
        nobody.record()
    with pytest.raises(UnknownTransaction, match="topology 'trace'"):
        nobody.close_for_deletion()
    nobody.delete()
    assert store.multis == []


def test_a_topology_that_is_being_deleted_keeps_its_record_and_refuses_other_requests(
    topology: Topology, mover: Mover
) -> None:
    before = topology.topology
    mover.close_for_deletion()
    assert mover.record() == before
    with pytest.raises(UnreadableRecord, match="being deleted: airflow tx delete trace --why TEXT"):
        Run(topology, "r3").begin(1)
    with pytest.raises(MoveRefused, match="the topology is being deleted: airflow tx delete trace --why TEXT"):
        rename(mover)


def test_a_topology_that_is_damaged_or_is_being_reset_cannot_be_deleted(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    path = topology.paths.record
    store.multi([], [Put(path, b'{"format":"being reset: airflow tx repair trace --reset"}')])
    with pytest.raises(UnreadableRecord, match="being reset"):
        mover.close_for_deletion()
    node = store.get(path)
    assert node is not None
    assert b"being reset" in node.data


@pytest.mark.parametrize("data", [b"", b"\xff", b"5", b"null", b'{"format":1}'])
def test_record_data_without_the_mark_of_a_move_is_not_read_as_a_mark(data: bytes) -> None:
    assert mark_of(data) is None


# --- what has the name already


def another(topology: Topology, paths: Paths = NEW, *, states: bool = False) -> Run:
    """What a renamed DAG has begun under its new name; without a state, or with one."""
    made = Topology(topology.store, "/tx", [MemoryState("other", values={"n": Sum()})] if states else [])
    made.paths, made.ids = paths, topology.ids
    run = Run(made, "r1")
    run.begin(1)
    return run


def test_the_topology_of_a_renamed_dag_that_has_committed_nothing_is_replaced_by_the_rename(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    before, read = topology.topology, Reader(store)
    assert mover.check_free(read, NEW) is False
    another(topology)
    assert mover.check_free(Reader(store), NEW) is True
    rename(mover)
    assert record(store, NEW).incarnation == before.incarnation


@pytest.mark.parametrize("states", [False, True])
def test_a_rename_never_replaces_a_topology_with_commits(
    store: Listing, topology: Topology, mover: Mover, states: bool
) -> None:
    other = another(topology, states=states)
    other.process({})
    other.commit()
    before = store.snapshot()
    with pytest.raises(MoveRefused, match="topology new of DAG 'trace' has committed transactions of its own"):
        rename(mover)
    assert store.snapshot() == before


def test_a_topology_with_states_is_not_replaced_by_a_rename_even_if_its_turn_was_set_back(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    other = another(topology, states=True)
    other.process({})
    other.commit()
    store.multi([], [Put(NEW.current, b'{"format":1,"txid":1}')])
    with pytest.raises(MoveRefused, match="has committed transactions"):
        rename(mover)


def test_a_topology_without_a_record_of_the_turn_is_replaced_by_a_rename(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    another(topology)
    store.multi([], [Delete(NEW.current)])
    rename(mover)
    assert topology_view(store, NEW).current == 2


def test_an_empty_folder_under_the_new_name_does_not_count_as_a_topology(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    store.ensure(f"{NEW.base}/left")
    rename(mover)
    assert topology_view(store, NEW).current == 2
    assert store.get(f"{NEW.base}/left") is None


def test_a_rename_to_a_name_that_another_rename_uses_is_refused(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    third = another(topology, Paths("/tx", "third"))
    Mover(third.topology.ledger())._close("being renamed to new: COMMAND", NEW, "COMMAND")
    with pytest.raises(MoveRefused, match="topology new is being renamed to new: COMMAND"):
        rename(mover)


# --- who goes on


def test_a_rename_that_another_call_has_taken_over_is_refused(store: Listing, topology: Topology, mover: Mover) -> None:
    own = mover.record()
    moved = Mover(topology.ledger())
    moved._paths = NEW
    first, second = (mover._close("being renamed to new: x", NEW, RENAME) for _ in range(2))
    before = store.snapshot()
    with pytest.raises(MoveRefused, match="another call of the command has taken over. That call continues"):
        moved._finish(topology.paths, first, own, "dag", AUDIT)
    with pytest.raises(MoveRefused, match="another call of the command has taken over. That call continues"):
        moved._guarded(first, iter([Create(f"{NEW.base}/late", b"")]))
    assert store.snapshot() == before
    rename(mover)
    with pytest.raises(MoveRefused, match="another call of the command has taken over"):
        moved._finish(topology.paths, second, own, "dag", AUDIT)


def test_a_call_that_is_taken_over_between_two_portions_stops(
    store: Listing, topology: Topology, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    mover.close_for_deletion()
    monkeypatch.setattr(move, "_TOGETHER", 1)

    def taken_over() -> None:
        Mover(topology.ledger()).close_for_deletion()

    store.before = taken_over
    with pytest.raises(MoveRefused, match=r"its records changed, .*Repeat the command: it resumes"):
        mover.delete()
    mover.delete()
    assert store.get(topology.paths.base) is None


def test_a_portion_that_gets_no_reply_is_refused_and_the_repeated_command_continues(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    mover.close_for_deletion()
    store.before = lambda: True
    with pytest.raises(MoveRefused, match="ZooKeeper did not answer"):
        mover.delete()
    mover.delete()
    assert store.get(topology.paths.base) is None


def test_the_failure_of_the_last_portion_is_raised_as_an_error(
    store: Listing, topology: Topology, mover: Mover
) -> None:
    mover.close_for_deletion()
    emptied = mover._emptied

    def and_another_record() -> Any:
        yield from emptied()
        store.before = lambda: store.ensure(f"{topology.paths.base}/another")

    mover._emptied = and_another_record  # type: ignore[method-assign]
    with pytest.raises(Exception, match="children"):
        mover.delete()


# --- portions


@pytest.mark.parametrize(
    ("together", "size", "creates", "deletes"),
    [
        (100, 1000, [6], [6]),
        (6, 1000, [6], [6]),
        (5, 1000, [5, 1], [5, 1]),
        (2, 1000, [2, 2, 2], [2, 2, 2]),
        (100, 12, [1] * 6, [2, 2, 2]),
        (100, 19, [2, 2, 2], [3, 3]),
        (100, 24, [2, 2, 2], [3, 3]),
        (100, 25, [3, 3], [3, 3]),
        (100, 28, [3, 3], [4, 2]),
    ],
)
def test_a_portion_has_a_maximum_number_of_records_and_a_maximum_number_of_bytes(
    store: Listing,
    mover: Mover,
    monkeypatch: pytest.MonkeyPatch,
    together: int,
    size: int,
    creates: list[int],
    deletes: list[int],
) -> None:
    monkeypatch.setattr(move, "_TOGETHER", together)
    monkeypatch.setattr(move, "_BYTES", size)
    mover.close_for_deletion()
    node = store.get(mover._paths.record)
    mark = None if node is None else mark_of(node.data)
    assert mark is not None
    names = [f"/tx/many{number}" for number in range(6)]
    store.multis.clear()
    mover._guarded(mark["by"], (Create(name, b"123") for name in names))  # 12 bytes each
    mover._guarded(mark["by"], (Delete(name) for name in names))  # 9 bytes each
    assert [len(each) for each in store.multis] == creates + deletes
