"""The step `begin` for an open transaction, and the steps that request a restatement.

The transaction gets its next attempt, or continues the current one.

Users may request that the next attempt decide its rows again, or that a committed transaction be restated. Source:
docs/protocol.md §§3, 5, 11.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import structs

from airflow_tx.base.errors import (
    ChangeRefused,
    NotTakenBack,
    RestateRefused,
    RunHeld,
    StaleBegin,
    UnknownTxid,
)
from airflow_tx.base.remedy import Command, Remedy, shortened_reason
from airflow_tx.ledger.answers import AlreadyCommitted, AlreadySkipped, Begun, Done
from airflow_tx.ledger.api import Create, Delete, Paths, Put, Store, Write, txids_below
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.batch import (
    Batch,
    BeginRequest,
    DecidedBatch,
    Outside,
    PreviousBatch,
    RestatedBatch,
)
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.life import Life, name_now
from airflow_tx.ledger.reading import (
    Reader,
    RotatingTransactionalState,
    position_after,
    records_at,
    repairs_of,
    unmoved,
)
from airflow_tx.ledger.receipt import REPLAYS_KEPT, Deed, Receipt, Replaced, Replayed
from airflow_tx.ledger.records import (
    MOST_OF_REASON,
    BatchRows,
    Binding,
    Counter,
    Phase,
    Restating,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    Wish,
    encode,
)
from airflow_tx.ledger.steps import step
from airflow_tx.ledger.steps.end import held_for_good, open_record
from airflow_tx.ledger.steps.loss import start_after
from airflow_tx.ledger.steps.processing import counted_of
from airflow_tx.ledger.steps.roll_forward import Rolling, begin_roll_forward
from airflow_tx.ledger.steps.step import (
    Audit,
    Decision,
    Stamp,
    next_repair,
    put,
    taken_back_before,
)

# --- replay -------------------------------------------------------------------------------------------------------


ReplayAnswer = AlreadyCommitted | Begun
LIVE_RUN_STATES = frozenset({"queued", "running"})


@dataclass(frozen=True)
class BeginPass:
    """One pass of the step `begin`. The topology record is already up to date with the DAG."""

    read: Reader
    stamp: Stamp
    paths: Paths
    topology: TopologyRecord
    request: BeginRequest
    outside: Outside

    def next_batch(
        self, attempt: TransactionAttempt, position: Any, previous: PreviousBatch | None = None
    ) -> Batch | None:
        """Query the source for the batch after a position. Return None if the source has no rows.

        :param previous: the previous batch; None for the first batch or a replay.
        """
        about = f"{attempt.txid} from {digest(position)}"
        ask = partial(self.outside.next_batch, attempt, position, previous)
        return self.read.ask("batch", about, ask)

    def current_batch(self, attempt: TransactionAttempt, metadata: Any) -> Batch:
        """Query the source for the current metadata of the same rows, and for their number if it can count them.

        :param metadata: the metadata from the source's earlier decision.
        :return: a batch without a position, since the position stays the same.
        """
        about = f"{attempt.txid} instead of {digest(metadata)}"
        ask = partial(self.outside.decide_again, attempt, metadata)
        again: Any = self.read.ask("batch", about, ask)
        return again if isinstance(again, Batch) else Batch(again, None)


def begin_again(begins: BeginPass, record: TransactionRecord) -> Decision[ReplayAnswer]:
    """Begin the next attempt of an open transaction, or continue the current attempt if Airflow retried `begin`.

    Only a restatement's own run can replay it, unless that run was deleted.

    :raises StaleBegin, RunHeld: the ledger has not changed.
    """
    txid = record.txid
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
            # For any other run with the same key, the answer is that the restated transaction is
            # committed.
            return Decision(AlreadyCommitted(record.replaces.txid))
        if state in LIVE_RUN_STATES:
            raise RunHeld(run_id=request.run_id, txid=txid, holder=record.run_id, state=state)
    started = read.names(begins.paths.acks(record.acks))
    same = record.request == request.task_try
    # If the request is "", the transaction was allocated before its run existed. A blocked
    # transaction gets a new attempt even then, which unblocks it.
    is_blocked = begins.topology.is_blocked(txid)
    again = request.retry or (record.request == "" and not is_blocked)
    if same or (again and not started and record.phase is Phase.PROCESSING):
        return _continue(begins, record)
    # The source needs no report for a restatement, since it learned the outcome when the rows were
    # first committed.
    if record.replaces is None:
        own = TransactionAttempt(txid, record.attempt, record.birth)
        rows = RotatingTransactionalState(read, begins.paths).get_state(txid).rows
        read.ask("failure", own, partial(outside.report, own, rows, _why_replayed(record)))
    return _next_attempt(begins, record, started)


def _continue(begins: BeginPass, record: TransactionRecord) -> Decision[ReplayAnswer]:
    stamp = begins.stamp
    request = begins.request
    meta = RotatingTransactionalState(begins.read, begins.paths).get_state(record.txid)
    of_run = replace(record, run_id=request.run_id)
    result = Begun.of(of_run, meta.rows, meta.position, begins.topology.incarnation)
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
        # The recorded replay has led to this `begin`, so the time-out starts now.
        again = replace(again, began=stamp.now, replay=None)
    return put(begins.paths.transaction(record.txid), again, result)


def _next_attempt(
    begins: BeginPass, record: TransactionRecord, started: tuple[str, ...]
) -> Decision[ReplayAnswer]:
    txid = record.txid
    read = begins.read
    stamp = begins.stamp
    paths = begins.paths
    request = begins.request
    state = RotatingTransactionalState(read, paths)
    attempt = TransactionAttempt(txid, record.attempt + 1)
    topology = request.topology
    stays = record.pinned or topology.source_kind == "transactional" or topology.keeps_range
    decided = (
        _same_rows(begins, state, attempt, record) if stays else _other_rows(begins, state, attempt)
    )
    again = replace(
        record.without_failure(),
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
        acks=step.acks_of(stamp, txid, attempt.attempt),
        replays=[*map(_earlier, record.replays), _replayed(record, stamp)][-REPLAYS_KEPT:],
        receipt=None,
        journal=None,
        checks=record.accepted_checks,
    )
    writes: tuple[Write, ...] = (
        Put(paths.transaction(txid), encode(again)),
        state.override_state(txid, decided.metadata(again.attempt)),
        Create(paths.acks(again.acks), b""),
        *step.removed(read, stamp, paths, paths.acks(record.acks), started),
    )
    life = begins.topology.incarnation
    return Decision(
        Begun.of(again, decided.rows, decided.position, life), writes, paths.transaction(txid)
    )


def _same_rows(
    begins: BeginPass,
    state: RotatingTransactionalState,
    attempt: TransactionAttempt,
    record: TransactionRecord,
) -> DecidedBatch:
    """Return the rows of the previous attempt, or their current content if that was requested."""
    meta = state.get_state(attempt.txid)
    rows = meta.rows
    size = record.size
    if to_decide_anew(record, rows, always=begins.request.topology.keeps_range):
        current = begins.current_batch(attempt, rows)
        rows = current.metadata
        size = current.size or size
    kept = DecidedBatch(rows, meta.position, record.base, size, record.lost, meta.begin)
    if not record.pinned:
        return kept

    # Readmitted rows do not change the position, but the previous transaction may now end at a
    # different position.
    partitioned = begins.request.topology.partitioned
    before = state.position_before(attempt.txid)
    after = position_after(
        before, unmoved(before, rows, partitioned=partitioned), partitioned=partitioned
    )
    return replace(kept, position=after, base=digest(before))


def _other_rows(
    begins: BeginPass, state: RotatingTransactionalState, attempt: TransactionAttempt
) -> DecidedBatch:
    """Return the batch that an opaque source decides again, from the current end of the previous transaction."""
    partitioned = begins.request.topology.partitioned
    before = state.position_before(attempt.txid)
    # A partition without an earlier position begins at the same place as in the previous attempt.
    taken_up = state.get_state(attempt.txid).begin or {}
    begin = {name: place for name, place in taken_up.items() if name not in (before or {})}
    origin = {**begin, **(before or {})} if begin else before
    start = start_after(begins.read, begins.paths, begins.topology, origin)
    batch = begins.next_batch(attempt, start.position)
    if batch is None:
        # An empty batch does not move past lost rows.
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


def _replayed(record: TransactionRecord, stamp: Stamp) -> Replayed:
    """Return the receipt's facts about a replayed attempt: when, why, its size, and the user who replayed it."""
    by = None
    if (asked := record.asked) is not None and asked.attempt == record.attempt:
        by = Deed(asked.who, asked.when, shortened_reason(asked.why))
    return Replayed(
        record.attempt,
        stamp.now,
        shortened_reason(_why_replayed(record), MOST_OF_REASON),
        **_counted(record),
        by=by,
    )


def _counted(record: TransactionRecord) -> dict[str, Any]:
    """Return an attempt's number of rows, or the source's count if the tasks did not count them."""
    size = {unit: count for unit, count in (record.size or {}).items() if unit != "why"}
    counted = (
        None if record.receipt is None else record.receipt.rows,
        record.counted.rows if record.counted is not None and record.processed else None,
        None if size.get("at_most") else size.get("rows"),
    )
    rows = [each for each in counted if each is not None]
    return {"rows": rows[0]} if rows else {"size": size}


def _earlier(replayed: Replayed) -> Replayed:
    """Shorten the reason for an earlier replay, so that records stay small.

    Only the newest replay keeps the full reason.
    """
    return replace(replayed, why=shortened_reason(replayed.why))


def _why_replayed(record: TransactionRecord) -> str:
    asked = record.replay
    reason = asked.reason if asked is not None and asked.attempt == record.attempt else ""
    return record.said or reason or "its run was cleared"


# --- the corrected file ------------------------------------------------------------------------------------------
# A user requests that the source decide the same rows again, with their current content. The
# position after the batch does not change, so later transactions stay valid.


def note_changed(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    txid: int,
    states: Mapping[str, bool | None],
    *,
    audit: Audit,
) -> Decision[Done | AlreadySkipped]:
    """Fail the current attempt, and record that the next attempt processes the current content of its rows.

    :param states: see `held_for_good`.
    :raises ChangeRefused: a state that cannot undo the transaction may have its output.
    :raises AlreadyFinal, UnknownTransaction: the transaction is not open.
    """
    record = open_record(read, paths, txid)
    if record is None:
        return Decision(AlreadySkipped(txid))
    if record.to_change is not None:
        return Decision(Done())
    check_changeable(paths, record, states)
    noted = audit.noted_of(stamp, record.attempt)
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
    paths: Paths, record: TransactionRecord, states: Mapping[str, bool | None]
) -> None:
    """Raise an error if the rows of a transaction cannot be decided again.

    Every state that has its values must be able to undo them.

    :raises ChangeRefused: a state cannot undo them.
    """
    held = held_for_good(record, states)
    if record.to_change is None and held:
        raise ChangeRefused(
            txid=record.txid,
            topology=paths.topology,
            problem=f"it may be in state {', '.join(held)} already, which cannot undo it",
            remedy="Give the source its earlier rows back, and replay it without --changed-rows until it is "
            "committed",
        )


def to_decide_anew(record: TransactionRecord, rows: Any, *, always: bool = False) -> bool:
    """Return whether a replay must decide the rows again. This is False for a transaction that will be skipped.

    :param always: whether every attempt decides its rows again. An example is a range, in which different transactions
        may count now.
    """
    wanted = always or record.to_change is not None
    return wanted and record.skip is None and rows is not None


# --- wish ---------------------------------------------------------------------------------------------------------
# A user requests the restatement of a committed transaction. Source: docs/protocol.md §11.


@dataclass(frozen=True)
class WishRequest:
    """A user's request to restate a transaction.

    :param key: the run key, as in the journal entry or the history. It must have a binding to the transaction.
    :param run_id: the run_id, as in the same record.
    :param states: the states to which the transaction contributed, by their current names.
    :param first_day: the first day for which the journal keeps entries, such as 2013-01-01; "" if it keeps all entries.
    """

    txid: int
    key: str
    run_id: str
    states: tuple[str, ...] = ()
    changed_rows: bool = False
    first_day: str = ""


# --- want, withdraw ----------------------------------------------------------------------------------------------


def want(
    read: Reader, stamp: Stamp, paths: Paths, request: WishRequest, audit: Audit
) -> Decision[Wish]:
    """Record a request to restate a committed transaction. The next `begin` of its run restates it.

    :raises RestateRefused: the transaction cannot be restated.
    :raises UnknownTxid: the txid was never allocated.
    """
    topology = read.get(TopologyRecord, paths.record)
    binding = _counting(read, paths, request)
    _check_entry(paths, request, binding)
    check_held(read, paths, topology, request.txid, request.states)
    path = paths.wish(request.txid)
    found = read.find(Wish, path)
    if found is not None:
        raise _refused(
            paths,
            request.txid,
            "a person has requested its restatement already",
            "To continue that: ",
            Command.of("restate", "{topology}", "--why", "TEXT"),
            ". To take it back: ",
            Command.of("restate", "{topology}", "{txid}", "--withdraw"),
        )
    wish = Wish(
        request.txid,
        request.key,
        request.run_id,
        **structs.asdict(audit.noted(stamp)),
        op=stamp.op,
        changed_rows=request.changed_rows,
    )
    folder = () if read.exists(paths.wishes) else (Create(paths.wishes, b""),)
    return Decision(wish, (*folder, Create(path, encode(wish))), path)


def begin_roll_forward_with_wishes(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    found: Mapping[str, int],
    audit: Audit,
    *,
    holes: Mapping[str, Collection[int]] | None = None,
    wanted: Sequence[WishRequest] = (),
) -> Decision[Rolling]:
    """Run `begin_roll_forward`, and request restatements of the transactions whose rows are in no journal entry.

    :param wanted: requests for these transactions. An existing request for the same transaction stays.
    :raises RestateRefused: a transaction cannot be restated. Nothing is recorded.
    """
    begun = begin_roll_forward(read, stamp, paths, found, audit, holes=holes)
    # Each request creates the folder of requests if it is missing. Keep only one write per path.
    noted = {
        each.path: each
        for request in wanted
        if not read.exists(paths.wish(request.txid))
        for each in want(read, stamp, paths, request, audit).writes
    }
    return replace(begun, writes=(*begun.writes, *noted.values()))


def withdraw(read: Reader, stamp: Stamp, paths: Paths, txid: int) -> Decision[Done]:
    """Withdraw a request for a restatement, if no run has begun the restatement.

    :raises RestateRefused: there is no such request, or a run has already begun the restatement.
    """
    topology = read.get(TopologyRecord, paths.record)
    path = paths.wish(txid)
    wish = read.find(Wish, path)
    if wish is None:
        raise _refused(
            paths,
            txid,
            "no one asked for it, or its restatement has begun",
            Command.of("list", "{topology}"),
            " names that transaction; to leave it out: ",
            Command.of("skip", "{topology}", "TXID", "--why", "TEXT"),
        )
    # The request is deleted, so the topology record keeps the nonce that identifies this step.
    noted = Put(paths.record, encode(replace(topology, op=stamp.op)))
    return Decision(Done(), (Delete(path), noted), paths.record)


def wishes(store: Store, paths: Paths) -> tuple[Wish, ...]:
    """Read the requested restatements that no run has begun, by txid."""
    wished = {txid: paths.wish(txid) for txid in txids_below(store, paths.wishes)}
    return tuple(records_at(Reader(store), Wish, wished).values())


def entries_in_use(read: Reader, paths: Paths) -> set[str]:
    """Return the names of the journal entries that open or requested restatements replace."""
    found = set[str]()
    # Read the requests first, since a request may become an open transaction during the read.
    for name in read.names_if_any(paths.wishes):
        wish = read.peek_if_any(Wish, paths.wish(int(name)))
        binding = None if wish is None else read.peek_if_any(Binding, paths.run(wish.key))
        if binding is not None:
            found.add(binding.entry)
    for name in read.names(paths.transactions):
        record = read.peek_if_any(TransactionRecord, paths.transaction(int(name)))
        if record is not None and record.replaces is not None:
            found.add(record.replaces.entry)
    return found


def wishes_to_start(
    wished: Sequence[Wish],
    opened: Mapping[int, TransactionRecord],
    states: Mapping[str, str | None],
    *,
    limit: int,
) -> tuple[Wish, ...]:
    """Return the requests whose runs may start now, by txid.

    At least one slot of `max_pending` stays free for new batches.

    :param states: Airflow state of each run, by run_id. Requests without a run in `states` are left out.
    :param limit: maximum number of restatements that are open at the same time.
    """
    begun = sum(record.replaces is not None for record in opened.values())
    waiting = [wish for wish in wished if wish.run_id in states]
    live = [wish for wish in waiting if states[wish.run_id] in LIVE_RUN_STATES]
    rest = [wish for wish in waiting if wish not in live]
    return tuple(rest[: max(limit - begun - len(live), 0)])


def most_restated(max_pending: int) -> int:
    """Return the maximum number of open restatements."""
    return max(max_pending - 1, 1)


def restating(read: Reader, paths: Paths, binding: Binding) -> int | None:
    """Return the open transaction that restates the transaction of a binding. Return None if there is none.

    A rebuilt ledger can repeat a txid, but never a birth.
    """
    noted = binding.restating
    record = None
    if noted is not None:
        record = read.find(TransactionRecord, paths.transaction(noted.txid))
    if noted is None or record is None or record.birth != noted.birth:
        return None
    return noted.txid


def check_held(
    read: Reader,
    paths: Paths,
    topology: TopologyRecord,
    txid: int,
    states: Collection[str],
    *,
    wanted: bool = False,
) -> None:
    """Raise an error if a state may lack the transaction that will be restated.

    :param states: the states to which the transaction contributed.
    :param wanted: whether a restatement is already requested. If so, the remedy is to withdraw the request.
    :raises RestateRefused: a state was lost after the transaction, or the ledger was rebuilt.
    """
    repairs = repairs_of(read, paths)
    for state in sorted(states):
        problem = Life.of(state, topology, repairs).cannot_restate(txid)
        if problem:
            remedy = _TO_WITHDRAW if wanted else _FROM_THE_BEGINNING
            raise _refused(paths, txid, problem, *remedy)


def check_still_held(
    read: Reader,
    paths: Paths,
    txid: int,
    replaced: int,
    taken_back: Mapping[str, str],
    *,
    own: Mapping[str, Receipt],
) -> None:
    """Raise an error if a state has lost the replaced transaction or was renamed since the restatement began.

    :param txid: the restatement.
    :param replaced: the transaction that counts.
    :param taken_back: the states from which the contribution is removed, by their names at `replaced`.
    :param own: the receipt of `replaced` in each state that has one.
    :raises NotTakenBack: a state may lack the transaction. The error names this state.
    """
    topology = read.get(TopologyRecord, paths.record)
    repairs = repairs_of(read, paths)
    for named, state in sorted(taken_back.items()):
        now = name_now(repairs, named, replaced)
        kept = {replaced: own[state]} if state in own else None
        if now != state or Life.of(now, topology, repairs, own=kept).cannot_restate(replaced):
            raise NotTakenBack(
                state=now,
                problem=f"it may lack transaction {replaced}: since transaction {txid} began, a repair has accepted "
                "what it holds, or its name was given to another state",
                remedy=(
                    f"Transaction {replaced} still counts. To leave {txid} out: "
                    + Command.of("skip", paths.topology, txid, "--why", "TEXT")
                ),
            )


def held_at(
    read: Reader,
    paths: Paths,
    topology: TopologyRecord,
    taken_back: Mapping[str, str],
    sole: Collection[str] = (),
) -> str:
    """Return a digest of the facts on which a difference depends: the states' columns and the number of repairs.

    If the digest changes, a column was dropped or values were changed by hand. The committer must then recompute the
    difference.

    :param taken_back: see `check_still_held`.
    :param sole: states that were queried for keys that only this transaction contributed to.
    """
    columns = {state: topology.columns.get(state) for state in taken_back.values()}
    last = {state: topology.states.get(state) for state in sole}
    return digest([columns, next_repair(read, paths), last])


def _counting(read: Reader, paths: Paths, request: WishRequest) -> Binding:
    """Read the binding of a run whose transaction will be restated.

    :raises RestateRefused: the transaction does not count, or is not final.
    """
    txid = request.txid
    current = read.peek(Counter, paths.current).txid
    if not 0 < txid <= read.peek(Counter, paths.allocated).txid:
        raise UnknownTxid(txid=txid, topology=paths.topology, path=paths.transactions)
    skipped = read.find(Skipped, paths.skipped(txid))
    if skipped is not None and skipped.replaces is not None:
        counts = f"it restated transaction {skipped.replaces}, and was skipped"
        raise _refused(paths, txid, counts, *_restate_that(skipped.replaces))
    if skipped is not None:
        readmit = Command.of("readmit", "{topology}", "{txid}", "--why", "TEXT")
        raise _refused(paths, txid, "it was skipped", "To get it back: ", readmit)
    if txid >= current:
        replay = Command.of("replay", "{topology}", "{txid}")
        raise _refused(paths, txid, "it is open", "To process it again: ", replay)
    if txid in taken_back_before(read, paths):
        remedy = "To count its rows again, clear its run. To find the run: "
        listed = Command.of("list", "{topology}")
        raise _refused(paths, txid, "repair --back has taken it back", remedy, listed)
    binding = read.find(Binding, paths.run(request.key))
    if binding is None or (binding.txid != txid and not binding.entry):
        problem = f"run {request.key!r} is no longer bound to it, because the ledger was rebuilt"
        raise _refused(paths, txid, problem, *_RESET)
    if binding.txid != txid:
        problem = f"transaction {binding.txid} has replaced it"
        raise _refused(paths, txid, problem, *_restate_that(binding.txid))
    other = restating(read, paths, binding)
    if other is not None:
        problem = f"transaction {other} restates it already"
        skip = Command.of("skip", "{topology}", other, "--why", "TEXT")
        raise _refused(paths, txid, problem, "Wait until that one is committed, or skip it: ", skip)
    return binding


def _check_entry(paths: Paths, request: WishRequest, binding: Binding) -> None:
    if not binding.entry:
        problem = "the journal has no entry for it: the DAG kept no journal when it was committed"
        raise _refused(paths, request.txid, problem, *_RESET)
    if binding.entry < request.first_day:
        problem = f"its journal entry {binding.entry} is older than the `journal` option of the DAG allows"
        raise _refused(paths, request.txid, problem, *_RESET)


_FROM_THE_BEGINNING = (
    "To start from the beginning: ",
    Command.of("repair", "{topology}", "--reset", "--why", "TEXT"),
)
_TO_WITHDRAW = ("To withdraw it: ", Command.of("restate", "{topology}", "{txid}", "--withdraw"))
_RESET = ("Its contribution cannot be taken back. ", *_FROM_THE_BEGINNING)


def _restate_that(txid: int) -> tuple[str | Command, ...]:
    return "Restate that transaction instead: ", Command.of(
        "restate", "{topology}", txid, "--why", "TEXT"
    )


def _refused(paths: Paths, txid: int, problem: str, *remedy: str | Command) -> RestateRefused:
    """Return the error for a restatement that is refused.

    :param remedy: parts of the remedy, with placeholders.
    """
    named = {"txid": txid, "topology": paths.topology}
    return RestateRefused(**named, problem=problem, remedy=Remedy(remedy).filled(named))


# --- what `begin` makes of it ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restatement:
    """The restatement of a committed transaction. It processes the transaction's batch again.

    :param first: the transaction that begins the chain; 0 if that is the restated transaction.
    """

    binding: Binding
    wish: Wish
    first: int = 0

    @property
    def replaces(self) -> Replaced:
        """The replaced transaction, in the form of the record."""
        return Replaced(self.binding.txid, self.binding.entry, self.first)

    @property
    def wanted(self) -> Deed:
        """Who requested the restatement, when and why."""
        return Deed(self.wish.who, self.wish.when, self.wish.why)

    def batch(self, begins: BeginPass, attempt: TransactionAttempt) -> Batch:
        """Return the batch of the journal entry, with the current content of its rows if that was requested.

        :raises RestateRefused: the contribution cannot be removed from the states.
        """
        txid = self.binding.txid
        found = self._entry(begins)
        check_held(begins.read, begins.paths, begins.topology, txid, found.states, wanted=True)
        anew = self.wish.changed_rows or begins.request.topology.keeps_range
        if anew and found.rows is not None:
            return begins.current_batch(attempt, found.rows)
        return Batch(found.rows, None)

    def counted(self, begins: BeginPass) -> BatchRows | None:
        """Return the rows that the tasks originally read. Return None if unknown or if other rows were requested."""
        history = begins.read.find(TransactionRecord, begins.paths.history(self.binding.txid))
        found = self._entry(begins)
        if history is None or self.wish.changed_rows or not found.same:
            return None
        return counted_of(history.rows, history.digest)

    def _entry(self, begins: BeginPass) -> RestatedBatch:
        ask = partial(begins.outside.read_entry, self.replaces, self.wish.changed_rows)
        return begins.read.ask("entry", self.replaces.entry, ask)

    def bound(self, txid: int, birth: str) -> Binding:
        """Return the new binding of the run. The restated transaction counts until the restatement is committed."""
        return replace(self.binding, restating=Restating(txid, birth))

    def writes(self, read: Reader, stamp: Stamp, paths: Paths, txid: int) -> tuple[Write, ...]:
        """Return the write that deletes the request."""
        return (Delete(paths.wish(self.binding.txid)),)
