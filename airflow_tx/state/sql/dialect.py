"""The differences between databases: types, locks, connections, bulk statements."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.pool import NullPool
from sqlalchemy.types import TypeEngine

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.rows import COLUMN_TYPES, Exact, arrow_type_of, exact
from airflow_tx.state.api import TXID
from airflow_tx.state.column_types import STATE_TYPES

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

# --- engines ------------------------------------------------------------------------------------------------------
# Engines that keep a connection between transactions. A process has one engine per server address.
#
# Connecting takes several times as long as a small commit, and a process may make a hundred commits
# per second.


NOTHING_KEPT: Mapping[str, Any] = {"poolclass": NullPool}
# One connection is kept. A second connection at the same time is closed after its use. A connection
# that the server has closed is replaced before use. Each connection is replaced after 30 seconds,
# since a server may close sessions that are idle for 60 seconds.
_KEEPING: Mapping[str, Any] = {
    "pool_size": 1,
    "max_overflow": -1,
    "pool_recycle": 30,
    "pool_pre_ping": True,
}
_ADDRESSES = 8
_engines: dict[tuple[type[MakesEngines], URL], Engine] = {}


class MakesEngines(Protocol):
    """The part of `Dialect` that `keeping_engine` needs."""

    def engine(self, url: URL, pool: Mapping[str, Any]) -> Engine: ...


def keeping_engine(dialect: MakesEngines, url: URL) -> Engine:
    """Return the engine for an address.

    The first call creates it. If there are too many engines, the oldest one is closed.
    """
    address = (type(dialect), url)
    if address not in _engines:
        _engines[address] = dialect.engine(url, _KEEPING)
        while len(_engines) > _ADDRESSES:
            _engines.pop(next(iter(_engines))).dispose()
    return _engines[address]


def _leave_to_parent() -> None:
    """Drop the connections without closing them, because they belong to the fork's parent process."""
    for engine in _engines.values():
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_leave_to_parent)


# --- dialect ------------------------------------------------------------------------------------------------------


PARAM = "tx_p"
WRITER_PARAM = "tx_w"
# The names of parameters must differ from the names of columns. Otherwise, SQLAlchemy would also
# set a column of that name in another table of the statement. There is one prefix for changed
# columns and one for inserted columns. `OWN` is the parameter for the name of the state.
_CHANGED = "tx_changed_"
_INSERTED = "tx_inserted_"
OWN = "tx_own"
OTHER_COLLATION = "with another collation"
# Name of the column that contains a row's number within its statement.
ORDINAL = "tx_number"
Constants = dict[str, Any]
Assignments = Sequence[tuple[str, Any]]
Arrays = Sequence[Sequence[Any]]
# Names, types and values of the columns of a portion of rows.
RowPortion = tuple[tuple[str, ...], tuple[str, ...], Arrays]
Wanted = Sequence[sa.Column[Any]]


@dataclass(frozen=True)
class PrimaryKeys:
    """Keys of the rows to read, with the type of each column of the primary key. Values are given column by column."""

    table: sa.Table
    kinds: Sequence[str]
    values: Arrays

    @classmethod
    def leading(cls, table: sa.Table, kinds: Sequence[str], arrays: Arrays) -> PrimaryKeys:
        """Return the keys from these columns. The first columns are the primary key."""
        width = len(table.primary_key.columns)
        return cls(table, kinds[:width], arrays[:width])


@cache
def row_of_state(table: sa.Table, lock: str | None = None) -> sa.Select[Any]:
    """Return a query for the row of the state named by the parameter `OWN`.

    Building a small statement with SQLAlchemy takes longer than sending it, so each statement is built once.

    :param lock: "update", "share" or None; held until the transaction ends.
    """
    query = sa.select(table).where(table.c.state == sa.bindparam(OWN))
    return query.with_for_update(read=lock == "share") if lock else query


@cache
def update_of(table: sa.Table, names: Sequence[str]) -> sa.Update:
    """Return a statement that updates these columns of the row of a state. `changed` returns its parameters."""
    own = table.c.state == sa.bindparam(OWN)
    return table.update().where(own).values(_given(table, names, _CHANGED))


def changed(state: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `update_of`."""
    return {OWN: state, **{f"{_CHANGED}{name}": value for name, value in values.items()}}


def values_of_row(table: sa.Table) -> Constants:
    """Return SQL parameters for the values of an inserted row. `inserted` returns their values."""
    return _given(table, table.c.keys(), _INSERTED)


def inserted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `values_of_row`."""
    return {f"{_INSERTED}{name}": value for name, value in values.items()}


def _given(table: sa.Table, names: Iterable[str], prefix: str) -> Constants:
    return {name: sa.bindparam(f"{prefix}{name}", type_=table.c[name].type) for name in names}


def statement_text(sql: sa.Dialect, statement: Any) -> str:
    """Return a statement on one line, in the form that a user types."""
    text = str(statement.compile(dialect=sql, compile_kwargs={"literal_binds": True}))
    return " ".join(map(str.rstrip, as_typed(sql, text).splitlines()))


def as_typed(sql: sa.Dialect, text: str) -> str:
    """Convert SQL text for a driver to the form that a user types. Some drivers require doubled percent signs."""
    return text.replace("%%", "%") if sql.paramstyle in ("format", "pyformat") else text


def writer_parameters(writer: Sequence[int]) -> dict[str, Any]:
    """Return the parameters of `Dialect.writer`."""
    return {f"{WRITER_PARAM}{i}": number for i, number in enumerate(writer)}


def own_type(kind: str) -> pa.DataType:
    """Return the Arrow type for a state type. A numeric gets Spark's type for Python decimals."""
    if kind == "numeric":
        import pyarrow as pa

        return pa.decimal128(38, 18)
    return COLUMN_TYPES[STATE_TYPES[kind].column].arrow_type()


class SumRefused(Exception):
    """Raised if the value column with this number cannot store a sum."""

    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


class ValueRefused(Exception):
    """Raised for a value that this database cannot store.

    :param row: number of the row within the portion.
    :param column: number of the column within the statement; None if the whole row is refused.
    """

    def __init__(self, row: int, column: int | None, problem: str, remedy: str) -> None:
        super().__init__(row, column, problem, remedy)
        self.row = row
        self.column = column
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True)
class TextLength:
    """The maximum length of a text in a column.

    Databases truncate trailing spaces of a longer text. MariaDB truncates texts from JSON_TABLE.

    :param in_bytes: whether the limit is in bytes; if False, in characters.
    """

    most: int
    in_bytes: bool = False

    def refused(self, text: str) -> str:
        """Return the length of a text with its unit if the text is too long, or "" if it fits."""
        size = len(text.encode()) if self.in_bytes else len(text)
        unit = "bytes" if self.in_bytes else "characters"
        return f"{size} {unit}" if size > self.most else ""


def check_lengths(lengths: Mapping[str, TextLength], names: Sequence[str], arrays: Arrays) -> None:
    """Refuse a text that is longer than its column. Trailing spaces count, because a database would truncate them.

    :raises ValueRefused: the first text that is too long.
    """
    for number, name in enumerate(names):
        length = lengths.get(name)
        if length is None:
            continue
        for row, value in enumerate(arrays[number]):
            if value is not None and (size := length.refused(value)):
                problem = f"{value!r:.80} has {size}, but the column can store {length.most}"
                raise ValueRefused(
                    row,
                    number,
                    problem,
                    "Shorten the value in the task, or make the column longer.",
                )


class Dialect:
    """How one database differs from the others."""

    # SQLAlchemy type by state type.
    types: ClassVar[Mapping[str, TypeEngine[Any]]]
    # Whether the database truncates trailing spaces that do not fit into a column.
    cuts_texts: ClassVar[bool] = True
    # Whether connecting is expensive, and a kept connection does not block other sessions.
    keeps_connection: ClassVar[bool] = True
    # Options for a transaction in which all statements see the same database snapshot.
    one_moment: ClassVar[Mapping[str, Any]] = {"isolation_level": "REPEATABLE READ"}
    # Whether an assignment of an upsert sees the results of earlier assignments.
    assigns_in_order: ClassVar[bool] = False
    # The columns of :tables in a :schema, as rows of (table, column).
    columns_query: ClassVar[str] = (
        "SELECT table_name AS t, column_name AS c FROM information_schema.columns "
        "WHERE table_schema = :schema AND table_name IN :tables"
    )
    # The SQL type that readers use for a column, by state type. Other columns are read with their
    # declared types.
    read_as: ClassVar[Mapping[str, TypeEngine[Any]]] = {}
    # Whether a second session can use the snapshot that a transaction of another session sees.
    shares_moments: ClassVar[bool] = False
    # The OpenLineage scheme of this database's servers, and their default port.
    lineage: ClassVar[tuple[str, int]]
    # Query that returns the connection's user, as spelled in GRANT; "" if the database has no
    # privileges.
    grantee_query: ClassVar[str] = ""
    # Query that returns the shape of table :tx_name in :tx_schema as one text, or NULL if there is
    # no such table. The text changes whenever the database would store column values differently.
    shape_query: ClassVar[str]

    def __init__(self) -> None:
        self._inserts: dict[Any, Any] = {}

    def engine(self, url: URL, pool: Mapping[str, Any] = NOTHING_KEPT) -> Engine:
        """Create an SQLAlchemy engine.

        :param pool: the options of its connection pool.
        """
        raise NotImplementedError

    def place(
        self, connection: Connection, schema: str | None, name: str
    ) -> tuple[str | None, str]:
        """Return schema and name of a table, which are the same for all spellings of the table name."""
        raise NotImplementedError

    def set_forms(self, connection: Connection, *, own: bool) -> None:
        """Set how the session writes values as text: either as our statements need it, or as configured by the user."""

    # --- tables ---------------------------------------------------------------------------------------------------

    @contextmanager
    def ddl(self, connection: Connection) -> Iterator[Connection]:
        """Yield a connection for DDL. Only one writer at a time can use it."""
        yield connection

    @contextmanager
    def alone(self, connection: Connection, table: str) -> Iterator[None]:
        """Lock a table against all other sessions while its columns are changed. `table` is its quoted name."""
        yield

    def create(self, connection: Connection, table: sa.Table) -> None:
        connection.execute(sa.schema.CreateTable(table, if_not_exists=True))

    def definition(self, sql: sa.Dialect, table: sa.Table) -> str:
        """Return the statement that creates a table, for users or for a driver without parameters."""
        made = str(sa.schema.CreateTable(table, if_not_exists=True).compile(dialect=sql)).strip()
        return as_typed(sql, made)

    def has_table(self, connection: Connection, schema: str | None, name: str) -> bool:
        return sa.inspect(connection).has_table(name, schema=schema)

    def shape(self, schema: str | None, name: str) -> sa.ScalarSelect[Any]:
        """Return `shape_query` as an SQL expression.

        As part of another statement, it does not need its own round trip.
        """
        query = sa.text(self.shape_query).bindparams(tx_schema=schema, tx_name=name)
        return query.columns(sa.column("shape", sa.Text())).scalar_subquery()

    def read_shape(self, connection: Connection, shape: sa.ScalarSelect[Any]) -> str | None:
        found: str | None = connection.execute(sa.select(shape)).scalar_one()
        return found

    def found(self, connection: Connection, table: sa.Table) -> tuple[dict[str, str], list[str]]:
        """Read a table's columns with their types, and its primary key. The types are state types where one fits."""
        raise NotImplementedError

    def family(self, connection: Connection, table: sa.Table) -> Sequence[tuple[str, str]]:
        """Return schema and name of each table that shares rows with this table.

        Only schemas with a fence table are searched.
        """
        return ()

    def spelled(self, sql: sa.Dialect) -> dict[str, str]:
        """Return the SQL declaration of each state type."""
        columns = [
            sa.Column(f"tx_{kind}", made, comment=self.comment(kind), autoincrement=False)
            for kind, made in self.types.items()
        ]
        made = sa.Table("tx_types", sa.MetaData(), *columns)
        texts = (str(sa.schema.CreateColumn(each).compile(dialect=sql)) for each in made.c)
        return {kind: text.partition(" ")[2] for kind, text in zip(self.types, texts, strict=True)}

    def reading(
        self, sql: sa.Dialect, kind: str, declared: TypeEngine[Any]
    ) -> tuple[Exact, pa.DataType]:
        """Return how Python and Spark read a column exactly, and the type of the column in Arrow.

        :param kind: a state type, or a database type if no state type fits.
        :raises Unreadable: no reader supports the values of the column.
        """
        found = self.read_as.get(kind, declared)
        backend = "mariadb" if getattr(sql, "is_mariadb", False) else sql.name
        return exact(found, backend), arrow_type_of(found, backend)

    def dataset(self, url: URL, schema: str | None, name: str) -> Dataset:
        """Return the dataset of a table for lineage."""
        scheme, port = self.lineage
        places = (*self.databases(url), schema or "", name)
        server = f"{scheme}://{url.host or 'localhost'}:{url.port or port}"
        return Dataset(server, ".".join(filter(None, places)))

    def databases(self, url: URL) -> tuple[str, ...]:
        """Return the database name from a URL if its tables also have a schema. Otherwise, return ()."""
        return ()

    def changes_others(self, connection: Connection, table: sa.Table) -> bool:
        """Return whether inserting rows may change other rows, for example by a trigger."""
        return False

    def numbered(self, connection: Connection, table: sa.Table) -> frozenset[str]:
        """Return the names of the columns in which NULL becomes a number, even without NOT NULL."""
        return frozenset()

    def lengths(self, connection: Connection, table: sa.Table) -> Mapping[str, TextLength]:
        """Read the maximum lengths of columns.

        The database silently truncates trailing spaces beyond these lengths.
        """
        if not self.cuts_texts:
            return {}
        columns = sa.inspect(connection).get_columns(table.name, schema=table.schema)
        types = {each["name"]: each["type"] for each in columns}
        found = {name: self.length_of(each) for name, each in types.items()}
        return {name: each for name, each in found.items() if each is not None}

    def length_of(self, kind: TypeEngine[Any]) -> TextLength | None:
        """Return the maximum length of a type, or None if the type has none."""
        return TextLength(kind.length) if isinstance(kind, sa.VARCHAR) and kind.length else None

    def kept_as(self, kind: str) -> str:
        """Return the state type whose values a column either stores unchanged or refuses.

        The column may compare values differently.

        :param kind: type from `found`. It is returned if no state type fits.
        """
        return kind.removesuffix(f" {OTHER_COLLATION}")

    def column_names(
        self, connection: Connection, schema: str | None, tables: Sequence[str]
    ) -> dict[str, set[str]]:
        """Read the column names of several tables with one statement. A missing table has no column names.

        :param schema: the schema from `place`.
        """
        query = sa.text(self.columns_query).bindparams(sa.bindparam("tables", expanding=True))
        found = dict[str, set[str]]((name, set()) for name in tables)
        for table, column in connection.execute(query, {"schema": schema, "tables": list(tables)}):
            found[table].add(column)
        return found

    def checks(self, column: sa.Column[Any], kind: str) -> list[sa.CheckConstraint]:
        """Return the constraints that a column needs so that its values are exact."""
        return []

    def key_type(self, kind: str) -> TypeEngine[Any]:
        return self.types[kind]

    def comment(self, kind: str) -> str | None:
        """Return the column comment that is needed if the database uses one type for two state types."""
        return None

    def needs_own_key(self, kinds: Sequence[str]) -> bool:
        """Return whether keys of these types are too long for an index.

        In that case, a column of this package is indexed instead.
        """
        return False

    # --- failures -------------------------------------------------------------------------------------------------

    def is_lock_timeout(self, error: sa.exc.DBAPIError) -> bool:
        """Return whether a statement timed out because another session holds a lock."""
        raise NotImplementedError

    def is_unavailable(self, error: sa.exc.DBAPIError) -> bool:
        """Return whether a later try may succeed, because the database does not respond, is full or is starting.

        A retry cannot fix any other error.
        """
        raise NotImplementedError

    # --- statements -----------------------------------------------------------------------------------------------

    def combined(self, name: str, kind: str, base: Any, delta: Any, column: int) -> Any:
        """Return SQL that combines two values of a column with an aggregator of `PUSHED_DOWN`.

        `column` is the column's number.
        """
        if name == "first":
            return sa.func.coalesce(base, delta)
        if name == "last":
            return sa.func.coalesce(delta, base)
        if name in ("min", "max"):
            small, large = (delta, base) if name == "min" else (base, delta)
            return sa.case(
                (base.is_(None), delta), (self.less(kind, small, large), delta), else_=base
            )
        return self.added(kind, base, delta, column)

    def less(self, kind: str, a: Any, b: Any) -> Any:
        """Return SQL for a < b, ordered as in Python. The SQL is not true if a or b is NULL."""
        return a < b

    def added(self, kind: str, base: Any, delta: Any, column: int) -> Any:
        """Return SQL for base + delta, where a NULL changes nothing.

        The SQL fails if the column cannot store the sum.
        """
        return sa.func.coalesce(base + delta, base, delta)

    def insert_if_absent(self, table: sa.Table) -> Any:
        """Return a statement that inserts a row unless it exists.

        It waits for any concurrent insert. `inserted` returns its parameters.
        """
        raise NotImplementedError

    def insert_or_replace(self, table: sa.Table) -> Any:
        """Return a statement that inserts a row, or replaces the values of the existing row.

        `inserted` returns its parameters.
        """
        raise NotImplementedError

    def update_and_put(
        self, connection: Connection, update: sa.Update, table: sa.Table, values: dict[str, Any]
    ) -> None:
        """Run a statement from `update_of` on one table, and insert or replace a row of another table.

        :param values: the parameters of both statements.
        """
        connection.execute(update, values)
        connection.execute(self.insert_or_replace(table), values)

    def writer(self, names: Sequence[str]) -> Constants:
        """Return SQL parameters for the numbers that identify the writer.

        `execute_rows` sets them, so all writers share one statement.
        """
        return {
            name: sa.bindparam(f"{WRITER_PARAM}{i}", type_=sa.BigInteger())
            for i, name in enumerate(names)
        }

    def insert_rows(
        self,
        table: sa.Table,
        columns: Sequence[sa.Column[Any]],
        kinds: Sequence[str],
        also: Constants,
        copied: Mapping[str, str],
    ) -> Any:
        """Return a statement that inserts many rows.

        :param also: columns with the same value in all rows.
        :param copied: maps each further column to the column in `columns` whose value it gets.
        """
        raise NotImplementedError

    def given(self, insert: Any) -> Any:
        """Return, by column, SQL expressions for the values that `insert` would insert."""
        return insert.excluded

    def or_update(
        self, insert: Any, table: sa.Table, assignments: Assignments, allowed: Any
    ) -> Any:
        """Change `insert` so that it updates existing rows that meet the condition `allowed`.

        The writer's assignments come last.
        """
        return insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=dict(assignments), where=allowed
        ).execution_options(preserve_rowcount=True)

    def execute_rows(
        self,
        connection: Connection,
        statement: Any,
        writer: Sequence[int],
        kinds: Sequence[str],
        columns: Arrays,
    ) -> int:
        """Run a statement from `insert_rows` or `or_update` for one portion of rows.

        Return the number of rows that it wrote.

        :param writer: the numbers that identify the writer, in the order of the names passed to `writer`.
        :raises SumRefused: the dialect detects that a sum cannot be stored.
        :raises ValueRefused: the dialect detects that a value cannot be stored.
        """
        raise NotImplementedError

    def append_rows(
        self, connection: Connection, table: sa.Table, txid: int, portions: Iterable[RowPortion]
    ) -> int:
        """Insert a transaction's rows in portions, and return the number of rows.

        :raises ValueRefused: the dialect detects that a value of the last portion cannot be stored.
        """
        written = 0
        for names, kinds, arrays in portions:
            if (table, names) not in self._inserts:
                columns = [table.c[name] for name in names]
                made = self.insert_rows(table, columns, kinds, self.writer([TXID]), {})
                self._inserts[table, names] = made
            insert = self._inserts[table, names]
            written += self.execute_rows(connection, insert, [txid], kinds, arrays)
        return written

    def look_up(
        self, connection: Connection, keys: PrimaryKeys, wanted: Wanted
    ) -> Iterator[Sequence[Any]]:
        """Yield the `wanted` columns of the rows with these keys, using one statement.

        Each row starts with the number of its key.
        """
        raise NotImplementedError
