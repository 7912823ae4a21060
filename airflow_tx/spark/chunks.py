"""The work of an executor: it writes one partition of an update as one chunk of the grant, and reports the result."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
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
    state, grant, schema, place = pickle.loads(
        veiled(hidden, bytes.fromhex(task.getLocalProperty(KEY) or ""))
    )
    chunk = task.partitionId()
    told: dict[str, Any] = {"chunk": chunk, "keys": 0, "rows": 0}
    keys: list[Any] = []
    rows = _counted(_rows(batches, pa.ipc.read_schema(pa.py_buffer(schema))), told)
    where = {"txid": grant.txid, "attempt": grant.token.attempt, "chunk": chunk}
    try:
        keyed = combined_runs(rows, state) if has_reducers(state) else rows
        if place is not None:
            keyed = _noted(keyed, state.columns.keys, keys)
        for first in keyed:
            failpoint("spark.before_chunk", **where)
            tally = RowTally(chain([first], keyed), state.added_up)
            written = tally.written(state.write(grant, tally, chunk=chunk, complete=False))
            told.update(written.to_json())
            failpoint("spark.after_chunk", **where)
        if place is not None and keys:
            # A task that Spark runs twice stages twice; the one whose answer counts names its file.
            told["part"] = asdict(stage_keys(place, state, keys, chunk=chunk))
    except TxError as error:
        reason = type(error).__name__
        print(
            f"airflow_tx: chunk {chunk} of {grant.token} refused: {reason}",
            file=sys.stderr,
            flush=True,
        )
        told.update(error=reason, fields=error.fields)
    text = json.dumps(told, default=str)
    return pa.RecordBatch.from_arrays([pa.array([text], pa.string())], names=["told"])


def _counted(rows: Iterator[dict[str, Any]], told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Count the rows that go by."""
    for row in rows:
        told["rows"] += 1
        yield row


def _noted(
    rows: Iterator[dict[str, Any]], names: Sequence[str], found: list[Any]
) -> Iterator[dict[str, Any]]:
    """Note the keys that go by."""
    for row in rows:
        found.append(tuple(row[name] for name in names))
        yield row


def _rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """The rows with the values that pyarrow reads from the files: so writers of both kinds make the same keys."""
    import pyarrow as pa

    for batch in batches:
        arrays = [batch.column(field.name).cast(field.type) for field in schema]
        yield from from_arrow(pa.RecordBatch.from_arrays(arrays, schema=schema), types_of(schema))
