"""A DAG is tried out: all of it runs, and neither ledger, source nor states know of it."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from airflow.models.asset import AssetEvent
from airflow.models.dagrun import DagRun
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, task
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select

from airflow_tx import (
    CommitOperator,
    DataIntervalSource,
    FileSource,
    Transaction,
    append,
    check,
    commit_phase,
    current_batch,
    partition_persist,
    persistent_aggregate,
)
from airflow_tx.base.compat import prepare_test
from airflow_tx.base.errors import TrialRefused
from airflow_tx.operators.trial import Trial, TrialResult
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.sources.memory import MemorySource
from airflow_tx.state import (
    Avg,
    Count,
    DeltaTable,
    MemoryMap,
    MemoryState,
    OpaqueMap,
    SqlGuard,
    SqlState,
    SqlTable,
    Sum,
)
from airflow_tx.testing.dag_trial import trial
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.spec import spec_of

ROWS = [{"word": "cat", "n": 2}, {"word": "dog", "n": 5}, {"word": "cat", "n": 4}]
COUNTED = [{"word": "cat", "count": 2}, {"word": "dog", "count": 1}]
CALLS: list[str] = []


class ToldSource(MemorySource):
    """A source that notes what it is told of its batches."""

    def begun(self, txid: int, metadata: Any) -> None:
        CALLS.append("begun")

    def committed(self, txid: int, metadata: Any) -> None:
        CALLS.append("committed")

    def failed(self, txid: int, metadata: Any, reason: str) -> None:
        CALLS.append("failed")

    def cleanup_before(self, txid: int) -> None:
        CALLS.append("cleanup_before")


@pytest.fixture(autouse=True)
def no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no ZooKeeper: whoever asked for one would fail."""
    monkeypatch.delenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", raising=False)
    CALLS.clear()


@task
def count_words(*, broken: bool = False) -> list[dict[str, Any]]:
    words = Counter(row["word"] for row in current_batch().read())
    assert not broken, "the job has a bug"
    return [{"word": word, "count": count} for word, count in words.items()]


@task
def report(ref: Any) -> list[dict[str, Any]]:
    return list(current_batch().read_output(ref))


@task
def means() -> list[dict[str, Any]]:
    assert list(current_batch().read()) == ROWS
    return [{"word": "cat", "n": 1, "mean_sum": 3, "mean_count": 1}]


def words(name: str = "words", kind: str = "opaque") -> SqlState:
    return SqlState("tx_state", table=name, keys=["word"], values={"count": Count()}, kind=kind)


def word_dag(dag_id: str, state: Any, source: Any = None, schedule: str | None = None, **options: Any) -> DAG:
    with DAG(dag_id, schedule=schedule) as dag:
        with Transaction(source=source or MemorySource({"0": ROWS}, per_batch=5), **options):
            CommitOperator(task_id="commit", updates=[persistent_aggregate(count_words(), state=state)])
    return dag


def test_a_trial_returns_the_outputs_of_tasks_and_the_resulting_states() -> None:
    dag = word_dag("tried_words", words())
    result = trial(dag, rows=ROWS, states={"tx_state.words": [{"word": "cat", "count": 40}]})
    assert result.state == "success"
    assert result.outputs["count_words"] == COUNTED
    assert result.states["tx_state.words"].read() == [{"word": "cat", "count": 42}, {"word": "dog", "count": 1}]


def test_a_trial_reads_the_real_state_and_does_not_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "state.db"
    monkeypatch.setenv("AIRFLOW_CONN_TX_STATE", json.dumps({"conn_type": "sqlite", "host": str(database)}))
    state = words()
    real = SqlState.from_url(f"sqlite:///{database}", table="words", keys=["word"], values={"count": Count()})
    real.raise_and_write(Grants()(7), [{"word": "cat", "count": 40}])
    before = database.read_bytes()
    dag = word_dag("tried_real", state, ToldSource({"0": ROWS}, per_batch=5))
    prepare_test(dag)

    run = dag.test()

    assert run is not None
    assert str(run.state) == "success"
    assert database.read_bytes() == before
    assert CALLS == []


def test_the_printed_table_of_a_trial_shows_values_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    state = MemoryState("totals", keys=["word"], values={"n": Sum(), "mean": Avg()}, types={"word": "text"})
    with DAG("tried_table", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            given = means()
            CommitOperator(task_id="commit", updates=[persistent_aggregate(given, state=state)])
    text = trial(dag, states={"totals": []}).text()
    assert "State totals: 1 keys would be written." in text
    assert "word  column      before  added  after" in text
    assert "cat   n           -       1      1" in text
    assert state.read() == []


def test_a_trial_restores_the_state_and_the_source_of_the_dag() -> None:
    state = words()
    dag = word_dag("tried_back", state)
    trial(dag, rows=ROWS)
    commit: Any = dag.get_task("commit")
    assert [update.state for update in commit.updates] == [state]
    assert isinstance(spec_of(dag).source, MemorySource)


def test_a_trial_limits_the_batch_to_the_configured_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TX__TRIAL_ROWS", "2")
    result = trial(word_dag("tried_cut", words()))
    assert result.outputs["count_words"] == [{"word": "cat", "count": 1}, {"word": "dog", "count": 1}]


def test_a_trial_passes_new_values_to_later_tasks_of_the_commit_phase() -> None:
    first, second = words("first"), words("second")
    with DAG("tried_phase", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            counted = count_words()
            with commit_phase():
                update = persistent_aggregate(counted, state=first, new_values="totals")
                one = CommitOperator(task_id="one", updates=[update])
                derived = report(one.output["totals"])
                CommitOperator(task_id="two", updates=[persistent_aggregate(derived, state=second)])
    result = trial(dag, states={"tx_state.first": [{"word": "dog", "count": 9}]})
    assert result.state == "success"
    assert result.states["tx_state.second"].read() == [{"word": "cat", "count": 2}, {"word": "dog", "count": 10}]


def test_a_trial_shows_the_rows_that_a_guard_would_receive() -> None:
    guard = SqlGuard("tx_state", name="mail", statements=str)
    with DAG("tried_guard", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            CommitOperator(task_id="commit", updates=[partition_persist(count_words(), state=guard)])
    result = trial(dag)
    assert result.states[guard.name].rows == COUNTED  # type: ignore[union-attr]
    assert f"State {guard.name}: it would receive 2 rows." in result.text()


def test_a_trial_shows_the_rows_that_would_be_appended_to_a_table() -> None:
    table = SqlTable("tx_state", table="lines")
    with DAG("tried_table", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            CommitOperator(task_id="commit", updates=[append(count_words(), state=table)])
    assert trial(dag, states={}).states["tx_state.lines"].read() == COUNTED


@task
def nothing() -> dict[str, Any]:
    list(current_batch().read())
    return current_batch().stage([])


def test_a_trial_of_a_day_without_rows_succeeds() -> None:
    with DAG("tried_without_rows", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            CommitOperator(task_id="commit", updates=[persistent_aggregate(nothing(), state=words())])
    result = trial(dag, states={})
    assert (result.state, result.states["tx_state.words"].read()) == ("success", [])


@task
def count_good_words() -> list[dict[str, Any]]:
    batch = current_batch()
    good = [row for row in batch.read() if row != ROWS[1]]
    batch.reject(ROWS[1], "too many")
    return [{"word": "cat", "count": len(good)}]


def test_a_trial_shows_the_rejected_rows_and_writes_no_table(tmp_path: Path) -> None:
    aside = DeltaTable(tmp_path / "aside")
    with DAG("tried_rejected", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5), rejected=aside):
            CommitOperator(task_id="commit", updates=[persistent_aggregate(count_good_words(), state=words())])
    result = trial(dag, rows=ROWS, states={})
    assert result.state == "success"
    row = {"tx_task": "count_good_words", "tx_reason": "too many", "tx_where": "", "tx_content": json.dumps(ROWS[1])}
    assert result.states[aside.name].rows == [row]  # type: ignore[union-attr]
    assert "1 row would be rejected" in result.text()
    assert "too many" in result.text()
    assert not (tmp_path / "aside").exists()


class Tally:
    """An updater of a map: counts words, and emits those that it has seen before."""

    def update_state(self, state: Any, rows: Any) -> list[dict[str, Any]]:
        keys = [(row["word"],) for row in rows]
        before = state.multi_get(keys)
        state.multi_put(keys, [(old or 0) + row["count"] for old, row in zip(before, rows, strict=True)])
        return [{"word": key[0], "before": old} for key, old in zip(keys, before, strict=True) if old is not None]


@pytest.mark.parametrize("asked", [True, False], ids=["dags test", "pytest"])
def test_a_trial_runs_the_updater_of_a_map_on_a_copy_and_passes_on_its_new_values(asked: bool) -> None:
    held = MemoryMap[Any]()
    real = OpaqueMap(held, name="tally")
    real.begin_commit(1)
    real.multi_put([("cat",)], [40])
    real.commit(1)
    before = dict(held.values)
    with DAG("tried_updater", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            update = partition_persist(count_words(), state=real, updater=Tally(), new_values="seen")
            commit = CommitOperator(task_id="commit", updates=[update])
        report(commit.output["seen"])
    prepare_test(dag)
    tried = Trial(dag, states=None if asked else {})
    with tried.running():
        result = tried.result(type(dag).test(dag))
    assert result.state == "success", result.text()
    assert result.outputs["report"] == ([{"word": "cat", "before": 40}] if asked else [])
    assert result.states["tally"].rows == COUNTED  # type: ignore[union-attr]
    assert held.values == before


def test_a_failed_trial_reports_the_failure_and_writes_no_value() -> None:
    with DAG("tried_broken", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            CommitOperator(task_id="commit", updates=[persistent_aggregate(count_words(broken=True), state=words())])
    result = trial(dag)
    assert result.state == "failed"
    assert result.text().startswith("Trial: the run ended as failed.")
    assert result.states["tx_state.words"].read() == []


def test_a_trial_shows_which_checks_fail() -> None:
    def checked(dag_id: str, *checks: Any) -> TrialResult:
        with DAG(dag_id, schedule=None) as dag:
            with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
                counted = count_words()
                own = [check(name, counted, **how) for name, how in checks]
                CommitOperator(task_id="commit", updates=[persistent_aggregate(counted, state=words())], checks=own)
        return trial(dag, rows=ROWS, states={"tx_state.words": []})

    some = ("some rows", {"value": "count(*) > 0"})
    failed = checked("tried_checks", some, ("no cats", {"rows": "word <> 'cat'"}))
    assert failed.state == "failed"
    assert "Check no cats: failed: word <> 'cat' does not hold for 1 of 2 rows" in failed.text()
    with DAG("tried_checked_phase", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            counted = count_words()
            with commit_phase():
                update = persistent_aggregate(counted, state=words())
                own = [check("no cats", counted, rows="word <> 'cat'")]
                CommitOperator(task_id="b", updates=[update], checks=own)
    assert "Check no cats: failed" in trial(dag, rows=ROWS, states={"tx_state.words": []}).text()
    passed = checked("tried_passing", some, ("no cats", {"rows": "word <> 'cat'", "severity": "warn"}))
    assert passed.state == "success"
    lines = passed.text().splitlines()
    assert lines[2] == "Check some rows: passed"
    assert lines[1].startswith("Check no cats: warning: word <> 'cat' does not hold for 1 of 2 rows")


def test_a_trial_supports_a_transactional_state() -> None:
    result = trial(word_dag("tried_kind", words(kind="transactional")), rows=ROWS, states={"tx_state.words": COUNTED})
    assert result.states["tx_state.words"].read() == [{"word": "cat", "count": 4}, {"word": "dog", "count": 2}]


def test_a_trial_writes_no_entry_into_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: JournalArea, entry: Any) -> str:
        raise AssertionError("an entry is written")

    monkeypatch.setattr(JournalArea, "write", never)
    assert trial(word_dag("tried_entry", words()), rows=ROWS, states={}).state == "success"


def test_a_trial_leaves_no_file_in_the_staging_area(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TX__STAGING", str(tmp_path))
    with DAG("tried_staging", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            update = persistent_aggregate(count_words(), state=words(), new_values="totals")
            commit = CommitOperator(task_id="commit", updates=[update])
        report(commit.output["totals"])
    result = trial(dag)
    assert result.outputs["report"] == COUNTED
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"ackers": 1}, "its messages leave the DAG"), ({"source": "queue"}, "removes its rows from the queue")],
    ids=["ackers", "queue"],
)
def test_a_trial_of_an_unsupported_dag_is_refused_in_one_line(options: dict[str, Any], problem: str) -> None:
    from airflow_tx import RabbitQueueSource

    if "source" in options:
        options = {"source": RabbitQueueSource("rabbit", queue="words")}
    dag = word_dag("tried_refused", words(kind="opaque"), at_least_once=True, **options)
    with pytest.raises(TrialRefused, match=problem) as refused:
        trial(dag)
    assert "\n" not in str(refused.value)
    with pytest.raises(SystemExit, match=problem):
        dag.test()


def runs_of(dag: DAG) -> list[str]:
    with create_session() as session:
        return list(session.scalars(select(DagRun.run_id).where(DagRun.dag_id == dag.dag_id)))


def test_a_trial_is_refused_for_the_date_of_an_existing_run_and_keeps_the_run() -> None:
    source = DataIntervalSource("tests.integration.test_trials.rows_of_a_day")
    dag = word_dag(f"tried_{uuid.uuid4().hex}", words(), source, schedule="@daily")
    date = datetime(2026, 2, 3, tzinfo=timezone.utc)
    trial(dag, logical_date=date)
    with create_session() as session:  # the run of the scheduler
        run = session.scalar(select(DagRun).where(DagRun.dag_id == dag.dag_id))
        assert run is not None
        run.run_type, run.triggered_by = DagRunType.SCHEDULED, DagRunTriggeredByType.TIMETABLE
    (run_id,) = runs_of(dag)
    problem = f"delete run '{re.escape(run_id)}' to test the date"
    with pytest.raises(TrialRefused, match=f"{problem} 2026-02-03T00:00:00.*such as (.*)\\.$") as refused:
        trial(dag, logical_date=date)
    for options in ({"logical_date": date}, {"logical_date": None}):
        with pytest.raises(SystemExit, match=problem):
            dag.test(**options)
    assert runs_of(dag) == [run_id]
    free = str(refused.value).rpartition(" ")[2].removesuffix(".")
    result = trial(dag, logical_date=datetime.fromisoformat(free))
    assert result.outputs["count_words"] == [{"word": "2026-02-02", "count": 1}]
    assert run_id in runs_of(dag)


def test_a_trial_accepts_the_date_of_an_earlier_trial() -> None:
    dag = word_dag("tried_again", words())
    date = datetime(2026, 2, 3, tzinfo=timezone.utc)
    assert [trial(dag, rows=ROWS, logical_date=date).state for _ in range(2)] == ["success", "success"]


@task(outlets=[Asset("of_a_task")])
def told(rows: Any) -> None: ...


def test_a_trial_emits_no_asset_event() -> None:
    with DAG(f"tried_{uuid.uuid4().hex}", schedule=None) as dag:
        with Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
            update = persistent_aggregate(count_words(), state=words())
            commit = CommitOperator(task_id="commit", updates=[update], outlets=[Asset("of_a_commit")])
        told(commit.output)
    assert trial(dag, rows=ROWS).state == "success"
    with create_session() as session:
        assert list(session.scalars(select(AssetEvent).where(AssetEvent.source_dag_id == dag.dag_id))) == []
    assert commit.outlets == [Asset("of_a_commit")]


def test_a_trial_takes_the_rows_of_its_date_even_if_the_source_is_read_in_order() -> None:
    source = DataIntervalSource("tests.integration.test_trials.rows_of_a_day", in_order=True)
    dag = word_dag("tried_dates", words(), source, schedule="@daily")
    result = trial(dag, logical_date=datetime(2026, 2, 3, tzinfo=timezone.utc))
    assert result.outputs["count_words"] == [{"word": "2026-02-02", "count": 1}]


@task
def dates(number: int, told: str, ds: str | None = None, logical_date: Any = None, **context: Any) -> list[str]:
    run = context["dag_run"]
    named = [told, ds, f"{logical_date:%Y-%m-%d}", f"{context['data_interval_start']:%Y-%m-%d}", context["ts"][:10]]
    return [*map(str, named), f"{run.logical_date:%Y-%m-%d}", f"{run.data_interval_end:%Y-%m-%d}"]


@pytest.mark.parametrize("schedule", ["@daily", CronDataIntervalTimetable("0 0 * * *", timezone="UTC")])
def test_a_task_in_a_trial_has_the_same_dates_as_a_scheduled_run(schedule: Any) -> None:
    with DAG(
        f"tried_{uuid.uuid4().hex}", schedule=schedule, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)
    ) as dag:
        with Transaction(source=DataIntervalSource(kind="opaque")):
            named = dates.partial(told="{{ ds }}").expand(number=[1, 2])
            counted = count_words()
            named >> counted
            CommitOperator(task_id="commit", updates=[persistent_aggregate(counted, state=words())])
    result = trial(dag, rows=ROWS, logical_date=datetime(2026, 2, 3, tzinfo=timezone.utc))
    for number in (0, 1):
        assert result.outputs[f"dates[{number}]"] == ["2026-02-02"] * 6 + ["2026-02-03"]
    dag.test(logical_date=datetime(2026, 2, 4, tzinfo=timezone.utc))
    with create_session() as session:  # the dates are those of the task alone
        found = set(session.scalars(select(DagRun.logical_date).where(DagRun.dag_id == dag.dag_id)))
    assert {f"{each:%d}" for each in found} == {"03", "04"}


def rows_of_a_day(start: Any, end: Any, **_: Any) -> list[dict[str, Any]]:
    return [{"word": f"{start:%Y-%m-%d}"}]


def test_a_trial_reads_a_file_but_does_not_mark_it_as_taken(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("word,n\ncat,2\ndog,5\ncat,4\n")
    dag = word_dag("tried_file", words(), FileSource(f"{tmp_path}/*.csv"))
    assert trial(dag).outputs["count_words"] == COUNTED
    assert trial(dag).outputs["count_words"] == COUNTED


def test_the_test_on_the_start_page_is_short_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "start.md").read_text()
    dag_file, test_file = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(test_file.strip().splitlines()) <= 12
    (tmp_path / "text_words.py").write_text(dag_file)
    monkeypatch.syspath_prepend(str(tmp_path))
    named: dict[str, Any] = {}
    exec(test_file, named)
    named["test_each_word_is_counted"]()


@task
def extract() -> dict[str, Any]:
    return current_batch().stage(ROWS)


@task
def count_staged(ref: Any) -> list[dict[str, Any]]:
    words = Counter(row["word"] for row in current_batch().read_output(ref))
    return [{"word": word, "count": count} for word, count in words.items()]


def test_a_trial_stages_the_rows_that_a_task_returns_and_a_later_task_reads_them() -> None:
    with DAG("tried_staged", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)) as dag:
        with Transaction(source=DataIntervalSource(kind="opaque")):
            CommitOperator(task_id="commit", updates=[persistent_aggregate(count_staged(extract()), state=words())])
    result = trial(dag, states={}, logical_date=datetime(2026, 1, 5, tzinfo=timezone.utc))
    assert result.state == "success"
    assert result.outputs["count_staged"] == COUNTED


@task
def framed() -> pl.DataFrame:
    return pl.DataFrame(list(current_batch().read())).group_by("word").agg(pl.len().cast(pl.UInt32).alias("count"))


@task(multiple_outputs=True)
def several() -> dict[str, Any]:
    rows = pd.DataFrame(list(current_batch().read()))
    counts = rows.groupby("word", as_index=False).agg(count=("n", "size"))
    return {"counts": counts, "sums": pa.table({"n": [int(rows.n.sum())]}), "rows": len(rows)}


@task
async def awaited() -> Any:
    return duckdb.sql("SELECT 'cat' AS word, 2 AS count")


@task
def sized(number: int) -> Any:
    return pa.table({"word": ["cat"], "count": [number]})


def committed(dag_id: str, make: Any) -> DAG:
    with DAG(dag_id, schedule=None) as dag, Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(make(), state=words())])
    return dag


@pytest.mark.parametrize("given", [ROWS, pl.DataFrame(ROWS), pd.DataFrame(ROWS)], ids=type)
@pytest.mark.parametrize("make", [framed, lambda: cast("Any", several())["counts"]], ids=["one", "several"])
def test_a_trial_stages_a_data_frame_that_a_task_returns(make: Any, given: Any) -> None:
    result = trial(committed("tried_frames", make), rows=given)
    assert result.state == "success"
    assert sorted(result.states["tx_state.words"].read(), key=str) == COUNTED


def test_each_of_several_outputs_of_a_task_may_be_a_data_frame_or_a_value(tmp_path: Path) -> None:
    with DAG("tried_several", schedule=None) as dag, Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
        found: Any = several()
        read = report(found["sums"])
        commit = CommitOperator(task_id="commit", updates=[persistent_aggregate(found["counts"], state=words())])
        read >> commit
    result = trial(dag, rows=ROWS)
    assert result.state == "success"
    assert result.outputs["several.sums"] == result.outputs["report"] == [{"n": 11}]
    assert result.outputs["several.rows"] == 3


def by_operator() -> Any:
    operator = PythonOperator.partial(task_id="sized", python_callable=sized.function)
    return operator.expand(op_args=[[1], [1]]).output


@pytest.mark.parametrize(
    "make", [awaited, lambda: sized.expand(number=[1, 1]), by_operator], ids=["async", "mapped", "mapped operator"]
)
def test_data_frames_returned_by_async_and_mapped_tasks_are_staged(make: Any) -> None:
    result = trial(committed("tried_frames", make), rows=ROWS)
    assert result.state == "success"
    assert result.states["tx_state.words"].read() == [{"word": "cat", "count": 2}]


def test_a_data_frame_between_two_committers_is_staged() -> None:
    with DAG("tried_phase", schedule=None) as dag, Transaction(source=MemorySource({"0": ROWS}, per_batch=5)):
        counted = count_words()
        with commit_phase():
            first = CommitOperator(task_id="first", updates=[persistent_aggregate(counted, state=words())])
            derived = awaited()
            first >> derived
            again = persistent_aggregate(derived, state=words("again"))
            CommitOperator(task_id="second", updates=[again])
    result = trial(dag, rows=ROWS)
    assert result.state == "success"
    assert result.states["tx_state.again"].read() == [{"word": "cat", "count": 2}]


def test_a_lazy_data_frame_is_refused_and_the_error_names_the_call_that_collects_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @task
    def lazy() -> Any:
        return pl.DataFrame(ROWS).lazy()

    assert trial(committed("tried_lazy", lazy), rows=ROWS).state == "failed"
    assert (
        "its rows do not form a table (a polars.LazyFrame is lazy and has no rows yet). Call .collect()"
        in capsys.readouterr().out
    )
