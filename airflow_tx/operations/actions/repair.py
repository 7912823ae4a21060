"""Repairs by a person: a state, or ZooKeeper, went back in time, or a state has another name or is not used any more.

The step of a repair itself decides its preview, and its multi is not sent: the two cannot differ.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow_tx.base import compat
from airflow_tx.base.errors import (
    ConfigError,
    MoveRefused,
    Refused,
    RenameRefused,
    RepairRefused,
    StateError,
    UnreadableRecord,
)
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import (
    LEDGER_LOST,
    LIVE_RUN_STATES,
    RESET,
    STATE_LOST,
    Audit,
    HeldState,
    Phase,
    RepairRecord,
    Repairs,
    bound_after,
    digest,
    reason_of,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PlannedEffect,
    refusing,
)
from airflow_tx.operations.actions.restatement import SeveralRefused, TransactionRestatement
from airflow_tx.operations.actions.roll_forward import (
    NOT_TAKEN_BACK,
    RollForwardRepair,
    held_by,
    seen_state,
)
from airflow_tx.outputs import JournalArea
from airflow_tx.state import FencedState, StateKind

if TYPE_CHECKING:
    from airflow_tx.ledger import Decision, ReadOnlyLedger, Repaired, SeenState, TransactionRecord

_NOBODY = Audit("", "")
_OUTRANKED = "its grant is outranked; its commit begins again under a new one"


class LedgerRepair(PersonalAction):
    """A repair that one step of the ledger makes."""

    needs_reason = asks_dag = True
    subject = "The ledger"

    def __init__(self, target: ActionTarget) -> None:
        super().__init__(target)
        self.repairs = Repairs(target.ledger)

    def plan(self) -> ActionPlan:
        try:
            return self.decide()
        except Refused as refused:
            return self.refused("", refused)

    @abstractmethod
    def decide(self) -> ActionPlan:
        """Plan the repair.

        :raises Refused: it cannot be done.
        """

    def keeping(
        self,
        planned: Decision[Repaired],
        sentence: str,
        repair: Callable[[Audit], Repaired],
        *more: str,
        seen: object = None,
    ) -> ActionPlan:
        """Plan a repair that leaves open transactions open.

        :param more: what it does beside the ledger; `seen`: what else the person has seen of the state.
        """
        lines = [EffectLine(None, None, each) for each in more]
        lines += [
            EffectLine(txid, each.run_id, _OUTRANKED)
            for txid, each in self.ledger.open_records().items()
            if each.phase is Phase.COMMITTING and each.error is None
        ]
        return self.planned(planned, sentence, repair, [*lines, *self._failed()], seen)

    def planned(
        self,
        planned: Decision[Repaired],
        sentence: str,
        repair: Callable[[Audit], Repaired],
        more: Iterable[EffectLine],
        seen: object = None,
    ) -> ActionPlan:
        """Plan a repair.

        :param more: its other effects, such as those on open transactions.
        """
        done = planned.result
        place = f"generation {done.generation}; transaction {done.current} commits next"
        lines = [EffectLine(None, None, f"{done.summary}; {place}"), *more]
        version = digest([sentence, repr(seen), [[each.txid, each.what] for each in lines]])
        return ActionPlan(version, sentence, [PlannedEffect(lines, partial(self._repair, repair))])

    def _repair(self, repair: Callable[[Audit], Repaired], audit: Audit) -> Iterator[EffectLine]:
        yield repaired_line(repair(audit))
        yield from self._failed()

    def _failed(self) -> Iterator[EffectLine]:
        """Say how the transaction continues that was to commit next, and whose commit has failed."""
        current = self.ledger.turn().current
        record = self.ledger.open_records().get(current)
        if record is not None and record.error is not None:
            again = Remedy.of(
                "it has failed, and a coordinator replays it after the repair. Without one: "
                "<airflow tx replay {topology} {txid}>",
                topology=self.target.topology,
                txid=current,
            )
            yield EffectLine(current, record.run_id, str(again))


def repaired_line(done: Repaired) -> EffectLine:
    """Say what a repair has done."""
    place = f"Generation {done.generation}; transaction {done.current} commits next."
    return EffectLine(None, None, f"{done.summary}. {place}")


# --- a state ------------------------------------------------------------------------------------------------------


class LostState(LedgerRepair):
    """Accepts the values of a state that was emptied, or restored to an older backup. Lost values stay lost.

    :param unseen: without a look at it.
    """

    def __init__(self, target: ActionTarget, state: str, *, unseen: bool = False) -> None:
        super().__init__(target)
        self.state = state
        self.unseen = unseen
        self.subject = f"State {state!r}"

    def decide(self) -> ActionPlan:
        seen = None if self.unseen else self._seen()
        planned = self.repairs.state_lost.preview(self.state, _NOBODY, seen=seen)
        sentence = f"Accept what state {self.state} of topology {self.target.topology} holds; what it lost stays lost."
        repair = partial(self.repairs.state_lost, self.state, seen=seen)
        return self.keeping(planned, sentence, lambda audit: repair(audit=audit), seen=seen)

    def _seen(self) -> SeenState | None:
        """Look at the state: that alone is accepted.

        :raises RepairRefused: it cannot be reached, or the DAG has no such state.
        """
        unseen = "<airflow tx repair {topology} --state-lost {state} --unseen>"
        try:
            _, states = self.target.dag()
        except ConfigError as error:
            raise self._refusal(
                f"its state cannot be looked at. {error}", f"Or: {unseen}"
            ) from error
        if self.state not in states:
            known = ", ".join(sorted(states)) or "no state"
            problem = f"the DAG has {known}, and no state {self.state!r}"
            forget = "To continue without it: <airflow tx state forget {topology} {state}>"
            raise self._refusal(problem, forget)
        state = states[self.state]
        if not state.has_fence:
            return None
        try:
            return seen_state(self.ledger, state)
        except StateError as error:
            problem = f"state {self.state!r} cannot be looked at ({reason_of(error)})"
            raise self._refusal(problem, f"Let it be reached, or: {unseen}") from error

    def _refusal(self, problem: str, remedy: str) -> RepairRefused:
        topology = self.target.topology
        to_do = Remedy.of(remedy, topology=topology, state=self.state)
        return RepairRefused(what=STATE_LOST, topology=topology, problem=problem, remedy=to_do)


class StateRename(LedgerRepair):
    """Continues with a state under its new name in the DAG. Its fence comes along. It may die anywhere: repeat it.

    :param old: the name that the ledger knows; `new`: the one that the DAG gives the state now.
    """

    def __init__(self, target: ActionTarget, old: str, new: str) -> None:
        super().__init__(target)
        self.old = old
        self.new = new
        self.subject = f"State {old!r}"

    def decide(self) -> ActionPlan:
        state = self._renamed()
        planned = self.repairs.rename_state.preview(self.old, self.new, audit=_NOBODY)
        topology = self.ledger.existing_topology()
        moved = self.old in topology.states and state.has_fence
        along = (
            [self._fence(topology.states[self.old], topology.incarnation, state)] if moved else []
        )
        sentence = f"Continue state {self.old} of topology {self.target.topology} as {self.new}."

        def rename(audit: Audit) -> Repaired:
            if moved and state.fence() is None:
                state.take_over(self.old)
            return self.repairs.rename_state(self.old, self.new, audit=audit)

        return self.keeping(planned, sentence, rename, *along)

    def _renamed(self) -> FencedState:
        """Find the state as the DAG names it now.

        :raises RenameRefused: the DAG has no such state, or still the old one.
        """
        _, states = self.target.dag()
        if self.new in states and self.old not in states:
            return states[self.new]
        raise RenameRefused(
            topology=self.target.topology,
            old=self.old,
            problem=f"the DAG updates {', '.join(sorted(states)) or 'none'}",
            remedy="Give the name that the ledger knows, and then the one that the DAG gives the state now.",
        )

    def _fence(self, last: int, incarnation: str, state: FencedState) -> str:
        """Find out whether the fence to move belongs to the same state, and say what would move.

        :raises RenameRefused: it does not.
        :raises StateError: the values are not there.
        """
        fence = state.fence_of(self.old)
        if (
            fence is not None
            and fence.incarnation == incarnation
            and 0 <= fence.token.txid - last <= 1
        ):
            return f"state {self.new}: its fence comes along, at transaction {fence.token.txid}"
        found = "nothing" if fence is None else f"{fence.token.txid} of ledger {fence.incarnation}"
        raise RenameRefused(
            topology=self.target.topology,
            old=self.old,
            problem=f"it has transaction {last} of ledger {incarnation}, the fence of {self.new} says {found}",
            remedy=Remedy.of(
                "Move its values to {new} first, with their fence; or, if {new} is another state: "
                "<airflow tx state forget {topology} {old}>",
                topology=self.target.topology,
                old=self.old,
                new=self.new,
            ),
        )


class StateRemoval(LedgerRepair):
    """Continues without a state that the DAG no longer updates. Another one may take its place."""

    def __init__(self, target: ActionTarget, state: str) -> None:
        super().__init__(target)
        self.state = state
        self.subject = f"State {state!r}"

    def decide(self) -> ActionPlan:
        spec, states = self.target.dag()
        topology = self.target.topology
        if self.state in states:
            raise MoveRefused(
                topology=topology,
                problem=f"DAG {spec.dag_id} updates state {self.state}",
                remedy=Remedy.of(
                    "Take the update out of the DAG first. If the values are lost: "
                    "<airflow tx repair {topology} --state-lost {state}>",
                    topology=topology,
                    state=self.state,
                ),
            )
        sentence = f"Continue topology {topology} without state {self.state}. Another state may take its place."
        planned = self.repairs.forget_state.preview(self.state, _NOBODY)
        return self.keeping(planned, sentence, partial(self.repairs.forget_state, self.state))


class StateRollForward(PersonalAction):
    """Writes what states lack again from the journal, see `RollForwardRepair`.

    :param states: their names; none: each state that lacks something.
    :param restate: of a table, have the transactions processed again whose rows the journal does not have.
    :param options: of `RollForwardRepair`.
    """

    needs_reason = asks_dag = True
    subject = "What its states lack"

    def __init__(
        self,
        target: ActionTarget,
        states: Collection[str] = (),
        *,
        restate: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(target)
        self.restate = restate
        self._options = {"chosen": states, **options}

    @cached_property
    def repair(self) -> RollForwardRepair:
        """The repair; what it has proved once, it does not prove again."""
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
            # A state that is refused holds up no other one.
            deed = (lambda audit: ()) if effects else refusing(error)
            effects.append(PlannedEffect(found.refused, deed, is_refused=True))
        lines = [[each.txid, each.what] for effect in effects for each in effect.would]
        return ActionPlan(digest([found.sentence, lines]), found.sentence, effects)

    def _roll(self, audit: Audit) -> Iterator[EffectLine]:
        done = self.repair.execute(audit)
        if done is not None:
            yield repaired_line(done)
        if done is not None and self.restate and self.ledger.wishes():
            again = Remedy.of(
                "The coordinator starts the runs that are processed again. Without one: "
                "<airflow tx restate {topology} --why TEXT>",
                topology=self.target.topology,
            )
            yield EffectLine(None, None, str(again))
        yield from self.repair.refused


# --- the ledger ---------------------------------------------------------------------------------------------------


class LostLedger(LedgerRepair):
    """Rebuilds the ledger from what the states of the DAG say. It may die anywhere: repeat it.

    :param check_runs: whether it is refused while runs of open transactions are alive, which may still commit.
    """

    def __init__(self, target: ActionTarget, *, check_runs: bool = False) -> None:
        super().__init__(target)
        self.check_runs = check_runs

    def decide(self) -> ActionPlan:
        if self.check_runs and (live := live_runs(self.ledger, self.target.record.dag_id)):
            raise RepairRefused(
                what=LEDGER_LOST,
                topology=self.target.topology,
                problem=live,
                remedy="Pause the DAG, end them, and repeat.",
            )
        spec, states = self.target.dag()
        fences = {name: state.fence() for name, state in states.items()}
        held = [
            HeldState.of(
                name,
                undoable=states[name].kind is StateKind.OPAQUE,
                fence=fence,
                holds=states[name].holds,
                receipts=states[name].receipts(),
            )
            for name, fence in fences.items()
            if fence is not None
        ]
        area = spec.staging()
        lives = {fence.incarnation for fence in fences.values() if fence is not None}
        changes: list[RepairRecord] = [
            each for life in lives for each in JournalArea(area, life).changes()
        ]
        planned = self.repairs.preview_ledger_lost(held, spec.request, _NOBODY, changes=changes)
        made_anew = self.repairs.incarnation()

        def rebuild(audit: Audit) -> Repaired:
            for life in lives:
                area.adopt_earlier(self.target.topology, life)
                if made_anew not in ("", life):
                    area.adopt_taken(made_anew, life)
            return self.repairs.ledger_lost(held, spec.request, audit, changes=changes)

        # A person sees by the place whether it is the right one.
        place = f"{self.target.topology} in {self.ledger.store.where} ({_in_words(fences)})"
        sentence = f"Rebuild the ledger of topology {place}: {planned.result.summary}."
        opened = [
            EffectLine(txid, record.run_id, self._becomes(planned, txid, record))
            for txid, record in self.ledger.open_records().items()
        ]
        return self.planned(planned, sentence, rebuild, opened)

    def _becomes(self, planned: Decision[Repaired], txid: int, record: TransactionRecord) -> str:
        """Say what becomes of an open transaction: the multi removes its record, and may unbind its run."""
        bound = bound_after(planned, self.ledger.paths, txid, record.key)
        if bound is None:
            return "forgotten: its run begins again when it is cleared"
        if bound != txid:
            return f"forgotten: its rows belong to skipped transaction {bound} again"
        return "closed: the states say that it was committed"


def live_runs(ledger: ReadOnlyLedger, dag_id: str) -> str:
    """Name the runs of open transactions that are alive; "": none is."""
    runs = [record.run_id for record in ledger.open_records().values()]
    found = sorted(compat.runs_of(dag_id, runs).items())
    live = [f"{run_id} ({state})" for run_id, state in found if state in LIVE_RUN_STATES]
    return f"runs of DAG {dag_id!r} work on its transactions: {', '.join(live)}" if live else ""


class ReturnToTransaction(LedgerRepair):
    """Takes back the transactions after the one to which source and states went back.

    :param last: the transaction that stays.
    """

    def __init__(self, target: ActionTarget, last: int) -> None:
        super().__init__(target)
        self.last = last

    def decide(self) -> ActionPlan:
        _, states = self.target.dag()
        back = self.ledger.back
        held = held_by(states, self.ledger.existing_topology().incarnation)
        planned = back.preview(self.last, audit=_NOBODY, **held)
        sentence = f"Take back all transactions of topology {self.target.topology} after {self.last}. {NOT_TAKEN_BACK}"
        return self.keeping(planned, sentence, lambda audit: back(self.last, audit=audit, **held))


class TopologyReset(LedgerRepair):
    """Forgets all transactions, and deletes all values of the states."""

    def decide(self) -> ActionPlan:
        spec, states = self.target.dag()
        fences = {name: self._clearable(name, state) for name, state in states.items()}
        incarnation = self.repairs.incarnation()
        planned = self.repairs.preview_reset(spec.request, _NOBODY)
        topology = self.target.topology

        def clear() -> None:
            for state in states.values():
                state.clear()
            if incarnation:
                spec.staging().forget(topology, incarnation)

        sentence = (
            f"Forget all transactions of topology {topology} and DELETE ALL VALUES of its states: "
            f"{', '.join(sorted(fences)) or 'none'}."
        )
        deleted = [
            EffectLine(
                None,
                None,
                f"state {name}: all of its values are deleted ({_in_words({name: fences[name]})})",
            )
            for name in sorted(fences)
        ]
        reset = partial(self.repairs.reset, spec.request, clear=clear)
        lines = [*deleted, *self._forgotten()]
        return self.planned(planned, sentence, lambda audit: reset(audit=audit), lines)

    def _forgotten(self) -> Sequence[EffectLine]:
        try:
            opened = self.ledger.open_records()
        except UnreadableRecord:
            return ()  # a reset removes what cannot be read, too
        what = "forgotten: its run begins again, with other rows"
        return [EffectLine(txid, record.run_id, what) for txid, record in opened.items()]

    def _failed(self) -> Iterator[EffectLine]:
        return iter(())

    def _clearable(self, name: str, state: FencedState) -> Any:
        """Read the fence of a state that can be emptied: once the ledger is emptied, what it held is lost.

        :raises RepairRefused: the state cannot be emptied, or not be read.
        """
        refused = partial(RepairRefused, what=RESET, topology=self.target.topology)
        if not state.can_clear:
            raise refused(
                problem=f"state {name!r} ({type(state).__name__}) cannot be emptied",
                remedy="Empty it by hand, take it out of the DAG, and repeat.",
            )
        try:
            return state.fence()
        except Exception as error:
            raise refused(
                problem=f"state {name!r} cannot be read ({reason_of(error)})",
                remedy="Let it be reached, or take it out of the DAG, and repeat.",
            ) from error


def _in_words(fences: Mapping[str, Any]) -> str:
    """Describe the fences of states in one line, for the question before a repair."""
    notes = (
        f"{name}: no fence"
        if fence is None
        else f"{name}: {'' if fence.applied else 'in '}transaction {fence.token.txid}"
        for name, fence in sorted(fences.items())
    )
    return "; ".join(notes)
