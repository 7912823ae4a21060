"""The batch of a run is its own partition, in a DAG that Airflow runs by partitions."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import OtherSource
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, EmittedRows, Json, pack, unpack
from airflow_tx.sources.dates import span_of
from airflow_tx.sources.run.reader import ReaderSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.compat import RunInfo


class RunPartitionSource(ReaderSource):
    """What `reader` reads for the partition of the run: ``reader(partition=..., spark=None, **options)``.

    A run is known by its partition date, or, if it has none, by its partition key: a partitioned backfill makes a
    second run beside a failed one, and both are the same transaction.

    :param reader: a function at the top of an importable module, or its path ``package.module.function``. It gets
        `partition`, the date in UTC (ISO 8601) or the key, and gives a DataFrame, or rows as mappings. None: a task of
        the block reads the rows.
    :param options: further arguments for it, plain JSON.
    :param kind: ``transactional`` if it reads the same rows for a partition every time, else ``opaque``.
    :param connections: ids of the Airflow connections that the function looks up, as for `DataIntervalSource`.
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
                f"partition {partition}{self._whose} was taken: its rows would count twice",
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
        """Convert to UTC, so that one date has one spelling."""
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
