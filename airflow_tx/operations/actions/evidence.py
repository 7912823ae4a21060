"""Evidence for audits: facts about transactions from a topology's ledger and states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from airflow_tx.ledger import (
    Chain,
    LedgerEvidence,
    ReadOnlyLedger,
    Receipt,
    StateEvidence,
    ledger_evidence,
    restated,
)
from airflow_tx.operations.actions.action import ParsedDag
from airflow_tx.sources import Source
from airflow_tx.state import FencedState
from airflow_tx.transaction import TransactionSpec


def evidence_of(states: Mapping[str, FencedState], *, values: bool) -> tuple[StateEvidence, ...]:
    """Read the evidence from states.

    :param states: states of the DAG, by name.
    :param values: whether to read the totals of their values as well.
    """
    return tuple(_evidence_of(name, state, values=values) for name, state in sorted(states.items()))


def _evidence_of(name: str, state: FencedState, *, values: bool) -> StateEvidence:
    columns = state.columns
    # Read the fence after the totals. The fence then shows whether a commit has changed the values
    # since.
    totals = state.totals(columns.added_up) if values and columns is not None else None
    rows = state.rows_by_txid() if values else None
    return StateEvidence(name, state.fence(), state.receipts(), state.receipts_kept, totals, rows)


@dataclass(frozen=True)
class TopologyEvidence:
    """A topology's evidence from its ledger, states and DAG."""

    ledger: LedgerEvidence
    states: tuple[StateEvidence, ...]
    spec: TransactionSpec

    @property
    def source(self) -> Source:
        return self.spec.source

    def receipts(self, first: int | None, last: int | None) -> dict[int, Receipt]:
        """Return the receipts from `first` to `last`, including receipts that only the states have."""
        end = self.ledger.current - 1 if last is None else last
        found = Chain(self.ledger, self.states, first or 1, end).receipts
        return {txid: found[txid] for txid in sorted(found) if (first or 1) <= txid <= end}

    @cached_property
    def restated(self) -> Mapping[int, int]:
        """Map each restated transaction to its last restatement, which counts now."""
        return restated(self.receipts(None, None))

    @classmethod
    def read(
        cls,
        ledger: ReadOnlyLedger,
        dag: Callable[[str], ParsedDag],
        *,
        values: bool = False,
        partly: bool = False,
        receipts_alone: bool = False,
    ) -> TopologyEvidence:
        """Read the evidence from the ledger, and then from the states.

        :param dag: function that parses the DAG with a given dag_id.
        :param values: whether to read the totals of the states' values as well.
        :param partly: see `ledger_evidence`.
        :param receipts_alone: see `ledger_evidence`.
        :raises UnknownTransaction: the topology does not exist.
        :raises UnreadableRecord: a record cannot be read; the error names it.
        """
        found = ledger_evidence(
            ledger.store, ledger.paths, partly=partly, receipts_alone=receipts_alone
        )
        spec, states = dag(found.topology.dag_id)
        held = evidence_of(states, values=values)
        # Read the turn again, since the states may have newer transactions than the ledger had at
        # first.
        return cls(replace(found, latest=ledger.current()), held, spec)
