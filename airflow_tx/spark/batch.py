"""The part of a transaction that an application gets: the rows to read, and where to put what it emits."""

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
    """One transaction's rows, as the function under `batch_app` sees them.

    :param descriptor: which batch it is.
    :param spark: the session it is processed in.
    :param args: further arguments of the application.
    :param small: the outputs that had few rows in the batch before this one, where that is known; kept up to date.
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
        # How many rows of the batch were read, where the application knows better than its Spark jobs.
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
        """The transaction: the same however often the batch is replayed."""
        return self.descriptor.attempt.txid

    @property
    def attempt(self) -> TransactionAttempt:
        return self.descriptor.attempt

    @property
    def metadata(self) -> Any:
        """Plain JSON that says exactly which rows the batch has."""
        return self.descriptor.metadata

    def read(self, *columns: str) -> DataFrame:
        """Read exactly this transaction's rows. They are counted and digested on their way into an output.

        :param columns: the columns that you need; they are hashed. By default all columns. Rows of files are only
            counted: the batch has the digest of their content.
        :raises SourceError: if the source cannot give exactly these.
        """
        if self._source is None:
            self._source = rebuild(*self.descriptor.source).named(self.descriptor.topology)
        frame, rows = self._emitted(self._source, columns)
        hashed = () if self._source.counts_rows else None
        given = frame.select(*columns) if columns else frame
        return self._observer.reading(given, columns=hashed, rows=rows)

    def _emitted(self, source: Source, columns: Sequence[str]) -> tuple[DataFrame, int | None]:
        """Give the rows of the batch, and how many they are, if the source has staged these."""
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
        # A source without Spark gives Python rows.
        given = [dict(row) for row in dicts_of(rows)]
        return python_frame(self._spark, given), len(given)

    def _asked(self, read: RowsRead) -> RowsRead:
        """Ask a reading of the batch that a limit may have cut off for one more row."""
        if read.outputs or read.more or not read.stopped or self._source is None:
            return read
        rows = read.found.rows
        more = self._emitted(self._source, ())[0].limit(rows + 1).count() > rows
        return replace(read, stopped=more, more=more)

    def read_input(self, name: str) -> DataFrame:
        """Read what an earlier task emitted, or the new values of a committer.

        A numeric or json column of new values is a text: CAST it, or use from_json.

        :param name: as the operator names it: ``inputs={"name": other.output["counts"]}``.
        :raises ConfigError: it names no such input.
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
        # No row was written, so there are no types either.
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
        """Add to rows what a state says about them (Trident's stateQuery); executors ask, a batch of Arrow at a time.

            named = batch.look_up(carriers, flights)              # adds the value columns
            located = batch.look_up(StaticState(LocationDBFactory()), rows, query=QueryLocation(), fields="at string")

        It sees what is there when Spark gets to a row: other transactions may commit at the same time.

        :param state: with columns, a map, a StateFactory, a StaticState, or one of your own. Its connection is looked
            up here; executors get the address, with the password, in a way that shows in no plan and no log.
        :param query: None: `MapGet()`; one of your own gets all columns of the rows.
        :param fields: the columns that are added, as in DDL; a state with columns knows them. Its numeric and json
            columns are texts.
        :raises ConfigError: executors cannot read the state; or columns are missing, or there already.
        """

        return look_up(self._spark, state, frame, query, fields)

    def emit(self, name: str, df: DataFrame, *, reliable: bool = True) -> None:
        """Write an output of this batch, in one Spark job; it becomes visible when the application ends well.

        An output that the committer appends to a table is written into the folder of that table.

        :param name: the name a committer reads it by: ``task.output[name]``.
        :param reliable: False: who reads it may read some of its rows, or some twice.
        :raises StagingError: if the name cannot be used, or was used before; or this process does not find
        the rows.
        """
        check_own_name(self._where, name)
        self._emit(name, df, reliable=reliable)

    def reject(self, df: DataFrame, reason: str | Column) -> None:
        """Keep rows aside, in one Spark job: the commit appends them to the `rejected` table of the `Transaction`.

            rows = batch.read()
            batch.reject(rows.where("amount IS NULL"), "no amount")

        :param df: the rows, with all columns that you want to see again.
        :param reason: why, a text or a column of `df`; rows with one reason are counted together.
        :raises StagingError: the transaction has no such table, does not wait for this task, or the reason is empty.
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
                "Give each output its own name, or union the DataFrames.",
            )
        if name in self.descriptor.appended:
            self._outputs[name] = replace(self._append(name, df), reliable=reliable)
            return
        if name in self._small and is_connect(df):
            # For a small batch, half of the work is Spark writing a file.
            written, table = self._observer.fetch(df)
            output = write_rows(self._where, name, table)
        else:
            # The folder belongs to this try alone. A driver that a cluster restarted may have left files there.
            written = self._observer.write(df, self._where.files.spark_uri(folder))
            output = scan_output(self._where, name)
        if output.rows != written.rows:
            # Executors that write to their own disks leave an empty folder here, and Spark reports success.
            problem = f"Spark wrote {written.rows} rows, {output.rows} of them are in {self._where.files.uri(folder)}"
            raise refuse(self._where, name, problem, _SHARED)
        output = replace(output, row_digest=written.text if reliable else "", reliable=reliable)
        self._outputs[name] = output = with_content(self._where, name, output)
        (self._small.add if output.content else self._small.discard)(name)

    def _append(self, name: str, df: DataFrame) -> Output:
        to = self.descriptor.appended[name]
        # A lane gives all of its tasks one try, and a driver that lost its client may still write.
        folder = staged_folder(self.attempt, uuid.uuid4().hex)
        try:
            return write_appended(self._observer, df, to, folder, self.txid)
        except Misfit as error:
            remedy = error.remedy or "Change its rows before batch.emit."
            raise refuse(self._where, name, str(error), remedy) from None

    def emit_messages(self, count: int, *, tracked: bool = True) -> list[str]:
        """Make so many messages for work that leaves the DAG, as `current_batch().emit_many` does in a Python task.

            rows = batch.read().collect()
            for row, reference in zip(rows, batch.emit_messages(len(rows))):
                queue.push(json.dumps([reference, row["sentence"]]))

        In the driver, not in what executors run. An application that has emitted messages is not tried again: workers
        may have taken them. Its run is replayed.

        :param tracked: False: nothing waits for them.
        :return: their references, for `airflow_tx.acks.Collector.process`.
        :raises TransactionDefinitionError: the transaction has no ackers, or does not wait for this task.
        :raises FailedBatch: they are refused, and would be in another try.
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
        """Make everything emitted visible; the last thing an application does.

        :param app: the application's name, for the message; `code`: digest of its code.
        :raises StagingError: if nothing was emitted, and it had no input that it could have been for.
        :raises SourceError: what it read was replaced while it was read.
        """
        trees = 0 if self._messages is None else self._messages.trees
        if not self._outputs and not self.descriptor.inputs and not trees:
            problem = f"application {app} emitted nothing"
            raise refuse(
                self._where,
                "*",
                problem,
                'Call batch.emit("counts", df); an empty DataFrame is fine.',
            )
        read = [*map(self._asked, self._observer.read())]
        if self._met:
            rows = [row_aside("", each.reason, each.where, each.content) for each in self._met]
            self._outputs[MALFORMED] = stage_rejected(self._where, MALFORMED, rows)
            read = [each if each.outputs else _with_rows(each, len(rows)) for each in read]
        if self._source is not None:
            # After the last job that reads it.
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
        """Find the cause of an error of the application, if the source that it read knows the cause."""
        if self._source is None:
            return None
        for staged in self._staged:
            if staged.is_lacked(error):
                problem = f"Spark does not find the rows of the batch in {staged}"
                return self._source.refused(problem, _SHARED)
        return self._source.explain_error(self.attempt, error)

    def close(self) -> None:
        """Give back what the source holds, and the ackers."""
        self._observer.close()
        if self._messages is not None:
            self._messages.close()
        if self._source is not None:
            self._source.close()


def _with_rows(read: RowsRead, count: int) -> RowsRead:
    """Count rows that the source has read for an application."""
    return replace(read, found=read.found + RowsDigest(count))


def _emitter_of(descriptor: Descriptor) -> TaskEmitter:
    """Make the emitter of an application's messages, for the try that runs it."""
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
    raise AssertionError("a transaction without ackers connects to none")


def _rejected(df: DataFrame, reason: str | Column, task: str) -> DataFrame:
    """Describe rows that an application rejects, as Python tasks do; Spark does not know their place."""
    text = (F.lit(reason) if isinstance(reason, str) else reason).cast("string")
    empty = F.when(
        F.coalesce(F.trim(text), F.lit("")) == "", F.lit("airflow_tx: a reason is empty")
    )
    row = F.struct(*(F.col(column_name(name)) for name in df.columns))
    content = F.to_json(row, {"ignoreNullFields": "false"})
    return _aside(df.where(fails(empty)), F.lit(task), text, content)


def _aside(df: DataFrame, task: Column, reason: Column, content: Column) -> DataFrame:
    named = zip(REJECTED_COLUMNS, (task, reason, F.lit(""), content), strict=True)
    escaped = F.lit("\\x00")  # not every table keeps NUL
    return df.select(*(F.replace(each, F.lit("\0"), escaped).alias(name) for name, each in named))


# --- appended -----------------------------------------------------------------------------------------------------
# An output that is appended to a table: executors write its rows as Parquet into the folder of the table.


# Formats that every reader of a Delta table accepts. As options they override the session for this write only.
_OPTIONS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "partitionOverwriteMode": "static",
}


def write_appended(
    observer: RowsObserver, df: DataFrame, to: AppendTo, folder: str, txid: int
) -> Output:
    """Write rows in one Spark job; the task that submitted the application lists their files.

    :param folder: relative to the table.
    :raises Misfit: a Delta table cannot have such rows.
    """
    fields = df.schema.jsonValue()["fields"]
    check_columns(fields, to.partition_by)
    by_name = {each["name"]: each for each in fields}

    def write(rows: DataFrame) -> None:
        # The folder belongs to this job alone.
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
# Rows of a DataFrame with what a state says about them, asked for by the executors. Source: Trident's stateQuery.


_OPTION = "batch.look_up"


def look_up(
    spark: SparkSession,
    state: Any,
    frame: DataFrame,
    query: QueryFunction[Any, Any] | None = None,
    fields: str | None = None,
) -> DataFrame:
    """Add to rows what a state says about them; see `Batch.look_up`."""
    state = state_of(state)
    function = MapGet() if query is None else query
    types = _types(state, function) if fields is None else None
    added = _struct(spark, fields if fields is not None else _ddl(types or {}))
    known = {name.lower() for name in frame.columns}
    if twice := sorted(name for name in added.names if name.lower() in known):
        remedy = "Drop or rename the column before; MapGet(values=[...]) adds only some."
        raise ConfigError(
            option=f"{_OPTION}(frame)",
            value=twice,
            remedy=f"It has a column of that name. {remedy}",
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
    """The state as an executor can use it: with its address and password, and nothing that is open."""
    local = str(spark.conf.get("spark.master", "")).startswith("local")
    copied = for_readers(state, local=local)
    if copied is None:
        remedy = f"Executors cannot read {state.name!r}: look up in a @task (state_query), or use a database server."
        raise ConfigError(option=f"{_OPTION}(state)", value=type(state).__name__, remedy=remedy)
    return copied


def _asked(state: Any, function: Any, frame: DataFrame) -> list[str]:
    """The columns that a query needs: all, or the key columns of a MapGet."""
    if not isinstance(function, MapGet):
        return list(frame.columns)
    names, _ = function.names(state)
    if missing := [name for name in names if name not in frame.columns]:
        remedy = f"It has {', '.join(frame.columns)}. Name the columns of the key: query=MapGet(keys=[...])."
        raise ConfigError(option=f"{_OPTION}(frame)", value=missing, remedy=remedy)
    return list(names)


def _types(state: Any, function: Any) -> dict[str, str]:
    """The columns that a state with columns adds, by our types.

    :raises ConfigError: it does not say.
    """
    if not isinstance(state, QueryableState) or not isinstance(function, MapGet):
        what = type(function if isinstance(state, QueryableState) else state).__name__
        remedy = f'{what} does not say what it adds: fields="name string, hub string".'
        raise ConfigError(option=f"{_OPTION}(fields=)", value=None, remedy=remedy)
    columns = state.columns
    results = {
        name: str(getattr(each, "result_type", "text")) for name, each in columns.composites.items()
    }
    known = {name: aggregator.type for name, aggregator in columns.values.items()} | results
    _, names = function.names(state)
    return {name: known[name] for name in names}


def _ddl(types: Mapping[str, str]) -> str:
    # As in `to_arrow`, a type that is not in the table is a text.
    text = STATE_TYPES["text"]
    return ddl_of({name: STATE_TYPES.get(kind, text).column for name, kind in types.items()})


def _struct(spark: SparkSession, fields: str) -> StructType:
    try:
        return spark.createDataFrame([], fields).schema
    except Exception as error:
        remedy = 'Give columns as in DDL: fields="name string, hub string".'
        raise ConfigError(option=f"{_OPTION}(fields=)", value=fields, remedy=remedy) from error


def _plain_types(added: StructType) -> bytes:
    """The added columns as an Arrow schema, for values as a query gives them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    data: bytes = to_arrow_schema(added).serialize().to_pybytes()
    return data


# --- in an executor -----------------------------------------------------------------------------------------------


def answered(
    salt: bytes, hidden: bytes, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Answer the rows of one partition, with the added fields: one look-up per batch."""
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
                problem=f"its execute gives {', '.join(unknown)}, which is not among the fields {', '.join(names)}",
                remedy="Name every field in batch.look_up(fields=...).",
            )
