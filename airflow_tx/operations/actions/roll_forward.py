"""`airflow tx repair --roll-forward`: states that came back from a backup are written again from the journal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_tx.base.errors import RepairRefused, RollForwardRefused
from airflow_tx.ledger import (
    ACCEPT_CHANGE,
    ROLL_FORWARD,
    LedgerEvidence,
    RolledState,
    counted,
    ledger_evidence,
)
from airflow_tx.operations.actions.action import EffectLine, PreviewAnswer
from airflow_tx.transaction import (
    MissingTransaction,
    RollForward,
    StateHistory,
    StateLook,
    TableRollForward,
)

if TYPE_CHECKING:
    from airflow_tx.ledger import Audit, Ledger, Repaired
    from airflow_tx.outputs import JournalArea, StagingArea
    from airflow_tx.state import FencedState

_SHOWN = 50
"""Missing transactions of a state that are printed."""


@dataclass(frozen=True)
class StatePlan:
    """What one state lacks, proved."""

    roll: RollForward
    history: StateHistory
    look: StateLook
    missing: Sequence[MissingTransaction]

    @property
    def name(self) -> str:
        return self.history.state.name

    def effects(self) -> Iterator[EffectLine]:
        skips = sum(each.is_skip for each in self.missing)
        txids = [each.receipt.txid for each in self.missing]
        span = str(txids[0]) if len(txids) == 1 else f"{txids[0]} to {txids[-1]}"
        numbers = f"{len(txids) - skips} committed" + (f", {skips} skipped" if skips else "")
        apart = ", its values are older" if self.look.apart else ""
        found = f"fence {self.look.found or 'none'}{apart}, ledger {self.history.last}"
        yield EffectLine(None, None, f"state {self.name}: {found}; missing: {span} ({numbers})")
        for each in self.missing[:_SHOWN]:
            noun = "rows" if self.history.state.takes_back_by_txid else "keys"
            yield EffectLine(each.receipt.txid, each.receipt.run_id, _said(each, noun))
        if len(self.missing) > _SHOWN:
            yield EffectLine(None, None, f"and {len(self.missing) - _SHOWN} more")


def _said(missing: MissingTransaction, noun: str) -> str:
    if missing.is_skip:
        return "skipped: it writes nothing"
    sums = "".join(f", {name} {by:+,}" for name, by in sorted(missing.written.sums.items()))
    return f"{counted(missing.written.keys, noun)}{sums}: as its receipt says"


class RollForwardRepair:
    """Brings states up to the ledger, each by itself: one that cannot holds up no other.

    :param states: of the DAG, by name.
    :param chosen: names of the states to write again; none: every state that is behind.
    :param until: the last transaction to write; None: all.
    :param changed: numbers of repairs, see `RollForward`.
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
    ) -> None:
        self._ledger = ledger
        self._states = states
        self._chosen = chosen
        self._changed = changed
        self._given: dict[str, Any] = {
            "journal": journal,
            "area": area,
            "until": until,
            "changed": changed,
        }
        self._proved: dict[str, tuple[Any, StatePlan]] = {}
        self.refused: list[EffectLine] = []
        """Why states are not written again, one line each."""
        self._check("the DAG has no state {!r}", set(chosen) - states.keys(), states)
        if until is not None and until < 1:
            self._check("--until {} is no transaction", [until], ["1 and later"])

    def plans(self, evidence: LedgerEvidence) -> list[StatePlan]:
        """Find what each state lacks, and prove that the journal has it. Nothing is changed."""
        changes = {each.number for each in evidence.life if each.what == ACCEPT_CHANGE}
        self._check("repair {} is no accepted change", set(self._changed) - changes, changes)
        found = list[StatePlan]()
        self.refused = []
        for name in sorted(self._chosen or self._states):
            if not _may_be_behind(self._states[name], evidence, chosen=name in self._chosen):
                continue
            try:
                plan = self._plan(name, evidence)
            except RollForwardRefused as refused:
                self._note(name, refused)
            else:
                found += [plan] if plan.missing else []
        return found

    def _plan(self, name: str, evidence: LedgerEvidence) -> StatePlan:
        roll = self._roll(name, evidence)
        history = roll.history()
        look = history.look()
        asked = (evidence.current, len(evidence.repairs), look)
        known = self._proved.get(name)
        if known is None or known[0] != asked:
            # The proof reads the whole journal of what is missing.
            plan = StatePlan(roll, history, look, roll.proved(history, look))
            known = self._proved[name] = (asked, plan)
        return known[1]

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
            told = "no state can be written" if self.refused else "no state lacks anything"
            effects = [EffectLine(None, None, f"{told}: transactions continue")]
        nothing = (
            f"No state of topology {topology} can be written again."
            if self.refused
            else f"No state of topology {topology} lacks a transaction. One that is refused all the same has lost "
            "values without its fence: restore both together."
        )
        sentence = (
            f"Write the missing transactions of topology {topology} again into "
            f"{', '.join(plan.name for plan in plans) or 'no state'}. "
            f"Until that is done, transaction {evidence.current} waits."
            if effects
            else nothing
        )
        return PreviewAnswer("", sentence, tuple(effects), tuple(self.refused), needs_reason=False)

    def execute(self, audit: Audit) -> Repaired | None:
        """Write them. It may die anywhere: repeat it.

        :return: None: no state lacks anything, or none can be written again: nothing was changed.
        :raises RepairRefused, FenceOutranked: another run of the command has taken over.
        :raises StateError, StateUnavailable, StoreError: repeat the command: it continues.
        """
        evidence = self._evidence()
        plans = self.plans(evidence)
        if not plans and evidence.topology.rolling is None:
            return None
        found = {plan.name: plan.look.found for plan in plans}
        rolling = self._ledger.begin_roll_forward(found, audit)
        # From here on nothing is committed. A commit between the proof and this moment is proved, too.
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
                rolled[plan.name] = replace(done, found=rolling.found.get(plan.name, done.found))
        return self._ledger.end_roll_forward(rolling.nonce, rolled, audit=audit)

    def _done_before(
        self, evidence: LedgerEvidence, found: Mapping[str, int], to_do: Collection[str]
    ) -> Iterator[tuple[str, RolledState]]:
        """Name the states that earlier runs, which have died, had written as far as this one would."""
        for name in found.keys() & self._states.keys() - set(to_do):
            history = self._roll(name, evidence).history()
            with suppress(RollForwardRefused):
                last = history.before(history.look().first)
                if last is not None:
                    whole = last == history.last
                    yield name, RolledState.of(history.receipts[last], found[name], whole=whole)

    def _evidence(self) -> LedgerEvidence:
        return ledger_evidence(self._ledger.store, self._ledger.paths)


def _may_be_behind(state: FencedState, evidence: LedgerEvidence, *, chosen: bool) -> bool:
    """Ask whether a state is to be looked at: its fence says it, unless its values say more.

    :param chosen: whether the command names it: then the command says, too, that nothing knows what the state has.
    """
    if state.rolls_forward:
        return True
    if not state.has_fence:
        return chosen
    last = evidence.topology.states.get(state.name)
    fence = state.fence()
    if last is None or (fence is not None and fence.token.txid > last):
        return False
    return fence is None or fence.token.txid < last or not fence.applied
