"""User roll forward: rewrite the missing transactions of restored states from the journal."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from airflow_tx.base.errors import Refused, RepairRefused, RestateRefused, RollForwardRefused
from airflow_tx.base.failpoints import failpoint
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import (
    ACCEPT_CHANGE,
    ROLL_FORWARD,
    Audit,
    Ledger,
    LedgerEvidence,
    Repaired,
    RolledState,
    WishRequest,
    counted,
    digest,
    ledger_evidence,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PlannedEffect,
    PreviewAnswer,
    is_behind,
    refusing,
    transactions,
)
from airflow_tx.operations.actions.repair import repaired_line
from airflow_tx.operations.actions.restatement import SeveralRefused, TransactionRestatement
from airflow_tx.outputs import JournalArea, StagingArea
from airflow_tx.sources import Source
from airflow_tx.state import FencedState
from airflow_tx.transaction import (
    MissingTransaction,
    RollForward,
    StateHistory,
    StateLook,
    TableHistory,
    TableRollForward,
)

log = logging.getLogger(__name__)
_SHOWN = 50
"""Maximum number of missing transactions of a state that a preview lists."""


@dataclass(frozen=True)
class StatePlan:
    """The missing transactions of one state, whose journal entries have been checked."""

    roll: RollForward
    history: StateHistory
    look: StateLook
    missing: Sequence[MissingTransaction]

    @property
    def change(self) -> int:
        """Return the number of the accepted change to write into the fence. Return 0 if the fence already has it."""
        change = self.roll.change(self.history, self.look)
        return change if change > self.look.change else 0

    @property
    def name(self) -> str:
        return self.history.state.name

    @property
    def holes(self) -> list[int]:
        """Return the transactions that the roll forward omits, since the journal does not have their rows."""
        return [each.receipt.txid for each in self.missing if each.lacking]

    @property
    def counting(self) -> list[int]:
        """Return the transactions of `holes` that no later transaction has replaced."""
        replaced = self.history.replaced if isinstance(self.history, TableHistory) else {}
        return [txid for txid in self.holes if txid not in replaced]

    @property
    def left(self) -> list[str]:
        return self.roll.left(self.history, self.look)

    def effects(self) -> Iterator[EffectLine]:
        if self.change:
            told = f"state {self.name}: its values include the change by hand that repair {self.change} accepted"
            yield EffectLine(None, None, told)
        if self.missing:
            yield from self._missing()
        for each in self.left:
            yield EffectLine(None, None, f"state {self.name}: then {each}")

    def _missing(self) -> Iterator[EffectLine]:
        skips = sum(each.is_skip for each in self.missing)
        txids = [each.receipt.txid for each in self.missing]
        span = str(txids[0]) if len(txids) == 1 else f"{txids[0]} to {txids[-1]}"
        numbers = f"{len(txids) - skips} committed" + (f", {skips} skipped" if skips else "")
        apart = " (the values are older than the fence)" if self.look.apart else ""
        found = f"fence {self.look.found or 'none'}{apart}, ledger {self.history.last}"
        yield EffectLine(None, None, f"state {self.name}: {found}; missing: {span} ({numbers})")
        counting = frozenset(self.counting)
        for each in self.missing[:_SHOWN]:
            noun = "rows" if self.history.state.takes_back_by_txid else "keys"
            said = _said(each, noun, counts=each.receipt.txid in counting)
            yield EffectLine(each.receipt.txid, each.receipt.run_id, said)
        if len(self.missing) > _SHOWN:
            yield EffectLine(None, None, f"and {len(self.missing) - _SHOWN} more")


def _said(missing: MissingTransaction, noun: str, *, counts: bool) -> str:
    if missing.is_skip:
        return "skipped: it writes nothing"
    if missing.lacking:
        again = "its run is processed again as a later transaction, and its rows get that txid"
        told = again if counts else "a later transaction has replaced it"
        return f"{missing.lacking}. None of its rows are written; {told}"
    sums = "".join(f", {name} {by:+,}" for name, by in sorted(missing.written.sums.items()))
    return f"{counted(missing.written.keys, noun)}{sums}, as its receipt says"


class RollForwardRepair:
    """Writes the missing transactions of states. A state that cannot be rolled forward does not block others.

    :param ledger: ledger of the topology.
    :param states: states of the DAG, by name.
    :param journal: journal of the topology.
    :param area: staging area of the topology.
    :param chosen: names of the states to write. An empty list means every state that is behind.
    :param until: last transaction to write, or None for all transactions.
    :param changed: numbers of the accepted changes that the states have. See `RollForward`.
    :param unchanged: numbers of the accepted changes that the states do not have.
    :param source: source of the DAG, to check whether it went back, or None to skip this check.
    :param restating: function that restates the transactions of a table whose rows the journal does not have, or None
        to refuse such a table.
    """

    def __init__(
        self,
        ledger: Ledger,
        states: Mapping[str, FencedState],
        journal: JournalArea,
        area: StagingArea,
        *,
        chosen: Collection[str] = (),
        until: int | None = None,
        changed: Collection[int] = (),
        unchanged: Collection[int] = (),
        source: Source | None = None,
        restating: TransactionRestatement | None = None,
    ) -> None:
        self._ledger = ledger
        self._source = source
        self._states = states
        self._chosen = chosen
        self._named = {*changed, *unchanged}
        self._unchanged = unchanged
        self._given: dict[str, Any] = {
            "journal": journal,
            "area": area,
            "until": until,
            "changed": changed,
            "unchanged": unchanged,
            "restate": restating is not None,
        }
        self._restating = restating
        self._wanted: list[WishRequest] = []
        self._proved: dict[str, tuple[Any, StatePlan]] = {}
        self.refused: list[EffectLine] = []
        """The reasons why states are not rolled forward, one line per state."""
        self._check("the DAG has no state {!r}", set(chosen) - states.keys(), states)
        if until is not None and until < 1:
            self._check("--until {} is not a transaction", [until], ["1 and later"])

    def plans(self, evidence: LedgerEvidence) -> list[StatePlan]:
        """Find the missing transactions of each state, and prove that the journal has them.

        This method changes nothing.
        """
        changes = {each.number for each in evidence.life if each.what == ACCEPT_CHANGE}
        self._check("repair {} is not an accepted change", self._named - changes, changes)
        found = list[StatePlan]()
        self.refused = []
        asked = False
        for name in sorted(self._chosen or self._states):
            if not _may_be_behind(self._states[name], evidence, chosen=name in self._chosen):
                continue
            try:
                plan = self._plan(name, evidence)
            except RollForwardRefused as refused:
                self._note(name, refused)
            else:
                if plan.missing and not asked:
                    self._check_source(evidence, plan)
                    asked = True
                found += [plan] if plan.missing or plan.change else []
        return self._restatable(found)

    def _restatable(self, plans: list[StatePlan]) -> list[StatePlan]:
        """Refuse each table with a missing transaction that cannot be restated.

        Return the plans of the other states.
        """
        counting = sorted({txid for plan in plans for txid in plan.counting})
        self._wanted = []
        if self._restating is None or not counting:
            return plans
        try:
            self._wanted = self._restating.requests(counting)
        except RestateRefused as refused:
            why = "transaction {txid} cannot be processed again: {problem}".format(**refused.fields)
            for plan in plans:
                if plan.counting:
                    self._note(plan.name, plan.history.refused(why))
            return [plan for plan in plans if not plan.counting]
        return plans

    def _plan(self, name: str, evidence: LedgerEvidence) -> StatePlan:
        roll = self._roll(name, evidence)
        history = roll.history()
        look = history.look()
        asked = (evidence.current, len(evidence.repairs), look)
        known = self._proved.get(name)
        if known is None or known[0] != asked:
            # Keep the proof, since it reads the journal entries of all missing transactions.
            plan = StatePlan(roll, history, look, roll.proved(history, look))
            known = self._proved[name] = (asked, plan)
        return known[1]

    def _check_source(self, evidence: LedgerEvidence, plan: StatePlan) -> None:
        """Raise an error if the source went back together with the states.

        It would return rows that the journal also writes.

        :raises RepairRefused: the source went back. The error names the command that repairs source and states.
        """
        why = None
        # If a user has accepted a loss of the source, compare with the position after the loss.
        place = self._ledger.start_after(evidence.topology, evidence.position)
        try:
            why = None if self._source is None else self._source.lacks(place)
        except Exception:
            # A source that does not respond does not block the repair of the states.
            log.warning("The source does not say whether it went back, too", exc_info=True)
        if why is not None:
            topology = self._ledger.paths.topology
            raise RepairRefused(
                what=ROLL_FORWARD,
                topology=topology,
                problem=f"the source went back, too: {why}. Its next rows would be counted twice, or not at all",
                remedy=(
                    f"Take back the transactions after {plan.look.found}: "
                    + Command.of("repair", topology, "--back", plan.look.found)
                ),
            )

    def _roll(self, name: str, evidence: LedgerEvidence) -> RollForward:
        state = self._states[name]
        made = TableRollForward if state.takes_back_by_txid else RollForward
        return made(evidence, state, **self._given)

    def _check(self, problem: str, unknown: Collection[Any], known: Collection[Any]) -> None:
        if unknown:
            raise RepairRefused(
                what=ROLL_FORWARD,
                topology=self._ledger.paths.topology,
                problem=problem.format(min(unknown)),
                remedy=f"Known: {', '.join(map(str, sorted(known))) or 'none'}.",
            )

    def _note(self, name: str, refused: RollForwardRefused) -> None:
        why = f"{refused.fields['problem']}. {refused.fields['remedy']}"
        self.refused.append(EffectLine(None, None, f"state {name}: {why}"))

    def preview(self) -> PreviewAnswer:
        evidence = self._evidence()
        plans = self.plans(evidence)
        effects = [line for plan in plans for line in plan.effects()]
        topology = self._ledger.paths.topology
        if not plans and evidence.topology.rolling is not None:
            told = "no state can be written" if self.refused else "no state lacks a transaction"
            effects = [EffectLine(None, None, f"{told}: transactions continue")]
        nothing = (
            f"No state of topology {topology} can be written again."
            if self.refused
            else f"No state of topology {topology} lacks a transaction. If a state is still refused, its values are "
            "older than its fence: restore both from one backup."
        )
        sentence = (
            f"Write the missing transactions of topology {topology} again into "
            f"{', '.join(plan.name for plan in plans) or 'no state'}. "
            f"Until that is done, transaction {evidence.current} waits."
            f"{self._again}"
            if effects
            else nothing
        )
        return PreviewAnswer("", sentence, tuple(effects), tuple(self.refused), needs_reason=False)

    @property
    def _again(self) -> str:
        named = transactions(each.txid for each in self._wanted)
        told = f" The journal does not have all rows, so {named} will be processed again."
        return told if self._wanted else ""

    def execute(self, audit: Audit) -> Repaired | None:
        """Write the missing transactions. You can repeat it after a crash.

        :return: None if no state could be rolled forward.
        :raises RepairRefused, FenceOutranked: another run has replaced this one.
        :raises StateError, StateUnavailable, StoreError: repeat the command.
        """
        evidence = self._evidence()
        plans = self.plans(evidence)
        if not plans and evidence.topology.rolling is None:
            return None
        found = {plan.name: plan.look.found for plan in plans}
        holes = {plan.name: plan.holes for plan in plans if plan.holes}
        rolling = self._ledger.begin_roll_forward(found, audit, holes=holes, wanted=self._wanted)
        failpoint("roll_forward.begun", topology=self._ledger.paths.topology)
        # The ledger has the list of the omitted transactions. Do not add others.
        self._given["restate"] = False
        # No transaction commits from here on. Plan again, since one may have committed after the
        # proof.
        evidence = self._evidence()
        plans = self.plans(evidence)
        rolled = dict(self._done_before(evidence, rolling.found, {plan.name for plan in plans}))
        for plan in plans:
            look, missing = plan.look, plan.missing
            try:
                if look.apart:
                    look, missing = plan.roll.take(plan.history, look, rolling)
                done = plan.roll.write(plan.history, look, missing, rolling)
            except RollForwardRefused as refused:
                self._note(plan.name, refused)
            else:
                lines = [f"state {plan.name}: {each}" for each in plan.left]
                self.refused += [EffectLine(None, None, each) for each in lines]
                rolled[plan.name] = replace(done, found=rolling.found.get(plan.name, done.found))
        return self._ledger.end_roll_forward(
            rolling.nonce, rolled, unchanged=self._unchanged, audit=audit
        )

    def _done_before(
        self, evidence: LedgerEvidence, found: Mapping[str, int], to_do: Collection[str]
    ) -> Iterator[tuple[str, RolledState]]:
        """Yield the states that an earlier, interrupted run of this command completed."""
        for name in found.keys() & self._states.keys() - set(to_do):
            roll = self._roll(name, evidence)
            history = roll.history()
            with suppress(RollForwardRefused):
                last = history.before(history.look().first)
                if last is not None:
                    look = replace(history.look(), found=found[name])
                    yield name, roll.rolled(history, history.receipts[last], look)

    def _evidence(self) -> LedgerEvidence:
        return ledger_evidence(self._ledger.store, self._ledger.paths)


def _may_be_behind(state: FencedState, evidence: LedgerEvidence, *, chosen: bool) -> bool:
    """Return whether a state may lack transactions and must be checked.

    :param chosen: whether the command names the state, which decides for a state without a fence.
    """
    if state.rolls_forward:
        return True
    return is_behind(state, evidence.topology) if state.has_fence else chosen


class StateRollForward(PersonalAction):
    """Rewrites the missing transactions of states from the journal. See `RollForwardRepair`.

    :param names: names of the states. An empty list means every state that lacks a transaction.
    :param restate: whether to restate the transactions of a table whose rows the journal does not have.
    :param options: other arguments of `RollForwardRepair`.
    """

    needs_reason = asks_dag = True
    subject = "The list of missing transactions"

    def __init__(
        self,
        target: ActionTarget,
        names: Collection[str] = (),
        *,
        restate: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(target)
        self.restate = restate
        self._options = {"chosen": names, **options}

    @cached_property
    def repair(self) -> RollForwardRepair:
        """Return the repair. Every call returns the same object, so that it proves the journal entries only once."""
        spec, states = self.target.dag()
        record = self.target.record
        own = ActionTarget(self.ledger, record, lambda: (spec, states))
        area = spec.staging()
        return RollForwardRepair(
            self.ledger,
            states,
            JournalArea(area, record.incarnation),
            area.of_topology(record.incarnation),
            source=spec.source,
            restating=TransactionRestatement(own, ()) if self.restate else None,
            **self._options,
        )

    def plan(self) -> ActionPlan:
        try:
            found = self.repair.preview()
        except Refused as refused:
            return self.refused("", refused)
        effects = [PlannedEffect(found.effects, self._roll)] if found.effects else []
        if found.refused:
            error = SeveralRefused(lines="\n".join(str(each.what) for each in found.refused))
            # A refused state does not block the others.
            deed = (lambda audit: ()) if effects else refusing(error)
            effects.append(PlannedEffect(found.refused, deed, is_refused=True))
        lines = [[each.txid, each.what] for effect in effects for each in effect.would]
        return ActionPlan(digest([found.sentence, lines]), found.sentence, effects)

    def _roll(self, audit: Audit) -> Iterator[EffectLine]:
        done = self.repair.execute(audit)
        if done is not None:
            yield repaired_line(done)
        if done is not None and self.restate and self.ledger.wishes():
            again = (
                "The coordinator starts the runs that are processed again. Without a coordinator: "
                + Command.of("restate", self.target.topology, "--why", "TEXT")
            )
            yield EffectLine(None, None, str(again))
        yield from self.repair.refused
