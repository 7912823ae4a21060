"""The replaced contribution of a restatement, in words for a person who is about to request it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import CodeType
from typing import Any

from airflow_tx.commit.contributions import LOST, old_side, shown_key
from airflow_tx.commit.restatement import is_asked
from airflow_tx.journal.entry import Contribution, Entry
from airflow_tx.state.aggregators import can_invert
from airflow_tx.state.api import FencedState, QueryableState

MOST_LOOKED_UP = 100_000
"""Keys that are looked up, at most: a person waits."""
KEYS_SHOWN = 3
_READERS = frozenset({"state_query", "MapGet"})


def contribution_in_words(entry: Entry, renamed: Mapping[str, str]) -> str:
    """Count the keys that are replaced, and say which digits of doubles are lost.

    :param renamed: per earlier name of a state, its name now.
    """
    told = [
        f"{each.count:,} {'key' if each.count == 1 else 'keys'} of {renamed.get(name, name)}{_digits_lost(each)}"
        for name, each in entry.contributions.items()
    ]
    return ", ".join(told) or "nothing"


def not_taken_back(
    state: FencedState, old: Contribution, txids: Collection[int], own: int
) -> str | None:
    """Name the keys whose values the state may be unable to take back; None: there are none.

    :param txids: the transaction that is restated, and what it replaced; `own`: the txid of the restatement.
    """
    columns = state.columns
    chosen = [
        f"{each.name} of {name}"
        for name, each in (columns.values.items() if columns is not None else ())
        if name in old.values and not can_invert(each)
    ]
    if not chosen or not old.count or not isinstance(state, QueryableState):
        return None
    held = f"the new {', '.join(chosen)} must include the old one, or be the same: else the commit is refused"
    if not is_asked(state) or old.count > MOST_LOOKED_UP:
        return f"{state.name}: {held}"
    count = 0
    first = list[str]()
    for keys in old_side(state, old).keys():
        values = state.sole_values(keys, txids, own)
        shared = [key for key, each in zip(keys, values, strict=True) if each is None]
        count += len(shared)
        first += [str(shown_key(state.columns, key)) for key in shared[: KEYS_SHOWN - len(first)]]
    if not count:
        return None
    named = ", ".join(first)
    return (
        f"{state.name}: others have contributed to {count:,} of these keys ({named}). There {held}"
    )


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
