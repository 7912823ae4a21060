"""The state suite on tables of databases to which rows are appended, as far as it fits them."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.state.api import FencedState
from airflow_tx.state.sql.table import SqlTable
from airflow_tx.testing.suites.state_fence import FenceSuite
from airflow_tx.testing.suites.state_tools import Grants, MakeState, is_applied, rows
from tests.servers.mariadb import LocalMariaDB
from tests.servers.mysql import LocalMySQL
from tests.servers.postgres import LocalPostgres


class SummedSqlTable(SqlTable):
    """Shows the sums of its rows, as a keyed state does."""

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        sums = Counter[str]()
        for row in super().read():
            sums[row["key"]] += row["n"]
        return [{"key": key, "n": n} for key, n in sorted(sums.items())]


class SqlTableSuite(FenceSuite):
    @pytest.fixture(params=["opaque"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_the_fence_says_when_all_updates_of_its_grant_are_in(self, state: FencedState, grants: Grants) -> None:
        grant = grants(1)
        state.raise_fence(grant)
        assert is_applied(state) is False
        state.write(grant, rows({"a": 1}))
        assert is_applied(state) is True
        state.raise_fence(grants(1, 2))
        assert is_applied(state) is False


def _tables(url: str) -> MakeState:
    prefix = f"t{uuid.uuid4().hex[:8]}"

    def make(kind: str, name: str = "first", **_: object) -> FencedState:
        return SummedSqlTable.from_url(url, table=f"{prefix}_{name}")

    return make


class TestSqlTableOnSqlite(SqlTableSuite):
    @pytest.fixture
    def make_state(self, tmp_path: Path) -> MakeState:
        return _tables(f"sqlite:///{tmp_path}/orders.db")


class TestSqlTableOnPostgres(SqlTableSuite):
    @pytest.fixture
    def make_state(self, postgres: LocalPostgres) -> MakeState:
        return _tables(postgres.url())


class TestSqlTableOnMariaDB(SqlTableSuite):
    @pytest.fixture
    def make_state(self, mariadb: LocalMariaDB) -> MakeState:
        return _tables(mariadb.url())


@pytest.mark.long
class TestSqlTableOnMySQL(SqlTableSuite):
    @pytest.fixture
    def make_state(self, mysql: LocalMySQL) -> MakeState:
        return _tables(mysql.url())
