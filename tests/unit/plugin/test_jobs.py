"""What became of many transactions that a person wanted at once: the ledger and Airflow say it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import LedgerView, topology_view
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api import airflow_runs
from airflow_tx.plugin.api.airflow_runs import Backfill, FailedRun, JobLine, jobs_of
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from tests.integration.cli_runs import fail
from tests.integration.pipeline import Pipeline

NOW = datetime(2026, 1, 1, 1, tzinfo=timezone.utc)
"""An hour after the first transaction began."""


class Airflow:
    """The runs that have ended, with the time of their end, and the backfills."""

    def __init__(self) -> None:
        self.ends: dict[str, tuple[str | None, datetime | None]] = {}
        self.backfills: list[Backfill] = []


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    airflow = Airflow()
    monkeypatch.setattr(airflow_runs, "run_ends_at", lambda dag_id, run_ids: airflow.ends)
    monkeypatch.setattr(airflow_runs, "backfills", lambda dag_id, since: airflow.backfills)
    return airflow


@pytest.fixture
def pipeline(airflow: Airflow) -> Pipeline:
    """Five transactions, all committed."""
    pipeline = Pipeline(MemoryStore(), "/tx", journals=True)
    for number in range(1, 6):
        pipeline.run(f"r{number}")
    return pipeline


def wanted(pipeline: Pipeline, *txids: int, who: str = "ada", why: str = "a bug") -> None:
    for txid in txids:
        pipeline.ledger.run(want, WishRequest(txid, f"r{txid}", f"r{txid}"), Audit(who, why))


def snapshot(pipeline: Pipeline) -> TopologySnapshot:
    view = topology_view(pipeline.store, pipeline.paths, recent=0)
    final = LedgerView(pipeline.store, pipeline.paths).final_txids()
    place = LedgerPlace("flights", "zookeeper", pipeline.paths)
    return TopologySnapshot(view.record, place, pipeline.store, view, final)


def lines(pipeline: Pipeline, now: datetime = NOW) -> list[JobLine]:
    return jobs_of(snapshot(pipeline), now).jobs


def counts(line: JobLine) -> dict[str, int]:
    """The counts that are not 0."""
    found = {name: vars(line)[name] for name in ("done", "failed", "left_out", "under_way", "waiting")}
    assert sum(found.values()) == line.total
    return {name: count for name, count in found.items() if count}


def test_restatements_by_one_person_for_one_reason_are_one_job(pipeline: Pipeline, airflow: Airflow) -> None:
    wanted(pipeline, 1, 2, 3, 4, 5)
    pipeline.run("r1")
    fail(pipeline, pipeline.begin("r2"))
    pipeline.begin("r3")
    airflow.ends = {"r4": ("queued", None)}
    (line,) = lines(pipeline)
    assert counts(line) == {"done": 1, "failed": 1, "under_way": 2, "waiting": 1}
    assert (line.who, line.why, line.failed_txids, line.waiting_txids) == ("ada", "a bug", [7], [5])


def test_a_request_counts_as_failed_if_its_run_failed_after_the_request(pipeline: Pipeline, airflow: Airflow) -> None:
    wanted(pipeline, 1, 2)
    # The run of 2 had failed before: a task after its commit.
    airflow.ends = {"r1": ("failed", NOW), "r2": ("failed", NOW - timedelta(days=1))}
    (line,) = lines(pipeline)
    assert (counts(line), line.failed_txids) == ({"failed": 1, "waiting": 1}, [])


def test_a_skipped_restatement_counts_as_omitted_until_it_is_requested_again(pipeline: Pipeline) -> None:
    wanted(pipeline, 1, 2)
    pipeline.begin("r1")
    pipeline.skip(6)
    assert counts(lines(pipeline)[0]) == {"left_out": 1, "waiting": 1}
    wanted(pipeline, 1)
    assert counts(lines(pipeline)[0]) == {"waiting": 2}


@pytest.mark.parametrize("other", [{"who": "bob"}, {"why": "another bug"}])
def test_restatements_by_another_person_or_for_another_reason_are_another_job(
    pipeline: Pipeline, other: dict[str, str]
) -> None:
    wanted(pipeline, 1, 2)
    wanted(pipeline, 3, 4, **other)
    assert [line.total for line in lines(pipeline)] == [2, 2]


def test_a_single_restatement_is_not_shown_as_a_job(pipeline: Pipeline) -> None:
    wanted(pipeline, 1)
    assert lines(pipeline) == []


def test_a_finished_job_is_shown_for_one_day(pipeline: Pipeline) -> None:
    wanted(pipeline, 1, 2)
    for run in ("r1", "r2"):
        pipeline.run(run)
    assert counts(lines(pipeline, NOW)[0]) == {"done": 2}
    assert lines(pipeline, NOW + timedelta(days=1)) == []


def test_a_failed_job_is_shown_until_a_person_has_resolved_it(pipeline: Pipeline) -> None:
    wanted(pipeline, 1, 2)
    for run in ("r1", "r2"):
        fail(pipeline, pipeline.begin(run))
    assert counts(lines(pipeline, NOW + timedelta(days=9))[0]) == {"failed": 2}


def test_the_jobs_of_a_ledger_without_restatements_need_one_read_of_the_ledger(pipeline: Pipeline) -> None:
    found = snapshot(pipeline)
    reads: list[str] = []

    class Counted(MemoryStore):
        def get(self, path: str) -> Any:
            reads.append(path)
            return pipeline.store.get(path)

        def children(self, path: str) -> Any:
            return pipeline.store.children(path)

    assert jobs_of(replace(found, store=Counted()), NOW).jobs == []
    assert len(reads) == 1


def backfill(**changed: Any) -> Backfill:
    days = {"first": NOW - timedelta(days=30), "last": NOW - timedelta(days=1)}
    whole = {"who": "ada", "since": NOW, "states": {}, "failed": (), "is_airflow_own": True}
    return Backfill(**{**days, **whole, **changed})


def test_a_backfill_counts_its_runs_and_names_the_transactions_to_replay(pipeline: Pipeline, airflow: Airflow) -> None:
    fail(pipeline, pipeline.begin("late"))
    # r5 has failed after the commit of its transaction; "none" has none.
    failed = tuple(FailedRun(run_id, None) for run_id in ("late", "r5", "none"))
    airflow.backfills = [backfill(states={"success": 4, "running": 2, "queued": 3, "failed": 3}, failed=failed)]
    (line,) = lines(pipeline)
    assert (line.kind.value, counts(line), line.failed_txids) == (
        "backfill",
        {"done": 5, "failed": 2, "under_way": 5},
        [6],
    )


def test_the_runs_of_the_backfill_command_are_a_job_and_a_backfill_without_runs_is_not_a_job(
    pipeline: Pipeline, airflow: Airflow
) -> None:
    airflow.backfills = [backfill(states={"success": 1}, is_airflow_own=False), backfill()]
    assert [line.kind.value for line in lines(pipeline)] == ["tx-backfill"]


@pytest.mark.parametrize(
    ("run", "dated"), [("r6", False), ("interval:2026-01-01T00:00:00+00:00/2026-01-02T00:00:00+00:00", True)]
)
def test_a_topology_has_dates_if_its_runs_have_intervals(pipeline: Pipeline, run: str, dated: bool) -> None:
    pipeline.run(run)
    assert jobs_of(snapshot(pipeline), NOW).dated is dated
