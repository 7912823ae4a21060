"""A lake table to which transactions append rows. Source: protocol.md §7.

Tasks write the files in parallel, before the turn. Committers publish the files in txid order, each time with a single
metadata commit.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from airflow_tx.base.connections import (
    S3_SCHEMES,
    checked_s3_options,
    options_of_connection,
    scrubbed,
)
from airflow_tx.base.errors import ConfigError, SkipRefused, StateDiffers, StateError
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.ledger import Grant, Receipt, TransactionAttempt
from airflow_tx.state import fence
from airflow_tx.state.api import (
    STAGED,
    TXID,
    AppendTable,
    Fence,
    FenceMoved,
    Misfit,
    StateWrite,
    StoredReceipt,
)
from airflow_tx.state.lake.delta import (
    COMMIT_NOTE,
    NOBODYS,
    OWNED,
    QUERIED,
    RELEASED,
    DeltaStore,
    Folder,
    LiveFile,
    TableChange,
    TableFile,
    TableVersion,
    names_digest,
    raise_of,
    txid_of,
    unreached,
)
from airflow_tx.state.lake.fence import RaisedFence, next_raise
from airflow_tx.state.lake.files import (
    SPARK_SCHEMA,
    check_txid,
    count_rows,
    is_of,
    read_footer,
    staged_files,
    staged_rows,
    staged_schema,
    write_python_rows,
)
from airflow_tx.state.lake.rows import CommittedFiles
from airflow_tx.state.lake.schema import (
    TXID_FIELD,
    FieldJson,
    Schema,
    check_partition,
    folder_of,
    new_fields,
    rewritten,
    struct,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")
    pq = LazyModule("pyarrow.parquet")


# --- fit ----------------------------------------------------------------------------------------------------------
# Check whether staged files fit a table. This is the only check before readers see the files.


@dataclass(frozen=True)
class TableFit:
    """Checks whether the files of one attempt fit a table.

    :param partition_by: the partition columns of the state.
    """

    state: str
    partition_by: tuple[str, ...]
    attempt: TransactionAttempt
    store: DeltaStore

    def change(self, at: TableVersion | None, files: Sequence[TableFile]) -> TableChange | None:
        """Return the column changes that the table needs before the files are added, or None if it needs no changes.

        :param at: the version of the table; None if there is no table yet.
        :raises StateError: a file does not fit. Nothing was committed.
        """
        fresh = at is None or is_undefined(at)
        if at is not None and not fresh and set(at.partition_by) != set(self.partition_by):
            found = list(at.partition_by)
            problem = f"the table is partitioned by {found}, but the state declares {list(self.partition_by)}"
            raise StateDiffers(
                state=self.state, problem=problem, remedy=f"Say partition_by={found}."
            )
        if not files:
            return None
        try:
            added = self._fields(struct([TXID_FIELD]) if at is None else at.schema, files)
        except Misfit as error:
            remedy = error.remedy or "Let the task give other rows, then clear it."
            raise self._refusal(str(error), remedy) from None
        try:
            check_there(self.store.folder, files)
        except Misfit as error:
            raise self._refusal(str(error), error.remedy) from None
        if fresh:
            fields = [TXID_FIELD, *added]
            schema = struct(fields)
            return partial(self.store.define, schema=schema, partition_by=self.partition_by)
        return partial(self.store.widen, fields=added) if added else None

    def _fields(self, table: Schema, files: Sequence[TableFile]) -> list[FieldJson]:
        added = list[FieldJson]()
        seen = set[str]()
        own = f"{STAGED}/{self.attempt}."
        paths = set[str]()
        for each in files:
            check_txid(each.stats, each.path, self.attempt.txid)
            if not each.path.startswith(own) or ".." in each.path.split("/"):
                raise Misfit(f"file {each.path} does not belong to attempt {self.attempt}")
            if each.path in paths:
                raise Misfit(f"file {each.path} is listed twice")
            paths.add(each.path)
            schema: Schema = json.loads(each.schema)
            check_partition(schema, each.partition, self.partition_by)
            if each.schema not in seen:
                seen.add(each.schema)
                added += new_fields(struct([*table["fields"], *added]), schema)
        return added

    def _refusal(self, problem: str, remedy: str) -> StateError:
        return StateError(state=self.state, problem=problem, remedy=remedy)


def check_there(folder: Folder, files: Sequence[TableFile]) -> None:
    """Check that the storage has the files in the expected sizes, because readers fail if a size differs.

    :raises Misfit: a file is missing, or has another size.
    """
    there = dict[str, int]()
    for name in {"/".join(each.path.split("/")[:2]) for each in files}:
        there.update(folder.listed(name))
    for each in files:
        found = there.get(each.path)
        if found != each.size:
            shown = "is not there" if found is None else f"has {found} bytes instead of {each.size}"
            raise Misfit(
                f"file {each.path} of its folder {shown}",
                "Replay the transaction: its tasks write new files.",
            )


def is_undefined(at: TableVersion) -> bool:
    """Return whether the table was only created to raise the fence, and no rows have determined its columns yet."""
    return at.empty and not at.partition_by and at.schema["fields"] == [TXID_FIELD]


# --- sweep --------------------------------------------------------------------------------------------------------
# Clean up staged files that were never published, or that a commit has removed from the table.
#
# VACUUM ignores the folder of staged files. A file is dead if its transaction is final and the
# table does not have the file. It stays as long as readers of older versions may need it. Delta
# does not record when a file was removed, so the first clean-up that finds it dead records the
# time.


NOTES = f"{STAGED}/_dead.json"
FENCES_KEPT = 100
"""Number of fences whose text is kept for processes that have read an older version."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeadFiles:
    """Staged files that are not in the table. No reader needs them once the retention has passed.

    :param since: by path, the time in seconds at which a clean-up first found the file dead.
    :param over: paths of the files that may be deleted.
    """

    since: Mapping[str, float]
    over: Collection[str]


def dead_files(
    there: Iterable[str],
    live: Collection[str],
    known: Mapping[str, float],
    *,
    txid: int,
    now: float,
    retention: float,
) -> DeadFiles:
    """Decide which staged files may be deleted.

    :param there: paths of all files in the folder.
    :param live: paths of the files of the table.
    :param known: by path, the time at which a clean-up first found the file dead.
    :param txid: a committed transaction. All earlier transactions are final.
    """
    since = dict[str, float]()
    over = set[str]()
    for path in there:
        own = txid_of(path)
        if own is None or own >= txid or path in live:
            continue
        found = min(known.get(path, now), now)
        if now - found >= retention:
            over.add(path)
        else:
            since[path] = found
    return DeadFiles(since, over)


def old_fences(there: Iterable[str], number: int) -> set[str]:
    """Return the paths of fences that no process reads any longer. `number` is the number of the last raise."""
    numbers = {path: raise_of(path) for path in there}
    return {
        path
        for path, found in numbers.items()
        if found is not None and found <= number - FENCES_KEPT
    }


def sweep(
    folder: Folder, live: Collection[str], number: int, *, txid: int, now: float, retention: float
) -> int:
    """Delete staged files of transactions before `txid` that have been dead for the retention period.

    Also delete much older fences.

    :param number: number of the last raise.
    :return: number of deleted staged files.
    """
    there = folder.listed(STAGED)
    found = dead_files(there, live, _notes(folder, there), txid=txid, now=now, retention=retention)
    for path in [*found.over, *old_fences(there, number)]:
        try:
            folder.remove(path)
        except FileNotFoundError:
            continue  # another committer deleted the file at the same time
    if found.since or NOTES in there:
        with folder.writing(NOTES) as out:
            out.write(json.dumps(found.since).encode())
    return len(found.over)


def _notes(folder: Folder, there: Collection[str]) -> dict[str, float]:
    """Read when earlier clean-ups found files to be dead.

    Return {} if this record is unreadable; the files are then merely kept longer.
    """
    if NOTES not in there:
        return {}
    try:
        with folder.open(NOTES) as opened:
            found = json.loads(bytes(opened.read()))
        return {str(path): float(since) for path, since in found.items()}
    except (AttributeError, OSError, TypeError, ValueError):
        log.warning("The list of unused files in %s cannot be read. A new list begins.", NOTES)
        return {}


# --- taken back ---------------------------------------------------------------------------------------------------
# The rows that a commit removes from a table. It removes complete files, and copies the other rows
# of shared files.


@dataclass(frozen=True)
class TakenBack:
    """The files to remove from a table, and the new files that keep the other transactions' rows.

    :param removed: files to remove from the table.
    :param kept: new files with the rows of other transactions.
    :param rows: number of rows that the table loses.
    """

    removed: Sequence[LiveFile] = ()
    kept: Sequence[TableFile] = ()
    rows: int = 0


@dataclass(frozen=True)
class TakeBack:
    """Removes the rows of transactions from files. Only one row group is in memory at a time.

    :param into: the folder for the copied rows of other transactions.
    :param schema: schema of the table.
    """

    folder: Folder
    txids: Collection[int]
    into: str
    partition_fields: Sequence[FieldJson]
    schema: pa.Schema = field(repr=False)

    def of(self, found: Sequence[LiveFile]) -> TakenBack:
        """Prepare the removal of the rows from these live files. Some files may not have any of these rows."""
        removed = list[LiveFile]()
        kept = list[TableFile]()
        gone = 0
        for live in found:
            whole = live.is_of(self.txids)
            mine = live.rows or 0
            if not whole:
                mine = sum(count_rows(self.folder, live.path, self.txids).values())
            if not whole and not mine:
                continue  # the file only has rows of earlier and later transactions
            if not live.removable:
                raise Misfit(f"deltalake does not support the path {live.path}")
            removed.append(live)
            gone += mine
            others = None if whole else self._others(live)
            if others is not None:
                kept.append(others)
        return TakenBack(removed, kept, gone)

    def _others(self, live: LiveFile) -> TableFile | None:
        """Copy the rows of other transactions from a shared file into a new file."""
        path = f"{self.into}/{folder_of(live.partition)}{uuid.uuid4().hex}.parquet"
        with self.folder.open(live.path) as opened, self.folder.writing(path) as out:
            self._copy(opened, out, live.partition)
        size = self.folder.listed(self.into)[path]
        with self.folder.open(path) as opened:
            found = read_footer(
                opened,
                path=path,
                size=size,
                partition=live.partition,
                partition_fields=self.partition_fields,
                shared=True,
            )
        return found if found.rows else None

    def _copy(self, opened: Any, out: Any, partition: Collection[str]) -> None:
        file = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        schema = self._written_schema(file.schema_arrow, partition)
        with pq.ParquetWriter(out, schema, coerce_timestamps="us") as writer:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number, use_threads=False)
                # Arrow cannot filter string views. deltalake returns them for files from its
                # UPDATE, DELETE and MERGE.
                rows = group.select(schema.names).cast(schema)
                writer.write_table(rows.filter(pc.invert(is_of(group.column(TXID), self.txids))))

    def _written_schema(self, found: pa.Schema, partition: Collection[str]) -> pa.Schema:
        """Return the schema of a copy of a file. It has the columns of the file, in the types of the table.

        Spark's INT96 has no time zone. delta-spark's UPDATE and MERGE leave the partition columns in the files.
        """
        fields = [self.schema.field(name) for name in found.names if name not in partition]
        notes = {
            name: note for name, note in (found.metadata or {}).items() if name != SPARK_SCHEMA
        }
        return pa.schema(fields, notes)


# --- state --------------------------------------------------------------------------------------------------------


_RECEIPT = ("txid", "attempt", "receipt", "hash")
SWEPT_EVERY = 50
"""Number of raises of the fence between two clean-ups of staged files."""
_DAY = 86_400
_NO_FILES = "Use append(output, state=...): its tasks write the files."


class DeltaTable(CommittedFiles, AppendTable):
    """A Delta Lake table to which transactions append rows, each exactly once.

    Tasks write Parquet files into the folder of the table. The committer publishes these files in one commit to the
    Delta log, without Spark. Each row has the column `tx_txid`. A replay removes the rows of the earlier attempt in the
    same commit. docs/stores.md explains how, and which tables are refused.

    :param uri: the table, as an absolute path or as a URI that deltalake supports. One table is one state.
    :param partition_by: columns whose values are in the path of each file.
    :param retention_days: how long files without live rows are kept. This must be longer than the longest query, and
        longer than the time from the first task of a transaction to its commit.
    :param conn_id: Airflow connection of type aws for a table on S3, looked up when the table is used. None to use the
        environment variables (AWS_*) or the machine's role.
    :param storage_options: options of deltalake, which override the connection. They may contain secrets, and are never
        shown.
    """

    slow_to_raise = True
    restored_by = "RESTORE the table to its newest version"
    left_out = ("storage_options",)
    can_release = True
    receipts_kept = 0

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        partition_by: Sequence[str] = (),
        retention_days: float = 7,
        conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.uri = _checked_uri(os.fspath(uri))
        if isinstance(partition_by, str):
            remedy = f"Give a list: [{partition_by!r}]."
            raise ConfigError(option="DeltaTable(partition_by=)", value=partition_by, remedy=remedy)
        self.partition_by = tuple(partition_by)
        self.name = f"delta.{self.uri}"
        self.retention_days = retention_days
        self.conn_id = conn_id
        if conn_id is not None and not self._is_on_s3:
            remedy = f"It names a connection to S3, and the table is {self.uri}. Leave it out."
            raise ConfigError(option="DeltaTable(conn_id=)", value=conn_id, remedy=remedy)
        self._options = dict(storage_options or {})
        self.normalize(uri=self.uri, partition_by=self.partition_by)

    @property
    def append_table(self) -> DeltaTable:
        return self

    def options(self) -> dict[str, str]:
        """Return the storage options for deltalake. They may contain secrets."""
        if not self._is_on_s3:
            return dict(self._options)
        found = (
            {} if self.conn_id is None else options_of_connection(self.conn_id, what="DeltaTable")
        )
        return checked_s3_options({**found, **self._options})

    @property
    def _is_on_s3(self) -> bool:
        return self.uri.partition("://")[0] in S3_SCHEMES

    def table_schema(self) -> Schema | None:
        """Return the table's columns as Spark spells them, or None if no rows have determined the columns yet."""
        at = self._store.load()
        return None if at is None or is_undefined(at) else at.schema

    def list_staged(
        self, folder: str, partition_fields: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        options = self.options()
        try:
            found = staged_files(Folder(self.uri, options), folder, partition_fields)
        except OSError as error:
            reason = scrubbed(str(error), options)
            problem = f"its files in {self.uri}/{folder} cannot be read ({reason})"
            remedy = "The task needs the same access to the table as the committer."
            raise Misfit(problem, remedy) from None
        return [each.to_row() for each in found]

    def stage(
        self, rows: Sequence[Mapping[str, Any]], attempt: TransactionAttempt
    ) -> list[dict[str, Any]]:
        return write_python_rows(self, rows, attempt)

    def check_there(self, listed: Sequence[Mapping[str, Any]]) -> None:
        store = self._store
        with store.reached():
            check_there(store.folder, [TableFile.from_row(row) for row in listed])

    def staged_schema(self, listed: Sequence[Mapping[str, Any]]) -> pa.Schema:
        return staged_schema([TableFile.from_row(row) for row in listed])

    def staged_rows(
        self, listed: Sequence[Mapping[str, Any]], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        whole = self.staged_schema(listed)
        schema = whole.empty_table().select(columns).schema
        options = self.options()
        try:
            for row in listed:
                yield from staged_rows(Folder(self.uri, options), TableFile.from_row(row), schema)
        except OSError as error:
            raise unreached(error, state=self.name, uri=self.uri, options=options) from None

    def undo(self, grant: Grant) -> None:
        """Do nothing. The commit that appends the new rows also removes the rows of the replaced attempt."""

    def fence(self) -> Fence | None:
        at = self._store.load()
        found = None if at is None else self._raised(at)
        return None if found is None else found.fence

    def holds(self, txid: int) -> bool:
        store = self._store
        at = store.load()
        if at is None:
            return False
        found = store.files_of(at, [txid])
        with store.reached():
            return any(
                each.is_of([txid]) or count_rows(store.folder, each.path, [txid]) for each in found
            )

    def holds_for_good(self, txid: int, birth: str, incarnation: str) -> bool:
        at = self._store.load()
        found = None if at is None else self._raised(at)
        return found is not None and found.took_out(txid, birth, incarnation)

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        store = self._store
        at = store.load()
        if at is None or at.empty:
            return []
        limited = "" if limit is None else f" LIMIT {int(limit)}"
        return store.asked(at, f"SELECT * FROM {QUERIED}{limited}")

    def at(self, txid: int, newest: int) -> str:
        commits = self._store.history()
        # Newest commits come first. The metadata of a release has no txid, and earlier commits
        # belong to another ledger.
        notes = [(int(commit["version"]), _note_of(commit)) for commit in commits]
        later = list(takewhile(lambda each: not each[1] or each[1].get("txid", 0) > txid, notes))
        after = [version for version, note in later if note]
        version = after[-1] - 1 if after else notes[0][0]
        if len(later) == len(notes) and (notes[-1][0] > 0 or version < 0):
            problem = f"its log begins with version {notes[-1][0]}, which is newer than transaction {txid}"
            raise StateError(state=self.name, problem=problem, remedy="Name a later transaction.")
        uri = self.uri.replace("`", "``")
        return f"SELECT * FROM delta.`{uri}` VERSION AS OF {version}"

    def rows_by_txid(self) -> dict[int | None, int]:
        store = self._store
        at = store.load()
        if at is None or at.empty:
            return {}
        found = store.asked(at, f"SELECT {TXID}, count(*) AS n FROM {QUERIED} GROUP BY {TXID}")
        return {row[TXID]: row["n"] for row in found}

    def receipts(self) -> list[StoredReceipt]:
        store = self._store
        if store.load() is None:
            return []
        notes = list(takewhile(RELEASED.__ne__, map(_note_of, store.history())))
        # The newest commit comes last, because the last entry of a transaction counts.
        notes.reverse()
        kept = {
            each["txid"]: replace(StoredReceipt(*map(each.__getitem__, _RECEIPT)), takes_out=True)
            for each in notes
            if "receipt" in each
        }
        return [kept[txid] for txid in sorted(kept)]

    def sweep(self, txid: int) -> int:
        """Delete staged files of earlier transactions that no reader needs any longer.

        :param txid: a committed transaction. All earlier transactions are final.
        :return: number of deleted files. If an error occurs, the next clean-up deletes the files.
        """
        from deltalake.exceptions import DeltaError

        try:
            store = self._store
            at = store.load()
            if at is None:
                return 0
            live = {each.path for each in store.live_files(at)}
            return sweep(
                store.folder,
                live,
                at.number,
                txid=txid,
                now=time.time(),
                retention=self.retention_days * _DAY,
            )
        except (DeltaError, OSError, StateError) as error:
            reason = scrubbed(str(error), self.options())
            log.warning("Staged files of %s could not be deleted: %s", self.name, reason)
            return 0

    def accept_values(self, change: int = 0) -> None:
        self._between_commits(lambda at: self._marking(at, change))

    def release(self) -> None:
        self._between_commits(self._releasing)

    def _between_commits(self, plan: Callable[[TableVersion], TableChange]) -> None:
        """Change the fence in a separate commit. Do nothing if there is no fence."""
        store = self._store
        for _ in range(10):
            at = store.load()
            if at is None or not at.fence:
                return
            with suppress(FenceMoved):
                return store.cas(at, plan(at))
        problem = "other writers commit to the table all the time"
        raise StateError(
            state=self.name, problem=problem, remedy="Stop the other writers, and try again."
        )

    def _marking(self, at: TableVersion, change: int) -> TableChange:
        held = self._raised(at)
        assert held is not None
        number = at.number + 1
        text = replace(held, fence=fence.with_change(held.fence, change), number=number).text
        applied = held.fence.applied
        return partial(self._store.raise_fence, text=text, number=number, applied=applied)

    def _releasing(self, at: TableVersion) -> TableChange:
        return partial(self._store.release, number=at.number + 1, owned=self._owns_rows(at))

    def _owns_rows(self, at: TableVersion) -> bool:
        if self._newest_txid(at) is None:
            return False
        stuck = (each for each in self._store.live_files(at) if not each.removable)
        if found := next((each for each in stuck if each.nobodys != each.rows), None):
            problem = f"deltalake cannot rewrite file {found.path}: it does not support this path"
            remedy = rewritten(self.uri, OWNED)
            raise StateError(state=self.name, problem=problem, remedy=remedy)
        return True

    def _newest_txid(self, at: TableVersion) -> int | None:
        """Read the greatest txid of the rows. Return None if no row has a txid."""
        if at.empty or all(each["name"] != TXID for each in at.schema["fields"]):
            return None
        (found,) = self._store.asked(at, f"SELECT max({TXID}) AS newest FROM {QUERIED}")
        newest: int | None = found["newest"]
        return newest

    def check_numbers(self, at: TableVersion) -> None:
        """Refuse rows with txids in a table without a fence, such as a copy. Their txids are of another ledger."""
        newest = self._newest_txid(at)
        if newest is not None:
            table = f"from deltalake import DeltaTable; DeltaTable({self.uri!r})"
            typed = shlex.quote(f"{table}.update({NOBODYS!r}, predicate={OWNED!r})")
            raise fence.of_nobody(newest, state=self.name, release=f"python -c {typed}")

    @property
    def _store(self) -> DeltaStore:
        """Return a new store object for the table. A cached connection would fail when its session token expires."""
        return DeltaStore(self.uri, state=self.name, options=self.options())

    @contextmanager
    def _transaction(self, write: StateWrite) -> Iterator[_TableTransaction]:
        files = _files(write, self.name)
        store = self._store
        with store.reached():
            yield _TableTransaction(self, store, write, files)

    def _raised(self, at: TableVersion) -> RaisedFence | None:
        try:
            return RaisedFence.of(at.fence, at.applied)
        except ValueError as error:
            raise StateError(
                state=self.name,
                problem=str(error),
                remedy="Upgrade the provider here, or give the state another table.",
            ) from None


class _TableTransaction:
    """One write to a table. It raises the fence, commits files, or does both in one commit."""

    def __init__(
        self, state: DeltaTable, store: DeltaStore, write: StateWrite, files: list[TableFile]
    ) -> None:
        self._state = state
        self._store = store
        self._write = write
        self._files = files
        self._given = names_digest(files)
        self._fit = TableFit(state.name, state.partition_by, write.grant.attempt, store)
        self._at = store.load()
        held = None if self._at is None else state._raised(self._at)
        raised = self._next_raise(held) if write.raising else None
        self._is_raising = raised is not None
        if raised is not None:
            self._raise(raised)
            held = raised
        fence.check_write(None if held is None else held.fence, write.grant, state=state.name)
        assert held is not None
        self._held = held
        self._added: Sequence[TableFile] = ()
        self._taken = TakenBack()

    @property
    def _has_written(self) -> bool:
        return self._at is not None and self._at.applied == self._held.number

    @property
    def _is_done(self) -> bool:
        # If the commit phase runs again, its committer has the same grant, but its rows may differ.
        # So compare the files.
        return self._at is not None and self._has_written and self._at.given == self._given

    def put(self) -> int:
        if not self._write.complete:
            problem = "it received only a part of an update, but a table must receive all files in one commit"
            raise StateError(
                state=self._state.name, problem=problem, remedy="Pass all files in one write."
            )
        if self._at is not None and self._is_done:
            return self._at.written
        if not self._is_raising:
            self._change_columns(self._fit.change(self._at, self._files))
        return sum(each.rows for each in self._files)

    def end(self, receipt: Receipt | None) -> None:
        if self._is_done or not self._write.complete:
            return
        assert self._at is not None
        self._take_back(self._at)
        self._store.cas(self._at, self._published(receipt), outcome_known=False)
        if self._held.number % SWEPT_EVERY == 0:
            self._state.sweep(self._write.grant.txid)

    def _next_raise(self, held: RaisedFence | None) -> RaisedFence | None:
        """Return the fence that this grant must write, or None if the fence already holds the grant."""
        at = self._at
        grant = self._write.grant
        stored = None if held is None else held.fence
        raised = fence.raised(stored, grant, state=self._state.name, holds=lambda: False)
        if at is not None and held is None and not fence.owns(grant, state=self._state.name):
            self._state.check_numbers(at)
        if held is not None and held.is_held_by(grant):
            return None
        token = grant.token
        if (
            held is not None
            and grant.is_skip
            and held.took_out(token.txid, token.birth, grant.incarnation)
        ):
            raise _skip_refused(grant.txid, self._state.name)
        number = 1 if at is None else at.number + 1
        return next_raise(held, raised, grant, number=number)

    def _raise(self, raised: RaisedFence) -> None:
        """Raise the fence in a separate commit, unless the write is complete.

        For a complete write, the commit of the files also raises the fence.

        New columns are committed before that. Until the fence is raised, every other attempt finds it unchanged.
        """
        # Before any change, refuse files that do not fit.
        change = self._fit.change(self._at, self._files)
        if not self._write.complete:
            change = partial(self._store.raise_fence, text=raised.text, number=raised.number)
            self._store.cas(self._at, change)
        elif change is None and self._at is None:
            self._change_columns(partial(self._store.define, schema=struct([TXID_FIELD])))
        else:
            self._change_columns(change)

    def _change_columns(self, change: TableChange | None) -> None:
        if change is not None:
            self._store.cas(self._at, change)
            raise FenceMoved  # start again from the version that has the new columns

    def _take_back(self, at: TableVersion) -> None:
        """Prepare the removal of rows of an outranked attempt, or of the restated transaction."""
        txids = set[int]()
        if self._held.again or self._has_written:
            txids.add(self._write.grant.txid)
        if self._held.replaces is not None and not self._write.grant.is_skip:
            txids.add(self._held.replaces)
        self._added = self._files
        if not txids:
            return
        found = self._store.files_of(at, txids)
        # An earlier grant of this attempt has added some of the same files.
        live = {each.path for each in found}
        same = {each.path for each in self._files} & live
        self._added = [each for each in self._files if each.path not in same]
        others = [each for each in found if each.path not in same]
        try:
            self._taken = self._taking(at, txids).of(others)
        except Misfit as error:
            shown = ", ".join(map(str, sorted(txids)))
            raise StateError(
                state=self._state.name,
                problem=f"the rows of transaction {shown} are in a file of another writer and cannot be removed: "
                f"{error}",
                remedy=rewritten(self._state.uri, f"{TXID} IN ({shown})"),
            ) from None

    def _taking(self, at: TableVersion, txids: Collection[int]) -> TakeBack:
        fields = {each["name"]: each for each in at.schema["fields"]}
        return TakeBack(
            self._store.folder,
            frozenset(txids),
            f"{STAGED}/{self._write.grant.attempt}.{uuid.uuid4().hex[:16]}",
            [fields[name] for name in at.partition_by],
            pa.schema(at.handle.schema().to_arrow()),
        )

    def _published(self, receipt: Receipt | None) -> TableChange:
        token = self._write.grant.token
        written = sum(each.rows for each in self._files)
        note: dict[str, Any] = {
            "topology": self._write.grant.topology,
            "txid": token.txid,
            "attempt": token.attempt,
            "token": str(token),
            "rows": written,
            "taken": self._taken.rows,
        }
        if receipt is not None:
            note |= dict(
                zip(_RECEIPT, astuple(StoredReceipt.of(receipt))[: len(_RECEIPT)], strict=True)
            )
        held = self._held
        return partial(
            self._store.publish,
            raised=self._store.name_fence(held.text, held.number) if self._is_raising else (),
            added=[*self._added, *self._taken.kept],
            removed=self._taken.removed,
            applied=held.number,
            written=written,
            given=self._given,
            note=note,
        )


def _checked_uri(uri: str) -> str:
    found = uri.removeprefix("file://").rstrip("/")
    if not found or ("://" not in found and not os.path.isabs(found)):
        remedy = (
            "Give an absolute path, or a URI such as s3://bucket/table: tasks run in other folders."
        )
        raise ConfigError(option="DeltaTable(uri)", value=uri, remedy=remedy)
    scheme, _, rest = found.partition("://")
    if "@" in rest.partition("/")[0] and scheme in S3_SCHEMES:
        remedy = "Name the connection separately: conn_id=..."
        raise ConfigError(option="DeltaTable(uri)", value=f"{scheme}://...@...", remedy=remedy)
    return found


def _files(write: StateWrite, state: str) -> list[TableFile]:
    """Read the manifest. Leave out files without rows."""
    try:
        found = [TableFile.from_row(row) for row in write.listed]
    except ValueError as error:
        raise StateError(state=state, problem=str(error), remedy=_NO_FILES) from None
    return [each for each in found if each.rows]


def _skip_refused(txid: int, state: str) -> SkipRefused:
    problem = f"it has already removed the rows of the restated transaction from state {state}"
    return SkipRefused(txid=txid, problem=problem, remedy="Replay it until it is committed.")


def _note_of(commit: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(commit.get(COMMIT_NOTE) or "{}")
    except ValueError:
        return {}
    ours = isinstance(found, dict) and ("txid" in found or found == RELEASED)
    return found if ours else {}
