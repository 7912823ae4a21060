"""The file sources, `FileSource` and `PartitionedFileSource`. A transaction takes the next new files by name."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import unquote

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import OtherSource, PartitionUnavailable, SourceError, TxError
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.remedy import Remedy
from airflow_tx.base.rows import UnfitText, check_names
from airflow_tx.ledger import TransactionAttempt
from airflow_tx.outputs import Listed
from airflow_tx.sources.api import (
    Batch,
    BatchSize,
    BatchStaging,
    EmittedRows,
    Json,
    Limit,
    RowTypes,
    Source,
    SourceKind,
    TransactionalSource,
    source_kind,
)
from airflow_tx.sources.files.storage import (
    Content,
    Disk,
    FilePath,
    FilesPosition,
    Fingerprint,
    Look,
    Objects,
    OtherContent,
    Storage,
    below,
    change_of,
    split_glob,
    unspellable,
    words_of,
)
from airflow_tx.sources.partitions import PartitionedTransactionalSource

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession

    from airflow_tx.sources.files import batch as batch_files
    from airflow_tx.sources.files.batch import BatchFiles, ReadByExecutors
else:
    pa = LazyModule("pyarrow")
    batch_files = LazyModule("airflow_tx.sources.files.batch")


# --- arguments ----------------------------------------------------------------------------------------------------
# The arguments of the file sources: location, reader options, and batch limits.


class FolderArguments(Source):
    """The arguments of `FileSource` and `PartitionedFileSource`."""

    counts_rows: ClassVar[bool] = True
    unit: ClassVar[str] = "files"
    always_written = ("files_per_batch", "format", "options", "schema", "base", "kind")
    in_repr = ("files_per_batch", "max_bytes_per_batch", "target_seconds", "kind")

    def __init__(
        self,
        path_glob: str,
        files_per_batch: int | None = None,
        format: str = "csv",
        options: Mapping[str, Any] | None = None,
        schema: str | None = None,
        *,
        base: str | None = None,
        kind: str = "transactional",
        max_bytes_per_batch: int | None = None,
        conn_id: str | None = None,
        spark_folder: str | None = None,
        target_seconds: float | None = None,
        missing_columns: str = "refuse",
        min_age: float = 0,
        malformed: str = "refuse",
        read_by: str = "client",
    ) -> None:
        """Set the location of the files, how to read them, and the limits of a batch.

        :param path_glob: glob of the files, such as ``s3://bucket/flights/*.csv`` as for Airflow's ObjectStoragePath,
            or ``data/flights/*.csv`` on a disk. Every worker and Spark driver must mount the disk at the same path.
            `begin` resolves a relative path below the first of `base`, AIRFLOW_TX_DATA and AIRFLOW_HOME that is set.
            The metadata of the batch has the resulting path.
        :param files_per_batch: maximum number of files in a transaction. The default is 1, or no limit if you set
            `max_bytes_per_batch` or `target_seconds`.
        :param format: a format of Spark's reader. Without Spark, it must be csv, json (one row in each line), parquet,
            or text (one row in each line, in the column ``value``).
        :param options: options of Spark's reader. A csv file has a header unless you set ``{"header": False}``. If
            files have ``NA`` for a missing value, set ``{"nullValue": "NA"}``.
        :param schema: Spark DDL, such as ``day INT, carrier STRING``. By default, the first csv files of the topology
            define the columns, as strings unless `options` has ``{"inferSchema": True}``.
        :param base: folder of a relative glob.
        :param kind: ``transactional`` or ``opaque``.
        :param max_bytes_per_batch: maximum bytes in a transaction, by file sizes. A single file may exceed it.
        :param conn_id: Airflow connection of the object storage, if it needs one.
        :param spark_folder: Spark's name of the folder before the first wildcard, for an object storage. The default is
            the same folder with Hadoop's scheme (``s3a`` for ``s3``).
        :param target_seconds: seconds that a batch should take. Its number of files follows from the speed of the last
            transactions. This argument is only for `FileSource`.
        :param missing_columns: how to handle csv files with a header and a `schema`. ``refuse`` stops at a file with
            other columns. ``null`` matches columns by name, and fills a missing column with NULL.
        :param min_age: minimum seconds since the last change of a file, by the clocks of the storage and this machine.
            A transactional source also postpones all files after a younger file.
        :param malformed: how to handle rows of csv files, or of json files with a `schema`, that do not fit the schema.
            ``refuse`` stops at the row. ``reject`` writes it to the `rejected` table of the `Transaction`. An unclosed
            quote, another header or encoding always stops the source.
        :param read_by: how Spark reads csv files, and json files with a `schema`. With ``client``, the caller of
            `batch.read()` reads them. With ``executors``, Spark's executors do, and need this package and pyarrow.
        """
        name = type(self).__name__
        if not path_glob.strip():
            remedy = "Name files, such as data/flights/*.csv or s3://bucket/flights/*.csv."
            raise self.unusable("path_glob", path_glob, remedy)
        self._check_glob(path_glob)
        if files_per_batch is not None and (
            not isinstance(files_per_batch, int) or files_per_batch < 1
        ):
            raise self.unusable(
                "files_per_batch", files_per_batch, "Give a whole number from 1 on."
            )
        size = BatchSize.checked(
            name, max_rows=None, max_bytes=max_bytes_per_batch, target_seconds=target_seconds
        )
        if target_seconds is not None and self.partitioned:
            remedy = "Leave it out and give files_per_batch, or use FileSource."
            raise self.unusable("target_seconds", target_seconds, remedy)
        self.path_glob = path_glob
        self.files_per_batch = (
            1 if files_per_batch is None and not size.arguments() else files_per_batch
        )
        self.format = format
        self.options = dict(options or {})
        self.schema = schema
        self.base = base
        self.kind = source_kind(kind, name)
        self.max_bytes_per_batch = size.max_bytes
        self.conn_id = conn_id
        self.spark_folder = spark_folder
        self.target_seconds = target_seconds
        self.missing_columns = missing_columns
        if schema is not None and (why := batch_files.no_rule(format, schema)) is not None:
            raise self.unusable("schema", schema, why)
        if missing_columns != "refuse" and (
            why := batch_files.no_missing_columns(missing_columns, format, self.options, schema)
        ):
            raise self.unusable("missing_columns", missing_columns, why)
        if type(min_age) not in (int, float) or not 0 <= min_age < inf:
            raise self.unusable("min_age", min_age, "Give seconds, such as 60.")
        self.min_age = min_age
        rejects = malformed == "reject"
        why_not = batch_files.no_own_reader(format, self.options, schema) if rejects else ""
        self.take_malformed(malformed, why_not)
        if read_by != "client" and (
            why := batch_files.no_executors(
                format, self.options, schema, read_by=read_by, conn_id=conn_id, rejects=rejects
            )
        ):
            raise self.unusable("read_by", read_by, why)
        self.read_by = read_by
        if target_seconds is not None:
            self.batch_size = BatchSize.of_files(target_seconds)
            self.limit = self.batch_size.limit()
        self.normalize(files_per_batch=self.files_per_batch, options=self.options)
        self._storage = self._make_storage()
        self._by_executors: list[ReadByExecutors] = []
        self._looks: dict[
            tuple[TransactionAttempt, str, str], Look
        ] = {}  # the state of each file before it was read
        self._contents: dict[
            tuple[TransactionAttempt, str, str], Content
        ] = {}  # the files whose content is checked during reading

    def _check_glob(self, path_glob: str) -> None:
        """Raise an error for a glob that only the other file source can use."""

    def _make_storage(self) -> Storage:
        if "://" in self.path_glob:
            if self.base is not None:
                raise self.unusable(
                    "base", self.base, "Leave it out: the glob names an object storage."
                )
            bucket = split_glob(self.path_glob)[0].partition("://")[2].partition("/")[0]
            if "@" in bucket:
                # Do not show the glob in the error. It may contain a password.
                raise self.unusable(
                    "path_glob", "...@...", "Name the connection separately: conn_id=..."
                )
            if not bucket and not self.path_glob.startswith(("file:///", "local:///")):
                remedy = "Write the name of the bucket without wildcards, as in s3://bucket/flights/*.csv."
                raise self.unusable("path_glob", self.path_glob, remedy)
            return Objects(self.path_glob, self.conn_id, self.spark_folder)
        for name, value in {"conn_id": self.conn_id, "spark_folder": self.spark_folder}.items():
            if value is not None:
                remedy = f"{self.path_glob!r} is a path on a disk. Name an object storage, such as s3://bucket/*.csv."
                raise self.unusable(name, value, remedy)
        return Disk(self.path_glob, self.base)

    def connections(self) -> Mapping[str, str]:
        return {self.conn_id: self._storage.conn_type} if self.conn_id else {}

    def datasets(self) -> list[Dataset]:
        return self._storage.datasets()

    def _limits(self) -> str:
        limits = {
            "files_per_batch": self.files_per_batch,
            "max_bytes_per_batch": self.max_bytes_per_batch,
            "min_age": self.min_age or None,
        }
        given = [f"{name}={value}" for name, value in limits.items() if value is not None]
        return ", ".join(given if self.limit.rows is None else [*given, self.limit.reason])


# --- base ---------------------------------------------------------------------------------------------------------
# Decide the next files, and read the rows of given files. All file sources do this.


log = logging.getLogger(__name__)

MOST_SCHEMA = 250_000
"""Maximum bytes of an inferred csv schema. A ledger record, of up to a million bytes, has the schema twice."""


def first_of(names: Iterable[str]) -> str:
    """Join the first 20 names into one text."""
    first = list(islice(names, 21))
    return ", ".join(first[:20]) + (" ..." if len(first) > 20 else "")


class FolderSource(FolderArguments):
    """The base class of `FileSource` and `PartitionedFileSource`."""

    def _next(
        self, folder: str, listing: Mapping[str, Listed], position: FilesPosition
    ) -> Batch | None:
        """Decide the next files of a folder."""
        opaque = self.kind is SourceKind.OPAQUE
        if not opaque and (late := position.late(listing)):
            log.warning(
                "%r: %d file(s) will not be read: they came after %r was taken: %s. Rename them to sort after it (%s).",
                self, len(late), position.last, first_of(late), folder,
            )  # fmt: skip
        new = self._new(listing, position)
        files = list(self._chosen(folder, {name: listing[name] for name in new}))
        if not files:
            return None
        chosen = [file["name"] for file in files]
        after = position.after(chosen, None if opaque else listing)
        rows = self._rows_of(folder, files)
        why = Limit(reason=self._limits()).reason_for(len(files), len(new), self.unit)
        return Batch(rows, after.to_json(), len(files), why, self.unit)

    def _schema(self, positions: Iterable[Any], metadata: Iterable[Any]) -> Any:
        """Return the recorded schema of a batch in the form of positions, or None if the source needs no schema."""
        if self.schema is not None or self.format != "csv":
            return None
        found = batch_files.recorded_schema(self._storage, self.options, positions, metadata)
        if found is not None and len(found["columns"]) > MOST_SCHEMA:
            problem = f"its column names need {len(found['columns'])} bytes, but the ledger keeps at most {MOST_SCHEMA}"
            raise self.refused(
                problem, "Nothing was taken. Declare the columns in the DAG, by schema=."
            )
        return found

    def _new(self, listing: Iterable[str], position: FilesPosition) -> list[str]:
        return (
            position.not_taken(listing) if self.kind is SourceKind.OPAQUE else position.new(listing)
        )

    def _chosen(self, folder: str, new: Mapping[str, Listed]) -> Iterator[dict[str, Any]]:
        """Yield the next files within the limits, with their fingerprints."""
        opened = self._storage.opened(folder)
        most = min(self.files_per_batch or inf, self.limit.rows or inf)
        count = 0
        size = 0
        for name, listed in self._finished(folder, new):
            if count >= most:
                return
            if refused := unspellable(below(folder, name)):
                raise self.refused(*refused)
            try:
                if self.max_bytes_per_batch is not None:
                    size += opened.size(name, listed)
                    if count and size > self.max_bytes_per_batch:
                        return
                found = self._storage.fingerprint(folder, name, listed.info)
            except OSError as error:
                if self.kind is SourceKind.OPAQUE and isinstance(error, FileNotFoundError):
                    continue  # the file vanished; if it returns, a later batch takes it
                problem = f"file {below(folder, name)} cannot be read ({error.strerror or error})"
                raise self.refused(problem, "Make it readable for this process.") from None
            count += 1
            yield {"name": name, **found}

    def _finished(self, folder: str, new: Mapping[str, Listed]) -> Iterator[tuple[str, Listed]]:
        """Omit files younger than `min_age`. To keep the order, a transactional source stops at the first such file."""
        now = time.time()
        ages: dict[str, float] = {}
        try:
            for name, listed in new.items():
                with suppress(
                    OSError
                ):  # if the file is unreadable, the later read raises a clearer error
                    if (
                        self.min_age
                        and (age := now - self._storage.modified(folder, name)) < self.min_age
                    ):
                        ages[name] = age
                        if self.kind is SourceKind.OPAQUE:
                            continue
                        return
                yield name, listed
        finally:
            if ages:
                named = first_of(f"{name} ({age:.0f} s)" for name, age in ages.items())
                log.log(
                    logging.INFO if min(ages.values()) >= 0 else logging.WARNING,
                    "%r: %d file(s) are younger than min_age=%s and wait: %s. An age is the time of the "
                    "storage compared with the clock of this machine (%s).",
                    self, len(ages), self.min_age, named, folder,
                )  # fmt: skip

    def decide_again(self, attempt: TransactionAttempt, metadata: Any) -> Json:
        folder = str(metadata["folder"])
        files: list[Json] = []
        for file in metadata["files"]:
            found = self._found(folder, file["name"])
            if found is None:
                problem = f"file {below(folder, file['name'])} is missing or unreadable"
                raise self.refused(
                    problem, "Put a file there, even one without rows, then clear this task."
                )
            files.append({"name": file["name"], **found})
        return {**metadata, **self._rows_of(folder, files)}

    def _rows_of(self, folder: str, files: list[Any]) -> Any:
        """Return the metadata of a file batch."""
        changed = self._storage.changed(folder, (file["name"] for file in files))
        return {"folder": folder, "files": files, **({"changed": changed} if changed else {})}

    def changed_since(self, metadata: Any) -> str | None:
        folder = str(metadata["folder"])
        found = {
            below(folder, file["name"]): change_of(file, other)
            for file in metadata["files"]
            if (other := self._storage.other(folder, file, metadata.get("changed"))) is not None
        }
        if not found:
            return None
        named = first_of(f"{path}: {how}" for path, how in found.items())
        return f"{len(found)} file(s) changed: {named}"

    def refuses_again(self, metadata: Any) -> str | None:
        return self._storage.lacks(str(metadata["folder"]), metadata["files"])

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        staged = None if spark is None else self._staged_files(attempt, metadata, spark)
        return self._emit(attempt, metadata, spark, {}) if staged is None else staged

    def _staged_files(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession
    ) -> DataFrame | None:
        """Read the rows for Spark with the package's own readers. Return None if only Spark can read the files."""
        if not self._files_of(self.parts(metadata)[0][0]).has_reader:
            return None
        parts = self._folders(attempt, metadata)
        whole = batch_files.all_files(parts)
        with self._readable(attempt, whole, whole.paths[0]):
            schema = whole.schema_for_python(spark)
        parts = [replace(files, found=schema) for files in parts]
        if not parts[0].in_blocks:
            return None
        batches = self._record_batches(attempt, parts)
        if self.read_by == "client":
            return self._stage(spark, batches)
        asked = BatchStaging.current().asked_of(batches.schema, whole=self._may_use_others)
        reading = batch_files.ReadByExecutors(parts, batches.schema, asked)
        self._by_executors = [*self._by_executors, reading]  # copies share the old list
        return reading.frame(spark)

    def _folders(self, attempt: TransactionAttempt, metadata: Json) -> list[BatchFiles]:
        """Return the checked files of each folder of a batch."""
        parts = self.parts(metadata)
        return [replace(self._verified(attempt, each), named=named) for each, named in parts]

    def _emit(
        self,
        attempt: TransactionAttempt,
        metadata: Json,
        spark: SparkSession | None,
        named: Mapping[str, str | None],
    ) -> EmittedRows:
        files = replace(self._verified(attempt, metadata), named=named)
        for path in files.paths if spark is not None or self.format == "parquet" else ():
            with self._readable(attempt, files, path):
                files.check_columns(path)
        if spark is None:
            return self._rows(attempt, files)
        with self._readable(attempt, files, files.paths[0]):
            return files.frame(spark)

    def _rows(self, attempt: TransactionAttempt, files: BatchFiles) -> Iterator[Mapping[str, Any]]:
        for path in files.paths:
            with self._readable(attempt, files, path):
                yield from files.rows(path)

    def parts(self, metadata: Any) -> list[tuple[Any, Mapping[str, str | None]]]:
        """Return the metadata of each folder of a batch, with the columns from the folder's name."""
        return [] if metadata is None else [(metadata, {})]

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes | None:
        parts = self.parts(metadata)
        found = next((each["schema"] for each, _ in parts if "schema" in each), None)
        return _with_spelled(self._types(found), [columns for _, columns in parts])

    def _types(self, found: str | None) -> RowTypes | None:
        """Return the types from the declared schema, or from the schema of the first files."""
        return batch_files.declared_types(self.format, self.schema or batch_files.unpacked(found))

    def types_without_rows(self, attempt: TransactionAttempt, position: Json) -> RowTypes | None:
        folders = self.positions(position)
        schemas = (each["schema"]["columns"] for each in folders.values() if "schema" in each)
        types = self._types(next(schemas, None))
        if types is None and self.format == "parquet":
            types = self._types_of_taken(folders)
        return _with_spelled(types, [columns for _, columns in self.parts(position)])

    def positions(self, position: Any) -> Mapping[str, Any]:
        """Return the position in each folder, by the path of the folder below the root folder."""
        return {"": position or {}}

    def _types_of_taken(self, folders: Mapping[str, Any]) -> RowTypes | None:
        """Return the types of the last taken Parquet file that still exists."""
        root = self._root()
        for name, position in folders.items():
            folder = below(root, name) if name else root
            with suppress(OSError, ValueError):
                taken = self._position(position or None).taken.intersection(self._listing(folder))
                if taken:
                    schema = batch_files.parquet_schema(self._storage.path(folder) / max(taken))
                    return dict(zip(schema.names, schema.types, strict=True))
        return None

    @abstractmethod
    def _listing(self, folder: str) -> Mapping[str, Listed]:
        """Return the files of a folder that match the glob."""

    def emit_arrow(self, attempt: TransactionAttempt, metadata: Json) -> pa.RecordBatchReader:
        parts = self.parts(metadata)
        if not parts or (self.format != "parquet" and not self._files_of(parts[0][0]).in_blocks):
            return super().emit_arrow(attempt, metadata)
        return self._record_batches(attempt, self._folders(attempt, metadata))

    def _record_batches(
        self, attempt: TransactionAttempt, parts: Sequence[BatchFiles]
    ) -> pa.RecordBatchReader:
        whole = batch_files.all_files(parts)
        for path in () if whole.in_blocks else whole.paths:
            with self._readable(attempt, whole, path):
                whole.check_columns(path)
        with self._readable(attempt, whole, whole.paths[0]):
            schema = whole.arrow_schema()
        return pa.RecordBatchReader.from_batches(schema, self._batches(attempt, parts, schema))

    def _batches(
        self, attempt: TransactionAttempt, parts: Iterable[BatchFiles], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for files in parts:
            for path in files.paths:
                with self._readable(attempt, files, path):
                    yield from files.batches(path, schema, self.malformed_rows)

    def check_read(self, attempt: TransactionAttempt) -> None:
        if (changed := self._changed(attempt)) is not None:
            raise changed

    def _changed(self, attempt: TransactionAttempt) -> SourceError | None:
        """Return the error for a file that changed before or during the read. Return None if no file changed."""
        for (of, folder, name), before in self._looks.items():
            now = self._look(folder, name) if of == attempt else before
            if now != before:
                problem = f"file {below(folder, name)} changed while it was read: {change_of(before, now)}"
                return self.refused(problem, self._restore(attempt, gone=now is None))
        for (of, folder, name), content in self._contents.items():
            if of == attempt and not content.is_read:
                found = self._found(folder, name, content.expected)
                if found != content.expected:
                    return self._other_content(
                        attempt, below(folder, name), content.expected, found
                    )
        return None

    def _other_content(
        self,
        attempt: TransactionAttempt,
        path: str,
        expected: Fingerprint,
        found: Fingerprint | None,
    ) -> SourceError:
        problem = f"file {path} was {words_of(expected)}, but is {words_of(found)}"
        return self.refused(problem, self._restore(attempt, gone=found is None))

    def contains(self, metadata: Any, what: str) -> bool | None:
        paths = [below(metadata["folder"], file["name"]) for file in metadata["files"]]
        return any(path == what or path.endswith(f"/{what}") for path in paths)

    def reaches(self, position: Any, what: str) -> bool | None:
        taken = self._position(position)
        # A transactional source takes names in order, so it never takes a file up to `last` later.
        return what in taken.taken or (self.kind is not SourceKind.OPAQUE and what <= taken.last)

    def explain_error(self, attempt: TransactionAttempt, error: Exception) -> TxError | None:
        for reading in self._by_executors:
            if (met := reading.cause(error)) is not None:
                try:
                    with self._readable(attempt, *met[:2]):
                        raise met[2]
                except TxError as refused:
                    return refused
        if self._by_executors and (package := batch_files.lacking_in_executors(error)) is not None:
            remedy = "Install airflow_tx in the executors' environment of PYSPARK_PYTHON, or leave read_by out."
            return self.refused(f"the Python of Spark's executors has no {package}", remedy)
        if (found := batch_files.said_by_spark(error)) is None:
            return None
        if (changed := self._changed(attempt)) is not None:
            return changed
        return self._unreadable(attempt, found)

    @contextmanager
    def _readable(
        self, attempt: TransactionAttempt, files: BatchFiles, path: FilePath
    ) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.check_read(attempt)
            remedy = "Let this process read it, then clear the task."
            raise self.refused(f"{path}: {error}", remedy) from None
        except OtherContent as error:
            expected = files.contents[path].expected
            raise self._other_content(attempt, str(path), expected, error.found) from None
        except ValueError as error:
            self.check_read(attempt)  # the problem may be caused by a file that is being replaced
            declared = files.declarable(path, error)
            place = UnfitText.place_of(error, within=str(path))
            raise self._unreadable(attempt, f"{path}: {error}", declared, place) from None

    def _unreadable(
        self,
        attempt: TransactionAttempt,
        problem: str,
        arguments: str | None = None,
        place: str = "a row",
    ) -> SourceError:
        given = arguments and f"give the source {arguments}"
        declare = given or "correct the options and the schema of the source"
        remedy = (
            "Correct the file, then: "
            + self.command("replay", attempt.txid, "--changed-rows")
            + f"; or {declare}, then clear the task."
        )
        return self.rows_refused(problem, remedy, place)

    def _root(self) -> str:
        folder = self._storage.root()
        if folder is None:
            remedy = "Give an absolute path, or base=, or set AIRFLOW_TX_DATA to the folder that the path starts from."
            problem = "its path is relative, and AIRFLOW_TX_DATA and AIRFLOW_HOME are not set"
            raise self.refused(problem, remedy)
        with self._listable(folder):
            if not self._storage.is_folder(folder):
                raise self.refused(
                    f"folder {folder} does not exist", "Make it, mount it, or correct the path."
                )
        return folder

    @contextmanager
    def _listable(self, folder: str) -> Iterator[None]:
        """Raise an error if a listing is incomplete, since files after missing names would be taken too early."""
        try:
            yield
        except OSError as error:
            problem = (
                f"folder {error.filename or folder} cannot be listed ({error.strerror or error})"
            )
            remedy = "Nothing was taken. Let this process list the folder and its subfolders, then clear the task."
            raise self.refused(problem, remedy) from error

    def _files(self, folder: str, pattern: str) -> dict[str, Listed]:
        """Return the files that match. Raise an error if a folder matches, since no batch would contain its files.

        :raises OSError: a folder cannot be listed.
        """
        found = self._storage.entries(folder, pattern)
        folders = [name for name, each in found.items() if each.is_folder]
        # "**" also finds the files in a matching folder.
        if folders and "**" not in self._storage.pattern.split("/")[-2:]:
            problem = f"folder {below(folder, folders[0])} matches the glob, but the glob must match only files"
            remedy = "Nothing was taken. Move the folder. If every match is a folder, let the glob match their files: "
            raise self.refused(problem, f"{remedy}'{self.path_glob}/*'. Then clear the task.")
        return {name: each for name, each in found.items() if not each.is_folder}

    def _position(self, value: Json) -> FilesPosition:
        try:
            return FilesPosition.from_json(value)
        except ValueError as error:
            raise OtherSource(source=repr(self), problem=f"position {error}") from None

    def _files_of(self, metadata: Any) -> BatchFiles:
        """Return the files in a folder's metadata, without reading them."""
        folder = str(metadata["folder"])
        names = [file["name"] for file in metadata["files"]]
        root = self._storage.path(folder)
        return batch_files.BatchFiles(
            paths=[root / name for name in names],
            for_spark=[self._storage.for_spark(folder, name) for name in names],
            format=self.format,
            options=batch_files.reader_options(self.format, self.options),
            declared=self.schema,
            found=batch_files.unpacked(metadata.get("schema")),
            by_name=self.missing_columns == "null",
            rejects=self.malformed == "reject",
            size=sum(file["size"] for file in metadata["files"]),
        )

    def _verified(self, attempt: TransactionAttempt, metadata: Any) -> BatchFiles:
        files = self._files_of(metadata)
        folder = str(metadata["folder"])
        looks = dict(self._looks)
        checked = dict(self._contents)
        contents = dict[FilePath, Content]()
        for path, file in zip(files.paths, metadata["files"], strict=True):
            name = file["name"]
            expected = {key: file[key] for key in ("size", "digest")}
            look = self._look(folder, name)
            content = self._storage.content(expected) if files.in_blocks else None
            if content is not None and look is not None and look["size"] == file["size"]:
                contents[path] = checked[attempt, folder, name] = content
            else:
                found = None if look is None else self._found(folder, name, expected, look)
                if look is None or found != expected:
                    raise self._other_content(attempt, below(folder, name), expected, found)
            looks.setdefault((attempt, folder, name), look)
        # Assign new dicts, since copies of this source share the old ones.
        self._looks = looks
        self._contents = checked
        return replace(files, contents=contents)

    def _restore(self, attempt: TransactionAttempt, *, gone: bool) -> Remedy:
        instead = "or process its current content"
        step = self.command("replay", attempt.txid, "--changed-rows")
        if gone:
            instead = "if the file is gone permanently"
            step = self.command("skip", attempt.txid)
        restore = f"Restore its earlier content, then clear the task; {instead}: "
        return Remedy((restore, step))

    def _look(self, folder: str, name: str) -> Look | None:
        with suppress(OSError):
            return self._storage.look(folder, name)
        return None

    def _found(
        self, folder: str, name: str, expected: Fingerprint | None = None, info: Look | None = None
    ) -> Fingerprint | None:
        with suppress(OSError):
            return self._storage.fingerprint(folder, name, info, like=expected)
        return None


# --- source -------------------------------------------------------------------------------------------------------


_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


class FileSource(FolderSource, TransactionalSource):
    """A source of new files. A transaction takes up to `files_per_batch` files.

    The metadata of a batch holds the folder, and the name, size and digest of each file. If a file is missing or
    changed later, the read fails. Move complete files into the folder, since a growing file counts as changed.

    With ``kind="transactional"``, the source takes files in the order of their names, and they must arrive in this
    order. A file that arrives after a greater name was taken is never read. `begin` logs a warning each time (see
    `late_files`).

    With ``kind="opaque"``, the source takes every new file, with any name. A replay takes the files that exist then, so
    it takes a missing file once it is back. The position has all names ever taken, with 2 to 5 bytes for each.
    """

    def initialize_transaction(self, txid: int, position: Json) -> Batch | None:
        taken = self._position(position)
        folder = self._root()
        listing = self._listing(folder)
        if not listing and position is None and self.kind is SourceKind.TRANSACTIONAL:
            where = below(folder, self._storage.pattern)
            raise self.refused(f"no file matches {where}", "Correct the glob, or put a file there.")
        batch = self._next(folder, listing, taken)
        if batch is None or (schema := self._schema([position], [batch.metadata])) is None:
            return batch
        metadata = cast("Any", batch.metadata)
        after = cast("Any", batch.position)
        return replace(
            batch,
            metadata={**metadata, "schema": schema["columns"]},
            position={**after, "schema": schema},
        )

    def late_files(self, position: Json) -> list[str]:
        """Return the files that arrived too late. They sort before the last file taken, and are never read.

        :raises SourceError: the folder is missing.
        """
        taken = self._position(position)
        if self.kind is not SourceKind.TRANSACTIONAL:
            return []
        return taken.late(self._listing(self._root()))

    def backlog(self, position: Json) -> int:
        return len(self._new(self._listing(self._root()), self._position(position)))

    def _listing(self, folder: str) -> dict[str, Listed]:
        with self._listable(folder):
            return self._files(folder, self._storage.pattern)


class PartitionedFileSource(PartitionedTransactionalSource, FolderSource):
    """A `FileSource` for a glob with wildcards in its folders, such as ``data/orders/*/*.csv``.

    Every matching folder is a partition. A transaction takes the next `files_per_batch` files of each folder. You can
    add a folder at any time. The rules of ``kind`` apply to the files within each folder. If a folder is missing, a
    transactional source fails. An opaque source omits the folder, and later resumes at its position in the folder.

    As in Spark, a folder named ``region=eu`` adds a text column ``region`` to its rows.
    """

    def _check_glob(self, path_glob: str) -> None:
        if not any(character in path_glob.rpartition("/")[0] for character in "*?["):
            remedy = (
                "Put a wildcard into its folders, such as data/orders/*/*.csv, or use FileSource."
            )
            raise self.unusable("path_glob", path_glob, remedy)

    def partitions(self) -> list[str]:
        folder = self._root()
        pattern = self._storage.pattern.rpartition("/")[0]
        with self._listable(folder):
            found = self._storage.folders(folder, pattern)
        if not found:
            log.warning("%r: no folder matches %s.", self, below(folder, pattern))
        return found

    # Store one schema for all folders, since thousands of schemas would not fit into a record.

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        batch = super().decide(attempt, position)
        positions = self.partition_positions(position)
        if batch is None:
            return None
        metadata = cast("Any", batch.metadata)
        after = cast("Any", batch.position)
        schema = self._schema(positions.values(), metadata.values())
        if schema is None:
            return batch
        first = min(metadata)
        keeper = next(
            (name for name, each in positions.items() if each.get("schema") == schema), first
        )
        return replace(
            batch,
            metadata={**metadata, first: {**metadata[first], "schema": schema["columns"]}},
            position={
                name: {**each, "schema": schema} if name == keeper else each
                for name, each in after.items()
            },
        )

    def parts(self, metadata: Any) -> list[tuple[Any, Mapping[str, str | None]]]:
        given: dict[str, Any] = metadata or {}
        schemas = ({"schema": each["schema"]} for each in given.values() if "schema" in each)
        schema = next(schemas, {})
        return [({**each, **schema}, self._spelled(name)) for name, each in sorted(given.items())]

    def _spelled(self, partition: str) -> dict[str, str | None]:
        """Return the columns that folder names such as ``region=eu`` define, as in Hive."""
        parts = (part.partition("=") for part in Path(partition).parts)
        pairs = [(unquote(name), value) for name, equals, value in parts if name and equals]
        try:
            check_names(name for name, _ in pairs)
        except ValueError as error:
            remedy = "Rename one of the folders."
            raise self.rows_refused(f"folder {partition}: {error}", remedy, place="") from None
        return {name: None if value == _HIVE_NULL else unquote(value) for name, value in pairs}

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        if isinstance(metadata, dict) and metadata:
            if (
                spark is not None
                and (staged := self._staged_files(attempt, metadata, spark)) is not None
            ):
                return staged
            parts = zip(sorted(metadata), self.parts(metadata), strict=True)
            metadata = {name: each for name, (each, _) in parts}
        return super().emit_batch(attempt, metadata, spark)

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, partition: str, position: Json
    ) -> Batch | None:
        folder = below(self._root(), partition)
        try:
            listing = self._listing(folder) if self._storage.is_folder(folder) else None
        except OSError as error:
            reason = f"folder {folder} cannot be listed ({error.strerror or error})"
            raise PartitionUnavailable(
                partition=partition, source=repr(self), reason=reason
            ) from error
        if listing is None:
            raise PartitionUnavailable(
                partition=partition, source=repr(self), reason=f"folder {folder} is gone"
            )
        return self._next(folder, listing, self._position(position))

    def limit_reason(self, count: int, positions: Mapping[str, Json]) -> str:
        return f"of each folder {self._limits()}"

    def backlog(self, position: Json) -> int:
        positions = self.partition_positions(position)
        root = self._root()
        count = 0
        for name in self.partitions():
            folder = below(root, name)
            with self._listable(folder):
                count += len(self._new(self._listing(folder), self._position(positions.get(name))))
        return count

    def positions(self, position: Any) -> Mapping[str, Any]:
        return {
            name: each or {} for name, each in sorted(self.partition_positions(position).items())
        }

    def _listing(self, folder: str) -> Mapping[str, Listed]:
        return self._files(folder, self._storage.pattern.rpartition("/")[2])

    def decide_partition_again(
        self, attempt: TransactionAttempt, partition: str, metadata: Json
    ) -> Json:
        return FolderSource.decide_again(self, attempt, metadata)

    def changed_since(self, metadata: Any) -> str | None:
        found = (FolderSource.changed_since(self, each) for each in metadata.values())
        return "; ".join(filter(None, found)) or None

    def partition_refuses_again(self, partition: str, metadata: Json) -> str | None:
        return FolderSource.refuses_again(self, metadata)

    def partition_contains(self, partition: str, metadata: Json, what: str) -> bool | None:
        return FolderSource.contains(self, metadata, what)

    def partition_reaches(self, partition: str, position: Json, what: str) -> bool | None:
        return FolderSource.reaches(self, position, what)

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        partition: str,
        metadata: Json,
        spark: SparkSession | None = None,
    ) -> EmittedRows:
        return self._emit(attempt, metadata, spark, self._spelled(partition))


def _with_spelled(
    types: RowTypes | None, folders: Iterable[Mapping[str, str | None]]
) -> RowTypes | None:
    """Add the columns that only folder names define."""
    spelled = {name: pa.string() for columns in folders for name in columns}
    return None if types is None else {**types, **{n: spelled[n] for n in spelled.keys() - types}}
