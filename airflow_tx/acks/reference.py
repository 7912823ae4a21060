"""A message as a small text that travels anywhere: whose it is, in which trees it stands, and its id."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from airflow_tx.errors import NotAReference
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.paths import decode_name, encode_name

_SCHEME = "tx1"


class Origin(NamedTuple):
    """The attempt of a transaction that a message belongs to.

    :param incarnation: of the topology: another ledger may keep its ackers in the same store.
    """

    topology: str
    txid: int
    attempt: int
    incarnation: str = ""

    @property
    def place(self) -> str:
        """Name the topology in a store of ackers, and in a reference: no two ledgers have the same name."""
        return encode_name(self.topology) + (f"@{self.incarnation}" if self.incarnation else "")

    @property
    def words(self) -> dict[str, Any]:
        """Give the fields by which messages name it."""
        return {"topology": self.topology, "txid": self.txid, "attempt": self.attempt}

    def __str__(self) -> str:
        return f"transaction {self.txid}.{self.attempt} of {self.topology!r}"


def origin_of(topology: str, attempt: TransactionAttempt, incarnation: str) -> Origin:
    """Name the attempt of a topology that messages belong to."""
    return Origin(topology, attempt.txid, attempt.attempt, incarnation)


@dataclass(frozen=True)
class Lineage:
    """Whose a message is, and in which trees it stands: all messages of one tree have the same.

    :param trees: of each tree, its acker and the id of its root; none: nothing waits for the message.
    """

    origin: Origin
    trees: tuple[tuple[int, int], ...] = ()

    @cached_property
    def text(self) -> str:
        origin = self.origin
        trees = ",".join(f"{acker}.{root:016x}" for acker, root in self.trees)
        return f"{_SCHEME}:{origin.place}:{origin.txid}.{origin.attempt}:{trees}"

    @classmethod
    def parse(cls, text: str) -> Lineage:
        """Read what `text` wrote.

        :raises NotAReference: it is none.
        """
        try:
            scheme, place, attempt, trees = text.split(":")
            txid, _, number = attempt.partition(".")
            topology, _, incarnation = place.partition("@")
            origin = Origin(decode_name(topology), int(txid), int(number), incarnation)
            found = cls(origin, tuple(_tree(tree) for tree in trees.split(",") if tree))
        except ValueError:
            raise NotAReference(
                text=text[:120],
                problem=f"{_SCHEME}:TOPOLOGY@INCARNATION:TXID.ATTEMPT:TREES:ID is one",
            ) from None
        if scheme != _SCHEME:
            raise NotAReference(text=text[:120], problem=f"it does not begin with {_SCHEME!r}")
        return found


def _tree(text: str) -> tuple[int, int]:
    acker, _, root = text.partition(".")
    return int(acker), message_id(root)


@dataclass(frozen=True)
class Reference:
    """One message.

    :param lineage: the attempt of a transaction, and the trees that the message belongs to.
    :param id: its random id.
    """

    lineage: Lineage
    id: int

    def __str__(self) -> str:
        return f"{self.lineage.text}:{self.id:016x}"

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read what `str` wrote.

        :raises NotAReference: it is none.
        """
        lineage, number = split(text)
        return cls(Lineage.parse(lineage), number)


def split(text: str) -> tuple[str, int]:
    """Take a reference apart: the text of its lineage, and its id.

    :raises NotAReference: it has no id at its end.
    """
    try:
        lineage, _, number = text.rpartition(":")
        return lineage, message_id(number)
    except (AttributeError, TypeError, ValueError):
        raise NotAReference(
            text=str(text)[:120], problem="16 hexadecimal digits are missing at its end"
        ) from None


def message_id(text: str) -> int:
    """Read an id.

    :raises ValueError: it is not 16 hexadecimal digits.
    """
    if len(text) != 16:
        raise ValueError(text)
    return int.from_bytes(bytes.fromhex(text), "big")


def new_id() -> int:
    """Make 64 random bits, never 0; not from a generator that a fork would copy."""
    return int.from_bytes(os.urandom(8), "big") or 1
