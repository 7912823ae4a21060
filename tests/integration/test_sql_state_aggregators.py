"""Every aggregator on every database does what it does in memory, in few statements."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import ChunkConflict, FenceForeign, FenceOutranked, StateError, StateUnavailable
from airflow_tx.state import (
    Aggregator,
    ApproxCountDistinct,
    Avg,
    CollectSet,
    Count,
    First,
    Last,
    Max,
    MemoryState,
    Min,
    SqlState,
    Sum,
)
from airflow_tx.testing.suites.state_tools import Grants
from tests.examples import examples

UTC = dt.timezone.utc


@dataclass(frozen=True)
class Longest:
    """An aggregator of a user: the longest text."""

    name: ClassVar[str] = "longest"
    type: ClassVar[str] = "text"

    def zero(self) -> str:
        return ""

    def init(self, value: Any) -> Any:
        return value

    def combine(self, a: Any, b: Any) -> Any:
        if "refuse" in (a, b):
            raise ValueError("cannot be longer")
        return a if len(a) >= len(b) else b


SAMPLES: dict[str, list[Any]] = {
    "bigint": [-(2**63), -1, 0, 7, 2**63 - 1],
    "double": [-1.5, -0.1, 0.1, 5e-324, 1e300],
    "numeric": [
        Decimal("-10.5"),
        Decimal("9"),
        Decimal("10"),
        Decimal("0.1"),
        Decimal("12345678901234567890.123456789"),
    ],
    "text": ["", " ", "a", "A", "a ", "Z", "ä", "\\\"'", "日本", "\U0001f600", "%s :x"],
    "boolean": [False, True],
    "date": [dt.date(1, 1, 1), dt.date(2013, 1, 2), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(2013, 1, 2), dt.datetime(2013, 1, 2, 3, 4, 5, 678901), dt.datetime(9999, 1, 1)],
    "timestamptz": [dt.datetime(2013, 1, 2, tzinfo=UTC), dt.datetime(2013, 1, 2, 0, 0, 0, 1, tzinfo=UTC)],
    "bytes": [b"", b"\x00", b"\x00\xff\\'\"", b"a", b"a\x00"],
    "json": [[], {}, "a", 1, 1.5, True, {"b": [1, None, {"a": "ä\\\"'"}]}, 1e300],
}
PUSHED: dict[str, Aggregator] = {
    **{f"min_{kind}": Min(kind) for kind in SAMPLES if kind != "json"},
    **{f"max_{kind}": Max(kind) for kind in SAMPLES if kind != "json"},
    **{f"first_{kind}": First(kind) for kind in SAMPLES},
    **{f"last_{kind}": Last(kind) for kind in SAMPLES},
}
SMALL: dict[str, Aggregator] = {"total": Sum(), "exact": Sum("numeric"), "rows": Count(), "mean": Avg("numeric")}
COMBINED: dict[str, Aggregator] = {
    **SMALL,
    "seen": CollectSet(),
    "users": ApproxCountDistinct(),
    "longest": Longest(),
    "least": Min("text"),
    "last_json": Last("json"),
}


def _value(random: random.Random, name: str, aggregator: Aggregator) -> Any:
    if random.random() < 0.25:
        return None
    if name in ("total", "rows", "users"):
        return random.randrange(1000)
    if name in ("exact", "mean"):
        return Decimal(random.randrange(10**6)) / 1000
    if name == "seen":
        return random.choice([["a", 1], "a", True, [2.5, "ä"], []])
    return random.choice(SAMPLES[getattr(aggregator, "type", "text")])


def _update(random: random.Random, values: dict[str, Aggregator]) -> list[dict[str, Any]]:
    keys = random.sample(range(12), random.randrange(12))
    return [{"k": f"key {key}", **{name: _value(random, name, agg) for name, agg in values.items()}} for key in keys]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("values", [PUSHED, SMALL, COMBINED], ids=["pushed", "numbers", "combined"])
def test_every_aggregator_computes_the_same_values_in_sql_as_in_memory(
    url: str, table: str, values: dict[str, Aggregator], kind: str
) -> None:
    random_ = random.Random(7)
    grants = Grants()
    state = SqlState.from_url(url, table=table, keys=["k"], values=values, kind=kind)
    model = MemoryState(state.name, keys=["k"], values=values, kind=kind)
    for txid in range(1, examples(4, 9)):
        update = _update(random_, values)
        for attempt in (1, 2):
            grant = grants(txid, attempt)
            update = update if kind == "transactional" else _update(random_, values)
            for each in (state, model):
                each.raise_fence(grant)
                each.write(grant, update[::2], chunk=1, complete=False)
                each.write(grant, update[1::2], chunk=2, complete=False)
                each.write(grant, update[::2], chunk=1)
            assert state.read() == model.read()
        grants.final(grant, state)
    assert len(state.read()) > 8


@pytest.mark.parametrize("values", [SMALL, COMBINED], ids=["pushed", "combined"])
def test_raising_the_fence_rolls_all_columns_back(url: str, table: str, values: dict[str, Aggregator]) -> None:
    random_, grants = random.Random(3), Grants()
    state = SqlState.from_url(url, table=table, keys=["k"], values=values)
    grant = grants(1)
    state.raise_and_write(grant, _update(random_, values))
    grants.final(grant, state)
    before = state.read()
    state.raise_and_write(grants(2), _update(random_, values))
    assert state.read() != before
    state.raise_fence(grants(2, 2))
    assert state.read() == before


@pytest.mark.parametrize("values", [SMALL, COMBINED], ids=["pushed", "combined"])
def test_a_paused_older_writer_is_refused_when_it_resumes_after_the_next_transaction(
    url: str, table: str, values: dict[str, Aggregator]
) -> None:
    grants = Grants()
    zombie, state = (SqlState.from_url(url, table=table, keys=["k"], values=values) for _ in range(2))
    rows = {key: {"k": key, **dict.fromkeys(values)} for key in ("both", "old only", "new only", "unknown")}
    old, new = grants(1), grants(1, 2)
    zombie.raise_fence(old)
    zombie.write(old, [rows["both"], rows["old only"]], chunk=1, complete=False)
    state.raise_and_write(new, [rows["both"], rows["new only"]])
    grants.final(new, state)
    following = grants(2)
    state.raise_and_write(following, [{**rows["both"], "total": 5}])
    before, fence = state.read(), state.fence()
    for late in (["both"], ["old only"], ["new only"], ["unknown"], ["both", "old only"], []):
        update = [{**rows[key], "total": 1} for key in late]
        for use in (
            lambda update: zombie.write(old, update),
            lambda update: zombie.write(old, update, chunk=1, complete=False),
            lambda update: zombie.write(old, update, chunk=9, complete=False),
            lambda update: zombie.raise_and_write(old, update),
            lambda _: zombie.raise_fence(old),
        ):
            with pytest.raises(StateError) as failure:
                use(update)
            assert not isinstance(failure.value, StateUnavailable)
    assert (state.read(), state.fence()) == (before, fence)
    assert {row["k"] for row in before} == {"both", "new only"}


def _statements(state: SqlState, grant: Any, count: int) -> list[str]:
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    engine = state._store._engine
    sa.event.listen(engine, "before_cursor_execute", note)
    names = list(state.columns.values)
    state.write(grant, ({"k": f"key {i}", **dict.fromkeys(names)} for i in range(count)), complete=False)
    sa.event.remove(engine, "before_cursor_execute", note)
    return seen


@pytest.mark.lead
@pytest.mark.parametrize(
    ("values", "each"),
    [pytest.param(PUSHED, 1, marks=pytest.mark.long), (COMBINED, 2)],
    ids=["pushed", "combined"],
)
def test_an_update_of_ten_thousand_keys_needs_one_or_two_statements(
    url: str, table: str, values: dict[str, Aggregator], each: int
) -> None:
    state, grants = SqlState.from_url(url, table=table, keys=["k"], values=values), Grants()
    for txid in (1, 2):
        grant = grants(txid)
        state.raise_fence(grant)
        found = [len(_statements(state, grant, count)) for count in (1, 10_000, 30_000)]
        if txid == 2:  # the first write looked at the table once
            # Nothing but the begin, which sets two times in PostgreSQL, the fence check, and the note of the portion.
            begin = 0 if url.startswith(("mysql", "mariadb")) else 1
            # SQLite is in this process: what it saves by more rows a statement ends at a few hundred.
            upserts = [1, 20, 60] if url.startswith("sqlite") else [1, 1, 3]
            read = [(each - 1) * portions for portions in (1, 1, 3)]
            assert [count - begin - 2 for count in found] == list(map(sum, zip(upserts, read, strict=True)))
        state.write(grant, [])  # completes it
        grants.final(grant, state)


def test_a_key_in_two_chunks_is_refused_if_an_aggregator_runs_in_python(url: str, table: str) -> None:
    state, grants = SqlState.from_url(url, table=table, keys=["k"], values={"seen": CollectSet()}), Grants()
    grant = grants(1)
    state.raise_fence(grant)
    state.write(grant, [{"k": "a", "seen": 1}], chunk=1, complete=False)
    with pytest.raises(ChunkConflict, match="'a'.* came from chunk 1 and from chunk 2"):
        state.write(grant, [{"k": "b", "seen": 1}, {"k": "a", "seen": 1}], chunk=2, complete=False)
    assert state.read() == [{"k": "a", "seen": [1]}]


def test_a_state_without_key_columns_can_combine_values_in_python(url: str, table: str) -> None:
    state, grants = SqlState.from_url(url, table=table, keys=[], values={"seen": CollectSet(), "n": Sum()}), Grants()
    for txid in (1, 2):
        for attempt in (1, 2):
            grant = grants(txid, attempt)
            state.raise_and_write(grant, [{"seen": [txid, f"of {attempt}"], "n": attempt}])
        grants.final(grant, state)
    assert state.read() == [{"seen": [1, 2, "of 2"], "n": 4}]


def test_values_and_fence_do_not_change_if_new_values_cannot_be_combined(url: str, table: str) -> None:
    values: dict[str, Aggregator] = {"longest": Longest(), "seen": CollectSet(bound=2), "n": Sum()}
    state, grants = SqlState.from_url(url, table=table, keys=["k"], values=values), Grants()
    grant = grants(1)
    fine = {"longest": "a", "seen": 1, "n": 1}
    state.raise_and_write(grant, [{"k": "a", **fine}, {"k": "b", **fine, "n": 2**63 - 1}])
    grants.final(grant, state)
    before, fence = state.read(), state.fence()
    for key, column, value, message in (
        ("a", "longest", "refuse", "the longest of column longest cannot be longer"),
        ("a", "seen", [2, 3], "has 3 distinct values, more than"),
        ("b", "n", 1, "sum of column n"),
    ):
        with pytest.raises(StateError, match=message) as failure:
            state.raise_and_write(grants(2), [{"k": "c", **fine}, {"k": key, **fine, column: value}])
        assert "\n" not in str(failure.value)
        assert (state.read(), state.fence()) == (before, fence)


def test_a_changed_aggregator_is_refused_until_the_previous_aggregator_is_restored(url: str, table: str) -> None:
    grants = Grants()
    summed = SqlState.from_url(url, table=table, keys=["k"], values={"n": Sum(), "m": Count()})
    grant = grants(1)
    summed.raise_and_write(grant, [{"k": "a", "n": 5, "m": 1}])
    grants.final(grant, summed)
    fence = summed.fence()
    for other in (Max(), Last(), Count()):
        changed = SqlState.from_url(url, table=table, keys=["k"], values={"n": other, "m": Count()})
        for use in (changed.raise_fence, lambda grant, changed=changed: changed.raise_and_write(grant, [])):
            with pytest.raises(
                StateError, match=f"column 'n' were made by 'sum', but the DAG now has '{other.name}'.*Bring"
            ):
                use(grants(2))
    assert (summed.fence(), summed.read()) == (fence, [{"k": "a", "n": 5, "m": 1}])
    summed.raise_and_write(grants(2), [{"k": "a", "n": 5, "m": 1}])
    assert summed.read() == [{"k": "a", "n": 10, "m": 2}]


def test_a_write_is_refused_if_the_fence_was_deleted_after_the_raise(url: str, table: str) -> None:
    state, grant = SqlState.from_url(url, table=table, keys=["k"], values={"n": Sum()}), Grants()(1)
    state.raise_fence(grant)
    with sa.create_engine(url, poolclass=sa.pool.NullPool).begin() as connection:
        connection.execute(sa.text("DROP TABLE airflow_tx_fence"))
    with pytest.raises(StateError, match="the database says: .*airflow_tx_fence"):
        state.write(grant, [{"k": "a", "n": 1}])
    again = SqlState.from_url(url, table=table, keys=["k"], values={"n": Sum()})
    with pytest.raises(FenceOutranked, match="the fence holds nothing"):
        again.write(grant, [{"k": "a", "n": 1}])
    assert again.read() == []


@pytest.mark.parametrize("kind", [*(kind for kind in SAMPLES if kind != "json")])
def test_aggregators_that_run_in_python_find_the_stored_keys_of_every_type(url: str, table: str, kind: str) -> None:
    keys = SAMPLES[kind]
    grants = Grants()
    for txid in (1, 2):
        state = SqlState.from_url(url, table=table, keys=["k", "j"], values={"seen": CollectSet()}, types={"k": kind})
        grant = grants(txid)
        state.raise_and_write(grant, [{"k": key, "j": j, "seen": txid} for key in keys for j in (0, 1)])
        grants.final(grant, state)
    found = state.read()
    assert len(found) == 2 * len(keys)
    assert {row["k"] for row in found} == set(keys)
    assert all(row["seen"] == [1, 2] for row in found)


def test_the_longest_allowed_key_is_found_again_and_a_longer_key_is_refused(url: str, table: str) -> None:
    state, grants = SqlState.from_url(url, table=table, keys=["k"], values={"n": Sum()}), Grants()
    keys = ["ä" * 512, "x" * 1024, "x" * 1023, "x" * 1023 + " "]
    for txid in (1, 2):
        grant = grants(txid)
        state.raise_and_write(grant, [{"k": key, "n": 1} for key in keys])
        grants.final(grant, state)
    with pytest.raises(StateError, match="row 1 .*its key has 1025 bytes, more than 1024") as failure:
        state.raise_and_write(grants(3), [{"k": "a", "n": 1}, {"k": "x" * 1025, "n": 1}])
    assert "\n" not in str(failure.value)
    assert {row["k"]: row["n"] for row in state.read()} == dict.fromkeys(keys, 2)


def test_a_state_of_another_topology_is_refused_before_any_value_is_written(url: str, table: str) -> None:
    state, grants = SqlState.from_url(url, table=table, keys=["k"], values={"seen": CollectSet()}), Grants()
    state.raise_and_write(grants(1), [{"k": "a", "seen": 1}])
    before, other = state.fence(), Grants()(1)
    for use in (lambda: state.raise_fence(other), lambda: state.raise_and_write(other, [{"k": "a", "seen": 2}])):
        with pytest.raises(FenceForeign, match="One state serves one topology"):
            use()
    with pytest.raises(FenceOutranked):
        state.write(other, [{"k": "a", "seen": 2}])
    assert (state.fence(), state.read()) == (before, [{"k": "a", "seen": [1]}])
