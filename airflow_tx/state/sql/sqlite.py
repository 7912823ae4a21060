"""How SQLite differs from other databases."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.types import TypeEngine

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import ConfigError
from airflow_tx.base.rows import Exact, Unreadable
from airflow_tx.state.aggregators import add
from airflow_tx.state.sql.dialect import (
    NOTHING_KEPT,
    ORDINAL,
    OTHER_COLLATION,
    Arrays,
    Constants,
    Dialect,
    PrimaryKeys,
    SumRefused,
    Wanted,
    own_type,
    values_of_row,
)
from airflow_tx.state.sql.schema import ExactDecimal, JsonText, UtcTimestamp, sqlite_type

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

# These SQL expressions are literals, because the only parameters of a bulk statement are the values
# of its rows.
LARGEST_DOUBLE: sa.ColumnClause[float] = sa.literal_column(repr(sys.float_info.max))
REAL: sa.ColumnClause[str] = sa.literal_column("'real'")
REFUSED = "tx_refused"
# Maximum number of parameters of a statement. SQLite's default limit is 32,766.
PARAMETERS = 30_000
# Number of rows per statement. With one row per statement, a write takes 1.5 times as long. More
# rows do not save time.
ROWS_A_STATEMENT = 500
_ROWS = "(VALUES (tx_rows))"
# A placeholder for a number that identifies the writer, until the SQL text is complete. This
# character does not occur in names. Since Python 3.14, sqlite3 refuses a sequence of parameters for
# numbered placeholders such as ?1.
_MARK = "\0"
_NUMBER = re.compile(f"{_MARK}(\\d)")
# These functions write the same texts as SQLAlchemy, but are three times as fast.
_WRITTEN: Mapping[str, Callable[[Any], str]] = {
    "date": str,
    "timestamp": lambda value: value.isoformat(" ", "microseconds"),
}
# Messages of temporary errors. They are caused by the file, its disk, its folder or another
# process.
_PASSES = (
    "is locked",
    "locking protocol",
    "disk I/O error",
    "database or disk is full",
    "unable to open database file",
    "attempt to write a readonly database",
    "out of memory",
)
_QUOTE = sqlite.dialect().identifier_preparer.quote
_TEXTS = ("text", "json")
_COUNTED = {"preserve_rowcount": True}
_PRIMARY_COLLATIONS = sa.text(
    "SELECT c.name, c.coll FROM pragma_index_list(:name, :schema) i, pragma_index_xinfo(i.name, :schema) c "
    "WHERE i.origin = 'pk' AND c.key"
)
# Query for an INTEGER PRIMARY KEY. It is the row number, so it does not need an index.
_ROW_NUMBERS = sa.text(
    "SELECT name FROM pragma_table_info(:name, :schema) WHERE pk "
    "AND NOT EXISTS (SELECT 1 FROM pragma_index_list(:name, :schema) WHERE origin = 'pk')"
)


@dataclass(frozen=True)
class _Part:
    """The part of a bulk statement before or after its rows.

    :param numbers: for each parameter, the index of its value among the writer's numbers.
    """

    text: str
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, marked: str) -> _Part:
        return cls(_NUMBER.sub("?", marked), tuple(map(int, _NUMBER.findall(marked))))

    def of_writer(self, writer: Sequence[int]) -> list[int]:
        return [writer[number] for number in self.numbers]


class Sqlite(Dialect):
    """SQLite, which allows one writer at a time.

    Transactions begin with BEGIN IMMEDIATE, which also locks the fence.
    """

    types: ClassVar[Mapping[str, TypeEngine[Any]]] = {
        "bigint": sa.BigInteger(),
        "double": sa.Double(),
        "numeric": ExactDecimal(),
        "text": sa.Text(),
        "boolean": sa.Boolean(),
        "date": sa.Date(),
        "timestamp": sa.DateTime(),
        "timestamptz": UtcTimestamp(),
        "bytes": sa.LargeBinary(),
        "json": JsonText(),
    }

    shape_query = (
        "SELECT group_concat(printf('%s %s %d %s %d', name, type, \"notnull\", dflt_value, pk)) AS shape "
        "FROM pragma_table_info(:tx_name, coalesce(:tx_schema, 'main'))"
    )
    # In SQLite, every read-only transaction reads from a single snapshot.
    one_moment: ClassVar[Mapping[str, Any]] = {}
    cuts_texts = False
    # Opening a file is fast, and an open file must not outlive a fork.
    keeps_connection = False

    def __init__(self) -> None:
        super().__init__()
        # The text parts of each upsert, by statement.
        self._texts: dict[Any, list[_Part]] = {}

    def engine(self, url: URL, pool: Mapping[str, Any] = NOTHING_KEPT) -> Engine:
        if url.database in (None, "", ":memory:") or "memory" in url.query.values():
            remedy = "Use a file: sqlite:///path/to/file."
            raise ConfigError(option="SqlState url", value="an in-memory database", remedy=remedy)
        engine = sa.create_engine(
            url, **pool, hide_parameters=True, connect_args={"timeout": self._timeout(url)}
        )
        event.listen(engine, "connect", self._on_connect)
        event.listen(engine, "begin", self._on_begin)
        return engine

    def place(
        self, connection: Connection, schema: str | None, name: str
    ) -> tuple[str | None, str]:
        lower = "".join(char.lower() if char.isascii() else char for char in name)
        return (None if schema is None or schema.lower() == "main" else schema), lower

    def found(self, connection: Connection, table: sa.Table) -> tuple[dict[str, str], list[str]]:
        rows = connection.execute(
            # Include generated columns, which pragma_table_info omits.
            sa.text(
                "SELECT name, type, pk FROM pragma_table_xinfo(:name, :schema) WHERE hidden <> 1"
            ),
            {"name": table.name, "schema": table.schema or "main"},
        ).all()
        key = [name for _, name in sorted((pk, name) for name, _, pk in rows if pk)]
        kinds = {name: sqlite_type(declared) for name, declared, _ in rows}
        otherwise = self._compared_otherwise(
            connection, table, [name for name in kinds if kinds[name] in _TEXTS]
        )
        return {**kinds, **{name: f"{kinds[name]} {OTHER_COLLATION}" for name in otherwise}}, key

    def reading(
        self, sql: sa.Dialect, kind: str, declared: TypeEngine[Any]
    ) -> tuple[Exact, pa.DataType]:
        if kind not in self.types:
            known = "; ".join(dict.fromkeys(self.spelled(sql).values()))
            raise Unreadable(f"Declare it as one of: {known}")
        own = sa.Text() if kind == "json" else self.types[kind]
        return Exact(lambda column: sa.type_coerce(column, own)), own_type(kind)

    def dataset(self, url: URL, schema: str | None, name: str) -> Dataset:
        return Dataset("sqlite", f"{url.database}.{schema or 'main'}.{name}")

    def changes_others(self, connection: Connection, table: sa.Table) -> bool:
        schema = connection.dialect.identifier_preparer.quote(table.schema or "main")
        query = sa.text(
            f"SELECT 1 FROM {schema}.sqlite_master WHERE tbl_name = :name COLLATE NOCASE "
            "AND (type = 'trigger' OR sql LIKE '%ON%CONFLICT%')"
        )
        return connection.execute(query, {"name": table.name}).first() is not None

    def numbered(self, connection: Connection, table: sa.Table) -> frozenset[str]:
        place = {"name": table.name, "schema": table.schema or "main"}
        return frozenset(connection.scalars(_ROW_NUMBERS, place))

    @staticmethod
    def _compared_otherwise(
        connection: Connection, table: sa.Table, texts: Sequence[str]
    ) -> Iterator[str]:
        """Yield the columns with a collation that treats different strings as equal, in the table or in its primary
        key.
        """
        keys = connection.execute(
            _PRIMARY_COLLATIONS, {"name": table.name, "schema": table.schema or "main"}
        )
        collations = {name: collation.upper() for name, collation in keys}
        quote = connection.dialect.identifier_preparer
        for name in texts:
            column = f"SELECT {quote.quote(name)} AS t FROM {quote.format_table(table)} WHERE false"
            # A compound SELECT compares texts with the collation of its first column.
            exact = f"SELECT count(DISTINCT t) = 3 FROM ({column} UNION ALL VALUES ('a'), ('A'), ('a '))"
            if (
                collations.get(name, "BINARY") != "BINARY"
                or not connection.exec_driver_sql(exact).scalar_one()
            ):
                yield name

    def column_names(
        self, connection: Connection, schema: str | None, tables: Sequence[str]
    ) -> dict[str, set[str]]:
        query = sa.text("SELECT name FROM pragma_table_info(:name, :schema)")
        where = schema or "main"
        return {
            name: set(connection.execute(query, {"name": name, "schema": where}).scalars().all())
            for name in tables
        }

    def checks(self, column: sa.Column[Any], kind: str) -> list[sa.CheckConstraint]:
        if kind != "bigint":
            return []
        name = _QUOTE(column.name).replace(":", r"\:")
        return [sa.CheckConstraint(sa.text(f"typeof({name}) IN ('integer', 'null')"))]

    def is_lock_timeout(self, error: sa.exc.DBAPIError) -> bool:
        return "is locked" in str(error.orig)

    def less(self, kind: str, a: Any, b: Any) -> Any:
        return sa.func.tx_less(a, b) if kind == "numeric" else a < b

    def is_unavailable(self, error: sa.exc.DBAPIError) -> bool:
        return any(each in str(error.orig) for each in _PASSES)

    def added(self, kind: str, base: Any, delta: Any, column: int) -> Any:
        """Return SQL that adds decimals in Python, because SQLite would add them as floats.

        The SQL refuses sums that overflow. SQLite would convert an integer sum to a float, and a float sum to infinity.
        """
        number: sa.ColumnClause[int] = sa.literal_column(str(column))
        if kind == "numeric":
            return sa.func.tx_add(base, delta, number)
        total = super().added(kind, base, delta, column)
        bad = (
            sa.func.abs(total) > LARGEST_DOUBLE
            if kind == "double"
            else sa.func.typeof(total) == REAL
        )
        return sa.case((bad, sa.func.tx_refuse(number)), else_=total)

    def insert_if_absent(self, table: sa.Table) -> Any:
        return sqlite.insert(table).values(values_of_row(table)).on_conflict_do_nothing()

    @staticmethod
    @cache
    def insert_or_replace(table: sa.Table) -> Any:
        return sqlite.insert(table).prefix_with("OR REPLACE").values(values_of_row(table))

    def writer(self, names: Sequence[str]) -> Constants:
        return {name: sa.literal_column(f"{_MARK}{i}") for i, name in enumerate(names)}

    def insert_rows(
        self,
        table: sa.Table,
        columns: Sequence[sa.Column[Any]],
        kinds: Sequence[str],
        also: Constants,
        copied: Mapping[str, str],
    ) -> Any:
        rows = {column.name: f"column{i}" for i, column in enumerate(columns, 1)}
        rows |= {name: rows[value] for name, value in copied.items()}
        select: Any = sa.select(*also.values(), *map(sa.literal_column, rows.values()))
        # Without a condition, SQLite parses the next clause as a join condition.
        select = select.select_from(sa.text(_ROWS)).where(sa.true())
        return sqlite.insert(table).from_select([*also, *rows], select)

    def execute_rows(
        self,
        connection: Connection,
        statement: Any,
        writer: Sequence[int],
        kinds: Sequence[str],
        columns: Arrays,
    ) -> int:
        if statement not in self._texts:
            text = str(statement.compile(dialect=connection.dialect))
            self._texts[statement] = [_Part.of(part) for part in text.split(_ROWS)]
        before, after = self._texts[statement]
        ready = [self._bound(connection, *pair) for pair in zip(kinds, columns, strict=True)]
        rows = len(ready[0])
        width = len(ready)
        marks = f"({', '.join('?' * width)})"
        numbers = len(before.numbers) + len(after.numbers)
        most = min(ROWS_A_STATEMENT, (PARAMETERS - numbers) // width)
        written = 0
        try:
            for start in range(0, rows, most):
                count = min(most, rows - start)
                text = f"{before.text}(VALUES {', '.join([marks] * count)}){after.text}"
                # Fill the list of parameters column by column.
                values = [None] * (count * width)
                for number, column in enumerate(ready):
                    values[number::width] = column[start : start + count]
                written += connection.exec_driver_sql(
                    text,
                    (*before.of_writer(writer), *values, *after.of_writer(writer)),
                    execution_options=_COUNTED,
                ).rowcount
            return written
        except sa.exc.OperationalError:
            if REFUSED in connection.info:
                raise SumRefused(connection.info.pop(REFUSED)) from None
            raise

    def look_up(
        self, connection: Connection, keys: PrimaryKeys, wanted: Wanted
    ) -> Iterator[Sequence[Any]]:
        quote = connection.dialect.identifier_preparer
        primary = list(keys.table.primary_key.columns)
        named = quote.format_table(keys.table)
        rows = len(keys.values[0])
        width = len(keys.values)
        on = " AND ".join(
            f"{named}.{quote.format_column(key)} = tx_rows.k{i}" for i, key in enumerate(primary)
        )
        names = ", ".join(
            [f"tx_rows.{ORDINAL}", *(f"{named}.{quote.format_column(column)}" for column in wanted)]
        )
        ready = [
            self._bound(connection, *pair) for pair in zip(keys.kinds, keys.values, strict=True)
        ]
        marks = "?" + ", ?" * width
        step = PARAMETERS // (width + 1)
        for start in range(0, rows, step):
            numbers = range(start, min(start + step, rows))
            values = ", ".join([f"({marks})"] * len(numbers))
            # A CROSS JOIN keeps the order, so each value is looked up in the primary key.
            statement = (
                f"WITH tx_rows({', '.join([ORDINAL, *(f'k{i}' for i in range(width))])}) AS (VALUES {values}) "
                f"SELECT {names} FROM tx_rows CROSS JOIN {named} ON {on}"
            )
            parameters = chain.from_iterable((i, *(column[i] for column in ready)) for i in numbers)
            found = connection.exec_driver_sql(statement, tuple(parameters)).all()
            yield from zip(
                *self._results(connection, wanted, list(zip(*found, strict=True))), strict=True
            )

    def _results(
        self, connection: Connection, wanted: Wanted, found: Arrays
    ) -> Iterator[Sequence[Any]]:
        numbers, *columns = found or [()]
        yield numbers
        for column, values in zip(wanted, columns, strict=False):
            process = column.type.dialect_impl(connection.dialect).result_processor(
                connection.dialect, None
            )
            yield values if process is None else [process(value) for value in values]

    def _bound(self, connection: Connection, kind: str, values: Sequence[Any]) -> Sequence[Any]:
        process = _WRITTEN.get(kind) or (
            self.types[kind].dialect_impl(connection.dialect).bind_processor(connection.dialect)
        )
        if process is None:
            return values
        return [None if value is None else process(value) for value in values]

    @staticmethod
    def _timeout(url: URL) -> float:
        value = url.query.get("timeout", "30")
        try:
            return float(str(value))
        except ValueError:
            remedy = "Give seconds, such as 30."
            raise ConfigError(
                option="SqlState connection, timeout", value=value, remedy=remedy
            ) from None

    @staticmethod
    def _on_connect(dbapi_connection: Any, record: Any) -> None:
        # An exception in a function loses its text on the way to the caller, so record the column
        # here.
        def refuse(column: int) -> NoReturn:
            record.info[REFUSED] = column
            raise SumRefused(column)

        def add_texts(a: str | None, b: str | None, column: int) -> str | None:
            try:
                total = add(None if a is None else Decimal(a), None if b is None else Decimal(b))
            except ArithmeticError:
                refuse(column)
            return None if total is None else format(total, "f")

        def less(a: str | None, b: str | None) -> bool:
            return a is not None and b is not None and Decimal(a) < Decimal(b)

        dbapi_connection.isolation_level = None
        dbapi_connection.create_function("tx_less", 2, less, deterministic=True)
        dbapi_connection.create_function("tx_add", 3, add_texts, deterministic=True)
        # Do not mark this function as deterministic. SQLite calls a deterministic function with
        # constant arguments even if it does not use the result.
        dbapi_connection.create_function("tx_refuse", 1, refuse)
        # Set a cache of 64 MiB. With SQLite's default of 2 MiB, a large commit reads and writes the
        # same pages many times.
        dbapi_connection.execute("PRAGMA cache_size = -65536")
        # The default of a library build may be lower, and a crash would then undo a commit.
        dbapi_connection.execute("PRAGMA synchronous = FULL")

    @staticmethod
    def _on_begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("tx_reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
