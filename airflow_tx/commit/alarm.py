"""Alarms are raised: noted in the ledger, then the callbacks of the `Transaction` are called."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_tx import compat
from airflow_tx.alarms import AlarmChange, certain, changes
from airflow_tx.errors import TxError
from airflow_tx.metrics import lag_of
from airflow_tx.protocol.alarm import note_alarm, raised_alarms
from airflow_tx.protocol.attempt import of_lane
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.replay import LIVE_RUN_STATES
from airflow_tx.protocol.view import open_records
from airflow_tx.sources.lag import Lag

if TYPE_CHECKING:
    from airflow_tx.protocol.ledger import Ledger
    from airflow_tx.protocol.records import TransactionRecord
    from airflow_tx.spec import TransactionSpec


def raise_alarm(
    spec: TransactionSpec,
    ledger: Ledger,
    change: AlarmChange,
    context: Mapping[str, Any],
    log: Any,
    *,
    remembered: Mapping[str, Any] | None = None,
) -> None:
    """Raise an alarm, unless another process has, or end it.

    :param remembered: the record in the ledger while the alarm is raised.
    """
    note = None if change.alarm is None else {"of": change.alarm.of, **(remembered or {})}
    noted = ledger.run(note_alarm, change.kind.value, note)
    if change.alarm is None:
        log.info("Topology %s is %s no more", spec.topology, change.kind.value)
    elif noted.first:
        log.error("%s", change.alarm.text)
        spec.callbacks.call(change.alarm, context, log)


def raise_own_alarms(spec: TransactionSpec, context: Any, log: Any) -> None:
    """Raise the alarms of a topology from one of its tasks, where no coordinator does. It fails nothing."""
    if spec.coordinated or not spec.callbacks.any:
        return
    try:
        with spec.store() as store:
            opened = open_records(store, spec.paths)
            ledger = spec.ledger(store)
            found = (
                None if spec.limits.max_lag is None else lag_of(spec.topology, spec.source, ledger)
            )
            lag = found if isinstance(found, Lag) else None
            blocked = _stopped(spec, context["ti"], opened)
            alarms = spec.alarm_topology.find(
                opened, blocked=blocked, now=datetime.now(timezone.utc), lag=lag
            )
            due = changes(alarms, raised_alarms(Reader(store), spec.paths))
            for change in certain(due, spec.limits, lag):
                raise_alarm(spec, ledger, change, context, log)
    except TxError as error:
        log.info("Alarms of topology %s are left to the next task: %s", spec.topology, error)


def _stopped(
    spec: TransactionSpec, ti: Any, opened: Mapping[int, TransactionRecord]
) -> dict[str, Any] | None:
    """Find out whether no task works on the next transaction: without a coordinator, none will."""
    txid = min(opened, default=0)
    record = opened.get(txid)
    if (
        record is None
        or record.skip is not None
        or record.yielded is not None
        or of_lane(record.request)
    ):
        return None
    state = compat.run_state(ti, spec.dag_id, record.run_id)
    if state in LIVE_RUN_STATES:
        return None
    ended = "was deleted" if state is None else f"is {state}"
    reason = f"its run {record.run_id} {ended}" + (f" ({record.error})" if record.error else "")
    return {"txid": txid, "attempt": record.attempt, "reason": reason}
