"""The base of sources: a source decides which rows a transaction has, and turns that decision into rows.

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
# How many rows a batch may have: fixed limits, or as many as the last transactions say that fit into a time.


FIRST_ROWS = 100_000
"""The limit while nothing is measured."""
LEAST_ROWS = 1_000
"""A batch is not made smaller than this to meet a target: most of its time would be overhead."""
FIRST_FILES = 100
"""The limit of a source of files while nothing is measured."""
MOST_FILES = 2_000
"""Files of an adaptive batch: one record of the ledger holds their names and digests."""
GROWTH = 10
"""A batch has at most so many times the rows of the largest one that was measured."""
ROWS_SHARE = 0.2
"""At least this part of a target is given to rows, also where the overhead alone takes as long as the target."""
FADING = 0.7
"""The weight of a measurement, compared with the next one: a slow day is forgotten."""
UNEVEN = 0.5
"""A large batch may take longer than its rows say, by this part: it may not fit into memory."""

Measured: TypeAlias = Sequence[Sequence[float]]
"""Of committed transactions, the oldest first: rows, and seconds in process."""


@dataclass(frozen=True)
class Limit:
    """How large one batch may be.

    :param rows: at most so many rows; None: no limit.
    :param bytes: at most so many bytes, estimated where the source cannot know; None: no limit.
    :param reason: what sets `rows`, in words.
    """

    rows: int | None = None
    bytes: int | None = None
    reason: str = "no limit is set"

    def of_rows_of(self, sizes: Sequence[int]) -> Limit:
        """Turn `bytes` into a number of rows, by the sizes of a sample of them; at least one row fits.

        :param sizes: bytes of each row of the sample.
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
        """Word why a batch has the rows that it has.

        :param taken: its rows.
        :param backlog: the rows that there were.
        :param unit: what is counted, if it is not rows.
        """
        if backlog is not None and taken >= backlog:
            only = f"the only {unit.removesuffix('s')} that there was"
            return only if taken == 1 else f"all {taken} {unit} that there were"
        return f"{taken} of {'many' if backlog is None else backlog} {unit}: {self.reason}"

    def shares(self, available: Mapping[str, int]) -> dict[str, int]:
        """Share `rows` among partitions, as evenly as they have them.

        :param available: per partition, how many rows it has.
        """
        left = self.rows
        shares = dict(available)
        if left is None or sum(available.values()) <= left:
            return shares
        if (
            left < len(available)
        ):  # one row each, from the partitions with the most rows; a waiting partition becomes one of them
            most = sorted(available, key=lambda name: (-available[name], name))
            return {
                name: min(available[name], 1) if name in most[:left] else 0 for name in available
            }
        # The smallest first: what one does not use is left for the others.
        for count, name in enumerate(sorted(available, key=lambda name: (available[name], name))):
            shares[name] = min(available[name], -(-left // (len(available) - count)))
            left -= shares[name]
        return shares


@dataclass(frozen=True)
class BatchSize:
    """The limits among the arguments of a source.

    :param max_rows: at most so many rows in a batch.
    :param max_bytes: at most so many bytes in a batch.
    :param target_seconds: adaptive: as many rows as are processed in so many seconds, by what the last transactions
        took. A backlog is worked off in few large batches, a trickle in small ones.
    :param first: the limit of an adaptive batch while nothing is measured.
    :param least: an adaptive batch is never limited to fewer.
    :param most: an adaptive batch never has more; None: any number.
    :param unit: what is counted, if it is not rows.
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

        :param source: whose arguments they are, for the message.
        :raises ConfigError: one is no positive number.
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
        """Make the adaptive limit of a source of files."""
        return cls(
            target_seconds=target_seconds,
            first=FIRST_FILES,
            least=1,
            most=MOST_FILES,
            unit="files",
        )

    def arguments(self) -> dict[str, float | int]:
        """Return the arguments of a source that are set."""
        given = {
            "max_rows_per_batch": self.max_rows,
            "max_bytes_per_batch": self.max_bytes,
            "target_seconds": self.target_seconds,
        }
        return {name: value for name, value in given.items() if value is not None}

    def limit(self, measured: Measured = ()) -> Limit:
        """Limit the next batch.

        :param measured: what the last transactions took; only needed with `target_seconds`.
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
    """Fit seconds of a transaction and of each row; and how many of the last ones it uses.

    Weighted least squares. Older ones that contradict newer ones are left out: fewer rows took longer, or a row took
    many times as long. Where all are alike, every second counts for the rows: the next batch is rather too small.
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
"""The rows of a batch: a DataFrame if the source was given a SparkSession, else mappings, or a frame of polars,
pandas, DuckDB or pyarrow."""
RowTypes: TypeAlias = Mapping[str, Any]
"""By the name of a column its type in pyarrow, or None."""
PreviousEnd: TypeAlias = Callable[[datetime, datetime], datetime | None]
"""Gives the end of the last interval of a schedule before one; None: it is unknown."""


@dataclass(frozen=True)
class MalformedRow:
    """A row that does not fit the schema of its source, which emits it in place of the row.

    :param content: the row as JSON, or its text.
    :param reason: what does not fit, without the value; rows with one reason are counted together.
    :param where: the place of the row in its source.
    """

    content: str
    reason: str
    where: str


def without_malformed(
    rows: Iterable[Any], malformed: list[MalformedRow]
) -> Iterator[Mapping[str, Any]]:
    """Take malformed rows out of others, into a list."""
    for row in rows:
        if isinstance(row, MalformedRow):
            malformed.append(row)
        else:
            yield row


REFUSED_VALUE = "airflow_tx: no such value: "
"""What begins the message of a query that found a value which is refused."""


def fails(problem: Column) -> Column:
    """Let a query fail at a row that has a problem; other rows stay."""
    return F.when(problem.isNotNull(), F.raise_error(problem).cast("boolean")).otherwise(
        F.lit(True)
    )


class BatchStaging:
    """Where a source may stage the rows of a batch, for Spark to read them, and what it has staged there.

    :param columns: the columns that the reader asks for; none: all.
    :ivar frame: the staged rows; None: the source has staged none. `rows`: how many they are.
    :ivar malformed: the malformed rows that it met.
    """

    def __init__(self, files: Files, folder: str, columns: Sequence[str] = ()) -> None:
        self._files = files
        # A driver that a cluster restarts works for the same try.
        self._id = uuid.uuid4().hex
        self._folder = f"{folder}_read-{self._id}"
        self._asked = frozenset(name.strip("`").lower() for name in columns)
        self._schema: Any = None
        self.rows = 0
        self.malformed: list[MalformedRow] = []
        self.frame: DataFrame | None = None

    @classmethod
    def current(cls) -> BatchStaging:
        """Return the one that the reader of a batch has opened; by default a folder of this process."""
        if (opened := _staging.get()) is not None:
            return opened
        folder = mkdtemp(prefix="airflow-tx-")
        atexit.register(rmtree, folder, ignore_errors=True)
        return cls(open_files(folder), "")

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Let it be the current one within the block."""
        token = _staging.set(self)
        try:
            yield
        finally:
            _staging.reset(token)

    def __str__(self) -> str:
        return self._files.uri(self._folder)

    def has(self, columns: Sequence[str]) -> bool:
        """Ask whether these columns of all rows are staged."""
        names = {name.strip("`").lower() for name in columns}
        return not self._asked or (bool(names) and names <= self._asked)

    def asked_of(self, schema: pa.Schema, *, whole: bool = False) -> pa.Schema:
        """Return the columns that are asked for; all, if they are asked for under other names."""
        import pyarrow as pa

        asked = [field for field in schema if field.name.lower() in self._asked]
        if whole or len(asked) < len(self._asked) or not asked:
            self._asked = frozenset()
            return schema
        return pa.schema(asked)

    def stage(
        self, spark: SparkSession, batches: pa.RecordBatchReader, *, whole: bool = False
    ) -> DataFrame:
        """Write rows into a file, and give them to Spark; no job of Spark is run.

        :param whole: whether to write all columns: others than the asked ones are used.
        """
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = self.asked_of(batches.schema, whole=whole)
        rows = 0
        with (
            self._files.writing(self._file) as sink,
            # The file is read once or twice.
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
        """Give the staged rows to Spark, as others than before to a join."""
        from airflow_tx.base.rows import spark_reader

        file = literal(self._files.spark_uri(self._file))
        return spark_reader(spark, "parquet").schema(self._schema).load(file)

    def is_lacked(self, error: Exception) -> bool:
        """Ask whether Spark has failed since it does not find what is staged."""
        told = str(error)
        return self._id in told and any(each in told for each in _NOT_FOUND)

    def remove(self) -> None:
        """Remove what is staged, if that is possible now; it goes with its try, too."""
        with suppress(Exception):
            self._files.remove_tree(self._folder)

    @property
    def _file(self) -> str:
        return f"{self._folder}/rows.parquet"


_NOT_FOUND = ("[PATH_NOT_FOUND]", "[FAILED_READ_FILE.FILE_NOT_EXIST]")
_staging: ContextVar[BatchStaging | None] = ContextVar("airflow_tx_batch_staging", default=None)


class SourceKind(str, Enum):
    """The promise of a source about a replay."""

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non-transactional"


class Source(Described, ABC):
    """The base of every source. Subclass `TransactionalSource`, or a partitioned one in `sources.partitioned`.

    Both halves of the seeds' spout are methods of one class: the coordinator half (`is_ready`, `decide`) runs in
    `begin` and in the coordinator, the emitter half (`emit_batch`, `cleanup_before`) in the processing tasks. An
    instance travels to a Spark application by the arguments of its constructor, so these are plain JSON, without
    addresses and credentials.
    """

    kind: SourceKind = SourceKind.TRANSACTIONAL
    partitioned: ClassVar[bool] = False
    per_run: ClassVar[bool] = False
    """Whether its batch is the run's own, such as its data interval, so that only a run can ask for one."""
    in_order: bool = False
    """Whether its batches are data intervals whose txids follow the dates."""
    counts_rows: ClassVar[bool] = False
    """Whether its metadata has the digest of what its rows are read from, so that rows are only counted."""
    unit: ClassVar[str] = "rows"
    """What `backlog` counts; a source of files cannot know of rows, and counts files."""
    _for_spark: tuple[BatchStaging, ...] = ()
    rows_can_change: ClassVar[bool] = True
    """Whether the rows of a batch can be others than were decided, as in a file that was corrected; not in a log, which
    only grows."""
    keeps_rows: ClassVar[bool] = True
    """Whether a batch has the same rows when it is restated, unless a person wants the current ones; not if it is all
    rows of an interval at that moment."""
    stages: ClassVar[bool] = False
    """Whether it keeps in the staging area what it takes, since its server forgets what was taken; a coordinator that
    waits for rows then asks for its `backlog`."""
    upstream: str = ""
    """The topology whose table it reads; "": it reads something else."""
    upstream_table: str = ""
    """The name of that table as a state."""
    on_correction: str = "restate"
    """Whether a correction upstream is followed (``restate``), or only shown (``report``)."""
    topology: str = "TOPOLOGY"
    """Whose rows they are, as the advice of an error names it; see `named`."""
    zone: str = ""
    """The time zone of the schedule of its DAG, in which a date is a day; "" is UTC; see `in_zone`."""
    staging: str = ""
    """The root of the staging area, for a source that `stages`, where it decides and where a batch is committed."""
    malformed: str = "refuse"
    """What becomes of a row that does not fit its schema: ``refuse`` fails the batch, ``reject`` keeps it aside."""
    batch_size: BatchSize | None = None
    """The limits of its arguments; a source that has some keeps within `limit` when it decides."""
    limit: Limit = Limit()
    """Limits of the batch that is being decided."""

    def take_malformed(self, malformed: str, why_not: str = "") -> None:
        """Take the argument that says what becomes of malformed rows.

        :param why_not: what to do about rows that cannot be kept aside; "": they can be.
        :raises ConfigError: it cannot be used.
        """
        if malformed not in ("refuse", "reject"):
            raise self.unusable("malformed", malformed, "Say 'refuse' or 'reject'.")
        if malformed == "reject" and why_not:
            raise self.unusable("malformed", malformed, why_not)
        self.malformed = malformed

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Give class path and plain-JSON constructor arguments."""
        return self.described()

    def is_ready(self) -> bool:
        """Return whether the source can decide a batch now."""
        return True

    @abstractmethod
    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        """Decide the rows of a transaction; None if there is no data.

        :param position: where the transaction before it ended; None for the first one. Of a partitioned source a
            mapping from partitions to their positions.
        """

    def decide_again(self, attempt: TransactionAttempt, metadata: Json) -> Batch | Json:
        """Decide the same batch by what the source has there now, for a person who has corrected it.

        Where the batch ends does not change. By default what was decided: rows that are known by their position alone
        are read with their current content anyway. A source that checks what it finds there says what there is to find
        now.

        :param metadata: the earlier decision.
        :return: the current metadata; a `Batch` of it, if it may have another number of rows: without a position.
        :raises SourceError: what is there now does not end where the batch ended.
        """
        return metadata

    def refuses_again(self, metadata: Json) -> str | None:
        """Say, as a clause, why the rows of a committed batch cannot be read again; None: as far as is known they can.

        A person wants the batch restated. Make only cheap checks: the reader of the rows checks them again.

        :param metadata: the earlier decision.
        """
        return None

    def changed_since(self, metadata: Json) -> str | None:
        """Say, as a clause, which rows of a batch are others by now; None: none is, as far as is known.

        `begin` asks for the batch before the one that was just decided, and warns. Make only cheap checks.

        :param metadata: the earlier decision.
        """
        return None

    @abstractmethod
    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        """Read exactly the rows that `metadata` names: a Spark DataFrame if `spark` is given, else Python rows.

        :raises SourceError: if exactly these rows cannot be had.
        """

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes | None:
        """Give the types of all columns of the rows that `emit_batch` gives; None: no one has declared the columns.

        A type is of pyarrow. None in place of a type: no one has declared it, so it is found in all rows of a batch.

        :param metadata: None: of a batch without rows.
        """
        return None

    def types_without_rows(self, attempt: TransactionAttempt, position: Json) -> RowTypes | None:
        """Give the types of all columns where a replay has found no rows; None: no one knows them.

        :param position: where the transaction ends.
        """
        return self.row_types(attempt, None)

    def emit_arrow(self, attempt: TransactionAttempt, metadata: Json) -> pa.RecordBatchReader:
        """Read the rows of `emit_batch` as record batches of pyarrow, with the declared types.

        :raises NoTable: a value is none of the type of its column, also while they are read. SourceError: as there.
        """
        rows = self.emit_batch(attempt, metadata)
        if is_frame(rows):
            return reader_of(rows)
        types = self.row_types(attempt, metadata)
        return reader_of_dicts(without_malformed(cast("Any", rows), self.malformed_rows), types)

    @cached_property
    def malformed_rows(self) -> list[MalformedRow]:
        """Keep the malformed rows that `emit_arrow` has met: a record batch has no place for them."""
        return []

    @property
    def _may_use_others(self) -> bool:
        """Whether a subclass may use other columns than its reader."""
        return not type(self).__module__.startswith("airflow_tx.")

    def _stage(self, spark: SparkSession, batches: pa.RecordBatchReader) -> DataFrame:
        """Stage rows for Spark, with the malformed ones that reading them finds."""
        staging = BatchStaging.current()
        self._for_spark = (*self._for_spark, staging)  # a copy of this source has its own
        met = len(self.malformed_rows)
        frame = staging.stage(spark, batches, whole=self._may_use_others)
        staging.malformed += self.malformed_rows[met:]
        del self.malformed_rows[met:]
        return frame

    def check_read(self, attempt: TransactionAttempt) -> None:
        """Check, before the ack, that the rows which this object has emitted were read from what it had checked.

        A file may be replaced after `emit_batch` has checked it: Spark reads it minutes later.

        :raises SourceError: other rows may have been read; nothing is acked.
        """

    def key(self, run: RunInfo) -> str:
        """Identify a run: runs of the same key always have the same transaction.

        By default its run_id; a source whose batch is the run's own interval or partition names that, since another run
        can have the same one.
        """
        return run.run_id

    def for_run(self, run: RunInfo) -> Source:
        """Return the source that decides the batch of this run; by default any run takes the next rows."""
        return self

    def for_key(self, key: str) -> Source:
        """Do the same for a run that was deleted and made again: of what it stood for only its key is left."""
        return self

    @property
    def dated(self) -> DatedSource | None:
        """Return the source itself if a batch is the data interval of a run; None: its runs have no dates."""
        return None

    def interval_of_run(self, key: str) -> Interval | None:
        """Return the data interval that a run of this key is given when it is made again; None: it has none."""
        return None

    def named(self: _Self, topology: str) -> _Self:
        """Return the source that decides rows of this topology."""
        copied = copy.copy(self)
        copied.topology = topology
        return copied

    def in_zone(self: _Self, zone: str) -> _Self:
        """Return the source that reads dates in a time zone.

        :param zone: as the ledger has noted it; "" is UTC.
        """
        copied = copy.copy(self)
        copied.zone = zone
        return copied

    def span(self, what: str) -> Span:
        """Read a date as a person types it: without a zone it is in `zone`, and a date alone is the whole day.

        :raises ValueError: it is no date.
        """
        return span_of(what, self.zone)

    def command(self, action: str, txid: int | None = None, *options: str) -> Command:
        """Name a command that a person can copy, for the advice of an error.

        :param action: such as ``accept-loss``, or ``skip`` with a txid.
        """
        of = () if txid is None else (str(txid),)
        return Command(action, self.topology, of, (*options, "--why", "TEXT"))

    def with_limit(self: _Self, measured: Measured) -> _Self:
        """Return the source that decides the next batch: with the `limit` that its `batch_size` comes to.

        :param measured: of the last committed transactions, rows and seconds in process.
        """
        if self.batch_size is None:
            return self
        copied = copy.copy(self)
        copied.limit = self.batch_size.limit(measured)
        return copied

    def refused(self, problem: str, remedy: Remedy | str) -> SourceError:
        """Make the error for rows that the source cannot give."""
        return SourceError(source=repr(self), problem=problem, remedy=remedy)

    def rows_refused(self, problem: str, remedy: Remedy | str, place: str = "a row") -> RowsRefused:
        """Make the error for rows that are there, and have a value that no reader takes.

        :param place: where the value is that the problem quotes: the ledger keeps this alone. "": it quotes no value.
        """
        return RowsRefused(source=repr(self), problem=problem, remedy=remedy, place=place)

    def unusable(self, argument: str, value: Any, remedy: str) -> ConfigError:
        """Make the error for an argument that cannot be used."""
        return ConfigError(
            option=f"{argument} of {type(self).__name__}", value=value, remedy=remedy
        )

    def connections(self) -> Mapping[str, str]:
        """Map the ids of the Airflow connections that the source needs to their types."""
        return {}

    def datasets(self) -> Sequence[Dataset]:
        """Name the places of its rows for OpenLineage, without users and passwords; none: they are not known.

        `begin`, committers and Spark operators ask if OpenLineage listens. An error fails no task.
        """
        return ()

    def backlog(self, position: Json) -> int | None:
        """Count the rows (of its `unit`) that there are now after `position`; None if the source does not know.

        :param position: where the last committed transaction ended; None if there is none.
        """
        return None

    def losses(self, position: Json) -> Sequence[Loss]:
        """List the rows that come next after `position` and that the source can no longer give, if it knows of any.

        Until a person accepts them as lost, on the record, `decide` refuses with a `SourceError` that names them.
        """
        return ()

    def contains(self, metadata: Json, what: str) -> bool | None:
        """Whether a batch has what a person looks for: a file, an offset, an id, a date; None if it cannot tell.

        :param metadata: of the batch.
        :param what: as the person typed it; `span` reads a date.
        """
        return None

    def reaches(self, position: Json, what: str) -> bool | None:
        """Whether all rows up to an offset, a file or a date were taken at this position; None: it cannot tell.

        :param position: where a transaction ended.
        :param what: as for `contains`; of a partition `PARTITION:WHAT`.
        """
        return None

    def lacks(self, position: Json) -> str | None:
        """Say, as a clause, that the source went back to before this position; None: as far as is known it did not.

        A roll forward asks before it writes: rows that the source hands out again would be counted twice.

        :param position: where the last final transaction ended.
        """
        return None

    def explain_error(self, attempt: TransactionAttempt, error: Exception) -> TxError | None:
        """Explain the error of a Spark application that read rows of this source; None if it has no better text.

        :return: a `RowsRefused` for a row that no reader takes, so that this transaction is not replayed in vain.
        """
        return None

    def unsettled(self, metadata: Json, error: SourceNotSettled) -> TxError:
        """Find out what becomes of a task whose rows are not settled: the error that it ends with instead.

        :return: `error`: it starts again later. A `FailedBatch`: the transaction needs another attempt. Another error:
            a person has to see to it.
        """
        return error

    def in_ledger(self, conn_id: str | None, root: str | None) -> Source:
        """Return the source that knows where the ledger of its topology is.

        :param conn_id: of the ZooKeeper, as the `Transaction` says it; likewise `root`.
        """
        return self

    def corrections(self, ledger: ReadOnlyLedger, now: datetime) -> Corrections | None:
        """Find which committed transactions lack a correction of the upstream topology; None: there is none.

        :param ledger: of the topology whose rows it decides.
        :raises SourceError: the upstream topology went back to before a correction that was compared.
        """
        return None

    def rows_upstream(self, txids: Collection[int]) -> Mapping[int, int]:
        """Count the rows that the upstream table has of each of these transactions; none, if it reads none."""
        return {}

    def watched(self, root: str) -> Sequence[str]:
        """List the records of the ledgers' ZooKeeper that change when it may have rows.

        :param root: of the ledgers.
        """
        return ()

    def begun(self, txid: int, metadata: Json) -> None:
        """Do what is due when the ledger has the batch that this object has decided, such as to ack its messages.

        It is called at most once, on the object that still has the connections of `decide`; never, if the process dies
        before. `decide` of the next transaction then is the first to learn it, by its position.
        """

    def committed(self, txid: int, metadata: Json) -> None:
        """Do what is due when a batch is committed, such as to let go of its messages (Storm's ack of a spout).

        It is called at least once: again if the committer died, or if it raised an error, which fails the try of the
        commit task and not the transaction.

        :param metadata: None: a replay found no rows.
        """

    def failed(self, txid: int, metadata: Json, reason: str) -> None:
        """Do what is due when an attempt has failed (Storm's fail of a spout); the batch is replayed all the same.

        It is called at least once for each attempt that another one replaces: when a task or a message has failed it,
        and by the `begin` of the next attempt, for any reason, before that one decides its rows. `committed`
        may follow: a task that is cleared alone takes the same attempt up again. A skipped batch is not reported.
        """

    def cleanup_before(self, txid: int) -> None:
        """Forget what was kept for transactions before `txid`: they are final, and so are their runs, as far as known.

        Called after every commit. Of `txid` itself a task beside or after the block may still read the rows.
        """

    def close(self) -> None:
        """Close the connections; the next use opens them again. What Spark reads is removed."""
        for staging in self._for_spark:
            staging.remove()


class DatedSource(Source):
    """A source whose batches are data intervals: the run of an interval is known by it, see `sources.dates`."""

    @property
    def dated(self) -> DatedSource:
        return self

    @abstractmethod
    def interval(self, metadata: Json) -> Interval:
        """Return the data interval of a batch."""

    @abstractmethod
    def on_schedule(self, previous_end: PreviousEnd) -> DatedSource:
        """Return the source that knows the schedule, which may leave times out: then intervals do not touch."""

    @property
    def can_omit_runs(self) -> bool:
        """Whether a lane may take its intervals `without_runs`, if they are `in_order`."""
        return False

    def without_runs(self, schedule: IntervalSchedule) -> DatedSource:
        """Return the source that takes the same intervals without their runs: the schedule says which one is next."""
        raise NotImplementedError

    def next_interval(self, position: Json) -> ScheduledInterval | None:
        """Find the interval that follows a position; None: it has not ended, there is none, or its run names it.

        :raises SourceError: this worker cannot tell.
        """
        return None


class TransactionalSource(Source):
    """A source of batches: `initialize_transaction` and `emit_batch` are the only methods that it must have.

    With ``kind = SourceKind.OPAQUE`` a replay is decided again, from where the transaction before it ended.
    """

    @abstractmethod
    def initialize_transaction(self, txid: int, position: Json) -> Batch | Json:
        """Decide the rows of transaction `txid`.

        :param position: the position after transaction txid − 1; None for the first one.
        :return: a `Batch`; plain JSON if rows and position are the same; None if there is no data.
        """

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        return as_batch(self.initialize_transaction(attempt.txid, position))


def as_batch(decided: Batch | Json) -> Batch | None:
    """Read the answer of `initialize_transaction`: plain JSON means both rows and position."""
    if decided is None or isinstance(decided, Batch):
        return decided
    return Batch(metadata=decided, position=decided)


def rebuild(classpath: str, arguments: Mapping[str, Any]) -> Source:
    """Make the source that `serialize()` described, as Airflow does with triggers."""
    from importlib import import_module

    module, _, name = classpath.rpartition(".")
    source: Source = getattr(import_module(module), name)(**arguments)
    return source


def source_kind(kind: str, source: str) -> SourceKind:
    """Read the argument `kind`.

    :param source: whose argument it is, for the message.
    :raises ConfigError: if it is not transactional and not opaque.
    """
    if kind not in (SourceKind.TRANSACTIONAL.value, SourceKind.OPAQUE.value):
        remedy = (
            'Give "transactional" (a replay has the same rows) or "opaque" (it is decided again).'
        )
        raise ConfigError(option=f"kind of {source}", value=kind, remedy=remedy)
    return SourceKind(kind)
