"""Requests to run an action. Processes exchange them as plain JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from inspect import Parameter, signature
from typing import Any

from airflow_tx.base import compat
from airflow_tx.base.errors import ConfigError, Refused
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import ENDS, LEDGER_LOST, RESET, ROLL_FORWARD, STATE_LOST
from airflow_tx.operations.actions import (
    book_of_ends,
    check_acceptance,
    correction,
    loss_acceptance,
    lost_ledger,
    lost_state,
    pause,
    readmission,
    removed_state,
    renamed_state,
    replay,
    reset,
    restatement,
    return_to_transaction,
    roll_forward,
    skip,
    stale,
    value_acceptance,
    withdrawal,
)
from airflow_tx.operations.actions.action import ActionTarget, PersonalAction
from airflow_tx.operations.actions.repair import LedgerRepair
from airflow_tx.sources import Span, key_of_interval, span_of


class ActionName(str, Enum):
    """The actions that users can run on a topology's transactions."""

    REPLAY = "replay"
    REPLAY_FAILED = "replay-failed"
    SKIP = "skip"
    READMIT = "readmit"
    ACCEPT_LOSS = "accept-loss"
    ACCEPT_CHECK = "accept-check"
    ACCEPT_CHANGE = "accept-change"
    ACCEPT_CODE = "accept-code"
    RESTATE = "restate"
    WITHDRAW = "withdraw"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    STATE_RENAME = "state-rename"
    STATE_FORGET = "state-forget"
    REPAIR = "repair"


class UnclearRequest(Refused):
    """Signals that the request for an action is incomplete or unclear."""

    template = ("{action} of topology {topology!r}: {problem}.", "Nothing was done.")


_KINDS: Mapping[str, type[PersonalAction]] = {
    "replay": replay.NamedReplay,
    "replay-failed": replay.FailedReplay,
    "skip": skip.TransactionSkip,
    "readmit": readmission.Readmission,
    "accept-loss": loss_acceptance.LossAcceptance,
    "accept-check": check_acceptance.CheckAcceptance,
    "accept-change": value_acceptance.ChangeAcceptance,
    "accept-code": stale.StaleAcceptance,
    "restate": restatement.TransactionRestatement,
    "withdraw": withdrawal.WishWithdrawal,
    "pause": pause.CoordinatorPause,
    "unpause": pause.CoordinatorPause,
    "state-rename": renamed_state.StateRename,
    "state-forget": removed_state.StateRemoval,
}
_REPAIRS: Mapping[str, type[PersonalAction]] = {
    STATE_LOST: lost_state.LostState,
    ROLL_FORWARD: roll_forward.StateRollForward,
    LEDGER_LOST: lost_ledger.LostLedger,
    "back": return_to_transaction.ReturnToTransaction,
    ENDS: book_of_ends.BookExtension,
    RESET: reset.TopologyReset,
}
_OF_SOME = frozenset({"names", "repair", "restate", "follow", "stale"})


@dataclass(frozen=True)
class ActionRequest:
    """A request to run an action on a topology. The action gets the fields that match its constructor's parameters.

    :param conn_id: connection of the ledger.
    :param root: path of the ledgers in ZooKeeper.
    :param coordinator: dag_id of the topology's coordinator, for the actions that pause and unpause it.
    :param name: name of the action.
    :param txids: txids of the transactions.
    :param force: whether to include transactions whose run is queued or running.
    :param changed_rows: whether to read the current rows of the source.
    :param first: first date, or "" if the request has txids.
    :param last: last date, or "" if the request has txids.
    :param may_create: whether the user may create runs of the DAG.
    :param sees_audit: whether the user may read who acted before, and why.
    :param names: names of checks or states; for a rename, the old and the new name.
    :param repair: kind of a repair, such as `state-lost`.
    :param restate: whether a roll forward restates the transactions whose rows the journal does not have.
    :param follow: whether to restate all transactions that are behind an upstream correction.
    :param stale: whether to restate all stale transactions.
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
    follow: bool = False
    stale: bool = False

    @property
    def is_dated(self) -> bool:
        """Return whether the request contains dates."""
        return bool(self.first or self.last)

    def given(self) -> Mapping[str, Any]:
        """Return all possible arguments of an action, by constructor parameter name."""
        txid = next(iter(self.txids), 0)
        state, new = (*self.names, "", "")[:2]
        return {
            **vars(self),
            "txid": txid,
            "state": state,
            "new": new,
            "dated": self.is_dated,
            "paused": self.name is ActionName.PAUSE,
        }

    def _problem(self, takes: Mapping[str, Parameter]) -> str | None:
        """Describe what is unclear in the request. Return None if the request is clear.

        :param takes: parameters of the action's constructor.
        """
        return (
            _miscounted(len(self.txids), takes, _TXIDS, "leave out the transactions")
            or _miscounted(len(self.names), takes, _NAMES, "leave out the names")
            or next(
                (
                    told
                    for name, told in _OPTIONS.items()
                    if name not in takes and self.given()[name]
                ),
                None,
            )
            or self._misdated()
        )

    def _misdated(self) -> str | None:
        if self.is_dated and self.txids:
            return _OPTIONS["dated"]
        is_half = self.is_dated and not (self.first and self.last)
        return "name the first and the last date" if is_half else None

    @property
    def kind(self) -> type[PersonalAction]:
        """Return the class of the action."""
        if self.name is ActionName.REPAIR:
            return _REPAIRS.get(self.repair, LedgerRepair)
        if self.follow and self.name is ActionName.RESTATE:
            return correction.CorrectionRestatement
        if self.stale and self.name is ActionName.RESTATE:
            return stale.StaleRestatement
        return _KINDS[self.name.value]

    @property
    def needs_dag(self) -> bool:
        """Return whether the action needs the source or the states, which only the DAG file defines."""
        return self.changed_rows or self.kind.asks_dag

    @property
    def needs_reason(self) -> bool:
        """Return whether the user must give a reason, which the ledger keeps."""
        return self.changed_rows or self.kind.needs_reason

    def action(self, target: ActionTarget) -> PersonalAction:
        """Create the action.

        :raises UnclearRequest: the fields do not fit the action.
        :raises ConfigError: no transaction has a requested date.
        """
        takes = signature(self.kind).parameters
        if problem := self._unclear_kind() or self._problem(takes):
            raise UnclearRequest(action=self.name.value, topology=self.topology, problem=problem)
        given = {name: each for name, each in self.given().items() if name in takes}
        if self.is_dated:
            given["txids"] = self._dated(target)
        return self.kind(target, **given)

    def _dated(self, target: ActionTarget) -> Sequence[int]:
        """Find the transactions for the requested dates.

        :raises UnclearRequest: the dates match too many transactions.
        """
        txids = dated_transactions(target, self.first, self.last)
        if len(txids) > MOST_DATED:
            problem = (
                f"{self.first} to {self.last} has {len(txids)} transactions, "
                f"but a request can have at most {MOST_DATED}"
            )
            raise UnclearRequest(action=self.name.value, topology=self.topology, problem=problem)
        return txids

    def _unclear_kind(self) -> str | None:
        if self.kind is LedgerRepair:
            return f"name the kind of repair: {', '.join(sorted(_REPAIRS))}"
        if (self.follow or self.stale) and self.name is not ActionName.RESTATE:
            return "follow and stale are only for restate"
        is_repair = self.name is ActionName.REPAIR
        return "a kind of repair is only for repair" if self.repair and not is_repair else None

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON. Empty fields that only some actions have are omitted."""
        found = {**asdict(self), "name": self.name.value}
        return {name: each for name, each in found.items() if each or name not in _OF_SOME}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ActionRequest:
        own = {"txids": tuple(value["txids"]), "names": tuple(value.get("names", ()))}
        return cls(**{**value, **own, "name": ActionName(value["name"])})


_TXIDS = {
    "txid": (range(1, 2), "name one transaction"),
    "txids": (range(1, sys.maxsize), "name the transactions"),
}
_NAMES = {
    "new": (range(2, 3), "name the state, and its new name"),
    "state": (range(1, 2), "name one state"),
    "names": (range(1, sys.maxsize), "name the checks"),
}
_OPTIONS = {
    "force": "force is only for replay",
    "changed_rows": "changed_rows is only for replay and restate",
    "dated": "dates are only for restate, instead of txids",
    "restate": "restate is only for the repair roll-forward",
}


def _miscounted(
    count: int, takes: Mapping[str, Parameter], known: Mapping[str, tuple[range, str]], none: str
) -> str | None:
    """Describe the problem if the number of transactions or names is wrong. Otherwise return None.

    :param count: number of transactions or names in the request.
    :param takes: parameters of the action's constructor.
    :param known: allowed numbers and the message for other numbers, by parameter. A parameter with a default also
        allows 0.
    :param none: the message for an action that accepts no transactions or names.
    """
    for name, (numbers, problem) in known.items():
        if name in takes:
            is_left_out = count == 0 and takes[name].default is not Parameter.empty
            return None if is_left_out or count in numbers else problem
    return none if count else None


# --- dates --------------------------------------------------------------------------------------------------------
# Users specify dates in a command or on the page. This part finds the transactions.


MOST_DATED = 100
"""Maximum number of transactions in one request with dates, since each transaction is read separately."""


def dated_transactions(target: ActionTarget, first: str, last: str) -> list[int]:
    """Find the transactions that count for the data intervals between two dates.

    :raises ConfigError: an argument is not a date, the runs have no dates, or no transaction has such a date.
    """
    spec, _ = target.dag()
    if spec.source.dated is None:
        restate = Command.of("restate", target.topology, "TXID", "...", "--why", "TEXT")
        remedy: Remedy | str = Remedy.of(
            "The runs of this source have no dates, so name the transactions: ", restate
        )
        raise ConfigError(option="--from, --to", value=type(spec.source).__name__, remedy=remedy)
    intervals = compat.scheduled_intervals(spec.dag_id, *dates_between(first, last, spec.zone))
    keys = [key_of_interval((each.start, each.end)) for each in intervals]
    found = [target.ledger.binding(key) for key in keys]
    txids = [binding.txid for binding in found if binding is not None]
    if not txids:
        remedy = f"None of the {len(intervals)} intervals between these dates has a transaction."
        raise ConfigError(option="--from, --to", value=f"{first}, {last}", remedy=remedy)
    return txids


def dates_between(first: str, last: str, zone: str) -> tuple[datetime, datetime]:
    """Parse the options `--from` and `--to` to the first and the last moment.

    :param zone: time zone of the schedule, in which a date is a day.
    :raises ConfigError: an argument is not a date.
    """
    return _span("--from", first, zone).start, _span("--to", last, zone).last


def _span(option: str, what: str, zone: str) -> Span:
    try:
        return span_of(what, zone)
    except ValueError:
        remedy = "Give a day such as 2026-01-31, or a time such as 2026-01-31T06:00:00+00:00."
        raise ConfigError(option=option, value=what, remedy=remedy) from None
