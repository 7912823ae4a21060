"""The progress of a watcher, so that it resumes after a crash."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_tx.ledger.answers import Done
from airflow_tx.ledger.api import Create, Paths
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Counter, TopologyRecord, WatcherRecord, encode
from airflow_tx.ledger.steps.step import Decision, Stamp, put_or_create


@dataclass(frozen=True)
class Watched:
    """The point at which a watcher resumes: after transaction `txid`."""

    txid: int


def open_watcher(
    read: Reader, stamp: Stamp, paths: Paths, name: str, *, from_first: bool
) -> Decision[Watched]:
    """Return where a watcher resumes. A new watcher begins with the next transaction that becomes final.

    :param from_first: whether the watcher started to wait before the topology existed. If so, it begins with the first
        transaction.
    :raises UnreadableRecord: there is no such topology.
    """
    incarnation = read.get(TopologyRecord, paths.record).incarnation
    found = read.find(WatcherRecord, paths.watcher(name))
    if found is not None and found.incarnation == incarnation:
        return Decision(Watched(found.txid))
    # After a reset of the ledger, the watcher begins with the first transaction.
    txid = 0 if from_first or found is not None else read.peek(Counter, paths.current).txid - 1
    folder = () if read.exists(paths.watchers) else (Create(paths.watchers, b""),)
    write = put_or_create(
        read, paths.watcher(name), encode(WatcherRecord(incarnation, txid, stamp.op))
    )
    return Decision(Watched(txid), (*folder, write), paths.watcher(name))


def note_handed_on(
    read: Reader, stamp: Stamp, paths: Paths, name: str, txid: int
) -> Decision[Done]:
    """Record that a watcher has reported every transaction up to this one to Airflow."""
    incarnation = read.get(TopologyRecord, paths.record).incarnation
    found = read.get(WatcherRecord, paths.watcher(name))
    if found.incarnation != incarnation or found.txid >= txid:
        return Decision(Done())
    write = put_or_create(
        read, paths.watcher(name), encode(WatcherRecord(incarnation, txid, stamp.op))
    )
    return Decision(Done(), (write,), paths.watcher(name))
