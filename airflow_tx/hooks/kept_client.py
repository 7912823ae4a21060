"""The client of each ZooKeeper in a process: made when it is first wanted, and made again once it is dead."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_tx.config import Settings

if TYPE_CHECKING:
    from airflow_tx.store.watched import WatchedStore
    from airflow_tx.store.zookeeper import ZooKeeperStore


class KeptClient:
    """The client of one connection, with the stores on it. Thread-safe.

    :param conn_id: the connection of the ZooKeeper.
    :param connect_timeout: seconds in which a server has to answer; default: `[tx] connect_timeout`.
    :param patience: seconds that a read or a write of the store for steps takes at most.
    """

    def __init__(
        self, conn_id: str, *, connect_timeout: float | None = None, patience: float = 30.0
    ) -> None:
        self._conn_id = conn_id
        self._connect_timeout = connect_timeout
        self._patience = patience
        self._lock = threading.RLock()
        self._client: Any = None
        self._store: ZooKeeperStore | None = None
        self._watched: WatchedStore | None = None

    @property
    def is_dead(self) -> bool:
        """Whether its session is over, or no server takes it back.

        A server that was restored to an older snapshot never serves a client that knows of the future. A client that
        was away for so long has lost its session, so a new client loses nothing.
        """
        store = self._store
        if store is None or store.connected:
            return False
        return store.ended or store.lost_for > 2 * Settings.load().session_timeout

    def store(self) -> ZooKeeperStore:
        """Return the store for steps; it reconnects by itself. Blocks while it connects for the first time.

        :raises ConfigError, StoreUnavailable: see `ZooKeeperHook.get_conn`; the next call tries again.
        """
        with self._lock:
            if self.is_dead:
                self.close()
            return self._store or self._connect()

    def watched(self, *, patience: float = 30.0) -> WatchedStore:
        """Return a store beside it that remembers what it reads, for callers that only read. Raises as `store`.

        :param patience: seconds that a read takes at most.
        """
        from airflow_tx.store.watched import WatchedStore

        with self._lock:
            store = self.store()
            if self._watched is None:
                self._watched = WatchedStore.beside(store, read_timeout=patience)
            return self._watched

    def close(self) -> None:
        """Close the client, without waiting for that."""
        from airflow_tx.store.client import disconnect

        with self._lock:
            if self._client is not None:
                threading.Thread(target=disconnect, args=(self._client,), daemon=True).start()
            self._client = None
            self._store = None
            self._watched = None

    def _connect(self) -> ZooKeeperStore:
        from airflow_tx.hooks.zookeeper import ZooKeeperHook
        from airflow_tx.store.client import connect
        from airflow_tx.store.zookeeper import ZooKeeperStore

        config = ZooKeeperHook(self._conn_id).config()
        if self._connect_timeout is not None:
            config = replace(config, connect_timeout=self._connect_timeout)
        self._client = connect(config)
        self._store = ZooKeeperStore(
            self._client,
            conn=config.conn_id,
            hosts=config.hosts,
            read_timeout=self._patience,
            write_timeout=self._patience,
        )
        return self._store


_kept: dict[tuple[int, str], KeptClient] = {}


def kept_client(conn_id: str) -> KeptClient:
    """Return the client that all users of a connection in this process share.

    Threads do not survive a fork, so a child makes a client of its own.
    """
    return _kept.setdefault((os.getpid(), conn_id), KeptClient(conn_id))


def shared_store(conn_id: str) -> ZooKeeperStore:
    """Return the store of the shared client: call it in a thread, not in the event loop of a trigger."""
    return kept_client(conn_id).store()


def shared_watched_store(conn_id: str) -> WatchedStore:
    """Return the store of the shared client that remembers what it reads, for callers that only read."""
    return kept_client(conn_id).watched()
