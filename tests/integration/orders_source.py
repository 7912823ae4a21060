"""A source that reads the table of topology `orders`, of which it knows the numbers of rows alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from airflow_tx.ledger import CorrectionReader, Corrections, ReadOnlyLedger, TakenRange, UpstreamReading
from airflow_tx.sources.api import Batch, Json, SourceKind, TransactionalSource


class OrdersSource(TransactionalSource):
    """Finds corrections as an `UpstreamSource` does."""

    kind = SourceKind.OPAQUE
    upstream = "orders"
    upstream_table = "s0"

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.OrdersSource", {}

    def initialize_transaction(self, txid: int, position: Json) -> Batch | None:
        return None

    def emit_batch(self, attempt: Any, metadata: Json, spark: Any = None) -> Iterator[Mapping[str, Any]]:
        return iter(())

    def corrections(self, ledger: ReadOnlyLedger, now: datetime) -> Corrections:
        upstream = UpstreamReading.of(ledger.beside(self.upstream), self.upstream_table)
        assert upstream is not None
        return CorrectionReader(ledger, upstream).read(now)

    def rows_upstream(self, txids: Collection[int]) -> Mapping[int, int]:
        return dict.fromkeys(txids, 1)

    def contains(self, metadata: Json, what: str) -> bool | None:
        taken = TakenRange.of(metadata)
        txid = what.removeprefix("orders:")
        return txid.isdecimal() and taken.first <= int(txid) <= taken.last
