"""The timeline in a real browser: what time it shows, which rows, and what a person learns of a bar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, ViewportSize, expect

from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.eventually import eventually
from tests.airflow.browser import NARROW, WIDE, People, Person
from tests.integration.board.server import ROOT, Board
from tests.integration.cli_runs import Runs, fail
from tests.integration.pipeline import Pipeline

DAY = 86_400
NEW_YEAR = 1_767_225_600_000
"""When the clock of a `Pipeline` begins, in milliseconds."""
BROAD = ViewportSize(width=1400, height=900)


@pytest.fixture
def days(pipeline: Pipeline) -> Pipeline:
    """Two transactions with a day of nothing between them."""
    pipeline.run("r1")
    pipeline.pause(DAY)
    pipeline.run("r2")
    return pipeline


def plot(person: Person, txid: int) -> dict[str, float]:
    """Where the bars of a transaction may be drawn."""
    box = person.row(txid).locator("svg").last.bounding_box()
    assert box is not None
    return {"x": box["x"], "y": box["y"], "width": box["width"], "height": box["height"]}


def ends(bars: dict[int, list[tuple[float, float]]], txid: int) -> tuple[float, float]:
    return min(begin for begin, _ in bars[txid]), max(end for _, end in bars[txid])


@pytest.mark.lead
def test_the_timeline_contains_all_transactions_and_leaves_out_an_empty_day(
    board: Board, days: Pipeline, people: People
) -> None:
    vera = people("vera")
    vera.open(topology="flights")
    expect(vera.row(1).locator("[data-kind=commit]")).to_be_visible()
    width = plot(vera, 1)["width"]
    first, last = ends(vera.bars("commit"), 1), ends(vera.bars("commit"), 2)
    # Both runs have nearly half of the picture, and what lies between them has a few pixels.
    assert ends(vera.bars("waiting"), 1)[0] < width * 0.4
    assert last[1] > width * 0.9
    assert width * 0.35 < first[1] < width * 0.55
    gap = vera.board.locator("[data-kind=gap] rect")
    expect(gap).to_have_count(1)
    assert float(gap.get_attribute("width") or 0) < 20
    expect(vera.board.locator("[data-gap]")).to_have_text(re.compile("^(1 d|23 h 59 min)"))
    assert vera.findings() == []


@pytest.mark.long
def test_a_link_with_only_an_end_time_shows_the_transactions_before_it(
    board: Board, days: Pipeline, people: People
) -> None:
    vera = people("vera")
    vera.open(topology="flights", until=NEW_YEAR + 3_600_000)
    expect(vera.board).to_contain_text("1 d, until 2026-01-01 01:00:00")
    expect(vera.row(1).locator("[data-kind=commit]")).to_be_visible()
    expect(vera.row(2)).to_have_count(0)


@pytest.mark.long
def test_dragging_over_a_gap_of_the_timeline_zooms_to_the_times_at_both_ends(
    board: Board, days: Pipeline, people: People
) -> None:
    vera = people("vera")
    vera.open(topology="flights")
    expect(vera.row(1)).to_be_visible()
    box = plot(vera, 1)
    middle = box["y"] + box["height"] / 2
    vera.page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    vera.page.mouse.down()
    for part in (0.5, 0.6, 0.7):
        vera.page.mouse.move(box["x"] + box["width"] * part, middle)
    vera.page.mouse.up()
    expect(vera.board).to_contain_text(re.compile(r"1 d, until 2026-01-02 00:00"))
    expect(vera.board.locator("[data-kind=gap]")).to_have_count(1)
    vera.page.go_back()
    expect(vera.row(2)).to_be_visible()


def test_a_tooltip_explains_a_bar_and_its_times_on_hover_and_on_keyboard_focus(
    board: Board, pipeline: Pipeline, people: People
) -> None:
    pipeline.run("r1")
    vera = people("vera")
    vera.open(topology="flights")
    tip = vera.page.get_by_test_id("tip")
    vera.row(1).locator("[data-kind=commit]").hover()
    expect(tip).to_have_text(
        re.compile(r"^Transaction 1: committedfrom 2026-01-01 00:00:\d\duntil 2026-01-01 00:00:\d\d\d+ s$")
    )
    assert vera.findings() == []
    vera.page.keyboard.press("Escape")
    expect(tip).to_have_count(0)
    vera.row(1).focus()
    vera.row(1).press("ArrowRight")
    expect(tip).to_contain_text("Transaction 1: waited to commit")
    vera.row(1).press("ArrowRight")
    expect(tip).to_contain_text("Transaction 1: committed")
    vera.row(1).press("ArrowLeft")
    expect(tip).to_contain_text("waited to commit")
    assert vera.findings() == []
    vera.row(1).blur()
    expect(tip).to_have_count(0)


@pytest.mark.lead
def test_the_bars_of_a_restated_transaction_are_pale_and_name_its_restatement(
    board: Board, store: ZooKeeperStore, pipeline: Pipeline, people: People
) -> None:
    journaled = Pipeline(store, ROOT, journals=True)
    journaled.request = pipeline.request
    journaled.run("r1")
    assert journaled.restate(1, "r1", 1) == 2
    vera = people("vera")
    vera.open(topology="flights")
    expect(vera.row(1)).to_contain_text("restated by 2")
    expect(vera.row(1).locator("[data-counts=false]")).to_have_css("opacity", "0.45")
    expect(vera.row(2).locator("[data-counts=true]")).to_have_css("opacity", "1")
    assert vera.findings() == []


# --- which rows ---------------------------------------------------------------------------------------------------


@pytest.fixture
def many(pipeline: Pipeline, runs: Runs) -> Pipeline:
    """More transactions than a page loads at once: 7 is replayed once, the newest one has failed."""
    pipeline.states = ()
    for number in range(1, 131):
        run = f"r{number}"
        if number == 7:
            fail(pipeline, pipeline.begin(run), "the disk was full")
        pipeline.run(run)
    fail(pipeline, pipeline.begin("r131"), "no route")
    runs.make(r131="failed")
    return pipeline


@pytest.mark.long
def test_a_filter_finds_transactions_that_are_not_loaded_and_a_reload_keeps_the_filter(
    board: Board, many: Pipeline, people: People
) -> None:
    eventually(lambda: board.get("topologies/flights")["allocated"] == 131, 240, "the newest transaction is seen")
    vera = people("vera")
    vera.open(topology="flights", range=3600, until=NEW_YEAR + 3_600_000)
    expect(vera.row(131)).to_be_visible()
    expect(vera.row(7)).to_have_count(0)
    vera.board.get_by_role("button", name="Filter rows").click()
    vera.board.get_by_role("searchbox", name="Filter rows by text").fill("DISK was")
    expect(vera.row(7)).to_be_visible()
    expect(vera.board).to_contain_text("1 transaction matches the filter in this time.")
    assert vera.findings() == []
    vera.page.reload()
    expect(vera.row(7)).to_be_visible()
    expect(vera.row(131)).to_have_count(0)
    expect(vera.board.get_by_role("searchbox", name="Filter rows by text")).to_have_value("DISK was")
    vera.board.get_by_role("group", name="Filter rows by status").get_by_role("button", name="failed").click()
    expect(vera.board).to_contain_text("No transaction in this time matches the filter.")
    vera.board.get_by_role("button", name="Show all rows").click()
    expect(vera.row(131)).to_be_visible()

    only = vera.board.get_by_role("group", name="Filter rows by property")
    only.get_by_role("button", name="replayed").click()
    expect(vera.row(7)).to_be_visible()
    expect(only.get_by_role("button", name="replayed")).to_have_attribute("aria-pressed", "true")
    only.get_by_role("button", name="replayed").click()
    only.get_by_role("button", name="slow").click()
    expect(vera.board).to_contain_text(re.compile(r"A slow transaction takes longer than \d+ s; 95 of 100"))
    vera.board.get_by_role("button", name="Show all rows").click()
    # It opens at what the filter lets through, however long ago that was.
    vera.open(topology="flights", run="r3")
    expect(vera.row(3)).to_be_visible()
    expect(vera.board.get_by_text("1 transaction", exact=True)).to_be_visible()


# --- all time -----------------------------------------------------------------------------------------------------


def slider(person: Person, name: str) -> Locator:
    return person.board.get_by_role("slider", name=name)


def shown(person: Person) -> dict[str, float]:
    """What the address says of the time."""
    found = re.findall(r"(range|until)=(\d+)", person.page.url)
    return {name: float(value) for name, value in found}


def drag(person: Person, grip: Locator, pixels: float) -> None:
    grip.scroll_into_view_if_needed()
    box = grip.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    person.page.mouse.move(x, y)
    person.page.mouse.down()
    for part in (0.3, 0.7, 1):
        person.page.mouse.move(x + pixels * part, y)
    person.page.mouse.up()


@pytest.mark.long
def test_pointer_and_arrow_keys_move_and_resize_the_overview_window_of_the_timeline(
    board: Board, days: Pipeline, people: People
) -> None:
    vera = people("vera")
    until = NEW_YEAR + 40 * DAY * 1000
    vera.open(topology="flights", range=20 * DAY, until=until)
    window = slider(vera, "Shown time range")
    expect(window).to_have_attribute("aria-valuetext", re.compile("^20 d, from "))
    window.focus()
    window.press("ArrowLeft")
    vera.page.wait_for_url(lambda url: f"until={until}" not in url)
    assert shown(vera) == {"range": 20 * DAY, "until": until - DAY * 1000}
    slider(vera, "Shown from").focus()
    slider(vera, "Shown from").press("ArrowLeft")
    vera.page.wait_for_url(re.compile(f"range={21 * DAY}"))
    before = shown(vera)
    drag(vera, slider(vera, "Shown until"), 30)
    vera.page.wait_for_url(lambda url: f"range={21 * DAY}" not in url)
    assert shown(vera)["range"] > before["range"]
    assert shown(vera)["until"] > before["until"]
    resized = shown(vera)
    drag(vera, window, -40)
    vera.page.wait_for_url(lambda url: f"until={resized['until']:.0f}" not in url)
    assert shown(vera)["range"] == resized["range"]
    assert shown(vera)["until"] < resized["until"]
    # The rows of that time are shown, and it is one step back to the time before.
    slider(vera, "Shown time range").press("Home")
    expect(vera.row(2)).to_be_visible()


@pytest.mark.long
def test_touch_moves_the_overview_window_of_the_timeline(board: Board, days: Pipeline, people: People) -> None:
    vera = people("vera")
    vera.page.set_viewport_size(NARROW)
    until = NEW_YEAR + 40 * DAY * 1000
    vera.open(topology="flights", range=20 * DAY, until=until)
    window = slider(vera, "Shown time range")
    window.scroll_into_view_if_needed()
    box = window.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = vera.page.context.new_cdp_session(vera.page)
    touches: list[tuple[str, list[dict[str, Any]]]] = [("touchStart", [{"x": x, "y": y}])]
    touches += [("touchMove", [{"x": x + moved, "y": y}]) for moved in (10, 25, 40)]
    for kind, points in [*touches, ("touchEnd", [])]:
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    vera.page.wait_for_url(lambda url: f"until={until}" not in url)
    assert shown(vera)["until"] > until
    assert shown(vera)["range"] == 20 * DAY
    vera.page.set_viewport_size(WIDE)


@pytest.mark.long
def test_a_user_can_type_a_time_in_the_time_zone_of_the_page(board: Board, days: Pipeline, people: People) -> None:
    vera = people("vera")
    vera.page.goto("/")
    vera.page.evaluate("localStorage.setItem('timezone', JSON.stringify('Asia/Kolkata'))")
    try:
        vera.open(topology="flights")
        first, last = vera.board.get_by_label("From, Asia/Kolkata"), vera.board.get_by_label("Until, Asia/Kolkata")
        expect(first).to_have_value(re.compile("^2026-01-01T05:30"))
        first.fill("2026-01-02T05:30:00")
        last.fill("2026-01-01T05:30:00")
        expect(vera.board).to_contain_text("The end must be after the start.")
        expect(vera.board.get_by_role("button", name="Show this time")).to_be_disabled()
        last.fill("2026-01-02T06:30:00")
        last.press("Enter")
        vera.page.wait_for_url(re.compile("range=3600"))
        assert shown(vera) == {"range": 3600, "until": NEW_YEAR + (DAY + 3600) * 1000}
        expect(vera.row(2)).to_be_visible()
        expect(vera.row(1)).to_have_count(0)
        first.fill("2026-01-01T05:30:00")
        last.fill("")
        vera.board.get_by_role("button", name="Show this time").click()
        expect(vera.board).to_contain_text(", live")
    finally:
        vera.page.evaluate("localStorage.removeItem('timezone')")


# --- for everybody ------------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["light", "dark"])
def reader(request: pytest.FixtureRequest, browser: Browser, board: Board) -> Iterator[Person]:
    """A viewer whose page is light, or dark."""
    person = Person(browser, board, "vera", dark=request.param, token=board.token("vera"))
    yield person
    assert person.errors == []
    person.page.context.close()


@pytest.mark.long
@pytest.mark.parametrize("size", [NARROW, BROAD], ids=["380", "1400"])
def test_the_timeline_is_accessible_at_narrow_and_wide_screen_sizes(
    board: Board, days: Pipeline, runs: Runs, reader: Person, size: ViewportSize
) -> None:
    fail(days, days.begin("r3"), "it broke")
    runs.make(r3="failed")
    eventually(lambda: board.get("topologies/flights")["allocated"] == 3, 240, "the open transaction is seen")
    reader.page.set_viewport_size(size)
    reader.open(topology="flights", status="COMMITTED,FAILED")
    expect(reader.row(3)).to_be_visible()
    expect(slider(reader, "Shown time range")).to_be_visible()
    reader.row(1).focus()
    reader.row(1).press("ArrowRight")
    expect(reader.page.get_by_test_id("tip")).to_be_visible()
    assert reader.findings() == []
    assert reader.overflow() <= 0
