"""The page of values: what each type takes of a text or a JSON value, as the code says, and what Spark makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from airflow_tx.base.rows.types import ColumnType, JsonNumber, columns_of

HEAD = """# Values by type

What a column takes of a csv field or a JSON value. All readers take it alike: a task, the lane, Spark.
[The rule](../sources.md#the-meaning-of-a-value) is: exactly, or the batch is refused. The last column is what Spark's
own reader makes of it without this provider, by default, where the session's time zone is UTC.
"""
NULL = "NULL"
TEXTS: Mapping[str, Mapping[str, str]] = {
    "TINYINT": {"127": "127", "128": NULL, " 5 ": NULL, "5.0": NULL, "1e3": NULL},
    "BIGINT": {"9223372036854775807": "9223372036854775807", "9223372036854775808": NULL, "+5": "5", "1_0": NULL},
    "FLOAT": {"0.1": "0.10000000149011612", "3.5e38": "inf", "NaN": "nan"},
    "DOUBLE": {"0.1": "0.1", "1e400": "inf", "-Infinity": "-inf", "1.5f": "1.5", "0x1p3": "8.0"},
    "DECIMAL(10,2)": {"19.90": "19.90", "1.239": "1.24", "123456789.5": NULL, "1e2": "100.00"},
    "BOOLEAN": {"TRUE": "True", "1": NULL, "yes": NULL},
    "DATE": {"2013-01-31": "2013-01-31", "2013-02-30": NULL, "2013-1-31": "2013-01-31", "2013": "2013-01-01"},
    "TIMESTAMP": {
        "2013-01-31 23:59:59.5": "2013-01-31T23:59:59.500000+00:00",
        "2013-01-31T23:59:59+02:00": "2013-01-31T21:59:59+00:00",
        "2013-01-31T10:00:00.1234567": "2013-01-31T10:00:00.123456+00:00",
    },
    "TIMESTAMP_NTZ": {"2013-01-31 10:00": "2013-01-31T10:00:00", "2013-01-31 10:00:00Z": NULL},
}
"""Fields of csv by type, and what Spark's own reader makes of each."""
VALUES: Mapping[str, Mapping[str, str]] = {
    "TINYINT": {"127": "127", "200": "-56", "2.9": NULL, '"7"': NULL},
    "BIGINT": {"5": "5", "1.0": NULL, "true": NULL},
    "FLOAT": {"0.1": "0.10000000149011612", "1e300": "inf"},
    "DOUBLE": {"5": "5.0", '"1.5"': NULL, '"NaN"': "nan", "1e400": "inf"},
    "DECIMAL(10,2)": {"19.9": "19.90", '"19.9"': "19.90", "1.239": "1.24", "1e2": "100.00"},
    "BOOLEAN": {"true": "True", '"true"': NULL, "1": NULL},
    "STRING": {"1.50": "1.5", '{"a": [1]}': '{"a":[1]}'},
    "DATE": {'"2013-01-31"': "2013-01-31", '"2013-02-30"': NULL, '"2013"': "2013-01-01"},
    "TIMESTAMP": {'"2013-01-31T23:59:59Z"': "2013-01-31T23:59:59+00:00", "1359676799": "2013-01-31T23:59:59+00:00"},
}
"""JSON values by type, and what Spark's own parser makes of each."""


def values() -> str:
    """Give the page."""
    parts = [HEAD, "## Fields of csv\n", *_table(TEXTS, lambda kind, text: kind.of_text(text))]
    parts += ["\n## JSON values\n", *_table(VALUES, lambda kind, text: kind.of_json(_parsed(text)))]
    return "\n".join(parts)


def shown(value: Any) -> str:
    """Write a value as the page does."""
    if value is None:
        return NULL
    return value.isoformat() if isinstance(value, (date, datetime)) else str(value)


def _table(examples: Mapping[str, Mapping[str, str]], read: Any) -> list[str]:
    lines = ["| type | written | is | Spark's own |", "|---|---|---|---|"]
    for name, texts in examples.items():
        kind = columns_of(f"c {name}")["c"]
        lines += [f"| {name} | `{text}` | {_answer(kind, text, read)} | `{spark}` |" for text, spark in texts.items()]
    return lines


def _answer(kind: ColumnType, text: str, read: Any) -> str:
    try:
        return f"`{shown(read(kind, text))}`"
    except ValueError as error:
        return f"**refused**: {error}"


def _parsed(text: str) -> Any:
    return json.loads(text, parse_float=JsonNumber)
