"""The action that a request names. A request travels between processes, as plain JSON."""

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
    """The actions of a person on the transactions of a topology."""

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
    """An action with an incomplete or unclear request."""

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
    """An action on a topology. The action takes the fields that its constructor names, see `given`.

    :param conn_id: the connection of its ledger; `root`: the path that holds it.
    :param coordinator: the DAG that coordinates it, of pause and unpause.
    :param force: also transactions whose run is queued or running.
    :param changed_rows: with the current rows.
    :param first: instead of txids: the first date; `last`: the last one; "": none was named.
    :param may_create: whether the person may create runs of the DAG; `sees_audit`: may read who acted before, and why.
    :param names: of checks or of states; of a rename the old name and the new one.
    :param repair: the kind of a repair, such as `state-lost`.
    :param restate: have transactions processed again whose rows the journal does not have.
    :param follow: of restate, instead of txids: what is behind a correction of the upstream topology.
    :param stale: of restate, instead of txids: every transaction that is stale.
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
        """Whether it names dates."""
        return bool(self.first or self.last)

    def given(self) -> Mapping[str, Any]:
        """Give what an action may take, by the names of the parameters of its constructor."""
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
        """Say what is unclear about a request; None: nothing is.

        :param takes: the parameters of the constructor of the action.
        """
        return (
            _miscounted(len(self.txids), takes, _TXIDS, "it is of no single transaction")
            or _miscounted(len(self.names), takes, _NAMES, "it names no check and no state")
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
        """Give the class of the action."""
        if self.name is ActionName.REPAIR:
            return _REPAIRS.get(self.repair, LedgerRepair)
        if self.follow and self.name is ActionName.RESTATE:
            return correction.CorrectionRestatement
        if self.stale and self.name is ActionName.RESTATE:
            return stale.StaleRestatement
        return _KINDS[self.name.value]

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
        takes = signature(self.kind).parameters
        if problem := self._unclear_kind() or self._problem(takes):
            raise UnclearRequest(action=self.name.value, topology=self.topology, problem=problem)
        given = {name: each for name, each in self.given().items() if name in takes}
        if self.is_dated:
            given["txids"] = self._dated(target)
        return self.kind(target, **given)

    def _dated(self, target: ActionTarget) -> Sequence[int]:
        """Name the transactions of the dates; raises UnclearRequest if they have too many."""
        txids = dated_transactions(target, self.first, self.last)
        if len(txids) > MOST_DATED:
            problem = f"{self.first} to {self.last} has {len(txids)} transactions; name dates with at most {MOST_DATED}"
            raise UnclearRequest(action=self.name.value, topology=self.topology, problem=problem)
        return txids

    def _unclear_kind(self) -> str | None:
        if self.kind is LedgerRepair:
            return f"name the kind of repair: {', '.join(sorted(_REPAIRS))}"
        if (self.follow or self.stale) and self.name is not ActionName.RESTATE:
            return "follow and stale are of restate"
        is_repair = self.name is ActionName.REPAIR
        return "a kind is of repair" if self.repair and not is_repair else None

    def to_json(self) -> dict[str, Any]:
        """Write it; a field that only some actions have is left out of the others."""
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
    "force": "force is of replay",
    "changed_rows": "changed_rows is of replay and restate",
    "dated": "dates are of restate, instead of txids",
    "restate": "restate is of the repair roll-forward",
}


def _miscounted(
    count: int, takes: Mapping[str, Parameter], known: Mapping[str, tuple[range, str]], none: str
) -> str | None:
    """Say how many an action takes, if that is another number.

    :param known: by the parameter that takes them; one with a default takes none as well.
    """
    for name, (numbers, problem) in known.items():
        if name in takes:
            is_left_out = count == 0 and takes[name].default is not Parameter.empty
            return None if is_left_out or count in numbers else problem
    return none if count else None


# --- dates --------------------------------------------------------------------------------------------------------
# The transactions of dates: a person names days, for the command and the page alike.


MOST_DATED = 100
"""Transactions that dates may name in one request: each is read on its own."""


def dated_transactions(target: ActionTarget, first: str, last: str) -> list[int]:
    """Find the transactions that count for the data intervals from one date to another.

    :raises ConfigError: one is no date, the runs have no dates, or no date has a transaction.
    """
    spec, _ = target.dag()
    if spec.source.dated is None:
        restate = Command.of("restate", target.topology, "TXID", "...", "--why", "TEXT")
        remedy: Remedy | str = Remedy.of("Its runs have no dates: ", restate)
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
    """Read `--from` and `--to`: the first and the last moment.

    :param zone: of the schedule, in which a date is a day.
    :raises ConfigError: one of them is no date.
    """
    return _span("--from", first, zone).start, _span("--to", last, zone).last


def _span(option: str, what: str, zone: str) -> Span:
    try:
        return span_of(what, zone)
    except ValueError:
        remedy = "Give a day such as 2026-01-31, or a time such as 2026-01-31T06:00:00+00:00."
        raise ConfigError(option=option, value=what, remedy=remedy) from None
