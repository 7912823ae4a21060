"""The number of rows and their digest: the sum of 64-bit hashes, in any order. The digests of two parts can be added.

The hashes are added and not combined by XOR, in which equal rows would cancel out. The digest is only valid together
with the number of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_tx.ledger.batch_words import counted

COUNT = "count"
"""The form of a row count without a digest."""
MODULUS = 2**64


@dataclass(frozen=True)
class RowsDigest:
    """A row count with the digest of the rows.

    :param rows: the number of rows.
    :param digest: the sum of their 64-bit hashes, modulo 2^64.
    :param form: the hash method and the columns of the rows. Only digests with the same form can be compared.
    """

    rows: int
    digest: int = 0
    form: str = COUNT

    def __add__(self, other: RowsDigest) -> RowsDigest:
        rows = self.rows + other.rows
        if self.form != other.form:
            # If one part has no rows, the digest of the other part is complete.
            kept = self if not other.rows else other if not self.rows else RowsDigest(0)
            return RowsDigest(rows, kept.digest, kept.form)
        return RowsDigest(rows, (self.digest + other.digest) % MODULUS, self.form)

    def agrees(self, other: RowsDigest) -> bool:
        """Return whether the row counts are equal and, if both have the same form, also the digests."""
        return self.rows == other.rows and (self.form != other.form or self.digest == other.digest)

    @property
    def text(self) -> str:
        """Return the digest with its form as one text, for records and references. Return "" if there is no digest."""
        return "" if self.form == COUNT else f"{self.form}:{self.digest:016x}"

    @classmethod
    def of(cls, rows: int, text: str) -> RowsDigest:
        """Create the digest from the number of rows and the result of `text`."""
        form, _, digits = text.rpartition(":")
        return cls(rows, int(digits, 16), form) if form else cls(rows)

    def to_json(self) -> dict[str, Any]:
        """Return the number of rows and the digest as plain JSON."""
        return {"rows": self.rows, "digest": self.text}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowsDigest:
        """Create the digest from the JSON of `to_json`."""
        return cls.of(value["rows"], value["digest"])

    def __str__(self) -> str:
        rows = counted(self.rows, "rows")
        return rows if self.form == COUNT else f"{rows}, digest {self.digest:016x}"


def form_of_columns(names: Iterable[str]) -> str:
    """Return the form of rows with these columns, sorted by name, when Spark's `xxhash64` hashes them.

    A mark is hashed together with each value; see `column_marks`.
    """
    return f"xxh64c-{hashlib.sha256(repr(sorted(names)).encode()).hexdigest()[:8]}"


def column_marks(name: str, hashed: str) -> tuple[int | None, int]:
    """Return the marks of a column: the number hashed before each value, and the number hashed for NULL.

    A mark is a signed 64-bit number. Spark's hash ignores NULL, and is the same for true, 1 and the second day of
    1970. So each type except whole numbers has a mark.

    :param hashed: name of the column's type, the same for types with equal hashes; "" for whole numbers.
    """
    return (_mark(f"{hashed} {name}") if hashed else None), _mark(name)


def _mark(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
