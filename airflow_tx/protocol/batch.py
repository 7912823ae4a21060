"""What the step `begin` is asked, and what a source answered to it. Source: protocol.md §3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_tx.protocol.topology import TopologyRequest


@dataclass(frozen=True)
class BeginRequest:
    """What a run's first task asks for.

    :param key: the run's identity: its run_id, or the interval or partition it stands for. None: a run that does not
        exist yet is to be given the next transaction; it will be called `tx-<txid>`, and so is its key.
    :param run_id: "" for a run that does not exist yet.
    :param task_try: id of this try of `begin`; "" if it is not the run that asks.
    :param retry: whether Airflow retried `begin`, rather than somebody cleared it.
    :param tasks: per task that must ack, a random 64-bit id as 16 hex digits.
    """

    topology: TopologyRequest
    key: str | None
    run_id: str
    task_try: str
    retry: bool
    tasks: Mapping[str, str] = field(hash=False)


class Proposed(NamedTuple):
    """The batch that a source decided; a plain (rows, position) means the same.

    :param size: how many rows there are and why so many, ``{"rows": int, "why": str}``; None if the source cannot tell.
    :param begins: of partitions that had no place: where each of them begins, which no replay may choose anew.
    """

    rows: Any
    position: Any
    size: dict[str, Any] | None = None
    begins: dict[str, Any] | None = None


@dataclass(frozen=True)
class Proposal:
    """What the source said to a `NeedBatch` or a `NeedRows`.

    :param batch: see `Proposed`; None without data.
    """

    txid: int
    base: str
    batch: tuple[Any, ...] | None = field(hash=False)

    def answers(self, txid: int, base: str) -> bool:
        """Whether it is the answer for this transaction from this position."""
        return (self.txid, self.base) == (txid, base)


WHOLE = ""
"""The partition of a source that has none."""


@dataclass(frozen=True)
class Loss:
    """Rows that come next in a source, and that it can no longer give.

    :param partition: "" for a source without partitions.
    :param position: of the partition: they would follow it.
    :param resume_at: the position from which it can give rows again.
    :param description: which rows they are, in words.
    """

    partition: str
    position: Any
    resume_at: Any
    description: str
