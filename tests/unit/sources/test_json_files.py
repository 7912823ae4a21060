"""Files of JSON lines are read a block at a time, with the rows and the places of a reader of lines."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx import FileSource
from airflow_tx.base.errors import SourceError
from airflow_tx.base.rows import batch_rows, nested_columns_of
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources import MalformedRow
from airflow_tx.sources.files import rows as file_rows
from airflow_tx.sources.files import rows as rows_of_files
from airflow_tx.sources.files.rows import JsonRows

ATTEMPT = TransactionAttempt(1, 1)
SCHEMA = "n INT, s STRING, at TIMESTAMP, l ARRAY<STRUCT<d: DATE>>, m MAP<STRING, INT>"
FLAT = "n INT, s STRING, at TIMESTAMP, l ARRAY<STRUCT<d: DATE>>"
LINE = '{"n":%d,"s":"é %d","at":"2013-01-31T10:00:00Z","l":[{"d":"2013-01-31"},null],"m":{"x":1}}'
LINES = [LINE % (number, number) for number in range(40)]
WRONG = ['{"n":1.5}', '{"n":1,"n":2}', "7", "{", '{"s":"\\ud800"}', '{"n":NaN}', '{"n":1}{"n":2}', '{"l":[{"d":"x"}]}']
CONTENTS = {
    "lines": "\n".join(LINES) + "\n",
    "no last end": "\n".join(LINES),
    "CRLF": "\r\n".join(LINES) + "\r\n",
    "CR": "\r".join(LINES),
    "several kinds of ends": "".join(map("".join, zip(LINES, ["\n", "\r", "\r\n", "\n\n"] * 10, strict=True))),
    "blank lines": "\n \t\n\r\n".join(LINES),
    "a byte order mark": "\ufeff" + "\n".join(LINES),
    "a byte order mark alone": "\ufeff",
    "a byte order mark in the middle": "\n\ufeff".join(LINES),
    "long lines": "\n".join(f'{{"s":"{"x" * (number * 7)}"}}' for number in range(40)),
    "empty": "",
    "wrong lines": "\r\n".join(line for pair in zip(LINES, WRONG * 5, strict=True) for line in pair),
    "a wrong last line": "\n".join([*LINES, WRONG[0]]),
}  # fmt: skip


def by_line(content: str, schema: str, malformed: list[MalformedRow] | None) -> Any:
    """Read a file as lines, by the rule."""
    lines = io.TextIOWrapper(io.BytesIO(content.encode()), "utf-8-sig")
    try:
        return list(JsonRows(cast("Any", Path("a.json")), nested_columns_of(schema), malformed).rows(lines))
    except ValueError as error:
        return f"a.json: {error}"


def source_of(folder: Path, schema: str, **how: Any) -> tuple[FileSource, Any]:
    source = FileSource(f"{folder}/*", len(list(folder.iterdir())), format="json", schema=schema, **how)
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    return source, batch.metadata


def read(folder: Path, schema: str) -> Any:
    source, metadata = source_of(folder, schema)
    try:
        return [row for batch in source.emit_arrow(ATTEMPT, metadata) for row in batch_rows(batch)]
    except SourceError as error:
        return str(error).partition(f"refused: {folder}/")[2]


@pytest.mark.parametrize("schema", [FLAT, SCHEMA], ids=["proven", "by the rule"])
@pytest.mark.parametrize("size", [1, 7, 100, 1000, rows_of_files.BLOCK])
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_json_file_has_the_same_rows_with_blocks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, size: int, schema: str
) -> None:
    (tmp_path / "a.json").write_bytes(content.encode())
    monkeypatch.setattr(rows_of_files, "BLOCK", size)
    expected = by_line(content, schema, None)
    found = read(tmp_path, schema)
    if isinstance(expected, str):
        assert found.startswith(expected)
    else:
        assert repr(found) == repr(expected)


@pytest.mark.parametrize("size", [50, 1000, rows_of_files.BLOCK])
def test_malformed_lines_are_returned_with_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    content = CONTENTS["wrong lines"]
    (tmp_path / "a.json").write_bytes(content.encode())
    monkeypatch.setattr(rows_of_files, "BLOCK", size)
    malformed: list[MalformedRow] = []
    rows = by_line(content, SCHEMA, malformed)
    assert len(malformed) == 40
    source, metadata = source_of(tmp_path, SCHEMA, malformed="reject")
    assert [row for batch in source.emit_arrow(ATTEMPT, metadata) for row in batch_rows(batch)] == rows
    expected = [(each.content.rstrip(), each.reason, f"{tmp_path}/{each.where}") for each in malformed]
    assert [(each.content.rstrip(), each.reason, each.where) for each in source.malformed_rows] == expected


@pytest.mark.parametrize(
    ("name", "packed"), [("a.json", bytes), ("a.json.gz", gzip.compress), ("a.json.bz2", bz2.compress)]
)
def test_compressed_files_and_multiple_files_are_read_in_their_order(
    tmp_path: Path, name: str, packed: Callable[[bytes], bytes]
) -> None:
    for number in range(3):
        (tmp_path / f"{number}{name}").write_bytes(packed(f'{{"n":{number}}}\n{{"n":null}}'.encode()))
    assert read(tmp_path, "n INT") == [{"n": each} for number in range(3) for each in (number, None)]


def test_record_batches_have_the_declared_columns(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x":1,"n":2}\n' * 3)
    source, metadata = source_of(tmp_path, "n TINYINT, m DECIMAL(10,2)")
    table = source.emit_arrow(ATTEMPT, metadata).read_all()
    assert str(table.schema) == "n: int8\nm: decimal128(10, 2)"
    assert table.to_pylist() == [{"n": 2, "m": None}] * 3


@pytest.mark.parametrize("other", ["", '{"s":1}\n'], ids=["proven", "by the rule"])
def test_reading_a_json_file_needs_the_memory_of_one_block(
    tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rows, "_MOST_THREADS", 1)
    line = json.dumps({"s": "x" * 10_000})
    with (tmp_path / "a.json").open("w") as file:
        file.writelines(other + f"{line}\n" for _ in range(6000))
    source, metadata = source_of(tmp_path, "s STRING")
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    for _ in source.emit_arrow(ATTEMPT, metadata):
        assert pa.total_allocated_bytes() - before < 3 * rows_of_files.BLOCK
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 7 * rows_of_files.BLOCK


def test_arrow_reads_a_complete_block_of_a_json_file_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n":1}\n' * 50_000 + '{"n":1,"x":2}\n')
    source, metadata = source_of(tmp_path, "n INT")
    assert [each.num_rows for each in source.emit_arrow(ATTEMPT, metadata)] == [50_001]
