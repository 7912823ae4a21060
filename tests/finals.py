"""Records of final transactions, as the history of a ledger keeps them."""

from __future__ import annotations

from typing import Any

from airflow_tx.ledger.receipt import Outcome, Receipt, Replaced
from airflow_tx.ledger.records import BatchRows, End, Phase, TransactionRecord


def final_record(
    *,
    txid: int = 1,
    outcome: Outcome = Outcome.COMMITTED,
    ended: str = "",
    rows: int | None = None,
    readmitted_as: int | None = None,
    restates: int | None = None,
    digest: str = "",
    **known: Any,
) -> TransactionRecord:
    """Make the record of a final transaction of which these fields are known.

    :param digest: of its rows, as Python hashes them.
    """
    end = End(outcome, ended, readmitted_as=readmitted_as)
    if rows is not None:
        known.setdefault("receipt", plain_receipt(txid=txid, rows=rows))
    counted = BatchRows(rows or 0, {"": digest}) if digest else None
    replaces = None if restates is None else Replaced(restates, "")
    fields = {"attempt": 1, "run_id": "r", "phase": Phase.COMMITTING, "counted": counted, "replaces": replaces, **known}
    return TransactionRecord.unknown(txid, end=end, **fields)


def plain_receipt(**fields: Any) -> Receipt:
    """Make the receipt of a committed transaction in which only these fields matter."""
    who = {"topology": "t", "incarnation": "life", "generation": 1, "txid": 1, "attempt": 1, "epoch": 1}
    what = {"nonce": "n", "birth": "b", "outcome": "COMMITTED", "key": "k", "run_id": "r", "previous": ""}
    where = {"granted": "2026-01-01T00:00:00+00:00", "metadata": None, "before": None, "after": None}
    return Receipt(**{**who, **what, **where, **fields})
