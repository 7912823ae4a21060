"""The attempts of a transaction beside each other: what is known of each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

from airflow_tx.base.remedy import shortened_reason
from airflow_tx.ledger.receipt import Replayed
from airflow_tx.ledger.records import Phase, ReplayNote
from airflow_tx.plugin.api.airflow_runs import TaskBar
from airflow_tx.plugin.api.timeline import attempt_bars, task_bars
from airflow_tx.plugin.api.transaction_page import AttemptLine, attempt_lines, said_above
from tests.unit.protocol.first_transaction import with_first

NOON = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def a_try(task_id: str, start: float, end: float | None, state: str, number: int = 1, index: int = -1) -> TaskBar:
    return TaskBar(
        task_id=task_id, map_index=index, operator="PythonOperator", attempt=None, try_number=number, state=state,
        start=at(start), end=None if end is None else at(end),
    )  # fmt: skip


TRIES = [
    a_try("count", 1, 2, "failed", 1),
    a_try("count", 3, 4, "failed", 2),
    a_try("count", 11, None, "running", 3),
    a_try("read", 1, 2, "success", 1, index=0),
    a_try("read", 1, 3, "failed", 1, index=1),
]
VERSIONS = {("count", -1, 1): (3, "3"), ("count", -1, 2): (10, "10 (abc)"), ("count", -1, 3): (11, "11")}


def lines(replayed: Mapping[str, Any] = MappingProxyType({"rows": 7}), **changes: Any) -> list[AttemptLine]:
    first = Replayed(1, at(10).isoformat(), "no disk", **replayed)
    told = {"size": {"rows": 9, "why": "max_rows_per_batch=9"}, **changes}
    (view,) = with_first(
        phase=Phase.PROCESSING, attempt=2, created=at(0).isoformat(), began=at(10).isoformat(), replays=[first], **told,
    ).transactions  # fmt: skip
    attempts = attempt_bars(view)
    _, above = said_above(view, attempts)
    return attempt_lines("dag", view, attempts, task_bars(TRIES, attempts), VERSIONS, above=above)


def test_each_attempt_shows_its_own_error_and_rows_and_versions() -> None:
    first, second = lines(error="no rights")
    assert (first.attempt, first.outcome, first.why, first.size) == (1, "replayed", "no disk", "7 rows")
    assert (second.attempt, second.why, second.size) == (2, "no rights", "9 rows")
    # By number, not by letters.
    assert (first.dag_versions, second.dag_versions) == (["3", "10 (abc)"], ["11"])


def said(*earlier: str, **changes: Any) -> tuple[str | None, list[tuple[bool, int]]]:
    """Give the error above the sections, and of each attempt whether it stands above, or at which other attempt."""
    replays = [Replayed(number, at(number).isoformat(), why) for number, why in enumerate(earlier, start=1)]
    newest = {"attempt": len(earlier) + 1, "created": at(0).isoformat(), "began": at(10).isoformat()}
    (view,) = with_first(**{"phase": Phase.PROCESSING, **newest, "replays": replays, **changes}).transactions
    bars = attempt_bars(view)
    told, above = said_above(view, bars)
    found = attempt_lines("dag", view, bars, (), {}, above=above)
    return told, [(each.above, each.same_as) for each in found if each.why]


def test_an_error_is_shown_once_above_the_attempts_or_at_the_first_attempt_with_this_error() -> None:
    failed = {"phase": Phase.FAILED, "error": "no rights"}
    assert said("no disk", **failed) == ("no rights", [(False, 1), (True, 2)])
    long = f"no rights{' at all' * 99}"
    shortened = shortened_reason(long)
    assert said(shortened, **{**failed, "error": long}) == (long, [(True, 1), (True, 1)])
    assert said("no disk", "no disk", "a", **failed)[1] == [(False, 1), (False, 1), (False, 3), (True, 4)]


def test_the_error_of_the_previous_attempt_is_shown_until_another_failure_happens() -> None:
    assert said("no rights") == ("Attempt 1 was replayed: no rights", [(True, 1)])
    assert said() == (None, [])


def test_an_error_that_the_sentence_about_the_wait_quotes_is_not_shown_again() -> None:
    note = ReplayNote(2, 1, "", "no rights")
    asked = {"replay": note, "request": ""}
    assert said("no rights", **asked) == (None, [(True, 1)])


def test_a_batch_is_labeled_as_resized_only_if_both_sizes_have_the_same_unit() -> None:
    assert [each.resized for each in lines()] == [False, True]
    assert [each.resized for each in lines({"rows": 9})] == [False, False]
    at_most = {"size": {"rows": 9, "at_most": True}}
    assert [each.resized for each in lines(at_most)] == [False, False]


def test_an_attempt_without_counted_rows_shows_the_size_that_its_source_reports() -> None:
    offsets = {"rows": 5, "at_most": True}
    assert [each.size for each in lines({"size": {"files": 1}}, size=offsets)] == ["1 file", "at most 5 rows"]
    assert [each.size for each in lines({}, size=None)] == [None, None]


def test_all_tries_of_a_task_in_one_attempt_are_shown_in_one_line() -> None:
    first, second = lines()
    count, read = first.tasks
    assert (count.task_id, count.states, count.tries, count.seconds) == ("count", {"failed": 1}, 2, 180.0)
    assert count.log is not None
    assert count.log.path.endswith("/tasks/count?try_number=2")
    assert (read.states, read.tries) == ({"success": 1, "failed": 1}, 2)
    assert read.log is not None
    assert read.log.path.endswith("/tasks/read/mapped/1?try_number=1")
    assert [(each.task_id, each.states, each.seconds) for each in second.tasks] == [("count", {"running": 1}, None)]
