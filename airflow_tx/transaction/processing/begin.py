"""Begin transactions: request them from the ledger, and give it the facts that it needs about the source and runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from airflow_tx.base import compat
from airflow_tx.base.errors import AheadOfOrder, RestateRefused, SourceError, TxError
from airflow_tx.base.failpoints import failpoint
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import (
    AlreadyCommitted,
    Batch,
    BeginRequest,
    Begun,
    Ledger,
    NoData,
    Outside,
    Paths,
    PreviousBatch,
    ReadOnlyLedger,
    Replaced,
    RestatedBatch,
    Store,
    TaskTry,
    TopologyRecord,
    TransactionAttempt,
    WindowFull,
    dumps,
    renamed_since,
)
from airflow_tx.sources import Source, SourceKind, order_end
from airflow_tx.transaction.metrics import send_lag
from airflow_tx.transaction.spec import COMMITTED, TransactionSpec

if TYPE_CHECKING:
    from airflow_tx.outputs import Entry


# --- order --------------------------------------------------------------------------------------------------------
# Runs begin in the order of their data intervals, so that txids follow this order.
# Source: protocol.md §3.


# If runs are created at the same time, they begin within this number of seconds.
_SOON = 5.0
_PACE = 0.2


def in_turn(
    spec: TransactionSpec,
    source: Source,
    run: compat.RunInfo,
    dag: Any,
    *,
    attempt: TransactionAttempt,
    position: Any,
) -> Source:
    """Return the source of a run's batch.

    A source that follows the order of dates also receives the schedule of the DAG.

    :raises AheadOfOrder: no transaction has taken an interval yet, and an earlier run is queued or running.
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
    """Return the source for a batch that the coordinator begins without a run.

    :raises SourceError: no transaction has taken an interval yet, and an earlier run is queued or running.
    """
    dated = source.dated
    found = None if dated is None or position is not None else dated.next_interval(position)
    earlier = None if found is None else compat.earlier_live_run(spec.dag_id, found.start)
    if earlier is None:
        return source
    raise source.refused(
        f"the order of its data intervals begins with the run of {earlier.isoformat()}, which is still queued or "
        "running",
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
    """Wait in the worker while a lane works on the transaction of the run, so that the run does not take it over.

    :param key: the run key.
    :param seconds: the longest time to wait, in seconds.
    """
    until = clock() + seconds
    with spec.store() as store:
        while clock() < until and is_in_lane(store, spec.paths, key):
            sleep(_PACE)


def is_in_lane(store: Store, paths: Paths, key: str) -> bool:
    """Return whether a running lane works on the transaction of a run."""
    ledger = ReadOnlyLedger(store, paths)
    binding = ledger.binding(key)
    if binding is None:
        return False
    record = ledger.status(binding.txid)
    return record is not None and bool(ledger.in_lane({binding.txid: record}))


def comes_soon(
    spec: TransactionSpec,
    ahead: AheadOfOrder,
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Wait in the worker until a run is next in the order. A deferral would take longer.

    :param seconds: the longest time to wait, at most 5 seconds. Does not wait if no run of the next interval is
        running.
    :return: whether the run is next.
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
    """Return the end of the last data interval that a topology has taken, or None if it has taken none."""
    position = ReadOnlyLedger(store, paths).next_position()
    return None if position is None else order_end(position)


def gap(dag_id: str, missing: datetime, after: datetime) -> Remedy:
    """Describe an interval that has no run, and return the remedy."""
    return (
        f"No run for the interval that begins at {missing.isoformat()} is queued or running, "
        "and no later interval can begin without it. Clear its run, or create the run with "
    ) + Command.of("backfill", dag_id, "--from", missing.isoformat(), "--to", after.isoformat())


# --- outcome ------------------------------------------------------------------------------------------------------
# The source is notified when a batch has begun and when an attempt has failed. Source: Storm's ack
# and fail.


log = logging.getLogger(__name__)


def note_begun(source: Source, begun: Begun) -> None:
    """Call `Source.begun`. An error of the source is only logged, since the transaction has already begun."""
    try:
        source.begun(begun.txid, begun.metadata)
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        log.warning("Source %r: begun() of transaction %s failed: %s", source, begun.attempt, error)


def note_failed(source: Source, attempt: TransactionAttempt, metadata: Any, reason: str) -> None:
    """Call `Source.failed`, and close the source.

    An error of the source is only logged, since the attempt has already failed.
    """
    try:
        source.failed(attempt.txid, metadata, reason)
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        log.warning("Source %r: failed() of transaction %s failed: %s", source, attempt, error)
    finally:
        source.close()


# --- begin --------------------------------------------------------------------------------------------------------


CheckEntry = Callable[["Entry", TopologyRecord], "Collection[str] | None"]
"""Refuses a journal entry if the DAG's states cannot take back its contributions.

It returns the states that need values of the entry, or None for all states.
"""
_NOT_ALLOCATED = "Nothing was allocated; correct the source, then clear this task."
RUN_CONF = "airflow_tx"
"""The key of a run's configuration that holds the run key of a run that was created again."""


def ask(
    spec: TransactionSpec,
    ti: Any,
    run: compat.RunInfo,
    *,
    retry: bool,
    dag: Any = None,
    check_entry: CheckEntry = lambda entry, topology: None,
    log: Any = log,
) -> Begun | NoData | WindowFull | AlreadyCommitted:
    """Request the transaction of a run from the ledger, and send the lag of the source to the metrics.

    :param ti: the task instance of `begin`.
    :param retry: whether Airflow has retried the task instance. It is False for the first try, also after a clear.
    :param dag: the DAG, whose schedule gives the order of data intervals.
    :param check_entry: a function that is called before a restatement is allocated.
    :raises Refused: see `Ledger.begin`.
    :raises SourceError, ConfigError: the source failed, or output cannot be staged. Nothing was allocated.
    :raises AheadOfOrder: the run of an earlier data interval must begin first.
    """

    def ordered(source: Source, attempt: TransactionAttempt, position: Any) -> Source:
        return in_turn(spec, source, run, dag, attempt=attempt, position=position)

    with spec.store() as store:
        ledger = spec.ledger(store)
        with closing(_Decider(spec, _of(spec, run), ledger, ordered)) as decider:
            messages = _messages(spec, ledger)
            request = BeginRequest(
                spec.request, key_of(spec, run), ti.run_id, str(ti.id), retry, messages
            )
            outside = Outside(
                decider.decide,
                run_state=lambda run_id: compat.run_state(ti, spec.dag_id, run_id),
                decide_again=decider.decide_again,
                is_current=lambda: compat.is_current_try(str(ti.id)),
                review=decider.review,
                report=lambda *failed: note_failed(spec.source_of(ledger.incarnation()), *failed),
                read_entry=partial(_read_entry, spec, ledger, decider.source, check=check_entry),
            )
            answer = ledger.begin(request, outside)
            decider.note(answer)
        if isinstance(answer, Begun) and spec.ackers:
            from airflow_tx.outputs import origin_of

            failpoint("begin.before_open", topology=spec.topology, txid=answer.txid)
            with spec.open_ackers(store) as ackers:
                origin = origin_of(spec.topology, answer.attempt, answer.incarnation)
                ackers.open(origin, answer.attempt.birth, spec.ackers)
        if not isinstance(answer, AlreadyCommitted):
            send_lag(spec.topology, spec.source, ledger, log)
        return answer


def committed_batch(spec: TransactionSpec, txid: int) -> dict[str, Any]:
    """Return the batch of a committed transaction as plain JSON, for tasks after the commit."""
    with spec.store() as store:
        ledger = spec.ledger(store)
        begun = Begun.of_history(txid, ledger.outcome(txid), ledger.incarnation())
    return {"topology": spec.topology, **begun.to_json(), COMMITTED: True}


def allocate(
    spec: TransactionSpec, ledger: Ledger, task_try: str = "", *, first: TaskTry | None = None
) -> Begun | NoData | WindowFull:
    """Allocate the next transaction, for a run that does not exist yet. The response contains the id of the run.

    :param task_try: the try of the lane that processes the transaction instead of a run, or "" if there is no lane.
    :param first: the task that the lane starts in the same step.
    :raises Refused, SourceError, ConfigError: nothing was allocated.
    """
    request = BeginRequest(
        spec.request, None, "", task_try, retry=False, tasks=_messages(spec, ledger)
    )
    with closing(
        _Decider(spec, spec.named_source, ledger, partial(first_in_turn, spec))
    ) as decider:
        # The ledger needs the state of an earlier run with the same key. This request has no key.
        outside = Outside(decider.decide, run_state=lambda run_id: None, review=decider.review)
        answer = ledger.begin(request, outside, task=first)
        decider.note(answer)
    assert not isinstance(answer, AlreadyCommitted), "an attempt of a lane has no run key"
    return answer


def room(store: Store, paths: Paths, *, max_pending: int, key: str | None) -> dict[str, int] | None:
    """Return the event that wakes a `begin` that waits until fewer transactions are open.

    Return None if it must still wait.

    :param key: the run key. An earlier try of `begin` may have allocated a transaction before Airflow declared the try
        dead. Then the event is due immediately, since no other run commits this transaction.
    """
    ledger = ReadOnlyLedger(store, paths)
    current = ledger.current()
    allocated = ledger.allocated()
    binding = None if key is None else ledger.binding(key)
    # If a restatement of the run's transaction is requested, the run begins another transaction. So
    # it waits until fewer transactions are open.
    own = binding is not None and not ledger.is_wanted_restated(binding.txid)
    return {"current": current} if own or allocated + 1 < current + max_pending else None


def key_of(spec: TransactionSpec, run: compat.RunInfo) -> str:
    """Return the run key. For a run that was created again, it is the key of the original run in its configuration."""
    return _given_key(run) or spec.source.key(run)


def _given_key(run: compat.RunInfo) -> str | None:
    given = run.conf.get(RUN_CONF)
    return str(given["key"]) if isinstance(given, dict) and given.get("key") else None


def _of(spec: TransactionSpec, run: compat.RunInfo) -> Source:
    """Return the source for the batch of this run. A run that was created again has no dates, so use its key."""
    key = _given_key(run)
    return spec.named_source.for_run(run) if key is None else spec.named_source.for_key(key)


def conf_of(key: str) -> dict[str, Any]:
    """Return the configuration for a run that is created again, with the run key of the original run."""
    return {RUN_CONF: {"key": key}}


def _messages(spec: TransactionSpec, ledger: Ledger) -> dict[str, str]:
    return {task: f"{ledger.ids.message_id():016x}" for task in spec.tasks}


def _read_entry(
    spec: TransactionSpec,
    ledger: Ledger,
    source: Source,
    replaces: Replaced,
    changed_rows: bool,
    *,
    check: CheckEntry,
) -> RestatedBatch:
    """Read the batch to restate from the journal, and check that the source still has its rows.

    :raises JournalError: the journal entry cannot be used.
    :raises RestateRefused: the source no longer has the rows.
    """
    from airflow_tx.outputs import JournalArea

    topology = ledger.topology()
    entry = JournalArea(spec.staging(), topology.incarnation).read(replaces.entry)
    repairs = ledger.repairs()
    renamed = renamed_since(repairs, entry.contributions, entry.txid)
    states = check(entry, structs.replace(topology, renamed=renamed))
    states = renamed.values() if states is None else states
    rows = entry.metadata
    # For changed rows, the source decides the batch again later, and then also reports missing
    # rows.
    if rows is not None and not changed_rows:
        with asked(source, f"transaction {replaces.txid} with rows {dumps(rows)[:200]}"):
            gone = source.refuses_again(rows)
        if gone is not None:
            raise RestateRefused(
                txid=replaces.txid,
                topology=spec.topology,
                problem=f"its rows cannot be read again: {gone}",
                remedy=(
                    "To withdraw it: "
                    + Command.of("restate", spec.topology, replaces.txid, "--withdraw")
                ),
            )
    return RestatedBatch(rows, tuple(states), same=source.keeps_rows)


class _Decider:
    """The source that one `begin` uses. The source stays connected until the ledger has stored the batch.

    :param ordered: a function that returns the source with the order of data intervals.
    """

    def __init__(
        self,
        spec: TransactionSpec,
        source: Source,
        ledger: Ledger,
        ordered: Callable[
            [Source, TransactionAttempt, Any], Source
        ] = lambda source, attempt, position: source,
    ) -> None:
        self._spec = spec
        self.source = source
        self._ledger = ledger
        self._ordered = ordered

    def close(self) -> None:
        self.source.close()

    def decide(self, attempt: TransactionAttempt, position: Any) -> Batch | None:
        """Check that output can be staged. Then let the source decide the batch.

        :raises SourceError, ConfigError: nothing was allocated.
        """
        if self._spec.stages or self.source.stages:
            self._spec.staging().check()
        if self.source.stages:
            area = self._spec.staging().of_topology(self._ledger.incarnation())
            self.source.staging = area.root
        self.source = self._ordered(self.source, attempt, position)
        size = self.source.batch_size
        if size is not None:
            self.source = self.source.with_limit(
                self._ledger.pace(size.unit) if size.target_seconds is not None else ()
            )
        return decide(self.source, attempt, position)

    def decide_again(self, attempt: TransactionAttempt, metadata: Any) -> Any:
        return decide_again(self.source, attempt, metadata)

    def review(self, previous: PreviousBatch) -> None:
        """Log a warning if rows have changed since their batch was decided, with the command that reads them again."""
        with asked(self.source, f"the rows of transaction {previous.txid}"):
            changed = self.source.changed_since(previous.rows)
        if changed is None:
            return
        action = "replay"
        if not previous.is_open:
            action = "restate"
            if not self._ledger.is_committed(previous.txid):
                return  # The previous transaction was skipped.
        log.warning(
            "%r: after transaction %d had taken its rows, %s. To process the current rows: %s",
            self.source, previous.txid, changed, self.source.command(action, previous.txid, "--changed-rows"),
        )  # fmt: skip

    def note(self, answer: object) -> None:
        """Notify the source that an attempt has started. A restatement sends no notification."""
        if isinstance(answer, Begun) and answer.replaces is None:
            failpoint("begin.before_note", topology=self._spec.topology, txid=answer.txid)
            note_begun(self.source, answer)


def has_batch(source: Source, attempt: TransactionAttempt, position: Any) -> bool:
    """Return whether the source has rows for a transaction, without taking these rows. Then close the source.

    :raises SourceError: see `decide`.
    """
    try:
        if not source.stages:
            return decide(source, attempt, position) is not None
        with asked(source, _question(attempt, position)):
            return source.is_ready() and source.backlog(position) != 0
    finally:
        source.close()


def decide(source: Source, attempt: TransactionAttempt, position: Any) -> Batch | None:
    """Let the source decide the batch of a transaction, or return None if it has no rows.

    :param position: the position after the previous transaction.
    :raises SourceError: the source failed, or it did not return plain JSON, or its position did not advance. The text
        is one line.
    """
    with asked(source, _question(attempt, position)):
        batch = source.decide(attempt, position) if source.is_ready() else None
        if batch is not None:
            dumps([batch.metadata, batch.position, batch.start])
    if batch is None:
        return None
    if batch.position == position and source.kind is not SourceKind.NON_TRANSACTIONAL:
        raise SourceError(
            source=type(source).__name__,
            problem=f"transaction {attempt.txid} has rows {dumps(batch.metadata)[:200]}, but its position is still "
            f"{dumps(position)[:200]}: the next transaction would have the same rows",
            remedy="Nothing was allocated. The source must return a position after these rows.",
        )
    return batch


def decide_again(source: Source, attempt: TransactionAttempt, metadata: Any) -> Any:
    """Let the source decide the batch again, from its current rows at the position of the earlier batch.

    :param metadata: the metadata of the earlier decision.
    :raises SourceError: the source failed, or it did not return plain JSON. The text is one line.
    """
    with asked(source, f"transaction {attempt.txid} with rows {dumps(metadata)[:200]}"):
        again = source.decide_again(attempt, metadata)
        dumps(again.metadata if isinstance(again, Batch) else again)
    return again


def _question(attempt: TransactionAttempt, position: Any) -> str:
    return f"transaction {attempt.txid} after position {dumps(position)[:200]}"


@contextmanager
def asked(source: Source, what: str, remedy: str = _NOT_ALLOCATED) -> Iterator[None]:
    """Replace a source error in the `with` block with a SourceError of one line.

    :param what: a description of the request to the source, for the error.
    :param remedy: the remedy of the error.
    :raises SourceError: the source failed.
    """
    try:
        yield
    except TxError:
        raise
    except Exception as error:
        raise SourceError(
            source=type(source).__name__,
            problem=f"{what}: {type(error).__name__}: {error}",
            remedy=remedy,
        ) from error
