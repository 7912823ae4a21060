"""Rows for MySQL and MariaDB as one JSON document: one parameter for thousands of rows."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.state.column_types import json_text
from airflow_tx.state.sql.dialect import ROW, Arrays, ValueRefused

DOC = "tx_rows"
# Where a connection keeps the server's max_allowed_packet.
PACKET = "tx_packet"
_STATEMENT = 2**23
_WHOLE = 35
_FRACTION = 30
_MANY = Context(prec=100_000)

# Some types of JSON_TABLE cut a value without an error. Only types that do not are used.
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
    """Write the document as a table, `DOC`, whose columns `read_row` reads."""
    columns = [f"{ROW} FOR ORDINALITY"]
    for number, kind in enumerate(kinds):
        declared = _READ_AS.get(kind, "LONGTEXT CHARACTER SET utf8mb4")
        columns.append(f"c{number} {declared} PATH '$[{number}]' ERROR ON ERROR")
    # Written into the statement: PyMySQL would take longer to quote it than the server to read it.
    document = sa.bindparam(DOC, type_=sa.Text(), literal_execute=True)
    return sa.text(f"JSON_TABLE(:{DOC}, '$[*]' COLUMNS({', '.join(columns)})) AS {DOC}").bindparams(
        document
    )


@lru_cache
def looking_up(
    table: sa.Table, kinds: tuple[str, ...], wanted: tuple[sa.Column[Any], ...]
) -> sa.Select[Any]:
    """Select columns of the rows whose primary keys are in the document, with the number of the key."""
    primary = enumerate(zip(kinds, table.primary_key.columns, strict=True))
    on = [sa.literal_column(read_row(kind, i)) == column for i, (kind, column) in primary]
    query: Any = sa.select(sa.literal_column(f"{DOC}.{ROW}"), *wanted).prefix_with("STRAIGHT_JOIN")
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
    """Write the rows as documents that the server takes: how many rows, and the text."""
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
    # These are doubled in a statement.
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
        problem = (
            f"it takes {size} bytes in a statement, the server's max_allowed_packet is {packet}"
        )
        raise ValueRefused(
            start, None, problem, "Raise max_allowed_packet, or keep less in one row."
        )


def _check_digits(number: int, values: Sequence[Decimal | None]) -> None:
    """DECIMAL(65,30) would round what has more digits after the point."""
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
                "Round it before writing: MySQL and MariaDB keep no longer ones.",
            )
