"""A waiting run gives up its run slot to the run whose turn it is, and is started again. Source: protocol.md §6."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_tx import compat
from airflow_tx.config import Settings
from airflow_tx.errors import Outbid, TxError
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, TopologyRecord, TransactionRecord
from airflow_tx.protocol.replay import LIVE_RUN_STATES
from airflow_tx.spec import TransactionSpec

if TYPE_CHECKING:
    from airflow_tx.protocol.ledger import Ledger

QUEUED = "queued"
_BACKFILL = "backfill"
_MOMENTS = 5  # seconds


class Yielded(AirflowFailException):
    """A run ends without being tried again, although nothing has failed."""


def slots_of(spec: TransactionSpec, context: Any, *, txid: int | None) -> dict[str, Any]:
    """What a trigger has to know of a waiting run, to see whether it is in the way: plain JSON.

    :param txid: its transaction; None while it waits for one.
    """
    ti, info = context["ti"], compat.run_info(context)
    # A backfill has run slots of its own, and nobody tells how many of them are taken.
    limit = None if info.run_type == _BACKFILL else context["dag"].max_active_runs
    return {
        "dag_id": spec.dag_id,
        "run_id": info.run_id,
        "txid": txid,
        "task_try": str(ti.id),
        "limit": limit,
        "grace": Settings.load().yield_after,
    }


def give_way(spec: TransactionSpec, context: Any, *, blocking: int, txid: int | None, log: Any) -> None:
    """Yield, if that still helps; otherwise the caller goes on waiting.

    :param blocking: the txid whose run has no run slot.
    :raises Yielded: this run ends now, and its reason says that nothing is lost.
    """
    from airflow_tx.protocol.run_slots import Waiter
    from airflow_tx.protocol.step import Done

    ti = context["ti"]
    with spec.store() as store:
        holder = _run_of(store, spec, blocking)
        if holder is None or compat.run_state(ti, spec.dag_id, holder) != QUEUED:
            return
        if compat.is_paused(spec.dag_id):
            log.info("Run %s waits for a run slot while DAG %s is paused: nobody makes room.", holder, spec.dag_id)
            return
        try:
            answer = spec.ledger(store).give_way(Waiter(ti.run_id, txid, str(ti.id), blocking))
        except Outbid as error:
            log.info("%s", error)
            return
    if isinstance(answer, Done):
        raise Yielded(
            f"Run {ti.run_id} yields: transaction {blocking} has to commit before it, and run {holder} of that one is "
            "queued for lack of a run slot. Nothing is lost; this run is started again when the way is free, and "
            "processes its batch once more."
        )


def start_again(spec: TransactionSpec, ledger: Ledger, ti: Any, waiting: Sequence[str], *, log: Any) -> None:
    """Start runs that have yielded, if the way is free: the run whose turn it is needs no run slot any more.

    It is called after a commit: what goes wrong fails nothing, and is done by the next one.

    :param waiting: their run_ids.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        read = Reader(ledger.store)
        current = read.peek(Counter, ledger.paths.current).txid
        holder = _run_of(ledger.store, spec, current)
        if holder is not None and compat.run_state(ti, spec.dag_id, holder) == QUEUED:
            return
        yielded = read.peek(TopologyRecord, ledger.paths.record).yielded
        for run_id in waiting:
            entry = yielded.get(run_id)
            if entry is None or entry["blocking"] >= current:
                continue
            over = entry["txid"] is not None and _run_of(ledger.store, spec, entry["txid"]) is None
            state = _ended(spec, ti, run_id)
            if state == "failed" and not over:
                log.info("Run %s had yielded, and is started again", run_id)
                compat.start_run(spec.dag_id, run_id, reset=True)
            elif state in LIVE_RUN_STATES and not over:
                continue  # it has not ended yet, or is on its way again: the next one looks
            ledger.came_back(run_id)
    except (TxError, AirflowRuntimeError) as error:
        log.warning("Runs that yielded (%s) are not started again now: %s", ", ".join(waiting), error)


def _ended(spec: TransactionSpec, ti: Any, run_id: str) -> str | None:
    """The state of a run; one that has just yielded gets a moment to end, since there may be no later commit."""
    for _ in range(_MOMENTS):
        state = compat.run_state(ti, spec.dag_id, run_id)
        if state != "running":
            break
        time.sleep(1)
    return state


def _run_of(store: Any, spec: TransactionSpec, txid: int) -> str | None:
    record = Reader(store).peek_if_any(TransactionRecord, spec.paths.transaction(txid))
    return None if record is None else record.run_id
