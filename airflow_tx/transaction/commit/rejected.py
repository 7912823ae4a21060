"""The rows that the tasks of a transaction have rejected. The commit checks and writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any

from airflow_tx.base.errors import RowsDiffer, StagingError
from airflow_tx.ledger import (
    MALFORMED,
    REJECTED,
    Ack,
    RowsDigest,
    TaskTry,
    TransactionAttempt,
    counted,
    digest,
    rejected_of,
    tasks_of,
)
from airflow_tx.outputs import StagingArea
from airflow_tx.transaction.commit.case import CommitCase
from airflow_tx.transaction.commit.check import Check, CheckedCommit, FailedCheck
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.commit.write import (
    ROWS_A_WRITE,
    RowsToWrite,
    StagedRows,
    rows_to_write,
)
from airflow_tx.transaction.processing.consumed_rows import PYTHON
from airflow_tx.transaction.processing.outputs import Acks

_SHOWN = 120
"""The maximum length of a row in an error message, in characters."""


@dataclass(frozen=True)
class RejectedCheck(Check):
    """The check named `rejected`. It fails if a task has rejected more rows than `max_rejected` allows.

    :param most: the limit. A number below 1 is a share of the batch, and any other number is a number of rows.
    :param staged: a function that reads the rows of a reference.
    """

    most: float = 0
    staged: Callable[[Mapping[str, Any]], StagedRows] | None = field(default=None, repr=False)

    @classmethod
    def find(cls, checks: Sequence[RejectedCheck], commit: CheckedCommit) -> Iterator[FailedCheck]:
        """Check each task separately, since several tasks may reject the same row."""
        processed = commit.processed
        for check in checks:
            for task, (read, rejected) in rejected_of(tasks_of(processed.acks)).items():
                whole = read if processed.rows is None else processed.rows
                limit = (
                    check.most if check.most >= 1 else None if whole is None else check.most * whole
                )
                if limit is None or rejected > limit:
                    yield check._failed(task, rejected, whole, processed.acks)
                    break

    def _failed(self, task: str, rejected: int, whole: int | None, acks: Acks) -> FailedCheck:
        of = "an unknown number of" if whole is None else whole
        found = f"task {task} rejected {rejected} of {of} rows, but max_rejected is {self.most}"
        refs = rejected_refs(acks)
        rows = [[ref["rows"], ref.get("row_digest") or ref["path"]] for ref in refs]
        own = {each: ack for each, ack in acks.items() if each[0] == task}
        return FailedCheck(
            self, found, digest([self.most, rows]), self._commonest(rejected_refs(own))
        )

    def _commonest(self, refs: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        assert self.staged is not None
        counts = Counter[str]()
        first = dict[str, str]()
        for row in chain.from_iterable(map(self.staged, refs)):
            reason = row["tx_reason"]
            counts[reason] += 1
            first.setdefault(reason, row["tx_content"])
        return tuple(
            f"{count} x {reason!r:.200} ({first[reason]!r:.{_SHOWN}})"
            for reason, count in counts.most_common(3)
        )


def max_rejected_check(case: CommitCase, most: float) -> Check:
    """Return the check for the option `max_rejected`."""
    return RejectedCheck("rejected", most=most, staged=partial(_staged, case))


def _staged(case: CommitCase, ref: Mapping[str, Any]) -> StagedRows:
    return StagedRows(case.area, ref, case.spec.rejected, case.begun.attempt)


def rejected_refs(acks: Acks) -> list[Mapping[str, Any]]:
    """Return references to one list of malformed rows, and to the rejected rows of each task instance."""
    # Prefer the list of a Python task, since it contains the place of each malformed row.
    ordered = sorted(acks.items(), key=lambda each: (PYTHON not in _forms(each[1]), each[0]))
    sets = [ref for _, ack in ordered if (ref := _malformed(ack)) is not None]
    rejected = [
        entry
        for _, ack in sorted(acks.items())
        for entry in ack.outputs
        if entry["name"].startswith(REJECTED) and entry["rows"]
    ]
    return [*sets[:1], *rejected]


def check_aside(case: CommitCase, acks: Acks) -> None:
    """Check the rejected and malformed rows.

    :raises StagingError: the block no longer has a table for rejected rows.
    :raises RowsDiffer: two readers of the batch have found different malformed rows.
    """
    refs = rejected_refs(acks)
    if refs and case.spec.rejected is None:
        own = case.begun.attempt
        task = refs[0]["task_id"]
        raise StagingError(
            output=refs[0]["name"],
            task=task,
            txid=own.txid,
            attempt=own.attempt,
            problem=f"the transaction no longer has a table for its {counted(refs[0]['rows'], 'rows')}",
            remedy=f"Set rejected= again, or clear task {task}.",
        )
    _check_malformed(case, acks)


def _check_malformed(case: CommitCase, acks: Acks) -> None:
    """Refuse a batch in which two readers found different malformed rows.

    Otherwise a row could be missing from all outputs.

    :raises RowsDiffer: the malformed rows differ. The error names the readers.
    """
    readers = {
        str(TaskTry(*instance, "")): _malformed(ack)
        for instance, ack in sorted(acks.items())
        if _forms(ack) or _malformed(ack) is not None
    }
    if len(readers) < 2 or not any(readers.values()):
        return
    first, *others = ((task, _digest(case, ref)) for task, ref in readers.items())
    for other in others:
        if other[1] != first[1]:
            named = " and ".join(f"task {task} {found}" for task, found in (first, other))
            own = case.begun.attempt
            problem = f"two readers found different malformed rows of the batch ({named})"
            remedy = (
                'Clear these tasks. If they differ again, malformed="refuse" names one of the rows.'
            )
            raise RowsDiffer(txid=own.txid, attempt=own.attempt, problem=problem, remedy=remedy)


def _forms(ack: Ack) -> set[str]:
    """Return the hash forms in which a task has digested the rows of the batch. The task may have read none."""
    return {RowsDigest.from_json(read).form for read in ack.read if not read["outputs"]}


def _malformed(ack: Ack) -> Mapping[str, Any] | None:
    found = (entry for entry in ack.outputs if entry["name"] == MALFORMED and entry["rows"])
    return next(found, None)


def _digest(case: CommitCase, ref: Mapping[str, Any] | None) -> RowsDigest:
    """Return the digest of the content of malformed rows, without place and reason, which only Python tasks record."""
    from xxhash import xxh3_64_intdigest

    if ref is None:
        return RowsDigest(0)
    staged = _staged(case, ref)
    # Spark and Python differ in the case of the hexadecimal digits in escaped control characters.
    hashes = (xxh3_64_intdigest(row["tx_content"].lower().encode()) for row in staged)
    return RowsDigest(len(staged), sum(hashes) % 2**64, "content")


def rows_rejected(
    update: Update, acks: Acks, area: StagingArea, attempt: TransactionAttempt
) -> RowsToWrite:
    """Return the rejected rows of a transaction for their table, in the order of the tasks.

    If the table belongs to a lake, this function writes the rows to files. So the tasks need no access to the table.

    :raises StagingError: the staged rows are incomplete or changed.
    :raises StateError: the rows do not fit the table.
    """
    refs = rejected_refs(acks)
    table = update.state.append_table
    if table is None:
        return rows_to_write(update, refs, area, attempt)
    rows = chain.from_iterable(StagedRows(area, ref, update.state, attempt) for ref in refs)
    files = list[dict[str, Any]]()
    while portion := list(islice(rows, ROWS_A_WRITE)):
        files += table.stage(portion, attempt)
    return files
