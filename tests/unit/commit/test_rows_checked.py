"""Rows that a task read in part, or that a source does not give as before: refused, and nothing is written."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from airflow_tx.base.errors import RowsDiffer, RowsNotProven, SourceError
from airflow_tx.ledger.records import TransactionRecord, decode
from airflow_tx.ledger.views.view import TransactionDetails, transaction_details
from airflow_tx.operations.cli import render
from airflow_tx.sources.api import Batch, Json
from airflow_tx.state import MemoryState, Sum
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import Stage, StageRun, update
from tests.unit.bench import CountingStore, Numbers, OpaqueNumbers

TASKS = ("count", "audit")


class Counted(Numbers):
    """Says how many rows it has."""

    def initialize_transaction(self, txid: int, position: Json) -> Batch:
        batch = super().initialize_transaction(txid, position)
        return Batch(batch.metadata, batch.position, 10)


class Run(StageRun):
    """A run of the tasks `count` and `audit`, both of which read the batch, and its committer."""

    def __init__(self, store: CountingStore, source: Any, run_id: str = "r1") -> None:
        stage = Stage(store, source, max_pending=4, tasks=TASKS, inside=TASKS)
        super().__init__(stage.spec, run_id)
        self.state = MemoryState("totals", keys=["word"], values={"count": Sum()})
        self.begin()

    def work(
        self,
        task: str = "count",
        *,
        rows: int | None = None,
        peek: bool = False,
        reliable: bool = True,
        times: int = 1,
    ) -> None:
        """Read so many rows of the batch, and return their number."""
        processing = self.start(task)
        batch = CurrentBatch(processing, reliable=reliable)
        if peek:
            next(batch.read())
        value = [{"word": "all", "count": sum(len(list(islice(batch.read(), rows))) for _ in range(times))}]
        self.end(processing, value)

    def commit(self) -> Any:
        return commit_in_turn(self.commit_of([update(self.state)]), self.spec.memory, patience=0)

    def record(self) -> TransactionRecord:
        path = self.spec.paths.transaction(1)
        return decode(TransactionRecord, path, self.spec.memory.get(path).data)

    def refused(self, match: str) -> None:
        with pytest.raises(RowsDiffer, match=match):
            self.commit()
        assert not self.state.database.rows
        assert self.state.fence() is None


@pytest.fixture(autouse=True)
def home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))


def test_a_batch_that_all_tasks_have_read_completely_is_committed_with_its_count_and_digest(
    store: CountingStore,
) -> None:
    run = Run(store, Counted())
    run.work()
    run.work("audit", peek=True)
    assert run.commit() is None
    node = store.get(run.spec.paths.history(1))
    assert node is not None
    history = decode(TransactionRecord, "", node.data)
    assert history.rows == 10
    assert history.digest.startswith("python-2:")


def test_a_task_that_has_read_half_of_the_batch_is_refused_until_it_has_read_all_rows(store: CountingStore) -> None:
    run = Run(store, Numbers())
    run.work(rows=5)
    run.work("audit")
    run.refused("task audit read 10 rows.* of the batch, but task count read 5 rows")
    run.work()
    assert run.commit() is None


@pytest.mark.parametrize(("rows", "passes"), [(9, False), (10, True)])
def test_reading_one_more_row_detects_a_partial_read_if_the_source_does_not_count_its_rows(
    store: CountingStore, rows: int, passes: bool
) -> None:
    run = Run(store, Numbers())
    run.work(rows=rows)
    run.committer.states["audit"] = "removed"
    if passes:
        assert run.commit() is None
        assert details(run).transaction.unproven == ()
    else:
        run.refused("task count read 9 rows of the batch, but the batch has more rows")


def test_an_ack_fails_if_the_source_fails_while_one_more_row_is_read(store: CountingStore) -> None:
    class Failing(Numbers):
        def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
            yield from islice(super().emit_batch(attempt, metadata), 5)
            raise SourceError(source="numbers", problem="the file is gone", remedy="Bring it back.")

    run = Run(store, Failing())
    with pytest.raises(SourceError, match="the file is gone"):
        run.work(rows=5)


def test_all_tasks_that_have_read_fewer_rows_than_the_source_counted_are_refused(store: CountingStore) -> None:
    run = Run(store, Counted())
    run.work(rows=5)
    run.work("audit", rows=5)
    run.refused("task audit read 5 rows of the batch, but its source counted 10")


def test_a_task_that_declares_a_partial_read_is_accepted(store: CountingStore) -> None:
    run = Run(store, Counted())
    run.work()
    run.work("audit", rows=2, reliable=False)
    assert run.commit() is None


def test_a_source_that_returns_rows_twice_is_refused(store: CountingStore) -> None:
    class Twice(Counted):
        def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
            return [*super().emit_batch(attempt, metadata), *super().emit_batch(attempt, metadata)]

    run = Run(store, Twice())
    run.work()
    run.work("audit")
    run.refused("read 20 rows of the batch, but its source counted 10")


class Changing(Numbers):
    """Gives other rows of the same number to every attempt."""

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        return ({"number": number + attempt.attempt} for number in range(*metadata))


def complete_and_begin_again(run: Run) -> None:
    """A first attempt that is complete when it is cleared."""
    run.work()
    run.work("audit")
    run.state.raise_and_write = _away  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        run.commit()
    del run.state.raise_and_write
    assert run.record().counted is not None
    run.begin()
    run.work()
    run.work("audit")


def _away(*arguments: Any, **named: Any) -> Any:
    raise ConnectionError("gone")


def test_a_transactional_source_that_returns_other_rows_in_a_replay_is_refused(store: CountingStore) -> None:
    run = Run(store, Changing())
    complete_and_begin_again(run)
    run.refused("this attempt read 10 rows .*, an earlier one 10 .* --changed-rows")


def test_an_opaque_source_may_return_other_rows_in_a_replay(store: CountingStore) -> None:
    class Opaque(Changing, OpaqueNumbers):
        pass

    run = Run(store, Opaque())
    complete_and_begin_again(run)
    assert run.commit() is None


def test_a_replay_with_the_same_rows_is_committed(store: CountingStore) -> None:
    run = Run(store, Counted())
    complete_and_begin_again(run)
    assert run.commit() is None


# --- what is proven -----------------------------------------------------------------------------------------------

TWICE = "task count: it read the batch 2 times"


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TX__REQUIRE_ROWS", "proven")


def details(run: Run) -> TransactionDetails:
    return transaction_details(run.spec.memory, run.spec.paths, 1)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"times": 2}, TWICE),
        ({"reliable": False}, "no task has counted the rows of the batch"),
    ],
)
def test_rows_that_are_not_proven_complete_are_committed_and_the_receipt_gives_the_reason(
    store: CountingStore, how: dict[str, Any], said: str
) -> None:
    run = Run(store, Numbers())
    run.work(**how)
    run.committer.states["audit"] = "removed"
    assert details(run).transaction.unproven == ()  # audit may count them yet
    assert run.commit() is None
    found = details(run)
    assert found.transaction.unproven == (said,)
    assert found.receipt is not None
    assert found.receipt.unproven == [said]
    assert render.details(found)["not_proven"] == said


@pytest.mark.usefixtures("proven")
@pytest.mark.parametrize("how", [{"times": 2}, {"reliable": False}])
def test_unproven_rows_are_refused_if_a_proof_is_required_until_they_are_read_again(
    store: CountingStore, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(store, Numbers())
    run.work(**how)
    run.committer.states["audit"] = "removed"
    with pytest.raises(RowsNotProven, match="require_rows = proven refuses that. Nothing was written") as refused:
        run.commit()
    assert "\n" not in str(refused.value)
    assert run.state.fence() is None
    if how == {"times": 2}:
        monkeypatch.setenv("AIRFLOW__TX__REQUIRE_ROWS", "counted")
    else:
        run.work()
    assert run.commit() is None
    assert details(run).transaction.unproven == ((TWICE,) if how == {"times": 2} else ())


@pytest.mark.usefixtures("proven")
@pytest.mark.parametrize("source", [Counted(), Numbers()])
def test_rows_that_each_task_has_read_once_are_proven_to_be_complete(store: CountingStore, source: Any) -> None:
    run = Run(store, source)
    run.work(peek=True)
    run.work("audit", rows=10)
    assert run.commit() is None
    assert details(run).transaction.unproven == ()
