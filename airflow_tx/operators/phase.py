"""`commit_phase`: several committers, and tasks after the first one, in one commit phase."""

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
    """A task group whose tasks run in the commit phase, in the order of txids; see `commit_phase`.

    :param outlets: assets whose events tell of a commit.
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

    :param inside: those between its first and its last task.
    """

    acquire: AcquireTurnOperator
    mark: MarkCommittedOperator
    inside: tuple[Any, ...]

    @property
    def others(self) -> tuple[Any, ...]:
        """List the tasks inside that are no committers."""
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
        """Put the first task before all inside, after the tasks that they need; the last one after all inside."""
        inside = {task.task_id for task in self.inside}
        for task in self.inside:
            for before in sorted(task.upstream_task_ids - inside - {self.acquire.task_id}):
                self.acquire.set_upstream(task.dag.get_task(before))
            if not task.upstream_task_ids & inside:
                self.acquire.set_downstream(task)
            if not task.downstream_task_ids & inside:
                task.set_downstream(self.mark)


def phase_of(spec: TransactionSpec, acquiring: Sequence[AcquireTurnOperator]) -> PhaseTasks:
    """Give the commit phase of a block.

    :param acquiring: the first task of each that it has.
    :raises TransactionDefinitionError: there are two.
    """
    if len(acquiring) > 1:
        problem, remedy = "it has two commit phases", "Put all committers into one."
        raise TransactionDefinitionError(topology=spec.topology, problem=problem, remedy=remedy)
    acquire = acquiring[0]
    group: Any = acquire.task_group
    inside = [task for task in group.iter_tasks() if task not in (acquire, group.mark)]
    return PhaseTasks(acquire, group.mark, tuple(inside))


def operator_of(task: Any) -> type:
    """Give the class of a task, mapped or not."""
    found: type = task.operator_class if task.is_mapped else type(task)
    return found


def commits(task: Any) -> bool:
    """Ask whether a task is a committer."""
    return issubclass(operator_of(task), CommitOperator)


def ordered(tasks: Sequence[Any]) -> list[Any]:
    """Put tasks behind the tasks that they need."""
    left = {task.task_id: task for task in sorted(tasks, key=lambda task: task.task_id)}
    found = []
    while left:
        name = next(name for name, task in left.items() if not task.upstream_task_ids & left.keys())
        found.append(left.pop(name))
    return found


def commit_phase(group_id: str = "commit_phase", *, outlets: Sequence[Any] = ()) -> CommitPhase:
    """The commit phase of a transaction with several committers, or with tasks after a committer.

        with Transaction(source=...) as tx:
            counted = count(tx.batch)
            with commit_phase() as phase:
                first = CommitOperator(task_id="first", updates=[persistent_aggregate(counted, state=words)])
                derived = derive(counted)
                first >> derived
                CommitOperator(task_id="second", updates=[persistent_aggregate(derived, state=derivatives)])
        phase.mark >> report()

    `acquire` waits for the turn once everything before the phase has succeeded; `mark` passes it on once every task of
    the phase has. Clearing one of them takes the turn again, and nothing is counted twice. What comes after a commit
    hangs on `phase.mark`.

    :param group_id: of its task group, and the first part of the ids of its tasks.
    :param outlets: assets whose events tell of a commit.
    """
    return CommitPhase(group_id, outlets)
