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
"""Read the value columns of keys, as `QueryableState.multi_get` does."""
_Opened = TypeVar("_Opened")
_Self = TypeVar("_Self", bound="Addressed[Any]")


class StateKind(str, Enum):
    """How much a stored value remembers of its updates. This decides for which sources the state is exact."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


def fenced_kind(kind: StateKind | str, *, state: str) -> StateKind:
    """Check the kind of a fenced state, and raise ConfigError if a fence cannot make that kind exact."""
    if kind not in (StateKind.OPAQUE, StateKind.TRANSACTIONAL):
        raise ConfigError(
            option=f"kind of state {state!r}",
            value=str(kind),
            remedy='Use "opaque" or "transactional".',
        )
    return StateKind(kind)


COVERS = "covers"
"""A key in the batch of a look. Its value is the fence that the look covers."""


@dataclass(frozen=True)
class Fence:
    """The record of the last grant that raised the fence of a store.

    A *look* is the fence that a roll forward raises only to inspect the values. It keeps the fence that it covers.

    :param incarnation: the life of the ledger that gave the grant.
    :param token: token of the grant.
    :param applied: whether all updates of the grant are in the store.
    :param batch: rows and position of the transaction, as JSON. A repair rebuilds a lost ledger from them.
    :param state: name of the state that raised the fence; "" if the store has not recorded it.
    :param wrote: whether the grant wrote to a place outside the fence, such as a table, which can be lost without the
        fence.
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
        """Read the batch; None if the fence is a look, or has no batch."""
        return FenceBatch.of_text(self.batch)

    @property
    def covered(self) -> Fence | None:
        """Read the fence that this look covers; None if this fence is not a look, or covers no fence."""
        if not self.token.is_look or f'"{COVERS}"' not in self.batch:
            return None
        found = json.loads(self.batch)[COVERS]
        return Fence(**found | {"token": Token(**found["token"])})

    @property
    def change(self) -> int:
        """Return the number of the newest change by a person that the fence notes as accepted; 0 if it notes none."""
        fence = self.covered or self
        # Parsing a long batch is slow, and few batches name a change.
        kept = fence.kept if f'"{CHANGE}"' in fence.batch else None
        return 0 if kept is None else kept.change

    @property
    def began(self) -> bool | None:
        """Return whether the first transaction found the state empty; None if unknown, or for a later transaction."""
        kept = self.kept
        return None if kept is None else kept.was_empty


class FenceMoved(Exception):
    """Another grant changed the fence after it was read and before the write. The write must begin again."""

    def mend(self) -> None:
        """Prepare the next try, after the store has undone this one."""


@dataclass(frozen=True)
class StateReading:
    """The content of a state under one fence.

    :param fence: the fence; None if no grant has ever raised it.
    :param key_types: type by key column; None before the first update.
    :param rows: key columns and value columns of each key, in any order. A composite such as Avg is given as its parts.
        A key may occur twice.
    """

    fence: Fence | None
    key_types: Mapping[str, str] | None
    rows: Iterator[tuple[Any, ...]]


@dataclass(frozen=True)
class StoredReceipt:
    """A receipt as a state stores it. It has not been checked yet.

    :param text: the text that `Receipt.text` gave.
    :param hash: hash of the text.
    :param takes_out: whether a restatement has taken rows out of the state and cannot put them back.
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
    """One store transaction's changes to one state.

    :param state: name of the state.
    :param grant: the grant that the fence holds, or will hold if the write raises it.
    :param rows: rows of the update; None if the write has no update and only raises the fence or notes a skip.
    :param chunk: number of the writer within the grant.
    :param parts: function that reads the rows in portions, each with its chunk, in place of `rows`. Each call reads the
        rows again.
    :param require: check that runs after the fence is raised. It gets a function that looks up keys, and raises an
        error if the values do not fit.
    :param raising: whether the write raises the fence; if False, the fence must already hold the grant.
    :param undoing: whether the write undoes what the same grant has written.
    :param complete: whether this write puts the last updates of the grant into the store.
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
        """List all rows. The rows are read once, even if the write begins again."""
        return list(self.rows or ())

    def portions(self) -> Iterator[StateWrite]:
        """Yield one write for each portion of the rows, or this write itself if its rows are one portion."""
        if self.parts is None:
            yield from [self] if self.rows is not None else []
            return
        for chunk, rows in self.parts():
            yield replace(self, rows=rows, chunk=chunk, parts=None)

    def put_into(self, part: StatePart) -> Written:
        """Put the rows into a transaction of the store, and return what was written."""
        written = NOTHING_WRITTEN
        for each in self.portions():
            assert each.rows is not None
            written += each.rows.written(part.put(each))
        return written

    def receipt(self, written: Written) -> Receipt | None:
        """Make the receipt of the transaction; None if the update is not complete."""
        return self.grant.receipt(self.state, written) if self.complete else None


class State(Protocol):
    """A store of values that transactions update (Trident's State)."""

    def begin_commit(self, txid: int | None) -> None:
        """Begin the updates of `txid`."""

    def commit(self, txid: int | None) -> None:
        """End the updates of `txid`, which are complete now."""


class FencedState(Described, ABC):
    """A store of values that a committer writes under a grant.

    A subclass defines `name`, `kind`, `raise_fence`, `write` and `fence`. If it does not override one of the other
    methods, the state lacks that ability. `name` identifies the table in the topology record, so two tables must have
    different names.
    """

    name: str
    kind: StateKind
    # The key and value columns; None if the state takes rows unchanged.
    columns: Columns | None = None
    # Whether an opaque state undoes every key that a replaced attempt wrote.
    can_roll_back: bool = True
    # Whether a separate raise takes as long as a write. Otherwise the raise is part of the write.
    slow_to_raise: bool = False
    # Whether each row has the txid of its transaction. A write then deletes the rows of replaced
    # attempts and of the restated transaction.
    takes_back_by_txid: bool = False
    # Whether the journal keeps the rows of a table, so that a roll forward can write them again.
    journal_rows: bool = True
    # How a person restores the newest values, if the state keeps versions; "" if only a backup has
    # them.
    restored_by: str = ""
    has_fence: bool = True
    # The part of a write that needs all rows together, such as the statements of a guard; "" if the
    # state takes portions.
    runs_once: ClassVar[str] = ""
    can_clear: bool = False
    can_release: bool = False
    # Minimum number of receipts that the state keeps when it deletes older ones; None if it keeps
    # all receipts, or none.
    receipts_kept: int | None = None
    # States with equal keys are written in one transaction of their store; None if this state
    # shares no transaction.
    store_key: Hashable | None = None

    @property
    def append_table(self) -> AppendTable | None:
        """Return the state itself if tasks write its rows into its folder; None if the committer writes them."""
        return None

    def dataset(self) -> Dataset | None:
        """Name the place of the values for OpenLineage, without user and password; None if it is unknown.

        A committer calls this after the commit. An error in this method does not fail the task.
        """
        return None

    def ddl(self) -> Mapping[str, Sequence[str]]:
        """List, by place, the statements with which the owner creates or alters the tables of the state."""
        return {}

    @property
    def rolls_forward(self) -> bool:
        """Return whether a roll forward can write missing transactions again, if the journal has them."""
        return False

    def remedy_behind(self, topology: str) -> Remedy:
        """Explain what to do if the state lacks transactions that were committed to it."""
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
        """Explain what to do if the journal does not have the rows that a table lacks."""
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
        """Name the columns that a receipt sums up; empty if the state takes rows unchanged."""
        return () if self.columns is None else self.columns.added_up

    def serialize(self) -> dict[str, Any]:
        """Describe the state in plain JSON, without its address. Airflow shows this description."""
        return {"type": type(self).__name__, **self.arguments(), "kind": self.kind.value}

    @abstractmethod
    def raise_fence(self, grant: Grant) -> None:
        """Check continuity, raise the fence, and undo what outranked tokens of this txid wrote.

        All of this is one store transaction: after an error, nothing has changed.

        :raises FenceOutranked: a later grant has raised the fence.
        :raises FenceForeign: the fence belongs to another topology or to another ledger.
        :raises StateBehind: the store has less than the ledger committed.
        :raises LedgerBehind: the ledger has less than the store.
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
        """Check that the fence holds exactly this grant, then add `rows` to the values.

        All of this is one store transaction: after an error, nothing has changed.

        :param rows: the key columns and the deltas of the value columns; at most one row per key.
        :param chunk: the writer's partition. A writer may send the same chunk twice. Two chunks may not have a key in
            common.
        :param complete: whether this call ends the update. It sets `applied`, and keeps the receipt of the grant if the
            state keeps receipts. With several writers, each passes False, and the last call of the grant passes True
            (with or without rows).
        :return: number of written keys.
        :raises FenceOutranked: a later grant has raised the fence.
        :raises ChunkConflict: another chunk of this transaction has written one of the keys.
        :raises StateError: the state cannot take these rows.
        :raises StateUnavailable: the store cannot be reached.
        """
        tally = RowTally.of(rows, self.added_up)
        return self._written(StateWrite(self.name, grant, tally, chunk, complete=complete))

    def undo(self, grant: Grant) -> None:
        """Undo what this grant has written, as far as the state can. The committer then writes again, perhaps fewer
        rows.

        A state without a fence undoes at the start of its next write. Raises the same errors as `write`.
        """

    def _written(self, write: StateWrite) -> int:
        """Carry out `write`. Every write of a store goes through this method."""
        raise NotImplementedError

    @abstractmethod
    def fence(self) -> Fence | None:
        """Read what the fence holds; None if no grant has ever raised it."""

    def receipts(self) -> list[StoredReceipt] | None:
        """List the receipts that the state keeps, one per transaction, ordered by txid; None if it keeps no
        receipts."""
        return None

    def raise_and_write(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> int:
        """Raise the fence and write, for a topology with this one state; in one store transaction if the store can."""
        self.raise_fence(grant)
        return self.write(grant, rows)

    def pass_over(self, grant: Grant) -> None:
        """Note under the raised fence that a skipped transaction has ended, and write no rows.

        After an error, nothing has changed.

        :raises FenceOutranked: a later grant has raised the fence.
        :raises StateError: the state refuses the note.
        :raises StateUnavailable: the store cannot be reached.
        """
        self.write(grant, ())

    def holds(self, txid: int) -> bool | None:
        """Return whether the state has rows of the last transaction, undone keys included; None if unknown.

        Only a fence that no earlier grant can pass proves that the state has no such rows.
        """
        return None

    def holds_for_good(self, txid: int, birth: str, incarnation: str) -> bool:
        """Return whether the state has rows of exactly this transaction that it cannot undo, as far as it can tell.

        :param birth: birth of the transaction; after a reset, for example, another transaction gets the same txid.
        :param incarnation: the life of the ledger that gave the txid.
        """
        return not self.undoes and bool(self.holds(txid))

    @property
    def undoes(self) -> bool:
        """Return whether the next grant of a transaction undoes what an earlier grant has written."""
        return self.kind is StateKind.OPAQUE and self.can_roll_back

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Read the current values, one dict per key. During a commit they include values of the open transaction.

        :param limit: maximum number of keys; the store chooses which keys.
        """
        return []

    def at(self, txid: int, newest: int) -> str:
        """Write the line that a person pastes to read the values as of a final transaction; "" if there is none.

        If later transactions commit before a person runs the line, it reads the same values or no rows.

        :param newest: the newest final transaction. The caller must read it before this call.
        :raises StateError: no line can read the values as of `txid`.
        """
        return ""

    def totals(self, names: Collection[str]) -> dict[str, int]:
        """Sum up value columns of whole numbers over all keys; empty if the state cannot list its keys."""
        rows = self.read()
        return {name: sum(row[name] or 0 for row in rows) for name in names}

    def rows_by_txid(self) -> Mapping[int | None, int] | None:
        """Count the rows by txid, with key None for rows of no transaction; None if the state keeps no rows."""
        return None

    def accept_values(self, change: int = 0) -> None:
        """Accept the current values after a person has changed them on purpose.

        :param change: number of the repair that notes the change. The fence keeps this number.
        """

    @property
    def names_changes(self) -> bool:
        """Return whether the fence names accepted changes. A state that you write yourself may leave this out."""
        return type(self).accept_values is not FencedState.accept_values

    def fence_of(self, old: str) -> Fence | None:
        """Read the fence that the state will have after it takes over the fence of `old`; its own fence if it has one.

        :raises StateError: `take_over` would raise it.
        """
        return self.fence()

    def take_over(self, old: str) -> None:
        """Take over the fence that the state had under an earlier name, unless the fence moved with the values.

        :param old: the earlier name.
        :raises StateError: the values are not here.
        """

    def clear(self) -> None:
        """Delete the fence and all values, if `can_clear`.

        Dangerous: you cannot undo it. The next commit is refused because the state went back, until you repair the
        ledger (airflow tx repair)."""
        raise NotImplementedError

    def release(self) -> None:
        """Delete the fence and keep the values, if `can_release`. Another topology may then continue with these
        values."""
        raise NotImplementedError

    def for_executors(self) -> FencedState | None:
        """Copy the state, with its address and password, for Spark executors, where Airflow is not installed.

        :return: the copy; None if the state takes one writer at a time, or no writer in another process.
        """
        return None

    def for_readers(self, *, local: bool) -> FencedState | None:
        """Copy the state for Spark executors that only read values, as `for_executors` does.

        :param local: whether the executors run on this machine.
        :return: the copy; None if they cannot read the state.
        """
        return self.for_executors()


class QueryableState(FencedState):
    """A fenced state with key and value columns, which you can query for many keys in one call."""

    always_shown = ("kind",)
    columns: Columns

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), **self.columns.serialized()}

    @abstractmethod
    def key_types(self) -> Mapping[str, str] | None:
        """Read the type of each key column; None before the first update."""

    @abstractmethod
    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        """Read the value columns of each key, in the order of the keys; None for a key that does not exist.

        :param keys: one sequence of key values per key; with one key column, the value alone is enough.
        :raises StateError: the state does not accept a key.
        """

    @contextmanager
    def reading(self) -> Iterator[StateReading]:
        """Read the fence, then all rows that the state has under this fence.

        :raises FenceMoved: at the end, because another grant wrote during the reading, so the rows are of several
            moments. A store with snapshots reads one snapshot, and never raises this.
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
"""The highest chunk number whose rows replace values that cannot be taken back. Other such chunks have lower
numbers."""


def replaces(chunk: int | None) -> bool:
    """Return whether the rows of a chunk replace values because no other transaction has contributed to their keys."""
    return chunk is not None and chunk <= REPLACING


class SoleWriterState(QueryableState):
    """A state that records in each row which transaction wrote it, and whether the key had a value before.

    A restatement can then replace the values of a key to which only one transaction has contributed.
    """

    @abstractmethod
    def sole_values(
        self, keys: Sequence[Cells], txids: Collection[int], own: int
    ) -> list[Cells | None]:
        """Read the stored values of each key to which only one transaction has contributed; None for each other key.

        A key that does not exist has NULL in every column.

        :param txids: the only transaction of a key must be one of these. A key whose values were already replaced also
            counts.
        :param own: the transaction that calls this method. Its own writes do not count.
        """


class StateUpdate:
    """An update of a state. A query may get this object in place of the state itself."""

    state: FencedState


class Addressed(Described, ABC, Generic[_Opened]):
    """A state or map that is reached through an Airflow connection, or a URL.

    Copies, such as those for other processes, keep the address. Each copy opens the store itself.

    :param conn_id: id of the connection, which is looked up when the store is used, not when Airflow parses a DAG.
    :param place: the place within the store, such as a table or a prefix.
    """

    def __init__(self, conn_id: str, place: str) -> None:
        self.conn_id = conn_id
        self.name = f"{conn_id}.{place}"
        self._url: str | None = None

    @classmethod
    def from_url(cls: type[_Self], url: str, *, label: str = "url", **options: Any) -> _Self:
        """Make a state or map without Airflow.

        :param url: SQLAlchemy URL, or redis://user:password@host:port/db, rediss://… or unix://path. It is never shown.
        :param label: replaces the connection id in the name.
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
    """Return the name of a function for display, and any other object unchanged."""
    return getattr(made, "__qualname__", type(made).__qualname__) if callable(made) else made


# --- store transaction --------------------------------------------------------------------------------------------
# How every store carries out a write in one transaction. Source: protocol.md §7 and §10.
#
# Each store defines how a transaction begins, puts rows and ends. All stores share the rules for
# the columns that a receipt sums up, and for the time at which the receipt is stored. If the fence
# changes, the write begins again.


# Maximum number of tries of a write, if the fence changes each time before the write.
TRIES = 100


class StoreTransaction(Protocol):
    """A transaction of a store that has raised the fence, or has found that the fence holds its grant."""

    def put(self) -> int:
        """Add the rows to the values, and return the number of keys. Not called if the write has no update."""

    def end(self, receipt: Receipt | None) -> None:
        """Note the receipt of a complete update. With None, note that a portion is in the store."""


class StatePart(Protocol):
    """The part of one state in a store transaction that several states may share; see `StoreTransaction`."""

    def put(self, write: StateWrite) -> int:
        """Add a portion of the rows to the values, and return the number of keys. Not called if the write has no
        update."""

    def end(self, receipt: Receipt | None) -> None:
        """Note the receipt of a complete update. With None, note that a portion is in the store."""


@dataclass(frozen=True)
class _OnlyPart:
    transaction: StoreTransaction

    def put(self, write: StateWrite) -> int:
        return self.transaction.put()

    def end(self, receipt: Receipt | None) -> None:
        self.transaction.end(receipt)


class StoredState(FencedState):
    """A fenced state whose store has transactions. Each of the five methods that change it runs in one transaction."""

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
        """Sum up value columns without the rows of a transaction; None if the state does not keep the earlier
        values."""
        return None

    def rows_by_grant(self) -> Mapping[tuple[int, int, int], int] | None:
        """Count keys by the grant that wrote them last: txid, attempt and epoch. Epoch 0 counts undone keys.

        :return: None if the state does not record which grant wrote a key. A repair then does not raise the fence for a
            look.
        """
        return None

    def put_back(self, grant: Grant) -> None:
        """Put back the fence that a look covers, see `airflow_tx.state.fence`.

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

        :raises FenceMoved: here, in `put` or in `end`; the write begins again.
        :raises StateError: as `raise_fence` or `write`.
        """
        raise NotImplementedError

    @contextmanager
    def _transactions(
        self, writes: Sequence[tuple[StoredState, StateWrite]]
    ) -> Iterator[list[StatePart]]:
        """Open one transaction for states that share the `store_key`. It is used in place of `_transaction`, and raises
        the same errors."""
        ((_, write),) = writes
        with self._transaction(write) as transaction:
            yield [_OnlyPart(transaction)]

    def _written(self, write: StateWrite) -> int:
        (written,) = write_together([(self, write)])
        return written.keys


def write_together(writes: Sequence[tuple[StoredState, StateWrite]]) -> list[Written]:
    """Write into several states in one transaction of their store, so that a reader sees all rows or none.

    An error undoes the whole transaction, and names the state that refused.

    :param writes: the states, with one `store_key`, and the write for each. The rows are written in this order.
    :return: what was written into each state.
    :raises StateError: as the methods of a state.
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
            # If this transaction has no journal entry, earlier transactions are unlikely to have entries.
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
    """Group states that one transaction of their store can write, the largest group first."""
    groups = dict[Hashable, list[FencedState]]()
    for state in states:
        key = state.name if state.store_key is None else (state.store_key,)
        groups.setdefault(key, []).append(state)
    return sorted(groups.values(), key=len, reverse=True)


def raise_fences(states: Iterable[FencedState], grant: Grant) -> None:
    """Raise the fences of states, in one transaction for states that share a store. Raises the same errors as
    `raise_fence`."""
    for group in sharing_a_store(states):
        shared = [each for each in group if isinstance(each, StoredState)]
        if len(shared) > 1:
            raising = partial(StateWrite, grant=grant, raising=True, complete=False)
            write_together([(each, raising(each.name)) for each in shared])
        else:
            group[0].raise_fence(grant)


# --- appended -----------------------------------------------------------------------------------------------------
# Tables to which transactions append rows, as tasks, Spark applications and the committer see them.
#
# Tasks write files into the folder of the table. A task stages one row per file, like any other
# output. No row of a file is in the table before the commit publishes the file.


STAGED = "_airflow_tx"
"""The folder within a table for the files that tasks write. VACUUM ignores folders that begin with _."""
TXID = "tx_txid"
"""The column with the txid of the transaction that wrote the row."""
REJECTED_COLUMNS = ("tx_task", "tx_reason", "tx_where", "tx_content")
"""The columns of rejected rows. All are texts, so that the rows of all tasks fit one table."""


class Misfit(ValueError):
    """A file does not fit its table. Its message is a clause that names the problem.

    :param remedy: how to solve the problem; "" if the rows must change.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.remedy = remedy


class AppendTable(ABC):
    """A table to which transactions append rows.

    :ivar uri: address of the folder of the table.
    :ivar partition_by: columns whose values are in the path of each file.
    """

    uri: str
    partition_by: tuple[str, ...]

    @abstractmethod
    def list_staged(
        self, folder: str, partition_fields: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """List the files with rows that an application has written, each as a row of a staged output.

        :param folder: path relative to the table.
        :param partition_fields: the fields of the partition columns in Spark's schema.
        :raises Misfit: a file does not fit the table, or cannot be read.
        """

    @abstractmethod
    def stage(
        self, rows: Sequence[Mapping[str, Any]], attempt: TransactionAttempt
    ) -> list[dict[str, Any]]:
        """Write the rows of Python tasks into files, and list these files as `list_staged` does.

        :raises StateError: the rows do not fit the table, or its folder cannot be written.
        """

    def check_there(self, listed: Sequence[Mapping[str, Any]]) -> None:
        """Check that the files that `list_staged` has listed are in the folder.

        :raises Misfit: a file is missing, or has another size.
        """
        raise NotImplementedError

    def staged_schema(self, listed: Sequence[Mapping[str, Any]]) -> Any:
        """Return the Arrow schema of rows in files that `list_staged` has listed, as a reader of the table sees
        them."""
        raise NotImplementedError

    def staged_rows(
        self, listed: Sequence[Mapping[str, Any]], columns: Sequence[str]
    ) -> Iterator[Any]:
        """Read the rows of files that `list_staged` has listed, as Arrow batches.

        :raises StateError: a file cannot be read.
        """
        raise NotImplementedError


def staged_folder(attempt: TransactionAttempt, task_try: str) -> str:
    """Name the folder of one try, relative to the table. Every try has its own folder."""
    digest = hashlib.sha256(f"{attempt.birth}\n{task_try}".encode()).hexdigest()
    return f"{STAGED}/{attempt}.{digest[:16]}"
