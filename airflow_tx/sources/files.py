"""Files of a folder, by name: the next few new ones are a transaction. See `folders` for a folder of such folders."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import ConfigError, SourceError
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, Json, SourceKind, TransactionalSource
from airflow_tx.sources.fileset import Position, fingerprint, list_files, split_glob
from airflow_tx.sources.kinds import source_kind
from airflow_tx.sources.records import csv_schema, read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

# Read strictly: by Spark's own default a damaged row turns into nulls, and a header is not looked at.
# An option that the user gives wins.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "csv": {"header": True, "enforceSchema": False, "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}


class Files:
    """What the sources of files share: their arguments, which files come next, and the rows of some.

    :param path_glob: such as ``data/flights/*.csv``, on a disk that every worker and every Spark driver mounts at the
        same place. A relative one lies below `base`, else below the folder in AIRFLOW_TX_DATA, else below
        AIRFLOW_HOME, all as seen by `begin`: the folder it finds travels with the batch.
    :param files_per_batch: at most so many files a transaction.
    :param format: a format of Spark's reader; without Spark csv, json (a row a line) and parquet.
    :param options: options of that reader. csv has a header unless ``{"header": False}``; flights with ``NA`` for "no
        value" need ``{"nullValue": "NA"}``.
    :param schema: Spark DDL, such as ``day INT, carrier STRING``; without one the fields of a csv file are strings.
    :param base: the folder that a relative glob starts from.
    :param kind: ``transactional`` or ``opaque``.
    """

    kind: SourceKind

    def __init__(
        self,
        path_glob: str,
        files_per_batch: int = 1,
        format: str = "csv",
        options: Mapping[str, Any] | None = None,
        schema: str | None = None,
        base: str | None = None,
        kind: str = "transactional",
    ) -> None:
        name = type(self).__name__
        if "://" in path_glob or not path_glob.strip():
            remedy = "Name files on a mounted disk, such as data/flights/*.csv."
            raise ConfigError(option=f"path_glob of {name}", value=path_glob, remedy=remedy)
        self._check_glob(path_glob)
        if not isinstance(files_per_batch, int) or files_per_batch < 1:
            remedy = "Give a whole number from 1 on."
            raise ConfigError(option=f"files_per_batch of {name}", value=files_per_batch, remedy=remedy)
        self.path_glob = path_glob
        self.files_per_batch = files_per_batch
        self.format = format
        self.options = dict(options or {})
        self.schema = schema
        self.base = base
        self.kind = source_kind(kind, name)

    def _check_glob(self, path_glob: str) -> None:
        """Refuse a glob that only another source of files can use."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, as they were given."""
        arguments = {
            "path_glob": self.path_glob,
            "files_per_batch": self.files_per_batch,
            "format": self.format,
            "options": self.options,
            "schema": self.schema,
            "base": self.base,
            "kind": self.kind.value,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    def __repr__(self) -> str:
        kind = ", kind='opaque'" if self.kind is SourceKind.OPAQUE else ""
        return f"{type(self).__name__}({self.path_glob!r}, files_per_batch={self.files_per_batch}{kind})"

    def _next(self, folder: Path, listing: list[str], position: Position) -> Batch | None:
        """The next files of a folder."""
        opaque = self.kind is SourceKind.OPAQUE
        if not opaque:
            self._warn_of(position.late(listing), folder, position)
        new = position.not_taken(listing) if opaque else position.new(listing)
        files = list(islice(self._fingerprints(folder, new), self.files_per_batch))
        if not files:
            return None
        chosen = [file["name"] for file in files]
        after = position.after(chosen, None if opaque else listing)
        rows: Any = {"folder": str(folder), "files": files}
        return Batch(rows=rows, position=after.to_json())

    def _warn_of(self, late: list[str], folder: Path, position: Position) -> None:
        if late:
            log.warning(
                "%r: %d file(s) will not be read, they came after %r was taken: %s. Rename them to sort after it (%s).",
                self, len(late), position.last, ", ".join(late[:20]) + (" ..." if len(late) > 20 else ""), folder,
            )  # fmt: skip

    def _fingerprints(self, folder: Path, names: list[str]) -> Iterator[dict[str, Any]]:
        for name in names:
            try:
                yield {"name": name, **fingerprint(folder / name)}
            except OSError as error:
                if self.kind is SourceKind.OPAQUE and isinstance(error, FileNotFoundError):
                    continue  # It was there a moment ago; whenever it comes back, it is taken.
                problem = f"file {folder / name} cannot be read ({error.strerror})"
                raise self._refused(problem, "Let it be readable.") from None

    def _rows_of(self, metadata: Json, spark: SparkSession | None) -> DataFrame | Iterable[Mapping[str, Any]]:
        """The rows of exactly the files that `metadata` names, after a check that none has changed."""
        paths = self._verified(metadata)
        options = {**_DEFAULTS.get(self.format, {}), **self.options}
        if spark is None:
            return self._rows(paths, options)
        reader = spark.read.format(self.format).options(**options)
        schema = self.schema or (self._header_schema(paths[0], options) if self.format == "csv" else None)
        if schema:
            reader = reader.schema(schema)
        return reader.load([spark_path(path) for path in paths])

    def _rows(self, paths: list[Path], options: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        for path in paths:
            try:
                yield from read_rows(path, self.format, options, self.schema)
            except (ValueError, OSError) as error:
                raise self._unreadable(path, error) from None

    def _header_schema(self, path: Path, options: Mapping[str, Any]) -> str | None:
        try:
            return csv_schema(path, options)
        except (ValueError, OSError) as error:
            raise self._unreadable(path, error) from None

    def _unreadable(self, path: Path, error: Exception) -> SourceError:
        return self._refused(f"{path}: {error}", "Correct the file, or the source's options and schema.")

    def _folder(self) -> Path:
        folder = Path(split_glob(self.path_glob)[0]).expanduser()
        if folder.is_absolute():
            return folder
        base = self.base or os.environ.get("AIRFLOW_TX_DATA") or os.environ.get("AIRFLOW_HOME")
        if not base:
            remedy = "Give an absolute path, or base=, or set AIRFLOW_TX_DATA to the folder it starts from."
            raise self._refused("its path is relative, and neither AIRFLOW_TX_DATA nor AIRFLOW_HOME is set", remedy)
        return Path(os.path.abspath(Path(base).expanduser() / folder))

    def _root(self) -> tuple[Path, str]:
        """The folder that exists, and the pattern of what lies below it."""
        folder = self._folder()
        if not folder.is_dir():
            raise self._refused(f"folder {folder} does not exist", "Make it, mount it, or correct the path.")
        return folder, split_glob(self.path_glob)[1]

    def _position(self, value: Json) -> Position:
        try:
            return Position.from_json(value)
        except ValueError as error:
            remedy = "The topology had another source before: give it another name, Transaction(topology=...)."
            raise self._refused(f"position {error}", remedy) from None

    def _verified(self, metadata: Any) -> list[Path]:
        folder = Path(metadata["folder"])
        for file in metadata["files"]:
            path, expected = folder / file["name"], {key: file[key] for key in ("size", "digest")}
            # A sampled digest stands for any size, so that the limit between the two kinds may change.
            found = self._found(path, whole=-1 if file["digest"].startswith("sample:") else file["size"])
            if found != expected:
                remedy = "Restore it as it was, then clear the task; if it is gone for good, skip the transaction."
                raise self._refused(f"file {path} was {_words(expected)}, and is {_words(found)}", remedy)
        return [folder / file["name"] for file in metadata["files"]]

    @staticmethod
    def _found(path: Path, whole: int) -> dict[str, Any] | None:
        try:
            return fingerprint(path, whole)
        except OSError:
            return None

    def _refused(self, problem: str, remedy: str) -> SourceError:
        return SourceError(source=repr(self), problem=problem, remedy=remedy)


class FileSource(Files, TransactionalSource):
    """New files by name: a transaction is the next `files_per_batch` of them, or as many as there are.

    The metadata of a batch holds the folder and each file's name, size and digest; a file that is gone or changed after
    its batch was fixed is an error. Move files in whole: one that still grows when it is taken counts as changed.

    ``kind="transactional"``: files are taken in the order of their names, so they must arrive in it. One that comes
    when a greater name has been taken is never read, and `begin` warns of it every time (see `late_files`).

    ``kind="opaque"``: every file that was not taken yet is taken, whatever its name. A replay takes what is there then:
    a file that vanished is left out until it is back. All names ever taken are remembered, 2 to 5 bytes each.
    """

    def initialize_transaction(self, txid: int, prev_metadata: Json) -> Batch | None:
        """Take the next files.

        :raises SourceError: if the folder is missing, or, with kind transactional, never held a file that matches.
        """
        position = self._position(prev_metadata)
        folder, pattern = self._root()
        listing = list_files(folder, pattern)
        if not listing and prev_metadata is None and self.kind is SourceKind.TRANSACTIONAL:
            raise self._refused(f"no file matches {folder / pattern}", "Correct the glob, or put a file there.")
        return self._next(folder, listing, position)

    def late_files(self, position: Json) -> list[str]:
        """The names that sort before `position` and were never taken: they came too late, and will not be read.

        :raises SourceError: if the folder is missing.
        """
        taken = self._position(position)
        return taken.late(list_files(*self._root())) if self.kind is SourceKind.TRANSACTIONAL else []

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> DataFrame | Iterable[Mapping[str, Any]]:
        """The rows of exactly the files that `metadata` names, after a check that none has changed.

        :raises SourceError: if one is gone or has changed, or cannot be read.
        """
        return self._rows_of(metadata, spark)


def _words(found: dict[str, Any] | None) -> str:
    return f"{found['size']} bytes with {found['digest']}" if found else "missing or unreadable"


def spark_path(path: Path) -> str:
    """A local path as Spark's readers take it: with a scheme, and with wildcards in its name taken literally."""
    return "file://" + "".join(f"\\{character}" if character in "*?[]{}\\" else character for character in str(path))
