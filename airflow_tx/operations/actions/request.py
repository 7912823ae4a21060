"""Which action a person wants, as plain JSON: it travels between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_tx.base import compat
from airflow_tx.base.errors import (
    AcceptanceRefused,
    JournalError,
    LossRefused,
    PreviewOutdated,
    Refused,
    SourceError,
    StateBehind,
    StateError,
    StateUnavailable,
    TxError,
)
from airflow_tx.base.failpoints import failpoint
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
    dated_transactions,
    is_behind,
)
from airflow_tx.operations.actions.replay import FailedReplay, NamedReplay
from airflow_tx.operations.actions.restatement import TransactionRestatement, WishWithdrawal
from airflow_tx.operations.actions.skip import Readmission, TransactionSkip
from airflow_tx.outputs import Entry, JournalArea
from airflow_tx.state import FencedState, QueryableState
from airflow_tx.transaction import contributions, old_side

if TYPE_CHECKING:
    from airflow_tx.ledger import Loss
    from airflow_tx.sources import Source


# --- coordinator --------------------------------------------------------------------------------------------------
# Pause and unpause of a topology's coordinator.


class CoordinatorPause(PersonalAction):
    """Pauses the coordinator, or unpauses it.

    :param dag_id: of the coordinator.
    :param paused: whether it is to be paused.
    """

    subject = "The coordinator"

    def __init__(self, target: ActionTarget, dag_id: str, *, paused: bool) -> None:
        super().__init__(target)
        self.dag_id = dag_id
        self.paused = paused

    def plan(self) -> ActionPlan:
        is_paused = compat.is_paused_there(self.dag_id)
        what = (
            "starts and replays nothing until it is unpaused"
            if self.paused
            else "starts and replays transactions again"
        )
        line = f"DAG {self.dag_id} {what}"
        sentence = f"{'Pause' if self.paused else 'Unpause'} the coordinator of topology {self.target.topology}."
        if is_paused is None:
            line = sentence = (
                f"Topology {self.target.topology} has no coordinator: there is no DAG {self.dag_id}."
            )
        elif is_paused == self.paused:
            line = sentence = (
                f"DAG {self.dag_id} {'is paused already' if is_paused else 'is not paused'}."
            )
        effect = PlannedEffect(
            [EffectLine(None, None, line)],
            self._pause,
            is_refused=is_paused in (None, self.paused),
        )
        return ActionPlan(str(is_paused), sentence, [effect])

    def _pause(self, audit: Audit) -> Iterator[EffectLine]:
        if not compat.pause_dag(self.dag_id, self.paused):
            raise PreviewOutdated(what=self.subject, topology=self.target.topology)
        yield EffectLine(
            None, None, f"DAG {self.dag_id} {'is paused' if self.paused else 'is unpaused'}"
        )


# --- loss ---------------------------------------------------------------------------------------------------------
# Acceptance of a loss by a person: the source has lost rows, and no transaction will ever have them.


class LossAcceptance(PersonalAction):
    """Lets a topology continue without rows that its source has lost.

    :ivar losses: what was lost when it was planned.
    """

    needs_reason = True
    subject = "The loss"
    losses: Sequence[Loss] = ()

    def plan(self) -> ActionPlan:
        known = self.target.ledger.topology().losses
        self.losses = self._losses()
        version = _version(known, self.losses)
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
        again = f"airflow tx repair {self.target.topology} --roll-forward"
        raise StateBehind(
            remedy=f"The source of topology {self.target.topology} went back, too. What to do: {again}",
            state=states[0].name,
            expected=topology.states[states[0].name],
            found="nothing" if fence is None else fence.token.txid,
        )

    def _accept(self, known: Sequence[int], audit: Audit) -> Iterator[EffectLine]:
        self.target.ledger.accept_loss(self.losses, audit, known=known)
        for loss in self.losses:
            yield EffectLine(None, None, f"accepted as lost: {loss.description}")

    def _losses(self) -> list[Loss]:
        source = self.target.dag()[0].source
        return losses_of(source, self.target.ledger.deciding_from())


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


def _version(known: list[int], losses: Iterable[Loss]) -> str:
    return digest([known, [[loss.partition, loss.position, loss.resume_at] for loss in losses]])


# --- check --------------------------------------------------------------------------------------------------------
# Acceptance of what a check found by a person: the transaction is committed all the same.


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

    needs_reason = True

    def __init__(self, target: ActionTarget, txid: int, names: Sequence[str]) -> None:
        super().__init__(target)
        self.txid = txid
        self.names = names

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
        found = [check_in_words(name, record.checks[name]) for name in self.names]
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
            yield from replay.execute(audit)


# --- request ------------------------------------------------------------------------------------------------------


class ActionName(str, Enum):
    """The actions of a person on the transactions of a topology."""

    REPLAY = "replay"
    REPLAY_FAILED = "replay-failed"
    SKIP = "skip"
    READMIT = "readmit"
    ACCEPT_LOSS = "accept-loss"
    RESTATE = "restate"
    WITHDRAW = "withdraw"
    PAUSE = "pause"
    UNPAUSE = "unpause"


MOST_DATED = 100
"""Transactions that dates may name in one request: each is read on its own."""
_OF_ONE = frozenset({ActionName.SKIP, ActionName.READMIT})
_OF_SEVERAL = frozenset({ActionName.REPLAY, ActionName.RESTATE, ActionName.WITHDRAW})
_WITH_ROWS = frozenset({ActionName.REPLAY, ActionName.RESTATE})
_ASKING = frozenset({ActionName.SKIP, ActionName.ACCEPT_LOSS, ActionName.RESTATE})


class UnclearRequest(Refused):
    """An action with an incomplete or unclear request."""

    template = "{action} of topology {topology!r}: {problem}. Nothing was done."


@dataclass(frozen=True)
class ActionRequest:
    """An action on a topology.

    :param conn_id: the connection of its ledger; `root`: the path that holds it.
    :param coordinator: the DAG that coordinates it, of pause and unpause.
    :param txids: of replay one or several, of skip and readmit one, of restate and withdraw any number, else none.
    :param force: of replay: also transactions whose run is queued or running.
    :param changed_rows: of replay and restate: with the current rows.
    :param first: of restate, instead of txids: the first date; `last`: the last one; "": none was named.
    :param may_create: whether the person may create runs of the DAG; `sees_audit`: may read who acted before, and why.
    """

    topology: str
    conn_id: str
    root: str
    coordinator: str
    name: ActionName
    txids: tuple[int, ...] = ()
    force: bool = False
    changed_rows: bool = False
    first: str = ""
    last: str = ""
    may_create: bool = True
    sees_audit: bool = True

    @property
    def needs_dag(self) -> bool:
        """Whether it asks the source or the states, which only the DAG file names."""
        return self.changed_rows or self.name in _ASKING

    @property
    def needs_reason(self) -> bool:
        """Whether a person has to say why; the ledger keeps it."""
        return self.needs_dag or self.name is ActionName.READMIT

    @property
    def is_dated(self) -> bool:
        """Whether it names dates."""
        return bool(self.first or self.last)

    def action(self, target: ActionTarget) -> PersonalAction:
        """Make the action.

        :raises UnclearRequest: of other transactions than it is about.
        :raises ConfigError: of dates that have none.
        """
        self._check()
        return _ACTIONS[self.name](self, target)

    def transactions(self, target: ActionTarget) -> Sequence[int]:
        """Name the transactions of restate.

        :raises UnclearRequest: the dates have too many.
        """
        if not self.is_dated:
            return self.txids
        txids = dated_transactions(target, self.first, self.last)
        if len(txids) > MOST_DATED:
            problem = f"{self.first} to {self.last} has {len(txids)} transactions; name dates with at most {MOST_DATED}"
            raise UnclearRequest(action=self.name.value, topology=self.topology, problem=problem)
        return txids

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "name": self.name.value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ActionRequest:
        return cls(**{**value, "name": ActionName(value["name"]), "txids": tuple(value["txids"])})

    def _check(self) -> None:
        is_of_any = self.name in _OF_ONE | _OF_SEVERAL
        is_dated_elsewhere = self.is_dated and (
            self.name is not ActionName.RESTATE or bool(self.txids)
        )
        problems = {
            "name one transaction": self.name in _OF_ONE and len(self.txids) != 1,
            "name the transactions": self.name is ActionName.REPLAY and not self.txids,
            "it is of no single transaction": not is_of_any and bool(self.txids),
            "force is of replay": self.force and self.name is not ActionName.REPLAY,
            "changed_rows is of replay and restate": self.changed_rows
            and self.name not in _WITH_ROWS,
            "dates are of restate, instead of txids": is_dated_elsewhere,
            "name the first and the last date": self.is_dated and not (self.first and self.last),
        }
        for problem in (each for each, holds in problems.items() if holds):
            raise UnclearRequest(action=self.name.value, topology=self.topology, problem=problem)


_ACTIONS: Mapping[ActionName, Callable[[ActionRequest, ActionTarget], PersonalAction]] = {
    ActionName.REPLAY: lambda asked, target: NamedReplay(
        target, asked.txids, force=asked.force, changed_rows=asked.changed_rows
    ),
    ActionName.REPLAY_FAILED: lambda asked, target: FailedReplay(target),
    ActionName.SKIP: lambda asked, target: TransactionSkip(target, asked.txids[0]),
    ActionName.READMIT: lambda asked, target: Readmission(target, asked.txids[0]),
    ActionName.ACCEPT_LOSS: lambda asked, target: LossAcceptance(target),
    ActionName.RESTATE: lambda asked, target: TransactionRestatement(
        target,
        asked.transactions(target),
        changed_rows=asked.changed_rows,
        dated=asked.is_dated,
    ),
    ActionName.WITHDRAW: lambda asked, target: WishWithdrawal(target, asked.txids),
    ActionName.PAUSE: lambda asked, target: CoordinatorPause(
        target, asked.coordinator, paused=True
    ),
    ActionName.UNPAUSE: lambda asked, target: CoordinatorPause(
        target, asked.coordinator, paused=False
    ),
}


# --- changed values -----------------------------------------------------------------------------------------------
# Acceptance of changed values by a person: rows of a state that were corrected or deleted on purpose.


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

    @property
    def version(self) -> str:
        return digest(
            [
                self.receipt,
                self.keys,
                [each.told for each in self.changes],
            ]
        )


class ChangeAcceptance(PersonalAction):
    """Lets `airflow tx verify --values` compare a state with the values that it has now."""

    needs_reason = True

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
        return ActionPlan(
            found.version, sentence, [PlannedEffect(lines, partial(self._accept, found))]
        )

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
        accepted = [each for each in self._repairs if each.change.get("state") == self.state]
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

    @property
    def _repairs(self) -> Sequence[RepairRecord]:
        return LedgerView(self.target.ledger.store, self.target.ledger.paths).repairs()

    def _refusal(self, problem: str) -> AcceptanceRefused:
        return AcceptanceRefused(state=self.state, topology=self.target.topology, problem=problem)
