"""Receipts: what a transaction was and what it wrote, each with the hash of the one before it.

A grant carries the known part of the receipt of its transaction. A state adds its rows and keeps it beside its
fence. The multi that ends the transaction adds what all states were given and keeps it in the history. Source:
docs/protocol.md §10.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Literal

from msgspec import field, structs

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.json_text import (
    Int,
    Moment,
    Record,
    Size,
    as_plain,
    dumps,
    read_as,
    replace,
)
from airflow_tx.ledger.row_digest import MODULUS

RECEIPT_FORMAT: Final = 1
METADATA_KEPT = 16_384
"""Characters of JSON; of longer metadata a receipt keeps the digest. All receipts of the history are in ZooKeeper."""
POSITION_KEPT = 8_192
REPLAYS_KEPT = 20
_LEFT_OUT = frozenset({"size", "unproven", "journal", "replaces", "wish", "checks", "hash"})
"""Fields that are not written where they say nothing: a skip has no `unproven`."""


class Outcome(str, Enum):
    """What became of a final transaction."""

    COMMITTED = "COMMITTED"
    SKIPPED = "SKIPPED"
    READMITTED = "READMITTED"


class Deed(Record, frozen=True):
    """Who did something, when and why."""

    who: str
    when: Moment
    why: str


class DeedOfAttempt(Deed, frozen=True):
    """An action of a person on one attempt."""

    attempt: Int


class Replayed(Record, frozen=True, omit_defaults=True):
    """An earlier attempt, and when and why it was replayed.

    :param rows: how many rows it had, if they were counted; `size`: else what the source counted.
    :param by: which person replayed it; None: no person did.
    """

    attempt: Int
    when: Moment
    why: str
    rows: Int | None = None
    size: dict[str, Any] = field(default_factory=dict)
    by: Deed | None = None


class Replaced(Record, frozen=True, omit_defaults=True):
    """The transaction that a restatement replaces.

    :param entry: the name of its journal entry.
    :param first: the transaction that began its chain; 0: it did so itself.
    """

    txid: Int
    entry: str
    first: Int = 0

    @property
    def begins(self) -> int:
        """Name the transaction with which the chain begins."""
        return self.first or self.txid


class CheckNote(Record, frozen=True, omit_defaults=True):
    """The finding of a check of the committer.

    :param digest: of the output that it looked at.
    :param severity: "" if its failure refuses the commit.
    :param accepted: who accepted its failure.
    """

    passed: bool
    found: str = ""
    digest: str = ""
    severity: str = ""
    accepted: Deed | None = None


class Written(Record, frozen=True, omit_defaults=True):
    """The rows that a state got in one transaction, or in a part of it.

    :param keys: how many keys were written; rows, if the state takes them unchanged.
    :param digest: of the rows that it got, in any order: 16 hex digits.
    :param sums: of value columns that are added up, where all their values were whole numbers.
    :param left: whether a restatement has passed the state over: what it held was accepted.
    """

    keys: int
    digest: str
    sums: dict[str, int] = field(default_factory=dict)
    left: bool = False

    def __add__(self, other: Written) -> Written:
        total = (int(self.digest, 16) + int(other.digest, 16)) % MODULUS
        left = self.left or other.left
        return Written(self.keys + other.keys, f"{total:016x}", self._sums_with(other), left)

    def _sums_with(self, other: Written) -> dict[str, int]:
        if not self.keys or not other.keys:
            return self.sums or other.sums
        both = self.sums.keys() & other.sums.keys()
        return {name: self.sums[name] + other.sums[name] for name in both}


NOTHING_WRITTEN = Written(0, "0" * 16)


class TaskRows(Record, frozen=True, omit_defaults=True):
    """The rows that a task read and emitted, all its instances together.

    :param rows: how many it read; None: not counted. `outputs`: how many it emitted, by output.
    :param digests: of these by output, "" for the batch, where all were hashed in one form.
    """

    instances: Int
    rows: Int | None
    outputs: dict[str, Int | None]
    digests: dict[str, str] = field(default_factory=dict)


class Code(Record, frozen=True, omit_defaults=True):
    """What processed a batch: the version of its DAG, and by task the digest of the code that it ran."""

    dag_version: str | None = None
    tasks: dict[str, str] = field(default_factory=dict)


class TransactionFacts(Record, frozen=True, kw_only=True):
    """What both the record and the receipt of a transaction say.

    :param epoch: with txid, attempt, nonce and birth the token of its last grant, once it has one.
    :param birth: random, kept by every attempt: a ledger that went back gives a txid twice, never a birth; "": unknown.
    :param replays: of each earlier attempt, when and why it was replayed, its `rows` if they were counted, else its
        `size`, `by` which person; the last ones of many.
    :param lost: rows of the source that come before the batch and were accepted as lost, in words.
    :param changed: who let its rows be decided again, when and why, and the attempt whose rows they replace.
    :param skip: who wants it skipped, or skipped it, when and why.
    :param size: how many rows the source counted in the batch, and why it took so many; of files, how many files.
    :param journal: name of the journal entry with its contribution; None: there is none.
    :param replaces: the `txid` and the `entry` of the transaction that it restates; None: it is no restatement.
    :param wish: who wanted that restatement, when and why.
    """

    txid: Int
    key: str
    run_id: str
    attempt: Int
    epoch: Int
    birth: str = ""
    nonce: str = ""
    replays: list[Replayed] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    changed: list[DeedOfAttempt] = field(default_factory=list)
    skip: Deed | None = None
    size: Size | None = None
    journal: str | None = None
    replaces: Replaced | None = None
    wish: Deed | None = None

    @property
    def restates(self) -> int | None:
        """Name the transaction that it restates; None: it is no restatement."""
        return None if self.replaces is None else self.replaces.txid

    def facts(self) -> dict[str, Any]:
        """Give these facts by name, for another value that says them, too."""
        return {name: getattr(self, name) for name in TransactionFacts.__struct_fields__}


class Receipt(TransactionFacts, frozen=True, kw_only=True):
    """What one transaction was. Its `size` is {} if the source counted none.

    :param outcome: COMMITTED or SKIPPED.
    :param granted: when its last grant was given.
    :param metadata: exactly which rows; `before` and `after`: where the source stood. `Longer` values as a digest.
    :param rows: how many rows of the batch its tasks read, if they counted; `digest`: of these, by each way to hash.
    :param tasks: per task what it read and what it emitted.
    :param code: what processed it.
    :param previous: the hash of the receipt before it; "" if there is none.
    :param written: per state what it was given, as `Written.to_json` gives it.
    :param unproven: why the rows that its tasks consumed are not proven, one line each; None: of a skip.
    :param checks: per check of the committer whether it `passed`, else what it `found`, its `severity` if that is not
        "error", and who `accepted` it; None: the committer has none.
    """

    topology: str
    incarnation: str
    generation: Int
    outcome: str
    granted: str
    metadata: Any
    before: Any
    after: Any
    previous: str
    rows: Int | None = None
    digest: str = ""
    tasks: dict[str, TaskRows] = field(default_factory=dict)
    code: Code = field(default_factory=Code)
    written: dict[str, Written] = field(default_factory=dict)
    format: Literal[1] = RECEIPT_FORMAT
    unproven: list[str] | None = None
    checks: dict[str, CheckNote] | None = None
    stored_hash: str = field(name="hash", default="")

    @property
    def takes_out(self) -> bool:
        """Whether a table has taken out the rows of another transaction with it, which nothing brings back."""
        return self.replaces is not None and self.skip is None

    @property
    def text(self) -> str:
        """Write it as canonical JSON: equal receipts have equal texts."""
        return dumps(self.said())

    def said(self) -> dict[str, Any]:
        """Give its fields as plain JSON, without a hash."""
        return as_said(as_plain(replace(self, stored_hash="")))

    @property
    def hash(self) -> str:
        return hash_of(self.text)

    def hashed(self) -> Receipt:
        """Return it as the history keeps it: with its hash."""
        return replace(self, stored_hash=self.hash)

    def to_json(self) -> dict[str, Any]:
        """Give its fields and its hash as plain JSON."""
        return {**self.said(), "hash": self.hash}

    @classmethod
    def from_json(cls, value: Any, *, path: str = "a receipt") -> Receipt:
        """Read what `to_json` gave, or the JSON of its text; the hash is not compared.

        :param path: its place, for the error.
        :raises UnreadableRecord: it is none, or of another format.
        """
        found = value.get("format", RECEIPT_FORMAT) if isinstance(value, Mapping) else None
        if found not in (RECEIPT_FORMAT, None):
            reason = f"the receipt has format {found!r}, this version reads format {RECEIPT_FORMAT}"
            raise UnreadableRecord(path=path, reason=reason)
        return read_as(cls, value, path)

    def with_written(self, written: Mapping[str, Written]) -> Receipt:
        """Return the receipt of these states, which has another hash."""
        return replace(self, written=dict(written), stored_hash="")

    def differences(self, other: Receipt) -> list[str]:
        """Name the fields in which two receipts differ."""
        one, two = self.said(), other.said()
        names = (each.name for each in structs.fields(self))
        return [name for name in names if dumps(one.get(name)) != dumps(two.get(name))]


class FenceBatch(Record, frozen=True, omit_defaults=True):
    """The facts of a transaction that a fence keeps, so that a lost ledger can be rebuilt from it.

    :param granted: when its grant was given.
    :param skip: who skips it, when and why; None: it is committed.
    :param rows: exactly which rows; `position` is where the source stands after them, and `prev` where it stood before.
    :param outputs: per transactional state, what is about to be written: a later grant is compared with it.
    :param journal: name of its journal entry; None: there is none.
    :param replaces: the transaction that it restates; None: it is no restatement.
    :param change: number of the newest accepted change that the values of the state have; 0: none is known.
    :param was_empty: whether the place was empty before it; None: it was not the first one, or this is unknown.
    """

    key: str
    run_id: str
    granted: str
    skip: Deed | None
    rows: Any
    position: Any
    prev: Any
    outputs: dict[str, str] = field(default_factory=dict)
    journal: str | None = None
    replaces: Replaced | None = None
    change: int = 0
    was_empty: bool | None = field(name="began", default=None)

    @property
    def text(self) -> str:
        """Write it as a fence keeps it."""
        return dumps(as_plain(self))

    @classmethod
    def of_text(cls, text: str) -> FenceBatch | None:
        """Read what `text` wrote; None: it is another text."""
        try:
            return read_as(cls, json.loads(text), "a fence")
        except (ValueError, UnreadableRecord):
            return None


def as_said(plain: dict[str, Any]) -> dict[str, Any]:
    """Leave out the fields that a receipt has only if they say something."""
    return {
        name: each
        for name, each in plain.items()
        if each not in (None, "") or name not in _LEFT_OUT
    }


def restated(receipts: Mapping[int, Receipt]) -> dict[int, int]:
    """Name, by transaction that was restated, the one that counts now.

    :param receipts: by txid; of restated transactions, all later ones.
    """
    found = dict[int, int]()
    # Newest first: a restatement may be restated itself.
    for txid in sorted(receipts, reverse=True):
        receipt = receipts[txid]
        if receipt.replaces is not None and receipt.outcome == Outcome.COMMITTED.value:
            found[receipt.replaces.txid] = found.get(txid, txid)
    return found


def hash_of(text: str) -> str:
    """Hash the text of a receipt: 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


REJECTED = "tx_rejected"
"""The first part of the names of outputs with rows that a task has rejected."""
MALFORMED = "tx_malformed"
"""The output with the rows that do not fit the schema of the source, and the column with their texts."""
ASIDE = (REJECTED, MALFORMED)


def rejected_of(tasks: Mapping[str, TaskRows]) -> dict[str, tuple[int | None, int]]:
    """Count, per task that has kept rows aside, the rows of the batch that it read, and the rows kept aside.

    :param tasks: as `tasks_of` gives them.
    :return: of a task that has not counted what it read, None and the rows.
    """
    aside = {
        task: sum(rows or 0 for name, rows in each.outputs.items() if name.startswith(ASIDE))
        for task, each in tasks.items()
    }
    return {task: (tasks[task].rows, rows) for task, rows in aside.items() if rows}
