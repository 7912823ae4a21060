"""The rows that a committer writes: exactly the acked output of this attempt."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_tx.commit.update import Update
from airflow_tx.errors import StagingError
from airflow_tx.processing.outputs import Acks, acked, is_ref, xcom_fingerprint
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.staging.files import literal
from airflow_tx.staging.manifest import check_readable
from airflow_tx.staging.output import refuse
from airflow_tx.staging.parquet import read_schema
from airflow_tx.staging.small_rows import rows_from_json
from airflow_tx.state.api import FencedState, StateKind
from airflow_tx.state.arrow import from_arrow, types_of
from airflow_tx.state.combined_rows import combined, combined_at_once, has_reducers, reducers_of
from airflow_tx.state.keys import partition_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.staging import StagingArea
    from airflow_tx.state.appended import AppendTable

RowsToWrite = Iterable[Mapping[str, Any]]
Pull = Callable[[str, str, int], Any]


def values_of(
    update: Update, acks: Acks, attempt: TransactionAttempt, pull: Pull, *, empty: bool = False
) -> list[Any]:
    """Read the output of every task instance that has one, and compare it with what the instance acked.

    :param pull: asked for (task id, name, map index).
    :param empty: the batch has no rows, so that an instance need not give any.
    :raises StagingError: it is of an earlier try or of another attempt, was pushed by hand, or is not there; or an
        instance gave nothing, and the update does not allow that.
    """
    task = update.input.operator.task_id
    name = update.input.key
    expected = acked(acks, task, name)
    found = {index: pull(task, name, index) for index in expected}
    wrong = [
        index
        for index, fingerprinted in expected.items()
        if xcom_fingerprint(found[index]) != fingerprinted
    ]
    emitted = sorted(
        {entry["name"] for (of, _), ack in acks.items() if of == task for entry in ack.outputs}
    )
    silent = sorted(index for (of, index), ack in acks.items() if of == task and not ack.outputs)
    if wrong:
        problem = "its XCom is not what the task acked"
        remedy = f"Clear task {task}."
    elif emitted and not found:
        problem = f"the task gave {', '.join(map(repr, emitted))}"
        remedy = "Name one of these; only what a task returns, or an application emits, can be committed."
    else:
        if silent and not empty:
            check_empty(update, attempt, silent[0])
        return list(found.values())
    raise StagingError(
        output=name,
        task=task,
        txid=attempt.txid,
        attempt=attempt.attempt,
        problem=problem,
        remedy=remedy,
    )


def check_empty(update: Update, attempt: TransactionAttempt, map_index: int = -1) -> None:
    """Refuse a task that gave nothing: a forgotten `return` would silently lose the rows.

    :raises StagingError: its update does not allow that.
    """
    if update.allow_empty:
        return
    task = update.input.operator.task_id
    raise StagingError(
        output=update.input.key,
        task=task if map_index < 0 else f"{task}[{map_index}]",
        txid=attempt.txid,
        attempt=attempt.attempt,
        problem="the task gave nothing",
        remedy=f"Let it return its rows, [] if there are none, then clear {task}. If nothing means no rows, set "
        f"allow_empty=True in the {update.verb}(...) of the commit task.",
    )


class StagedRows:
    """The rows of one staged output: read again at each iteration, and counted beforehand.

    :param files: whether a row may be a file of a table; otherwise an output that lists files is refused.
    :raises StagingError: exactly this output is not there whole.
    """

    def __init__(
        self,
        area: StagingArea,
        ref: Mapping[str, Any],
        state: Any,
        attempt: TransactionAttempt,
        *,
        files: bool = False,
    ) -> None:
        from airflow_tx.staging.manifest import open_output

        self._area = area
        self.ref = ref
        self.name: str = ref["name"]
        self.where, self.output = open_output(area, ref, attempt=attempt)
        if not files:
            check_readable(self.where, self.name, self.output)
        self.columns = wanted_columns(state, self.output.columns)
        # Open it again with the columns: the error then names the missing ones.
        open_output(area, ref, columns=self.columns)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.output.content:
            yield from rows_from_json(self.output.content, self.columns)
            return
        for batch in self.batches():
            yield from from_arrow(batch, types_of(batch.schema))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read them as Arrow batches, in the order of the files and of the rows in them."""
        from airflow_tx.staging import read_batches

        return read_batches(self._area, self.ref, columns=self.columns)

    def __len__(self) -> int:
        return self.output.rows

    @property
    def size(self) -> int:
        return sum(file.size for file in self.output.files)

    @property
    def paths(self) -> list[tuple[str, int]]:
        """Name the files with rows below the root of the area, each with how many it has."""
        return [
            (f"{self.ref['path']}/{file.name}", file.rows)
            for file in self.output.files
            if file.rows
        ]

    @property
    def files(self) -> list[str]:
        return [literal(self.where.files.spark_uri(path)) for path, _ in self.paths]

    def schema(self) -> pa.Schema:
        """The columns and their types, as pyarrow reads them."""
        import pyarrow as pa

        with self.where.files.open(self.paths[0][0]) as opened:
            found = read_schema(opened)
        # With their notes: a column of new values may have a type that Arrow has not.
        return pa.schema([found.field(name) for name in self.columns])


def rows_to_write(
    update: Update, values: list[Any], area: StagingArea, attempt: TransactionAttempt
) -> RowsToWrite:
    """Give the rows of an update: one per key, or, if the state has a reducer, all of them in their order.

    That is the order of the map indexes, of the files of an output, and of the rows in each of these. The output of a
    single application is already aggregated (the state refuses it otherwise) and is streamed; anything else is combined
    in memory. They can be read twice, unless the state takes rows unchanged.

    :raises StagingError: a reference whose files are not there whole.
    :raises StateError: rows that do not fit the state.
    """
    state = update.state
    if state.append_table is not None:
        return files_to_append(update, state.append_table, values, area, attempt)
    if len(values) == 1 and is_ref(values[0]):
        return StagedRows(area, values[0], state, attempt)
    chained = chain.from_iterable(_rows(value, state, area, attempt) for value in values)
    rows = chained if has_reducers(state) else combined(chained, state)
    # Combined rows are in memory anyway. Of a state without columns, nothing is combined.
    again = (
        state.columns is not None
        or state.kind is StateKind.TRANSACTIONAL
        or update.new_values is not None
    )
    return list(rows) if again else rows


def _rows(value: Any, state: Any, area: StagingArea, attempt: TransactionAttempt) -> RowsToWrite:
    if is_ref(value):
        return StagedRows(area, value, state, attempt)
    return [value] if isinstance(value, Mapping) else value or ()


def files_to_append(
    update: Update,
    table: AppendTable,
    values: list[Any],
    area: StagingArea,
    attempt: TransactionAttempt,
) -> RowsToWrite:
    """Give the files of an append, one a row. Rows that Python tasks have returned are written here.

    :raises StagingError: they are not there whole, or were written for another table.
    :raises StateError: rows that do not fit the table.
    """
    state = update.state
    staged = [
        StagedRows(area, value, state, attempt, files=True) for value in values if is_ref(value)
    ]
    for rows in staged:
        appended = rows.output.appended
        if appended is None or appended.uri != table.uri:
            problem = f"its rows were not written into the folder of table {table.uri}"
            remedy = f"The DAG was changed since. Clear task {rows.where.task}."
            raise refuse(rows.where, rows.name, problem, remedy)
    plain = [
        row for value in values if not is_ref(value) for row in _rows(value, state, area, attempt)
    ]
    if plain:
        return [*chain.from_iterable(staged), *table.stage(plain, attempt)]
    return staged[0] if len(staged) == 1 else list(chain.from_iterable(staged))


def wanted_columns(state: FencedState, present: tuple[str, ...]) -> list[str]:
    """Name the columns that a state takes: of a composite its parts, or the one column that they come as.

    A reducer takes whole rows.
    """
    columns = state.columns
    if columns is None:
        return list(present)
    found = list(columns.keys)
    reducers = reducers_of(columns)
    for name in columns.aggregators:
        composite = columns.composites.get(name)
        parts = list(composite.parts(name)) if composite else [name]
        if name not in reducers:
            found += [name] if name in present and not set(parts) & set(present) else parts
    return [*found, *(name for name in present if name not in found)] if reducers else found


# --- in portions --------------------------------------------------------------------------------------------------


def portions(rows: RowsToWrite, state: Any, *, size: int) -> Iterator[RowsToWrite]:
    """Divide rows, one a key, into portions of about `size` rows; each is a chunk of the grant, by its number.

    :param rows: `StagedRows`, if the state has a reducer.
    """
    if not has_reducers(state):
        iterator = iter(rows)
        for first in iterator:
            yield chain([first], islice(iterator, size - 1))
        return
    assert isinstance(rows, StagedRows)
    if state.columns.keys:
        for portion in _by_key(rows, state.columns.keys, size):
            yield combined(portion, state)
    else:
        yield [combined_at_once(rows, state)]


def _by_key(rows: StagedRows, keys: Sequence[str], size: int) -> Iterator[Iterator[dict[str, Any]]]:
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
            yield _portion(path) if path.exists() else iter(())


def _shared_out(batch: pa.RecordBatch, keys: Sequence[str], count: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    columns = [batch.column(name).to_pylist() for name in keys]
    for index, key in enumerate(zip(*columns, strict=True)):
        # The same in every process, so that a write under the same grant is the same again.
        found.setdefault(partition_of(key, count), []).append(index)
    return found


def _portion(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    with pa.ipc.open_stream(str(path)) as stream:
        for batch in stream:
            yield from from_arrow(batch, types_of(batch.schema))
