"""The attempts of a transaction, to be compared: error, rows, tasks and code of each, from the ledger and Airflow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.models.dag_version import DagVersion
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_tx.plugin.api.advice import LogLink, failed_log, log_link
from airflow_tx.plugin.api.airflow_runs import TaskBar
from airflow_tx.plugin.api.timeline import AttemptBar
from airflow_tx.protocol.person import Words
from airflow_tx.protocol.status import TransactionView

Versions = Mapping[tuple[str, int, int], str]
"""The DAG version of each try, by task, map index and number of the try."""


@dataclass(frozen=True, kw_only=True)
class AttemptTask:
    """What one task did in an attempt, all its instances together.

    :param states: of the last try of each instance, as Airflow spells them: how many instances are in each.
    :param tries: of all its instances, within this attempt.
    :param seconds: from the first start until the last end; null: it has not ended, or did not start.
    :param log: of an instance that failed; else of the only one.
    """

    task_id: str
    states: dict[str, int]
    tries: int
    seconds: float | None
    log: LogLink | None


@dataclass(frozen=True, kw_only=True)
class AttemptLine:
    """One attempt, to be compared with the others.

    :param outcome: `replayed`, or the phase or outcome of the transaction for its newest attempt.
    :param why: its error, or why it was replayed; null: nothing is known.
    :param rows: of its batch; null: they were not counted, or are forgotten.
    :param dag_versions: of the code that its tasks ran, as Airflow counts them, the oldest first.
    """

    attempt: int
    begun_at: datetime | None
    ended_at: datetime | None
    outcome: str
    why: Words | None
    rows: int | None
    dag_versions: list[str]
    tasks: list[AttemptTask]


def attempt_lines(
    dag_id: str,
    view: TransactionView,
    attempts: Sequence[AttemptBar],
    tries: Sequence[TaskBar],
    versions: Versions,
) -> list[AttemptLine]:
    """Describe the remembered attempts of a transaction, the oldest first.

    :param tries: of its tasks, each with its attempt, if the viewer may see them.
    """
    rows = {each["attempt"]: each.get("rows") for each in view.replays}
    of_attempt: dict[int | None, list[TaskBar]] = defaultdict(list)
    for each in tries:
        of_attempt[each.attempt].append(each)
    return [
        AttemptLine(
            attempt=bar.attempt,
            begun_at=bar.begun_at,
            ended_at=bar.ended_at,
            outcome=bar.outcome,
            why=bar.why,
            rows=known_rows(view) if bar.attempt == view.attempt else rows.get(bar.attempt),
            dag_versions=_versions(of_attempt[bar.attempt], versions),
            tasks=_tasks(dag_id, view.run_id, of_attempt[bar.attempt]),
        )
        for bar in attempts
    ]


def known_rows(view: TransactionView) -> int | None:
    """Say how many rows the newest attempt has: its tasks or the source counted them; None: they were not counted."""
    size = view.size or {}
    counted = None if size.get("at_most") else size.get("rows")
    return counted if view.rows is None else view.rows


def dag_versions(dag_id: str, run_id: str) -> Versions:
    """Find the DAG version that each try of the tasks of a run has run, those before a retry or a clear included."""
    found: dict[tuple[str, int, int], str] = {}
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
                found[task_id, map_index, number] = _version(version, bundle)
    return found


def _version(number: int, bundle: Any) -> str:
    return f"{number} ({str(bundle)[:12]})" if bundle else str(number)


def _versions(tries: Sequence[TaskBar], versions: Versions) -> list[str]:
    started = (each for each in tries if each.start is not None)
    places = ((each.task_id, each.map_index, each.try_number) for each in started)
    return sorted({versions[place] for place in places if place in versions}, key=_number)


def _number(version: str) -> int:
    return int(version.partition(" ")[0])


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
