"""The state suite on tables of databases to which rows are appended, as far as it fits them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from airflow_tx.state.api import FencedState
from airflow_tx.testing.suites.state_tools import MakeState
from tests.contract.append_suite import AppendSuite, SummedSqlTable
from tests.servers.mariadb import LocalMariaDB
from tests.servers.mysql import LocalMySQL
from tests.servers.postgres import LocalPostgres


def _tables(url: str) -> MakeState:
    prefix = f"t{uuid.uuid4().hex[:8]}"

    def make(kind: str, name: str = "first", **_: object) -> FencedState:
        return SummedSqlTable.from_url(url, table=f"{prefix}_{name}")

    return make


class TestSqlTableOnSqlite(AppendSuite):
    @pytest.fixture
    def make_state(self, tmp_path: Path) -> MakeState:
        return _tables(f"sqlite:///{tmp_path}/orders.db")


class TestSqlTableOnPostgres(AppendSuite):
    @pytest.fixture
    def make_state(self, postgres: LocalPostgres) -> MakeState:
        return _tables(postgres.url())


class TestSqlTableOnMariaDB(AppendSuite):
    @pytest.fixture
    def make_state(self, mariadb: LocalMariaDB) -> MakeState:
        return _tables(mariadb.url())


@pytest.mark.long
class TestSqlTableOnMySQL(AppendSuite):
    @pytest.fixture
    def make_state(self, mysql: LocalMySQL) -> MakeState:
        return _tables(mysql.url())
