"""A processing task's part of its transaction: `start`, `ack` and `fail`, and the batch. Source: protocol.md §§2, 4."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx import compat
from airflow_tx.errors import FailedBatch, Refused, SkippedTransaction, StaleAttempt
from airflow_tx.failpoints import failpoint
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.spec import Payload, TransactionSpec, begins, put_back, spec_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.protocol.ledger import Ledger
    from airflow_tx.protocol.processing import TaskTry as LedgerTry
    from airflow_tx.sources.api import Source
    from airflow_tx.staging import StagingArea, TaskTry

log = logging.getLogger(__name__)

_KEY = "airflow_tx_processing"


class Batch:
    """The batch of the running task's transaction, for Python code."""

    def __init__(self, processing: Processing) -> None:
        self._processing = processing

    @property
    def txid(self) -> int:
        """The transaction: the same however often the batch is replayed."""
        return self._processing.attempt.txid

    @property
    def attempt(self) -> TransactionAttempt:
        """Which attempt of the transaction this is."""
        return self._processing.attempt

    @property
    def rows(self) -> Any:
        """The metadata of the batch: plain JSON that says exactly which rows it has."""
        return self._processing.rows

    def read(self) -> Iterator[Mapping[str, Any]]:
        """Exactly this transaction's rows, as dicts; none if the batch is empty.

        :raises SourceError: if the source cannot give exactly these.
        """
        if self.rows is None:  # a replay that found no rows
            return iter(())
        source = self._processing.source.named(self._processing.topology)
        rows = source.emit_batch(self.attempt, self.rows)
        return iter(cast("Iterable[Mapping[str, Any]]", rows))

    def read_output(self, ref: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The rows of a task's output, or of the new values of a committer, as dicts.

            @task
            def report(ref):  # report(commit.output["totals"])
                for row in current_batch().read_output(ref): ...

        :param ref: ``task.output["name"]``, as an argument of the task.
        :raises StagingError: exactly this output is not there whole, or the new values are not kept any more.
        """
        from airflow_tx.processing.inputs import rows_of_output

        return rows_of_output(self._processing.spec, ref, self.attempt)


def current_batch() -> Batch:
    """The batch of the task that is running.

    :raises AirflowFailException: `begin` of its run has not given it a transaction.
    """
    return Batch(Processing.of(get_current_context()))


class Processing:
    """One try of one processing task.

    :param anchored: whether its transaction waits for its ack; a side branch is not waited for.
    """

    def __init__(self, spec: TransactionSpec, payload: Payload, task: TaskTry, *, anchored: bool) -> None:
        self.spec = spec
        self.payload = payload
        self.task = task
        self.anchored = anchored
        self.started = False
        self.acked = False
        self._ledger: Ledger | None = None
        self._ti: Any = None

    @classmethod
    def of(cls, context: Context) -> Processing:
        """That of the running task, whether or not it has started."""
        found = context.get(_KEY)
        if isinstance(found, cls):
            return found
        from airflow_tx.staging.descriptor import TaskTry

        ti, spec = context["ti"], spec_of(context["dag"])
        task = TaskTry(ti.task_id, compat.map_index(ti), str(ti.id))
        made = cls(spec, Payload.of_run(ti, spec), task, anchored=ti.task_id in spec.tasks)
        made._ti = ti
        context[_KEY] = made  # type: ignore[literal-required]
        return made

    @classmethod
    @contextmanager
    def running(cls, context: Context) -> Iterator[Processing]:
        """Started within the block, for an operator that acks its output itself.

        :raises AirflowSkipException: its transaction is committed.
        :raises AirflowRescheduleException: `begin` of its run has replaced its attempt, or is about to.
        :raises AirflowFailException: another try or attempt has replaced it; or the block raised FailedBatch.
        """
        processing = cls.of(context)
        processing.start()
        try:
            yield processing
        except FailedBatch as error:
            raise AirflowFailException(str(error)) from error

    @property
    def topology(self) -> str:
        """Name of the topology."""
        return self.spec.topology

    @property
    def attempt(self) -> TransactionAttempt:
        """Which attempt of which transaction."""
        return self.payload.transaction

    @property
    def rows(self) -> Any:
        """The metadata of its batch."""
        return self.payload.rows

    @property
    def source(self) -> Source:
        """Where the rows come from."""
        return self.spec.source

    @cached_property
    def staging(self) -> StagingArea:
        """Where its output goes; that of a task after the block must outlive the commit."""
        area = self.spec.staging()
        return area if self.task.task_id in self.spec.inside else area.kept

    def start(self) -> None:
        """Tell the ledger that this try works; a second call does nothing.

        :raises AirflowSkipException, AirflowRescheduleException, AirflowFailException: see `running`.
        """
        if not self.anchored or self.started:
            return
        from airflow_tx.protocol.step import AlreadyCommitted

        with self._final_refusals(), self._connected() as ledger:
            answer = ledger.start(self.attempt, self._try, is_current=lambda: compat.is_current(self.task.task_try))
        if isinstance(answer, AlreadyCommitted):
            raise AirflowSkipException(
                f"Transaction {answer.txid} of {self.topology} is already committed: nothing to do."
            )
        self.started = True
        log.info("Transaction %s of %s: %s starts", self.attempt, self.topology, self.task)
        failpoint("process.after_start", task=self.task.task_id, **self._where)

    def ack(self, outputs: Sequence[Mapping[str, Any]] = (), consumed_rows: int | None = None) -> None:
        """Tell the ledger that this try is done and what its output is; a second call does nothing.

        :param outputs: references to staged output, or what `acked.returned` makes of a return value.
        :param consumed_rows: rows of the batch that were read, if counted.
        :raises AirflowRescheduleException, AirflowFailException: another try or attempt has replaced it.
        """
        if not self.anchored or self.acked:
            return
        failpoint("process.before_ack", task=self.task.task_id, **self._where)
        with self._final_refusals(), self._connected() as ledger:
            ledger.ack(self.attempt, self._try, rows=consumed_rows, outputs=outputs)
        self.acked = True
        failpoint("process.after_ack", task=self.task.task_id, **self._where)

    def fail(self, reason: str) -> None:
        """Tell the ledger that nobody will try again by itself.

        :raises Refused: it is not for this try to say.
        """
        if self.anchored:
            with self._connected() as ledger:
                ledger.fail(self.attempt, self._try, reason)

    @property
    def _try(self) -> LedgerTry:
        from airflow_tx.protocol.processing import TaskTry as LedgerTry

        return LedgerTry(self.task.task_id, self.task.map_index, self.task.task_try)

    @property
    def _where(self) -> dict[str, Any]:
        return {"topology": self.topology, "txid": self.attempt.txid, "attempt": self.attempt.attempt}

    @contextmanager
    def _connected(self) -> Iterator[Ledger]:
        """The ledger, connected for one step: between two of them a task may fork, or run for hours."""
        with self.spec.store() as store:
            if self._ledger is None:
                self._ledger = self.spec.ledger(store)
            # The same ledger object knows what it wrote, and need not read it again.
            self._ledger.store = store
            yield self._ledger

    @contextmanager
    def _final_refusals(self) -> Iterator[None]:
        try:
            yield
        except SkippedTransaction as error:
            raise AirflowSkipException(str(error)) from None
        except Refused as error:
            if isinstance(error, StaleAttempt) and self._is_replaced():
                put_back(self._ti)
            raise AirflowFailException(str(error)) from None

    def _is_replaced(self) -> bool:
        """Whether `begin` of its own run has told of another attempt, or is about to."""
        told = compat.pull(self._ti, self.spec.begin)
        same = isinstance(told, dict) and Payload.from_json(told) == self.payload
        return not same or begins(self._ti, self.spec)
