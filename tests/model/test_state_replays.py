"""Random replays, cuts and late writers on a fenced state, against what the ledger says was committed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_tx.base.errors import FenceOutranked, LedgerBehind
from airflow_tx.state import FencedState, Grant, MemoryState, SqlState, Sum
from airflow_tx.state.aggregators import add
from airflow_tx.testing.suites.state_tools import Grants, rows, totals
from tests.examples import examples

KEYS = ("a", "b", "c")
Updates = dict[str, int | None]


@dataclass(frozen=True)
class Attempt:
    """One attempt: what it has for each of two writers, how many of them it gets to, and how it starts."""

    parts: tuple[Updates, Updates]
    written: int
    at_once: bool
    late: int | None  # which earlier grant wakes up after it, if any


updates = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(-5, 5))
attempts = st.builds(
    lambda first, second, written, at_once, late: Attempt(
        (first, {key: delta for key, delta in second.items() if key not in first}), written, at_once, late
    ),
    updates,
    updates,
    st.integers(0, 2),
    st.booleans(),
    st.none() | st.integers(0, 20),
)
transactions = st.lists(st.lists(attempts, min_size=1, max_size=4), min_size=1, max_size=4)


def _perform(state: FencedState, grant: Grant, attempt: Attempt, *, last: bool) -> None:
    written = 2 if last else attempt.written
    if attempt.at_once and written == 2:
        both = {**attempt.parts[0], **attempt.parts[1]}
        state.raise_and_write(grant, rows(both))
        return
    state.raise_fence(grant)
    for chunk in range(written):
        for _ in range(2):  # speculation: sent twice
            state.write(grant, rows(attempt.parts[chunk]), chunk=chunk, complete=chunk == 1)


def _wake(state: FencedState, late: Grant) -> None:
    before, fence = totals(state), state.fence()
    for use in (state.write, state.raise_and_write):
        with pytest.raises((FenceOutranked, LedgerBehind)):
            use(late, rows(dict.fromkeys((*KEYS, "only a zombie has it"), 100)))
    assert (totals(state), state.fence()) == (before, fence)


def _check(state: FencedState, program: list[list[Attempt]]) -> None:
    grants, expected, given_out = Grants(), Updates(), list[Grant]()
    for txid, replays in enumerate(program, 1):
        for number, attempt in enumerate(replays, 1):
            grant = grants(txid, number)
            _perform(state, grant, attempt, last=number == len(replays))
            if attempt.late is not None and given_out:
                _wake(state, given_out[attempt.late % len(given_out)])
            given_out.append(grant)
        grants.final(given_out[-1], state)
        for part in replays[-1].parts:
            for key, delta in part.items():
                expected[key] = add(expected.get(key), delta)
    assert totals(state) == expected


@settings(max_examples=examples(80, 300), deadline=None)
@given(transactions)
def test_totals_after_random_replays_equal_the_totals_of_the_last_attempts(program: list[list[Attempt]]) -> None:
    _check(MemoryState(values={"n": Sum()}), program)


@settings(max_examples=examples(8, 25), deadline=None)
@given(transactions)
def test_totals_of_a_sql_state_after_random_replays_equal_the_totals_of_the_last_attempts(
    program: list[list[Attempt]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'state.db'}"
        _check(SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()}), program)


@settings(max_examples=examples(80, 300), deadline=None)
@given(transactions)
def test_a_transactional_state_counts_an_output_once_although_it_is_replayed(program: list[list[Attempt]]) -> None:
    same: Callable[[list[Attempt]], list[Attempt]] = lambda replays: [  # noqa: E731 - one line of a test
        Attempt(replays[-1].parts, attempt.written, attempt.at_once, attempt.late) for attempt in replays
    ]
    _check(MemoryState(values={"n": Sum()}, kind="transactional"), [same(replays) for replays in program])


@settings(max_examples=examples(30, 100), deadline=None)
@given(transactions)
def test_a_database_restored_from_a_snapshot_equals_the_original_database(program: list[list[Attempt]]) -> None:
    state = MemoryState(values={"n": Sum()})
    _check(state, program)
    other = MemoryState(values={"n": Sum()})
    other.database.restore(state.database.snapshot())
    assert hash(other.database.snapshot()) == hash(state.database.snapshot())
    assert other.database.snapshot() == state.database.snapshot()
    assert totals(other) == totals(state)
