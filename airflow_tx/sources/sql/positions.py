"""Positions in a SQL table, and which rows a batch has, as plain JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, TypeAlias

from airflow_tx.sources.dates import span_of

RowKey: TypeAlias = tuple[Any, ...]
"""The values of a row in the columns that it is ordered by, as the database's driver has them."""

CHECKED_ROWS = 100_000
"""Taken rows are counted again with every decision: at least the last batch, and up to so many rows."""
MARKED_ROWS = 4
MARKED_COLUMNS = 16


@dataclass(frozen=True)
class KeyRange:
    """Rows behind the key `after`, or from the first on, up to the key `upto`, included."""

    after: RowKey | None
    upto: RowKey


@dataclass(frozen=True)
class Mark:
    """By what a table is known again: what the last rows that were taken had in their columns.

    :param rows: by key, a digest of each column; only of columns in which not all of them are the same.
    :param identity: what the database says of the table that is another once it begins again; None: it says nothing.
    """

    rows: Mapping[int, Mapping[str, str]]
    identity: str | None = None

    @classmethod
    def of(cls, key: str, rows: Sequence[Mapping[str, Any]], identity: str | None) -> Mark:
        """Mark rows during the reading, by the column `key`."""
        columns = [column for row in rows[:1] for column in row if column != key]
        digests = {
            int(row[key]): {column: _digest(row[column]) for column in columns} for row in rows
        }
        distinct = [
            each
            for each in columns
            if len(rows) < 2 or len({row[each] for row in digests.values()}) > 1
        ]
        kept = {
            number: {each: row[each] for each in distinct[:MARKED_COLUMNS]}
            for number, row in digests.items()
        }
        return cls(kept, identity)

    def is_other(self, key: str, rows: Sequence[Mapping[str, Any]], identity: str | None) -> bool:
        """Find out whether the rows with these keys are others now, and not the same ones after an update.

        One unchanged row is enough for the same table. Where the database has an identity for the table, this
        one must be another, too. Where it has none, at least two rows must be others, in all columns together.
        """
        if None not in (identity, self.identity) and identity == self.identity:
            return False
        changed: list[set[str]] = []
        compared: set[str] = set()
        for row in rows:
            before = {
                name: digest
                for name, digest in self.rows.get(int(row[key]), {}).items()
                if name in row
            }
            compared |= set(before)
            changed.append(
                {name for name, digest in before.items() if _digest(row[name]) != digest}
            )
        if not changed or not all(changed):
            return False
        return None not in (identity, self.identity) or (
            len(changed) > 1 and set().union(*changed) == compared
        )

    def to_json(self) -> dict[str, Any]:
        rows = {str(key): dict(row) for key, row in self.rows.items()}
        return (
            {"rows": rows} if self.identity is None else {"rows": rows, "identity": self.identity}
        )

    @classmethod
    def from_json(cls, value: Any) -> Mark:
        return cls(
            {int(key): dict(row) for key, row in value["rows"].items()}, value.get("identity")
        )


@dataclass(frozen=True)
class TablePosition:
    """Every row up to `last` was taken.

    :param last: None: no row was.
    :param since: rows after it and up to `last` are counted again, to find such as came too late; None: all are.
    :param rows: how many they were.
    :param restarts: how often the table has begun again, so that no position ever comes twice.
    :param mark: of the last of these rows; None in positions of older versions.
    """

    last: RowKey | None = None
    since: RowKey | None = None
    rows: int = 0
    restarts: int = 0
    mark: Mark | None = None

    def after(self, upto: RowKey, rows: int) -> TablePosition:
        """Advance by `rows` rows, up to the key `upto`."""
        if self.rows + rows <= CHECKED_ROWS:
            return TablePosition(upto, self.since, self.rows + rows, self.restarts)
        return TablePosition(upto, self.last, rows, self.restarts)

    def reaches(self, what: str, zone: str = "") -> bool | None:
        """Ask whether all rows up to an id, or a time, were taken; of a text only the database knows the order.

        :param zone: of a time that has none; "" is UTC.
        """
        if self.last is None:
            return False
        last = self.last[0]
        if isinstance(last, str | bytes):
            return True if what == last else None
        try:
            start, end = _typed(what, last, zone)
            # Of one time, more rows may follow.
            return bool(end < last if start == end and len(self.last) > 1 else end <= last)
        except (ValueError, ArithmeticError, TypeError):
            return None

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "last": key_json(self.last),
            "since": key_json(self.since),
            "rows": self.rows,
        }
        found |= {"restarts": self.restarts} if self.restarts else {}
        return found if self.mark is None else {**found, "mark": self.mark.to_json()}

    @classmethod
    def from_json(cls, value: Any, columns: int) -> TablePosition:
        """Read what `to_json` wrote; None is the position before the first row. ValueError: it is something else."""
        if value is None:
            return cls()
        try:
            last = _key(value["last"], columns)
            since = _key(value["since"], columns)
            mark = Mark.from_json(value["mark"]) if "mark" in value else None
            return cls(last, since, int(value["rows"]), int(value.get("restarts", 0)), mark)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{str(value)[:80]!r} is not the position of rows in this order"
            ) from error


@dataclass(frozen=True)
class Rows:
    """The rows of a batch: consecutive ranges, each with how many rows it has.

    :param after: where the first range begins; None: at the first row.
    :param ends: the last key of each range.
    :param counts: the rows of each range.
    """

    after: RowKey | None
    ends: tuple[RowKey, ...]
    counts: tuple[int, ...]

    @property
    def count(self) -> int:
        return sum(self.counts)

    def contains(self, what: str, zone: str = "") -> bool | None:
        """Ask whether an id, or a time, is between the keys; of a text only the database knows the order.

        :param zone: of a time that has none; "" is UTC.
        """
        low = None if self.after is None else self.after[0]
        high = self.ends[-1][0]
        if isinstance(high, str | bytes):
            return True if what == high else None
        try:
            start, end = _typed(what, high, zone)
            # Rows of one key and several further columns may be in two batches.
            several = start == end and len(self.ends[-1]) > 1
            above = low is None or (low <= end if several else low < end)
            return bool(above and start <= high)
        except (ValueError, ArithmeticError, TypeError):
            return False

    @property
    def whole(self) -> KeyRange:
        return KeyRange(self.after, self.ends[-1])

    @property
    def ranges(self) -> list[KeyRange]:
        return [
            KeyRange(after, upto)
            for after, upto in zip((self.after, *self.ends), self.ends, strict=False)
        ]

    def to_json(self) -> dict[str, Any]:
        ranges = [
            [*(key_json(end) or ()), count]
            for end, count in zip(self.ends, self.counts, strict=True)
        ]
        return {"after": key_json(self.after), "upto": ranges}

    @classmethod
    def from_json(cls, value: Any, columns: int) -> Rows:
        """Read what `to_json` wrote; ValueError if it is something else."""
        try:
            ends = tuple(_required(end[:-1], columns) for end in value["upto"])
            counts = tuple(int(end[-1]) for end in value["upto"])
            if not ends:
                raise ValueError("no range")
            return cls(_key(value["after"], columns), ends, counts)
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise ValueError(f"{str(value)[:80]!r} names no rows in this order") from error


def key_json(key: RowKey | None) -> list[Any] | None:
    """Spell a key as plain JSON, times as ISO 8601 and in UTC if they have a zone; ValueError: it cannot order rows."""
    return None if key is None else [_value_json(value) for value in key]


def shown(key: RowKey) -> str:
    """Word a key for a message."""
    texts = [
        str(value["at"] if isinstance(value, dict) else value) for value in key_json(key) or ()
    ]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _value_json(value: Any) -> Any:
    if isinstance(value, datetime):
        in_utc = value if value.tzinfo is None else value.astimezone(timezone.utc)
        return {"at": in_utc.isoformat(timespec="microseconds")}
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(
            f"{value!r}, of type {type(value).__name__}, has no place in an order of rows"
        )
    return value


def _key(value: Sequence[Any] | None, columns: int) -> RowKey | None:
    return None if value is None else _required(value, columns)


def _required(value: Sequence[Any], columns: int) -> RowKey:
    if len(value) != columns or isinstance(value, str):
        raise ValueError(f"{value!r} has not {columns} values")
    return tuple(
        datetime.fromisoformat(each["at"]) if isinstance(each, dict) else each for each in value
    )


def _typed(what: str, like: Any, zone: str) -> tuple[Any, Any]:
    """Read what a person typed as a value of this kind: start and end, which are the same unless it is a day.

    :raises ValueError, ArithmeticError, TypeError: it is none.
    """
    if isinstance(like, datetime):
        return span_of(what, zone if like.tzinfo else None)
    key = date.fromisoformat(what) if isinstance(like, date) else type(like)(what)
    return key, key


def _digest(value: Any) -> str:
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(timezone.utc)
    return hashlib.blake2b(repr(value).encode(errors="replace"), digest_size=4).hexdigest()
