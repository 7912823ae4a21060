"""`begin` for a run that has an open transaction: its next attempt, or the same one again.

A person may let the rows of the next attempt be decided again, or request the restatement of a committed transaction.
Source: docs/protocol.md §§3, 5, 11.
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

    def current_batch(self, attempt: TransactionAttempt, metadata: Any) -> Batch:
        """Ask the source for the current metadata of the same rows, and how many they are if it knows that.

        :param metadata: the earlier decision.
        :return: without a position, which does not change.
        """
        about = f"{attempt.txid} instead of {digest(metadata)}"
        ask = partial(self.outside.decide_again, attempt, metadata)
        again: Any = self.read.ask("batch", about, ask)
        return again if isinstance(again, Batch) else Batch(again, None)


def begin_again(begins: BeginPass, record: TransactionRecord) -> Decision[ReplayAnswer]:
    """Give an open transaction its next attempt; the same one if it is only begun again.

    A restatement is left to its own run, unless that was deleted.

    :raises StaleBegin, RunHeld: and nothing has changed.
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
            # The transaction that it restates counts for every other run of the same key.
            return Decision(AlreadyCommitted(record.replaces.txid))
        if state in LIVE_RUN_STATES:
            raise RunHeld(run_id=request.run_id, txid=txid, holder=record.run_id, state=state)
    started = read.names(begins.paths.acks(record.acks))
    same = record.request == request.task_try
    # "": it was allocated for this run before the run existed. If the run could not be created, a new attempt ends the
    # block of the old one.
    is_blocked = begins.topology.is_blocked(txid)
    again = request.retry or (record.request == "" and not is_blocked)
    if same or (again and not started and record.phase is Phase.PROCESSING):
        return _continue(begins, record)
    # The source learned the outcome of these rows when they were committed.
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
        # Its time-out counts from now on; what was noted of it until now asked for this very begin.
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
    """Keep the rows of the attempt before, or take the current rows if a person wants that."""
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


def _replayed(record: TransactionRecord, stamp: Stamp) -> Replayed:
    """Say of which attempt, when and why, how large it was, and which person asked for it, for the receipt."""
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
    """Say how many `rows` the attempt had, if its committer, its tasks or its source counted them; else its `size`."""
    size = {unit: count for unit, count in (record.size or {}).items() if unit != "why"}
    counted = (
        None if record.receipt is None else record.receipt.rows,
        record.counted.rows if record.counted is not None and record.processed else None,
        None if size.get("at_most") else size.get("rows"),
    )
    rows = [each for each in counted if each is not None]
    return {"rows": rows[0]} if rows else {"size": size}


def _earlier(replayed: Replayed) -> Replayed:
    """Shorten why an earlier attempt was replayed, so that records stay small; the last error stays whole."""
    return replace(replayed, why=shortened_reason(replayed.why))


def _why_replayed(record: TransactionRecord) -> str:
    asked = record.replay
    reason = asked.reason if asked is not None and asked.attempt == record.attempt else ""
    return record.said or reason or "its run was cleared"


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
    """Find out whether the rows of a transaction can be decided again: every state with values of it must undo them.

    :raises ChangeRefused: a state cannot.
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
    """Ask whether a replay needs the current rows; one that is to be skipped needs none.

    :param always: whether each attempt decides again which transactions count in its range.
    """
    wanted = always or record.to_change is not None
    return wanted and record.skip is None and rows is not None


# --- wish ---------------------------------------------------------------------------------------------------------
# A person wants a committed transaction restated. Source: docs/protocol.md §11.


@dataclass(frozen=True)
class WishRequest:
    """A request of a person for a restatement.

    :param key: of its run, with `run_id` as the journal entry or the history gives them; the binding is compared.
    :param states: to which the transaction contributed, with their current names.
    :param first_day: the first day of which the journal still keeps entries, such as 2013-01-01; "": it keeps all.
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
    """Note that a committed transaction is wanted restated; the next `begin` of its run does it.

    :raises RestateRefused: it cannot be restated; UnknownTxid: it was never allocated.
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
    """Take the states as `begin_roll_forward`, and note that the transactions are restated whose rows nothing kept.

    :param wanted: these transactions; the request of one that is wanted already stays.
    :raises RestateRefused: one of them cannot be restated: nothing is noted.
    """
    begun = begin_roll_forward(read, stamp, paths, found, audit, holes=holes)
    # Each makes the folder of the wishes if there is none.
    noted = {
        each.path: each
        for request in wanted
        if not read.exists(paths.wish(request.txid))
        for each in want(read, stamp, paths, request, audit).writes
    }
    return replace(begun, writes=(*begun.writes, *noted.values()))


def withdraw(read: Reader, stamp: Stamp, paths: Paths, txid: int) -> Decision[Done]:
    """Take a wish back, as long as no run has begun it.

    :raises RestateRefused: no one wants it, or a transaction restates it already.
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
    # The deletion leaves no record that holds the nonce of this step: the topology record does.
    noted = Put(paths.record, encode(replace(topology, op=stamp.op)))
    return Decision(Done(), (Delete(path), noted), paths.record)


def wishes(store: Store, paths: Paths) -> tuple[Wish, ...]:
    """List what people want restated and no run has begun, by txid."""
    wished = {txid: paths.wish(txid) for txid in txids_below(store, paths.wishes)}
    return tuple(records_at(Reader(store), Wish, wished).values())


def entries_in_use(read: Reader, paths: Paths) -> set[str]:
    """Name the journal entries that open restatements take back, or that a person wants taken back."""
    found = set[str]()
    # Requests first: a run that begins while they are read makes a transaction of one.
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
    """Choose the wishes whose runs may be started now, by txid: of the window, one place is left to other batches.

    :param states: of the runs; one that was not asked for is left alone.
    :param limit: how many restatements may be under way at once.
    """
    begun = sum(record.replaces is not None for record in opened.values())
    waiting = [wish for wish in wished if wish.run_id in states]
    live = [wish for wish in waiting if states[wish.run_id] in LIVE_RUN_STATES]
    rest = [wish for wish in waiting if wish not in live]
    return tuple(rest[: max(limit - begun - len(live), 0)])


def most_restated(max_pending: int) -> int:
    """Count how many transactions may be restated at once, of the ones that may be open."""
    return max(max_pending - 1, 1)


def restating(read: Reader, paths: Paths, binding: Binding) -> int | None:
    """Find the open transaction that restates the one of a binding; None: none does.

    A rebuilt ledger gives a txid again, and never a birth.
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
    """Refuse to take back what a state may not hold.

    :param states: to which the transaction contributed.
    :param wanted: whether there is a request, which must be withdrawn.
    :raises RestateRefused: one was lost since, or the ledger was rebuilt.
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
    """Refuse to take back what a state has lost since the restatement began, or what another state holds by now.

    :param txid: of the restatement, and `replaced` of the transaction that counts.
    :param taken_back: per state that `replaced` named, the state that its contribution is taken from.
    :param own: per state that keeps its receipt of `replaced`, this receipt.
    :raises NotTakenBack: it names the state.
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
    """Digest what the ledger knows of the values that states hold: which columns they have, and how many repairs.

    A difference counts only as long as this is unchanged: else a column was dropped since, or a person changed values.

    :param taken_back: as for `check_still_held`.
    :param sole: states whose rows were asked for keys to which no other transaction had contributed.
    """
    columns = {state: topology.columns.get(state) for state in taken_back.values()}
    last = {state: topology.states.get(state) for state in sole}
    return digest([columns, next_repair(read, paths), last])


def _counting(read: Reader, paths: Paths, request: WishRequest) -> Binding:
    """Read the binding that says the transaction counts.

    :raises RestateRefused: it does not count, or is not final.
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
        remedy = "Its run counts its rows, once it is cleared: "
        listed = Command.of("list", "{topology}")
        raise _refused(paths, txid, "repair --back has taken it back", remedy, listed)
    binding = read.find(Binding, paths.run(request.key))
    if binding is None or (binding.txid != txid and not binding.entry):
        problem = f"run {request.key!r} is not bound to it, as the ledger was rebuilt since"
        raise _refused(paths, txid, problem, *_RESET)
    if binding.txid != txid:
        problem = f"transaction {binding.txid} has replaced it"
        raise _refused(paths, txid, problem, *_restate_that(binding.txid))
    other = restating(read, paths, binding)
    if other is not None:
        problem = f"transaction {other} restates it already"
        skip = Command.of("skip", "{topology}", other, "--why", "TEXT")
        raise _refused(paths, txid, problem, "Let it be committed, or: ", skip)
    return binding


def _check_entry(paths: Paths, request: WishRequest, binding: Binding) -> None:
    if not binding.entry:
        problem = "the journal has no entry of it: the DAG had `journal` off when it was committed"
        raise _refused(paths, request.txid, problem, *_RESET)
    if binding.entry < request.first_day:
        problem = f"its journal entry {binding.entry} is older than the DAG's `journal` keeps"
        raise _refused(paths, request.txid, problem, *_RESET)


_FROM_THE_BEGINNING = (
    "To start from the beginning: ",
    Command.of("repair", "{topology}", "--reset", "--why", "TEXT"),
)
_TO_WITHDRAW = ("To withdraw it: ", Command.of("restate", "{topology}", "{txid}", "--withdraw"))
_RESET = ("Its contribution cannot be taken back. ", *_FROM_THE_BEGINNING)


def _restate_that(txid: int) -> tuple[str | Command, ...]:
    return "Restate that one: ", Command.of("restate", "{topology}", txid, "--why", "TEXT")


def _refused(paths: Paths, txid: int, problem: str, *remedy: str | Command) -> RestateRefused:
    """Make the refusal of a restatement.

    :param remedy: the template of what to do.
    """
    named = {"txid": txid, "topology": paths.topology}
    return RestateRefused(**named, problem=problem, remedy=Remedy(remedy).filled(named))


# --- what `begin` makes of it ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restatement:
    """The committed transaction whose batch is taken again.

    :param first: the transaction that begins its chain; 0: it does so itself.
    """

    binding: Binding
    wish: Wish
    first: int = 0

    @property
    def replaces(self) -> Replaced:
        """The transaction that is replaced, as the record keeps it."""
        return Replaced(self.binding.txid, self.binding.entry, self.first)

    @property
    def wanted(self) -> Deed:
        """Who wants it, when and why."""
        return Deed(self.wish.who, self.wish.when, self.wish.why)

    def batch(self, begins: BeginPass, attempt: TransactionAttempt) -> Batch:
        """Return the batch with the rows of the journal, or with the current ones if they are wanted.

        :raises RestateRefused: its contribution cannot be taken back.
        """
        txid = self.binding.txid
        found = self._entry(begins)
        check_held(begins.read, begins.paths, begins.topology, txid, found.states, wanted=True)
        anew = self.wish.changed_rows or begins.request.topology.keeps_range
        if anew and found.rows is not None:
            return begins.current_batch(attempt, found.rows)
        return Batch(found.rows, None)

    def counted(self, begins: BeginPass) -> BatchRows | None:
        """Return what the tasks read of the batch then; None: this is unknown, or they are to read the current rows."""
        history = begins.read.find(TransactionRecord, begins.paths.history(self.binding.txid))
        found = self._entry(begins)
        if history is None or self.wish.changed_rows or not found.same:
            return None
        return counted_of(history.rows, history.digest)

    def _entry(self, begins: BeginPass) -> RestatedBatch:
        ask = partial(begins.outside.read_entry, self.replaces, self.wish.changed_rows)
        return begins.read.ask("entry", self.replaces.entry, ask)

    def bound(self, txid: int, birth: str) -> Binding:
        """Make the binding of the run: the transaction that is restated counts until the new one is committed."""
        return replace(self.binding, restating=Restating(txid, birth))

    def writes(self, read: Reader, stamp: Stamp, paths: Paths, txid: int) -> tuple[Write, ...]:
        """Return the writes that fulfil the wish, once and for all."""
        return (Delete(paths.wish(self.binding.txid)),)
