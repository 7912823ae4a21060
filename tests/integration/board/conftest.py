"""One api-server with the board for all tests of it, on a ZooKeeper of its own, which they stop."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.plugin.api.snapshots import AGE
from airflow_tx.state import Sum
from airflow_tx.state.sql.state import SqlState
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.airflow.browser import People, Person, chromium
from tests.integration.board.server import ROOT, Board
from tests.integration.cli_runs import Runs
from tests.integration.commands import DAG
from tests.integration.pipeline import Pipeline

MARKERS = ("marked-host.example.org", "marked-secret", "marked-extra-value")
"""What no answer may have: host, password and token of a connection."""
_MARKED = {
    "conn_type": "postgres",
    "host": MARKERS[0],
    "login": "someone",
    "password": MARKERS[1],
    "extra": {"token": MARKERS[2]},
}
HANGS = """
import time
from airflow.sdk import DAG
from airflow_tx import CommitOperator, Transaction, coordinator_dag
from airflow_tx.sources.files.source import FileSource

class HangingSource(FileSource):
    def backlog(self, position):
        time.sleep(3600)

    def contains(self, metadata, what):
        time.sleep(3600)

with DAG("hangs", schedule=None, max_active_runs=16):
    with Transaction(source=HangingSource("/nowhere/*.csv"), topology="hangs"):
        CommitOperator(task_id="commit", updates=[])

coordinator_dag("hangs")
"""
"""A source that does not answer."""

LOSSY = """
from airflow.sdk import DAG
from airflow_tx import CommitOperator, Transaction
from airflow_tx.sources import Loss
from airflow_tx.sources.files.source import FileSource

class LossySource(FileSource):
    def losses(self, position):
        return [Loss("", position, 10, f"rows {position} to 9")] if position is not None and position < 10 else []

with DAG("lossy", schedule=None, max_active_runs=16):
    with Transaction(source=LossySource("/nowhere/*.csv"), topology="lossy"):
        CommitOperator(task_id="commit", updates=[])
"""
"""A source that has lost what comes before row 10."""

MESSAGES = """
from airflow.sdk import DAG
from airflow_tx import CommitOperator, Transaction
from airflow_tx.sources.files.source import FileSource

with DAG("messages", schedule=None, max_active_runs=16):
    with Transaction(source=FileSource("/nowhere/*.csv"), topology="messages", ackers=2):
        CommitOperator(task_id="commit", updates=[])
"""
"""A topology whose tasks emit messages."""

STUCK = """
import os, time
from airflow.sdk import DAG
from airflow_tx import CommitOperator, Transaction
from airflow_tx.sources.files.source import FileSource

file = os.environ.get("HANG_AT_IMPORT", "")
if os.path.exists(file):
    with open(file, "a") as imported:
        imported.write("1")
while os.path.exists(file):
    time.sleep(0.05)

with DAG("stuck", schedule=None, max_active_runs=16):
    with Transaction(source=FileSource("/nowhere/*.csv"), topology="stuck"):
        CommitOperator(task_id="commit", updates=[])
"""
"""A file whose import hangs as long as another file is there."""

ELSEWHERE_ROOT = "/elsewhere"
ELSEWHERE = f"""
from airflow.sdk import DAG
from airflow_tx import CommitOperator, Transaction, coordinator_dag
from airflow_tx.sources.files.source import FileSource

for dag_id, conn_id in (("elsewhere", "other_zookeeper"), ("unreachable", "gone_zookeeper")):
    with DAG(dag_id, schedule=None, max_active_runs=16):
        place = {{"topology": "flights", "root": "{ELSEWHERE_ROOT}", "zookeeper_conn_id": conn_id}}
        with Transaction(source=FileSource("/nowhere/*.csv"), **place):
            CommitOperator(task_id="commit", updates=[])
    coordinator_dag("flights", dag_id=f"guide_of_{{dag_id}}")
"""
"""Topologies of one name in other ledgers; one of these is away."""

LAGS = f"""
from datetime import timedelta
from airflow.sdk import DAG
from airflow_tx import CommitOperator, Transaction
from airflow_tx.sources.files.source import FileSource

def ahead(lag):
    class Ahead(FileSource):
        def backlog(self, position):
            return lag

    return Ahead("/nowhere/*.csv")

for dag_id, lag, place in (("lag_here", 3, {{}}), ("lag_there", 5, {{"root": "{ELSEWHERE_ROOT}"}})):
    with DAG(dag_id, schedule=None, max_active_runs=16):
        alarms = {{"late_after": timedelta(hours=1), "max_lag": 2, "on_late": print}}
        with Transaction(source=ahead(lag), topology="lagging", **place, **alarms):
            CommitOperator(task_id="commit", updates=[])
"""
"""Two topologies of one name, whose sources have lags of 3 and of 5 files."""

DAILY = """
from datetime import datetime, timezone
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow_tx import CommitOperator, Transaction
from airflow_tx.sources.run.data_interval import DataIntervalSource

every_day = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
begin = datetime(2026, 5, 1, tzinfo=timezone.utc)
with DAG("daily", schedule=every_day, start_date=begin, catchup=False, max_active_runs=16):
    with Transaction(source=DataIntervalSource(), topology="daily"):
        CommitOperator(task_id="commit", updates=[])
"""
"""A topology whose runs have dates."""

READS = """
import json, os
from airflow.sdk import DAG, BaseHook, Variable
from airflow.sdk.configuration import conf
from airflow_tx import CommitOperator, Transaction
from airflow_tx.sources.files.source import FileSource

PLACES = ("in_environment", "in_database", "in_backend")

def seen():
    return {
        "hosts": [BaseHook.get_connection(f"conn_{each}").host for each in PLACES],
        "variables": [Variable.get(f"variable_{each}") for each in PLACES],
        "option": conf.get("tx", "root"),
        "database": conf.get("database", "sql_alchemy_conn"),
        "environment": dict(os.environ),
    }

def told():
    try:
        return seen()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

# Airflow itself parses it, too, where none of these are set.
READ = "AIRFLOW_VAR_VARIABLE_IN_ENVIRONMENT" in os.environ
AT_PARSE = told() if READ else None

class Reading(FileSource):
    def backlog(self, position):
        return 7

    def __repr__(self):
        return json.dumps([AT_PARSE, told() if READ else None])

with DAG("reads", schedule=None, max_active_runs=16):
    with Transaction(source=Reading("/nowhere/*.csv"), topology="reads"):
        CommitOperator(task_id="commit", updates=[])
"""
"""Tells what the code of a DAG file sees, as its file is parsed and afterwards."""


_end_of_the_last = [float("-inf")]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Let the server forget the answers of the test before, whose ledger has the same names."""
    time.sleep(max(_end_of_the_last[0] + AGE - time.monotonic(), 0.0))
    yield
    _end_of_the_last[0] = time.monotonic()


@pytest.fixture(scope="package")
def zookeeper() -> Iterator[LocalZooKeeper]:
    """One of its own, which is stopped."""
    with LocalZooKeeper(fsync=False) as server:
        yield server


@pytest.fixture(scope="package")
def board(tmp_path_factory: pytest.TempPathFactory, zookeeper: LocalZooKeeper) -> Iterator[Board]:
    dags = {
        "the_dag.py": DAG,
        "hangs.py": HANGS,
        "lossy.py": LOSSY,
        "elsewhere.py": ELSEWHERE,
        "lags.py": LAGS,
        "reads.py": READS,
        "messages.py": MESSAGES,
        "daily.py": DAILY,
        "stuck.py": STUCK,
    }
    connections = {
        "marked": _MARKED,
        "other_zookeeper": {"conn_type": "zookeeper", "host": zookeeper.hosts},
        "gone_zookeeper": {"conn_type": "zookeeper", "host": "127.0.0.1:1"},
    }
    board = Board(tmp_path_factory.mktemp("board"), zookeeper, dags, **connections)
    try:
        board.start()
        yield board
    finally:
        board.stop()


@pytest.fixture
def store(zookeeper: LocalZooKeeper) -> Iterator[ZooKeeperStore]:
    client = connect(ClientConfig(zookeeper.hosts))
    yield ZooKeeperStore(client)
    for root in (ROOT, ELSEWHERE_ROOT):
        if client.exists(root):
            client.delete(root, recursive=True)
    disconnect(client)


@pytest.fixture
def runs(board: Board) -> Iterator[Runs]:
    runs = Runs(board.commands)
    yield runs
    runs.delete()


@pytest.fixture
def pipeline(board: Board, store: ZooKeeperStore) -> Iterator[Pipeline]:
    url = f"sqlite:///{board.commands.database}"
    states = [
        SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}, kind="opaque", label="tx_state")
        for table in ("one", "two")
    ]
    pipeline = Pipeline(store, ROOT, states)
    pipeline.request = TopologyRequest("the_dag", "opaque", 3)
    yield pipeline
    for state in states:
        state.clear()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def logged_in(browser: Browser, board: Board) -> Iterator[dict[str, Person]]:
    """Users of the board by name, each with a page that stays."""
    known: dict[str, Person] = {}
    yield known
    assert [error for each in known.values() for error in each.errors] == []


@pytest.fixture
def people(logged_in: dict[str, Person], browser: Browser, board: Board) -> Iterator[People]:
    """Give users of the board; after the test their pages ask nothing more, so that the server reads nothing."""

    def person(user: str) -> Person:
        if user not in logged_in:
            logged_in[user] = Person(browser, board, user, token=board.token(user))
        return logged_in[user]

    yield person
    for each in logged_in.values():
        each.page.goto("about:blank")
