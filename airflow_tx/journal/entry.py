"""The journal's record of a transaction: its batch, and its contribution to each state.

A contribution is the whole acked output, combined to one row a key: the rows that a state without these
    keys would get. The rows that a state got may be fewer, as the difference of a restatement is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import EntryDiffers, EntryMissing, JournalError
from airflow_tx.journal.rows import decoded_rows
from airflow_tx.protocol.json_text import dumps
from airflow_tx.state.arrow import from_arrow, types_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.staging.files import Files

ENTRY_FORMAT = 1
PARQUET = ".parquet"
ROWS = ".json"
_BLOCK = 2**20


@dataclass(frozen=True)
class KeptFile:
    """A file of the journal that holds rows of a contribution.

    :param name: relative to the folder of the incarnation; it ends with what the file is: Parquet, or rows as JSON.
    :param sha256: of its content.
    """

    name: str
    size: int
    rows: int
    sha256: str


@dataclass(frozen=True)
class KeptFiles:
    """Where the files of an entry are read from.

    :param files: of the staging area.
    :param folder: of the incarnation, below the root of the area.
    :param entry: the name of the entry, for messages.
    :ivar checked: names of the files whose content was compared with its sha256.
    """

    files: Files
    folder: str
    entry: str
    checked: set[str] = field(default_factory=set)

    def path_of(self, file: KeptFile) -> str:
        """Name a file of the entry below the root of the area.

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
    """The contribution of a transaction to one state, from its tasks, without a conversion.

    :param keys: the key columns, in their order, each with the type that the values of the rows have.
    :param values: per stored value column its aggregator and its type, as `Columns.serialized` names them.
    :param count: how many rows there are: one a key.
    :param inline: the rows, if they are few, as `encoded_rows` gives them.
    :param files: the rows, if they are many; `columns` are the columns of the files that the state takes.
    :param refusal: why there is no contribution to take back: a clause; "": there is one.
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
        """Read the rows; each call reads them again, in flat memory.

        :raises EntryMissing, EntryDiffers: a file is missing or was changed.
        """
        if self.inline is not None:
            yield from decoded_rows(self.inline)
        for file in self.files:
            if file.name.endswith(ROWS):
                yield from decoded_rows(json.loads(self._read(file)))
            else:
                for batch in self._batches(file):
                    yield from from_arrow(batch, types_of(batch.schema))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows of staged files as Arrow batches; raises as `rows`. Ask `is_staged` before."""
        for file in self.files:
            yield from self._batches(file)

    def of(self, files: Sequence[KeptFile]) -> Contribution:
        """Give it with rows in files."""
        return replace(self, files=tuple(files), count=sum(file.rows for file in files))

    def check(self) -> None:
        """Compare every file with its sha256; raises as `rows`."""
        assert self.place is not None
        for file in self.files:
            self.place.path_of(file)

    @property
    def is_staged(self) -> bool:
        """Whether its rows are Parquet files, as a task staged them."""
        return bool(self.files) and all(file.name.endswith(PARQUET) for file in self.files)

    def _batches(self, file: KeptFile) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        assert self.place is not None
        path = self.place.path_of(file)
        with self.place.files.reaching(path), self.place.files.open(path) as opened:
            # An older release staged times as INT96 without a zone.
            parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            yield from parquet.iter_batches(columns=list(self.columns))

    def _read(self, file: KeptFile) -> bytes:
        assert self.place is not None
        return self.place.files.read(self.place.path_of(file))

    def to_json(self) -> dict[str, Any]:
        """Give it as plain JSON."""
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
        """Read what `to_json` gave."""
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
    """One transaction in the journal.

    :param birth: of the transaction; `began` and `written` are times in UTC.
    :param key: the identity of its run.
    :param metadata: of its batch, whole.
    :param source: as `Source.serialize` gave it.
    :param replaces: the transaction that it restates: {txid, entry}; None: it restates none.
    :param contributions: per state.
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
        """Its stored form, always the same."""
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
        """Its name in the journal of its incarnation: the day, the txid and the sha256 of its content."""
        return f"{self.written[:10]}/{self.txid}-{hashlib.sha256(self.content).hexdigest()}"

    @classmethod
    def from_content(cls, name: str, content: bytes) -> Entry:
        """Read what `content` gave.

        :raises JournalError: this version cannot read it.
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
        """Give it with contributions that read their files from a place."""
        placed = {name: replace(each, place=place) for name, each in self.contributions.items()}
        return replace(self, contributions=placed)


def sha256_of(files: Files, path: str) -> str:
    """Read a file in blocks, for the sha256 of its content."""
    found = hashlib.sha256()
    with files.reaching(path), files.open(path) as opened:
        while block := opened.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
