"""The values of a database table, exact in Python and in Spark.

Drivers convert values differently, and round or truncate values that do not fit their types. The database therefore
returns such values as texts. Python and Spark use the same pattern to accept the texts that both can represent exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Dialect

from airflow_tx.base.rows.types import column_name

Element = sa.ColumnElement[Any]
Declared = sa.types.TypeEngine[Any]

_DIGITS = 38
_PLACES = 18
"""The maximum number of digits of Spark's DECIMAL, and the scale for columns that declare none."""
_DATE = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TRUTHS = {"0": False, "1": True}
_TIME = _DATE + r" [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
# The drivers support only arrays of these types.
_LISTED = (
    *(sa.SMALLINT, sa.INTEGER, sa.BIGINT, sa.BOOLEAN),
    *(sa.TEXT, sa.VARCHAR, sa.CHAR),
)


@dataclass(frozen=True)
class Exact:
    """How a column is read.

    :param query: function that returns the expression to select for the column.
    :param value: function that converts the selected value for Python, or None. It raises ValueError if Spark does not
        support the value.
    :param pattern: regular expression for the texts that Spark can cast to `spark`, or None if Spark converts nothing.
    :param zone: time zone that Spark appends to the text of a time.
    """

    query: Callable[[Element], Element] = lambda column: column
    value: Callable[[Any], Any] | None = None
    pattern: str | None = None
    spark: str = ""
    zone: str = ""


class Unreadable(ValueError):
    """Signals that no reader can represent the exact values of a column type. The message is the remedy."""


def exact(found: Declared, backend: str) -> Exact:
    """Return how to read a column of this type. Raise Unreadable if it cannot be read exactly."""
    found = base_type(found)
    if backend == "sqlite":
        return Exact(value=_of_sqlite)
    if isinstance(found, sa.DateTime):
        if is_instant(found, backend):
            return _instant(backend)
        return _text(_wall, _TIME, "TIMESTAMP_NTZ")
    if isinstance(found, sa.Date):
        return _text(date.fromisoformat, _DATE, "DATE")
    return _of_postgres(found) if backend == "postgresql" else _of_mysql(found)


def arrow_type_of(found: Declared, backend: str) -> Any:
    """Return the Arrow type of a column's values, or None if it depends on the values."""
    import pyarrow as pa  # type: ignore[import-untyped]

    found = base_type(found)
    if backend == "sqlite":
        return _of_affinity(found)
    if isinstance(found, sa.DateTime):
        return pa.timestamp("us", "UTC" if is_instant(found, backend) else None)
    if isinstance(found, sa.ARRAY) and type(found.item_type) in _LISTED:
        return pa.list_(arrow_type_of(found.item_type, backend))
    if isinstance(found, mysql.YEAR) or getattr(found, "display_width", None) == 1:
        # The server casts the value to this type.
        return pa.int32() if backend == "mariadb" else pa.int64()
    if isinstance(found, sa.Integer):
        return _whole(found)
    if isinstance(found, sa.Numeric) and not isinstance(found, sa.Float):
        return pa.decimal128(*_digits(found))
    kinds = {
        sa.Date: pa.date32(),
        sa.Float: pa.float64(),
        sa.Boolean: pa.bool_(),
        postgresql.OID: pa.int64(),
        mysql.BIT: pa.binary(),
        sa.LargeBinary: pa.binary(),
        sa.BINARY: pa.binary(),
        mysql.TINYBLOB: pa.binary(),
        mysql.MEDIUMBLOB: pa.binary(),
        mysql.LONGBLOB: pa.binary(),
        sa.VARBINARY: pa.binary(),
    }
    return next((kind for each, kind in kinds.items() if isinstance(found, each)), pa.string())


def _of_affinity(found: Declared) -> Any:
    """Return the Arrow type of a SQLite column. Such a column can also store values of other types."""
    import pyarrow as pa

    kinds = {sa.Integer: pa.int64(), sa.Float: pa.float64(), sa.String: pa.string()}
    return next((kind for each, kind in kinds.items() if isinstance(found, each)), None)


def _whole(found: sa.Integer) -> Any:
    """Return Spark's integer type, so that Python and Spark produce the same hashes."""
    import pyarrow as pa

    unsigned = getattr(found, "unsigned", False)
    if isinstance(found, sa.BigInteger):
        return pa.decimal128(20, 0) if unsigned else pa.int64()
    small = isinstance(found, (sa.SmallInteger, mysql.TINYINT, mysql.MEDIUMINT))
    return pa.int64() if unsigned and not small else pa.int32()


def base_type(found: Declared) -> Declared:
    """Return the base type of a domain."""
    while isinstance(found, postgresql.DOMAIN):
        found = found.data_type
    return found


def is_instant(found: sa.DateTime, backend: str) -> bool:
    """Return whether a time has a time zone."""
    return found.timezone or (backend in ("mysql", "mariadb") and isinstance(found, sa.TIMESTAMP))


def _of_postgres(found: Declared) -> Exact:
    if isinstance(found, postgresql.MONEY):
        # The text of a money value, and even its scale, depends on lc_monetary.
        raise Unreadable("change its type to numeric(19, 2)")
    if isinstance(found, sa.ARRAY) and type(found.item_type) in _LISTED:
        return Exact(value=_listed)
    if isinstance(found, sa.REAL):
        return Exact(lambda column: sa.cast(column, sa.Double))
    if isinstance(found, sa.Numeric) and not isinstance(found, sa.Float):
        return _decimal(found)
    if isinstance(found, postgresql.OID):
        return Exact(lambda column: sa.cast(column, sa.BigInteger))
    if isinstance(found, sa.LargeBinary):
        return Exact(value=bytes)
    if isinstance(found, (sa.Integer, sa.Float, sa.Boolean)):
        return Exact()
    if isinstance(found, (postgresql.INET, postgresql.CIDR)):
        return Exact()
    if isinstance(found, sa.String) and not isinstance(found, sa.Enum):
        return Exact()
    return _as_text()


def _of_mysql(found: Declared) -> Exact:
    if isinstance(found, sa.types.NullType):
        raise Unreadable("change its type to a number, a time, a text or bytes")
    if isinstance(found, sa.Boolean):
        return _text(_TRUTHS.__getitem__, "[01]", "BOOLEAN")
    if isinstance(found, sa.Float):
        # The server formats a FLOAT with six digits, and a DOUBLE(M, D) with D decimals.
        return Exact(lambda column: column * sa.literal_column("1e0"))
    if isinstance(found, sa.Numeric):
        return _decimal(found) if (found.precision or 0) > _DIGITS else Exact()
    # Spark would convert a TINYINT(1) to a boolean, and a YEAR to a date.
    if isinstance(found, mysql.YEAR) or getattr(found, "display_width", None) == 1:
        return Exact(lambda column: sa.cast(column, sa.Integer))
    if isinstance(found, mysql.BIT):
        return Exact(lambda column: sa.cast(column, sa.BINARY))
    # Spark would pad the values of types that its driver reports as CHAR.
    padded = isinstance(found, (sa.CHAR, sa.Enum, mysql.SET))
    return _as_text() if padded or isinstance(found, (sa.Time, sa.Uuid)) else Exact()


def _as_text() -> Exact:
    return Exact(lambda column: sa.cast(column, sa.Text))


def _text(value: Callable[[str], Any], pattern: str, spark: str) -> Exact:
    """Read a value from the text that the database writes for it."""
    allowed = re.compile(pattern)

    def made(text: str) -> Any:
        if allowed.fullmatch(text) is None:
            raise ValueError(text)
        return value(text)

    return Exact(lambda column: sa.cast(column, sa.Text), made, pattern, spark)


def _decimal(found: sa.Numeric[Any]) -> Exact:
    """Read a number with its column's precision and scale. If Spark has fewer digits, keep the scale."""
    digits, places = _digits(found)
    pattern = rf"-?0*[0-9]{{0,{digits - places}}}(\.[0-9]{{0,{places}}}0*)?"

    def made(text: str) -> Decimal:
        # Arrow refuses more decimals than the column has, even if they are zeros.
        whole, point, behind = text.partition(".")
        return Decimal(f"{whole}{point}{behind[:places]}")

    return _text(made, pattern, f"DECIMAL({digits}, {places})")


def _digits(found: sa.Numeric[Any]) -> tuple[int, int]:
    digits, places = found.precision or _DIGITS, found.scale or 0
    places = _PLACES if found.precision is None else min(max(places, 0), _DIGITS)
    return min(max(digits, places), _DIGITS), places


def _instant(backend: str) -> Exact:
    text = _text(lambda text: _wall(text).replace(tzinfo=timezone.utc), _TIME, "TIMESTAMP_LTZ")

    def in_utc(column: Element) -> Element:
        # MySQL sessions are in UTC.
        if backend == "postgresql":
            column = sa.func.timezone("UTC", column)
        return sa.cast(column, sa.Text)

    return Exact(in_utc, text.value, text.pattern, text.spark, zone="+00:00")


def _wall(text: str) -> datetime:
    at = datetime.fromisoformat(text[:19])
    return at.replace(microsecond=int(text[20:].ljust(6, "0")))


def _listed(value: list[Any]) -> list[Any]:
    if any(isinstance(each, list) for each in value):
        raise ValueError("an array with several dimensions")
    return value


def _of_sqlite(value: Any) -> Any:
    if isinstance(value, str) and not value.isascii():
        value.encode()  # This fails on surrogates, which replace invalid UTF-8.
    return value


# --- columns ------------------------------------------------------------------------------------------------------


KEY_TEXT = "tx_row"
"""The name of the column that holds the key of a row, for messages."""
_SHOWN = 60
# Placeholders in an error message for the value and the row's key.
_VALUE = "<value>"
_KEY = "<key>"


@dataclass(frozen=True)
class ExactColumns:
    """The columns of a table, and how Python and Spark read them.

    :param reads: how to read each column, by its name.
    :param unfit: function that creates the error for an unreadable value. Its arguments are the column, the value and
        the row's key.
    """

    reads: Mapping[str, Exact]
    unfit: Callable[[str, str, str], Exception]

    def selected(self, rows: sa.FromClause, keys: Sequence[Element]) -> list[sa.Label[Any]]:
        """Return the columns to select for a row. If a value may be refused, also select the key as text."""
        found = [each.query(rows.c[name]).label(name) for name, each in self.reads.items()]
        if not any(each.value for each in self.reads.values()):
            return found
        first, *more = [sa.cast(key, sa.Text) for key in keys]
        return [*found, sum((", " + key for key in more), first).label(KEY_TEXT)]

    def row(self, selected: Sequence[Any]) -> dict[str, Any]:
        """Create a row from the selected values. Raise an error for a value that a reader cannot represent."""
        found = dict(zip(self.reads, selected, strict=False))
        for name, make in self._makers:
            if found[name] is not None:
                try:
                    found[name] = make(found[name])
                except ValueError:
                    raise self.unfit(name, shown_text(found[name]), str(selected[-1])) from None
        return found

    @cached_property
    def _makers(self) -> list[tuple[str, Callable[[Any], Any]]]:
        return [(name, each.value) for name, each in self.reads.items() if each.value is not None]

    def in_spark(self) -> list[str]:
        """Return the columns as Spark expressions over the selected columns."""
        return [self._in_spark(name, each) for name, each in self.reads.items()]

    def _in_spark(self, name: str, read: Exact) -> str:
        """Return a Spark expression that casts a text. For an inexact cast, Spark raises the same error as Python."""
        column = column_name(name)
        if read.pattern is None:
            return column
        text = f"concat({column}, '{read.zone}')" if read.zone else column
        made = f"if({column} RLIKE {_literal(f'^{read.pattern}$')}, try_cast({text} AS {read.spark}), NULL)"
        error = str(self.unfit(name, _VALUE, _KEY))
        words = ", ".join(
            {_VALUE: f"left({column}, {_SHOWN})", _KEY: KEY_TEXT}.get(part, _literal(part))
            for part in re.split(f"({_VALUE}|{_KEY})", error)
        )
        checked = f"coalesce({made}, raise_error(concat({words})))"
        return f"CASE WHEN {column} IS NOT NULL THEN {checked} END AS {column}"


def shown_text(value: Any) -> str:
    """Format a database value for a message."""
    return str(value)[:_SHOWN].encode(errors="backslashreplace").decode()


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def sql_text(statement: sa.ClauseElement, dialect: Dialect) -> str:
    """Return a statement's SQL for readers other than the Python driver, which needs doubled percent signs."""
    compiled = statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    return str(compiled).replace("%%", "%")
