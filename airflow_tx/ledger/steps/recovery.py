"""The steps of recovery: automatic replays, yielded runs, alarms, watchers. Source: docs/protocol.md §5.

Recovery goes by records, not by runs: an open transaction whose run has ended is replayed, with any state of its run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_tx.base.errors import Outbid, PreviewOutdated, StaleAttempt
from airflow_tx.ledger.answers import (
    AlarmNoted,
    AlreadyCommitted,
    Bidding,
    Blocked,
    Done,
    GivenUp,
    NotNeeded,
    ReplayNoted,
)
from airflow_tx.ledger.api import Create, Paths, Put, Write
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.json_text import digest
from airflow_tx.ledger.records import Counter, Skipped, TopologyRecord, TransactionRecord, encode
from airflow_tx.ledger.steps.end import listed_skip
from airflow_tx.ledger.steps.replay import Wish
from airflow_tx.ledger.steps.step import Audit, Decision, Reader, Stamp, put, put_or_create

# --- recovery -----------------------------------------------------------------------------------------------------


COORDINATOR = "coordinator"
"""Who skips a restatement that has failed too often."""
_GIVEN_UP = "given_up"


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
    before = record.replay or {}
    if before.get("attempt") == attempt.attempt and before["when"] >= request.overdue:
        return Decision(ReplayNoted(False, before["count"]))
    if (
        record.for_good
        and record.skip is None
        and record.for_good == read.get(TopologyRecord, paths.record).generation
    ):
        return _stop(
            read, stamp, paths, replace(request, reason=record.error or request.reason), record
        )
    count = (
        before["count"] if before.get("attempt") in (attempt.attempt - 1, attempt.attempt) else 0
    )
    if request.counts:
        count += 1
    if count > request.limit:
        return _stop(read, stamp, paths, request, record)
    note = {
        **({_GIVEN_UP: True} if _GIVEN_UP in before else {}),
        "attempt": attempt.attempt,
        "count": count,
        "when": stamp.now,
        "reason": request.reason,
    }
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
    asked = {**audit.noted(stamp), "attempt": record.attempt}
    return put(paths.transaction(txid), replace(record, asked=asked, op=stamp.op), Done())


def _stop(
    read: Reader, stamp: Stamp, paths: Paths, request: ReplayRequest, record: TransactionRecord
) -> Decision[Blocked | GivenUp]:
    """Block a transaction, or skip it at its turn if it restates one and no repair can help."""
    before = record.replay or {}
    if record.replaces is None or record.repairable or _GIVEN_UP in before:
        return _block(read, stamp, paths, request)
    txid = request.attempt.txid
    replaces = int(record.replaces["txid"])
    why = f"{request.reason}; transaction {replaces}, which it restates, still counts"
    given_up = replace(
        record,
        skip=Audit(COORDINATOR, why).noted(stamp),
        # As of the attempt before: this one is not about to be replayed.
        replay={
            "count": 0,
            "when": stamp.now,
            "reason": request.reason,
            **before,
            "attempt": request.attempt.attempt - 1,
            _GIVEN_UP: True,
        },
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
    found = topology.blocked or {}
    # The first one stays: two that took turns would write again and again.
    mine = (attempt.txid, attempt.attempt)
    if (found.get("txid"), found.get("attempt")) == mine or found.get(
        "txid", attempt.txid
    ) < attempt.txid:
        return Decision(result)
    note = {
        "txid": attempt.txid,
        "attempt": attempt.attempt,
        "reason": request.reason,
        "when": stamp.now,
    }
    after = replace(topology, blocked=note, op=stamp.op)
    return put(paths.record, after, result)


def unblock(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Done]:
    """Take the mark away once a person has replayed or skipped the transaction; otherwise it stays."""
    topology = read.get(TopologyRecord, paths.record)
    if topology.blocked is None:
        return Decision(Done())
    record = read.find(TransactionRecord, paths.transaction(topology.blocked["txid"]))
    if record is not None and record.attempt == topology.blocked["attempt"] and record.skip is None:
        return Decision(Done())
    after = replace(topology, blocked=None, op=stamp.op)
    return put(paths.record, after, Done())


# --- run slots ----------------------------------------------------------------------------------------------------
# The step `yield`: a waiting run gives up its run slot to the run whose turn it is. Source: docs/protocol.md §6.
#
# Waiters bid in the ledger, since no process knows all of them. One without a txid goes first, the newest of them,
# then the one with the highest txid. Only one gives up at a time.


@dataclass(frozen=True)
class Waiter:
    """A run that waits.

    :param txid: its transaction; None while it waits in `begin` for one.
    :param task_try: of the task that waits; later ones are greater.
    :param blocking: the txid whose run has no run slot.
    """

    run_id: str
    txid: int | None
    task_try: str
    blocking: int

    @property
    def rank(self) -> tuple[bool, int, str]:
        """Rank it: the greatest one yields."""
        return (self.txid is None, self.txid or 0, self.task_try)


def bid(
    read: Reader, stamp: Stamp, paths: Paths, waiter: Waiter, *, overdue: str = ""
) -> Decision[Bidding | NotNeeded]:
    """Offer to yield; the best offer leads until it does, or until the turn has moved on.

    :param overdue: an offer that was made before this time (ISO 8601, UTC) counts no more: who made it would have
        yielded by now, and has died. "": all count.
    """
    topology = read.get(TopologyRecord, paths.record)
    if read.get(Counter, paths.current).txid != waiter.blocking:
        return Decision(NotNeeded())
    if topology.bid is not None and topology.bid["when"] >= overdue:
        found = Waiter(**{name: value for name, value in topology.bid.items() if name != "when"})
        if found.blocking == waiter.blocking and found.rank >= waiter.rank:
            return Decision(Bidding(found.run_id))
    after = replace(topology, bid={**asdict(waiter), "when": stamp.now}, op=stamp.op)
    return put(paths.record, after, Bidding(waiter.run_id))


def note_yield(
    read: Reader, stamp: Stamp, paths: Paths, waiter: Waiter
) -> Decision[Done | NotNeeded]:
    """Yield: the run ends as failed, keeps its transaction, and is started again when the way is free.

    :raises Outbid: another waiter leads.
    """
    topology = read.get(TopologyRecord, paths.record)
    # An entry of another turn was left over when the run was started again.
    if topology.yielded.get(waiter.run_id, {}).get("blocking") == waiter.blocking:
        return Decision(Done())
    if read.get(Counter, paths.current).txid != waiter.blocking:
        return Decision(NotNeeded())
    if topology.bid is None or topology.bid["run_id"] != waiter.run_id:
        raise Outbid(
            run_id=waiter.run_id, leader="none" if topology.bid is None else topology.bid["run_id"]
        )
    entry: dict[str, Any] = {"blocking": waiter.blocking, "txid": waiter.txid, "when": stamp.now}
    after = replace(
        topology,
        bid=None,
        yielded={**topology.yielded, waiter.run_id: entry},
        yields=topology.yields + 1,
        op=stamp.op,
    )
    writes: list[Write] = [Put(paths.record, encode(after))]
    if waiter.txid is not None:
        record = read.find(TransactionRecord, paths.transaction(waiter.txid))
        if record is None:
            return Decision(NotNeeded())
        noted = replace(record, yielded=waiter.blocking, op=stamp.op)
        writes.append(Put(paths.transaction(waiter.txid), encode(noted)))
    return Decision(Done(), tuple(writes), paths.record)


def came_back(read: Reader, stamp: Stamp, paths: Paths, run_id: str) -> Decision[Done]:
    """Note that a run which had yielded was started again, or needs no start."""
    topology = read.get(TopologyRecord, paths.record)
    if run_id not in topology.yielded:
        return Decision(Done())
    left = {name: entry for name, entry in topology.yielded.items() if name != run_id}
    after = replace(topology, yielded=left, op=stamp.op)
    return put(paths.record, after, Done())


# --- alarm --------------------------------------------------------------------------------------------------------
# The raised alarms of a topology. Each is raised once, also if several processes find it or one starts again.


@dataclass(frozen=True)
class RaisedAlarms:
    """The record of alarms.

    :param raised: per kind, what it is raised for (`of`), since when, and what its caller wants to remember.
    """

    raised: dict[str, dict[str, Any]] = field(default_factory=dict)
    op: str = ""


def raised_alarms(read: Reader, paths: Paths) -> Mapping[str, Mapping[str, Any]]:
    """Read which alarms are raised."""
    return (read.peek_if_any(RaisedAlarms, paths.alarms) or RaisedAlarms()).raised


def note_alarm(
    read: Reader, stamp: Stamp, paths: Paths, kind: str, note: Mapping[str, Any] | None
) -> Decision[AlarmNoted]:
    """Note what an alarm of this kind is raised for. Of all processes that find the same, one is the first.

    :param note: `of` says what for; None: it is over.
    """
    record = read.find(RaisedAlarms, paths.alarms) or RaisedAlarms()
    if record.raised.get(kind, {}).get("of") == (note or {}).get("of"):
        return Decision(AlarmNoted(first=False))
    raised = {name: each for name, each in record.raised.items() if name != kind}
    if note is not None:
        raised[kind] = {**note, "when": stamp.now}
    write = put_or_create(read, paths.alarms, encode(replace(record, raised=raised, op=stamp.op)))
    return Decision(AlarmNoted(first=True), (write,), paths.alarms)


# --- watcher ------------------------------------------------------------------------------------------------------
# How far a watcher has delivered commits. It resumes there, after any crash.


@dataclass(frozen=True)
class WatcherRecord:
    """The record of a watcher.

    :param incarnation: of the ledger whose transactions were handed on; another one has other transactions.
    :param txid: the last one that was handed on.
    """

    incarnation: str
    txid: int
    op: str = ""


@dataclass(frozen=True)
class Watched:
    """Where a watcher resumes: behind `txid`."""

    txid: int


def open_watcher(
    read: Reader, stamp: Stamp, paths: Paths, name: str, *, from_first: bool
) -> Decision[Watched]:
    """Find where a watcher resumes; a new watcher begins with the next transaction that becomes final.

    :param from_first: it was there before the topology, so it begins with the first one.
    :raises UnreadableRecord: there is no such topology.
    """
    incarnation = read.get(TopologyRecord, paths.record).incarnation
    found = read.find(WatcherRecord, paths.watcher(name))
    if found is not None and found.incarnation == incarnation:
        return Decision(Watched(found.txid))
    # In a ledger that was reset every transaction is new.
    txid = 0 if from_first or found is not None else read.peek(Counter, paths.current).txid - 1
    folder = () if read.exists(paths.watchers) else (Create(paths.watchers, b""),)
    write = put_or_create(
        read, paths.watcher(name), encode(WatcherRecord(incarnation, txid, stamp.op))
    )
    return Decision(Watched(txid), (*folder, write), paths.watcher(name))


def note_handed_on(
    read: Reader, stamp: Stamp, paths: Paths, name: str, txid: int
) -> Decision[Done]:
    """Note that a watcher has handed on every transaction up to this one."""
    incarnation = read.get(TopologyRecord, paths.record).incarnation
    found = read.get(WatcherRecord, paths.watcher(name))
    if found.incarnation != incarnation or found.txid >= txid:
        return Decision(Done())
    write = put_or_create(
        read, paths.watcher(name), encode(WatcherRecord(incarnation, txid, stamp.op))
    )
    return Decision(Done(), (write,), paths.watcher(name))


# --- version ------------------------------------------------------------------------------------------------------
# The version of what a person was shown: of two persons who act on the same version, the second is refused.


Record = TransactionRecord | Skipped | Wish
Records = dict[int, Record]


def version_of(read: Reader, paths: Paths, txids: Sequence[int]) -> str:
    """Give the version of these transactions: any step that changes one of them changes it."""
    return _version(txids, dict(_records(read, paths, txids)))


def note_action(
    read: Reader, stamp: Stamp, paths: Paths, txids: Sequence[int], version: str
) -> Decision[Done]:
    """Note that a person acts on these transactions, so that no other person acts on the same version.

    :raises PreviewOutdated: they are of another version by now.
    """
    records = dict(_records(read, paths, txids))
    if _version(txids, records) != version:
        raise PreviewOutdated(what=_named(txids), topology=paths.topology)
    writes = tuple(
        Put(_path(paths, txid, found), encode(replace(found, op=stamp.op)))
        for txid, found in records.items()
    )
    return Decision(Done(), writes, writes[0].path if writes else "")


def _records(read: Reader, paths: Paths, txids: Sequence[int]) -> Iterator[tuple[int, Record]]:
    for txid in sorted(set(txids)):
        found = (
            read.find(TransactionRecord, paths.transaction(txid))
            or read.find(Skipped, paths.skipped(txid))
            or read.find(Wish, paths.wish(txid))
        )
        if found is not None:
            yield txid, found


def _path(paths: Paths, txid: int, found: Record) -> str:
    if isinstance(found, TransactionRecord):
        return paths.transaction(txid)
    return paths.skipped(txid) if isinstance(found, Skipped) else paths.wish(txid)


def _version(txids: Sequence[int], records: Records) -> str:
    return digest(
        [[txid, records[txid].op if txid in records else ""] for txid in sorted(set(txids))]
    )


def _named(txids: Sequence[int]) -> str:
    return f"Transaction {', '.join(map(str, sorted(set(txids))))}" if txids else "What failed"
