"""A ledger at one moment: for the coordinator, the board, the commands. Source: docs/protocol.md §§1, 4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from airflow_tx.base.errors import TooMuchContention, UnreadableRecord
from airflow_tx.ledger.api import Create, Delete, Paths, Put, Store, Write, ack_element
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.json_text import digest
from airflow_tx.ledger.records import (
    Ack,
    Counter,
    Metadata,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.ledger.steps.step import Reader

# --- rotating state -----------------------------------------------------------------------------------------------
# RotatingTransactionalState: which rows each transaction has, and where its source stands after them.
#
# `begin` and a replay decide from the state of the transaction before; the end of a transaction drops that one.
# Source: docs/protocol.md §§1, 4; Trident's class of this name.


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

    :param opened: the open transactions from `current` on.
    :param position: digest of the position after transaction `current` − 1.
    """
    found = []
    ended = position
    for txid in sorted(each for each in opened if each >= current):
        if txid > current and txid - 1 not in opened:
            ended = opened[txid].base  # the record between cannot be read
        if opened[txid].base != ended:
            found.append(txid)
        ended = opened[txid].ended
    return found


# --- reading ------------------------------------------------------------------------------------------------------


READINGS = 50
"""How often a ledger is read again until no transaction becomes final while it is read."""
MOST_UNREADABLE = 100
"""Records that are named one by one; more of them are missing where a counter is damaged."""
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
    :param unreadable: of the other open transactions, by txid, why their records cannot be read.
    """

    allocated: int = 0
    base: str = digest(None)
    unreadable: Mapping[int, UnreadableRecord] = field(default_factory=dict)

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

    def read(self, *, last: int | None = None, shown: bool = False) -> LedgerReading | None:
        """Read the ledger; None: a transaction became final while it was read.

        :param last: read no transaction after this one.
        :param shown: for people alone: name open transactions that cannot be read, and read the others.
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
        unreadable: dict[int, UnreadableRecord] = {}
        base = digest(None)
        # Newest first: what two neighbours say of each other was true at one moment.
        for txid in range(allocated if last is None else min(allocated, last), current - 1, -1):
            try:
                opened[txid] = read.peek(TransactionRecord, self._paths.transaction(txid))
                if txid == current:
                    base = self._base_of(read, current)
            except UnreadableRecord as error:
                if self._moved_on(current, allocated):
                    return None
                if not shown or len(unreadable) == MOST_UNREADABLE:
                    raise
                unreadable[txid] = error
        return LedgerReading(
            # Last: a run that gives up its slot first writes it into its own record.
            topology=read.peek(TopologyRecord, self._paths.record),
            current=current,
            allocated=allocated,
            opened=dict(sorted(opened.items())),
            base=base,
            unreadable=unreadable,
        )

    def settled(self, *, last: int | None = None, shown: bool = False) -> LedgerReading:
        """Read the ledger until no transaction becomes final while it is read. Raises as `read`."""
        for _ in range(READINGS):
            found = self.read(last=last, shown=shown)
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
