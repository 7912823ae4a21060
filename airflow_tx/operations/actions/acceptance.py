"""Acceptance by a person: of rows that a source has lost, of an output that checks refuse, of changed values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_tx.base import compat
from airflow_tx.base.errors import (
    AcceptanceRefused,
    JournalError,
    LossRefused,
    Refused,
    SourceError,
    StateBehind,
    StateError,
    StateUnavailable,
    TxError,
)
from airflow_tx.base.failpoints import failpoint
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import (
    ACCEPT_CHANGE,
    CHANGE,
    Audit,
    ColumnTotal,
    LedgerEvidence,
    LedgerView,
    Life,
    RepairRecord,
    Repairs,
    RowCount,
    StateEvidence,
    TransactionRecord,
    changed_values,
    check_in_words,
    digest,
    gone_in_words,
    ledger_evidence,
    renamed_since,
    shortened,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PlannedEffect,
    is_behind,
)
from airflow_tx.operations.actions.replay import NamedReplay
from airflow_tx.outputs import Entry, JournalArea
from airflow_tx.state import FencedState, QueryableState
from airflow_tx.transaction import contributions, old_side

if TYPE_CHECKING:
    from airflow_tx.ledger import Loss
    from airflow_tx.sources import Source

# --- loss ---------------------------------------------------------------------------------------------------------


class LossAcceptance(PersonalAction):
    """Lets a topology continue without rows that its source has lost.

    :ivar losses: what was lost when it was planned.
    """

    needs_reason = asks_dag = True
    subject = "The loss"
    losses: Sequence[Loss] = ()

    def plan(self) -> ActionPlan:
        known = self.target.ledger.topology().losses
        self.losses = losses_of(self.target.dag()[0].source, self.target.ledger.deciding_from())
        lost = [[loss.partition, loss.position, loss.resume_at] for loss in self.losses]
        version = digest([known, lost])
        if not self.losses:
            return self.refused(version, LossRefused(topology=self.target.topology))
        if any(loss.went_back for loss in self.losses):
            self._check_states()
        what = "; ".join(shortened([loss.description for loss in self.losses]))
        sentence = (
            f"Continue topology {self.target.topology} without these rows. "
            f"No transaction will ever have them: {what}."
        )
        lines = [EffectLine(None, None, loss.description) for loss in self.losses]
        return ActionPlan(version, sentence, [PlannedEffect(lines, partial(self._accept, known))])

    def _check_states(self) -> None:
        """Refuse while all states have gone back with the source, whose rows would be counted twice.

        :raises StateBehind: what they lack can be taken back.
        """
        topology = self.target.ledger.topology()
        states = [each for each in self.target.dag()[1].values() if each.has_fence]
        if not states or not all(is_behind(each, topology) for each in states):
            return
        fence = states[0].fence()
        raise StateBehind(
            remedy=Remedy.of(
                "The source of topology {topology} went back, too. What to do: "
                "<airflow tx repair {topology} --roll-forward>",
                topology=self.target.topology,
            ),
            state=states[0].name,
            expected=topology.states[states[0].name],
            found="nothing" if fence is None else fence.token.txid,
        )

    def _accept(self, known: Sequence[int], audit: Audit) -> Iterator[EffectLine]:
        self.target.ledger.accept_loss(self.losses, audit, known=known)
        for loss in self.losses:
            yield EffectLine(None, None, f"accepted as lost: {loss.description}")


def losses_of(source: Source, positions: Iterable[Any]) -> list[Loss]:
    """Collect what is lost behind any of these positions, each loss once.

    :raises SourceError: the source cannot be asked.
    """
    found: dict[str, Loss] = {}
    try:
        for position in positions:
            found |= {
                digest([loss.partition, loss.position]): loss for loss in source.losses(position)
            }
    except TxError:
        raise
    except Exception as error:
        problem = f"it cannot tell what it has lost: {type(error).__name__}: {error}"
        remedy = "Nothing was changed; let it be reached, and repeat."
        raise SourceError(source=repr(source), problem=problem, remedy=remedy) from error
    finally:
        source.close()
    return list(found.values())


# --- check --------------------------------------------------------------------------------------------------------


class CheckRefused(Refused):
    """Acceptance of a check that has not failed."""

    template = (
        "Check {name!r} of transaction {txid} of {topology} not accepted: it has not failed in its newest attempt, in "
        "which these have: {failed}. Nothing was changed."
    )


class CheckAcceptance(PersonalAction):
    """Lets a transaction commit the output in which checks have failed, and no other output.

    :param names: of the checks.
    """

    needs_reason = starts_runs = True

    def __init__(self, target: ActionTarget, txid: int, names: Sequence[str]) -> None:
        super().__init__(target)
        self.txid = txid
        self.names = list(dict.fromkeys(names))

    def plan(self) -> ActionPlan:
        version = self.target.version([self.txid])
        record = self.target.opened([self.txid])[self.txid]
        if isinstance(record, Refused):
            return self.refused(version, record, self.txid)
        if unknown := [name for name in self.names if "digest" not in record.checks.get(name, {})]:
            refusal = CheckRefused(
                name=unknown[0],
                txid=self.txid,
                topology=self.target.topology,
                failed=", ".join(map(repr, record.checks)) or "none",
            )
            return self.refused(version, refusal, self.txid, record.run_id)
        # Who accepted a check before, and why, is for people who may read that.
        hidden = () if self.target.sees_audit else ("accepted",)
        found = [
            check_in_words(name, {k: v for k, v in record.checks[name].items() if k not in hidden})
            for name in self.names
        ]
        sentence = (
            f"Commit transaction {self.txid}.{record.attempt} of topology {self.target.topology} (run "
            f"{record.run_id}) although checks have failed: {'; '.join(found)}."
        )
        lines = [EffectLine(self.txid, record.run_id, each) for each in found]
        effect = PlannedEffect(lines, partial(self._accept, record))
        return ActionPlan(version, sentence, [effect], [self.txid])

    def _accept(self, record: TransactionRecord, audit: Audit) -> Iterator[EffectLine]:
        """Note it, and let the commit be tried again, once no other check stands in its way."""
        digests = {name: record.checks[name]["digest"] for name in self.names}
        self.ledger.accept_checks(self.txid, digests, audit=audit)
        for name in self.names:
            accepted = f"accepted: {name}: {record.checks[name]['found']}"
            yield EffectLine(self.txid, record.run_id, accepted)
        if left := sorted(record.checks.keys() - {*self.names, *record.accepted_checks}):
            why = f"not committed: {', '.join(left)} failed, too. Accept it as well, or correct the code"
            yield EffectLine(self.txid, record.run_id, why)
        elif compat.clear_run(
            self.target.record.dag_id, record.run_id, past_limit=True, only_failed=True
        ):
            yield EffectLine(self.txid, record.run_id, "its failed tasks were cleared")
        else:  # of a lane, or deleted
            replay = NamedReplay(self.target, [self.txid], force=False, changed_rows=False)
            for effect in replay.plan().effects:
                yield from effect.deed(audit)


# --- changed values -----------------------------------------------------------------------------------------------


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
    journal: JournalArea, state: FencedState, repairs: Sequence[RepairRecord]
) -> list[str] | None:
    """Name the keys that entries of the journal have, and the state does not: a person has deleted them.

    An entry that cannot be read can take nothing back.

    :param repairs: of the ledger, which say what name a state has now.
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
    """Name the keys of one entry that are missing, and count all of them."""
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
    """The changes, the last receipt at the comparison, and the keys that are gone, as `missing_keys` gives them.

    :param unmarked: the number of an acceptance that has died before the fence of the state noted it; 0: none has.
    """

    changes: tuple[ColumnTotal | RowCount, ...]
    receipt: str
    keys: list[str] | None
    unmarked: int = 0

    @property
    def shown(self) -> list[str]:
        """Say what is changed, and what is gone."""
        if self.unmarked:
            return [f"its fence is to name the change that repair {self.unmarked} accepted"]
        shown = [each.told for each in self.changes]
        if self.keys is None:
            shown.append(
                "no transaction until now can be restated: its journal is too large to find lost keys"
            )
        elif self.keys:
            shown.append(
                f"{gone_in_words(len(self.keys))}, of which no restatement takes anything back"
            )
        return shown


class ChangeAcceptance(PersonalAction):
    """Lets `airflow tx verify --values` compare a state with the values that it has now."""

    needs_reason = asks_dag = True

    def __init__(self, target: ActionTarget, state: str, *, made_after: int | None = None) -> None:
        """Choose a state.

        :param made_after: the transaction behind which its values were changed; None: the last final one.
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
        sentence = (
            f"Accept what state {self.state} of topology {self.target.topology} holds now: {what}."
        )
        lines = [EffectLine(None, None, each) for each in found.shown]
        version = digest([found.receipt, found.keys, [each.told for each in found.changes]])
        return ActionPlan(version, sentence, [PlannedEffect(lines, partial(self._accept, found))])

    def _accept(self, found: _Found, audit: Audit) -> Iterator[EffectLine]:
        columns = dict[str, int]()
        rows = dict[int, int]()
        for change in found.changes:
            if isinstance(change, RowCount):
                rows[change.txid] = change.rows
            else:
                columns[change.column] = change.total - change.expected
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
        repairs = LedgerView(ledger.store, ledger.paths).repairs()
        accepted = [each for each in repairs if each.change.get("state") == self.state]
        record = next(each for each in reversed(accepted) if each.what == ACCEPT_CHANGE)
        # The fence comes last: until then no transaction is committed, and a repetition does the rest.
        JournalArea(spec.staging(), ledger.incarnation()).keep_change(record)
        failpoint("accept_change.kept", state=self.state)
        if state.names_changes:
            state.accept_values(record.number)
        for each in found.shown:
            yield EffectLine(None, None, f"accepted: {each}")

    def _find(self) -> _Found:
        """:raises AcceptanceRefused: the DAG has no such state, its values are unknown, or as the receipts say."""
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
                f"transaction {self.made_after} is none of 0 to {ledger.current - 1}"
            )
        # Keys alone are enough: a restatement that takes them back has raised the fence when it is refused.
        if known.issuperset(keys or ()):
            if isinstance(changes, str):
                raise self._refusal(f"its values cannot be compared, since {changes}")
            if not changes:
                raise self._refusal("its values are what its receipts say")
        compared = () if isinstance(changes, str) else tuple(changes)
        return _Found(compared, ledger.topology.receipt, keys)

    def _unmarked(self, ledger: LedgerEvidence, state: FencedState) -> int:
        """Give the newest accepted change if the fence of the state does not name it; 0: it does."""
        number: int = ledger.topology.accepted.get(self.state, {}).get(CHANGE, 0)
        fence = state.fence()
        return number if fence is not None and fence.change < number else 0

    def _refusal(self, problem: str) -> AcceptanceRefused:
        return AcceptanceRefused(state=self.state, topology=self.target.topology, problem=problem)
