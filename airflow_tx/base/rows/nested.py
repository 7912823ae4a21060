"""Columns of JSON objects: simple types, and arrays, maps and structs of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows.spark import (
    REFUSED_VALUE,
    BooleanType,
    ColumnType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    StringType,
    StringType as TextType,
    TimestampType,
    check_names,
    columns_of,
    ddl_of,
    fails,
    read_text,
    text_of_json,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame, functions as F
else:
    F = LazyModule("pyspark.sql.functions")
    pa = LazyModule("pyarrow")


# --- nested -------------------------------------------------------------------------------------------------------


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
    return dict(_fields(_parts(schema)))


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


def _fields(parts: Sequence[str]) -> list[tuple[str, ColumnType]]:
    found = list(map(_field, parts))
    check_names(name for name, _ in found)
    return found


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
        fields = dict(_fields(parts))
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


# --- arrow --------------------------------------------------------------------------------------------------------


_ARROW: Mapping[str, str] = {
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INT": "int32",
    "BIGINT": "int64",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BOOLEAN": "bool",
    "DATE": "date32",
    "STRING": "string",
}


def arrow_types_of(columns: Mapping[str, ColumnType]) -> dict[str, pa.DataType]:
    """Give the types that Arrow has for columns."""
    return {name: _of_arrow(kind) for name, kind in columns.items()}


def _of_arrow(kind: ColumnType) -> pa.DataType:
    if isinstance(kind, ArrayType):
        return pa.list_(_of_arrow(kind.element))
    if isinstance(kind, MapType):
        return pa.map_(pa.string(), _of_arrow(kind.element))
    if isinstance(kind, StructType):
        return pa.struct(list(arrow_types_of(dict(kind.fields)).items()))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, TimestampType):
        return pa.timestamp("us", "UTC" if kind.zoned else None)
    return pa.type_for_alias(_ARROW[kind.ddl])


# --- spark json ---------------------------------------------------------------------------------------------------
# JSON objects in a column of Spark, read as `rows.json_objects` and `rows.nested` read them.
#
# Spark's own reader takes the first of several objects, the last of two equal keys, and rounds numbers to their type.
# So every value is read as a text that also says what it was: ``"s…"`` was a string, and ``"n…"`` a number. The types
# take these texts exactly. A JSON text has no bare characters below the blank, so they can replace its escapes here.
#
# That takes ten times as long as Spark's reader. So Spark's reader reads ordinary objects, which most are. The text
# of an ordinary object matches a pattern, and any reader takes the same values from it.


CORRUPT = "_tx_corrupt"
_HOW = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
_PARSED = "_tx_parsed"
_ORDINARY = "_tx_ordinary"
_NUMBER = "-?[0-9][0-9.eE+-]*+"
_DIGITS = "-?(?:0|[1-9][0-9]{{0,{0}}})"
_TEXT = r'[^"\\\x00-\x1f]'
_DAY = "(?:1[89]|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ANY = rf'"{_TEXT}*+"|{_NUMBER}|true|false'
_MOST = 64
"""Columns up to which there are ordinary objects: for each, the pattern takes some of the stack."""


def with_objects(
    rows: DataFrame,
    column: str,
    columns: Mapping[str, ColumnType],
    *,
    keys: Collection[str] = (),
) -> tuple[DataFrame, Column, Column]:
    """Parse a column of bytes that are one JSON object each.

    :param keys: of the objects, in the order that most of them have; the columns by default.
    :return: the rows with what was parsed; of these rows the struct, and what is wrong with it, NULL if it is right.
    """
    read, values, problem = _objects(rows, column, columns, keys or columns)
    fields = (value.alias(name) for name, value in values.items())
    return read, F.when(F.col(column).isNotNull(), F.struct(*fields)), problem


def lines_of_objects(
    lines: DataFrame,
    columns: Mapping[str, ColumnType],
    keys: Collection[str],
    *,
    malformed: str = "",
) -> DataFrame:
    """Read a column of texts that are one JSON object each, or blank; the query fails at another one.

    :param keys: of the objects, in the order that most of them have.
    :param malformed: the column that gets the text of another one, in place of a failure.
    """
    (name,) = lines.columns
    full = lines.where(F.btrim(F.col(name), F.lit(" \t\r")) != "")
    read, values, problem = _objects(full, name, columns, keys or columns)
    named = [value.alias(name) for name, value in values.items()]
    if malformed:
        line = F.when(problem.isNotNull(), F.col(name))
        return read.select(*named, line.alias(malformed))
    checked = read.where(fails(F.concat(F.lit(REFUSED_VALUE), problem), otherwise=True))
    return checked.select(*named)


def _objects(
    rows: DataFrame, column: str, columns: Mapping[str, ColumnType], keys: Collection[str]
) -> tuple[DataFrame, Mapping[str, Column], Column]:
    """Parse a column of objects; return the rows, their values, and what is wrong with the object."""
    text = F.col(column).cast("string")
    schema = f"{_wide_fields(columns)}, {CORRUPT} STRING"
    marked = F.from_json(_marked(text), schema, _HOW)
    strict = F.is_valid_utf8(text) & text.rlike(r"\A[ \t\n\r]*\{") & _is_one_value(text)
    rows, ordinary = _with_ordinary(rows, text, columns, keys)
    is_ordinary = F.lit(False) if ordinary is None else _is_whole(ordinary)
    # Exploded, it is read once for each row, and also where the value is not used: Spark moves no filter below.
    others = F.when(~is_ordinary & strict, marked)
    read = rows.select("*", F.explode(F.array(others)).alias(_PARSED))
    parsed = F.col(_PARSED)
    values = {}
    problems = []
    for name, kind in columns.items():
        raw = parsed.getField(f"s{name}")
        value, fits = _exact(raw, kind)
        if ordinary is not None:
            value = F.when(is_ordinary, ordinary.getField(name)).otherwise(value)
        values[name] = value
        found = F.concat(F.lit(f"column {name} {kind.ddl} = "), _shown(raw, kind))
        problems.append(F.when(raw.isNotNull() & ~fits, found))
    none = F.when(parsed.isNull(), F.lit("it is no JSON object"))
    other = F.when(
        parsed.getField(CORRUPT).isNotNull(),
        F.lit("it has other arrays and objects than the schema"),
    )
    is_other = F.col(column).isNotNull() & ~is_ordinary
    return read, values, F.when(is_other, F.coalesce(none, other, *problems))


def _with_ordinary(
    rows: DataFrame, text: Column, columns: Mapping[str, ColumnType], keys: Collection[str]
) -> tuple[DataFrame, Column | None]:
    """Let Spark's reader read ordinary objects, and return what it has read; None: there are none."""
    pattern = _ordinary(columns, keys)
    if pattern is None:
        return rows, None
    schema = ddl_of({**{name: kind.ddl for name, kind in columns.items()}, CORRUPT: "STRING"})
    found = F.from_json(text, schema, {**_HOW, "timeZone": "UTC"})
    matching = F.when(F.is_valid_utf8(text) & text.rlike(pattern), found)
    return rows.select("*", F.explode(F.array(matching)).alias(_ORDINARY)), F.col(_ORDINARY)


def _is_whole(ordinary: Column) -> Column:
    return ordinary.isNotNull() & ordinary.getField(CORRUPT).isNull()


def _ordinary(columns: Mapping[str, ColumnType], keys: Collection[str]) -> str | None:
    """Return the pattern of an object that every reader reads alike: flat, each key once, in this order.

    :return: None: such columns have none.
    """
    values = {name: _ordinary_value(kind) for name, kind in columns.items()}
    names = {name.lower() for name in [*columns, CORRUPT]}
    if None in values.values() or len(names) <= len(columns) or max(len(keys), len(names)) > _MOST:
        return None
    if not all(re.fullmatch(_TEXT + "+", name) for name in keys):
        return None
    fields = (
        rf'(?:"{re.escape(key)}":[ ]?(?:{values.get(key, _ANY)}|null)(?:,[ ]?|(?=\}})))?'
        for key in dict.fromkeys(keys)
    )
    return rf"\A\{{{''.join(fields)}\}}[ \t\r]*+\z"


def _ordinary_value(kind: ColumnType) -> str | None:
    """Return the pattern of values that Spark's reader takes exactly, and this type takes, too."""
    if isinstance(kind, BooleanType):
        return "true|false"
    if isinstance(kind, IntegerType):
        return _DIGITS.format({8: 1, 16: 3, 32: 8, 64: 17}[kind.bits])
    if isinstance(kind, FloatType):
        # Of a whole -0, one reader makes 0.0 and another one -0.0.
        return (
            None
            if kind.single
            else rf"(?!-0(?:[.]0*)?[, }}]){_DIGITS.format(17)}(?:\.[0-9]{{1,20}})?"
        )
    if isinstance(kind, DecimalType):
        whole = kind.precision - kind.scale
        digits = _DIGITS.format(whole - 1) if whole else "-?0"
        return rf"{digits}(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale else digits
    if isinstance(kind, DateType):
        return f'"{_DAY}"'
    if isinstance(kind, TimestampType):
        return f'"{_DAY}[ T]{_CLOCK}{"Z?" if kind.zoned else ""}"'
    if isinstance(kind, TextType):
        return f'"{_TEXT}{"*+" if kind.longest is None else f"{{0,{kind.longest}}}+"}"'
    return None


def _is_one_value(text: Column) -> Column:
    """Ask whether a text is one JSON value, without equal keys and half surrogate pairs.

    Spark reads no further than the end of the first value. So the text becomes the first element of an array, with a
    second one that the text cannot have: its digest.
    """
    digest = F.xxhash64(text)
    pair = F.try_parse_json(
        F.concat(F.lit("["), text, F.lit(","), digest.cast("string"), F.lit("]"))
    )
    return F.coalesce(F.try_variant_get(pair, "$[1]", "bigint") == digest, F.lit(False))


def _wide(kind: ColumnType) -> str:
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_wide(kind.element)}>"
    if isinstance(kind, MapType):
        return f"MAP<STRING, {_wide(kind.element)}>"
    if isinstance(kind, StructType):
        return f"STRUCT<{_wide_fields(dict(kind.fields))}>"
    return "STRING"


def _wide_fields(columns: Mapping[str, ColumnType]) -> str:
    return ddl_of({f"s{name}": _wide(kind) for name, kind in columns.items()})


def _exact(raw: Column, kind: ColumnType) -> tuple[Column, Column]:
    """Return the value, and whether it is one; both are of use only where there is a value."""
    if isinstance(kind, ArrayType):
        value = F.transform(raw, lambda each: _exact(each, kind.element)[0])
        return value, F.forall(raw, lambda each: _fits(each, kind.element))
    if isinstance(kind, MapType):
        renamed = F.transform_keys(raw, lambda name, _: F.substr(name, F.lit(2)))
        value = F.transform_values(renamed, lambda _, each: _exact(each, kind.element)[0])
        return value, F.forall(F.map_values(raw), lambda each: _fits(each, kind.element))
    if isinstance(kind, StructType):
        fields = [(name, raw.getField(f"s{name}"), each) for name, each in kind.fields]
        value = F.struct(*(_exact(own, each)[0].alias(name) for name, own, each in fields))
        fits = F.lit(True)
        for _, own, each in fields:
            fits &= _fits(own, each)
        return F.when(raw.isNotNull(), value), fits
    return _simple(raw, kind)


def _fits(raw: Column, kind: ColumnType) -> Column:
    return raw.isNull() | _exact(raw, kind)[1]


def _simple(raw: Column, kind: ColumnType) -> tuple[Column, Column]:
    if isinstance(kind, BooleanType):
        return raw == "true", raw.isin("true", "false")
    form = F.substring(raw, 1, 1)
    rest = F.substr(raw, F.lit(2))
    if isinstance(kind, PlainText):
        return rest, form == "s"
    if isinstance(kind, TextType):
        rest = F.when(form.isin("s", "n"), rest).otherwise(_restored(raw))
        value, fits = read_text(rest, kind)
        return value, F.lit(True) if fits is None else fits
    value, fits = read_text(rest, kind)
    forms = "n" if isinstance(kind, (IntegerType, FloatType)) else "s"
    if isinstance(kind, DecimalType):
        forms = "ns"
    assert fits is not None
    return value, form.isin(*forms) & fits


def _shown(raw: Column, kind: ColumnType) -> Column:
    if isinstance(kind, (ArrayType, MapType, StructType)):
        text = _restored(F.to_json(raw))
    else:
        # As a text of one value, which may have been a string.
        text = _restored(
            F.when(raw.rlike(r"\A[sn]"), F.concat(F.lit('"'), raw, F.lit('"'))).otherwise(raw)
        )
    return F.regexp_replace(F.substring(text, 1, _SHOWN), r"\s+", " ")


def _marked(text: Column) -> Column:
    """Let a JSON text say of each value what it is: of strings and names by an ``s``, of numbers by an ``n``."""
    pattern = f'"([^"]*+)"|({_NUMBER})'
    marks = {"\x04\x05": '"', "\x03\x04": '"n', "\x03": '"s', "\x05": '"'}
    # Python has no -0 among whole numbers.
    return _by_values(text, pattern, {**marks, '"n-0"': '"n0"'})


def _restored(marked: Column) -> Column:
    """Return the JSON text that was marked."""
    pattern = '"s([^"]*+)"|"n([^"]*+)"'
    return _by_values(marked, pattern, {"\x04\x05": '"', "\x03\x04": "", "\x03": '"', "\x05": ""})


def _by_values(text: Column, pattern: str, written: Mapping[str, str]) -> Column:
    """Replace the strings and numbers of a JSON text.

    :param pattern: its first group is a string and its second one a number, of which one is empty.
    :param written: replaces the characters around them, ``\\x03STRING\\x04\\x05`` and ``\\x03\\x04NUMBER\\x05``.
    """

    def replaced(column: Column, pairs: Mapping[str, str]) -> Column:
        for old, new in pairs.items():
            column = F.replace(column, F.lit(old), F.lit(new))
        return column

    escaped = replaced(text, {"\\\\": "\x01", '\\"': "\x02"})
    values = F.regexp_replace(escaped, pattern, "\x03$1\x04$2\x05")
    return replaced(replaced(values, written), {"\x02": '\\"', "\x01": "\\\\"})
