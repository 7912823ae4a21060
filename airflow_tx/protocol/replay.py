"""`begin` for a run that has an open transaction: its next attempt, or the same one again.

A person may let the rows of the next attempt be decided again. Source: docs/protocol.md §§3, 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_tx.errors import ChangeRefused, RunHeld, StaleBegin, shortened_reason
from airflow_tx.protocol import garbage
from airflow_tx.protocol.answers import (
    AlreadyCommitted,
    AlreadySkipped,
    Begun,
    Done,
)
from airflow_tx.protocol.api import Create, Put, Write
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.batch import Batch, BeginRequest, DecidedBatch, Outside, PreviousBatch
from airflow_tx.protocol.json_text import digest
from airflow_tx.protocol.loss import start_after
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.receipt import REPLAYS_KEPT
from airflow_tx.protocol.records import (
    MOST_OF_REASON,
    Phase,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.protocol.rotating_state import RotatingTransactionalState, position_after, unmoved
from airflow_tx.protocol.skip import held_for_good, open_record
from airflow_tx.protocol.step import Audit, Decision, Stamp, put

ReplayAnswer = AlreadyCommitted | Begun
LIVE_RUN_STATES = frozenset({"queued", "running"})


@dataclass(frozen=True)
class BeginPass:
    """One pass of the step `begin`, whose topology is up to date with its DAG."""

    read: Reader
    stamp: Stamp
    paths: Paths
    topology: TopologyRecord
    request: BeginRequest
    outside: Outside

    def next_batch(
        self, attempt: TransactionAttempt, position: Any, previous: PreviousBatch | None = None
    ) -> Batch | None:
        """Ask the source for the batch from a position on; None: it has no data.

        :param previous: the batch before it; None: it is the first one, or a replay.
        """
        about = f"{attempt.txid} from {digest(position)}"
        ask = partial(self.outside.next_batch, attempt, position, previous)
        return self.read.ask("batch", about, ask)

    def current_rows(self, attempt: TransactionAttempt, metadata: Any) -> Any:
        """Ask the source for the current metadata of the same rows.

        :param metadata: the earlier decision.
        """
        about = f"{attempt.txid} instead of {digest(metadata)}"
        return self.read.ask("batch", about, partial(self.outside.decide_again, attempt, metadata))


def begin_again(begins: BeginPass, txid: int, record: TransactionRecord) -> Decision[ReplayAnswer]:
    """Give an open transaction its next attempt; the same one if it is only begun again.

    A restatement is left to its own run, unless that was deleted.

    :raises StaleBegin, RunHeld: and nothing has changed.
    """
    request = begins.request
    read = begins.read
    outside = begins.outside
    another = record.request not in ("", request.task_try)
    if another and not read.ask("current", record.request, outside.is_current):
        raise StaleBegin(
            run_id=request.run_id, txid=txid, found=record.request, task_try=request.task_try
        )
    if record.run_id != request.run_id:
        ask = partial(outside.run_state, record.run_id)
        state = read.ask("run state", record.run_id, ask)
        if record.replaces is not None and state is not None:
            # The transaction that it restates counts for every other run of the same key.
            return Decision(AlreadyCommitted(record.replaces["txid"]))
        if state in LIVE_RUN_STATES:
            raise RunHeld(run_id=request.run_id, txid=txid, holder=record.run_id, state=state)
    started = read.names(begins.paths.acks(record.acks))
    same = record.request == request.task_try
    # "": it was allocated for this run before the run existed.
    again = request.retry or record.request == ""
    if same or (again and not started and record.phase is Phase.PROCESSING):
        return _continue(begins, txid, record)
    # The source learned the outcome of these rows when they were committed.
    if record.replaces is None:
        own = TransactionAttempt(txid, record.attempt, record.birth)
        rows = RotatingTransactionalState(read, begins.paths).get_state(txid).rows
        read.ask("failure", own, partial(outside.report, own, rows, _why_replayed(record)))
    return _next_attempt(begins, txid, record, started)


def _continue(begins: BeginPass, txid: int, record: TransactionRecord) -> Decision[ReplayAnswer]:
    stamp = begins.stamp
    request = begins.request
    meta = RotatingTransactionalState(begins.read, begins.paths).get_state(txid)
    of_run = replace(record, run_id=request.run_id)
    result = Begun.of(txid, of_run, meta.rows, meta.position, begins.topology.incarnation)
    if record.request == request.task_try:
        return Decision(result)
    again = replace(
        record,
        request=request.task_try,
        run_id=request.run_id,
        tasks=dict(request.tasks),
        op=stamp.op,
    )
    if record.request == "":
        # Its time-out counts from now on; what was noted of it until now asked for this very begin.
        again = replace(again, began=stamp.now, replay=None)
    return put(begins.paths.transaction(txid), again, result)


def _next_attempt(
    begins: BeginPass, txid: int, record: TransactionRecord, started: tuple[str, ...]
) -> Decision[ReplayAnswer]:
    read = begins.read
    stamp = begins.stamp
    paths = begins.paths
    request = begins.request
    state = RotatingTransactionalState(read, paths)
    attempt = TransactionAttempt(txid, record.attempt + 1)
    stays = record.pinned or request.topology.source_kind == "transactional"
    decided = (
        _same_rows(begins, state, attempt, record) if stays else _other_rows(begins, state, attempt)
    )
    again = replace(
        record,
        run_id=request.run_id,
        request=request.task_try,
        attempt=attempt.attempt,
        epoch=record.epoch + 1,
        op=stamp.op,
        phase=Phase.PROCESSING,
        base=decided.base,
        ended=digest(decided.position),
        rows_digest=digest(decided.rows),
        tasks=dict(request.tasks),
        size=decided.size,
        lost=list(decided.lost),
        began=stamp.now,
        processed=None,
        yielded=None,
        error=None,
        remedy=None,
        for_good=0,
        acks=garbage.acks_of(stamp, txid, attempt.attempt),
        replays=[*map(_earlier, record.replays), _replayed(record, stamp)][-REPLAYS_KEPT:],
        claim=None,
        journal="",
    )
    writes: tuple[Write, ...] = (
        Put(paths.transaction(txid), encode(again)),
        state.override_state(txid, decided.metadata(again.attempt)),
        Create(paths.acks(again.acks), b""),
        *garbage.removed(read, stamp, paths, paths.acks(record.acks), started),
    )
    life = begins.topology.incarnation
    return Decision(
        Begun.of(txid, again, decided.rows, decided.position, life), writes, paths.transaction(txid)
    )


def _same_rows(
    begins: BeginPass,
    state: RotatingTransactionalState,
    attempt: TransactionAttempt,
    record: TransactionRecord,
) -> DecidedBatch:
    """Keep the rows of the attempt before, or take the current rows if a person wants that."""
    meta = state.get_state(attempt.txid)
    rows = meta.rows
    if to_decide_anew(record, rows):
        rows = begins.current_rows(attempt, rows)
    kept = DecidedBatch(rows, meta.position, record.base, record.size, record.lost, meta.begin)
    if not record.pinned:
        return kept

    # Re-admitted rows leave the source where it is, and the transaction before may end elsewhere now.
    partitioned = begins.request.topology.partitioned
    before = state.position_before(attempt.txid)
    after = position_after(
        before, unmoved(before, rows, partitioned=partitioned), partitioned=partitioned
    )
    return replace(kept, position=after, base=digest(before))


def _other_rows(
    begins: BeginPass, state: RotatingTransactionalState, attempt: TransactionAttempt
) -> DecidedBatch:
    """Let an opaque source decide again, from where the transaction before ends now."""
    partitioned = begins.request.topology.partitioned
    before = state.position_before(attempt.txid)
    # A partition that this transaction took up has no position before it. It begins where it began.
    taken_up = state.get_state(attempt.txid).begin or {}
    begin = {name: place for name, place in taken_up.items() if name not in (before or {})}
    origin = {**begin, **(before or {})} if begin else before
    start = start_after(begins.read, begins.paths, begins.topology, origin)
    batch = begins.next_batch(attempt, start.position)
    if batch is None:
        # An empty batch stays before the loss.
        lost = []
        batch = Batch(None, None if partitioned else before)
    else:
        lost = start.passed(batch.position)
    starts: Any = batch.start if partitioned else None
    after: Any = batch.position
    begin = {**(starts or {}), **begin}
    if begin:
        after = {**begin, **(after or {})}
    return DecidedBatch(
        batch.metadata,
        position_after(before, after, partitioned=partitioned),
        base=digest(before),
        size=batch.size,
        lost=lost,
        begin=begin,
    )


def _replayed(record: TransactionRecord, stamp: Stamp) -> dict[str, Any]:
    """Say of which attempt, when and why, how many rows it had, and which person asked for it, for the receipt."""
    replayed = {
        "attempt": record.attempt,
        "when": stamp.now,
        "why": shortened_reason(_why_replayed(record), MOST_OF_REASON),
    }
    rows = _counted_rows(record)
    if rows is not None:
        replayed["rows"] = rows
    asked = record.asked
    if asked is None or asked["attempt"] != record.attempt:
        return replayed
    by = {"who": asked["who"], "when": asked["when"], "why": shortened_reason(asked["why"], 200)}
    return {**replayed, "by": by}


def _counted_rows(record: TransactionRecord) -> int | None:
    """Say how many rows the attempt had, as its committer or its source counted them; None: neither did."""
    if record.claim is not None and record.claim.get("rows") is not None:
        return int(record.claim["rows"])
    size = record.size or {}
    return None if size.get("at_most") else size.get("rows")


def _earlier(replayed: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten why an earlier attempt was replayed, so that records stay small; the last error stays whole."""
    return {**replayed, "why": shortened_reason(replayed["why"], 200)}


def _why_replayed(record: TransactionRecord) -> str:
    asked = (
        record.replay
        if record.replay is not None and record.replay["attempt"] == record.attempt
        else None
    )
    return str(record.error or (asked and asked["reason"]) or "its run was cleared")


# --- the corrected file ------------------------------------------------------------------------------------------
# The source decides the same rows again, with their current content. The end of the transaction does not change, so
# later transactions stay valid.


def note_changed(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    txid: int,
    states: Mapping[str, bool | None],
    *,
    audit: Audit,
) -> Decision[Done | AlreadySkipped]:
    """Note that the next attempt takes the current rows, and forbid the commit of this one.

    :param states: as for `held_for_good`.
    :raises ChangeRefused: a state that cannot undo it may hold something of it.
    :raises AlreadyFinal, UnknownTransaction: it is not open.
    """
    record = open_record(read, paths, txid)
    if record is None:
        return Decision(AlreadySkipped(txid))
    if record.to_change is not None:
        return Decision(Done())
    check_changeable(paths, txid, record, states)
    noted = {**audit.noted(stamp), "attempt": record.attempt}
    after = replace(
        record,
        phase=Phase.FAILED,
        epoch=record.epoch + 1,
        changed=[*record.changed, noted],
        counted=None,
        error=record.error or "its rows are to be decided again",
        op=stamp.op,
    )
    return put(paths.transaction(txid), after, Done())


def check_changeable(
    paths: Paths, txid: int, record: TransactionRecord, states: Mapping[str, bool | None]
) -> None:
    """Find out whether the rows of a transaction can be decided again: every state with values of it must undo them.

    :raises ChangeRefused: a state cannot.
    """
    held = held_for_good(record, states)
    if record.to_change is None and held:
        raise ChangeRefused(
            txid=txid,
            topology=paths.topology,
            problem=f"it may be in state {', '.join(held)} already, which cannot undo it",
            remedy="Give the source its earlier rows back, and replay it without --changed-rows until it is "
            "committed",
        )


def to_decide_anew(record: TransactionRecord, rows: Any) -> bool:
    """Ask whether a replay needs the current rows; one that is to be skipped needs none."""
    return record.to_change is not None and record.skip is None and rows is not None
