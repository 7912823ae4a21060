"""Steps in one multi: the ledger is as if each had been made alone, and whatever comes between is noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from airflow_tx.base.errors import OutcomeUnknown, StaleAttempt, UnknownTransaction
from airflow_tx.ledger.answers import Begun, Committed, Granted, Joined, NoData, Processed, WindowFull
from airflow_tx.ledger.api import Ids, Paths, Requirement, Write
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.batch import BeginRequest, Outside
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.steps import commit, processing
from airflow_tx.ledger.steps.begin import BoundStep, in_one_multi
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from tests.model.driver import CountedIds, HandClock, Topology, decides

TASK = TaskTry("p", -1, "lane")


class SameIds:
    """Gives every process the same ids, so that what two of them write can be compared."""

    def nonce(self) -> str:
        return "5" * 32

    def message_id(self) -> int:
        return 5


class Interrupted(MemoryStore):
    """Lets somebody else do something right before the n-th multi arrives; loses the reply to one, done or not."""

    def __init__(self) -> None:
        super().__init__()
        self.multis = 0
        self.before: dict[int, Callable[[], Any]] = {}
        self.lost = (0, True)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        self.multis += 1
        self.before.pop(self.multis, lambda: None)()
        lost, done = self.lost
        if self.multis != lost or done:
            super().multi(requirements, writes)
        if self.multis == lost:
            raise OutcomeUnknown(paths="", reason="lost")


class Process:
    """A process that makes whole transactions; with steps joined, or each alone."""

    def __init__(self, store: MemoryStore, *, joins: bool, ids: Ids | None = None) -> None:
        self.topology = Topology(lambda: store, "/tx", [])
        self.ledger = Ledger(store, Paths("/tx", "trace"), clock=HandClock(), ids=ids or SameIds())
        self.joins = joins
        self.begun: dict[int, Begun] = {}
        self.done: dict[int, Processed] = {}
        self.granted: dict[int, Granted] = {}

    def begin(self, rows: int = 2) -> Any:
        request = BeginRequest(self.topology.request, None, "", "lane", False, {"p": "0000000000000005"})
        task = TASK if self.joins else None
        begun = self.ledger.begin(request, Outside(decide=decides(rows), run_state=lambda run_id: None), task=task)
        if isinstance(begun, Begun):
            self.begun[begun.txid] = begun
            if not self.joins:
                self.ledger.start(begun.attempt, TASK)
        return begun

    def ack(self, txid: int, *, its_turn: bool = False) -> Any:
        begun = self.begun[txid]
        ack: BoundStep[Any] = partial(processing.ack, attempt=begun.attempt, task=TASK, rows=2, outputs=[{"n": txid}])
        noted: BoundStep[Any] = partial(processing.processed, attempt=begun.attempt, rows_digest=begun.rows_digest)
        if not self.joins:
            self.ledger.run(ack)
            self.done[txid] = self.ledger.run(noted)
            return self.acquire(txid) if its_turn else None
        both: BoundStep[Joined[Any, Any]] = partial(in_one_multi, first=ack, then=lambda done: noted)

        def turn(joined: Joined[Any, Any]) -> BoundStep[Any] | None:
            return self.turn(txid, joined.then) if its_turn and joined.then is not None else None

        answer = self.ledger.run(in_one_multi, both, turn)
        if answer.first.then is not None:
            self.done[txid] = answer.first.then
        if isinstance(answer.then, Granted):
            self.granted[txid] = answer.then
        return answer

    def turn(self, txid: int, done: Processed) -> BoundStep[Any]:
        begun = self.begun[txid]
        request = AcquireRequest(
            begun.attempt,
            done.epoch,
            begun.rows_digest,
            states=("s0",),
            metadata=begun.metadata,
            position=begun.position,
        )
        return partial(commit.acquire, request=request)

    def acquire(self, txid: int) -> None:
        self.granted[txid] = self.ledger.run(self.turn(txid, self.done[txid]))

    def mark(self, txid: int, *, following: bool = False) -> Any:
        token = self.granted[txid].grant.token
        mark: BoundStep[Committed] = partial(commit.commit, token=token, states=["s0"])
        if not (self.joins and following):
            marked = self.ledger.run(mark)
            if following:
                self.acquire(txid + 1)
            return marked
        answer = self.ledger.run(in_one_multi, mark, lambda done: self.turn(txid + 1, self.done[txid + 1]))
        if isinstance(answer.then, Granted):
            self.granted[txid + 1] = answer.then
        return answer


@pytest.fixture
def store() -> Interrupted:
    return Interrupted()


def records(store: MemoryStore) -> dict[str, bytes]:
    return {path: data for path, data, _ in store.snapshot()}


def test_joined_steps_write_the_same_ledger_as_separate_steps(store: Interrupted) -> None:
    alone = Interrupted()
    one, two = Process(store, joins=True), Process(alone, joins=False)
    steps: list[Callable[[Process], Any]] = [
        lambda each: each.begin(),
        lambda each: each.ack(1, its_turn=True),
        lambda each: each.begin(),
        lambda each: each.ack(2),
        lambda each: each.mark(1, following=True),
        lambda each: each.mark(2),
        lambda each: each.begin(0),
    ]
    for step in steps:
        step(one)
        step(two)
        assert records(store) == records(alone)
    assert one.granted == two.granted
    assert (store.multis, alone.multis) == (8, 14)


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("number", [2, 3, 4, 5, 6, 7])
def test_joined_steps_are_executed_once_although_the_reply_is_lost(store: Interrupted, number: int, done: bool) -> None:
    alone = Interrupted()
    one, two = Process(store, joins=True, ids=CountedIds()), Process(alone, joins=False, ids=CountedIds())
    store.lost = (number, done)
    for each in (one, two):
        each.begin()
        each.ack(1, its_turn=True)
        each.begin()
        each.ack(2)
        each.mark(1, following=True)
        each.mark(2)
    assert store.multis == (7 if done else 8)
    assert records(store).keys() == records(alone).keys()
    assert one.topology.current == 3


def test_a_begin_that_is_joined_with_a_start_starts_a_task_only_if_it_begins_a_transaction(store: Interrupted) -> None:
    process = Process(store, joins=True)
    assert isinstance(process.begin(0), NoData)
    for _ in range(8):
        assert isinstance(process.begin(), Begun)
    assert isinstance(process.begin(), WindowFull)
    assert process.topology.allocated == 8


def test_a_joined_step_that_refuses_is_executed_separately_later(store: Interrupted) -> None:
    process = Process(store, joins=True)
    process.begin()
    process.begin()
    process.ack(1, its_turn=True)
    answer = process.ack(2, its_turn=True)  # it is not
    assert isinstance(answer.first.then, Processed)
    assert answer.then is None
    process.ledger.run(note_skip, 2, Audit("ada", "not wanted"))
    answer = process.mark(1, following=True)
    assert (answer.first.by_this_call, answer.first.skip, answer.then) == (True, True, None)
    assert process.topology.current == 2


def test_no_step_is_joined_to_a_step_that_writes_nothing(store: Interrupted) -> None:
    process = Process(store, joins=True)
    process.begin()
    process.ack(1, its_turn=True)
    process.mark(1)
    process.done[2] = process.done[1]
    assert process.mark(1, following=True) == Joined(Committed(1, by_this_call=False))
    with pytest.raises(UnknownTransaction):
        process.ack(1)


@pytest.mark.parametrize("number", [1, 2])
def test_a_replay_between_two_joined_steps_is_noticed(store: Interrupted, number: int) -> None:
    """A run begins one of them anew, right before the multi arrives that marks 1 and takes the turn for 2."""
    process = Process(store, joins=True)
    process.begin()
    process.begin()
    process.ack(1, its_turn=True)
    process.ack(2)
    other = process.topology.ledger()
    request = BeginRequest(process.topology.request, f"tx-{number}", f"tx-{number}", "run", False, {"p": "01"})

    def replays() -> None:
        other.begin(request, Outside(decide=decides(2), run_state=lambda run_id: "running"))

    store.before[store.multis + 1] = replays
    if number == 1:
        with pytest.raises(Exception, match=r"1/1\.1#2"):
            process.mark(1, following=True)
        assert process.topology.current == 1
        return
    answer = process.mark(1, following=True)
    assert (answer.first, answer.then) == (Committed(1, by_this_call=True), None)
    record = process.topology.record(2)
    assert record is not None
    assert (record.attempt, record.phase) == (2, Phase.PROCESSING)
    with pytest.raises(StaleAttempt):
        process.acquire(2)
