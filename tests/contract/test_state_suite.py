"""The state suite on every fenced state we have, and on the one that examples/shop_state.py makes from scratch."""

from __future__ import annotations

import uuid
from collections import defaultdict
from pathlib import Path

import pytest

from airflow_tx.state import MemoryDatabase, MemoryState, SqlState
from airflow_tx.testing.suites.state_suite import StateSuite
from airflow_tx.testing.suites.state_tools import MakeState
from examples.shop_state import ShopState
from tests.contract.opening import opening
from tests.servers.mariadb import LocalMariaDB
from tests.servers.mysql import LocalMySQL
from tests.servers.postgres import LocalPostgres


class TestMemoryState(StateSuite):
    @pytest.fixture
    def make_state(self) -> MakeState:
        databases = defaultdict[str, MemoryDatabase](MemoryDatabase)
        return opening(lambda name, **given: MemoryState(name, database=databases[name], **given))


class TestMemoryStateWithALimit(StateSuite):
    @pytest.fixture
    def make_state(self) -> MakeState:
        databases = defaultdict[str, MemoryDatabase](MemoryDatabase)
        return opening(lambda name, **given: MemoryState(name, max_value_bytes=1000, database=databases[name], **given))


def _tables(url: str) -> MakeState:
    # Tables of its own for every test: a database each would take PostgreSQL seconds.
    prefix = f"t{uuid.uuid4().hex[:8]}"
    return opening(lambda name, **given: SqlState.from_url(url, table=f"{prefix}_{name}", **given))


class TestSqlStateOnSqlite(StateSuite):
    @pytest.fixture
    def make_state(self, tmp_path: Path) -> MakeState:
        return _tables(f"sqlite:///{tmp_path / 'state.db'}")


class TestSqlStateOnPostgres(StateSuite):
    @pytest.fixture
    def make_state(self, postgres: LocalPostgres) -> MakeState:
        return _tables(postgres.url())


class TestSqlStateOnMariaDB(StateSuite):
    @pytest.fixture
    def make_state(self, mariadb: LocalMariaDB) -> MakeState:
        return _tables(mariadb.url())


@pytest.mark.long
class TestSqlStateOnMySQL(StateSuite):
    @pytest.fixture
    def make_state(self, mysql: LocalMySQL) -> MakeState:
        return _tables(mysql.url())


class TestShopState(StateSuite):
    @pytest.fixture
    def make_state(self, tmp_path: Path) -> MakeState:
        return opening(lambda name, **given: ShopState(tmp_path, name, **given))
