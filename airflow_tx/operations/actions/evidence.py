"""Evidence: what the ledger and the states of a topology say of its transactions, for audits and questions."""

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
    """Read what states say of themselves.

    :param values: whether to add up their values, too.
    """
    return tuple(_evidence_of(name, state, values=values) for name, state in sorted(states.items()))


def _evidence_of(name: str, state: FencedState, *, values: bool) -> StateEvidence:
    columns = state.columns
    # Read the fence after the totals: it shows whether another commit has written since.
    totals = state.totals(columns.added_up) if values and columns is not None else None
    rows = state.rows_by_txid() if values else None
    return StateEvidence(name, state.fence(), state.receipts(), state.receipts_kept, totals, rows)


@dataclass(frozen=True)
class TopologyEvidence:
    """The evidence of the ledger, the states and the DAG of a topology."""

    ledger: LedgerEvidence
    states: tuple[StateEvidence, ...]
    spec: TransactionSpec

    @property
    def source(self) -> Source:
        return self.spec.source

    def receipts(self, first: int | None, last: int | None) -> dict[int, Receipt]:
        """The receipts from `first` to `last`, also receipts that only the states keep."""
        end = self.ledger.current - 1 if last is None else last
        found = Chain(self.ledger, self.states, first or 1, end).receipts
        return {txid: found[txid] for txid in sorted(found) if (first or 1) <= txid <= end}

    @cached_property
    def restated(self) -> Mapping[int, int]:
        """Name, by transaction that was restated, the one that counts now."""
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
        """Read the ledger, and then its states.

        :param dag: finds the DAG of an id.
        :param values: whether to add up the values of the states, too.
        :param partly, receipts_alone: as of `ledger_evidence`.
        :raises UnknownTransaction: there is no such topology.
        :raises UnreadableRecord: naming the record.
        """
        found = ledger_evidence(
            ledger.store, ledger.paths, partly=partly, receipts_alone=receipts_alone
        )
        spec, states = dag(found.topology.dag_id)
        held = evidence_of(states, values=values)
        # The states were read later: one that is further than the ledger was then has not gone ahead of it.
        return cls(replace(found, latest=ledger.current()), held, spec)
