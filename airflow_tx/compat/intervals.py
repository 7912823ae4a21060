"""The part of `compat` that is about data intervals: which ones a schedule has, and the runs that stand for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from airflow_tx.compat.runs import RunNotStarted, one_line, text

# Within so many lengths of an interval before it its schedule is searched for the one before.
_REACHES = (2, 16, 128)


def previous_end(dag: Any, start: datetime, end: datetime) -> datetime | None:
    """End of the last data interval that the schedule of a DAG has before the interval from `start` to `end`.

    None: the schedule has none near it, or the task's Airflow cannot tell.
    """
    try:
        import pendulum
        from airflow.serialization.encoders import coerce_to_core_timetable
        from airflow.timetables.base import TimeRestriction
    except ImportError:  # a worker with the task SDK alone
        return None
    timetable: Any = coerce_to_core_timetable(dag.timetable)
    for reach in _REACHES:
        earliest = pendulum.instance(start - reach * (end - start))
        restriction = TimeRestriction(earliest, pendulum.instance(start), catchup=True)
        info, found = None, None
        while (
            info := timetable.next_dagrun_info_v2(last_dagrun_info=info, restriction=restriction)
        ) and info.data_interval.end <= start:
            found = info.data_interval.end
        if found is not None:
            return _utc(found)
    return None


class ScheduledInterval(NamedTuple):
    """A data interval of a schedule, in UTC; its run may start at `run_after`."""

    logical_date: datetime
    start: datetime
    end: datetime
    run_after: datetime


class DatedRun(NamedTuple):
    """A run that stands for a logical date."""

    run_id: str
    state: str


def scheduled_intervals(dag_id: str, first: datetime, last: datetime) -> list[ScheduledInterval]:
    """List the intervals of a DAG whose logical dates lie from `first` to `last` and which have ended.

    They are those of `airflow backfill create`, earliest first.

    :raises RunNotStarted: Airflow does not know the DAG, or it cannot be backfilled.
    """
    from airflow.utils.session import create_session

    with create_session() as session:
        dag = _backfilled_dag(dag_id, session)
    now = datetime.now(timezone.utc)
    return [
        ScheduledInterval(_utc(info.logical_date), _utc(interval.start), _utc(interval.end), _utc(info.run_after))
        for info in dag.iter_dagrun_infos_between(first, last)
        if (interval := info.data_interval) is not None and interval.end < now
    ]


def dated_runs(dag_id: str, intervals: Sequence[ScheduledInterval]) -> dict[datetime, DatedRun]:
    """Return, by logical date, the runs that stand for intervals; those are sorted by date."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    first, last = intervals[0].logical_date, intervals[-1].logical_date
    query = select(DagRun.logical_date, DagRun.run_id, DagRun.state).where(
        DagRun.dag_id == dag_id, DagRun.logical_date >= first, DagRun.logical_date <= last
    )
    with create_session() as session:
        return {_utc(date): DatedRun(run_id, text(state)) for date, run_id, state in session.execute(query)}


def create_backfill_run(dag_id: str, interval: ScheduledInterval, user: str) -> bool:
    """Create the run of an interval as `airflow backfill create` does, but of no backfill; False if there is one.

    Being of none, it has the run slots of the DAG, and no backfill has to end before another one begins.

    :raises RunNotStarted: Airflow does not know the DAG, or it cannot be backfilled.
    """
    from airflow.models.dagrun import DagRun
    from airflow.sdk.exceptions import AirflowException
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy.exc import IntegrityError

    kind = DagRunType.BACKFILL_JOB
    date, after = interval.logical_date, interval.run_after
    try:
        with create_session() as session:
            _backfilled_dag(dag_id, session).create_dagrun(
                run_id=DagRun.generate_run_id(run_type=kind, logical_date=date, run_after=after),
                logical_date=date,
                data_interval=(interval.start, interval.end),
                run_after=after,
                run_type=kind,
                triggered_by=DagRunTriggeredByType.BACKFILL,
                triggering_user_name=user,
                state=DagRunState.QUEUED,
                start_date=datetime.now(timezone.utc),
                session=session,
            )
    except IntegrityError:
        return False
    except (AirflowException, ValueError) as error:
        raise RunNotStarted(dag_id=dag_id, run_id=str(date), status=None, reason=one_line(error)) from error
    return True


def _backfilled_dag(dag_id: str, session: Any) -> Any:
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.types import DagRunType

    dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
    allowed = None if dag is None else dag.allowed_run_types
    if dag is None:
        reason = "Airflow does not know this DAG"
    elif not dag.timetable.periodic:
        reason = "its schedule has no dates that could be backfilled"
    elif allowed is not None and DagRunType.BACKFILL_JOB not in allowed:
        reason = "it does not allow runs of backfills"
    else:
        return dag
    raise RunNotStarted(dag_id=dag_id, run_id="backfill", status=None, reason=reason)


def _utc(date: datetime) -> datetime:
    return datetime.fromisoformat(date.isoformat()).astimezone(timezone.utc)
