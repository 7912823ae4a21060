"""Which transactions a timeline is about, and which tries of tasks belong to each."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.views.status import view_final
from airflow_tx.operations.actions.ledger_places import BEGIN
from airflow_tx.plugin.api.airflow_runs import TaskBar
from airflow_tx.plugin.api.timeline import TimelineWindow, timeline_row
from tests.finals import final_record

NOON = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)


def test_viewers_who_request_the_timeline_within_ten_seconds_share_an_answer() -> None:
    moments = [NOON + timedelta(milliseconds=each) for each in range(1, 10_000, 7)]
    assert {TimelineWindow(each, each).rounded() for each in moments} == {
        TimelineWindow(NOON, NOON + timedelta(seconds=10))
    }


@pytest.mark.parametrize("zone", [timezone.utc, timezone(timedelta(hours=5.5)), timezone(-timedelta(hours=9))])
def test_a_rounded_time_window_contains_the_requested_window(zone: timezone) -> None:
    since, until = NOON.astimezone(zone) + timedelta(seconds=3), NOON.astimezone(zone) + timedelta(seconds=47)
    found = TimelineWindow(since, until).rounded()
    assert (found.since, found.until) == (NOON, NOON + timedelta(seconds=50))
    assert TimelineWindow(NOON, NOON).rounded() == TimelineWindow(NOON, NOON)


@pytest.mark.parametrize("offset", [timezone.utc, timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))])
@pytest.mark.parametrize("moment", [datetime.min, datetime.max])
def test_a_time_window_at_the_limits_of_the_calendar_is_accepted(moment: datetime, offset: timezone) -> None:
    found = TimelineWindow(moment.replace(tzinfo=offset), moment.replace(tzinfo=offset)).rounded()
    assert found.since is not None
    assert found.until is not None
    assert found.since <= found.until


def second(count: float) -> datetime:
    return NOON + timedelta(seconds=count)


def a_try(task_id: str, start: float, end: float, state: str = "success", number: int = 1) -> TaskBar:
    return TaskBar(
        task_id=task_id, map_index=-1, operator=BEGIN if task_id == "begin" else "PythonOperator", attempt=None,
        try_number=number, state=state, start=second(start), end=second(end),
    )  # fmt: skip


def tries_of(tries: list[TaskBar], *, created: float, ended: float) -> list[tuple[str, int]]:
    """The tries of a committed transaction, by the timeline."""
    times = {"began": created, "processed": ended, "granted_at": ended, "ended": ended, "created": created}
    at: dict[str, Any] = {name: second(count).isoformat() for name, count in times.items()}
    run: dict[str, Any] = {"run_id": "r", "rows": 1, "op": "op"}
    history = final_record(**at, **run)
    row = timeline_row(view_final(history, None), tries, has_run=True)
    return [(each.task_id, each.try_number) for each in row.tasks]


ONE_RUN = [
    a_try("begin", 0, 2), a_try("count", 3, 9), a_try("commit", 10, 12), a_try("tell", 13, 14),
    a_try("begin", 100, 102, number=2), a_try("count", 103, 109, number=2), a_try("commit", 110, 112, number=2),
    a_try("begin", 200, 202, number=3), a_try("count", 203, 209, number=3), a_try("commit", 210, 212, number=3),
]  # fmt: skip
"""A run whose transaction was restated twice; a task comes after its commit."""


@pytest.mark.parametrize(
    ("created", "ended", "number", "tasks"),
    [
        (1, 12, 1, ["begin", "count", "commit", "tell"]),
        (101, 112, 2, ["begin", "count", "commit"]),
        (201, 212, 3, ["begin", "count", "commit"]),
    ],
)
def test_a_transaction_shows_only_its_own_tries_of_a_shared_run(
    created: float, ended: float, number: int, tasks: list[str]
) -> None:
    assert tries_of(ONE_RUN, created=created, ended=ended) == [(task, number) for task in tasks]


def test_a_transaction_shows_the_tries_of_all_its_attempts() -> None:
    tries = [
        a_try("begin", 0, 1, "failed"), a_try("begin", 2, 4, number=2), a_try("count", 5, 6, "failed"),
        a_try("begin", 10, 12, number=3), a_try("count", 13, 14, number=2),
    ]  # fmt: skip
    found = tries_of(tries, created=3, ended=20)
    assert found == [("begin", 1), ("begin", 2), ("count", 1), ("begin", 3), ("count", 2)]


def test_a_try_that_has_not_started_is_shown() -> None:
    waits = replace(a_try("count", 0, 0, "scheduled"), start=None, end=None)
    assert tries_of([a_try("begin", 0, 2), waits], created=1, ended=9) == [("begin", 1), ("count", 1)]
