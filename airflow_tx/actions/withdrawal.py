"""The withdrawal of a wish: a committed transaction is not restated after all. Source: protocol.md §11."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.preview import ActionPlan, EffectLine, PlannedEffect
from airflow_tx.errors import Refused
from airflow_tx.protocol.step import Audit
from airflow_tx.protocol.wish import Wish, wishes, withdraw


class WishWithdrawal(PersonalAction):
    """Takes back that transactions are to be restated, as long as no run has begun that.

    :param txids: none: all.
    """

    def __init__(self, target: ActionTarget, txids: Sequence[int]) -> None:
        super().__init__(target)
        self.txids = sorted(set(txids))

    def plan(self) -> ActionPlan:
        found = self._wishes()
        named = self.txids or list(found)
        version = self.target.version(named)
        effects = [self._effect(txid, found.get(txid)) for txid in named]
        return ActionPlan(version, self._sentence(), effects, named)

    def _effect(self, txid: int, wish: Wish | None) -> PlannedEffect:
        run_id = None if wish is None else wish.run_id
        deed = partial(self._withdraw, txid, run_id)
        try:
            self.ledger.preview(withdraw, txid)
        except Refused as refused:
            return PlannedEffect([EffectLine(txid, None, str(refused))], deed, is_refused=True)
        by = "" if wish is None else f"; wanted by {self.target.person(wish.who, wish.why)}"
        return PlannedEffect([EffectLine(txid, run_id, f"is not restated{by}")], deed)

    def _withdraw(self, txid: int, run_id: str | None, audit: Audit) -> Iterator[EffectLine]:
        self.ledger.run(withdraw, txid)
        yield EffectLine(txid, run_id, "not restated: the wish is taken back")

    def _wishes(self) -> dict[int, Wish]:
        self.ledger.store.sync()
        return {wish.txid: wish for wish in wishes(self.ledger.store, self.ledger.paths)}

    def _sentence(self) -> str:
        which = ", ".join(map(str, self.txids)) or "everything that is wanted"
        return f"Do not restate {which} of topology {self.target.topology}."
