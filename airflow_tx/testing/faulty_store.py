"""A store whose replies get lost, for tests of whatever writes to a ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from airflow_tx.errors import OutcomeUnknown
from airflow_tx.protocol.api import Children, Node, Requirement, Store, Watch, Write


class FaultyStore:
    """Passes everything on to another store, except that multis chosen by a test are answered by `OutcomeUnknown`.

    :param store: the real one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._faults: list[tuple[bool, Callable[[], None]]] = []
        self.multis = 0

    def lose_reply(self, *, happens: bool, then: Callable[[], None] = lambda: None) -> None:
        """Lose the reply to the next multi that has no fault planned yet.

        :param happens: whether the write is made all the same; a refused one counts as not made.
        :param then: called before the loss is told: what others do meanwhile.
        """
        self._faults.append((happens, then))

    def get(self, path: str) -> Node | None:
        """See `Store.get`."""
        return self._store.get(path)

    def children(self, path: str) -> Children | None:
        """See `Store.children`."""
        return self._store.children(path)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        """See `Store.multi`."""
        self.multis += 1
        if not self._faults:
            self._store.multi(requirements, writes)
            return
        happens, then = self._faults.pop(0)
        if happens:
            self._store.multi(requirements, writes)
        then()
        raise OutcomeUnknown(paths=", ".join(write.path for write in writes), reason="its reply was lost by a test")

    def sync(self) -> None:
        """See `Store.sync`."""
        self._store.sync()

    def ensure(self, path: str) -> None:
        """See `Store.ensure`."""
        self._store.ensure(path)

    def watch(self, *paths: str) -> AbstractContextManager[Watch]:
        """See `Store.watch`."""
        return self._store.watch(*paths)
