"""Acceptance of manually changed values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from airflow_tx.base.errors import AcceptanceRefused, JournalError, StateError, StateUnavailable
from airflow_tx.base.failpoints import failpoint
from airflow_tx.ledger import (
    ACCEPT_CHANGE,
    CHANGE,
    Audit,
    ColumnTotal,
    LedgerEvidence,
    Life,
    RepairRecord,
    Repairs,
    RowCount,
    changed_values,
    digest,
    gone_in_words,
    ledger_evidence,
    renamed_since,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PlannedEffect,
)
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.outputs import Entry, JournalArea
from airflow_tx.state import FencedState, QueryableState
from airflow_tx.transaction import contributions, old_side

MOST_ENTRIES = 10_000
"""Maximum number of journal entries that the search for deleted keys reads."""
MOST_KEYS = 1_000_000
"""Maximum number of keys in the search for deleted keys."""
MOST_GONE = 10_000
"""Maximum number of deleted keys, since a ZooKeeper record lists them all."""


def missing_keys(
    journal: JournalArea, state: FencedState, repairs: Sequence[RepairRecord]
) -> list[str] | None:
    """Return the keys that were deleted from a state by hand. Journal entries contain these keys.

    An unreadable entry is ignored, since a restatement cannot use it.

    :param repairs: repairs of the ledger, which may have renamed the state.
    :return: names of the keys, or None if there are too many keys to search.
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
            gone, count = _missing(journal.read(name), state, repairs)
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
    entry: Entry, state: QueryableState, repairs: Sequence[RepairRecord]
) -> tuple[set[str], int]:
    """Return the missing keys of one journal entry, and its total number of keys."""
    found = set[str]()
    renamed = renamed_since(repairs, entry.contributions, entry.txid)
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
    """Manual changes to a state's values.

    :param changes: totals and row counts that differ from the receipts.
    :param receipt: hash of the last receipt when the values were compared.
    :param keys: deleted keys, from `missing_keys`.
    :param unmarked: number of an interrupted acceptance that has not written its number to the fence, or 0 if there is
        none.
    """

    changes: tuple[ColumnTotal | RowCount, ...]
    receipt: str
    keys: list[str] | None
    unmarked: int = 0

    @property
    def shown(self) -> list[str]:
        """Describe the changed totals and the deleted keys, one line each."""
        if self.unmarked:
            return [f"its fence will name the change that repair {self.unmarked} accepted"]
        shown = [each.told for each in self.changes]
        if self.keys is None:
            shown.append(
                "no earlier transaction can be restated: the journal is too large to find lost keys"
            )
        elif self.keys:
            shown.append(
                f"{gone_in_words(len(self.keys))}, and no restatement takes back the lost values"
            )
        return shown


class ChangeAcceptance(PersonalAction):
    """Accepts the current values of a state. `airflow tx verify --values` then compares with these values."""

    needs_reason = asks_dag = True

    def __init__(self, target: ActionTarget, state: str, *, made_after: int | None = None) -> None:
        """Create the action.

        :param state: name of the state.
        :param made_after: last transaction before the manual change, or None for the last final transaction.
        """
        super().__init__(target)
        self.state = state
        self.made_after = made_after
        self.subject = f"State {state!r}"

    def plan(self) -> ActionPlan:
        try:
            found = self._find()
        except AcceptanceRefused as refused:
            return self.refused("", refused)
        what = "; ".join(found.shown)
        sentence = f"Accept the current values of state {self.state} of topology {self.target.topology}: {what}."
        lines = [EffectLine(None, None, each) for each in found.shown]
        version = digest([found.receipt, found.keys, [each.told for each in found.changes]])
        return ActionPlan(version, sentence, [PlannedEffect(lines, partial(self._accept, found))])

    def _accept(self, found: _Found, audit: Audit) -> Iterator[EffectLine]:
        totals = [each for each in found.changes if isinstance(each, ColumnTotal)]
        columns = {each.column: each.total - each.expected for each in totals}
        rows = {each.txid: each.rows for each in found.changes if isinstance(each, RowCount)}
        ledger = self.target.ledger
        spec, states = self.target.dag()
        state = states[self.state]
        if not found.unmarked:
            Repairs(ledger).note_change(
                self.state,
                columns,
                rows=rows,
                keys=found.keys,
                made_after=self.made_after,
                marked=state.names_changes,
                receipt=found.receipt,
                audit=audit,
            )
        failpoint("accept_change.noted", state=self.state)
        repairs = ledger.repairs()
        accepted = [each for each in repairs if each.change.get("state") == self.state]
        record = next(each for each in reversed(accepted) if each.what == ACCEPT_CHANGE)
        # Write the number to the fence last. Until then no transaction commits, and a repeated
        # command continues here.
        JournalArea(spec.staging(), ledger.incarnation()).keep_change(record)
        failpoint("accept_change.kept", state=self.state)
        if state.names_changes:
            state.accept_values(record.number)
        for each in found.shown:
            yield EffectLine(None, None, f"accepted: {each}")

    def _find(self) -> _Found:
        """Find the changes to the state's values.

        :raises AcceptanceRefused: the DAG has no such state, the values of the state are unknown, or nothing has
            changed.
        """
        ledger = ledger_evidence(self.target.ledger.store, self.target.ledger.paths)
        spec, states = self.target.dag()
        if self.state not in states:
            raise self._refusal(f"the DAG updates {', '.join(sorted(states)) or 'no state'}")
        changes = changed_values(ledger, evidence_of(states, values=True), self.state)
        journal = JournalArea(spec.staging(), ledger.topology.incarnation)
        keys = missing_keys(journal, states[self.state], ledger.repairs)
        life = Life.of(self.state, ledger.topology, ledger.repairs)
        known = life.gone(0)
        unmarked = self._unmarked(ledger, states[self.state])
        if unmarked and not changes and known.issuperset(keys or ()):
            return _Found((), ledger.topology.receipt, [], unmarked)
        if self.made_after is not None and not 0 <= self.made_after < ledger.current:
            raise self._refusal(
                f"transaction {self.made_after} is not between 0 and {ledger.current - 1}"
            )
        # Deleted keys alone justify an acceptance. A restatement that must take them back is
        # refused only after its grant has raised the fence. The values can no longer be compared
        # then.
        if known.issuperset(keys or ()):
            if isinstance(changes, str):
                raise self._refusal(f"its values cannot be compared, since {changes}")
            if not changes:
                raise self._refusal("its values match its receipts")
        compared = () if isinstance(changes, str) else tuple(changes)
        return _Found(compared, ledger.topology.receipt, keys)

    def _unmarked(self, ledger: LedgerEvidence, state: FencedState) -> int:
        """Return the number of the newest accepted change if the fence does not have it yet.

        Return 0 if the fence has it.
        """
        number: int = ledger.topology.accepted.get(self.state, {}).get(CHANGE, 0)
        fence = state.fence()
        return number if fence is not None and fence.change < number else 0

    def _refusal(self, problem: str) -> AcceptanceRefused:
        return AcceptanceRefused(state=self.state, topology=self.target.topology, problem=problem)
