"""Pause or unpause a topology's coordinator at a user's request."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_tx.base import compat
from airflow_tx.base.errors import PreviewOutdated
from airflow_tx.ledger import Audit
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PlannedEffect,
)


class CoordinatorPause(PersonalAction):
    """Pauses the coordinator, or unpauses it.

    :param coordinator: dag_id of the coordinator.
    :param paused: True to pause the coordinator, False to unpause it.
    """

    subject = "The coordinator"

    def __init__(self, target: ActionTarget, coordinator: str, *, paused: bool) -> None:
        super().__init__(target)
        self.dag_id = coordinator
        self.paused = paused

    def plan(self) -> ActionPlan:
        is_paused = compat.is_paused_there(self.dag_id)
        what = (
            "starts and replays nothing until it is unpaused"
            if self.paused
            else "starts and replays transactions again"
        )
        line = f"DAG {self.dag_id} {what}"
        sentence = f"{'Pause' if self.paused else 'Unpause'} the coordinator of topology {self.target.topology}."
        if is_paused is None:
            line = sentence = (
                f"Topology {self.target.topology} has no coordinator: there is no DAG {self.dag_id}."
            )
        elif is_paused == self.paused:
            line = sentence = (
                f"DAG {self.dag_id} {'is paused already' if is_paused else 'is not paused'}."
            )
        is_refused = is_paused in (None, self.paused)
        effect = PlannedEffect([EffectLine(None, None, line)], self._pause, is_refused=is_refused)
        return ActionPlan(str(is_paused), sentence, [effect], is_refusal=is_refused)

    def _held_up(self) -> str | None:
        if self.paused:
            return None
        why = compat.why_none_starts(self.dag_id, once_unpaused=True)
        return why or compat.why_none_starts(self.target.record.dag_id)

    def _pause(self, audit: Audit) -> Iterator[EffectLine]:
        if not compat.pause_dag(self.dag_id, self.paused):
            raise PreviewOutdated(what=self.subject, topology=self.target.topology)
        yield EffectLine(
            None, None, f"DAG {self.dag_id} {'is paused' if self.paused else 'is unpaused'}"
        )
