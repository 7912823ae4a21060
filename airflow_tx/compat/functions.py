"""The part of `compat` that is about tasks whose function another process than their own may call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from airflow_tx.compat.intervals import INTERVAL_KEYS
from airflow_tx.compat.tasks import AFTER_SKIPPED, _Both, is_mapped, pushes_xcom

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
