"""A ledger at one moment: for the coordinator, the board, the commands. Source: docs/protocol.md §§1, 4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from airflow_tx.errors import TooMuchContention, UnreadableRecord
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.json_text import digest
from airflow_tx.protocol.paths import Paths, ack_element
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Ack, Counter, TopologyRecord, TransactionRecord
from airflow_tx.protocol.rotating_state import RotatingTransactionalState, stale_successors

READINGS = 50
"""How often a ledger is read again until no transaction becomes final while it is read."""
NO_TOPOLOGY = TopologyRecord("", "", "", 0)
"""The record of a topology that has no ledger yet."""


@dataclass(frozen=True, kw_only=True)
class TurnReading:
    """Whose turn it is to commit, and as much of the rest as its reader asks for.

    :param current: the txid whose turn it is.
    :param opened: transactions by txid, in order: open ones. One that became final while it was read is left out.
    :param topology: `NO_TOPOLOGY`: there is no ledger yet, or it was not asked for.
    """

    current: int = 1
    opened: Mapping[int, TransactionRecord] = field(default_factory=dict)
    topology: TopologyRecord = NO_TOPOLOGY

    @property
    def record(self) -> TransactionRecord | None:
        """Return the record of the transaction whose turn it is; None: it has not begun yet, or was not asked for."""
        return self.opened.get(self.current)

    @property
    def first(self) -> str:
        """Name the transaction that all others wait for; "" if it is not known."""
        record = self.record
        if record is None:
            return ""
        attempt = TransactionAttempt(self.current, record.attempt)
        return f"transaction {attempt} (run {record.run_id}, {record.phase.value})"


@dataclass(frozen=True, kw_only=True)
class LedgerReading(TurnReading):
    """A ledger at one moment: all open transactions, between which none became final.

    :param allocated: the txid that was handed out last.
    :param base: digest of the position after transaction `current` − 1, if a transaction is open.
    """

    allocated: int = 0
    base: str = digest(None)

    @property
    def exists(self) -> bool:
        """Whether there is a ledger."""
        return self.topology is not NO_TOPOLOGY

    @cached_property
    def stale(self) -> frozenset[int]:
        """List the open transactions that start elsewhere than their predecessor ends."""
        return frozenset(stale_successors(self.opened, current=self.current, position=self.base))

    def room(self, max_pending: int) -> bool:
        """Ask whether another transaction may be allocated."""
        return self.allocated + 1 < self.current + max_pending


class LedgerReader:
    """Reads a ledger again and again, and what never changes only once."""

    def __init__(self, store: Store, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        # The digest of the position before a txid: it never changes once it is the turn of that one.
        self._base: tuple[int, str] | None = None

    def read(self, *, last: int | None = None) -> LedgerReading | None:
        """Read the ledger; None: a transaction became final while it was read.

        :param last: read no transaction after this one.
        :raises UnreadableRecord: a record is damaged or missing.
        """
        read = Reader(self._store)
        counter = read.peek_if_any(Counter, self._paths.current)
        if counter is None and read.peek_if_any(TopologyRecord, self._paths.record) is None:
            return LedgerReading()
        # A topology without a counter is damaged.
        current = (counter or read.peek(Counter, self._paths.current)).txid
        allocated = read.peek(Counter, self._paths.allocated).txid
        opened: dict[int, TransactionRecord] = {}
        base = digest(None)
        try:
            # Newest first: what two neighbours say of each other was true at one moment.
            for txid in range(allocated if last is None else min(allocated, last), current - 1, -1):
                opened[txid] = read.peek(TransactionRecord, self._paths.transaction(txid))
            if opened:
                base = self._base_of(read, current)
        except UnreadableRecord:
            if self._moved_on(current, allocated):
                return None
            raise
        return LedgerReading(
            # Last: a run that gives up its slot first writes it into its own record.
            topology=read.peek(TopologyRecord, self._paths.record),
            current=current,
            allocated=allocated,
            opened=dict(sorted(opened.items())),
            base=base,
        )

    def settled(self, *, last: int | None = None) -> LedgerReading:
        """Read the ledger until no transaction becomes final while it is read. Raises as `read`."""
        for _ in range(READINGS):
            found = self.read(last=last)
            if found is not None:
                return found
        raise TooMuchContention(step="read", subject=self._paths.topology, times=READINGS)

    def _base_of(self, read: Reader, current: int) -> str:
        if self._base is None or self._base[0] != current:
            position = RotatingTransactionalState(read, self._paths).position_before(current)
            self._base = (current, digest(position))
        return self._base[1]

    def _moved_on(self, current: int, allocated: int) -> bool:
        self._store.sync()
        read = Reader(self._store)
        if read.peek(Counter, self._paths.current).txid != current:
            return True
        return read.peek(Counter, self._paths.allocated).txid != allocated


def read_opened(read: Reader, paths: Paths, txids: Iterable[int]) -> dict[int, TransactionRecord]:
    """Read records of transactions that have begun and were open when the turn was read."""
    found = {txid: read.peek_if_any(TransactionRecord, paths.transaction(txid)) for txid in txids}
    return {txid: record for txid, record in found.items() if record is not None}


def listed_acks(store: Store, folder: str, names: Iterable[str]) -> dict[tuple[str, int], Ack]:
    """Read the acks of a transaction by task id and map index, without acks that are gone since they were listed."""
    read = Reader(store)
    found = {ack_element(name): read.peek_if_any(Ack, f"{folder}/{name}") for name in names}
    return {instance: ack for instance, ack in found.items() if ack is not None}
