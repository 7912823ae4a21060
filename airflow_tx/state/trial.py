"""The states of a trial: they begin with the values of the real states, and keep what is written to themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from airflow_tx.state.api import Fence, FencedState, Grant, QueryableState, StateKind, StateWrite
from airflow_tx.state.columns import Cells
from airflow_tx.state.memory import MemoryDatabase, MemoryMap, MemoryState
from airflow_tx.state.persisted import PersistedState, Updated
from airflow_tx.state.trident.maps import NonTransactionalMap
from airflow_tx.state.trident.state import is_map
from airflow_tx.state.trident.values import OpaqueValue, TransactionalValue

_Row = Mapping[str, Any]


@dataclass(frozen=True)
class TrialChange:
    """A change that a trial would make in a state: one value column of one key.

    :param key: the key columns, by name.
    :param before: its value in the real state; None: the key is new.
    :param added: what the batch brings to it.
    """

    key: Mapping[str, Any]
    column: str
    before: Any
    added: Any
    after: Any


class TrialState(MemoryState):
    """Holds the values that a state would have after the trial.

    :param real: the state of the DAG. It is asked for the keys that the trial writes.
    :param rows: what it holds before the trial; None: what the real state holds.
    """

    def __init__(self, real: QueryableState, rows: Sequence[_Row] | None = None) -> None:
        self.real = real
        self.name = real.name
        self.kind = StateKind.OPAQUE if real.kind is StateKind.NON_TRANSACTIONAL else real.kind
        self.columns = real.columns
        self.database = MemoryDatabase()
        self._start = None if rows is None else {self._key(row): row for row in rows}
        self._before: dict[Cells, _Row | None] = {}
        self._added: dict[Cells, _Row] = {}

    def __repr__(self) -> str:
        return repr(self.real)

    def for_executors(self) -> None:
        """Keep the trial in this process."""

    def changes(self) -> Iterator[TrialChange]:
        """List what the trial has changed, by key."""
        for key in sorted(self._added, key=str):
            shown = dict(zip(self.columns.keys, key, strict=True))
            before, (after,) = self._before[key], self.multi_get([key])
            for column in self.columns.values:
                old = None if before is None else before[column]
                new = None if after is None else after[column]
                yield TrialChange(shown, column, old, self._added[key].get(column), new)

    @contextmanager
    def _transaction(self, write: StateWrite) -> Iterator[Any]:
        self._seed(write.listed)
        with super()._transaction(write) as transaction:
            yield transaction

    def _seed(self, rows: Sequence[_Row]) -> None:
        """Take over the values of the keys that are about to be written."""
        split = len(self.columns.keys)
        checked = {cells[:split]: cells[split:] for cells in self._checked(rows)}

        missing = [key for key in checked if key not in self._before]
        for key, values in zip(missing, self._found(missing), strict=True):
            self._before[key] = values
            if values is not None:
                self.database.rows[key] = self._stored(values)
        self._added |= {
            key: dict(zip(self.columns.values, deltas, strict=True))
            for key, deltas in checked.items()
        }

    def _found(self, keys: Sequence[Cells]) -> list[Any]:
        if self._start is not None:
            return [self._start.get(key) for key in keys]
        return self.real.multi_get(keys)

    def _stored(self, row: _Row) -> OpaqueValue[Cells] | TransactionalValue[Cells]:
        values = self._frozen(tuple(row[name] for name in self.columns.values))
        if self.kind is StateKind.OPAQUE:
            return OpaqueValue(0, values, None)
        return TransactionalValue(0, values)

    def _key(self, row: _Row) -> Cells:
        return tuple(row.get(name) for name in self.columns.keys)


class TrialRows(FencedState):
    """Keeps the rows that a state without columns would be given.

    :param real: the state of the DAG, which is not asked.
    """

    def __init__(self, real: FencedState) -> None:
        self.real = real
        self.name = real.name
        self.kind = StateKind.OPAQUE
        self.rows: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return repr(self.real)

    def raise_fence(self, grant: Grant) -> None:
        self.rows.clear()

    def _written(self, write: StateWrite) -> int:
        given = [dict(row) for row in write.rows or ()]
        self.rows += given
        return len(given)

    def fence(self) -> Fence | None:
        return None


class TrialUpdates(PersistedState):
    """Runs the updater of a map over a copy of the values that it asks for, and keeps the rows.

    :param real: the map of the DAG, with its updater.
    :param asked: whether the real map is asked for its values; False: it begins empty.
    """

    def __init__(self, real: PersistedState, *, asked: bool) -> None:
        copied = _CopiedMap(real.state if asked else MemoryMap())
        super().__init__(NonTransactionalMap(copied, name=real.name), real.updater)
        self.real = real
        self.rows: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return repr(self.real)

    def updated(self, grant: Grant, rows: Iterable[_Row]) -> Updated:
        self.rows = [dict(row) for row in rows]
        return super().updated(grant, self.rows)


class _CopiedMap(MemoryMap[Any]):
    """Reads the values of a map until they are replaced here."""

    def __init__(self, real: Any) -> None:
        super().__init__()
        self._real = real
        self._replaced = set[Cells]()

    def multi_get(self, keys: Sequence[Cells]) -> list[Any]:
        missing = [key for key in keys if key not in self._replaced]
        found = dict(zip(missing, self._real.multi_get(missing), strict=True))
        return [self.values.get(key) if key in self._replaced else found[key] for key in keys]

    def multi_put(self, keys: Sequence[Cells], values: Sequence[Any]) -> None:
        self._replaced.update(keys)
        super().multi_put(keys, values)


AnyTrialState: TypeAlias = TrialState | TrialRows | TrialUpdates


def trial_state(real: FencedState, rows: Sequence[_Row] | None = None) -> AnyTrialState:
    """Make the replacement of a state in a trial; see `TrialState`."""
    if isinstance(real, QueryableState):
        return TrialState(real, rows)
    if isinstance(real, PersistedState) and is_map(real.given):
        return TrialUpdates(real, asked=rows is None)
    return TrialRows(real)
