"""RotatingTransactionalState, over every store: Trident's semantics, and the checks that Trident lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import RequirementFailed, UnreadableRecord
from airflow_tx.ledger.api import Create, Paths, Put, Store, Write
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState
from airflow_tx.ledger.records import Counter, Metadata, encode

Change = Callable[[RotatingTransactionalState], tuple[Write, ...]]


class Steps:
    """Steps that change nothing but the state."""

    def __init__(self, store: Store, paths: Paths) -> None:
        self.store = store
        self.paths = paths
        for path in paths.folders:
            store.ensure(path)
        self.write(Create(paths.allocated, encode(Counter(0))))

    def write(self, *writes: Write) -> None:
        self.store.multi([], writes)

    @property
    def state(self) -> RotatingTransactionalState:
        return RotatingTransactionalState(Reader(self.store), self.paths)

    def run(self, change: Change, *, before: Callable[[], object] = lambda: None) -> None:
        """Make the writes of `change`, if what it has read still holds; `before` happens in between."""
        read = Reader(self.store)
        writes = change(RotatingTransactionalState(read, self.paths))
        before()
        created = frozenset(write.path for write in writes if isinstance(write, Create))
        self.store.multi(read.requirements(created), writes)

    def override(self, txid: int, value: Any) -> None:
        self.run(lambda state: (state.override_state(txid, Metadata(1, value, value)),))

    def rows(self, *txids: int) -> list[Any]:
        return [self.state.get_state(txid).rows if self.has(txid) else None for txid in txids]

    def has(self, txid: int) -> bool:
        return self.store.get(self.paths.meta(txid)) is not None


@pytest.fixture
def steps(each_store: Store, zookeeper_root: str) -> Steps:
    return Steps(each_store, Paths(zookeeper_root, "t"))


def never(before: Any) -> Metadata:
    raise AssertionError("the initializer must not be asked")


def test_a_new_rotating_state_is_empty(steps: Steps) -> None:
    assert steps.state.get_last_state() is None
    assert steps.state.get_previous_state(1) is None
    assert steps.state.position_before(1) is None


def test_a_missing_state_raises_an_error_and_is_not_treated_as_an_empty_state(steps: Steps) -> None:
    with pytest.raises(UnreadableRecord, match=f"{steps.paths.meta(7)}.*missing"):
        steps.state.get_state(7)
    with pytest.raises(UnreadableRecord, match=f"{steps.paths.meta(7)}.*missing"):
        steps.state.get_previous_state(8)


def test_the_initializer_gets_the_previous_position_and_its_result_is_stored(steps: Steps) -> None:
    for txid in (1, 2):
        _, writes = steps.state.get_state_or_create(txid, lambda at: Metadata(1, at, [at]))
        steps.write(*writes)
    assert steps.state.get_state(2) == Metadata(1, [None], [[None]])


def test_get_state_or_create_returns_a_stored_state(steps: Steps) -> None:
    steps.override(1, "first")
    assert steps.state.get_state_or_create(1, never) == (Metadata(1, "first", "first"), ())


def test_the_slower_of_two_processes_that_create_the_same_state_is_refused(steps: Steps) -> None:
    with pytest.raises(RequirementFailed, match=steps.paths.meta(1)):
        steps.run(
            lambda state: state.get_state_or_create(1, lambda at: Metadata(1, "slow", at))[1],
            before=lambda: steps.override(1, "fast"),
        )
    assert steps.rows(1) == ["fast"]


def test_previous_and_last_states_are_found_by_number_and_not_by_name(steps: Steps) -> None:
    for txid in (9, 10, 100):
        steps.override(txid, txid)
    steps.write(Create(f"{steps.paths.metas}/99", encode(Metadata(1, 99, 99))))
    assert steps.state.position_before(10) == 9
    assert steps.state.position_before(100) == 99
    steps.write(Put(steps.paths.allocated, encode(Counter(100))))
    assert steps.state.get_last_state() == Metadata(1, 100, 100)


def test_cleanup_before_keeps_the_state_of_the_given_txid_and_later_states(steps: Steps) -> None:
    for txid in (128, 129, 130):
        steps.override(txid, txid)
    steps.run(lambda state: state.cleanup_before(129))
    assert steps.rows(128, 129, 130) == [None, 129, 130]


def test_remove_state_deletes_one_state_and_ignores_a_missing_state(steps: Steps) -> None:
    steps.override(1, "a")
    steps.override(2, "b")
    for _ in range(2):
        steps.run(lambda state: state.remove_state(2))
    assert steps.rows(1, 2) == ["a", None]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: (state.override_state(1, Metadata(2, "stale", 0)),),
        lambda state: state.remove_state(1),
        lambda state: state.cleanup_before(2),
        lambda state: (state.override_state(2, Metadata(1, state.position_before(2), 0)),),
    ],
    ids=["override", "remove", "clean up", "decide from it"],
)
def test_a_change_is_refused_if_another_process_wrote_the_state_after_it_was_read(steps: Steps, change: Change) -> None:
    steps.override(1, "read")
    with pytest.raises(RequirementFailed, match=steps.paths.meta(1)):
        steps.run(change, before=lambda: steps.override(1, "newer"))
    assert steps.rows(1, 2) == ["newer", None]


@pytest.mark.parametrize("value", [None, 0, "x", [], {"rows": 1, "position": 2}])
def test_every_plain_json_value_is_stored_and_read_back_unchanged(steps: Steps, value: Any) -> None:
    steps.override(1, value)
    assert steps.state.get_state(1) == Metadata(1, value, value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format":2,"attempt":1,"rows":1,"position":1}'])
def test_a_damaged_record_or_a_record_of_a_newer_format_is_refused_with_its_path(steps: Steps, data: bytes) -> None:
    steps.write(Create(steps.paths.meta(1), data))
    for read in (lambda: steps.state.get_state(1), lambda: steps.state.get_state_or_create(1, never)):
        with pytest.raises(UnreadableRecord, match=steps.paths.meta(1)):
            read()
