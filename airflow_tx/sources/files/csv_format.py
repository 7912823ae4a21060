"""How a csv file is written: those options of Spark's reader that other processes understand as well."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from airflow_tx.rows.spark import spaced
from airflow_tx.rows.types import BLANKS
from airflow_tx.sources.files.storage import HASHED_WHOLE, FilePath

# What changes nothing for rows that are read strictly and typed by a schema only.
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
_PRINTABLE = bytes(range(0x20, 0x7F)) + b"\r\n"


@dataclass(frozen=True)
class CsvFormat:
    """A way to write csv files.

    :param quote: "" for none.
    :param null: the text of no value, besides the empty one.
    :param typed: whether columns have the types of their values, rather than be texts.
    :param several: whether a value within quotes may have several lines.
    """

    header: bool
    separator: str
    quote: str
    null: str
    encoding: str
    typed: bool
    several: bool

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CsvFormat:
        """Read the options of Spark's reader; ValueError: one that only Spark knows."""
        given = named_as_spark(options)
        check_neutral(given, _KNOWN)
        separator = str(given.get("sep", given.get("delimiter", ",")))
        quote = str(given.get("quote", '"'))
        for name, value in (("sep", separator), ("quote", quote)):
            if len(value) > 1 or (name == "sep" and not value):
                raise ValueError(f"option {name}={value!r} is only known to Spark")
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

    def is_plain(self, path: FilePath) -> bool:
        """Ask whether a file has only printable ASCII, without quotes, and without spaces around its values.

        Then all readers take the same fields from each line, and the same whole numbers from the fields. A file that is
        not on a disk or too large to be read twice counts as not plain.
        """
        if not isinstance(path, Path) or path.stat().st_size > HASHED_WHOLE:
            return False
        allowed = (_PRINTABLE + self.separator.encode()).replace(self.quote.encode() or b"\0", b"")
        ends = rb"[\r\n%b]" % re.escape(self.separator.encode())
        content = path.read_bytes()
        # The pattern begins with the space, so that only spaces are looked at.
        spaces = rb" (?:%b|\Z|(?<=\A )|(?<=%b ))" % (ends, ends)
        return not content.translate(None, allowed) and not re.search(spaces, content)

    @contextmanager
    def open(self, path: FilePath) -> Iterator[Any]:
        """Open a csv reader; its own error is no ValueError, and becomes one."""
        csv.field_size_limit(sys.maxsize)
        with opened_text(path, self.encoding, newline="") as file:
            reader = csv.reader(
                self._lines(file),
                delimiter=self.separator,
                quotechar=self.quote or None,
                quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
                strict=True,
            )
            try:
                yield reader
            except csv.Error as error:
                raise ValueError(f"line {reader.line_num} is not csv: {error}") from None

    def _lines(self, file: Iterable[str]) -> Iterator[str]:
        """Refuse the lines that readers of csv read differently."""
        behind = re.compile(spaced(self.quote)) if self.quote else None
        for number, line in enumerate(file, 1):
            if self.quote in line and behind is not None:
                if not self.several and line.count(self.quote) % 2:
                    raise ValueError(
                        f"line {number} has a quote that is not closed in it; where values have several lines, the "
                        "source needs options={'multiLine': True}"
                    )
                if behind.search(line):
                    raise ValueError(f"line {number} has spaces behind a quote")
            if not self.several and not line.strip(BLANKS):
                line = "\n"  # Spark leaves it out, too
            yield line

    def first(self, reader: Iterator[list[str]]) -> list[str]:
        """Read the first line that is not blank; [] if there is none."""
        return next((fields for fields in reader if fields), [])

    def names(self, first: list[str]) -> list[str]:
        """Name the columns: by the header, as Spark where it has no name.

        :param first: the first line.
        :raises ValueError: two have one name.
        """
        if not self.header:
            return [f"_c{number}" for number in range(len(first))]
        names = [name or f"_c{number}" for number, name in enumerate(first)]
        known = set[str]()
        for name in names:
            if name.lower() in known:
                raise ValueError(f"column {name!r} is twice in the header")
            known.add(name.lower())
        return names


@contextmanager
def opened_text(path: FilePath, encoding: str, *, newline: str | None = None) -> Iterator[TextIO]:
    """Open a file of text, which may be compressed; ValueError: in a way that only Spark knows.

    A byte order mark is left out.
    """
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    suffix = f".{path.name.rpartition('.')[2]}".lower()
    if suffix in _ONLY_SPARK:
        raise ValueError(f"{suffix} files are only known to Spark")
    if suffix not in _COMPRESSED:
        with path.open(newline=newline, encoding=encoding) as file:
            yield cast("TextIO", file)
        return
    with (
        path.open("rb") as raw,
        _COMPRESSED[suffix](raw, "rt", encoding=encoding, newline=newline) as file,
    ):
        try:
            yield cast("TextIO", file)
        except EOFError:
            raise ValueError(f"the {suffix} file ends too early") from None


def named_as_spark(options: Mapping[str, Any]) -> dict[str, Any]:
    """Name options as Spark compares them; options of its file system do not change the rows."""
    return {
        key.lower(): value for key, value in options.items() if not key.lower().startswith("fs.")
    }


def check_neutral(given: Mapping[str, Any], known: Iterable[str] = ()) -> None:
    """Check that options, named as Spark does, change nothing that only Spark knows; ValueError: one does."""
    for name, value in sorted(given.items()):
        if name not in known and str(value).lower() not in _NEUTRAL.get(name, ()):
            shown = f"{name}={value!r}" if name in _NEUTRAL else repr(name)
            raise ValueError(f"option {shown} is only known to Spark")


def has_only(given: Mapping[str, Any]) -> bool:
    """Ask whether all options, named as Spark does, are such as change nothing that only Spark knows."""
    try:
        check_neutral(given)
    except ValueError:
        return False
    return True


def is_true(value: Any) -> bool:
    """Ask whether an option says yes."""
    return str(value).lower() == "true"


def _encoding(name: str) -> str:
    try:
        found = codecs.lookup(name).name
    except LookupError:
        found = name
    if found != "utf-8" and not found.startswith(_SINGLE_BYTE):
        raise ValueError(f"encoding {name!r} is only known to Spark")
    return found
