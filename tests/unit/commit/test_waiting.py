"""What a committer does in its worker until its turn has come: for whom it waits, how long, and what it notices."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.base.errors import FailedTransaction, StaleAttempt
from airflow_tx.ledger.api import Put, Watch
from airflow_tx.ledger.attempt import LANE_TRY
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import encode
from airflow_tx.ledger.steps import end
from airflow_tx.state import Count, MemoryState
from airflow_tx.transaction.commit.turn import BRIEF, MESSAGE_PATIENCE, WaitingLine, commit_in_turn
from airflow_tx.transaction.processing.outputs import returned
from tests.stage import update
from tests.unit.bench import CountingStore
from tests.unit.commit.message_run import MessageRun
from tests.unit.commit.run import WHY, Run, counts, killed_before_the_mark, open_run, record

A_STEP = 10.0


class Meanwhile(CountingStore):
    """Whenever a committer waits, others do the next step that a test names; without one, its time runs out.

    :ivar time: what the clock of the committer says.
    :ivar waits: how long it was to wait at most, and whether what the others did has ended that.
    :ivar multis: how many there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0
        self.a_step = A_STEP
        self.steps: list[Callable[[], object]] = []
        self.waits: list[tuple[float, bool]] = []
        self.slept: list[float] = []
        self.multis = 0

    def multi(self, requirements: Any, writes: Any) -> None:
        self.multis += 1
        super().multi(requirements, writes)

    @contextmanager
    def watch(self, *paths: str) -> Iterator[Watch]:
        with super().watch(*paths) as watch:
            yield _Waiting(self, watch)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.pass_by(seconds, seconds)

    def pass_by(self, most: float, a_step: float | None = None) -> None:
        """Let the next step be done, or else the time run out."""
        if self.steps:
            self.steps.pop(0)()
            most = self.a_step if a_step is None else a_step
        self.time += most


class _Waiting:
    def __init__(self, store: Meanwhile, watch: Watch) -> None:
        self.store, self.watch = store, watch

    def wait(self, timeout: float) -> bool:
        self.store.pass_by(timeout)
        ended = self.watch.wait(0)
        self.store.waits.append((timeout, ended))
        return ended


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    made = Meanwhile()
    monkeypatch.setattr(time, "sleep", made.sleep)
    return made


def commit_in_time(run: Run | MessageRun, store: Meanwhile, patience: float = 60.0) -> WaitingLine | None:
    return commit_in_turn(run.commit(), store, patience=patience, clock=lambda: store.time)


@pytest.fixture
def pair(make: Any) -> tuple[Run, Run]:
    """Two runs whose tasks have acked."""
    return open_run(make, "r1"), open_run(make, "r2")


def test_a_committer_that_waits_is_woken_by_the_commit_of_the_transaction_before_it(
    pair: Any, store: Meanwhile, state: MemoryState
) -> None:
    first, second = pair
    store.steps = [first.commit_now]
    assert commit_in_time(second, store) is None
    assert counts(state) == {"count": 20}
    assert store.waits == [(60.0, True)]


def test_the_patience_of_a_committer_limits_the_sum_of_all_its_waits(pair: Any, store: Meanwhile) -> None:
    first, second = pair
    store.steps = [lambda: first.commit().complete()]
    line = commit_in_time(second, store)
    assert line is not None
    assert (line.current, line.messages) == (1, False)
    assert store.waits == [(60.0, True), (60.0 - A_STEP, False)]
    assert second.log.lines[-1].startswith("Transaction 2 of numbers waits for transaction 1 (PROCESSED) of run r1")


@pytest.mark.parametrize("soon", [True, False])
def test_a_committer_waits_only_briefly_for_an_earlier_transaction_that_is_still_processing(
    make: Any, store: Meanwhile, state: MemoryState, soon: bool
) -> None:
    first, second = make("r1"), make("r2")
    first.begin()
    second.begin()
    second.work()
    store.steps = [lambda: (first.work(), first.commit_now())] if soon else []
    line = commit_in_time(second, store)
    assert (line is None) is soon
    assert store.waits[0] == (BRIEF, soon)


@pytest.fixture
def last(make: Any, store: Meanwhile) -> Run:
    """The last of eight runs whose tasks have acked; whenever it waits, the first of the others commits."""
    in_flight = partial(make, max_pending=8)
    *others, last = (open_run(in_flight, f"r{number}") for number in range(1, 9))
    store.steps = [each.commit_now for each in others]
    return last


def test_a_committer_far_from_its_turn_waits_in_its_worker_while_commits_before_it_are_fast(
    last: Run, store: Meanwhile, state: MemoryState
) -> None:
    store.a_step = 1.0
    assert commit_in_time(last, store) is None
    assert counts(state) == {"count": 80}
    assert store.time - 1000 > BRIEF


def test_a_committer_far_from_its_turn_is_deferred_while_commits_before_it_are_slow(
    last: Run, store: Meanwhile
) -> None:
    store.a_step = 4.0
    line = commit_in_time(last, store)
    assert line is not None
    assert (line.current, store.time - 1000) == (3, 2 * store.a_step)


def test_a_committer_far_from_its_turn_is_deferred_when_the_commits_before_it_stop(last: Run, store: Meanwhile) -> None:
    store.a_step = 0.5
    store.steps = store.steps[:3]
    line = commit_in_time(last, store)
    assert line is not None
    assert line.current == 4
    assert BRIEF <= store.time - 1000 - 3 * store.a_step < BRIEF + 1


@pytest.mark.parametrize(
    ("by_lane", "found", "text"),
    [
        (True, None, r"\(PROCESSING\), in the lane of its coordinator.* that leaves the lane becomes a run"),
        (True, "failed", "of run r1, which is failed. To continue, clear that run"),
        (False, None, "of run r1, which was deleted. To continue, start a run with the run id r1"),
    ],
)
def test_a_committer_logs_the_state_of_the_run_that_it_waits_for(
    pair: Any, store: Meanwhile, monkeypatch: pytest.MonkeyPatch, by_lane: bool, found: str | None, text: str
) -> None:
    _, second = pair
    first = record(store, 1)
    assert first is not None
    if by_lane:
        begun_by_a_lane = replace(first, request=f"{LANE_TRY}1")
        store.multi([], [Put(second.spec.paths.transaction(1), encode(begun_by_a_lane))])
    monkeypatch.setattr(compat, "run_state", lambda ti, dag_id, run_id: found)
    assert commit_in_time(second, store, patience=0.0) is not None
    assert re.search(f"Transaction 2 of numbers waits for transaction 1 .*{text}", second.log.lines[-1])


def test_a_change_is_noticed_although_it_happens_before_the_committer_watches_the_ledger(
    pair: Any, store: Meanwhile, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    watch = store.watch

    def watch_too_late(*paths: str) -> Any:
        monkeypatch.setattr(store, "watch", watch)
        first.commit_now()
        return watch(*paths)

    monkeypatch.setattr(store, "watch", watch_too_late)
    assert commit_in_time(second, store) is None
    assert store.waits == []
    assert counts(state) == {"count": 20}


def test_a_committer_only_reads_the_ledger_while_it_waits_for_its_turn(pair: Any, store: Meanwhile) -> None:
    first, second = pair
    second.commit().complete()
    store.multis = 0
    assert commit_in_time(second, store) is not None
    assert store.multis == 1, "the question whether it is complete"
    assert first.commit_now() is None


def test_a_committer_that_has_the_turn_reads_only_once_which_transaction_has_the_turn(
    pair: Any, store: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pair
    read, get = list[str](), store.get

    def noted(path: str) -> Any:
        read.append(path)
        return get(path)

    monkeypatch.setattr(store, "get", noted)
    assert commit_in_time(first, store) is None
    assert read.count(first.spec.paths.current) == 1


def test_task_states_that_were_read_before_the_turn_are_not_queried_again(pair: Any, store: Meanwhile) -> None:
    first, second = pair
    store.steps = [first.commit_now]
    asked, ask = list[Any](), second.committer.get_task_states

    def noted(**names: Any) -> Any:
        asked.append(names)
        return ask(**names)

    second.committer.get_task_states = noted
    assert commit_in_time(second, store) is None
    assert len(asked) == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_waiting_committer_fails_immediately_if_its_transaction_cannot_be_committed(
    pair: Any, store: Meanwhile, again: bool
) -> None:
    _, second = pair
    store.steps = [second.begin if again else lambda: second.start().fail("of memory")]
    begun = second.begun
    waiting = second.commit()
    with pytest.raises(StaleAttempt if again else FailedTransaction):
        commit_in_turn(waiting, store, patience=60.0, clock=lambda: store.time)
    assert (store.waits, waiting.begun) == ([(60.0, True)], begun)


def test_a_committer_waits_for_a_task_that_runs_again_and_reads_its_new_output(
    pair: Any, store: Meanwhile, state: MemoryState
) -> None:
    first, second = pair

    def works_again() -> None:
        second.again = second.start()
        second.committer.states["count"] = "running"

    def acks() -> None:
        rows = [{"word": "count", "count": 7}]
        second.again.ack(returned(rows, multiple=False))
        second.committer.xcoms["count", "return_value", -1] = rows
        second.committer.states["count"] = "success"

    store.steps = [works_again, first.commit_now, acks]
    assert commit_in_time(second, store) is None
    assert counts(state) == {"count": 17}
    assert store.waits == [(60.0, True), (50.0, True), (40.0, True)]


def test_a_committer_tries_a_skip_that_is_refused_once_and_then_waits(
    make: Any, store: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MemoryState("kept", keys=["word"], values={"count": Count()}, kind="transactional")
    first, second = make("r1", [update(kept)]), make("r2", [update(kept)])
    for run in (first, second):
        run.begin()
        run.work()
    killed_before_the_mark(first.commit())
    ledger = first.commit().ledger
    ledger.run(end.note_skip, 1, WHY)

    def replayed() -> None:
        ledger.run(end.withdraw_skip, 1)
        first.begin()
        first.work()
        first.commit_now()

    store.steps = [replayed]
    assert commit_in_time(second, store) is None
    assert [line for line in second.log.lines if "could not be skipped" in line][1:] == []
    assert counts(kept) == {"count": 20}
    assert store.waits == [(60.0, True)]


# --- for messages


@pytest.fixture
def emitted(make_with_messages: Any) -> tuple[MessageRun, str]:
    """A run whose task has acked, and the message that it has emitted."""
    run: MessageRun = make_with_messages()
    run.begin()
    (reference,) = run.work()
    return run, reference


@pytest.mark.parametrize(("patience", "most"), [(60.0, MESSAGE_PATIENCE), (2.0, 2.0), (0.0, 0.0)])
def test_a_committer_waits_in_its_worker_for_messages_only_for_a_few_seconds(
    emitted: tuple[MessageRun, str], store: Meanwhile, patience: float, most: float
) -> None:
    run, _ = emitted
    line = commit_in_time(run, store, patience)
    assert line is not None
    assert line.messages
    assert sum(store.slept) == most
    assert run.log.lines[-1].startswith("Transaction 1.1 of numbers waits: of its 1 message trees")


def test_a_committer_waits_in_its_worker_for_a_message_that_is_acked_within_seconds(
    emitted: tuple[MessageRun, str], store: Meanwhile
) -> None:
    run, reference = emitted
    store.steps = [lambda: None, lambda: run.ack(reference)]
    assert commit_in_time(run, store) is None
    assert run.count == 10
    assert len(store.slept) == 2
