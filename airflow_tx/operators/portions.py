"""How one process cuts the rows of an update: portions that fit into memory, of which no two share a key.

Output of which each key has one row is cut as it comes; a state refuses what does not keep to that. Rows of which
several may have one key are first put into a file per portion, by a hash of their keys.
"""

from __future__ import annotations

import math
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_tx.state.backing.arrow_rows import from_arrow, types_of
from airflow_tx.state.grouping import combined, combined_at_once
from airflow_tx.state.reducers import has_reducers

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

Row = Mapping[str, Any]


class Staged(Protocol):
    """Rows that lie in files."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """As dicts, read anew each time."""

    def __len__(self) -> int:
        """How many there are."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """As Arrow batches."""


def keyed(rows: Iterable[Row], state: Any) -> Iterable[Row]:
    """One row a key, of rows that fit into memory."""
    return combined(rows, state) if has_reducers(state) else rows


def portions(rows: Staged, state: Any, *, size: int) -> Iterator[Iterable[Row]]:
    """The rows, one a key, in portions of about `size` rows; each is a chunk of the grant, by its number."""
    if not has_reducers(state):
        iterator = iter(rows)
        for first in iterator:
            yield chain([first], islice(iterator, size - 1))
    elif state.columns.keys:
        for portion in _by_key(rows, state.columns.keys, size):
            yield combined(portion, state)
    else:
        yield [combined_at_once(rows, state)]


def _by_key(rows: Staged, keys: Sequence[str], size: int) -> Iterator[Iterator[dict[str, Any]]]:
    """The rows of some keys after those of others; of one key, in their order."""
    import pyarrow as pa

    count = math.ceil(len(rows) / size)
    with tempfile.TemporaryDirectory(prefix="airflow-tx-rows-") as folder:
        paths = [Path(folder, str(number)) for number in range(count)]
        with ExitStack() as files:
            writers: dict[int, Any] = {}
            for batch in rows.batches():
                for number, indices in _shared_out(batch, keys, count).items():
                    if number not in writers:
                        opened = pa.ipc.new_stream(str(paths[number]), batch.schema)
                        writers[number] = files.enter_context(opened)
                    writers[number].write_batch(batch.take(pa.array(indices, pa.int64())))
        for path in paths:
            yield _read(path) if path.exists() else iter(())


def _shared_out(batch: pa.RecordBatch, keys: Sequence[str], count: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    columns = [batch.column(name).to_pylist() for name in keys]
    for index, key in enumerate(zip(*columns, strict=True)):
        # The same in every process, so that a write under the same grant is the same again; -0.0 is 0.0.
        text = repr([part + 0.0 if isinstance(part, float) else part for part in key])
        found.setdefault(zlib.crc32(text.encode()) % count, []).append(index)
    return found


def _read(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    with pa.ipc.open_stream(str(path)) as stream:
        for batch in stream:
            yield from from_arrow(batch, types_of(batch.schema))
