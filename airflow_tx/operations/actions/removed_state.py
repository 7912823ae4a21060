"""Removal of a state from the ledger. The topology continues without the state."""

from __future__ import annotations

from functools import partial

from airflow_tx.base.errors import MoveRefused
from airflow_tx.base.remedy import Command
from airflow_tx.operations.actions.action import ActionPlan
from airflow_tx.operations.actions.repair import NOBODY, StateRepair


class StateRemoval(StateRepair):
    """Removes a state that the DAG no longer updates. Another state may replace it."""

    def decide(self) -> ActionPlan:
        spec, states = self.target.dag()
        topology = self.target.topology
        if self.state in states:
            raise MoveRefused(
                topology=topology,
                problem=f"DAG {spec.dag_id} updates state {self.state}",
                remedy=(
                    "Take the update out of the DAG first. If the values are lost: "
                    + Command.of("repair", topology, "--state-lost", self.state)
                ),
            )
        sentence = f"Continue topology {topology} without state {self.state}. Another state may take its place."
        planned = self.repairs.forget_state.preview(self.state, NOBODY)
        return self.keeping(planned, sentence, partial(self.repairs.forget_state, self.state))
