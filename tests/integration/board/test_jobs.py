"""Many days as one job: named by dates, previewed once, and followed by every viewer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.sync_api import ViewportSize, expect

from airflow_tx.ledger.answers import Begun, Granted
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.steps.commit import AcquireRequest, acquire
from airflow_tx.ledger.steps.replay import WishRequest, want, wishes
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.outputs.journal import Entry, JournalArea
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.testing.eventually import eventually
from tests.airflow.browser import NARROW, WIDE, People
from tests.integration.board.server import ROOT, STRANGER, Board
from tests.integration.cli_runs import Runs, fail
from tests.integration.pipeline import Pipeline

LARGE = ViewportSize(width=1400, height=900)
DAY = "2026-05-{:02}T00:00:00+00:00"
DAYS = 6


def key(day: int) -> str:
    """The key of the run of a day."""
    return f"interval:{DAY.format(day)}/{DAY.format(day + 1)}"


def make_runs(runs: Runs) -> None:
    """Make the runs of all days."""
    runs.make_days(*(f"day_{day} {DAY.format(day)} {DAY.format(day + 1)}" for day in range(1, DAYS + 1)))


class Days(Pipeline):
    """A topology whose transaction n has the rows of 2026-05-n."""

    area: StagingArea

    def begin_day(self, day: int) -> Begun:
        """Begin the run of a day, which is known by its interval."""
        named = BeginRequest(
            self.request, key(day), f"day_{day}", f"{next(self._tries):06}", False, {"task0": f"{1:016x}"}
        )
        batch = Batch(self.metadata(day), None)
        begun = self.ledger.begin(
            named, Outside(decide=lambda *_: batch, run_state=lambda run_id: "failed", read_entry=self._entry)
        )
        assert isinstance(begun, Begun), begun
        return begun

    def commit_day(self, day: int) -> None:
        """Commit the run of a day, with an entry in the journal."""
        begun = self.begin_day(day)
        incarnation = self.ledger.incarnation()
        today = time.strftime("%Y-%m-%d", time.gmtime())
        entry = Entry(
            "daily",
            incarnation,
            begun.txid,
            attempt=1,
            birth=begun.attempt.birth,
            key=key(day),
            run_id=f"day_{day}",
            began=today,
            written=f"{today}T00:00:00",
            metadata=begun.metadata,
            source=("source", {}),
            contributions={},
        )
        request = AcquireRequest(
            begun.attempt,
            self.process(begun).epoch,
            begun.rows_digest,
            metadata=begun.metadata,
            position=begun.position,
            journal=JournalArea(self.area, incarnation).write(entry),
        )
        granted = self.ledger.run(acquire, request)
        assert isinstance(granted, Granted)
        self.mark(granted.grant)


@pytest.fixture
def days(board: Board, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch) -> Days:
    """A week of days, all committed."""
    pipeline = Days(store, ROOT, topology="daily")
    pipeline.request = TopologyRequest("daily", "transactional", 4)
    pipeline.metadata = lambda row: {"from": DAY.format(row), "to": DAY.format(row + 1)}
    monkeypatch.setenv("AIRFLOW_HOME", board.commands.environment["AIRFLOW_HOME"])
    pipeline.area = StagingArea.of_ledger("zookeeper_default", ROOT)
    for day in range(1, DAYS + 1):
        pipeline.commit_day(day)
    eventually(lambda: board.get("topologies/daily")["turn"] == DAYS + 1, 240, "all days are seen")
    return pipeline


def test_a_previewed_restatement_of_dates_can_be_requested_only_once(board: Board, days: Days, runs: Runs) -> None:
    named = {"first": "2026-05-02", "last": "2026-05-04"}
    make_runs(runs)
    path = "topologies/daily/actions/restate"
    preview = board.post(f"{path}/preview", named).json()
    assert [each["txid"] for each in preview["effects"]] == [2, 3, 4], preview
    body = {**named, "version": preview["version"], "why": "a bug"}
    done = board.post(path, body)
    assert done.status_code == 200, done.text
    assert [each.txid for each in wishes(days.store, days.paths)] == [2, 3, 4]
    again = board.post(path, body)
    assert again.status_code == 409, again.text
    (job,) = board.get("topologies/daily/jobs")["jobs"]
    assert (job["who"], job["why"], job["total"]) == ("ulf", "a bug", 3)


def test_a_restatement_by_dates_is_refused_for_a_topology_without_dates(board: Board, pipeline: Pipeline) -> None:
    pipeline.run("r1")
    answer = board.post("topologies/flights/actions/restate/preview", {"first": "2026-05-01", "last": "2026-05-02"})
    assert answer.status_code == 409
    assert "The runs of this source have no dates" in answer.json()["detail"]
    assert board.get("topologies/flights/jobs") == {"jobs": [], "dated": False}


def wanted(days: Days, *txids: int) -> None:
    for txid in txids:
        days.ledger.run(want, WishRequest(txid, key(txid), f"day_{txid}"), Audit("ada", "cents for euros"))


def test_backfills_of_airflow_and_of_the_tx_command_are_shown_as_jobs(board: Board, days: Days, runs: Runs) -> None:
    make_runs(runs)
    board.commands.python(_BACKFILL, "day_1", "day_2", "--", "day_3")
    jobs = {each["kind"]: each for each in board.get("topologies/daily/jobs")["jobs"]}
    assert {kind: (each["total"], each["done"], each["failed"]) for kind, each in jobs.items()} == {
        # The transaction of the run that failed is committed: a later task has failed.
        "backfill": (2, 2, 0),
        "tx-backfill": (1, 0, 0),
    }


_BACKFILL = """
from datetime import datetime, timezone
from airflow.models.backfill import Backfill
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import update

of_airflow, of_command = arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]
day = datetime(2026, 5, 1, tzinfo=timezone.utc)
with create_session() as session:
    backfill = Backfill(dag_id="daily", from_date=day, to_date=day, max_active_runs=1)
    session.add(backfill)
    session.flush()
    for run_id in of_airflow:
        state = "failed" if run_id == of_airflow[0] else "success"
        session.execute(update(DagRun).where(DagRun.run_id == run_id).values(
            backfill_id=backfill.id, run_type="backfill", _state=state))
    for run_id in of_command:
        session.execute(update(DagRun).where(DagRun.run_id == run_id).values(run_type="backfill", _state="running"))
"""


def test_only_users_who_may_see_the_topology_see_its_jobs(board: Board, days: Days) -> None:
    wanted(days, 1, 2, 3)
    eventually(lambda: board.get("topologies/daily/jobs", "vera")["jobs"], 240, "the job is seen")
    with board.client(STRANGER) as client:
        assert client.get("/api/v1/topologies/daily/jobs").status_code == 404


@pytest.mark.long
def test_every_viewer_sees_a_job_and_a_user_can_replay_its_failed_transactions(
    board: Board, days: Days, people: People
) -> None:
    wanted(days, 1, 2, 3, 4)
    days.commit_day(1)
    fail(days, days.begin_day(2))
    for user in ("vera", "ulf"):
        person = people(user)
        person.open(topology="daily")
        jobs = person.board.get_by_role("region", name="Jobs")
        expect(jobs).to_contain_text("Restatement: 1 of 4 restated, 1 failed, 2 wait")
        expect(jobs).to_contain_text("cents for euros")
    ulf = people("ulf")
    ulf.page.reload()
    jobs = ulf.board.get_by_role("region", name="Jobs")
    for size in (NARROW, LARGE):
        for scheme in ("dark", "light"):
            ulf.page.set_viewport_size(size)
            ulf.page.emulate_media(color_scheme=scheme)
            expect(jobs).to_contain_text("1 of 4 restated")
            assert (ulf.findings(), ulf.overflow()) == ([], 0)
    jobs.get_by_role("button", name="Replay failed transactions").click()
    dialog = ulf.page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text(f"Replay: transaction {DAYS + 2} of daily")
    ulf.page.keyboard.press("Escape")
    ulf.page.set_viewport_size(WIDE)


@pytest.mark.long
def test_a_user_restates_days_on_the_page(board: Board, days: Days, runs: Runs, people: People) -> None:
    make_runs(runs)
    ulf = people("ulf")
    ulf.open(topology="daily")
    ulf.board.get_by_role("button", name="Restate days").click()
    dialog = ulf.page.get_by_role("dialog")
    dialog.get_by_label("From").fill("2026-05-03")
    dialog.get_by_label("To").fill("2026-05-01")
    expect(dialog).to_contain_text("The last day cannot be before the first day.")
    assert ulf.findings() == []
    dialog.get_by_label("To").fill("2026-05-05")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("heading")).to_have_text("Restate: 2026-05-03 to 2026-05-05 of daily")
    expect(dialog).to_contain_text("Process transactions 3, 4, 5 of topology daily again")
    dialog.get_by_role("textbox").fill("cents for euros")
    dialog.get_by_role("button", name="Restate", exact=True).click()
    expect(dialog).to_contain_text("Done")
    ulf.page.keyboard.press("Escape")
    expect(ulf.board.get_by_role("region", name="Jobs")).to_contain_text("0 of 3 restated")
    assert [each.txid for each in wishes(days.store, days.paths)] == [3, 4, 5]


@pytest.mark.long
def test_a_user_selects_committed_transactions_and_restates_them(board: Board, days: Days, people: People) -> None:
    ulf = people("ulf")
    ulf.open(topology="daily")

    def box(txid: int) -> Any:
        return ulf.board.get_by_role("checkbox", name=f"Select transaction {txid}", exact=True)

    box(5).click()
    box(2).click(modifiers=["Shift"])
    group = ulf.board.get_by_role("group", name="Selected transactions")
    expect(group).to_contain_text("4 transactions selected: 2, 3, 4, 5")
    expect(group.get_by_role("button", name="Replay")).to_have_count(0)
    group.get_by_role("button", name="Restate").click()
    dialog = ulf.page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Restate: transactions 2, 3, 4, 5 of daily")
    ulf.page.keyboard.press("Escape")
