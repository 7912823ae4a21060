"""The sources whose batch is the data interval of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, ClassVar

from airflow_tx.base.compat import IntervalSchedule, ScheduledInterval
from airflow_tx.base.errors import AheadOfOrder
from airflow_tx.ledger import TransactionAttempt
from airflow_tx.sources.api import Batch, DatedSource, Json
from airflow_tx.sources.dates import Interval, key_of_interval, order_end
from airflow_tx.sources.run.partition import IntervalSource

# --- data interval ------------------------------------------------------------------------------------------------


class DataIntervalSource(IntervalSource):
    """A source whose batch is the data interval of the run. It calls ``reader(start, end, spark=None, **options)``.

    The run key is the interval. Another run of the same interval, such as after a backfill, therefore has the same
    transaction. Runs may come in any order. The source refuses an interval that overlaps another transaction's
    interval, since shared rows would count twice. Intervals overlap, for example, after a schedule changes from daily
    to hourly. The source also refuses a run that Airflow started before the end of its interval.

    With `in_order`, txids follow the dates. A run that is ahead waits for the interval before its own. The source
    refuses a late run. The interval of such a run is before the last interval that has a txid.

    :param reader: a function at the top of an importable module, or its path ``package.module.function``. It gets
        `start` (inclusive) and `end` (exclusive) in UTC, and returns a DataFrame, or rows as mappings. With None, a
        task of the block reads the rows from its ``data_interval_start`` to its ``data_interval_end``.
    :param options: additional arguments of the reader, as plain JSON.
    :param kind: ``transactional`` if the reader always returns the same rows for an interval. Otherwise ``opaque``.
    :param in_order: whether txids follow the data intervals, even if the runs come in another order.
    :param connections: ids of the Airflow connections that the reader looks up with
        ``airflow.sdk.BaseHook.get_connection``. A Spark driver on this machine gets them from the task.
    """

    @property
    def can_omit_runs(self) -> bool:
        # Subclasses may decide batches differently.
        return type(self) is DataIntervalSource

    def without_runs(self, schedule: IntervalSchedule) -> DatedSource:
        return NextIntervalSource.of(self, schedule)


# --- next interval ------------------------------------------------------------------------------------------------
# The next data interval of a schedule, for transactions without a DAG run.


class NextIntervalSource(IntervalSource):
    """A `DataIntervalSource` with `in_order` that needs no DAG runs. A batch is the next interval that has ended.

    The schedule defines the intervals, and the source omits none. If the order of txids has begun, the first batch is
    the next interval in this order. Otherwise it is the interval of the first run that Airflow would create.

    :param schedule: schedule of the DAG, or the result of its `to_json`.
    """

    per_run: ClassVar[bool] = False

    def __init__(
        self,
        reader: str | None,
        options: Mapping[str, Any] | None = None,
        kind: str = "transactional",
        *,
        schedule: IntervalSchedule | Mapping[str, Any],
        connections: Sequence[str] = (),
    ) -> None:
        super().__init__(reader, options, kind, in_order=True, connections=connections)
        self.schedule = (
            schedule
            if isinstance(schedule, IntervalSchedule)
            else IntervalSchedule.from_json(schedule)
        )
        self.normalize(schedule=self.schedule.to_json())
        self._previous_end = self.schedule.previous_end

    @classmethod
    def of(cls, source: IntervalSource, schedule: IntervalSchedule) -> NextIntervalSource:
        """Return a source with the same data intervals, which needs no DAG runs."""
        connections = source.conn_ids
        return cls(
            source.reader or None,
            source.options,
            source.kind.value,
            schedule=schedule,
            connections=connections,
        )

    def next_interval(self, position: Json) -> ScheduledInterval | None:
        after = None if position is None else order_end(position)
        try:
            return self.schedule.next_interval(after, datetime.now(timezone.utc))
        except ImportError as error:
            remedy = "Run the coordinator where Airflow's core is installed. Runs of the schedule still work."
            raise self.refused(f"the schedule cannot be read here ({error})", remedy) from None

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:  # type: ignore[override]
        found = self.next_interval(position)
        if found is None:
            return None
        key = key_of_interval((found.start, found.end))
        try:
            batch = super(NextIntervalSource, self.for_key(key)).decide(attempt, position)
        except AheadOfOrder as ahead:
            raise self.refused(
                f"the order of txids stands at {ahead.missing.isoformat()}, but no interval of the "
                f"schedule begins there. The schedule has an interval until {ahead.after.isoformat()}",
                "Nothing was allocated. Correct the schedule. To continue without this interval, set in_order=False "
                f"in the DAG, clear or create the run of {found.start.isoformat()}, and set "
                "in_order=True again.",
            ) from None
        return replace(batch, key=key, run_id=self.schedule.run_id(found))

    def interval_of_run(self, key: str) -> Interval | None:
        interval = self._of_key(key)
        return interval if self.schedule.makes(*interval) else None
