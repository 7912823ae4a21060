"""The related transactions in other topologies of a chain. Source: docs/protocol.md §12."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.api import listed_topologies
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.records import TakenRange
from airflow_tx.ledger.upstream.corrections import TakenRanges
from airflow_tx.ledger.upstream.reading import UpstreamPosition


@dataclass(frozen=True)
class ChainStages:
    """The transactions related to one transaction in a chain of topologies.

    :param upstream: the topology that this topology reads; "" if there is none.
    :param taken: the range of upstream transactions that it took; None if unknown.
    :param downstream: the transaction that has the rows, by topology that reads this one. None if no transaction has
        taken them yet.
    """

    upstream: str
    taken: TakenRange | None
    downstream: Mapping[str, int | None]

    @classmethod
    def of(cls, ledger: ReadOnlyLedger, txid: int) -> ChainStages:
        """Read the upstream and downstream transactions that belong to a transaction.

        :raises UnreadableRecord: a record cannot be read. The error names the record.
        """
        upstream = ledger.topology().upstream
        ranges = TakenRanges(ledger)
        line = ranges.book.line(txid)
        taken = None if line is None else line.taken
        if upstream and line is None and (batch := ledger.kept_batch(txid)) is not None:
            # The topology's previous source may have decided the batch.
            with suppress(UnreadableRecord):
                taken = TakenRange.of(batch.rows)
        begins = txid if line is None else line.first or txid
        life = ledger.topology().incarnation
        down = {name: _counting_for(each, life, begins) for name, each in readers_of(ledger)}
        return cls(upstream, taken, down)

    @property
    def up_in_words(self) -> str | None:
        """Describe the upstream transactions that this one took, and which restatements count.

        Return None if it took none.
        """
        if self.taken is None:
            return None
        ends = (f"{end} counts instead of {txid}" for txid, end in self.taken.ends.items())
        return "; ".join([f"{self.upstream} {self.taken}", *ends])

    @property
    def down_in_words(self) -> str | None:
        """Describe the transactions that took this one. Return None if no topology reads this topology."""
        told = (
            f"{name} {txid}" if txid is not None else f"{name}: not read yet"
            for name, txid in self.downstream.items()
        )
        return "; ".join(told) or None


def _counting_for(reader: ReadOnlyLedger, life: str, txid: int) -> int | None:
    """Return the reader's transaction that counts for an upstream transaction. Return None if none has taken it yet."""
    position = UpstreamPosition.of_reader(reader)
    is_other = position is not None and position.incarnation != life
    return None if is_other else TakenRanges(reader).counting_for(txid)


def readers_in_words(ledger: ReadOnlyLedger, becomes: str) -> str:
    """Describe the topologies that read this one, and the effect on them. Return "" if there are none."""
    names = ", ".join(name for name, _ in readers_of(ledger))
    return f"Topologies that read it: {names}. {becomes}" if names else ""


def readers_of(ledger: ReadOnlyLedger) -> Iterator[tuple[str, ReadOnlyLedger]]:
    """Yield the topologies whose sources read this one, by name. Unreadable topologies are left out."""
    for name in listed_topologies(ledger.store, ledger.paths.root):
        own = ledger.beside(name)
        with suppress(UnreadableRecord):
            record = own.topology_if_any()
            if record is not None and record.upstream == ledger.paths.topology:
                yield name, own
