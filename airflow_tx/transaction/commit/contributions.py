"""The difference of two contributions to a state, by key. Writing the difference replaces the old contribution."""

from __future__ import annotations

import hashlib
import math
import pickle
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from airflow_tx.base.errors import NotTakenBack, StateError
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import RowsDigest, TaskTry, TransactionAttempt
from airflow_tx.outputs import Contribution, Output, StagingArea, TryDir, write_manifest, write_rows
from airflow_tx.state import (
    REFUSALS,
    Cells,
    CheckedRows,
    Columns,
    QueryableState,
    can_invert,
    canonical_number,
    converted,
    difference,
    encode_key,
    is_same,
    partition_of,
    to_arrow,
)
from airflow_tx.transaction.commit.write import RowsToWrite, StagedRows

# --- contributions ------------------------------------------------------------------------------------------------


ReplacedThen = Literal["", "changed", "all"]
Sole = Callable[[Sequence[Cells]], Sequence["Cells | None"]]
_ROWS_AT_ONCE = 10_000
LOST = 2.0**-53
"""The relative rounding error of a double."""
VISIBLE = 1e6
"""If an old value is larger than the new value by more than this factor, removing it visibly distorts the sum."""


# --- the two sides ----


@dataclass(frozen=True)
class Side:
    """One of two contributions, converted to the column types of the state.

    :param columns: the columns of the state, without value columns that the rows lack.
    :param key_types: the types of the key columns.
    :param rows: the rows of the contribution.
    :param whose: the name of the contribution in errors.
    :param gone: the keys to leave out, as results of `key_name`.
    """

    columns: Columns
    key_types: Mapping[str, str]
    rows: Iterable[Mapping[str, Any]]
    whose: str
    gone: Set[str] = frozenset()

    def portions(self) -> Iterator[list[Cells]]:
        """Yield the rows in portions. Each row is a tuple of its keys, followed by its values.

        :raises StateError: a row does not fit the state.
        """
        rows = iter(self.rows)
        checked = CheckedRows(self.columns)
        try:
            while portion := list(islice(rows, _ROWS_AT_ONCE)):
                # Check each portion separately. Checking for duplicate keys across portions would
                # keep all keys in memory.
                for columns in checked.portions(portion, self.key_types, size=_ROWS_AT_ONCE):
                    cells = self._cells(columns)
                    yield (
                        [each for each in cells if not self._is_gone(each)] if self.gone else cells
                    )
        except StateError as error:
            problem = f"{self.whose}: {error.fields['problem']}"
            raise type(error)(**{**error.fields, "problem": problem}) from None

    def keys(self) -> Iterator[list[Cells]]:
        """Yield the keys in portions."""
        split = len(self.columns.keys)
        for portion in self.portions():
            yield [cells[:split] for cells in portion]

    def by_key(self, portions: Iterable[Iterable[Cells]]) -> dict[Cells, Cells]:
        """Return the values of each key.

        :raises StateError: a key occurs twice.
        """
        split = len(self.columns.keys)
        found = dict[Cells, Cells]()
        for portion in portions:
            for cells in portion:
                key = cells[:split]
                if key in found:
                    raise StateError(
                        state=self.columns.state,
                        problem=f"{self.whose}: key {shown_key(self.columns, key)} occurs twice",
                        remedy="Aggregate by key before writing.",
                    )
                found[key] = cells[split:]
        return found

    def key_name(self, key: Cells) -> str:
        """Return the digest of a key. Records store it in place of the key, which a user may be obliged to delete."""
        types = [self.key_types[name] for name in self.columns.keys]
        return hashlib.sha256(encode_key(types, key)).hexdigest()[:16]

    def _is_gone(self, cells: Cells) -> bool:
        return self.key_name(cells[: len(self.columns.keys)]) in self.gone

    def _cells(self, columns: list[Sequence[Any]]) -> list[Cells]:
        for at, name in enumerate(self.columns.keys):
            if self.key_types[name] == "numeric":
                # 1.0 and 1.00 are equal as keys, so they must be in the same portion.
                columns[at] = list(map(canonical_number, columns[at]))
        return list(zip(*columns, strict=True))


def old_side(state: QueryableState, old: Contribution, gone: Set[str] = frozenset()) -> Side:
    """Return the earlier contribution as a `Side`. Its missing value columns are new in the state.

    :param gone: the keys of the contribution that the state has lost since then.
    """
    columns = state.columns
    key_types = {**old.keys, **columns.types, **(state.key_types() or {})}
    known = {
        name: each
        for name, each in columns.aggregators.items()
        if set(columns.composites[name].parts(name) if name in columns.composites else [name])
        <= old.values.keys()
    }
    own = replace(columns, aggregators=known)
    rows = _Again(old.rows, frozenset((*own.keys, *own.values, *known)))
    return Side(own, key_types, rows, "the contribution of the earlier transaction", gone)


@dataclass(frozen=True)
class _Again(Iterable[Mapping[str, Any]]):
    """Rows that can be read several times.

    :param read: a function that reads the rows.
    :param names: the columns to read. Other columns of the rows may no longer exist in the state.
    """

    read: Callable[[], Iterator[Mapping[str, Any]]]
    names: Set[str]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for row in self.read():
            yield row if row.keys() <= self.names else self._taken(row)

    def _taken(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: each for name, each in row.items() if name in self.names}


# --- one portion --------------------------------------------------------------------------------------------------


class DifferenceRows:
    """A comparison of two contributions, in portions.

    :param columns: the columns of the state.
    :param known: the value columns of the earlier contribution.
    :param remedy: the remedy if a value cannot be taken back.
    :param sole: a function that reads the values of keys to which only the earlier transaction has contributed. If it
        is None, they are not read.
    :param done: "" for a new difference. For a difference that was committed before, "changed" or "all" says which
        values of earlier keys its commit replaced. Then the state is not read.
    :ivar equal: whether all values of all keys are exactly equal. With a tolerance, a small correction of a large value
        would be lost, although the journal has the correction.
    :ivar lost: see `Difference`.
    """

    def __init__(
        self,
        columns: Columns,
        known: Sequence[str],
        remedy: Remedy,
        sole: Sole | None = None,
        *,
        done: ReplacedThen = "",
    ) -> None:
        self.columns = columns
        self._done = done
        self._sole = sole
        self._remedy = remedy
        self.lost: dict[str, float] = {}
        self._at = [known.index(name) if name in known else None for name in columns.values]
        self.equal = True

    def rows(
        self, old: Mapping[Cells, Cells], new: Mapping[Cells, Cells]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the rows with differences, and the rows whose values replace the stored values.

        Each key of either contribution has one row in one of the two lists.

        :raises NotTakenBack: a value cannot be taken back.
        """
        keys = list(dict.fromkeys((*old, *new)))
        self.equal = self.equal and old.keys() == new.keys()
        alone = self._replaced(keys, old, new) if self._done else self._alone(keys, old)
        added = [key for key in keys if key not in alone]
        replaced = [key for key in keys if key in alone]
        return self._rows(added, old, new), self._rows(replaced, old, new, replacing=True)

    def _alone(self, keys: list[Cells], old: Mapping[Cells, Cells]) -> set[Cells]:
        """Return the keys that only the earlier transaction has contributed to, if the state still has its values."""
        if self._sole is None or not keys:
            return set()
        found = zip(keys, self._sole(keys), strict=True)
        return {
            key for key, values in found if values is not None and self._holds(values, old.get(key))
        }

    def _replaced(
        self, keys: list[Cells], old: Mapping[Cells, Cells], new: Mapping[Cells, Cells]
    ) -> set[Cells]:
        nothing = (None,) * len(self.columns.values)
        values = self.columns.values.values()
        absorbs = all(can_invert(each) or getattr(each, "idempotent", False) for each in values)

        def replaces(key: Cells) -> bool:
            if key not in old:
                return not absorbs
            return self._done == "all" or not self._holds(new.get(key, nothing), old[key])

        return set(filter(replaces, keys))

    def _holds(self, values: Cells, old: Cells | None) -> bool:
        """Return whether the state still has the old values. Values that a user has changed must not be overwritten."""
        pairs = zip(self.columns.values.values(), self._at, values, strict=True)
        return all(
            can_invert(each)
            or is_same(each.type, value, None if old is None or at is None else old[at])
            for each, at, value in pairs
        )

    def _rows(
        self,
        keys: list[Cells],
        old: Mapping[Cells, Cells],
        new: Mapping[Cells, Cells],
        *,
        replacing: bool = False,
    ) -> list[dict[str, Any]]:
        if not keys:
            return []
        nothing = (None,) * len(self.columns.values)
        before = [old.get(key, nothing) for key in keys]
        after = [new.get(key, nothing) for key in keys]
        columns = list(map(list, zip(*keys, strict=True)))
        for number, (name, at) in enumerate(zip(self.columns.values, self._at, strict=True)):
            values = list(map(itemgetter(number), after))
            if at is None:
                # The column is newer than the earlier transaction, so the restated values are
                # written without a difference.
                self.equal = False
                columns.append(values)
            else:
                earlier = list(map(itemgetter(at), before))
                columns.append(self._deltas(name, keys, earlier, values, replacing=replacing))
        names = (*self.columns.keys, *self.columns.values)
        return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]

    def _deltas(
        self, name: str, keys: list[Cells], old: list[Any], new: list[Any], *, replacing: bool
    ) -> list[Any]:
        aggregator = self.columns.values[name]
        self.equal = self.equal and is_same(aggregator.type, old, new)
        if replacing and not can_invert(aggregator):
            return new
        if aggregator.type == "double" and hasattr(aggregator, "invert"):
            self._note_lost(name, old, new)
        try:
            deltas = list(map(partial(difference, aggregator), old, new))
            return list(converted(aggregator.type, deltas))
        except REFUSALS:
            raise self._refusal(name, keys, old, new) from None

    def _note_lost(self, name: str, old: list[Any], new: list[Any]) -> None:
        visible = [
            abs(one)
            for one, other in zip(old, new, strict=True)
            if one is not None and abs(one) > VISIBLE * abs(other or 0.0)
        ]
        if visible:
            self.lost[name] = max(self.lost.get(name, 0.0), LOST * max(visible))

    def _refusal(
        self, name: str, keys: list[Cells], old: list[Any], new: list[Any]
    ) -> NotTakenBack:
        aggregator = self.columns.values[name]
        for key, one, other in zip(keys, old, new, strict=True):
            try:
                converted(aggregator.type, [difference(aggregator, one, other)])
            except REFUSALS as error:
                values = f"was {str(one)[:200]} and is now {str(other)[:200]}"
                shown = shown_key(self.columns, key)
                problem = f"key {shown}: the {aggregator.name} of column {name} {values}: the difference {error}"
                return NotTakenBack(
                    state=self.columns.state,
                    problem=problem,
                    remedy=self._remedy,
                    place="a key",
                )
        raise AssertionError("the loop must find the refused difference")


def shown_key(columns: Columns, key: Sequence[Any]) -> dict[str, Any]:
    """Return a key as text with the names of its columns, for messages to users."""
    return dict(zip(columns.keys, key, strict=True))


# --- difference ---------------------------------------------------------------------------------------------------
# A restatement writes a difference to a state, so that its contribution replaces the earlier
# contribution. The difference has one row for each key of either contribution. It is computed
# before the turn, and written like any update. It depends only on the two contributions. So a
# replay with the same output computes the same rows.


FEW = 10_000
"""The maximum number of rows that are compared in memory, counted over both contributions."""
PORTION = 100_000
"""The number of rows in one portion of a large comparison, counted over both contributions."""
_NAME = "difference"
_INSTEAD = "instead"
_Part = tuple[list[dict[str, Any]], list[dict[str, Any]]]


@dataclass(frozen=True)
class StagingPlace:
    """Where a large difference is staged, as an output of the committer."""

    area: StagingArea
    topology: str
    attempt: TransactionAttempt
    task_id: str

    @property
    def remedy(self) -> Remedy:
        """Return the remedy if a restatement is refused."""
        return "The earlier transaction still counts. To skip this restatement: " + Command.of(
            "skip", self.topology, self.attempt.txid, "--why", "TEXT"
        )

    def new_try(self) -> TryDir:
        """Return a new folder that only this process writes to."""
        task = TaskTry(self.task_id, -1, f"{_NAME}-{uuid.uuid4().hex}")
        return self.area.try_dir(self.topology, self.attempt, task)


@dataclass(frozen=True)
class Difference:
    """The rows that a restatement writes to one state.

    :param rows: the rows with differences. There are no rows if the contributions are equal.
    :param taken: a function that returns the keys to take back, in portions. The state must contain each key.
    :param instead: rows of keys to which no other transaction has contributed. Their values replace the stored values.
    :param lost: the possible rounding error of the sums after the write, by column of type double.
    :param remedy: an additional remedy if a key is missing, or None.
    :param topology: the topology of the state, which the remedy names.
    """

    rows: RowsToWrite
    taken: Callable[[], Iterator[list[Cells]]]
    instead: RowsToWrite = ()
    lost: Mapping[str, float] = field(default_factory=dict)
    remedy: Remedy | None = None
    topology: str = ""

    def check_taken(
        self, state: QueryableState, look_up: Callable[[Sequence[Cells]], Sequence[Any]]
    ) -> None:
        """Refuse the difference if the state lacks a key that is taken back.

        Otherwise, the negated old value would be stored.

        :param look_up: a function that reads the current values of keys.
        :raises NotTakenBack: a key is missing. The error names the first missing key.
        """
        for keys in self.taken():
            for key, found in zip(keys, look_up(keys), strict=True):
                if found is None:
                    raise NotTakenBack(
                        state=state.name,
                        problem=f"key {shown_key(state.columns, key)} is missing, although the "
                        "restated transaction wrote it: it was deleted",
                        place="a key",
                        remedy=Remedy.of(
                            "Restore the key. Or accept that it is gone, and replay: ",
                            Command.of(
                                "accept-change",
                                self.topology,
                                "--state",
                                state.name,
                                "--why",
                                "TEXT",
                            ),
                            ". ",
                            self.remedy,
                        ),
                    )


def difference_of(
    state: QueryableState,
    old: Contribution,
    new: RowsToWrite,
    place: StagingPlace,
    *,
    staged: bool = False,
    gone: Set[str] = frozenset(),
    sole: Sole | None = None,
    done: ReplacedThen = "",
) -> Difference:
    """Compute the difference of two contributions, with bounded memory.

    :param old: the contribution that the restatement replaces.
    :param new: the rows of the contribution that replaces it.
    :param place: the place where a large difference is staged.
    :param staged: whether to stage the rows even if they are few, since Spark reads only staged rows.
    :param gone: the keys of `old` that the state has lost since then. They are not taken back.
    :param sole: see `DifferenceRows`.
    :param done: see `DifferenceRows`.
    :raises NotTakenBack: the old contribution cannot be taken back.
    :raises StateError: a row does not fit the state.
    """
    if not old.count:
        return Difference(new, lambda: iter(()))
    columns = state.columns
    counting = old_side(state, old, gone)
    key_types = counting.key_types
    if not isinstance(new, Sized):
        new = list(new)
    coming = Side(columns, key_types, new, "the contribution of this transaction")
    compared = DifferenceRows(columns, list(counting.columns.values), place.remedy, sole, done=done)
    count = old.count + len(new)
    if count <= FEW and not staged:
        before = counting.by_key(counting.portions())
        rows, instead = compared.rows(before, coming.by_key(coming.portions()))
        found = Difference(rows, counting.keys, instead)
    else:
        parts = _in_portions(counting, coming, compared, math.ceil(count / PORTION))
        kinds = {name: each.type for name, each in columns.values.items()}
        types = {**{name: key_types[name] for name in columns.keys}, **kinds}
        refs = _stage(place, parts, types)
        outputs = [StagedRows(place.area, ref, state, place.attempt) for ref in refs]
        found = Difference(outputs[0], counting.keys, outputs[1])
    if compared.equal:
        return Difference([], lambda: iter(()))
    return replace(found, lost=compared.lost, remedy=place.remedy, topology=place.topology)


def _in_portions(old: Side, new: Side, compared: DifferenceRows, count: int) -> Iterator[_Part]:
    """Split both contributions by key, and compare them portion by portion."""
    with tempfile.TemporaryDirectory(prefix="airflow-tx-difference-") as folder:
        before = _SharedOut(Path(folder, "old"), old, count)
        after = _SharedOut(Path(folder, "new"), new, count)
        for number in range(count):
            yield compared.rows(before.read(number), after.read(number))


class _SharedOut:
    """The rows of one contribution, divided into files by key."""

    def __init__(self, folder: Path, side: Side, count: int) -> None:
        folder.mkdir()
        self._side = side
        self._paths = [folder / str(number) for number in range(count)]
        split = len(side.columns.keys)
        for portion in side.portions():
            shares = dict[int, list[Cells]]()
            for cells in portion:
                shares.setdefault(partition_of(cells[:split], count), []).append(cells)
            for number, share in shares.items():
                with self._paths[number].open("ab") as file:
                    pickle.dump(share, file, pickle.HIGHEST_PROTOCOL)

    def read(self, number: int) -> dict[Cells, Cells]:
        """Return the values of each key in one file.

        :raises StateError: a key occurs twice.
        """
        return self._side.by_key(self._portions(self._paths[number]))

    def _portions(self, path: Path) -> Iterator[list[Cells]]:
        if not path.exists():
            return
        with path.open("rb") as file:
            while file.peek(1):
                yield pickle.load(file)


def _stage(
    place: StagingPlace, parts: Iterable[_Part], types: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Stage the two lists of rows as separate outputs, and return references to them."""
    from airflow_tx.spark import joined

    where = place.new_try()
    written: dict[str, list[Output]] = {_NAME: [], _INSTEAD: []}
    digests = dict.fromkeys(written, RowsDigest(0))
    for number, part in enumerate(parts):
        for name, rows in zip(written, part, strict=True):
            table = to_arrow(rows, types)
            file = f"{name}-{number:05}.parquet"
            output = write_rows(where, name, table, file=file, digested=True)
            written[name].append(output)
            digests[name] += RowsDigest.of(output.rows, output.row_digest)
    outputs = {
        name: replace(joined(each), row_digest=digests[name].text) for name, each in written.items()
    }
    refs = write_manifest(where, outputs)
    return refs[_NAME].to_json(), refs[_INSTEAD].to_json()
