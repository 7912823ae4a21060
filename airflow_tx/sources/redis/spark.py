"""Messages from Redis as a DataFrame.

A batch of one part is read in this process: a job of Python workers would take longer, executors need no way to Redis,
and a message that is wrong is named at once. A larger one is read by executors, each task one part; but not on a Spark
Connect server, which writes plans to its log, with the functions in them and the password in those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from airflow_tx.sources.message import message_ddl, spark_and_arrow
from airflow_tx.sources.redis.log import Part

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession

_ROWS_A_BATCH = 5_000


def frame(spark: SparkSession, parts: Sequence[Part], *, at_once: int) -> DataFrame:
    """Read the rows of all parts: up to `at_once` messages in this process, more by executors."""
    struct, columns = spark_and_arrow(spark, _ddl(parts[0]))
    small = sum(int(part.messages["quantity"]) for part in parts) <= at_once
    if small or type(spark).__module__.startswith("pyspark.sql.connect"):
        import pyarrow as pa

        batches = chain.from_iterable(_batches(part, columns) for part in parts)
        return spark.createDataFrame(pa.Table.from_batches(batches, schema=columns), schema=struct)
    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(
        _reader(list(parts), columns), struct
    )


def _ddl(part: Part) -> str:
    numbered = part.log.id_column == "number"
    column, text = ("number BIGINT", "STRING") if numbered else ("id STRING", "MAP<STRING, STRING>")
    message = text if part.columns is None else message_ddl(part.columns)
    return f"partition STRING, {column}, message {message}"


def _reader(parts: list[Part], columns: pa.Schema) -> Any:
    """Make the function of an executor: connections travel in it, by Spark's own channel."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _batches(parts[number], columns)

    return read


def _batches(part: Part, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    with closing(part.log.database.client()) as client:
        rows = part.rows(client)
        while page := list(islice(rows, _ROWS_A_BATCH)):
            yield pa.RecordBatch.from_pylist(page, schema=columns)
