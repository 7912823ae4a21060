"""What an executor does: it writes one partition of an update as one chunk of the grant, and says how that went."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import TxError
from airflow_tx.failpoints import failpoint
from airflow_tx.spark.new_values import stage_keys
from airflow_tx.spark.secrets import KEY, veiled
from airflow_tx.state.arrow import from_arrow, types_of
from airflow_tx.state.combined_rows import combined_runs, has_reducers
from airflow_tx.state.row_tally import RowTally

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


def write_chunk(hidden: bytes, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Write one partition as the chunk of its number; a refusal is an answer, since Spark would only repeat it."""
    import pyarrow as pa
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None, "only a task of Spark has a partition"
    state, grant, schema, place = pickle.loads(veiled(hidden, bytes.fromhex(task.getLocalProperty(KEY) or "")))
    chunk = task.partitionId()
    rows = _Taken(_rows(batches, pa.ipc.read_schema(pa.py_buffer(schema))))
    told: dict[str, Any] = {"chunk": chunk, "keys": 0}
    where = {"txid": grant.txid, "attempt": grant.token.attempt, "chunk": chunk}
    try:
        keyed = _Keys(combined_runs(rows, state) if has_reducers(state) else rows, state if place else None)
        for first in keyed:
            failpoint("spark.before_chunk", **where)
            tally = RowTally(chain([first], keyed), state.added_up)
            written = tally.written(state.write(grant, tally, chunk=chunk, complete=False))
            told.update(written.to_json())
            failpoint("spark.after_chunk", **where)
        if place is not None and keyed.found:
            # A task that Spark runs twice stages twice; the one whose answer counts names its file.
            told["part"] = asdict(stage_keys(place, state, keyed.found, chunk=chunk))
    except TxError as error:
        reason = type(error).__name__
        print(f"airflow_tx: chunk {chunk} of {grant.token} refused: {reason}", file=sys.stderr, flush=True)
        told.update(error=type(error).__name__, fields=error.fields)
    text = json.dumps({**told, "rows": rows.count}, default=str)
    return pa.RecordBatch.from_arrays([pa.array([text], pa.string())], names=["told"])


class _Taken:
    """Counts the rows that go by."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        self._rows, self.count = rows, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        row = next(self._rows)
        self.count += 1
        return row


class _Keys:
    """Remembers the keys that go by, if a state is given."""

    def __init__(self, rows: Iterator[dict[str, Any]], state: Any) -> None:
        self._rows, self._names = rows, state.columns.keys if state is not None else None
        self.found: list[tuple[Any, ...]] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        row = next(self._rows)
        if self._names is not None:
            self.found.append(tuple(row[name] for name in self._names))
        return row


def _rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """The rows with the values that pyarrow reads from the files: so writers of both kinds make the same keys."""
    import pyarrow as pa

    for batch in batches:
        arrays = [batch.column(field.name).cast(field.type) for field in schema]
        yield from from_arrow(pa.RecordBatch.from_arrays(arrays, schema=schema), types_of(schema))
