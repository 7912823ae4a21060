"""The next data interval of a schedule, for transactions without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_tx.compat import IntervalSchedule
from airflow_tx.errors import AheadOfOrder
from airflow_tx.sources.api import Batch, Json
from airflow_tx.sources.dates import Interval, key_of_interval, order_end
from airflow_tx.sources.run.interval import IntervalSource

if TYPE_CHECKING:
    from airflow_tx.compat import ScheduledInterval
    from airflow_tx.protocol.attempt import TransactionAttempt


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
