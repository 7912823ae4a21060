"""How a step reads: every record read becomes a requirement of the multi that follows, so none can be forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from airflow_tx.errors import UnreadableRecord
from airflow_tx.protocol.api import ANY_VERSION, Absent, Children, Node, Requirement, Store, Unchanged
from airflow_tx.protocol.records import decode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_R = TypeVar("_R", bound="DataclassInstance")

PRESENT = Node(b"", ANY_VERSION)
"""A record that is assumed to be there, for `Reader.exists`: the multi is refused if it is not."""


@dataclass
class KnownRecords:
    """Records and names of children, as last read; None stands for a record that was not there."""

    nodes: dict[str, Node | None] = field(default_factory=dict)
    children: dict[str, Children] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything."""
        self.nodes.clear()
        self.children.clear()


class Reader:
    """The reads of one pass of a step.

    :param store: where records come from.
    :param known: what this process has read or written, not read again. It may be out of date: then the multi is
        refused and the step passes again without it; a step that writes nothing is never answered from it.
    :param hasty: whether this pass may assume what is most likely.
    """

    def __init__(self, store: Store, known: KnownRecords | None = None, *, hasty: bool = False) -> None:
        self._store = store
        self._known = known or KnownRecords()
        self.hasty = hasty
        self._versions: dict[str, int | None] = {}
        self.seen = KnownRecords()

    def find(self, cls: type[_R], path: str, *, new: bool = False) -> _R | None:
        """Read the record at `path`, or None, and require that it stays so.

        :param new: most likely it is not there yet, which a hasty pass assumes: the multi is refused if it is.
        """
        if new and self.hasty:
            self._known.nodes.setdefault(path, None)
        node = self._node(path)
        self._versions[path] = None if node is None else node.version
        return None if node is None else decode(cls, path, node.data)

    def get(self, cls: type[_R], path: str) -> _R:
        """Read the record at `path`, which must exist.

        :raises UnreadableRecord: it does not.
        """
        return _present(self.find(cls, path), path)

    def peek(self, cls: type[_R], path: str) -> _R:
        """Read the record at `path` without a requirement: for values that only grow, where an old one is safe."""
        return _present(self.peek_if_any(cls, path), path)

    def peek_if_any(self, cls: type[_R], path: str) -> _R | None:
        """Like `peek`, for a record that may be missing."""
        node = self._node(path)
        return None if node is None else decode(cls, path, node.data)

    def exists(self, path: str, *, old: bool = False) -> bool:
        """Ask whether there is a record at `path`, whatever it holds, and require that it stays as it is.

        :param old: most likely it is there, which a hasty pass assumes: the multi is refused if it is not.
        """
        if old and self.hasty:
            self._known.nodes.setdefault(path, PRESENT)
        node = self._node(path)
        self._versions[path] = None if node is None else node.version
        return node is not None

    def raw(self, path: str) -> bytes | None:
        """Read the bytes at `path`, whatever they are, and require that they stay so."""
        node = self._node(path)
        self._versions[path] = None if node is None else node.version
        return None if node is None else node.data

    def covered(self, cls: type[_R], path: str) -> _R:
        """Read the record at `path` as it is now, if its every change touches a record that is read with `names`."""
        node = self._store.get(path)
        return _present(None if node is None else decode(cls, path, node.data), path)

    def names(self, path: str) -> tuple[str, ...]:
        """Read the names below `path`, and require that its own version stays (who changes a name touches it)."""
        children = self._known.children.get(path) or self._store.children(path)
        if children is None:
            raise UnreadableRecord(path=path, reason="it is missing")
        self.seen.children[path] = children
        self._versions[path] = children.version
        return children.names

    def names_if_any(self, path: str) -> tuple[str, ...]:
        """Like `names`, for a path that may be missing."""
        return self.names(path) if self.exists(path) else ()

    def requirements(self, created: frozenset[str]) -> tuple[Requirement, ...]:
        """Give one requirement a record read. The multi that creates an absent one checks it; others need no check.

        :param created: paths that the multi creates.
        """
        found: list[Requirement] = []
        for path, version in self._versions.items():
            if version is not None:
                found.append(Unchanged(path, version))
            elif path in created:
                found.append(Absent(path))
        return tuple(found)

    def _node(self, path: str) -> Node | None:
        node = self._known.nodes[path] if path in self._known.nodes else self._store.get(path)
        self.seen.nodes[path] = node
        return node


def _present(record: _R | None, path: str) -> _R:
    if record is None:
        raise UnreadableRecord(path=path, reason="it is missing")
    return record
