"""A ledger in memory, without a state."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_tx.ledger.api import Node, Requirement, Write
from airflow_tx.ledger.store.memory import MemoryStore
from tests.model.driver import Topology


class ListingStore(MemoryStore):
    """Lists the records that are read, and the multis."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def get(self, path: str) -> Node | None:
        self.calls.append(path)
        return super().get(path)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        self.calls.append("multi")
        super().multi(requirements, writes)


@pytest.fixture
def topology() -> Topology:
    store = ListingStore()
    return Topology(lambda: store, "/tx", [])
