"""Task output between processing and commit: a folder per topology, txid, attempt, task and try.

::

    <root>/<ledger>/<incarnation>/<topology>/<txid>/<attempt>/<task>@<map index>/<try>/

No two writers share a folder: nothing is ever overwritten, and a driver that outlives its task writes into a folder
that is not read. The area is swept at every commit: a task beside or after the block may read output of its
transaction as long as its run lives, and such a driver may write even later. Other installations may stage in the same
place, with the same names of connections and topologies. Only the incarnation of a topology tells them apart, so a
topology sweeps only what is below its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

from airflow_tx.config import Settings
from airflow_tx.errors import ConfigError, StagingNotRemoved, StagingUnavailable, StagingUnreachable
from airflow_tx.protocol.attempt import TaskTry, TransactionAttempt
from airflow_tx.staging.descriptor import Descriptor
from airflow_tx.staging.files import Files, open_files

DESCRIPTOR = "_descriptor.json"
KEPT = "@kept"
TAKEN = "@taken"
"""Folder of what a source has taken out of a queue. No topology has its name."""
PROBE = "@probe"


def quoted(part: str) -> str:
    """Quote any text as one part of a path: never a separator, never `.` or `..`."""
    text = quote(part, safe="")
    return text if text.strip(".") else text.replace(".", "%2E")


@dataclass(frozen=True)
class TryDir:
    """The folder of one try of one task; its name is relative to the root of the area's files."""

    topology: str
    attempt: TransactionAttempt
    task: TaskTry
    files: Files = field(compare=False, repr=False)
    name: str

    @property
    def uri(self) -> str:
        return self.files.uri(self.name)

    @property
    def transaction(self) -> str:
        return f"{quoted(self.topology)}/{self.attempt.txid}"

    def child(self, name: str) -> str:
        """Name a file or folder in it, relative to the root of the area."""
        return f"{self.name}/{name}"


class StagingArea:
    """The staging area below one root.

    :param root_uri: a path, or a URI of a store that every worker and every Spark driver reaches.
    :param ledger: short name of the ledger, the first part of every path; None: `root_uri` names it already, as the
        `root` of another area does.
    """

    def __init__(self, root_uri: str, ledger: str | None = None) -> None:
        if not root_uri.strip():
            raise ConfigError(
                option="[tx] staging",
                value=root_uri,
                remedy="Name a folder or an object storage URI.",
            )
        self._given = root_uri
        if ledger is not None:
            root_uri = f"{root_uri}{'' if root_uri.endswith('/') else '/'}{quoted(ledger)}"
        with self._usable():
            self.files = open_files(root_uri)

    @classmethod
    def of_ledger(cls, conn_id: str, root: str) -> StagingArea:
        """Open the area that `[tx] staging` names for one ledger: a path in a ZooKeeper connection."""
        home = os.path.expanduser(os.environ.get("AIRFLOW_HOME") or "~/airflow")
        ledger = hashlib.sha256(f"{conn_id}\n{root.rstrip('/')}".encode()).hexdigest()[:12]
        return cls(Settings.load().staging or os.path.join(home, "tx_staging"), ledger)

    @property
    def root(self) -> str:
        return self.files.root

    def of_topology(self, incarnation: str) -> StagingArea:
        """Open the part that belongs to one topology.

        :param incarnation: of the topology, as its record has it.
        """
        return StagingArea(f"{self.root}/{quoted(incarnation)}")

    @property
    def kept(self) -> StagingArea:
        """An area beside, for what is read after its transaction is committed. No topology has its name."""
        return StagingArea(f"{self.root}/{KEPT}")

    def __repr__(self) -> str:
        return f"StagingArea({self.root!r})"

    def check(self) -> None:
        """Refuse a root to which nothing can be written, before anything depends on it."""
        with self._usable():
            self.files.write(PROBE, b"")  # no topology has its name

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            where = "to a folder, or an object storage URI, that all workers can write to"
            why = (
                error.__cause__
                if isinstance(error, (StagingUnavailable, StagingUnreachable))
                else error
            )
            remedy = f"{type(why).__name__}: {why}. Set it in airflow.cfg or by AIRFLOW__TX__STAGING {where}."
            raise ConfigError(option="[tx] staging", value=self._given, remedy=remedy) from error

    def try_dir(self, topology: str, attempt: TransactionAttempt, task: TaskTry) -> TryDir:
        """Name the folder of one try; it is not made here."""
        of_task = f"{quoted(task.task_id)}@{task.map_index}"
        name = (
            f"{quoted(topology)}/{attempt.txid}/{attempt.attempt}/{of_task}/{quoted(task.task_try)}"
        )
        return TryDir(topology=topology, attempt=attempt, task=task, files=self.files, name=name)

    def sweep(
        self,
        topology: str,
        before: int = sys.maxsize,
        is_read: Callable[[int], bool] = lambda txid: False,
    ) -> list[int]:
        """Remove the output of every transaction before `before`, of all attempts, that no task may read any more.

        To be called at every commit: what is read now, and what a driver writes late, goes at a later one.

        :return: the txids whose output is still read.
        """
        below = quoted(topology)
        old = sorted(
            int(name) for name in self.files.list(below) if name.isdecimal() and int(name) < before
        )
        read = [txid for txid in old if is_read(txid)]
        for txid in old:
            if txid not in read:
                self.files.remove_tree(f"{below}/{txid}")
        return read

    def adopt_taken(self, made_anew: str, incarnation: str) -> None:
        """Give the next transaction of a rebuilt ledger the messages that runs took while the ledger was lost.

        The broker has forgotten these messages. The source recognizes ids that it knows, so you may repeat this.

        :param made_anew: the incarnation of the ledger that `begin` has made in place of the lost one.
        :param incarnation: of the lost one.
        """
        theirs = f"{quoted(made_anew)}/{TAKEN}"
        for queue in self.files.list(theirs):
            own = f"{quoted(incarnation)}/{TAKEN}/{queue}"
            numbers = [
                int(at)
                for folder in ("ids", "messages")
                for at in self.files.list(f"{own}/{folder}")
            ]
            # The next transaction looks at this number and at all after it: the last ids are those before its own.
            place = f"{own}/messages/{max(numbers, default=0)}"
            for number in self.files.list(f"{theirs}/{queue}/messages"):
                folder = f"{theirs}/{queue}/messages/{number}"
                for name in self.files.list(folder):
                    self.files.copy(f"{folder}/{name}", f"{place}/{int(number):020}-{name}")

    def forget(self, incarnation: str) -> None:
        """Remove everything that a topology has staged, kept, journaled and taken out of queues: its life is over.

        :raises StagingNotRemoved: something is still there.
        """
        name = quoted(incarnation)
        self.files.remove_tree(name)
        if self.files.list(name):
            raise StagingNotRemoved(uri=self.files.uri(name))


def write_descriptor(area: StagingArea, descriptor: Descriptor) -> str:
    """Put the descriptor into the folder of its try; returns its URI, short enough for a command line."""
    name = dir_of(area, descriptor).child(DESCRIPTOR)
    area.files.write(name, descriptor.to_json().encode())
    return area.files.uri(name)


def read_descriptor(uri: str) -> Descriptor:
    """Read the descriptor at the URI that `write_descriptor` returned; a ConfigError if this version cannot."""
    folder, _, name = uri.rpartition("/")
    try:
        return Descriptor.from_json(open_files(folder).read(name).decode())
    except FileNotFoundError:
        remedy = "It is written by the task that submits the application, and removed when its transaction ends."
        raise ConfigError(
            option="the descriptor of the batch", value=uri, remedy=f"No such file. {remedy}"
        ) from None


def dir_of(area: StagingArea, descriptor: Descriptor) -> TryDir:
    """Name the folder that the output of a descriptor's try goes to."""
    return area.try_dir(descriptor.topology, descriptor.attempt, descriptor.task)
