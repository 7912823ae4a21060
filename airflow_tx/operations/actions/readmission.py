"""User readmission: process the rows of a skipped transaction as a new transaction.

Source: protocol.md §5.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow_tx.base.errors import Refused
from airflow_tx.ledger import Audit, Skipped
from airflow_tx.operations.actions.action import (
    ActionPlan,
    EffectLine,
    PlannedEffect,
    TransactionAction,
)
from airflow_tx.operations.actions.skip import shown_rows


class Readmission(TransactionAction):
    """Processes the rows of a skipped transaction as a new transaction."""

    needs_reason = starts_runs = True

    def plan(self) -> ActionPlan:
        version = self.target.version([self.txid])
        try:
            skipped = self.ledger.check_skipped(self.txid)
            state = self.target.runs.checked(skipped.run_id)
        except Refused as refused:
            return self.refused(version, refused, self.txid)
        how = "is created again" if state is None else "is cleared"
        what = f"its run {how}, and processes the current rows at the same place in the source as a new transaction"
        line = EffectLine(self.txid, skipped.run_id, what)
        effects = [PlannedEffect([line], partial(self._readmit, skipped))]
        who = f"skipped by {self.target.person(skipped.skip.who, skipped.skip.why)}"
        sentence = (
            f"Process the rows of transaction {self.txid} of topology {self.target.topology} ({who}) as a new "
            f"transaction, in run {skipped.run_id}: {shown_rows(skipped.rows)}."
        )
        return ActionPlan(version, sentence, effects, [self.txid])

    def _readmit(self, skipped: Skipped, audit: Audit) -> Iterator[EffectLine]:
        noting = partial(self.ledger.note_readmission, self.txid, audit)
        how = self.target.runs.start(skipped.run_id, skipped.key, noting=noting)
        done = f"re-admitted: {how}, and takes the current rows at the same place in the source, as a new transaction"
        yield EffectLine(self.txid, skipped.run_id, done)
