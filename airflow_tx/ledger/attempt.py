"""Attempts and tries of a transaction, and the grant of its turn with the token. Source: Storm's TransactionAttempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_tx.base.remedy import Command
from airflow_tx.ledger.receipt import NOTHING_WRITTEN, FenceBatch, Receipt, Written


@dataclass(frozen=True, order=True)
class TransactionAttempt:
    """One attempt of one transaction.

    :param txid: number of the transaction, from 1; a replay keeps it.
    :param attempt: number of the attempt, from 1; each replay adds one.
    :param birth: random id of this transaction; "" if unknown. A reset, repaired or restored ledger can repeat a txid,
        but never a birth.
    """

    txid: int
    attempt: int
    birth: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.txid}.{self.attempt}"


def instance_name(task: str, map_index: int) -> str:
    """Return the name of a task instance, such as `load` or `load[2]`."""
    return task if map_index < 0 else f"{task}[{map_index}]"


_NUMBER = "."


@dataclass(frozen=True)
class TaskTry:
    """One try of one task instance.

    :param task_id: the task.
    :param map_index: -1 if the task is not mapped.
    :param task_try: id of the task instance, and the try number. A deferral keeps both. Most retries and clears change
        the id; see `same_instance`.
    """

    task_id: str
    map_index: int
    task_try: str

    def __str__(self) -> str:
        return instance_name(self.task_id, self.map_index)

    def same_instance(self, task_try: str) -> bool:
        """Return whether another try has the same instance id. Airflow then accepts the result of either try for both.

        If Airflow fails a queued task, the task keeps its id. A resumed try and the retry may then run concurrently
        under the same id.
        """
        return self.task_try.partition(_NUMBER)[0] == task_try.partition(_NUMBER)[0]


LANE_TRY = "lane-"
"""The prefix of a lane's try, under which the lane begins its transactions."""


def of_lane(task_try: str) -> bool:
    """Return whether a try belongs to a lane."""
    return task_try.startswith(LANE_TRY)


@dataclass(frozen=True)
class Token:
    """The identity of a grant of the commit turn, in the ledger and in the fence of every state.

    Tokens compare by `rank`. Two tokens with equal ranks but different nonces come from two lives of one ledger, and
    are refused.

    :param generation: generation of the ledger, which only a repair raises.
    :param txid: the transaction that has the turn.
    :param attempt: the attempt that has the turn.
    :param epoch: epoch of the grant. Each grant and each restart of the transaction raises it.
    :param nonce: random id of this grant.
    :param birth: random id of this transaction.
    """

    generation: int
    txid: int
    attempt: int
    epoch: int
    nonce: str
    birth: str = ""

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The fields that decide which of two tokens outranks the other."""
        return (self.generation, self.txid, self.attempt, self.epoch)

    @property
    def is_look(self) -> bool:
        """Whether the token belongs to a roll forward that only reads the values.

        Its attempt is 0, which no transaction has.
        """
        return (self.attempt, self.epoch) == (0, 0)

    def by_hand(self, births: Mapping[str, int], state: str, topology: str) -> dict[str, Any]:
        """Describe the refusal of a fence whose txid was raised by hand. Return {} if no such change is known.

        :param births: txid of each transaction, by its birth.
        """
        own = births.get(self.birth, self.txid) if self.birth else self.txid
        if own >= self.txid:
            return {}
        return {
            "problem": f"its fence says transaction {self.txid}, and transaction {own} has raised it: a person has "
            "changed it",
            "remedy": (
                f"Put txid {own} back into the fence, or accept what the state holds: "
                + Command.of("repair", topology, "--state-lost", state)
            ),
        }

    def __str__(self) -> str:
        return f"{self.generation}/{self.txid}.{self.attempt}#{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Token:
        return cls(**value)


@dataclass(frozen=True)
class Grant:
    """The right, granted by the ledger, to write the updates of one transaction.

    :param topology: name of the topology, for messages.
    :param incarnation: uuid of this life of the ledger.
    :param token: token of the grant, which outranks every earlier grant.
    :param last_txids: last final txid of each state. A state without an entry is new to this ledger.
    :param births: birth that each state's fence must hold if it is not the token's own birth. A state without an entry
        may hold any birth.
    :param batch: the facts of the transaction that the fence keeps. None for a grant that only reads, or for a writer
        without a fence.
    :param claim: the known part of the transaction's receipt before the first write. None for a grant that only reads,
        or for a writer that completes no update.
    :param noted: output that an earlier grant was about to write to each transactional state, for fences without a
        record of that output.
    :param written: the rows that this grant's other writes have written to the state, for its last write.
    :param portions: the number of writes of this grant; each has its own chunk.
    :param grants: attempt and epoch of the grant of the last final transaction of each state; missing if unknown.
    :param over: grant that the fence of each state must still hold in a repair; None means no fence. A state without an
        entry may hold any grant.
    :param accepted: accepted facts about the content of each state, in the form of the topology record.
    """

    topology: str
    incarnation: str
    token: Token
    last_txids: Mapping[str, int]
    batch: FenceBatch | None = field(hash=False, default=None)
    births: Mapping[str, str] = field(hash=False, default_factory=dict)
    claim: Receipt | None = field(hash=False, default=None)
    written: Written = NOTHING_WRITTEN
    portions: int = 0
    noted: Mapping[str, str] = field(hash=False, default_factory=dict)
    grants: Mapping[str, Sequence[int]] = field(hash=False, default_factory=dict)
    over: Mapping[str, Token | None] = field(hash=False, default_factory=dict)
    accepted: Mapping[str, Mapping[str, Any]] = field(hash=False, default_factory=dict)

    @property
    def txid(self) -> int:
        return self.token.txid

    @property
    def attempt(self) -> TransactionAttempt:
        return TransactionAttempt(self.token.txid, self.token.attempt, self.token.birth)

    @property
    def is_skip(self) -> bool:
        """Whether the transaction is skipped, so that the committers do not write its output."""
        return self.batch is not None and self.batch.skip is not None

    @property
    def has_journal_entry(self) -> bool:
        """Whether the transaction has a journal entry. Always True for a grant that only reads."""
        return self.claim is None or self.claim.journal is not None

    @property
    def replaces(self) -> int | None:
        """The transaction whose rows a table removes in the same write. None if there is no such transaction."""
        claim = self.claim
        return claim.restates if claim is not None and claim.takes_out else None

    def receipt(self, state: str, written: Written) -> Receipt:
        """Return the receipt that a state keeps once its update is complete.

        :param written: the rows that the last write of the update wrote.
        """
        assert self.claim is not None, "a writer without it completes nothing"
        return self.claim.with_written({state: self.written + written})
