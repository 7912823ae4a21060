"""The base of states: Trident's State, the fence against committers that were declared dead, and its address.

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
"""Reads the value columns of keys, as `QueryableState.multi_get`."""
_Opened = TypeVar("_Opened")
_Self = TypeVar("_Self", bound="Addressed[Any]")


class StateKind(str, Enum):
    """The memory of a stored value, which decides the sources it is exact for."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


def fenced_kind(kind: StateKind | str, *, state: str) -> StateKind:
    """Check the kind of a fenced state; a ConfigError if a fence cannot make it exact."""
    if kind not in (StateKind.OPAQUE, StateKind.TRANSACTIONAL):
        raise ConfigError(
            option=f"kind of state {state!r}",
            value=str(kind),
            remedy='Use "opaque" or "transactional".',
        )
    return StateKind(kind)


COVERS = "covers"
"""The key of a look's batch under which it keeps the fence that it covers."""


@dataclass(frozen=True)
class Fence:
    """The record of the last grant that raised the fence of a store.

    :param incarnation: the life of the ledger that gave it.
    :param applied: whether all of the updates of that grant are in the store.
    :param batch: rows and position of its transaction, as JSON: a lost ledger is rebuilt from it.
    :param state: name of the state that raised it; "" if the store does not know.
    :param wrote: whether something was written to a place beside the fence, such as a table, which can be lost alone.
    :param token: of the grant.
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
        """Read its batch; None: it is a look, or it keeps none."""
        return FenceBatch.of_text(self.batch)

    @property
    def covered(self) -> Fence | None:
        """Read the fence that a look covers, which the look keeps as its batch; None: it covers none."""
        if not self.token.is_look or f'"{COVERS}"' not in self.batch:
            return None
        found = json.loads(self.batch)[COVERS]
        return Fence(**found | {"token": Token(**found["token"])})

    @property
    def change(self) -> int:
        """Give the number of the newest accepted change that its values have; 0: none is known to be in them."""
        fence = self.covered or self
        # A batch may be long, and few name a change.
        kept = fence.kept if f'"{CHANGE}"' in fence.batch else None
        return 0 if kept is None else kept.change

    @property
    def began(self) -> bool | None:
        """Whether the place was empty before its transaction; None: that one was not the first, or it is unknown."""
        kept = self.kept
        return None if kept is None else kept.was_empty


class FenceMoved(Exception):
    """Another grant changed the fence between its reading and what followed: begin again."""

    def mend(self) -> None:
        """Do what the next try needs, once this one is undone."""


@dataclass(frozen=True)
class StateReading:
    """The content of a state under one fence.

    :param fence: None: no grant has ever raised it.
    :param key_types: type per key column; None: before the first update.
    :param rows: per key the key columns and the value columns, composites such as Avg in their parts. The keys are in
        no order, and a key may come twice.
    """

    fence: Fence | None
    key_types: Mapping[str, str] | None
    rows: Iterator[tuple[Any, ...]]


@dataclass(frozen=True)
class StoredReceipt:
    """A receipt as a state keeps it, without any check.

    :param text: as `Receipt.text` gave it; `hash` is the hash of the text.
    :param takes_out: whether a restatement has taken rows out of the state, which it cannot undo.
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
    """The work of a state in one store transaction.

    :param state: its name.
    :param grant: the grant that the fence holds, or gets.
    :param rows: the rows of the update; None: there is no update, the fence is raised or a skip is noted.
    :param chunk: the writer within the grant.
    :param parts: in place of `rows`, reads them in portions, each with its chunk, again at each call.
    :param require: refuses what the values lack, once the fence is raised; it gets what looks up keys.
    :param raising: whether the transaction raises the fence; False: the fence has to hold the grant.
    :param undoing: whether it undoes what this very grant has written.
    :param complete: whether all updates of the grant are in the store with this write.
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
        """List all rows. They are read once, however often the write begins again."""
        return list(self.rows or ())

    def portions(self) -> Iterator[StateWrite]:
        """Give the work with each portion of its rows; itself, if they are one portion."""
        if self.parts is None:
            yield from [self] if self.rows is not None else []
            return
        for chunk, rows in self.parts():
            yield replace(self, rows=rows, chunk=chunk, parts=None)

    def put_into(self, part: StatePart) -> Written:
        """Put the rows into a transaction of the store; what was written."""
        written = NOTHING_WRITTEN
        for each in self.portions():
            assert each.rows is not None
            written += each.rows.written(part.put(each))
        return written

    def receipt(self, written: Written) -> Receipt | None:
        """Make the receipt of the transaction; None: the update is not complete."""
        return self.grant.receipt(self.state, written) if self.complete else None


class State(Protocol):
    """A store of values that transactions update (Trident's State)."""

    def begin_commit(self, txid: int | None) -> None:
        """Begin the updates of `txid`."""

    def commit(self, txid: int | None) -> None:
        """End the updates of `txid`: they are complete."""


class FencedState(Described, ABC):
    """A store of values that a committer writes under a grant.

    A state has `name`, `kind`, `raise_fence`, `write` and `fence`. It cannot do what it does not override.
    `name` identifies the state in the topology record: the same name for the same table, another for another.
    """

    name: str
    kind: StateKind
    # None: the state takes rows unchanged.
    columns: Columns | None = None
    # Whether an opaque state takes back every key that a replaced attempt wrote.
    can_roll_back: bool = True
    # Whether a raise of its own takes as long as a write, which it is a part of otherwise.
    slow_to_raise: bool = False
    # Whether each row has its txid: a write takes out the rows of replaced attempts and of the restated transaction.
    takes_back_by_txid: bool = False
    # Whether the journal keeps the rows of a table, so that a roll forward can write them again.
    journal_rows: bool = True
    # How a person restores its newest values, if it keeps versions itself; "": from a backup.
    restored_by: str = ""
    has_fence: bool = True
    # The part of a write that needs all rows at once, such as the statements of a guard; "": it takes portions.
    runs_once: ClassVar[str] = ""
    can_clear: bool = False
    can_release: bool = False
    # How many receipts it keeps at least, before it forgets older ones; None: all, or it keeps none.
    receipts_kept: int | None = None
    # States with an equal one are written in one transaction of their store; None: in one of their own.
    store_key: Hashable | None = None

    @property
    def append_table(self) -> AppendTable | None:
        """Return the state itself if tasks write its rows into its folder; None: the committer writes them."""
        return None

    def dataset(self) -> Dataset | None:
        """Name the place of its values for OpenLineage, without user and password; None: it is not known.

        A committer asks once its transaction is committed. An error fails no task.
        """
        return None

    def ddl(self) -> Mapping[str, Sequence[str]]:
        """List, per place, the statements by which the owner of its tables makes or alters what it needs."""
        return {}

    @property
    def rolls_forward(self) -> bool:
        """Whether a roll forward can write again what it lacks, if the journal has it."""
        return False

    def remedy_behind(self, topology: str) -> Remedy:
        """Say what to do if it lacks transactions that were committed to it."""
        lost = self.remedy_lost(topology)
        if not self.rolls_forward:
            return lost
        if not self.journal_rows:
            return self.remedy_without_rows(topology)
        return Remedy.of(
            "Write what it lacks again from the journal: ",
            Command.of("repair", topology, "--roll-forward", self.name),
            ". Or: ",
            lost,
        )

    def remedy_without_rows(self, topology: str) -> Remedy:
        """Say what to do if the journal does not have the rows that a table lacks."""
        return Remedy.of(
            "Process what it lacks again: ",
            Command.of("repair", topology, "--roll-forward", self.name, "--restate"),
            ". Or: ",
            self.remedy_lost(topology),
        )

    def remedy_lost(self, topology: str) -> Remedy:
        """Say what to do if the journal does not have what it lacks."""
        return (
            f"{self.restored_by or 'Restore a newer backup of it and repeat'}, or accept what it lost: "
            + Command.of("repair", topology, "--state-lost", self.name)
        )

    @property
    def added_up(self) -> tuple[str, ...]:
        """Name the columns whose sums a receipt has; none, if rows are taken unchanged."""
        return () if self.columns is None else self.columns.added_up

    def serialize(self) -> dict[str, Any]:
        """Describe the state in plain JSON, without its address: Airflow shows it."""
        return {"type": type(self).__name__, **self.arguments(), "kind": self.kind.value}

    @abstractmethod
    def raise_fence(self, grant: Grant) -> None:
        """In one store transaction: check continuity, raise the fence, undo what outranked tokens of this txid wrote.

        After an error, nothing has changed.

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
        """In one store transaction: check that the fence holds exactly this grant, then add `rows` to the values.

        If the method raises an error, nothing has changed.

        :param rows: the key columns and the deltas of the value columns; at most one row per key.
        :param chunk: the writer's partition. A writer may send the same chunk twice. Two chunks may not have a key in
            common.
        :param complete: sets `applied`, and keeps the receipt of the grant if the state keeps receipts. If there are
            several writers, each passes False, and the last call of the grant passes True (with or without rows).
        :return: how many keys were written.
        :raises FenceOutranked: a later grant has raised the fence.
        :raises ChunkConflict: another chunk of this transaction has written one of the keys.
        :raises StateError: the state cannot take these rows.
        :raises StateUnavailable: the store cannot be reached.
        """
        tally = RowTally.of(rows, self.added_up)
        return self._written(StateWrite(self.name, grant, tally, chunk, complete=complete))

    def undo(self, grant: Grant) -> None:
        """Undo what this very grant has written, as far as the state can: its committer writes again, maybe less.

        A state without a fence does so when its write begins. Raises as `write`.
        """

    def _written(self, write: StateWrite) -> int:
        """Do what `write` says: the one method of a write that a store has."""
        raise NotImplementedError

    @abstractmethod
    def fence(self) -> Fence | None:
        """Read what the fence holds now; None if no grant has ever raised it."""

    def receipts(self) -> list[StoredReceipt] | None:
        """List the receipts that it keeps, in the order of their txids: one a transaction; None: it keeps none."""
        return None

    def raise_and_write(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> int:
        """Raise the fence and write, for a topology with this one state; in one store transaction, if the store can."""
        self.raise_fence(grant)
        return self.write(grant, rows)

    def pass_over(self, grant: Grant) -> None:
        """Note that a skipped transaction has ended, under its raised fence, and write no rows.

        After an error, nothing has changed.

        :raises FenceOutranked: a later grant has raised the fence.
        :raises StateError: the state refuses the note.
        :raises StateUnavailable: the store cannot be reached.
        """
        self.write(grant, ())

    def holds(self, txid: int) -> bool | None:
        """Whether it has something of the last transaction; keys that were undone count, too. None: unknown.

        Only a fence that no earlier grant can pass proves that the state has nothing.
        """
        return None

    def holds_for_good(self, txid: int, birth: str, incarnation: str) -> bool:
        """Whether it has something of this very transaction that it cannot undo, as far as it can tell.

        :param birth: and `incarnation`: a txid alone is given again, for example after a reset.
        """
        return not self.undoes and bool(self.holds(txid))

    @property
    def undoes(self) -> bool:
        """Whether the next grant of a transaction undoes what an earlier one has written."""
        return self.kind is StateKind.OPAQUE and self.can_roll_back

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Read the current values, one dict a key; during a commit also values of a transaction that is not yet marked.

        :param limit: at most so many keys; the store chooses which.
        """
        return []

    def at(self, txid: int, newest: int) -> str:
        """Word how its values are read as of a final transaction, in a line to paste; "": it has none.

        The line stays right while later transactions commit, or reads no rows.

        :param newest: the newest final transaction, which was read before.
        :raises StateError: no line reads them as of that one.
        """
        return ""

    def totals(self, names: Collection[str]) -> dict[str, int]:
        """Add up value columns of whole numbers over all keys; none, if it cannot list its keys."""
        rows = self.read()
        return {name: sum(row[name] or 0 for row in rows) for name in names}

    def rows_by_txid(self) -> Mapping[int | None, int] | None:
        """Count the rows of each transaction; key None: rows of no transaction. None: it keeps no rows."""
        return None

    def accept_values(self, change: int = 0) -> None:
        """Accept the current values: a person has changed them on purpose.

        :param change: number of the repair that notes it, which the fence keeps from now on.
        """

    @property
    def names_changes(self) -> bool:
        """Whether its fence names accepted changes: a state of one's own need not do so."""
        return type(self).accept_values is not FencedState.accept_values

    def fence_of(self, old: str) -> Fence | None:
        """Read the fence that the state has once it has taken over the fence of `old`: its own, if it has one.

        :raises StateError: as `take_over`.
        """
        return self.fence()

    def take_over(self, old: str) -> None:
        """Take the fence of a state that has this name now, unless it came along with the values.

        :param old: the name that it had.
        :raises StateError: its values are not here.
        """

    def clear(self) -> None:
        """Delete the fence and all values, if `can_clear`. Dangerous: it cannot be undone, and until the ledger is
        repaired (airflow tx repair) the next commit is refused because the state went back."""
        raise NotImplementedError

    def release(self) -> None:
        """Delete the fence and keep the values, if `can_release`: another topology may continue with them."""
        raise NotImplementedError

    def for_executors(self) -> FencedState | None:
        """Copy the state for executors of Spark, where there is no Airflow: with its address and password.

        :return: None: the state takes one writer at a time, or none elsewhere.
        """
        return None

    def for_readers(self, *, local: bool) -> FencedState | None:
        """Copy the state for executors of Spark that ask it for values, as `for_executors`.

        :param local: whether they are on this machine.
        :return: None: they cannot.
        """
        return self.for_executors()


class QueryableState(FencedState):
    """A fenced state with key and value columns that can be asked for many keys at once."""

    always_shown = ("kind",)
    columns: Columns

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), **self.columns.serialized()}

    @abstractmethod
    def key_types(self) -> Mapping[str, str] | None:
        """Read the type of each key column; None before the first update."""

    @abstractmethod
    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        """Read the value columns of each key, in the order of the keys; None: there is no such key.

        :param keys: one value a key column; of one column, the value alone will do.
        :raises StateError: a key is not one of this state.
        """

    @contextmanager
    def reading(self) -> Iterator[StateReading]:
        """Read the fence, and then all rows that are in the state under this fence.

        :raises FenceMoved: at the end: another grant ran during the reading, so the rows are of several moments. A
            store with snapshots reads one of them, and never raises this.
        """
        fence = self.fence()
        yield StateReading(fence, self.key_types(), self.each_row())
        if self.fence() != fence:
            raise FenceMoved

    def each_row(self) -> Iterator[tuple[Any, ...]]:
        """Read the rows of a `StateReading`; a store that can list its keys in portions does not read all at once."""
        names = (*self.columns.keys, *self.columns.values)
        return (tuple(map(row.__getitem__, names)) for row in self.read())


REPLACING = -1
"""The first chunk whose rows replace values that cannot be taken back; others of a grant have lower numbers."""


def replaces(chunk: int | None) -> bool:
    """Ask whether the rows of a chunk replace values: no other transaction has contributed to these keys."""
    return chunk is not None and chunk <= REPLACING


class SoleWriterState(QueryableState):
    """A state whose rows say which transaction wrote them, and whether there was a value before it.

    A restatement can replace the values of a key to which one transaction alone has contributed.
    """

    @abstractmethod
    def sole_values(
        self, keys: Sequence[Cells], txids: Collection[int], own: int
    ) -> list[Cells | None]:
        """Read the stored values of each key, if one transaction alone has contributed to it; None: others may have.

        A key that is not there has NULL in every column.

        :param txids: that transaction is one of these. A key whose values were replaced before counts likewise.
        :param own: the transaction that asks: its own writes do not count.
        """


class StateUpdate:
    """An update of a state; a query of it asks that state."""

    state: FencedState


class Addressed(Described, ABC, Generic[_Opened]):
    """A state or map that is reached through an Airflow connection, or a URL.

    Copies, such as those for other processes, keep the address; each opens the store itself.

    :param conn_id: of the connection, which is looked up when the store is used, not when a DAG is parsed.
    :param place: where behind the address: a table, a prefix.
    """

    def __init__(self, conn_id: str, place: str) -> None:
        self.conn_id = conn_id
        self.name = f"{conn_id}.{place}"
        self._url: str | None = None

    @classmethod
    def from_url(cls: type[_Self], url: str, *, label: str = "url", **options: Any) -> _Self:
        """Make one without Airflow.

        :param url: of SQLAlchemy, or redis://user:password@host:port/db, rediss://… or unix://path; it is never shown.
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
    """Name a function, or leave what is none, for what is shown."""
    return getattr(made, "__qualname__", type(made).__qualname__) if callable(made) else made


# --- store transaction --------------------------------------------------------------------------------------------
# What every store does with a write, in one transaction of its own. Source: protocol.md §7 and §10.
#
# A store says how a transaction begins, puts rows and ends. All of them share which columns a receipt adds up and
# when it is kept. A write begins again when the fence moves.


# How often a write begins again because the fence changed between its reading and the write.
TRIES = 100


class StoreTransaction(Protocol):
    """A transaction of a store that has raised the fence, or found that it holds the grant."""

    def put(self) -> int:
        """Add the rows to the values; returns how many keys. Not called without an update."""

    def end(self, receipt: Receipt | None) -> None:
        """Note that the update is complete, with its receipt, or that one of its portions is in the store."""


class StatePart(Protocol):
    """The part of one state in a transaction of a store that several states may share, as a `StoreTransaction`."""

    def put(self, write: StateWrite) -> int:
        """Add a portion of the rows to the values; returns how many keys. Not called without an update."""

    def end(self, receipt: Receipt | None) -> None:
        """Note that the update is complete, with its receipt, or that one of its portions is in the store."""


@dataclass(frozen=True)
class _OnlyPart:
    transaction: StoreTransaction

    def put(self, write: StateWrite) -> int:
        return self.transaction.put()

    def end(self, receipt: Receipt | None) -> None:
        self.transaction.end(receipt)


class StoredState(FencedState):
    """A fenced state whose store has transactions: each of the five methods that change it is one of them."""

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
        """Add up value columns without the rows of a transaction; None: it does not keep the values before one."""
        return None

    def rows_by_grant(self) -> Mapping[tuple[int, int, int], int] | None:
        """Count keys by the grant that wrote them last: its txid, attempt and epoch; epoch 0: this was undone.

        :return: None: it does not keep who wrote a key. So no repair looks at its values under a fence of its own.
        """
        return None

    def put_back(self, grant: Grant) -> None:
        """Put back the fence that a look covers, see `airflow_tx.state.fence`.

        :param grant: the grant of the look.
        :raises FenceOutranked: the fence does not hold this look any more.
        """
        raise NotImplementedError

    def pass_over(self, grant: Grant) -> None:
        self._written(StateWrite(self.name, grant))

    def undo(self, grant: Grant) -> None:
        if self.kind is StateKind.OPAQUE:
            self._written(StateWrite(self.name, grant, complete=False, undoing=True))

    def _transaction(self, write: StateWrite) -> AbstractContextManager[StoreTransaction]:
        """Open a transaction of the store, which an error undoes as a whole.

        :raises FenceMoved: here, by `put` or by `end`: the write begins again.
        :raises StateError: as `raise_fence`, or as `write`.
        """
        raise NotImplementedError

    @contextmanager
    def _transactions(
        self, writes: Sequence[tuple[StoredState, StateWrite]]
    ) -> Iterator[list[StatePart]]:
        """Open one for states that have the `store_key` of this one, in place of `_transaction`, and raise as that."""
        ((_, write),) = writes
        with self._transaction(write) as transaction:
            yield [_OnlyPart(transaction)]

    def _written(self, write: StateWrite) -> int:
        (written,) = write_together([(self, write)])
        return written.keys


def write_together(writes: Sequence[tuple[StoredState, StateWrite]]) -> list[Written]:
    """Write into several states in one transaction of their store: a reader sees all rows at once.

    An error undoes the whole transaction, and names its own state.

    :param writes: the states, with one `store_key`, and the work of each. The rows are written in this order.
    :return: what was written into each.
    :raises StateError: as the methods of a state.
    """
    if not writes:
        return []
    for state, write in writes:
        in_parts = write.parts is not None and (state.runs_once or state.takes_back_by_txid)
        if in_parts or (state.runs_once and not write.complete and not write.raising):
            once = (
                f"its {state.runs_once} run once" if state.runs_once else "takes all rows at once"
            )
            problem = f"it was given a part of an update, and {once}"
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
            # Where this transaction has no journal entry, those before it hardly have one.
            has_journal = write.grant.is_skip or write.grant.has_journal_entry
            advise = state.remedy_behind if has_journal else state.remedy_lost
            fields = {**behind.fields, "remedy": advise(write.grant.topology)}
            raise StateBehind(**fields) from None
    names = ", ".join(state.name for state, _ in writes)
    problem = f"the fence changed {TRIES} times in a row between its reading and the write"
    raise StateError(state=names, problem=problem, remedy="Nothing was written. Clear the task.")


def _written_at_once(writes: Sequence[tuple[StoredState, StateWrite]]) -> list[Written]:
    with writes[0][0]._transactions(writes) as parts:
        pairs = [(write, part) for (_, write), part in zip(writes, parts, strict=True)]
        written = [write.put_into(part) for write, part in pairs]
        for (write, part), each in zip(pairs, written, strict=True):
            part.end(write.receipt(each))
    return written


def sharing_a_store(states: Iterable[FencedState]) -> list[list[FencedState]]:
    """Group states by what one transaction of their store can write; the largest group is the first."""
    groups = dict[Hashable, list[FencedState]]()
    for state in states:
        key = state.name if state.store_key is None else (state.store_key,)
        groups.setdefault(key, []).append(state)
    return sorted(groups.values(), key=len, reverse=True)


def raise_fences(states: Iterable[FencedState], grant: Grant) -> None:
    """Raise the fences of states: where several share a store, in one transaction of it. Raises as `raise_fence`."""
    for group in sharing_a_store(states):
        shared = [each for each in group if isinstance(each, StoredState)]
        if len(shared) > 1:
            raising = partial(StateWrite, grant=grant, raising=True, complete=False)
            write_together([(each, raising(each.name)) for each in shared])
        else:
            group[0].raise_fence(grant)


# --- appended -----------------------------------------------------------------------------------------------------
# Tables to which transactions append rows: what tasks, applications and the committer know of each of them.
#
# Tasks write files into the folder of the table. A task stages one row per file, like any other output. No row of a
# file is in the table before the commit publishes the file.


STAGED = "_airflow_tx"
"""The folder within a table for the files that tasks write. VACUUM leaves folders that begin with _ alone."""
TXID = "tx_txid"
"""The column that says which transaction a row is of."""
REJECTED_COLUMNS = ("tx_task", "tx_reason", "tx_where", "tx_content")
"""The columns of rows that tasks have rejected: texts, so that rows of all tasks fit one table."""


class Misfit(ValueError):
    """What of a file does not fit its table, as a clause.

    :param remedy: what to do about it; "": to make other rows.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.remedy = remedy


class AppendTable(ABC):
    """A table to which transactions append rows.

    :ivar uri: of its folder.
    :ivar partition_by: columns whose values are in the path of each file.
    """

    uri: str
    partition_by: tuple[str, ...]

    @abstractmethod
    def list_staged(
        self, folder: str, partition_fields: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """List the files with rows that an application has written, each as a row of a staged output.

        :param folder: relative to the table.
        :param partition_fields: the fields of the partition columns in Spark's schema.
        :raises Misfit: a file cannot be one of the table, or cannot be read.
        """

    @abstractmethod
    def stage(
        self, rows: Sequence[Mapping[str, Any]], attempt: TransactionAttempt
    ) -> list[dict[str, Any]]:
        """Write the rows of Python tasks into files, and list these as `list_staged` does.

        :raises StateError: the rows do not fit the table, or its folder cannot be written.
        """

    def check_there(self, listed: Sequence[Mapping[str, Any]]) -> None:
        """Compare files that `list_staged` has listed with the folder.

        :raises Misfit: one is not there, or has another size.
        """
        raise NotImplementedError

    def staged_schema(self, listed: Sequence[Mapping[str, Any]]) -> Any:
        """Give the Arrow schema of rows in files that `list_staged` has listed, as a reader of the table sees them."""
        raise NotImplementedError

    def staged_rows(
        self, listed: Sequence[Mapping[str, Any]], columns: Sequence[str]
    ) -> Iterator[Any]:
        """Read the rows of files that `list_staged` has listed, as Arrow batches.

        :raises StateError: a file cannot be read.
        """
        raise NotImplementedError


def staged_folder(attempt: TransactionAttempt, task_try: str) -> str:
    """Name the folder of one try, relative to the table: no two tries share one."""
    digest = hashlib.sha256(f"{attempt.birth}\n{task_try}".encode()).hexdigest()
    return f"{STAGED}/{attempt}.{digest[:16]}"
