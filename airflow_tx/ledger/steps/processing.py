"""The steps of the processing phase: `start`, `ack`, `fail`, and finally `processed`.

Source: docs/protocol.md §§2, 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_tx.base.errors import (
    FailedTransaction,
    IncompleteBatch,
    MessagesLost,
    RowsChanged,
    RowsDiffer,
    RowsNotProven,
    SkippedTransaction,
    StaleAttempt,
    StaleTry,
    UnknownTransaction,
)
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger.answers import AlreadyCommitted, Done, FailureNoted, Processed
from airflow_tx.ledger.api import Create, Paths, Put, ack_element, ack_name
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt, instance_name
from airflow_tx.ledger.batch_words import counted, shortened
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Code, TaskRows
from airflow_tx.ledger.records import (
    Ack,
    BatchRows,
    Phase,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.ledger.steps.step import Decision, Stamp, is_another, is_committed, put

# --- consumers ----------------------------------------------------------------------------------------------------
# Before the turn is granted, the rows that tasks read are compared with the rows that the source or
# other tasks counted. Source: docs/protocol.md §4.
#
# Only counted rows are compared.


Instance = tuple[str, int]
"""The task id and the map index of a task instance. The map index is −1 if the task is not mapped."""
_Acks = Mapping[Instance, Ack]


class OutputName(NamedTuple):
    """The name of an output of a task instance.

    :ivar content: text that identifies the rows which this try of the task wrote; "" if unknown.
    """

    task_id: str
    map_index: int
    name: str
    content: str = ""

    @staticmethod
    def to_json(outputs: Iterable[OutputName]) -> dict[str, Any]:
        """Return the names of outputs in the form that acks, manifests and descriptors keep."""
        found = list(outputs)
        contents = [each.content for each in found]
        names = [[each.task_id, each.map_index, each.name] for each in found]
        return {"outputs": names, **({"contents": contents} if any(contents) else {})}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> tuple[OutputName, ...]:
        """Create the names from the JSON of `to_json`. A missing `content` means that it is unknown."""
        names = value.get("outputs", ())
        contents = value.get("contents") or [""] * len(names)
        return tuple(
            cls(task, index, name, content)
            for (task, index, name), content in zip(names, contents, strict=True)
        )


def content_of(entry: Mapping[str, Any]) -> str:
    """Return a text that identifies the rows of a staged output: their digest, or the try that wrote them.

    :param entry: the entry of the output in an ack, or a reference to the output.
    """
    return str(entry.get("row_digest") or entry.get("task_try") or "")


_CONSUMER = "Clear {task}, which must read each row once. If it reads fewer rows on purpose, set reliable=False."


@dataclass(frozen=True)
class RowsRead:
    """The rows that one try has read from one input.

    :param found: the row count and the digest; of several readings, those with the most rows.
    :param outputs: the outputs of tasks that form the input; empty if the input is the batch.
    :param at_least: whether the reader may have left out rows that cannot change the result. Spark does this if one
        side of a join is empty.
    :param stopped: whether the reader stopped before the end of the input.
    :param more: whether the source had more rows than the reader requested.
    """

    found: RowsDigest
    outputs: tuple[OutputName, ...] = ()
    at_least: bool = False
    stopped: bool = False
    more: bool = False

    def proves_against(self, whole: RowsDigest) -> bool:
        """Return whether the reading contradicts `whole`, the total of the input."""
        return not self.found.agrees(whole) and not (self.at_least and self.found.rows < whole.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the reading in the form that acks and manifests keep."""
        stopped = {"stopped": True} if self.stopped else {}
        stopped |= {"more": True} if self.more else {}
        names = OutputName.to_json(self.outputs)
        return {**self.found.to_json(), **names, "at_least": self.at_least, **stopped}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowsRead:
        """Create the reading from the JSON of `to_json`."""
        found, names = RowsDigest.from_json(value), OutputName.from_json(value)
        stopped = value.get("stopped", False)
        return cls(found, names, value["at_least"], stopped, value.get("more", False))


def digest_text(found: BatchRows | None) -> str:
    """Return the digests of a batch as the text that the history keeps. Return "" if there are none."""
    return "" if found is None else " ".join(sorted(found.digests.values()))


def counted_of(rows: int | None, text: str) -> BatchRows | None:
    """Return a batch's rows from the count and digests in the history. Return None if no task counted them.

    :param text: the result of `digest_text`.
    """
    digests = {each.rpartition(":")[0]: each for each in text.split()}
    return None if rows is None else BatchRows(rows, digests)


def consumed(read: Iterable[RowsRead]) -> int | None:
    """Return how many rows of the batch a try read. Return None if it did not count them."""
    return max((each.found.rows for each in read if not each.outputs), default=None)


def check_rows(
    topology: str,
    attempt: TransactionAttempt,
    acks: _Acks,
    size: Mapping[str, Any] | None,
    first: BatchRows | None,
) -> BatchRows | None:
    """Compare the rows that tasks read with the rows of the source, of the other readers, and of the writing tasks.

    :param topology: name of the topology, for the command in an error.
    :param acks: the acks of the instances that count.
    :param size: number of rows that the source counted, as in the record.
    :param first: the rows of the first complete attempt, if every attempt must read the same rows.
    :return: the rows of the batch; None if no task counted them.
    :raises RowsDiffer: the counts or the digests do not agree.
    """
    batch = _batch(attempt, acks, size)
    if batch is not None and first is not None:
        _check_first(topology, attempt, batch, first)
    for name, read in _reads(acks):
        if read.outputs:
            _check_outputs(attempt, acks, name, read)
    return batch


def unproven_rows(acks: _Acks, size: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Explain why there is no proof that an attempt's tasks read each row once. Return () if there is proof.

    A reading is proven if the task counted all rows exactly, or if its count equals a known total.

    :param acks: the acks of the instances that count, after `check_rows` found no difference.
    :param size: number of rows that the source counted; None if it did not count.
    """
    reads = list(_reads(acks))
    exact = [
        read.found.rows
        for _, read in reads
        if not read.outputs and not read.at_least and not read.stopped
    ]
    counted = None if size is None or size.get("at_most") else size.get("rows")
    known = {*exact, *([] if counted is None else [counted])}
    found = [
        f"task {instance_name(*instance)}: {why}"
        for instance, ack in sorted(acks.items())
        for why in ack.unproven
    ]
    for name, read in reads:
        whole = known if not read.outputs else _total(acks, read)
        if (read.at_least or read.stopped) and read.found.rows not in whole:
            found.append(f"task {name}: {_short(read)}")
    batch = [read for _, read in reads if not read.outputs]
    if not batch and not found and counted != 0:
        found.append("no task has counted the rows of the batch")
    return tuple(found)


def _total(acks: _Acks, read: RowsRead) -> set[int]:
    emitted = [_emitted(acks, output) for output in dict.fromkeys(read.outputs)]
    return (
        {sum(each.rows for each in emitted if each is not None)} if None not in emitted else set()
    )


def in_words(outputs: tuple[OutputName, ...]) -> str:
    """Describe a reading's input in a few words: a task's output, or the batch."""
    return f"output {outputs[0].name!r} of task {outputs[0].task_id}" if outputs else "the batch"


def _short(read: RowsRead) -> str:
    what = in_words(read.outputs)
    rows = counted(read.found.rows, "rows")
    if read.stopped:
        return f"it stopped after {rows} of {what}, so the total is unknown"
    return f"it read {rows} of {what} or more: Spark may stop early beside a join or SQL text"


def _batch(
    attempt: TransactionAttempt, acks: _Acks, size: Mapping[str, Any] | None
) -> BatchRows | None:
    known: dict[str, tuple[str, RowsDigest]] = {}
    consumers = [(name, read) for name, read in _reads(acks) if not read.outputs]
    for name, read in sorted(consumers, key=lambda consumer: consumer[1].at_least):
        _check_size(attempt, name, read, size)
        for other, whole in known.values():
            if read.proves_against(whole):
                problem = (
                    f"task {other} read {whole} of the batch, but task {name} read {read.found}"
                )
                raise _differ(attempt, problem, _CONSUMER.format(task="the one"))
        if not read.at_least:
            known.setdefault(read.found.form, (name, read.found))
    for name, read in consumers:
        if read.more:
            problem = f"task {name} read {counted(read.found.rows, 'rows')} of the batch, but the batch has more rows"
            raise _differ(attempt, problem, _CONSUMER.format(task=name))
    found = [each for _, each in known.values()]
    return (
        BatchRows(found[0].rows, {each.form: each.text for each in found if each.text})
        if found
        else None
    )


def _check_size(
    attempt: TransactionAttempt, name: str, read: RowsRead, size: Mapping[str, Any] | None
) -> None:
    if size is None or (count := size.get("rows")) is None:
        return
    at_most = size.get("at_most", False)
    if not RowsRead(read.found, at_least=at_most or read.at_least).proves_against(
        RowsDigest(count)
    ):
        return
    problem = (
        f"task {name} read {counted(read.found.rows, 'rows')} of the batch, but its source counted "
    )
    problem += f"at most {count}" if at_most else str(count)
    raise _differ(attempt, problem, _CONSUMER.format(task=name))


def _check_first(
    topology: str, attempt: TransactionAttempt, batch: BatchRows, first: BatchRows
) -> None:
    other = [text for form, text in batch.digests.items() if first.digests.get(form, text) != text]
    if batch.rows == first.rows and not other:
        return
    known = ", ".join(first.digests.values())
    problem = (
        f"this attempt read {counted(batch.rows, 'rows')} of the batch ({digest_text(batch)}), "
        f"an earlier one {first.rows} ({known}), but a transactional source must return the same rows again"
    )
    remedy = (
        "Restore the rows of the source and clear the run. Or take the current rows: "
        + Command.of("replay", topology, attempt.txid, "--changed-rows", "--why", "TEXT")
        + "."
    )
    raise _differ(attempt, problem, remedy)


def _check_outputs(attempt: TransactionAttempt, acks: _Acks, name: str, read: RowsRead) -> None:
    for output in read.outputs:
        entry = _entry(acks, output)
        if entry is not None and output.content not in ("", content_of(entry)):
            problem = (
                f"task {name} read output {output.name!r} of task {output.task_id}, which ran again "
                "since then and gave a different one"
            )
            raise _differ(attempt, problem, f"Clear {name}, so that it reads the output again.")
    emitted = [_emitted(acks, output) for output in dict.fromkeys(read.outputs)]
    known = [each for each in emitted if each is not None]
    if len(known) < len(emitted):
        return
    total = sum(known, RowsDigest(0))
    if read.proves_against(total):
        problem = (
            f"task {name} read {read.found} of {in_words(read.outputs)}, which emitted {total}"
        )
        raise _differ(attempt, problem, _CONSUMER.format(task=name))


def _emitted(acks: _Acks, output: OutputName) -> RowsDigest | None:
    """Return the number of rows that a task counted in an output.

    Return None if the output is unreliable or not staged.
    """
    entry = _entry(acks, output)
    return None if entry is None else RowsDigest.of(entry["rows"], entry.get("row_digest", ""))


def _entry(acks: _Acks, output: OutputName) -> Mapping[str, Any] | None:
    """Return the entry of a staged output if each of its rows must be read once."""
    ack = acks.get((output.task_id, output.map_index))
    entries: Iterable[Mapping[str, Any]] = ack.outputs if ack is not None else ()
    for entry in entries:
        if entry["name"] == output.name and "rows" in entry and entry.get("reliable", True):
            return entry
    return None


def _reads(acks: _Acks) -> Iterator[tuple[str, RowsRead]]:
    for (task, index), ack in sorted(acks.items()):
        for entry in ack.read:
            yield instance_name(task, index), RowsRead.from_json(entry)


def _differ(attempt: TransactionAttempt, problem: str, remedy: Remedy | str) -> RowsDiffer:
    return RowsDiffer(txid=attempt.txid, attempt=attempt.attempt, problem=problem, remedy=remedy)


# --- processing ---------------------------------------------------------------------------------------------------


_ANOTHER = "of another transaction with the same txid (the ledger was reset, repaired or restored)"


def newest_record(
    read: Reader, paths: Paths, attempt: TransactionAttempt, step: str
) -> TransactionRecord | AlreadyCommitted:
    """Read the record of a transaction whose newest attempt is `attempt`.

    :raises StaleAttempt: a newer attempt exists, or the txid belongs to another transaction.
    :raises SkippedTransaction: the transaction was skipped.
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
    is_current: Callable[[], bool] = lambda: True,
) -> Decision[Done | AlreadyCommitted]:
    """Record that a processing task starts. A transaction in FAILED, PROCESSED or COMMITTING returns to PROCESSING.

    :param is_current: function that queries Airflow whether `task` is the current try.
    :raises StaleAttempt, StaleTry: a newer attempt or try exists.
    """
    record = newest_record(read, paths, attempt, "start")
    if isinstance(record, AlreadyCommitted):
        return Decision(record)
    folder = paths.acks(record.acks)
    path = f"{folder}/{ack_name(task.task_id, task.map_index)}"
    found = read.find(Ack, path, new=True)  # No ack exists before the first try.
    another = found is not None and not task.same_instance(found.task_try)
    if found is not None and another and not read.ask("current", found.task_try, is_current):
        raise _stale_try("start", attempt, task, found)
    own = (
        "0" if _by_begin(record, task) else f"{stamp.message_id:016x}"
    )  # Each mapped instance has its own message id.
    started = Ack(task.task_try, stamp.op, emitted=own)
    if found is not None and found.done and not another:
        # Keep the ack of the earlier try. Airflow may mistake its success for this try's success,
        # and end this try.
        started = replace(found, op=stamp.op)
    entry = encode(started)
    writes = [Create(path, entry) if found is None else Put(path, entry), Put(folder, b"")]
    if record.phase is not Phase.PROCESSING:
        again = replace(
            record.without_failure(),
            phase=Phase.PROCESSING,
            epoch=record.epoch + 1,
            op=stamp.op,
            processed=None,
        )
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
    """Record that a processing task is done, with its outputs and the rows that it read.

    :param rows: number of rows that the task read; None if it did not count.
    :param outputs: references to the outputs that the task wrote, as plain JSON.
    :param trees: number of message trees that this try began.
    :param code: digest of the code that the task ran; "" if unknown.
    :param unproven: reasons why there is no proof that the task read every row once.
    :raises StaleAttempt, StaleTry, FailedTransaction: the ack is not recorded.
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
        reason = record.failure if record.said else record.phase.value
        raise FailedTransaction(txid=attempt.txid, attempt=attempt.attempt, reason=reason)
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
    remedy: Remedy | None = None,
    for_good: bool = False,
    repairable: bool = False,
    failed_task: str = "",
) -> Decision[FailureNoted]:
    """Record that a processing task has failed and is not retried. The attempt cannot commit until the task runs again.

    :param remedy: the remedy of the refusal; None if the error is not a refusal.
    :param for_good: whether a replay would be refused again. If so, no replay starts until a user acts.
    :param repairable: whether the failure can end after a repair or once a store is available again.
    :param failed_task: task that failed, if `reason` is its error. "" if `reason` is a refusal that already names its
        subject.
    :raises StaleAttempt, StaleTry: a newer attempt or try exists.
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
    noted = replace(record, for_good=generation)
    return _failed(
        paths,
        stamp,
        attempt,
        noted,
        reason,
        remedy=remedy,
        repairable=repairable,
        failed_task=failed_task,
    )


def fail_messages(
    read: Reader, stamp: Stamp, paths: Paths, attempt: TransactionAttempt, reason: str
) -> Decision[FailureNoted | AlreadyCommitted]:
    """Record that messages of an attempt failed or were not acked in time. The attempt must be replayed.

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
    remedy: Remedy | None = None,
    repairable: bool = False,
    failed_task: str = "",
) -> Decision[FailureNoted]:
    noted = record.with_failure(
        stamp.op, reason, remedy, repairable=repairable, failed_task=failed_task
    )
    failed = replace(noted, phase=Phase.FAILED)
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
    """Check that every task that must ack has acked, and record that the attempt is processed.

    :param expected: the instances that succeeded according to Airflow. Acks of other instances do not count, since
        those instances were skipped or removed. None means the tasks that `begin` listed and all started instances.
    :param emitted: number of complete message trees in the ackers, by try of a task.
    :param same_rows: whether every attempt must read the same rows, as for a transactional source.
    :param proven: whether to refuse the batch without proof that its rows were read once.
    :raises IncompleteBatch, MessagesLost, RowsDiffer, RowsChanged, FailedTransaction, StaleAttempt: the batch is not
        complete.
    :raises RowsNotProven: there is no proof that each row was read once.
    """
    record = newest_record(read, paths, attempt, "commit")
    if isinstance(record, AlreadyCommitted):
        return Decision(record)
    if record.phase is Phase.FAILED:
        raise FailedTransaction(txid=attempt.txid, attempt=attempt.attempt, reason=record.failure)
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
    # A source that decides the rows again does not count them again.
    batch = check_rows(
        paths.topology, attempt, acks, None if record.changed else record.size, first
    )
    # If a replay found no rows, its tasks have nothing to read.
    unproven = (
        ()
        if rows_digest == digest(None)
        else unproven_rows(acks, None if record.changed else record.size)
    )
    if unproven and proven:
        problem = "; ".join(shortened(list(unproven)))
        raise RowsNotProven(txid=attempt.txid, attempt=attempt.attempt, problem=problem)
    result = Processed(record.epoch, acks, unproven, key=record.key, began=record.began)
    if record.phase is not Phase.PROCESSING:
        return Decision(result)
    _check_trees(attempt, found, emitted or {})
    path = paths.transaction(attempt.txid)
    done = replace(
        record,
        phase=Phase.PROCESSED,
        processed=stamp.now,
        counted=first or batch,
        op=stamp.op,
    )
    return put(path, done, result)


def _check_trees(
    attempt: TransactionAttempt, acks: Mapping[Instance, Ack], emitted: Mapping[TaskTry, int]
) -> None:
    """Raise an error if the ackers lost message trees, or have trees from a try whose ack does not count."""
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
    """Return the instances that must ack: the tasks that `begin` listed, and all started instances.

    :param mapped: tasks that ack only through their mapped instances.
    """
    return {*acks, *((task, -1) for task in record.tasks if task not in mapped)}


def ack_val(
    record: TransactionRecord, acks: Mapping[Instance, Ack], wanted: Collection[Instance]
) -> int:
    """Return the XOR of all emitted and acked ids, which is 0 when everything was acked (Storm's ack val)."""
    value = 0
    for task, emitted in record.tasks.items():
        value ^= int(emitted, 16) if (task, -1) in wanted else 0
    for entry in acks.values():
        value ^= int(entry.emitted, 16) ^ int(entry.acked, 16)
    return value


def missing_acks(acks: Mapping[Instance, Ack], wanted: Collection[Instance]) -> list[str]:
    """Return the names of the instances that must ack but have not."""
    missing = [instance for instance in wanted if instance not in acks or not acks[instance].done]
    return [instance_name(*instance) for instance in sorted(missing)]


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


# --- what tasks did -----------------------------------------------------------------------------------------------
# The parts of a receipt that are derived from the acks.


def tasks_of(acks: Mapping[tuple[str, int], Ack]) -> dict[str, TaskRows]:
    """Return the rows that each task read and wrote, summed over its instances.

    :param acks: the acks, by task id and map index.
    """
    found: dict[str, TaskRows] = {}
    sums: dict[tuple[str, str], RowsDigest] = {}
    for (task, _), ack in sorted(acks.items()):
        before = found.get(task, TaskRows(0, None, {}))
        outputs = dict(before.outputs)
        for output in ack.outputs:
            outputs[output["name"]] = _added(outputs.get(output["name"]), output.get("rows"))
        found[task] = TaskRows(before.instances + 1, _added(before.rows, ack.rows), outputs)
        for name, rows in _row_digests(ack):
            sums[task, name] = sums[task, name] + rows if (task, name) in sums else rows
    for (task, name), rows in sums.items():
        if rows.text:
            found[task] = replace(found[task], digests={**found[task].digests, name: rows.text})
    return found


def code_of(acks: Mapping[tuple[str, int], Ack], dag_version: str) -> Code:
    """Return the code that processed a batch: the version of its DAG, and the digest of the code of each task.

    :param acks: see `tasks_of`. A task has several digests if its instances ran different code.
    """
    found: dict[str, set[str]] = {}
    for (task, _), ack in acks.items():
        if ack.code:
            found.setdefault(task, set()).add(ack.code)
    tasks = {task: " ".join(sorted(codes)) for task, codes in found.items()}
    return Code(dag_version, tasks)


def _row_digests(ack: Ack) -> Iterator[tuple[str, RowsDigest]]:
    yield from (("", RowsDigest.from_json(read)) for read in ack.read if not read["outputs"])
    for output in ack.outputs:
        yield output["name"], RowsDigest.of(output.get("rows") or 0, output.get("row_digest", ""))


def _added(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
