"""How tasks and triggers start runs and read run states. Part of `compat`.

A task or a trigger has no access to the metadata database, and sends messages to its supervisor. A task may send the
messages of the union `ToSupervisor` in airflow.sdk.execution_time.comms. A trigger may send only the messages of
`ToTriggerSupervisor` in airflow.jobs.triggerer_job_runner. The supervisor ignores all other messages from a trigger.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_tx.base.compat.components import is_airflow_3_2
from airflow_tx.base.errors import TxError
from airflow_tx.base.lazy_names import LazyModule

if TYPE_CHECKING:
    import pendulum
    from airflow.sdk import exceptions
    from airflow.sdk.execution_time import comms
    from airflow.utils import session as sessions, types
else:
    comms = LazyModule("airflow.sdk.execution_time.comms")
    exceptions = LazyModule("airflow.sdk.exceptions")
    pendulum = LazyModule("pendulum")
    sessions = LazyModule("airflow.utils.session")
    types = LazyModule("airflow.utils.types")


# --- runs ---------------------------------------------------------------------------------------------------------


_NOT_FOUND = 404
_EVENTS_AT_ONCE = 100


class RunNotStarted(TxError):
    """Signals that Airflow refused to start or clear a run, or did not respond.

    The message has its response in one line.

    :param status: HTTP status of Airflow's response, or None if there was no response.
    :param forbidden: whether the DAG does not allow such a run, so that its file must be changed.
    """

    forbidden = False
    template = "Run {run_id!r} of DAG {dag_id!r} was not started: {reason}"


# --- from a running task -----------------------------------------------------------------------------------------


def start_run(
    dag_id: str,
    run_id: str,
    *,
    conf: Mapping[str, Any] | None = None,
    reset: bool = False,
    dated: bool = False,
    interval: tuple[datetime, datetime] | None = None,
) -> bool:
    """Start a run. Return False if the run exists and `reset` is not set.

    Airflow repeats a request whose response was lost. This call may therefore have created the run even if it returns
    False.

    :param conf: conf of a new run. A run that is reset keeps its conf.
    :param reset: whether to clear all tasks of the run if it exists.
    :param dated: whether the run gets a logical date, which is now. Airflow's home page only shows dated runs.
    :param interval: data interval of a new run, which the schedule must have. Without an interval, and in Airflow 3.2,
        the run has no logical date. If another run has the date, that run is started, since Airflow allows only one.
    :raises RunNotStarted: the DAG is unknown, stale or not importable, or its rules forbid such a run.
    """
    from airflow.utils.state import State

    other = None if interval is None else _run_on(dag_id, interval[0])
    if other is not None and other.run_id != run_id:
        if other.state in State.unfinished_dr_states:
            return False
        run_id = other.run_id
        reset = True
    dates: dict[str, Any] = {"logical_date": datetime.now(timezone.utc) if dated else None}
    if interval is not None and not is_airflow_3_2():
        dates = {"logical_date": interval[0], "run_after": interval[1]}
    message = comms.TriggerDagRun(
        dag_id=dag_id, run_id=run_id, conf=dict(conf or {}), reset_dag_run=reset, **dates
    )
    try:
        answer = _ask(message)
    except exceptions.AirflowRuntimeError as error:
        innermost = _innermost(error)
        raise RunNotStarted(
            dag_id=dag_id,
            run_id=run_id,
            status=_status(error),
            reason=one_line(innermost.get("message") or innermost.get("detail") or error),
            forbidden=innermost.get("reason") in ("value_error", "denied_run_type"),
        ) from error
    return not (
        isinstance(answer, comms.ErrorResponse)
        and answer.error == exceptions.ErrorType.DAGRUN_ALREADY_EXISTS
    )


def operator_run_type() -> Any:
    """Return the run type of a run that a task starts."""
    kinds = types.DagRunType
    return kinds.MANUAL if is_airflow_3_2() else kinds.OPERATOR_TRIGGERED


def why_not_started(dag: Any) -> tuple[str, str] | None:
    """Explain why no task can start a run of a DAG, and how to fix this. Return None if a task can start a run."""
    missing = []
    for name in dag.params:
        try:
            dag.params.get_param(name).resolve()
        except exceptions.ParamValidationError:
            missing.append(name)
    if missing:
        return (
            f"params of DAG {dag.dag_id!r} have no valid default: {', '.join(missing)}",
            'Give each one a default: params={"shop": Param("north", type="string")}',
        )
    kind = operator_run_type()
    if dag.allowed_run_types is not None and kind not in dag.allowed_run_types:
        allowed = ", ".join(sorted(map(text, dag.allowed_run_types)))
        return (
            f"DAG {dag.dag_id!r} has allowed_run_types = {allowed}",
            f"Add DagRunType.{kind.name} to allowed_run_types",
        )
    return None


def restart_dead(dag_id: str, run_id: str) -> bool:
    """Restart a run whose process died while Airflow still considers it running.

    Return False if the run does not exist. The first reset sets the state of a running task to `restarting`. Airflow
    then waits until the process reports, or until its heartbeat times out (300 s). A second reset sets the state of the
    task to scheduled. A live process notices this at its next heartbeat.

    :raises RunNotStarted: see `start_run`.
    """
    if _or_missing(comms.GetDagRunState(dag_id=dag_id, run_id=run_id)) is None:
        return False
    start_run(dag_id, run_id, reset=True)
    states = _ask(comms.GetTaskStates(dag_id=dag_id, run_ids=[run_id])).task_states.get(run_id, {})
    if any(text(state) == "restarting" for state in states.values()):
        start_run(dag_id, run_id, reset=True)
    return True


def run_state(ti: Any, dag_id: str, run_id: str) -> str | None:
    """Return the state of a run, from a task instance. Return None if the run was deleted."""
    try:
        return text(ti.get_dagrun_state(dag_id=dag_id, run_id=run_id))
    except exceptions.AirflowRuntimeError as error:
        if is_missing(error):
            return None
        raise


def is_paused(dag_id: str) -> bool | None:
    """Return whether the DAG is paused. Return None if the DAG does not exist."""
    dag = _or_missing(comms.GetDag(dag_id=dag_id))
    return None if dag is None else bool(dag.is_paused)


def running_runs(dag_id: str) -> int:
    """Return the number of the DAG's running runs, including backfill runs."""
    return int(_ask(_count(dag_id, ["running"])).count)


def earlier_live_run(dag_id: str, date: datetime) -> datetime | None:
    """Return the logical date of a queued or running run of the DAG that precedes this date."""
    for state in ("running", "queued"):
        found = _ask(comms.GetPreviousDagRun(dag_id=dag_id, logical_date=date, state=state)).dag_run
        if found is not None:
            return datetime.fromisoformat(found.logical_date.isoformat())
    return None


def runs_on(dag_id: str, date: datetime, states: Collection[str]) -> int:
    """Return the number of runs with this logical date and one of these states."""
    return int(_ask(_count(dag_id, states, date)).count)


def _run_on(dag_id: str, date: datetime) -> Any:
    """Return the run of a logical date. The run may have any run id."""
    behind = date + timedelta(microseconds=1)
    found = _ask(comms.GetPreviousDagRun(dag_id=dag_id, logical_date=behind)).dag_run
    return found if found is not None and found.logical_date == date else None


def is_asset(outlet: Any) -> bool:
    """Whether a task with this outlet emits an event automatically.

    The outlet must be an asset or an asset reference.
    """
    from airflow.sdk import Asset
    from airflow.sdk.definitions.asset import AssetRef

    return isinstance(outlet, (Asset, AssetRef))


def has_event(asset: Any, said: Mapping[str, Any], *, after: datetime | None) -> bool:
    """Whether Airflow has stored an asset event with these values in its extra.

    :param asset: an asset, or a reference to an asset.
    :param after: time before which events are ignored, or None to read all events.
    """
    from airflow.sdk.definitions.asset import AssetNameRef, AssetUriRef

    name = None if isinstance(asset, AssetUriRef) else asset.name
    uri = None if isinstance(asset, AssetNameRef) else asset.uri
    limit = _EVENTS_AT_ONCE
    while True:
        # An event soon follows its commit, so it is among the first events.
        message = comms.GetAssetEventByAsset(name=name, uri=uri, after=after, limit=limit)
        events = _ask(message).asset_events
        if any(said.items() <= (event.extra or {}).items() for event in events):
            return True
        if len(events) < limit:
            return False
        limit *= 4


# --- from a trigger ----------------------------------------------------------------------------------------------


async def run_states(dag_id: str, run_ids: Collection[str]) -> dict[str, str | None]:
    """Return the states of runs. A deleted run has the state None.

    Each run needs its own message, since Airflow has none for several runs.
    """
    import asyncio

    wanted = list(dict.fromkeys(run_ids))
    return dict(
        zip(wanted, await asyncio.gather(*(_state(dag_id, each) for each in wanted)), strict=True)
    )


async def is_paused_async(dag_id: str) -> bool | None:
    """Return None, since a trigger cannot query whether a DAG is paused. Use `is_paused` before deferring."""
    return None


async def running_runs_async(dag_id: str) -> int:
    return int((await _ask_async(_count(dag_id, ["running"]))).count)


async def runs_on_async(dag_id: str, date: datetime, states: Collection[str]) -> int:
    return int((await _ask_async(_count(dag_id, states, date))).count)


# --- how Airflow is asked ----------------------------------------------------------------------------------------


def text(state: Any) -> str:
    """Convert a state to its spelling in Airflow's database and API."""
    return str(getattr(state, "value", state))


def is_missing(error: exceptions.AirflowRuntimeError) -> bool:
    return _status(error) == _NOT_FOUND


def _ask(message: Any) -> Any:
    from airflow.sdk.execution_time import task_runner

    return task_runner.SUPERVISOR_COMMS.send(message)


async def _ask_async(message: Any) -> Any:
    from airflow.sdk.execution_time import task_runner

    return await task_runner.SUPERVISOR_COMMS.asend(message)


def is_current_try(task_try: str) -> bool:
    """Query whether this is still the calling task's current try. Most retries and clears change the try's id.

    :param task_try: id of the try, or the result of `task_try`.
    """
    from uuid import UUID

    own = UUID(task_try.partition(".")[0])
    # Ignore the response body. Airflow first looks up the try, and reports an error if it does not
    # exist.
    return _or_missing(comms.ValidateInletsAndOutlets(ti_id=own)) is not None


def _or_missing(message: Any) -> Any:
    try:
        return _ask(message)
    except exceptions.AirflowRuntimeError as error:
        if is_missing(error):
            return None
        raise


async def _state(dag_id: str, run_id: str) -> str | None:
    try:
        return text((await _ask_async(comms.GetDagRunState(dag_id=dag_id, run_id=run_id))).state)
    except exceptions.AirflowRuntimeError as error:
        if is_missing(error):
            return None
        raise


def _count(dag_id: str, states: Collection[str], date: datetime | None = None) -> Any:
    return comms.GetDRCount(
        dag_id=dag_id, states=list(states), logical_dates=None if date is None else [date]
    )


def _status(error: exceptions.AirflowRuntimeError) -> int | None:
    status = (error.error.detail or {}).get("status_code")
    return None if status is None else int(status)


def _innermost(error: exceptions.AirflowRuntimeError) -> dict[str, Any]:
    """Return the innermost error, since Airflow's server and client wrap each other's errors."""
    detail: dict[str, Any] = error.error.detail or {}
    while isinstance(detail.get("detail"), dict):
        detail = detail["detail"]
    return detail


def one_line(value: object) -> str:
    return " ".join(str(value).split())


# --- intervals ----------------------------------------------------------------------------------------------------
# The data intervals of a schedule, and their runs.


# The search for an earlier interval starts this many interval lengths before a date.
_REACHES = (2, 16, 128)
_EVER = datetime(1, 1, 1, tzinfo=timezone.utc)


def zone_of(dag: Any) -> str:
    """Return the time zone of a DAG's cron schedule. Return "" for UTC, or for a schedule without a time zone."""
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
    elif not isinstance(timetable, BaseTimetable):  # this is a timetable of Airflow's core
        zone = timetable.serialize().get("timezone", zone)
    name = pendulum.timezone(zone).name if isinstance(zone, (str, int)) else str(zone.name)
    return "" if name in ("UTC", "+00:00") else name


class ScheduledInterval(NamedTuple):
    """A data interval of a schedule, in UTC. The run of the interval may start at `run_after`."""

    logical_date: datetime
    start: datetime
    end: datetime
    run_after: datetime


def previous_end(dag: Any, start: datetime, end: datetime) -> datetime | None:
    """Return the end of the schedule's last data interval before the given interval.

    Return None if there is no interval near it, or only the Task SDK is installed.
    """
    try:
        core = _core(dag.timetable)
    except ImportError:  # only the Task SDK is installed on this worker
        return None
    for reach in _REACHES:
        asked = _asked(core, start - reach * (end - start), start)
        ends = [each.end for each in takewhile(lambda each: each.end <= start, asked)]
        if ends:
            return ends[-1]
    return None


@dataclass(frozen=True)
class IntervalSchedule:
    """The schedule of a DAG, from its file. The first use imports Airflow's core.

    :param timetable: timetable of the DAG.
    :param earliest: date before which no interval starts.
    :param latest: date after which no interval starts.
    :param catchup: whether the first interval is the earliest one. Otherwise it is the last one that has ended.
    """

    timetable: Any
    earliest: datetime | None = None
    latest: datetime | None = None
    catchup: bool = False

    @classmethod
    def of_dag(cls, dag: Any) -> IntervalSchedule:
        """Read a DAG's schedule, limited by the start and end dates of the DAG and its tasks."""
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
        """Create a schedule from the result of `to_json`."""
        from airflow.serialization.decoders import decode_timetable

        earliest, latest = (each and datetime.fromisoformat(each) for each in value["dates"])
        return cls(
            decode_timetable(json.loads(value["timetable"])), earliest, latest, value["catchup"]
        )

    def to_json(self) -> dict[str, Any]:
        """Convert the schedule to plain JSON, for another process."""
        from airflow.serialization.encoders import encode_timetable

        # Store text. In trigger arguments, Airflow would convert a mapping that names a class to an
        # object.
        encoded = json.dumps(encode_timetable(self.timetable))
        dates = [each and each.isoformat() for each in (self.earliest, self.latest)]
        return {"timetable": encoded, "dates": dates, "catchup": self.catchup}

    def next_interval(self, after: datetime | None, now: datetime) -> ScheduledInterval | None:
        """Find the first interval that starts at or after a date. Return None if it has not ended.

        :param after: the date, or None for the first interval of the schedule.
        :raises ImportError: only the Task SDK is installed.
        """
        if after is None:
            following = _asked(self._core, self.earliest, self.latest, catchup=self.catchup)
        else:
            since = max(after, self.earliest or after)
            following = _in_a_row(self._core, since, self.earliest, self.latest)
        found = next(following, None)
        return None if found is None or max(found.end, found.run_after) > now else found

    def previous_end(self, start: datetime, end: datetime) -> datetime | None:
        """Return the end of the previous interval. Return None if there is none nearby."""
        return previous_end(self, start, end)

    def run_id(self, interval: ScheduledInterval) -> str:
        """Return the run id that the scheduler assigns to the run of an interval."""
        from airflow.timetables.base import DataInterval

        dates = DataInterval(pendulum.instance(interval.start), pendulum.instance(interval.end))
        name: str = self._core.generate_run_id(
            run_type=types.DagRunType.SCHEDULED,
            run_after=pendulum.instance(interval.run_after),
            data_interval=dates,
        )
        return name

    def makes(self, start: datetime, end: datetime) -> bool:
        """Whether Airflow assigns this interval to a manual run that may start at the interval's end."""
        return _inferred(self._core, end) == (start, end)

    @cached_property
    def _core(self) -> Any:
        return _core(self.timetable)


def first_intervals(timetable: Any, since: datetime, count: int) -> list[ScheduledInterval]:
    """List the first intervals of a timetable from a date on. The list is shorter if the timetable ends or fails."""
    try:
        return list(islice(_asked(_core(timetable), since), count))
    except Exception:  # noqa: BLE001 - a custom timetable may raise any error
        return []


def _core(timetable: Any) -> Any:
    from airflow.serialization.encoders import coerce_to_core_timetable

    return coerce_to_core_timetable(timetable)  # keep a timetable of Airflow's core unchanged


def _asked(
    core: Any, earliest: datetime | None, latest: datetime | None = None, *, catchup: bool = True
) -> Iterator[ScheduledInterval]:
    """Yield the intervals of a timetable in order, as the scheduler does."""
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
    """Yield the intervals of a timetable from `since` on. The search starts at an earlier date.

    Otherwise a cron schedule would omit an interval that ends when the clocks go forward.

    :param earliest: date at which the scheduler starts its search, or None if it is unknown.
    """
    asked = _asked(core, _before(core, since, earliest), latest)
    return (each for each in asked if each.start >= since)


def _before(core: Any, since: datetime, earliest: datetime | None) -> datetime:
    """Find an earlier date from which the schedule's intervals reach `since`.

    Return `since` if there is no such date.
    """
    found = next(_asked(core, since), None)
    if found is None:
        return since
    for reach in _REACHES:
        date = max(since - reach * (found.end - found.start), earliest or _EVER)
        before = list(takewhile(lambda each: each.start < since, _asked(core, date)))
        if before and before[-1].end != since == found.start:
            return since  # a schedule with a fixed length has an interval from every date
        if before or date == earliest:
            return date
    return since


def _inferred(timetable: Any, run_after: datetime) -> tuple[datetime, datetime]:
    found = timetable.infer_manual_data_interval(run_after=pendulum.instance(run_after))
    return _utc(found.start), _utc(found.end)


def interval_context(start: datetime, end: datetime) -> dict[str, Any]:
    """Return the date entries of a scheduled run's context."""
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
"""The keys of the mapping that `interval_context` returns."""


class DatedRun(NamedTuple):
    """A run with a logical date."""

    run_id: str
    state: str


def scheduled_intervals(dag_id: str, first: datetime, last: datetime) -> list[ScheduledInterval]:
    """List the ended intervals of a DAG with logical dates from `first` to `last`, earliest first.

    `airflow backfill create` uses the same intervals, but omits a first interval that ends when the clocks go forward.

    :raises RunNotStarted: Airflow does not know the DAG, or the DAG cannot be backfilled.
    """
    with sessions.create_session() as session:
        dag = _backfilled_dag(dag_id, session)
    now = datetime.now(timezone.utc)
    found = _in_a_row(dag.timetable, first)
    return list(takewhile(lambda each: each.logical_date <= last and each.end < now, found))


def dated_runs(dag_id: str, intervals: Sequence[ScheduledInterval]) -> dict[datetime, DatedRun]:
    """Return the runs for these intervals, by logical date."""
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    first = intervals[0].logical_date
    last = intervals[-1].logical_date
    query = select(DagRun.logical_date, DagRun.run_id, DagRun.state).where(
        DagRun.dag_id == dag_id, DagRun.logical_date >= first, DagRun.logical_date <= last
    )
    with sessions.create_session() as session:
        return {
            _utc(date): DatedRun(run_id, text(state))
            for date, run_id, state in session.execute(query)
        }


def create_backfill_run(dag_id: str, interval: ScheduledInterval, user: str) -> bool:
    """Create the run for a data interval, like `airflow backfill create`. Return False if the run exists.

    The run belongs to no backfill. It uses the DAG's run slots, and does not wait for other backfills to end.

    :raises RunNotStarted: Airflow does not know the DAG, or the DAG cannot be backfilled.
    """
    from airflow.models.dagrun import DagRun
    from airflow.utils.state import DagRunState
    from sqlalchemy.exc import IntegrityError

    kind = types.DagRunType.BACKFILL_JOB
    date = interval.logical_date
    after = interval.run_after
    try:
        with sessions.create_session() as session:
            _backfilled_dag(dag_id, session).create_dagrun(
                run_id=DagRun.generate_run_id(run_type=kind, logical_date=date, run_after=after),
                logical_date=date,
                data_interval=(interval.start, interval.end),
                run_after=after,
                run_type=kind,
                triggered_by=types.DagRunTriggeredByType.BACKFILL,
                triggering_user_name=user,
                state=DagRunState.QUEUED,
                start_date=datetime.now(timezone.utc),
                session=session,
            )
    except IntegrityError:
        return False
    except (exceptions.AirflowException, ValueError) as error:
        raise RunNotStarted(
            dag_id=dag_id, run_id=str(date), status=None, reason=one_line(error)
        ) from error
    return True


def _backfilled_dag(dag_id: str, session: Any) -> Any:
    from airflow.models.dagbag import DBDagBag

    dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
    allowed = None if dag is None else dag.allowed_run_types
    if dag is None:
        reason = "Airflow does not know this DAG"
    elif not dag.timetable.periodic:
        reason = "its schedule has no dates to backfill"
    elif allowed is not None and types.DagRunType.BACKFILL_JOB not in allowed:
        reason = "it does not allow runs of backfills"
    else:
        return dag
    raise RunNotStarted(dag_id=dag_id, run_id="backfill", status=None, reason=reason)


def _utc(date: datetime) -> datetime:
    return datetime.fromisoformat(date.isoformat()).astimezone(timezone.utc)
