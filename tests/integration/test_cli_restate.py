"""`airflow tx restate` as a person types it, on a real ZooKeeper and a real database of Airflow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from airflow_tx.ledger.steps.replay import wishes
from airflow_tx.outputs.staging.area import StagingArea
from tests.integration.cli_runs import ASK_DAG_SERVER, Runs, one_line, state_of
from tests.integration.commands import DAG, Commands
from tests.integration.journaled import Journaled
from tests.integration.pipeline import Pipeline


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    readable = DAG.replace('FileSource("/nowhere/*.csv")', "Rows()").replace("\nwith DAG(", _SOURCE + "\nwith DAG(")
    commands.begin({"the_dag.py": readable}, known=True)
    return commands


_SOURCE = """
class Rows(FileSource):
    def __init__(self):
        super().__init__("/nowhere/*.csv")

    def refuses_again(self, metadata):
        return "file 2.csv is missing" if metadata == 2 else None
"""


@pytest.fixture
def committed(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Journaled]:
    """Transactions 1 and 2, which can be restated."""
    states = [state_of(airflow, table) for table in ("one", "two")]
    made = Journaled(pipeline.store, zookeeper_root, states)
    made.request = pipeline.request
    runs.pause(paused=False)
    monkeypatch.setenv("AIRFLOW_HOME", airflow.environment["AIRFLOW_HOME"])
    made.area = StagingArea.of_ledger("zookeeper_default", zookeeper_root)
    made.commit("r1")
    made.commit("r2")
    yield made
    for state in states:
        state.clear()


def test_restate_requests_a_restatement_clears_the_run_and_waits_for_the_commit(
    airflow: Commands, committed: Journaled, runs: Runs, zookeeper_root: str, pool: ThreadPoolExecutor
) -> None:
    runs.make(r1="success", r2="success")
    command = pool.submit(airflow.run, "tx", "restate", "flights", "1", "--why", "a bug", root=zookeeper_root)
    while runs.states()["r1"] == "success" and not command.done():
        time.sleep(0.05)
    assert [wish.why for wish in wishes(committed.store, committed.paths)] == ["a bug"]
    begun = committed.commit("r1")
    assert begun.replaces is not None
    told = command.result(300)
    assert "All 1 transactions are restated." in told
    assert "done 0 of 1" in told


def test_a_dry_run_of_restate_prints_the_replaced_keys_and_changes_nothing(
    airflow: Commands, committed: Journaled, runs: Runs, zookeeper_root: str
) -> None:
    runs.make(r1="success", r2="success")
    told, line = airflow.refused("tx", "restate", "flights", "1", "2", "--dry-run", root=zookeeper_root)
    assert line == (
        "Restatement of transaction 2 of flights refused: its rows cannot be read again: file 2.csv is missing. "
        "Nothing was changed. The transaction still counts, unchanged."
    )
    assert [row["done"] for row in told] == [
        f"refused: {line}",
        "refused: not restated, because other transactions are refused",
    ]
    (told,) = airflow.json("tx", "restate", "flights", "1", "--dry-run", root=zookeeper_root)
    assert told["done"] == "restated with its rows. It replaces 1 key of tx_state.one, 1 key of tx_state.two"
    assert runs.states() == {"r1": "success", "r2": "success"}
    assert wishes(committed.store, committed.paths) == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("1",), "Give the reason, which the ledger keeps: airflow tx restate flights 1 --why TEXT"),
        (
            ("1", "--from", "2026-01-01", "--to", "2026-01-02", "--why", "x"),
            "Give either the txids, or --from and --to.",
        ),
        (("--from", "2026-01-01", "--why", "x"), "Give both --from and --to."),
        (
            ("1", "--withdraw", "--changed-rows"),
            "--withdraw cannot be used with --from, --to, --changed-rows or --in-flight. Without txids, it withdraws "
            "all requests.",
        ),
        (("--from", "2026-01-01", "--to", "2026-01-02", "--why", "x"), "--from, --to = 'Rows' cannot be used."),
        (("1", "--withdraw"), "Restatement of transaction 1 of flights refused: no one asked for it"),
        (("2", "--why", "x"), "Restatement of transaction 2 of flights refused: its rows cannot be read again"),
        (("7", "--why", "x"), "No transaction 7 of topology 'flights'"),
    ],
)
def test_a_refused_restatement_fails_with_one_line_and_records_no_request(
    airflow: Commands,
    committed: Journaled,
    runs: Runs,
    zookeeper_root: str,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    told = one_line(airflow.run("tx", "restate", "flights", *arguments, root=zookeeper_root, fails=True))
    assert told.startswith(said)
    assert wishes(committed.store, committed.paths) == ()


def test_restate_is_refused_while_the_dag_is_paused(
    airflow: Commands, committed: Journaled, runs: Runs, zookeeper_root: str
) -> None:
    runs.pause(paused=True)
    try:
        told = airflow.run("tx", "restate", "flights", "1", "--why", "x", root=zookeeper_root, fails=True)
    finally:
        runs.pause(paused=False)
    assert one_line(told) == (
        "DAG the_dag starts no run, since it is paused: airflow dags unpause the_dag, then repeat this command."
    )
    assert wishes(committed.store, committed.paths) == ()


@pytest.mark.parametrize("why", ["paused", "broken", "gone"])
def test_restate_warns_before_and_after_the_request_if_airflow_would_start_no_run(
    airflow: Commands, committed: Journaled, runs: Runs, zookeeper_root: str, why: str
) -> None:
    runs.make(r1="success", r2="success")
    with runs.held_up(why) as held_up:
        shown = act(airflow, zookeeper_root, "restate", 1)
        done = act(airflow, zookeeper_root, "restate", 1, version=shown["version"], who="ann", why="a bug")
        taken_back = act(airflow, zookeeper_root, "withdraw", 1)
        command, line = airflow.refused("tx", "restate", "flights", "1", "--dry-run", root=zookeeper_root)
    assert line == f"{held_up}, then repeat this command."
    assert shown["sentence"].endswith(f" {held_up}.")
    assert shown["effects"][-1]["what"] == done[-1]["what"] == command[-1]["done"] == held_up
    assert held_up not in taken_back["sentence"]


def test_restate_warns_that_a_paused_coordinator_delays_requests_beyond_the_window(
    airflow: Commands, committed: Journaled, runs: Runs, zookeeper_root: str
) -> None:
    for number in range(3, 10):
        committed.commit(f"r{number}")
    runs.make(**{f"r{number}": "success" for number in range(1, 10)})
    all_but_the_unreadable = (1, *range(3, 10))
    asked = partial(act, airflow, zookeeper_root, "restate", *all_but_the_unreadable, coordinator="the_dag")
    version = asked()["version"]
    with runs.held_up("paused") as held_up:
        done = asked(version=version, who="ann", why="a bug")
    later = f"without a coordinator: airflow tx restate flights --why TEXT ({held_up})"
    assert any(each["what"].endswith(later) for each in done), done


def act(airflow: Commands, root: str, name: str, *txids: int, coordinator: str = "", **more: str) -> Any:
    """Ask for a preview, or with a version for the action itself, as the page does."""
    request = {
        "topology": "flights",
        "conn_id": "zookeeper_default",
        "root": root,
        "coordinator": coordinator,
        "name": name,
    }
    asked = {"what": "execute" if more else "preview", "action": {**request, "txids": txids}, **more}
    return json.loads(airflow.run("python", ASK_DAG_SERVER, json.dumps(asked), root=root).splitlines()[-1])


OUTDATED = "Transaction 1 of topology 'flights' has changed since. Nothing was done; have another look, then repeat."


def test_a_restatement_is_refused_if_the_transaction_was_restated_since_the_preview(
    airflow: Commands, committed: Journaled, runs: Runs, zookeeper_root: str
) -> None:
    runs.make(r1="success", r2="success")
    shown, again = (act(airflow, zookeeper_root, "restate", 1)["version"] for _ in range(2))
    act(airflow, zookeeper_root, "restate", 1, version=shown, who="ann", why="a bug")
    assert committed.commit("r1").replaces is not None
    done = act(airflow, zookeeper_root, "restate", 1, version=again, who="bob", why="another bug")
    assert done == OUTDATED
    assert wishes(committed.store, committed.paths) == ()


def test_a_withdrawal_is_refused_if_the_request_was_replaced_since_the_preview(
    airflow: Commands, committed: Journaled, runs: Runs, zookeeper_root: str
) -> None:
    runs.make(r1="success", r2="success")
    ask = {"who": "ann", "why": "a bug"}
    act(airflow, zookeeper_root, "restate", 1, version=act(airflow, zookeeper_root, "restate", 1)["version"], **ask)
    shown = act(airflow, zookeeper_root, "withdraw", 1)["version"]
    act(airflow, zookeeper_root, "withdraw", 1, version=shown, **ask)
    act(airflow, zookeeper_root, "restate", 1, version=act(airflow, zookeeper_root, "restate", 1)["version"], **ask)
    assert act(airflow, zookeeper_root, "withdraw", 1, version=shown, who="bob", why="") == OUTDATED
    assert [wish.txid for wish in wishes(committed.store, committed.paths)] == [1]
