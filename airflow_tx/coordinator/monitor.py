"""The metrics and the alerts of the coordinator's topology."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from airflow_tx.base import compat
from airflow_tx.base.errors import TxError
from airflow_tx.coordinator.plan import LedgerSnapshot
from airflow_tx.ledger import (
    AlarmNote,
    Ledger,
    NotedCorrections,
    Paths,
    ReadOnlyLedger,
    Store,
    noted_corrections,
)
from airflow_tx.outputs import AckerStore, AckerWatch
from airflow_tx.sources import Lag, LagWatch, Source
from airflow_tx.transaction import (
    GAUGES_EVERY,
    Alarm,
    AlarmChange,
    AlarmKind,
    AlarmTopology,
    Cadence,
    Metric,
    TransactionSpec,
    certain,
    changes,
    raise_alarm,
    send_acker_load,
    send_behind,
    send_open,
)

log = logging.getLogger(__name__)

ConnectAckers: TypeAlias = "Callable[[Store], AbstractContextManager[AckerStore]]"


class Monitor:
    """Sends the metrics of a topology, and finds the alerts that have changed, at each reading of the ledger.

    :param source: a function that creates the source of the topology, or None if the topology has no lag.
    :param ackers: a function that connects to the ackers of the topology, or None if its tasks emit no messages.
    :param patience: the longest wait for the first lag in seconds, if an alert depends on the lag.
    """

    def __init__(
        self,
        topology: AlarmTopology,
        paths: Paths,
        source: Callable[[], Source] | None,
        *,
        ackers: ConnectAckers | None = None,
        patience: float = 0.0,
    ) -> None:
        self._topology = topology
        self._paths = paths
        self._gauges = Cadence(GAUGES_EVERY)
        self._ackers = ackers
        self._acker_watch = AckerWatch(topology.name)
        waits = topology.limits.max_lag is not None
        asks = source is not None and (waits or compat.sends_metrics())
        self._lags = (
            LagWatch(topology.name, source, patience=patience * waits) if source and asks else None
        )

    def observe(self, store: Store, look: LedgerSnapshot) -> list[AlarmChange]:
        """Send the metrics that are due. Return the alerts to raise and those to end."""
        if not look.exists:
            return []
        lag = self._lag(store)
        blocked = look.topology.blocked
        ledger = ReadOnlyLedger(store, self._paths)
        behind = self._behind(ledger, look)
        found = self._topology.find(
            look.opened, blocked=blocked, now=look.now, lag=lag, behind=behind
        )
        if self._gauges.is_due():
            is_blocked = any(alarm.kind is AlarmKind.BLOCKED for alarm in found)
            send_open(self._paths, look.opened, blocked=is_blocked, now=look.now)
            if lag is not None:
                Metric.LAG.send(self._paths, lag.count, unit=lag.unit)
            self._send_acker_load(store, look)
            if look.topology.upstream:
                send_behind(ledger, behind)
        due = changes(found, ledger.raised_alarms())
        return certain(due, self._topology.limits, lag)

    @staticmethod
    def _behind(ledger: ReadOnlyLedger, look: LedgerSnapshot) -> Sequence[NotedCorrections]:
        if not look.topology.upstream:
            return ()
        return noted_corrections(ledger, ledger.noted_behind())

    def _send_acker_load(self, store: Store, look: LedgerSnapshot) -> None:
        """Send the load that the ackers returned last, and query them again."""
        if self._ackers is None or not compat.sends_metrics():
            return
        watch = self._acker_watch
        if watch.wait(0.0):
            if watch.error is not None:
                log.info(
                    "Metrics of the ackers of topology %s are missing: %s",
                    self._topology.name,
                    watch.error,
                )
            elif watch.answer is not None:
                send_acker_load(self._paths, watch.answer)
        incarnation = look.topology.incarnation
        watch.ask_ackers(partial(self._ackers, store), look.opened, incarnation)

    def _lag(self, store: Store) -> Lag | None:
        if self._lags is None:
            return None
        try:
            return self._lags.latest(lambda: ReadOnlyLedger(store, self._paths).position())
        except TxError:  # The turn moved during the reading.
            return None


@dataclass(frozen=True)
class BlockedRun:
    """A run that fails while its topology is blocked. Airflow's home page counts this failure.

    :param dag_id: the DAG whose task fails while the topology is blocked.
    """

    dag_id: str

    def start(self, alarm: Alarm) -> AlarmNote:
        """Start the run, and return its note, which `end` needs."""
        run_id = f"blocked-{alarm.of}"
        compat.start_run(self.dag_id, run_id, conf={"of": alarm.of}, dated=True)
        return AlarmNote(alarm.of, dag_id=self.dag_id, run_id=run_id)

    @staticmethod
    def end(note: AlarmNote) -> None:
        """Clear the run. It now succeeds, since the topology is no longer blocked."""
        if note.run_id:
            compat.start_run(note.dag_id, note.run_id, reset=True)


class CoordinatorAlarms:
    """Raises the alerts of a topology in the worker of the coordinator.

    :param context: the context of the coordinator's task.
    """

    def __init__(
        self,
        spec: TransactionSpec,
        monitor: Monitor,
        ledger: Ledger,
        run: BlockedRun,
        *,
        context: Any,
        log: Any,
    ) -> None:
        self._spec = spec
        self._monitor = monitor
        self._ledger = ledger
        self._run = run
        self._context = context
        self._log = log

    def step(self, look: LedgerSnapshot) -> None:
        """Raise the alerts that are due, and end the alerts whose cause is gone."""
        for change in self._monitor.observe(self._ledger.store, look):
            # Change the run first, since repeating this is safe. If the process is killed between
            # the two steps, another process clears a failed run.
            shown = self._show(change)
            raise_alarm(
                self._spec.callbacks, self._ledger, change, self._context, self._log, shown=shown
            )
            if shown:
                self._give_way(change.kind, shown)

    def _give_way(self, kind: AlarmKind, shown: AlarmNote) -> None:
        """Clear the run that this coordinator has started, if the ledger names the run of another coordinator."""
        noted = self._ledger.raised_alarms().get(kind.value, shown)
        if noted.dag_id not in ("", shown.dag_id):
            self._run.end(shown)

    def _show(self, change: AlarmChange) -> AlarmNote | None:
        if change.kind is not AlarmKind.BLOCKED:
            return None
        try:
            if change.note is not None:
                self._run.end(change.note)
            return None if change.alarm is None else self._run.start(change.alarm)
        except compat.RunNotStarted as error:
            self._log.warning("%s", error)
            return None
