"""Which open transactions start elsewhere than their predecessor ends, so that they must be replayed. Pure.

Storm replays all later transactions when one fails; here only those whose base moved. Source: protocol.md §3
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_tx.protocol.records import TransactionRecord


def broken(opened: Mapping[int, TransactionRecord], *, current: int, position: str) -> list[int]:
    """The txids to be replayed, in order; what comes after them may follow once they end elsewhere.

    :param opened: the open transactions from `current` on, without a gap.
    :param position: digest of the position after transaction `current` − 1.
    """
    found, ended = [], position
    for txid in sorted(each for each in opened if each >= current):
        if opened[txid].base != ended:
            found.append(txid)
        ended = opened[txid].ended
    return found
