"""The state suite on every fenced state we have."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from airflow_tx.state import Aggregator, MemoryDatabase, MemoryState, SqlState, Sum
from airflow_tx.testing.mariadb import LocalMariaDB
from airflow_tx.testing.postgres import LocalPostgres
from airflow_tx.testing.state_suite import MakeState, ReadableState, StateSuite


class TestMemoryState(StateSuite):
    @pytest.fixture
    def make_state(self) -> MakeState:
        databases: dict[str, MemoryDatabase] = {}

        def make(
            kind: str,
            name: str = "first",
            *,
            keys: Sequence[str] = ("key",),
            values: Mapping[str, Aggregator] | None = None,
            types: Mapping[str, str] | None = None,
        ) -> ReadableState:
            database = databases.setdefault(name, MemoryDatabase())
            columns = values or {"n": Sum()}
            return MemoryState(name, keys=keys, values=columns, kind=kind, types=types, database=database)

        return make


class TestMemoryStateWithALimit(StateSuite):
    @pytest.fixture
    def make_state(self) -> MakeState:
        databases: dict[str, MemoryDatabase] = {}

        def make(
            kind: str,
            name: str = "first",
            *,
            keys: Sequence[str] = ("key",),
            values: Mapping[str, Aggregator] | None = None,
            types: Mapping[str, str] | None = None,
        ) -> ReadableState:
            return MemoryState(
                name,
                keys=keys,
                values=values or {"n": Sum()},
                kind=kind,
                types=types,
                max_value_bytes=1000,
                database=databases.setdefault(name, MemoryDatabase()),
            )

        return make


def _tables(url: str) -> MakeState:
    # Tables of its own for every test: a database each would take PostgreSQL seconds.
    prefix = f"t{uuid.uuid4().hex[:8]}"

    def make(
        kind: str,
        name: str = "first",
        *,
        keys: Sequence[str] = ("key",),
        values: Mapping[str, Aggregator] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> ReadableState:
        columns = values or {"n": Sum()}
        return SqlState.from_url(url, table=f"{prefix}_{name}", keys=keys, values=columns, kind=kind, types=types)

    return make


class TestSqlStateOnSqlite(StateSuite):
    @pytest.fixture
    def make_state(self, tmp_path: Path) -> MakeState:
        return _tables(f"sqlite:///{tmp_path / 'state.db'}")


@pytest.fixture(scope="module")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres() as server:
        yield server


class TestSqlStateOnPostgres(StateSuite):
    @pytest.fixture
    def make_state(self, postgres: LocalPostgres) -> MakeState:
        return _tables(postgres.url())


@pytest.fixture(scope="module")
def mariadb() -> Iterator[LocalMariaDB]:
    with LocalMariaDB() as server:
        yield server


class TestSqlStateOnMariaDB(StateSuite):
    @pytest.fixture
    def make_state(self, mariadb: LocalMariaDB) -> MakeState:
        return _tables(mariadb.url())
