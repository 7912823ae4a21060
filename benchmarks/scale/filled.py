"""Ledgers of many transactions: made by the steps of the protocol in memory, then copied to a ZooKeeper.

In memory a transaction takes about a millisecond. What the steps make there is, byte for byte, what they make on a
ZooKeeper: `compare` shows it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_tx.ledger.api import Children, Create, Node, Put, Requirement, Store, Write
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from tests.integration.pipeline import Clock, Pipeline

A_MULTI = 500


class FlatStore(MemoryStore):
    """A `MemoryStore` that copies nothing, for one thread and steps that are not refused."""

    def __init__(self) -> None:
        super().__init__()
        self._below: dict[str, set[str]] = defaultdict(set)

    @property
    def nodes(self) -> dict[str, Node]:
        return self._nodes

    def children(self, path: str) -> Children | None:
        node = self._nodes.get(path)
        return None if node is None else Children(tuple(sorted(self._below[path])), node.version)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        for requirement in requirements:
            self._check(requirement)
        for write in writes:
            folder, _, name = write.path.rpartition("/")
            if isinstance(write, Create):
                self._nodes[write.path] = Node(write.data, 0)
                self._below[folder].add(name)
            elif isinstance(write, Put):
                self._nodes[write.path] = Node(write.data, self._nodes[write.path].version + 1)
            else:
                del self._nodes[write.path]
                self._below[folder].discard(name)


class CountedIds:
    """Ids that are the same in every life: they look like random ones."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def nonce(self) -> str:
        return hashlib.md5(b"%d" % next(self._numbers), usedforsecurity=False).hexdigest()

    def message_id(self) -> int:
        return next(self._numbers)


class Repeatable(Pipeline):
    """A pipeline that does the same again, to the byte.

    :param kept: whether one process makes every step, and remembers what it wrote.
    """

    def __init__(self, store: Store, root: str, topology: str = "flights", *, kept: bool = False, **options: Any):
        super().__init__(store, root, topology=topology, **options)
        self.request = TopologyRequest("the_dag", "opaque", 8)
        self._clock, self._ids = Clock(), CountedIds()
        self._kept: Any = self.ledger if kept else None

    @property
    def ledger(self) -> Any:
        if getattr(self, "_kept", None) is not None:
            return self._kept
        found = super().ledger
        found.ids = self._ids
        return found


def fill(pipeline: Pipeline, first: int, last: int) -> None:
    """Commit transactions, from one number to another."""
    for txid in range(first, last + 1):
        pipeline.run(f"scheduled__{txid:07}")


class FlatLedgers:
    """The ledger of one topology at growing sizes: its transactions are made once."""

    def __init__(self) -> None:
        self._store = FlatStore()
        self._pipeline = Repeatable(self._store, "", kept=True)
        self._found: dict[int, dict[str, Node]] = {}
        self._last = 0

    def of(self, count: int) -> dict[str, Node]:
        """Every record after so many committed transactions, below `/`. Sizes are asked for in order."""
        if count not in self._found:
            fill(self._pipeline, self._last + 1, count)
            self._last, self._found[count] = count, dict(self._store.nodes)
        return self._found[count]


LEDGERS = FlatLedgers()


def copied(store: ZooKeeperStore, root: str, nodes: dict[str, Node]) -> None:
    """Make these records in a ZooKeeper, below `root`."""
    store.ensure(root)
    writes: list[Write] = []
    size = 0
    for path in sorted(nodes, key=lambda each: (each.count("/"), each)):
        if not path.strip("/"):
            continue
        writes.append(Create(f"{root}{path}", nodes[path].data))
        size += len(nodes[path].data) + len(path) + 200
        if len(writes) >= A_MULTI or size > 500_000:
            store.multi([], writes)
            writes, size = [], 0
    store.multi([], writes)


def tree(store: Store, path: str) -> Iterator[tuple[str, bytes]]:
    """Every record at a path and below it."""
    node, children = store.get(path), store.children(path)
    if node is not None:
        yield path, node.data
    for name in children.names if children is not None else ():
        yield from tree(store, f"{path}/{name}")


def compare(store: ZooKeeperStore, count: int, *, history: int) -> int:
    """Make a ledger by steps on a ZooKeeper, and one in memory that is copied, and compare them.

    :return: how many records they have, all of them equal.
    """
    flat = FlatStore()
    fill(Repeatable(flat, "", kept=True, history=history), 1, count)
    copied(store, "/copied", flat.nodes)
    fill(Repeatable(store, "/by_steps", history=history), 1, count)
    steps, copies = dict(tree(store, "/by_steps/flights")), dict(tree(store, "/copied/flights"))
    assert steps == {f"/by_steps{path.removeprefix('/copied')}": data for path, data in copies.items()}
    return len(steps)
