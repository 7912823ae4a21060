"""Input of an earlier attempt: it is refused before a task works on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_tx import compat
from airflow_tx.errors import StaleAttempt
from airflow_tx.protocol.attempt import TaskTry, TransactionAttempt

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.spec import TransactionSpec


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
    from airflow_tx.protocol.paths import ack_element
    from airflow_tx.protocol.reader import Reader
    from airflow_tx.protocol.records import TransactionRecord

    before = sorted(context["task"].upstream_task_ids.intersection(spec.tasks))
    if not before:
        return
    with spec.store() as store:
        record = Reader(store).peek_if_any(TransactionRecord, spec.paths.transaction(attempt.txid))
        if record is None:
            return  # it is final, as its start will find
        found = store.children(spec.paths.acks(record.acks))
    if found is None:
        return
    acked = {ack_element(name) for name in found.names}
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
