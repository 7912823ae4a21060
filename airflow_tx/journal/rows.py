"""Rows as JSON, exactly as a task gave them: each value has the type in Python that it had before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_tx.state.column_types import CONVERT, from_plain, to_plain, type_of

PLAIN = "plain"
"""The kind of a column whose values JSON has itself."""
MIXED = "mixed"
"""The kind of a column whose values are of several kinds; each value names its own."""
_AS_IS = frozenset((bool, float, int, str, type(None)))
"""Types whose values are written unchanged: most columns have no others."""
_OF_JSON = frozenset(("bigint", "boolean", "double", "text", "json"))


def encoded_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write rows as plain JSON.

    :raises ValueError, TypeError: a value is of a type that no column has, or the rows differ in their columns.
    """
    names = list(rows[0]) if rows else []
    if any(row.keys() != rows[0].keys() for row in rows):
        raise ValueError("its rows differ in their columns")
    kinds = dict[str, str]()
    columns = []
    for name in names:
        values = [row[name] for row in rows]
        as_is = _AS_IS.issuperset(map(type, values))
        kinds[name] = PLAIN if as_is else _kind(values)
        columns.append(values if as_is else _encoded(kinds[name], values))
    # In pairs: JSON is written with the names of an object sorted.
    return {
        "kinds": [list(each) for each in kinds.items()],
        "rows": [list(row) for row in zip(*columns, strict=True)],
    }


def decoded_rows(written: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Read the rows that `encoded_rows` wrote."""
    kinds = written["kinds"]
    for values in written["rows"]:
        yield {
            name: _decoded(kind, value) for (name, kind), value in zip(kinds, values, strict=True)
        }


def _kind(values: Sequence[Any]) -> str:
    found = {_kind_of(value) for value in values if value is not None}
    if len(found) > 1:
        return MIXED
    return found.pop() if found else PLAIN


def _kind_of(value: Any) -> str:
    kind = "json" if isinstance(value, (list, dict)) else type_of(value)
    if kind is None:
        raise TypeError(f"a value is a {type(value).__name__}, which no column takes")
    return PLAIN if kind in _OF_JSON else kind


def _encoded(kind: str, values: Sequence[Any]) -> list[Any]:
    if kind == MIXED:
        return [None if value is None else _named(value) for value in values]
    return [_as_json(kind, value) for value in values]


def _named(value: Any) -> list[Any]:
    kind = _kind_of(value)
    return [kind, _as_json(kind, value)]


def _as_json(kind: str, value: Any) -> Any:
    if value is None or kind != PLAIN:
        return to_plain(kind, value)
    if isinstance(value, (list, dict)):
        return CONVERT["json"](value)
    found = type_of(value)
    assert found is not None
    return to_plain(found, value)


def _decoded(kind: str, value: Any) -> Any:
    if kind == PLAIN or value is None:
        return value
    if kind == MIXED:
        own, plain = value
        return _decoded(own, plain)
    return from_plain(kind, value)
