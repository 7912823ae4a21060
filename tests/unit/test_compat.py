"""What `compat` takes for granted of this version of Airflow."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import pickle
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from airflow.cli.commands.task_command import _generate_temporary_run_id
from airflow.jobs.triggerer_job_runner import ToTriggerSupervisor
from airflow.sdk import DAG, task, task_group
from airflow.sdk.api.datamodels._generated import DagRun, DagRunState
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowRuntimeError, DownstreamTasksSkipped, ErrorType
from airflow.sdk.execution_time import comms, task_runner
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.context import set_current_context
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms, set_supervisor_comms
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.state import State, TaskInstanceState

from airflow_tx.base import compat
from airflow_tx.base.errors import FailedBatch
from airflow_tx.ledger.steps.replay import LIVE_RUN_STATES
from airflow_tx.testing.airflow_client import RUN_ENDED, TASK_ENDED


def before(context: Any) -> None:
    """A hook."""


def own_before(context: Any) -> None:
    """A hook of the task's author."""


def after(context: Any, result: Any) -> None:
    """A hook."""


def ended(context: Any) -> None:
    """A hook."""


def hook_up(*tasks: Any) -> None:
    for each in tasks:
        compat.add_hooks(
            each, before=before, after=after, succeeded=ended, failed=ended, skipped=ended, final=(FailedBatch,)
        )


@task
def work(number: int) -> int:
    return number


def raising(status: int | None) -> Any:
    def get_dagrun_state(**arguments: Any) -> str:
        detail = {"status_code": status} if status else None
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))

    return SimpleNamespace(get_dagrun_state=get_dagrun_state)


def test_the_state_of_a_run_is_returned_as_text_and_a_deleted_run_has_no_state() -> None:
    assert compat.run_state(SimpleNamespace(get_dagrun_state=lambda **_: "running"), "d", "r") == "running"
    assert compat.run_state(raising(404), "d", "r") is None


@pytest.mark.parametrize("status", [500, None])
def test_an_error_of_airflow_other_than_not_found_does_not_count_as_a_deleted_run(status: int | None) -> None:
    with pytest.raises(AirflowRuntimeError):
        compat.run_state(raising(status), "d", "r")


@pytest.mark.parametrize("question", ["get_dagrun_state", "get_task_states", "xcom_pull"])
def test_a_running_task_can_query_airflow(question: str) -> None:
    assert callable(getattr(RuntimeTaskInstance, question))


@pytest.mark.parametrize(
    ("try_number", "max_tries", "retry"),
    [
        (1, 3, False),  # first try with retries=3
        (2, 3, True),
        (2, 4, False),  # cleared after one try: max_tries = tries + retries
        (3, 4, True),
        (5, 7, False),  # cleared after four tries
    ],
)
def test_a_retry_of_a_task_is_distinguished_from_a_clear(try_number: int, max_tries: int, retry: bool) -> None:
    assert compat.is_retry(SimpleNamespace(try_number=try_number, max_tries=max_tries), 3) is retry


@pytest.mark.parametrize(
    ("states", "skipped", "by_itself"),
    [
        ({}, ["mapped", "skipped"], None),
        ({"skipped": None, "mapped_0": "up_for_reschedule"}, ["mapped", "skipped"], None),
        ({"skipped": None, "mapped_0": "success", "mapped_1": "running"}, ["skipped"], ["mapped"]),
        ({"skipped": "scheduled", "mapped": None}, ["mapped"], ["skipped"]),
        ({"skipped": "queued", "mapped": "queued"}, ["mapped", "skipped"], None),
    ],
)
def test_skipped_tasks_stay_skipped_after_later_clears_and_running_tasks_skip_themselves(
    states: dict[str, str | None], skipped: list[str], by_itself: list[str] | None
) -> None:
    pushed: dict[str, Any] = {}

    def task_states(task_ids: list[str], **_: Any) -> dict[str, Any]:
        return {"r": {name: state for name, state in states.items() if name.split("_")[0] in task_ids}}

    ti = SimpleNamespace(
        dag_id="d",
        run_id="r",
        map_index=-1,
        get_task_states=task_states,
        xcom_push=lambda key, value: pushed.update({key: value}),
    )
    with DAG("d", schedule=None) as dag:
        work.override(task_id="skipped")(1)
        work.override(task_id="mapped").expand(number=[1, 2])

    class Skipping(SkipMixin):
        task_id = "begin"

    skipping: Any = Skipping
    with pytest.raises(DownstreamTasksSkipped) as told:
        compat.skip_tasks(skipping(), ti, dag.tasks)
    # What the exception names is skipped now, what the XCom names whenever it is cleared.
    assert sorted(told.value.tasks) == sorted(pushed.pop("skipmixin_key")["skipped"]) == skipped
    assert pushed == ({"tx_skips_itself": by_itself} if by_itself else {})


def test_hooks_are_called_for_plain_tasks_and_for_every_mapped_instance() -> None:
    with DAG("d", schedule=None) as dag:
        work(1)
        work.override(task_id="mapped").expand(number=[1, 2])
    hook_up(*dag.tasks)
    mapped: Any = dag.get_task("mapped")
    plain: Any = dag.get_task("work")
    for each in (plain, mapped.unmap({"op_kwargs": {"number": 1}})):
        assert each._pre_execute_hook is before
        assert each._post_execute_hook is after
        assert each.on_failure_callback == each.on_success_callback == each.on_skipped_callback == [ended]
        assert compat.is_airflow_3_2() or each.retry_policy is not None


def test_hooks_of_the_task_author_are_called_after_the_hooks_of_the_package() -> None:
    calls: list[str] = []
    with DAG("d", schedule=None) as dag:
        work.override(pre_execute=lambda context: calls.append("own"), on_failure_callback=ended)(1)
    made: Any = dag.get_task("work")
    compat.add_hooks(
        made,
        before=lambda context: calls.append("ours"),
        after=after,
        succeeded=ended,
        failed=after,  # type: ignore[arg-type]
        skipped=ended,
        final=(FailedBatch,),
    )
    made._pre_execute_hook({})
    assert calls == ["ours", "own"]
    assert made.on_failure_callback == [after, ended]


@pytest.mark.skipif(compat.is_airflow_3_2(), reason="Airflow 3.2 retries after each error")
def test_a_failed_batch_is_not_retried_and_the_retry_policy_of_the_task_handles_other_errors() -> None:
    from airflow.sdk.definitions.retry_policy import RetryAction, RetryDecision, RetryPolicy

    class Own(RetryPolicy):
        def evaluate(self, exception: Any, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
            return RetryDecision.retry()

    def action(policy: Any, error: Exception) -> RetryAction:
        found: RetryAction = policy.evaluate(error, 1, 3).action
        return found

    alone, both = compat.no_retry_after((FailedBatch,)), compat.no_retry_after((FailedBatch,), Own())
    assert action(alone, FailedBatch()) is action(both, FailedBatch()) is RetryAction.FAIL
    assert action(alone, OSError()) is RetryAction.DEFAULT
    assert action(both, OSError()) is RetryAction.RETRY


def test_mapped_tasks_and_tasks_in_mapped_groups_are_recognized() -> None:
    @task_group
    def part(number: int) -> None:
        work.override(task_id="inner")(number)

    with DAG("d", schedule=None) as dag:
        work(1)
        work.override(task_id="mapped").expand(number=[1, 2])
        part.expand(number=[1, 2])
    found = {each.task_id: compat.is_mapped(each) for each in dag.tasks}
    assert found == {"work": False, "mapped": True, "part.inner": True}


def test_a_dag_with_hooks_is_serialized_identically_each_time_it_is_parsed() -> None:
    def parse() -> Any:
        with DAG("d", schedule=None) as dag:
            work.override(pre_execute=own_before)(1)
            work.override(task_id="mapped", pre_execute=own_before).expand(number=[1, 2])
        hook_up(*dag.tasks)
        return DagSerialization.to_dict(dag)

    assert parse() == parse()
    assert " at 0x" not in str(parse())


def test_a_value_that_is_not_json_has_the_same_canonical_form_before_and_after_it_is_an_xcom() -> None:
    from airflow.sdk.serde import deserialize, serialize

    value: Any = [{"at": dt.datetime(2013, 1, 2, tzinfo=dt.timezone.utc)}]
    assert compat.canonical(value) == compat.canonical(deserialize(serialize(value)))


# --- runs; what Airflow makes of these messages is tested in tests/airflow -----------------------------------------


class Supervisor:
    """Answers messages by their type: with a list one after the other, and an ErrorResponse is raised."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[Any] = []

    def send(self, message: Any) -> Any:
        self.asked.append(message)
        answer = self.answers[message.type]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, AirflowRuntimeError):
            raise answer
        return answer

    async def asend(self, message: Any) -> Any:
        return self.send(message)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    made = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    return made


def refusal(status: int | None, **detail: Any) -> AirflowRuntimeError:
    return AirflowRuntimeError(
        ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": status, **detail})
    )


def kinds(union: Any) -> set[type]:
    return set(get_args(get_args(union)[0]))


def test_a_task_may_send_every_supervisor_message_and_a_trigger_only_queries_about_states() -> None:
    both = {comms.GetDagRunState, comms.GetDRCount, comms.GetTaskStates}
    assert kinds(comms.ToSupervisor) >= both | {comms.TriggerDagRun, comms.GetDag}
    # When a trigger may ask for a DAG, `is_paused_async` can be more than None.
    assert kinds(ToTriggerSupervisor) & (both | {comms.TriggerDagRun, comms.GetDag}) == both
    assert asyncio.run(compat.is_paused_async("d")) is None


def test_a_new_run_is_started_without_a_logical_date_and_an_existing_run_is_not_started(supervisor: Supervisor) -> None:
    exists = ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS)
    supervisor.answers["TriggerDagRun"] = [comms.OKResponse(ok=True), exists]
    assert compat.start_run("d", "r", conf={"a": 1}) is True
    assert compat.start_run("d", "r", reset=True) is False
    first, second = supervisor.asked
    assert (first.dag_id, first.run_id, first.logical_date, first.conf) == ("d", "r", None, {"a": 1})
    assert (first.reset_dag_run, second.reset_dag_run, second.conf) == (False, True, {})


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (
            refusal(404, message="Server returned error", detail={"detail": {"message": "no such\nDAG"}}),
            404,
            "no such DAG",
        ),
        (refusal(404, message="Not Found", detail={"detail": "Not Found"}), 404, "Not Found"),
        (refusal(None, message="connection refused"), None, "connection refused"),
        (AirflowRuntimeError(ErrorResponse()), None, "GENERIC_ERROR: None"),
    ],
)
def test_the_error_for_a_run_that_airflow_refuses_to_start_has_one_line(
    supervisor: Supervisor, error: AirflowRuntimeError, status: int | None, reason: str
) -> None:
    supervisor.answers["TriggerDagRun"] = error
    with pytest.raises(compat.RunNotStarted) as caught:
        compat.start_run("d", "r")
    assert str(pickle.loads(pickle.dumps(caught.value))) == f"Run 'r' of DAG 'd' was not started: {reason}"
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("reason", "forbidden"),
    [("value_error", True), ("denied_run_type", True), ("import_errors", False), ("not_found", False), (None, False)],
)
def test_a_run_that_its_dag_does_not_allow_is_distinguished_from_a_missing_dag(
    supervisor: Supervisor, reason: str | None, forbidden: bool
) -> None:
    supervisor.answers["TriggerDagRun"] = refusal(400, detail={"detail": {"reason": reason, "message": "no"}})
    with pytest.raises(compat.RunNotStarted) as caught:
        compat.start_run("d", "r")
    assert caught.value.forbidden is forbidden


@pytest.mark.parametrize(("state", "resets"), [("restarting", 2), ("queued", 1), (None, 1)])
def test_a_dead_run_is_reset_again_while_airflow_waits_for_its_process(
    supervisor: Supervisor, state: str | None, resets: int
) -> None:
    supervisor.answers.update(
        GetDagRunState=comms.DagRunStateResult(state=DagRunState.RUNNING),
        TriggerDagRun=comms.OKResponse(ok=True),
        GetTaskStates=comms.TaskStatesResult(task_states={"r": {"begin": "success", "work": state}}),
    )
    assert compat.restart_dead("d", "r") is True
    assert [each.reset_dag_run for each in supervisor.asked if each.type == "TriggerDagRun"] == [True] * resets


def test_a_dead_run_that_was_deleted_is_not_created(supervisor: Supervisor) -> None:
    supervisor.answers["GetDagRunState"] = refusal(404)
    assert compat.restart_dead("d", "r") is False


def test_a_dag_that_airflow_does_not_know_has_no_paused_state(supervisor: Supervisor) -> None:
    supervisor.answers["GetDag"] = [SimpleNamespace(is_paused=True), SimpleNamespace(is_paused=False), refusal(404)]
    assert [compat.is_paused("d") for _ in range(3)] == [True, False, None]
    assert "is_paused" in comms.DagResult.model_fields


def test_running_runs_of_a_dag_are_counted(supervisor: Supervisor) -> None:
    supervisor.answers["GetDRCount"] = comms.DRCount(count=3)
    assert compat.running_runs("d") == asyncio.run(compat.running_runs_async("d")) == 3
    assert [each.states for each in supervisor.asked] == [["running"], ["running"]]


def test_a_trigger_reads_the_state_of_every_run_and_no_state_for_a_deleted_run(supervisor: Supervisor) -> None:
    running = comms.DagRunStateResult(state=DagRunState.RUNNING)
    supervisor.answers["GetDagRunState"] = [running, refusal(404)]
    assert asyncio.run(compat.run_states("d", ["a", "b", "a"])) == {"a": "running", "b": None}
    supervisor.answers["GetDagRunState"] = [running, refusal(500)]
    with pytest.raises(AirflowRuntimeError):
        asyncio.run(compat.run_states("d", ["a", "b"]))


@pytest.mark.parametrize("dated", [True, False])
def test_the_run_info_has_the_dates_of_its_run_if_the_run_has_dates(dated: bool) -> None:
    day = dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc) if dated else None
    run = DagRun.model_validate(
        {
            "dag_id": "d",
            "run_id": "r",
            "logical_date": day,
            "data_interval_start": day,
            "data_interval_end": day and day + dt.timedelta(days=1),
            "run_after": dt.datetime.now(dt.timezone.utc),
            "start_date": None,
            "end_date": None,
            "run_type": "backfill",
            "state": "running",
            "consumed_asset_events": [],
            "partition_key": "p" if dated else None,
            **({} if compat.is_airflow_3_2() else {"partition_date": day}),
            "conf": {"a": 1} if dated else None,
        }
    )
    partition = None if compat.is_airflow_3_2() else day
    found = compat.run_info({"dag_run": run})
    assert (found.run_id, found.run_type) == ("r", "backfill")
    if day:
        assert found == compat.RunInfo("r", "backfill", day, day + dt.timedelta(days=1), day, "p", partition, {"a": 1})
    else:
        assert found == compat.RunInfo("r", "backfill", None, None, None, None, None, {})


@pytest.mark.parametrize(("run_type", "is_told"), [("manual", True), ("backfill", True), ("scheduled", False)])
def test_a_run_that_its_schedule_has_not_created_has_its_start_time_in_the_run_info(
    run_type: str, is_told: bool
) -> None:
    now = dt.datetime.now(dt.timezone.utc)
    fields: dict[str, Any] = dict.fromkeys(
        ("data_interval_start", "data_interval_end", "logical_date", "partition_key", "partition_date", "conf")
    )
    run = SimpleNamespace(run_id="r", run_type=run_type, start_date=now, **fields)
    assert compat.run_info({"dag_run": run}).started == (now if is_told else None)


def test_test_runs_of_airflow_commands_are_distinguished_from_other_runs() -> None:
    assert {"dag_id", "run_id", "triggering_user_name"} <= DagRun.model_fields.keys()
    assert _generate_temporary_run_id().startswith("__airflow_temporary_run_")
    assert 'triggering_user_name="dag_test"' in inspect.getsource(DAG.test)
    assert InProcessSupervisorComms.__name__ == "InProcessSupervisorComms"
    assert not compat.is_test_run()  # nothing runs
    for run_id, user, test in (
        ("manual__1", "root", False),
        ("manual__1", "dag_test", True),
        ("__airflow_temporary_run_1", "root", True),
    ):
        run: Any = SimpleNamespace(run_id=run_id, triggering_user_name=user)
        with set_current_context({"dag_run": run}):
            assert compat.is_test_run() is test
    with set_supervisor_comms(InProcessSupervisorComms(supervisor=None)):  # type: ignore[arg-type]
        assert compat.is_test_run()


def test_every_task_state_except_success_is_live_or_failed_or_left_out() -> None:
    for state in (None, *TaskInstanceState):
        found = [compat.is_live(state), compat.is_failed(state), compat.is_left_out(state)]
        assert sum(found) == (state != TaskInstanceState.SUCCESS), state


@pytest.mark.skipif(compat.is_airflow_3_2(), reason="Airflow 3.2 calls it deferred")
def test_a_task_that_waits_for_human_input_is_live() -> None:
    assert compat.is_live("awaiting_input")


def test_the_package_lists_the_same_run_states_and_task_states_as_airflow() -> None:
    assert State.unfinished_dr_states == LIVE_RUN_STATES
    assert State.finished_dr_states == set(RUN_ENDED)
    assert State.finished == set(TASK_ENDED)


def test_the_trigger_rules_decide_which_tasks_airflow_skips_together_with_a_skipped_task() -> None:
    with DAG("d", schedule=None) as dag:
        first, other = work.override(task_id="first")(1), work.override(task_id="other")(1)
        [first, other] >> work.override(task_id="all")(1) >> work.override(task_id="next")(1)
        [first, other] >> work.override(task_id="one", trigger_rule="none_failed_min_one_success")(1)
        first >> work.override(task_id="only", trigger_rule="none_failed_min_one_success")(1)
        first >> work.override(task_id="done", trigger_rule="all_done")(1)
    assert compat.skipped_along(dag, {"first"}) == {"first", "all", "next", "only"}
