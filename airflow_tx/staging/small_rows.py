"""The rows of a small output as JSON, beside their files: who reads them needs no library for files of columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

SMALL_ROWS = 100
SMALL_SIZE = 8_192
"""Characters of JSON."""
_FROM_JSON: Mapping[str, Callable[[str], Any]] = {"date": date.fromisoformat, "decimal": Decimal}


def rows_as_json(batches: Sequence[pa.RecordBatch]) -> str:
    """Write rows, exactly; "" if they are many, or of a type that JSON has no value for."""
    kinds: dict[str, str] = {}
    for batch in batches:
        for column in batch.schema:
            kind = _kind(column.type)
            if kind is None or kinds.setdefault(column.name, kind) != kind:
                return ""
    if sum(batch.num_rows for batch in batches) > SMALL_ROWS:
        return ""
    columns = {
        name: [value for batch in batches for value in batch.column(name).to_pylist()]
        for name in kinds
    }
    for name, kind in kinds.items():
        if kind in _FROM_JSON:
            columns[name] = [None if value is None else str(value) for value in columns[name]]
    text = json.dumps(
        {"kinds": kinds, "rows": list(zip(*columns.values(), strict=True))}, separators=(",", ":")
    )
    return text if len(text) <= SMALL_SIZE else ""


def rows_from_json(text: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Read the rows that `rows_as_json` wrote.

    :param columns: the wanted ones; None: all columns.
    """
    written = json.loads(text)
    names = list(written["kinds"])
    convert = {
        name: _FROM_JSON[kind] for name, kind in written["kinds"].items() if kind in _FROM_JSON
    }
    for values in written["rows"]:
        row = dict(zip(names, values, strict=True))
        for name, of in convert.items():
            row[name] = None if row[name] is None else of(row[name])
        yield row if columns is None else {name: row[name] for name in columns}


def _kind(of: pa.DataType) -> str | None:
    import pyarrow as pa

    types = pa.types
    if types.is_null(of) or types.is_boolean(of) or types.is_integer(of) or types.is_floating(of):
        return "plain"
    if types.is_string(of) or types.is_large_string(of):
        return "plain"
    if types.is_date32(of):
        return "date"
    return "decimal" if types.is_decimal128(of) else None
