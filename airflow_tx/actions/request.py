"""Which action a person wants, as plain JSON: it travels between processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.coordinator import CoordinatorPause
from airflow_tx.actions.dated import dated_transactions
from airflow_tx.actions.loss import LossAcceptance
from airflow_tx.actions.replay import FailedReplay, NamedReplay
from airflow_tx.actions.restatement import TransactionRestatement
from airflow_tx.actions.skip import Readmission, TransactionSkip
from airflow_tx.actions.withdrawal import WishWithdrawal
from airflow_tx.errors import Refused


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
