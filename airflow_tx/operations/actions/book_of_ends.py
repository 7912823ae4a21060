"""Repair of a book of ends that lacks old lines, which are rebuilt from the ledger's and the states' receipts."""

from __future__ import annotations

from functools import partial

from airflow_tx.ledger import ENDS, ledger_evidence, lines_lacking
from airflow_tx.operations.actions.action import ActionPlan
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.operations.actions.repair import NOBODY, LedgerRepair


class BookExtension(LedgerRepair):
    """Adds the missing old lines to the book of ends, as far back as the receipts reach.

    You can repeat it after a crash.
    """

    option = ENDS
    is_of_ledger = False
    subject = "The book of ends"

    def decide(self) -> ActionPlan:
        spec, states = self.target.dag()
        evidence = ledger_evidence(self.ledger.store, self.ledger.paths, partly=True)
        tables = {name for name, state in states.items() if state.takes_back_by_txid}
        held = evidence_of(states, values=False)
        lines = lines_lacking(evidence, held, spec.request, tables)
        sentence = f"Add older lines to the book of ends of topology {self.target.topology}."
        planned = lines.preview(self.ledger, NOBODY)
        return self.planned(planned, sentence, partial(lines.put, self.ledger), ())
