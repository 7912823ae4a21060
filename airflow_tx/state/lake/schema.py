"""The schema of a table and of its files, in the JSON that Spark and Delta share. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_tx.state.appended import TXID, Misfit

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

FieldJson = dict[str, Any]
Schema = dict[str, Any]
_PLAIN = frozenset(
    """
    binary boolean byte date double float integer long short string timestamp timestamp_ntz
    """.split()
)
_DECIMAL = re.compile(r"decimal\(\d+, ?\d+\)")
_ARROW = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "binary",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
    "timestamp[us]": "timestamp_ntz",
}
TXID_FIELD: FieldJson = {"name": TXID, "type": "long", "nullable": True, "metadata": {}}


def nullable(kind: Any, *, column: str = "") -> Any:
    """Make a type nullable at every depth, and leave out the notes of its fields.

    Delta readers refuse a table that has a nested field that is not nullable.

    :raises Misfit: Delta has no such type.
    """
    if isinstance(kind, str):
        if kind in _PLAIN or _DECIMAL.fullmatch(kind):
            return kind.replace(" ", "")
        raise _unknown(column, kind)
    if kind.get("type") == "struct":
        return {"type": "struct", "fields": [_field(each, column) for each in kind["fields"]]}
    if kind.get("type") == "array":
        element = nullable(kind["elementType"], column=column)
        return {"type": "array", "elementType": element, "containsNull": True}
    if kind.get("type") == "map":
        of_key = nullable(kind["keyType"], column=column)
        of_value = nullable(kind["valueType"], column=column)
        return {"type": "map", "keyType": of_key, "valueType": of_value, "valueContainsNull": True}
    raise _unknown(column, kind.get("type"))


def _unknown(column: str, kind: Any) -> Misfit:
    problem = f"column {column} has the type {kind}, which a Delta table has not"
    return Misfit(problem, cast_to(column, "string"))


def cast_to(column: str, kind: str) -> str:
    """Write the remedy for a column of a wrong type."""
    name = column.partition(".")[0]
    if name != column:
        return f"Cast {column} to another type, such as {kind}, then clear the task."
    return f'Cast it in the task, such as df.withColumn("{name}", df["{name}"].cast("{kind}")), then clear the task.'


def _field(field: Mapping[str, Any], column: str) -> FieldJson:
    inner = f"{column}.{field['name']}" if column else str(field["name"])
    kind = nullable(field["type"], column=inner)
    return {"name": field["name"], "type": kind, "nullable": True, "metadata": {}}


def struct(fields: Sequence[FieldJson]) -> Schema:
    """Make a schema of fields."""
    return {"type": "struct", "fields": list(fields)}


def new_fields(table: Schema, found: Schema) -> list[FieldJson]:
    """List the fields of a file that its table does not have yet.

    :param table: its columns; `found`: the columns of a file, partition columns included.
    :raises Misfit: a column has another type, or a name that differs by case alone.
    """
    known = {each["name"]: nullable(each["type"], column=each["name"]) for each in table["fields"]}
    spelled = {name.lower(): name for name in known}
    fresh = list[FieldJson]()
    for each in nullable(found)["fields"]:
        name = each["name"]
        if name not in known:
            other = spelled.setdefault(name.lower(), name)
            if other != name:
                raise Misfit(f"column {name} differs from column {other} by case alone")
            known[name] = each["type"]
            fresh.append(each)
        elif known[name] != each["type"]:
            was = shown_type(known[name])
            problem = f"column {name} is {shown_type(each['type'])}, and {was} in the table"
            raise Misfit(problem, cast_to(name, was))
    return fresh


def check_partition(
    found: Schema, partition: Mapping[str, str | None], columns: Sequence[str]
) -> None:
    """Refuse a file that does not say the value of each partition column.

    :raises Misfit: a column is missing, or there is one more.
    """
    names = {each["name"] for each in found["fields"]}
    if missing := [name for name in columns if name not in names or name not in partition]:
        raise Misfit(f"the rows lack partition column {missing[0]}")
    if more := [name for name in partition if name not in columns]:
        raise Misfit(f"the rows are partitioned by {more[0]}, and the table is not")


def of_arrow(schema: pa.Schema) -> Schema:
    """Spell an Arrow schema as Spark does.

    :raises Misfit: Delta has no such type.
    """
    return struct([_of_field(each, each.name) for each in schema])


def _of_field(field: pa.Field, column: str) -> FieldJson:
    kind = _of_type(field.type, column)
    return {"name": field.name, "type": kind, "nullable": True, "metadata": {}}


def _of_type(kind: Any, column: str) -> Any:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _of_type(kind.value_type, column)
    if types.is_struct(kind):
        return struct(
            [
                _of_field(kind.field(n), f"{column}.{kind.field(n).name}")
                for n in range(kind.num_fields)
            ]
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _of_type(kind.value_type, column)
        return {"type": "array", "elementType": element, "containsNull": True}
    if types.is_map(kind):
        both = (_of_type(kind.key_type, column), _of_type(kind.item_type, column))
        return {"type": "map", "keyType": both[0], "valueType": both[1], "valueContainsNull": True}
    return _of_plain(kind, column)


def _of_plain(kind: Any, column: str) -> str:
    import pyarrow as pa

    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        return "timestamp"
    if str(kind) not in _ARROW:
        raise Misfit(f"column {column} has the type {kind}, which a Delta table has not")
    return _ARROW[str(kind)]


def shown_type(kind: Any) -> str:
    """Write a type as Spark's SQL does, which `cast` takes."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{shown_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{shown_type(kind['keyType'])}, {shown_type(kind['valueType'])}>"
    if kind["type"] == "struct":
        inner = (f"`{each['name']}`: {shown_type(each['type'])}" for each in kind["fields"])
        return f"struct<{', '.join(inner)}>"
    return str(kind["type"])


def deepest(kind: Any, asked: Callable[[str], bool]) -> bool:
    """Ask of each plain type within a type."""
    if isinstance(kind, str):
        return asked(kind)
    parts = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    inner = [*parts, *(each["type"] for each in kind.get("fields", ()))]
    return any(deepest(each, asked) for each in inner)


def is_optional(kind: Any) -> bool:
    """Whether NULL may stand at every depth within a type."""
    if isinstance(kind, str):
        return True
    if not kind.get("containsNull", True) or not kind.get("valueContainsNull", True):
        return False
    fields = kind.get("fields", ())
    inner = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return all(each["nullable"] for each in fields) and all(
        is_optional(each) for each in (*inner, *(each["type"] for each in fields))
    )
