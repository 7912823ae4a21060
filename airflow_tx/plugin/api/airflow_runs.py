"""What Airflow's metadata database says of DAGs, runs and tasks: one query a question, however many are asked about."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select

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
