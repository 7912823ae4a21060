"""The figures of the board in a real browser: what a person sees of them, and what a mouse or a key does."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, ViewportSize, expect

from airflow_tx.ledger.api import SystemClock
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from tests.airflow.browser import NARROW, People, Person
from tests.integration.board.server import ROOT, Board
from tests.integration.cli_runs import fail
from tests.integration.pipeline import Pipeline

NEW_YEAR = 1_767_225_600_000
"""When the clock of a `Pipeline` begins, in milliseconds."""
DESK = ViewportSize(width=1400, height=900)
HOUR = {"range": 3600, "until": NEW_YEAR + 600_000}
FIRST = "2026-01-01 00:00:00 to 2026-01-01 00:02:00"
"""The period that has the transactions of a `Pipeline`."""


@pytest.fixture(params=["light", "dark"])
def seen(request: pytest.FixtureRequest, browser: Browser, board: Board) -> Iterator[Person]:
    """A viewer, whose page is light or dark."""
    person = Person(browser, board, "vera", dark=request.param == "dark", token=board.token("vera"))
    yield person
    assert person.errors == []
    person.page.context.close()


@pytest.fixture
def replayed(pipeline: Pipeline) -> Pipeline:
    """Two transactions, of which the second one has failed once."""
    pipeline.run("r1")
    fail(pipeline, pipeline.begin("r2"))
    pipeline.run("r2")
    return pipeline


def chart(person: Person, title: str) -> Locator:
    return person.board.get_by_role("img", name=re.compile(f"^{title}: "))


def point(shown: Locator, at: float) -> None:
    """Move the mouse over a chart.

    :param at: how far from its left end, of 1.
    """
    plot = shown.locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] * at, "y": box["height"] / 2})


@pytest.mark.long
@pytest.mark.parametrize("size", [DESK, NARROW], ids=["desk", "phone"])
def test_the_charts_cover_the_same_time_as_the_timeline(
    board: Board, replayed: Pipeline, seen: Person, size: ViewportSize
) -> None:
    seen.page.set_viewport_size(size)
    seen.open(topology="flights", **HOUR)
    expect(seen.board).to_contain_text("2 committed transactions from 2025-12-31 23:")
    for name in (
        "Throughput: 2 transactions, [0-9.]+ an hour, 2 rows",
        "Processing: p50",
        "Commit: p50",
        "Batch size: p50",
        "Age: up to 11 s",
        "Lag: not seen",
        "Replays: 1 replay, [0-9.]+ an hour",
        "Failures: 1 failure, [0-9.]+ an hour",
        "Skips: 0 skipped transactions",
    ):
        expect(seen.board.get_by_role("img", name=re.compile(f"^{name}"))).to_be_visible()
    assert seen.findings() == []
    assert seen.overflow() == 0


@pytest.mark.long
def test_all_charts_show_their_values_at_the_time_under_the_pointer(
    board: Board, replayed: Pipeline, people: People
) -> None:
    vera = people("vera")
    vera.open(topology="flights", **HOUR)
    # The hour is from 23:10 to 00:10, so that the first minutes of the year are close to its right end.
    point(chart(vera, "Age"), 51 / 60)
    slider = vera.board.get_by_role("slider", name="Selected time of all charts")
    said = re.compile(f"{FIRST}. Throughput: 2 transactions, 2 rows. .*Replays: 1 replay. Failures: 1 failure.")
    expect(slider).to_have_attribute("aria-valuetext", said)
    lines = vera.board.locator(".u-cursor-x:visible")
    expect(lines).to_have_count(9)
    vera.board.get_by_role("heading", name="Figures").hover()
    expect(slider).to_have_attribute("aria-valuetext", "no time is selected")
    expect(lines).to_have_count(0)


@pytest.mark.long
def test_arrow_keys_move_the_selected_time_of_all_charts_and_enter_zooms_in(
    board: Board, replayed: Pipeline, people: People
) -> None:
    vera = people("vera")
    vera.open(topology="flights", **HOUR)
    slider = vera.board.get_by_role("slider", name="Selected time of all charts")
    slider.focus()
    for _ in range(4):
        slider.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(FIRST))
    assert vera.findings() == []
    slider.press("Enter")
    expect(vera.page).to_have_url(re.compile(f"range=120&until={NEW_YEAR + 120_000}"))
    expect(vera.row(2)).to_be_visible()
    expect(vera.board.get_by_text("2 transactions", exact=True).last).to_be_visible()


@pytest.mark.long
def test_a_click_on_a_bar_of_a_chart_shows_the_transactions_of_its_time(
    board: Board, replayed: Pipeline, people: People
) -> None:
    vera = people("vera")
    vera.open(topology="flights", **HOUR)
    point(chart(vera, "Throughput"), 51 / 60)
    vera.page.mouse.down()
    vera.page.mouse.up()
    expect(vera.page).to_have_url(re.compile(f"range=120&until={NEW_YEAR + 120_000}"))
    expect(vera.board).to_contain_text("until 2026-01-01 00:02:00")
    expect(vera.row(1)).to_be_visible()
    vera.page.go_back()
    expect(vera.board.get_by_role("radio", name="1 h", exact=True)).to_be_checked()


@pytest.mark.long
def test_a_touch_on_a_chart_shows_its_values_and_a_button_that_lists_the_transactions(
    board: Board, replayed: Pipeline, people: People
) -> None:
    vera = people("vera")
    vera.open(topology="flights", **HOUR)
    chart(vera, "Throughput").locator(".u-over").evaluate(
        """plot => {
            const box = plot.getBoundingClientRect();
            const at = { bubbles: true, clientX: box.left + box.width * 51 / 60, clientY: box.top + box.height / 2 };
            plot.dispatchEvent(new MouseEvent("mousemove", at));
            plot.dispatchEvent(new PointerEvent("click", { ...at, pointerType: "touch" }));
        }"""
    )
    expect(vera.board).to_contain_text(f"Show the rows of this time{FIRST}")
    expect(vera.page).to_have_url(re.compile("range=3600&"))
    vera.board.get_by_role("button", name="Show the rows of this time").click()
    expect(vera.page).to_have_url(re.compile(f"range=120&until={NEW_YEAR + 120_000}"))


@pytest.mark.long
def test_a_chart_is_redrawn_only_if_its_data_or_size_has_changed(
    board: Board, replayed: Pipeline, people: People
) -> None:
    vera = people("vera")
    with vera.page.expect_response(re.compile("/figures")):
        vera.open(topology="flights", **HOUR)
    canvas = chart(vera, "Throughput").locator("canvas")
    expect(canvas).to_be_visible()
    # A drawing would wipe it out.
    canvas.evaluate("canvas => { canvas.getContext('2d').fillStyle = '#123456' }")
    canvas.evaluate("canvas => canvas.getContext('2d').fillRect(0, 0, 1, 1)")
    marked = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 1, 1).data].join()"
    for _ in range(2):
        with vera.page.expect_response(re.compile("/figures")):
            pass
    assert canvas.evaluate(marked) == "18,52,86,255"

    vera.page.set_viewport_size(NARROW)
    fits = "canvas => canvas.clientWidth <= canvas.closest('[role=img]').clientWidth"
    vera.page.wait_for_function(fits, arg=canvas.element_handle())
    assert canvas.evaluate(marked) != "18,52,86,255"
    vera.page.set_viewport_size(DESK)


@pytest.mark.long
def test_charts_change_their_colours_with_the_theme(board: Board, replayed: Pipeline, people: People) -> None:
    vera = people("vera")
    vera.open(topology="flights", **HOUR)
    canvas = chart(vera, "Throughput").locator("canvas")
    expect(canvas).to_be_visible()
    # What still loads makes room for itself, and a chart of another width has other pixels.
    expect(vera.board.get_by_role("status", name="Loading")).to_have_count(0)
    light = canvas.evaluate("canvas => canvas.toDataURL()")
    vera.page.emulate_media(color_scheme="dark")
    vera.page.wait_for_function(
        "([canvas, light]) => canvas.toDataURL() !== light", arg=[canvas.element_handle(), light]
    )
    vera.page.emulate_media(color_scheme="light")
    vera.page.wait_for_function(
        "([canvas, light]) => canvas.toDataURL() === light", arg=[canvas.element_handle(), light]
    )


@pytest.mark.long
def test_charts_show_the_limits_beyond_which_a_topology_is_late(
    board: Board, store: ZooKeeperStore, people: People
) -> None:
    pipeline = Pipeline(store, ROOT, topology="lagging")
    pipeline.request = TopologyRequest("lag_here", "opaque", 3)
    pipeline.run("r1")
    vera = people("vera")
    vera.open(topology="lagging", range=600)
    expect(vera.board.get_by_role("img", name="Age: no transaction was open, late_after 1 h")).to_be_visible()
    expect(vera.board.get_by_role("img", name=re.compile("^Lag: 3 files, max_lag 2 files"))).to_be_visible()
    assert vera.findings() == []


@pytest.mark.long
def test_the_overview_shows_how_many_commits_ended_in_the_hour_under_the_pointer(
    board: Board, pipeline: Pipeline, people: People
) -> None:
    pipeline._clock = SystemClock()  # type: ignore[assignment]
    pipeline.run("r1")
    vera = people("vera")
    vera.page.set_viewport_size(DESK)
    vera.open()
    hours = vera.board.get_by_role("img", name=re.compile("^1 commit in 24 h"))
    counts = (hours.get_attribute("aria-label") or "").rpartition(": ")[2].split(", ")
    expect(vera.board.get_by_text("1 in 24 h", exact=True)).to_be_visible()
    point(hours, (counts.index("1") + 0.5) / len(counts))
    expect(vera.board.get_by_text(re.compile(r"^1 from \d\d:00$"))).to_be_visible()
    assert vera.findings() == []
