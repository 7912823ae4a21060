"""Waiting runs that hold every run slot make room for the one whose turn it is, and come back by themselves.

Which one does is left open here: the best of those that bid in time, and a busy triggerer is late.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.ahead import once
from tests.airflow.dags.daily import DAY, FIRST
from tests.airflow.stack import SIZE, Signal, Stack

DAYS = [FIRST + number * DAY for number in range(4)]
WAITING = ("running", "deferred")


def reason(run_id: str, holder: str, blocking: int = 1) -> str:
    """What a run that makes room says, word for word."""
    return (
        f"Run {run_id} yields: transaction {blocking} must commit first, and its run {holder} waits for a "
        "run slot. Nothing is lost. This run starts again when the slot is free, and processes its batch again."
    )


@dataclass
class Story:
    """What was seen in the course of it."""

    seen: dict[str, Any] = field(default_factory=dict)


@dataclass
class Actor:
    """One DAG, and its runs."""

    stack: Stack
    dag_id: str

    def fail_first(self) -> Signal:
        """Start `r1`, which fails; cleared, it goes on once the signal is given."""
        failing, go_on = self.stack.signal(), self.stack.signal()
        failing.give()
        self.stack.start(self.dag_id, "r1", fail_while=failing, hold=go_on)
        self.stack.airflow.wait_run(self.dag_id, "r1", state="failed")
        failing.take_back()
        return go_on

    def start_waiting(self, task_id: str, *run_ids: str) -> None:
        """Start runs, and wait until they wait in a task."""
        for run_id in run_ids:
            self.stack.start(self.dag_id, run_id)
        for run_id in run_ids:
            self.stack.airflow.wait_task(self.dag_id, run_id, task_id, WAITING)

    def state(self, run_id: str) -> str:
        """The state of a run."""
        return str(self.stack.airflow.run(self.dag_id, run_id)["state"])

    def wait(self, check: Callable[[], Any], what: str, run_id: str, timeout: float = 300) -> None:
        """Wait for a condition; a run explains why it is not met."""
        self.stack.airflow.wait_for(check, timeout, what, self.dag_id, run_id)

    def yields(self, run_ids: Collection[str], task_ids: Collection[str] = ("begin", "commit")) -> dict[str, str]:
        """Per run that has made room, ever, the line that says so."""
        found = {}
        for run_id in run_ids:
            for task_id in task_ids:
                log = self.stack.airflow.whole_log(self.dag_id, run_id, task_id)
                lines = {line[line.index("Run ") :] for line in log.splitlines() if " yields: " in line}
                if lines:
                    (found[run_id],) = lines
        return found


@once
def full(stack: Stack) -> Story:
    """Two runs that wait at commit and two that wait in `begin` hold all four slots; the first one is cleared."""
    story, actor = Story(), Actor(stack, "yielding")
    go_on = actor.fail_first()
    actor.start_waiting("commit", "r2", "r3")
    actor.start_waiting("begin", "r4", "r5")
    stack.airflow.clear_run("yielding", "r1")
    story.seen["at first"] = actor.state("r1")
    actor.wait(lambda: actor.state("r1") == "running", "it has a run slot", "r1")
    story.seen["states"] = {run_id: actor.state(run_id) for run_id in ("r2", "r3", "r4", "r5")}
    story.seen["totals"] = stack.totals("yielding")
    go_on.give()
    stack.airflow.wait_runs("yielding", dict.fromkeys(["r1", "r2", "r3", "r4", "r5"], "success"))
    story.seen["yields"] = actor.yields(["r1", "r2", "r3", "r4", "r5"])
    return story


@once
def in_begin(stack: Stack) -> Story:
    """Runs without a transaction hold all slots; the DAG is paused for a while."""
    story, actor = Story(), Actor(stack, "yielding_in_begin")
    go_on = actor.fail_first()
    actor.start_waiting("begin", "r2", "r3")
    airflow = stack.airflow
    airflow.pause("yielding_in_begin")
    airflow.clear_run("yielding_in_begin", "r1")
    try:
        # A trigger has found that there is no room; nobody runs its task while the DAG is paused.
        actor.wait(
            lambda: "scheduled" in [airflow.task("yielding_in_begin", each, "begin")["state"] for each in ("r2", "r3")],
            "one of them is woken",
            "r3",
        )
        story.seen["paused"] = {run_id: actor.state(run_id) for run_id in ("r1", "r2", "r3")}
    finally:
        airflow.pause("yielding_in_begin", False)
    actor.wait(lambda: actor.state("r1") == "running", "it has a run slot", "r1")
    story.seen["states"] = {run_id: actor.state(run_id) for run_id in ("r2", "r3")}
    go_on.give()
    airflow.wait_runs("yielding_in_begin", dict.fromkeys(["r1", "r2", "r3"], "success"))
    story.seen["yields"] = actor.yields(["r1", "r2", "r3"])
    return story


@once
def backwards(stack: Stack) -> Story:
    """Four failed days are backfilled from the last to the first, with two run slots."""
    story, actor, dag_id = Story(), Actor(stack, "backwards"), "backwards"
    airflow = stack.airflow
    airflow.wait_dag(dag_id)
    folder = stack.folder / "fail" / dag_id
    folder.mkdir(parents=True)
    for day in DAYS:
        Path(folder, f"{day:%Y-%m-%d}").touch()
    airflow.backfill(dag_id, DAYS[0], DAYS[-1], max_active_runs=1)
    run_ids = [run["dag_run_id"] for run in sorted(airflow.runs(dag_id), key=lambda run: str(run["logical_date"]))]
    airflow.wait_runs(dag_id, dict.fromkeys(run_ids, "failed"))
    shutil.rmtree(folder)
    airflow.end_backfills(dag_id)
    airflow.backfill(dag_id, DAYS[0], DAYS[-1], max_active_runs=2, backwards=True, reprocess="failed")
    airflow.wait_runs(dag_id, dict.fromkeys(run_ids, "success"), timeout=300)
    story.seen["yields"] = actor.yields(run_ids, ["commit"])
    story.seen["runs"] = run_ids
    return story


def one_made_room(seen: dict[str, Any]) -> str:
    """The only run that has made room, after what was seen."""
    ((run_id, said),) = seen["yields"].items()
    assert said == reason(run_id, "r1")
    assert seen["states"].pop(run_id) == "failed"
    assert set(seen["states"].values()) == {"running"}
    return str(run_id)


@pytest.mark.long
def test_a_waiting_run_yields_its_slot_to_the_next_transaction_and_restarts_by_itself(stack: Stack) -> None:
    seen = full(stack).seen
    assert seen["at first"] == "queued"
    assert seen["totals"] == {}
    yielded = one_made_room(seen)
    history = stack.ledger("yielding").history()
    assert [entry.txid for entry in history] == [1, 2, 3, 4, 5]
    again = {"r1", yielded} & {"r1", "r2", "r3"}  # the others had no transaction yet
    assert {entry.run_id for entry in history if entry.attempts == 2} == again
    stack.assert_counted_once("yielding", 5 * SIZE)


@pytest.mark.long
def test_runs_that_wait_in_begin_yield_their_slots_unless_the_dag_is_paused(stack: Stack) -> None:
    seen = in_begin(stack).seen
    assert seen["paused"] == {"r1": "queued", "r2": "running", "r3": "running"}
    one_made_room(seen)
    assert [entry.attempts for entry in stack.ledger("yielding_in_begin").history()] == [2, 1, 1]
    stack.assert_counted_once("yielding_in_begin", 3 * SIZE)


@pytest.mark.long
def test_a_reverse_backfill_with_fewer_slots_than_failed_days_completes(stack: Stack) -> None:
    seen = backwards(stack).seen
    first, *others = seen["runs"]
    assert seen["yields"] == {run_id: reason(run_id, first) for run_id in others if run_id in seen["yields"]}
    assert len(seen["yields"]) == 2
    assert [entry.run_id for entry in stack.ledger("backwards").history()] == seen["runs"]
    stack.assert_counted_once("backwards", 4 * SIZE)
