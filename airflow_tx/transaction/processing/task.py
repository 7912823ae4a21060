"""A processing task's part of its transaction: `start`, `ack` and `fail`. Source: protocol.md §§2, 4.

`Transaction` hangs the functions at the end on the tasks, so plain `@task` code takes part without knowing.
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
# The messages that a task emits: the roots of trees that the committer waits for.


class TaskMessages:
    """The messages of one try of a task; connected from the first one until its ack.

    :param anchored: whether its transaction waits for its ack.
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
        """How many trees it has begun, itself and in its application."""
        return self._by_application + (0 if self._emitter is None else self._emitter.trees)

    def emit(self, count: int, *, tracked: bool) -> list[str]:
        """Make messages; their references.

        :raises TransactionDefinitionError: nothing would wait for them.
        :raises AirflowFailException: they are refused, and would be in another try; the run is to be replayed.
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
        """Take over what its application has emitted.

        :param emitter: the try that it worked for.
        :raises AirflowFailException: it is another one, whose application this try has taken up.
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
        """Give back the connection."""
        if self._emitter is not None:
            self._emitter.close()

    @contextmanager
    def _ackers(self) -> Iterator[AckerStore]:
        with self._spec.store() as store, self._spec.open_ackers(store) as ackers:
            yield ackers


# --- stale input --------------------------------------------------------------------------------------------------
# Input of an earlier attempt: it is refused before a task works on it.


def check_arguments(task: Any, attempt: TransactionAttempt) -> None:
    """Refuse arguments of another attempt: they were read before `begin` ran again.

    :raises AirflowFailException: naming both attempts.
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
    """Refuse input of a task that has worked on an earlier attempt only: an opaque batch may have other rows now.

    :raises AirflowFailException: naming those tasks.
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
        return  # it is final, as its start will find
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
            f"is of an earlier attempt. Clear {names}, or the whole run."
        )


def _batches(value: Any) -> Iterator[TransactionAttempt]:
    if isinstance(value, dict) and {"topology", "txid", "attempt", "rows_digest"} <= value.keys():
        yield TransactionAttempt(value["txid"], value["attempt"])
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _batches(item)


# --- failure ------------------------------------------------------------------------------------------------------
# Why a task failed, as the ledger keeps it.


def failure_reason(context: Context) -> str:
    """Give the error of a task, for the ledger; of an error in the JVM its root cause; "": it left none."""
    from airflow_tx.spark import jvm_cause

    error = context.get("exception")
    if not isinstance(error, BaseException):
        return compat.masked(f"{type(error).__name__}: {error}") if error else ""
    refusal = refusal_of(context)
    # Airflow's own exception repeats the text of the refusal.
    text = problem_of(refusal if refusal and str(refusal) == str(error) else error)
    return compat.masked(str(jvm_cause(error) or f"{type(error).__name__}: {text}"))


def noted_reason(context: Context, refusal: TxError | None) -> tuple[str, str]:
    """Give the reason that the ledger keeps, and the task that failed by it.

    A refusal that only a person can end has its own words, and names no task.
    """
    if refusal is not None and refusal.for_good:
        return compat.masked(problem_of(refusal)), ""
    return failure_reason(context), context["ti"].task_id


def problem_of(error: BaseException) -> str:
    """Say what is wrong: the ledger keeps apart from that what to do.

    It does not say which value of a row is refused: the log of the task does, and not everybody may read that.
    """
    if not isinstance(error, TxError):
        return str(error)
    place = error.fields.get("place")  # of the value that a refusal quotes; "": it quotes none
    if not place:
        return error.problem_text
    told = f"{place} has a value that the log of its task shows"
    return type(error)(**{**error.fields, "problem": told}).problem_text


def refusal_of(context: Context) -> TxError | None:
    """Give the refusal that a task failed by; None: it failed by another error."""
    error = context.get("exception")
    # A refusal that another try would meet again was raised as Airflow's own exception.
    refusal = error.__context__ if isinstance(error, AirflowFailException) else error
    return refusal if isinstance(refusal, TxError) else None


def advice_of(error: BaseException | None) -> Remedy | None:
    """Give what a refusal says to do, for the ledger; None: nothing, or it was another error."""
    advice = error.advice if isinstance(error, TxError) else None
    return None if advice is None else advice.worded(compat.masked)


# --- task ---------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_KEY = "airflow_tx_processing"
_inner: ContextVar[Processing | None] = ContextVar("airflow_tx_processing", default=None)


def ask_rest(readings: Iterable[AnyReading]) -> None:
    """Ask the fullest reading of the batch for one more row, if it has stopped: the source may not count its rows.

    :raises SourceError: it cannot give this row.
    """
    own = (each for each in readings if not isinstance(each, RowsRead) and not each.outputs)
    started = [each for each in own if each.started]
    found = max(started, key=lambda each: (each.found.rows, each.ended), default=None)
    if found is not None and not found.ended:
        found.ask_rest()


def fullest(readings: Iterable[AnyReading]) -> list[RowsRead]:
    """Return of each thing that was read the reading with most rows; a look at some of them before is none."""
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
    """Name the inputs that were read to their end more than once: it is unknown which reading was counted."""
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

    :param anchored: whether its transaction waits for its ack; a side branch is not waited for.
    """

    def __init__(
        self, spec: TransactionSpec, begun: Begun, task: TaskTry, *, anchored: bool
    ) -> None:
        self.spec = spec
        self.begun = begun
        self.task = task
        self.anchored = anchored
        self.messages = TaskMessages(spec, begun, task, anchored=anchored)
        self.read: list[AnyReading] = []  # by its application, and by itself
        self.looked: list[RowsReading] = []
        """The readings by which it proves nothing."""
        self.unproven: list[str] = []
        """Why the rows that its application consumed are not proven."""
        self.staged: dict[str, Output] = {}
        """The outputs that its code has staged, by name."""
        self.broken: Exception | None = None
        """What ended a reading of its batch, which the engine that read it words in its own way."""
        self.rejected: list[dict[str, str]] = []
        """The rows that its code has rejected."""
        self._emitters: list[Source] = []
        self.code = ""
        """Digest of what it runs; "": unknown."""
        self.started = False
        self.acked = False
        self._ledger: Ledger | None = None
        self._ti: Any = None

    @classmethod
    def of(cls, context: Context) -> Processing:
        """Return the one of the running task, whether or not it has started."""
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
        """Return the one of the calling code: of a task that this process has called itself, else of its own."""
        from airflow.sdk import get_current_context

        return _inner.get() or cls.of(get_current_context())

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Let it be the current one within the block."""
        token = _inner.set(self)
        try:
            yield
        finally:
            _inner.reset(token)

    @classmethod
    @contextmanager
    def running(cls, context: Context) -> Iterator[Processing]:
        """Started within the block, for an operator that acks its output itself.

        :raises AirflowSkipException: its transaction is committed.
        :raises AirflowRescheduleException: `begin` of its run has replaced its attempt, or is about to.
        :raises AirflowFailException: another try or attempt has replaced it; or the block raised FailedBatch or
            RowsRefused.
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
        """Say which rows the batch has.

        :raises RowsNotKept: the run was cleared after its commit, and the ledger knows only their digest.
        """
        if is_shortened(self.begun.metadata):
            raise RowsNotKept(topology=self.topology, txid=self.begun.txid)
        return self.begun.metadata

    @property
    def source(self) -> Source:
        return self.spec.source

    @cached_property
    def staging(self) -> StagingArea:
        """The place of its output; the output of a task after the block must outlive the commit."""
        area = self.spec.staging().of_topology(self.begun.incarnation)
        return area if self.task.task_id in self.spec.inside else area.kept

    @property
    def where(self) -> TryDir:
        """The folder of this try in the staging area."""
        return self.staging.try_dir(self.topology, self.attempt, self.task)

    @property
    def keeps_rejected(self) -> bool:
        """Whether the commit keeps the rows that this task rejects."""
        return self.anchored and self.spec.rejected is not None

    def start(self) -> None:
        """Tell the ledger that this try works; a second call does nothing. Raises as `running`."""
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
        """Tell the ledger that this try is done, its output and what it read; a second call does nothing.

        :param outputs: references to staged output, or what `returned` makes of a return value.
        :param consumed_rows: rows of the batch, where that is known better than by what was read.
        :raises SourceError: what it read was replaced while it was read.
        :raises AirflowRescheduleException, AirflowFailException: another try or attempt has replaced it.
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
        """Write an output of its code, with the digest of its rows, and give the reference to it.

        :raises StagingError: a column would change a value, or there is an output of this name.
        """
        where = self.where
        check_own_name(where, name)
        if name in self.staged:
            problem = "the task has staged it before"
            raise refuse(where, name, problem, "Give each output its own name.")
        output = write_digested(where, name, rows)
        if not output.columns:
            # There are no rows either, and no reader takes a file without columns.
            output = replace(output, files=())
        if output.rows and not output.row_digest:
            text = "Output %r of %s has lists, structs, maps or times of day, so its rows are counted and not hashed"
            log.info(text, name, self.task)
        self.staged[name] = output
        return write_manifest(where, self.staged)[name].to_json()

    def _staged_refs(self) -> list[dict[str, Any]]:
        """Refer to what its code has staged and rejected: who reads it proves that it read all rows."""
        for name, rows in ((REJECTED, self.rejected), (MALFORMED, self._malformed())):
            if rows:
                self.staged[name] = stage_rejected(self.where, name, rows)
                write_manifest(self.where, self.staged)
        if not self.staged:
            return []
        outputs = self.staged.items()
        return [make_ref(self.where, name, output).to_json() for name, output in outputs]

    def _malformed(self) -> list[dict[str, str]]:
        """Describe the malformed rows that its fullest reading of the batch has found; they are no task's own."""
        own = (each for each in self.read if not isinstance(each, RowsRead))
        # A reading that proves nothing finds all malformed rows, if it went to the end.
        readings = [*own, *(each for each in self.looked if each.ended)]
        found = max((each.malformed for each in readings), key=len, default=[])
        return [row_aside("", each.reason, each.where, each.content) for each in found]

    def _check_rejected(self, given: Iterable[Mapping[str, Any]], read: Sequence[RowsRead]) -> None:
        """Refuse more rejected rows than were read: some were rejected twice, or are of the task's own making."""
        count = sum(each["rows"] for each in given if each["name"].startswith(REJECTED))
        most = sum(each.found.rows for each in read)
        if count > most and read and not any(each.at_least for each in read):
            problem = f"the task rejected {counted(count, 'rows')} and read {most}"
            raise refuse(
                self.where, REJECTED, problem, "Reject each row that is read at most once."
            )

    def _note_ack(self, ledger: Ledger, step: BoundStep[Done]) -> None:
        ledger.run(step)

    def emitter(self) -> Source:
        """Return a source that emits rows of the batch; it is checked before the ack, and closed then at the latest."""
        emitter = self.source.named(self.topology)
        self._emitters.append(emitter)
        return emitter

    def close(self) -> None:
        """Give back what the sources of its rows hold, once no engine reads them."""
        from airflow_tx.transaction.processing.consumed_rows import ArrowReading

        for each in (*self.read, *self.looked):
            if isinstance(each, ArrowReading):
                each.close()
        for emitter in self._emitters:
            emitter.close()

    def fail(self, reason: str, refusal: TxError | None = None, *, failed_task: str = "") -> None:
        """Note in ledger and source that no try follows by itself; raises `Refused` if a newer one is under way.

        :param refusal: what failed it; None: another error.
        :param failed_task: as for `Ledger.fail`.
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
        """End the task within the block as its source says, if its rows are not settled.

        :raises AirflowRescheduleException: it starts again later.
        :raises FailedBatch: its transaction needs another attempt. TxError: a person has to see to it.
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
        """Ask the source what becomes of a task whose rows are not settled, see `Source.unsettled`."""
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

    def _is_current(self) -> bool:
        """Whether this try is still its task's current one."""
        return compat.is_current_try(self.task.task_try)

    def _is_replaced(self) -> bool:
        """Whether `begin` of its own run has given it another attempt, or is about to."""
        value = compat.pull(self._ti, self.spec.begin)
        return (
            not isinstance(value, dict)
            or Begun.from_json(value) != self.begun
            or is_beginning(self._ti, self.spec)
        )


# --- around a task of any operator ------------------------------------------------------------------------------


def before_task(context: Context) -> None:
    """Run before a task that must ack."""
    processing = Processing.of(context)
    check_arguments(context["task"], processing.attempt)
    if processing.source.kind is not SourceKind.TRANSACTIONAL:
        check_upstream(context, processing.spec, processing.attempt, processing.task)
    processing.code = digest_of_callable(context["task"])
    dated = processing.source.dated
    if dated is not None and "logical_date" not in context:
        # A run that was created again has no dates if Airflow does not infer them.
        dates = compat.interval_context(*dated.interval(processing.metadata))
        context.update(dates)  # type: ignore[typeddict-item]
    processing.start()


def after_task(context: Context, result: Any = None) -> None:
    """Run after the task, before its result becomes an XCom."""
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
    """Run when the task has failed and is not tried again."""
    try:
        refusal = refusal_of(context)
        reason, failed_task = noted_reason(context, refusal)
        Processing.of(context).fail(reason, refusal, failed_task=failed_task)
    except Refused as error:
        log.info("%s", error)


def task_ended(context: Context) -> None:
    """Run when the task has skipped itself, or has skipped others: nothing is missing, there is no output."""
    try:
        processing = Processing.of(context)
        if processing.started:  # else its transaction is committed
            processing.ack()
    except (AirflowFailException, AirflowSkipException) as error:
        log.info("%s", error)


def hook_up(task: Any) -> None:
    """Make a task of any operator start, ack and fail its part of the transaction."""
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
    """Let a `@task` return frames: each is staged, and its reference becomes the XCom.

    Airflow takes the result of the function, and lets nothing replace it afterwards. So the function is wrapped.
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
    """Raise what the source has refused in place of the error that an engine made of it, with its traceback in it.

    A task whose rows are not settled ends as its source says.
    """
    processing = None
    with suppress(RuntimeError):  # it is called outside of a task, as by a test
        processing = Processing.current()
    with nullcontext() if processing is None else processing.settling(), _of_source(processing):
        yield


@contextmanager
def _of_source(processing: Processing | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        broken = None if processing is None else processing.broken
        # An engine tells the traceback of the error that it has met, with the files of this folder.
        told: BaseException | None = error
        while told is not None and os.path.dirname(__file__) not in str(told):
            told = told.__cause__
        if broken is None or broken is error or told is None:
            raise
        raise broken from error


def _with_refs(value: Any, multiple: bool) -> Any:
    """Stage the frames in what a function has returned.

    :param multiple: whether each entry of a mapping becomes an XCom of its own.
    """
    if is_frame(value):
        return Processing.current().stage(value)
    if multiple and isinstance(value, Mapping):
        return {
            name: Processing.current().stage(each, name) if is_frame(each) else each
            for name, each in value.items()
        }
    return value
