"""The pytest fixtures `zookeeper` and `zookeeper_root`: `pytest -p airflow_tx.testing` loads them.

A test run that loads them may not need them, so this module imports nothing but pytest.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[LocalZooKeeper]:
    """Start a real ZooKeeper, one for all tests. A test that stops or restores it starts its own instead."""
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

    with LocalZooKeeper(fsync=False) as server:
        yield server


@pytest.fixture
def zookeeper_root() -> str:
    """Return a path for this test alone, so that tests share one ZooKeeper. Nothing exists there yet."""
    return f"/test-{uuid.uuid4().hex[:12]}"
