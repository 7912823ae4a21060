"""The steps of recovery, which record replays and the blocked transaction. Source: docs/protocol.md §5.

Recovery depends on the ledger's records. If the run of an open transaction has ended in any state, the transaction is
replayed.
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
    """A request to replay an attempt automatically.

    :param reason: reason for the replay, for the log and for users.
    :param counts: whether the replay counts against `limit`. A failure counts. A changed base or a yielded run slot
        does not count.
    :param limit: maximum number of counted replays in a row.
    :param overdue: time (ISO 8601, UTC). If a replay was recorded before this time but has not begun, it is recorded
        and started again. "" disables this.
    """

    attempt: TransactionAttempt
    reason: str
    counts: bool
    limit: int
    overdue: str = ""


def note_replay(
    read: Reader, stamp: Stamp, paths: Paths, request: ReplayRequest
) -> Decision[ReplayNoted | Blocked | GivenUp | AlreadyCommitted]:
    """Record that an attempt will be replayed. The first process that records it starts the run.

    A manual replay is not recorded here, so it restarts the count. A permanently refused commit is not replayed, since
    all tasks would run again only to be refused. A repair raises the generation, which ends the refusal.

    A restatement that fails delays all later commits, although the restated transaction still counts. So the
    coordinator skips it, but only once. Manual action is required if the skip is refused. It is also required if a
    repair may end the refusal, since the restatement can then be committed.

    :raises StaleAttempt: a newer attempt exists.
    """
    attempt = request.attempt
    path = paths.transaction(attempt.txid)
    record = read.find(TransactionRecord, path)
    if record is None:
        return Decision(AlreadyCommitted(attempt.txid))  # A skip returns the same answer.
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
    """Record which user replays the newest attempt, so that the next attempt and the receipt name this user.

    No other step reads this. If no attempt follows, it only shows that a replay was requested.
    """
    record = read.find(TransactionRecord, paths.transaction(txid))
    if record is None:
        return Decision(Done())
    asked = audit.noted_of(stamp, record.attempt)
    return put(paths.transaction(txid), replace(record, asked=asked, op=stamp.op), Done())


def _stop(
    read: Reader, stamp: Stamp, paths: Paths, request: ReplayRequest, record: TransactionRecord
) -> Decision[Blocked | GivenUp]:
    """Block a transaction. If it is a restatement whose failure no repair can end, skip it at its turn instead."""
    before = record.replay or ReplayNote(0, 0, stamp.now, request.reason)
    if record.replaces is None or record.repairable or before.given_up:
        return _block(read, stamp, paths, request)
    txid = request.attempt.txid
    replaces = record.replaces.txid
    why = f"{request.reason}; transaction {replaces}, which it restates, still counts"
    given_up = replace(
        record,
        skip=Audit(COORDINATOR, why).noted(stamp),
        # Name the previous attempt, since the current attempt will not be replayed.
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
    # Keep the first mark. Otherwise two transactions would replace each other's mark forever.
    if found is not None and (
        found.txid < attempt.txid or (found.txid, found.attempt) == (attempt.txid, attempt.attempt)
    ):
        return Decision(result)
    note = BlockMark(attempt.txid, attempt.attempt, request.reason, stamp.now)
    after = replace(topology, blocked=note, op=stamp.op)
    return put(paths.record, after, result)


def unblock(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Done]:
    """Remove the mark of the blocked transaction after a manual replay or skip of the transaction."""
    topology = read.get(TopologyRecord, paths.record)
    if topology.blocked is None:
        return Decision(Done())
    record = read.find(TransactionRecord, paths.transaction(topology.blocked.txid))
    if record is not None and topology.blocked.holds(record):
        return Decision(Done())
    after = replace(topology, blocked=None, op=stamp.op)
    return put(paths.record, after, Done())
