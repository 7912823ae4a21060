"""Receipts: the facts and the output of each final transaction, with the hash of the receipt before it.

A grant carries the known part of its transaction's receipt. A state adds the rows that were written to it and keeps the
receipt beside its fence. The multi that ends the transaction adds the rows written to all states and stores the receipt
in the history. Source: docs/protocol.md §10.
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
"""Maximum length of metadata as JSON, in characters. Of longer metadata, a receipt keeps only the digest."""
POSITION_KEPT = 8_192
REPLAYS_KEPT = 20
_LEFT_OUT = frozenset({"size", "unproven", "journal", "replaces", "wish", "checks", "hash"})
"""Fields that a receipt omits while they are empty, such as `unproven` for a skipped transaction."""


class Outcome(str, Enum):
    """The outcome of a final transaction."""

    COMMITTED = "COMMITTED"
    SKIPPED = "SKIPPED"
    READMITTED = "READMITTED"


class Deed(Record, frozen=True):
    """A user action: who, when and why."""

    who: str
    when: Moment
    why: str


class DeedOfAttempt(Deed, frozen=True):
    """A user action on one attempt."""

    attempt: Int


class Replayed(Record, frozen=True, omit_defaults=True):
    """An earlier attempt, with the time and the reason of its replay.

    :param rows: number of rows that the tasks of the attempt counted; None if they did not count.
    :param size: number of rows that the source counted, if no task counted them.
    :param by: the user who replayed it; None for an automatic replay.
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
    :param first: the transaction that began its chain; 0 if the replaced transaction itself began it.
    """

    txid: Int
    entry: str
    first: Int = 0

    @property
    def begins(self) -> int:
        """Return the transaction with which the chain begins."""
        return self.first or self.txid


class CheckNote(Record, frozen=True, omit_defaults=True):
    """The result of one of the committer's checks.

    :param digest: digest of the output that the check examined.
    :param severity: severity of the check; "" means "error", so that a failure refuses the commit.
    :param accepted: who accepted the failure; None if it is not accepted.
    """

    passed: bool
    found: str = ""
    digest: str = ""
    severity: str = ""
    accepted: Deed | None = None


class Written(Record, frozen=True, omit_defaults=True):
    """The rows that one transaction, or a part of the transaction, wrote to a state.

    :param keys: number of written keys, or of rows if the state is a table.
    :param digest: digest of these rows, in any order: 16 hex digits.
    :param sums: total of each summed value column that has only whole numbers.
    :param left: whether a restatement left the state untouched, because the state's content had been accepted by hand.
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
    """The rows that a task read and emitted, across all its instances.

    :param rows: number of rows that the task read; None if it did not count.
    :param outputs: number of rows that the task wrote to each output.
    :param digests: digest of each output's rows, if all instances hashed them in the same form. The batch's digest has
        the key "".
    """

    instances: Int
    rows: Int | None
    outputs: dict[str, Int | None]
    digests: dict[str, str] = field(default_factory=dict)


class Code(Record, frozen=True, omit_defaults=True):
    """The code that processed a batch: the version of its DAG, and the digest of the code of each task."""

    dag_version: str | None = None
    tasks: dict[str, str] = field(default_factory=dict)


class TransactionFacts(Record, frozen=True, kw_only=True):
    """The facts that the record and the receipt of a transaction share.

    :param epoch: epoch of its last grant. The token of that grant consists of epoch, txid, attempt, nonce and birth.
    :param birth: random id of the transaction, the same for all attempts; "" if unknown. A ledger that was set back can
        repeat a txid, but not a birth.
    :param replays: the most recent earlier attempts, oldest first.
    :param lost: description of the rows before the batch that were accepted as lost.
    :param changed: who requested that its rows be decided again, when and why, and the attempt whose rows the new ones
        replace.
    :param skip: who requested its skip, when and why.
    :param size: number of rows or files that the source counted in the batch, and the reason for the batch size.
    :param journal: name of the journal entry with its contribution; None if there is none.
    :param replaces: the `txid` and the `entry` of the transaction that it restates; None if it is no restatement.
    :param wish: who requested the restatement, when and why.
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
        """Return the transaction that this one restates. Return None if this one is not a restatement."""
        return None if self.replaces is None else self.replaces.txid

    def facts(self) -> dict[str, Any]:
        """Return these facts by field name, for another record with the same fields."""
        return {name: getattr(self, name) for name in TransactionFacts.__struct_fields__}


class Receipt(TransactionFacts, frozen=True, kw_only=True):
    """The permanent record of a final transaction. Its `size` is {} if the source did not count.

    :param outcome: COMMITTED or SKIPPED.
    :param granted: time of its last grant.
    :param metadata: metadata of the batch, which identifies its rows. For long values of this field, `before` and
        `after`, only the digest is kept.
    :param before: the position of the source before the batch.
    :param after: the position of the source after the batch.
    :param rows: number of rows that the tasks read from the batch; None if not counted.
    :param digest: the digests of these rows, one for each hash method.
    :param tasks: number of rows that each task read and wrote.
    :param code: the code that processed the batch.
    :param previous: the hash of the previous receipt; "" if there is none.
    :param written: the rows that were written to each state.
    :param unproven: reasons why there is no proof that its tasks read every row once, one line each; None for a skip.
    :param checks: result of each check of the committer, by its name. None if the committer has no checks.
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
        """Whether a table removed the rows of the restated transaction. A replay cannot restore them."""
        return self.replaces is not None and self.skip is None

    @property
    def text(self) -> str:
        """Return the receipt as canonical JSON, so that equal receipts have equal texts."""
        return dumps(self.said())

    def said(self) -> dict[str, Any]:
        """Return the fields of the receipt as plain JSON, without the hash."""
        return as_said(as_plain(replace(self, stored_hash="")))

    @property
    def hash(self) -> str:
        return hash_of(self.text)

    def hashed(self) -> Receipt:
        """Return the receipt with its hash, as stored in the history."""
        return replace(self, stored_hash=self.hash)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the receipt and its hash as plain JSON."""
        return {**self.said(), "hash": self.hash}

    @classmethod
    def from_json(cls, value: Any, *, path: str = "a receipt") -> Receipt:
        """Create a receipt from the JSON of `to_json` or of `text`. The hash is not compared.

        :param path: location of the receipt, for the error.
        :raises UnreadableRecord: the value is not a receipt, or has a different format.
        """
        found = value.get("format", RECEIPT_FORMAT) if isinstance(value, Mapping) else None
        if found not in (RECEIPT_FORMAT, None):
            reason = f"the receipt has format {found!r}, this version reads format {RECEIPT_FORMAT}"
            raise UnreadableRecord(path=path, reason=reason)
        return read_as(cls, value, path)

    def with_written(self, written: Mapping[str, Written]) -> Receipt:
        """Return the receipt with these rows as written to the states. Its hash changes."""
        return replace(self, written=dict(written), stored_hash="")

    def differences(self, other: Receipt) -> list[str]:
        """Return the names of the fields in which two receipts differ."""
        one, two = self.said(), other.said()
        names = (each.name for each in structs.fields(self))
        return [name for name in names if dumps(one.get(name)) != dumps(two.get(name))]


class FenceBatch(Record, frozen=True, omit_defaults=True):
    """The facts of a transaction that a fence keeps, so that a lost ledger can be rebuilt from the fences.

    :param granted: time at which the turn was granted.
    :param skip: who skipped the transaction, when and why; None if it is committed.
    :param rows: metadata of the batch.
    :param position: the position of the source after the batch.
    :param prev: the position of the source before the batch.
    :param outputs: outputs that will be written, by transactional state. A later grant compares its own outputs with
        them.
    :param journal: name of its journal entry; None if there is none.
    :param replaces: the transaction that it restates; None if it is no restatement.
    :param change: number of the newest accepted change that the values of the state include; 0 if none is known.
    :param was_empty: whether the state was empty before this transaction, if this is its first one. None if it is a
        later one, or if unknown.
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
        """Return the facts as the text stored in a fence."""
        return dumps(as_plain(self))

    @classmethod
    def of_text(cls, text: str) -> FenceBatch | None:
        """Parse the facts from a fence's text. Return None if the text has a different form."""
        try:
            return read_as(cls, json.loads(text), "a fence")
        except (ValueError, UnreadableRecord):
            return None


def as_said(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without the empty ones that a receipt omits."""
    return {
        name: each
        for name, each in plain.items()
        if each not in (None, "") or name not in _LEFT_OUT
    }


def restated(receipts: Mapping[int, Receipt]) -> dict[int, int]:
    """Return, for each restated transaction, the transaction that counts now.

    :param receipts: receipts by txid. If they include a restated transaction, they must include all later receipts.
    """
    found = dict[int, int]()
    # Start with the newest transaction, since a restatement may itself be restated.
    for txid in sorted(receipts, reverse=True):
        receipt = receipts[txid]
        if receipt.replaces is not None and receipt.outcome == Outcome.COMMITTED.value:
            found[receipt.replaces.txid] = found.get(txid, txid)
    return found


def hash_of(text: str) -> str:
    """Return the hash of a receipt's text, as 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


REJECTED = "tx_rejected"
"""The name prefix of outputs with rejected rows."""
MALFORMED = "tx_malformed"
"""The name of the output that keeps malformed rows, and of the column that keeps their texts."""
ASIDE = (REJECTED, MALFORMED)


def rejected_of(tasks: Mapping[str, TaskRows]) -> dict[str, tuple[int | None, int]]:
    """Return how many rows each task read and kept aside. Tasks without rejected rows are omitted.

    :param tasks: the result of `tasks_of`.
    :return: number of rows read (None if not counted) and number of rows kept aside, by task.
    """
    aside = {
        task: sum(rows or 0 for name, rows in each.outputs.items() if name.startswith(ASIDE))
        for task, each in tasks.items()
    }
    return {task: (tasks[task].rows, rows) for task, rows in aside.items() if rows}
