"""How MySQL and MariaDB differ from other databases.

There, DDL ends a transaction, so tables are created on another connection. An upsert cannot have a condition. Instead,
an assignment fails for a row that must not change. The whole statement then fails.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal
from functools import cache, lru_cache
from typing import Any, ClassVar, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.types import TypeEngine

from airflow_tx.base.errors import ConfigError
from airflow_tx.state.column_types import json_text
from airflow_tx.state.sql.dialect import (
    NOTHING_KEPT,
    ORDINAL,
    OTHER_COLLATION,
    Arrays,
    Assignments,
    Constants,
    Dialect,
    PrimaryKeys,
    TextLength,
    ValueRefused,
    Wanted,
    values_of_row,
    writer_parameters,
)
from airflow_tx.state.sql.schema import (
    KEY_LENGTH,
    OWN_KEY_BYTES,
    ExactJson,
    ExactText,
    ShortDecimal,
    UtcDatetime,
    collation,
)

# --- mysql rows ---------------------------------------------------------------------------------------------------
# Pass rows to MySQL and MariaDB as one JSON document, so that thousands of rows are one parameter.


DOC = "tx_rows"
# The key under which a connection stores the server's max_allowed_packet.
PACKET = "tx_packet"
_STATEMENT = 2**23
_WHOLE = 35
_FRACTION = 30
_MANY = Context(prec=100_000)

# Some JSON_TABLE types silently truncate values, so only other types are used.
_READ_AS = {"bigint": "BIGINT", "double": "DOUBLE", "boolean": "BIGINT"}
_AFTERWARDS = {
    "numeric": "CAST({} AS DECIMAL(65,30))",
    "date": "CAST({} AS DATE)",
    "timestamp": "CAST({} AS DATETIME(6))",
    "timestamptz": "CAST({} AS DATETIME(6))",
    "bytes": "UNHEX({})",
}


def read_row(kind: str, number: int) -> str:
    return _AFTERWARDS.get(kind, "{}").format(f"{DOC}.c{number}")


def source(kinds: Sequence[str]) -> Any:
    """Return the document as an SQL table with the name `DOC`. `read_row` reads its columns."""
    columns = [f"{ORDINAL} FOR ORDINALITY"]
    for number, kind in enumerate(kinds):
        declared = _READ_AS.get(kind, "LONGTEXT CHARACTER SET utf8mb4")
        columns.append(f"c{number} {declared} PATH '$[{number}]' ERROR ON ERROR")
    # The document is a literal, because quoting it as a parameter would take PyMySQL longer than
    # the server needs to read it.
    document = sa.bindparam(DOC, type_=sa.Text(), literal_execute=True)
    return sa.text(f"JSON_TABLE(:{DOC}, '$[*]' COLUMNS({', '.join(columns)})) AS {DOC}").bindparams(
        document
    )


@lru_cache
def looking_up(
    table: sa.Table, kinds: tuple[str, ...], wanted: tuple[sa.Column[Any], ...]
) -> sa.Select[Any]:
    """Return a query for columns of the rows whose primary keys are in the document, with the number of each key."""
    primary = enumerate(zip(kinds, table.primary_key.columns, strict=True))
    on = [sa.literal_column(read_row(kind, i)) == column for i, (kind, column) in primary]
    query: Any = sa.select(sa.literal_column(f"{DOC}.{ORDINAL}"), *wanted).prefix_with(
        "STRAIGHT_JOIN"
    )
    selected: sa.Select[Any] = query.select_from(source(kinds), table).where(*on)
    return selected


def _time(value: dt.datetime) -> str:
    return value.replace(tzinfo=None).isoformat(" ")


_WRITE: Mapping[str, Callable[[Any], Any]] = {
    "numeric": lambda value: format(value, "f"),
    "date": dt.date.isoformat,
    "timestamp": _time,
    "timestamptz": _time,
    "bytes": bytes.hex,
    "json": json_text,
}


def parts(
    connection: Connection, kinds: Sequence[str], columns: Arrays
) -> Iterator[tuple[int, str]]:
    """Yield JSON documents that the server accepts. Each is a pair of row count and text."""
    ready = []
    for number, (kind, values) in enumerate(zip(kinds, columns, strict=True)):
        if kind == "numeric":
            _check_digits(number, values)
        write = _WRITE.get(kind)
        ready.append(
            values
            if write is None
            else [None if value is None else write(value) for value in values]
        )
    packet = connection.info[PACKET]
    yield from _cut(list(zip(*ready, strict=True)), 0, min(_STATEMENT, packet - 65536), packet)


def _cut(rows: Sequence[Any], start: int, limit: int, packet: int) -> Iterator[tuple[int, str]]:
    document = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    # In a literal, these characters are doubled.
    size = len(document.encode()) + sum(map(document.count, "'\\"))
    if size <= limit:
        yield len(rows), document
    elif len(rows) > 1:
        half = len(rows) // 2
        yield from _cut(rows[:half], start, limit, packet)
        yield from _cut(rows[half:], start + half, limit, packet)
    elif size <= packet - 65536:
        yield 1, document
    else:
        problem = f"it needs {size} bytes in a statement, but max_allowed_packet of the server is {packet}"
        raise ValueRefused(
            start, None, problem, "Raise max_allowed_packet, or store less data in one row."
        )


def _check_digits(number: int, values: Sequence[Decimal | None]) -> None:
    """Refuse numbers with more digits than DECIMAL(65,30) has, because the server would round them."""
    for row, value in enumerate(values):
        if value is None or not value:
            continue
        normal = value.normalize(_MANY)
        exponent = normal.as_tuple().exponent
        assert isinstance(exponent, int)
        if -exponent > _FRACTION or normal.adjusted() >= _WHOLE:
            problem = f"has more than {_WHOLE} digits before or {_FRACTION} after the point"
            raise ValueRefused(
                row,
                number,
                problem,
                "Round it before writing: MySQL and MariaDB store no more digits.",
            )


# --- mysql --------------------------------------------------------------------------------------------------------


_T = TypeVar("_T")

# These options detect a lost server within half a minute. By default, PyMySQL relies on TCP, which
# takes hours.
_SIGNS_OF_LIFE = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
}
if sys.platform == "linux":  # other systems lack these options or name them differently
    _SIGNS_OF_LIFE |= {socket.TCP_KEEPIDLE: 10, socket.TCP_USER_TIMEOUT: 30_000}
# Timeouts in seconds, by their name in the URL query and in the connection's extra.
_TIMEOUTS = {"lock_timeout": "30", "idle_timeout": "60"}
# Codes of temporary errors. They include all client errors, except for a statement that is too
# long. Others are from a server that is full, stopping or read-only, or that refuses this user.
_UNAVAILABLE = {
    *(set(range(2000, 3000)) - {2020}),
    0,
    1021,
    1040,
    1044,
    1045,
    1049,
    1053,
    1077,
    1079,
    1129,
    1130,
    1152,
    1158,
    1159,
    1160,
}
_UNAVAILABLE |= {1114, 1161, 1184, 1203, 1226, 1290, 1836, 1927, 4031}
# With these settings, values that do not fit are errors, and the text that describes a table's
# columns may have any length. Results are not truncated, checks are not skipped, and a commit does
# not start another transaction.
_SETTINGS: Mapping[str, Any] = {
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'",
    "time_zone": "'+00:00'",
    "group_concat_max_len": 4294967295,
    "sql_select_limit": 18446744073709551615,
    "sql_safe_updates": 0,
    "sql_auto_is_null": 0,
    "sql_big_selects": 1,
    "unique_checks": 1,
    "foreign_key_checks": 1,
    "completion_type": "NO_CHAIN",
}
_LOCKED = {1205, 1213, 3572}
_NOT_NULL = 1048
_BEING_MADE = 1684
_INDEX_BYTES = 3072
_KINDS = {
    "bigint": "bigint",
    "double": "double",
    "decimal(65,30)": "numeric",
    "longtext": "text",
    "date": "date",
}
_KINDS |= {"tinyint": "boolean", "datetime(6)": "timestamp", "longblob": "bytes"}
# In strict mode, a value that is too long or too large is an error.
_KEPT = {
    "text": re.compile(r"varchar\(\d+\)|(tiny|medium|long|)text"),
    "bigint": re.compile(r"(small|medium|big|)int(\(\d+\))?( unsigned)?"),
}
_BYTES: Mapping[type, int] = {
    mysql.TINYTEXT: 2**8 - 1,
    mysql.TEXT: 2**16 - 1,
    mysql.MEDIUMTEXT: 2**24 - 1,
}
_OLDEST_MYSQL = (8, 0, 17)
_OLDEST_MARIADB = (10, 6)
_HAS_TABLE = sa.text(
    "SELECT 1 FROM information_schema.tables WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)
_COMMENTED = {"timestamptz": "datetime(6)", "json": "longtext"}


class MySql(Dialect):
    """MySQL from 8.0.17 and MariaDB from 10.6, with any SQLAlchemy driver. The extra `mysql` installs PyMySQL."""

    types: ClassVar[Mapping[str, TypeEngine[Any]]] = {
        "bigint": sa.BigInteger(),
        "double": sa.Double(),
        "numeric": ShortDecimal(),
        "text": ExactText(),
        "boolean": sa.Boolean(),
        "date": sa.Date(),
        "timestamp": mysql.DATETIME(fsp=6),
        "timestamptz": UtcDatetime(),
        "bytes": mysql.LONGBLOB(),
        "json": ExactJson(),
    }
    # The maximum number of digits before the decimal point in Spark, with 18 digits after it.
    read_as: ClassVar[Mapping[str, TypeEngine[Any]]] = {
        "numeric": sa.Numeric(56, 18),
        "boolean": sa.Boolean(),
        "timestamptz": sa.TIMESTAMP(),
    }
    lineage = ("mysql", 3306)
    assigns_in_order = True
    grantee_query = (
        "SELECT concat(quote(substring_index(current_user(), '@', 1)), '@', "
        "quote(substring_index(current_user(), '@', -1)))"
    )
    shape_query = (
        "SELECT GROUP_CONCAT(CONCAT_WS(' ', column_name, column_type, is_nullable, column_default, collation_name, "
        "column_comment) ORDER BY ordinal_position) AS shape FROM information_schema.columns "
        "WHERE table_schema = :tx_schema AND table_name = :tx_name"
    )

    def engine(self, url: URL, pool: Mapping[str, Any] = NOTHING_KEPT) -> Engine:
        """Create an engine with READ COMMITTED and strict mode, regardless of the server's defaults.

        A statement after a lock must see the rows that the previous lock holder wrote. A value that does not fit must
        cause an error.
        """
        times = {
            name: self._seconds(name, url.query.get(name, default))
            for name, default in _TIMEOUTS.items()
        }
        url = url.difference_update_query(_TIMEOUTS)
        if "+" not in url.drivername:
            url = url.set(drivername=f"{url.drivername}+pymysql")
        try:
            engine = sa.create_engine(
                url.update_query_dict({"charset": "utf8mb4"}),
                **pool,
                hide_parameters=True,
                isolation_level="READ COMMITTED",
            )
        except ModuleNotFoundError as error:
            remedy = (
                f"The driver {error.name} is missing: pip install 'airflow-provider-tx[mysql]'."
            )
            raise ConfigError(
                option="SqlState database", value=url.get_backend_name(), remedy=remedy
            ) from None
        lock = times["lock_timeout"]

        def on_connect(dbapi_connection: Any, record: Any) -> None:
            cursor = dbapi_connection.cursor()
            settings = {
                **_SETTINGS,
                "innodb_lock_wait_timeout": lock,
                "lock_wait_timeout": lock,
                "wait_timeout": times["idle_timeout"],
            }
            given = ", ".join(f"{name} = {value}" for name, value in settings.items())
            cursor.execute(f"SET SESSION {given}")
            cursor.execute("SET SESSION TRANSACTION READ WRITE")
            cursor.execute("SELECT @@max_allowed_packet")
            record.info[PACKET] = int(cursor.fetchone()[0])
            cursor.close()

        if url.get_driver_name() == "pymysql" and "unix_socket" not in url.query:
            event.listen(engine, "do_connect", _connect_with_signs_of_life)
        # Insert this listener first. SQLAlchemy reads sql_mode on connecting, and quotes names and
        # texts accordingly.
        event.listen(engine, "connect", on_connect, insert=True)
        return engine

    @staticmethod
    def _seconds(name: str, value: Any) -> int:
        if str(value).isdigit() and int(value) > 0:
            return int(value)
        raise ConfigError(
            option=f"SqlState connection, {name}",
            value=value,
            remedy="Give whole seconds, such as 30.",
        )

    def place(
        self, connection: Connection, schema: str | None, name: str
    ) -> tuple[str | None, str]:
        check_version(connection.dialect)
        lower, current = connection.execute(
            sa.text("SELECT @@lower_case_table_names, DATABASE()")
        ).one()
        if schema is None and current is None:
            remedy = "Name one: in the connection's schema or in the URL."
            raise ConfigError(option="SqlState database", value="none", remedy=remedy)
        schema = current if schema is None else schema
        return (schema.lower(), name.lower()) if lower else (schema, name)

    # --- tables ---------------------------------------------------------------------------------------------------

    @contextmanager
    def ddl(self, connection: Connection) -> Iterator[Connection]:
        with connection.engine.connect() as other:
            # Do not keep this connection, because closing it releases the lock.
            other.detach()
            other.execute(sa.text("SELECT GET_LOCK('airflow_tx', 30)"))
            yield other
            other.commit()

    @contextmanager
    def alone(self, connection: Connection, table: str) -> Iterator[None]:
        connection.exec_driver_sql(f"LOCK TABLES {table} WRITE")
        yield
        connection.exec_driver_sql("UNLOCK TABLES")

    def create(self, connection: Connection, table: sa.Table) -> None:
        definition = self.definition(connection.dialect, table)
        connection.exec_driver_sql(definition.replace("%", "%%"))

    def definition(self, sql: sa.Dialect, table: sa.Table) -> str:
        how = f"ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={collation(sql)}"
        return f"{super().definition(sql, table)} {how}"

    def has_table(self, connection: Connection, schema: str | None, name: str) -> bool:
        # SQLAlchemy's own check would describe the table. If it is missing, MySQL locks its name
        # until the transaction ends, and the connection that creates the table waits for this lock.
        of_table = {"schema": schema, "name": name}
        return _when_made(
            connection, lambda made: made.execute(_HAS_TABLE, of_table).first() is not None
        )

    def read_shape(self, connection: Connection, shape: sa.ScalarSelect[Any]) -> str | None:
        return _when_made(connection, lambda made: super(MySql, self).read_shape(made, shape))

    def column_names(
        self, connection: Connection, schema: str | None, tables: Sequence[str]
    ) -> dict[str, set[str]]:
        return _when_made(
            connection, lambda made: super(MySql, self).column_names(made, schema, tables)
        )

    def found(self, connection: Connection, table: sa.Table) -> tuple[dict[str, str], list[str]]:
        query = sa.text(
            "SELECT column_name, column_type, collation_name, column_comment, column_key "
            "FROM information_schema.columns WHERE table_schema = :schema AND table_name = :name"
        )
        of_table = {"schema": table.schema, "name": table.name}
        rows = _when_made(connection, lambda made: made.execute(query, of_table).all())
        exact = collation(connection.dialect)
        kinds = {
            name: _kind_of(declared.lower(), coll in (None, exact), note)
            for name, declared, coll, note, _ in rows
        }
        return kinds, [name for name, *_, key in rows if key == "PRI"]

    def kept_as(self, kind: str) -> str:
        declared = super().kept_as(kind).removeprefix("MySQL's ")
        return next(
            (ours for ours, theirs in _KEPT.items() if theirs.fullmatch(declared)), declared
        )

    def length_of(self, kind: TypeEngine[Any]) -> TextLength | None:
        most = _BYTES.get(type(kind))
        return super().length_of(kind) if most is None else TextLength(most, in_bytes=True)

    def key_type(self, kind: str) -> TypeEngine[Any]:
        if kind == "text":
            return ExactText(KEY_LENGTH)
        return mysql.VARBINARY(KEY_LENGTH) if kind == "bytes" else self.types[kind]

    def comment(self, kind: str) -> str | None:
        return kind if kind in _COMMENTED else None

    def needs_own_key(self, kinds: Sequence[str]) -> bool:
        sizes = {"text": 4 * KEY_LENGTH, "bytes": KEY_LENGTH, "numeric": 30}
        return sum(sizes.get(kind, 8) for kind in kinds) > _INDEX_BYTES

    # --- failures -------------------------------------------------------------------------------------------------

    def is_lock_timeout(self, error: sa.exc.DBAPIError) -> bool:
        return _code(error) in _LOCKED

    def is_unavailable(self, error: sa.exc.DBAPIError) -> bool:
        return error.connection_invalidated or _code(error) in _UNAVAILABLE

    # --- statements -----------------------------------------------------------------------------------------------

    def insert_if_absent(self, table: sa.Table) -> Any:
        key = next(iter(table.primary_key.columns))
        insert = mysql.insert(table).values(values_of_row(table))
        return insert.on_duplicate_key_update({key.name: table.c[key.name]})

    @staticmethod
    @cache
    def insert_or_replace(table: sa.Table) -> Any:
        insert = mysql.insert(table).values(values_of_row(table))
        names = [column.name for column in table.c if not column.primary_key]
        return insert.on_duplicate_key_update({name: insert.inserted[name] for name in names})

    def insert_rows(
        self,
        table: sa.Table,
        columns: Sequence[sa.Column[Any]],
        kinds: Sequence[str],
        also: Constants,
        copied: Mapping[str, str],
    ) -> Any:
        read = {
            column.name: read_row(kind, i)
            for i, (column, kind) in enumerate(zip(columns, kinds, strict=True))
        }
        rows = {**read, **{name: read[value] for name, value in copied.items()}}
        select: Any = sa.select(*map(sa.literal_column, rows.values()), *also.values())
        return mysql.insert(table).from_select([*rows, *also], select.select_from(source(kinds)))

    def given(self, insert: Any) -> Any:
        return insert.inserted

    def or_update(
        self, insert: Any, table: sa.Table, assignments: Assignments, allowed: Any
    ) -> Any:
        checked = [
            (name, sa.case((allowed, value), else_=sa.null()) if name == "tx_chunk" else value)
            for name, value in assignments
        ]
        return insert.on_duplicate_key_update(checked)

    def execute_rows(
        self,
        connection: Connection,
        statement: Any,
        writer: Sequence[int],
        kinds: Sequence[str],
        columns: Arrays,
    ) -> int:
        written = 0
        numbers = writer_parameters(writer)
        for rows, document in parts(connection, kinds, columns):
            try:
                connection.execute(statement, {DOC: document, **numbers})
                written += rows
            except sa.exc.IntegrityError as error:
                if _code(error) != _NOT_NULL:
                    raise
        return written

    def look_up(
        self, connection: Connection, keys: PrimaryKeys, wanted: Wanted
    ) -> Iterator[Sequence[Any]]:
        query = looking_up(keys.table, tuple(keys.kinds), tuple(wanted))
        start = 0
        for rows, document in parts(connection, keys.kinds, keys.values):
            for number, *values in connection.execute(query, {DOC: document}):
                yield start + number - 1, *values
            start += rows


def check_version(dialect: Any) -> None:
    """Refuse a MySQL server without the collation of keys, or a MariaDB server without JSON_TABLE.

    :raises ConfigError: the server is too old.
    """
    oldest = _OLDEST_MARIADB if dialect.is_mariadb else _OLDEST_MYSQL
    version = tuple(dialect.server_version_info)
    if version < oldest:
        named = f"{'MariaDB' if dialect.is_mariadb else 'MySQL'} {'.'.join(map(str, version))}"
        remedy = (
            f"Upgrade the server to {'.'.join(map(str, oldest))} or newer, or use another database."
        )
        raise ConfigError(option="SqlState database", value=named, remedy=remedy)


def _when_made(connection: Connection, describe: Callable[[Connection], _T]) -> _T:
    """Describe a table. Use another connection if this one cannot do it.

    While another session creates the table, the server refuses this query to connections that hold locks, and makes
    other connections wait. While another session alters the table, MariaDB returns an empty result with a warning to
    connections that hold locks.
    """
    try:
        found = describe(connection)
        if found or not connection.exec_driver_sql("SELECT @@warning_count").scalar_one():
            return found
    except sa.exc.DBAPIError as error:
        if _code(error) != _BEING_MADE:
            raise
    with connection.engine.connect() as other:
        return describe(other)


def _connect_with_signs_of_life(
    dialect: Any, record: Any, args: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Connect PyMySQL, with socket options that detect a lost server.

    This is a listener for SQLAlchemy's event `do_connect`.
    """
    import pymysql  # type: ignore[import-untyped]

    connection = pymysql.connect(*args, **options, defer_connect=True)
    host = connection.host
    try:
        opened = socket.create_connection((host, connection.port), connection.connect_timeout)
    except OSError as error:
        raise pymysql.err.OperationalError(
            2003, f"Can't connect to MySQL server on {host!r} ({error})"
        ) from error
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SIGNS_OF_LIFE.items():
        opened.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.connect(opened)
    return connection


def _code(error: sa.exc.DBAPIError) -> int:
    args = getattr(error.orig, "args", ())
    return args[0] if args and isinstance(args[0], int) else -1


def _kind_of(declared: str, exact: bool, comment: str) -> str:
    """Return the state type for a declared type, or the declared type itself if it would truncate values or compare
    them differently.
    """
    if not exact:
        return f"{declared} {OTHER_COLLATION}"
    if declared == _COMMENTED.get(comment):
        return comment
    binary = [f"varbinary({length})" for length in (KEY_LENGTH, OWN_KEY_BYTES)]
    if declared in (f"varchar({KEY_LENGTH})", *binary):
        return "text" if declared.startswith("varchar") else "bytes"
    # Prefix the name, because MySQL's "timestamp" is not the timestamp of states.
    return _KINDS.get(
        declared.partition("(")[0] if "int(" in declared else declared, f"MySQL's {declared}"
    )
