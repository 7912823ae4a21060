"""Check one table of a source, and build the SQL statements that read its rows in order."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cached_property
from operator import ge, gt, le, lt
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect

from airflow_tx.base.errors import SourceError
from airflow_tx.base.rows import (
    Element,
    Exact,
    ExactColumns,
    Unreadable,
    arrow_type_of,
    base_type,
    exact,
    is_instant,
    shown_text,
)
from airflow_tx.sources.dates import span_of
from airflow_tx.sources.sql.database import OrderOfTable, TableErrors
from airflow_tx.sources.sql.spec import SqlSpec

# --- positions ----------------------------------------------------------------------------------------------------
# Positions in a SQL table, and the rows of a batch, as plain JSON.


RowKey: TypeAlias = tuple[Any, ...]
"""The values of a row in the ordering columns, as the database driver returns them."""

CHECKED_ROWS = 100_000
"""Number of taken rows that each decision recounts to find late rows. At least the last batch is always recounted."""
MARKED_ROWS = 4
MARKED_COLUMNS = 16


@dataclass(frozen=True)
class KeyRange:
    """A range of rows. It starts after the key `after`, or at the first row if `after` is None.

    It includes the key `upto`.
    """

    after: RowKey | None
    upto: RowKey


@dataclass(frozen=True)
class Mark:
    """The content of the last taken rows. It shows whether the table was restarted, for example by TRUNCATE.

    :param rows: digest of each column, by key. A column with equal values in all rows is omitted.
    :param identity: value of the database that changes when the table begins again, or None if there is none.
    """

    rows: Mapping[int, Mapping[str, str]]
    identity: str | None = None

    @classmethod
    def of(cls, key: str, rows: Sequence[Mapping[str, Any]], identity: str | None) -> Mark:
        """Return the digests of the last taken rows.

        :param key: name of the id column.
        :param rows: last rows that were taken.
        :param identity: value of the database that changes when the table begins again, or None if there is none.
        """
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
        """Return whether the current rows with these keys are new rather than updated rows.

        They are new rows only if every row differs. If the database has an identity for the table, the identity must
        also differ. Without an identity, at least two rows must differ, and each column must differ in at least one
        row.
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
    """A position in a table. Every row up to `last` was taken.

    :param last: key of the last row that was taken, or None if no row was taken.
    :param since: key after which rows are recounted to find late rows, or None to recount all rows up to `last`.
    :param rows: number of rows between `since` and `last` when they were taken.
    :param restarts: number of times that the table's ids have restarted, which keeps positions unique.
    :param mark: digests of the last rows, or None unless an id alone orders the rows. Only ids can restart.
    """

    last: RowKey | None = None
    since: RowKey | None = None
    rows: int = 0
    restarts: int = 0
    mark: Mark | None = None

    def after(self, upto: RowKey, rows: int) -> TablePosition:
        """Advance the position by `rows` rows, up to the key `upto`."""
        if self.rows + rows <= CHECKED_ROWS:
            return TablePosition(upto, self.since, self.rows + rows, self.restarts)
        return TablePosition(upto, self.last, rows, self.restarts)

    def reaches(self, what: str, zone: str = "") -> bool | None:
        """Return whether all rows up to an id or a time were taken. Return None if unknown, such as for text keys.

        :param what: typed id or time.
        :param zone: default time zone of the time, or "" for UTC.
        """
        if self.last is None:
            return False
        last = self.last[0]
        if isinstance(last, str | bytes):
            return True if what == last else None
        try:
            start, end = _typed(what, last, zone)
            # More rows with the same time may follow.
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
        """Parse the result of `to_json`. None means the position before the first row.

        :param columns: number of columns in the order.
        :raises ValueError: the value is not a position in this order.
        """
        if value is None:
            return cls()
        try:
            last = _key(value["last"], columns)
            since = _key(value["since"], columns)
            mark = Mark.from_json(value["mark"]) if "mark" in value else None
            return cls(last, since, int(value["rows"]), int(value.get("restarts", 0)), mark)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"{str(value)[:80]!r} is not a position in this order") from error


@dataclass(frozen=True)
class Rows:
    """The rows of a batch, in consecutive ranges.

    :param after: key before the first range, or None to begin at the first row.
    :param ends: last key of each range.
    :param counts: number of rows in each range.
    """

    after: RowKey | None
    ends: tuple[RowKey, ...]
    counts: tuple[int, ...]

    @property
    def count(self) -> int:
        return sum(self.counts)

    def contains(self, what: str, zone: str = "") -> bool | None:
        """Return whether the ranges include an id or a time. Return None if unknown, such as for text keys.

        :param what: typed id or time.
        :param zone: default time zone of the time, or "" for UTC.
        """
        low = None if self.after is None else self.after[0]
        high = self.ends[-1][0]
        if isinstance(high, str | bytes):
            return True if what == high else None
        try:
            start, end = _typed(what, high, zone)
            # With two ordering columns, rows with the same first value may be in two batches.
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
        """Parse the result of `to_json`.

        :param columns: number of columns in the order.
        :raises ValueError: the value names no rows in this order.
        """
        try:
            ends = tuple(_required(end[:-1], columns) for end in value["upto"])
            counts = tuple(int(end[-1]) for end in value["upto"])
            if not ends:
                raise ValueError("no range")
            return cls(_key(value["after"], columns), ends, counts)
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise ValueError(f"{str(value)[:80]!r} is not a range of rows in this order") from error


def key_json(key: RowKey | None) -> list[Any] | None:
    """Convert a key to plain JSON. Times become ISO 8601 texts, in UTC if they have a time zone.

    :raises ValueError: a value cannot order rows.
    """
    return None if key is None else [_value_json(value) for value in key]


def shown(key: RowKey) -> str:
    """Format a key as text, for errors and log lines."""
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
        raise ValueError(f"{value!r}, of type {type(value).__name__}, cannot order rows")
    return value


def _key(value: Sequence[Any] | None, columns: int) -> RowKey | None:
    return None if value is None else _required(value, columns)


def _required(value: Sequence[Any], columns: int) -> RowKey:
    if len(value) != columns or isinstance(value, str):
        raise ValueError(f"{value!r} does not have {columns} values")
    return tuple(
        datetime.fromisoformat(each["at"]) if isinstance(each, dict) else each for each in value
    )


def _typed(what: str, like: Any, zone: str) -> tuple[Any, Any]:
    """Parse a typed id or time. The result has the type of `like`.

    :return: start and end. They are equal unless the text is a day.
    :raises ValueError, ArithmeticError, TypeError: the text has another type.
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


# --- table --------------------------------------------------------------------------------------------------------


Comparison = Callable[[Any, Any], Any]

_KINDS = "An id must be a whole number or a text, and a time before it a timestamp or datetime."


@dataclass(frozen=True)
class Column:
    """A column that orders rows.

    :param name: name of the column.
    :param kind: integer, text, uuid, time (without a zone), instant (with a zone), or "" for any other type.
    :param nullable: whether the column may be NULL.
    """

    name: str
    kind: str
    nullable: bool


class Table:
    """A table whose rows have a unique order.

    :raises SourceError: the table or a column is missing, or the columns cannot order the rows.
    """

    def __init__(
        self, connection: Connection, name: str, spec: SqlSpec, errors: TableErrors
    ) -> None:
        self.name = name
        self.spec = spec
        self.errors = errors
        schema, _, table = name.rpartition(".")
        self.place = (table, schema or None)
        self._backend = connection.dialect.name
        self._is_mariadb = getattr(connection.dialect, "is_mariadb", False)
        inspector = sa.inspect(connection)
        with warnings.catch_warnings():
            # SQLAlchemy warns about unknown types; `exact` handles them.
            warnings.simplefilter("ignore", sa.exc.SAWarning)
            if not inspector.has_table(*self.place):
                raise errors.missing(name)
            found = {column["name"]: column for column in inspector.get_columns(*self.place)}
        self._require(found, spec.order_by)
        self._require(found, spec.columns or ())
        self.columns: Sequence[str] = spec.columns or tuple(found)
        self.order = [_column(found[column], self._backend) for column in spec.order_by]
        self._check_kinds({column: found[column]["type"] for column in spec.order_by})
        self._types = {column: found[column]["type"] for column in self.columns}
        self.exact = self._exact(self._types)
        self._exact_keys = self._exact({column: found[column]["type"] for column in spec.order_by})
        spelled = self.spelled(connection.dialect)
        OrderOfTable(name, spec.order_by, self.place, spelled, errors).check_unique(
            inspector, connection
        )
        self._check_nulls(connection)

    @cached_property
    def clause(self) -> sa.TableClause:
        """The table for SQL statements. Its columns have no types, so the driver chooses the types of the values."""
        names = dict.fromkeys([*self.spec.order_by, *self.columns])
        table, schema = self.place
        return sa.table(table, *map(sa.column, names), schema=schema)

    def spelled(self, dialect: Dialect) -> str:
        """Return the table's quoted name. Percent signs are not doubled, unlike for Python's driver."""
        return dialect.identifier_preparer.format_table(self.clause).replace("%%", "%")

    @property
    def keys(self) -> list[Element]:
        return [self.clause.c[name] for name in self.spec.order_by]

    # --- statements -----------------------------------------------------------------------------------------------

    def after(self, key: RowKey | None) -> sa.ColumnElement[bool]:
        return sa.true() if key is None else _beyond(self.keys, key, ge, gt, gt)

    def upto(self, key: RowKey) -> sa.ColumnElement[bool]:
        return _beyond(self.keys, key, le, lt, le)

    def within(self, rows: KeyRange, keys: Sequence[Element] = ()) -> sa.ColumnElement[bool]:
        """Return the condition of a range.

        :param keys: columns of the order, if the query has other names for them.
        """
        columns = keys or self.keys
        after = sa.true() if rows.after is None else _beyond(columns, rows.after, ge, gt, gt)
        return sa.and_(after, _beyond(columns, rows.upto, le, lt, le))

    def newest(self, connection: Connection, *conditions: sa.ColumnElement[bool]) -> RowKey | None:
        """Return the last key of the rows that meet all conditions, or None if no row does."""
        query = self._last_first(self._selected_keys(self.clause), *conditions).limit(1)
        row = connection.execute(query).first()
        return None if row is None else self._key(tuple(row))

    def count(
        self, connection: Connection, *conditions: sa.ColumnElement[bool], most: int | None = None
    ) -> int:
        """Count the rows that meet all conditions, up to `most`."""
        if most is None:
            query = sa.select(sa.func.count()).select_from(self.clause).where(*conditions)
        else:
            first = (
                sa.select(self.keys[0])
                .where(*conditions)
                .order_by(*self.keys)
                .limit(most)
                .subquery()
            )
            query = sa.select(sa.func.count()).select_from(first)
        return int(connection.execute(query).scalar_one())

    def cuts(
        self, connection: Connection, rows: KeyRange, *, most: int, each: int
    ) -> list[tuple[RowKey, int]]:
        """Divide up to `most` rows into ranges of `each` rows.

        :return: the last key of each range, with the number of rows up to it.
        """
        inner = (
            sa.select(*self.keys)
            .where(self.within(rows))
            .order_by(*self.keys)
            .limit(most)
            .subquery()
        )
        keys = [inner.c[name] for name in self.spec.order_by]
        number = sa.func.row_number().over(order_by=keys).label("tx_number")
        following = sa.func.lead(keys[0]).over(order_by=keys).label("tx_following")
        numbered = sa.select(*keys, number, following).subquery()
        wanted = sa.or_(numbered.c.tx_number % each == 0, numbered.c.tx_following.is_(None))
        ends = self._selected_keys(numbered)
        query = sa.select(*ends, numbered.c.tx_number).where(wanted).order_by(numbered.c.tx_number)
        return [(self._key(tuple(row[:-1])), int(row[-1])) for row in connection.execute(query)]

    def read(self, *conditions: sa.ColumnElement[bool], most: int | None = None) -> sa.Select[Any]:
        """Return the query that selects the rows in order. The method `row` converts each row of its result."""
        return sa.select(*self.selected).where(*conditions).order_by(*self.keys).limit(most)

    @cached_property
    def read_exactly(self) -> ExactColumns:
        """The columns of a row, for the Python and Spark readers."""
        return ExactColumns(self.exact, self.unfit)

    @cached_property
    def selected(self) -> list[sa.Label[Any]]:
        """The columns to select for a row. If the reader may refuse a value, they include the key as text."""
        return self.read_exactly.selected(self.clause, self.keys)

    def row(self, selected: Sequence[Any]) -> dict[str, Any]:
        """Convert a selected row to a dict.

        :raises RowsRefused: Python or Spark cannot represent a value.
        """
        return self.read_exactly.row(selected)

    def arrow_types(self) -> dict[str, Any]:
        """Return the Arrow types of the columns of a row."""
        backend = "mariadb" if self._is_mariadb else self._backend
        return {name: arrow_type_of(kind, backend) for name, kind in self._types.items()}

    def unfit(self, column: str, value: str, key: str) -> SourceError:
        """Return the error for a value that Python or Spark cannot represent."""
        order = ", ".join(self.spec.order_by)
        place = f"column {column} of table {self.name}"
        problem = f"{place} is {value} in the row whose {order} is {key}: "
        problem += "Python or Spark has no such value"
        remedy = f"Correct it, or read other columns: {self._without(column)}"
        return self.errors.rows_refused(problem, remedy, place)

    def last(
        self, connection: Connection, *conditions: sa.ColumnElement[bool], most: int
    ) -> list[dict[str, Any]]:
        """Return the last rows that meet all conditions, with their keys."""
        names = [*self.exact, *(name for name in self._exact_keys if name not in self.exact)]
        read = {**self._exact_keys, **self.exact}
        wanted = [read[name].query(self.clause.c[name]) for name in names]
        query = self._last_first(wanted, *conditions).limit(most)
        return [dict(zip(names, row, strict=True)) for row in connection.execute(query)]

    def _last_first(
        self, columns: Iterable[Any], *conditions: sa.ColumnElement[bool]
    ) -> sa.Select[Any]:
        return sa.select(*columns).where(*conditions).order_by(*(key.desc() for key in self.keys))

    def _selected_keys(self, rows: sa.FromClause) -> list[Element]:
        return [each.query(rows.c[name]) for name, each in self._exact_keys.items()]

    # --- checks ---------------------------------------------------------------------------------------------------

    def _require(self, found: dict[str, Any], columns: Sequence[str]) -> None:
        missing = [column for column in columns if column not in found]
        if missing:
            problem = f"table {self.name} has no column {', '.join(missing)}; it has {', '.join(list(found)[:30])}"
            raise self.errors.refused(problem, "Correct order_by or columns, or add the column.")

    def _check_kinds(self, types: dict[str, Any]) -> None:
        *first, last = self.order
        wrong = [column for column in self.order if not column.kind]
        wrong += [column for column in first if column.kind in ("text", "uuid")]
        wrong += [last] if not first and last.kind == "uuid" else []
        if wrong:
            name = wrong[0].name
            problem = f"column {name} of table {self.name} is {types[name]}, which does not order new rows last"
            remedy = f'{_KINDS} For a uuid, use order_by=["created_at", "{name}"].'
            raise self.errors.refused(problem, remedy)

    def _exact(self, types: Mapping[str, Any]) -> dict[str, Exact]:
        found: dict[str, Exact] = {}
        for name, kind in types.items():
            try:
                found[name] = exact(kind, self._backend)
            except Unreadable as unreadable:
                problem = f"column {name} of table {self.name} is {_named(kind)}: no reader has its exact values"
                remedy = f"Read other columns: {self._without(name)}; or {unreadable}."
                raise self.errors.refused(problem, remedy) from None
        return found

    def _without(self, column: str) -> str:
        names = [name for name in self.columns if name != column] or list(self.spec.order_by)
        return f"columns={names}" if len(names) <= 30 else f"columns= without {column}"

    def _check_nulls(self, connection: Connection) -> None:
        for column in self.order:
            key = self.clause.c[column.name]
            if (
                column.nullable
                and connection.execute(sa.select(key).where(key.is_(None)).limit(1)).first()
                is not None
            ):
                raise self.errors.refused(
                    f"table {self.name} has rows without {column.name} (NULL): they have no position in the order",
                    "Set a value in these rows, and make the column NOT NULL.",
                )

    def _key(self, selected: RowKey) -> RowKey:
        found: list[Any] = []
        for column, value, read in zip(
            self.order, selected, self._exact_keys.values(), strict=True
        ):
            try:
                key = value if read.value is None else read.value(value)
                key_json((key,))
            except ValueError as error:
                raise self._no_place(column, value) from error
            if self._backend == "sqlite" and isinstance(key, str) == (column.kind == "integer"):
                raise self._no_place(column, value)
            # MySQL only compares times without a time zone. Its session is in UTC.
            naive = isinstance(key, datetime) and self._backend != "postgresql"
            found.append(key.replace(tzinfo=None) if naive else key)
        return tuple(found)

    def _no_place(self, column: Column, value: Any) -> SourceError:
        problem = f"table {self.name} has a row whose {column.name} is {shown_text(value)!r}"
        problem += f", of type {type(value).__name__}: rows cannot be ordered by it"
        return self.errors.refused(problem, f"Correct this row. {_KINDS}")


def _named(kind: Any) -> str:
    return "of an unknown type" if isinstance(kind, sa.types.NullType) else str(kind)


def _column(found: Any, backend: str) -> Column:
    return Column(found["name"], _kind_of(found["type"], backend), found.get("nullable", True))


def _kind_of(declared: Any, backend: str) -> str:
    found = base_type(declared)
    if isinstance(found, sa.Uuid):
        return "uuid"
    if isinstance(found, sa.Integer) or (isinstance(found, sa.Numeric) and found.scale == 0):
        return "integer"
    if isinstance(found, sa.DateTime):
        return "instant" if is_instant(found, backend) else "time"
    if isinstance(found, sa.Enum) or not isinstance(found, sa.String):
        return ""
    return "text"


def _beyond(
    columns: Sequence[Any], key: RowKey, inner: Comparison, outer: Comparison, last: Comparison
) -> sa.ColumnElement[bool]:
    """Return a key comparison that can use an index on the first column, in every database.

    :param inner: comparison of the first column, which must always be true.
    :param outer: comparison of the first column that is sufficient for any value of the second column.
    :param last: comparison of the last column.
    """
    if len(columns) == 1:
        found: sa.ColumnElement[bool] = last(columns[0], key[0])
        return found
    return sa.and_(
        inner(columns[0], key[0]), sa.or_(outer(columns[0], key[0]), last(columns[1], key[1]))
    )
