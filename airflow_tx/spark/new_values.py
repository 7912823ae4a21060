"""New values of the keys of an update, staged by their writers: each writer its own part of one output.

Each grant has its own folder, so a committer thought dead overwrites nothing. The newest folder counts.
Source: trident-state seed (newValuesStream).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import StagingError, StateError
from airflow_tx.protocol.attempt import TaskTry, Token, TransactionAttempt
from airflow_tx.staging import OutputRef, StagingArea, TryDir, read_manifest
from airflow_tx.staging.area import quoted
from airflow_tx.staging.output import Output, StagedFile, check_name
from airflow_tx.state.arrow import schema_of, to_arrow
from airflow_tx.state.column_types import converted

if TYPE_CHECKING:
    from airflow_tx.state.api import QueryableState

# Keys of one look-up in a state.
KEYS_A_LOOK_UP = 10_000
_GRANT = re.compile(r"grant-(\d+)\.(\d+)(?:-(\w+))?")


@dataclass(frozen=True)
class OutputFolder:
    """Where the parts of one output go; it travels to executors.

    :param root: of the area.
    :param task: the committer, with the grant as its try.
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
        """Name the place where a committer stages new values under a grant."""
        life = f"-{token.birth}" if token.birth else ""
        task = TaskTry(task_id, -1, f"grant-{token.generation}.{token.epoch}{life}")
        return cls(area.root, topology, TransactionAttempt(token.txid, token.attempt), task, name)

    @property
    def where(self) -> TryDir:
        """Name the folder of the grant."""
        return StagingArea(self.root).try_dir(self.topology, self.attempt, self.task)

    @property
    def folder(self) -> str:
        """The path of the output, relative to the root.

        :raises StagingError: it has no name for an output.
        """
        return check_name(self.where, self.name)


def stage_keys(
    place: OutputFolder, state: QueryableState, keys: Sequence[Sequence[Any]], *, chunk: int
) -> Output:
    """Ask a state for the values of keys, and write them with their keys as one file.

    :param keys: the keys of one writer, in the order of the key columns.
    :param chunk: of the writer.
    :raises StateError: one of them is not there, although it was written.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    if not keys:
        return Output((), ())
    types = column_types(state)
    names = state.columns.keys
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema_of(types)) as writer:
        for start in range(0, len(keys), KEYS_A_LOOK_UP):
            portion = keys[start : start + KEYS_A_LOOK_UP]
            # Without keys, the one key has no columns.
            values_of = zip(names, zip(*portion, strict=True), strict=True) if names else ()
            columns = [converted(types[name], values) for name, values in values_of]
            own = zip(*columns, strict=True) if names else iter([()] * len(portion))
            rows = []
            for key, values in zip(own, state.multi_get(portion), strict=True):
                if values is None:
                    shown = dict(zip(names, key, strict=True))
                    problem = f"key {shown} has no value, although it was written a moment ago"
                    raise StateError(
                        state=state.name, problem=problem, remedy="Look who else deletes there."
                    )
                rows.append({**dict(zip(names, key, strict=True)), **values})
            writer.write_table(to_arrow(rows, types))
    return _put(place, _part(chunk), sink.getvalue().to_pybytes(), len(keys), tuple(types))


def stage_rows(place: OutputFolder, rows: Sequence[Mapping[str, Any]]) -> Output:
    """Write rows that an updater emitted, as one file.

    :raises StagingError: they have no common type.
    """
    from airflow_tx.staging import write_rows

    return write_rows(place.where, place.name, rows, file=_part(0))


def joined(parts: Iterable[Output]) -> Output:
    """Join the parts of all writers to one output."""
    found = list(parts)
    files = sorted((file for part in found for file in part.files), key=lambda file: file.name)
    return Output(tuple(files), next((part.columns for part in found if part.columns), ()))


def column_types(state: QueryableState) -> dict[str, str]:
    """Name the columns of new values, and their types: keys, values and the results of composites.

    :raises StateError: nothing was ever written to the state.
    """
    columns = state.columns
    keys = state.key_types()
    if keys is None:
        problem = "it was never written, so its keys have no types"
        raise StateError(state=state.name, problem=problem, remedy="Name them: types={...}.")
    values = {name: aggregator.type for name, aggregator in columns.values.items()}
    results = {
        name: getattr(each, "result_type", None) for name, each in columns.composites.items()
    }
    known = {name: kind for name, kind in results.items() if kind is not None}
    return {**{name: keys[name] for name in columns.keys}, **values, **known}


def are_new_values(ref: Mapping[str, Any]) -> bool:
    """Whether a reference is to new values, and not to the output of a processing task."""
    return _GRANT.fullmatch(str(ref.get("task_try"))) is not None


def newest_of(area: StagingArea, ref: Mapping[str, Any]) -> OutputRef | None:
    """Find the new values that count for a reference: the values of the last grant of its transaction."""
    found = _GRANT.fullmatch(ref["task_try"])
    birth = (found and found[3]) or ""
    return newest_outputs(area, ref["topology"], ref["txid"], ref["task_id"], birth).get(
        ref["name"]
    )


def newest_outputs(
    area: StagingArea, topology: str, txid: int, task_id: str, birth: str
) -> dict[str, OutputRef]:
    """Find what the last grant of a transaction staged for a committer, by name; nothing if it is no longer kept.

    :param area: the one of what is kept.
    :param birth: of the transaction: another life of the ledger had one of the same number.
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
    # Two tries of a task may write under one grant: the one whose manifest counts names its own files.
    return f"part-{chunk:05}-{uuid.uuid4().hex[:8]}.parquet"


def _put(
    place: OutputFolder, file: str, content: bytes, rows: int, columns: tuple[str, ...]
) -> Output:
    place.where.files.write(f"{place.folder}/{file}", content)
    return Output((StagedFile(file, len(content), rows),), columns)
