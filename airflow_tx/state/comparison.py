"""Compare two states key by key, at one position of their source. Only some of the keys are in memory at a time."""

from __future__ import annotations

import math
import pickle
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from decimal import Decimal
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any
from zlib import crc32

from airflow_tx.base.errors import NotComparable, NotComparableNow
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import digest
from airflow_tx.state.aggregators import Cells
from airflow_tx.state.api import Fence, FencedState, FenceMoved, QueryableState, StateReading
from airflow_tx.state.keys import decode_key, encode_keys
from airflow_tx.state.trident import TridentState

_TRIES = 3
_ROWS_READ_AT_ONCE = 10_000
# Maximum number of rows in memory. More rows are appended to the files of their parts.
_ROWS_HELD = 100_000
# Number of parts. With 10,000,000 keys, a part has 39,000 keys.
_PARTS = 256
_NUMBERS = (int, float, Decimal)
_WAIT = "Repeat the command, or let it wait: --wait"


@dataclass(frozen=True)
class KeyDifference:
    """One key whose values differ between two states.

    :param first: the first state's values that differ; all of its values if the second state lacks the key. None if the
        first state lacks the key.
    :param second: the second state's values, in the same form.
    """

    key: dict[str, Any]
    first: dict[str, Any] | None
    second: dict[str, Any] | None


@dataclass(frozen=True)
class KeyDifferences:
    """The number of keys with one kind of difference, and the first of these keys in byte order."""

    count: int
    keys: list[KeyDifference]


@dataclass(frozen=True)
class StateComparison:
    """The result of a comparison of two states at one position of their source.

    :param txids: the last transaction of each state.
    :param columns: the compared value columns.
    :param left_out: value columns that only one of the states has.
    :param equal: number of keys with equal values.
    """

    txids: tuple[int, int]
    columns: tuple[str, ...]
    left_out: tuple[str, ...]
    equal: int
    only_first: KeyDifferences
    only_second: KeyDifferences
    different: KeyDifferences

    @property
    def is_equal(self) -> bool:
        return not (self.only_first.count or self.only_second.count or self.different.count)


def compared(
    first: FencedState, second: FencedState, *, tolerance: float = 0.0, limit: int = 20
) -> StateComparison:
    """Compare two states key by key. Memory use does not grow with the number of keys.

    :param tolerance: relative difference up to which doubles count as equal.
    :param limit: maximum number of keys that the result lists for each kind of difference.
    :raises NotComparable: the states cannot be compared.
    :raises NotComparableNow: the fences are at different positions, or a commit is writing one of the states.
    """
    pair = _checked(first, second)
    for _ in range(_TRIES):
        with suppress(FenceMoved):
            return _compared_once(pair, tolerance, limit)
    problem = f"the store has no snapshots, and other commits interrupted the comparison {_TRIES} times in a row"
    raise pair.refused_now(problem, "Pause the DAGs, and repeat the command.")


@dataclass(frozen=True)
class _Pair:
    """Two states with columns. The comparison covers the columns that both states have."""

    first: QueryableState
    second: QueryableState

    @property
    def keys(self) -> tuple[str, ...]:
        return self.first.columns.keys

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(
            name for name in self.first.columns.values if name in self.second.columns.values
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        both = set(self.first.columns.values) ^ set(self.second.columns.values)
        return tuple(sorted(both))

    def refused(self, problem: str, remedy: str) -> NotComparable:
        return NotComparable(
            first=self.first.name, second=self.second.name, problem=problem, remedy=remedy
        )

    def refused_now(self, problem: str, remedy: str = _WAIT) -> NotComparableNow:
        return NotComparableNow(
            first=self.first.name, second=self.second.name, problem=problem, remedy=remedy
        )


def _checked(first: FencedState, second: FencedState) -> _Pair:
    """Refuse states that can never be compared."""
    problem = next(filter(None, map(_unfit, (first, second))), "")
    remedy = Remedy.of(
        "Compare states of PostgreSQL, MySQL, SQLite or Redis that keep values per key."
    )
    if first.name == second.name:
        problem = "they are the same state"
        remedy = "Name the state of each DAG: " + Command.of("diff", "DAG:STATE", "DAG:STATE")
    elif first.takes_back_by_txid:
        remedy = Remedy.of(
            "Compare the rows of two tables in SQL: SELECT ... EXCEPT SELECT ..., without "
            "tx_txid and tx_row."
        )
    if problem:
        raise NotComparable(first=first.name, second=second.name, problem=problem, remedy=remedy)
    assert isinstance(first, QueryableState)
    assert isinstance(second, QueryableState)
    pair = _Pair(first, second)
    mine = ", ".join(sorted(pair.keys))
    theirs = ", ".join(sorted(second.columns.keys))
    if mine != theirs:
        problem = f"the keys of one are ({mine}), the keys of the other ({theirs})"
        raise pair.refused(problem, "Compare states that have the same key columns.")
    if not pair.values:
        raise pair.refused(
            "they have no value column in common", "Compare states that share a value column."
        )
    return pair


def _unfit(state: FencedState) -> str:
    if isinstance(state, TridentState):
        return f"{state.name} has no fence, so the position of its source is unknown"
    return "" if isinstance(state, QueryableState) else f"{state.name} keeps no values per key"


def _compared_once(pair: _Pair, tolerance: float, limit: int) -> StateComparison:
    with tempfile.TemporaryDirectory(prefix="airflow-tx-diff-") as folder:
        with ExitStack() as first_open, ExitStack() as second_open:
            first = first_open.enter_context(pair.first.reading())
            second = second_open.enter_context(pair.second.reading())
            txids = _same_place(pair, first.fence, second.fence)
            types = _key_types(pair, first, second)
            parts = (
                _Parts(Path(folder, "first"), pair, pair.first, types),
                _Parts(Path(folder, "second"), pair, pair.second, types),
            )
            _divide([(first_open, first, parts[0]), (second_open, second, parts[1])])
        found = _Findings(tolerance, limit)
        for number in range(_PARTS):
            found.add(parts[0].rows(number), parts[1].rows(number))
    return StateComparison(
        txids,
        pair.values,
        pair.left_out,
        found.equal,
        *(each.named(pair, types, tolerance) for each in found.differences),
    )


def _divide(sides: list[tuple[ExitStack, StateReading, _Parts]]) -> None:
    """Divide the rows of both states into parts.

    Alternate between the states, because a database ends transactions that are idle for too long.
    """
    while sides:
        for side in tuple(sides):
            opened, reading, parts = side
            if portion := list(islice(reading.rows, _ROWS_READ_AT_ONCE)):
                parts.add(portion)
            else:
                opened.close()
                sides.remove(side)


def _same_place(pair: _Pair, first: Fence | None, second: Fence | None) -> tuple[int, int]:
    """Return the last transaction of each state. Both must end at the same position of the source.

    :raises NotComparableNow: the positions differ, or a commit is writing one of the states.
    """
    for state, fence in ((pair.first, first), (pair.second, second)):
        if fence is None:
            raise pair.refused_now(f"no transaction has been committed to {state.name}")
        if not fence.applied:
            raise pair.refused_now(
                f"transaction {fence.token.txid} is only partly written to {state.name}"
            )
    assert first is not None
    assert second is not None
    txids = (first.token.txid, second.token.txid)
    places = [
        _position(pair, state, fence)
        for state, fence in ((pair.first, first), (pair.second, second))
    ]
    if places[0] != places[1]:
        problem = f"transaction {txids[0]} of {pair.first.name} and transaction {txids[1]} of {pair.second.name} "
        raise pair.refused_now(f"{problem}end at different positions of their sources")
    return txids


def _position(pair: _Pair, state: QueryableState, fence: Fence) -> str:
    if fence.kept is None:
        problem = f"the fence of {state.name} does not contain the position of its source"
        raise pair.refused_now(problem, "The next commit notes the position in the fence.")
    return digest(fence.kept.position)


def _key_types(pair: _Pair, first: StateReading, second: StateReading) -> list[str]:
    mine = first.key_types or second.key_types or {}
    theirs = second.key_types or mine
    for name in pair.keys:
        # A state has no key types before its first update.
        if mine.get(name) != theirs.get(name):
            problem = f"key {name} is a {mine[name]} in one state and a {theirs[name]} in the other"
            raise pair.refused(problem, "Set the same types= for both states, with new tables.")
    return [mine.get(name, "text") for name in pair.keys]


# Keep keys and values in two lists. If each key and its values were a tuple, Python's garbage
# collector would visit every tuple.
_Held = tuple[list[bytes], list[Cells]]


class _Parts:
    """The rows of one state, divided into files by a digest of their keys.

    A key is in files with the same number for both states.
    """

    def __init__(
        self, folder: Path, pair: _Pair, state: QueryableState, types: Sequence[str]
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self._types = types
        names = (*state.columns.keys, *state.columns.values)
        self._keys = [names.index(name) for name in pair.keys]
        self._values = [names.index(name) for name in pair.values]
        self._held: list[_Held] = [([], []) for _ in range(_PARTS)]
        self._size = 0

    def add(self, rows: Sequence[Cells]) -> None:
        columns = list(zip(*rows, strict=True))
        if not columns:
            return
        values = zip(*[columns[place] for place in self._values], strict=True)
        for key, cells in zip(self._encoded(columns), values, strict=True):
            held_keys, held_cells = self._held[crc32(key) % _PARTS]
            held_keys.append(key)
            held_cells.append(cells)
        self._size += len(rows)
        if self._size >= _ROWS_HELD:
            self._put_away()

    def rows(self, number: int) -> dict[bytes, Cells]:
        """Return the rows of a part, by key."""
        found = dict[bytes, Cells]()
        path = self._path(number)
        if path.exists():
            with path.open("rb") as file:
                while file.peek(1):
                    found.update(zip(*pickle.load(file), strict=True))
        found.update(zip(*self._held[number], strict=True))
        return found

    def _encoded(self, columns: Sequence[Sequence[Any]]) -> Iterable[bytes]:
        if not self._keys:  # a state without keys has one row
            return [b"[]"] * len(columns[0])
        return encode_keys(self._types, [columns[place] for place in self._keys])

    def _put_away(self) -> None:
        for number, (keys, cells) in enumerate(self._held):
            with self._path(number).open("ab") as file:
                pickle.dump((keys, cells), file, pickle.HIGHEST_PROTOCOL)
            keys.clear()
            cells.clear()
        self._size = 0

    def _path(self, number: int) -> Path:
        return self._folder / str(number)


_Found = tuple[bytes, "Cells | None", "Cells | None"]


class _Keys:
    """The keys of one kind of difference, such as keys that only the first state has."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._first: list[_Found] = []

    def add(self, found: _Found) -> None:
        self._count += 1
        self._first.append(found)
        if len(self._first) > 10 * self._limit + 1_000:
            self._first = self._smallest()

    def _smallest(self) -> list[_Found]:
        return nsmallest(self._limit, self._first, key=itemgetter(0))

    def named(self, pair: _Pair, types: Sequence[str], tolerance: float) -> KeyDifferences:
        return KeyDifferences(
            self._count,
            [_key_difference(pair, types, tolerance, found) for found in self._smallest()],
        )


def _key_difference(
    pair: _Pair, types: Sequence[str], tolerance: float, found: _Found
) -> KeyDifference:
    encoded, mine, theirs = found
    key = dict(zip(pair.keys, decode_key(types, encoded), strict=True))
    shown = list(range(len(pair.values)))
    if mine is not None and theirs is not None:
        shown = [each for each in shown if not _same(mine[each], theirs[each], tolerance)]

    def values(cells: Cells | None) -> dict[str, Any] | None:
        return None if cells is None else {pair.values[each]: cells[each] for each in shown}

    return KeyDifference(key, values(mine), values(theirs))


class _Findings:
    """The result of a comparison that is still running."""

    def __init__(self, tolerance: float, limit: int) -> None:
        self._tolerance = tolerance
        self.equal = 0
        self._only_first = _Keys(limit)
        self._only_second = _Keys(limit)
        self._different = _Keys(limit)

    @property
    def differences(self) -> tuple[_Keys, _Keys, _Keys]:
        return self._only_first, self._only_second, self._different

    def add(self, first: Mapping[bytes, Cells], second: dict[bytes, Cells]) -> None:
        for key, mine in first.items():
            theirs = second.pop(key, None)
            if theirs is None:
                self._only_first.add((key, mine, None))
            elif mine == theirs or all(map(self._is_same, mine, theirs)):
                self.equal += 1
            else:
                self._different.add((key, mine, theirs))
        for key, theirs in second.items():
            self._only_second.add((key, None, theirs))

    def _is_same(self, mine: Any, theirs: Any) -> bool:
        return _same(mine, theirs, self._tolerance)


def _same(mine: Any, theirs: Any, tolerance: float) -> bool:
    if mine == theirs:
        return True
    numbers = isinstance(mine, _NUMBERS) and isinstance(theirs, _NUMBERS)
    if numbers and (isinstance(mine, float) or isinstance(theirs, float)):
        return math.isclose(mine, theirs, rel_tol=tolerance)
    return False
