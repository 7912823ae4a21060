"""A guard: statements of one's own, exactly once per transaction, on every database."""

from __future__ import annotations

import json
import pickle
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import (
    ConfigError,
    FenceForeign,
    FenceOutranked,
    LedgerBehind,
    OutputChanged,
    SkipRefused,
    StateBehind,
    StateError,
    StateOutcomeUnknown,
)
from airflow_tx.state.api import Fence, FencedState, Grant
from airflow_tx.state.sql.guard import SqlGuard, Statements
from airflow_tx.state.sql.guard_store import GuardStore
from airflow_tx.testing.suites.state_tools import Grants, about_to_skip, about_to_write
from tests.integration.databases import query
from tests.servers.postgres import LocalPostgres

ROWS = [{"who": "man", "n": 2}, {"who": "dog", "n": 1}]
INSERT = "INSERT INTO {} (txid, who, n) VALUES (:txid, :who, :n)"


@pytest.fixture
def table(url: str) -> str:
    """A user's table, made beforehand."""
    name = f"t{uuid.uuid4().hex[:10]}"
    query(url, f"CREATE TABLE {name} (txid BIGINT, who VARCHAR(20), n BIGINT)")
    return name


def _guard(url: str, table: str, statements: Statements | None = None) -> SqlGuard:
    return SqlGuard.from_url(url, name=f"of {table}", statements=statements or [INSERT.format(table)])


def _there(url: str, table: str) -> list[tuple[Any, ...]]:
    return query(url, f"SELECT txid, who, n FROM {table} ORDER BY txid, n DESC")


def _raise(state: SqlGuard, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> None:
    state.raise_fence(grant)


def _write(state: SqlGuard, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> None:
    state.write(grant, rows)


def _raise_and_write(state: SqlGuard, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> None:
    state.raise_and_write(grant, rows)


Use = Callable[[SqlGuard, Grant, Iterable[Mapping[str, Any]]], None]
every_use = pytest.mark.parametrize("use", [_raise, _write, _raise_and_write])


def test_the_statements_of_a_transaction_run_once_even_if_it_is_committed_repeatedly(
    url: str, table: str, grants: Grants
) -> None:
    for txid in (1, 2):
        for attempt in (1, 2):
            state, grant = _guard(url, table), grants(txid, attempt)
            assert state.raise_and_write(grant, ROWS) == 2
            state.raise_fence(grant)
            assert state.write(grant, ROWS) == 2
            assert state.last_txid() == txid
            assert state.fence() == Fence(grant.incarnation, grant.token, True)
        grants.final(grant, state)
    assert _there(url, table) == [(1, "man", 2), (1, "dog", 1), (2, "man", 2), (2, "dog", 1)]
    assert query(url, f"SELECT txid FROM airflow_tx_guard WHERE guard = 'of {table}'") == [(2,)]


def test_a_paused_older_writer_is_refused_when_it_resumes_after_the_next_transaction(
    url: str, table: str, grants: Grants
) -> None:
    zombie, state = _guard(url, table), _guard(url, table)
    old, new = grants(1), grants(1, 2)
    zombie.raise_fence(old)
    state.raise_and_write(new, ROWS[:1])
    grants.final(new, state)
    following = grants(2)
    state.raise_and_write(following, ROWS[1:])
    for use in (_raise, _write, _raise_and_write):
        for late in (ROWS, [{"who": "only the old attempt has it", "n": 1}], []):
            with pytest.raises((FenceOutranked, LedgerBehind)):
                use(zombie, old, late)
    assert _there(url, table) == [(1, "man", 2), (2, "dog", 1)]
    assert (state.last_txid(), state.fence()) == (2, Fence(grants.incarnation, following.token, True))


@every_use
def test_a_grant_that_the_fence_refuses_runs_no_statement(url: str, table: str, grants: Grants, use: Use) -> None:
    state = _guard(url, table)
    grant = grants(1)
    state.raise_and_write(grant, ROWS[:1])
    grants.final(grant, state)
    lost = _guard(url, f"{table} lost")
    grants.final(grant, lost)
    for refused, whose, error in (
        (state, Grants()(1), (FenceForeign, FenceOutranked)),
        (state, Grants()(2), (FenceForeign, FenceOutranked)),
        (lost, grants(2), (StateBehind, FenceOutranked)),
    ):
        with pytest.raises(error):
            use(refused, whose, ROWS)
    assert (_there(url, table), state.last_txid(), lost.last_txid()) == ([(1, "man", 2)], 1, None)


def test_a_function_can_create_the_statements_from_the_rows(url: str, table: str, grants: Grants) -> None:
    def statements(rows: list[dict[str, Any]]) -> Iterator[Any]:
        yield f"DELETE FROM {table} WHERE who = :who", [{"who": row["who"]} for row in rows]
        yield INSERT.format(table), {"who": "all", "n": sum(row["n"] for row in rows), "txid": 77}
        yield f"UPDATE {table} SET n = n + :more", {"more": 100}
        yield f"DELETE FROM {table} WHERE who = :who", []

    state = _guard(url, table, statements)
    state.raise_and_write(grants(1), ROWS)
    assert _there(url, table) == [(77, "all", 103)]


def test_a_transaction_without_rows_runs_only_statements_that_need_no_row_and_is_recorded(
    url: str, table: str, grants: Grants
) -> None:
    state = _guard(url, table, [INSERT.format(table), (INSERT.format(table), {"who": "none", "n": 0})])
    assert state.raise_and_write(grants(1), []) == 0
    assert (_there(url, table), state.last_txid()) == ([(1, "none", 0)], 1)


def test_a_failed_statement_is_rolled_back_and_the_same_grant_can_retry(url: str, table: str, grants: Grants) -> None:
    broken = _guard(url, table, [INSERT.format(table), ("UPDATE no_such_table SET n = 1", {})])
    grant = grants(1)
    with pytest.raises(StateError, match="the database says: .*no_such_table") as failure:
        broken.raise_and_write(grant, ROWS)
    assert "\n" not in str(failure.value)
    with pytest.raises(StateError, match="who"):
        _guard(url, table).raise_and_write(grant, [{"n": 1}])
    assert (broken.fence(), broken.last_txid(), _there(url, table)) == (None, None, [])
    _guard(url, table).raise_and_write(grant, ROWS)
    assert len(_there(url, table)) == 2


def test_a_statement_that_would_end_the_transaction_is_refused(url: str, table: str, grants: Grants) -> None:
    endings = ["COMMIT", " rollback;", "/* now */ BEGIN", "-- so\nSAVEPOINT x"]
    if url.startswith("mysql"):
        endings += [f"CREATE TABLE {table}_2 (n INT)", f"TRUNCATE {table}", f"DROP TABLE {table}"]
    for ending in endings:
        state = _guard(url, table, [INSERT.format(table), (ending, {})])
        with pytest.raises(StateError, match="statement 1 begins with .* would end the guard's transaction"):
            state.raise_and_write(grants(1), ROWS)
    assert _there(url, table) == []


@pytest.mark.parametrize("ending", ["COMMIT", "/* it's */ commit", "ROLLBACK; INSERT INTO {} VALUES (1, 'x', 1)"])
def test_several_statements_in_one_text_cannot_end_the_transaction(
    url: str, table: str, grants: Grants, ending: str
) -> None:
    state = _guard(
        url, table, [f"{INSERT.format(table)}; {ending.format(table)}", ("UPDATE no_such_table SET n = 1", {})]
    )
    for attempt in (1, 2):
        with pytest.raises(StateError, match="continues with|one statement at a time"):
            state.raise_and_write(grants(1, attempt), ROWS)
    assert _there(url, table) == []


def test_the_word_commit_in_texts_names_and_comments_is_allowed(url: str, table: str, grants: Grants) -> None:
    quoted = "`commit`" if url.startswith("mysql") else '"commit"'
    sql = f"/* begin; commit */ INSERT INTO {table} (txid, who, n) SELECT x.{quoted}, 'it''s; COMMIT', 1 "
    sql += f"FROM (SELECT 1 AS {quoted}) x -- ; rollback"
    parts: list[Any] = [(sql, {})]
    if url.startswith("postgres"):
        parts.append(
            (f"INSERT INTO {table} VALUES (2, $a$; COMMIT$a$, 2); INSERT INTO {table} VALUES (3, E'\\'; END', 3)", {})
        )
    _guard(url, table, parts).raise_and_write(grants(1), [])
    assert len(_there(url, table)) == (3 if url.startswith("postgres") else 1)


def _run_together(url: str, table: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Statements that end the transaction out of sight: by a procedure, or where the text is not understood."""
    if url.startswith("mysql"):
        query(url, f"CREATE PROCEDURE {table}_p() BEGIN INSERT INTO {table} VALUES (1, 'p', 1); COMMIT; END")
        return [(f"CALL {table}_p()", {})]
    monkeypatch.setattr(GuardStore, "_check", lambda *_: None)
    if url.startswith("sqlite"):
        return [(f"INSERT INTO {table} VALUES (1, 'p', 1)", {}), ("COMMIT", {})]
    return [(f"INSERT INTO {table} VALUES (1, 'p', 1); COMMIT", {})]


@pytest.mark.parametrize("fails", [False, True])
def test_statements_that_ended_the_transaction_unnoticed_are_reported_and_not_run_again(
    url: str, table: str, grants: Grants, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    ending = _run_together(url, table, monkeypatch)
    last = ("UPDATE no_such_table SET n = 1", {}) if fails else (INSERT.format(table), {"who": "last", "n": 2})
    state = _guard(url, table, [*ending, last])
    for attempt in (1, 2):
        with pytest.raises(
            StateError, match="ended the guard's transaction .* may be written.*not run again"
        ) as failure:
            state.raise_and_write(grants(1, attempt), ROWS)
        assert "Nothing" not in str(failure.value)
    written = _there(url, table)
    assert written.count((1, "p", 1)) == 1
    remedy = re.search(r"UPDATE .* WHERE guard = '.*?'", str(failure.value))
    assert remedy is not None
    mended = _guard(url, table)
    query(url, remedy[0].replace("= N", "= 1"))
    mended.raise_and_write(grants(1, 3), ROWS)
    assert (_there(url, table), mended.last_txid()) == (written, 1)
    query(url, remedy[0].replace("= N", "= 0"))
    mended.raise_and_write(grants(1, 4), ROWS)
    assert len(_there(url, table)) == len(written) + 2


def test_a_transaction_that_a_statement_rolled_back_is_reported_as_possibly_written(
    url: str, table: str, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardStore, "_check", lambda *_: None)
    ending = [("ROLLBACK", {}), (INSERT.format(table), {"who": "p", "n": 1})]
    state = _guard(url, table, [*ending, *([("COMMIT", {})] if url.startswith("mysql") else [])])
    for attempt in (1, 2):
        with pytest.raises(StateError, match="may be written"):
            state.raise_and_write(grants(1, attempt), ROWS)
    assert _there(url, table) == [(1, "p", 1)]


def test_a_guard_refuses_a_skip_or_another_output_after_its_statements_have_run(
    url: str, table: str, grants: Grants
) -> None:
    state = _guard(url, table)
    state.raise_fence(about_to_write(grants(1), state, "never run"))
    state.raise_and_write(about_to_write(grants(1), state, "one"), ROWS)
    with pytest.raises(OutputChanged):
        state.raise_and_write(about_to_write(grants(1, 2), state, "other"), ROWS)
    with pytest.raises(SkipRefused):
        state.raise_fence(about_to_skip(grants(1, 2)))
    state.raise_and_write(about_to_write(grants(1, 3), state, "one"), ROWS)
    assert len(_there(url, table)) == 2


def test_a_guard_is_refused_if_its_record_of_a_run_is_missing_but_its_fence_is_not(
    url: str, table: str, grants: Grants
) -> None:
    state, grant = _guard(url, table), grants(1)
    state.raise_fence(grant)
    assert not state.holds(1)
    state.raise_and_write(grant, ROWS)
    assert state.holds(1)
    query(url, f"DELETE FROM airflow_tx_guard WHERE guard = 'of {table}'")
    with pytest.raises(StateBehind, match="the written values are missing"):
        state.raise_and_write(grants(1, 2), ROWS)
    assert len(_there(url, table)) == 2


def test_a_renamed_guard_keeps_its_fence_and_its_txid(url: str, table: str, grants: Grants) -> None:
    old, new = (SqlGuard.from_url(url, name=f"{n} {table}", statements=[INSERT.format(table)]) for n in ("old", "new"))
    old.raise_and_write(grants(1), ROWS)
    held = old.fence()
    assert (new.fence_of(old.name), new.fence()) == (held, None)
    new.take_over(old.name)
    assert new.fence_of(old.name) == held
    assert (new.last_txid(), old.fence()) == (1, None)
    new.raise_and_write(grants(1, 2), ROWS)
    assert len(_there(url, table)) == 2


def test_a_write_with_only_a_part_of_the_update_is_refused(url: str, table: str, grants: Grants) -> None:
    state, grant = _guard(url, table), grants(1)
    state.raise_fence(grant)
    with pytest.raises(StateError, match="Give all rows in one write"):
        state.write(grant, ROWS, chunk=1, complete=False)
    assert _there(url, table) == []


def test_two_guards_in_one_database_are_independent_states(url: str, table: str, grants: Grants) -> None:
    states = [SqlGuard.from_url(url, name=f"{table} {i}", statements=[INSERT.format(table)]) for i in range(2)]
    for state in states:
        state.raise_and_write(grants(1), ROWS[:1])
    assert _there(url, table) == [(1, "man", 2)] * 2
    states[0].clear()
    assert [(state.fence() is None, state.last_txid()) for state in states] == [(True, None), (False, 1)]


def test_the_next_try_resolves_a_lost_reply_to_the_commit(
    url: str, table: str, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url.startswith("sqlite"):
        pytest.skip("SQLite has no connection to lose")
    state, grant = _guard(url, table), grants(1)
    state.raise_fence(grant)

    def commit_and_lose_the_answer(dbapi_connection: Any) -> None:
        dbapi_connection.commit()
        mysql = url.startswith("mysql")
        pid = dbapi_connection.thread_id() if mysql else dbapi_connection.get_backend_pid()
        query(url, f"KILL {pid}" if mysql else f"SELECT pg_terminate_backend({pid})")
        dbapi_connection.cursor().execute("SELECT 1")

    with monkeypatch.context() as lossy:
        lossy.setattr(state._store._engine.dialect, "do_commit", commit_and_lose_the_answer)
        with pytest.raises(StateOutcomeUnknown, match="may have been written.*the next try finds out"):
            state.write(grant, ROWS)
    assert state.write(grant, ROWS) == 2
    assert len(_there(url, table)) == 2


def test_a_guard_is_a_fenced_state_without_readable_values() -> None:
    state = SqlGuard(
        "tx_state", name="mails", statements=[("INSERT INTO t VALUES (:a)", {"a": "s3cret"}), "DELETE ..."]
    )
    assert isinstance(state, FencedState)
    assert (state.name, state.kind) == ("tx_state.mails", "transactional")
    assert json.loads(json.dumps(state.serialize())) == {
        "type": "SqlGuard",
        "conn_id": "tx_state",
        "name": "mails",
        "statements": ["INSERT INTO t VALUES (:a)", "DELETE ..."],
        "kind": "transactional",
    }
    assert "s3cret" not in repr(state)
    assert repr(pickle.loads(pickle.dumps(state))) == repr(state)


@pytest.mark.parametrize("statements", ["DELETE", [1], [("a", {}, 3)], [(1, {})]])
def test_invalid_statements_are_refused_when_the_guard_is_created(statements: Any) -> None:
    with pytest.raises(ConfigError, match=r"list of \(sql, parameters\)"):
        SqlGuard("tx_state", name="g", statements=statements)


@pytest.mark.parametrize(
    ("refresh", "seen"), [("MATERIALIZED VIEW CONCURRENTLY", (1, 1)), ("MATERIALIZED VIEW", (1, 2))]
)
def test_an_earlier_reader_keeps_its_snapshot_only_if_a_view_is_refreshed_concurrently(
    postgres: LocalPostgres, grants: Grants, refresh: str, seen: tuple[int, int]
) -> None:
    url, table = postgres.url(), f"t{uuid.uuid4().hex[:10]}"
    for statement in (
        f"CREATE TABLE {table} (txid BIGINT, who VARCHAR(20), n BIGINT)",
        f"INSERT INTO {table} VALUES (0, 'man', 1)",
        f"CREATE MATERIALIZED VIEW {table}_rows AS SELECT count(*) AS rows FROM {table}",
        f"CREATE UNIQUE INDEX ON {table}_rows (rows)",
    ):
        query(url, statement)
    state, grant = _guard(url, table, [INSERT.format(table), (f"REFRESH {refresh} {table}_rows", {})]), grants(1)
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="REPEATABLE READ")
    with engine.connect() as reader:
        before = reader.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()
        state.raise_and_write(grant, ROWS[:1])
        assert (before, reader.exec_driver_sql(f"SELECT rows FROM {table}_rows").scalar_one()) == seen
    assert query(url, f"SELECT rows FROM {table}_rows") == [(2,)]
