"""How a topology is, in one sentence, and what to do about it: for commands and the UI alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, TypeAlias

from airflow_tx.errors import typed
from airflow_tx.protocol.person import Words, moment
from airflow_tx.protocol.records import Phase
from airflow_tx.protocol.status import TransactionView
from airflow_tx.protocol.view import TopologyView

Alarms: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The raised alarms of a topology, by kind."""


class HealthCode(str, Enum):
    """How a topology is, in one word: the most urgent first."""

    BLOCKED = "blocked"
    UNREADABLE = "unreadable"
    FAILED = "failed"
    LATE = "late"
    WAITS = "waits"
    FINE = "fine"

    @property
    def urgency(self) -> int:
        """Rank the codes: 0 needs a person first."""
        return list(HealthCode).index(self)


@dataclass(frozen=True, kw_only=True)
class TopologyState:
    """How a topology is, in one sentence.

    :param since: when that began, if it is known.
    :param txid: the transaction that is to be seen to, or that the others wait for.
    :param remedy: what a person can do; null: nothing needs to be done.
    """

    code: HealthCode
    since: datetime | None = None
    txid: int | None = None
    sentence: Words
    remedy: Words | None = None

    def __str__(self) -> str:
        return self.sentence if self.remedy is None else f"{self.sentence} {self.remedy}"


def topology_health(view: TopologyView, alarms: Alarms | None = None) -> TopologyState:
    """Say how a topology is: its first open transaction decides, since all others wait for that one.

    :param alarms: the raised ones, see `protocol.alarm`.
    """
    health = _by_transactions(view)
    if health.remedy is not None:
        health = replace(health, remedy=typed(health.remedy, view.name))
    late = (alarms or {}).get("late")
    if late is None or health.code.urgency < HealthCode.LATE.urgency:
        return health
    return replace(
        health,
        code=HealthCode.LATE,
        sentence=f"It is late. {health.sentence}",
        since=moment(late["when"]),
    )


def _by_transactions(view: TopologyView) -> TopologyState:
    if view.record.rolling is not None:
        return _rolling(view, view.record.rolling)
    opened = view.opened
    blocked = next((each for each in opened if each.blocked), None)
    if blocked is not None:
        return _blocked(view, blocked)
    if not opened:
        return TopologyState(code=HealthCode.FINE, sentence=_nothing_open(view))
    first = opened[0]
    if first.failed or first.stale:
        return _failed(view, first)
    return _under_way(view, first, opened)


def _rolling(view: TopologyView, noted: Mapping[str, Any]) -> TopologyState:
    states = " ".join(sorted(noted["found"]))
    return TopologyState(
        code=HealthCode.WAITS,
        sentence=f"State {states} is being written again from the journal. Nothing commits until that is done.",
        since=moment(noted["when"]),
        remedy=f"If that command has died, repeat it: airflow tx repair {view.name} --roll-forward {states}",
    )


def _blocked(view: TopologyView, blocked: TransactionView) -> TopologyState:
    mark = view.record.blocked or {}
    why = str(blocked.blocked)
    if blocked.remedy is not None:
        why = why.replace(blocked.remedy, "").strip()
    return TopologyState(
        code=HealthCode.BLOCKED,
        sentence=f"Transaction {blocked.txid} is replayed no more: {_ended(why)} Nothing commits after it.",
        since=moment(mark.get("when")),
        txid=blocked.txid,
        remedy=transaction_remedy(view.name, blocked),
    )


def _failed(view: TopologyView, first: TransactionView) -> TopologyState:
    why = "its predecessor ended elsewhere than its batch starts" if first.stale else failure(first)
    what = "must be replayed" if first.stale else "has failed"
    sentence = _ended(f"Transaction {first.txid} {what}{f': {why}' if why else ''}")
    if first.skip is not None:
        sentence += " It is to be skipped."
    return TopologyState(
        code=HealthCode.FAILED,
        sentence=sentence,
        since=first.began,
        txid=first.txid,
        remedy=transaction_remedy(view.name, first),
    )


def failure(view: TransactionView) -> str | None:
    """Say why a transaction has failed, without what to do about it; None: that is not known."""
    if view.error is None or view.remedy is None:
        return view.error or view.run_end
    # The error ends with its remedy.
    return view.error.removesuffix(view.remedy).strip()


def transaction_remedy(name: str, view: TransactionView) -> str | None:
    """Say what a person can do about an open transaction; None: nothing needs to be done.

    :param name: of its topology, for commands.
    """
    replay = f"airflow tx replay {name} {view.txid}"
    if view.blocked:
        either = f"{replay}, or airflow tx skip {name} {view.txid} --why TEXT"
        return either if view.remedy is None else f"{view.remedy} Then: {either}"
    if not view.failed and not view.stale:
        return None
    if view.remedy is not None:
        return view.remedy
    otherwise = (view.to_do or "").partition(", or ")[2]
    return f"{replay}, or {otherwise}" if otherwise else replay


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _under_way(
    view: TopologyView, first: TransactionView, opened: Sequence[TransactionView]
) -> TopologyState:
    behind = len(opened) - 1
    waiting = "" if not behind else f"; {behind} {'waits' if behind == 1 else 'wait'} behind it"
    if first.status == Phase.COMMITTING.value:
        return TopologyState(
            code=HealthCode.FINE,
            sentence=f"Transaction {first.txid} is being committed{waiting}.",
            since=first.granted,
            txid=first.txid,
        )
    processed = [each for each in opened[1:] if each.status == Phase.PROCESSED.value]
    code = HealthCode.WAITS if processed else HealthCode.FINE
    since = processed[0].processed if processed else first.processed or first.began
    sentence = f"Transaction {first.txid} waits for {first.waiting_for}{waiting}."
    return TopologyState(code=code, sentence=sentence, since=since, txid=first.txid)


def _nothing_open(view: TopologyView) -> str:
    return "No transaction is open." if view.allocated else "There was no transaction yet."
