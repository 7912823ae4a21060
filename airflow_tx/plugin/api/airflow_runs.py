"""Queries of DAGs, runs and tasks in Airflow's metadata database. One query reads many runs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from operator import attrgetter
from typing import Any

from airflow.models.backfill import Backfill as BackfillModel
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunType
from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from airflow_tx.ledger import LIVE_RUN_STATES, Outcome, ReadOnlyLedger, Wish
from airflow_tx.plugin.api.access import Who, Why
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.sources import interval_of_key, key_of_interval

# --- airflow runs -------------------------------------------------------------------------------------------------


_AT_ONCE = 500
COMMIT = "CommitOperator"


@dataclass(frozen=True, kw_only=True)
class TaskBar:
    """One try of one task instance of a run.

    :param map_index: the map index, or -1 if the task is not mapped.
    :param operator: the class of the task.
    :param attempt: the attempt of the transaction in which the try began, or null if it is unknown.
    :param state: the state as Airflow writes it, or null if there is no state yet.
    """

    task_id: str
    map_index: int
    operator: str | None
    attempt: int | None
    try_number: int
    state: str | None
    start: datetime | None
    end: datetime | None


def paused_dags(dag_ids: Collection[str]) -> dict[str, bool]:
    """Return whether each of these DAGs is paused. DAGs that are not in Airflow are omitted."""
    with create_session() as session:
        rows = session.execute(
            select(DagModel.dag_id, DagModel.is_paused).where(
                DagModel.dag_id.in_(dag_ids), DagModel.is_stale.is_(False)
            )
        )
        return {dag_id: bool(paused) for dag_id, paused in rows}


def task_tries(dag_id: str, run_ids: Collection[str]) -> Mapping[str, list[TaskBar]]:
    """Return the tries of all tasks of these runs, including the tries before a retry or a clear."""
    found: dict[str, list[TaskBar]] = defaultdict(list)
    wanted = list(run_ids)
    with create_session() as session:
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            for model in (TaskInstanceHistory, TaskInstance):
                query = _tries(model).where(model.dag_id == dag_id, model.run_id.in_(some))
                for row in session.execute(query):
                    found[row.run_id].append(_task_bar(row))
    return found


def failed_tasks(runs: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], list[TaskBar]]:
    """Return the failed tasks of these runs, by dag_id and run_id."""
    found: dict[tuple[str, str], list[TaskBar]] = defaultdict(list)
    if not runs:
        return found
    model = TaskInstance
    query = _tries(model).where(
        model.dag_id.in_({dag_id for dag_id, _ in runs}),
        model.run_id.in_({run_id for _, run_id in runs}),
        model.state == TaskInstanceState.FAILED,
    )
    with create_session() as session:
        for row in session.execute(query):
            if (row.dag_id, row.run_id) in runs:
                found[row.dag_id, row.run_id].append(_task_bar(row))
    return found


def _tries(model: Any) -> Any:
    return select(
        model.dag_id,
        model.run_id,
        model.task_id,
        model.map_index,
        model.operator,
        model.try_number,
        model.state,
        model.start_date.label("start"),
        model.end_date.label("end"),
    )


def _task_bar(row: Any) -> TaskBar:
    return TaskBar(
        task_id=row.task_id,
        map_index=row.map_index,
        operator=row.operator,
        attempt=None,
        try_number=row.try_number,
        state=None if row.state is None else str(getattr(row.state, "value", row.state)),
        start=row.start,
        end=row.end,
    )


def xcoms(dag_id: str, run_id: str, task_ids: Collection[str]) -> list[tuple[str, str, Any]]:
    """Return the XComs of some tasks of a run, as task_id, key and value."""
    if not task_ids:
        return []
    query = select(XComModel.task_id, XComModel.key, XComModel.value).where(
        XComModel.dag_id == dag_id,
        XComModel.run_id == run_id,
        XComModel.task_id.in_(task_ids),
    )
    with create_session() as session:
        found = session.execute(query.order_by(XComModel.task_id, XComModel.key))
        return [
            (task, key, json.loads(value) if isinstance(value, str) else value)
            for task, key, value in found
        ]


# --- backfills ---------------------------------------------------------------------------------------------------

MOST_FAILED = 100
"""The maximum number of failed backfill runs in a response."""


@dataclass(frozen=True)
class FailedRun:
    """A failed run of a backfill.

    :param interval: the data interval of the run, or None if the run has none.
    """

    run_id: str
    interval: tuple[datetime, datetime] | None


@dataclass(frozen=True)
class Backfill:
    """A backfill and its runs.

    :param first: the first date of the backfill, or None if its runs have no dates.
    :param last: the last date of the backfill, or None if its runs have no dates.
    :param who: the user who created the backfill, or None if Airflow does not know.
    :param since: when the backfill was created.
    :param states: the number of runs, by state.
    :param failed: failed runs of the backfill, at most `MOST_FAILED`.
    :param is_airflow_own: whether it is an Airflow backfill. Otherwise, `airflow tx backfill` created the runs.
    """

    first: datetime | None
    last: datetime | None
    who: str | None
    since: datetime
    states: Mapping[str, int]
    failed: tuple[FailedRun, ...]
    is_airflow_own: bool

    @property
    def total(self) -> int:
        return sum(self.states.values())


def backfills(dag_id: str, since: datetime) -> list[Backfill]:
    """Return the backfills of a DAG that are under way, or that ended after this moment."""
    with create_session() as session:
        return [*_airflow_backfills(session, dag_id, since), *_tx_backfills(session, dag_id, since)]


def _airflow_backfills(session: Session, dag_id: str, since: datetime) -> Iterator[Backfill]:
    ended = BackfillModel.completed_at
    query = select(BackfillModel).where(
        BackfillModel.dag_id == dag_id, or_(ended.is_(None), ended >= since)
    )
    for each in session.scalars(query.order_by(BackfillModel.id.desc()).limit(_MOST_BACKFILLS)):
        own = and_(DagRun.dag_id == dag_id, DagRun.backfill_id == each.id)
        yield Backfill(
            first=each.from_date,
            last=each.to_date,
            who=each.triggering_user_name,
            since=each.created_at,
            states=_states(session, own),
            failed=_failed(session, own),
            is_airflow_own=True,
        )


def _tx_backfills(session: Session, dag_id: str, since: datetime) -> Iterator[Backfill]:
    """Return the runs of `airflow tx backfill`, grouped by creator. They belong to no Airflow backfill."""
    own = and_(
        DagRun.dag_id == dag_id,
        DagRun.run_type == DagRunType.BACKFILL_JOB,
        DagRun.backfill_id.is_(None),
        or_(DagRun.created_at >= since, DagRun.state.in_(LIVE_RUN_STATES)),
    )
    date = DagRun.logical_date
    who = DagRun.triggering_user_name
    created = func.coalesce(DagRun.created_at, DagRun.run_after)
    query = select(who, func.min(date), func.max(date), func.min(created)).where(own).group_by(who)
    for person, first, last, begun in session.execute(query.limit(_MOST_BACKFILLS)).all():
        of_person = and_(own, who.is_(None) if person is None else who == person)
        yield Backfill(
            first=first,
            last=last,
            who=person,
            since=begun,
            states=_states(session, of_person),
            failed=_failed(session, of_person),
            is_airflow_own=False,
        )


_MOST_BACKFILLS = 5


def _states(session: Session, own: ColumnElement[bool]) -> dict[str, int]:
    query = select(DagRun.state, func.count()).where(own).group_by(DagRun.state)
    return {str(getattr(state, "value", state)): count for state, count in session.execute(query)}


def _failed(session: Session, own: ColumnElement[bool]) -> tuple[FailedRun, ...]:
    query = select(DagRun.run_id, DagRun.data_interval_start, DagRun.data_interval_end)
    rows = session.execute(query.where(own, DagRun.state == "failed").limit(MOST_FAILED))
    return tuple(
        FailedRun(run_id, None if start is None or end is None else (start, end))
        for run_id, start, end in rows
    )


def run_ends_at(
    dag_id: str, run_ids: Collection[str]
) -> dict[str, tuple[str | None, datetime | None]]:
    """Return the state and the last end of each run, without runs that do not exist."""
    wanted = list(run_ids)
    found = {}
    with create_session() as session:
        for start in range(0, len(wanted), _AT_ONCE):
            query = select(DagRun.run_id, DagRun.state, DagRun.end_date).where(
                DagRun.dag_id == dag_id, DagRun.run_id.in_(wanted[start : start + _AT_ONCE])
            )
            for run_id, state, ended in session.execute(query):
                found[run_id] = (
                    None if state is None else str(getattr(state, "value", state)),
                    ended,
                )
    return found


# --- jobs ---------------------------------------------------------------------------------------------------------
# A job is a restatement or a backfill of many transactions that a user requested at one time. The
# ledger has no record of a job. It records who requested each restatement, and Airflow lists the
# runs of a backfill.


SHOWN_FOR = timedelta(days=1)
"""How long the page shows a job after it has ended."""
ONE_JOB = timedelta(hours=1)
"""The longest time between two requests of the same job, which have the same user and the same reason."""
MOST_FINALS = 1000
"""The maximum number of final transactions that are searched for jobs, newest first."""
MOST_JOBS = 5
"""The maximum number of jobs that the page shows."""
MOST_NAMED = 100
"""The maximum number of transactions that a job lists. An action accepts the same number."""


class JobKind(str, Enum):
    """The kind of a job. `backfill` is an Airflow backfill.

    `tx-backfill` is `airflow tx backfill`, which creates its runs one by one.
    """

    RESTATEMENT = "restatement"
    BACKFILL = "backfill"
    TX_BACKFILL = "tx-backfill"


class _Status(Enum):
    """The status of one transaction of a job."""

    DONE = "done"
    FAILED = "failed"
    LEFT_OUT = "left out"
    UNDER_WAY = "under way"
    WAITING = "waiting"


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """A job: a restatement or a backfill of many transactions.

    :param first: the first date of a backfill.
    :param last: the last date of a backfill.
    :param who: the user who requested the job, or null if unknown or if the viewer may not read the audit log.
    :param since: when the user requested the job.
    :param why: the reason. It is "" if no reason was required, and null if the viewer may not read the audit log.
    :param total: the number of transactions. For `tx-backfill`, the number of runs created so far.
    :param done: the number of committed transactions.
    :param failed: the number of failed transactions.
    :param left_out: the number of skipped transactions.
    :param under_way: the number of transactions whose run is queued or running.
    :param waiting: the number of transactions whose run has not started.
    :param failed_txids: the failed transactions that can be replayed.
    :param waiting_txids: the transactions for which no run has begun the restatement.
    """

    kind: JobKind
    first: datetime | None
    last: datetime | None
    who: Who
    since: datetime
    why: Why
    total: int
    done: int
    failed: int
    left_out: int
    under_way: int
    waiting: int
    failed_txids: list[int]
    waiting_txids: list[int]


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """The jobs of a topology that are under way or ended in the last day. The newest job is first.

    :param dated: whether the transactions have data intervals, so that a user can restate days.
    """

    jobs: list[JobLine]
    dated: bool


@dataclass(frozen=True)
class _Wanted:
    """A restatement that a user has requested.

    :param of: the transaction to restate.
    :param txid: the transaction that restates it, or None if no run has begun it.
    """

    who: str
    when: datetime
    why: str
    of: int
    txid: int | None
    status: _Status
    ended: datetime | None = None


def jobs_of(snapshot: TopologySnapshot, now: datetime | None = None) -> Jobs:
    """Return the jobs of a topology."""
    now = now or datetime.now(timezone.utc)
    newest = [*snapshot.open_by_txid][-1:] or snapshot.final[-1:]
    views = snapshot.transaction_views(newest)
    found = [*_restatements(snapshot, now), *_backfills(snapshot, now)]
    found.sort(key=attrgetter("since"), reverse=True)
    is_dated = any(
        interval_of_key(each.document.key) is not None for each in views if each.document.key
    )
    return Jobs(jobs=found[:MOST_JOBS], dated=is_dated)


# --- restatements ------------------------------------------------------------------------------------------------


def _restatements(snapshot: TopologySnapshot, now: datetime) -> Iterator[JobLine]:
    if snapshot.store is None or snapshot.view is None:
        return
    if not ReadOnlyLedger(snapshot.store, snapshot.paths).was_restated():
        return  # No user has requested a restatement.
    for wanted in _by_person(_all_wanted(snapshot)):
        # If a restatement was skipped and requested again, the newest request counts.
        pieces = list({each.of: each for each in wanted}.values())
        if len(pieces) > 1 and _is_shown(pieces, now):
            yield _restatement(wanted[0], pieces)


def _restatement(first: _Wanted, pieces: Sequence[_Wanted]) -> JobLine:
    counts = Counter(each.status for each in pieces)
    failed = [each for each in pieces if each.status is _Status.FAILED]
    left = [
        each.of for each in pieces if each.txid is None and each.status is not _Status.UNDER_WAY
    ]
    return JobLine(
        kind=JobKind.RESTATEMENT,
        first=None,
        last=None,
        who=first.who,
        since=first.when,
        why=first.why,
        total=len(pieces),
        done=counts[_Status.DONE],
        failed=len(failed),
        left_out=counts[_Status.LEFT_OUT],
        under_way=counts[_Status.UNDER_WAY],
        waiting=counts[_Status.WAITING],
        failed_txids=sorted(each.txid for each in failed if each.txid is not None)[:MOST_NAMED],
        waiting_txids=sorted(left)[:MOST_NAMED],
    )


def _all_wanted(snapshot: TopologySnapshot) -> Iterator[_Wanted]:
    """Return the requested restatements in the order of their txids. Requests that no run has started on come last."""
    assert snapshot.view is not None
    finals = (snapshot.final_view(txid) for txid in snapshot.final[-MOST_FINALS:])
    for view in (*finals, *snapshot.opened):
        if view is not None and view.document.restates is not None and view.restate is not None:
            by = view.restate
            status = _Status.UNDER_WAY
            if view.failed:
                status = _Status.FAILED
            elif not view.open:
                is_committed = view.status == Outcome.COMMITTED.value
                status = _Status.DONE if is_committed else _Status.LEFT_OUT
            yield _Wanted(
                by.who, by.when, by.why, view.document.restates, view.txid, status, ended=view.ended
            )
    wishes = snapshot.view.wishes
    runs = run_ends_at(snapshot.record.dag_id, [each.run_id for each in wishes]) if wishes else {}
    for wish in wishes:
        when = datetime.fromisoformat(wish.when)
        status = _status_of_wish(wish, when, *runs.get(wish.run_id, (None, None)))
        yield _Wanted(wish.who, when, wish.why, wish.txid, None, status)


def _status_of_wish(
    wish: Wish, when: datetime, state: str | None, ended: datetime | None
) -> _Status:
    """Return the status of a request that no run has begun.

    :param when: when the user made the request.
    :param state: the state of the run, which has already committed the transaction.
    :param ended: when the run ended last.
    """
    if state in LIVE_RUN_STATES:
        return _Status.UNDER_WAY
    has_failed = state == "failed" and ended is not None and ended > when
    return _Status.FAILED if has_failed else _Status.WAITING


def _by_person(wanted: Iterable[_Wanted]) -> list[list[_Wanted]]:
    """Group a user's requests that have the same reason and are close in time. Return the groups in order."""
    found: dict[tuple[str, str], list[list[_Wanted]]] = {}
    for each in sorted(wanted, key=attrgetter("when")):
        jobs = found.setdefault((each.who, each.why), [])
        if jobs and each.when - jobs[-1][-1].when <= ONE_JOB:
            jobs[-1].append(each)
        else:
            jobs.append([each])
    return [job for jobs in found.values() for job in jobs]


# --- backfills ---------------------------------------------------------------------------------------------------


def _backfills(snapshot: TopologySnapshot, now: datetime) -> Iterator[JobLine]:
    for each in backfills(snapshot.record.dag_id, now - SHOWN_FOR):
        # A run that failed after the commit of its transaction counts as committed.
        committed = sum(_is_final(snapshot, run) for run in each.failed)
        by_run = {view.document.run_id: view.txid for view in snapshot.opened}
        failed = [by_run[run.run_id] for run in each.failed if run.run_id in by_run]
        if each.total:
            yield JobLine(
                kind=JobKind.BACKFILL if each.is_airflow_own else JobKind.TX_BACKFILL,
                first=each.first,
                last=each.last,
                who=each.who,
                since=each.since,
                why="",
                total=each.total,
                done=each.states.get("success", 0) + committed,
                failed=each.states.get("failed", 0) - committed,
                left_out=0,
                under_way=sum(each.states.get(state, 0) for state in LIVE_RUN_STATES),
                waiting=0,
                failed_txids=sorted(failed)[:MOST_NAMED],
                waiting_txids=[],
            )


def _is_final(snapshot: TopologySnapshot, run: FailedRun) -> bool:
    """Return whether the transaction of a run is final."""
    store = snapshot.unwatched or snapshot.store
    keys = [run.run_id, *([] if run.interval is None else [key_of_interval(run.interval)])]
    found = [
        binding.txid
        for key in keys
        if store is not None
        and (binding := ReadOnlyLedger(store, snapshot.paths).binding(key)) is not None
    ]
    return any(txid not in snapshot.open_by_txid for txid in found)


def _is_shown(pieces: Sequence[_Wanted], now: datetime) -> bool:
    is_over = all(each.status in (_Status.DONE, _Status.LEFT_OUT) for each in pieces)
    last = max((each.ended for each in pieces if each.ended is not None), default=now)
    return not is_over or now - last <= SHOWN_FOR
