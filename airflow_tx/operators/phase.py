"""`commit_phase` groups several committers, and the tasks between them, into one commit phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_tx.base import compat
from airflow_tx.base.errors import TransactionDefinitionError
from airflow_tx.operators.commit import AcquireTurnOperator, CommitOperator, MarkCommittedOperator
from airflow_tx.transaction import PhaseSpec, TransactionSpec

if TYPE_CHECKING:
    from typing_extensions import Self


class CommitPhase(TaskGroup):
    """A task group whose tasks run in the commit phase, in the order of txids. See `commit_phase`.

    :param outlets: assets that get an event for each commit.
    """

    def __init__(self, group_id: str, outlets: Sequence[Any] = ()) -> None:
        super().__init__(
            group_id=group_id, tooltip="The commit phase: one transaction at a time, in order"
        )
        self._outlets = list(outlets)
        self.acquire: AcquireTurnOperator
        self.mark: MarkCommittedOperator

    def __enter__(self) -> Self:
        super().__enter__()
        self.acquire = AcquireTurnOperator(task_id="acquire")
        self.acquire.as_setup()  # type: ignore[no-untyped-call]
        self.mark = MarkCommittedOperator(task_id="mark", outlets=self._outlets)
        self.mark.as_teardown(setups=self.acquire, on_failure_fail_dagrun=True)
        return self


@dataclass(frozen=True)
class PhaseTasks:
    """The tasks of a commit phase in the DAG file.

    :param acquire: the first task.
    :param mark: the last task.
    :param inside: the tasks between the first and the last task.
    """

    acquire: AcquireTurnOperator
    mark: MarkCommittedOperator
    inside: tuple[Any, ...]

    @property
    def others(self) -> tuple[Any, ...]:
        """Return the tasks of the phase that are not committers, except the first and the last task."""
        return tuple(task for task in self.inside if not commits(task))

    @property
    def spec(self) -> PhaseSpec:
        return PhaseSpec(
            acquire=self.acquire.task_id,
            mark=self.mark.task_id,
            committers=tuple(task.task_id for task in ordered(self.inside) if commits(task)),
            inside=tuple(sorted(task.task_id for task in self.inside)),
            mapped=frozenset(task.task_id for task in self.inside if compat.is_mapped(task)),
        )

    def wire(self) -> None:
        """Connect the first and the last task of the phase with the tasks before the phase and inside it."""
        inside = {task.task_id for task in self.inside}
        for task in self.inside:
            for before in sorted(task.upstream_task_ids - inside - {self.acquire.task_id}):
                self.acquire.set_upstream(task.dag.get_task(before))
            if not task.upstream_task_ids & inside:
                self.acquire.set_downstream(task)
            if not task.downstream_task_ids & inside:
                task.set_downstream(self.mark)


def phase_of(spec: TransactionSpec, acquiring: Sequence[AcquireTurnOperator]) -> PhaseTasks:
    """Return the commit phase of a block.

    :param acquiring: the first task of each commit phase of the block.
    :raises TransactionDefinitionError: the block has two commit phases.
    """
    if len(acquiring) > 1:
        problem, remedy = "it has two commit phases", "Put all committers into one commit phase."
        raise TransactionDefinitionError(topology=spec.topology, problem=problem, remedy=remedy)
    acquire = acquiring[0]
    group: Any = acquire.task_group
    inside = [task for task in group.iter_tasks() if task not in (acquire, group.mark)]
    return PhaseTasks(acquire, group.mark, tuple(inside))


def operator_of(task: Any) -> type:
    """Return the operator class of a task. The task may be mapped."""
    found: type = task.operator_class if task.is_mapped else type(task)
    return found


def commits(task: Any) -> bool:
    """Return whether a task is a committer."""
    return issubclass(operator_of(task), CommitOperator)


def ordered(tasks: Sequence[Any]) -> list[Any]:
    """Sort tasks so that each task comes after its upstream tasks."""
    left = {task.task_id: task for task in sorted(tasks, key=lambda task: task.task_id)}
    found = []
    while left:
        name = next(name for name, task in left.items() if not task.upstream_task_ids & left.keys())
        found.append(left.pop(name))
    return found


def commit_phase(group_id: str = "commit_phase", *, outlets: Sequence[Any] = ()) -> CommitPhase:
    """Create the commit phase of a transaction with several committers, or with tasks after a committer.

        with Transaction(source=...) as tx:
            counted = count(tx.batch)
            with commit_phase() as phase:
                first = CommitOperator(task_id="first", updates=[persistent_aggregate(counted, state=words)])
                derived = derive(counted)
                first >> derived
                CommitOperator(task_id="second", updates=[persistent_aggregate(derived, state=derivatives)])
        phase.mark >> report()

    When all tasks before the phase have succeeded, the task `acquire` waits for the turn. When all tasks of the phase
    have succeeded, the task `mark` marks the transaction as committed and passes on the turn. If you clear a task of
    the phase, the phase takes the turn again, and no row is counted twice. Set tasks that follow the commit downstream
    of `phase.mark`.

    :param group_id: id of the task group, and the prefix of its task ids.
    :param outlets: assets that get an event for each commit.
    """
    return CommitPhase(group_id, outlets)
