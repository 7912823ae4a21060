"""Repair of a topology whose source and states were restored to the same moment.

It takes back all later transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_tx.operations.actions.action import ActionPlan, ActionTarget
from airflow_tx.operations.actions.repair import NOBODY, LedgerRepair
from airflow_tx.state import FencedState

NOT_TAKEN_BACK = (
    "Not taken back: acks that the source has received, asset events, messages, runs of downstream DAGs, "
    "and changes in other databases."
)


class ReturnToTransaction(LedgerRepair):
    """Takes back all transactions after the one to which source and states were restored.

    :param txid: last transaction that is not taken back.
    """

    option = "back"

    def __init__(self, target: ActionTarget, txid: int) -> None:
        super().__init__(target)
        self.last = txid

    def decide(self) -> ActionPlan:
        _, states = self.target.dag()
        back = self.ledger.back
        held = held_by(states, self.ledger.existing_topology().incarnation)
        planned = back.preview(self.last, audit=NOBODY, **held)
        sentence = f"Take back all transactions of topology {self.target.topology} after {self.last}. {NOT_TAKEN_BACK}"
        return self.keeping(planned, sentence, lambda audit: back(self.last, audit=audit, **held))


def held_by(states: Mapping[str, FencedState], incarnation: str) -> dict[str, Any]:
    """Read the fences of all states, as arguments for the repair `Ledger.back`."""
    fences = {name: state.fence() for name, state in states.items()}
    whole = {
        name: fence
        for name, fence in fences.items()
        if fence is not None and fence.applied and fence.incarnation == incarnation
    }
    position = next((fence.kept.position for fence in whole.values() if fence.kept), None)
    tokens = {name: whole[name].token if name in whole else None for name in states}
    marks = {name: fence.change for name, fence in whole.items()}
    return {"tokens": tokens, "marks": marks, "position": position}
