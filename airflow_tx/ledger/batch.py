"""The inputs of `begin`, the batch that a source decides, and the batch that a restatement reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.receipt import Replaced
from airflow_tx.ledger.records import Metadata, TopologyRecord

# The request to the step `begin`, the functions for its queries, and its batch. Source: protocol.md
# §3.


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True)
class TopologyRequest:
    """A topology as its DAG describes it.

    :param partitioned: whether its source has partitions.
    :param zone: the time zone of its schedule; "" is UTC.
    :param appends: whether other topologies can read one of its states as a table.
    :param upstream: the topology whose table its source reads; "" if the source reads something else.
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
        """Whether the topology keeps a book of ends."""
        return self.appends or bool(self.upstream)

    @property
    def keeps_range(self) -> bool:
        """Whether a replay keeps the first attempt's range and only decides again which transactions count."""
        return bool(self.upstream)

    def made(self, op: str, incarnation: str | None = None) -> TopologyRecord:
        """Create the record of the topology.

        :param incarnation: the incarnation to keep. None creates a new one.
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
    """The request for a transaction, from the first task of a run.

    :param key: run key of the run: its run_id, data interval or partition. If None, a run that does not exist yet gets
        the next transaction. Its run_id and its key are `tx-<txid>`, unless its source names both.
    :param run_id: run_id of the run; "" if the run does not exist yet.
    :param task_try: the try of `begin`; "" if the caller is not the run itself.
    :param retry: whether Airflow retried `begin`; otherwise, the task was cleared.
    :param tasks: random 64-bit id, as 16 hex digits, of each task that must ack.
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

    :param metadata: plain JSON that identifies exactly these rows.
    :param position: plain JSON of the position after the batch. It covers every row taken so far.
    :param count: the number of rows, if the source knows it.
    :param reason: reason for the size of the batch.
    :param unit: the unit of `count`, such as files; default: rows.
    :param start: first position of a partition without an earlier position. A replay of an opaque source begins there,
        even if rows were added or removed. For a batch of all partitions, this is a mapping by partition.
    :param at_most: whether the batch may have fewer rows than `count`, since some offsets have no row. If False, a task
        that reads a different number of rows is refused.
    :param key: the run key that the batch requires; "" if any run can have it.
    :param run_id: the run_id of the run with this `key`.
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
        """The row count and the reason for the size, as the ledger stores them. None if the source did not count."""
        if self.count is None:
            return None
        return {
            self.unit: self.count,
            "why": self.reason,
            **({"at_most": True} if self.at_most else {}),
        }


@dataclass(frozen=True)
class RestatedBatch:
    """A transaction that a run will restate, as its journal entry describes it.

    :param rows: the value that the source called the metadata of the batch.
    :param states: the current names of the states to which it contributed.
    :param same: whether the source returns the original rows instead of their current content.
    """

    rows: Json
    states: tuple[str, ...] = ()
    same: bool = True


@dataclass(frozen=True)
class PreviousBatch:
    """The batch that the source decided before the current one.

    :param is_open: whether its transaction is open. If False, the transaction is final.
    """

    txid: int
    rows: Any
    is_open: bool


@dataclass(frozen=True)
class Outside:
    """Functions with which `begin` queries the source, the journal and Airflow.

    :param decide: queries the source. From the attempt and the position before it, it returns the batch, or None if
        there are no rows.
    :param run_state: queries Airflow. It returns the state of a run, or None if the run was deleted.
    :param decide_again: queries the source. From the attempt and the metadata that the source decided, it returns the
        current metadata of the same rows.
    :param is_current: asks Airflow whether the calling try is the current one, and was not retried, cleared or deleted
        since. No clocks are compared, since the ledger had the other try before this query.
    :param review: passes the previous batch to the source.
    :param report: reports a failure (attempt, metadata, reason) to the source before the next attempt begins.
    :param read_entry: queries the journal and the source. It returns the batch of the transaction to restate, with its
        current rows if the second argument is True. It refuses a batch that cannot be processed again.
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
        """Query the source for the batch after a position, and pass it the previous batch."""
        batch = self.decide(attempt, position)
        if previous is not None:
            self.review(previous)
        return batch


@dataclass(frozen=True)
class DecidedBatch:
    """The batch of one attempt, as the ledger will store it.

    :param rows: the value that the source calls the metadata of the batch.
    :param position: the position after the batch, for all partitions.
    :param base: digest of the position from which the batch was decided.
    :param size: number of rows that the source counted, and the reason for the batch size. None if it cannot count.
    :param lost: description of the rows before the batch that were accepted as lost.
    :param begin: first position of each partition without an earlier position. Replays of an opaque source use it.
    """

    rows: Any
    position: Any
    base: str
    size: dict[str, Any] | None = None
    lost: Sequence[str] = ()
    begin: Any = None

    def metadata(self, attempt: int) -> Metadata:
        """Create the record of the rows and the position."""

        return Metadata(attempt, self.rows, self.position, begin=self.begin)


WHOLE = ""
"""The name of the only partition of a source without partitions."""
