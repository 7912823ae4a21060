"""The attempts of a transaction beside each other: what is known of each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

from airflow_tx.ledger.receipt import Replayed
from airflow_tx.ledger.records import Phase
from airflow_tx.plugin.api.airflow_runs import TaskBar
from airflow_tx.plugin.api.timeline import attempt_bars, task_bars
from airflow_tx.plugin.api.transaction_page import AttemptLine, attempt_lines
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
VERSIONS = {("count", -1, 1): "3", ("count", -1, 2): "10 (abc)", ("count", -1, 3): "11"}


def lines(replayed: Mapping[str, Any] = MappingProxyType({"rows": 7}), **changes: Any) -> list[AttemptLine]:
    first = Replayed(1, at(10).isoformat(), "no disk", **replayed)
    told = {"size": {"rows": 9, "why": "max_rows_per_batch=9"}, **changes}
    (view,) = with_first(
        phase=Phase.PROCESSING, attempt=2, created=at(0).isoformat(), began=at(10).isoformat(), replays=[first], **told,
    ).transactions  # fmt: skip
    attempts = attempt_bars(view)
    return attempt_lines("dag", view, attempts, task_bars(TRIES, attempts), VERSIONS)


def test_each_attempt_has_its_own_error_rows_and_versions() -> None:
    first, second = lines(error="no rights")
    assert (first.attempt, first.outcome, first.why, first.size) == (1, "replayed", "no disk", "7 rows")
    assert (second.attempt, second.why, second.size) == (2, "no rights", "9 rows")
    # By number, not by letters.
    assert (first.dag_versions, second.dag_versions) == (["3", "10 (abc)"], ["11"])


def test_where_nobody_counted_rows_an_attempt_has_the_size_that_its_source_knows() -> None:
    offsets = {"rows": 5, "at_most": True}
    assert [each.size for each in lines({"size": {"files": 1}}, size=offsets)] == ["1 file", "at most 5 rows"]
    assert [each.size for each in lines({}, size=None)] == [None, None]


def test_the_tries_of_a_task_are_one_line_for_each_attempt() -> None:
    first, second = lines()
    count, read = first.tasks
    assert (count.task_id, count.states, count.tries, count.seconds) == ("count", {"failed": 1}, 2, 180.0)
    assert count.log is not None
    assert count.log.path.endswith("/tasks/count?try_number=2")
    assert (read.states, read.tries) == ({"success": 1, "failed": 1}, 2)
    assert read.log is not None
    assert read.log.path.endswith("/tasks/read/mapped/1?try_number=1")
    assert [(each.task_id, each.states, each.seconds) for each in second.tasks] == [("count", {"running": 1}, None)]
