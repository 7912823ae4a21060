"""One table of a source: checked, and the statements on it by the order of its rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import ge, gt, le, lt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect

from airflow_tx.sources.sql.database import TableErrors
from airflow_tx.sources.sql.positions import KeyRange, RowKey, key_json
from airflow_tx.sources.sql.spec import SqlSpec
from airflow_tx.sources.sql.unique import OrderOfTable

Comparison = Callable[[Any, Any], Any]

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
        schema, _, table = name.rpartition(".")
        self._schema = schema or None
        self._table = table
        self._errors = errors
        inspector = sa.inspect(connection)
        with warnings.catch_warnings():
            # Of types that it does not know; they are not needed here.
            warnings.simplefilter("ignore", sa.exc.SAWarning)
            if not inspector.has_table(table, self._schema):
                raise errors.missing(name)
            found = {
                column["name"]: column for column in inspector.get_columns(table, self._schema)
            }
        self._require(found, spec.order_by)
        self._require(found, spec.columns or ())
        self.columns: Sequence[str] = spec.columns or tuple(found)
        self.times = {
            column for column in self.columns if isinstance(found[column]["type"], sa.DateTime)
        }
        self.order = [_column(found[column], connection.dialect.name) for column in spec.order_by]
        self._check_kinds({column: found[column]["type"] for column in spec.order_by})
        spelled = self.spelled(connection.dialect)
        order = OrderOfTable(name, spec.order_by, (table, self._schema), spelled, errors)
        order.check_unique(inspector, connection)
        self._check_nulls(connection)

    @cached_property
    def clause(self) -> sa.TableClause:
        """The table in statements; its columns have no types, so the driver decides the types of values."""
        names = dict.fromkeys([*self.spec.order_by, *self.columns])
        return sa.table(self._table, *map(sa.column, names), schema=self._schema)

    def spelled(self, dialect: Dialect) -> str:
        """Spell the table for others than the driver of Python, for which every percent sign is doubled."""
        return dialect.identifier_preparer.format_table(self.clause).replace("%%", "%")

    @property
    def keys(self) -> list[sa.ColumnElement[Any]]:
        return [self.clause.c[name] for name in self.spec.order_by]

    # --- statements -----------------------------------------------------------------------------------------------

    def after(self, key: RowKey | None) -> sa.ColumnElement[bool]:
        return sa.true() if key is None else _beyond(self.keys, key, ge, gt, gt)

    def upto(self, key: RowKey) -> sa.ColumnElement[bool]:
        return _beyond(self.keys, key, le, lt, le)

    def within(self, rows: KeyRange) -> sa.ColumnElement[bool]:
        return sa.and_(self.after(rows.after), self.upto(rows.upto))

    def newest(self, connection: Connection, *conditions: sa.ColumnElement[bool]) -> RowKey | None:
        """Find the last key of the rows that meet all conditions; None: no row does."""
        row = connection.execute(self._last_first(self.keys, *conditions).limit(1)).first()
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
        names = [numbered.c[name] for name in self.spec.order_by]
        query = sa.select(*names, numbered.c.tx_number).where(wanted).order_by(numbered.c.tx_number)
        return [(self._key(tuple(row[:-1])), int(row[-1])) for row in connection.execute(query)]

    def read(self, *conditions: sa.ColumnElement[bool], most: int | None = None) -> sa.Select[Any]:
        """Select rows, in their order."""
        wanted = [self.clause.c[name] for name in self.columns]
        return sa.select(*wanted).where(*conditions).order_by(*self.keys).limit(most)

    def last(
        self, connection: Connection, *conditions: sa.ColumnElement[bool], most: int
    ) -> list[dict[str, Any]]:
        """Read the last rows that meet all conditions, with their keys."""
        query = self._last_first(self.clause.c, *conditions).limit(most)
        return [
            dict(zip(self.clause.c.keys(), row, strict=True)) for row in connection.execute(query)
        ]

    def _last_first(
        self, columns: Iterable[Any], *conditions: sa.ColumnElement[bool]
    ) -> sa.Select[Any]:
        return sa.select(*columns).where(*conditions).order_by(*(key.desc() for key in self.keys))

    # --- checks ---------------------------------------------------------------------------------------------------

    def _require(self, found: dict[str, Any], columns: Sequence[str]) -> None:
        missing = [column for column in columns if column not in found]
        if missing:
            problem = f"table {self.name} has no column {', '.join(missing)}; it has {', '.join(list(found)[:30])}"
            raise self._errors.refused(problem, "Correct order_by or columns, or add the column.")

    def _check_kinds(self, types: dict[str, Any]) -> None:
        *first, last = self.order
        wrong = [column for column in self.order if not column.kind]
        wrong += [column for column in first if column.kind in ("text", "uuid")]
        wrong += [last] if not first and last.kind == "uuid" else []
        if wrong:
            name = wrong[0].name
            problem = f"column {name} of table {self.name} is {types[name]}: by it, new rows do not come last"
            remedy = f'{_KINDS} Such as order_by=["created_at", "{name}"] for a uuid.'
            raise self._errors.refused(problem, remedy)

    def _check_nulls(self, connection: Connection) -> None:
        for column in self.order:
            key = self.clause.c[column.name]
            if (
                column.nullable
                and connection.execute(sa.select(key).where(key.is_(None)).limit(1)).first()
                is not None
            ):
                raise self._errors.refused(
                    f"table {self.name} has rows without {column.name} (NULL): they have no position in the order",
                    "Give them one, and make the column NOT NULL.",
                )

    def _key(self, values: RowKey) -> RowKey:
        try:
            key_json(values)
        except ValueError as error:
            raise self._errors.refused(f"table {self.name}: {error}", _KINDS) from None
        return values


def _column(found: Any, backend: str) -> Column:
    return Column(found["name"], _kind_of(found["type"], backend), found.get("nullable", True))


def _kind_of(found: Any, backend: str) -> str:
    if isinstance(found, sa.Uuid):
        return "uuid"
    if isinstance(found, sa.Integer) or (isinstance(found, sa.Numeric) and found.scale == 0):
        return "integer"
    if isinstance(found, sa.DateTime):
        zoned = found.timezone or (
            backend in ("mysql", "mariadb") and isinstance(found, sa.TIMESTAMP)
        )
        return "instant" if zoned else "time"
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
