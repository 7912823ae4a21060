"""What `airflow tx verify` compares: the ledger as it says of itself, and what its states say. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_tx.errors import UnreadableRecord
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.attempt import Token
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, History, RepairRecord, TopologyRecord
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.protocol.view import repairs, topology_record


class HeldFence(Protocol):
    """The fence of a state."""

    @property
    def incarnation(self) -> str: ...
    @property
    def token(self) -> Token: ...
    @property
    def applied(self) -> bool: ...
    @property
    def batch(self) -> str: ...


class HeldReceipt(Protocol):
    """A receipt as a state keeps it."""

    @property
    def txid(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def hash(self) -> str: ...


@dataclass(frozen=True)
class StateEvidence:
    """What a state says.

    :param fence: None: it has none.
    :param receipts: None: it keeps none.
    :param receipts_kept: how many it keeps at least, before it forgets older ones; None: all.
    :param totals: by value column that is added up, the total over all keys; None: nobody has read its values.
    """

    name: str
    fence: HeldFence | None
    receipts: Sequence[HeldReceipt] | None
    receipts_kept: int | None = None
    totals: Mapping[str, int] | None = None


@dataclass(frozen=True)
class LedgerEvidence:
    """What the ledger says.

    :param current: the txid whose turn it is; what comes before is final.
    :param histories: by txid, of those that are remembered.
    :param position: where the source stands after the last final transaction; None before the first one.
    :param repairs: what people did to it, oldest first.
    :param latest: the txid whose turn it was when the states had been read.
    """

    name: str
    topology: TopologyRecord
    current: int
    histories: Mapping[int, History]
    position: Any
    repairs: Sequence[RepairRecord]
    latest: int = 0

    @property
    def oldest(self) -> int:
        """Name the oldest transaction that is remembered; that of the next one if none is."""
        return min(self.histories, default=self.current)


def ledger_evidence(store: Store, paths: Paths) -> LedgerEvidence:
    """Read a ledger. It may go on meanwhile: what becomes final later is left out.

    :raises UnknownTransaction: there is no such topology.
    :raises UnreadableRecord: naming the record.
    """
    topology = topology_record(store, paths)
    current = Reader(store).get(Counter, paths.current).txid
    folder = store.children(paths.histories)
    names = [int(name) for name in (folder.names if folder else ())]
    found = {txid: Reader(store).peek_if_any(History, paths.history(txid)) for txid in sorted(names)}
    histories = {txid: history for txid, history in found.items() if history is not None}
    try:
        position = RotatingTransactionalState(Reader(store), paths).position_before(current)
    except UnreadableRecord:
        if Reader(store).get(Counter, paths.current).txid == current:
            raise
        return ledger_evidence(store, paths)  # the turn has moved on, and took it away
    return LedgerEvidence(paths.topology, topology, current, histories, position, repairs(store, paths))
