"""A run that restates a transaction, on the ledger in memory, with a real journal."""

from __future__ import annotations

from typing import Any

from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import begin_run, update
from tests.unit.commit.run import Run

Rows = list[dict[str, Any]]


def rows(**values: Any) -> Rows:
    return [{"word": word, "count": value} for word, value in values.items()]


class Makes:
    """Makes the runs of a topology, one after another.

    :ivar runs: the id of the run of each transaction.
    """

    def __init__(self, make: Any, *places: Any, **options: Any) -> None:
        """Take what makes a run.

        :param places: they have the states that are updated, as they are when a run is made; none: those of `make`.
        """
        self.runs: dict[int, str] = {}
        self._make, self._places, self._options = make, places, options

    def __call__(self, run_id: str, **options: Any) -> Run:
        own = {"updates": [update(each.state) for each in self._places]} if self._places else {}
        run: Run = self._make(run_id, **{**own, **self._options, **options})
        return run


def journal_of(run: Run) -> JournalArea:
    return JournalArea(run.spec.staging(), run.spec.ledger(run.spec.memory).incarnation())


def entry_of(run: Run, txid: int) -> str:
    """The entry that a committed transaction is counted by."""
    history = run.spec.ledger(run.spec.memory).outcome(txid)
    assert history is not None
    assert history.receipt is not None
    return str(history.receipt.journal)


def begun(
    make: Any,
    output: Rows,
    *,
    instead_of: int | None = None,
    check: Any = None,
    changed_rows: bool = False,
    noted: bool = False,
    **options: Any,
) -> Run:
    """A run that has read and processed its batch; or the run of another transaction again, which is to be restated.

    :param noted: whether a person has requested that before.
    """
    run_id = f"run {len(make.runs) + 1}" if instead_of is None else make.runs[instead_of]
    run: Run = make(run_id, **options)
    if instead_of is not None and not noted:
        wanted(run, instead_of, changed_rows=changed_rows)
    run.begun = begin_run(run.spec, run_id, check_entry=check or (lambda entry, topology: None))
    assert (run.begun.replaces is None) is (instead_of is None)
    make.runs[run.begun.txid] = run_id
    return processed(run, output)


def processed(run: Run, output: Rows) -> Run:
    processing = run.start()
    assert len(list(CurrentBatch(processing).read())) == 10
    run.end(processing, output)
    return run


def wanted(run: Run, txid: int, *, changed_rows: bool = False) -> None:
    """A person wants a transaction restated."""
    audit = Audit("ada", "a bug in the job")
    run.spec.ledger(run.spec.memory).run(
        want, WishRequest(txid, run.run_id, run.run_id, changed_rows=changed_rows), audit
    )


def committed(make: Any, output: Rows, **how: Any) -> Run:
    run = begun(make, output, **how)
    run.commit_now()
    return run
