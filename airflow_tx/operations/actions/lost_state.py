"""Repair of a topology whose state was emptied, or restored to an older backup. The lost values are not restored."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from airflow_tx.base.errors import ConfigError, RollForwardRefused, StateError
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import STATE_LOST, Ledger, SeenState, ledger_evidence, reason_of
from airflow_tx.operations.actions.action import ActionPlan, ActionTarget
from airflow_tx.operations.actions.repair import NOBODY, StateRepair
from airflow_tx.state import FencedState, StoredState
from airflow_tx.transaction import StateHistory, TableHistory


class LostState(StateRepair):
    """Accepts the current values of a state that was emptied, or restored to an older backup.

    The lost values are not restored.

    :param unseen: whether to accept the loss without reading the state.
    """

    option = STATE_LOST

    def __init__(self, target: ActionTarget, state: str, *, unseen: bool = False) -> None:
        super().__init__(target, state)
        self.unseen = unseen

    def decide(self) -> ActionPlan:
        seen = None if self.unseen else self._seen()
        planned = self.repairs.state_lost.preview(self.state, NOBODY, seen=seen)
        sentence = (
            f"Accept the values of state {self.state} of topology {self.target.topology}. "
            "Values that it lost stay lost."
        )
        repair = partial(self.repairs.state_lost, self.state, seen=seen)
        return self.keeping(planned, sentence, lambda audit: repair(audit=audit), seen=seen)

    def _seen(self) -> SeenState | None:
        """Read the state, since the repair only accepts values that it has read. Return None without a fence.

        :raises RepairRefused: the state cannot be read, or the DAG has no such state.
        """
        topology = self.target.topology
        unseen = Command.of("repair", topology, "--state-lost", self.state, "--unseen")
        try:
            _, states = self.target.dag()
        except ConfigError as error:
            problem = f"its values cannot be read. {error}"
            raise self.refusal(problem, "Or: " + unseen) from error
        if self.state not in states:
            known = ", ".join(sorted(states)) or "none"
            problem = f"the DAG has no state {self.state!r}; its states: {known}"
            forget = Command.of("state forget", topology, self.state)
            raise self.refusal(problem, "To continue without it: " + forget)
        state = states[self.state]
        if not state.has_fence:
            return None
        try:
            return seen_state(self.ledger, state)
        except StateError as error:
            problem = f"state {self.state!r} cannot be read ({reason_of(error)})"
            raise self.refusal(
                problem, "Make its store reachable, or accept its values unread: " + unseen
            ) from error


def seen_state(ledger: Ledger, state: FencedState) -> SeenState:
    """Read a state before a user accepts its loss.

    :raises StateError: the state cannot be read.
    """
    evidence = ledger_evidence(ledger.store, ledger.paths)
    fence = state.fence()
    found: int | None = None
    change = 0 if fence is None else fence.change
    if isinstance(state, StoredState):
        made = TableHistory if state.takes_back_by_txid else StateHistory
        with suppress(RollForwardRefused):
            look = made(evidence, state).look()
            lacks = {each.number for each in look.pending.missing}
            if not (look.apart or look.pending.asked):
                # This repair also removes the records of an unfinished roll forward and of
                # transactions that it omitted.
                is_whole = look.first > look.found and evidence.topology.rolling is None
                found = look.found if is_whole else None
                change = min([change, *(each - 1 for each in lacks)])
    return SeenState(None if fence is None else fence.token, found, change)
