"""Attempts, tries and tokens; receipts, digests of rows, names of batches. Source: Storm's TransactionAttempt."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger.api import digest, dumps

if TYPE_CHECKING:
    from airflow_tx.ledger.records import Ack


# --- batch words --------------------------------------------------------------------------------------------------
# The name that a person knows a batch by, from its metadata: a file, a range, an interval. Shapes: docs/sources.md.


LONGEST = 120
_PARTITIONS_SHOWN = 2
_MIDNIGHT = ("T00:00:00+00:00", "T00:00:00Z")
_DETAILS = frozenset(
    {"checksum", "columns", "digest", "etag", "hash", "options", "schema", "size", "topic_id"}
)
_PLACE = re.compile(r"(-?\d{1,99})(?:-(\d{1,99}))?|\[(-?\d{1,99})\]")
"""A number, the id of an entry, such as `17-0`, or a key of one number."""


def batch_in_words(metadata: Any) -> str:
    """Name a batch, such as `2013-01.csv and 2 more`, `5 to 9`, or `2013-01-01 to 2013-01-02`.

    :param metadata: as its source decided it, or as a receipt keeps it.
    :return: at most `LONGEST` characters; "": its shape has no name, and a person has to read the JSON.
    """
    words = _range(metadata) or _partitions(metadata) if isinstance(metadata, Mapping) else ""
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"


def batch_texts(metadata: Any, wanted: str, *, details: bool = False) -> Iterator[str]:
    """List the texts in which a search looks for a batch: those in its metadata, and its files below their folder.

    :param wanted: the text that is looked for, case-folded. Of `PARTITION:PLACE`, which may have more colons, the place
        is a file, a number or an id: if the partition has it, a text begins with it, such as `orders-0:7 (5 to 9)`.
    :param details: only the texts about its rows that are no names of rows, such as `digest content:9f86…`.
    """
    if details:
        yield from (f"{detail} {text}" for detail, text in _texts(metadata) if detail)
        return
    yield from (text for detail, text in _texts(metadata) if not detail)
    has_parts = isinstance(metadata, Mapping) and not (is_shortened(metadata) or _range(metadata))
    for name, rows in metadata.items() if has_parts else ():
        begins = f"{name}:".casefold()
        if wanted.startswith(begins):
            yield from (f"{name}:{each}" for each in _places(rows, wanted.removeprefix(begins)))


def _texts(value: Any, detail: str = "") -> Iterator[tuple[str, str]]:
    """List texts of metadata, each with the detail of the batch that it tells; "": it names rows."""
    if isinstance(value, str):
        yield detail, value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, detail)
    elif isinstance(value, Mapping) and not is_shortened(value):
        for name, each in value.items():
            yield from _texts(each, detail or (name if name in _DETAILS else ""))
        folder = str(value.get("folder", "")).rstrip("/")
        yield from ((detail, f"{folder}/{name}") for name in _file_names(value))


def _places(rows: Any, wanted: str) -> Iterator[str]:
    """List the places in a partition: its files, and the wanted number, id or plain value if it is there."""
    if isinstance(rows, Mapping):
        yield from _file_names(rows)
        place = _place(wanted)
        after, last = _ends(rows)
        before = () if after is None else _place(after) or place
        if len(place) == len(_place(last)) and before < place <= _place(last):
            yield f"{wanted} ({_range(rows)})"
    elif isinstance(rows, (int, str)) and str(rows).casefold() == wanted:
        yield str(rows)


def counted(count: int, unit: str) -> str:
    """Write a number and its unit, such as `1 file`, `2 files`.

    :param unit: in the plural.
    """
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"


def gone_in_words(keys: int) -> str:
    """Say how many keys are gone."""
    return f"{counted(keys, 'keys')} {'is' if keys == 1 else 'are'} gone"


def _range(metadata: Mapping[str, Any]) -> str:
    """Name the rows of a source without partitions, or of one partition."""
    if names := _file_names(metadata):
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    if "partition" in metadata:
        return f"partition {_end(metadata['partition'])}"
    first = metadata.get("from")
    after, last = _ends(metadata)
    if isinstance(first, int) and isinstance(last, int):
        return f"{first}" if first == last else f"{first} to {last}"
    if isinstance(first, str) and isinstance(metadata.get("to"), str):
        return f"{_end(first)} to {_end(metadata['to'])}"
    if isinstance(last, list):
        low, high = map(_key, (after, last))
        return f"after {low}, up to {high}" if low and high else f"up to {high}" if high else ""
    return f"up to {metadata['to']}" if "after" in metadata and "to" in metadata else ""


def _file_names(metadata: Any) -> list[str]:
    files = metadata.get("files") if isinstance(metadata, Mapping) else None
    return [
        str(each["name"])
        for each in (files if isinstance(files, list) else ())
        if isinstance(each, Mapping) and "name" in each
    ]


def _ends(metadata: Mapping[str, Any]) -> tuple[Any, Any]:
    """Read what comes before the rows of a source or a partition, None: nothing does, and what the last of them is.

    Metadata has the number after the last one of numbered rows; and of a table ranges, each with how many rows it has.
    """
    first, count, end, upto = map(metadata.get, ("from", "quantity", "to", "upto"))
    if isinstance(first, int):
        end = first + count if isinstance(count, int) else end
        return first - 1, end - 1 if isinstance(end, int) else None
    last = upto[-1] if isinstance(upto, list) and upto else None
    return metadata.get("after", ""), last[:-1] if isinstance(last, list) else end


def _key(values: Any) -> str:
    if not isinstance(values, list) or not values:
        return ""
    texts = [_end(each.get("at", "") if isinstance(each, Mapping) else each) for each in values]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _partitions(metadata: Mapping[str, Any]) -> str:
    """Name the rows by partition; "" if one of the first ones has no name."""
    some = list(metadata.items())[:_PARTITIONS_SHOWN]
    words = [(name, _range(each) if isinstance(each, Mapping) else "") for name, each in some]
    if not words or not all(text for _, text in words):
        return ""
    more = len(metadata) - len(words)
    named = ", ".join(f"{name}: {text}" for name, text in words)
    return f"{named} and {more} more" if more else named


def _place(value: Any) -> tuple[int, ...]:
    found = _PLACE.fullmatch(str(value))
    return tuple(int(each) for each in found.groups() if each) if found else ()


def _end(value: Any) -> str:
    """Write a moment without a time that is midnight in UTC."""
    text = str(value)
    for midnight in _MIDNIGHT:
        text = text.removesuffix(midnight)
    return text


# --- rows digest --------------------------------------------------------------------------------------------------
# How many rows were seen, and an order-independent 64-bit digest of them: a sum of hashes, so that parts add up.
#
# A sum, and not an XOR: two equal rows would cancel out. It proves nothing without the number of rows beside it.


COUNT = "count"
"""The form of rows that were counted and not hashed."""
_MODULUS = 2**64


@dataclass(frozen=True)
class RowsDigest:
    """A number of rows with the digest of exactly these.

    :param rows: how many.
    :param digest: the sum of their 64-bit hashes, modulo 2^64.
    :param form: how each row was hashed, columns included; digests are compared only if their forms agree.
    """

    rows: int
    digest: int = 0
    form: str = COUNT

    def __add__(self, other: RowsDigest) -> RowsDigest:
        rows = self.rows + other.rows
        if self.form != other.form:
            # Nothing was hashed where there was no row, so nothing is missing.
            kept = self if not other.rows else other if not self.rows else RowsDigest(0)
            return RowsDigest(rows, kept.digest, kept.form)
        return RowsDigest(rows, (self.digest + other.digest) % _MODULUS, self.form)

    def agrees(self, other: RowsDigest) -> bool:
        """Compare the numbers, and the digests if their forms agree."""
        return self.rows == other.rows and (self.form != other.form or self.digest == other.digest)

    @property
    def text(self) -> str:
        """Write form and digest as records and references keep them; "" without a digest."""
        return "" if self.form == COUNT else f"{self.form}:{self.digest:016x}"

    @classmethod
    def of(cls, rows: int, text: str) -> RowsDigest:
        """Read what `text` wrote."""
        form, _, digits = text.rpartition(":")
        return cls(rows, int(digits, 16), form) if form else cls(rows)

    def to_json(self) -> dict[str, Any]:
        """Give it as plain JSON."""
        return {"rows": self.rows, "digest": self.text}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowsDigest:
        """Read what `to_json` gave."""
        return cls.of(value["rows"], value["digest"])

    def __str__(self) -> str:
        rows = counted(self.rows, "rows")
        return rows if self.form == COUNT else f"{rows}, digest {self.digest:016x}"


def form_of_columns(names: Iterable[str]) -> str:
    """Name the form of rows that are hashed by Spark's `xxhash64`, column by column in the order of their names.

    Columns have marks of their own, see `column_marks`.
    """
    return f"xxh64c-{hashlib.sha256(repr(sorted(names)).encode()).hexdigest()[:8]}"


def column_marks(name: str, kind: str) -> tuple[int | None, int]:
    """Give the numbers that stand before a value of a column, and in place of a NULL: signed, of 64 bits.

    Spark's hash passes over NULL, and takes true, 1 and the second day of 1970 for one value. Whole numbers have no
    mark: every other type has one.

    :param kind: which of the types that hash alike.
    """
    null = _mark(name)
    return (None if kind in ("int", "bigint") else _mark(f"{kind} {name}")), null


def _mark(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


# --- receipt ------------------------------------------------------------------------------------------------------
# Receipts: what a transaction was and what it wrote, each with the hash of the one before it.
#
# A grant carries the known part of the receipt of its transaction. A state adds its rows and keeps it beside its
# fence. The multi that ends the transaction adds what all states were given and keeps it in the history. Source:
# docs/protocol.md §10.


RECEIPT_FORMAT = 1
METADATA_KEPT = 16_384
"""Characters of JSON; of longer metadata a receipt keeps the digest. All receipts of the history are in ZooKeeper."""
POSITION_KEPT = 8_192
REPLAYS_KEPT = 20
_DIGEST = "tx_digest"
_LENGTH = "tx_length"
NOT_KEPT = {_DIGEST: "", _LENGTH: 0}
"""A value of which not even the digest is known."""
_TEXTS = (
    "topology",
    "incarnation",
    "nonce",
    "birth",
    "outcome",
    "key",
    "run_id",
    "granted",
    "previous",
    "digest",
)
_NUMBERS = ("generation", "txid", "attempt", "epoch")
_LEFT_OUT = frozenset({"size", "unproven", "journal", "replaces", "wish", "checks"})
"""Fields that are not written where they are None: a skip has no `unproven`, older receipts have neither."""


@dataclass(frozen=True)
class Written:
    """The rows that a state got in one transaction, or in a part of it.

    :param keys: how many keys were written; rows, if the state takes them unchanged.
    :param digest: of the rows that it got, in any order: 16 hex digits.
    :param sums: of value columns that are added up, where all their values were whole numbers.
    :param left: whether a restatement has passed the state over: what it held was accepted.
    """

    keys: int = 0
    digest: str = "0" * 16
    sums: Mapping[str, int] = field(default_factory=dict, hash=False)
    left: bool = False

    def __add__(self, other: Written) -> Written:
        total = (int(self.digest, 16) + int(other.digest, 16)) % _MODULUS
        left = self.left or other.left
        return Written(self.keys + other.keys, f"{total:016x}", self._sums_with(other), left)

    def _sums_with(self, other: Written) -> Mapping[str, int]:
        if not self.keys or not other.keys:
            return self.sums or other.sums
        both = self.sums.keys() & other.sums.keys()
        return {name: self.sums[name] + other.sums[name] for name in both}

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"keys": self.keys, "digest": self.digest}
        if self.left:
            plain["left"] = True
        return {**plain, "sums": dict(self.sums)} if self.sums else plain

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Written:
        """Read what `to_json` gave."""
        return cls(value["keys"], value["digest"], value.get("sums", {}), value.get("left", False))


NOTHING_WRITTEN = Written()


@dataclass(frozen=True)
class Receipt:
    """What one transaction was.

    :param outcome: COMMITTED or SKIPPED.
    :param epoch: with generation, attempt, nonce and birth the token of its last grant.
    :param granted: when that was given.
    :param metadata: exactly which rows; `before` and `after`: where the source stood. `Longer` values as a digest.
    :param rows: how many rows of the batch its tasks read, if they counted; `digest`: of these, by each way to hash.
    :param tasks: per task what it read and what it emitted, see `tasks_of`.
    :param code: what processed it, see `code_of`.
    :param replays: of each earlier attempt, when and why it was replayed, its `rows` if they were counted, `by` which
        person; the last ones of many.
    :param lost: rows before it that were accepted as lost, in words.
    :param changed: who let its rows be decided again, when and why.
    :param skip: who skipped it, when and why.
    :param previous: the hash of the receipt before it; "" if there is none.
    :param written: per state what it was given, as `Written.to_json` gives it.
    :param size: how many rows the source counted, as the record keeps it; {}: it counted none.
    :param unproven: why the rows that its tasks consumed are not proven, one line each; None: of a skip.
    :param journal: name of the journal entry with its contribution; None: there is none.
    :param replaces: the `txid` and the `entry` of the transaction that it restates; None: it is no restatement.
    :param wish: who wanted that restatement, when and why.
    :param checks: per check of the committer whether it `passed`, else what it `found`, its `severity` if that is not
        "error", and who `accepted` it; None: the committer has none.
    """

    topology: str
    incarnation: str
    generation: int
    txid: int
    attempt: int
    epoch: int
    nonce: str
    birth: str
    outcome: str
    key: str
    run_id: str
    granted: str
    metadata: Any
    before: Any
    after: Any
    previous: str
    rows: int | None = None
    digest: str = ""
    tasks: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)
    replays: Sequence[Mapping[str, Any]] = ()
    lost: Sequence[str] = ()
    changed: Sequence[Mapping[str, Any]] = ()
    skip: Mapping[str, str] | None = None
    written: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format: int = RECEIPT_FORMAT
    size: Mapping[str, Any] | None = None
    unproven: Sequence[str] | None = None
    journal: str | None = None
    replaces: Mapping[str, Any] | None = None
    wish: Mapping[str, Any] | None = None
    checks: Mapping[str, Mapping[str, Any]] | None = None

    @property
    def takes_out(self) -> bool:
        """Whether a table has taken out the rows of another transaction with it, which nothing brings back."""
        return self.replaces is not None and self.skip is None

    @property
    def text(self) -> str:
        """Write it as canonical JSON: equal receipts have equal texts."""
        return dumps(self.said())

    def said(self) -> dict[str, Any]:
        """Give its fields as plain JSON."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None or name not in _LEFT_OUT
        }

    @property
    def hash(self) -> str:
        return hash_of(self.text)

    def to_json(self) -> dict[str, Any]:
        """Give its fields and its hash as plain JSON."""
        return {**self.said(), "hash": self.hash}

    @classmethod
    def from_json(cls, value: Any, *, path: str = "a receipt") -> Receipt:
        """Read what `to_json` gave, or the JSON of its text; the hash is not compared.

        :param path: its place, for the error.
        :raises UnreadableRecord: it is none, or of another format.
        """
        try:
            found = {name: item for name, item in value.items() if name != "hash"}
            receipt = cls(**found)
        except (AttributeError, TypeError) as error:
            raise UnreadableRecord(
                path=path, reason=f"it is no receipt ({str(value)[:80]})"
            ) from error
        texts, numbers = (
            [getattr(receipt, name) for name in names] for names in (_TEXTS, _NUMBERS)
        )
        parts = (
            [
                *receipt.written.values(),
                *receipt.changed,
                *receipt.replays,
                *(receipt.checks or {}).values(),
            ]
            if _is_whole(receipt)
            else [None]
        )
        fits = all(isinstance(each, str) for each in texts) and all(
            type(each) is int for each in numbers
        )
        if not fits or not all(isinstance(each, Mapping) for each in parts):
            raise UnreadableRecord(path=path, reason="its fields have other types than a receipt")
        if receipt.format != RECEIPT_FORMAT:
            reason = f"the receipt has format {receipt.format!r}, this version reads format {RECEIPT_FORMAT}"
            raise UnreadableRecord(path=path, reason=reason)
        return receipt

    def with_written(self, written: Mapping[str, Written]) -> Receipt:
        """Return the receipt of these states."""
        return replace(self, written={name: each.to_json() for name, each in written.items()})

    def differences(self, other: Receipt) -> list[str]:
        """Name the fields in which two receipts differ."""
        pairs = (
            (each.name, getattr(self, each.name), getattr(other, each.name))
            for each in fields(self)
        )
        return [name for name, one, two in pairs if dumps(one) != dumps(two)]


def _is_whole(receipt: Receipt) -> bool:
    mappings = (
        receipt.tasks,
        receipt.code,
        receipt.written,
        receipt.skip or {},
        receipt.size or {},
        receipt.replaces or {},
        receipt.wish or {},
        receipt.checks or {},
    )
    lists = (receipt.replays, receipt.lost, receipt.changed, receipt.unproven or ())
    return all(isinstance(each, Mapping) for each in mappings) and all(
        isinstance(each, list | tuple) for each in lists
    )


def restated(receipts: Mapping[int, Receipt]) -> dict[int, int]:
    """Name, by transaction that was restated, the one that counts now.

    :param receipts: by txid; of restated transactions, all later ones.
    """
    from airflow_tx.ledger.records import Outcome

    found = dict[int, int]()
    # Newest first: a restatement may be restated itself.
    for txid in sorted(receipts, reverse=True):
        receipt = receipts[txid]
        if receipt.replaces is not None and receipt.outcome == Outcome.COMMITTED.value:
            found[receipt.replaces["txid"]] = found.get(txid, txid)
    return found


def hash_of(text: str) -> str:
    """Hash the text of a receipt: 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def as_kept(value: Any, most: int) -> Any:
    """Return a value as a receipt keeps it: itself, or its digest if it is longer than `most`."""
    length = len(dumps(value))
    return value if length <= most else {_DIGEST: digest(value), _LENGTH: length}


def is_shortened(kept: Any) -> bool:
    """Ask whether a receipt keeps the digest of a value alone."""
    return isinstance(kept, Mapping) and kept.keys() == {_DIGEST, _LENGTH}


def digest_of(kept: Any) -> str:
    """Give the digest of the value that a receipt keeps."""
    return str(kept[_DIGEST]) if is_shortened(kept) else digest(kept)


def tasks_of(acks: Mapping[tuple[str, int], Ack]) -> dict[str, Any]:
    """Sum up what each task read and emitted, all its instances together.

    :param acks: by task id and map index.
    :return: per task `instances`, `rows` that it read (None: not counted), per output how many `rows` it emitted, and
        `digests` of these by output, "" for the batch, where all were hashed in one form.
    """
    found: dict[str, Any] = {}
    sums: dict[tuple[str, str], RowsDigest] = {}
    for (task, _), ack in sorted(acks.items()):
        entry = found.setdefault(task, {"instances": 0, "rows": None, "outputs": {}})
        entry["instances"] += 1
        entry["rows"] = _added(entry["rows"], ack.rows)
        for output in ack.outputs:
            name = output["name"]
            entry["outputs"][name] = _added(entry["outputs"].get(name), output.get("rows"))
        for name, rows in _row_digests(ack):
            sums[task, name] = sums[task, name] + rows if (task, name) in sums else rows
    for (task, name), rows in sums.items():
        if rows.text:
            found[task].setdefault("digests", {})[name] = rows.text
    return found


REJECTED = "tx_rejected"
"""The first part of the names of outputs with rows that a task has rejected."""
MALFORMED = "tx_malformed"
"""The output with the rows that do not fit the schema of the source, and the column with their texts."""
ASIDE = (REJECTED, MALFORMED)


def rejected_of(tasks: Mapping[str, Any]) -> dict[str, tuple[int | None, int]]:
    """Count, per task that has kept rows aside, the rows of the batch that it read, and the rows kept aside.

    :param tasks: as `tasks_of` gives them.
    :return: of a task that has not counted what it read, None and the rows.
    """
    aside = {
        task: sum(rows or 0 for name, rows in each["outputs"].items() if name.startswith(ASIDE))
        for task, each in tasks.items()
    }
    return {task: (tasks[task]["rows"], rows) for task, rows in aside.items() if rows}


def code_of(acks: Mapping[tuple[str, int], Ack], dag_version: str) -> dict[str, Any]:
    """Say what processed a batch: the version of its DAG, and by task the digest of the code that it ran.

    :param acks: as for `tasks_of`; instances that ran different code have several digests.
    """
    found: dict[str, set[str]] = {}
    for (task, _), ack in acks.items():
        if ack.code:
            found.setdefault(task, set()).add(ack.code)
    tasks = {task: " ".join(sorted(codes)) for task, codes in found.items()}
    return {"dag_version": dag_version, "tasks": tasks} if tasks else {"dag_version": dag_version}


def code_digest(source: bytes) -> str:
    """Digest source code: the first 16 hex digits of what `sha256sum` says."""
    return hashlib.sha256(source).hexdigest()[:16]


def _row_digests(ack: Ack) -> Iterator[tuple[str, RowsDigest]]:
    yield from (("", RowsDigest.from_json(read)) for read in ack.read if not read["outputs"])
    for output in ack.outputs:
        yield output["name"], RowsDigest.of(output.get("rows") or 0, output.get("row_digest", ""))


def _added(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


# --- attempt ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class TransactionAttempt:
    """One replay of one transaction.

    :param txid: integer from 1, the same however often the batch is replayed.
    :param attempt: integer from 1, one more for every replay.
    :param birth: random, of this transaction alone: a ledger that was reset, repaired or set back gives txids again.
        "" if it is not known.
    """

    txid: int
    attempt: int
    birth: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.txid}.{self.attempt}"


_NUMBER = "."


@dataclass(frozen=True)
class TaskTry:
    """One try of one task instance.

    :param task_id: the task.
    :param map_index: -1 if the task is not mapped.
    :param task_try: the task instance's id and the number of the try, kept over a deferral. Most retries and clears get
        another id; see `same_instance`.
    """

    task_id: str
    map_index: int
    task_try: str

    def __str__(self) -> str:
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"

    def same_instance(self, task_try: str) -> bool:
        """Whether another try has this one's id, so that Airflow takes the result of either for both.

        It does not change the id of a task that it fails while it is queued: a resumed leg has it, which then works
        beside the retry.
        """
        return self.task_try.partition(_NUMBER)[0] == task_try.partition(_NUMBER)[0]


LANE_TRY = "lane-"
"""How the try of a lane begins, by which it has begun its transactions; no step asks for it."""


def of_lane(task_try: str) -> bool:
    """Whether it is a lane that has begun a transaction, by the try that did."""
    return task_try.startswith(LANE_TRY)


@dataclass(frozen=True)
class Token:
    """The identity of a grant of the commit turn, in the ledger and in the fence of every state.

    Tokens compare by `rank`. Two tokens of equal rank and different nonce are two lives of one ledger: refused.

    :param generation: raised only by a repair.
    :param txid: the transaction that was granted.
    :param attempt: its attempt.
    :param epoch: grows with every grant and every restart of the transaction.
    :param nonce: random, of this grant alone.
    :param birth: random, of this transaction alone.
    """

    generation: int
    txid: int
    attempt: int
    epoch: int
    nonce: str
    birth: str = ""

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Give the part that is compared."""
        return (self.generation, self.txid, self.attempt, self.epoch)

    @property
    def is_look(self) -> bool:
        """Whether a roll forward has raised a fence only to look at the values; no transaction has attempt 0."""
        return (self.attempt, self.epoch) == (0, 0)

    def by_hand(self, births: Mapping[str, int], state: str, topology: str) -> dict[str, Any]:
        """Word the refusal of a fence whose txid was raised by hand; empty: as far as is known it was not.

        :param births: per birth, the txid of its transaction.
        """
        own = births.get(self.birth, self.txid) if self.birth else self.txid
        if own >= self.txid:
            return {}
        return {
            "problem": f"its fence says transaction {self.txid}, and transaction {own} has raised it: a person has "
            "changed it",
            "remedy": Remedy.of(
                "Put txid {own} back into the fence, or accept what the state holds: "
                "<airflow tx repair {topology} --state-lost {state}>",
                own=own,
                topology=topology,
                state=state,
            ),
        }

    def __str__(self) -> str:
        return f"{self.generation}/{self.txid}.{self.attempt}#{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Token:
        return cls(**value)


@dataclass(frozen=True)
class Grant:
    """The right to write one transaction's updates, as the ledger gave it.

    :param topology: name of the topology, for messages.
    :param incarnation: uuid of this life of the ledger.
    :param token: outranks every earlier grant.
    :param last_txids: per state name, the last txid that became final in it; without entry: new to this ledger.
    :param births: per state name, the birth that its fence holds if the token has another one; without entry: any.
    :param batch: the transaction's {"rows", "position", "prev"}, and whose it is, as compact JSON text, kept beside
        the fence so that a lost ledger can be rebuilt from the state.
    :param claim: the known part of the transaction's receipt before the first write, as JSON text; "" if an
        older release granted it.
    :param noted: per transactional state, what an earlier grant was about to write, as the ledger knows it: for a fence
        without this text.
    :param written: what other writes of this grant have written to the state, for the one that completes them.
    :param portions: how many those writes are, each with a chunk of its own.
    :param grants: per state, attempt and epoch of the grant of its last final transaction; without entry: unknown.
    :param over: of a repair: per state, the grant that its fence has to hold still, None: none; without entry: any.
    :param accepted: per state what people have accepted of it, as the topology record keeps it.
    """

    topology: str
    incarnation: str
    token: Token
    last_txids: Mapping[str, int]
    batch: str = "null"
    births: Mapping[str, str] = field(hash=False, default_factory=dict)
    claim: str = ""
    written: Written = NOTHING_WRITTEN
    portions: int = 0
    noted: Mapping[str, str] = field(hash=False, default_factory=dict)
    grants: Mapping[str, Sequence[int]] = field(hash=False, default_factory=dict)
    over: Mapping[str, Token | None] = field(hash=False, default_factory=dict)
    accepted: Mapping[str, Mapping[str, Any]] = field(hash=False, default_factory=dict)

    @property
    def txid(self) -> int:
        return self.token.txid

    @property
    def attempt(self) -> TransactionAttempt:
        return TransactionAttempt(self.token.txid, self.token.attempt, self.token.birth)

    @property
    def is_skip(self) -> bool:
        """Whether the transaction is skipped: no write of its own follows."""
        batch = json.loads(self.batch) or {}
        return batch.get("skip") is not None

    @property
    def has_journal_entry(self) -> bool:
        """Whether its transaction has a journal entry; also if an older release granted it, as it may have one."""
        known = self.receipt("", NOTHING_WRITTEN)
        return known is None or known.journal is not None

    def receipt(self, state: str, written: Written) -> Receipt | None:
        """Return the receipt that a state keeps once its update is complete; None if an older release granted it.

        :param written: by the write that completes it.
        """
        if not self.claim:
            return None
        return Receipt.from_json(json.loads(self.claim)).with_written(
            {state: self.written + written}
        )
