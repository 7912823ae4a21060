"""User withdrawal of a restatement request. Source: protocol.md §11."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from airflow_tx.base.errors import Refused
from airflow_tx.ledger import Audit, Wish
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PlannedEffect,
)


class WishWithdrawal(PersonalAction):
    """Withdraws restatement requests that no run has begun.

    :param txids: txids of the requests, or empty for all requests.
    """

    def __init__(self, target: ActionTarget, txids: Sequence[int] = ()) -> None:
        super().__init__(target)
        self.txids = sorted(set(txids))

    def plan(self) -> ActionPlan:
        found = {wish.txid: wish for wish in self.target.wishes()}
        named = self.txids or list(found)
        version = self.target.version(named)
        effects = [self._effect(txid, found.get(txid)) for txid in named]
        which = ", ".join(map(str, self.txids)) or "any requested transaction"
        sentence = f"Do not restate {which} of topology {self.target.topology}."
        return ActionPlan(version, sentence, effects, named)

    def _effect(self, txid: int, wish: Wish | None) -> PlannedEffect:
        run_id = None if wish is None else wish.run_id
        deed = partial(self._withdraw, txid, run_id)
        try:
            self.ledger.withdraw_wish.preview(txid)
        except Refused as refused:
            return PlannedEffect([EffectLine(txid, None, str(refused))], deed, is_refused=True)
        by = "" if wish is None else f"; requested by {self.target.person(wish.who, wish.why)}"
        return PlannedEffect([EffectLine(txid, run_id, f"is not restated{by}")], deed)

    def _withdraw(self, txid: int, run_id: str | None, audit: Audit) -> Iterator[EffectLine]:
        self.ledger.withdraw_wish(txid)
        yield EffectLine(txid, run_id, "not restated: the request is withdrawn")
