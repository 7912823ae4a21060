"""Sources, readers and stores of one's own, as the DAG files of the kinds import them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from airflow_tx import OpaquePartitionedTransactionalSource, PartitionedTransactionalSource, TransactionalSource
from airflow_tx.ledger.records import Loss
from airflow_tx.sources import Batch
from airflow_tx.state import MemoryDatabase

MOST = 12
"""How many rows there are: a life has eight transactions, and a lag is left."""
ROWS = {partition: [{"n": number} for number in range(MOST)] for partition in ("a", "b")}
DATABASE = MemoryDatabase()
MEMORY: dict[Any, Any] = {}
CACHES = os.environ.get("AIRFLOW_TX_KINDS_CACHES", "127.0.0.1:11211").split(",")


class OwnNumbers(TransactionalSource):
    """A number is a transaction."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def initialize_transaction(self, txid: int, position: Any) -> Batch | None:
        number = position or 0
        return Batch(number, number + 1, 1) if number < MOST else None

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Iterator[dict[str, int]]:
        return iter([{"n": metadata}])

    def contains(self, metadata: Any, what: str) -> bool:
        return str(metadata) == what

    def backlog(self, position: Any) -> int:
        return MOST - int(position or 0)


class Lossy(OwnNumbers):
    """Numbers, of which a few are lost after the first one."""

    def losses(self, position: Any) -> list[Loss]:
        return [Loss("", position, 4, f"rows {position} to 3")] if position is not None and position < 4 else []


class _Partitioned:
    """Two partitions of numbers."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def partitions(self) -> Sequence[str]:
        return ["a", "b"]

    def emit_partition_batch_new(self, attempt: Any, partition: str, position: Any) -> Batch | None:
        number = position or 0
        return Batch(number, number + 1, 1) if number < MOST else None

    def emit_partition_batch(
        self, attempt: Any, partition: str, metadata: Any, spark: Any = None
    ) -> Iterator[dict[str, int]]:
        return iter([{"n": metadata}])

    def partition_contains(self, partition: str, metadata: Any, what: str) -> bool:
        return str(metadata) == what

    def backlog(self, position: Any) -> int:
        return 2 * MOST - sum(map(int, (position or {}).values()))


class OwnPartitions(_Partitioned, PartitionedTransactionalSource):
    """Transactions of two partitions."""


class OwnOpaquePartitions(_Partitioned, OpaquePartitionedTransactionalSource):
    """Transactions of two partitions, whose replay may have other rows."""


def rows_of_interval(start: datetime, end: datetime, spark: Any = None) -> list[dict[str, Any]]:
    """Read a row of a data interval."""
    return [{"n": start.day}]


def rows_of_partition(partition: str, spark: Any = None) -> list[dict[str, Any]]:
    """Read a row of a partition."""
    return [{"n": len(partition)}]


def commands(rows: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Give the commands of a guard."""
    for row in rows:
        yield "HINCRBY", "guarded", row["key"], row["n"]
