"""RotatingTransactionalState, over every store: Trident's semantics, and the checks that Trident lacks."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.errors import RequirementFailed, UnreadableRecord
from airflow_tx.protocol.api import Create, Put, Store
from airflow_tx.protocol.records import Metadata, decode, encode
from airflow_tx.protocol.rotating import RotatingTransactionalState
from airflow_tx.testing.faulty_store import FaultyStore


@pytest.fixture
def store(each_store: Store) -> FaultyStore:
    return FaultyStore(each_store)


@pytest.fixture
def path(zookeeper_root: str) -> str:
    return f"{zookeeper_root}/partition"


@pytest.fixture
def state(store: FaultyStore, path: str) -> RotatingTransactionalState:
    return RotatingTransactionalState(store, path)


def never(txid: int, last: Any) -> Any:
    raise AssertionError("the initializer must not be asked")


def test_nothing_is_there_at_first(state: RotatingTransactionalState) -> None:
    assert state.get_state(1) is None
    assert state.get_last_state() is None
    assert state.get_previous_state(7) is None


def test_the_initializer_gets_the_last_state_and_none_says_that_it_was_created(
    state: RotatingTransactionalState,
) -> None:
    assert state.get_state_or_create(3, lambda txid, last: [txid, last]) is None
    assert state.get_state_or_create(4, lambda txid, last: [txid, last]) is None
    assert state.get_state(4) == [4, [3, None]]


def test_a_stored_state_is_given_to_whoever_comes_later(
    state: RotatingTransactionalState, store: FaultyStore, path: str
) -> None:
    state.get_state_or_create(1, lambda txid, last: "first")
    assert state.get_state_or_create(1, never) == "first"
    assert RotatingTransactionalState(store, path).get_state_or_create(1, never) == "first"


def test_a_gap_before_a_later_txid_is_filled_with_nothing(state: RotatingTransactionalState) -> None:
    state.override_state(5, "later")
    assert state.get_state_or_create(4, never) is None
    assert state.get_state(4) is None
    assert state.get_last_state() == "later"


def test_previous_and_last_go_by_number_not_by_name(state: RotatingTransactionalState) -> None:
    for txid in (9, 10, 100):
        state.override_state(txid, txid)
    assert state.get_last_state() == 100
    assert state.get_previous_state(100) == 10
    assert state.get_previous_state(50) == 10
    assert state.get_previous_state(9) is None


def test_cleanup_before_keeps_the_txid_and_what_follows(state: RotatingTransactionalState, store: Store) -> None:
    for txid in range(1, 131):
        state.override_state(txid, txid)
    state.cleanup_before(129)
    assert [state.get_state(txid) for txid in (1, 100, 128, 129, 130)] == [None, None, None, 129, 130]


def test_remove_forgets_one_state_and_nothing_if_there_is_none(state: RotatingTransactionalState) -> None:
    state.override_state(1, "a")
    state.override_state(2, "b")
    state.remove_state(2)
    state.remove_state(2)
    assert (state.get_state(1), state.get_state(2)) == ("a", None)


def test_override_refuses_what_somebody_else_has_written(
    state: RotatingTransactionalState, store: FaultyStore, path: str
) -> None:
    other = RotatingTransactionalState(store, path)
    state.override_state(1, "mine")
    with pytest.raises(RequirementFailed, match=f"{path}/1"):
        other.override_state(1, "unseen")
    assert other.get_state(1) == "mine"
    other.override_state(1, "seen")
    with pytest.raises(RequirementFailed):
        state.override_state(1, "stale")
    with pytest.raises(RequirementFailed):
        state.remove_state(1)
    assert state.get_state(1) == "seen"


def test_of_two_creators_one_creates_and_the_other_gets_it(store: FaultyStore, path: str) -> None:
    one, two = RotatingTransactionalState(store, path), RotatingTransactionalState(store, path)

    def slow(txid: int, last: Any) -> str:
        assert two.get_state_or_create(txid, lambda *_: "fast") is None
        return "slow"

    assert one.get_state_or_create(1, slow) == "fast"


@pytest.mark.parametrize("happens", [True, False])
def test_a_lost_reply_creates_once(state: RotatingTransactionalState, store: FaultyStore, happens: bool) -> None:
    store.lose_reply(happens=happens)
    answer = state.get_state_or_create(1, lambda *_: "mine")
    assert answer == ("mine" if happens else None)
    assert state.get_state(1) == "mine"


@pytest.mark.parametrize("happens", [True, False])
def test_a_lost_reply_overrides_removes_and_cleans_up_once(
    state: RotatingTransactionalState, store: FaultyStore, happens: bool
) -> None:
    for value in ("first", "second"):
        store.lose_reply(happens=happens)
        state.override_state(1, value)
        assert state.get_state(1) == value
    state.override_state(2, "two")
    store.lose_reply(happens=happens)
    state.remove_state(1)
    assert state.get_state(1) is None
    store.lose_reply(happens=happens)
    state.cleanup_before(3)
    assert state.get_last_state() is None


def test_a_lost_override_is_refused_if_somebody_else_wrote_meanwhile(
    state: RotatingTransactionalState, store: FaultyStore, each_store: Store, path: str
) -> None:
    state.override_state(1, "mine")
    store.lose_reply(happens=False, then=lambda: each_store.multi([], [Put(f"{path}/1", encode(Metadata(1, 0, 0)))]))
    with pytest.raises(RequirementFailed):
        state.override_state(1, "again")
    assert state.get_state(1) == 0


def test_it_reads_and_writes_the_metadata_of_a_ledger(
    state: RotatingTransactionalState, each_store: Store, path: str
) -> None:
    each_store.ensure(path)
    each_store.multi([], [Create(f"{path}/7", encode(Metadata(2, ["a"], {"after": "a"})))])
    each_store.multi([], [Create(f"{path}/8", encode(Metadata(1, "same", "same")))])
    assert state.get_state(7) == {"rows": ["a"], "position": {"after": "a"}}
    assert state.get_last_state() == "same"
    state.override_state(7, {"rows": ["b"], "position": 9})
    node = each_store.get(f"{path}/7")
    assert node is not None
    assert decode(Metadata, path, node.data) == Metadata(1, ["b"], 9)


@pytest.mark.parametrize(
    "value", [None, 0, "x", [], {"rows": 1, "position": 1}, {"rows": 1, "position": 2}, {"rows": 1}]
)
def test_any_plain_json_comes_back_as_it_was(state: RotatingTransactionalState, value: Any) -> None:
    state.override_state(1, value)
    assert state.get_state(1) == value


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format":2,"attempt":1,"rows":1,"position":1}'])
def test_a_damaged_or_newer_record_stops_with_its_path(
    state: RotatingTransactionalState, each_store: Store, path: str, data: bytes
) -> None:
    each_store.ensure(path)
    each_store.multi([], [Create(f"{path}/1", data)])
    for read in (state.get_last_state, lambda: state.get_state_or_create(1, never)):
        with pytest.raises(UnreadableRecord, match=f"{path}/1"):
            read()


def test_a_record_that_is_no_txid_stops_with_its_path(
    state: RotatingTransactionalState, each_store: Store, path: str
) -> None:
    each_store.ensure(f"{path}/x1")
    with pytest.raises(UnreadableRecord, match=f"{path}/x1"):
        state.get_last_state()
