"""The place of the journal: beside staged output, where no sweep of staging finds it.

::

    <root>/<ledger>/<incarnation>/@journal/<day>/<txid>-<sha256>
    <root>/<ledger>/<incarnation>/@journal/<day>/rows/<sha256>.parquet
    <root>/<ledger>/<incarnation>/@journal/<day>/restated/<later day>

A renamed topology keeps its incarnation, and so its journal. Files are named by their content: an entry that is
written twice is the same entry, and no writer overwrites what another one has written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice
from typing import Any

from airflow_tx.errors import EntryDiffers, EntryMissing, JournalError, StagingNotRemoved
from airflow_tx.journal.entry import (
    PARQUET,
    ROWS,
    Contribution,
    Entry,
    KeptFile,
    KeptFiles,
    sha256_of,
)
from airflow_tx.journal.rows import encoded_rows
from airflow_tx.protocol.json_text import dumps
from airflow_tx.staging.area import StagingArea
from airflow_tx.state.column_types import type_of
from airflow_tx.state.columns import Columns

JOURNAL = "@journal"
"""Folder of the journal of a topology. No topology has its name."""
INLINE_ROWS = 1_000
"""Rows of a contribution that its entry holds itself, at most."""
INLINE_SIZE = 256 * 1024
"""Characters of them."""
ROWS_A_FILE = 10_000
FILES = "rows"
RESTATED = "restated"
"""Folder of a day. It has a file for each later day that restates an entry of this one."""
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)/(\d+)-([0-9a-f]{64})")


@dataclass(frozen=True)
class StagedFiles:
    """The Parquet files of an output, of which the journal keeps copies.

    :param files: names below the root of the staging area of the topology, each with the number of its rows.
    :param columns: the columns that the state takes.
    """

    files: Sequence[tuple[str, int]]
    columns: Sequence[str]


class JournalArea:
    """The journal of one topology.

    :param area: the staging area of its ledger.
    :param incarnation: of the topology, as its record has it.
    """

    def __init__(self, area: StagingArea, incarnation: str) -> None:
        self._files = area.of_topology(incarnation).files
        self._folder = JOURNAL

    # --- write --------------------------------------------------------------------------------------------------

    def contribution(
        self,
        columns: Columns,
        rows: Iterable[Mapping[str, Any]],
        *,
        day: str,
        staged: StagedFiles | None = None,
    ) -> Contribution:
        """Keep the rows of one state, for an entry of that day.

        :param rows: one a key, as tasks gave them.
        :param staged: their place in files.
        :raises StagingUnavailable, StagingUnreachable: they cannot be kept; nothing counts before its entry is written.
        """
        if staged is not None and sum(count for _, count in staged.files) > INLINE_ROWS:
            first = next(iter(rows), {})
            files = [self._copied(name, count, day) for name, count in staged.files if count]
            own = _described(columns, first)
            return replace(own.of(files), columns=tuple(staged.columns))
        try:
            return self._encoded(columns, rows, day)
        except (TypeError, ValueError) as error:
            return Contribution(refusal=f"its rows cannot be kept: {error}")

    def write(self, entry: Entry) -> str:
        """Write an entry; its name.

        :raises StagingUnavailable, StagingUnreachable: it is not written.
        """
        name = entry.name
        if entry.replaces is not None:
            day = entry.replaces["entry"].partition("/")[0]
            self._files.write(self._path(f"{day}/{RESTATED}/{entry.written[:10]}"), b"{}")
        self._files.write(self._path(name), entry.content)
        return name

    def _encoded(
        self, columns: Columns, rows: Iterable[Mapping[str, Any]], day: str
    ) -> Contribution:
        iterator = iter(rows)
        portion = list(islice(iterator, ROWS_A_FILE))
        own = _described(columns, portion[0] if portion else {})
        encoded = encoded_rows(portion)
        text = dumps(encoded)
        if len(portion) <= INLINE_ROWS and len(text) <= INLINE_SIZE:
            return replace(own, count=len(portion), inline=encoded)
        files = list[KeptFile]()
        while portion:
            files.append(self._written(dumps(encoded_rows(portion)).encode(), len(portion), day))
            portion = list(islice(iterator, ROWS_A_FILE))
        return own.of(files)

    def _written(self, content: bytes, count: int, day: str) -> KeptFile:
        found = hashlib.sha256(content).hexdigest()
        name = f"{day}/{FILES}/{found}{ROWS}"
        self._files.write(self._path(name), content)
        return KeptFile(name, len(content), count, found)

    def _copied(self, staged: str, count: int, day: str) -> KeptFile:
        found = sha256_of(self._files, staged)
        name = f"{day}/{FILES}/{found}{PARQUET}"
        self._files.copy(staged, self._path(name))
        return KeptFile(name, self._files.size(self._path(name)), count, found)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    # --- read ---------------------------------------------------------------------------------------------------

    def read(self, name: str) -> Entry:
        """Read an entry, and compare its content with its name; its rows are read later.

        :raises EntryMissing, EntryDiffers: it is missing or was changed.
        :raises JournalError: this version cannot read it.
        """
        parts = _NAME.fullmatch(name)
        if parts is None:
            problem = "it is no name of an entry"
            remedy = "Give one as airflow tx show prints it: DAY/TXID-SHA256."
            raise JournalError(entry=name, problem=problem, remedy=remedy)
        path = self._path(name)
        uri = self._files.uri(path)
        try:
            content = self._files.read(path)
        except FileNotFoundError:
            raise EntryMissing(entry=name, uri=uri) from None
        found = hashlib.sha256(content).hexdigest()
        if found != parts[3]:
            raise EntryDiffers(entry=name, uri=uri, found=found, expected=parts[3])
        return Entry.from_content(name, content).read_from(
            KeptFiles(self._files, self._folder, name)
        )

    def check(self, name: str) -> Entry:
        """Read an entry and every file of it. Raises as `read`."""
        entry = self.read(name)
        for contribution in entry.contributions.values():
            contribution.check()
        return entry

    def finding(self, name: str, txid: int, key: str) -> str | None:
        """Say what is wrong with the entry that the binding of a key names; None: it is unchanged.

        :raises StagingUnreachable: this is unknown.
        """
        try:
            entry = self.check(name)
        except JournalError as error:
            return f"transaction {txid}: {error}"
        if (entry.txid, entry.key) == (txid, key):
            return None
        said = f"is of transaction {entry.txid} and key {entry.key}"
        return f"transaction {txid}: the journal entry {name} of key {key} {said}"

    def names(self, txid: int | None = None) -> list[str]:
        """List the entries, the last day first: the entries of one transaction, or all.

        An entry that no binding and no record names counts for nothing.
        """
        found = (f"{day}/{name}" for day in self.days() for name in self._entries(day))
        named = ((parts, parts[0]) for each in found if (parts := _NAME.fullmatch(each)))
        return [name for parts, name in named if txid is None or int(parts[2]) == txid]

    def _entries(self, day: str) -> list[str]:
        return sorted(self._files.list(self._path(day)))

    def days(self, before: date | None = None) -> list[str]:
        """List the days that have entries, the last one first.

        :param before: only days before this one.
        """
        found = sorted(self._files.list(self._folder), reverse=True)
        return [day for day in found if before is None or day < before.isoformat()]

    # --- remove -------------------------------------------------------------------------------------------------

    def _restated(self, day: str) -> str:
        """Name the last day with an entry that restates one of this day; "": there is none."""
        return max(self._files.list(self._path(f"{day}/{RESTATED}")), default="")

    def sweep(self, before: date, kept: Callable[[], Collection[str]]) -> list[str]:
        """Remove the folders of days before a day, unless a kept name is in one.

        A later day may restate an entry: its difference can only be formed again from both.

        :param kept: asked for names of entries once a folder is due.
        :return: the days that are removed.
        """
        due = self.days(before)
        if not due:
            return []
        held = {name.partition("/")[0] for name in kept()}
        removed = [
            day for day in due if day not in held and self._restated(day) < before.isoformat()
        ]
        for day in removed:
            self._files.remove_tree(self._path(day))
        return removed

    def forget(self) -> None:
        """Remove the whole journal: another life of the topology begins.

        :raises StagingNotRemoved: a part is still there.
        """
        self._files.remove_tree(self._folder)
        if self._files.list(self._folder):
            raise StagingNotRemoved(uri=self._files.uri(self._folder))


def _described(columns: Columns, first: Mapping[str, Any]) -> Contribution:
    """Describe the columns of a contribution.

    :param first: the first of its rows; empty: there is none.
    """
    found = {name: columns.types.get(name) or type_of(first.get(name)) for name in columns.keys}
    return Contribution(
        keys={name: kind or "" for name, kind in found.items()},
        values=columns.serialized()["values"],
    )
