"""The ledger of a topology whose table is the source of another one. Source: docs/protocol.md §12."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.book import Book
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.life import Life
from airflow_tx.ledger.records import EndLine, TakenRange, TopologyRecord


@dataclass(frozen=True)
class UpstreamReading:
    """The ledger of an upstream topology, as a reader of one of its tables needs it.

    :param table: the name of the state.
    :param current: the txid whose turn it is: what comes before is final, and has a line.
    """

    ledger: ReadOnlyLedger = field(repr=False)
    table: str
    topology: TopologyRecord
    current: int

    @classmethod
    def of(cls, ledger: ReadOnlyLedger, table: str) -> UpstreamReading | None:
        """Read it; None: the topology has not begun."""
        topology = ledger.topology_if_any()
        return None if topology is None else cls(ledger, table, topology, ledger.current())

    @cached_property
    def _book(self) -> Book:
        return self.ledger.book()

    @cached_property
    def _life(self) -> Life:
        return Life.of(self.table, self.topology, self.ledger.repairs())

    @cached_property
    def _accepted(self) -> dict[int, int]:
        """Give the rows of the transactions whose number a person has changed, and accepted."""
        changes = (each.change.get("rows", {}) for each in self._life.changes)
        return {int(txid): rows for change in changes for txid, rows in change.items()}

    def line_if_any(self, txid: int) -> EndLine | None:
        """Read the line of a transaction; None: it has none, or had none yet when its page was read."""
        return self._book.line(txid)

    def line(self, txid: int) -> EndLine:
        """Read the line of a final transaction.

        :raises UnreadableRecord: there is none.
        """
        line = self.line_if_any(txid)
        if line is None:
            # A restatement that became final since its page was read.
            line = self.ledger.book().line(txid)
        if line is None:
            path = self.ledger.paths.ends
            raise UnreadableRecord(path=path, reason=f"it has no line of transaction {txid}")
        return line

    def lines(self, first: int, last: int) -> dict[int, EndLine]:
        """Read the lines of final transactions, by txid."""
        return self._book.lines(first, last)

    def rows_of(self, line: EndLine) -> int:
        """Count the rows that the table has of a transaction: as its line says, or as a person has accepted."""
        name = self._life.name_at(line.txid)
        written = 0 if name is None else line.rows.get(name, 0)
        return self._accepted.get(line.txid, written)

    def taken(self, first: int, last: int, most_rows: int | None = None) -> TakenRange:
        """Find which transactions count for the ones of a range, and how many rows each has.

        :param most_rows: the range ends before it has more; but it has one transaction with rows.
        """
        ends = dict[str, int]()
        counts = dict[str, int]()
        rows = 0
        for txid in range(first, last + 1):
            line = self.line(txid)
            end = line
            if line.counts:
                end = self.line(line.end) if line.end else line
                more = self.rows_of(end)
                if most_rows is not None and rows and rows + more > most_rows:
                    last = txid - 1
                    break
                rows += more
                counts[str(end.txid)] = more
            if end is not line:
                ends[str(txid)] = end.txid
        birth = self.line(last).birth
        return TakenRange(first, last, ends, counts, self.topology.incarnation, birth)

    @cached_property
    def chains_in_restatement(self) -> frozenset[int]:
        """Name the transactions whose chains are about to get another end: one is open, or requested."""
        opened = (each.replaces for each in self.ledger.open_records().values())
        begun = {each.begins for each in opened if each is not None}
        wanted = {wish.txid for wish in self.ledger.wishes()}
        lines = {txid: self.line_if_any(txid) for txid in wanted}
        return frozenset(begun | {(line and line.first) or txid for txid, line in lines.items()})

    def final_since(self, txid: int) -> datetime | None:
        """Read when a transaction became final; None: that is forgotten."""
        history = self.ledger.outcome(txid)
        return None if history is None else datetime.fromisoformat(history.final.when)

    def may_settle(self, taken: TakenRange) -> bool:
        """Ask whether the rows of a range may be there soon: something of the topology is open, or written again."""
        is_open = self.current <= self.ledger.allocated()
        return is_open or self.topology.rolling is not None or bool(self.ledger.wishes())
