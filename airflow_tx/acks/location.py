"""Where ackers are: a URL, for a worker without Airflow, or an Airflow connection."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from airflow_tx.acks.api import AckerStore
from airflow_tx.acks.redis import RedisAckers
from airflow_tx.acks.znodes import ZnodeAckers
from airflow_tx.connections.lookup import airflow_connection, for_airflow, wrong_type
from airflow_tx.connections.redis import parameters_of_connection, parameters_of_url
from airflow_tx.errors import AckersUnavailable, ConfigError, StoreError
from airflow_tx.protocol.api import Store
from airflow_tx.provider_info import OPTIONS

DEFAULT_ROOT: str = OPTIONS["root"]["default"]
_OPTION = "acker_store"


@contextmanager
def ackers_of(conn_id: str | None, ledger: Store, root: str) -> Iterator[AckerStore]:
    """Connect to the ackers of a transaction as long as the block.

    :param conn_id: of an Airflow connection; None: they are beside the ledger.
    :param root: of the ledgers.
    :raises ConfigError, AckersUnavailable: see `open_ackers`.
    """
    if conn_id is None:
        yield ZnodeAckers(ledger, root)
        return
    store = open_ackers(conn_id, root=root)
    try:
        yield store
    finally:
        store.close()


_shared: dict[tuple[int, str, str], AckerStore] = {}


@contextmanager
def shared_ackers(conn_id: str | None, ledger: Store, root: str) -> Iterator[AckerStore]:
    """The same for a process that asks every second, a triggerer: the connection stays, until it fails."""
    if conn_id is None:
        yield ZnodeAckers(ledger, root)
        return
    key = (os.getpid(), conn_id, root)
    store = _shared.get(key) or _shared.setdefault(key, open_ackers(conn_id, root=root))
    try:
        yield store
    except AckersUnavailable:
        _shared.pop(key, None)
        store.close()
        raise


def open_ackers(where: str, *, root: str = DEFAULT_ROOT) -> AckerStore:
    """Connect to ackers; `close` gives the connection back.

    :param where: redis://user:password@host:port/db, zookeeper://host:port,host:port/root, or the id of an Airflow
        connection of type redis or zookeeper.
    :param root: the root of the ledgers, for a ZooKeeper connection.
    :raises ConfigError: there is no such connection, or it is of another type.
    :raises AckersUnavailable: they do not answer.
    """
    scheme, separator, _ = where.partition("://")
    if separator and scheme == "zookeeper":
        return _of_zookeeper_url(where)
    if separator:
        return RedisAckers(parameters_of_url(where), where="redis")
    connection = airflow_connection(where, option=_OPTION, conn_type="redis")
    if connection.conn_type == "redis":
        return RedisAckers(
            parameters_of_connection(where, what=_OPTION), where=f"connection {where}"
        )
    if connection.conn_type == "zookeeper":
        return _of_zookeeper_connection(where, root)
    raise wrong_type(connection, _OPTION, "redis or zookeeper")


def _of_zookeeper_url(url: str) -> ZnodeAckers:
    from airflow_tx.store.client import ClientConfig, connect, disconnect
    from airflow_tx.store.zookeeper import ZooKeeperStore

    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    if not hosts:
        raise ConfigError(
            option=_OPTION, value="zookeeper://", remedy="Use zookeeper://host:port/root."
        )
    try:
        client = connect(
            ClientConfig(hosts, login=unquote(user) or None, password=unquote(password) or None)
        )
    except StoreError as error:
        raise AckersUnavailable(where=f"ZooKeeper {hosts}", reason=str(error)) from error
    root = parts.path if parts.path.strip("/") else DEFAULT_ROOT
    store = ZooKeeperStore(client, hosts=hosts)
    return ZnodeAckers(store, root, where=f"ZooKeeper {hosts}", close=lambda: disconnect(client))


def _of_zookeeper_connection(conn_id: str, root: str) -> ZnodeAckers:
    from airflow_tx.hooks.zookeeper import ZooKeeperHook
    from airflow_tx.store.client import disconnect

    for_airflow(conn_id)
    try:
        client, store = ZooKeeperHook(conn_id).connect()
    except StoreError as error:
        raise AckersUnavailable(where=f"connection {conn_id}", reason=str(error)) from error
    return ZnodeAckers(store, root, where=f"connection {conn_id}", close=lambda: disconnect(client))
