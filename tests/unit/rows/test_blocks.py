"""Blocks of csv: Arrow reads what the rule reads, or the rule reads it."""

from __future__ import annotations

import datetime as dt
import io
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_tx.base.rows import blocks
from airflow_tx.base.rows.blocks import NotProven, typed_column
from airflow_tx.base.rows.types import arrow_types_of, batch_rows, columns_of
from airflow_tx.sources.api import MalformedRow
from airflow_tx.sources.files import rows as file_rows
from airflow_tx.sources.files.rows import CsvRows, csv_batch, line_blocks
from airflow_tx.sources.files.schema import CsvFormat
from examples.flights import OPTIONS, SCHEMA, write_months
from tests.edges.values import EDGES, TEXTS, TYPES

KINDS = {name: columns_of(f"c {name}")["c"] for name in TYPES}
ARROW = {name: arrow_types_of({"c": kind})["c"] for name, kind in KINDS.items()}
REFUSED = "refused"


def by_the_rule(name: str, texts: list[str | None]) -> Any:
    try:
        return [None if text is None else KINDS[name].of_text(text) for text in texts]
    except ValueError:
        return REFUSED


def as_a_column(name: str, texts: list[str | None]) -> Any:
    try:
        column = typed_column(pa.array(texts, pa.string()), KINDS[name], ARROW[name])
    except ValueError:
        return REFUSED
    assert column.type == ARROW[name]
    return [row["c"] for row in batch_rows(pa.record_batch([column], names=["c"]))]


def accepted(name: str) -> list[str]:
    return [text for text in EDGES if by_the_rule(name, [text]) != REFUSED]


@pytest.mark.parametrize("name", TYPES)
def test_a_column_with_one_edge_text_is_read_or_refused_in_the_same_way_as_row_by_row(name: str) -> None:
    differ = [
        (text[:50], expected, found)
        for text in EDGES
        if repr(expected := by_the_rule(name, [text])) != repr(found := as_a_column(name, [text]))
    ]
    assert differ == []


@pytest.mark.parametrize("name", TYPES)
def test_an_edge_text_next_to_an_ordinary_text_is_read_or_refused_like_row_by_row(name: str) -> None:
    ordinary = accepted(name)[0]
    differ = [
        (text[:50], expected, found)
        for text in EDGES
        if repr(expected := by_the_rule(name, [ordinary, text, None]))
        != repr(found := as_a_column(name, [ordinary, text, None]))
    ]
    assert differ == []


@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_accepted_texts_is_read_in_the_same_way_as_row_by_row(name: str) -> None:
    texts = [None, *accepted(name), None]
    assert repr(as_a_column(name, texts)) == repr(by_the_rule(name, texts))


@given(name=st.sampled_from(TYPES), texts=st.lists(st.none() | TEXTS, max_size=5))
def test_a_column_of_arbitrary_texts_is_read_or_refused_in_the_same_way_as_row_by_row(
    name: str, texts: list[str | None]
) -> None:
    assert repr(as_a_column(name, texts)) == repr(by_the_rule(name, texts))


def test_a_slice_of_a_column_contains_only_its_own_texts() -> None:
    texts = pa.array(["x", "2013-01-31T10:00:00Z", "2013-01-31T11:00:00Z", "y"])
    column = typed_column(texts[1:3], KINDS["TIMESTAMP"], ARROW["TIMESTAMP"])
    assert [each["c"].hour for each in batch_rows(pa.record_batch([column], names=["c"]))] == [10, 11]


def test_times_in_rows_are_in_utc() -> None:
    column = pa.array([dt.datetime(2013, 1, 31, 10, tzinfo=dt.timezone.utc), None], pa.timestamp("us", "UTC"))
    (first, second) = batch_rows(pa.record_batch([column], names=["c"]))
    assert first["c"].tzinfo is dt.timezone.utc
    assert second == {"c": None}


# --- blocks of lines ----------------------------------------------------------------------------------------------


@given(
    content=st.text('a,"\n\r', max_size=40).map(str.encode), size=st.integers(1, 12), quote=st.sampled_from([b"", b'"'])
)
@example(content=b"ab\r\ncd", size=3, quote=b"")
def test_a_file_is_divided_into_blocks_only_at_the_ends_of_rows(content: bytes, size: int, quote: bytes) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_rows, "BLOCK", size)
        found = [*line_blocks(io.BytesIO(content), quote)]
    assert b"".join(found) == content
    for block, following in pairwise(found):
        assert block.endswith((b"\n", b"\r"))
        assert not (block.endswith(b"\r") and following.startswith(b"\n"))
        assert not quote or block.count(quote) % 2 == 0


def test_a_block_is_only_as_long_as_its_rows_require() -> None:
    content = b"x" * 10 + b"\n" + b"y" * 10 + b"\n"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_rows, "BLOCK", 4)
        assert [*line_blocks(io.BytesIO(content))] == [b"x" * 10 + b"\n", b"y" * 10 + b"\n"]


# --- csv files ----------------------------------------------------------------------------------------------------


_FORMATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no header": {"header": False},
    "several lines": {"multiLine": True},
    "tabs": {"sep": "\t"},
    "no quote": {"quote": ""},
    "other quote": {"quote": "'", "sep": ";"},
    "other separators than ASCII": {"sep": "→", "quote": "«"},
    "latin": {"encoding": "latin1"},
    "null": {"nullValue": "a"},
}
_PARTS = st.sampled_from([
    "a", "1", " ", "b,", ",", ",,", '"', '""', "'", ";", "\t", "\n", "\n\n", "\r\n", "\r", " \n", '"a"', '"a,b"',
    '"a\nb"', '"a""b"', '" ', "é", "\ufeff", "\0", "0x1", "x,y\n", "1,2\n", '"1","2"\n', "NA",
])  # fmt: skip


def read(
    content: bytes, options: dict[str, Any], columns: str, *, by_name: bool, native: bool, size: int = 64, few: int = 2
) -> Any:
    """Read a csv file by Arrow and the rule, or by the rule alone; what is wrong with it, in place of its rows."""
    written = CsvFormat.of({"header": True, **options})
    malformed: list[MalformedRow] = []
    rows = CsvRows(Path("f"), columns_of(columns), malformed, written=written, by_name=by_name)
    try:
        if native:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(file_rows, "BLOCK", size)
                patched.setattr(file_rows, "_FEW", few)
                found = [row for batch in rows.batches(io.BytesIO(content)) for row in batch_rows(batch)]
        else:
            found = [*rows.rows(io.TextIOWrapper(io.BytesIO(content), _named(written.encoding), newline=""))]
    except ValueError as error:
        return type(error).__name__, str(error) if not isinstance(error, UnicodeError) else ""
    return found, malformed


@pytest.fixture(scope="module")
def several_processors() -> Iterator[None]:
    found = pa.cpu_count()
    pa.set_cpu_count(3)
    yield
    pa.set_cpu_count(found)


def _named(encoding: str) -> str:
    return "utf-8-sig" if encoding == "utf-8" else encoding


@example(parts=['"'], form="several lines", columns="a STRING, b STRING", by_name=False, size=3, few=0)
@given(
    parts=st.lists(_PARTS, max_size=14),
    form=st.sampled_from(sorted(_FORMATS)),
    columns=st.sampled_from(["a STRING, b STRING", "a INT, b STRING", "a STRING", "a INT"]),
    by_name=st.booleans(),
    size=st.integers(3, 30),
    few=st.sampled_from([0, 1, 100]),
)
def test_a_csv_file_that_is_read_in_blocks_has_the_same_rows_and_refusals_as_row_by_row(
    several_processors: None, parts: list[str], form: str, columns: str, by_name: bool, size: int, few: int
) -> None:
    options = _FORMATS[form]
    separator = options.get("sep", ",")
    header = separator.join(columns_of(columns)) + "\n" if options.get("header", True) else ""
    content = (header + "".join(parts)).encode("latin1" if form == "latin" else "utf-8", "replace")
    how = {"by_name": by_name and bool(header)}
    expected = read(content, options, columns, native=False, **how)
    found = read(content, options, columns, native=True, size=size, few=few, **how)
    if "unexpected end of data" in str(found):  # the block ends, and the file goes on
        assert expected[0] == found[0] == "UnfitText"
    else:
        assert found == expected


def test_threads_read_the_next_blocks_of_a_large_file_and_keep_only_a_few_of_them(
    several_processors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noted(CsvRows):
        provers: ClassVar[list[int]] = []

        def _proven(self, block: bytes) -> pa.RecordBatch:
            self.provers.append(threading.get_ident())
            return super()._proven(block)

    block = b"1\n" * 8
    file = io.BytesIO(b"n\n" + block * 20)
    monkeypatch.setattr(file_rows, "BLOCK", len(block))
    rows = Noted(Path("f"), columns_of("n INT"), None, written=CsvFormat.of({"header": True}), by_name=False)
    batches = rows.batches(file)
    held = [(next(batches).num_rows, file.tell() // len(block)) for _ in range(5)]
    assert [blocks_read - taken for taken, (_, blocks_read) in enumerate(held, 1)] == [0, 0, 3, 3, 3]
    assert sum(batch.num_rows for batch in batches) + sum(count for count, _ in held) == 160
    own = threading.get_ident()
    assert [each == own for each in Noted.provers] == [True] * 2 + [False] * (len(Noted.provers) - 2)


def test_arrow_reads_all_blocks_of_the_flights_and_no_block_is_read_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_rows(*_: Any) -> Any:
        raise AssertionError("the rule was asked")

    monkeypatch.setattr(CsvRows, "_by_rows", by_rows)
    monkeypatch.setattr(blocks, "_by_the_rule", by_rows)
    path = write_months(tmp_path)[0]
    written = CsvFormat.of({"header": True, **OPTIONS})
    rows = CsvRows(path, columns_of(SCHEMA), None, written=written, by_name=False)
    with path.open("rb") as file:
        assert sum(batch.num_rows for batch in rows.batches(file)) == len(path.read_text().splitlines()) - 1


@pytest.mark.parametrize(
    ("block", "cause"),
    [
        ("a\0,b\n", "NUL"),
        ("\ufeffa,b\n", "byte order mark"),
        ('a,"b\n', "odd number of quotes"),
        ('a"b",c\n', "quote within a field"),
        ('"a" ,c\n', "quote within a field"),
        ('"a\nb",c\n', "line end within quotes"),
        ("a\n", "Expected 2 columns"),
    ],
)
def test_a_block_that_readers_divide_differently_is_read_row_by_row(block: str, cause: str) -> None:
    written = CsvFormat.of({"header": True})
    with pytest.raises(NotProven, match=cause):
        csv_batch(block.encode(), {"a": pa.string(), "b": pa.string()}, written)


def test_a_blank_line_in_a_file_with_one_column_is_read_row_by_row() -> None:
    with pytest.raises(NotProven, match="blank line"):
        csv_batch(b"x\n \t\ny\n", {"a": pa.string()}, CsvFormat.of({}))
