"""The arguments of the sources of files: what names the files, how they are read, and how many make a batch."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Source, source_kind
from airflow_tx.sources.files.storage import Disk, Look, Storage, split_glob
from airflow_tx.sources.sizing import BatchSize

if TYPE_CHECKING:
    from airflow_tx.sources.files.batch_files import BatchFiles


class FolderArguments(Source):
    """The arguments of `FileSource` and `PartitionedFileSource`."""

    columns_cost: ClassVar[bool] = True
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
    ) -> None:
        """Take what names the files, and how they are read.

        :param path_glob: such as ``data/flights/*.csv``, on a disk that every worker and every Spark driver mounts at
            the same path; or ``s3://bucket/flights/*.csv``, as Airflow's ObjectStoragePath takes it. A relative one
            is below `base`, else below the folder in AIRFLOW_TX_DATA, else below AIRFLOW_HOME, all as `begin`
            finds them: the folder travels with the batch.
        :param files_per_batch: at most so many files a transaction; by default one, or any number that
            `max_bytes_per_batch` and `target_seconds` allow.
        :param format: a format of Spark's reader; without Spark csv, json (a row a line), parquet and text (a row a
            line, in the column ``value``).
        :param options: options of that reader. csv has a header unless ``{"header": False}``; flights with ``NA`` for
            "no value" need ``{"nullValue": "NA"}``.
        :param schema: Spark DDL, such as ``day INT, carrier STRING``; without it, the schema of a csv file is found in
            the first files of the topology: its fields are strings, unless ``{"inferSchema": True}`` is an option.
        :param base: the folder that a relative glob starts from.
        :param kind: ``transactional`` or ``opaque``.
        :param max_bytes_per_batch: at most so many bytes a transaction, by the sizes of the files; one file always
            fits.
        :param conn_id: of an object storage: the Airflow connection, unless it is found without one.
        :param spark_folder: of an object storage: what Spark calls the folder before the first wildcard; by default
            the same with Hadoop's scheme (``s3a`` for ``s3``).
        :param target_seconds: of a `FileSource`: as many files as are processed in so many seconds, as the last ones.
        :param missing_columns: of csv files with a header and a `schema`: ``refuse`` files that have other columns, or
            ``null`` finds columns by their names, and a column that a file lacks is NULL.
        :param min_age: seconds. A file that changed less than so long ago waits, by the time that its storage gives it
            and the clock of this machine. Of names in order, what comes behind the file waits, too.
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
        if (why := self._no_missing_columns()) is not None:
            raise self.unusable("missing_columns", missing_columns, why)
        if type(min_age) not in (int, float) or not 0 <= min_age < inf:
            raise self.unusable("min_age", min_age, "Give seconds, such as 60.")
        self.min_age = min_age
        if target_seconds is not None:
            self.batch_size = BatchSize.of_files(target_seconds)
            self.limit = self.batch_size.limit()
        self.normalize(files_per_batch=self.files_per_batch, options=self.options)
        self._storage = self._make_storage()
        self._emitted: list[
            tuple[TransactionAttempt, BatchFiles]
        ] = []  # to Spark, of the newest attempt
        self._looks: dict[
            tuple[TransactionAttempt, str, str], Look
        ] = {}  # of files, before they were read

    def _check_glob(self, path_glob: str) -> None:
        """Refuse a glob that only another source of files can use."""

    def _no_missing_columns(self) -> str | None:
        """Say why `missing_columns` cannot be used; None: it can be."""
        from airflow_tx.rows.types import columns_of
        from airflow_tx.sources.files.batch_files import reader_options
        from airflow_tx.sources.files.csv_format import CsvFormat

        if self.missing_columns == "refuse":
            return None
        if self.missing_columns != "null":
            return "Say 'refuse' or 'null'."
        if self.format == "json":
            return "Leave it out: with a schema, a field that a JSON object lacks is NULL."
        if self.format != "csv":
            return "Leave it out: it is for csv files."
        if self.schema is None:
            return "Give the columns, too, such as schema='day INT, carrier STRING'."
        try:
            columns_of(self.schema)
            written = CsvFormat.of(reader_options("csv", self.options))
        except ValueError as error:
            return f"Leave it out: {error}."
        return None if written.header else "Leave it out: the files have no header."

    def _make_storage(self) -> Storage:
        if "://" in self.path_glob:
            if self.base is not None:
                raise self.unusable(
                    "base", self.base, "Leave it out: the glob names an object storage."
                )
            bucket = split_glob(self.path_glob)[0].partition("://")[2].partition("/")[0]
            if "@" in bucket:
                # A password could be there, too.
                raise self.unusable(
                    "path_glob", "...@...", "Name the connection apart: conn_id=..."
                )
            if not bucket and not self.path_glob.startswith(("file:///", "local:///")):
                remedy = "Name the bucket, without wildcards, such as s3://bucket/flights/*.csv."
                raise self.unusable("path_glob", self.path_glob, remedy)
            from airflow_tx.sources.files.object_storage import Objects

            return Objects(self.path_glob, self.conn_id, self.spark_folder)
        for name, value in {"conn_id": self.conn_id, "spark_folder": self.spark_folder}.items():
            if value is not None:
                remedy = f"{self.path_glob!r} is on a disk; name an object storage, such as s3://bucket/*.csv."
                raise self.unusable(name, value, remedy)
        return Disk(self.path_glob, self.base)

    def connections(self) -> Mapping[str, str]:
        return {self.conn_id: self._storage.conn_type} if self.conn_id else {}

    def _limits(self) -> str:
        limits = {
            "files_per_batch": self.files_per_batch,
            "max_bytes_per_batch": self.max_bytes_per_batch,
            "min_age": self.min_age or None,
        }
        given = [f"{name}={value}" for name, value in limits.items() if value is not None]
        return ", ".join(given if self.limit.rows is None else [*given, self.limit.reason])
