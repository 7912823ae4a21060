"""What the step `begin` is asked, and what a source answered to it. Source: PROTOCOL §3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.protocol.opening import TopologyRequest


@dataclass(frozen=True)
class BeginRequest:
    """What a run's first task asks for.

    :param key: the run's identity: its run_id, or the interval or partition it stands for. None: a run that does not
        exist yet is to be given the next transaction; it will be called `tx-<txid>`, and so is its key.
    :param run_id: "" for a run that does not exist yet.
    :param task_try: id of this try of `begin` (a UUIDv7: later tries are greater); "" if it is not the run that asks.
    :param retry: whether Airflow retried `begin`, rather than somebody cleared it.
    :param tasks: per task that must ack, a random 64-bit id as 16 hex digits.
    """

    topology: TopologyRequest
    key: str | None
    run_id: str
    task_try: str
    retry: bool
    tasks: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class Proposal:
    """What the source said to a `NeedBatch`.

    :param batch: (rows, position), or None without data.
    """

    txid: int
    base: str
    batch: tuple[Any, Any] | None = field(hash=False)

    def answers(self, txid: int, base: str) -> bool:
        """Whether it is the answer for this transaction from this position."""
        return (self.txid, self.base) == (txid, base)
