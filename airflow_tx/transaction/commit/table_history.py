"""A table that came back from a backup: which rows it lacks, and how they are written again. Source: protocol.md §5.

Each row of a table has its transaction. So rows and receipts are compared transaction by transaction, and a transaction
that is written again does not depend on rows that are there: one store transaction takes out what there is of it, and
of the transaction that it restates, and puts in its rows, its receipt and the fence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_tx.ledger import Grant, Outcome, Receipt, Rolling, Written
from airflow_tx.state import FencedState, Misfit, RowsInParts, RowTally, StoredState
from airflow_tx.transaction.commit.restatement import contributions
from airflow_tx.transaction.commit.roll_forward import MissingTransaction, RollForward
from airflow_tx.transaction.commit.state_history import StateHistory, StateLook
from airflow_tx.transaction.commit.write import RowsToWrite

if TYPE_CHECKING:
    from airflow_tx.outputs import Contribution, Entry

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class KeptRows(RowsInParts):
    """The rows of a table as its entry keeps them: read again at each iteration, in their order."""

    contribution: Contribution

    def parts(self) -> Iterator[Any]:
        return self.contribution.parts()


class TableHistory(StateHistory):
    """The transactions of a table, compared with its rows."""

    def has_values(self) -> bool:
        return any(txid is not None for txid in self._rows())

    def look_at_values(self, look: StateLook) -> StateLook:
        first, changes = self._lacks(self.last + 1, ())
        # The newest rows before it may be of an attempt that was outranked since: a row has no attempt.
        newest = max((txid for txid in self._rows() if txid and txid < first), default=first)
        return StateLook(look.found, min(newest, self.last), look.over, apart=True, changes=changes)

    def _compared(self, look: StateLook, *, undone: int) -> StateLook:
        first, changes = self._lacks(look.first, self._taken_out(look))
        if first == look.first:
            return StateLook(look.found, first, look.over, changes=changes)
        now = self.ledger.current
        if self.state.restored_by and any((txid or 0) >= now for txid in self._rows()):
            problem = f"it lacks rows of transaction {first}, and has rows of transaction {now}, which is open"
            raise self.refused(problem)
        return StateLook(look.found, first, look.over, apart=True)

    def _rows(self) -> Mapping[int | None, int]:
        return self.state.rows_by_txid() or {}

    def _taken_out(self, look: StateLook) -> Collection[int]:
        """Name the transaction whose rows the open one may have taken out, to replace them."""
        decisive = self.ledger.decisive
        opened = None if decisive is None else decisive.opened.get(look.found)
        replaces = None if opened is None else opened.replaces
        return () if replaces is None else (replaces["txid"],)

    def _lacks(self, end: int, taken_out: Collection[int]) -> tuple[int, int]:
        """Find the first transaction before `end` of which there are other rows than its receipt says; `end`: none.

        :param taken_out: transactions of which there may be no rows.
        :return: and how many of the accepted changes are in these rows: those with which the least is lacking.
        """
        rows = self._rows()
        expected = {txid: self._count(txid, end) for txid in self.written if txid < end}
        found = list[tuple[int, int]]()
        for number in range(len(self.accepted) + 1):
            lacking = (
                self._replaced.get(txid, txid) if txid in self._gone(end) else txid
                for txid, count in expected.items()
                if rows.get(txid, 0) != count and not (txid in taken_out and txid not in rows)
            )
            found.append((min(lacking, default=end), -number))
            if number < len(self.accepted):
                changed: Mapping[Any, int] = self.accepted[number].change.get("rows", {})
                now = {int(txid): count for txid, count in changed.items()}
                expected |= {txid: now[txid] for txid in now.keys() & expected.keys()}
        first, number = max(found)
        return first, -number

    def _count(self, txid: int, end: int) -> int:
        """Return how many rows of a transaction there are, once all transactions before `end` are committed."""
        keys: int = self.written[txid]["keys"]
        return 0 if txid in self._gone(end) else keys

    def _gone(self, end: int) -> Collection[int]:
        return {txid for txid, by in self._replaced.items() if by < end}

    @cached_property
    def _replaced(self) -> Mapping[int, int]:
        """Name, by transaction that was restated, the one that has taken its rows out."""
        return {
            each.replaces["txid"]: txid
            for txid, each in self.receipts.items()
            if each.replaces is not None and each.outcome == Outcome.COMMITTED.value
        }


class TableRollForward(RollForward):
    """The missing transactions of one table."""

    def history(self) -> TableHistory:
        assert isinstance(self._given, StoredState)
        return TableHistory(self._ledger, self._given)

    def take(
        self, history: StateHistory, look: StateLook, rolling: Rolling
    ) -> tuple[StateLook, list[MissingTransaction]]:
        if not history.state.restored_by:
            return super().take(history, look, rolling)
        # No fence of a lake is raised for a look: it has no row of the open transaction.
        found = history.look_at_values(look)
        return found, self.proved(history, found)

    def _rows_of(
        self, history: StateHistory, receipt: Receipt, entry: Entry
    ) -> MissingTransaction | None:
        own = contributions(entry, self._ledger.topology.renamed).get(history.state.name)
        if own is None:
            return None
        if own.refusal:
            raise history.refused(f"transaction {receipt.txid}: {own.refusal}")
        self._check_published(history, receipt, own)
        return MissingTransaction(receipt, KeptRows(own), metadata=entry.metadata)

    def _check_published(self, history: StateHistory, receipt: Receipt, own: Contribution) -> None:
        """Refuse files of a table that are not in its folder any more, as after VACUUM."""
        table = history.state.append_table
        if table is None:
            return
        try:
            table.check_there(list(own.rows()))
        except Misfit as error:
            raise history.refused(f"transaction {receipt.txid}: {error}") from None

    def _tallied(self, history: StateHistory, rows: RowsToWrite) -> Written:
        tally = RowTally(rows)
        is_of_files = history.state.append_table is not None
        count = 0
        for columns in tally.portions(_ROWS_AT_ONCE):
            counted = columns["rows"] if is_of_files else [len(next(iter(columns.values())))]
            count += sum(counted)
        return tally.written(count)

    def _write_one(self, state: FencedState, grant: Grant, missing: MissingTransaction) -> None:
        if missing.is_skip:
            super()._write_one(state, grant, missing)
        else:
            state.raise_and_write(grant, RowTally(missing.rows))
