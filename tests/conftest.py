"""Servers of databases: one of each for the tests of a module; and no time limit for an example."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from airflow_tx import compat
from airflow_tx.testing.servers.mariadb import LocalMariaDB
from airflow_tx.testing.servers.postgres import LocalPostgres
from airflow_tx.testing.servers.redis import LocalRedis

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an Airflow that could be asked, every try that a test makes is its task's current one."""
    monkeypatch.setattr(compat, "is_current", lambda task_try: True)


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
