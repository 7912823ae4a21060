"""The client of each ZooKeeper in an api-server process. No request waits long for it, and it reconnects by itself."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from airflow_tx.errors import StoreUnavailable, TxError
from airflow_tx.hooks.kept_client import KeptClient

if TYPE_CHECKING:
    from airflow_tx.store.watched import WatchedStore
    from airflow_tx.store.zookeeper import ZooKeeperStore

log = logging.getLogger(__name__)

LEDGER_PATIENCE = 2.0
"""Seconds that a question waits for ZooKeeper at most."""
STEP_PATIENCE = 10.0
_GRACE = 0.5


class LedgerAway(TxError):
    """The ledger cannot be read now. The error names no host, because a browser shows it."""

    template = (
        "The ledger cannot be read now: {reason}. This page continues by itself as soon as it can."
    )


SILENT = "ZooKeeper does not answer"
_UNUSABLE = "its connection cannot be used, see the log of the api-server"


class LedgerClient:
    """Connects in a thread of its own, as long as there are requests.

    :param conn_id: the connection of the ZooKeeper.
    """

    def __init__(self, conn_id: str) -> None:
        self._kept = KeptClient(conn_id, connect_timeout=LEDGER_PATIENCE, patience=STEP_PATIENCE)
        self._changed = threading.Condition()
        self._store: WatchedStore | None = None
        self._thread: threading.Thread | None = None
        self._tries = False
        self._failed_at = float("-inf")
        self._reason = SILENT

    def store(self) -> WatchedStore:
        """Return the store.

        :raises LedgerAway: ZooKeeper does not answer, or refuses; at once, if that is known.
        """
        with self._changed:
            if self._kept.is_dead:
                self._store = None
            if self._store is None:
                self._start()
                # While the first attempt is under way it may succeed any moment.
                known = self._failed_at > float("-inf")
                self._changed.wait_for(
                    lambda: self._store is not None, 0.0 if known else LEDGER_PATIENCE
                )
            elif self._kept.is_due:
                self._start()
                # A secrets backend may be slow: then the next request finds the client of the new connection.
                self._changed.wait_for(lambda: not self._tries, LEDGER_PATIENCE)
            store = self._store
        if store is None:
            raise LedgerAway(reason=self._reason)
        if store.lost_for > _GRACE or time.monotonic() - self._failed_at < _GRACE:
            raise LedgerAway(reason=SILENT)
        return store

    def store_of_steps(self) -> ZooKeeperStore:
        """Return a store on the same client that remembers nothing, as steps need it. Raises as `store`."""
        self.store()
        return self._kept.store()

    def failed(self) -> None:
        """Note that a question was not answered: questions right after it are not asked."""
        self._failed_at = time.monotonic()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._tries = True
            self._thread = threading.Thread(target=self._try, name="airflow_tx-ledger", daemon=True)
            self._thread.start()

    def _try(self) -> None:
        store = None
        reason = SILENT
        try:
            store = self._kept.watched(patience=LEDGER_PATIENCE)
        except StoreUnavailable as unavailable:
            log.warning("%s", unavailable)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next one who asks tries again
            log.warning("The client of ZooKeeper cannot be made: %s", error)
            reason = _UNUSABLE
        with self._changed:
            self._tries = False
            self._reason = reason
            self._store = store
            self._failed_at = float("-inf") if store is not None else time.monotonic()
            self._changed.notify_all()


_clients: dict[tuple[int, str], LedgerClient] = {}
_lock = threading.Lock()


def ledger_client(conn_id: str) -> LedgerClient:
    """Return the client of this process for a connection; a child that was forked makes its own."""
    key = os.getpid(), conn_id
    with _lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = LedgerClient(conn_id)
        return found
