"""Repair of a topology whose state was emptied, or restored to an older backup: what it lost stays lost."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from airflow_tx.base.errors import ConfigError, RepairRefused, RollForwardRefused, StateError
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import STATE_LOST, Ledger, SeenState, ledger_evidence, reason_of
from airflow_tx.operations.actions.action import ONE, ActionPlan, ActionTarget, RequestForm
from airflow_tx.operations.actions.repair import NOBODY, StateRepair
from airflow_tx.state import FencedState, StoredState
from airflow_tx.transaction import StateHistory, TableHistory


class LostState(StateRepair):
    """Accepts the values of a state that was emptied, or restored to an older backup. Lost values stay lost.

    :param unseen: without a look at it.
    """

    form = RequestForm(
        lambda asked, target: LostState(target, asked.names[0]),
        names=ONE,
        named="name one state",
    )

    def __init__(self, target: ActionTarget, state: str, *, unseen: bool = False) -> None:
        super().__init__(target, state)
        self.unseen = unseen

    def decide(self) -> ActionPlan:
        seen = None if self.unseen else self._seen()
        planned = self.repairs.state_lost.preview(self.state, NOBODY, seen=seen)
        sentence = f"Accept what state {self.state} of topology {self.target.topology} holds; what it lost stays lost."
        repair = partial(self.repairs.state_lost, self.state, seen=seen)
        return self.keeping(planned, sentence, lambda audit: repair(audit=audit), seen=seen)

    def _seen(self) -> SeenState | None:
        """Look at the state: that alone is accepted.

        :raises RepairRefused: it cannot be reached, or the DAG has no such state.
        """
        unseen = "<airflow tx repair {topology} --state-lost {state} --unseen>"
        try:
            _, states = self.target.dag()
        except ConfigError as error:
            raise self._refusal(
                f"its state cannot be looked at. {error}", f"Or: {unseen}"
            ) from error
        if self.state not in states:
            known = ", ".join(sorted(states)) or "no state"
            problem = f"the DAG has {known}, and no state {self.state!r}"
            forget = "To continue without it: <airflow tx state forget {topology} {state}>"
            raise self._refusal(problem, forget)
        state = states[self.state]
        if not state.has_fence:
            return None
        try:
            return seen_state(self.ledger, state)
        except StateError as error:
            problem = f"state {self.state!r} cannot be looked at ({reason_of(error)})"
            raise self._refusal(problem, f"Let it be reached, or: {unseen}") from error

    def _refusal(self, problem: str, remedy: str) -> RepairRefused:
        topology = self.target.topology
        to_do = Remedy.of(remedy, topology=topology, state=self.state)
        return RepairRefused(what=STATE_LOST, topology=topology, problem=problem, remedy=to_do)


def seen_state(ledger: Ledger, state: FencedState) -> SeenState:
    """Look at a state whose loss a person accepts.

    :raises StateError: it cannot be read.
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
                # A run that has not ended is forgotten with this, and what it has passed over.
                is_whole = look.first > look.found and evidence.topology.rolling is None
                found = look.found if is_whole else None
                change = min([change, *(each - 1 for each in lacks)])
    return SeenState(None if fence is None else fence.token, found, change)
