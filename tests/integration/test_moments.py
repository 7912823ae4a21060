"""States of a database that are written in one transaction of it: what readers see, guards, settings of a session."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from airflow_tx.base.errors import StateDiffers, StateError, StateLocked, StateOutcomeUnknown
from airflow_tx.state import Aggregator, CollectSet, Max, SqlGuard, SqlState, SqlTable, Sum
from airflow_tx.state.api import StoredState, write_together
from airflow_tx.state.arrow import RowsInParts, RowTally
from airflow_tx.state.sql.guard_store import GuardStore
from airflow_tx.testing.suites.state_together import apart, joint_writes, together
from airflow_tx.testing.suites.state_tools import Grants, rows, totals
from tests.integration.databases import query
from tests.integration.proxy import ReplyEater
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres

NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=dt.timezone.utc)


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


class World:
    """A table of orders, one of totals, and a report that a guard makes of both."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        query(url, f"CREATE TABLE {name}_report (orders BIGINT, total BIGINT)")
        query(url, f"INSERT INTO {name}_report VALUES (0, 0)")

    def orders(self, **given: Any) -> SqlTable:
        return SqlTable.from_url(self.url, table=f"{self.name}_orders", **given)

    def totals(self, table: str = "totals") -> SqlState:
        return SqlState.from_url(self.url, table=f"{self.name}_{table}", keys=["key"], values={"n": Sum()})

    def report(self, *others: Any) -> SqlGuard:
        text = (
            f"UPDATE {self.name}_report SET orders = (SELECT count(*) FROM {self.name}_orders), "
            f"total = (SELECT sum(n) FROM {self.name}_totals)"
        )
        return SqlGuard.from_url(self.url, name=f"{self.name}_report", statements=[(text, {}), *others])

    def states(self) -> list[StoredState]:
        return [self.orders(), self.totals(), self.report()]

    def seen(self) -> tuple[Any, ...]:
        """What one statement reads: orders and total, the report of both, and the newest txid of each fence."""
        name = self.name
        fences = f"FROM airflow_tx_fence WHERE state LIKE '%{name}%'"
        (found,) = query(
            self.url,
            f"SELECT (SELECT count(*) FROM {name}_orders), (SELECT sum(n) FROM {name}_totals), orders, total, "
            f"(SELECT min(epoch) {fences}), (SELECT max(epoch) {fences}), "
            f"(SELECT count(*) FROM airflow_tx_receipts WHERE state LIKE '%{name}%') FROM {name}_report",
        )
        return tuple(int(each) for each in found)


@pytest.fixture
def world(url: str, name: str) -> World:
    return World(url, name)


def given(number: int) -> list[list[dict[str, Any]]]:
    """So many orders, a total, and nothing for a guard."""
    return [[{"key": "a", "n": n} for n in range(number)], rows({"a": number}), []]


@contextmanager
def looked_at(look: Callable[[], Any]) -> Iterator[list[Any]]:
    """Look before each statement that anybody in this process sends, but those of the looks."""
    seen: list[Any] = []
    busy = False

    def before(*_: Any) -> None:
        nonlocal busy
        if not busy:
            busy = True
            try:
                seen.append(look())
            finally:
                busy = False

    event.listen(sa.engine.Engine, "before_cursor_execute", before)
    try:
        yield seen
    finally:
        event.remove(sa.engine.Engine, "before_cursor_execute", before)


@contextmanager
def committed(then: Callable[[], None] = lambda: None) -> Iterator[list[Any]]:
    """Count the transactions that are about to be committed in this process, and do something before each."""
    found: list[Any] = []

    def before(connection: Any) -> None:
        found.append(connection)
        then()

    event.listen(sa.engine.Engine, "commit", before)
    try:
        yield found
    finally:
        event.remove(sa.engine.Engine, "commit", before)


# --- all at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["a new transaction", "a replay"])
def test_a_reader_sees_no_partial_update_during_any_statement_of_a_moment(
    world: World, grants: Grants, how: str
) -> None:
    states, first = world.states(), grants(1)
    together(first, states, given(2))
    if how == "a new transaction":
        grants.final(first, *states)
    grant = grants(2) if how == "a new transaction" else grants(1, 2)
    before = world.seen()
    with looked_at(world.seen) as seen:
        together(grant, states, given(3))
    assert set(seen) == {before}
    assert len(seen) > 10
    after = world.seen()
    # A replay leaves what the guard has run.
    assert after[:2] == ((5, 5) if how == "a new transaction" else (3, 3))
    assert after[4] == after[5] > before[5]


def test_a_reader_sees_partial_updates_if_states_are_written_one_by_one(world: World, grants: Grants) -> None:
    states, first = world.states(), grants(1)
    together(first, states, given(2))
    grants.final(first, *states)
    with looked_at(world.seen) as seen:
        apart(grants(2), states, given(3))
    assert len(set(seen)) > 3


def test_a_moment_is_committed_as_a_single_transaction_of_the_database(world: World, grants: Grants) -> None:
    states = world.states()
    first = grants(1)
    together(first, states, given(2))
    grants.final(first, *states)
    with committed() as commits:
        together(grants(2), states, given(3))
    assert len(commits) == 1


# --- tables -----------------------------------------------------------------------------------------------------------


def test_all_states_are_written_again_if_a_moment_must_add_a_column_to_a_table(world: World, grants: Grants) -> None:
    states: list[StoredState] = [world.totals(), world.orders(add_columns=True), world.totals("others")]
    first = grants(1)
    together(first, states, [rows({"a": 1}), rows({"a": 1}), rows({"a": 1})])
    grants.final(first, *states)
    wider = [{"key": "b", "n": 2, "why": "new"}]
    together(grants(2), states, [rows({"a": 1, "b": 2}), wider, rows({"c": 3})])
    assert totals(world.totals()) == {"a": 2, "b": 2}
    assert totals(world.totals("others")) == {"a": 1, "c": 3}
    assert [(row["tx_txid"], row["key"], row["why"]) for row in world.orders().read()] == [
        (1, "a", None),
        (2, "b", "new"),
    ]


def test_the_rows_of_the_other_states_are_read_again_if_a_moment_adds_a_column(world: World, grants: Grants) -> None:
    states: list[StoredState] = [world.totals(), world.orders(add_columns=True)]
    first = grants(1)
    together(first, states, [rows({"a": 1}), rows({"a": 1})])
    grants.final(first, *states)
    reads = []

    def portions() -> Iterator[tuple[int, RowTally]]:
        reads.append(1)
        yield 0, RowTally.of(rows({"a": 1}))
        yield 1, RowTally.of(rows({"b": 2}))

    (state, write), other = joint_writes(grants(2), states, [[], [{"key": "b", "n": 2, "why": "new"}]])
    write_together([(state, replace(write, rows=None, parts=portions)), other])
    assert len(reads) == 2
    assert totals(world.totals()) == {"a": 2, "b": 2}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_moment_that_adds_a_column_is_refused_if_rows_can_be_read_only_once(world: World, grants: Grants) -> None:
    states: list[StoredState] = [world.totals(), world.orders(add_columns=True)]
    first = grants(1)
    together(first, states, [rows({"a": 1}), rows({"a": 1})])
    grants.final(first, *states)
    with pytest.raises(TypeError, match="can be read only once"):
        together(grants(2), states, [iter(rows({"b": 2})), [{"key": "b", "n": 2, "why": "new"}]])
    assert totals(world.totals()) == {"a": 1}


def test_tables_that_a_refused_moment_created_are_removed_or_can_be_used_again(world: World, grants: Grants) -> None:
    states: list[StoredState] = [world.orders(), world.totals()]
    with pytest.raises(StateError):
        together(grants(1), states, [rows({"a": 1}), [{"key": "b", "n": "many"}]])
    # A database that undoes no DDL keeps the table.
    with sa.create_engine(world.url, poolclass=sa.pool.NullPool).connect() as connection:
        there = sa.inspect(connection).has_table(f"{world.name}_orders")
    assert there == world.url.startswith("mysql")
    together(grants(1, 2), states, [[{"key": "a", "n": 1.5}], rows({"b": 1})])
    assert [row["n"] for row in world.orders().read()] == [1.5]
    assert totals(world.totals()) == {"b": 1}


def test_the_error_about_a_null_in_a_not_null_column_names_the_table(world: World, grants: Grants) -> None:
    table = f"{world.name}_orders"
    query(world.url, f"CREATE TABLE {table} (tx_txid BIGINT, n BIGINT NOT NULL, PRIMARY KEY (tx_txid, n))")
    states: list[StoredState] = [world.totals(), world.orders(), world.totals("others")]
    with pytest.raises(StateError, match=f"'url.{table}' refused: row 1, column n: is NULL"):
        together(grants(1), states, [rows({"a": 1}), [{"n": 1}, {"n": None}], rows({"a": 1})])
    assert (world.orders().fence(), world.totals().fence()) == (None, None)


def test_the_error_about_a_table_with_other_columns_names_the_state_of_the_table(world: World, grants: Grants) -> None:
    query(world.url, f"CREATE TABLE {world.name}_others (n BIGINT)")
    with pytest.raises(StateDiffers) as error:
        together(grants(1), [world.totals(), world.totals("others")], [rows({"a": 1}), rows({"a": 1})])
    assert error.value.fields["state"] == f"url.{world.name}_others"
    assert world.totals().fence() is None


@pytest.mark.parametrize("url", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)], indirect=True)
def test_a_moment_can_create_a_table_while_it_undoes_earlier_parts_of_another_state(
    world: World, grants: Grants
) -> None:
    grant = grants(1)
    first = world.totals()
    first.raise_fence(grant)
    first.write(grant, rows({"a": 1}), chunk=1, complete=False)
    world.orders().raise_fence(grant)
    ((_, undoing),) = joint_writes(grant, [first], [rows({"b": 1})], raising=False, undoing=True)
    ((_, writing),) = joint_writes(grant, [world.orders()], [rows({"a": 1})], raising=False)
    write_together([(first, undoing), (world.orders(), writing)])
    assert totals(world.totals()) == {"b": 1}


def test_the_error_about_a_lock_names_the_state_that_another_session_has_locked(world: World, grants: Grants) -> None:
    if world.url.startswith("sqlite"):
        pytest.skip("SQLite locks the whole file")
    states: list[StoredState] = [world.orders(), world.totals()]
    first = grants(1)
    together(first, states, given(1)[:2])
    grants.final(first, *states)
    waits = "innodb_lock_wait_timeout" if world.url.startswith("mysql") else "lock_timeout"
    at = f"{world.url}?lock_timeout=1" if world.url.startswith("mysql") else f"{world.url}?options=-c%20{waits}%3D200"
    hurried = World.__new__(World)
    hurried.url, hurried.name = at, world.name
    engine = sa.create_engine(world.url)
    with engine.connect() as holder, holder.begin():
        holder.exec_driver_sql(f"SELECT * FROM airflow_tx_fence WHERE state = '{world.name}_totals' FOR UPDATE")
        with pytest.raises(StateLocked) as error:
            together(grants(2), [hurried.orders(), hurried.totals()], given(1)[:2])
    assert error.value.fields["state"] == f"url.{world.name}_totals"


def _referring(world: World) -> list[StoredState]:
    """Give orders whose key has to be one of the totals when the transaction ends, and the totals."""
    first = Grants()(1)
    states: list[StoredState] = [world.orders(), world.totals()]
    together(first, states, [rows({"a": 1}), rows({"a": 1})])
    query(
        world.url,
        f"ALTER TABLE {world.name}_orders ADD FOREIGN KEY (key) REFERENCES {world.name}_totals DEFERRABLE "
        "INITIALLY DEFERRED",
    )
    for state in states:
        state.clear()
        state.release()
    return states


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_row_may_reference_a_key_that_a_later_state_of_the_moment_writes(world: World, grants: Grants) -> None:
    together(grants(1), _referring(world), [rows({"new": 1}), rows({"new": 1})])
    assert totals(world.totals()) == {"new": 1}


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_commit_that_the_database_refuses_is_reported_as_an_error_of_all_states(world: World, grants: Grants) -> None:
    states = _referring(world)
    with pytest.raises(StateError, match="violates foreign key") as error:
        together(grants(1), states, [rows({"new": 1}), rows({"other": 1})])
    assert error.value.fields["state"] == ", ".join(state.name for state in states)
    assert [state.fence() for state in states] == [None, None]


class Spilling(RowsInParts):
    """More bytes than a commit to SQLite keeps in memory, and a look at the database before the last row."""

    def __init__(self, look: Callable[[], object]) -> None:
        self.look = look

    def parts(self) -> Iterator[Any]:
        for _ in range(6):
            yield pa.record_batch({"key": ["wide"] * 16, "n": [1] * 16, "note": ["x" * 2**20] * 16})
        self.look()
        yield pa.record_batch({"key": ["last"], "n": [1], "note": ["x"]})


@pytest.mark.parametrize(("mode", "shut_out"), [("DELETE", True), ("WAL", False)])
def test_a_large_commit_to_sqlite_blocks_readers_unless_the_file_is_in_wal_mode(
    tmp_path: Path, grants: Grants, mode: str, shut_out: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    query(url, f"PRAGMA journal_mode = {mode}")
    values: dict[str, Any] = {"n": Sum()}
    small, table = (
        SqlState.from_url(url, table="small", keys=["key"], values=values),
        SqlTable.from_url(url, table="large"),
    )
    reader = SqlState.from_url(f"{url}?timeout=0", table="small", keys=["key"], values=values)
    first = grants(1)
    together(first, [small, table], [rows({"a": 1}), [{"key": "a", "n": 1, "note": "x"}]])
    grants.final(first, small, table)
    seen: list[object] = []

    def look() -> None:
        try:
            seen.append(totals(reader))
        except StateLocked:
            seen.append("locked")

    together(grants(2), [small, table], [rows({"a": 2}), Spilling(look)])
    assert seen == ["locked" if shut_out else {"a": 1}]
    assert totals(reader) == {"a": 3}


# --- guards -----------------------------------------------------------------------------------------------------------


def test_a_guard_can_read_the_rows_of_states_that_are_written_before_it(world: World, grants: Grants) -> None:
    states = world.states()
    for txid in (1, 2):
        grant = grants(txid)
        together(grant, states, given(txid))
        grants.final(grant, *states)
        orders, total, *report = world.seen()[:4]
        assert report == [orders, total]


def test_a_guard_cannot_read_the_rows_of_states_that_are_written_after_it(world: World, grants: Grants) -> None:
    orders, sums, report = world.states()
    first = grants(1)
    together(first, [orders, sums, report], given(2))
    grants.final(first, orders, sums, report)
    together(grants(2), [report, orders, sums], [[], *given(3)[:2]])
    assert world.seen()[:4] == (5, 5, 2, 2)


def test_the_error_about_a_guard_that_ends_the_transaction_says_that_updates_may_be_visible(
    world: World, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, first = world.states(), grants(1)
    together(first, states, given(2))
    grants.final(first, *states)
    ending = world.report(*_out_of_sight(world, monkeypatch))
    with pytest.raises(StateError, match="may be visible, and the next try replaces these rows"):
        together(grants(2), [*states[:2], ending], given(3))
    assert world.seen()[:2] == (5, 5)
    # A person says that all rows of the guard are written.
    query(world.url, f"UPDATE airflow_tx_guard SET txid = 2 WHERE guard = '{world.name}_report'")
    together(grants(2, 2), states, given(4))
    assert world.seen()[:2] == (6, 6)


def _out_of_sight(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Statements that commit, where no text says so."""
    if world.url.startswith("mysql"):
        query(world.url, f"CREATE PROCEDURE {world.name}_p() BEGIN COMMIT; END")
        return [(f"CALL {world.name}_p()", {})]
    monkeypatch.setattr(GuardStore, "_check", lambda *_: None)
    return [("COMMIT", {})]


# --- the settings of a session ----------------------------------------------------------------------------------------

VALUES: dict[str, Any] = {"at": NOON, "day": NOON.date(), "x": 0.1 + 0.2, "raw": b"\x00\\x"}
TYPES = {"at": "timestamptz", "day": "date", "x": "double", "raw": "bytes"}
SETTINGS = {
    "TimeZone": "Asia/Tokyo",
    "DateStyle": "SQL, DMY",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "array_nulls": "off",
}


# Of each column a value that is less, and none: what was there stays.
LESS: dict[str, Any] = {"at": NOON - dt.timedelta(1), "day": dt.date(1999, 1, 1), "x": 0.0, "raw": b""}
NONE: dict[str, Any] = dict.fromkeys(VALUES)


def _moments(world: World) -> list[StoredState]:
    """Open a table, and a state whose values are read, combined in Python and written back."""
    values: dict[str, Aggregator] = {name: Max(kind) for name, kind in TYPES.items()}
    combined = SqlState.from_url(
        world.url, table=f"{world.name}_max", keys=["key"], values={**values, "every": CollectSet(9)}
    )
    return [world.orders(types=TYPES), combined]


def _given_to(state: StoredState, txid: int) -> list[dict[str, Any]]:
    if state.columns is None:
        return [{"key": f"a{txid}", **VALUES}, {"key": f"none{txid}", **NONE}]
    newest = VALUES if txid == 1 else LESS
    return [{"key": "a", "every": 1, **newest}, {"key": "none", "every": 1, **NONE}]


def _check_values(world: World, transactions: int) -> None:
    """Fail if a value is not as it was given, except for its key."""
    for state, count in zip(_moments(world), (transactions, 1), strict=True):
        found = sorted(state.read(), key=lambda row: str(row["key"]))
        assert [{name: row[name] for name in VALUES} for row in found] == [VALUES] * count + [NONE] * count


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("setting", SETTINGS.items(), ids=list(SETTINGS))
@pytest.mark.parametrize("scope", ["SET", "SET LOCAL"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_session_settings_of_a_guard_do_not_change_values_of_other_states(
    world: World, grants: Grants, setting: tuple[str, str], scope: str, position: int
) -> None:
    setter = SqlGuard.from_url(world.url, name=world.name, statements=[("{} {} = '{}'".format(scope, *setting), {})])
    states = _moments(world)
    states.insert(position, setter)
    for txid in (1, 2):
        grant = grants(txid)
        together(grant, states, [_given_to(state, txid) for state in states])
        grants.final(grant, *states)
    _check_values(world, 2)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_session_in_which_a_guard_ran_is_not_used_again_for_another_state(world: World, grants: Grants) -> None:
    leaving = SqlGuard.from_url(world.url, name=world.name, statements=[("SET application_name = 'left'", {})])
    states: list[StoredState] = [world.totals(), leaving]
    together(grants(1), states, [rows({"a": 1}), []])
    for state in (world.totals(), *states):
        with state._store.transaction() as connection:  # type: ignore[attr-defined]
            assert connection.exec_driver_sql("SHOW application_name").scalar_one() != "left"


@pytest.fixture
def tokyo(postgres: LocalPostgres) -> str:
    """A database whose sessions are in another time zone, and write dates otherwise."""
    name = postgres.new_database()
    whole = {"isolation_level": "AUTOCOMMIT"}
    for setting, value in SETTINGS.items():
        query(postgres.url(), f"ALTER DATABASE {name} SET {setting} = '{value}'", **whole)
    return postgres.url(name)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_guard_always_runs_with_the_settings_of_the_database(
    tokyo: str, name: str, grants: Grants, position: int
) -> None:
    world = World(tokyo, name)
    query(tokyo, f"CREATE TABLE {name} (name TEXT, value TEXT)")
    names = ", ".join(f"('{each}')" for each in SETTINGS)
    reading = f"INSERT INTO {name} SELECT name, current_setting(name) FROM (VALUES {names}) AS named(name)"
    states = _moments(world)
    states.insert(position, SqlGuard.from_url(tokyo, name=name, statements=[(reading, {})]))
    together(grants(1), states, [_given_to(state, 1) for state in states])
    assert dict(query(tokyo, f"SELECT name, value FROM {name}")) == SETTINGS
    _check_values(world, 1)


# --- a lost reply -----------------------------------------------------------------------------------------------------


@pytest.fixture
def proxied(request: pytest.FixtureRequest, name: str) -> Iterator[tuple[World, World, ReplyEater]]:
    """A world, the same behind a proxy, and the proxy."""
    server: LocalPostgres | LocalMariaDB = request.getfixturevalue(request.param)
    world = World(server.url(), name)
    with ReplyEater(f"127.0.0.1:{server.port}") as proxy:
        behind = World.__new__(World)
        behind.url, behind.name = world.url.replace(f"127.0.0.1:{server.port}", proxy.hosts), name
        yield world, behind, proxy


def _cut_when_eaten(proxy: ReplyEater) -> None:
    assert proxy.wait_eaten(300)
    proxy.cut()


@pytest.mark.parametrize("proxied", ["postgres", "mariadb"], indirect=True)
@pytest.mark.parametrize("how", ["with a guard", "without one"])
def test_a_lost_reply_to_the_commit_names_all_states_and_the_next_try_resolves_it(
    proxied: tuple[World, World, ReplyEater], grants: Grants, pool: ThreadPoolExecutor, how: str
) -> None:
    world, behind, proxy = proxied
    count = 3 if how == "with a guard" else 2
    states, first = world.states()[:count], grants(1)
    together(first, states, given(2)[:count])
    grants.final(first, *states)
    grant = grants(2)

    def lose() -> None:
        proxy.eat()
        pool.submit(_cut_when_eaten, proxy)

    lossy = behind.states()[:count]
    with committed(lose), pytest.raises(StateOutcomeUnknown) as error:
        together(grant, lossy, given(3)[:count])
    assert error.value.fields["state"] == ", ".join(state.name for state in lossy)
    assert world.seen()[:2] == (5, 5)
    for _ in range(2):
        together(grant, states, given(3)[:count])
        assert world.seen()[:2] == (5, 5)


def test_only_states_with_the_same_connection_have_the_same_store_key(url: str, name: str) -> None:
    def keyed(label: str, at: str) -> object:
        return SqlTable.from_url(at, label=label, table=name).store_key

    assert keyed("a", url) == keyed("a", url)
    assert keyed("a", url) != keyed("b", url)
    assert keyed("a", url) != keyed("a", f"{url}?timeout=1")
