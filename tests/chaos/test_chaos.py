"""A slice of `script/chaos`, and its judge: whatever it has to notice, it notices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.testing.deadline import run_command
from tests.chaos.dags.under_fire import REMAINDERS
from tests.chaos.judge import Counting, Row, wrong_rows
from tests.chaos.mutant import RULES, STALE, WHOLE
from tests.chaos.record import Fault, Record, Rest
from tests.chaos.report import written
from tests.model.mutants import applied

ROOT = Path(__file__).parents[2]


def counted(batches: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """The rows of a state that has counted these batches."""
    txids = {number: txid for txid, batch in enumerate(batches, 1) for number in batch}
    rows = [{"key": f"r{number}", "n": 1, "total": number, "txid": txid} for number, txid in txids.items()]
    for rest in range(REMAINDERS):
        own = {number: txid for number, txid in txids.items() if number % REMAINDERS == rest}
        rows.append({"key": f"k{rest}", "n": len(own), "total": sum(own), "txid": sum(own.values())})
    return rows


def found(rows: Sequence[Row], numbers: int, readmitted: set[int] | None = None) -> str:
    counting = Counting({1, 2}, late=readmitted or set(), mended=dict.fromkeys(range(numbers), 0))
    return "\n".join(wrong_rows(rows, set(range(numbers)), counting))


def test_the_judge_accepts_totals_in_which_each_number_counts_once_and_in_order() -> None:
    assert not found(counted([range(10), range(10, 20)]), 20)
    assert not found(counted([range(10, 20), range(10)]), 20, {2})


def test_the_judge_reports_lost_skipped_and_unordered_numbers_and_numbers_counted_twice() -> None:
    rows = counted([range(10), range(10, 20)])
    assert "lost: [20]" in found(rows, 21)
    assert "skipped, and counted: [19]" in found(rows, 19)
    twice = [{**row, "n": 2, "total": 6} if row["key"] == "r3" else row for row in rows]
    assert "not counted once" in found(twice, 20)
    assert "row k3 is" in found(twice, 20)
    assert "is in transaction 1, a smaller one in 2" in found(counted([range(10, 20), range(10)]), 20)
    touched = [{**row, "total": row["total"] + 1} if row["key"] == "k2" else row for row in rows]
    assert "row k2 is" in found(touched, 20)


def restated(*, mended: bool = True) -> tuple[list[dict[str, Any]], Counting]:
    """The rows of a state after transaction 3 has restated transaction 1, and what counts then."""
    rows = counted([[], range(10, 20), range(10)])
    counting = Counting({1, 2, 3}, {1}, {3: 1}, mended=dict.fromkeys(range(10), 1) if mended else {})
    return rows, counting


def test_the_judge_accepts_totals_after_a_complete_restatement() -> None:
    rows, counting = restated()
    assert not wrong_rows(rows, set(range(20)), counting)
    assert not counting.misbound([{"txid": 2}, {"txid": 3}])


def test_the_judge_finds_rows_that_a_restatement_should_have_replaced() -> None:
    rows, counting = restated()
    expected = set(range(20))
    old = [{**row, "txid": 1} if row["key"] == "r3" else row for row in rows]
    assert "transactions that do not count, and are counted: [1]" in wrong_rows(old, expected, counting)
    twice = [{**row, "n": 2} if row["key"] == "r3" else row for row in rows]
    assert "not counted once" in "".join(wrong_rows(twice, expected, counting))
    left = [*rows, {"key": "x1", "n": 1, "total": 1, "txid": 3}]
    assert "counted under two keys: 1" in "".join(wrong_rows(left, expected, counting))
    assert "not what their transaction gave" in "".join(wrong_rows(rows, expected, restated(mended=False)[1]))


def test_the_judge_reports_a_run_that_is_bound_to_a_restated_transaction() -> None:
    counting = Counting({1, 2}, {1}, {2: 1})
    assert counting.misbound([{"txid": 3}]) == ["transactions [2] count, and no run is bound to them"]
    assert counting.misbound([{"txid": 1}, {"txid": 2}]) == [
        "transactions [1] were restated, and their runs are bound to them"
    ]


def test_a_chaos_run_resumes_after_its_last_good_check_and_reports_all_faults(tmp_path: Path) -> None:
    record = Record(tmp_path / "run.jsonl")
    for number in range(1, 4):
        record.add("fault", Fault(number, "commit", "kill", "commit.before_mark", ["rows"], 1.0, 1.0, 2.5))
    record.add("rest", Rest(2, 9.0, 200, 20, 25, 1))
    record.add("rest", Rest(3, 9.0, 300, 30, 35, 1, wrong=["rows: numbers that were lost: [1]"]))
    assert record.rested == 2
    assert [fault.number for fault in record.faults()] == [1, 2]
    text = written([record, record])
    assert "**4 faults, 4 checks at rest. Wrong totals: 2. Stuck topologies: 0.**" in text
    assert "| commit | kill | 4 | 2.5 | 2.5 |" in text
    assert "| 2 | 3 | 300 | 30 | 35 | 1 | 0 | 1 | 0 | 9 |" in text


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_that_a_mutant_removes_exists_in_the_product(rule: str) -> None:
    with applied(RULES[rule]()):
        pass


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`script/chaos`, in an environment that is made already."""
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    return run_command(command, cwd=ROOT, capture_output=True, timeout=1500)


@pytest.mark.chaos
@pytest.mark.timeout(1600)
def test_each_number_counts_once_and_in_order_under_random_faults(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    done = chaos("--without", "Spark", "--faults", "120", "--every", "60", "--record", str(record))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-9000:]
    # A fault that was aimed at a moment to come may still happen while the world comes to rest.
    assert Record(record).rested >= 120


@pytest.mark.chaos
@pytest.mark.timeout(1600)
def test_the_judge_reports_each_store_in_which_a_second_grant_adds_its_rows_again(tmp_path: Path) -> None:
    """A commit that dies between write and mark is done again; with the rule that it then replaces taken out.

    Each topology is killed three times, since a skip may take the transaction of one kill away. The table of a lake is
    not among them: a file that is added again is there once.
    """
    aimed = ("--mutant", "again", "--at", "commit.before_mark", "--faults", "21", "--every", "21")
    done = chaos(*aimed, "--without", "Spark", "--record", str(tmp_path / "run.jsonl"))
    assert done.returncode == 1, done.stdout[-3000:]
    (rest,) = Record(tmp_path / "run.jsonl").rests()
    twice = [line for line in rest.wrong if "numbers that were not counted once" in line]
    for state in (
        "late_files: fire_postgres",
        "late_files: fire_redis",
        "rows: fire_postgres.counted_rows",
        "rows: fire_postgres.rows",
        "stream: fire_redis",
        "events: fire_mariadb",
    ):
        assert any(line.startswith((f"{state}.", f"{state}:")) for line in twice), done.stderr[-9000:]


@pytest.mark.chaos
@pytest.mark.timeout(1600)
@pytest.mark.parametrize(
    ("rule", "finding"),
    [
        (WHOLE, "numbers that were not counted once"),
        (STALE, "sums: fire_postgres.sums: transactions that do not count, and are counted"),
    ],
)
def test_the_judge_reports_the_result_of_a_wrong_restatement(rule: str, finding: str, tmp_path: Path) -> None:
    """The run ends at the first rest with a finding: before that, a person may have given up what was restated."""
    record = tmp_path / "run.jsonl"
    small = ("--without", "Spark", "Kafka", "MariaDB", "--faults", "25", "--every", "5")
    done = chaos("--mutant", rule, *small, "--record", str(record))
    assert done.returncode == 1, done.stdout[-3000:]
    *_, rest = Record(record).rests()
    assert finding in "\n".join(rest.wrong), done.stderr[-9000:]
