"""The batch of a run is its own data interval."""

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
    """What `reader` reads for the data interval of the run: ``reader(start, end, spark=None, **options)``.

    A run is known by its interval: another run of the same one, as after a backfill, is the same transaction.
    Runs may come in any order. An interval that overlaps one that was taken is refused, since the rows of both would
    count twice: so it is when the schedule has changed from a day to an hour. A run by hand is refused, too, if Airflow
    has started it before its interval has ended.

    With `in_order` txids follow the dates: a run that is ahead waits for the interval before it, and one that is late,
    before the last interval that has a txid, is refused.

    :param reader: a function at the top of an importable module, or its path ``package.module.function``. It gets
        `start` (included) and `end` (excluded) in UTC, and gives a DataFrame, or rows as mappings. None: a task of the
        block reads the rows, by its own ``data_interval_start`` and ``data_interval_end``.
    :param options: further arguments for it, plain JSON.
    :param kind: ``transactional`` if it reads the same rows for an interval every time, else ``opaque``.
    :param in_order: whether txids follow the data intervals, in any order of the runs.
    :param connections: ids of the Airflow connections that the function looks up, with
        ``airflow.sdk.BaseHook.get_connection``. A Spark driver on this machine finds them as the task does.
    """

    @property
    def can_omit_runs(self) -> bool:
        # A subclass may decide its batches in another way.
        return type(self) is DataIntervalSource

    def without_runs(self, schedule: IntervalSchedule) -> DatedSource:
        return NextIntervalSource.of(self, schedule)


# --- next interval ------------------------------------------------------------------------------------------------
# The next data interval of a schedule, for transactions without a run.


class NextIntervalSource(IntervalSource):
    """A `DataIntervalSource` in order that needs no run: a batch is the interval that follows, once it has ended.

    The schedule says which one that is; it leaves out none. The first one is the next of the order, if it has begun,
    else the one that Airflow would make its first run for.

    :param schedule: of the DAG; also as `IntervalSchedule.to_json` gives it.
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
        """Return the source that takes the same intervals without their runs."""
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
            remedy = "Let the coordinator run where Airflow's core is installed; runs of the schedule still work."
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
                f"the order of txids stands at {ahead.missing.isoformat()}, and the schedule, which has an interval "
                f"until {ahead.after.isoformat()}, has none that begins there",
                "Nothing was allocated. Let the schedule have one. To continue without it, set in_order=False "
                f"in the DAG, clear or create the run of {found.start.isoformat()}, and set "
                "in_order=True again.",
            ) from None
        return replace(batch, key=key, run_id=self.schedule.run_id(found))

    def interval_of_run(self, key: str) -> Interval | None:
        interval = self._of_key(key)
        return interval if self.schedule.makes(*interval) else None
