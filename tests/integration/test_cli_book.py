"""The book of ends as a person types it: `repair --ends`, and what `list`, `show` and `find` say beyond the history."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.ledger.api import Delete, Paths, Put
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.state import SqlTable
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline

_DAG = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, Transaction, append
from airflow_tx.sources import TransactionalSource
from airflow_tx.state import SqlTable

class Numbers(TransactionalSource):
    def serialize(self):
        return "numbers", {}
    def initialize_transaction(self, txid, position):
        return None
    def emit_batch(self, attempt, metadata, spark=None):
        return [{"n": metadata}]
    def contains(self, metadata, what):
        return str(metadata) == what

with DAG("dag", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(), topology="flights"):
        @task
        def count():
            return []
        CommitOperator(task_id="commit", updates=[append(count(), state=SqlTable("tx_state", table="words"))])
"""
_TABLE = 'SqlTable("tx_state", table="words")'
_VALUES = 'SqlState("tx_state", table="sums", keys=["key"], values={"n": Sum()})'
_WITHOUT_TABLE = (
    _DAG.replace("append", "persistent_aggregate")
    .replace(_TABLE, _VALUES)
    .replace("import SqlTable", "import SqlState, Sum")
)
DAY = "interval:2026-01-01T00:00:00+00:00/2026-01-02T00:00:00+00:00"


@pytest.fixture
def airflow(commands: Commands) -> Commands:
    commands.begin({"the_dag.py": _DAG})
    return commands


@pytest.fixture
def pipeline(airflow: Commands, store: ZooKeeperStore, zookeeper_root: str) -> Pipeline:
    """Six transactions, of which the history has three; the first one, of a day, is restated twice."""
    state = SqlTable.from_url(f"sqlite:///{airflow.database}", table="words", label="tx_state")
    pipeline = Pipeline(store, zookeeper_root, [state], journals=True, book=True)
    for run in (DAY, "run 2", "run 3", "run 4"):
        pipeline.run(run)
    assert [pipeline.restate(1, DAY, 5), pipeline.restate(5, DAY, 6)] == [5, 6]
    store.multi([], [Delete(pipeline.paths.history(txid)) for txid in (1, 2, 3)])
    return pipeline


def change(store: ZooKeeperStore, path: str, **fields: Any) -> None:
    """Change fields of a record; None: leave one out."""
    node = store.get(path)
    assert node is not None
    value = {**json.loads(node.data), **fields}
    left = {name: each for name, each in value.items() if each is not None}
    store.multi([], [Put(path, json.dumps(left).encode())])


def without_book(store: ZooKeeperStore, paths: Paths) -> None:
    """Make the ledger one of an older release."""
    store.multi([], [Delete(paths.page(0)), Delete(paths.ends)])
    change(store, paths.record, book=None)


def repair(airflow: Commands, root: str, *options: str, fails: bool = False) -> str:
    return airflow.run(
        "tx", "repair", "flights", "--ends", "--why", "gold reads it", "--yes", *options, root=root, fails=fails
    )


def test_repair_ends_adds_the_missing_lines_to_the_book_of_ends_of_an_older_ledger(
    airflow: Commands, store: ZooKeeperStore, pipeline: Pipeline
) -> None:
    root = pipeline.paths.root
    page = store.get(pipeline.paths.page(0))
    without_book(store, pipeline.paths)
    told = "the book of ends begins at transaction 1 now"
    place = "eneration 1; transaction 7 commits next"
    assert f"{told}; g{place}" in " ".join(repair(airflow, root, "--dry-run", "--output", "json").split())
    assert store.get(pipeline.paths.ends) is None
    assert repair(airflow, root) == f"Repaired: {told}. G{place}.\n"
    made = store.get(pipeline.paths.page(0))
    assert page is not None
    assert made is not None
    assert made.data == page.data
    verified = airflow.run("tx", "verify", "flights", root=root)
    assert verified.endswith("\nTopology flights: transactions 1 to 6 agree with their receipts.\n")
    (shown,) = airflow.json("tx", "show", "flights", "--no-lag", root=root)
    assert shown["repairs"].startswith(f"ends: {told} (gold reads it; ")
    assert repair(airflow, root, fails=True) == (
        "Repair --ends of topology 'flights' refused: its book of ends begins at transaction 1 already, and lacks no "
        "line. Nothing was changed. To compare it with the receipts: airflow tx verify flights"
    )


def test_repair_ends_begins_the_book_of_ends_at_the_first_complete_receipt(
    airflow: Commands, store: ZooKeeperStore, pipeline: Pipeline
) -> None:
    root = pipeline.paths.root
    without_book(store, pipeline.paths)
    with closing(sqlite3.connect(airflow.database)) as connection, connection:
        connection.execute("DELETE FROM airflow_tx_receipts WHERE txid < 3")
    assert repair(airflow, root).startswith(
        "Repaired: the book of ends begins at transaction 3 now; there is no whole receipt of transactions 1 to 2. "
    )
    assert repair(airflow, root, fails=True) == (
        "Repair --ends of topology 'flights' refused: its book of ends begins at transaction 3, but no complete "
        "receipt exists of transactions 1 to 2. Nothing was changed. To list the receipts: airflow tx receipts "
        "flights --to 3"
    )
    assert [each["txid"] for each in airflow.json("tx", "receipts", "flights", "--to", "3", root=root)] == [3]


def test_repair_ends_is_refused_for_a_topology_without_a_table(
    airflow: Commands, store: ZooKeeperStore, pipeline: Pipeline
) -> None:
    root = pipeline.paths.root
    without_book(store, pipeline.paths)
    airflow.begin({"the_dag.py": _WITHOUT_TABLE})
    assert repair(airflow, root, fails=True) == (
        "Repair --ends of topology 'flights' refused: it keeps no book of ends: DAG 'dag' updates no table, and reads "
        "none of another topology. Nothing was changed. Let the DAG update a SqlTable or a DeltaTable, then repeat: "
        "airflow tx repair flights --ends --why TEXT"
    )
    assert store.get(pipeline.paths.ends) is None


def test_commands_read_the_book_of_ends_for_transactions_that_left_the_history(
    airflow: Commands, pipeline: Pipeline
) -> None:
    root = pipeline.paths.root
    rows = airflow.json("tx", "list", "flights", "--limit", "10", root=root)
    assert [(each["txid"], each["status"], each["run_id"]) for each in rows] == [
        (6, "COMMITTED", DAY), (5, "COMMITTED", DAY), (4, "COMMITTED", "run 4"),
        (3, "COMMITTED", "run 3"), (2, "COMMITTED", "run 2"), (1, "COMMITTED", DAY),
    ]  # fmt: skip
    assert len(airflow.json("tx", "list", "flights", "--limit", "2", root=root)) == 2
    (shown,) = airflow.json("tx", "show", "flights", "1", root=root)
    assert (shown["status"], shown["run_id"], shown["restated_by"]) == ("COMMITTED", DAY, 6)
    assert airflow.run("tx", "show", "flights", "7", root=root, fails=True)
    found = airflow.json("tx", "find", "run 2", root=root)
    assert [(each["topology"], each["txid"], each["matched"]) for each in found] == [("flights", 2, "run")]


def test_find_searches_the_run_keys_of_transactions_whose_receipts_are_missing(
    airflow: Commands, store: ZooKeeperStore, pipeline: Pipeline
) -> None:
    root = pipeline.paths.root
    Path(airflow.database).unlink()
    (found,) = airflow.json("tx", "find", "flights", DAY, root=root)
    assert (found["txid"], found["outcome"], found["run_id"], found["restated_by"]) == (1, "COMMITTED", DAY, 6)
    told = airflow.run("tx", "find", "flights", "77", root=root, fails=True)
    assert "receipts go back to transaction 4, and the book of ends goes back to transaction 1" in told
