"""The answers of the steps. An answer is a result, or the reason why there is none. Source: docs/protocol.md §2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from airflow_tx.ledger.attempt import Grant, TransactionAttempt
from airflow_tx.ledger.json_text import NOT_KEPT, digest_of
from airflow_tx.ledger.receipt import Deed, Replaced
from airflow_tx.ledger.records import Ack, TopologyRecord, TransactionRecord

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Joined(Generic[T, U]):
    """The answers of two steps that share one multi.

    :param then: answer of the second step. None if the second step did not share the multi and must still run.
    """

    first: T
    then: U | None = None


@dataclass(frozen=True)
class Begun:
    """The attempt that a run has begun, with the rows of its batch.

    :param position: the position of the source after the batch, for all partitions.
    :param run_id: the run of the transaction.
    :param skip: who requested the transaction's skip, when and why; None if no skip is requested.
    :param size: number of rows that the source counted, and the reason for the batch size. None if it cannot count.
    :param lost: description of the rows before the batch that were accepted as lost.
    :param key: the run key of the run.
    :param replaces: the transaction that this one restates; None if this is no restatement.
    :param incarnation: incarnation of the topology, for file and table names in stores that several ledgers share.
    """

    attempt: TransactionAttempt
    metadata: Any
    position: Any
    rows_digest: str
    replay: bool
    run_id: str = ""
    skip: Deed | None = None
    size: Mapping[str, Any] | None = field(hash=False, default=None)
    lost: tuple[str, ...] = ()
    key: str = ""
    replaces: Replaced | None = None
    incarnation: str = ""

    @classmethod
    def of(cls, record: TransactionRecord, rows: Any, position: Any, incarnation: str) -> Begun:
        return cls(
            attempt=TransactionAttempt(record.txid, record.attempt, record.birth),
            metadata=rows,
            position=position,
            rows_digest=record.rows_digest,
            replay=record.attempt > 1,
            run_id=record.run_id,
            skip=record.skip,
            size=record.size,
            lost=tuple(record.lost),
            key=record.key,
            replaces=record.replaces,
            incarnation=incarnation,
        )

    @classmethod
    def of_history(cls, txid: int, history: TransactionRecord | None, incarnation: str) -> Begun:
        """Return the answer for a committed transaction, with the rows and the position from its receipt.

        :param history: the record in the history. None if the ledger has forgotten it; the attempt is then 0.
        """
        if history is None or history.receipt is None:
            attempt = TransactionAttempt(txid, history.attempt if history else 0)
            return cls(attempt, NOT_KEPT, NOT_KEPT, "", replay=True, incarnation=incarnation)
        attempt = TransactionAttempt(txid, history.attempt, history.birth)
        return cls(
            attempt,
            history.receipt.metadata,
            history.receipt.after,
            digest_of(history.receipt.metadata),
            replay=True,
            replaces=history.receipt.replaces,
            incarnation=incarnation,
        )

    @property
    def txid(self) -> int:
        return self.attempt.txid

    def to_json(self) -> dict[str, Any]:
        """Return the values that the tasks of the run need, as plain JSON."""
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
        return (
            value
            if self.replaces is None
            else {**value, "replaces": msgspec.to_builtins(self.replaces)}
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Begun:
        """Create the answer from the JSON of `to_json`."""
        attempt = TransactionAttempt(value["txid"], value["attempt"], value["birth"])
        replaces = value.get("replaces")
        return cls(
            attempt,
            value["rows"],
            value["position"],
            value["rows_digest"],
            value["replay"],
            replaces=None if replaces is None else Replaced(**replaces),
            incarnation=value["incarnation"],
        )


@dataclass(frozen=True)
class NoData:
    """The source has no rows now, so no txid was allocated."""

    txid: int


@dataclass(frozen=True)
class WindowFull:
    """The maximum number of open transactions is reached."""

    current: int
    allocated: int
    max_pending: int


@dataclass(frozen=True)
class AlreadyCommitted:
    """The transaction is already committed, so the caller has nothing left to do."""

    txid: int


@dataclass(frozen=True)
class Done:
    """The ledger has recorded the change."""


@dataclass(frozen=True)
class FailureNoted:
    """The ledger has recorded that the attempt failed, or need not record it.

    :param first: whether this call recorded it. If False, the attempt had failed before, or its transaction is final.
    """

    first: bool


@dataclass(frozen=True)
class Processed:
    """Every task that must ack has acked.

    :param epoch: epoch of the transaction. A changed epoch means that a task has restarted and the output in `acks` is
        outdated.
    :param acks: ack of each task instance, by (task id, map index).
    :param unproven: reasons why there is no proof that its tasks read every row once; empty if there is proof.
    :param key: the run key of its run.
    :param began: time at which the attempt began.
    """

    epoch: int
    acks: Mapping[tuple[str, int], Ack] = field(hash=False)
    unproven: tuple[str, ...] = ()
    key: str = ""
    began: str = ""

    @property
    def rows(self) -> int | None:
        """Return the highest row count of any task, which is the batch size. Return None if no task counted rows."""
        return max((ack.rows for ack in self.acks.values() if ack.rows is not None), default=None)


@dataclass(frozen=True)
class NotYet:
    """An earlier transaction has the turn."""

    current: int


@dataclass(frozen=True)
class Restarted:
    """The output that the committer read before the turn is outdated. The caller must run `processed` again.

    A task of this attempt has restarted, or a state has different values from the restated transaction.
    """


@dataclass(frozen=True)
class ToBeSkipped:
    """The transaction has the turn, but its skip is requested, so it must not be committed."""

    txid: int


@dataclass(frozen=True)
class Granted:
    """The committer has the turn.

    :param changed: outputs of an earlier grant that differ from the current outputs, by transactional state. Before
        writing, the committer must prove that the state has no values from the transaction.
    """

    grant: Grant
    changed: Mapping[str, str] = field(hash=False, default_factory=dict)


@dataclass(frozen=True)
class AlreadySkipped:
    """The transaction is already skipped, so the caller has nothing left to do."""

    txid: int


@dataclass(frozen=True)
class Committed:
    """The transaction is final. Either this call or an earlier one made it final.

    :param waiting: run_ids of the runs that gave up their run slots for this transaction or an earlier one.
    :param skip: whether the next transaction, which now has the turn, will be skipped.
    """

    txid: int
    by_this_call: bool
    waiting: tuple[str, ...] = ()
    skip: bool = False

    @classmethod
    def first(cls, topology: TopologyRecord, txid: int) -> Committed:
        """Return the answer for the call that made the transaction final, with the follow-up work for the caller."""
        return cls(txid, True, tuple(topology.yielded), txid + 1 in topology.skips)


@dataclass(frozen=True)
class ReplayNoted:
    """The ledger has recorded the request for a replay.

    :param first: whether this call recorded it and so must start the replay.
    :param count: number of automatic replays in a row.
    """

    first: bool
    count: int


@dataclass(frozen=True)
class GivenUp:
    """The coordinator no longer replays a restatement. It will be skipped at its turn, and `replaces` still counts."""

    txid: int
    replaces: int
    reason: str


@dataclass(frozen=True)
class Blocked:
    """Manual action is required, since the replays are used up or the commit was refused permanently."""

    txid: int
    reason: str


@dataclass(frozen=True)
class Bidding:
    """Several waiting runs offer their run slots, and the ledger has not yet chosen the one that yields.

    :param leader: the run that yields if no better offer arrives.
    """

    leader: str


@dataclass(frozen=True)
class NotNeeded:
    """A run slot is already free, so no run yields."""


@dataclass(frozen=True)
class Repaired:
    """The repair has been made.

    :param summary: description of the finding and the result.
    """

    generation: int
    current: int
    summary: str


@dataclass(frozen=True)
class AlarmNoted:
    """The ledger has recorded the alert.

    :param first: whether this call recorded it. If so, the caller runs the callbacks.
    """

    first: bool
