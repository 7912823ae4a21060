"""`airflow tx state get` as a person types it, on states in SQLite that the DAG file names."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator
from decimal import Decimal

import pytest

from airflow_tx.base.errors import ConfigError, StateRenamed
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.operations.cli.values import parse_key
from airflow_tx.state import Avg, Count, SqlState, Sum
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.commands import Commands
from tests.integration.databases import query
from tests.integration.pipeline import Pipeline

_DAG = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.sources.files.source import FileSource
from airflow_tx.operations.cli.values import parse_key
from airflow_tx.base.errors import ConfigError
from airflow_tx.state import Avg, Count, SqlState, Sum

words = SqlState("tx_state", table="words", keys=["word"], values={"n": Sum()})
days = SqlState("tx_state", table="days", keys=["number", "day"], values={"n": Count(), "mean": Avg()})
total = SqlState("tx_state", table="total", keys=[], values={"n": Count()})
empty = SqlState("tx_state", table="empty", keys=["word"], values={"n": Count()})

class Moving(SqlState):
    def read(self, limit=None):
        found = super().read(limit)
        with self._store.transaction() as connection:
            connection.exec_driver_sql("UPDATE airflow_tx_fence SET txid = txid + 1 WHERE state = 'moving'")
        return found

moving = Moving("tx_state", table="moving", keys=["word"], values={"n": Count()})

with DAG("dag", schedule=None, max_active_runs=16):
    with Transaction(source=FileSource("/nowhere/*.csv"), topology="flights"):
        @task
        def count():
            return []
        counted = count()
        states = (words, days, total, empty, moving)
        CommitOperator(task_id="commit", updates=[persistent_aggregate(counted, state=state) for state in states])
"""


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    commands.begin({"the_dag.py": _DAG})
    return commands


@pytest.fixture
def root(airflow: Commands, zookeeper: LocalZooKeeper, zookeeper_root: str) -> Iterator[str]:
    """Of a ledger that knows the topology; `words`, `days` and `total` hold transaction 7."""
    client = connect(ClientConfig(zookeeper.hosts))
    Pipeline(ZooKeeperStore(client), zookeeper_root).begin("r1")
    url, grants = f"sqlite:///{airflow.database}", Grants()
    day = dt.date(2026, 1, 2)
    filled = (
        (
            SqlState.from_url(url, table="words", keys=["word"], values={"n": Sum()}, label="tx_state"),
            [{"word": word, "n": number} for number, word in enumerate(("7", "a,b", "dog", "[x"), 1)],
        ),
        (
            SqlState.from_url(
                url, table="days", keys=["number", "day"], values={"n": Count(), "mean": Avg()}, label="tx_state"
            ),
            [{"number": number, "day": day, "n": 1, "mean": number / 2} for number in (-1, 3)],
        ),
        (
            SqlState.from_url(url, table="moving", keys=["word"], values={"n": Count()}, label="tx_state"),
            [{"word": "dog", "n": 1}],
        ),
        (SqlState.from_url(url, table="total", keys=[], values={"n": Count()}, label="tx_state"), [{"n": 4}]),
    )
    for state, rows in filled:
        grants.commit_rows(7, state, rows)
    yield zookeeper_root
    for state, _ in filled:
        state.clear()
    client.delete(zookeeper_root, recursive=True)
    disconnect(client)


def test_state_get_prints_values_in_the_order_of_the_given_keys(airflow: Commands, root: str) -> None:
    found = airflow.json("tx", "state", "get", "flights", "tx_state.words", "dog", "cat", "7", "a,b", "[x", root=root)
    assert [(row["word"], row["n"]) for row in found] == [
        ("dog", 3),
        ("cat", None),
        ("7", 1),
        ("a,b", 2),
        ("[x", 4),
    ]
    keys = ("3,2026-01-02", '[-1, "2026-01-02"]', "3,2026-01-03")
    found = airflow.json("tx", "state", "get", "flights", "tx_state.days", *keys, root=root)
    assert [(row["number"], row["day"], row["n"], row["mean"]) for row in found] == [
        (3, "2026-01-02", 1, 1.5),
        (-1, "2026-01-02", 1, -0.5),
        (3, "2026-01-03", None, None),
    ]


def test_state_get_without_a_key_prints_the_first_keys_and_the_last_transaction(airflow: Commands, root: str) -> None:
    found = airflow.json("tx", "state", "get", "flights", "tx_state.words", "--limit", "2", root=root)
    assert [row["word"] for row in found] == ["7", "[x"]
    assert airflow.json("tx", "state", "get", "flights", "tx_state.total", root=root) == [{"n": 4}]
    # On stderr, which is told of failures only.
    command = ("tx", "state", "get", "flights", "tx_state.words", "dog")
    assert "dog" in airflow.run(*command, root=root)
    assert "State tx_state.words: transaction 7" in airflow.told(*command, root=root)
    empty = ("tx", "state", "get", "flights", "tx_state.empty", "--dag-id", "dag")
    assert "State tx_state.empty: no transaction yet" in airflow.told(*empty, root=root)


def test_state_get_reports_that_it_read_the_values_during_a_transaction(airflow: Commands, root: str) -> None:
    told = airflow.told("tx", "state", "get", "flights", "tx_state.moving", root=root)
    assert "State tx_state.moving: in the middle of transaction 8" in told


def test_state_get_names_a_key_that_the_state_does_not_have(airflow: Commands, root: str) -> None:
    get = ("tx", "state", "get", "flights", "tx_state.words")
    assert "State tx_state.words has no key cat." in airflow.told(*get, "dog", "cat", root=root)
    assert airflow.run(*get, "cat", "cow", root=root, fails=True) == "State tx_state.words has no key cat; cow."


class Moved:
    """A topology whose state was `before`, and is `empty` in its DAG; how the refusal says to rename or forget it."""

    def __init__(self, airflow: Commands, store: ZooKeeperStore, root: str) -> None:
        self.url = f"sqlite:///{airflow.database}"
        self._ledger = (store, root)
        self.run("before", "r1")
        with pytest.raises(StateRenamed) as refusal:
            self.run("empty", "r2")
        self.rename, self.forget = re.findall(r"airflow (tx state .*?)(?:\. If another|$)", str(refusal.value))

    def state(self, table: str) -> SqlState:
        return SqlState.from_url(self.url, table=table, keys=["word"], values={"n": Count()}, label="tx_state")

    def run(self, table: str, run_id: str) -> None:
        pipeline = Pipeline(*self._ledger, [self.state(table)])
        begun = pipeline.begin(run_id)
        grant = pipeline.acquire(begun, pipeline.process(begun))
        self.state(table).raise_and_write(grant, [{"word": "a", "n": 1}])
        pipeline.mark(grant)

    def end(self, *tables: str) -> None:
        for table in tables:
            self.state(table).clear()
            query(self.url, f"DROP TABLE {table}")


def test_state_rename_keeps_the_values_and_transactions_of_a_state(
    airflow: Commands, store: ZooKeeperStore, root: str
) -> None:
    moved = Moved(airflow, store, root)
    told = airflow.run(*moved.rename.split(), "--yes", root=root, fails=True)
    assert 'ALTER TABLE "before" RENAME TO empty' in told
    query(moved.url, 'ALTER TABLE "before" RENAME TO empty')
    assert "is called tx_state.empty now" in airflow.run(*moved.rename.split(), "--yes", root=root)
    moved.run("empty", "r2")
    assert moved.state("empty").read() == [{"word": "a", "n": 2}]
    moved.end("empty")


def test_state_forget_removes_a_state_from_the_topology(airflow: Commands, store: ZooKeeperStore, root: str) -> None:
    moved = Moved(airflow, store, root)
    airflow.run(*moved.forget.split(), "--yes", root=root)
    moved.run("empty", "r2")
    assert moved.state("empty").read() == [{"word": "a", "n": 1}]
    moved.end("before", "empty")


def test_a_refused_state_get_fails_with_one_line(airflow: Commands, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, said in (
        (("nosuch", "s"), "No topology 'nosuch' in the ledger"),
        (
            ("flights", "nosuch"),
            "STATE = 'nosuch' cannot be used. States of topology 'flights': tx_state.days, tx_state.empty",
        ),
        (("flights", "tx_state.days", "1,soon"), "KEY = '1,soon' cannot be used. Column day has the type date."),
        (
            ("other", "tx_state.total", "--dag-id", "dag"),
            "--dag-id = 'dag' cannot be used. The topology of this DAG is 'flights'",
        ),
    ):
        told = airflow.run("tx", "state", "get", *arguments, root=root, fails=True).strip().splitlines()
        assert len(told) == 1, told
        assert told[0].startswith(said), told
    nowhere = json.dumps({"conn_type": "sqlite", "host": "/nowhere/state.db"})
    monkeypatch.setitem(airflow.environment, "AIRFLOW_CONN_TX_STATE", nowhere)
    (line,) = airflow.run("tx", "state", "get", "flights", "tx_state.total", root=root, fails=True).strip().splitlines()
    assert line.startswith("State 'tx_state.total' (connection tx_state) cannot be reached"), line


def test_a_key_on_the_command_line_is_parsed_according_to_the_types_of_its_columns() -> None:
    types = {"number": "bigint", "day": "date"}
    assert parse_key("[-1, null]", list(types), types) == (-1, None)
    assert parse_key("7", ["word"], {"word": "text"}) == ("7",)
    assert parse_key('"7"', ["word"], {"word": "text"}) == ("7",)
    assert parse_key('a,"b,c"', ["a", "b"], {"a": "text", "b": "text"}) == ("a", "b,c")
    assert parse_key("true,1.50", ["a", "b"], {"a": "boolean", "b": "numeric"}) == (True, Decimal("1.5"))
    assert parse_key("/w==", ["k"], {"k": "bytes"}) == (b"\xff",)
    assert parse_key("a,b", ["a", "b"], None) == ("a", "b")
    for text, names, message in (
        ("x,2026-01-02", list(types), "KEY = 'x,2026-01-02' cannot be used. Column number has the type bigint."),
        ("[1.5, null]", list(types), "Column number has the type bigint."),
        ("1", list(types), "Give a value for each key column: number,day"),
        ("1", [], "The state has one row and no key columns"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            parse_key(text, names, types)
