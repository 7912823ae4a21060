"""What MemcachedState does on real servers; and what Memcached cannot do, exactly as its docstring says."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, StateError, StateUnavailable
from airflow_tx.state import (
    CombinerValueUpdater,
    Count,
    OpaqueValue,
    SnapshottableMap,
    StateFactory,
    StateKind,
    Sum,
    TransactionalValue,
)
from airflow_tx.state.memcached import MemcachedMap, MemcachedState
from tests.servers.memcached import LocalMemcached

Map = SnapshottableMap[Any]
KINDS = {
    "opaque": MemcachedState.opaque,
    "transactional": MemcachedState.transactional,
    "non-transactional": MemcachedState.non_transactional,
}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalMemcached]:
    with LocalMemcached() as started:
        yield started


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}:"


def _state(server: LocalMemcached, prefix: str, kind: str = "opaque", **options: Any) -> Map:
    return KINDS[kind]([server.address], prefix=prefix, **options).make_state({}, 0, 1)


def _add(state: Map, deltas: dict[str, int]) -> list[Any]:
    return state.multi_update([(key,) for key in deltas], [CombinerValueUpdater(Sum(), n) for n in deltas.values()])


def _commit(state: Map, txid: int, deltas: dict[str, int]) -> None:
    state.begin_commit(txid)
    _add(state, deltas)
    state.commit(txid)


def _get(state: Map, *keys: str) -> list[Any]:
    found: list[Any] = state.multi_get([(key,) for key in keys])
    return found


@pytest.mark.parametrize("cache", [None, 2])
def test_an_opaque_map_counts_words_like_the_trident_tutorial(
    server: LocalMemcached, prefix: str, cache: int | None
) -> None:
    factory: StateFactory[Map] = MemcachedState.opaque([server.address], prefix=prefix, cache=cache)
    counts = factory.make_state({}, 0, 1)
    for txid, words in enumerate((["man", "man", "dog"], ["man", "dog"], ["man", "dog"]), 2):
        txid = min(txid, 3)  # the third is a replay of the second
        counts.begin_commit(txid)
        counts.multi_update([(word,) for word in words], [CombinerValueUpdater(Count(), 1)] * len(words))
        counts.update(CombinerValueUpdater(Count(), len(words)))
        counts.commit(txid)
    assert _get(counts, "man", "dog", "apple") == [3, 2, None]
    assert counts.get() == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_memcached_state_reports_the_kind_it_was_created_with(server: LocalMemcached, prefix: str, kind: str) -> None:
    factory = KINDS[kind]([server.address], prefix=prefix)
    assert (factory.kind, factory.can_roll_back, factory.name) == (
        StateKind(kind),
        kind == "opaque",
        f"memcached.{prefix}",
    )
    state = factory.make_state({}, 0, 1)
    for _ in range(2):
        _commit(state, 1, {"a": 1})
    assert _get(state, "a") == [2 if kind == "non-transactional" else 1]


def test_the_examples_of_the_storm_documentation_give_the_documented_values(
    server: LocalMemcached, prefix: str
) -> None:
    backing = MemcachedMap([server.address], prefix=prefix)
    backing.multi_put([("count",)], [OpaqueValue(2, 4, 1)])
    state = _state(server, prefix)
    _commit(state, 2, {"count": 2})
    assert backing.multi_get([("count",)]) == [OpaqueValue(2, 3, 1)]
    backing.multi_put([("count",)], [OpaqueValue(2, 4, 1)])
    _commit(state, 3, {"count": 2})
    assert backing.multi_get([("count",)]) == [OpaqueValue(3, 6, 4)]
    stored = {
        ("man",): TransactionalValue(1, 3),
        ("dog",): TransactionalValue(3, 4),
        ("apple",): TransactionalValue(2, 10),
    }
    backing.multi_put(list(stored), list(stored.values()))
    _commit(_state(server, prefix, "transactional"), 3, {"man": 2, "dog": 1})
    assert [value.value for value in backing.multi_get(list(stored))] == [5, 4, 10]


_HARD = ["", "a b", "\n\r\t", "ä日本", "x" * 300, "x" * 301, "é" * 240, "%20", "get 1\r\nflush_all\r\n", '"', "#" * 230]


def test_any_key_is_stored_under_a_unique_name_of_at_most_250_bytes(server: LocalMemcached, prefix: str) -> None:
    state = _state(server, prefix)
    for txid in (1, 2):
        _commit(state, txid, {key: 1 + number for number, key in enumerate(_HARD)})
    assert _get(_state(server, prefix), *_HARD) == [2 * (1 + number) for number in range(len(_HARD))]


def test_the_server_of_a_key_does_not_depend_on_the_order_of_the_servers(prefix: str) -> None:
    keys = {f"key {number}": number for number in range(3000)}
    with LocalMemcached() as first, LocalMemcached() as second:
        addresses = [first.address, second.address]
        _commit(MemcachedState.opaque(addresses, prefix=prefix).make_state({}, 0, 1), 1, keys)
        for servers in (addresses, addresses[::-1]):
            assert _get(MemcachedState.opaque(servers, prefix=prefix).make_state({}, 0, 1), *keys) == list(
                keys.values()
            )
        alone = [_get(_state(server, prefix), *keys).count(None) for server in (first, second)]
        assert sum(alone) == 3000
        assert min(alone) > 1000


def test_a_value_is_not_overwritten_if_another_writer_replaced_it_after_the_read(
    server: LocalMemcached, prefix: str
) -> None:
    """What cas is good for: a committer thought dead that wakes up between its get and its put."""

    class Waking(CombinerValueUpdater[int]):
        def update(self, stored: int | None) -> int | None:
            found: int | None = super().update(stored)
            _commit(_state(server, prefix), 1, {"a": 1, "new": 1})
            return found

    for key in ("a", "new"):
        state = _state(server, prefix)
        state.begin_commit(1)
        with pytest.raises(StateError, match="1 of 1 values were not written, because another writer"):
            state.multi_update([(key,)], [Waking(Sum(), 100)])
    assert _get(_state(server, prefix), "a", "new") == [1, 1]


# --- what Memcached cannot do ------------------------------------------------------------------------------------


def test_a_key_written_only_by_a_failed_attempt_keeps_its_wrong_value(server: LocalMemcached, prefix: str) -> None:
    _commit(_state(server, prefix), 1, {"a": 1, "b": 1})
    state = _state(server, prefix)
    state.begin_commit(2)
    _add(state, {"a": 10, "b": 10})
    replay = _state(server, prefix)
    _commit(replay, 2, {"a": 10})
    _commit(replay, 3, {"a": 100, "b": 100})
    assert _get(replay, "a", "b") == [111, 111]  # exact would be 101


def test_a_late_writer_that_reads_after_the_replay_is_not_refused(server: LocalMemcached, prefix: str) -> None:
    zombie = _state(server, prefix)
    zombie.begin_commit(1)
    _commit(_state(server, prefix), 1, {"a": 1})
    _add(zombie, {"a": 5})
    assert _get(_state(server, prefix), "a") == [5]  # exact would be 1


def test_all_values_are_lost_after_a_server_restart(prefix: str) -> None:
    with LocalMemcached() as server:
        state = _state(server, prefix)
        _commit(state, 1, {"a": 5})
        server.restart()
        with pytest.raises(StateUnavailable):  # the connection breaks
            _get(state, "a")
        _commit(state, 2, {"a": 1})
        assert _get(state, "a") == [1]  # exact would be 6


def test_a_value_that_the_server_evicts_is_lost(prefix: str) -> None:
    with LocalMemcached(megabytes=2) as server:
        state = _state(server, prefix, "non-transactional")
        state.multi_put([("a",)], ["a" * 5000])
        for number in range(2000):
            state.multi_put([(f"filler {number}",)], ["x" * 5000])
        assert _get(state, "a") == [None]


# --- servers that do not do it -----------------------------------------------------------------------------------


def test_the_error_names_the_server_that_is_down(prefix: str) -> None:
    server = LocalMemcached()  # never started
    state = _state(server, prefix)
    state.begin_commit(1)
    uses: list[Callable[[], Any]] = [lambda: _get(state, "a"), lambda: _add(state, {"a": 1})]
    for use in uses:
        with pytest.raises(StateUnavailable, match=rf"Memcached {server.address}.*cannot be reached.*refused"):
            use()
    server.close()


def test_keys_of_a_server_that_is_down_are_not_read_from_another_server(prefix: str) -> None:
    keys = {f"key {number}": 1 for number in range(100)}
    with LocalMemcached() as first, LocalMemcached() as second:
        factory = MemcachedState.opaque([first.address, second.address], prefix=prefix)
        _commit(factory.make_state({}, 0, 1), 1, keys)
        second.kill()
        with pytest.raises(StateUnavailable, match=second.address):
            _get(factory.make_state({}, 0, 1), *keys)


def test_a_value_that_is_too_large_is_refused_and_other_keys_can_still_be_written(
    server: LocalMemcached, prefix: str
) -> None:
    state = _state(server, prefix)
    state.begin_commit(1)
    with pytest.raises(StateError, match="too large"):
        state.multi_put([("a",), ("b",)], ["x" * 2_000_000, "y"])
    _commit(state, 1, {"b": 1})
    assert _get(state, "b") == [1]


def test_a_value_that_another_program_stored_is_refused(server: LocalMemcached, prefix: str) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.port)) as other:
        other.sendall(f'set {prefix}["a"] 0 0 4\r\nmine\r\n'.encode())
        assert other.recv(100) == b"STORED\r\n"
    with pytest.raises(StateError, match="was not written by a map"):
        _get(_state(server, prefix), "a")


def test_the_servers_of_a_connection_are_read_at_first_use(
    server: LocalMemcached, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = MemcachedState.opaque("tx_cache", prefix=prefix)
    assert repr(factory) == f"MemcachedState('tx_cache', kind='opaque', prefix={prefix!r})"
    for host, port in ((server.address, None), ("127.0.0.1", server.port)):
        told: dict[str, Any] = {"conn_type": "memcached", "host": host, "port": port}
        monkeypatch.setenv("AIRFLOW_CONN_TX_CACHE", json.dumps(told))
        _commit(factory.make_state({}, 0, 1), 1, {"a": 5})
    assert _get(_state(server, prefix), "a") == [5]
    for told, problem in (
        ({"conn_type": "redis", "host": "h"}, "needs a connection of type memcached"),
        ({"conn_type": "memcached", "host": "a,b:x"}, r"host = 'a,b:x'.*several with commas"),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_TX_CACHE", json.dumps(told))
        with pytest.raises(ConfigError, match=problem):
            _get(factory.make_state({}, 0, 1), "a")


@pytest.mark.parametrize("wrong", [{"servers": []}, {"servers": "host:1"}, {"servers": ["host:x"]}, {"prefix": "a b"}])
def test_invalid_arguments_are_refused_when_the_state_is_created(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MemcachedState.opaque(**{"servers": ["host:11211"], **wrong})


def test_an_update_of_many_keys_is_sent_in_few_requests(server: LocalMemcached, prefix: str) -> None:
    many = {f"key {number}": number for number in range(5_000)}
    state = _state(server, prefix)
    for txid in (1, 2):
        _commit(state, txid, many)
    assert _get(state, *many) == [2 * number for number in range(5_000)]
