"""The interfaces that the protocol needs: a store with versions and multis, a clock, ids, paths.

No call here waits.
"""

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
    """A record as read from the store: its bytes, and the version that a later multi checks.

    :param modified: time of the last write, by the store's clock; None if unknown.
    """

    data: bytes
    version: int
    modified: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Children:
    """The sorted names below a path, and the data version of the path itself."""

    names: tuple[str, ...]
    version: int


class Watch(Protocol):
    """A watch on paths. It signals any change after it was set."""

    def wait(self, timeout: float) -> bool:
        """Block up to `timeout` seconds. Return True once a watched path changes or the connection is lost."""


class Store(Protocol):
    """A tree of small records with versions and atomic multis: in ZooKeeper, or in memory."""

    @property
    def where(self) -> str:
        """The addresses of the store's servers, for messages."""
        return "memory"

    def get(self, path: str) -> Node | None:
        """Read the record at `path`. Return None if there is no record.

        :raises StoreUnavailable: the store cannot be reached.
        """

    def children(self, path: str) -> Children | None:
        """Read the names below `path`. Return None if `path` does not exist."""

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        """Apply all `writes` in order if all `requirements` hold; otherwise apply nothing.

        :raises RequirementFailed: a requirement did not hold; nothing was written.
        :raises OutcomeUnknown: the response was lost; the writes may have been applied.
        :raises TooMuchMetadata: a record is larger than the store accepts; nothing was written.
        :raises StoreUnavailable: the multi was never sent.
        """

    def sync(self) -> None:
        """Sync, so that later reads see every write that any client had confirmed before this call."""

    def ensure(self, path: str) -> None:
        """Create `path` and its parents as empty records if they are missing."""

    def watch(self, *paths: str) -> AbstractContextManager[Watch]:
        """Watch `paths` for creation, change and deletion. Entering the block sets the watches."""

    def announce(self, path: str, data: bytes) -> AbstractContextManager[None]:
        """Keep an ephemeral record at `path` while the block runs, for display only. Some stores ignore it."""
        return nullcontext()


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Return the current time in UTC."""


class Ids(Protocol):
    """A source of random ids."""

    def nonce(self) -> str:
        """Return 128 random bits as 32 hexadecimal digits."""

    def message_id(self) -> int:
        """Return 64 random bits, never 0."""


ANY_VERSION = -1


@dataclass(frozen=True)
class Unchanged:
    """Require that the record at `path` exists and has this version. `ANY_VERSION` allows any version."""

    path: str
    version: int


@dataclass(frozen=True)
class Absent:
    """Require that no record exists at `path`.

    ZooKeeper can check this only by creating the record, so the same multi must `Create` it.
    """

    path: str


@dataclass(frozen=True)
class Create:
    """Create a record. Its parent must exist, or an earlier write of the same multi must create it."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Put:
    """Replace the bytes of an existing record and raise its version by one."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Delete:
    """Delete an existing record that has no children."""

    path: str


Requirement = Unchanged | Absent
Write = Create | Put | Delete


class SystemClock:
    """A `Clock` that reads the system time."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)


class SystemIds:
    """An `Ids` that uses the operating system's random numbers."""

    def nonce(self) -> str:
        return os.urandom(16).hex()

    def message_id(self) -> int:
        return int.from_bytes(os.urandom(8), "big") or 1


# --- paths --------------------------------------------------------------------------------------------------------
# One function for the path of each record. Names that users choose are percent-encoded.


@lru_cache(maxsize=4096)
def encode_name(name: str) -> str:
    """Encode a name as one element of a path. The result is never empty, `.` or `..`."""
    return quote(name, safe="", errors="surrogatepass").replace(".", "%2E") or "%"


def decode_name(element: str) -> str:
    """Decode a name that `encode_name` encoded. Unpaired surrogates, which some file names contain, are preserved."""
    try:
        return "" if element == "%" else unquote(element, errors="surrogatepass")
    except UnicodeDecodeError:
        return unquote(element)  # not a name that `encode_name` encoded


@dataclass(frozen=True)
class Paths:
    """The paths of the records of one topology.

    :param root: path above all topologies, such as `/airflow_tx`.
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
        """The path of the record of the txid that has the turn to commit."""
        return f"{self.coordinator}/current"

    @property
    def allocated(self) -> str:
        """The path of the record of the last allocated txid."""
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
        """Return the path of the record of a batch's rows and position."""
        return f"{self.metas}/{txid}"

    @property
    def all_acks(self) -> str:
        return f"{self.coordinator}/acks"

    def acks(self, name: str) -> str:
        """Return the path of the folder with the acks of one attempt.

        :param name: the name of the folder, as in the record of the transaction.
        """
        return f"{self.all_acks}/{name}"

    def owner(self, nonce: str) -> str:
        """Return the path of an ephemeral record that exists while the committer with this grant has the turn.

        The record is for display only.
        """
        return f"{self.coordinator}/owner-{nonce}"

    def lane(self, task_try: str) -> str:
        """Return the path of an ephemeral record that exists while a lane processes the transactions of this try.

        The record is for display only.
        """
        return f"{self.coordinator}/{task_try}"

    @property
    def histories(self) -> str:
        return f"{self.base}/history"

    def history(self, txid: int) -> str:
        """Return the path of the record of a final transaction."""
        return f"{self.histories}/{txid}"

    @property
    def runs(self) -> str:
        return f"{self.base}/runs"

    def run(self, key: str) -> str:
        """Return the path of the binding of a run key."""
        return f"{self.runs}/{encode_name(key)}"

    @property
    def all_skipped(self) -> str:
        return f"{self.base}/skipped"

    def skipped(self, txid: int) -> str:
        """Return the path of the skip record, which keeps the rows of a skipped transaction."""
        return f"{self.all_skipped}/{txid}"

    @property
    def wishes(self) -> str:
        """The path of the folder of requested restatements. The first request creates the folder."""
        return f"{self.base}/wanted"

    def wish(self, txid: int) -> str:
        """Return the path of the request to restate a committed transaction."""
        return f"{self.wishes}/{txid}"

    @property
    def ends(self) -> str:
        """The path of the folder of the book of ends. The first line creates the folder."""
        return f"{self.base}/ends"

    def page(self, number: int) -> str:
        """Return the path of one page of the book of ends."""
        return f"{self.ends}/{number}"

    @property
    def followed(self) -> str:
        """The path of the record of the last comparison with upstream corrections. The first comparison creates it."""
        return f"{self.base}/follow"

    @property
    def all_behind(self) -> str:
        """The path of the folder of transactions that lack corrections. The first such transaction creates it."""
        return f"{self.base}/behind"

    def behind(self, txid: int) -> str:
        """Return the path of the record of the corrections that one transaction lacks."""
        return f"{self.all_behind}/{txid}"

    @property
    def repairs(self) -> str:
        """The path of the folder of manual repairs of this ledger. The first repair creates the folder."""
        return f"{self.base}/repairs"

    def repair(self, number: int) -> str:
        """Return the path of the record of one repair."""
        return f"{self.repairs}/{number}"

    @property
    def alarms(self) -> str:
        """The path of the record of the raised alerts and their subjects. The first alert creates it."""
        return f"{self.base}/alarms"

    @property
    def watchers(self) -> str:
        """The path of the folder with the progress of each watcher. The first watcher creates the folder."""
        return f"{self.base}/watchers"

    def watcher(self, name: str) -> str:
        """Return the path of a watcher's progress record."""
        return f"{self.watchers}/{encode_name(name)}"

    @property
    def folders(self) -> tuple[str, ...]:
        """The paths of the folders of a ledger, parents first."""
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
    """List the topologies below `root`, sorted. The list is empty if `root` does not exist."""
    names = listed_topologies(store, root)
    return tuple(name for name in names if store.get(Paths(root, name).record) is not None)


def listed_topologies(store: Store, root: str) -> tuple[str, ...]:
    """List the names below `root`, sorted, with one read. A listed topology may have no ledger yet."""
    return tuple(sorted(map(decode_name, names_below(store, root.rstrip("/") or "/"))))


def ack_name(task: str, map_index: int) -> str:
    """Return the name of a task instance's ack below `Paths.acks`."""
    return f"{encode_name(task)}@{map_index}"


def ack_element(name: str) -> tuple[str, int]:
    """Return the task id and the map index that `ack_name` encoded."""
    task, _, index = name.rpartition("@")
    return decode_name(task), int(index)


def names_below(store: Store, path: str) -> tuple[str, ...]:
    """List the names below a path, sorted. The list is empty if the path does not exist."""
    children = store.children(path)
    return () if children is None else children.names


def txids_below(store: Store, path: str) -> list[int]:
    """List the txids that have a record below a path, in ascending order."""
    return sorted(int(name) for name in names_below(store, path) if name.isdecimal())
