"""Tries to enter the cluster's ZooKeepers; a container runs it, where their names and their authority are known.

Arguments: what the connection says otherwise than its owner's, as JSON. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoAuthError  # type: ignore[import-untyped]
from kazoo.security import OPEN_ACL_UNSAFE  # type: ignore[import-untyped]

from airflow_tx.base.errors import TxError
from airflow_tx.hooks.zookeeper import ZooKeeperHook
from airflow_tx.ledger.store.client import disconnect

OWNER = "AIRFLOW_CONN_ZOOKEEPER_DEFAULT"


def connection(changes: Mapping[str, Any]) -> str:
    """Name the Airflow connection that differs from the owner's by so much."""
    owner = json.loads(os.environ[OWNER])
    extra = {**owner["extra"], **changes.get("extra", {})}
    os.environ["AIRFLOW_CONN_STRANGER"] = json.dumps({**owner, **changes, "extra": extra})
    return "stranger"


def nodes(owner: KazooClient) -> list[str]:
    """Find every node but those of the servers themselves."""
    paths = ["/"]
    for path in paths:
        paths += [f"{path.rstrip('/')}/{child}" for child in owner.get_children(path) if child != "zookeeper"]
    return paths


def done(stranger: KazooClient, path: str) -> Iterator[str]:
    """Do to a node whatever can be done; yield what was not refused."""
    attempts: dict[str, Callable[[], object]] = {
        "read": lambda: stranger.get(path),
        "list": lambda: stranger.get_children(path),
        "write": lambda: stranger.set(path, b""),
        "create": lambda: stranger.create(f"{path.rstrip('/')}/stranger"),
        "open": lambda: stranger.set_acls(path, OPEN_ACL_UNSAFE),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except NoAuthError:
            continue
        yield f"{name} {path}"


def main() -> None:
    os.environ["AIRFLOW__TX__CONNECT_TIMEOUT"] = "20"
    owner, _ = ZooKeeperHook().connect()
    paths = nodes(owner)
    disconnect(owner)
    try:
        stranger, _ = ZooKeeperHook(connection(json.loads(sys.argv[1]))).connect()
    except TxError as error:
        print(json.dumps({"nodes": len(paths), "done": [], "refused": str(error)}))
        return
    print(json.dumps({"nodes": len(paths), "done": [each for path in paths for each in done(stranger, path)]}))
    disconnect(stranger)


if __name__ == "__main__":
    main()
