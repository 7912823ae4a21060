"""Values that are JSON, as a schema in Spark's DDL has them; without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from airflow_tx.errors import FailedBatch

MISFIT = "The value of a message does not fit value_schema"


def misfit(source: str, where: str, txid: int) -> FailedBatch:
    """The error of a message whose value cannot be read: this batch fails, and no other.

    :param where: topic, partition and offset, in words.
    """
    remedy = "Correct value_schema, then clear the task; or take the batch out of the way: "
    return FailedBatch(f"{MISFIT} of {source}: {where}. {remedy}airflow tx skip TOPOLOGY {txid} --why TEXT")


class Values:
    """Reads values.

    :param schema: such as ``user STRING, amount DOUBLE``; only simple types can be had without Spark.
    :raises ValueError: it has another type.
    """

    def __init__(self, schema: str) -> None:
        from airflow_tx.sources.files.records import parse_schema

        self._columns = parse_schema(schema)

    def read(self, value: bytes | None) -> dict[str, Any] | None:
        """The columns of a value; None of a message without one.

        :raises ValueError: it does not fit.
        """
        if value is None:
            return None
        found = json.loads(value)
        if not isinstance(found, Mapping):
            raise ValueError("it is no object")
        return {name: _fitted(found.get(name), kind) for name, kind in self._columns.items()}


def _fitted(value: Any, kind: Callable[[str], Any]) -> Any:
    if value is None:
        return None
    if kind is str:
        return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
            raise ValueError("it is no number of this type")
        return kind(value)
    if kind is Decimal and isinstance(value, (int, float)) and not isinstance(value, bool):
        return Decimal(str(value))
    if isinstance(value, bool):
        return _boolean(value, kind)
    if not isinstance(value, str) or not _of_text(kind):
        raise ValueError("it is of another type")
    try:
        return kind(value)
    except InvalidOperation:
        raise ValueError("it is no number") from None


def _of_text(kind: Any) -> bool:
    return kind is Decimal or getattr(kind, "__self__", None) in (date, datetime)


def _boolean(value: bool, kind: Callable[[str], Any]) -> bool:
    if kind is Decimal or _of_text(kind):
        raise ValueError("it is of another type")
    return value
