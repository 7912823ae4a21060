"""What a reducer costs on every store: two round trips for 10,000 keys, beside those of the fence and of the commit."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.state import RedisState, SqlState
from airflow_tx.state.sql.fence import ROWS_AT_ONCE
from airflow_tx.state.sql.sqlite import ROWS_A_STATEMENT
from airflow_tx.testing.suites.aggregator_cases import Balance, steps
from airflow_tx.testing.suites.state_tools import Grants
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis

KEYS = 20_000


def rows(step: int) -> list[dict[str, Any]]:
    return [{"key": f"key {i}", "number": i, "balance": steps(i, step)} for i in range(KEYS)]


@pytest.mark.worth("the number of statements is what makes large commits fast")
@pytest.mark.parametrize("store", ["sqlite", "postgres", pytest.param("mariadb", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_reducer_updates_ten_thousand_keys_of_a_database_with_one_read_and_one_write(
    store: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    if store != "sqlite":
        server: LocalPostgres | LocalMariaDB = request.getfixturevalue(store)
        url = server.url()
    table = f"t{uuid.uuid4().hex[:8]}"
    state = SqlState.from_url(url, table=table, keys=["key", "number"], values={"balance": Balance()}, kind=kind)
    grants, seen = Grants(), Counter[str]()
    grants.commit_rows(1, state, rows(1))
    grant = grants(2)
    state.raise_fence(grant)

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if table in statement:
            seen[statement.split()[0]] += 1

    sa.event.listen(state._store._engine, "before_cursor_execute", note)
    assert state.write(grant, rows(-3), chunk=1, complete=False) == KEYS
    # Within a process there is no round trip, and shorter statements are faster.
    told = KEYS // (ROWS_A_STATEMENT if store == "sqlite" else ROWS_AT_ONCE)
    assert sum(seen.values()) == KEYS // ROWS_AT_ONCE + told, seen
    found = state.multi_get([("key 0", 0), ("key 1", 1), ("key 9", 9)])
    assert found == [{"balance": 0}, {"balance": 0}, {"balance": 16}]


def test_a_reducer_updates_ten_thousand_keys_of_redis_with_one_read_and_one_write(redis: LocalRedis) -> None:
    state = RedisState.from_url(
        redis.url(), prefix=uuid.uuid4().hex, keys=["key", "number"], values={"balance": Balance()}
    )
    grants, trips = Grants(), list[int]()
    grants.commit_rows(1, state, rows(1))
    grant = grants(2)
    state.raise_fence(grant)
    run = state._server.run_scripts
    state._server.run_scripts = lambda calls, **how: (trips.append(len(calls)), run(calls, **how))[1]  # type: ignore[func-returns-value, method-assign]
    assert state.write(grant, rows(-3), chunk=1, complete=False) == KEYS
    assert len(trips) <= 2 * KEYS // 10_000
    trips.clear()
    state.write(grant, (), complete=True)
    assert trips == [1]
    assert state.multi_get([("key 0", 0), ("key 9", 9)]) == [{"balance": 0}, {"balance": 16}]
