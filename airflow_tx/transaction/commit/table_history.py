"""Find and write the rows that a table lacks after a restore from a backup. Source: protocol.md §5.

Each row of a table has its txid, so rows and receipts can be compared by transaction. A transaction can be written
again regardless of the rows that the table already has. One store transaction removes the rows of the transaction, and
the rows of the transaction that it restates. It then writes the rows, the receipt and the fence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from airflow_tx.base.errors import JournalError, RollForwardRefused, StateError
from airflow_tx.ledger import (
    Grant,
    Outcome,
    Pending,
    Receipt,
    RepairRecord,
    RolledState,
    Rolling,
    Written,
    renamed_since,
)
from airflow_tx.outputs import Contribution, Entry
from airflow_tx.state import Fence, FencedState, Misfit, RowsInParts, RowTally, StoredState
from airflow_tx.transaction.commit.contributions import ReplacedThen
from airflow_tx.transaction.commit.restatement import contributions
from airflow_tx.transaction.commit.roll_forward import MissingTransaction, RollForward
from airflow_tx.transaction.commit.state_history import StateHistory, StateLook

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class KeptRows(RowsInParts):
    """The rows of a table in a journal entry. Each iteration reads the rows again, in their order."""

    contribution: Contribution

    def parts(self) -> Iterator[Any]:
        return self.contribution.parts()


class TableHistory(StateHistory):
    """The transactions of a table, compared with the rows of the table."""

    def has_values(self) -> bool:
        return any(txid is not None for txid in self._rows())

    def look_at_values(self, look: StateLook) -> StateLook:
        first, pending = self._lacks(self.last + 1, ())
        # A row does not show its attempt. So the newest rows before `first` may be rows of an
        # outranked attempt.
        newest = max((txid for txid in self._rows() if txid and txid < first), default=first)
        return replace(look, first=min(newest, self.last), apart=True, pending=pending)

    def _compared(self, look: StateLook, fence: Fence, *, undone: int) -> StateLook:
        first, pending = self._lacks(look.first, self._taken_out(look), fence)
        if first == look.first:
            return replace(look, pending=pending)
        now = self.ledger.current
        if self.state.restored_by and any((txid or 0) >= now for txid in self._rows()):
            problem = (
                f"it lacks rows of transaction {first}, but has rows of the open transaction {now}"
            )
            raise self.refused(problem)
        return self.look_at_values(look)

    def _rows(self) -> Mapping[int | None, int]:
        return self.state.rows_by_txid() or {}

    def _taken_out(self, look: StateLook) -> Collection[int]:
        """Return the transaction that the open restatement replaces, whose rows may already be removed."""
        decisive = self.ledger.decisive
        opened = None if decisive is None else decisive.opened.get(look.found)
        replaces = None if opened is None else opened.replaces
        return () if replaces is None else (replaces.txid,)

    def _lacks(
        self, end: int, taken_out: Collection[int], fence: Fence | None = None
    ) -> tuple[int, Pending]:
        """Find the first transaction before `end` whose number of rows differs from its receipt.

        :param taken_out: transactions that may have no rows, since a restatement may have removed them.
        :param fence: the fence, or None if fence and rows may be from different moments.
        :return: the transaction and the accepted changes that the rows lack. Without a difference, the transaction is
            `end`. The changes are chosen so that the fewest transactions are missing.
        """
        rows = self._rows()
        mark = 0 if fence is None else fence.change
        open_ = [each for each in self.life.changes if each.number > mark]
        expected = self._expected(end, fence)
        for each in self.life.changes:
            expected |= _changed(each, expected) if each not in open_ else {}
        found = list[tuple[int, int]]()
        for number in range(len(open_) + 1):
            lacking = (
                self.replaced.get(txid, txid) if txid in self._gone(end) else txid
                for txid, count in expected.items()
                if rows.get(txid, 0) != count and not (txid in taken_out and txid not in rows)
            )
            found.append((min(lacking, default=end), -number))
            if number < len(open_):
                expected |= _changed(open_[number], expected)
        first, number = max(found)
        return first, Pending(tuple(open_[-number:]))

    def _expected(self, end: int, fence: Fence | None) -> dict[int, int]:
        """Return the expected number of rows of each transaction after all transactions before `end`."""
        as_of = None if fence is None else fence.token.generation
        rolling = self.ledger.topology.rolling
        runs = [] if rolling is None else rolling.nonces
        is_passing = fence is not None and fence.token.nonce in runs
        holes = self.life.holes if is_passing else self.life.holes - self.life.passing
        gone = {*self._gone(end), *self.passed(holes)}
        return {
            txid: 0 if txid in gone or not is_kept else part.keys
            for txid, part in self.written.items()
            if txid < end and (is_kept := self.life.kept(txid, as_of)) is not None
        }

    def passed(self, holes: Collection[int]) -> list[int]:
        """Return the transactions in `holes` that have no row in the table."""
        rows = self._rows()
        return [txid for txid in sorted(holes) if not rows.get(txid)]

    def _gone(self, end: int) -> Collection[int]:
        return {txid for txid, by in self.replaced.items() if by < end}

    @cached_property
    def replaced(self) -> Mapping[int, int]:
        """Return, by restated transaction, the restatement that has removed its rows."""
        return {
            each.replaces.txid: txid
            for txid, each in self.receipts.items()
            if each.replaces is not None and each.outcome == Outcome.COMMITTED.value
        }


def _changed(repair: RepairRecord, expected: Mapping[int, int]) -> dict[int, int]:
    changed: Mapping[Any, int] = repair.change.get("rows", {})
    now = {int(txid): count for txid, count in changed.items()}
    return {txid: now[txid] for txid in now.keys() & expected.keys()}


class TableRollForward(RollForward):
    """The roll forward of one table."""

    def history(self) -> TableHistory:
        assert isinstance(self._given, StoredState)
        return TableHistory(self._ledger, self._given, self._changed)

    def take(
        self, history: StateHistory, look: StateLook, rolling: Rolling
    ) -> tuple[StateLook, list[MissingTransaction]]:
        self._restate = False  # The ledger has the transactions that are left out.
        if not history.state.restored_by:
            return super().take(history, look, rolling)
        # A lake table never has rows of the open transaction, so its fence need not be raised
        # first.
        found = history.look_at_values(look)
        return found, self.proved(history, found)

    def rolled(self, history: StateHistory, last: Receipt, look: StateLook) -> RolledState:
        assert isinstance(history, TableHistory)
        holes = history.passed({*history.life.holes, *self._passed})
        return replace(super().rolled(history, last, look), holes=holes)

    def _missing(self, history: StateHistory, txid: int) -> MissingTransaction:
        try:
            return super()._missing(history, txid)
        except RollForwardRefused as refused:
            if isinstance(refused.__cause__, StateError):
                raise  # The table is currently unreachable.
            problem = refused.fields["problem"]
            receipt = history.receipts[txid]
            lacking = MissingTransaction(receipt, self._batch(receipt, self._metadata(receipt)))
            if not history.written[txid].keys:
                return lacking
            if not self._restate and txid not in {*history.life.holes, *self._passed}:
                remedy = history.state.remedy_without_rows(self._ledger.name)
                raise history.refused(problem, remedy) from refused
            self._passed.add(txid)
            return replace(lacking, lacking=problem)

    def _metadata(self, receipt: Receipt) -> Any:
        """Return the batch metadata from the journal, for the fence. A receipt may only have a digest of it."""
        with suppress(JournalError):
            return self._journal.read(receipt.journal or "").metadata
        return receipt.metadata

    def _rows_of(
        self, history: StateHistory, receipt: Receipt, entry: Entry, *, done: ReplacedThen
    ) -> MissingTransaction | None:
        renamed = renamed_since(self._ledger.repairs, entry.contributions, entry.txid)
        own = contributions(entry, renamed).get(history.state.name)
        if own is None:
            return None
        if own.refusal:
            raise history.refused(f"transaction {receipt.txid}: {own.refusal}")
        self._check_published(history, receipt, own)
        return MissingTransaction(receipt, self._batch(receipt, entry.metadata), KeptRows(own))

    def _check_published(self, history: StateHistory, receipt: Receipt, own: Contribution) -> None:
        """Refuse a transaction whose files are no longer in the folder of the table, such as after VACUUM."""
        table = history.state.append_table
        if table is None:
            return
        try:
            table.check_there(list(own.rows()))
        except Misfit as error:
            raise history.refused(f"transaction {receipt.txid}: {error}") from None

    def _tallied(self, history: StateHistory, found: MissingTransaction) -> Written:
        tally = RowTally(found.rows)
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
