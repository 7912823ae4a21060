"""The interface of a table format: four methods, over values without a format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from airflow_tx.state.lake.manifest import TableFile
from airflow_tx.state.lake.schema import FieldJson, Schema


@dataclass(frozen=True)
class TableVersion:
    """A table at one version.

    :param fence: the text that the last raise has left; "" if there is none.
    :param number: of that raise; 0 before the first one.
    :param applied: the number of the raise whose updates were all committed; None: of none.
    :param written: how many rows that update had; `given`: the digest of its files.
    :param empty: whether no file is live.
    :param handle: what the store itself needs of this version.
    """

    version: int
    fence: str
    number: int
    schema: Schema
    partition_by: tuple[str, ...]
    applied: int | None
    written: int
    given: int | None
    empty: bool
    handle: Any = field(compare=False, repr=False)


@dataclass(frozen=True)
class LiveFile:
    """A file of a table at one version.

    :param least: the least txid in it, `most` the greatest; None: unknown.
    :param nobodys: how many rows of no transaction; None: unknown.
    :param rows: how many it has; None: unknown.
    :param removable: whether a commit of this store takes it out.
    """

    path: str
    size: int
    partition: Mapping[str, str | None] = field(hash=False)
    rows: int | None
    least: int | None
    most: int | None
    nobodys: int | None
    removable: bool = True

    def may_hold(self, txids: Collection[int]) -> bool:
        """Whether rows of one of these transactions may be in it."""
        if self.least is None or self.most is None:
            return True
        return any(self.least <= txid <= self.most for txid in txids)

    def is_of(self, txids: Collection[int]) -> bool:
        """Whether all of its rows are of one of these transactions."""
        alone = self.least is not None and self.least == self.most and self.nobodys == 0
        return alone and self.least in txids


@dataclass(frozen=True)
class Raised:
    """A change that leaves a new fence; the table is made if it is not there.

    :param fence: its text; "" leaves none.
    :param number: of the raise, one more than in the version before.
    """

    fence: str
    number: int


@dataclass(frozen=True)
class Defined:
    """A change that gives a table without files its columns and its partition columns."""

    schema: Schema
    partition_by: tuple[str, ...]


@dataclass(frozen=True)
class Widened:
    """A change that adds columns; rows that are there have NULL in them."""

    fields: Sequence[FieldJson]


@dataclass(frozen=True)
class Published:
    """A change that puts files in and takes files out.

    :param applied: the number of the raise whose updates are complete with it.
    :param written: how many rows were put in, without rows that were only moved.
    :param given: the digest of the files of the update, of 63 bits.
    :param note: kept with the commit, as long as the store keeps its log.
    """

    added: Sequence[TableFile]
    removed: Sequence[LiveFile]
    applied: int
    written: int
    given: int
    note: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Released:
    """A change that removes the fence and the txid of each row, because the next ledger has the same txids.

    :param number: of this raise.
    :param owned: whether a row has a txid; each file with such a row is written again.
    """

    number: int
    owned: bool


TableChange = Raised | Defined | Widened | Published | Released


class TableStore(Protocol):
    """The format of a table.

    The state relies on `cas`: a change lands on the very version that it was made for, or not at all.
    """

    def load(self) -> TableVersion | None:
        """Read the current table; None: there is none.

        :raises StateError: it has something that this store cannot keep right.
        :raises StateUnavailable: it cannot be read.
        """

    def cas(self, at: TableVersion | None, change: TableChange) -> None:
        """Commit a change as the version after `at`; None: as the first one.

        :raises FenceMoved: another commit has happened, or may have: load again.
        :raises StateUnavailable: it is unknown whether it was committed; load again.
        """

    def files_of(self, at: TableVersion, txids: Collection[int]) -> list[LiveFile]:
        """List the live files that may have rows of these transactions."""

    def live_files(self, at: TableVersion) -> list[LiveFile]:
        """List all live files of a version."""


class TableFolder(Protocol):
    """The files in the folder of a table, live or not."""

    def listed(self, folder: str) -> dict[str, int]:
        """Name the files below a folder by their paths from the table, with their sizes."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading at any position."""

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file."""

    def remove(self, path: str) -> None:
        """Delete a file; none is there: nothing."""
