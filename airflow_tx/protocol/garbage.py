"""Records that no step reads any more: removed with the multi that leaves them, or in portions if they are too many.

A multi that grows with the batch would once be larger than ZooKeeper takes. So what is beyond a portion is only noted
in the topology record; the next step removes it. Source: docs/protocol.md §4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_tx.errors import OutcomeUnknown, RequirementFailed
from airflow_tx.protocol.answers import Done
from airflow_tx.protocol.api import Delete, Put, Store, Write
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import TopologyRecord, encode
from airflow_tx.protocol.step import Decision, Stamp, put

DELETIONS_A_MULTI = 500
"""Deletions in one multi."""


def acks_of(stamp: Stamp, txid: int, attempt: int) -> str:
    """Name the acks of an attempt; a name is used once, even if a repair lets transactions begin again."""
    return f"{txid}.{attempt}-{stamp.op[-8:]}"


def deletes(folder: str, names: Sequence[str]) -> tuple[Write, ...] | None:
    """Delete a folder and its content; None if that is more than a portion."""
    if len(names) >= DELETIONS_A_MULTI:
        return None
    return (*(Delete(f"{folder}/{name}") for name in names), Delete(folder))


def left(topology: TopologyRecord, paths: Paths, *folders: str) -> TopologyRecord:
    """Note in the topology record that folders are to be removed."""
    noted = [folder.removeprefix(f"{paths.base}/") for folder in folders]
    return replace(topology, garbage=list(dict.fromkeys([*topology.garbage, *noted])))


def removed(
    read: Reader, stamp: Stamp, paths: Paths, folder: str, names: Sequence[str]
) -> tuple[Write, ...]:
    """Delete a folder, or note that it is to be removed."""
    gone = deletes(folder, names)
    if gone is not None:
        return gone
    topology = left(read.get(TopologyRecord, paths.record), paths, folder)
    return (Put(paths.record, encode(replace(topology, op=stamp.op))),)


def remove(store: Store, path: str) -> None:
    """Delete a record and everything below it, in portions. Several processes may do so at once."""
    while store.children(path) is not None:
        empty(store, path)
        _delete(store, [path])


def empty(store: Store, path: str) -> None:
    """Delete everything below a record, in portions."""
    while (children := store.children(path)) and children.names:
        every = [f"{path}/{name}" for name in children.names]
        for start in range(0, len(every), DELETIONS_A_MULTI):
            below = every[start : start + DELETIONS_A_MULTI]
            if not _delete(store, below):
                for each in below:
                    empty(store, each)


def _delete(store: Store, paths: Sequence[str]) -> bool:
    try:
        store.multi([], [Delete(path) for path in paths])
    except (RequirementFailed, OutcomeUnknown):
        store.sync()  # there is something below one, another process deletes too, or the reply was lost
        return False
    return True


def note_removed(
    read: Reader, stamp: Stamp, paths: Paths, folders: Sequence[str]
) -> Decision[Done]:
    """Note that folders are removed."""
    topology = read.get(TopologyRecord, paths.record)
    rest = [folder for folder in topology.garbage if folder not in folders]
    if rest == topology.garbage:
        return Decision(Done())
    after = replace(topology, garbage=rest, op=stamp.op)
    return put(paths.record, after, Done())
