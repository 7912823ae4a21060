"""What `airflow tx verify` compares: the ledger as it says of itself, and what its states say. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow_tx.errors import OutcomeUnknown, RequirementFailed, TooMuchContention, UnreadableRecord
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.attempt import Token
from airflow_tx.protocol.paths import Paths, decode_name
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import (
    Binding,
    Counter,
    History,
    Metadata,
    RepairRecord,
    Skipped,
    TopologyRecord,
    TransactionRecord,
)
from airflow_tx.protocol.repair import RESET
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.protocol.view import topology_record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_R = TypeVar("_R", bound="DataclassInstance")
LOOKS = 50
"""How often records that change with every step are read again, until they stay the same for a moment."""


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
    """The evidence of a state.

    :param fence: None: it has none.
    :param receipts: None: it keeps none.
    :param receipts_kept: how many it keeps at least, before it forgets older ones; None: all.
    :param totals: by value column that is added up, the total over all keys; None: its values were not read.
    :param rows: of a state that keeps rows, how many it has of each transaction; None: they were not counted.
    """

    name: str
    fence: HeldFence | None
    receipts: Sequence[HeldReceipt] | None
    receipts_kept: int | None = None
    totals: Mapping[str, int] | None = None
    rows: Mapping[int | None, int] | None = None


@dataclass(frozen=True)
class Decisive:
    """What decides the rows and the turns of later transactions.

    :param allocated: the last txid; read with `opened` and `metas` at one moment, together with
        `LedgerEvidence.current`.
    :param opened: the records of open transactions, by txid.
    :param metas: their rows and positions, and the last final one's.
    :param skipped: what is kept of skipped transactions, by txid.
    :param bindings: the txid of each run, by its key; `entries`: the journal entries that they name.
    :param latest: the last txid when everything had been read.
    """

    allocated: int
    opened: Mapping[int, TransactionRecord]
    metas: Mapping[int, Metadata]
    skipped: Mapping[int, Skipped] = field(default_factory=dict)
    bindings: Mapping[str, int] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    latest: int = 0


@dataclass(frozen=True)
class LedgerEvidence:
    """The evidence of the ledger.

    :param current: the txid whose turn it is; what comes before is final.
    :param histories: by txid, of the remembered ones.
    :param position: where the source stands after the last final transaction; None before the first one.
    :param repairs: what people did to it, oldest first.
    :param latest: the txid whose turn it was when the states had been read.
    :param decisive: what decides later transactions; None: it was never the same for a moment.
    """

    name: str
    topology: TopologyRecord
    current: int
    histories: Mapping[int, History]
    position: Any
    repairs: Sequence[RepairRecord]
    latest: int = 0
    decisive: Decisive | None = None

    @property
    def life(self) -> Sequence[RepairRecord]:
        """List the repairs since the ledger was last reset: none before it explains anything after it."""
        first = max(
            (number for number, each in enumerate(self.repairs, 1) if each.what == RESET), default=0
        )
        return self.repairs[first:]

    @property
    def oldest(self) -> int:
        """Name the oldest transaction that is remembered; the next one if none is."""
        return min(self.histories, default=self.current)


def ledger_evidence(store: Store, paths: Paths) -> LedgerEvidence:
    """Read a ledger. Transactions may commit while it is read: transactions that become final later are left out.

    :raises UnknownTransaction: there is no such topology.
    :raises UnreadableRecord: naming the record.
    """
    topology_record(store, paths)
    found = _at_one_moment(store, paths)
    histories = dict(_numbered(store, paths.histories, paths.history, History))
    skipped = dict(_numbered(store, paths.all_skipped, paths.skipped, Skipped))
    bindings = dict(_bindings(store, paths))

    read = Reader(store)
    final_since = range(found.current, read.get(Counter, paths.current).txid)
    allocated = read.get(Counter, paths.allocated).txid
    decisive = found.decisive
    if decisive is not None:
        decisive = replace(
            decisive,
            skipped=skipped,
            bindings={key: binding.txid for key, binding in bindings.items()},
            entries={key: binding.entry for key, binding in bindings.items() if binding.entry},
            latest=allocated,
        )
    histories = {txid: each for txid, each in histories.items() if txid not in final_since}
    return replace(found, histories=histories, decisive=decisive)


def _at_one_moment(store: Store, paths: Paths) -> LedgerEvidence:
    """Read the records that change with every step, until none changes while they are read.

    :raises UnreadableRecord: naming the record.
    """
    for number in range(LOOKS):
        store.sync()
        read = Reader(store)
        try:
            found = _moment(read, paths)
        except UnreadableRecord:
            if _is_still(store, read):
                raise
            continue
        if _is_still(store, read):
            return found
        if number == LOOKS - 1:
            return replace(found, decisive=None)
    raise TooMuchContention(step="verify", subject=paths.topology, times=LOOKS)


def _moment(read: Reader, paths: Paths) -> LedgerEvidence:
    """Read consistent records; open transactions from the list, not from the counters."""
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current).txid
    allocated = read.get(Counter, paths.allocated).txid
    state = RotatingTransactionalState(read, paths)
    position = state.position_before(current)
    txids = [int(name) for name in read.names(paths.transactions)]
    opened = {txid: read.get(TransactionRecord, paths.transaction(txid)) for txid in txids}
    kept = {int(name) for name in read.names(paths.metas)}
    metas = {txid: state.get_state(txid) for txid in sorted({*opened, current - 1} & kept)}
    numbers = sorted(map(int, read.names_if_any(paths.repairs)))
    return LedgerEvidence(
        name=paths.topology,
        topology=topology,
        current=current,
        histories={},
        position=position,
        repairs=[read.peek(RepairRecord, paths.repair(number)) for number in numbers],
        decisive=Decisive(allocated, opened, metas),
    )


def _is_still(store: Store, read: Reader) -> bool:
    try:
        store.multi(read.requirements(frozenset()), ())
    except (RequirementFailed, OutcomeUnknown):
        return False
    return True


def _numbered(
    store: Store, folder: str, path: Callable[[int], str], cls: type[_R]
) -> Iterator[tuple[int, _R]]:
    """Read the records that are named by their txid."""
    children = store.children(folder)
    for txid in sorted(map(int, children.names if children else ())):
        record = Reader(store).peek_if_any(cls, path(txid))
        if record is not None:
            yield txid, record


def _bindings(store: Store, paths: Paths) -> Iterator[tuple[str, Binding]]:
    children = store.children(paths.runs)
    for name in children.names if children else ():
        binding = Reader(store).peek_if_any(Binding, f"{paths.runs}/{name}")
        if binding is not None:
            yield decode_name(name), binding
