"""However many keys are asked for: one round trip for 10,000 of them, on every store."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.state import SqlState, Sum
from airflow_tx.state.redis.state import RedisState
from airflow_tx.testing.suites.state_tools import Grants
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis

KEYS = 30_000


@pytest.fixture(scope="module", params=["sqlite", "postgres", pytest.param("mariadb", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{Path(tmp_path_factory.mktemp('state')) / 'state.db'}"
    server: LocalPostgres | LocalMariaDB = request.getfixturevalue(request.param)
    return server.url()


@pytest.mark.parametrize("keys", [["k"], ["k", "l"]], ids=["one column", "two columns"])
def test_multi_get_reads_ten_thousand_keys_from_a_database_with_one_statement(url: str, keys: list[str]) -> None:
    state = SqlState.from_url(url, table=f"t{uuid.uuid4().hex[:8]}", keys=keys, values={"n": Sum()})
    wanted = [(f"key {i}", i)[: len(keys)] for i in range(KEYS)]
    rows: list[dict[str, Any]] = [{**dict(zip(keys, key, strict=True)), "n": i} for i, key in enumerate(wanted)]
    Grants().commit_rows(1, state, rows)
    state.multi_get(wanted[:1])  # looks at the table once
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if state.table in statement:
            seen.append(statement)

    sa.event.listen(state._store._engine, "before_cursor_execute", note)
    assert state.multi_get(wanted) == [{"n": i} for i in range(KEYS)]
    assert len(seen) == KEYS // 10_000


def test_multi_get_reads_ten_thousand_keys_from_redis_with_one_command() -> None:
    with LocalRedis() as server:
        state = RedisState.from_url(server.url(), prefix="counts", keys=["k", "l"], values={"n": Sum()})
        wanted = [(f"key {i}", i) for i in range(KEYS)]
        Grants().commit_rows(1, state, [{"k": k, "l": number, "n": number} for k, number in wanted])
        client = server.client()
        client.config_resetstat()
        assert state.multi_get(wanted) == [{"n": i} for i in range(KEYS)]
        calls = {name: entry["calls"] for name, entry in client.info("commandstats").items()}
        assert calls.pop("cmdstat_hmget") == KEYS // 10_000
        # The look at the fence and the columns, in one round trip.
        assert {name for name, count in calls.items() if count > 1} <= {"cmdstat_info"}
