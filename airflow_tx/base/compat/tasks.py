"""How a DAG file defines tasks, and how Airflow executes them. Part of `compat`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_tx.base.compat.components import is_airflow_3_2
from airflow_tx.base.compat.runs import INTERVAL_KEYS, first_intervals, running_runs, text

# --- tasks --------------------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    Task = BaseOperator | MappedOperator


def pushes_xcom(task: Any) -> bool:
    """Whether the result of a task becomes an XCom."""
    return bool(
        getattr(task, "partial_kwargs", {}).get("do_xcom_push", getattr(task, "do_xcom_push", True))
    )


def argument_of(task: Any, name: str) -> Any:
    """Return an argument of a task, or of each instance of a mapped task. Return None if the argument is not set."""
    found = getattr(task, name, None)
    return getattr(task, "partial_kwargs", {}).get(name) if found is None else found


def is_mapped(task: Task) -> bool:
    """Whether the task has instances with map indexes. The task itself or a group around it may be mapped."""
    return bool(task.is_mapped) or next(iter(task.iter_mapped_task_groups()), None) is not None


_PLAIN_FUNCTIONS = ("PythonOperator", "_PythonDecoratedOperator")
"""The Airflow operators that call the function in the task's process and push its result as an XCom."""
DECORATED_TASKS = (
    "_BranchPythonDecoratedOperator",
    "_PythonDecoratedOperator",
    "_PythonExternalDecoratedOperator",
    "_PythonVirtualenvDecoratedOperator",
    "_ShortCircuitDecoratedOperator",
)
"""The operator classes that Airflow creates for `@task`."""


def put_into_module(task: Any, module: str) -> None:
    """Set the module name in the serialized form of a `@task`.

    The links of the plugin recognise the task by this name.
    """
    if task.task_type in DECORATED_TASKS:
        task._task_module = module


def add_hooks(
    task: Task,
    *,
    before: Callable[[Any], None] | None = None,
    after: Callable[[Any, Any], None] | None = None,
    final: tuple[type[BaseException], ...] = (),
    succeeded: Callable[[Any], None] | None = None,
    failed: Callable[[Any], None] | None = None,
    skipped: Callable[[Any], None] | None = None,
) -> None:
    """Add hooks of this package to a task. They run before the hooks of the DAG's author.

    A second call adds only missing hooks.

    :param before: function that is called with the context before the task is executed.
    :param after: function that is called with the context and the result, before the result becomes an XCom. It is not
        called if a task succeeds by raising an exception, as a branch does.
    :param final: exceptions after which the task is not retried. Airflow 3.2 still retries the task.
    :param succeeded: function that is called with the context after Airflow has recorded the success of the task.
    :param failed: function that is called with the context after the task has failed and will not be retried.
    :param skipped: function that is called with the context after the task has skipped itself.
    """
    options = _Options(task)
    for option, hook in (("pre_execute", before), ("post_execute", after)):
        if hook is not None:
            theirs = options.get(option)
            if hook not in (theirs, theirs.first if isinstance(theirs, _Both) else None):
                options.put(option, hook if theirs is None else _Both(hook, theirs))
    for callback, ours in (("success", succeeded), ("failure", failed), ("skipped", skipped)):
        if ours is not None:
            name = f"on_{callback}_callback"
            theirs = [each for each in _as_list(options.get(name)) if each is not ours]
            options.put(name, [ours, *theirs])
    if final and not is_airflow_3_2() and not _is_ours(options.get("retry_policy")):
        options.put("retry_policy", no_retry_after(final, options.get("retry_policy")))


def make_log_fit() -> None:
    """Allow unpaired surrogates in the task log. Otherwise they would raise an error that ends the process."""
    import structlog

    processors: Any = structlog.get_config()["processors"]
    if _fit_event not in processors:
        processors.insert(-1, _fit_event)  # structlog's last processor writes the log line


def _fit_event(logger: Any, method: str, event: Any) -> Any:
    return _fit(event)


def _fit(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_fit(name): _fit(each) for name, each in value.items()}
    return [_fit(each) for each in value] if isinstance(value, (list, tuple)) else value


_after_policies: set[Callable[[Any], None]] = set()


def policies_are_over(dag: Any) -> None:
    """Pass a DAG to the functions that `after_policies` registered, after all cluster policies have changed the DAG."""
    for changed in _after_policies:
        changed(dag)


def after_policies(changed: Callable[[Any], None]) -> None:
    """Register a function that is called with each DAG that Airflow reads.

    The cluster policies have already changed its tasks.

    :param changed: function that is called with the DAG. Its error becomes the import error of the DAG file.
    """
    _after_policies.add(changed)
    # Only a process that reads DAG files uses policies, and it has imported this module. Scripts
    # have no overhead.
    settings = sys.modules.get("airflow.settings")
    if settings is None:
        return
    from airflow.policies import hookimpl

    class LastPolicy:
        @hookimpl(wrapper=True, tryfirst=True)
        def task_policy(self, task: Any) -> Iterator[None]:
            yield
            if task is task.dag.tasks[-1]:
                policies_are_over(task.dag)

    policies = settings.get_policy_plugin_manager()
    if not policies.has_plugin(__name__):
        policies.register(LastPolicy(), __name__)


def wrap_function(
    task: Task, wrap: Callable[[Callable[..., Any], bool], Callable[..., Any]]
) -> None:
    """Wrap the function of a plain `@task`. Other operators may run their function in another process.

    :param wrap: function that is called with the task's function. Its second argument is whether each entry of a
        returned mapping becomes a separate XCom.
    """
    operator: Any = task.operator_class if task.is_mapped else type(task)
    if operator.__name__ not in _PLAIN_FUNCTIONS or not pushes_xcom(task):
        return
    # This also changes a mapped task, which runs this function.
    if hasattr(task, "python_callable"):
        task.python_callable = wrap(task.python_callable, bool(task.multiple_outputs))  # type: ignore[union-attr]
        return
    options = task.partial_kwargs  # type: ignore[union-attr]
    multiple = bool(options.get("multiple_outputs"))
    options["python_callable"] = wrap(options["python_callable"], multiple)


def no_retry_after(final: tuple[type[BaseException], ...], other: Any = None) -> Any:
    """Create a retry policy that fails a task immediately on an exception in `final`, and otherwise follows `other`."""
    from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

    class NoRetryAfter(RetryPolicy):
        def evaluate(
            self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
        ) -> RetryDecision:
            if isinstance(exception, final):
                return RetryDecision.fail(str(exception))
            if other is None:
                return RetryDecision.default()
            decision: RetryDecision = other.evaluate(exception, try_number, max_tries, context)
            return decision

        def serialize(self) -> dict[str, Any]:
            return {"final": [each.__name__ for each in final]}

        def __repr__(self) -> str:
            return f"NoRetryAfter({', '.join(each.__name__ for each in final)})"

    return NoRetryAfter()


def empty_interval(dag: Any) -> str | None:
    """Return the name of a DAG's timetable if its data intervals are empty, as with `@daily` in Airflow 3.

    Only the first two intervals are checked. Return None if they are not empty.
    """
    first = first_intervals(dag.timetable, dag.start_date or datetime.now(timezone.utc), 2)
    is_empty = any(each.start == each.end for each in first)
    return type(dag.timetable).__name__ if is_empty else None


def give_intervals(dag: Any) -> None:
    """Replace a plain schedule of a DAG with a timetable that has the data intervals of Airflow 2.

    A plain schedule is `@daily`, a cron expression or a timedelta. The runs start at the same times, and the interval
    of a run ends when the run starts. A timetable of the DAG's author is not changed.
    """
    from airflow.sdk import CronDataIntervalTimetable, DeltaDataIntervalTimetable

    if empty_interval(dag) is None or dag.schedule in ("@once", "@continuous"):
        return
    if isinstance(dag.schedule, str):
        dag.timetable = CronDataIntervalTimetable(dag.schedule, timezone=dag.timezone)
    elif isinstance(dag.schedule, timedelta):
        dag.timetable = DeltaDataIntervalTimetable(dag.schedule)


def downstream(task: Task) -> Iterator[str]:
    return iter(sorted(task.get_flat_relative_ids(upstream=False)))


def upstream(task: Task) -> frozenset[str]:
    return frozenset(task.get_flat_relative_ids(upstream=True))


AFTER_SKIPPED = "none_failed_min_one_success"
"""The trigger rule of a task that may follow skipped tasks: no upstream task failed, and at least one succeeded."""
_SKIPPED_WITH_ANY = frozenset({"all_success", "none_skipped"})
_SKIPPED_WITH_ALL = frozenset({AFTER_SKIPPED, "one_success"})


def skipped_along(dag: Any, skipped: Collection[str]) -> frozenset[str]:
    """Return the given skipped tasks, and the tasks that Airflow then skips if all others succeed."""
    found = set(skipped)
    for task in dag.topological_sort():
        before = task.upstream_task_ids
        rule = text(task.trigger_rule)
        any_skipped = rule in _SKIPPED_WITH_ANY and not before.isdisjoint(found)
        all_skipped = rule in _SKIPPED_WITH_ALL and bool(before) and before <= found
        if any_skipped or all_skipped:
            found.add(task.task_id)
    return frozenset(found)


def run_after_skipped(task: Any) -> None:
    """Make a task run even if some of its upstream tasks are skipped."""
    task.trigger_rule = type(task.trigger_rule)(AFTER_SKIPPED)


class _Options:
    """Reads and sets the options of a task. A mapped task passes these options to its instances."""

    _ATTRIBUTES: Mapping[str, str] = {
        "pre_execute": "_pre_execute_hook",
        "post_execute": "_post_execute_hook",
    }

    def __init__(self, task: Any) -> None:
        self._task = task

    def get(self, name: str) -> Any:
        if self._task.is_mapped:
            return self._task.partial_kwargs.get(name)
        return getattr(self._task, self._ATTRIBUTES.get(name, name))

    def put(self, name: str, value: Any) -> None:
        if self._task.is_mapped:
            self._task.partial_kwargs[name] = value
        else:
            setattr(self._task, self._ATTRIBUTES.get(name, name), value)


class _Both:
    """Calls two hooks one after the other.

    The serialized DAG contains the source code of this class, so do not change it.
    """

    def __init__(self, first: Callable[..., None], second: Callable[..., None]) -> None:
        self.first = first
        self.second = second

    def __call__(self, *arguments: Any) -> None:
        self.first(*arguments)
        self.second(*arguments)


_UNDER_WAY = frozenset({"scheduled", "queued", "running", "restarting"})
_SKIPS_ITSELF = "tx_skips_itself"


@dataclass(frozen=True)
class RunInfo:
    """A run as seen by its own tasks.

    :param interval_start: start of the data interval. This date, like the others, is None if the run does not have it.
    :param partition_date: date that identifies a partitioned run, since the partition key may be renamed.
    :param started: start time, or None for a scheduled run and for a trial.
    """

    run_id: str
    run_type: str
    interval_start: datetime | None
    interval_end: datetime | None
    logical_date: datetime | None
    partition_key: str | None
    partition_date: datetime | str | None
    conf: dict[str, Any]
    started: datetime | None = None


def run_info(context: Mapping[str, Any]) -> RunInfo:
    """Describe a task's run from its context. The context lacks the keys of missing dates."""
    run = context["dag_run"]
    by_schedule = text(run.run_type) == "scheduled" or is_test_run()
    return RunInfo(
        run_id=run.run_id,
        run_type=text(run.run_type),
        interval_start=run.data_interval_start,
        interval_end=run.data_interval_end,
        logical_date=run.logical_date,
        partition_key=run.partition_key,
        partition_date=None if is_airflow_3_2() else run.partition_date,
        conf=dict(run.conf or {}),
        started=None if by_schedule else run.start_date,
    )


BACKFILL = "backfill"
RUNNING_KEY = "airflow_tx_running"


def note_running(ti: Any, context: Mapping[str, Any]) -> None:
    """Store the number of active runs when a backfill run starts. The backfill has at least this many run slots."""
    if run_info(context).run_type == BACKFILL:
        before = pull(ti, ti.task_id, RUNNING_KEY) or 0
        ti.xcom_push(key=RUNNING_KEY, value=max(before, running_runs(ti.dag_id)))


def is_live(state: str | None) -> bool:
    """Whether this state means that the task instance has not ended."""
    from airflow.utils.state import State

    return state in State.unfinished


def is_failed(state: str | None) -> bool:
    """Whether this state means that the task instance or an upstream task has failed."""
    from airflow.utils.state import State

    return state in State.failed_states


def is_left_out(state: str | None) -> bool:
    """Whether this state means that the task instance has no output. An earlier try may still have acked."""
    from airflow.utils.state import State

    return state in State.finished - State.failed_states - {State.SUCCESS}


def task_states(ti: Any, task_ids: Collection[str]) -> dict[str, str | None]:
    """Return the states of tasks in the calling task's run. Mapped instances are named `task_<map index>`."""
    found = ti.get_task_states(dag_id=ti.dag_id, task_ids=sorted(task_ids), run_ids=[ti.run_id])
    return {
        name: None if state is None else text(state)
        for name, state in found.get(ti.run_id, {}).items()
    }


def instance_states(
    ti: Any, task_ids: Collection[str], mapped: Collection[str]
) -> dict[tuple[str, int], str | None]:
    """Return the states of all task instances in the calling task's run, by task id and map index (−1 if not mapped).

    A task that Airflow does not report has the state None.

    :param mapped: mapped tasks. Each mapped task needs its own request, since an instance may share its name with
        another task.
    """
    plain = [task for task in task_ids if task not in mapped]
    found = task_states(ti, plain) if plain else {}
    states: dict[tuple[str, int], str | None] = {(task, -1): found.get(task) for task in plain}
    for task in sorted(set(task_ids).intersection(mapped)):
        instances = task_states(ti, [task])
        # A mapped task without instances appears as one instance without an index.
        named = {
            (task, int(name[len(task) + 1 :]) if name != task else -1): each
            for name, each in instances.items()
        }
        states.update(named or {(task, -1): None})
    return states


def is_retry(ti: Any, retries: int) -> bool:
    """Whether Airflow retried this task automatically. It is False for a first try and after a clear.

    A clear sets max_tries to the number of tries so far plus the task's retries. A retry does not change max_tries.
    """
    return bool(ti.try_number - (ti.max_tries - retries) > 1)


def map_index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)


def task_try(ti: Any) -> str:
    """Return a text that identifies a task instance's current try.

    It includes the try number, since a retry may keep the id.
    """
    return f"{ti.id}.{ti.try_number}"


def dag_version(ti: Any) -> str:
    """Return the id of the DAG version of the task instance."""
    return str(ti.dag_version_id)


def pull(ti: Any, task_id: str, key: str = "return_value", index: int = -1) -> Any:
    """Read the XCom of one task instance of this run. Return None if there is no such XCom.

    :param index: map index, or −1 if the task is not mapped.
    """
    return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=None if index < 0 else index)


def is_test_run() -> bool:
    """Whether `airflow tasks test`, `airflow dags test` or `DAG.test()` executes the current task."""
    from airflow.sdk import get_current_context
    from airflow.sdk.execution_time import task_runner

    if type(getattr(task_runner, "SUPERVISOR_COMMS", None)).__name__ == "InProcessSupervisorComms":
        return True
    try:
        run = get_current_context()["dag_run"]
    except RuntimeError:
        return False  # no task is running
    # A scheduler that runs beside the command may execute its tasks like other tasks.
    return run.triggering_user_name == "dag_test" or run.run_id.startswith(
        "__airflow_temporary_run_"
    )


def replace_test(dag: Any, made: Callable[..., Any]) -> None:
    """Replace `airflow dags test` and `DAG.test()` with a function. Its first argument is Airflow's own method."""
    dag.test = partial(made, type(dag).test.__get__(dag), dag)


def skip_tasks(operator: Any, ti: Any, tasks: Collection[Any]) -> NoReturn:
    """End `operator` successfully and skip `tasks`.

    They are skipped again whenever they are cleared without `operator`. A task that Airflow has already started skips
    itself. See `is_skipped_by`. If the scheduler found a running task that must be skipped, it would consider the run
    deadlocked and fail it.

    :param operator: operator that inherits from SkipMixin.
    """
    found = instance_states(
        ti, [task.task_id for task in tasks], [task.task_id for task in tasks if is_mapped(task)]
    )
    under_way = {task for (task, _), state in found.items() if state in _UNDER_WAY}
    others = [task for task in tasks if task.task_id not in under_way]
    if others and under_way:
        ti.xcom_push(key=_SKIPS_ITSELF, value=sorted(under_way))
        tasks = others
    operator.skip(ti, tasks)
    raise AssertionError("SkipMixin.skip returned without raising DownstreamTasksSkipped")


def is_skipped_by(ti: Any, task_id: str) -> bool:
    """Whether `task_id` is skipped, or has skipped the calling task with `skip_tasks`.

    Airflow itself does not skip a task that is already running.
    """
    from airflow.sdk.bases.skipmixin import XCOM_SKIPMIXIN_KEY, XCOM_SKIPMIXIN_SKIPPED

    skipped = pull(ti, task_id, XCOM_SKIPMIXIN_KEY)
    if isinstance(skipped, dict):
        return ti.task_id in (
            *skipped.get(XCOM_SKIPMIXIN_SKIPPED, ()),
            *(pull(ti, task_id, _SKIPS_ITSELF) or ()),
        )
    return task_states(ti, [task_id]).get(task_id) == "skipped"


def canonical(value: Any) -> Any:
    """Return the JSON form that a value has after a round trip through XCom. Equal values have equal texts."""
    from airflow.sdk.serde import deserialize, serialize

    # The first round trip may change a type, such as a datetime's zone. A second one would not.
    return serialize(deserialize(serialize(value)))


def masked(text: str) -> str:
    """Mask the secrets that this process got from Airflow, as Airflow's logs do."""
    from airflow._shared.secrets_masker import redact as redact_there
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    # The Task SDK and the rest of Airflow each mask only the secrets that they have read
    # themselves.
    return str(redact_there(redact(text)))


# --- metrics ------------------------------------------------------------------------------------------------------
# Metrics. They are sent like Airflow's own, as configured in [metrics].


class MetricKind(str, Enum):
    """How the values of a metric are aggregated."""

    COUNTER = "counter"
    GAUGE = "gauge"
    TIMER = "timer"


def sends_metrics() -> bool:
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

    return (_chosen_sender() or _configured_sender()) is not NoStatsLogger


def _stats() -> Any:
    """Return the object that sends this process's metrics: a module, or in Airflow 3.2 a class."""
    from airflow.sdk.observability import stats

    return stats.Stats if is_airflow_3_2() else stats


def _chosen_sender() -> Any:
    """Return the metrics factory that Airflow selected when the process started.

    Return None if it has selected none.
    """
    from airflow.sdk._shared.observability.metrics import stats as own

    return _stats().factory if is_airflow_3_2() else own._factory


def _configured_sender() -> Any:
    """Select the metrics factory that Airflow's configuration defines."""
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    return get_stats_factory(*([_stats()] if is_airflow_3_2() else []))


def send_metric(
    kind: MetricKind, name: str, value: float, *, tags: Mapping[str, str], named: str
) -> None:
    """Send a value in both forms of Airflow's own metrics.

    For servers without tags, the second form has a tag in its name.

    :param value: value of the metric, which is in seconds for a timer.
    :param named: tag that is part of the second name. The option legacy_names_on of [metrics] turns the second name
        off.
    """
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability.stats import normalize_name_for_stats

    if is_test_run():
        return  # dashboards must not count a trial as a transaction
    # Airflow does not initialise metrics in the triggerer and the command line.
    if _chosen_sender() is None:
        prepare_metrics()
    _send(kind, name, value, dict(tags))
    if conf.getboolean("metrics", "legacy_names_on", fallback=True):
        # A dot in a value would add a level to the name.
        last = normalize_name_for_stats(tags[named].replace(".", "__"), log_warning=False)
        _send(
            kind, f"{name}.{last}", value, {tag: text for tag, text in tags.items() if tag != named}
        )


def _send(kind: MetricKind, name: str, value: float, tags: dict[str, str]) -> None:
    stats = _stats()
    if kind is MetricKind.COUNTER:
        stats.incr(name, int(value), tags=tags)
    elif kind is MetricKind.TIMER:
        stats.timing(name, timedelta(seconds=value), tags=tags)
    else:
        stats.gauge(name, value, tags=tags)


def prepare_metrics() -> None:
    """Prepare a process to send metrics with Airflow's current configuration."""
    from airflow.sdk.configuration import conf

    legacy = conf.getboolean("metrics", "legacy_names_on", fallback=True)
    option = {} if is_airflow_3_2() else {"export_legacy_names": legacy}
    _stats().initialize(factory=_configured_sender(), **option)


# --- functions ----------------------------------------------------------------------------------------------------
# Task functions that another process may call.


_BRACES = ("{{", "{%", "{#")
_PLAIN: Mapping[str, Any] = {
    "trigger_rule": "all_success",
    "pool": "default_pool",
    "queue": "default",
    "executor": None,
    "run_as_user": None,
    "depends_on_past": False,
    "wait_for_downstream": False,
    "is_setup": False,
    "is_teardown": False,
    "inlets": [],
    "outlets": [],
    "resources": None,
    "max_active_tis_per_dag": None,
    "max_active_tis_per_dagrun": None,
}


@dataclass(frozen=True)
class TaskFunction:
    """The function of a `@task`, with its arguments from the DAG file.

    :param arguments: positional and keyword arguments. Results of other tasks are XComArgs.
    :param multiple: whether each entry of a returned mapping also becomes a separate XCom.
    :param pushes: whether the result becomes an XCom.
    :param dates: the keys of the context that the function takes as arguments.
    :param timeout: maximum number of seconds that the function may take, or None for no limit.
    """

    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    multiple: bool
    pushes: bool
    timeout: float | None
    dates: frozenset[str] = frozenset()


def task_function(task: Any, *, dated: bool = False) -> TaskFunction:
    """Return the task's function if any process can call it.

    :param dated: whether the other process can pass a run's dates to the function.
    :raises ValueError: the function needs Airflow. The message gives the reason.
    """
    from airflow.providers.standard.decorators.python import _PythonDecoratedOperator
    from airflow.providers.standard.operators.python import PythonOperator

    if is_mapped(task):
        raise ValueError("it is mapped")
    if type(task) not in (_PythonDecoratedOperator, PythonOperator):
        raise ValueError(f"it is a {type(task).__name__}, not a plain @task function")
    check_plain(task)
    if task.is_async:
        raise ValueError("its function is async")
    if task.templates_dict:
        raise ValueError("it has a templates_dict")
    known = (
        INTERVAL_KEYS.intersection(inspect.signature(task.python_callable).parameters)
        if dated
        else frozenset()
    )
    _check_parameters(task, known)
    arguments = (tuple(task.op_args), dict(task.op_kwargs))
    check_argument(arguments)
    multiple = bool(task.multiple_outputs)
    pushes = pushes_xcom(task)
    return TaskFunction(
        task.python_callable,
        arguments,
        multiple,
        pushes,
        time_allowed(task),
        known - arguments[1].keys(),
    )


def time_allowed(task: Any) -> float | None:
    """Return the maximum number of seconds that a task may take, or None for no limit."""
    return None if task.execution_timeout is None else float(task.execution_timeout.total_seconds())


def check_plain(task: Any, *, commits: bool = False) -> None:
    """Raise an error if a task has an option for which Airflow does more than execute the task.

    :param commits: whether the task is a committer. This package sets the trigger rule of a committer.
    :raises ValueError: the task has such an option. The message names the option.
    """
    expected = {**_PLAIN, "trigger_rule": AFTER_SKIPPED} if commits else _PLAIN
    for option, plain in expected.items():
        value = getattr(task, option)
        if getattr(value, "value", value) != plain:
            raise ValueError(f"it has {option} = {getattr(value, 'value', value)!r}")
    for when in ("execute", "success", "skipped"):
        if any(not _is_ours(each) for each in _as_list(getattr(task, f"on_{when}_callback"))):
            raise ValueError(f"it has an on_{when}_callback")
    for option, hook in (
        ("pre_execute", task._pre_execute_hook),
        ("post_execute", task._post_execute_hook),
    ):
        if isinstance(hook, _Both) or (hook is not None and not _is_ours(hook)):
            raise ValueError(f"it has {option}")


def has_callbacks(dag: Any) -> bool:
    """Whether the DAG author has defined a callback for successful runs."""
    return bool(dag.has_on_success_callback)


def resolved(value: Any, read: Callable[[str, str], Any]) -> Any:
    """Replace task outputs in an argument with their values.

    :param read: function that returns a value for (task id, name).
    """
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    if isinstance(value, PlainXComArg):
        return read(value.operator.task_id, value.key)
    if isinstance(value, dict):
        return {key: resolved(each, read) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(resolved(each, read) for each in value)
    return value


def as_xcom(value: Any) -> Any:
    """Return the stored form of a value, which `from_xcom` restores as a new object."""
    from airflow.sdk.serde import serialize

    return serialize(value)


def from_xcom(stored: Any) -> Any:
    """Restore the value from the stored form that `as_xcom` returned."""
    from airflow.sdk.serde import deserialize

    return deserialize(stored)


class _NoContext(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        raise LookupError(
            f"there is no {key!r}: it belongs to the context of a DAG run, and there is no run"
        )

    def __bool__(self) -> bool:
        return True


@contextmanager
def without_context(known: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Make each access to the task context fail within the `with` block.

    :param known: keys of the context that are still available.
    """
    from airflow.sdk.execution_time.context import set_current_context

    with set_current_context(_NoContext(known)):  # type: ignore[arg-type]
        yield


def time_limit(seconds: float, reason: str) -> AbstractContextManager[None]:
    """Raise AirflowTaskTimeout (not an `Exception`) in the `with` block after this time.

    This works only in the main thread.

    :param reason: message of the error.
    """
    from airflow.sdk.execution_time.timeout import timeout

    limit: AbstractContextManager[None] = timeout(seconds, reason)  # type: ignore[no-untyped-call]
    return limit


def _check_parameters(task: Any, known: Collection[str]) -> None:
    from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

    for name, parameter in inspect.signature(task.python_callable).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise ValueError(
                f"its function has the parameter **{name}, which receives the context of the run"
            )
        if name in KNOWN_CONTEXT_KEYS and name not in known:
            raise ValueError(
                f"its function has the parameter {name!r}, which comes from the context of the run"
            )


def check_argument(value: Any) -> None:
    """Raise an error if an argument contains anything other than constants and task results.

    :raises ValueError: the argument is refused. The message names it.
    """
    from airflow.sdk.definitions._internal.mixins import ResolveMixin
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    if isinstance(value, str) and any(braces in value for braces in _BRACES):
        raise ValueError(f"its argument {value[:60]!r} is a template")
    if (isinstance(value, ResolveMixin) and not isinstance(value, PlainXComArg)) or hasattr(
        value, "template_fields"
    ):
        raise ValueError(f"its argument is a {type(value).__name__}")
    for each in (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, (list, tuple, set))
        else ()
    ):
        check_argument(each)


def _as_list(callbacks: Any) -> list[Any]:
    return (
        list(callbacks)
        if isinstance(callbacks, (list, tuple))
        else [callbacks]
        if callbacks
        else []
    )


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("airflow_tx.")


@contextmanager
def dated_as_scheduled() -> Iterator[None]:
    """Set the logical date of this process's tasks to their data interval's start, as in a scheduled run.

    `DAG.test` uses the date of the test, which is the end of the interval.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    before = RuntimeTaskInstance.get_template_context

    def dated(instance: Any) -> Any:
        run = instance._ti_context_from_server and instance._ti_context_from_server.dag_run
        if run and run.logical_date and run.data_interval_start:
            run.logical_date = run.data_interval_start
        return before(instance)

    RuntimeTaskInstance.get_template_context = dated  # type: ignore[method-assign]
    try:
        yield
    finally:
        RuntimeTaskInstance.get_template_context = before  # type: ignore[method-assign]
