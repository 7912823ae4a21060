"""The part of `compat` that is about tasks as a DAG file makes them: their hooks, and what surrounds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    Task = BaseOperator | MappedOperator


def pushes_xcom(task: Any) -> bool:
    """Whether what a task returns becomes an XCom."""
    return bool(getattr(task, "partial_kwargs", {}).get("do_xcom_push", getattr(task, "do_xcom_push", True)))


def is_mapped(task: Task) -> bool:
    """Whether the task has instances with map indexes, by its own mapping or by that of a group around it."""
    return bool(task.is_mapped) or next(iter(task.iter_mapped_task_groups()), None) is not None


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
    """Let functions of ours run around a task, before those that its author gave.

    :param before: called with the context, before the task is executed.
    :param after: called with the context and the result, before the result becomes an XCom; not for a task that ends
        by an exception although it succeeds, such as a branch.
    :param final: exceptions after which the task is not retried.
    :param succeeded: called with the context once Airflow knows that the task has succeeded.
    :param failed: called with the context once the task has failed and is not retried.
    :param skipped: called with the context once the task has skipped itself.
    """
    options = _Options(task)
    for option, hook in (("pre_execute", before), ("post_execute", after)):
        if hook is not None:
            options.put(option, _combined(hook, options.get(option)))
    for callback, ours in (("success", succeeded), ("failure", failed), ("skipped", skipped)):
        if ours is not None:
            name = f"on_{callback}_callback"
            options.put(name, [ours, *_as_list(options.get(name))])
    if final:
        options.put("retry_policy", no_retry_after(final, options.get("retry_policy")))


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
    """The schedule of a DAG whose runs have a data interval of no length, as `@daily` has in Airflow 3; else None.

    :return: the name of its timetable.
    """
    timetable = dag.timetable
    name = type(timetable).__name__
    return name if name.endswith("TriggerTimetable") and not getattr(timetable, "interval", None) else None


def downstream(task: Task) -> Iterator[str]:
    return iter(sorted(task.get_flat_relative_ids(upstream=False)))


def upstream(task: Task) -> frozenset[str]:
    return frozenset(task.get_flat_relative_ids(upstream=True))


class _Options:
    """Reads and sets options of a task; a mapped one keeps them for the instances it will make."""

    _ATTRIBUTES: Mapping[str, str] = {"pre_execute": "_pre_execute_hook", "post_execute": "_post_execute_hook"}

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


def _combined(first: Callable[..., None], second: Callable[..., None] | None) -> Callable[..., None]:
    return first if second is None else _Both(first, second)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
