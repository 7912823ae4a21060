"""The pages of the board in a real browser: what a person sees, reads and reaches."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.airflow.browser import NARROW, WIDE, People
from tests.integration.board.server import Board
from tests.integration.pipeline import Pipeline
from tests.integration.test_cli_actions import Runs, fail


def beyond(box: Locator) -> int:
    """By how many pixels a box can be scrolled."""
    found: int = box.evaluate("box => box.scrollHeight - box.clientHeight")
    return found


def test_a_short_timeline_does_not_scroll_and_what_scrolls_can_be_focused(
    board: Board, pipeline: Pipeline, runs: Runs, people: People
) -> None:
    pipeline.run("r1")
    fail(pipeline, pipeline.begin("r2"), "a long story\n" * 100)
    runs.make(r1="success", r2="failed")
    ulf = people("ulf")
    for size in (WIDE, NARROW):
        ulf.page.set_viewport_size(size)
        ulf.open(topology="flights")
        expect(ulf.row(2)).to_be_visible()
        rows = ulf.board.get_by_role("list", name="Transactions, newest first")
        assert beyond(rows.locator("..")) == 0
        assert ulf.findings() == []
        ulf.open(topology="flights", txid=2)
        error = ulf.board.get_by_role("region", name="Error")
        assert beyond(error) > 0
        error.focus()
        expect(error).to_be_focused()
        assert ulf.findings() == []
    ulf.page.set_viewport_size(WIDE)
