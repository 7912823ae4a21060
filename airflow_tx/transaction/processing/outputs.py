"""The acked output and the output that the committer finds must be the same. Source: traces.md: 11."""

from __future__ import annotations

import atexit
import datetime as dt
import marshal
import math
import numbers
import sys
import time as clock
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from threading import Event, RLock, get_ident
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

from airflow_tx.base.compat import as_xcom, canonical, from_xcom
from airflow_tx.base.errors import StagingError
from airflow_tx.base.rows import first_line, is_frame, is_same_value, shown_value
from airflow_tx.ledger import (
    COUNT,
    Ack,
    OutputName,
    RowsDigest,
    RowsRead,
    TaskTry,
    TransactionAttempt,
    digest,
    in_words,
)
from airflow_tx.outputs import OutputRef, digest_of_batch
from airflow_tx.sources import MalformedRow
from airflow_tx.transaction.spec import TransactionSpec

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

# --- consumed rows ------------------------------------------------------------------------------------------------
# Python rows that are counted and digested as a task reads them.


PYTHON = "python-2"
"""The form of rows that are hashed as Python has them. An earlier release hashed dates and Decimals otherwise."""
# Without references, which depend on who else holds a value.
_MARSHAL = 2
_AS_IS = frozenset((bool, int, float, str, bytes, type(None)))
_TEXTS = (date, datetime, time, timedelta, Decimal, UUID, bytearray)
# Seconds that an engine has to leave a stream that was ended. One that takes no more batches does not come to its end.
_TO_LEAVE = 5.0


class RowsReading:
    """One reading of a batch, or of outputs.

    :param outputs: the outputs that are read as one; none: the batch.
    :param form: of the digest; rows of outputs are compared as Arrow batches, and only counted here.
    """

    def __init__(self, outputs: tuple[OutputName, ...] = (), form: str = PYTHON) -> None:
        self.outputs = outputs
        self.form = form
        self.started = self.ended = self.more = self._failed = False
        self._rest: Iterator[Any] = iter(())
        self._rows = self._sum = 0
        self.malformed: list[MalformedRow] = []

    def passing(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
        """Let rows pass one by one; rows that are not taken are not counted. Malformed rows are counted, and kept."""
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
        """Ask a reading that has stopped for one more row, which is not counted. Raises as the source does."""
        before = self._sum
        if not self._failed and next(self.passing(self._rest), None) is not None:
            self._rows -= 1
            self._sum = before
            self.more = True

    def _noted(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Note that the source has failed: a generator that has raised gives no more, as one at its end."""
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
            self.form = COUNT  # a value that is not the same in every process

    @property
    def found(self) -> RowsDigest:
        """Return what has passed so far."""
        return RowsDigest(self._rows, self._sum % 2**64 if self.form != COUNT else 0, self.form)


class ArrowReading(RowsReading):
    """One reading of a batch as record batches. The rows are hashed as Spark hashes them.

    :param malformed: where its source keeps the malformed rows.
    :param form: `COUNT` for rows that are only counted.
    """

    def __init__(self, malformed: list[MalformedRow], form: str = "") -> None:
        super().__init__(form=form)
        self.malformed = malformed
        self._found = RowsDigest(0)
        # An engine reads ahead in threads of its own.
        self._lock = RLock()
        self._threads = set[int]()
        self._left = Event()

    def passing(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Let record batches pass one by one; a batch that is not taken is not counted."""
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
        """End the stream, and wait for the threads of an engine to leave it.

        A source is not closed under them, and one that is in Python at its exit ends the process, or never ends.
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
        """Ask for one more row, as `RowsReading.ask_rest`; an engine that reads ahead gets no further ones."""
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


def ask_rest(readings: Iterable[AnyReading]) -> None:
    """Ask the fullest reading of the batch for one more row, if it has stopped: the source may not count its rows.

    :raises SourceError: it cannot give this row.
    """
    own = (each for each in readings if isinstance(each, RowsReading) and not each.outputs)
    started = [each for each in own if each.started]
    found = max(started, key=lambda each: (each.found.rows, each.ended), default=None)
    if found is not None and not found.ended:
        found.ask_rest()


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
            yield RowsRead(each.found, each.outputs, stopped=not each.ended, more=each.more)


def _plain(value: Any) -> Any:
    """Give a value that is hashed the same everywhere: a Decimal, a date and their likes by type and text."""
    if type(value) in _AS_IS:
        return value
    if isinstance(value, Mapping):
        # The first one says what follows: no row has it as a value.
        # Most values need no text, and a call for each would take most of the time.
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
        return "".join(value)  # an Enum may show itself otherwise
    if isinstance(value, _TEXTS):
        return (..., type(value).__name__, str(value))
    raise TypeError(f"{type(value).__name__} has no text that is the same everywhere")


# --- outputs ------------------------------------------------------------------------------------------------------


RETURN_KEY = "return_value"
_REF = frozenset(field.name for field in fields(OutputRef))
_NEEDED = frozenset(field.name for field in fields(OutputRef) if field.default is MISSING)

Acks = Mapping[tuple[str, int], Ack]


def xcom_fingerprint(value: Any) -> str:
    """Digest of an XCom value; the same for what a task returns and for what XCom gives back."""
    try:
        return digest(value)
    except (TypeError, ValueError):
        return digest(canonical(value))


def returned(value: Any, *, multiple: bool) -> list[dict[str, str]]:
    """The acks of a plain task: per XCom that its return value becomes, name and fingerprint.

    :param multiple: whether each entry of a returned mapping becomes an XCom of its own, too.
    """
    if value is None:
        return []
    found = {RETURN_KEY: value, **(value if multiple and isinstance(value, Mapping) else {})}
    return [{"name": str(name), "digest": xcom_fingerprint(item)} for name, item in found.items()]


def is_ref(value: Any) -> bool:
    """Whether a value is a reference to staged output."""
    return isinstance(value, Mapping) and value.keys() >= _NEEDED and value.keys() <= _REF


def acked(acks: Acks, task: str, name: str) -> dict[int, str]:
    """Per map index (−1: not mapped) the fingerprint of the output called `name` that the instance acked."""
    return {
        index: xcom_fingerprint(entry) if is_ref(entry) else entry["digest"]
        for (of, index), ack in sorted(acks.items())
        if of == task
        for entry in ack.outputs
        if entry["name"] == name
    }


# --- passed on ----------------------------------------------------------------------------------------------------
# The values that tasks return: XCom hands them on unchanged, or the task is refused before it acks.


_Path = tuple[Any, ...]
_Problem = tuple[_Path, str, str]
_PLAIN = {type(None), bool, float, dt.date}
_STAGE = "Return current_batch().stage({}), which keeps it."
_LEAST = -(2**63)
_BEYOND = 2**64
"""The whole numbers that a task can send to its supervisor."""


def check_returned(
    value: Any, spec: TransactionSpec, task: TaskTry, attempt: TransactionAttempt
) -> None:
    """Refuse what a task returns, if XCom refuses or changes it, or its committer does not take it.

    :raises StagingError: it names the value and its place.
    """
    committed = task.task_id in spec.committed
    for path, problem, remedy in _problems(value, (), committed):
        raise StagingError(
            output=RETURN_KEY,
            task=task,
            txid=attempt.txid,
            attempt=attempt.attempt,
            problem=f"{_place(path)} {problem}",
            remedy=remedy,
        )


def _problems(value: Any, path: _Path, committed: bool) -> Iterator[_Problem]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _problems(item, (*path, key), committed)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for number, item in enumerate(value):
            yield from _problems(item, (*path, number), committed)
    elif is_frame(value):
        yield from _of_frame(value, path, committed)
    else:
        yield from _of_leaf(value, path)


def _of_leaf(value: Any, path: _Path) -> Iterator[_Problem]:
    kind = type(value)
    if kind is str:
        if not value.isascii() and not _encodable(value):
            yield path, f"= {shown_value(value)} holds half a surrogate pair", "Leave it out."
    elif kind is int:
        if not _LEAST <= value < _BEYOND:
            yield path, f"= {value} has more than 64 bits", "Return it as a text or a Decimal."
    elif isinstance(value, numbers.Real) and not math.isfinite(value):
        yield path, f"= {value} is not finite, and XCom takes JSON", "A missing value is None."
    elif kind not in _PLAIN:
        yield from _of_other(value, path)


def _of_frame(frame: Any, path: _Path, committed: bool) -> Iterator[_Problem]:
    name = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
    if committed:
        problem = f"is a {name}, and a committer takes dicts or a reference"
        remedy = "Return current_batch().stage(frame): rows of columns are staged."
        yield path, problem, remedy
    elif not name.startswith("pandas."):
        problem = f"is a {name}, which XCom does not take"
        yield path, problem, _STAGE.format("frame")


def _of_other(value: Any, path: _Path) -> Iterator[_Problem]:
    try:
        found = from_xcom(as_xcom(value))
    except Exception as error:  # noqa: BLE001
        reason = first_line(error).partition(". Give it")[0]
        problem = f"= {shown_value(value)} cannot become an XCom ({reason})"
        yield path, problem, _STAGE.format("rows")
        return
    if isinstance(value, (Decimal, dt.datetime, numbers.Number)) and not is_same_value(
        found, value
    ):
        problem = f"= {shown_value(value)} would come back from XCom as {shown_value(found)}"
        yield path, problem, _STAGE.format("rows")


def _encodable(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _place(path: _Path) -> str:
    if [*map(type, path)] == [int, str]:
        row, column = path
        return f"row {row}: {column}"
    return f"its value{''.join(f'[{step!r}]' for step in path)}"
