"""Commands about a chain of topologies, as a person types them, on a real ZooKeeper and a real database of Airflow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_tx.ledger import Begun, Grant
from airflow_tx.ledger.answers import Processed
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.records import encode
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.outputs.journal import Entry, JournalArea
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import Sum
from airflow_tx.state.aggregators import Columns
from tests.integration.cli_runs import Runs, one_line, state_of
from tests.integration.commands import DAG, Commands
from tests.integration.pipeline import Pipeline
from tests.unit.protocol.chains import Chain

COLUMNS = Columns("tx_state.one", ("key",), {"n": Sum()}, {})
STATES = """persistent_aggregate(counted, state=state("one")), persistent_aggregate(counted, state=state("two"))"""


ORDERS = DAG.replace('"the_dag"', '"orders_dag"').replace('topology="flights"', 'topology="orders"')
_READS_ORDERS = {
    'FileSource("/nowhere/*.csv"), topology="flights"': 'OrdersSource(), topology="totals"',
    "airflow_tx.sources.files.source import FileSource": "tests.integration.orders_source import OrdersSource",
}


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    reading = DAG.replace(STATES, 'persistent_aggregate(counted, state=state("one"))')
    for there, instead in _READS_ORDERS.items():
        reading = reading.replace(there, instead)
    commands.begin({"the_dag.py": reading, "orders.py": ORDERS}, known=True)
    return commands


class _Journaled(Pipeline):
    """A topology of the DAG, whose commits leave an entry in its journal."""

    def acquire(self, begun: Begun, processed: Processed, ledger: Ledger | None = None) -> Grant:
        incarnation = self.ledger.incarnation()
        journal = JournalArea(StagingArea.of_ledger("zookeeper_default", self.paths.root), incarnation)
        day = time.strftime("%Y-%m-%d", time.gmtime())
        name = journal.write(
            Entry(
                "totals",
                incarnation,
                begun.txid,
                attempt=1,
                birth=begun.attempt.birth,
                key=processed.key,
                run_id=processed.key,
                began=day,
                written=f"{day}T00:00:00",
                metadata=begun.metadata,
                source=("source", {}),
                contributions={"tx_state.one": journal.contribution(COLUMNS, [{"key": "total", "n": 1}], day=day)},
            )
        )
        request = AcquireRequest(
            begun.attempt,
            processed.epoch,
            begun.rows_digest,
            states=("tx_state.one",),
            metadata=begun.metadata,
            position=begun.position,
            journal=name,
        )
        granted: Any = self.ledger.acquire(request)
        return granted.grant  # type: ignore[no-any-return]


@pytest.fixture
def chain(
    airflow: Commands, store: Any, runs: Runs, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Chain]:
    """Two transactions of `totals` have taken those of `orders`; the first one of `orders` was corrected since."""
    monkeypatch.setenv("AIRFLOW_HOME", airflow.environment["AIRFLOW_HOME"])
    store.ensure(zookeeper_root)
    state = state_of(airflow, "one")
    made = Chain(store, zookeeper_root, _Journaled, state)
    made.totals.request = type(made.totals.request)("the_dag", "opaque", 8, upstream="orders")
    made.run(3).take(2).correct(1)
    runs.make(t1="success", t2="success")
    runs.pause(paused=False)
    yield made
    state.clear()


def test_the_commands_show_and_restate_a_transaction_that_is_behind_a_correction(
    airflow: Commands, chain: Chain, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    lines = airflow.json("tx", "list", "--no-lag", root=root)
    assert [(each["topology"], each["reads"]) for each in lines] == [
        ("orders", None),
        ("totals", "orders, 1 transaction not taken yet"),
    ]
    (planned,) = airflow.json("tx", "restate", "totals", "--follow", "--dry-run", root=root)
    assert (planned["txid"], planned["done"]) == (1, "restated with its rows. It replaces 1 key of tx_state.one")
    assert chain.totals.ledger.wishes() == ()
    (found,) = airflow.json("tx", "stale", "totals", root=root)
    told = (found["txid"], found["reason"], found["what"], found["restatement"])
    assert told == (1, "correction", "upstream 1 restated by 4", None)
    (planned,) = airflow.json("tx", "restate", "totals", "--stale", "--dry-run", root=root)
    assert planned["txid"] == 1
    chain.request()
    *_, first = airflow.json("tx", "list", "totals", root=root)
    assert first["behind"] == "a correction of orders 1: its restatement is requested"
    (shown,) = airflow.json("tx", "show", "totals", "1", root=root)
    assert (shown["behind"], shown["upstream"]) == (first["behind"], "orders 1")
    (shown,) = airflow.json("tx", "show", "orders", "4", root=root)
    assert shown["downstream"] == "totals 1"
    (found,) = airflow.json("tx", "find", "totals", "orders:2", root=root)
    assert found["txid"] == 2
    (found,) = airflow.json("tx", "find", "orders", "totals:2", "--dag-id", "orders_dag", root=root)
    assert found["txid"] == 2
    told = airflow.json("tx", "verify", "totals", "--chain", root=root)
    notes = [each["text"] for each in told if each["kind"] == "note"]
    behind = "totals: transaction 1 is behind a correction of orders 1 (4 counts): its restatement is requested"
    assert behind in notes
    assert "chain: totals reads orders" in notes
    (found,) = airflow.json("tx", "find", "totals", "orders:1", root=root)
    assert found["txid"] == 1


def test_find_names_the_upstream_topology_if_another_topology_is_given(
    airflow: Commands, chain: Chain, zookeeper_root: str
) -> None:
    for what in ("orders:4", "nope:1", "orders:", "1-2"):
        told = one_line(airflow.run("tx", "find", "totals", what, root=zookeeper_root, fails=True))
        assert told.startswith(f"No final transaction of totals has '{what}'; receipts go back to transaction 1")
        assert told.endswith("; its source reads topology orders: search for orders:TXID.") == (what[:7] != "orders:")
    told = one_line(airflow.run("tx", "verify", "totals", "--from", "3", root=zookeeper_root, fails=True))
    assert told == "--from = 3 cannot be used. Give a transaction up to 2, the last transaction to compare."


def test_every_command_reports_that_a_reader_of_a_reset_upstream_topology_cannot_continue(
    airflow: Commands, chain: Chain, zookeeper_root: str
) -> None:
    orders, root = chain.orders, zookeeper_root
    record = replace(orders.ledger.topology(), incarnation="0123456789abcdef")
    orders.store.multi([], [Put(orders.paths.record, encode(record))])
    problem = "topology 'orders' was reset after transaction 2 was read"
    tried = airflow.tried("tx", "verify", "totals", "--chain", root=root)
    assert tried.code == 1
    assert f"totals: {problem}" in tried.output
    (totals,) = (each for each in airflow.json("tx", "list", "--no-lag", root=root) if each["topology"] == "totals")
    assert totals["reads"] == f"orders, it cannot continue: {problem}"
    (shown,) = airflow.json("tx", "show", "orders", "2", root=root)
    assert shown["downstream"] == "totals: not read yet"


def test_a_preview_of_delete_or_reset_names_the_topologies_downstream(
    airflow: Commands, chain: Chain, zookeeper_root: str
) -> None:
    of_dag = ("--dag-id", "orders_dag", "--why", "over", "--dry-run")
    (told,) = airflow.json("tx", "delete", "orders", *of_dag, root=zookeeper_root)
    assert "Delete ledger and journal of topology orders" in told["done"]
    assert "Topologies that read it: totals. They cannot continue: reset them." in told["done"]
    told = airflow.json("tx", "repair", "orders", "--reset", *of_dag, root=zookeeper_root)
    assert "Topologies that read it: totals. Reset them, too." in [each["done"] for each in told]


def test_a_transaction_that_stays_behind_is_a_finding_until_a_person_restates_it(
    airflow: Commands, chain: Chain, runs: Runs, zookeeper_root: str, pool: ThreadPoolExecutor
) -> None:
    root = zookeeper_root
    chain.request()
    chain.totals.skip(chain.totals.begin("t1").txid)
    tried = airflow.tried("tx", "verify", "totals", "--chain", root=root)
    assert tried.code == 1
    assert "its restatement was skipped or withdrawn" in tried.output
    command = pool.submit(airflow.run, "tx", "restate", "totals", "--follow", root=root)
    while runs.states()["t1"] == "success" and not command.done():
        time.sleep(0.05)
    assert [each.why for each in chain.totals.ledger.wishes()] == ["upstream 1 restated by 4"]
    chain.follow(1)
    assert "All 1 transactions are restated." in command.result(300)
    assert chain.found().behind == ()


def test_restate_follow_reports_that_no_transaction_is_behind(
    airflow: Commands, chain: Chain, runs: Runs, zookeeper_root: str
) -> None:
    chain.request()
    chain.follow(1)
    (done,) = airflow.json("tx", "restate", "totals", "--follow", root=zookeeper_root)
    assert done["done"] == "No transaction of topology totals is behind a correction of orders."
    told = airflow.run("tx", "restate", "totals", "1", "--follow", root=zookeeper_root, fails=True)
    assert one_line(told) == (
        "--follow finds the transactions itself. Leave out txids, --from, --to, --changed-rows, --withdraw and --stale."
    )


def test_verify_reports_topologies_that_read_each_other(
    airflow: Commands, chain: Chain, runs: Runs, zookeeper_root: str
) -> None:
    orders = chain.orders
    record = replace(orders.ledger.topology(), upstream="totals", dag_id="gone")
    orders.store.multi([], [Put(orders.paths.record, encode(record))])
    tried = airflow.tried("tx", "verify", "totals", "--chain", root=zookeeper_root)
    assert tried.code == 1
    assert "chain: topologies read each other: totals, which reads orders, which reads totals" in tried.output
    assert "note: orders: rows of its upstream table were not compared: " in tried.output
