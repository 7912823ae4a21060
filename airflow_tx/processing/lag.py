"""The metric `airflow_tx.lag`: what the source has that is not committed yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_tx import compat
from airflow_tx.errors import TxError
from airflow_tx.sources.lag import Lag, LagUnknown, lags
from airflow_tx.spec import TransactionSpec

if TYPE_CHECKING:
    from airflow_tx.protocol.ledger import Ledger

NAME = "airflow_tx.lag"
ASK_FOR = 5.0
"""Seconds that a task waits for the answer of its source at most."""


def emit_lag(spec: TransactionSpec, ledger: Ledger, log: Any) -> None:
    """Ask the source, and send the gauge; nothing is asked where Airflow sends no metrics.

    It never fails: a task does not end for a metric.
    """
    if spec.source.by_run or not compat.sends_metrics():
        return
    try:
        asked = {spec.topology: (spec.source, ledger.standing())}
        found: Lag | LagUnknown = lags(asked, seconds=ASK_FOR)[spec.topology]
    except TxError as error:
        found = LagUnknown(topology=spec.topology, reason=str(error))
    if isinstance(found, Lag):
        compat.send_gauge(NAME, found.count, tags={"topology": spec.topology, "unit": found.unit}, named="topology")
    else:
        log.info("%s", found)
