"""Which topologies can go by a lane: decided when the DAG is parsed, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_tx import compat
from airflow_tx.commit.update import Update
from airflow_tx.errors import TxError
from airflow_tx.operators.commit import CommitOperator
from airflow_tx.processing.callable_source import digest_of_callable
from airflow_tx.sources.api import Source
from airflow_tx.spec import TransactionSpec


class GoesByRuns(TxError):
    """A topology that cannot go by a lane; its transactions are runs, as without one."""

    template = "Topology {topology!r} goes by runs, not by a lane: {reason}."


@dataclass(frozen=True)
class LaneTask:
    """One processing task, as a lane calls it.

    :param code: digest of what it runs.
    """

    task_id: str
    call: compat.TaskFunction
    code: str


@dataclass(frozen=True)
class LanePlan:
    """What a lane does for each transaction.

    :param tasks: each after those whose output it takes.
    :param committer: the task that commits, with `updates`.
    """

    spec: TransactionSpec
    tasks: tuple[LaneTask, ...]
    committer: str
    updates: tuple[Update, ...]
    dag_file: str

    def resolved(self) -> LanePlan:
        """Give the same plan, with what the configuration says in it: a lane need not ask for every transaction."""
        spec = replace(self.spec, max_pending=self.spec.window, message_timeout=self.spec.timeout)
        return replace(self, spec=replace(spec, zookeeper_conn_id=spec.conn_id, root=spec.paths.root))


def lane_plan(spec: TransactionSpec, dag: Any) -> LanePlan:
    """Plan how a lane calls the tasks of a DAG.

    :raises GoesByRuns: naming the task that needs a run, and why.
    """
    tasks: Mapping[str, Any] = dag.task_dict
    committers = [task for task in dag.tasks if isinstance(task, CommitOperator)]
    if reason := _reason_of_block(spec, dag):
        raise GoesByRuns(topology=spec.topology, reason=reason)
    (committer,) = committers
    for task_id in sorted(tasks.keys() - {spec.begin, committer.task_id, *spec.tasks}):
        reason = f"task {task_id!r} is not before the committer, and only a run would execute it"
        raise GoesByRuns(topology=spec.topology, reason=reason)
    order = [task.task_id for task in dag.topological_sort() if task.task_id in spec.tasks]
    calls = tuple(_lane_task(spec, tasks[task_id]) for task_id in order)
    _check(spec, committer, compat.check_plain)
    return LanePlan(spec, calls, committer.task_id, tuple(committer.updates), dag.fileloc)


def _reason_of_block(spec: TransactionSpec, dag: Any) -> str:
    if spec.source.per_run:
        return "each of its runs stands for a batch of its own"
    if type(spec.source).committed is not Source.committed:
        return f"its source ({type(spec.source).__name__}) does something when a batch is committed"
    if spec.phase is not None:
        return f"it has a commit phase (task {spec.phase.acquire!r})"
    if spec.ackers is not None:
        return "its tasks emit messages"
    if compat.has_callbacks(dag):
        return f"DAG {dag.dag_id!r} has an on_success_callback"
    return ""


def _lane_task(spec: TransactionSpec, task: Any) -> LaneTask:
    call: compat.TaskFunction = _check(spec, task, compat.task_function)
    return LaneTask(task.task_id, call, digest_of_callable(task))


def _check(spec: TransactionSpec, task: Any, check: Any) -> Any:
    try:
        return check(task)
    except ValueError as error:
        raise GoesByRuns(topology=spec.topology, reason=f"of task {task.task_id!r}, {error}") from None
