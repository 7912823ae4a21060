"""`airflow tx verify`, `find` and `receipts` as a person types them, on a ledger in ZooKeeper and a state in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.ledger.api import Delete, Paths, Put, SystemClock, SystemIds
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.ledger.records import Binding, encode
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.outputs.journal import Entry, JournalArea
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import SqlState, Sum
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline

_DAG = """
from pathlib import Path
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.sources import TransactionalSource
from airflow_tx.state import SqlState, Sum

class Numbers(TransactionalSource):
    def serialize(self):
        return "numbers", {}
    def initialize_transaction(self, txid, position):
        return None
    def emit_batch(self, attempt, metadata, spark=None):
        if metadata == 4:
            raise RuntimeError("row 4 is gone")
        return [{"n": metadata}] * (2 if Path(__file__).with_name("twice").exists() else 1)
    def contains(self, metadata, what):
        return str(metadata) == what

with DAG("dag", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(), topology="flights"):
        @task
        def count():
            return []
        state = SqlState("tx_state", table="words", keys=["key"], values={"n": Sum()})
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(), state=state)])
"""
TXIDS = 5


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    commands.begin({"the_dag.py": _DAG})
    return commands


@pytest.fixture
def root(airflow: Commands, store: ZooKeeperStore, zookeeper_root: str) -> str:
    """Of a ledger of some transactions."""
    Path(airflow.database).unlink(missing_ok=True)
    (airflow.dags / "twice").unlink(missing_ok=True)
    pipeline = pipeline_of(airflow, store, zookeeper_root)
    for number in range(TXIDS):
        pipeline.run(f"run {number + 1}")
    return zookeeper_root


def pipeline_of(airflow: Commands, store: ZooKeeperStore, root: str) -> Pipeline:
    url = f"sqlite:///{airflow.database}"
    state = SqlState.from_url(url, table="words", keys=["key"], values={"n": Sum()}, label="tx_state")
    return Pipeline(store, root, [state], added=["n"], journals=True)


def findings(airflow: Commands, root: str, *arguments: str) -> list[str]:
    """What `verify` finds; it ends with 1 if that is something."""
    code, output, _ = airflow._answer(("tx", "verify", "flights", *arguments), root)
    *found, summary = [line for line in output.splitlines() if not line.startswith("note: ")]
    assert code == (1 if found else None), (code, output)
    assert summary.startswith("Topology flights: ")
    return found


def execute(airflow: Commands, statement: str) -> None:
    with closing(sqlite3.connect(airflow.database)) as connection, connection:
        assert connection.execute(statement).rowcount == 1


def test_verify_confirms_an_unchanged_topology(airflow: Commands, root: str) -> None:
    told = airflow.run("tx", "verify", "flights", root=root)
    assert told == "Topology flights: transactions 1 to 5 agree with their receipts.\n"
    later = airflow.run("tx", "verify", "flights", "--from", "3", root=root)
    assert later == (
        "Topology flights: transactions 3 to 5 agree with their receipts. Earlier transactions cannot be checked.\n"
    )


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE airflow_tx_receipts SET attempt = 2 WHERE txid = 3", "transaction 3: its receipt in state"),
        (
            "UPDATE airflow_tx_receipts SET receipt = replace(receipt, '\"keys\":1', '\"keys\":2') WHERE txid = 3",
            "transaction 3: its receipt in state",
        ),
        ("DELETE FROM airflow_tx_receipts WHERE txid = 1", "transaction 1: its receipt in state tx_state.words is"),
        ("UPDATE airflow_tx_fence SET epoch = 9", "state tx_state.words: its fence says epoch 9"),
        ("UPDATE airflow_tx_fence SET txid = 4", "state tx_state.words: its fence says transaction 4"),
        ("DELETE FROM airflow_tx_fence", "state tx_state.words: it has no fence"),
    ],
)
def test_verify_finds_a_change_in_the_database(airflow: Commands, root: str, statement: str, finding: str) -> None:
    execute(airflow, statement)
    (found,) = findings(airflow, root)
    assert found.startswith(finding)


@pytest.mark.parametrize(
    ("path", "change", "finding"),
    [
        ("history/3", {"attempt": 2}, "transaction 3: the ledger says attempt 2, its receipt 1"),
        ("coordinator/meta/5", {"position": 4}, "ledger: it continues at 4, and transaction 5 ended at 5"),
        ("topology", {"receipt": "0"}, "ledger: the last receipt is of transaction 5"),
    ],
)
def test_verify_finds_a_change_in_zookeeper(
    airflow: Commands, store: ZooKeeperStore, root: str, path: str, change: dict[str, Any], finding: str
) -> None:
    node = store.get(f"{root}/flights/{path}")
    assert node is not None
    store.multi([], [Put(f"{root}/flights/{path}", json.dumps({**json.loads(node.data), **change}).encode())])
    (found,) = findings(airflow, root)
    assert found.startswith(finding)


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "of another type": (lambda data: data.replace(b'"attempt":1', b'"attempt":"two"'), 'attempt = "two"'),
    "not known": (lambda data: data[:-1] + b',"later":5}', '{"later":5}'),
    "cut off": (lambda data: data[:-9], "it is not a record"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_verify_reports_an_unreadable_history_record_as_one_finding(
    airflow: Commands, store: ZooKeeperStore, root: str, damage: str
) -> None:
    damaged(store, f"{root}/flights/history/3", damage)
    (found,) = findings(airflow, root)
    assert found.startswith("transaction 3: its record cannot be read: ")
    assert DAMAGED[damage][1] in found


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize(
    "arguments",
    [
        ("receipts", "flights"),
        ("find", "flights", "3"),
        ("show", "flights", "3"),
        ("repair", "flights", "--roll-forward", "--why", "x", "--yes"),
        ("repair", "flights", "--state-lost", "tx_state.words", "--why", "x", "--yes"),
    ],
    ids=" ".join,
)
def test_a_command_names_the_path_and_field_of_a_damaged_record_and_writes_nothing(
    airflow: Commands, store: ZooKeeperStore, root: str, damage: str, arguments: tuple[str, ...]
) -> None:
    path = f"{root}/flights/history/3"
    damaged(store, path, damage)
    before = stored(store, root)
    refused, _, _ = airflow._answer(("tx", *arguments), root)
    (line,) = str(refused).splitlines()
    assert line.startswith(f"Record {path} cannot be read: ")
    assert DAMAGED[damage][1] in line
    assert line.endswith("restore the node, or upgrade airflow-provider-tx if a newer version wrote it.")
    assert stored(store, root) == before


def damaged(store: ZooKeeperStore, path: str, damage: str) -> None:
    node = store.get(path)
    assert node is not None
    store.multi([], [Put(path, DAMAGED[damage][0](node.data))])


def stored(store: ZooKeeperStore, path: str) -> dict[str, bytes]:
    """Everything below a path."""
    node, children = store.get(path), store.children(path)
    found = {} if node is None else {path: node.data}
    for name in children.names if children else ():
        found |= stored(store, f"{path}/{name}")
    return found


def test_verify_finds_a_changed_journal_entry(
    airflow: Commands, root: str, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", airflow.environment["AIRFLOW_HOME"])
    area = StagingArea.of_ledger("zookeeper_default", root)
    ledger = Ledger(store, Paths(root, "flights"), clock=SystemClock(), ids=SystemIds())
    journal = JournalArea(area, ledger.incarnation())
    today = datetime.now(timezone.utc)

    def bind(run: int, *, key: str = "", days: int = 0) -> str:
        written = (today - timedelta(days=days)).isoformat()
        own = key or f"run {run}"
        entry = Entry("flights", ledger.incarnation(), run, 1, "", own, own, written, written, run, ("numbers", {}))
        store.multi((), [Put(ledger.paths.run(f"run {run}"), encode(Binding(run, entry.name)))])
        return journal.write(entry)

    def of_entries(*options: str) -> list[str]:
        # The receipts of this ledger name other entries, which is a finding of its own.
        return [line for line in findings(airflow, root, *options) if "names the journal entry" not in line]

    first, *_ = [bind(1), bind(2), bind(3, days=31)]
    assert of_entries() == []
    area.files.write(f"{ledger.incarnation()}/@journal/{first}", b"{}")
    area.files.remove_tree(f"{ledger.incarnation()}/@journal/{(today - timedelta(days=31)).date()}")
    (found,) = of_entries()
    assert found.startswith(f"transaction 1: Entry {first} of the journal cannot be used: ")
    assert "Restore that file from a backup" in found
    area.files.remove_tree(f"{ledger.incarnation()}/@journal")
    assert [line.partition(":")[0] for line in of_entries()] == ["transaction 1", "transaction 2"]
    assert of_entries("--from", "3") == []
    bind(1)
    bind(2, key="another run")
    (found,) = of_entries()
    assert found.endswith(" of key run 2 belongs to transaction 2 and key another run")


def test_verify_values_reports_a_changed_value_because_the_total_of_its_column_differs(
    airflow: Commands, root: str
) -> None:
    assert findings(airflow, root, "--values") == []
    execute(airflow, "UPDATE words SET n = n + 1")
    assert findings(airflow, root) == []
    assert findings(airflow, root, "--values") == [
        "state tx_state.words: its column n adds up to 16, and its receipts to 15"
    ]


def test_an_accepted_change_is_only_a_note_and_the_next_change_is_a_finding(airflow: Commands, root: str) -> None:
    accept = ("tx", "accept-change", "flights", "--state", "tx_state.words")
    code, _, refused = airflow._answer((*accept, "--why", "none", "--yes"), root)
    assert code != 0
    assert "not accepted: its values match its receipts. Nothing was changed." in f"{code}{refused}"
    execute(airflow, "UPDATE words SET n = n - 5")
    said = "column n adds up to 10, and its receipts to 15"
    assert said in airflow.run(*accept, "--dry-run", root=root)
    assert findings(airflow, root, "--values") == [f"state tx_state.words: its {said}"]
    late = ("--after", "1")  # the person made it when transaction 1 was the last one
    assert f"accepted: {said}" in airflow.run(*accept, *late, "--why", "a customer's right", "--yes", root=root)
    assert findings(airflow, root, "--values") == []
    told = airflow.run("tx", "verify", "flights", "--values", root=root)
    assert "note: state tx_state.words: its values were changed on purpose, the total of n by -5 (" in told
    assert "a customer's right" in told
    execute(airflow, "UPDATE words SET n = n + 1")
    said = "column n adds up to 11, and its receipts to 10"
    assert findings(airflow, root, "--values") == [f"state tx_state.words: its {said}"]
    assert f"accepted: {said}" in airflow.run(*accept, "--why", "once more", "--yes", root=root)
    assert findings(airflow, root, "--values") == []


def test_verify_recount_reports_batches_whose_source_rows_have_changed(airflow: Commands, root: str) -> None:
    assert findings(airflow, root, "--recount", "3") == []
    told = airflow.run("tx", "verify", "flights", "--recount", "3", root=root)
    assert "note: transaction 4: it could not be recounted: row 4 is gone" in told.splitlines()
    assert "the number of its rows is unchanged; its receipt has no digest of" in told
    (airflow.dags / "twice").touch()
    for more, txids in (((), (3, 5)), (("--to", "4"), (2, 3))):
        found = findings(airflow, root, "--recount", "3", *more)
        begins = [f"transaction {txid}: the source has 2 rows, digest " for txid in txids]
        assert [each[: len(begin)] for each, begin in zip(found, begins, strict=True)] == begins
        assert all(each.endswith(" now, and 1 row was counted") for each in found)


def test_the_find_command_prints_the_transaction_that_counted_a_row(airflow: Commands, root: str) -> None:
    (found,) = airflow.json("tx", "find", "flights", "3", root=root)
    assert (found["txid"], found["run_id"], found["written"]) == (3, "run 3", "tx_state.words: 1 keys")
    told = airflow.run("tx", "find", "flights", "9", root=root, fails=True)
    assert told == "No final transaction of flights has '9'; receipts go back to transaction 1."


def test_the_receipts_command_prints_complete_receipts_as_json(airflow: Commands, root: str) -> None:
    found = airflow.json("tx", "receipts", "flights", "--from", "2", "--to", "3", root=root)
    read = [Receipt.from_json(each) for each in found]
    assert [(each.txid, each.hash) for each in read] == [(each["txid"], each["hash"]) for each in found]
    assert read[1].previous == read[0].hash


def test_every_command_names_the_restatement_of_a_restated_transaction(
    airflow: Commands, store: ZooKeeperStore, root: str
) -> None:
    pipeline = pipeline_of(airflow, store, root)
    pipeline.begins_as = "again"
    assert pipeline.restate(3, "run 3", 10) == 6
    lines = {each["txid"]: each["note"] for each in airflow.json("tx", "list", "flights", root=root)}
    assert (lines[3], lines[6]) == ("restated by 6", "restates 3: a bug (ada)")
    (shown,) = airflow.json("tx", "show", "flights", "3", root=root)
    assert shown["restated_by"] == 6
    found = airflow.json("tx", "find", "flights", "3", root=root)
    assert [(each["txid"], each["restates"], each["restated_by"]) for each in found] == [
        (3, None, 6),
        (6, 3, None),
    ]
    (receipt,) = airflow.json("tx", "receipts", "flights", "--from", "6", root=root)
    assert (receipt["replaces"]["txid"], receipt["journal"][:13]) == (3, "2013-01-01/6-")
    assert findings(airflow, root, "--values") == []


def test_verify_recount_does_not_report_changed_source_rows_of_a_restated_transaction(
    airflow: Commands, store: ZooKeeperStore, root: str
) -> None:
    pipeline = pipeline_of(airflow, store, root)
    pipeline.begins_as = "again"
    pipeline.restate(3, "run 3", 10)
    (airflow.dags / "twice").touch()
    alone = ("--from", "3", "--to", "3", "--recount", "1")
    assert findings(airflow, root, *alone) == []
    told = airflow.run("tx", "verify", "flights", *alone, root=root)
    assert "now, and 1 row was counted; transaction 6 has restated it" in told
    (airflow.dags / "twice").unlink()


def test_the_show_command_reads_a_transaction_that_left_the_history_from_its_journal_entry(
    airflow: Commands, store: ZooKeeperStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", airflow.environment["AIRFLOW_HOME"])
    ledger = pipeline_of(airflow, store, root).ledger
    journal = JournalArea(StagingArea.of_ledger("zookeeper_default", root), ledger.incarnation())
    written = datetime.now(timezone.utc).isoformat()
    own = Entry("flights", ledger.incarnation(), 2, 1, "", "run 2", "run 2", written, written, 2, ("numbers", {}))
    counts = encode(Binding(2, journal.write(own)))
    store.multi([], [Delete(ledger.paths.history(2)), Put(ledger.paths.run("run 2"), counts)])
    (shown,) = airflow.json("tx", "show", "flights", "2", root=root)
    assert (shown["run_id"], shown["status"], shown["batch"]) == ("run 2", "COMMITTED", 2)
    told = airflow.run("tx", "show", "flights", "77", root=root, fails=True)
    assert "transaction 77 of topology 'flights'" in told


def test_a_table_of_receipts_fits_into_a_narrow_terminal(airflow: Commands, root: str) -> None:
    for command in (("receipts", "flights"), ("find", "flights", "3")):
        told = airflow.run("tx", *command, root=root)
        assert max(map(len, told.splitlines())) <= 80


def test_verify_strict_fails_if_a_repair_has_given_up_transactions(airflow: Commands, root: str) -> None:
    execute(airflow, "DELETE FROM airflow_tx_receipts WHERE txid = 5")
    airflow.run(
        "tx", "repair", "flights", "--state-lost", "tx_state.words", "--unseen", "--why", "a test", "--yes", root=root
    )
    assert findings(airflow, root) == []
    (told,) = findings(airflow, root, "--strict")
    assert told.startswith("state tx_state.words: transactions 5 to 5 were given up by repair 1 (")


def test_verify_prints_its_findings_as_json(airflow: Commands, root: str) -> None:
    told = airflow.json("tx", "verify", "flights", root=root)
    assert [each["kind"] for each in told] == ["result"]
    execute(airflow, "DELETE FROM airflow_tx_receipts WHERE txid = 1")
    tried = airflow.tried("tx", "verify", "flights", "--output", "json", root=root)
    assert tried.code == 1
    first, last = json.loads(tried.output)[0], json.loads(tried.output)[-1]
    assert first["kind"] == "finding"
    assert first["text"].startswith("transaction 1: its receipt in state tx_state.words is")
    assert last["kind"] == "result"


def test_find_without_a_topology_searches_all_topologies(airflow: Commands, store: ZooKeeperStore, root: str) -> None:
    other = Pipeline(store, root, topology="orders")
    other.metadata = lambda row: {"files": [{"name": f"{'x' * 200}2026-05-0{row}.csv"}]}
    other.run("run 7")
    other.run("run 8")
    found = airflow.json("tx", "find", "RUN 7", root=root)
    assert [(each["topology"], each["txid"], each["matched"]) for each in found] == [("orders", 1, "run")]
    assert {each["topology"] for each in airflow.json("tx", "find", "run", root=root)} == {"flights", "orders"}
    shown = airflow.run("tx", "find", "2026-05-02", root=root)
    assert "2026-05-02" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_find_reports_how_many_transactions_it_read_if_none_matches(airflow: Commands, root: str) -> None:
    said = airflow.run("tx", "find", "nowhere", root=root, fails=True)
    assert said.startswith(
        "No transaction has 'nowhere' in its txid, run, batch or errors. Searched: 5 transactions of 1"
    )
    assert airflow.run("tx", "find", " ", root=root, fails=True).startswith("Give the text to find")
