"""The pages of the board in a real browser: what a person sees, reads and reaches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.receipt import CheckNote
from airflow_tx.ledger.steps import processing
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.state import DeltaTable
from airflow_tx.testing.eventually import eventually
from tests.airflow.browser import NARROW, WIDE, People
from tests.integration.board.server import OF_ONE_DAG, ROOT, Board
from tests.integration.cli_runs import Runs, fail
from tests.integration.pipeline import Pipeline
from tests.integration.rejecting_topology import MALFORMED, Rejecting

NEW_YEAR = 1_767_225_600_000
"""When the clock of a `Pipeline` begins, in milliseconds."""


def beyond(box: Locator) -> int:
    """By how many pixels a box can be scrolled."""
    found: int = box.evaluate("box => box.scrollHeight - box.clientHeight")
    return found


@pytest.mark.long
def test_a_short_timeline_does_not_scroll_and_scrollable_parts_can_be_focused(
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


# --- the overview -------------------------------------------------------------------------------------------------


def _topologies(store: ZooKeeperStore, **failed: bool) -> None:
    """Make topologies of one transaction each."""
    for name, broken in failed.items():
        pipeline = Pipeline(store, ROOT, topology=name)
        pipeline.request = TopologyRequest("the_dag", "opaque", 3)
        begun = pipeline.begin("r1")
        if broken:
            fail(pipeline, begun)


@pytest.mark.worth("the board in a browser, with what axe finds")
def test_the_header_counts_topologies_by_state_and_a_click_or_a_text_filters_them(
    board: Board, store: ZooKeeperStore, runs: Runs, people: People
) -> None:
    _topologies(store, shop_a=True, shop_b=False, mill=True)
    runs.make(r1="running")
    eventually(lambda: board.get("topologies", text="the_dag")["total"] == 3, 240, "all three are seen")
    vera = people("vera")
    vera.open()
    head = vera.board.get_by_role("group", name="Topologies by state")
    shown = vera.board.get_by_role("row").get_by_role("link", name=re.compile("^(shop|mill)"))
    expect(shown).to_have_text(["mill", "shop_a", "shop_b"])
    head.get_by_role("button", name="2 failed").click()
    expect(shown).to_have_text(["mill", "shop_a"])
    expect(head.get_by_role("button", name="2 failed")).to_have_attribute("aria-pressed", "true")
    vera.board.get_by_role("searchbox", name="Filter topologies").fill("shop")
    expect(shown).to_have_text(["shop_a"])
    expect(head.get_by_role("button", name="1 fine")).to_be_visible()
    assert vera.findings() == []
    # The address can be sent to others.
    vera.page.reload()
    expect(shown).to_have_text(["shop_a"])
    head.get_by_role("button", name="1 failed").click()
    expect(shown).to_have_text(["shop_a", "shop_b"])


def _failing(store: ZooKeeperStore, dag_id: str, *names: str) -> None:
    for number, name in enumerate(names):
        pipeline = Pipeline(store, ROOT, topology=name)
        pipeline.request = TopologyRequest(dag_id, "opaque", 3)
        fail(pipeline, pipeline.begin("r1"), f"row {number} of '{name}.csv' has no price")


SHOPS = ("shop a", "shop 'b'", "s" * 200, "\u0637\u0644\u0628\u0627\u062a")
"""Names with spaces and quotes, a long one, and one that is read from right to left."""


@pytest.mark.lead
def test_topologies_with_the_same_error_share_one_row_that_can_be_expanded_with_the_keyboard(
    board: Board, store: ZooKeeperStore, runs: Runs, people: People
) -> None:
    _failing(store, "the_dag", *SHOPS)
    runs.make(r1="running")
    eventually(lambda: board.get("topologies", text="no price")["total"] == len(SHOPS), 240, "all are seen")
    vera = people("vera")
    for size in (WIDE, NARROW):
        vera.page.set_viewport_size(size)
        vera.open()
        cause = vera.board.get_by_role("button", name="4 topologies: row … of … has no price")
        expect(cause).to_have_attribute("aria-expanded", "false")
        expect(vera.board.get_by_role("link", name=SHOPS[0], exact=True)).to_have_count(0)
        assert vera.findings() == []
        cause.press("Enter")
        expect(cause).to_have_attribute("aria-expanded", "true")
        for name in SHOPS:
            expect(vera.board.get_by_role("link", name=name, exact=True)).to_be_visible()
        assert vera.findings() == []
        assert vera.overflow() <= 0
    # The address can be sent to others.
    vera.page.reload()
    expect(vera.board.get_by_role("link", name=SHOPS[0], exact=True)).to_be_visible()
    vera.page.set_viewport_size(WIDE)


def test_a_shared_error_counts_only_topologies_that_the_viewer_may_see(
    board: Board, store: ZooKeeperStore, runs: Runs
) -> None:
    _failing(store, "the_dag", "a", "b", "c")
    _failing(store, "lossy", "d", "e", "f")

    def seen(user: str) -> list[int]:
        return [each["topologies"] for each in board.get("topologies", user, grouped=True)["causes"]]

    eventually(lambda: seen("vera") == [6], 240, "all are seen")
    assert seen(OF_ONE_DAG) == [3]
    (cause,) = board.get("topologies", "vera", grouped=True)["causes"]
    assert board.get("topologies", OF_ONE_DAG, cause=cause["cause"])["total"] == 3


@pytest.mark.lead
def test_each_topology_on_the_overview_has_two_rows_and_a_tooltip_that_describes_the_source(
    board: Board, store: ZooKeeperStore, runs: Runs, people: People
) -> None:
    _failing(store, "the_dag", "shop")
    runs.make(r1="running")
    eventually(lambda: board.get("topologies", text="no price")["total"] == 1, 240, "it is seen")
    ulf = people("ulf")
    ulf.open()
    link = ulf.board.get_by_role("link", name="shop", exact=True)
    line = ulf.board.get_by_role("rowgroup").filter(has=ulf.page.get_by_role("link", name="shop", exact=True))
    expect(line.get_by_role("row")).to_have_count(2)
    expect(line.get_by_role("button", name="Replay transaction 1 of shop")).to_be_visible()
    tops = line.get_by_role("button").evaluate_all("all => all.map(each => each.getBoundingClientRect().top)")
    assert len(set(tops)) == 1
    box = line.bounding_box()
    assert box is not None
    assert box["height"] <= 72
    expect(line).not_to_contain_text("source")
    link.focus()
    expect(ulf.page.get_by_role("tooltip")).to_contain_text("source opaque")
    assert ulf.findings() == []


# --- the timeline and a transaction -------------------------------------------------------------------------------


@pytest.fixture
def filed(store: ZooKeeperStore) -> Pipeline:
    """A topology of files: transaction n has file n."""
    pipeline = Pipeline(store, ROOT)
    pipeline.request = TopologyRequest("the_dag", "opaque", 6)
    pipeline.metadata = lambda row: {"folder": "/data", "files": [{"name": f"{row:02}.csv", "size": 7}]}
    return pipeline


@pytest.mark.lead
def test_the_file_name_is_shown_next_to_the_txid_and_only_existing_transactions_are_links(
    board: Board, filed: Pipeline, runs: Runs, people: People
) -> None:
    filed.run("r1")
    filed.begin("r2")
    runs.make(r1="success", r2="running")
    vera = people("vera")
    vera.open(topology="flights", range=3600, until=NEW_YEAR + 600_000)
    expect(vera.row(1)).to_have_accessible_name(re.compile(r"committed, 01\.csv"))
    expect(vera.row(2)).to_contain_text("02.csv")
    vera.row(2).click()
    expect(vera.board.get_by_role("heading", level=1)).to_have_text("Transaction 2")
    expect(vera.board).to_contain_text("Batch02.csv")
    beside = vera.board.get_by_role("link", name=re.compile("Transaction [0-9]"))
    expect(beside).to_have_text(["← Transaction 1"])
    beside.click()
    expect(beside).to_have_text(["Transaction 2 →"])


@pytest.mark.long
def test_a_term_of_the_protocol_has_a_tooltip_and_links_to_its_explanation(
    board: Board, pipeline: Pipeline, people: People
) -> None:
    pipeline.run("r1")
    vera = people("vera")
    vera.open(topology="flights", txid=1)
    fence = vera.board.get_by_role("link", name="Fence", exact=True)
    fence.focus()
    expect(vera.page.get_by_role("tooltip")).to_contain_text("refuses writers with an older token")
    assert vera.findings() == []
    fence.press("Enter")
    expect(vera.board.get_by_role("heading", level=1)).to_have_text("Terms of the Transactions page")
    expect(vera.board).to_contain_text("docs/fence.md")
    assert vera.findings() == []
    vera.board.get_by_role("link", name="← Back").click()
    expect(vera.board.get_by_role("heading", level=1)).to_have_text("Transaction 1")


@pytest.mark.long
def test_a_transaction_shows_its_checks_and_how_many_rows_each_task_rejected(
    board: Board, pipeline: Pipeline, people: People
) -> None:
    begun = pipeline.begin("r1")
    ledger, task = pipeline.ledger, TaskTry("task0", -1, "999999")
    ledger.start(begun.attempt, task)
    ledger.run(processing.ack, begun.attempt, task, rows=9, outputs=[{"name": "tx_rejected", "rows": 2}])
    epoch = pipeline.complete(begun).epoch
    failed = {"positive": CheckNote(False, "1 of 7 rows", "of the rows")}
    ledger.note_commit_failed(begun.attempt, epoch, reason="refused", for_good=True, checks=failed)
    vera = people("vera")
    vera.open(topology="flights", txid=1)
    checks = vera.board.get_by_role("region", name="Checks").get_by_role("row")
    expect(checks).to_have_text(["CheckResultFound", "positivefailed1 of 7 rows"])
    acks = vera.board.get_by_role("region", name="Acks").get_by_role("row")
    expect(acks.get_by_role("columnheader")).to_contain_text(["Task", "Instances", "Acked", "Rows read", "Rejected"])
    expect(acks.get_by_role("cell")).to_contain_text(["task0", "1", "yes", "9", "2"])
    assert vera.findings() == []


@pytest.mark.long
def test_rejected_rows_of_a_transaction_are_shown_after_a_person_expands_them(
    board: Board, store: ZooKeeperStore, people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    lake = str(tmp_path / "lake")
    visits = Rejecting(store, ROOT, tmp_path, DeltaTable(lake), f"DeltaTable({lake!r})")
    file = board.commands.dags / "visits.py"
    file.write_text(visits.dag_file())
    board.commands.run("dags", "reserialize", root=ROOT)
    visits.committed("r1", [({"page": "home"}, "too late")], "home,5", "help,soon")
    vera = people("vera")
    vera.open(topology="visits", txid=1)
    vera.board.get_by_role("button", name="Show the rejected rows").click()
    reasons = vera.board.get_by_role("region", name="Reasons").get_by_role("row")
    expect(reasons).to_have_text(["TaskReasonRows", f"the source{MALFORMED}1", "counttoo late1"], timeout=60_000)
    rows = vera.board.get_by_role("region", name="Rejected rows").get_by_role("row")
    expect(rows).to_contain_text(["TaskReasonWhereRow", '{"page":"help","seconds":"soon"}', '{"page": "home"}'])
    assert vera.findings() == []
    file.unlink()


@pytest.mark.long
def test_dragging_over_the_timeline_zooms_to_the_selected_range(
    board: Board, pipeline: Pipeline, people: People
) -> None:
    pipeline.run("r1")
    vera = people("vera")
    vera.open(topology="flights", range=3600, until=NEW_YEAR + 600_000)
    box = vera.row(1).locator("svg").last.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    vera.page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    vera.page.mouse.down()
    for part in (0.4, 0.5, 0.6):
        vera.page.mouse.move(box["x"] + box["width"] * part, middle)
    vera.page.mouse.up()
    expect(vera.board).to_contain_text(re.compile(r"10 s, until 2026-01-01 00:00:\d\d"))
    expect(vera.row(1)).to_be_visible()
    vera.page.go_back()
    expect(vera.board.get_by_role("radio", name="1 h", exact=True)).to_be_checked()


@pytest.mark.long
def test_several_selected_transactions_are_replayed_or_skipped_after_one_preview(
    board: Board, pipeline: Pipeline, runs: Runs, people: People
) -> None:
    for run in ("r1", "r2", "r3"):
        fail(pipeline, pipeline.begin(run))
    runs.make(r1="failed", r2="failed", r3="failed")
    ulf = people("ulf")
    ulf.open(topology="flights")
    ulf.board.get_by_role("checkbox", name="Select transaction 1").check()
    ulf.row(2).focus()
    ulf.row(2).press("x")
    bar = ulf.board.get_by_role("group", name="Selected transactions")
    expect(bar).to_contain_text("2 transactions selected: 1, 2")
    assert ulf.findings() == []
    dialog = ulf.press("Replay")
    expect(dialog).to_contain_text("Replay transactions 1, 2 of topology flights.")
    # A box that is ticked changes the preview, and leaves the dialog as it is.
    dialog.get_by_text("also replay transactions whose run is queued or running").click()
    expect(dialog.get_by_role("status", name="Loading")).to_have_count(0)
    dialog.get_by_role("button", name="Replay", exact=True).click()
    expect(dialog).to_contain_text("2 (run r2): its run was cleared")
    ulf.page.keyboard.press("Escape")
    expect(bar).to_have_count(0)
    assert runs.states() == {"r1": "running", "r2": "running", "r3": "failed"}

    for txid in (2, 3):
        ulf.board.get_by_role("checkbox", name=f"Select transaction {txid}").check()
    dialog = ulf.press("Skip")
    expect(dialog).to_contain_text("2 (run r2): to be skipped at its turn")
    expect(dialog).to_contain_text("3 (run r3): to be skipped at its turn")
    dialog.get_by_role("textbox").fill("bad files")
    dialog.get_by_role("button", name="Skip", exact=True).click()
    expect(dialog).to_contain_text("Done")
    noted = {each.txid: each.skip for each in topology_view(pipeline.store, pipeline.paths).transactions}
    assert [getattr(noted[txid], "why", None) for txid in (1, 2, 3)] == [None, "bad files", "bad files"]
    ulf.page.keyboard.press("Escape")


@pytest.mark.lead
def test_the_replay_failed_action_reports_that_no_transaction_has_failed(
    board: Board, pipeline: Pipeline, people: People
) -> None:
    pipeline.run("r1")
    ulf = people("ulf")
    ulf.open(topology="flights")
    dialog = ulf.press("Replay all failed")
    expect(dialog).to_contain_text("No transaction of topology flights has failed.")
    ulf.page.keyboard.press("Escape")


@pytest.mark.long
def test_a_search_finds_the_transaction_that_counted_a_file(board: Board, filed: Pipeline, people: People) -> None:
    for run in ("r1", "r2"):
        filed.run(run)
    vera = people("vera")
    vera.open(topology="flights")
    vera.board.get_by_role("searchbox", name="Find a transaction").fill("02.csv")
    vera.page.keyboard.press("Enter")
    expect(vera.board).to_contain_text("1 transaction matches 02.csv:")
    assert vera.findings() == []
    vera.board.get_by_role("link", name="Transaction 2", exact=True).click()
    expect(vera.board.get_by_role("heading", level=1)).to_have_text("Transaction 2")


@pytest.mark.long
def test_a_tab_links_to_the_full_page_on_a_narrow_screen(
    board: Board, pipeline: Pipeline, runs: Runs, people: People
) -> None:
    pipeline.run("r1")
    runs.make(r1="success")
    vera = people("vera")
    vera.page.set_viewport_size(NARROW)
    for tab, link, title in (
        ("/dags/the_dag/plugin/dag-transactions", "Open the Transactions page", "flights"),
        ("/dags/the_dag/runs/r1/plugin/run-transaction", "Open the page of transaction 1", "Transaction 1"),
    ):
        vera.page.goto(tab)
        vera.board.get_by_role("link", name=link).click()
        expect(vera.board.get_by_role("heading", level=1)).to_have_text(title)
        expect(vera.board.get_by_role("link", name=re.compile("^Open the (Transactions )?page"))).to_have_count(0)
    vera.page.set_viewport_size(WIDE)


ODD_NAMES = (
    *(pytest.param(name, marks=pytest.mark.lead) for name in ("net/figures", "a/transactions/5", "..", "~2F%2F")),
    "<b> #?&/\u00fc",
)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_topology_of_any_name_is_opened_from_the_overview(
    board: Board, store: ZooKeeperStore, people: People, name: str
) -> None:
    _topologies(store, **{name: True})
    eventually(lambda: board.get("topologies", text="the_dag")["total"] == 1, 240, "it is seen")
    vera = people("vera")
    vera.open()
    vera.board.get_by_role("row").get_by_role("link", name=name, exact=True).click()
    expect(vera.row(1)).to_have_accessible_name(re.compile("failed"))
    vera.row(1).click()
    expect(vera.board.get_by_role("heading", level=1)).to_have_text("Transaction 1")


def test_the_timeline_opens_at_the_time_of_its_transactions_and_shows_each_bar(
    board: Board, pipeline: Pipeline, people: People
) -> None:
    pipeline.run("r1")
    vera = people("vera")
    vera.open(topology="flights")
    expect(vera.row(1)).to_be_visible()
    expect(vera.board).to_contain_text("until 2026-01-01 00:0")
    expect(vera.board.get_by_role("paragraph").filter(has_text=re.compile("^1 transaction$"))).to_be_visible()
    bars = vera.row(1).locator("rect")
    expect(bars.first).to_be_visible()
    widths = [float(bars.nth(number).get_attribute("width") or 0) for number in range(bars.count())]
    assert min(widths) >= 3
    assert vera.findings() == []


@pytest.mark.lead
def test_a_restated_transaction_and_its_restatement_are_drawn_differently(
    board: Board, store: ZooKeeperStore, people: People
) -> None:
    pipeline = Pipeline(store, ROOT, journals=True)
    pipeline.request = TopologyRequest("the_dag", "opaque", 3)
    pipeline.run("r1")
    assert pipeline.restate(1, "r1", 1) == 2
    vera = people("vera")
    vera.open(topology="flights")
    expect(vera.row(1).locator("rect[data-kind=replaced]")).to_be_visible()
    expect(vera.row(2).locator("rect[data-kind=commit]")).to_be_visible()
    assert vera.findings() == []


@pytest.mark.lead
def test_the_error_that_caused_a_replay_is_still_shown_after_the_replay(
    board: Board, pipeline: Pipeline, runs: Runs, people: People
) -> None:
    error = f"the disk is full: {'x' * 300}, make room"
    fail(pipeline, pipeline.begin("r1"), error)
    pipeline.begin("r1")
    runs.make(r1="running")
    vera = people("vera")
    vera.open(topology="flights", txid=1)
    expect(vera.board.get_by_role("region", name="Error")).to_have_text(f"Attempt 1 was replayed: {error}")
    expect(vera.board.get_by_role("region", name="Attempts")).to_contain_text("the error above")
    expect(vera.board.get_by_text("the disk is full")).to_have_count(1)
    assert vera.findings() == []
