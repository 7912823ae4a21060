"""The records of the ledger, frozen, and their JSON with its format version. Source: docs/protocol.md §1.

A reader that meets another format, an unknown field, or a value of another type stops with the path: a record is never
taken for empty.
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
"""Characters that a record keeps of why something failed, and of what to do about it."""

# --- parts --------------------------------------------------------------------------------------------------------
# Values within records.


class ReplayNote(Record, frozen=True, omit_defaults=True):
    """The last automatic replay that was asked for.

    :param attempt: which one is to be replayed; `count`: how many were asked for in a row.
    :param given_up: whether the coordinator has skipped the restatement once.
    """

    attempt: Int
    count: Int
    when: Moment
    reason: str
    given_up: bool = False


class BlockMark(Record, frozen=True):
    """The transaction that is replayed no more, and why."""

    txid: Int
    attempt: Int
    reason: str
    when: Moment

    def holds(self, record: TransactionRecord) -> bool:
        """Ask whether the mark is of this attempt; it stays a while after a person has replayed or skipped it."""
        return record.attempt == self.attempt and record.skip is None


class Waiter(Record, frozen=True):
    """A run that waits, and bids to give up its run slot.

    :param txid: its transaction; None while it waits in `begin` for one.
    :param task_try: of the task that waits; later ones are greater.
    :param blocking: the txid whose run has no run slot.
    :param when: when it has bid; "": it has not.
    """

    run_id: str
    txid: Int | None
    task_try: str
    blocking: Int
    when: Moment = ""

    @property
    def rank(self) -> tuple[bool, int, str]:
        """Rank it: the greatest one yields."""
        return (self.txid is None, self.txid or 0, self.task_try)


class Yield(Record, frozen=True):
    """A run that has given up its run slot to the run of transaction `blocking`, with its own transaction if any."""

    blocking: Int
    txid: Int | None
    when: Moment


class RollingNote(Deed, frozen=True, omit_defaults=True):
    """A roll forward that a person has begun.

    :param found: per state that is written again, the last transaction that it had.
    :param nonces: of the runs of the command, the newest last.
    :param holes: per table, the transactions whose rows nothing kept.
    """

    found: dict[str, Int]
    nonces: list[str]
    generation: Int
    holes: dict[str, list[Int]] = field(default_factory=dict)


class BatchRows(Record, frozen=True):
    """What all consumers of a batch agree on.

    :param digests: by form: Spark and Python hash a row each in its own way.
    """

    rows: Int
    digests: dict[str, str] = field(default_factory=dict)


class Restating(Record, frozen=True):
    """The transaction that began to restate another one."""

    txid: Int
    birth: str


# --- records ------------------------------------------------------------------------------------------------------


class Phase(str, Enum):
    """Where an open transaction stands. Final ones have no record, only history."""

    PROCESSING = "PROCESSING"
    PROCESSED = "PROCESSED"
    COMMITTING = "COMMITTING"
    FAILED = "FAILED"


class TopologyRecord(Record, frozen=True):
    """What holds for all transactions of a topology.

    :param incarnation: uuid made with this ledger; a fence of another one is refused. `generation`: raised by a repair.
    :param states: per state, the last txid whose grant raised its fence and which became final.
    :param births: per state, the birth in its fence: of its last final one, or of the one that a rebuilt ledger begins.
    :param rebuilt: the last txid that was final when the ledger was rebuilt: of those without history nothing is known.
    :param partitioned: whether the source has partitions; `blocked`: the transaction that is replayed no more, and why.
    :param bid: which waiter is about to give up its run slot, while that is decided.
    :param yielded: per run_id, a waiter that has given up its run slot, to be started again; `yields`: how many in all.
    :param skips: the open transactions that are to be skipped at their turn, in order.
    :param pace: of the last committed transactions, how many rows each had and how many seconds it was in process;
        a third part names what was counted, if it is not rows.
    :param hours: how many transactions became final in each of the last hours, in UTC, such as 2013-01-01T17.
    :param losses: numbers of the repairs that accepted losses of rows, as long as the source has not passed them all.
    :param accepted: per state what its fence is compared with. `change`: the number of its newest accepted change. Of
        an accepted loss: since which `generation`, the `fence` that a person saw (None: none), whether it was `whole`.
        `began`: its first transaction, before which its place was empty; 0: it was not; without it: unknown.
        `emptied`: the first one after an accepted loss, before which it was empty again.
    :param garbage: records that no step reads any more and that were too many for one multi, as paths below.
    :param receipt: hash of the last receipt, "" if there is none; `origin`: the position before the first transaction.
    :param renamed: per earlier name of a state, its name now.
    :param zone: the time zone of the DAG's schedule, in which a date is a day; "" is UTC.
    :param grants: per state, attempt and epoch of the grant that its last final transaction was marked under.
    :param rolling: who lets which states be written again from the journal, since when, and by which runs (`nonces`).
    :param columns: per state its value columns, each with the first txid that it holds; 0: it is as old as the state.
    :param book: the first transaction with a line in the book of ends; 0: the topology keeps none.
    :param upstream: the topology whose table its source reads; "": its source reads something else.
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
        """Ask whether this transaction is the one that is replayed no more."""
        return self.blocked is not None and self.blocked.txid == txid


class Counter(Record, frozen=True):
    """`coordinator/current` and `coordinator/allocated`."""

    txid: Int


class Binding(Record, frozen=True):
    """`runs/<key>`: the txid of a run's identity. Only the end of a transaction changes what counts.

    :param entry: name of the journal entry of this transaction; "": there is none.
    :param restating: the `txid` and the `birth` of the transaction that began to restate this one. Without a record of
        that birth, that transaction was skipped or lost, and this one counts.
    """

    txid: Int
    entry: str = ""
    restating: Restating | None = None


class Metadata(Record, frozen=True):
    """Exactly which rows a transaction has, and where the source stands after them.

    :param rows: what a source calls the metadata of its batch.
    :param partitions: always None; the field is part of the format.
    :param begin: of each partition that had no position before: where it begins, for replays of an opaque source.
    """

    attempt: Int
    rows: Any
    position: Any
    partitions: None = None
    begin: Any = None


class TakenRange(Record, frozen=True, omit_defaults=True):
    """The transactions of an upstream topology that a batch takes: the metadata of the batch, and a part of its line.

    :param ends: by transaction that begins a chain, the one that counts for it, where that is another one.
    :param counts: by transaction that counts, how many rows the table has of it. A line leaves them out.
    :param incarnation: of the upstream ledger, with the birth of the `last` transaction. A line leaves them out, too.
    :param again: of a line, whether the batch was re-admitted.
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
        """Read the metadata of a batch.

        :raises UnreadableRecord: it is the batch of another source.
        """
        return read_as(cls, metadata, "the metadata of the batch")

    def to_json(self) -> Any:
        """Write it as the metadata of a batch."""
        return as_plain(self)

    def in_line(self, *, again: bool) -> TakenRange:
        """Give what its line keeps."""
        return TakenRange(self.first, self.last, self.ends, again=again)

    def __str__(self) -> str:
        """Name its transactions."""
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"

    def end_of(self, txid: int) -> int:
        """Name the transaction that counts for the one that begins a chain."""
        return self.ends.get(str(txid), txid)


class EndLine(Record, frozen=True, omit_defaults=True):
    """The line of a final transaction in the book of ends.

    :param outcome: COMMITTED or SKIPPED; None: a repair has taken it back.
    :param rows: per state, how many rows it got, or keys; a state that got none is left out.
    :param first: of a restatement, the transaction that begins its chain; 0: it begins one itself.
    :param end: of a transaction that begins a chain, the restatement that counts; 0: it counts itself.
    :param taken: of a topology that reads the table of another one: what its batch has taken.
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
        """Whether it begins a chain, whose end counts."""
        return self.outcome is Outcome.COMMITTED and not self.first


class BookPage(Record, frozen=True):
    """`ends/<number>`: the lines of transactions that follow each other, in order."""

    lines: list[EndLine]


class End(Record, frozen=True, omit_defaults=True):
    """How a transaction became final.

    :param readmitted_as: of a skipped one, the txid that has its rows now.
    """

    outcome: Outcome
    when: Moment
    readmitted_as: Int | None = None


class TransactionRecord(TransactionFacts, frozen=True, kw_only=True, omit_defaults=True):
    """One transaction: `transactions/<txid>` while it is open, `history/<txid>` at its end.

    Source: docs/protocol.md §1.

    :param request: try of the last begin.
    :param epoch: grows with every grant and every restart; never falls within a txid.
    :param op: nonce of the last step, by which an unanswered write is recognised.
    :param granted: true from the first grant of any attempt on; `receipt`: as far as the last one knew it.
    :param base: digest of the position after txid − 1 that the batch was computed from; `ended`: of that after it.
    :param pinned: it was re-admitted: its rows stay, unless a person lets them be decided again.
    :param yielded: the txid whose run it gave up its slot for.
    :param replay: the last automatic replay that was asked for: of which attempt, how many in a row, when and why.
    :param asked: the last replay by a person: of which attempt, who, when and why.
    :param tasks: the tasks that must ack, each with the id of the message that `begin` emitted to it (16 hex digits).
    :param rows_digest: digest of the batch's rows.
    :param outputs: per transactional state, what a grant was about to write, as `output_text` gives it.
    :param fenced: names of the states that some grant was about to write.
    :param by_phase: whether the last grant is held by several tasks, one after the other.
    :param error: what failed in the last try, until another one works on it; `remedy`: what its refusal says to do.
    :param failed_task: the task that failed by `error`; "": `error` is of no single task.
    :param acks: the name of the folder with the acks of this attempt, unique in all lives of a ledger.
    :param counted: the rows of its first complete attempt.
    :param for_good: the generation of the ledger in which its commit was refused permanently, by `error`; 0: in none.
    :param repairable: of a restatement: whether a repair, or a store that comes back, may end what `error` says.
    :param checks: per check that failed, what it `found` in which output (`digest`), and who `accepted` that.
    :param end: None while it is open.
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
        """Make the record of a transaction of which only these fields are known."""
        rest: dict[str, Any] = dict.fromkeys(
            "key run_id request op base ended rows_digest created began".split(), ""
        )
        rest |= {"attempt": 0, "epoch": 0, "phase": Phase.PROCESSING}
        return cls(txid=txid, **{**rest, **known})

    @property
    def final(self) -> End:
        """Give how it became final.

        :raises UnreadableRecord: it is in the history, and has no end.
        """
        if self.end is None:
            raise UnreadableRecord(path=f"history/{self.txid}", reason="it is still open")
        return self.end

    def with_outcome(self, outcome: Outcome, readmitted_as: int | None = None) -> TransactionRecord:
        """Give a final transaction another outcome: its rows are in another one, or count no longer."""
        end = replace(self.final, outcome=outcome, readmitted_as=readmitted_as)
        return replace(self, end=end)

    @property
    def rows(self) -> int | None:
        """Give how many rows of the batch its tasks read; None: it has no receipt yet, or they did not count."""
        return None if self.receipt is None else self.receipt.rows

    @property
    def digest(self) -> str:
        """Give the digests of its rows, by each way to hash, in one text; "" without any."""
        return "" if self.counted is None else " ".join(sorted(self.counted.digests.values()))

    @property
    def status(self) -> str:
        """Give its phase while it is open, then its outcome."""
        return self.phase.value if self.end is None else self.end.outcome.value

    def at_end(self, op: str, end: End, receipt: Receipt) -> TransactionRecord:
        """Make it final, and drop what the tries of its tasks needed, and what its receipt says of them."""
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
        """Give the checks whose failure a person accepted: a later attempt may have the same output."""
        return {name: each for name, each in self.checks.items() if each.accepted is not None}

    def without_failure(self) -> TransactionRecord:
        """Forget why the last try failed: another one works on it, or none has to."""
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
        """Note one more failure, for people: what failed, in which task, and apart from that what to do about it."""
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
        """Say what failed, and in which task; "": nothing has."""
        return Remedy.behind(self.error, task=self.failed_task)

    @property
    def failure(self) -> str:
        """Say what failed, as a part of another sentence."""
        return (self.said or "no reason noted").removesuffix(".")

    @property
    def to_change(self) -> DeedOfAttempt | None:
        """Give the person who wants the rows of this attempt decided again; None: no one, or a newer attempt exists."""
        return next((each for each in self.changed if each.attempt == self.attempt), None)


class Ack(Record, frozen=True):
    """What one task (or one mapped instance) of the newest attempt has contributed to the ack val.

    :param emitted: id of a message that only this entry knows (a mapped instance's own); 16 hex digits.
    :param acked: what it acked; equal to the emitted one, or the id that `begin` emitted, once it is done.
    :param rows: rows consumed, if the task counted them; `trees`: of messages, whose roots this try has emitted.
    :param outputs: references to its output; `read`: what it read, as `RowsRead` gives it; `code`: digest of its code.
    :param unproven: why the rows that it consumed are not proven, as far as it knows, one line each.
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
    """`skipped/<txid>`: what a skipped transaction had, so that it can be re-admitted.

    :param rows: of all partitions; None once it is re-admitted, and of a restatement.
    :param skip: who skipped it, when and why; `readmit`: who wants it back.
    :param readmitted_as: the txid that has its rows now.
    :param replaces: the transaction that it was to restate, which still counts: its rows cannot come back.
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
    """Rows that come next in a source, and that it can no longer give.

    :ivar partition: "" for a source without partitions.
    :ivar position: of the partition: they would follow it.
    :ivar resume_at: the position from which it can give rows again.
    :ivar description: which rows they are, in words.
    :ivar went_back: whether it was set back to before the position: it gives rows again that were taken.
    """

    partition: str
    position: Any = field(name="place")
    resume_at: Any = field(name="goes_on")
    description: str = field(name="what")
    went_back: bool = False


class RepairRecord(Record, frozen=True):
    """`repairs/<number>`: what a person did to the ledger.

    :param what: such as `state-lost` or `rename`; `told`: finding and result; `generation`: of the ledger after it.
    :param change: of `accept-change`: the `state`, how much more the total of each of its `columns` is than known (of a
        table, how many `rows` of a transaction there are), the last final `txid`, digests of the `keys` that are gone.
        `unknown` says that some are not known. Of `state-lost` and `state-forgotten`: the `state` and the current
        `txid`; of a loss that was looked at the token in its `fence`, the last transaction that it had (`found`), and
        the newest accepted `change`. Of `state-renamed`: the `state`, its name now (`to`), and the current `txid`. Of
        `ledger-lost`: the current `txid`, and per state the last one that it is sure to have (`states`). Of `reset`:
        the new `incarnation`. Of `roll-forward`: the `states`, the `nonces` of its runs, and the changes that are
        wanted no more (`unchanged`). Of `ends`: the `first` transaction with a line. Of `accept-code`: by task the
        digest of its `code` ("": the task is gone), and the last `txid` whose other code is accepted.
    :param losses: of `accept-loss`.
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
    """`wanted/<txid>`: a person wants a committed transaction restated; no run has begun that yet.

    :param key: of the run whose next `begin` restates it.
    :param changed_rows: whether that `begin` decides the rows again, with their current content.
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
    """`follow`: how far the corrections of the upstream topology were compared.

    :param incarnation: of the upstream topology; another one has other transactions.
    :param txid: each correction up to this one is in the batch that has its transaction, or noted as behind.
    :param birth: of that one. Another birth: the upstream ledger went back.
    """

    incarnation: str
    txid: Int
    birth: str
    op: str


class Behind(Record, frozen=True):
    """`behind/<txid>`: a committed transaction that lacks corrections of the upstream topology.

    :param txid: the one that begins the chain.
    :param ends: by upstream transaction, the one that counts for it since.
    :param when: since when it is known.
    :param why: why no restatement was requested for these ends; "": it was.
    """

    txid: Int
    ends: dict[str, Int]
    when: Moment
    why: str
    op: str

    def is_of(self, ends: Mapping[int, int]) -> bool:
        """Ask whether it notes these very ends."""
        return self.ends == {str(txid): end for txid, end in ends.items()}


class AlarmNote(Record, frozen=True, omit_defaults=True):
    """A raised alarm.

    :param of: what it is raised for.
    :param when: since when.
    :param dag_id: of the run that is red while it is raised, with `run_id`; "": there is none.
    """

    of: str
    when: Moment = ""
    dag_id: str = ""
    run_id: str = ""


class RaisedAlarms(Record, frozen=True):
    """The raised alarms of a topology, by kind."""

    raised: dict[str, AlarmNote] = field(default_factory=dict)
    op: str = ""


class WatcherRecord(Record, frozen=True):
    """The record of a watcher.

    :param incarnation: of the ledger whose transactions were handed on; another one has other transactions.
    :param txid: the last one that was handed on.
    """

    incarnation: str
    txid: Int
    op: str = ""


def encode(record: Record) -> bytes:
    """Write a record as compact, sorted JSON with its format version."""
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
"""Of a remedy, a record keeps the parts alone."""
_HALF = "\\ud"
"""How the JSON of half a surrogate pair begins."""
_TEXTS = frozenset(("error", "found", "lost", "reason", "remedy", "told", "unproven", "who", "why"))
"""Fields with words of people and errors. Names and positions stay unchanged: another text would be another batch."""


def _fit(value: Any, name: str = "") -> Any:
    """Write the half surrogate pairs of texts for people as their escapes: no answer and no database takes them.

    A receipt is left alone, because its digest is kept.
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
    """Read the record of class `cls` in `data`.

    :raises UnreadableRecord: damaged, of another format, or with fields that do not fit.
    """
    try:
        found = (value := json.loads(data.decode())).pop("format")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UnreadableRecord(path=path, reason=f"it is not a record ({data[:40]!r})") from error
    if found != RECORD_FORMAT:
        raise UnreadableRecord(
            path=path, reason=f"it has format {found!r}, this version reads format {RECORD_FORMAT}"
        )
    # Airflow's database takes no other text, and is asked for the run.
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
"""Fields that a record has only once they say something."""


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
"""Tasks are forks of a process that has imported this module: the types are resolved there, once."""
