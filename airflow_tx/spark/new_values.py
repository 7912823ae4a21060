"""The new values of the keys of an update.

Each writer stages its part of the output. Each grant has its own folder, so a committer that Airflow has declared dead
overwrites no file. Only the newest folder counts. Source: trident-state seed (newValuesStream).
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import sys
import sysconfig
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from airflow_tx.base.errors import StagingError, StateError, TxError
from airflow_tx.base.failpoints import failpoint
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.ledger import Grant, TaskTry, Token, TransactionAttempt
from airflow_tx.outputs import (
    Output,
    OutputRef,
    StagedFile,
    StagingArea,
    TryDir,
    check_name,
    quoted,
    read_manifest,
    write_manifest,
    write_rows,
)
from airflow_tx.state import (
    QueryableState,
    RowTally,
    combined_runs,
    converted,
    from_arrow,
    has_reducers,
    schema_of,
    to_arrow,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")


# --- new values ---------------------------------------------------------------------------------------------------


# The number of keys in one lookup.
KEYS_A_LOOK_UP = 10_000
_GRANT = re.compile(r"grant-(\d+)\.(\d+)(?:-(\w+))?")


@dataclass(frozen=True)
class OutputFolder:
    """Where the parts of one output are stored, pickled for executors.

    :param root: the root of the area.
    :param task: the committer, with the grant in place of its try.
    :param name: the name of the output.
    """

    root: str
    topology: str
    attempt: TransactionAttempt
    task: TaskTry
    name: str

    @classmethod
    def of(
        cls, area: StagingArea, topology: str, token: Token, task_id: str, name: str
    ) -> OutputFolder:
        """Return where a committer stages new values under a grant."""
        life = f"-{token.birth}" if token.birth else ""
        task = TaskTry(task_id, -1, f"grant-{token.generation}.{token.epoch}{life}")
        return cls(area.root, topology, TransactionAttempt(token.txid, token.attempt), task, name)

    @property
    def where(self) -> TryDir:
        """Return the folder of the grant."""
        return StagingArea(self.root).try_dir(self.topology, self.attempt, self.task)

    @property
    def folder(self) -> str:
        """Return the path of the output, relative to the root.

        :raises StagingError: an output cannot have this name.
        """
        return check_name(self.where, self.name)


def stage_keys(
    place: OutputFolder, state: QueryableState, keys: Sequence[Sequence[Any]], *, chunk: int
) -> Output:
    """Read the values of keys from a state, and write both to one file.

    :param place: where to write the file.
    :param state: the state.
    :param keys: the keys of one writer. The values of a key are in the order of the key columns.
    :param chunk: the chunk of the writer.
    :raises StateError: a key is missing, although the writer has written it.
    """
    if not keys:
        return Output((), ())
    types = column_types(state)
    names = state.columns.keys
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema_of(types)) as writer:
        for start in range(0, len(keys), KEYS_A_LOOK_UP):
            portion = keys[start : start + KEYS_A_LOOK_UP]
            # A state without key columns has a single, empty key.
            values_of = zip(names, zip(*portion, strict=True), strict=True) if names else ()
            columns = [converted(types[name], values) for name, values in values_of]
            own = zip(*columns, strict=True) if names else iter([()] * len(portion))
            rows = []
            for key, values in zip(own, state.multi_get(portion), strict=True):
                if values is None:
                    shown = dict(zip(names, key, strict=True))
                    problem = f"key {shown} has no value, although this task has just written it"
                    raise StateError(
                        state=state.name,
                        problem=problem,
                        remedy="Find out which other process deletes keys of this state.",
                    )
                rows.append({**dict(zip(names, key, strict=True)), **values})
            writer.write_table(to_arrow(rows, types))
    return _put(place, _part(chunk), sink.getvalue().to_pybytes(), len(keys), tuple(types))


def stage_rows(place: OutputFolder, rows: Sequence[Mapping[str, Any]]) -> Output:
    """Write the rows that an updater has returned to one file.

    :raises StagingError: the rows have no common type.
    """
    return write_rows(place.where, place.name, rows, file=_part(0))


def joined(parts: Iterable[Output]) -> Output:
    """Join the parts of all writers into one output."""
    found = list(parts)
    files = sorted((file for part in found for file in part.files), key=lambda file: file.name)
    return Output(tuple(files), next((part.columns for part in found if part.columns), ()))


def column_types(state: QueryableState) -> dict[str, str]:
    """Return the types of the columns of new values. The columns are keys, values and composite results.

    :raises StateError: the state was never written, so that the types of its keys are unknown.
    """
    columns = state.columns
    keys = state.key_types()
    if keys is None:
        problem = "the state was never written, so the types of its keys are unknown"
        raise StateError(
            state=state.name, problem=problem, remedy="Declare the types: types={...}."
        )
    values = {name: aggregator.type for name, aggregator in columns.values.items()}
    results = {
        name: getattr(each, "result_type", None) for name, each in columns.composites.items()
    }
    known = {name: kind for name, kind in results.items() if kind is not None}
    return {**{name: keys[name] for name in columns.keys}, **values, **known}


def are_new_values(ref: Mapping[str, Any]) -> bool:
    """Return whether a reference names new values, and not the output of a processing task."""
    return _GRANT.fullmatch(str(ref.get("task_try"))) is not None


def newest_of(area: StagingArea, ref: Mapping[str, Any]) -> OutputRef | None:
    """Return the new values for a reference. Only the new values under the last grant of the transaction count."""
    found = _GRANT.fullmatch(ref["task_try"])
    birth = (found and found[3]) or ""
    return newest_outputs(area, ref["topology"], ref["txid"], ref["task_id"], birth).get(
        ref["name"]
    )


def newest_outputs(
    area: StagingArea, topology: str, txid: int, task_id: str, birth: str
) -> dict[str, OutputRef]:
    """Return the new values that a committer staged under the last grant of a transaction, by name.

    :param area: the area of kept output.
    :param birth: the birth of the transaction. A repaired ledger may have assigned the same txid twice.
    :return: references by name. The result is empty if the new values are no longer kept.
    """
    below = f"{quoted(topology)}/{txid}"
    attempts = sorted(
        (int(name) for name in area.files.list(below) if name.isdecimal()), reverse=True
    )
    for attempt in attempts:
        tries = area.files.list(f"{below}/{attempt}/{quoted(task_id)}@-1")
        own = ((rank, name) for name in tries if (rank := _rank(name, birth)) is not None)
        for _, task_try in sorted(own, reverse=True):
            task = TaskTry(task_id, -1, task_try)
            with suppress(StagingError):
                return read_manifest(
                    area.try_dir(topology, TransactionAttempt(txid, attempt), task)
                ).refs()
    return {}


def _rank(name: str, birth: str) -> tuple[int, int] | None:
    found = _GRANT.fullmatch(name)
    return (int(found[1]), int(found[2])) if found and (found[3] or "") == birth else None


def _part(chunk: int) -> str:
    # Two tries of a task may write under the same grant, so file names are unique, and the manifest
    # names the files that count.
    return f"part-{chunk:05}-{uuid.uuid4().hex[:8]}.parquet"


def _put(
    place: OutputFolder, file: str, content: bytes, rows: int, columns: tuple[str, ...]
) -> Output:
    place.where.files.write(f"{place.folder}/{file}", content)
    return Output((StagedFile(file, len(content), rows),), columns)


class NewValuesOutput:
    """The new values of one update, with one part per writer."""

    def __init__(self, place: OutputFolder) -> None:
        self.place = place
        self.parts: list[Output] = []

    def keys(self, state: Any, keys: Sequence[Sequence[Any]], *, chunk: int) -> None:
        """Read the values of written keys from the state, and stage them."""
        self.parts.append(stage_keys(self.place, state, keys, chunk=chunk))

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Stage the rows that an updater has returned."""
        self.parts.append(stage_rows(self.place, rows))

    def staged(self, parts: Iterable[Output]) -> None:
        """Add parts that other writers have already staged."""
        self.parts.extend(parts)


@dataclass
class NewValues:
    """The new values that one committer stages under one grant."""

    area: StagingArea
    grant: Grant
    task_id: str
    outputs: dict[str, NewValuesOutput] = field(default_factory=dict)

    def of(self, name: str) -> NewValuesOutput:
        """Return the staging for the new values of one update."""
        # Start without parts, since an update may be written again under the same grant.
        place = OutputFolder.of(
            self.area, self.grant.topology, self.grant.token, self.task_id, name
        )
        self.outputs[name] = NewValuesOutput(place)
        return self.outputs[name]

    def finish(self) -> dict[str, dict[str, Any]]:
        """Make all outputs visible, and return their references by name. There must be at least one output."""
        outputs = {name: joined(output.parts) for name, output in self.outputs.items()}
        where = next(iter(self.outputs.values())).place.where
        return {name: ref.to_json() for name, ref in write_manifest(where, outputs).items()}


# --- secrets ------------------------------------------------------------------------------------------------------
# Executors also need secrets, such as the password of a state. The tasks' code contains these
# secrets, encrypted with a key, since a server may log plans. The key is a session property whose
# name makes Spark redact its value. So no plan, setting or log shows a secret.


# The session property with the key. Spark redacts its value because of the name.
KEY = "spark.airflow_tx.secret"
_LOOKED_INTO = 1_000


def pickled(told: Any) -> bytes:
    """Pickle a value together with the classes of the user's modules, since executors lack the DAG file."""
    from pyspark import cloudpickle as pyspark_cloudpickle

    # This package has no type annotations.
    cloudpickle: Any = pyspark_cloudpickle
    with ExitStack() as stack:
        for name in sorted(_own_modules(told)):
            cloudpickle.register_pickle_by_value(sys.modules[name])
            stack.callback(cloudpickle.unregister_pickle_by_value, sys.modules[name])
        data: bytes = cloudpickle.dumps(told)
        return data


def veiled(data: bytes, key: bytes) -> bytes:
    """Mask data with a key. Use each key only once. A second call with the same key returns the original data."""
    stream = hashlib.shake_256(key).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


def hidden_in(spark: SparkSession, data: bytes) -> tuple[bytes, bytes]:
    """Mask data for the tasks of a session. In a task, `revealed` returns the data.

    :return: a salt that makes the key unique, and the masked data.
    """
    key = spark.conf.get(KEY, None)
    if key is None:
        key = os.urandom(32).hex()
        spark.conf.set(KEY, key)
    salt = os.urandom(16)
    return salt, veiled(data, salt + bytes.fromhex(key))


def revealed(salt: bytes, hidden: bytes) -> bytes:
    """Return the original data of `hidden_in`, in a Spark task.

    :raises TxError: the task does not belong to a query of the session, such as a task of `df.rdd`.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    key = None if task is None else task.getLocalProperty(KEY)
    if not key:
        raise TxError(
            message="batch.look_up works in queries of DataFrames only. Use df, not df.rdd."
        )
    return veiled(hidden, salt + bytes.fromhex(key))


def _own_modules(told: Any) -> set[str]:
    """Return the names of the user's modules whose classes occur in a value."""
    installed = tuple({os.path.realpath(path) for path in sysconfig.get_paths().values()})
    names = {type(part).__module__ for part in _parts(told, set())}
    own = set[str]()
    for name in names - {"__main__"}:
        file = getattr(sys.modules.get(name), "__file__", None)
        if (
            file
            and not name.startswith("airflow_tx.")
            and not os.path.realpath(file).startswith(installed)
        ):
            own.add(name)
    return own


def _parts(told: Any, seen: set[int]) -> Iterator[Any]:
    if id(told) in seen or len(seen) > _LOOKED_INTO:
        return
    seen.add(id(told))
    yield told
    if isinstance(told, Mapping):
        inner = [*told.values()] if len(told) < _LOOKED_INTO else []
    elif isinstance(told, (list, tuple)):
        inner = [*told[:_LOOKED_INTO]]
    else:
        inner = [*getattr(told, "__dict__", {}).values()]
    for part in inner:
        yield from _parts(part, seen)


# --- chunks -------------------------------------------------------------------------------------------------------
# An executor writes one partition of an update as one chunk of the grant. It returns a report of
# the result.


def write_chunk(hidden: bytes, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Write one partition as one chunk. A refusal is returned as a result, since Spark would retry a failed task."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None, "this function must run in a Spark task"
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
            told["written"] = to_builtins(written)
            told["keys"] = written.keys
            failpoint("spark.after_chunk", **where)
        if place is not None and keys:
            # A task that Spark runs twice stages two files. The report that Spark returns names the
            # one that counts.
            told["part"] = asdict(stage_keys(place, state, keys, chunk=chunk))
    except TxError as error:
        reason = type(error).__name__
        print(
            f"airflow_tx: chunk {chunk} of {grant.token} refused: {reason}",
            file=sys.stderr,
            flush=True,
        )
        told.update(error=reason, fields=error.stored_fields)
    text = json.dumps(told, default=str)
    return pa.RecordBatch.from_arrays([pa.array([text], pa.string())], names=["told"])


def _counted(rows: Iterator[dict[str, Any]], told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows, and count them."""
    for row in rows:
        told["rows"] += 1
        yield row


def _noted(
    rows: Iterator[dict[str, Any]], names: Sequence[str], found: list[Any]
) -> Iterator[dict[str, Any]]:
    """Yield the rows, and store their keys."""
    for row in rows:
        found.append(tuple(row[name] for name in names))
        yield row


def _rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """Yield the rows with the types that pyarrow reads, so that this process and executors write the same keys."""
    for batch in batches:
        arrays = [batch.column(field.name).cast(field.type) for field in schema]
        yield from from_arrow(pa.RecordBatch.from_arrays(arrays, schema=schema))
