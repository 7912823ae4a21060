"""A store for repeated reads of the same records: each is read once, until ZooKeeper reports a change."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoNodeError  # type: ignore[import-untyped]

from airflow_tx.protocol.api import Children, Node
from airflow_tx.store.zookeeper import ZooKeeperStore, node_of

MOST_KEPT = 200_000
"""Records and folders that are remembered at most."""
MOST_BYTES = 64 * 2**20
"""Size of the records and of the names of folders that are remembered."""


class WatchedStore(ZooKeeperStore):
    """A `ZooKeeperStore` that remembers what it has read, each under a watch of its own. Thread-safe.

    A value may be as old as the delay of ZooKeeper's notice of a change. While the connection is lost nothing
    is remembered. For steps, which must read what everybody has written, take a `ZooKeeperStore`.
    """

    def __init__(self, client: KazooClient, **options: Any) -> None:
        self._kept = threading.Lock()
        self._found: dict[tuple[str, str], Any] = {}
        self._size = 0
        # One for each running read. It is removed if the record changes during the read; then the answer is not kept.
        self._reads: dict[tuple[str, str], object] = {}
        # How often everything was forgotten, and how often records below a path were.
        self._losses = 0
        self._changes: Counter[str] = Counter()
        super().__init__(client, **options)

    @classmethod
    def beside(cls, store: ZooKeeperStore, **options: Any) -> WatchedStore:
        """Make one on the client of another store."""
        return cls(store._client, conn=store._conn, hosts=store._hosts, **options)

    def get(self, path: str) -> Node | None:
        node: Node | None = self._once("data", path)
        return node

    def children(self, path: str) -> Children | None:
        children: Children | None = self._once("names", path)
        return children

    def mark(self, path: str) -> tuple[int, int]:
        """Give a number that changes whenever something does that was read at `path` or below."""
        with self._kept:
            return self._losses, self._changes[path]

    def check(self) -> None:
        """Find out whether ZooKeeper answers.

        :raises StoreUnavailable: it does not.
        """
        self._read("/", partial(self._client.exists_async, "/"))

    def _once(self, kind: str, path: str) -> Any:
        key = (kind, path)
        with self._kept:
            if key in self._found:
                return self._found[key]
            self._reads[key] = read = object()
        found = self._under_watch(kind, path)
        with self._kept:
            if self._reads.get(key) is read:
                if len(self._found) >= MOST_KEPT or self._size >= MOST_BYTES:
                    self._found.clear()  # what is read again is watched still
                    self._size = 0
                self._found[key] = found
                self._size += _size_of(found)
        return found

    def _under_watch(self, kind: str, path: str) -> Node | Children | None:
        watch = self._on_change
        while True:
            try:
                if kind == "data":
                    data, stat = self._read(
                        path, partial(self._client.get_async, path, watch=watch)
                    )
                    return node_of(data, stat)
                request = partial(
                    self._client.get_children_async, path, watch=watch, include_data=True
                )
                names, stat = self._read(path, request)
                return Children(tuple(sorted(names)), stat.version)
            except NoNodeError:  # then ZooKeeper has set no watch
                if self._read(path, partial(self._client.exists_async, path, watch=watch)) is None:
                    return None

    def _on_change(self, event: Any) -> None:
        if event.path is None:
            self._forget_all()
            return
        with self._kept:
            for kind in ("data", "names"):
                self._size -= _size_of(self._found.pop((kind, event.path), None))
                self._reads.pop((kind, event.path), None)
            if len(self._changes) >= MOST_KEPT:
                self._changes.clear()
                self._losses += 1
            path = event.path
            while path:
                self._changes[path] += 1
                path = path.rpartition("/")[0]

    def _on_state(self, state: Any) -> None:
        self._forget_all()
        super()._on_state(state)

    def _forget_all(self) -> None:
        with self._kept:
            self._found.clear()
            self._size = 0
            self._reads.clear()
            self._changes.clear()
            self._losses += 1


def _size_of(found: Node | Children | None) -> int:
    if isinstance(found, Node):
        return len(found.data)
    return 0 if found is None else sum(map(len, found.names))
