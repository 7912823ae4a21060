"""The action that a request names. A request travels between processes, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import LEDGER_LOST, RESET, ROLL_FORWARD, STATE_LOST
from airflow_tx.operations.actions import (
    check_acceptance,
    loss_acceptance,
    lost_ledger,
    lost_state,
    pause,
    readmission,
    removed_state,
    renamed_state,
    replay,
    restatement,
    roll_forward,
    skip,
    value_acceptance,
    withdrawal,
)
from airflow_tx.operations.actions.action import (
    ActionFields,
    ActionName,
    ActionTarget,
    PersonalAction,
    UnclearRequest,
)
from airflow_tx.operations.actions.repair import LedgerRepair

_ACTIONS: Mapping[ActionName, type[PersonalAction]] = {
    ActionName.REPLAY: replay.NamedReplay,
    ActionName.REPLAY_FAILED: replay.FailedReplay,
    ActionName.SKIP: skip.TransactionSkip,
    ActionName.READMIT: readmission.Readmission,
    ActionName.ACCEPT_LOSS: loss_acceptance.LossAcceptance,
    ActionName.ACCEPT_CHECK: check_acceptance.CheckAcceptance,
    ActionName.ACCEPT_CHANGE: value_acceptance.ChangeAcceptance,
    ActionName.RESTATE: restatement.TransactionRestatement,
    ActionName.WITHDRAW: withdrawal.WishWithdrawal,
    ActionName.PAUSE: pause.CoordinatorPause,
    ActionName.UNPAUSE: pause.CoordinatorPause,
    ActionName.STATE_RENAME: renamed_state.StateRename,
    ActionName.STATE_FORGET: removed_state.StateRemoval,
}
_REPAIRS: Mapping[str, type[PersonalAction]] = {
    STATE_LOST: lost_state.LostState,
    ROLL_FORWARD: roll_forward.StateRollForward,
    LEDGER_LOST: lost_ledger.LostLedger,
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
