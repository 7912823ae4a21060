"""The steps of recovery: replays, and the mark of a transaction that is replayed no more. Source: docs/protocol.md §5.

Recovery goes by records, not by runs: an open transaction whose run has ended is replayed, with any state of its run.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_tx.base.errors import StaleAttempt
from airflow_tx.ledger.answers import AlreadyCommitted, Blocked, Done, GivenUp, ReplayNoted
from airflow_tx.ledger.api import Paths, Put
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import (
    BlockMark,
    ReplayNote,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.ledger.steps.end import listed_skip
from airflow_tx.ledger.steps.step import Audit, Decision, Stamp, put

COORDINATOR = "coordinator"
"""Who skips a restatement that has failed too often."""


@dataclass(frozen=True)
class ReplayRequest:
    """An attempt that is to be replayed.

    :param reason: in words, for the log and for people.
    :param counts: whether it counts against `limit`: a failure does; a batch whose predecessor moved, or a run that
        gave up its slot, did nothing wrong.
    :param limit: how many counted ones there may be in a row.
    :param overdue: a note that was made before this time (ISO 8601, UTC) and led to no new attempt is made again: who
        made it has died before the run was started, or the run ended before its `begin`. "": none is.
    """

    attempt: TransactionAttempt
    reason: str
    counts: bool
    limit: int
    overdue: str = ""


def note_replay(
    read: Reader, stamp: Stamp, paths: Paths, request: ReplayRequest
) -> Decision[ReplayNoted | Blocked | GivenUp | AlreadyCommitted]:
    """Note that an attempt is to be replayed. Of all processes that find it so, the first one starts its run.

    A replay by a person leaves no such note, so counting begins again after it. A commit that was refused permanently
    is not replayed at all: the whole work of its tasks would be done again, for the same refusal. A repair raises the
    generation, and with it the refusal is over.

    A restatement holds up all later commits for nothing, as the transaction that it restates counts. So it is skipped
    instead, once: if its skip is refused, a person has to see to it. It waits for a person, too, where a repair
    may end its refusal: after the repair it can be committed.

    :raises StaleAttempt: a newer attempt exists.
    """
    attempt = request.attempt
    path = paths.transaction(attempt.txid)
    record = read.find(TransactionRecord, path)
    if record is None:
        return Decision(AlreadyCommitted(attempt.txid))  # or skipped: it is not replayed
    if record.attempt != attempt.attempt:
        raise StaleAttempt(
            step="replay", txid=attempt.txid, attempt=attempt.attempt, newest=record.attempt
        )
    before = record.replay
    if before is not None and before.attempt == attempt.attempt and before.when >= request.overdue:
        return Decision(ReplayNoted(False, before.count))
    if (
        record.for_good
        and record.skip is None
        and record.for_good == read.get(TopologyRecord, paths.record).generation
    ):
        return _stop(
            read, stamp, paths, replace(request, reason=record.said or request.reason), record
        )
    is_next = before is not None and before.attempt in (attempt.attempt - 1, attempt.attempt)
    count = (before.count if before is not None and is_next else 0) + request.counts
    if count > request.limit:
        return _stop(read, stamp, paths, request, record)
    given_up = before is not None and before.given_up
    note = ReplayNote(attempt.attempt, count, stamp.now, request.reason, given_up)
    after = replace(record, replay=note, op=stamp.op)
    return put(path, after, ReplayNoted(True, count))


def note_person(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, audit: Audit
) -> Decision[Done]:
    """Note which person replays the newest attempt: the next attempt keeps it, and so does the receipt.

    Nothing else depends on the note. One that is made and not followed by an attempt says that the person asked.
    """
    record = read.find(TransactionRecord, paths.transaction(txid))
    if record is None:
        return Decision(Done())
    asked = audit.noted_of(stamp, record.attempt)
    return put(paths.transaction(txid), replace(record, asked=asked, op=stamp.op), Done())


def _stop(
    read: Reader, stamp: Stamp, paths: Paths, request: ReplayRequest, record: TransactionRecord
) -> Decision[Blocked | GivenUp]:
    """Block a transaction, or skip it at its turn if it restates one and no repair can help."""
    before = record.replay or ReplayNote(0, 0, stamp.now, request.reason)
    if record.replaces is None or record.repairable or before.given_up:
        return _block(read, stamp, paths, request)
    txid = request.attempt.txid
    replaces = record.replaces.txid
    why = f"{request.reason}; transaction {replaces}, which it restates, still counts"
    given_up = replace(
        record,
        skip=Audit(COORDINATOR, why).noted(stamp),
        # As of the attempt before: this one is not about to be replayed.
        replay=replace(before, attempt=request.attempt.attempt - 1, given_up=True),
        op=stamp.op,
    )
    writes = (
        Put(paths.transaction(txid), encode(given_up)),
        listed_skip(read, stamp, paths, txid, wanted=True),
    )
    return Decision(GivenUp(txid, replaces, request.reason), writes, paths.transaction(txid))


def _block(read: Reader, stamp: Stamp, paths: Paths, request: ReplayRequest) -> Decision[Blocked]:
    attempt = request.attempt
    result = Blocked(attempt.txid, request.reason)
    topology = read.get(TopologyRecord, paths.record)
    found = topology.blocked
    # The first one stays: two that took turns would write again and again.
    if found is not None and (
        found.txid < attempt.txid or (found.txid, found.attempt) == (attempt.txid, attempt.attempt)
    ):
        return Decision(result)
    note = BlockMark(attempt.txid, attempt.attempt, request.reason, stamp.now)
    after = replace(topology, blocked=note, op=stamp.op)
    return put(paths.record, after, result)


def unblock(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Done]:
    """Take the mark away once a person has replayed or skipped the transaction; otherwise it stays."""
    topology = read.get(TopologyRecord, paths.record)
    if topology.blocked is None:
        return Decision(Done())
    record = read.find(TransactionRecord, paths.transaction(topology.blocked.txid))
    if record is not None and topology.blocked.holds(record):
        return Decision(Done())
    after = replace(topology, blocked=None, op=stamp.op)
    return put(paths.record, after, Done())
