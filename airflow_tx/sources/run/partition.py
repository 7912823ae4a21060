"""The source whose batch is the partition of a run, and the base classes of sources that call a user's function."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_tx.base.errors import AheadOfOrder, OtherSource
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import TransactionAttempt
from airflow_tx.sources.api import (
    Batch,
    DatedSource,
    EmittedRows,
    Json,
    PreviousEnd,
    Source,
    source_kind,
)
from airflow_tx.sources.dates import (
    Interval,
    dates_of,
    interval_of_key,
    iso,
    key_of_interval,
    order_end,
    span_of,
)
from airflow_tx.sources.packed_names import pack, unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.base.compat import RunInfo


# --- reader -------------------------------------------------------------------------------------------------------
# Sources that read a run's data with a user function. They store the function's path, since Spark
# drivers must also import it.


_REMEDY = (
    "Give a function at the top of a module, not of a DAG file. Workers and Spark drivers import the module. "
    "Or give its path, such as package.module.function."
)
_Self = TypeVar("_Self", bound="ReaderSource")


class ReaderSource(Source):
    """The base class of sources that call a function.

    A subclass decides which part of the data a run gets, and the function reads its rows.

    :param reader: a function at the top of an importable module, or its path ``package.module.function``. With None,
        tasks of the block read the rows themselves.
    :param options: additional arguments of the function, as plain JSON.
    :param kind: ``transactional`` if the function always returns the same rows for a part. Otherwise ``opaque``.
    :param connections: ids of the Airflow connections that the function looks up.
    """

    per_run: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = False
    always_written = ("options", "kind")
    in_repr: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        reader: str | Callable[..., Any] | None = None,
        options: Mapping[str, Any] | None = None,
        kind: str = "transactional",
        connections: Sequence[str] = (),
    ) -> None:
        self.reader = "" if reader is None else self._path(reader)
        self.options = dict(options or {})
        self.kind = source_kind(kind, type(self).__name__)
        try:
            json.dumps(self.options)
        except (TypeError, ValueError) as error:
            remedy = f"They travel to Spark applications: give plain JSON ({error})."
            raise self.unusable("options", sorted(self.options), remedy) from None
        if isinstance(connections, str):
            raise self.unusable(
                "connections", connections, f"Give a list: connections=[{connections!r}]."
            )
        self.conn_ids = tuple(connections)
        self.normalize(reader=self.reader or None, options=self.options)
        self._key = self._whose = ""

    def _path(self, reader: str | Callable[..., Any]) -> str:
        """Return a reader's import path. A reader given as a path is imported only when rows are read.

        :raises ConfigError: other processes cannot import the reader.
        """
        if isinstance(reader, str):
            parts = reader.split(".")
            if len(parts) < 2 or not all(part.isidentifier() for part in parts):
                raise self.unusable("reader", reader, _REMEDY)
            return reader
        module = getattr(reader, "__module__", None)
        name = getattr(reader, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.unusable("reader", type(reader).__name__, _REMEDY)
        path = f"{module}.{name}"
        if getattr(sys.modules.get(module), name, None) is not reader or not _importable(module):
            raise self.unusable("reader", path, _REMEDY)
        return path

    def connections(self) -> dict[str, str]:
        return dict.fromkeys(self.conn_ids, "generic")

    def for_run(self: _Self, run: RunInfo) -> _Self:
        bound = self.for_key(self.key(run))
        bound._whose = f" of run {run.run_id}"
        return bound

    def for_key(self: _Self, key: str) -> _Self:
        bound = copy(self)
        bound._key = key
        return bound

    def key_of_run(self) -> str:
        """Return the key of the run for which the batch is decided.

        :raises SourceError: the source belongs to no run.
        """
        if not self._key:
            raise self.refused("it has no run to decide a batch for", "Use source.for_run(run).")
        return self._key

    def read(self, spark: SparkSession | None, *part: Any, **options: Any) -> EmittedRows:
        """Call the reader.

        :raises SourceError: the reader cannot be imported, or does not return rows.
        """
        if not self.reader:
            raise self.refused(
                "it has no reader that returns rows",
                "Let a task of the transaction read the rows and return current_batch().stage(rows). Or name a reader.",
            )
        module, _, name = self.reader.rpartition(".")
        try:
            reader = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            remedy = (
                "Install its module where this task and its Spark driver run, or correct the path."
            )
            raise self.refused(f"its reader cannot be imported ({error})", remedy) from None
        rows: Any = reader(*part, spark=spark, **options, **self.options)
        if not hasattr(rows, "write") and (
            isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable)
        ):
            remedy = "The reader must return a DataFrame, or rows as mappings."
            raise self.refused(f"its reader returned a {type(rows).__name__}", remedy)
        return rows  # type: ignore[no-any-return]


def _importable(module: str) -> bool:
    """Return whether another process can import a module.

    Only Airflow itself can import a DAG file by its module name.
    """
    top = module.partition(".")[0]
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return module != "__main__" and any(finder.find_spec(top, None) for finder in finders)


# --- partition ----------------------------------------------------------------------------------------------------


class RunPartitionSource(ReaderSource):
    """A source whose batch is the partition of the run. It calls ``reader(partition=..., spark=None, **options)``.

    The run key is the partition date, or the partition key if there is no date. A partitioned backfill may create a
    second run for the partition of a failed run. Both runs then have the same transaction.

    :param reader: a function at the top of an importable module, or its path ``package.module.function``. Its argument
        `partition` is the date in UTC (ISO 8601) or the key. It returns a DataFrame, or rows as mappings. With None, a
        task of the block reads the rows.
    :param options: additional arguments of the reader, as plain JSON.
    :param kind: ``transactional`` if the reader always returns the same rows for a partition. Otherwise ``opaque``.
    :param connections: ids of the Airflow connections that the reader looks up, as for `DataIntervalSource`.
    """

    def key(self, run: RunInfo) -> str:
        what, partition = self._partition(run)
        return f"partition-{what}:{partition}"

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch:
        key = self.key_of_run()
        partition = key.partition(":")[2]
        taken = self._taken(position)
        if key in taken:
            raise self.refused(
                f"partition {partition}{self._whose} was already taken: its rows would count twice",
                "Nothing was allocated. To count again, give the topology another name, Transaction(topology=...), and "
                "a new state.",
            )
        after: Json = {"count": len(taken) + 1, "partitions": pack({*taken, key})}
        return Batch(metadata={"partition": partition}, position=after)

    def contains(self, metadata: Any, what: str) -> bool:
        partition = str(metadata["partition"])
        try:
            span = self.span(what)
            return partition == what or span.start <= span_of(partition).start <= span.last
        except ValueError:
            return partition == what

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, spark: SparkSession | None = None
    ) -> EmittedRows:
        return self.read(spark, partition=metadata["partition"])

    def _partition(self, run: RunInfo) -> tuple[str, str]:
        if run.partition_date is not None:
            return "date", self._date(run.run_id, run.partition_date)
        if run.partition_key:
            return "key", run.partition_key
        remedy = "Give the DAG a schedule with partitions; for data intervals there is DataIntervalSource."
        raise self.refused(f"run {run.run_id} has no partition date and no partition key", remedy)

    def _date(self, run_id: str, value: datetime | str) -> str:
        """Convert a partition's date to UTC, so that equal dates have equal texts."""
        try:
            date = (
                datetime.fromisoformat(value.replace("Z", "+00:00"))
                if isinstance(value, str)
                else value
            )
        except ValueError:
            remedy = "Let the timetable give an ISO 8601 date."
            raise self.refused(f"run {run_id} has the partition date {value!r}", remedy) from None
        return date.replace(tzinfo=date.tzinfo or timezone.utc).astimezone(timezone.utc).isoformat()

    def _taken(self, position: Any) -> frozenset[str]:
        if position is None:
            return frozenset()
        try:
            return unpack(position["partitions"])
        except (TypeError, KeyError, ValueError):
            problem = f"position {str(position)[:80]!r} has no partitions"
            raise OtherSource(source=repr(self), problem=problem) from None


# --- interval -----------------------------------------------------------------------------------------------------
# Data interval batches. This part checks overlaps and the order, and calls the reader.


_SKEW = timedelta(minutes=1)  # The tolerated clock difference between Airflow hosts.


class IntervalSource(ReaderSource, DatedSource):
    """The base class of sources whose batch is a data interval. It has the arguments of `DataIntervalSource`."""

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
                    f"the interval {dates_of(interval)}{self._whose} overlaps {dates_of(other)}, whose rows "
                    "were already taken: these rows would count twice",
                    f"Nothing was allocated. If the schedule has changed, let the new schedule start at "
                    f"{iso(other[1])} or later. To count again, use another Transaction(topology=...) with a new "
                    "state.",
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
                f"the interval {dates_of(interval)}{self._whose} begins before {iso(end)}, where "
                "transaction 1 must begin",
                (
                    "Nothing was allocated. To begin earlier: "
                    + Command.of("backfill", "DAG", "--from", iso(start), "--to", "DATE")
                    + "."
                ),
            )
        if start < end:
            raise self.refused(
                f"the interval {dates_of(interval)}{self._whose} begins before {iso(end)}, which the order of "
                f"txids has already reached. It would become transaction {txid}, after transactions of later dates",
                "Nothing was allocated. To count it there, set in_order=False in the DAG, clear this run, and set "
                "in_order=True again.",
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
                f"started, at {iso(run.started)}. Rows that arrive until its end would never count",
                "Nothing was allocated. Clear the run once its interval has ended, or delete it.",
            )
        return start, end

    def _of_key(self, key: str) -> Interval:
        found = interval_of_key(key)
        if found is None:
            raise OtherSource(source=repr(self), problem=f"key {key[:80]!r} is not an interval")
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
    """Merge adjacent and overlapping intervals, so that a position stays small."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and merged[-1][1] >= start:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
