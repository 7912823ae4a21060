"""Advice in a real browser: the buttons where the sentence is, the log, the command, and the cause."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator, Route, ViewportSize, expect

from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.steps import processing
from airflow_tx.testing.eventually import eventually
from tests.airflow.browser import NARROW, People, Person
from tests.examples import examples
from tests.integration.board.server import Board
from tests.integration.cli_runs import Runs, fail
from tests.integration.pipeline import Pipeline
from tests.remedies import remedy_of

SIZES = (ViewportSize(width=1400, height=900), NARROW)

_BROKEN = """
from datetime import datetime, timedelta, timezone
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import update

run_id, task_id, number = arguments
start = datetime(2026, 1, 1, tzinfo=timezone.utc)
with create_session() as session:
    session.execute(
        update(TaskInstance)
        .filter_by(dag_id="the_dag", run_id=run_id, task_id=task_id)
        .values(state="failed", try_number=int(number), start_date=start, end_date=start + timedelta(seconds=9))
    )
"""


@pytest.fixture
def failed(board: Board, pipeline: Pipeline, runs: Runs) -> Pipeline:
    """Transaction 1 has failed in its task count; transaction 2 is processed, and waits for it."""
    fail(pipeline, pipeline.begin("r1"))
    pipeline.process(pipeline.begin("r2"))
    runs.make(r1="failed", r2="running")
    board.commands.python(_BROKEN, "r1", "count", "2")
    eventually(lambda: board.get("topologies/flights")["allocated"] == 2, 240, "both are seen")
    return pipeline


@pytest.fixture(scope="module")
def dark(browser: Browser, board: Board) -> Iterator[Callable[[str], Person]]:
    """Users whose pages are dark."""
    known: dict[str, Person] = {}

    def person(user: str) -> Person:
        if user not in known:
            known[user] = Person(browser, board, user, dark=True, token=board.token(user))
        return known[user]

    yield person
    assert [error for each in known.values() for error in each.errors] == []
    for each in known.values():
        each.page.context.close()


def check_sights(people: tuple[Person, ...], shown: Callable[[Person], Locator]) -> None:
    """Look at what is shown in light and dark, wide and narrow; a quick run looks at two of these four."""
    every = [(person, size) for person in people for size in SIZES]
    for person, size in every[:: examples(3, 1)]:
        person.page.set_viewport_size(size)
        expect(shown(person)).to_be_visible()
        assert person.findings() == [], (size, person.page.url)
        assert person.overflow() <= 0, (size, person.page.url)
    for person in people:
        person.page.set_viewport_size(SIZES[0])


LOG = "Open the log of count"
ROWS = "Rows that check 'positive' refuses: (n=-1)"


def test_the_overview_shows_each_problem_once_with_its_buttons(
    board: Board, failed: Pipeline, runs: Runs, people: People, dark: People
) -> None:
    both = people("ulf"), dark("ulf")
    for each in both:
        each.open()
    check_sights(both, lambda each: each.board.get_by_role("link", name=LOG))
    ulf = both[0]
    row = ulf.board.get_by_role("rowgroup").filter(has=ulf.page.get_by_role("link", name="flights", exact=True))
    expect(row).to_contain_text("Transaction 1 has failed: it broke.")
    expect(row).not_to_contain_text("airflow tx replay")
    expect(row.get_by_role("link", name="Transaction 1", exact=True)).to_have_attribute(
        "href", re.compile(r"topology=flights&txid=1$")
    )
    row.get_by_role("button", name="Replay transaction 1 of flights").click()
    dialog = ulf.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Replay transaction 1 of topology flights.")
    dialog.get_by_role("button", name="Replay", exact=True).click()
    # It stays, though the transaction has failed no more.
    expect(dialog).to_contain_text("1 (run r1): its run was cleared")
    assert runs.states()["r1"] == "running"
    ulf.page.keyboard.press("Escape")


@pytest.mark.lead
def test_the_header_of_a_topology_shows_buttons_to_users_and_commands_to_viewers(
    board: Board, failed: Pipeline, people: People, dark: People
) -> None:
    both = people("ulf"), dark("ulf")
    for each in both:
        each.open(topology="flights")
    check_sights(both, lambda each: each.board.get_by_role("button", name="Skip transaction 1 of flights"))
    vera = people("vera")
    vera.open(topology="flights")
    expect(vera.board).to_contain_text("airflow tx replay flights 1, or clear its failed task")
    expect(vera.board.get_by_role("button", name=re.compile("^(Replay|Skip)"))).to_have_count(0)
    expect(vera.board.get_by_text("Transaction 1 has failed")).to_have_count(1)


@pytest.mark.lead
def test_the_copy_button_copies_the_advised_command(board: Board, failed: Pipeline, people: People) -> None:
    ulf = people("ulf")
    ulf.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ulf.open(topology="flights", txid=1)
    ulf.board.get_by_role("button", name="Copy the command airflow tx replay flights 1").click()
    expect(ulf.board.get_by_text("Copied")).to_be_visible()
    assert ulf.page.evaluate("navigator.clipboard.readText()") == "airflow tx replay flights 1"


def test_the_page_shows_the_refused_rows_that_are_in_the_task_log(
    board: Board, pipeline: Pipeline, runs: Runs, people: People
) -> None:
    remedy = remedy_of("Correct the code, then replay it: <airflow tx replay flights 1>")
    begun = pipeline.begin("r1")
    own = TaskTry("task0", -1, "999999")
    pipeline.ledger.start(begun.attempt, own)
    pipeline.ledger.run(processing.fail, begun.attempt, own, reason="refused", remedy=remedy, for_good=True)
    runs.make(r1="failed")
    board.commands.python(_BROKEN, "r1", "count", "2")
    eventually(lambda: board.get("topologies/flights")["allocated"] == 1, 240, "it is seen")
    log = board.get("topologies/flights/transactions/1")["advice"]["log"]
    folder = board.home / "logs" / "dag_id=the_dag" / "run_id=r1" / f"task_id={log['task_id']}"
    folder.mkdir(parents=True)
    at = "2026-01-01T00:00:00Z"
    lines = [
        {"timestamp": at, "event": "it starts"},
        {"timestamp": at, "event": ROWS, "logger": "airflow_tx.refused_rows"},
    ]
    (folder / f"attempt={log['try_number']}.log").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    vera = people("vera")
    vera.open(topology="flights", txid=1)
    vera.board.get_by_role("button", name="Show the refused rows").click()
    expect(vera.board.get_by_role("region", name="Refused rows")).to_have_text(ROWS)


def test_the_error_of_a_transaction_links_to_the_log_of_the_failed_task(
    board: Board, failed: Pipeline, people: People, dark: People
) -> None:
    both = people("ulf"), dark("ulf")
    for each in both:
        each.open(topology="flights", txid=1)
    check_sights(both, lambda each: each.board.get_by_role("link", name=LOG))
    ulf = both[0]
    expect(ulf.board.get_by_text("Waits for a replay", exact=True)).to_be_visible()
    expect(ulf.board.get_by_role("button", name="Replay", exact=True)).to_have_count(1)
    expect(ulf.board.get_by_role("region", name="Error")).to_have_text("it broke")
    ulf.board.get_by_role("link", name=LOG).click()
    expect(ulf.page).to_have_url(re.compile(r"/dags/the_dag/runs/r1/tasks/count\?try_number=2$"))


@pytest.mark.lead
def test_a_waiting_transaction_names_the_transaction_that_blocks_it_and_links_to_it(
    board: Board, failed: Pipeline, people: People, dark: People
) -> None:
    both = people("vera"), dark("vera")
    for each in both:
        each.open(topology="flights", txid=2)
    check_sights(both, lambda each: each.board.get_by_text("has failed: it broke."))
    both[0].board.get_by_role("link", name="Transaction 1", exact=True).click()
    expect(both[0].board.get_by_role("heading", level=1)).to_have_text("Transaction 1")


@pytest.mark.lead
def test_the_page_of_a_run_without_a_transaction_links_to_the_log_of_begin(
    board: Board, pipeline: Pipeline, runs: Runs, people: People, dark: People
) -> None:
    pipeline.run("r1")
    runs.make(broken="failed")
    board.commands.python(_BROKEN, "broken", "begin", "1")
    both = people("ulf"), dark("ulf")
    for each in both:
        each.page.goto("/dags/the_dag/runs/broken/plugin/run-transaction")
        expect(each.board).to_contain_text("The task begin has failed")
        expect(each.board.get_by_role("link", name="Open the log of begin")).to_be_visible()
        assert each.findings() == []


@pytest.mark.lead
def test_the_table_of_attempts_marks_cells_that_changed_since_the_previous_attempt(
    board: Board, pipeline: Pipeline, runs: Runs, people: People, dark: People
) -> None:
    fail(pipeline, pipeline.begin("r1"), "the disk is full")
    fail(pipeline, pipeline.begin("r1"), "no rights")
    runs.make(r1="failed")
    both = people("vera"), dark("vera")
    for each in both:
        each.open(topology="flights", txid=1)
    attempts = both[0].board.get_by_role("region", name="Attempts")
    check_sights(both, lambda each: each.board.get_by_role("rowheader", name="1.2", exact=True))
    expect(attempts.get_by_role("columnheader")).to_contain_text(["Attempt", "Outcome", "Begun"])
    expect(attempts.get_by_role("row")).to_contain_text(["Error", "1.1replayed", "1.2failed"])
    expect(attempts.get_by_role("row").nth(1)).to_contain_text("the disk is full")
    # The error of the newest one stands above, once.
    expect(attempts.get_by_role("row").nth(2)).to_contain_text("≠ the error above")
    expect(both[0].board.get_by_text("no rights")).to_have_count(1)
    expect(attempts.locator("[data-changed]")).to_have_count(1)


# --- busy ---------------------------------------------------------------------------------------------------------

BUSY = "Topology flights is busy: a search in topology flights, since 12:00:00 UTC. Try again in a few seconds."


def refuses(route: Route) -> None:
    """Answer as an api-server whose questions are under way."""
    route.fulfill(status=429, json={"detail": BUSY}, headers={"Retry-After": "1", "Content-Type": "application/json"})


@pytest.mark.lead
def test_a_refused_search_shows_the_reason_and_is_retried_automatically(
    board: Board, pipeline: Pipeline, people: People, dark: People
) -> None:
    pipeline.run("r1")
    both = people("vera"), dark("vera")
    for each in both:
        each.page.route("**/search?*", refuses)
        each.open(topology="flights")
        each.board.get_by_role("searchbox", name="Find a transaction").fill("1")
        each.page.keyboard.press("Enter")
        expect(each.board.get_by_role("alert")).to_contain_text(BUSY)
    check_sights(both, lambda each: each.board.get_by_role("button", name="Try again"))
    for each in both:
        each.page.unroute("**/search?*", refuses)
        expect(each.board.get_by_text("Searched 1 transaction, down to transaction 1.")).to_be_visible()
        expect(each.board.get_by_role("alert")).to_have_count(0)


@pytest.mark.lead
def test_an_action_refused_because_the_server_is_busy_is_retried_until_it_is_done(
    board: Board, failed: Pipeline, runs: Runs, people: People
) -> None:
    ulf = people("ulf")
    ulf.open(topology="flights", txid=1)
    ulf.page.route("**/replay/preview", refuses)
    ulf.board.get_by_role("button", name="Replay", exact=True).click()
    dialog = ulf.page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text(BUSY)
    assert ulf.findings() == []
    ulf.page.unroute("**/replay/preview", refuses)
    expect(dialog).to_contain_text("Replay transaction 1 of topology flights.")
    ulf.page.route("**/actions/replay", refuses)
    dialog.get_by_role("button", name="Replay", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text(BUSY)
    ulf.page.unroute("**/actions/replay", refuses)
    expect(dialog).to_contain_text("1 (run r1): its run was cleared")
    assert runs.states()["r1"] == "running"
    ulf.page.keyboard.press("Escape")
