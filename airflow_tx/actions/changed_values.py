"""Acceptance of changed values by a person: rows of a state that were corrected or deleted on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.preview import EffectLine, PreviewAnswer
from airflow_tx.errors import AcceptanceRefused, PreviewOutdated
from airflow_tx.protocol.evidence import StateEvidence, ledger_evidence
from airflow_tx.protocol.records import digest
from airflow_tx.protocol.repair import note_change
from airflow_tx.protocol.step import Audit
from airflow_tx.protocol.verification import ColumnTotal, changed_columns
from airflow_tx.state.api import FencedState


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
class _Found:
    """The changes, and the last receipt at the comparison."""

    changes: tuple[ColumnTotal, ...]
    receipt: str

    @property
    def version(self) -> str:
        return digest(
            [
                self.receipt,
                [[each.column, each.total, each.expected] for each in self.changes],
            ]
        )


class ChangeAcceptance(PersonalAction):
    """Lets `airflow tx verify --values` compare a state with the values that it has now."""

    needs_reason = True

    def __init__(self, target: ActionTarget, state: str) -> None:
        super().__init__(target)
        self.state = state

    def preview(self) -> PreviewAnswer:
        try:
            found = self._find()
        except AcceptanceRefused as refused:
            return self.refusal("", refused)
        effects = [EffectLine(None, None, _shown(each)) for each in found.changes]
        what = "; ".join(each.what for each in effects)
        sentence = (
            f"Accept what state {self.state} of topology {self.target.topology} holds now: {what}."
        )
        return self.answer(found.version, sentence, effects)

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[EffectLine]:
        found = self._find()
        if version not in (None, found.version):
            raise PreviewOutdated(what=f"State {self.state!r}", topology=self.target.topology)
        columns = {each.column: each.total - each.expected for each in found.changes}
        self.target.ledger.run(note_change, self.state, columns, receipt=found.receipt, audit=audit)
        self.target.dag()[1][self.state].accept_values()
        for each in found.changes:
            yield EffectLine(None, None, f"accepted: {_shown(each)}")

    def _find(self) -> _Found:
        """:raises AcceptanceRefused: the DAG has no such state, its values are unknown, or as the receipts say."""
        ledger = ledger_evidence(self.target.ledger.store, self.target.ledger.paths)
        _, states = self.target.dag()
        if self.state not in states:
            raise self._refused(f"the DAG updates {', '.join(sorted(states)) or 'no state'}")
        changes = changed_columns(ledger, evidence_of(states, values=True), self.state)
        if isinstance(changes, str):
            raise self._refused(f"its values cannot be compared, since {changes}")
        if not changes:
            raise self._refused("its values add up to what its receipts say")
        return _Found(tuple(changes), ledger.topology.receipt)

    def _refused(self, problem: str) -> AcceptanceRefused:
        return AcceptanceRefused(state=self.state, topology=self.target.topology, problem=problem)


def _shown(each: ColumnTotal) -> str:
    return f"column {each.column} adds up to {each.total}, and its receipts to {each.expected}"
