"""Rows of a state as exact Arrow tables. A `RowTally` computes a digest and sums while the rows are read.

A value without an Arrow type becomes text, and the field metadata names its original type.
"""

from __future__ import annotations

import datetime as dt
import marshal
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from airflow_tx.base.rows import is_frame, lacking
from airflow_tx.ledger import Written
from airflow_tx.state.column_types import STATE_TYPES, StateType

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_Row = dict[str, Any]
_Columns = Mapping[str, Sequence[Any]]
_KIND = b"airflow_tx"
_EPOCH = dt.datetime(1970, 1, 1)


def schema_of(types: Mapping[str, str]) -> pa.Schema:
    """Create the Arrow schema of columns, from their column types."""
    import pyarrow as pa

    from airflow_tx.base.rows import COLUMN_TYPES

    return pa.schema(
        [
            pa.field(name, COLUMN_TYPES[_type(kind).column].arrow_type(), metadata={_KIND: kind})
            for name, kind in types.items()
        ]
    )


def _type(kind: str) -> StateType:
    """Return the column type with this name. Return the type `text` for an unknown name."""
    return STATE_TYPES.get(kind, STATE_TYPES["text"])


def to_arrow(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pa.Table:
    """Create an Arrow table from rows. If a row lacks a column, its value is NULL."""
    import pyarrow as pa

    schema = schema_of(types)
    columns = []
    for field, (name, kind) in zip(schema, types.items(), strict=True):
        values = [row.get(name) for row in rows]
        if write := _type(kind).to_arrow:
            values = [None if value is None else write(value) for value in values]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def from_arrow(table: pa.Table | pa.RecordBatch) -> list[_Row]:
    """Return the rows of a table. `to_arrow` has recorded their types in the field metadata."""
    columns = columns_from_arrow(table)
    return [
        {name: column[number] for name, column in columns.items()}
        for number in range(table.num_rows)
    ]


def columns_from_arrow(table: pa.Table | pa.RecordBatch) -> dict[str, list[Any]]:
    """Return a table's columns by name, with the same values as `from_arrow`."""
    columns = {}
    for field in table.schema:
        column = table.column(field.name)
        values = (
            _times(column)
            if str(field.type) == "timestamp[us]"
            else column.to_pylist(maps_as_pydicts="strict")
        )
        back = _type((field.metadata or {}).get(_KIND, b"").decode()).from_arrow
        columns[field.name] = (
            values if back is None else [None if value is None else back(value) for value in values]
        )
    return columns


def _times(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Convert timestamps to datetimes, as `to_pylist` does, in a third of the time."""
    numbers = column.cast("int64").to_pylist()
    return [None if number is None else _EPOCH + dt.timedelta(0, 0, number) for number in numbers]


# --- row tally ----------------------------------------------------------------------------------------------------
# Compute the digest and the sums of a state's rows, which are part of the receipt.


_ROWS_AT_ONCE = 1000
_WHOLE = {int, type(None)}
_PLAIN = {*_WHOLE, str, float, bool, bytes}
_MODULUS = 2**64
# Version 2 of marshal does not write references, which would depend on other uses of the same
# value.
_MARSHAL = 2


class RowsInParts(Iterable[Mapping[str, Any]], ABC):
    """Rows that may be in record batches.

    A table writes a record batch column by column, without creating an object per row.
    """

    @abstractmethod
    def parts(self) -> Iterator[Any]:
        """Yield record batches and iterables of rows, in row order. Each call reads the rows again."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for part in self.parts():
            yield from from_arrow(part) if is_frame(part) else part


class RowTally(Iterable[Mapping[str, Any]]):
    """Computes a digest of rows while they are read. A second reading starts the digest again.

    The digest is the sum of 64-bit hashes. It does not depend on the order, and counts a repeated row twice.

    :param added: columns whose sum is also computed.
    :ivar lacking: columns that some rows of the last portion did not have.
    """

    lacking: Collection[str] = ()

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]],
        added: Collection[str] = (),
    ) -> None:
        self._rows = rows
        self._begun = False
        self._sum = 0
        self._added = tuple(added)
        self._sums: dict[str, int] = {}

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], added: Collection[str] = ()) -> RowTally:
        """Return a RowTally unchanged. Wrap any other rows in a RowTally."""
        return rows if isinstance(rows, cls) else cls(rows, added)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        self._begin()
        self._sums = dict.fromkeys(self._added, 0)
        rows = iter(self._rows)
        while portion := list(islice(rows, _ROWS_AT_ONCE)):
            self._take(portion)
            yield from portion

    def portions(self, size: int) -> Iterator[_Columns]:
        """Read the rows as columns, in portions of at most `size` rows. If a row lacks a column, its value is None."""
        self._begin()
        parts = self._rows.parts() if isinstance(self._rows, RowsInParts) else iter([self._rows])
        for columnar, neighbours in groupby(parts, is_frame):
            if columnar:
                yield from self._by_column(neighbours, size)
            else:
                yield from self._by_row(chain.from_iterable(neighbours), size)

    def _begin(self) -> None:
        """Start reading. Refuse to read an iterator twice, because the second reading would silently return no rows."""
        if self._begun and isinstance(self._rows, Iterator):
            raise TypeError(
                "the write must read the rows again, but an iterator can be read only once: pass a list"
            )
        self._begun = True
        self._sum = 0

    def _by_column(self, batches: Iterable[Any], size: int) -> Iterator[_Columns]:
        for batch in batches:
            self.lacking = lacking(batch.schema)
            for start in range(0, batch.num_rows, size):
                columns = columns_from_arrow(batch.slice(start, size))
                self._take_columns({name: columns[name] for name in sorted(columns)})
                yield columns

    def _by_row(self, rows: Iterator[Mapping[str, Any]], size: int) -> Iterator[_Columns]:
        while portion := list(islice(rows, size)):
            taken = self._take(portion)
            self.lacking = ()
            if taken:
                yield {name: taken[name] for name in portion[0]}
            else:
                names = dict.fromkeys(chain.from_iterable(portion))
                self.lacking = [name for name in names if any(name not in row for row in portion)]
                yield {name: [row.get(name) for row in portion] for name in names}

    def _take(self, rows: Sequence[Mapping[str, Any]]) -> _Columns:
        """Add rows to the digest column by column, which takes a quarter of the time.

        Return their columns. Return {} if the rows have different columns.
        """
        try:
            columns = {name: list(map(itemgetter(name), rows)) for name in sorted(rows[0])}
        except KeyError:
            columns = {}
        if set(map(len, rows)) == {len(columns)}:
            self._take_columns(columns)
            return columns
        for row in rows:
            self._take_columns({name: [row[name]] for name in sorted(row)})
        return {}

    def _take_columns(self, columns: _Columns) -> None:
        from xxhash import xxh3_64_intdigest

        rows = zip(*map(_plain, columns.values()), strict=True)
        names = xxh3_64_intdigest(marshal.dumps(tuple(columns), _MARSHAL))
        texts = map(marshal.dumps, rows, repeat(_MARSHAL))
        self._sum += sum(map(xxh3_64_intdigest, texts, repeat(names)))
        for name in tuple(self._sums):
            values = columns.get(name, [""])
            if set(map(type, values)) <= _WHOLE:
                self._sums[name] += sum(filter(None, values))
            else:
                del self._sums[name]  # the store may convert the value to another number

    def written(self, keys: int) -> Written:
        """Return the digest and the sums of the rows that were read.

        The state has stored these rows under `keys` keys.
        """
        return Written(keys, f"{self._sum % _MODULUS:016x}", dict(self._sums) if keys else {})


def _plain(values: Sequence[Any]) -> Sequence[Any]:
    others = set(map(type, values)) - _PLAIN
    return (
        [(repr(value),) if type(value) in others else value for value in values]
        if others
        else values
    )
