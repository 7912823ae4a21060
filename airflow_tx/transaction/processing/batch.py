"""The batch of the running task, for Python code, and the output of earlier tasks that a task reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from airflow_tx.base.errors import StagingError
from airflow_tx.base.rows import NoTable, dicts_of, reader_of_dicts
from airflow_tx.ledger import COUNT, Begun, OutputName, TransactionAttempt, content_of
from airflow_tx.outputs import (
    Input,
    StagingArea,
    batches_of,
    check_readable,
    check_rejects,
    open_output,
    rejected_rows,
    rows_from_json,
)
from airflow_tx.transaction.processing.task import Processing

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.sources import Source
    from airflow_tx.transaction.processing.consumed_rows import RowsReading
    from airflow_tx.transaction.spec import TransactionSpec


class CurrentBatch:
    """The batch of the running task's transaction, for Python code.

    :param reliable: whether the task must read the whole batch.
    """

    def __init__(self, processing: Processing, *, reliable: bool = True) -> None:
        self._processing = processing
        self._reliable = reliable

    @property
    def txid(self) -> int:
        """The number of the transaction, the same however often the batch is replayed."""
        return self._processing.attempt.txid

    @property
    def attempt(self) -> TransactionAttempt:
        return self._processing.attempt

    @property
    def metadata(self) -> Any:
        """Plain JSON that says exactly which rows the batch has."""
        return self._processing.metadata

    def read(self) -> Iterator[Mapping[str, Any]]:
        """Exactly this transaction's rows, as dicts; none if the batch is empty.

        The source is asked when the first row is taken, and closed after the last one.

        :raises SourceError: if the source cannot give exactly these.
        """
        if self.metadata is None:  # a replay that found no rows
            return iter(())
        form = COUNT if self._processing.source.counts_rows else ""
        return self._reading((), form).passing(self._rows())

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        source = self._processing.emitter()
        try:
            with _refusals(source, "Correct what the source gives."):
                yield from dicts_of(source.emit_batch(self.attempt, self.metadata))
        finally:
            source.close()

    def arrow(self) -> pa.RecordBatchReader:
        """Exactly this transaction's rows, as a reader of record batches of pyarrow, which other engines read.

            rows = current_batch().arrow()
            duckdb.sql("SELECT carrier, count(*) AS flights FROM rows GROUP BY carrier")  # or polars.DataFrame(rows)

        Types are declared: of a Parquet file or a SQL table, or by the `schema` of the source. A csv file without one
        has texts. Where no one has declared the columns, they have the types that hold all values of the batch. A batch
        without rows has the columns that the source knows; if it knows none, ``rows.schema.names`` is empty.

        An engine takes the rows once: call it again for another reading. A query that takes a part of them,
        such as one with LIMIT, has not read the batch; `current_batch(reliable=False)` says that this is meant.

        :raises SourceError: if the source cannot give exactly these.
        """
        import pyarrow as pa

        from airflow_tx.transaction.processing.consumed_rows import ArrowReading

        source = self._processing.emitter()
        with _refusals(source):
            reader = self._reader(source)
            # In this thread, where connections are looked up: an engine reads in threads of its own.
            first = list(islice(reader, 1))
        reading = ArrowReading(source.malformed_rows, COUNT if source.counts_rows else "")
        self._readings.append(reading)
        batches = self._batches(source, chain(first, reader))
        return pa.RecordBatchReader.from_batches(reader.schema, reading.passing(batches))

    def _reader(self, source: Source) -> pa.RecordBatchReader:
        if self.metadata is not None:
            return source.emit_arrow(self.attempt, self.metadata)
        position = self._processing.begun.position
        return reader_of_dicts((), source.types_without_rows(self.attempt, position))

    def _batches(
        self, source: Source, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        try:
            with _refusals(source):
                yield from batches
        except Exception as error:
            self._processing.broken = error
            raise
        finally:
            source.close()

    def emit(self, *, tracked: bool = True) -> str:
        """Make a message for work that leaves the DAG: the transaction is not committed before it, and every message
        made of it, is acked.

            queue.push(json.dumps([current_batch().emit(), row]))

        :param tracked: False: nothing waits for it.
        :return: its reference, for `airflow_tx.acks.Collector.process`.
        :raises TransactionDefinitionError: the transaction has no ackers, or does not wait for this task.
        """
        return self.emit_many(1, tracked=tracked)[0]

    def emit_many(self, count: int, *, tracked: bool = True) -> list[str]:
        """Make so many messages in one request; as `emit`."""
        return self._processing.messages.emit(count, tracked=tracked)

    def stage(self, rows: Any, name: str = "rows") -> dict[str, Any]:
        """Write rows to the staging area, for the tasks and Spark applications behind this task.

            @task
            def extract():
                return current_batch().stage(orders)

            SparkBatchOperator(task_id="sum_up", application="sum_up.py", inputs={"orders": extract()})

        A frame that a task of the block returns, also as one of multiple outputs, is staged so by itself.

        :param rows: dicts, or a frame of pandas, polars, DuckDB or pyarrow; a frame if there may be no rows and a Spark
            application needs their columns. A key that a dict lacks is NULL, as is NaN of pandas. Of a pandas index,
            each level with a name is a column. A stream, such as a pyarrow.RecordBatchReader, is never whole in memory.
        :param name: of the output; a task that stages several outputs gives each its own name.
        :return: the reference to the rows, which the task returns.
        :raises StagingError: a column would change a value, or the task has staged an output of this name before.
        """
        return self._processing.stage(rows, name)

    def reject(self, rows: Any, reason: str) -> None:
        """Keep rows aside: the commit appends them to the `rejected` table of the `Transaction`.

            for row in current_batch().read():
                if row["amount"] is None:
                    current_batch().reject(row, "no amount")

        The rows are one more output of this try: a failed try and a skipped transaction leave none.

        :param rows: as for `stage`, or one dict, text, named tuple or row of pandas, as `iterrows` gives it.
        :param reason: why; rows with one reason are counted together.
        :raises StagingError: the transaction has no such table, or does not wait for this task; or the reason is empty.
        """
        where = self._processing.where
        check_rejects(where, reason, kept=self._processing.keeps_rejected)
        self._processing.rejected += rejected_rows(where, rows, reason)

    def read_output(self, ref: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The rows of a task's output, or of the new values of a committer, as dicts.

            @task
            def report(ref):  # report(commit.output["totals"])
                for row in current_batch().read_output(ref): ...

        :param ref: ``task.output["name"]``, as an argument of the task.
        :raises StagingError: exactly this output is not there whole, or the new values are not kept any more.
        """
        rows = rows_of_output(self._processing.spec, ref, self._processing.begun)
        outputs = output_names(ref)
        return self._reading(outputs, COUNT).passing(rows) if outputs else rows

    def _reading(self, outputs: tuple[OutputName, ...] = (), form: str = "") -> RowsReading:
        from airflow_tx.transaction.processing.consumed_rows import PYTHON, RowsReading

        reading = RowsReading(outputs, form or PYTHON)
        self._readings.append(reading)
        return reading

    @property
    def _readings(self) -> list[Any]:
        return self._processing.read if self._reliable else self._processing.looked


_DECLARE = "Declare the types of the columns, or take the rows by read()."


@contextmanager
def _refusals(source: Source, remedy: str = _DECLARE) -> Iterator[None]:
    """Refuse rows that no record batch holds unchanged, or that a library does not give.

    :raises RowsRefused: another try has the same ones; SourceError: it may have them.
    """
    try:
        with NoTable.of_libraries():
            yield
    except NoTable as error:
        if error.passes:
            again = "Clear the task once they can be read."
            raise source.refused(f"its rows cannot be read now ({error})", again) from error
        raise source.rows_refused(str(error), error.remedy or remedy, error.place) from error


def current_batch(*, reliable: bool = True) -> CurrentBatch:
    """Return the batch of the task that is running.

    :param reliable: False: the task may read some rows of its batch and inputs only, or some twice; otherwise the
        transaction is not committed then.
    :raises AirflowFailException: `begin` of its run has not given it a transaction.
    """
    return CurrentBatch(Processing.current(), reliable=reliable)


def locate_output(
    spec: TransactionSpec, ref: Any, begun: Begun
) -> tuple[StagingArea, Mapping[str, Any], TransactionAttempt | None]:
    """Find the place of a named output, the reference that counts, and its attempt.

    A committer may have written again since it gave its new values: then the newest ones count, of any attempt.

    :param begun: the attempt that the reader works on.
    :raises StagingError: it is no reference, or the new values are not kept any more.
    """
    from airflow_tx.spark import are_new_values, newest_of
    from airflow_tx.transaction.processing.outputs import is_ref

    area = spec.staging().of_topology(begun.incarnation)
    attempt = begun.attempt
    if not is_ref(ref):
        problem = f"it is no reference ({str(ref)[:120]})"
        remedy = (
            'Pass the output of a task, task.output["name"]; '
            "a @task has one if it returns current_batch().stage(rows)."
        )
        raise _refused(attempt, "?", "?", problem, remedy)
    if not are_new_values(ref):
        return area, ref, attempt
    found = newest_of(area.kept, ref)
    if found is None:
        remedy = "Ask the state itself; [tx] keep_new_values says for how many transactions they are kept."
        raise _refused(attempt, ref["name"], ref["task_id"], "they are not kept any more", remedy)
    return area.kept, found.to_json(), None


def rows_of_output(spec: TransactionSpec, ref: Any, begun: Begun) -> Iterator[dict[str, Any]]:
    """Read the rows of an output, or of new values, as dicts; it is checked before the first one.

    :raises StagingError: exactly this output is not there whole.
    """
    from airflow_tx.state import from_arrow

    area, found, of = locate_output(spec, ref, begun)
    where, output = open_output(area, found, attempt=of)
    check_readable(where, found["name"], output)
    if output.content:
        return rows_from_json(output.content)
    batches = batches_of(where, found["name"], output)
    return (row for batch in batches for row in from_arrow(batch))


def inputs_of(spec: TransactionSpec, inputs: Mapping[str, Any], begun: Begun) -> dict[str, Input]:
    """Describe what an application reads as inputs, by name; checked here, where a refusal is the task's own.

    :param inputs: references; of a mapped task, of all its instances.
    :raises StagingError: exactly these outputs are not there whole.
    """
    return {name: _input(spec, value, begun) for name, value in inputs.items()}


def _input(spec: TransactionSpec, value: Any, begun: Begun) -> Input:
    single = isinstance(value, (str, Mapping)) or not isinstance(value, Iterable)
    files = list[str]()
    columns = tuple[str, ...]()
    rows = 0
    refs = [value] if single else list(value)
    for ref in refs:
        area, found, of = locate_output(spec, ref, begun)
        where, output = open_output(area, found, attempt=of)
        check_readable(where, found["name"], output)
        columns = columns or output.columns
        files += [where.files.spark_uri(f"{found['path']}/{file.name}") for file in output.files]
        rows += output.rows
    return Input(tuple(files), columns, output_names(*refs), rows)


def output_names(*refs: Mapping[str, Any]) -> tuple[OutputName, ...]:
    """Name the outputs that are read as one; none, if new values are among them, which no task has acked."""
    from airflow_tx.spark import are_new_values

    if any(are_new_values(ref) for ref in refs):
        return ()
    return tuple(
        OutputName(ref["task_id"], ref["map_index"], ref["name"], content_of(ref)) for ref in refs
    )


def _refused(
    attempt: TransactionAttempt, output: str, task: str, problem: str, remedy: str
) -> StagingError:
    return StagingError(
        output=output,
        task=task,
        txid=attempt.txid,
        attempt=attempt.attempt,
        problem=problem,
        remedy=remedy,
    )
