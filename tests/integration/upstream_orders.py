"""Topology `orders` on a ledger in memory, and the table that another topology reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_tx import hooks
from airflow_tx.ledger import Audit, Grant, TransactionAttempt
from airflow_tx.ledger.steps.replay import WishRequest
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.sources import UpstreamSource
from airflow_tx.state import DeltaTable
from airflow_tx.state.arrow import RowTally
from tests.integration.pipeline import Pipeline

ROOT = "/tx"
ADA = Audit("ada", "a bug")


def orders_of(table: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    """Make the topology, whose ledger each source of the test finds."""
    store = MemoryStore()
    store.ensure(ROOT)
    monkeypatch.setattr(hooks, "shared_store", lambda conn_id: store, raising=False)
    return Orders(store, table, folder)


class Orders:
    """Topology `orders` and its table, which a source reads."""

    def __init__(self, store: MemoryStore, table: Any, folder: Path) -> None:
        self.table = table
        self.store = store
        self.folder = folder
        self.pipeline = Pipeline(store, ROOT, [table], topology="orders", journals=True, book=True)
        self.pipeline.write = self._write  # type: ignore[method-assign]

    def _write(self, grant: Grant, rows: Any) -> None:
        update: list[Any] = [{"key": "total", "n": rows}] if rows is not None else []
        if isinstance(self.table, DeltaTable) and update:
            token = grant.token
            update = self.table.stage(update, TransactionAttempt(grant.txid, token.attempt, token.birth))
        tally = RowTally(update, ())
        self.pipeline.written = {self.table.name: tally.written(self.table.raise_and_write(grant, tally))}

    def source(self, **options: Any) -> UpstreamSource:
        return UpstreamSource(self.table, topology="orders", root=ROOT, **options).named("totals")

    def run(self, times: int = 1) -> Orders:
        for _ in range(times):
            self.pipeline.run(f"o{self.pipeline.ledger.current_if_any() or 1}")
        return self

    def without_rows(self) -> Orders:
        begun = self.pipeline.begin(f"o{self.pipeline.ledger.current()}")
        grant = self.pipeline.acquire(begun, self.pipeline.process(begun))
        self.pipeline.write(grant, None)
        self.pipeline.mark(grant)
        return self

    def written(self, txid: int) -> Any:
        """A restatement is written, and not marked."""
        self.pipeline.ledger.want_restated(WishRequest(txid, f"o{txid}", f"o{txid}"), ADA)
        begun = self.pipeline.begin(f"o{txid}")
        grant = self.pipeline.acquire(begun, self.pipeline.process(begun))
        self.pipeline.write(grant, 100)
        return grant
