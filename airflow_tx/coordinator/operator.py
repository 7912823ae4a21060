"""The coordinator's task: it allocates transactions, creates their runs, replays what has failed.

Storm's MasterBatchCoordinator as a task that is killed and run again at any line: all begun work is in the
ledger, and the next look finds it. Two of them do no harm, for the ledger lets one of them do each thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from airflow_tx.config import Settings
from airflow_tx.errors import StoreError
from airflow_tx.spec import PlacedTask, TransactionSpec

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.coordinator.diagnosis import CoordinatorMemory
    from airflow_tx.coordinator.lane import NoLane
    from airflow_tx.coordinator.lane_plan import LanePlan
    from airflow_tx.coordinator.monitor import CoordinatorAlarms
    from airflow_tx.coordinator.worker import Pace
    from airflow_tx.store.zookeeper import ZooKeeperStore

# Every line of it may be killed and run again, and it runs for ever.
RETRIES = 100_000
# After so long without an event the coordinator reads the DAG file again, which may have changed.
REFRESH = 600.0
# A run that is older ends when there is nothing to do, so that the next one has the newest version of the DAG.
LONGEST_RUN = timedelta(days=1)


class CoordinateOperator(PlacedTask, BaseOperator):
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
        # default_args are not asked for what is given here.
        super().__init__(retries=RETRIES, retry_delay=timedelta(seconds=2), **kwargs)
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
                    hold = work.run()
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

    def _lane(self, store: ZooKeeperStore, ti: Any) -> NoLane:
        from airflow_tx.coordinator.lane import Lane, NoLane

        if self.lane is None:
            return NoLane()
        return Lane(self.lane, store, ti, self.log, patience=Settings.load().warm_wait)

    def _alarms(self, store: ZooKeeperStore, context: Context) -> CoordinatorAlarms:
        from airflow_tx.coordinator.blocked import blocked_dag_id
        from airflow_tx.coordinator.monitor import BlockedRun, CoordinatorAlarms, Monitor
        from airflow_tx.metrics import LAG_PATIENCE
        from airflow_tx.sources.api import rebuild

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
        from airflow_tx.coordinator.diagnosis import Rules
        from airflow_tx.coordinator.worker import Pace

        spec = self.transaction
        settings = Settings.load()
        rules = Rules(
            max_pending=spec.window,
            max_replays=_given(self.max_replays, settings.max_replays),
            backoff=_given(self.replay_backoff, settings.replay_backoff),
            message_timeout=_given(spec.message_timeout, settings.message_timeout),
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
    from airflow_tx.coordinator.diagnosis import CoordinatorMemory

    memory = CoordinatorMemory.from_json(event.get("memory"))
    # It pauses between two questions, maybe for longer than a task stays: what it has found is taken at once.
    return memory.answered(0.0) if "Allocate" in event.get("due", ()) else memory


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value
