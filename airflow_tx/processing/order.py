"""Txids in the order of data intervals: whose turn it is to begin, and what a run waits for. Source: protocol.md §3."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_tx import compat
from airflow_tx.errors import AheadOfOrder
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.loss import next_position
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Binding, TransactionRecord
from airflow_tx.protocol.view import in_lane
from airflow_tx.sources.api import Source
from airflow_tx.sources.dates import order_end

if TYPE_CHECKING:
    from airflow_tx.compat import RunInfo
    from airflow_tx.spec import TransactionSpec


# Seconds: runs that are created together begin within a few of each other.
_SOON = 5.0
_PACE = 0.2


def in_turn(
    spec: TransactionSpec,
    source: Source,
    run: RunInfo,
    dag: Any,
    *,
    attempt: TransactionAttempt,
    position: Any,
) -> Source:
    """Return the source that decides the batch of a run by the schedule of its DAG, if its dates have an order.

    :raises AheadOfOrder: the order has not begun, and an earlier run is on its way.
    """
    start = run.interval_start
    dated = source.dated
    if dated is None or not dated.in_order or attempt.attempt > 1 or start is None:
        return source
    if position is None:
        earlier = compat.earlier_live_run(spec.dag_id, start)
        if earlier is not None:
            interval = f"{start.isoformat()}/{run.interval_end and run.interval_end.isoformat()}"
            raise AheadOfOrder(interval=interval, after=start, missing=earlier)
    return dated.on_schedule(partial(compat.previous_end, dag))


def first_in_turn(
    spec: TransactionSpec, source: Source, attempt: TransactionAttempt, position: Any
) -> Source:
    """Return the source that decides a batch which no run has asked for, if no earlier run is on its way.

    :raises SourceError: one is, and the order of data intervals has not begun.
    """
    dated = source.dated
    found = None if dated is None or position is not None else dated.next_interval(position)
    earlier = None if found is None else compat.earlier_live_run(spec.dag_id, found.start)
    if earlier is None:
        return source
    raise source.refused(
        f"the run of {earlier.isoformat()} is queued or running, with which the order of its data intervals begins",
        "Nothing was allocated.",
    )


def await_lane(
    spec: TransactionSpec,
    key: str,
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait in the worker while a lane works on the transaction of a run, which else would take it over.

    :param seconds: to wait at most.
    """
    until = clock() + seconds
    with spec.store() as store:
        while clock() < until and is_in_lane(store, spec.paths, key):
            sleep(_PACE)


def is_in_lane(store: Store, paths: Paths, key: str) -> bool:
    """Ask whether a lane that lives works on the transaction of a run."""
    read = Reader(store)
    binding = read.peek_if_any(Binding, paths.run(key))
    if binding is None:
        return False
    record = read.peek_if_any(TransactionRecord, paths.transaction(binding.txid))
    return record is not None and bool(in_lane(store, paths, {binding.txid: record}))


def comes_soon(
    spec: TransactionSpec,
    ahead: AheadOfOrder,
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Wait in the worker for the order to come to a run, whose deferral would take longer; False: it has not come.

    :param seconds: to wait at most; not at all while no run of the next interval is running, and 5 in any case.
    """
    if not compat.runs_on(spec.dag_id, ahead.missing, ["running"]):
        return False
    until = clock() + min(seconds, _SOON)
    with spec.store() as store:
        while clock() < until:
            end = order_in(store, spec.paths)
            if end is not None and end >= ahead.after:
                return True
            sleep(_PACE)
    return False


def order_in(store: Store, paths: Paths) -> datetime | None:
    """Read where the order of a topology stands; None: it has not begun."""
    position = next_position(Reader(store), paths)
    return None if position is None else order_end(position)


def gap(dag_id: str, missing: datetime, after: datetime) -> str:
    """Say what to do about an interval of which there is no run."""
    return (
        f"No run for the interval that begins at {missing.isoformat()} is queued or running, and no later one can "
        f"begin without it. Clear its run, or create it with airflow tx backfill {dag_id} --from "
        f"{missing.isoformat()} --to {after.isoformat()}"
    )
