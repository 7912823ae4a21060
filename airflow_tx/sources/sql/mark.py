"""By what a table is known again: where its rows lie, and what the last ones that were taken had in their columns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

MARKED_ROWS = 4
MARKED_COLUMNS = 16

MarkRow = Mapping[str, str]
"""A digest of each column but the key."""


@dataclass(frozen=True)
class Mark:
    """The last rows that were taken, as they were then.

    :param rows: digests by key; only of columns in which not all of them are the same.
    :param identity: what the database says of the table that is another once it begins anew; None: it says nothing.
    """

    rows: Mapping[int, MarkRow]
    identity: str | None = None

    @classmethod
    def of(cls, key: str, rows: Sequence[Mapping[str, Any]], identity: str | None) -> Mark:
        """Of rows as they are read.

        :param key: the column of their key.
        """
        columns = [column for row in rows[:1] for column in row if column != key]
        digests = {int(row[key]): {column: _digest(row[column]) for column in columns} for row in rows}
        telling = [each for each in columns if len(rows) < 2 or len({row[each] for row in digests.values()}) > 1]
        kept = {number: {each: row[each] for each in telling[:MARKED_COLUMNS]} for number, row in digests.items()}
        return cls(kept, identity)

    def is_other(self, key: str, rows: Sequence[Mapping[str, Any]], identity: str | None) -> bool:
        """Whether the rows that have these keys now are others, and not the same ones after an update.

        One row that is as it was is enough for the same table. Where the database has an identity for the table, this
        one has to be another, too. Where it has none, two rows at least have to be others, in all columns together.
        """
        if None not in (identity, self.identity) and identity == self.identity:
            return False
        changed: list[set[str]] = []
        compared: set[str] = set()
        for row in rows:
            before = {name: digest for name, digest in self.rows.get(int(row[key]), {}).items() if name in row}
            compared |= set(before)
            changed.append({name for name, digest in before.items() if _digest(row[name]) != digest})
        if not changed or not all(changed):
            return False
        return None not in (identity, self.identity) or (len(changed) > 1 and set().union(*changed) == compared)

    def to_json(self) -> dict[str, Any]:
        rows = {str(key): dict(row) for key, row in self.rows.items()}
        return {"rows": rows} if self.identity is None else {"rows": rows, "identity": self.identity}

    @classmethod
    def from_json(cls, value: Any) -> Mark | None:
        """The mark that `to_json` wrote; None of a position that has none."""
        if value is None:
            return None
        return cls({int(key): dict(row) for key, row in value["rows"].items()}, value.get("identity"))


def _digest(value: Any) -> str:
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(timezone.utc)
    return hashlib.blake2b(repr(value).encode(errors="replace"), digest_size=4).hexdigest()
