"""A cache is never older than its store: when it is emptied, what it keeps, and what it drops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_tx.base.errors import ChunkConflict, ConfigError
from airflow_tx.ledger.attempt import Token
from airflow_tx.state import CachedMap, CombinerValueUpdater, MemoryMap, OpaqueMap, OpaqueValue, Sum, TransactionalMap
from airflow_tx.state.keys import Key


class Store(MemoryMap[Any]):
    """Notes which keys are asked for."""

    def __init__(self) -> None:
        super().__init__({("a",): 1, ("b",): 2})
        self.asked: list[list[Key]] = []
        self.fail: Exception | None = None

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        self.asked.append(list(keys))
        return super().multi_get(keys)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        super().multi_put(keys, values)
        if self.fail is not None:
            raise self.fail


def token(txid: int, attempt: int = 1, epoch: int = 1) -> Token:
    return Token(1, txid, attempt, epoch, "nonce")


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_key_is_read_once_per_batch_even_if_it_does_not_exist(store: Store) -> None:
    cache = CachedMap(store)
    cache.begin_commit(1)
    assert cache.multi_get([("a",), ("none",)]) == cache.multi_get([("a",), ("none",)]) == [1, None]
    assert cache.multi_get([("none",), ("b",)]) == [None, 2]
    assert store.asked == [[("a",), ("none",)], [("b",)]]


def test_the_least_recently_used_key_is_removed_first(store: Store) -> None:
    cache = CachedMap(store, size=2)
    cache.begin_commit(1)
    for key in ("a", "b", "a", "c", "a", "b"):
        cache.multi_get([(key,)])
    assert store.asked == [[("a",)], [("b",)], [("c",)], [("b",)]]


def test_all_requested_keys_are_returned_even_if_the_cache_is_smaller(store: Store) -> None:
    cache = CachedMap(store, size=1)
    cache.begin_commit(1)
    cache.multi_put([("x",), ("y",)], [7, 8])
    assert cache.multi_get([("x",), ("a",), ("y",)]) == [7, 1, 8]


@pytest.mark.parametrize(
    ("following", "found", "kept"),
    [
        (token(2), token(1), True),
        (token(2), None, False),  # nobody knows what the fence held
        (token(2), token(1, epoch=2), False),  # another writer was there
        (token(3), token(2), False),
        (token(1), token(1), True),  # the same grant again
        (token(1, attempt=2), token(1), False),  # a replay: raising the fence undid what was written
        (None, token(1), False),
    ],
)
def test_a_cache_is_kept_across_batches_only_if_the_fence_proves_that_no_other_writer_wrote(
    store: Store, following: Token | None, found: Token | None, kept: bool
) -> None:
    cache = CachedMap(store)
    cache.begin_commit(1, token=token(1))
    cache.multi_get([("a",)])
    cache.commit(1)
    cache.begin_commit(2, token=following, found=found)
    cache.multi_get([("a",)])
    assert len(store.asked) == (1 if kept else 2)


def test_the_cache_of_an_unfinished_batch_is_cleared(store: Store) -> None:
    cache = CachedMap(store)
    cache.begin_commit(1, token=token(1))
    cache.multi_get([("a",)])
    cache.begin_commit(2, token=token(2), found=token(1))
    cache.multi_get([("a",)])
    assert len(store.asked) == 2


def test_a_failed_write_removes_only_its_own_keys_from_the_cache(store: Store) -> None:
    cache = CachedMap(store)
    cache.begin_commit(1)
    cache.multi_get([("a",), ("b",)])
    store.fail = ConnectionError("no answer")
    with pytest.raises(ConnectionError):
        cache.multi_put([("a",)], [10])
    assert cache.multi_get([("a",), ("b",)]) == [10, 2]
    assert store.asked[1:] == [[("a",)]]


def test_a_map_caches_nothing_outside_of_a_batch(store: Store) -> None:
    cache = CachedMap(store)
    cache.multi_get([("a",)])
    cache.multi_put([("a",)], [5])
    store.values[("a",)] = 6
    assert cache.multi_get([("a",)]) == [6]


def test_a_cache_size_of_zero_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="size"):
        CachedMap(store, size=0)


@pytest.mark.parametrize("made", [OpaqueMap, TransactionalMap])
def test_a_second_chunk_with_the_same_key_is_refused(made: Any) -> None:
    values: dict[Key, Any] = {}
    for chunk in (1, 2):
        state = made(MemoryMap(values), name="words")
        state.begin_commit(1, token=token(1), chunk=chunk)
        if chunk == 1:
            state.multi_update([("a",)], [CombinerValueUpdater(Sum(), 1)])
            continue
        with pytest.raises(ChunkConflict, match="'words' refused: key .'a',. came from chunk 1 and from chunk 2"):
            state.multi_update([("a",)], [CombinerValueUpdater(Sum(), 1)])


def test_a_stored_value_contains_the_token_and_the_chunk_of_its_writer() -> None:
    values: dict[Key, Any] = {}
    state: OpaqueMap[int] = OpaqueMap(MemoryMap(values))
    state.begin_commit(1, token=token(1), chunk=3)
    state.multi_update([("a",)], [CombinerValueUpdater(Sum(), 1)])
    assert values == {("a",): OpaqueValue(1, 1, None, token(1), 3)}
