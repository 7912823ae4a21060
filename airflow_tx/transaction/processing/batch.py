"""The batch of the running task, for Python code, and the readers of earlier tasks' output."""

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

    :param processing: the `Processing` of the running task.
    :param reliable: whether the task must read the whole batch.
    """

    def __init__(self, processing: Processing, *, reliable: bool = True) -> None:
        self._processing = processing
        self._reliable = reliable

    @property
    def txid(self) -> int:
        """Return the txid of the transaction, which a replay keeps."""
        return self._processing.attempt.txid

    @property
    def attempt(self) -> TransactionAttempt:
        return self._processing.attempt

    @property
    def metadata(self) -> Any:
        """Return plain JSON that identifies exactly the rows of the batch."""
        return self._processing.metadata

    def read(self) -> Iterator[Mapping[str, Any]]:
        """Return exactly this transaction's rows, as dicts. An empty batch has no rows.

        The iterator opens the source at the first row, and closes it after the last row.

        :raises SourceError: the source cannot return exactly these rows.
        """
        if self.metadata is None:  # The replay found no rows.
            return iter(())
        form = COUNT if self._processing.source.counts_rows else ""
        return self._reading((), form).passing(self._rows())

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        source = self._processing.emitter()
        try:
            with _refusals(source, "Correct the rows that the source returns."):
                yield from dicts_of(source.emit_batch(self.attempt, self.metadata))
        finally:
            source.close()

    def arrow(self) -> pa.RecordBatchReader:
        """Return exactly this transaction's rows, as a pyarrow RecordBatchReader, which other engines can read.

            rows = current_batch().arrow()
            duckdb.sql("SELECT carrier, count(*) AS flights FROM rows GROUP BY carrier")  # or polars.DataFrame(rows)

        The Parquet file, the SQL table, or the `schema` of the source declares the types. A csv file without a schema
        has text columns. Other columns get a type that fits all their values in the batch. An empty batch has the
        declared columns. If the source declares none, ``rows.schema.names`` is empty.

        A reader returns its rows once. Call this method again to read them again. A query that reads only some rows,
        such as a query with LIMIT, does not count as reading the batch. Use `current_batch(reliable=False)` for it.

        :raises SourceError: the source cannot return exactly these rows.
        """
        import pyarrow as pa

        from airflow_tx.transaction.processing.consumed_rows import ArrowReading

        source = self._processing.emitter()
        with _refusals(source):
            reader = self._reader(source)
            # Read the first batch in this thread, which can look up Airflow connections. An engine
            # reads in other threads.
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
        """Create a message for work that leaves the DAG.

        The transaction is committed only after the message, and every message made from it, is acked.

            queue.push(json.dumps([current_batch().emit(), row]))

        :param tracked: whether the commit waits for the message.
        :return: the reference of the message, for `airflow_tx.acks.Collector.process`.
        :raises TransactionDefinitionError: the transaction has no ackers, or does not wait for this task.
        """
        return self.emit_many(1, tracked=tracked)[0]

    def emit_many(self, count: int, *, tracked: bool = True) -> list[str]:
        """Create several messages in one request. See `emit`.

        :param count: the number of messages.
        """
        return self._processing.messages.emit(count, tracked=tracked)

    def stage(self, rows: Any, name: str = "rows") -> dict[str, Any]:
        """Write rows to the staging area, for downstream tasks and Spark applications.

            @task
            def extract():
                return current_batch().stage(orders)

            SparkBatchOperator(task_id="sum_up", application="sum_up.py", inputs={"orders": extract()})

        If a task of the block returns a frame, alone or among multiple outputs, the frame is staged automatically.

        :param rows: dicts, or a frame of pandas, polars, DuckDB or pyarrow. Pass a frame if there may be no rows and a
            Spark application needs the columns. A missing key of a dict and a pandas NaN become NULL. Each named level
            of a pandas index becomes a column. A stream, such as a pyarrow.RecordBatchReader, is never completely in
            memory.
        :param name: the name of the output. Each output of a task needs a different name.
        :return: the reference to the rows. Return it from the task.
        :raises StagingError: a column type would change a value, or the task has already staged an output with this
            name.
        """
        return self._processing.stage(rows, name)

    def reject(self, rows: Any, reason: str) -> None:
        """Reject rows. The commit appends them to the `rejected` table of the `Transaction`.

            for row in current_batch().read():
                if row["amount"] is None:
                    current_batch().reject(row, "no amount")

        The rejected rows are an output of this try. A failed try or a skipped transaction appends no rejected rows.

        :param rows: rows as for `stage`, or a single dict, text, named tuple or pandas row from `iterrows`.
        :param reason: the reason for the rejection. Rows with the same reason are counted together.
        :raises StagingError: the transaction has no `rejected` table, or does not wait for this task, or the reason is
            empty.
        """
        where = self._processing.where
        check_rejects(where, reason, kept=self._processing.keeps_rejected)
        self._processing.rejected += rejected_rows(where, rows, reason)

    def read_output(self, ref: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the rows of a task's output, or of the new values of a committer, as dicts.

            @task
            def report(ref):  # report(commit.output["totals"])
                for row in current_batch().read_output(ref): ...

        :param ref: ``task.output["name"]``, as an argument of the task.
        :raises StagingError: the output is incomplete or changed, or the new values are no longer kept.
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


_DECLARE = "Declare the types of the columns, or read the rows with read()."


@contextmanager
def _refusals(source: Source, remedy: str = _DECLARE) -> Iterator[None]:
    """Replace errors from Arrow and other libraries with errors of the source.

    :raises RowsRefused: the rows do not fit a record batch. A retry would read the same rows.
    :raises SourceError: the rows cannot be read now. A retry may succeed.
    """
    try:
        with NoTable.of_libraries():
            yield
    except NoTable as error:
        if error.passes:
            again = "Clear the task when the rows can be read."
            raise source.refused(f"its rows cannot be read now ({error})", again) from error
        raise source.rows_refused(str(error), error.remedy or remedy, error.place) from error


def current_batch(*, reliable: bool = True) -> CurrentBatch:
    """Return the batch of the running task.

    :param reliable: whether the commit requires that the task reads each row of its batch and inputs exactly once.
        With False, the task may leave out rows, or read rows twice.
    :raises AirflowFailException: `begin` of the run has stored no transaction.
    """
    return CurrentBatch(Processing.current(), reliable=reliable)


def locate_output(
    spec: TransactionSpec, ref: Any, begun: Begun
) -> tuple[StagingArea, Mapping[str, Any], TransactionAttempt | None]:
    """Return the staging area of an output, the reference to read, and the attempt of the output.

    A committer may have written its new values again since it pushed `ref`. So the newest values are returned,
    regardless of their attempt.

    :param ref: the reference that the reading task received.
    :param begun: the attempt of the reading task.
    :raises StagingError: the value is not a reference, or the new values are no longer kept.
    """
    from airflow_tx.spark import are_new_values, newest_of
    from airflow_tx.transaction.processing.outputs import is_ref

    area = spec.staging().of_topology(begun.incarnation)
    attempt = begun.attempt
    if not is_ref(ref):
        problem = f"it is not a reference ({str(ref)[:120]})"
        remedy = (
            'Pass the output of a task, task.output["name"]; '
            "a @task has one if it returns current_batch().stage(rows)."
        )
        raise _refused(attempt, "?", "?", problem, remedy)
    if not are_new_values(ref):
        return area, ref, attempt
    found = newest_of(area.kept, ref)
    if found is None:
        remedy = "Query the state itself. [tx] keep_new_values is the number of transactions whose new values are kept."
        raise _refused(
            attempt, ref["name"], ref["task_id"], "these new values are no longer kept", remedy
        )
    return area.kept, found.to_json(), None


def rows_of_output(spec: TransactionSpec, ref: Any, begun: Begun) -> Iterator[dict[str, Any]]:
    """Read the rows of an output, or of new values, as dicts. The output is checked before the first row.

    :raises StagingError: the output is incomplete or changed.
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
    """Describe and check the inputs of an application, by name. An error then fails the task before Spark starts.

    :param inputs: the reference of each input. For a mapped task, the input is a list with the references of all
        instances.
    :raises StagingError: an output is incomplete or changed.
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
    """Return the names of the acked outputs that a task reads as one input, or () for new values, which have no ack."""
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
