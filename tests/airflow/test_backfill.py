"""Failed days are backfilled in every way Airflow has, and each day is counted once."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta, timezone

import pytest

from airflow_tx.testing.airflow_client import AirflowAnswer
from airflow_tx.testing.eventually import eventually
from dags import order_book
from tests.airflow.ahead import once
from tests.airflow.backfilled import DAYS, Days, Story
from tests.airflow.dags.daily import DAY, SIZE
from tests.airflow.stack import Stack


@once
def scheduled(stack: Stack) -> Story:
    """Four scheduled days, two of which fail; the failed ones are backfilled."""
    story = Story(days := Days(stack, "by_day"))
    with days.told("fail", *DAYS[1:3]):
        eventually(lambda: stack.airflow.call("GET", "dags/by_day"), 240, "the DAG is known", interval=0.3)
        stack.airflow.pause("by_day", False)
        eventually(lambda: len(days.runs()) == 4, 240, "the days are scheduled")
        run_ids = [days.run_of(day) for day in DAYS]
        days.wait(dict.fromkeys(run_ids[1:3], "failed"))
        story.seen["failed"] = days.totals()
    days.backfill(reprocess="failed")
    story.seen["runs"] = days.wait_all(4)
    story.seen["committed"] = days.totals(), days.history()
    return story


@once
def scheduled_again(stack: Stack) -> Story:
    """Delete the run of a committed day, and backfill all days once more."""
    story, days = scheduled(stack), Days(stack, "by_day")
    stack.airflow.delete_run("by_day", days.run_of(DAYS[0]))
    days.backfill(reprocess="completed", backwards=True)
    story.seen["runs again"] = days.wait_all(4)
    return story


@once
def partitioned(stack: Stack) -> Story:
    """A partition that failed is backfilled, while another event comes for it."""
    story = Story(days := Days(stack, "by_partition"))
    airflow, key = stack.airflow, f"{DAYS[0]:%Y-%m-%dT%H:%M:%S}"
    airflow.wait_dag("by_partition")
    with days.told("fail", DAYS[0]):
        airflow.trigger("by_partition", "first", partition_key=key)
        airflow.wait_run("by_partition", "first", state="failed")
    with days.told("hold", DAYS[0]):
        days.backfill(reprocess="failed")
        (holder,) = (run for run in days.runs() if f"{DAYS[0]:%Y-%m-%d}" in run)
        stack.begun("by_partition", holder)
        airflow.trigger("by_partition", "double", partition_key=key)
        airflow.clear_run("by_partition", "first")
        days.wait(dict.fromkeys(("first", "double"), "failed"))
        story.seen["refused"] = {run: days.log(run) for run in ("first", "double")}
        story.seen["allocated"] = stack.ledger("by_partition").allocated
    days.wait({run: "success" for run in days.runs() if run not in ("first", "double")})
    story.seen["holder"] = holder
    story.seen["committed"] = days.totals(), days.history()
    airflow.clear_runs("by_partition", ["first", "double", holder])
    days.wait_all(6)
    story.seen["cleared"] = {run: days.log(run) for run in ("first", "double", holder)}
    return story


@once
def doubled(stack: Stack) -> Story:
    """Two runs of one interval at a time, and one whose interval overlaps."""
    story = Story(days := Days(stack, "doubled_days"))
    airflow, interval = stack.airflow, (DAYS[0], DAYS[1])
    airflow.wait_dag("doubled_days")
    with days.told("hold", DAYS[0]):
        airflow.trigger("doubled_days", "one", logical_date=DAYS[0], interval=interval)
        stack.begun("doubled_days", "one")
        airflow.trigger("doubled_days", "two", logical_date=DAYS[0] + timedelta(hours=1), interval=interval)
        airflow.wait_run("doubled_days", "two", state="failed")
        story.seen["refused"] = days.log("two")
    airflow.wait_run("doubled_days", "one")
    half = (DAYS[0] + DAY / 2, DAYS[1] + DAY / 2)
    airflow.trigger("doubled_days", "half", logical_date=half[0], interval=half)
    airflow.trigger("doubled_days", "empty", logical_date=DAYS[2], interval=(DAYS[2], DAYS[2]))
    airflow.trigger("doubled_days", "none")
    airflow.clear_run("doubled_days", "two")
    days.wait({"two": "success", "half": "failed", "empty": "failed", "none": "failed"})
    story.seen.update({run_id: days.log(run_id) for run_id in ("two", "half", "empty", "none")})
    return story


@once
def running(stack: Stack) -> Story:
    """Two days fail while the last day keeps the backfill running. One of them is cleared, the other replayed."""
    story = Story(days := Days(stack, "in_backfill"))
    airflow = stack.airflow
    airflow.wait_dag("in_backfill")
    # Airflow may begin the last day first. It is held, because it could commit and end the backfill.
    with days.told("hold", DAYS[-1]):
        with days.told("fail", *DAYS[1:3]):
            airflow.create_backfill("in_backfill", DAYS[0], DAYS[-1])
            run_ids = [days.run_of(day) for day in DAYS]
            days.wait(dict.fromkeys(run_ids[1:3], "failed"))
        with pytest.raises(AirflowAnswer) as refused:
            airflow.create_backfill("in_backfill", DAYS[0], DAYS[-1], reprocess="failed")
    story.seen["refused"] = str(refused.value)
    airflow.clear_run("in_backfill", run_ids[1], only_failed=True)
    done = {row["run_id"]: row["done"] for row in stack.tx_rows("replay", "in_backfill", "--failed")}
    story.seen["replayed"] = done[run_ids[2]]
    story.seen["runs"] = days.wait_all(4)
    return story


@once
def example(stack: Stack) -> Story:
    """`dags/daily_orders.py` over two days, and over the one that the schedule starts by itself."""
    story = Story(days := Days(stack, "daily_orders"))
    eventually(lambda: stack.airflow.call("GET", "dags/daily_orders"), 240, "the DAG is known", interval=0.3)
    stack.airflow.pause("daily_orders", False)
    first = datetime(2026, 1, 1, tzinfo=timezone.utc)
    stack.airflow.backfill("daily_orders", first, first + DAY)
    days.wait_all(3)
    starts = [datetime.fromisoformat(run["data_interval_start"]) for run in stack.airflow.runs("daily_orders")]
    orders = [order for start in starts for order in order_book.orders(start, start + DAY)]
    story.seen["orders"] = {
        product: (len(amounts), sum(amounts))
        for product in order_book.PRODUCTS
        if (amounts := [order["amount"] for order in orders if order["product"] == product])
    }
    return story


@pytest.mark.lead
@pytest.mark.worth("the only backfill by Airflow itself")
def test_the_backfill_commits_failed_days_again_and_counts_each_row_once(stack: Stack) -> None:
    story = scheduled(stack)
    before = story.seen["failed"]
    assert sum(numbers for numbers, _ in before.values()) <= 2 * SIZE
    totals, history = story.seen["committed"]
    assert [entry.txid for entry in history] == [1, 2, 3, 4]
    assert {entry.run_id for entry in history} == set(story.seen["runs"])
    assert sorted(entry.attempts for entry in history) == [1, 1, 2, 2]
    story.days.stack.assert_counted_once("by_day", 4 * SIZE)
    assert totals == story.days.totals()


@pytest.mark.long
def test_failed_days_inside_a_running_backfill_can_be_cleared_or_replayed(
    stack: Stack,
) -> None:
    story = running(stack)
    assert "There is already a running backfill" in story.seen["refused"]
    assert story.seen["replayed"] == "its run was cleared"
    assert sorted(entry.attempts for entry in story.days.history()) == [1, 1, 1, 2]
    assert {entry.run_id for entry in story.days.history()} == set(story.seen["runs"])
    story.days.stack.assert_counted_once("in_backfill", 4 * SIZE)


@pytest.mark.long
def test_a_backfill_of_committed_days_counts_no_row_again_even_after_a_run_was_deleted(stack: Stack) -> None:
    story = scheduled_again(stack)
    assert story.days.history() == story.seen["committed"][1]
    story.days.stack.assert_counted_once("by_day", 4 * SIZE)
    (anew,) = set(story.seen["runs again"]) - set(story.seen["runs"])
    assert anew == story.days.run_of(DAYS[0])
    for run_id in story.seen["runs again"]:
        assert "is already committed" in story.days.log(run_id)


@pytest.mark.long
def test_a_backfill_of_a_failed_partition_continues_the_transaction_of_the_partition(stack: Stack) -> None:
    story = partitioned(stack)
    totals, history = story.seen["committed"]
    first, *others = history
    assert (first.txid, first.attempts, first.run_id) == (1, 2, story.seen["holder"])
    assert [entry.attempts for entry in others] == [1, 1, 1]
    assert totals == story.days.totals()
    story.days.stack.assert_counted_once("by_partition", 4 * SIZE)


@pytest.mark.long
def test_a_second_run_of_a_partition_is_refused_while_the_first_is_live(stack: Stack) -> None:
    story = partitioned(stack)
    for log in story.seen["refused"].values():
        assert story.seen["holder"] in log
    assert story.seen["allocated"] <= 4


@pytest.mark.long
def test_a_second_run_of_a_committed_partition_logs_the_commit_and_counts_no_row(stack: Stack) -> None:
    story = partitioned(stack)
    for log in story.seen["cleared"].values():
        assert "Transaction 1 of by_partition is already committed" in log
    assert story.days.history() == story.seen["committed"][1]
    story.days.stack.assert_counted_once("by_partition", 4 * SIZE)


@pytest.mark.long
def test_a_run_is_refused_if_its_data_interval_equals_or_overlaps_the_interval_of_another_run(stack: Stack) -> None:
    story = doubled(stack)
    assert "run one" in story.seen["refused"]
    assert "Transaction 1 of doubled_days is already committed" in story.seen["two"]
    assert "overlaps 2013-01-01T00:00:00+00:00/2013-01-02T00:00:00+00:00" in story.seen["half"]
    assert [entry.run_id for entry in story.days.history()] == ["one"]
    story.days.stack.assert_counted_once("doubled_days", SIZE)


@pytest.mark.long
def test_a_run_whose_data_interval_is_empty_or_missing_is_refused_and_its_log_names_the_remedy(stack: Stack) -> None:
    seen = doubled(stack).seen
    remedy = 'CronDataIntervalTimetable("0 0 * * *", timezone="UTC")'
    assert "has the empty data interval 2013-01-03T00:00:00+00:00/2013-01-03T00:00:00+00:00" in seen["empty"]
    assert "has no data interval" in seen["none"]
    assert remedy in seen["empty"]
    assert remedy in seen["none"]


@pytest.mark.long
def test_the_example_of_daily_orders_counts_every_day_once(stack: Stack) -> None:
    story = example(stack)
    with sqlite3.connect(story.days.stack.folder / "state.db") as state:
        rows = state.execute("SELECT product, orders, amount FROM daily_orders").fetchall()
    assert {product: (int(orders), int(amount)) for product, orders, amount in rows} == story.seen["orders"]
