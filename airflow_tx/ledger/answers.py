"""What steps answer: a result, or why there is none. Source: docs/protocol.md §2."""

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
    """What two steps of one multi answer.

    :param then: None: the second one is left to be run alone.
    """

    first: T
    then: U | None = None


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
        """Describe a committed transaction again, with rows and position as its receipt keeps them.

        :param history: None: it is forgotten. Its attempt is then 0.
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
        return (
            value
            if self.replaces is None
            else {**value, "replaces": msgspec.to_builtins(self.replaces)}
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Begun:
        """Read what `to_json` gave."""
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
