"""The transactions of one state, found by comparing receipts, fence and values."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from airflow_tx.base.errors import RollForwardRefused, StateError, UnreadableRecord
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import (
    NOTHING_PENDING,
    LedgerEvidence,
    Life,
    Pending,
    Receipt,
    RepairRecord,
    Token,
    Written,
)
from airflow_tx.state import Fence, StoredState


@dataclass(frozen=True)
class StateLook:
    """The transactions that a state has, and those to write again.

    :param found: the txid in the fence, or 0 if the state has no fence.
    :param first: the first transaction to write again. If it is later than the last transaction, no transaction is
        missing.
    :param over: the token in the fence. It must be unchanged when the roll forward raises the fence.
    :param apart: whether values and fence are from different moments. Then only the values count.
    :param pending: the accepted changes that the values may lack.
    :param change: the newest accepted change in the fence.
    :param heals: whether transactions are also written if their loss was accepted.
    :param named: the name of the state when its fence was raised, or "" for the current name.
    """

    found: int
    first: int
    over: Token | None
    apart: bool = False
    pending: Pending = NOTHING_PENDING
    change: int = 0
    named: str = ""
    heals: bool = True


class StateHistory:
    """The transactions of one state.

    :param ledger: a reading of the ledger at one moment.
    :param state: the state.
    :param changed: numbers of the repairs whose accepted change is in the values, according to a person.
    """

    def __init__(
        self, ledger: LedgerEvidence, state: StoredState, changed: Collection[int] = ()
    ) -> None:
        self.ledger = ledger
        self.state = state
        self._changed = changed

    @cached_property
    def receipts(self) -> Mapping[int, Receipt]:
        """Return the receipts of final transactions, by txid.

        Receipts that the ledger no longer has are read from the state.
        """
        found = dict(self._own)
        for txid, history in self.ledger.histories.items():
            if history.receipt is not None:
                found[txid] = history.receipt
        own = self.ledger.topology.incarnation
        return {
            txid: each
            for txid, each in sorted(found.items())
            if each.incarnation == own and txid < self.ledger.current
        }

    @cached_property
    def _own(self) -> Mapping[int, Receipt]:
        found = dict[int, Receipt]()
        for stored in self.state.receipts() or ():
            with suppress(ValueError, UnreadableRecord):
                found[stored.txid] = Receipt.from_json(json.loads(stored.text))
        own = self.ledger.topology.incarnation
        return {txid: each for txid, each in found.items() if each.incarnation == own}

    @cached_property
    def life(self) -> Life:
        """Return the life of the state, as the glossary defines it."""
        ledger = self.ledger
        return Life.of(self.state.name, ledger.topology, ledger.repairs, self.receipts, self._own)

    @property
    def written(self) -> Mapping[int, Written]:
        """Return the written counts of each transaction, in the order of txids."""
        return self.life.given

    @cached_property
    def last(self) -> int:
        """Return the last final transaction that wrote to the state, or 0 if there is none."""
        return max(
            max(self.written, default=0), self.ledger.topology.states.get(self.state.name, 0)
        )

    def before(self, txid: int) -> int | None:
        """Return the state's last transaction before a txid, or None if there is no earlier transaction."""
        return max((each for each in self.written if each < txid), default=None)

    def without_receipt(self, look: StateLook) -> list[int]:
        """Return the transactions whose values the state still has, but whose receipts were lost with a newer fence."""
        own = {txid: each.nonce for txid, each in self._own.items()}
        return [
            txid
            for txid in self.written
            if look.found <= txid < look.first
            and own.get(txid) != self.receipts[txid].nonce
            and not self.life.is_accepted(txid)
        ]

    def refused(self, problem: str, remedy: Remedy | str = "") -> RollForwardRefused:
        """Return the error for a state that cannot be rolled forward."""
        name = self.state.name
        return RollForwardRefused(
            state=name,
            topology=self.ledger.name,
            problem=problem,
            remedy=remedy or self.state.remedy_lost(self.ledger.name),
        )

    # --- what is there ----------------------------------------------------------------------------------------------

    def has_values(self) -> bool:
        """Return whether the state has values."""
        return bool(self.state.read(limit=1))

    def look(self) -> StateLook:
        """Read from the fence which transactions the state has, and compare the fence with the values.

        :raises RollForwardRefused: fence and values do not identify these transactions.
        """
        named, fence = self._fence()
        return replace(self._look(fence), named=named)

    def _fence(self) -> tuple[str, Fence | None]:
        """Return the name of the state in the fence, and the fence. The name is "" if it is the current name.

        If the state was renamed after the backup, the fence in the backup has the earlier name.
        """
        fence = self.state.fence()
        for segment in reversed(self.life.segments[:-1]):
            if fence is not None:
                break
            try:
                fence = self.state.fence_of(segment.name)
            except StateError as error:
                raise self.refused(str(error)) from error
            if fence is not None:
                return segment.name, fence
        return "", fence

    def _look(self, fence: Fence | None) -> StateLook:
        if fence is None:
            if self.has_values():
                raise self.refused("it has values but no fence")
            if not self.life.began_empty:
                raise self.refused(
                    "it is empty, but no record says that it was empty before its first transaction"
                )
            life = self.life
            heals = None in map(life.kept, life.given)
            changes = Pending(life.changes)
            return StateLook(0, life.first, None, pending=changes, heals=heals or not life.losses)
        found = fence.token.txid
        if fence.incarnation != self.ledger.topology.incarnation:
            raise self.refused(f"its fence belongs to another ledger ({fence.incarnation})")
        if fence.token.is_look:
            # An earlier roll forward ended before it wrote. It raised this fence, which names no
            # transaction that the state has. So only the values show which transactions the state
            # has.
            before = fence.covered or fence
            return StateLook(
                before.token.txid, self.last, fence.token, apart=True, change=fence.change
            )
        if found >= self.ledger.current:
            return self._look_at_open(fence)
        receipt = self.receipts.get(found)
        if receipt is None:
            raise self.refused(
                f"its fence says transaction {found}, but the receipt of that transaction is gone"
            )
        if fence.token.birth != receipt.birth:
            raise self.refused(f"its fence says transaction {found}, but with another birth")
        marked = (receipt.attempt, receipt.epoch)
        whole = fence.applied and (fence.token.attempt, fence.token.epoch) == marked
        look = StateLook(found, found + whole, fence.token, change=fence.change)
        return self._compared(look, fence, undone=0 if whole else found)

    def _look_at_open(self, fence: Fence) -> StateLook:
        """Find out which transactions a state has if the open transaction raised its fence."""
        found = fence.token.txid
        decisive = self.ledger.decisive
        opened = None if decisive is None else decisive.opened.get(found)
        known = opened is not None and opened.birth == fence.token.birth
        if found > self.ledger.current or not known:
            self._check_by_hand(fence)
            remedy = "Repair the ledger first: " + Command.of(
                "repair", self.ledger.name, "--ledger-lost"
            )
            raise self.refused(
                f"its fence says transaction {found}, which the ledger does not know", remedy
            )
        look = StateLook(found, found, fence.token, change=fence.change)
        return self._compared(look, fence, undone=found)

    def _check_by_hand(self, fence: Fence) -> None:
        """Refuse a fence with a manually raised txid, since no ledger has such a transaction."""
        births = {each.birth: txid for txid, each in self.receipts.items()}
        opened = () if self.ledger.decisive is None else self.ledger.decisive.opened.items()
        births |= {record.birth: txid for txid, record in opened}
        told = fence.token.by_hand(births, self.state.name, self.ledger.name)
        if told:
            raise self.refused(**told)

    def look_at_values(self, look: StateLook) -> StateLook:
        """Read from the values, without the fence, which transactions the state has.

        When this method is called, no other process writes the state, and the rows of the open transaction are undone.

        :raises RollForwardRefused: the values do not identify these transactions, or contradict the receipts.
        """
        return self._looked_at(look, self.state.rows_by_grant() or {})

    def _looked_at(self, look: StateLook, rows: Mapping[tuple[int, int, int], int]) -> StateLook:
        newest = self._newest(rows)
        first = newest or self.life.first
        told = self._totals(first)
        if told is None or self.life.unknown(first - 1):
            raise self._apart(
                f"no receipt says what the values up to transaction {first} add up to"
            )
        pending = self.life.changes_after(first - 1, 0, told)
        if pending is None and self._fits(rows, newest + 1, 0):
            # Rows that were later undone hide the values before the newest transaction. The newest
            # transaction is complete, so it is enough to compare the values after it.
            first = newest + 1
            pending = self.life.changes_after(newest, 0, self._totals(0))
        if pending is None:
            what = f"the values up to transaction {first}"
            raise self._apart(f"{what} do not add up to the totals in its receipts")
        first = min(first, self.last)
        return replace(look, first=first, apart=True, pending=pending)

    def _apart(self, problem: str) -> RollForwardRefused:
        return self.refused(f"its fence and its values are from different moments, and {problem}")

    def _compared(self, look: StateLook, fence: Fence, *, undone: int) -> StateLook:
        """Compare the fence with the values.

        :param undone: the transaction whose rows are undone when the fence is raised, or 0 if there is none.
        """
        rows = self.state.rows_by_grant()
        totals = self._totals(undone)
        pending = self.life.changes_after(
            look.first - 1, fence.change, totals, as_of=fence.token.generation
        )
        if rows is None:
            # When the fence is raised, the state compares its values with the imprint in the fence.
            return replace(look, pending=pending or Pending(self.life.changes, asked=True))
        if pending is not None:
            there = [
                each
                for each in self.life.changes
                if each not in pending.missing or each.number in self._changed
            ]
            if self._fits(rows, look.first, undone, there, as_of=fence.token.generation):
                return replace(look, pending=pending)
        taken_out = any(txid >= self.ledger.current and epoch for txid, _, epoch in rows)
        if taken_out or self._has_moved(look):
            # The values show their transactions only if no other process writes during the reading.
            return replace(look, first=self._newest(rows) or self.life.first, apart=True)
        return self._looked_at(look, rows)

    def _has_moved(self, look: StateLook) -> bool:
        """Return whether a commit has started since the fence was read, so that fence and values may differ in time."""
        _, fence = self._fence()
        return fence is None or fence.token != look.over

    def _fits(
        self,
        rows: Mapping[tuple[int, int, int], int],
        first: int,
        undone: int,
        changes: Sequence[RepairRecord] = (),
        *,
        as_of: int = 0,
    ) -> bool:
        """Return whether the newest rows belong to the last transaction before `first` that wrote rows.

        :param rows: the number of rows by txid, attempt and epoch.
        :param undone: the transaction whose rows are undone, or 0 if there is none.
        :param changes: the accepted changes that the values have. Keys from before such a change may be missing.
        :param as_of: the generation of the fence, or 0 if it is unknown. Only losses that were accepted before that
            generation are considered.
        """
        kept = self.life.kept
        wrote = [
            txid
            for txid, each in self.written.items()
            if txid < first and each.keys and kept(txid, as_of) is not False
        ]
        last = max(wrote, default=0)
        newer = {grant: count for grant, count in rows.items() if grant[0] > last}
        # A row of epoch 0 has its value from before the transaction, since the attempt that wrote
        # it is undone.
        if any(txid != undone and epoch for txid, _, epoch in newer):
            return False
        if not last:
            return True
        receipt = self.receipts[last]
        own = {grant[1:]: count for grant, count in rows.items() if grant[0] == last and grant[2]}
        count = own.pop((receipt.attempt, receipt.epoch), 0)
        keys: int = self.written[last].keys
        lacks = any(each.change["txid"] >= last for each in changes)
        enough = count + sum(newer.values()) >= keys or lacks
        return not own and count <= keys and enough

    def _newest(self, rows: Mapping[tuple[int, int, int], int]) -> int:
        """Return the newest final transaction that has rows, or 0 if there is none."""
        return max(
            (txid for txid, _, epoch in rows if txid < self.ledger.current and epoch), default=0
        )

    def _totals(self, undone: int) -> Mapping[str, int] | None:
        """Return the sums of the values before a transaction, by column.

        Return None if the values cannot be added up.
        """
        names = self.state.added_up
        totals = self.state.totals_before(names, undone) if names else None
        return None if totals is None else {name: totals[name] for name in names}
