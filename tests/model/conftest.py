"""Every trace runs on the in-memory store and on a real ZooKeeper."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.state import Sum
from airflow_tx.state.memory import MemoryState
from tests.model.driver import Topology


@pytest.fixture(params=["memory", "zookeeper"])
def store(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """Gives each process its store: one dictionary, or a connection to one server."""
    if request.param == "memory":
        only = MemoryStore()
        yield lambda: only
        return
    from airflow_tx.ledger.store.client import ClientConfig, connect
    from airflow_tx.ledger.store.zookeeper import ZooKeeperStore

    server = request.getfixturevalue("zookeeper")
    with ExitStack() as stack:
        client = connect(ClientConfig(hosts=server.hosts))
        stack.callback(client.close)
        stack.callback(client.stop)
        yield lambda: ZooKeeperStore(client)


@pytest.fixture
def root() -> str:
    return f"/trace-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topology(store: Callable[[], Any], root: str) -> Topology:
    """One opaque state."""
    return Topology(store, root, [counts("s0")])


@pytest.fixture
def journaled(store: Callable[[], Any], root: str) -> Topology:
    """One opaque state, and a journal: what is committed can be restated."""
    return Topology(store, root, [counts("s0")], journals=True)


@pytest.fixture
def two_states(store: Callable[[], Any], root: str) -> Topology:
    """Key a goes to the first state, the others to the second."""
    return Topology(store, root, [counts("s0"), counts("s1")])


@pytest.fixture
def transactional(store: Callable[[], Any], root: str) -> Topology:
    """A transactional source and a transactional state."""
    return Topology(store, root, [counts("s0", kind="transactional")], source="transactional")


@pytest.fixture
def partitioned(store: Callable[[], Any], root: str) -> Topology:
    """An opaque source whose partitions have a place of their own each."""
    return Topology(store, root, [counts("s0")], partitioned=True)


def counts(name: str, kind: str = "opaque") -> MemoryState:
    return MemoryState(name, keys=["key"], values={"n": Sum()}, kind=kind)
