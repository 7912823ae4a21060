"""Two states compared, on every store that keeps values per key: `airflow_tx.state.comparison`."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import NotComparable, NotComparableNow
from airflow_tx.state import (
    Avg,
    CollectSet,
    Count,
    DeltaTable,
    MemoryState,
    OpaqueMap,
    RedisState,
    SqlState,
    Sum,
    comparison,
)
from airflow_tx.state.api import FencedState, QueryableState
from airflow_tx.state.comparison import StateComparison, compared
from airflow_tx.state.memory import MemoryMap
from airflow_tx.state.trident import TridentAggregate
from airflow_tx.testing.suites.state_tools import Grants, batch_of

MakeNamed = Callable[..., QueryableState]
SNAPSHOTS = ("sqlite", "postgres", "mariadb")
STORES = (*SNAPSHOTS, "redis", "memory")
GIVEN: dict[str, Any] = {"keys": ["key"], "values": {"n": Sum()}}


def _maker(store: str, request: pytest.FixtureRequest, folder: Path) -> MakeNamed:
    prefix = f"t{uuid.uuid4().hex[:8]}"
    if store == "memory":
        return lambda name, **given: MemoryState(f"memory.{name}", **{**GIVEN, **given})
    if store == "redis":
        url = request.getfixturevalue("redis").url()
        return lambda name, **given: RedisState.from_url(url, prefix=f"{prefix}.{name}", **{**GIVEN, **given})
    url = f"sqlite:///{folder}/state.db" if store == "sqlite" else request.getfixturevalue(store).url()
    return lambda name, **given: SqlState.from_url(url, label=store, table=f"{prefix}_{name}", **{**GIVEN, **given})


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeNamed:
    """Make a state in each store in turn."""
    return _maker(request.param, request, tmp_path)


@pytest.fixture
def other(request: pytest.FixtureRequest, tmp_path: Path) -> MakeNamed:
    """Make a state in SQLite, beside the one of each store."""
    return _maker("sqlite", request, tmp_path)


class _Ledger:
    """Commits to one state; a commit says where the source stands after it."""

    def __init__(self, state: FencedState) -> None:
        self.state = state
        self._grants = Grants()
        self._txid = 0

    def commit(self, rows: list[dict[str, Any]], position: Any, *, complete: bool = True) -> None:
        self._txid += 1
        grant = replace(self._grants(self._txid), batch=batch_of(position=position))
        self.state.raise_fence(grant)
        if complete:
            self.state.write(grant, rows)
            self._grants.final(grant, self.state)


def _filled(state: QueryableState, rows: list[dict[str, Any]], position: Any = 1) -> QueryableState:
    _Ledger(state).commit(rows, position)
    return state


def _counted(**updates: int) -> list[dict[str, Any]]:
    return [{"key": key, "n": number} for key, number in updates.items()]


def _counts(found: StateComparison) -> tuple[int, int, int, int]:
    return found.equal, found.only_first.count, found.only_second.count, found.different.count


@pytest.mark.worth("every store with a snapshot, once")
def test_states_with_equal_values_are_equal_even_if_their_transactions_differ(
    make: MakeNamed, other: MakeNamed
) -> None:
    first = _filled(make("old"), _counted(a=1, b=2), {"offset": 7})
    second = _Ledger(other("new"))
    second.commit(_counted(a=1), {"offset": 3})
    second.commit(_counted(b=2), {"offset": 7})
    found = compared(first, second.state)
    assert found.is_equal
    assert (_counts(found), found.txids, found.columns) == ((2, 0, 0, 0), (1, 2), ("n",))


def test_a_comparison_names_the_keys_that_differ(make: MakeNamed, other: MakeNamed) -> None:
    first = _filled(make("old"), _counted(a=1, b=2, c=3))
    second = _filled(other("new"), _counted(b=2, c=4, d=5))
    found = compared(first, second)
    assert not found.is_equal
    assert _counts(found) == (1, 1, 1, 1)
    named = [(each.key, each.first, each.second) for each in found.only_first.keys]
    assert named == [({"key": "a"}, {"n": 1}, None)]
    assert [(each.key, each.second) for each in found.only_second.keys] == [({"key": "d"}, {"n": 5})]
    named = [(each.key, each.first, each.second) for each in found.different.keys]
    assert named == [({"key": "c"}, {"n": 3}, {"n": 4})]


def test_states_at_different_positions_cannot_be_compared_now(make: MakeNamed, other: MakeNamed) -> None:
    first = _filled(make("old"), _counted(a=1), {"offset": 7})
    second = _filled(other("new"), _counted(a=1), {"offset": 8})
    with pytest.raises(NotComparableNow, match="end at different positions of their sources"):
        compared(first, second)


def test_a_state_that_has_an_incomplete_transaction_cannot_be_compared_now(make: MakeNamed, other: MakeNamed) -> None:
    first, ledger = _filled(other("old"), _counted(a=1)), _Ledger(make("new"))
    with pytest.raises(NotComparableNow, match="no transaction has been committed to"):
        compared(first, ledger.state)
    ledger.commit(_counted(a=1), 1, complete=False)
    with pytest.raises(NotComparableNow, match="transaction 1 is only partly written"):
        compared(first, ledger.state)


@pytest.mark.parametrize("store", ["postgres", "mariadb"])
def test_a_store_with_snapshots_is_read_in_one_snapshot_while_later_commits_end(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    ledger = _Ledger(_maker(store, request, tmp_path)("old"))
    ledger.commit(_counted(a=1), 1)
    assert isinstance(ledger.state, QueryableState)
    with ledger.state.reading() as reading:
        ledger.commit(_counted(a=1, b=1), 2)
        assert list(reading.rows) == [("a", 1)]


def test_a_commit_to_sqlite_waits_for_an_open_reading(other: MakeNamed) -> None:
    ledger = _Ledger(other("old"))
    ledger.commit(_counted(a=1), 1)
    assert isinstance(ledger.state, QueryableState)
    commits = threading.Event()
    with ledger.state.reading() as reading:
        sa.event.listen(ledger.state._store._engine, "commit", lambda _: commits.set())  # type: ignore[attr-defined]
        commit = threading.Thread(target=ledger.commit, args=(_counted(a=1), 2))
        commit.start()
        assert commits.wait(300), "it comes to its commit"
        assert list(reading.rows) == [("a", 1)]
    commit.join()
    assert ledger.state.read() == [{"key": "a", "n": 2}]


@pytest.mark.parametrize("store", ["redis", "memory"])
@pytest.mark.parametrize("commits", [2, 3])
def test_a_store_without_snapshots_is_read_up_to_three_times_if_commits_change_it(
    store: str, commits: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = _maker(store, request, tmp_path)
    first, ledger = _filled(make("old"), _counted(a=3)), _Ledger(make("new"))
    ledger.commit(_counted(a=3 - commits), 1)
    each_row, left = type(first).each_row, [commits]

    def committed_to_meanwhile(self: QueryableState) -> Iterator[tuple[Any, ...]]:
        yield from each_row(self)
        if self is ledger.state and left[0]:
            left[0] -= 1
            ledger.commit(_counted(a=1), 1)

    monkeypatch.setattr(type(first), "each_row", committed_to_meanwhile)
    if commits == 2:
        assert compared(first, ledger.state).is_equal
    else:
        with pytest.raises(NotComparableNow, match="other commits interrupted the comparison 3 times in a row"):
            compared(first, ledger.state)


def test_equal_keys_of_every_type_match_between_any_two_stores(make: MakeNamed, other: MakeNamed) -> None:
    moment = dt.datetime(2013, 1, 1, 5, 15, 0, 1)
    keys: dict[str, Any] = {
        "i": -7,
        "d": -0.5,
        "x": Decimal("1.50"),
        "t": "Aä ",
        "b": True,
        "day": dt.date(2013, 1, 1),
        "at": moment,
        "z": moment.replace(tzinfo=dt.timezone(dt.timedelta(hours=2))),
        "raw": b"\x00\xff",
    }
    rows = [{**keys, "n": 1}, {**keys, "t": "aä", "n": 1}]
    given = {"keys": list(keys), "values": {"n": Count()}}
    found = compared(_filled(make("old", **given), rows), _filled(other("new", **given), rows))
    assert _counts(found) == (2, 0, 0, 0)
    backwards = other("backwards", **{**given, "keys": list(reversed(keys))})
    assert _counts(compared(_filled(make("forwards", **given), rows), _filled(backwards, rows))) == (2, 0, 0, 0)


def test_states_without_key_columns_can_be_compared_with_one_row_or_none(make: MakeNamed, other: MakeNamed) -> None:
    given = {"keys": [], "values": {"n": Sum(), "mean": Avg()}}
    first = _filled(make("old", **given), [{"n": 1, "mean": 2.0}])
    found = compared(first, _filled(other("new", **given), [{"n": 2, "mean": 2.0}]))
    assert [(each.key, each.first, each.second) for each in found.different.keys] == [({}, {"n": 1}, {"n": 2})]
    empty = _filled(other("empty", **given), [])
    assert _counts(compared(first, empty)) == (0, 1, 0, 0)
    assert _counts(compared(_filled(make("nothing", **given), []), empty)) == (0, 0, 0, 0)


def _memory(name: str, rows: list[dict[str, Any]], **given: Any) -> QueryableState:
    return _filled(MemoryState(name, **{**GIVEN, **given}), rows)


def test_the_tolerance_is_relative_and_applies_to_doubles_only() -> None:
    values: Mapping[str, Any] = {"x": Sum("double"), "exact": Sum("numeric"), "n": Sum()}

    def state(name: str, x: float | None, exact: str = "1", n: int = 10**15) -> QueryableState:
        return _memory(name, [{"key": "a", "x": x, "exact": Decimal(exact), "n": n}], values=values)

    first = state("old", 1e6)
    assert compared(first, state("added otherwise", 1e6 + 1e-4), tolerance=1e-9).is_equal
    assert not compared(first, state("added otherwise", 1e6 + 1e-4)).is_equal
    assert not compared(first, state("wrong", 1e6 + 1e-2), tolerance=1e-9).is_equal
    assert not compared(first, state("none", None), tolerance=1e-9).is_equal
    assert not compared(first, state("numeric", 1e6, exact="1.000000000001"), tolerance=1e-9).is_equal
    (found,) = compared(first, state("integer", 1e6 + 1e-4, n=10**15 + 1), tolerance=1e-9).different.keys
    assert (found.first, found.second) == ({"n": 10**15}, {"n": 10**15 + 1})


def test_a_column_that_only_one_state_has_is_reported_and_not_compared() -> None:
    first = _memory("old", [{"key": "a", "n": 1, "gone": 2}], values={"n": Sum(), "gone": Sum()})
    second = _memory("new", [{"key": "a", "n": 1, "names": ["x"]}], values={"names": CollectSet(), "n": Sum()})
    found = compared(first, second)
    assert (found.is_equal, found.columns, found.left_out) == (True, ("n",), ("gone", "names"))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({}, {"keys": ["carrier"]}, "the keys of one are (key), the keys of the other (carrier)"),
        ({}, {"values": {"m": Sum()}}, "they have no value column in common"),
        (
            {"types": {"key": "text"}},
            {"types": {"key": "date"}},
            "key key is a text in one state and a date in the other",
        ),
    ],
)
def test_states_with_different_columns_cannot_be_compared(
    first: dict[str, Any], second: dict[str, Any], said: str
) -> None:
    def state(name: str, given: dict[str, Any]) -> QueryableState:
        made = MemoryState(name, **{**GIVEN, **given})
        kind = given.get("types", {}).get("key")
        row = {**dict.fromkeys(made.columns.keys, dt.date(2013, 1, 1) if kind == "date" else "a")}
        return _filled(made, [{**row, **dict.fromkeys(made.columns.values, 1)}])

    with pytest.raises(NotComparable) as refusal:
        compared(state("old", first), state("new", second))
    assert said in str(refusal.value)
    assert not isinstance(refusal.value, NotComparableNow)


def test_a_comparison_is_refused_for_the_same_state_and_for_states_without_a_fence_or_keys() -> None:
    first = _memory("old", _counted(a=1))
    unfenced = TridentAggregate(OpaqueMap(MemoryMap()), keys=["key"], values={"n": Sum()})
    appended = DeltaTable("/rows")
    for second, said in (
        (unfenced, "has no fence"),
        (first, "they are the same state"),
        (appended, "delta./rows keeps no values per key"),
    ):
        with pytest.raises(NotComparable, match=said):
            compared(first, second)


def test_a_comparison_names_the_first_differing_keys_in_byte_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_ROWS_HELD", 50)
    monkeypatch.setattr(comparison, "_ROWS_READ_AT_ONCE", 7)
    every = {f"k{number:04}": number for number in range(3_000)}
    first = _memory("old", _counted(**every))
    changed = {key: number + (number % 2) for key, number in every.items() if number < 2_900}
    found = compared(first, _memory("new", _counted(**changed, Z=1, z=2)), limit=2)
    assert _counts(found) == (1_450, 100, 2, 1_450)
    assert [each.key["key"] for each in found.different.keys] == ["k0001", "k0003"]
    assert [each.key["key"] for each in found.only_first.keys] == ["k2900", "k2901"]
    assert [each.key["key"] for each in found.only_second.keys] == ["Z", "z"]
    assert compared(first, _memory("none", []), limit=0).only_first.keys == []


def test_a_key_that_a_store_lists_twice_counts_as_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_ROWS_HELD", 2)
    first, second = _memory("old", _counted(a=1, b=2)), _memory("new", _counted(a=1, b=2))
    monkeypatch.setattr(second, "each_row", lambda: iter([("a", 1), ("b", 2), ("a", 1), ("b", 2)]))
    assert _counts(compared(first, second)) == (2, 0, 0, 0)
