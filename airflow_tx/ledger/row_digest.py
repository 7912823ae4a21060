"""How many rows were seen, and an order-independent 64-bit digest of them: a sum of hashes, so that parts add up.

A sum, and not an XOR: two equal rows would cancel out. It proves nothing without the number of rows beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_tx.ledger.batch_words import counted

COUNT = "count"
"""The form of rows that were counted and not hashed."""
MODULUS = 2**64


@dataclass(frozen=True)
class RowsDigest:
    """A number of rows with the digest of exactly these.

    :param rows: how many.
    :param digest: the sum of their 64-bit hashes, modulo 2^64.
    :param form: how each row was hashed, columns included; digests are compared only if their forms agree.
    """

    rows: int
    digest: int = 0
    form: str = COUNT

    def __add__(self, other: RowsDigest) -> RowsDigest:
        rows = self.rows + other.rows
        if self.form != other.form:
            # Nothing was hashed where there was no row, so nothing is missing.
            kept = self if not other.rows else other if not self.rows else RowsDigest(0)
            return RowsDigest(rows, kept.digest, kept.form)
        return RowsDigest(rows, (self.digest + other.digest) % MODULUS, self.form)

    def agrees(self, other: RowsDigest) -> bool:
        """Compare the numbers, and the digests if their forms agree."""
        return self.rows == other.rows and (self.form != other.form or self.digest == other.digest)

    @property
    def text(self) -> str:
        """Write form and digest as records and references keep them; "" without a digest."""
        return "" if self.form == COUNT else f"{self.form}:{self.digest:016x}"

    @classmethod
    def of(cls, rows: int, text: str) -> RowsDigest:
        """Read what `text` wrote."""
        form, _, digits = text.rpartition(":")
        return cls(rows, int(digits, 16), form) if form else cls(rows)

    def to_json(self) -> dict[str, Any]:
        """Give it as plain JSON."""
        return {"rows": self.rows, "digest": self.text}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowsDigest:
        """Read what `to_json` gave."""
        return cls.of(value["rows"], value["digest"])

    def __str__(self) -> str:
        rows = counted(self.rows, "rows")
        return rows if self.form == COUNT else f"{rows}, digest {self.digest:016x}"


def form_of_columns(names: Iterable[str]) -> str:
    """Name the form of rows that are hashed by Spark's `xxhash64`, column by column in the order of their names.

    Columns have marks of their own, see `column_marks`.
    """
    return f"xxh64c-{hashlib.sha256(repr(sorted(names)).encode()).hexdigest()[:8]}"


def column_marks(name: str, hashed: str) -> tuple[int | None, int]:
    """Give the numbers that stand before a value of a column, and in place of a NULL: signed, of 64 bits.

    Spark's hash passes over NULL, and takes true, 1 and the second day of 1970 for one value. Whole numbers have no
    mark: every other type has one.

    :param hashed: the mark of the column's type, which types that hash alike share; "": whole numbers have none.
    """
    return (_mark(f"{hashed} {name}") if hashed else None), _mark(name)


def _mark(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
