"""The batch of a run is its own data interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.sources.run.interval import IntervalSource

if TYPE_CHECKING:
    from airflow_tx.compat import IntervalSchedule
    from airflow_tx.sources.api import DatedSource


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
        from airflow_tx.sources.run.next_interval import NextIntervalSource

        return NextIntervalSource.of(self, schedule)
