"""Columns of JSON objects: simple types, and arrays, maps and structs of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_tx.rows.types import ColumnType, StringType, columns_of, ddl_of, text_of_json

_FIELD = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))(?:\s*:\s*|\s+)(.+)", re.DOTALL)
_NESTED = re.compile(
    r"\s*(ARRAY|MAP|STRUCT)\s*<(.*)>(?:\s+NOT\s+NULL)?(?:\s+COMMENT\s+(?:'[^']*'|\"[^\"]*\"))?\s*",
    re.IGNORECASE | re.DOTALL,
)
_TOKEN = re.compile(r"`(?:[^`]|``)*`|'[^']*'|\"[^\"]*\"|.", re.DOTALL)
_SHOWN = 80


@dataclass(frozen=True)
class ArrayType(ColumnType):
    """ARRAY: values of one type.

    :param element: their type.
    """

    element: ColumnType

    def of_json(self, value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError(f"it is no {self.ddl}")
        return [_value(each, self.element) for each in value]


@dataclass(frozen=True)
class MapType(ColumnType):
    """MAP from texts to values of one type.

    :param element: the type of the values.
    """

    element: ColumnType

    def of_json(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError(f"it is no {self.ddl}")
        return {name: _value(each, self.element) for name, each in value.items()}


@dataclass(frozen=True)
class StructType(ColumnType):
    """STRUCT: named values.

    :param fields: their names and types.
    """

    fields: tuple[tuple[str, ColumnType], ...]

    def of_json(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError(f"it is no {self.ddl}")
        return {name: _value(value.get(name), kind) for name, kind in self.fields}


def nested_columns_of(schema: str) -> dict[str, ColumnType]:
    """Read the columns of Spark's DDL, such as ``user STRING, tags ARRAY<STRING>``.

    :raises ValueError: one has a type that no JSON value has.
    """
    return dict(map(_field, _parts(schema)))


@dataclass(frozen=True)
class PlainText(StringType):
    """STRING of a column that no one has declared: a text, and no other value."""

    def of_json(self, value: Any) -> str:
        return self.of_value(value)


def found_columns_of(schema: str) -> dict[str, ColumnType]:
    """Read the columns that Spark has found in JSON objects. It finds STRING for a column of texts and numbers, too.

    :raises ValueError: one has a type that no JSON value has.
    """
    return {name: _plain(kind) for name, kind in nested_columns_of(schema).items()}


def _plain(kind: ColumnType) -> ColumnType:
    if isinstance(kind, (ArrayType, MapType)):
        return replace(kind, element=_plain(kind.element))
    if isinstance(kind, StructType):
        return replace(kind, fields=tuple((name, _plain(each)) for name, each in kind.fields))
    return PlainText("STRING") if isinstance(kind, StringType) else kind


def object_values(found: Mapping[str, Any], columns: Mapping[str, ColumnType]) -> dict[str, Any]:
    """Take the columns out of a parsed JSON object; a column that it lacks is None.

    :raises ValueError: a value is none of its column's type; it names column, value and reason.
    """
    values = {}
    for name, kind in columns.items():
        try:
            values[name] = _value(found.get(name), kind)
        except ValueError as error:
            shown = text_of_json(found[name])[:_SHOWN]
            raise ValueError(f"column {name} {kind.ddl} = {shown}: {error}") from None
    return values


def _value(value: Any, kind: ColumnType) -> Any:
    return None if value is None else kind.of_json(value)


def _field(text: str) -> tuple[str, ColumnType]:
    found = _FIELD.fullmatch(text)
    kind = found and _type(found[3])
    if found is None or kind is None:
        raise ValueError(
            f"column {text.strip()!r} of the schema has no type that rows without Spark can have"
        )
    return found[2] or found[1].replace("``", "`"), kind


def _type(ddl: str) -> ColumnType | None:
    found = _NESTED.fullmatch(ddl)
    if found is None:
        try:
            return columns_of(f"c {ddl}")["c"]
        except ValueError:
            return None
    parts = _parts(found[2])
    name = found[1].upper()
    if name == "STRUCT":
        fields = dict(map(_field, parts))
        named = ddl_of({name: kind.ddl for name, kind in fields.items()})
        return StructType(f"STRUCT<{named}>", tuple(fields.items()))
    kinds = list(map(_type, parts))
    element = kinds[-1]
    if name == "ARRAY" and len(kinds) == 1 and element is not None:
        return ArrayType(f"ARRAY<{element.ddl}>", element)
    if len(kinds) == 2 and isinstance(kinds[0], StringType) and element is not None:
        return MapType(f"MAP<STRING, {element.ddl}>", element)
    return None


def _parts(text: str) -> list[str]:
    """Divide a text at the commas that are in no brackets."""
    return list(_divided(text))


def _divided(text: str) -> Iterator[str]:
    depth = begins = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "<(") - (token[0] in ">)")
        if token[0] == "," and depth == 0:
            yield text[begins : token.start()]
            begins = token.end()
    yield text[begins:]
