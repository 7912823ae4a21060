"""The action that a request names. A request travels between processes, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import LEDGER_LOST, RESET, ROLL_FORWARD, STATE_LOST
from airflow_tx.operations.actions.action import (
    ActionFields,
    ActionName,
    ActionTarget,
    PersonalAction,
    UnclearRequest,
)
from airflow_tx.operations.actions.check_acceptance import CheckAcceptance
from airflow_tx.operations.actions.loss_acceptance import LossAcceptance
from airflow_tx.operations.actions.lost_ledger import LostLedger
from airflow_tx.operations.actions.lost_state import LostState
from airflow_tx.operations.actions.pause import CoordinatorPause
from airflow_tx.operations.actions.readmission import Readmission
from airflow_tx.operations.actions.removed_state import StateRemoval
from airflow_tx.operations.actions.renamed_state import StateRename
from airflow_tx.operations.actions.repair import LedgerRepair
from airflow_tx.operations.actions.replay import FailedReplay, NamedReplay
from airflow_tx.operations.actions.restatement import TransactionRestatement
from airflow_tx.operations.actions.roll_forward import StateRollForward
from airflow_tx.operations.actions.skip import TransactionSkip
from airflow_tx.operations.actions.value_acceptance import ChangeAcceptance
from airflow_tx.operations.actions.withdrawal import WishWithdrawal

_ACTIONS: Mapping[ActionName, type[PersonalAction]] = {
    ActionName.REPLAY: NamedReplay,
    ActionName.REPLAY_FAILED: FailedReplay,
    ActionName.SKIP: TransactionSkip,
    ActionName.READMIT: Readmission,
    ActionName.ACCEPT_LOSS: LossAcceptance,
    ActionName.ACCEPT_CHECK: CheckAcceptance,
    ActionName.ACCEPT_CHANGE: ChangeAcceptance,
    ActionName.RESTATE: TransactionRestatement,
    ActionName.WITHDRAW: WishWithdrawal,
    ActionName.PAUSE: CoordinatorPause,
    ActionName.UNPAUSE: CoordinatorPause,
    ActionName.STATE_RENAME: StateRename,
    ActionName.STATE_FORGET: StateRemoval,
}
_REPAIRS: Mapping[str, type[PersonalAction]] = {
    STATE_LOST: LostState,
    ROLL_FORWARD: StateRollForward,
    LEDGER_LOST: LostLedger,
}
"""The repairs that are quick, or that a repetition continues. Only the command does the others."""
_BY_COMMAND = {"back": "--back TXID", RESET: "--reset --why TEXT"}
_OF_SOME = frozenset({"names", "repair", "restate"})


@dataclass(frozen=True)
class ActionRequest(ActionFields):
    """An action on a topology."""

    @property
    def kind(self) -> type[PersonalAction]:
        """Give the class of the action."""
        if self.name is ActionName.REPAIR:
            return _REPAIRS.get(self.repair, LedgerRepair)
        return _ACTIONS[self.name]

    @property
    def needs_dag(self) -> bool:
        """Whether it asks the source or the states, which only the DAG file names."""
        return self.changed_rows or self.kind.asks_dag

    @property
    def needs_reason(self) -> bool:
        """Whether a person has to say why; the ledger keeps it."""
        return self.changed_rows or self.kind.needs_reason

    def action(self, target: ActionTarget) -> PersonalAction:
        """Make the action.

        :raises UnclearRequest: of other transactions, checks or states than it is about.
        :raises ConfigError: of dates that have none.
        """
        if problem := self._problem():
            raise UnclearRequest(action=self.name.value, topology=self.topology, problem=problem)
        return self.kind.form.make(self, target)

    def _problem(self) -> str | None:
        if self.kind is LedgerRepair:
            return self._kind_problem()
        if self.repair and self.name is not ActionName.REPAIR:
            return "a kind is of repair"
        return self.kind.form.problem(self)

    def _kind_problem(self) -> str:
        if self.repair not in _BY_COMMAND:
            return f"name the kind of repair: {', '.join(sorted(_REPAIRS))}"
        command = f"<airflow tx repair {{topology}} {_BY_COMMAND[self.repair]}>"
        return str(Remedy.of(f"only the command does this: {command}", topology=self.topology))

    def to_json(self) -> dict[str, Any]:
        """Write it; a field that only some actions have is left out of the others."""
        found = {**asdict(self), "name": self.name.value}
        return {name: each for name, each in found.items() if each or name not in _OF_SOME}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ActionRequest:
        own = {"txids": tuple(value["txids"]), "names": tuple(value.get("names", ()))}
        return cls(**{**value, **own, "name": ActionName(value["name"])})
