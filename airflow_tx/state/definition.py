"""How a DAG file defines a keyed state: checked at once, and told again in its repr and its serialized form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_tx.errors import ConfigError
from airflow_tx.state.api import StateKind
from airflow_tx.state.columns import Columns


def checked_columns(
    state: Any, keys: Iterable[str], values: Any, types: Any = None, max_value_bytes: int | None = None
) -> Columns:
    """The columns of a keyed state that is being made, from what its user gave.

    :raises ConfigError: they cannot be its columns; such as one text as keys, whose letters would be taken for columns.
    """

    def refused(option: str, value: Any, remedy: str) -> ConfigError:
        return ConfigError(option=f"{type(state).__name__}({option}=)", value=value, remedy=remedy)

    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise refused("keys", keys, f"Give a list: keys=[{keys or 'day'!r}].")
    if not isinstance(values, Mapping):
        raise refused("values", values, 'Give an aggregator for each value column: values={"n": Count()}.')
    if classes := {name: made.__name__ for name, made in values.items() if isinstance(made, type)}:
        name, made = next(iter(classes.items()))
        raise refused("values", values, f"Column {name!r} has a class, and needs an object of it: {made}().")
    if types is not None and not isinstance(types, Mapping):
        raise refused("types", types, 'Give the types of key columns: types={"day": "text"}.')
    return Columns(state.name, tuple(keys), dict(values), dict(types or {}), max_value_bytes)


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
