"""A store of each kind, empty, with a root of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_tx.ledger.api import Store
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.suites.aggregator_cases import CASES


@pytest.fixture(params=["memory", "zookeeper"])
def each_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The store of each kind in turn."""
    if request.param == "memory":
        yield MemoryStore()
        return
    client = connect(ClientConfig(request.getfixturevalue("zookeeper").hosts))
    yield ZooKeeperStore(client)
    disconnect(client)


_ON_A_SERVER = ("TestSqlStateOnPostgres", "TestRedisState")
_WITHOUT_CASES = "TestSqlStateOnMariaDB"
_NOT_ALL_TYPES = "TestSqlStateOnMySQL"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On servers every aggregator is tried with one type, on the second database with none; those of all types are
    `long`, and are not tried on MySQL at all.

    Each case is a dozen commits, and how a type is stored is tried by the other tests and on SQLite.
    """
    items[:] = [item for item in items if _class(item) != _NOT_ALL_TYPES or _is_first(item)]
    for item in items:
        if (_class(item) in _ON_A_SERVER and not _is_first(item)) or (_class(item) == _WITHOUT_CASES and _case(item)):
            item.add_marker(pytest.mark.long)
        if _class(item) in _TOGETHER_ON_A_SERVER and item.callspec.params["kinds_of_group"] not in _GROUPS:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.long)


_TOGETHER_ON_A_SERVER = ("TestStatesTogetherOnPostgres", "TestStatesTogetherOnMariaDB")
# On SQLite, each kind is beside each other one.
_GROUPS = (("opaque", "transactional"), ("opaque", "table", "guard"))


def _is_first(item: pytest.Item) -> bool:
    """Whether a test of a case is of the first type of its aggregator; also if it is of none."""
    return _case(item) in {"", *_FIRST_OF_EACH}


def _case(item: pytest.Item) -> str:
    """The name of the case that a test is of; empty: of none."""
    called = getattr(item, "callspec", None)
    name = called.params.get("case") if called is not None else None
    return name if isinstance(name, str) else ""


def _class(item: pytest.Item) -> str:
    return getattr(getattr(item, "cls", None), "__name__", "")


# The name of a case is its aggregator and its type.
_FIRST_OF_EACH = {name.split()[0]: name for name in reversed(CASES)}.values()
