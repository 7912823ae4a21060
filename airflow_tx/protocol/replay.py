"""`begin` for a run that has an open transaction: its next attempt, or the same one again.

A person may let the rows of the next attempt be decided again. Source: docs/protocol.md §§3, 5.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_tx.errors import ChangeRefused, RunHeld, StaleBegin, shortened_reason
from airflow_tx.protocol import garbage
from airflow_tx.protocol.answers import (
    AlreadySkipped,
    Begun,
    Done,
    NeedBatch,
    NeedCurrent,
    NeedReport,
    NeedRows,
    NeedRunState,
)
from airflow_tx.protocol.api import Create, Put, Write
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.batch import Batch, Batches, BeginRequest
from airflow_tx.protocol.loss import start_after
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.receipt import REPLAYS_KEPT
from airflow_tx.protocol.records import Metadata, Phase, TopologyRecord, TransactionRecord, digest, encode
from airflow_tx.protocol.rotating_state import RotatingTransactionalState, position_after, unmoved
from airflow_tx.protocol.skip import held_for_good, open_record
from airflow_tx.protocol.step import Audit, Decision, Stamp, put

ReplayAnswer = Begun | NeedBatch | NeedRows | NeedRunState | NeedCurrent | NeedReport
LIVE_RUN_STATES = frozenset({"queued", "running"})


@dataclass(frozen=True)
class BeginPass:
    """One pass of the step `begin`, whose topology is up to date with its DAG."""

    read: Reader
    stamp: Stamp
    paths: Paths
    topology: TopologyRecord
    request: BeginRequest
    batches: Batches


def begin_again(
    begins: BeginPass,
    run_states: Mapping[str, str | None],
    current: Mapping[str, bool],
    reported: Collection[TransactionAttempt],
    txid: int,
    record: TransactionRecord,
) -> Decision[ReplayAnswer]:
    """Give an open transaction its next attempt; the same one if it is only begun again.

    :raises StaleBegin, RunHeld: and nothing has changed.
    """
    request = begins.request
    if record.request not in ("", request.task_try) and record.request not in current:
        return Decision(NeedCurrent(record.request))
    if not current.get(record.request, True):
        raise StaleBegin(run_id=request.run_id, txid=txid, found=record.request, task_try=request.task_try)
    if record.run_id != request.run_id:
        if record.run_id not in run_states:
            return Decision(NeedRunState(record.run_id))
        if run_states[record.run_id] in LIVE_RUN_STATES:
            raise RunHeld(run_id=request.run_id, txid=txid, holder=record.run_id, state=run_states[record.run_id])
    started = begins.read.names(begins.paths.acks(record.acks))
    same = record.request == request.task_try
    # "": it was allocated for this run before the run existed.
    again = request.retry or record.request == ""
    if same or (again and not started and record.phase is Phase.PROCESSING):
        return _continue(begins, txid, record)
    own = TransactionAttempt(txid, record.attempt, record.birth)
    if own not in reported:
        rows = RotatingTransactionalState(begins.read, begins.paths).get_state(txid).rows
        return Decision(NeedReport(own, rows, _why_replayed(record)))
    return _next_attempt(begins, txid, record, started)


def _continue(begins: BeginPass, txid: int, record: TransactionRecord) -> Decision[ReplayAnswer]:
    stamp, paths, request = begins.stamp, begins.paths, begins.request
    meta = RotatingTransactionalState(begins.read, paths).get_state(txid)
    result = Begun.of(txid, replace(record, run_id=request.run_id), meta.rows, meta.position)
    if record.request == request.task_try:
        return Decision(result)
    again = replace(record, request=request.task_try, run_id=request.run_id, tasks=dict(request.tasks), op=stamp.op)
    if record.request == "":
        # Its time-out counts from now on; what was noted of it until now asked for this very begin.
        again = replace(again, began=stamp.now, replay=None)
    return put(paths.transaction(txid), again, result)


def _next_attempt(
    begins: BeginPass, txid: int, record: TransactionRecord, started: tuple[str, ...]
) -> Decision[ReplayAnswer]:
    read, stamp, paths, request, batches = begins.read, begins.stamp, begins.paths, begins.request, begins.batches
    state = RotatingTransactionalState(read, paths)
    meta = state.get_state(txid)
    partitioned = request.topology.partitioned
    rows, ended, base, size = meta.rows, meta.position, record.base, record.size
    lost, taken_up = record.lost, meta.begin
    stays = record.pinned or request.topology.source_kind == "transactional"
    if stays and to_decide_anew(record, rows):
        rows = decided_anew(TransactionAttempt(txid, record.attempt + 1), rows, batches)
        if isinstance(rows, NeedRows):
            return Decision(rows)
    if record.pinned or request.topology.source_kind != "transactional":
        position = state.position_before(txid)
        base = digest(position)
        after: Any
        if record.pinned:
            after = unmoved(position, rows, partitioned=partitioned)
        else:
            # A partition that this transaction took up has no position before it; it begins where it began.
            taken_up = {name: begin for name, begin in (meta.begin or {}).items() if name not in (position or {})}
            start = start_after(
                read, paths, begins.topology, {**taken_up, **(position or {})} if taken_up else position
            )
            need = NeedBatch(TransactionAttempt(txid, record.attempt + 1), start.position)
            if need.key not in batches:
                return Decision(need)
            decided = batches[need.key]
            batch = decided or Batch(None, None if partitioned else position)
            rows, after, size = batch.metadata, batch.position, batch.size
            # An empty one stays before the loss.
            lost = start.passed(after) if decided is not None else []
            starts: Any = batch.start if partitioned else None
            taken_up = {**(starts or {}), **taken_up}
            after = {**taken_up, **(after or {})} if taken_up else after
        ended = position_after(position, after, partitioned=partitioned)
    again = replace(
        record,
        run_id=request.run_id,
        request=request.task_try,
        attempt=record.attempt + 1,
        epoch=record.epoch + 1,
        op=stamp.op,
        phase=Phase.PROCESSING,
        base=base,
        ended=digest(ended),
        rows_digest=digest(rows),
        tasks=dict(request.tasks),
        size=size,
        lost=lost,
        began=stamp.now,
        processed=None,
        yielded=None,
        error=None,
        remedy=None,
        for_good=0,
        acks=garbage.acks_of(stamp, txid, record.attempt + 1),
        replays=[*record.replays, _replayed(record, stamp)][-REPLAYS_KEPT:],
        claim=None,
    )
    writes: tuple[Write, ...] = (
        Put(paths.transaction(txid), encode(again)),
        state.override_state(txid, Metadata(again.attempt, rows, ended, begin=taken_up)),
        Create(paths.acks(again.acks), b""),
        *garbage.removed(read, stamp, paths, paths.acks(record.acks), started),
    )
    return Decision(Begun.of(txid, again, rows, ended), writes, paths.transaction(txid))


def _replayed(record: TransactionRecord, stamp: Stamp) -> dict[str, Any]:
    """Say of which attempt, when and why, and which person asked for it, for the receipt."""
    replayed = {"attempt": record.attempt, "when": stamp.now, "why": shortened_reason(_why_replayed(record), 200)}
    asked = record.asked
    if asked is None or asked["attempt"] != record.attempt:
        return replayed
    by = {"who": asked["who"], "when": asked["when"], "why": shortened_reason(asked["why"], 200)}
    return {**replayed, "by": by}


def _why_replayed(record: TransactionRecord) -> str:
    asked = record.replay if record.replay is not None and record.replay["attempt"] == record.attempt else None
    return str(record.error or (asked and asked["reason"]) or "its run was cleared")


# --- the corrected file ------------------------------------------------------------------------------------------
# The source decides the same rows again, as they are now; where the transaction ends does not change, so what follows
# it stays as it is.


def note_changed(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, states: Mapping[str, bool | None], audit: Audit
) -> Decision[Done | AlreadySkipped]:
    """Note that the next attempt takes the rows as they are now, and let nobody commit this one.

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
        error=f"its rows are to be decided anew ({audit.who}: {audit.reason})",
        op=stamp.op,
    )
    return put(paths.transaction(txid), after, Done())


def check_changeable(paths: Paths, txid: int, record: TransactionRecord, states: Mapping[str, bool | None]) -> None:
    """Find out whether the rows of a transaction can be decided again: whatever holds something of it must undo it.

    :raises ChangeRefused: a state cannot.
    """
    held = held_for_good(record, states)
    if record.to_change is None and held:
        raise ChangeRefused(
            txid=txid,
            topology=paths.topology,
            problem=f"it may be in state {', '.join(held)} already, which cannot undo it",
            remedy="Give the source its rows back as they were, and replay it without --changed-rows until it is "
            "committed",
        )


def decided_anew(attempt: TransactionAttempt, metadata: Any, batches: Batches) -> Any | NeedRows:
    """Return the metadata of the same rows as they are now, if the source has said so already, else the question.

    :param metadata: as it was decided before.
    """
    need = NeedRows(attempt, metadata)
    if need.key not in batches:
        return need
    batch = batches[need.key]
    assert batch is not None
    return batch.metadata


def to_decide_anew(record: TransactionRecord, rows: Any) -> bool:
    """Ask whether a replay needs the same rows as they are now; one that is to be skipped needs none."""
    return record.to_change is not None and record.skip is None and rows is not None
