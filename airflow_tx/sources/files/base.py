"""The common part of the sources of files: which files come next, and the rows of some."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import OtherSource, SourceError, TxError
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, EmittedRows, Json, SourceKind
from airflow_tx.sources.files.arguments import FolderArguments
from airflow_tx.sources.files.storage import (
    FilePath,
    FilesPosition,
    Fingerprint,
    Look,
    below,
    change_of,
    unspellable,
    words_of,
)
from airflow_tx.sources.sizing import Limit
from airflow_tx.staging.files import Listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.sources.files.batch_files import BatchFiles

log = logging.getLogger(__name__)

MOST_SCHEMA = 250_000
"""Bytes of the schema of csv files: a record of the ledger holds it twice, and a million bytes in all."""


def first_of(names: Iterable[str]) -> str:
    """List some names for people."""
    first = list(islice(names, 21))
    return ", ".join(first[:20]) + (" ..." if len(first) > 20 else "")


class FolderSource(FolderArguments):
    """The base of `FileSource` and `PartitionedFileSource`."""

    def _next(
        self, folder: str, listing: Mapping[str, Listed], position: FilesPosition
    ) -> Batch | None:
        """Decide the next files of a folder."""
        opaque = self.kind is SourceKind.OPAQUE
        if not opaque and (late := position.late(listing)):
            log.warning(
                "%r: %d file(s) will not be read, they came after %r was taken: %s. Rename them to sort after it (%s).",
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
        """Return the schema that a batch is read with, as positions keep it; None: the source declares one.

        :param positions: before the batch; `metadata`: of the batch, of each folder.
        """
        from airflow_tx.sources.files.batch_files import recorded_schema

        if self.schema is not None or self.format != "csv":
            return None
        found = recorded_schema(self._storage, self.options, positions, metadata)
        if found is not None and len(found["columns"]) > MOST_SCHEMA:
            problem = f"the names of its columns take {len(found['columns'])} bytes, and the ledger keeps {MOST_SCHEMA}"
            raise self.refused(
                problem, "Nothing was taken. Declare the columns in the DAG, by schema=."
            )
        return found

    def _new(self, listing: Iterable[str], position: FilesPosition) -> list[str]:
        return (
            position.not_taken(listing) if self.kind is SourceKind.OPAQUE else position.new(listing)
        )

    def _chosen(self, folder: str, new: Mapping[str, Listed]) -> Iterator[dict[str, Any]]:
        """Yield the next ones within the limits, with their fingerprints."""
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
                    continue  # It was there a moment ago; whenever it comes back, it is taken.
                problem = f"file {below(folder, name)} cannot be read ({error.strerror or error})"
                raise self.refused(problem, "Let it be readable.") from None
            count += 1
            yield {"name": name, **found}

    def _finished(self, folder: str, new: Mapping[str, Listed]) -> Iterator[tuple[str, Listed]]:
        """Leave out files that changed a moment ago, and, of names in order, what comes behind them."""
        now = time.time()
        ages: dict[str, float] = {}
        try:
            for name, listed in new.items():
                with suppress(OSError):  # a file that cannot be read is named where it is read
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
                    "%r: %d file(s) wait, by min_age=%s: %s. The storage gives the times, in seconds ago by "
                    "the clock of this machine (%s).",
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
                    problem, "Put it there, if only one without rows, then clear this task."
                )
            files.append({"name": file["name"], **found})
        return {**metadata, **self._rows_of(folder, files)}

    def _rows_of(self, folder: str, files: list[Any]) -> Any:
        """Make the metadata of files."""
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
        files = self._verified(attempt, metadata)
        for path in files.paths if spark is not None or self.format == "parquet" else ():
            with self._readable(attempt, files, path):
                files.check_columns(path)
        if spark is None:
            return self._rows(attempt, files)
        self._emitted = [*(each for each in self._emitted if each[0] == attempt), (attempt, files)]
        with self._readable(attempt, files, files.paths[0]):
            return files.frame(spark)

    def _rows(self, attempt: TransactionAttempt, files: BatchFiles) -> Iterator[Mapping[str, Any]]:
        for path in files.paths:
            with self._readable(attempt, files, path):
                yield from files.rows(path)

    def check_read(self, attempt: TransactionAttempt) -> None:
        if (changed := self._changed(attempt)) is not None:
            raise changed

    def _changed(self, attempt: TransactionAttempt) -> SourceError | None:
        """Find a file that is not the one it was before it was read."""
        for (of, folder, name), before in self._looks.items():
            now = self._look(folder, name) if of == attempt else before
            if now != before:
                problem = f"file {below(folder, name)} changed while it was read: {change_of(before, now)}"
                return self.refused(problem, self._restore(attempt, gone=now is None))
        return None

    def contains(self, metadata: Any, what: str) -> bool | None:
        paths = [below(metadata["folder"], file["name"]) for file in metadata["files"]]
        return any(path == what or path.endswith(f"/{what}") for path in paths)

    def reaches(self, position: Any, what: str) -> bool | None:
        taken = self._position(position)
        # By their names in order, so that nothing up to this one will be taken any more.
        return what in taken.taken or (self.kind is not SourceKind.OPAQUE and what <= taken.last)

    def explain_error(self, attempt: TransactionAttempt, error: Exception) -> TxError | None:
        from airflow_tx.sources.files.batch_files import said_by_spark

        if (found := said_by_spark(error)) is None:
            return None
        if (changed := self._changed(attempt)) is not None:
            return changed
        for of, files in self._emitted:
            misfit = files.misfit(str(error)) if of == attempt else None
            if misfit is not None:
                return self._unreadable(
                    attempt, f"{misfit[0]}: {misfit[1]}", files.declarable(*misfit)
                )
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
        except ValueError as error:
            self.check_read(attempt)  # a half-replaced file does not show its old or new content
            declared = files.declarable(path, error)
            raise self._unreadable(attempt, f"{path}: {error}", declared) from None

    def _unreadable(
        self, attempt: TransactionAttempt, problem: str, arguments: str | None = None
    ) -> SourceError:
        remedy = (
            f"Correct the file, then: {self.command('replay', attempt.txid, '--changed-rows')}; or "
        )
        if arguments is None:
            remedy += "correct the source's options and schema, then clear the task."
        else:
            remedy += f"give the source {arguments}, then clear the task."
        return self.rows_refused(problem, remedy)

    def _root(self) -> str:
        folder = self._storage.root()
        if folder is None:
            remedy = "Give an absolute path, or base=, or set AIRFLOW_TX_DATA to the folder it starts from."
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
        """Refuse a listing that is not whole: what sorts behind what is missing would be taken before it."""
        try:
            yield
        except OSError as error:
            problem = (
                f"folder {error.filename or folder} cannot be listed ({error.strerror or error})"
            )
            remedy = "Nothing was taken. Let this process list it and all folders below it, then clear the task."
            raise self.refused(problem, remedy) from error

    def _files(self, folder: str, pattern: str) -> dict[str, Listed]:
        """List the files of a folder that match; the files of a folder that matches would be in no batch.

        :raises OSError: a folder cannot be listed.
        """
        found = self._storage.entries(folder, pattern)
        folders = [name for name, each in found.items() if each.is_folder]
        # "**" finds the files of a folder that matches, too.
        if folders and "**" not in self._storage.pattern.split("/")[-2:]:
            problem = f"folder {below(folder, folders[0])} matches the glob, which names files"
            remedy = "Nothing was taken. Move it elsewhere, or, if every match is a folder, name their files: "
            raise self.refused(problem, f"{remedy}'{self.path_glob}/*'. Then clear the task.")
        return {name: each for name, each in found.items() if not each.is_folder}

    def _position(self, value: Json) -> FilesPosition:
        try:
            return FilesPosition.from_json(value)
        except ValueError as error:
            raise OtherSource(source=repr(self), problem=f"position {error}") from None

    def _verified(self, attempt: TransactionAttempt, metadata: Any) -> BatchFiles:
        from airflow_tx.sources.files.batch_files import BatchFiles, reader_options
        from airflow_tx.sources.files.schema import unpacked

        folder = str(metadata["folder"])
        looks = dict(self._looks)
        for file in metadata["files"]:
            expected = {key: file[key] for key in ("size", "digest")}
            look = self._look(folder, file["name"])
            found = None if look is None else self._found(folder, file["name"], expected, look)
            if look is None or found != expected:
                problem = f"file {below(folder, file['name'])} was {words_of(expected)}, and is {words_of(found)}"
                raise self.refused(problem, self._restore(attempt, gone=found is None))
            looks.setdefault((attempt, folder, file["name"]), look)
        self._looks = looks  # a copy of this source has its own
        names = [file["name"] for file in metadata["files"]]
        root = self._storage.path(folder)
        return BatchFiles(
            paths=[root / name for name in names],
            for_spark=[self._storage.for_spark(folder, name) for name in names],
            format=self.format,
            options=reader_options(self.format, self.options),
            declared=self.schema,
            found=unpacked(metadata.get("schema")),
            by_name=self.missing_columns == "null",
        )

    def _restore(self, attempt: TransactionAttempt, *, gone: bool) -> str:
        instead = (
            f"or take its current content: {self.command('replay', attempt.txid, '--changed-rows')}"
        )
        if gone:
            instead = f"if it is gone permanently: {self.command('skip', attempt.txid)}"
        return f"Restore its earlier content, then clear the task; {instead}"

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
