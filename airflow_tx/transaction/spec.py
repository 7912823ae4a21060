"""The description of a transaction. The `Transaction` block creates it, and tasks read it from the task `begin`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_tx.base.compat import is_live, is_skipped_by, is_test_run, pull, task_states
from airflow_tx.base.config import Settings
from airflow_tx.base.errors import TransactionDefinitionError, TxError, UnscheduledTask
from airflow_tx.ledger import Begun, Paths, TopologyRequest
from airflow_tx.sources import Source
from airflow_tx.transaction.alarms import AlarmCallbacks, AlarmLimits, AlarmTopology, raise_due

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_tx.ledger import Ledger, Store, ZooKeeperStore
    from airflow_tx.outputs import AckerStore, StagingArea
    from airflow_tx.state import AppendTable, FencedState

log = logging.getLogger(__name__)

LEDGER_PLACE = "ledger_place"
"""The field of a serialized task that holds the location of its topology."""
WHY_NOT = "airflow_tx_why_not"
"""The XCom in which `begin` stores the reason why its last try got no transaction."""
COMMITTED = "committed"
"""The key in the XCom of `begin` that marks a transaction as already committed."""
COMMIT_KEY = "airflow_tx_commit"
"""The key of the `Commit` in the context of a committing task."""


@dataclass(frozen=True)
class PhaseSpec:
    """The commit phase of a block with several committers.

    :param acquire: task id of the first task.
    :param mark: task id of the last task.
    :param committers: ids of the CommitOperators, in the order of their dependencies.
    :param inside: ids of all tasks between the first and the last task.
    :param mapped: ids of the mapped tasks.
    """

    acquire: str
    mark: str
    committers: tuple[str, ...]
    inside: tuple[str, ...]
    mapped: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TransactionSpec:
    """The description of one `Transaction` block.

    :param max_pending: the maximum number of open transactions, or None for `[tx] max_pending`.
    :param message_timeout: the `processing_timeout` of the block in seconds, or None for `[tx] processing_timeout`. The
        field keeps the option's earlier name, since stored triggers contain it.
    :param zookeeper_conn_id: the connection of the ledger, or None for `[tx] zookeeper_conn_id`.
    :param root: the znode that holds the topology, or None for `[tx] root`.
    :param begin: task id of the first task.
    :param tasks: ids of the tasks that must ack, which are upstream of the committer.
    :param mapped: ids of the mapped tasks among `tasks`.
    :param inside: ids of all tasks of the block except `begin`.
    :param ends: ids of the tasks that the tasks after the block depend on. They are the committer, or the first and the
        last task of the commit phase.
    :param needed: ids of the direct upstream tasks of the committer or the phase. If Airflow skips such a task, it also
        skips the commit.
    :param phase: the commit phase, or None if the block has a single committer.
    :param stages: whether tasks of the block stage output.
    :param committed: ids of the tasks whose output a committer reads.
    :param tables: the tables that Spark applications write to, by task id and output name.
    :param ackers: the number of ackers that track messages. With 0, messages are not tracked. With None, the tasks
        cannot emit messages.
    :param acker_store: the id of the Airflow connection of the ackers' store, or None for the ledger's ZooKeeper.
    :param area: the staging area of task output, or None for the area that `[tx] staging` sets.
    :param journal: how long the journal keeps committed transactions, or None for `[tx] journal`.
    :param limits: the limits beyond which the topology is late.
    :param callbacks: the callbacks of a topology that is late, behind or blocked.
    :param zone: the time zone of the DAG's schedule. Days begin and end in this time zone. "" is UTC.
    :param rejected: the table of rejected rows, or None if tasks cannot reject rows.
    :param max_rejected: the maximum number of rows that a task may reject, or None for no limit. A number below 1 is a
        share of the batch. If a task rejects more rows, the commit is refused.
    :param appends: whether one of the states is a table, which other topologies can read.
    :param coordinated: whether a coordinator raises the alerts. Otherwise the tasks of the block raise them.
    """

    topology: str
    dag_id: str
    source: Source
    max_pending: int | None = None
    message_timeout: float | None = None
    zookeeper_conn_id: str | None = None
    root: str | None = None
    begin: str = "begin"
    tasks: tuple[str, ...] = ()
    mapped: frozenset[str] = frozenset()
    inside: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    needed: frozenset[str] = frozenset()
    phase: PhaseSpec | None = None
    stages: bool = False
    committed: frozenset[str] = frozenset()
    tables: Mapping[tuple[str, str], AppendTable] = field(default_factory=dict)
    ackers: int | None = None
    acker_store: str | None = None
    area: StagingArea | None = None
    journal: timedelta | None = None
    limits: AlarmLimits = field(default_factory=AlarmLimits)
    callbacks: AlarmCallbacks = field(default_factory=AlarmCallbacks)
    coordinated: bool = False
    zone: str = ""
    rejected: FencedState | None = None
    max_rejected: float | None = None
    appends: bool = False

    def __post_init__(self) -> None:
        if not self.topology.isprintable():
            raise TransactionDefinitionError(
                topology=self.topology,
                problem="its name has characters that cannot be printed",
                remedy="Use a name of letters, digits and dashes.",
            )

    @property
    def alarm_topology(self) -> AlarmTopology:
        return AlarmTopology(self.topology, self.dag_id, self.limits)

    def raise_own_alarms(self, context: Any, log: Any) -> None:
        """Raise the alerts of the topology from a task if no coordinator raises them.

        An error does not fail the task.
        """
        if self.coordinated or not self.callbacks.any:
            return
        try:
            with self.store() as store:
                ledger = self.ledger(store)
                raise_due(
                    self.alarm_topology, self.callbacks, self.source, ledger, context, log=log
                )
        except TxError as error:
            log.info(
                "The alerts of topology %s could not be checked; the next task checks them again: %s",
                self.topology,
                error,
            )

    @property
    def paths(self) -> Paths:
        return Paths(self.root or Settings.load().root, self.topology)

    @property
    def place(self) -> str:
        """Return the location of the topology as JSON text for the serialized DAG.

        "" as a value means the `[tx]` option.
        """
        place = {
            "topology": self.topology,
            "conn_id": self.zookeeper_conn_id or "",
            "root": self.root or "",
        }
        return json.dumps(place, sort_keys=True)

    @property
    def window(self) -> int:
        """Return the maximum number of open transactions."""
        return self.max_pending or Settings.load().max_pending

    @property
    def allocates(self) -> bool:
        """Return whether the coordinator may begin transactions. It may not if each run has a batch of its own."""
        return not self.source.per_run

    @property
    def request(self) -> TopologyRequest:
        return TopologyRequest(
            self.dag_id,
            self.source.kind.value,
            self.window,
            self.source.partitioned,
            self.zone,
            appends=self.appends,
            upstream=self.source.upstream,
        )

    @property
    def conn_id(self) -> str:
        return self.zookeeper_conn_id or Settings.load().zookeeper_conn_id

    @contextmanager
    def store(self) -> Iterator[ZooKeeperStore]:
        """Connect to the store of the ledger, until the `with` block ends.

        :raises AirflowFailException: `airflow tasks test` or `airflow dags test` runs the task.
        :raises ConfigError: the connection cannot be used.
        :raises StoreUnavailable: ZooKeeper cannot be reached.
        """
        from airflow_tx.hooks import ZooKeeperHook

        if is_test_run():
            from airflow.sdk.exceptions import AirflowFailException

            raise AirflowFailException(str(UnscheduledTask(dag_id=self.dag_id)))
        with ZooKeeperHook(self.conn_id).store() as store:
            yield store

    def ledger(self, store: Store) -> Ledger:
        from airflow_tx.ledger import Ledger

        return Ledger(store, self.paths, history=Settings.load().history)

    @property
    def timeout(self) -> float:
        """Return the longest time from begin until all tasks must have acked, in seconds."""
        return self.message_timeout or Settings.load().processing_timeout

    @cached_property
    def journal_time(self) -> timedelta:
        """Return how long a committed transaction can be restated. timedelta(0) means that it can never be restated."""
        return timedelta(days=Settings.load().journal) if self.journal is None else self.journal

    @property
    def requires_proof(self) -> bool:
        """Return whether a commit requires proof that its tasks have read all rows of the batch."""
        return Settings.load().require_rows == "proven"

    def open_ackers(self, store: Store) -> AbstractContextManager[AckerStore]:
        """Connect to the ackers, until the `with` block ends.

        :param store: the store of the ledger.
        :raises ConfigError: the connection cannot be used.
        :raises AckersUnavailable: the ackers' store cannot be reached.
        """
        from airflow_tx.outputs import ackers_of

        return ackers_of(self.acker_store, store, self.paths.root)

    def staging(self) -> StagingArea:
        """Return the staging area of the ledger.

        `of_topology` of this area is for output between processing and commit.
        """
        from airflow_tx.outputs import StagingArea

        return self.area or StagingArea.of_ledger(self.conn_id, self.paths.root)

    @property
    def named_source(self) -> Source:
        """Return the source, with the name of the topology set."""
        return self.source.named(self.topology)

    def source_of(self, incarnation: str) -> Source:
        """Return the source with the name of the topology. If the source stages rows, it also gets its staging folder.

        :param incarnation: the incarnation in the topology record.
        """
        source = self.named_source
        if source.stages:
            source.staging = self.staging().of_topology(incarnation).root
        return source


class PlacedTask:
    """A task whose serialized form contains the location of its topology. The Transactions page reads it.

    List this class before Airflow's base class.
    """

    transaction: TransactionSpec

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[misc]
        return fields | {LEDGER_PLACE}

    @property
    def ledger_place(self) -> str:
        """Return the location of the topology's ledger as JSON text."""
        return self.transaction.place


class HasTransaction(PlacedTask):
    """The task `begin`. The other tasks of a run read their transaction from it."""


class RunsApplication:
    """A task that runs the Spark application in its attribute `application`. List it before Airflow's base class."""


def coordinator_id(topology: str) -> str:
    """Return the default dag_id of a topology's coordinator."""
    return f"{topology}_coordinator"


def spec_of(dag: DAG) -> TransactionSpec:
    """Return the transaction of a DAG.

    :raises TransactionDefinitionError: the DAG has no transaction.
    """
    for task in dag.tasks:
        if isinstance(task, HasTransaction):
            return task.transaction
    raise TransactionDefinitionError(
        topology=dag.dag_id,
        problem="the DAG has no `begin`",
        remedy="Create its tasks inside `with Transaction(source=...):`",
    )


def is_beginning(ti: Any, spec: TransactionSpec) -> bool:
    """Return whether `begin` of the run is still running or waiting to run.

    After a clear, Airflow may start a later task before `begin` has ended.
    """
    return is_live(task_states(ti, [spec.begin]).get(spec.begin))


def put_back(ti: Any, why: str = "") -> NoReturn:
    """End the running task. Airflow starts it again after its upstream tasks, without counting a try.

    :param why: the log line that names the reason. By default, it says that the task waits for `begin` of its run.
    :raises AirflowRescheduleException: always.
    """
    from airflow.sdk.exceptions import AirflowRescheduleException

    begins = (
        f"Run {ti.run_id} begins again: Airflow starts this task again after `begin` has ended."
    )
    log.info("%s", why or begins)
    # If the task started sooner, Airflow would fail it, like a deferred task whose trigger fires
    # too early.
    at = datetime.now(timezone.utc) + timedelta(seconds=Settings.load().min_deferral)
    raise AirflowRescheduleException(at)  # type: ignore[no-untyped-call]


def begun_by(ti: Any, spec: TransactionSpec) -> Begun:
    """Return the transaction that `begin` of the run has stored for its tasks.

    :raises AirflowRescheduleException: `begin` was cleared, and has not ended yet.
    :raises AirflowSkipException: `begin` has skipped this task, which was already running.
    :raises AirflowFailException: `begin` stored nothing, since it did not run, or a user marked it as success.
    """
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    value = pull(ti, spec.begin)
    known = isinstance(value, dict)
    if not known and is_beginning(ti, spec):
        put_back(ti)
    if (not known or value.get(COMMITTED)) and is_skipped_by(ti, spec.begin):
        raise AirflowSkipException(f"Task {spec.begin} of run {ti.run_id} has skipped this task.")
    if not known:
        raise AirflowFailException(
            f"Run {ti.run_id} has no transaction yet. Clear task {spec.begin}, or the whole run."
        )
    return Begun.from_json(value)
