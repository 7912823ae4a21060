"""Values that are lost in a database while their fence stays: the next raise of the fence refuses, and says what."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_tx.base.errors import StateBehind, StateDiffers
from airflow_tx.state import SqlGuard, SqlState, Sum
from airflow_tx.state.sql import fence
from airflow_tx.testing.suites.state_tools import Grants, rows, totals
from tests.integration.databases import query
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres

Make = Callable[[], SqlState]


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table that is counted, or one of which some rows are looked up."""
    if request.param == "large":
        monkeypatch.setattr(fence, "COUNTED", 1)
    return str(request.param)


@pytest.fixture(params=["opaque", "transactional"])
def made(request: pytest.FixtureRequest, url: str, table: str) -> Make:
    """Opens the state as another process would."""
    columns: dict[str, Any] = {"keys": ["key"], "values": {"n": Sum()}}
    return partial(SqlState.from_url, url, table=table, kind=request.param, **columns)


def put_back(url: str, table: str, copy: str) -> None:
    query(url, f"DELETE FROM {table}")
    query(url, f"INSERT INTO {table} SELECT * FROM {copy}")


def refused(state: SqlState, grants: Grants, txid: int, match: str) -> None:
    for write in (state.raise_fence, lambda grant: state.raise_and_write(grant, rows({"a": 5}))):
        with pytest.raises(StateBehind, match=f"{match}.*--state-lost") as error:
            write(grants(txid))
        assert "\n" not in str(error.value)


@pytest.mark.usefixtures("size")
def test_an_emptied_table_is_refused_until_a_person_accepts_the_loss(
    url: str, table: str, grants: Grants, made: Make
) -> None:
    held = made()
    grants.commit(1, held, {"a": 1, "b": 2})
    grants.commit(2, held, {})
    query(url, f"DELETE FROM {table}")
    for state in (held, made()):
        refused(state, grants, 3, "its fence says 2, but (it has only 0 of 2 rows|its key .* is missing)")
    grants.generation, grants.last = 2, {}
    made().raise_fence(grants(3))  # and is killed: what was accepted stays so
    grants.last = {held.name: 2}
    grants.commit(3, made(), {"a": 5})
    assert totals(held) == {"a": 5}


@pytest.mark.usefixtures("size")
def test_a_table_that_is_older_than_its_fence_is_refused(url: str, table: str, grants: Grants, made: Make) -> None:
    state = made()
    grants.commit(1, state, {"a": 1, "b": 1, "c": 1})
    query(url, f"CREATE TABLE {table}_copy AS SELECT * FROM {table}")
    grants.commit(2, state, {"a": 10})
    grants.commit(3, state, {})
    put_back(url, table, f"{table}_copy")
    refused(
        made(),
        grants,
        4,
        "its fence says 3, but (some of its rows have values of earlier"
        "|its key .* has a value of transaction 1, but its last value was of 2)",
    )


@pytest.mark.usefixtures("size")
def test_lost_keys_with_several_columns_are_noticed(url: str, table: str, grants: Grants) -> None:
    def make() -> SqlState:
        return SqlState.from_url(url, table=table, keys=["word", "number"], values={"n": Sum()})

    written = [{"word": word, "number": number, "n": 1} for word, number in (("a", 1), ("b", 1), ("b", 2))]
    grants.commit_rows(1, make(), written)
    grants.commit_rows(2, make(), written)
    query(url, f"DELETE FROM {table} WHERE word = 'b'")
    refused(make(), grants, 3, "its fence says 2, but (it has only 1 of 3 rows|its key .* is missing)")


def test_a_deleted_row_of_a_small_table_is_noticed(url: str, table: str, grants: Grants, made: Make) -> None:
    state = made()
    grants.commit(1, state, {"a": 1, "b": 1})
    grants.commit(2, state, {"a": 1})
    query(url, f"DELETE FROM {table} WHERE n = 1")
    refused(made(), grants, 3, "its fence says 2, but it has only 1 of 2 rows")


@pytest.mark.usefixtures("size")
def test_deleted_rows_are_no_longer_reported_after_a_person_accepted_the_deletion(
    url: str, table: str, grants: Grants, made: Make
) -> None:
    grants.commit(1, made(), {"a": 1, "b": 1})
    query(url, f"DELETE FROM {table}")
    made().accept_values()
    grants.commit(2, made(), {"a": 1})
    assert totals(made()) == {"a": 1}
    query(url, f"DELETE FROM {table}")
    refused(made(), grants, 3, "its fence says 2, but")


def test_an_older_version_of_a_row_in_a_small_table_is_noticed(
    url: str, table: str, grants: Grants, made: Make
) -> None:
    state = made()
    grants.commit(1, state, {"a": 1, "b": 1})
    query(url, f"CREATE TABLE {table}_copy AS SELECT * FROM {table} WHERE n = 1")
    grants.commit(2, state, {"a": 1, "b": 5})
    query(url, f"DELETE FROM {table}")
    query(url, f"INSERT INTO {table} SELECT * FROM {table}_copy")
    refused(made(), grants, 3, "its fence says 2, but some of its rows have values of earlier transactions")


@pytest.mark.usefixtures("size")
def test_a_table_that_has_lost_the_last_parts_of_a_commit_is_refused(
    url: str, table: str, grants: Grants, made: Make
) -> None:
    grants.commit(1, made(), {"a": 1, "b": 1})
    query(url, f"CREATE TABLE {table}_copy AS SELECT * FROM {table}")
    grant = grants(2)
    made().raise_fence(grant)
    for chunk, portion in enumerate([{"a": 1, "c": 1}, {"d": 1}]):
        made().write(grant, rows(portion), chunk=chunk, complete=False)
    made().write(replace(grant, portions=2), (), chunk=2)
    grants.final(grant, made())
    made().raise_fence(grants(3))
    put_back(url, table, f"{table}_copy")
    refused(made(), grants, 3, "its fence says 3, but")


def test_the_next_commit_adds_a_missing_imprint_to_the_fence(url: str, table: str, grants: Grants, made: Make) -> None:
    grants.commit(1, made(), {"a": 1})
    query(url, f"UPDATE airflow_tx_fence SET definition = '{{}}' WHERE state = '{table}'")
    grants.commit(2, made(), {"a": 1})
    query(url, f"DELETE FROM {table}")
    refused(made(), grants, 3, "0 of 1 rows")


@pytest.mark.usefixtures("size")
def test_lost_keys_are_not_checked_if_the_fence_records_other_key_columns(url: str, table: str, grants: Grants) -> None:
    made = partial(SqlState.from_url, url, table=table, values={"n": Sum()})
    state = made(keys=["key", "region"])
    grants.commit_rows(1, state, [{"key": key, "region": "eu", "n": 1} for key in "ab"])
    query(
        url, f"UPDATE airflow_tx_fence SET definition = replace(definition, 'region', 'place') WHERE state = '{table}'"
    )
    grants.commit_rows(2, state, [{"key": "a", "region": "eu", "n": 1}])
    assert sorted(row["n"] for row in state.read()) == [1, 2]


def test_lost_keys_of_every_type_are_noticed(
    url: str, table: str, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "COUNTED", 0)
    types = {"a": "text", "b": "double", "c": "numeric", "d": "date", "e": "timestamptz", "f": "boolean", "g": "bytes"}
    moment = dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    key = {"a": "ä'\\", "b": 0.1, "c": Decimal("1.50"), "d": moment.date(), "e": moment, "f": True, "g": b"\0"}
    state = SqlState.from_url(url, table=table, keys=list(types), types=types, values={"n": Sum()})
    for txid in (1, 2):
        grants.commit_rows(txid, state, [{**key, "n": 1}])
    assert [row["n"] for row in state.read()] == [2]
    query(url, f"DELETE FROM {table}")
    with pytest.raises(StateBehind, match="its key .* is missing"):
        state.raise_fence(grants(3))


@pytest.mark.parametrize("shape", [[], ["long"]])
def test_an_emptied_table_is_refused_even_if_its_key_has_the_name_of_a_package_column(
    url: str, table: str, grants: Grants, shape: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "COUNTED", 0 if shape else 1000)
    keys = [*shape, *(f"{name}2" for name in shape)]
    state = SqlState.from_url(url, table=table, keys=keys, values={"n": Sum()})
    for txid in (1, 2):
        grants.commit_rows(txid, state, [{**dict.fromkeys(keys, "x" * 300), "n": 1}])
    query(url, f"DELETE FROM {table}")
    with pytest.raises(StateBehind):
        state.raise_fence(grants(3))


STEPS = st.tuples(
    st.sampled_from(["commit", "killed", "portions", "cut off", "skip"]), st.sets(st.sampled_from("abcdef"))
)


@settings(deadline=None, max_examples=60)
@given(st.lists(STEPS, max_size=8), st.sampled_from([0, 2, 1000]), st.sampled_from(["opaque", "transactional"]))
def test_no_sequence_of_commits_kills_and_replays_is_reported_as_a_loss(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, set[str]]], most: int, kind: str
) -> None:
    path = tmp_path_factory.mktemp("lost") / "state.db"
    state = SqlState.from_url(f"sqlite:///{path}", table="t", keys=["key"], values={"n": Sum()}, kind=kind)
    grants, txid, attempt = Grants(), 1, 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fence, "COUNTED", most)
        for step, keys in steps:
            grant = grants(txid, attempt)
            if step == "killed":
                state.raise_and_write(grant, rows(dict.fromkeys(keys, 1)))
            else:
                state.raise_fence(grant)
            if step == "skip":
                state.pass_over(grant)
            if step in ("portions", "cut off"):
                for chunk, key in enumerate(sorted(keys)):
                    state.write(grant, rows({key: 1}), chunk=chunk, complete=False)
            if step == "portions":
                state.write(replace(grant, portions=len(keys)), (), chunk=len(keys))
            if step == "commit":
                state.write(grant, rows(dict.fromkeys(keys, 1)))
            if step in ("killed", "cut off"):
                attempt += 1
            else:
                grants.final(grant, state)
                txid, attempt = txid + 1, 1
        state.raise_fence(grants(txid, attempt))


def test_a_guard_with_an_older_record_of_its_runs_is_refused_and_runs_no_statement(
    url: str, table: str, grants: Grants
) -> None:
    query(url, f"CREATE TABLE {table} (n BIGINT)")
    guard = SqlGuard.from_url(url, name=table, statements=[(f"INSERT INTO {table} VALUES (:txid)", None)])
    for txid in (1, 2):
        grants.commit_rows(txid, guard, [{"n": 1}])
    grant = grants(3)
    guard.raise_fence(grant)
    guard.pass_over(grant)
    grants.final(grant, guard)
    query(url, f"UPDATE airflow_tx_guard SET txid = 1 WHERE guard = '{table}'")
    with pytest.raises(
        StateBehind, match="its fence says 3, but airflow_tx_guard contains transaction 1, but contained 2 before"
    ):
        guard.raise_and_write(grants(4), [{"n": 1}])
    assert query(url, f"SELECT n FROM {table} ORDER BY n") == [(1,), (2,)]


@pytest.mark.parametrize("which", ["t_unlogged", "airflow_tx_fence", "airflow_tx_receipts"])
def test_an_unlogged_table_is_refused_with_the_statement_that_makes_it_logged(
    postgres: LocalPostgres, grants: Grants, which: str
) -> None:
    url = postgres.url(postgres.new_database())
    _refused_until_mended(url, "t_unlogged", grants, f"ALTER TABLE {which} SET UNLOGGED", "is UNLOGGED")


@pytest.mark.parametrize("engine", ["MyISAM", "MEMORY", "Aria"])
def test_a_table_with_a_non_transactional_engine_is_refused_with_the_statement_that_changes_it(
    mariadb: LocalMariaDB, table: str, grants: Grants, engine: str
) -> None:
    _refused_until_mended(mariadb.url(), table, grants, f"ALTER TABLE {table} ENGINE={engine}", f"the engine {engine}")


def _refused_until_mended(url: str, table: str, grants: Grants, change: str, match: str) -> None:
    made = partial(SqlState.from_url, url, table=table, keys=["key"], types={"key": "bigint"}, values={"n": Sum()})
    grants.commit_rows(1, made(), [{"key": 1, "n": 1}])
    query(url, change)
    with pytest.raises(StateDiffers, match=f"{match}.*ALTER TABLE") as error:
        made().raise_and_write(grants(2), [{"key": 1, "n": 1}])
    query(url, str(error.value).rpartition(": ")[2])
    grants.commit_rows(2, made(), [{"key": 1, "n": 1}])
    assert made().read() == [{"key": 1, "n": 2}]
