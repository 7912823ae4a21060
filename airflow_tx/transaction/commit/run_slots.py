"""Yield run slots. A waiting run gives its slot to the run that has the turn, and is started again later.

Source: protocol.md §6.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from airflow.sdk.exceptions import AirflowFailException

from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.base.errors import Outbid, TxError
from airflow_tx.ledger import LIVE_RUN_STATES, Done, Ledger, LedgerReader, Waiter
from airflow_tx.transaction.processing.begin import conf_of
from airflow_tx.transaction.spec import TransactionSpec

log = logging.getLogger(__name__)

QUEUED = "queued"


class Yielded(AirflowFailException):
    """The error with which a run yields. It ends the run without a retry, although nothing has failed."""


def slots_of(spec: TransactionSpec, context: Any, *, txid: int | None) -> dict[str, Any]:
    """Describe a waiting run as plain JSON, for a trigger that decides whether the run must yield.

    :param txid: the transaction of the run, or None if the run waits for a transaction.
    """
    ti = context["ti"]
    info = compat.run_info(context)
    # A backfill has its own limit of runs, and Airflow has no API for the number of its running
    # runs.
    limit = None if info.run_type == compat.BACKFILL else context["dag"].max_active_runs
    return {
        "dag_id": spec.dag_id,
        "run_id": info.run_id,
        "txid": txid,
        "task_try": str(ti.id),
        "limit": limit,
        "most": 0 if limit else compat.pull(ti, spec.begin, compat.RUNNING_KEY) or 0,
        "grace": Settings.load().yield_after,
    }


def yield_slot(
    spec: TransactionSpec,
    context: Any,
    *,
    blocking: int,
    txid: int | None,
    missing: datetime | None = None,
    log: Any,
) -> None:
    """Yield the run slot if another run still needs it. Otherwise return, and the caller continues to wait.

    :param blocking: the txid whose run needs a run slot.
    :param txid: the transaction of this run, or None if the run waits for a transaction.
    :param missing: the logical date of the other run if it has no transaction yet. Its transaction will be `blocking`.
    :raises Yielded: this run ends. The text of the error explains that no data is lost.
    """
    ti = context["ti"]
    with spec.store() as store:
        ledger = spec.ledger(store)
        record = ledger.status(blocking)
        if record is not None:
            holder = record.run_id
            is_queued = compat.run_state(ti, spec.dag_id, record.run_id) == QUEUED
        else:
            holder = "none" if missing is None else f"of {missing.isoformat()}"
            is_queued = missing is not None and compat.runs_on(spec.dag_id, missing, [QUEUED]) > 0
        if not is_queued:
            return
        if compat.is_paused(spec.dag_id):
            log.info(
                "Run %s waits for a run slot while DAG %s is paused: no run yields.",
                holder,
                spec.dag_id,
            )
            return
        try:
            answer = ledger.note_yield(Waiter(ti.run_id, txid, str(ti.id), blocking))
        except Outbid as error:
            log.info("%s", error)
            return
    if isinstance(answer, Done):
        # Airflow would report a failure of this task, but it has not failed.
        context["task"].on_failure_callback = ()
        context["task"].email_on_failure = False
        raise Yielded(
            f"Run {ti.run_id} yields: transaction {blocking} must commit first, and its run {holder} waits for a "
            "run slot. Nothing is lost. This run starts again when the slot is free, and processes its batch "
            "again."
        )


def has_yielded(ledger: Ledger, run_id: str) -> bool:
    """Return whether a failed run has only yielded its run slot. Such a run is started again automatically."""
    reading = LedgerReader(ledger.store, ledger.paths).settled()
    entry = reading.topology.yielded.get(run_id)
    if entry is None:
        return False
    # After a user has started the run again, its entry remains in the ledger for a while.
    if entry.txid is None:
        return all(record.run_id != run_id for record in reading.opened.values())
    record = reading.opened.get(entry.txid)
    return record is not None and record.yielded is not None


def unless_yielded(spec: TransactionSpec, given: Any) -> list[Callable[[Any], None]]:
    """Wrap each failure callback of a DAG in `UnlessYielded`, unless it is already wrapped.

    :param given: a callback, or a list of callbacks.
    """
    callbacks = given if isinstance(given, (list, tuple)) else [given]
    return [
        each if isinstance(each, UnlessYielded) else UnlessYielded(spec, each) for each in callbacks
    ]


@dataclass(frozen=True)
class UnlessYielded:
    """A failure callback of a DAG. It is not called for a run that has only yielded its run slot."""

    spec: TransactionSpec
    callback: Callable[[Any], None]

    def __call__(self, context: Any) -> None:
        try:
            with self.spec.store() as store:
                only_yielded = has_yielded(self.spec.ledger(store), context["run_id"])
        except TxError as error:
            log.warning(
                "%s The callback of the DAG is called, since its run may have failed.", error
            )
            only_yielded = False
        if not only_yielded:
            self.callback(context)


class Runs(Protocol):
    """The runs of a DAG, as seen by a task or a command."""

    def state(self, run_id: str) -> str | None:
        """Return the state of a run, or None if the run does not exist."""

    def restart(self, run_id: str) -> None:
        """Clear an existing run. Airflow executes it again when it has a run slot."""

    def start(self, run_id: str, key: str) -> Any:
        """Clear a run, or create the run again if it was deleted.

        :param key: the run key.
        :raises RunNotStarted: Airflow no longer has the DAG.
        """


@dataclass(frozen=True)
class TaskRuns:
    """The runs of a DAG. A task instance sends the requests to Airflow.

    :param dag_id: the DAG.
    :param ti: the task instance.
    :param interval_of: a function that returns the data interval of a new run by its run key. None creates runs without
        dates.
    """

    dag_id: str
    ti: Any
    interval_of: Callable[[str], tuple[datetime, datetime] | None] = lambda key: None

    def state(self, run_id: str) -> str | None:
        return compat.run_state(self.ti, self.dag_id, run_id)

    def restart(self, run_id: str) -> None:
        compat.start_run(self.dag_id, run_id, reset=True)

    def start(self, run_id: str, key: str) -> None:
        self._start(run_id, key, reset=True)

    def create(self, run_id: str, key: str) -> bool:
        """Create a run. Return False if the run already exists.

        :raises RunNotStarted: see `start`.
        """
        return self._start(run_id, key, reset=False)

    def _start(self, run_id: str, key: str, *, reset: bool) -> bool:
        return compat.start_run(
            self.dag_id, run_id, conf=conf_of(key), reset=reset, interval=self.interval_of(key)
        )


class Comeback(Enum):
    """What to do next with a run that yielded."""

    WAIT = "it has not ended yet, or already runs again, or another run still needs its run slot"
    START = "it is started again"
    FORGET = "it no longer needs a start"


def comeback(state: str | None, *, is_over: bool, is_free: bool) -> Comeback:
    """Decide whether to start a run that yielded.

    :param state: the state of the run, or None if the run was deleted.
    :param is_over: whether the transaction of the run is already final.
    :param is_free: whether the transaction that has the turn no longer needs a run slot.
    """
    if is_over:
        return Comeback.FORGET
    if state in LIVE_RUN_STATES:
        return Comeback.WAIT
    if state != "failed":
        return Comeback.FORGET
    return Comeback.START if is_free else Comeback.WAIT


def start_yielded(
    ledger: Ledger, runs: Runs, waiting: Iterable[str], *, patience: int = 0
) -> Iterator[tuple[int | None, str, int]]:
    """Start runs that have yielded, if no other run needs their run slots.

    :param waiting: the run ids of the runs that have yielded.
    :param patience: the longest time to wait for the end of a run that has just yielded, in seconds. There may be no
        later commit to start this run.
    :return: for each started run, its txid, its run id, and the txid for which it yielded.
    """
    turn = ledger.turn()
    if turn.record is not None and runs.state(turn.record.run_id) == QUEUED:
        return
    yielded = ledger.topology().yielded
    for run_id in waiting:
        entry = yielded.get(run_id)
        if entry is None or entry.blocking >= turn.current:
            continue
        is_over = entry.txid is not None and ledger.status(entry.txid) is None
        found = comeback(_state_at_end(runs, run_id, patience), is_over=is_over, is_free=True)
        if found is Comeback.WAIT:
            continue  # The next commit will try to start the run.
        if found is Comeback.START:
            runs.restart(run_id)
        ledger.came_back(run_id)
        if found is Comeback.START:
            yield entry.txid, run_id, entry.blocking


def _state_at_end(runs: Runs, run_id: str, patience: int) -> str | None:
    for _ in range(patience):
        if (state := runs.state(run_id)) != "running":
            return state
        time.sleep(1)
    return runs.state(run_id)
