"""The committer waits until every message of its attempt is acked. See docs/acks.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeGuard

from airflow_tx.acks.api import AckerStore
from airflow_tx.acks.reference import Origin, origin_of
from airflow_tx.acks.tree import TreeReport
from airflow_tx.errors import AckersUnavailable, MessagesFailed, StaleMessage, UnknownMessage
from airflow_tx.metrics import send_failure
from airflow_tx.processing.outcome import note_failed
from airflow_tx.protocol import processing
from airflow_tx.protocol.answers import Begun
from airflow_tx.protocol.attempt import TaskTry
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.records import Phase, TransactionRecord
from airflow_tx.spec import TransactionSpec


@dataclass(frozen=True)
class Messages:
    """How the messages of an attempt are.

    :param emitted: by try of a task, how many trees of messages the ackers know.
    :param waiting: the missing messages, in words; "": none.
    :param problem: why they are never all acked; "": they may be.
    """

    emitted: Mapping[TaskTry, int] = field(default_factory=dict)
    waiting: str = ""
    problem: str = ""


def is_processing(record: TransactionRecord | None, attempt: int) -> TypeGuard[TransactionRecord]:
    """Whether an attempt may still wait for messages; once it is processed, they were acked."""
    return record is not None and record.attempt == attempt and record.phase is Phase.PROCESSING


def messages_of(
    ackers: Callable[[], AbstractContextManager[AckerStore]],
    origin: Origin,
    record: TransactionRecord,
    *,
    timeout: float,
    now: datetime,
) -> Messages:
    """Ask the ackers how the messages of an attempt are.

    Ackers without it have lost it, or it has just ended: the ledger decides.

    :param ackers: connects to them.
    :param timeout: seconds that they have from begin on.
    """
    try:
        with ackers() as store:
            found = _judged(store.report(origin))
    except (StaleMessage, UnknownMessage):
        return Messages()
    except AckersUnavailable as error:
        found = Messages(waiting=str(error))
    began = datetime.fromisoformat(record.began)
    if found.waiting and now >= began + timedelta(seconds=timeout):
        return Messages(
            problem=f"after {timeout:g} s (message_timeout) it still waits: {found.waiting}"
        )
    return found


def _judged(report: TreeReport) -> Messages:
    if report.failed is not None:
        return Messages(problem=f"a message was failed: {report.failed}")
    if report.twice:
        return Messages(problem=f"messages of {', '.join(report.twice)} were acked more than once")
    if not report.open:
        return Messages(report.emitted)
    trees = ", ".join(f"{count} of task {task}" for task, count in report.open.items())
    return Messages(
        waiting=f"of {sum(report.emitted.values())} trees of messages these are not complete: {trees}"
    )


def await_messages(spec: TransactionSpec, ledger: Ledger, begun: Begun) -> Messages:
    """Ask whether every message of an attempt is acked; what cannot become so fails the attempt.

    :raises MessagesFailed: a message was failed, or the time for them is up.
    """
    attempt = begun.attempt
    record = ledger.status(attempt.txid) if spec.ackers else None
    if not is_processing(record, attempt.attempt):
        return Messages()
    found = messages_of(
        lambda: spec.open_ackers(ledger.store),
        origin_of(spec.topology, begun.attempt, begun.incarnation),
        record,
        timeout=spec.timeout,
        now=ledger.clock.now(),
    )
    if found.problem:
        send_failure(spec.paths, ledger.run(processing.fail_messages, attempt, found.problem))
        if begun.replaces is None:
            source = spec.source_of(begun.incarnation)
            note_failed(source, attempt, begun.metadata, found.problem)
        raise MessagesFailed(txid=attempt.txid, attempt=attempt.attempt, reason=found.problem)
    return found
