"""The withdrawal of a wish: a committed transaction is not restated after all. Source: protocol.md §11."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.preview import EffectLine, PreviewAnswer
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

    def preview(self) -> PreviewAnswer:
        found = self._wishes()
        version = self.target.version(self.txids or list(found))
        effects = [
            EffectLine(
                wish.txid,
                wish.run_id,
                f"is not restated; wanted by {self.target.person(wish.who, wish.why)}",
            )
            for wish in found.values()
            if not self.txids or wish.txid in self.txids
        ]
        refused = []
        for txid in self.txids:
            if txid not in found:
                refused += self._refusal(txid)
        return self.answer(version, self._sentence(), effects, refused)

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[EffectLine]:
        found = self._wishes()
        self.target.take(self.txids or list(found), version)
        for txid in self.txids or found:
            self.ledger.run(withdraw, txid)
            run_id = found[txid].run_id if txid in found else None
            yield EffectLine(txid, run_id, "not restated: the wish is taken back")

    def _wishes(self) -> dict[int, Wish]:
        self.ledger.store.sync()
        return {wish.txid: wish for wish in wishes(self.ledger.store, self.ledger.paths)}

    def _refusal(self, txid: int) -> list[EffectLine]:
        try:
            self.ledger.preview(withdraw, txid)
        except Refused as refused:
            return [EffectLine(txid, None, str(refused))]
        return []

    def _sentence(self) -> str:
        which = ", ".join(map(str, self.txids)) or "everything that is wanted"
        return f"Do not restate {which} of topology {self.target.topology}."
