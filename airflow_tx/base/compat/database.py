"""Runs and DAGs in the metadata database. Part of `compat`. Only commands and the API server can use it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_tx.base.compat.components import is_airflow_3_2
from airflow_tx.base.compat.runs import (
    IntervalSchedule,
    RunNotStarted,
    one_line,
    operator_run_type,
    text,
)
from airflow_tx.base.lazy_names import LazyModule

if TYPE_CHECKING:
    import sqlalchemy as sa
    from airflow import models
    from airflow.utils import session as sessions
else:
    sa = LazyModule("sqlalchemy")
    models = LazyModule("airflow.models")
    sessions = LazyModule("airflow.utils.session")

_AT_ONCE = 500
# The caller may have read the ledger just before the last commit of a run.
_JUST_NOW = timedelta(seconds=2)
_TEST_BUNDLE = "airflow-tx-trial"

STRANDED = "queued in a cancelled or paused backfill"
"""The state of a queued run that Airflow never starts, since its backfill is cancelled or paused."""
DAG_PAUSED = "queued while its DAG is paused"


def _state(row: Any) -> str:
    """Return the state of a run. The state of a queued run shows whether Airflow will start it."""
    return STRANDED if row.state == "queued" and row.strands else text(row.state)


def _strands() -> Any:
    """Return the SQL expression that is true if a run's backfill starts no more runs.

    The query needs an outer join of `DagRun.backfill`.
    """
    from airflow.models.backfill import Backfill

    return Backfill.is_paused.label("strands")


def clear_run(
    dag_id: str,
    run_id: str,
    *,
    past_limit: bool,
    only_failed: bool = False,
    latest: bool = False,
    noting: Callable[[], object] = bool,
) -> bool:
    """Clear a run, so that Airflow executes it again. Return False if the run does not exist.

    :param past_limit: whether the run may start even if the DAG has its maximum number of running runs. This also
        applies to a waiting run that was cleared earlier.
    :param only_failed: clear only the failed tasks. A run without failed tasks is not changed.
    :param latest: whether to use the newest DAG version, even if the DAG's setting for cleared runs differs.
    :param noting: function that records the start elsewhere. It is called within the database transaction.
    :raises RunNotStarted: Airflow no longer has the DAG of the run.
    """
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.state import DagRunState

    with sessions.create_session() as session:
        run = session.scalar(
            sa.select(models.DagRun).where(
                models.DagRun.dag_id == dag_id, models.DagRun.run_id == run_id
            )
        )
        if run is None:
            return False
        dag = DBDagBag().get_dag_for_run(run, session=session)
        if dag is None:
            raise RunNotStarted(
                dag_id=dag_id, run_id=run_id, status=None, reason="Airflow does not know this DAG"
            )
        dag.clear(
            run_id=run_id,
            only_failed=only_failed,
            dag_run_state=DagRunState.RUNNING if past_limit else DagRunState.QUEUED,
            run_on_latest_version=latest or _runs_latest(dag_id, session),
            session=session,
        )
        # A clear sets the state of an ended run. It does not change the state of a run that is
        # already waiting.
        if past_limit and run.state == DagRunState.QUEUED:
            run.set_state(DagRunState.RUNNING)
        session.flush()
        noting()
    return True


def _runs_latest(dag_id: str, session: Any) -> bool:
    """Return whether a cleared run uses the newest version of its DAG. Airflow 3.2 has no such setting."""
    if is_airflow_3_2():
        return False
    from airflow.api_fastapi.common.dagbag import resolve_run_on_latest_version

    return bool(resolve_run_on_latest_version(None, dag_id, session))


def create_run(
    dag_id: str,
    run_id: str,
    conf: Mapping[str, Any] | None = None,
    interval: tuple[datetime, datetime] | None = None,
    *,
    noting: Callable[[], object] = bool,
) -> bool:
    """Create a run, which starts when the DAG's limits permit. Return False if the run exists.

    The run is a manual run. Airflow reserves some run ids for other types, such as scheduled runs. In Airflow 3.2, such
    an id also sets the run's type.

    :param interval: data interval of the run. The run has no logical date if the interval is not in the schedule.
    :param noting: see `clear_run`.
    :raises RunNotStarted: the DAG is unknown, or the DAG does not allow such a run.
    """
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import DagRunAlreadyExists
    from airflow.sdk.exceptions import AirflowException
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    kind = DagRunType.from_run_id(run_id)
    if kind != DagRunType.MANUAL and not is_airflow_3_2():
        kind = operator_run_type()
    dates = _dates(dag_id, interval)
    try:
        with sessions.create_session() as session:
            trigger_dag(
                dag_id,
                triggered_by=DagRunTriggeredByType.CLI,
                run_type=kind,
                run_id=run_id,
                conf=dict(conf or {}),
                session=session,
                **dates,
            )
            session.flush()
            noting()
    except DagRunAlreadyExists:
        return False
    except (AirflowException, ValueError) as error:
        raise RunNotStarted(
            dag_id=dag_id, run_id=run_id, status=None, reason=one_line(error)
        ) from error
    return True


def _dates(dag_id: str, interval: tuple[datetime, datetime] | None) -> dict[str, Any]:
    """Return the dates of a new run, if its interval is in the schedule and no other run has the date."""
    from airflow.models.dagbag import DBDagBag

    if interval is None:
        return {}
    start, end = interval
    with sessions.create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
        taken = session.scalar(
            sa.select(models.DagRun.id).where(
                models.DagRun.dag_id == dag_id, models.DagRun.logical_date == start
            )
        )
    if taken is not None or dag is None or not IntervalSchedule(dag.timetable).makes(start, end):
        return {}
    return {"logical_date": start, "run_after": end}


def runs_of(dag_id: str, run_ids: Collection[str]) -> dict[str, str]:
    """Return the states of the runs that exist. The state of a run may be `STRANDED`."""

    wanted = list(run_ids)
    found = {}
    with sessions.create_session() as session:
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            query = (
                sa.select(models.DagRun.run_id, models.DagRun.state, _strands())
                .outerjoin(models.DagRun.backfill)
                .where(models.DagRun.dag_id == dag_id, models.DagRun.run_id.in_(some))
            )
            found.update({row.run_id: _state(row) for row in session.execute(query)})
    return found


def run_ends(runs: Collection[tuple[str, str]]) -> dict[tuple[str, str], str | None]:
    """Return the final states of runs that have ended. A run that does not exist has the state None.

    A queued run that Airflow does not start has the state `STRANDED` or `DAG_PAUSED`. The result omits other runs, runs
    that have just ended, and runs of unknown DAGs.

    :param runs: pairs of DAG id and run id.
    """
    from airflow.utils.state import State

    just_now = datetime.now(timezone.utc) - _JUST_NOW
    wanted = sorted(runs)
    ends: dict[tuple[str, str], str | None] = {}
    with sessions.create_session() as session:
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            same = sa.and_(
                models.DagRun.dag_id == models.DagModel.dag_id,
                models.DagRun.run_id.in_({run_id for _, run_id in some}),
            )
            query = (
                sa.select(
                    models.DagModel.dag_id,
                    models.DagRun.run_id,
                    models.DagRun.state,
                    models.DagRun.end_date,
                    models.DagModel.is_paused,
                    _strands(),
                )
                .join_from(models.DagModel, models.DagRun, same, isouter=True)
                .outerjoin(models.DagRun.backfill)
                .where(models.DagModel.dag_id.in_({dag_id for dag_id, _ in some}))
            )
            rows = list(session.execute(query))
            known = {row.dag_id for row in rows}
            found = {(row.dag_id, row.run_id): row for row in rows}
            for each in some:
                row = found.get(each)
                if row is None and each[0] in known:
                    ends[each] = None
                elif row is not None and row.state == "queued" and (row.strands or row.is_paused):
                    ends[each] = STRANDED if row.strands else DAG_PAUSED
                elif (
                    row is not None
                    and row.state in State.finished_dr_states
                    and not (row.end_date and row.end_date > just_now)
                ):
                    ends[each] = text(row.state)
    return ends


def is_paused_there(dag_id: str) -> bool | None:
    """Return whether the DAG is paused, or None if Airflow does not know it."""

    with sessions.create_session() as session:
        found = session.execute(
            sa.select(models.DagModel.is_paused).where(models.DagModel.dag_id == dag_id)
        ).first()
    return None if found is None else bool(found.is_paused)


def why_none_starts(dag_id: str, *, once_unpaused: bool = False) -> str | None:
    """Explain why Airflow starts no runs of a DAG, and how to fix this. Return None if Airflow starts them.

    :param once_unpaused: whether to ignore a pause of the DAG.
    """

    with sessions.create_session() as session:
        model = models.DagModel
        query = sa.select(model.is_paused, model.is_stale, model.has_import_errors)
        found = session.execute(query.where(model.dag_id == dag_id)).first()
    if found is not None and found.has_import_errors:
        return f"DAG {dag_id} starts no run, since its file cannot be imported: airflow dags list-import-errors"
    if found is None or found.is_stale:
        return f"DAG {dag_id} starts no run, since Airflow has no DAG with this id: add it to a DAG file"
    if found.is_paused and not once_unpaused:
        return f"DAG {dag_id} starts no run, since it is paused: airflow dags unpause {dag_id}"
    return None


def connection_exists(conn_type: str) -> bool:
    """Whether the metadata database contains a connection of this type."""
    from airflow.models.connection import Connection

    query = sa.select(Connection.id).where(Connection.conn_type == conn_type).limit(1)
    with sessions.create_session() as session:
        return session.scalar(query) is not None


def pause_dag(dag_id: str, paused: bool) -> bool:
    """Pause or unpause a DAG. Return False if nothing changed, or if Airflow does not know the DAG."""

    with sessions.create_session() as session:
        # This is one statement, so that only one of two concurrent processes changes the row.
        changed = sa.update(models.DagModel).where(
            models.DagModel.dag_id == dag_id, models.DagModel.is_paused.is_not(paused)
        )
        done = session.execute(
            changed.values(is_paused=paused).execution_options(synchronize_session=False)
        )
    return bool(done.rowcount)  # type: ignore[attr-defined]


def log_action(
    what: str, *, who: str, dag_id: str, entries: Iterable[tuple[str | None, Mapping[str, Any]]]
) -> None:
    """Write entries to Airflow's audit log.

    :param entries: pairs of the run id and the details. The run id is None if the entry concerns no run.
    """
    import json

    from airflow.models.log import Log

    with sessions.create_session() as session:
        for run_id, details in entries:
            session.add(
                Log(
                    event=what,
                    owner=who,
                    dag_id=dag_id,
                    run_id=run_id,
                    extra=json.dumps(dict(details)),
                )
            )


class DagFile(NamedTuple):
    """The location of a DAG in Airflow: a bundle, and a path within it."""

    bundle: str
    path: str


def dag_file(dag_id: str) -> DagFile | None:
    """Return the location of a DAG in Airflow, or None if Airflow does not know it."""

    with sessions.create_session() as session:
        query = sa.select(models.DagModel.bundle_name, models.DagModel.relative_fileloc).where(
            models.DagModel.dag_id == dag_id
        )
        found = session.execute(query).first()
    if found is None or not found.relative_fileloc:
        return None
    return DagFile(found.bundle_name, found.relative_fileloc)


def code_since(dag_id: str) -> datetime | None:
    """Return the time when a DAG's code last changed in Airflow. Return None if Airflow does not know the DAG."""
    from airflow.models.dagcode import DagCode

    with sessions.create_session() as session:
        query = sa.select(DagCode.last_updated).where(DagCode.dag_id == dag_id)
        newest = session.scalars(query.order_by(DagCode.last_updated.desc()).limit(1))
        found: datetime | None = newest.first()
    return found


def prepare_test(dag: Any) -> None:
    """Prepare `DAG.test` for a DAG outside all bundles.

    Write the DAG to Airflow's database, and create missing tables.

    :raises AirflowException: the database has no tables and is not SQLite.
    """
    from airflow.dag_processing.collection import update_dag_parsing_results_in_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.settings import engine
    from airflow.utils.db import initdb

    assert engine is not None
    if engine.dialect.name == "sqlite" and not sa.inspect(engine).has_table("dag_run"):
        initdb()
    with sessions.create_session() as session:
        session.merge(DagBundleModel(name=_TEST_BUNDLE))
        session.flush()
        found = [LazyDeserializedDAG.from_dag(dag)]
        update_dag_parsing_results_in_db(
            _TEST_BUNDLE, None, found, {}, None, set(), session=session
        )


def is_scheduled(dag_id: str) -> bool:
    """Whether a live scheduler executes this DAG's tasks. It would also execute the tasks of a `DAG.test`."""
    from airflow.jobs.job import most_recent_job

    with sessions.create_session() as session:
        known = session.get(models.DagModel, dag_id)
        if known is None or known.is_paused:
            return False
        scheduler = most_recent_job("SchedulerJob", session=session)
        return scheduler is not None and scheduler.is_alive()


def run_that_a_test_deletes(dag_id: str, logical_date: datetime | None) -> str | None:
    """Find a run that `DAG.test` would delete or clear. Runs of earlier tests are ignored.

    :param logical_date: date of the test. With None, the test has no date and clears every run.
    """
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    by_test = models.DagRun.triggered_by.is_distinct_from(DagRunTriggeredByType.TEST)
    query = sa.select(models.DagRun.run_id).where(
        models.DagRun.dag_id == dag_id, sa.or_(by_test, models.DagRun.run_type != DagRunType.MANUAL)
    )
    if logical_date is not None:
        query = query.where(models.DagRun.logical_date == logical_date)
    with sessions.create_session() as session:
        return session.scalar(query.limit(1))


def pushed_xcoms(run: Any) -> list[tuple[str, str, int, Any]]:
    """List a run's XComs from the metadata database: task id, key, map index, value."""
    from airflow.models.xcom import XComModel

    wanted = sa.select(XComModel).where(
        XComModel.dag_id == run.dag_id, XComModel.run_id == run.run_id
    )
    with sessions.create_session() as session:
        found = session.scalars(
            wanted.order_by(XComModel.task_id, XComModel.map_index, XComModel.key)
        ).all()
        return [
            (each.task_id, each.key, each.map_index, XComModel.deserialize_value(each))
            for each in found
        ]
