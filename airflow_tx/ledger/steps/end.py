"""Grants, skips, and the end of a transaction, which updates the history and passes the turn.

Source: docs/protocol.md §§2, 4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_tx.base.errors import (
    AlreadyFinal,
    NotSkipped,
    Outranked,
    Refused,
    RestatementSkipped,
    SkipRefused,
    StaleBatch,
    StateMissing,
    StateRenamed,
    UnknownTxid,
)
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger.answers import AlreadySkipped, Committed, Done, Granted, NotYet
from airflow_tx.ledger.api import Create, Delete, Paths, Put, Write
from airflow_tx.ledger.attempt import Grant, Token
from airflow_tx.ledger.book import ended_lines
from airflow_tx.ledger.json_text import as_kept, digest, replace
from airflow_tx.ledger.life import BEGAN, CHANGE, EMPTIED
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState
from airflow_tx.ledger.receipt import (
    METADATA_KEPT,
    NOTHING_WRITTEN,
    POSITION_KEPT,
    FenceBatch,
    Outcome,
    Receipt,
    TransactionFacts,
    Written,
)
from airflow_tx.ledger.records import (
    Binding,
    Counter,
    End,
    Phase,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.ledger.steps import step
from airflow_tx.ledger.steps.loss import without_passed
from airflow_tx.ledger.steps.step import (
    Audit,
    Decision,
    Stamp,
    check_not_rolling,
    put,
    put_or_create,
    taken_back_before,
)

# --- end ----------------------------------------------------------------------------------------------------------


HOURS_KEPT = 25
"""Number of hours for which the topology record counts transactions: one day plus the current hour."""
HOUR = len("2013-01-01T17")
"""Length of an ISO 8601 time up to the hour, in characters."""
PACES_KEPT = 8
"""Number of transactions whose row counts and processing times the topology record keeps."""


def holds(record: TransactionRecord | None, topology: TopologyRecord, token: Token) -> bool:
    """Return whether the ledger still has the grant of `token`."""
    if record is None or record.phase is not Phase.COMMITTING:
        return False
    found = (topology.generation, record.attempt, record.epoch, record.nonce)
    return found == (token.generation, token.attempt, token.epoch, token.nonce)


def check_token(
    record: TransactionRecord | None, topology: TopologyRecord, token: Token
) -> TransactionRecord:
    """Return the record of the transaction to which `token` belongs.

    :raises Outranked: the ledger holds another token.
    """
    if record is None or not holds(record, topology, token):
        found = (
            "no open transaction"
            if record is None
            else f"{topology.generation}/{token.txid}.{record.attempt}#{record.epoch} ({record.phase.value})"
        )
        raise Outranked(txid=token.txid, token=str(token), found=found)
    return record


def check_states(paths: Paths, record: TransactionRecord, states: Collection[str]) -> None:
    """Raise an error if a grant omits a state to which the transaction may already have been written.

    :raises StateMissing: states are omitted. The error names them.
    """
    lost = set(record.fenced) - set(states)
    if lost:
        raise StateMissing(
            topology=paths.topology, txid=record.txid, states=", ".join(sorted(lost))
        )


def check_grant(
    read: Reader, paths: Paths, record: TransactionRecord, states: Collection[str]
) -> tuple[TopologyRecord, Any]:
    """Check the conditions for a grant. Return the topology record, and the position before the batch.

    If one state is new while another is missing, the DAG has renamed a state. It would start empty under its new name.

    :raises StateRenamed: a state seems to be renamed. The error names both states and the remedy.
    :raises StaleBatch: the batch does not start at the position where its predecessor ended.
    :raises RollingForward: a roll forward is rewriting the states.
    """
    txid = record.txid
    topology = read.get(TopologyRecord, paths.record)
    check_not_rolling(paths, topology)
    new = set(states) - topology.states.keys()
    gone = topology.states.keys() - set(states)
    if new and gone:
        old = min(gone)
        last = topology.states[old]
        raise StateRenamed(topology=paths.topology, txid=txid, new=min(new), old=old, last=last)
    before = RotatingTransactionalState(read, paths).position_before(txid)
    if digest(before) != record.base:
        raise StaleBatch(
            txid=txid,
            attempt=record.attempt,
            base=record.base,
            previous=txid - 1,
            found=digest(before),
        )
    return topology, before


def claimed(
    record: TransactionRecord,
    topology: TopologyRecord,
    stamp: Stamp,
    paths: Paths,
    *,
    batch: FenceBatch,
    outcome: Outcome,
    **counted: Any,
) -> TransactionRecord:
    """Add the receipt to the record of a new grant. It lacks only the rows that will be written to the states.

    :param counted: further receipt fields: rows, tasks and code.
    """
    receipt = Receipt(
        topology=paths.topology,
        incarnation=topology.incarnation,
        generation=topology.generation,
        outcome=outcome.value,
        granted=stamp.now,
        metadata=as_kept(batch.rows, METADATA_KEPT),
        before=as_kept(batch.prev, POSITION_KEPT),
        after=as_kept(batch.position, POSITION_KEPT),
        previous=topology.receipt,
        digest=record.digest,
        **{**record.facts(), "size": record.size or {}},
        **counted,
    )
    return replace(record, receipt=receipt)


def make_grant(
    record: TransactionRecord,
    topology: TopologyRecord,
    paths: Paths,
    *,
    batch: FenceBatch,
    noted: Mapping[str, str] | None = None,
) -> Grant:
    """Create the grant for the transaction of `record`.

    :param noted: outputs that an earlier grant was about to write, by transactional state.
    """
    token = Token(
        topology.generation,
        record.txid,
        record.attempt,
        record.epoch,
        record.nonce,
        record.birth,
    )
    return Grant(
        paths.topology,
        topology.incarnation,
        token,
        topology.states,
        batch=batch,
        births=topology.births,
        claim=record.receipt,
        noted=noted or {},
        grants=topology.grants,
        accepted=topology.accepted,
    )


def fence_batch(
    of: TransactionFacts,
    granted: str,
    *,
    rows: Any,
    position: Any,
    prev: Any,
    outputs: Mapping[str, str] | None = None,
) -> FenceBatch:
    """Return the facts of a transaction that a fence keeps."""
    return FenceBatch(
        of.key,
        of.run_id,
        granted,
        of.skip,
        rows,
        position,
        prev,
        outputs=dict(outputs or {}),
        journal=of.journal,
        replaces=of.replaces,
    )


def ended(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    record: TransactionRecord,
    topology: TopologyRecord,
    *,
    outcome: Outcome,
    states: Collection[str],
    written: Mapping[str, Written] | None = None,
    columns: Mapping[str, Collection[str]] | None = None,
    began: Mapping[str, bool] | None = None,
) -> Decision[Committed]:
    """Return the writes that make a transaction final and give the turn to the next one.

    :param states: names of the states whose fence the grant raised.
    :param written: the rows that were written to each state. A state without an entry got no rows.
    :param columns: the value columns of each state in this transaction.
    :param began: whether a state was empty before its first transaction, for each state whose first transaction this
        is.
    """
    txid = record.txid
    read.get(Counter, paths.current)  # if a repair moves the turn back, this multi is refused
    assert record.receipt is not None, "its grant has noted it"
    given = {state: (written or {}).get(state, NOTHING_WRITTEN) for state in states}
    receipt = record.receipt.with_written(given)
    end = End(outcome, stamp.now)
    history = record.at_end(stamp.op, end, receipt)
    after = _topology_after(topology, history, states, stamp)
    grants = {**after.grants, **{state: [record.attempt, record.epoch] for state in states}}
    after = replace(
        after,
        receipt=receipt.hash,
        grants=grants,
        accepted=accepted_after(topology.accepted, states, began or {}, txid),
        columns={**topology.columns, **columns_after(topology.columns, columns or {}, txid)},
    )
    acks = paths.acks(record.acks)
    gone = step.deletes(acks, read.names(acks))
    if gone is None:
        after = step.left(after, paths, acks)
    after = without_passed(read, paths, after, txid)
    writes: tuple[Write, ...] = (
        Put(paths.record, encode(after)),
        Put(paths.current, encode(Counter(txid + 1))),
        Create(paths.history(txid), encode(history)),
        Delete(paths.transaction(txid)),
        *(gone or ()),
        *RotatingTransactionalState(read, paths).cleanup_before(txid),
        *_forgotten_history(read, paths, txid - stamp.history),
        *ended_lines(read, paths, topology, record, receipt),
    )
    if outcome is Outcome.COMMITTED and (record.journal or record.replaces is not None):
        bound = encode(Binding(txid, record.journal or ""))
        writes = (*writes, put_or_create(read, paths.run(record.key), bound, old=True))
    return Decision(Committed.first(topology, txid), writes, paths.history(txid))


def _topology_after(
    topology: TopologyRecord, history: TransactionRecord, states: Collection[str], stamp: Stamp
) -> TopologyRecord:
    """Record a transaction's end in the topology record, and remove the facts that apply only while it is open."""
    txid = history.txid
    is_blocked = topology.is_blocked(txid)
    return replace(
        topology,
        # A new state may take the old name of a renamed state.
        renamed={old: new for old, new in topology.renamed.items() if old not in states},
        states={**topology.states, **dict.fromkeys(states, txid)},
        births={**topology.births, **dict.fromkeys(states, history.birth)},
        blocked=None if is_blocked else topology.blocked,
        bid=None,
        skips=[each for each in topology.skips if each != txid],
        pace=pace_after(topology.pace, history),
        hours=hours_after(topology.hours, history),
        op=stamp.op,
    )


def accepted_after(
    known: Mapping[str, Mapping[str, Any]],
    states: Collection[str],
    began: Mapping[str, bool],
    txid: int,
) -> dict[str, Any]:
    """Return the facts about each state that still apply after a transaction, such as its newest accepted change.

    :param known: the facts in the topology record before the transaction.
    :param began: see `ended`. After an accepted loss, it does not change where the state began.
    """
    found = {name: dict(each) for name, each in known.items() if name not in states}
    for name in states:
        before = known.get(name, {})
        kept = {each: before[each] for each in (CHANGE, BEGAN, EMPTIED) if each in before}
        if name in began and not before:
            kept[BEGAN] = txid if began[name] else 0
        elif began.get(name) and "generation" in before:
            kept[EMPTIED] = txid
        found |= {name: kept} if kept else {}
    return found


def columns_after(
    known: Mapping[str, Mapping[str, int]], columns: Mapping[str, Collection[str]], txid: int
) -> dict[str, dict[str, int]]:
    """Return the value columns of each state, with the first transaction that wrote to each column.

    :param known: the columns in the topology record. All columns of a state without an entry are as old as the state.
    """
    return {
        state: {
            name: known[state].get(name, txid) if state in known else 0 for name in sorted(names)
        }
        for state, names in columns.items()
    }


def _forgotten_history(read: Reader, paths: Paths, txid: int) -> list[Write]:
    """Return the write that deletes the oldest history record. Earlier transactions have deleted all older ones."""
    return (
        [Delete(paths.history(txid))]
        if txid > 0 and read.exists(paths.history(txid), old=True)
        else []
    )


def hours_after(hours: Mapping[str, int], history: TransactionRecord) -> dict[str, int]:
    """Count final transactions by hour, since the history may cover fewer hours than the views show."""
    hour = history.final.when[:HOUR]
    counted = {**hours, hour: hours.get(hour, 0) + 1}
    return {each: counted[each] for each in sorted(counted)[-HOURS_KEPT:]}


def pace_after(pace: list[list[Any]], history: TransactionRecord) -> list[list[Any]]:
    """Add the number of rows and the duration of a committed transaction. Transactions of unknown size are left out.

    The largest batch stays in the list until a batch of at least its size replaces it. Otherwise, many small batches
    would hide how long a large batch takes. Earlier counts in another unit are dropped.

    :param pace: rows and processing seconds of each transaction, oldest first. A third item is the unit, if it is not
        rows.
    """
    if (
        history.final.outcome is not Outcome.COMMITTED
        or history.size is None
        or history.processed is None
    ):
        return pace
    unit = next((name for name in history.size if name != "why"), "rows")
    count = history.size.get(unit)
    if not count:
        return pace
    named = [] if unit == "rows" else [unit]
    seconds = (
        datetime.fromisoformat(history.processed) - datetime.fromisoformat(history.began)
    ).total_seconds()
    alike = [each for each in pace if each[2:] == named]
    kept = [*alike, [count, round(max(seconds, 0.0), 3), *named]]
    if len(kept) > PACES_KEPT:
        largest = max(each[0] for each in kept[1:])
        del kept[1 if kept[0][0] > largest else 0]
    return kept


# --- skip ---------------------------------------------------------------------------------------------------------
# The steps `skip` and `readmit`. A skip lets later transactions commit without a batch, and a
# readmission brings its rows back. Source: docs/protocol.md §5.


def note_skip(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, audit: Audit
) -> Decision[Done | AlreadySkipped]:
    """Record that a transaction will be skipped at its turn. It may still be replayed before its turn.

    :raises AlreadyFinal, UnknownTxid: see `open_record`.
    """
    record = open_record(read, paths, txid)
    if record is None:
        return Decision(AlreadySkipped(txid))
    if record.skip is not None and record.phase is Phase.COMMITTING:
        return Decision(
            Done()
        )  # states may already have receipts that name the user who first requested the skip
    noted = replace(record, skip=audit.noted(stamp), op=stamp.op)
    writes = (
        Put(paths.transaction(txid), encode(noted)),
        listed_skip(read, stamp, paths, txid, wanted=True),
    )
    return Decision(Done(), writes, paths.transaction(txid))


def withdraw_skip(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, *, keeps_grant: bool = False
) -> Decision[Done]:
    """Withdraw the request to skip a transaction.

    It must then be replayed, since its states may already have been rolled back.

    :param keeps_grant: whether the skip was refused before it had the turn. A committer's grant then stays valid.
    :raises AlreadyFinal, UnknownTxid: see `open_record`. If the transaction is already skipped, readmit it.
    """
    record = still_open(read, paths, txid)
    if record.skip is None:
        return Decision(Done())
    granted = record.phase is Phase.COMMITTING and not keeps_grant
    after = replace(
        record,
        skip=None,
        phase=Phase.FAILED if granted else record.phase,
        epoch=record.epoch + 1 if granted else record.epoch,
        error="it was to be skipped, and that was withdrawn" if granted else record.error,
        failed_task="" if granted else record.failed_task,
        remedy=None if granted else record.remedy,
        op=stamp.op,
    )
    writes = (
        Put(paths.transaction(txid), encode(after)),
        listed_skip(read, stamp, paths, txid, wanted=False),
    )
    return Decision(Done(), writes, paths.transaction(txid))


def find_open(
    read: Reader, stamp: Stamp, paths: Paths, txids: Collection[int]
) -> Decision[dict[int, TransactionRecord | Refused]]:
    """Return each transaction's record, or the error that the transaction is not open. All are from the same moment."""
    allocated = read.get(Counter, paths.allocated).txid
    return Decision(
        {txid: _open_or_refused(read, paths, txid, allocated) for txid in sorted(set(txids))}
    )


def grant_skip(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, states: Mapping[str, bool | None]
) -> Decision[Granted | NotYet | AlreadySkipped]:
    """Grant the turn to the skip of a transaction. The new grant outranks the previous one.

    :param states: the states whose fence will be raised, see `held_for_good`.
    :raises SkipRefused: the skip is not requested, or a state that cannot undo the transaction may have its values.
    :raises StaleBatch: the predecessor ended at a different position, so the transaction must be replayed first.
    :raises StateMissing, StateRenamed: a state that may have output from this or an earlier transaction is missing.
    """
    record = open_record(read, paths, txid)
    if record is None:
        return Decision(AlreadySkipped(txid))
    if record.skip is None:
        raise SkipRefused(txid=txid, problem="no one asked for it", remedy=_to_ask(paths, txid))
    current = read.get(Counter, paths.current)
    if current.txid != txid:
        return Decision(NotYet(current.txid))
    check_undoable(paths, record, states, noted=True)
    topology, before = check_grant(read, paths, record, states)
    meta = RotatingTransactionalState(read, paths).get_state(txid)
    # `granted` stays unchanged, since this grant writes no row of the batch.
    taken = replace(
        record,
        phase=Phase.COMMITTING,
        epoch=record.epoch + 1,
        nonce=stamp.op,
        journal=None,
        op=stamp.op,
    )
    batch = fence_batch(taken, stamp.now, rows=meta.rows, position=meta.position, prev=before)
    taken = claimed(taken, topology, stamp, paths, batch=batch, outcome=Outcome.SKIPPED)
    grant = make_grant(taken, topology, paths, batch=batch)
    return put(paths.transaction(txid), taken, Granted(grant))


def commit_skip(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    token: Token,
    *,
    states: Collection[str],
    began: Mapping[str, bool] | None = None,
) -> Decision[Committed]:
    """Make the skip final and give the turn to the next transaction.

    The rows are kept for a readmission, and the source's position stays unchanged.

    :param states: names of the states whose fence the grant raised.
    :param began: see `ended`.
    :raises Outranked: the ledger holds another token.
    :raises SkipRefused: the request to skip was withdrawn.
    """
    txid = token.txid
    record = read.find(TransactionRecord, paths.transaction(txid))
    if record is None and read.peek_if_any(Skipped, paths.skipped(txid)) is not None:
        return Decision(Committed(txid, by_this_call=False))
    topology = read.get(TopologyRecord, paths.record)
    record = check_token(record, topology, token)
    if record.skip is None:
        raise SkipRefused(
            txid=txid, problem="the request to skip it was withdrawn", remedy=_to_ask(paths, txid)
        )
    kept = Skipped(record.key, record.run_id, None, record.skip, stamp.op)
    if record.replaces is None:
        rows = RotatingTransactionalState(read, paths).get_state(txid).rows
        kept = replace(kept, rows=rows)
    else:
        # The restated transaction still counts, so a readmission of these rows would count them
        # twice.
        kept = replace(kept, replaces=record.replaces.txid)
    end = ended(
        read,
        stamp,
        paths,
        record,
        topology,
        outcome=Outcome.SKIPPED,
        states=states,
        began=began,
    )
    return replace(end, writes=(*end.writes, Create(paths.skipped(txid), encode(kept))))


def note_readmission(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, audit: Audit
) -> Decision[Done]:
    """Record that the run's next `begin` processes the skipped transaction's rows as a new transaction.

    :raises NotSkipped, RestatementSkipped: see `check_skipped`.
    """
    wanted = replace(
        check_skipped(read, stamp, paths, txid).result, readmit=audit.noted(stamp), op=stamp.op
    )
    return put(paths.skipped(txid), wanted, Done())


def check_skipped(read: Reader, stamp: Stamp, paths: Paths, txid: int) -> Decision[Skipped]:
    """Return the skip record of a transaction that can be readmitted.

    :raises NotSkipped: it is not skipped, or was already readmitted.
    :raises RestatementSkipped: it restated a transaction, which still counts.
    """
    skipped = read.find(Skipped, paths.skipped(txid))
    if skipped is None:
        raise NotSkipped(txid=txid, topology=paths.topology, found="not skipped")
    if skipped.readmitted_as is not None:
        raise NotSkipped(
            txid=txid, topology=paths.topology, found=f"re-admitted as {skipped.readmitted_as}"
        )
    if skipped.replaces is not None:
        raise RestatementSkipped(txid=txid, topology=paths.topology, replaces=skipped.replaces)
    return Decision(skipped)


def open_record(read: Reader, paths: Paths, txid: int) -> TransactionRecord | None:
    """Read the record of an open transaction. Return None if the transaction is skipped.

    :raises AlreadyFinal: the transaction is committed or taken back.
    :raises UnknownTxid: the txid was never allocated.
    """
    record = read.find(TransactionRecord, paths.transaction(txid))
    if record is not None:
        return record
    # Read the counter first, so that a transaction skipped between the two reads never seems
    # committed.
    current = read.peek(Counter, paths.current)
    if read.find(Skipped, paths.skipped(txid)) is not None:
        return None
    if 0 < txid < current.txid:
        outcome = "taken back" if txid in taken_back_before(read, paths) else "committed"
        raise AlreadyFinal(txid=txid, outcome=outcome, remedy="Nothing was changed.")
    raise _unknown(paths, txid)


def _open_or_refused(
    read: Reader, paths: Paths, txid: int, allocated: int
) -> TransactionRecord | Refused:
    if not 0 < txid <= allocated:
        return _unknown(paths, txid)
    try:
        return still_open(read, paths, txid)
    except Refused as refused:
        return refused


def _unknown(paths: Paths, txid: int) -> UnknownTxid:
    return UnknownTxid(txid=txid, topology=paths.topology, path=paths.transactions)


def still_open(read: Reader, paths: Paths, txid: int) -> TransactionRecord:
    """Read the record of an open transaction.

    :raises AlreadyFinal, UnknownTxid: the transaction is not open.
    """
    record = open_record(read, paths, txid)
    if record is not None:
        return record
    skipped = read.find(Skipped, paths.skipped(txid))
    remedy = Remedy(("To get it back: ", _with_why("readmit", paths, txid)))
    if skipped is not None and skipped.replaces is not None:
        remedy = Remedy((f"Transaction {skipped.replaces}, which it restated, counts.",))
    raise AlreadyFinal(txid=txid, outcome="skipped", remedy=remedy)


def listed_skip(read: Reader, stamp: Stamp, paths: Paths, txid: int, *, wanted: bool) -> Put:
    """Return the topology record with the transaction added to the list of skips or removed from it.

    The committer that passes on the turn reads this list.
    """
    topology = read.get(TopologyRecord, paths.record)
    skips = sorted({*topology.skips, txid} if wanted else {*topology.skips} - {txid})
    return Put(paths.record, encode(replace(topology, skips=skips, op=stamp.op)))


def check_undoable(
    paths: Paths,
    record: TransactionRecord,
    states: Mapping[str, bool | None],
    *,
    noted: bool,
) -> None:
    """Raise an error if a transaction that has the turn cannot be skipped.

    Every state that has its values must be able to undo them.

    :param states: see `held_for_good`.
    :param noted: whether the skip is already requested in the ledger.
    :raises StateMissing: a state to which the transaction may have been written is missing.
    :raises SkipRefused: a state that cannot undo the transaction may have its output.
    """
    check_states(paths, record, states)
    stuck = held_for_good(record, states)
    if stuck:
        raise skip_refused(record.txid, stuck, noted=noted)


def held_for_good(record: TransactionRecord, states: Mapping[str, bool | None]) -> list[str]:
    """Return the states that may have output from a transaction and cannot undo it.

    The values in a state decide, since the record may be older than a grant. If the values do not show it, the record
    decides: it says whether a grant was about to write to the state.

    :param states: whether a state has no output from the transaction or can undo it, by state. None if the state does
        not show it.
    """
    unknown = {name for name in record.fenced if states.get(name) is None}
    return sorted(unknown | {name for name, can in states.items() if can is False})


def skip_refused(txid: int, states: Sequence[str], *, noted: bool) -> SkipRefused:
    """Return the error for a transaction that cannot be skipped, since these states cannot undo it."""
    return SkipRefused(
        txid=txid,
        problem=f"it may be in state {', '.join(states)} already, which cannot undo it",
        remedy=f"{'' if noted else 'Nothing was changed. '}Replay it until it is committed; a state of "
        'kind="opaque" can undo.',
    )


def _to_ask(paths: Paths, txid: int) -> Remedy:
    return Remedy(("To ask: ", _with_why("skip", paths, txid)))


def _with_why(verb: str, paths: Paths, txid: int) -> Command:
    return Command(verb, paths.topology, (str(txid),), ("--why", "TEXT"))
