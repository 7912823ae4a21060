"""How a csv file is written: those options of Spark's reader that other processes understand as well."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_tx.sources.files.storage import FilePath

# What changes nothing for rows that are read strictly and typed by a schema only.
NEUTRAL_OPTIONS = frozenset({"mode", "enforceschema"})
_KNOWN = NEUTRAL_OPTIONS | {
    "header", "sep", "delimiter", "nullvalue", "encoding", "charset", "quote", "inferschema",
}  # fmt: skip


@dataclass(frozen=True)
class CsvFormat:
    """A way to write csv files.

    :param null: the text of no value, besides the empty one.
    :param typed: whether columns have the types of their values, rather than be texts.
    """

    header: bool
    separator: str
    quote: str
    null: str
    encoding: str
    typed: bool

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CsvFormat:
        """Read the options of Spark's reader; ValueError: one that only Spark knows."""
        given = named_as_spark(options)
        if unknown := sorted(set(given) - _KNOWN):
            raise ValueError(f"option {unknown[0]!r} is only known to Spark")
        return cls(
            header=_is_true(given.get("header")),
            separator=given.get("sep", given.get("delimiter", ",")),
            quote=given.get("quote", '"'),
            null=given.get("nullvalue", ""),
            encoding=str(given.get("encoding", given.get("charset", "utf-8"))),
            typed=_is_true(given.get("inferschema")),
        )

    @contextmanager
    def open(self, path: FilePath) -> Iterator[Any]:
        """Open a csv reader; its own error is no ValueError, and becomes one."""
        with path.open(newline="", encoding=self.encoding) as file:
            reader = csv.reader(file, delimiter=self.separator, quotechar=self.quote)
            try:
                yield reader
            except csv.Error as error:
                raise ValueError(f"line {reader.line_num} is not csv: {error}") from None


def named_as_spark(options: Mapping[str, Any]) -> dict[str, Any]:
    """Name options as Spark compares them; options of its file system do not change the rows."""
    return {
        key.lower(): value for key, value in options.items() if not key.lower().startswith("fs.")
    }


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"
