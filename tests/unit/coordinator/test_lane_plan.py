"""Which DAGs go by a lane, and what is said of the others when their file is parsed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, task

from airflow_tx import (
    CommitOperator,
    DataIntervalSource,
    RunPartitionSource,
    SparkBatchOperator,
    SparkConnectBatchOperator,
    Transaction,
    commit_phase,
    coordinator_dag,
    current_batch,
    persistent_aggregate,
)
from airflow_tx.base import compat
from airflow_tx.coordinator.dag import CoordinateOperator
from airflow_tx.coordinator.lane_plan import GoesByRuns, LanePlan, LaneTask, lane_plan
from airflow_tx.operators.transaction import defined
from airflow_tx.sources.run.data_interval import NextIntervalSource
from airflow_tx.state import Count, MemoryState
from tests.unit.bench import Numbers

Body = Callable[[Transaction], Any]


def state() -> MemoryState:
    return MemoryState("totals", keys=["word"], values={"count": Count()})


def commit(rows: Any, **options: Any) -> CommitOperator:
    return CommitOperator(task_id="commit", updates=[persistent_aggregate(rows, state=state())], **options)


def planned(body: Body, *, source: Any = None, **options: Any) -> LanePlan:
    """The plan of a DAG whose block has this body."""
    more = {name: options.pop(name) for name in ("ackers",) if name in options}
    options = {"schedule": None, **options}
    with (
        DAG("planned", max_active_runs=8, **options) as dag,
        Transaction(source=source or Numbers(), **more) as tx,
    ):
        body(tx)
    return lane_plan(defined("planned")[0], dag)


@task
def count(batch: Any) -> list[dict[str, Any]]:
    return [{"word": "a", "count": batch["txid"]}]


@task
def dated(batch: Any, ds: Any = None, data_interval_end: Any = None) -> list[dict[str, Any]]:
    return [{"word": ds, "count": data_interval_end.day}]


@task
def add(rows: Any, more: Any, factor: int = 1) -> list[dict[str, Any]]:
    return [*rows, *more] * factor


@task
def with_ti(batch: Any, ti: Any = None) -> list[Any]:
    return []


@task
def with_context(batch: Any, **context: Any) -> list[Any]:
    return []


@task
async def later(batch: Any) -> list[Any]:
    return []


@task.short_circuit
def maybe(batch: Any) -> bool:
    return True


@task
def beside() -> None:
    current_batch()


def test_a_lane_plan_puts_each_function_after_the_functions_whose_output_it_reads() -> None:
    def body(tx: Transaction) -> None:
        first, second = count.override(task_id="z")(tx.batch), count.override(task_id="y")(tx.batch)
        limited = add.override(task_id="a", execution_timeout=timedelta(seconds=7))
        commit(limited([first], more=second, factor=2))

    plan = planned(body)
    calls = [each for each in plan.tasks if isinstance(each, LaneTask)]
    assert [each.task_id for each in plan.tasks][-1] == "a"
    assert {each.task_id for each in plan.tasks} == {"z", "y", "a"}
    assert calls[-1].call.timeout == 7.0
    assert plan.committer == "commit"
    assert len({each.code for each in calls}) == 2


def connected(**options: Any) -> Any:
    return SparkConnectBatchOperator(**{"task_id": "app", "application": "app.py", **options}).output["counts"]


def test_applications_on_a_spark_connect_server_are_part_of_a_lane_plan() -> None:
    def body(tx: Transaction) -> None:
        first = count(tx.batch)
        second = connected(application_args=[first], inputs={"a": first}, execution_timeout=timedelta(seconds=7))
        commit(add(second, []))

    plan = planned(body)
    assert [each.task_id for each in plan.tasks] == ["count", "app", "add"]
    assert [(each.task_id, each.timeout) for each in plan.applications] == [("app", 7.0)]
    assert plan.files == (plan.dag_file,)  # there is no app.py


def test_the_file_of_a_spark_application_is_one_of_the_files_of_the_lane() -> None:
    plan = planned(lambda tx: commit(connected(application=__file__)))
    assert plan.files == (plan.dag_file, __file__)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda tx: commit(connected(application_args=["{{ ds }}"])), "its argument '{{ ds }}' is a template"),
        (lambda tx: commit(connected(conn_id=count(tx.batch))), "task 'app' cannot run in a lane: its conn_id is"),
        (lambda tx: commit(connected(pool="spark")), "task 'app' cannot run in a lane: it has pool = 'spark'"),
        (
            lambda tx: commit(SparkConnectBatchOperator.partial(task_id="app").expand(application=["a"]).output),
            "task 'app' cannot run in a lane: it is mapped",
        ),
        (
            lambda tx: commit(with_ti(tx.batch)),
            "task 'with_ti' cannot run in a lane: its function has the parameter 'ti', which comes from the",
        ),
        (
            lambda tx: commit(with_context(tx.batch)),
            "its function has the parameter **context, which receives the context of the run",
        ),
        (lambda tx: commit(count(f"{tx.topology} {{{{ ds }}}}")), "its argument 'planned {{ ds }}' is a template"),
        (lambda tx: commit(count(tx.batch.map(str))), "task 'count' cannot run in a lane: its argument is a MapX"),
        (lambda tx: commit(count.expand(batch=[1, 2])), "task 'count' cannot run in a lane: it is mapped"),
        (lambda tx: commit(later(tx.batch)), "task 'later' cannot run in a lane: its function is async"),
        (lambda tx: commit(maybe(tx.batch)), "it is a _ShortCircuitDecoratedOperator, not a plain @task function"),
        (lambda tx: commit(count.override(pool="p")(tx.batch)), "task 'count' cannot run in a lane: it has pool = 'p'"),
        (lambda tx: commit(count.override(queue="q")(tx.batch)), "'count' cannot run in a lane: it has queue = 'q'"),
        (lambda tx: commit(count.override(trigger_rule="all_done")(tx.batch)), "it has trigger_rule = 'all_done'"),
        (lambda tx: commit(count.override(on_success_callback=print)(tx.batch)), "it has an on_success_callback"),
        (lambda tx: commit(count.override(pre_execute=print)(tx.batch)), "in a lane: it has pre_execute"),
        (lambda tx: commit(count(tx.batch), outlets=[Asset("a")]), "in a lane: it has outlets = [Asset("),
        (
            lambda tx: commit(SparkBatchOperator(task_id="app", application="app.py").output["counts"]),
            "task 'app' cannot run in a lane: it is a SparkBatchOperator, not a plain @task function",
        ),
        (
            lambda tx: (commit(count(tx.batch)), beside()),
            "task 'beside' does not run before the committer, so only a run can execute it",
        ),
    ],
)
def test_a_dag_that_needs_runs_is_refused_for_the_lane_with_the_task_and_the_reason(body: Body, reason: str) -> None:
    with pytest.raises(GoesByRuns) as found:
        planned(body)
    assert str(found.value).startswith("Topology 'planned' uses runs instead of a lane: ")
    assert reason in str(found.value)


def test_a_dag_with_a_commit_phase_has_no_lane() -> None:
    def body(tx: Transaction) -> None:
        counted = count(tx.batch)
        with commit_phase():
            commit(counted)

    with pytest.raises(GoesByRuns, match="it has a commit phase"):
        planned(body)


def test_a_dag_whose_tasks_emit_messages_has_no_lane() -> None:
    with pytest.raises(GoesByRuns, match="its tasks emit messages"):
        planned(lambda tx: commit(count(tx.batch)), ackers=1)


def test_a_dag_with_a_success_callback_has_no_lane() -> None:
    with pytest.raises(GoesByRuns, match="DAG 'planned' has an on_success_callback"):
        planned(lambda tx: commit(count(tx.batch)), on_success_callback=print)


def test_a_source_that_is_notified_of_commits_has_no_lane() -> None:
    class Acking(Numbers):
        def committed(self, txid: int, metadata: Any) -> None:
            """Acks."""

    with pytest.raises(GoesByRuns, match=r"its source \(Acking\) has a `committed` method, which a lane does not call"):
        planned(lambda tx: commit(count(tx.batch)), source=Acking())


DAILY = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")


@pytest.mark.parametrize(
    ("source", "schedule", "reason"),
    [
        (DataIntervalSource("a.b"), DAILY, "its data intervals have no order: set in_order=True"),
        (DataIntervalSource("a.b", in_order=True), None, "has no schedule that defines the next data interval"),
        (RunPartitionSource("a.b"), None, "its source gives each run its own batch"),
    ],
)
def test_a_source_that_needs_runs_has_no_lane_unless_the_schedule_defines_the_next_interval(
    source: Any, schedule: Any, reason: str
) -> None:
    with pytest.raises(GoesByRuns) as found:
        planned(lambda tx: commit(count(tx.batch)), source=source, schedule=schedule)
    assert reason in str(found.value)


@pytest.mark.skipif(compat.is_airflow_3_2(), reason="data intervals go by runs in Airflow 3.2")
def test_a_source_of_data_intervals_in_order_has_a_lane_that_follows_the_schedule() -> None:
    plan = planned(lambda tx: commit(dated(tx.batch)), source=DataIntervalSource("a.b", in_order=True), schedule=DAILY)
    assert isinstance(plan.spec.source, NextIntervalSource)
    assert plan.spec.source.schedule.timetable == DAILY
    (call,) = [each.call for each in plan.tasks if isinstance(each, LaneTask)]
    assert call.dates == {"ds", "data_interval_end"}


def test_a_dag_with_a_function_that_reads_dates_has_no_lane_if_its_batch_is_not_an_interval() -> None:
    with pytest.raises(
        GoesByRuns, match="its function has the parameter 'ds', which comes from the context of the run"
    ):
        planned(lambda tx: commit(dated(tx.batch)))


def test_a_source_of_data_intervals_has_no_lane_if_a_task_cannot_start_the_run_of_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "is_airflow_3_2", lambda: True)
    with pytest.raises(GoesByRuns, match=r"in Airflow 3\.2 no task can start that run"):
        planned(lambda tx: commit(count(tx.batch)), source=DataIntervalSource("a.b", in_order=True), schedule=DAILY)


@pytest.mark.skipif(compat.is_airflow_3_2(), reason="data intervals go by runs in Airflow 3.2")
def test_the_description_of_a_coordinator_without_a_lane_says_that_it_starts_no_runs_of_days() -> None:
    source = DataIntervalSource("a.b", in_order=True)
    with DAG("daily", schedule=DAILY, max_active_runs=8), Transaction(source=source) as tx:
        commit(count(tx.batch))
    assert coordinator_dag("daily").description == "Replays, but does not start the transactions of daily"
    expected = "Starts and replays the transactions of daily, and processes undisturbed ones in its lane"
    assert coordinator_dag("daily", lane=True).description == expected


def test_a_dag_with_a_task_after_the_transaction_has_no_lane() -> None:
    with DAG("after", schedule=None, max_active_runs=8) as dag:
        with Transaction(source=Numbers()) as tx:
            last = commit(count(tx.batch))
        last >> beside()
    with pytest.raises(GoesByRuns, match="task 'beside' does not run before the committer"):
        lane_plan(defined("after")[0], dag)


def coordinator(body: Body, **options: Any) -> tuple[DAG, CoordinateOperator]:
    with DAG("laned", schedule=None, max_active_runs=8), Transaction(source=Numbers()) as tx:
        body(tx)
    made = coordinator_dag("laned", **options)
    operator = made.task_dict["coordinate"]
    assert isinstance(operator, CoordinateOperator)
    return made, operator


def test_a_coordinator_has_no_lane_by_default() -> None:
    made, operator = coordinator(lambda tx: commit(count(tx.batch)))
    assert operator.lane is None
    assert made.description == "Starts and replays the transactions of laned"


def test_a_lane_can_be_enabled_for_one_coordinator_or_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coordinator(lambda tx: commit(count(tx.batch)), lane=True)[1].lane is not None
    monkeypatch.setenv("AIRFLOW__TX__LANE", "true")
    assert coordinator(lambda tx: commit(count(tx.batch)))[1].lane is not None
    assert coordinator(lambda tx: commit(count(tx.batch)), lane=False)[1].lane is None


def test_a_coordinator_that_cannot_have_the_requested_lane_logs_the_reason_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, operator = coordinator(lambda tx: commit(with_ti(tx.batch)), lane=True)
    line = (
        "Topology 'laned' uses runs instead of a lane: task 'with_ti' cannot run in a lane: "
        "its function has the parameter 'ti', which comes from the context of the run."
    )
    assert operator.lane is None
    assert [record.getMessage() for record in caplog.records] == [line]
    assert made.description == f"Starts and replays the transactions of laned. {line}"
