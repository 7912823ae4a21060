"""Whether a committer waits in its worker or gives its slot back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_tx.ledger.api import Children, Delete, Put
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.receipt import Deed
from airflow_tx.ledger.records import Phase, TransactionRecord, encode
from airflow_tx.ledger.steps import processing
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.transaction.commit.turn import Move, WaitingLine, advice, read_line
from tests.model.driver import Run, Topology


def line(txid: int, current: int, **ready: bool) -> WaitingLine:
    """Build the line before a transaction from the names of the transactions that are read, such as `t4`."""
    read = {int(name[1:]): record(name) for name in ready}
    acked = frozenset(int(name[1:]) for name, each in ready.items() if each)
    return WaitingLine(txid=txid, current=current, opened={**read, txid: record("own", op="op")}, ready=acked)


def record(run_id: str, **changes: Any) -> TransactionRecord:
    fields: dict[str, Any] = {
        "txid": 1, "key": run_id, "run_id": run_id, "request": "try", "attempt": 1, "epoch": 1, "op": f"op-{run_id}",
        "phase": Phase.PROCESSING, "base": "", "ended": "", "rows_digest": "", "tasks": {}, "created": "", "began": "",
    }  # fmt: skip
    return TransactionRecord(**{**fields, **changes})


def changed(near: WaitingLine, txid: int, **changes: Any) -> WaitingLine:
    """Return a line in which the record of a transaction says something else."""
    return replace(near, opened={**near.opened, txid: replace(near.opened[txid], **changes)})


@pytest.mark.parametrize("current", [5, 6])
def test_the_transaction_that_has_the_turn_does_not_wait(current: int) -> None:
    assert line(5, current).move is Move.COMMIT


def test_the_next_two_transactions_wait_in_their_workers_if_earlier_ones_only_need_to_commit() -> None:
    assert line(5, 4, t4=True).move is Move.WAIT
    assert line(5, 3, t3=True, t4=True).move is Move.WAIT


def test_a_committer_waits_only_briefly_while_an_earlier_transaction_may_need_a_worker_slot() -> None:
    assert line(5, 4, t4=False).move is Move.WAIT_BRIEFLY
    assert line(5, 3, t3=True, t4=False).move is Move.WAIT_BRIEFLY


def test_a_committer_that_is_not_among_the_next_two_in_line_waits_only_briefly() -> None:
    assert line(5, 2, t2=True, t3=True, t4=True).move is Move.WAIT_BRIEFLY


def test_by_default_only_the_first_sixteen_waiting_transactions_occupy_a_worker_slot() -> None:
    assert line(17, 1).move is Move.WAIT_BRIEFLY
    assert line(18, 1).move is Move.DEFER
    assert replace(line(18, 1), places=20).move is Move.WAIT


def test_the_number_of_places_limits_how_many_committers_wait_in_their_workers() -> None:
    far = replace(line(5, 1, t1=True, t2=True, t3=True, t4=True), places=4)
    assert far.move is Move.WAIT
    assert replace(far, places=3).move is Move.WAIT_BRIEFLY
    assert replace(far, ready=far.ready - {2}).move is Move.WAIT_BRIEFLY


def test_a_transaction_that_became_final_during_the_read_delays_no_committer() -> None:
    assert line(5, 3, t4=True).move is Move.WAIT


# --- what wakes a committer that waits elsewhere -----------------------------------------------------------------


def test_a_committer_that_waits_in_its_worker_reports_the_transaction_that_it_waits_for() -> None:
    assert line(5, 4, t4=True).waited_for == [[4, "t4", "PROCESSING", True]]
    assert line(5, 4, t4=False).waited_for == []
    assert line(5, 5).waited_for == []


NEAR = {"reason": "its turn is near", "current": 4}


def test_a_committer_is_woken_shortly_before_its_turn_and_not_again_for_the_same_transactions() -> None:
    near = line(5, 4, t4=True)
    assert near.wake_event(op="op", waited=[]) == NEAR
    assert near.wake_event(op="op", waited=[[4, "t4", "PROCESSED", True]]) == NEAR
    assert near.wake_event(op="op", waited=near.waited_for) is None
    assert line(5, 4, t4=False).wake_event(op="op", waited=[]) is None
    for waited in ([], near.waited_for):
        assert line(5, 5).wake_event(op="op", waited=waited) == {**NEAR, "current": 5}


def test_a_committer_is_woken_when_its_own_transaction_changes() -> None:
    far = line(5, 4, t4=False)
    assert far.wake_event(op="another", waited=[]) == {"reason": "its record changed"}
    assert replace(far, opened=far.earlier).wake_event(op="op", waited=[]) == {"reason": "its record changed"}


def test_a_committer_is_woken_to_skip_the_transaction_that_has_the_turn() -> None:
    assert changed(line(5, 4, t4=False), 4, skip=Deed("ada", "", "")).wake_event(op="op", waited=[]) == NEAR


def test_a_committer_near_its_turn_watches_its_own_records_and_those_of_earlier_transactions() -> None:
    near = changed(line(5, 3, t3=True, t4=True), 5, acks="5.1-x")
    assert (near.watched, near.acks) == ((3, 4, 5), "5.1-x")


def test_a_committer_far_from_its_turn_watches_no_earlier_transaction() -> None:
    far = changed(line(5, 1, t1=True, t2=True), 5, acks="5.1-x")
    assert (far.watched, far.acks) == ((5,), "5.1-x")


# --- the line as it is read --------------------------------------------------------------------------------------


@pytest.fixture
def topology() -> Topology:
    """Transactions 1 to 4 have begun."""
    store = MemoryStore()
    made = Topology(lambda: store, "/tx", [])
    for number in range(1, 5):
        run(made, number)
    return made


def run(topology: Topology, number: int) -> Run:
    made = Run(topology, f"r{number}")
    made.begin(1)
    return made


def read(topology: Topology, txid: int, *mapped: str) -> WaitingLine:
    return read_line(ReadOnlyLedger(topology.store(), topology.paths), txid, mapped)


def test_a_committer_that_has_the_turn_reads_no_other_transaction(topology: Topology) -> None:
    assert read(topology, 1) == WaitingLine(txid=1, current=1)
    assert read(topology, 0) == WaitingLine(txid=0, current=1)


def test_a_committer_reads_only_the_nearest_earlier_transactions(topology: Topology) -> None:
    near = {txid: found for txid in (1, 2, 4) if (found := topology.record(txid))}
    assert read(topology, 4) == WaitingLine(txid=4, current=1, opened=near)
    assert set(read(topology, 2).earlier) == {1}
    assert read(topology, 9).op is None
    assert set(read_line(ReadOnlyLedger(topology.store(), topology.paths), 4, (), places=3).earlier) == {1, 2, 3}


def test_an_earlier_transaction_is_ready_after_all_its_tasks_have_acked(topology: Topology) -> None:
    first = run(topology, 1)
    task = first.start()
    assert not read(topology, 2).ready
    task.ack({})
    assert read(topology, 2).ready == {1}
    first.committer().processed()
    processed = read(topology, 2)
    assert processed.ready == {1}
    assert processed.earlier[1].phase is Phase.PROCESSED
    first.start().fail("of memory")
    assert not read(topology, 2).ready


def test_an_earlier_transaction_that_failed_after_all_its_acks_is_not_ready(topology: Topology) -> None:
    run(topology, 1).process({})
    record = topology.record(1)
    assert record is not None
    topology.store().multi([], [Put(topology.paths.transaction(1), encode(replace(record, phase=Phase.FAILED)))])
    assert not read(topology, 2).ready


def test_a_mapped_task_is_ready_without_an_ack_under_its_own_name(topology: Topology) -> None:
    first = run(topology, 1)
    ledger, instance = topology.ledger(), TaskTry("p", 0, "t")
    ledger.start(first.attempt, instance)
    ledger.run(processing.ack, first.attempt, instance)
    assert not read(topology, 2).ready
    assert read(topology, 2, "p").ready == {1}


def test_a_skip_is_due_only_for_the_transaction_that_has_the_turn(topology: Topology) -> None:
    topology.note_skip(2)
    assert not read(topology, 3).skip
    topology.note_skip(1)
    assert read(topology, 3).skip


def test_an_earlier_transaction_that_became_final_during_the_read_is_ignored(topology: Topology) -> None:
    topology.store().multi([], [Delete(topology.paths.transaction(1))])
    assert set(read(topology, 3).earlier) == {2}


def test_an_earlier_transaction_whose_acks_were_deleted_counts_as_ready(topology: Topology) -> None:
    first = run(topology, 1)
    paths, record = topology.paths, topology.record(1)
    assert record is not None
    topology.store().multi([], [Delete(paths.acks(record.acks))])
    assert read(topology, 2).ready == {1}
    first.topology.store().multi([], [Put(paths.transaction(1), encode(replace(record, phase=Phase.FAILED)))])
    assert read(topology, 2).ready == {1}


def test_an_ack_that_is_deleted_during_the_read_is_not_counted(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(topology, 1).process({})
    store, record = topology.store(), topology.record(1)
    assert record is not None
    folder, listed = topology.paths.acks(record.acks), store.children

    def listed_before(path: str) -> Children | None:
        found: Children | None = listed(path)
        if path == folder:
            (name,) = listed(folder).names
            store.multi([], [Delete(f"{folder}/{name}")])
        return found

    monkeypatch.setattr(store, "children", listed_before)
    assert not read(topology, 2).ready


# --- what a person can do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("running", "There is nothing to do, unless .* Give the pool a slot for each active run"),
        ("queued", "That run needs a run slot"),
        ("failed", r"To continue, clear that run, or replay it: airflow tx replay t 7\. .* airflow tx skip t 7 --why"),
        (None, "To continue, start a run with the run id r7, or replay it"),
    ],
)
def test_the_advice_about_an_earlier_transaction_depends_on_the_state_of_its_run(
    state: str | None, expected: str
) -> None:
    assert re.match(expected, str(advice("t", 7, "r7", state)))
