"""Servers of databases: one of each for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_tx.testing.mariadb import LocalMariaDB
from airflow_tx.testing.postgres import LocalPostgres
from airflow_tx.testing.redis import LocalRedis


@pytest.fixture(scope="module")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres() as server:
        yield server


@pytest.fixture(scope="module")
def mariadb() -> Iterator[LocalMariaDB]:
    with LocalMariaDB() as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server
