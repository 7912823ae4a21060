"""Restatements of the transactions that lack a correction of the upstream topology.

Source: docs/protocol.md §12.
"""

from __future__ import annotations

from typing import Any

from airflow_tx.base.errors import RestateRefused
from airflow_tx.base.failpoints import failpoint
from airflow_tx.ledger import COORDINATOR, Audit, Correction, Corrections, Ledger, WishRequest
from airflow_tx.transaction.spec import TransactionSpec


def follow(spec: TransactionSpec, ledger: Ledger, found: Corrections, log: Any) -> int:
    """Request a restatement of each transaction that lacks a correction. If a request is refused, record the reason.

    :return: the number of transactions with a request or a recorded reason.
    """
    for each in found.due:
        log.info("%s", _follow(spec, ledger, each))
        failpoint("follow.after_wish", topology=spec.topology, txid=each.txid)
    ledger.note_compared(found.comparison)
    return len(found.due)


def _follow(spec: TransactionSpec, ledger: Ledger, behind: Correction) -> str:
    told = f"Transaction {behind.txid} of {spec.topology} is behind a correction: {behind.reason}"
    if spec.source.on_correction == "report":
        ledger.note_behind(behind.txid, behind.ends, why="on_correction = 'report'")
        return told
    first_day = (ledger.clock.now() - spec.journal_time).date().isoformat()
    request = WishRequest(behind.counts, behind.key, behind.key, first_day=first_day)
    try:
        audit = Audit(COORDINATOR, behind.reason)
        ledger.want_correction(request, txid=behind.txid, ends=behind.ends, audit=audit)
    except RestateRefused as refusal:
        ledger.note_behind(behind.txid, behind.ends, why=str(refusal))
        return f"{told}. {refusal}"
    return f"{told}. Its restatement was requested."
