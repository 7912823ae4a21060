"""Read csv files and JSON lines as record batches, one block at a time. There are two readers.

The Python reader parses row by row, and defines the correct result. Arrow is faster. It reads the blocks for which
checks prove that both readers agree. The Python reader reads the others. If a value does not fit the schema, the error
of the Python reader has the line and the value.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import (
    BLANKS,
    ColumnType,
    NotProven,
    UnfitText,
    arrow_types_of,
    objects_batch,
    parsed_object,
    reader_of_dicts,
    typed_column,
)
from airflow_tx.sources.api import MalformedRow
from airflow_tx.sources.files.schema import CsvFormat, Misfit, check_first
from airflow_tx.sources.files.storage import FilePath

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
else:
    np = LazyModule("numpy")
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")


_TEXT = ColumnType.named("STRING")
_TEXTS_KEPT = 4096
# Settings with which Python writes JSON in the same form as Spark.
_AS_SPARK: Mapping[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
_BOM = "\ufeff".encode()
# Number of blocks at the start of a file that are read without other threads.
_FEW = 2
_MOST_THREADS = 4
_Row = dict[str, Any]


# --- rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """A block of rows.

    :param content: bytes of the block.
    :param before: number of lines of the file before the block.
    :param proven: function that returns the rows that Arrow read. It raises the error of `_proven` if the Python reader
        must read the block.
    """

    content: bytes
    before: int
    proven: Callable[[], pa.RecordBatch]


class RowsOfFile(ABC):
    """Reads the rows of one file.

    :param path: path of the file, for errors.
    :param columns: columns of the rows. An empty list means the columns of the file.
    :param malformed: list to which malformed rows are added, or None to raise an error for a malformed row.
    """

    def __init__(
        self,
        path: FilePath,
        columns: Mapping[str, ColumnType],
        malformed: list[MalformedRow] | None,
    ) -> None:
        self.path = path
        self.columns = columns
        self.malformed = malformed

    @cached_property
    def _types(self) -> Mapping[str, pa.DataType]:
        return arrow_types_of(self.columns)

    def batches(self, file: BinaryIO) -> Iterator[pa.RecordBatch]:
        """Read the file as record batches.

        :raises ValueError: a row does not fit the schema, or the file does not have the declared format.
        """
        blocks = self._blocks(file)
        ahead = deque[_Block]()
        for block in self._read_ahead(blocks, ahead):
            try:
                batch = block.proven()
            except (NotProven, ValueError):
                following = chain((each.content for each in _popped(ahead)), blocks)
                rows = self._by_rows(self._unproven(block.content, following), block.before)
                yield from reader_of_dicts(rows, self._types)
            else:
                yield batch

    def _read_ahead(self, blocks: Iterator[bytes], ahead: deque[_Block]) -> Iterator[_Block]:
        """Yield blocks of rows. For a large file, threads read the next blocks while the caller processes one.

        :param ahead: queue of the blocks that threads have read.
        """
        threads = min(pa.cpu_count(), _MOST_THREADS)
        with ThreadPoolExecutor(threads) as pool:
            for number, (content, before) in enumerate(self._numbered(blocks)):
                prove = partial(self._proven, content)
                if number < _FEW or threads == 1:
                    yield _Block(content, before, prove)
                    continue
                ahead.append(_Block(content, before, pool.submit(prove).result))
                if len(ahead) > threads:
                    yield ahead.popleft()
            yield from _popped(ahead)

    def _numbered(self, blocks: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
        """Yield each block of rows, with the number of lines before it."""
        before = 0
        for given in blocks:
            block, lines = self._behind_header(given if before else self._begun(given), before)
            before += lines
            if block:
                yield block, before
            before += _lines_in(block)

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        return line_blocks(file)

    def _begun(self, block: bytes) -> bytes:
        """Return the first block without its byte order mark."""
        return block.removeprefix(_BOM)

    def _behind_header(self, block: bytes, before: int) -> tuple[bytes, int]:
        """Remove the header from the start of a block. Return the rest, and the number of removed lines."""
        return block, 0

    def _unproven(self, block: bytes, blocks: Iterator[bytes]) -> Iterable[bytes]:
        """Return the blocks that the Python reader must read, because Arrow may read one of them differently."""
        return [block]

    @abstractmethod
    def _proven(self, block: bytes) -> pa.RecordBatch:
        """Read a block with Arrow.

        :raises NotProven, ValueError: the Python reader must read the block.
        """

    @abstractmethod
    def _by_rows(self, blocks: Iterable[bytes], before: int) -> Iterator[_Row]:
        """Read blocks with the Python reader.

        :param before: number of lines of the file before the blocks.
        :raises ValueError: a row does not fit the schema, and `malformed` is None.
        """

    def _refuse(self, error: ValueError, content: str, reason: str, line: int) -> None:
        """Append a misfit row to `malformed`. Raise an error instead if `malformed` is None."""
        if self.malformed is None:
            raise error from None
        where = f"{self.path}:{line}"
        self.malformed.append(MalformedRow(content.removesuffix("\n"), reason, where))

    def _refuse_value(
        self, name: str, value: Any, content: str, line: int, error: ValueError
    ) -> None:
        kind = self.columns[name].ddl
        problem = f"{value!r:.100} does not fit the schema ({name} {kind}): {error}"
        place = f"line {line}: {name}"
        misfit = Misfit(f"{place} = {problem}", name, place)
        self._refuse(misfit, content, f"column {name} {kind}: {error}", line)


class CsvRows(RowsOfFile):
    """Reads the rows of a csv file.

    :param written: format of the file.
    :param by_name: whether to match fields to columns by the header. A missing column is then NULL.
    :param named: columns defined by the folder's name. The file may lack them.
    """

    def __init__(
        self,
        path: FilePath,
        columns: Mapping[str, ColumnType],
        malformed: list[MalformedRow] | None,
        *,
        written: CsvFormat,
        by_name: bool,
        named: Set[str] = frozenset(),
    ) -> None:
        super().__init__(path, columns, malformed)
        self.written = written
        self.by_name = by_name
        self.named = named
        self._names: Sequence[str] = ()

    def rows(self, lines: Iterable[str]) -> Iterator[_Row]:
        """Read all lines of the file with the Python reader."""
        taken: list[str] = []
        with self.written.reader(lines, taken) as reader:
            first = self.written.first(reader)
            if not first:
                return
            self._take_names(first)
            if self.written.header:
                taken.clear()
            yield from self._records(reader, taken, 0, () if self.written.header else (first,))

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        quote = self.written.quote if self.written.several else ""
        return line_blocks(file, quote.encode(self.written.encoding))

    def _begun(self, block: bytes) -> bytes:
        return super()._begun(block) if self.written.utf8 else block

    def _behind_header(self, block: bytes, before: int) -> tuple[bytes, int]:
        if self._names:
            return block, 0
        taken: list[str] = []
        lines = self.written.lines(block, errors="surrogateescape")
        with self.written.reader(lines, taken, before) as reader:
            first = self.written.first(reader)
        head = "".join(taken).encode(self.written.encoding, "surrogateescape")
        head.decode(self.written.encoding)
        if first:
            self._take_names(first)
        if first and not self.written.header:
            return block, 0
        return block[len(head) :], len(taken)

    def _take_names(self, first: list[str]) -> None:
        names = self.written.names(first)
        # The file may lack columns that the folder name defines.
        lacking = self.named - set(names) if len(first) < len(self.columns) else ()
        columns = [name for name in self.columns if name not in lacking]
        self._names = (
            check_first(self.written, first, columns, by_name=self.by_name) if columns else names
        )

    def _proven(self, block: bytes) -> pa.RecordBatch:
        types = {name: self._types[name] for name in self._names}
        found = csv_batch(self.written.in_utf8(block), types, self.written)
        texts = dict(zip(self._names, found.columns, strict=True))
        columns = [
            typed_column(texts[name], kind, self._types[name])
            if name in texts
            else pa.nulls(found.num_rows, self._types[name])
            for name, kind in self.columns.items()
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(self._types))

    def _unproven(self, block: bytes, blocks: Iterator[bytes]) -> Iterable[bytes]:
        # A quote within a text may hide the end of a row. The Python reader must therefore read all
        # following blocks.
        return chain([block], blocks) if self.written.several else [block]

    def _by_rows(self, blocks: Iterable[bytes], before: int) -> Iterator[_Row]:
        taken: list[str] = []
        lines = (line for block in blocks for line in self.written.lines(block))
        with self.written.reader(lines, taken, before) as reader:
            yield from self._records(reader, taken, before)

    def _records(
        self, reader: Any, taken: list[str], before: int, first: Iterable[list[str]] = ()
    ) -> Iterator[_Row]:
        """Yield the rows of a csv reader.

        :param taken: list that the reader fills with the lines of the current record.
        """
        names = self._names
        typed = {
            name: self.columns[name] for name in names if self.columns.get(name, _TEXT) != _TEXT
        }
        # Most columns repeat texts. A cache lookup takes a tenth of the time of a conversion.
        read = {name: lru_cache(_TEXTS_KEPT)(kind.of_text) for name, kind in typed.items()}
        nulls = ("", self.written.null)
        lacking = dict.fromkeys(self.columns) if [*names] != [*self.columns] else {}
        for fields in chain(first, reader):
            place = before + reader.line_num
            content = "".join(taken)
            taken.clear()
            if not fields:
                continue
            if len(fields) != len(names):
                problem = f"{len(fields)} fields, and {len(names)} columns"
                error = ValueError(f"line {place}: {problem}")
                self._refuse(error, content.strip("\r\n"), problem, place)
                continue
            texts = {
                name: None if text in nulls else text
                for name, text in zip(names, fields, strict=True)
            }
            row: _Row = {**texts}
            try:
                for name, of_text in read.items():
                    if (text := texts[name]) is not None:
                        row[name] = of_text(text)
            except ValueError as error:
                given = json.dumps({**lacking, **texts}, **_AS_SPARK)
                self._refuse_value(name, texts[name], given, place, error)
                continue
            yield {**lacking, **row} if lacking else row


class JsonRows(RowsOfFile):
    """Reads the rows of a file with one JSON object per line."""

    def rows(self, lines: Iterable[str], before: int = 0) -> Iterator[_Row]:
        """Read lines with the Python reader."""
        for number, line in enumerate(lines, before + 1):
            if not line.strip(" \t\r\n"):
                continue
            try:
                row = parsed_object(line, exact=bool(self.columns))
            except ValueError as error:
                at = f"line {number}"
                misfit = Misfit(f"{at}: {error}", place=UnfitText.place_of(error, within=at))
                self._refuse(misfit, line, UnfitText.reason_of(error), number)
                continue
            if not self.columns:
                yield row
                continue
            try:
                for name, kind in self.columns.items():
                    row[name] = None if row.get(name) is None else kind.of_json(row[name])
            except ValueError as error:
                self._refuse_value(name, row[name], line, number, error)
                continue
            yield {name: row[name] for name in self.columns}

    def _proven(self, block: bytes) -> pa.RecordBatch:
        return objects_batch(block, self.columns)

    def _by_rows(self, blocks: Iterable[bytes], before: int) -> Iterator[_Row]:
        lines = (line for block in blocks for line in io.TextIOWrapper(io.BytesIO(block), "utf-8"))
        return self.rows(lines, before)


def _popped(ahead: deque[_Block]) -> Iterator[_Block]:
    while ahead:
        yield ahead.popleft()


def _lines_in(block: bytes) -> int:
    """Count lines as Python's text reader does. A lone carriage return also ends a line."""
    alone = block.count(b"\r") - block.count(b"\r\n") if b"\r" in block else 0
    return block.count(b"\n") + alone


# --- blocks of lines ----------------------------------------------------------------------------------------------


BLOCK = 8 * 1024 * 1024
"""Number of bytes of a file that are read at once."""


def line_blocks(file: BinaryIO, quote: bytes = b"") -> Iterator[bytes]:
    """Divide a file into blocks, each of which ends with a complete row.

    :param quote: quote character if quoted values may have several lines, or else "".
    """
    parts: list[bytes] = []
    quotes = 0
    while len(more := file.read(BLOCK)) == BLOCK:
        end = _last_end(more, quote, within=quotes % 2 == 1)
        if end:
            yield b"".join([*parts, more[:end]])
            parts.clear()
            quotes = 0
        parts.append(more[end:])
        quotes += parts[-1].count(quote) if quote else 0
    if rest := b"".join([*parts, more]):
        yield rest


def _last_end(block: bytes, quote: bytes, *, within: bool) -> int:
    """Return the offset after the last complete row of a block. Return 0 if the block has no complete row.

    :param within: whether the block begins between quotes.
    """
    if not quote or (not within and quote not in block):
        return block.rfind(b"\n") + 1 or block.rfind(b"\r", 0, -1) + 1
    raw = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(raw == ord("\n"))
    if not len(ends):
        ends = np.flatnonzero(raw[:-1] == ord("\r"))
    parity = np.searchsorted(np.flatnonzero(raw == quote[0]), ends) + within
    outside = ends[parity % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


# --- csv ----------------------------------------------------------------------------------------------------------


def csv_batch(block: bytes, types: Mapping[str, pa.DataType], written: CsvFormat) -> pa.RecordBatch:
    """Parse a UTF-8 block into columns of texts and integers.

    :param types: final types of the columns.
    :raises NotProven: the Python reader may parse the block differently.
    """
    _check_csv(block, written)
    whole = {name: kind for name, kind in types.items() if pa.types.is_integer(kind)}
    if whole and _may_have_hexadecimal(block, written):
        whole = {}
    texts = dict.fromkeys(types, pa.string())
    try:
        found = _divided(block, {**texts, **whole}, written)
    except pa.ArrowException as error:
        if not whole:
            raise NotProven(str(error)) from None
        return csv_batch(block, texts, written)
    if len(texts) == 1 and not written.several:
        _check_blank_lines(found.column(0))
    return found


def _check_csv(block: bytes, written: CsvFormat) -> None:
    if not (written.separator + written.quote).isascii():
        raise NotProven("a separator that is not ASCII")
    if b"\0" in block or block.startswith("\ufeff".encode()):
        raise NotProven("a NUL or a byte order mark")
    if written.quote and written.quote.encode() in block:
        _check_quotes(block, written)


def _divided(block: bytes, types: Mapping[str, pa.DataType], written: CsvFormat) -> pa.RecordBatch:
    from pyarrow import csv

    table = csv.read_csv(
        pa.BufferReader(block),
        read_options=csv.ReadOptions(
            use_threads=False, block_size=len(block) + 1, column_names=list(types)
        ),
        parse_options=csv.ParseOptions(
            delimiter=written.separator,
            quote_char=written.quote or False,
            double_quote=True,
            escape_char=False,
            newlines_in_values=written.several,
            ignore_empty_lines=True,
        ),
        convert_options=csv.ConvertOptions(
            check_utf8=True,
            column_types=types,
            null_values=["", written.null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    )
    found = table.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=table.schema)


def _check_quotes(block: bytes, written: CsvFormat) -> None:
    """Prove that each quote starts or ends a field, or is doubled within a field."""
    raw = np.frombuffer(block, np.uint8)
    places = np.flatnonzero(raw == ord(written.quote))
    if len(places) % 2:
        raise NotProven("an odd number of quotes")
    opening = places[::2]
    closing = places[1::2]
    borders = np.array([ord(written.separator), ord("\n"), ord("\r")], np.uint8)
    is_doubled = opening[1:] == closing[:-1] + 1
    begins = (opening == 0) | np.isin(raw[np.maximum(opening - 1, 0)], borders)
    begins[1:] |= is_doubled
    ends = (closing == len(raw) - 1) | np.isin(raw[np.minimum(closing + 1, len(raw) - 1)], borders)
    ends[:-1] |= is_doubled
    if not (begins.all() and ends.all()):
        raise NotProven("a quote within a field")
    if not written.several:
        line_ends = np.flatnonzero((raw == ord("\n")) | (raw == ord("\r")))
        if (np.searchsorted(places, line_ends) % 2).any():
            raise NotProven("a line end within quotes")


def _may_have_hexadecimal(block: bytes, written: CsvFormat) -> bool:
    """Return whether a field may start with 0x, which Arrow would parse as a hexadecimal number."""
    raw = np.frombuffer(block, np.uint8)
    marks = np.flatnonzero((raw | 32) == ord("x"))
    marks = marks[marks > 0]
    zeros = marks[raw[marks - 1] == ord("0")] - 1
    before = np.frombuffer(f"{written.separator}{written.quote}\n\r \t+-".encode(), np.uint8)
    return bool(((zeros == 0) | np.isin(raw[np.maximum(zeros - 1, 0)], before)).any())


def _check_blank_lines(column: pa.Array) -> None:
    """Prove that a single-column file has no blank lines, which the Python reader would omit."""
    if pa.types.is_string(column.type):
        blank = pc.equal(pc.utf8_length(pc.utf8_trim(column, BLANKS)), 0)
        if pc.any(blank).as_py():
            raise NotProven("a blank line")
