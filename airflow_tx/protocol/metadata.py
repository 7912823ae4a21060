"""Rows and position of a batch, all its partitions together, in one record. Source: protocol.md §§1, 4.

Older releases kept one record for each partition of a partitioned source: `coordinator/meta/<txid>` said, for every
partition there is, which transaction was the last one that it took part in; `source/<partition>/<that txid>` holds what
it gave and where it stands. Such metadata is still read. A transaction writes none.
"""

from __future__ import annotations

from typing import Any

from airflow_tx.protocol.api import Delete, Write
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, Metadata


def whole(read: Reader, paths: Paths, txid: int) -> Metadata:
    """Rows and position of a batch, by partition if its source has any."""
    meta = read.get(Metadata, paths.meta(txid))
    if meta.partitions is None:
        return meta
    parts = {name: read.get(Metadata, paths.place(name, last)) for name, last in meta.partitions.items()}
    rows = {name: part.rows for name, part in parts.items() if meta.partitions[name] == txid and part.rows is not None}
    position = {name: part.position for name, part in parts.items()}
    taken_up = (name for name, part in parts.items() if meta.partitions[name] == txid and part.begin is not None)
    begins = {name: parts[name].begin for name in taken_up}
    return Metadata(meta.attempt, rows or None, position or None, begin=begins or None)


def position_before(read: Reader, paths: Paths, txid: int) -> Any:
    """The position after transaction txid − 1; None for the first one."""
    return whole(read, paths, txid - 1).position if txid > 1 else None


def position_after(before: Any, after: Any, *, partitioned: bool) -> Any:
    """Where the source stands after a batch; a partition that takes no part keeps its place."""
    return {**(before or {}), **(after or {})} or None if partitioned else after


def unmoved(before: Any, rows: Any, *, partitioned: bool) -> Any:
    """The position of a batch that has rows, and leaves every place where it was."""
    return {name: (before or {}).get(name) for name in rows or {}} if partitioned else before


def forgotten(read: Reader, paths: Paths, txid: int) -> tuple[tuple[Write, ...], bool]:
    """What is no longer needed once `txid` is final: its predecessor's metadata; and whether that was the last one that
    named records of partitions."""
    before = read.find(Metadata, paths.meta(txid - 1)) if txid > 1 else None
    if before is None:
        return (), False
    last = before.partitions is not None and not any(
        read.get(Metadata, paths.meta(each)).partitions is not None
        for each in range(txid, read.get(Counter, paths.allocated).txid + 1)
    )
    return (Delete(paths.meta(txid - 1)),), last
