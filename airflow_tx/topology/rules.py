"""The rules of a `Transaction` block; checked when its file is parsed, without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.definitions.xcom_arg import PlainXComArg

from airflow_tx import compat
from airflow_tx.alarms import AlarmCallback, AlarmCallbacks, AlarmLimits
from airflow_tx.commit.update import Update
from airflow_tx.errors import TransactionDefinitionError
from airflow_tx.operators.begin import BeginTransactionOperator
from airflow_tx.operators.commit import CommitOperator
from airflow_tx.sources.api import Source, SourceKind
from airflow_tx.spec import TransactionSpec
from airflow_tx.state.api import FencedState, StateKind
from airflow_tx.state.appended import AppendTable
from airflow_tx.topology.phase import PhaseTasks

_EXACTLY_ONCE = {
    (SourceKind.TRANSACTIONAL, StateKind.TRANSACTIONAL),
    (SourceKind.TRANSACTIONAL, StateKind.OPAQUE),
    (SourceKind.OPAQUE, StateKind.OPAQUE),
}
_SERIAL = ("depends_on_past", "wait_for_downstream", "max_active_tis_per_dag")


@dataclass(frozen=True)
class Block:
    """A block of the DAG file.

    :param tasks: all of its tasks but `begin`.
    :param window: its max_pending.
    :param phase: its commit phase, if it has one.
    """

    spec: TransactionSpec
    dag: DAG
    begin: BeginTransactionOperator
    tasks: tuple[Any, ...]
    at_least_once: bool
    window: int
    phase: PhaseTasks | None = None

    @cached_property
    def committers(self) -> tuple[Any, ...]:
        return tuple(task for task in self.tasks if issubclass(_operator(task), CommitOperator))

    @property
    def gate(self) -> Any:
        """The task that takes the turn: the committer, or the first task of the phase."""
        return self.committers[0] if self.phase is None else self.phase.acquire

    @property
    def ends(self) -> tuple[str, ...]:
        """The ids of its tasks that run in a committed run, so that tasks after the block do."""
        last = (self.gate,) if self.phase is None else (self.gate, self.phase.mark)
        return tuple(task.task_id for task in last)

    @property
    def committing(self) -> tuple[Any, ...]:
        """Its tasks that take the turn, write, or mark."""
        phase = self.phase
        return self.committers if phase is None else (phase.acquire, *self.committers, phase.mark)

    @property
    def updates(self) -> tuple[tuple[CommitOperator, Any], ...]:
        return tuple(
            (committer, update) for committer in self.committers for update in committer.updates
        )

    @property
    def stages(self) -> bool:
        """Whether a task stages output: an application, or a committer that leaves new values."""
        applications = any(map(_stages_output, self.tasks))
        return applications or any(update.new_values is not None for _, update in self.updates)

    @property
    def committed(self) -> frozenset[str]:
        """The ids of the tasks whose output its committers take."""
        return frozenset(update.input.operator.task_id for _, update in self.updates)

    @property
    def tables(self) -> dict[tuple[str, str], AppendTable]:
        """The tables that its applications write into, by task id and name of the output."""
        return {
            (update.input.operator.task_id, update.input.key): table
            for _, update in self.updates
            if (table := update.state.append_table) is not None
            and _stages_output(update.input.operator)
        }

    def refusal(self, problem: str, remedy: str) -> TransactionDefinitionError:
        """Make the error that becomes the import error of the DAG file."""
        return refusal(self.spec, problem, remedy)

    @cached_property
    def must_ack(self) -> frozenset[str]:
        return compat.upstream(self.gate)


def refusal(spec: TransactionSpec, problem: str, remedy: str) -> TransactionDefinitionError:
    return TransactionDefinitionError(topology=spec.topology, problem=problem, remedy=remedy)


def check(block: Block) -> None:
    """Refuse a block that cannot work.

    :raises TransactionDefinitionError: the first thing that is wrong.
    """
    for rule in _RULES:
        rule(block)


def _source(block: Block) -> None:
    if not isinstance(block.spec.source, Source):
        raise block.refusal(
            f"source = {type(block.spec.source).__name__} is no source",
            "Pass a source, such as FileSource.",
        )


def _interval(block: Block) -> None:
    if block.spec.source.dated is None:
        return
    if timetable := compat.empty_interval(block.dag):
        raise block.refusal(
            f"its source takes the data interval of a run, and runs of this schedule ({timetable}) have an empty one",
            'Give the DAG schedule="@daily", or CronDataIntervalTimetable("0 0 * * *", timezone="UTC").',
        )


def _window(block: Block) -> None:
    if not isinstance(block.window, int) or block.window < 1:
        raise block.refusal(f"max_pending = {block.window!r}", "Give a whole number from 1 on.")
    most = block.dag.timetable.active_runs_limit
    if most is not None and most <= block.window:
        raise block.refusal(
            f"its schedule ({type(block.dag.timetable).__name__}, such as @continuous) allows {most} run at a time, "
            "and a cleared run needs a run slot beside it",
            f"Give the DAG schedule=None and max_active_runs={block.window + 1}, and add "
            f'coordinator_dag("{block.dag.dag_id}"): it starts a run whenever the source has data.',
        )
    runs = block.dag.max_active_runs
    if runs <= block.window:
        smaller = ", or a smaller max_pending" if block.window > 1 else ""
        raise block.refusal(
            f"max_active_runs = {runs} is not larger than max_pending = {block.window}: "
            "waiting runs could take the run slot that a cleared one needs",
            f"Set DAG(max_active_runs={block.window + 1}) or more{smaller}.",
        )
    if failed := block.dag.max_consecutive_failed_dag_runs:
        raise block.refusal(
            f"max_consecutive_failed_dag_runs = {failed}, and a run that makes room for an earlier one ends as failed",
            "Set DAG(max_consecutive_failed_dag_runs=0). After max_replays a transaction is blocked.",
        )


def _committers(block: Block) -> None:
    if not block.committers:
        raise block.refusal("it has no committer", "End the block with CommitOperator(...).")
    if block.phase is None and len(block.committers) > 1:
        raise block.refusal(
            f"it has {len(block.committers)} committers ({_names(block.committers)})",
            "Give one CommitOperator all updates, or put them into `with commit_phase():`.",
        )
    for committer in block.committers:
        if compat.is_mapped(committer):
            raise block.refusal(f"{committer.task_id} is mapped", "An update is made by one task.")
        if committer.trigger_rule != "all_success":
            raise block.refusal(
                f"{committer.task_id} has trigger_rule = {committer.trigger_rule.value!r}",
                "Leave it at all_success: what is committed must be complete.",
            )


def _phase(block: Block) -> None:
    if block.phase is None:
        return
    inside = {task.task_id for task in block.phase.inside}
    outside = [task for task in block.committers if task.task_id not in inside]
    if outside:
        raise block.refusal(
            f"{_names(outside)} is not in its commit phase", "Indent it under commit_phase()."
        )
    for committer, update in block.updates:
        task = update.input.operator.task_id
        left = [each.new_values for each in getattr(update.input.operator, "updates", ())]
        if isinstance(update.input.operator, CommitOperator) and update.input.key not in left:
            raise block.refusal(
                f"{committer.task_id} commits {update.input.key!r} of {task}, a committer whose updates leave "
                f"{', '.join(map(repr, filter(None, left))) or 'nothing'}",
                f'Give one of them new_values="{update.input.key}", or commit the output of another task.',
            )
        if task in inside and compat.is_mapped(update.input.operator):
            raise block.refusal(
                f"{committer.task_id} commits the output of {task}, a mapped task of the same phase",
                "Combine it in a task that is not mapped, or move the mapped one before the phase.",
            )
        if task in inside and update.state.kind is StateKind.TRANSACTIONAL:
            raise block.refusal(
                f"{committer.task_id} commits the output of {task}, of the same phase, to the transactional state "
                f"{update.state.name!r}, whose output is compared before the phase begins",
                'Use kind="opaque", or move that task before the phase.',
            )


def _after_committer(block: Block) -> None:
    phase = () if block.phase is None else (*block.phase.inside, block.phase.mark)
    inside = {task.task_id for task in block.tasks} - {task.task_id for task in phase}
    after = [task for task in compat.downstream(block.gate) if task in inside]
    if after:
        raise block.refusal(
            f"{', '.join(after)} comes after {block.gate.task_id}",
            "Put the task after the block: dedent it, and keep `commit >> task`. If it must run in the order of "
            "the commits, put it together with the committer into `with commit_phase():`.",
        )


def _serial(block: Block) -> None:
    for task in (block.begin, *block.tasks):
        if not _is_ours(_operator(task)):
            continue
        for option in _SERIAL:
            if value := getattr(task, option):
                raise block.refusal(
                    f"{task.task_id} has {option} = {value!r}",
                    "Remove it (from default_args, too): commits are in order without it, and it stops replays.",
                )


def _updates(block: Block) -> None:
    inside = {task.task_id for task in block.tasks}
    for committer, update in block.updates:
        if not isinstance(update, Update):
            raise block.refusal(
                f"{committer.task_id} has an update of type {type(update).__name__}",
                "Pass persistent_aggregate(...).",
            )
        if not isinstance(update.input, PlainXComArg):
            raise block.refusal(
                f"the input of {update!r} is no output of a task",
                'Pass partial.output["name"] of a processing task, or what calling a @task function gives.',
            )
        task = update.input.operator.task_id
        if task not in inside:
            raise block.refusal(
                f"the input of {update!r} is of task {task}", "Move that task into the block."
            )
        if not compat.pushes_xcom(update.input.operator):
            raise block.refusal(
                f"the input of {update!r} is of task {task}, which has do_xcom_push=False",
                "Remove do_xcom_push=False: the commit takes the return value of the task.",
            )


def _states(block: Block) -> None:
    for _, update in block.updates:
        if not isinstance(update.state, FencedState):
            raise block.refusal(
                f"state = {type(update.state).__name__} is no state with a fence",
                "Pass a state such as SqlState, a map or a StateFactory with keys= and values=, or use "
                "partition_persist(..., updater=...) for one of your own.",
            )
    for name, times in Counter(update.state.name for _, update in block.updates).items():
        if times > 1:
            raise block.refusal(
                f"state {name!r} is updated {times} times",
                "One state takes one update a transaction: combine the outputs in a task, or use another table (of a "
                "map, OpaqueMap(..., name=...)).",
            )


def _appended(block: Block) -> None:
    """The rows of an appended output are in one table, where no other task reads them."""
    for committer, update in block.updates:
        task = update.input.operator.task_id
        is_appended = update.state.append_table is not None
        if is_appended and isinstance(update.input.operator, CommitOperator):
            raise block.refusal(
                f"{committer.task_id} appends {update.input.key!r} of {task}, the new values of a committer",
                "Append the output of a processing task.",
            )
        if (task, update.input.key) not in block.tables:
            continue
        others = [
            other
            for _, other in block.updates
            if (other.input.operator.task_id, other.input.key) == (task, update.input.key)
        ]
        if len(others) > 1:
            raise block.refusal(
                f"output {update.input.key!r} of {task} is appended to {update.state.name!r}, and another update "
                "takes it as well",
                "Emit the rows twice, under two names.",
            )


def _kinds(block: Block) -> None:
    source = block.spec.source.kind
    for _, update in block.updates:
        kind = update.state.kind
        if block.at_least_once:
            continue
        if (source, kind) not in _EXACTLY_ONCE:
            raise block.refusal(
                f"a source that is {source.value} and state {update.state.name!r} that is {kind.value} "
                "cannot give exactly once",
                'Use kind="opaque" (of a map, OpaqueMap; a state or factory of your own says it), or, if rows may be '
                "counted more than once: Transaction(at_least_once=True)."
                if source is not SourceKind.NON_TRANSACTIONAL
                else "Use another source, or, if rows may be counted more than once: Transaction(at_least_once=True).",
            )
        if source is SourceKind.OPAQUE and not update.state.can_roll_back:
            problem = f"state {update.state.name!r} cannot take back what a replaced attempt of an opaque source wrote"
            remedy = "Use a store that can, such as SqlState or RedisState, a transactional source, or, if rows may be "
            raise block.refusal(
                problem, f"{remedy}counted more than once: Transaction(at_least_once=True)."
            )


def _names(tasks: Iterable[Any]) -> str:
    return ", ".join(sorted(task.task_id for task in tasks))


def _operator(task: Any) -> type:
    found: type = task.operator_class if task.is_mapped else type(task)
    return found


def _stages_output(task: Any) -> bool:
    return bool(getattr(_operator(task), "stages_output", False))


def _is_ours(operator: type) -> bool:
    return any(base.__module__.startswith("airflow_tx.") for base in operator.__mro__)


_RULES = (
    _source, _interval, _window, _committers, _after_committer, _serial, _updates, _states, _appended, _phase, _kinds,
)  # fmt: skip


# --- alarms -------------------------------------------------------------------------------------------------------


def with_alarms(
    spec: TransactionSpec,
    on_blocked: AlarmCallback | Sequence[AlarmCallback],
    on_late: AlarmCallback | Sequence[AlarmCallback],
    late_after: timedelta | None,
    max_lag: int | None,
) -> TransactionSpec:
    """Give a transaction its alarms.

    :raises TransactionDefinitionError: they can never be raised, or no callback can be called.
    """
    blocked = _callbacks_of(spec, "on_blocked", on_blocked)
    late = _callbacks_of(spec, "on_late", on_late)
    callbacks = AlarmCallbacks(blocked, late)
    if callbacks.on_late and late_after is None and max_lag is None:
        remedy = "Add late_after=timedelta(hours=1), or max_lag=100_000."
        raise refusal(spec, "on_late has no limit", remedy)
    if not callbacks.on_late and not (late_after is None and max_lag is None):
        limit = "max_lag" if late_after is None else "late_after"
        raise refusal(spec, f"{limit} has no on_late", "Say who is to be called: on_late=...")
    if late_after is not None and (
        not isinstance(late_after, timedelta) or late_after <= timedelta(0)
    ):
        remedy = "Give a timedelta above 0: late_after=timedelta(hours=1)."
        raise refusal(spec, f"late_after={late_after!r}", remedy)
    if max_lag is not None:
        _check_lag(spec, max_lag)
    seconds = None if late_after is None else late_after.total_seconds()
    return replace(spec, callbacks=callbacks, limits=AlarmLimits(seconds, max_lag))


def _check_lag(spec: TransactionSpec, max_lag: Any) -> None:
    source = spec.source
    if isinstance(max_lag, bool) or not isinstance(max_lag, int) or max_lag < 0:
        raise refusal(spec, f"max_lag={max_lag!r}", "Give a whole number: max_lag=100_000.")
    if source.per_run or type(source).backlog is Source.backlog:
        problem = f"max_lag={max_lag} of source {type(source).__name__}, which has no lag"
        raise refusal(spec, problem, "Use late_after=timedelta(...), which is for every source.")


def _callbacks_of(
    spec: TransactionSpec, name: str, given: AlarmCallback | Sequence[AlarmCallback]
) -> tuple[AlarmCallback, ...]:
    found = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for each in found:
        if not callable(each):
            remedy = "Give a function of one argument, or a notifier."
            raise refusal(spec, f"{name}={each!r} cannot be called", remedy)
    return found
