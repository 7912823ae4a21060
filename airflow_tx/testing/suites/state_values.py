"""Tests of keys and values of every type. They are part of `StateSuite`."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from airflow_tx.base.errors import StateError
from airflow_tx.state.aggregators import Aggregator, Avg, CollectSet, Count, Last, Sum
from airflow_tx.state.api import FencedState, QueryableState
from airflow_tx.state.sketches import ApproxCountDistinct
from airflow_tx.testing.suites.aggregator_cases import (
    CASES,
    EXAMPLES,
    Case,
    Product,
    every_case,
    key_types,
)
from airflow_tx.testing.suites.state_tools import Grants, MakeState, StateTests, rows

# The error is from this package, or from a database that adds up the values itself.
_TOO_LARGE = "the (sum|count) of column v|out of range"


class ValueSuite(StateTests):
    """Tests of keys and values of every type."""

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
                state.raise_and_write(
                    grants(txid, attempt), [{"key": "a", "v": wrong}, {"key": "b", "v": wrong}]
                )
            state = self._open(make_state, "opaque", chosen)
            grants.commit_rows(
                txid, state, [{"key": "a", "v": delta}], attempt=len(chosen.wrong) + 1
            )
        self._check(state, {"a": chosen.expected})

    @every_case
    def test_an_aggregator_counts_a_transaction_once(
        self, make_state: MakeState, grants: Grants, case: str
    ) -> None:
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
        state.raise_and_write(
            grants(2), [{"key": "a", "v": chosen.wrong[0]}, {"key": "b", "v": chosen.wrong[0]}]
        )
        state.raise_fence(grants(2, 2))
        self._check(state, {"a": 0 if chosen.aggregator.name == "count" else None})

    @key_types
    @pytest.mark.parametrize("given", ["by the state", "by the first row"])
    def test_keys_of_a_type_come_back_as_they_were(
        self, make_state: MakeState, grants: Grants, key_type: str, given: str
    ) -> None:
        if key_type in self.cannot:
            pytest.skip(f"the store does not take {key_type}")
        types = {"key": key_type} if given == "by the state" else None
        keys = EXAMPLES[key_type]
        for txid in (1, 2):
            state = make_state("opaque", types=types)
            grants.commit_rows(txid, state, [{"key": key, "n": txid} for key in keys])
        found = {row["key"]: row["n"] for row in make_state("opaque", types=types).read()}
        assert found == dict.fromkeys(keys, 3)
        assert {type(key) for key in found} == {type(key) for key in keys}

    def test_equal_numbers_are_one_key(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        for key_type, one, other in (
            ("numeric", Decimal("1.50"), Decimal("1.5")),
            ("double", 0.0, -0.0),
        ):
            state = make_state(kind, key_type, types={"key": key_type})
            grants.commit_rows(1, state, [{"key": one, "n": 1}])
            grants.commit_rows(2, state, [{"key": other, "n": 10}])
            assert [(row["key"], row["n"]) for row in state.read()] == [(one, 11)]

    def test_the_columns_of_a_key_count_together(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        day = dt.date(2026, 1, 2)
        other = dt.date(2026, 1, 3)
        keys = [
            ("a", 1, day),
            ("a", 1, other),
            ("a", 2, day),
            ("b", 1, day),
            ('a",1', 1, day),
            ("", 1, day),
        ]
        for txid in (1, 2):
            state = make_state(kind, keys=("word", "number", "day"))
            rows = [
                dict(zip(("word", "number", "day", "n"), (*key, i), strict=True))
                for i, key in enumerate(keys)
            ]
            grants.commit_rows(txid, state, rows)
        found = {(row["word"], row["number"], row["day"]): row["n"] for row in state.read()}
        assert found == {key: 2 * i for i, key in enumerate(keys)}

    def test_a_state_without_keys_has_one_row(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        state = make_state(kind, keys=())
        for txid in (1, 2):
            state.raise_and_write(grants(txid), [{"n": 4}])
            grants.commit_rows(txid, state, [{"n": 4}])
        assert state.read() == [{"n": 8}]
        with pytest.raises(StateError, match="stores one row"):
            grants.commit_rows(3, state, [{"n": 1}, {"n": 2}])
        assert state.read() == [{"n": 8}]

    def test_a_key_of_another_type_than_the_first_is_refused(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        grants.commit_rows(1, make_state("opaque"), [{"key": "7", "n": 1}])
        state = make_state("opaque")
        with pytest.raises(StateError, match="row 1 .*key = 7 is not a text"):
            grants.commit_rows(2, state, [{"key": "7", "n": 1}, {"key": 7, "n": 1}])
        assert state.read() == [{"key": "7", "n": 1}]

    @pytest.mark.parametrize(
        "key", ["x" * 1024, "ä" * 512, b"\xff" * 1024], ids=["text", "two bytes", "bytes"]
    )
    def test_a_key_may_have_a_kilobyte_and_no_more(
        self, make_state: MakeState, grants: Grants, key: Any
    ) -> None:
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
        assert ({row["key"]: row["n"] for row in state.read()}, state.fence()) == (
            {key: 2, last: 20},
            before,
        )

    def test_a_long_value_is_stored_whole_or_refused(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        if "last" in self.cannot:
            pytest.skip("the store does not take last")
        state = make_state("opaque", values={"v": Last("text")})
        limit = getattr(getattr(state, "columns", None), "max_value_bytes", None)
        longest = "ä" * (min(limit or 10**6, 10**6) // 2)
        grants.commit_rows(1, state, [{"key": "a", "v": longest}])
        self._check(state, {"a": longest})
        if limit is not None:
            with pytest.raises(
                StateError, match=rf"row 0 .*more than the {limit} that this state can store"
            ):
                grants.commit_rows(2, state, [{"key": "a", "v": "x" * (limit + 1)}])
            self._check(state, {"a": longest})

    @pytest.mark.parametrize(
        ("aggregator", "stored", "delta", "message"),
        [
            (Sum(), 2**63 - 1, 1, _TOO_LARGE),
            (Sum("double"), 1.7e308, 1.7e308, _TOO_LARGE),
            (Count(), 2**63 - 1, 1, _TOO_LARGE),
            (
                CollectSet(2),
                [1, 2],
                3,
                r"the collect_set of column v has 3 distinct values, more than",
            ),
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
        before = state.fence()
        grant = grants(2)
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
        assert {key: type(value) for key, value in found.items()} == {
            k: type(v) for k, v in expected.items()
        }

    # --- look-ups ------------------------------------------------------------------------------------------------

    def test_many_keys_are_asked_for_in_one_call_and_answered_in_their_order(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        state = queried(make_state(kind))
        count = 12_000
        assert state.multi_get([("key 1",), ("key 2",)]) == [None, None]
        grants.commit_rows(1, make_state(kind), [{"key": f"key {i}", "n": i} for i in range(count)])
        wanted = [i for i in range(count + 5, -1, -1) for _ in range(2)]
        found = queried(make_state(kind)).multi_get([(f"key {i}",) for i in wanted])
        assert found == [{"n": i} if i < count else None for i in wanted]
        assert state.multi_get(["key 7", (None,), "", ["key 8"]]) == [
            {"n": 7},
            None,
            None,
            {"n": 8},
        ]
        assert state.multi_get([]) == []

    def test_what_a_key_has_is_what_is_read(self, make_state: MakeState, grants: Grants) -> None:
        values: dict[str, Aggregator] = {"n": Sum(), "mean": Avg()}
        state = make_state("opaque", keys=("word", "number"), values=values)
        rows = [
            {"word": word, "number": i, "n": i, "mean": float(i)}
            for i, word in enumerate(("a", "b", "b"), 1)
        ]
        for txid in (1, 2):
            grants.commit_rows(txid, state, rows)
        read = {
            (row.pop("word"), row.pop("number")): row for row in map(dict, queried(state).read())
        }
        assert len(read) == 3
        keys = [("b", 3), ("a", 2), ("b", 2), ("a", 1)]
        assert queried(state).multi_get(keys) == [read.get(key) for key in keys]
        assert read["b", 3].items() >= {"n": 6, "mean": 3.0}.items()

    @key_types
    def test_a_key_of_every_type_can_be_asked_for(
        self, make_state: MakeState, grants: Grants, key_type: str
    ) -> None:
        if key_type in self.cannot:
            pytest.skip(f"the store does not take {key_type}")
        absent, *keys = EXAMPLES[key_type]
        grants.commit_rows(
            1, make_state("opaque", types={"key": key_type}), [{"key": key, "n": 1} for key in keys]
        )
        state = queried(make_state("opaque"))
        assert state.key_types() == {"key": key_type}
        assert state.multi_get([(key,) for key in (*keys, absent)]) == [
            *[{"n": 1} for _ in keys],
            None,
        ]

    def test_a_long_key_can_be_asked_for(self, make_state: MakeState, grants: Grants) -> None:
        state = make_state("opaque")
        key = "ä" * 512
        grants.commit(1, state, {key: 1})
        assert queried(state).multi_get([key, key[:-1], key + "x"]) == [{"n": 1}, None, None]

    def test_equal_numbers_are_one_key_to_whoever_asks(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        for key_type, one, other in (
            ("numeric", Decimal("1.50"), Decimal("1.5")),
            ("double", 0.0, -0.0),
        ):
            state = make_state("opaque", key_type, types={"key": key_type})
            grants.commit_rows(1, state, [{"key": one, "n": 1}])
            assert queried(state).multi_get([(one,), (other,)]) == [{"n": 1}, {"n": 1}]

    def test_a_state_without_keys_is_asked_with_an_empty_key(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("opaque", keys=())
        assert queried(state).multi_get([()]) == [None]
        grants.commit_rows(1, state, [{"n": 4}])
        assert queried(state).multi_get([(), ()]) == [{"n": 4}, {"n": 4}]

    def test_what_was_rolled_back_is_not_found(self, make_state: MakeState, grants: Grants) -> None:
        state = make_state("opaque")
        grants.commit(1, state, {"a": 5})
        state.raise_and_write(grants(2), rows({"a": 10, "new": 1}))
        assert queried(state).multi_get(["a", "new"]) == [{"n": 15}, {"n": 1}]
        state.raise_fence(grants(2, 2))
        assert queried(state).multi_get(["a", "new"]) == [{"n": 5}, None]

    def test_a_key_that_is_none_of_this_state_is_named(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = queried(make_state("opaque", keys=("word", "number")))
        for _ in range(2):
            with pytest.raises(StateError, match=r"key 1 .*it has 2 key columns \(word, number\)"):
                state.multi_get([("a", 1), ("a",)])
            grants.commit_rows(
                1,
                make_state("opaque", keys=("word", "number")),
                [{"word": "a", "number": 1, "n": 1}],
            )
        with pytest.raises(
            StateError,
            match=r"key 2 .*number = 'one' is not an integer. The column has the type bigint",
        ):
            state.multi_get([("a", 1), ("a", None), ("a", "one")])

    def test_a_part_of_the_values_can_be_read(self, state: FencedState, grants: Grants) -> None:
        assert queried(state).read(limit=3) == []
        grants.commit(1, state, {f"key {i}": i for i in range(100)})
        every = state.read()
        some = queried(state).read(limit=3)
        assert len(some) == 3
        assert all(row in every for row in some)
        assert (queried(state).read(limit=0), queried(state).read(limit=1000)) == ([], every)


def queried(state: FencedState) -> QueryableState:
    """Return the state if it has the method `multi_get`. Otherwise skip the test."""
    if not isinstance(state, QueryableState):
        pytest.skip("the state has no multi_get")
    return state
