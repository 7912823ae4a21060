"""The version of transactions that a user saw. If two users act on the same version, the second one is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_tx.base.errors import PreviewOutdated
from airflow_tx.ledger.answers import Done
from airflow_tx.ledger.api import Paths, Put
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Skipped, TransactionRecord, Wish, encode
from airflow_tx.ledger.steps.step import Decision, Stamp

_Shown = TransactionRecord | Skipped | Wish


def version_of(read: Reader, paths: Paths, txids: Sequence[int]) -> str:
    """Return the version of these transactions. Every step that changes one of them changes the version."""
    return _version(txids, dict(_records(read, paths, txids)))


def note_action(
    read: Reader, stamp: Stamp, paths: Paths, txids: Sequence[int], version: str
) -> Decision[Done]:
    """Change the version of these transactions when a user acts on them. A second user must then read the new version.

    :raises PreviewOutdated: the transactions have a different version now.
    """
    records = dict(_records(read, paths, txids))
    if _version(txids, records) != version:
        named = f"Transaction {', '.join(map(str, sorted(set(txids))))}" if txids else "What failed"
        raise PreviewOutdated(what=named, topology=paths.topology)
    writes = tuple(
        Put(_path(paths, txid, found), encode(replace(found, op=stamp.op)))
        for txid, found in records.items()
    )
    return Decision(Done(), writes, writes[0].path if writes else "")


def _records(read: Reader, paths: Paths, txids: Sequence[int]) -> Iterator[tuple[int, _Shown]]:
    for txid in sorted(set(txids)):
        found = (
            read.find(TransactionRecord, paths.transaction(txid))
            or read.find(Skipped, paths.skipped(txid))
            or read.find(Wish, paths.wish(txid))
        )
        if found is not None:
            yield txid, found


def _path(paths: Paths, txid: int, found: _Shown) -> str:
    if isinstance(found, TransactionRecord):
        return paths.transaction(txid)
    return paths.skipped(txid) if isinstance(found, Skipped) else paths.wish(txid)


def _version(txids: Sequence[int], records: dict[int, _Shown]) -> str:
    return digest(
        [[txid, records[txid].op if txid in records else ""] for txid in sorted(set(txids))]
    )
