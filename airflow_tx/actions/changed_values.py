"""Acceptance of changed values by a person: rows of a state that were corrected or deleted on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.preview import ActionPlan, EffectLine, PlannedEffect
from airflow_tx.commit.contributions import old_side
from airflow_tx.commit.restatement import contributions
from airflow_tx.errors import (
    AcceptanceRefused,
    JournalError,
    StateError,
    StateUnavailable,
)
from airflow_tx.journal.area import JournalArea
from airflow_tx.journal.entry import Entry
from airflow_tx.protocol.batch_words import gone_in_words
from airflow_tx.protocol.evidence import StateEvidence, ledger_evidence
from airflow_tx.protocol.json_text import digest
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.repair import keys_gone, note_change
from airflow_tx.protocol.step import Audit
from airflow_tx.protocol.verification import ColumnTotal, changed_columns
from airflow_tx.state.api import FencedState, QueryableState

MOST_ENTRIES = 10_000
"""Entries of the journal that are read for the keys that are gone."""
MOST_KEYS = 1_000_000
MOST_GONE = 10_000
"""Keys that are gone: a record in ZooKeeper names each of them."""


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


def missing_keys(
    journal: JournalArea, state: FencedState, renamed: Mapping[str, str]
) -> list[str] | None:
    """Name the keys that entries of the journal have, and the state does not: a person has deleted them.

    An entry that cannot be read can take nothing back.

    :param renamed: per earlier name of a state, its name now.
    :return: None: these are too many to look them up.
    """
    if not isinstance(state, QueryableState):
        return []
    names = journal.names()
    found = set[str]()
    looked_up = 0
    if len(names) > MOST_ENTRIES:
        return None
    for name in names:
        try:
            gone, count = _missing(journal.read(name), state, renamed)
        except StateUnavailable:
            raise
        except (JournalError, StateError):
            continue
        looked_up += count
        found |= gone
        if looked_up > MOST_KEYS or len(found) > MOST_GONE:
            return None
    return sorted(found)


def _missing(
    entry: Entry, state: QueryableState, renamed: Mapping[str, str]
) -> tuple[set[str], int]:
    """Name the keys of one entry that are missing, and count all of them."""
    found = set[str]()
    old = contributions(entry, renamed).get(state.name)
    if old is None:
        return found, 0
    side = old_side(state, old)
    for keys in side.keys():
        values = state.multi_get(keys)
        found |= {
            side.key_name(key) for key, each in zip(keys, values, strict=True) if each is None
        }
    return found, old.count


@dataclass(frozen=True)
class _Found:
    """The changes, the last receipt at the comparison, and the keys that are gone, as `missing_keys` gives them."""

    changes: tuple[ColumnTotal, ...]
    receipt: str
    keys: list[str] | None

    @property
    def shown(self) -> list[str]:
        """Say what is changed, and what is gone."""
        shown = [_shown(each) for each in self.changes]
        if self.keys is None:
            shown.append(
                "no transaction until now can be restated: its journal is too large to find lost keys"
            )
        elif self.keys:
            shown.append(
                f"{gone_in_words(len(self.keys))}, of which no restatement takes anything back"
            )
        return shown

    @property
    def version(self) -> str:
        return digest(
            [
                self.receipt,
                self.keys,
                [[each.column, each.total, each.expected] for each in self.changes],
            ]
        )


class ChangeAcceptance(PersonalAction):
    """Lets `airflow tx verify --values` compare a state with the values that it has now."""

    needs_reason = True

    def __init__(self, target: ActionTarget, state: str) -> None:
        super().__init__(target)
        self.state = state
        self.subject = f"State {state!r}"

    def plan(self) -> ActionPlan:
        try:
            found = self._find()
        except AcceptanceRefused as refused:
            return self.refused("", refused)
        what = "; ".join(found.shown)
        sentence = (
            f"Accept what state {self.state} of topology {self.target.topology} holds now: {what}."
        )
        lines = [EffectLine(None, None, each) for each in found.shown]
        return ActionPlan(
            found.version, sentence, [PlannedEffect(lines, partial(self._accept, found))]
        )

    def _accept(self, found: _Found, audit: Audit) -> Iterator[EffectLine]:
        columns = {each.column: each.total - each.expected for each in found.changes}
        self.target.ledger.run(
            note_change,
            self.state,
            columns,
            keys=found.keys,
            receipt=found.receipt,
            audit=audit,
        )
        self.target.dag()[1][self.state].accept_values()
        for each in found.shown:
            yield EffectLine(None, None, f"accepted: {each}")

    def _find(self) -> _Found:
        """:raises AcceptanceRefused: the DAG has no such state, its values are unknown, or as the receipts say."""
        ledger = ledger_evidence(self.target.ledger.store, self.target.ledger.paths)
        spec, states = self.target.dag()
        if self.state not in states:
            raise self._refusal(f"the DAG updates {', '.join(sorted(states)) or 'no state'}")
        changes = changed_columns(ledger, evidence_of(states, values=True), self.state)
        journal = JournalArea(spec.staging(), ledger.topology.incarnation)
        renamed = ledger.topology.renamed
        keys = missing_keys(journal, states[self.state], renamed)
        own = self.target.ledger
        known = keys_gone(Reader(own.store), own.paths, self.state, 0, renamed)
        # Keys alone are enough: a restatement that takes them back has raised the fence when it is refused.
        if known.issuperset(keys or ()):
            if isinstance(changes, str):
                raise self._refusal(f"its values cannot be compared, since {changes}")
            if not changes:
                raise self._refusal("its values add up to what its receipts say")
        compared = () if isinstance(changes, str) else tuple(changes)
        return _Found(compared, ledger.topology.receipt, keys)

    def _refusal(self, problem: str) -> AcceptanceRefused:
        return AcceptanceRefused(state=self.state, topology=self.target.topology, problem=problem)


def _shown(each: ColumnTotal) -> str:
    return f"column {each.column} adds up to {each.total}, and its receipts to {each.expected}"
