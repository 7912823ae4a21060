"""The attempt to commit, with the ledger and the task instance of the try."""

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
    """The attempt that a try commits, with the ledger and the task instance of the try.

    :param updates: the updates of the committing task.
    :param ti: the task instance of the try. In a lane, it is not a task instance of the transaction's run.
    """

    spec: TransactionSpec
    begun: Begun
    updates: Sequence[Update]
    ledger: Ledger
    ti: Any
    log: Any

    @cached_property
    def area(self) -> StagingArea:
        """Return the staging area of the topology."""
        return self.spec.staging().of_topology(self.begun.incarnation)

    @cached_property
    def states(self) -> dict[str, FencedState]:
        return {update.state.name: update.state for update in self.updates}

    @property
    def where(self) -> Mapping[str, Any]:
        """Return the fields that identify the attempt for a failpoint."""
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
        """Return the task id of the committer."""
        return str(self.ti.task_id)
