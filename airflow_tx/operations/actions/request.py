"""Which action a person wants, as plain JSON: it travels between processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NoReturn

from airflow_tx.base import compat
from airflow_tx.base.errors import PreviewOutdated, Refused
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import LEDGER_LOST, RESET, ROLL_FORWARD, STATE_LOST, Audit
from airflow_tx.operations.actions.acceptance import (
    ChangeAcceptance,
    CheckAcceptance,
    LossAcceptance,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PlannedEffect,
    dated_transactions,
)
from airflow_tx.operations.actions.repair import (
    LostLedger,
    LostState,
    StateRemoval,
    StateRename,
    StateRollForward,
)
from airflow_tx.operations.actions.replay import FailedReplay, NamedReplay
from airflow_tx.operations.actions.restatement import TransactionRestatement, WishWithdrawal
from airflow_tx.operations.actions.skip import Readmission, TransactionSkip

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

    def _held_up(self) -> str | None:
        if self.paused:
            return None
        why = compat.why_none_starts(self.dag_id, once_unpaused=True)
        return why or compat.why_none_starts(self.target.record.dag_id)

    def _pause(self, audit: Audit) -> Iterator[EffectLine]:
        if not compat.pause_dag(self.dag_id, self.paused):
            raise PreviewOutdated(what=self.subject, topology=self.target.topology)
        yield EffectLine(
            None, None, f"DAG {self.dag_id} {'is paused' if self.paused else 'is unpaused'}"
        )


# --- request ------------------------------------------------------------------------------------------------------


class ActionName(str, Enum):
    """The actions of a person on the transactions of a topology."""

    REPLAY = "replay"
    REPLAY_FAILED = "replay-failed"
    SKIP = "skip"
    READMIT = "readmit"
    ACCEPT_LOSS = "accept-loss"
    ACCEPT_CHECK = "accept-check"
    ACCEPT_CHANGE = "accept-change"
    RESTATE = "restate"
    WITHDRAW = "withdraw"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    STATE_RENAME = "state-rename"
    STATE_FORGET = "state-forget"
    REPAIR = "repair"


MOST_DATED = 100
"""Transactions that dates may name in one request: each is read on its own."""


class UnclearRequest(Refused):
    """An action with an incomplete or unclear request."""

    template = "{action} of topology {topology!r}: {problem}. Nothing was done."


@dataclass(frozen=True)
class ActionRequest:
    """An action on a topology: what each action may name, its `RequestForm` says.

    :param conn_id: the connection of its ledger; `root`: the path that holds it.
    :param coordinator: the DAG that coordinates it, of pause and unpause.
    :param force: also transactions whose run is queued or running.
    :param changed_rows: with the current rows.
    :param first: instead of txids: the first date; `last`: the last one; "": none was named.
    :param may_create: whether the person may create runs of the DAG; `sees_audit`: may read who acted before, and why.
    :param names: of checks or of states; of a rename the old name and the new one.
    :param repair: the kind of a repair, such as `state-lost`.
    :param restate: have transactions processed again whose rows the journal does not have.
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
    names: tuple[str, ...] = ()
    repair: str = ""
    restate: bool = False

    @property
    def form(self) -> RequestForm:
        """Say what the action may name."""
        if self.name is ActionName.REPAIR:
            return _REPAIRS.get(self.repair, _COMMAND_ALONE)
        return _FORMS[self.name]

    @property
    def needs_dag(self) -> bool:
        """Whether it asks the source or the states, which only the DAG file names."""
        return self.changed_rows or self.form.kind.asks_dag

    @property
    def needs_reason(self) -> bool:
        """Whether a person has to say why; the ledger keeps it."""
        return self.changed_rows or self.form.kind.needs_reason

    @property
    def is_dated(self) -> bool:
        """Whether it names dates."""
        return bool(self.first or self.last)

    def action(self, target: ActionTarget) -> PersonalAction:
        """Make the action.

        :raises UnclearRequest: of other transactions, checks or states than it is about.
        :raises ConfigError: of dates that have none.
        """
        if problem := self.form.problem(self):
            raise UnclearRequest(action=self.name.value, topology=self.topology, problem=problem)
        return self.form.make(self, target)

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
        """Write it; a field that only some actions have is left out of the others."""
        found = {**asdict(self), "name": self.name.value}
        return {name: each for name, each in found.items() if each or name not in _OF_SOME}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ActionRequest:
        own = {"txids": tuple(value["txids"]), "names": tuple(value.get("names", ()))}
        return cls(**{**value, **own, "name": ActionName(value["name"])})


_OF_SOME = frozenset({"names", "repair", "restate"})
_NONE = range(1)
_ONE = range(1, 2)
_SOME = range(1, sys.maxsize)
_ANY = range(sys.maxsize)
_TXIDS = {
    _NONE: "it is of no single transaction",
    _ONE: "name one transaction",
    _SOME: "name the transactions",
}
_OPTIONS = {
    "force": "force is of replay",
    "changed_rows": "changed_rows is of replay and restate",
    "is_dated": "dates are of restate, instead of txids",
    "restate": "restate is of the repair roll-forward",
}


@dataclass(frozen=True)
class RequestForm:
    """The names and options that a request for an action has, and how the action is made of it.

    :param kind: the class of the action.
    :param txids: how many transactions; `names`: how many checks or states, which `named` asks for.
    :param options: names of the options that it takes.
    """

    kind: type[PersonalAction]
    make: Callable[[ActionRequest, ActionTarget], PersonalAction]
    txids: range = _NONE
    names: range = _NONE
    named: str = "it names no check and no state"
    options: frozenset[str] = frozenset()

    def problem(self, asked: ActionRequest) -> str | None:
        """Say what is unclear about a request; None: nothing is."""
        if self is _COMMAND_ALONE:
            return _kind_problem(asked)
        if asked.repair and asked.name is not ActionName.REPAIR:
            return "a kind is of repair"
        if len(asked.txids) not in self.txids:
            return _TXIDS[self.txids]
        if len(asked.names) not in self.names:
            return self.named
        given = {
            "force": asked.force,
            "changed_rows": asked.changed_rows,
            "is_dated": asked.is_dated,
            "restate": asked.restate,
        }
        for option, is_given in given.items():
            if is_given and option not in self.options:
                return _OPTIONS[option]
        if asked.is_dated and asked.txids:
            return _OPTIONS["is_dated"]
        if asked.is_dated and not (asked.first and asked.last):
            return "name the first and the last date"
        return None


_FORMS: Mapping[ActionName, RequestForm] = {
    ActionName.REPLAY: RequestForm(
        NamedReplay,
        lambda asked, target: NamedReplay(
            target, asked.txids, force=asked.force, changed_rows=asked.changed_rows
        ),
        txids=_SOME,
        options=frozenset({"force", "changed_rows"}),
    ),
    ActionName.REPLAY_FAILED: RequestForm(FailedReplay, lambda asked, target: FailedReplay(target)),
    ActionName.SKIP: RequestForm(
        TransactionSkip, lambda asked, target: TransactionSkip(target, asked.txids[0]), txids=_ONE
    ),
    ActionName.READMIT: RequestForm(
        Readmission, lambda asked, target: Readmission(target, asked.txids[0]), txids=_ONE
    ),
    ActionName.ACCEPT_LOSS: RequestForm(
        LossAcceptance, lambda asked, target: LossAcceptance(target)
    ),
    ActionName.ACCEPT_CHECK: RequestForm(
        CheckAcceptance,
        lambda asked, target: CheckAcceptance(target, asked.txids[0], asked.names),
        txids=_ONE,
        names=_SOME,
        named="name the checks",
    ),
    ActionName.ACCEPT_CHANGE: RequestForm(
        ChangeAcceptance,
        lambda asked, target: ChangeAcceptance(target, asked.names[0]),
        names=_ONE,
        named="name one state",
    ),
    ActionName.RESTATE: RequestForm(
        TransactionRestatement,
        lambda asked, target: TransactionRestatement(
            target,
            asked.transactions(target),
            changed_rows=asked.changed_rows,
            dated=asked.is_dated,
        ),
        txids=_ANY,
        options=frozenset({"changed_rows", "is_dated"}),
    ),
    ActionName.WITHDRAW: RequestForm(
        WishWithdrawal, lambda asked, target: WishWithdrawal(target, asked.txids), txids=_ANY
    ),
    ActionName.PAUSE: RequestForm(
        CoordinatorPause,
        lambda asked, target: CoordinatorPause(target, asked.coordinator, paused=True),
    ),
    ActionName.UNPAUSE: RequestForm(
        CoordinatorPause,
        lambda asked, target: CoordinatorPause(target, asked.coordinator, paused=False),
    ),
    ActionName.STATE_RENAME: RequestForm(
        StateRename,
        lambda asked, target: StateRename(target, asked.names[0], asked.names[1]),
        names=range(2, 3),
        named="name the state, and its new name",
    ),
    ActionName.STATE_FORGET: RequestForm(
        StateRemoval,
        lambda asked, target: StateRemoval(target, asked.names[0]),
        names=_ONE,
        named="name one state",
    ),
}
_REPAIRS: Mapping[str, RequestForm] = {
    STATE_LOST: RequestForm(
        LostState,
        lambda asked, target: LostState(target, asked.names[0]),
        names=_ONE,
        named="name one state",
    ),
    ROLL_FORWARD: RequestForm(
        StateRollForward,
        lambda asked, target: StateRollForward(target, asked.names, restate=asked.restate),
        names=_ANY,
        options=frozenset({"restate"}),
    ),
    LEDGER_LOST: RequestForm(LostLedger, lambda asked, target: LostLedger(target, check_runs=True)),
}
"""The repairs that are quick, or that a repetition continues. Only the command does the others."""
_BY_COMMAND = {"back": "--back TXID", RESET: "--reset --why TEXT"}


def _kind_problem(asked: ActionRequest) -> str:
    if asked.repair not in _BY_COMMAND:
        return f"name the kind of repair: {', '.join(sorted(_REPAIRS))}"
    command = f"<airflow tx repair {{topology}} {_BY_COMMAND[asked.repair]}>"
    return str(Remedy.of(f"only the command does this: {command}", topology=asked.topology))


def _unmade(asked: ActionRequest, target: ActionTarget) -> NoReturn:
    raise AssertionError("its kind is refused")


_COMMAND_ALONE = RequestForm(LostState, _unmade)
