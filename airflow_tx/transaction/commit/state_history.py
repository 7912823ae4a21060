"""The transactions of one state: what the ledger says of each, and which of them the state has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_tx.base.errors import RollForwardRefused, UnreadableRecord
from airflow_tx.ledger import ACCEPT_CHANGE, LedgerEvidence, Receipt, RepairRecord, Token
from airflow_tx.state import Fence, StoredState


@dataclass(frozen=True)
class StateLook:
    """The transactions that a state has, and the ones to write again.

    :param found: the last transaction that its fence names; 0: it has no fence.
    :param first: the first transaction to write again; behind the last one: none.
    :param over: the grant in the fence, which must be there still when it is raised.
    :param apart: whether its values are of another moment than its fence, so that they decide.
    :param changes: how many of the changes that a person has accepted the values have already; None: unknown.
    """

    found: int
    first: int
    over: Token | None
    apart: bool = False
    changes: int | None = None


class StateHistory:
    """The transactions of one state.

    :param ledger: read at one moment.
    """

    def __init__(self, ledger: LedgerEvidence, state: StoredState) -> None:
        self.ledger = ledger
        self.state = state
        renamed = ledger.topology.renamed
        self._names = {state.name, *(old for old, now in renamed.items() if now == state.name)}

    @cached_property
    def receipts(self) -> Mapping[int, Receipt]:
        """Return the receipts of final transactions, of the ledger, and older ones that the state keeps."""
        found = dict[int, Receipt]()
        for stored in self.state.receipts() or ():
            with suppress(ValueError, UnreadableRecord):
                found[stored.txid] = Receipt.from_json(json.loads(stored.text))
        for txid, history in self.ledger.histories.items():
            if history.receipt is not None:
                found[txid] = Receipt.from_json(history.receipt)
        own = self.ledger.topology.incarnation
        return {
            txid: each
            for txid, each in sorted(found.items())
            if each.incarnation == own and txid < self.ledger.current
        }

    @cached_property
    def written(self) -> Mapping[int, Mapping[str, Any]]:
        """Return what each transaction gave to the state, in the order of the txids."""
        return {
            txid: each.written[name]
            for txid, each in self.receipts.items()
            for name in self._names & each.written.keys()
        }

    @cached_property
    def last(self) -> int:
        """Return the last final transaction of the state; 0: there is none."""
        return max(
            max(self.written, default=0), self.ledger.topology.states.get(self.state.name, 0)
        )

    @cached_property
    def accepted(self) -> Sequence[RepairRecord]:
        """Return the changes of its values that people have accepted, in their order."""
        return [
            each
            for each in self.ledger.life
            if each.what == ACCEPT_CHANGE and each.change["state"] == self.state.name
        ]

    def gone(self, first: int, before: int) -> frozenset[str]:
        """Name the keys that were deleted on purpose after one transaction, and before another one."""
        changes = [each.change for each in self.accepted if first <= each.change["txid"] < before]
        return frozenset(key for change in changes for key in change["keys"])

    def before(self, txid: int) -> int | None:
        """Return the transaction of the state before another one."""
        return max((each for each in self.written if each < txid), default=None)

    def refused(self, problem: str, remedy: str = "") -> RollForwardRefused:
        """Make the error of a state that cannot be written again."""
        name = self.state.name
        return RollForwardRefused(
            state=name,
            topology=self.ledger.name,
            problem=problem,
            remedy=remedy or self.state.remedy_lost(self.ledger.name),
        )

    # --- what is there ----------------------------------------------------------------------------------------------

    def has_values(self) -> bool:
        """Ask whether a state without a fence has values."""
        return bool(self.state.read(limit=1))

    def look(self) -> StateLook:
        """Find out what the state has, by its fence; its values must agree.

        :raises RollForwardRefused: this is unknown.
        """
        fence = self.state.fence()
        if fence is None:
            if self.has_values():
                raise self.refused("it has values, and no fence")
            return StateLook(0, 1, None)
        found = fence.token.txid
        if fence.incarnation != self.ledger.topology.incarnation:
            raise self.refused(f"its fence is of another ledger ({fence.incarnation})")
        if fence.token.is_look:
            # That run has died before it wrote. The values decide: no transaction has raised this fence.
            before = fence.covered or fence
            return StateLook(before.token.txid, self.last, fence.token, apart=True)
        if found >= self.ledger.current:
            return self._look_at_open(fence)
        receipt = self.receipts.get(found)
        if receipt is None:
            raise self.refused(
                f"its fence says transaction {found}, of which nothing is known any more"
            )
        if fence.token.birth != receipt.birth:
            raise self.refused(f"its fence says transaction {found}, another one of that number")
        marked = (receipt.attempt, receipt.epoch)
        whole = fence.applied and (fence.token.attempt, fence.token.epoch) == marked
        if whole:
            return self._compared(StateLook(found, found + 1, fence.token), undone=0)
        return self._compared(StateLook(found, found, fence.token), undone=found)

    def _look_at_open(self, fence: Fence) -> StateLook:
        """Look at a state whose fence the open transaction has raised."""
        found = fence.token.txid
        decisive = self.ledger.decisive
        opened = None if decisive is None else decisive.opened.get(found)
        known = opened is not None and opened.birth == fence.token.birth
        if found > self.ledger.current or not known:
            remedy = f"Repair the ledger first: airflow tx repair {self.ledger.name} --ledger-lost"
            raise self.refused(
                f"its fence says transaction {found}, which the ledger does not know", remedy
            )
        return self._compared(StateLook(found, found, fence.token), undone=found)

    def look_at_values(self, look: StateLook) -> StateLook:
        """Find out by the values alone what a state has; no one else writes it, and no row of the open one is left.

        :raises RollForwardRefused: they do not say it, or contradict the receipts.
        """
        return self._looked_at(look, self.state.rows_by_grant() or {})

    def _looked_at(self, look: StateLook, rows: Mapping[tuple[int, int, int], int]) -> StateLook:
        newest = self._newest(rows)
        first = newest or 1
        agree = self._changes_in(first - 1, undone=first)
        if agree is not None and agree < 0 and self._fits(rows, newest + 1, 0, lacks=False):
            # Rows that were undone later hide what was there before the newest transaction, which is whole.
            first = newest + 1
            agree = self._changes_in(newest, undone=0)
        if agree is None or agree < 0:
            what = "nothing says what the values up to" if agree is None else "the values up to"
            rest = "add up to" if agree is None else "do not add up to what its receipts say"
            raise self.refused(
                f"its fence and its values are of different moments, and {what} transaction {first} {rest}"
            )
        return StateLook(look.found, min(first, self.last), look.over, apart=True, changes=agree)

    def _compared(self, look: StateLook, *, undone: int) -> StateLook:
        """Compare the fence with the values.

        :param undone: the transaction whose rows the next raise takes back; 0: none.
        """
        rows = self.state.rows_by_grant()
        if rows is None:
            return look  # the raise of the fence compares the values with what it has noted of them
        agree = self._changes_in(look.first - 1, undone=undone)
        if self._fits(rows, look.first, undone, lacks=bool(agree)) and (
            agree is None or agree >= 0
        ):
            return StateLook(look.found, look.first, look.over, changes=agree)
        taken_out = any(txid >= self.ledger.current and epoch for txid, _, epoch in rows)
        if taken_out or self._has_moved(look):
            # Only under a look do the values say what they are.
            return StateLook(look.found, self._newest(rows) or 1, look.over, apart=True)
        return self._looked_at(look, rows)

    def _has_moved(self, look: StateLook) -> bool:
        """Whether a commit has begun since the fence was read: then the values may be of two moments."""
        fence = self.state.fence()
        return fence is None or fence.token != look.over

    def _fits(
        self, rows: Mapping[tuple[int, int, int], int], first: int, undone: int, *, lacks: bool
    ) -> bool:
        """Ask whether the last transaction before `first` that wrote has the newest rows.

        :param lacks: whether keys may be missing, since a person has accepted that and the values add up.
        """
        wrote = [txid for txid, each in self.written.items() if txid < first and each["keys"]]
        last = max(wrote, default=0)
        newer = {grant: count for grant, count in rows.items() if grant[0] > last}
        # A row of epoch 0 was written by an attempt that is undone: it has the value from before.
        if any(txid != undone and epoch for txid, _, epoch in newer):
            return False
        if not last:
            return True
        receipt = self.receipts[last]
        own = {grant[1:]: count for grant, count in rows.items() if grant[0] == last and grant[2]}
        count = own.pop((receipt.attempt, receipt.epoch), 0)
        keys: int = self.written[last]["keys"]
        enough = count + sum(newer.values()) >= keys or lacks
        return not own and count <= keys and enough

    def _newest(self, rows: Mapping[tuple[int, int, int], int]) -> int:
        """Return the newest final transaction that has rows; 0: none."""
        return max(
            (txid for txid, _, epoch in rows if txid < self.ledger.current and epoch), default=0
        )

    def _changes_in(self, last: int, *, undone: int) -> int | None:
        """Compare the totals with what the receipts up to a transaction say, and the first accepted changes.

        :return: how many of these changes the values have; −1: the totals are others; None: they cannot be compared.
        """
        names = self.state.added_up
        expected = self._expected(last)
        if expected is None or not names:
            return None
        totals = self.state.totals_before(names, undone)
        if totals is None:
            return None
        for count in range(len(self.accepted) + 1):
            if all(totals[name] == expected.get(name, 0) for name in names):
                return count
            if count < len(self.accepted):
                for name, by in self.accepted[count].change["columns"].items():
                    expected[name] = expected.get(name, 0) + by
        return -1

    def _expected(self, last: int) -> dict[str, int] | None:
        """Add up what the receipts up to a transaction say; None: that is not known of all of them."""
        if any(txid not in self.receipts for txid in range(1, last + 1)):
            return None
        found = dict[str, int]()
        for name in self.state.added_up:
            parts = [
                each.get("sums", {}).get(name)
                for txid, each in self.written.items()
                if txid <= last and each["keys"]
            ]
            if None in parts:
                return None
            found[name] = sum(parts)
        return found
