"""One table of a source: checked, and the statements on it by the order of its rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from operator import ge, gt, le, lt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect

from airflow_tx.errors import SourceError
from airflow_tx.sources.sql.database import TableErrors
from airflow_tx.sources.sql.positions import KeyRange, RowKey, key_json
from airflow_tx.sources.sql.spec import SqlSpec
from airflow_tx.sources.sql.unique import OrderOfTable
from airflow_tx.sources.sql.values import Element, Exact, Unreadable, base_type, exact, is_instant

Comparison = Callable[[Any, Any], Any]

KEY_TEXT = "tx_row"
"""The name under which the key of a row is selected, for messages."""
SHOWN_VALUE = 60
_KINDS = "An id is a whole number or a text; a time before it a timestamp or datetime."


@dataclass(frozen=True)
class Column:
    """A column that orders rows.

    :param kind: integer, text, uuid, time (without a zone), instant (a time with a zone).
    """

    name: str
    kind: str
    nullable: bool


class Table:
    """A table whose rows have an order; refused if it or a column is missing, or the order is none."""

    def __init__(
        self, connection: Connection, name: str, spec: SqlSpec, errors: TableErrors
    ) -> None:
        self.name = name
        self.spec = spec
        self.errors = errors
        schema, _, table = name.rpartition(".")
        self.place = (table, schema or None)
        self._backend = connection.dialect.name
        inspector = sa.inspect(connection)
        with warnings.catch_warnings():
            # Of types that it does not know; `exact` says what becomes of them.
            warnings.simplefilter("ignore", sa.exc.SAWarning)
            if not inspector.has_table(*self.place):
                raise errors.missing(name)
            found = {column["name"]: column for column in inspector.get_columns(*self.place)}
        self._require(found, spec.order_by)
        self._require(found, spec.columns or ())
        self.columns: Sequence[str] = spec.columns or tuple(found)
        self.order = [_column(found[column], self._backend) for column in spec.order_by]
        self._check_kinds({column: found[column]["type"] for column in spec.order_by})
        self.exact = self._exact({column: found[column]["type"] for column in self.columns})
        self._exact_keys = self._exact({column: found[column]["type"] for column in spec.order_by})
        spelled = self.spelled(connection.dialect)
        OrderOfTable(name, spec.order_by, self.place, spelled, errors).check_unique(
            inspector, connection
        )
        self._check_nulls(connection)

    @cached_property
    def clause(self) -> sa.TableClause:
        """The table in statements; its columns have no types, so the driver decides the types of values."""
        names = dict.fromkeys([*self.spec.order_by, *self.columns])
        table, schema = self.place
        return sa.table(table, *map(sa.column, names), schema=schema)

    def spelled(self, dialect: Dialect) -> str:
        """Spell the table for others than the driver of Python, for which every percent sign is doubled."""
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
        """Build the condition of a range; `keys` are the columns of the order under other names."""
        columns = keys or self.keys
        after = sa.true() if rows.after is None else _beyond(columns, rows.after, ge, gt, gt)
        return sa.and_(after, _beyond(columns, rows.upto, le, lt, le))

    def newest(self, connection: Connection, *conditions: sa.ColumnElement[bool]) -> RowKey | None:
        """Find the last key of the rows that meet all conditions; None: no row does."""
        query = self._last_first(self._selected_keys(self.clause), *conditions).limit(1)
        row = connection.execute(query).first()
        return None if row is None else self._key(tuple(row))

    def count(
        self, connection: Connection, *conditions: sa.ColumnElement[bool], most: int | None = None
    ) -> int:
        """Count the rows that meet all conditions, at most `most`."""
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
        """Find the keys of every `each`-th of at most `most` rows, and of the last one, with their numbers from 1."""
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
        """Select rows, in their order, for `row`."""
        return sa.select(*self.selected).where(*conditions).order_by(*self.keys).limit(most)

    @cached_property
    def selected(self) -> list[sa.Label[Any]]:
        """Select the columns of a row, then its key as a text if a value may be refused."""
        found = [each.query(self.clause.c[name]).label(name) for name, each in self.exact.items()]
        if not any(each.value for each in self.exact.values()):
            return found
        first, *more = [sa.cast(key, sa.Text) for key in self.keys]
        return [*found, sum((", " + key for key in more), first).label(KEY_TEXT)]

    def row(self, selected: Sequence[Any]) -> dict[str, Any]:
        """Make a row of what was selected; refuse a value that a reader does not have."""
        found = dict(zip(self.columns, selected, strict=False))
        for name, make in self._makers:
            if found[name] is not None:
                try:
                    found[name] = make(found[name])
                except ValueError:
                    raise self.unfit(name, _shown(found[name]), str(selected[-1])) from None
        return found

    def unfit(self, column: str, value: str, key: str) -> SourceError:
        """Make the error for a value that Python or Spark does not have."""
        order = ", ".join(self.spec.order_by)
        problem = (
            f"column {column} of table {self.name} is {value} in the row whose {order} is {key}: "
        )
        problem += "Python or Spark has no such value"
        remedy = f"Correct it, or read other columns: {self._without(column)}"
        return self.errors.rows_refused(problem, remedy)

    def last(
        self, connection: Connection, *conditions: sa.ColumnElement[bool], most: int
    ) -> list[dict[str, Any]]:
        """Select the last rows that meet all conditions, with their keys."""
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

    @cached_property
    def _makers(self) -> list[tuple[str, Callable[[Any], Any]]]:
        return [(name, each.value) for name, each in self.exact.items() if each.value is not None]

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
            problem = f"column {name} of table {self.name} is {types[name]}: by it, new rows do not come last"
            remedy = f'{_KINDS} Such as order_by=["created_at", "{name}"] for a uuid.'
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
                    "Give them one, and make the column NOT NULL.",
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
            # MySQL compares times with times without a zone; its session is in UTC.
            naive = isinstance(key, datetime) and self._backend != "postgresql"
            found.append(key.replace(tzinfo=None) if naive else key)
        return tuple(found)

    def _no_place(self, column: Column, value: Any) -> SourceError:
        problem = f"table {self.name} has a row whose {column.name} is {_shown(value)!r}"
        problem += f", of type {type(value).__name__}: it has no place in an order of rows"
        return self.errors.refused(problem, f"Correct this row. {_KINDS}")


def _shown(value: Any) -> str:
    return str(value)[:SHOWN_VALUE].encode(errors="backslashreplace").decode()


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
    """Compare keys as an index on the first column serves it in every database.

    :param inner: of the first column, if there is a second one.
    :param outer: of the first column, for any value of the second one.
    :param last: of the last column.
    """
    if len(columns) == 1:
        found: sa.ColumnElement[bool] = last(columns[0], key[0])
        return found
    return sa.and_(
        inner(columns[0], key[0]), sa.or_(outer(columns[0], key[0]), last(columns[1], key[1]))
    )
