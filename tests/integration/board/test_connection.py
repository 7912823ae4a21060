"""What the page says in a real browser while no answers come: why, of when it is, and that it comes back by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.airflow.browser import Person
from tests.integration.board.server import Board
from tests.integration.cli_runs import fail
from tests.integration.pipeline import Pipeline

ANSWERS = re.compile(r"/tx/api/v1/")
OLD = re.compile(r"The page shows the state of 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\. The page tries again every \d+ s\.")


@pytest.fixture
def vera(board: Board, browser: Browser, pipeline: Pipeline) -> Iterator[Person]:
    """A viewer, who looks at a topology of which a transaction is under way."""
    fail(pipeline, pipeline.begin("r1"))
    pipeline.begin("r2")
    person = Person(browser, board, "vera", token=board.token("vera"))
    person.open(topology="flights")
    expect(said(person.page)).to_contain_text("live")
    yield person
    person.page.context.close()


def said(page: Page) -> Locator:
    """What the page says of the time that it shows."""
    return page.get_by_test_id("board").get_by_text(re.compile("live$"))


def trouble(person: Person) -> Locator:
    return person.board.get_by_role("status").filter(has_text="The page tries again")


@pytest.mark.parametrize("address", [{}, {"topology": "flights"}, {"topology": "flights", "txid": 1}], ids=str)
def test_an_offline_page_shows_when_its_data_was_read_and_recovers_by_itself(
    vera: Person, address: dict[str, object]
) -> None:
    vera.open(**address)
    expect(vera.board.get_by_role("heading", level=1)).to_be_visible()
    vera.page.context.set_offline(True)
    expect(trouble(vera)).to_contain_text("There is no network.")
    expect(trouble(vera)).to_contain_text(OLD)
    expect(trouble(vera)).to_have_count(1)
    assert vera.findings() == []
    vera.page.context.set_offline(False)
    expect(trouble(vera)).to_have_count(0)


def test_an_offline_timeline_is_marked_as_not_live_and_ends_at_its_last_data(vera: Person) -> None:
    vera.page.context.set_offline(True)
    expect(said(vera.page)).to_contain_text(re.compile(r"until 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d, not live$"))
    until = said(vera.page).text_content()
    # A question that fails later is asked for the same time.
    for _ in range(3):
        with vera.page.expect_event("requestfailed"):
            pass
    assert said(vera.page).text_content() == until
    vera.page.context.set_offline(False)
    expect(said(vera.page)).not_to_contain_text("not live")


def test_a_page_reports_an_expired_session_and_recovers_after_a_login(vera: Person, board: Board) -> None:
    cookies = vera.page.context.cookies()
    vera.page.context.clear_cookies()
    expect(trouble(vera)).to_contain_text("You are no longer logged in")
    expect(trouble(vera)).to_contain_text("The page tries again every 20 s.")
    vera.page.context.add_cookies(cookies)  # type: ignore[arg-type]
    expect(trouble(vera)).to_have_count(0)
    expect(said(vera.page)).not_to_contain_text("not live")


def test_a_page_that_was_suspended_repeats_its_unanswered_requests(vera: Person) -> None:
    page = vera.page
    page.clock.install()
    vera.open(topology="flights")
    expect(said(page)).to_be_visible()
    lost: list[Route] = []
    page.route(ANSWERS, lambda route: lost.append(route))
    with page.expect_request(ANSWERS):
        page.clock.run_for(3_000)
    assert lost
    page.unroute(ANSWERS)
    # Nothing has answered these questions, as nothing does after a night.
    with page.expect_response(ANSWERS):
        page.clock.fast_forward("08:00:00")
        page.clock.run_for(3_000)
    expect(trouble(vera)).to_have_count(0)
