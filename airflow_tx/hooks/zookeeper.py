"""The connection type `zookeeper`: an Airflow connection becomes a client, or the ledger's store.

Importing this module is cheap: kazoo is loaded when a client is made.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_tx.base.config import Settings
from airflow_tx.base.connections import connection_of_airflow, no_connection, server_addresses
from airflow_tx.base.errors import ConfigError, TxError
from airflow_tx.provider_info import CONNECTION_FIELDS

if TYPE_CHECKING:
    from airflow_tx.ledger import ClientConfig, Tls, WatchedStore, ZooKeeperStore


# --- zookeeper ----------------------------------------------------------------------------------------------------


DEFAULT_PORT = 2181
_SURROGATE = re.compile("[\ud800-\udfff]")
_TRUE = {"true": True, "1": True, "false": False, "0": False}


class ZooKeeperHook(BaseHook):
    """A ZooKeeper ensemble, as an Airflow connection describes it.

    Host: one host or several, `h1:2181,h2:2181`; hosts without a port get the connection's. Login and password:
    digest or SASL authentication. Schema, or the extra `chroot`: every path is below it. Extras: only the ones of
    `provider_info.CONNECTION_FIELDS`.

    :param zookeeper_conn_id: the connection; default: `[tx] zookeeper_conn_id`.
    """

    conn_name_attr = "zookeeper_conn_id"
    default_conn_name = "zookeeper_default"
    conn_type = "zookeeper"
    hook_name = "ZooKeeper"

    def __init__(self, zookeeper_conn_id: str | None = None) -> None:
        super().__init__()
        self.settings = Settings.load()
        self.zookeeper_conn_id = zookeeper_conn_id or self.settings.zookeeper_conn_id

    def config(self) -> ClientConfig:
        """Read and check the connection.

        :raises ConfigError: it does not exist, or something in it cannot be used.
        """
        conn_id = self.zookeeper_conn_id
        connection = connection_of_airflow(conn_id)
        if connection is None:
            remedy = no_connection(
                conn_id, {"conn_type": self.conn_type, "host": "h1:2181,h2:2181"}
            )
            raise ConfigError(option="zookeeper_conn_id", value=conn_id, remedy=remedy)
        return client_config(connection, conn_id=conn_id, settings=self.settings)

    def get_conn(self) -> Any:
        """Connect a kazoo client; the caller stops it with `airflow_tx.ledger.store.client.disconnect`.

        :raises ConfigError: see `config`.
        :raises StoreUnavailable: no server answered.
        """
        from airflow_tx.ledger import connect

        return connect(self.config())

    @contextmanager
    def store(self) -> Iterator[ZooKeeperStore]:
        """Connect the ledger's store, on a client of its own that lives as long as the block. Raises as `get_conn`."""
        from airflow_tx.ledger import disconnect

        client, store = self.connect()
        try:
            yield store
        finally:
            disconnect(client)

    def test_connection(self) -> tuple[bool, str]:
        """For Airflow's Test button: connect, and read the chroot."""
        try:
            with self.store() as store:
                store.get("/")
        except TxError as error:
            return False, str(error)
        return True, f"ZooKeeper answers at {self.config().hosts}"

    def connect(self) -> tuple[Any, ZooKeeperStore]:
        """Return a new client and the store on it; the caller closes the client. Raises as `get_conn`."""
        from airflow_tx.ledger import ZooKeeperStore, connect

        config = self.config()
        client = connect(config)
        return client, ZooKeeperStore(client, conn=config.conn_id, hosts=config.hosts)


# --- reading the connection --------------------------------------------------------------------------------------


def client_config(connection: Any, *, conn_id: str, settings: Settings) -> ClientConfig:
    """Read what a client needs of an Airflow connection; ConfigError names the field that cannot be used."""
    from airflow_tx.ledger import ClientConfig

    extra = _extra(connection, conn_id)
    return ClientConfig(
        hosts=_hosts(connection, conn_id),
        conn_id=conn_id,
        chroot=_chroot(connection, extra, conn_id),
        login=connection.login or None,
        password=connection.password,
        scheme=_scheme(connection, extra, conn_id),
        tls=_tls(extra, conn_id),
        session_timeout=settings.session_timeout,
        connect_timeout=settings.connect_timeout,
    )


def _refuse(conn_id: str, what: str, value: Any, remedy: str) -> ConfigError:
    return ConfigError(option=f"{what} of connection {conn_id}", value=value, remedy=remedy)


def _extra(connection: Any, conn_id: str) -> Mapping[str, Any]:
    if not connection.extra:
        return {}
    try:
        extra = json.loads(connection.extra)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        # Its text is not shown: it may hold the key's password.
        raise _refuse(conn_id, "extra", "(not shown)", "It must be a JSON object.")
    known = ", ".join(CONNECTION_FIELDS)
    for name in extra:
        if name not in CONNECTION_FIELDS:
            raise _refuse(
                conn_id, "extra", name, f"Known extras are {known}; remove it or correct its name."
            )
    return {name: value for name, value in extra.items() if value not in (None, "")}


def _hosts(connection: Any, conn_id: str) -> str:
    try:
        hosts = server_addresses(connection.host or "", connection.port or DEFAULT_PORT)
    except ValueError:
        remedy = "Write it as h1:2181,h2:2181, an IPv6 address in brackets; a chroot goes into the extra."
        raise _refuse(conn_id, "host", connection.host, remedy) from None
    if not hosts:
        raise _refuse(conn_id, "host", connection.host, "Name at least one server: h1:2181,h2:2181")
    return ",".join(hosts)


def _chroot(connection: Any, extra: Mapping[str, Any], conn_id: str) -> str:
    schema = connection.schema or ""
    chroot = _text(extra, "chroot", conn_id) or ""
    if schema and chroot and schema.strip("/") != chroot.strip("/"):
        raise _refuse(
            conn_id, "chroot", chroot, f"Its schema says {schema!r}; set one of them only."
        )
    path = (chroot or schema).strip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise _refuse(
            conn_id,
            "chroot",
            chroot or schema,
            "It must be the path of a znode such as /production.",
        )
    return f"/{path}" if path else ""


def _scheme(connection: Any, extra: Mapping[str, Any], conn_id: str) -> str | None:
    scheme = extra.get("auth_scheme")
    if scheme not in (None, "digest", "sasl"):
        raise _refuse(conn_id, "auth_scheme", scheme, "It must be digest or sasl.")
    if scheme and not connection.login:
        raise _refuse(
            conn_id,
            "auth_scheme",
            scheme,
            "It needs a login and a password; set them or remove it.",
        )
    if connection.login and not connection.password:
        raise _refuse(
            conn_id, "login", connection.login, "It needs a password; set one or remove the login."
        )
    if scheme != "sasl" and ":" in (connection.login or ""):
        raise _refuse(
            conn_id,
            "login",
            connection.login,
            "ZooKeeper's digest ends a login at its first colon: use a login without one.",
        )
    if _SURROGATE.search(f"{connection.login}{connection.password}"):
        raise _refuse(
            conn_id, "login", "(not shown)", "It or its password is no text: type both again."
        )
    return scheme


def _tls(extra: Mapping[str, Any], conn_id: str) -> Tls | None:
    from airflow_tx.ledger import Tls

    files = {
        name: _text(extra, name, conn_id)
        for name in ("ca_file", "cert_file", "key_file", "key_password")
    }
    wanted = _flag(extra, "use_tls", conn_id, default=False)
    given = [name for name, value in files.items() if value]
    if not wanted:
        if given:
            raise _refuse(
                conn_id, "use_tls", False, f"{given[0]} is set; set use_tls to true, or remove it."
            )
        return None
    if bool(files["cert_file"]) != bool(files["key_file"]):
        raise _refuse(
            conn_id,
            "cert_file",
            files["cert_file"],
            "cert_file and key_file belong together; set both.",
        )
    verify = _flag(extra, "verify", conn_id, default=True)
    return Tls(
        files["ca_file"], files["cert_file"], files["key_file"], files["key_password"], verify
    )


def _text(extra: Mapping[str, Any], name: str, conn_id: str) -> str | None:
    value = extra.get(name)
    if value is not None and not isinstance(value, str):
        shown = "(not shown)" if name == "key_password" else value
        raise _refuse(conn_id, name, shown, "It must be text.")
    return value


def _flag(extra: Mapping[str, Any], name: str, conn_id: str, *, default: bool) -> bool:
    value = extra.get(name, default)
    # A connection given as a URI has nothing but text in its extra.
    flag = _TRUE.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise _refuse(conn_id, name, value, "It must be true or false.")
    return flag


# --- kept client --------------------------------------------------------------------------------------------------
# The client of each ZooKeeper in a process: made when it is first wanted, and again once it is dead or out of date.


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
        from airflow_tx.ledger import WatchedStore

        with self._lock:
            store = self.store()
            if self._watched is None:
                self._watched = WatchedStore.beside(store, read_timeout=patience)
            return self._watched

    def close(self) -> None:
        """Close the client, without waiting for that."""
        from airflow_tx.ledger import disconnect

        with self._lock:
            if self._client is not None:
                threading.Thread(target=disconnect, args=(self._client,), daemon=True).start()
            self._client = None
            self._store = None
            self._watched = None

    def _connect(self) -> ZooKeeperStore:
        from airflow_tx.ledger import ZooKeeperStore, connect

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
