"""Column types in the words of `airflow_tx.state.columns`, for databases that lack them or name them differently."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from airflow_tx.state.column_types import json_text

# Key columns of MySQL; as long as the longest key.
KEY_LENGTH = 1024


class ExactDecimal(UserDefinedType[Decimal]):
    """A Decimal in SQLite, as text: its own numbers would make it a float. The declared name gives text affinity."""

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
    """A time with zone in SQLite, which keeps none: stored as UTC."""

    impl = sa.TIMESTAMP
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Any) -> dt.datetime | None:
        return None if value is None else value.astimezone(dt.timezone.utc).replace(tzinfo=None)

    def process_result_value(self, value: dt.datetime | None, dialect: Any) -> dt.datetime | None:
        return None if value is None else value.replace(tzinfo=dt.timezone.utc)


class JsonText(UserDefinedType[Any]):
    """Plain JSON in SQLite, as text; the declared name tells it from other text, and gives text affinity."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON_TEXT"

    def bind_processor(self, dialect: Any) -> Callable[[Any], str | None]:
        return lambda value: None if value is None else json_text(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[str | None], Any]:
        return lambda value: None if value is None else json.loads(value)


class ExactText(TypeDecorator[str]):
    """A text of MySQL or MariaDB that equals itself only: no other case, no other accent, no more spaces. Without
    a length, no index takes it."""

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
    """Name the collation of MySQL or MariaDB that compares characters, and spaces at the end, too."""
    return "utf8mb4_nopad_bin" if dialect.is_mariadb else "utf8mb4_0900_bin"


class ExactJson(ExactText):
    """Plain JSON of MySQL or MariaDB, as text: their own JSON would sort, round or refuse some of it."""

    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Any) -> Any:
        return None if value is None else json.loads(value)


class UtcDatetime(UtcTimestamp):
    """A time with zone in MySQL, whose own ends in 2038: stored as UTC."""

    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> TypeEngine[Any]:
        return dialect.type_descriptor(mysql.DATETIME(fsp=6))  # type: ignore[no-any-return]


class ShortDecimal(TypeDecorator[Decimal]):
    """A Decimal in MySQL's longest fixed form, read without the zeros that fill it up."""

    impl = mysql.DECIMAL
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(65, 30)

    def process_result_value(self, value: Decimal | None, dialect: Any) -> Decimal | None:
        return None if value is None else Decimal(_without_zeros(value))


def _without_zeros(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# Columns of our own tables: MySQL needs lengths, and compares texts as the server likes unless a column says how.
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
    """Find our word for a declared type of SQLite; the declared type itself if there is none."""
    declared = declared.upper()
    return (
        "text" if declared.startswith("VARCHAR") else _SQLITE_NAMES.get(declared, declared.lower())
    )


def pg_type(found: TypeEngine[Any]) -> str:
    """Find our word for a type of PostgreSQL; the type's own name if a value in it would be cut, padded or rounded."""
    if isinstance(found, sa.TIMESTAMP):
        return "timestamptz" if found.timezone else "timestamp"
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
    """Write a column of values as a PostgreSQL array, which every driver can send."""
    item = _ARRAY_ITEM[kind]
    return "{" + ",".join(["NULL" if value is None else item(value) for value in values]) + "}"
