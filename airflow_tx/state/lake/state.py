"""A table of a lake to which transactions append rows. Source: protocol.md §7.

Tasks write the files, in parallel, before the turn. The commit publishes them, in order, by one commit of metadata.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from functools import partial
from itertools import takewhile
from typing import Any

from airflow_tx.connections.aws import (
    S3_SCHEMES,
    checked_s3_options,
    options_of_connection,
    scrubbed,
)
from airflow_tx.errors import ConfigError, SkipRefused, StateError
from airflow_tx.protocol.attempt import Grant, TransactionAttempt
from airflow_tx.protocol.receipt import Receipt
from airflow_tx.state import fence
from airflow_tx.state.api import Fence, FenceMoved, StateKind, StateWrite, StoredReceipt
from airflow_tx.state.appended import STAGED, TXID, AppendTable, Misfit
from airflow_tx.state.lake.delta import (
    COMMIT_NOTE,
    QUERIED,
    RELEASED,
    DeltaStore,
    TableChange,
    TableVersion,
)
from airflow_tx.state.lake.files import staged_files
from airflow_tx.state.lake.fit import TableFit, is_undefined
from airflow_tx.state.lake.folder import Folder
from airflow_tx.state.lake.manifest import TableFile, names_digest
from airflow_tx.state.lake.raised_fence import RaisedFence, next_raise
from airflow_tx.state.lake.requirements import rewritten
from airflow_tx.state.lake.schema import Schema
from airflow_tx.state.lake.sweep import sweep
from airflow_tx.state.lake.taken_back import TakeBack, TakenBack, count_rows
from airflow_tx.state.store_transaction import StoredState

_RECEIPT = ("txid", "attempt", "receipt", "hash")
SWEPT_EVERY = 50
"""How many raises of the fence pass between two sweeps of staged files."""
_DAY = 86_400
log = logging.getLogger(__name__)
_NO_FILES = "Use append(output, state=...): its tasks write the files."


class DeltaTable(StoredState, AppendTable):
    """A Delta Lake table to which transactions append rows, each exactly once.

    Tasks write Parquet files into the folder of the table. The commit publishes them by one commit of the table,
    without Spark. Each row has the column `tx_txid`. A replay takes out what the attempt before it has put in, in the
    same commit. How, and which tables are refused: docs/stores.md.

    :param uri: of the table: an absolute path, or a URI that deltalake reaches. One table is one state.
    :param partition_by: columns whose values are in the path of each file.
    :param retention_days: how long files are kept that no row is in: longer than the longest query, and longer than it
        takes from the first task of a transaction to its commit.
    :param conn_id: Airflow connection of type aws for a table on S3, looked up when the table is used. None: variables
        of the environment (AWS_*), or the role of the machine.
    :param storage_options: options of deltalake, which override the connection. They may be secret, and are shown
        nowhere.
    """

    kind = StateKind.OPAQUE
    takes_back_by_txid = True
    restored_by = "RESTORE the table to its newest version."
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
        """Give the storage options of deltalake; they may be secret."""
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
        """Read the columns of the table as Spark spells them; None: no rows have given it any."""
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
            remedy = "The task has to reach the table as the committer does."
            raise Misfit(problem, remedy) from None
        return [each.to_row() for each in found]

    def stage(
        self, rows: Sequence[Mapping[str, Any]], attempt: TransactionAttempt
    ) -> list[dict[str, Any]]:
        from airflow_tx.state.lake.python_rows import write_python_rows

        return write_python_rows(self, rows, attempt)

    def undo(self, grant: Grant) -> None:
        """Change nothing: the commit that appends other rows takes these out."""

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

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        store = self._store
        at = store.load()
        if at is None or at.empty:
            return []
        limited = "" if limit is None else f" LIMIT {int(limit)}"
        return store.asked(at, f"SELECT * FROM {QUERIED}{limited}")

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
        # The newest last: of one transaction the last one counts.
        notes.reverse()
        kept = {
            each["txid"]: StoredReceipt(*(each[name] for name in _RECEIPT))
            for each in notes
            if "receipt" in each
        }
        return [kept[txid] for txid in sorted(kept)]

    def sweep(self, txid: int) -> int:
        """Delete staged files of transactions before a committed one, if they are no longer needed.

        :return: how many were deleted. What cannot be deleted now is left for the next sweep.
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
            log.warning("Staged files of %s are not cleaned up: %s", self.name, reason)
            return 0

    def release(self) -> None:
        store = self._store
        for _ in range(10):
            at = store.load()
            if at is None or not at.fence:
                return
            with suppress(FenceMoved):
                change = partial(store.release, number=at.number + 1, owned=self._owns_rows(at))
                return store.cas(at, change)
        raise StateError(
            state=self.name,
            problem="other writers commit to the table all the time",
            remedy="Stop them, and try again.",
        )

    def _owns_rows(self, at: TableVersion) -> bool:
        if at.empty or all(each["name"] != TXID for each in at.schema["fields"]):
            return False
        stuck = (each for each in self._store.live_files(at) if not each.removable)
        if found := next((each for each in stuck if each.nobodys != each.rows), None):
            problem = f"deltalake cannot rewrite file {found.path}: it cannot spell that path"
            remedy = rewritten(self.uri, f"{TXID} IS NOT NULL")
            raise StateError(state=self.name, problem=problem, remedy=remedy)
        query = f"SELECT {TXID} FROM {QUERIED} WHERE {TXID} IS NOT NULL LIMIT 1"
        return bool(self._store.asked(at, query))

    @property
    def _store(self) -> DeltaStore:
        """Reach the table. A process may live longer than a session token, so no connection is kept."""
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
    """One write: a raise of the fence, a commit of files, or both after each other."""

    def __init__(
        self, state: DeltaTable, store: DeltaStore, write: StateWrite, files: list[TableFile]
    ) -> None:
        self._state = state
        self._store = store
        self._write = write
        self._files = files
        self._given = names_digest(files)
        self._fit = TableFit(state.name, state.partition_by, write.grant.attempt, store)
        if write.raising:
            self._raise()
        at = store.load()
        held = None if at is None else state._raised(at)
        fence.check_write(None if held is None else held.fence, write.grant, state=state.name)
        assert at is not None
        assert held is not None
        self._at = at
        self._held = held
        self._added: Sequence[TableFile] = ()
        self._taken = TakenBack()

    @property
    def _has_written(self) -> bool:
        return self._at.applied == self._held.number

    @property
    def _is_done(self) -> bool:
        # A committer of a phase that runs again has the same grant, and may have other rows.
        return self._has_written and self._at.given == self._given

    def put(self) -> int:
        if not self._write.complete:
            problem = (
                "it was given a part of an update, and a commit of the table takes the whole update"
            )
            raise StateError(
                state=self._state.name, problem=problem, remedy="Give all files at once."
            )
        if self._is_done:
            return self._at.written
        change = self._fit.change(self._at, self._files)
        if change is not None:
            self._store.cas(self._at, change)
            raise FenceMoved  # begin again on the version that has the columns
        return sum(each.rows for each in self._files)

    def end(self, receipt: Receipt | None) -> None:
        if self._is_done or not self._write.complete:
            return
        self._take_back()
        self._store.cas(self._at, self._published(receipt), outcome_known=False)
        if self._held.number % SWEPT_EVERY == 0:
            self._state.sweep(self._write.grant.txid)

    def _raise(self) -> None:
        at = self._store.load()
        grant = self._write.grant
        held = None if at is None else self._state._raised(at)
        stored = None if held is None else held.fence
        raised = fence.raised(stored, grant, state=self._state.name, holds=lambda: False)
        if held is not None and held.is_held_by(grant):
            return
        if held is not None and held.took_out(grant.txid) and _is_skip(grant):
            raise _skip_refused(grant.txid, self._state.name)
        # Refuse files that do not fit while nothing has changed.
        self._fit.change(at, self._files)
        number = 1 if at is None else at.number + 1
        text = next_raise(held, raised, grant, number=number).text
        self._store.cas(at, partial(self._store.raise_fence, text=text, number=number))

    def _take_back(self) -> None:
        """Find what goes out with this commit: rows of an outranked attempt, or of a restated transaction."""
        txids = set[int]()
        if self._held.again or self._has_written:
            txids.add(self._write.grant.txid)
        if self._held.replaces is not None and not _is_skip(self._write.grant):
            txids.add(self._held.replaces)
        self._added = self._files
        if not txids:
            return
        found = self._store.files_of(self._at, txids)
        # An earlier grant of this attempt has put these very files in.
        live = {each.path for each in found}
        same = {each.path for each in self._files} & live
        self._added = [each for each in self._files if each.path not in same]
        others = [each for each in found if each.path not in same]
        try:
            self._taken = self._taking(txids).of(others)
        except Misfit as error:
            shown = ", ".join(map(str, sorted(txids)))
            raise StateError(
                state=self._state.name,
                problem=f"rows of transaction {shown} cannot be taken out of a file that another writer made: {error}",
                remedy=rewritten(self._state.uri, f"{TXID} IN ({shown})"),
            ) from None

    def _taking(self, txids: Collection[int]) -> TakeBack:
        import pyarrow as pa  # type: ignore[import-untyped]

        fields = {each["name"]: each for each in self._at.schema["fields"]}
        return TakeBack(
            self._store.folder,
            frozenset(txids),
            f"{STAGED}/{self._write.grant.attempt}.{uuid.uuid4().hex[:16]}",
            [fields[name] for name in self._at.partition_by],
            pa.schema(self._at.handle.schema().to_arrow()),
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
            note |= dict(zip(_RECEIPT, astuple(StoredReceipt.of(receipt)), strict=True))
        return partial(
            self._store.publish,
            added=[*self._added, *self._taken.kept],
            removed=self._taken.removed,
            applied=self._held.number,
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
        remedy = "Name the connection apart: conn_id=..."
        raise ConfigError(option="DeltaTable(uri)", value=f"{scheme}://...@...", remedy=remedy)
    return found


def _files(write: StateWrite, state: str) -> list[TableFile]:
    """Read the manifest; files without rows are left out."""
    try:
        found = [TableFile.from_row(row) for row in write.listed]
    except ValueError as error:
        raise StateError(state=state, problem=str(error), remedy=_NO_FILES) from None
    return [each for each in found if each.rows]


def _is_skip(grant: Grant) -> bool:
    batch = json.loads(grant.batch) or {}
    return batch.get("skip") is not None


def _skip_refused(txid: int, state: str) -> SkipRefused:
    problem = f"it has taken the rows of the transaction that it restates out of state {state}"
    return SkipRefused(txid=txid, problem=problem, remedy="Replay it until it is committed.")


def _note_of(commit: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(commit.get(COMMIT_NOTE) or "{}")
    except ValueError:
        return {}
    ours = isinstance(found, dict) and ("txid" in found or found == RELEASED)
    return found if ours else {}
