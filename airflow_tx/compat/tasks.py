"""The part of `compat` that is about tasks as they run: their states, their XComs, their skips."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from airflow_tx.compat.definition import is_mapped
from airflow_tx.compat.runs import is_missing, text

LIVE_TASK_STATES = frozenset(
    {None, "scheduled", "queued", "running", "restarting", "up_for_retry", "up_for_reschedule", "deferred"}
)
_UNDER_WAY = frozenset({"scheduled", "queued", "running", "restarting"})
# Such an instance has nothing to give, whatever an earlier try of it acked.
EMPTY_TASK_STATES = frozenset({"skipped", "removed"})
FAILED_TASK_STATES = frozenset({"failed", "upstream_failed"})
_SKIPS_ITSELF = "tx_skips_itself"


@dataclass(frozen=True)
class RunInfo:
    """A run as its own tasks know it.

    :param interval_start: of its data interval; None, as the other dates are, if the run has none.
    :param partition_date: what a partitioned run is known by; its key may be given another name.
    """

    run_id: str
    run_type: str
    interval_start: datetime | None
    interval_end: datetime | None
    logical_date: datetime | None
    partition_key: str | None
    partition_date: datetime | str | None
    conf: dict[str, Any]


# --- questions of a running task ---------------------------------------------------------------------------------


def run_info(context: Mapping[str, Any]) -> RunInfo:
    """What a task's context says of its run, which lacks the keys of the dates that the run does not have."""
    run = context["dag_run"]
    return RunInfo(
        run_id=run.run_id,
        run_type=text(run.run_type),
        interval_start=run.data_interval_start,
        interval_end=run.data_interval_end,
        logical_date=run.logical_date,
        partition_key=run.partition_key,
        partition_date=run.partition_date,
        conf=dict(run.conf or {}),
    )


def run_state(ti: Any, dag_id: str, run_id: str) -> str | None:
    """Return the state of a run, as a task instance may ask for it; None if it was deleted."""
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        return text(ti.get_dagrun_state(dag_id=dag_id, run_id=run_id))
    except AirflowRuntimeError as error:
        if is_missing(error):
            return None
        raise


def task_states(ti: Any, task_ids: Collection[str]) -> dict[str, str | None]:
    """The states of tasks of the asking task's run; a mapped instance is called `task_<map index>`."""
    found = ti.get_task_states(dag_id=ti.dag_id, task_ids=sorted(task_ids), run_ids=[ti.run_id])
    return {name: None if state is None else text(state) for name, state in found.get(ti.run_id, {}).items()}


def instance_states(ti: Any, task_ids: Collection[str], mapped: Collection[str]) -> dict[tuple[str, int], str | None]:
    """The state of every instance of tasks of the asking task's run, by task id and map index (−1: not mapped).

    A task of which Airflow says nothing has the state None.

    :param mapped: those that have map indexes; each is asked for alone, as an instance may be called as a task is.
    """
    plain = [task for task in task_ids if task not in mapped]
    found = task_states(ti, plain) if plain else {}
    states: dict[tuple[str, int], str | None] = {(task, -1): found.get(task) for task in plain}
    for task in sorted(set(task_ids).intersection(mapped)):
        instances = task_states(ti, [task])
        # Before it is expanded, and when it has expanded to nothing, a mapped task is one instance without an index.
        named = {(task, int(name[len(task) + 1 :]) if name != task else -1): each for name, each in instances.items()}
        states.update(named or {(task, -1): None})
    return states


def is_retry(ti: Any, retries: int) -> bool:
    """Whether Airflow retried this task by itself; False for a first try and after a clear.

    A clear sets max_tries to the tries so far plus the task's retries; a retry leaves it.
    """
    return bool(ti.try_number - (ti.max_tries - retries) > 1)


def map_index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)


def pull(ti: Any, task_id: str, key: str = "return_value", index: int = -1) -> Any:
    """The XCom of one task instance of this run; None if there is none.

    :param index: its map index, −1 if it is not mapped.
    """
    return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=None if index < 0 else index)


def is_test_run() -> bool:
    """Whether the running task is executed by `airflow tasks test`, `airflow dags test` or `DAG.test()`."""
    from airflow.sdk import get_current_context
    from airflow.sdk.execution_time import task_runner

    if type(getattr(task_runner, "SUPERVISOR_COMMS", None)).__name__ == "InProcessSupervisorComms":
        return True
    try:
        run = get_current_context()["dag_run"]
    except RuntimeError:
        return False  # no task is running
    # A scheduler that lives beside the command may take up its tasks, and then executes them like any others.
    return run.triggering_user_name == "dag_test" or run.run_id.startswith("__airflow_temporary_run_")


def skip_tasks(operator: Any, ti: Any, tasks: Collection[Any]) -> NoReturn:
    """End `operator` as success and skip `tasks`, now and whenever they are cleared without it.

    Those that a clear has let Airflow start beside it skip themselves: `is_skipped_by`. A scheduler that finds a task
    under way to be skipped takes the run for deadlocked and fails it.

    :param operator: a SkipMixin.
    """
    found = instance_states(ti, [task.task_id for task in tasks], [task.task_id for task in tasks if is_mapped(task)])
    under_way = {task for (task, _), state in found.items() if state in _UNDER_WAY}
    others = [task for task in tasks if task.task_id not in under_way]
    if others and under_way:
        ti.xcom_push(key=_SKIPS_ITSELF, value=sorted(under_way))
        tasks = others
    operator.skip(ti, tasks)
    raise AssertionError("SkipMixin.skip returned without raising DownstreamTasksSkipped")


def is_skipped_by(ti: Any, task_id: str) -> bool:
    """Whether a task of the asking task's run has skipped the asking one, as `skip_tasks` does, or is skipped itself.

    One that was running at that moment is not skipped by Airflow.
    """
    from airflow.sdk.bases.skipmixin import XCOM_SKIPMIXIN_KEY, XCOM_SKIPMIXIN_SKIPPED

    skipped = pull(ti, task_id, XCOM_SKIPMIXIN_KEY)
    if isinstance(skipped, dict):
        return ti.task_id in (*skipped.get(XCOM_SKIPMIXIN_SKIPPED, ()), *(pull(ti, task_id, _SKIPS_ITSELF) or ()))
    return task_states(ti, [task_id]).get(task_id) == "skipped"


def canonical(value: Any) -> Any:
    """A value as XCom gives it back, in a form that has one JSON text; for values that are not plain JSON."""
    from airflow.sdk.serde import deserialize, serialize

    # Once around: some types come back as another one (a datetime with another kind of zone), and then stay.
    return serialize(deserialize(serialize(value)))
