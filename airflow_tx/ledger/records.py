"""The records of the ledger, frozen, and their JSON with its format version. Source: docs/protocol.md §1.

A record with another format, an unknown field, or a value of another type raises an error with its path. A damaged
record never counts as an empty record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec import field

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.base.remedy import Remedy, shortened_reason, without_controls
from airflow_tx.ledger.json_text import (
    Int,
    Moment,
    PathElement,
    R,
    Record,
    as_plain,
    dumps,
    read_as,
    replace,
)
from airflow_tx.ledger.receipt import (
    CheckNote,
    Deed,
    DeedOfAttempt,
    FenceBatch,
    Outcome,
    Receipt,
    TransactionFacts,
    as_said,
)

RECORD_FORMAT = 1
MOST_OF_REASON = 1000
"""Maximum number of characters of an error, and of its remedy, that a record keeps."""

# --- parts --------------------------------------------------------------------------------------------------------
# The values inside records.


class ReplayNote(Record, frozen=True, omit_defaults=True):
    """The last automatic replay that was requested for a transaction.

    :param attempt: the attempt that will be replayed.
    :param count: number of automatic replays that were requested in a row.
    :param given_up: whether the coordinator has already given up this restatement once.
    """

    attempt: Int
    count: Int
    when: Moment
    reason: str
    given_up: bool = False


class BlockMark(Record, frozen=True):
    """The transaction that the coordinator no longer replays, and the reason."""

    txid: Int
    attempt: Int
    reason: str
    when: Moment

    def holds(self, record: TransactionRecord) -> bool:
        """Return whether the mark applies to this attempt. A mark remains for a while after a manual replay or skip."""
        return record.attempt == self.attempt and record.skip is None


class Waiter(Record, frozen=True):
    """A waiting run that offers its run slot to another run.

    :param txid: the run's transaction; None while the run waits in `begin` for one.
    :param task_try: the try of the waiting task. Later tries compare as greater.
    :param blocking: txid of the transaction whose run needs a run slot.
    :param when: time of the offer; "" if the run has made none.
    """

    run_id: str
    txid: Int | None
    task_try: str
    blocking: Int
    when: Moment = ""

    @property
    def rank(self) -> tuple[bool, int, str]:
        """The rank of the offer. The waiting run with the highest rank yields."""
        return (self.txid is None, self.txid or 0, self.task_try)


class Yield(Record, frozen=True):
    """A run that has yielded its run slot to the run of transaction `blocking`.

    :param txid: the transaction of the yielding run; None if it had none.
    """

    blocking: Int
    txid: Int | None
    when: Moment


class RollingNote(Deed, frozen=True, omit_defaults=True):
    """A roll forward that has begun but is not complete.

    :param found: the last transaction that each rewritten state had before the roll forward.
    :param nonces: the nonce of each run of the command, oldest first.
    :param holes: transactions whose rows are not in the journal, by table.
    """

    found: dict[str, Int]
    nonces: list[str]
    generation: Int
    holes: dict[str, list[Int]] = field(default_factory=dict)


class BatchRows(Record, frozen=True):
    """The number of rows of a batch, and their digests. They must be the same for all tasks that read the batch.

    :param digests: one digest for each hash method, since Spark and Python hash rows differently.
    """

    rows: Int
    digests: dict[str, str] = field(default_factory=dict)


class Restating(Record, frozen=True):
    """The restatement that a run has begun for another transaction."""

    txid: Int
    birth: str


# --- records ------------------------------------------------------------------------------------------------------


class Phase(str, Enum):
    """The phase of an open transaction. A final transaction has no phase."""

    PROCESSING = "PROCESSING"
    PROCESSED = "PROCESSED"
    COMMITTING = "COMMITTING"
    FAILED = "FAILED"


class TopologyRecord(Record, frozen=True):
    """The facts that apply to the whole topology and all its transactions.

    :param incarnation: uuid of this ledger. A state whose fence has a different one is refused.
    :param generation: a number that every repair raises.
    :param states: the last final transaction that raised the fence of a state, by state.
    :param births: the birth in the fence of a state, by state. It is the birth of the last final transaction, or one
        that a rebuild set.
    :param rebuilt: the last final txid when the ledger was rebuilt; 0 if it never was. Transactions up to this one are
        unknown unless the history has them.
    :param partitioned: whether the source has partitions.
    :param blocked: the transaction that the coordinator no longer replays, and the reason.
    :param bid: the waiting run that will yield its run slot next.
    :param yielded: runs that yielded their run slots and will be started again, by run_id.
    :param yields: total number of times that a run yielded its run slot.
    :param skips: the open transactions that will be skipped at their turn, in order.
    :param pace: number of rows and processing seconds of each recently committed transaction. A third item names the
        unit if it is not rows.
    :param hours: number of transactions that became final in each of the last hours. The key is the hour in UTC, such
        as 2013-01-01T17.
    :param losses: numbers of the repairs that accepted lost rows. A number is removed once the source's position is
        after all rows of that repair.
    :param accepted: facts about each state with which its fence is compared. `change` is the number of its newest
        accepted change. An accepted loss adds the `generation` after it and the `fence` that the user saw (None if
        there was none). `whole` is whether the state had its last transaction completely. `began` is the first
        transaction of a state that was empty before it. It is 0 if the state was not empty, and missing if that is
        unknown. `emptied` is the first transaction after an accepted loss that left the state empty.
    :param garbage: paths of obsolete records that are not deleted yet, relative to the topology's folder.
    :param receipt: hash of the last receipt; "" if there is none.
    :param origin: the position of the source before the first transaction.
    :param renamed: current names of renamed states, by earlier name.
    :param zone: the time zone of the DAG's schedule, which decides when a day begins; "" is UTC.
    :param grants: attempt and epoch of the last final transaction's grant, by state.
    :param rolling: the roll forward in progress; None if there is none.
    :param columns: value columns of each state, with the first transaction that wrote to the column. 0 means that the
        column is as old as the state.
    :param book: the first transaction with a line in the book of ends; 0 if the topology keeps no book.
    :param upstream: the topology whose table the source reads; "" if the source reads something else.
    """

    incarnation: str
    dag_id: str
    source_kind: str
    max_pending: Int
    generation: Int = 1
    states: dict[str, Int] = field(default_factory=dict)
    op: str = ""
    partitioned: bool = False
    blocked: BlockMark | None = None
    bid: Waiter | None = None
    yielded: dict[str, Yield] = field(default_factory=dict)
    yields: Int = 0
    skips: list[Int] = field(default_factory=list)
    pace: list[list[Any]] = field(default_factory=list)
    hours: dict[str, Int] = field(default_factory=dict)
    losses: list[Int] = field(default_factory=list)
    accepted: dict[str, Any] = field(default_factory=dict)
    births: dict[str, str] = field(default_factory=dict)
    rebuilt: Int = 0
    garbage: list[str] = field(default_factory=list)
    receipt: str = ""
    origin: Any = None
    renamed: dict[str, str] = field(default_factory=dict)
    zone: str = ""
    grants: dict[str, list[Int]] = field(default_factory=dict)
    rolling: RollingNote | None = None
    columns: dict[str, dict[str, Int]] = field(default_factory=dict)
    book: Int = 0
    upstream: str = ""

    def is_blocked(self, txid: int) -> bool:
        """Return whether the coordinator no longer replays this transaction."""
        return self.blocked is not None and self.blocked.txid == txid


class Counter(Record, frozen=True):
    """The record of a counter: `coordinator/current` or `coordinator/allocated`."""

    txid: Int


class Binding(Record, frozen=True):
    """The record `runs/<key>`: the txid of a run key. Which txid counts changes only when a transaction ends.

    :param entry: name of the journal entry of this transaction; "" if there is none.
    :param restating: the `txid` and the `birth` of the transaction that began to restate this one. If no record has
        that birth, the restatement was skipped or lost, and this transaction still counts.
    """

    txid: Int
    entry: str = ""
    restating: Restating | None = None


class Metadata(Record, frozen=True):
    """The record of a transaction's rows and the source's position after them.

    :param rows: the metadata of the batch.
    :param partitions: always None; the field is part of the format.
    :param begin: first position of each partition without an earlier position. Replays of an opaque source use it.
    """

    attempt: Int
    rows: Any
    position: Any
    partitions: None = None
    begin: Any = None


class TakenRange(Record, frozen=True, omit_defaults=True):
    """The upstream transactions that a batch reads. A range is the metadata of the batch, and a part of its line.

    :param ends: the restatement that counts, by the transaction that begins the chain.
    :param counts: number of rows in the table, by the transaction that counts. A line omits them.
    :param incarnation: incarnation of the upstream ledger. A line omits it.
    :param birth: birth of the `last` transaction. A line omits it.
    :param again: whether the batch was readmitted; set only in a line.
    """

    first: Int
    last: Int
    ends: dict[str, Int] = field(default_factory=dict)
    counts: dict[str, Int] = field(default_factory=dict)
    incarnation: str = ""
    birth: str = ""
    again: bool = False

    @classmethod
    def of(cls, metadata: Any) -> TakenRange:
        """Read the range from the metadata of a batch.

        :raises UnreadableRecord: the batch belongs to another kind of source.
        """
        return read_as(cls, metadata, "the metadata of the batch")

    def to_json(self) -> Any:
        """Return the range as the metadata of a batch."""
        return as_plain(self)

    def in_line(self, *, again: bool) -> TakenRange:
        """Return the range with the fields that a line keeps."""
        return TakenRange(self.first, self.last, self.ends, again=again)

    def __str__(self) -> str:
        """Format the range, such as `5 to 9`."""
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"

    def end_of(self, txid: int) -> int:
        """Return the transaction that counts for the beginning of a chain."""
        return self.ends.get(str(txid), txid)


class EndLine(Record, frozen=True, omit_defaults=True):
    """A final transaction's line in the book of ends.

    :param outcome: COMMITTED or SKIPPED; None if a repair took the transaction back.
    :param rows: number of rows or keys written to each state. States without rows are left out.
    :param first: the transaction that begins the chain of this restatement; 0 if this transaction is no restatement.
    :param end: the restatement that counts for this transaction, if it begins a chain; 0 if the transaction itself
        counts.
    :param taken: the upstream range that its batch read, if the topology reads another topology's table.
    """

    txid: Int
    birth: str
    key: str
    outcome: Outcome | None = None
    rows: dict[str, Int] = field(default_factory=dict)
    first: Int = 0
    end: Int = 0
    taken: TakenRange | None = None

    @property
    def counts(self) -> bool:
        """Whether the transaction is committed and begins a chain, so that the end of this chain counts."""
        return self.outcome is Outcome.COMMITTED and not self.first


class BookPage(Record, frozen=True):
    """The record `ends/<number>`: the lines of consecutive transactions, in the order of the txids."""

    lines: list[EndLine]


class End(Record, frozen=True, omit_defaults=True):
    """The outcome of a final transaction, and when it became final.

    :param readmitted_as: txid that now has the rows of this skipped transaction.
    """

    outcome: Outcome
    when: Moment
    readmitted_as: Int | None = None


class TransactionRecord(TransactionFacts, frozen=True, kw_only=True, omit_defaults=True):
    """The record of one transaction: `transactions/<txid>` while it is open, `history/<txid>` afterwards.

    Source: docs/protocol.md §1.

    :param request: the try of the last `begin`.
    :param epoch: a number that each grant and each restart raises. It never gets smaller while the txid stays.
    :param op: nonce of the last step, which identifies a write whose response was lost.
    :param granted: whether any attempt has ever had a grant.
    :param receipt: the part of the receipt that was known at the last grant.
    :param base: digest of the position of the source before the batch.
    :param ended: digest of the position of the source after the batch.
    :param pinned: whether the batch was readmitted. Its rows stay the same unless a user requests that they be decided
        again.
    :param yielded: txid of the transaction whose run got this run's slot.
    :param replay: the last automatic replay that was requested.
    :param asked: who requested the last manual replay, when, why, and for which attempt.
    :param tasks: the tasks that must ack, each with the id of the message that `begin` emitted for it (16 hex digits).
    :param rows_digest: digest of the batch's rows.
    :param outputs: outputs that a grant was about to write, as texts from `output_text`, by transactional state.
    :param fenced: names of the states to which a grant was about to write.
    :param by_phase: whether several tasks hold the last grant one after another.
    :param error: the failure of the last try, until another try begins.
    :param remedy: the remedy of that failure.
    :param failed_task: the task that failed with `error`; "" if no single task failed.
    :param acks: name of the folder with the acks of this attempt. It is unique across all lives of a ledger.
    :param counted: the number and the digests of the rows of its first complete attempt.
    :param for_good: generation of the ledger in which `error` refused the commit permanently; 0 if no error did.
    :param repairable: whether the `error` of a restatement can end after a repair or once a store recovers.
    :param checks: the failed checks by name, each with its finding (`found`), the `digest` of the output, and who
        `accepted` it.
    :param end: outcome and time of the end; None while the transaction is open.
    """

    nonce: PathElement = ""
    request: PathElement
    op: str
    phase: Phase
    base: str
    ended: str
    rows_digest: str
    created: Moment
    began: Moment
    tasks: dict[str, str] = field(default_factory=dict)
    granted: bool = False
    pinned: bool = False
    yielded: Int | None = None
    replay: ReplayNote | None = None
    failures: Int = 0
    outputs: dict[str, str] = field(default_factory=dict)
    fenced: list[str] = field(default_factory=list)
    by_phase: bool = False
    processed: Moment | None = None
    granted_at: Moment | None = None
    error: str | None = None
    acks: PathElement = ""
    receipt: Receipt | None = None
    counted: BatchRows | None = None
    remedy: Remedy | None = None
    for_good: Int = 0
    asked: DeedOfAttempt | None = None
    checks: dict[str, CheckNote] = field(default_factory=dict)
    repairable: bool = False
    failed_task: str = ""
    end: End | None = None

    @classmethod
    def unknown(cls, txid: int, **known: Any) -> TransactionRecord:
        """Create the record of a transaction from the few known facts."""
        rest: dict[str, Any] = dict.fromkeys(
            "key run_id request op base ended rows_digest created began".split(), ""
        )
        rest |= {"attempt": 0, "epoch": 0, "phase": Phase.PROCESSING}
        return cls(txid=txid, **{**rest, **known})

    @property
    def final(self) -> End:
        """Return the end of a final transaction.

        :raises UnreadableRecord: a record in the history has no end.
        """
        if self.end is None:
            raise UnreadableRecord(path=f"history/{self.txid}", reason="it is still open")
        return self.end

    def with_outcome(self, outcome: Outcome, readmitted_as: int | None = None) -> TransactionRecord:
        """Return the record with another outcome, once the rows no longer count or belong to another transaction."""
        end = replace(self.final, outcome=outcome, readmitted_as=readmitted_as)
        return replace(self, end=end)

    @property
    def rows(self) -> int | None:
        """Return how many rows of the batch the tasks read. Return None without a receipt or without a count."""
        return None if self.receipt is None else self.receipt.rows

    @property
    def digest(self) -> str:
        """Return the digests of the batch's rows, one per hash method, as one text. Return "" if there are none."""
        return "" if self.counted is None else " ".join(sorted(self.counted.digests.values()))

    @property
    def status(self) -> str:
        """Return the phase while the transaction is open, and the outcome afterwards."""
        return self.phase.value if self.end is None else self.end.outcome.value

    def at_end(self, op: str, end: End, receipt: Receipt) -> TransactionRecord:
        """Return the final record, without fields that only its tries needed and fields that its receipt repeats."""
        return replace(
            self.without_failure(),
            op=op,
            end=end,
            receipt=receipt.hashed(),
            skip=None if end.outcome is Outcome.COMMITTED else self.skip,
            tasks={},
            outputs={},
            fenced=[],
            acks="",
            checks={},
            asked=None,
            replay=None,
            yielded=None,
            pinned=False,
        )

    @property
    def accepted_checks(self) -> dict[str, CheckNote]:
        """Return the checks whose failures were accepted, since a later attempt may have the same output."""
        return {name: each for name, each in self.checks.items() if each.accepted is not None}

    def without_failure(self) -> TransactionRecord:
        """Return the record without the last failure, because another try has begun or no try is needed."""
        return replace(self, error=None, failed_task="", remedy=None, for_good=0, repairable=False)

    def with_failure(
        self,
        op: str,
        reason: str,
        remedy: Remedy | None,
        *,
        repairable: bool,
        failed_task: str = "",
    ) -> TransactionRecord:
        """Return the record with a failure to display: the problem, the failed task and the remedy."""
        return replace(
            self,
            failures=self.failures + 1,
            error=_kept(reason),
            failed_task=failed_task,
            remedy=None if remedy is None else remedy.worded(_kept),
            repairable=repairable and self.replaces is not None,
            op=op,
        )

    @property
    def said(self) -> str:
        """Describe the failure, with the name of its task. Return "" if there is no failure."""
        return Remedy.behind(self.error, task=self.failed_task)

    @property
    def failure(self) -> str:
        """Describe the failure as a clause for another sentence."""
        return (self.said or "no reason noted").removesuffix(".")

    @property
    def to_change(self) -> DeedOfAttempt | None:
        """Return who requested different rows for this attempt.

        Return None if there is no request, or a newer attempt exists.
        """
        return next((each for each in self.changed if each.attempt == self.attempt), None)


class Ack(Record, frozen=True):
    """The ack of one task or mapped instance of the newest attempt: its contribution to the ack val, and its output.

    :param emitted: id of the message of a mapped instance, as 16 hex digits. No other record has this id.
    :param acked: the message id that the instance acked when it was done: `emitted`, or the id that `begin` emitted for
        the task.
    :param rows: number of rows that the task read; None if it did not count.
    :param trees: number of message trees that this try began.
    :param outputs: references to the outputs of the task.
    :param read: the rows that the try read, in the form of `RowsRead.to_json`.
    :param code: digest of the code of the task.
    :param unproven: reasons why it is not proven that the try read every row once, one line each.
    """

    task_try: str
    op: str
    emitted: str = "0"
    acked: str = "0"
    done: bool = False
    rows: Int | None = None
    outputs: list[Any] = field(default_factory=list)
    trees: Int = 0
    read: list[dict[str, Any]] = field(default_factory=list)
    code: str = ""
    unproven: list[str] = field(default_factory=list)


class Skipped(Record, frozen=True):
    """The record `skipped/<txid>`: the facts that are needed to readmit a skipped transaction.

    :param rows: metadata of its batch. None for a restatement, and after the readmission.
    :param skip: who skipped it, when and why.
    :param readmit: who requested the readmission of the transaction, when and why.
    :param readmitted_as: the transaction that has the rows now.
    :param replaces: the transaction that the skipped one restated. It still counts, so the skipped rows cannot be
        readmitted.
    """

    key: str
    run_id: str
    rows: Any
    skip: Deed
    op: str
    readmit: Deed | None = None
    readmitted_as: Int | None = None
    replaces: Int | None = None


class Loss(Record, frozen=True, omit_defaults=True):
    """Lost rows: rows that should come next in a source, but that the source no longer has.

    :ivar partition: "" for a source without partitions.
    :ivar position: the position of the partition before the lost rows.
    :ivar resume_at: the position at which the source has rows again.
    :ivar description: description of the lost rows.
    :ivar went_back: whether the source was reset to an earlier position, so that it will repeat rows of earlier
        batches.
    """

    partition: str
    position: Any = field(name="place")
    resume_at: Any = field(name="goes_on")
    description: str = field(name="what")
    went_back: bool = False


class RepairRecord(Record, frozen=True):
    """The record `repairs/<number>`: a manual change of the ledger.

    The fields of `change` depend on `what`:

    * `accept-change`: the `state`, the last final `txid`, and the difference of the total of each of its `columns`. For
      a table, the number of `rows` that each changed transaction has. The digests of the deleted `keys`, and `unknown`
      if some of them are not known.
    * `state-lost`, `state-forgotten`: the `state` and the current `txid`. If the state was inspected: the token in its
      `fence`, its last transaction (`found`), and its newest accepted `change`.
    * `state-renamed`: the `state`, its new name (`to`), and the current `txid`.
    * `ledger-lost`: the current `txid`, and the last transaction that each of the `states` certainly has.
    * `reset`: the new `incarnation`.
    * `roll-forward`: the `states`, the `nonces` of the runs, and the withdrawn changes (`unchanged`).
    * `ends`: the `first` transaction with a line.
    * `accept-code`: the digest of the `code` of each task ("" if the task is gone), and the last `txid` whose different
      code is accepted.

    :param what: kind of the repair, such as `state-lost` or `ends`. `told` describes the finding and the result.
    :param generation: generation of the ledger after the repair.
    :param change: facts about the repair, as listed above.
    :param losses: the accepted lost rows, for `accept-loss`.
    """

    number: Int
    what: str
    who: str
    when: Moment
    why: str
    told: str
    generation: Int
    op: str
    losses: list[Loss] = field(default_factory=list)
    change: dict[str, Any] = field(default_factory=dict)


class Wish(Record, frozen=True):
    """The record `wanted/<txid>`: a requested restatement that no run has begun yet.

    :param key: the run key of the run. Its next `begin` restates the transaction.
    :param changed_rows: whether the restatement processes the rows' current content instead of the original rows.
    """

    txid: Int
    key: str
    run_id: str
    who: str
    when: Moment
    why: str
    op: str
    changed_rows: bool = False


class Followed(Record, frozen=True):
    """The record `follow`: how far the upstream topology's corrections were compared.

    :param incarnation: incarnation of the upstream topology. A different incarnation has different transactions.
    :param txid: the last upstream transaction that was compared. Every transaction that lacks a correction up to `txid`
        has a record in `behind`.
    :param birth: birth of that transaction. A different birth means that the upstream ledger was set back.
    """

    incarnation: str
    txid: Int
    birth: str
    op: str


class Behind(Record, frozen=True):
    """The record `behind/<txid>`: a committed transaction that lacks corrections of the upstream topology.

    :param txid: the transaction that begins the chain.
    :param ends: the end that counts now, by the upstream transaction that begins the chain.
    :param when: time at which the missing corrections were found.
    :param why: reason why no restatement was requested for these ends; "" if one was requested.
    """

    txid: Int
    ends: dict[str, Int]
    when: Moment
    why: str
    op: str

    def is_of(self, ends: Mapping[int, int]) -> bool:
        """Return whether the record lists exactly these ends."""
        return self.ends == {str(txid): end for txid, end in ends.items()}


class AlarmNote(Record, frozen=True, omit_defaults=True):
    """A raised alert.

    :param of: the subject of the alert.
    :param when: when it was raised.
    :param dag_id: dag_id of the run that fails while the alert is raised; "" if there is no such run.
    :param run_id: run id of that run.
    """

    of: str
    when: Moment = ""
    dag_id: str = ""
    run_id: str = ""


class RaisedAlarms(Record, frozen=True):
    """The raised alerts of a topology, by kind."""

    raised: dict[str, AlarmNote] = field(default_factory=dict)
    op: str = ""


class WatcherRecord(Record, frozen=True):
    """The record of a watcher: the last transaction that the watcher passed to Airflow.

    :param incarnation: incarnation of the ledger. A different incarnation has different transactions.
    :param txid: the last transaction that was passed to Airflow.
    """

    incarnation: str
    txid: Int
    op: str = ""


def encode(record: Record) -> bytes:
    """Return a record as compact, sorted JSON with its format version."""
    plain = as_plain(record)
    said = {name: each for name, each in plain.items() if each or name not in _LEFT_OUT}
    for name in _RECEIPTS & said.keys():
        if isinstance(said[name], dict):
            said[name] = as_said(said[name])
    if said.get(_REMEDY):
        said[_REMEDY] = said[_REMEDY][_PARTS]
    text = dumps({"format": RECORD_FORMAT, **said})
    return (dumps({"format": RECORD_FORMAT, **_fit(said)}) if _HALF in text else text).encode()


_REMEDY = "remedy"
_PARTS = "parts"
"""The fields of a remedy that a record stores."""
_HALF = "\\ud"
"""The first characters of an unpaired surrogate in JSON."""
_TEXTS = frozenset(("error", "found", "lost", "reason", "remedy", "told", "unproven", "who", "why"))
"""Fields with display texts. Only these are escaped, since a changed name or position would mean a different batch."""


def _fit(value: Any, name: str = "") -> Any:
    """Escape the unpaired surrogates in texts for display, since HTTP responses and databases do not accept them.

    A receipt stays unchanged, because its hash is kept.
    """
    if isinstance(value, str):
        return _fit_text(value) if name in _TEXTS else value
    if isinstance(value, list):
        return [_fit(each, name) for each in value]
    if not isinstance(value, dict) or name in _RECEIPTS:
        return value
    return {key: _fit(each, key) for key, each in value.items()}


def _fit_text(text: str) -> str:
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def decode(cls: type[R], path: str, data: bytes) -> R:
    """Decode the record of class `cls` from `data`.

    :raises UnreadableRecord: the record is damaged, has another format, or has a field that does not fit.
    """
    try:
        found = (value := json.loads(data.decode())).pop("format")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UnreadableRecord(path=path, reason=f"it is not a record ({data[:40]!r})") from error
    if found != RECORD_FORMAT:
        raise UnreadableRecord(
            path=path, reason=f"it has format {found!r}, this version reads format {RECORD_FORMAT}"
        )
    # These ids are used in queries of Airflow's database, which refuses unpaired surrogates.
    value |= {
        name: _fit_text(value[name])
        for name in _OF_AIRFLOW & value.keys()
        if isinstance(value[name], str)
    }
    if value.get(_REMEDY) is not None:
        value[_REMEDY] = {_PARTS: value[_REMEDY]}
    return read_as(cls, value, path)


_RECEIPTS = frozenset({"receipt"})
_OF_AIRFLOW = frozenset({"run_id", "dag_id"})


_LEFT_OUT = frozenset(
    "book columns entry grants renamed replaces restating rolling upstream zone".split()
)
"""Fields that a record omits while they are empty."""


def _kept(words: str) -> str:
    return shortened_reason(without_controls(words), MOST_OF_REASON)


_RESOLVED = [
    msgspec.json.Decoder(each)
    for each in (
        TopologyRecord,
        Counter,
        Binding,
        Metadata,
        TransactionRecord,
        Ack,
        FenceBatch,
        BookPage,
    )
]
"""The record decoders, built once at import. Tasks are forked from a process that has imported this module."""
