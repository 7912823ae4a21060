"""Commits as asset events: a watcher hands them on from the ledger, and none is lost while no watcher runs.

Airflow 3.3 says when an event is in its database; only then the ledger notes how far the watcher is. Airflow 3.2 does
not say it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.base.described import check_no_template
from airflow_tx.base.errors import ConfigError, TxError
from airflow_tx.ledger import Store
from airflow_tx.triggers.base import Event, LedgerTrigger, until

if TYPE_CHECKING:
    from airflow_tx.ledger import Ledger, TransactionRecord

SCHEME = "airflow-tx"
MOST_OPEN = 20
"""Events that Airflow may not have stored yet."""
STORED_AFTER = 10.0
"""Seconds after which an event counts as stored where Airflow does not say it."""
_DAMAGED = 30.0


class CommitNotStored(TxError):
    """Airflow has not stored an event: the watcher resumes behind the last stored event."""

    template = (
        "Commits of topology {topology!r} up to {txid} were not stored by Airflow.",
        "They are handed on again.",
    )


@dataclass(kw_only=True, eq=False, repr=False)
class CommitsTrigger(LedgerTrigger, BaseEventTrigger):
    """Fires for every commit of a topology, or for every few, in order, each at least once.

    :param watcher: under which name the ledger keeps how far it is.
    :param every: how many transactions one event is about.
    :param settle: seconds by which the last of several events follows the one before it. What comes while Airflow
        makes a run of an event waits there for the event after it, which then has to come.
    """

    watcher: str
    every: int = 1
    settle: float = 10.0
    hold: float = 0.0
    since: float = 0.0  # Airflow knows an asset's trigger again by its arguments

    def shared_stream_key(self) -> Hashable:
        return tuple(str(getattr(self, each.name)) for each in fields(self))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
        return compat.confirmed_stream(CommitsProducer(cls(**kwargs)))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        # Airflow 3.3 takes the events from a shared stream instead.
        async for event, _ in UnconfirmedCommits(self).open_stream():
            yield TriggerEvent(event)  # type: ignore[no-untyped-call]


class CommitsProducer:
    """Reads commits from the ledger, and notes there which of them Airflow has stored."""

    def __init__(self, trigger: CommitsTrigger) -> None:
        self._trigger = trigger
        self._read = 0
        """The last txid that is in an event."""
        self._stored: int | None = None
        """The last one that the ledger has noted; None: not known yet."""
        self._handed_on_at = float("-inf")
        self._waited = False
        """Whether there was no topology yet."""

    async def open_stream(self) -> AsyncIterator[tuple[Event, int]]:
        trigger = self._trigger
        while True:
            found = await until(self._next, trigger.zookeeper_conn_id, hold=0.0, poll=trigger.poll)
            if "reason" in found:
                trigger.log.error("%s The watcher waits.", found["reason"])
                await asyncio.sleep(_DAMAGED * trigger.poll)
                continue
            self._read = found["last"]
            self._handed_on_at = time.monotonic()
            yield found, found["last"]

    async def advance(self, batch: Sequence[Any]) -> None:
        txid = max(item.broker_payload for item in batch)
        if not all(item.outcome.is_clean for item in batch):
            raise CommitNotStored(topology=self._trigger.topology, txid=txid)

        def note(store: Store) -> Event:
            self._ledger(store).note_handed_on(self._trigger.watcher, txid)
            return {}

        await until(note, self._trigger.zookeeper_conn_id, hold=0.0, poll=self._trigger.poll)
        self._stored = txid

    def _next(self, store: Store) -> Event | None:
        ledger = self._ledger(store)
        trigger = self._trigger
        if self._stored is None:
            if ledger.topology_if_any() is None:
                self._waited = True
                return None
            found = ledger.open_watcher(trigger.watcher, from_first=self._waited)
            self._read = self._stored = found.txid
        last = self._read + trigger.every
        current = ledger.current()
        if last >= current or self._read - self._stored >= MOST_OPEN * trigger.every:
            return None
        is_last = last + trigger.every >= current
        if is_last and time.monotonic() - self._handed_on_at < trigger.settle:
            return None
        ended = [ledger.outcome(txid) for txid in range(self._read + 1, last + 1)]
        known = [each for each in ended if each is not None]
        restated = [each.restates for each in known if _restates(each)]
        return {
            "topology": trigger.topology,
            "first": self._read + 1,
            "last": last,
            "committed": sum(each.status == "COMMITTED" for each in known),
            "rows": sum(each.rows or 0 for each in known if not _restates(each)),
            "restates": restated,
        }

    def _ledger(self, store: Store) -> Ledger:
        from airflow_tx.ledger import Ledger

        return Ledger(store, self._trigger.paths)


class UnconfirmedCommits(CommitsProducer):
    """Reads commits where Airflow does not say when an event is stored: it is, some seconds after it was handed on."""

    def __init__(self, trigger: CommitsTrigger) -> None:
        super().__init__(trigger)
        self._handed_on: deque[tuple[float, int]] = deque()
        """When each event counts as stored, and its last txid."""

    def _next(self, store: Store) -> Event | None:
        self._note_stored(store)
        found = super()._next(store)
        if found is not None:
            self._handed_on.append((time.monotonic() + STORED_AFTER, found["last"]))
        return found

    def _note_stored(self, store: Store) -> None:
        stored = None
        while self._handed_on and self._handed_on[0][0] <= time.monotonic():
            _, stored = self._handed_on.popleft()
        if stored is not None:
            self._ledger(store).note_handed_on(self._trigger.watcher, stored)
            self._stored = stored


def _restates(ended: TransactionRecord) -> bool:
    """Ask whether a transaction replaced another one: its rows were counted before."""
    return ended.restates is not None and ended.status == "COMMITTED"


def committed_asset(
    topology: str, *, every: int = 1, zookeeper_conn_id: str | None = None, root: str | None = None
) -> Asset:
    """Make the asset of a topology's commits: a DAG that is scheduled by it starts when something is committed.

        with DAG("report", schedule=committed_asset("flights", every=10)): ...

    The extra of its events has `payload`: topology, first and last txid, how many of them were committed, rows, and
    which earlier transactions they restate. The rows of restatements are left out: they were in an earlier event.

    :param topology: name of the topology.
    :param every: how many transactions one event is about.
    :param zookeeper_conn_id: connection of the ledger; default: `[tx] zookeeper_conn_id`.
    :param root: znode that holds the topology; default: `[tx] root`.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        remedy = "Give a number of transactions, 1 or more."
        raise ConfigError(
            option=f"every of committed_asset({topology!r})", value=every, remedy=remedy
        )
    texts = {"topology": topology, "zookeeper_conn_id": zookeeper_conn_id, "root": root}
    check_no_template("committed_asset", texts)
    settings = Settings.load()
    conn_id = zookeeper_conn_id or settings.zookeeper_conn_id
    where = root or settings.root
    name = f"every-{every}"
    trigger = CommitsTrigger(
        zookeeper_conn_id=conn_id, root=where, topology=topology, watcher=name, every=every
    )
    uri = f"{SCHEME}://{conn_id}{where}/{quote(topology, safe='')}/{name}"
    return Asset(uri=uri, name=uri, watchers=[AssetWatcher(name=uri, trigger=trigger)])


def checked_uri(uri: SplitResult) -> SplitResult:
    """Check the URI of a topology's commits, as Airflow does with every asset of this scheme.

    :raises ValueError: it names no connection, or no topology.
    """
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError(f"URI {uri.geturl()} must be {SCHEME}://CONNECTION/ROOT/TOPOLOGY")
    return uri._replace(path=uri.path.rstrip("/"), query="", fragment="")
