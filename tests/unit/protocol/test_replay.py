"""What `begin` makes of a transaction that is open: the same attempt, or the next one."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import RunHeld, StaleBegin
from airflow_tx.ledger.answers import Done, ReplayNoted
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Replayed
from airflow_tx.ledger.records import BatchRows, Metadata, Phase, TransactionRecord, encode
from airflow_tx.ledger.steps import commit, recovery
from airflow_tx.ledger.steps.recovery import ReplayRequest
from airflow_tx.ledger.steps.replay import note_changed
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.status import TransactionView
from airflow_tx.ledger.views.view import transaction_details
from tests.model.driver import Run, Topology


def begin(
    topology: Topology,
    *,
    run_id: str = "r1",
    key: str = "r1",
    task_try: str = "t1",
    retry: bool = False,
    batch: Batch | None = Batch([0, 1], 1),  # noqa: B008 - frozen
    message: str = "1",
    run_state: str | None = None,
    **given: Any,
) -> Any:
    request = BeginRequest(topology.request, key, run_id, task_try, retry, {"p": message})
    return topology.ledger().begin(
        request, Outside(decide=lambda attempt, position: batch, run_state=lambda run_id: run_state, **given)
    )


def record(topology: Topology, txid: int = 1) -> TransactionRecord:
    found = topology.record(txid)
    assert found is not None
    return found


def stored(topology: Topology, txid: int = 1) -> Metadata:
    return Reader(topology.store()).peek(Metadata, topology.paths.meta(txid))


def asked() -> bool:
    raise AssertionError("Airflow is not to be asked")


# --- the same attempt --------------------------------------------------------------------------------------------


def test_a_repeated_begin_of_the_same_try_changes_nothing_and_sends_no_query_to_airflow(topology: Topology) -> None:
    first = begin(topology)
    before = record(topology)
    assert begin(topology, is_current=asked) == first
    assert record(topology) == before


def test_a_retry_of_begin_continues_an_attempt_in_which_no_task_has_started(topology: Topology) -> None:
    begin(topology)
    again = begin(topology, task_try="t2", retry=True, message="2")
    found = record(topology)
    assert (again.attempt.attempt, found.attempt, found.epoch) == (1, 1, 1)
    assert (found.request, found.tasks) == ("t2", {"p": "2"})


@pytest.mark.parametrize("what", ["a task has started", "it has failed", "begin was cleared"])
def test_any_other_repeated_begin_starts_the_next_attempt(topology: Topology, what: str) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    if what != "begin was cleared":
        task = run.start()
        if what == "it has failed":
            task.fail("of memory")
    begin(topology, task_try="t2", retry=what != "begin was cleared")
    assert record(topology).attempt == 2


def test_a_retry_of_begin_after_a_failure_starts_the_next_attempt_although_no_task_has_started(
    topology: Topology,
) -> None:
    begin(topology)
    topology.ledger().run(note_changed, 1, {}, audit=Audit("ada", "it was corrected"))
    assert record(topology).phase is Phase.FAILED
    begin(topology, task_try="t2", retry=True)
    assert record(topology).attempt == 2


def test_the_first_begin_of_an_allocated_transaction_continues_its_first_attempt(topology: Topology) -> None:
    topology.allocate(2)
    topology.note_replay(1, 1)
    topology.clock.advance(60)
    begun = begin(topology, run_id="tx-1", key="tx-1", is_current=asked, message="7")
    found = record(topology)
    assert (begun.attempt.attempt, begun.run_id, begun.metadata, begun.position) == (1, "tx-1", [0, 2], 2)
    assert (found.request, found.run_id, found.tasks, found.replay) == ("t1", "tx-1", {"p": "7"}, None)
    assert (found.created, found.began) == ("2013-01-01T00:00:00.000+00:00", "2013-01-01T00:01:00.000+00:00")


def test_another_run_of_the_same_run_key_takes_over_the_transaction_under_its_own_run_id(topology: Topology) -> None:
    topology.allocate(2)
    begun = begin(topology, run_id="r9", key="tx-1")
    assert (begun.run_id, record(topology).run_id, record(topology).key) == ("r9", "r9", "tx-1")


def test_a_retry_of_begin_keeps_the_begin_time_and_the_note_of_the_replay(topology: Topology) -> None:
    begin(topology)
    topology.note_replay(1, 1)
    before = record(topology)
    topology.clock.advance(60)
    begin(topology, task_try="t2", retry=True)
    assert (record(topology).began, record(topology).replay) == (before.began, before.replay)


def test_an_attempt_records_who_has_replayed_it_and_later_attempts_do_not_inherit_the_name(
    topology: Topology,
) -> None:
    begin(topology)
    topology.ledger().run(recovery.note_person, 1, Audit("ann", "the disk\x1b[0m is back " + "x" * 1000))
    begin(topology, task_try="t2")
    topology.note_replay(1, 2)
    begin(topology, task_try="t3")
    first, second = record(topology).replays
    assert first.by is not None
    assert (first.attempt, first.by.who) == (1, "ann")
    assert first.by.why.startswith("the disk")
    assert len(first.by.why) <= 200
    assert (second.attempt, second.by) == (2, None)
    assert [each.attempt for each in view(topology).replayed_by] == [1]
    topology.ledger().run(recovery.note_person, 1, Audit("bob", ""))
    assert [(each.attempt, each.who) for each in view(topology).replayed_by] == [(1, "ann"), (3, "bob")]


def test_the_note_of_a_person_does_not_count_as_a_replay_and_does_not_prevent_one(topology: Topology) -> None:
    begin(topology)
    topology.ledger().run(recovery.note_person, 1, Audit("ann", ""))
    assert topology.note_replay(1, 1) == ReplayNoted(True, 1)


def test_the_note_of_a_person_about_a_final_transaction_changes_nothing(topology: Topology) -> None:
    topology.skip(begin(topology).txid)
    assert topology.ledger().run(recovery.note_person, 1, Audit("ann", "")) == Done()


def view(topology: Topology) -> TransactionView:
    return transaction_details(topology.store(), topology.paths, 1).transaction


# --- the next one ------------------------------------------------------------------------------------------------


def test_the_next_attempt_keeps_no_results_of_the_previous_attempt(topology: Topology) -> None:
    run = Run(topology, "r1")
    run.processed(1, {})
    committer = run.committer()
    committer.processed()
    granted = committer.ask().grant
    topology.ledger().run(commit.note_commit_failed, run.attempt, granted.token.epoch, reason="no disk")
    before = record(topology)
    topology.clock.advance(60)
    batch = Batch([0, 5], 5, count=5, reason="all there is")
    begun = begin(topology, run_id="r9", task_try="t2", message="8", batch=batch)
    after = record(topology)
    assert begun.replay
    assert (begun.run_id, begun.metadata, begun.size) == ("r9", [0, 5], {"rows": 5, "why": "all there is"})
    assert (before.phase, before.processed is None, before.error) == (Phase.COMMITTING, False, "no disk")
    assert after == replace(
        before,
        run_id="r9",
        request="t2",
        attempt=2,
        epoch=before.epoch + 1,
        op=after.op,
        phase=Phase.PROCESSING,
        ended=after.ended,
        rows_digest=begun.rows_digest,
        tasks={"p": "8"},
        size={"rows": 5, "why": "all there is"},
        began="2013-01-01T00:01:00.000+00:00",
        processed=None,
        error=None,
        acks=after.acks,
        replays=[Replayed(1, "2013-01-01T00:01:00.000+00:00", "no disk", rows=before.rows)],
        receipt=None,
    )
    assert after.ended != before.ended
    assert (stored(topology).attempt, stored(topology).position) == (2, 5)


def test_the_next_attempt_of_a_yielded_run_deletes_the_record_that_it_yielded(topology: Topology) -> None:
    begin(topology)
    yielded = encode(replace(record(topology), yielded=1))
    topology.store().multi([], [Put(topology.paths.transaction(1), yielded)])
    begin(topology, task_try="t2")
    assert record(topology).yielded is None


def test_a_replay_without_rows_ends_at_the_position_where_it_starts(topology: Topology) -> None:
    begin(topology)
    begun = begin(topology, task_try="t2", batch=None)
    assert (begun.metadata, begun.position, begun.size) == (None, None, None)
    assert record(topology).ended == record(topology).base


def test_a_begin_by_a_task_try_that_airflow_has_replaced_is_refused(topology: Topology) -> None:
    begin(topology)
    with pytest.raises(StaleBegin, match="t1"):
        begin(topology, task_try="t2", is_current=lambda: False)
    assert record(topology).attempt == 1


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_transaction_whose_run_is_active_cannot_be_taken_over_by_another_run(topology: Topology, state: str) -> None:
    begin(topology)
    with pytest.raises(RunHeld, match=state):
        begin(topology, run_id="r9", task_try="t2", run_state=state)
    assert begin(topology, run_id="r9", task_try="t2", run_state="failed").run_id == "r9"


# --- by partition ------------------------------------------------------------------------------------------------


@pytest.fixture
def by_partition() -> Topology:
    """Transaction 1 has A; transaction 2 has taken up B, from 5 on."""
    store = MemoryStore()
    topology = Topology(lambda: store, "/tx", [], partitioned=True)
    begin(topology, batch=Batch({"A": [0, 1]}, {"A": 1}, start={"A": 0}))
    batch = Batch({"B": [5, 6]}, {"B": 6}, start={"B": 5})
    begin(topology, run_id="r2", key="r2", batch=batch)
    return topology


def replayed(topology: Topology, batch: Batch) -> Metadata:
    begin(topology, run_id="r2", key="r2", task_try="t3", batch=batch)
    return stored(topology, 2)


def test_a_replay_reads_a_partition_from_the_position_where_the_first_attempt_began_it(by_partition: Topology) -> None:
    places: list[Any] = []

    def decide(attempt: TransactionAttempt, position: Any) -> Batch:
        places.append((attempt.attempt, position))
        return Batch({"A": [1, 2]}, {"A": 2})

    request = BeginRequest(by_partition.request, "r2", "r2", "t3", False, {})
    by_partition.ledger().begin(request, Outside(decide=decide, run_state=lambda run_id: None))
    assert places == [(2, {"A": 1, "B": 5})]
    assert stored(by_partition, 2) == Metadata(2, {"A": [1, 2]}, {"A": 2, "B": 5}, begin={"B": 5})


def test_a_partition_that_a_replay_begins_keeps_its_start(by_partition: Topology) -> None:
    found = replayed(by_partition, Batch({"B": [5, 7]}, {"B": 7}, start={"C": 3}))
    assert (found.begin, found.position) == ({"B": 5, "C": 3}, {"A": 1, "B": 7, "C": 3})


def test_a_replay_reads_a_partition_from_the_end_of_the_predecessor_that_also_began_it(
    by_partition: Topology,
) -> None:
    batch = Batch({"A": [0, 1], "B": [5, 9]}, {"A": 1, "B": 9}, start={"A": 0, "B": 5})
    begin(by_partition, task_try="t2", batch=batch)
    found = replayed(by_partition, Batch({"A": [1, 2]}, {"A": 2}))
    assert (found.begin, found.position) == ({}, {"A": 2, "B": 9})


# --- rows that are decided again ---------------------------------------------------------------------------------


def test_a_request_to_decide_rows_again_deletes_their_counts(topology: Topology) -> None:
    begin(topology)
    counted = replace(record(topology, 1), counted=BatchRows(3))
    topology.store().multi([], [Put(topology.paths.transaction(1), encode(counted))])
    topology.ledger().run(note_changed, 1, {}, audit=Audit("ada", "it was corrected"))
    assert record(topology, 1).counted is None


@pytest.mark.parametrize("kind", ["transactional", "opaque, re-admitted"])
def test_the_attempt_after_a_request_of_a_person_decides_its_rows_again(kind: str) -> None:
    store = MemoryStore()
    topology = Topology(lambda: store, "/tx", [], source=kind.partition(",")[0])
    txid, asked = 1, list[Any]()

    def again(attempt: TransactionAttempt, metadata: Any) -> Any:
        asked.append((attempt, metadata))
        return "corrected"

    begin(topology)
    if kind != "transactional":
        topology.skip(1)
        topology.readmit(1)
        txid = begin(topology, task_try="t2").txid
    topology.ledger().run(note_changed, txid, {}, audit=Audit("ada", "it was corrected"))
    begun = begin(topology, task_try="t3", decide_again=again)
    assert asked == [(TransactionAttempt(txid, 2), [0, 1])]
    assert (begun.metadata, begun.position) == ("corrected", stored(topology, txid).position)
    assert record(topology, txid).to_change is None
    begin(topology, task_try="t4", decide_again=again)
    assert len(asked) == 1


def test_a_replay_without_a_request_of_a_person_does_not_decide_its_rows_again() -> None:
    store = MemoryStore()
    topology = Topology(lambda: store, "/tx", [], source="transactional")
    begin(topology)
    request = ReplayRequest(TransactionAttempt(1, 1), "it failed", counts=True, limit=3)
    topology.ledger().run(recovery.note_replay, request)
    begun = begin(topology, task_try="t2", batch=Batch([7, 8], 8), decide_again=lambda attempt, rows: asked())
    assert (begun.metadata, begun.position) == ([0, 1], 1)
