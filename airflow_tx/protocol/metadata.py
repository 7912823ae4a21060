"""Rows and position of a batch: one record or, of a partitioned source, one a partition. Source: PROTOCOL §§1, 4.

`coordinator/meta/<txid>` of a partitioned source only says, for every partition there is, which transaction was the
last one that it took part in; `source/<partition>/<that txid>` holds what it gave and where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reading import Reader
from airflow_tx.protocol.records import Counter, Metadata, encode
from airflow_tx.protocol.requirement import Create, Delete, Put, Write


def whole(read: Reader, paths: Paths, txid: int) -> Metadata:
    """Rows and position of a batch, put together from those of its partitions, if it has any."""
    meta = read.get(Metadata, paths.meta(txid))
    if meta.partitions is None:
        return meta
    parts = {name: read.get(Metadata, paths.place(name, last)) for name, last in meta.partitions.items()}
    rows = {name: part.rows for name, part in parts.items() if meta.partitions[name] == txid and part.rows is not None}
    position = {name: part.position for name, part in parts.items()}
    taken_up = (name for name, part in parts.items() if meta.partitions[name] == txid and part.begin is not None)
    begins = {name: parts[name].begin for name in taken_up}
    return Metadata(meta.attempt, rows or None, position or None, meta.partitions, begins or None)


def position_before(read: Reader, paths: Paths, txid: int) -> Any:
    """The position after transaction txid − 1; None for the first one."""
    return whole(read, paths, txid - 1).position if txid > 1 else None


def position_after(before: Any, after: Any, *, partitioned: bool) -> Any:
    """Where the source stands after a batch; a partition that takes no part keeps its place."""
    return {**(before or {}), **(after or {})} or None if partitioned else after


def unmoved(before: Any, rows: Any, *, partitioned: bool) -> Any:
    """The position of a batch that has rows, and leaves every place where it was."""
    return {name: (before or {}).get(name) for name in rows or {}} if partitioned else before


def written(
    read: Reader, paths: Paths, txid: int, meta: Metadata, *, partitioned: bool, replaces: bool
) -> tuple[Write, ...]:
    """The writes that make `meta` the metadata of a transaction.

    :param meta: rows and position of a partitioned source by partition, of those that take part.
    :param replaces: whether the transaction has metadata, of an earlier attempt.
    """
    path = paths.meta(txid)
    if not partitioned:
        return (Put(path, encode(meta)) if replaces else Create(path, encode(meta)),)
    before = _lasts(read, paths, txid - 1) if txid > 1 else {}
    earlier = {name for name, last in _lasts(read, paths, txid).items() if last == txid} if replaces else set[str]()
    parts: Mapping[str, Any] = meta.position or {}
    index = encode(Metadata(meta.attempt, None, None, {**before, **dict.fromkeys(parts, txid)}))
    writes: list[Write] = [Put(path, index) if replaces else Create(path, index)]
    for name, position in parts.items():
        begin = (meta.begin or {}).get(name)
        part = encode(Metadata(meta.attempt, (meta.rows or {}).get(name), position, begin=begin))
        if name in earlier:
            writes.append(Put(paths.place(name, txid), part))
            continue
        if name not in before and not read.exists(paths.places(name)):
            writes.append(Create(paths.places(name), b""))
        writes.append(Create(paths.place(name, txid), part))
    writes += [Delete(paths.place(name, txid)) for name in sorted(earlier - set(parts))]
    if replaces and earlier != set(parts):
        writes += _followed(read, paths, txid, before, joined=set(parts) - earlier, left=earlier - set(parts))
    return tuple(writes)


def _followed(
    read: Reader, paths: Paths, txid: int, before: Mapping[str, int], *, joined: set[str], left: set[str]
) -> list[Write]:
    """Later transactions are told where the places are now: a replay has other partitions than the attempt before it.

    Without it they would look for places that are deleted, or that rotation takes away.
    """
    writes: list[Write] = []
    # Required: a transaction that is allocated meanwhile has to be told, too.
    for later in range(txid + 1, read.get(Counter, paths.allocated).txid + 1):
        meta = read.get(Metadata, paths.meta(later))
        lasts = dict(meta.partitions or {})
        for name in joined:
            lasts[name] = max(lasts.get(name, 0), txid)
        for name in left:
            if lasts.get(name) == txid:
                del lasts[name]
                lasts.update({name: before[name]} if name in before else {})
        if lasts != meta.partitions:
            writes.append(Put(paths.meta(later), encode(replace(meta, partitions=lasts))))
    return writes


def forgotten(read: Reader, paths: Paths, txid: int, *, partitioned: bool) -> tuple[Write, ...]:
    """What is no longer needed once `txid` is final: its predecessor's metadata, and the places that it left.

    The newest entry of every partition stays, whatever its age.
    """
    if txid < 2 or read.find(Metadata, paths.meta(txid - 1)) is None:
        return ()
    left: list[Write] = []
    if partitioned:
        before = _lasts(read, paths, txid - 1)
        left = [
            Delete(paths.place(name, before[name]))
            for name, last in _lasts(read, paths, txid).items()
            if last == txid and name in before
        ]
    return (Delete(paths.meta(txid - 1)), *left)


def rebuilt_from(paths: Paths, txid: int, meta: Metadata, *, partitioned: bool, there: set[str]) -> list[Write]:
    """The writes that make `meta` the metadata of a final transaction in a ledger that holds no other.

    :param there: names of the partitions' folders that exist, as path elements.
    """
    if not partitioned:
        return [Create(paths.meta(txid), encode(meta))]
    parts: Mapping[str, Any] = meta.position or {}
    index = Metadata(meta.attempt, None, None, dict.fromkeys(parts, txid))
    writes: list[Write] = [Create(paths.meta(txid), encode(index))]
    for name, position in parts.items():
        if paths.places(name).rpartition("/")[2] not in there:
            writes.append(Create(paths.places(name), b""))
        part = Metadata(meta.attempt, (meta.rows or {}).get(name), position)
        writes.append(Create(paths.place(name, txid), encode(part)))
    return writes


def _lasts(read: Reader, paths: Paths, txid: int) -> Mapping[str, int]:
    return read.get(Metadata, paths.meta(txid)).partitions or {}
