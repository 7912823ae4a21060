"""The rows of a state, digested and added up during the reading: its part of the receipt."""

from __future__ import annotations

import marshal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from operator import itemgetter
from typing import Any

from airflow_tx.protocol.receipt import Written

_ROWS_AT_ONCE = 1000
_WHOLE = {int, type(None)}
_PLAIN = {*_WHOLE, str, float, bool, bytes}
_MODULUS = 2**64
# Without references, which depend on who else holds a value.
_MARSHAL = 2


class RowTally(Iterable[Mapping[str, Any]]):
    """Digests rows during the reading; a second reading begins again.

    The digest is the sum of 64-bit hashes: the order is nothing, and a row that comes twice counts twice.

    :param added: columns that are added up as well.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], added: Collection[str] = ()) -> None:
        self._rows = rows
        self._sum = 0
        self._added = tuple(added)
        self._sums: dict[str, int] = {}

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], added: Collection[str] = ()) -> RowTally:
        """Return the tally that the rows are in already, or a new one."""
        return rows if isinstance(rows, cls) else cls(rows, added)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        self._sum = 0
        self._sums = dict.fromkeys(self._added, 0)
        rows = iter(self._rows)
        while portion := list(islice(rows, _ROWS_AT_ONCE)):
            self._take(portion)
            yield from portion

    def _take(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take rows column by column, in a fourth of the time of one by one."""
        try:
            columns = {name: list(map(itemgetter(name), rows)) for name in sorted(rows[0])}
        except KeyError:
            columns = {}
        if set(map(len, rows)) == {len(columns)}:
            self._take_columns(columns)
        else:
            for row in rows:
                self._take_columns({name: [row[name]] for name in sorted(row)})

    def _take_columns(self, columns: Mapping[str, Sequence[Any]]) -> None:
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
                del self._sums[name]  # it may become another number in the store

    def written(self, keys: int) -> Written:
        """Say what was read, of which a state has made so many keys."""
        return Written(keys, f"{self._sum % _MODULUS:016x}", dict(self._sums) if keys else {})


def _plain(values: Sequence[Any]) -> Sequence[Any]:
    others = set(map(type, values)) - _PLAIN
    return (
        [(repr(value),) if type(value) in others else value for value in values]
        if others
        else values
    )
