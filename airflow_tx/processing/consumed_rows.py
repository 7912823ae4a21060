"""Python rows that are counted and digested as a task reads them."""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from airflow_tx.protocol.consumers import OutputName, RowsRead, in_words
from airflow_tx.protocol.rows_digest import COUNT, RowsDigest

PYTHON = "python"
"""The form of rows that are hashed as Python has them."""
# Without references, which depend on who else holds a value.
_MARSHAL = 2
_AS_IS = frozenset((bool, int, float, str, bytes, type(None)))
_TEXTS = (date, datetime, time, timedelta, Decimal, UUID, bytearray)


class RowsReading:
    """One reading of a batch, or of outputs.

    :param outputs: the outputs that are read as one; none: the batch.
    :param form: of the digest; rows of outputs are compared as Arrow batches, and only counted here.
    """

    def __init__(self, outputs: tuple[OutputName, ...] = (), form: str = PYTHON) -> None:
        self.outputs = outputs
        self.form = form
        self.started = self.ended = False
        self._rows = self._sum = 0

    def passing(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
        """Let rows pass one by one; rows that are not taken are not counted."""
        from xxhash import xxh3_64_intdigest

        self.started = True
        dumps: Callable[[Any, int], bytes] = marshal.dumps
        for self._rows, row in enumerate(rows, 1):
            if self.form != COUNT:
                try:
                    self._sum += xxh3_64_intdigest(dumps(row, _MARSHAL))
                except ValueError:
                    self._add_as_text(row)
            yield row
        self.ended = True

    def _add_as_text(self, row: Mapping[str, Any]) -> None:
        from xxhash import xxh3_64_intdigest

        try:
            self._sum += xxh3_64_intdigest(marshal.dumps(_plain(row), _MARSHAL))
        except (TypeError, ValueError):
            self.form = COUNT  # a value that is not the same in every process

    @property
    def found(self) -> RowsDigest:
        """Return what has passed so far."""
        return RowsDigest(self._rows, self._sum % 2**64 if self.form != COUNT else 0, self.form)


AnyReading: TypeAlias = RowsRead | RowsReading


def fullest(readings: Iterable[AnyReading]) -> list[RowsRead]:
    """Return of each thing that was read the reading with most rows; a look at some of them before is none."""
    found: dict[tuple[OutputName, ...], RowsRead] = {}
    for read in _started(readings):
        known = found.get(read.outputs)
        if known is None or (known.found.rows, not known.stopped) < (
            read.found.rows,
            not read.stopped,
        ):
            found[read.outputs] = read
    return list(found.values())


def repeated(readings: Iterable[AnyReading]) -> list[str]:
    """Name the inputs that were read to their end more than once: it is unknown which reading was counted."""
    whole = Counter(
        read.outputs for read in _started(readings) if not read.stopped and read.found.rows
    )
    return [
        f"it read {in_words(outputs)} {times} times"
        for outputs, times in whole.items()
        if times > 1
    ]


def _started(readings: Iterable[AnyReading]) -> Iterator[RowsRead]:
    for each in readings:
        if isinstance(each, RowsRead):
            yield each
        elif each.started:
            yield RowsRead(each.found, each.outputs, stopped=not each.ended)


def _plain(value: Any) -> Any:
    """Give a value that is hashed the same everywhere: a Decimal, a date and their likes by type and text."""
    if type(value) in _AS_IS:
        return value
    if isinstance(value, Mapping):
        # The first one says what follows: no row has it as a value.
        return (..., "dict", *sorted((repr(key), _plain(each)) for key, each in value.items()))
    if isinstance(value, (list, tuple)):
        return (..., "list", *map(_plain, value))
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, str):
        return "".join(value)  # an Enum may show itself otherwise
    if isinstance(value, _TEXTS):
        return (..., type(value).__name__, str(value))
    raise TypeError(f"{type(value).__name__} has no text that is the same everywhere")
