"""States in memory: a backing map, and a fenced state that follows the rules of SqlState in the simplest form.

They are for tests and for the model explorer. Among the threads of a single process, the fenced state has the same
guarantees as SqlState, until the process ends.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from airflow_tx.ledger import Receipt
from airflow_tx.state import fence
from airflow_tx.state.aggregators import Aggregator, Cells, checked_columns
from airflow_tx.state.api import (
    Fence,
    Grant,
    SoleWriterState,
    StateKind,
    StatePart,
    StateWrite,
    StoredReceipt,
    StoredState,
    fenced_kind,
    replaces,
)
from airflow_tx.state.column_types import json_text, type_of
from airflow_tx.state.keys import wanted_keys
from airflow_tx.state.maps import OpaqueValue, StoredValue, Writer, updated_value
from airflow_tx.state.rows import CheckedRows

_Stored = StoredValue[Cells]
_V = TypeVar("_V")
Snapshot = tuple[Fence | None, frozenset[tuple[Cells, _Stored]], tuple[StoredReceipt, ...]]

# All databases share one lock, because a database with its own lock could not be copied.
# Transactions are short: a few dict lookups.
_LOCK = threading.RLock()


class MemoryMap(Generic[_V]):
    """A backing map in memory: `OpaqueMap(MemoryMap())` is Trident's MemoryMapState.

    :param values: value by key. Two maps over the same dict act as two writers of one store.
    """

    def __init__(self, values: dict[Cells, _V] | None = None) -> None:
        self.values = values if values is not None else {}

    def __repr__(self) -> str:
        return "MemoryMap()"

    def multi_get(self, keys: Sequence[Cells]) -> list[_V | None]:
        return [self.values.get(key) for key in keys]

    def multi_put(self, keys: Sequence[Cells], values: Sequence[_V]) -> None:
        for key, value in zip(keys, values, strict=True):
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value


@dataclass
class MemoryDatabase:
    """The content of one state in a store: its fence, and its values with their writers.

    :param fence: the fence; None before the first write.
    :param rows: tuple of values with their writer, by key.
    :param receipts: one receipt per transaction.
    """

    fence: Fence | None = None
    rows: dict[Cells, _Stored] = field(default_factory=dict)
    receipts: list[StoredReceipt] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        """Return a copy of the content as one hashable value. Equal contents give equal values."""
        return self.fence, frozenset(self.rows.items()), tuple(self.receipts)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the content from a snapshot."""
        self.fence = snapshot[0]
        self.rows = dict(snapshot[1])
        self.receipts = list(snapshot[2])

    def take(self, other: MemoryDatabase) -> None:
        """Replace the content with the content of another database, which must not be used any longer."""
        self.fence = other.fence
        self.rows = other.rows
        self.receipts = other.receipts

    def keep(self, receipt: Receipt | None) -> None:
        """Store the receipt of a transaction. It replaces a receipt of the same transaction from an earlier grant."""
        if receipt is not None:
            others = [each for each in self.receipts if each.txid != receipt.txid]
            self.receipts = sorted([*others, StoredReceipt.of(receipt)], key=lambda each: each.txid)


class MemoryState(StoredState, SoleWriterState):
    """A fenced state over a `MemoryDatabase`. It has the parameters of `SqlState` and some others.

    :param name: the name of the state in the topology record.
    :param values: aggregator by value column, of any kind.
    :param kind: "opaque" or "transactional".
    :param types: type by key column. A column without a type gets the type of its first row.
    :param max_value_bytes: maximum size of a value in bytes; None for any size.
    :param database: the content; None for a new one. Two states that share a database act as two writers of one store.
    :param store: a name for the store. States with the same store are written in one transaction, like tables of one
        database. None for a separate store.
    """

    left_out = ("database", "store")
    can_clear = True

    def __init__(
        self,
        name: str = "memory",
        *,
        keys: Iterable[str] = ("key",),
        values: Mapping[str, Aggregator],
        kind: StateKind | str = StateKind.OPAQUE,
        types: Mapping[str, str] | None = None,
        max_value_bytes: int | None = None,
        database: MemoryDatabase | None = None,
        store: Hashable | None = None,
    ) -> None:
        self.name = name
        self.store_key = store
        self.kind = fenced_kind(kind, state=name)
        self.columns = checked_columns(self, keys, values, types, max_value_bytes)
        self.database = database if database is not None else MemoryDatabase()

    def fence(self) -> Fence | None:
        return self.database.fence

    def receipts(self) -> list[StoredReceipt]:
        return list(self.database.receipts)

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        names = (*self.columns.keys, *self.columns.values)
        with _LOCK:
            rows = [
                self.columns.completed(
                    dict(zip(names, (*key, *self._thawed(stored.value)), strict=True))
                )
                for key, stored in self.database.rows.items()
                if stored.value is not None
            ]
        return sorted(rows, key=lambda row: [str(row[key]) for key in self.columns.keys])[:limit]

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        return self.values_in(self.database, keys)

    def values_in(
        self, database: MemoryDatabase, keys: Sequence[Sequence[Any]]
    ) -> list[dict[str, Any] | None]:
        """Look up keys in a database, which may be the draft of a transaction."""
        result = list[dict[str, Any] | None]([None] * len(keys))
        with _LOCK:
            for number, key in wanted_keys(self.columns, keys, self.key_types()):
                stored = database.rows.get(key)
                if stored is not None and stored.value is not None:
                    values = dict(zip(self.columns.values, self._thawed(stored.value), strict=True))
                    result[number] = self.columns.completed(values)
        return result

    def key_types(self) -> dict[str, str] | None:
        with _LOCK:
            types = {**self._found_types(self.database), **self.columns.types}
        return types if self.database.rows else None

    def holds(self, txid: int) -> bool:
        with _LOCK:
            return any(stored.txid == txid for stored in self.database.rows.values())

    def totals_before(self, names: Collection[str], txid: int) -> dict[str, int] | None:
        if self.kind is not StateKind.OPAQUE:
            return None
        with _LOCK:
            before = [
                stored.rolled_back() if stored.txid == txid and stored.token else stored
                for stored in self.database.rows.values()
                if isinstance(stored, OpaqueValue)
            ]
        cells = [each.value for each in before if each.value is not None]
        return {
            name: sum(row[number] or 0 for row in cells)
            for number, name in enumerate(self.columns.values)
            if name in names
        }

    def rows_by_grant(self) -> dict[tuple[int, int, int], int]:
        with _LOCK:
            writers = [(each.txid, each.token) for each in self.database.rows.values()]
        return Counter(
            (txid, *((0, 0) if token is None else (token.attempt, token.epoch)))
            for txid, token in writers
        )

    def accept_values(self, change: int = 0) -> None:
        with _LOCK:
            if self.database.fence is not None:
                self.database.fence = fence.with_change(self.database.fence, change)

    def put_back(self, grant: Grant) -> None:
        with _LOCK:
            self.database.fence = fence.uncovered(self.database.fence, grant, state=self.name)

    def clear(self) -> None:
        with _LOCK:
            self.database.restore((None, frozenset(), ()))

    def checked(
        self, given: Sequence[Mapping[str, Any]], database: MemoryDatabase | None = None
    ) -> list[Cells]:
        """Convert rows to cells, with the key columns first. Raise StateError if a row does not fit.

        :param database: the database that determines the key types; None for the database of the state.
        """
        checks = CheckedRows(self.columns)
        if not given:
            return []
        found = self._found_types(database or self.database)
        types = {**checks.key_types(given[0]), **found}
        (columns,) = checks.portions(given, types, size=len(given))
        return list(zip(*columns, strict=True))

    def _found_types(self, database: MemoryDatabase) -> dict[str, str]:
        """Return the types of the key columns, which the first update has determined."""
        found = next(iter(database.rows), ())
        return {
            name: kind
            for name, value in zip(self.columns.keys, found, strict=False)
            if (kind := type_of(value))
        }

    @contextmanager
    def _transactions(
        self, writes: Sequence[tuple[StoredState, StateWrite]]
    ) -> Iterator[list[StatePart]]:
        pairs = [(state, write) for state, write in writes if isinstance(state, MemoryState)]
        with _LOCK:
            begun = [_MemoryTransaction(state, write) for state, write in pairs]
            yield [*begun]
            for each in begun:
                each.take_effect()

    def sole_values(
        self, keys: Sequence[Cells], txids: Collection[int], own: int
    ) -> list[Cells | None]:
        with _LOCK:
            return [self._sole(self.database.rows.get(key), txids, own) for key in keys]

    def _sole(self, stored: _Stored | None, txids: Collection[int], own: int) -> Cells | None:
        if stored is None:
            return (None,) * len(self.columns.values)
        if not isinstance(stored, OpaqueValue):
            return None
        value = stored.get(own)
        if value is None:
            return (None,) * len(self.columns.values)
        is_first = stored.prev is None and stored.txid in txids
        return self._thawed(value) if is_first or replaces(stored.chunk) else None

    def combined(
        self, key: Cells, deltas: Cells, base: Cells | None, *, replacing: bool = False
    ) -> Cells:
        """Combine a key's stored values with deltas, and return the result in stored form."""
        before = None if base is None else self._thawed(base)
        return self._frozen(self.columns.combined(key, before, deltas, replacing=replacing))

    # Store JSON values as text. Then no other object shares them, and a snapshot can be hashed.

    def _frozen(self, values: Cells) -> Cells:
        return self._with_json(json_text, values)

    def _thawed(self, values: Cells) -> Cells:
        return self._with_json(json.loads, values)

    def _with_json(self, done: Callable[[Any], Any], values: Cells) -> Cells:
        pairs = zip(self.columns.values.values(), values, strict=True)
        return tuple(
            done(value) if each.type == "json" and value is not None else value
            for each, value in pairs
        )


class _MemoryTransaction:
    """One write. It changes a draft, which then replaces the content of the database."""

    def __init__(self, state: MemoryState, write: StateWrite) -> None:
        database = state.database
        self._state = state
        self._write = write
        self._draft = MemoryDatabase(database.fence, dict(database.rows), database.receipts)
        self._writer = Writer(write.grant.txid, write.grant.token, write.chunk)
        if write.raising:
            keeps = state.kind is StateKind.TRANSACTIONAL
            self._draft.fence = fence.raised(
                database.fence,
                write.grant,
                state=state.name,
                holds=lambda: keeps and state.holds(write.grant.txid),
                is_empty=lambda: not database.rows,
            )
            self._roll_back()
        else:
            fence.check_write(database.fence, write.grant, state=state.name)
        if write.undoing:
            assert self._draft.fence is not None
            self._draft.fence = replace(self._draft.fence, applied=False)
            # Undo the rows as if another grant had written them, because this grant may now divide
            # them into chunks differently.
            self._writer = Writer(write.grant.txid)
            self._roll_back()
        if write.require is not None:
            write.require(self._look_up)

    def put(self, write: StateWrite) -> int:
        split = len(self._state.columns.keys)
        self._writer = Writer(write.grant.txid, write.grant.token, write.chunk)
        checked = self._state.checked(write.listed, self._draft)
        for row in checked:
            self._put_row(row[:split], row[split:])
        return len(checked)

    def end(self, receipt: Receipt | None) -> None:
        draft = self._draft
        if self._write.complete and draft.fence is not None:
            draft.fence = fence.applied(draft.fence)
        draft.keep(receipt)

    def take_effect(self) -> None:
        """Make the draft visible to other threads."""
        self._state.database.take(self._draft)

    def _look_up(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        return self._state.values_in(self._draft, keys)

    def _roll_back(self) -> None:
        for key, stored in list(self._draft.rows.items()):
            undone = stored.undone(self._writer)
            if undone is not stored and undone.value is None:
                del self._draft.rows[key]
            else:
                self._draft.rows[key] = undone

    def _put_row(self, key: Cells, deltas: Cells) -> None:
        state = self._state
        stored = self._draft.rows.get(key)
        if stored is not None:
            shown = dict(zip(state.columns.keys, key, strict=True))
            self._writer.check(stored, state=state.name, key=shown)
        combine = partial(state.combined, key, deltas, replacing=replaces(self._writer.chunk))
        self._draft.rows[key] = updated_value(state.kind, stored, self._writer, combine)
