"""The fence of every store while a roll forward looks at its values, and after it has put the fence back."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import FenceOutranked, StateBehind
from airflow_tx.state import MemoryState, SqlState, Sum
from airflow_tx.state.api import Grant, StoredState
from airflow_tx.state.redis.guard import RedisGuard
from airflow_tx.state.redis.state import RedisState
from airflow_tx.state.sql.guard import SqlGuard
from airflow_tx.state.sql.table import SqlTable
from airflow_tx.testing.suites.state_tools import Grants, batch_of
from tests.lake import SummedTable

KEYED: dict[str, Any] = {"keys": ["key"], "values": {"n": Sum()}}


def _guards(url: str, name: str) -> tuple[StoredState, ...]:
    return (
        SqlState.from_url(url, table=name, **KEYED),
        SqlState.from_url(url, table=f"{name}_same", kind="transactional", **KEYED),
        SqlTable.from_url(url, table=f"{name}_rows"),
        SqlGuard.from_url(url, name=f"{name}_guard", statements=["SELECT :n"]),
    )


@pytest.fixture(params=["memory", "sqlite", "postgres", "mariadb", "redis", "delta"])
def states(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[StoredState, ...]:
    """The fenced states that a store keeps."""
    name = f"t{uuid.uuid4().hex[:8]}"
    get = request.getfixturevalue
    made: dict[str, Callable[[], tuple[StoredState, ...]]] = {
        "memory": lambda: tuple(MemoryState(kind, kind=kind, **KEYED) for kind in ("opaque", "transactional")),
        "sqlite": lambda: _guards(f"sqlite:///{tmp_path / 'state.db'}", name),
        "postgres": lambda: _guards(get("postgres").url(), name),
        "mariadb": lambda: _guards(get("mariadb").url(), name),
        "redis": lambda: (
            RedisState.from_url(get("redis").url(), prefix=name, **KEYED),
            RedisGuard.from_url(get("redis").url(), prefix=f"{name}.guard", commands=lambda rows: []),
        ),
        "delta": lambda: (SummedTable(tmp_path / name),),
    }
    return made[request.param]()


def _look(grants: Grants, state: StoredState, txid: int) -> Grant:
    """The grant of a roll forward that looks at the values of a state."""
    found = state.fence()
    assert found is not None
    grants.generation += 2
    given = grants(txid)
    token = replace(given.token, generation=grants.generation - 1, attempt=0, epoch=0)
    return Grant(given.topology, given.incarnation, token, {}, over={state.name: found.token})


def test_a_grant_is_refused_during_a_roll_forward_until_a_person_accepts_the_values(
    states: tuple[StoredState, ...],
) -> None:
    for state in states:
        grants = Grants()
        grants.commit(1, state, {})
        first = _look(grants, state, 2)
        state.raise_fence(first)
        for use in (state.raise_fence, lambda grant, state=state: state.raise_and_write(grant, [])):
            with pytest.raises(StateBehind, match="its fence says 2, from a roll forward that has not ended"):
                use(grants(2))
        state.raise_fence(_look(grants, state, 2))
        assert vars(state.fence())["token"].is_look
        grants.last.clear()
        grants.births.clear()
        grants.generation += 1
        grants.commit(2, state, {})
        assert state.fence().token.txid == 2  # type: ignore[union-attr]


def test_only_the_latest_roll_forward_can_restore_the_fence_that_it_replaced(states: tuple[StoredState, ...]) -> None:
    for state in states:
        if state.rows_by_grant() is None:
            continue  # it does not say who wrote a row, so nobody looks at it
        grants = Grants()
        grants.commit(1, state, {"a": 1})
        before = state.fence()
        first = _look(grants, state, 2)
        state.raise_fence(first)
        second = _look(grants, state, 2)
        state.raise_fence(second)
        with pytest.raises(FenceOutranked):
            state.put_back(first)
        state.put_back(second)
        found = state.fence()
        assert found is not None
        assert before is not None
        assert vars(found) == vars(before)
        with pytest.raises(FenceOutranked):
            state.put_back(second)
        grants.commit(2, state, {"a": 1})
        assert [(row["key"], row["n"]) for row in state.read()] == [("a", 2)]


def test_a_roll_forward_keeps_the_number_of_the_accepted_change_in_the_fence(states: tuple[StoredState, ...]) -> None:
    for state in states:
        grants = Grants()
        first = replace(grants(1), batch=batch_of("run 1"))
        state.raise_and_write(first, [])
        grants.final(first, state)
        state.accept_values(3)
        assert _change(state) == 3
        look = _look(grants, state, 2)
        state.raise_fence(look)
        assert _change(state) == 3
        state.accept_values(4)
        assert _change(state) == 3  # a look says nothing about the values
        if state.rows_by_grant() is not None:
            state.put_back(look)
            assert _change(state) == 3
            grants.commit(2, state, {})


def test_the_next_grant_after_accepted_values_resets_the_change_number_of_the_fence(
    states: tuple[StoredState, ...],
) -> None:
    for state in states:
        grants = Grants()
        first = replace(grants(1), batch=batch_of("run 1"))
        state.raise_and_write(first, [])
        state.accept_values(3)
        grants.generation, grants.last = 2, {}
        state.raise_fence(replace(grants(2), batch=batch_of("run 2")))
        assert _change(state) == 0


def _change(state: StoredState) -> int:
    found = state.fence()
    assert found is not None
    return found.change
