"""The steps of the processing phase: `start`, `ack`, `fail`, and then `processed`. Source: docs/protocol.md §§2, 4."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from airflow_tx.errors import (
    FailedTransaction,
    IncompleteBatch,
    MessagesLost,
    RowsChanged,
    RowsNotProven,
    SkippedTransaction,
    StaleAttempt,
    StaleTry,
    UnknownTransaction,
)
from airflow_tx.protocol.answers import AlreadyCommitted, Done, FailureNoted, Processed
from airflow_tx.protocol.api import Create, Put
from airflow_tx.protocol.attempt import TaskTry, TransactionAttempt
from airflow_tx.protocol.batch_words import counted
from airflow_tx.protocol.consumers import RowsRead, check_rows, unproven_rows
from airflow_tx.protocol.json_text import digest
from airflow_tx.protocol.loss import shortened
from airflow_tx.protocol.paths import Paths, ack_element, ack_name
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import (
    Ack,
    Phase,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.protocol.step import Decision, Stamp, is_another, is_committed, put

_ANOTHER = "one of another transaction of this number (the ledger was reset, repaired or set back)"
Instance = tuple[str, int]
"""A task id and a map index, −1 for a task that is not mapped."""


def newest_record(
    read: Reader, paths: Paths, attempt: TransactionAttempt, step: str
) -> TransactionRecord | AlreadyCommitted:
    """Read the record of a transaction whose newest attempt is `attempt`.

    :raises StaleAttempt: a newer attempt exists, or the transaction is another one.
    :raises SkippedTransaction: it was skipped.
    :raises UnknownTransaction: there is no such transaction.
    """
    record = read.find(TransactionRecord, paths.transaction(attempt.txid))
    if record is None and is_another(read, paths, attempt.txid, attempt.birth):
        raise StaleAttempt(step=step, txid=attempt.txid, attempt=attempt.attempt, newest=_ANOTHER)
    if record is None:
        if is_committed(read, paths, attempt.txid):
            return AlreadyCommitted(attempt.txid)
        if read.peek_if_any(Skipped, paths.skipped(attempt.txid)) is not None:
            raise SkippedTransaction(topology=paths.topology, txid=attempt.txid)
        raise UnknownTransaction(
            what=f"open transaction {attempt.txid}", path=paths.transaction(attempt.txid)
        )
    if attempt.birth and record.birth != attempt.birth:
        raise StaleAttempt(step=step, txid=attempt.txid, attempt=attempt.attempt, newest=_ANOTHER)
    if record.attempt != attempt.attempt:
        raise StaleAttempt(
            step=step, txid=attempt.txid, attempt=attempt.attempt, newest=record.attempt
        )
    return record


def start(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    attempt: TransactionAttempt,
    task: TaskTry,
    *,
    is_current: Callable[[], bool],
) -> Decision[Done | AlreadyCommitted]:
    """Let a processing task work; from FAILED, PROCESSED and COMMITTING its transaction is PROCESSING again.

    :param is_current: asks Airflow whether `task` is its task's current try, where another one has started before.
    :raises StaleAttempt, StaleTry: a newer attempt, or a newer try of this task, exists.
    """
    record = newest_record(read, paths, attempt, "start")
    if isinstance(record, AlreadyCommitted):
        return Decision(record)
    folder = paths.acks(record.acks)
    path = f"{folder}/{ack_name(task.task_id, task.map_index)}"
    found = read.find(Ack, path, new=True)  # a first try has no entry yet
    another = found is not None and not task.same_instance(found.task_try)
    if found is not None and another and not read.ask("current", found.task_try, is_current):
        raise _stale_try("start", attempt, task, found)
    own = (
        "0" if _by_begin(record, task) else f"{stamp.message_id:016x}"
    )  # a mapped instance emits it to itself
    started = Ack(task.task_try, stamp.op, emitted=own)
    if found is not None and found.done and not another:
        # Airflow may have ended this try because it took the success of the acked try for that one.
        started = replace(found, op=stamp.op)
    entry = encode(started)
    writes = [Create(path, entry) if found is None else Put(path, entry), Put(folder, b"")]
    if record.phase is not Phase.PROCESSING:
        again = replace(
            record, phase=Phase.PROCESSING, epoch=record.epoch + 1, op=stamp.op, processed=None
        )
        again = replace(again, error=None, remedy=None, for_good=0)
        writes.append(Put(paths.transaction(attempt.txid), encode(again)))
    return Decision(Done(), tuple(writes), path)


def ack(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    attempt: TransactionAttempt,
    task: TaskTry,
    *,
    rows: int | None = None,
    outputs: Collection[Any] = (),
    trees: int = 0,
    rows_read: Collection[RowsRead] = (),
    code: str = "",
    unproven: Collection[str] = (),
) -> Decision[Done]:
    """Note that a processing task is done, its output, and what it read.

    :param rows: rows it consumed, if counted.
    :param outputs: plain-JSON references to what it wrote.
    :param trees: of messages, whose roots it has emitted.
    :param code: digest of the code that it ran, if known.
    :param unproven: why the rows that it consumed are not proven.
    :raises StaleAttempt, StaleTry, FailedTransaction: and nothing is noted.
    """
    record = newest_record(read, paths, attempt, "ack")
    if isinstance(record, AlreadyCommitted):
        raise UnknownTransaction(
            what=f"open transaction {attempt.txid}", path=paths.transaction(attempt.txid)
        )
    folder = paths.acks(record.acks)
    path = f"{folder}/{ack_name(task.task_id, task.map_index)}"
    found = _own(read, path, attempt, task, "ack")
    if record.phase is not Phase.PROCESSING and not found.done:
        raise FailedTransaction(
            txid=attempt.txid, attempt=attempt.attempt, reason=record.error or record.phase.value
        )
    acked = record.tasks[task.task_id] if _by_begin(record, task) else found.emitted
    entry = replace(
        found,
        op=stamp.op,
        acked=acked,
        done=True,
        rows=rows,
        outputs=list(outputs),
        trees=trees,
        read=[each.to_json() for each in rows_read],
        code=code,
        unproven=list(unproven),
    )
    return Decision(Done(), (Put(path, encode(entry)), Put(folder, b"")), path)


def fail(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    attempt: TransactionAttempt,
    task: TaskTry,
    *,
    reason: str,
    remedy: str | None = None,
    for_good: bool = False,
) -> Decision[FailureNoted]:
    """Note that a processing task has failed finally: the attempt cannot commit until it is run again.

    :param remedy: what the refusal says to do; None: it was another error.
    :param for_good: whether a replay would be refused alike; it is not replayed until a person acts or repairs.
    :raises StaleAttempt, StaleTry: it is not for this try to say.
    """
    record = newest_record(read, paths, attempt, "fail")
    if isinstance(record, AlreadyCommitted) or record.phase not in (
        Phase.PROCESSING,
        Phase.PROCESSED,
    ):
        return Decision(FailureNoted(first=False))
    path = f"{paths.acks(record.acks)}/{ack_name(task.task_id, task.map_index)}"
    _own(read, path, attempt, task, "fail")
    generation = read.get(TopologyRecord, paths.record).generation if for_good else 0
    failed = replace(record, for_good=generation)
    return _failed(paths, stamp, attempt, failed, reason, remedy=remedy)


def fail_messages(
    read: Reader, stamp: Stamp, paths: Paths, attempt: TransactionAttempt, reason: str
) -> Decision[FailureNoted | AlreadyCommitted]:
    """Note that messages of an attempt have failed, or are not acked in time: it is replayed, not tried again.

    :raises StaleAttempt: a newer attempt exists.
    """
    record = newest_record(read, paths, attempt, "fail")
    if isinstance(record, AlreadyCommitted):
        return Decision(record)
    if record.phase is not Phase.PROCESSING:
        return Decision(FailureNoted(first=False))
    return _failed(paths, stamp, attempt, record, reason)


def _failed(
    paths: Paths,
    stamp: Stamp,
    attempt: TransactionAttempt,
    record: TransactionRecord,
    reason: str,
    *,
    remedy: str | None = None,
) -> Decision[FailureNoted]:
    failed = replace(record.with_failure(stamp.op, reason, remedy), phase=Phase.FAILED)
    return put(paths.transaction(attempt.txid), failed, FailureNoted(first=True))


def processed(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    attempt: TransactionAttempt,
    *,
    rows_digest: str,
    expected: Collection[Instance] | None = None,
    emitted: Mapping[TaskTry, int] | None = None,
    same_rows: bool = False,
    proven: bool = False,
) -> Decision[Processed | AlreadyCommitted]:
    """Note that everything that must ack has acked: the batch is complete, and all its rows were read.

    :param expected: the instances that count: Airflow knows that they succeeded. Others have no output,
            even if they acked: skipped ones, removed ones. None: the tasks that `begin` named, and all started ones.
    :param emitted: by try of a task, how many trees of messages the ackers know, all of them complete.
    :param same_rows: whether every attempt has to read the same rows, as of a transactional source.
    :param proven: whether rows that are not proven are refused.
    :raises IncompleteBatch, MessagesLost, RowsDiffer, RowsChanged, FailedTransaction, StaleAttempt: it is not.
    :raises RowsNotProven: it may be, but this is unknown.
    """
    record = newest_record(read, paths, attempt, "commit")
    if isinstance(record, AlreadyCommitted):
        return Decision(record)
    if record.phase is Phase.FAILED:
        raise FailedTransaction(
            txid=attempt.txid, attempt=attempt.attempt, reason=record.error or "no reason noted"
        )
    if record.rows_digest != rows_digest:
        raise RowsChanged(
            txid=attempt.txid, attempt=attempt.attempt, digest=rows_digest, found=record.rows_digest
        )
    found = _acks(read, paths.acks(record.acks))
    wanted = must_ack(record, found) if expected is None else set(expected)
    acks = {instance: entry for instance, entry in found.items() if instance in wanted}
    missing = missing_acks(acks, wanted)
    value = ack_val(record, acks, wanted)
    if missing or value:
        tasks = ", ".join(shortened(missing)) or f"unknown tasks (ack val {value:016x})"
        raise IncompleteBatch(txid=attempt.txid, attempt=attempt.attempt, tasks=tasks)
    first = record.counted if same_rows else None
    # Rows that were decided again were not counted again.
    batch = check_rows(
        paths.topology, attempt, acks, None if record.changed else record.size, first
    )
    # A replay that found no rows has none to consume.
    unproven = (
        ()
        if rows_digest == digest(None)
        else unproven_rows(acks, None if record.changed else record.size)
    )
    if unproven and proven:
        problem = "; ".join(shortened(list(unproven)))
        raise RowsNotProven(txid=attempt.txid, attempt=attempt.attempt, problem=problem)
    result = Processed(record.epoch, acks, value, unproven, key=record.key, began=record.began)
    if record.phase is not Phase.PROCESSING:
        return Decision(result)
    _check_trees(attempt, found, emitted or {})
    path = paths.transaction(attempt.txid)
    counted = first or (None if batch is None else batch.to_json())
    done = replace(record, phase=Phase.PROCESSED, processed=stamp.now, counted=counted, op=stamp.op)
    return put(path, done, result)


def _check_trees(
    attempt: TransactionAttempt, acks: Mapping[Instance, Ack], emitted: Mapping[TaskTry, int]
) -> None:
    """Refuse trees of messages that the ackers have lost, or that a try which does not count has emitted."""
    acked = {
        TaskTry(*instance, entry.task_try): entry.trees
        for instance, entry in acks.items()
        if entry.trees
    }
    if acked == emitted:
        return
    expected, found = (
        ", ".join(
            f"{counted(count, 'trees')} of {task} (try {task.task_try})"
            for task, count in each.items()
        )
        or "no trees"
        for each in (acked, emitted)
    )
    raise MessagesLost(txid=attempt.txid, attempt=attempt.attempt, expected=expected, found=found)


def must_ack(
    record: TransactionRecord, acks: Collection[Instance], mapped: Collection[str] = ()
) -> set[Instance]:
    """List the tasks that must ack, from the ledger: the tasks that `begin` named, and all started ones.

    :param mapped: tasks that ack by their instances only.
    """
    return {*acks, *((task, -1) for task in record.tasks if task not in mapped)}


def ack_val(
    record: TransactionRecord, acks: Mapping[Instance, Ack], wanted: Collection[Instance]
) -> int:
    """XOR of all ids emitted and acked: 0 when everything emitted was acked (Storm's ack val)."""
    value = 0
    for task, emitted in record.tasks.items():
        value ^= int(emitted, 16) if (task, -1) in wanted else 0
    for entry in acks.values():
        value ^= int(entry.emitted, 16) ^ int(entry.acked, 16)
    return value


def missing_acks(acks: Mapping[Instance, Ack], wanted: Collection[Instance]) -> list[str]:
    """Name the instances that should have acked and have not."""
    missing = [instance for instance in wanted if instance not in acks or not acks[instance].done]
    return [task if index < 0 else f"{task}[{index}]" for task, index in sorted(missing)]


def _acks(read: Reader, folder: str) -> dict[Instance, Ack]:
    return {ack_element(name): read.covered(Ack, f"{folder}/{name}") for name in read.names(folder)}


def _by_begin(record: TransactionRecord, task: TaskTry) -> bool:
    return task.map_index < 0 and task.task_id in record.tasks


def _own(read: Reader, path: str, attempt: TransactionAttempt, task: TaskTry, step: str) -> Ack:
    found = read.find(Ack, path)
    if found is None or not task.same_instance(found.task_try):
        raise _stale_try(step, attempt, task, found)
    return found


def _stale_try(
    step: str, attempt: TransactionAttempt, task: TaskTry, found: Ack | None
) -> StaleTry:
    return StaleTry(
        step=step,
        task=task.task_id,
        txid=attempt.txid,
        attempt=attempt.attempt,
        found="no try" if found is None else found.task_try,
        task_try=task.task_try,
    )
