"""Checks of what is about to be committed: what fails is refused, until a person acts."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_tx import check
from airflow_tx.base.errors import (
    AlreadyFinal,
    ConfigError,
    PreviewOutdated,
    StagingError,
    StagingUnreachable,
    UnreadableRecord,
)
from airflow_tx.ledger.answers import GivenUp
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import CheckNote, Receipt
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.steps.recovery import ReplayRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.views.status import check_in_words, view_final
from airflow_tx.operators.commit import connected, final_errors, note_commit_failure
from airflow_tx.outputs.staging.area import Output, RowsInTable, StagingArea, write_manifest, write_rows
from airflow_tx.state import Count, DeltaTable, MemoryState
from airflow_tx.transaction.commit.check import (
    Check,
    CheckedCommit,
    ChecksFailed,
    FailedCheck,
    OutputRows,
    SqlCheck,
    _plain,
    checked_checks,
    duckdb_engine,
    find_all,
    output_rows,
)
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.turn import commit_in_turn
from tests.stage import update
from tests.unit.bench import CountingStore, OpaqueNumbers
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.restated_run import Makes, begun, committed, rows
from tests.unit.commit.run import Run, context_of, counts, found
from tests.unit.commit.staged import ATTEMPT, counted, ref
from tests.unit.coordinator.lane_world import Killed, MortalStore

ADA = Audit("ada", "the shop was closed")
OUTPUT: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="return_value")
POSITIVE = check("positive", OUTPUT, rows="count > 0")
SOME = check("some rows", OUTPUT, value="count(*) > 0")
ROWS: list[dict[str, Any]] = [{"k": "a", "n": 1}, {"k": "b", "n": -1}, {"k": None, "n": None}]


def commits(run: Run, *checks: Check) -> None:
    """Commit as the commit task does, which tells the ledger what it is refused with."""
    context = context_of(run)
    try:
        with final_errors(), connected(Commit, context, run.updates, run.log, checks) as commit:
            commit_in_turn(commit, run.spec.memory, patience=0)
    except AirflowFailException as error:
        context["exception"] = error
        note_commit_failure(context)
        raise


def refused(run: Run, *checks: Check) -> str:
    with pytest.raises(AirflowFailException) as raised:
        commits(run, *checks)
    return str(raised.value)


def worked(run: Run, rows: list[dict[str, Any]]) -> Run:
    run.begin()
    run.end(run.start(), rows)
    return run


def ledger_of(run: Run) -> Any:
    return run.spec.ledger(run.spec.memory)


def receipt(run: Run, txid: int = 1) -> Receipt:
    history = ledger_of(run).outcome(txid)
    assert history is not None
    assert history.receipt is not None
    return cast("Receipt", history.receipt)


def checks_of(run: Run, txid: int = 1) -> Any:
    return receipt(run, txid).checks


def accept(run: Run, *names: str, txid: int = 1, audit: Audit = ADA) -> None:
    ledger = ledger_of(run)
    ledger.accept_checks(txid, {name: ledger.status(txid).checks[name].digest for name in names}, audit=audit)


def accepted(run: Run) -> Run:
    """A run whose output is refused, and then accepted by a person."""
    refused(run, POSITIVE)
    accept(run, "positive")
    return run


def findings(given: Any, *checks: Check) -> list[FailedCheck]:
    def given_rows(output: Any) -> OutputRows:
        return output_rows([given], None, ATTEMPT)  # type: ignore[arg-type]

    return list(find_all(checks, CheckedCommit(None, given_rows)))  # type: ignore[arg-type]


def texts(given: Any, *checks: Check) -> list[str]:
    return [each.found for each in findings(given, *checks)]


# --- the commit


def test_an_output_that_passes_its_check_is_committed_and_the_receipt_records_the_check(
    make: Any, state: MemoryState
) -> None:
    run = worked(make("r1"), rows(a=3))
    commits(run, POSITIVE, SOME)
    assert counts(state) == {"a": 3}
    assert checks_of(run) == {"positive": CheckNote(True), "some rows": CheckNote(True)}


def test_the_receipt_of_a_commit_without_checks_has_no_field_for_checks(make: Any) -> None:
    run = worked(make("r1"), rows(a=3))
    commits(run)
    assert "checks" not in receipt(run).to_json()
    assert receipt(run).checks is None


def test_an_output_that_fails_a_check_is_refused_permanently_and_no_state_is_written(
    make: Any, store: CountingStore, state: MemoryState
) -> None:
    run = worked(make("r1"), rows(a=3, b=-1))
    assert refused(run, POSITIVE, SOME) == (
        "Commit of transaction 1.1 refused: check 'positive' failed: count > 0 does not hold for 1 of 2 rows. Correct "
        "the code, then replay it: airflow tx replay numbers 1. Or count its rows nowhere: airflow tx skip numbers 1 "
        "--why TEXT. Or accept the output: airflow tx accept-check numbers 1 positive --why TEXT"
    )
    assert (counts(state), state.fence()) == ({}, None)
    record = found(store)
    assert (record.phase, record.for_good) == (Phase.PROCESSED, 1)
    noted = record.checks["positive"]
    assert (noted.found, list(record.checks)) == ("count > 0 does not hold for 1 of 2 rows", ["positive"])
    assert noted.accepted is None


def test_only_the_task_log_shows_the_rows_that_failed_a_check(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    run = worked(make("r1"), rows(a=3, b=-1))
    longest = check("longest", OUTPUT, value="max(word) < 'b' AND count(*) > 0")
    text = refused(run, POSITIVE, longest)
    assert "max(word) < 'b' AND count(*) > 0 is false: count(*) is 2. Correct" in text
    kept = text + str(found(run.spec.memory))
    assert "(word='b', count=-1)" not in kept
    assert "max(word) is" not in kept.lower()
    # The page finds them by the name of their logger.
    assert [each.getMessage() for each in caplog.records if each.name == "airflow_tx.refused_rows"] == [
        "Rows that check 'positive' refuses: (word='b', count=-1)",
        "Rows that check 'longest' refuses: max(word) is 'b'",
    ]


def test_the_remedy_quotes_the_name_of_each_failed_check_for_a_shell(make: Any) -> None:
    run = worked(make("r1"), [])
    many = check("at least 2", OUTPUT, value="count(*) >= 2")
    assert "accept-check numbers 1 'some rows' 'at least 2' --why" in refused(run, SOME, many)


def test_an_accepted_output_is_committed_and_the_receipt_names_the_person_who_accepted_it(
    make: Any, state: MemoryState
) -> None:
    run = worked(make("r1"), rows(a=-3))
    accepted(run)
    commits(run, POSITIVE)
    assert counts(state) == {"a": -3}
    noted = checks_of(run)["positive"]
    assert noted.accepted is not None
    assert (noted.passed, noted.accepted.who, noted.accepted.why) == (False, ADA.who, ADA.why)
    history = ledger_of(run).outcome(1)
    assert view_final(history, None).checks == {"positive": noted}
    assert Receipt.from_json(receipt(run).to_json()).checks == {"positive": noted}
    for damaged in (["positive"], {"positive": "passed"}):
        with pytest.raises(UnreadableRecord):
            Receipt.from_json({**receipt(run).to_json(), "checks": damaged})
    assert check_in_words("positive", noted).startswith(
        "positive: accepted: count > 0 does not hold for 1 of 1 rows: the shop was closed (ada, "
    )


def test_a_failed_check_refuses_the_output_although_a_person_has_accepted_another_failed_check(
    make: Any, state: MemoryState
) -> None:
    run = worked(make("r1"), rows(a=-3))
    many = check("many", OUTPUT, value="count(*) > 1")
    refused(run, POSITIVE, many)
    accept(run, "positive")
    assert "check 'many' failed" in (text := refused(run, POSITIVE, many))
    assert "'positive'" not in text
    accept(run, "many")
    commits(run, POSITIVE, many)
    assert counts(state) == {"a": -3}


def test_an_acceptance_stays_valid_in_a_replay_only_for_the_same_rows(make: Any, state: MemoryState) -> None:
    run = make("r1", source=OpaqueNumbers())
    worked(run, rows(a=-3, b=1))
    accepted(run)
    worked(run, rows(a=-3, b=-1))
    assert "for 2 of 2 rows" in refused(run, POSITIVE)
    worked(run, rows(b=1, a=-3))
    assert "for 1 of 2 rows" in refused(run, POSITIVE)  # the newer finding has replaced the acceptance
    accept(run, "positive")
    worked(run, rows(a=-3, b=1))
    commits(run, POSITIVE)
    assert counts(state) == {"a": -3, "b": 1}
    assert run.begun.attempt.attempt == 4


def test_an_acceptance_is_not_valid_for_a_check_of_the_same_name_with_another_rule(make: Any) -> None:
    run = worked(make("r1"), rows(a=-3))
    accepted(run)
    assert "count > 5" in refused(run, check("positive", OUTPUT, rows="count > 5"))


def test_rows_with_swapped_values_of_two_columns_have_another_digest() -> None:
    rule = check("a", OUTPUT, rows="debit + credit >= 0")
    (first,) = findings([{"debit": -5, "credit": -3}], rule)
    (other,) = findings([{"credit": -5, "debit": -3}], rule)
    assert first.digest != other.digest


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"m": pa.array([-1], pa.int64()), "n": pa.array([-1], pa.int64())}),
        pa.table({"k": pa.array([-1], pa.int64()), "n": pa.array([-1], pa.int32())}),
    ],
    ids=["other name", "other type"],
)
def test_the_digest_of_staged_rows_depends_on_the_names_and_types_of_their_columns(
    area: StagingArea, other: pa.Table
) -> None:
    table = pa.table({"k": pa.array([-1], pa.int64()), "n": pa.array([-1], pa.int64())})
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, "none"))

    def digest_of(name: str, found: pa.Table) -> str:
        given = write_manifest(where, {name: write_rows(where, name, found)})[name].to_json()
        commit = CheckedCommit(None, lambda output: output_rows([given], area, ATTEMPT))  # type: ignore[arg-type]
        (failed,) = find_all([check("a", OUTPUT, rows="n > 0")], commit)
        return failed.digest

    assert digest_of("first", table) == digest_of("again", table) != digest_of("other", other)


def test_a_replay_deletes_the_records_of_failed_checks_that_no_person_has_accepted(make: Any) -> None:
    run = worked(make("r1"), rows(a=-3))
    refused(run, POSITIVE)
    run.begin()
    assert ledger_of(run).status(1).checks == {}


def test_a_check_that_was_corrected_is_not_recorded_as_failed_when_another_check_fails(
    make: Any, store: CountingStore
) -> None:
    run = worked(make("r1"), rows(a=-3))
    refused(run, POSITIVE)
    refused(run, replace(POSITIVE, sql="count > -5"), check("many", OUTPUT, value="count(*) > 1"))
    assert list(found(store).checks) == ["many"]


def test_a_person_can_accept_only_the_failed_checks_that_were_shown(make: Any) -> None:
    run = worked(make("r1"), rows(a=-3))
    refused(run, POSITIVE)
    ledger = ledger_of(run)
    for digests in ({"positive": "another"}, {"other": "x"}):
        with pytest.raises(PreviewOutdated):
            ledger.accept_checks(1, digests, audit=ADA)
    accept(run, "positive")
    accept(run, "positive", audit=Audit("bob", "again"))
    assert ledger.status(1).checks["positive"].accepted.who == "ada"
    digest = ledger.status(1).checks["positive"].digest
    commits(run, POSITIVE)
    with pytest.raises(AlreadyFinal):
        ledger.accept_checks(1, {"positive": digest}, audit=ADA)


def test_the_failure_of_a_check_of_level_warning_is_noted_and_the_output_is_committed(
    make: Any, state: MemoryState, log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = worked(make("r1"), rows(a=-3))
    commits(run, replace(POSITIVE, severity="warn"), SOME)
    assert counts(state) == {"a": -3}
    assert checks_of(run) == {
        "positive": CheckNote(False, "count > 0 does not hold for 1 of 1 rows", severity="warn"),
        "some rows": CheckNote(True),
    }
    assert "Rows that check 'positive' refuses: (word='a', count=-3)" in caplog.messages
    assert any("check 'positive' failed" in line and "word" not in line for line in log.lines)
    assert check_in_words("positive", checks_of(run)["positive"]).startswith("positive: warning: ")


def test_a_commit_that_was_killed_after_its_grant_runs_its_checks_again(
    make: Any, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = worked(make("r1"), rows(a=3))
    refused(run, replace(POSITIVE, sql="count > 5"))  # a rule that is corrected then
    commit = run.commit_of(run.updates, [POSITIVE])
    with monkeypatch.context() as dies:
        dies.setattr(MemoryState, "raise_and_write", _killed)
        with pytest.raises(OSError, match="killed"):
            commit_in_turn(commit, run.spec.memory, patience=0)
    assert found(run.spec.memory).checks == {}
    commits(run, POSITIVE)
    assert counts(state) == {"a": 3}
    assert checks_of(run) == {"positive": CheckNote(True)}


def _killed(*arguments: Any, **options: Any) -> Any:
    raise OSError("killed")


def test_the_checks_of_an_output_run_again_after_its_task_was_cleared(make: Any, store: CountingStore) -> None:
    run = worked(make("r1"), rows(a=3))
    commit = run.commit_of(run.updates, [POSITIVE])
    commit.complete()
    commit.prepare()
    run.end(run.start(), [{"word": "a", "count": -3}])
    with pytest.raises(ChecksFailed):
        commit_in_turn(commit, store, patience=0)


def test_an_output_that_differs_from_the_acked_output_is_refused_before_a_check_runs(
    make: Any, store: CountingStore
) -> None:
    run = worked(make("r1"), rows(a=3))
    run.committer.xcoms["count", "return_value", -1] = [{"word": "a", "count": 4}]
    only = run.commit_of((), [POSITIVE])
    with pytest.raises(StagingError, match="its XCom differs from the output that the task acked"):
        commit_in_turn(only, store, patience=0)


@pytest.mark.parametrize("arrives", [False, True])
def test_an_accepted_output_is_committed_once_even_if_the_process_is_killed_at_any_request(
    make: Any, store: Any, state: MemoryState, arrives: bool
) -> None:
    def goes_on(run: Run, txid: int) -> None:
        """Do what is left of: a refused commit, its acceptance, the commit."""
        ledger = ledger_of(run)
        if (record := ledger.status(txid)) is not None and not record.checks:
            refused(run, POSITIVE)
        if (record := ledger.status(txid)) is not None and not record.accepted_checks:
            accept(run, "positive", txid=txid)
        commits(run, POSITIVE)

    store.shown = {}
    died = True
    txid = 0
    while died:
        txid += 1
        run = worked(make(f"r{txid}"), rows(a=-1))
        living = run.spec
        run.spec = replace(living, memory=MortalStore(store, txid, arrives=arrives))
        with suppress(Killed):
            goes_on(run, txid)
            died = False
        run.spec = living
        if died:
            goes_on(run, txid)
        assert counts(state) == {"a": -txid}
        assert checks_of(run, txid)["positive"].accepted.who == "ada"
    assert txid > 10


# --- a restatement, and a phase


def test_a_restatement_is_checked_by_its_complete_output_and_is_given_up_if_the_check_fails(
    make: Any, state: MemoryState
) -> None:
    made = restatable(make)
    committed(made, rows(a=5))
    # The difference of a is negative; the output is not.
    commits(begun(made, rows(a=2), instead_of=1), POSITIVE)
    assert counts(state) == {"a": 2}
    worse = begun(made, rows(a=-1), instead_of=2)
    refused(worse, POSITIVE)
    assert counts(state) == {"a": 2}
    noted = ledger_of(worse).note_replay(ReplayRequest(worse.begun.attempt, "its run failed", True, 3))
    assert isinstance(noted, GivenUp)


def restatable(make: Any) -> Makes:
    """Make runs whose transactions are kept in the journal."""
    return Makes(make, journal=timedelta(days=7))


def test_a_restatement_with_the_same_rows_inherits_the_acceptance(make: Any, state: MemoryState) -> None:
    made = restatable(make)
    commits(accepted(begun(made, rows(a=-1))), POSITIVE)
    for txid in (1, 2):  # the second restatement takes it over from the first one
        commits(again := begun(made, rows(a=-1), instead_of=txid), POSITIVE)
        assert checks_of(again, txid + 1) == checks_of(again)
        assert checks_of(again)["positive"].accepted.who == "ada"
    assert counts(state) == {"a": -1}


def test_a_restatement_with_other_rows_does_not_inherit_the_acceptance(make: Any, state: MemoryState) -> None:
    made = restatable(make)
    commits(accepted(begun(made, rows(a=-1))), POSITIVE)
    again = begun(made, rows(a=-2), instead_of=1)
    refused(again, POSITIVE)
    assert counts(state) == {"a": -1}
    accept(again, "positive", txid=2)
    commits(again, POSITIVE)
    assert counts(state) == {"a": -2}


def test_a_warning_for_the_restated_transaction_does_not_accept_the_rows_of_the_restatement(make: Any) -> None:
    made = restatable(make)
    commits(begun(made, rows(a=-1)), replace(POSITIVE, severity="warn"))
    refused(begun(made, rows(a=-1), instead_of=1), POSITIVE)


def test_the_first_task_of_a_commit_phase_runs_the_checks_before_any_committer_writes(make: Any) -> None:
    of_b = MemoryState("b", keys=["word"], values={"count": Count()})
    of_d = MemoryState("d", keys=["word"], values={"count": Count()})
    phase = PhaseRun(make, update(of_b), update(of_d), [{"word": "a", "count": -1}])
    first = phase.part("acquire", (*phase.updates["b"], *phase.updates["d"]))
    with pytest.raises(ChecksFailed, match="check 'positive' failed"):
        commit_in_turn(replace(first, checks=(POSITIVE,)), phase.run.spec.memory, patience=0)
    assert of_b.fence() is None
    turn = replace(first, checks=(replace(POSITIVE, severity="warn"),))
    commit_in_turn(turn, phase.run.spec.memory, patience=0)
    phase.xcoms["acquire", "return_value", -1] = turn.shared
    phase.commit("b", "d")
    phase.mark()
    assert checks_of(phase.run)["positive"].severity == "warn"


# --- conditions


def test_a_null_value_fails_a_condition_of_rows_and_a_condition_of_all_rows() -> None:
    assert texts(ROWS, check("a", OUTPUT, rows="n >= -1")) == ["n >= -1 does not hold for 1 of 3 rows"]
    assert texts(ROWS, check("a", OUTPUT, value="sum(NULL::int) > 0")) == [
        "sum(NULL::int) > 0 is NULL: sum(CAST(NULL AS INTEGER)) is NULL"
    ]


def test_the_error_for_a_failed_condition_of_all_rows_shows_the_values_of_its_aggregates() -> None:
    total = check("a", OUTPUT, value="sum(n) = 100 AND count(*) FILTER (WHERE k IS NULL) < 1  -- a comment")
    assert texts(ROWS, total) == [
        "sum(n) = 100 AND count(*) FILTER (WHERE k IS NULL) < 1 -- a comment is false: sum(n) is 0, "
        "count(*) FILTER (WHERE (k IS NULL)) is 1"
    ]


def test_an_output_without_rows_fails_a_condition_on_the_count_and_passes_a_condition_of_rows() -> None:
    empty = (check("a", OUTPUT, rows="n > 0"), check("b", OUTPUT, value="count(*) > 0"))
    nothing: list[Any] = [[], None]
    for given in nothing:
        assert texts(given, *empty) == ["count(*) > 0 is false: count(*) is 0"]
    assert texts([], check("c", OUTPUT, value="max(k) > 'a'")) == ["max(k) > 'a' is NULL: max(k) is NULL"]


def test_an_output_without_files_or_with_an_empty_file_has_no_rows_for_a_check(area: StagingArea) -> None:
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, "none"))
    nothing = write_manifest(where, {"counts": Output((), ())})["counts"].to_json()
    for each in (nothing, ref(area, [])):
        rows = output_rows([each], area, ATTEMPT)
        commit = CheckedCommit(None, lambda output, rows=rows: rows)  # type: ignore[arg-type,misc]
        assert [each.found for each in find_all([SOME, POSITIVE], commit)] == ["count(*) > 0 is false: count(*) is 0"]


@pytest.mark.parametrize(
    "row", [{"amount": 1, "Amount": -5}, {"amount": {"n": 1, "N": 2}}, {"amount": [{"n": 1, "N": 2}]}]
)
def test_a_condition_with_two_columns_that_differ_only_by_case_is_refused(row: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"check\('a', rows=\) = .* are the same column in Spark and in SQL. Rename one column"
    ):
        texts([row], check("a", OUTPUT, rows='"Amount" IS NOT NULL'))
    assert texts([{"n": 1, **row}], check("a", OUTPUT, rows="n > 0")) == []


def of_tables(*tables: pa.Table) -> CheckedCommit:
    """A commit of one output, whose instances have these rows."""

    def part(table: pa.Table) -> Any:
        return table.schema, lambda names: iter(table.select(names).to_batches())

    rows = OutputRows(map(part, tables))
    return CheckedCommit(None, lambda output: rows)  # type: ignore[arg-type]


def test_the_error_for_numbers_of_mapped_instances_without_a_common_type_names_the_check() -> None:
    commit = of_tables(pa.table({"id": [2**53 + 1]}), pa.table({"id": [0.5]}))
    with pytest.raises(ConfigError, match=r"check\('a', rows=\) = 'id > 0' .* column id .* not in range"):
        list(find_all([check("a", OUTPUT, rows="id > 0")], commit))


NAN = float("nan")


@pytest.mark.parametrize(
    "row", [{"n": NAN}, {"n": None}, {"n": {"x": NAN}}, {"n": [NAN]}, {"n": [{"x": [NAN]}]}], ids=str
)
def test_a_check_treats_not_a_number_as_null(row: Any) -> None:
    path = str(row["n"]).count("[")
    fields = {0: "n.x" if isinstance(row["n"], dict) else "n", 1: "n[1]", 2: "n[1].x[1]"}[path]
    assert len(texts([row], check("a", OUTPUT, rows=f"{fields} >= 0"))) == 1
    assert len(texts([row], check("a", OUTPUT, value=f"max({fields}) >= 0"))) == 1


@pytest.mark.parametrize("sql", ["1 / (n - n) > 0", "n / 0 > 0", "n % 0 >= 0", "n // 0 >= 0", "0.0 / (n - n) >= 0"])
@pytest.mark.parametrize("n", [1, 1.5])
def test_a_check_treats_a_division_by_zero_as_null(sql: str, n: float) -> None:
    if "//" in sql and isinstance(n, float):
        pytest.skip("whole numbers alone have it")
    assert len(texts([{"n": n}], check("a", OUTPUT, rows=sql))) == 1


INFINITE = [{"n": float("inf"), "t": "nan"}, {"n": float("inf"), "t": "nan"}]


@pytest.mark.parametrize(
    "sql",
    [
        "n - n >= 0",
        "NOT n - n <= 0",
        "n * 0 BETWEEN 0 AND 'infinity'::DOUBLE",
        "(n % 2) IS NOT NULL",
        "1 < coalesce(n - n, 0)",
    ],
)
def test_a_check_treats_a_difference_that_is_not_a_number_as_null(sql: str) -> None:
    assert len(texts(INFINITE[:1], check("a", OUTPUT, rows=sql))) == 1


def test_an_infinite_literal_in_a_calculation_is_refused_with_the_spelling_that_is_accepted() -> None:
    with pytest.raises(ConfigError, match="Write an infinite number as ") as refused:
        texts(ROWS, check("a", OUTPUT, rows="n - 1 < 1e999"))
    told = str(refused.value).rpartition(" as ")[2].removesuffix(".")
    assert texts([{"n": 1.5}], check("a", OUTPUT, rows=f"n - 1 < {told}")) == []


def test_a_check_treats_an_aggregate_that_is_not_a_number_as_null() -> None:
    rows = [{"n": float("inf")}, {"n": float("-inf")}]
    assert len(texts(rows, check("a", OUTPUT, value="sum(n) >= 0"))) == 1


@pytest.mark.parametrize("sql", ["n + 1 > 0", "lower(t) = 'nan'", "coalesce(n - n, 0) = 0", "t || '' IN ('nan')"])
def test_a_check_compares_computed_finite_and_infinite_values_normally(sql: str) -> None:
    assert texts(INFINITE, check("a", OUTPUT, rows=sql)) == []


def test_rows_with_nan_and_rows_with_null_have_different_digests() -> None:
    rule = check("a", OUTPUT, rows="n > 0")
    schema = pa.schema([("n", pa.float64())])
    tables = [pa.Table.from_pylist([{"n": n}], schema) for n in (NAN, NAN, None)]
    found = [next(iter(find_all([rule], of_tables(each)))).digest for each in tables]
    assert found[0] == found[1] != found[2]


def test_an_unclosed_comment_in_a_condition_is_refused_with_a_one_line_error() -> None:
    with pytest.raises(ConfigError, match=r"unterminated /\* comment") as refused:
        texts(ROWS, check("a", OUTPUT, rows="n > 0 /* not closed"))
    assert len(str(refused.value).splitlines()) == 1


def test_an_aggregate_macro_of_duckdb_is_accepted_only_in_a_condition_of_all_rows() -> None:
    assert texts([{"n": 2.0}, {"n": 8.0}], check("a", OUTPUT, value="geomean(n) < 5")) == []
    with pytest.raises(ConfigError, match=r"It has an aggregate, geomean\(n\)\. Pass it by value="):
        texts(ROWS, check("a", OUTPUT, rows="geomean(n) > 0"))


def test_a_condition_may_spell_column_names_in_any_case() -> None:
    assert texts([{"k": "a", "Amount": 1}], check("a", OUTPUT, rows="AMOUNT > 1")) == [
        "AMOUNT > 1 does not hold for 1 of 1 rows"
    ]


def test_a_long_condition_is_shortened_in_the_stored_text() -> None:
    (text,) = texts(ROWS, check("a", OUTPUT, rows=f"n IN ({', '.join(map(str, range(5, 500)))})"))
    assert len(text) <= 300
    assert text.endswith("does not hold for 3 of 3 rows")


def test_the_error_for_a_failed_check_shows_at_most_three_shortened_rows() -> None:
    many = [{"k": "x" * 500, "n": number} for number in range(10)]
    (finding,) = findings(many, check("a", OUTPUT, rows="n < 0"))
    assert len(finding.samples) == 3
    assert all(len(sample) <= 202 for sample in finding.samples)
    assert "xxx" not in finding.found


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"rows": "n >"}, "It is no SQL: syntax error"),
        ({"rows": "n > 0) OR (TRUE"}, "It is no SQL: syntax error"),
        ({"rows": "n > 0; DROP TABLE output"}, "It is no SQL"),
        ({"rows": "nope > 0"}, 'column "nope" not found.* The rows have k, n'),
        ({"rows": "1 = 1"}, "It names no column"),
        ({"rows": "COLUMNS(*) IS NOT NULL"}, "Name each column"),
        ({"rows": "sum(n) > 0"}, r"It has an aggregate, sum\(n\). Pass it by value="),
        ({"value": "n > 0"}, "It has no aggregate.* by rows="),
        ({"rows": "n > (SELECT 0)"}, "It reads a table or a file"),
        ({"value": "count(*) > (SELECT count(*) FROM '/etc/passwd')"}, "It reads a table or a file"),
        ({"rows": "n > 0 FROM read_csv('/etc/passwd')"}, "Write a single condition"),
        ({"rows": "n > 0 WHERE k = 'a'"}, "Write a single condition"),
        ({"rows": "n > 0, k = 'a'"}, "Write a single condition"),
        ({"rows": "n > 0 AS positive"}, "Write a single condition"),
        ({"rows": "n"}, "It returns a BIGINT"),
        ({"rows": "k::int > 0"}, "Conversion Error"),
        ({"rows": "row_number() OVER () > n"}, "It has a window function"),
        ({"value": "sum(n) OVER () > 0"}, "It has a window function"),
        ({"rows": "n = $1"}, "parameters"),
    ],
)
def test_an_invalid_condition_is_refused_at_its_first_run_with_a_one_line_error(how: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        findings(ROWS, SOME, check("bad", OUTPUT, **how))
    assert str(raised.value).startswith(f"check('bad', {next(iter(how))}=) = ")
    assert "\n" not in str(raised.value)
    assert raised.value.for_good


@pytest.mark.parametrize(
    ("name", "how", "problem"),
    [
        ("", {"rows": "n > 0"}, r"check\(name\) = ''"),
        ("--all", {"rows": "n > 0"}, r"check\(name\) = '--all'"),
        ("two\nlines", {"rows": "n > 0"}, r"check\(name\) = 'two"),
        ("a", {}, "neither of them"),
        ("a", {"rows": "n > 0", "value": "count(*) > 0"}, "both of them"),
        ("a", {"rows": "n > 0", "severity": "fatal"}, '\'fatal\' cannot be used. Use "error" or "warn"'),
        ("a", {"rows": 5}, "= 5 cannot be used"),
        ("a", {"value": " "}, "= ' ' cannot be used"),
    ],
)
def test_an_invalid_check_is_refused_when_it_is_created(name: str, how: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check(name, OUTPUT, **how)


@pytest.mark.parametrize("given", [5, "a", [5]])
def test_a_committer_accepts_a_list_of_checks(given: Any) -> None:
    with pytest.raises(ConfigError):
        checked_checks(given)
    assert checked_checks(iter([POSITIVE, SOME])) == (POSITIVE, SOME)


def test_the_error_for_a_missing_duckdb_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *arguments, **options)

    duckdb_engine.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"It needs duckdb: pip install 'airflow-provider-tx\[checks\]'"):
        findings(ROWS, SOME)


def test_duckdb_in_checks_cannot_access_files_or_change_its_settings(tmp_path: Any) -> None:
    import duckdb

    file = tmp_path / "a.csv"
    file.write_text("a\n1\n")
    secret = pa.table({"a": [1]})  # noqa: F841 - DuckDB would find it by its name
    for query in (
        f"SELECT * FROM '{file}'",
        f"COPY (SELECT 1) TO '{tmp_path / 'b.csv'}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET threads = 8",
        "SELECT * FROM secret",
    ):
        with pytest.raises(duckdb.Error), duckdb_engine().cursor() as cursor:
            cursor.execute(query).fetchall()
    with duckdb_engine().cursor() as cursor:
        said = "current_setting('threads'), current_setting('memory_limit'), current_setting('temp_directory')"
        assert cursor.execute(f"SELECT {said}").fetchall() == [(1, "488.2 MiB", "")]


def test_times_in_checks_are_in_utc_even_if_the_worker_has_another_time_zone() -> None:
    program = (
        "from airflow_tx.transaction.commit.check import duckdb_engine\n"
        "print(duckdb_engine().execute(\"SELECT extract(hour FROM TIMESTAMPTZ '2026-01-01 10:00:00+00')\").fetchall())"
    )
    run = partial(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run(env={**os.environ, "TZ": "Asia/Tokyo"}).stdout.strip() == "[(10,)]"


# --- rows


def test_all_checks_of_one_output_read_the_output_once_and_only_their_columns(area: StagingArea) -> None:
    reads: list[Any] = []
    own = ref(area, counted(5, more="x"), counted(7, more="y"))

    class Watched(OutputRows):
        def batches(self, columns: Any) -> Iterator[Any]:
            reads.append(list(columns))
            return super().batches(columns)

    def given(output: Any) -> Any:
        return Watched(output_rows([own], area, ATTEMPT)._parts)

    checks = (check("a", OUTPUT, rows="N >= 0"), SOME, check("b", OUTPUT, value="sum(N) = 31"))
    assert list(find_all(checks, CheckedCommit(None, given))) == []  # type: ignore[arg-type]
    assert reads == [["n"]]
    failing = [check("c", OUTPUT, rows="n > 5")]
    assert [len(each.samples) for each in find_all(failing, CheckedCommit(None, given))] == [3]  # type: ignore[arg-type]
    assert reads[1:] == [["n"], ["word", "n", "more"], ["word", "n", "more"]]


def test_checks_read_the_rows_that_a_spark_application_has_appended_from_the_table_folder(
    area: StagingArea, tmp_path: Any
) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["kind"])
    listed = table.stage([{"id": 1, "kind": "a"}, {"id": 2, "kind": "b"}, {"id": 3, "kind": None}], ATTEMPT)
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, "a"))
    appended = RowsInTable(table.uri, "folder", 3, listed=True)
    output = replace(write_rows(where, "orders", listed), appended=appended)
    own = write_manifest(where, {"orders": output})["orders"].to_json()
    rows = output_rows([own], area, ATTEMPT, table)
    total = check("c", OUTPUT, value="sum(id) = 0")
    commit = CheckedCommit(None, lambda output: rows)  # type: ignore[arg-type]
    (kind, id_) = find_all([check("a", OUTPUT, rows="kind <> 'b'"), total], commit)
    assert (kind.found, id_.found) == (
        "kind <> 'b' does not hold for 2 of 3 rows",
        "sum(id) = 0 is false: sum(id) is 6",
    )
    assert sorted(kind.samples) == ["(id=2, kind='b')", "(id=3, kind=NULL)"]
    with pytest.raises(StagingError, match="its rows are appended to table"):
        output_rows([own], area, ATTEMPT)


def test_mapped_instances_may_return_different_columns_and_different_integer_types(area: StagingArea) -> None:
    given = [[{"k": "a", "n": 1}], {"k": "b", "n": 2.5}, ref(area, [{"n": 3, "z": 1}])]
    rows = output_rows(given, area, ATTEMPT)
    commit = CheckedCommit(None, lambda output: rows)  # type: ignore[arg-type]
    total = check("a", OUTPUT, value="sum(n) = 0 OR count(z) = 0 OR count(k) = 0")
    assert [each.found.rpartition("false: ")[2] for each in find_all([total], commit)] == [
        "sum(n) is 6.5, count(z) is 1, count(k) is 2"
    ]


@pytest.mark.parametrize("given", [[{"n": "a"}, {"n": 1}], [1], 5, "abc"])
def test_the_error_for_output_rows_that_are_not_a_table_names_the_check(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"check\('a', rows=\).* are no table"):
        findings(given, check("a", OUTPUT, rows="n > 0"))


@pytest.mark.parametrize(
    "parts",
    [
        [[{"n": 2**53 + 1}], [{"n": 0.5}]],
        [[{"n": 1}], [{"n": Decimal("0.123456789012345678901")}]],
        [[{"n": Decimal("0.1")}], [{"n": 0.5}]],
        [[{"n": [Decimal("0.1")]}], [{"n": [0.5]}]],
        [[{"n": {"x": Decimal("0.1")}}], [{"n": {"y": 1, "x": 0.5}}]],
    ],
    ids=["an int and a float", "an int and many digits", "a decimal and a float", "within a list", "within a struct"],
)
def test_values_of_mapped_instances_without_a_common_type_are_refused_and_not_rounded(parts: Any) -> None:
    commit = CheckedCommit(None, lambda output: OutputRows([_plain(part) for part in parts]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"check\('a', rows=\).* are no table: column n ") as refused:
        list(find_all([check("a", OUTPUT, rows="n IS NOT NULL")], commit))
    assert "\n" not in str(refused.value)


def test_a_check_does_not_count_as_failed_if_the_staging_area_cannot_be_reached() -> None:
    import pyarrow as pa

    def away(columns: Any) -> Iterator[Any]:
        yield pa.record_batch({"count": [1]})
        raise StagingUnreachable(uri="s3://stage", reason="no answer")

    rows = OutputRows([(pa.schema([("count", pa.int64())]), away)])
    with pytest.raises(StagingUnreachable):
        list(find_all([POSITIVE, SOME], CheckedCommit(None, lambda output: rows)))  # type: ignore[arg-type]


def test_the_digest_of_a_failed_check_depends_on_its_rows_and_not_on_their_order() -> None:
    def digest(rows: Any) -> str:
        return findings(rows, check("a", OUTPUT, rows="n > 9"))[0].digest

    one = digest(ROWS)
    assert digest(ROWS[::-1]) == one
    assert len({one, digest([*ROWS, ROWS[0]]), digest(ROWS[1:]), digest([{**ROWS[0], "k": "z"}, *ROWS[1:]])}) == 4


# --- another kind


def test_a_user_defined_check_runs_in_the_same_commit_as_sql_checks(make: Any, state: MemoryState) -> None:
    class Rejected(Check):
        @classmethod
        def find(cls, checks: Any, commit: CheckedCommit) -> Iterator[FailedCheck]:
            outputs = commit.processed.acks["count", -1].outputs
            yield from (FailedCheck(each, f"{len(outputs)} outputs", "a digest") for each in checks)

    run = worked(make("r1"), rows(a=-1))
    text = refused(run, POSITIVE, Rejected("rejected"))
    assert "check 'positive' failed" in text
    assert "check 'rejected' failed: 1 outputs" in text
    accept(run, "positive", "rejected")
    commits(run, POSITIVE, Rejected("rejected"))
    assert counts(state) == {"a": -1}


def test_the_error_for_a_refused_output_names_the_check() -> None:
    assert repr(POSITIVE) == "check('positive')"
    assert isinstance(POSITIVE, SqlCheck)


def test_a_cursor_for_a_check_inherits_the_settings_of_its_engine() -> None:
    asked = "SELECT current_setting('TimeZone'), current_setting('ieee_floating_point_ops')"
    with duckdb_engine().cursor() as cursor:
        assert cursor.execute(asked).fetchall() == [("UTC", False)]
