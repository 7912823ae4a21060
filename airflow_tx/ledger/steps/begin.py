"""The steps `open`, which creates the ledger of a topology, and `begin`, which gives a run an attempt.

Source: docs/protocol.md §§1, 3, 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_tx.base.errors import (
    Refused,
    SkippedTransaction,
    SourceKindChanged,
    SourceShapeChanged,
    TopologyClaimed,
    UnknownTransaction,
    UnreadableRecord,
)
from airflow_tx.ledger.answers import AlreadyCommitted, Begun, Done, Joined, NoData, WindowFull
from airflow_tx.ledger.api import Create, Paths, Put, Write
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.ledger.batch import (
    Batch,
    BeginRequest,
    DecidedBatch,
    Outside,
    PreviousBatch,
    TopologyRequest,
)
from airflow_tx.ledger.book import Book
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.reading import (
    Reader,
    RotatingTransactionalState,
    Unanswered,
    position_after,
    unmoved,
)
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import (
    Binding,
    Counter,
    Phase,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    Wish,
    encode,
)
from airflow_tx.ledger.steps import step
from airflow_tx.ledger.steps.loss import start_after
from airflow_tx.ledger.steps.processing import start
from airflow_tx.ledger.steps.replay import BeginPass, Restatement, begin_again, restating
from airflow_tx.ledger.steps.step import Decision, Stamp, is_committed

# --- begin --------------------------------------------------------------------------------------------------------


BeginAnswer = Begun | NoData | WindowFull | AlreadyCommitted


def begin(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: BeginRequest,
    outside: Outside,
    *,
    open_first: Callable[[], None],
) -> Decision[BeginAnswer]:
    """Begin a new transaction for the run, or the next attempt of its open transaction.

    A committed one stays unchanged.

    :param open_first: function that creates the ledger of the topology, or updates its record from the DAG.
    :raises StaleBegin, RunHeld, SkippedTransaction, TopologyClaimed: the ledger has not changed.
    """
    # Read with `find`, which requires that the record stays unchanged. A rename closes this record
    # and then copies all others, so a transaction that begins later would be lost.
    topology = read.find(TopologyRecord, paths.record)
    if topology is not None:
        check_claim(topology, paths, request.topology)
    if topology is None or not is_up_to_date(topology, request.topology):
        raise Unanswered("topology", request.topology, open_first)
    begins = BeginPass(read, stamp, paths, topology, request, outside)
    binding = None if request.key is None else read.find(Binding, paths.run(request.key))
    if binding is None:
        return _allocate(begins, None)
    txid = restating(read, paths, binding) or binding.txid
    record = read.find(TransactionRecord, paths.transaction(txid))
    if record is None:
        return _final(begins, binding)
    return begin_again(begins, record)


def _final(begins: BeginPass, binding: Binding) -> Decision[BeginAnswer]:
    paths = begins.paths
    txid = binding.txid
    if is_committed(begins.read, paths, txid):
        wish = begins.read.find(Wish, paths.wish(txid))
        if wish is None:
            return Decision(AlreadyCommitted(txid))
        return _allocate(begins, Restatement(binding, wish, _first_of(begins, txid)))
    skipped = begins.read.find(Skipped, paths.skipped(txid))
    if skipped is None:
        raise UnknownTransaction(what=f"record of transaction {txid}", path=paths.transaction(txid))
    if skipped.readmit is None:
        raise SkippedTransaction(topology=paths.topology, txid=txid)
    return _allocate(begins, _Readmission(txid, skipped))


def _first_of(begins: BeginPass, txid: int) -> int:
    """Return the transaction that begins the restatement's chain. Return 0 for other transactions, or if unknown."""
    line = Book(begins.read, begins.paths).line(txid) if begins.topology.book else None
    return 0 if line is None else line.first


@dataclass(frozen=True)
class _Readmission:
    """A skipped transaction whose rows a new transaction will process."""

    txid: int
    skipped: Skipped
    replaces: None = None
    wanted: None = None

    def batch(self, begins: BeginPass, attempt: TransactionAttempt) -> Batch:
        """Return the skipped transaction's batch, with the current content of its rows."""
        rows = self.skipped.rows
        return Batch(None, None) if rows is None else begins.current_batch(attempt, rows)

    def counted(self, begins: BeginPass) -> None:
        """Return None. The number of rows need not match, since the source may have lost rows."""

    def bound(self, txid: int, birth: str) -> Binding:
        """Return the new binding of the run to `txid`."""
        return Binding(txid)

    def writes(self, read: Reader, stamp: Stamp, paths: Paths, txid: int) -> tuple[Write, ...]:
        """Return the writes that record the readmission of the rows as `txid`."""
        done = replace(self.skipped, rows=None, readmitted_as=txid, op=stamp.op)
        writes: list[Write] = [Put(paths.skipped(self.txid), encode(done))]
        history = read.find(TransactionRecord, paths.history(self.txid))
        if history is not None:
            again = history.with_outcome(Outcome.READMITTED, readmitted_as=txid)
            writes.append(Put(paths.history(self.txid), encode(again)))
        return tuple(writes)


GivenBatch = _Readmission | Restatement
"""A batch with the rows of an earlier transaction. The rows are pinned, and the source's position stays unchanged."""


def _allocate(begins: BeginPass, given: GivenBatch | None) -> Decision[BeginAnswer]:
    """Allocate the next txid for the run, if `max_pending` allows it and the source has rows."""
    topology = begins.request.topology
    state = RotatingTransactionalState(begins.read, begins.paths)
    current = begins.read.peek(Counter, begins.paths.current).txid
    txid = state.last_txid + 1
    if txid < current:
        raise _set_back(begins.read, begins.paths, state.last_txid)
    if txid >= current + topology.max_pending:
        return Decision(WindowFull(current, state.last_txid, topology.max_pending))

    position = state.position_before(txid)
    if given is not None:
        batch = given.batch(begins, TransactionAttempt(txid, 1))
        return _allocated(begins, state, _pinned(begins, position, batch), given)

    start = start_after(begins.read, begins.paths, begins.topology, position)
    last = state.get_last_state()
    previous = None
    # After a repair that took back transactions, the last position is known, but not the last rows.
    if last is not None and last.rows is not None:
        previous = PreviousBatch(txid - 1, last.rows, is_open=txid > current)
    found = begins.next_batch(TransactionAttempt(txid, 1), start.position, previous)
    if found is None:
        return Decision(NoData(txid))
    # Replays of a transactional source have the same rows, so they do not need the first positions.
    keeps_begin = topology.partitioned and topology.source_kind != "transactional"
    decided = DecidedBatch(
        found.metadata,
        position_after(position, found.position, partitioned=topology.partitioned),
        base=digest(position),
        size=found.size,
        lost=start.passed(found.position),
        begin=found.start if keeps_begin else None,
    )
    return _allocated(begins, state, decided, run=found)


def _set_back(read: Reader, paths: Paths, found: int) -> UnreadableRecord:
    """Return the error for a counter that would repeat a txid. The error names the counter's correct value."""
    begun = read.get(Counter, paths.current).txid - 1
    last = max([begun, *map(int, read.names(paths.transactions))])
    reason = f"its last txid is {found}, and transaction {last} has begun"
    right = f"set {paths.allocated} '{encode(Counter(last)).decode()}'"
    return UnreadableRecord(path=paths.allocated, reason=f"{reason}, so zkCli.sh must {right}")


def _pinned(begins: BeginPass, position: Any, batch: Batch) -> DecidedBatch:
    """Return a batch with these rows, which leaves the source's position unchanged."""
    rows = batch.metadata
    partitioned = begins.request.topology.partitioned
    after = unmoved(position, rows, partitioned=partitioned)
    return DecidedBatch(
        rows,
        position_after(position, after, partitioned=partitioned),
        base=digest(position),
        size=batch.size,
    )


def _allocated(
    begins: BeginPass,
    state: RotatingTransactionalState,
    decided: DecidedBatch,
    given: GivenBatch | None = None,
    *,
    run: Batch | None = None,
) -> Decision[Begun]:
    """Return the writes for a new transaction: its record, its run's binding, its rows and its position.

    :param run: the batch that names the run, if the run does not exist yet.
    """
    read = begins.read
    stamp = begins.stamp
    paths = begins.paths
    request = begins.request
    txid = state.last_txid + 1
    meta, stored = state.get_state_or_create(txid, lambda _: decided.metadata(1))
    if not stored and read.exists(paths.transaction(txid)):
        raise _set_back(read, paths, state.last_txid)
    key = (
        request.key
        if request.key is not None
        else _new_key(read, paths, txid, run.key if run else "")
    )
    record = TransactionRecord(
        txid=txid,
        key=key,
        run_id=request.run_id or (run.run_id if run else "") or key,
        request=request.task_try,
        attempt=1,
        epoch=1,
        op=stamp.op,
        phase=Phase.PROCESSING,
        base=decided.base,
        ended=digest(meta.position),
        rows_digest=digest(decided.rows),
        tasks=dict(request.tasks),
        created=stamp.now,
        began=stamp.now,
        pinned=given is not None,
        size=decided.size,
        counted=None if given is None else given.counted(begins),
        lost=list(decided.lost),
        birth=stamp.op,
        acks=step.acks_of(stamp, txid, 1),
        replaces=None if given is None else given.replaces,
        wish=None if given is None else given.wanted,
    )
    writes = (
        Put(paths.allocated, encode(Counter(txid))),
        Create(paths.run(key), encode(Binding(txid)))
        if given is None
        else Put(paths.run(key), encode(given.bound(txid, record.birth))),
        *stored,
        Create(paths.transaction(txid), encode(record)),
        Create(paths.acks(record.acks), b""),
        *(given.writes(read, stamp, paths, txid) if given is not None else ()),
    )
    life = begins.topology.incarnation
    return Decision(
        Begun.of(record, decided.rows, meta.position, life), writes, paths.transaction(txid)
    )


def _new_key(read: Reader, paths: Paths, txid: int, named: str) -> str:
    """Return the run_id and the key for a run that does not exist yet.

    The source may name both. Otherwise the name is `tx-<txid>`, with a suffix if that name is taken.

    :raises UnreadableRecord: the batch that the source names already has a transaction, but the position omits it.
    """
    key = named or f"tx-{txid}"
    number = 1
    while (binding := read.find(Binding, paths.run(key), new=True)) is not None:
        if named:
            reason = f"transaction {binding.txid} has this batch, but the position of the source leaves it out"
            raise UnreadableRecord(path=paths.run(key), reason=reason)
        number += 1
        key = f"tx-{txid}-{number}"
    return key


def open_topology(
    read: Reader, stamp: Stamp, paths: Paths, request: TopologyRequest
) -> Decision[Done]:
    """Create the ledger of a topology, or update its record from the DAG.

    :raises TopologyClaimed: another DAG uses the name.
    :raises SourceKindChanged: the kind of the source changed while transactions are open.
    :raises SourceShapeChanged: the stored position does not fit a source of this shape.
    """
    topology = read.find(TopologyRecord, paths.record)
    if topology is None:
        folders = [Create(path, b"") for path in paths.folders]
        counters = [
            Create(paths.current, encode(Counter(1))),
            Create(paths.allocated, encode(Counter(0))),
        ]
        record = Create(paths.record, encode(request.made(stamp.op)))
        return Decision(Done(), (*folders, *counters, record), paths.record)
    check_claim(topology, paths, request)
    if (topology.source_kind, topology.partitioned) != (request.source_kind, request.partitioned):
        allocated = read.get(Counter, paths.allocated)
        _check_source(read, paths, topology, request, allocated.txid)
    book = topology.book
    if request.keeps_book and not book:
        book = read.get(Counter, paths.current).txid
    changed = replace(
        topology,
        source_kind=request.source_kind,
        partitioned=request.partitioned,
        max_pending=request.max_pending,
        zone=request.zone,
        book=book,
        upstream=request.upstream,
        op=stamp.op,
    )
    return step.put(paths.record, changed, Done())


def missing_folders(read: Reader, paths: Paths) -> list[Write]:
    """Return the writes that create the missing folders of the ledger."""
    return [Create(path, b"") for path in paths.folders if not read.exists(path)]


def is_up_to_date(topology: TopologyRecord, request: TopologyRequest) -> bool:
    """Return whether the topology record has the same values as the DAG."""
    found = (topology.source_kind, topology.max_pending, topology.partitioned, topology.zone)
    said = (request.source_kind, request.max_pending, request.partitioned, request.zone)
    # Once a book of ends has begun, the ledger keeps it, even if the topology no longer has a
    # table.
    has_book = topology.book > 0 or not request.keeps_book
    return found == said and has_book and topology.upstream == request.upstream


def check_claim(topology: TopologyRecord, paths: Paths, request: TopologyRequest) -> None:
    """Raise an error if another DAG uses the topology's name.

    :raises TopologyClaimed: another DAG uses the name. The error names this DAG.
    """
    if topology.dag_id != request.dag_id:
        raise TopologyClaimed(topology=paths.topology, owner=topology.dag_id, dag_id=request.dag_id)


def _check_source(
    read: Reader, paths: Paths, topology: TopologyRecord, request: TopologyRequest, allocated: int
) -> None:
    if topology.partitioned != request.partitioned and allocated:
        raise SourceShapeChanged(
            topology=paths.topology,
            found="partitions" if topology.partitioned else "no partitions",
            expected="them" if request.partitioned else "none",
        )
    current = read.get(Counter, paths.current)
    if allocated >= current.txid:
        raise SourceKindChanged(
            topology=paths.topology,
            found=topology.source_kind,
            expected=request.source_kind,
            first=current.txid,
            last=allocated,
        )


# --- joined -------------------------------------------------------------------------------------------------------
# Steps that follow each other in one process share one multi. Source: docs/protocol.md §2.
#
# Each step sees the records that the previous step will write, and decides as if it ran alone. The
# multi requires all records that the steps read, so no other step can run between them. If the
# second step refuses, needs an external query or writes nothing, the multi omits it. It must then
# run alone, and reports the reason.


T = TypeVar("T")
U = TypeVar("U")

BoundStep = Callable[[Reader, Stamp, Paths], Decision[T]]
"""A step together with its arguments."""


def in_one_multi(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    first: BoundStep[T],
    then: Callable[[T], BoundStep[U] | None],
) -> Decision[Joined[T, U]]:
    """Decide a step, then the step that `then` returns for its answer. Both share one multi.

    :raises Refused, UnreadableRecord: the first step raises it.
    """
    one = first(read, stamp, paths)
    if not one.writes:
        return Decision(Joined(one.result), one.writes, one.proof)
    read.apply(one.writes)
    two = _following(read, stamp, paths, then(one.result))
    if two is None or not two.writes:
        return Decision(Joined(one.result), one.writes, one.proof)
    return Decision(Joined(one.result, two.result), (*one.writes, *two.writes), one.proof)


def _following(
    read: Reader, stamp: Stamp, paths: Paths, step: BoundStep[U] | None
) -> Decision[U] | None:
    try:
        return None if step is None else step(read, stamp, paths)
    except (Refused, UnreadableRecord, Unanswered):
        return None


def begin_started(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: BeginRequest,
    outside: Outside,
    *,
    open_first: Callable[[], None],
    task: TaskTry,
) -> Decision[BeginAnswer]:
    """Decide `begin` together with the start of the new transaction's first task, in one multi.

    Raises the errors of `begin`.
    """
    begun = begin(read, stamp, paths, request, outside, open_first=open_first)
    if not isinstance(begun.result, Begun):
        return begun
    read.apply(begun.writes)
    started = start(read, stamp, paths, begun.result.attempt, task, is_current=outside.is_current)
    return replace(begun, writes=(*begun.writes, *started.writes))
