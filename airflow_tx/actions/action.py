"""The base of actions: a person previews an action on a topology and then does it, in a command or in the UI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_tx.actions.preview import (
    ActionPlan,
    EffectLine,
    PlannedEffect,
    PreviewAnswer,
    refusing,
)
from airflow_tx.actions.runs import CommandRuns
from airflow_tx.errors import PreviewOutdated, Refused, TxError, typed
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import TopologyRecord, TransactionRecord
from airflow_tx.protocol.skip import find_open
from airflow_tx.protocol.step import Audit
from airflow_tx.protocol.version import note_action, version_of

if TYPE_CHECKING:
    from airflow_tx.spec import TransactionSpec
    from airflow_tx.state.api import FencedState

    ParsedDag = tuple[TransactionSpec, Mapping[str, FencedState]]


@dataclass(frozen=True)
class ActionTarget:
    """The topology that an action is about.

    :param dag: parses the DAG of the topology, for its source and its states; called only where they are needed.
    :param may_create: whether the person may create runs of the DAG; `sees_audit`: may read who acted before, and why.
    """

    ledger: Ledger
    record: TopologyRecord
    dag: Callable[[], ParsedDag]
    may_create: bool = True
    sees_audit: bool = True

    @property
    def topology(self) -> str:
        return self.ledger.paths.topology

    @property
    def runs(self) -> CommandRuns:
        """Give the runs of its DAG."""
        return CommandRuns(self.record.dag_id, self.may_create)

    def person(self, who: str, why: str) -> str:
        """Name who acted before and why, to people who may read that."""
        return f"{who}: {why}" if self.sees_audit else "a person"

    def typed(self, effect: EffectLine) -> EffectLine:
        """Write the commands of an effect as a shell takes them."""
        return replace(effect, what=typed(effect.what, self.topology))

    def version(self, txids: Sequence[int]) -> str:
        """Read the version of these transactions, with every write until now."""
        self.ledger.store.sync()
        return version_of(Reader(self.ledger.store), self.ledger.paths, txids)

    def take(self, txids: Sequence[int], version: str | None) -> None:
        """Refuse other people who act on the same preview of these transactions.

        :param version: None: they were not previewed.
        :raises PreviewOutdated: another person acted on them first, or they have changed.
        """
        if version is not None:
            self.ledger.run(note_action, txids, version)

    def opened(self, txids: Collection[int]) -> Mapping[int, TransactionRecord | Refused]:
        """Read the records of open transactions, or say what became of them."""
        return self.ledger.preview(find_open, txids).result


class PersonalAction(ABC):
    """One action on one topology: `plan` decides, and nothing else does.

    :cvar subject: what has changed if the version has, of an action that claims no transactions.
    """

    needs_reason = False
    subject = ""

    def __init__(self, target: ActionTarget) -> None:
        self.target = target
        self.ledger = target.ledger

    @abstractmethod
    def plan(self) -> ActionPlan:
        """ActionPlan what it does now, and change nothing.

        :raises TxError: that cannot be said: the ledger, the DAG, its source or a state cannot be read.
        """

    def preview(self) -> PreviewAnswer:
        """Say what it would do, and change nothing. Raises as `plan`."""
        plan = self.plan()
        lines: dict[bool, list[EffectLine]] = {False: [], True: []}  # by whether they are refused
        for effect in plan.effects:
            lines[effect.is_refused] += map(self.target.typed, effect.would)
        sentence = typed(plan.sentence, self.target.topology)
        return PreviewAnswer(
            plan.version, sentence, tuple(lines[False]), tuple(lines[True]), self.needs_reason
        )

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[EffectLine]:
        """Do it, and say what was done; what was said holds, also if what comes after it fails.

        :param version: of the preview; None: without a check.
        :raises PreviewOutdated: there is another version by now; nothing was done.
        :raises Refused: it cannot be done.
        """
        plan = self.plan()
        if plan.claimed is not None:
            self.target.take(plan.claimed, version)
        elif version not in (None, plan.version):
            raise PreviewOutdated(what=self.subject, topology=self.target.topology)
        for effect in plan.effects:
            yield from effect.deed(audit)

    def refused(
        self, version: str, why: Refused, txid: int | None = None, run_id: str | None = None
    ) -> ActionPlan:
        """ActionPlan nothing, since it cannot be done."""
        effect = PlannedEffect([EffectLine(txid, run_id, str(why))], refusing(why), is_refused=True)
        return ActionPlan(version, str(why), [effect], None if txid is None else [txid])

    def effects(self, audit: Audit, version: str) -> list[EffectLine]:
        """Do it to its end; an error after something was done is the last of the effects.

        :raises TxError: as `execute`, if nothing was done.
        """
        done: list[EffectLine] = []
        try:
            for effect in self.execute(audit, version):
                done.append(self.target.typed(effect))
        except TxError as error:
            if not done:
                raise
            done.append(EffectLine(None, None, str(error)))
        return done
