"""Pause and unpause of a topology's coordinator."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_tx import compat
from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.preview import EffectLine, PreviewAnswer
from airflow_tx.errors import PreviewOutdated
from airflow_tx.protocol.step import Audit


class CoordinatorPause(PersonalAction):
    """Pauses the coordinator, or unpauses it.

    :param dag_id: of the coordinator.
    :param paused: whether it is to be paused.
    """

    def __init__(self, target: ActionTarget, dag_id: str, *, paused: bool) -> None:
        super().__init__(target)
        self.dag_id = dag_id
        self.paused = paused

    def preview(self) -> PreviewAnswer:
        is_paused = compat.is_paused_there(self.dag_id)
        version = str(is_paused)
        if is_paused is None:
            problem = f"Topology {self.target.topology} has no coordinator: there is no DAG {self.dag_id}."
            return self.refusal(version, problem)
        if is_paused == self.paused:
            problem = f"DAG {self.dag_id} {'is paused already' if is_paused else 'is not paused'}."
            return self.refusal(version, problem)
        what = (
            "starts and replays nothing until it is unpaused"
            if self.paused
            else "starts and replays transactions again"
        )
        sentence = f"{'Pause' if self.paused else 'Unpause'} the coordinator of topology {self.target.topology}."
        return self.answer(version, sentence, [EffectLine(None, None, f"DAG {self.dag_id} {what}")])

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[EffectLine]:
        is_seen = version in (None, str(compat.is_paused_there(self.dag_id)))
        if not is_seen or not compat.pause_dag(self.dag_id, self.paused):
            raise PreviewOutdated(what="The coordinator", topology=self.target.topology)
        yield EffectLine(
            None, None, f"DAG {self.dag_id} {'is paused' if self.paused else 'is unpaused'}"
        )
