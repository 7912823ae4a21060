"""Batches that are data intervals: which ones were taken, which one may come next, and what the reader reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import AheadOfOrder, OtherSource
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, DatedSource, EmittedRows, Json, PreviousEnd
from airflow_tx.sources.dates import (
    Interval,
    dates_of,
    interval_of_key,
    iso,
    key_of_interval,
    order_end,
)
from airflow_tx.sources.run.reader import ReaderSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.compat import RunInfo

_SKEW = timedelta(minutes=1)  # between the clocks of Airflow's own hosts


class IntervalSource(ReaderSource, DatedSource):
    """The base of sources whose batch is a data interval, with the arguments of `DataIntervalSource`."""

    def __init__(
        self,
        reader: str | Callable[..., Any] | None = None,
        options: Mapping[str, Any] | None = None,
        kind: str = "transactional",
        in_order: bool = False,
        connections: Sequence[str] = (),
    ) -> None:
        super().__init__(reader, options, kind, connections)
        self.in_order = in_order
        self._previous_end: PreviousEnd = lambda start, end: None

    def on_schedule(self, previous_end: PreviousEnd) -> IntervalSource:
        bound = copy(self)
        bound._previous_end = previous_end
        return bound

    def key(self, run: RunInfo) -> str:
        return key_of_interval(self._interval(run))

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch:
        interval = self._of_key(self.key_of_run())
        taken = [each for each in self._taken(position) if each[0] < each[1]]
        for other in taken:
            if interval[0] < other[1] and other[0] < interval[1]:
                raise self.refused(
                    f"the interval {dates_of(interval)}{self._whose} overlaps {dates_of(other)}, of which all "
                    "rows were taken: they would count twice",
                    f"Nothing was allocated. If the schedule has changed, let the new one start at {iso(other[1])} or "
                    "later, or count again: another Transaction(topology=...) with a new state.",
                )
        if (
            self.in_order and position is not None and attempt.attempt == 1
        ):  # a replay keeps its txid
            self._check_order(interval, order_end(position), attempt.txid)
        rows: Json = {"from": iso(interval[0]), "to": iso(interval[1])}
        after: list[Json] = [[iso(start), iso(end)] for start, end in _merged([*taken, interval])]
        return Batch(metadata=rows, position={"intervals": after})

    def _check_order(self, interval: Interval, end: datetime, txid: int) -> None:
        start = interval[0]
        if start < end and txid == 1:
            raise self.refused(
                f"the interval {dates_of(interval)}{self._whose} comes before {iso(end)}, where txids begin",
                f"Nothing was allocated. To begin earlier: airflow tx backfill DAG --from {iso(start)} --to DATE.",
            )
        if start < end:
            raise self.refused(
                f"the interval {dates_of(interval)}{self._whose} comes before {iso(end)}, where the order of txids "
                f"stands: it would be transaction {txid}, after transactions of later dates",
                "Nothing was allocated. To count it there, let the DAG say in_order=False, clear this run, and let the "
                "DAG say in_order=True again.",
            )
        if end < start:
            after = self._previous_end(*interval)
            after = start if after is None else after
            if end < after:
                raise AheadOfOrder(interval=dates_of(interval), after=after, missing=end)

    def interval(self, metadata: Any) -> Interval:
        return datetime.fromisoformat(metadata["from"]), datetime.fromisoformat(metadata["to"])

    def contains(self, metadata: Any, what: str) -> bool:
        start, end = self.interval(metadata)
        try:
            span = self.span(what)
        except ValueError:
            return False
        return start <= span.last and span.start < end

    def reaches(self, position: Any, what: str) -> bool | None:
        try:
            span = self.span(what)
        except ValueError:
            return None
        taken = self._taken(position)
        return bool(taken) and taken[0][1] >= span.end

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, spark: SparkSession | None = None
    ) -> EmittedRows:
        return self.read(
            spark, datetime.fromisoformat(metadata["from"]), datetime.fromisoformat(metadata["to"])
        )

    def _interval(self, run: RunInfo) -> Interval:
        start = run.interval_start
        end = run.interval_end
        if start is None or end is None:
            raise self.refused(
                f"run {run.run_id} has no data interval",
                "Give the DAG a schedule that has them, such as "
                'CronDataIntervalTimetable("0 0 * * *", timezone="UTC"); a run by hand needs a logical date.',
            )
        if start.tzinfo is None or end.tzinfo is None or start > end:
            remedy = "Let the timetable give dates with a time zone, the earlier one first."
            raise self.refused(f"run {run.run_id} has the data interval {start}/{end}", remedy)
        if start == end:
            raise self.refused(
                f"run {run.run_id} has the empty data interval {iso(start)}/{iso(end)}: it is older than the "
                "Transaction in its DAG, or its timetable gives no intervals",
                'Delete an older run. Use schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC") or "@daily".',
            )
        if run.started is not None and run.started + _SKEW < end:
            raise self.refused(
                f"the data interval {dates_of((start, end))} of run {run.run_id} had not ended when the run was "
                f"started, at {iso(run.started)}: rows that come until then would never count",
                "Nothing was allocated. Clear the run once its interval has ended, or delete it.",
            )
        return start, end

    def _of_key(self, key: str) -> Interval:
        found = interval_of_key(key)
        if found is None:
            raise OtherSource(source=repr(self), problem=f"key {key[:80]!r} is no interval")
        return found

    def _taken(self, position: Any) -> list[Interval]:
        if position is None:
            return []
        try:
            return [
                (datetime.fromisoformat(start), datetime.fromisoformat(end))
                for start, end in position["intervals"]
            ]
        except (TypeError, KeyError, ValueError):
            problem = f"position {str(position)[:80]!r} has no intervals"
            raise OtherSource(source=repr(self), problem=problem) from None


def _merged(intervals: list[Interval]) -> list[Interval]:
    """Join adjacent intervals: few are left for a schedule, in any order of its runs."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and merged[-1][1] >= start:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
