"""`Transaction`, the block in a DAG file that makes its tasks one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG
from airflow.sdk.definitions._internal.contextmanager import DagContext
from airflow.sdk.definitions.xcom_arg import PlainXComArg
from airflow.sdk.exceptions import DuplicateTaskIdFound

from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.base.described import check_no_template
from airflow_tx.base.errors import TransactionDefinitionError
from airflow_tx.operators.commit import (
    FOR_WORK,
    AcquireTurnOperator,
    BeginTransactionOperator,
    CommitOperator,
    hook_up_inside,
    note_commit_failure,
)
from airflow_tx.operators.phase import PhaseTasks, commits, operator_of, ordered, phase_of
from airflow_tx.sources import Source, SourceKind
from airflow_tx.state import AppendTable, FencedState, StateKind
from airflow_tx.transaction import (
    AlarmCallback,
    AlarmCallbacks,
    AlarmLimits,
    Check,
    TransactionSpec,
    Update,
    hook_up,
    rejected_update,
    stage_frames,
    written_together,
)

if TYPE_CHECKING:
    from airflow.sdk.definitions.xcom_arg import XComArg
    from typing_extensions import Self


# --- rules --------------------------------------------------------------------------------------------------------
# The rules of a `Transaction` block. They are checked without I/O when Airflow parses the DAG file.


_EXACTLY_ONCE = {
    (SourceKind.TRANSACTIONAL, StateKind.TRANSACTIONAL),
    (SourceKind.TRANSACTIONAL, StateKind.OPAQUE),
    (SourceKind.OPAQUE, StateKind.OPAQUE),
}
_SERIAL = ("depends_on_past", "wait_for_downstream", "max_active_tis_per_dag")


@dataclass(frozen=True)
class Block:
    """A `Transaction` block of a DAG file.

    :param tasks: all tasks of the block except `begin`.
    :param window: maximum number of open transactions (`max_pending`).
    :param phase: the commit phase; None if the block has a single committer.
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
        return tuple(filter(commits, self.tasks))

    @property
    def gate(self) -> Any:
        """Return the task that takes the turn: the committer, or the first task of the commit phase."""
        return self.committers[0] if self.phase is None else self.phase.acquire

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the ids of the tasks that run even if the transaction is already committed, so that later tasks run
        too.
        """
        last = (self.gate,) if self.phase is None else (self.gate, self.phase.mark)
        return tuple(task.task_id for task in last)

    @property
    def committing(self) -> tuple[Any, ...]:
        """Return the tasks that take the turn, write the states, or mark the commit."""
        phase = self.phase
        return self.committers if phase is None else (phase.acquire, *self.committers, phase.mark)

    @property
    def updates(self) -> tuple[tuple[CommitOperator, Any], ...]:
        return tuple((task, update) for task in self.committers for update in task.updates)

    @property
    def checks(self) -> tuple[tuple[CommitOperator, Check], ...]:
        return tuple((task, check) for task in self.committers for check in task.checks)

    @property
    def taken(self) -> tuple[tuple[CommitOperator, Any], ...]:
        """Return the updates and checks that read the output of a task."""
        return (*self.updates, *(each for each in self.checks if each[1].input is not None))

    @property
    def states(self) -> tuple[Any, ...]:
        """Return the states of the updates, and the table of rejected rows."""
        written = tuple(update.state for _, update in self.updates)
        return written if self.spec.rejected is None else (*written, self.spec.rejected)

    @property
    def stages(self) -> bool:
        """Return whether the block stages Spark application output or a committer's new values."""
        applications = any(map(_stages_output, self.tasks))
        return applications or any(update.new_values is not None for _, update in self.updates)

    @property
    def committed(self) -> frozenset[str]:
        """Return the ids of the tasks whose output the committers read."""
        return frozenset(taken.input.operator.task_id for _, taken in self.taken)

    @property
    def tables(self) -> dict[tuple[str, str], AppendTable]:
        """Return the tables that Spark applications write to, by task id and output name."""
        return {
            (update.input.operator.task_id, update.input.key): table
            for _, update in self.updates
            if (table := update.state.append_table) is not None
            and _stages_output(update.input.operator)
        }

    def refusal(self, problem: str, remedy: str) -> TransactionDefinitionError:
        """Build the error that Airflow displays as the DAG file's import error."""
        return refusal(self.spec, problem, remedy)

    @cached_property
    def must_ack(self) -> frozenset[str]:
        return compat.upstream(self.gate)

    @property
    def acking(self) -> tuple[Any, ...]:
        return tuple(task for task in self.tasks if task.task_id in self.must_ack)

    @cached_property
    def _own_options(self) -> tuple[tuple[Any, str, Any], ...]:
        """Return the options of `begin` and the committing tasks, as set at the end of the block."""
        own = (self.begin, *self.committing)
        return tuple((task, name, getattr(task, name)) for task in own for name in FOR_WORK)

    def complete(self) -> None:
        """Set this package's hooks and options on the tasks again, because a cluster policy may have replaced them."""
        compat.make_log_fit()
        for task, name, value in self._own_options:
            setattr(task, name, value)
        for task in self.acking:
            hook_up(task)
        for task in self.phase.others if self.phase is not None else ():
            hook_up_inside(task)
        for task in self.committing:
            compat.add_hooks(task, failed=note_commit_failure)
        if given := self.dag.on_failure_callback:
            from airflow_tx.transaction import unless_yielded

            self.dag.on_failure_callback = unless_yielded(self.spec, given)


def refusal(spec: TransactionSpec, problem: str, remedy: str) -> TransactionDefinitionError:
    return TransactionDefinitionError(topology=spec.topology, problem=problem, remedy=remedy)


def check_block(block: Block) -> None:
    """Refuse an invalid `Transaction` block.

    :raises TransactionDefinitionError: a rule is broken. The error names the first broken rule.
    """
    for rule in _RULES:
        rule(block)


def _source(block: Block) -> None:
    if not isinstance(block.spec.source, Source):
        raise block.refusal(
            f"source = {type(block.spec.source).__name__} is not a source",
            "Pass a source, such as FileSource.",
        )


def _malformed(block: Block) -> None:
    if block.spec.source.malformed == "reject" and block.spec.rejected is None:
        raise block.refusal(
            f"source {block.spec.source!r} rejects malformed rows, but there is no table for them",
            'Set rejected=DeltaTable(...) in the block, or malformed="refuse" in the source.',
        )


def _interval(block: Block) -> None:
    if block.spec.source.dated is None:
        return
    if timetable := compat.empty_interval(block.dag):
        raise block.refusal(
            f"its source reads the data interval of a run, but runs of this schedule ({timetable}) have an empty "
            "interval",
            'Give the DAG schedule="@daily", or CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), or give the '
            "timetable interval=timedelta(days=1).",
        )


def _upstream(block: Block) -> None:
    source = block.spec.source
    table = source.upstream_table
    if source.upstream and source.upstream == block.spec.topology:
        raise block.refusal(
            f"its source {source!r} reads its own topology",
            "Name the topology that writes the table.",
        )
    if any(state.name == table for state in block.states):
        raise block.refusal(
            f"its source reads {table!r}, which is also one of its states",
            "Write to another table.",
        )


def _window(block: Block) -> None:
    if not isinstance(block.window, int) or block.window < 1:
        raise block.refusal(f"max_pending = {block.window!r}", "Give a whole number from 1 on.")
    most = block.dag.timetable.active_runs_limit
    if most is not None and most <= block.window:
        raise block.refusal(
            f"its schedule ({type(block.dag.timetable).__name__}, such as @continuous) allows {most} run at a time, "
            "but a cleared run needs another run slot",
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
            f"max_consecutive_failed_dag_runs = {failed}, but a run that yields its run slot to an earlier "
            "transaction ends as failed",
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
            raise block.refusal(
                f"{committer.task_id} is mapped",
                "Do not map the committer: one task must write the whole update.",
            )
        if committer.trigger_rule != "all_success":
            raise block.refusal(
                f"{committer.task_id} has trigger_rule = {committer.trigger_rule.value!r}",
                "Keep all_success, so that every commit is complete.",
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
                f"{committer.task_id} commits {update.input.key!r} of {task}, but {task} leaves "
                f"{', '.join(map(repr, filter(None, left))) or 'no new values'}",
                f'Set new_values="{update.input.key}" in one of its updates, or commit the output of another task.',
            )
        if task in inside and compat.is_mapped(update.input.operator):
            raise block.refusal(
                f"{committer.task_id} commits the output of {task}, a mapped task of the same phase",
                "Combine the outputs in a task that is not mapped, or move the mapped task before the phase.",
            )
        if task in inside and update.state.kind is StateKind.TRANSACTIONAL:
            raise block.refusal(
                f"{committer.task_id} commits the output of {task} to the transactional state {update.state.name!r}. "
                f"This output must be compared before the commit phase begins, but {task} runs in the phase",
                'Use kind="opaque", or move that task before the phase.',
            )


def _after_committer(block: Block) -> None:
    phase = () if block.phase is None else (*block.phase.inside, block.phase.mark)
    inside = {task.task_id for task in block.tasks} - {task.task_id for task in phase}
    after = [task for task in compat.downstream(block.gate) if task in inside]
    if after:
        raise block.refusal(
            f"{', '.join(after)} runs after {block.gate.task_id} inside the block",
            "Put the task after the block: dedent it, and keep `commit >> task`. If it must run in the order of the "
            "commits, put it together with the committer into `with commit_phase():`.",
        )


def _serial(block: Block) -> None:
    for task in (block.begin, *block.tasks):
        if not _is_ours(operator_of(task)):
            continue
        for option in _SERIAL:
            if value := getattr(task, option):
                raise block.refusal(
                    f"{task.task_id} has {option} = {value!r}",
                    "Remove the option, also from default_args. Commits are in order without it, and it prevents "
                    "replays.",
                )


def _updates(block: Block) -> None:
    inside = {task.task_id for task in block.tasks}
    for committer, update in block.updates:
        if not isinstance(update, Update):
            raise block.refusal(
                f"{committer.task_id} has an update of type {type(update).__name__}",
                "Pass persistent_aggregate(...).",
            )
    for _, update in block.taken:
        if not isinstance(update.input, PlainXComArg):
            raise block.refusal(
                f"the input of {update!r} is not the output of a task",
                'Pass partial.output["name"] of a processing task, or the return value of a @task function call.',
            )
        task = update.input.operator.task_id
        if task not in inside:
            raise block.refusal(
                f"the input of {update!r} comes from task {task}, which is outside of the block",
                "Move that task into the block.",
            )
        if not compat.pushes_xcom(update.input.operator):
            raise block.refusal(
                f"the input of {update!r} comes from task {task}, which has do_xcom_push=False",
                "Remove do_xcom_push=False: the commit takes the return value of the task.",
            )


def _checks(block: Block) -> None:
    phase = () if block.phase is None else block.phase.inside
    for committer, check in block.checks:
        if check.input is not None and check.input.operator in phase:
            raise block.refusal(
                f"{check!r} of {committer.task_id} checks the output of {check.input.operator.task_id}, which runs "
                "in the commit phase, but checks run before the phase begins",
                "Move that task before the phase, or check an output that the task reads.",
            )
    for name, times in Counter(check.name for _, check in block.checks).items():
        if times > 1:
            raise block.refusal(
                f"it has {times} checks named {name!r}",
                "Give each check its own name, since accept-check finds a check by its name.",
            )


def _states(block: Block) -> None:
    for _, update in block.updates:
        if not isinstance(update.state, FencedState):
            raise block.refusal(
                f"state = {type(update.state).__name__} is not a state with a fence",
                "Pass a state such as SqlState, a map, or a StateFactory with keys= and values=. For a state class of "
                "your own, use partition_persist(..., updater=...).",
            )
    for name, times in Counter(state.name for state in block.states).items():
        if times > 1:
            raise block.refusal(
                f"state {name!r} is updated {times} times",
                "A transaction updates each state only once. Combine the outputs in a task, or use another table. For "
                "a map, use another name: OpaqueMap(..., name=...).",
            )


def _appended(block: Block) -> None:
    """Refuse to append a committer's new values, or an application's output that another update also reads."""
    for committer, update in block.updates:
        task = update.input.operator.task_id
        is_appended = update.state.takes_back_by_txid
        if is_appended and isinstance(update.input.operator, CommitOperator):
            raise block.refusal(
                f"{committer.task_id} appends {update.input.key!r} of {task}, but these are new values of a committer",
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
                "also reads it",
                "Emit the rows as two outputs with different names.",
            )


def _kinds(block: Block) -> None:
    source = block.spec.source.kind
    for state in block.states:
        kind = state.kind
        if block.at_least_once:
            continue
        if (source, kind) not in _EXACTLY_ONCE:
            raise block.refusal(
                f"its source is {source.value} and state {state.name!r} is {kind.value}, and this pair cannot count "
                "each row exactly once",
                'Use kind="opaque" for the state, or OpaqueMap for a map. A state class of your own declares its kind '
                "itself. If rows may be counted more than once, set Transaction(at_least_once=True)."
                if source is not SourceKind.NON_TRANSACTIONAL
                else "Use another source. If rows may be counted more than once, set Transaction(at_least_once=True).",
            )
        if source is SourceKind.OPAQUE and not state.can_roll_back:
            raise block.refusal(
                f"state {state.name!r} cannot undo the updates of a replaced attempt, which an opaque source needs",
                "Use a store that can, such as SqlState or RedisState, or use a transactional source. If rows may be "
                "counted more than once, set Transaction(at_least_once=True).",
            )


def _names(tasks: Iterable[Any]) -> str:
    return ", ".join(sorted(task.task_id for task in tasks))


def _stages_output(task: Any) -> bool:
    return bool(getattr(operator_of(task), "stages_output", False))


def _is_ours(operator: type) -> bool:
    return any(base.__module__.startswith("airflow_tx.") for base in operator.__mro__)


def _shown(block: Block) -> None:
    """Refuse task, state and output names that contain unprintable characters."""
    named = [("task", task.task_id) for task in block.tasks]
    named += [("state", state.name) for state in block.states]
    named += [("output", str(taken.input.key)) for _, taken in block.taken]
    for what, name in named:
        if not name.isprintable():
            raise block.refusal(
                f"the name of {what} {name!a} contains characters that a page or a terminal cannot show",
                "Give it another name, of letters, digits and dashes.",
            )


_RULES = (
    _source, _malformed, _interval, _window, _committers, _after_committer, _serial, _updates, _checks, _states,
    _upstream, _appended, _phase, _kinds, _shown,
)  # fmt: skip


# --- alarms -------------------------------------------------------------------------------------------------------


def with_alarms(
    spec: TransactionSpec,
    on_blocked: AlarmCallback | Sequence[AlarmCallback],
    on_late: AlarmCallback | Sequence[AlarmCallback],
    late_after: timedelta | None,
    max_lag: int | None,
) -> TransactionSpec:
    """Return a copy of the transaction's description that includes its callbacks and limits.

    :raises TransactionDefinitionError: an alert could never be raised, or a callback is not callable.
    """
    blocked = _callbacks_of(spec, "on_blocked", on_blocked)
    late = _callbacks_of(spec, "on_late", on_late)
    callbacks = AlarmCallbacks(blocked, late)
    has_limit = not (late_after is None and max_lag is None)
    if callbacks.on_late and not has_limit and not spec.source.upstream:
        remedy = "Add late_after=timedelta(hours=1), or max_lag=100_000."
        raise refusal(spec, "it has an on_late callback, but no limit", remedy)
    if not callbacks.on_late and has_limit:
        limit = "max_lag" if late_after is None else "late_after"
        raise refusal(
            spec, f"it has {limit}, but no on_late callback", "Add callbacks: on_late=..."
        )
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
        problem = f"it has max_lag={max_lag}, but source {type(source).__name__} has no lag"
        raise refusal(spec, problem, "Use late_after=timedelta(...), which works for every source.")


def _callbacks_of(
    spec: TransactionSpec, name: str, given: AlarmCallback | Sequence[AlarmCallback]
) -> tuple[AlarmCallback, ...]:
    found = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for each in found:
        if not callable(each):
            remedy = "Give a function of one argument, or a notifier."
            raise refusal(spec, f"{name}={each!r} is not callable", remedy)
    return found


# --- transaction --------------------------------------------------------------------------------------------------


_defined: dict[str, Block] = {}
"""The `Transaction` blocks of the DAG files that this process has parsed, by topology."""


def complete_again(dag: DAG) -> None:
    """Restore the hooks and options of a block's tasks that cluster policies or later lines of the DAG file have
    removed.

    :raises TransactionDefinitionError: a policy or a later line has set an option that the block does not support.
    """
    for block in _defined.values():
        if block.dag is dag:
            block.complete()
            _window(block)
            _serial(block)


class Transaction:
    """A block of tasks that become one transaction per DAG run.

        with DAG("flights", schedule=None, max_active_runs=8):
            with Transaction(source=FileSource("data/flights/*.csv"), max_pending=4) as tx:
                CommitOperator(task_id="commit", updates=[persistent_aggregate(count(tx.batch), state=totals)])

    The block creates the task `begin`, and makes it upstream of every other task of the block. All tasks upstream of
    the CommitOperator must succeed before the transaction commits. Tasks on side branches may fail.

    :param source: the source of the batches.
    :param topology: the name of the topology in the ledger and in `airflow tx`; default: the dag_id. Each DAG needs a
        different name.
    :param max_pending: the highest number of open transactions; default: `[tx] max_pending`.
    :param processing_timeout: seconds from begin until all tasks have acked; default: `[tx] processing_timeout`. After
        this time the transaction counts as failed, and the coordinator or a user may replay it. A committer that waits
        for messages then fails.
    :param zookeeper_conn_id: the connection of the ledger; default: `[tx] zookeeper_conn_id`.
    :param root: the znode that holds the topology; default: `[tx] root`.
    :param ackers: the number of ackers that track the messages of the tasks, see `docs/acks.md`. With 0, the commit
        does not wait for messages. Default: the tasks emit no messages.
    :param acker_store: the connection id of the ackers' store, of type redis or zookeeper; default: the ledger's.
    :param on_blocked: an Airflow callback or notifier, or a list of them, called once each time the topology becomes
        blocked. The context contains the `Alarm` as `alarm`, see `docs/alarms.md`.
    :param on_late: the same as `on_blocked`, for a topology that is late, or behind a correction of its upstream
        topology.
    :param late_after: how long the oldest transaction may be open before the topology is late.
    :param max_lag: the largest lag of the source before the topology is late, in the unit of `airflow tx list`.
    :param journal: how long a committed transaction can be restated, see `docs/journal.md`; default: `[tx] journal`,
        in days. With timedelta(0) no transaction can be restated.
    :param at_least_once: allow a source and a state that cannot guarantee exactly once together.
    :param message_timeout: the earlier name of `processing_timeout`.
    :param rejected: the table, such as a `DeltaTable`, for rows that tasks reject and malformed rows of the source. The
        commit appends them with the reason. Default: tasks cannot reject rows.
    :param max_rejected: the maximum number of rows that a task may reject, or their share of the batch, such as 0.01.
        If a task rejects more, the commit is refused until a user intervenes. Default: no limit.
    """

    def __init__(
        self,
        *,
        source: Source,
        topology: str | None = None,
        max_pending: int | None = None,
        processing_timeout: float | None = None,
        zookeeper_conn_id: str | None = None,
        root: str | None = None,
        ackers: int | None = None,
        acker_store: str | None = None,
        on_blocked: AlarmCallback | Sequence[AlarmCallback] = (),
        on_late: AlarmCallback | Sequence[AlarmCallback] = (),
        late_after: timedelta | None = None,
        max_lag: int | None = None,
        journal: timedelta | None = None,
        at_least_once: bool = False,
        message_timeout: float | None = None,
        rejected: FencedState | None = None,
        max_rejected: float | None = None,
    ) -> None:
        """Store the source and the options. The block adds the tasks."""
        texts = {"topology": topology, "zookeeper_conn_id": zookeeper_conn_id, "root": root}
        check_no_template("Transaction", {**texts, "acker_store": acker_store})
        self._dag = _current_dag(topology)
        self._at_least_once = at_least_once
        self._spec = TransactionSpec(
            topology=topology or self._dag.dag_id,
            dag_id=self._dag.dag_id,
            source=source.in_ledger(zookeeper_conn_id, root)
            if isinstance(source, Source)
            else source,
            max_pending=max_pending,
            message_timeout=message_timeout if processing_timeout is None else processing_timeout,
            zookeeper_conn_id=zookeeper_conn_id,
            root=root,
            ackers=ackers,
            acker_store=acker_store,
            journal=journal,
            rejected=None if rejected is None else rejected_update(rejected).state,
            max_rejected=max_rejected,
        )
        if None not in (processing_timeout, message_timeout):
            raise refusal(
                self._spec,
                f"it has processing_timeout={processing_timeout} and message_timeout={message_timeout}, which mean the "
                "same",
                "Remove message_timeout.",
            )
        _check_ackers(self._spec)
        _check_journal(self._spec)
        _check_max_rejected(self._spec)
        self._spec = with_alarms(self._spec, on_blocked, on_late, late_after, max_lag)
        self._before: frozenset[str] = frozenset()
        self._begin: BeginTransactionOperator | None = None

    @property
    def topology(self) -> str:
        return self._spec.topology

    @property
    def begin(self) -> BeginTransactionOperator:
        """Return the `begin` task, which the block creates on entry."""
        if self._begin is None:
            raise refusal(
                self._spec, "the block was not entered", "Write: with Transaction(...) as tx:"
            )
        return self._begin

    @property
    def batch(self) -> XComArg:
        """Return the batch as plain JSON, for arguments of `@task` functions."""
        return self.begin.output

    def __enter__(self) -> Self:
        if any(isinstance(task, BeginTransactionOperator) for task in self._dag.tasks):
            raise refusal(
                self._spec,
                f"DAG {self._dag.dag_id} already has a Transaction block",
                "One DAG run is one transaction.",
            )
        self._before = frozenset(self._dag.task_ids)
        try:
            self._begin = BeginTransactionOperator(task_id="begin", transaction=self._spec)
        except DuplicateTaskIdFound:
            raise refusal(
                self._spec,
                f"DAG {self._dag.dag_id} has a task 'begin' already, but the first task of the block has the same name",
                'Give your task another id, or put the block into a group: with TaskGroup("tx"), Transaction(...):',
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            return
        begin = self.begin
        tasks = [
            task
            for task in self._dag.tasks
            if task.task_id not in self._before and task is not begin
        ]
        inside = {task.task_id for task in tasks}
        acquiring = [task for task in tasks if isinstance(task, AcquireTurnOperator)]
        phase = phase_of(self._spec, acquiring) if acquiring else None
        if phase is not None:
            phase.wire()
        for task in tasks:
            if not task.upstream_task_ids & (inside | {begin.task_id}):
                begin.set_downstream(task)
        block = Block(
            self._spec,
            self._dag,
            begin,
            tuple(tasks),
            self._at_least_once,
            Settings.load().max_pending
            if self._spec.max_pending is None
            else self._spec.max_pending,
            phase,
        )
        source = self._spec.source  # `check_block` refuses any object that is not a source
        if isinstance(source, Source) and source.dated is not None:
            compat.give_intervals(self._dag)
        check_block(block)
        needed = block.gate.upstream_task_ids - {begin.task_id}
        # If a run's transaction is already committed, the tasks before the commit are skipped. The
        # committer still runs, so that the tasks after the commit run.
        compat.run_after_skipped(block.gate)
        if begin.task_id not in block.gate.upstream_task_ids:
            begin.set_downstream(block.gate)
        self._bind(block, frozenset(needed))
        block.complete()
        compat.replace_test(self._dag, _try_out)
        compat.after_policies(complete_again)
        # When a file is parsed again, its new block replaces the old block.
        _defined[self._spec.topology] = block

    def _bind(self, block: Block, needed: frozenset[str]) -> None:
        for task in block.tasks:
            compat.put_into_module(task, __name__)
            stage_frames(task)
        block.begin.transaction = replace(
            self._spec,
            begin=block.begin.task_id,
            tasks=tuple(sorted(task.task_id for task in block.acking)),
            mapped=frozenset(task.task_id for task in block.acking if compat.is_mapped(task)),
            inside=tuple(sorted(task.task_id for task in block.tasks)),
            ends=block.ends,
            needed=needed,
            phase=None if block.phase is None else block.phase.spec,
            stages=block.stages,
            committed=block.committed,
            tables=block.tables,
            zone=compat.zone_of(self._dag),
            appends=any(state.takes_back_by_txid for state in block.states),
        )
        if self._spec.rejected is not None:
            # The first committer writes the rejected rows.
            first = next(filter(commits, ordered(block.tasks)))
            # Write the rejected rows before the guard of the committer, so that the guard's
            # statements see them.
            guards = [number for number, each in enumerate(first.updates) if each.state.runs_once]
            at = guards[0] if guards else len(first.updates)
            aside = rejected_update(self._spec.rejected)
            first.updates = (*first.updates[:at], aside, *first.updates[at:])
        for task in filter(commits, block.tasks):
            if task.together and block.phase is not None:
                remedy = "Put these updates into one CommitOperator without a phase, or leave together= out."
                problem = f"task {task.task_id} has together=True in a commit phase"
                raise refusal(self._spec, problem, remedy)
            if task.together:
                task.updates = written_together(task.updates)


def _try_out(*args: Any, **options: Any) -> Any:
    """Run the trial of a DAG. The module is imported here because few processes that parse DAG files run a trial."""
    from airflow_tx.operators.trial import try_out

    return try_out(*args, **options)


def _check_ackers(spec: TransactionSpec) -> None:
    if spec.ackers is not None and spec.ackers < 0:
        raise refusal(
            spec,
            f"ackers={spec.ackers}",
            "Give the number of ackers: 1, more for many messages, or 0 to track no message.",
        )
    if spec.acker_store is not None and spec.ackers is None:
        raise refusal(spec, "it has an acker_store, but no ackers", "Add ackers=1.")
    if "://" in (spec.acker_store or ""):
        raise refusal(
            spec,
            "acker_store is not a connection id",
            "Define an Airflow connection: a URL would show its password.",
        )


def _check_journal(spec: TransactionSpec) -> None:
    found = spec.journal
    if found is not None and (not isinstance(found, timedelta) or found < timedelta(0)):
        remedy = "Give a timedelta, such as journal=timedelta(days=30). With timedelta(0), there is no journal."
        raise refusal(spec, f"journal={found!r}", remedy)


def _check_max_rejected(spec: TransactionSpec) -> None:
    most = spec.max_rejected
    if most is None:
        return
    is_number = type(most) is int and most >= 1
    if not is_number and not (type(most) is float and 0 < most < 1):
        remedy = (
            "Give a share of the batch below 1, such as 0.01, or a whole number of rows from 1 on."
        )
        raise refusal(spec, f"max_rejected={most!r}", remedy)
    if spec.rejected is None:
        remedy = "Add rejected=DeltaTable(...), or leave max_rejected out."
        raise refusal(spec, f"it has max_rejected={most!r}, but no table for rejected rows", remedy)


def _current_dag(topology: str | None) -> DAG:
    dag: Any = DagContext.get_current()
    if dag is None:
        raise TransactionDefinitionError(
            topology=topology or "?",
            problem="it is outside of a DAG",
            remedy="Write the block inside `with DAG(...):`.",
        )
    found: DAG = dag
    return found


def defined(topology: str) -> tuple[TransactionSpec, DAG]:
    """Return a topology's specification and DAG from its DAG file, which this process must have parsed.

    :raises TransactionDefinitionError: no parsed DAG file has a complete block of this topology.
    """
    block = _defined.get(topology)
    if block is None:
        raise TransactionDefinitionError(
            topology=topology,
            problem="coordinator_dag finds no Transaction block of this topology in this file",
            remedy="Put coordinator_dag(...) after the DAG in its file, with the name of its topology.",
        )
    return block.begin.transaction, block.dag
