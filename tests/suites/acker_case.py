"""What the suite of the ackers is made of: a store, an attempt, messages of it, and a worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.outputs.messages.messages import Collector, RootEmitter
from airflow_tx.outputs.messages.stores import AckerStore
from airflow_tx.outputs.messages.tree import Origin

SPLIT = TaskTry("split", -1, "try-1")
MakeStore = Callable[[], AckerStore]


class AckerCase:
    """Derive from it, with a fixture `make_store`: each call gives another client of the same store."""

    @pytest.fixture
    def store(self, make_store: MakeStore) -> AckerStore:
        return make_store()

    @pytest.fixture
    def topology(self) -> str:
        return f"words {uuid.uuid4().hex[:8]}/ü"

    @pytest.fixture
    def origin(self, topology: str) -> Origin:
        return Origin(topology, 7, 2)

    @pytest.fixture
    def roots(self, store: AckerStore, origin: Origin) -> RootEmitter:
        return opened(store, origin)

    @pytest.fixture
    def collector(self, store: AckerStore, origin: Origin) -> Iterator[Collector]:
        made = Collector(store, topology=origin.topology, interval=600)
        yield made
        made._ended.set()


def emitter(store: AckerStore, origin: Origin, *, ackers: int = 1, task: TaskTry = SPLIT) -> RootEmitter:
    """The messages of one try of a task."""
    return RootEmitter(store, origin, ackers, task)


def opened(store: AckerStore, origin: Origin, *, ackers: int = 1) -> RootEmitter:
    """As `begin` opens an attempt, and a task of it emits."""
    store.open(origin, "birth", ackers)
    return emitter(store, origin, ackers=ackers)
