"""The page of one transaction, created from its record or the history, the receipt, and Airflow's task instances."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from airflow.models.dag_version import DagVersion
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_tx.base import compat
from airflow_tx.base.remedy import shortened_reason
from airflow_tx.ledger import (
    Outcome,
    Person,
    Receipt,
    Token,
    TransactionDetails,
    TransactionView,
    Words,
    is_shortened,
    size_in_words,
    tasks_of,
)
from airflow_tx.operations import ActionName
from airflow_tx.plugin.api.access import (
    SEE_AUDIT,
    SEE_LOGS,
    SEE_TASKS,
    SEE_VERSIONS,
    SEE_XCOMS,
    Access,
    ChangedLine,
    DeedLine,
    OnlyFor,
    Who,
    Why,
    answer_of,
    deed_line,
)
from airflow_tx.plugin.api.advice import (
    Advice,
    LogLink,
    failed_log,
    log_link,
    reason,
    task_page,
    transaction_advice,
)
from airflow_tx.plugin.api.airflow_runs import COMMIT, TaskBar, task_tries, xcoms
from airflow_tx.plugin.api.dag_process import dag_process
from airflow_tx.plugin.api.questions import questions
from airflow_tx.plugin.api.redaction import RowText, ShownRows
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.plugin.api.timeline import AttemptBar, TimelineRow, timeline_row

# --- attempts -----------------------------------------------------------------------------------------------------
# The attempts of a transaction are compared by error, rows, tasks and code, as recorded by the
# ledger and Airflow.


Versions = Mapping[tuple[str, int, int], tuple[int, str]]
"""The number and the name of the DAG version of each try, by task, map index and try number."""


@dataclass(frozen=True, kw_only=True)
class AttemptTask:
    """One task in an attempt, over all its instances.

    :param states: the number of instances, by the state of their last try as Airflow writes it.
    :param tries: the number of tries of all instances in this attempt.
    :param seconds: the time from the first start to the last end, or null if the task has not started or not ended.
    :param log: the log of a failed instance. For a task with one instance, it is the log of this instance.
    """

    task_id: str
    states: dict[str, int]
    tries: int
    seconds: float | None
    log: Annotated[LogLink | None, OnlyFor(SEE_LOGS)]


@dataclass(frozen=True, kw_only=True)
class AttemptLine:
    """One attempt in the comparison of attempts.

    :param outcome: `replayed`. For the newest attempt, it is the phase or the outcome of the transaction.
    :param why: the error, or why the attempt was replayed. It is null if it is unknown.
    :param above: whether the page shows this reason above its sections.
    :param same_as: the first attempt with the same error. It may be this attempt.
    :param size: the number of rows if tasks have counted them, otherwise the size that the source knows. It is null if
        unknown.
    :param resized: whether the previous attempt had a batch of another size in the same unit.
    :param dag_versions: the DAG versions in Airflow whose code the tasks have run, the oldest first.
    """

    attempt: int
    begun_at: datetime | None
    ended_at: datetime | None
    outcome: str
    why: Words | None
    above: bool
    same_as: int
    size: Words | None
    resized: bool
    dag_versions: Annotated[list[str], OnlyFor(SEE_VERSIONS)]
    tasks: Annotated[list[AttemptTask], OnlyFor(SEE_TASKS)]


def attempt_lines(
    dag_id: str,
    view: TransactionView,
    attempts: Sequence[AttemptBar],
    tries: Sequence[TaskBar],
    versions: Versions,
    *,
    above: Collection[str] = (),
) -> list[AttemptLine]:
    """Return the attempts of a transaction that the ledger remembers, the oldest first.

    :param tries: the tries of its tasks that the viewer may see. Each try has its attempt.
    :param above: the errors that the page shows above its sections, as `_kept` returns them.
    """
    sizes = {each.attempt: _size(each.rows, each.size) for each in view.document.replays}
    sizes[view.document.attempt] = _size(view.rows, view.document.size)
    kept = [_kept(each.why) for each in attempts]
    of_attempt: dict[int | None, list[TaskBar]] = defaultdict(list)
    for each in tries:
        of_attempt[each.attempt].append(each)
    return [
        answer_of(
            AttemptLine,
            bar,
            above=_kept(bar.why) in above,
            same_as=attempts[kept.index(_kept(bar.why))].attempt,
            size=size_in_words(sizes.get(bar.attempt, {})) or None,
            resized=_is_resized(sizes.get(bar.attempt - 1, {}), sizes.get(bar.attempt, {})),
            dag_versions=_versions(of_attempt[bar.attempt], versions),
            tasks=_tasks(dag_id, view.document.run_id, of_attempt[bar.attempt]),
        )
        for bar in attempts
    ]


def _kept(why: str | None) -> str:
    """Shorten an error, in the same way as the ledger does after a later attempt has failed."""
    return shortened_reason(why or "")


def _size(rows: int | None, size: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the size of a batch, such as 5 rows, or the size that the source knows if no task has counted the rows."""
    known = size or {} if rows is None else {"rows": rows}
    return {**known, "why": ""}


def _is_resized(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two sizes in the same unit differ.

    Sizes in different units, such as files and rows, are never compared.
    """
    return before.keys() == now.keys() and before != now


def said_above(
    view: TransactionView, attempts: Sequence[AttemptBar]
) -> tuple[str | None, Collection[str]]:
    """Return the error to show above the sections of the page, and all errors that the page shows there.

    The first result is the error of the transaction, or the reason why the previous attempt was replayed. It is None if
    there is no error, or if `waits` quotes the error.
    """
    own = reason(view)
    above = [] if view.cause is None else [_kept(view.cause)]
    if own is None and view.waits is not None:
        above.append(_kept(view.quoted))
        for before in attempts[-2:-1]:
            if _kept(before.why) not in above:
                told = f"Attempt {before.attempt} was replayed: {before.why}"
                return told, [*above, _kept(before.why)]
    return own, above


def dag_versions(dag_id: str, run_id: str) -> Versions:
    """Return the DAG version of each try of the tasks of a run, including tries before a retry or a clear."""
    found: dict[tuple[str, int, int], tuple[int, str]] = {}
    with create_session() as session:
        for model in (TaskInstanceHistory, TaskInstance):
            query = (
                select(
                    model.task_id,
                    model.map_index,
                    model.try_number,
                    DagVersion.version_number,
                    DagVersion.bundle_version,
                )
                .join(DagVersion, DagVersion.id == model.dag_version_id)
                .where(model.dag_id == dag_id, model.run_id == run_id)
            )
            for task_id, map_index, number, version, bundle in session.execute(query):
                name = f"{version} ({str(bundle)[:12]})" if bundle else str(version)
                found[task_id, map_index, number] = (version, name)
    return found


def _versions(tries: Sequence[TaskBar], versions: Versions) -> list[str]:
    started = (each for each in tries if each.start is not None)
    places = ((each.task_id, each.map_index, each.try_number) for each in started)
    return [name for _, name in sorted({versions[each] for each in places if each in versions})]


def _tasks(dag_id: str, run_id: str, tries: Sequence[TaskBar]) -> list[AttemptTask]:
    by_task: dict[str, list[TaskBar]] = defaultdict(list)
    for each in tries:
        by_task[each.task_id].append(each)
    return [_task(dag_id, run_id, task_id, some) for task_id, some in by_task.items()]


def _task(dag_id: str, run_id: str, task_id: str, tries: Sequence[TaskBar]) -> AttemptTask:
    last: dict[int, TaskBar] = {}
    for each in sorted(tries, key=lambda each: each.try_number):
        last[each.map_index] = each
    states: dict[str, int] = defaultdict(int)
    for each in last.values():
        states[each.state or "none"] += 1
    starts = [each.start for each in tries if each.start is not None]
    ends = [each.end for each in tries if each.start is not None]
    known = [end for end in ends if end is not None]
    has_ended = bool(starts) and len(known) == len(ends)
    log = failed_log(dag_id, run_id, [each for each in last.values() if each.state == "failed"])
    if log is None and len(last) == 1 and starts:
        log = log_link(dag_id, run_id, next(iter(last.values())))
    return AttemptTask(
        task_id=task_id,
        states=dict(states),
        tries=len(tries),
        seconds=(max(known) - min(starts)).total_seconds() if has_ended else None,
        log=log,
    )


# --- transaction page ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BatchAnswer:
    """The rows of a transaction.

    :param words: the size of the batch and the reason for it, or null if the source does not count.
    :param metadata: JSON that identifies exactly these rows. It is null if the ledger has forgotten it, or there are no
        rows.
    :param position_before: the position of the source before these rows.
    :param position_after: the position of the source after these rows.
    :param shortened: the names of the fields above that are only digests. The values were too long for the ledger.
    :param partitioned: whether the source has partitions.
    """

    words: Words | None
    metadata: ShownRows = None
    position_before: ShownRows = None
    position_after: ShownRows = None
    shortened: list[str]
    partitioned: bool


@dataclass(frozen=True, kw_only=True)
class TaskWork:
    """The work of one task for the transaction, over all instances of the task.

    :param acked: whether all instances have acked, or null if the transaction is final.
    :param rows: the number of rows that the task has read from the batch, or null if it has not counted them.
    :param rejected: the number of rejected rows.
    :param outputs: the number of rows in each output, by name.
    :param digests: the digest of the rows in each output, by name.
    :param code: the digest of the code of the task.
    """

    task_id: str
    instances: int
    acked: bool | None
    rows: int | None
    rejected: int
    outputs: dict[str, int | None]
    digests: dict[str, str]
    code: str | None


@dataclass(frozen=True, kw_only=True)
class CheckLine:
    """A check of the output of the transaction.

    :param result: `passed`, `warning`, `failed` or `accepted`.
    :param found: the finding, or null if the check passed.
    """

    name: str
    result: str
    found: Words | None


@dataclass(frozen=True, kw_only=True)
class StateWork:
    """The effect of the transaction on one state.

    :param fenced: whether a grant of the transaction has raised the fence of the state, or was about to raise it.
    :param token: the token of this grant, as `generation/txid.attempt#epoch`. A later token outranks it.
    :param keys: the number of written keys or rows, or null if it is not known yet.
    :param digest: the digest of the written values.
    :param sums: the sums of the value columns that can be added up.
    :param last_txid: the last final transaction of the state.
    """

    state: str
    fenced: bool
    token: str | None
    keys: int | None
    digest: str | None
    sums: dict[str, int]
    last_txid: int | None


@dataclass(frozen=True, kw_only=True)
class NewValuesLine:
    """An output of a committer: the keys of the batch and their values after the commit.

    :param rows: the number of rows, or null if they were not counted.
    """

    task_id: str
    name: str
    rows: int | None


@dataclass(frozen=True, kw_only=True)
class ReceiptLine:
    """The receipt of a final transaction, which `airflow tx verify` compares with the states.

    :param hash: the hash of the receipt.
    :param previous: the hash of the receipt before it.
    :param dag_version: the DAG version in Airflow.
    :param granted: when the transaction got its last grant.
    :param journal: the name of the journal entry, or null if the transaction has none.
    """

    hash: str
    previous: str
    dag_version: str | None
    granted: datetime
    journal: str | None


@dataclass(frozen=True, kw_only=True)
class AuditLine:
    """A user action on the transaction."""

    what: str
    who: Who
    when: datetime
    why: Why


@dataclass(frozen=True, kw_only=True)
class TransactionLinks:
    """Paths in Airflow's UI, below its base URL.

    :param audit: the page of Airflow's audit log for the run.
    :param tasks: the pages of the tasks, by task_id.
    """

    run: str
    dag: str
    audit: str
    tasks: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TransactionPage(TimelineRow):
    """All facts of one transaction.

    :param actions: the actions that the user can do now.
    :param waits: the text of `waiting_for` without the remedy.
    :param reason: the error without the remedy.
    :param said: the error above the sections of the page. It is `reason`, or why the previous attempt was replayed.
    :param refused: whether the commit was refused permanently. The log of the task may contain the refused rows.
    :param advice: the remedy, as steps.
    :param comparison: the attempts that the ledger remembers, the oldest first.
    :param unproven: the reasons why it is not proven that the tasks have read each row once. Empty if it is proven.
    :param losses: descriptions of rows that were lost before this batch, with the loss accepted by a user.
    :param pinned: whether the rows never change again, since the transaction was skipped and readmitted.
    :param stale: whether the batch begins at another position than the end of the previous transaction.
    :param yielded_to: the txid to which the run gave its run slot.
    :param ack_val: the ack val as 16 hex digits. If all digits are 0, all messages are acked.
    :param previous: the txid before this one that the ledger still has, or null if there is none.
    :param following: the txid after this one that the ledger has, or null if there is none.
    """

    topology: str
    dag_id: str
    may_act: bool
    actions: list[ActionName]
    waits: Words | None
    reason: Words | None
    said: Words | None
    refused: bool
    advice: Advice
    comparison: list[AttemptLine]
    batch: BatchAnswer
    digest: str | None
    unproven: list[Words]
    ack_val: str
    failures: int
    work: list[TaskWork]
    checks: list[CheckLine]
    states: list[StateWork]
    new_values: Annotated[list[NewValuesLine], OnlyFor(SEE_XCOMS)]
    losses: list[Words]
    changed: list[ChangedLine]
    skip: DeedLine | None
    readmit: DeedLine | None
    readmitted_as: int | None
    pinned: bool
    stale: bool
    yielded_to: int | None
    previous: int | None
    following: int | None
    receipt: ReceiptLine | None
    audit: Annotated[list[AuditLine], OnlyFor(SEE_AUDIT)]
    links: TransactionLinks


def transaction_page(
    snapshot: TopologySnapshot, found: TransactionDetails, access: Access
) -> TransactionPage:
    """Return the facts of a transaction for its page."""
    view = snapshot.named(found.transaction)
    dag_id = snapshot.record.dag_id
    tries = task_tries(dag_id, [view.document.run_id]).get(view.document.run_id, [])
    seen = tries if access.may(SEE_TASKS, dag_id) else []
    has_run = bool(compat.runs_of(dag_id, [view.document.run_id]))
    row = timeline_row(view, seen, has_run=has_run)
    versions = (
        dag_versions(dag_id, view.document.run_id)
        if seen and access.may(SEE_VERSIONS, dag_id)
        else {}
    )
    previous, following = snapshot.neighbours(view.txid)
    may_act = access.may_act(dag_id)
    said, above = said_above(view, row.attempts)
    return answer_of(
        TransactionPage,
        view,
        **vars(row),
        topology=snapshot.name,
        dag_id=dag_id,
        may_act=may_act,
        actions=_actions(view) if may_act else [],
        reason=reason(view),
        said=said,
        advice=transaction_advice(
            snapshot, view, access, _of_newest(row) if access.with_logs([dag_id]) else ()
        ),
        comparison=attempt_lines(dag_id, view, row.attempts, row.tasks, versions, above=above),
        batch=_batch(found),
        digest=view.document.digest or None,
        unproven=list(view.unproven),
        work=task_work(found),
        checks=check_lines(view),
        states=_states(snapshot, found),
        new_values=_new_values(dag_id, view.document.run_id, tries)
        if access.may(SEE_XCOMS, dag_id)
        else [],
        losses=list(view.document.lost),
        changed=[ChangedLine(**vars(each)) for each in view.changed],
        skip=deed_line(view.skip),
        readmit=deed_line(view.readmit),
        yielded_to=view.document.yielded,
        previous=previous,
        following=following,
        receipt=_receipt(found),
        audit=audit_lines(view),
        links=_links(dag_id, view, seen),
    )


def _of_newest(row: TimelineRow) -> list[TaskBar]:
    """Return the tries of the newest attempt."""
    return [each for each in row.tasks if each.attempt == row.attempt]


def _actions(view: TransactionView) -> list[ActionName]:
    if view.open:
        return [ActionName.REPLAY, ActionName.SKIP]
    if view.can_be_readmitted:
        return [ActionName.READMIT]
    if view.status == Outcome.COMMITTED.value and view.restated_by is None:
        is_wanted = view.document.restates is None and view.restate is not None
        return [ActionName.WITHDRAW if is_wanted else ActionName.RESTATE]
    return []


def _batch(found: TransactionDetails) -> BatchAnswer:
    view = found.transaction
    receipt = found.receipt
    parts = {
        "metadata": found.metadata,
        "position_before": receipt.before if receipt and found.before is None else found.before,
        "position_after": receipt and receipt.after if found.position is None else found.position,
    }
    return BatchAnswer(
        words=None if view.document.size is None else size_in_words(view.document.size),
        **parts,
        shortened=[name for name, value in parts.items() if is_shortened(value)],
        partitioned=found.partitioned,
    )


def task_work(found: TransactionDetails) -> list[TaskWork]:
    """Return the work of each task, from the acks of an open transaction or the receipt of a final one."""
    receipt = found.receipt
    tasks = {} if receipt is None else receipt.tasks
    code = {} if receipt is None else receipt.code.tasks
    acked: dict[str, bool] = {}
    if found.transaction.open:
        tasks = tasks_of(found.acks)
        for (task, _), ack in found.acks.items():
            acked[task] = acked.get(task, True) and ack.done
            code = {**code, task: ack.code} if ack.code else code
    rejected = found.rejected
    return [
        answer_of(
            TaskWork,
            each,
            task_id=task,
            acked=acked.get(task),
            rejected=rejected[task][1] if task in rejected else 0,
            code=code.get(task),
        )
        for task, each in sorted(tasks.items())
    ]


def check_lines(view: TransactionView) -> list[CheckLine]:
    """Return the checks of a transaction. `audit_lines` name the user who accepted a check."""
    return [
        CheckLine(name=name, result=result, found=view.checks[name].found or None)
        for name, result in view.check_results.items()
    ]


def _states(snapshot: TopologySnapshot, found: TransactionDetails) -> list[StateWork]:
    written = {} if found.receipt is None else found.receipt.written
    last = snapshot.record.states
    token = _token(found.receipt)
    names = sorted({*written, *found.fenced, *(last if found.transaction.open else ())})
    return [
        StateWork(
            state=name,
            fenced=name in written or name in found.fenced,
            token=token if name in written or name in found.fenced else None,
            keys=written[name].keys if name in written else None,
            digest=written[name].digest if name in written else None,
            sums=written[name].sums if name in written else {},
            last_txid=last.get(name),
        )
        for name in names
    ]


def _token(receipt: Receipt | None) -> str | None:
    fields = ("generation", "txid", "attempt", "epoch", "nonce")
    return None if receipt is None else str(Token(*(getattr(receipt, name) for name in fields)))


def _new_values(dag_id: str, run_id: str, tries: list[TaskBar]) -> list[NewValuesLine]:
    committers = sorted({each.task_id for each in tries if each.operator == COMMIT})
    return [
        NewValuesLine(task_id=task_id, name=name, rows=value.get("rows"))
        for task_id, name, value in xcoms(dag_id, run_id, committers)
        if isinstance(value, dict) and value.get("name") == name
    ]


def _receipt(found: TransactionDetails) -> ReceiptLine | None:
    receipt = found.receipt
    if receipt is None or found.transaction.open:
        return None
    return answer_of(
        ReceiptLine,
        receipt,
        hash=receipt.stored_hash,
        dag_version=receipt.code.dag_version,
        granted=datetime.fromisoformat(receipt.granted),
    )


def audit_lines(view: TransactionView) -> list[AuditLine]:
    """List people's actions on a transaction, the oldest first."""
    noted: list[tuple[str, Person]] = [
        ("replay with the current rows", each) for each in view.changed
    ]
    noted += [(f"replay of attempt {each.attempt}", each) for each in view.replayed_by]
    noted += [("skip", view.skip)] if view.skip else []
    noted += [("readmit", view.readmit)] if view.readmit else []
    noted += [("restate", view.restate)] if view.restate else []
    noted += [(f"accept check {name}", by) for name, by in view.accepted_checks.items()]
    ordered = sorted(noted, key=lambda each: each[1].when)
    return [answer_of(AuditLine, each, what=what) for what, each in ordered]


def _links(dag_id: str, view: TransactionView, tries: list[TaskBar]) -> TransactionLinks:
    dag = f"dags/{quote(dag_id, safe='')}"
    run = f"{dag}/runs/{quote(view.document.run_id, safe='')}"
    return TransactionLinks(
        dag=dag,
        run=run,
        audit=f"{run}/events",
        tasks={
            each.task_id: task_page(dag_id, view.document.run_id, each.task_id) for each in tries
        },
    )


@dataclass(frozen=True, kw_only=True)
class RejectedReason:
    """The number of rows that a task has rejected for one reason.

    The task "" is the source, which rejects malformed rows.
    """

    task: str
    reason: Words
    rows: int


@dataclass(frozen=True, kw_only=True)
class RejectedLine:
    """A rejected row.

    :param where: the location of the row in its source, or "" if it is unknown.
    """

    task: str
    reason: Words
    where: RowText
    content: RowText


@dataclass(frozen=True, kw_only=True)
class RejectedAnswer:
    """The rejected rows of a transaction.

    :param others: the number of further reasons.
    :param rows: the number of rejected rows. `shown` contains some of them.
    """

    reasons: list[RejectedReason]
    others: int
    rows: int
    shown: list[RejectedLine]


def rejected_answer(snapshot: TopologySnapshot, txid: int, access: Access) -> RejectedAnswer:
    """Read the table of rejected rows in the process that runs DAG files, which has the DAG's connections.

    :raises Busy: too many slow requests are running.
    :raises NotAnsweredThere: the process that runs the code of DAG files hung or ended.
    """
    with questions.asked("a query of rejected rows", snapshot, access):
        found = dag_process().ask({"rejected": snapshot.as_asked, "txid": txid})
    return msgspec.convert(found, RejectedAnswer)
