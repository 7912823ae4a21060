"""`coordinator_dag`: the DAG that starts the runs of another one, and replays them, without a person."""

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
# The coordinator's task: it allocates transactions, creates their runs, replays what has failed.
#
# Storm's MasterBatchCoordinator as a task that is killed and run again at any line. All begun work is in the ledger,
# and the next look finds it. Two of them do no harm, for the ledger lets one of them do each thing.


# Every line of it may be killed and run again, and it runs for ever.
RETRIES = 100_000
# After so long without an event the coordinator reads the DAG file again, which may have changed.
REFRESH = 600.0
# A run that is older ends when there is nothing to do, so that the next one has the newest version of the DAG.
LONGEST_RUN = timedelta(days=1)


class CoordinateOperator(PlacedTask, RetriedOperator):
    """Starts a topology's transactions when its source has data, and replays them; made by `coordinator_dag`.

    :param transaction: the block whose runs it starts.
    :param max_replays: default: `[tx] max_replays`; and so on.
    :param lane: how it works on transactions itself; None: each becomes a run.
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
        """Called when there is something to do."""
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
            # Its trigger waits until the ledger can be read again.
            self.log.warning("%s The coordinator continues as soon as it can be read.", error)
        if event["refresh"] and self._is_old(context):
            self.log.info(
                "The coordinator continues in a new run, which has the newest version of its DAG"
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
    """Take over what a trigger knew that has fired."""
    from airflow_tx.coordinator.plan import CoordinatorMemory

    memory = CoordinatorMemory.from_json(event.get("memory"))
    # It pauses between two questions, maybe for longer than a task stays: what it has found is taken at once.
    return memory.answered(0.0) if "Allocate" in event.get("due", ()) else memory


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


# --- dag ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

# @continuous wants one; any in the past does.
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
    """Make the DAG `<topology>_coordinator`, whose one task runs for ever, and one that is red while it is blocked.

        with DAG("flights", schedule=None, max_active_runs=8):
            with Transaction(source=FileSource("data/flights/*.csv"), max_pending=4):
                ...

        coordinator_dag("flights")

    It starts a run for each batch as soon as the source has one and `max_pending` allows. It replays a transaction
    whose run failed, was deleted, takes longer than `processing_timeout`, or starts where the one before it does not
    end any more; after `max_replays` in a row it marks the topology as blocked and says why. Manually triggered and
    scheduled runs still work next to it. Of a source whose batch is the run's own it only replays, unless it has a
    lane: that takes the data intervals of the schedule one after the other, with ``DataIntervalSource(in_order=True)``.

    :param transaction: name of the topology, whose DAG stands above in the same file; or its `Transaction`.
    :param dag_id: default: `<topology>_coordinator`. The other DAG is called `<dag_id>_blocked`: a run of it fails when
        the topology is blocked, and is green once the way is free, see `docs/alarms.md`.
    :param max_replays: how many automatic replays in a row; default: `[tx] max_replays`.
    :param replay_backoff: seconds before the first replay; default: `[tx] replay_backoff`.
    :param poll: seconds between two looks; default: `[tx] coordinator_poll`.
    :param linger: seconds that it stays in its worker after it did something; default: `[tx] coordinator_linger`.
    :param lane: whether it processes and commits transactions itself, in its own worker, and makes runs of those alone
        that go wrong there, see `docs/lane.md`; default: `[tx] lane`. Where a task needs a run, all of them are runs.
    :param dag_options: of the DAG, such as `tags` or `default_args`.
    :raises TransactionDefinitionError: there is no such transaction above, or it can do nothing about a correction of
        its upstream topology.
    """
    spec, of = defined(
        transaction.topology if isinstance(transaction, Transaction) else transaction
    )
    if spec.allocates and (found := compat.why_not_started(of)):
        raise TransactionDefinitionError(
            topology=spec.topology,
            problem=f"its coordinator can start no run: {found[0]}",
            remedy=f"{found[1]}, or leave coordinator_dag out and start each run by hand.",
        )
    _check_corrections(spec, of)
    spec = replace(spec, coordinated=True)
    begin: Any = of.get_task(spec.begin)
    begin.transaction = spec
    plan, note = _plan(spec, of, Settings.load().lane if lane is None else lane)
    spec = spec if plan is None else plan.spec
    does = "Starts and replays" if spec.allocates else "Replays, but does not start,"
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
    """Ask whether the process that reads this file needs a DAG or its coordinator, by Airflow's `get_parsing_context`.

        for shop in shops:
            if dag_is_needed(shop):
                make_dag(shop)
                coordinator_dag(shop)

    The task of a coordinator needs both DAGs, but `get_parsing_context` names its own alone.

    :param dag_id: of the DAG with the transaction.
    :param topology: default: the dag_id.
    :param coordinator: the `dag_id` of `coordinator_dag`; default: as there.
    """
    name = coordinator or coordinator_id(topology or dag_id)
    return get_parsing_context().dag_id in (None, dag_id, name, blocked_dag_id(name))


def _check_corrections(spec: TransactionSpec, dag: DAG) -> None:
    """Refuse a block that is to be restated after corrections upstream, and never can be."""
    source = spec.source
    if not source.upstream or source.on_correction != "restate":
        return
    from airflow_tx.transaction import never_restated

    if problem := never_restated(spec, dag):
        raise TransactionDefinitionError(
            topology=spec.topology,
            problem=f"corrections of {source.upstream!r} restate its transactions, and {problem}",
            remedy='Give its source on_correction="report": then lists, the page and an alert name corrections.',
        )


def _plan(spec: TransactionSpec, dag: DAG, wanted: bool) -> tuple[LanePlan | None, str]:
    """Give the plan of a lane; without one, the note that says why."""
    if not wanted:
        return None, ""
    try:
        return lane_plan(spec, dag), ", undisturbed ones in its lane"
    except GoesByRuns as error:
        log.warning("%s", error)
        return None, f". {error}"
