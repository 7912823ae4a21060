"""How PostgreSQL differs from other databases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.types import TypeEngine

from airflow_tx.base.connections import signs_of_life
from airflow_tx.state.api import TXID
from airflow_tx.state.column_types import json_text
from airflow_tx.state.sql.dialect import (
    NOTHING_KEPT,
    ORDINAL,
    OTHER_COLLATION,
    PARAM,
    Arrays,
    Constants,
    Dialect,
    PrimaryKeys,
    RowPortion,
    Wanted,
    as_typed,
    values_of_row,
    writer_parameters,
)
from airflow_tx.state.sql.schema import FENCE_TABLE, array_literal, pg_type

# Defaults of a session, unless its user, database or connection sets other values. Without them, a
# committer on a lost machine would hold the fence for hours, until TCP drops the connection. A
# session that waits for COPY data does not count as idle.
_TIMEOUTS = {"lock_timeout": "30s", "idle_in_transaction_session_timeout": "60s"}
_TIMEOUTS |= {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
}
_CHOSEN = (
    "SELECT name FROM pg_settings WHERE source IN ('client', 'user', 'database', 'database user')"
)
_SET_TIMEOUTS = (
    "SELECT set_config(name, timeout, true) "
    f"FROM (VALUES {', '.join(map(str, _TIMEOUTS.items()))}) AS timeouts(name, timeout) WHERE name NOT IN ({_CHOSEN}) "
    # With other values, the server can lose confirmed commits in a crash.
    "UNION ALL SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
# Our statements need these settings. A user, a database or a connection may have different ones.
# The driver reads the settings for quotes and backslashes on connecting.
_FORMS = {
    "array_nulls": "on",
    "bytea_output": "hex",
    "DateStyle": "ISO, YMD",
    "extra_float_digits": "3",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
}
_SET_FORMS = (
    "SELECT set_config(name, form, true) "
    f"FROM (VALUES {', '.join(map(str, _FORMS.items()))}) AS forms(name, form)"
)
_RESET_FORMS = (
    f"SELECT set_config(name, reset_val, true) FROM pg_settings WHERE name IN {tuple(_FORMS)}"
)
# Query for the columns whose collation treats different strings as equal.
_COMPARED_OTHERWISE = sa.text(
    "SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
    "JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_collation l ON l.oid = a.attcollation "
    "WHERE n.nspname = :schema AND c.relname = :name AND NOT l.collisdeterministic"
)
_HAS_TABLE = sa.text(
    "SELECT true FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = :schema AND c.relname = :name AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
)
# Query for a table's parents and children, at any depth, in schemas that have a fence table.
_FAMILY = sa.text(
    " ".join(
        (
            "WITH RECURSIVE own AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace",
            "WHERE n.nspname = :schema AND c.relname = :name),",
            "up AS (SELECT oid FROM own UNION SELECT i.inhparent FROM pg_inherits i JOIN up ON i.inhrelid = up.oid),",
            "down AS (SELECT oid FROM own UNION SELECT i.inhrelid FROM pg_inherits i",
            "JOIN down ON i.inhparent = down.oid)",
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace",
            "WHERE c.oid IN (SELECT oid FROM up UNION SELECT oid FROM down) AND c.oid NOT IN (SELECT oid FROM own)",
            "AND EXISTS (SELECT FROM pg_class f WHERE f.relnamespace = n.oid AND f.relname = :fence)",
        )
    )
)
# Query that finds whether the table or one of its partitions has triggers, or the table has rules.
_CHANGES_OTHERS = sa.text(
    "SELECT true FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = :schema AND c.relname = :name AND (c.relhasrules OR EXISTS (SELECT FROM pg_trigger t "
    "WHERE NOT t.tgisinternal AND (t.tgrelid = c.oid OR t.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid)))))"
)
# Maximum length of a statement in characters. A longer statement is split in two, because the
# server limits a parameter to 1 GB.
STATEMENT = 2**26


# Codes, or code prefixes, of temporary errors. They concern connections, other sessions, the disk,
# missing resources, or a server that is stopping, starting or a standby. Driver errors have no
# code.
_PASSES = tuple("08 25006 25P03 25P04 28 3D000 40001 40003 53000 53100 53200 53300 57P 58".split())


_POLICIES = "tx_policies"
_ROW_SECURITY = sa.text("SELECT row_security_active(CAST(:place AS text))")
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
_SPECIAL = "\\\n\r\t"
_NONE = type(None)
_COPIED: Mapping[str, Callable[[Any], str]] = {
    "double": repr,
    "bytes": lambda value: rf"\\x{value.hex()}",
    "json": lambda value: json_text(value).translate(_ESCAPED),
    "text": lambda value: value.translate(_ESCAPED),
}


class _Lines:
    """Rows as a stream of lines for COPY.

    :ivar error: the error that ended the stream. The driver would keep only its text.
    """

    error: BaseException | None = None

    def __init__(self, txid: int, portions: Iterable[RowPortion]) -> None:
        self._txid = txid
        self._portions = iter(portions)

    def read(self, size: int) -> bytes:
        try:
            portion = next(self._portions, None)
            return b"" if portion is None else self._lines(*portion)
        except BaseException as error:
            self.error = error
            raise

    def _lines(self, names: Sequence[str], kinds: Sequence[str], arrays: Arrays) -> bytes:
        fields = [repeat(str(self._txid)), *map(_fields, kinds, arrays)]
        lines = map("\t".join, zip(*fields, strict=False))
        return "\n".join([*lines, ""]).encode()


def _fields(kind: str, values: Sequence[Any]) -> Iterable[str]:
    plain = kind == "text" and not any(map("".join(filter(None, values)).__contains__, _SPECIAL))
    written = str if plain else _COPIED.get(kind, str)
    if _NONE in set(map(type, values)):
        return [r"\N" if value is None else written(value) for value in values]
    return map(written, values)


def _code(error: sa.exc.DBAPIError) -> str | None:
    return getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlstate", None)


def _has_row_security(connection: Connection, place: str) -> bool:
    """Return whether row security applies to this user, because COPY would then be refused.

    The query runs once per connection and table.
    """
    known: dict[str, bool] = connection.info.setdefault(_POLICIES, {})
    if place not in known:
        own = {"place": as_typed(connection.dialect, place)}
        known[place] = connection.execute(_ROW_SECURITY, own).scalar_one()
    return known[place]


def _copied(connection: Connection, text: str, lines: _Lines) -> int:
    errors = connection.dialect.loaded_dbapi.Error
    cursor: Any = connection.connection.cursor()
    try:
        cursor.copy_expert(text, lines)
    except errors as error:
        if lines.error is not None:
            raise lines.error from None
        raise sa.exc.DBAPIError.instance(
            text, None, error, errors, hide_parameters=True, dialect=connection.dialect
        ) from None
    return int(cursor.rowcount)


@cache
def _update_and_put(update: sa.Update, table: sa.Table) -> Any:
    return Postgres.insert_or_replace(table).add_cte(update.cte("updated"))


class Postgres(Dialect):
    """PostgreSQL, with any SQLAlchemy driver. psycopg2 comes with Airflow."""

    types: ClassVar[Mapping[str, TypeEngine[Any]]] = {
        "bigint": sa.BigInteger(),
        "double": sa.Double(),
        "numeric": sa.Numeric(),
        "text": sa.Text(),
        "boolean": sa.Boolean(),
        "date": sa.Date(),
        "timestamp": sa.TIMESTAMP(),
        "timestamptz": sa.TIMESTAMP(timezone=True),
        "bytes": sa.LargeBinary(),
        # JSONB is not used, because it returns numbers in another form.
        "json": sa.JSON(),
    }
    shares_moments = True
    lineage = ("postgres", 5432)
    grantee_query = "SELECT quote_ident(current_user)"
    # The information schema hides tables on which the user has no rights.
    columns_query = (
        "SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relname IN :tables "
        "AND a.attnum > 0 AND NOT a.attisdropped"
    )
    shape_query = (
        "SELECT concat(c.oid, c.relpersistence, string_agg(concat_ws(' ', a.attname, a.attnotnull, a.atthasdef, "
        "a.attcollation, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)) AS shape FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE n.nspname = :tx_schema AND c.relname = :tx_name AND c.relkind IN ('r', 'p', 'v', 'm', 'f') "
        "AND a.attnum > 0 AND NOT a.attisdropped GROUP BY c.oid"
    )

    def engine(self, url: URL, pool: Mapping[str, Any] = NOTHING_KEPT) -> Engine:
        encoding = {"client_encoding": "utf8"} if "psycopg" in url.get_driver_name() else {}
        engine = sa.create_engine(
            url,
            **pool,
            hide_parameters=True,
            isolation_level="READ COMMITTED",
            connect_args={**signs_of_life(url), **encoding},
            # Allow writes even if the user's sessions are read-only by default.
            execution_options={"postgresql_readonly": False},
        )
        event.listen(engine, "begin", self._on_begin)
        return engine

    @staticmethod
    def _on_begin(connection: Connection) -> None:
        is_own = connection.get_execution_options().get("tx_own", True)
        connection.exec_driver_sql(
            f"{_SET_TIMEOUTS} UNION ALL {_SET_FORMS}" if is_own else _SET_TIMEOUTS
        )

    def databases(self, url: URL) -> tuple[str, ...]:
        return (url.database or url.username or "",)

    def set_forms(self, connection: Connection, *, own: bool) -> None:
        connection.exec_driver_sql(_SET_FORMS if own else _RESET_FORMS)

    def place(
        self, connection: Connection, schema: str | None, name: str
    ) -> tuple[str | None, str]:
        if schema is not None:
            return schema, name
        found = sa.text(
            "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = to_regclass(quote_ident(CAST(:name AS text)))), current_schema())"
        )
        where: str | None = connection.execute(found, {"name": name}).scalar_one()
        return where, name

    @contextmanager
    def ddl(self, connection: Connection) -> Iterator[Connection]:
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('airflow_tx'))"))
        yield connection

    @contextmanager
    def alone(self, connection: Connection, table: str) -> Iterator[None]:
        connection.exec_driver_sql(f"LOCK TABLE {table}")
        yield

    def has_table(self, connection: Connection, schema: str | None, name: str) -> bool:
        # A lane checks the table for each transaction, and SQLAlchemy's inspector would take longer
        # than this statement.
        found = connection.execute(_HAS_TABLE, {"schema": schema, "name": name})
        return found.first() is not None

    def found(self, connection: Connection, table: sa.Table) -> tuple[dict[str, str], list[str]]:
        inspector = sa.inspect(connection)
        columns = inspector.get_columns(table.name, schema=table.schema)
        key = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
        otherwise = connection.execute(
            _COMPARED_OTHERWISE, {"schema": table.schema, "name": table.name}
        ).scalars()
        kinds = {column["name"]: pg_type(column["type"]) for column in columns}
        kinds |= {name: f"{kinds[name]} {OTHER_COLLATION}" for name in otherwise}
        return kinds, list(key)

    def family(self, connection: Connection, table: sa.Table) -> Sequence[tuple[str, str]]:
        own = {"schema": table.schema, "name": table.name, "fence": FENCE_TABLE}
        return [(schema, name) for schema, name in connection.execute(_FAMILY, own)]

    def changes_others(self, connection: Connection, table: sa.Table) -> bool:
        own = {"schema": table.schema, "name": table.name}
        return connection.execute(_CHANGES_OTHERS, own).first() is not None

    def is_lock_timeout(self, error: sa.exc.DBAPIError) -> bool:
        return _code(error) in ("55P03", "40P01")

    def is_unavailable(self, error: sa.exc.DBAPIError) -> bool:
        code = _code(error)
        unanswered = isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError))
        return error.connection_invalidated or (
            unanswered if code is None else code.startswith(_PASSES)
        )

    def less(self, kind: str, a: Any, b: Any) -> Any:
        return sa.collate(a, "C") < sa.collate(b, "C") if kind == "text" else a < b

    def insert_if_absent(self, table: sa.Table) -> Any:
        return postgresql.insert(table).values(values_of_row(table)).on_conflict_do_nothing()

    @staticmethod
    @cache
    def insert_or_replace(table: sa.Table) -> Any:
        insert = postgresql.insert(table).values(values_of_row(table))
        names = [column.name for column in table.c if not column.primary_key]
        others = {name: insert.excluded[name] for name in names}
        return insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=others
        )

    def update_and_put(
        self, connection: Connection, update: sa.Update, table: sa.Table, values: dict[str, Any]
    ) -> None:
        connection.execute(_update_and_put(update, table), values)

    def insert_rows(
        self,
        table: sa.Table,
        columns: Sequence[sa.Column[Any]],
        kinds: Sequence[str],
        also: Constants,
        copied: Mapping[str, str],
    ) -> Any:
        source = self._source(columns)
        names = [column.name for column in columns]
        select = sa.select(*[source.c[name] for name in (*names, *copied.values())], *also.values())
        return postgresql.insert(table).from_select([*names, *copied, *also], select)

    def execute_rows(
        self,
        connection: Connection,
        statement: Any,
        writer: Sequence[int],
        kinds: Sequence[str],
        columns: Arrays,
    ) -> int:
        arrays = self._arrays(kinds, columns)
        rows = len(columns[0])
        if rows > 1 and sum(map(len, arrays.values())) > STATEMENT:
            halves = (
                [column[: rows // 2] for column in columns],
                [column[rows // 2 :] for column in columns],
            )
            return sum(
                self.execute_rows(connection, statement, writer, kinds, half) for half in halves
            )
        return connection.execute(statement, {**arrays, **writer_parameters(writer)}).rowcount

    def append_rows(
        self, connection: Connection, table: sa.Table, txid: int, portions: Iterable[RowPortion]
    ) -> int:
        """Copy the rows in one stream. The server stores rows while this process encodes the next rows."""
        quote = connection.dialect.identifier_preparer
        place = quote.format_table(table)
        if connection.dialect.driver != "psycopg2" or _has_row_security(connection, place):
            return super().append_rows(connection, table, txid, portions)
        written = 0
        for names, same in groupby(portions, itemgetter(0)):
            columns = ", ".join(map(quote.quote, (TXID, *names)))
            text = f"COPY {place} ({columns}) FROM STDIN WITH (ENCODING 'UTF8')"
            # The driver does not get parameters here, so a percent sign in a name is not an escape.
            written += _copied(connection, text.replace("%%", "%"), _Lines(txid, same))
        return written

    def look_up(
        self, connection: Connection, keys: PrimaryKeys, wanted: Wanted
    ) -> Iterator[Sequence[Any]]:
        query = self._looking_up(keys.table, tuple(wanted))
        yield from connection.execute(query, self._arrays(keys.kinds, keys.values))

    @staticmethod
    @lru_cache
    def _looking_up(table: sa.Table, wanted: tuple[sa.Column[Any], ...]) -> sa.Select[Any]:
        primary = list(table.primary_key.columns)
        source = Postgres._source(primary)
        on = sa.and_(*[key == source.c[key.name] for key in primary])
        return sa.select(source.c[ORDINAL] - 1, *wanted).select_from(source.join(table, on))

    @staticmethod
    def _source(columns: Sequence[sa.Column[Any]]) -> Any:
        arrays = [
            sa.cast(sa.bindparam(f"{PARAM}{i}", type_=sa.Text()), postgresql.ARRAY(column.type))
            for i, column in enumerate(columns)
        ]
        names = [sa.column(column.name, column.type) for column in columns]
        return (
            sa.func.unnest(*arrays)
            .table_valued(*names, with_ordinality=ORDINAL)
            .render_derived(name="tx_rows")
        )

    @staticmethod
    def _arrays(kinds: Sequence[str], columns: Arrays) -> dict[str, str]:
        pairs = enumerate(zip(kinds, columns, strict=True))
        return {f"{PARAM}{i}": array_literal(kind, column) for i, (kind, column) in pairs}
