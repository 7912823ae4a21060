"""The subject of a commit: the attempt, and how a try reaches ledger and Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_tx.ledger import Begun, Ledger
from airflow_tx.outputs import StagingArea
from airflow_tx.state import FencedState
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.spec import TransactionSpec


@dataclass(eq=False)
class CommitCase:
    """The attempt that a try commits, and how the try reaches ledger and Airflow.

    :param updates: what the task adds to which state.
    :param ti: the task instance that reaches Airflow and, unless a lane commits, the run of the transaction.
    """

    spec: TransactionSpec
    begun: Begun
    updates: Sequence[Update]
    ledger: Ledger
    ti: Any
    log: Any

    @cached_property
    def area(self) -> StagingArea:
        """The staging area of its topology."""
        return self.spec.staging().of_topology(self.begun.incarnation)

    @cached_property
    def states(self) -> dict[str, FencedState]:
        return {update.state.name: update.state for update in self.updates}

    @property
    def where(self) -> Mapping[str, Any]:
        """Name the attempt for a failpoint."""
        return {
            "topology": self.spec.topology,
            "txid": self.begun.txid,
            "attempt": self.begun.attempt.attempt,
        }

    @property
    def run_id(self) -> str:
        return str(self.ti.run_id)

    @property
    def task_id(self) -> str:
        """Name the committer."""
        return str(self.ti.task_id)
