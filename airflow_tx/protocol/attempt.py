"""Who writes: a transaction attempt, and the token of a grant. Source: docs/protocol.md, Storm's TransactionAttempt."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


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


@dataclass(frozen=True)
class Token:
    """What a grant of the commit turn is known by, in the ledger and in the fence of every state.

    Tokens compare by `rank`. Two tokens of equal rank and different nonce are two lives of one ledger: refused.

    :param generation: raised only by a repair.
    :param txid: the transaction that was granted.
    :param attempt: its attempt.
    :param epoch: grows with every grant and every restart of the transaction.
    :param nonce: random, of this grant alone.
    :param birth: random, of this transaction alone; "" if an older release began it.
    """

    generation: int
    txid: int
    attempt: int
    epoch: int
    nonce: str
    birth: str = ""

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The part that is compared."""
        return (self.generation, self.txid, self.attempt, self.epoch)

    def __str__(self) -> str:
        return f"{self.generation}/{self.txid}.{self.attempt}#{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON of all fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Token:
        """The token that `to_json` wrote."""
        return cls(**value)
