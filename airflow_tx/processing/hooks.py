"""What happens around a task that must ack, whatever its operator.

`Transaction` hangs these functions on the tasks, so plain `@task` code takes part in a transaction without knowing.
Source: protocol.md §§2, 4.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_tx import compat
from airflow_tx.errors import FailedBatch, Refused, StaleAttempt
from airflow_tx.processing.task import Processing
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import SourceKind

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)


def before_task(context: Context) -> None:
    """Runs before a task that must ack."""
    processing = Processing.of(context)
    check_arguments(context["task"], processing)
    if processing.source.kind is not SourceKind.TRANSACTIONAL:
        _check_upstream(context, processing)
    processing.start()


def after_task(context: Context, result: Any = None) -> None:
    """Runs after it, before its result becomes an XCom."""
    from airflow_tx.processing.outputs import returned

    task: Any = context["task"]
    processing = Processing.of(context)
    if not processing.acked:
        processing.ack(returned(result, multiple=task.multiple_outputs) if task.do_xcom_push else [])


def task_failed(context: Context) -> None:
    """Runs when it has failed and is not tried again."""
    try:
        Processing.of(context).fail(failure_reason(context))
    except Refused as error:
        log.info("%s", error)


def task_ended(context: Context) -> None:
    """Runs when it has skipped itself, or has skipped others: nothing is missing, there is no output."""
    processing = Processing.of(context)
    if not processing.started:
        return  # its transaction is committed
    try:
        processing.ack()
    except AirflowFailException as error:
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
        final=(FailedBatch,),
    )


def failure_reason(context: Context) -> str:
    """The task and its error, for the ledger."""
    error = context.get("exception")
    return (
        f"task {context['ti'].task_id}: {type(error).__name__}: {error}" if error else f"task {context['ti'].task_id}"
    )


def check_arguments(task: Any, processing: Processing) -> None:
    """Stop if the task's arguments are of another attempt: they were read before `begin` ran again.

    :raises AirflowFailException: naming both attempts.
    """
    for field in task.template_fields:
        for found in _batches(getattr(task, field, None)):
            if found != processing.attempt:
                error = StaleAttempt(
                    step="start", txid=found.txid, attempt=found.attempt, newest=processing.attempt.attempt
                )
                raise AirflowFailException(str(error))


def _check_upstream(context: Context, processing: Processing) -> None:
    """Stop if a task before this one has worked on an earlier attempt only: an opaque batch may have other rows now.

    :raises AirflowFailException: naming those tasks.
    """
    from airflow_tx.protocol.paths import ack_element
    from airflow_tx.protocol.reader import Reader
    from airflow_tx.protocol.records import TransactionRecord

    spec, task = processing.spec, context["task"]
    before = sorted(task.upstream_task_ids.intersection(spec.tasks))
    if not before:
        return
    with spec.store() as store:
        record = Reader(store).peek_if_any(TransactionRecord, spec.paths.transaction(processing.attempt.txid))
        if record is None:
            return  # it is final, as its start will find
        found = store.children(spec.paths.acks(processing.attempt.txid, record.acks))
    if found is None:
        return
    acked = {ack_element(name) for name in found.names}
    states = compat.instance_states(context["ti"], before, spec.mapped)
    stale = sorted({of for (of, index), state in states.items() if state == "success" and (of, index) not in acked})
    if stale:
        names = ", ".join(stale)
        raise AirflowFailException(
            f"start of task {processing.task} in transaction {processing.attempt} refused: its input from {names} "
            f"is of an earlier attempt. Clear {names}, or the whole run."
        )


def _batches(value: Any) -> Iterator[TransactionAttempt]:
    if isinstance(value, dict):
        if {"topology", "txid", "attempt", "rows_digest"} <= value.keys():
            yield TransactionAttempt(value["txid"], value["attempt"])
            return
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _batches(item)
