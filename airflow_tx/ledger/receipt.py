"""Receipts: what a transaction was and what it wrote, each with the hash of the one before it.

A grant carries the known part of the receipt of its transaction. A state adds its rows and keeps it beside its
fence. The multi that ends the transaction adds what all states were given and keeps it in the history. Source:
docs/protocol.md §10.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.json_text import dumps
from airflow_tx.ledger.records import Ack, Outcome
from airflow_tx.ledger.row_digest import MODULUS, RowsDigest

RECEIPT_FORMAT = 1
METADATA_KEPT = 16_384
"""Characters of JSON; of longer metadata a receipt keeps the digest. All receipts of the history are in ZooKeeper."""
POSITION_KEPT = 8_192
REPLAYS_KEPT = 20
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
        total = (int(self.digest, 16) + int(other.digest, 16)) % MODULUS
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
