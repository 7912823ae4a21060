"""What runs around a plain task: start before it, ack after it, fail when it is given up."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from airflow.sdk import DAG, task
from airflow.sdk.bases.skipmixin import XCOM_SKIPMIXIN_KEY
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException

from airflow_tx.base import compat
from airflow_tx.base.errors import (
    FailedBatch,
    RowsDiffer,
    RowsRefused,
    SourceError,
    SourceNotSettled,
    StagingError,
    StaleBegin,
    TxError,
)
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.api import Paths, ack_name
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import Ack, Phase, TransactionRecord, decode
from airflow_tx.ledger.steps.processing import OutputName
from airflow_tx.operators.commit import BeginTransactionOperator
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.sources.api import Source
from airflow_tx.sources.files.source import FileSource
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.transaction.processing.batch import CurrentBatch, inputs_of
from airflow_tx.transaction.processing.begin import conf_of
from airflow_tx.transaction.processing.code import digest_of_callable
from airflow_tx.transaction.processing.task import (
    Processing,
    _staging,
    after_task,
    before_task,
    task_ended,
    task_failed,
)
from tests.stage import begin_run
from tests.unit.bench import CountingStore, FakeTi, Lending, MemorySpec, Numbers, OpaqueNumbers, run_of
from tests.unit.days import DAY, FIRST, day

PATHS = Paths("/airflow_tx", "numbers")


class Dag:
    """A DAG `begin >> first >> second`, and what its ledger says."""

    def __init__(self, store: CountingStore, source: Source) -> None:
        self.store = store
        self.spec = MemorySpec("numbers", "numbers", source, max_pending=4, memory=store, tasks=("first", "second"))
        with DAG("numbers", schedule=None) as self.dag:
            begin = BeginTransactionOperator(task_id="begin", transaction=self.spec)

            @task
            def work(batch: Any) -> Any:
                return None

            begin >> work.override(task_id="first")(begin.output) >> work.override(task_id="second")(1)

    def begin(self, **options: Any) -> dict[str, Any]:
        answer: Any = begin_run(self.spec, "r1", **options)
        self.payload = {"topology": "numbers", **answer.to_json()}
        return self.payload

    def context(self, task_id: str, *arguments: Any, **states: str) -> Any:
        found: Any = self.dag.get_task(task_id)
        done = found.prepare_for_execution()
        done.op_args = arguments
        ti = FakeTi(
            task_id, "r1", xcoms={("begin", "return_value", -1): self.payload}, states={"begin": "success", **states}
        )
        return {"ti": ti, "dag": self.dag, "task": done}

    def ack(self, task_id: str) -> Ack | None:
        path = f"{PATHS.acks(self.record().acks)}/{ack_name(task_id, -1)}"
        node = self.store.get(path)
        return None if node is None else decode(Ack, path, node.data)

    def record(self) -> TransactionRecord:
        node = self.store.get(PATHS.transaction(1))
        assert node is not None
        return decode(TransactionRecord, "", node.data)


@pytest.fixture
def numbers(store: CountingStore) -> Dag:
    made = Dag(store, Numbers())
    made.begin()
    return made


def test_a_task_is_recorded_as_started_before_it_runs_and_its_result_is_acked(numbers: Dag) -> None:
    context = numbers.context("first", numbers.payload)
    before_task(context)
    started = numbers.ack("first")
    assert started is not None
    assert not started.done
    after_task(context, [1, 2])
    acked = numbers.ack("first")
    assert acked is not None
    assert acked.done
    assert [each["name"] for each in acked.outputs] == ["return_value"]
    assert acked.code == digest_of_callable(context["task"]) != ""


def test_a_task_of_a_run_without_dates_gets_the_data_interval_of_its_transaction(store: CountingStore) -> None:
    made = Dag(store, DataIntervalSource())
    undated = replace(run_of("r1"), conf=conf_of(f"interval:{FIRST.isoformat()}/{(FIRST + DAY).isoformat()}"))
    context = made.context("first", made.begin(info=undated))
    before_task(context)
    assert (context["data_interval_start"], context["data_interval_end"]) == (FIRST, FIRST + DAY)
    assert context["ds"] == "2026-01-01"


def test_a_task_of_a_run_with_dates_keeps_its_dates(store: CountingStore) -> None:
    made = Dag(store, DataIntervalSource())
    context = made.context("first", made.begin(info=day(0)))
    context["logical_date"] = FIRST + DAY
    before_task(context)
    assert context["logical_date"] == FIRST + DAY
    assert "ds" not in context


def test_a_result_that_xcom_cannot_store_is_refused_before_the_ack(numbers: Dag) -> None:
    context = numbers.context("first", numbers.payload)
    before_task(context)
    with pytest.raises(StagingError, match="of task first .*refused: row 1: n = nan is not finite"):
        after_task(context, [{"n": 1}, {"n": float("nan")}])
    acked = numbers.ack("first")
    assert acked is not None
    assert not acked.done


@pytest.mark.parametrize("read", [1, 2], ids=["while it is read", "after it was read"])
@pytest.mark.parametrize("way", ["rows", "arrow"])
def test_a_file_that_changes_before_the_ack_of_the_task_that_reads_it_is_refused(
    store: CountingStore, tmp_path: Path, way: str, read: int
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("n\n1\n2\n")
    files = Dag(store, FileSource(f"{tmp_path}/*.csv"))
    files.begin()
    context = files.context("first", files.payload)
    before_task(context)
    batch = CurrentBatch(Processing.of(context))
    rows = iter(batch.read() if way == "rows" else batch.arrow())
    result = [next(rows) for _ in range(read if way == "rows" else read - 1)]
    file.write_text("n\n1\n2\n3\n")
    result += list(rows)
    with pytest.raises(SourceError, match=rf"file {file} changed while it was read: it had 6 bytes, but now has 8"):
        after_task(context, [len(result)])
    acked = files.ack("first")
    assert acked is not None
    assert not acked.done


def test_resources_that_a_source_has_opened_for_a_task_are_closed_however_the_reading_ends(
    store: CountingStore,
) -> None:
    source = Lending()
    lent = Dag(store, source)
    lent.begin()
    context = lent.context("first", lent.payload)
    before_task(context)
    batch = CurrentBatch(Processing.of(context))
    batch.read()
    assert source.lent == []
    assert list(batch.read())
    assert source.lent == ["closed"]
    held = batch.read()
    next(held)
    assert source.lent == ["closed", "open"]
    after_task(context, [1])
    assert source.lent == ["closed", "closed"]


class Unsettled(Numbers):
    """Rows that are not settled when they are emitted, or when their task acks.

    :param outcome: what its task ends with instead; None: it starts again later.
    """

    def __init__(self, when: str, outcome: TxError | None = None) -> None:
        self.when = when
        self.outcome = outcome

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        self._check("emit")
        return super().emit_batch(attempt, metadata, spark)

    def check_read(self, attempt: Any) -> None:
        self._check("ack")

    def unsettled(self, metadata: Any, error: SourceNotSettled) -> TxError:
        return self.outcome or error

    def _check(self, when: str) -> None:
        if when == self.when:
            raise SourceNotSettled(source="unsettled", problem="rows are missing")


REFUSED = SourceError(source="unsettled", problem="rows were deleted", remedy="Accept it.")


@pytest.mark.parametrize(
    ("outcome", "ends_by"),
    [(None, AirflowRescheduleException), (FailedBatch("another one counts"), FailedBatch), (REFUSED, SourceError)],
)
@pytest.mark.parametrize("when", ["emit", "ack"])
def test_a_task_whose_rows_can_still_change_ends_with_the_outcome_that_the_source_decides(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch, when: str, outcome: Any, ends_by: type[Exception]
) -> None:
    made = Dag(store, Unsettled(when, outcome))
    made.begin()
    context = made.context("first", made.payload)
    before_task(context)
    monkeypatch.setattr(Processing, "current", lambda: Processing.of(context))

    def work() -> list[Any]:
        return list(CurrentBatch(Processing.of(context)).read())

    with pytest.raises(ends_by):
        after_task(context, _staging(work, False)())
    acked = made.ack("first")
    assert acked is not None
    assert not acked.done


def test_resources_that_a_source_has_opened_are_closed_when_its_task_fails(store: CountingStore) -> None:
    source = Lending()
    lent = Dag(store, source)
    lent.begin()
    context = lent.context("first", lent.payload)
    before_task(context)
    held = CurrentBatch(Processing.of(context)).read()
    next(held)
    context["exception"] = OSError("no disk")
    task_failed(context)
    assert source.lent == ["closed"]


def test_a_task_that_skips_itself_or_other_tasks_acks_without_output(numbers: Dag) -> None:
    context = numbers.context("first")
    before_task(context)
    task_ended(context)
    acked = numbers.ack("first")
    assert acked is not None
    assert (acked.done, acked.outputs) == (True, [])


def test_a_task_that_has_acked_does_not_ack_again_after_it_succeeds(numbers: Dag) -> None:
    context = numbers.context("first")
    before_task(context)
    after_task(context, [1])
    task_ended(context)
    acked = numbers.ack("first")
    assert acked is not None
    assert len(acked.outputs) == 1


def test_a_task_that_fails_after_its_last_retry_fails_its_transaction_with_the_reason(numbers: Dag) -> None:
    context = numbers.context("first")
    before_task(context)
    context["exception"] = OSError("no disk")
    task_failed(context)
    assert (numbers.record().phase, numbers.record().said) == (Phase.FAILED, "task first: OSError: no disk")


def refused_reading(files: Dag) -> RowsRefused:
    """Let a task read a batch with a row that is refused, and fail."""
    files.begin()
    context = files.context("first", files.payload)
    before_task(context)
    with pytest.raises(RowsRefused) as refused:
        list(CurrentBatch(Processing.of(context)).read())
    context["exception"] = refused.value
    task_failed(context)
    return refused.value


def test_a_batch_that_is_refused_because_of_its_rows_is_recorded_as_permanently_refused(
    store: CountingStore, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("n\nten\n")
    files = Dag(store, FileSource(f"{tmp_path}/*.csv", schema="n INT"))
    refusal = refused_reading(files)
    record = files.record()
    problem = f"{tmp_path}/a.csv: line 2: n has an unusable value, which is in the log of the task"
    kept = str(RowsRefused(**{**refusal.fields, "problem": problem}))
    assert (record.phase, Remedy.behind(record.error, record.remedy)) == (Phase.FAILED, kept)
    assert record.for_good == 1
    before_task(files.context("first", files.payload))
    assert (files.record().error, files.record().for_good) == (None, 0)


SECRET = "Jane Doe: 7"


@pytest.mark.parametrize(
    ("name", "row", "place"),
    [
        ("a.csv", f"n,m\n{SECRET},1\n", "a.csv: line 2: n"),
        ("a.json", json.dumps({"n": SECRET, "m": 1}), "a.json: line 1: n"),
        ("a.json", json.dumps({"n": {SECRET: 1}, "m": 1}), "a.json: line 1: n"),
        ("n=1/a.json", json.dumps({"n": SECRET, "m": 1}), "a.json: line 1: n"),
        ("it's = [1].csv", f"n,m\n{SECRET},1\n", "it's = [1].csv: line 2: n"),
        ("a.json", f'{{"{SECRET}": 1, "{SECRET}": 2}}', "a.json: line 1: a key"),
    ],
)
def test_the_ledger_records_the_place_of_a_refused_value_and_not_the_value(
    store: CountingStore, tmp_path: Path, name: str, row: str, place: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(row)
    files = Dag(store, FileSource(f"{tmp_path}/**/*", format=name[-4:].strip("."), schema="n INT, m INT"))
    files.begin()
    context = files.context("first", files.payload)
    before_task(context)
    with pytest.raises(RowsRefused, match=re.escape(SECRET)) as refused:
        list(CurrentBatch(Processing.of(context)).read())
    context["exception"] = refused.value
    task_failed(context)
    error = files.record().error or ""
    assert (place in error, SECRET in error) == (True, False)


class Mixed(Numbers):
    """Two rows, of which no table can be made."""

    row: Any

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        return iter([{"n": "one"}, self.row])


@pytest.mark.parametrize("row", [4711, {"n": 4711}])
def test_the_ledger_records_no_value_of_a_row_that_does_not_fit_any_table(store: CountingStore, row: Any) -> None:
    source = Mixed()
    source.row = row
    given = Dag(store, source)
    given.begin()
    context = given.context("first", given.payload)
    before_task(context)
    with pytest.raises(RowsRefused, match="row 1.*4711") as refused:
        CurrentBatch(Processing.of(context)).arrow().read_all()
    context["exception"] = refused.value
    task_failed(context)
    error = given.record().error or ""
    assert ("row 1" in error, "4711" in error) == (True, False)


class Cast(Numbers):
    """A row whose value a library refuses in its own words."""

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        yield {"n": pa.scalar(4711).cast(pa.int8())}


def test_the_ledger_records_no_value_that_the_error_of_a_library_contains(store: CountingStore) -> None:
    given = Dag(store, Cast())
    given.begin()
    context = given.context("first", given.payload)
    before_task(context)
    with pytest.raises(RowsRefused, match="Integer value 4711 not in range") as refused:
        CurrentBatch(Processing.of(context)).arrow().read_all()
    context["exception"] = refused.value
    task_failed(context)
    error = given.record().error or ""
    assert ("a row has an unusable value" in error, "4711" in error) == (True, False)


def test_a_file_error_that_contains_no_value_is_recorded_completely(store: CountingStore, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1 "m": 2}\n')
    files = Dag(store, FileSource(f"{tmp_path}/*", format="json", schema="n INT, m INT"))
    refused_reading(files)
    assert "a.json: line 1: it is no JSON (Expecting ',' delimiter" in (files.record().error or "")


def test_the_text_of_a_refusal_in_an_airflow_exception_is_recorded_separately_from_its_remedy(numbers: Dag) -> None:
    context = numbers.context("first")
    before_task(context)
    refusal = RowsDiffer(txid=1, attempt=1, problem="4 of 5 rows were read", remedy="Read them all.")
    context["exception"] = AirflowFailException(str(refusal))
    context["exception"].__context__ = refusal
    task_failed(context)
    told = "task first: AirflowFailException: Rows of transaction 1.1 differ: 4 of 5 rows were read."
    record = numbers.record()
    assert (record.said, str(record.remedy)) == (told, "Nothing was written. Read them all.")


def test_the_ledger_records_the_root_cause_of_an_error_in_the_jvm(numbers: Dag) -> None:
    context = numbers.context("first")
    before_task(context)
    context["exception"] = RuntimeError(
        "An error occurred while calling o36.load.\n: java.sql.SQLException: No suitable driver\n\tat a.b(c.java:1)"
    )
    task_failed(context)
    assert numbers.record().said == "task first: java.sql.SQLException: No suitable driver"


def test_the_late_failure_of_an_older_try_does_not_fail_the_transaction(numbers: Dag) -> None:
    old, new = numbers.context("first"), numbers.context("first")
    before_task(old)
    before_task(new)
    old["exception"] = OSError("killed")
    task_failed(old)
    assert numbers.record().phase is Phase.PROCESSING


def test_a_retry_with_the_same_try_id_keeps_the_ack_and_has_its_own_staging_folder(numbers: Dag) -> None:
    resumed, retried = numbers.context("first"), numbers.context("first")
    retried["ti"] = replace(resumed["ti"], try_number=2)
    before_task(resumed)
    after_task(resumed, [1])
    before_task(retried)  # Airflow then takes the first one's success for its own
    acked = numbers.ack("first")
    assert acked is not None
    assert (acked.done, len(acked.outputs)) == (True, 1)
    assert Processing.of(resumed).task != Processing.of(retried).task


def test_a_try_that_airflow_has_replaced_cannot_begin_a_transaction_or_start_a_task(
    numbers: Dag, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = numbers.context("first"), numbers.context("first")
    before_task(new)
    asked: list[str] = []
    monkeypatch.setattr(compat, "is_current_try", lambda task_try: asked.append(task_try))
    with pytest.raises(AirflowFailException, match=f"try {new['ti'].id}.1 has replaced try {old['ti'].id}.1"):
        before_task(old)
    with pytest.raises(StaleBegin, match="a later begin"):
        numbers.begin()
    assert asked[0] == f"{old['ti'].id}.1"
    assert (numbers.record().attempt, len(asked)) == (1, 2)


def test_the_first_try_of_a_task_sends_no_query_to_airflow(numbers: Dag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "is_current_try", lambda task_try: pytest.fail("Airflow was asked"))
    before_task(numbers.context("first"))
    assert numbers.ack("first") is not None


def test_a_task_of_an_older_attempt_fails_immediately_and_names_the_task_to_clear(numbers: Dag) -> None:
    context = numbers.context("first")
    numbers.begin()
    with pytest.raises(AirflowFailException, match=r"attempt 1 refused: attempt 2 is the newest. Clear `begin`"):
        before_task(context)


@pytest.mark.parametrize("told", ["nothing", "the old attempt", "the new attempt"])
def test_a_task_that_starts_while_begin_of_its_cleared_run_is_running_is_rescheduled(numbers: Dag, told: str) -> None:
    context = numbers.context("first")
    if told != "nothing":
        before_task(context)
    old = numbers.payload
    numbers.begin()
    context["ti"].states["begin"] = "success" if told == "the new attempt" else "running"
    payloads = {"nothing": None, "the old attempt": old, "the new attempt": numbers.payload}
    context["ti"].xcoms["begin", "return_value", -1] = payloads[told]
    with pytest.raises(AirflowRescheduleException):
        before_task(context) if told == "nothing" else after_task(context, [1])
    assert numbers.record().attempt == 2
    assert numbers.ack("first") is None


def test_a_task_with_arguments_of_an_older_attempt_is_refused(numbers: Dag) -> None:
    old = numbers.payload
    numbers.begin()
    with pytest.raises(AirflowFailException, match="attempt 1 refused"):
        before_task(numbers.context("first", [{"batch": old}]))
    assert numbers.ack("first") is None


def test_an_older_try_that_is_still_running_cannot_ack(numbers: Dag) -> None:
    old, new = numbers.context("first"), numbers.context("first")
    before_task(old)
    before_task(new)
    with pytest.raises(AirflowFailException, match="has replaced try"):
        after_task(old, [1])


def test_a_task_of_a_run_without_a_transaction_is_refused_with_a_hint_to_clear_begin(numbers: Dag) -> None:
    context = numbers.context("first")
    context["ti"].xcoms.clear()
    with pytest.raises(AirflowFailException, match="Run r1 has no transaction yet. Clear task begin"):
        before_task(context)


@pytest.mark.parametrize("by", ["its skip", "the word to do so itself", "its own state"])
def test_a_task_that_begin_has_skipped_skips_itself_although_airflow_has_started_it(numbers: Dag, by: str) -> None:
    context = numbers.context("first", begin="skipped" if by == "its own state" else "success")
    context["ti"].xcoms.clear()
    if by == "its skip":
        context["ti"].xcoms["begin", XCOM_SKIPMIXIN_KEY, -1] = {"skipped": ["first", "second"]}
    elif by != "its own state":
        context["ti"].xcoms["begin", XCOM_SKIPMIXIN_KEY, -1] = {"skipped": ["second"]}
        context["ti"].xcoms["begin", "tx_skips_itself", -1] = ["first"]
    with pytest.raises(AirflowSkipException, match="Task begin of run r1 has skipped this task"):
        before_task(context)


def test_a_task_that_no_committer_depends_on_does_not_start_in_the_ledger_and_does_not_ack(numbers: Dag) -> None:
    begin: Any = numbers.dag.get_task("begin")
    begin.transaction = replace(numbers.spec, tasks=("second",))
    context = numbers.context("first")
    with Processing.running(context) as processing:
        processing.ack([])
    assert numbers.ack("first") is None


def test_a_task_of_a_committed_transaction_skips_itself(numbers: Dag, log: Any) -> None:
    from tests.unit.commit.run import Run

    for name in ("first", "second"):
        context = numbers.context(name)
        before_task(context)
        after_task(context, None)
    run = Run(numbers.spec, "r1", [], log)
    run.begun = Begun.from_json(numbers.payload)
    assert run.commit_now() is None
    context = numbers.context("first")
    with pytest.raises(AirflowSkipException, match="Transaction 1 of numbers is already committed"):
        before_task(context)
    task_ended(context)


def test_a_task_of_an_opaque_source_does_not_use_the_output_of_an_earlier_attempt(store: CountingStore) -> None:
    opaque = Dag(store, OpaqueNumbers())
    opaque.begin()
    first = opaque.context("first")
    before_task(first)
    after_task(first, None)
    before_task(opaque.context("second", first="success"))
    opaque.begin()
    with pytest.raises(AirflowFailException, match="its input from first belongs to an earlier attempt. Clear first"):
        before_task(opaque.context("second", first="success"))
    before_task(opaque.context("second", first="skipped"))


def test_the_current_batch_has_the_txid_and_the_attempt_and_exactly_the_rows_of_its_metadata(numbers: Dag) -> None:
    batch = CurrentBatch(Processing.of(numbers.context("first")))
    assert (batch.txid, str(batch.attempt), batch.metadata) == (1, "1.1", [0, 10])
    assert list(batch.read()) == [{"number": number} for number in range(10)]


def test_a_replay_whose_source_returned_no_rows_reads_no_rows(numbers: Dag) -> None:
    numbers.payload["rows"] = None
    assert list(CurrentBatch(Processing.of(numbers.context("first"))).read()) == []


# --- rows that a task stages -------------------------------------------------------------------------------------

ROWS = [{"product": "tea", "amount": 4}, {"product": "cake", "amount": None}]


class StartedTask:
    """The task `first` of a DAG, which has started."""

    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.context = dag.context("first", dag.payload)
        before_task(self.context)
        self.processing = Processing.of(self.context)
        self.batch = CurrentBatch(self.processing)

    def acked(self, returned: Any) -> Ack:
        after_task(self.context, returned)
        found = self.dag.ack("first")
        assert found is not None
        return found


@pytest.fixture
def started_task(store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartedTask:
    dag = Dag(store, Numbers())
    dag.begin()
    started = StartedTask(dag)
    staging = property(lambda self: StagingArea(str(tmp_path)).of_topology(self.begun.incarnation))
    monkeypatch.setattr(Processing, "staging", staging)
    monkeypatch.setattr(type(dag.spec), "staging", lambda spec: StagingArea(str(tmp_path)))
    return started


@pytest.mark.parametrize("form", [list, iter, pd.DataFrame, pa.Table.from_pylist])
def test_staged_rows_are_unchanged_when_they_are_read(started_task: StartedTask, form: Any) -> None:
    ref = started_task.batch.stage(form(ROWS))
    assert list(started_task.batch.read_output(ref)) == ROWS


def test_staged_rows_have_a_digest_that_proves_whether_a_reader_has_read_all_of_them(started_task: StartedTask) -> None:
    ref = started_task.batch.stage(ROWS)
    outputs = {entry["name"]: entry for entry in started_task.acked(ref).outputs}
    assert outputs["rows"] == ref
    assert ref["row_digest"]
    assert outputs["return_value"].keys() == {"name", "digest"}


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"word": ["a", None], "n": pl.Series([1, 2], dtype=pl.UInt64)}),
        pl.DataFrame({"word": pl.Series(["a", "b"], dtype=pl.Categorical)}),
        pd.DataFrame({"word": pd.Categorical(["a", None]), "n": np.array([1, 2], "uint32")}),
        duckdb.sql("SELECT 'a'::ENUM('a') AS word, 1::UTINYINT AS n"),
    ],
    ids=str,
)
def test_rows_that_are_staged_from_a_frame_of_any_library_have_a_digest(started_task: StartedTask, frame: Any) -> None:
    ref = started_task.batch.stage(frame)
    assert ref["row_digest"].startswith("xxh64c-")
    assert next(row["word"] for row in started_task.batch.read_output(ref)) == "a"


def test_the_task_logs_that_it_cannot_hash_staged_rows(
    started_task: StartedTask, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        assert started_task.batch.stage([{"n": 1}])["row_digest"]
        assert "not hashed" not in caplog.text
        assert started_task.batch.stage([{"n": [1]}], "lists")["row_digest"] == ""
    assert "Output 'lists' of first has lists, structs, maps or times of day" in caplog.text


def test_a_spark_application_receives_the_files_of_staged_rows(started_task: StartedTask) -> None:
    ref = started_task.batch.stage(ROWS, "orders")
    found = inputs_of(started_task.dag.spec, {"orders": ref}, started_task.processing.begun)["orders"]
    assert found.outputs == (OutputName("first", -1, "orders", ref["row_digest"]),)
    assert found.rows == len(ROWS)
    assert pq.read_table(found.files[0].removeprefix("file://")).to_pylist() == ROWS


def test_a_task_can_stage_several_outputs_but_each_name_only_once(started_task: StartedTask) -> None:
    first, second = (started_task.batch.stage(ROWS[:number], name) for number, name in ((1, "one"), (2, "two")))
    assert [len(list(started_task.batch.read_output(ref))) for ref in (first, second)] == [1, 2]
    with pytest.raises(StagingError, match="the task has already staged an output with this name"):
        started_task.batch.stage(ROWS, "one")


def test_rows_that_are_not_a_table_are_refused_when_they_are_staged(started_task: StartedTask) -> None:
    with pytest.raises(StagingError, match="its rows do not form a table"):
        started_task.batch.stage([{"n": 1}, {"n": "x"}])


@pytest.mark.parametrize("nothing", [pd.DataFrame({"product": [], "amount": []}), pd.DataFrame(), [], iter(())])
def test_staging_no_rows_creates_an_empty_output_with_or_without_columns(
    started_task: StartedTask, nothing: Any
) -> None:
    ref = started_task.batch.stage(nothing)
    assert ref["rows"] == 0
    assert list(started_task.batch.read_output(ref)) == []


def test_rows_without_columns_are_refused_when_they_are_staged(started_task: StartedTask) -> None:
    given: list[Any] = [[{}, {}], pd.DataFrame(index=[0, 1])]
    for each in given:
        with pytest.raises(StagingError, match=r"its rows do not form a table \(2 rows have no columns\)"):
            started_task.batch.stage(each)


def test_times_are_staged_in_the_unit_that_spark_can_read(started_task: StartedTask) -> None:
    ref = started_task.batch.stage(pd.DataFrame({"at": [datetime(2026, 1, 5, 12)]}))
    found = inputs_of(started_task.dag.spec, {"rows": ref}, started_task.processing.begun)["rows"]
    assert pq.read_schema(found.files[0].removeprefix("file://")).field("at").type == pa.timestamp("us")
