"""Rows of an update as keys and values of a Redis hash, and back. Source: protocol.md §7 (numbers are exact)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_tx.errors import StateDiffers, StateError
from airflow_tx.state.api import StateKind
from airflow_tx.state.column_types import converted, from_plain, json_text, to_plain
from airflow_tx.state.columns import Cells, Columns
from airflow_tx.state.keys import decode_key, encode_key, encode_keys

_FORMAT = 1
Field = bytes
Value = bytes


class RedisRows:
    """The columns of a state in the form Redis keeps: both keys and values are JSON arrays, columns sorted by name.

    :param key_types: type per key column, as the stored schema or the first row says.
    """

    def __init__(self, columns: Columns, kind: StateKind, key_types: Mapping[str, str]) -> None:
        self.columns = columns
        self.key_types = key_types
        self._keys = sorted(columns.keys)
        self._values = sorted(columns.values)
        self._types_of_keys = [key_types[key] for key in self._keys]
        self._types_of_values = [columns.values[name].type for name in self._values]
        self._sums = all(
            agg.name in ("sum", "count") and agg.type == "bigint" for agg in columns.values.values()
        )
        values = {name: [agg.name, agg.type] for name, agg in columns.values.items()}
        described = {
            "format": _FORMAT,
            "kind": kind.value,
            "keys": dict(key_types),
            "values": values,
        }
        self.schema = json_text(described).encode()

    @classmethod
    def stored(cls, columns: Columns, kind: StateKind, schema: bytes) -> RedisRows:
        """Make them as the stored schema says; a StateError if that is of other columns."""
        try:
            found = json.loads(schema)
            known = found["format"]
        except (ValueError, KeyError, TypeError):
            known = "unknown"
        if known != _FORMAT:
            problem = f"its schema has format {known}, this version knows {_FORMAT}"
            raise StateDiffers(
                state=columns.state, problem=problem, remedy="Upgrade airflow-provider-tx."
            )
        types = {
            key: columns.types.get(key) or found["keys"].get(key, "any") for key in columns.keys
        }
        mine = cls(columns, kind, types)
        if mine.schema != schema:
            raise mine.other_columns(schema)
        return mine

    def other_columns(self, schema: bytes) -> StateError:
        problem = (
            f"it exists with other columns: expected {_shown(self.schema)}, found {_shown(schema)}"
        )
        remedy = "Give the state another prefix, or its earlier columns."
        return StateDiffers(state=self.columns.state, problem=problem, remedy=remedy)

    # --- keys -----------------------------------------------------------------------------------------------------

    def fields(self, portion: Sequence[Sequence[Any]]) -> list[Field]:
        """Write the keys of a portion of rows."""
        named = self._named(portion)
        if not self._keys:
            return [b"[]"]
        return encode_keys(self._types_of_keys, [named[key] for key in self._keys])

    def field(self, key: Cells) -> Field:
        """Write one key, whose values have the order and the types of the state's key columns."""
        named = dict(zip(self.columns.keys, key, strict=True))
        return encode_key(self._types_of_keys, [named[name] for name in self._keys])

    def key(self, field: Field) -> dict[str, Any]:
        return dict(zip(self._keys, decode_key(self._types_of_keys, field), strict=True))

    # --- values ---------------------------------------------------------------------------------------------------

    def updated(self, portion: Sequence[Sequence[Any]], bases: Sequence[Any]) -> list[Value]:
        """Update values.

        :param bases: what each key starts from, as plain JSON; None: nothing, False: it is not changed.
        :raises StateError: they cannot be combined, or the result does not fit.
        """
        if (
            self._sums
            and False not in bases
            and (quick := self._summed(portion, bases)) is not None
        ):
            return quick
        names = tuple(self.columns.values)
        split = len(self.columns.keys)
        result = list[Value]()
        for row, base in zip(zip(*portion, strict=True), bases, strict=True):
            if base is False:
                result.append(b"")
                continue
            before = None if base is None else self._row(base)
            stored = None if before is None else tuple(before[name] for name in names)
            result.append(self._value(self.columns.combined(row[:split], stored, row[split:])))
        return result

    def _summed(self, portion: Sequence[Sequence[Any]], bases: Sequence[Any]) -> list[Value] | None:
        """Add everything up at once; None: a sum does not fit."""
        named = self._named(portion)
        nothing = [None] * len(self._values)
        stored = zip(*[nothing if base is None else base for base in bases], strict=True)
        sums = []
        for name, before in zip(self._values, stored, strict=True):
            added = [
                b if a is None else a if b is None else a + b
                for a, b in zip(before, named[name], strict=True)
            ]
            try:
                sums.append(converted("bigint", added))
            except ValueError:
                return None
        text = json.dumps(list(zip(*sums, strict=True)), separators=(",", ":"))
        return [f"[{row}]".encode() for row in text[2:-2].split("],[")]

    def row(self, field: Field, value: Value) -> dict[str, Any]:
        key = self.key(field)
        return {**{name: key[name] for name in self.columns.keys}, **self.values(value)}

    def values(self, value: Value) -> dict[str, Any]:
        values = self._row(json.loads(value))
        return self.columns.completed({name: values[name] for name in self.columns.values})

    def order(self, row: Mapping[str, Any]) -> Cells:
        return tuple(row[key] for key in self.columns.keys)

    def _named(self, portion: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
        # A state without keys has one row, and its portion no columns for them.
        return dict(zip((*self.columns.keys, *self.columns.values), portion, strict=True))

    def _row(self, plain: Iterable[Any]) -> dict[str, Any]:
        columns = zip(self._values, self._types_of_values, plain, strict=True)
        return {name: from_plain(kind, value) for name, kind, value in columns}

    def _value(self, values: Cells) -> Value:
        named = dict(zip(self.columns.values, values, strict=True))
        columns = zip(self._values, self._types_of_values, strict=True)
        plain = [to_plain(kind, named[name]) for name, kind in columns]
        return json_text(plain).encode()


def _shown(schema: bytes) -> str:
    found = json.loads(schema)
    keys = ", ".join(f"{name} {kind}" for name, kind in sorted(found["keys"].items()))
    values = ", ".join(
        f"{name} {aggregator} {kind}"
        for name, (aggregator, kind) in sorted(found["values"].items())
    )
    return f"{found['kind']} ({values}) by key ({keys})"
