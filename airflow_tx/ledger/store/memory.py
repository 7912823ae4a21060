"""An in-memory store with ZooKeeper's rules, for tests, models and examples that run in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

from airflow_tx.base.errors import RequirementFailed, TooMuchMetadata
from airflow_tx.ledger.api import (
    ANY_VERSION,
    Absent,
    Children,
    Create,
    Delete,
    Node,
    Put,
    Requirement,
    Store,
    Watch,
    Write,
)

# --- sizes --------------------------------------------------------------------------------------------------------
# The size limit of a ZooKeeper request. It is checked before a request is sent, since a larger
# request breaks the connection.


# The default of jute.maxbuffer.
LIMIT = 1_048_575
LARGE = 100_000
"""Size in bytes from which a request may get no response, because the servers have a smaller jute.maxbuffer."""
# Maximum bytes for the header, version, flags and ACL of one operation.
_OPERATION = 96


def check_sizes(
    requirements: Sequence[Requirement],
    writes: Sequence[Write],
    *,
    limit: int = LIMIT,
    prefix: int = 0,
) -> int:
    """Raise an error if a multi is larger than the servers accept.

    :param limit: maximum bytes of a request.
    :param prefix: bytes that the chroot adds to every path.
    :return: the approximate size in bytes.
    :raises TooMuchMetadata: the multi is too large. The error names the largest record.
    """
    largest = ""
    size = -1
    total = _OPERATION
    for operation in (*requirements, *writes):
        data = len(operation.data) if isinstance(operation, (Create, Put)) else 0
        total += _OPERATION + prefix + len(operation.path.encode()) + data
        if data > size:
            largest = operation.path
            size = data
    if total > limit:
        if size + _OPERATION * 2 + prefix + len(largest.encode()) > limit:
            raise TooMuchMetadata(path=largest, size=size, limit=limit)
        raise TooMuchMetadata(
            path=f"{largest} and what is written with it", size=total, limit=limit
        )
    return total


def explain_loss(reason: str, size: int) -> str:
    """Explain why a request of this size got no response."""
    return (
        reason
        if size < LARGE
        else f"{reason}; its {size} bytes may be more than jute.maxbuffer of the servers"
    )


# --- memory -------------------------------------------------------------------------------------------------------


class MemoryStore(Store):
    """A `Store` on a dictionary. It is thread-safe."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._nodes: dict[str, Node] = {}
        self._limit = limit
        self._changed = threading.Condition()
        self._changes: dict[str, int] = {}

    def get(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def children(self, path: str) -> Children | None:
        with self._changed:
            node = self._nodes.get(path)
            if node is None:
                return None
            prefix = f"{path}/"
            names = (name[len(prefix) :] for name in self._nodes if name.startswith(prefix))
            return Children(tuple(sorted(name for name in names if "/" not in name)), node.version)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        check_sizes(requirements, writes, limit=self._limit)
        with self._changed:
            for requirement in requirements:
                self._check(requirement)
            after = dict(self._nodes)
            for write in writes:
                self._apply(after, write)
            self._nodes = after
            for write in writes:
                self._changes[write.path] = self._changes.get(write.path, 0) + 1
            self._changed.notify_all()

    def sync(self) -> None:
        """Do nothing: every read already sees every write."""

    def ensure(self, path: str) -> None:
        with self._changed:
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                self._nodes.setdefault("/" + "/".join(parts[:depth]), Node(b"", 0))

    @contextmanager
    def watch(self, *paths: str) -> Iterator[Watch]:
        yield _MemoryWatch(self._changed, self._changes, paths)

    def snapshot(self) -> tuple[tuple[str, bytes, int], ...]:
        """Return a copy of all content, which can be compared and hashed."""
        return tuple(sorted((path, node.data, node.version) for path, node in self._nodes.items()))

    def restore(self, snapshot: tuple[tuple[str, bytes, int], ...]) -> None:
        """Restore the content that `snapshot` returned."""
        self._nodes = {path: Node(data, version) for path, data, version in snapshot}

    def _check(self, requirement: Requirement) -> None:
        node = self._nodes.get(requirement.path)
        found = "nothing" if node is None else f"version {node.version}"
        if isinstance(requirement, Absent):
            expected = "nothing"
            holds = node is None
        else:
            expected = f"version {requirement.version}"
            holds = node is not None and requirement.version in (ANY_VERSION, node.version)
        if not holds:
            raise RequirementFailed(path=requirement.path, expected=expected, found=found)

    def _apply(self, nodes: dict[str, Node], write: Write) -> None:
        before = nodes.get(write.path)
        if isinstance(write, Create):
            parent = write.path.rpartition("/")[0]
            if before is not None:
                raise RequirementFailed(
                    path=write.path, expected="nothing", found=f"version {before.version}"
                )
            if parent and parent not in nodes:
                raise RequirementFailed(path=parent, expected="a record", found="nothing")
            nodes[write.path] = Node(write.data, 0, datetime.now(timezone.utc))
        elif before is None:
            raise RequirementFailed(path=write.path, expected="a record", found="nothing")
        elif isinstance(write, Put):
            nodes[write.path] = Node(write.data, before.version + 1, datetime.now(timezone.utc))
        elif isinstance(write, Delete):
            if any(name.startswith(f"{write.path}/") for name in nodes):
                raise RequirementFailed(path=write.path, expected="no children", found="children")
            del nodes[write.path]


class _MemoryWatch:
    def __init__(
        self, changed: threading.Condition, changes: dict[str, int], paths: Sequence[str]
    ) -> None:
        self._changed = changed
        self._changes = changes
        self._seen = {path: changes.get(path, 0) for path in paths}

    def wait(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: any(
                    self._changes.get(path, 0) != seen for path, seen in self._seen.items()
                ),
                timeout,
            )
