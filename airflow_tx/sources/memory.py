"""A source that gets its rows as arguments, for examples and first DAG tests.

Source: storm-transactional-topologies (MemoryTransactionalSpout).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_tx.base.errors import ConfigError, OtherSource, PartitionUnavailable
from airflow_tx.base.rows import (
    NoTable,
    arrow_types_of,
    nested_columns_of,
    python_frame,
    reader_of_dicts,
)
from airflow_tx.ledger import TransactionAttempt
from airflow_tx.sources.api import (
    Batch,
    EmittedRows,
    Json,
    Limit,
    RowTypes,
    SourceKind,
    source_kind,
)
from airflow_tx.sources.partitions import (
    PartitionedTransactionalSource,
    is_number_below,
    is_number_within,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MemorySource(PartitionedTransactionalSource):
    """A source of partitions in memory. A transaction takes the next `per_batch` rows of every partition.

    The rows are arguments of the source, so use only a few rows of plain JSON. You can append rows and add partitions.
    A partition with fewer rows than were taken counts as unreachable.

    :param partitions: rows of each partition, by its name.
    :param per_batch: maximum number of rows of each partition in a transaction.
    :param kind: ``transactional`` or ``opaque``.
    :param schema: Spark DDL, such as ``word STRING, n INT``. By default, Spark infers the types from the rows.
    """

    always_written = ("per_batch", "kind", "schema")

    def __init__(
        self,
        partitions: Mapping[str, Sequence[Mapping[str, Any]]],
        per_batch: int = 1,
        kind: str = "transactional",
        schema: str | None = None,
    ) -> None:
        if not isinstance(per_batch, int) or per_batch < 1:
            raise self.unusable("per_batch", per_batch, "Give a whole number from 1 on.")
        if not isinstance(partitions, Mapping) or not all(
            isinstance(name, str) for name in partitions
        ):
            remedy = 'Give a mapping from names to rows, such as {"0": [{"word": "cat"}]}.'
            raise self.unusable("partitions", _short(partitions), remedy)
        self.rows = {name: [_row(name, row) for row in rows] for name, rows in partitions.items()}
        self.per_batch = per_batch
        self.kind = source_kind(kind, "MemorySource")
        self.schema = schema
        self.normalize(partitions=self.rows)

    def __repr__(self) -> str:
        kind = ", kind='opaque'" if self.kind is SourceKind.OPAQUE else ""
        return (
            f"{type(self).__name__}({len(self.rows)} partitions, per_batch={self.per_batch}{kind})"
        )

    def partitions(self) -> list[str]:
        return sorted(self.rows)

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, partition: str, position: Json
    ) -> Batch | None:
        taken = 0 if position is None else position
        rows = self.rows[partition]
        if not isinstance(taken, int):
            problem = f"position {_short(taken)!r} of partition {partition} is not a number of rows"
            raise OtherSource(source=repr(self), problem=problem)
        if taken > len(rows):
            reason = f"{taken} of its rows were taken, but it has only {len(rows)}"
            raise PartitionUnavailable(partition=partition, source=repr(self), reason=reason)
        end = min(taken + self.per_batch, len(rows))
        return (
            Batch(metadata={"from": taken, "to": end}, position=end, count=end - taken)
            if end > taken
            else None
        )

    def limit_reason(self, count: int, positions: Mapping[str, Json]) -> str:
        limit = Limit(reason=f"per_batch={self.per_batch} of each partition")
        return limit.reason_for(count, self.backlog(dict(positions)))

    def backlog(self, position: Json) -> int:
        positions = self.partition_positions(position)
        return sum(max(len(rows) - positions.get(name, 0), 0) for name, rows in self.rows.items())

    def partition_contains(self, partition: str, metadata: Any, what: str) -> bool:
        return is_number_within(what, metadata["from"], metadata["to"])

    def partition_reaches(self, partition: str, position: Any, what: str) -> bool | None:
        return is_number_below(what, position)

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes | None:
        with suppress(ValueError):  # only Spark has this type
            return arrow_types_of(nested_columns_of(self.schema)) if self.schema else None
        return None

    def types_without_rows(self, attempt: TransactionAttempt, position: Json) -> RowTypes | None:
        declared = self.row_types(attempt, None)
        with suppress(NoTable):  # the batches have columns of different types
            rows = chain.from_iterable(self.rows.values())
            schema = reader_of_dicts(rows, declared).schema
            return dict(zip(schema.names, schema.types, strict=True)) or None
        return declared

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        partition: str,
        metadata: Any,
        spark: SparkSession | None = None,
    ) -> EmittedRows:
        rows = self.rows.get(partition, [])
        start = metadata["from"]
        end = metadata["to"]
        if end > len(rows):
            problem = f"rows {start} to {end} of partition {partition} are gone: it has only {len(rows)} rows"
            raise self.refused(problem, "Restore the rows, then clear the task.")
        batch = rows[start:end]
        return (
            [dict(row) for row in batch]
            if spark is None
            else python_frame(spark, batch, self.schema)
        )


def _row(partition: str, row: Any) -> dict[str, Any]:
    try:
        usable = isinstance(row, Mapping) and json.loads(json.dumps(dict(row))) == dict(row)
    except (TypeError, ValueError):
        usable = False
    if not usable:
        remedy = 'Give rows as mappings of plain JSON, such as {"word": "cat"}: the source is serialized with its rows.'
        raise ConfigError(
            option=f"a row of partition {partition} of MemorySource",
            value=_short(row),
            remedy=remedy,
        )
    return dict(row)


def _short(value: Any) -> str:
    return str(value)[:80]
