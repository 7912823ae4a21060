"""The description of a transaction for its tasks: made when the DAG file is parsed, found again through `begin`."""

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
"""The name under which a serialized DAG has the place of its topology."""
WHY_NOT = "airflow_tx_why_not"
"""The XCom in which `begin` says why its last try got no transaction."""
COMMITTED = "committed"
"""The key of the batch, as `begin` gives it to tasks, that says: the transaction was committed before."""
COMMIT_KEY = "airflow_tx_commit"
"""Where the context of a task that commits holds its `Commit`."""


@dataclass(frozen=True)
class PhaseSpec:
    """The commit phase of a block with several committers.

    :param acquire: task id of its first task; `mark` of its last one.
    :param committers: ids of its CommitOperators, each after the ones that it depends on.
    :param inside: ids of all tasks between the first and the last one.
    :param mapped: the ones that have map indexes.
    """

    acquire: str
    mark: str
    committers: tuple[str, ...]
    inside: tuple[str, ...]
    mapped: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TransactionSpec:
    """One `Transaction` block.

    :param max_pending: None: `[tx] max_pending`; likewise `zookeeper_conn_id` and `root`.
    :param message_timeout: `processing_timeout` of the block; None: `[tx] processing_timeout`. The rules that a
        trigger stores have the same earlier name.
    :param begin: task id of the first task.
    :param tasks: ids of the tasks that must ack: upstream of the committer.
    :param mapped: the ones that have map indexes.
    :param inside: ids of all tasks of the block but `begin`.
    :param ends: the ones that tasks after the block follow: the committer, or the first and the last task of the
        commit phase.
    :param needed: ids of the tasks right before the committer or the phase; if one is skipped, so is the commit.
    :param phase: its commit phase, if it has several committers.
    :param stages: whether output of its tasks is staged.
    :param committed: ids of the tasks whose output a committer takes.
    :param tables: the tables that applications write into, by task id and name of the output.
    :param ackers: among how many ackers the trees of its messages are divided; 0: they are not tracked; None: it has
        no messages.
    :param acker_store: the id of the Airflow connection of their store; None: the ledger's ZooKeeper.
    :param area: where the output of its tasks is staged; None: where `[tx] staging` says.
    :param journal: for how long the journal keeps its transactions; None: `[tx] journal`.
    :param limits: when it is late; `callbacks`: who is called then, and when it is blocked.
    :param zone: the time zone of the DAG's schedule, in which a date is a day; "" is UTC.
    :param rejected: the table of the rows that its tasks reject; None: they can reject none.
    :param max_rejected: a share of the batch below 1, or a number of rows: of more rejected rows a task, the commit is
        refused; None: it never is.
    :param appends: whether one of its states is a table, which other topologies can read.
    :param coordinated: whether a coordinator looks after it; else its own tasks find its alarms.
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
                problem="its name has characters that no page and no terminal shows",
                remedy="Give it another name, of letters, digits and dashes.",
            )

    @property
    def alarm_topology(self) -> AlarmTopology:
        return AlarmTopology(self.topology, self.dag_id, self.limits)

    def raise_own_alarms(self, context: Any, log: Any) -> None:
        """Raise the alarms of the topology from one of its tasks, where no coordinator does. It fails nothing."""
        if self.coordinated or not self.callbacks.any:
            return
        try:
            with self.store() as store:
                ledger = self.ledger(store)
                raise_due(
                    self.alarm_topology, self.callbacks, self.source, ledger, context, log=log
                )
        except TxError as error:
            log.info("Alarms of topology %s are left to the next task: %s", self.topology, error)

    @property
    def paths(self) -> Paths:
        return Paths(self.root or Settings.load().root, self.topology)

    @property
    def place(self) -> str:
        """Give the place of its topology, as JSON: a serialized DAG keeps texts alone; "" is the place in `[tx]`."""
        place = {
            "topology": self.topology,
            "conn_id": self.zookeeper_conn_id or "",
            "root": self.root or "",
        }
        return json.dumps(place, sort_keys=True)

    @property
    def window(self) -> int:
        """How many of its transactions may be open at once."""
        return self.max_pending or Settings.load().max_pending

    @property
    def allocates(self) -> bool:
        """Whether its coordinator may begin transactions: not if each run has its own batch."""
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
        """Connect the store of its ledger as long as the block.

        :raises AirflowFailException: the task is executed by `airflow tasks test` or `airflow dags test`.
        :raises ConfigError, StoreUnavailable: there is none.
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
        """Seconds from begin until everything must be processed."""
        return self.message_timeout or Settings.load().processing_timeout

    @cached_property
    def journal_time(self) -> timedelta:
        """Say how long a committed transaction can be restated; 0: it never can."""
        return timedelta(days=Settings.load().journal) if self.journal is None else self.journal

    @property
    def requires_proof(self) -> bool:
        """Whether a commit of rows that are not proven is refused."""
        return Settings.load().require_rows == "proven"

    def open_ackers(self, store: Store) -> AbstractContextManager[AckerStore]:
        """Connect to its ackers as long as the block.

        :param store: of its ledger.
        :raises ConfigError, AckersUnavailable: there are none.
        """
        from airflow_tx.outputs import ackers_of

        return ackers_of(self.acker_store, store, self.paths.root)

    def staging(self) -> StagingArea:
        """The staging area of its ledger: `of_topology` has the output of its tasks between processing and commit."""
        from airflow_tx.outputs import StagingArea

        return self.area or StagingArea.of_ledger(self.conn_id, self.paths.root)

    @property
    def named_source(self) -> Source:
        """Its source, which knows whose rows it decides."""
        return self.source.named(self.topology)

    def source_of(self, incarnation: str) -> Source:
        """Its source, which knows where it stages rows, too, if it does.

        :param incarnation: of the topology, as its record has it.
        """
        source = self.named_source
        if source.stages:
            source.staging = self.staging().of_topology(incarnation).root
        return source


class PlacedTask:
    """A task whose serialized form has the place of its topology, for the board; put it before Airflow's base."""

    transaction: TransactionSpec

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[misc]
        return fields | {LEDGER_PLACE}

    @property
    def ledger_place(self) -> str:
        """The place of its topology."""
        return self.transaction.place


class HasTransaction(PlacedTask):
    """The task by which the other tasks of a run find their transaction: `begin`."""


class RunsApplication:
    """A task that runs a Spark application, which it keeps as `application`; put it before Airflow's base."""


def coordinator_id(topology: str) -> str:
    """Name the DAG that coordinates a topology, unless `coordinator_dag` is given another name."""
    return f"{topology}_coordinator"


def spec_of(dag: DAG) -> TransactionSpec:
    """Return the transaction of a DAG.

    :raises TransactionDefinitionError: it has none.
    """
    for task in dag.tasks:
        if isinstance(task, HasTransaction):
            return task.transaction
    raise TransactionDefinitionError(
        topology=dag.dag_id,
        problem="the DAG has no `begin`",
        remedy="Make its tasks inside `with Transaction(source=...):`",
    )


def is_beginning(ti: Any, spec: TransactionSpec) -> bool:
    """Whether `begin` of the run is still to end: a clear may let Airflow start a task of the run beside it."""
    return is_live(task_states(ti, [spec.begin]).get(spec.begin))


def put_back(ti: Any, why: str = "") -> NoReturn:
    """End the running task so that Airflow starts it again once the tasks before it have ended; no try is counted.

    :param why: what it waits for; "": `begin` of its run.
    :raises AirflowRescheduleException: always.
    """
    from airflow.sdk.exceptions import AirflowRescheduleException

    begins = (
        f"Run {ti.run_id} begins again: Airflow starts this task once more when `begin` has ended."
    )
    log.info("%s", why or begins)
    # Scheduled again sooner, it would be failed like a deferred task that is woken too soon.
    at = datetime.now(timezone.utc) + timedelta(seconds=Settings.load().min_deferral)
    raise AirflowRescheduleException(at)  # type: ignore[no-untyped-call]


def begun_by(ti: Any, spec: TransactionSpec) -> Begun:
    """Read what `begin` of the run has said to its tasks.

    :raises AirflowRescheduleException: it is cleared, and has not said anything yet.
    :raises AirflowSkipException: it has skipped this task, which was already running.
    :raises AirflowFailException: it said nothing: it did not run, or was marked success by hand.
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
