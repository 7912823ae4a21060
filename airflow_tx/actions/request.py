"""Which action a person wants, as plain JSON: it travels between processes."""

from __future__ import annotations

from collections.abc import Sequence
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
        if self.name is ActionName.REPLAY:
            return NamedReplay(target, self.txids, force=self.force, changed_rows=self.changed_rows)
        if self.name is ActionName.SKIP:
            return TransactionSkip(target, self.txids[0])
        if self.name is ActionName.READMIT:
            return Readmission(target, self.txids[0])
        if self.name is ActionName.RESTATE:
            return TransactionRestatement(
                target, self._named(target), changed_rows=self.changed_rows, dated=self.is_dated
            )
        if self.name is ActionName.WITHDRAW:
            return WishWithdrawal(target, self.txids)
        if self.name is ActionName.REPLAY_FAILED:
            return FailedReplay(target)
        if self.name is ActionName.ACCEPT_LOSS:
            return LossAcceptance(target)
        return CoordinatorPause(target, self.coordinator, paused=self.name is ActionName.PAUSE)

    def _named(self, target: ActionTarget) -> Sequence[int]:
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
        problem = ""
        if self.name in _OF_ONE and len(self.txids) != 1:
            problem = "name one transaction"
        elif self.name is ActionName.REPLAY and not self.txids:
            problem = "name the transactions"
        elif self.name not in _OF_ONE | _OF_SEVERAL and self.txids:
            problem = "it is of no single transaction"
        elif self.force and self.name is not ActionName.REPLAY:
            problem = "force is of replay"
        elif self.changed_rows and self.name not in _WITH_ROWS:
            problem = "changed_rows is of replay and restate"
        elif self.is_dated and (self.name is not ActionName.RESTATE or self.txids):
            problem = "dates are of restate, instead of txids"
        elif self.is_dated and not (self.first and self.last):
            problem = "name the first and the last date"
        if problem:
            raise UnclearRequest(action=self.name.value, topology=self.topology, problem=problem)
