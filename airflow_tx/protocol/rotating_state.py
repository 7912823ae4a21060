"""RotatingTransactionalState: which rows each transaction has, and where its source stands after them.

`begin` and a replay decide from the state of the transaction before; the end of a transaction drops that one.
Source: docs/protocol.md §§1, 4; Trident's class of this name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from airflow_tx.protocol.api import Create, Delete, Put, Write
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, Metadata, TransactionRecord, encode


class RotatingTransactionalState:
    """Rows and position by txid, for a topology and every partition of its source: one record a transaction.

    It reads as a step does: every state read becomes a requirement of the multi that follows, so each change is a write
    that the step makes. A state that is missing is never taken for an empty one.
    """

    def __init__(self, read: Reader, paths: Paths) -> None:
        self._read = read
        self._paths = paths
        self._found: dict[int, Metadata] = {}

    def get_state(self, txid: int) -> Metadata:
        """Read the state of `txid`.

        :raises UnreadableRecord: there is none, or it is damaged.
        """
        if txid not in self._found:
            self._found[txid] = self._read.get(Metadata, self._paths.meta(txid))
        return self._found[txid]

    def get_previous_state(self, txid: int) -> Metadata | None:
        """Read the state that the batch of `txid` is decided from; None for the first one."""
        return self.get_state(txid - 1) if txid > 1 else None

    def get_last_state(self) -> Metadata | None:
        """Read the state of the transaction that was allocated last; None before the first one."""
        return self.get_previous_state(self.last_txid + 1)

    def get_state_or_create(
        self, txid: int, initializer: Callable[[Any], Metadata]
    ) -> tuple[Metadata, tuple[Write, ...]]:
        """Read the state of `txid`, or decide it, and give the writes that store it.

        :param initializer: decides it from the position before.
        """
        path = self._paths.meta(txid)
        if self._read.find(Metadata, path, new=True) is not None:
            return self.get_state(txid), ()
        state = initializer(self.position_before(txid))
        return state, (Create(path, encode(state)),)

    def override_state(self, txid: int, state: Metadata) -> Write:
        """Replace the state of `txid`, or create it."""
        path = self._paths.meta(txid)
        stored = txid in self._found or self._read.exists(path)
        return Put(path, encode(state)) if stored else Create(path, encode(state))

    def remove_state(self, txid: int) -> tuple[Write, ...]:
        """Forget the state of `txid`, if it has one."""
        path = self._paths.meta(txid)
        return (Delete(path),) if txid in self._found or self._read.exists(path) else ()

    def cleanup_before(self, txid: int) -> tuple[Write, ...]:
        """Forget what comes before `txid`: one state, since every transaction that ends forgets the one before it."""
        return self.remove_state(txid - 1) if txid > 1 else ()

    def position_before(self, txid: int) -> Any:
        """Read where the source stands before the batch of `txid`; None before the first one."""
        before = self.get_previous_state(txid)
        return None if before is None else before.position

    @cached_property
    def last_txid(self) -> int:
        """Read the txid that was allocated last; 0 before the first one."""
        return self._read.get(Counter, self._paths.allocated).txid


def position_after(before: Any, after: Any, *, partitioned: bool) -> Any:
    """Give the position after a batch; of a partition that takes no part the newest one stays."""
    return {**(before or {}), **(after or {})} or None if partitioned else after


def unmoved(before: Any, rows: Any, *, partitioned: bool) -> Any:
    """Give the position of a batch that has rows, and leaves every partition where it was."""
    return {name: (before or {}).get(name) for name in rows or {}} if partitioned else before


def stale_successors(
    opened: Mapping[int, TransactionRecord], *, current: int, position: str
) -> list[int]:
    """List the txids that start elsewhere than their predecessor ends: they must be replayed.

    Storm replays all later transactions when one fails; here only the ones whose base moved. Later ones may
    follow once these end elsewhere.

    :param opened: the open transactions from `current` on, without a gap.
    :param position: digest of the position after transaction `current` − 1.
    """
    found = []
    ended = position
    for txid in sorted(each for each in opened if each >= current):
        if opened[txid].base != ended:
            found.append(txid)
        ended = opened[txid].ended
    return found
