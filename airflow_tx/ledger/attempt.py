"""Attempts, tries, and the grant that an attempt is given, with its token. Source: Storm's TransactionAttempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_tx.base.remedy import Command
from airflow_tx.ledger.receipt import NOTHING_WRITTEN, FenceBatch, Receipt, Written


@dataclass(frozen=True, order=True)
class TransactionAttempt:
    """One replay of one transaction.

    :param txid: integer from 1, the same however often the batch is replayed.
    :param attempt: integer from 1, one more for every replay.
    :param birth: random, of this transaction alone: a ledger that was reset, repaired or set back gives txids again.
        "" if it is not known.
    """

    txid: int
    attempt: int
    birth: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.txid}.{self.attempt}"


def instance_name(task: str, map_index: int) -> str:
    """Name a task instance, such as `load` or `load[2]`."""
    return task if map_index < 0 else f"{task}[{map_index}]"


_NUMBER = "."


@dataclass(frozen=True)
class TaskTry:
    """One try of one task instance.

    :param task_id: the task.
    :param map_index: -1 if the task is not mapped.
    :param task_try: the task instance's id and the number of the try, kept over a deferral. Most retries and clears get
        another id; see `same_instance`.
    """

    task_id: str
    map_index: int
    task_try: str

    def __str__(self) -> str:
        return instance_name(self.task_id, self.map_index)

    def same_instance(self, task_try: str) -> bool:
        """Whether another try has this one's id, so that Airflow takes the result of either for both.

        It does not change the id of a task that it fails while it is queued: a resumed leg has it, which then works
        beside the retry.
        """
        return self.task_try.partition(_NUMBER)[0] == task_try.partition(_NUMBER)[0]


LANE_TRY = "lane-"
"""How the try of a lane begins, by which it has begun its transactions; no step asks for it."""


def of_lane(task_try: str) -> bool:
    """Whether it is a lane that has begun a transaction, by the try that did."""
    return task_try.startswith(LANE_TRY)


@dataclass(frozen=True)
class Token:
    """The identity of a grant of the commit turn, in the ledger and in the fence of every state.

    Tokens compare by `rank`. Two tokens of equal rank and different nonce are two lives of one ledger: refused.

    :param generation: raised only by a repair.
    :param txid: the transaction that was granted.
    :param attempt: its attempt.
    :param epoch: grows with every grant and every restart of the transaction.
    :param nonce: random, of this grant alone.
    :param birth: random, of this transaction alone.
    """

    generation: int
    txid: int
    attempt: int
    epoch: int
    nonce: str
    birth: str = ""

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Give the part that is compared."""
        return (self.generation, self.txid, self.attempt, self.epoch)

    @property
    def is_look(self) -> bool:
        """Whether a roll forward has raised a fence only to look at the values; no transaction has attempt 0."""
        return (self.attempt, self.epoch) == (0, 0)

    def by_hand(self, births: Mapping[str, int], state: str, topology: str) -> dict[str, Any]:
        """Word the refusal of a fence whose txid was raised by hand; empty: as far as is known it was not.

        :param births: per birth, the txid of its transaction.
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
    """The right to write one transaction's updates, as the ledger gave it.

    :param topology: name of the topology, for messages.
    :param incarnation: uuid of this life of the ledger.
    :param token: outranks every earlier grant.
    :param last_txids: per state name, the last txid that became final in it; without entry: new to this ledger.
    :param births: per state name, the birth that its fence holds if the token has another one; without entry: any.
    :param batch: what the fence is to keep of the transaction; None for a look, and for a writer that raises no fence.
    :param claim: the known part of the transaction's receipt before the first write; None for a look, and for a writer
        that completes nothing.
    :param noted: per transactional state, what an earlier grant was about to write, as the ledger knows it: for a fence
        without this text.
    :param written: what other writes of this grant have written to the state, for the one that completes them.
    :param portions: how many those writes are, each with a chunk of its own.
    :param grants: per state, attempt and epoch of the grant of its last final transaction; without entry: unknown.
    :param over: of a repair: per state, the grant that its fence has to hold still, None: none; without entry: any.
    :param accepted: per state what people have accepted of it, as the topology record keeps it.
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
        """Whether the transaction is skipped: no write of its own follows."""
        return self.batch is not None and self.batch.skip is not None

    @property
    def has_journal_entry(self) -> bool:
        """Whether its transaction has a journal entry. Of a look, which has no transaction, it is true."""
        return self.claim is None or self.claim.journal is not None

    @property
    def replaces(self) -> int | None:
        """Name the transaction whose rows a table takes out with it; None: it takes out none."""
        claim = self.claim
        return claim.restates if claim is not None and claim.takes_out else None

    def receipt(self, state: str, written: Written) -> Receipt:
        """Return the receipt that a state keeps once its update is complete.

        :param written: by the write that completes it.
        """
        assert self.claim is not None, "a writer without it completes nothing"
        return self.claim.with_written({state: self.written + written})
