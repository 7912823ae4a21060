"""Final transactions that an api-server remembers: a bounded number, however many viewers have looked at."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from datetime import datetime

from airflow_tx.ledger import Outcome, TopologyRecord, TransactionView

MOST_REMEMBERED = 2_000
"""Of one topology: more than a timeline and the figures of one moment show."""
MOST_OF_ALL = 10_000


class FinalViews:
    """The final transactions of one topology that viewers have looked at. Thread-safe.

    A committed transaction never changes, so it is read once, without a watch. The time at which a transaction ended
    never changes either, and takes little memory: it is remembered of all transactions that the ledger has.
    """

    def __init__(
        self, views: Iterable[TransactionView] = (), *, most: int = MOST_REMEMBERED
    ) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._views: dict[int, TransactionView] = {}
        self._ended: dict[int, datetime] = {}
        self._skipped: set[int] = set()
        for each in views:
            self.note(each)

    def __len__(self) -> int:
        return len(self._views)

    def get(self, txid: int) -> TransactionView | None:
        """Give a committed transaction; None: it is not remembered."""
        return self._views.get(txid)

    def ended(self, txid: int) -> datetime | None:
        """Say when a transaction ended; None: that is not remembered."""
        return self._ended.get(txid)

    def is_skipped(self, txid: int) -> bool:
        """Whether it was skipped, so that it may still change: it can be re-admitted."""
        return txid in self._skipped

    def note(self, view: TransactionView) -> None:
        """Remember a transaction, and forget the one that was noted first if there are too many."""
        with self._lock:
            if view.ended is not None:
                self._ended[view.txid] = view.ended
            if view.status != Outcome.COMMITTED.value:
                self._skipped.add(view.txid)
                return
            self._views[view.txid] = view
            if len(self._views) > self._most:
                del self._views[next(iter(self._views))]

    def keep_only(self, txids: Collection[int]) -> None:
        """Forget transactions that the ledger has forgotten."""
        with self._lock:
            for known in (self._views, self._ended):
                for txid in known.keys() - txids:
                    del known[txid]
            self._skipped.intersection_update(txids)

    def clear(self) -> None:
        """Forget the transactions; when they ended is remembered."""
        with self._lock:
            self._views.clear()


class RememberedViews:
    """The final transactions of all topologies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, tuple[tuple[str, int], FinalViews]] = {}

    def of(self, name: str, record: TopologyRecord, final: Collection[int]) -> FinalViews:
        """Give the transactions of one topology that its ledger remembers.

        :param final: the txids that the ledger remembers.
        """
        # A ledger that was reset or repaired gives txids again.
        life = (record.incarnation, record.generation)
        with self._lock:
            known = self._of.get(name)
            if known is None or known[0] != life:
                known = self._of[name] = (life, FinalViews())
        known[1].keep_only(set(final))
        return known[1]

    def keep_only(self, names: Collection[str]) -> None:
        """Forget topologies that there are no more."""
        with self._lock:
            for name in self._of.keys() - set(names):
                del self._of[name]

    def forget_oldest(self, name: str) -> None:
        """Forget transactions of the topologies that were looked at longest ago, if there are too many.

        :param name: the topology that is looked at now.
        """
        with self._lock:
            if name in self._of:
                self._of[name] = self._of.pop(name)
            size = sum(len(known) for _, known in self._of.values())
            for _, known in list(self._of.values())[:-1]:
                if size <= MOST_OF_ALL:
                    return
                size -= len(known)
                known.clear()
