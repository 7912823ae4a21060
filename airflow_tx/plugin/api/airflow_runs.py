"""What Airflow's metadata database says of DAGs, runs and tasks: one query a question, however many are asked about."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
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

from airflow_tx.protocol.replay import LIVE_RUN_STATES

_AT_ONCE = 500
COMMIT = "CommitOperator"


@dataclass(frozen=True, kw_only=True)
class TaskBar:
    """One try of one task instance of the run.

    :param map_index: -1: it is not mapped.
    :param attempt: the attempt that it began in; null: none is known.
    :param state: as Airflow spells it; null: it has none yet.
    :param operator: the class of the task.
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
    """Find out which of these DAGs are paused; DAGs that Airflow does not know are left out."""
    with create_session() as session:
        rows = session.execute(
            select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(dag_ids))
        )
        return {dag_id: bool(paused) for dag_id, paused in rows}


def task_tries(dag_id: str, run_ids: Collection[str]) -> Mapping[str, list[TaskBar]]:
    """List the tries of all tasks of these runs, those before a retry or a clear included."""
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
    """List the tasks that have failed in these runs, each by its DAG and its run_id."""
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
    """List what tasks of a run have said to others: of which task, under which key, and what."""
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
"""Failed runs of a backfill that are named."""


@dataclass(frozen=True)
class FailedRun:
    """A run of a backfill that has failed.

    :param interval: its data interval; None: it has none.
    """

    run_id: str
    interval: tuple[datetime, datetime] | None


@dataclass(frozen=True)
class Backfill:
    """A backfill, with its runs.

    :param first: its first date; `last`: its last one; None: its runs have no dates.
    :param who: created it; None: Airflow does not know.
    :param states: how many of its runs are in each state.
    :param failed: at most `MOST_FAILED` of its failed runs.
    :param is_airflow_own: False: `airflow tx backfill` created its runs.
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
    """List the backfills of a DAG that are under way, or ended since a moment."""
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
    """List the runs of `airflow tx backfill`, which are of no backfill of Airflow, by the person who created them."""
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
    """Say of runs their state, and when they were over last; runs that do not exist are left out."""
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
