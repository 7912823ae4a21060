"""The tables of a SQL state: the fence table with a row per state, and the table of values.

Key and value columns have the user's names. Columns of this package begin with `tx_`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from airflow_tx.base.errors import StateDiffers
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import Receipt
from airflow_tx.state.aggregators import Columns, CombinerAggregator
from airflow_tx.state.api import StateKind, StoredReceipt
from airflow_tx.state.column_types import PREV, STATE_TYPES, json_text
from airflow_tx.state.keys import encode_key
from airflow_tx.state.maps import Writer
from airflow_tx.state.sql.dialect import Dialect, as_typed

# --- primary key --------------------------------------------------------------------------------------------------
# This package's key column, for states without keys and for keys that are too long for an index.


OWN_KEY = "tx_key"
OWN_KEY_BYTES = 255
# A long key starts with this byte. It does not occur in UTF-8 text or numbers, so a short key never
# equals a long key.
_LONG = b"\xff"


def has_own_key(table: sa.Table) -> bool:
    """Return whether a table's primary key is this package's column `OWN_KEY`."""
    return OWN_KEY in table.c


def own_values(kinds: Sequence[str], keys: Sequence[Sequence[Any]], rows: int) -> Sequence[Any]:
    """Return the values of the column `OWN_KEY`, which are computed from the key columns.

    Only equal keys have equal values.
    """
    if not keys:
        return [0] * rows
    forms = _forms(kinds, keys)
    if max(map(len, forms)) <= OWN_KEY_BYTES:
        return forms
    return [
        form if len(form) <= OWN_KEY_BYTES else _LONG + hashlib.sha256(form).digest()
        for form in forms
    ]


def _forms(kinds: Sequence[str], keys: Sequence[Sequence[Any]]) -> list[bytes]:
    columns = [_column_forms(kind, values) for kind, values in zip(kinds, keys, strict=True)]
    if len(columns) == 1:
        return columns[0]
    # Include the lengths, so that the keys "ab", "c" and "a", "bc" differ.
    return [
        b"".join(b"%d:%b" % (len(form), form) for form in row) for row in zip(*columns, strict=True)
    ]


def _column_forms(kind: str, values: Sequence[Any]) -> list[bytes]:
    return (
        [value.encode() for value in values]
        if kind == "text"
        else [encode_key([kind], [v]) for v in values]
    )


# --- types --------------------------------------------------------------------------------------------------------
# SQLAlchemy types for state types that a database lacks or names differently.


# Length of key columns in MySQL, which is the maximum length of a key.
KEY_LENGTH = 1024


class ExactDecimal(UserDefinedType[Decimal]):
    """A Decimal in SQLite, stored as text, because SQLite would convert a number to a float.

    The name of the type gives it text affinity.
    """

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "DECIMAL_TEXT"

    def bind_processor(self, dialect: Any) -> Callable[[Decimal | None], str | None]:
        def process(value: Decimal | None) -> str | None:
            text = None if value is None else _without_zeros(value)
            return "0" if text in ("-0", "") else text

        return process

    def result_processor(
        self, dialect: Any, coltype: Any
    ) -> Callable[[str | None], Decimal | None]:
        return lambda value: None if value is None else Decimal(value)


class UtcTimestamp(TypeDecorator[dt.datetime]):
    """A time with a time zone in SQLite, stored as UTC, because SQLite does not store time zones."""

    impl = sa.TIMESTAMP
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Any) -> dt.datetime | None:
        return None if value is None else value.astimezone(dt.timezone.utc).replace(tzinfo=None)

    def process_result_value(self, value: dt.datetime | None, dialect: Any) -> dt.datetime | None:
        return None if value is None else value.replace(tzinfo=dt.timezone.utc)


class JsonText(UserDefinedType[Any]):
    """Plain JSON in SQLite, stored as text.

    The type name distinguishes it from other texts, and gives it text affinity.
    """

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON_TEXT"

    def bind_processor(self, dialect: Any) -> Callable[[Any], str | None]:
        return lambda value: None if value is None else json_text(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[str | None], Any]:
        return lambda value: None if value is None else json.loads(value)


class ExactText(TypeDecorator[str]):
    """A text in MySQL or MariaDB that equals only itself: case, accents and trailing spaces are significant.

    A column without a length cannot have an index.
    """

    impl = sa.Text
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.length = length

    def load_dialect_impl(self, dialect: Any) -> TypeEngine[Any]:
        how = {"charset": "utf8mb4", "collation": collation(dialect)}
        kind = mysql.LONGTEXT(**how) if self.length is None else mysql.VARCHAR(self.length, **how)
        return dialect.type_descriptor(kind)  # type: ignore[no-any-return]


def collation(dialect: Any) -> str:
    """Return the MySQL or MariaDB collation with which a text equals only itself."""
    return "utf8mb4_nopad_bin" if dialect.is_mariadb else "utf8mb4_0900_bin"


class ExactJson(ExactText):
    """Plain JSON in MySQL or MariaDB, stored as text.

    The JSON type of these servers sorts, rounds or refuses some values.
    """

    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Any) -> Any:
        return None if value is None else json.loads(value)


class UtcDatetime(UtcTimestamp):
    """A time with a time zone in MySQL, stored as UTC in a DATETIME. MySQL's own type for such times ends in 2038."""

    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> TypeEngine[Any]:
        return dialect.type_descriptor(mysql.DATETIME(fsp=6))  # type: ignore[no-any-return]


class ShortDecimal(TypeDecorator[Decimal]):
    """A Decimal in MySQL's longest DECIMAL type. Its values are read without trailing zeros."""

    impl = mysql.DECIMAL
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(65, 30)

    def process_result_value(self, value: Decimal | None, dialect: Any) -> Decimal | None:
        return None if value is None else Decimal(_without_zeros(value))


def _without_zeros(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# Column types of this package's own tables. MySQL needs lengths, and compares texts with the
# server's collation unless the column names another one.
NAME = sa.String(255).with_variant(ExactText(255), "mysql", "mariadb")
LONG_TEXT = sa.Text().with_variant(ExactText(), "mysql", "mariadb")

_SQLITE_NAMES = {
    **dict.fromkeys(("BIGINT", "INTEGER", "INT"), "bigint"),
    **dict.fromkeys(("DOUBLE", "DOUBLE PRECISION", "REAL", "FLOAT"), "double"),
    "DECIMAL_TEXT": "numeric",
    "TEXT": "text",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "DATETIME": "timestamp",
    "BLOB": "bytes",
    "JSON_TEXT": "json",
    "TIMESTAMP": "timestamptz",
}


def sqlite_type(declared: str) -> str:
    """Return the state type for a declared SQLite type, or the declared type if no state type fits."""
    declared = declared.upper().removesuffix(" GENERATED ALWAYS")
    # SQLite converts texts in a NUMERIC or JSON column to numbers.
    named = f"SQLite's {declared.lower()}" if declared in ("NUMERIC", "JSON") else declared.lower()
    # How SQLite stores values depends on parts of the type name.
    parts = {"INT": "bigint", "CHAR": "text", "CLOB": "text"}
    kept = next((kind for part, kind in parts.items() if part in declared), named)
    return _SQLITE_NAMES.get(declared, kept)


def pg_type(found: TypeEngine[Any]) -> str:
    """Return the state type for a PostgreSQL type, or the name of the PostgreSQL type if it would truncate, pad or
    round a value.
    """
    if isinstance(found, sa.TIMESTAMP):
        precision = getattr(found, "precision", None)
        rounded = "" if precision in (None, 6) else f"({precision})"
        return f"timestamptz{rounded}" if found.timezone else f"timestamp{rounded}"
    if (
        isinstance(found, sa.Numeric)
        and not isinstance(found, sa.Float)
        and found.precision is None
    ):
        return "numeric"
    if isinstance(found, (sa.Text, sa.VARCHAR)) and not isinstance(found, postgresql.CITEXT):
        return "text"
    others: dict[str, type[TypeEngine[Any]]] = {
        "boolean": sa.Boolean,
        "date": sa.Date,
        "bigint": sa.Integer,
    }
    if isinstance(found, postgresql.JSONB):
        return "jsonb"  # JSONB returns numbers in another form
    others |= {"double": sa.Double, "json": sa.JSON, "bytes": sa.LargeBinary}
    return next(
        (name for name, kind in others.items() if isinstance(found, kind)), str(found).lower()
    )


def _quoted(value: Any) -> str:
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


_ARRAY_ITEM: Mapping[str, Callable[[Any], str]] = {
    "bigint": str,
    "double": repr,
    "numeric": str,
    "text": _quoted,
    "boolean": str,
    "date": _quoted,
    "timestamp": _quoted,
    "timestamptz": _quoted,
    "bytes": lambda value: f'"\\\\x{value.hex()}"',
    "json": lambda value: _quoted(json_text(value)),
}


def array_literal(kind: str, values: Sequence[Any]) -> str:
    """Return a column of values as a PostgreSQL array, which every driver can send."""
    item = _ARRAY_ITEM[kind]
    return "{" + ",".join(["NULL" if value is None else item(value) for value in values]) + "}"


# --- schema -------------------------------------------------------------------------------------------------------


FENCE_TABLE = "airflow_tx_fence"
PORTIONS_TABLE = "airflow_tx_portions"
RECEIPTS_TABLE = "airflow_tx_receipts"
FENCE_FORMAT = 1
RAISED_BY = "raised_by"
DEFINITION = "definition"
WROTE = "wrote"
SAMPLE = "sample"
# The columns for the writer of a row. They are its chunk and its token without the nonce, because
# the fence accepts only one nonce per rank.
WRITER = ("tx_txid", "tx_generation", "tx_attempt", "tx_epoch", "tx_chunk")


@cache
def fence_table(schema: str | None) -> sa.Table:
    """Describe the fence table of a schema. It has a row for each state of the schema."""
    return sa.Table(
        FENCE_TABLE,
        sa.MetaData(),
        sa.Column("state", NAME, primary_key=True),
        sa.Column("format", sa.Integer, nullable=False),
        sa.Column("incarnation", sa.String(64), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("txid", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("nonce", sa.String(64), nullable=False),
        sa.Column("applied", sa.Boolean, nullable=False),
        sa.Column("batch", LONG_TEXT, nullable=False),
        # The name of the state that raised the fence, its aggregators, whether values were written,
        # and the birth of the transaction.
        sa.Column(RAISED_BY, LONG_TEXT),
        sa.Column(DEFINITION, LONG_TEXT),
        sa.Column(WROTE, sa.Boolean),
        sa.Column("birth", sa.String(64)),
        schema=schema,
    )


@cache
def portions_table(schema: str | None) -> sa.Table:
    """Describe the table of portions of a schema. It records the portions that the grant in each fence has written.

    Portions are not in the fence row, because the writers of a grant share its lock and must not wait for each other.
    """
    return sa.Table(
        PORTIONS_TABLE,
        sa.MetaData(),
        sa.Column("state", NAME, primary_key=True),
        sa.Column("chunk", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("nonce", sa.String(64), nullable=False),
        # Some keys of the portion, for the imprint of the table.
        sa.Column(SAMPLE, LONG_TEXT),
        schema=schema,
    )


@cache
def receipts_table(schema: str | None) -> sa.Table:
    """Describe the table of receipts of a schema. All states of the schema share it.

    Two incarnations may have rows of the same txid, because an emptied ledger starts again with transaction 1.
    """
    return sa.Table(
        RECEIPTS_TABLE,
        sa.MetaData(),
        sa.Column("state", NAME, primary_key=True),
        sa.Column("incarnation", sa.String(64), primary_key=True),
        sa.Column("txid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("topology", LONG_TEXT, nullable=False),
        sa.Column("receipt", LONG_TEXT, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        schema=schema,
    )


def check_receipts_table(table: sa.Table, found: Collection[str], *, state: str) -> None:
    """Refuse a table of receipts that this package did not create.

    :raises StateDiffers: the table lacks a column. The message names the column and says what to do.
    """
    missing = [column.name for column in table.c if column.name not in found]
    if missing:
        name = table.fullname
        raise StateDiffers(
            state=state,
            problem=f"table {name} exists with other columns: {', '.join(sorted(found))}; it lacks {missing[0]}",
            remedy=f"Nothing was written. Rename it (ALTER TABLE {name} RENAME TO {RECEIPTS_TABLE}_other), or drop "
            "it. Then clear the commit task, which creates a new table.",
        )


def row_of(receipt: Receipt, identity: str) -> dict[str, Any]:
    """Return the table row for a receipt.

    :param identity: name of the state in its fence row.
    """
    of_the_transaction = {
        "txid": receipt.txid,
        "attempt": receipt.attempt,
        "topology": receipt.topology,
    }
    own = {"state": identity, "incarnation": receipt.incarnation}
    return {**own, **of_the_transaction, "receipt": receipt.text, "hash": receipt.hash}


def read_receipts(connection: Connection, table: sa.Table, identity: str) -> list[StoredReceipt]:
    """Return the receipts of a state, ordered by txid."""
    wanted = (table.c.txid, table.c.attempt, table.c.receipt, table.c.hash)
    query = (
        sa.select(*wanted)
        .where(table.c.state == identity)
        .order_by(table.c.txid, table.c.incarnation)
    )
    return [StoredReceipt(*row) for row in connection.execute(query)]


def state_table(
    columns: Columns,
    key_types: Mapping[str, str],
    kind: StateKind,
    dialect: Dialect,
    *,
    schema: str | None,
    name: str,
) -> sa.Table:
    """Describe a state's table, given its key types."""
    types = dialect.types
    made = list[sa.schema.SchemaItem]()
    for key in columns.keys:
        typed = dialect.key_type(key_types[key])
        comment = dialect.comment(key_types[key])
        made.append(sa.Column(key, typed, nullable=False, autoincrement=False, comment=comment))
    primary = list(columns.keys)
    if dialect.needs_own_key([key_types[key] for key in primary]):
        made.insert(0, sa.Column(OWN_KEY, sa.VARBINARY(OWN_KEY_BYTES), nullable=False))
        primary = [OWN_KEY]
    elif not primary:
        made.append(sa.Column(OWN_KEY, sa.BigInteger, nullable=False, autoincrement=False))
        primary = [OWN_KEY]
    made.append(sa.PrimaryKeyConstraint(*primary))
    for value, aggregator in columns.values.items():
        comment = dialect.comment(aggregator.type)
        column: sa.Column[object] = sa.Column(value, types[aggregator.type], comment=comment)
        made += [column, *dialect.checks(column, aggregator.type)]
    made += [sa.Column(writer, sa.BigInteger, nullable=False) for writer in WRITER]
    if kind is StateKind.OPAQUE:
        # A row with only NULLs differs from a missing row, so a separate column records that the
        # transaction created the row.
        made.append(sa.Column("tx_created", sa.Boolean, nullable=False))
        for value, aggregator in columns.values.items():
            made.append(
                sa.Column(
                    PREV + value, types[aggregator.type], comment=dialect.comment(aggregator.type)
                )
            )
    return sa.Table(name, sa.MetaData(), *made, schema=schema, sqlite_with_rowid=False)


def existing_table(
    connection: Connection,
    columns: Columns,
    make: Callable[[Mapping[str, str]], sa.Table],
    dialect: Dialect,
    *,
    schema: str | None,
    name: str,
) -> tuple[sa.Table, dict[str, str]]:
    """Read the table and its key types from the database. Raise StateDiffers if this state needs another table.

    :param make: describes the table for given key types.
    """
    found, primary = dialect.found(connection, sa.Table(name, sa.MetaData(), schema=schema))
    table = make(_known_types(found, columns, dialect))
    ours = {**dict.fromkeys(WRITER, "bigint"), OWN_KEY: "bytes" if columns.keys else "bigint"}
    expected = {column.name: ours.get(column.name, "") for column in table.columns}
    for value, aggregator in columns.values.items():
        expected[value] = aggregator.type
        if PREV + value in expected:
            expected[PREV + value] = aggregator.type
    if "tx_created" in expected:
        expected["tx_created"] = "boolean"
    for key in columns.keys:
        expected[key] = columns.types.get(key) or _key_type(found.get(key, ""), dialect)
    differences = _differences(found, expected)
    keys = sorted(column.name for column in table.primary_key)
    if sorted(primary) != keys:
        differences.append(f"its key is {sorted(primary)}, expected {keys}")
    if differences:
        problem = f"table {table.name} exists with other columns: {'; '.join(differences)}"
        remedy = Remedy.of("Set another table for the state, or alter this table.")
        if not primary:
            remedy += " To restore its primary key: " + Command.of("ddl", "DAG")
        raise StateDiffers(state=columns.state, problem=problem, remedy=remedy)
    return table, {key: found[key] for key in columns.keys}


def lost_key(
    connection: Connection,
    columns: Columns,
    make: Callable[[Mapping[str, str]], sa.Table],
    dialect: Dialect,
    *,
    schema: str | None,
    name: str,
) -> Iterator[str]:
    """Yield the statement that adds a primary key to a table without one.

    :param make: see `existing_table`.
    """
    found, primary = dialect.found(connection, sa.Table(name, sa.MetaData(), schema=schema))
    table = make(_known_types(found, columns, dialect))
    keys = [column.name for column in table.primary_key]
    if not primary and found.keys() >= {*keys}:
        quoted = connection.dialect.identifier_preparer
        shown = ", ".join(map(quoted.quote, keys))
        ddl = f"ALTER TABLE {quoted.format_table(table)} ADD PRIMARY KEY ({shown})"
        yield as_typed(connection.dialect, ddl)


def _known_types(found: Mapping[str, str], columns: Columns, dialect: Dialect) -> dict[str, str]:
    there = {key: found.get(key, "") for key in columns.keys}
    return {
        key: wanted if wanted in dialect.types else columns.types.get(key, "text")
        for key, wanted in there.items()
    }


def _key_type(found: str, dialect: Dialect) -> str:
    """Return a key column's type if the state does not specify it: `found` if it is a state type, otherwise text."""
    return found if found in dialect.types else "text"


def _differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    told = list[str]()
    for name in sorted(found.keys() & expected.keys()):
        if found[name] != expected[name]:
            told.append(f"{name} is {found[name]}, expected {expected[name]}")
    if missing := _only_in(expected, found):
        told.append(f"it lacks {missing}")
    if others := _only_in(found, expected):
        told.append(f"it also has {others}")
    return told


def _only_in(columns: Mapping[str, str], others: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} ({kind})" for name, kind in sorted(columns.items()) if name not in others
    )


# --- conditional upsert -------------------------------------------------------------------------------------------
# The upsert starts from the previous value if the same transaction has written the row, and from
# the stored value otherwise.


def upsert(
    dialect: Dialect,
    table: sa.Table,
    names: Sequence[str],
    kinds: Sequence[str],
    *,
    values: Mapping[str, CombinerAggregator],
    kind: StateKind,
    pushed: bool,
) -> Any:
    """Return an upsert of many rows, for any writer.

    Rows that the writer must not update stay unchanged, and are not counted.

    :param names: columns that differ between rows: the key columns, then the value columns.
    :param pushed: whether the rows have deltas. If False, they have new values, which were computed from the stored
        values.
    """
    writer = dialect.writer(WRITER)
    opaque = kind is StateKind.OPAQUE
    constants = dict(writer)
    same = table.c.tx_txid == writer["tx_txid"]
    copied = dict[str, str]()
    if opaque:
        constants["tx_created"] = sa.true()
        # When inserting a row, also store a previous value if its size is fixed, because the
        # database moves rows that grow later.
        copied = {
            PREV + value: value
            for value, each in values.items()
            if STATE_TYPES[each.type].size is None
        }
    insert = dialect.insert_rows(table, [table.c[name] for name in names], kinds, constants, copied)
    given = dialect.given(insert)
    updated: list[tuple[str, Any]] = []
    for number, (value, aggregator) in enumerate(values.items()):
        stored = table.c[value]
        prev = table.c.get(PREV + value)
        base: Any = stored
        if prev is not None:
            updated.append((prev.name, sa.case((same, prev), else_=stored)))
            before = sa.case((table.c.tx_created, sa.null()), else_=prev)
            base = sa.case((same, before), else_=prev if dialect.assigns_in_order else stored)
        new = given[value]
        if pushed:
            new = dialect.combined(aggregator.name, aggregator.type, base, new, number)
        updated.append((value, new if opaque else sa.case((same, stored), else_=new)))
    if opaque:
        updated.append(("tx_created", sa.case((same, table.c.tx_created), else_=sa.false())))
    # Assign the txid last, because all other assignments read the old txid.
    updated += [(name, given[name]) for name in reversed(WRITER)]
    return dialect.or_update(insert, table, updated, may_update(table, writer))


def writer_of(writer: Writer) -> dict[str, int]:
    """Return the values of the columns that identify a row's writer."""
    token = writer.token
    assert token is not None
    numbers = (writer.txid, token.generation, token.attempt, token.epoch, writer.chunk or 0)
    return dict(zip(WRITER, numbers, strict=True))


def of_another(table: sa.Table, writer: Mapping[str, Any]) -> Any:
    """Return an SQL condition for rows of another attempt, or of another grant of the same attempt."""
    return sa.or_(*[table.c[name] != writer[name] for name in WRITER[1:4]])


def may_update(table: sa.Table, writer: Mapping[str, Any]) -> Any:
    """Return an SQL condition for rows of an earlier transaction, of another attempt of this one, or of this writer."""
    mine = sa.or_(of_another(table, writer), table.c.tx_chunk == writer["tx_chunk"])
    return sa.or_(
        table.c.tx_txid < writer["tx_txid"], sa.and_(table.c.tx_txid == writer["tx_txid"], mine)
    )
