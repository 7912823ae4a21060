"""The part of `compat` that is about data intervals: which ones a schedule has, and their runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

from airflow_tx.compat.runs import RunNotStarted, one_line, text

# Within so many lengths of an interval before a date its schedule is searched for an interval that begins earlier.
_REACHES = (2, 16, 128)
_EVER = datetime(1, 1, 1, tzinfo=timezone.utc)


def zone_of(dag: Any) -> str:
    """Name the time zone of the cron schedule of a DAG; "" is UTC, also if the schedule has no zone."""
    import pendulum
    from airflow.sdk.bases.timetable import BaseTimetable
    from airflow.sdk.definitions.timetables._cron import CronMixin
    from airflow.sdk.definitions.timetables.assets import AssetOrTimeSchedule
    from airflow.sdk.definitions.timetables.trigger import MultipleCronTriggerTimetable

    timetable = dag.timetable
    if isinstance(timetable, AssetOrTimeSchedule):
        timetable = timetable.timetable
    if isinstance(timetable, MultipleCronTriggerTimetable):
        timetable = timetable.timetables[0]
    zone: Any = "UTC"
    if isinstance(timetable, CronMixin):
        zone = timetable.timezone
    elif not isinstance(timetable, BaseTimetable):  # one of Airflow's core
        zone = timetable.serialize().get("timezone", zone)
    name = pendulum.timezone(zone).name if isinstance(zone, (str, int)) else str(zone.name)
    return "" if name in ("UTC", "+00:00") else name


class ScheduledInterval(NamedTuple):
    """A data interval of a schedule, in UTC; its run may start at `run_after`."""

    logical_date: datetime
    start: datetime
    end: datetime
    run_after: datetime


def previous_end(dag: Any, start: datetime, end: datetime) -> datetime | None:
    """End of the last data interval that the schedule of a DAG has before the interval from `start` to `end`.

    None: the schedule has none near it, or the task's Airflow cannot tell.
    """
    try:
        core = _core(dag.timetable)
    except ImportError:  # a worker with the task SDK alone
        return None
    for reach in _REACHES:
        asked = _asked(core, start - reach * (end - start), start)
        ends = [each.end for each in takewhile(lambda each: each.end <= start, asked)]
        if ends:
            return ends[-1]
    return None


@dataclass(frozen=True)
class IntervalSchedule:
    """The schedule of a DAG, as its file says it: Airflow's core is imported when it is first asked.

    :param timetable: of the DAG.
    :param earliest: no interval begins before it; `latest`: none begins after it.
    :param catchup: whether its first interval is the earliest one, not the last that has ended.
    """

    timetable: Any
    earliest: datetime | None = None
    latest: datetime | None = None
    catchup: bool = False

    @classmethod
    def of_dag(cls, dag: Any) -> IntervalSchedule:
        """Read the schedule of a DAG, whose tasks may have dates of their own."""
        starts = [
            date for date in (dag.start_date, *(task.start_date for task in dag.tasks)) if date
        ]
        ends = [task.end_date for task in dag.tasks]
        latest = (
            max([*ends, *([dag.end_date] if dag.end_date else [])])
            if ends and all(ends)
            else dag.end_date
        )
        return cls(dag.timetable, min(starts, default=None), latest, bool(dag.catchup))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> IntervalSchedule:
        """Read what `to_json` gave."""
        from airflow.serialization.decoders import decode_timetable

        earliest, latest = (each and datetime.fromisoformat(each) for each in value["dates"])
        return cls(
            decode_timetable(json.loads(value["timetable"])), earliest, latest, value["catchup"]
        )

    def to_json(self) -> dict[str, Any]:
        """Give it as plain JSON, for another process."""
        from airflow.serialization.encoders import encode_timetable

        # A text: of a mapping that names a class Airflow makes an object where the arguments of a trigger pass by.
        encoded = json.dumps(encode_timetable(self.timetable))
        dates = [each and each.isoformat() for each in (self.earliest, self.latest)]
        return {"timetable": encoded, "dates": dates, "catchup": self.catchup}

    def next_interval(self, after: datetime | None, now: datetime) -> ScheduledInterval | None:
        """Find the first interval that does not begin before a date, or the first at all; None: it has not ended.

        :raises ImportError: only the task SDK is installed here.
        """
        if after is None:
            following = _asked(self._core, self.earliest, self.latest, catchup=self.catchup)
        else:
            since = max(after, self.earliest or after)
            following = _in_a_row(self._core, since, self.earliest, self.latest)
        found = next(following, None)
        return None if found is None or max(found.end, found.run_after) > now else found

    def previous_end(self, start: datetime, end: datetime) -> datetime | None:
        """Find the end of the last interval before the one from `start` to `end`; None: there is none near it."""
        return previous_end(self, start, end)

    def run_id(self, interval: ScheduledInterval) -> str:
        """Name the run of an interval as Airflow's scheduler names it."""
        import pendulum
        from airflow.timetables.base import DataInterval
        from airflow.utils.types import DagRunType

        dates = DataInterval(pendulum.instance(interval.start), pendulum.instance(interval.end))
        name: str = self._core.generate_run_id(
            run_type=DagRunType.SCHEDULED,
            run_after=pendulum.instance(interval.run_after),
            data_interval=dates,
        )
        return name

    def makes(self, start: datetime, end: datetime) -> bool:
        """Whether Airflow gives a run that is started by hand this interval, if it may run from the end of it on."""
        return _inferred(self._core, end) == (start, end)

    @cached_property
    def _core(self) -> Any:
        return _core(self.timetable)


def _core(timetable: Any) -> Any:
    from airflow.serialization.encoders import coerce_to_core_timetable

    return coerce_to_core_timetable(timetable)  # unchanged, if it is a core timetable


def _asked(
    core: Any, earliest: datetime | None, latest: datetime | None = None, *, catchup: bool = True
) -> Iterator[ScheduledInterval]:
    """Ask a timetable for one interval after the other, as the scheduler does."""
    import pendulum
    from airflow.timetables.base import TimeRestriction

    restriction = TimeRestriction(
        None if earliest is None else pendulum.instance(earliest),
        None if latest is None else pendulum.instance(latest),
        catchup=catchup,
    )
    info = None
    while (
        info := core.next_dagrun_info_v2(last_dagrun_info=info, restriction=restriction)
    ) and info.data_interval:
        interval = info.data_interval
        dated = (info.logical_date, interval.start, interval.end, info.run_after)
        yield ScheduledInterval(*map(_utc, dated))


def _in_a_row(
    core: Any, since: datetime, earliest: datetime | None = None, latest: datetime | None = None
) -> Iterator[ScheduledInterval]:
    """Give the intervals that begin at `since` or later, as they follow an interval that begins before it.

    A cron schedule that is asked from `since` leaves out an interval that ends when the clocks go forward.

    :param earliest: where the scheduler asks from; None: unknown.
    """
    asked = _asked(core, _before(core, since, earliest), latest)
    return (each for each in asked if each.start >= since)


def _before(core: Any, since: datetime, earliest: datetime | None) -> datetime:
    """Find a date to ask from: one from where intervals lead to `since`; `since`, if there is none."""
    found = next(_asked(core, since), None)
    if found is None:
        return since
    for reach in _REACHES:
        date = max(since - reach * (found.end - found.start), earliest or _EVER)
        before = list(takewhile(lambda each: each.start < since, _asked(core, date)))
        if before and before[-1].end != since == found.start:
            return since  # a schedule of lengths alone, which has an interval from any date on
        if before or date == earliest:
            return date
    return since


def _inferred(timetable: Any, run_after: datetime) -> tuple[datetime, datetime]:
    import pendulum

    found = timetable.infer_manual_data_interval(run_after=pendulum.instance(run_after))
    return _utc(found.start), _utc(found.end)


def interval_context(start: datetime, end: datetime) -> dict[str, Any]:
    """Return what the context of a scheduled run says of its dates."""
    from airflow.sdk.timezone import coerce_datetime

    date: Any = coerce_datetime(start)
    ds = date.strftime("%Y-%m-%d")
    ts = date.isoformat()
    return {
        "logical_date": date,
        "data_interval_start": date,
        "data_interval_end": coerce_datetime(end),
        "ds": ds,
        "ds_nodash": ds.replace("-", ""),
        "ts": ts,
        "ts_nodash": date.strftime("%Y%m%dT%H%M%S"),
        "ts_nodash_with_tz": ts.replace("-", "").replace(":", ""),
    }


INTERVAL_KEYS = frozenset(
    {"logical_date", "data_interval_start", "data_interval_end"}
    | {"ds", "ds_nodash", "ts", "ts_nodash", "ts_nodash_with_tz"}
)
"""The keys of `interval_context`."""


class DatedRun(NamedTuple):
    """A run of a logical date."""

    run_id: str
    state: str


def scheduled_intervals(dag_id: str, first: datetime, last: datetime) -> list[ScheduledInterval]:
    """List the intervals of a DAG whose logical dates are from `first` to `last` and which have ended, earliest first.

    `airflow backfill create` makes the same, but leaves out a first one that ends when the clocks go forward.

    :raises RunNotStarted: Airflow does not know the DAG, or it cannot be backfilled.
    """
    from airflow.utils.session import create_session

    with create_session() as session:
        dag = _backfilled_dag(dag_id, session)
    now = datetime.now(timezone.utc)
    found = _in_a_row(dag.timetable, first)
    return list(takewhile(lambda each: each.logical_date <= last and each.end < now, found))


def dated_runs(dag_id: str, intervals: Sequence[ScheduledInterval]) -> dict[datetime, DatedRun]:
    """Return, by logical date, the runs that have intervals, sorted by date."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    first = intervals[0].logical_date
    last = intervals[-1].logical_date
    query = select(DagRun.logical_date, DagRun.run_id, DagRun.state).where(
        DagRun.dag_id == dag_id, DagRun.logical_date >= first, DagRun.logical_date <= last
    )
    with create_session() as session:
        return {
            _utc(date): DatedRun(run_id, text(state))
            for date, run_id, state in session.execute(query)
        }


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
    date = interval.logical_date
    after = interval.run_after
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
        raise RunNotStarted(
            dag_id=dag_id, run_id=str(date), status=None, reason=one_line(error)
        ) from error
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
