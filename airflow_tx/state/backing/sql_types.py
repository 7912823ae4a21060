"""Column types in the words of `airflow_tx.state.columns`, for databases that lack them or name them differently."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType


class ExactDecimal(UserDefinedType[Decimal]):
    """A Decimal in SQLite, as text: SQLite's own numbers would make it a float.

    The declared name tells it from other text, and gives the column text affinity.
    """

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """As it is declared."""
        return "DECIMAL_TEXT"

    def bind_processor(self, dialect: Any) -> Callable[[Decimal | None], str | None]:
        """Plain digits; equal numbers are equal texts, so that they are one key."""

        def process(value: Decimal | None) -> str | None:
            if value is None:
                return None
            text = format(value, "f")
            text = text.rstrip("0").rstrip(".") if "." in text else text
            return "0" if text in ("-0", "") else text

        return process

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[str | None], Decimal | None]:
        """Back to a Decimal."""
        return lambda value: None if value is None else Decimal(value)


class UtcTimestamp(TypeDecorator[dt.datetime]):
    """A time with zone in SQLite, which keeps none: stored as UTC."""

    impl = sa.TIMESTAMP
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Any) -> dt.datetime | None:
        """UTC without its label."""
        return None if value is None else value.astimezone(dt.timezone.utc).replace(tzinfo=None)

    def process_result_value(self, value: dt.datetime | None, dialect: Any) -> dt.datetime | None:
        """UTC with its label."""
        return None if value is None else value.replace(tzinfo=dt.timezone.utc)


_SQLITE_NAMES = {
    "BIGINT": "bigint",
    "INTEGER": "bigint",
    "INT": "bigint",
    "DOUBLE": "double",
    "DOUBLE PRECISION": "double",
    "REAL": "double",
    "FLOAT": "double",
    "DECIMAL_TEXT": "numeric",
    "TEXT": "text",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "DATETIME": "timestamp",
    "TIMESTAMP": "timestamptz",
}


def sqlite_type(declared: str) -> str:
    """Our word for a declared type of SQLite; the declared type itself if there is none."""
    declared = declared.upper()
    return "text" if declared.startswith("VARCHAR") else _SQLITE_NAMES.get(declared, declared.lower())


def pg_type(found: TypeEngine[Any]) -> str:
    """Our word for a type of PostgreSQL; the type's own name if a value in it would be cut, padded or rounded."""
    if isinstance(found, sa.TIMESTAMP):
        return "timestamptz" if found.timezone else "timestamp"
    if isinstance(found, sa.Numeric) and not isinstance(found, sa.Float) and found.precision is None:
        return "numeric"
    if isinstance(found, (sa.Text, sa.VARCHAR)):
        return "text"
    for kind, name in ((sa.Boolean, "boolean"), (sa.Date, "date"), (sa.Integer, "bigint"), (sa.Double, "double")):
        if isinstance(found, kind):
            return name
    return str(found).lower()


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
}


def array_literal(kind: str, values: Sequence[Any]) -> str:
    """A column of values as the text of a PostgreSQL array, which every driver can send."""
    item = _ARRAY_ITEM[kind]
    return "{" + ",".join(["NULL" if value is None else item(value) for value in values]) + "}"
