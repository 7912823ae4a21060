"""A ledger in memory, without a state."""

from __future__ import annotations

import pytest

from airflow_tx.store.memory import MemoryStore
from tests.model.driver import Topology


@pytest.fixture
def topology() -> Topology:
    store = MemoryStore()
    return Topology(lambda: store, "/tx", [])
