"""States that one transaction of their store writes, of every kind beside every other one, on each database."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_tx.state import MemoryDatabase, MemoryState, SqlGuard, SqlState, Sum
from airflow_tx.state.api import FencedState, StoredState
from airflow_tx.testing.suites.state_together import GivenRows, TogetherSuite
from airflow_tx.testing.suites.state_tools import MakeState
from tests.contract.append_suite import SummedSqlTable
from tests.contract.opening import opening
from tests.integration.databases import query
from tests.lake import summed
from tests.servers.mariadb import LocalMariaDB
from tests.servers.mysql import LocalMySQL
from tests.servers.postgres import LocalPostgres


class TestMemoryStatesTogether(TogetherSuite):
    @pytest.fixture
    def make_state(self) -> MakeState:
        databases = defaultdict[str, MemoryDatabase](MemoryDatabase)
        return opening(lambda name, **given: MemoryState(name, database=databases[name], store="one", **given))


class GuardedTable(SqlGuard):
    """Inserts its rows into a table of the user, and shows their sums, as a keyed state does."""

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        assert self._url is not None
        return summed({"key": key, "n": n} for key, n in query(self._url, f"SELECT word, n FROM {self.guard}"))


class SqlTogetherSuite(TogetherSuite):
    """States of one database."""

    kinds: ClassVar[tuple[str, ...]] = ("opaque", "transactional", "table", "guard")

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def make_state(self, url: str) -> MakeState:
        prefix = f"t{uuid.uuid4().hex[:8]}"

        def make(kind: str, name: str = "first", **_: object) -> FencedState:
            table = f"{prefix}_{name}"
            if kind == "table":
                return SummedSqlTable.from_url(url, table=table)
            if kind == "guard":
                query(url, f"CREATE TABLE IF NOT EXISTS {table} (word VARCHAR(20), n BIGINT NOT NULL)")
                insert = f"INSERT INTO {table} (word, n) VALUES (:key, :n)"
                return GuardedTable.from_url(url, name=table, statements=[insert])
            return SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}, kind=kind)

        return make

    def refusals(self, kind: str) -> Mapping[str, GivenRows]:
        row = {"key": "a", "n": 1}
        if kind == "table":
            return {
                "a value of another type": [row, {"key": "b", "n": "many"}],
                "a column that the table lacks": [row, {"key": "b", "n": 1, "more": 1}],
            }
        if kind == "guard":
            return {
                "a statement that fails": [row, {"key": "b", "n": None}],
                "a statement without its parameter": [row, {"key": "b"}],
            }
        return super().refusals(kind)

    def everything(self, states: Sequence[StoredState]) -> object:
        url: Any = states[0]._url  # type: ignore[attr-defined]
        names = [state.name.partition(".")[2] for state in states]
        prefix = names[0].partition("_")[0]
        found = {
            table: sorted(map(repr, query(url, f"SELECT * FROM {table} WHERE {column} LIKE '%{prefix}%'")))
            for table, column in (
                ("airflow_tx_fence", "state"),
                ("airflow_tx_receipts", "state"),
                ("airflow_tx_portions", "state"),
                ("airflow_tx_guard", "guard"),
            )
            if table != "airflow_tx_guard" or any(isinstance(state, SqlGuard) for state in states)
        }
        return found | {name: sorted(map(repr, query(url, f"SELECT * FROM {name}"))) for name in names}


class TestStatesTogetherOnSqlite(SqlTogetherSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'state.db'}"


class TestStatesTogetherOnPostgres(SqlTogetherSuite):
    @pytest.fixture
    def url(self, postgres: LocalPostgres) -> str:
        return postgres.url()


class TestStatesTogetherOnMariaDB(SqlTogetherSuite):
    @pytest.fixture
    def url(self, mariadb: LocalMariaDB) -> str:
        return mariadb.url()


@pytest.mark.long
class TestStatesTogetherOnMySQL(SqlTogetherSuite):
    @pytest.fixture
    def url(self, mysql: LocalMySQL) -> str:
        return mysql.url()
