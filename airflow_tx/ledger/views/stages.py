"""The stages of a chain of topologies: what a transaction has taken upstream, and which ones have taken it.

Source: docs/protocol.md §12.
"""

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
    """The way of one transaction through the stages of a chain.

    :param upstream: the topology that its topology reads; "": none.
    :param taken: what it has taken of that one; None: nothing that is known.
    :param downstream: by topology that reads its topology, the transaction that counts for its rows there; None: no
        transaction has taken it yet.
    """

    upstream: str
    taken: TakenRange | None
    downstream: Mapping[str, int | None]

    @classmethod
    def of(cls, ledger: ReadOnlyLedger, txid: int) -> ChainStages:
        """Read it. Raises UnreadableRecord, naming the record."""
        upstream = ledger.topology().upstream
        ranges = TakenRanges(ledger)
        line = ranges.book.line(txid)
        taken = None if line is None else line.taken
        if upstream and line is None and (batch := ledger.kept_batch(txid)) is not None:
            # The batch may be one of the source that the topology had before.
            with suppress(UnreadableRecord):
                taken = TakenRange.of(batch.rows)
        begins = txid if line is None else line.first or txid
        life = ledger.topology().incarnation
        down = {name: _counting_for(each, life, begins) for name, each in readers_of(ledger)}
        return cls(upstream, taken, down)

    @property
    def up_in_words(self) -> str | None:
        """Say which transactions it has taken, and what counts for them; None: it reads no topology."""
        if self.taken is None:
            return None
        ends = (f"{end} counts for {txid}" for txid, end in self.taken.ends.items())
        return "; ".join([f"{self.upstream} {self.taken}", *ends])

    @property
    def down_in_words(self) -> str | None:
        """Name the transactions that have taken it; None: no topology reads it."""
        told = (
            f"{name} {txid}" if txid is not None else f"{name}: not taken yet"
            for name, txid in self.downstream.items()
        )
        return "; ".join(told) or None


def _counting_for(reader: ReadOnlyLedger, life: str, txid: int) -> int | None:
    """Name the transaction of a reader that counts for one of this life of the ledger; None: it is not taken yet."""
    position = UpstreamPosition.of_reader(reader)
    is_other = position is not None and position.incarnation != life
    return None if is_other else TakenRanges(reader).counting_for(txid)


def readers_in_words(ledger: ReadOnlyLedger, becomes: str) -> str:
    """Name the topologies that read this one, and what becomes of them, as a sentence; "": none reads it."""
    names = ", ".join(name for name, _ in readers_of(ledger))
    return f"Topologies that read it: {names}. {becomes}" if names else ""


def readers_of(ledger: ReadOnlyLedger) -> Iterator[tuple[str, ReadOnlyLedger]]:
    """List the topologies whose source reads this one, by name; one that cannot be read is left out."""
    for name in listed_topologies(ledger.store, ledger.paths.root):
        own = ledger.beside(name)
        with suppress(UnreadableRecord):
            record = own.topology_if_any()
            if record is not None and record.upstream == ledger.paths.topology:
                yield name, own
