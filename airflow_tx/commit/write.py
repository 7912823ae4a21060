"""How the rows of an update get into its state: by this process, or by Spark's executors; in flat memory either way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_tx.commit.rows import Rows, keyed, portions, rows_of, wanted_columns
from airflow_tx.commit.update import Update
from airflow_tx.errors import ConfigError
from airflow_tx.processing.outputs import is_ref
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.output import output_text
from airflow_tx.staging.files import literal
from airflow_tx.state.api import Grant, StateKind
from airflow_tx.state.arrow import from_arrow, types_of
from airflow_tx.state.persisted import PersistedState
from airflow_tx.state.reducers import has_reducers

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.commit.new_values import Asked
    from airflow_tx.staging import StagingArea

# From here on `writers="auto"` means Spark, if there is one.
LARGE_ROWS = 500_000
LARGE_BYTES = 256 * 2**20
# A state remembers the keys of one write, to find those that come twice: that many.
ROWS_A_WRITE = 100_000
ROWS_A_WRITER = 100_000
MOST_WRITERS = 200


class StagedRows:
    """The rows of one staged output: read anew whenever somebody goes through them, and counted beforehand.

    :raises StagingError: exactly this output is not there whole.
    """

    def __init__(self, area: StagingArea, ref: Mapping[str, Any], state: Any, attempt: TransactionAttempt) -> None:
        from airflow_tx.staging.manifest import open_output

        self._area, self._ref, self._attempt = area, ref, attempt
        self.where, self.output = open_output(area, ref, attempt=attempt)
        self.columns = wanted_columns(state, self.output.columns)
        # Once more, for the columns: the error names those that are missing.
        open_output(area, ref, columns=self.columns, attempt=attempt)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from from_arrow(batch, types_of(batch.schema))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches, in the order of the files and of the rows in them."""
        from airflow_tx.staging import read_batches

        return read_batches(self._area, self._ref, columns=self.columns, attempt=self._attempt)

    def __len__(self) -> int:
        return self.output.rows

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.output.files)

    @property
    def files(self) -> list[str]:
        """Its files, as Spark's readers take them."""
        return [
            literal(self.where.files.spark_uri(f"{self._ref['path']}/{file.name}"))
            for file in self.output.files
            if file.rows
        ]

    def schema(self) -> pa.Schema:
        """The columns and their types, as pyarrow reads them."""
        import pyarrow as pa
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        file = next(file for file in self.output.files if file.rows)
        with self.where.files.open(f"{self._ref['path']}/{file.name}") as opened:
            found = pq.ParquetFile(opened).schema_arrow
        # With their notes: a column of new values may have a type that Arrow has not.
        return pa.schema([found.field(name) for name in self.columns])


def rows_to_write(update: Update, values: list[Any], area: StagingArea, attempt: TransactionAttempt) -> Rows:
    """The rows of an update, as `rows_of` gives them; they can be gone through twice where that is needed.

    :raises StagingError, StateError: see `rows_of`.
    """
    if len(values) == 1 and is_ref(values[0]):
        return StagedRows(area, values[0], update.state, attempt)
    rows = rows_of(update, values, area, attempt)
    again = update.state.kind is StateKind.TRANSACTIONAL or has_reducers(update.state) or update.new_values is not None
    return list(rows) if again else rows


def output_digest(rows: Rows, update: Update) -> str:
    """Keys and deltas as a text, whatever their order: a transactional state needs the same on every replay."""
    # A composite comes as one column or as its parts, and a reducer takes whole rows: then whatever is there.
    columns = update.state.columns
    if columns is None or has_reducers(update.state):
        return output_text(rows, (), ())
    names = () if columns.composites else (*columns.keys, *columns.values)
    doubles = [name for name, aggregator in columns.values.items() if aggregator.type == "double"]
    return output_text(rows, names, doubles)


def fits_one_write(update: Update, rows: Rows) -> bool:
    """Whether these rows go into the state at once, by this process."""
    return not _in_portions(update, rows) and spark_of(update, rows) is None


def write_at_once(update: Update, grant: Grant, rows: Rows, asked: Asked | None = None) -> int:
    """Raise the fence and write, in one store transaction; how many keys.

    :param asked: where new values go.
    :raises StateError, StateUnavailable: see `write_update`.
    """
    return _write_one(update.state, grant, rows, asked, raising=True)


def write_update(
    update: Update, grant: Grant, rows: Rows, *, dag_file: str, log: Any, asked: Asked | None = None
) -> int:
    """Write under a fence that the grant has raised on every state; how many keys.

    :param dag_file: beside it lie modules that a driver on this machine may import.
    :param asked: where new values go.
    :raises StateError, StateUnavailable: what is written counts once, when the commit is tried again.
    :raises WritersFailed: the Spark job ended without an answer; likewise.
    """
    spark = spark_of(update, rows)
    if spark is not None:
        from airflow_tx.commit.spark_writers import write_by_spark

        assert isinstance(rows, StagedRows)
        log.info("State %s: %d rows are written by Spark (%s)", update.state.name, len(rows), shown(spark))
        return write_by_spark(
            update.state, grant, rows, spark, partitions=_partitions(update.state, rows), dag_file=dag_file, asked=asked
        )
    if _in_portions(update, rows):
        assert isinstance(rows, StagedRows)
        return _in_turns(update.state, grant, rows, asked)
    return _write_one(update.state, grant, rows, asked, raising=False)


# --- the choice ---------------------------------------------------------------------------------------------------


def spark_of(update: Update, rows: Rows) -> str | None:
    """By which Spark the rows are written; None: by this process.

    :raises ConfigError: it has to be Spark, and cannot be.
    """
    forced = update.writers == "spark"
    if update.writers == "worker" or (isinstance(rows, list) and not rows):
        return None
    if not forced and not (isinstance(rows, StagedRows) and _is_large(update, rows)):
        return None
    columns = update.state.columns
    if not forced and columns is not None and not columns.keys:
        return None  # one key: this process need not hold its rows, an executor would
    spark = update.spark or getattr(getattr(update.input, "operator", None), "conn_id", None)
    problem = ""
    if not isinstance(rows, StagedRows):
        problem = "Spark writes the staged output of one task; rows that tasks return are combined here"
    elif not len(rows):
        return None
    elif not spark:
        problem = 'there is no Spark: the output is of no Spark task; say which one by spark="spark_default"'
    elif update.state.for_executors() is None:
        problem = f"state {update.state.name!r} takes one writer at a time, as SQLite does"
    if problem and forced:
        raise ConfigError(
            option="persistent_aggregate(writers=)", value="spark", remedy=f"{problem[0].upper()}{problem[1:]}."
        )
    return None if problem else spark


def _is_large(update: Update, rows: StagedRows) -> bool:
    if update.spark_from_rows is not None:
        return len(rows) >= update.spark_from_rows
    return len(rows) >= LARGE_ROWS or rows.size >= LARGE_BYTES


def _in_portions(update: Update, rows: Rows) -> bool:
    return isinstance(rows, StagedRows) and len(rows) > ROWS_A_WRITE and bool(update.state.columns)


def _partitions(state: Any, rows: StagedRows) -> int:
    return min(max(2, math.ceil(len(rows) / ROWS_A_WRITER)), MOST_WRITERS) if state.columns.keys else 1


def shown(spark: str) -> str:
    """A Spark as logs and messages name it: without its parameters, which may be secret."""
    return spark.partition(";")[0]


# --- by this process ----------------------------------------------------------------------------------------------


def _write_one(state: Any, grant: Grant, rows: Rows, asked: Asked | None, *, raising: bool) -> int:
    if asked is not None and isinstance(state, PersistedState):
        emitted = state.updated(grant, rows)
        asked.rows(emitted.new_values)
        return emitted.rows
    given = keyed(rows, state)
    if asked is not None:
        given = list(given)
    written: int = state.raise_and_write(grant, given) if raising else state.write(grant, given)
    if asked is not None:
        asked.keys(state, _keys(state, given), chunk=0)
    return written


def _in_turns(state: Any, grant: Grant, rows: StagedRows, asked: Asked | None) -> int:
    """One chunk after another, each in a store transaction of its own: memory, locks and undo stay small."""
    written = 0
    for chunk, portion in enumerate(portions(rows, state, size=ROWS_A_WRITE)):
        given = portion if asked is None else list(portion)
        written += state.write(grant, given, chunk=chunk, complete=False)
        if asked is not None:
            asked.keys(state, _keys(state, given), chunk=chunk)
    state.write(grant, (), complete=True)
    return written


def _keys(state: Any, rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in state.columns.keys) for row in rows]
