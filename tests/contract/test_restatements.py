"""A difference on every kind of store: afterwards the state has what the new contribution alone would have given."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import NotTakenBack
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import (
    Avg,
    CollectSet,
    Count,
    Last,
    Max,
    MemoryDatabase,
    MemoryMap,
    MemoryState,
    OpaqueMap,
    SqlState,
    Sum,
)
from airflow_tx.state.redis.state import RedisState
from airflow_tx.state.trident import TridentAggregate
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit import contributions as forming
from airflow_tx.transaction.commit import write
from airflow_tx.transaction.commit.contributions import difference_of, old_side
from airflow_tx.transaction.commit.write import portions
from tests.contributions import contribution, place, restate

Rows = list[dict[str, Any]]
Make = Callable[..., Any]
VALUES: Mapping[str, Any] = {"n": Sum(), "total": Sum("double"), "delay": Avg("bigint")}
STORES = ["memory", "sqlite", "postgres", "mariadb", "redis"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Open a state by name and columns: the same name is the same place."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    if request.param == "memory":
        databases = defaultdict[str, MemoryDatabase](MemoryDatabase)
        return lambda name, **given: MemoryState(name, database=databases[name], **given)
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'state.db'}"
    else:
        url = request.getfixturevalue(request.param).url()
    if request.param == "redis":
        return lambda name, **given: RedisState.from_url(url, prefix=f"{prefix}.{name}", **given)
    return lambda name, **given: SqlState.from_url(url, table=f"{prefix}_{name}", **given)


@pytest.fixture(params=["opaque", "transactional"])
def make(store: Make, request: pytest.FixtureRequest) -> Make:
    def made(name: str = "sums", **values: Any) -> Any:
        return store(name, keys=["key"], values=values or VALUES, kind=request.param)

    return made


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path / "staging"))


@pytest.fixture(autouse=True)
def portioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys a chunk, and differences that are staged."""
    monkeypatch.setattr(write, "ROWS_A_WRITE", 2)
    monkeypatch.setattr(forming, "FEW", 2)
    monkeypatch.setattr(forming, "PORTION", 3)


def rows(**values: int) -> Rows:
    return [
        {"key": key, "n": value, "total": value / 10, "delay_sum": value, "delay_count": 1}
        for key, value in values.items()
    ]


BEFORE = rows(a=100, b=200, z=5)
OLD = rows(a=1, b=2, c=3, d=4, e=5)
NEW = rows(a=2, b=2, c=30, f=6, g=7)


def read(state: Any) -> dict[str, Any]:
    """All values by key, of doubles the first digits; a key that nothing contributes to is left out."""
    found = {row.pop("key"): row for row in state.read()}
    for row in found.values():
        for name in ("total", "delay"):
            row[name] = None if not row.get(name) else round(row[name], 6)
    return {key: row for key, row in found.items() if row.get("delay_count", 1) or row["n"]}


def committed(state: Any, grants: Grants, *transactions: Rows) -> Any:
    for txid, given in enumerate(transactions, 1):
        grants.commit_rows(txid, state, given)
    return state


def expected(make: Make, *transactions: Rows) -> dict[str, Any]:
    return read(committed(make("expected"), Grants(), *transactions))


def test_a_restatement_replaces_the_contribution_of_the_restated_transaction(make: Make, area: StagingArea) -> None:
    grants = Grants()
    state = committed(make(), grants, BEFORE, OLD, BEFORE)
    restate(state, grants(4), area, contribution(state, OLD), NEW)
    assert read(state) == expected(make, BEFORE, NEW, BEFORE)


def test_a_transaction_can_be_restated_with_no_rows_and_then_with_rows_again(make: Make, area: StagingArea) -> None:
    grants = Grants()
    state = committed(make(), grants, BEFORE, [])
    outputs: list[Rows] = [[], OLD, [], NEW]
    for txid, (old, new) in enumerate(pairwise(outputs), 3):
        grant = grants(txid)
        restate(state, grant, area, contribution(state, old), new)
        grants.final(grant, state)
        assert read(state) == expected(lambda name, of=txid: make(f"{name}{of}"), BEFORE, new)


def in_another_order(new: Rows) -> Rows:
    # What adding in another order makes of a float.
    return [{**row, "total": row["total"] * (1 + 2**-50)} for row in reversed(new)]


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_restatement_killed_between_two_chunks_is_exact_after_a_replay_in_another_order(
    make: Make, area: StagingArea, chunks: int
) -> None:
    grants = Grants()
    state = committed(make(), grants, BEFORE, OLD)
    grant = grants(3)
    found: Any = difference_of(state, contribution(state, OLD), NEW, place(area, 3))
    state.raise_fence(grant)
    for chunk, portion in zip(range(chunks), portions(found.rows, state, size=2), strict=False):
        state.write(grant, portion, chunk=chunk, complete=False)
    restate(state, grants(3, 2), area, contribution(state, OLD), in_another_order(NEW))
    assert read(state) == expected(make, BEFORE, NEW)


def test_a_restatement_with_the_same_rows_in_another_order_keeps_the_values_up_to_rounding(
    make: Make, area: StagingArea
) -> None:
    grants = Grants()
    state = committed(make(), grants, BEFORE, OLD)
    restate(state, grants(3), area, contribution(state, OLD), in_another_order(OLD))
    assert read(state) == expected(make, BEFORE, OLD)


def test_a_replay_of_a_restatement_may_write_other_rows_to_an_opaque_state(store: Make, area: StagingArea) -> None:
    def make(name: str = "sums") -> Any:
        return store(name, keys=["key"], values=VALUES, kind="opaque")

    grants = Grants()
    state = committed(make(), grants, BEFORE, OLD)
    restate(state, grants(3), area, contribution(state, OLD), NEW)
    restate(state, grants(3, 2), area, contribution(state, OLD), BEFORE)
    assert read(state) == expected(make, BEFORE, BEFORE)


def test_a_restatement_is_refused_with_the_names_of_missing_keys_and_writes_no_row(
    make: Make, area: StagingArea
) -> None:
    grants = Grants()
    state = committed(make(), grants, BEFORE)
    before = read(state)
    with pytest.raises(NotTakenBack, match=r"key \{'key': 'c'\} is missing"):
        restate(state, grants(2), area, contribution(state, OLD), NEW)
    assert read(state) == before


def test_a_restatement_subtracts_no_old_value_from_a_key_that_was_lost_and_recreated(
    make: Make, area: StagingArea
) -> None:
    grants = Grants()
    state = committed(make(), grants, BEFORE, rows(a=1, b=2), rows(c=3))
    gone = {old_side(state, contribution(state, OLD)).key_name((key,)) for key in "cde"}
    restate(state, grants(4), area, contribution(state, OLD), NEW, gone=gone)
    assert read(state) == expected(make, BEFORE, NEW, rows(c=3))


CHOSEN: Mapping[str, Any] = {"n": Sum(), "most": Max(), "last": Last("text"), "all": CollectSet()}


def chosen(**values: int) -> Rows:
    return [{"key": key, "n": n, "most": n, "last": f"v{n}", "all": [n]} for key, n in values.items()]


def sole(state: Any, *txids: int, own: int) -> Any:
    return partial(state.sole_values, txids=set(txids), own=own)


@pytest.fixture
def knows(store: Make) -> Make:
    """A store whose rows say who wrote them."""
    if isinstance(store("other", keys=["key"], values=CHOSEN), RedisState):
        pytest.skip("Redis keeps no writer of a value")
    return lambda name="chosen": store(name, keys=["key"], values=CHOSEN, kind="opaque")


def test_a_restatement_replaces_values_of_keys_that_no_other_transaction_has_written(
    knows: Make, area: StagingArea
) -> None:
    grants = Grants()
    state = committed(knows(), grants, chosen(a=9, b=9, c=9, d=9), chosen(d=1))
    old = contribution(state, chosen(a=9, b=9, c=9))
    restate(state, grants(3), area, old, chosen(a=2, b=3, x=1), sole=sole(state, 1, own=3))
    nothing = {"n": 0, "most": None, "last": None, "all": None}
    expected = {row.pop("key"): row for row in chosen(a=2, b=3, x=1)}
    found = {row.pop("key"): row for row in state.read()}
    assert found.pop("d") == {"n": 10, "most": 9, "last": "v1", "all": [1, 9]}
    assert found == {**expected, "c": nothing}


@pytest.mark.parametrize("final", [True, False])
def test_a_replay_or_a_later_restatement_can_replace_the_values_of_a_restatement(
    knows: Make, area: StagingArea, final: bool
) -> None:
    grants = Grants()
    state = committed(knows(), grants, chosen(a=9, b=9))
    old = contribution(state, chosen(a=9, b=9))
    grant = grants(2)
    restate(state, grant, area, old, chosen(a=7, b=8), sole=sole(state, 1, own=2))
    if final:
        grants.final(grant, state)
        old, grant, asked = contribution(state, chosen(a=7, b=8)), grants(3), sole(state, 2, own=3)
    else:
        grant, asked = grants(2, 2), sole(state, 1, own=2)
    restate(state, grant, area, old, chosen(a=3), sole=asked)
    assert {row["key"]: row["most"] for row in state.read()} == {"a": 3, "b": None}


def test_a_restatement_can_replace_values_that_a_skipped_restatement_had_replaced(
    knows: Make, area: StagingArea
) -> None:
    grants = Grants()
    state = committed(knows(), grants, chosen(a=9))
    old = contribution(state, chosen(a=9))
    restate(state, grants(2), area, old, chosen(a=7), sole=sole(state, 1, own=2))
    skip = grants(2, 2)
    state.raise_fence(skip)
    state.pass_over(skip)
    grants.final(skip, state)
    assert [row["most"] for row in state.read()] == [9]
    restate(state, grants(3), area, old, chosen(a=3), sole=sole(state, 1, own=3))
    assert [row["most"] for row in state.read()] == [3]


def test_a_restatement_is_refused_if_another_transaction_has_written_the_key(knows: Make, area: StagingArea) -> None:
    grants = Grants()
    state = committed(knows(), grants, chosen(a=9), chosen(a=1))
    with pytest.raises(NotTakenBack, match=r"key \{'key': 'a'\}: the max of column most was 9 and is now 2"):
        restate(state, grants(3), area, contribution(state, chosen(a=9)), chosen(a=2), sole=sole(state, 1, own=3))


def test_a_new_trident_map_uses_the_key_types_that_the_journal_entry_recorded(area: StagingArea) -> None:
    kept = dict[Any, Any]()

    def make() -> TridentAggregate:
        return TridentAggregate(OpaqueMap(MemoryMap(kept)), keys=["key"], values={"n": Count()})

    old = [{"key": 1.0, "n": 3}, {"key": 2.0, "n": 4}]
    grants = Grants()
    committed(make(), grants, old)
    state = make()
    assert state.key_types() is None
    restate(state, grants(2), area, contribution(state, old), [{"key": 1, "n": 5}, {"key": 3, "n": 1}])
    assert state.multi_get([(1.0,), (2.0,), (3.0,)]) == [{"n": 5}, {"n": 0}, {"n": 1}]
