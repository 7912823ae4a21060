"""The number of rows, and an order-independent 64-bit digest of them: a sum of hashes, so that parts can be added.

It is a sum and not an XOR, because equal rows would cancel out in an XOR. The digest is only valid with the count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_tx.ledger.batch_words import counted

COUNT = "count"
"""The form of rows that were counted but not hashed."""
MODULUS = 2**64


@dataclass(frozen=True)
class RowsDigest:
    """A number of rows with their digest.

    :param rows: the number of rows.
    :param digest: the sum of their 64-bit hashes, modulo 2^64.
    :param form: method by which each row was hashed, and its columns. Digests are only comparable in the same form.
    """

    rows: int
    digest: int = 0
    form: str = COUNT

    def __add__(self, other: RowsDigest) -> RowsDigest:
        rows = self.rows + other.rows
        if self.form != other.form:
            # The side without rows hashed nothing, so the other digest is complete.
            kept = self if not other.rows else other if not self.rows else RowsDigest(0)
            return RowsDigest(rows, kept.digest, kept.form)
        return RowsDigest(rows, (self.digest + other.digest) % MODULUS, self.form)

    def agrees(self, other: RowsDigest) -> bool:
        """Compare the counts, and also the digests if both have the same form."""
        return self.rows == other.rows and (self.form != other.form or self.digest == other.digest)

    @property
    def text(self) -> str:
        """Form and digest as one text, as records and references keep them; "" if there is no digest."""
        return "" if self.form == COUNT else f"{self.form}:{self.digest:016x}"

    @classmethod
    def of(cls, rows: int, text: str) -> RowsDigest:
        """Read the result of `text`."""
        form, _, digits = text.rpartition(":")
        return cls(rows, int(digits, 16), form) if form else cls(rows)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"rows": self.rows, "digest": self.text}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowsDigest:
        """Read the result of `to_json`."""
        return cls.of(value["rows"], value["digest"])

    def __str__(self) -> str:
        rows = counted(self.rows, "rows")
        return rows if self.form == COUNT else f"{rows}, digest {self.digest:016x}"


def form_of_columns(names: Iterable[str]) -> str:
    """Name the form of rows that Spark's `xxhash64` hashes, with their columns in the order of the names.

    A mark is hashed with each column, see `column_marks`.
    """
    return f"xxh64c-{hashlib.sha256(repr(sorted(names)).encode()).hexdigest()[:8]}"


def column_marks(name: str, hashed: str) -> tuple[int | None, int]:
    """Return the number that is hashed before a value of a column, and the one hashed for NULL (signed, 64 bits).

    Spark's hash skips NULL, and gives true, 1 and the second day of 1970 the same hash. Each type except whole numbers
    therefore has a mark.

    :param hashed: the mark of the column's type, shared by types that hash alike; "" for whole numbers.
    """
    return (_mark(f"{hashed} {name}") if hashed else None), _mark(name)


def _mark(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
