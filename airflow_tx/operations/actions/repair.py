"""The base class of repairs that are one step of the ledger.

They repair a topology after a state or ZooKeeper was restored from a backup. The preview computes the same step
without sending its multi, so preview and repair always agree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, ClassVar

from airflow_tx.base.errors import Refused, RepairRefused
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import Audit, Decision, Phase, Repaired, Repairs, digest
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PlannedEffect,
    live_runs,
)

NOBODY = Audit("", "")
_OUTRANKED = "its grant is outranked; its commit begins again under a new grant"


class LedgerRepair(PersonalAction):
    """The base class of a repair that is one step of the ledger.

    :cvar option: option of `airflow tx repair`, without dashes.
    :cvar is_of_ledger: whether the repair concerns the whole ledger, and not only one state.
    """

    needs_reason = asks_dag = True
    subject = "The ledger"
    option: ClassVar[str]
    is_of_ledger = True

    @cached_property
    def repairs(self) -> Repairs:
        """Return the object with the repair steps of the ledger."""
        return Repairs(self.ledger)

    def plan(self) -> ActionPlan:
        try:
            if self.target.check_runs and self.is_of_ledger:
                self._check_runs()
            return self.decide()
        except Refused as refused:
            return self.refused("", refused)

    def _check_runs(self) -> None:
        if live := live_runs(self.ledger, self.target.record.dag_id):
            raise self.refusal(live, "Pause the DAG, end them, and repeat.")

    def refusal(self, problem: str, remedy: Remedy | str) -> RepairRefused:
        """Return the error for a refused repair."""
        named = {"what": self.option, "topology": self.target.topology}
        return RepairRefused(**named, problem=problem, remedy=remedy)

    @abstractmethod
    def decide(self) -> ActionPlan:
        """Plan the repair.

        :raises Refused: the repair is refused.
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

        :param planned: preview of the ledger's step.
        :param sentence: summary of the repair.
        :param repair: function that runs the step.
        :param more: descriptions of effects outside the ledger.
        :param seen: other facts whose change makes the preview outdated.
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

        :param planned: preview of the ledger's step.
        :param sentence: summary of the repair.
        :param repair: function that runs the step.
        :param more: other effects, such as effects on open transactions.
        :param seen: other facts whose change makes the preview outdated.
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
        """Describe how the transaction with the turn continues if its commit has failed."""
        current = self.ledger.turn().current
        record = self.ledger.open_records().get(current)
        if record is not None and record.error is not None:
            again = (
                "it has failed, and a coordinator replays it after the repair. Without a coordinator: "
                + Command.of("replay", self.target.topology, current)
            )
            yield EffectLine(current, record.run_id, str(again))


class StateRepair(LedgerRepair):
    """A repair of one state in the ledger."""

    is_of_ledger = False

    def __init__(self, target: ActionTarget, state: str) -> None:
        super().__init__(target)
        self.state = state
        self.subject = f"State {state!r}"


def repaired_line(done: Repaired) -> EffectLine:
    """Describe the result of a repair."""
    place = f"Generation {done.generation}; transaction {done.current} commits next."
    return EffectLine(None, None, f"{done.summary}. {place}")


def fences_in_words(fences: Mapping[str, Any]) -> str:
    """Describe the fences of states in one line, for the preview of a repair."""
    notes = (
        f"{name}: no fence"
        if fence is None
        else f"{name}: {'' if fence.applied else 'in '}transaction {fence.token.txid}"
        for name, fence in sorted(fences.items())
    )
    return "; ".join(notes)
