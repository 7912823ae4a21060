"""Rows that tasks reject: one more output of the try, which the commit appends to a table."""

from __future__ import annotations

import json
from collections import namedtuple
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_tx.base import failpoints
from airflow_tx.base.errors import RestateRefused, StagingError, StateError, TxError
from airflow_tx.base.failpoints import FailpointError
from airflow_tx.ledger import REJECTED, RowsDigest, RowsRead
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.audit.rebuild import state_lost
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.views.view import transaction_details
from airflow_tx.operations.cli import render
from airflow_tx.operators.commit import final_errors
from airflow_tx.state import DeltaTable, MemoryState
from airflow_tx.state.sql.table import SqlTable
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.transaction.commit import rejected as commit_rejected
from airflow_tx.transaction.commit.check import ChecksFailed
from airflow_tx.transaction.commit.restatement import check_entry, refused_by_dag
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.commit.update import Update, rejected_update
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import update
from tests.unit.bench import CountingStore
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.restated_run import entry_of, journal_of, rows, wanted
from tests.unit.commit.run import Run, counts, failed, found, killed_before_the_mark

BAD = {"number": 3, "day": date(2026, 1, 2), "amount": Decimal("1.50"), "raw": b"\xff", "share": float("nan")}


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failpoints:
    found = Failpoints(tmp_path / "points")
    monkeypatch.setenv(failpoints.VARIABLE, found.environment[failpoints.VARIABLE])
    return found


@pytest.fixture
def aside(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "lake" / "rejected")


@pytest.fixture
def makes(make: Any, state: MemoryState, aside: DeltaTable) -> Any:
    def made(run_id: str = "r1", updates: Any = None, **options: Any) -> Run:
        given = [update(state), rejected_update(aside)] if updates is None else updates
        run: Run = make(run_id, given, **{"rejected": aside, **options})
        return run

    return made


def working(run: Run, *rejected: tuple[Any, str], task: str = "count", index: int = -1, word: str = "a") -> Run:
    """Let a task read its batch, reject some rows, and return one."""
    processing = run.start(task, index)
    batch = CurrentBatch(processing)
    assert len(list(batch.read())) == 10
    for each in rejected:
        batch.reject(*each)
    run.end(processing, rows(**{word: 10 - len(rejected)}))
    return run


def begun(run: Run, *rejected: tuple[Any, str], **how: Any) -> Run:
    assert isinstance(run.begin(), Begun)
    return working(run, *rejected, **how)


def kept(aside: Any) -> list[tuple[int, str, str, str]]:
    names = ("tx_txid", "tx_task", "tx_reason", "tx_content")
    return sorted(tuple(row[name] for name in names) for row in aside.read())


# --- the table


def test_rejected_rows_are_in_their_table_with_a_reason_after_the_transaction_is_committed(
    makes: Any, aside: DeltaTable, state: MemoryState
) -> None:
    run = begun(makes(), (BAD, "no amount"), ([{"number": 4}, {"number": 5}], "too late"), ("a;b", "no row"))
    assert aside.read() == []
    assert run.commit_now() is None
    found = kept(aside)
    assert [each[:3] for each in found] == [
        (1, "count", "no amount"), (1, "count", "no row"), (1, "count", "too late"), (1, "count", "too late"),
    ]  # fmt: skip
    assert json.loads(found[0][3]) == {
        "number": 3, "day": "2026-01-02", "amount": "1.50", "raw": "base64:/w==", "share": "NaN",
    }  # fmt: skip
    assert [each[3] for each in found[1:]] == ["a;b", '{"number": 4}', '{"number": 5}']
    assert {row["tx_where"] for row in aside.read()} == {""}
    assert counts(state) == {"a": 7}
    receipt = run.spec.ledger(run.spec.memory).outcome(1).receipt
    assert receipt.tasks["count"].outputs[REJECTED] == 4


@pytest.mark.parametrize("frame", [pd.DataFrame({"n": [1, 2]}), pa.table({"n": [1, 2]})], ids=["pandas", "pyarrow"])
def test_each_row_of_a_rejected_data_frame_is_stored_as_a_row_of_its_own(
    makes: Any, aside: DeltaTable, frame: Any
) -> None:
    begun(makes(), (frame, "odd")).commit_now()
    assert [each[3] for each in kept(aside)] == ['{"n": 1}', '{"n": 2}']


FRAME = pd.DataFrame({"page": ["home"], "n": [-1], "share": [float("nan")]})
Named = namedtuple("Named", "page n")


@pytest.mark.parametrize(
    ("row", "content"),
    [
        (next(FRAME.iterrows())[1], {"page": "home", "n": -1, "share": None}),
        (FRAME.iloc[0], {"page": "home", "n": -1, "share": None}),
        (next(FRAME[["page", "n"]].itertuples(index=False)), {"page": "home", "n": -1}),
        (Named("home", np.int64(-1)), {"page": "home", "n": -1}),
        (pl.DataFrame({"n": [1]}).row(0, named=True), {"n": 1}),
        ({"n": np.float32(0.5), "of": np.array([1, 2])}, {"n": 0.5, "of": [1, 2]}),
        ({"tags": {"b", "a"}}, {"tags": ["a", "b"]}),
    ],
    ids=str,
)
def test_a_row_object_of_a_library_is_rejected_as_one_row_with_its_columns(
    makes: Any, aside: DeltaTable, row: Any, content: Any
) -> None:
    begun(makes(), (row, "odd")).commit_now()
    assert [json.loads(each[3]) for each in kept(aside)] == [content]


def test_a_list_of_row_objects_is_rejected_row_by_row(makes: Any, aside: DeltaTable) -> None:
    begun(makes(), ([row for _, row in FRAME.iterrows()], "odd")).commit_now()
    assert len(kept(aside)) == 1


@pytest.mark.parametrize("rows", [[None], [[1]], [5], 5, FRAME["page"], pl.Series([1]), [("home", 1)]], ids=str)
def test_a_value_that_is_not_a_row_cannot_be_rejected(makes: Any, rows: Any) -> None:
    with pytest.raises(StagingError, match=r"the argument contains no rows \(.*Pass dicts, texts or a frame"):
        begun(makes(), (rows, "odd"))


def test_characters_that_no_table_can_store_are_escaped_in_rejected_rows(makes: Any, aside: DeltaTable) -> None:
    begun(makes(), ("a\0b", "nul \0"), ({"t": "\ud800"}, "half")).commit_now()
    assert kept(aside) == [(1, "count", "half", '{"t": "\\ud800"}'), (1, "count", "nul \\x00", "a\\x00b")]


def test_a_transaction_without_rejected_rows_is_committed_and_writes_no_rejected_row(
    makes: Any, aside: DeltaTable
) -> None:
    begun(makes()).commit_now()
    begun(makes("r2"), ("x", "odd")).commit_now()
    assert kept(aside) == [(2, "count", "odd", "x")]


def test_many_rejected_rows_are_written_in_several_parts(
    makes: Any, aside: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_rejected, "ROWS_A_WRITE", 4)
    begun(makes(), ([{"n": n} for n in range(10)], "odd")).commit_now()
    assert len(kept(aside)) == 10
    assert len(set(Path(aside.uri).rglob("part-*.parquet"))) == 3


def test_the_table_contains_the_rejected_rows_of_all_tasks_and_mapped_instances(makes: Any, aside: DeltaTable) -> None:
    run = begun(
        makes(tasks=("count", "look"), inside=("count", "look", "commit"), mapped=frozenset({"look"})), ("x", "odd")
    )
    for index in (0, 1):
        working(run, (str(index), "seen"), task="look", index=index)
    run.commit_now()
    assert kept(aside) == [(1, "count", "odd", "x"), (1, "look[0]", "seen", "0"), (1, "look[1]", "seen", "1")]


# --- tries, replays, kills, skips


def test_a_failed_try_and_a_replaced_attempt_leave_no_rejected_rows_in_the_table(makes: Any, aside: DeltaTable) -> None:
    run = makes()
    run.begin()
    failing = CurrentBatch(run.start())
    failing.reject("of the failed try", "odd")
    working(run, ("of the second try", "odd"))
    run.begin(retry=True)
    working(run, ("of the replay", "odd")).commit_now()
    assert kept(aside) == [(1, "count", "odd", "of the replay")]


def test_a_commit_that_is_killed_before_its_end_stores_each_rejected_row_once(
    makes: Any, aside: DeltaTable, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(makes(), ("x", "odd"))
    killed_before_the_mark(run.commit())
    run.commit_now()
    run.commit_now()
    assert kept(aside) == [(1, "count", "odd", "x")]
    assert counts(state) == {"a": 9}


def test_a_task_that_rejects_rows_and_returns_no_output_is_refused(makes: Any) -> None:
    run = makes()
    run.begin()
    processing = run.start()
    batch = CurrentBatch(processing)
    list(batch.read())
    batch.reject("x", "odd")
    processing.ack()
    run.committer.states["count"] = "success"
    with pytest.raises(StagingError, match="the task returned nothing"):
        run.commit_now()


def test_the_first_committer_of_a_commit_phase_writes_the_rejected_rows(
    makes: Any, aside: DeltaTable, state: MemoryState
) -> None:
    class Rejecting(PhaseRun):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.updates: Any = {**self.updates, "b": (*self.updates["b"], rejected_update(aside))}

        def work(self, rows: list[dict[str, Any]]) -> None:
            processing = self.run.start()
            CurrentBatch(processing).reject("x", "odd")
            self.run.end(processing, rows)

    other = MemoryState("other", keys=["word"], values=state.columns.values)
    phase = Rejecting(lambda *given, **how: makes(*given, **how), update(state), update(other), rows(a=9))
    phase.acquire()
    phase.commit("b", "d")
    phase.commit("b")  # its task is cleared, and runs again under the same grant
    phase.mark()
    assert kept(aside) == [(1, "count", "odd", "x")]


# --- restatements


@pytest.mark.parametrize("again", [(), (("y", "odd"),)])
def test_a_restatement_removes_the_rejected_rows_and_counts_the_corrected_rows(
    makes: Any, aside: DeltaTable, state: MemoryState, again: Any
) -> None:
    begun(makes(), ("x", "odd")).commit_now()
    begun(makes("r2"), ("z", "odd")).commit_now()
    run = makes("r1")
    wanted(run, 1)
    begun(run, *again).commit_now()
    assert run.begun.replaces is not None
    assert kept(aside) == [(2, "count", "odd", "z"), *((3, "count", "odd", "y") for _ in again)]
    assert counts(state) == {"a": 19 - len(again)}


@pytest.mark.parametrize(("again", "passes"), [("y", True), ("z", False)])
def test_a_restatement_with_the_same_rejected_rows_inherits_the_accepted_limit(
    makes: Any, state: MemoryState, again: str, passes: bool
) -> None:
    first = begun(makes(max_rejected=1), ("x", "odd"), ("y", "odd"))
    with pytest.raises(ChecksFailed) as refused:
        first.commit_now()
    ledger = first.spec.ledger(first.spec.memory)
    checks = refused.value.fields["checks"]
    ledger.note_commit_failed(first.begun.attempt, None, reason="too many", for_good=True, checks=checks)
    audit = Audit("ada", "a known gap")
    ledger.accept_checks(1, {"rejected": checks["rejected"].digest}, audit=audit)
    first.commit_now()
    run = makes("r1", max_rejected=1)
    wanted(run, 1)
    begun(run, ("x", "odd"), (again, "odd"), word="b")
    if passes:
        run.commit_now()
    else:
        with pytest.raises(ChecksFailed):
            run.commit_now()
    assert counts(state) == ({"a": 0, "b": 8} if passes else {"a": 8})


@pytest.mark.parametrize("rejected", [True, False])
def test_a_day_with_rejected_rows_cannot_be_restated_without_the_table_for_rejected_rows(
    makes: Any, make: Any, state: MemoryState, rejected: bool
) -> None:
    begun(makes(), *[("x", "odd")] * rejected).commit_now()
    run = makes("r1", [update(state)], rejected=None)
    entry = journal_of(run).read(entry_of(run, 1))
    topology = run.spec.ledger(run.spec.memory).topology()
    dag: Any = type("Dag", (), {"tasks": [type("Task", (), {"updates": run.updates})]})
    problem = refused_by_dag(run.spec, dag, entry, topology)
    if rejected:
        assert problem is not None
        assert "which the DAG no longer writes" in problem
        with pytest.raises(RestateRefused, match="rejected"):
            check_entry(run.spec, dag, entry, topology)
    else:
        assert problem is None


def test_a_day_without_rejected_rows_is_restated_without_the_table_for_rejected_rows(
    makes: Any, state: MemoryState, aside: DeltaTable
) -> None:
    begun(makes()).commit_now()
    begun(makes("r2"), ("x", "odd")).commit_now()
    run = makes("r1", [update(state)], rejected=None)
    wanted(run, 1)
    begun(run).commit_now()
    assert run.begun.replaces is not None
    assert counts(state) == {"a": 19}
    assert kept(aside) == [(2, "count", "odd", "x")]


def test_a_second_table_for_rejected_rows_is_accepted_after_the_first_one_was_forgotten(
    makes: Any, state: MemoryState, aside: DeltaTable, tmp_path: Path
) -> None:
    begun(makes(), ("x", "odd")).commit_now()
    other = DeltaTable(tmp_path / "lake" / "other")
    run = begun(makes("r2", [update(state), rejected_update(other)]), ("y", "odd"))
    with pytest.raises(TxError, match=f"airflow tx state forget numbers {aside.name}"):
        run.commit_now()
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(state_lost, aside.name, Audit("ada", "another table"))
    run.commit_now()
    assert kept(aside) == [(1, "count", "odd", "x")]
    assert kept(other) == [(2, "count", "odd", "y")]


# --- how many


@pytest.mark.parametrize(("most", "passes"), [(0.1, False), (0.2, True), (0.5, True), (1, False), (2, True)])
def test_a_task_may_reject_as_many_rows_as_its_limit_allows(
    makes: Any, aside: DeltaTable, most: float, passes: bool
) -> None:
    run = begun(makes(max_rejected=most), ("x", "odd"), ("y", "odd"))
    if passes:
        run.commit_now()
        assert len(kept(aside)) == 2
        return
    with pytest.raises(ChecksFailed) as refused:
        run.commit_now()
    assert str(refused.value).startswith(
        "Commit of transaction 1.1 refused: check 'rejected' failed: task count rejected 2 of 10 rows, but "
        f"max_rejected is {most}. Correct the code"
    )
    assert refused.value.for_good
    assert aside.read() == []


def test_only_the_task_log_shows_the_three_most_common_reasons_with_one_row_each(
    makes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reasons = ["a", "b", "b", "c", "c", "c", "d", "d", "d", "d"]
    rejected = [({"n": number, "long": "x" * 500}, reason) for number, reason in enumerate(reasons)]
    run = begun(makes(max_rejected=1), *rejected)
    with pytest.raises(ChecksFailed) as refused:
        run.commit_now()
    (text,) = (line for line in caplog.messages if "Rows that check" in line)
    assert [text.find(f"{count} x '{reason}' (") > 0 for count, reason in ((4, "d"), (3, "c"), (2, "b"))] == [
        True, True, True,
    ]  # fmt: skip
    assert "'a'" not in text
    assert len(text) < 1500
    assert "\n" not in text
    kept = f"{refused.value}{refused.value.fields['checks']}"
    assert [part for part in ("'d'", "xxx") if part in kept] == []


def test_the_limit_of_rejected_rows_applies_to_each_task(makes: Any, aside: DeltaTable) -> None:
    tasks = {"tasks": ("count", "look"), "inside": ("count", "look", "commit"), "max_rejected": 1}
    run = begun(makes(**tasks), ("x", "odd"))
    working(run, ("x", "odd"), task="look").commit_now()
    assert len(kept(aside)) == 2


def test_a_limit_as_a_share_of_the_rows_is_refused_if_the_number_of_read_rows_is_unknown(makes: Any) -> None:
    run = makes(max_rejected=0.5)
    run.begin()
    processing = run.start()
    CurrentBatch(processing, reliable=False).reject("x", "odd")
    run.end(processing, rows(a=1))
    with pytest.raises(ChecksFailed, match="task count rejected 1 of an unknown number of rows"):
        run.commit_now()


def test_a_transaction_with_too_many_rejected_rows_is_blocked_immediately(makes: Any) -> None:
    run = begun(makes(max_rejected=1), ("x", "odd"), ("y", "odd"))
    commit = run.commit()
    with pytest.raises(AirflowFailException, match="check 'rejected' failed") as failure, final_errors():
        commit_in_turn(commit, run.spec.memory, patience=0)
    failed(run, commit, failure.value)
    record = found(run.spec.memory)
    assert record.for_good
    assert "check 'rejected' failed" in (record.error or "")
    assert "airflow tx replay numbers 1" in str(record.remedy)
    details = transaction_details(run.spec.memory, run.spec.paths, 1)
    assert render.details(details)["rejected"] == "count: rejected 2 of 10 rows, used 8"


def test_show_prints_how_many_rows_a_task_has_rejected_and_how_many_it_has_used(makes: Any) -> None:
    run = begun(makes(), ("x", "odd"))
    run.commit_now()
    details = transaction_details(run.spec.memory, run.spec.paths, 1)
    assert render.details(details)["rejected"] == "count: rejected 1 of 10 rows, used 9"


# --- bad input


def test_a_task_that_rejects_more_rows_than_it_has_read_is_refused(makes: Any) -> None:
    run = makes()
    run.begin()
    with pytest.raises(StagingError, match=r"the task rejected 11 rows but read only 10\. Reject each row"):
        working(run, ([{"n": n} for n in range(11)], "odd"))
    quiet = makes("r2")
    quiet.begin()
    processing = quiet.start()
    CurrentBatch(processing, reliable=False).reject([{"n": n} for n in range(11)], "odd")
    quiet.end(processing, rows(a=1))  # nobody has counted what it read


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_rejection_with_an_empty_reason_is_refused(makes: Any, reason: str) -> None:
    run = makes()
    run.begin()
    with pytest.raises(StagingError, match=r"task count in transaction 1\.1 refused: reason = ' *' is empty\. Explain"):
        CurrentBatch(run.start()).reject("x", reason)


@pytest.mark.parametrize(("rows", "reason"), [(3, "odd"), ("x", None), ([{("a", 1): 2}], "odd")])
def test_a_rejection_with_an_invalid_row_or_reason_is_refused_with_a_one_line_error(
    makes: Any, rows: Any, reason: Any
) -> None:
    run = makes()
    run.begin()
    with pytest.raises(StagingError, match=r"the argument contains no rows \(.*\)\. Pass dicts, texts") as refused:
        CurrentBatch(run.start()).reject(rows, reason)
    assert "\n" not in str(refused.value)


def test_a_rejection_is_refused_if_no_committer_writes_the_rejected_rows(makes: Any) -> None:
    match = r"the transaction has no table for rejected rows\. Set Transaction\(\.\.\., rejected="
    run = makes(rejected=None)
    run.begin()
    with pytest.raises(StagingError, match=match):
        CurrentBatch(run.start()).reject("x", "odd")
    beside = makes("r2")
    beside.begin()
    with pytest.raises(StagingError, match=match):
        CurrentBatch(beside.start("beside", anchored=False)).reject("x", "odd")


def test_the_output_name_of_rejected_rows_is_reserved(makes: Any) -> None:
    run = makes()
    run.begin()
    with pytest.raises(StagingError, match="this name is reserved"):
        CurrentBatch(run.start()).stage([{"a": 1}], REJECTED)


def test_a_table_that_belongs_to_another_topology_is_refused_at_the_commit(
    makes: Any, aside: DeltaTable, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(makes(), ("x", "odd")).commit_now()
    other = makes("r1", [rejected_update(aside)])
    other.spec = type(other.spec)(**{**vars(other.spec), "topology": "other", "memory": CountingStore()})
    begun(other, ("y", "odd"))
    with pytest.raises(StateError, match="other"):
        other.commit_now()
    assert kept(aside) == [(1, "count", "odd", "x")]


def test_a_commit_with_rejected_rows_is_refused_after_the_option_rejected_was_removed(
    makes: Any, aside: DeltaTable, state: MemoryState
) -> None:
    changed = makes("r1")
    begun(changed, ("x", "odd"))
    changed.spec = type(changed.spec)(**{**vars(changed.spec), "rejected": None})
    changed.updates = [update(state)]
    with pytest.raises(StagingError, match=r"no longer has a table for its 1 row\. Set rejected= again, or"):
        changed.commit_now()
    assert counts(state) == {}


def test_a_commit_phase_checks_the_limit_of_rejected_rows_in_its_first_task(
    makes: Any, aside: DeltaTable, state: MemoryState
) -> None:
    class Rejecting(PhaseRun):
        def work(self, rows: list[dict[str, Any]]) -> None:
            processing = self.run.start()
            batch = CurrentBatch(processing)
            list(batch.read())
            batch.reject(["x", "y"], "odd")
            self.run.end(processing, rows)

    def made(*given: Any, **how: Any) -> Run:
        run: Run = makes(*given, max_rejected=1, **how)
        return run

    other = MemoryState("other", keys=["word"], values=state.columns.values)
    phase = Rejecting(made, update(state), update(other), rows(a=8))
    with pytest.raises(ChecksFailed):
        phase.acquire()


POINTS = [
    "process.after_start", "process.before_ack", "process.after_ack", "commit.before_journal", "commit.after_journal",
    "commit.before_acquire", "commit.after_acquire", "commit.before_write", "commit.before_mark", "commit.after_mark",
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_each_rejected_row_is_stored_once_even_if_the_process_is_killed_at_any_point(
    makes: Any, aside: DeltaTable, state: MemoryState, points: Any, point: str
) -> None:
    points.arm(point, "raise", txid=1)
    run = makes()
    run.begin()
    for _ in range(2):
        with suppress(FailpointError):
            if "count" not in run.committer.states:
                working(run, ("x", "odd"))
            run.commit_now()
    if "count" not in run.committer.states:
        working(run, ("x", "odd"))
    run.commit_now()
    assert kept(aside) == [(1, "count", "odd", "x")]
    assert counts(state) == {"a": 9}


def test_the_limit_of_rejected_rows_is_not_checked_if_spark_may_have_stopped_reading_early(makes: Any) -> None:
    run = makes()
    run.begin()
    processing = run.start()
    processing.read.append(RowsRead(RowsDigest(1), at_least=True))
    CurrentBatch(processing).reject(["x", "y"], "odd")
    run.end(processing, rows(a=1))


def test_rejected_rows_can_be_stored_in_a_sql_table(makes: Any, state: MemoryState, tmp_path: Path) -> None:
    table = SqlTable.from_url(f"sqlite:///{tmp_path}/aside.db", table="rejected")
    updates = [update(state), Update(None, table, "worker")]
    begun(makes("r1", updates, rejected=table), ("x", "odd"), ({"n": 1}, "late")).commit_now()
    begun(makes("r2", updates, rejected=table)).commit_now()
    begun(makes("r3", updates, rejected=table), ("z", "odd")).commit_now()
    assert kept(table) == [(1, "count", "late", '{"n": 1}'), (1, "count", "odd", "x"), (3, "count", "odd", "z")]
    run = makes("r1", updates, rejected=table)
    wanted(run, 1)
    begun(run, ("y", "odd")).commit_now()
    assert kept(table) == [(3, "count", "odd", "z"), (4, "count", "odd", "y")]
