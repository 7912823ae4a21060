"""Base classes of states: Trident's State, fenced states, and the stores that Airflow connections name.

Source: trident-state seed (State), protocol.md §7 (fence, roll-back, continuity).
"""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.described import Described
from airflow_tx.base.errors import ConfigError, StateBehind, StateError
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import (
    CHANGE,
    NOTHING_WRITTEN,
    FenceBatch,
    Grant as Grant,
    Receipt,
    Token,
    TransactionAttempt,
    Written,
)
from airflow_tx.state.aggregators import Cells, Columns
from airflow_tx.state.arrow import RowTally

# --- api ----------------------------------------------------------------------------------------------------------


LookUp = Callable[[Sequence[Sequence[Any]]], "list[dict[str, Any] | None]"]
"""Read the value columns of keys. See `QueryableState.multi_get`."""
_Opened = TypeVar("_Opened")
_Self = TypeVar("_Self", bound="Addressed[Any]")


class StateKind(str, Enum):
    """How a stored value records its updates. The kind decides for which sources the state is exact."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


def fenced_kind(kind: StateKind | str, *, state: str) -> StateKind:
    """Check the kind of a fenced state. Raise ConfigError if a fence cannot make this kind exact."""
    if kind not in (StateKind.OPAQUE, StateKind.TRANSACTIONAL):
        raise ConfigError(
            option=f"kind of state {state!r}",
            value=str(kind),
            remedy='Use "opaque" or "transactional".',
        )
    return StateKind(kind)


COVERS = "covers"
"""The key under which a *look* keeps the original fence. See `Fence`."""


@dataclass(frozen=True)
class Fence:
    """The record of the last grant that raised the fence of a store.

    A *look* is a fence that a roll forward raises only to inspect the values. It contains the original fence.

    :param incarnation: the life of the ledger that gave the grant.
    :param token: token of the grant.
    :param applied: whether all updates of the grant are in the store.
    :param batch: rows and position of the transaction, as JSON. A repair rebuilds a lost ledger from them.
    :param state: name of the state that raised the fence; "" if the store did not record it.
    :param wrote: whether the grant wrote outside the fence, such as to a table. A table can be lost while the fence
        remains.
    """

    incarnation: str
    token: Token
    applied: bool = False
    batch: str = "null"
    state: str = field(default="", compare=False)
    wrote: bool = field(default=False, compare=False)

    @property
    def txid(self) -> int:
        return self.token.txid

    @property
    def birth(self) -> str:
        return self.token.birth

    @property
    def kept(self) -> FenceBatch | None:
        """Read the batch, or return None if the fence is a *look* or has no batch."""
        return FenceBatch.of_text(self.batch)

    @property
    def covered(self) -> Fence | None:
        """Return the original fence if this fence is a *look* that contains it, or None otherwise."""
        if not self.token.is_look or f'"{COVERS}"' not in self.batch:
            return None
        found = json.loads(self.batch)[COVERS]
        return Fence(**found | {"token": Token(**found["token"])})

    @property
    def change(self) -> int:
        """Return the number of the newest accepted manual change, or 0 if there is none."""
        fence = self.covered or self
        # Search the text first, because parsing a long batch is slow and few batches contain an
        # accepted change.
        kept = fence.kept if f'"{CHANGE}"' in fence.batch else None
        return 0 if kept is None else kept.change

    @property
    def began(self) -> bool | None:
        """Return whether the first transaction found the state empty. Return None if this is unknown."""
        kept = self.kept
        return None if kept is None else kept.was_empty


class FenceMoved(Exception):
    """Raised if another grant has changed the fence since it was read. The write must start again."""

    def mend(self) -> None:
        """Prepare the next try. The store has already undone the failed try."""


@dataclass(frozen=True)
class StateReading:
    """The content of a state under one fence.

    :param fence: the fence; None if no grant has ever raised it.
    :param key_types: type by key column; None before the first update.
    :param rows: key columns and value columns of each key, in any key order. A composite aggregator such as Avg has one
        column per part. A key may occur twice.
    """

    fence: Fence | None
    key_types: Mapping[str, str] | None
    rows: Iterator[tuple[Any, ...]]


@dataclass(frozen=True)
class StoredReceipt:
    """A receipt as a state stores it. It has not been checked yet.

    :param text: the text from `Receipt.text`.
    :param hash: hash of the text.
    :param takes_out: whether a restatement has removed rows from the state and cannot add them again.
    """

    txid: int
    attempt: int
    text: str
    hash: str
    takes_out: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, receipt: Receipt) -> StoredReceipt:
        return cls(receipt.txid, receipt.attempt, receipt.text, receipt.hash)


@dataclass(frozen=True)
class StateWrite:
    """The changes that one store transaction makes to one state.

    :param state: name of the state.
    :param grant: the grant that the fence holds, or will hold if the write raises it.
    :param rows: rows of the update; None if the write has no update and only raises the fence or records a skip.
    :param chunk: number of the writer within the grant.
    :param parts: function that reads the rows in portions, each with its chunk number. It replaces `rows`. Each call
        reads the rows again.
    :param require: check that runs after the fence is raised. It gets a function that looks up keys, and raises an
        error if the values are unexpected.
    :param raising: whether the write raises the fence; if False, the fence must already hold the grant.
    :param undoing: whether the write undoes what the same grant has written.
    :param complete: whether this write contains the grant's last updates.
    """

    state: str
    grant: Grant
    rows: RowTally | None = None
    chunk: int = 0
    raising: bool = False
    complete: bool = True
    undoing: bool = False
    parts: Callable[[], Iterable[tuple[int, RowTally]]] | None = None
    require: Callable[[LookUp], None] | None = None

    @cached_property
    def listed(self) -> list[Mapping[str, Any]]:
        """Return all rows as a list. The rows are read only once, even if the write begins again."""
        return list(self.rows or ())

    def portions(self) -> Iterator[StateWrite]:
        """Yield one write per portion of the rows. If there is only one portion, yield this write itself."""
        if self.parts is None:
            yield from [self] if self.rows is not None else []
            return
        for chunk, rows in self.parts():
            yield replace(self, rows=rows, chunk=chunk, parts=None)

    def put_into(self, part: StatePart) -> Written:
        """Add the rows to a transaction of the store, and return what was written."""
        written = NOTHING_WRITTEN
        for each in self.portions():
            assert each.rows is not None
            written += each.rows.written(part.put(each))
        return written

    def receipt(self, written: Written) -> Receipt | None:
        """Return the receipt of the transaction. Return None if the update is not complete."""
        return self.grant.receipt(self.state, written) if self.complete else None


class State(Protocol):
    """A store of values that transactions update (Trident's State)."""

    def begin_commit(self, txid: int | None) -> None:
        """Begin the updates of `txid`."""

    def commit(self, txid: int | None) -> None:
        """End the updates of `txid`, which are all written now."""


class FencedState(Described, ABC):
    """A store of values that a committer writes under a grant.

    A subclass defines `name`, `kind`, `raise_fence`, `write` and `fence`. The other methods are optional. If a class
    does not override an optional method, the state lacks that ability. `name` identifies the table in the topology
    record, so two tables must have different names.
    """

    name: str
    kind: StateKind
    # The key and value columns. None if the state stores rows unchanged.
    columns: Columns | None = None
    # Whether an opaque state undoes the writes of a replaced attempt to every key.
    can_roll_back: bool = True
    # Whether raising the fence alone takes as long as a write. A commit then prefers to raise the
    # fence within the write.
    slow_to_raise: bool = False
    # Whether each row has the txid of its transaction. A write then deletes the rows of replaced
    # attempts and of the restated transaction.
    takes_back_by_txid: bool = False
    # Whether the journal keeps the rows of a table, so that a roll forward can write them again.
    journal_rows: bool = True
    # How a user restores the newest values of a state that keeps versions; "" if only a backup has
    # these values.
    restored_by: str = ""
    has_fence: bool = True
    # The feature that needs all rows of a write at once, such as a guard's statements. It is "" if
    # the state accepts rows in portions.
    runs_once: ClassVar[str] = ""
    can_clear: bool = False
    can_release: bool = False
    # Minimum number of receipts that remain when the state deletes older receipts. None if the
    # state keeps all receipts or none.
    receipts_kept: int | None = None
    # States with the same `store_key` are written in one store transaction. None if this state does
    # not share transactions.
    store_key: Hashable | None = None

    @property
    def append_table(self) -> AppendTable | None:
        """Return the state itself if tasks write rows into its folder, or None if the committer writes them."""
        return None

    def dataset(self) -> Dataset | None:
        """Return the OpenLineage dataset of the values, without user and password, or None if it is unknown.

        A committer calls this after the commit. An error in this method does not fail the task.
        """
        return None

    def ddl(self) -> Mapping[str, Sequence[str]]:
        """Return the statements that create or alter the state's tables, by database. The database owner runs them."""
        return {}

    @property
    def rolls_forward(self) -> bool:
        """Return whether a roll forward can restore missing transactions from the journal."""
        return False

    def remedy_behind(self, topology: str) -> Remedy:
        """Explain what to do if the state lacks transactions that the ledger has committed."""
        lost = self.remedy_lost(topology)
        if not self.rolls_forward:
            return lost
        if not self.journal_rows:
            return self.remedy_without_rows(topology)
        return Remedy.of(
            "Write the missing transactions again from the journal: ",
            Command.of("repair", topology, "--roll-forward", self.name),
            ". Or: ",
            lost,
        )

    def remedy_without_rows(self, topology: str) -> Remedy:
        """Explain what to do if the journal does not have the rows that are missing from a table."""
        return Remedy.of(
            "Process the missing transactions again: ",
            Command.of("repair", topology, "--roll-forward", self.name, "--restate"),
            ". Or: ",
            self.remedy_lost(topology),
        )

    def remedy_lost(self, topology: str) -> Remedy:
        """Explain what to do if the journal does not have the missing transactions."""
        return (
            f"{self.restored_by or 'Restore a newer backup of it and repeat'}, "
            "or accept that the lost values are gone: "
            + Command.of("repair", topology, "--state-lost", self.name)
        )

    @property
    def added_up(self) -> tuple[str, ...]:
        """Return the names of the columns that a receipt sums up. Return () if the state stores rows unchanged."""
        return () if self.columns is None else self.columns.added_up

    def serialize(self) -> dict[str, Any]:
        """Describe the state as plain JSON, without its address. Airflow shows this description."""
        return {"type": type(self).__name__, **self.arguments(), "kind": self.kind.value}

    @abstractmethod
    def raise_fence(self, grant: Grant) -> None:
        """Check continuity, raise the fence, and undo the writes of outranked tokens of this txid.

        One store transaction does all of this. After an error, nothing has changed.

        :raises FenceOutranked: a later grant has raised the fence.
        :raises FenceForeign: the fence belongs to another topology or to another ledger.
        :raises StateBehind: the store lacks transactions that the ledger has committed.
        :raises LedgerBehind: the ledger lacks transactions that the store has.
        :raises StateUnavailable: the store cannot be reached.
        """

    def write(
        self,
        grant: Grant,
        rows: Iterable[Mapping[str, Any]],
        *,
        chunk: int = 0,
        complete: bool = True,
    ) -> int:
        """Check that the fence holds exactly this grant, and add `rows` to the values.

        One store transaction does all of this. After an error, nothing has changed.

        :param rows: the key columns and the deltas of the value columns, with at most one row per key.
        :param chunk: number of the writer's partition. A writer may send the same chunk twice. Two chunks must not
            share a key.
        :param complete: whether this call ends the update. If so, the state sets `applied`, and stores the receipt if
            it keeps receipts. If there are several writers, each passes False. The grant's last call passes True, with
            or without rows.
        :return: number of written keys.
        :raises FenceOutranked: a later grant has raised the fence.
        :raises ChunkConflict: another chunk of this transaction has written one of the keys.
        :raises StateError: the state cannot store these rows.
        :raises StateUnavailable: the store cannot be reached.
        """
        tally = RowTally.of(rows, self.added_up)
        return self._written(StateWrite(self.name, grant, tally, chunk, complete=complete))

    def undo(self, grant: Grant) -> None:
        """Undo the writes of this grant, if the state can undo them.

        The committer then writes again, possibly with fewer rows. A state without a fence undoes them at the start of
        its next write. Raises the same errors as `write`.
        """

    def _written(self, write: StateWrite) -> int:
        """Write to the store. Every write to a state, under any public method, ends in this method."""
        raise NotImplementedError

    @abstractmethod
    def fence(self) -> Fence | None:
        """Read the fence. Return None if no grant has ever raised it."""

    def receipts(self) -> list[StoredReceipt] | None:
        """Return the stored receipts, one per transaction, ordered by txid. Return None if the state stores none."""
        return None

    def raise_and_write(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> int:
        """Raise the fence and write the rows, in one transaction if possible. The topology has only this state."""
        self.raise_fence(grant)
        return self.write(grant, rows)

    def pass_over(self, grant: Grant) -> None:
        """Record, under the raised fence, that a skipped transaction has ended. Write no rows.

        After an error, nothing has changed.

        :raises FenceOutranked: a later grant has raised the fence.
        :raises StateError: the state refuses this record.
        :raises StateUnavailable: the store cannot be reached.
        """
        self.write(grant, ())

    def holds(self, txid: int) -> bool | None:
        """Return whether the state has rows of the last transaction.

        Undone keys count as rows. Return None if this is unknown.

        The result False is reliable only if the fence refuses all earlier grants.
        """
        return None

    def holds_for_good(self, txid: int, birth: str, incarnation: str) -> bool:
        """Return whether the state definitely has rows of exactly this transaction that it cannot undo.

        :param birth: birth of the transaction. After a reset, for example, another transaction has the same txid.
        :param incarnation: the life of the ledger that gave the txid.
        """
        return not self.undoes and bool(self.holds(txid))

    @property
    def undoes(self) -> bool:
        """Return whether the next grant of a transaction undoes what an earlier grant has written."""
        return self.kind is StateKind.OPAQUE and self.can_roll_back

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Read the current values, one dict per key. During a commit, they include values of the open transaction.

        :param limit: maximum number of keys. The store chooses the keys.
        """
        return []

    def at(self, txid: int, newest: int) -> str:
        """Return the query with which a user reads the values as of a final transaction.

        Return "" if there is no such query.

        If later transactions commit before the query runs, it returns the same values or no rows.

        :param newest: the newest final transaction. The caller must read it before this call.
        :raises StateError: no query can read the values as of `txid`.
        """
        return ""

    def totals(self, names: Collection[str]) -> dict[str, int]:
        """Return the sums of these integer columns over all keys. Return {} if the state cannot list its keys."""
        rows = self.read()
        return {name: sum(row[name] or 0 for row in rows) for name in names}

    def rows_by_txid(self) -> Mapping[int | None, int] | None:
        """Return the number of rows by txid; None counts rows of no transaction.

        Return None if the state does not keep rows.
        """
        return None

    def accept_values(self, change: int = 0) -> None:
        """Accept the current values after a manual change.

        :param change: number of the repair that accepts the change. The fence keeps this number.
        """

    @property
    def names_changes(self) -> bool:
        """Return whether the fence records accepted manual changes. User-defined states need not record them."""
        return type(self).accept_values is not FencedState.accept_values

    def fence_of(self, old: str) -> Fence | None:
        """Read the fence that the state will have after `take_over(old)`.

        If it already has a fence, this is its own fence.

        :raises StateError: `take_over` would raise the same error.
        """
        return self.fence()

    def take_over(self, old: str) -> None:
        """Take over the fence that the state had under an earlier name.

        Do nothing if the fence was moved with the values.

        :param old: the earlier name.
        :raises StateError: the values have not been moved to this state.
        """

    def clear(self) -> None:
        """Delete the fence and all values, if `can_clear`.

        Dangerous: you cannot undo it. The next commit is refused, because the state appears to have gone back, until
        you repair the ledger (airflow tx repair).
        """
        raise NotImplementedError

    def release(self) -> None:
        """Delete the fence but keep the values, if `can_release`. Another topology can then use the values."""
        raise NotImplementedError

    def for_executors(self) -> FencedState | None:
        """Copy the state, with its address and password, for Spark executors, where Airflow is not installed.

        :return: the copy; None if the state allows only one writer at a time, or no writer in another process.
        """
        return None

    def for_readers(self, *, local: bool) -> FencedState | None:
        """Copy the state for Spark executors that only read values. See `for_executors`.

        :param local: whether the executors run on this machine.
        :return: the copy; None if they cannot read the state.
        """
        return self.for_executors()


class QueryableState(FencedState):
    """A fenced state with key and value columns. One call can query many keys."""

    always_shown = ("kind",)
    columns: Columns

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), **self.columns.serialized()}

    @abstractmethod
    def key_types(self) -> Mapping[str, str] | None:
        """Read the type of each key column. Return None before the first update."""

    @abstractmethod
    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        """Read the value columns of each key, in the order of the keys. A key that does not exist gets None.

        :param keys: one sequence of key values per key; for a single key column, the plain value is enough.
        :raises StateError: the state does not accept a key.
        """

    @contextmanager
    def reading(self) -> Iterator[StateReading]:
        """Read the fence, and then all rows of the state under this fence.

        :raises FenceMoved: another grant wrote while the rows were read, so they are inconsistent. This is detected
            only at the end. A store with snapshots never raises it.
        """
        fence = self.fence()
        yield StateReading(fence, self.key_types(), self.each_row())
        if self.fence() != fence:
            raise FenceMoved

    def each_row(self) -> Iterator[tuple[Any, ...]]:
        """Read the rows of a `StateReading`, in portions if the store can list its keys in portions."""
        names = (*self.columns.keys, *self.columns.values)
        return (tuple(map(row.__getitem__, names)) for row in self.read())


REPLACING = -1
"""The highest chunk number of rows that replace stored values."""


def replaces(chunk: int | None) -> bool:
    """Return whether a chunk's rows replace stored values, because no other transaction contributed to the keys."""
    return chunk is not None and chunk <= REPLACING


class SoleWriterState(QueryableState):
    """A state that records in each row which transaction wrote it, and whether the key had a value before.

    A restatement can then replace the values of a key to which only one transaction has contributed.
    """

    @abstractmethod
    def sole_values(
        self, keys: Sequence[Cells], txids: Collection[int], own: int
    ) -> list[Cells | None]:
        """Read the stored values of the keys to which only one transaction has contributed. Any other key gets None.

        A key that does not exist has NULL in every column.

        :param txids: transactions, one of which must be the key's only contributor. Keys whose values a restatement has
            already replaced are included.
        :param own: the transaction that calls this method. Its own writes are ignored.
        """


class StateUpdate:
    """An update of a state. Queries accept it instead of the state itself."""

    state: FencedState


class Addressed(Described, ABC, Generic[_Opened]):
    """A state or map whose address is an Airflow connection or a URL.

    A copy, for example for another process, has the same address. Each copy opens its own connection to the store.

    :param conn_id: id of the connection, which is looked up when the store is used, not when Airflow parses a DAG.
    :param place: the location within the store, such as a table or a prefix.
    """

    def __init__(self, conn_id: str, place: str) -> None:
        self.conn_id = conn_id
        self.name = f"{conn_id}.{place}"
        self._url: str | None = None

    @classmethod
    def from_url(cls: type[_Self], url: str, *, label: str = "url", **options: Any) -> _Self:
        """Create a state or map without an Airflow connection.

        :param url: SQLAlchemy URL, or redis://user:password@host:port/db, rediss://… or unix://path. It is never shown.
        :param label: the first part of the name, in place of the connection id.
        :param options: the options of the constructor.
        """
        return cls(label, **options)._copy_at(url)

    def _copy_at(self: _Self, url: str) -> _Self:
        copied = copy.copy(self)
        copied._url = url
        return copied

    @abstractmethod
    def _open(self) -> _Opened: ...

    @cached_property
    def _store(self) -> _Opened:
        return self._open()


def named(made: Any) -> Any:
    """Return the qualified name of a function or a class. Return any other object unchanged."""
    return getattr(made, "__qualname__", type(made).__qualname__) if callable(made) else made


# --- store transaction --------------------------------------------------------------------------------------------
# How every store carries out a write in one transaction. Source: protocol.md §7 and §10.
#
# Each store defines how a transaction begins, writes rows and ends. All stores use the same rules
# for which columns a receipt sums up, and when it is stored. If the fence changes, the write begins
# again.


# Maximum number of tries of a write if other grants keep changing the fence.
TRIES = 100


class StoreTransaction(Protocol):
    """An open store transaction. It has raised the fence, or has checked that the fence holds its grant."""

    def put(self) -> int:
        """Add the rows to the values. Return the number of keys. A write without an update does not call this."""

    def end(self, receipt: Receipt | None) -> None:
        """Store the receipt of a complete update. Without a receipt, record that a portion is in the store."""


class StatePart(Protocol):
    """One state's part of a store transaction that several states may share. See `StoreTransaction`."""

    def put(self, write: StateWrite) -> int:
        """Add a portion of the rows to the values. Return its number of keys. Not called without an update."""

    def end(self, receipt: Receipt | None) -> None:
        """Store the receipt of a complete update. Without a receipt, record that a portion is in the store."""


@dataclass(frozen=True)
class _OnlyPart:
    transaction: StoreTransaction

    def put(self, write: StateWrite) -> int:
        return self.transaction.put()

    def end(self, receipt: Receipt | None) -> None:
        self.transaction.end(receipt)


class StoredState(FencedState):
    """A fenced state whose store has transactions. Each method that changes the state runs in one transaction."""

    @property
    def rolls_forward(self) -> bool:
        has_values = self.columns is not None and not self.columns.reducers
        return has_values or self.takes_back_by_txid

    def raise_fence(self, grant: Grant) -> None:
        self._written(StateWrite(self.name, grant, raising=True, complete=False))

    def raise_and_write(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> int:
        tally = RowTally.of(rows, self.added_up)
        return self._written(StateWrite(self.name, grant, tally, raising=True))

    def totals_before(self, names: Collection[str], txid: int) -> dict[str, int] | None:
        """Return the sums of value columns before a transaction. Return None if earlier values are not kept."""
        return None

    def rows_by_grant(self) -> Mapping[tuple[int, int, int], int] | None:
        """Count the keys that each grant wrote last, by txid, attempt and epoch. Epoch 0 has the keys that were undone.

        :return: the number of keys by grant; None if the state does not record which grant wrote a key. A repair then
            does not inspect the values.
        """
        return None

    def put_back(self, grant: Grant) -> None:
        """Restore the fence that a roll forward has temporarily replaced with a *look*. See `airflow_tx.state.fence`.

        :param grant: the grant of the look.
        :raises FenceOutranked: the fence no longer holds this look.
        """
        raise NotImplementedError

    def pass_over(self, grant: Grant) -> None:
        self._written(StateWrite(self.name, grant))

    def undo(self, grant: Grant) -> None:
        if self.kind is StateKind.OPAQUE:
            self._written(StateWrite(self.name, grant, complete=False, undoing=True))

    def _transaction(self, write: StateWrite) -> AbstractContextManager[StoreTransaction]:
        """Open a transaction of the store. An error undoes the whole transaction.

        :raises FenceMoved: another grant has changed the fence. `put` and `end` may also raise this. The write then
            begins again.
        :raises StateError: as for `raise_fence` and `write`.
        """
        raise NotImplementedError

    @contextmanager
    def _transactions(
        self, writes: Sequence[tuple[StoredState, StateWrite]]
    ) -> Iterator[list[StatePart]]:
        """Open one transaction for all states that share a `store_key`. Raises the same errors as `_transaction`."""
        ((_, write),) = writes
        with self._transaction(write) as transaction:
            yield [_OnlyPart(transaction)]

    def _written(self, write: StateWrite) -> int:
        (written,) = write_together([(self, write)])
        return written.keys


def write_together(writes: Sequence[tuple[StoredState, StateWrite]]) -> list[Written]:
    """Write to several states in one transaction of their store.

    Readers see either all rows or none. An error undoes the whole transaction, and names the state that refused the
    write.

    :param writes: the states and their writes, in the order of writing. All states have the same `store_key`.
    :return: what was written to each state.
    :raises StateError: as for `raise_fence` and `write`.
    """
    if not writes:
        return []
    for state, write in writes:
        in_parts = write.parts is not None and (state.runs_once or state.takes_back_by_txid)
        if in_parts or (state.runs_once and not write.complete and not write.raising):
            once = (
                f"its {state.runs_once} run only once"
                if state.runs_once
                else "it needs all rows in one write"
            )
            problem = f"it received only a part of an update, and {once}"
            raise StateError(
                state=state.name, problem=problem, remedy="Give all rows in one write."
            )
    for _ in range(TRIES):
        try:
            return _written_at_once(writes)
        except FenceMoved as moved:
            moved.mend()
        except StateBehind as behind:
            state, write = next(each for each in writes if each[0].name == behind.fields["state"])
            # If this transaction has no journal entry, its predecessors are unlikely to have
            # entries.
            has_journal = write.grant.is_skip or write.grant.has_journal_entry
            advise = state.remedy_behind if has_journal else state.remedy_lost
            fields = {**behind.fields, "remedy": advise(write.grant.topology)}
            raise StateBehind(**fields) from None
    names = ", ".join(state.name for state, _ in writes)
    problem = f"other writers changed the fence {TRIES} times in a row before this write"
    raise StateError(state=names, problem=problem, remedy="Nothing was written. Clear the task.")


def _written_at_once(writes: Sequence[tuple[StoredState, StateWrite]]) -> list[Written]:
    with writes[0][0]._transactions(writes) as parts:
        pairs = [(write, part) for (_, write), part in zip(writes, parts, strict=True)]
        written = [write.put_into(part) for write, part in pairs]
        for (write, part), each in zip(pairs, written, strict=True):
            part.end(write.receipt(each))
    return written


def sharing_a_store(states: Iterable[FencedState]) -> list[list[FencedState]]:
    """Group the states that a single store transaction can write. The largest group comes first."""
    groups = dict[Hashable, list[FencedState]]()
    for state in states:
        key = state.name if state.store_key is None else (state.store_key,)
        groups.setdefault(key, []).append(state)
    return sorted(groups.values(), key=len, reverse=True)


def raise_fences(states: Iterable[FencedState], grant: Grant) -> None:
    """Raise the fences of states, in one transaction per store. Raises the same errors as `raise_fence`."""
    for group in sharing_a_store(states):
        shared = [each for each in group if isinstance(each, StoredState)]
        if len(shared) > 1:
            raising = partial(StateWrite, grant=grant, raising=True, complete=False)
            write_together([(each, raising(each.name)) for each in shared])
        else:
            group[0].raise_fence(grant)


# --- appended -----------------------------------------------------------------------------------------------------
# Tables to which transactions append rows: the interface for tasks, Spark and committers.
#
# Tasks write files into the folder of the table. A task stages one row per file, like any other
# output. No row of a file is in the table before the commit publishes the file.


STAGED = "_airflow_tx"
"""The name of the folder within a table for files that tasks write. VACUUM ignores folders that begin with _."""
TXID = "tx_txid"
"""The column with the txid of the transaction that wrote the row."""
REJECTED_COLUMNS = ("tx_task", "tx_reason", "tx_where", "tx_content")
"""The columns of the table of rejected rows. All columns are texts, so that the rows of every task fit."""


class Misfit(ValueError):
    """Raised if a file does not fit its table. The message names the problem in one clause.

    :param remedy: how to solve the problem; "" if the rows themselves must change.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.remedy = remedy


class AppendTable(ABC):
    """A table to which transactions append rows.

    :ivar uri: address of the folder of the table.
    :ivar partition_by: columns whose values are part of each file's path.
    """

    uri: str
    partition_by: tuple[str, ...]

    @abstractmethod
    def list_staged(
        self, folder: str, partition_fields: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return one row per file that a Spark application has written. These rows are the staged output.

        :param folder: path relative to the table.
        :param partition_fields: the fields of the partition columns in Spark's schema.
        :raises Misfit: a file does not fit the table, or cannot be read.
        """

    @abstractmethod
    def stage(
        self, rows: Sequence[Mapping[str, Any]], attempt: TransactionAttempt
    ) -> list[dict[str, Any]]:
        """Write the rows of Python tasks into files. Return one row per file, as `list_staged` does.

        :raises StateError: the rows do not fit the table, or its folder cannot be written.
        """

    def check_there(self, listed: Sequence[Mapping[str, Any]]) -> None:
        """Check that the files listed by `list_staged` exist in the folder.

        :raises Misfit: a file is missing, or has another size.
        """
        raise NotImplementedError

    def staged_schema(self, listed: Sequence[Mapping[str, Any]]) -> Any:
        """Return the Arrow schema of the files listed by `list_staged`, as readers of the table see it."""
        raise NotImplementedError

    def staged_rows(
        self, listed: Sequence[Mapping[str, Any]], columns: Sequence[str]
    ) -> Iterator[Any]:
        """Read the rows of the files listed by `list_staged`, as Arrow batches.

        :raises StateError: a file cannot be read.
        """
        raise NotImplementedError


def staged_folder(attempt: TransactionAttempt, task_try: str) -> str:
    """Return the folder name of a try, relative to the table. Every try has its own folder."""
    digest = hashlib.sha256(f"{attempt.birth}\n{task_try}".encode()).hexdigest()
    return f"{STAGED}/{attempt}.{digest[:16]}"
