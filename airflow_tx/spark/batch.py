"""The part of a transaction that an application gets: the rows to read, and where to put what it emits."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow_tx.errors import AckersUnavailable, ConfigError, FailedBatch, MessageError, TxError
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.consumers import RowsRead, consumed
from airflow_tx.protocol.rows_digest import RowsDigest
from airflow_tx.sources.api import Source, rebuild
from airflow_tx.spark.observed import RowsObserver, is_connect
from airflow_tx.staging import (
    Descriptor,
    OutputRef,
    StagingArea,
    scan_output,
    with_content,
    write_manifest,
    write_rows,
)
from airflow_tx.staging.area import dir_of
from airflow_tx.staging.files import literal
from airflow_tx.staging.output import Output, check_name, refuse
from airflow_tx.state.appended import Misfit, staged_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_tx.acks.api import AckerStore
    from airflow_tx.acks.task_emitter import TaskEmitter
    from airflow_tx.state.query import QueryFunction


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

        :param columns: the columns that you need; they are hashed. By default all columns. Rows of files are then only
            counted, because Spark would read columns for the digest alone.
        :raises SourceError: if the source cannot give exactly these.
        """
        if self._source is None:
            self._source = rebuild(*self.descriptor.source).named(self.descriptor.topology)
        rows = self._source.emit_batch(self.attempt, self.metadata, self._spark)
        if hasattr(rows, "write"):
            frame = cast("DataFrame", rows)
        else:
            # A source without Spark gives Python rows.
            plain: list[Any] = [dict(row) for row in rows]
            frame = self._spark.createDataFrame(plain)
        if columns:
            return self._observer.reading(frame.select(*columns))
        return self._observer.reading(frame, columns=() if self._source.columns_cost else None)

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
            frame = self._spark.read.parquet(*(literal(file) for file in found.files))
            return self._observer.reading(frame, found.outputs) if found.outputs else frame
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
        from airflow_tx.spark.lookup import look_up

        return look_up(self._spark, state, frame, query, fields)

    def emit(self, name: str, df: DataFrame, *, reliable: bool = True) -> None:
        """Write an output of this batch, in one Spark job; it becomes visible when the application ends well.

        An output that the committer appends to a table is written into the folder of that table.

        :param name: the name a committer reads it by: ``task.output[name]``.
        :param reliable: False: who reads it may read some of its rows, or some twice.
        :raises StagingError: if the name cannot be used, or was used before; or this process does not find
        the rows.
        """
        folder = check_name(self._where, name)
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
            remedy = (
                "[tx] staging must be storage that the task, the driver and all executors share."
            )
            raise refuse(self._where, name, problem, remedy)
        output = replace(output, row_digest=written.text if reliable else "", reliable=reliable)
        self._outputs[name] = output = with_content(self._where, name, output)
        (self._small.add if output.content else self._small.discard)(name)

    def _append(self, name: str, df: DataFrame) -> Output:
        from airflow_tx.spark.appended import write_appended

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
        if self._source is not None:
            self._source.check_read(self.attempt)
        trees = 0 if self._messages is None else self._messages.trees
        if not self._outputs and not self.descriptor.inputs and not trees:
            problem = f"application {app} emitted nothing"
            raise refuse(
                self._where,
                "*",
                problem,
                'Call batch.emit("counts", df); an empty DataFrame is fine.',
            )
        read = self._observer.read()
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
        return None if self._source is None else self._source.explain_error(self.attempt, error)

    def close(self) -> None:
        """Give back what the source holds, and the ackers."""
        self._observer.close()
        if self._messages is not None:
            self._messages.close()
        if self._source is not None:
            self._source.close()


def _emitter_of(descriptor: Descriptor) -> TaskEmitter:
    """Make the emitter of an application's messages, for the try that runs it."""
    from airflow_tx.acks.location import open_ackers
    from airflow_tx.acks.reference import origin_of
    from airflow_tx.acks.task_emitter import TaskEmitter

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
