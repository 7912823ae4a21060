"""The ledger of a topology, as its coordinator looks at it. Source: protocol.md §6."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from airflow_tx.errors import UnreadableRecord
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.attempt import of_lane
from airflow_tx.protocol.loss import start_after
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, Phase, TopologyRecord, TransactionRecord, digest
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.protocol.view import in_lane


@dataclass(frozen=True)
class LedgerSnapshot:
    """The ledger of a topology at one moment.

    :param now: the wall clock, for the age of what is seen for the first time.
    :param position: digest of the position after transaction `current` − 1.
    :param owner: whether a committer shows that it holds the turn; None: it would not show, as one in a lane.
    :param busy: whether Airflow says that the committer of `current` is running; None: not asked.
    :param topology: None: there is no ledger yet.
    :param opened: the open transactions, from `current` to `allocated`.
    :param lane: those of them that a lane works on, as far as is seen.
    """

    now: datetime
    current: int = 1
    allocated: int = 0
    position: str = digest(None)
    owner: bool | None = None
    busy: bool | None = None
    topology: TopologyRecord | None = None
    opened: Mapping[int, TransactionRecord] = field(default_factory=dict)
    lane: frozenset[int] = frozenset()

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs whose states matter."""
        yielded = self.topology.yielded if self.topology else {}
        return tuple(dict.fromkeys([*(record.run_id for record in self.opened.values()), *yielded]))

    def room(self, max_pending: int) -> bool:
        return self.allocated + 1 < self.current + max_pending


def _now() -> datetime:
    return datetime.now(timezone.utc)


class SnapshotReader:
    """Reads a topology again and again, and what never changes only once.

    :param shows: whether its committer shows in the ledger while it holds the turn, as a single one does.
    """

    def __init__(self, store: Store, paths: Paths, *, shows: bool = True, now: Callable[[], datetime] = _now) -> None:
        self.store = store
        self._shows = shows
        self._paths = paths
        self._now = now
        # The digest of the position that a final transaction has left, and the one that the last of them has left.
        self._base: tuple[int, str] | None = None
        self._next: tuple[int, Any] | None = None

    def look(self) -> LedgerSnapshot | None:
        """Read the ledger as it is; None if it changed while it was read.

        :raises UnreadableRecord: naming the record.
        """
        read, paths = Reader(self.store), self._paths
        counter = read.peek_if_any(Counter, paths.current)
        if counter is None and read.peek_if_any(TopologyRecord, paths.record) is None:
            return LedgerSnapshot(self._now())
        # Damaged, if there is no counter.
        current = (counter or read.peek(Counter, paths.current)).txid
        allocated = read.peek(Counter, paths.allocated).txid
        opened: dict[int, TransactionRecord] = {}
        # Newest first: a mismatch between neighbours is then real, not read at two times.
        for txid in range(allocated, current - 1, -1):
            record = read.peek_if_any(TransactionRecord, paths.transaction(txid))
            if record is None:
                return None  # it became final
            opened[txid] = record
        position = self._position(read, current) if opened else digest(None)
        if position is None:
            return None
        owner = None
        first = opened.get(current)
        if self._shows and first and first.phase is Phase.COMMITTING and not of_lane(first.request):
            owner = self.store.get(paths.owner(first.nonce)) is not None
        return LedgerSnapshot(
            now=self._now(),
            current=current,
            allocated=allocated,
            position=position,
            owner=owner,
            # The last one: whoever yields by now has said so in its record, too.
            topology=read.peek(TopologyRecord, paths.record),
            opened=dict(sorted(opened.items())),
            lane=in_lane(self.store, self._paths, opened),
        )

    def next_position(self, look: LedgerSnapshot) -> Any:
        """Read from where the next transaction is decided, as `begin` would ask: behind losses that were accepted.

        :raises UnreadableRecord: it changes just now, or is damaged.
        """
        if self._next is not None and self._next[0] == look.allocated:
            position = self._next[1]
        else:
            position = RotatingTransactionalState(Reader(self.store), self._paths).position_before(look.allocated + 1)
            # While it is open, a replay may move it.
            self._next = None if look.opened else (look.allocated, position)
        if look.topology is None:
            return position
        return start_after(Reader(self.store), self._paths, look.topology, position).position

    def _position(self, read: Reader, current: int) -> str | None:
        if self._base is None or self._base[0] != current:
            try:
                position = RotatingTransactionalState(read, self._paths).position_before(current)
                self._base = (current, digest(position))
            except UnreadableRecord:
                now = Reader(self.store).peek(Counter, self._paths.current).txid
                if now != current:
                    return None
                raise
        return self._base[1]
