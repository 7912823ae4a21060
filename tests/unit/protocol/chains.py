"""Two topologies in memory: the source of the second one is the table of the first one."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_tx.base.errors import RestateRefused
from airflow_tx.ledger import Audit, Batch, Corrections, ReadOnlyLedger, TakenRange, TransactionAttempt
from airflow_tx.ledger.steps.replay import WishRequest
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.upstream.corrections import CorrectionReader
from airflow_tx.ledger.upstream.reading import UpstreamPosition, UpstreamReading
from airflow_tx.state import Sum
from airflow_tx.state.memory import MemoryState
from tests.integration.pipeline import Pipeline

ADA = Audit("ada", "a bug")
LATER = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(hours=1)


class Chain:
    """Topology `orders` writes table s0, and topology `totals` takes one transaction of it after the other.

    :param totals: makes the second topology, at a place of a store.
    """

    def __init__(
        self, store: Any = None, root: str = "/tx", totals: type[Pipeline] = Pipeline, state: Any = None
    ) -> None:
        if store is None:
            store = MemoryStore()
            store.ensure(root)
        self.orders = Pipeline(store, root, [_state("s0")], topology="orders", journals=True, book=True)
        states = [state or _state("t0")]
        self.totals = totals(store, root, states, topology="totals", journals=True, upstream="orders")
        self.totals.metadata = lambda row: self.upstream.taken(row, row).to_json()
        self.totals.position = lambda row: UpstreamPosition.behind(self.upstream.taken(row, row)).to_json()
        self.totals.amount = lambda metadata: 1
        self.totals.current = self._again

    @property
    def upstream(self) -> UpstreamReading:
        found = UpstreamReading.of(ReadOnlyLedger(self.orders.store, self.orders.paths), "s0")
        assert found is not None
        return found

    def _again(self, attempt: TransactionAttempt, metadata: Any) -> Batch:
        taken = TakenRange.of(metadata)
        return Batch(self.upstream.taken(taken.first, taken.last).to_json(), None)

    def run(self, times: int) -> Chain:
        for _ in range(times):
            self.orders.run(f"o{self.orders.ledger.current_if_any() or 1}")
        return self

    def take(self, times: int = 1) -> Chain:
        for _ in range(times):
            self.totals.run(f"t{self.totals.ledger.current_if_any() or 1}")
        return self

    def correct(self, txid: int, key: int = 0) -> int:
        """Upstream, a transaction is restated."""
        return self.orders.restate(txid, f"o{key or txid}", 5)

    def follow(self, txid: int, key: int = 0) -> int:
        """The transaction of a request is restated."""
        return self.finish(self.totals.begin(f"t{key or txid}"))

    def finish(self, begun: Any) -> int:
        grant = self.totals.acquire(begun, self.totals.process(begun))
        self.totals.write(grant, 1)
        self.totals.mark(grant)
        return int(begun.txid)

    def found(self, now: datetime = LATER) -> Corrections:
        return CorrectionReader(self.totals.ledger, self.upstream).read(now)

    def request(self) -> list[int]:
        """Request what is due, as a coordinator does; which transactions it requested."""
        found = self.found()
        for each in found.due:
            request = WishRequest(each.counts, each.key, each.key)
            try:
                self.totals.ledger.want_correction(
                    request, txid=each.txid, ends=each.ends, audit=Audit("c", each.reason)
                )
            except RestateRefused as refusal:
                self.totals.ledger.note_behind(each.txid, each.ends, why=str(refusal))
        self.totals.ledger.note_compared(found.comparison)
        return [each.txid for each in found.due]

    @property
    def cursor(self) -> int:
        found = self.totals.ledger.followed()
        return 0 if found is None else found.txid


def _state(name: str) -> MemoryState:
    return MemoryState(name, values={"n": Sum()})


def due(found: Corrections) -> dict[int, dict[int, int]]:
    return {each.txid: dict(each.ends) for each in found.due}
