"""What `compat` takes for granted of this version of Airflow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task, task_group
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.definitions.retry_policy import RetryAction, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowRuntimeError, DownstreamTasksSkipped, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.serialization.serialized_objects import DagSerialization

from airflow_tx import compat
from airflow_tx.errors import FailedBatch


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


def test_the_state_of_a_run_is_text_and_a_deleted_run_has_none() -> None:
    assert compat.run_state(SimpleNamespace(get_dagrun_state=lambda **_: "running"), "d", "r") == "running"
    assert compat.run_state(raising(404), "d", "r") is None


@pytest.mark.parametrize("status", [500, None])
def test_an_airflow_that_does_not_answer_is_not_taken_for_a_deleted_run(status: int | None) -> None:
    with pytest.raises(AirflowRuntimeError):
        compat.run_state(raising(status), "d", "r")


@pytest.mark.parametrize("question", ["get_dagrun_state", "get_task_states", "xcom_pull"])
def test_a_running_task_can_ask(question: str) -> None:
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
def test_a_retry_is_told_from_a_clear(try_number: int, max_tries: int, retry: bool) -> None:
    assert compat.is_retry(SimpleNamespace(try_number=try_number, max_tries=max_tries), 3) is retry


def test_skipping_tasks_is_an_exception_and_is_remembered_for_later_clears() -> None:
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(map_index=-1, xcom_push=lambda key, value: pushed.update({key: value}))
    with DAG("d", schedule=None):
        made: Any = work.override(task_id="skipped")(1)

    class Skipping(SkipMixin):
        task_id = "begin"

    skipping: Any = Skipping
    with pytest.raises(DownstreamTasksSkipped):
        compat.skip_tasks(skipping(), ti, [made.operator])
    assert pushed == {"skipmixin_key": {"skipped": ["skipped"]}}


def test_hooks_reach_plain_tasks_and_every_instance_of_a_mapped_one() -> None:
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
        assert each.retry_policy is not None


def test_what_the_tasks_author_gave_runs_after_ours() -> None:
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


def test_a_failed_batch_is_not_retried_and_other_errors_are_left_to_the_tasks_own_policy() -> None:
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


def test_mapping_is_seen_in_tasks_and_in_groups_around_them() -> None:
    @task_group
    def part(number: int) -> None:
        work.override(task_id="inner")(number)

    with DAG("d", schedule=None) as dag:
        work(1)
        work.override(task_id="mapped").expand(number=[1, 2])
        part.expand(number=[1, 2])
    found = {each.task_id: compat.is_mapped(each) for each in dag.tasks}
    assert found == {"work": False, "mapped": True, "part.inner": True}


def test_a_dag_with_hooks_is_serialized_the_same_at_every_parse() -> None:
    def parse() -> Any:
        with DAG("d", schedule=None) as dag:
            work.override(pre_execute=own_before)(1)
            work.override(task_id="mapped", pre_execute=own_before).expand(number=[1, 2])
        hook_up(*dag.tasks)
        return DagSerialization.to_dict(dag)

    assert parse() == parse()
    assert " at 0x" not in str(parse())


def test_a_value_that_is_no_json_has_one_form_before_and_after_its_way_through_an_xcom() -> None:
    import datetime as dt

    from airflow.sdk.serde import deserialize, serialize

    value: Any = [{"at": dt.datetime(2013, 1, 2, tzinfo=dt.timezone.utc)}]
    assert compat.canonical(value) == compat.canonical(deserialize(serialize(value)))
