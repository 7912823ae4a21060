"""What steps answer: a result, or why there is none. Source: docs/protocol.md §2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from airflow_tx.ledger.attempt import Grant, TransactionAttempt
from airflow_tx.ledger.json_text import NOT_KEPT, digest_of
from airflow_tx.ledger.records import Ack, History, Metadata, TopologyRecord, TransactionRecord

# --- answers ------------------------------------------------------------------------------------------------------


T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Joined(Generic[T, U]):
    """What two steps of one multi answer.

    :param then: None: the second one is left to be run alone.
    """

    first: T
    then: U | None = None


@dataclass(frozen=True)
class Replaced:
    """The transaction that a restatement replaces.

    :param entry: name of the journal entry with its contribution.
    """

    txid: int
    entry: str


@dataclass(frozen=True)
class Begun:
    """The run is this attempt of this transaction, with these rows.

    :param position: where the source stands after it, all partitions included.
    :param run_id: the run that it belongs to.
    :param skip: the person who wants it skipped at its turn, when and why; None: no person does.
    :param size: how many rows the source counted, and why it took so many; None if it cannot tell.
    :param lost: rows that come before it and were accepted as lost, in words.
    :param key: the identity of that run.
    :param replaces: the transaction that it restates; None: it is no restatement.
    :param incarnation: of its topology, which names what its tasks leave in places that ledgers share.
    """

    attempt: TransactionAttempt
    metadata: Any
    position: Any
    rows_digest: str
    replay: bool
    run_id: str = ""
    skip: Mapping[str, str] | None = field(hash=False, default=None)
    size: Mapping[str, Any] | None = field(hash=False, default=None)
    lost: tuple[str, ...] = ()
    key: str = ""
    replaces: Replaced | None = None
    incarnation: str = ""

    @classmethod
    def of(
        cls, txid: int, record: TransactionRecord, rows: Any, position: Any, incarnation: str
    ) -> Begun:
        return cls(
            attempt=TransactionAttempt(txid, record.attempt, record.birth),
            metadata=rows,
            position=position,
            rows_digest=record.rows_digest,
            replay=record.attempt > 1,
            run_id=record.run_id,
            skip=record.skip,
            size=record.size,
            lost=tuple(record.lost),
            key=record.key,
            replaces=_replaced(record.replaces),
            incarnation=incarnation,
        )

    @classmethod
    def of_history(cls, txid: int, history: History | None, incarnation: str) -> Begun:
        """Describe a committed transaction again, with rows and position as its receipt keeps them.

        :param history: None: it is forgotten. Its attempt is then 0.
        """
        if history is None or history.receipt is None:
            attempt = TransactionAttempt(txid, history.attempts if history else 0)
            return cls(attempt, NOT_KEPT, NOT_KEPT, "", replay=True, incarnation=incarnation)
        attempt = TransactionAttempt(txid, history.attempts, history.birth)
        rows, after = history.receipt["metadata"], history.receipt["after"]
        known = cls(attempt, rows, after, digest_of(rows), replay=True, incarnation=incarnation)
        return replace(known, replaces=_replaced(history.receipt.get("replaces")))

    @property
    def txid(self) -> int:
        return self.attempt.txid

    def to_json(self) -> dict[str, Any]:
        """Give what the tasks of the run need of it, as plain JSON."""
        value = {
            "txid": self.attempt.txid,
            "attempt": self.attempt.attempt,
            "birth": self.attempt.birth,
            "rows": self.metadata,
            "position": self.position,
            "rows_digest": self.rows_digest,
            "replay": self.replay,
            "incarnation": self.incarnation,
        }
        return value if self.replaces is None else {**value, "replaces": asdict(self.replaces)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Begun:
        """Read what `to_json` gave."""
        attempt = TransactionAttempt(value["txid"], value["attempt"], value["birth"])
        return cls(
            attempt,
            value["rows"],
            value["position"],
            value["rows_digest"],
            value["replay"],
            replaces=_replaced(value.get("replaces")),
            incarnation=value.get("incarnation", ""),
        )


def _replaced(value: Mapping[str, Any] | None) -> Replaced | None:
    return None if value is None else Replaced(value["txid"], value["entry"])


@dataclass(frozen=True)
class NoData:
    """The source has no rows now; nothing was allocated."""

    txid: int


@dataclass(frozen=True)
class WindowFull:
    """As many transactions are open as may be."""

    current: int
    allocated: int
    max_pending: int


@dataclass(frozen=True)
class AlreadyCommitted:
    """The transaction is committed; nothing is left to do."""

    txid: int


@dataclass(frozen=True)
class Done:
    """It is noted."""


@dataclass(frozen=True)
class FailureNoted:
    """The ledger knows that the attempt has failed, or does not need to.

    :param first: whether this call wrote it. If not, the attempt had failed before, or its transaction is final.
    """

    first: bool


@dataclass(frozen=True)
class Processed:
    """Everything that must ack has acked.

    :param epoch: changes when a task starts again; the output named here is then no longer the output.
    :param acks: per (task id, map index) what it contributed.
    :param unproven: why the rows that its tasks consumed are not proven; none: they are.
    :param key: the identity of its run; `began`: when its attempt began.
    """

    epoch: int
    acks: Mapping[tuple[str, int], Ack] = field(hash=False)
    ack_val: int = 0
    unproven: tuple[str, ...] = ()
    key: str = ""
    began: str = ""

    @property
    def rows(self) -> int | None:
        """Give the rows of the batch, as the task that read most of them counted; None: no task counted."""
        return max((ack.rows for ack in self.acks.values() if ack.rows is not None), default=None)


@dataclass(frozen=True)
class NotYet:
    """It is the turn of an earlier transaction."""

    current: int


@dataclass(frozen=True)
class Restarted:
    """The output, as read before the turn, does not count any more; ask `processed` again.

    A task of this attempt has started again, or a state holds something else of what a restatement takes back.
    """


@dataclass(frozen=True)
class ToBeSkipped:
    """It is its turn, and a person wants it skipped: it is not committed."""

    txid: int


@dataclass(frozen=True)
class Granted:
    """The turn is taken.

    :param changed: per transactional state whose output is another one than an earlier grant was about to write, that
        one; before a write, it must be proved that the state has no values of the transaction.
    """

    grant: Grant
    changed: Mapping[str, str] = field(hash=False, default_factory=dict)


@dataclass(frozen=True)
class AlreadySkipped:
    """The transaction is skipped; nothing is left to do."""

    txid: int


@dataclass(frozen=True)
class Committed:
    """The transaction is final, by this call or by an earlier one.

    :param waiting: run_ids of the waiters that gave up their run slots for it or for earlier ones.
    :param skip: whether the next transaction is to be skipped, now that it is its turn.
    """

    txid: int
    by_this_call: bool
    waiting: tuple[str, ...] = ()
    skip: bool = False

    @classmethod
    def first(cls, topology: TopologyRecord, txid: int) -> Committed:
        """Tell that this call has made it final, and what is left to be done."""
        return cls(txid, True, tuple(topology.yielded), txid + 1 in topology.skips)


@dataclass(frozen=True)
class ReplayNoted:
    """A replay is noted.

    :param first: by this call; otherwise another call does it.
    :param count: how many automatic ones there were in a row.
    """

    first: bool
    count: int


@dataclass(frozen=True)
class GivenUp:
    """A restatement that is replayed no more: it is skipped at its turn, and `replaces` still counts."""

    txid: int
    replaces: int
    reason: str


@dataclass(frozen=True)
class Blocked:
    """It was replayed as often as allowed, or its commit was refused permanently: a person must act."""

    txid: int
    reason: str


@dataclass(frozen=True)
class Bidding:
    """Which waiter gives up its run slot is being decided.

    :param leader: the run that would, if it ended now.
    """

    leader: str


@dataclass(frozen=True)
class NotNeeded:
    """The way is free already; no run gives up its slot."""


@dataclass(frozen=True)
class Repaired:
    """The ledger was repaired.

    :param summary: what was found and what was made of it.
    """

    generation: int
    current: int
    summary: str


@dataclass(frozen=True)
class AlarmNoted:
    """An alarm is noted; `first`: by this call, so that its caller runs the callbacks."""

    first: bool


# --- batch --------------------------------------------------------------------------------------------------------
# The request of the step `begin`, who answers its questions, and the batch that it decides. Source: protocol.md §3.


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True)
class TopologyRequest:
    """The description of a topology by its DAG.

    :param partitioned: whether its source has partitions.
    :param zone: the time zone of its schedule; "" is UTC.
    """

    dag_id: str
    source_kind: str
    max_pending: int
    partitioned: bool = False
    zone: str = ""

    def made(self, op: str, incarnation: str | None = None) -> TopologyRecord:
        """Make the record of a topology.

        :param incarnation: the one that the topology keeps; None: it gets a new one.
        """

        return TopologyRecord(
            incarnation or op,
            self.dag_id,
            self.source_kind,
            self.max_pending,
            op=op,
            partitioned=self.partitioned,
            zone=self.zone,
        )


@dataclass(frozen=True)
class BeginRequest:
    """The request of a run's first task.

    :param key: the run's identity: its run_id, or its interval or partition. None: a run that does not
        exist yet is to be given the next transaction; it will be called `tx-<txid>`, and so is its key, unless its
        source names both.
    :param run_id: "" for a run that does not exist yet.
    :param task_try: id of this try of `begin`; "" if it is not the run that asks.
    :param retry: whether Airflow retried `begin`, rather than a clear.
    :param tasks: per task that must ack, a random 64-bit id as 16 hex digits.
    """

    topology: TopologyRequest
    key: str | None
    run_id: str
    task_try: str
    retry: bool
    tasks: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class Batch:
    """The rows of one transaction, as its source decided them.

    :param metadata: plain JSON that says exactly which rows they are.
    :param position: plain JSON that says where the source stands after them; it determines every row taken so far.
    :param count: how many rows they are, if the source knows.
    :param reason: what made it so many, in words.
    :param unit: what was counted, if it is not rows.
    :param start: of a partition that had no position: the one where it begins. A replay of an opaque source begins
        there, too, even if rows were added or removed. Of all partitions together: by partition.
    :param at_most: whether there may be fewer rows than `count`, as of offsets that hold none; otherwise a task that
        reads another number of rows is refused.
    :param key: of the run that has them, if no run has asked; "": any run can.
    :param run_id: of that run.
    """

    metadata: Json
    position: Json
    count: int | None = None
    reason: str = ""
    unit: str = "rows"
    start: Json = None
    at_most: bool = False
    key: str = ""
    run_id: str = ""

    @property
    def size(self) -> dict[str, Any] | None:
        """The form in the ledger; None if it was not counted."""
        if self.count is None:
            return None
        return {
            self.unit: self.count,
            "why": self.reason,
            **({"at_most": True} if self.at_most else {}),
        }


@dataclass(frozen=True)
class RestatedBatch:
    """The journal's record of a transaction that is to be restated.

    :param rows: what its source called the metadata of the batch.
    :param states: to which it contributed, with their current names.
    :param same: whether its source gives the rows that it had, and not the current ones.
    """

    rows: Json
    states: tuple[str, ...] = ()
    same: bool = True


@dataclass(frozen=True)
class PreviousBatch:
    """The batch that was decided before the one that is wanted.

    :param is_open: whether its transaction is; else it is final.
    """

    txid: int
    rows: Any
    is_open: bool


@dataclass(frozen=True)
class Outside:
    """The callers of the source, the journal and Airflow, which answer the questions of `begin`.

    :param decide: asks the source: (attempt, position before) → the batch, or None without data.
    :param run_state: asks Airflow: run_id → state of that run, or None if it was deleted.
    :param decide_again: asks the source: (attempt, decided metadata) → the current metadata of the same rows.
    :param is_current: asks Airflow whether the asking try is the current one of its task: not retried, cleared or
        deleted since. No clock is compared: the ledger knew the other try before Airflow is asked.
    :param review: lets the source look at the batch that was decided before.
    :param report: lets the source learn (attempt, metadata, reason) of a failure, before another attempt begins.
    :param read_entry: asks journal and source: (transaction to restate, whether its rows are decided again) → the
        batch; it refuses one that cannot be processed again.
    """

    decide: Callable[[TransactionAttempt, Any], Batch | None]
    run_state: Callable[[str], str | None]
    decide_again: Callable[[TransactionAttempt, Any], Any] = lambda attempt, metadata: metadata
    is_current: Callable[[], bool] = lambda: True
    review: Callable[[PreviousBatch], None] = lambda previous: None
    report: Callable[[TransactionAttempt, Any, str], None] = lambda attempt, metadata, reason: None
    read_entry: Callable[[Replaced, bool], RestatedBatch] = lambda replaces, changed_rows: (
        RestatedBatch(None)
    )

    def next_batch(
        self, attempt: TransactionAttempt, position: Any, previous: PreviousBatch | None
    ) -> Batch | None:
        """Ask the source for the batch after a position, and let it look at the one before."""
        batch = self.decide(attempt, position)
        if previous is not None:
            self.review(previous)
        return batch


@dataclass(frozen=True)
class DecidedBatch:
    """The batch of one attempt, as the ledger is about to keep it.

    :param rows: what its source calls the metadata of the batch.
    :param position: where the source stands after it, all partitions included.
    :param base: digest of the position that it was decided from.
    :param size: how many rows the source counted, and why it took so many; None: it cannot tell.
    :param lost: rows that come before it and were accepted as lost, in words.
    :param begin: of each partition that had no position before: where it begins, for replays of an opaque source.
    """

    rows: Any
    position: Any
    base: str
    size: dict[str, Any] | None = None
    lost: Sequence[str] = ()
    begin: Any = None

    def metadata(self, attempt: int) -> Metadata:
        """Make the record of its rows and position."""

        return Metadata(attempt, self.rows, self.position, begin=self.begin)


WHOLE = ""
"""The partition of a source that has none."""


@dataclass(frozen=True)
class Loss:
    """Rows that come next in a source, and that it can no longer give.

    :param partition: "" for a source without partitions.
    :param position: of the partition: they would follow it.
    :param resume_at: the position from which it can give rows again.
    :param description: which rows they are, in words.
    :param went_back: whether it was set back to before the position: it gives rows again that were taken.
    """

    partition: str
    position: Any
    resume_at: Any
    description: str
    went_back: bool = False
