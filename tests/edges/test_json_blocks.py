"""A block of JSON lines: Arrow reads what the rule reads, or it is left to the rule."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.rows import blocks as blocks_of_json
from airflow_tx.base.rows.blocks import NotProven, objects_batch
from airflow_tx.base.rows.types import (
    ColumnType,
    arrow_types_of,
    batch_rows,
    found_columns_of,
    nested_columns_of,
    object_values,
    parsed_object,
)
from tests.edges.values import EDGES, TYPES

LEFT = "left to the rule"
REFUSED = "refused"
FLAT = (
    "n INT, d DOUBLE, f FLOAT, m DECIMAL(10,2), b BOOLEAN, s STRING, v VARCHAR(3), day DATE, at TIMESTAMP, "
    "c TIMESTAMP_NTZ"
)
NESTED = (
    "a ARRAY<INT>, o STRUCT<x: DOUBLE, days: ARRAY<DATE>, at: TIMESTAMP>, l ARRAY<STRUCT<m: DECIMAL(5,1), s: STRING>>"
)
FULL: list[Any] = [
    {
        "n": -5, "d": 1.25, "f": 0.1, "m": 12.3, "b": True, "s": 'a "b" \\ \n é \U0001f600', "v": "abc",
        "day": "2013-01-31", "at": "2013-01-31T10:00:00Z", "c": "2013-01-31 10:00",
    },
    {"n": None, "m": "7.10", "s": "", "d": -0.0, "day": None},
    {},
]  # fmt: skip
NESTS: list[Any] = [
    {
        "a": [1, None], "o": {"x": 1, "days": ["2013-01-31", None], "at": "2013-01-31 10:00:00"},
        "l": [{"m": 1.5, "s": "x"}],
    },
    {"a": None, "o": {"x": None}, "l": [None, {}]},
    {"a": [], "o": {}, "l": []},
    {"o": None},
]  # fmt: skip


def by_rule(block: bytes, columns: Mapping[str, ColumnType]) -> Any:
    try:
        lines = io.TextIOWrapper(io.BytesIO(block), "utf-8")
        full = (line for line in lines if line.strip(" \t\r\n"))
        return [object_values(parsed_object(line, exact=True), columns) for line in full]
    except ValueError:
        return REFUSED


def read(block: bytes, columns: Mapping[str, ColumnType] | str) -> Any:
    """Read a block, which must give the rule's rows, or be left to the rule."""
    columns = nested_columns_of(columns) if isinstance(columns, str) else columns
    try:
        batch = objects_batch(block, columns)
    except NotProven:
        return LEFT
    assert dict(zip(batch.schema.names, batch.schema.types, strict=True)) == arrow_types_of(columns)
    batch.validate(full=True)
    found = list(batch_rows(batch))
    expected = by_rule(block, columns)
    assert repr(found) == repr(expected)
    return found


def proven(block: bytes, columns: Mapping[str, ColumnType] | str) -> Any:
    found = read(block, columns)
    assert found is not LEFT
    return found


def lines_of(rows: list[Any], **how: Any) -> bytes:
    return "".join(f"{json.dumps(row, **how)}\n" for row in rows).encode()


# --- what is proven -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n", "\r\n\r\n"])
@pytest.mark.parametrize(("schema", "rows"), [(FLAT, FULL), (NESTED, NESTS)], ids=["flat", "nested"])
def test_arrow_reads_a_block_of_ordinary_json_objects(
    schema: str, rows: list[Any], separators: Any, ascii_only: bool, end: str
) -> None:
    lines = [json.dumps(row, separators=separators, ensure_ascii=ascii_only) for row in rows]
    block = ((end or "\n").join(lines) + end).encode()
    assert len(proven(block, schema)) == len(rows)


@pytest.mark.parametrize("schema", ["s STRING", "o STRUCT<x: DOUBLE>", "l ARRAY<STRUCT<s: STRING>>"])
def test_arrow_reads_a_block_of_objects_that_contain_undeclared_keys(schema: str) -> None:
    others: dict[str, Any] = {"x1": [[1], [], None], "x2": {"y": [{"z": True}], "e": {}}, "x3": None, "x4": -1.5e3}
    assert len(proven(lines_of([{**row, **others} for row in [FULL[0], *NESTS]] * 1000), schema)) == 5000


def test_arrow_reads_a_block_of_objects_that_have_few_different_undeclared_keys() -> None:
    rows = [{"s": "x", f"k{number % 30}": number} for number in range(5000)]
    assert len(proven(lines_of(rows), "s STRING")) == 5000


def test_a_block_in_which_each_object_has_a_different_key_is_not_read_by_arrow() -> None:
    assert read(lines_of([{"s": "x", f"k{number}": number} for number in range(5000)]), "s STRING") is LEFT


@pytest.mark.parametrize("block", [b"", b"\n", b"\n\r\n\n"])
def test_a_block_of_empty_lines_contains_no_rows(block: bytes) -> None:
    assert read(block, FLAT) == []


def test_arrow_reads_columns_that_have_no_value() -> None:
    assert len(proven(b'{"n":null}\n{}\n', f"{FLAT}, {NESTED}")) == 2


def test_arrow_reads_texts_of_an_undeclared_column_and_does_not_read_numbers_in_it() -> None:
    columns = found_columns_of("s STRING, l ARRAY<STRING>")
    assert len(proven(b'{"s":"1","l":["a",null]}\n', columns)) == 1
    assert read(b'{"s":1}\n', columns) is LEFT


@pytest.mark.parametrize("first", ["2013-01-31T10:00:00", "2013-01-31", "0001-01-01", "2013-01-31T10:00:00+02:00"])
def test_arrow_reads_timestamps_that_are_written_in_several_forms(first: str) -> None:
    assert len(proven(lines_of([{"at": first}, {"at": "2013-01-31 10:00"}]), "at TIMESTAMP")) == 2


@pytest.mark.parametrize(
    "block",
    [
        b'{"s":"507f1f77bcf86cd799439011","m":1}\n',
        b'{"s":"123e4567-e89b-12d3-a456-426614174000","m":1}\n',
        b'{"s":"5e","m":1}\n{"s":"\\u003ca\\u003e","m":2}\n',
    ],
)
def test_a_text_that_contains_digits_before_an_e_is_not_read_as_a_number(block: bytes) -> None:
    proven(block, "s STRING, m DECIMAL(10,2)")


def test_arrow_keeps_the_sign_of_minus_zero() -> None:
    assert repr(proven(b'{"d":-0.0,"f":-0.0}\n', "d DOUBLE, f FLOAT")[0]["d"]) == "-0.0"


# --- what is not --------------------------------------------------------------------------------------------------


HOLES = {
    "no UTF-8": b'{"s":"\xff"}\n',
    "no UTF-8, in another key": b'{"x":"\xff"}\n',
    "half a pair in UTF-8": b'{"x":"\xed\xa0\x80"}\n',
    "half a pair": b'{"s":"\\ud800"}\n',
    "the other half": b'{"x":"\\udc00"}\n',
    "half a pair in a key": b'{"\\udc00":1}\n',
    "two objects a line": b'{"n":1}{"n":2}\n',
    "two objects a line, and one of two lines": b'{"n":1}{"n":2}\n{"n":\n3}\n',
    "two objects of two lines": b'{"n":1}{"o":\n{"y":1}}\n',
    "an object of two lines": b'{"n":\n1}\n',
    "an object of two lines, between braces": b'{"x":{}\n,"y":{}}\n',
    "an object after a carriage return": b'{"n":1}\r{"n":2}\n',
    "a carriage return in an object": b'{"n":\r1}\n',
    "two carriage returns": b'{"n":1}\r\r\n',
    "a key twice": b'{"n":1,"n":1}\n',
    "a key twice, once NULL": b'{"n":1,"n":null}\n',
    "a key twice, once with an escape": b'{"n":1,"\\u006e":1}\n',
    "another key twice": b'{"x":1,"x":1}\n',
    "another key twice, once with an escape": b'{"x":1,"\\u0078":1}\n',
    "another key twice, further down": b'{"x":{"y":[{"z":1,"z":2}]}}\n',
    "another key twice, both NULL": b'{"x":null,"x":null}\n',
    "another key twice, both empty": b'{"x":{},"x":{}}\n',
    "another key twice, in the last line": b'{"n":1,"x":1}\n' * 5000 + b'{"x":1,"x":1}\n',
    "a key of a struct twice": b'{"o":{"y":1,"y":1}}\n',
    "another key of a struct twice": b'{"o":{"z":1,"z":1}}\n',
    "NaN": b'{"d":NaN}\n',
    "NaN in another key": b'{"x":NaN}\n',
    "-Infinity in another key": b'{"x": -Infinity}\n',
    "Inf in an array": b'{"x":[1,Inf]}\n',
    "a FLOAT beyond": b'{"f":3.5e38}\n',
    "a DOUBLE beyond": b'{"d":1e400}\n',
    "a DOUBLE beyond, in digits": b'{"d":1%s}\n' % (b"0" * 400),
    "a whole -0 as DOUBLE": b'{"d":-0}\n',
    "a whole -0 as FLOAT": b'{"x":1,"f": -0 }\n',
    "a whole -0 in an array": b'{"ds":[1, -0]}\n',
    "a number of too many digits": b'{"x":1%s}\n' % (b"0" * 5000),
    "an exponent": b'{"m":1e2}\n',
    "an exponent in a text": b'{"m":"1E+2"}\n',
    "an exponent behind a point": b'{"m":[1],"m2":1.5e1}\n',
    "an exponent with an escape": b'{"m":"1\\u00652"}\n',
    "an exponent behind an escape": b'{"m":"\\u0031e2"}\n',
    "an exponent before an escape": b'{"m":"1e\\u002b2"}\n',
    "an exponent in an array": b'{"ms":[1, 1e1]}\n',
    "an exponent in an object": b'{"o":{"m": 1e1}}\n',
    "digits beyond a DECIMAL": b'{"m":2147483647}\n',
    "digits far beyond a DECIMAL": b'{"w":%s}\n' % (b"9" * 38),
    "places beyond a DECIMAL": b'{"m":1.239}\n',
    "a fraction as INT": b'{"n":1.0}\n',
    "an exponent as INT": b'{"n":1e2}\n',
    "beyond an INT": b'{"n":2147483648}\n',
    "a text as INT": b'{"n":"1"}\n',
    "true as INT": b'{"n":true}\n',
    "a number as BOOLEAN": b'{"b":1}\n',
    "a text as BOOLEAN": b'{"b":"true"}\n',
    "a number as DATE": b'{"day":15000}\n',
    "a time as DATE": b'{"day":"2013-01-31T10:00:00"}\n',
    "the year 0": b'{"day":"0000-01-01"}\n',
    "a number as TIMESTAMP": b'{"at":1}\n',
    "a long VARCHAR": b'{"v":"abcd"}\n',
    "a long VARCHAR in an array": b'{"vs":["abcd"]}\n',
    "a number as STRING": b'{"s":1}\n',
    "an object as STRING": b'{"s":{}}\n',
    "an object as ARRAY": b'{"ds":{}}\n',
    "an array as STRUCT": b'{"o":[]}\n',
    "a byte order mark": b'\xef\xbb\xbf{"n":1}\n',
    "a byte order mark in the middle": b'{"n":1}\n\xef\xbb\xbf{"n":1}\n',
    "NUL": b'{"n":1}\n\0\n{"n":2}\n',
    "NUL at the end": b'{"n":1}\0\n',
    "NUL in a text": b'{"s":"a\0b"}\n',
    "a control character in a text": b'{"s":"a\x01b"}\n',
    "a line of blanks": b'{"n":1}\n \t\n{"n":2}\n',
    "a blank before": b' {"n":1}\n',
    "deep": b'{"x":%s%s}\n' % (b"[" * 900, b"]" * 900),
    "very deep": b'{"x":%s%s}\n' % (b"[" * 60_000, b"]" * 60_000),
    "deep in the schema": b'{"ds":%s%s}\n' % (b"[" * 60_000, b"]" * 60_000),
    "no object": b"7\n",
    "an array": b'[{"n":1}]\n',
    "no JSON": b"{n:1}\n",
    "a comma too many": b'{"n":1,}\n',
    "a zero before a number": b'{"n":01}\n',
    "a plus before a number": b'{"d":+1}\n',
    "a point behind a number": b'{"d":1.}\n',
    "hexadecimal digits": b'{"n":0x10}\n',
    "a comment": b'{"n":1/**/}\n',
    "another kind of another key": b'{"x":1}\n{"x":"a"}\n',
}  # fmt: skip
WIDE = (
    f"{FLAT}, w DECIMAL(38,18), ds ARRAY<DOUBLE>, ms ARRAY<DECIMAL(5,1)>, vs ARRAY<VARCHAR(3)>, "
    "o STRUCT<y: INT, m: DECIMAL(5,1)>"
)


@pytest.mark.parametrize("block", HOLES.values(), ids=HOLES)
def test_a_block_is_not_read_by_arrow_if_arrow_may_read_a_value_differently(block: bytes) -> None:
    assert read(block, WIDE) is LEFT
    assert read(b'{"n":1,"s":"x"}\n' * 3 + block, WIDE) is LEFT


def test_a_map_column_is_not_read_by_arrow() -> None:
    with pytest.raises(NotProven, match="a map"):
        objects_batch(b'{"a":{"x":1}}\n', nested_columns_of("a MAP<STRING, INT>"))


def test_a_line_that_is_too_long_for_arrow_is_not_read_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_of_json, "_LARGEST", 10)
    assert read(b'{"n":1234}\n', "n INT") is LEFT


@pytest.mark.parametrize("schema", ["a DECIMAL(5,1)", "a ARRAY<DECIMAL(5,1)>", "a STRUCT<m: DECIMAL(5,1)>"])
def test_a_column_is_not_read_by_arrow_if_a_decimal_in_it_is_written_with_an_exponent(schema: str) -> None:
    for value in (b"1e1", b"[1e1]", b'{"m":1e1}'):
        assert read(b'{"a":%s}\n' % value, schema) is LEFT


@pytest.mark.parametrize("schema", ["n INT", "x INT"])
@pytest.mark.parametrize("name", ["N", "", " n", "n\\u0000", "n\\u0000x", "\\u00e9", "\u0130"])
def test_keys_that_differ_in_any_character_are_different_columns(schema: str, name: str) -> None:
    proven(f'{{"n":1,"{name}":2}}\n'.encode(), schema)


# --- both, by trial -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_each_edge_value_that_arrow_reads_equals_the_value_of_the_json_parser(kind: str) -> None:
    column = nested_columns_of(f"c {kind}")
    nested = nested_columns_of(f"c ARRAY<{kind}>, d STRUCT<e: {kind}>")
    for text in EDGES:
        for spelled in (json.dumps(text), json.dumps(text, ensure_ascii=False), text):
            read(f'{{"c":{spelled}}}\n'.encode(), column)
            read(f'{{"c":[null,{spelled}],"d":{{"e":{spelled}}}}}\n'.encode(), nested)
            read(f'{{"c":null,"x":{spelled}}}\n'.encode(), column)


_TOKENS = st.sampled_from(
    [
        b"\r", b"\n", b"\r\n", b"\t", b" ", b"\0", b"\x01", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc3\xa9",
        b"\\", b"\\u0061", b"\\ud800", b"\\ude00", b"\\n", b'"', b"{", b"}", b"[", b"]", b",", b":", b"{}", b"}\n{",
        b'"n":1,', b'"x":1,', b',"x":[{"y":1}]', b"null", b"true", b"NaN", b"-Inf", b"Infinity", b"-", b"-0", b"0",
        b"1", b"9" * 20, b".", b".5", b"e2", b"E", b"0x1", b"2013-01-31", b"T10:00:00Z", b"+02:00", b"#", b"//", b"'",
    ]
)  # fmt: skip
_EDITS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 4), _TOKENS), min_size=1, max_size=4)
_BASES = [
    (FLAT, lines_of(FULL, separators=(",", ":"))),
    (NESTED, lines_of(NESTS)),
    ("s STRING, d DOUBLE", lines_of([FULL[0], {}])),
]


@given(base=st.sampled_from(_BASES), edits=_EDITS)
def test_rows_that_arrow_reads_from_a_randomly_edited_block_equal_the_rows_of_the_json_parser(
    base: tuple[str, bytes], edits: Any
) -> None:
    schema, block = base
    for at, length, token in edits:
        at %= len(block) + 1
        block = block[:at] + token + block[at + length :]
    read(block, schema)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(EDGES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "n"]), inner, max_size=3),
    max_leaves=6,
)
_OBJECTS = st.dictionaries(st.sampled_from(["n", "d", "f", "m", "s", "v", "day", "at", "x", "o"]), _VALUES, max_size=4)


@given(
    rows=st.lists(_OBJECTS, max_size=3),
    schema=st.sampled_from(["x INT", FLAT, "o STRUCT<x: STRING, y: ARRAY<DOUBLE>>"]),
)
def test_rows_that_arrow_reads_from_random_objects_equal_the_rows_of_the_json_parser(rows: Any, schema: str) -> None:
    read(lines_of(rows, ensure_ascii=False), schema)
