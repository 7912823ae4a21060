"""The difference: what a restatement gives to a state, so that its contribution replaces an earlier one.

It is a row for each key of either contribution, formed before the turn. For a state it is an update like any other. It
depends on the two contributions alone: a replay that gives the same output forms the same keys and values.
"""

from __future__ import annotations

import math
import pickle
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Set, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_tx.commit.contributions import DifferenceRows, Side, Sole, old_side, shown_key
from airflow_tx.commit.rows import RowsToWrite, StagedRows
from airflow_tx.errors import NotTakenBack
from airflow_tx.protocol.attempt import TaskTry, TransactionAttempt
from airflow_tx.protocol.rows_digest import RowsDigest
from airflow_tx.state.api import QueryableState
from airflow_tx.state.columns import Cells
from airflow_tx.state.keys import partition_of

if TYPE_CHECKING:
    from airflow_tx.journal.entry import Contribution
    from airflow_tx.staging import StagingArea, TryDir
    from airflow_tx.staging.output import Output

FEW = 10_000
"""Rows of both contributions that stay in memory."""
PORTION = 100_000
"""Rows of both contributions that are compared at once, if there are more."""
_NAME = "difference"
_INSTEAD = "instead"
_Part = tuple[list[dict[str, Any]], list[dict[str, Any]]]


@dataclass(frozen=True)
class StagingPlace:
    """Where the difference of many rows is staged: as an output of the committer."""

    area: StagingArea
    topology: str
    attempt: TransactionAttempt
    task_id: str

    @property
    def remedy(self) -> str:
        """Say what to do if the restatement is refused."""
        return (
            "The earlier transaction still counts. To leave this one out: "
            f"airflow tx skip {self.topology} {self.attempt.txid} --why TEXT"
        )

    def new_try(self) -> TryDir:
        """Name a folder with a single writer."""
        task = TaskTry(self.task_id, -1, f"{_NAME}-{uuid.uuid4().hex}")
        return self.area.try_dir(self.topology, self.attempt, task)


@dataclass(frozen=True)
class Difference:
    """The writes of a restatement to one state.

    :param rows: none, if the contributions are equal.
    :param taken: the keys that are taken back, in portions; the state has to hold each of them.
    :param instead: rows of keys to which no other transaction has contributed: they replace values as a whole.
    :param lost: per column of doubles, by how much its sums may be wrong afterwards.
    :param remedy: what else there is to do about a key that is not there, in a state of `topology`.
    """

    rows: RowsToWrite
    taken: Callable[[], Iterator[list[Cells]]]
    instead: RowsToWrite = ()
    lost: Mapping[str, float] = field(default_factory=dict)
    remedy: str = ""
    topology: str = ""

    def check_taken(self, state: QueryableState) -> None:
        """Refuse to take back a missing key: a deleted key would become minus its value.

        :raises NotTakenBack: it names the first such key.
        """
        for keys in self.taken():
            for key, found in zip(keys, state.multi_get(keys), strict=True):
                if found is None:
                    raise NotTakenBack(
                        state=state.name,
                        problem=f"key {shown_key(state.columns, key)} is missing, although the "
                        "restated transaction wrote it: it was deleted",
                        remedy="Restore the key. Or accept that it is gone, and replay: airflow tx accept-change "
                        f"{self.topology} --state {state.name} --why TEXT. {self.remedy}",
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
) -> Difference:
    """Form the difference of two contributions, in flat memory if they are large.

    :param old: what counts now; `new`: what counts once the restatement is committed.
    :param staged: whether even a few rows are staged, as Spark takes no others.
    :param gone: the keys of `old` that the state has lost since, which are not taken back.
    :param sole: as `DifferenceRows` takes it.
    :raises NotTakenBack: what counts now cannot be taken back.
    :raises StateError: a row does not fit the state.
    """
    if not old.count:
        return Difference(new, lambda: iter(()))
    columns = state.columns
    counting = old_side(state, old, gone)
    key_types = counting.key_types
    if not isinstance(new, Sized):
        new = list(new)
    coming = Side(columns, key_types, new, "what this transaction contributes")
    compared = DifferenceRows(columns, list(counting.columns.values), place.remedy, sole)
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
    """Divide both sides by key, and compare portion by portion."""
    with tempfile.TemporaryDirectory(prefix="airflow-tx-difference-") as folder:
        before = _SharedOut(Path(folder, "old"), old, count)
        after = _SharedOut(Path(folder, "new"), new, count)
        for number in range(count):
            yield compared.rows(before.read(number), after.read(number))


class _SharedOut:
    """The rows of one side in files, each with the rows of a share of the keys."""

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
        """Read the values of one share of the keys. Raises as `Side.by_key`."""
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
    """Stage rows as two outputs; the reference of each."""
    from airflow_tx.spark.new_values import joined
    from airflow_tx.staging import write_manifest, write_rows
    from airflow_tx.staging.row_hash import digest_of_batch
    from airflow_tx.state.arrow import to_arrow

    where = place.new_try()
    written: dict[str, list[Output]] = {_NAME: [], _INSTEAD: []}
    digests = dict.fromkeys(written, RowsDigest(0))
    for number, part in enumerate(parts):
        for name, rows in zip(written, part, strict=True):
            table = to_arrow(rows, types)
            file = f"{name}-{number:05}.parquet"
            written[name].append(write_rows(where, name, table, file=file))
            for batch in table.to_batches():
                digests[name] += digest_of_batch(batch)
    outputs = {
        name: replace(joined(each), row_digest=digests[name].text) for name, each in written.items()
    }
    refs = write_manifest(where, outputs)
    return refs[_NAME].to_json(), refs[_INSTEAD].to_json()
