"""The steps `open` and `begin`: a run's identity becomes an attempt of a transaction. Source: PROTOCOL §3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_tx.errors import (
    RunHeld,
    SkippedTransaction,
    SourceKindChanged,
    StaleBegin,
    TopologyClaimed,
    UnknownTransaction,
)
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reading import Reader
from airflow_tx.protocol.records import (
    Binding,
    Counter,
    Metadata,
    Phase,
    TopologyRecord,
    TransactionRecord,
    digest,
    encode,
)
from airflow_tx.protocol.requirement import Create, Delete, Put, Write
from airflow_tx.protocol.step import (
    AlreadyCommitted,
    Begun,
    Decision,
    Done,
    NeedBatch,
    NeedRunState,
    NeedTopology,
    NoData,
    Result,
    Stamp,
    WindowFull,
    is_committed,
)

LIVE_RUN_STATES = frozenset({"queued", "running"})


@dataclass(frozen=True)
class TopologyRequest:
    """What a DAG says of its topology."""

    dag_id: str
    source_kind: str
    max_pending: int


@dataclass(frozen=True)
class BeginRequest:
    """What a run's first task asks for.

    :param key: the run's identity: its run_id, or the interval or partition it stands for.
    :param task_try: id of this try of `begin` (a UUIDv7: later tries are greater).
    :param retry: whether Airflow retried `begin`, rather than somebody cleared it.
    :param tasks: per task that must ack, a random 64-bit id as 16 hex digits.
    """

    topology: TopologyRequest
    key: str
    run_id: str
    task_try: str
    retry: bool
    tasks: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class Proposal:
    """What the source said to a `NeedBatch`.

    :param batch: (rows, position), or None without data.
    """

    txid: int
    base: str
    batch: tuple[Any, Any] | None = field(hash=False)


def open_topology(
    read: Reader,
    stamp: Stamp,
    *,
    paths: Paths,
    request: TopologyRequest,
    incarnation: str,
) -> Decision | Result:
    """Make the ledger of a topology, or bring what its record says of the DAG up to date.

    :raises TopologyClaimed: another DAG uses the name.
    :raises SourceKindChanged: while transactions are open.
    """
    topology = read.find(TopologyRecord, paths.record)
    if topology is None:
        made = TopologyRecord(
            incarnation,
            request.dag_id,
            request.source_kind,
            request.max_pending,
            op=stamp.op,
        )
        folders = [Create(path, b"") for path in paths.folders]
        counters = [
            Create(paths.current, encode(Counter(1))),
            Create(paths.allocated, encode(Counter(0))),
        ]
        return Decision(
            (*folders, *counters, Create(paths.record, encode(made))),
            Done(),
            paths.record,
        )
    _check_claim(topology, paths, request)
    writes: list[Write] = []
    if topology.source_kind != request.source_kind:
        allocated = read.get(Counter, paths.allocated)
        if allocated.txid >= read.get(Counter, paths.current).txid:
            raise SourceKindChanged(
                topology=paths.topology,
                found=topology.source_kind,
                expected=request.source_kind,
            )
        # Written again as it is: a begin of the old kind that is just allocating is refused.
        writes.append(Put(paths.allocated, encode(allocated)))
    changed = replace(
        topology,
        source_kind=request.source_kind,
        max_pending=request.max_pending,
        op=stamp.op,
    )
    return Decision((*writes, Put(paths.record, encode(changed))), Done(), paths.record)


def begin(
    read: Reader,
    stamp: Stamp,
    *,
    paths: Paths,
    request: BeginRequest,
    proposal: Proposal | None,
    run_states: Mapping[str, str | None],
) -> Decision | Result:
    """Give the run its transaction: a new txid, the next attempt of its own, or the answer that it is committed.

    :raises StaleBegin, RunHeld, SkippedTransaction, TopologyClaimed: and nothing has changed.
    """
    topology = read.peek_if_any(TopologyRecord, paths.record)
    if topology is None:
        return NeedTopology()
    _check_claim(topology, paths, request.topology)
    if (topology.source_kind, topology.max_pending) != (
        request.topology.source_kind,
        request.topology.max_pending,
    ):
        return NeedTopology()
    binding = read.find(Binding, paths.run(request.key))
    if binding is None:
        return _allocate(read, stamp, paths, request, proposal)
    record = read.find(TransactionRecord, paths.transaction(binding.txid))
    if record is None:
        return _final(read, paths, binding.txid)
    return _replay(read, stamp, paths, request, proposal, run_states, binding.txid, record)


def _check_claim(topology: TopologyRecord, paths: Paths, request: TopologyRequest) -> None:
    if topology.dag_id != request.dag_id:
        raise TopologyClaimed(topology=paths.topology, owner=topology.dag_id, dag_id=request.dag_id)


def position_before(read: Reader, paths: Paths, txid: int) -> Any:
    """The position after transaction txid − 1; None for the first one."""
    return read.get(Metadata, paths.meta(txid - 1)).position if txid > 1 else None


def _allocate(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: BeginRequest,
    proposal: Proposal | None,
) -> Decision | Result:
    current = read.peek(Counter, paths.current)
    allocated = read.get(Counter, paths.allocated)
    txid = allocated.txid + 1
    if not txid < current.txid + request.topology.max_pending:
        return WindowFull(current.txid, allocated.txid, request.topology.max_pending)
    position = position_before(read, paths, txid)
    base = digest(position)
    if proposal is None or (proposal.txid, proposal.base) != (txid, base):
        return NeedBatch(TransactionAttempt(txid, 1), position, base)
    if proposal.batch is None:
        return NoData(txid)
    rows, after = proposal.batch
    record = TransactionRecord(
        key=request.key,
        run_id=request.run_id,
        request=request.task_try,
        attempt=1,
        epoch=1,
        op=stamp.op,
        phase=Phase.PROCESSING,
        base=base,
        rows_digest=digest(rows),
        tasks=dict(request.tasks),
        created=stamp.now,
        began=stamp.now,
    )
    writes = (
        Put(paths.allocated, encode(Counter(txid))),
        Create(paths.run(request.key), encode(Binding(txid))),
        Create(paths.meta(txid), encode(Metadata(1, rows, after))),
        Create(paths.transaction(txid), encode(record)),
        Create(paths.acks(txid), b""),
    )
    result = Begun(TransactionAttempt(txid, 1), rows, after, record.rows_digest, replay=False)
    return Decision(writes, result, paths.transaction(txid))


def _final(read: Reader, paths: Paths, txid: int) -> Result:
    if is_committed(read, paths, txid):
        return AlreadyCommitted(txid)
    if read.peek_if_any(Metadata, paths.skipped(txid)) is not None:
        raise SkippedTransaction(topology=paths.topology, txid=txid)
    raise UnknownTransaction(what=f"record of transaction {txid}", path=paths.transaction(txid))


def _replay(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: BeginRequest,
    proposal: Proposal | None,
    run_states: Mapping[str, str | None],
    txid: int,
    record: TransactionRecord,
) -> Decision | Result:
    if record.request > request.task_try:
        raise StaleBegin(
            run_id=request.run_id,
            txid=txid,
            found=record.request,
            task_try=request.task_try,
        )
    if record.run_id != request.run_id:
        if record.run_id not in run_states:
            return NeedRunState(record.run_id)
        if run_states[record.run_id] in LIVE_RUN_STATES:
            raise RunHeld(
                run_id=request.run_id,
                txid=txid,
                holder=record.run_id,
                state=run_states[record.run_id],
            )
    started = read.names(paths.acks(txid))
    same = record.request == request.task_try
    if same or (request.retry and not started and record.phase is Phase.PROCESSING):
        return _continue(read, stamp, paths, request, txid, record)
    return _next_attempt(read, stamp, paths, request, proposal, txid, record, started)


def _continue(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: BeginRequest,
    txid: int,
    record: TransactionRecord,
) -> Decision | Result:
    meta = read.get(Metadata, paths.meta(txid))
    result = Begun(
        TransactionAttempt(txid, record.attempt),
        meta.rows,
        meta.position,
        record.rows_digest,
        replay=record.attempt > 1,
    )
    if record.request == request.task_try:
        return result
    again = replace(
        record,
        request=request.task_try,
        run_id=request.run_id,
        tasks=dict(request.tasks),
        op=stamp.op,
    )
    return Decision((Put(paths.transaction(txid), encode(again)),), result, paths.transaction(txid))


def _next_attempt(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: BeginRequest,
    proposal: Proposal | None,
    txid: int,
    record: TransactionRecord,
    started: tuple[str, ...],
) -> Decision | Result:
    meta = read.get(Metadata, paths.meta(txid))
    rows, after, base = meta.rows, meta.position, record.base
    if request.topology.source_kind != "transactional":
        position = position_before(read, paths, txid)
        base = digest(position)
        if proposal is None or (proposal.txid, proposal.base) != (txid, base):
            return NeedBatch(TransactionAttempt(txid, record.attempt + 1), position, base)
        rows, after = proposal.batch if proposal.batch is not None else (None, position)
    attempt = record.attempt + 1
    again = replace(
        record,
        run_id=request.run_id,
        request=request.task_try,
        attempt=attempt,
        epoch=record.epoch + 1,
        op=stamp.op,
        phase=Phase.PROCESSING,
        base=base,
        rows_digest=digest(rows),
        tasks=dict(request.tasks),
        began=stamp.now,
        processed=None,
        error=None,
    )
    writes: tuple[Write, ...] = (
        Put(paths.transaction(txid), encode(again)),
        Put(paths.meta(txid), encode(Metadata(attempt, rows, after))),
        *(Delete(f"{paths.acks(txid)}/{name}") for name in started),
        Put(paths.acks(txid), b""),
    )
    return Decision(
        writes,
        Begun(
            TransactionAttempt(txid, attempt),
            rows,
            after,
            again.rows_digest,
            replay=True,
        ),
        paths.transaction(txid),
    )
