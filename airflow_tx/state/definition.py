"""How a DAG file defines a keyed state: checked at once, and told again in its repr and its serialized form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_tx.errors import ConfigError
from airflow_tx.state.api import StateKind
from airflow_tx.state.columns import Columns


def checked_keys(keys: Sequence[str], what: str) -> tuple[str, ...]:
    """The key columns.

    :param what: the class of the state, for messages.
    :raises ConfigError: they are one text, whose letters would be taken for columns.
    """
    if isinstance(keys, str):
        raise ConfigError(option=f"{what}(keys=)", value=keys, remedy=f"Give a list: keys=[{keys!r}].")
    return tuple(keys)


def fenced_kind(kind: StateKind | str, *, state: str) -> StateKind:
    """The kind of a fenced state.

    :raises ConfigError: it is no kind that a fence can make exact.
    """
    if kind not in (StateKind.OPAQUE, StateKind.TRANSACTIONAL):
        raise ConfigError(option=f"kind of state {state!r}", value=str(kind), remedy='Use "opaque" or "transactional".')
    return StateKind(kind)


def shown(columns: Columns) -> str:
    """The columns in a repr, as they were given."""
    return f"keys={list(columns.keys)}, values={dict(columns.aggregators)}"


def serialized(columns: Columns) -> dict[str, Any]:
    """The columns as plain JSON, as they are stored."""
    return {
        "keys": list(columns.keys),
        "values": {name: {"aggregator": agg.name, "type": agg.type} for name, agg in columns.values.items()},
        "types": dict(columns.types),
    }
