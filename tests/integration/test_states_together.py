"""One transaction over PostgreSQL, Memcached, Redis, a map over it and a Delta table, ended between any two."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.failpoints import VARIABLE, FailpointError
from airflow_tx.ledger.api import Store
from airflow_tx.state import (
    Count,
    DeltaTable,
    MemcachedState,
    OpaqueMap,
    RedisMap,
    RedisState,
    SqlState,
    state_query,
)
from airflow_tx.transaction.commit.update import Update, append, persistent_aggregate
from airflow_tx.transaction.processing.outputs import returned
from tests.servers.memcached import LocalMemcached
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis
from tests.unit.bench import MemorySpec, OpaqueNumbers
from tests.unit.commit.run import Run

SOURCE: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="return_value")
Rows = dict[str, int]
WORDS = ("man", "dog", "gone", "new")


@pytest.fixture(scope="module")
def memcached() -> Iterator[LocalMemcached]:
    with LocalMemcached() as server:
        yield server


@pytest.fixture
def updates(
    postgres: LocalPostgres,
    redis: LocalRedis,
    memcached: LocalMemcached,
    table: str,
    tmp_path: Path,
) -> Callable[[], list[Update]]:
    """The updates as a process makes them that knows of no other one."""
    columns: Any = {"keys": ["word"], "values": {"count": Count()}}

    def make() -> list[Update]:
        states = [
            SqlState.from_url(postgres.url(), table=table, **columns),
            RedisState.from_url(redis.url(), prefix=table, **columns),
        ]
        cached = MemcachedState.opaque([memcached.address], prefix=table, cache=100)
        mapped = OpaqueMap[Any](RedisMap.from_url(redis.url(), prefix=f"{table}map"), name="map")
        of_fences = [persistent_aggregate(SOURCE, state=state) for state in states]
        of_maps = [persistent_aggregate(SOURCE, state=state, **columns) for state in (cached, mapped)]
        # None of them beside one of its own sort.
        of_table = append(SOURCE, state=DeltaTable(tmp_path / "delta"))
        return [of_fences[0], of_maps[0], of_fences[1], of_maps[1], of_table]

    return make


def attempt(store: Store, root: str, run_id: str, updates: list[Update], counts: Rows) -> None:
    """Begin, process and commit, as new processes."""
    spec = MemorySpec(
        "numbers",
        "numbers",
        memory=store,
        root=root,
        source=OpaqueNumbers(),
        tasks=("count",),
        inside=("count", "commit"),
    )
    run = Run(spec, run_id, updates, logging.getLogger(__name__))
    run.begin()
    rows = [{"word": word, "count": count} for word, count in counts.items()]
    run.start().ack(returned(rows, multiple=False))
    run.committer.xcoms["count", "return_value", -1] = rows
    run.committer.states["count"] = "success"
    assert run.commit_now() is None


def held(updates: Sequence[Update]) -> dict[str, Rows]:
    """What each state says of each word; what it does not know is 0."""
    asked = [{"word": word} for word in WORDS]
    *keyed, appended = updates
    sums = Counter(dict.fromkeys(WORDS, 0))
    for row in appended.state.read():
        sums[row["word"]] += row["count"]
    found = {
        update.state.name: {row["word"]: row["count"] or 0 for row in state_query(asked, state=update.state)}
        for update in keyed
    }
    return {**found, appended.state.name: dict(sums)}


@pytest.mark.long
@pytest.mark.parametrize("point", [0, 1, 2, 3, 4, "commit.before_mark", "commit.after_mark"])
def test_all_states_are_exact_after_a_crash_between_the_writes_of_any_two_states(
    point: int | str,
    store: Store,
    updates: Callable[[], list[Update]],
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))

    def run(run_id: str, counts: Rows) -> None:
        attempt(store, f"/{table}", run_id, updates(), counts)

    run("r1", {"man": 3, "dog": 4})
    where = point if isinstance(point, str) else f"commit.before_write:state={updates()[point].state.name}"
    monkeypatch.setenv(VARIABLE, f"{where}:raise:once={tmp_path}/hit")
    with pytest.raises(FailpointError):
        run("r2", {"man": 2, "gone": 7})
    committed = point == "commit.after_mark"
    if not committed:
        # The source gives other rows the next time.
        run("r2", {"man": 20, "dog": 1})
    run("r3", {"new": 1, "gone": 1})
    expected = {"man": 5, "dog": 4, "gone": 8, "new": 1} if committed else {"man": 23, "dog": 5, "gone": 1, "new": 1}
    assert held(updates()) == {update.state.name: expected for update in updates()}
