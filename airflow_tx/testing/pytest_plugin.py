"""Pytest fixtures for users and for us: ``zookeeper`` and ``zookeeper_root``.

Every pytest run in an environment with this package imports the plugin, so it imports nothing but pytest.
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
    """A real ZooKeeper, one for all tests; a test that stops or restores it should make its own instead."""
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

    with LocalZooKeeper(fsync=False) as server:
        yield server


@pytest.fixture
def zookeeper_root() -> str:
    """A path of its own for every test, so that tests on one ZooKeeper never meet; nothing exists there yet."""
    return f"/test-{uuid.uuid4().hex[:12]}"
