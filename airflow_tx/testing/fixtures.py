"""The pytest fixtures `zookeeper` and `zookeeper_root`. `pytest -p airflow_tx.testing` loads them.

A test run may load the fixtures without using them, so this module imports only pytest.
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
    """Start a real ZooKeeper for all tests. A test that stops or restores a ZooKeeper must start its own."""
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

    with LocalZooKeeper(fsync=False) as server:
        yield server


@pytest.fixture
def zookeeper_root() -> str:
    """Return a new, empty path for each test, so that all tests can share one ZooKeeper."""
    return f"/test-{uuid.uuid4().hex[:12]}"
