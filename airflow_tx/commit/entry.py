"""The journal entry of a commit: written before the turn, from the whole acked output."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from airflow_tx.commit.rows import RowsToWrite, StagedRows
from airflow_tx.failpoints import failpoint
from airflow_tx.journal.area import JournalArea, StagedFiles
from airflow_tx.journal.entry import Contribution, Entry
from airflow_tx.protocol.json_text import dumps
from airflow_tx.state.combined_rows import reducers_of

if TYPE_CHECKING:
    from airflow_tx.commit.case import CommitCase
    from airflow_tx.commit.update import Update
    from airflow_tx.protocol.answers import Processed
    from airflow_tx.sources.api import Source


def write_entry(case: CommitCase, processed: Processed, rows: Sequence[RowsToWrite]) -> str:
    """Write the entry of a transaction; its name, or "" if its topology keeps no journal.

    An entry counts once a commit names it, so it is safe to die here and to write it again.

    :param rows: per update, the whole output: each can be gone through more than once.
    :raises StagingUnavailable, StagingUnreachable: it is not written.
    """
    if not case.spec.journal_time:
        return ""
    failpoint("commit.before_journal", **case.where)
    begun = case.begun
    incarnation = case.ledger.incarnation()
    journal = JournalArea(case.spec.staging(), incarnation)
    # The clock of this machine may be behind: no transaction is committed before it began.
    written = max(case.ledger.clock.now().isoformat(timespec="milliseconds"), processed.began)
    entry = Entry(
        case.spec.topology,
        incarnation,
        begun.txid,
        attempt=begun.attempt.attempt,
        birth=begun.attempt.birth,
        key=processed.key,
        run_id=case.run.run_id,
        began=processed.began,
        written=written,
        metadata=begun.metadata,
        source=_serialized(case.spec.source),
        replaces=None if begun.replaces is None else dict(vars(begun.replaces)),
        contributions={
            update.state.name: _contribution(case, journal, update, found, day=written[:10])
            for update, found in zip(case.updates, rows, strict=True)
        },
    )
    name = journal.write(entry)
    failpoint("commit.after_journal", **case.where)
    return name


def no_contribution(update: Update, inside: Collection[str] = ()) -> str:
    """Say, as a clause, why an update leaves no contribution that can be taken back; "": it leaves one.

    :param inside: ids of the tasks between the first and the last one of the commit phase.
    """
    columns = update.state.columns
    task = update.input.operator.task_id
    if columns is None:
        return f"{type(update.state).__name__} takes rows unchanged"
    if reducers := reducers_of(columns):
        return f"column {reducers[0]} has a reducer"
    if task in inside:
        return f"its rows come from task {task}, which runs in the commit phase"
    return ""


def _contribution(
    case: CommitCase, journal: JournalArea, update: Update, rows: RowsToWrite, *, day: str
) -> Contribution:
    phase = case.spec.phase
    refusal = no_contribution(update, () if phase is None else phase.inside)
    if refusal:
        return Contribution(refusal=refusal)
    columns = update.state.columns
    assert columns is not None
    staged = None
    if isinstance(rows, StagedRows):
        staged = StagedFiles(rows.paths, rows.columns)
    return journal.contribution(columns, rows, day=day, staged=staged)


def _serialized(source: Source) -> tuple[str, dict[str, Any]]:
    path, arguments = source.serialize()
    try:
        dumps(arguments)
    except (TypeError, ValueError):
        return path, {}  # a source of one's own, with arguments that no other process could read
    return path, arguments
