"""`Transaction`: the block in a DAG file that makes its tasks one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG
from airflow.sdk.definitions._internal.contextmanager import DagContext
from airflow.sdk.exceptions import DuplicateTaskIdFound

from airflow_tx import compat
from airflow_tx.alarms import AlarmCallback
from airflow_tx.config import Settings
from airflow_tx.described import check_no_template
from airflow_tx.errors import TransactionDefinitionError, TxError
from airflow_tx.operators.begin import BeginTransactionOperator
from airflow_tx.operators.commit import note_commit_failure
from airflow_tx.operators.commit_phase import AcquireTurnOperator, hook_up_inside
from airflow_tx.processing.task import hook_up
from airflow_tx.sources.api import Source
from airflow_tx.spec import TransactionSpec
from airflow_tx.topology.phase import phase_of
from airflow_tx.topology.rules import Block, check, refusal, with_alarms

if TYPE_CHECKING:
    from airflow.sdk.definitions.xcom_arg import XComArg
    from typing_extensions import Self

log = logging.getLogger(__name__)

_defined: dict[str, tuple[TransactionSpec, DAG]] = {}
"""The transactions that DAG files have defined in this process, and their DAGs, by topology."""


class Transaction:
    """Makes the tasks of a block one transaction per DAG run.

        with DAG("flights", schedule=None, max_active_runs=8):
            with Transaction(source=FileSource("data/flights/*.csv"), max_pending=4) as tx:
                CommitOperator(task_id="commit", updates=[persistent_aggregate(count(tx.batch), state=totals)])

    The block creates the task `begin` and puts it before every task of the block that has nothing else of the block
    before it. Tasks upstream of the CommitOperator must succeed for the transaction to commit; side branches need not.

    :param source: where the batches come from.
    :param topology: name of the transactions in the ledger and in `airflow tx`; default: the dag_id. Two DAGs cannot
        share one.
    :param max_pending: how many transactions may be open at once; default: `[tx] max_pending`.
    :param message_timeout: seconds from begin until all tasks have acked, after which the transaction counts as failed
        and may be replayed; default: `[tx] message_timeout`. The coordinator or a person replays it, never a task;
        but a committer that waits for messages fails then.
    :param zookeeper_conn_id: connection of the ledger; default: `[tx] zookeeper_conn_id`.
    :param root: znode that holds the topology; default: `[tx] root`.
    :param ackers: among how many ackers the trees of messages that its tasks emit are divided, see `docs/acks.md`; 0:
        nothing waits for them; default: its tasks emit none.
    :param acker_store: id of the connection, of type redis or zookeeper, of their store; default: the ledger's.
    :param on_blocked: a callback or notifier of Airflow, or a list of them, to be called once whenever it is blocked;
        the context has the `Alarm` as `alarm`, see `docs/alarms.md`.
    :param on_late: the same for when it is late.
    :param late_after: how long its oldest transaction may be open until it is late.
    :param max_lag: how far its source may be ahead, in the unit of `airflow tx list`, until it is late.
    :param journal: for how long a committed transaction can be restated, see `docs/journal.md`; timedelta(0): it never
        can; default: `[tx] journal`, in days.
    :param at_least_once: allow a source and a state that cannot give exactly once together.
    """

    def __init__(
        self,
        *,
        source: Source,
        topology: str | None = None,
        max_pending: int | None = None,
        message_timeout: float | None = None,
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
    ) -> None:
        """Take the source and the options; the block has the tasks."""
        texts = {"topology": topology, "zookeeper_conn_id": zookeeper_conn_id, "root": root}
        check_no_template("Transaction", {**texts, "acker_store": acker_store})
        self._dag = _current_dag(topology)
        self._at_least_once = at_least_once
        self._spec = TransactionSpec(
            topology=topology or self._dag.dag_id,
            dag_id=self._dag.dag_id,
            source=source,
            max_pending=max_pending,
            message_timeout=message_timeout,
            zookeeper_conn_id=zookeeper_conn_id,
            root=root,
            ackers=ackers,
            acker_store=acker_store,
            journal=journal,
        )
        _check_ackers(self._spec)
        _check_journal(self._spec)
        self._spec = with_alarms(self._spec, on_blocked, on_late, late_after, max_lag)
        self._before: frozenset[str] = frozenset()
        self._begin: BeginTransactionOperator | None = None

    @property
    def topology(self) -> str:
        return self._spec.topology

    @property
    def begin(self) -> BeginTransactionOperator:
        """The first task; it exists inside the block and after it."""
        if self._begin is None:
            raise refusal(self._spec, "it was not entered", "Write: with Transaction(...) as tx:")
        return self._begin

    @property
    def batch(self) -> XComArg:
        """The batch as plain JSON, for arguments of `@task` functions."""
        return self.begin.output

    def __enter__(self) -> Self:
        if any(isinstance(task, BeginTransactionOperator) for task in self._dag.tasks):
            raise refusal(
                self._spec,
                f"DAG {self._dag.dag_id} has one already",
                "One DAG run is one transaction.",
            )
        self._before = frozenset(self._dag.task_ids)
        try:
            self._begin = BeginTransactionOperator(task_id="begin", transaction=self._spec)
        except DuplicateTaskIdFound:
            raise refusal(
                self._spec,
                f"DAG {self._dag.dag_id} has a task 'begin' already, as the first task of the block is called",
                'Give yours another id, or put the block into a group: with TaskGroup("tx"), Transaction(...):',
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
            _window(self._spec),
            phase,
        )
        source = self._spec.source  # `check` refuses what is no source
        if isinstance(source, Source) and source.dated is not None:
            compat.give_intervals(self._dag)
        check(block)
        needed = block.gate.upstream_task_ids - {begin.task_id}
        # A committed run skips the other tasks. The committer still runs, so that tasks after it do.
        compat.run_after_skipped(block.gate)
        if begin.task_id not in block.gate.upstream_task_ids:
            begin.set_downstream(block.gate)
        self._bind(block, frozenset(needed))
        compat.replace_test(self._dag, _try_out)
        given = self._dag.on_failure_callback or []
        callbacks = given if isinstance(given, list) else [given]
        if callbacks:
            self._dag.on_failure_callback = [_UnlessYielded(self._spec, each) for each in callbacks]
        # A file that is parsed again replaces its own.
        _defined[self._spec.topology] = (begin.transaction, self._dag)

    def _bind(self, block: Block, needed: frozenset[str]) -> None:
        acking = [task for task in block.tasks if task.task_id in block.must_ack]
        for task in acking:
            hook_up(task)
        for task in block.tasks:
            compat.put_into_module(task, __name__)
        for task in block.phase.others if block.phase is not None else ():
            hook_up_inside(task)
        for task in block.committing:
            compat.add_hooks(task, failed=note_commit_failure)
        block.begin.transaction = replace(
            self._spec,
            begin=block.begin.task_id,
            tasks=tuple(sorted(task.task_id for task in acking)),
            mapped=frozenset(task.task_id for task in acking if compat.is_mapped(task)),
            inside=tuple(sorted(task.task_id for task in block.tasks)),
            ends=block.ends,
            needed=needed,
            phase=None if block.phase is None else block.phase.spec,
            stages=block.stages,
            committed=block.committed,
            tables=block.tables,
            zone=compat.zone_of(self._dag),
        )


def _try_out(*args: Any, **options: Any) -> Any:
    """Run the trial of a DAG. It is imported here, since most processes that parse a DAG file never try it out."""
    from airflow_tx.topology.trial import try_out

    return try_out(*args, **options)


@dataclass(frozen=True)
class _UnlessYielded:
    """Calls a failure callback of a DAG, but not for a run that has only made room for an earlier one."""

    spec: TransactionSpec
    callback: Callable[[Any], None]

    def __call__(self, context: Any) -> None:
        from airflow_tx.commit.run_slots import has_yielded

        try:
            with self.spec.store() as store:
                only_yielded = has_yielded(self.spec.ledger(store), context["run_id"])
        except TxError as error:
            log.warning("%s The callback of the DAG is called: its run may have failed.", error)
            only_yielded = False
        if not only_yielded:
            self.callback(context)


def _check_ackers(spec: TransactionSpec) -> None:
    if spec.ackers is not None and spec.ackers < 0:
        raise refusal(
            spec,
            f"ackers={spec.ackers}",
            "Give a number: 1, more for many messages, 0 to track none.",
        )
    if spec.acker_store is not None and spec.ackers is None:
        raise refusal(spec, "it has an acker_store and no ackers", "Write ackers=1 as well.")
    if "://" in (spec.acker_store or ""):
        raise refusal(
            spec,
            "acker_store is no connection id",
            "Define an Airflow connection: a URL would show its password.",
        )


def _check_journal(spec: TransactionSpec) -> None:
    found = spec.journal
    if found is not None and (not isinstance(found, timedelta) or found < timedelta(0)):
        remedy = "Give a timedelta: journal=timedelta(days=30); timedelta(0) keeps no journal."
        raise refusal(spec, f"journal={found!r}", remedy)


def _window(spec: TransactionSpec) -> int:
    return Settings.load().max_pending if spec.max_pending is None else spec.max_pending


def _current_dag(topology: str | None) -> DAG:
    dag: Any = DagContext.get_current()
    if dag is None:
        raise TransactionDefinitionError(
            topology=topology or "?",
            problem="it stands outside of a DAG",
            remedy="Write it inside `with DAG(...):`",
        )
    found: DAG = dag
    return found


def defined(topology: str) -> tuple[TransactionSpec, DAG]:
    """Return the transaction of a topology that a DAG file has defined in this process, and its DAG.

    :raises TransactionDefinitionError: no block of that name has ended yet.
    """
    found = _defined.get(topology)
    if found is None:
        raise TransactionDefinitionError(
            topology=topology,
            problem="coordinator_dag finds no such transaction in this file",
            remedy="Put coordinator_dag(...) after the DAG in its file, with the name of its topology.",
        )
    return found
