"""The ledger of a topology, as its coordinator looks at it. Source: protocol.md §6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow_tx.protocol.api import Store
from airflow_tx.protocol.attempt import of_lane
from airflow_tx.protocol.loss import start_after
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.reading import LedgerReader, LedgerReading
from airflow_tx.protocol.records import Phase
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.protocol.view import in_lane
from airflow_tx.protocol.wish import Wish, wishes


@dataclass(frozen=True, kw_only=True)
class LedgerSnapshot(LedgerReading):
    """A reading of the ledger, and who works on it.

    :param now: the wall clock, for the age of what is seen for the first time.
    :param owner: whether a committer shows that it holds the turn; None: it would not show, as one in a lane.
    :param busy: whether Airflow says that the committer of `current` is running; None: not asked.
    :param lane: the open transactions that a lane works on, as far as is seen.
    :param wishes: what people want restated and no run has begun.
    """

    now: datetime
    owner: bool | None = None
    busy: bool | None = None
    lane: frozenset[int] = frozenset()
    wishes: tuple[Wish, ...] = ()

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs whose states matter."""
        runs = [record.run_id for record in self.opened.values()]
        wanted = [wish.run_id for wish in self.wishes]
        return tuple(dict.fromkeys([*runs, *self.topology.yielded, *wanted]))

    @property
    def restates(self) -> bool:
        """Whether a restatement is open."""
        return any(record.replaces is not None for record in self.opened.values())


def _now() -> datetime:
    return datetime.now(timezone.utc)


class SnapshotReader:
    """Reads a topology again and again, and what never changes only once.

    :param shows: whether its committer shows in the ledger while it holds the turn, as a single one does.
    """

    def __init__(
        self, store: Store, paths: Paths, *, shows: bool = True, now: Callable[[], datetime] = _now
    ) -> None:
        self.store = store
        self._shows = shows
        self._paths = paths
        self._now = now
        self._ledger = LedgerReader(store, paths)
        # The position that the last final transaction has left.
        self._next: tuple[int, Any] | None = None

    def look(self) -> LedgerSnapshot | None:
        """Read the current ledger; None if a transaction became final while it was read.

        :raises UnreadableRecord: a record is damaged or missing.
        """
        found = self._ledger.read()
        if found is None:
            return None
        return LedgerSnapshot(
            topology=found.topology,
            current=found.current,
            allocated=found.allocated,
            opened=found.opened,
            base=found.base,
            now=self._now(),
            owner=self._owner(found),
            lane=in_lane(self.store, self._paths, found.opened),
            wishes=wishes(self.store, self._paths) if found.exists else (),
        )

    def next_position(self, look: LedgerSnapshot) -> Any:
        """Read from where the next transaction is decided, as `begin` would ask: behind losses that were accepted.

        :raises UnreadableRecord: it changes just now, or is damaged.
        """
        if self._next is not None and self._next[0] == look.allocated:
            position = self._next[1]
        else:
            position = RotatingTransactionalState(Reader(self.store), self._paths).position_before(
                look.allocated + 1
            )
            # While it is open, a replay may move it.
            self._next = None if look.opened else (look.allocated, position)
        if not look.exists:
            return position
        return start_after(Reader(self.store), self._paths, look.topology, position).position

    def _owner(self, found: LedgerReading) -> bool | None:
        first = found.opened.get(found.current)
        if not self._shows or first is None:
            return None
        if first.phase is not Phase.COMMITTING or of_lane(first.request):
            return None
        return self.store.get(self._paths.owner(first.nonce)) is not None
