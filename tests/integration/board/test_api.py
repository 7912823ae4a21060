"""The board's API in a real api-server, on a real ZooKeeper: what it says, who may ask it, and what it does."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from airflow_tx.ledger.api import Delete
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.outputs.messages.stores import ZnodeAckers
from airflow_tx.outputs.messages.tree import origin_of
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.integration.board.conftest import ELSEWHERE_ROOT, MARKERS
from tests.integration.board.routes import address, routes
from tests.integration.board.server import LIMITED, ROOT, SAME_ORIGIN, STRANGER, Board
from tests.integration.cli_runs import Runs, fail
from tests.integration.pipeline import Pipeline
from tests.suites.acker_case import opened

MARKUP = "<img src=x onerror=alert(1)>"


def at_home(board: Board) -> list[Any]:
    """The lines of the topologies that lie where `[tx]` says."""
    return [line for line in board.get("topologies")["topologies"] if "@" not in line["topology"]]


def seen(board: Board, path: str, user: str = "vera", **wanted: Any) -> Any:
    """The answer, once it has these values: ZooKeeper tells the board of what another process has changed."""

    def told() -> Any:
        found = board.get(path, user)
        return found if wanted.items() <= found.items() else None

    return eventually(told, 240, f"{path} has {wanted}")


def test_the_overview_the_timeline_and_the_transaction_details_match_the_ledger(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    pipeline.run("r1")
    begun = pipeline.begin("r2")
    fail(pipeline, begun)
    pipeline.process(pipeline.begin("r3"))
    runs.make(r1="success", r2="failed", r3="running", r4="queued")

    (line,) = at_home(board)
    assert line["topology"] == "flights"
    assert (line["dag_id"], line["open"], line["max_pending"], line["turn"]) == ("the_dag", 2, 3, 2)
    assert line["last_commit"]["txid"] == 1
    assert line["may_act"] is False
    assert line["state"] == {
        "code": "failed",
        "since": line["state"]["since"],
        "txid": 2,
        "sentence": "Transaction 2 has failed: it broke.",
        "rest": " has failed: it broke.",
        "remedy": "airflow tx replay flights 2, or clear its failed task",
    }
    none = board.get("topologies", state=["waits", "fine"], text="FLIGHT")
    assert (none["topologies"], none["total"], none["counts"]["failed"]) == ([], 0, 1)
    assert board.get("topologies", state="failed", text="flight", limit=1)["total"] == 1
    assert board.get("topologies", offset=100)["topologies"] == []
    page = board.get("topologies/flights")
    assert [each["last_txid"] for each in page["states"]] == [1, 1]

    timeline = board.get("topologies/flights/transactions")
    assert [each["txid"] for each in timeline["transactions"]] == [3, 2, 1]
    third, second, first = timeline["transactions"]
    assert (first["phase"], second["phase"], third["phase"]) == ("COMMITTED", "FAILED", "PROCESSED")
    assert first["commit"]["end"] is not None
    assert third["waiting"]["end"] is None
    assert third["waiting_for"] == "transaction 2.1 (run r2, FAILED)"
    assert {each["task_id"] for each in second["tasks"]} == {"begin", "count", "commit"}
    shorter = board.get("topologies/flights/transactions", limit=2)
    assert (shorter["total"], shorter["before"]) == (3, 2)
    rest = board.get("topologies/flights/transactions", limit=2, before=2)
    assert ([each["txid"] for each in rest["transactions"]], rest["before"]) == ([1], None)
    later = board.get("topologies/flights/transactions", since=first["commit"]["end"], until=third["waiting"]["start"])
    assert [each["txid"] for each in later["transactions"]] == [3, 2, 1]
    assert board.get("topologies/flights/transactions", until="2020-01-01T00:00:00Z")["transactions"] == []

    shown = board.get("topologies/flights/transactions/1", "ulf")
    assert (shown["batch"]["metadata"], shown["batch"]["position_after"]) == (1, 1)
    assert [(each["keys"], each["token"].partition("#")[0]) for each in shown["states"]] == [(1, "1/1.1")] * 2
    assert shown["links"]["audit"] == "dags/the_dag/runs/r1/events"
    assert shown["receipt"]["hash"]
    broken = board.get("topologies/flights/transactions/2", "ulf")
    assert (broken["actions"], broken["batch"]["position_before"]) == (["replay", "skip"], 1)
    assert board.get("topologies/flights/transactions/2", "vera")["actions"] == []

    assert board.get("dags/the_dag") == {"dag_id": "the_dag", "topology": "flights", "role": "transactions"}
    assert board.get("dags/lossy") == {"dag_id": "lossy", "topology": None, "role": "transactions"}
    assert board.get("dags/the_dag/runs/r2")["txid"] == 2
    assert board.get("dags/the_dag/runs/r4")["why"]["code"] == "queued"


def test_the_page_of_a_run_without_a_transaction_shows_the_last_message_of_begin(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    pipeline.run("r1")
    # No other test has a run of this name: the board may still remember theirs.
    runs.make(without="running")
    for state, said in (
        (
            "up_for_retry",
            "The source was not ready, or the ledger did not answer: no disk. Airflow retries the task.",
        ),
        ("failed", "The task begin has failed: no disk. Clear the task to begin again."),
    ):
        board.commands.python(_BEGIN_SAYS, "without", state, "no disk.")
        why = board.get("dags/the_dag/runs/without")["why"]
        assert why["sentence"] == said


_BEGIN_SAYS = """
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import update
from airflow_tx.transaction.spec import WHY_NOT

run_id, state, said = arguments
begin = {"dag_id": "the_dag", "run_id": run_id, "task_id": "begin"}
with create_session() as session:
    session.execute(update(TaskInstance).filter_by(**begin).values(state=state))
    XComModel.set(key=WHY_NOT, value={"problem": said}, session=session, **begin)
"""


_BEGIN_SAID = """
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session

run_id, birth = arguments
said = {"txid": 1, "attempt": 1, "birth": birth, "rows": 1, "position": 1, "rows_digest": "", "replay": False}
said["incarnation"] = "i"
if not birth:
    said = {"txid": 1}
with create_session() as session:
    XComModel.set(
        key="return_value", value=said, dag_id="the_dag", run_id=run_id, task_id="begin", session=session
    )
"""


def test_a_dag_shows_the_topology_that_its_file_names_and_each_run_shows_its_transaction(
    board: Board, store: ZooKeeperStore, pipeline: Pipeline, runs: Runs
) -> None:
    earlier = Pipeline(store, ROOT, topology="earlier")
    earlier.request = TopologyRequest("the_dag", "opaque", 3)
    first = earlier.begin("by_interval")
    fail(earlier, earlier.begin("r1"))
    runs.make(r1="failed", of_earlier="failed", of_nothing="success", of_others="success")
    eventually(lambda: {each["topology"] for each in at_home(board)} == {"earlier"}, 240, "the names are read")
    assert board.get("dags/the_dag") == {"dag_id": "the_dag", "topology": None, "role": "transactions"}
    assert board.get("dags/the_dag/runs/r1") == {**board.get("dags/the_dag/runs/r1"), "topology": "earlier", "txid": 2}
    pipeline.run("r1")
    assert board.get("dags/the_dag")["topology"] == "flights"
    found = board.get("dags/the_dag/runs/r1")
    assert (found["topology"], found["txid"]) == ("flights", 1)
    # What begin said names a txid, which both topologies have.
    board.commands.python(_BEGIN_SAID, "of_earlier", first.attempt.birth)
    board.commands.python(_BEGIN_SAID, "of_nothing", "another")
    found = board.get("dags/the_dag/runs/of_earlier")
    assert (found["topology"], found["txid"]) == ("earlier", 1)
    assert board.get("dags/the_dag/runs/of_nothing")["txid"] is None
    # A task that is called begin may say anything.
    board.commands.python(_BEGIN_SAID, "of_others", "")
    assert board.get("dags/the_dag/runs/of_others")["txid"] is None


@pytest.mark.parametrize(
    ("path", "same"),
    [
        ("transactions/1", "transactions/1"),
        # An answer that is made again, since it is asked for in other words.
        ("transactions?since=2020-01-01T00:00:00Z", "transactions?since=2020-01-02T00:00:00Z"),
    ],
)
def test_a_response_that_the_browser_has_cached_is_not_sent_again(
    board: Board, pipeline: Pipeline, path: str, same: str
) -> None:
    pipeline.run("r1")
    with board.client("vera") as client:
        first = client.get(f"/api/v1/topologies/flights/{path}")
        again = client.get(f"/api/v1/topologies/flights/{same}", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_figures_count_the_transactions_committed_in_the_requested_time(board: Board, pipeline: Pipeline) -> None:
    for run in ("r1", "r2", "r3"):
        pipeline.run(run)
    pipeline.begin("r4")
    eventually(lambda: board.get("topologies/flights")["allocated"] == 4, 240, "the open transaction is seen")
    year = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T01:00:00Z"}
    found = board.get("topologies/flights/figures", **year)
    assert (found["total"]["transactions"], found["total"]["rows"]) == (3, 3)
    assert sum(each["transactions"] for each in found["points"]) == 3
    assert found["total"]["processing"]["p50"] > 0
    assert found["known_since"] is None
    later = board.get("topologies/flights/figures", since="2026-01-02T00:00:00Z", until="2026-01-02T01:00:00Z")
    assert later["total"]["transactions"] == 0
    # The first and the last moment of the calendar are answered, too: nothing was committed at either.
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"):
        assert board.get("topologies/flights/figures", since=moment, until=moment)["total"]["transactions"] == 0


def test_a_search_finds_the_transaction_of_a_file_and_reports_how_many_transactions_it_read(
    board: Board, store: ZooKeeperStore, pipeline: Pipeline
) -> None:
    pipeline.metadata = lambda row: {"folder": "/data", "files": [{"name": f"{row:02}.csv"}]}
    pipeline.states = ()
    for run in ("r1", "r2"):
        pipeline.run(run)
    pipeline.begin("r3")
    # What is shown may be that of a second ago.
    eventually(lambda: board.get("topologies/flights")["allocated"] == 3, 240, "the open transaction is seen")
    found = board.get("topologies/flights/search", what="02.csv")
    again = {"restates": None, "restated_by": None}
    named = {"txid": 2, "run_id": "r2", "phase": "COMMITTED", "batch_name": "02.csv", **again}
    assert found == {"found": [named], "looked": 3, "oldest": 1, "unknown": 0, "complete": True}
    assert [each["txid"] for each in board.get("topologies/flights/search", what="03.csv")["found"]] == [3]
    assert board.get("topologies/flights/search", what="04.csv")["found"] == []


# --- who may ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), routes(), ids=lambda each: str(each))
def test_every_route_checks_the_rights_of_the_user(
    board: Board, pipeline: Pipeline, runs: Runs, method: str, path: str
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    runs.make(r1="failed")
    body = {"txids": [1], "version": "none"} if path.endswith("{action}") else {"txids": [1]}
    expected: dict[str | None, int] = {None: 401, "vera": 200, "ulf": 200, "ada": 200, STRANGER: 404}
    if method != "GET":
        # One who may: the preview is given; what was not previewed is refused.
        may = 200 if path.endswith("preview") else 409
        expected |= {"vera": 403, "ulf": may, "ada": may}
    elif path.endswith("/rejected"):
        expected |= dict.fromkeys(("vera", "ulf", "ada"), 409)  # the DAG has no table for them
    elif not path.startswith(("/api/v1/topologies/", "/api/v1/dags/")):
        expected[STRANGER] = 200  # the page itself, and a list that is empty
    found = {}
    for user in expected:
        with board.client(user) as client:
            to, json = address(path, "flights", 1), None if method == "GET" else body
            found[user] = client.request(method, to, headers=SAME_ORIGIN, json=json).status_code
    assert found == expected


def test_an_unknown_address_returns_404_and_does_not_affect_other_pages(board: Board, pipeline: Pipeline) -> None:
    pipeline.run("r1")
    numbers = (2, 99_999_999, 10**30, 0, -1)
    paths = [f"topologies/flights/transactions/{txid}" for txid in numbers]
    paths += ["topologies/", "topologies//transactions", "topologies//transactions/1", "topologies/nosuch/transactions"]
    with board.client("vera") as client:
        found = {path: client.get(f"/api/v1/{path}").status_code for path in paths}
    assert found == dict.fromkeys(paths, 404)
    eventually(lambda: at_home(board), 240, "the overview is shown")
    assert board.get("dags/the_dag")["topology"] == "flights"
    assert board.get("dags/the_dag/runs/r1")["txid"] == 1


def test_a_hidden_topology_and_a_missing_topology_return_the_same_response(board: Board, pipeline: Pipeline) -> None:
    pipeline.run("r1")
    hidden = board.get("topologies", STRANGER, limit=7)
    nothing = dict.fromkeys(hidden["counts"], 0)
    empty = {"topologies": [], "causes": [], "total": 0, "lines": 0}
    assert hidden == {**empty, "limit": 7, "offset": 0, "counts": nothing}
    for there, missing in (
        ("topologies/flights", "topologies/nosuch"),
        ("topologies/flights/transactions", "topologies/nosuch/transactions"),
        ("topologies/flights/transactions/1", "topologies/nosuch/transactions/1"),
        ("dags/the_dag", "dags/nosuch"),
        ("dags/the_dag/runs/r1", "dags/nosuch/runs/r1"),
    ):
        with board.client(STRANGER) as client:
            hidden, none = client.get(f"/api/v1/{there}"), client.get(f"/api/v1/{missing}")
        assert (hidden.status_code, none.status_code) == (404, 404)
        # Even the words are those of what does not exist.
        words = hidden.text.replace("flights", "nosuch").replace("the_dag", "nosuch")
        assert words == none.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain", **SAME_ORIGIN}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded", **SAME_ORIGIN}, 415),
        ({"Content-Type": "application/json"}, 403),
        ({"Content-Type": "application/json", **SAME_ORIGIN, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "application/json", **SAME_ORIGIN, "Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "application/json", **SAME_ORIGIN, "Origin": "https://evil.example"}, 403),
        ({"Content-Type": "application/json", **SAME_ORIGIN, "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_a_forged_request_is_refused(
    board: Board, pipeline: Pipeline, runs: Runs, headers: dict[str, str], status: int
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    with board.client("ulf") as client:
        path = "/api/v1/topologies/flights/actions/replay/preview"
        answer = client.post(path, content='{"txids": [1]}', headers=headers)
    assert answer.status_code == status, answer.text


def test_a_proxy_may_change_the_host_header_of_a_request(board: Board, pipeline: Pipeline, runs: Runs) -> None:
    fail(pipeline, pipeline.begin("r1"))
    for host, origin, forwarded, status in (
        ("inner:8080", board.url, None, 200),  # [api] base_url
        ("inner:8080", "https://airflow.example", "airflow.example, proxy.example", 200),
        ("inner:8080", "https://evil.example", "airflow.example", 403),
        ("inner:8080", "https://airflow.example", None, 403),
    ):
        headers = {**SAME_ORIGIN, "Host": host, "Origin": origin}
        headers |= {} if forwarded is None else {"X-Forwarded-Host": forwarded}
        with board.client("ulf") as client:
            path = "/api/v1/topologies/flights/actions/replay/preview"
            answer = client.post(path, json={"txids": [1]}, headers=headers)
        assert answer.status_code == status, (origin, forwarded, answer.text)


def test_no_response_contains_a_host_name_a_secret_or_active_markup(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    text = f"{MARKUP} {MARKERS[0]}:5432 password={MARKERS[1]} postgresql://u:{MARKERS[2]}@h/d"
    from airflow_tx.ledger.attempt import TaskTry
    from airflow_tx.ledger.steps import processing

    begun = pipeline.begin("r1")
    broken = TaskTry("task0", -1, "999999")
    pipeline.ledger.start(begun.attempt, broken)
    pipeline.ledger.run(processing.fail, begun.attempt, broken, reason=text)
    pipeline.ledger.run(note_skip, 1, Audit("<b>ann</b>", text))
    shown = set()
    with board.client("ada") as client:
        listed = partial(client.get, "/api/v1/topologies")
        eventually(lambda: MARKUP in _texts(listed().json()), 240, "the list of topologies shows the reason")
        # What is there, and addresses that are markup themselves: an answer may quote what was asked for.
        for topology in ("flights", quote(MARKUP, safe="")):
            for method, path in routes():
                if method == "GET" and "board" not in path:
                    to = address(path, topology, 1).replace("what=1", f"what={quote(text)}")
                    answer = client.get(to)
                    # Only as JSON that is not looked into may markup be sent: no browser shows that as a page.
                    assert answer.headers["content-type"] == "application/json", to
                    assert answer.headers["x-content-type-options"] == "nosniff", to
                    assert not [marker for marker in MARKERS if marker in answer.text], answer.text
                    shown |= {path} if MARKUP in _texts(answer.json()) else set()
    # Else nothing of the reason was looked at. (test_buttons.py: the page shows it as text.)
    transaction = "/api/v1/topologies/{topology:path}/transactions/{txid}"
    assert {"/api/v1/topologies", "/api/v1/topologies/{topology:path}", transaction} <= shown


def _texts(answer: Any) -> str:
    """Every text of an answer, as a program reads it."""
    if isinstance(answer, dict):
        return " ".join(map(_texts, answer.values()))
    return " ".join(map(_texts, answer)) if isinstance(answer, list) else str(answer)


# --- what it does -------------------------------------------------------------------------------------------------


def act(board: Board, action: str, why: str = "", user: str = "ulf", *, topology: str = "flights", **body: Any) -> Any:
    """Preview an action, and do it."""
    path = f"topologies/{topology}/actions/{action}"
    preview = board.post(f"{path}/preview", body, user)
    assert preview.status_code == 200, preview.text
    answer = board.post(path, {**body, "version": preview.json()["version"], "why": why}, user)
    assert answer.status_code == 200, answer.text
    return answer.json()["done"]


@pytest.mark.parametrize("changed_rows", [False, True], ids=["by the api-server", "by the process of DAG files"])
@pytest.mark.parametrize("deleted", [False, True], ids=["a run to clear", "a run to create"])
def test_a_replay_during_a_lock_of_the_airflow_database_changes_nothing_and_can_be_repeated(
    board: Board, pipeline: Pipeline, runs: Runs, changed_rows: bool, deleted: bool
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    if not deleted:
        runs.make(r1="failed")
    body: dict[str, Any] = {"txids": [1], "changed_rows": changed_rows}
    path = "topologies/flights/actions/replay"
    version = board.post(f"{path}/preview", body).json()["version"]
    with closing(sqlite3.connect(f"{board.commands.environment['AIRFLOW_HOME']}/airflow.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        answer = board.post(path, {**body, "version": version, "why": "the disk is back"})
        other.rollback()
    assert answer.status_code in (409, 503), answer.text
    detail = answer.json()["detail"]
    assert "Airflow's database cannot be used now: database is locked" in detail
    assert "\n" not in detail
    record = pipeline.ledger.status(1)
    assert record is not None
    assert (record.asked, record.to_change) == (None, None)
    (done,) = act(board, "replay", "the disk is back", **body)
    assert done["what"].endswith("its run did not exist, and was created again" if deleted else "its run was cleared")
    noted = pipeline.ledger.status(1)
    assert noted is not None
    assert noted.asked is not None
    assert noted.asked.who == "ulf"
    assert (noted.to_change is not None) == changed_rows


def test_the_second_of_two_simultaneous_replays_is_refused_with_the_reason(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    runs.make(r1="failed")
    before = len(runs.audited())
    path = "topologies/flights/actions/replay"
    preview = board.post(f"{path}/preview", {"txids": [1]}).json()
    assert preview["sentence"] == "Replay transaction 1 of topology flights."
    assert preview["effects"] == [{"txid": 1, "run_id": "r1", "what": "its run is cleared, and begins as attempt 2"}]
    body = {"txids": [1], "version": preview["version"]}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda user: board.post(path, body, user), ("ulf", "ada")))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    (refused,) = [answer.json()["detail"] for answer in answers if answer.status_code == 409]
    assert refused == (
        "Transaction 1 of topology 'flights' has changed since. Nothing was done; have another look, then repeat."
    )
    assert runs.states() == {"r1": "running"}
    audited = [(event, json.loads(extra)) for event, extra in runs.audited()[before:]]
    assert sorted((event, details["txid"], details["outcome"]) for event, details in audited) == [
        ("tx replay", 1, "its run was cleared"),
        ("tx replay refused", None, refused),
    ]


def test_a_replay_records_the_user_in_the_audit_log_of_the_ledger_and_of_the_run(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    runs.make(r1="failed")
    before = len(runs.audited_of("r1"))
    act(board, "replay", "the disk is back", txids=[1])
    assert runs.audited_of("r1")[before:] == ["tx replay"]

    def person(each: Any) -> tuple[str, str, str]:
        return each["what"], each["who"], each["why"]

    asked = ("replay of attempt 1", "ulf", "the disk is back")
    assert [person(each) for each in board.get("topologies/flights/transactions/1")["audit"]] == [asked]
    fail(pipeline, pipeline.begin("r1"))
    runs.put("r1", "failed")
    act(board, "replay-failed", "now it is", "ada")
    pipeline.run("r1")
    told = board.commands.json("tx", "show", "flights", "1", root=ROOT)[0]["replayed_by"]
    assert told.startswith("attempt 1: the disk is back (ulf, ")
    assert "; attempt 2: now it is (ada, " in told
    # Committed: the receipt has it.
    shown = eventually(lambda: _if_final(board), 240, "the history is read")
    assert [person(each) for each in shown["audit"]] == [asked, ("replay of attempt 2", "ada", "now it is")]


def test_a_transaction_that_left_the_history_is_shown_from_the_book_of_ends(
    board: Board, pipeline: Pipeline, store: ZooKeeperStore
) -> None:
    pipeline.request = replace(pipeline.request, appends=True)
    pipeline.run("r1")
    pipeline.run("r2")
    store.multi([], [Delete(pipeline.paths.history(1))])
    shown = eventually(lambda: _if_final(board), 240, "the line is read")
    assert (shown["phase"], shown["run_id"], shown["receipt"], shown["following"]) == ("COMMITTED", "r1", None, 2)
    assert [each["txid"] for each in board.get("topologies/flights/transactions")["transactions"]] == [2]


def _if_final(board: Board) -> Any:
    shown = board.get("topologies/flights/transactions/1")
    return shown if shown["phase"] == "COMMITTED" else None


def test_tries_xcoms_the_audit_log_and_creating_runs_each_require_their_own_access_right(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    pipeline.run("r1")
    fail(pipeline, pipeline.begin("r2"))
    runs.make(r1="success", r2="failed", r3="queued")
    board.commands.python(_COMMIT_SAYS, "r2")
    act(board, "replay", "once more", txids=[2])
    # Whose answer is made first does not matter: those who may not read the tries never get the others' answer.
    for day, users in enumerate(((LIMITED, "ulf"), ("ulf", LIMITED)), 1):
        path, since = "topologies/flights/transactions", f"2020-01-0{day}T00:00:00Z"
        for user in users:
            rows = board.get(path, user, since=since)["transactions"]
            assert [bool(row["tasks"]) for row in rows] == [user == "ulf"] * 2, user
            assert [row["has_run"] for row in rows] == [True] * 2
    for user in ("ulf", LIMITED):
        page = board.get("topologies/flights/transactions/2", user)
        guarded = (page["tasks"], page["links"]["tasks"], page["new_values"], page["audit"])
        assert [bool(each) for each in guarded] == [user == "ulf"] * 4
    assert board.get("dags/the_dag/runs/r3", LIMITED)["why"]["sentence"].startswith("The logs of the run's tasks")
    runs.delete()
    path = "topologies/flights/actions/replay"
    preview = board.post(f"{path}/preview", {"txids": [2]}, LIMITED).json()
    forbidden = "Run 'r2' was deleted, and you may not create runs of DAG 'the_dag'."
    assert (preview["effects"], [each["what"].startswith(forbidden) for each in preview["refused"]]) == ([], [True])
    answer = board.post(path, {"txids": [2], "version": preview["version"]}, LIMITED)
    assert (answer.status_code, answer.json()["detail"].startswith(forbidden)) == (409, True)
    (left,) = act(board, "replay-failed", user=LIMITED)
    assert left["what"].startswith(f"left alone: {forbidden}")
    assert runs.states() == {}
    assert act(board, "replay", txids=[2]) == [
        {"txid": 2, "run_id": "r2", "what": "its run did not exist, and was created again"}
    ]


_COMMIT_SAYS = """
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session

with create_session() as session:
    said = {"name": "kept", "rows": 3}
    XComModel.set(key="kept", value=said, dag_id="the_dag", run_id=arguments[0], task_id="commit", session=session)
"""


def test_the_replay_failed_action_replays_only_failed_transactions(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    pipeline.begin("r2")
    runs.make(r1="failed", r2="running")
    assert act(board, "replay-failed") == [{"txid": 1, "run_id": "r1", "what": "its run was cleared"}]


def test_a_skip_and_its_readmission_require_a_reason_and_record_the_user(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    pipeline.begin("r1")
    runs.make(r1="failed")
    path = "topologies/flights/actions/skip"
    version = board.post(f"{path}/preview", {"txids": [1]}).json()["version"]
    without = board.post(path, {"txids": [1], "version": version})
    assert (without.status_code, without.json()["detail"]) == (422, "Enter a reason. The ledger keeps it.")
    (done,) = act(board, "skip", "the file is broken", txids=[1])
    assert done["what"].startswith("skipped.")
    shown = seen(board, "topologies/flights/transactions/1", "ulf", phase="SKIPPED")
    assert (shown["actions"], shown["skip"]["who"]) == (["readmit"], "ulf")
    assert [each["what"] for each in shown["audit"]] == ["skip"]
    (done,) = act(board, "readmit", "it was right", txids=[1])
    assert done["what"].startswith("re-admitted: its run was cleared")


def test_a_preview_lists_the_transactions_for_which_the_action_is_refused(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    pipeline.run("r1")
    pipeline.begin("r2")
    runs.make(r2="running")
    preview = board.post("topologies/flights/actions/replay/preview", {"txids": [1, 2]}).json()
    assert preview["effects"] == []
    assert [each["what"] for each in preview["refused"]] == [
        "Transaction 1 is committed. Nothing was changed.",
        "its run is running; with force it is replayed anyway",
    ]
    loss = board.post("topologies/flights/actions/accept-loss/preview", {}).json()
    assert [each["what"][:40] for each in loss["refused"]] == ["Topology 'flights' has lost nothing: its"]
    unclear = board.post("topologies/flights/actions/skip/preview", {"txids": []})
    assert (unclear.status_code, unclear.json()["detail"]) == (
        409, "skip of topology 'flights': name one transaction. Nothing was done.",
    )  # fmt: skip


@pytest.mark.worth("a source that hangs must not stop the board")
def test_a_hanging_source_does_not_delay_the_page_or_the_lag_of_other_topologies(
    board: Board, store: ZooKeeperStore, pipeline: Pipeline
) -> None:
    pipeline.run("r1")
    hanging = Pipeline(store, ROOT, topology="hangs")
    hanging.request = TopologyRequest("hangs", "opaque", 3)
    hanging.run("r1")

    def described() -> Any:
        lines = {line["topology"]: line for line in at_home(board)}
        return lines if "hangs" in lines and all(line["source"]["description"] for line in lines.values()) else None

    lines = eventually(described, 240, "the sources have answered", interval=0.5)
    assert lines["flights"]["source"]["description"].startswith("FileSource(")
    assert lines["flights"]["lag"]["at"] is not None
    assert lines["hangs"]["lag"]["why"] == "its source has not answered within 10 s"
    # The actions of the same process go on.
    preview = board.post("topologies/flights/actions/accept-loss/preview", {})
    assert preview.status_code == 200


@pytest.mark.worth("the first to ask the process of the DAG files")
def test_the_page_of_a_topology_shows_how_many_message_trees_are_open(board: Board, store: ZooKeeperStore) -> None:
    emitting = Pipeline(store, ROOT, topology="messages")
    emitting.request = TopologyRequest("messages", "opaque", 3)
    begun = emitting.begin("r1")
    ackers = ZnodeAckers(store, ROOT)
    origin = origin_of("messages", begun.attempt, begun.incarnation)
    roots = opened(ackers, origin, ackers=2)
    roots.emit(10)

    def shown() -> Any:
        return board.get("topologies/messages")["ackers"]

    found = eventually(shown, 240, "the ackers have answered", interval=0.5)
    assert (found["trees"], found["acks_a_second"]) == (10, None)
    ackers.forget(origin)


def test_the_lag_of_a_topology_is_read_from_its_own_source(board: Board, store: ZooKeeperStore) -> None:
    here, there = (Pipeline(store, root, topology="lagging") for root in (ROOT, ELSEWHERE_ROOT))
    earlier = Pipeline(store, ROOT, topology="earlier")
    for each in (here, there, earlier):
        each.request = TopologyRequest("lag_here", "opaque", 3)
        each.run("r1")
    other = f"lagging@zookeeper_default{ELSEWHERE_ROOT}"

    def lags() -> dict[str, Any]:
        return {line["topology"]: line["lag"] for line in board.get("topologies")["topologies"]}

    def shows(name: str, value: int | None, why: str | None) -> bool:
        return (lags()[name]["value"], lags()[name]["why"]) == (value, why)

    def await_lag(name: str, value: int | None, why: str | None = None) -> None:
        """Wait for what its source answers; a source that takes more than ten seconds is asked again."""
        told = f"{name} says {value}, {why}"
        eventually(lambda: shows(name, value, why), 240, told, interval=0.5, explain=lambda: str(lags()))

    await_lag("lagging", 3)
    why = f"DAG 'lag_here' keeps topology 'lagging' at {ROOT} of connection 'zookeeper_default'"
    for name in ("earlier", other):
        await_lag(name, None, why)
    renamed = ("tx", "rename", "lagging", "--dag-id", "lag_there", "--why", "it is another one", "--yes")
    board.commands.run(*renamed, "--root", ELSEWHERE_ROOT, root=ROOT)
    await_lag(other, 5)
    await_lag("lagging", 3)


def test_figures_contain_the_limits_beyond_which_a_topology_is_late(board: Board, store: ZooKeeperStore) -> None:
    pipeline = Pipeline(store, ROOT, topology="lagging")
    pipeline.request = TopologyRequest("lag_here", "opaque", 3)
    pipeline.run("r1")

    def limits() -> tuple[float | None, int | None]:
        found = board.get("topologies/lagging/figures")
        return found["late_after"], found["max_lag"]

    def lag() -> int | None:
        found: int | None = board.get("topologies/lagging/figures")["total"]["lag"]
        return found

    eventually(lambda: limits() == (3600.0, 2), 240, "the DAG file was read", interval=0.5)
    eventually(lambda: lag() == 3, 240, "its source has answered", interval=0.5)


def test_topologies_of_other_ledgers_are_shown_and_an_unreachable_ledger_delays_no_topology(
    board: Board, store: ZooKeeperStore, pipeline: Pipeline
) -> None:
    pipeline.run("r1")
    other = Pipeline(store, ELSEWHERE_ROOT)
    other.request = TopologyRequest("elsewhere", "opaque", 3)
    fail(other, other.begin("r1"))

    def read() -> dict[str, Any]:
        return {line["topology"]: line for line in board.get("topologies")["topologies"]}

    there, gone = f"flights@other_zookeeper{ELSEWHERE_ROOT}", f"flights@gone_zookeeper{ELSEWHERE_ROOT}"
    # A ledger that takes more than two seconds is shown as away, too.
    eventually(lambda: read()[there]["open"] == 1, 240, "the other ledger is read", explain=lambda: str(read()))
    lines = read()
    assert lines.keys() == {"flights", there, gone}
    assert (lines[gone]["state"]["code"], lines[gone]["dag_id"]) == ("unreadable", "unreachable")
    assert (lines["flights"]["open"], lines[there]["open"]) == (0, 1)
    assert lines[there]["coordinator"] == {"dag_id": "guide_of_elsewhere", "paused": False}
    assert board.get("dags/elsewhere")["topology"] == there
    assert board.get("dags/guide_of_elsewhere")["role"] == "coordinator"
    assert board.get("dags/elsewhere/runs/r1") == {**board.get("dags/elsewhere/runs/r1"), "topology": there, "txid": 1}

    for action, why in (("pause", ""), ("unpause", ""), ("skip", "the file is broken")):
        body: dict[str, Any] = {"txids": [1]} if action == "skip" else {}
        (done,) = act(board, action, why, topology=there, **body)
        assert done["what"]
    skipped = seen(board, f"topologies/{there}/transactions/1", phase="SKIPPED")
    assert skipped["skip"]["why"] == "the file is broken"
    assert board.get("topologies/flights")["allocated"] == 1
    for user, status in (("vera", 503), (STRANGER, 404)):
        with board.client(user) as client:
            assert client.get(f"/api/v1/topologies/{gone}").status_code == status


def test_a_coordinator_can_be_paused_and_unpaused(board: Board, store: ZooKeeperStore) -> None:
    hanging = Pipeline(store, ROOT, topology="hangs")
    hanging.request = TopologyRequest("hangs", "opaque", 3)
    hanging.run("r1")
    path = "topologies/hangs/actions"
    for action, paused in (("pause", True), ("unpause", False)):
        preview = board.post(f"{path}/{action}/preview", {}).json()
        assert preview["refused"] == []
        body = {"version": preview["version"]}
        first, second = (board.post(f"{path}/{action}", body) for _ in range(2))
        assert (first.status_code, second.status_code) == (200, 409), first.text
        assert board.get("topologies/hangs")["coordinator"] == {"dag_id": "hangs_coordinator", "paused": paused}
    assert board.post(f"{path}/pause/preview", {}, "vera").status_code == 403
    # The names of all topologies may be those of a second ago.
    eventually(lambda: "hangs" in [line["topology"] for line in at_home(board)], 240, "it is listed")
    assert board.get("dags/hangs_coordinator")["role"] == "coordinator"


def test_a_task_links_to_its_transaction_and_airflow_lists_the_pages_of_the_plugin(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    runs.make(r1="failed")
    with board.client("ada") as client:
        path = f"{board.url}/api/v2/dags/the_dag/dagRuns/r1/taskInstances"
        found = client.get(f"{path}/begin/links").json()["extra_links"]
        count = client.get(f"{path}/count/links").json()["extra_links"]
        commit = client.get(f"{path}/commit/links").json()["extra_links"]
        plugins = client.get(f"{board.url}/api/v2/plugins").json()["plugins"]
    assert found == count == commit == {"Transaction": "/dags/the_dag/runs/r1/plugin/run-transaction"}
    (own,) = [plugin for plugin in plugins if plugin["name"] == "airflow_tx"]
    assert {(each["destination"], each["url_route"]) for each in own["react_apps"]} == {
        ("nav", "transactions"), ("dag", "dag-transactions"), ("dag_run", "run-transaction"),
    }  # fmt: skip


# --- without ZooKeeper --------------------------------------------------------------------------------------------


@pytest.mark.worth("ZooKeeper is killed and hangs under the board")
@pytest.mark.parametrize("fault", ["killed", "hanging"])
def test_the_api_reports_an_unreachable_ledger_and_recovers_by_itself(
    board: Board, zookeeper: LocalZooKeeper, pipeline: Pipeline, fault: str
) -> None:
    pipeline.run("r1")
    eventually(lambda: len(at_home(board)) == 1, 240, "the topology is seen")
    paths = ("topologies", "topologies/flights", "topologies/flights/transactions", "dags/the_dag/runs/r1")
    with zookeeper.frozen() if fault == "hanging" else killed(zookeeper):
        told = [_away(board, path) for path in paths]
    assert told == [(503, AWAY)] * len(paths)
    eventually(lambda: at_home(board), 240, "the ledger can be read again")
    pipeline.run("r2")
    eventually(lambda: board.get("topologies/flights/transactions")["total"] == 2, 240, "what is new is seen")


@contextmanager
def killed(zookeeper: LocalZooKeeper) -> Iterator[None]:
    """Without the server, within the block."""
    zookeeper.kill()
    yield
    zookeeper.start()


AWAY = (
    "The ledger cannot be read now: ZooKeeper does not answer. "
    "This page continues automatically once the ledger answers."
)


def _away(board: Board, path: str) -> tuple[int, str]:
    """What one who asks is told, within the three seconds that a page waits."""

    def told() -> tuple[int, str] | None:
        with board.client("vera") as client:
            answer = client.get(f"/api/v1/{path}", timeout=3)
        if answer.status_code == 200:
            return None  # it has not noticed yet
        return answer.status_code, answer.json()["detail"]

    found = eventually(told, 240, "it notices that the ledger is away", interval=0.2)
    assert found is not None
    return found
