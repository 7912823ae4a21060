"""The ledger of an upstream topology, whose table is the source of another topology. Source: docs/protocol.md §12."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.api import listed_topologies
from airflow_tx.ledger.book import LINES_A_PAGE, Book
from airflow_tx.ledger.json_text import Int, Record, as_plain, read_as
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.life import RESET, Life
from airflow_tx.ledger.records import EndLine, TakenRange, TopologyRecord


class UpstreamPosition(Record, frozen=True):
    """The position of a source that reads the table of an upstream topology.

    :param incarnation: incarnation of the upstream ledger.
    :param txid: the last transaction that was read.
    :param birth: birth of that transaction; "" if it had no line in the book at that time.
    """

    incarnation: str
    txid: Int
    birth: str

    @classmethod
    def of(cls, position: Any) -> UpstreamPosition:
        """Create the position from the JSON of a source's position.

        :raises UnreadableRecord: the position belongs to a different kind of source.
        """
        return read_as(cls, position, "the position of the source")

    @classmethod
    def of_reader(cls, ledger: ReadOnlyLedger) -> UpstreamPosition | None:
        """Read a topology's position. Return None if it has read nothing, or now has a different kind of source."""
        with suppress(UnreadableRecord):
            return cls.of(ledger.position())
        return None

    @classmethod
    def behind(cls, taken: TakenRange) -> UpstreamPosition:
        """Return the position after a range of upstream transactions."""
        return cls(taken.incarnation, taken.last, taken.birth)

    def to_json(self) -> Any:
        """Return the position as plain JSON."""
        return as_plain(self)

    def difference(self, ledger: ReadOnlyLedger, upstream: UpstreamReading | None) -> str | None:
        """Describe in a clause how the upstream topology has changed since it was read.

        Return None if it has not changed.

        :param ledger: the ledger that has the name of the upstream topology now.
        :param upstream: the current content of that ledger; None if there is no such ledger.
        """
        name = f"topology {ledger.paths.topology!r}"
        if upstream is None:
            if now := self.called_now(ledger):
                return f"{name} is called {now!r} now"
            return f"{name} has no ledger any more, and transaction {self.txid} of it was read"
        if upstream.topology.incarnation != self.incarnation:
            return f"{name} was reset after transaction {self.txid} was read"
        if upstream.current <= self.txid:
            next_one = f"its transaction {upstream.current} is next, and {self.txid} was read"
            return f"{name} went back: {next_one}"
        line = upstream.line_if_any(self.txid)
        if line is not None and self.birth and line.birth != self.birth:
            return f"{name} went back: its transaction {self.txid} is another one than the one that was read"
        return None

    def called_now(self, ledger: ReadOnlyLedger) -> str | None:
        """Return the current name of the topology that was read. Return None if it no longer exists."""
        for name in listed_topologies(ledger.store, ledger.paths.root):
            with suppress(UnreadableRecord):
                record = ledger.beside(name).topology_if_any()
                if record is not None and record.incarnation == self.incarnation:
                    return name
        return None


@dataclass(frozen=True)
class UpstreamReading:
    """The ledger of an upstream topology, for a reader of one of its tables.

    :param table: name of the state that represents the table.
    :param current: the transaction that has the turn. Earlier transactions are final and have lines.
    """

    ledger: ReadOnlyLedger = field(repr=False)
    table: str
    topology: TopologyRecord
    current: int

    @classmethod
    def of(cls, ledger: ReadOnlyLedger, table: str) -> UpstreamReading | None:
        """Read the ledger of an upstream topology. Return None if the topology has not begun."""
        topology = ledger.topology_if_any()
        return None if topology is None else cls(ledger, table, topology, ledger.current())

    @classmethod
    def of_reader(
        cls, ledger: ReadOnlyLedger, table: str = ""
    ) -> tuple[UpstreamReading | None, str | None]:
        """Read a topology's upstream ledger, and compare it with the topology's position.

        :param ledger: the ledger of the reading topology.
        :return: the reading (None if the upstream topology has not begun), and a clause that describes the difference
            (None if there is none).
        """
        place = ledger.beside(ledger.topology().upstream)
        upstream = cls.of(place, table)
        before = UpstreamPosition.of_reader(ledger)
        return upstream, None if before is None else before.difference(place, upstream)

    @cached_property
    def _book(self) -> Book:
        return self.ledger.book()

    @cached_property
    def _life(self) -> Life:
        return Life.of(self.table, self.topology, self.ledger.repairs())

    @cached_property
    def _accepted(self) -> dict[int, int]:
        """The row counts after accepted manual changes, by txid."""
        changes = (each.change.get("rows", {}) for each in self._life.changes)
        return {int(txid): rows for change in changes for txid, rows in change.items()}

    def line_if_any(self, txid: int) -> EndLine | None:
        """Return the line of a transaction. Return None if there was no line when the page was read."""
        return self._book.line(txid)

    def line(self, txid: int) -> EndLine:
        """Return the line of a final transaction.

        :raises UnreadableRecord: there is no such line.
        """
        line = self.line_if_any(txid)
        if line is None:
            # A restatement may have become final after its page was read.
            line = self.ledger.book().line(txid)
        if line is None:
            path = self.ledger.paths.ends
            raise UnreadableRecord(path=path, reason=f"it has no line of transaction {txid}")
        return line

    def lines(self, first: int, last: int) -> dict[int, EndLine]:
        """Return the lines of final transactions, by txid."""
        return self._book.lines(first, last)

    def rows_of(self, line: EndLine) -> int:
        """Return a transaction's number of rows in the table, from its line or from an accepted change."""
        name = self._life.name_at(line.txid)
        written = 0 if name is None else line.rows.get(name, 0)
        return self._accepted.get(line.txid, written)

    def taken(self, first: int, last: int, most_rows: int | None = None) -> TakenRange:
        """Return the range from `first` to `last`, with the transactions that count and their numbers of rows.

        :param most_rows: maximum number of rows. A range with more rows ends earlier, but has at least one transaction
            with rows.
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
        """The first transaction of each chain that has an open or requested restatement."""
        opened = (each.replaces for each in self.ledger.open_records().values())
        begun = {each.begins for each in opened if each is not None}
        wanted = {wish.txid for wish in self.ledger.wishes()}
        lines = {txid: self.line_if_any(txid) for txid in wanted}
        return frozenset(begun | {(line and line.first) or txid for txid, line in lines.items()})

    def left_from(self, first: int) -> int:
        """Return the number of transactions from `first` on that are not yet taken. Restatements do not count."""
        left = max(self.current - first, 0)
        if left > LINES_A_PAGE:
            return left  # reading the pages up to such a large txid would take too long
        return left - sum(bool(line.first) for line in self.lines(first, self.current - 1).values())

    def may_have_lost(self, before: UpstreamPosition) -> bool:
        """Return whether the upstream ledger may have been set back: it is shorter than before, but was not reset."""
        is_same = self.topology.incarnation == before.incarnation
        was_reset = not is_same and any(each.what == RESET for each in self.ledger.repairs())
        return self.current <= before.txid and not was_reset

    def final_since(self, txid: int) -> datetime | None:
        """Read when a transaction became final. Return None if the ledger has forgotten the time."""
        history = self.ledger.outcome(txid)
        return None if history is None else datetime.fromisoformat(history.final.when)

    def may_settle(self, taken: TakenRange) -> bool:
        """Return whether missing rows of a range may soon appear, for example while a transaction is open."""
        is_open = self.current <= self.ledger.allocated()
        return is_open or self.topology.rolling is not None or bool(self.ledger.wishes())
