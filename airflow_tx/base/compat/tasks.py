"""The part of `compat` that is about tasks: as a DAG file makes them, and as they run."""

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
    """Whether what a task returns becomes an XCom."""
    return bool(
        getattr(task, "partial_kwargs", {}).get("do_xcom_push", getattr(task, "do_xcom_push", True))
    )


def argument_of(task: Any, name: str) -> Any:
    """Read what a task is given, or each instance of a mapped one; None: nothing."""
    found = getattr(task, name, None)
    return getattr(task, "partial_kwargs", {}).get(name) if found is None else found


def is_mapped(task: Task) -> bool:
    """Whether the task has instances with map indexes, by its own mapping or by a group around it."""
    return bool(task.is_mapped) or next(iter(task.iter_mapped_task_groups()), None) is not None


_PLAIN_FUNCTIONS = ("PythonOperator", "_PythonDecoratedOperator")
"""What Airflow calls the classes whose function is called in the process of the task, and whose result is an XCom."""
DECORATED_TASKS = (
    "_BranchPythonDecoratedOperator",
    "_PythonDecoratedOperator",
    "_PythonExternalDecoratedOperator",
    "_PythonVirtualenvDecoratedOperator",
    "_ShortCircuitDecoratedOperator",
)
"""What Airflow calls the classes behind `@task`."""


def put_into_module(task: Any, module: str) -> None:
    """Let the serialized form of a `@task` name another module: by that a plugin's links know it from others."""
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
    """Let functions of ours run around a task, before the functions of its author.

    A second call adds them only where they are no more.

    :param before: called with the context, before the task is executed.
    :param after: called with the context and the result, before the result becomes an XCom; not for a task that ends
        by an exception although it succeeds, such as a branch.
    :param final: exceptions after which the task is not retried. Airflow 3.2 retries after them, too.
    :param succeeded: called with the context once Airflow knows that the task has succeeded.
    :param failed: called with the context once the task has failed and is not retried.
    :param skipped: called with the context once the task has skipped itself.
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
    """Let the log of a task take half a surrogate pair: Airflow's ends the process by an error that has one."""
    import structlog

    processors: Any = structlog.get_config()["processors"]
    if _fit_event not in processors:
        processors.insert(-1, _fit_event)  # the last one writes the line


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
    """Show a DAG to the functions of `after_policies`: no later line and no policy changes it any more."""
    for changed in _after_policies:
        changed(dag)


def after_policies(changed: Callable[[Any], None]) -> None:
    """Let a function of ours see each DAG that Airflow reads, once the cluster policies have changed all its tasks.

    :param changed: called with the DAG. An error of it becomes the import error of the file.
    """
    _after_policies.add(changed)
    # Only a process that reads DAG files has policies, and it has imported this module: a script pays nothing for it.
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
    """Let a function of ours call the function of a plain `@task`; other operators may run theirs elsewhere.

    :param wrap: called with the function, and whether each entry of a returned mapping becomes an XCom of its own.
    """
    operator: Any = task.operator_class if task.is_mapped else type(task)
    if operator.__name__ not in _PLAIN_FUNCTIONS or not pushes_xcom(task):
        return
    if hasattr(task, "python_callable"):  # also of a mapped one, which runs this one
        task.python_callable = wrap(task.python_callable, bool(task.multiple_outputs))  # type: ignore[union-attr]
        return
    options = task.partial_kwargs  # type: ignore[union-attr]
    multiple = bool(options.get("multiple_outputs"))
    options["python_callable"] = wrap(options["python_callable"], multiple)


def no_retry_after(final: tuple[type[BaseException], ...], other: Any = None) -> Any:
    """A retry policy: fail at once after one of the exceptions `final`, else as `other` says."""
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
    """Name the timetable of a DAG whose runs have a data interval of no length, as `@daily` has in Airflow 3.

    The timetable itself is asked, for the intervals of two runs.
    """
    first = first_intervals(dag.timetable, dag.start_date or datetime.now(timezone.utc), 2)
    is_empty = any(each.start == each.end for each in first)
    return type(dag.timetable).__name__ if is_empty else None


def give_intervals(dag: Any) -> None:
    """Let a plain schedule (`@daily`, a cron expression, a timedelta) have the data intervals of Airflow 2.

    Its runs start at the same moments; each has the interval that ends then. A timetable is not changed.
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
"""The trigger rule of a task that runs beside skipped ones: nothing before it has failed, and one has succeeded."""
_SKIPPED_WITH_ANY = frozenset({"all_success", "none_skipped"})
_SKIPPED_WITH_ALL = frozenset({AFTER_SKIPPED, "one_success"})


def skipped_along(dag: Any, skipped: Collection[str]) -> frozenset[str]:
    """Name the tasks that Airflow skips when these are skipped and all others succeed, these included."""
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
    """Let a task run although some of those before it are skipped."""
    task.trigger_rule = type(task.trigger_rule)(AFTER_SKIPPED)


class _Options:
    """Reads and sets options of a task; a mapped one keeps them for the instances it will make."""

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
    """Two hooks, one after the other. The source text of this class enters the serialized DAG, and is stable."""

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
    """A run as its own tasks know it.

    :param interval_start: of its data interval; None, as the other dates are, if the run has none.
    :param partition_date: what a partitioned run is known by; its key may be given another name.
    :param started: when Airflow has started it, if it was not its schedule that made it, and it is no trial.
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
    """The run in a task's context, which lacks the keys of the dates that the run does not have."""
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
    """Note how many runs are running while a run of a backfill begins: its backfill has at least so many run slots."""
    if run_info(context).run_type == BACKFILL:
        before = pull(ti, ti.task_id, RUNNING_KEY) or 0
        ti.xcom_push(key=RUNNING_KEY, value=max(before, running_runs(ti.dag_id)))


def is_live(state: str | None) -> bool:
    """Whether a task instance in this state has not ended."""
    from airflow.utils.state import State

    return state in State.unfinished


def is_failed(state: str | None) -> bool:
    """Whether a task instance in this state has failed, or one before it has."""
    from airflow.utils.state import State

    return state in State.failed_states


def is_left_out(state: str | None) -> bool:
    """Whether a task instance in this state has no output, even if an earlier try of it acked."""
    from airflow.utils.state import State

    return state in State.finished - State.failed_states - {State.SUCCESS}


def task_states(ti: Any, task_ids: Collection[str]) -> dict[str, str | None]:
    """The states of tasks of the asking task's run; a mapped instance is called `task_<map index>`."""
    found = ti.get_task_states(dag_id=ti.dag_id, task_ids=sorted(task_ids), run_ids=[ti.run_id])
    return {
        name: None if state is None else text(state)
        for name, state in found.get(ti.run_id, {}).items()
    }


def instance_states(
    ti: Any, task_ids: Collection[str], mapped: Collection[str]
) -> dict[tuple[str, int], str | None]:
    """The state of every instance of tasks of the asking task's run, by task id and map index (−1: not mapped).

    A task of which Airflow says nothing has the state None.

    :param mapped: the ones that have map indexes; each is asked for alone, as an instance may be called as a task is.
    """
    plain = [task for task in task_ids if task not in mapped]
    found = task_states(ti, plain) if plain else {}
    states: dict[tuple[str, int], str | None] = {(task, -1): found.get(task) for task in plain}
    for task in sorted(set(task_ids).intersection(mapped)):
        instances = task_states(ti, [task])
        # Before it is expanded, and when it has expanded to nothing, a mapped task is one instance without an index.
        named = {
            (task, int(name[len(task) + 1 :]) if name != task else -1): each
            for name, each in instances.items()
        }
        states.update(named or {(task, -1): None})
    return states


def is_retry(ti: Any, retries: int) -> bool:
    """Whether Airflow retried this task by itself; False for a first try and after a clear.

    A clear sets max_tries to the tries so far plus the task's retries; a retry leaves it.
    """
    return bool(ti.try_number - (ti.max_tries - retries) > 1)


def map_index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)


def task_try(ti: Any) -> str:
    """Name the running try of a task instance: its id does not always change when it is retried, and two may work."""
    return f"{ti.id}.{ti.try_number}"


def dag_version(ti: Any) -> str:
    """Return the id of the version of the DAG that the task instance belongs to."""
    return str(ti.dag_version_id)


def pull(ti: Any, task_id: str, key: str = "return_value", index: int = -1) -> Any:
    """The XCom of one task instance of this run; None if there is none.

    :param index: its map index, −1 if it is not mapped.
    """
    return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=None if index < 0 else index)


def is_test_run() -> bool:
    """Whether the running task is executed by `airflow tasks test`, `airflow dags test` or `DAG.test()`."""
    from airflow.sdk import get_current_context
    from airflow.sdk.execution_time import task_runner

    if type(getattr(task_runner, "SUPERVISOR_COMMS", None)).__name__ == "InProcessSupervisorComms":
        return True
    try:
        run = get_current_context()["dag_run"]
    except RuntimeError:
        return False  # no task is running
    # A scheduler that lives beside the command may take up its tasks, and then executes them like any others.
    return run.triggering_user_name == "dag_test" or run.run_id.startswith(
        "__airflow_temporary_run_"
    )


def replace_test(dag: Any, made: Callable[..., Any]) -> None:
    """Let `airflow dags test` and `DAG.test()` call something else, which gets Airflow's own method first."""
    dag.test = partial(made, type(dag).test.__get__(dag), dag)


def skip_tasks(operator: Any, ti: Any, tasks: Collection[Any]) -> NoReturn:
    """End `operator` as success and skip `tasks`, now and whenever they are cleared without it.

    Tasks that a clear has let Airflow start beside it skip themselves: `is_skipped_by`. A scheduler that finds a task
    under way to be skipped takes the run for deadlocked and fails it.

    :param operator: a SkipMixin.
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
    """Whether a task of the asking task's run has skipped the asking one, as `skip_tasks` does, or is skipped itself.

    One that was running at that moment is not skipped by Airflow.
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
    """A value as XCom gives it back, in a form that has one JSON text; for values that are not plain JSON."""
    from airflow.sdk.serde import deserialize, serialize

    # Once around: some types come back as another one (a datetime with another kind of zone), and then stay.
    return serialize(deserialize(serialize(value)))


def masked(text: str) -> str:
    """Hide in a text the secrets that this process has got from Airflow, as Airflow does in its logs."""
    from airflow._shared.secrets_masker import redact as redact_there
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    # The task SDK and the rest of Airflow each know the secrets that they have read.
    return str(redact_there(redact(text)))


# --- metrics ------------------------------------------------------------------------------------------------------
# The part of `compat` that is about metrics: they go where Airflow sends its own, by its section [metrics].


class MetricKind(str, Enum):
    """How values of a metric become one."""

    COUNTER = "counter"
    GAUGE = "gauge"
    TIMER = "timer"


def sends_metrics() -> bool:
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

    return (_chosen_sender() or _configured_sender()) is not NoStatsLogger


def _stats() -> Any:
    """Give what sends metrics in a process: a module, in Airflow 3.2 a class."""
    from airflow.sdk.observability import stats

    return stats.Stats if is_airflow_3_2() else stats


def _chosen_sender() -> Any:
    """Give the factory that Airflow has chosen when the process began; None: it has not."""
    from airflow.sdk._shared.observability.metrics import stats as own

    return _stats().factory if is_airflow_3_2() else own._factory


def _configured_sender() -> Any:
    """Choose the factory by the configuration."""
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    return get_stats_factory(*([_stats()] if is_airflow_3_2() else []))


def send_metric(
    kind: MetricKind, name: str, value: float, *, tags: Mapping[str, str], named: str
) -> None:
    """Send a value as Airflow sends its own: with tags, and, for servers without them, with one of them in its name.

    :param value: of a timer, seconds.
    :param named: the tag that is part of the name of the second one, which option legacy_names_on of [metrics] allows.
    """
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability.stats import normalize_name_for_stats

    if is_test_run():
        return  # a trial is no transaction that a dashboard should count
    # Airflow does not prepare the triggerer and the command line.
    if _chosen_sender() is None:
        prepare_metrics()
    _send(kind, name, value, dict(tags))
    if conf.getboolean("metrics", "legacy_names_on", fallback=True):
        # A point would be another level of the name.
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
    """Let a process send metrics as Airflow is configured just now."""
    from airflow.sdk.configuration import conf

    legacy = conf.getboolean("metrics", "legacy_names_on", fallback=True)
    option = {} if is_airflow_3_2() else {"export_legacy_names": legacy}
    _stats().initialize(factory=_configured_sender(), **option)


# --- functions ----------------------------------------------------------------------------------------------------
# The part of `compat` that is about tasks whose function another process than their own may call.


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
    """The function of a `@task`, with its arguments as the DAG file gives them.

    :param arguments: positional and keyword ones; what other tasks return stands in them as an XComArg.
    :param multiple: whether each entry of a returned mapping becomes an XCom of its own, too.
    :param pushes: whether what it returns becomes an XCom.
    :param dates: the keys of the context that it takes as arguments.
    :param timeout: seconds that it may take; None: any time.
    """

    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    multiple: bool
    pushes: bool
    timeout: float | None
    dates: frozenset[str] = frozenset()


def task_function(task: Any, *, dated: bool = False) -> TaskFunction:
    """Return the function of a task that any process can call.

    :param dated: whether that process knows the dates of its run.
    :raises ValueError: it needs Airflow; why, in words.
    """
    from airflow.providers.standard.decorators.python import _PythonDecoratedOperator
    from airflow.providers.standard.operators.python import PythonOperator

    if is_mapped(task):
        raise ValueError("it is mapped")
    if type(task) not in (_PythonDecoratedOperator, PythonOperator):
        raise ValueError(f"it is a {type(task).__name__}, and no plain @task function")
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
    """The seconds that a task may take; None: any time."""
    return None if task.execution_timeout is None else float(task.execution_timeout.total_seconds())


def check_plain(task: Any, *, commits: bool = False) -> None:
    """Refuse a task for which Airflow does more than to execute it.

    :param commits: whether it is a committer, which has a trigger rule of ours.
    :raises ValueError: naming the option.
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
    """Whether Airflow calls a function of the author when a run of the DAG has succeeded."""
    return bool(dag.has_on_success_callback)


def resolved(value: Any, read: Callable[[str, str], Any]) -> Any:
    """Give an argument with the output of other tasks in it.

    :param read: asked for (task id, name).
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
    """The stored form of a value; `from_xcom` gives it back, each time as another object."""
    from airflow.sdk.serde import serialize

    return serialize(value)


def from_xcom(stored: Any) -> Any:
    """The value of which `as_xcom` made this."""
    from airflow.sdk.serde import deserialize

    return deserialize(stored)


class _NoContext(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        raise LookupError(
            f"there is no {key!r}: the context of a DAG run is asked for, and there is no run"
        )

    def __bool__(self) -> bool:
        return True


@contextmanager
def without_context(known: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Let the code of the block ask for the context of no other task: it gets an error.

    :param known: what it gets all the same.
    """
    from airflow.sdk.execution_time.context import set_current_context

    with set_current_context(_NoContext(known)):  # type: ignore[arg-type]
        yield


def time_limit(seconds: float, reason: str) -> AbstractContextManager[None]:
    """End the block by AirflowTaskTimeout, which is no Exception, after so many seconds; in the main thread only.

    :param reason: what the error says.
    """
    from airflow.sdk.execution_time.timeout import timeout

    limit: AbstractContextManager[None] = timeout(seconds, reason)  # type: ignore[no-untyped-call]
    return limit


def _check_parameters(task: Any, known: Collection[str]) -> None:
    from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

    for name, parameter in inspect.signature(task.python_callable).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise ValueError(f"its function takes **{name}, which is the context of the run")
        if name in KNOWN_CONTEXT_KEYS and name not in known:
            raise ValueError(f"its function takes {name!r} of the context of the run")


def check_argument(value: Any) -> None:
    """Refuse an argument that is more than constants and what other tasks return.

    :raises ValueError: naming it.
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
    """Give the tasks of this process the logical date of a scheduled run: the beginning of their data interval.

    `DAG.test` gives the date of the test, which is the end of the interval.
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
