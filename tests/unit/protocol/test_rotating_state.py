"""What RotatingTransactionalState reads."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.ledger.api import Create, Delete, Node, Paths, Put
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState
from airflow_tx.ledger.records import Counter, Metadata, encode
from airflow_tx.ledger.store.memory import MemoryStore
from tests.model.driver import Run, Topology

PATHS = Paths("/tx", "t")


class ListingStore(MemoryStore):
    """Lists the records that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        for path in PATHS.folders:
            self.ensure(path)
        self.multi([], [Create(PATHS.allocated, encode(Counter(8)))])

    def get(self, path: str) -> Node | None:
        self.read.append(path)
        return super().get(path)

    def has(self, path: str, record: Any) -> None:
        self.ensure(path.rpartition("/")[0])
        self.multi([], [Create(path, encode(record))])


@pytest.fixture
def store() -> ListingStore:
    return ListingStore()


def state(store: ListingStore, *, hasty: bool = False) -> RotatingTransactionalState:
    return RotatingTransactionalState(Reader(store, hasty=hasty), PATHS)


def test_a_new_state_of_the_ledger_is_created_without_reading_whether_it_exists(store: ListingStore) -> None:
    store.has(PATHS.meta(1), Metadata(1, "a", "a"))
    store.read.clear()
    _, writes = state(store, hasty=True).get_state_or_create(2, lambda before: Metadata(1, before, before))
    assert isinstance(writes[0], Create)
    assert store.read == [PATHS.meta(1)]


def test_a_state_of_the_ledger_that_was_read_is_replaced_and_removed_without_another_read(store: ListingStore) -> None:
    store.has(PATHS.meta(1), Metadata(1, "a", "a"))
    found = state(store)
    found.get_state(1)
    store.read.clear()
    assert isinstance(found.override_state(1, Metadata(2, "b", "b")), Put)
    assert found.remove_state(1) == (Delete(PATHS.meta(1)),)
    assert found.cleanup_before(2) == (Delete(PATHS.meta(1)),)
    assert store.read == []


def test_the_end_of_a_transaction_reads_the_ledger_state_of_its_predecessor_once() -> None:
    store = MemoryStore()
    topology = Topology(lambda: store, "/tx", [])
    first, second = Run(topology, "r1"), Run(topology, "r2")
    first.whole(1)
    second.processed(1, {})
    read = list[str]()
    get = store.get
    store.get = lambda path: read.append(path) or get(path)  # type: ignore[method-assign,func-returns-value]
    second.commit()
    assert read.count(topology.paths.meta(1)) == 1
    assert get(topology.paths.meta(1)) is None


def test_cleaning_up_before_the_first_transaction_removes_nothing(store: ListingStore) -> None:
    assert state(store).cleanup_before(1) == ()
    assert store.read == []
