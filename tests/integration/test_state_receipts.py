"""The receipts of states on real servers, beyond what every state does: their table and its statements."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import StateError
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.state import RedisGuard, SqlGuard, SqlState, Sum
from airflow_tx.state.api import FencedState
from airflow_tx.testing.suites.state_tools import Grants, rows
from tests.integration.databases import query
from tests.servers.redis import LocalRedis


@pytest.fixture(params=["sqlite", "postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state.db'}"
    return str(request.getfixturevalue(request.param).url())


@pytest.fixture
def schema(url: str) -> Iterator[str]:
    """A database, or a schema, of its own, as the receipts of a whole one are looked at."""
    name = f"s{uuid.uuid4().hex[:8]}"
    if url.startswith("sqlite"):
        yield ""
        return
    query(url, f"CREATE SCHEMA {name}")
    yield f"{name}."
    query(url, f"DROP SCHEMA {name}{' CASCADE' if url.startswith('postgres') else ''}")


def state_in(url: str, table: str) -> SqlState:
    return SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})


def txids(state: FencedState) -> list[int]:
    return [each.txid for each in state.receipts() or ()]


def test_another_table_with_the_name_of_the_receipts_table_is_refused_until_it_is_renamed(
    url: str, schema: str
) -> None:
    query(url, f"CREATE TABLE {schema}airflow_tx_receipts (id INTEGER, paid INTEGER)")
    state, grants = state_in(url, f"{schema}totals"), Grants()
    with pytest.raises(StateError, match=r"exists with other columns: id, paid; it lacks state.*ALTER TABLE"):
        grants.commit(1, state, {"a": 1})
    assert state.fence() is None
    name = "airflow_tx_receipts_other"
    query(url, f"ALTER TABLE {schema}airflow_tx_receipts RENAME TO {schema if url.startswith('mysql') else ''}{name}")
    grants.commit(1, state, {"a": 1})
    assert txids(state) == [1]


def test_a_state_keeps_its_receipts_after_its_table_was_renamed(url: str, schema: str) -> None:
    old, new, grants = state_in(url, f"{schema}old"), state_in(url, f"{schema}new"), Grants()
    grants.commit(1, old, {"a": 1})
    query(url, f"ALTER TABLE {schema}old RENAME TO {schema if url.startswith('mysql') else ''}new")
    new.take_over(old.name)
    grants.last, grants.births = {new.name: 1}, {new.name: grants.births[old.name]}
    grants.commit(2, new, {"a": 1})
    assert (txids(old), txids(new)) == ([], [1, 2])


def test_a_dropped_receipts_table_is_created_again_by_the_next_commit(url: str, schema: str) -> None:
    state, grants = state_in(url, f"{schema}totals"), Grants()
    grants.commit(1, state, {"a": 1})
    query(url, f"DROP TABLE {schema}airflow_tx_receipts")
    assert state_in(url, f"{schema}totals").receipts() == []
    grants.commit(2, again := state_in(url, f"{schema}totals"), {"a": 1})
    assert txids(again) == [2]


def test_a_receipt_needs_no_extra_statement_if_the_database_can_join_two_writes(url: str, schema: str) -> None:
    state, grants, statements = state_in(url, f"{schema}totals"), Grants(), list[str]()
    grants.commit(1, state, {"a": 1})
    event_of = state._store._engine
    sa.event.listen(event_of, "before_cursor_execute", lambda *given: statements.append(given[2]))
    grants.commit(2, state, {"a": 1})
    own = [each for each in statements if "airflow_tx_receipts" in each]
    assert len(own) == 1
    assert ("airflow_tx_fence" in own[0]) == url.startswith("postgres")


def test_a_commit_that_is_rolled_back_stores_no_receipt(url: str, schema: str) -> None:
    """A value that the database refuses: fence, values and receipt are one store transaction."""
    state, grants = state_in(url, f"{schema}totals"), Grants()
    grants.commit(1, state, {"a": 2**63 - 1})
    with pytest.raises(StateError):
        state.raise_and_write(grants(2), rows({"a": 1}))
    fence = state.fence()
    assert fence is not None
    assert (txids(state), fence.token.txid) == ([1], 1)


def test_guards_store_receipts(url: str, schema: str, redis: LocalRedis) -> None:
    query(url, f"CREATE TABLE {schema}seen (n INTEGER)")
    statements = [(f"INSERT INTO {schema}seen VALUES (:n)", None)]
    where: dict[str, Any] = {"name": f"guard {schema}", "statements": statements}
    made: list[Any] = [SqlGuard.from_url(url, **where)]
    made.append(
        RedisGuard.from_url(redis.url(), prefix=f"guard{schema}{uuid.uuid4().hex}", commands=lambda rows: [("PING",)])
    )
    for guard in made:
        grants = Grants()
        for txid in (1, 2):
            grant = grants(txid)
            guard.raise_and_write(grant, [{"n": txid}])
            grants.final(grant, guard)
        skipped = grants(3)
        guard.raise_fence(skipped)
        guard.pass_over(skipped)
        found = [Receipt.from_json(json.loads(each.text)).written[guard.name] for each in guard.receipts()[-3:]]
        assert [each.keys for each in found] == [1, 1, 0]
