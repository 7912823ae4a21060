"""How much ZooKeeper takes in one request, checked before anything is sent: a larger one costs the connection."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_tx.errors import TooMuchMetadata
from airflow_tx.protocol.api import Create, Put, Requirement, Write

# jute.maxbuffer, unless the servers set another one.
LIMIT = 1_048_575
LARGE = 100_000
"""Bytes above which a lost connection may be the server's answer: its jute.maxbuffer may be smaller than `LIMIT`."""
# Above what the header, version, flags and ACL of one operation take.
_OPERATION = 96


def check_sizes(
    requirements: Sequence[Requirement],
    writes: Sequence[Write],
    *,
    limit: int = LIMIT,
    prefix: int = 0,
) -> int:
    """Refuse a multi that is larger than the server takes.

    :param limit: bytes a request may have.
    :param prefix: bytes that every path gets in front (the chroot).
    :return: about how many bytes it has.
    :raises TooMuchMetadata: naming the largest record.
    """
    largest = ""
    size = -1
    total = _OPERATION
    for operation in (*requirements, *writes):
        data = len(operation.data) if isinstance(operation, (Create, Put)) else 0
        total += _OPERATION + prefix + len(operation.path.encode()) + data
        if data > size:
            largest = operation.path
            size = data
    if total > limit:
        if size + _OPERATION * 2 + prefix + len(largest.encode()) > limit:
            raise TooMuchMetadata(path=largest, size=size, limit=limit)
        raise TooMuchMetadata(
            path=f"{largest} and what is written with it", size=total, limit=limit
        )
    return total


def explain_loss(reason: str, size: int) -> str:
    """Say why a request of this size has no answer."""
    return (
        reason
        if size < LARGE
        else f"{reason}; its {size} bytes may be more than jute.maxbuffer of the servers"
    )
