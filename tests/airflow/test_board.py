"""The board in a real browser: six runs are triggered, one is broken and replayed, all of them commit in order."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from playwright.sync_api import Browser, expect

from tests.airflow.browser import NARROW, Person, chromium
from tests.airflow.stack import SIZE, Stack

DAG = "boarded"
RUNS, WINDOW, BROKEN = 6, 4, 3


@pytest.mark.long
def test_six_overlapping_runs_commit_in_order_after_the_button_replays_the_broken_run(stack: Stack) -> None:
    stack.airflow.wait_dag(DAG)
    with chromium() as browser:
        admin = Person(browser, stack.airflow, "admin")
        _trigger_six(stack, admin)
        _sees_what_is_open(admin)
        _sees_why_a_run_is_no_transaction(stack, admin)
        (stack.folder / "signals" / "boarded_go_on").touch()
        _reads_why_it_waits(admin)
        _viewer_sees_no_buttons(browser, stack)
        (stack.folder / "signals" / "boarded_broken").unlink()
        _replays(admin, _about_to_replay(browser, stack))
        _sees_commits_in_order(admin)
        stack.assert_counted_once(DAG, RUNS * SIZE)
        assert [entry.attempts for entry in stack.ledger(DAG).history()] == [1, 1, 2, 1, 1, 1]
        _fits_everybody(browser, stack, admin)
        assert admin.errors == []


def _runs(stack: Stack) -> list[str]:
    """The ids of its runs, the first one first."""
    runs = stack.airflow.listed(f"dags/{DAG}/dagRuns", "dag_runs", {"order_by": "run_after"})
    return [run["dag_run_id"] for run in runs]


def _trigger_six(stack: Stack, person: Person) -> None:
    broken = stack.folder / "signals" / "boarded_broken"
    broken.touch()
    for number in range(1, RUNS + 1):
        person.trigger(DAG, **({"fail_while": str(broken)} if number == BROKEN else {}))
        if number <= WINDOW:
            stack.begun(DAG, _runs(stack)[-1])


def _sees_what_is_open(person: Person) -> None:
    """Four of six are open, and are processed at once; one has failed."""
    person.page.goto("/")
    person.page.get_by_role("button", name="Browse").click()
    person.page.get_by_role("menuitem", name="Transactions").click()
    link = person.board.get_by_role("link", name=DAG, exact=True)
    expect(link).to_be_visible()
    assert person.findings() == []
    link.click()
    for txid in range(1, WINDOW + 1):
        word = "failed" if txid == BROKEN else "processing"
        expect(person.row(txid)).to_have_accessible_name(re.compile(f"^Transaction {txid}: {word}"))
    expect(person.row(WINDOW + 1)).to_have_count(0)
    bars = person.bars("processing")
    (_, first_ends), (last_begins, _) = bars[1][-1], bars[WINDOW][0]
    assert last_begins < first_ends
    assert person.findings() == []


def _sees_why_a_run_is_no_transaction(stack: Stack, person: Person) -> None:
    person.page.goto(f"/dags/{DAG}/runs/{_runs(stack)[-1]}/plugin/run-transaction")
    expect(person.board).to_contain_text(f"This run has no transaction yet. The limit max_pending is reached: {WINDOW}")
    assert person.findings() == []


def _reads_why_it_waits(person: Person) -> None:
    """What is processed waits, hatched, for the one that has failed; that one says what to do."""
    person.open(topology=DAG)
    expect(person.row(BROKEN - 1)).to_have_accessible_name(re.compile(": committed"))
    waits = re.compile(f": waits.*transaction {BROKEN}")
    expect(person.row(WINDOW)).to_have_accessible_name(waits)
    assert person.bars("waiting")[WINDOW]
    person.row(BROKEN).click()
    expect(person.board.get_by_text("Waits for a replay", exact=True)).to_be_visible()
    expect(person.board.get_by_role("link", name=re.compile("^Open the log of "))).to_be_visible()
    command = f"airflow tx replay {DAG} {BROKEN}"
    expect(person.board.get_by_role("button", name=f"Copy the command {command}")).to_be_visible()


def _viewer_sees_no_buttons(browser: Browser, stack: Stack) -> None:
    viewer = Person(browser, stack.airflow, "viewer")
    viewer.open(topology=DAG, txid=BROKEN)
    expect(viewer.board).to_contain_text(f"airflow tx replay {DAG} {BROKEN}, or clear its failed task")
    expect(viewer.board.get_by_role("button")).to_have_text(["Copy the command"])
    viewer.open(topology=DAG)
    expect(viewer.row(1)).to_be_visible()
    expect(viewer.board.get_by_role("button", name=re.compile("Replay|Accept|Pause"))).to_have_count(0)
    assert viewer.errors == []


def _about_to_replay(browser: Browser, stack: Stack) -> Person:
    """Another person, who has read what a replay would do."""
    other = Person(browser, stack.airflow, "admin")
    other.open(topology=DAG, txid=BROKEN)
    other.board.get_by_role("button", name="Replay", exact=True).click()
    expect(other.page.get_by_role("dialog")).to_contain_text("What will happen")
    return other


def _replays(person: Person, late: Person) -> None:
    """With the keyboard alone; who presses later is refused, with a sentence."""
    person.board.get_by_role("button", name="Replay", exact=True).press("Enter")
    dialog = person.page.get_by_role("dialog")
    expect(dialog).to_contain_text("What will happen")
    assert person.findings() == []
    dialog.get_by_role("button", name="Replay", exact=True).press("Enter")
    expect(dialog).to_contain_text("Done")
    late.page.get_by_role("dialog").get_by_role("button", name="Replay", exact=True).click()
    expect(late.page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
    person.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(person.board).to_contain_text(f"{BROKEN}.2")


def _sees_commits_in_order(person: Person) -> None:
    person.open(topology=DAG)
    for txid in range(1, RUNS + 1):
        expect(person.row(txid)).to_have_accessible_name(re.compile(": committed|: .*committed"))
    expect(person.row(BROKEN)).to_have_accessible_name(re.compile("attempt 2"))
    commits = person.bars("commit")
    begins = [commits[txid][0][0] for txid in range(1, RUNS + 1)]
    assert all(before <= after for before, after in pairwise(begins)), begins


def _fits_everybody(browser: Browser, stack: Stack, person: Person) -> None:
    """On a phone and in the dark, each page is whole, and axe finds nothing."""
    dark = Person(browser, stack.airflow, "admin", dark=True)
    for one, size in ((person, NARROW), (dark, None)):
        if size is not None:
            one.page.set_viewport_size(size)
        for address in ({}, {"topology": DAG}, {"topology": DAG, "txid": BROKEN}):
            one.open(**address)
            expect(one.board.get_by_role("heading", level=1)).to_be_visible()
            expect(one.board.get_by_role("link").first).to_be_visible()
            assert one.findings() == []
            assert one.overflow() == 0


@pytest.mark.long
@pytest.mark.alone
def test_the_transactions_page_reports_an_unreachable_zookeeper_and_recovers_by_itself(stack: Stack) -> None:
    with chromium() as browser:
        admin = Person(browser, stack.airflow, "admin")
        admin.open()
        expect(admin.board.get_by_role("heading", level=1)).to_be_visible()
        # Above the lines; the line of a topology whose ZooKeeper never answers says the same.
        away = admin.board.get_by_role("status").get_by_text(
            "The ledger cannot be read now: ZooKeeper does not answer."
        )
        stack.zookeeper.kill()
        try:
            expect(away).to_be_visible()
            assert admin.findings() == []
        finally:
            stack.zookeeper.start()
        expect(away).to_have_count(0)
