"""A store of each kind, empty, with a root of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_tx.protocol.api import Store
from airflow_tx.store.client import ClientConfig, connect, disconnect
from airflow_tx.store.memory import MemoryStore
from airflow_tx.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.state_values import CASES


@pytest.fixture(params=["memory", "zookeeper"])
def each_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The store of each kind in turn."""
    if request.param == "memory":
        yield MemoryStore()
        return
    client = connect(ClientConfig(request.getfixturevalue("zookeeper").hosts))
    yield ZooKeeperStore(client)
    disconnect(client)


_ON_A_SERVER = ("TestSqlStateOnPostgres", "TestSqlStateOnMariaDB")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On database servers every aggregator is tried with one type; those of all types are `long`.

    Each case is a dozen commits, and how a type is stored is tried by the other tests and on SQLite.
    """
    for item in items:
        case = getattr(item, "callspec", None)
        name = case.params.get("case") if case is not None else None
        if isinstance(name, str) and _class(item) in _ON_A_SERVER and name not in _FIRST_OF_EACH:
            item.add_marker(pytest.mark.long)


def _class(item: pytest.Item) -> str:
    return getattr(getattr(item, "cls", None), "__name__", "")


# The name of a case is its aggregator and its type.
_FIRST_OF_EACH = {name.split()[0]: name for name in reversed(CASES)}.values()
