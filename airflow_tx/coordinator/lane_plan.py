"""Decide whether a topology can use a lane, and plan its tasks. This happens when the DAG is parsed, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_tx.base import compat
from airflow_tx.base.errors import ConfigError, TxError
from airflow_tx.operators import CommitOperator
from airflow_tx.sources import DatedSource, Source
from airflow_tx.transaction import Check, TransactionSpec, Update, digest_of_callable

if TYPE_CHECKING:
    from airflow_tx.operators import SparkConnectBatchOperator


class GoesByRuns(TxError):
    """A topology that cannot use a lane, so its transactions are runs."""

    template = "Topology {topology!r} uses runs instead of a lane: {reason}."


@dataclass(frozen=True)
class LaneTask:
    """A processing task that a lane calls as a function.

    :param call: the function of the task and its arguments.
    :param code: the digest of the code of the task.
    """

    task_id: str
    call: compat.TaskFunction
    code: str

    @property
    def timeout(self) -> float | None:
        """Return the task's `execution_timeout` in seconds, or None if it has no limit."""
        return self.call.timeout


@dataclass(frozen=True)
class TimeLimit:
    """The time limit of a task in a lane.

    :param seconds: the longest time that the task may take, in seconds.
    :param reason: the text of the error when the limit is exceeded. It names the option that sets the limit.
    """

    seconds: float
    reason: str


@dataclass(frozen=True)
class LaneApplication:
    """A processing task that runs an application on a Spark Connect server.

    :param timeout: the time limit of the application in seconds, or None for no limit.
    """

    task_id: str
    operator: SparkConnectBatchOperator
    timeout: float | None


@dataclass(frozen=True)
class LanePlan:
    """The work of a lane for a transaction.

    :param tasks: the processing tasks in topological order.
    :param committer: the task_id of the committer.
    :param updates: the updates of the committer.
    :param dag_file: the path of the DAG file.
    :param checks: the checks of the committer.
    """

    spec: TransactionSpec
    tasks: tuple[LaneTask | LaneApplication, ...]
    committer: str
    updates: tuple[Update, ...]
    dag_file: str
    checks: tuple[Check, ...] = ()

    @property
    def applications(self) -> tuple[LaneApplication, ...]:
        """Return the processing tasks that are applications."""
        return tuple(task for task in self.tasks if isinstance(task, LaneApplication))

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files whose code a lane executes: the DAG file, and each existing application file."""
        found = [self.dag_file]
        for task in self.applications:
            with suppress(ConfigError):  # The transactions of the topology will report the error.
                found.append(task.operator.found_from(self.dag_file).path)
        return tuple(found)

    def resolved(self) -> LanePlan:
        """Return the plan with the current values of the configuration, so that a lane need not read them again."""
        spec = replace(self.spec, max_pending=self.spec.window, message_timeout=self.spec.timeout)
        spec = replace(
            spec, zookeeper_conn_id=spec.conn_id, root=spec.paths.root, area=spec.staging()
        )
        return replace(self, spec=spec)


def lane_plan(spec: TransactionSpec, dag: Any) -> LanePlan:
    """Plan how a lane calls the tasks of a DAG.

    If each run has a data interval, the lane takes the next interval of the schedule.

    :raises GoesByRuns: a task or the topology needs runs. The error names the reason.
    """
    spec = _by_schedule(spec, dag)
    tasks: Mapping[str, Any] = dag.task_dict
    committers = [task for task in dag.tasks if isinstance(task, CommitOperator)]
    if reason := _reason_of_block(spec, dag):
        raise GoesByRuns(topology=spec.topology, reason=reason)
    (committer,) = committers
    for task_id in sorted(tasks.keys() - {spec.begin, committer.task_id, *spec.tasks}):
        reason = f"task {task_id!r} does not run before the committer, so only a run can execute it"
        raise GoesByRuns(topology=spec.topology, reason=reason)
    order = [task.task_id for task in dag.topological_sort() if task.task_id in spec.tasks]
    calls = tuple(_lane_task(spec, tasks[task_id]) for task_id in order)
    _check(spec, committer, partial(compat.check_plain, commits=True))
    updates = tuple(committer.updates)
    return LanePlan(spec, calls, committer.task_id, updates, dag.fileloc, committer.checks)


def _by_schedule(spec: TransactionSpec, dag: Any) -> TransactionSpec:
    """Return the spec with a source that takes its data intervals from the DAG's schedule, if possible."""
    dated = _can_omit_runs(spec)
    by_runs = compat.is_airflow_3_2() or not dag.timetable.can_be_scheduled
    if dated is None or not dated.in_order or by_runs:
        return spec
    return replace(spec, source=dated.without_runs(compat.IntervalSchedule.of_dag(dag)))


def _can_omit_runs(spec: TransactionSpec) -> DatedSource | None:
    dated = spec.source.dated
    return dated if dated is not None and dated.can_omit_runs else None


def _reason_of_block(spec: TransactionSpec, dag: Any) -> str:
    if (dated := _can_omit_runs(spec)) is not None:
        if not dated.in_order:
            return "its data intervals have no order: set in_order=True"
        if dag.timetable.can_be_scheduled:
            return (
                "a failed data interval needs a run, and in Airflow 3.2 no task can start that run"
            )
        return f"DAG {dag.dag_id!r} has no schedule that defines the next data interval"
    if spec.source.per_run:
        return "its source gives each run its own batch"
    if type(spec.source).committed is not Source.committed:
        return f"its source ({type(spec.source).__name__}) has a `committed` method, which a lane does not call"
    if spec.phase is not None:
        return f"it has a commit phase (task {spec.phase.acquire!r})"
    if spec.ackers is not None:
        return "its tasks emit messages"
    if compat.has_callbacks(dag):
        return f"DAG {dag.dag_id!r} has an on_success_callback"
    return ""


def _lane_task(spec: TransactionSpec, task: Any) -> LaneTask | LaneApplication:
    if _is_application(task):
        _check(spec, task, _check_application)
        return LaneApplication(task.task_id, task, compat.time_allowed(task))
    function = partial(compat.task_function, dated=spec.source.dated is not None)
    call: compat.TaskFunction = _check(spec, task, function)
    return LaneTask(task.task_id, call, digest_of_callable(task))


def _is_application(task: Any) -> bool:
    if type(task).__name__ != "SparkConnectBatchOperator":
        return False  # The DAG file may not have imported it.
    from airflow_tx.operators import SparkConnectBatchOperator

    return type(task) is SparkConnectBatchOperator


def _check_application(task: SparkConnectBatchOperator) -> None:
    if compat.is_mapped(task):
        raise ValueError("it is mapped")
    compat.check_plain(task)
    for option in ("application", "conn_id"):
        if not isinstance(getattr(task, option), str):
            raise ValueError(f"its {option} is the output of a task")
    compat.check_argument([getattr(task, name) for name in task.template_fields])


def _check(spec: TransactionSpec, task: Any, check: Any) -> Any:
    try:
        return check(task)
    except ValueError as error:
        raise GoesByRuns(
            topology=spec.topology, reason=f"task {task.task_id!r} cannot run in a lane: {error}"
        ) from None
