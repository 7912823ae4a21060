"""Report the commits of a topology as events of an Airflow asset.

The ledger stores the progress of the watcher, so that no commit is lost while no watcher runs. The progress is recorded
once Airflow has the event in its database. Airflow 3.3 confirms this. Airflow 3.2 does not, so the watcher waits a few
seconds instead.
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
"""Maximum number of events not yet stored by Airflow."""
STORED_AFTER = 10.0
"""Seconds after which an event counts as stored if Airflow does not confirm it."""
_DAMAGED = 30.0


class CommitNotStored(TxError):
    """Airflow has not stored an event. The watcher resumes after the last stored event."""

    template = (
        "Commits of topology {topology!r} up to {txid} were not stored by Airflow.",
        "The watcher passes them to Airflow again.",
    )


@dataclass(kw_only=True, eq=False, repr=False)
class CommitsTrigger(LedgerTrigger, BaseEventTrigger):
    """Fires after every group of `every` transactions, in order. Each transaction is reported at least once.

    :param watcher: name of the watcher, under which the ledger stores its progress.
    :param every: number of transactions in one event.
    :param settle: minimum seconds between the last event of a series and the event before it. If an event arrives while
        Airflow creates a run, Airflow handles it only with the next event. So the last event is delayed.
    """

    watcher: str
    every: int = 1
    settle: float = 10.0
    hold: float = 0.0
    since: float = (
        0.0  # always 0, since Airflow identifies the trigger of an asset by its arguments
    )

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
        # Only Airflow 3.2 calls this. Airflow 3.3 uses the shared stream.
        async for event, _ in UnconfirmedCommits(self).open_stream():
            yield TriggerEvent(event)  # type: ignore[no-untyped-call]


class CommitsProducer:
    """Reads commits from the ledger, and records there which ones Airflow has stored."""

    def __init__(self, trigger: CommitsTrigger) -> None:
        self._trigger = trigger
        self._read = 0
        """The last txid in an event."""
        self._stored: int | None = None
        """The last txid recorded as stored in the ledger; None before the first read."""
        self._handed_on_at = float("-inf")
        self._waited = False
        """Whether the watcher started to wait before the topology began."""

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
    """Reads commits for Airflow 3.2. An event counts as stored after `STORED_AFTER` seconds."""

    def __init__(self, trigger: CommitsTrigger) -> None:
        super().__init__(trigger)
        self._handed_on: deque[tuple[float, int]] = deque()
        """The time at which each event counts as stored, and the last txid in the event."""

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
    """Return whether a transaction is a committed restatement, whose rows an earlier event has counted."""
    return ended.restates is not None and ended.status == "COMMITTED"


def committed_asset(
    topology: str, *, every: int = 1, zookeeper_conn_id: str | None = None, root: str | None = None
) -> Asset:
    """Return the asset for a topology's commits. A DAG with this asset as its schedule runs after commits.

        with DAG("report", schedule=committed_asset("flights", every=10)): ...

    The extra of an event has a `payload`. It lists the topology, the first and last txid, the number of commits and of
    their rows, and the restated transactions. Rows of restatements are not added, since an earlier event has counted
    them.

    :param topology: name of the topology.
    :param every: number of transactions in one event.
    :param zookeeper_conn_id: connection of the ledger; default: `[tx] zookeeper_conn_id`.
    :param root: root path of the ledgers; default: `[tx] root`.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        remedy = "Give a number of transactions, 1 or more."
        raise ConfigError(
            option=f"argument every of committed_asset({topology!r})", value=every, remedy=remedy
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
    """Check and normalize the URI of a topology's commits. Airflow calls this for every asset with the scheme.

    :raises ValueError: the URI has no connection or no topology.
    """
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError(f"URI {uri.geturl()} must be {SCHEME}://CONNECTION/ROOT/TOPOLOGY")
    return uri._replace(path=uri.path.rstrip("/"), query="", fragment="")
