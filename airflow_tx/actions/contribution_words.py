"""The replaced contribution of a restatement, in words for a person who is about to request it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from airflow_tx.commit.contributions import LOST
from airflow_tx.journal.entry import Contribution, Entry

_READERS = frozenset({"state_query", "MapGet"})


def contribution_in_words(entry: Entry, renamed: Mapping[str, str]) -> str:
    """Count the keys that are replaced, and say which digits of doubles are lost.

    :param renamed: per earlier name of a state, its name now.
    """
    told = [
        f"{each.count:,} keys of {renamed.get(name, name)}{_digits_lost(each)}"
        for name, each in entry.contributions.items()
    ]
    return ", ".join(told) or "nothing"


def _digits_lost(contribution: Contribution) -> str:
    doubles = [
        name
        for name, each in contribution.values.items()
        if each == {"aggregator": "sum", "type": "double"}
    ]
    most = dict[str, float]()
    for row in contribution.rows() if doubles else ():
        for name in doubles:
            most[name] = max(most.get(name, 0.0), abs(row.get(name) or 0.0))
    told = [f"{name} below {LOST * value:.0e}" for name, value in most.items() if value]
    return f" (digits of {', '.join(told)} are lost)" if told else ""


def state_readers(dag: Any) -> list[str]:
    """Name the tasks of a DAG whose Python function looks values of a state up, as far as its code shows it."""
    return sorted(task.task_id for task in dag.tasks if _reads_states(task))


def _reads_states(task: Any) -> bool:
    code = getattr(getattr(task, "python_callable", None), "__code__", None)
    return code is not None and not _READERS.isdisjoint(_names(code))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)
