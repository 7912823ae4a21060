"""States in memory: a backing map of two methods, and a fenced state with the rules of SqlState in their shortest form,
for tests and for the model explorer. It promises what SqlState does, among the threads of one process, until that ends.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from airflow_tx.errors import ChunkConflict
from airflow_tx.protocol.receipt import Receipt
from airflow_tx.state import fence
from airflow_tx.state.aggregators import Aggregator
from airflow_tx.state.api import Fence, Grant, QueryableState, StateKind, StoredReceipt, fenced_kind
from airflow_tx.state.checked_rows import CheckedRows
from airflow_tx.state.column_types import json_text, type_of
from airflow_tx.state.columns import Cells, checked_columns
from airflow_tx.state.keys import wanted_keys
from airflow_tx.state.row_tally import RowTally
from airflow_tx.state.trident.values import OpaqueValue, TransactionalValue

_Stored = OpaqueValue[Cells] | TransactionalValue[Cells]
_V = TypeVar("_V")
Snapshot = tuple[Fence | None, frozenset[tuple[Cells, _Stored]], tuple[StoredReceipt, ...]]

# One lock for every database keeps them free of anything that cannot be copied; a transaction is a few dict lookups.
_LOCK = threading.RLock()


class MemoryMap(Generic[_V]):
    """A backing map in memory: `OpaqueMap(MemoryMap())` is Trident's MemoryMapState. Two over one dict share it.

    :param values: what it holds; two maps over one dict are two writers of one store.
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
    """What a store holds of one state: its fence, once there was a grant, and by key the values with their writer.

    :param fence: the fence row; None: nobody has written yet.
    :param rows: per key the tuple of its values, with their writer.
    :param receipts: one a transaction.
    """

    fence: Fence | None = None
    rows: dict[Cells, _Stored] = field(default_factory=dict)
    receipts: list[StoredReceipt] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        """Copy everything in it, as one hashable value; equal for equal contents."""
        return self.fence, frozenset(self.rows.items()), tuple(self.receipts)

    def restore(self, snapshot: Snapshot) -> None:
        """Set everything back to what `snapshot` gave."""
        self.fence, self.rows, self.receipts = snapshot[0], dict(snapshot[1]), list(snapshot[2])

    def keep(self, receipt: Receipt | None) -> None:
        """Keep the receipt of a transaction, in place of the one that an earlier grant of it left."""
        if receipt is not None:
            others = [each for each in self.receipts if each.txid != receipt.txid]
            self.receipts = sorted([*others, StoredReceipt.of(receipt)], key=lambda each: each.txid)


class MemoryState(QueryableState):
    """A FencedState over a `MemoryDatabase`; its parameters are those of `SqlState`, and:

    :param name: what the topology record knows the state by.
    :param max_value_bytes: a longer value is refused; None: any length.
    :param database: two states over one database are two writers of one store; None makes a new one.
    :param values: aggregator per value column: any.
    :param kind: "opaque" or "transactional".
    :param types: key column -> type; a column without one gets the type of the first row that arrives.
    """

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
    ) -> None:
        self.name = name
        self.kind = fenced_kind(kind, state=name)
        self.columns = checked_columns(self, keys, values, types, max_value_bytes)
        self.database = database if database is not None else MemoryDatabase()

    def raise_fence(self, grant: Grant) -> None:
        with _LOCK:
            raised = self._raised(grant)
            rows = self._rolled_back(grant)
            self.database.fence, self.database.rows = raised, rows

    def write(self, grant: Grant, rows: Iterable[Mapping[str, Any]], *, chunk: int = 0, complete: bool = True) -> int:
        tally = RowTally.of(rows, self.added_up)
        checked = self._checked(tally)
        with _LOCK:
            fence.check_write(self.database.fence, grant, state=self.name)
            self._put(self.database.fence, self.database.rows, grant, checked, chunk, complete)
            if complete:
                self.database.keep(grant.receipt(self.name, tally.written(len(checked))))
        return len(checked)

    def raise_and_write(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> int:
        tally = RowTally.of(rows, self.added_up)
        checked = self._checked(tally)
        with _LOCK:
            raised = self._raised(grant)
            self._put(raised, self._rolled_back(grant), grant, checked, 0, True)
            self.database.keep(grant.receipt(self.name, tally.written(len(checked))))
        return len(checked)

    def fence(self) -> Fence | None:
        return self.database.fence

    def receipts(self) -> list[StoredReceipt]:
        return list(self.database.receipts)

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        names = (*self.columns.keys, *self.columns.values)
        with _LOCK:
            rows = [
                self.columns.completed(dict(zip(names, (*key, *self._thawed(stored.value)), strict=True)))
                for key, stored in self.database.rows.items()
                if stored.value is not None
            ]
        return sorted(rows, key=lambda row: [str(row[key]) for key in self.columns.keys])[:limit]

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        result = list[dict[str, Any] | None]([None] * len(keys))
        with _LOCK:
            for number, key in wanted_keys(self.columns, keys, self.key_types()):
                stored = self.database.rows.get(key)
                if stored is not None and stored.value is not None:
                    values = dict(zip(self.columns.values, self._thawed(stored.value), strict=True))
                    result[number] = self.columns.completed(values)
        return result

    def key_types(self) -> dict[str, str] | None:
        with _LOCK:
            return {**self._found_types(), **self.columns.types} if self.database.rows else None

    def holds(self, txid: int) -> bool:
        with _LOCK:
            return any(stored.txid == txid for stored in self.database.rows.values())

    def clear(self) -> None:
        with _LOCK:
            self.database.restore((None, frozenset(), ()))

    def _checked(self, rows: Iterable[Mapping[str, Any]]) -> list[Cells]:
        given, checks = list(rows), CheckedRows(self.columns)
        if not given:
            return []
        types = {**checks.key_types(given[0]), **self._found_types()}
        whole = checks.portions(given, types, size=len(given))
        return [row for columns in whole for row in zip(*columns, strict=True)]

    def _found_types(self) -> dict[str, str]:
        """Find the types of the key columns, which the first update decided."""
        found = next(iter(self.database.rows), ())
        return {name: kind for name, value in zip(self.columns.keys, found, strict=False) if (kind := type_of(value))}

    def _raised(self, grant: Grant) -> Fence:
        def holds() -> bool:
            return self.kind is StateKind.TRANSACTIONAL and self.holds(grant.txid)

        return fence.raised(self.database.fence, grant, state=self.name, holds=holds)

    def _rolled_back(self, grant: Grant) -> dict[Cells, _Stored]:
        rows = dict(self.database.rows)
        for key, stored in self.database.rows.items():
            if isinstance(stored, OpaqueValue) and stored.txid == grant.txid and stored.token != grant.token:
                if stored.prev is None:
                    del rows[key]
                else:
                    rows[key] = stored.rolled_back()
        return rows

    def _put(
        self,
        raised: Fence | None,
        rows: dict[Cells, _Stored],
        grant: Grant,
        checked: list[Cells],
        chunk: int,
        complete: bool,
    ) -> None:
        split, after = len(self.columns.keys), dict(rows)
        for row in checked:
            key, deltas = row[:split], row[split:]
            after[key] = self._updated(after.get(key), key, deltas, grant, chunk)
        self.database.rows = after
        self.database.fence = fence.applied(raised) if complete and raised is not None else raised

    def _updated(self, stored: _Stored | None, key: Cells, deltas: Cells, grant: Grant, chunk: int) -> _Stored:
        if stored is None:
            value = self._combined(key, None, deltas)
            if self.kind is StateKind.OPAQUE:
                return OpaqueValue(grant.txid, value, None, grant.token, chunk)
            return TransactionalValue(grant.txid, value, grant.token, chunk)
        if stored.txid == grant.txid and stored.token == grant.token and stored.chunk != chunk:
            shown = dict(zip(self.columns.keys, key, strict=True))
            raise ChunkConflict(state=self.name, key=shown, found=stored.chunk, chunk=chunk, txid=grant.txid)
        base = stored.get(grant.txid)
        if isinstance(stored, TransactionalValue) and stored.txid == grant.txid:
            return stored.update(grant.txid, base or (), grant.token, chunk)  # it is in already
        return stored.update(grant.txid, self._combined(key, base, deltas), grant.token, chunk)

    def _combined(self, key: Cells, base: Cells | None, deltas: Cells) -> Cells:
        return self._frozen(self.columns.combined(key, None if base is None else self._thawed(base), deltas))

    # JSON values are kept as text: nobody else holds them, and a snapshot can be hashed.

    def _frozen(self, values: Cells) -> Cells:
        return self._with_json(json_text, values)

    def _thawed(self, values: Cells) -> Cells:
        return self._with_json(json.loads, values)

    def _with_json(self, done: Callable[[Any], Any], values: Cells) -> Cells:
        pairs = zip(self.columns.values.values(), values, strict=True)
        return tuple(done(value) if each.type == "json" and value is not None else value for each, value in pairs)
