"""`airflow tx skip | readmit | replay` as a person types them, on a real ZooKeeper and a real database of Airflow.

No scheduler is there: a run that is started again stays as the command left it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_tx.base.errors import FenceForeign, Outranked, TopologyClaimed
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Phase, TopologyRecord, TransactionRecord, Waiter
from airflow_tx.ledger.steps import end, recovery, run_slots
from airflow_tx.ledger.steps.recovery import ReplayRequest
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.outputs.staging.area import StagingArea
from tests.integration.cli_runs import AUDIT, DAG_ID, Runs, checked, fail, granted, one_line, state_of
from tests.integration.commands import DAG, Commands
from tests.integration.pipeline import Pipeline

_EXACT = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.sources.files.source import FileSource
from airflow_tx.state import SqlState, Sum

with DAG("exact", schedule=None, max_active_runs=16):
    with Transaction(source=FileSource("/nowhere/*.csv"), topology="exact") as tx:
        @task
        def count(batch):
            return []
        state = SqlState("tx_state", table="exact", keys=["key"], values={"n": Sum()}, kind="transactional")
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(tx.batch), state=state)])
"""
_DATED = """
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow_tx import CommitOperator, Transaction
from airflow_tx.sources.run.data_interval import DataIntervalSource

with DAG("dated", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), max_active_runs=16):
    with Transaction(source=DataIntervalSource(), topology="dated"):
        CommitOperator(task_id="commit", updates=[])
"""
_DAILY = """
from airflow.sdk import DAG, CronDataIntervalTimetable
daily = DAG("daily", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"))
"""


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    logged = _EXACT.replace('FileSource("/nowhere/*.csv")', 'RedisStreamSource("nowhere", "stream")')
    logged = logged.replace("sources.files.source import FileSource", "sources.redis.stream import RedisStreamSource")
    logged = logged.replace('"exact"', '"logged"')
    files = {"the_dag.py": DAG, "exact.py": _EXACT, "logged.py": logged, "daily.py": _DAILY, "dated.py": _DATED}
    commands.begin(files, known=True)
    return commands


def record(pipeline: Pipeline, txid: int) -> TransactionRecord | None:
    return Reader(pipeline.store).peek_if_any(TransactionRecord, pipeline.paths.transaction(txid))


def topology(pipeline: Pipeline) -> TopologyRecord:
    return Reader(pipeline.store).peek(TopologyRecord, pipeline.paths.record)


def done(rows: list[dict[str, Any]]) -> dict[int | None, str]:
    """What a command says it did, by txid."""
    return {row["txid"]: row["done"] for row in rows}


def test_a_skip_waits_for_its_turn_and_then_also_skips_later_transactions_with_a_noted_skip(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    for run in ("r1", "r2", "r3"):
        pipeline.begin(run)
    skip = ("tx", "skip", "flights")
    why = ("--why", "the file is broken")
    assert one_line(airflow.run(*skip, "2", "--yes", root=root, fails=True)) == (
        "Give the reason, which the ledger keeps: airflow tx skip flights 2 --why TEXT"
    )
    assert airflow.run(*skip, "2", *why, root=root, fails=True).strip() == (
        "Skip transaction 2.1 of topology flights (run r2, PROCESSING), and count its rows nowhere: 2. "
        "Nothing was changed. To confirm without a terminal, add --yes."
    )
    assert topology(pipeline).skips == []

    told = airflow.json(*skip, "2", *why, "--yes", root=root)
    assert done(told) == {2: "to be skipped at its turn; it waits for transaction 1.1 (run r1, PROCESSING)"}
    listed = {row["txid"]: row for row in airflow.json("tx", "list", "flights", root=root)}
    assert listed[2]["waiting_for"] == "transaction 1.1 (run r1, PROCESSING), then it is skipped"
    assert listed[2]["note"].startswith("to be skipped: the file is broken (")

    back = "To get its rows back: airflow tx readmit flights {} --why TEXT"
    runs.make(r1="failed")
    red = ". Its run stays failed in Airflow. If you clear it, it succeeds without processing any rows"
    told = airflow.json(*skip, "1", *why, "--yes", root=root)
    assert done(told) == {1: f"skipped. {back.format(1)}{red}", 2: f"skipped. {back.format(2)}"}
    assert (record(pipeline, 1), record(pipeline, 2)) == (None, None)
    pipeline.run("r3")
    assert pipeline.totals() == [3, 3]

    (shown,) = airflow.json("tx", "show", "flights", "2", root=root)
    assert shown.items() >= {"status": "SKIPPED", "run_id": "r2", "batch": 2, "position": None}.items()
    assert shown["skip"].startswith("the file is broken (")
    told = airflow.json(*skip, "2", *why, "--yes", root=root)
    assert done(told) == {2: f"it is already skipped. {back.format(2)}"}
    for txid, said in (
        ("3", "Transaction 3 is committed. Nothing was changed."),
        ("9", "No transaction 9 of topology"),
    ):
        assert one_line(airflow.run(*skip, txid, *why, "--yes", root=root, fails=True)).startswith(said)
    assert one_line(airflow.run("tx", "skip", "nosuch", "1", *why, root=root, fails=True)).startswith("No topology")
    commands = [extra for event, extra in runs.audited() if event == "cli_skip"]
    assert any("the file is broken" in extra for extra in commands)


def test_a_dry_run_of_replay_and_skip_prints_the_effects_and_changes_nothing(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    fail(pipeline, pipeline.begin("r1"))
    pipeline.begin("r2")
    runs.make(r1="failed", r2="running")
    before = [record(pipeline, txid) for txid in (1, 2)]
    again = "its run is cleared, and begins as attempt 2"
    alone = "refused: its run is running; with force it is replayed anyway"
    told = airflow.json("tx", "replay", "flights", "1", "2", "--dry-run", root=root)
    assert done(told) == {1: again, 2: alone}
    told, line = airflow.refused("tx", "replay", "flights", "1", "7", "--dry-run", root=root)
    assert line == (
        f"No transaction 7 of topology 'flights' in the ledger at {pipeline.paths.transactions}. To see the "
        "transactions that there are: airflow tx list flights"
    )
    assert done(told) == {1: "refused: not replayed, since transaction 7 is refused", 7: f"refused: {line}"}
    assert done(airflow.json("tx", "replay", "flights", "--failed", "--dry-run", root=root)) == {
        1: "its run is cleared"
    }
    told = airflow.json("tx", "skip", "flights", "2", "--dry-run", root=root)
    assert done(told) == {2: "to be skipped at its turn; it waits for transaction 1.1 (run r1, FAILED)"}
    assert airflow.run("tx", "skip", "flights", "1", "--dry-run", root=root).startswith(
        "Dry run: Skip transaction 1.1 of topology flights (run r1, FAILED), and count its rows nowhere: 1. "
    )
    told, line = airflow.refused("tx", "readmit", "flights", "1", "--dry-run", root=root)
    assert line == (
        "Transaction 1 of flights cannot be re-admitted: it is not skipped. Nothing was changed; airflow tx list "
        "flights shows the skipped ones."
    )
    assert done(told) == {1: f"refused: {line}"}
    assert [record(pipeline, txid) for txid in (1, 2)] == before
    assert runs.states() == {"r1": "failed", "r2": "running"}


def test_a_skip_undoes_the_writes_of_its_transaction_and_outranks_its_committer(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    pipeline.run("r1")
    begun = pipeline.begin("r2")
    grant = pipeline.acquire(begun, pipeline.process(begun))
    pipeline.write(grant, begun.metadata)
    assert pipeline.totals() == [3, 3]
    airflow.run("tx", "skip", "flights", "2", "--why", "wrong", "--yes", root=zookeeper_root)
    assert pipeline.totals() == [1, 1]
    with pytest.raises(Outranked):
        pipeline.mark(grant)
    pipeline.run("r3")
    assert pipeline.totals() == [4, 4]


def test_a_skip_is_refused_if_a_state_without_undo_may_hold_the_transaction(
    airflow: Commands, store: ZooKeeperStore, zookeeper_root: str
) -> None:
    state = state_of(airflow, "exact", "transactional")
    exact = Pipeline(store, zookeeper_root, [state], topology="exact")
    exact.request = TopologyRequest("exact", "opaque", 8)
    begun = exact.begin("r1")
    exact.write(exact.acquire(begun, exact.process(begun)), begun.metadata)
    skip = ("tx", "skip", "exact", "1", "--why", "wrong", "--yes")
    assert one_line(airflow.run(*skip, root=zookeeper_root, fails=True)).startswith(
        f"Skip of transaction 1 refused: it may be in state {state.name} already, which cannot undo it. "
    )
    found = record(exact, 1)
    assert found is not None
    assert found.skip is None
    state.clear()


def test_a_skip_is_refused_if_a_state_removed_from_the_dag_may_hold_the_transaction(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    granted(pipeline, "r1", "tx_state.one", "tx_state.gone")
    skip = ("tx", "skip", "flights", "1", "--why", "wrong", "--yes")
    told = one_line(airflow.run(*skip, root=zookeeper_root, fails=True))
    assert "an earlier try may have written to state tx_state.gone" in told
    found = record(pipeline, 1)
    assert found is not None
    assert found.skip is None


def test_a_skip_is_recorded_and_waits_while_a_state_cannot_be_reached(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.begin("r1")
    nowhere = json.dumps({"conn_type": "sqlite", "host": "/nowhere/state.db"})
    skip = ("tx", "skip", "flights", "1", "--why", "wrong", "--yes")
    with monkeypatch.context() as patch:
        patch.setitem(airflow.environment, "AIRFLOW_CONN_TX_STATE", nowhere)
        told = one_line(airflow.run(*skip, root=zookeeper_root, fails=True))
    assert told.startswith(
        "The skip of transaction 1 is noted, but not in effect: state 'tx_state.one, tx_state.two' ("
    )
    assert told.endswith("skip flights 1 --why TEXT. Or replay it: airflow tx replay flights 1")
    assert topology(pipeline).skips == [1]
    assert done(airflow.json(*skip, root=zookeeper_root))[1].startswith("skipped.")
    assert record(pipeline, 1) is None


def test_a_stale_batch_is_replayed_before_it_is_skipped(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    pipeline.begin("r1")
    pipeline.process(pipeline.begin("r2"))
    request = BeginRequest(pipeline.request, "r1", "r1", "500000", False, {"task0": "1" * 16})
    begun = pipeline.ledger.begin(request, Outside(decide=lambda *_: Batch([1, 2], 2), run_state=lambda _: None))
    assert isinstance(begun, Begun)
    grant = pipeline.acquire(begun, pipeline.process(begun))
    pipeline.write(grant, 3)
    pipeline.mark(grant)
    runs.make(r2="failed")
    listed = {row["txid"]: row for row in airflow.json("tx", "list", "flights", root=zookeeper_root)}
    assert listed[2]["waiting_for"] == (
        "a replay, since its batch does not start where transaction 1 ended: airflow tx replay flights 2"
    )

    told = airflow.json("tx", "skip", "flights", "2", "--why", "wrong", "--yes", root=zookeeper_root)
    assert done(told) == {
        2: "its batch does not start where transaction 1 ended, so it is replayed first, and then skipped: "
        "its run was cleared"
    }
    assert runs.states() == {"r2": "running"}
    assert topology(pipeline).skips == [2]


def test_a_skipped_batch_is_readmitted_only_once_and_its_run_restarts(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    pipeline.begin("r1")
    pipeline.begin("gone")
    readmit = ("tx", "readmit", "flights")
    why = ("--why", "the file is mended")
    assert one_line(airflow.run(*readmit, "1", *why, "--yes", root=root, fails=True)) == (
        "Transaction 1 of flights cannot be re-admitted: it is not skipped. Nothing was changed; "
        "airflow tx list flights shows the skipped ones."
    )
    for txid in ("1", "2"):
        airflow.run("tx", "skip", "flights", txid, "--why", "broken", "--yes", root=root)
    runs.make(r1="success")
    assert one_line(airflow.run(*readmit, "1", "--yes", root=root, fails=True)).startswith("Give the reason")
    asked = airflow.run(*readmit, "1", *why, root=root, fails=True)
    assert asked.startswith("Process the rows of transaction 1 of topology flights (skipped by ")
    assert asked.strip().endswith("in run r1: 1. Nothing was changed. To confirm without a terminal, add --yes.")
    assert runs.states() == {"r1": "success"}

    told = airflow.json(*readmit, "1", *why, "--yes", root=root)
    assert [(row["txid"], row["run_id"]) for row in told] == [(1, "r1")]
    how = "takes the current rows at the same place in the source, as a new transaction"
    assert told[0]["done"] == f"re-admitted: its run was cleared, and {how}"
    told = airflow.json(*readmit, "2", *why, "--yes", root=root)
    assert told[0]["done"].startswith("re-admitted: its run did not exist, and was created again")
    assert runs.states() == {"gone": "queued", "r1": "queued"}
    assert runs.conf("gone") == {"airflow_tx": {"key": "gone"}}
    waiting = airflow.json("tx", "list", "flights", root=root)
    assert [row["waiting_for"] for row in waiting] == [
        f"begin of run {run}, which takes the skipped rows again" for run in ("gone", "r1")
    ]

    assert pipeline.run("r1") == 3
    assert pipeline.totals() == [1, 1]
    assert "it is re-admitted as 3." in one_line(airflow.run(*readmit, "1", *why, "--yes", root=root, fails=True))
    (shown,) = airflow.json("tx", "show", "flights", "1", root=root)
    assert shown.items() >= {"status": "READMITTED", "readmitted_as": 3}.items()
    assert "cli_readmit" in [event for event, _ in runs.audited()]


def test_a_replay_restarts_ended_runs_and_does_not_change_live_runs(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    replay = ("tx", "replay", "flights")
    assert pipeline.run("r1") == 1
    for run in ("r2", "r3", "r4", "r5"):
        pipeline.begin(run)
    runs.make(r1="success", r2="failed", r3="running", r5="queued")
    pipeline.ledger.run(end.note_skip, 3, AUDIT)

    for arguments, said in (
        ((), "Give either the txids to replay, or --failed."),
        (("2", "--failed"), "Give either the txids to replay, or --failed."),
        (("--failed", "--force"), "--force can be used only with txids"),
        (("2", "1"), "Transaction 1 is committed. Nothing was changed."),
        (("2", "9"), "No transaction 9 of topology 'flights'"),
    ):
        assert one_line(airflow.run(*replay, *arguments, root=root, fails=True)).startswith(said)
    assert runs.states()["r2"] == "failed"

    told = airflow.json(*replay, "4", "3", "2", "5", root=root)
    assert [row["run_id"] for row in told] == ["r2", "r3", "r4", "r5"]
    alone = "its run was left alone: it is {} (--force starts it again anyway)"
    assert done(told) == {
        2: "its run was cleared",
        3: f"its skip was withdrawn, {alone.format('running')}",
        4: "its run did not exist, and was created again",
        5: alone.format("queued"),
    }
    assert runs.states() == {"r1": "success", "r2": "running", "r3": "running", "r4": "running", "r5": "queued"}
    assert runs.conf("r4") == {"airflow_tx": {"key": "r4"}}
    assert topology(pipeline).skips == []
    assert done(airflow.json(*replay, "5", "--force", root=root)) == {5: "its run was cleared"}
    assert runs.states()["r5"] == "running"
    assert "cli_replay" in [event for event, _ in runs.audited()]


def test_a_replay_for_changed_rows_is_recorded_and_is_refused_if_a_state_may_hold_the_rows(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    replay = ("tx", "replay", "flights")
    why = ("--changed-rows", "--why", "the file is mended")
    fail(pipeline, pipeline.begin("r1"))
    pipeline.begin("r2")
    runs.make(r1="failed", r2="running")
    assert one_line(airflow.run(*replay, "1", "--changed-rows", root=root, fails=True)) == (
        "Give the reason, which the ledger keeps: airflow tx replay flights 1 --changed-rows --why TEXT"
    )
    told = airflow.run(*replay, "--failed", *why, root=root, fails=True)
    assert one_line(told) == "--changed-rows can be used only with txids."
    told = airflow.json(*replay, "1", "2", *why, root=root)
    assert done(told) == {
        1: "its rows are decided again: its run was cleared",
        2: "its run was left alone: it is running (--force starts it again anyway)",
    }
    (shown,) = airflow.json("tx", "show", "flights", "1", root=root)
    assert shown["changed_rows"].startswith("attempt 1: the file is mended (")
    listed = {row["txid"]: row for row in airflow.json("tx", "list", "flights", root=root)}
    assert listed[1]["note"].startswith("rows decided again for attempt 1: the file is mended (")
    assert listed[2]["note"] is None
    pipeline.run("r1")
    assert airflow.json("tx", "show", "flights", "1", root=root)[0]["changed_rows"] == shown["changed_rows"]

    granted(pipeline, "r2", "tx_state.one", "tx_state.two", "tx_state.gone")
    told = one_line(airflow.run(*replay, "2", *why, "--force", root=root, fails=True))
    assert told.startswith("Transaction 2 of flights keeps its rows: it may be in state tx_state.gone already")


def test_a_replay_for_changed_rows_is_refused_for_a_source_that_reads_a_log(
    airflow: Commands, store: ZooKeeperStore, runs: Runs, zookeeper_root: str
) -> None:
    logged = Pipeline(store, zookeeper_root, topology="logged")
    logged.request = TopologyRequest("logged", "transactional", 8)
    logged.begin("r1")
    replay = ("tx", "replay", "logged", "1", "--changed-rows", "--why", "mended", "--force")
    told = one_line(airflow.run(*replay, root=zookeeper_root, fails=True))
    assert "reads a log, whose rows never change. Nothing was changed." in told


def test_a_command_fails_with_one_line_while_the_metadata_database_is_locked(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    runs.make(r1="failed")
    replay = ("tx", "replay", "flights", "--failed")
    with runs.locked():
        line = one_line(airflow.run(*replay, root=zookeeper_root, fails=True))
    assert line.startswith(
        "Airflow's metadata database failed: database is locked. The work that is already done is kept"
    )
    assert done(airflow.json(*replay, root=zookeeper_root)) == {1: "its run was cleared"}
    assert runs.states() == {"r1": "running"}


def test_the_replay_failed_command_restarts_failed_transactions_and_runs_that_yielded(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    first = pipeline.begin("r1")
    fail(pipeline, first)
    for run in ("r2", "r3", "r4"):
        pipeline.process(pipeline.begin(run))
    pipeline.ledger.run(end.note_skip, 4, AUDIT)
    for waiter in (Waiter("r3", 3, "000300", 1), Waiter("room", None, "000400", 1)):
        pipeline.ledger.run(run_slots.bid, waiter)
        pipeline.ledger.run(run_slots.note_yield, waiter)
    runs.make(r1="failed", r2="running", r3="failed", r4="failed", room="failed")
    listed = airflow.json("tx", "list", "flights", root=root)
    assert (listed[0]["status"], listed[0]["run_id"], listed[0]["txid"]) == ("YIELDED", "room", None)
    assert listed[0]["waiting_for"] == "the run of transaction 1; then it is started again"

    told = airflow.json("tx", "replay", "flights", "--failed", root=root)
    assert [(row["txid"], row["run_id"], row["done"]) for row in told] == [
        (1, "r1", "its run was cleared"),
        (3, "r3", "its run was cleared"),
        (4, "r4", "left alone: it is skipped at its turn; to replay it, name its txid"),
        (None, "room", "cleared: it had yielded to transaction 1"),
    ]
    assert runs.states() == {"r1": "running", "r2": "running", "r3": "running", "r4": "failed", "room": "queued"}
    assert topology(pipeline).yielded == {}

    # The run is live again; its record says FAILED until its `begin` has run.
    told = airflow.json("tx", "replay", "flights", "--failed", root=root)
    assert done(told)[1] == "left alone: its run is running"
    runs.put("r2", "success")
    told = airflow.json("tx", "replay", "flights", "--failed", root=root)
    assert done(told)[2] == "its run was cleared"


def test_a_transaction_whose_run_has_ended_is_listed_as_failed_with_the_command_to_replay_it(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    pipeline.request = TopologyRequest(DAG_ID, "transactional", 8)
    for run in ("killed", "skipped", "deleted", "alive"):
        pipeline.process(pipeline.begin(run))
    runs.make(killed="failed", skipped="success", alive="running")

    def waits() -> dict[int, str]:
        rows = airflow.json("tx", "list", "flights", "--state", "failed", root=root)
        return {row["txid"]: row["waiting_for"] for row in rows}

    again = "airflow tx replay flights"
    assert waits() == {
        3: f"a replay, since its run deleted was deleted: {again} 3",
        2: f"a replay, since its run skipped ended as success: {again} 2, or clear the run",
        1: f"a replay, since its run killed ended as failed: {again} 1, or clear the run",
    }
    (topology,) = airflow.json("tx", "list", "--state", "failed", "--no-lag", root=root)
    assert topology["problem"] == "transaction 1 has failed: its run killed ended as failed"
    (shown,) = airflow.json("tx", "show", "flights", "1", root=root)
    assert shown["run_end"] == "its run killed ended as failed"
    runs.put("killed", "queued")
    assert waits().keys() == {2, 3}
    airflow.run("tx", "replay", "flights", "--failed", root=root)
    runs.put("deleted", "queued")
    assert waits() == {}


def test_the_list_command_shows_the_ledger_while_the_airflow_database_is_unreachable(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    pipeline.request = TopologyRequest(DAG_ID, "transactional", 8)
    pipeline.begin("r1")
    with runs.without_runs():
        tried = airflow.tried("tx", "list", "flights", "--output", "json", root=zookeeper_root)
    assert json.loads(tried.output)[0]["waiting_for"] == "an ack of task0"
    assert "cannot be read: no such table: dag_run." in tried.told


def test_the_list_command_shows_a_blocked_transaction_until_a_person_replays_it(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    begun = pipeline.begin("r1")
    fail(pipeline, begun)
    pipeline.ledger.run(recovery.note_replay, ReplayRequest(begun.attempt, "task0: it broke", counts=True, limit=1))
    (listed,) = airflow.json("tx", "list", "flights", root=root)
    assert listed["note"] == "replayed automatically once: task0: it broke"
    begun = pipeline.begin("r1")
    fail(pipeline, begun)
    pipeline.ledger.run(recovery.note_replay, ReplayRequest(begun.attempt, "task0: it broke", counts=True, limit=1))
    runs.make(r1="failed")
    (listed,) = airflow.json("tx", "list", root=root)
    assert listed["problem"] == "blocked at transaction 1: task0: it broke"
    assert "airflow tx replay flights 1" in airflow.run("tx", "list", "flights", root=root)
    airflow.run("tx", "replay", "flights", "1", root=root)
    pipeline.begin("r1")
    (listed,) = airflow.json("tx", "list", root=root)
    assert listed["problem"] is None
    assert record(pipeline, 1).phase is Phase.PROCESSING  # type: ignore[union-attr]


def test_a_skip_restarts_the_runs_that_had_yielded_their_slots(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    pipeline.begin("r1")
    pipeline.process(pipeline.begin("r2"))
    for waiter in (Waiter("r2", 2, "000300", 1), Waiter("room", None, "000400", 1)):
        pipeline.ledger.run(run_slots.bid, waiter)
        pipeline.ledger.run(run_slots.note_yield, waiter)
    pipeline.ledger.run(end.note_skip, 2, AUDIT)
    runs.make(r1="queued", r2="failed", room="failed")
    told = airflow.json("tx", "skip", "flights", "1", "--why", "wrong", "--yes", root=zookeeper_root)
    # r2 has nothing to come back for: its transaction is skipped, too.
    assert [(row["run_id"], row["done"].split(".")[0]) for row in told] == [
        ("r1", "skipped"),
        ("r2", "skipped"),
        ("room", "cleared: it had yielded to transaction 1"),
    ]
    assert runs.states() == {"r1": "queued", "r2": "failed", "room": "queued"}
    assert topology(pipeline).yielded == {}


def test_the_show_command_combines_the_positions_of_all_partitions_of_a_batch(
    airflow: Commands, store: ZooKeeperStore, zookeeper_root: str
) -> None:
    parted = Pipeline(store, zookeeper_root, topology="parted")
    request = TopologyRequest(DAG_ID, "opaque", 8, partitioned=True)
    for run, batch in (("r1", ({"a": [0, 1], "b": [0, 5]}, {"a": 1, "b": 5})), ("r2", ({"a": [1, 2]}, {"a": 2}))):
        asked = BeginRequest(request, run, run, "000001", False, {})
        parted.ledger.begin(asked, Outside(decide=lambda *_, batch=batch: Batch(*batch), run_state=lambda _: None))
    (shown,) = airflow.json("tx", "show", "parted", "2", root=zookeeper_root)
    assert shown["batch"] == {"a": [1, 2]}
    assert shown["partitions"].splitlines() == [
        "a: rows [1,2], position 2",
        "b: rows none, position 5",
    ]


def test_the_rename_command_gives_a_topology_the_new_name_of_its_dag_and_keeps_its_states(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = zookeeper_root
    old = Pipeline(pipeline.store, root, pipeline.states, topology="old")
    old.request = TopologyRequest("old_dag", "transactional", 8)
    old.run("r1")
    old.begin("r2")
    monkeypatch.setenv("AIRFLOW_HOME", airflow.environment["AIRFLOW_HOME"])
    staged = StagingArea.of_ledger("zookeeper_default", root).files
    life = old.ledger.incarnation()
    for name in ("old/1/output", "@taken/queue/messages/0/m", "@journal/2013-01-31/entry"):
        staged.write(f"{life}/{name}", b"")
    staged.write("of another one/old/1/output", b"")
    rename = ("tx", "rename", "old", "flights", "--dag-id", "the_dag")
    why = ("--why", "the DAG was renamed")
    assert one_line(airflow.run(*rename, root=root, fails=True)).startswith(
        "Give the reason, which the ledger keeps: airflow"
    )
    told = "Rename topology old of DAG old_dag to topology flights of DAG the_dag."
    assert one_line(airflow.run(*rename, *why, "--dry-run", root=root)) == (
        f"Dry run: {told} Open transactions: 2. Then: airflow tx replay flights --failed. Nothing was changed."
    )
    assert airflow.run(*rename, *why, root=root, fails=True).startswith(told)
    assert [row["topology"] for row in airflow.json("tx", "list", "--no-lag", root=root)] == ["old"]

    said = one_line(airflow.run(*rename, *why, "--yes", root=root))
    assert said.startswith(
        "Renamed: topology old is called flights now. Transaction 2 commits next. Open transactions: "
    )
    assert not staged.list(f"{life}/old")
    assert list(staged.list(f"{life}/@taken/queue/messages/0")) == ["m"]
    assert list(staged.list(f"{life}/@journal/2013-01-31")) == ["entry"]
    assert list(staged.list("of another one/old/1")) == ["output"]
    (listed,) = airflow.json("tx", "list", "--no-lag", root=root)
    assert listed.items() >= {"topology": "flights", "dag_id": "the_dag", "next_commit": 2, "repairs": 1}.items()
    (shown,) = airflow.json("tx", "show", "flights", "--no-lag", root=root)
    assert shown["repairs"].startswith("rename: it was called old, of DAG old_dag (the DAG was renamed; ")
    started = airflow.json("tx", "replay", "flights", "--failed", root=root)
    assert done(started) == {2: "its run did not exist, and was created again"}
    pipeline.request = TopologyRequest("the_dag", "transactional", 8)
    pipeline._tries = old._tries
    assert [pipeline.run("r2"), pipeline.run("r3")] == [2, 3]
    assert pipeline.totals() == [6, 6]
    assert one_line(airflow.run(*rename, *why, "--yes", root=root, fails=True)).startswith("No topology 'old' in the")
    assert "cli_rename" in [event for event, _ in runs.audited()]


def test_the_rename_command_can_assign_an_unchanged_topology_to_a_renamed_dag(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    pipeline.request = TopologyRequest("old_dag", "transactional", 8)
    pipeline.run("r1")
    pipeline.request = TopologyRequest("the_dag", "transactional", 8)
    with pytest.raises(TopologyClaimed) as refusal:
        pipeline.begin("r2")
    advised = str(refusal.value).partition("If that DAG was renamed: airflow ")[2].partition(" TEXT;")[0].split()
    told = one_line(airflow.run(*advised, "the DAG was renamed", "--yes", root=zookeeper_root))
    assert told.startswith("Renamed: it belongs to DAG the_dag, and belonged to DAG old_dag.")
    assert pipeline.run("r2") == 2
    assert pipeline.totals() == [3, 3]


def test_delete_removes_an_ended_topology_and_release_frees_its_states_for_another_ledger(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = zookeeper_root
    monkeypatch.setenv("AIRFLOW_HOME", airflow.environment["AIRFLOW_HOME"])
    staged = StagingArea.of_ledger("zookeeper_default", root).files
    delete = ("tx", "delete", "flights", "--why", "the airline is no more")
    pipeline.run("r1")
    pipeline.run("r2")
    pipeline.begin("r3")
    runs.make(r3="running")
    told = one_line(airflow.run(*delete, "--yes", root=root, fails=True))
    assert told == (
        "Topology 'flights' is not changed: runs of DAG 'the_dag' work on its transactions: r3 (running). "
        "Pause the DAG, end its runs, and repeat the command."
    )
    runs.put("r3", "failed")
    told = one_line(airflow.run(*delete, "--dry-run", root=root))
    assert (
        "whose last final transaction is 2. Open transactions: 3. Their rows will not be counted. Its states " in told
    )
    assert "(tx_state.one: transaction 2; tx_state.two: transaction 2). Nothing was changed." in told
    released = (*delete, "--release-states")
    runs.pause(paused=False)
    told = one_line(airflow.run(*released, "--yes", root=root, fails=True))
    assert "DAG 'the_dag' is not paused: its next run would count all rows again. Pause it: airflow dags" in told
    runs.pause(paused=True)
    assert "the values stay" in one_line(airflow.run(*released, "--dry-run", root=root))
    assert airflow.json("tx", "list", "--no-lag", root=root) != []
    for life in (pipeline.ledger.incarnation(), "of another one"):
        for folder in ("flights/3", "@kept/flights/3", "@taken/queue", "@journal/2013-01-31"):
            staged.write(f"{life}/{folder}/output", b"")

    told = one_line(airflow.run(*released, "--yes", root=root))
    assert told == 'Deleted: topology flights. Its states: {"tx_state.one":2,"tx_state.two":2}'
    assert list(staged.list("")) == ["of another one"]
    assert sorted(staged.list("of another one")) == ["@journal", "@kept", "@taken", "flights"]
    assert airflow.run("tx", "list", root=root).strip() == "No data found"
    assert pipeline.totals() == [3, 3]
    assert [pipeline.run(run) for run in ("r1", "r2", "r3")] == [1, 2, 3]
    assert pipeline.totals() == [9, 9]

    airflow.run(*delete, "--yes", root=root)
    runs.pause(paused=False)
    with pytest.raises(FenceForeign):
        pipeline.run("r1")
    assert [event for event, _ in runs.audited()].count("cli_delete") >= 5


def test_a_recreated_run_gets_its_scheduled_dates_unless_another_run_has_the_same_dates(
    runs: Runs,
) -> None:
    midnight = [f"2013-01-0{day}T00:00:00+00:00" for day in range(1, 4)]
    made = runs.make_days(
        f"scheduled__{midnight[1]} {midnight[0]} {midnight[1]}",
        f"again {midnight[0]} {midnight[1]}",
        f"hour {midnight[1]} 2013-01-02T01:00:00+00:00",
    )
    assert made == [
        (f"scheduled__{midnight[1]}", "2013-01-01 00:00:00", "2013-01-01 00:00:00", "2013-01-02 00:00:00"),
        ("again", None, None, None),
        ("hour", None, None, None),
    ]


# --- accepted checks


def test_a_failed_check_is_accepted_by_name_and_the_failed_commit_is_cleared(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    root = zookeeper_root
    checked(pipeline, "r1", "no negative sums", "some rows")
    runs.make(r1="failed")
    runs.fail("r1", "commit")
    accept = ("tx", "accept-check", "flights", "1")
    why = ("--why", "the shop was closed", "--yes")
    assert one_line(airflow.run(*accept, "no negative sums", root=root, fails=True)) == (
        "Give the reason, which the ledger keeps: airflow tx accept-check flights 1 'no negative sums' --why TEXT"
    )
    assert one_line(airflow.run(*accept, "no sums", *why, root=root, fails=True)) == (
        "Check 'no sums' of transaction 1 of flights is not accepted: it has not failed in the newest attempt, "
        "whose failed checks are: 'no negative sums', 'some rows'. Nothing was changed."
    )
    shown = airflow.json(*accept, "no negative sums", "--dry-run", root=root)
    assert [row["done"] for row in shown] == ["no negative sums: failed: no negative sums: 3 of 9 rows"]
    before = record(pipeline, 1)
    assert before is not None
    assert before.accepted_checks == {}
    first = airflow.json(*accept, "no negative sums", *why, root=root)
    assert [row["done"] for row in first] == [
        "accepted: no negative sums: no negative sums: 3 of 9 rows",
        "not committed: these checks also failed: some rows. Accept them, or correct the code",
    ]
    assert (runs.states()["r1"], runs.failed("r1")) == ("failed", ["commit"])
    second = airflow.json(*accept, "some rows", *why, root=root)
    assert second[-1]["done"] == "its failed tasks were cleared"
    assert (runs.states()["r1"], runs.failed("r1")) == ("running", [])
    noted = record(pipeline, 1)
    assert noted is not None
    assert {name: each.accepted and each.accepted.why for name, each in noted.checks.items()} == {
        "no negative sums": "the shop was closed",
        "some rows": "the shop was closed",
    }
    (details,) = airflow.json("tx", "show", "flights", "1", root=root)
    assert "some rows: accepted: some rows: 3 of 9 rows: the shop was closed (" in details["checks"]
    assert any(event == "cli_accept_check" and "closed" in extra for event, extra in runs.audited())


def test_accept_check_creates_a_missing_run_again(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    checked(pipeline, "r1", "positive")
    accept = ("tx", "accept-check", "flights", "1", "positive", "--why", "right", "--yes")
    rows = airflow.json(*accept, root=zookeeper_root)
    assert rows[-1]["done"] == "its run did not exist, and was created again"
    assert runs.states() == {"r1": "running"}
    for gone in ("2", "9"):
        airflow.run("tx", "accept-check", "flights", gone, "positive", "--why", "x", root=zookeeper_root, fails=True)


@pytest.mark.parametrize("named", ["1", "--failed"])
def test_a_run_queued_in_a_cancelled_backfill_is_listed_and_replayed_without_the_force_option(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str, named: str
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    runs.make(r1="queued")
    runs.strand("r1")
    (listed,) = airflow.json("tx", "list", "flights", root=zookeeper_root)
    why = "its run r1 is queued in a cancelled or paused backfill"
    assert listed["waiting_for"] == f"a replay, since {why}: airflow tx replay flights 1, or unpause the backfill"
    told = airflow.json("tx", "replay", "flights", named, root=zookeeper_root)
    assert done(told) == {1: "its run was cleared"}
    assert runs.states() == {"r1": "running"}


def test_a_queued_run_of_a_paused_dag_is_listed_with_the_command_that_unpauses_the_dag(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    pipeline.begin("r1")
    runs.make(r1="queued")
    runs.pause(paused=True)
    (listed,) = airflow.json("tx", "list", "flights", root=zookeeper_root)
    runs.pause(paused=False)
    told = "its run, which is queued while its DAG is paused: airflow dags unpause the_dag"
    assert listed["waiting_for"] == told


@pytest.mark.parametrize("why", ["paused", "broken", "gone"])
def test_backfill_is_refused_before_it_creates_runs_that_airflow_would_not_start(
    airflow: Commands, runs: Runs, zookeeper_root: str, why: str
) -> None:
    backfill = ("tx", "backfill", "dated", "--from", "2026-05-01", "--to", "2026-05-02")
    with runs.held_up(why, "dated") as held_up:
        shown = airflow.tried(*backfill, "--dry-run", "--output", "json", root=zookeeper_root)
        refused = airflow.run(*backfill, root=zookeeper_root, fails=True)
    assert [row["would"] for row in json.loads(shown.output)] == ["create its run"] * 2
    assert one_line(refused) == shown.code == f"{held_up}, then repeat this command."
