"""The part of `compat` that is about runs: how tasks and triggers start them and ask for them.

A task and a trigger have no metadata database: they send messages to their supervisor. Which ones a task may send is
the union `ToSupervisor` of airflow.sdk.execution_time.comms; a trigger may send fewer, `ToTriggerSupervisor` of
airflow.jobs.triggerer_job_runner, and gets no answer ever to another one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_tx.errors import TxError

if TYPE_CHECKING:
    from airflow.sdk.exceptions import AirflowRuntimeError

_NOT_FOUND = 404
_EVENTS_AT_ONCE = 100


class RunNotStarted(TxError):
    """Airflow refused to start or clear a run, or could not be asked; its answer in one line.

    :param status: of Airflow's HTTP answer; None if there was none.
    """

    template: ClassVar[str] = "Run {run_id!r} of DAG {dag_id!r} was not started: {reason}"


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
    """Start a run; False if it exists and is not to be reset.

    False may also be this call's own run: Airflow sends a request again whose answer was lost.

    :param conf: of a new run; one that is reset keeps its own.
    :param reset: clear all tasks of the run if it exists.
    :param dated: its logical date is now; else it has none. Airflow's home page knows runs with one alone.
    :param interval: of a new run, whose schedule has it; without one it has no logical date. If there is a run of this
        date under another name, that one is started: Airflow has no two.
    :raises RunNotStarted: the DAG is unknown, stale or cannot be imported, or its rules forbid such a run.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
    from airflow.utils.state import State

    other = None if interval is None else _run_on(dag_id, interval[0])
    if other is not None and other.run_id != run_id:
        if other.state in State.unfinished_dr_states:
            return False
        run_id = other.run_id
        reset = True
    date, after = interval or (datetime.now(timezone.utc) if dated else None, None)
    message = TriggerDagRun(
        dag_id=dag_id,
        run_id=run_id,
        logical_date=date,
        run_after=after,
        conf=dict(conf or {}),
        reset_dag_run=reset,
    )
    try:
        answer = _ask(message)
    except AirflowRuntimeError as error:
        raise RunNotStarted(
            dag_id=dag_id, run_id=run_id, status=_status(error), reason=_reason(error)
        ) from error
    return not (
        isinstance(answer, ErrorResponse) and answer.error == ErrorType.DAGRUN_ALREADY_EXISTS
    )


def restart_dead(dag_id: str, run_id: str) -> bool:
    """Execute a run again at once although Airflow still takes a dead process for running; False if there is no run.

    One reset makes a running task `restarting`, and Airflow then waits for its process to report, or for its heartbeat
    to time out (300 s); a second one makes it scheduled. A process that does live finds out at its next heartbeat.

    :raises RunNotStarted: as `start_run`.
    """
    from airflow.sdk.execution_time.comms import GetDagRunState, GetTaskStates

    if _or_missing(GetDagRunState(dag_id=dag_id, run_id=run_id)) is None:
        return False
    start_run(dag_id, run_id, reset=True)
    states = _ask(GetTaskStates(dag_id=dag_id, run_ids=[run_id])).task_states.get(run_id, {})
    if any(text(state) == "restarting" for state in states.values()):
        start_run(dag_id, run_id, reset=True)
    return True


def run_state(ti: Any, dag_id: str, run_id: str) -> str | None:
    """Return the state of a run, as a task instance may ask for it; None if it was deleted."""
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        return text(ti.get_dagrun_state(dag_id=dag_id, run_id=run_id))
    except AirflowRuntimeError as error:
        if is_missing(error):
            return None
        raise


def is_paused(dag_id: str) -> bool | None:
    """Find out whether the DAG is paused; None if there is no such DAG."""
    from airflow.sdk.execution_time.comms import GetDag

    dag = _or_missing(GetDag(dag_id=dag_id))
    return None if dag is None else bool(dag.is_paused)


def running_runs(dag_id: str) -> int:
    """How many runs of the DAG are running, runs of a backfill included."""
    return int(_ask(_count(dag_id, ["running"])).count)


def earlier_live_run(dag_id: str, date: datetime) -> datetime | None:
    """Find the logical date of a run of the DAG that is queued or running and comes before this date."""
    from airflow.sdk.execution_time.comms import GetPreviousDagRun

    for state in ("running", "queued"):
        found = _ask(GetPreviousDagRun(dag_id=dag_id, logical_date=date, state=state)).dag_run
        if found is not None:
            return datetime.fromisoformat(found.logical_date.isoformat())
    return None


def runs_on(dag_id: str, date: datetime, states: Collection[str]) -> int:
    """How many runs of this logical date are in one of these states."""
    return int(_ask(_count(dag_id, states, date)).count)


def _run_on(dag_id: str, date: datetime) -> Any:
    """Find the run of a logical date, under any name."""
    from airflow.sdk.execution_time.comms import GetPreviousDagRun

    behind = date + timedelta(microseconds=1)
    found = _ask(GetPreviousDagRun(dag_id=dag_id, logical_date=behind)).dag_run
    return found if found is not None and found.logical_date == date else None


def is_asset(outlet: Any) -> bool:
    """Whether a task with this outlet emits an event of its own accord: an asset, or a reference to one."""
    from airflow.sdk import Asset
    from airflow.sdk.definitions.asset import AssetRef

    return isinstance(outlet, (Asset, AssetRef))


def has_event(asset: Any, said: Mapping[str, Any], *, after: datetime | None) -> bool:
    """Whether Airflow has stored an event of an asset that says this in its extra.

    :param asset: as `is_asset` knows it.
    :param after: earlier events are not read; None: all are.
    """
    from airflow.sdk.definitions.asset import AssetNameRef, AssetUriRef
    from airflow.sdk.execution_time.comms import GetAssetEventByAsset

    name = None if isinstance(asset, AssetUriRef) else asset.name
    uri = None if isinstance(asset, AssetNameRef) else asset.uri
    limit = _EVENTS_AT_ONCE
    while True:
        # An event follows its commit closely, so it is among the first ones.
        message = GetAssetEventByAsset(name=name, uri=uri, after=after, limit=limit)
        events = _ask(message).asset_events
        if any(said.items() <= (event.extra or {}).items() for event in events):
            return True
        if len(events) < limit:
            return False
        limit *= 4


# --- from a trigger ----------------------------------------------------------------------------------------------


async def run_states(dag_id: str, run_ids: Collection[str]) -> dict[str, str | None]:
    """Ask for the states of runs, None for a deleted one; one message a run, as Airflow has none for several."""
    import asyncio

    wanted = list(dict.fromkeys(run_ids))
    return dict(
        zip(wanted, await asyncio.gather(*(_state(dag_id, each) for each in wanted)), strict=True)
    )


async def is_paused_async(dag_id: str) -> bool | None:
    """None: nothing that a trigger may ask tells whether a DAG is paused. Ask with `is_paused` before deferring."""
    return None


async def running_runs_async(dag_id: str) -> int:
    return int((await _ask_async(_count(dag_id, ["running"]))).count)


async def runs_on_async(dag_id: str, date: datetime, states: Collection[str]) -> int:
    return int((await _ask_async(_count(dag_id, states, date))).count)


# --- how Airflow is asked ----------------------------------------------------------------------------------------


def text(state: Any) -> str:
    """A state as Airflow's database and API spell it."""
    return str(getattr(state, "value", state))


def is_missing(error: AirflowRuntimeError) -> bool:
    return _status(error) == _NOT_FOUND


def _ask(message: Any) -> Any:
    from airflow.sdk.execution_time import task_runner

    return task_runner.SUPERVISOR_COMMS.send(message)


async def _ask_async(message: Any) -> Any:
    from airflow.sdk.execution_time import task_runner

    return await task_runner.SUPERVISOR_COMMS.asend(message)


def is_current_try(task_try: str) -> bool:
    """Whether the asking task's own id is still the one that Airflow knows: most retries and clears give it another.

    :param task_try: the id, or what `task_try` makes of it.
    """
    from uuid import UUID

    from airflow.sdk.execution_time.comms import DeleteTaskStateStore

    own = UUID(task_try.partition(".")[0])
    # Nothing is deleted: no value has this name. Airflow looks for the try first, and says if there is none.
    return _or_missing(DeleteTaskStateStore(ti_id=own, key="airflow_tx/is-current")) is not None


def _or_missing(message: Any) -> Any:
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        return _ask(message)
    except AirflowRuntimeError as error:
        if is_missing(error):
            return None
        raise


async def _state(dag_id: str, run_id: str) -> str | None:
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.comms import GetDagRunState

    try:
        return text((await _ask_async(GetDagRunState(dag_id=dag_id, run_id=run_id))).state)
    except AirflowRuntimeError as error:
        if is_missing(error):
            return None
        raise


def _count(dag_id: str, states: Collection[str], date: datetime | None = None) -> Any:
    from airflow.sdk.execution_time.comms import GetDRCount

    return GetDRCount(
        dag_id=dag_id, states=list(states), logical_dates=None if date is None else [date]
    )


def _status(error: AirflowRuntimeError) -> int | None:
    status = (error.error.detail or {}).get("status_code")
    return None if status is None else int(status)


def _reason(error: AirflowRuntimeError) -> str:
    """The innermost of the messages that Airflow's server and its client have wrapped in each other."""
    detail: dict[str, Any] = error.error.detail or {}
    while isinstance(detail.get("detail"), dict):
        detail = detail["detail"]
    return one_line(detail.get("message") or detail.get("detail") or error)


def one_line(value: object) -> str:
    return " ".join(str(value).split())
