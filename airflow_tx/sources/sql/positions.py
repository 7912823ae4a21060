"""Where a source of a SQL table stands, and which rows a batch has, as plain JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, TypeAlias

from airflow_tx.sources.sql.mark import Mark

RowKey: TypeAlias = tuple[Any, ...]
"""The values of a row in the columns that it is ordered by, as the database's driver has them."""

CHECKED_ROWS = 100_000
"""Rows that were taken are counted again with every decision: at least those of the last batch, and up to so many."""


@dataclass(frozen=True)
class KeyRange:
    """Rows between two keys.

    :param after: exclusive; None: from the first row on.
    :param upto: inclusive.
    """

    after: RowKey | None
    upto: RowKey


@dataclass(frozen=True)
class TablePosition:
    """Every row up to `last` was taken.

    :param last: None: no row was.
    :param since: rows after it and up to `last` are counted again, to find such as came too late; None: all are.
    :param rows: how many they were.
    :param restarts: how often the table has begun anew, so that no position ever comes twice.
    :param mark: by what the last of these rows are known again; None: by nothing, as in positions of older versions.
    """

    last: RowKey | None = None
    since: RowKey | None = None
    rows: int = 0
    restarts: int = 0
    mark: Mark | None = None

    def after(self, upto: RowKey, rows: int) -> TablePosition:
        """The position once `rows` more rows, up to the key `upto`, are taken."""
        if self.rows + rows <= CHECKED_ROWS:
            return TablePosition(upto, self.since, self.rows + rows, self.restarts)
        return TablePosition(upto, self.last, rows, self.restarts)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"last": key_json(self.last), "since": key_json(self.since), "rows": self.rows}
        found |= {"restarts": self.restarts} if self.restarts else {}
        return found if self.mark is None else {**found, "mark": self.mark.to_json()}

    @classmethod
    def from_json(cls, value: Any, columns: int) -> TablePosition:
        """The position that `to_json` wrote; None is the one before the first row.

        :param columns: of how many values a key is.
        :raises ValueError: if it is something else.
        """
        if value is None:
            return cls()
        try:
            last, since = _key(value["last"], columns), _key(value["since"], columns)
            mark = Mark.from_json(value.get("mark"))
            return cls(last, since, int(value["rows"]), int(value.get("restarts", 0)), mark)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"{str(value)[:80]!r} is not the position of rows in this order") from error


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

    @property
    def whole(self) -> KeyRange:
        """Span all of them."""
        return KeyRange(self.after, self.ends[-1])

    @property
    def ranges(self) -> list[KeyRange]:
        """List them one after the other."""
        return [KeyRange(after, upto) for after, upto in zip((self.after, *self.ends), self.ends, strict=False)]

    def to_json(self) -> dict[str, Any]:
        ranges = [[*(key_json(end) or ()), count] for end, count in zip(self.ends, self.counts, strict=True)]
        return {"after": key_json(self.after), "upto": ranges}

    @classmethod
    def from_json(cls, value: Any, columns: int) -> Rows:
        """The rows that `to_json` wrote.

        :raises ValueError: if it is something else.
        """
        try:
            ends = tuple(_required(end[:-1], columns) for end in value["upto"])
            counts = tuple(int(end[-1]) for end in value["upto"])
            if not ends:
                raise ValueError("no range")
            return cls(_key(value["after"], columns), ends, counts)
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise ValueError(f"{str(value)[:80]!r} names no rows in this order") from error


def key_json(key: RowKey | None) -> list[Any] | None:
    """A key as plain JSON; times are ISO 8601, in UTC if they have a zone.

    :raises ValueError: a value has no place in an order.
    """
    return None if key is None else [_value_json(value) for value in key]


def shown(key: RowKey) -> str:
    """Word a key for a message."""
    texts = [str(value["at"] if isinstance(value, dict) else value) for value in key_json(key) or ()]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _value_json(value: Any) -> Any:
    if isinstance(value, datetime):
        in_utc = value if value.tzinfo is None else value.astimezone(timezone.utc)
        return {"at": in_utc.isoformat(timespec="microseconds")}
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r}, of type {type(value).__name__}, has no place in an order of rows")
    return value


def _key(value: Sequence[Any] | None, columns: int) -> RowKey | None:
    return None if value is None else _required(value, columns)


def _required(value: Sequence[Any], columns: int) -> RowKey:
    if len(value) != columns or isinstance(value, str):
        raise ValueError(f"{value!r} has not {columns} values")
    return tuple(datetime.fromisoformat(each["at"]) if isinstance(each, dict) else each for each in value)
