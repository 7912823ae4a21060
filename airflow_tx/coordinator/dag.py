"""`coordinator_dag`: the DAG that automatically starts and replays the runs of another DAG."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import DAG, get_parsing_context

from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.base.errors import StoreError, TransactionDefinitionError
from airflow_tx.coordinator.blocked import BlockedOperator, blocked_dag_id
from airflow_tx.coordinator.lane_plan import GoesByRuns, LanePlan, lane_plan
from airflow_tx.operators import RetriedOperator, Transaction, defined
from airflow_tx.transaction import LAG_PATIENCE, PlacedTask, TransactionSpec, coordinator_id

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.coordinator.lane import AnyLane
    from airflow_tx.coordinator.monitor import CoordinatorAlarms
    from airflow_tx.coordinator.plan import CoordinatorMemory
    from airflow_tx.coordinator.worker import Pace
    from airflow_tx.ledger import ZooKeeperStore


# --- operator -----------------------------------------------------------------------------------------------------
# The coordinator's task allocates transactions, creates their runs and replays failed runs. It is
# Storm's MasterBatchCoordinator as an Airflow task. You may kill the task at any line: all begun
# work is in the ledger, and the retry finds it there. Two coordinators of a topology cause no
# error, since the ledger accepts each step once.


# The task has no end, and each kill counts as a retry.
RETRIES = 100_000
# The seconds without an event after which the coordinator reads the DAG file again, since it may
# have changed.
REFRESH = 600.0
# The older run ends when no action is due. The next run has the newest version of the DAG.
LONGEST_RUN = timedelta(days=1)


class CoordinateOperator(PlacedTask, RetriedOperator):
    """Starts the transactions of a topology when its source has data, and replays them. `coordinator_dag` creates it.

    :param transaction: the block whose runs the operator starts.
    :param max_replays: the number of automatic replays in a row; default: `[tx] max_replays`.
    :param replay_backoff: seconds before the first replay; default: `[tx] replay_backoff`.
    :param poll: seconds between two readings of ledger and source; default: `[tx] coordinator_poll`.
    :param linger: seconds that an idle coordinator waits before it defers; default: `[tx] coordinator_linger`.
    :param lane: the plan of the coordinator's lane. If it is None, each transaction becomes a run.
    """

    template_fields: Sequence[str] = ()
    ui_color = "#fdebd0"

    def __init__(
        self,
        *,
        transaction: TransactionSpec,
        max_replays: int | None = None,
        replay_backoff: float | None = None,
        poll: float | None = None,
        linger: float | None = None,
        lane: LanePlan | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=RETRIES, **kwargs)
        self.transaction = transaction
        self.max_replays = max_replays
        self.replay_backoff = replay_backoff
        self.poll = poll
        self.linger = linger
        self.lane = lane

    def execute(self, context: Context) -> None:
        self.go_on(context)

    def go_on(self, context: Context, event: dict[str, Any] | None = None) -> None:
        """Work until no action is due, and then defer. Airflow calls this method again when the trigger fires."""
        from airflow_tx.coordinator.worker import Coordination

        event = {"refresh": False, **(event or {})}
        memory = known(event)
        pace = self._pace()
        hold = 0.0
        try:
            with self.transaction.store() as store:
                lane = self._lane(store, context["ti"])
                alarms = self._alarms(store, context)
                work = Coordination(
                    self.transaction,
                    pace,
                    store,
                    context["ti"],
                    self.log,
                    memory=memory,
                    lane=lane,
                    alarms=alarms,
                )
                with lane.opened():
                    hold = work.work_until_idle()
                memory = work.memory
                event["refresh"] |= lane.is_over
        except StoreError as error:
            # The trigger waits until the ledger can be read again.
            self.log.warning(
                "%s The coordinator continues as soon as it can read the ledger.", error
            )
        if event["refresh"] and self._is_old(context):
            self.log.info(
                "The coordinator continues in a new run, which uses the newest version of its DAG"
            )
            return
        self._defer(pace, memory, max(hold, pace.hold))

    def _lane(self, store: ZooKeeperStore, ti: Any) -> AnyLane:
        from airflow_tx.coordinator.lane import Lane, NoLane

        if self.lane is None:
            return NoLane()
        return Lane(self.lane, store, ti, self.log, patience=Settings.load().warm_wait)

    def _alarms(self, store: ZooKeeperStore, context: Context) -> CoordinatorAlarms:
        from airflow_tx.coordinator.monitor import BlockedRun, CoordinatorAlarms, Monitor
        from airflow_tx.sources import rebuild

        spec = self.transaction
        source = (lambda: rebuild(*spec.source.serialize())) if spec.allocates else None
        ackers = spec.open_ackers if spec.ackers else None
        monitor = Monitor(
            spec.alarm_topology, spec.paths, source, ackers=ackers, patience=LAG_PATIENCE
        )
        run = BlockedRun(blocked_dag_id(self.dag_id))
        return CoordinatorAlarms(
            spec, monitor, spec.ledger(store), run, context=context, log=self.log
        )

    def _pace(self) -> Pace:
        from airflow_tx.coordinator.plan import Rules
        from airflow_tx.coordinator.worker import Pace

        spec = self.transaction
        settings = Settings.load()
        rules = Rules(
            max_pending=spec.window,
            max_replays=_given(self.max_replays, settings.max_replays),
            backoff=_given(self.replay_backoff, settings.replay_backoff),
            message_timeout=_given(spec.message_timeout, settings.processing_timeout),
            lane=self.lane is not None,
        )
        poll = _given(self.poll, settings.coordinator_poll)
        linger = _given(self.linger, settings.coordinator_linger)
        return Pace(rules, poll, linger, settings.min_deferral)

    def _is_old(self, context: Context) -> bool:
        began = context["dag_run"].start_date
        return began is not None and datetime.now(timezone.utc) - began > LONGEST_RUN

    def _defer(self, pace: Pace, memory: CoordinatorMemory, hold: float) -> NoReturn:
        from airflow_tx.coordinator.trigger import CoordinatorTrigger
        from airflow_tx.coordinator.worker import shows

        spec = self.transaction
        trigger = CoordinatorTrigger(
            zookeeper_conn_id=spec.conn_id,
            root=spec.paths.root,
            topology=spec.topology,
            dag_id=spec.dag_id,
            source=list(spec.source.serialize()) if spec.allocates else None,
            rules=asdict(pace.rules),
            memory=memory.to_json(),
            hold=hold,
            poll=pace.poll,
            refresh=REFRESH,
            shows=shows(spec),
            limits=asdict(spec.limits),
            messages=bool(spec.ackers),
            acker_store=spec.acker_store,
        )
        self.defer(trigger=trigger, method_name="go_on")


def known(event: Mapping[str, Any]) -> CoordinatorMemory:
    """Return the memory of the coordinator from the event of its trigger."""
    from airflow_tx.coordinator.plan import CoordinatorMemory

    memory = CoordinatorMemory.from_json(event.get("memory"))
    # The trigger has found rows. Without this call, the task would wait until the next query of the
    # source, and could defer before that.
    return memory.answered(0.0) if "Allocate" in event.get("due", ()) else memory


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


# --- dag ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

# Airflow requires a start date for @continuous, which can be any date in the past.
_EVER = datetime(2024, 1, 1, tzinfo=timezone.utc)


def coordinator_dag(
    transaction: str | Transaction,
    *,
    dag_id: str | None = None,
    max_replays: int | None = None,
    replay_backoff: float | None = None,
    poll: float | None = None,
    linger: float | None = None,
    lane: bool | None = None,
    **dag_options: Any,
) -> DAG:
    """Create the DAG `<topology>_coordinator`, and a second DAG that fails while the topology is blocked.

        with DAG("flights", schedule=None, max_active_runs=8):
            with Transaction(source=FileSource("data/flights/*.csv"), max_pending=4):
                ...

        coordinator_dag("flights")

    The coordinator has one task, which runs all the time. The task starts a run when the source has a batch and
    `max_pending` allows another transaction. It replays a transaction in these cases:

    * its run failed or was deleted
    * its processing takes longer than `processing_timeout`
    * its batch no longer begins where the previous transaction ends

    After `max_replays` replays in a row, the coordinator marks the topology as blocked and logs the reason. You can
    still trigger or schedule runs of the DAG. If each run of the DAG has its own batch, the coordinator only replays
    runs. With ``DataIntervalSource(in_order=True)`` and a lane, it also processes the data intervals of the schedule.

    :param transaction: the `Transaction`, or the name of a topology whose DAG the same file defines above.
    :param dag_id: default: `<topology>_coordinator`. The second DAG is `<dag_id>_blocked`: its run fails when the
        topology is blocked, and succeeds once the topology can continue, see `docs/alarms.md`.
    :param max_replays: the number of automatic replays in a row; default: `[tx] max_replays`.
    :param replay_backoff: seconds before the first replay; default: `[tx] replay_backoff`.
    :param poll: seconds between two readings of ledger and source; default: `[tx] coordinator_poll`.
    :param linger: seconds that an idle coordinator stays in its worker; default: `[tx] coordinator_linger`.
    :param lane: whether the coordinator processes and commits transactions in its own worker; default: `[tx] lane`. A
        transaction that fails there becomes a run, see `docs/lane.md`. If a task needs a run, the DAG has no lane.
    :param dag_options: options of both DAGs, such as `tags` or `default_args`.
    :raises TransactionDefinitionError: the file defines no such transaction above. Or its runs cannot be started, or
        cannot be restated after a correction of the upstream topology.
    """
    spec, of = defined(
        transaction.topology if isinstance(transaction, Transaction) else transaction
    )
    if spec.allocates and (found := compat.why_not_started(of)):
        raise TransactionDefinitionError(
            topology=spec.topology,
            problem=f"its coordinator cannot start a run: {found[0]}",
            remedy=f"{found[1]}, or leave coordinator_dag out and start each run by hand.",
        )
    _check_corrections(spec, of)
    spec = replace(spec, coordinated=True)
    begin: Any = of.get_task(spec.begin)
    begin.transaction = spec
    plan, note = _plan(spec, of, Settings.load().lane if lane is None else lane)
    spec = spec if plan is None else plan.spec
    does = "Starts and replays" if spec.allocates else "Replays, but does not start"
    options: dict[str, Any] = {
        "start_date": _EVER,
        "description": f"{does} the transactions of {spec.topology}{note}",
        **dag_options,
        "schedule": "@continuous",
        "max_active_runs": 1,
        "catchup": False,
    }
    options.setdefault("is_paused_upon_creation", False)
    name = dag_id or coordinator_id(spec.topology)
    with DAG(name, **options) as dag:
        CoordinateOperator(
            task_id="coordinate",
            transaction=spec,
            max_replays=max_replays,
            replay_backoff=replay_backoff,
            poll=poll,
            linger=linger,
            lane=plan,
        )
    description = f"Fails while {spec.topology} is blocked; {name} starts its runs"
    shown = {"schedule": None, "description": description, "is_paused_upon_creation": False}
    with DAG(blocked_dag_id(name), **{**options, **shown}):
        BlockedOperator(task_id="blocked", transaction=spec)
    return dag


def dag_is_needed(
    dag_id: str, *, topology: str | None = None, coordinator: str | None = None
) -> bool:
    """Return whether the process that parses this file needs a DAG or its coordinator.

        for shop in shops:
            if dag_is_needed(shop):
                make_dag(shop)
                coordinator_dag(shop)

    Airflow's `get_parsing_context` names one DAG, but a coordinator's task needs its own DAG and the DAG of the runs.

    :param dag_id: the DAG with the transaction.
    :param topology: the name of the topology; default: the dag_id.
    :param coordinator: the dag_id of the coordinator; default: `<topology>_coordinator`.
    """
    name = coordinator or coordinator_id(topology or dag_id)
    return get_parsing_context().dag_id in (None, dag_id, name, blocked_dag_id(name))


def _check_corrections(spec: TransactionSpec, dag: DAG) -> None:
    """Refuse a block whose source requests restatements after corrections, but whose runs cannot be restated."""
    source = spec.source
    if not source.upstream or source.on_correction != "restate":
        return
    from airflow_tx.transaction import never_restated

    if problem := never_restated(spec, dag):
        raise TransactionDefinitionError(
            topology=spec.topology,
            problem=f"a correction of {source.upstream!r} must restate its transactions, but {problem}",
            remedy='Give its source on_correction="report". '
            "Then the lists, the Transactions page and an alert name the corrections.",
        )


def _plan(spec: TransactionSpec, dag: DAG, wanted: bool) -> tuple[LanePlan | None, str]:
    """Return the plan of the lane, or None if the DAG has no lane, and a note for the DAG's description."""
    if not wanted:
        return None, ""
    try:
        return lane_plan(spec, dag), ", and processes undisturbed ones in its lane"
    except GoesByRuns as error:
        log.warning("%s", error)
        return None, f". {error}"
