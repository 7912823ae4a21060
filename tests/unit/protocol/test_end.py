"""What a grant checks, and what the end of a transaction leaves and removes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import StaleBatch, StateMissing, StateRenamed
from airflow_tx.ledger.answers import Granted
from airflow_tx.ledger.api import Create, Delete, Put
from airflow_tx.ledger.attempt import TaskTry, Token
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import BlockMark, Phase, TransactionRecord, Waiter, encode
from airflow_tx.ledger.steps import commit, step
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.ledger.steps.end import holds, pace_after
from airflow_tx.ledger.steps.step import Stamp
from airflow_tx.ledger.store.memory import MemoryStore
from tests.finals import final_record
from tests.model.driver import Run, Topology

NOW = "2013-01-01T00:00:00.000+00:00"


@pytest.fixture
def run(topology: Topology) -> Run:
    made = Run(topology, "r1")
    made.processed(1, {})
    made.committer().processed()
    return made


def acquire(run: Run, *states: str) -> Any:
    record = changed(run.topology)
    request = AcquireRequest(run.attempt, record.epoch, record.rows_digest, {}, states)
    return run.topology.ledger().run(commit.acquire, request)


def end(run: Run, *states: str) -> Any:
    granted = acquire(run, *states)
    assert isinstance(granted, Granted)
    return run.topology.ledger().run(commit.commit, granted.grant.token, states=states)


def changed(topology: Topology, txid: int = 1, **fields: Any) -> TransactionRecord:
    """Return an open transaction, with other fields than it has."""
    record = topology.record(txid)
    assert record is not None
    if fields:
        record = replace(record, **fields)
        topology.store().multi([], [Put(topology.paths.transaction(txid), encode(record))])
    return record


def set_topology(topology: Topology, **fields: Any) -> None:
    topology.store().multi([], [Put(topology.paths.record, encode(replace(topology.topology, **fields)))])


# --- the grant ---------------------------------------------------------------------------------------------------


def test_a_grant_is_valid_until_a_newer_grant_or_attempt_or_generation_replaces_it(run: Run) -> None:
    token = acquire(run).grant.token
    record, topology = changed(run.topology), run.topology.topology
    assert holds(record, topology, token) is True
    assert holds(None, topology, token) is False
    for other in (
        replace(token, nonce="another"),
        replace(token, epoch=token.epoch + 1),
        replace(token, attempt=2),
        replace(token, generation=2),
    ):
        assert holds(record, topology, other) is False
    assert holds(replace(record, phase=Phase.FAILED), topology, token) is False


def test_an_additional_state_together_with_a_missing_state_is_refused_as_a_possible_rename(run: Run) -> None:
    set_topology(run.topology, states={"s": 4, "t": 5})
    with pytest.raises(StateRenamed, match="airflow tx state rename trace t a"):
        acquire(run, "s", "b", "a")


@pytest.mark.parametrize("states", [("s", "t", "u"), ("s",), ()], ids=["one is new", "one is missing", "none is left"])
def test_states_without_values_may_be_added_or_removed(run: Run, states: tuple[str, ...]) -> None:
    set_topology(run.topology, states={"s": 0, "t": 0})
    assert isinstance(acquire(run, *states), Granted)


def test_a_state_that_a_grant_may_have_written_to_cannot_be_removed(run: Run) -> None:
    acquire(run, "s", "t")
    with pytest.raises(StateMissing, match="t"):
        acquire(run, "s")


def test_a_batch_that_starts_at_another_position_than_its_predecessor_ended_is_stale(
    topology: Topology, run: Run
) -> None:
    changed(topology, base="elsewhere")
    with pytest.raises(StaleBatch, match="elsewhere"):
        acquire(run)


# --- the end -----------------------------------------------------------------------------------------------------


def test_the_end_of_a_transaction_deletes_its_notes_from_the_topology_record(topology: Topology, run: Run) -> None:
    set_topology(
        topology,
        blocked=BlockMark(1, 1, "", NOW),
        bid=Waiter("x", None, "t", 1),
        skips=[1, 2],
        births={"u": "old"},
        states={"u": 7},
    )
    birth = changed(topology).birth
    answer = end(run, "u", "s")
    after = topology.topology
    assert (after.blocked, after.bid, after.skips) == (None, None, [2])
    assert (after.states, after.births) == ({"u": 1, "s": 1}, {"u": birth, "s": birth})
    assert (answer.skip, answer.waiting) == (True, ())


def test_the_end_of_a_transaction_keeps_the_notes_about_other_transactions(topology: Topology, run: Run) -> None:
    set_topology(topology, blocked=BlockMark(2, 1, "", NOW), skips=[3], states={"u": 7}, births={"u": "old"})
    answer = end(run)
    after = topology.topology
    assert (after.blocked, after.skips, after.states, after.births) == (
        BlockMark(2, 1, "", NOW),
        [3],
        {"u": 7},
        {"u": "old"},
    )
    assert answer.skip is False


def test_the_end_of_a_transaction_requires_that_the_turn_is_unchanged(topology: Topology, run: Run) -> None:
    """A repair that sets it back refuses a mark that has read it before."""
    token = acquire(run).grant.token
    read = Reader(topology.store())
    commit.commit(read, Stamp("2013-01-01", "op", 1, 10), topology.paths, token, states=())
    required = {each.path for each in read.requirements(frozenset())}
    paths = topology.paths
    assert {paths.current, paths.record, paths.transaction(1), paths.acks(changed(topology).acks)} <= required


@pytest.mark.parametrize("history", [1, 2])
def test_the_history_contains_the_configured_number_of_transactions(history: int) -> None:
    store = MemoryStore()
    topology = Topology(lambda: store, "/tx", [], history=history)
    for number in range(1, 5):
        Run(topology, f"r{number}").whole(1)
    kept = tuple(str(txid) for txid in range(5 - history, 5))
    assert topology.store().children(topology.paths.histories).names == kept


def test_a_transaction_can_end_although_the_history_to_delete_no_longer_exists(topology: Topology) -> None:
    topology.kept = 1
    Run(topology, "r1").whole(1)
    topology.store().multi([], [Delete(topology.paths.history(1))])
    Run(topology, "r2").whole(1)
    assert topology.current == 3


def test_the_end_of_a_transaction_does_not_read_the_history_that_it_deletes(topology: Topology) -> None:
    """It is most likely there; before the first one there is none."""
    topology.kept = 1
    for number in (1, 2):
        run = Run(topology, f"r{number}")
        run.processed(1, {})
        committer, calls = run.written(), topology.store().calls
        calls.clear()
        committer.mark()
        assert calls.count("multi") == 1
        assert not set(calls) & {topology.paths.history(txid) for txid in (0, 1)}


# --- what is too much for one multi ------------------------------------------------------------------------------


def instances(run: Run, count: int) -> None:
    """So many mapped instances have acked."""
    folder = run.topology.paths.acks(changed(run.topology).acks)
    names = run.topology.store().children(folder).names
    done = run.topology.store().get(f"{folder}/{names[0]}").data
    entries = [Create(f"{folder}/m@{index}", done) for index in range(count - len(names))]
    run.topology.store().multi([], entries)


@pytest.mark.parametrize("left", [0, 1])
def test_records_that_exceed_one_multi_are_deleted_after_the_end_of_the_transaction(
    topology: Topology, run: Run, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "DELETIONS_A_MULTI", 5)
    instances(run, 4 + left)
    token = acquire(run).grant.token
    multis: list[int] = []
    store = topology.store()
    multi = store.multi

    def counted(required: Any, writes: Any) -> None:
        multis.append(len(writes))
        multi(required, writes)

    monkeypatch.setattr(store, "multi", counted)
    topology.ledger().run(commit.commit, token, states=())
    assert multis[0] == 4 + (0 if left else 5)
    assert (len([each for each in multis if each]) > 1) is bool(left)
    assert topology.store().children(topology.paths.all_acks).names == ()
    assert topology.topology.garbage == []


@pytest.mark.parametrize("left", [0, 1])
def test_records_that_exceed_one_multi_are_deleted_after_a_replay(
    topology: Topology, run: Run, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "DELETIONS_A_MULTI", 5)
    instances(run, 4 + left)
    Run(topology, "r1").begin(1)
    (own,) = topology.store().children(topology.paths.all_acks).names
    assert own == changed(topology).acks
    assert topology.topology.garbage == []


def test_a_folder_to_delete_is_noted_once_in_addition_to_earlier_notes(topology: Topology) -> None:
    topology.ledger().open(topology.request)
    paths, record = topology.paths, replace(topology.topology, garbage=["y"])
    noted = step.left(record, paths, paths.acks("x"), paths.acks("x"))
    assert noted.garbage == ["y", "coordinator/acks/x"]


def test_only_deleted_folders_are_removed_from_the_notes(topology: Topology) -> None:
    topology.ledger().open(topology.request)
    set_topology(topology, garbage=["a", "b", "c"])
    topology.ledger().run(step.note_removed, ["a", "c"])
    assert topology.topology.garbage == ["b"]
    before = topology.topology
    topology.ledger().run(step.note_removed, ["x"])
    assert topology.topology == before


def test_nested_folders_are_emptied_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "DELETIONS_A_MULTI", 2)
    store = MemoryStore()
    for path in ("/a/b/c", "/a/b/d", "/a/e", "/a/f/g/h", "/z"):
        store.ensure(path)
    step.empty(store, "/a/f")
    assert (store.get("/a/f") is None, store.get("/a/f/g")) == (False, None)
    step.remove(store, "/a")
    assert [path for path, _, _ in store.snapshot()] == ["/z"]
    step.remove(store, "/a")
    step.empty(store, "/a")


# --- the pace ----------------------------------------------------------------------------------------------------


def test_a_transaction_that_was_never_processed_does_not_change_the_pace() -> None:
    history = final_record(
        size={"rows": 5},
    )
    assert pace_after([[1, 1.0]], history) == [[1, 1.0]]


def test_seconds_are_rounded_to_milliseconds_and_the_largest_measurement_is_kept() -> None:
    began, processed = "2013-01-01T00:00:00+00:00", "2013-01-01T00:00:01.234567+00:00"
    history = final_record(
        began=began,
        processed=processed,
        size={"rows": 5},
    )
    assert pace_after([], history) == [[5, 1.235]]
    pace: list[list[float]] = [[8, 1.0], [9, 1.0], *([[1, 1.0]] * 6)]
    assert pace_after(pace, history)[0] == [9, 1.0]


def test_a_task_try_of_a_mapped_task_is_written_with_its_index() -> None:
    assert (str(TaskTry("p", -1, "t")), str(TaskTry("p", 0, "t"))) == ("p", "p[0]")
    assert str(Token(2, 7, 3, 4, "n")) == "2/7.3#4"
