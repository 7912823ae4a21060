"""Count and digest the rows that a task reads."""

from __future__ import annotations

import atexit
import marshal
import sys
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from threading import Event, RLock, get_ident
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

from airflow_tx.ledger import COUNT, OutputName, RowsDigest, RowsRead
from airflow_tx.outputs import digest_of_batch
from airflow_tx.sources import MalformedRow

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PYTHON = "python-2"
"""The form of digests that are computed from Python values."""
# marshal version 2 does not write references to equal objects. References would change the digest
# of equal values.
_MARSHAL = 2
_AS_IS = frozenset((bool, int, float, str, bytes, type(None)))
_TEXTS = (date, datetime, time, timedelta, Decimal, UUID, bytearray)
# The maximum wait for the threads of an engine to leave a stream, in seconds. An idle engine does
# not notice its end.
_TO_LEAVE = 5.0


class RowsReading:
    """One reading of the rows of a batch or of outputs.

    :param outputs: the names of the outputs that are read as one input, or () for the batch.
    :param form: the form of the digest. Rows of outputs are only counted, since their digests are computed from Arrow
        batches.
    """

    def __init__(self, outputs: tuple[OutputName, ...] = (), form: str = PYTHON) -> None:
        self.outputs = outputs
        self.form = form
        self.started = self.ended = self.more = self._failed = False
        self._rest: Iterator[Any] = iter(())
        self._rows = self._sum = 0
        self.malformed: list[MalformedRow] = []

    def passing(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
        """Yield the rows. Count and digest each row that the caller reads. Count and collect malformed rows."""
        from xxhash import xxh3_64_intdigest

        self.started = True
        rest = self._rest = self._noted(rows)
        dumps: Callable[[Any, int], bytes] = marshal.dumps
        passed = self._rows
        for self._rows, row in enumerate(rest, passed + 1):
            bad = isinstance(row, MalformedRow)
            hashed: Any = row.content if bad else row
            if self.form != COUNT:
                try:
                    self._sum += xxh3_64_intdigest(dumps(hashed, _MARSHAL))
                except ValueError:
                    self._add_as_text(hashed)
            if bad:
                self.malformed.append(cast("Any", row))
            else:
                yield row
        self.ended = True

    def ask_rest(self) -> None:
        """Read one more row after a reading has stopped. This row is not counted. Errors of the source are raised."""
        before = self._sum
        if not self._failed and next(self.passing(self._rest), None) is not None:
            self._rows -= 1
            self._sum = before
            self.more = True

    def _noted(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Record that the source raised an error. After an error, a Python generator seems to have ended normally."""
        try:
            yield from rows
        except Exception:
            self._failed = True
            raise

    def _add_as_text(self, row: Mapping[str, Any]) -> None:
        from xxhash import xxh3_64_intdigest

        try:
            self._sum += xxh3_64_intdigest(marshal.dumps(_plain(row), _MARSHAL))
        except (TypeError, ValueError):
            self.form = COUNT  # The hash of the value differs between processes.

    @property
    def found(self) -> RowsDigest:
        """Return the number and the digest of the rows read so far."""
        return RowsDigest(self._rows, self._sum % 2**64 if self.form != COUNT else 0, self.form)


class ArrowReading(RowsReading):
    """One reading of a batch as Arrow record batches. The digest is computed as in Spark.

    :param malformed: the list to which the source adds malformed rows.
    :param form: `COUNT` if rows are only counted and not hashed.
    """

    def __init__(self, malformed: list[MalformedRow], form: str = "") -> None:
        super().__init__(form=form)
        self.malformed = malformed
        self._found = RowsDigest(0)
        # An engine may read ahead in other threads.
        self._lock = RLock()
        self._threads = set[int]()
        self._left = Event()

    def passing(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches, and count and digest each batch that the caller reads."""
        self.started = True
        self._rest = self._noted(rows)
        atexit.register(self.close)
        try:
            while (batch := self._next()) is not None:
                yield batch
        finally:
            self._left.set()
            atexit.unregister(self.close)

    def close(self) -> None:
        """End the stream, and wait until no thread of an engine reads it.

        The source must not be closed while a thread reads it. At Python's exit, such a thread can crash the process or
        keep it from ending.
        """
        with self._lock:
            self._failed |= not self.ended
            self._rest = iter(())
        threads = self._threads - {get_ident()}
        until = clock.monotonic() + _TO_LEAVE
        if threads:
            self._left.wait(_TO_LEAVE)
        while threads & sys._current_frames().keys() and clock.monotonic() < until:
            clock.sleep(0.001)

    def ask_rest(self) -> None:
        """Read one more row, like `RowsReading.ask_rest`. An engine that reads ahead receives no more rows."""
        with self._lock:
            before = self._found
            while not (self._failed or self.more) and (batch := self._next()) is not None:
                self.more = batch.num_rows > 0
            if self.more:
                self._found = before
                self._rest = iter(())

    def _next(self) -> pa.RecordBatch | None:
        self._threads.add(get_ident())
        with self._lock:
            batch = next(self._rest, None)
            if batch is None:
                self.ended = not (self.more or self._failed)
            else:
                counts = self.form == COUNT
                self._found += RowsDigest(batch.num_rows) if counts else digest_of_batch(batch)
            return batch

    @property
    def found(self) -> RowsDigest:
        return self._found + RowsDigest(len(self.malformed))


AnyReading: TypeAlias = RowsRead | RowsReading


def _plain(value: Any) -> Any:
    """Convert a value to a form that has the same hash in every process. For example, a Decimal or a date becomes its
    type and its text.

    :raises TypeError: the value has no such form.
    """
    if type(value) in _AS_IS:
        return value
    if isinstance(value, Mapping):
        # The leading Ellipsis marks the tuple as converted, since rows never contain an Ellipsis.
        # Most values need no conversion, and one call per value would take most of the time.
        pairs = [
            (repr(key), each if type(each) in _AS_IS else _plain(each))
            for key, each in value.items()
        ]
        return (..., "dict", *sorted(pairs))
    if isinstance(value, (list, tuple)):
        return (..., "list", *map(_plain, value))
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, str):
        return "".join(value)  # str() of an Enum may return a different text.
    if isinstance(value, _TEXTS):
        return (..., type(value).__name__, str(value))
    raise TypeError(f"{type(value).__name__} has no stable text that can be hashed")
