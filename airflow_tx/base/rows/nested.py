"""JSON objects in a column of Spark."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows.spark import read_text
from airflow_tx.base.rows.types import (
    SHOWN,
    ArrayType,
    BooleanType,
    ColumnType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    MapType,
    PlainText,
    StringType as TextType,
    StructType,
    TimestampType,
    ddl_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, functions as F
else:
    F = LazyModule("pyspark.sql.functions")


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
    return F.regexp_replace(F.substring(text, 1, SHOWN), r"\s+", " ")


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
