"""The interface of a store of ackers; a backend is one file, and one line in the behaviour suite."""

from __future__ import annotations

from typing import Protocol

from airflow_tx.acks.reference import Origin
from airflow_tx.acks.tree import Portion, TreeReport


class AckerStore(Protocol):
    """Keeps the ackers of open transactions. Every method raises `AckersUnavailable` if the store does not answer.

    A call without an answer may have happened; each method can be called again with the same arguments.
    """

    def open(self, origin: Origin, birth: str, ackers: int) -> None:
        """Make an attempt the newest of its transaction, with so many ackers; ackers of an older attempt are dropped.

        :param birth: of the transaction.

        :raises StaleMessage: a newer attempt is open.
        """

    def check(self, origin: Origin) -> None:
        """Ask whether messages of an attempt are taken.

        :raises StaleMessage: a newer attempt is open.
        :raises UnknownMessage: its transaction is not open.
        """

    def take(self, origin: Origin, acker: int, portion: Portion) -> list[int]:
        """Apply a portion in one atomic operation, as `Acker.take`. Return the roots that the acker does not know.

        If the method raises an error, no part of the portion was applied.

        :raises StaleMessage: a newer attempt is open.
        :raises UnknownMessage: its transaction is not open.
        :raises AckersBehind: the store of the ackers has lost an earlier portion.
        """

    def fail(self, origin: Origin, reason: str) -> None:
        """Note that a message was failed; the first reason stays. Raises as `check`."""

    def report(self, origin: Origin) -> TreeReport:
        """Tell how the trees of an attempt are. Raises as `check`."""

    def forget(self, origin: Origin) -> None:
        """Drop the ackers of a transaction that has ended, and of all before it, in any attempt."""

    def close(self) -> None:
        """Give back the connection, if it is this object's own."""


def not_open(origin: Origin) -> str:
    """Word the problem of a transaction that no acker knows."""
    return f"transaction {origin.txid} is not open: it has ended, or the store of the ackers was emptied"
