"""What `begin` is asked for, what a source decides, and what a replay takes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.receipt import Replaced
from airflow_tx.ledger.records import Metadata, TopologyRecord

# The request of the step `begin`, who answers its questions, and the batch that it decides. Source: protocol.md §3.


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True)
class TopologyRequest:
    """The description of a topology by its DAG.

    :param partitioned: whether its source has partitions.
    :param zone: the time zone of its schedule; "" is UTC.
    :param appends: whether one of its states is a table, which other topologies can read.
    :param upstream: the topology whose table its source reads; "": it reads something else.
    """

    dag_id: str
    source_kind: str
    max_pending: int
    partitioned: bool = False
    zone: str = ""
    appends: bool = False
    upstream: str = ""

    @property
    def keeps_book(self) -> bool:
        """Whether it keeps a book of ends."""
        return self.appends or bool(self.upstream)

    @property
    def keeps_range(self) -> bool:
        """Whether each attempt takes the range of the one before, and decides again which transactions count in it."""
        return bool(self.upstream)

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
            book=int(self.keeps_book),
            upstream=self.upstream,
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
