"""The metrics of a topology. Airflow sends them if its metrics are configured. A metric never fails a task.

If a value is unknown, the log explains why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any

from airflow_tx.base import compat
from airflow_tx.base.compat import MetricKind
from airflow_tx.base.errors import TxError
from airflow_tx.ledger import (
    FailureNoted,
    Paths,
    Phase,
    rejected_of,
)

if TYPE_CHECKING:
    from airflow_tx.ledger import (
        AlreadyCommitted,
        Ledger,
        NotedCorrections,
        ReadOnlyLedger,
        TransactionRecord,
    )
    from airflow_tx.outputs import AckerLoad
    from airflow_tx.sources import Lag, LagUnknown, Source

log = logging.getLogger(__name__)

LAG_PATIENCE = 5.0
"""The longest time that a task waits for the lag of its source, in seconds."""
GAUGES_EVERY = 10.0
"""The interval at which a coordinator sends the metrics of open transactions, in seconds."""


class Metric(Enum):
    """The metrics `airflow_tx.<name>`, with the tags `topology` and `root`; see docs/metrics.md."""

    OPEN = "open", MetricKind.GAUGE
    WAITING = "waiting", MetricKind.GAUGE
    OLDEST = "oldest_seconds", MetricKind.GAUGE
    BLOCKED = "blocked", MetricKind.GAUGE
    LAG = "lag", MetricKind.GAUGE
    TREES = "open_trees", MetricKind.GAUGE
    ACKS = "acks_per_second", MetricKind.GAUGE
    BEHIND = "behind", MetricKind.GAUGE
    LEFT = "corrections_left", MetricKind.GAUGE
    COMMITTED = "committed", MetricKind.COUNTER
    ROWS = "rows", MetricKind.COUNTER
    REJECTED = "rejected_rows", MetricKind.COUNTER
    RESTATED = "restated", MetricKind.COUNTER
    FAILED = "failed", MetricKind.COUNTER
    REPLAYED = "replayed", MetricKind.COUNTER
    SKIPPED = "skipped", MetricKind.COUNTER
    PROCESSING = "processing_duration", MetricKind.TIMER
    HANDOFF = "handoff_duration", MetricKind.TIMER
    COMMIT = "commit_duration", MetricKind.TIMER

    def __init__(self, suffix: str, kind: MetricKind) -> None:
        self.suffix = suffix
        self.kind = kind

    def send(self, paths: Paths, value: float = 1, **tags: str) -> None:
        """Send the value of a metric. The value of a timer is in seconds."""
        if compat.sends_metrics():
            tags = {"topology": paths.topology, "root": paths.root, **tags}
            compat.send_metric(
                self.kind, f"airflow_tx.{self.suffix}", value, tags=tags, named="topology"
            )


def send_failure(paths: Paths, noted: FailureNoted | AlreadyCommitted) -> None:
    """Count a failed attempt only once, even if several of its tasks fail."""
    if isinstance(noted, FailureNoted) and noted.first:
        Metric.FAILED.send(paths)


def send_commit(ledger: Ledger, txid: int) -> None:
    """Send the counts and durations of a transaction that has just been committed."""
    if not compat.sends_metrics():
        return
    Metric.COMMITTED.send(ledger.paths)
    try:
        own = ledger.outcome(txid)
        before = ledger.outcome(txid - 1)
    except TxError as error:
        log.info("Metrics of transaction %s are missing: %s", txid, error)
        return
    if own is None:
        return
    if own.restates is not None:
        Metric.RESTATED.send(ledger.paths)
    elif own.rows:
        Metric.ROWS.send(ledger.paths, own.rows)
        tasks = {} if own.receipt is None else own.receipt.tasks
        if rejected := max((count for _, count in rejected_of(tasks).values()), default=0):
            Metric.REJECTED.send(ledger.paths, rejected)
    for metric, seconds in _durations(own, before).items():
        metric.send(ledger.paths, seconds)


def _durations(own: TransactionRecord, before: TransactionRecord | None) -> dict[Metric, float]:
    if own.processed is None or own.granted_at is None:
        return {}
    began, processed, granted, ended = (
        datetime.fromisoformat(each)
        for each in (own.began, own.processed, own.granted_at, own.final.when)
    )
    ready = processed
    if before is not None:
        ready = max(processed, datetime.fromisoformat(before.final.when))
    found = {
        Metric.PROCESSING: processed - began,
        Metric.HANDOFF: granted - ready,
        Metric.COMMIT: ended - granted,
    }
    # The clocks of two hosts may differ by more than the measured time, which makes the difference
    # negative.
    return {metric: max(each.total_seconds(), 0.0) for metric, each in found.items()}


def send_open(
    paths: Paths, opened: Mapping[int, TransactionRecord], *, blocked: bool, now: datetime
) -> None:
    """Send the metrics of the open transactions.

    :param opened: the open transactions, by txid.
    :param blocked: whether a transaction is blocked.
    """
    Metric.OPEN.send(paths, len(opened))
    Metric.WAITING.send(paths, sum(record.phase is Phase.PROCESSED for record in opened.values()))
    Metric.OLDEST.send(paths, oldest_seconds(opened, now))
    Metric.BLOCKED.send(paths, int(blocked))


def send_behind(ledger: ReadOnlyLedger, behind: Sequence[NotedCorrections]) -> None:
    """Send the metrics that show how far a topology is behind its upstream topology.

    :param behind: the transactions of the topology that lack corrections.
    """
    if not compat.sends_metrics():
        return
    from airflow_tx.ledger import TakenRanges

    ahead = TakenRanges(ledger).ahead()
    if isinstance(ahead, int):
        Metric.BEHIND.send(ledger.paths, ahead)
    Metric.LEFT.send(ledger.paths, sum(each.is_left for each in behind))


def send_acker_load(paths: Paths, load: AckerLoad) -> None:
    """Send the number of open trees of a topology's ackers, and their acks per second."""
    Metric.TREES.send(paths, load.trees)
    if load.acks_a_second is not None:
        Metric.ACKS.send(paths, load.acks_a_second)


def oldest_seconds(opened: Mapping[int, TransactionRecord], now: datetime) -> float:
    """Return the age of the oldest open transaction in seconds, or 0 if no transaction is open."""
    if not opened:
        return 0.0
    return max((now - datetime.fromisoformat(opened[min(opened)].created)).total_seconds(), 0.0)


def send_open_of(ledger: Ledger) -> None:
    """Read the open transactions from the ledger, and send their metrics."""

    if not compat.sends_metrics():
        return
    try:
        opened = ledger.open_records()
        record = ledger.topology()
    except TxError as error:
        log.info("Metrics of topology %s are missing: %s", ledger.paths.topology, error)
        return
    send_open(
        ledger.paths,
        opened,
        blocked=record.blocked is not None,
        now=datetime.now(timezone.utc),
    )
    if record.upstream:
        from airflow_tx.ledger import noted_corrections

        send_behind(ledger, noted_corrections(ledger, ledger.noted_behind()))


def send_lag(topology: str, source: Source, ledger: Ledger, log: Any) -> None:
    """Send the lag of a source. A source with a batch of its own for each run has no lag."""
    if source.per_run or not compat.sends_metrics():
        return
    from airflow_tx.sources import Lag

    found = lag_of(topology, source, ledger)
    if isinstance(found, Lag):
        Metric.LAG.send(ledger.paths, found.count, unit=found.unit)
    else:
        log.info("%s", found)


def lag_of(topology: str, source: Source, ledger: Ledger) -> Lag | LagUnknown:
    """Return the lag between the source and the last committed transaction. Wait at most `LAG_PATIENCE` seconds."""
    from airflow_tx.sources import LagUnknown, lags

    try:
        return lags({topology: (source, ledger.position())}, seconds=LAG_PATIENCE)[topology]
    except TxError as error:
        return LagUnknown(topology=topology, reason=str(error))


class Cadence:
    """A timer that is due at a fixed interval."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._next = clock()

    def is_due(self) -> bool:
        """Return whether the interval has ended. If it has, start the next one."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
