"""`begin` for a run that has an open transaction: its next attempt, or the same one again. Source: protocol.md §3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_tx.errors import RunHeld, StaleBegin
from airflow_tx.protocol import garbage
from airflow_tx.protocol.answers import Begun, NeedBatch, NeedCurrent, NeedRows, NeedRunState
from airflow_tx.protocol.api import Create, Put, Write
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.batch import Batch, Batches, BeginRequest
from airflow_tx.protocol.correction import decided_anew, to_decide_anew
from airflow_tx.protocol.loss import going_on_at
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Metadata, Phase, TopologyRecord, TransactionRecord, digest, encode
from airflow_tx.protocol.rotating_state import RotatingTransactionalState, position_after, unmoved
from airflow_tx.protocol.step import Decision, Stamp, put

ReplayAnswer = Begun | NeedBatch | NeedRows | NeedRunState | NeedCurrent
LIVE_RUN_STATES = frozenset({"queued", "running"})


def replay(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    topology: TopologyRecord,
    request: BeginRequest,
    batches: Batches,
    run_states: Mapping[str, str | None],
    current: Mapping[str, bool],
    txid: int,
    record: TransactionRecord,
) -> Decision[ReplayAnswer]:
    """The next attempt of an open transaction; the same one if it is only begun again.

    :raises StaleBegin, RunHeld: and nothing has changed.
    """
    if record.request not in ("", request.task_try) and record.request not in current:
        return Decision(NeedCurrent(record.request))
    if not current.get(record.request, True):
        raise StaleBegin(
            run_id=request.run_id,
            txid=txid,
            found=record.request,
            task_try=request.task_try,
        )
    if record.run_id != request.run_id:
        if record.run_id not in run_states:
            return Decision(NeedRunState(record.run_id))
        if run_states[record.run_id] in LIVE_RUN_STATES:
            raise RunHeld(
                run_id=request.run_id,
                txid=txid,
                holder=record.run_id,
                state=run_states[record.run_id],
            )
    started = read.names(paths.acks(txid, record.acks))
    same = record.request == request.task_try
    # "": it was allocated for this run before the run existed.
    again = request.retry or record.request == ""
    if same or (again and not started and record.phase is Phase.PROCESSING):
        return _continue(read, stamp, paths, request, txid, record)
    return _next_attempt(read, stamp, paths, topology, request, batches, txid, record, started)


def _continue(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: BeginRequest,
    txid: int,
    record: TransactionRecord,
) -> Decision[ReplayAnswer]:
    meta = RotatingTransactionalState(read, paths).get_state(txid)
    result = Begun(
        TransactionAttempt(txid, record.attempt, record.birth),
        meta.rows,
        meta.position,
        record.rows_digest,
        replay=record.attempt > 1,
        run_id=request.run_id,
        skip=record.skip,
    )
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
    return put(paths.transaction(txid), again, result)


def _next_attempt(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    topology: TopologyRecord,
    request: BeginRequest,
    batches: Batches,
    txid: int,
    record: TransactionRecord,
    started: tuple[str, ...],
) -> Decision[ReplayAnswer]:
    state = RotatingTransactionalState(read, paths)
    meta = state.get_state(txid)
    partitioned = request.topology.partitioned
    rows, ended, base, size = meta.rows, meta.position, record.base, record.size
    lost, begins = record.lost, meta.begin
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
            # A partition that this transaction took up has no place before it; where it begins is not chosen anew.
            begins = {name: begin for name, begin in (meta.begin or {}).items() if name not in (position or {})}
            place = going_on_at(read, paths, topology, {**begins, **(position or {})} if begins else position)
            need = NeedBatch(TransactionAttempt(txid, record.attempt + 1), place.position)
            if need.key not in batches:
                return Decision(need)
            decided = batches[need.key]
            batch = decided or Batch(None, None if partitioned else position)
            rows, after, size = batch.metadata, batch.position, batch.size
            # An empty one stays before the loss.
            lost = place.passed(after) if decided is not None else []
            starts: Any = batch.start if partitioned else None
            begins = {**(starts or {}), **begins}
            after = {**begins, **(after or {})} if begins else after
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
        acks=garbage.acks_of(stamp, txid, record.attempt + 1),
    )
    writes: tuple[Write, ...] = (
        Put(paths.transaction(txid), encode(again)),
        state.override_state(txid, Metadata(again.attempt, rows, ended, begin=begins)),
        Create(paths.acks(txid, again.acks), b""),
        *garbage.removed(read, stamp, paths, paths.acks(txid, record.acks), started),
    )
    result = Begun(
        TransactionAttempt(txid, again.attempt, again.birth),
        rows,
        ended,
        again.rows_digest,
        replay=True,
        run_id=request.run_id,
        skip=record.skip,
        size=size,
        lost=tuple(lost),
    )
    return Decision(result, writes, paths.transaction(txid))
