"""`airflow tx stale` and `restate --stale`, as typed, on a real ZooKeeper and a real database of Airflow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.steps.replay import WishRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.outputs.staging.area import StagingArea
from tests.integration.cli_runs import ASK_DAG_SERVER, Runs, one_line, state_of
from tests.integration.commands import DAG, Commands
from tests.integration.journaled import Journaled
from tests.integration.pipeline import Pipeline

THE_DAG = DAG.replace("FileSource(", "Again(").replace(
    "\nwith DAG(",
    """
class Again(FileSource):
    def refuses_again(self, metadata):
        return "file 2.csv is missing" if metadata == 2 else None

RATE = 1

with DAG(""",
)
COUNT = "            return []\n"
DAILY = (
    DAG.replace('"the_dag", schedule=None', '"daily", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC")')
    .replace('FileSource("/nowhere/*.csv"), topology="flights"', "DataIntervalSource()")
    .replace("from airflow_tx.state", "from airflow_tx.sources import DataIntervalSource\nfrom airflow_tx.state")
    .replace("airflow.sdk import", "airflow.sdk import CronDataIntervalTimetable,")
)


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    commands.begin({"the_dag.py": THE_DAG, "daily.py": DAILY}, known=True)
    return commands


def code_of(text: str) -> str:
    """The digest of the task `count` of a DAG file."""
    from airflow_tx.ledger.code_digest import function_digest

    return function_digest(text, 1 + text[: text.index("        @task")].count("\n"))


@pytest.fixture
def made(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Journaled]:
    """Transactions 1 to 3, of which only the last one was made by the code of the DAG file."""
    write(airflow, THE_DAG)
    states = [state_of(airflow, table) for table in ("one", "two")]
    own = Journaled(pipeline.store, zookeeper_root, states)
    own.request = pipeline.request
    own.tasks = ["count"]
    monkeypatch.setenv("AIRFLOW_HOME", airflow.environment["AIRFLOW_HOME"])
    own.area = StagingArea.of_ledger("zookeeper_default", zookeeper_root)
    own.code = {"count": code_of(THE_DAG.replace(COUNT, "            return [1]\n"))}
    own.commit("r1")
    own.commit("r2")
    own.code = {"count": code_of(THE_DAG)}
    own.commit("r3")
    runs.make(r1="success", r2="success", r3="success")
    runs.pause(paused=False)
    yield own
    for state in states:
        state.clear()


def write(airflow: Commands, text: str) -> None:
    """Make this the DAG file."""
    (airflow.dags / "the_dag.py").write_text(text)


def stale(airflow: Commands, root: str, *more: str) -> list[Any]:
    """The txids that are stale, each with the reason."""
    found = airflow.json("tx", "stale", "flights", *more, root=root)
    return [(each["txid"], each["what"]) for each in found]


OTHER = "task count has other code"


def test_the_stale_command_lists_transactions_of_older_task_code_with_the_reason_and_the_time(
    airflow: Commands, made: Journaled, zookeeper_root: str
) -> None:
    found = airflow.json("tx", "stale", "flights", root=zookeeper_root)
    receipt = made.ledger.outcome(3)
    assert receipt is not None
    assert receipt.receipt is not None
    assert [(each["txid"], each["run_id"], each["reason"], each["what"]) for each in found] == [
        (1, "r1", "code", OTHER),
        (2, "r2", "code", OTHER),
    ]
    assert {each["since"] for each in found} == {receipt.receipt.granted[:19] + "+00:00"}
    table = airflow.run("tx", "stale", "flights", root=zookeeper_root)
    assert "1-2" in table
    assert "2 of 3 transactions of topology flights are stale." in table


@pytest.mark.parametrize(
    ("old", "new", "txids"),
    [
        ("def count", "def tally", [1, 2]),  # the task is renamed with its function
        (COUNT, "            # nothing\n            return list()\n", [1, 2, 3]),
        (COUNT, "            # nothing\n            return []\n", [1, 2]),
        (COUNT, "            return []  if RATE else []\n", [1, 2, 3]),
        ("RATE = 1", "RATE = 2", [1, 2]),
    ],
)
def test_a_change_of_a_name_a_comment_or_the_layout_makes_no_transaction_stale(
    airflow: Commands, made: Journaled, zookeeper_root: str, old: str, new: str, txids: list[int]
) -> None:
    changed = THE_DAG.replace(old, new)
    write(airflow, changed.replace("counted = count(", "counted = tally(") if "tally" in new else changed)
    assert [txid for txid, _ in stale(airflow, zookeeper_root)] == txids


def test_restate_stale_requests_transactions_in_order_and_continues_after_a_refused_one(
    airflow: Commands, made: Journaled, runs: Runs, zookeeper_root: str, pool: ThreadPoolExecutor
) -> None:
    planned = airflow.json("tx", "restate", "flights", "--stale", "--dry-run", root=zookeeper_root)
    assert [(each["txid"], each["done"][:15]) for each in planned] == [(1, "restated with i"), (2, "refused: Restat")]
    assert ReadOnlyLedger(made.store, made.paths).wishes() == ()
    command = pool.submit(airflow.run, "tx", "restate", "flights", "--stale", "--code", "count", root=zookeeper_root)
    while runs.states()["r1"] == "success" and not command.done():
        time.sleep(0.05)
    assert [(wish.txid, wish.why) for wish in made.ledger.wishes()] == [(1, OTHER)]
    assert made.commit("r1").replaces is not None
    assert "All 1 transactions are restated." in command.result(300)
    assert stale(airflow, zookeeper_root) == [(2, OTHER)]


def test_the_stale_command_shows_which_transactions_have_a_request_or_an_open_restatement(
    airflow: Commands, made: Journaled, runs: Runs, zookeeper_root: str
) -> None:
    def said() -> list[Any]:
        found = airflow.json("tx", "stale", "flights", root=zookeeper_root)
        return [each["restatement"] for each in found]

    assert said() == [None, None]
    made.ledger.want_restated(WishRequest(1, "r1", "r1"), Audit("ada", "a bug"))
    assert said() == [0, None]
    made.begin("r1")
    assert said() == [4, None]


def test_after_a_person_accepts_the_code_no_transaction_is_stale_until_the_next_change(
    airflow: Commands, made: Journaled, zookeeper_root: str
) -> None:
    asked = ("tx", "restate", "flights", "--stale", "--accept")
    assert one_line(airflow.run(*asked, root=zookeeper_root, fails=True)) == (
        "Give the reason, which the ledger keeps: airflow tx restate flights --stale --accept --why TEXT"
    )
    (planned,) = airflow.json(*asked, "--dry-run", root=zookeeper_root)
    assert planned["done"] == "task count: 2 transactions made by other code, 1 to 2"
    assert made.ledger.repairs() == ()
    (done,) = airflow.json(*asked, "--why", "only faster", "--yes", root=zookeeper_root)
    assert done["done"] == f"accepted: {planned['done']}"
    assert stale(airflow, zookeeper_root) == []
    (noted,) = made.ledger.repairs()
    assert (noted.what, noted.why, noted.change["txid"]) == ("accept-code", "only faster", 3)
    assert "accept-code" in airflow.run("tx", "show", "flights", root=zookeeper_root)
    assert airflow.exit_code("tx", "verify", "flights", root=zookeeper_root) == 0
    refused = airflow.run(*asked, "--why", "x", "--yes", root=zookeeper_root, fails=True)
    assert one_line(refused).startswith("None of 3 transactions of topology flights is stale")
    write(airflow, THE_DAG.replace(COUNT, "            return [2]\n"))
    assert [txid for txid, _ in stale(airflow, zookeeper_root)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("stale", "flights", "--code", "cuont"),
            "--code = 'cuont' cannot be used. Name a task whose code processes batches: count",
        ),
        (("stale", "nowhere"), "No topology 'nowhere'"),
        (("restate", "flights", "--stale", "--code", "cuont", "--yes"), "--code = 'cuont' cannot be used."),
        (("restate", "flights", "1", "--stale"), "--stale finds the transactions itself. Leave out txids"),
        (("restate", "flights", "--follow", "--stale"), "--follow finds the transactions itself"),
        (("restate", "flights", "1", "--accept", "--why", "x"), "--code and --accept can be used only with --stale."),
    ],
)
def test_a_refused_restate_stale_fails_with_one_line_and_records_no_request(
    airflow: Commands, made: Journaled, zookeeper_root: str, arguments: tuple[str, ...], said: str
) -> None:
    told = one_line(airflow.run("tx", *arguments, root=zookeeper_root, fails=True))
    assert told.startswith(said), told
    assert made.ledger.wishes() == ()


@pytest.mark.parametrize("command", [("stale", "flights"), ("restate", "flights", "--stale", "--yes")])
def test_stale_and_restate_stale_are_refused_if_the_dag_file_cannot_be_parsed(
    airflow: Commands, made: Journaled, zookeeper_root: str, command: tuple[str, ...]
) -> None:
    write(airflow, THE_DAG.replace("return []", "return ["))
    told = one_line(airflow.run("tx", *command, root=zookeeper_root, fails=True))
    assert "the_dag.py" in told
    assert "SyntaxError" in told
    assert made.ledger.wishes() == ()
    assert made.ledger.repairs() == ()


def test_restate_stale_requires_a_confirmation_if_it_would_restate_more_than_the_limit(
    airflow: Commands, made: Journaled, runs: Runs, zookeeper_root: str
) -> None:
    lowered = "from airflow_tx.operations.cli import actions; actions.MOST_UNASKED = int(arguments[0])"
    airflow.python(lowered, "1")
    try:
        told = airflow.run("tx", "restate", "flights", "--stale", root=zookeeper_root, fails=True)
    finally:
        airflow.python(lowered, "1000")
    assert one_line(told) == (
        "Restate 2 transactions of topology flights? Nothing was changed. To confirm without a terminal, add --yes."
    )
    assert made.ledger.wishes() == ()


def test_the_page_lists_restates_and_accepts_stale_transactions_as_the_command_does(
    airflow: Commands, made: Journaled, zookeeper_root: str
) -> None:
    def ask(**question: Any) -> Any:
        told = airflow.run("python", ASK_DAG_SERVER, json.dumps(question), root=zookeeper_root)
        return json.loads(told.splitlines()[-1])

    place = {"topology": "flights", "conn_id": "zookeeper_default", "root": zookeeper_root, "coordinator": ""}
    found = ask(stale=("the_dag", "zookeeper_default", zookeeper_root, "flights"))
    (group,) = found["groups"]
    assert (group["transactions"], group["txids"], group["what"], found["compared"]) == ("1-2", [1, 2], OTHER, 3)
    restate = {**place, "name": "restate", "txids": (), "stale": True}
    shown = ask(what="preview", action=restate)
    assert [each["txid"] for each in shown["effects"]] == [1]
    assert [each["txid"] for each in shown["refused"]] == [2]
    accept = {**place, "name": "accept-code", "txids": ()}
    version = ask(what="preview", action=accept)["version"]
    (done,) = ask(what="execute", action=accept, version=version, who="ada", why="only faster")
    assert done["what"] == "accepted: task count: 2 transactions made by other code, 1 to 2"
    assert ask(stale=("the_dag", "zookeeper_default", zookeeper_root, "flights"))["groups"] == []
    outdated = ask(what="execute", action=restate, version=shown["version"], who="ada", why="")
    assert outdated.startswith("The list of stale transactions of topology 'flights' has changed since.")
    assert made.ledger.wishes() == ()


def test_the_stale_command_lists_a_missing_data_interval_between_other_intervals(
    airflow: Commands, pipeline: Pipeline, zookeeper_root: str
) -> None:
    own = Pipeline(pipeline.store, zookeeper_root, topology="daily")
    own.request = type(pipeline.request)("daily", "opaque", 8)
    own.tasks = ["count"]
    for day in (1, 2, 5):
        own.run(f"interval:2026-01-0{day}T00:00:00+00:00/2026-01-0{day + 1}T00:00:00+00:00")
    found = airflow.json("tx", "stale", "daily", root=zookeeper_root)
    assert [(each["txid"], each["reason"], each["what"], each["since"]) for each in found] == [
        (
            None,
            "interval",
            f"no transaction has interval 2026-01-0{day}T00:00:00+00:00/2026-01-0{day + 1}T00:00:00+00:00",
            f"2026-01-0{day + 1}T00:00:00+00:00",
        )
        for day in (3, 4)
    ]
    told = airflow.run("tx", "stale", "daily", root=zookeeper_root)
    assert "To create the missing runs: airflow tx backfill daily --from DATE --to DATE" in told
    assert "Not compared: 3 transactions, since their receipts do not say which tasks processed them." in told
    planned = airflow.run("tx", "restate", "daily", "--stale", "--dry-run", root=zookeeper_root)
    assert "None of 3 transactions" in planned
