"""The needs of the protocol: a store with versions and multis, a clock, ids, paths. Nothing here waits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property, lru_cache
from typing import Protocol
from urllib.parse import quote, unquote

# --- api ----------------------------------------------------------------------------------------------------------


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

    @property
    def where(self) -> str:
        """Name its servers, for a person."""
        return "memory"

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


# --- paths --------------------------------------------------------------------------------------------------------
# The place of each record: one function per path. Names that users choose are percent-encoded.


@lru_cache(maxsize=4096)
def encode_name(name: str) -> str:
    """Write a name as one path element; never empty, never `.` or `..`."""
    return quote(name, safe="", errors="surrogatepass").replace(".", "%2E") or "%"


def decode_name(element: str) -> str:
    """Read the name that `encode_name` wrote; half a surrogate pair, as in the name of a file, comes back unchanged."""
    try:
        return "" if element == "%" else unquote(element, errors="surrogatepass")
    except UnicodeDecodeError:
        return unquote(element)  # no name of ours


@dataclass(frozen=True)
class Paths:
    """The records of one topology.

    :param root: path that holds every topology, e.g. `/airflow_tx`.
    :param topology: name of the topology.
    """

    root: str
    topology: str

    @cached_property
    def base(self) -> str:
        return f"{self.root.rstrip('/')}/{encode_name(self.topology)}"

    @property
    def record(self) -> str:
        return f"{self.base}/topology"

    @property
    def coordinator(self) -> str:
        return f"{self.base}/coordinator"

    @property
    def current(self) -> str:
        """txid whose turn it is to commit."""
        return f"{self.coordinator}/current"

    @property
    def allocated(self) -> str:
        """Last txid handed out."""
        return f"{self.coordinator}/allocated"

    @property
    def transactions(self) -> str:
        return f"{self.coordinator}/transactions"

    def transaction(self, txid: int) -> str:
        return f"{self.transactions}/{txid}"

    @property
    def metas(self) -> str:
        return f"{self.coordinator}/meta"

    def meta(self, txid: int) -> str:
        """Rows and position of a batch."""
        return f"{self.metas}/{txid}"

    @property
    def all_acks(self) -> str:
        return f"{self.coordinator}/acks"

    def acks(self, name: str) -> str:
        """The contributions of the tasks of one attempt.

        :param name: as the record of the transaction has it.
        """
        return f"{self.all_acks}/{name}"

    def owner(self, nonce: str) -> str:
        """Ephemeral, while the committer that was given this grant holds the turn; for display only."""
        return f"{self.coordinator}/owner-{nonce}"

    def lane(self, task_try: str) -> str:
        """Ephemeral, while a lane works on the transactions that it has begun under this try; for display only."""
        return f"{self.coordinator}/{task_try}"

    @property
    def histories(self) -> str:
        return f"{self.base}/history"

    def history(self, txid: int) -> str:
        """Outcome of a final transaction."""
        return f"{self.histories}/{txid}"

    @property
    def runs(self) -> str:
        return f"{self.base}/runs"

    def run(self, key: str) -> str:
        """A run's identity → txid."""
        return f"{self.runs}/{encode_name(key)}"

    @property
    def all_skipped(self) -> str:
        return f"{self.base}/skipped"

    def skipped(self, txid: int) -> str:
        """Rows of a skipped batch."""
        return f"{self.all_skipped}/{txid}"

    @property
    def wishes(self) -> str:
        """Which transactions people want restated; made by the first wish."""
        return f"{self.base}/wanted"

    def wish(self, txid: int) -> str:
        """Who wants a committed transaction restated."""
        return f"{self.wishes}/{txid}"

    @property
    def ends(self) -> str:
        """The book of ends; made with its first line."""
        return f"{self.base}/ends"

    def page(self, number: int) -> str:
        """One page of the book of ends."""
        return f"{self.ends}/{number}"

    @property
    def followed(self) -> str:
        """How far the corrections of the upstream topology were compared; made by the first comparison."""
        return f"{self.base}/follow"

    @property
    def all_behind(self) -> str:
        """Which transactions lack a correction; made by the first one."""
        return f"{self.base}/behind"

    def behind(self, txid: int) -> str:
        """The corrections that one transaction lacks."""
        return f"{self.all_behind}/{txid}"

    @property
    def repairs(self) -> str:
        """What people did to this ledger; made by the first repair."""
        return f"{self.base}/repairs"

    def repair(self, number: int) -> str:
        """One repair: who, when, why."""
        return f"{self.repairs}/{number}"

    @property
    def alarms(self) -> str:
        """Which alarms are raised, and what for; made by the first one."""
        return f"{self.base}/alarms"

    @property
    def watchers(self) -> str:
        """How far each watcher has handed commits on; made by the first one."""
        return f"{self.base}/watchers"

    def watcher(self, name: str) -> str:
        """How far one watcher has handed commits on."""
        return f"{self.watchers}/{encode_name(name)}"

    @property
    def folders(self) -> tuple[str, ...]:
        """Every record that exists only to hold others, parents first."""
        return (
            self.base,
            self.coordinator,
            self.transactions,
            self.metas,
            self.all_acks,
            self.histories,
            self.runs,
            self.all_skipped,
        )


def topologies(store: Store, root: str) -> tuple[str, ...]:
    """Name the topologies below `root`, sorted; none if the root does not exist."""
    names = listed_topologies(store, root)
    return tuple(name for name in names if store.get(Paths(root, name).record) is not None)


def listed_topologies(store: Store, root: str) -> tuple[str, ...]:
    """Name what the root lists, sorted, with one read: it may be a topology that is about to begin."""
    return tuple(sorted(map(decode_name, names_below(store, root.rstrip("/") or "/"))))


def ack_name(task: str, map_index: int) -> str:
    """Name what one task has contributed, below `Paths.acks`."""
    return f"{encode_name(task)}@{map_index}"


def ack_element(name: str) -> tuple[str, int]:
    """Read the task id and the map index that `ack_name` wrote."""
    task, _, index = name.rpartition("@")
    return decode_name(task), int(index)


def names_below(store: Store, path: str) -> tuple[str, ...]:
    """Name what is below a path, sorted; nothing if the path does not exist."""
    children = store.children(path)
    return () if children is None else children.names


def txids_below(store: Store, path: str) -> list[int]:
    """Name the transactions that have a record below a path, in order."""
    return sorted(int(name) for name in names_below(store, path) if name.isdecimal())
