"""The client of each ZooKeeper in a process: made when it is first wanted, and again once it is dead or out of date."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_tx.config import Settings

if TYPE_CHECKING:
    from airflow_tx.store.client import ClientConfig
    from airflow_tx.store.watched import WatchedStore
    from airflow_tx.store.zookeeper import ZooKeeperStore


log = logging.getLogger(__name__)

CHECK_EVERY = 20.0
"""Seconds after which the connection is read again: a triggerer or an api-server lives longer than it may."""


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
        self._config: ClientConfig | None = None
        self._read_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to read the connection again."""
        return self._store is not None and time.monotonic() - self._read_at >= CHECK_EVERY

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
            if self.is_dead or (self.is_due and self._has_changed()):
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
        from airflow_tx.store.client import connect
        from airflow_tx.store.zookeeper import ZooKeeperStore

        self._config = config = self._read_config()
        self._client = connect(config)
        self._store = ZooKeeperStore(
            self._client,
            conn=config.conn_id,
            hosts=config.hosts,
            read_timeout=self._patience,
            write_timeout=self._patience,
        )
        return self._store

    def _read_config(self) -> ClientConfig:
        from airflow_tx.hooks.zookeeper import ZooKeeperHook

        self._read_at = time.monotonic()
        config = ZooKeeperHook(self._conn_id).config()
        if self._connect_timeout is None:
            return config
        return replace(config, connect_timeout=self._connect_timeout)

    def _has_changed(self) -> bool:
        try:
            return self._read_config() != self._config
        except Exception as error:  # noqa: BLE001 - a secrets backend may raise anything
            text = "Connection %s cannot be read again: %s The client that was made of it stays."
            log.warning(text, self._conn_id, error)
            return False


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
