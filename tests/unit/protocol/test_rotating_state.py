"""What RotatingTransactionalState reads, and what it makes of the records of older releases."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.protocol.api import Create, Delete, Node, Put
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, Metadata, encode
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.store.memory import MemoryStore

PATHS = Paths("/tx", "t")


class ListingStore(MemoryStore):
    """Lists the records that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        for path in (*PATHS.folders, PATHS.sources):
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


def by_partition(store: ListingStore) -> None:
    """Transaction 7 took up A and found nothing in C; B took part in transaction 5 last."""
    store.has(PATHS.place("A", 7), Metadata(1, [1, 2], 2, begin=1))
    store.has(PATHS.place("B", 5), Metadata(1, [0, 9], 9, begin=0))
    store.has(PATHS.place("C", 7), Metadata(1, None, 4))
    store.has(PATHS.meta(7), Metadata(3, None, None, partitions={"A": 7, "B": 5, "C": 7}))


def test_of_an_older_record_those_partitions_count_that_took_part_and_have_rows_or_a_beginning(
    store: ListingStore,
) -> None:
    by_partition(store)
    assert state(store).get_state(7) == Metadata(3, {"A": [1, 2]}, {"A": 2, "B": 9, "C": 4}, begin={"A": 1})


def test_an_older_record_in_which_no_partition_took_part_has_no_rows(store: ListingStore) -> None:
    store.has(PATHS.place("B", 5), Metadata(1, [0, 9], 9, begin=0))
    store.has(PATHS.meta(7), Metadata(3, None, None, partitions={"B": 5}))
    assert state(store).get_state(7) == Metadata(3, None, {"B": 9})


def test_a_new_state_is_created_without_a_look_at_whether_it_is_there(store: ListingStore) -> None:
    store.has(PATHS.meta(1), Metadata(1, "a", "a"))
    store.read.clear()
    _, writes = state(store, hasty=True).get_state_or_create(2, lambda before: Metadata(1, before, before))
    assert isinstance(writes[0], Create)
    assert store.read == [PATHS.meta(1)]


def test_what_was_read_is_replaced_and_removed_without_another_look(store: ListingStore) -> None:
    store.has(PATHS.meta(1), Metadata(1, "a", "a"))
    found = state(store)
    found.get_state(1)
    store.read.clear()
    assert isinstance(found.override_state(1, Metadata(2, "b", "b")), Put)
    assert found.remove_state(1) == (Delete(PATHS.meta(1)),)
    assert found.cleanup_before(2) == (Delete(PATHS.meta(1)),)
    assert store.read == []


def test_the_end_of_a_transaction_reads_the_state_before_it_once(store: ListingStore) -> None:
    by_partition(store)
    store.has(PATHS.meta(8), Metadata(1, "a", "a"))
    store.read.clear()
    found = state(store)
    assert found.last_by_partition(8) is True
    assert found.cleanup_before(8) == (Delete(PATHS.meta(7)),)
    assert store.read.count(PATHS.meta(7)) == 1


def test_before_the_first_transaction_there_is_nothing_to_clean_up(store: ListingStore) -> None:
    assert state(store).last_by_partition(1) is False
    assert state(store).cleanup_before(1) == ()
    assert store.read == []


def test_a_transaction_whose_predecessor_is_not_kept_is_not_the_last_of_its_kind(store: ListingStore) -> None:
    assert state(store).last_by_partition(2) is False
    assert store.read == [PATHS.meta(1)]


def test_the_second_transaction_may_be_the_last_after_one_by_partition(store: ListingStore) -> None:
    store.has(PATHS.meta(1), Metadata(1, None, None, partitions={"A": 1}))
    for txid in range(2, 9):
        store.has(PATHS.meta(txid), Metadata(1, "a", "a"))
    assert state(store).last_by_partition(2) is True
