"""The columns of files. A source declares them in Spark's DDL, or they are inferred from the first csv files."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, BinaryIO, TextIO, cast

from airflow_tx.base.rows import BLANKS, UnfitText, columns_of, ddl_of
from airflow_tx.sources.files.storage import Content, FilePath
from airflow_tx.sources.packed_names import pack, unpack

# --- csv format ---------------------------------------------------------------------------------------------------
# The csv format, from the options of Spark's reader that this package also supports without Spark.


# Option values that do not change a file's rows, if it is read strictly and with a schema.
_NEUTRAL = {
    "enforceschema": ("false", "true"),
    "mode": ("failfast",),
    "columnpruning": ("false", "true"),
}
_KNOWN = {
    "header", "sep", "delimiter", "nullvalue", "encoding", "charset", "quote", "inferschema", "multiline",
}  # fmt: skip
_SINGLE_BYTE = ("ascii", "iso8859", "cp125", "latin")
_COMPRESSED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
_ONLY_SPARK = (".deflate", ".lz4", ".snappy", ".zst", ".zstd")
_BZ2_END = 0x177245385090
"""The marker at the end of a .bz2 stream, before a 32-bit checksum and up to 7 bits of padding."""
_NO_BZ2 = "Invalid data stream"


@dataclass(frozen=True)
class CsvFormat:
    """The format of csv files.

    :param separator: character between fields.
    :param quote: quote character, or "" for none.
    :param null: text that means NULL. An empty text also means NULL.
    :param several: whether a quoted value may have several lines.
    :param header: whether the first line contains the names of the columns.
    :param encoding: encoding of the text.
    :param typed: whether to infer the types of columns from their values. Otherwise columns are texts.
    """

    separator: str
    quote: str
    null: str
    several: bool
    header: bool
    encoding: str
    typed: bool

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CsvFormat:
        """Return the csv format that Spark's reader options define.

        :raises ValueError: only Spark supports an option.
        """
        given = named_as_spark(options)
        check_neutral(given, _KNOWN)
        separator = str(given.get("sep", given.get("delimiter", ",")))
        quote = str(given.get("quote", '"'))
        for name, value in (("sep", separator), ("quote", quote)):
            if len(value) > 1 or (name == "sep" and not value):
                raise UnfitText(f"only Spark supports the option {name}={value!r}")
        return cls(
            header=is_true(given.get("header")),
            separator=separator,
            quote=quote.strip("\x00"),
            null=str(given.get("nullvalue", "")),
            encoding=_encoding(str(given.get("encoding", given.get("charset", "utf-8")))),
            typed=is_true(given.get("inferschema")),
            several=is_true(given.get("multiline")),
        )

    @property
    def utf8(self) -> bool:
        return self.encoding == "utf-8"

    @contextmanager
    def open(self, path: FilePath) -> Iterator[Any]:
        """Open a csv reader of a file. See `reader`."""
        with opened_text(path, self.encoding, newline="") as file, self.reader(file) as reader:
            yield reader

    @contextmanager
    def reader(
        self, lines: Iterable[str], taken: list[str] | None = None, before: int = 0
    ) -> Iterator[Any]:
        """Open a csv reader of lines. Its errors become ValueErrors.

        :param lines: lines of the file.
        :param taken: list that receives each line that the reader reads.
        :param before: number of lines of the file before these lines.
        """
        csv.field_size_limit(sys.maxsize)
        reader = csv.reader(
            self._lines(lines if taken is None else _noted(lines, taken), before),
            delimiter=self.separator,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            strict=True,
        )
        try:
            yield reader
        except csv.Error as error:
            line = before + reader.line_num
            raise UnfitText(f"line {line} is not csv: {error}") from None

    def lines(self, block: bytes, errors: str = "strict") -> Iterable[str]:
        """Divide a block of a file into lines."""
        return io.TextIOWrapper(io.BytesIO(block), self.encoding, errors, newline="")

    def in_utf8(self, block: bytes) -> bytes:
        """Convert a block of a file to UTF-8."""
        return block if self.utf8 else block.decode(self.encoding).encode()

    def _lines(self, file: Iterable[str], before: int) -> Iterator[str]:
        """Yield lines. Raise an error for a line that csv readers interpret differently."""
        blanks = BLANKS.replace(self.separator, "")
        for number, line in enumerate(file, before + 1):
            if self.quote and not self.several and line.count(self.quote) % 2:
                raise UnfitText(
                    f"line {number} has a quote that is not closed in it; if values have several lines, give the "
                    "source options={'multiLine': True}"
                )
            if not self.several and not line.strip(blanks):
                line = "\n"
            yield line

    def first(self, reader: Iterator[list[str]]) -> list[str]:
        """Return the fields of the first non-blank line, or [] if there is none."""
        return next((fields for fields in reader if fields), [])

    def names(self, first: list[str]) -> list[str]:
        """Return the column names from the header. Unnamed columns get the names that Spark would use.

        :param first: fields of the first line.
        :raises ValueError: two columns have the same name.
        """
        if not self.header:
            return [f"_c{number}" for number in range(len(first))]
        names = [name or f"_c{number}" for number, name in enumerate(first)]
        known = set[str]()
        for name in names:
            if name.lower() in known:
                raise UnfitText(f"column {name!r} occurs twice in the header")
            known.add(name.lower())
        return names


def _noted(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    for line in lines:
        taken.append(line)
        yield line


@contextmanager
def opened_text(
    path: FilePath, encoding: str, *, newline: str | None = None, content: Content | None = None
) -> Iterator[TextIO]:
    """Open a text file like `opened_bytes`. Omit its byte order mark.

    :param content: expected content, which is checked during the read. The file is then read in one call, so it must be
        small.
    """
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    with opened_bytes(path, content) as file:
        read = file if content is None else io.BytesIO(file.read())
        with io.TextIOWrapper(read, encoding, newline=newline) as text:
            yield text


@contextmanager
def opened_bytes(path: FilePath, content: Content | None = None) -> Iterator[BinaryIO]:
    """Open a file, and decompress it if necessary.

    :param content: expected content, which is checked during the read.
    :raises ValueError: only Spark supports the compression, or the compressed file is damaged.
    """
    suffix = f".{path.name.rpartition('.')[2]}".lower()
    if suffix in _ONLY_SPARK:
        raise UnfitText(f"{suffix} files are not read; compress it as .gz or .bz2")
    with path.open("rb") as raw:
        file = cast("BinaryIO", raw)
        if content is not None:
            file = content.digested(file)
        if suffix not in _COMPRESSED:
            yield file
            return
        check_end(path)
        with _COMPRESSED[suffix](file, "rb") as unpacked:
            try:
                yield unpacked
            except EOFError:
                raise UnfitText(f"the {suffix} file ends too early") from None
            except (OSError, zlib.error) as error:
                if not isinstance(error, (gzip.BadGzipFile, zlib.error)) and str(error) != _NO_BZ2:
                    raise
                raise UnfitText(f"the {suffix} file is damaged ({error})") from None


def check_end(path: FilePath) -> None:
    """Check that a compressed file is complete.

    Spark does not detect an empty file, or a .bz2 file that was truncated between two blocks. Spark would read too few
    rows.

    :raises ValueError: the file is truncated.
    """
    suffix = f".{path.name.rpartition('.')[2]}".lower()
    if suffix not in _COMPRESSED:
        return
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 11))
        end = cast("bytes", file.read())
    bits = int.from_bytes(end, "big")
    is_whole = suffix != ".bz2" or any((bits >> at) % 2**48 == _BZ2_END for at in range(32, 40))
    if not end or not is_whole:
        raise UnfitText(f"the {suffix} file ends too early")


def named_as_spark(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with lower-case names, since Spark ignores the case.

    File system options (``fs.``) are omitted.
    """
    return {
        key.lower(): value for key, value in options.items() if not key.lower().startswith("fs.")
    }


def check_neutral(given: Mapping[str, Any], known: Iterable[str] = ()) -> None:
    """Check options from `named_as_spark`.

    :param known: other supported options.
    :raises ValueError: only Spark supports an option.
    """
    for name, value in sorted(given.items()):
        if name not in known and str(value).lower() not in _NEUTRAL.get(name, ()):
            shown = f"{name}={value!r}" if name in _NEUTRAL else repr(name)
            raise UnfitText(f"only Spark supports the option {shown}")


def has_only(given: Mapping[str, Any]) -> bool:
    """Return whether `check_neutral` accepts all options from `named_as_spark`."""
    try:
        check_neutral(given)
    except ValueError:
        return False
    return True


def is_true(value: Any) -> bool:
    """Return whether an option's value means true."""
    return str(value).lower() == "true"


def _encoding(name: str) -> str:
    try:
        found = codecs.lookup(name).name
    except LookupError:
        found = name
    if found != "utf-8" and not found.startswith(_SINGLE_BYTE):
        raise UnfitText(f"only Spark can read the encoding {name!r}")
    return found


# --- schema -------------------------------------------------------------------------------------------------------


TYPED_ROWS = 100_000
"""Number of rows of the first batch that `begin` reads to infer column types."""

LONGEST_SHOWN = 1_000
"""Maximum number of characters of a header or schema in an error message."""


LONG = 10_000
"""The minimum length of a schema to compress. The metadata and position of each batch include the schema."""
_PACKED = "zlib:"


class Misfit(UnfitText):
    """Signals that the columns of a file differ from its schema, or that a value does not have the type of its column.

    :ivar column: column of the value, or None if the columns differ.
    """

    def __init__(self, problem: str, column: str | None = None, place: str = "") -> None:
        super().__init__(problem, place=place)
        self.column = column


def packed(schema: str) -> str:
    """Convert a schema to its stored form."""
    return schema if len(schema) <= LONG or "\0" in schema else _PACKED + pack([schema])


def unpacked(kept: str | None) -> str | None:
    """Return the schema from the result of `packed`."""
    if kept is None or not kept.startswith(_PACKED):
        return kept
    return "".join(unpack(kept.removeprefix(_PACKED)))


def with_columns_of(path: FilePath, options: Mapping[str, Any], schema: str) -> str | None:
    """Return the schema with a csv file's new columns appended. Return None if the columns have no names."""
    found = find_schema([path], options)
    if found is None:
        return None
    known = columns_of(schema)
    new = {name: kind.ddl for name, kind in columns_of(found).items() if name not in known}
    return f"{schema}, {ddl_of(new)}" if new else schema


def with_text(schema: str, column: str) -> str:
    """Return a copy of the schema in which one column is a STRING, which accepts any value."""
    kinds = {name: kind.ddl for name, kind in columns_of(schema).items()}
    return ddl_of({**kinds, column: "STRING"})


def check_header(
    path: FilePath, options: Mapping[str, Any], schema: str, *, by_name: bool
) -> Sequence[str]:
    """Check that a csv file has the columns of a schema. Return the column of each field.

    An empty file fits any schema.

    :param by_name: whether to match fields to columns by the header. The file may then lack columns.
    :raises Misfit: the file has other columns.
    """
    written = CsvFormat.of(options)
    expected = list(columns_of(schema))
    with written.open(path) as reader:
        first = written.first(reader)
    return check_first(written, first, expected, by_name=by_name) if first else expected


def check_first(
    written: CsvFormat, first: list[str], expected: Sequence[str], *, by_name: bool
) -> Sequence[str]:
    """Compare the first line of a csv file with the columns of its schema. Return the column of each field.

    :param written: format of the file.
    :param first: fields of the first line.
    :param expected: columns of the schema.
    :param by_name: whether to match fields to columns by the header.
    :raises Misfit: the columns differ in name or order. With `by_name`, a column is not in the schema.
    """
    if not written.header:
        if len(first) != len(expected):
            raise Misfit(
                f"the first line has {len(first)} fields, but the schema has {len(expected)}"
            )
        return expected
    names = written.names(first)
    known = set(expected) if by_name else set()
    new = next((name for name in names if name not in known), None)
    if new is None or names == expected:
        return names
    difference = f"column {new!r} is new" if by_name else _difference(names, expected)
    raise Misfit(
        f"header {_shown(names)} does not match the schema {_shown(expected)}: {difference}"
    )


def _difference(names: Sequence[str], expected: Sequence[str]) -> str:
    for number, (name, other) in enumerate(zip(names, expected, strict=False), 1):
        if name != other:
            return f"column {number} is {name!r} instead of {other!r}"
    if len(names) > len(expected):
        return f"column {names[len(expected)]!r} is new"
    return f"column {expected[len(names)]!r} is missing"


def _shown(names: Sequence[str]) -> str:
    text = ",".join(names)
    return (
        text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(names)} columns)"
    )


# --- inferred schemas ---------------------------------------------------------------------------------------------
# These rules infer the same types as Spark, with two exceptions. Whole numbers are BIGINT, since a
# later file may have larger numbers. Times are TIMESTAMP_NTZ, since a time without a time zone is
# the same in every session. If Python or Spark would not accept a value, the type of the column is
# STRING.

_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_PATTERNS = {
    "BIGINT": re.compile(r"[+-]?[0-9]{1,18}"),
    "DOUBLE": re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|NaN", re.ASCII),
    "DATE": re.compile(_DATE),
    "TIMESTAMP_NTZ": re.compile(
        _DATE + r"([ T]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{3}(\d{3})?)?)?"
    ),
    "BOOLEAN": re.compile(r"true|false", re.IGNORECASE),
}
_WIDER = {("BIGINT", "DOUBLE"): "DOUBLE", ("DATE", "TIMESTAMP_NTZ"): "TIMESTAMP_NTZ"}


def find_schema(paths: Iterable[FilePath], options: Mapping[str, Any]) -> str | None:
    """Infer the schema of csv files from the column names in the header.

    With `inferSchema`, infer the types from the values.

    :return: Spark DDL, or None if only Spark can infer the schema or all files are empty.
    :raises ValueError: a file is not a csv file.
    """
    try:
        written = CsvFormat.of(options)
    except ValueError:
        return None
    names: list[str] = []
    kinds: list[str | None] = []
    left = TYPED_ROWS
    for path in paths:
        with written.open(path) as reader:
            first = written.first(reader)
            if first and not names:
                names = written.names(first)
                kinds = [None] * len(names)
            if names and not written.typed:
                break
            for row in islice(reader if written.header else chain([first], reader), left):
                left -= 1
                for number, text in enumerate(row[: len(kinds)]):
                    if text and text != written.null:
                        kinds[number] = _widened(kinds[number], text)
    if not names or not all(name.strip() for name in names):
        return None
    return ddl_of({name: kind or "STRING" for name, kind in zip(names, kinds, strict=True)})


def _widened(kind: str | None, text: str) -> str:
    """Return the narrowest type that includes the type so far and the value of this text."""
    if kind == "STRING" or (kind and _PATTERNS[kind].fullmatch(text)):
        return kind
    own = next((each for each, pattern in _PATTERNS.items() if pattern.fullmatch(text)), "STRING")
    return own if kind is None else _WIDER.get((kind, own), "STRING")
