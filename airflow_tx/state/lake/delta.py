"""Delta tables through deltalake, without Spark and without a JVM.

`max_commit_retries=0` makes each commit a compare-and-set of the version. With retries, deltalake could commit an
outranked writer's change after the raise that outranked it.

The fence is not a table property. If it were, deltalake would also commit a protocol change. Readers of tables with
local timestamps would then need support for the type VARIANT. A raise commits its own number and a random number. Both
are part of the name of the file with the fence text.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import Barrier
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast
from urllib.parse import quote, unquote

from airflow_tx.base.connections import S3_SCHEMES, endpoint_of, scrubbed
from airflow_tx.base.errors import (
    ConfigError,
    StateDiffers,
    StateError,
    StateOutcomeUnknown,
    StateUnavailable,
)
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import first_line
from airflow_tx.state.api import STAGED, TXID, FenceMoved
from airflow_tx.state.lake.schema import (
    TXID_FIELD,
    FieldJson,
    Schema,
    TableRequirements,
    struct,
    text_of,
)

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa  # type: ignore[import-untyped]
else:
    deltalake = LazyModule("deltalake")
    pa = LazyModule("pyarrow")


# --- folder -------------------------------------------------------------------------------------------------------
# The files in a table's folder, live or not, on any storage that deltalake supports.


class Folder:
    """A folder on any storage, identified by its URI.

    :param options: storage options of deltalake.
    """

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self._uri = uri
        self._options = dict(options)

    @property
    def _is_local(self) -> bool:
        return "://" not in self._uri

    @cached_property
    def _handler(self) -> Any:
        from deltalake.fs import DeltaStorageHandler

        return DeltaStorageHandler(self._uri, self._options or None)

    def listed(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files below a folder, by path relative to the table."""
        from pyarrow import fs

        if self._is_local and not os.path.isdir(self._uri):
            return {}
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
        found = self._handler.get_file_info_selector(selector)
        return {each.path: each.size for each in found if each.type is fs.FileType.File}

    def open(self, path: str) -> BinaryIO:
        """Open a file for random access reads."""
        return cast("BinaryIO", self._handler.open_input_file(path))

    @contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        """Open a file for writing. The file exists only after the end of the `with` block."""
        if self._is_local:
            os.makedirs(self._uri, exist_ok=True)
        parent = path.rpartition("/")[0]
        self._handler.create_dir(parent, True)
        out = self._handler._handler.open_output_stream(path, None)
        yield pa.PythonFile(_Bytes(out), mode="w")
        out.close()

    def remove(self, path: str) -> None:
        """Delete a file, and any folders that are then empty. Object stores have no folders."""
        self._handler.delete_file(path)
        if self._is_local:
            with suppress(OSError):
                os.removedirs(os.path.join(self._uri, os.path.dirname(path)))


class _Bytes:
    """Wraps a stream that accepts only bytes, so that pyarrow can write buffers to it."""

    closed = False

    def __init__(self, out: Any) -> None:
        self._out = out

    def write(self, data: Any) -> int:
        self._out.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing, because the end of the `with` block closes the stream."""

    def close(self) -> None:
        """Do nothing, like `flush`."""


# --- manifest -----------------------------------------------------------------------------------------------------
# The manifest of an output that is appended to a table. It lists the Parquet files that tasks have
# written to the table's folder.
#
# A task stages one row per file, like any other output. No row of a file is in the table before its
# commit.


FENCES = f"{STAGED}/_fence"
"""The folder for files with fence texts."""
_TEXTS = ("path", "partition", "stats", "schema")
_NUMBERS = ("size", "rows")
# Names of the files that this package writes. It never deletes other files in the folder.
_STAGED_FILE = re.compile(rf"{STAGED}/([0-9]+)\.[0-9]+\.[0-9a-f]{{16}}/.+")
_FENCE_FILE = re.compile(rf"{FENCES}/([0-9]+)-[0-9a-f]{{16}}\.json")


@dataclass(frozen=True)
class TableFile:
    """A Parquet file that is in a table or staged for it.

    :param path: path relative to the table, as spelled in the storage.
    :param size: size in bytes.
    :param rows: number of rows.
    :param partition: value as text, by partition column; None is NULL.
    :param stats: Delta's statistics, as JSON text.
    :param schema: the file's Spark schema as JSON text, including partition columns.
    """

    path: str
    size: int
    rows: int
    partition: Mapping[str, str | None] = field(hash=False)
    stats: str
    schema: str

    def to_row(self) -> dict[str, Any]:
        """Return the file's description as a row of staged output."""
        return {**vars(self), "partition": json.dumps(dict(self.partition))}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> TableFile:
        """Read a row that `to_row` returned.

        :raises ValueError: the row is not from `to_row`.
        """
        texts = all(isinstance(row.get(name), str) for name in _TEXTS)
        numbers = all(type(row.get(name)) is int for name in _NUMBERS)
        if not texts or not numbers or len(row) != len(_TEXTS) + len(_NUMBERS):
            raise ValueError(f"{str(dict(row))[:120]} is not a file of a table")
        return cls(**{**row, "partition": json.loads(row["partition"])})


def names_digest(files: Iterable[TableFile]) -> int:
    """Return a 63-bit digest of file names. Different tries never write files of the same name."""
    text = "\n".join(sorted(each.path for each in files))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def txid_of(path: str) -> int | None:
    """Return the txid of the transaction that staged a file, or None if no transaction staged it."""
    return _number(_STAGED_FILE.fullmatch(path))


def raise_of(path: str) -> int | None:
    """Return the number of the raise whose fence is in this file, or None if the file does not contain a fence."""
    return _number(_FENCE_FILE.fullmatch(path))


def _number(found: re.Match[str] | None) -> int | None:
    return None if found is None else int(found[1])


# --- probe --------------------------------------------------------------------------------------------------------
# Check that an S3 server honours conditional puts. Without them, two committers overwrite each
# other's commits.


_CONFLICTS = (
    "Failed to commit transaction: ",
    "Tried committing existing table version",
    "already exists",
)
# Temporary failures: the server did not respond, is busy, or has an internal error. The pattern is
# strict, because path or column names may contain such words.
_PASSES = re.compile(
    r" HTTP error\b|\berror sending request\b|\bdispatch failure\b|\bstatus code\W+(?:\d+m\W+)*(?:408|425|429|5\d\d) "
    r"|<Code>(?:RequestTimeout|SlowDown|InternalError|ServiceUnavailable|OperationAborted)<"
)
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_PASSING = frozenset(
    (errno.EINTR, errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.EBUSY, errno.ENFILE, errno.EMFILE)
    + (errno.ENOSPC, errno.EDQUOT, errno.ENOLCK, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT)
    + (errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOBUFS)
    + (errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.EREMOTEIO)
)
_PASSED = f"{STAGED}/_conditional_puts"
_RACERS = 3
_RACES = 40
_REMEDY = (
    "Its server ignores If-None-Match, so two committers could overwrite each other. Use a server that honours "
    "conditional puts, such as Amazon S3 or a recent MinIO."
)


def check_conditional_puts(
    folder: Folder, uri: str, options: Mapping[str, str], *, state: str
) -> None:
    """Check that the server of a table refuses conflicting puts.

    A file in the table's folder records that a server has passed this check.

    Several threads create the same table at once, because deltalake does not offer any other conditional put.

    :raises ConfigError: two threads succeeded in creating the table.
    :raises StateUnavailable: no two puts coincided, so the result is unknown.
    """
    if uri.partition("://")[0] not in S3_SCHEMES:
        return
    server = hashlib.sha256(endpoint_of(options).encode()).hexdigest()[:16]
    passed = f"{_PASSED}/{server}"
    if passed in folder.listed(_PASSED):
        return
    for _ in range(_RACES):
        honoured = _race(folder, uri, options)
        if honoured:
            with folder.writing(passed) as out:
                out.write(b"{}")
            return
        if honoured is False:
            raise ConfigError(option="DeltaTable(uri)", value=uri, remedy=_REMEDY)
    reason = "it is unknown whether its server honours If-None-Match"
    raise StateUnavailable(state=state, where=uri, reason=reason)


def _race(folder: Folder, uri: str, options: Mapping[str, str]) -> bool | None:
    """Let several threads create the same table.

    Return True if the server refused the second put, or False if it accepted two. Return None if no two puts coincided.
    """
    place = f"{STAGED}/_probe/{uuid.uuid4().hex}"
    start = Barrier(_RACERS)
    try:
        with ThreadPoolExecutor(_RACERS) as pool:
            racers = [pool.submit(_made, f"{uri}/{place}", options, start) for _ in range(_RACERS)]
            found = [each.result() for each in racers]
    finally:
        with suppress(OSError):
            for path in folder.listed(place):
                folder.remove(path)
    if found.count(True) > 1:
        return False
    return True if False in found else None


def _made(uri: str, options: Mapping[str, str], start: Barrier) -> bool | None:
    """Create a table.

    Return False if the server refused the put of the first version, or None if the table already existed.
    """
    schema = deltalake.Schema.from_json(json.dumps(struct([TXID_FIELD])))
    once = deltalake.CommitProperties(max_commit_retries=0)
    start.wait()
    try:
        deltalake.DeltaTable.create(
            uri, schema, storage_options=dict(options), commit_properties=once
        )
    except deltalake.exceptions.CommitFailedError as error:
        if not is_conflict(error):
            raise
        return False
    except deltalake.exceptions.DeltaError as error:
        if not is_conflict(error):
            raise
        return None
    return True


def is_conflict(error: Exception) -> bool:
    """Return whether deltalake reports a conflict with another commit. If not, the storage has failed."""
    return any(each in str(error) for each in _CONFLICTS)


# --- delta --------------------------------------------------------------------------------------------------------


_RAISE = "airflow_tx.raise"
_NAME = "airflow_tx.fence"
QUERIED = "appended"
_NO_NAME = 0
_NAMES = 2**63
_APPLIED = "airflow_tx.applied"
_WRITTEN = "airflow_tx.written"
_GIVEN = "airflow_tx.given"
COMMIT_NOTE = "userMetadata"
NOBODYS = {TXID: "CAST(NULL AS BIGINT)"}
OWNED = f"{TXID} IS NOT NULL"
RELEASED = {"released": True}
"""Commit metadata that marks the release of the table. Receipts of earlier commits belong to another ledger."""
_DENIED = re.compile(
    "(permission|access) ?denied|operation not permitted|read-only file system|necessary privileges"
    "|valid authentication|40[13] (forbidden|unauthorized)",
    re.IGNORECASE,
)


# --- versions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableVersion:
    """One version of a table.

    :param fence: the text of the last raise; "" if there is none.
    :param number: number of the last raise; 0 before the first one.
    :param applied: number of the last raise whose updates are all committed; None if there is no such raise.
    :param written: number of rows that this update added.
    :param given: digest of the update's files.
    :param empty: whether the version has no live files.
    :param handle: deltalake's object for the table.
    """

    fence: str
    number: int
    schema: Schema
    partition_by: tuple[str, ...]
    applied: int | None
    written: int
    given: int | None
    empty: bool
    handle: deltalake.DeltaTable = field(compare=False, repr=False)


@dataclass(frozen=True)
class LiveFile:
    """A file of one version of a table.

    :param rows: number of rows; None if unknown.
    :param least: the least txid in the file; None if unknown.
    :param most: the greatest txid in the file; None if unknown.
    :param nobodys: number of rows without a txid; None if unknown.
    :param removable: whether this store can remove the file in a commit.
    """

    path: str
    size: int
    partition: Mapping[str, str | None] = field(hash=False)
    rows: int | None
    least: int | None
    most: int | None
    nobodys: int | None
    removable: bool = True

    def may_hold(self, txids: Collection[int]) -> bool:
        """Return whether the file may have rows of these transactions."""
        if self.least is None or self.most is None:
            return True
        return any(self.least <= txid <= self.most for txid in txids)

    def is_of(self, txids: Collection[int]) -> bool:
        """Return whether each row of the file belongs to one of these transactions."""
        alone = self.least is not None and self.least == self.most and self.nobodys == 0
        return alone and self.least in txids


TableChange: TypeAlias = Callable[[Any], None]
"""A `DeltaStore` method that commits a change as the version directly after the given one."""


# --- the table -------------------------------------------------------------------------------------------------------


class DeltaStore:
    """A Delta table.

    The state relies on `cas`, which commits a change only as the version directly after the one it was planned for.
    """

    def __init__(self, uri: str, *, state: str, options: Mapping[str, str]) -> None:
        self._uri = uri
        self._state = state
        self._options = dict(options)

    @cached_property
    def folder(self) -> Folder:
        return Folder(self._uri, self._options)

    # --- reading ----------------------------------------------------------------------------------------------------

    def load(self) -> TableVersion | None:
        """Read the current version of the table. Return None if there is no table.

        :raises StateError: the table has a feature that this store does not support.
        :raises StateUnavailable: the table cannot be read.
        """
        with self.reached():
            try:
                table = deltalake.DeltaTable(self._uri, storage_options=self._options)
            except deltalake.exceptions.TableNotFoundError:
                return None
            TableRequirements(self._state, self._uri).check(table)
            written = table.transaction_version(_WRITTEN)
            return TableVersion(
                fence=self._fence_of(table),
                number=table.transaction_version(_RAISE) or 0,
                schema=json.loads(table.schema().to_json()),
                partition_by=tuple(table.metadata().partition_columns),
                applied=table.transaction_version(_APPLIED),
                written=written or 0,
                given=table.transaction_version(_GIVEN),
                empty=table.get_add_actions().num_rows == 0,
                handle=table,
            )

    def _fence_of(self, table: deltalake.DeltaTable) -> str:
        name = table.transaction_version(_NAME) or _NO_NAME
        if name == _NO_NAME:
            return ""
        path = _fence_path(table.transaction_version(_RAISE) or 0, name)
        try:
            with self.folder.open(path) as opened:
                return bytes(opened.read()).decode()
        except FileNotFoundError:
            raise StateError(
                state=self._state,
                problem=f"the text of its fence, {self._uri}/{path}, is missing",
                remedy="If it was deleted, restore it. If not, clear the task.",
            ) from None

    def live_files(self, at: TableVersion) -> list[LiveFile]:
        """Return all live files of a version."""
        with self.reached():
            found = pa.table(at.handle.get_add_actions(flatten=True))
        return [_live(row, at) for row in found.to_pylist()]

    def files_of(self, at: TableVersion, txids: Collection[int]) -> list[LiveFile]:
        """Return the live files that may have rows of these transactions."""
        return [each for each in self.live_files(at) if each.may_hold(txids)]

    def asked(self, at: TableVersion, query: str) -> list[dict[str, Any]]:
        """Run an SQL query on a version of the table. The query refers to the table as `QUERIED`."""
        with self.reached():
            try:
                found = deltalake.QueryBuilder().register(QUERIED, at.handle).execute(query)
                return list(pa.table(found.read_all()).to_pylist())
            except Exception as error:
                # The query engine does not have its own error class.
                raise deltalake.exceptions.DeltaError(str(error)) from error

    def history(self) -> list[dict[str, Any]]:
        """Return the log entries of all commits, newest first."""
        with self.reached():
            return deltalake.DeltaTable(self._uri, storage_options=self._options).history()

    # --- changing ---------------------------------------------------------------------------------------------------

    def cas(
        self, at: TableVersion | None, change: TableChange, *, outcome_known: bool = True
    ) -> None:
        """Commit a change as the version after `at`, or as the first version if `at` is None.

        :param outcome_known: whether the caller may assume that a failed commit changed nothing. Pass False if a wrong
            assumption could lose an update or count it twice.
        :raises FenceMoved: another commit came first, or may have come first. Load the table again.
        :raises StateUnavailable: the storage failed. Load the table again.
        :raises StateOutcomeUnknown: the storage failed, and the change may be committed.
        """
        with self.reached():
            check_conditional_puts(self.folder, self._uri, self._options, state=self._state)
        try:
            change(at)
        except (deltalake.exceptions.DeltaError, OSError) as error:
            # The conflict may be with our own put, if its response was lost and the client sent it
            # again. The next load of the table shows this.
            if is_conflict(error):
                raise FenceMoved from None
            is_known = outcome_known or is_denied(error)
            raise unreached(error, **self._place, outcome_known=is_known) from None

    def raise_fence(
        self, at: TableVersion | None, *, text: str, number: int, applied: bool = False
    ) -> None:
        """Write a new fence. Create the table if it does not exist.

        :param number: number of the raise, one higher than in the previous version.
        :param applied: whether the updates under the fence are already in the table.
        """
        raised = self.name_fence(text, number)
        once = _once(app_transactions=raised + [deltalake.Transaction(_APPLIED, number)] * applied)
        if at is not None:
            return self._commit(at, [], once)
        # The columns of the first rows replace this schema. Delta does not allow a table without
        # columns.
        self._create(struct([TXID_FIELD]), (), once)

    def _create(
        self, schema: Schema, partition_by: Sequence[str], once: deltalake.CommitProperties
    ) -> None:
        deltalake.DeltaTable.create(
            self._uri,
            deltalake.Schema.from_json(json.dumps(schema)),
            mode="error",
            partition_by=list(partition_by) or None,
            storage_options=self._options,
            commit_properties=once,
        )

    def name_fence(self, text: str, number: int) -> list[deltalake.Transaction]:
        """Write the fence text to a file before the commit, and return the numbers in the file name.

        :param text: the text; "" for no fence.
        :param number: number of the raise.
        """
        name = _NO_NAME
        if text:
            name = 1 + secrets.randbelow(_NAMES - 1)
            with self.folder.writing(_fence_path(number, name)) as out:
                out.write(text.encode())
        return [deltalake.Transaction(_RAISE, number), deltalake.Transaction(_NAME, name)]

    def widen(self, at: TableVersion, *, fields: Sequence[FieldJson]) -> None:
        """Add columns to the table. They are NULL in existing rows."""
        added = [deltalake.Field.from_json(json.dumps(each)) for each in fields]
        at.handle.alter.add_columns(added, commit_properties=_once())

    def release(self, at: TableVersion, *, number: int, owned: bool) -> None:
        """Remove the fence and the txid of each row, because the next ledger allocates the same txids again.

        A single commit does both, so a killed release has removed either everything or nothing.

        :param number: number of this raise.
        :param owned: whether any row has a txid. The commit rewrites every file with such rows.
        """
        note = {COMMIT_NOTE: json.dumps(RELEASED)}
        once = _once(app_transactions=self.name_fence("", number), custom_metadata=note)
        if not owned:
            # An update that matches no rows does not create a commit.
            return self._commit(at, [], once)
        at.handle.update(NOBODYS, predicate=OWNED, commit_properties=once)

    def define(
        self, at: TableVersion | None, *, schema: Schema, partition_by: Sequence[str] = ()
    ) -> None:
        """Create the table, or replace the columns of a table without files.

        Only this method changes partition columns.
        """
        if at is None:
            return self._create(schema, partition_by, _once())
        empty = pa.schema(deltalake.Schema.from_json(json.dumps(schema)).to_arrow()).empty_table()
        deltalake.write_deltalake(
            at.handle,
            empty,
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=list(partition_by) or None,
            commit_properties=_once(),
        )

    def publish(
        self,
        at: TableVersion,
        *,
        raised: Sequence[deltalake.Transaction],
        added: Sequence[TableFile],
        removed: Sequence[LiveFile],
        applied: int,
        written: int,
        given: int,
        note: Mapping[str, Any],
    ) -> None:
        """Add files to the table and remove files from it.

        :param raised: numbers from `name_fence` if this commit also raises the fence; empty otherwise.
        :param applied: number of the raise whose updates this commit completes.
        :param written: number of added rows, excluding rows that only move to other files.
        :param given: 63-bit digest of the files of the update.
        :param note: JSON object that the Delta log stores with the commit.
        """
        now = time.time_ns() // 1_000_000
        adds = [
            deltalake.transaction.AddAction(
                each.path, each.size, dict(each.partition), now, True, each.stats
            )
            for each in added
        ]
        # Because the deletion timestamp is the current time, VACUUM keeps the file for readers of
        # older versions.
        removes = [
            deltalake.transaction.RemoveAction(
                each.path, True, now, each.size, dict(each.partition)
            )
            for each in removed
        ]
        numbers = {_APPLIED: applied, _WRITTEN: written, _GIVEN: given}
        marks = [
            *raised,
            *(deltalake.Transaction(name, number) for name, number in numbers.items()),
        ]
        once = _once(app_transactions=marks, custom_metadata={COMMIT_NOTE: json.dumps(note)})
        self._commit(at, [*removes, *adds], once)

    def _commit(
        self,
        at: TableVersion,
        actions: list[deltalake.transaction.AddAction | deltalake.transaction.RemoveAction],
        once: deltalake.CommitProperties,
    ) -> None:
        at.handle.create_write_transaction(
            actions,
            "append",
            at.handle.schema(),
            partition_by=list(at.partition_by) or None,
            commit_properties=once,
        )

    # --- refusals ---------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> dict[str, Any]:
        return {"state": self._state, "uri": self._uri, "options": self._options}

    @contextmanager
    def reached(self) -> Iterator[None]:
        try:
            yield
        except (deltalake.exceptions.DeltaError, OSError) as error:
            raise unreached(error, **self._place) from None


def _fence_path(number: int, name: int) -> str:
    return f"{FENCES}/{number}-{name:016x}.json"


def _live(row: Mapping[str, Any], at: TableVersion) -> LiveFile:
    partition = {name: text_of(row[f"partition.{name}"]) for name in at.partition_by}
    # Paths in the log are URL-encoded. A RemoveAction encodes its path again.
    return LiveFile(
        path=unquote(row["path"]),
        size=row["size_bytes"],
        partition=partition,
        rows=row.get("num_records"),
        least=row.get(f"min.{TXID}"),
        most=row.get(f"max.{TXID}"),
        nobodys=row.get(f"null_count.{TXID}"),
        removable=_spelled(unquote(row["path"])) == row["path"],
    )


def _spelled(path: str) -> str:
    """Encode a path as deltalake does in a commit.

    Spark encodes letters such as é differently. A remove action has no effect if its path differs from the path in the
    add action.
    """
    return quote(path, safe="!$&'()+,/:;=@~")


def _once(**also: Any) -> deltalake.CommitProperties:
    return deltalake.CommitProperties(max_commit_retries=0, **also)


def is_denied(error: Exception) -> bool:
    """Return whether a client error reports missing permissions."""
    return isinstance(error, PermissionError) or _DENIED.search(str(error)) is not None


def _passes(error: Exception) -> bool:
    """Return whether an error is on the list of temporary failures. A retry cannot fix any other error."""
    number = error.errno if isinstance(error, OSError) else None
    said = _OS_ERROR.search(str(error))
    if number is None and said is not None:
        number = int(said[1])
    return number in _PASSING or _PASSES.search(str(error)) is not None


def unreached(
    error: Exception,
    *,
    state: str,
    uri: str,
    options: Mapping[str, str],
    outcome_known: bool = True,
) -> StateError:
    """Return the error for a table that cannot be read or written.

    Unless the failure is temporary, a retry cannot fix the error.
    """
    reason = scrubbed(str(error), options)
    if is_denied(error):
        problem = f"this process may not read or write {uri} ({reason})"
        remedy = "Give the committer the right to write there, then clear the task. Staged files are kept."
        return StateError(state=state, problem=problem, remedy=remedy)
    if _passes(error):
        kind = StateUnavailable if outcome_known else StateOutcomeUnknown
        return kind(state=state, where=uri, reason=reason)
    if not isinstance(error, OSError):
        reason = scrubbed(first_line(error), options)  # a Rust stack trace follows
    problem = f"deltalake refuses the table {uri}: {reason.rstrip('.')}"
    remedy = "Repair it, or give the state another one, then clear the task."
    return StateDiffers(state=state, problem=problem, remedy=remedy)
