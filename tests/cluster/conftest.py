"""What breaks here is broken on purpose; nobody else's servers are used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster.world import Topology, World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of this folder: none of it belongs to the default run."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("cluster")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three ZooKeepers, a database and two workers' hosts, for the tests of one file."""
    from tests.cluster.hosts import require_network
    from tests.cluster.world import World

    require_network()
    with World(tmp_path_factory.mktemp("world")) as world:
        yield world


@pytest.fixture
def topology(world: World) -> Iterator[Topology]:
    """A topology of this test alone; all hosts reach each other again afterwards."""
    with world.topology() as topology:
        yield topology
