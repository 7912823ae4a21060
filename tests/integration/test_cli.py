"""`airflow tx …` as a person types it, on a real ZooKeeper, with states in SQLite that the DAG file names."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from airflow_tx.base.errors import FenceForeign, StateBehind, StateRenamed
from airflow_tx.ledger.api import Create, Delete, Put
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import Sum
from airflow_tx.state.sql.state import SqlState
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.integration.commands import DAG, Commands
from tests.integration.pipeline import Pipeline


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    commands.begin({"the_dag.py": DAG})
    return commands


def state_in(airflow: Commands, table: str) -> SqlState:
    url = f"sqlite:///{airflow.database}"
    return SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}, label="tx_state")


@pytest.fixture
def pipeline(airflow: Commands, zookeeper: LocalZooKeeper, zookeeper_root: str) -> Iterator[Pipeline]:
    client = connect(ClientConfig(zookeeper.hosts))
    states = [state_in(airflow, table) for table in ("one", "two")]
    yield Pipeline(ZooKeeperStore(client), zookeeper_root, states)
    for state in states:
        state.clear()
    if client.exists(zookeeper_root):
        client.delete(zookeeper_root, recursive=True)
    disconnect(client)


@pytest.mark.worth("starts the Airflow of all commands")
def test_the_list_and_show_commands_print_the_content_of_the_ledger(
    airflow: Commands, pipeline: Pipeline, zookeeper: LocalZooKeeper, zookeeper_root: str
) -> None:
    root = zookeeper_root
    assert airflow.run("tx", "list", root=root).strip() == "No data found"
    pipeline.run("r1")
    pipeline.process(pipeline.begin("r2"))
    pipeline.begin("r3")

    (topology,) = airflow.json("tx", "list", root=root)
    assert topology.items() >= {"topology": "flights", "dag_id": "dag", "next_commit": 2, "open": 2}.items()
    third, second, first = airflow.json("tx", "list", "flights", root=root)
    assert (first["txid"], first["status"], first["rows"]) == (1, "COMMITTED", 1)
    assert (second["status"], second["waiting_for"]) == ("PROCESSED", "its committer")
    assert (third["status"], third["waiting_for"]) == ("PROCESSING", "an ack of task0")
    (shown,) = airflow.json("tx", "show", "flights", "2", root=root)
    assert shown.items() >= {"run_id": "r2", "ack_val": "0" * 16, "batch": 2, "acks": "task0: acked"}.items()
    (shown,) = airflow.json("tx", "show", "flights", "--no-lag", root=root)
    assert shown["rotating_state"] == f"{root}/flights/coordinator/meta"
    assert "COMMITTED" in airflow.in_a_process("tx", "list", "flights", root=root)

    # Another connection, kept in Airflow's database.
    host, port = zookeeper.hosts.split(":")
    kept = ("--conn-type", "zookeeper", "--conn-host", host, "--conn-port", port)
    airflow.run("connections", "add", "zk_in_database", *kept, root=root)
    (again,) = airflow.json("tx", "list", "--conn-id", "zk_in_database", root=root)
    assert again == topology


def test_the_list_command_with_a_status_prints_only_transactions_or_topologies_of_this_status(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    root = zookeeper_root
    pipeline.run("r1")
    pipeline.begin("r2")
    broken = Pipeline(pipeline.store, root, topology="broken")
    broken.begin("r1")
    pipeline.store.multi([], [Put(broken.paths.record, b'{"format": 99}')])
    (unreadable,) = airflow.json("tx", "list", "--status", "unreadable", "--no-lag", root=root)
    assert unreadable["topology"] == "broken"
    (fine,) = airflow.json("tx", "list", "--status", "fine", "--no-lag", root=root)
    assert fine["topology"] == "flights"
    for state, txids in (("open", ["2"]), ("processing", ["2"]), ("committed", ["1"]), ("skipped", [])):
        listed = airflow.run("tx", "list", "flights", "--status", state, "--output", "plain", root=root)
        assert [line.split()[0] for line in listed.splitlines()[1:]] == txids, (state, listed)
    assert "Give one of blocked, unreadable, failed" in airflow.run(
        "tx", "list", "--status", "red", root=root, fails=True
    )


@pytest.mark.worth("a watch that a person ends")
def test_the_list_command_with_the_watch_option_repeats_until_it_is_interrupted(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    pipeline.run("r1")
    command = [sys.executable, "-m", "airflow", "tx", "list", "--watch", "--root", zookeeper_root]
    environment = {**os.environ, **airflow.environment}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lists = (line for line in process.stdout if line.startswith("flights"))
        assert next(lists) == next(lists)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 0


def test_the_list_command_shows_the_other_topologies_if_one_topology_is_unreadable(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    pipeline.run("r1")
    broken = Pipeline(pipeline.store, zookeeper_root, topology="broken")
    broken.begin("r1")
    pipeline.store.multi([], [Put(broken.paths.record, b'{"format": 99}')])
    listed = airflow.json("tx", "list", root=zookeeper_root)
    assert [(each["topology"], each["next_commit"]) for each in listed] == [("broken", None), ("flights", 2)]
    assert listed[0]["problem"].startswith(f"Record {broken.paths.record} cannot be read: it has format 99")
    assert listed[0].keys() == listed[1].keys()
    assert listed[1]["problem"] is None


def test_a_command_with_an_unknown_name_fails_with_one_line(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    root = zookeeper_root
    for arguments, said in (
        (("list", "nosuch"), "No topology 'nosuch' in the ledger"),
        (("show", "nosuch", "1"), "No topology 'nosuch' in the ledger"),
        (("list", "--conn-id", "nosuch"), "zookeeper_conn_id = 'nosuch' cannot be used."),
        (("skip", "nosuch", "1"), "Give the reason, which the ledger keeps: airflow tx skip nosuch 1 --why TEXT"),
        (("replay", "nosuch", "1"), "No topology 'nosuch' in the ledger"),
        (
            ("backfill", "nosuch", "--from", "2026-01-01", "--to", "2026-01-02"),
            "DAG = 'nosuch' cannot be used. No DAG file defines it.",
        ),
        (("diff", "nosuch:a", "nosuch:b"), "DAG:STATE = 'nosuch' cannot be used. No DAG file defines it."),
        (
            ("backfill", "nosuch", "--from", "2026-01-01", "--to", "2026-01-02"),
            "DAG = 'nosuch' cannot be used. No DAG file defines it.",
        ),
        (("diff", "nosuch:a", "nosuch:b"), "DAG:STATE = 'nosuch' cannot be used. No DAG file defines it."),
        (("repair", "nosuch"), "Give exactly one of"),
        (
            ("repair", "nosuch", "--reset"),
            "Give the reason, which the ledger keeps: airflow tx repair nosuch --reset --why TEXT",
        ),
        (("repair", "nosuch", "--ledger-lost", "--yes"), "--dag-id = 'nosuch' cannot be used. No DAG file defines it."),
    ):
        told = airflow.run("tx", *arguments, root=root, fails=True).strip().splitlines()
        assert len(told) == 1, told
        assert told[0].startswith(said)
        assert "--dag-id" not in told[0] or arguments[0] == "repair"


def test_a_command_with_an_unknown_txid_reports_the_txid_and_not_the_topology(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    pipeline.run("r1")
    for arguments in (("replay", "flights", "99"), ("show", "flights", "99"), ("skip", "flights", "99", "--why", "x")):
        told = airflow.run("tx", *arguments, root=zookeeper_root, fails=True).strip()
        assert told.startswith("No transaction 99 of topology 'flights' in the ledger at ")
        assert told.endswith("To see the transactions that there are: airflow tx list flights")


@pytest.mark.parametrize("command", ["skip", "readmit", "accept-loss", "rename", "delete"])
def test_the_help_shows_a_required_reason_without_brackets(airflow: Commands, command: str) -> None:
    # A parser that has read a command line before shows brackets.
    shown = "from airflow.cli.cli_parser import get_parser as parser; parser.__wrapped__().parse_args(arguments)"
    told = airflow.tried("python", shown, "tx", command, "--help", root="/unused").output
    usage = told.lower().partition("positional")[0]
    assert "--why text" in usage
    assert "[--why text]" not in usage


def test_the_delete_command_prints_its_result_as_json(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    pipeline.begin("r1")
    delete = ("tx", "delete", "flights", "--why", "over", "--yes")
    (told,) = airflow.json(*delete, "--dry-run", root=zookeeper_root)
    assert told["done"].startswith("Dry run: Delete ledger and journal of topology flights")
    (told,) = airflow.json(*delete, root=zookeeper_root)
    assert told["done"].startswith("Deleted: topology flights.")


def test_the_exit_code_distinguishes_success_refusals_and_usage_errors(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    pipeline.run("r1")
    root, reset = zookeeper_root, ("repair", "flights", "--reset", "--dag-id", "the_dag")
    for code, arguments in (
        (0, ("list",)),
        (0, ("list", "flights")),
        (0, (*reset, "--dry-run")),
        (1, ("list", "nosuch")),
        (1, ("list", "--root", "/nosuch")),
        (1, ("list", "--conn-id", "nosuch")),
        (1, ("show", "flights", "99999999")),
        (1, ("replay", "flights", "1")),
        (1, ("find", "flights", "nosuch.csv")),
        (1, (*reset, "--why", "from the start")),  # nobody confirms it
        (2, ("nosuch",)),
        (2, ("list", "--nosuch")),
        (2, ("show", "flights", "one")),
        (2, ("list", "flights", "--limit", "-5")),
        (2, ("verify", "flights", "--recount", "-1")),
        (2, ("state", "get", "flights", "tx_state.one", "--limit", "-5")),
        (2, ("delete", "flights")),
        (0, ("delete", "flights", "--dry-run")),
        (2, ("replay", "flights")),
        (2, ("replay", "flights", "1", "--failed")),
        (2, ("skip", "flights", "1")),
        (2, ("repair", "flights")),
        (2, ("repair", "flights", "--ledger-lost", "--restate")),
        (2, (*reset, "--yes")),
    ):
        assert airflow.exit_code("tx", *arguments, root=root) == code, arguments
    assert pipeline.totals() == [1, 1]
    assert airflow.exit_code("tx", "list", root="/nothing_yet") == 0
    assert "There is no topology below /nothing_yet" in airflow.told("tx", "list", root="/nothing_yet")


def test_a_lost_state_is_accepted_only_after_a_person_confirms_it(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    root = zookeeper_root
    pipeline.run("r1")
    pipeline.states[0].clear()
    with pytest.raises(StateBehind, match=r"airflow tx repair flights --state-lost tx_state\.one"):
        pipeline.run("r2")
    unseen = ("tx", "repair", "flights", "--state-lost", "tx_state.one")
    repair = (*unseen, "--unseen")
    assert " ".join(repair) in airflow.run(*unseen, root=root, fails=True)
    assert "Nothing was changed. To confirm without a terminal, add --yes." in airflow.run(
        *repair, root=root, fails=True
    )
    with pytest.raises(StateBehind):
        pipeline.run("r2")
    told = airflow.run(*repair, "--yes", "--why", "the disk died", root=root)
    assert told.startswith("Repaired: state tx_state.one was at transaction 1")
    pipeline.run("r2")
    assert pipeline.totals() == [2, 3]


def test_repair_rebuilds_a_lost_ledger_from_the_states_and_a_reset_empties_the_states(
    airflow: Commands,
    pipeline: Pipeline,
    zookeeper_root: str,
    zookeeper: LocalZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = zookeeper_root
    pipeline.run("r1")
    pipeline.run("r2")
    client = connect(ClientConfig(zookeeper.hosts))
    client.delete(root, recursive=True)
    disconnect(client)
    with pytest.raises(FenceForeign, match="airflow tx repair flights --ledger-lost"):
        pipeline.run("r3")
    monkeypatch.setenv("AIRFLOW_HOME", airflow.environment["AIRFLOW_HOME"])
    staged = StagingArea.of_ledger("zookeeper_default", root).files
    staged.write(f"{pipeline.ledger.incarnation()}/@taken/queue/messages/0/m", b"")
    # The DAG that the new ledger knows is this test's.
    repair = ("tx", "repair", "flights", "--ledger-lost", "--dag-id", "the_dag")
    asked = airflow.run(*repair, root=root, fails=True)
    where = f"topology flights in ZooKeeper {zookeeper.hosts} (connection zookeeper_default)"
    assert f"{where} (tx_state.one: transaction 2; tx_state.two: transaction 2)" in asked
    assert "transaction 3 commits next" in airflow.run(*repair, "--yes", root=root)
    assert pipeline.run("r3") == 3
    assert pipeline.totals() == [6, 6]
    assert list(staged.list(f"{pipeline.ledger.incarnation()}/@taken/queue/messages/0"))

    reset = ("tx", "repair", "flights", "--reset", "--dag-id", "the_dag", "--why", "from the start")
    asked = airflow.run(*reset, root=root, fails=True)
    assert "DELETE ALL VALUES of its states: tx_state.one, tx_state.two." in asked
    assert pipeline.totals() == [6, 6]
    life = pipeline.ledger.incarnation()
    staged.write(f"{life}/@taken/queue/committed/1/0", b"")
    staged.write(f"{life}/@journal/2013-01-31/entry", b"")
    staged.write("of another one/flights/1/output", b"")
    airflow.run(*reset, "--yes", root=root)
    assert not staged.list(life)
    assert list(staged.list("of another one/flights/1")) == ["output"]
    pipeline.request = TopologyRequest("the_dag", "transactional", 1)
    assert pipeline.run("r1") == 1
    assert pipeline.totals() == [1, 1]


def test_a_reset_changes_nothing_while_a_state_cannot_be_reached(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.run("r1")
    nowhere = json.dumps({"conn_type": "sqlite", "host": "/nowhere/state.db"})
    monkeypatch.setitem(airflow.environment, "AIRFLOW_CONN_TX_STATE", nowhere)
    reset = ("tx", "repair", "flights", "--reset", "--dag-id", "the_dag", "--why", "from the start", "--yes")
    (told,) = airflow.run(*reset, root=zookeeper_root, fails=True).strip().splitlines()
    assert told.startswith("Repair --reset of topology 'flights' refused: state 'tx_state.one' cannot be read (")
    assert "Nothing was changed. Make sure that its store can be reached" in told
    assert pipeline.run("r2") == 2
    assert pipeline.totals() == [3, 3]


# --- --dry-run of what repairs ------------------------------------------------------------------------------------


def everything(pipeline: Pipeline) -> dict[str, tuple[bytes, int]]:
    """Every record of the ledger, with its version."""
    found, paths = dict[str, tuple[bytes, int]](), [pipeline.paths.base]
    while paths:
        node, children = pipeline.store.get(path := paths.pop()), pipeline.store.children(path)
        if node is not None and children is not None:
            found[path] = (node.data, node.version)
            paths += [f"{path}/{name}" for name in children.names]
    return found


def renames(airflow: Commands, *statements: str) -> None:
    """Do in the database what a person does who renames a table."""
    with sqlite3.connect(airflow.database) as database:
        for statement in statements:
            database.execute(statement)


def restore(pipeline: Pipeline, before: dict[str, tuple[bytes, int]]) -> None:
    """Let the ledger go back to what it was."""
    now = everything(pipeline)
    for path in sorted(now.keys() - before.keys(), reverse=True):
        pipeline.store.multi([], [Delete(path)])
    for path, (data, _) in before.items():
        pipeline.store.multi([], [Put(path, data)] if path in now else [Create(path, data)])


@pytest.mark.parametrize(
    ("command", "happens"),
    [
        (
            ("repair", "flights", "--state-lost", "tx_state.one", "--unseen"),
            "transaction 2: its grant is outranked; its commit begins again under a new grant",
        ),
        (
            ("repair", "flights", "--reset", "--dag-id", "the_dag"),
            "state tx_state.two: all of its values are deleted (tx_state.two: transaction 1)",
        ),
    ],
)
def test_a_dry_run_of_a_repair_prints_its_effects_and_changes_nothing(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str, command: tuple[str, ...], happens: str
) -> None:
    pipeline.run("r1")
    begun = pipeline.begin("r2")
    pipeline.acquire(begun, pipeline.process(begun))
    before, fences = everything(pipeline), [state.fence() for state in pipeline.states]
    told = airflow.run("tx", *command, "--dry-run", root=zookeeper_root)
    assert told.startswith("Dry run: ")
    assert told.splitlines()[0].endswith(" Nothing was changed.")
    effects = airflow.json("tx", *command, "--dry-run", root=zookeeper_root)
    (own,) = [each for each in effects if each["txid"] is not None]
    assert (own["txid"], own["run_id"]) == (2, "r2")
    assert happens in [f"transaction 2: {own['done']}", *(each["done"] for each in effects)]
    assert everything(pipeline) == before
    assert ([state.fence() for state in pipeline.states], pipeline.totals()) == (fences, [1, 1])
    done = airflow.run("tx", *command, "--why", "from the start", "--yes", root=zookeeper_root)
    summary, generation, following = effects[0]["done"].rsplit("; ", 2)
    assert done.strip().endswith(f": {summary}. {generation.capitalize()}; {following}.")
    assert everything(pipeline) != before


def test_repair_prints_its_result_as_json_rows(airflow: Commands, pipeline: Pipeline, zookeeper_root: str) -> None:
    pipeline.run("r1")
    reset = ("repair", "flights", "--reset", "--dag-id", "the_dag", "--why", "from the start", "--yes")
    (done,) = airflow.json("tx", *reset, root=zookeeper_root)
    assert (done["txid"], done["run_id"]) == (None, None)
    assert done["done"].startswith("the ledger and its states were emptied")


def test_state_forget_is_refused_if_the_dag_still_updates_the_state(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    pipeline.run("r1")
    before = everything(pipeline)
    forget = ("tx", "state", "forget", "flights", "tx_state.one", "--dag-id", "the_dag", "--yes")
    refused = airflow.run(*forget, root=zookeeper_root, fails=True)
    assert "\n" not in refused.strip()
    assert "is not changed: DAG the_dag updates state tx_state.one. Take the update out of the DAG first." in refused
    assert everything(pipeline) == before
    advised = shlex.split(refused.partition("If the values are lost: ")[2])[1:]
    airflow.run(*advised, "--dag-id", "the_dag", "--dry-run", root=zookeeper_root)
    (file,) = airflow.dags.glob("*.py")
    text = file.read_text()
    try:
        file.write_text(text.replace('persistent_aggregate(counted, state=state("one")), ', ""))
        assert "the topology continues without it" in airflow.run(*forget, root=zookeeper_root)
    finally:
        file.write_text(text)
    assert set(pipeline.ledger.topology().states) == {"tx_state.two"}


def test_a_dry_run_of_a_rebuild_lists_the_runs_that_begin_again_and_changes_nothing(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    pipeline.run("r1")
    before = everything(pipeline)
    pipeline.run("r2")
    restore(pipeline, before)
    pipeline.begin("r2")
    pipeline.begin("r3")
    command = ("tx", "repair", "flights", "--ledger-lost", "--dag-id", "the_dag")
    before = everything(pipeline)
    effects = airflow.json(*command, "--dry-run", root=zookeeper_root)
    assert effects[0]["done"].startswith("transaction 2 is complete in every state; 3 is next; generation 2; ")
    became = {each["run_id"]: (each["txid"], each["done"].partition(":")[0]) for each in effects[1:]}
    assert became == {"r2": (2, "closed"), "r3": (3, "forgotten")}
    assert everything(pipeline) == before
    airflow.run(*command, "--yes", root=zookeeper_root)
    with pytest.raises(AssertionError, match="AlreadyCommitted"):
        pipeline.begin("r2")
    assert pipeline.run("r3") == 3
    assert pipeline.totals() == [6, 6]


def test_a_dry_run_of_state_rename_reports_whether_the_fence_would_move(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    root, (new, two) = zookeeper_root, pipeline.states
    old = state_in(airflow, "old")
    renames(airflow, "DROP TABLE IF EXISTS one")
    pipeline.states = [old, two]
    pipeline.run("r1")
    command = ("tx", "state", "rename", "flights", "tx_state.old", "tx_state.one", "--dag-id", "the_dag")
    refused = airflow.run(*command, "--dry-run", root=root, fails=True)
    assert "there is no table one" in refused
    renames(airflow, "ALTER TABLE old RENAME TO one")
    before = everything(pipeline)
    assert "it takes over the fence, which is at transaction 1" in airflow.run(*command, "--dry-run", root=root)
    assert (everything(pipeline), new.fence()) == (before, None)
    airflow.run(*command, "--yes", root=root)
    with pytest.raises(StateRenamed):
        pipeline.run("r2")
    pipeline.states = [new, two]
    pipeline.run("r2")
    assert pipeline.totals() == [3, 3]


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_refused_state_rename_does_not_move_the_fence(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str, flags: tuple[str, ...]
) -> None:
    old = state_in(airflow, "elsewhere")
    old.clear()
    pipeline.states = [old, pipeline.states[1]]
    pipeline.run("r1")
    another = "UPDATE airflow_tx_fence SET incarnation = 'another' WHERE state LIKE '%elsewhere'"
    renames(airflow, another, "DROP TABLE IF EXISTS one", "ALTER TABLE elsewhere RENAME TO one")
    held = old.fence()
    assert held is not None
    command = ("tx", "state", "rename", "flights", "tx_state.elsewhere", "tx_state.one", "--dag-id", "the_dag")
    told = airflow.run(*command, "--yes", *flags, root=zookeeper_root, fails=True)
    assert "the fence of tx_state.one has transaction 1 of ledger another" in told
    assert old.fence() == held


def test_repair_back_is_refused_until_the_states_have_been_restored_to_the_older_transaction(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    root = zookeeper_root
    pipeline.run("r1")
    with sqlite3.connect(airflow.database) as connection:
        kept = list(connection.iterdump())
    pipeline.run("r2")
    command = ("tx", "repair", "flights", "--dag-id", "the_dag", "--back", "1", "--yes", "--why", "one backup of both")
    told = airflow.run(*command, root=root, fails=True)
    assert "names transaction 2.1, not 1" in " ".join(told.split())
    with sqlite3.connect(airflow.database) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            connection.execute(f"DROP TABLE {name}")
        connection.executescript("\n".join(kept))
    shown = " ".join(airflow.run(*command, "--dry-run", root=root).split())
    assert "Not taken back: acks that the source has received" in shown
    told = " ".join(airflow.run(*command, root=root).split())
    assert "transactions 2 to 2 are taken back; their runs begin again when they are cleared: r2" in told
    assert pipeline.run("r2") == 3


def test_the_ddl_command_prints_each_missing_statement_of_a_dag_once(airflow: Commands) -> None:
    airflow.begin({"the_dag.py": DAG})  # so that the database is empty
    printed = airflow.run("tx", "ddl", "the_dag", root="/unused").splitlines()
    assert printed[0] == "-- connection tx_state: run as the owner of the tables"
    made = [line.partition(" (")[0].split()[-1] for line in printed if line.startswith("CREATE TABLE")]
    assert sorted(made) == ["airflow_tx_fence", "airflow_tx_portions", "airflow_tx_receipts"]
    assert printed[-2:] == [
        f"-- table {table}: name the type of key in types= of the state" for table in ("one", "two")
    ]
    with closing(sqlite3.connect(airflow.database)) as owner:
        owner.executescript("\n".join(printed))
    assert "CREATE" not in airflow.run("tx", "ddl", "the_dag", root="/unused")
    assert "No DAG file defines it" in airflow.run("tx", "ddl", "nowhere", root="/unused", fails=True)
