"""Writes the rows of an update into its state: by this process, or by Spark's executors; in flat memory either way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow_tx.commit.rows import RowsToWrite, StagedRows, portions
from airflow_tx.commit.update import Update
from airflow_tx.errors import (
    ConfigError,
    OutputChanged,
)
from airflow_tx.protocol import commit
from airflow_tx.protocol.answers import Granted
from airflow_tx.protocol.attempt import Grant
from airflow_tx.protocol.output import output_text
from airflow_tx.protocol.receipt import Written
from airflow_tx.state.api import FencedState, StateKind
from airflow_tx.state.combined_rows import combined, has_reducers
from airflow_tx.state.persisted import PersistedState
from airflow_tx.state.row_tally import RowTally
from airflow_tx.state.sole_writer import REPLACING

if TYPE_CHECKING:
    from airflow_tx.commit.handoff import NewValuesOutput
    from airflow_tx.protocol.ledger import Ledger

# From here on `writers="auto"` means Spark, if there is one.
LARGE_ROWS = 500_000
LARGE_BYTES = 256 * 2**20
# Rows of one write. A state remembers the keys of one write to find duplicates.
ROWS_A_WRITE = 100_000
ROWS_A_WRITER = 100_000
MOST_WRITERS = 200


def output_digests(updates: Sequence[Update], rows: Sequence[RowsToWrite]) -> dict[str, str]:
    """Digest what is about to be written, by transactional state."""
    pairs = zip(updates, rows, strict=True)
    return {
        each.state.name: output_digest(found, each.state)
        for each, found in pairs
        if each.state.kind is StateKind.TRANSACTIONAL
    }


def output_digest(rows: RowsToWrite, state: FencedState) -> str:
    """Digest keys and deltas, in any order: a transactional state needs the same on every replay."""
    # A composite comes as one column or as its parts, and a reducer takes whole rows. Both take all columns.
    columns = state.columns
    if columns is None or has_reducers(state):
        return output_text(rows, (), ())
    names = () if columns.composites else (*columns.keys, *columns.values)
    doubles = [name for name, aggregator in columns.values.items() if aggregator.type == "double"]
    return output_text(rows, names, doubles)


def take_other_output(
    ledger: Ledger, states: Mapping[str, FencedState], granted: Granted, outputs: Mapping[str, str]
) -> None:
    """Continue with another output than an earlier grant was about to write, if no state holds anything of that.

    A state with a fence decides when the fence is raised. Of a state without one the ledger alone knows the earlier
    output, and what the state holds is asked here.

    :param states: all states of the topology, by name.
    :param outputs: per transactional state, what is about to be written.
    :raises OutputChanged: a state may hold something of the transaction.
    """
    changed = granted.changed
    if not changed:
        return
    grant = granted.grant
    # Once every fence is raised, no earlier grant can write.
    for state in states.values():
        state.raise_fence(grant)
    for name, found in changed.items():
        if states[name].fence() is None and states[name].holds(grant.txid) is not False:
            raise OutputChanged(state=name, txid=grant.txid, digest=outputs[name], found=found)
    ledger.run(commit.take_output, grant.token, {name: outputs[name] for name in changed})


def fits_one_write(update: Update, rows: RowsToWrite) -> bool:
    """Whether these rows go into the state at once, by this process."""
    return not _in_portions(rows, update) and spark_of(update, rows) is None


def whole(update: Update, rows: RowsToWrite) -> RowsToWrite:
    """Read rows once to their end, if they are written in more than one store transaction, and return them.

    :raises RowsDiffer: they are not the emitted ones. For rows of one store transaction it is raised within it.
    """
    if _in_portions(rows, update) and spark_of(update, rows) is None:
        for _ in rows.batches():
            pass
    return rows


def write_at_once(
    update: Update, grant: Grant, rows: RowsToWrite, output: NewValuesOutput | None = None
) -> Written:
    """Raise the fence and write, in one store transaction; what was written. Raises as `write_update`."""
    return _write_one(update.state, grant, rows, output, raising=True)


def write_update(
    update: Update,
    grant: Grant,
    rows: RowsToWrite,
    *,
    dag_file: str,
    log: Any,
    output: NewValuesOutput | None = None,
) -> Written:
    """Write under a fence that the grant has raised on every state; what was written.

    :param dag_file: a driver on this machine may import modules beside it.
    :param output: where new values go.
    :raises StateError, StateUnavailable: what is written counts once, when the commit is tried again.
    :raises WritersFailed: the Spark job ended without an answer; likewise.
    """
    spark = spark_of(update, rows)
    if spark is not None:
        from airflow_tx.commit.spark_writers import spark_label, write_by_spark

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
    return _write_one(update.state, grant, rows, output, raising=False)


def write_instead(
    state: Any, grant: Grant, rows: RowsToWrite, output: NewValuesOutput | None = None
) -> Grant:
    """Replace the values of keys to which one transaction alone has contributed, under a raised fence.

    :return: the grant for the write that follows, and completes it. Raises as `write_update`.
    """
    iterator = iter(rows)
    written = Written()
    count = 0
    while portion := list(islice(iterator, ROWS_A_WRITE)):
        tally = RowTally(portion, state.added_up)
        chunk = REPLACING - count
        written += tally.written(state.write(grant, tally, chunk=chunk, complete=False))
        count += 1
        if output is not None:
            output.keys(state, _keys(state, portion), chunk=chunk)
    return replace(grant, written=written, portions=count) if count else grant


# --- the choice ---------------------------------------------------------------------------------------------------


def spark_of(update: Update, rows: RowsToWrite) -> str | None:
    """Choose the Spark that writes the rows; None: this process does.

    :raises ConfigError: it must be Spark, and cannot be.
    """
    forced = update.writers == "spark"
    if update.writers == "worker" or not rows:
        return None
    if not forced and not (isinstance(rows, StagedRows) and _is_large(update, rows)):
        return None
    columns = update.state.columns
    if not forced and columns is not None and not columns.keys:
        return None  # one key: this process need not hold its rows, an executor would
    spark = update.spark or getattr(getattr(update.input, "operator", None), "conn_id", None)
    problem = ""
    if not isinstance(rows, StagedRows):
        problem = (
            "Spark writes the staged output of one task; rows that tasks return are combined here"
        )
    elif not spark:
        problem = 'there is no Spark: the output is of no Spark task; say which one by spark="spark_default"'
    elif update.state.for_executors() is None:
        problem = f"state {update.state.name!r} takes one writer at a time, as SQLite does"
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
    state: Any, grant: Grant, rows: RowsToWrite, output: NewValuesOutput | None, *, raising: bool
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
    written = tally.written(
        state.raise_and_write(grant, tally) if raising else state.write(grant, tally)
    )
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
            if output is not None:  # once the portion is written
                output.keys(state, _keys(state, given), chunk=chunk)

    return write_portions(state, grant, tallies())


def write_portions(state: Any, grant: Grant, tallies: Iterable[RowTally]) -> Written:
    """Write chunk after chunk, each in a store transaction of its own: memory, locks and undo stay small."""
    written = Written()
    chunk = -1
    for chunk, tally in enumerate(tallies):
        written += tally.written(state.write(grant, tally, chunk=chunk, complete=False))
    # A state without a fence begins with chunk 0.
    whole = replace(grant, written=grant.written + written, portions=grant.portions + chunk + 1)
    state.write(whole, (), chunk=chunk + 1, complete=True)
    return written


def _keys(state: Any, rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in state.columns.keys) for row in rows]
