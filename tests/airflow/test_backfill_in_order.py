"""Days whose txids follow their dates, whichever run begins first, and the command that creates their runs."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest

from airflow_tx.testing.eventually import eventually
from tests.airflow.ahead import once
from tests.airflow.backfilled import DAYS, Days, Story
from tests.airflow.dags.daily import DAY, SIZE
from tests.airflow.stack import Stack


def command(stack: Stack, *more: str) -> subprocess.Popen[str]:
    """Start `airflow tx backfill` for all days, two in flight."""
    return backfill(stack, "dated", DAYS[0], DAYS[-1], "--in-flight", "2", *more)


def backfill(stack: Stack, dag_id: str, first: datetime, last: datetime, *more: str) -> subprocess.Popen[str]:
    """Start `airflow tx backfill`."""
    dates = ("--from", first.isoformat(), "--to", last.isoformat())
    return subprocess.Popen(
        [sys.executable, "-m", "airflow", "tx", "backfill", dag_id, *dates, *more],
        env=stack.airflow.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end of the command: its exit code and its output."""
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


@once
def commanded(stack: Stack) -> Story:
    """The command is killed and repeated while a day fails; that one is cleared, and the command repeated."""
    story = Story(days := Days(stack, "dated"))
    stack.airflow.wait_dag("dated")
    story.seen["dry"] = said(command(stack, "--dry-run"))
    story.seen["dry runs"] = days.runs()
    with days.told("fail", DAYS[1]):
        killed = command(stack)
        eventually(days.runs, 120, "the command has created a run", interval=0.1)
        killed.kill()
        killed.communicate()
        story.seen["failed"] = said(command(stack))
        days.wait({days.run_of(DAYS[1]): "failed"})
    stack.airflow.clear_run("dated", days.run_of(DAYS[1]))
    story.seen["done"] = said(command(stack))
    story.seen["runs"] = [days.run_of(day) for day in DAYS]
    story.seen["committed"] = days.totals(), days.history()
    days.wait_all(4)
    days.backfill(reprocess="completed")
    story.seen["runs again"] = days.wait_all(4)
    return story


@once
def backwards(stack: Stack) -> Story:
    """A backfill of Airflow with two run slots starts the last days first; then a gap is filled, and a day is late."""
    story = Story(days := Days(stack, "begun_backwards"))
    airflow = stack.airflow
    airflow.wait_dag("begun_backwards")
    days.backfill(backwards=True, max_active_runs=2)
    days.wait_all(4, 300)  # the last days make room for the first ones, and come back
    for number, (run_id, day) in enumerate((("ahead", 5), ("next", 4), ("late", -1))):
        start = DAYS[0] + day * DAY
        logical_date = DAYS[0] + timedelta(hours=number + 1)  # Airflow starts none after the end of the DAG
        airflow.trigger("begun_backwards", run_id, logical_date=logical_date, interval=(start, start + DAY))
        if run_id == "ahead":
            airflow.wait_task("begun_backwards", run_id, "begin", "deferred")
    days.wait({"ahead": "success", "next": "success", "late": "failed"})
    story.seen.update({run_id: days.log(run_id) for run_id in ("ahead", "late")})
    return story


@pytest.mark.long
def test_days_commit_in_order_although_the_backfill_command_is_killed_and_a_day_fails(stack: Stack) -> None:
    story = commanded(stack)
    totals, history = story.seen["committed"]
    assert [entry.run_id for entry in history] == story.seen["runs"]
    assert [entry.txid for entry in history] == [1, 2, 3, 4]
    assert [entry.attempts for entry in history] == [1, 2, 1, 1]
    assert totals == story.days.totals()
    story.days.stack.assert_counted_once("dated", 4 * SIZE)


@pytest.mark.long
def test_the_backfill_command_prints_its_plan_and_then_reports_failed_and_finished_intervals(stack: Stack) -> None:
    seen = commanded(stack).seen
    code, output = seen["dry"]
    assert (code, output.count("create its run"), seen["dry runs"]) == (0, 4, {})
    code, output = seen["failed"]
    assert code == 1
    assert f"2013-01-02T00:00:00+00:00: run {seen['runs'][1]} ended as failed: airflow tx show dated 2" in output
    assert "airflow tx replay dated --failed" in output
    code, output = seen["done"]
    assert code == 0
    assert output.endswith("All 4 intervals are done.\n")


@pytest.mark.long
def test_an_airflow_backfill_reuses_the_runs_of_a_tx_backfill_and_counts_no_row_again(stack: Stack) -> None:
    story = commanded(stack)
    assert sorted(story.seen["runs again"]) == sorted(story.seen["runs"])
    assert story.days.history() == story.seen["committed"][1]


@pytest.mark.long
def test_days_that_begin_in_reverse_order_get_txids_and_commit_in_date_order(stack: Stack) -> None:
    story = backwards(stack)
    history = story.days.history()
    assert [entry.txid for entry in history] == [1, 2, 3, 4, 5, 6]
    assert [entry.run_id for entry in history] == [*(story.days.run_of(day) for day in DAYS), "next", "ahead"]
    assert all(before.ended <= after.granted for before, after in pairwise(history))
    story.days.stack.assert_counted_once("begun_backwards", 6 * SIZE)


@pytest.mark.long
def test_the_log_of_a_waiting_run_names_the_gap_and_the_log_of_a_late_day_names_the_next_txid(stack: Stack) -> None:
    seen = backwards(stack).seen
    assert "No run for the interval that begins at 2013-01-05T00:00:00+00:00 is queued or running" in seen["ahead"]
    assert "It would become transaction" in seen["late"]
    assert "in_order=False" in seen["late"]


@pytest.mark.long
def test_a_backfill_of_a_paused_dag_begins_the_order_and_yesterdays_run_waits_for_earlier_days(stack: Stack) -> None:
    days, airflow = Days(stack, "declared"), stack.airflow
    eventually(lambda: airflow.call("GET", "dags/declared"), 120, "the DAG is known", interval=0.3)
    yesterday = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0) - DAY
    first, last = yesterday - 2 * DAY, yesterday - DAY
    code, output = said(backfill(stack, "declared", first, last))
    assert code == 1
    assert (
        f"The order of data intervals in topology declared has reached {first.isoformat()}. "
        "DAG declared starts no run, since it is paused" in output
    )
    assert days.runs() == {}
    airflow.pause("declared", paused=False)
    eventually(days.runs, 120, "Airflow starts the run of yesterday", interval=0.3)
    own = days.run_of(yesterday)
    airflow.wait_task("declared", own, "begin", "deferred")
    code, output = said(backfill(stack, "declared", first, last))
    assert code == 0, output
    assert output.endswith("All 2 intervals are done.\n")
    days.wait({own: "success"})
    assert [entry.run_id for entry in days.history()] == [days.run_of(first), days.run_of(last), own]
    assert sum(count for count, _ in stack.totals("declared").values()) == 3 * SIZE
    airflow.pause("declared")
