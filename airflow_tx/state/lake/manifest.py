"""The manifest of an appended output: the Parquet files that tasks have written into the folder of a table.

A task stages one row per file, like any other output. No row of a file is in the table before its commit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.state.appended import STAGED

FENCES = f"{STAGED}/_fence"
"""The folder for the texts of fences."""
_TEXTS = ("path", "partition", "stats", "schema")
_NUMBERS = ("size", "rows")
# Names that this package gives. It never deletes other files of the folder.
_STAGED_FILE = re.compile(rf"{STAGED}/([0-9]+)\.[0-9]+\.[0-9a-f]{{16}}/.+")
_FENCE_FILE = re.compile(rf"{FENCES}/([0-9]+)-[0-9a-f]{{16}}\.json")


@dataclass(frozen=True)
class TableFile:
    """One Parquet file, in or for a table.

    :param path: relative to the table, in the spelling of the storage.
    :param size: in bytes.
    :param rows: how many rows it has.
    :param partition: the text of each partition column; None is NULL.
    :param stats: Delta's statistics, as JSON text.
    :param schema: Spark's schema of the file, partition columns included, as JSON text.
    """

    path: str
    size: int
    rows: int
    partition: Mapping[str, str | None] = field(hash=False)
    stats: str
    schema: str

    def to_row(self) -> dict[str, Any]:
        """Give it as a row of a staged output."""
        return {**vars(self), "partition": json.dumps(dict(self.partition))}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> TableFile:
        """Read what `to_row` gave.

        :raises ValueError: it is no such row.
        """
        texts = all(isinstance(row.get(name), str) for name in _TEXTS)
        numbers = all(type(row.get(name)) is int for name in _NUMBERS)
        if not texts or not numbers or len(row) != len(_TEXTS) + len(_NUMBERS):
            raise ValueError(f"{str(dict(row))[:120]} is no file of a table")
        return cls(**{**row, "partition": json.loads(row["partition"])})


def names_digest(files: Iterable[TableFile]) -> int:
    """Digest the names of files as a number of 63 bits: no two tries write files of the same name."""
    text = "\n".join(sorted(each.path for each in files))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def txid_of(path: str) -> int | None:
    """Read the txid of the transaction that has staged a file; None: no transaction has."""
    return _number(_STAGED_FILE.fullmatch(path))


def raise_of(path: str) -> int | None:
    """Read the number of the raise whose fence a file holds; None: it holds none."""
    return _number(_FENCE_FILE.fullmatch(path))


def _number(found: re.Match[str] | None) -> int | None:
    return None if found is None else int(found[1])
