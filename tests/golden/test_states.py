"""What a state keeps beside its values: the fence, who wrote a value, receipts, notes of guards."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.state import MemoryState, RedisGuard, RedisState, SqlGuard, SqlState, Sum
from airflow_tx.state.api import FencedState, Grant
from airflow_tx.testing.suites.state_tools import batch_of
from tests.golden.written import check_golden
from tests.servers.redis import LocalRedis

KINDS = ("opaque", "transactional")
COLUMNS: dict[str, Any] = {"keys": ["key"], "values": {"n": Sum()}, "types": {"key": "text"}}
Rows = list[dict[str, Any]]


def grant(txid: int, attempt: int = 1, *, last: Mapping[str, int] | None = None) -> Grant:
    epoch = 10 * txid + attempt
    token = Token(1, txid, attempt, epoch, f"nonce {epoch}", f"birth {txid}")
    claim = Receipt(
        topology="golden", incarnation="life", generation=1, txid=txid, attempt=attempt, epoch=epoch,
        nonce=token.nonce, birth=token.birth, outcome="COMMITTED", key=f"run {txid}", run_id=f"run {txid}",
        granted="2026-01-01T00:00:00+00:00", metadata=txid, before=txid - 1, after=txid, previous="",
    )  # fmt: skip
    batch = batch_of(f"run {txid}", rows=txid, position=txid, prev=txid - 1)
    births = {name: f"birth {each}" for name, each in (last or {}).items()}
    return Grant("golden", "life", token, last or {}, batch=batch, births=births, claim=claim)


def rows(**updates: int) -> Rows:
    return [{"key": key, "n": delta} for key, delta in updates.items()]


def story(state: FencedState, shown: Callable[[], Any]) -> dict[str, Any]:
    """Write at once, in portions, again by a later attempt, and skip; what is kept after each of them."""
    found = {}
    assert state.raise_and_write(grant(1), rows(a=1, b=2)) == 2
    found["written at once"] = shown()
    first = grant(2, last={state.name: 1})
    state.raise_fence(first)
    state.write(first, rows(a=4), chunk=0, complete=False)
    found["a portion"] = shown()
    again = grant(2, 2, last={state.name: 1})
    state.raise_fence(again)
    state.write(again, rows(a=4), chunk=0, complete=False)
    state.write(again, rows(c=4), chunk=1, complete=False)
    found["portions of another attempt"] = shown()
    state.write(replace(again, portions=2), (), chunk=2)
    found["completed"] = shown()
    skipped = grant(3, last={state.name: 2})
    state.raise_fence(skipped)
    state.pass_over(skipped)
    found["skipped"] = shown()
    return found


def guarded(state: FencedState, shown: Callable[[], Any]) -> dict[str, Any]:
    """Write at once, under a raised fence, and skip."""
    assert state.raise_and_write(grant(1), rows(a=1, b=2)) == 2
    found = {"written at once": shown()}
    second = grant(2, last={state.name: 1})
    state.raise_fence(second)
    found["raised"] = shown()
    assert state.write(second, rows(a=1)) == 1
    found["written"] = shown()
    skipped = grant(3, last={state.name: 2})
    state.raise_fence(skipped)
    state.pass_over(skipped)
    found["skipped"] = shown()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_content_of_a_memory_state_matches_the_golden_file(kind: str) -> None:
    state = MemoryState("totals", kind=kind, **COLUMNS)

    def shown() -> dict[str, Any]:
        database = state.database
        values = {str(key): asdict(value) for key, value in sorted(database.rows.items())}
        receipts = [asdict(each) for each in database.receipts]
        return {"fence": asdict(database.fence) if database.fence else None, "rows": values, "receipts": receipts}

    check_golden(f"memory_{kind}", story(state, shown))


@pytest.mark.parametrize("kind", KINDS)
def test_the_tables_of_a_sql_state_match_the_golden_file(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    state = SqlState.from_url(url, table="totals", kind=kind, **COLUMNS)
    check_golden(f"sql_{kind}", story(state, lambda: tables(url)))


def test_the_tables_of_a_sql_guard_match_the_golden_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with sqlalchemy.create_engine(url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE mine (k TEXT, n INT)")
    state = SqlGuard.from_url(url, name="counted", statements=["INSERT INTO mine VALUES (:key, :n)"])
    check_golden("sql_guard", guarded(state, lambda: tables(url)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_keys_of_a_redis_state_match_the_golden_file(kind: str, redis: LocalRedis) -> None:
    state = RedisState.from_url(redis.url(), prefix=f"golden {kind}", kind=kind, **COLUMNS)
    check_golden(f"redis_{kind}", story(state, lambda: keys(redis, state.prefix)))


def test_the_keys_of_a_redis_guard_match_the_golden_file(redis: LocalRedis) -> None:
    state = RedisGuard.from_url(redis.url(), prefix="golden guard", commands=commands)
    check_golden("redis_guard", guarded(state, lambda: keys(redis, state.prefix)))


def test_a_pickled_state_contains_no_connection(redis: LocalRedis, tmp_path: Path) -> None:
    opened = [
        RedisState.from_url(redis.url(), prefix="pickled", **COLUMNS),
        SqlState.from_url(f"sqlite:///{tmp_path / 'state.db'}", table="totals", **COLUMNS),
    ]
    for state in opened:
        state.raise_and_write(grant(1), rows(a=1))
        copied = pickle.loads(pickle.dumps(state))
        assert (copied.serialize(), repr(copied)) == (state.serialize(), repr(state))
        assert vars(copied).get("_store") is None
        assert copied.read() == rows(a=1)


def commands(given: Rows) -> list[list[Any]]:
    return [["HINCRBY", "{golden guard}:mine", row["key"], row["n"]] for row in given]


def tables(url: str) -> dict[str, Rows]:
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        names = sqlalchemy.inspect(connection).get_table_names()
        found = {name: connection.execute(sqlalchemy.text(f"SELECT * FROM {name}")).mappings() for name in names}
        return {name: [dict(row) for row in every] for name, every in found.items()}


def keys(redis: LocalRedis, prefix: str) -> dict[str, Any]:
    """Every key of a state, without what another server or another moment gives."""
    client, found = redis.client(), dict[str, Any]()
    for name in sorted(client.keys(f"{{{prefix}}}:*")):
        kind = client.type(name)
        if kind == b"hash":
            pairs = client.hgetall(name)
            found[name.decode()] = {key.decode(): pairs[key].decode() for key in sorted(pairs)}
        elif kind == b"stream":
            entries = [fields for _, fields in client.xrange(name)]
            found[name.decode()] = [{key.decode(): value.decode() for key, value in each.items()} for each in entries]
        else:
            found[name.decode()] = client.get(name).decode()
    fence = found[f"{{{prefix}}}:fence"]
    fence.update({name: "..." for name in ("run", "receipt") if name in fence})
    return found
