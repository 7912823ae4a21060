"""What every `FencedState` does with keys and values of every type, as tests; `StateSuite` brings them along."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Protocol

import pytest

from airflow_tx.errors import StateError
from airflow_tx.protocol.attempt import Token
from airflow_tx.state.aggregators import Aggregator, Avg, CollectSet, Count, First, Last, Max, Min, Sum
from airflow_tx.state.api import FencedState, Grant
from airflow_tx.state.column_types import KEY_TYPES, ORDERED_TYPES
from airflow_tx.state.sketches import ApproxCountDistinct

UTC = dt.timezone.utc
both_kinds = pytest.mark.parametrize("kind", ["opaque", "transactional"])
# Of every type, in their order.
EXAMPLES: dict[str, list[Any]] = {
    "bigint": [-(2**63), -1, 0, 7, 2**63 - 1],
    "double": [-1.7e308, -0.1, 5e-324, 1.5, 1.7e308],
    "numeric": [Decimal("-12345678901234567890.123456789"), Decimal("0.1"), Decimal("0.3"), Decimal(10) ** 30],
    "text": ["", " ", "A", "B", "a", "a\tb\n", "z", "{\"'\\,%s", "ä", "日本"],
    "boolean": [False, True],
    "date": [dt.date(1, 1, 1), dt.date(1999, 12, 31), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(1970, 1, 1), dt.datetime(2026, 3, 29, 2, 30), dt.datetime(2026, 3, 29, 2, 30, 0, 1)],
    "timestamptz": [dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(2026, 3, 29, 1, 0, 0, 1, tzinfo=UTC)],
    "bytes": [b"", b"\x00", b"\x00\xff", b"'", b"a", b"\xff"],
    "json": [[1, 2.5, None], {"b": [True], "a": "ä\n"}, "text", 7, False, {}],
}


class MakeState(Protocol):
    """Opens a state; without more arguments one with the key column `key` and the value column `n` (a sum of integers).

    The same name within a test opens the same store again, as another process would; another name is another state.
    """

    def __call__(
        self,
        kind: str,
        name: str = "first",
        *,
        keys: Sequence[str] = ("key",),
        values: Mapping[str, Aggregator] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> FencedState:
        """Open it."""


class Grants:
    """Gives grants as a ledger does: a growing epoch, a nonce of their own, the birth of their transaction, and what
    became final in which state."""

    def __init__(self) -> None:
        self.incarnation = uuid.uuid4().hex
        self.generation = 1
        self.last: dict[str, int] = {}
        self.births: dict[str, str] = {}
        self._birth_of: dict[int, str] = {}
        self._epoch = 0

    def __call__(self, txid: int, attempt: int = 1) -> Grant:
        """A new grant of a transaction attempt."""
        self._epoch += 1
        birth = self._birth_of.setdefault(txid, uuid.uuid4().hex)
        token = Token(self.generation, txid, attempt, self._epoch, uuid.uuid4().hex, birth)
        return Grant("suite", self.incarnation, token, dict(self.last), births=dict(self.births))

    def final(self, grant: Grant, *states: FencedState) -> None:
        """The transaction of `grant` became final: so the next grant says."""
        self.last.update({state.name: grant.txid for state in states})
        self.births.update({state.name: grant.token.birth for state in states})

    def go_back(self, txid: int) -> None:
        """The ledger is set back to before transaction `txid` began: ZooKeeper was restored from an old snapshot."""
        self.last = {name: min(last, txid - 1) for name, last in self.last.items() if txid > 1}
        self.births.clear()
        self._birth_of = {each: birth for each, birth in self._birth_of.items() if each < txid}

    def commit(self, txid: int, state: FencedState, updates: Mapping[str, int | None]) -> None:
        """One whole transaction on one state."""
        self.commit_rows(txid, state, [{"key": key, "n": delta} for key, delta in updates.items()])

    def commit_rows(self, txid: int, state: FencedState, rows: Iterable[Mapping[str, Any]], attempt: int = 1) -> None:
        """One whole transaction on one state."""
        grant = self(txid, attempt)
        state.raise_and_write(grant, rows)
        self.final(grant, state)


@dataclass(frozen=True)
class Product:
    """An aggregator that no store knows."""

    name: ClassVar[str] = "product"
    type: ClassVar[str] = "bigint"

    def zero(self) -> int:
        """1."""
        return 1

    def init(self, value: Any) -> Any:
        """The number itself."""
        return value

    def combine(self, a: Any, b: Any) -> Any:
        """The product."""
        return a * b


@dataclass(frozen=True)
class Balance:
    """A reducer that no partial value can stand for: a balance that never falls below zero."""

    name: ClassVar[str] = "balance"
    type: ClassVar[str] = "bigint"

    def init(self) -> int:
        """Nothing."""
        return 0

    def reduce(self, current: int, row: Mapping[str, Any]) -> int:
        """What comes in or goes out."""
        return max(0, current + int(row["step"]))


@dataclass(frozen=True)
class LastTwo:
    """A reducer that keeps a list, and changes it in place."""

    name: ClassVar[str] = "last_two"
    type: ClassVar[str] = "json"

    def init(self) -> list[int]:
        """Nothing."""
        return []

    def reduce(self, current: list[int], row: Mapping[str, Any]) -> list[int]:
        """One more, and the oldest goes."""
        current.append(row["step"])
        return current[-2:]


def steps(*values: int) -> list[dict[str, int]]:
    """Rows for the two."""
    return [{"step": value} for value in values]


@dataclass(frozen=True)
class Case:
    """An aggregator, its deltas, one a transaction, and what comes of them.

    :param wrong: deltas of attempts that are replayed.
    """

    aggregator: Aggregator
    deltas: list[Any]
    expected: Any
    wrong: list[Any]


def _chosen(kind: str) -> dict[str, Case]:
    values = EXAMPLES[kind]
    deltas, wrong = [None, *values[1:], values[0], None], [values[0], values[-1]]
    cases = {
        f"first {kind}": Case(First(kind), deltas, values[1], wrong),
        f"last {kind}": Case(Last(kind), deltas, values[0], wrong),
    }
    if kind in ORDERED_TYPES:
        inner = [None, *values[-2:0:-1], None] if len(values) > 2 else [None, values[0]]
        cases[f"min {kind}"] = Case(Min(kind), inner, inner[-2] if len(values) > 2 else values[0], wrong)
        cases[f"max {kind}"] = Case(Max(kind), inner, inner[1], wrong)
    return cases


CASES: dict[str, Case] = {
    "sum bigint": Case(Sum(), [None, 1, -5, None, 7.0], 3, [100, -100]),
    "sum double": Case(Sum("double"), [None, 0.5, 0.25, -2], -1.25, [1e9]),
    "sum numeric": Case(Sum("numeric"), [None, *[Decimal("0.1")] * 3], Decimal("0.3"), [Decimal("1e9")]),
    "count": Case(Count(), [None, 2, 0, 3], 5, [100]),
    "avg": Case(Avg(), [None, 1.0, 4.0, None], 2.5, [100.0]),
    "collect_set": Case(CollectSet(), [None, "b", ["a", "b", None], [], 7], [7, "a", "b"], ["wrong", ["x", "a"]]),
    "approx_count_distinct": Case(ApproxCountDistinct(), [None, "a", "b", None, "a"], 2, ["wrong", "b"]),
    "product": Case(Product(), [None, 2, 3, None, -7], -42, [100, 0]),
    "balance": Case(Balance(), [None, steps(3), steps(-5, 2, 7), None, steps(-1)], 8, [steps(100), steps(-100, 3)]),
    "last_two": Case(LastTwo(), [None, steps(1), steps(2, 3), None, steps(4)], [3, 4], [steps(7, 8), steps(9)]),
    **{name: case for kind in EXAMPLES for name, case in _chosen(kind).items()},
}
# Ours, or those of a database that adds up by itself.
_TOO_LARGE = "the (sum|count) of column v|out of range"
every_case = pytest.mark.parametrize("case", CASES)
key_types = pytest.mark.parametrize("key_type", KEY_TYPES)


class ValueSuite:
    """Keys and values of every type. Override the fixture `make_state`.

    :cvar cannot: what the store does not take: names of aggregators and of types.
    """

    cannot: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def make_state(self) -> MakeState:
        """Opens the states under test."""
        raise NotImplementedError("override the fixture `make_state`")

    @pytest.fixture
    def grants(self) -> Grants:
        """The ledger's side."""
        return Grants()

    def _open(self, make_state: MakeState, kind: str, case: Case) -> FencedState:
        needed = {case.aggregator.name, getattr(case.aggregator, "type", "")}
        if not needed.isdisjoint(self.cannot):
            pytest.skip(f"the store does not take {sorted(needed & self.cannot)}")
        if isinstance(case.aggregator, ApproxCountDistinct):
            pytest.importorskip("datasketches")
        return make_state(kind, values={"v": case.aggregator})

    @every_case
    def test_an_aggregator_gives_the_value_of_the_last_attempts(
        self, make_state: MakeState, grants: Grants, case: str
    ) -> None:
        chosen = CASES[case]
        state = self._open(make_state, "opaque", chosen)
        for txid, delta in enumerate(chosen.deltas, 1):
            for attempt, wrong in enumerate(chosen.wrong, 1):
                state.raise_and_write(grants(txid, attempt), [{"key": "a", "v": wrong}, {"key": "b", "v": wrong}])
            state = self._open(make_state, "opaque", chosen)
            grants.commit_rows(txid, state, [{"key": "a", "v": delta}], attempt=len(chosen.wrong) + 1)
        self._check(state, {"a": chosen.expected})

    @every_case
    def test_an_aggregator_counts_a_transaction_once(self, make_state: MakeState, grants: Grants, case: str) -> None:
        chosen = CASES[case]
        state = self._open(make_state, "transactional", chosen)
        for txid, delta in enumerate(chosen.deltas, 1):
            for _ in range(2):
                state.raise_and_write(grants(txid), [{"key": "a", "v": delta}])
            grants.commit_rows(txid, state, [{"key": "a", "v": delta}])
        self._check(state, {"a": chosen.expected})

    @every_case
    def test_a_value_is_null_again_after_its_first_transaction_is_undone(
        self, make_state: MakeState, grants: Grants, case: str
    ) -> None:
        chosen = CASES[case]
        state = self._open(make_state, "opaque", chosen)
        grants.commit_rows(1, state, [{"key": "a", "v": None}])
        state.raise_and_write(grants(2), [{"key": "a", "v": chosen.wrong[0]}, {"key": "b", "v": chosen.wrong[0]}])
        state.raise_fence(grants(2, 2))
        self._check(state, {"a": 0 if chosen.aggregator.name == "count" else None})

    @key_types
    @pytest.mark.parametrize("given", ["by the state", "by the first row"])
    def test_keys_of_a_type_come_back_as_they_were(
        self, make_state: MakeState, grants: Grants, key_type: str, given: str
    ) -> None:
        if key_type in self.cannot:
            pytest.skip(f"the store does not take {key_type}")
        types, keys = {"key": key_type} if given == "by the state" else None, EXAMPLES[key_type]
        for txid in (1, 2):
            state = make_state("opaque", types=types)
            grants.commit_rows(txid, state, [{"key": key, "n": txid} for key in keys])
        found = {row["key"]: row["n"] for row in make_state("opaque", types=types).read()}
        assert found == dict.fromkeys(keys, 3)
        assert {type(key) for key in found} == {type(key) for key in keys}

    @both_kinds
    def test_equal_numbers_are_one_key(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        for key_type, one, other in (("numeric", Decimal("1.50"), Decimal("1.5")), ("double", 0.0, -0.0)):
            state = make_state(kind, key_type, types={"key": key_type})
            grants.commit_rows(1, state, [{"key": one, "n": 1}])
            grants.commit_rows(2, state, [{"key": other, "n": 10}])
            assert [(row["key"], row["n"]) for row in state.read()] == [(one, 11)]

    @both_kinds
    def test_the_columns_of_a_key_count_together(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        day, other = dt.date(2026, 1, 2), dt.date(2026, 1, 3)
        keys = [("a", 1, day), ("a", 1, other), ("a", 2, day), ("b", 1, day), ('a",1', 1, day), ("", 1, day)]
        for txid in (1, 2):
            state = make_state(kind, keys=("word", "number", "day"))
            rows = [dict(zip(("word", "number", "day", "n"), (*key, i), strict=True)) for i, key in enumerate(keys)]
            grants.commit_rows(txid, state, rows)
        found = {(row["word"], row["number"], row["day"]): row["n"] for row in state.read()}
        assert found == {key: 2 * i for i, key in enumerate(keys)}

    @both_kinds
    def test_a_state_without_keys_has_one_row(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        state = make_state(kind, keys=())
        for txid in (1, 2):
            state.raise_and_write(grants(txid), [{"n": 4}])
            grants.commit_rows(txid, state, [{"n": 4}])
        assert state.read() == [{"n": 8}]
        with pytest.raises(StateError, match="takes one row"):
            grants.commit_rows(3, state, [{"n": 1}, {"n": 2}])
        assert state.read() == [{"n": 8}]

    def test_a_key_of_another_type_than_the_first_is_refused(self, make_state: MakeState, grants: Grants) -> None:
        grants.commit_rows(1, make_state("opaque"), [{"key": "7", "n": 1}])
        state = make_state("opaque")
        with pytest.raises(StateError, match="row 1 .*key = 7 is not a text"):
            grants.commit_rows(2, state, [{"key": "7", "n": 1}, {"key": 7, "n": 1}])
        assert state.read() == [{"key": "7", "n": 1}]

    @pytest.mark.parametrize("key", ["x" * 1024, "ä" * 512, b"\xff" * 1024], ids=["text", "two bytes", "bytes"])
    def test_a_key_may_have_a_kilobyte_and_no_more(self, make_state: MakeState, grants: Grants, key: Any) -> None:
        if isinstance(key, bytes) and "bytes" in self.cannot:
            pytest.skip("the store does not take bytes")
        state = make_state("opaque", types={"key": "bytes" if isinstance(key, bytes) else "text"})
        last = key[:-1] + (b"a" if isinstance(key, bytes) else "a")
        for txid in (1, 2):
            grants.commit_rows(txid, state, [{"key": key, "n": 1}, {"key": last, "n": 10}])
        assert {row["key"]: row["n"] for row in state.read()} == {key: 2, last: 20}
        before = state.fence()
        with pytest.raises(StateError, match=r"row 1 .* has 102[56] bytes, more than 1024"):
            grants.commit_rows(3, state, [{"key": key, "n": 1}, {"key": key + key[:1], "n": 1}])
        assert ({row["key"]: row["n"] for row in state.read()}, state.fence()) == ({key: 2, last: 20}, before)

    def test_a_long_value_is_stored_whole_or_refused(self, make_state: MakeState, grants: Grants) -> None:
        if "last" in self.cannot:
            pytest.skip("the store does not take last")
        state = make_state("opaque", values={"v": Last("text")})
        limit = getattr(getattr(state, "columns", None), "max_value_bytes", None)
        longest = "ä" * (min(limit or 10**6, 10**6) // 2)
        grants.commit_rows(1, state, [{"key": "a", "v": longest}])
        self._check(state, {"a": longest})
        if limit is not None:
            with pytest.raises(StateError, match=rf"row 0 .*more than the {limit} that this state takes"):
                grants.commit_rows(2, state, [{"key": "a", "v": "x" * (limit + 1)}])
            self._check(state, {"a": longest})

    @both_kinds
    @pytest.mark.parametrize(
        ("aggregator", "stored", "delta", "message"),
        [
            (Sum(), 2**63 - 1, 1, _TOO_LARGE),
            (Sum("double"), 1.7e308, 1.7e308, _TOO_LARGE),
            (Count(), 2**63 - 1, 1, _TOO_LARGE),
            (CollectSet(2), [1, 2], 3, r"the collect_set of column v has 3 distinct values, more than"),
            (Product(), 2**62, 2, "the product of column v does not fit into 64 bits"),
        ],
        ids=lambda each: getattr(each, "name", None),
    )
    def test_a_value_that_cannot_be_stored_refuses_the_whole_update(
        self,
        make_state: MakeState,
        grants: Grants,
        kind: str,
        aggregator: Aggregator,
        stored: Any,
        delta: Any,
        message: str,
    ) -> None:
        state = self._open(make_state, kind, Case(aggregator, [], None, []))
        grants.commit_rows(1, state, [{"key": "full", "v": stored}, {"key": "z", "v": stored}])
        before, grant = state.fence(), grants(2)
        update = [{"key": "a", "v": delta}, {"key": "full", "v": delta}, {"key": "new", "v": delta}]
        with pytest.raises(StateError, match=message):
            state.raise_and_write(grant, update)
        assert state.fence() == before
        state.raise_fence(grant)
        with pytest.raises(StateError, match=message):
            state.write(grant, update)
        self._check(state, {"full": stored, "z": stored})
        state.write(grant, [{"key": "a", "v": delta}])

    def _check(self, state: FencedState, expected: dict[str, Any]) -> None:
        found = {row["key"]: row["v"] for row in state.read()}
        assert found == expected
        assert {key: type(value) for key, value in found.items()} == {k: type(v) for k, v in expected.items()}
