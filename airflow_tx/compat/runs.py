"""The part of `compat` that is about runs: starting, clearing and asking for them, where Airflow lets one.

A task and a trigger have no metadata database: they send messages to their supervisor. Which ones a task may send is
the union `ToSupervisor` of airflow.sdk.execution_time.comms; a trigger may send fewer, `ToTriggerSupervisor` of
airflow.jobs.triggerer_job_runner, and gets no answer ever to another one. Commands and the API server have the
database. Nothing of Airflow is imported before it is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow_tx.errors import TxError

if TYPE_CHECKING:
    from airflow.sdk.exceptions import AirflowRuntimeError

_NOT_FOUND = 404
_AT_ONCE = 500


class RunNotStarted(TxError):
    """Airflow refused to start or clear a run, or could not be asked; its answer in one line.

    :param status: of Airflow's HTTP answer; None if there was none.
    """

    template: ClassVar[str] = "Run {run_id!r} of DAG {dag_id!r} was not started: {reason}"


# --- from a running task -----------------------------------------------------------------------------------------


def start_run(dag_id: str, run_id: str, *, conf: Mapping[str, Any] | None = None, reset: bool = False) -> bool:
    """Start a run without a logical date; False if it exists and is not to be reset.

    False may also be this call's own run: Airflow sends a request again whose answer was lost.

    :param conf: of a new run; one that is reset keeps its own.
    :param reset: clear all tasks of the run if it exists.
    :raises RunNotStarted: the DAG is unknown, stale or cannot be imported, or its rules forbid such a run.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

    message = TriggerDagRun(dag_id=dag_id, run_id=run_id, logical_date=None, conf=dict(conf or {}), reset_dag_run=reset)
    try:
        answer = _ask(message)
    except AirflowRuntimeError as error:
        raise RunNotStarted(dag_id=dag_id, run_id=run_id, status=_status(error), reason=_reason(error)) from error
    return not (isinstance(answer, ErrorResponse) and answer.error == ErrorType.DAGRUN_ALREADY_EXISTS)


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


def is_paused(dag_id: str) -> bool | None:
    """Find out whether the DAG is paused; None if there is no such DAG."""
    from airflow.sdk.execution_time.comms import GetDag

    dag = _or_missing(GetDag(dag_id=dag_id))
    return None if dag is None else bool(dag.is_paused)


def running_runs(dag_id: str) -> int:
    """How many runs of the DAG are running, those of a backfill included."""
    return int(_ask(_count_running(dag_id)).count)


# --- from a trigger ----------------------------------------------------------------------------------------------


async def run_states(dag_id: str, run_ids: Collection[str]) -> dict[str, str | None]:
    """The states of runs, None for a deleted one; one message a run, as Airflow has none for several."""
    import asyncio

    wanted = list(dict.fromkeys(run_ids))
    return dict(zip(wanted, await asyncio.gather(*(_state(dag_id, each) for each in wanted)), strict=True))


async def is_paused_async(dag_id: str) -> bool | None:
    """None: nothing that a trigger may ask tells whether a DAG is paused. Ask with `is_paused` before deferring."""
    return None


async def running_runs_async(dag_id: str) -> int:
    return int((await _ask_async(_count_running(dag_id))).count)


# --- with the database: commands and the API server ----------------------------------------------------------------


def clear_run(dag_id: str, run_id: str, *, past_limit: bool, only_failed: bool = False) -> bool:
    """Clear a run so that it is executed again; False if there is no such run.

    :param past_limit: let it start although the DAG has as many running runs as it may; also one that was cleared
        before and waits.
    :param only_failed: clear the tasks that have failed, not all; a run without any is left as it is.
    :raises RunNotStarted: Airflow has no DAG any more to run it by.
    """
    from airflow.api_fastapi.common.dagbag import resolve_run_on_latest_version
    from airflow.models.dagbag import DBDagBag
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    with create_session() as session:
        run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
        if run is None:
            return False
        dag = DBDagBag().get_dag_for_run(run, session=session)
        if dag is None:
            raise RunNotStarted(dag_id=dag_id, run_id=run_id, status=None, reason="Airflow does not know this DAG")
        dag.clear(
            run_id=run_id,
            only_failed=only_failed,
            dag_run_state=DagRunState.RUNNING if past_limit else DagRunState.QUEUED,
            run_on_latest_version=resolve_run_on_latest_version(None, dag_id, session),
            session=session,
        )
        # A clear gives its state to a run that has ended, and leaves one that waits already.
        if past_limit and run.state == DagRunState.QUEUED:
            run.set_state(DagRunState.RUNNING)
    return True


def create_run(dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> bool:
    """Create a run without a logical date, which starts when the limit of the DAG lets it; False if it exists.

    It is a manual run, unless its id is one that Airflow keeps for runs of another type (a deleted scheduled run).

    :raises RunNotStarted: the DAG is unknown, or its rules forbid such a run.
    """
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import DagRunAlreadyExists
    from airflow.sdk.exceptions import AirflowException
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    by_hand = DagRunType.from_run_id(run_id) == DagRunType.MANUAL
    try:
        trigger_dag(
            dag_id,
            triggered_by=DagRunTriggeredByType.CLI,
            run_type=DagRunType.MANUAL if by_hand else DagRunType.OPERATOR_TRIGGERED,
            run_id=run_id,
            conf=dict(conf or {}),
            logical_date=None,
        )
    except DagRunAlreadyExists:
        return False
    except (AirflowException, ValueError) as error:
        raise RunNotStarted(dag_id=dag_id, run_id=run_id, status=None, reason=_one_line(error)) from error
    return True


def runs_of(dag_id: str, run_ids: Collection[str]) -> dict[str, str]:
    """The states of those of the runs that exist."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted, found = list(run_ids), {}
    with create_session() as session:
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            query = select(DagRun.run_id, DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id.in_(some))
            found.update({run_id: text(state) for run_id, state in session.execute(query)})
    return found


def is_paused_there(dag_id: str) -> bool | None:
    """Find out whether the DAG is paused; None if Airflow does not know it."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.execute(select(DagModel.is_paused).where(DagModel.dag_id == dag_id)).first()
    return None if found is None else bool(found.is_paused)


class DagFile(NamedTuple):
    """Where Airflow knows a DAG from: a bundle, and a path below it."""

    bundle: str
    path: str


def dag_file(dag_id: str) -> DagFile | None:
    """Where Airflow knows a DAG from; None if it does not know it."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(DagModel.bundle_name, DagModel.relative_fileloc).where(DagModel.dag_id == dag_id)
        found = session.execute(query).first()
    if found is None or not found.relative_fileloc:
        return None
    return DagFile(found.bundle_name, found.relative_fileloc)


# --- how Airflow is asked ----------------------------------------------------------------------------------------


def text(state: Any) -> str:
    """A state as Airflow's database and API spell it."""
    return str(getattr(state, "value", state))


def is_missing(error: AirflowRuntimeError) -> bool:
    """Whether Airflow answered that there is no such thing."""
    return _status(error) == _NOT_FOUND


def _ask(message: Any) -> Any:
    from airflow.sdk.execution_time import task_runner

    return task_runner.SUPERVISOR_COMMS.send(message)


async def _ask_async(message: Any) -> Any:
    from airflow.sdk.execution_time import task_runner

    return await task_runner.SUPERVISOR_COMMS.asend(message)


def is_current_try(task_try: str) -> bool:
    """Whether the asking task's own try is still the one that Airflow knows: a retry or a clear gives it another id.

    :param task_try: the task instance's id.
    """
    from uuid import UUID

    from airflow.sdk.execution_time.comms import DeleteTaskStateStore

    # Nothing is deleted: no value has this name. Airflow looks for the try first, and says if there is none.
    return _or_missing(DeleteTaskStateStore(ti_id=UUID(task_try), key="airflow_tx/is-current")) is not None


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


def _count_running(dag_id: str) -> Any:
    from airflow.sdk.execution_time.comms import GetDRCount

    return GetDRCount(dag_id=dag_id, states=["running"])


def _status(error: AirflowRuntimeError) -> int | None:
    status = (error.error.detail or {}).get("status_code")
    return None if status is None else int(status)


def _reason(error: AirflowRuntimeError) -> str:
    """The innermost of the messages that Airflow's server and its client have wrapped in each other."""
    told: dict[str, Any] = error.error.detail or {}
    while isinstance(told.get("detail"), dict):
        told = told["detail"]
    return _one_line(told.get("message") or told.get("detail") or error)


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
