"""Which transaction has a file, an offset, an id or a date: the source of the topology tells, by the metadata."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.receipt import is_shortened
from airflow_tx.protocol.records import History
from airflow_tx.protocol.view import final_txids, kept_batch, open_txids

if TYPE_CHECKING:
    from airflow_tx.sources.api import Source

MOST_LOOKED_THROUGH = 1000
"""Transactions that one search looks through at most: the newest ones."""
MOST_FOUND = 50


@dataclass(frozen=True)
class Found:
    """The result of a search.

    :param txids: the newest first, at most `MOST_FOUND`.
    :param looked: how many transactions it has looked through, down to `oldest`; null: there is none.
    :param unknown: of how many of them the source cannot tell.
    :param complete: whether it has searched all transactions of the ledger.
    """

    txids: tuple[int, ...]
    looked: int
    oldest: int | None
    unknown: int
    complete: bool


def contains(source: Source, metadata: Any, what: str) -> bool | None:
    """Ask whether a batch has what a person looks for; None: its source cannot tell.

    :param metadata: as the ledger or a receipt keeps it.
    """
    if is_shortened(metadata):
        return None
    try:
        return metadata is not None and source.contains(metadata, what)
    except Exception:  # noqa: BLE001  # it may be metadata of the source that the topology had before
        return None


def search_ledger(ledger: Ledger, source: Source, what: str, *, seconds: float) -> Found:
    """Look through the newest transactions, open and final.

    :param seconds: after which it ends with what it has found.
    """
    every = sorted(
        {*open_txids(ledger.store, ledger.paths), *final_txids(ledger.store, ledger.paths)},
        reverse=True,
    )
    source = source.in_zone(ledger.topology().zone)
    until = time.monotonic() + seconds
    looked = list(_looked(ledger, source, what, every[:MOST_LOOKED_THROUGH], until))
    txids = [txid for txid, has in looked if has]
    return Found(
        tuple(txids[:MOST_FOUND]),
        len(looked),
        looked[-1][0] if looked else None,
        sum(has is None for _, has in looked),
        len(looked) == len(every) and len(txids) <= MOST_FOUND,
    )


def _looked(
    ledger: Ledger, source: Source, what: str, txids: Iterable[int], until: float
) -> Iterator[tuple[int, bool | None]]:
    for txid in txids:
        if time.monotonic() > until:
            return
        yield txid, contains(source, _metadata(ledger, txid), what)


def _metadata(ledger: Ledger, txid: int) -> Any:
    history = Reader(ledger.store).peek_if_any(History, ledger.paths.history(txid))
    if history is not None:
        return (history.receipt or {}).get("metadata")
    batch = kept_batch(ledger.store, ledger.paths, txid)
    return None if batch is None else batch.rows
