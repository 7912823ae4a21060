"""Transactions overlap while they are processed, and commit strictly in order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.airflow.ahead import once
from tests.airflow.stack import SIZE, Final, Stack

DAG = "pipelined"
RUNS = ["r1", "r2", "r3", "r4", "r5"]


@dataclass(frozen=True)
class Observed:
    """What was seen while transaction 1 was held in its processing phase, and what became of all five."""

    allocated: int
    fifth: dict[str, str | None]
    commits: dict[str, str | None]
    totals: object
    history: list[Final]


@once
def observed(stack: Stack) -> Observed:
    """Five runs at max_pending 4, the first of them held until the others can go no further."""
    hold = stack.signal()
    airflow, ledger = stack.airflow, stack.ledger(DAG)
    stack.start(DAG, "r1", hold=hold)
    stack.begun(DAG, "r1")
    for run_id in RUNS[1:4]:
        stack.start(DAG, run_id)
    for run_id in RUNS[1:4]:
        airflow.wait_task(DAG, run_id, "count", "success")
    stack.start(DAG, "r5")
    airflow.wait_task(DAG, "r5", "begin", ("running", "deferred"))
    airflow.wait_task(DAG, "r2", "commit", "deferred")
    airflow.wait_task(DAG, "r5", "begin", "deferred")
    seen = (
        ledger.allocated,
        airflow.states(DAG, "r5"),
        {run_id: airflow.states(DAG, run_id)["commit"] for run_id in RUNS},
        stack.totals(DAG),
    )
    hold.give()
    for run_id in RUNS:
        airflow.wait_run(DAG, run_id)
    return Observed(*seen, ledger.history())


@pytest.mark.worth("the story of five overlapping runs that five tests are about")
def test_a_later_transaction_that_is_ready_first_waits_until_the_earlier_one_commits(stack: Stack) -> None:
    assert not {"success", "failed"} & set(observed(stack).commits.values()), observed(stack).commits
    assert observed(stack).totals == {}


def test_a_fifth_run_waits_in_begin_without_a_txid_if_max_pending_is_4(stack: Stack) -> None:
    assert observed(stack).allocated == 4
    assert observed(stack).fifth["begin"] == "deferred"
    assert observed(stack).fifth["count"] is None


def test_transactions_are_processed_at_the_same_time(stack: Stack) -> None:
    first, *others = observed(stack).history
    assert all(other.processed < first.processed for other in others[:3])
    assert all(other.began < first.processed for other in others[:3])


def test_transactions_commit_one_at_a_time_in_txid_order(stack: Stack) -> None:
    assert [entry.txid for entry in observed(stack).history] == [1, 2, 3, 4, 5]
    assert all(before.ended <= after.granted for before, after in pairwise(observed(stack).history))


def test_every_number_is_counted_once(stack: Stack) -> None:
    stack.assert_counted_once(DAG, 5 * SIZE)
    assert [entry.attempts for entry in observed(stack).history] == [1] * 5
