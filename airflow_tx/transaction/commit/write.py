"""Write the rows of an update to its state, in this process or in Spark executors, with bounded memory."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow_tx.base.errors import ConfigError, OutputChanged, StagingError, StateError, TxError
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.ledger import (
    ASIDE,
    NOTHING_WRITTEN,
    Ack,
    Grant,
    Granted,
    Ledger,
    RowsDigest,
    TransactionAttempt,
    Written,
    output_text,
)
from airflow_tx.outputs import (
    StagingArea,
    check_emitted,
    check_readable,
    literal,
    open_output,
    read_batches,
    read_schema,
    refuse,
    rows_from_json,
)
from airflow_tx.state import (
    REPLACING,
    AppendTable,
    FencedState,
    PersistedState,
    RowsInParts,
    RowTally,
    StateKind,
    StateWrite,
    StoredState,
    combined,
    combined_at_once,
    from_arrow,
    has_reducers,
    partition_of,
    reducers_of,
    sharing_a_store,
    write_together,
)
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.processing.outputs import Acks, acked, is_ref, xcom_fingerprint

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.spark import NewValues, NewValuesOutput, WriteJob
else:
    pa = LazyModule("pyarrow")


# --- rows ---------------------------------------------------------------------------------------------------------
# A committer writes exactly the acked output of this attempt.


RowsToWrite = Iterable[Mapping[str, Any]]
Pull = Callable[[str, str, int], Any]


def values_of(
    update: Update, acks: Acks, attempt: TransactionAttempt, pull: Pull, *, empty: bool = False
) -> list[Any]:
    """Read the acked output of all instances of an update's task.

    :param empty: whether the batch has no rows, so that an instance may return nothing.
    :raises StagingError: see `acked_values`, and `check_empty` for an instance that returned nothing.
    """
    found = acked_values(update.input, acks, attempt, pull)
    task = update.input.operator.task_id
    silent = sorted(
        index for (of, index), ack in acks.items() if of == task and not _given_names(ack)
    )
    if silent and not empty:
        check_empty(update, attempt, silent[0])
    return found


def acked_values(output: Any, acks: Acks, attempt: TransactionAttempt, pull: Pull) -> list[Any]:
    """Read an output of all instances of its task, and compare each value with the ack of the instance.

    :param output: the XComArg of the output.
    :param pull: a function that reads an XCom by task id, name and map index.
    :raises StagingError: a value is missing, belongs to an earlier try or another attempt, or was pushed manually.
    """
    task = output.operator.task_id
    name = output.key
    expected = acked(acks, task, name)
    found = {index: pull(task, name, index) for index in expected}
    wrong = [
        index
        for index, fingerprinted in expected.items()
        if xcom_fingerprint(found[index]) != fingerprinted
    ]
    emitted = sorted(
        {name for (of, _), ack in acks.items() if of == task for name in _given_names(ack)}
    )
    if wrong:
        problem = "its XCom differs from the output that the task acked"
        remedy = f"Clear task {task}."
    elif emitted and not found:
        problem = f"the task emitted {', '.join(map(repr, emitted))}"
        remedy = "Name one of these. Only return values and emitted outputs can be committed."
    else:
        return list(found.values())
    raise StagingError(
        output=name,
        task=task,
        txid=attempt.txid,
        attempt=attempt.attempt,
        problem=problem,
        remedy=remedy,
    )


def _given_names(ack: Ack) -> list[str]:
    """Return the names of a task instance's outputs, except rejected and malformed rows."""
    return [name for each in ack.outputs if not (name := each["name"]).startswith(ASIDE)]


def check_empty(update: Update, attempt: TransactionAttempt, map_index: int = -1) -> None:
    """Refuse a task that returned nothing. A forgotten `return` would silently lose rows.

    :raises StagingError: the update does not allow this.
    """
    if update.allow_empty:
        return
    task = update.input.operator.task_id
    raise StagingError(
        output=update.input.key,
        task=task if map_index < 0 else f"{task}[{map_index}]",
        txid=attempt.txid,
        attempt=attempt.attempt,
        problem="the task returned nothing",
        remedy=f"Let it return its rows, [] if there are none, then clear {task}. If nothing means no rows, set "
        f"allow_empty=True in the {update.verb}(...) of the commit task.",
    )


class StagedRows(RowsInParts):
    """The rows of one staged output. Their number is known in advance, and each iteration reads them again.

    :param area: the staging area.
    :param ref: the reference to the output.
    :param state: the state that the rows are for.
    :param attempt: the attempt of the output.
    :param files: whether the output may be a list of a table's files, with one file per row.
    :raises StagingError: the output is incomplete or changed.
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
        self._area = area
        self.ref = ref
        self.name: str = ref["name"]
        self.where, self.output = open_output(area, ref, attempt=attempt)
        if not files:
            check_readable(self.where, self.name, self.output)
        self.columns = wanted_columns(state, self.output.columns)
        # Open the output again with the columns, so that an error names the missing columns.
        open_output(area, ref, columns=self.columns)

    def parts(self) -> Iterator[pa.RecordBatch | RowsToWrite]:
        if self.output.content:
            return iter([rows_from_json(self.output.content, self.columns)])
        return self.batches()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows as Arrow batches, in the order of the files and of the rows in each file."""
        return read_batches(self._area, self.ref, columns=self.columns)

    def __len__(self) -> int:
        return self.output.rows

    @property
    def size(self) -> int:
        return sum(file.size for file in self.output.files)

    @property
    def paths(self) -> list[tuple[str, int]]:
        """Return the path of each file that has rows, relative to the root of the area, and its number of rows."""
        return [
            (f"{self.ref['path']}/{file.name}", file.rows)
            for file in self.output.files
            if file.rows
        ]

    @property
    def files(self) -> list[str]:
        return [literal(self.where.files.spark_uri(path)) for path, _ in self.paths]

    def schema(self) -> pa.Schema:
        """Return the schema of the columns to read."""
        with self.where.files.open(self.paths[0][0]) as opened:
            found = read_schema(opened)
        # Keep the metadata of the fields. For new values, it names a type that Arrow does not have.
        return pa.schema([found.field(name) for name in self.columns])


@dataclass(frozen=True)
class RowsInTurn(RowsInParts):
    """The rows of several outputs, one output after the other."""

    outputs: Sequence[RowsToWrite]

    def parts(self) -> Iterator[pa.RecordBatch | RowsToWrite]:
        for rows in self.outputs:
            yield from rows.parts() if isinstance(rows, RowsInParts) else [rows]


def rows_to_write(
    update: Update, values: list[Any], area: StagingArea, attempt: TransactionAttempt
) -> RowsToWrite:
    """Return the rows of an update: one row per key, or all rows in order if the state has a reducer.

    Rows are ordered by map index, then by file of the output, then by position in the file. The output of a single
    application is streamed. It must already be aggregated, or the state refuses it. All other rows are combined in
    memory. The result can be read twice, unless the state accepts rows unchanged.

    :param values: the return value or the reference of each instance.
    :raises StagingError: the files of a reference are incomplete.
    :raises StateError: the rows do not fit the state.
    """
    state = update.state
    if state.append_table is not None:
        return files_to_append(update, state.append_table, values, area, attempt)
    if len(values) == 1 and is_ref(values[0]):
        return StagedRows(area, values[0], state, attempt)
    if state.takes_back_by_txid:
        return RowsInTurn([_rows(value, state, area, attempt) for value in values])
    chained = chain.from_iterable(_rows(value, state, area, attempt) for value in values)
    rows = chained if has_reducers(state) else combined(chained, state)
    # Combined rows are already in memory. Rows of a state without columns are not combined.
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
    """Return the list of files to append, one file per row.

    Rows that Python tasks returned or staged are first written to files.

    :raises StagingError: the files are incomplete, or belong to another table.
    :raises StateError: the rows do not fit the table.
    """
    state = update.state
    staged = list[StagedRows]()
    plain = list[Mapping[str, Any]]()
    for value in values:
        rows = StagedRows(area, value, state, attempt, files=True) if is_ref(value) else None
        if rows is None or rows.output.appended is None:
            plain += _rows(value, state, area, attempt)
            continue
        if rows.output.appended.uri != table.uri:
            problem = f"its rows were written into the folder of table {rows.output.appended.uri}, not of {table.uri}"
            remedy = f"The DAG has changed since then. Clear task {rows.where.task}."
            raise refuse(rows.where, rows.name, problem, remedy)
        staged.append(rows)
    if plain:
        return [*chain.from_iterable(staged), *table.stage(plain, attempt)]
    return staged[0] if len(staged) == 1 else list(chain.from_iterable(staged))


def wanted_columns(state: FencedState, present: tuple[str, ...]) -> list[str]:
    """Return the columns that a state reads.

    For a composite, these are its parts, or a single column that holds the parts. A state with a reducer reads all
    columns.

    :param present: the columns of the output.
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
    """Divide rows into portions of about `size` rows. Each key has one row. Portion 0 becomes chunk 0 of the grant.

    :param rows: the rows; `StagedRows` if the state has a reducer.
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
        # Every process divides the keys in the same way, so a repeated write of a grant writes the
        # same chunks.
        found.setdefault(partition_of(key, count), []).append(index)
    return found


def _portion(path: Path) -> Iterator[dict[str, Any]]:
    with pa.ipc.open_stream(str(path)) as stream:
        for batch in stream:
            yield from from_arrow(batch)


# --- write --------------------------------------------------------------------------------------------------------


# Sizes from which `writers="auto"` uses Spark, if a Spark is available.
LARGE_ROWS = 500_000
LARGE_BYTES = 256 * 2**20
# The maximum number of rows in one write. A state keeps their keys in memory to find duplicates.
ROWS_A_WRITE = 100_000
ROWS_A_WRITER = 100_000
MOST_WRITERS = 200


def output_digests(updates: Sequence[Update], rows: Sequence[RowsToWrite]) -> dict[str, str]:
    """Return the digest of the rows to write, for each transactional state."""
    pairs = zip(updates, rows, strict=True)
    return {
        each.state.name: output_digest(found, each.state)
        for each, found in pairs
        if each.state.kind is StateKind.TRANSACTIONAL
    }


def output_digest(rows: RowsToWrite, state: FencedState) -> str:
    """Return a digest of keys and deltas, in any order. In a replay, a transactional state requires the same digest."""
    # A composite is one column or several parts, and a reducer reads whole rows. In both cases, the
    # digest includes all columns.
    columns = state.columns
    if columns is None or has_reducers(state):
        return output_text(rows, (), ())
    names = () if columns.composites else (*columns.keys, *columns.values)
    doubles = [name for name, aggregator in columns.values.items() if aggregator.type == "double"]
    return output_text(rows, names, doubles)


def take_other_output(
    ledger: Ledger, states: Iterable[FencedState], granted: Granted, outputs: Mapping[str, str]
) -> None:
    """Accept an output that differs from the output of an earlier grant. No state may hold rows of the earlier output.

    A state with a fence checks this when its fence is raised. For a state without a fence, the digest of the earlier
    output is only in the ledger. In this case, this function searches the state for rows of the transaction.

    :param states: the states to check. Their fences are raised, so no earlier grant can write.
    :param outputs: the digest of the rows to write, by transactional state.
    :raises OutputChanged: a state may hold rows of the transaction.
    """
    changed = {state.name: state for state in states if state.name in granted.changed}
    if not changed:
        return
    grant = granted.grant
    for name, state in changed.items():
        if state.fence() is None and state.holds(grant.txid) is not False:
            found = granted.changed[name]
            raise OutputChanged(state=name, txid=grant.txid, digest=outputs[name], found=found)
    ledger.take_output(grant.token, {name: outputs[name] for name in changed})


def whole(update: Update, rows: RowsToWrite) -> RowsToWrite:
    """Read all rows before several store transactions write them, so that a wrong row is found early. Return the rows.

    A single store transaction checks its rows as it writes them.

    :raises RowsDiffer: the rows are not the emitted rows.
    """
    if not update.together and _in_portions(rows, update) and spark_of(update, rows) is None:
        for _ in rows.batches():
            pass
    return rows


def write_update(
    update: Update,
    grant: Grant,
    rows: RowsToWrite,
    *,
    dag_file: str,
    log: Any,
    output: NewValuesOutput | None = None,
) -> Written:
    """Write an update after the grant has raised the fence of every state.

    After an error, the commit can be retried: rows that were already written are not added twice.

    :param dag_file: path of the DAG file. A driver on this machine may import modules from its folder.
    :param output: the staging of new values; None if the update outputs no new values.
    :return: the written counts.
    :raises StateError, StateUnavailable: the state refuses, or cannot be reached.
    :raises WritersFailed: the Spark job ended without an answer.
    """
    spark = spark_of(update, rows)
    if spark is not None:
        assert isinstance(rows, StagedRows)
        log.info(
            "State %s: %d rows are written by Spark (%s)",
            update.state.name,
            len(rows),
            spark_label(spark),
        )
        return write_by_spark(
            update.state,
            grant,
            rows,
            spark,
            partitions=_partitions(update.state, rows),
            dag_file=dag_file,
            output=output,
        )
    if _in_portions(rows, update):
        return _in_turns(update.state, grant, rows, output)
    return _write_one(update.state, grant, rows, output)


def new_values_of(update: Update, staged: NewValues) -> NewValuesOutput | None:
    """Return the staging for the new values of an update, or None if the update outputs no new values."""
    return None if update.new_values is None else staged.of(update.new_values)


def write_instead(
    state: Any, grant: Grant, rows: RowsToWrite, output: NewValuesOutput | None = None
) -> Grant:
    """Replace the values of keys that only one transaction has contributed to. The fence must be raised first.

    :return: the grant for the next write. That write must follow, since it completes the update.
    :raises StateError, StateUnavailable: the state refuses, or cannot be reached.
    """
    written = NOTHING_WRITTEN
    count = 0
    for count, portion in enumerate(_sliced(rows), 1):
        tally = RowTally(portion, state.added_up)
        chunk = REPLACING - count + 1
        written += tally.written(state.write(grant, tally, chunk=chunk, complete=False))
        if output is not None:
            output.keys(state, _keys(state, portion), chunk=chunk)
    return replace(grant, written=written, portions=count) if count else grant


# --- moment -------------------------------------------------------------------------------------------------------
# One database transaction raises the fences of several updates and writes the updates. A reader
# sees all these updates or none.


@dataclass(frozen=True, eq=False)
class UpdateRows:
    """The rows of an update, as its commit writes them.

    :param instead: for a restatement, the rows whose values replace the stored values.
    :param require: for a restatement, a function that raises an error if a key is missing. Its argument is a function
        that looks up keys.
    :param for_good: whether the update removes rows that cannot be restored.
    """

    update: Update
    rows: RowsToWrite
    instead: RowsToWrite = ()
    require: Callable[[Callable[..., Any]], None] | None = None
    for_good: bool = False

    @property
    def state(self) -> FencedState:
        return self.update.state

    def fits(self) -> bool:
        """Return whether one store transaction can raise the fence and write the update."""
        if self.update.together:
            return True
        if not isinstance(self.state, StoredState) or spark_of(self.update, self.rows) is not None:
            return False
        alone = self.state.store_key is None and self.require is not None
        return not alone and not _in_portions(self.rows, self.update)

    def write(self, grant: Grant, *, raising: bool) -> StateWrite:
        """Return the write for the store. If it does not raise the fence, it replaces the grant's earlier writes."""
        undoing = not raising and self.state.kind is StateKind.OPAQUE
        made = partial(StateWrite, self.state.name, grant, raising=raising, undoing=undoing)
        made = partial(made, require=self.require)
        if self.instead or _in_portions(self.rows, self.update):
            return made(parts=self._parts)
        return made(self._tally(self._given))

    @property
    def _given(self) -> RowsToWrite:
        return list(combined(self.rows, self.state)) if has_reducers(self.state) else self.rows

    def _tally(self, rows: RowsToWrite) -> RowTally:
        return RowTally(rows, self.state.added_up)

    def _parts(self) -> Iterator[tuple[int, RowTally]]:
        for number, portion in enumerate(_sliced(self.instead)):
            yield REPLACING - number, self._tally(portion)
        several = _in_portions(self.rows, self.update)
        given: Iterable[RowsToWrite] = [self._given]
        if several:
            given = portions(self.rows, self.state, size=ROWS_A_WRITE)
        for chunk, portion in enumerate(given):
            yield chunk, self._tally(portion)


def _sliced(rows: RowsToWrite) -> Iterator[RowsToWrite]:
    iterator = iter(rows)
    while portion := list(islice(iterator, ROWS_A_WRITE)):
        yield portion


def moment_of(found: Sequence[UpdateRows]) -> list[UpdateRows]:
    """Return the updates that one database transaction writes while it also raises their fences.

    These are the updates of the database that has the most updates. If every database has a single update, one update
    is returned, preferably of a state whose fence is slow to raise. An update that removes rows which cannot be
    restored is written last, unless `together=True`.
    """
    promised = [each for each in found if each.update.together]
    if promised:
        return promised
    fitting = [each for each in found if each.fits()]
    states = sorted((each.state for each in fitting), key=lambda each: not each.slow_to_raise)
    groups = sharing_a_store(states)
    names = {state.name for state in groups[0]} if groups else set()
    moment = [each for each in fitting if each.state.name in names]
    if len(moment) < len(found):
        moment = [each for each in moment if not each.for_good]
    return moment


def write_moment(
    moment: Sequence[UpdateRows], grant: Grant, staged: NewValues, *, raising: bool = True
) -> dict[str, Written]:
    """Write updates in one transaction of their store.

    :param staged: the staging of new values. Another connection reads the new values after the transaction.
    :param raising: whether the transaction also raises the fences.
    :return: the number of written rows or keys, by state.
    :raises StateError, StateUnavailable: the store refuses the write, or cannot be reached.
    """
    if not moment:
        return {}
    states = [each.state for each in moment if isinstance(each.state, StoredState)]
    works = [each.write(grant, raising=raising) for each in moment]
    alone = works[0].rows if len(works) == 1 and raising and not works[0].require else None
    if alone is not None:  # A custom state may override `raise_and_write`.
        written = [alone.written(states[0].raise_and_write(grant, alone))]
    else:
        written = write_together(list(zip(states, works, strict=True)))
    for each, work in zip(moment, works, strict=True):
        output = new_values_of(each.update, staged)
        if output is not None:
            for portion in work.portions():
                assert portion.rows is not None
                output.keys(each.state, _keys(each.state, portion.rows), chunk=portion.chunk)
    return dict(zip((state.name for state in states), written, strict=True))


# --- the choice ---------------------------------------------------------------------------------------------------


def spark_of(update: Update, rows: RowsToWrite) -> str | None:
    """Return the Spark that writes the rows, or None if this process writes them.

    :raises ConfigError: the update has `writers="spark"`, and Spark cannot write the rows.
    """
    forced = update.writers == "spark"
    if update.writers == "worker" or not rows:
        return None
    if not forced and not (isinstance(rows, StagedRows) and _is_large(update, rows)):
        return None
    columns = update.state.columns
    if not forced and columns is not None and not columns.keys:
        # With a single key, this process streams the rows. An executor would hold them all in
        # memory.
        return None
    spark = update.spark or getattr(getattr(update.input, "operator", None), "conn_id", None)
    problem = ""
    if not isinstance(rows, StagedRows):
        problem = "Spark writes the staged output of one task, but here the commit task combines rows that tasks return"
    elif not spark:
        problem = 'no Spark connection is set, and no Spark task wrote the output: add spark="spark_default"'
    elif update.state.for_executors() is None:
        problem = f"state {update.state.name!r} allows one writer at a time, like SQLite"
    if problem and forced:
        raise ConfigError(
            option="persistent_aggregate(writers=)",
            value="spark",
            remedy=f"{problem[0].upper()}{problem[1:]}.",
        )
    return None if problem else spark


def _is_large(update: Update, rows: StagedRows) -> bool:
    if update.spark_from_rows is not None:
        return len(rows) >= update.spark_from_rows
    return len(rows) >= LARGE_ROWS or rows.size >= LARGE_BYTES


def _in_portions(rows: RowsToWrite, update: Update) -> TypeGuard[StagedRows]:
    return isinstance(rows, StagedRows) and len(rows) > ROWS_A_WRITE and bool(update.state.columns)


def _partitions(state: Any, rows: StagedRows) -> int:
    return (
        min(max(2, math.ceil(len(rows) / ROWS_A_WRITER)), MOST_WRITERS) if state.columns.keys else 1
    )


# --- by this process ----------------------------------------------------------------------------------------------


def _write_one(
    state: Any, grant: Grant, rows: RowsToWrite, output: NewValuesOutput | None
) -> Written:
    if output is not None and isinstance(state, PersistedState):
        tally = RowTally(rows)
        emitted = state.updated(grant, tally)
        output.rows(emitted.new_values)
        return tally.written(emitted.rows)
    given = combined(rows, state) if has_reducers(state) else rows
    if output is not None:
        given = list(given)
    tally = RowTally(given, state.added_up)
    written = tally.written(state.write(grant, tally))
    if output is not None:
        output.keys(state, _keys(state, given), chunk=0)
    return written


def _in_turns(
    state: Any, grant: Grant, rows: StagedRows, output: NewValuesOutput | None
) -> Written:
    def tallies() -> Iterator[RowTally]:
        for chunk, portion in enumerate(portions(rows, state, size=ROWS_A_WRITE)):
            given = portion if output is None else list(portion)
            yield RowTally(given, state.added_up)
            if output is not None:  # The caller has written the portion.
                output.keys(state, _keys(state, given), chunk=chunk)

    return write_portions(state, grant, tallies())


def write_portions(state: Any, grant: Grant, tallies: Iterable[RowTally]) -> Written:
    """Write each portion in a store transaction of its own, so that memory, locks and undo logs stay small."""
    written = NOTHING_WRITTEN
    chunk = -1
    for chunk, tally in enumerate(tallies):
        written += tally.written(state.write(grant, tally, chunk=chunk, complete=False))
    # A state without a fence starts a write at chunk 0. If there are no rows, this call is chunk 0.
    whole = replace(grant, written=grant.written + written, portions=grant.portions + chunk + 1)
    state.write(whole, (), chunk=chunk + 1, complete=True)
    return written


def _keys(state: Any, rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in state.columns.keys) for row in rows]


# --- spark writers ------------------------------------------------------------------------------------------------
# Spark executors write an update. This section starts the driver of the job, sends it the job, and
# reads the responses.


_MASTER = re.compile(r"local(\[.*\])?$|yarn(-client)?$|(spark|k8s|mesos)://")
_OWN_CONNECTION = "airflow_tx_writers"


def spark_label(spark: str) -> str:
    """Return the name of a Spark for logs and messages, without parameters that may be secret."""
    return spark.partition(";")[0]


def write_by_spark(
    state: Any,
    grant: Grant,
    rows: StagedRows,
    spark: str,
    *,
    partitions: int,
    dag_file: str,
    output: NewValuesOutput | None = None,
) -> Written:
    """Run a Spark job whose executors each write a part of the keys. Then complete the write of the grant.

    :param partitions: the number of chunks.
    :param output: the staging of new values. Each executor stages the new values of its keys.
    :return: the written counts.
    :raises StateError: the state refused the write of an executor.
    :raises WritersFailed: the job ended without an answer.
    """
    from airflow_tx.spark import (
        WriteJob,
        portions_of,
        read_by,
        seal,
        staged_parts,
        total,
        written_by,
    )

    copied = state.for_executors()
    assert copied is not None
    name = f"{grant.topology} {grant.token.txid}.{grant.token.attempt} {state.name}"
    keys = list(state.columns.keys)
    ordered = has_reducers(state)
    job = WriteJob(name, rows.files, len(rows), rows.columns, keys, partitions, ordered)
    sealed = seal(copied, grant, rows.schema(), output.place if output is not None else None)
    url = _connect_url(spark)
    answers = (
        _on_server(url, spark, job, sealed)
        if url
        else _by_driver(spark, job, sealed, dag_file, state=state, grant=grant)
    )
    _, taken = total(answers)
    read = read_by(answers)
    if read is not None and rows.output.reliable:
        check_emitted(rows.where, rows.name, read, RowsDigest.of(len(rows), rows.output.row_digest))
    if taken != len(rows):
        problem = f"the executors of Spark wrote only {taken} of {len(rows)} rows"
        raise StateError(state=state.name, problem=problem, remedy="Clear the whole run.")
    if output is not None:
        output.staged(staged_parts(answers))
    written = written_by(answers)
    portions = grant.portions + portions_of(answers)
    whole = replace(grant, written=grant.written + written, portions=portions)
    state.write(whole, (), complete=True)
    return written


def _connect_url(spark: str) -> str | None:
    if spark.startswith("sc://"):
        return spark
    if _MASTER.match(spark):
        return None
    from airflow_tx.base.connections import connect_url, spark_connection

    return connect_url(spark) if spark_connection(spark).conn_type == "spark_connect" else None


def _on_server(url: str, spark: str, job: WriteJob, sealed: bytes) -> list[dict[str, Any]]:
    from airflow_tx.spark import run_writers, session

    with session(url, tag=job.name, server=spark_label(spark)) as connected:
        return run_writers(connected, job, sealed)


def _by_driver(
    spark: str, job: WriteJob, sealed: bytes, dag_file: str, *, state: FencedState, grant: Grant
) -> list[dict[str, Any]]:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_tx.base.connections import spark_connection
    from airflow_tx.spark import (
        WRITERS_PROGRAM,
        WritersFailed,
        driver_environment,
        sealed_pipe,
        write_job,
    )

    conn_id = spark
    if _MASTER.match(spark):
        conn_id = _OWN_CONNECTION
        # This process only runs this task, so it may change its environment.
        os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(
            {"conn_type": "spark", "host": spark}
        )
    connection = spark_connection(conn_id)
    binary = connection.extra_dejson.get("spark-binary") or "spark-submit"
    local = (connection.host or "").startswith("local")
    os.environ.update(driver_environment(os.environ, dag_file=dag_file, binary=binary, local=local))
    with tempfile.TemporaryDirectory(prefix="airflow-tx-writers-") as folder:
        write_job(f"{folder}/job", job)
        # The driver must run on this machine, since it is connected through a pipe.
        hook = SparkSubmitHook(
            conn_id=conn_id, name=job.name, application_args=[folder], deploy_mode="client"
        )
        with sealed_pipe(f"{folder}/pipe", sealed):
            try:
                hook.submit(WRITERS_PROGRAM)
                return list(json.loads(Path(folder, "told").read_text()))
            except TxError:
                raise
            except Exception as error:
                reason = str(error).strip().splitlines()
                first = reason[0] if reason else type(error).__name__
                raise WritersFailed(state=state.name, txid=grant.txid, reason=first) from error
            finally:
                with suppress(Exception):
                    hook.on_kill()
