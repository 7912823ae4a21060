"""The view of a topology with one open transaction."""

from __future__ import annotations

from typing import Any

from airflow_tx.ledger.reading import LedgerReading
from airflow_tx.ledger.records import TopologyRecord, TransactionRecord
from airflow_tx.ledger.views.status import view_open
from airflow_tx.ledger.views.view import TopologyView


def first_record(**changes: Any) -> TransactionRecord:
    """The record of an open transaction."""
    fields: dict[str, Any] = {
        "txid": 1, "key": "r1", "run_id": "r1", "request": "try", "attempt": 1, "epoch": 1, "op": "op", "base": "",
        "ended": "",
        "rows_digest": "", "tasks": {}, "created": "2013-01-01T00:00:00+00:00", "began": "2013-01-01T00:00:00+00:00",
        "processed": "2013-01-01T00:01:00+00:00", "granted_at": "2013-01-01T00:02:00+00:00", **changes,
    }  # fmt: skip
    return TransactionRecord(**fields)


def with_first(blocked: Any = None, **changes: Any) -> TopologyView:
    """Topology flights, with one open transaction; `blocked`: the mark of its record."""
    topology = TopologyRecord("life", "dag", "opaque", 3, blocked=blocked)
    ledger = LedgerReading(topology=topology, allocated=1, opened={1: first_record(**changes)}, base="")
    shown = view_open("flights", 1, ledger, {})
    return TopologyView("flights", topology, 1, 1, (shown,), "/meta")
