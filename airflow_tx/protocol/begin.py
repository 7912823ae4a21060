"""The step `begin`: a run's identity becomes an attempt of a transaction. Source: docs/protocol.md §§3, 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_tx.errors import SkippedTransaction, UnknownTransaction
from airflow_tx.protocol import garbage
from airflow_tx.protocol.answers import (
    AlreadyCommitted,
    Begun,
    NeedBatch,
    NeedCurrent,
    NeedRows,
    NeedRunState,
    NeedTopology,
    NoData,
    WindowFull,
)
from airflow_tx.protocol.api import Create, Put, Write
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.batch import Batches, BeginRequest
from airflow_tx.protocol.loss import start_after
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import (
    Binding,
    Counter,
    History,
    Metadata,
    Outcome,
    Phase,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    digest,
    encode,
)
from airflow_tx.protocol.replay import BeginPass, begin_again, decided_anew
from airflow_tx.protocol.rotating_state import RotatingTransactionalState, position_after, unmoved
from airflow_tx.protocol.step import Decision, Stamp, is_committed
from airflow_tx.protocol.topology import check_claim, is_up_to_date

BeginAnswer = (
    Begun | NoData | WindowFull | AlreadyCommitted | NeedTopology | NeedBatch | NeedRows | NeedRunState | NeedCurrent
)


def begin(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: BeginRequest,
    batches: Batches,
    run_states: Mapping[str, str | None],
    current: Mapping[str, bool],
) -> Decision[BeginAnswer]:
    """Give the run its transaction: a new txid, the next attempt of its own, or the answer that it is committed.

    :param batches: what the source has said to the questions of this step, by their keys.
    :param current: per try found in the ledger, whether the asking one was its task's current one after that.
    :raises StaleBegin, RunHeld, SkippedTransaction, TopologyClaimed: and nothing has changed.
    """
    topology = read.peek_if_any(TopologyRecord, paths.record)
    if topology is None:
        return Decision(NeedTopology())
    check_claim(topology, paths, request.topology)
    if not is_up_to_date(topology, request.topology):
        return Decision(NeedTopology())
    begins = BeginPass(read, stamp, paths, topology, request, batches)
    binding = None if request.key is None else read.find(Binding, paths.run(request.key))
    if binding is None:
        return _allocate(begins, None)
    record = read.find(TransactionRecord, paths.transaction(binding.txid))
    if record is None:
        return _final(begins, binding.txid)
    return begin_again(begins, run_states, current, binding.txid, record)


def _final(begins: BeginPass, txid: int) -> Decision[BeginAnswer]:
    read, paths = begins.read, begins.paths
    if is_committed(read, paths, txid):
        return Decision(AlreadyCommitted(txid))
    skipped = read.find(Skipped, paths.skipped(txid))
    if skipped is None:
        raise UnknownTransaction(what=f"record of transaction {txid}", path=paths.transaction(txid))
    if skipped.readmit is None:
        raise SkippedTransaction(topology=paths.topology, txid=txid)
    return _allocate(begins, _Readmission(txid, skipped))


@dataclass(frozen=True)
class _Readmission:
    """The skipped transaction whose rows are taken again."""

    txid: int
    skipped: Skipped

    def writes(self, read: Reader, stamp: Stamp, paths: Paths, txid: int) -> tuple[Write, ...]:
        """Return the writes that make it `txid`, once and for all."""
        done = replace(self.skipped, rows=None, readmitted_as=txid, op=stamp.op)
        writes: list[Write] = [Put(paths.skipped(self.txid), encode(done))]
        history = read.find(History, paths.history(self.txid))
        if history is not None:
            again = replace(history, outcome=Outcome.READMITTED, readmitted_as=txid)
            writes.append(Put(paths.history(self.txid), encode(again)))
        return tuple(writes)


def _allocate(begins: BeginPass, readmission: _Readmission | None) -> Decision[BeginAnswer]:
    read, stamp, paths, request = begins.read, begins.stamp, begins.paths, begins.request
    current = read.peek(Counter, paths.current)
    state = RotatingTransactionalState(read, paths)
    txid = state.last_txid + 1
    if not txid < current.txid + request.topology.max_pending:
        return Decision(WindowFull(current.txid, state.last_txid, request.topology.max_pending))
    last = state.get_last_state()
    position, partitioned = None if last is None else last.position, request.topology.partitioned
    start, size, taken_up = start_after(read, paths, begins.topology, position), None, None
    if readmission is not None:
        rows = readmission.skipped.rows
        if rows is not None:
            rows = decided_anew(TransactionAttempt(txid, 1), rows, begins.batches)
            if isinstance(rows, NeedRows):
                return Decision(rows)
        after = unmoved(position, rows, partitioned=partitioned)
    else:
        need = NeedBatch(TransactionAttempt(txid, 1), start.position)
        if need.key not in begins.batches:
            return Decision(need)
        batch = begins.batches[need.key]
        if batch is None:
            return Decision(NoData(txid))
        rows, after, size = batch.metadata, batch.position, batch.size
        if partitioned and request.topology.source_kind != "transactional":  # else its replays have the same rows
            taken_up = batch.start
    meta, stored = state.get_state_or_create(
        txid, lambda before: Metadata(1, rows, position_after(before, after, partitioned=partitioned), begin=taken_up)
    )
    key = request.key if request.key is not None else _unused_key(read, paths, txid)
    record = TransactionRecord(
        key=key,
        run_id=request.run_id or key,
        request=request.task_try,
        attempt=1,
        epoch=1,
        op=stamp.op,
        phase=Phase.PROCESSING,
        base=digest(position),
        ended=digest(meta.position),
        rows_digest=digest(rows),
        tasks=dict(request.tasks),
        created=stamp.now,
        began=stamp.now,
        pinned=readmission is not None,
        size=size,
        lost=[] if readmission is not None else start.passed(after),
        birth=stamp.op,
        acks=garbage.acks_of(stamp, txid, 1),
    )
    binding = encode(Binding(txid))
    writes = (
        Put(paths.allocated, encode(Counter(txid))),
        Put(paths.run(key), binding) if readmission is not None else Create(paths.run(key), binding),
        *stored,
        Create(paths.transaction(txid), encode(record)),
        Create(paths.acks(txid, record.acks), b""),
        *(readmission.writes(read, stamp, paths, txid) if readmission is not None else ()),
    )
    return Decision(Begun.of(txid, record, rows, meta.position), writes, paths.transaction(txid))


def _unused_key(read: Reader, paths: Paths, txid: int) -> str:
    """Name a run `tx-<txid>`, unless a run that a person started is called so."""
    key, number = f"tx-{txid}", 1
    while read.find(Binding, paths.run(key)) is not None:
        number += 1
        key = f"tx-{txid}-{number}"
    return key
