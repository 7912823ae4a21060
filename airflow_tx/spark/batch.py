"""The batch of a Spark application: the rows to read, and the outputs to emit."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow_tx.base.errors import (
    AckersUnavailable,
    ConfigError,
    FailedBatch,
    MessageError,
    StateError,
    TxError,
)
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import (
    check_settings,
    column_name,
    ddl_of,
    dicts_of,
    python_frame,
    spark_reader,
)
from airflow_tx.ledger import (
    MALFORMED,
    REJECTED,
    RowsDigest,
    RowsRead,
    TransactionAttempt,
    consumed,
)
from airflow_tx.outputs import (
    AppendTo,
    Descriptor,
    Output,
    OutputRef,
    RowsInTable,
    StagingArea,
    check_name,
    check_own_name,
    check_rejects,
    dir_of,
    literal,
    refuse,
    row_aside,
    scan_output,
    spark_uri,
    stage_rejected,
    with_content,
    write_manifest,
    write_rows,
)
from airflow_tx.sources import BatchStaging, MalformedRow, Source, fails, rebuild
from airflow_tx.spark.new_values import hidden_in, pickled, revealed
from airflow_tx.spark.observed import RowsObserver, is_connect
from airflow_tx.state import (
    REJECTED_COLUMNS,
    STATE_TYPES,
    TXID,
    MapGet,
    Misfit,
    QueryableState,
    QueryFunction,
    check_columns,
    empty_in,
    for_readers,
    from_arrow,
    resolved_state,
    results_of,
    staged_folder,
    state_of,
    to_arrow,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame, SparkSession, functions as F
    from pyspark.sql.types import StructType

    from airflow_tx.outputs import AckerStore, TaskEmitter
else:
    F = LazyModule("pyspark.sql.functions")
    pa = LazyModule("pyarrow")


_SHARED = "[tx] staging must be storage that the task, the driver and all executors share."


# --- batch --------------------------------------------------------------------------------------------------------


class Batch:
    """The rows of one transaction, for the function decorated with `batch_app`.

    :param descriptor: the descriptor of the batch.
    :param spark: the Spark session.
    :param args: further arguments of the application.
    :param small: names of the outputs that had few rows in the previous batch, if they are known. The batch updates
        this set.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        spark: SparkSession,
        args: Sequence[str] = (),
        small: set[str] | None = None,
    ) -> None:
        self.descriptor = descriptor
        self.args = tuple(args)
        # The number of rows read. An application sets it if its Spark jobs cannot count them.
        self.consumed_rows: int | None = None
        self._spark = spark
        self._small = set() if small is None else small
        self._where = dir_of(StagingArea(descriptor.root), descriptor)
        self._outputs: dict[str, Output] = {}
        self._source: Source | None = None
        self._observer = RowsObserver()
        self._messages: TaskEmitter | None = None
        self._staged: list[BatchStaging] = []
        self._met: list[MalformedRow] = []

    def __str__(self) -> str:
        return str(self.descriptor)

    @property
    def txid(self) -> int:
        """Return the txid of the transaction, which a replay keeps."""
        return self.descriptor.attempt.txid

    @property
    def attempt(self) -> TransactionAttempt:
        return self.descriptor.attempt

    @property
    def metadata(self) -> Any:
        """Return plain JSON that identifies exactly the rows of the batch."""
        return self.descriptor.metadata

    def read(self, *columns: str) -> DataFrame:
        """Read exactly this transaction's rows. Spark counts and digests them when it writes an output.

        :param columns: the columns to read; default: all columns. The digest covers these columns. Rows of files are
            only counted, since the metadata of the batch has the digest of the files.
        :raises SourceError: the source cannot return exactly these rows.
        """
        if self._source is None:
            self._source = rebuild(*self.descriptor.source).named(self.descriptor.topology)
        frame, rows = self._emitted(self._source, columns)
        hashed = () if self._source.counts_rows else None
        given = frame.select(*columns) if columns else frame
        return self._observer.reading(given, columns=hashed, rows=rows)

    def _emitted(self, source: Source, columns: Sequence[str]) -> tuple[DataFrame, int | None]:
        """Return the rows of the batch, and their number if it is known, as for staged rows and Python rows."""
        for staged in self._staged:
            if staged.has(columns):
                return staged.read(self._spark), staged.rows
        staging = BatchStaging(self._where.files, self._where.child(""), columns)
        with staging.as_current():
            rows = source.emit_batch(self.attempt, self.metadata, self._spark)
        self._met = staging.malformed
        if hasattr(rows, "write"):
            frame = cast("DataFrame", rows)
            if frame is not staging.frame:
                return frame, None
            self._staged.append(staging)
            return frame, staging.rows
        # A source without Spark support returns Python rows.
        given = [dict(row) for row in dicts_of(rows)]
        return python_frame(self._spark, given), len(given)

    def _asked(self, read: RowsRead) -> RowsRead:
        """If a reading stopped early, read one more row to find out whether it covers the whole batch."""
        if read.outputs or read.more or not read.stopped or self._source is None:
            return read
        rows = read.found.rows
        more = self._emitted(self._source, ())[0].limit(rows + 1).count() > rows
        return replace(read, stopped=more, more=more)

    def read_input(self, name: str) -> DataFrame:
        """Read the output of an earlier task, or the new values of a committer.

        A numeric or json column of new values is text. Use CAST or from_json to convert it.

        :param name: the name of the input in the operator's argument ``inputs={"name": other.output["counts"]}``.
        :raises ConfigError: the operator has no input with this name.
        """
        if name not in self.descriptor.inputs:
            known = ", ".join(self.descriptor.inputs) or "none"
            remedy = (
                f'It has {known}. Give the operator inputs={{"{name}": other.output["counts"]}}.'
            )
            raise ConfigError(option="batch.read_input(name)", value=name, remedy=remedy)
        found = self.descriptor.inputs[name]
        if found.files:
            frame = spark_reader(self._spark, "parquet").load([*map(literal, found.files)])
            if not found.outputs:
                return frame
            return self._observer.reading(frame, found.outputs, rows=found.rows)
        # The output has no rows, so the types of its columns are unknown.
        return self._spark.createDataFrame(
            [], ", ".join(f"`{column}` string" for column in found.columns)
        )

    def look_up(
        self,
        state: Any,
        frame: DataFrame,
        *,
        query: QueryFunction[Any, Any] | None = None,
        fields: str | None = None,
    ) -> DataFrame:
        """Add columns with values from a state to rows (Trident's stateQuery).

        Executors query the state in Arrow batches.

            named = batch.look_up(carriers, flights)              # adds the value columns
            located = batch.look_up(StaticState(LocationDBFactory()), rows, query=QueryLocation(), fields="at string")

        The query sees the state as of the moment when Spark processes a row. Other transactions may commit during the
        job.

        :param state: a state with columns, a map, a StateFactory, a StaticState, or your own state. The driver looks up
            its connection. Executors get the address and the password in a form that no plan and no log shows.
        :param frame: the rows.
        :param query: the query function, or None for `MapGet()`. Your own function gets all columns of the rows.
        :param fields: the added columns, as DDL. You can omit them for a state with columns, whose numeric and json
            columns are added as text.
        :raises ConfigError: executors cannot read the state, or columns are missing, or a column already exists.
        """

        return look_up(self._spark, state, frame, query, fields)

    def emit(self, name: str, df: DataFrame, *, reliable: bool = True) -> None:
        """Write an output of this batch, in one Spark job. Readers see the output when the application succeeds.

        If the committer appends the output to a table, Spark writes it to the table's folder.

        :param name: the name of the output. Committers and tasks read the output as ``task.output[name]``.
        :param df: the rows.
        :param reliable: whether a reader of the output must read each row exactly once.
        :raises StagingError: the name cannot be used, or was used before, or this process does not find the written
            rows.
        """
        check_own_name(self._where, name)
        self._emit(name, df, reliable=reliable)

    def reject(self, df: DataFrame, reason: str | Column) -> None:
        """Reject rows, in one Spark job. The commit appends them to the `rejected` table of the `Transaction`.

            rows = batch.read()
            batch.reject(rows.where("amount IS NULL"), "no amount")

        :param df: the rows, with all columns that the table must contain.
        :param reason: the reason for the rejection, as a text or a column of `df`. Rows with the same reason are
            counted together.
        :raises StagingError: the transaction has no `rejected` table, or does not wait for this task, or the reason is
            empty.
        """
        check_rejects(self._where, reason, kept=self.descriptor.keeps_rejected)
        number = sum(name.startswith(REJECTED) for name in self._outputs)
        name = f"{REJECTED}.{number}" if number else REJECTED
        self._emit(name, _rejected(df, reason, str(self.descriptor.task)))

    def _emit(self, name: str, df: DataFrame, *, reliable: bool = True) -> None:
        folder = check_name(self._where, name)
        check_settings(self._spark)
        if name in self._outputs:
            problem = "the application emitted it twice"
            raise refuse(
                self._where,
                name,
                problem,
                "Use another name for each output, or union the DataFrames.",
            )
        if name in self.descriptor.appended:
            self._outputs[name] = replace(self._append(name, df), reliable=reliable)
            return
        if name in self._small and is_connect(df):
            # For a small batch, writing a file takes half of Spark's time, so this process writes
            # the rows.
            written, table = self._observer.fetch(df)
            output = write_rows(self._where, name, table)
        else:
            # Only this try writes to the folder. A driver that a cluster restarted may have left
            # files there.
            written = self._observer.write(df, self._where.files.spark_uri(folder))
            output = scan_output(self._where, name)
        if output.rows != written.rows:
            # Executors that write to their own disks leave this folder empty, although Spark
            # reports success.
            problem = f"Spark wrote {written.rows} rows, but only {output.rows} are in {self._where.files.uri(folder)}"
            raise refuse(self._where, name, problem, _SHARED)
        output = replace(output, row_digest=written.text if reliable else "", reliable=reliable)
        self._outputs[name] = output = with_content(self._where, name, output)
        (self._small.add if output.content else self._small.discard)(name)

    def _append(self, name: str, df: DataFrame) -> Output:
        to = self.descriptor.appended[name]
        # The folder needs a unique name, since all tasks of a lane have the same try, and a lost
        # driver may still write.
        folder = staged_folder(self.attempt, uuid.uuid4().hex)
        try:
            return write_appended(self._observer, df, to, folder, self.txid)
        except Misfit as error:
            remedy = error.remedy or "Change its rows before batch.emit."
            raise refuse(self._where, name, str(error), remedy) from None

    def emit_messages(self, count: int, *, tracked: bool = True) -> list[str]:
        """Create messages for work that leaves the DAG, as `current_batch().emit_many` does in a Python task.

            rows = batch.read().collect()
            for row, reference in zip(rows, batch.emit_messages(len(rows))):
                queue.push(json.dumps([reference, row["sentence"]]))

        Call this method in the driver, and not in functions that executors run. After an application has emitted
        messages, it is not retried, since workers may have taken the messages. Its run is replayed instead.

        :param count: the number of messages.
        :param tracked: whether the commit waits for the messages.
        :return: the references of the messages, for `airflow_tx.acks.Collector.process`.
        :raises TransactionDefinitionError: the transaction has no ackers, or does not wait for this task.
        :raises FailedBatch: the ackers refuse the messages permanently, so a retry does not help.
        :raises AckersUnavailable: the ackers cannot be reached.
        """
        if self._messages is None:
            self._messages = _emitter_of(self.descriptor)
        try:
            return self._messages.emit(count, tracked=tracked)
        except AckersUnavailable:
            raise
        except MessageError as error:
            raise FailedBatch(str(error)) from error

    def finish(self, app: str, code: str) -> dict[str, OutputRef]:
        """Make all emitted outputs visible. This is the last step of an application.

        :param app: the name of the application, for error messages.
        :param code: the digest of the application's code.
        :return: references to the outputs, by name.
        :raises StagingError: the application emitted no output and no messages, and read no inputs.
        :raises SourceError: the rows were replaced while the application read them.
        """
        trees = 0 if self._messages is None else self._messages.trees
        if not self._outputs and not self.descriptor.inputs and not trees:
            problem = f"application {app} emitted nothing"
            raise refuse(
                self._where,
                "*",
                problem,
                'Call batch.emit("counts", df). The DataFrame may be empty.',
            )
        read = [*map(self._asked, self._observer.read())]
        if self._met:
            rows = [row_aside("", each.reason, each.where, each.content) for each in self._met]
            self._outputs[MALFORMED] = stage_rejected(self._where, MALFORMED, rows)
            read = [each if each.outputs else _with_rows(each, len(rows)) for each in read]
        if self._source is not None:
            # No later job will read the source.
            self._source.check_read(self.attempt)
        unproven = self._observer.unproven()
        if self.consumed_rows is not None:
            unproven.pop((), None)
            read = [
                RowsRead(RowsDigest(self.consumed_rows)),
                *(each for each in read if each.outputs),
            ]
        number = consumed(read)
        return write_manifest(
            self._where,
            self._outputs,
            consumed_rows=number,
            read=read,
            code=code,
            trees=trees,
            unproven=[*unproven.values()],
        )

    def explain_error(self, error: Exception) -> TxError | None:
        """Return the cause of an application's error, or None if the source does not know it."""
        if self._source is None:
            return None
        for staged in self._staged:
            if staged.is_lacked(error):
                problem = f"Spark does not find the rows of the batch in {staged}"
                return self._source.refused(problem, _SHARED)
        return self._source.explain_error(self.attempt, error)

    def close(self) -> None:
        """Close the source, and close the connection to the ackers."""
        self._observer.close()
        if self._messages is not None:
            self._messages.close()
        if self._source is not None:
            self._source.close()


def _with_rows(read: RowsRead, count: int) -> RowsRead:
    """Count the rows that the source has read for an application as part of a reading."""
    return replace(read, found=read.found + RowsDigest(count))


def _emitter_of(descriptor: Descriptor) -> TaskEmitter:
    """Create the emitter for the messages of an application.

    The messages belong to the try that runs the application.
    """
    from airflow_tx.outputs import TaskEmitter, open_ackers, origin_of

    ackers = descriptor.ackers
    origin = origin_of(descriptor.topology, descriptor.attempt, descriptor.incarnation)
    emitter = partial(TaskEmitter, origin, descriptor.task)
    if ackers is None:
        return emitter(None, _nowhere)
    return emitter(
        ackers.count,
        lambda: closing(open_ackers(ackers.conn_id, root=ackers.root)),
        anchored=ackers.anchored,
    )


def _nowhere() -> closing[AckerStore]:
    raise AssertionError("a transaction without ackers must not connect to an acker store")


def _rejected(df: DataFrame, reason: str | Column, task: str) -> DataFrame:
    """Return rejected rows with the same columns as in Python tasks.

    The location is empty, since Spark does not know it.
    """
    text = (F.lit(reason) if isinstance(reason, str) else reason).cast("string")
    empty = F.when(
        F.coalesce(F.trim(text), F.lit("")) == "", F.lit("airflow_tx: a reason is empty")
    )
    row = F.struct(*(F.col(column_name(name)) for name in df.columns))
    content = F.to_json(row, {"ignoreNullFields": "false"})
    return _aside(df.where(fails(empty)), F.lit(task), text, content)


def _aside(df: DataFrame, task: Column, reason: Column, content: Column) -> DataFrame:
    named = zip(REJECTED_COLUMNS, (task, reason, F.lit(""), content), strict=True)
    escaped = F.lit("\\x00")  # Some tables cannot store NUL.
    return df.select(*(F.replace(each, F.lit("\0"), escaped).alias(name) for name, each in named))


# --- appended -----------------------------------------------------------------------------------------------------
# The commit appends this output to a table. Executors write the rows as Parquet to the folder of
# the table.


# Formats that every reader of a Delta table accepts. For this write, they override the options of
# the session.
_OPTIONS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "partitionOverwriteMode": "static",
}


def write_appended(
    observer: RowsObserver, df: DataFrame, to: AppendTo, folder: str, txid: int
) -> Output:
    """Write rows in one Spark job. The task that submitted the application lists their files later.

    :param to: the table and its partitioning.
    :param folder: the folder of the files, relative to the table.
    :param txid: the value of the txid column.
    :raises Misfit: a Delta table cannot store these rows.
    """
    fields = df.schema.jsonValue()["fields"]
    check_columns(fields, to.partition_by)
    by_name = {each["name"]: each for each in fields}

    def write(rows: DataFrame) -> None:
        # Only this job writes to the folder.
        writer = rows.write.mode("overwrite").options(**_OPTIONS).partitionBy(*to.partition_by)
        writer.parquet(spark_uri(f"{to.uri}/{folder}"))

    for name in to.partition_by:
        if by_name[name]["type"] == "string":
            problem = F.when(F.col(column_name(name)) == "", F.lit(f"airflow_tx: {empty_in(name)}"))
            df = df.where(fails(problem))
    numbered = df.withColumn(TXID, F.lit(txid).cast("bigint"))
    written = observer.save(numbered, df.columns, write)
    partition = tuple(by_name[name] for name in to.partition_by)
    rows = RowsInTable(to.uri, folder, written.rows, written.text, partition)
    return Output((), tuple(df.columns), appended=rows)


# --- lookup -------------------------------------------------------------------------------------------------------
# Add values from a state to the rows of a DataFrame. Executors query the state. Source: Trident's
# stateQuery.


_OPTION = "batch.look_up"


def look_up(
    spark: SparkSession,
    state: Any,
    frame: DataFrame,
    query: QueryFunction[Any, Any] | None = None,
    fields: str | None = None,
) -> DataFrame:
    """Add columns with values from a state to rows. See `Batch.look_up`."""
    state = state_of(state)
    function = MapGet() if query is None else query
    types = _types(state, function) if fields is None else None
    added = _struct(spark, fields if fields is not None else _ddl(types or {}))
    known = {name.lower() for name in frame.columns}
    if twice := sorted(name for name in added.names if name.lower() in known):
        remedy = "Drop or rename the column before the look-up, or select values with MapGet(values=[...])."
        raise ConfigError(
            option=f"{_OPTION}(frame)",
            value=twice,
            remedy=f"The DataFrame already has a column with this name. {remedy}",
        )
    asked = _asked(state, function, frame)
    told = (
        _for_executors(spark, state),
        function,
        asked,
        types,
        None if types is not None else _plain_types(added),
    )
    salt, hidden = hidden_in(spark, pickled(told))

    def answer(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from answered(salt, hidden, batches)

    from pyspark.sql.types import StructType

    return frame.mapInArrow(answer, StructType([*frame.schema.fields, *added.fields]))


# --- in the driver ------------------------------------------------------------------------------------------------


def _for_executors(spark: SparkSession, state: Any) -> Any:
    """Return a copy of the state for executors. It contains the address and the password, but no open connection."""
    local = str(spark.conf.get("spark.master", "")).startswith("local")
    copied = for_readers(state, local=local)
    if copied is None:
        remedy = (
            f"Executors cannot read {state.name!r}: use state_query in a @task, or keep the state on a database "
            "server."
        )
        raise ConfigError(option=f"{_OPTION}(state)", value=type(state).__name__, remedy=remedy)
    return copied


def _asked(state: Any, function: Any, frame: DataFrame) -> list[str]:
    """Return the columns that a query needs: the key columns for a MapGet, otherwise all columns."""
    if not isinstance(function, MapGet):
        return list(frame.columns)
    names, _ = function.names(state)
    if missing := [name for name in names if name not in frame.columns]:
        remedy = f"The DataFrame has {', '.join(frame.columns)}. Name the columns of the key: query=MapGet(keys=[...])."
        raise ConfigError(option=f"{_OPTION}(frame)", value=missing, remedy=remedy)
    return list(names)


def _types(state: Any, function: Any) -> dict[str, str]:
    """Return the columns that a state adds, with the types of the state.

    :raises ConfigError: the state or the query function does not declare its columns.
    """
    if not isinstance(state, QueryableState) or not isinstance(function, MapGet):
        what = type(function if isinstance(state, QueryableState) else state).__name__
        remedy = f'{what} does not declare its new columns: set fields="name string, hub string".'
        raise ConfigError(option=f"{_OPTION}(fields=)", value=None, remedy=remedy)
    columns = state.columns
    results = {
        name: str(getattr(each, "result_type", "text")) for name, each in columns.composites.items()
    }
    known = {name: aggregator.type for name, aggregator in columns.values.items()} | results
    _, names = function.names(state)
    return {name: known[name] for name in names}


def _ddl(types: Mapping[str, str]) -> str:
    # An unknown type becomes text, as in `to_arrow`.
    text = STATE_TYPES["text"]
    return ddl_of({name: STATE_TYPES.get(kind, text).column for name, kind in types.items()})


def _struct(spark: SparkSession, fields: str) -> StructType:
    try:
        return spark.createDataFrame([], fields).schema
    except Exception as error:
        remedy = 'Declare the columns as in DDL: fields="name string, hub string".'
        raise ConfigError(option=f"{_OPTION}(fields=)", value=fields, remedy=remedy) from error


def _plain_types(added: StructType) -> bytes:
    """Return the columns that a query function adds, as a serialized Arrow schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    data: bytes = to_arrow_schema(added).serialize().to_pybytes()
    return data


# --- in an executor -----------------------------------------------------------------------------------------------


def answered(
    salt: bytes, hidden: bytes, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition with the added columns, with one lookup per Arrow batch."""
    given, function, asked, types, schema = pickle.loads(revealed(salt, hidden))
    state = resolved_state(given)
    plain = () if schema is None else pa.ipc.read_schema(pa.py_buffer(schema))
    names = list(types) if types is not None else [field.name for field in plain]
    for batch in batches:
        rows = from_arrow(batch.select(asked))
        indices = list[int]()
        added = list[Mapping[str, Any]]()
        for number, fields in results_of(state, rows, function):
            indices.append(number)
            added.append(fields)
        _check_fields(function, names, added)
        kept = (
            batch
            if indices == list(range(batch.num_rows))
            else batch.take(pa.array(indices, pa.int64()))
        )
        if types is not None:
            columns = [each.combine_chunks() for each in to_arrow(added, types).columns]
        else:
            columns = [
                pa.array([fields.get(each.name) for fields in added], each.type) for each in plain
            ]
        yield pa.RecordBatch.from_arrays(
            [*kept.columns, *columns], names=[*batch.schema.names, *names]
        )


def _check_fields(function: Any, names: list[str], added: list[Mapping[str, Any]]) -> None:
    for fields in added:
        if unknown := [name for name in fields if name not in names]:
            raise StateError(
                state=type(function).__name__,
                problem=f"execute() returned {', '.join(unknown)}, which is not one of the fields {', '.join(names)}",
                remedy="Name every field in batch.look_up(fields=...).",
            )
