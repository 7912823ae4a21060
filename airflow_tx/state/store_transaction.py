"""What every store does with a write, in one transaction of its own. Source: protocol.md §7 and §10.

A store says how a transaction begins, puts rows and ends. Which columns a receipt adds up, when a receipt is kept, and
that a write begins again when the fence moves, is the same for all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar, Protocol

from airflow_tx.errors import StateError
from airflow_tx.protocol.attempt import Grant
from airflow_tx.protocol.receipt import Receipt
from airflow_tx.state.api import FencedState, FenceMoved, StateKind, StateWrite
from airflow_tx.state.row_tally import RowTally

# How often a write begins again because the fence changed between its reading and the write.
TRIES = 100


class StoreTransaction(Protocol):
    """A transaction of a store that has raised the fence, or found that it holds the grant."""

    def put(self) -> int:
        """Add the rows to the values; returns how many keys. Not called without an update."""

    def end(self, receipt: Receipt | None) -> None:
        """Note that the update is complete, with its receipt, or that one of its portions is in the store."""


class StoredState(FencedState):
    """A fenced state whose store has transactions: each of the five methods that change it is one of them.

    :cvar runs_once: what a state runs that takes all rows at once, such as statements; "": it takes portions.
    """

    runs_once: ClassVar[str] = ""

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

        :return: None: it does not keep who wrote a key.
        """
        return None

    def pass_over(self, grant: Grant) -> None:
        self._written(StateWrite(self.name, grant))

    def undo(self, grant: Grant) -> None:
        if self.kind is StateKind.OPAQUE:
            self._written(StateWrite(self.name, grant, complete=False, undoing=True))

    @abstractmethod
    def _transaction(self, write: StateWrite) -> AbstractContextManager[StoreTransaction]:
        """Open a transaction of the store, which an error undoes as a whole.

        :raises FenceMoved: here, by `put` or by `end`: the write begins again.
        :raises StateError: as `raise_fence`, or as `write`.
        """

    def _written(self, write: StateWrite) -> int:
        if self.runs_once and not write.complete and not write.raising:
            problem = f"it was given a part of an update, and its {self.runs_once} run once"
            raise StateError(state=self.name, problem=problem, remedy="Give all rows in one write.")
        for _ in range(TRIES):
            with suppress(FenceMoved), self._transaction(write) as transaction:
                keys = 0 if write.rows is None else transaction.put()
                transaction.end(write.receipt(keys))
                return keys
        problem = f"the fence changed {TRIES} times in a row between its reading and the write"
        raise StateError(
            state=self.name, problem=problem, remedy="Nothing was written. Clear the task."
        )
