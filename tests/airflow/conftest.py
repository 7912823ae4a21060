"""One real Airflow on PostgreSQL, one real ZooKeeper and one SQLite state for every test in this folder.

Most of a test is waiting: those that need nothing else run in threads from the start on, beside those that do. They
are reported last. While a test that is `alone` runs, they stand still.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from inspect import signature
from pathlib import Path
from typing import Any, TypeGuard

import pytest

from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.airflow.ahead import Ahead
from tests.airflow.client import TriedAirflow
from tests.airflow.stack import DAGS, Stack, environment, warehouse, write_numbers
from tests.budget import BUDGET
from tests.servers.postgres import LocalPostgres

_ahead = pytest.StashKey[Ahead]()
_alone = pytest.StashKey[bool]()


LIMIT = 900.0
"""Seconds that a test has unless it says otherwise. A story is dozens of processes, and CI runs others beside it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT))
    # First those that need more than Airflow: the others run beside them.
    items.sort(key=_runs_ahead)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that is `alone` wait for the others before its own time begins."""
    if not item.get_closest_marker("alone"):
        return (yield)
    stash = item.session.stash
    stash[_alone] = True
    if _ahead in stash:
        stash[_ahead].hold()
    try:
        return (yield)
    finally:
        stash[_alone] = False
        # The test may have been the first to ask for the servers.
        if _ahead in stash:
            stash[_ahead].go_on()


def _runs_ahead(item: pytest.Item) -> TypeGuard[pytest.Function]:
    if not isinstance(item, pytest.Function) or item.get_closest_marker("alone"):
        return False
    return list(signature(item.obj).parameters) == ["stack"]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    ahead = pyfuncitem.session.stash.get(_ahead, None)
    return True if ahead is not None and ahead.result(pyfuncitem) else None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    answer = yield
    ahead = item.session.stash.get(_ahead, None)
    report = answer.get_result()
    if ahead is not None and report.when == "call":
        report.duration = ahead.seconds.get(item.nodeid, report.duration)


@pytest.fixture(scope="session")
def stack(
    tmp_path_factory: pytest.TempPathFactory, postgres: LocalPostgres, request: pytest.FixtureRequest
) -> Iterator[Stack]:
    """The servers; started once, because that takes half a minute."""
    folder = tmp_path_factory.mktemp("airflow")
    (folder / "signals").mkdir()
    write_numbers(folder / "numbers")
    failpoints = Failpoints(folder / "failpoints")
    # On SQLite, Airflow's scheduler dies of "database is locked" on a busy machine, and all tests with it.
    with LocalZooKeeper(folder / "zookeeper", fsync=False) as zookeeper:
        env = {
            **environment(folder, zookeeper.hosts),
            **failpoints.environment,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url(postgres.new_database()),
            "AIRFLOW_CONN_WAREHOUSE": warehouse(postgres),
        }
        # In a folder to which tests may add DAG files.
        dags = shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        with TriedAirflow(folder / "home", dags, env) as airflow:
            made = Stack(folder, airflow, zookeeper, failpoints)
            items = [item for item in request.session.items if _runs_ahead(item)]
            stash = request.session.stash
            ahead = Ahead(items, "stack", made, request.config.stash[BUDGET], held=stash.get(_alone, False))
            stash[_ahead] = ahead
            yield made
            ahead.end()
