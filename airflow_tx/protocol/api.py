"""The needs of the protocol: a store with versions and multis, a clock, ids. Nothing here waits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Protocol


@dataclass(frozen=True)
class Node:
    """A record as read: its bytes, and the version that a later multi checks.

    :param modified: when it was last written, by the clock of the store; None: it is not known.
    """

    data: bytes
    version: int
    modified: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Children:
    """Names below a path, sorted, and the data version of the path itself."""

    names: tuple[str, ...]
    version: int


class Watch(Protocol):
    """Tells that something under watch has changed since the watch was set."""

    def wait(self, timeout: float) -> bool:
        """Block up to `timeout` seconds; True as soon as a watched path has changed (or the connection broke)."""


class Store(Protocol):
    """A tree of small records with versions and atomic multis: ZooKeeper, or the in-memory one."""

    def get(self, path: str) -> Node | None:
        """Read the record at `path`; None if there is none.

        :raises StoreUnavailable: the store cannot be reached.
        """

    def children(self, path: str) -> Children | None:
        """Read the names below `path`; None if `path` does not exist."""

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        """Apply all `writes` in order, if all `requirements` hold; else nothing.

        :raises RequirementFailed: it did not happen.
        :raises OutcomeUnknown: it may have happened.
        :raises TooMuchMetadata: a record is larger than the store takes; it did not happen.
        :raises StoreUnavailable: it was never sent.
        """

    def sync(self) -> None:
        """Catch up: reads after it see every write that was answered to anybody before it."""

    def ensure(self, path: str) -> None:
        """Create `path` and its parents as empty records where missing."""

    def watch(self, *paths: str) -> AbstractContextManager[Watch]:
        """Watch creation, change and deletion of `paths`; the watches are set when the block is entered."""

    def announce(self, path: str, data: bytes) -> AbstractContextManager[None]:
        """Show `data` at `path` within the block, for display alone; nothing, unless the store can."""
        return nullcontext()


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """Read the time, with UTC as its zone."""


class Ids(Protocol):
    """Where random ids come from."""

    def nonce(self) -> str:
        """128 random bits as 32 hexadecimal digits."""

    def message_id(self) -> int:
        """64 random bits, never 0."""


ANY_VERSION = -1


@dataclass(frozen=True)
class Unchanged:
    """The record at `path` exists and has this version (`ANY_VERSION`: it exists)."""

    path: str
    version: int


@dataclass(frozen=True)
class Absent:
    """There is no record at `path`. ZooKeeper checks this only by creating it: the same multi must `Create` it."""

    path: str


@dataclass(frozen=True)
class Create:
    """Make a new record; its parent exists or is made earlier in the same multi."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Put:
    """Replace the bytes of an existing record, and so raise its version by one."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Delete:
    """Remove an existing record without children."""

    path: str


Requirement = Unchanged | Absent
Write = Create | Put | Delete


class SystemClock:
    """A `Clock`: the machine's time."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)


class SystemIds:
    """An `Ids`: the machine's random numbers."""

    def nonce(self) -> str:
        return os.urandom(16).hex()

    def message_id(self) -> int:
        return int.from_bytes(os.urandom(8), "big") or 1
