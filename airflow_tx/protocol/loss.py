"""Rows that a source has lost, as it tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WHOLE = ""
"""The partition of a source that has none."""


@dataclass(frozen=True)
class Loss:
    """Rows that come next at a place of a source, and that it can no longer give.

    :param partition: "" for a source without partitions.
    :param place: the position, of the partition, that they would follow.
    :param goes_on: the place from which it can give rows again.
    :param what: which rows they are, in words.
    """

    partition: str
    place: Any
    goes_on: Any
    what: str
