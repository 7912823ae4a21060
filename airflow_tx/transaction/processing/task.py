"""The steps of a processing task in its transaction: `start`, `ack` and `fail`. Source: protocol.md §§2, 4.

`Transaction` adds the hooks at the end of this module to its tasks, so the code of a `@task` needs no changes.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx.base import compat
from airflow_tx.base.errors import (
    AckersUnavailable,
    EmittedBefore,
    FailedBatch,
    MessageError,
    Refused,
    RowsNotKept,
    RowsRefused,
    SkippedTransaction,
    SourceNotSettled,
    StaleAttempt,
    TxError,
)
from airflow_tx.base.failpoints import failpoint
from airflow_tx.base.remedy import Remedy
from airflow_tx.base.rows import is_frame
from airflow_tx.ledger import (
    MALFORMED,
    REJECTED,
    AlreadyCommitted,
    Begun,
    OutputName,
    RowsRead,
    TaskTry,
    TransactionAttempt,
    consumed,
    counted,
    in_words,
    is_shortened,
)
from airflow_tx.outputs import (
    check_own_name,
    make_ref,
    refuse,
    row_aside,
    stage_rejected,
    write_digested,
    write_manifest,
)
from airflow_tx.sources import Source, SourceKind
from airflow_tx.transaction.metrics import send_failure
from airflow_tx.transaction.processing.code import digest_of_callable
from airflow_tx.transaction.spec import TransactionSpec, begun_by, is_beginning, put_back, spec_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.ledger import BoundStep, Done, Ledger
    from airflow_tx.outputs import AckerStore, Output, StagingArea, TaskEmitter, TryDir
    from airflow_tx.transaction.processing.consumed_rows import AnyReading, RowsReading

# --- messages -----------------------------------------------------------------------------------------------------
# This section is for the messages that a task emits. Each message is the root of a tree. The
# committer waits until all trees are acked.


class TaskMessages:
    """The messages of one try of a task.

    The task connects to the ackers at its first message, and disconnects at its ack.

    :param anchored: whether the transaction waits for the ack of the task.
    """

    def __init__(
        self, spec: TransactionSpec, begun: Begun, task: TaskTry, *, anchored: bool
    ) -> None:
        self._spec = spec
        self._begun = begun
        self._task = task
        self._anchored = anchored
        self._emitter: TaskEmitter | None = None
        self._by_application = 0

    @property
    def trees(self) -> int:
        """Return the number of message trees that the task and its application have started."""
        return self._by_application + (0 if self._emitter is None else self._emitter.trees)

    def emit(self, count: int, *, tracked: bool) -> list[str]:
        """Create messages, and return their references.

        :param count: the number of messages.
        :param tracked: whether the commit waits for the messages.
        :raises TransactionDefinitionError: the transaction has no ackers, or does not wait for this task.
        :raises AirflowFailException: the ackers refuse the messages permanently, so a retry does not help. The run
            needs a replay.
        :raises AckersUnavailable: the ackers cannot be reached.
        """
        from airflow_tx.outputs import TaskEmitter, origin_of

        if self._emitter is None:
            begun = self._begun
            self._emitter = TaskEmitter(
                origin_of(self._spec.topology, begun.attempt, begun.incarnation),
                self._task,
                self._spec.ackers,
                self._ackers,
                anchored=self._anchored,
            )
        try:
            return self._emitter.emit(count, tracked=tracked)
        except AckersUnavailable:
            raise
        except MessageError as error:
            raise AirflowFailException(str(error)) from None

    def add_application(self, trees: int, emitter: TaskTry) -> None:
        """Count the messages that the Spark application of the task has emitted.

        :param trees: the number of messages.
        :param emitter: the try that submitted the application.
        :raises AirflowFailException: an earlier try submitted the application, and the application has emitted
            messages.
        """
        if trees and emitter != self._task:
            own = self._begun.attempt
            topology = self._spec.topology
            error = EmittedBefore(
                task=str(self._task), topology=topology, txid=own.txid, attempt=own.attempt
            )
            raise AirflowFailException(str(error))
        self._by_application = trees

    def close(self) -> None:
        """Close the connection to the ackers."""
        if self._emitter is not None:
            self._emitter.close()

    @contextmanager
    def _ackers(self) -> Iterator[AckerStore]:
        with self._spec.store() as store, self._spec.open_ackers(store) as ackers:
            yield ackers


# --- stale input --------------------------------------------------------------------------------------------------
# A task refuses input of an earlier attempt before its own work begins.


def check_arguments(task: Any, attempt: TransactionAttempt) -> None:
    """Refuse arguments of another attempt. Airflow has read them before `begin` ran again.

    :raises AirflowFailException: an argument belongs to another attempt. The error names both attempts.
    """
    for field in task.template_fields:
        for found in _batches(getattr(task, field, None)):
            if found != attempt:
                error = StaleAttempt(
                    step="start", txid=found.txid, attempt=found.attempt, newest=attempt.attempt
                )
                raise AirflowFailException(str(error))


def check_upstream(
    context: Context, spec: TransactionSpec, attempt: TransactionAttempt, task: TaskTry
) -> None:
    """Refuse input of tasks that have not acked in this attempt. Their batch may have had other rows.

    :raises AirflowFailException: an upstream task has worked only on an earlier attempt. The error names the task.
    """
    from airflow_tx.ledger import ReadOnlyLedger

    before = sorted(context["task"].upstream_task_ids.intersection(spec.tasks))
    if not before:
        return
    with spec.store() as store:
        ledger = ReadOnlyLedger(store, spec.paths)
        record = ledger.status(attempt.txid)
        acked = None if record is None else ledger.acked(record)
    if acked is None:
        return  # The transaction is final. `start` will report this.
    states = compat.instance_states(context["ti"], before, spec.mapped)
    stale = sorted(
        {
            of
            for (of, index), state in states.items()
            if state == "success" and (of, index) not in acked
        }
    )
    if stale:
        names = ", ".join(stale)
        raise AirflowFailException(
            f"start of task {task} in transaction {attempt} refused: its input from {names} "
            f"belongs to an earlier attempt. Clear {names}, or the whole run."
        )


def _batches(value: Any) -> Iterator[TransactionAttempt]:
    if isinstance(value, dict) and {"topology", "txid", "attempt", "rows_digest"} <= value.keys():
        yield TransactionAttempt(value["txid"], value["attempt"])
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _batches(item)


# --- failure ------------------------------------------------------------------------------------------------------
# This section returns the reason for a task's failure in the form that the ledger keeps.


def failure_reason(context: Context) -> str:
    """Return the text of the error that failed a task, or of its root cause in the JVM.

    Return "" if no error is known.
    """
    from airflow_tx.spark import jvm_cause

    error = context.get("exception")
    if not isinstance(error, BaseException):
        return compat.masked(f"{type(error).__name__}: {error}") if error else ""
    refusal = refusal_of(context)
    # The text of the AirflowFailException is the text of the refusal.
    text = problem_of(refusal if refusal and str(refusal) == str(error) else error)
    return compat.masked(str(jvm_cause(error) or f"{type(error).__name__}: {text}"))


def noted_reason(context: Context, refusal: TxError | None) -> tuple[str, str]:
    """Return the reason of a failure for the ledger, and the id of the failed task.

    If only a user can resolve the failure, the reason is the text of the refusal, and the task id is empty.
    """
    if refusal is not None and refusal.for_good:
        return compat.masked(problem_of(refusal)), ""
    return failure_reason(context), context["ti"].task_id


def problem_of(error: BaseException) -> str:
    """Return the text of an error without its remedy, which the ledger keeps separately.

    The text does not contain a refused value of a row. Only the log of the task shows this value, since fewer people
    can read that log.
    """
    if not isinstance(error, TxError):
        return str(error)
    place = error.fields.get("place")  # the place of the value in the refusal, if it has one
    if not place:
        return error.problem_text
    told = f"{place} has an unusable value, which is in the log of the task"
    return type(error)(**{**error.fields, "problem": told}).problem_text


def refusal_of(context: Context) -> TxError | None:
    """Return the refusal that failed the task, or None if another error failed it."""
    error = context.get("exception")
    # A refusal that a retry cannot resolve has been raised again as AirflowFailException.
    refusal = error.__context__ if isinstance(error, AirflowFailException) else error
    return refusal if isinstance(refusal, TxError) else None


def advice_of(error: BaseException | None) -> Remedy | None:
    """Return the remedy of a refusal as the ledger keeps it, or None if there is none."""
    advice = error.advice if isinstance(error, TxError) else None
    return None if advice is None else advice.worded(compat.masked)


# --- task ---------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_KEY = "airflow_tx_processing"
_inner: ContextVar[Processing | None] = ContextVar("airflow_tx_processing", default=None)


def ask_rest(readings: Iterable[AnyReading]) -> None:
    """Read one more row after the reading with the most rows, to find out whether it covers the whole batch.

    :raises SourceError: the source cannot return the row.
    """
    own = (each for each in readings if not isinstance(each, RowsRead) and not each.outputs)
    started = [each for each in own if each.started]
    found = max(started, key=lambda each: (each.found.rows, each.ended), default=None)
    if found is not None and not found.ended:
        found.ask_rest()


def fullest(readings: Iterable[AnyReading]) -> list[RowsRead]:
    """Return, for the batch and for each other input, the reading with the most rows. Shorter readings do not count."""
    found: dict[tuple[OutputName, ...], RowsRead] = {}
    for read in _started(readings):
        known = found.get(read.outputs)
        if known is None or (known.found.rows, not known.stopped) < (
            read.found.rows,
            not read.stopped,
        ):
            found[read.outputs] = read
    return list(found.values())


def repeated(readings: Iterable[AnyReading]) -> list[str]:
    """Describe each input that the task has read completely several times.

    It is unknown which of these readings counts.
    """
    whole = Counter(
        read.outputs for read in _started(readings) if not read.stopped and read.found.rows
    )
    return [
        f"it read {in_words(outputs)} {times} times"
        for outputs, times in whole.items()
        if times > 1
    ]


def _started(readings: Iterable[AnyReading]) -> Iterator[RowsRead]:
    for each in readings:
        if isinstance(each, RowsRead):
            yield each
        elif each.started:
            yield RowsRead(each.found, each.outputs, stopped=not each.ended, more=each.more)


class Processing:
    """One try of one processing task.

    :param anchored: whether the transaction waits for the ack of the task. It does not wait for a task on a side
        branch.
    """

    def __init__(
        self, spec: TransactionSpec, begun: Begun, task: TaskTry, *, anchored: bool
    ) -> None:
        self.spec = spec
        self.begun = begun
        self.task = task
        self.anchored = anchored
        self.messages = TaskMessages(spec, begun, task, anchored=anchored)
        self.read: list[AnyReading] = []  # readings by the task and by its application
        self.looked: list[RowsReading] = []
        """The readings with `reliable=False`. They do not prove which rows the task has consumed."""
        self.unproven: list[str] = []
        """The reasons why it is not proven that the application has read all rows."""
        self.staged: dict[str, Output] = {}
        """The outputs that the task's code has staged, by name."""
        self.broken: Exception | None = None
        """The error that ended a reading of the batch.

        An engine that reads the batch may wrap this error in another error.
        """
        self.rejected: list[dict[str, str]] = []
        """The rows that the task's code has rejected."""
        self._emitters: list[Source] = []
        self.code = ""
        """The digest of the task's code, or "" if it is unknown."""
        self.started = False
        self.acked = False
        self._ledger: Ledger | None = None
        self._ti: Any = None

    @classmethod
    def of(cls, context: Context) -> Processing:
        """Return the `Processing` of a task's context, which the first call creates."""
        found = context.get(_KEY)
        if isinstance(found, cls):
            return found

        ti = context["ti"]
        spec = spec_of(context["dag"])
        task = TaskTry(ti.task_id, compat.map_index(ti), compat.task_try(ti))
        made = cls(spec, begun_by(ti, spec), task, anchored=ti.task_id in spec.tasks)
        made._ti = ti
        context[_KEY] = made  # type: ignore[literal-required]
        return made

    @classmethod
    def current(cls) -> Processing:
        """Return the object that `as_current` has set, or else the `Processing` of the running Airflow task."""
        from airflow.sdk import get_current_context

        return _inner.get() or cls.of(get_current_context())

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Let `current` return this object until the `with` block ends."""
        token = _inner.set(self)
        try:
            yield
        finally:
            _inner.reset(token)

    @classmethod
    @contextmanager
    def running(cls, context: Context) -> Iterator[Processing]:
        """Start the try, and run the `with` block of an operator that acks its own output.

        :raises AirflowSkipException: the transaction is committed.
        :raises AirflowRescheduleException: `begin` of the run has replaced the attempt, or will replace it.
        :raises AirflowFailException: another try or attempt has replaced this try, or the `with` block raised
            FailedBatch or RowsRefused.
        """
        processing = cls.of(context)
        processing.start()
        try:
            with processing.settling():
                yield processing
        except (FailedBatch, RowsRefused) as error:
            raise AirflowFailException(str(error)) from error

    @property
    def topology(self) -> str:
        return self.spec.topology

    @property
    def attempt(self) -> TransactionAttempt:
        return self.begun.attempt

    @property
    def metadata(self) -> Any:
        """Return the metadata that identifies the rows of the batch.

        :raises RowsNotKept: the run was cleared after its commit, and the ledger keeps only a digest of the metadata.
        """
        if is_shortened(self.begun.metadata):
            raise RowsNotKept(topology=self.topology, txid=self.begun.txid)
        return self.begun.metadata

    @property
    def source(self) -> Source:
        return self.spec.source

    @cached_property
    def staging(self) -> StagingArea:
        """Return the staging area for the output of the task.

        The output of a task after the block is kept after the commit.
        """
        area = self.spec.staging().of_topology(self.begun.incarnation)
        return area if self.task.task_id in self.spec.inside else area.kept

    @property
    def where(self) -> TryDir:
        """Return the folder of this try in the staging area."""
        return self.staging.try_dir(self.topology, self.attempt, self.task)

    @property
    def keeps_rejected(self) -> bool:
        """Return whether the commit keeps the rows that this task rejects."""
        return self.anchored and self.spec.rejected is not None

    def start(self) -> None:
        """Record in the ledger that this try has started. A second call does nothing.

        :raises AirflowSkipException, AirflowRescheduleException, AirflowFailException: see `running`.
        """
        if not self.anchored or self.started:
            return
        with self._final_refusals(), self._connected() as ledger:
            answer = ledger.start(self.attempt, self.task, is_current=self._is_current)
        if isinstance(answer, AlreadyCommitted):
            raise AirflowSkipException(
                f"Transaction {answer.txid} of {self.topology} is already committed: nothing to do."
            )
        self.started = True
        log.info("Transaction %s of %s: %s starts", self.attempt, self.topology, self.task)
        failpoint("process.after_start", task=self.task.task_id, **self._where)

    def ack(
        self, outputs: Sequence[Mapping[str, Any]] = (), consumed_rows: int | None = None
    ) -> None:
        """Record in the ledger that this try is done, with its outputs and its readings. A second call does nothing.

        :param outputs: references to staged output, or the result of `returned` for a return value.
        :param consumed_rows: the number of rows that were read from the batch, or None to count them from the readings.
        :raises SourceError: the rows were replaced while the task read them.
        :raises AirflowRescheduleException, AirflowFailException: another try or attempt has replaced this try.
        """
        if not self.anchored or self.acked:
            return
        try:
            ask_rest(self.read)
            for emitter in self._emitters:
                emitter.check_read(self.attempt)
        finally:
            self.close()

        failpoint("process.before_ack", task=self.task.task_id, **self._where)
        read = fullest(self.read)
        rows = consumed(read) if consumed_rows is None else consumed_rows
        given = [*self._staged_refs(), *outputs]
        self._check_rejected(given, read)
        with self._final_refusals(), self._connected() as ledger:
            step = ledger.ack.bind(
                attempt=self.attempt,
                task=self.task,
                rows=rows,
                outputs=given,
                trees=self.messages.trees,
                rows_read=read,
                code=self.code,
                unproven=[*self.unproven, *repeated(self.read)],
            )
            self._note_ack(ledger, step)
        self.messages.close()
        self.acked = True
        failpoint("process.after_ack", task=self.task.task_id, **self._where)

    def stage(self, rows: Any, name: str = "rows") -> dict[str, Any]:
        """Write an output of the task's code with the digest of its rows, and return a reference to it.

        :raises StagingError: a column type would change a value, or the task has already staged an output with this
            name.
        """
        where = self.where
        check_own_name(where, name)
        if name in self.staged:
            problem = "the task has already staged an output with this name"
            raise refuse(where, name, problem, "Use another name for each output.")
        output = write_digested(where, name, rows)
        if not output.columns:
            # An output without columns has no rows, and readers refuse a file without columns.
            output = replace(output, files=())
        if output.rows and not output.row_digest:
            text = (
                "Output %r of %s has lists, structs, maps or times of day, so its rows are only counted and not "
                "hashed"
            )
            log.info(text, name, self.task)
        self.staged[name] = output
        return write_manifest(where, self.staged)[name].to_json()

    def _staged_refs(self) -> list[dict[str, Any]]:
        """Return references to the outputs that the task's code has staged, and to its rejected and malformed rows."""
        for name, rows in ((REJECTED, self.rejected), (MALFORMED, self._malformed())):
            if rows:
                self.staged[name] = stage_rejected(self.where, name, rows)
                write_manifest(self.where, self.staged)
        if not self.staged:
            return []
        outputs = self.staged.items()
        return [make_ref(self.where, name, output).to_json() for name, output in outputs]

    def _malformed(self) -> list[dict[str, str]]:
        """Describe the malformed rows of the batch, as found by the reading with the most malformed rows."""
        own = (each for each in self.read if not isinstance(each, RowsRead))
        # A reading with `reliable=False` has found all malformed rows if it has read the whole
        # batch.
        readings = [*own, *(each for each in self.looked if each.ended)]
        found = max((each.malformed for each in readings), key=len, default=[])
        return [row_aside("", each.reason, each.where, each.content) for each in found]

    def _check_rejected(self, given: Iterable[Mapping[str, Any]], read: Sequence[RowsRead]) -> None:
        """Refuse more rejected rows than the task has read. Some row was rejected twice, or is not from the batch."""
        count = sum(each["rows"] for each in given if each["name"].startswith(REJECTED))
        most = sum(each.found.rows for each in read)
        if count > most and read and not any(each.at_least for each in read):
            problem = f"the task rejected {counted(count, 'rows')} but read only {most}"
            raise refuse(
                self.where, REJECTED, problem, "Reject each row that is read at most once."
            )

    def _note_ack(self, ledger: Ledger, step: BoundStep[Done]) -> None:
        ledger.run(step)

    def emitter(self) -> Source:
        """Return a source that reads the rows of the batch. `ack` checks and closes the source."""
        emitter = self.source.named(self.topology)
        self._emitters.append(emitter)
        return emitter

    def close(self) -> None:
        """Close the sources of this try after all engines have stopped reading from them."""
        from airflow_tx.transaction.processing.consumed_rows import ArrowReading

        for each in (*self.read, *self.looked):
            if isinstance(each, ArrowReading):
                each.close()
        for emitter in self._emitters:
            emitter.close()

    def fail(self, reason: str, refusal: TxError | None = None, *, failed_task: str = "") -> None:
        """Record in the ledger that this try has failed and is not retried, and notify the source.

        :param reason: the reason of the failure, in the form that the ledger keeps.
        :param refusal: the refusal that failed the task, or None if another error failed it.
        :param failed_task: see `Ledger.fail`.
        :raises Refused: a newer try or attempt has started.
        """
        self.close()
        advice = advice_of(refusal)
        if self.anchored:
            from airflow_tx.transaction.processing.begin import note_failed

            with self._connected() as ledger:
                noted = ledger.fail(
                    self.attempt,
                    self.task,
                    reason=reason,
                    remedy=advice,
                    for_good=refusal is not None and refusal.for_good,
                    repairable=refusal is not None and refusal.repairable,
                    failed_task=failed_task,
                )
                send_failure(self.spec.paths, noted)
            if self.begun.replaces is None:
                source = self.spec.source_of(self.begun.incarnation)
                told = Remedy.behind(reason, advice, task=failed_task)
                note_failed(source, self.attempt, self.metadata, told)

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Run a `with` block.

        If the rows of the batch are not settled, end the task in the way that the source decides.

        :raises AirflowRescheduleException: Airflow starts the task again later.
        :raises FailedBatch: the transaction needs another attempt.
        :raises TxError: a user must act.
        """
        try:
            yield
        except SourceNotSettled as error:
            outcome = self.unsettled(error)
            if outcome is not error:
                raise outcome from error
            self.close()
            put_back(self._ti, str(error))

    def unsettled(self, error: SourceNotSettled) -> TxError:
        """Return the error that ends the task if the rows of the batch are not settled, see `Source.unsettled`."""
        with closing(self.spec.named_source) as source:
            return source.unsettled(self.metadata, error)

    @property
    def _where(self) -> dict[str, Any]:
        return {
            "topology": self.topology,
            "txid": self.attempt.txid,
            "attempt": self.attempt.attempt,
        }

    @contextmanager
    def _connected(self) -> Iterator[Ledger]:
        """Connect to the ledger for a single step. Between steps, the task may fork or run for hours."""
        with self.spec.store() as store:
            if self._ledger is None:
                self._ledger = self.spec.ledger(store)
            # Reuse the ledger object. It remembers its own writes, so it need not read them.
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

    def _is_current(self) -> bool:
        """Return whether this try is still the current try of its task."""
        return compat.is_current_try(self.task.task_try)

    def _is_replaced(self) -> bool:
        """Return whether `begin` of the run has stored a newer attempt, or is still running."""
        value = compat.pull(self._ti, self.spec.begin)
        return (
            not isinstance(value, dict)
            or Begun.from_json(value) != self.begun
            or is_beginning(self._ti, self.spec)
        )


# --- around a task of any operator ------------------------------------------------------------------------------


def before_task(context: Context) -> None:
    """Check the input of a task that must ack, and note the start of the task.

    Airflow calls this hook before the task.
    """
    processing = Processing.of(context)
    check_arguments(context["task"], processing.attempt)
    if processing.source.kind is not SourceKind.TRANSACTIONAL:
        check_upstream(context, processing.spec, processing.attempt, processing.task)
    processing.code = digest_of_callable(context["task"])
    dated = processing.source.dated
    if dated is not None and "logical_date" not in context:
        # A run that was deleted and created again may have no dates. Airflow cannot always infer
        # them.
        dates = compat.interval_context(*dated.interval(processing.metadata))
        context.update(dates)  # type: ignore[typeddict-item]
    processing.start()


def after_task(context: Context, result: Any = None) -> None:
    """Ack a task with its result. Airflow calls this hook after the task and before the result becomes an XCom."""
    from airflow_tx.transaction.processing.outputs import check_returned, returned

    task: Any = context["task"]
    processing = Processing.of(context)
    if not processing.acked:
        outputs = list[dict[str, str]]()
        if task.do_xcom_push:
            check_returned(result, processing.spec, processing.task, processing.attempt)
            outputs = returned(result, multiple=task.multiple_outputs)
        with processing.settling():
            processing.ack(outputs)


def task_failed(context: Context) -> None:
    """Record the failure of a task in the ledger, if Airflow does not retry the task."""
    try:
        refusal = refusal_of(context)
        reason, failed_task = noted_reason(context, refusal)
        Processing.of(context).fail(reason, refusal, failed_task=failed_task)
    except Refused as error:
        log.info("%s", error)


def task_ended(context: Context) -> None:
    """Ack a task that has skipped itself or other tasks. Such an ack has no output."""
    try:
        processing = Processing.of(context)
        if processing.started:  # Otherwise the transaction is already committed.
            processing.ack()
    except (AirflowFailException, AirflowSkipException) as error:
        log.info("%s", error)


def hook_up(task: Any) -> None:
    """Add the hooks that call `start`, `ack` and `fail` to a task of any operator."""
    compat.add_hooks(
        task,
        before=before_task,
        after=after_task,
        succeeded=task_ended,
        failed=task_failed,
        skipped=task_ended,
        final=(FailedBatch, RowsRefused),
    )


def stage_frames(task: Any) -> None:
    """Wrap the function of a `@task`, so that returned data frames are staged and references to them become XComs.

    The function itself is wrapped, since Airflow has no hook that replaces the result of a function.
    """
    compat.wrap_function(task, _staging)


def _staging(function: Callable[..., Any], multiple: bool) -> Callable[..., Any]:
    @wraps(function)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        with _own_errors():
            return _with_refs(await function(*arguments, **named), multiple)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        with _own_errors():
            return _with_refs(function(*arguments, **named), multiple)

    return awaited if inspect.iscoroutinefunction(function) else called


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise the source's own error if an engine has wrapped it.

    If the rows are not settled, end the task in the way that the source decides.
    """
    processing = None
    with suppress(RuntimeError):  # The error was raised outside of a task, such as in a test.
        processing = Processing.current()
    with nullcontext() if processing is None else processing.settling(), _of_source(processing):
        yield


@contextmanager
def _of_source(processing: Processing | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        broken = None if processing is None else processing.broken
        # The text of an engine's error contains the traceback of the original error. The traceback
        # names files of this folder.
        told: BaseException | None = error
        while told is not None and os.path.dirname(__file__) not in str(told):
            told = told.__cause__
        if broken is None or broken is error or told is None:
            raise
        raise broken from error


def _with_refs(value: Any, multiple: bool) -> Any:
    """Stage the data frames in the return value of a function. Return the value with references instead of the frames.

    :param multiple: whether each entry of a returned mapping also becomes an XCom.
    """
    if is_frame(value):
        return Processing.current().stage(value)
    if multiple and isinstance(value, Mapping):
        return {
            name: Processing.current().stage(each, name) if is_frame(each) else each
            for name, each in value.items()
        }
    return value
