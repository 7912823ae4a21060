"""States of one's own: how they are made, asked and updated. Source: trident-state seed (LocationDB)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from airflow_tx.errors import StateError
from airflow_tx.state.api import State

Row: TypeAlias = Mapping[str, Any]
S = TypeVar("S", bound=State)
S_co = TypeVar("S_co", bound=State, covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
T = TypeVar("T")


class StateFactory(Protocol[S_co]):
    """Makes the object with which one task uses a state."""

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> S_co:
        """The state for one of `num_partitions` writers, counted from 0."""


class QueryFunction(Protocol[S_contra, T]):
    """Asks a state about rows: first all at once, then row by row."""

    def batch_retrieve(self, state: S_contra, rows: Sequence[Row]) -> Sequence[T]:
        """One result a row, in the order of the rows."""

    def execute(self, row: Row, result: T) -> Iterable[Row]:
        """The fields to add to the row: none drops it, several give several rows."""


class StateUpdater(Protocol[S_contra]):
    """Updates a state with the rows of a batch."""

    def update_state(self, state: S_contra, rows: Sequence[Row]) -> Iterable[Row] | None:
        """Apply the rows; what it returns are the rows of the new values stream."""


def query(state: S, rows: Iterable[Row], function: QueryFunction[S, T]) -> Iterator[dict[str, Any]]:
    """The rows with what the state says about them (Trident's stateQuery).

    :raises StateError: the function does not give one result a row.
    """
    batch = list(rows)
    results = function.batch_retrieve(state, batch) if batch else []
    if len(results) != len(batch):
        raise StateError(
            state=type(state).__name__,
            problem=f"{type(function).__name__}.batch_retrieve gave {len(results)} results for {len(batch)} rows",
            remedy="Return one result a row, in the order of the rows.",
        )
    for row, result in zip(batch, results, strict=True):
        for fields in function.execute(row, result):
            yield {**row, **fields}


def update(state: S, txid: int | None, rows: Iterable[Row], updater: StateUpdater[S]) -> list[dict[str, Any]]:
    """One batch applied to a state (Trident's partitionPersist); the rows of the new values stream."""
    state.begin_commit(txid)
    new_values = [dict(row) for row in updater.update_state(state, list(rows)) or ()]
    state.commit(txid)
    return new_values
