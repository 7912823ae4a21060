"""The base of all sources. A source decides which rows a transaction contains, and reads these rows.

Source: storm-transactional-topologies (ITransactionalSpout: Coordinator and Emitter).
"""

from __future__ import annotations

import atexit
import copy
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from operator import mul
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.described import Described
from airflow_tx.base.errors import (
    ConfigError,
    RowsRefused,
    SourceError,
    SourceNotSettled,
    TxError,
)
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.base.rows import is_frame, reader_of, reader_of_dicts
from airflow_tx.ledger import Batch as Batch, Json as Json, Loss as Loss, TransactionAttempt
from airflow_tx.outputs import Files, literal, open_files
from airflow_tx.sources.dates import Interval, Span, span_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame, SparkSession, functions as F

    from airflow_tx.base.compat import IntervalSchedule, RunInfo, ScheduledInterval
    from airflow_tx.ledger import Corrections, ReadOnlyLedger
else:
    F = LazyModule("pyspark.sql.functions")


# --- sizing -------------------------------------------------------------------------------------------------------
# A batch has fixed limits, or a target time, from which the measured speed gives a limit.


FIRST_ROWS = 100_000
"""The row limit of an adaptive batch before any transaction is measured."""
LEAST_ROWS = 1_000
"""The minimum adaptive limit. Smaller batches would spend most of their time on overhead."""
FIRST_FILES = 100
"""The file limit of an adaptive batch before any transaction is measured."""
MOST_FILES = 2_000
"""Maximum number of files in an adaptive batch. One ledger record holds the names and digests of all files."""
GROWTH = 10
"""The maximum adaptive limit, as a multiple of the largest measured batch."""
ROWS_SHARE = 0.2
"""The minimum fraction of the target time for rows, even if the overhead alone uses up the target time."""
FADING = 0.7
"""The weight of a measurement relative to the next newer one, so that a slow day has only a short effect."""
UNEVEN = 0.5
"""The fraction by which a large batch may be slower than expected, for example because it exceeds memory."""

Measured: TypeAlias = Sequence[Sequence[float]]
"""The rows and processing seconds of each committed transaction, oldest first."""


@dataclass(frozen=True)
class Limit:
    """The size limit of one batch.

    :param rows: maximum number of rows, or None for no limit.
    :param bytes: maximum number of bytes, or None for no limit. Unknown sizes are estimated.
    :param reason: text that explains the value of `rows`.
    """

    rows: int | None = None
    bytes: int | None = None
    reason: str = "no limit is set"

    def of_rows_of(self, sizes: Sequence[int]) -> Limit:
        """Convert the limit `bytes` to a number of rows, at least one, by the average size of sample rows.

        :param sizes: size of each sample row in bytes.
        """
        if self.bytes is None or not sizes:
            return self
        each = sum(sizes) / len(sizes)
        fitting = max(int(self.bytes // max(each, 1)), 1)
        if self.rows is not None and self.rows <= fitting:
            return self
        return Limit(
            fitting, self.bytes, f"max_bytes_per_batch={self.bytes}, {each:.0f} bytes a row"
        )

    def reason_for(self, taken: int, backlog: int | None, unit: str = "rows") -> str:
        """Explain how the size of a batch was chosen.

        :param taken: number of rows (or `unit`) in the batch.
        :param backlog: number of rows that were available, or None if it is unknown.
        """
        if backlog is not None and taken >= backlog:
            only = f"the only {unit.removesuffix('s')} that there was"
            return only if taken == 1 else f"all {taken} {unit} that there were"
        return f"{taken} of {'many' if backlog is None else backlog} {unit}: {self.reason}"

    def shares(self, available: Mapping[str, int]) -> dict[str, int]:
        """Divide a number of rows among partitions, as equally as the available rows permit.

        :param available: number of rows, by partition.
        """
        left = self.rows
        shares = dict(available)
        if left is None or sum(available.values()) <= left:
            return shares
        if left < len(available):
            # Take one row from each of the fullest partitions. Other partitions wait for more rows.
            most = sorted(available, key=lambda name: (-available[name], name))
            return {
                name: min(available[name], 1) if name in most[:left] else 0 for name in available
            }
        # Start with the smallest partition. The larger ones share the rows that it lacks.
        for count, name in enumerate(sorted(available, key=lambda name: (available[name], name))):
            shares[name] = min(available[name], -(-left // (len(available) - count)))
            left -= shares[name]
        return shares


@dataclass(frozen=True)
class BatchSize:
    """The batch limits that the arguments of a source set.

    :param max_rows: maximum number of rows in a batch.
    :param max_bytes: maximum number of bytes in a batch.
    :param target_seconds: processing time that a batch should take. The limit is then adaptive, and depends on the
        speed of the last transactions. A large backlog gives large batches, and a small backlog gives small ones.
    :param first: adaptive limit before any transaction is measured.
    :param least: lower bound of the adaptive limit.
    :param most: upper bound of the adaptive limit, or None for no bound.
    :param unit: unit of these limits, such as "files".
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    target_seconds: float | None = None
    first: int = FIRST_ROWS
    least: int = LEAST_ROWS
    most: int | None = None
    unit: str = "rows"

    @classmethod
    def checked(
        cls,
        source: str,
        *,
        max_rows: int | None,
        max_bytes: int | None,
        target_seconds: float | None,
    ) -> BatchSize:
        """Check the arguments of a source.

        :param source: name of the source, for the error.
        :raises ConfigError: an argument is not a positive number.
        """
        found = cls(max_rows, max_bytes, target_seconds)
        for name, value in found.arguments().items():
            whole = name != "target_seconds"
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else (int, float))
                or not value > 0
            ):
                remedy = f"Give a {'whole ' if whole else ''}number above 0, or leave it out."
                raise ConfigError(option=f"{name} of {source}", value=value, remedy=remedy)
        return found

    @classmethod
    def of_files(cls, target_seconds: float) -> BatchSize:
        """Create the adaptive limit for a file source."""
        return cls(
            target_seconds=target_seconds,
            first=FIRST_FILES,
            least=1,
            most=MOST_FILES,
            unit="files",
        )

    def arguments(self) -> dict[str, float | int]:
        """Return the arguments that set batch limits. Arguments that are not set are omitted."""
        given = {
            "max_rows_per_batch": self.max_rows,
            "max_bytes_per_batch": self.max_bytes,
            "target_seconds": self.target_seconds,
        }
        return {name: value for name, value in given.items() if value is not None}

    def limit(self, measured: Measured = ()) -> Limit:
        """Return the limit of the next batch.

        :param measured: rows and seconds of the last transactions. They are used only with `target_seconds`.
        """
        fixed = Limit(self.max_rows, self.max_bytes)
        if self.max_rows is not None:
            fixed = replace(fixed, reason=f"max_rows_per_batch={self.max_rows}")
        if self.target_seconds is None:
            return fixed
        adapted = self._adapted(self.target_seconds, measured)
        if self.max_rows is not None and adapted.rows is not None and self.max_rows <= adapted.rows:
            return fixed
        return replace(adapted, bytes=self.max_bytes)

    def _adapted(self, target: float, measured: Measured) -> Limit:
        if not measured:
            return Limit(self.first, reason=f"nothing is measured yet, target_seconds={target:g}")
        overhead, per_row, counted = _line(measured)
        fastest = GROWTH * int(max(rows for rows, _ in measured))
        seconds = max(target - overhead, ROWS_SHARE * target)
        fitting = fastest if per_row * fastest <= seconds else round(seconds / per_row)
        why = f"target_seconds={target:g}, and the last {counted} took {overhead:.1f} s and "
        why += f"{per_row * 1_000_000:.1f} s for a million {self.unit}"
        if fitting == fastest:
            why += f"; at most {GROWTH} times the largest of them"
        if fitting < self.least:
            why += f"; at least {self.least} {self.unit}"
        rows = max(fitting, self.least)
        if self.most is not None and rows > self.most:
            why += f"; at most {self.most} {self.unit}"
            rows = self.most
        return Limit(rows, reason=why)


def _line(measured: Measured) -> tuple[float, float, int]:
    """Estimate the overhead of a transaction and the seconds of each row, by weighted least squares.

    Older transactions may contradict newer ones, for example if they took longer for fewer rows. The estimate omits the
    oldest transactions until no contradiction remains. If all batches have about the same size, the overhead counts as
    0. The next batch is then too small rather than too large.

    :return: the seconds of overhead, the seconds of each row, and the number of transactions in the estimate.
    """
    for first in range(len(measured)):
        rows, seconds = zip(*measured[first:], strict=True)
        weights = [FADING**age for age in reversed(range(len(rows)))]
        mean_rows = _mean(rows, weights)
        mean_seconds = _mean(seconds, weights)
        spread = _mean([(each - mean_rows) ** 2 for each in rows], weights)
        together = _mean(
            [(each - mean_rows) * one for each, one in zip(rows, seconds, strict=True)], weights
        )
        if spread < (0.1 * mean_rows) ** 2:
            break
        if together >= 0:
            per_row = together / spread
            overhead = mean_seconds - per_row * mean_rows
            if overhead >= 0:
                return overhead, per_row, len(rows)
            if overhead > -UNEVEN * mean_seconds:
                break
    return 0.0, mean_seconds / mean_rows, len(rows)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return float(sum(map(mul, values, weights)) / sum(weights))


# --- api ----------------------------------------------------------------------------------------------------------


_Self = TypeVar("_Self", bound="Source")
EmittedRows: TypeAlias = "DataFrame | Iterable[Mapping[str, Any]]"
"""The rows of a batch. With a SparkSession, they are a DataFrame. Without one, they are mappings, or a frame of polars,
pandas, DuckDB or pyarrow."""
RowTypes: TypeAlias = Mapping[str, Any]
"""The pyarrow type of each column, by name. The type is None if it is not declared."""
PreviousEnd: TypeAlias = Callable[[datetime, datetime], datetime | None]
"""A function that returns the end of the interval before the given interval, or None if the end is unknown."""


@dataclass(frozen=True)
class MalformedRow:
    """A row that does not fit the schema of its source. The source emits this object instead of the row.

    :param content: content of the row, as JSON or as text.
    :param reason: why the row does not fit, without the value. Rows with the same reason are counted together.
    :param where: place of the row in its source.
    """

    content: str
    reason: str
    where: str


def without_malformed(
    rows: Iterable[Any], malformed: list[MalformedRow]
) -> Iterator[Mapping[str, Any]]:
    """Yield the well-formed rows, and append the malformed rows to a list."""
    for row in rows:
        if isinstance(row, MalformedRow):
            malformed.append(row)
        else:
            yield row


REFUSED_VALUE = "airflow_tx: no such value: "
"""The first words of Spark's error message when a query finds a value that the source refuses."""


def fails(problem: Column) -> Column:
    """Return a Spark filter that keeps all rows, but fails the query on a row with a problem."""
    return F.when(problem.isNotNull(), F.raise_error(problem).cast("boolean")).otherwise(
        F.lit(True)
    )


class BatchStaging:
    """A folder where a source stages the rows of a batch, so that Spark can read them.

    :param columns: columns that the reader requests, or an empty sequence for all columns.
    :ivar frame: DataFrame of the staged rows, or None if the source has staged no rows.
    :ivar rows: number of staged rows.
    :ivar malformed: malformed rows that the source found.
    """

    def __init__(self, files: Files, folder: str, columns: Sequence[str] = ()) -> None:
        self._files = files
        # A cluster may restart a Spark driver for the same try, so the try alone is not unique.
        self._id = uuid.uuid4().hex
        self._folder = f"{folder}_read-{self._id}"
        self._asked = frozenset(name.strip("`").lower() for name in columns)
        self._schema: Any = None
        self.rows = 0
        self.malformed: list[MalformedRow] = []
        self.frame: DataFrame | None = None

    @classmethod
    def current(cls) -> BatchStaging:
        """Return the staging folder that the reader of a batch has opened, or a temporary folder of this process."""
        if (opened := _staging.get()) is not None:
            return opened
        folder = mkdtemp(prefix="airflow-tx-")
        atexit.register(rmtree, folder, ignore_errors=True)
        return cls(open_files(folder), "")

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Set this staging folder as the current one within the `with` block."""
        token = _staging.set(self)
        try:
            yield
        finally:
            _staging.reset(token)

    def __str__(self) -> str:
        return self._files.uri(self._folder)

    def has(self, columns: Sequence[str]) -> bool:
        """Return whether all rows are staged with these columns."""
        names = {name.strip("`").lower() for name in columns}
        return not self._asked or (bool(names) and names <= self._asked)

    def asked_of(self, schema: pa.Schema, *, whole: bool = False) -> pa.Schema:
        """Return the schema of the requested columns, or the complete schema if one of them is missing."""
        import pyarrow as pa

        asked = [field for field in schema if field.name.lower() in self._asked]
        if whole or len(asked) < len(self._asked) or not asked:
            self._asked = frozenset()
            return schema
        return pa.schema(asked)

    def stage(
        self, spark: SparkSession, batches: pa.RecordBatchReader, *, whole: bool = False
    ) -> DataFrame:
        """Write rows to a Parquet file, and return a DataFrame that reads it. This runs no Spark job.

        :param whole: whether to write all columns instead of only the requested ones.
        """
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = self.asked_of(batches.schema, whole=whole)
        rows = 0
        with (
            self._files.writing(self._file) as sink,
            # Spark reads the file only once or twice, so compression is not worthwhile.
            pq.ParquetWriter(sink, schema, compression="none", write_statistics=False) as writer,
        ):
            for batch in batches:
                rows += batch.num_rows
                writer.write_batch(batch.select(schema.names))
        self.rows = rows
        self._schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        self.frame = self.read(spark)
        return self.frame

    def read(self, spark: SparkSession) -> DataFrame:
        """Return a new DataFrame of the staged rows. Spark can join it with an earlier one."""
        from airflow_tx.base.rows import spark_reader

        file = literal(self._files.spark_uri(self._file))
        return spark_reader(spark, "parquet").schema(self._schema).load(file)

    def is_lacked(self, error: Exception) -> bool:
        """Return whether Spark failed because the staged file was missing."""
        told = str(error)
        return self._id in told and any(each in told for each in _NOT_FOUND)

    def remove(self) -> None:
        """Remove the staged file. Ignore errors, since the folder of the try is removed later anyway."""
        with suppress(Exception):
            self._files.remove_tree(self._folder)

    @property
    def _file(self) -> str:
        return f"{self._folder}/rows.parquet"


_NOT_FOUND = ("[PATH_NOT_FOUND]", "[FAILED_READ_FILE.FILE_NOT_EXIST]")
_staging: ContextVar[BatchStaging | None] = ContextVar("airflow_tx_batch_staging", default=None)


class SourceKind(str, Enum):
    """The guarantee of a source about the rows of a replay."""

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non-transactional"


class Source(Described, ABC):
    """The base class of all sources. Subclass `TransactionalSource`, or a class in `sources.partitions`.

    One class has both halves of Storm's spout. The planner half (`is_ready`, `decide`) runs in `begin` and in the
    coordinator. The emitter half (`emit_batch`, `cleanup_before`) runs in the processing tasks. A Spark application
    builds the source from its constructor arguments, so these are plain JSON without addresses and credentials.
    """

    kind: SourceKind = SourceKind.TRANSACTIONAL
    partitioned: ClassVar[bool] = False
    per_run: ClassVar[bool] = False
    """Whether a batch belongs to one run, such as its data interval, so that only this run can get it."""
    in_order: bool = False
    """Whether batches are data intervals, with txids in date order."""
    counts_rows: ClassVar[bool] = False
    """Whether tasks only count rows, without a digest of the rows. The metadata then has file digests."""
    unit: ClassVar[str] = "rows"
    """The unit of `backlog`. File sources count files, since they do not know the number of rows."""
    _for_spark: tuple[BatchStaging, ...] = ()
    rows_can_change: ClassVar[bool] = True
    """Whether the rows of a decided batch can change, for example if a file is corrected. Log rows never change."""
    keeps_rows: ClassVar[bool] = True
    """Whether a restatement reads the same rows by default. False if a batch has all current rows of an interval."""
    stages: ClassVar[bool] = False
    """Whether the source stages its rows, because its server deletes rows that were taken.
    For such a source, the coordinator calls `backlog` instead of `decide` to check for new rows."""
    upstream: str = ""
    """The name of the topology whose table the source reads, or "" if there is none."""
    upstream_table: str = ""
    """The name of the state that is the upstream table."""
    on_correction: str = "restate"
    """How to handle a correction of the upstream topology: ``restate`` the batch, or only ``report`` it."""
    topology: str = "TOPOLOGY"
    """The topology name for commands in error messages. See `named`."""
    zone: str = ""
    """The time zone of the DAG's schedule, in which a day begins and ends. "" means UTC. See `in_zone`."""
    staging: str = ""
    """The staging area's root, for a source that `stages`. It is only set where batches are decided or committed."""
    malformed: str = "refuse"
    """How to handle a row that does not fit the schema: ``refuse`` fails the batch, ``reject`` keeps the row aside."""
    batch_size: BatchSize | None = None
    """The batch limits that the arguments set. A source that sets `batch_size` must obey `limit` in `decide`."""
    limit: Limit = Limit()
    """The limit of the next batch that the source decides."""

    def take_malformed(self, malformed: str, why_not: str = "") -> None:
        """Check and set the argument `malformed`.

        :param malformed: ``refuse`` or ``reject``.
        :param why_not: remedy for the error if the source cannot reject rows, or "" if it can.
        :raises ConfigError: the value is unknown, or the source cannot reject rows.
        """
        if malformed not in ("refuse", "reject"):
            raise self.unusable("malformed", malformed, "Use 'refuse' or 'reject'.")
        if malformed == "reject" and why_not:
            raise self.unusable("malformed", malformed, why_not)
        self.malformed = malformed

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path, and the constructor arguments in plain JSON."""
        return self.described()

    def is_ready(self) -> bool:
        """Return whether the source can decide a batch now."""
        return True

    @abstractmethod
    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        """Decide the rows of a transaction. Return None if there is no data.

        :param position: position where the preceding transaction ended, or None for the first transaction. A
            partitioned source gets a mapping from partitions to positions.
        """

    def decide_again(self, attempt: TransactionAttempt, metadata: Json) -> Batch | Json:
        """Decide the same batch again from the source's current content, after a user has corrected it.

        The end of the batch does not change. By default, the metadata stays the same, since most sources read rows by
        their position. If the metadata has digests of the content, return the current digests.

        :param metadata: metadata from the earlier decision.
        :return: the current metadata, or a `Batch` without a position if the number of rows may have changed.
        :raises SourceError: the current content does not end where the batch ended.
        """
        return metadata

    def refuses_again(self, metadata: Json) -> str | None:
        """Return a clause that explains why the rows of a committed batch cannot be read again.

        Return None if they can. A request for a restatement calls this method. Its checks must be fast. The reader
        checks again.
        """
        return None

    def changed_since(self, metadata: Json) -> str | None:
        """Return a clause that names the changed rows of an earlier batch. Return None if no change is known.

        After a decision, `begin` calls this method for the preceding batch. The checks must be fast.
        """
        return None

    @abstractmethod
    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        """Read exactly the rows that `metadata` names. With `spark`, the result is a Spark DataFrame.

        :raises SourceError: the source cannot return exactly these rows.
        """

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes | None:
        """Return the pyarrow types of all columns of `emit_batch`, or None if they are not declared.

        A column without a declared type has the type None. Its type is then inferred from all rows of a batch.

        :param metadata: metadata of the batch, or None for a batch without rows.
        """
        return None

    def types_without_rows(self, attempt: TransactionAttempt, position: Json) -> RowTypes | None:
        """Return the types of all columns for a replay that found no rows, or None if they are unknown.

        :param position: position where the transaction ends.
        """
        return self.row_types(attempt, None)

    def emit_arrow(self, attempt: TransactionAttempt, metadata: Json) -> pa.RecordBatchReader:
        """Read the same rows as `emit_batch`, as pyarrow record batches with the declared types.

        :raises NoTable: a value does not have the type of its column. It may also occur while the batches are read.
        :raises SourceError: the source cannot return exactly these rows.
        """
        rows = self.emit_batch(attempt, metadata)
        if is_frame(rows):
            return reader_of(rows)
        types = self.row_types(attempt, metadata)
        return reader_of_dicts(without_malformed(cast("Any", rows), self.malformed_rows), types)

    @cached_property
    def malformed_rows(self) -> list[MalformedRow]:
        """List the malformed rows that `emit_arrow` has found, since record batches cannot contain them."""
        return []

    @property
    def _may_use_others(self) -> bool:
        """Whether this class is a user's subclass. Such a class may need columns that the reader did not request."""
        return not type(self).__module__.startswith("airflow_tx.")

    def _stage(self, spark: SparkSession, batches: pa.RecordBatchReader) -> DataFrame:
        """Stage rows for Spark. Also move the malformed rows found so far to the staging area."""
        staging = BatchStaging.current()
        self._for_spark = (
            *self._for_spark,
            staging,
        )  # assign a new tuple, since copies of this source share the old one
        met = len(self.malformed_rows)
        frame = staging.stage(spark, batches, whole=self._may_use_others)
        staging.malformed += self.malformed_rows[met:]
        del self.malformed_rows[met:]
        return frame

    def check_read(self, attempt: TransactionAttempt) -> None:
        """Check before the ack that the task has read the content that `emit_batch` verified.

        Spark may read a file minutes after `emit_batch` has verified it, and the file may have been replaced since.

        :raises SourceError: the task may have read different rows. It then sends no ack.
        """

    def key(self, run: RunInfo) -> str:
        """Return the run key. Runs with the same key always get the same transaction.

        By default, the key is the run_id. If the batch is a data interval or a partition, that is the key, since
        several runs can have it.
        """
        return run.run_id

    def for_run(self, run: RunInfo) -> Source:
        """Return the source that decides the batch of this run. By default, any run can take the next rows."""
        return self

    def for_key(self, key: str) -> Source:
        """Return the source for a deleted run that is recreated. Only the run's key is known."""
        return self

    @property
    def dated(self) -> DatedSource | None:
        """Return this source if its batches are data intervals. Otherwise return None."""
        return None

    def interval_of_run(self, key: str) -> Interval | None:
        """Return the data interval for recreating a run with this key, or None if it has none."""
        return None

    def named(self: _Self, topology: str) -> _Self:
        """Return a copy of the source that names this topology in its errors."""
        copied = copy.copy(self)
        copied.topology = topology
        return copied

    def in_zone(self: _Self, zone: str) -> _Self:
        """Return a copy of the source that interprets dates in a time zone.

        :param zone: time zone from the ledger, or "" for UTC.
        """
        copied = copy.copy(self)
        copied.zone = zone
        return copied

    def span(self, what: str) -> Span:
        """Parse a typed date. Its default time zone is `zone`. A date without a time means the whole day.

        :raises ValueError: the text is not a date.
        """
        return span_of(what, self.zone)

    def command(self, action: str, txid: int | None = None, *options: str) -> Command:
        """Return an `airflow tx` command to copy from an error message.

        :param action: such as ``accept-loss``, or ``skip`` with a txid.
        """
        of = () if txid is None else (str(txid),)
        return Command(action, self.topology, of, (*options, "--why", "TEXT"))

    def with_limit(self: _Self, measured: Measured) -> _Self:
        """Return a copy of the source for the next batch. Its `limit` follows from the argument `batch_size`.

        :param measured: rows and processing seconds of the last committed transactions.
        """
        if self.batch_size is None:
            return self
        copied = copy.copy(self)
        copied.limit = self.batch_size.limit(measured)
        return copied

    def refused(self, problem: str, remedy: Remedy | str) -> SourceError:
        """Return the error for rows that the source can no longer return."""
        return SourceError(source=repr(self), problem=problem, remedy=remedy)

    def rows_refused(self, problem: str, remedy: Remedy | str, place: str = "a row") -> RowsRefused:
        """Return the error for rows with a value that no reader accepts.

        :param place: place of the value that `problem` quotes, or "" if it quotes no value. The ledger stores the place
            instead of the value.
        """
        return RowsRefused(source=repr(self), problem=problem, remedy=remedy, place=place)

    def unusable(self, argument: str, value: Any, remedy: str) -> ConfigError:
        """Return the error for an unusable argument of the source."""
        return ConfigError(
            option=f"{argument} of {type(self).__name__}", value=value, remedy=remedy
        )

    def connections(self) -> Mapping[str, str]:
        """Return the type of each Airflow connection that the source needs, by connection id."""
        return {}

    def datasets(self) -> Sequence[Dataset]:
        """Return the OpenLineage datasets of the rows, without users and passwords.

        If OpenLineage is active, `begin`, committers and Spark operators call this method. Its errors fail no task.
        """
        return ()

    def backlog(self, position: Json) -> int | None:
        """Count the rows (or files, see `unit`) that follow `position` now. Return None if the number is unknown.

        :param position: position where the last committed transaction ended, or None before the first commit.
        """
        return None

    def losses(self, position: Json) -> Sequence[Loss]:
        """List the rows directly after `position` that the source can no longer return.

        Until a user accepts this loss, `decide` raises a `SourceError` that names these rows.
        """
        return ()

    def contains(self, metadata: Json, what: str) -> bool | None:
        """Return whether a batch contains a given file, offset, id or date. Return None if the source cannot tell.

        :param metadata: metadata of the batch.
        :param what: search text. Use `span` to parse a date.
        """
        return None

    def reaches(self, position: Json, what: str) -> bool | None:
        """Return whether this position is past a given offset, file or date. Return None if the source cannot tell.

        :param position: position where a transaction ended.
        :param what: search text as in `contains`, or `PARTITION:WHAT` for one partition.
        """
        return None

    def lacks(self, position: Json) -> str | None:
        """Return a clause that explains how the source went back to before this position. Return None if it did not.

        A roll forward checks this before it writes. If the source returned rows again, they would count twice.

        :param position: position where the last final transaction ended.
        """
        return None

    def explain_error(self, attempt: TransactionAttempt, error: Exception) -> TxError | None:
        """Return a clearer error for a Spark application that failed on rows of this source, or None.

        :return: a `RowsRefused` for a row that no reader accepts. The transaction is then not replayed.
        """
        return None

    def unsettled(self, metadata: Json, error: SourceNotSettled) -> TxError:
        """Return the error that ends a task whose rows are not settled.

        :return: `error` if the task can restart later, a `FailedBatch` if the transaction needs another attempt, or any
            other error if a user must act.
        """
        return error

    def in_ledger(self, conn_id: str | None, root: str | None) -> Source:
        """Return a copy of the source that knows the ZooKeeper connection and the root of its topology's ledger."""
        return self

    def corrections(self, ledger: ReadOnlyLedger, now: datetime) -> Corrections | None:
        """Find the committed transactions that lack a correction of the upstream topology.

        :param ledger: ledger of the topology that uses this source.
        :return: the corrections, or None if there is nothing to compare.
        :raises SourceError: the upstream topology was restored to a time before a correction that was already compared.
        """
        return None

    def rows_upstream(self, txids: Collection[int]) -> Mapping[int, int]:
        """Count each of these transactions' rows in the upstream table, if the source has one."""
        return {}

    def watched(self, root: str) -> Sequence[str]:
        """List the ZooKeeper paths whose changes may indicate new rows in the source.

        :param root: root path of the ledgers.
        """
        return ()

    def begun(self, txid: int, metadata: Json) -> None:
        """Handle the recording of a batch in the ledger, for example by acking its messages.

        This method is called at most once, on the object that decided the batch and still has its connections. If the
        process dies first, it is never called. The position that the next `decide` gets then shows that the batch was
        recorded.
        """

    def committed(self, txid: int, metadata: Json) -> None:
        """Handle the commit of a batch, for example by deleting its messages (Storm's ack of a spout).

        This method is called at least once. It is called again if the committer died or this method raised an error. An
        error fails the commit task's try, but not the transaction.

        :param metadata: metadata of the batch, or None if a replay found no rows.
        """

    def failed(self, txid: int, metadata: Json, reason: str) -> None:
        """Handle the failure of an attempt (Storm's fail of a spout). The batch is replayed in any case.

        This method is called at least once for each attempt that another attempt replaces. It is called when a task or
        a message fails the attempt, and again when `begin` starts the next attempt, before `decide`. A call of
        `committed` may follow, since a single cleared task resumes the same attempt. This method is not called for a
        skipped batch.
        """

    def cleanup_before(self, txid: int) -> None:
        """Delete the data that the source keeps for transactions before `txid`. Called after every commit.

        The transactions before `txid` are final, and their runs have probably ended. Do not delete the data of `txid`
        itself, since a task outside the `with Transaction` block may still read its rows.
        """

    def close(self) -> None:
        """Close the connections, and remove the rows that were staged for Spark. The next use opens new connections."""
        for staging in self._for_spark:
            staging.remove()


class DatedSource(Source):
    """The base class of a source whose batches are data intervals. The run key is the interval. See `sources.dates`."""

    @property
    def dated(self) -> DatedSource:
        return self

    @abstractmethod
    def interval(self, metadata: Json) -> Interval:
        """Return the data interval of a batch."""

    @abstractmethod
    def on_schedule(self, previous_end: PreviousEnd) -> DatedSource:
        """Return a copy of the source with a schedule, whose intervals may have gaps between them."""

    @property
    def can_omit_runs(self) -> bool:
        """Whether a lane can process the data intervals without DAG runs, if the source is `in_order`."""
        return False

    def without_runs(self, schedule: IntervalSchedule) -> DatedSource:
        """Return a source with the same data intervals. It takes them from the schedule, and needs no DAG runs."""
        raise NotImplementedError

    def next_interval(self, position: Json) -> ScheduledInterval | None:
        """Return the data interval that follows a position.

        :return: None if the interval has not ended, the schedule has no more intervals, or only a run can name it.
        :raises SourceError: this worker cannot find the interval.
        """
        return None


class TransactionalSource(Source):
    """The base class of sources without partitions. A subclass needs only `initialize_transaction` and `emit_batch`.

    With ``kind = SourceKind.OPAQUE``, a replay decides its rows again, from the end of the preceding transaction.
    """

    @abstractmethod
    def initialize_transaction(self, txid: int, position: Json) -> Batch | Json:
        """Decide the rows of a transaction.

        :param position: position after the preceding transaction, or None for the first transaction.
        :return: a `Batch`, or plain JSON that serves as both metadata and position, or None if there is no data.
        """

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        return as_batch(self.initialize_transaction(attempt.txid, position))


def as_batch(decided: Batch | Json) -> Batch | None:
    """Convert the result of `initialize_transaction` to a `Batch`. Plain JSON becomes both metadata and position."""
    if decided is None or isinstance(decided, Batch):
        return decided
    return Batch(metadata=decided, position=decided)


def rebuild(classpath: str, arguments: Mapping[str, Any]) -> Source:
    """Create a source from the result of `serialize()`, as Airflow does for triggers."""
    from importlib import import_module

    module, _, name = classpath.rpartition(".")
    source: Source = getattr(import_module(module), name)(**arguments)
    return source


def source_kind(kind: str, source: str) -> SourceKind:
    """Parse the argument `kind`.

    :param source: name of the source, for the error.
    :raises ConfigError: the kind is not ``transactional`` or ``opaque``.
    """
    if kind not in (SourceKind.TRANSACTIONAL.value, SourceKind.OPAQUE.value):
        remedy = (
            'Give "transactional" (a replay has the same rows) or "opaque" (it is decided again).'
        )
        raise ConfigError(option=f"kind of {source}", value=kind, remedy=remedy)
    return SourceKind(kind)
