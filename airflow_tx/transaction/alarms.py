"""The alerts of a topology: find the ones that are due, record them in the ledger, and call their callbacks."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_tx.base import compat
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.transaction.metrics import lag_of, oldest_seconds

if TYPE_CHECKING:
    from airflow_tx.ledger import AlarmNote, BlockMark, Ledger, NotedCorrections, TransactionRecord
    from airflow_tx.sources import Lag, Source

AlarmCallback: TypeAlias = Callable[[Any], Any]
"""A function or coroutine function, such as an Airflow notifier.

It is called with the context of the task that found the alert, which has the `Alarm` as `alarm`.
"""


class AlarmKind(str, Enum):
    """The kinds of alerts."""

    BLOCKED = "blocked"
    LATE = "late"
    BEHIND = "behind"


@dataclass(frozen=True)
class Alarm:
    """An alert. Callbacks and templates of notifiers find it as `alarm` in their context.

    :param kind: `blocked`, `late` or `behind`. `blocked`: no transaction commits until a person acts. `late`: a limit
        of the `Transaction` is exceeded. `behind`: a transaction lacks a correction of the upstream topology, and no
        restatement is requested.
    :param topology: the name of the topology.
    :param dag_id: the DAG of the topology.
    :param reason: the problem, in one sentence.
    :param remedy: the commands that solve the problem.
    :param txid: the transaction, or None if the alert does not concern a single transaction, such as an alert for the
        lag.
    :param attempt: the attempt of the transaction.
    :param run_id: the run of the transaction.
    :param since: for `behind`, when the newest missing correction was noted.
    """

    kind: AlarmKind
    topology: str
    dag_id: str
    reason: str
    remedy: str
    txid: int | None = None
    attempt: int | None = None
    run_id: str | None = None
    since: str = ""

    @property
    def of(self) -> str:
        """Identify the cause of the alert. Each blocked attempt and each correction is a separate alert."""
        return f"{self.txid}.{self.attempt}" if self.kind is AlarmKind.BLOCKED else self.since

    @property
    def text(self) -> str:
        """Return the reason and the remedy of the alert as text for a log or a message."""
        return f"{self.reason} {self.remedy}"


@dataclass(frozen=True)
class AlarmLimits:
    """The limits beyond which a topology is late.

    :param late_after: the longest time that a transaction may be open, in seconds.
    :param max_lag: the largest lag of the source, in the unit of the source.
    """

    late_after: float | None = None
    max_lag: int | None = None


@dataclass(frozen=True)
class AlarmCallbacks:
    """The callbacks for alerts. When a topology is behind, the `on_late` callbacks are called as well."""

    on_blocked: tuple[AlarmCallback, ...] = ()
    on_late: tuple[AlarmCallback, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.on_blocked or self.on_late)

    def call(self, alarm: Alarm, context: Mapping[str, Any], log: Any) -> None:
        """Call all callbacks for the kind of the alert. An exception of a callback is only logged."""
        for callback in self.on_blocked if alarm.kind is AlarmKind.BLOCKED else self.on_late:
            try:
                # Each callback gets its own copy, since a notifier changes its context.
                _call(callback, {**context, "alarm": alarm})
            except Exception:
                log.exception(
                    "The alert callback %r failed. The alert was: %s", callback, alarm.text
                )


def _call(callback: AlarmCallback, context: dict[str, Any]) -> None:
    from airflow.sdk import BaseNotifier

    only_async = False
    if isinstance(callback, BaseNotifier):
        # A notifier stores its rendered templates in its own attributes.
        callback = copy.copy(callback)
        callback.context = context  # type: ignore[assignment]
        only_async = type(callback).notify is BaseNotifier.notify
    found = callback if only_async else callback(context)
    if inspect.isawaitable(found):
        asyncio.run(_awaited(found))


async def _awaited(found: Awaitable[Any]) -> None:
    await found


@dataclass(frozen=True)
class AlarmTopology:
    """The topology whose alerts are evaluated.

    :param name: the name of the topology.
    """

    name: str
    dag_id: str
    limits: AlarmLimits = AlarmLimits()

    def find(
        self,
        opened: Mapping[int, TransactionRecord],
        *,
        blocked: BlockMark | None,
        now: datetime,
        lag: Lag | None = None,
        behind: Sequence[NotedCorrections] = (),
    ) -> list[Alarm]:
        """Return the alerts that are due now, at most one of each kind.

        :param opened: the open transactions, by txid.
        :param blocked: the block mark of the transaction that is no longer replayed, or None if there is none. It
            contains the reason.
        :param lag: the lag of the source, or None if it is unknown.
        :param behind: the transactions that lack a correction.
        """
        found = [self._blocked(opened, blocked), self._late(opened, now, lag), self._behind(behind)]
        return [alarm for alarm in found if alarm is not None]

    def _blocked(
        self, opened: Mapping[int, TransactionRecord], mark: BlockMark | None
    ) -> Alarm | None:
        from airflow_tx.ledger import to_continue

        record = None if mark is None else opened.get(mark.txid)
        if mark is None or record is None or not mark.holds(record):
            return None
        txid = mark.txid
        remedy = to_continue(self.name, txid, record.remedy, may_skip=True)
        if record.remedy is None:
            remedy = Remedy(("To continue: ",)) + remedy
        what = f"Transaction {txid}.{record.attempt} of {self.name} is blocked, and no later transaction commits"
        reason = f"{what}: {mark.reason}"
        return self._alarm(AlarmKind.BLOCKED, reason, remedy, txid, record)

    def _late(
        self, opened: Mapping[int, TransactionRecord], now: datetime, lag: Lag | None
    ) -> Alarm | None:
        age = oldest_seconds(opened, now)
        limits = self.limits
        if limits.late_after is not None and age > limits.late_after:
            txid = min(opened)
            record = opened[txid]
            reason = (
                f"Transaction {txid}.{record.attempt} of {self.name} has been open for {_words(age)}, longer than "
                f"late_after = {_words(limits.late_after)}."
            )
            remedy = "Why: " + Command.of("show", self.name, txid)
            return self._alarm(AlarmKind.LATE, reason, remedy, txid, record)
        if limits.max_lag is not None and lag is not None and lag.count > limits.max_lag:
            reason = (
                f"The source of {self.name} is {lag} ahead, more than max_lag = {limits.max_lag}."
            )
            remedy = "Why: " + Command.of("show", self.name)
            return self._alarm(AlarmKind.LATE, reason, remedy)
        return None

    def _behind(self, behind: Sequence[NotedCorrections]) -> Alarm | None:
        left = [each for each in behind if each.is_left]
        if not left:
            return None
        newest = max(left, key=lambda each: each.note.when)
        others = len(left) - 1
        more = f" {others} more {'is' if others == 1 else 'are'} behind." if others else ""
        told = f"{newest}" if str(newest).endswith(".") else f"{newest}."
        reason = f"Transaction {newest.txid} of {self.name} is behind {told}{more}"
        remedy = Remedy.of(
            "To see the transaction: ",
            Command.of("show", self.name, newest.txid),
            ". To request the follow-ups again: ",
            Command.of("restate", self.name, "--follow"),
        )
        alarm = self._alarm(AlarmKind.BEHIND, reason, remedy, newest.txid)
        return replace(alarm, since=newest.note.when)

    def _alarm(
        self,
        kind: AlarmKind,
        reason: str,
        remedy: Remedy,
        txid: int | None = None,
        record: TransactionRecord | None = None,
    ) -> Alarm:
        return Alarm(
            kind=kind,
            topology=self.name,
            dag_id=self.dag_id,
            reason=reason,
            remedy=str(remedy),
            txid=txid,
            attempt=None if record is None else record.attempt,
            run_id=None if record is None else record.run_id,
        )


def _words(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


@dataclass(frozen=True)
class AlarmChange:
    """An alert to raise, or the end of an alert.

    :param alarm: the alert to raise, or None if the raised alert has ended.
    :param note: the note of the raised alert in the ledger, or None if no alert of this kind is raised.
    """

    kind: AlarmKind
    alarm: Alarm | None
    note: AlarmNote | None


def changes(alarms: Sequence[Alarm], raised: Mapping[str, AlarmNote]) -> list[AlarmChange]:
    """Compare the alerts that are due with the raised alerts, and return the differences between them."""
    found = {alarm.kind: alarm for alarm in alarms}
    compared = [AlarmChange(kind, found.get(kind), raised.get(kind.value)) for kind in AlarmKind]
    return [
        each for each in compared if (each.alarm and each.alarm.of) != (each.note and each.note.of)
    ]


def certain(due: Sequence[AlarmChange], limits: AlarmLimits, lag: Lag | None) -> list[AlarmChange]:
    """Return the changes, but keep a `late` alert if the lag is unknown, since it may still exceed its limit."""
    unknown = limits.max_lag is not None and lag is None
    return [
        each for each in due if not (unknown and each.kind is AlarmKind.LATE and each.alarm is None)
    ]


def raise_alarm(
    callbacks: AlarmCallbacks,
    ledger: Ledger,
    change: AlarmChange,
    context: Mapping[str, Any],
    log: Any,
    *,
    shown: AlarmNote | None = None,
) -> None:
    """Raise or end an alert. An alert that another process has already raised is not raised again.

    :param shown: the note for the ledger, which names the run that shows the alert, or None if no run shows it.
    """
    from airflow_tx.ledger import AlarmNote

    note = None if change.alarm is None else shown or AlarmNote(change.alarm.of)
    noted = ledger.note_alarm(change.kind.value, note)
    if change.alarm is None:
        log.info("Topology %s is no longer %s", ledger.paths.topology, change.kind.value)
    elif noted.first:
        log.error("%s", change.alarm.text)
        callbacks.call(change.alarm, context, log)


def raise_due(
    topology: AlarmTopology,
    callbacks: AlarmCallbacks,
    source: Source,
    ledger: Ledger,
    context: Any,
    *,
    log: Any,
) -> None:
    """Find and raise the alerts of a topology.

    :param ledger: the connected ledger of the topology.
    """
    from airflow_tx.ledger import noted_corrections
    from airflow_tx.sources import Lag

    opened = ledger.open_records()
    limits = topology.limits
    found = None if limits.max_lag is None else lag_of(topology.name, source, ledger)
    lag = found if isinstance(found, Lag) else None
    blocked = _stopped(topology.dag_id, context["ti"], opened)
    now = datetime.now(timezone.utc)
    behind = noted_corrections(ledger, ledger.noted_behind()) if source.upstream else ()
    alarms = topology.find(opened, blocked=blocked, now=now, lag=lag, behind=behind)
    due = changes(alarms, ledger.raised_alarms())
    for change in certain(due, limits, lag):
        raise_alarm(callbacks, ledger, change, context, log)


def _stopped(dag_id: str, ti: Any, opened: Mapping[int, TransactionRecord]) -> BlockMark | None:
    """Return a block mark if no run and no lane is working on the oldest open transaction. Otherwise return None."""
    from airflow_tx.ledger import LIVE_RUN_STATES, BlockMark, of_lane

    txid = min(opened, default=0)
    record = opened.get(txid)
    if (
        record is None
        or record.skip is not None
        or record.yielded is not None
        or of_lane(record.request)
    ):
        return None
    state = compat.run_state(ti, dag_id, record.run_id)
    if state in LIVE_RUN_STATES:
        return None
    ended = "was deleted" if state is None else f"is {state}"
    reason = f"its run {record.run_id} {ended}" + (f" ({record.said})" if record.said else "")
    return BlockMark(txid, record.attempt, reason, when="")
