"""Blocks of a DAG, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from airflow.sdk import (
    DAG,
    task,
)

from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.base.errors import TransactionDefinitionError
from airflow_tx.sources.api import Batch, Json, SourceKind, TransactionalSource
from airflow_tx.state import Count, MemoryState


class Numbers(TransactionalSource):
    def __init__(self, kind: SourceKind = SourceKind.TRANSACTIONAL) -> None:
        self.kind = kind

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Numbers", {}

    def initialize_transaction(self, txid: int, position: Json) -> Batch | None:
        return None

    def emit_batch(self, attempt: Any, metadata: Json, spark: Any = None) -> Iterator[Mapping[str, Any]]:
        return iter(())


def state(name: str = "totals", kind: str = "opaque") -> MemoryState:
    return MemoryState(name, keys=["word"], values={"count": Count()}, kind=kind)


def dag(**options: Any) -> DAG:
    return DAG("words", **{"schedule": None, "max_active_runs": 8, **options})


def block(**options: Any) -> Transaction:
    return Transaction(**{"source": Numbers(), "max_pending": 4, **options})


@task
def count(batch: Any) -> list[dict[str, Any]]:
    return []


def commit(*inputs: Any, task_id: Any = "commit", **options: Any) -> CommitOperator:
    updates = [persistent_aggregate(each, state=state(f"totals{n}")) for n, each in enumerate(inputs)]
    return CommitOperator(task_id=task_id, updates=updates, **options)


def refused(match: str) -> Any:
    return pytest.raises(TransactionDefinitionError, match=match)
