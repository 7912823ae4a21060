"""Repair of a ledger that was lost, or restored to an older snapshot. It rebuilds the ledger from the states."""

from __future__ import annotations

from airflow_tx.ledger import (
    LEDGER_LOST,
    Audit,
    Decision,
    HeldState,
    Repaired,
    RepairRecord,
    TransactionRecord,
    bound_after,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    EffectLine,
)
from airflow_tx.operations.actions.repair import NOBODY, LedgerRepair, fences_in_words
from airflow_tx.outputs import JournalArea
from airflow_tx.state import StateKind


class LostLedger(LedgerRepair):
    """Rebuilds the ledger from the states of the DAG. You can repeat it after a crash."""

    option = LEDGER_LOST

    def decide(self) -> ActionPlan:
        spec, states = self.target.dag()
        fences = {name: state.fence() for name, state in states.items()}
        held = [
            HeldState.of(
                name,
                undoable=states[name].kind is StateKind.OPAQUE,
                fence=fence,
                holds=states[name].holds,
                receipts=states[name].receipts(),
            )
            for name, fence in fences.items()
            if fence is not None
        ]
        area = spec.staging()
        lives = {fence.incarnation for fence in fences.values() if fence is not None}
        changes: list[RepairRecord] = [
            each for life in lives for each in JournalArea(area, life).changes()
        ]
        planned = self.repairs.preview_ledger_lost(held, spec.request, NOBODY, changes=changes)
        made_anew = self.repairs.incarnation()

        def rebuild(audit: Audit) -> Repaired:
            for life in lives:
                if made_anew not in ("", life):
                    area.adopt_taken(made_anew, life)
            return self.repairs.ledger_lost(held, spec.request, audit, changes=changes)

        # The ledger's path lets users check that it is the right one.
        place = f"{self.target.topology} in {self.ledger.store.where} ({fences_in_words(fences)})"
        sentence = f"Rebuild the ledger of topology {place}: {planned.result.summary}."
        opened = [
            EffectLine(txid, record.run_id, self._becomes(planned, txid, record))
            for txid, record in self.ledger.open_records().items()
        ]
        return self.planned(planned, sentence, rebuild, opened)

    def _becomes(self, planned: Decision[Repaired], txid: int, record: TransactionRecord) -> str:
        """Describe the effect on an open transaction. The repair removes its record, and may remove its binding."""
        bound = bound_after(planned, self.ledger.paths, txid, record.key)
        if bound is None:
            return "forgotten: its run begins again when it is cleared"
        if bound != txid:
            return f"forgotten: its run has transaction {bound} again"
        return "closed: the states say that it was committed"
