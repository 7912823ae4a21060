"""The connection type `zookeeper`. The hook creates a client, or the store of the ledger, from an Airflow connection.

The import is fast, since kazoo is loaded only when a client is created.
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
    """The hook for a ZooKeeper ensemble. Its hosts and settings come from an Airflow connection.

    The host field lists one or several hosts, such as `h1:2181,h2:2181`. A host without a port uses the connection's
    port. Login and password are for digest or SASL authentication. All paths are below the chroot, which is the schema
    or the extra `chroot`. Extras that are not in `provider_info.CONNECTION_FIELDS` are refused.

    :param zookeeper_conn_id: id of the connection; default: `[tx] zookeeper_conn_id`.
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
        """Read and check the connection. Return the configuration of a client.

        :raises ConfigError: the connection does not exist or has an invalid field.
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
        """Return a connected kazoo client. The caller must stop it with `airflow_tx.ledger.store.client.disconnect`.

        :raises ConfigError: the connection does not exist or has an invalid field.
        :raises StoreUnavailable: no server responded.
        """
        from airflow_tx.ledger import connect

        return connect(self.config())

    @contextmanager
    def store(self) -> Iterator[ZooKeeperStore]:
        """Return the store of the ledger, with a new client for the `with` block. Raises the errors of `get_conn`."""
        from airflow_tx.ledger import disconnect

        client, store = self.connect()
        try:
            yield store
        finally:
            disconnect(client)

    def test_connection(self) -> tuple[bool, str]:
        """Test the connection by reading the chroot, for Airflow's Test button."""
        try:
            with self.store() as store:
                store.get("/")
        except TxError as error:
            return False, str(error)
        return True, f"ZooKeeper answers at {self.config().hosts}"

    def connect(self) -> tuple[Any, ZooKeeperStore]:
        """Return a new client and its store. The caller must close the client. Raises the errors of `get_conn`."""
        from airflow_tx.ledger import ZooKeeperStore, connect

        config = self.config()
        client = connect(config)
        return client, ZooKeeperStore(client, conn=config.conn_id, hosts=config.hosts)


# --- reading the connection --------------------------------------------------------------------------------------


def client_config(connection: Any, *, conn_id: str, settings: Settings) -> ClientConfig:
    """Return the configuration of a client from an Airflow connection.

    :raises ConfigError: a field of the connection is invalid. The error names the field.
    """
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
        # Do not show the extra, since it may contain the password of the key.
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
            "ZooKeeper's digest scheme ends a login at its first colon: use a login without a colon.",
        )
    if _SURROGATE.search(f"{connection.login}{connection.password}"):
        raise _refuse(
            conn_id,
            "login",
            "(not shown)",
            "It or its password is not valid text: type both again.",
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
            "Set both cert_file and key_file, or neither.",
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
    # In a connection defined by a URI, all values in the extra are strings.
    flag = _TRUE.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise _refuse(conn_id, name, value, "It must be true or false.")
    return flag


# --- kept client --------------------------------------------------------------------------------------------------
# A process shares one client per connection. It creates the client on first use, and replaces it if
# the client is dead or the connection has changed.


log = logging.getLogger(__name__)

CHECK_EVERY = 20.0
"""Seconds between two reads of the connection, which may change while a triggerer or api-server runs."""


class KeptClient:
    """The shared client of one connection, and its stores. It is thread-safe.

    :param conn_id: ZooKeeper connection.
    :param connect_timeout: seconds within which a server must respond; default: `[tx] connect_timeout`.
    :param patience: maximum seconds for a read or a write of a step.
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
        """Whether the Airflow connection must be re-read."""
        return self._store is not None and time.monotonic() - self._read_at >= CHECK_EVERY

    @property
    def is_dead(self) -> bool:
        """Whether the client is no longer usable, because its session has ended or no server accepts it.

        A server that was restored from an older snapshot never accepts a client that has seen newer data. After two
        session time-outs without a connection, the session has ended anyway, so replacing the client is safe.
        """
        store = self._store
        if store is None or store.connected:
            return False
        return store.ended or store.lost_for > 2 * Settings.load().session_timeout

    def store(self) -> ZooKeeperStore:
        """Return the store for steps, which reconnects automatically. A call blocks until the client is connected.

        :raises ConfigError, StoreUnavailable: as in `ZooKeeperHook.get_conn`. The next call retries the connection.
        """
        with self._lock:
            if self.is_dead or (self.is_due and self._has_changed()):
                self.close()
            return self._store or self._connect()

    def watched(self, *, patience: float = 30.0) -> WatchedStore:
        """Return a store that remembers records, for callers that only read. Raises the errors of `store`.

        :param patience: maximum seconds for a read.
        """
        from airflow_tx.ledger import WatchedStore

        with self._lock:
            store = self.store()
            if self._watched is None:
                self._watched = WatchedStore.beside(store, read_timeout=patience)
            return self._watched

    def close(self) -> None:
        """Close the client in the background."""
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
            text = "Connection %s cannot be read again: %s The existing client stays in use."
            log.warning(text, self._conn_id, error)
            return False


_kept: dict[tuple[int, str], KeptClient] = {}


def kept_client(conn_id: str) -> KeptClient:
    """Return this process's shared client for a connection.

    A forked child gets a new client, since threads do not survive a fork.
    """
    return _kept.setdefault((os.getpid(), conn_id), KeptClient(conn_id))


def shared_store(conn_id: str) -> ZooKeeperStore:
    """Return the store of the shared client. Call this in a thread, because it may block a trigger's event loop."""
    return kept_client(conn_id).store()


def shared_watched_store(conn_id: str) -> WatchedStore:
    """Return the store of the shared client that remembers records, for callers that only read."""
    return kept_client(conn_id).watched()
