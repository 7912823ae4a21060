"""The steps of recovery: replays, and the mark of a blocked transaction. Source: docs/protocol.md §5.

Recovery depends on records and not on runs. If the run of an open transaction has ended, the transaction is replayed,
regardless of the state of the run.
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
"""The name under which the coordinator skips a restatement that has failed too often."""


@dataclass(frozen=True)
class ReplayRequest:
    """The request to replay an attempt.

    :param reason: reason in words, for the log and for people.
    :param counts: whether the replay counts against `limit`. A failure counts. A moved predecessor and a run that gave
        up its slot do not count.
    :param limit: the maximum number of counted replays in a row.
    :param overdue: time (ISO 8601, UTC). A note from before it that led to no new attempt is made again. Its process
        died before it started the run, or the run ended before its `begin`. With "", no note is made again.
    """

    attempt: TransactionAttempt
    reason: str
    counts: bool
    limit: int
    overdue: str = ""


def note_replay(
    read: Reader, stamp: Stamp, paths: Paths, request: ReplayRequest
) -> Decision[ReplayNoted | Blocked | GivenUp | AlreadyCommitted]:
    """Note that an attempt will be replayed. The first process that notes it starts the run.

    A replay by a person leaves no such note, so the count begins again after it. A commit that was refused permanently
    is not replayed, since all its tasks would run again for the same refusal. A repair raises the generation, which
    ends the refusal.

    A restatement that fails delays all later commits, although the restated transaction still counts. It is therefore
    skipped, but only once. If the skip is refused, a person must act. It also waits for a person if a repair may end
    its refusal, since it can be committed after the repair.

    :raises StaleAttempt: a newer attempt exists.
    """
    attempt = request.attempt
    path = paths.transaction(attempt.txid)
    record = read.find(TransactionRecord, path)
    if record is None:
        return Decision(AlreadyCommitted(attempt.txid))  # or it is skipped, and not replayed
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
    """Note which person replays the newest attempt. The next attempt and the receipt keep the note.

    Nothing else depends on the note. If no attempt follows, the note only shows that the person asked for a replay.
    """
    record = read.find(TransactionRecord, paths.transaction(txid))
    if record is None:
        return Decision(Done())
    asked = audit.noted_of(stamp, record.attempt)
    return put(paths.transaction(txid), replace(record, asked=asked, op=stamp.op), Done())


def _stop(
    read: Reader, stamp: Stamp, paths: Paths, request: ReplayRequest, record: TransactionRecord
) -> Decision[Blocked | GivenUp]:
    """Block a transaction, or skip a restatement at its turn if no repair can help."""
    before = record.replay or ReplayNote(0, 0, stamp.now, request.reason)
    if record.replaces is None or record.repairable or before.given_up:
        return _block(read, stamp, paths, request)
    txid = request.attempt.txid
    replaces = record.replaces.txid
    why = f"{request.reason}; transaction {replaces}, which it restates, still counts"
    given_up = replace(
        record,
        skip=Audit(COORDINATOR, why).noted(stamp),
        # The note is for the previous attempt, since no replay of the current attempt is about to
        # begin.
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
    # The first mark stays. Two transactions would otherwise replace each other's mark forever.
    if found is not None and (
        found.txid < attempt.txid or (found.txid, found.attempt) == (attempt.txid, attempt.attempt)
    ):
        return Decision(result)
    note = BlockMark(attempt.txid, attempt.attempt, request.reason, stamp.now)
    after = replace(topology, blocked=note, op=stamp.op)
    return put(paths.record, after, result)


def unblock(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Done]:
    """Remove the mark once a person has replayed or skipped the transaction. Otherwise it stays."""
    topology = read.get(TopologyRecord, paths.record)
    if topology.blocked is None:
        return Decision(Done())
    record = read.find(TransactionRecord, paths.transaction(topology.blocked.txid))
    if record is not None and topology.blocked.holds(record):
        return Decision(Done())
    after = replace(topology, blocked=None, op=stamp.op)
    return put(paths.record, after, Done())
