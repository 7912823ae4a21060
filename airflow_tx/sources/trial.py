"""The source of a trial. It reads the first rows of a batch of another source, and changes nothing.

Source: Trident's FeederBatchSpout, for rows that a test gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_tx.base.rows import dicts_of
from airflow_tx.ledger import TransactionAttempt
from airflow_tx.sources.api import (
    Batch,
    EmittedRows,
    Json,
    Limit,
    Measured,
    RowTypes,
    Source,
    rebuild,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession

    from airflow_tx.base.compat import RunInfo
    from airflow_tx.base.errors import TxError

_Self = TypeVar("_Self", bound="TrialSource")
_AS_STRUCT = "spark.sql.pyspark.inferNestedDictAsStruct.enabled"


class TrialSource(Source):
    """A source that returns at most `most` rows of each batch of another source. It reports no events to that source.

    :param source: source of the DAG, or the result of its `serialize`.
    :param most: maximum number of rows to read from a batch.
    :param rows: rows or a frame to read instead of the source's rows, or None to read the source.
    """

    def __init__(
        self,
        source: Source | Sequence[Any],
        *,
        most: int,
        rows: Any = None,
    ) -> None:
        self.source = source if isinstance(source, Source) else rebuild(*source)
        self.normalize(source=list(self.source.serialize()))
        self.most = most
        self.rows = None if rows is None else [dict(row) for row in dicts_of(rows)]
        self.kind = self.source.kind
        self.malformed = self.source.malformed
        # Test rows are one batch without partitions, even if the source has partitions.
        self.partitioned = self.source.partitioned and rows is None  # type: ignore[misc]
        self.per_run = self.source.per_run  # type: ignore[misc]
        self.counts_rows = self.source.counts_rows  # type: ignore[misc]

    def __repr__(self) -> str:
        return repr(self.source)

    def named(self: _Self, topology: str) -> _Self:
        copied = super().named(topology)
        copied.source = self.source.named(topology)
        return copied

    def key(self, run: RunInfo) -> str:
        return self.source.key(run)

    def for_run(self, run: RunInfo) -> Source:
        return self._over(self.source.for_run(run))

    def for_key(self, key: str) -> Source:
        return self._over(self.source.for_key(key))

    def with_limit(self: _Self, measured: Measured) -> _Self:
        limited = self._over(self.source.with_limit(measured))
        if limited.source.batch_size is not None:
            # A source with a limit need not decide more rows than the trial reads.
            limited.source.limit = Limit(self.most, None, f"a trial reads {self.most} rows")
        return limited

    def is_ready(self) -> bool:
        return self.rows is not None or self.source.is_ready()

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        if self.rows is not None:
            return Batch(
                metadata="rows of the trial",
                position="their end",
                count=len(self.rows),
                reason="given to the trial",
            )
        batch = self.source.decide(attempt, position)
        if batch is None or batch.count is None or batch.unit != "rows":
            return batch
        return replace(batch, count=min(batch.count, self.most), at_most=batch.at_most)

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        if self.rows is not None:
            return self.rows if spark is None else _frame(spark, self.rows)
        emitted: Any = self.source.emit_batch(attempt, metadata, spark)
        if spark is None:
            return islice(dicts_of(emitted), self.most)
        # Fetch the rows now, so that every use of this DataFrame has the same rows.
        return spark.createDataFrame(emitted.take(self.most), emitted.schema)

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes | None:
        return None if self.rows is not None else self.source.row_types(attempt, metadata)

    def types_without_rows(self, attempt: TransactionAttempt, position: Json) -> RowTypes | None:
        return None if self.rows is not None else self.source.types_without_rows(attempt, position)

    def emit_arrow(self, attempt: TransactionAttempt, metadata: Json) -> pa.RecordBatchReader:
        import pyarrow as pa

        if self.rows is not None:
            return super().emit_arrow(attempt, metadata)
        reader = self.source.emit_arrow(attempt, metadata)
        self.malformed_rows = self.source.malformed_rows
        return pa.RecordBatchReader.from_batches(reader.schema, _first(reader, self.most))

    def check_read(self, attempt: TransactionAttempt) -> None:
        self.source.check_read(attempt)

    def connections(self) -> Mapping[str, str]:
        return {} if self.rows is not None else self.source.connections()

    def explain_error(self, attempt: TransactionAttempt, error: Exception) -> TxError | None:
        return self.source.explain_error(attempt, error)

    def close(self) -> None:
        self.source.close()

    def _over(self: _Self, source: Source) -> _Self:
        copied = super().named(self.topology)
        copied.source = source
        return copied


def _first(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows >= most:
            yield batch.slice(0, most)
            return
        yield batch
        most -= batch.num_rows


def _frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    before = spark.conf.get(_AS_STRUCT)
    # Nested mappings are structs, as in message values. By default, Spark would convert them to
    # maps.
    spark.conf.set(_AS_STRUCT, "true")
    try:
        return spark.createDataFrame([dict(row) for row in rows])
    finally:
        spark.conf.set(_AS_STRUCT, str(before))
