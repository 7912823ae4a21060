"""One server of each kind for the whole run, started by the first test that needs it; no time limit for an example."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from airflow_tx.base import compat
from airflow_tx.testing.eventually import NotInTime
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.budget import BUDGET, Budget, DonePlugin, LimitsPlugin, limit_of, met, rotated
from tests.costs import CostsPlugin
from tests.examples import examples
from tests.groups import Group
from tests.servers.kafka import LocalKafka
from tests.servers.mariadb import LocalMariaDB
from tests.servers.mysql import LocalMySQL, MySQLUnavailable, mysql_root
from tests.servers.postgres import LocalPostgres
from tests.servers.rabbit import LocalRabbit
from tests.servers.redis import LocalRedis
from tests.servers.s3 import LocalS3
from tests.servers.spark_session import KAFKA_PASSWORD, available_kafka_jars, in_this_process, skipped_without_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A failed assert in these modules shows its values, as in a test module.
pytest.register_assert_rewrite("tests.suites")
# How long an example takes says how busy the machine is.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(25, 100)
)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("budget")
    group.addoption("--budget", type=float, metavar="SECONDS", help="start no test after this time")
    group.addoption(
        "--again", action="store_true", help="these tests failed before: one that --budget leaves out fails the run"
    )
    group.addoption("--costs", type=Path, metavar="FILE", help="write what each test took, and all of them")
    group.addoption("--shares", type=int, default=1, metavar="N", help="take N times the processor of another run")
    group.addoption("--cores", type=float, metavar="N", help="use no more than N cores, 0.2 for example")
    group.addoption(
        "--commit", metavar="ID", help="start at the place in the order of tests that belongs to this commit"
    )
    group.addoption(
        "--met", metavar="ID", help="only tests that files meet which differ from this commit, nearest first"
    )
    group.addoption(
        "--done", type=Path, metavar="FILE", help="leave out the tests in this file, and add those that pass"
    )


def pytest_configure(config: pytest.Config) -> None:
    budget = config.stash[BUDGET] = Budget.of(config.getoption("--budget"), again=config.getoption("--again"))
    config.pluginmanager.register(LimitsPlugin(budget))
    if config.getoption("--costs"):
        name = f"airflow-tx-{os.environ.get('AIRFLOW_TX_TEST_RUN', 'run')}-{os.getpid()}"
        try:
            group = Group(name, shares=config.getoption("--shares"), cores=config.getoption("--cores"))
        except OSError as error:
            raise pytest.UsageError(str(error)) from None
        config.pluginmanager.register(CostsPlugin(config.getoption("--costs"), group))
    if config.getoption("--done"):
        config.pluginmanager.register(DonePlugin(config.getoption("--done")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leading = [item for item in items if item.get_closest_marker("lead") and not item.get_closest_marker("long")]
    for item in leading:
        item.add_marker("long")
    if config.getoption("--met"):
        chosen = met(items, config.getoption("--met"))
        config.hook.pytest_deselected(items=list(set(items).difference(chosen)))
        items[:] = chosen
    if config.getoption("--commit"):
        first = set(leading)
        others = [item for item in items if item not in first]
        items[:] = [*leading, *rotated(others, config.getoption("--commit"))]


def pytest_collection_finish() -> None:
    # What the imports have made stays: to look through it again and again costs a twentieth of a run.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not item.config.stash[BUDGET].leaves_out(item.nodeid, limit_of(item)):
        return None
    # The test before this one kept the fixtures that this test needs: end those that the next test does not need.
    item.session._setupstate.teardown_exact(nextitem)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash[BUDGET].fails:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name for `script/test` what failed, and what was not run.

    It runs tests whose wait ran out once more, without the other parts.
    """
    for line in config.stash[BUDGET].lines():
        terminalreporter.write_line(line)
    for kind in ("failed", "error"):
        for report in terminalreporter.getreports(kind):
            text = report.longreprtext
            last = text.rpartition("\n")[2]
            late = any(error.__name__ in last for error in (NotInTime, TimeoutExpired))
            terminalreporter.write_line(f"{'not in time' if late else 'wrong'}: {report.nodeid}")
            reason = next((line[1:].strip() for line in text.splitlines() if line.startswith("E  ")), "no reason")
            terminalreporter.write_line(f"    {reason:.300}")


@pytest.fixture(autouse=True)
def current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an Airflow that could be asked, every try that a test makes is its task's current one."""
    monkeypatch.setattr(compat, "is_current_try", lambda task_try: True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[LocalMariaDB]:
    with LocalMariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[LocalMySQL]:
    """For tests that are `long`: fetching it takes a minute."""
    try:
        mysql_root()
    except MySQLUnavailable as error:
        pytest.skip(str(error))
    with LocalMySQL(start_timeout=120.0) as server:
        yield server


@pytest.fixture(scope="session")
def rabbit() -> Iterator[LocalRabbit]:
    """A test that stops it starts it again."""
    with LocalRabbit() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[LocalS3]:
    # One for the whole run: Airflow keeps the client that it has made for a connection.
    with LocalS3() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka]:
    """A test that stops it starts it again."""
    with skipped_without_jars(), LocalKafka(sasl_password=KAFKA_PASSWORD) as server:
        yield server


@pytest.fixture(scope="session")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    """Those of `spark_connect` and of what a test starts with them."""
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="session")
def spark_connect(failpoints: Failpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSparkConnect]:
    """A task that fails is tried again, and Spark writes down all that it tells anybody."""
    folder = tmp_path_factory.mktemp("connect")
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": folder.as_uri()}
    conf |= {"spark.jars": ",".join(map(str, available_kafka_jars()))}
    # On a busy machine Spark logs an event that took a second, and with it a whole plan and its options.
    conf |= {"spark.scheduler.listenerbus.logSlowEvent": "false"}
    with LocalSparkConnect(folder, master="local[2,3]", conf=conf, env=failpoints.environment) as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with in_this_process() as session:
        yield session
