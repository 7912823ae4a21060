"""What is MariaDB's own: long keys, packets, decimals of a fixed length, locks, deadlocks, a server that goes away."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import ConfigError, StateError, StateLocked, StateOutcomeUnknown, StateUnavailable
from airflow_tx.state import Last, Max, SqlState, Sum
from airflow_tx.state.sql import dialect
from airflow_tx.testing.suites.state_tools import Grants, rows, totals
from tests.integration.databases import query
from tests.servers.mariadb import DATABASE, MARIADB_PASSWORD, MARIADB_USER, LocalMariaDB

_SOON = 300.0  # far more than a statement takes, however busy the machine is


@pytest.fixture(scope="module")
def mariadb() -> Iterator[LocalMariaDB]:
    with LocalMariaDB(settings={"max-allowed-packet": "1M"}) as server:
        yield server


@pytest.fixture
def url(mariadb: LocalMariaDB) -> str:
    return mariadb.url()


def _state(url: str, table: str, **query: str) -> SqlState:
    changed = sa.make_url(url).update_query_dict(query).render_as_string(hide_password=False)
    return SqlState.from_url(changed, table=table, keys=["key"], values={"n": Sum()})


# --- keys and values ----------------------------------------------------------------------------------------------


def test_a_server_without_encryption_is_refused_if_the_connection_requires_encryption(
    mariadb: LocalMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"conn_type": "mysql", "host": "127.0.0.1", "port": mariadb.port, "schema": DATABASE}
    login = {"login": MARIADB_USER, "password": MARIADB_PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({**where, **login, "extra": {"ssl_mode": "REQUIRED"}}))
    with pytest.raises(StateUnavailable, match="SSL is required but the server doesn't support it"):
        SqlState("store", table="encrypted", keys=["key"], values={"n": Sum()}).read()


def test_long_keys_that_differ_only_in_case_accents_or_spaces_are_different_keys(
    url: str, table: str, grants: Grants
) -> None:
    long = "x" * 500
    keys = [(long, f"{long}{end}") for end in ("", " ", "a", "A", "ä", "a\u0308")] + [
        (f"{long}a", long),
        ("", "ab"),
        ("a", "b"),
    ]
    state = SqlState.from_url(url, table=table, keys=["one", "two"], values={"n": Sum()})
    for txid in (1, 2):
        grant = grants(txid)
        state.raise_and_write(grant, [{"one": one, "two": two, "n": 1} for one, two in keys])
        grants.final(grant, state)
    assert {(row["one"], row["two"]): row["n"] for row in state.read()} == dict.fromkeys(keys, 2)
    found = query(url, f"SELECT n FROM {table} WHERE one = '' AND two = 'ab'")
    assert found == [(2,)]


def test_a_large_update_is_split_into_packets_that_the_server_accepts(url: str, table: str, grants: Grants) -> None:
    state = SqlState.from_url(url, table=table, keys=["key"], values={"text": Last("text"), "data": Last("bytes")})
    update = [{"key": f"key {i}", "text": '"' * 2000, "data": bytes(2000)} for i in range(1000)]
    state.raise_and_write(grants(1), update)
    assert state.read() == sorted(update, key=lambda row: str(row["key"]))


def test_a_row_larger_than_the_packet_limit_is_reported_and_no_row_is_written(
    url: str, table: str, grants: Grants
) -> None:
    state = SqlState.from_url(url, table=table, keys=["key"], values={"text": Last("text")})
    update = [{"key": f"key {i}", "text": "x" * (2_000_000 if i == 7 else 1)} for i in range(100)]
    with pytest.raises(
        StateError, match=r"row 7 \{'key': 'key 7'\}: it needs .* max_allowed_packet of the server is 1048576.*Raise"
    ) as failure:
        state.raise_and_write(grants(1), update)
    assert not isinstance(failure.value, StateUnavailable)
    assert (state.fence(), state.read()) == (None, [])


@pytest.mark.parametrize("value", [Decimal("1e-31"), Decimal(10**35), Decimal("1." + "1" * 31), Decimal(-(10**40))])
def test_a_decimal_with_too_many_digits_is_refused(url: str, table: str, grants: Grants, value: Decimal) -> None:
    state = SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum("numeric")})
    fine = [{"key": "a", "n": Decimal(10**34)}, {"key": "b", "n": Decimal("1e-30")}]
    with pytest.raises(
        StateError, match=r"row 2 \{'key': 'c'\}: n has more than 35 digits before or 30 after the point"
    ):
        state.raise_and_write(grants(1), [*fine, {"key": "c", "n": value}])
    state.raise_and_write(grants(1, 2), fine)
    assert state.read() == fine


@pytest.mark.parametrize(
    ("kind", "stored", "delta"),
    [("bigint", 2**63 - 1, 1), ("double", 1.7e308, 1.7e308), ("numeric", Decimal(9 * 10**34), Decimal(9 * 10**34))],
)
@pytest.mark.parametrize("state_kind", ["opaque", "transactional"])
def test_an_overflowing_sum_fails_the_whole_update_even_if_the_server_is_not_in_strict_mode(
    url: str, table: str, grants: Grants, kind: str, stored: Any, delta: Any, state_kind: str
) -> None:
    state = SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum(kind)}, kind=state_kind)
    grant = grants(1)
    state.raise_and_write(grant, [{"key": "a", "n": stored}, {"key": "b", "n": 1}])
    grants.final(grant, state)
    fence = state.fence()
    with pytest.raises(StateError, match="out of range|Out of range") as failure:
        state.raise_and_write(grants(2), [{"key": "b", "n": 1}, {"key": "a", "n": delta}, {"key": "c", "n": 1}])
    assert not isinstance(failure.value, StateUnavailable)
    assert (state.fence(), [row["n"] for row in state.read()]) == (fence, [stored, 1])


@pytest.mark.parametrize(
    "column", ["VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "VARCHAR(10)", "TEXT"]
)
def test_a_table_whose_key_column_has_another_collation_is_refused(
    url: str, table: str, grants: Grants, column: str
) -> None:
    state = _state(url, table)
    grants.commit(1, state, {"a": 1})
    query(url, f"ALTER TABLE {table} MODIFY `key` {column} NOT NULL")
    with pytest.raises(StateError, match=f"table {table} exists with other columns: key is .*, expected text"):
        grants.commit(2, _state(url, table), {"A": 1})


def test_a_created_table_uses_innodb_and_has_a_primary_key_for_its_state_keys(
    url: str, table: str, grants: Grants
) -> None:
    grants.commit(1, _state(url, table), {"a": 1, "ä": 2, "x" * 256: 3})
    made = query(url, f"SHOW CREATE TABLE {table}")[0][1]
    assert "ENGINE=InnoDB" in made
    assert "PRIMARY KEY (`tx_key`)" in made
    assert query(url, f"SELECT tx_key FROM {table} WHERE n < 3 ORDER BY n") == [(b"a",), ("ä".encode(),)]
    assert query(url, f"SELECT left(tx_key, 1), length(tx_key) FROM {table} WHERE n = 3") == [(b"\xff", 33)]


@pytest.mark.parametrize("mode", ["NO_BACKSLASH_ESCAPES", "ANSI_QUOTES"])
def test_texts_with_quotes_and_backslashes_are_stored_unchanged_in_every_sql_mode(
    mariadb: LocalMariaDB, table: str, grants: Grants, mode: str
) -> None:
    keys = ["\\", "'", '"', "\\'", "%s %(a)s %%", ":a ?", "\\\\", "ä\n\x1a\x7f", "x'); -- ", "__[POSTCOMPILE_tx_rows]"]
    query(mariadb.url(), f"SET GLOBAL sql_mode = '{mode}'")
    try:
        # Another address: what is known of the sessions of the first one is not known of these.
        state = _state(f"{mariadb.url()}?program_name={mode}", table)
        grants.commit(1, state, dict.fromkeys(keys, 1))
        grants.commit(2, state, dict.fromkeys(keys, 1))
    finally:
        query(mariadb.url(), "SET GLOBAL sql_mode = ''")
    assert {row["key"]: row["n"] for row in state.read()} == dict.fromkeys(keys, 2)
    assert state.multi_get([[key] for key in keys]) == [{"n": 2}] * len(keys)


# --- sessions -----------------------------------------------------------------------------------------------------


def test_a_session_uses_strict_mode_and_the_isolation_level_read_committed(url: str, table: str) -> None:
    with _state(url, table)._store.transaction() as connection:
        found = connection.execute(
            sa.text(
                "SELECT @@sql_mode, @@tx_isolation, @@innodb_lock_wait_timeout, @@wait_timeout, @@lock_wait_timeout, "
                "@@character_set_client, @@time_zone"
            )
        ).one()
    assert "STRICT_ALL_TABLES" in found[0]
    assert tuple(found[1:]) == ("READ-COMMITTED", 30, 60, 30, "utf8mb4", "+00:00")


def test_a_commit_waits_for_a_fence_locked_by_another_session_and_then_fails(
    url: str, table: str, grants: Grants
) -> None:
    holder, waiting = _state(url, table), _state(url, table, lock_timeout="1")
    grants.commit(1, holder, {"a": 1})
    with holder._store.transaction() as connection:
        holder._store.read_fence(connection, lock="update")
        with pytest.raises(
            StateLocked, match="locked by another session: .*Lock wait timeout.* The next try waits again"
        ):
            waiting.raise_fence(grants(2))


def test_a_deadlock_is_reported_as_a_lock_and_the_next_try_commits(url: str, table: str, grants: Grants) -> None:
    state = _state(url, table)
    grants.commit(1, state, {"a": 1, "b": 1})
    first = threading.Barrier(2)

    def lock(keys: tuple[str, str]) -> str:
        try:
            with _state(url, table)._store.transaction() as connection:
                for number, key in enumerate(keys):
                    connection.execute(sa.text(f"UPDATE {table} SET n = n + 1 WHERE `key` = :key"), {"key": key})
                    if number == 0:
                        first.wait(_SOON)
        except StateLocked as error:
            return str(error)
        return "through"

    # Without an index on the key each update locks what it looks at, too.
    with ThreadPoolExecutor(2) as pool:
        found = sorted(pool.map(lock, [("a", "b"), ("b", "a")]), key=len)
    assert found[0] == "through"
    assert "Deadlock found" in found[1]
    assert "The next try waits again" in found[1]
    grants.commit(2, state, {"a": 1})


def test_the_server_ends_an_idle_session_that_holds_the_fence(url: str, table: str, grants: Grants) -> None:
    silent, other = _state(url, table, idle_timeout="77"), _state(url, table)
    grants.commit(1, other, {"a": 1})

    def hold() -> None:
        with silent._store.transaction() as connection:
            assert connection.execute(sa.text("SELECT @@wait_timeout")).scalar_one() == 77
            silent._store.read_fence(connection, lock="update")
            # Only now: on a busy machine it is silent for a second before it has the lock, too.
            connection.execute(sa.text("SET SESSION wait_timeout = 1"))
            grants.commit(2, other, {"a": 1})  # it waits for the lock, and gets it
            silent._store.read_fence(connection)

    with pytest.raises(StateUnavailable) as failure:
        hold()
    assert not isinstance(failure.value, StateOutcomeUnknown)
    assert totals(other) == {"a": 2}


def test_parallel_writers_do_not_wait_for_each_other(url: str, table: str, grants: Grants) -> None:
    state, grant, together = _state(url, table), grants(1), threading.Barrier(4)
    state.raise_fence(grant)
    grants.last = {}

    def part(chunk: int) -> int:
        def update() -> Iterator[dict[str, Any]]:
            yield from ({"key": f"{chunk} {i}", "n": i} for i in range(10_000))
            together.wait(_SOON)  # all of them are inside their transactions
            yield {"key": f"{chunk} last", "n": 1}

        return _state(url, table).write(grant, update(), chunk=chunk, complete=False)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(part, range(4))) == 40_004
    assert len(totals(state)) == 40_004


# --- a server that goes away --------------------------------------------------------------------------------------


def test_a_lost_reply_to_the_commit_is_reported_as_an_unknown_outcome(
    url: str, table: str, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = _state(url, table)
    grants.commit(1, state, {"a": 1})
    grant = grants(2)
    state.raise_fence(grant)

    def commit_and_lose_the_answer(dbapi_connection: Any) -> None:
        dbapi_connection.commit()
        query(url, f"KILL {dbapi_connection.thread_id()}")
        dbapi_connection.cursor().execute("SELECT 1")

    with monkeypatch.context() as lossy:
        lossy.setattr(state._store._engine.dialect, "do_commit", commit_and_lose_the_answer)
        with pytest.raises(StateOutcomeUnknown, match="may have been written.*the next try finds out"):
            state.write(grant, rows({"a": 1}))
    assert state.write(grant, rows({"a": 1})) == 1
    assert totals(state) == {"a": 2}


def test_a_write_is_rolled_back_if_the_server_dies_and_the_same_grant_can_retry(table: str, grants: Grants) -> None:
    with LocalMariaDB(fsync=True) as server:
        state = _state(server.url(), table)
        grants.commit(1, state, {"key 0": 5})
        grant, many = grants(2), {f"key {i}": 1 for i in range(10_001)}
        state.raise_fence(grant)

        def dying() -> Iterator[dict[str, Any]]:
            *most, last = rows(many)
            yield from most
            server.kill()
            yield last

        uses: list[Callable[[], Any]] = [
            lambda: state.write(grant, dying()),
            state.read,
            lambda: state.raise_fence(grant),
            lambda: state.write(grant, rows(many)),
        ]
        for use in uses:
            with pytest.raises(StateUnavailable, match="cannot be reached") as failure:
                use()
            assert not isinstance(failure.value, StateOutcomeUnknown)
            assert MARIADB_PASSWORD not in str(failure.value)
        server.start()
        assert totals(state) == {"key 0": 5}
        state.write(grant, rows(many))
        assert totals(state) == {**many, "key 0": 6}


def test_a_wrong_password_is_not_shown_in_the_error(url: str, table: str) -> None:
    wrong = sa.make_url(url).set(password="wrong-s3cret").render_as_string(hide_password=False)
    with pytest.raises(StateUnavailable, match="Access denied") as failure:
        _state(wrong, table).read()
    assert "wrong-s3cret" not in str(failure.value)


# --- connections --------------------------------------------------------------------------------------------------


def test_a_state_can_use_an_airflow_connection(
    mariadb: LocalMariaDB, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    login = {
        "login": MARIADB_USER,
        "password": MARIADB_PASSWORD,
        "host": "127.0.0.1",
        "port": mariadb.port,
        "schema": DATABASE,
    }
    extra = {"charset": "latin1", "lock_timeout": 5, "unknown": "is not passed on"}
    monkeypatch.setenv("AIRFLOW_CONN_TX_STATE_MY", json.dumps({"conn_type": "mysql", **login, "extra": extra}))
    state = SqlState("tx_state_my", table=table, keys=["key"], values={"n": Max("text")})
    state.raise_and_write(Grants()(1), [{"key": "日本", "n": "ä"}])
    assert state.read() == [{"key": "日本", "n": "ä"}]
    assert MARIADB_PASSWORD not in repr(state)


def test_a_url_without_a_driver_uses_pymysql(url: str, table: str, grants: Grants) -> None:
    for scheme in ("mysql", "mariadb", "mariadb+pymysql"):
        state = _state(url.replace("mysql+pymysql", scheme, 1), f"{table}_{scheme[:7]}{len(scheme)}")
        Grants().commit(1, state, {"a": 1})
        assert totals(state) == {"a": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [({"lock_timeout": "soon"}, "Give whole seconds"), ({"idle_timeout": "0"}, "Give whole seconds")],
)
def test_an_invalid_url_is_refused(url: str, table: str, change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _state(url, table, **change).read()


def test_a_missing_database_name_is_refused(url: str, table: str) -> None:
    nowhere = sa.make_url(url)._replace(database=None).render_as_string(hide_password=False)
    with pytest.raises(ConfigError, match="Name one"):
        _state(nowhere, table).read()


def test_the_error_about_a_missing_driver_names_the_extra_that_installs_it(
    url: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    monkeypatch.setattr(dialect, "_engines", {})  # one that an earlier test has left has its driver
    with pytest.raises(ConfigError, match=r"pip install 'airflow-provider-tx\[mysql\]'"):
        _state(url, table).read()


def test_the_check_for_an_existing_table_takes_no_lock_on_its_name(url: str, table: str, grants: Grants) -> None:
    state, asked = _state(url, table), list[str]()
    sa.event.listen(state._store._engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    state.raise_and_write(grants(1), rows({"a": 1}))
    # MySQL keeps the lock of DESCRIBE and SHOW, also on a missing table, and the table could never be made.
    made = next(at for at, each in enumerate(asked) if table in each and each.lstrip().startswith("CREATE TABLE"))
    assert [statement for statement in asked[:made] if statement.startswith(("DESC", "SHOW"))] == []


@pytest.mark.parametrize("holding", [True, False], ids=["in a transaction that holds locks", "by itself"])
def test_a_commit_waits_while_another_session_creates_the_table(
    url: str, table: str, pool: ThreadPoolExecutor, *, holding: bool
) -> None:
    grants, state = Grants(), _state(url, table)
    grant = grants(1)
    if holding:
        state.raise_fence(grant)
    model = f"{table}_model"
    _state(url, model).raise_and_write(Grants()(1), rows({"a": 1}))
    pause, paused = f"made_{table}", "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as holder:
        holder.execute(sa.text(f"DO GET_LOCK('{pause}', 0)"))
        columns = str(holder.execute(sa.text(f"SHOW CREATE TABLE {model}")).one()[1]).partition("(")[2]
        make = f"CREATE TABLE {table} ({columns} SELECT * FROM {model} WHERE GET_LOCK('{pause}', {_SOON:.0f}) = 2"
        making = pool.submit(_execute, engine, make)
        while not holder.execute(sa.text(paused)).all():
            assert not making.done(), making.result()
        use = partial(state.write, grant, rows({"b": 2})) if holding else state.read
        using: Future[Any] = pool.submit(use)
        assert not wait([using], timeout=0.3).done
        holder.execute(sa.text(f"DO RELEASE_LOCK('{pause}')"))
        making.result(_SOON)
        assert using.result(_SOON) == (1 if holding else [])
    if holding:
        assert totals(state) == {"b": 2}


def test_a_table_that_is_being_altered_is_not_reported_as_lost(url: str, table: str, pool: ThreadPoolExecutor) -> None:
    grants, state = Grants(), _state(url, table)
    grants.commit(1, state, {f"{number}": 1 for number in range(60_000)})
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    altering = pool.submit(_execute, engine, f"ALTER TABLE {table} COMMENT 'ours', ALGORITHM=COPY, LOCK=EXCLUSIVE")
    copying = sa.text("SELECT 1 FROM information_schema.processlist WHERE state LIKE 'copy to tmp%'")
    with engine.connect() as watcher:
        while not watcher.execute(copying).all() and not altering.done():
            pass
    _state(url, table).raise_fence(grants(2))
    altering.result(_SOON)


def _execute(engine: sa.Engine, statement: str) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
