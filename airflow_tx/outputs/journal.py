"""Journal entries: the batch of a transaction, and its contribution to each state.

A contribution is the whole acked output, with one row per key. A state that lacks these keys gets exactly these rows. A
restatement writes only a difference, so it may have written fewer rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any

from airflow_tx.base.errors import EntryDiffers, EntryMissing, JournalError
from airflow_tx.base.remedy import Command
from airflow_tx.base.rows import is_frame
from airflow_tx.ledger import (
    End,
    LedgerView,
    Metadata,
    Outcome,
    Paths,
    ReadOnlyLedger,
    RepairRecord,
    Replaced,
    Store,
    TransactionDetails,
    TransactionRecord,
    TransactionView,
    decode,
    dumps,
    encode,
)
from airflow_tx.outputs.staging.area import JOURNAL, StagingArea, batches_in, quoted
from airflow_tx.state import STATE_TYPES, Columns, from_arrow, from_plain, to_plain, type_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.outputs.staging.files import Files


# --- rows ---------------------------------------------------------------------------------------------------------
# Rows of a task are stored as JSON. When they are read, each value has its original Python type.


PLAIN = "plain"
"""The kind of a column whose values JSON can express."""
MIXED = "mixed"
"""The kind of a column with values of several kinds. Each value is stored with its kind."""
ORDERED = "ordered"
"""The kind of a column of objects whose names must keep their order, since the JSON of an entry sorts names."""
_ABSENT = object()
"""The value of a column that a row lacks. A mixed column stores it as `[]`, and any other value as a pair."""
_AS_IS = frozenset((bool, float, int, str, type(None)))
"""Types whose values are written unchanged. Most columns have only these types."""


def encoded_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Convert rows to plain JSON. The rows of a table may have different columns.

    :raises ValueError, TypeError: no column can have the type of a value.
    """
    names = dict.fromkeys(chain.from_iterable(rows))
    kinds = dict[str, str]()
    columns = []
    for name in names:
        values = [row.get(name, _ABSENT) for row in rows]
        as_is = _AS_IS.issuperset(map(type, values))
        kinds[name] = PLAIN if as_is else _kind(values)
        columns.append(values if as_is else _encoded(kinds[name], values))
    # A kind and its values are a pair, not an object, since the JSON writer sorts the names of an
    # object.
    return {
        "kinds": [list(each) for each in kinds.items()],
        "rows": [list(row) for row in zip(*columns, strict=True)],
    }


def decoded_rows(written: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Create the rows from the result of `encoded_rows`."""
    kinds = written["kinds"]
    for values in written["rows"]:
        yield {
            name: _decoded(kind, value)
            for (name, kind), value in zip(kinds, values, strict=True)
            if kind != MIXED or value != []
        }


def _kind(values: Sequence[Any]) -> str:
    found = {_kind_of(value) for value in values if value is not None}
    if len(found) > 1 or _ABSENT in found:
        return MIXED
    return found.pop() if found else PLAIN


def _kind_of(value: Any) -> Any:
    if value is _ABSENT:
        return value
    if isinstance(value, (list, dict)):
        kept = repr(json.loads(dumps(STATE_TYPES["json"].convert(value))))
        return PLAIN if kept == repr(value) else ORDERED
    kind = type_of(value)
    if kind is None:
        raise TypeError(f"a value is a {type(value).__name__}, which no column can store")
    return PLAIN if STATE_TYPES[kind].plain is None else kind


def _encoded(kind: str, values: Sequence[Any]) -> list[Any]:
    if kind == MIXED:
        return [None if value is None else _named(value) for value in values]
    return [_as_json(kind, value) for value in values]


def _named(value: Any) -> list[Any]:
    kind = _kind_of(value)
    return [] if kind is _ABSENT else [kind, _as_json(kind, value)]


def _as_json(kind: str, value: Any) -> Any:
    if kind == ORDERED and value is not None:
        return json.dumps(STATE_TYPES["json"].convert(value))
    if value is None or kind != PLAIN:
        return to_plain(kind, value)
    if isinstance(value, (list, dict)):
        return STATE_TYPES["json"].convert(value)
    found = type_of(value)
    assert found is not None
    return to_plain(found, value)


def _decoded(kind: str, value: Any) -> Any:
    if kind == PLAIN or value is None:
        return value
    if kind == ORDERED:
        return json.loads(value)
    if kind == MIXED:
        own, plain = value
        return _decoded(own, plain)
    return from_plain(kind, value)


# --- entry --------------------------------------------------------------------------------------------------------


ENTRY_FORMAT = 1
PARQUET = ".parquet"
ROWS = ".json"
_BLOCK = 2**20


@dataclass(frozen=True)
class KeptFile:
    """A file of the journal with rows of a contribution.

    :param name: the name relative to the journal folder. The extension is `.parquet`, or `.json` if the rows are JSON.
    :param size: the size in bytes.
    :param rows: the number of rows.
    :param sha256: the sha256 of the content.
    """

    name: str
    size: int
    rows: int
    sha256: str


@dataclass(frozen=True)
class KeptFiles:
    """Where the files of an entry are stored.

    :param files: the files of the staging area.
    :param folder: the journal folder, relative to the root of the area.
    :param entry: the name of the entry, for error messages.
    :ivar checked: the names of the files whose sha256 has been checked.
    """

    files: Files
    folder: str
    entry: str
    checked: set[str] = field(default_factory=set)

    def path_of(self, file: KeptFile) -> str:
        """Check a file of the entry, and return its name relative to the root of the area.

        :raises EntryMissing, EntryDiffers: the file is missing or was changed.
        """
        path = f"{self.folder}/{file.name}"
        if file.name not in self.checked:
            found = self._sha256(path)
            if found != file.sha256:
                raise EntryDiffers(
                    entry=self.entry, uri=self.files.uri(path), found=found, expected=file.sha256
                )
            self.checked.add(file.name)
        return path

    def _sha256(self, path: str) -> str:
        try:
            return sha256_of(self.files, path)
        except FileNotFoundError:
            raise EntryMissing(entry=self.entry, uri=self.files.uri(path)) from None


@dataclass(frozen=True)
class Contribution:
    """The contribution of a transaction to one state, with the original values from the tasks.

    :param keys: the key columns in order, with the types of their values.
    :param values: the aggregator and the type of each stored value column, as in `Columns.serialized`.
    :param count: the number of rows, which is one per key.
    :param inline: the rows in the form of `encoded_rows`, or None if the rows are in files.
    :param files: the files with the rows, if there are too many rows for `inline`.
    :param columns: the columns of the files that the state reads, or () for all columns.
    :param refusal: a clause that explains why the contribution cannot be taken back, or "" if it can.
    :param place: the place of the files.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    count: int = 0
    inline: Mapping[str, Any] | None = None
    files: tuple[KeptFile, ...] = ()
    columns: tuple[str, ...] = ()
    refusal: str = ""
    place: KeptFiles | None = field(default=None, compare=False, repr=False)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in order, with bounded memory. Each call reads them again.

        :raises EntryMissing, EntryDiffers: a file is missing or was changed.
        """
        for part in self.parts():
            yield from from_arrow(part) if is_frame(part) else part

    def parts(self) -> Iterator[pa.RecordBatch | Iterator[dict[str, Any]]]:
        """Yield the same rows as `rows`, but the rows of Parquet files as Arrow batches."""
        if self.inline is not None:
            yield decoded_rows(self.inline)
        for file in self.files:
            if file.name.endswith(ROWS):
                yield decoded_rows(json.loads(self._read(file)))
            else:
                yield from self._batches(file)

    def of(self, files: Sequence[KeptFile]) -> Contribution:
        """Return the contribution, with rows that are read from these files."""
        return replace(self, files=tuple(files), count=sum(file.rows for file in files))

    def check(self) -> None:
        """Check every file against its sha256.

        :raises EntryMissing, EntryDiffers: a file is missing or was changed.
        """
        assert self.place is not None
        for file in self.files:
            self.place.path_of(file)

    def _batches(self, file: KeptFile) -> Iterator[pa.RecordBatch]:
        assert self.place is not None
        path = self.place.path_of(file)
        with self.place.files.reaching(path), self.place.files.open(path) as opened:
            yield from batches_in(opened, self.columns)

    def _read(self, file: KeptFile) -> bytes:
        assert self.place is not None
        return self.place.files.read(self.place.path_of(file))

    def to_json(self) -> dict[str, Any]:
        """Return the contribution as plain JSON."""
        return {
            "keys": [[name, kind] for name, kind in self.keys.items()],
            "values": {name: dict(each) for name, each in self.values.items()},
            "count": self.count,
            "inline": self.inline,
            "files": [vars(file) for file in self.files],
            "columns": list(self.columns),
            "refusal": self.refusal,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Contribution:
        """Create a contribution from the result of `to_json`."""
        return cls(
            keys=dict(value["keys"]),
            values=value["values"],
            count=value["count"],
            inline=value["inline"],
            files=tuple(KeptFile(**file) for file in value["files"]),
            columns=tuple(value["columns"]),
            refusal=value["refusal"],
        )


@dataclass(frozen=True)
class Entry:
    """The journal entry of one transaction.

    :param birth: the birth of the transaction.
    :param key: the run key.
    :param began: when the transaction began, in UTC.
    :param written: when the entry was written, in UTC.
    :param metadata: the complete metadata of the batch.
    :param source: the source, as `Source.serialize` returns it.
    :param replaces: txid and entry of the restated transaction, or None if this is not a restatement.
    :param contributions: the contribution to each state, by the name of the state.
    """

    topology: str
    incarnation: str
    txid: int
    attempt: int
    birth: str
    key: str
    run_id: str
    began: str
    written: str
    metadata: Any
    source: tuple[str, Mapping[str, Any]]
    replaces: Mapping[str, Any] | None = None
    contributions: Mapping[str, Contribution] = field(default_factory=dict)

    @cached_property
    def content(self) -> bytes:
        """Return the stored form of the entry. Equal entries have equal stored forms."""
        contributions = {name: each.to_json() for name, each in self.contributions.items()}
        own = {
            "format": ENTRY_FORMAT,
            **vars(self),
            "source": [self.source[0], dict(self.source[1])],
            "contributions": contributions,
        }
        return dumps(own).encode()

    @property
    def name(self) -> str:
        """Return the name of the entry: its day, its txid, and the sha256 of its content."""
        return f"{self.written[:10]}/{self.txid}-{hashlib.sha256(self.content).hexdigest()}"

    @classmethod
    def from_content(cls, name: str, content: bytes) -> Entry:
        """Create an entry from its stored form.

        :raises JournalError: this version cannot read the entry.
        """
        value = json.loads(content)
        found = value.pop("format", None)
        if found != ENTRY_FORMAT:
            problem = f"it has format {found}, and this version reads {ENTRY_FORMAT}"
            remedy = "Upgrade airflow-provider-tx: a newer version wrote it."
            raise JournalError(entry=name, problem=problem, remedy=remedy)
        parts = {each: Contribution.from_json(of) for each, of in value["contributions"].items()}
        source, arguments = value["source"]
        return cls(**{**value, "source": (source, arguments), "contributions": parts})

    def read_from(self, place: KeptFiles) -> Entry:
        """Return the entry with contributions that read their rows from these files."""
        placed = {name: replace(each, place=place) for name, each in self.contributions.items()}
        return replace(self, contributions=placed)


def sha256_of(files: Files, path: str) -> str:
    """Return the sha256 of a file, which is read in blocks."""
    found = hashlib.sha256()
    with files.reaching(path), files.open(path) as opened:
        while block := opened.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


# --- area ---------------------------------------------------------------------------------------------------------
# The journal is beside staged output, in a folder that is not deleted with staged output. ::
# <root>/<ledger>/<incarnation>/@journal/<day>/<txid>-<sha256>
# <root>/<ledger>/<incarnation>/@journal/<day>/rows/<sha256>.parquet
# <root>/<ledger>/<incarnation>/@journal/<day>/restated/<later day> A renamed topology keeps its
# incarnation, and so its journal. Files are named by their content. So an entry that is written
# twice has the same name, and no writer overwrites another entry.


INLINE_ROWS = 1_000
"""The maximum number of rows of a contribution that are stored in the entry itself."""
INLINE_SIZE = 256 * 1024
"""The maximum size of rows that are stored in an entry, in characters of JSON."""
ROWS_A_FILE = 10_000
FILES = "rows"
RESTATED = "restated"
"""The folder next to a day's entries. It has one file for each later day that restates an entry of this day."""
CHANGES = "changes"
"""The folder for copies of accepted ledger changes. It is next to the folders of days."""
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)/(\d+)-([0-9a-f]{64})")


@dataclass(frozen=True)
class StagedFiles:
    """The Parquet files of an output, from which the journal copies the rows.

    :param files: the file names, relative to the root of the topology's staging area, and their row counts.
    :param columns: the columns that the state reads.
    :param incarnation: the incarnation of the topology in the attempt.
    """

    files: Sequence[tuple[str, int]]
    columns: Sequence[str]
    incarnation: str

    @property
    def count(self) -> int:
        return sum(count for _, count in self.files)


class JournalArea:
    """The journal of one topology.

    :param area: the staging area of the ledger.
    :param incarnation: the incarnation in the topology record.
    """

    def __init__(self, area: StagingArea, incarnation: str) -> None:
        self._files = area.files
        self._folder = f"{quoted(incarnation)}/{JOURNAL}"

    # --- write --------------------------------------------------------------------------------------------------

    def contribution(
        self,
        columns: Columns,
        rows: Iterable[Mapping[str, Any]],
        *,
        day: str,
        staged: StagedFiles | None = None,
    ) -> Contribution:
        """Store the rows of one state for an entry. They count only after the entry is written.

        :param columns: the columns of the state.
        :param rows: the rows of the tasks with their original values, one row per key.
        :param day: the day of the entry.
        :param staged: the staged files of the rows, or None if the rows are not staged.
        :raises StagingUnavailable, StagingUnreachable: the rows cannot be kept.
        """
        iterator = iter(rows)
        first = next(iterator, None)
        own = _described(columns, first or {})
        if staged is not None and staged.count > INLINE_ROWS:
            return replace(own.of(self._copies([staged], day)), columns=tuple(staged.columns))
        return self._encoded(own, iterator if first is None else chain([first], iterator), day)

    def rows_in_turn(
        self,
        outputs: Sequence[Collection[Mapping[str, Any]]],
        staged: Mapping[int, StagedFiles],
        *,
        day: str,
    ) -> Contribution:
        """Store the rows of a table for an entry, in the order of the outputs.

        :param outputs: the rows of each output.
        :param staged: the staged files of the outputs, by output number. Large files are copied.
        :param day: the day of the entry.
        :raises StagingUnavailable, StagingUnreachable: the rows cannot be kept.
        """
        own = Contribution()
        if sum(map(len, outputs)) <= INLINE_ROWS:
            return self._encoded(own, chain.from_iterable(outputs), day)
        files = list[KeptFile]()
        for is_staged, numbers in groupby(range(len(outputs)), staged.__contains__):
            if is_staged:
                files += self._copies([staged[number] for number in numbers], day)
                continue
            kept = self._encoded(
                own, chain.from_iterable(outputs[n] for n in numbers), day, inline=0
            )
            if kept.refusal:
                return kept
            files += kept.files
        return own.of(files)

    def write(self, entry: Entry) -> str:
        """Write an entry, and return its name.

        :raises StagingUnavailable, StagingUnreachable: the entry cannot be written.
        """
        name = entry.name
        if entry.replaces is not None:
            day = entry.replaces["entry"].partition("/")[0]
            self._files.write(self._path(f"{day}/{RESTATED}/{entry.written[:10]}"), b"{}")
        self._files.write(self._path(name), entry.content)
        return name

    def _encoded(
        self,
        own: Contribution,
        rows: Iterable[Mapping[str, Any]],
        day: str,
        *,
        inline: int = INLINE_ROWS,
    ) -> Contribution:
        iterator = iter(rows)
        portion = list(islice(iterator, ROWS_A_FILE))
        files = list[KeptFile]()
        try:
            encoded = encoded_rows(portion)
            text = dumps(encoded)
            if len(portion) <= inline and len(text) <= INLINE_SIZE:
                return replace(own, count=len(portion), inline=encoded)
            while portion:
                content = dumps(encoded_rows(portion)).encode()
                files.append(self._written(content, len(portion), day))
                portion = list(islice(iterator, ROWS_A_FILE))
        except (TypeError, ValueError) as error:
            return Contribution(refusal=f"its rows cannot be kept: {error}")
        return own.of(files)

    def _copies(self, outputs: Iterable[StagedFiles], day: str) -> list[KeptFile]:
        named = (
            (f"{quoted(staged.incarnation)}/{name}", count)
            for staged in outputs
            for name, count in staged.files
        )
        return [self._copied(name, count, day) for name, count in named if count]

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
        """Read an entry without its rows, and compare its content with its name.

        :raises EntryMissing, EntryDiffers: the entry is missing or was changed.
        :raises JournalError: this version cannot read the entry.
        """
        parts = _NAME.fullmatch(name)
        if parts is None:
            problem = "it is not the name of an entry"
            remedy = (
                "Use the name that "
                + Command.of("show", "TOPOLOGY", "TXID")
                + " prints, such as DAY/TXID-SHA256."
            )
            raise JournalError(entry=name, problem=problem, remedy=remedy)
        uri = self._files.uri(self._path(name))
        try:
            content = self._files.read(self._path(name))
        except FileNotFoundError:
            raise EntryMissing(entry=name, uri=uri) from None
        found = hashlib.sha256(content).hexdigest()
        if found != parts[3]:
            raise EntryDiffers(entry=name, uri=uri, found=found, expected=parts[3])
        place = KeptFiles(self._files, self._folder, name)
        return Entry.from_content(name, content).read_from(place)

    def check(self, name: str) -> Entry:
        """Read an entry, and check each of its files.

        :raises JournalError: see `read`.
        """
        entry = self.read(name)
        for contribution in entry.contributions.values():
            contribution.check()
        return entry

    def finding(self, name: str, txid: int, key: str) -> str | None:
        """Return a sentence that describes the damage to a binding's entry, or None if the entry is intact.

        :raises StagingUnreachable: the staging area does not answer.
        """
        try:
            entry = self.check(name)
        except JournalError as error:
            return f"transaction {txid}: {error}"
        if (entry.txid, entry.key) == (txid, key):
            return None
        said = f"belongs to transaction {entry.txid} and key {entry.key}"
        return f"transaction {txid}: the journal entry {name} of key {key} {said}"

    def names(self, txid: int | None = None) -> list[str]:
        """Return the names of the entries, the last day first.

        This includes entries that were never committed, which no binding and no record names.

        :param txid: the transaction, or None for all transactions.
        """
        found = (f"{day}/{name}" for day in self.days() for name in self._entries(day))
        named = ((parts, parts[0]) for each in found if (parts := _NAME.fullmatch(each)))
        return [name for parts, name in named if txid is None or int(parts[2]) == txid]

    def _entries(self, day: str) -> list[str]:
        return sorted(self._files.list(self._path(day)))

    def keep_change(self, repair: RepairRecord) -> None:
        """Write a copy of an accepted change. The copy is needed if the ledger is lost."""
        self._files.write(self._path(f"{CHANGES}/{repair.number}"), encode(repair))

    def changes(self) -> list[RepairRecord]:
        """Return the accepted changes of the ledger, the oldest first.

        :raises UnreadableRecord: a copy was changed.
        """
        numbers = sorted(map(int, self._files.list(self._path(CHANGES))))
        paths = [self._path(f"{CHANGES}/{number}") for number in numbers]
        return [decode(RepairRecord, path, self._files.read(path)) for path in paths]

    def days(self, before: date | None = None) -> list[str]:
        """Return the days that have entries, the last day first.

        :param before: return only days before this day.
        """
        found = sorted(self._files.list(self._folder).keys() - {CHANGES}, reverse=True)
        return [day for day in found if before is None or day < before.isoformat()]

    # --- remove -------------------------------------------------------------------------------------------------

    def _restated(self, day: str) -> str:
        """Return the last day that has a restatement of an entry of this day. Return "" if there is none."""
        return max(self._files.list(self._path(f"{day}/{RESTATED}")), default="")

    def sweep(self, before: date, kept: Callable[[], Collection[str]]) -> list[str]:
        """Remove the folders of days before a day, except days with an entry to keep.

        A day is also kept if a later day that stays has a restatement of one of its entries. Their difference can be
        computed only from both entries.

        :param before: the first day to keep.
        :param kept: a function that returns the names of the entries to keep. Called only if a day can be removed.
        :return: the removed days.
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


def _described(columns: Columns, first: Mapping[str, Any]) -> Contribution:
    """Return a contribution without rows, which only describes the columns.

    :param first: the first row, or an empty mapping if there are no rows.
    """
    found = {name: columns.types.get(name) or type_of(first.get(name)) for name in columns.keys}
    return Contribution(
        keys={name: kind or "" for name, kind in found.items()},
        values=columns.serialized()["values"],
    )


# --- entry view ---------------------------------------------------------------------------------------------------
# This section reads a transaction from the journal if the history of the ledger no longer has it.


def forgotten_details(
    store: Store, paths: Paths, journal: JournalArea, txid: int
) -> TransactionDetails | None:
    """Return the details of a committed transaction from its journal entry. Return None if no binding names an entry.

    :raises JournalError, StagingUnreachable: the journal cannot be read.
    """
    for name in journal.names(txid):
        entry = journal.read(name)
        binding = ReadOnlyLedger(store, paths).binding(entry.key)
        if binding is not None and _stands_for(journal, binding.entry, name):
            (view,) = LedgerView(store, paths).with_restatements([_view(entry)])
            return TransactionDetails(view, Metadata(0, entry.metadata, None))
    return None


def _stands_for(journal: JournalArea, counts: str, name: str) -> bool:
    """Return whether an entry was committed: it counts now, or a restatement has replaced it."""
    while counts and counts != name:
        replaces = journal.read(counts).replaces
        counts = "" if replaces is None else replaces["entry"]
    return counts == name


def _view(entry: Entry) -> TransactionView:
    replaces = None if entry.replaces is None else Replaced(**entry.replaces)
    document = TransactionRecord.unknown(
        entry.txid,
        key=entry.key,
        run_id=entry.run_id,
        attempt=entry.attempt,
        began=entry.began,
        replaces=replaces,
        end=End(Outcome.COMMITTED, ""),
    )
    return TransactionView(document, ack_val="")
