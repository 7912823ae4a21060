"""Rename a state in the ledger, so that it continues under its new name in the DAG."""

from __future__ import annotations

from airflow_tx.base.errors import RenameRefused
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import Audit, Repaired
from airflow_tx.operations.actions.action import ActionPlan, ActionTarget
from airflow_tx.operations.actions.repair import NOBODY, StateRepair
from airflow_tx.state import FencedState


class StateRename(StateRepair):
    """Renames a state in the ledger, and renames its fence in the store. You can repeat it after a crash.

    :param state: name of the state in the ledger.
    :param new: current name of the state in the DAG.
    """

    def __init__(self, target: ActionTarget, state: str, new: str) -> None:
        super().__init__(target, state)
        self.new = new

    def decide(self) -> ActionPlan:
        state = self._renamed()
        planned = self.repairs.rename_state.preview(self.state, self.new, audit=NOBODY)
        topology = self.ledger.existing_topology()
        moved = self.state in topology.states and state.has_fence
        along = (
            [self._fence(topology.states[self.state], topology.incarnation, state)] if moved else []
        )
        sentence = f"Continue state {self.state} of topology {self.target.topology} as {self.new}."

        def rename(audit: Audit) -> Repaired:
            if moved and state.fence() is None:
                state.take_over(self.state)
            return self.repairs.rename_state(self.state, self.new, audit=audit)

        return self.keeping(planned, sentence, rename, *along)

    def _renamed(self) -> FencedState:
        """Find the state by its new name in the DAG.

        :raises RenameRefused: the DAG does not have the new name, or still has the old one.
        """
        _, states = self.target.dag()
        if self.new in states and self.state not in states:
            return states[self.new]
        raise RenameRefused(
            topology=self.target.topology,
            old=self.state,
            problem=f"the DAG updates {', '.join(sorted(states)) or 'none'}",
            remedy="Name the state as in the ledger first, and then by its new name in the DAG.",
        )

    def _fence(self, last: int, incarnation: str, state: FencedState) -> str:
        """Check that the fence to rename belongs to the same state, and describe the change.

        :raises RenameRefused: the fence belongs to another state.
        :raises StateError: the new state has no values.
        """
        fence = state.fence_of(self.state)
        if (
            fence is not None
            and fence.incarnation == incarnation
            and 0 <= fence.token.txid - last <= 1
        ):
            return f"state {self.new}: it takes over the fence, which is at transaction {fence.token.txid}"
        found = (
            "no transaction"
            if fence is None
            else f"transaction {fence.token.txid} of ledger {fence.incarnation}"
        )
        raise RenameRefused(
            topology=self.target.topology,
            old=self.state,
            problem=f"it is at transaction {last} of ledger {incarnation}, but the fence of {self.new} has {found}",
            remedy=(
                (
                    f"First move its values and its fence to {self.new}. If {self.new} is another state, "
                    f"continue without {self.state}: "
                )
                + Command.of("state forget", self.target.topology, self.state)
            ),
        )
