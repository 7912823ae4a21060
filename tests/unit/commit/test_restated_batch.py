"""The batch of a restatement: it comes from the journal, and the source is asked only whether it can give it again."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import EntryMissing, RestateRefused
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.transaction.commit.handoff import note_committed
from tests.unit.bench import Numbers
from tests.unit.commit.run import Run

ADA = Audit("ada", "a bug in the job")


class Told(Numbers):
    """Numbers that write down what they learn.

    :ivar gone: why their rows cannot be read again.
    """

    def __init__(self) -> None:
        self.learned: list[tuple[str, int]] = []
        self.asked: list[Any] = []
        self.gone: str | None = None

    def begun(self, txid: int, metadata: Any) -> None:
        self.learned.append(("begun", txid))

    def committed(self, txid: int, metadata: Any) -> None:
        self.learned.append(("committed", txid))

    def failed(self, txid: int, metadata: Any, reason: str) -> None:
        self.learned.append(("failed", txid))

    def refuses_again(self, metadata: Any) -> str | None:
        self.asked.append(metadata)
        return self.gone

    def decide_again(self, attempt: Any, metadata: Any) -> Any:
        return [*metadata, "as now"]

    def named(self, topology: str) -> Any:
        return self


@pytest.fixture
def source() -> Told:
    return Told()


@pytest.fixture
def run(make: Any, source: Told) -> Run:
    """A run whose transaction is committed."""
    found: Run = make("r1", source=source)
    found.begin()
    found.work()
    found.commit_now()
    return found


def wanted(run: Run, *, changed_rows: bool = False) -> None:
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(want, WishRequest(1, "r1", "r1", changed_rows=changed_rows), ADA)


def test_the_batch_of_a_restatement_is_read_from_the_journal_entry(run: Run, source: Told) -> None:
    first = run.begun
    wanted(run)
    again = run.begin()
    assert isinstance(again, Begun)
    assert (again.txid, again.metadata, source.asked) == (2, first.metadata, [first.metadata])
    assert again.replaces is not None
    assert again.replaces.txid == 1


def test_a_restatement_whose_source_rows_are_missing_is_refused_before_it_gets_a_txid(run: Run, source: Told) -> None:
    wanted(run)
    source.gone = "file a.csv is missing"
    with pytest.raises(RestateRefused, match=r"transaction 1 of numbers refused: .* file a.csv is missing.*--withdraw"):
        run.begin()
    source.gone = None
    assert run.begin().txid == 2


def test_the_batch_of_a_restatement_with_changed_rows_is_decided_again_and_may_differ(run: Run, source: Told) -> None:
    wanted(run, changed_rows=True)
    source.gone = "file a.csv had 3 bytes, and has 4"
    assert run.begin().metadata[-1] == "as now"


def test_the_error_for_a_missing_journal_entry_names_the_entry(run: Run) -> None:
    wanted(run)
    run.spec.staging().forget(run.spec.ledger(run.spec.memory).incarnation())
    with pytest.raises(EntryMissing, match="/1-"):
        run.begin()
    assert run.spec.ledger(run.spec.memory).status(2) is None


def test_the_source_is_not_notified_of_a_restatement(run: Run, source: Told) -> None:
    """It was told when the rows were committed; what it staged of them is gone."""
    learned = [*source.learned]
    wanted(run)
    run.begin()
    run.start().fail("of memory")
    run.begin()
    note_committed(run.spec, run.begun, log=run.log)
    assert source.learned == learned == [("begun", 1), ("committed", 1)]
