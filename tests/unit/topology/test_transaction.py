"""A `Transaction` block that cannot work is one clear line when the file is parsed; real DAGs, no database."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    MultipleCronTriggerTimetable,
    TaskGroup,
)
from airflow.timetables.base import DagRunInfo, DataInterval, Timetable
from pendulum import timezone

from airflow_tx import (
    CommitOperator,
    SparkBatchOperator,
    Transaction,
    check,
    commit_phase,
    coordinator_dag,
    persistent_aggregate,
)
from airflow_tx.base import compat
from airflow_tx.base.errors import ConfigError, StoreUnavailable, TransactionDefinitionError
from airflow_tx.sources.api import SourceKind
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.state import Count, MemoryMap, NonTransactionalMap, OpaqueMap, TransactionalMap
from airflow_tx.transaction.commit import run_slots
from airflow_tx.transaction.spec import TransactionSpec
from tests.unit.topology.blocks import Numbers, block, commit, count, dag, refused, state

DAYS = DataIntervalSource("json.loads")
START = datetime(2026, 1, 1, tzinfo=timezone("UTC"))


@pytest.mark.parametrize(("yielded", "called"), [(True, []), (False, ["first", "second"]), (None, ["first", "second"])])
def test_the_failure_callbacks_of_a_dag_are_not_called_for_a_run_that_yielded(
    monkeypatch: pytest.MonkeyPatch, yielded: bool | None, called: list[str]
) -> None:
    found: list[str] = []
    given = [lambda context: found.append("first"), lambda context: found.append("second")]
    with dag(on_failure_callback=given) as made:
        with block() as tx:
            commit(count(tx.batch))

    def asked(ledger: Any, run_id: str) -> bool:
        if yielded is None:
            raise StoreUnavailable(connection="zookeeper_default", hosts="zk:2181", reason="no answer")
        return yielded and run_id == "r1"

    monkeypatch.setattr(TransactionSpec, "store", lambda spec: nullcontext())
    monkeypatch.setattr(run_slots, "has_yielded", asked)
    callbacks: Any = made.on_failure_callback
    for callback in callbacks:
        callback({"run_id": "r1"})
    assert found == called


def test_a_dag_without_failure_callbacks_gets_no_failure_callback() -> None:
    with dag() as made:
        with block() as tx:
            commit(count(tx.batch))
    assert not made.on_failure_callback


def test_begin_runs_before_every_task_of_the_transaction_that_has_no_upstream_task() -> None:
    with dag() as made:
        with block() as tx:
            first = count.override(task_id="first")(tx.batch)
            second = count.override(task_id="second")(first)
            count.override(task_id="alone")(1)
            commit(second)
    upstream = {each.task_id: each.upstream_task_ids for each in made.tasks}
    assert upstream == {
        "begin": set(),
        "first": {"begin"},
        "second": {"first"},
        "alone": {"begin"},
        "commit": {"second", "begin"},
    }


def test_only_tasks_upstream_of_the_committer_must_ack() -> None:
    with dag():
        with block() as tx:
            counted = count.override(task_id="counted")(tx.batch)
            count.override(task_id="aside")(counted)
            count.partial().expand(batch=[1, 2]) >> commit(counted)
    spec = tx.begin.transaction
    assert spec.tasks == ("count", "counted")
    assert spec.mapped == {"count"}
    assert spec.inside == ("aside", "commit", "count", "counted")


def test_the_transaction_lists_the_tasks_whose_output_its_committer_commits() -> None:
    with dag():
        with block() as tx:
            counted = count.override(task_id="counted")(tx.batch)
            count.override(task_id="before")(tx.batch) >> commit(counted)
    assert tx.begin.transaction.committed == {"counted"}


def test_tasks_in_groups_belong_to_the_transaction_and_tasks_in_mapped_groups_count_as_mapped() -> None:
    from airflow.sdk import task_group

    @task_group
    def part(number: int) -> Any:
        return count(number)

    with dag():
        with block() as tx:
            with TaskGroup("plain"):
                plain = count(tx.batch)
            mapped = part.expand(number=[1, 2])
            commit(plain, mapped)
    assert tx.begin.transaction.tasks == ("part.count", "plain.count")
    assert tx.begin.transaction.mapped == {"part.count"}


def test_a_task_after_the_transaction_may_follow_the_committer() -> None:
    with dag() as made:
        with block() as tx:
            committer = commit(count(tx.batch))
        committer >> count.override(task_id="report")(1)
    assert made.get_task("report").upstream_task_ids == {"commit"}
    assert "report" not in tx.begin.transaction.inside


def test_a_task_that_is_defined_before_the_transaction_does_not_depend_on_begin() -> None:
    with dag() as made:
        before = count.override(task_id="before")(1)
        with block() as tx:
            work = count(tx.batch)
            before >> work
            commit(work)
    assert made.get_task("before").upstream_task_ids == set()
    assert made.get_task("count").upstream_task_ids == {"before", "begin"}
    assert tx.begin.transaction.tasks == ("count",)


FOR_WORK = {
    "retries": 0,
    "retry_delay": timedelta(hours=1),
    "retry_exponential_backoff": 3,
    "max_retry_delay": timedelta(hours=2),
    "execution_timeout": timedelta(seconds=8),
    "trigger_rule": "all_done",
    "pool_slots": 4,
    "multiple_outputs": True,
    "map_index_template": "{{ nothing }}",
}
if not compat.is_airflow_3_2():
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy

    FOR_WORK["retry_policy"] = ExceptionRetryPolicy(rules=[])


def phased(**options: Any) -> DAG:
    """A DAG with each of our tasks: begin, commit, and the first and last task of the phase."""
    with dag(**options) as made:
        with block() as tx:
            counted = count.override(do_xcom_push=True)(tx.batch)
            with commit_phase():
                commit(counted)
    return made


@pytest.mark.parametrize("option", [*FOR_WORK, "do_xcom_push"])
def test_work_options_in_default_args_do_not_apply_to_tasks_that_wait_or_commit(option: str) -> None:
    def values(made: DAG) -> list[Any]:
        return [getattr(task, option) for task in made.tasks if task.task_id != "count"]

    plain = values(phased())
    assert len(plain) == 4
    assert values(phased(default_args={option: FOR_WORK.get(option, False)})) == plain


@pytest.mark.parametrize(("option", "value"), [("queue", "spark"), ("pool", "team"), ("owner", "ada")])
def test_placement_and_notification_options_in_default_args_apply_to_each_task(option: str, value: str) -> None:
    made = phased(default_args={option: value})
    assert {getattr(task, option) for task in made.tasks} == {value}


@pytest.mark.parametrize("option", ["retries", "retry_delay", "execution_timeout", "trigger_rule"])
def test_work_options_in_default_args_do_not_apply_to_a_coordinator(option: str) -> None:
    def value(**options: Any) -> Any:
        phased()
        return getattr(coordinator_dag("words", **options).get_task("coordinate"), option)

    assert value(default_args={option: FOR_WORK[option]}) == value()


def test_the_configured_default_execution_timeout_does_not_apply_to_waiting_tasks(tmp_path: Path) -> None:
    (tmp_path / "timed.py").write_text(TIMED)
    code = f"from airflow.dag_processing.dagbag import DagBag; tasks = DagBag({str(tmp_path)!r}).dags['timed'].tasks"
    code += "; print('FOUND', {each.task_id: str(each.execution_timeout) for each in tasks})"
    limit = {"AIRFLOW__CORE__DEFAULT_TASK_EXECUTION_TIMEOUT": "8"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **limit})
    found = done.stdout.partition("FOUND ")[2].strip()
    assert found == "{'begin': 'None', 'count': '0:00:08', 'commit': 'None'}", done.stderr


TIMED = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.sources.memory import MemorySource
from airflow_tx.state import Count, MemoryState

with DAG("timed", schedule=None, max_active_runs=8):
    with Transaction(source=MemorySource({}, per_batch=5), max_pending=4) as tx:
        @task
        def count(batch):
            return []
        state = MemoryState("words", keys=["word"], values={"n": Count()})
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(tx.batch), state=state)])
"""


def test_retries_that_the_user_sets_for_the_committer_override_the_default() -> None:
    with dag(default_args={"retries": 7}) as made:
        with block() as tx:
            commit(count(tx.batch), retries=1, retry_delay=timedelta(seconds=9))
    committer = made.get_task("commit")
    assert (committer.retries, committer.retry_delay) == (1, timedelta(seconds=9))
    assert made.get_task("count").retries == 7


@pytest.mark.parametrize("option", ["topology", "zookeeper_conn_id", "root", "acker_store"])
def test_a_template_in_an_option_of_the_transaction_is_refused(option: str) -> None:
    with dag(), pytest.raises(ConfigError, match=rf"^Transaction\({option}=\) .*Templates are not rendered here"):
        block(**{option: "/{{ ds }}"})


def test_a_transaction_outside_of_a_dag_is_refused() -> None:
    with refused("is outside of a DAG"):
        block()


def test_a_user_task_named_begin_is_refused_unless_the_transaction_is_in_a_task_group() -> None:
    with dag() as made:
        count.override(task_id="begin")(1)
        with refused("has a task 'begin' already.*Give your task another id, or put the block into a group"), block():
            pass
        with TaskGroup("tx"), block() as tx:
            commit(count(tx.batch))
    assert {*made.task_ids} == {"begin", "tx.begin", "tx.count", "tx.commit"}
    assert tx.begin.transaction.tasks == ("tx.count",)
    assert tx.begin.transaction.begin == "tx.begin"


def test_a_second_transaction_in_a_dag_is_refused() -> None:
    with dag():
        with block() as tx:
            commit(count(tx.batch))
        with refused("already has a Transaction block"), block():
            pass


def test_a_value_that_is_not_a_source_is_refused() -> None:
    with dag(), refused("source = str is not a source"), block(source="flights.csv") as tx:
        commit(count(tx.batch))


@pytest.mark.parametrize("number", [0, -1, 1.5])
def test_a_max_pending_that_is_not_an_integer_of_at_least_one_is_refused(number: Any) -> None:
    with dag(), refused(f"max_pending = {number}"), block(max_pending=number) as tx:
        commit(count(tx.batch))


def test_the_option_max_consecutive_failed_dag_runs_is_refused_because_runs_may_yield() -> None:
    problem = r"max_consecutive_failed_dag_runs = 3, .* Set DAG\(max_consecutive_failed_dag_runs=0\)"
    with dag(max_consecutive_failed_dag_runs=3), refused(problem), block() as tx:
        commit(count(tx.batch))


def test_max_active_runs_must_be_larger_than_max_pending() -> None:
    with dag(max_active_runs=4), refused(r"max_active_runs = 4 is not larger .*Set DAG\(max_active_runs=5\)"):
        with block() as tx:
            commit(count(tx.batch))


def test_a_continuous_schedule_is_refused_with_its_replacement() -> None:
    continuous = {"schedule": "@continuous", "start_date": datetime(2026, 1, 1), "max_active_runs": 1}
    with (
        dag(**continuous),
        refused(r'@continuous.*schedule=None and max_active_runs=5, and add coordinator_dag\("words"\)'),
        block() as tx,
    ):
        commit(count(tx.batch))


def test_the_error_for_max_active_runs_of_1_recommends_more_runs_and_not_a_smaller_window() -> None:
    with dag(max_active_runs=1), refused(r"Set DAG\(max_active_runs=2\) or more\.$"), block(max_pending=1) as tx:
        commit(count(tx.batch))


def test_a_transaction_without_a_committer_is_refused() -> None:
    with dag(), refused("it has no committer"), block() as tx:
        count(tx.batch)


def test_a_transaction_with_several_committers_is_refused() -> None:
    with dag(), refused(r"2 committers \(first, second\)"), block() as tx:
        counted = count(tx.batch)
        commit(counted, task_id="first")
        commit(counted, task_id="second")


def test_a_mapped_committer_is_refused() -> None:
    with dag(), refused("commit is mapped"), block():
        CommitOperator.partial(task_id="commit").expand(updates=[[], []])


def test_a_committer_that_runs_after_failures_is_refused() -> None:
    with dag(), refused("commit has trigger_rule = 'all_done'"), block() as tx:
        commit(count(tx.batch), trigger_rule="all_done")


def test_a_task_after_the_committer_inside_the_transaction_is_refused() -> None:
    with dag(), refused("report runs after commit inside the block. Put the task after the block"), block() as tx:
        commit(count(tx.batch)) >> count.override(task_id="report")(1)


@pytest.mark.parametrize("option", ["depends_on_past", "wait_for_downstream"])
def test_a_committer_that_depends_on_past_runs_is_refused(option: str) -> None:
    with dag(), refused(f"commit has depends_on_past|commit has {option}"), block() as tx:
        commit(count(tx.batch), **{option: True})


def test_the_option_depends_on_past_in_default_args_is_refused() -> None:
    with dag(default_args={"depends_on_past": True}), refused("begin has depends_on_past"), block() as tx:
        commit(count(tx.batch))


def test_a_committer_with_a_limit_of_active_instances_is_refused() -> None:
    with dag(), refused("commit has max_active_tis_per_dag = 1"), block() as tx:
        commit(count(tx.batch), max_active_tis_per_dag=1)


def test_a_task_of_the_transaction_other_than_a_committer_may_limit_its_active_instances() -> None:
    with dag(), block() as tx:
        commit(count.override(max_active_tis_per_dag=1)(tx.batch))


def test_a_value_that_is_not_an_update_is_refused() -> None:
    with dag(), refused("an update of type str"), block() as tx:
        CommitOperator(task_id="commit", updates=["totals"])  # type: ignore[list-item]
        count(tx.batch)


def test_a_transaction_stages_output_only_for_spark_applications_and_new_values() -> None:
    def stages(build: Any) -> bool:
        with dag(), block() as tx:
            CommitOperator(task_id="commit", updates=[build(tx)])
        return tx.begin.transaction.stages

    def application(tx: Transaction) -> Any:
        counts = SparkBatchOperator(task_id="counts", application="/app.py")
        return persistent_aggregate(counts.output["counts"], state=state())

    assert not stages(lambda tx: persistent_aggregate(count(tx.batch), state=state()))
    assert stages(lambda tx: persistent_aggregate(count(tx.batch), state=state(), new_values="totals"))
    assert stages(application)


def test_updates_that_are_not_a_list_are_refused() -> None:
    told = r"CommitOperator\(updates=\) = persistent_aggregate\(count.* Give a list: updates=\[\.\.\.\]"
    with dag(), block() as tx:
        update = persistent_aggregate(count(tx.batch), state=state())
        with pytest.raises(ConfigError, match=told):
            CommitOperator(task_id="commit", updates=update)  # type: ignore[arg-type]
        CommitOperator(task_id="commit", updates=[update])


def test_an_update_whose_input_is_not_the_output_of_a_task_is_refused() -> None:
    with dag(), refused("is not the output of a task"), block() as tx:
        commit(count(tx.batch).map(lambda row: row))


def test_an_update_with_an_input_from_a_task_outside_the_transaction_is_refused() -> None:
    with dag(), refused("comes from task before, which is outside of the block. Move that task into the block"):
        before = count.override(task_id="before")(1)
        with block():
            commit(before)


def test_a_state_without_a_fence_is_refused() -> None:
    with dag(), refused("state = dict is not a state with a fence"), block() as tx:
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(tx.batch), state={})])


def test_a_state_that_is_updated_twice_is_refused() -> None:
    with dag(), refused("state 'totals' is updated 2 times"), block() as tx:
        counted = count(tx.batch)
        CommitOperator(task_id="commit", updates=[persistent_aggregate(counted, state=state()) for _ in range(2)])


UNSEEN = {"half a pair": "a\udcf6b", "nul": "a\x00b", "turned": "a\u202eb", "line break": "a\n"}


@pytest.mark.parametrize("name", UNSEEN.values(), ids=list(UNSEEN))
@pytest.mark.parametrize("named", ["topology", "task", "state", "output", "check"])
def test_the_error_for_a_name_with_unprintable_characters_has_one_line(named: str, name: str) -> None:
    """By Airflow already, where it checks the ids of tasks."""
    given = dict.fromkeys(("topology", "task", "state", "output", "check"), "totals") | {named: name}

    def build() -> None:
        with dag(), block(topology=given["topology"]) as tx:
            counted: Any = count.override(task_id=given["task"])(tx.batch)
            output = counted[given["output"]]
            update = persistent_aggregate(output, state=state(given["state"]))
            CommitOperator(task_id="commit", updates=[update], checks=[check(given["check"], output, rows="n > 0")])

    with pytest.raises((ConfigError, TransactionDefinitionError, ValueError)) as found:
        build()
    assert str(found.value).isprintable()


KINDS = [
    (SourceKind.TRANSACTIONAL, "transactional", True),
    (SourceKind.TRANSACTIONAL, "opaque", True),
    (SourceKind.OPAQUE, "opaque", True),
    (SourceKind.OPAQUE, "transactional", False),
    (SourceKind.NON_TRANSACTIONAL, "transactional", False),
    (SourceKind.NON_TRANSACTIONAL, "opaque", False),
]


@pytest.mark.parametrize(("source", "kind", "exact"), KINDS)
def test_a_source_and_a_state_that_together_cannot_guarantee_exactly_once_are_refused(
    source: SourceKind, kind: str, exact: bool
) -> None:
    def build(**options: Any) -> None:
        with dag(), block(source=Numbers(source), **options) as tx:
            update = persistent_aggregate(count(tx.batch), state=state(kind=kind))
            CommitOperator(task_id="commit", updates=[update])

    build(at_least_once=True)
    if exact:
        build()
    else:
        with refused(
            f"source is {source.value} and state 'totals' is {kind}, and this pair cannot count each row exactly"
        ):
            build()


MAPS = {
    "opaque": OpaqueMap,
    "transactional": TransactionalMap,
    "non-transactional": NonTransactionalMap,
}


@pytest.mark.parametrize("source", SourceKind)
@pytest.mark.parametrize("kind", MAPS)
def test_a_trident_map_is_accepted_or_refused_by_its_kind_like_any_other_state(source: SourceKind, kind: str) -> None:
    def build(**options: Any) -> None:
        with dag(), block(source=Numbers(source), **options) as tx:
            made: Any = MAPS[kind](MemoryMap())
            values = {"n": Count()}
            update = persistent_aggregate(count(tx.batch), state=made, keys=["word"], values=values)
            CommitOperator(task_id="commit", updates=[update])

    build(at_least_once=True)
    if (source, kind, True) in KINDS:
        build()
    else:
        with refused(f"source is {source.value} and state 'MemoryMap' is {kind}, and this pair cannot count each row"):
            build()


def test_an_error_inside_the_transaction_is_raised_unchanged() -> None:
    with dag(), pytest.raises(ZeroDivisionError), block():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("@daily", CronDataIntervalTimetable("@daily", timezone=timezone("Europe/Vienna"))),
        ("0 6 * * 1-5", CronDataIntervalTimetable("0 6 * * 1-5", timezone=timezone("Europe/Vienna"))),
        (timedelta(hours=6), DeltaDataIntervalTimetable(timedelta(hours=6))),
    ],
)
def test_a_cron_schedule_creates_data_intervals_only_for_an_interval_source(schedule: Any, expected: Any) -> None:
    start = datetime(2026, 1, 1, tzinfo=timezone("Europe/Vienna"))
    with dag(schedule=schedule, start_date=start) as of_intervals, block(source=DAYS) as tx:
        commit(count(tx.batch))
    assert of_intervals.timetable == expected
    with dag(schedule=schedule) as other, block() as tx:
        commit(count(tx.batch))
    assert other.timetable == dag(schedule=schedule).timetable


class Shifts(Timetable):
    """A timetable of one's own, whose runs have an interval of so many hours."""

    hours = 0

    def infer_manual_data_interval(self, *, run_after: Any) -> DataInterval:
        return DataInterval(run_after - timedelta(hours=self.hours), run_after)

    def next_dagrun_info(self, *, last_automated_data_interval: Any, restriction: Any) -> DagRunInfo:
        end = (last_automated_data_interval.end if last_automated_data_interval else restriction.earliest).add(hours=8)
        return DagRunInfo.interval(end - timedelta(hours=self.hours), end)


class NightlyTriggerTimetable(Shifts):
    hours = 8


class Broken(Shifts):
    def next_dagrun_info(self, **asked: Any) -> DagRunInfo:
        raise RuntimeError("the calendar is away")


TWICE = ("0 0 * * *", "0 12 * * *")


@pytest.mark.parametrize(
    "schedule",
    [
        CronTriggerTimetable("0 6 * * *", timezone="UTC"),
        MultipleCronTriggerTimetable(*TWICE, timezone="UTC"),
        AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 6 * * *", timezone="UTC"), assets=[Asset("orders")]),
        "@once",
        Shifts(),
    ],
)
def test_a_timetable_without_intervals_is_refused_for_an_interval_source(schedule: Any) -> None:
    remedy = r"empty interval.*CronDataIntervalTimetable.*or give the timetable interval=timedelta\(days=1\)"
    with dag(schedule=schedule, start_date=START), refused(remedy), block(source=DAYS) as tx:
        commit(count(tx.batch))


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        CronDataIntervalTimetable("0 6 * * *", timezone="UTC"),
        CronTriggerTimetable("0 6 * * *", timezone="UTC", interval=timedelta(days=1)),
        MultipleCronTriggerTimetable(*TWICE, timezone="UTC", interval=timedelta(hours=12)),
        NightlyTriggerTimetable(),
        Broken(),
    ],
)
@pytest.mark.parametrize("start_date", [None, START])
def test_a_schedule_with_intervals_is_accepted_for_an_interval_source(schedule: Any, start_date: Any) -> None:
    with dag(schedule=schedule, start_date=start_date), block(source=DAYS) as tx:
        commit(count(tx.batch))


def test_a_dag_test_with_an_executor_is_refused_before_airflow_is_queried() -> None:
    with dag() as made, block() as tx:
        commit(count(tx.batch))
    with pytest.raises(SystemExit, match=r"^DAG 'words' cannot be tried out: an executor.*Leave --use-executor"):
        made.test(logical_date=None, use_executor=True)


def test_a_transaction_stores_the_time_zone_of_the_schedule() -> None:
    schedule = CronDataIntervalTimetable("0 6 * * *", timezone="Europe/Berlin")
    with dag(schedule=schedule), block(source=DAYS) as tx:
        commit(count(tx.batch))
    assert tx.begin.transaction.request.zone == "Europe/Berlin"


# --- checks


def test_the_commit_waits_for_the_task_whose_output_a_check_reads() -> None:
    with dag(), block() as tx:
        given, other = count(tx.batch), count.override(task_id="other")(tx.batch)
        made = commit(given, checks=[check("some", other, value="count(*) > 0")])
    assert made.upstream_task_ids == {"begin", "count", "other"}
    assert tx.begin.transaction.committed == {"count", "other"}
    assert tx.begin.transaction.tasks == ("count", "other")


def test_a_check_whose_input_is_not_the_output_of_a_task_of_the_transaction_is_refused() -> None:
    with dag(), refused("the input of check\\('some'\\) is not the output of a task"), block() as tx:
        commit(count(tx.batch), checks=[check("some", 5, value="count(*) > 0")])
    with dag():
        outside = count([])
        with refused(
            "the input of check\\('some'\\) comes from task count, which is outside of the block. Move that task"
        ):
            with block() as tx:
                given = count.override(task_id="other")(tx.batch)
                commit(given, checks=[check("some", outside, value="count(*) > 0")])
