"""The life of a state: its transactions, changes and losses, from its beginning until now. Source: docs/protocol.md §5.

After a transaction, a state may have been renamed or forgotten, its values changed, or a loss accepted. Each of these
actions is a repair, whose record names the transaction that had the turn. So this module needs no clock. A repair
record has the name that the state had at that transaction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from airflow_tx.ledger.receipt import Receipt, Written
from airflow_tx.ledger.records import RepairRecord, TopologyRecord

LEDGER_LOST = "ledger-lost"
STATE_LOST = "state-lost"
STATE_FORGOTTEN = "state-forgotten"
RENAMED = "state-renamed"
RESET = "reset"
ACCEPT_CHANGE = "accept-change"
ACCEPT_CODE = "accept-code"
ACCEPT_LOSS = "accept-loss"
ROLL_FORWARD = "roll-forward"
BACK = "back"
ENDS = "ends"
BEGAN = "began"
"""The key of a state's first transaction in the topology record. The value is 0 if the state already had values."""
HOLES = "holes"
"""The key of the transactions that a table lacks, in the repair record of a roll forward."""
EMPTIED = "emptied"
"""The key, in the topology record, of the first transaction after an accepted loss that left the state empty."""
CHANGE = "change"
"""The key of the newest accepted change of a state's values, in the topology record and in the fence."""


class Segment(NamedTuple):
    """The transactions written to a state under one of its names.

    :param last: the last of these transactions; None if the state still has this name.
    """

    name: str
    first: int
    last: int | None

    def has(self, txid: int) -> bool:
        return self.first <= txid and (self.last is None or txid <= self.last)


class StateLoss(NamedTuple):
    """An accepted loss of a state's values.

    :param number: number of the repair.
    :param generation: generation of the ledger after the repair. A fence with a lower generation is older than the
        repair.
    :param txid: the transaction that had the turn at the repair.
    :param found: the state's last transaction after the loss; 0 if it was empty; None if unknown.
    :param change: the state's newest accepted change after the loss.
    """

    number: int
    txid: int
    generation: int
    found: int | None
    change: int


class Pending(NamedTuple):
    """The accepted changes that the values of a state may lack.

    :param missing: the changes that may be missing, oldest first.
    :param asked: whether the user must name the changes that the values include. If False, the values lack all these
        changes.
    """

    missing: tuple[RepairRecord, ...]
    asked: bool = False


NOTHING_PENDING = Pending(())


@dataclass(frozen=True)
class Life:
    """The life of one state.

    :param segments: the transactions under each name of the state, oldest first.
    :param began_empty: whether the state was empty before its first transaction.
    :param changes: the accepted manual changes of its values, oldest first.
    :param losses: the accepted losses whose values no roll forward has restored.
    :param rebuilt: the last transaction before a rebuild of the ledger; 0 if there was none. Facts about earlier
        transactions are lost.
    :param vouched: the last transaction that a rebuild found to be complete in all states.
    :param receipts: the known receipts of final transactions.
    :param own: the receipts that the state itself keeps.
    :param back: transactions whose rows a repair has taken back.
    :param holes: transactions that a table lacks, since no journal entry kept their rows.
    :param passed: number of the roll forward that skipped the transactions in `holes`.
    :param passing: transactions that an unfinished roll forward skips for the same reason.
    """

    state: str
    segments: tuple[Segment, ...]
    began_empty: bool
    changes: tuple[RepairRecord, ...] = ()
    losses: tuple[StateLoss, ...] = ()
    rebuilt: int = 0
    vouched: int = 0
    receipts: Mapping[int, Receipt] = field(default_factory=dict)
    own: Mapping[int, Receipt] = field(default_factory=dict)
    back: frozenset[int] = frozenset()
    holes: frozenset[int] = frozenset()
    passed: int = 0
    passing: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        state: str,
        topology: TopologyRecord,
        repairs: Sequence[RepairRecord],
        receipts: Mapping[int, Receipt] | None = None,
        own: Mapping[int, Receipt] | None = None,
    ) -> Life:
        """Derive the life of a state from the repairs of the ledger.

        :param repairs: all repairs, oldest first. Repairs before the last reset are ignored.
        """
        walk = _Walk(state)
        for each in reversed(since_reset(repairs)):
            if walk.begins_after(each):
                break
        began = topology.accepted.get(state, {}).get(BEGAN)
        # The topology record has no such entry for a state without a fence, or in a rebuilt ledger.
        # A state that is as old as the ledger was empty at first.
        empty = began > 0 if began is not None else walk.first == 1
        emptied = topology.accepted.get(state, {}).get(EMPTIED, 0)
        noted = [] if topology.rolling is None else topology.rolling.holes.get(state, [])
        losses = [
            each._replace(found=0) if each.found is None and each.txid <= emptied else each
            for each in walk.losses
        ]
        segments = [*reversed(walk.later), Segment(walk.name, began or walk.first, walk.until)]
        segments.sort(key=lambda each: each.first)
        return cls(
            state,
            tuple(segments),
            empty and walk.vouched is None,
            tuple(_still_there(walk.changes, losses)),
            tuple(losses),
            0 if walk.vouched is None else topology.rebuilt,
            (walk.vouched or {}).get(state, 0),
            receipts or {},
            own or {},
            frozenset(walk.back),
            frozenset({*walk.holes, *noted}),
            max((each.number for each in repairs), default=0) if noted else walk.passed,
            frozenset(noted),
        )

    @cached_property
    def given(self) -> Mapping[int, Written]:
        """Return the rows that each transaction wrote to the state, in the order of the txids."""
        found = {
            txid: each.written[segment.name]
            for segment in self.segments
            for txid, each in self.receipts.items()
            if segment.has(txid) and segment.name in each.written
        }
        # After a rebuild, the earlier names of the state are lost, but the state keeps its own
        # receipts.
        kept = {
            txid: next(iter(each.written.values()))
            for txid, each in self.own.items()
            if txid <= self.rebuilt and each.written
        }
        return dict(sorted((kept | found).items()))

    @property
    def first(self) -> int:
        """Return the first transaction that may have written to the state."""
        return self.segments[0].first

    def name_at(self, txid: int) -> str | None:
        """Return the name of the state at a transaction. Return None if the topology did not have the state then."""
        return next((each.name for each in self.segments if each.has(txid)), None)

    def held(self, txid: int, as_of: int | None = None) -> bool | None:
        """Return whether the values include the rows of a transaction. Return None if that is unknown.

        :param as_of: the generation in the fence of the examined values; None means the current values.
        """
        if txid not in self.given:
            return False
        return self.kept(txid, as_of)

    def kept(self, txid: int, as_of: int | None = None) -> bool | None:
        """Like `held`, but assume that the transaction was written to the state."""
        if txid <= self.rebuilt and txid != self.vouched and txid not in self.own:
            return None
        unknown = False
        for loss in self.losses:
            if txid >= loss.txid or (as_of is not None and loss.generation > as_of):
                continue
            if loss.found is not None and txid > loss.found:
                return False
            unknown = unknown or loss.found is None
        # The state may still have the receipt, although its values were restored from an older
        # backup.
        return None if unknown else True

    def is_accepted(self, txid: int) -> bool:
        """Return whether a user or a rebuild has accepted the state's content after a transaction."""
        return not self.kept(txid) or any(txid < loss.txid for loss in self.losses)

    def expected(self, last: int, as_of: int | None = None) -> tuple[int, ...] | None:
        """Return the transactions up to `last` whose rows the values include. Return None if unknown."""
        if self.unknown(last, as_of):
            return None
        return tuple(txid for txid in self.given if txid <= last and self.kept(txid, as_of))

    def unknown(self, last: int, as_of: int | None = None) -> str:
        """Explain why the expected totals after transaction `last` are unknown. Return "" if they are known."""
        if self.rebuilt:
            return f"the ledger was rebuilt after transaction {self.rebuilt}"
        if not self.began_empty:
            return "no record shows that it was empty before its first transaction"
        if self.forgotten(self.first, last) is not None:
            return f"the receipts do not go back to transaction {self.first}"
        if None in (self.kept(txid, as_of) for txid in self.given if txid <= last):
            return "a repair accepted its values, but it is not known which values"
        return ""

    def forgotten(self, first: int, last: int) -> int | None:
        """Return the first transaction from `first` to `last` without a known receipt. Return None if there is none."""
        known = self.receipts.keys() | self.back
        return next((txid for txid in range(first, last + 1) if txid not in known), None)

    def sums(
        self, columns: Iterable[str], txids: Iterable[int], changes: Sequence[RepairRecord] = ()
    ) -> dict[str, int] | None:
        """Return the sum of each column over these transactions and changes. Return None if any value is unknown."""
        found = dict[str, int]()
        wrote = [each for txid in txids if (each := self.given[txid]).keys]
        for name in columns:
            if any(name not in each.sums for each in wrote):
                return None
            found[name] = sum(each.sums[name] for each in wrote) + sum(
                each.change["columns"].get(name, 0) for each in changes
            )
        return found

    def changes_after(
        self, last: int, mark: int, totals: Mapping[str, int] | None, *, as_of: int | None = None
    ) -> Pending | None:
        """Return the accepted changes that the values lack.

        Return None if no combination of changes explains the totals.

        The values include all transactions up to `last`.

        :param mark: the newest change that the values include according to the fence.
        :param totals: totals of the values, by column; None if they cannot be compared.
        :param as_of: the generation of the fence.
        """
        open_ = [
            each for each in self.changes if each.change["txid"] >= last and each.number > mark
        ]
        sure = [each for each in self.changes if each not in open_]
        fits = list(range(len(open_) + 1))
        held = self.expected(last, as_of)
        if totals and held is not None:
            wanted = [self.sums(totals, held, [*sure, *open_[:count]]) for count in fits]
            if None not in wanted:
                fits = [count for count in fits if wanted[count] == totals]
        if not fits:
            return None
        missing = tuple(open_[fits[0] :])
        # A change after an accepted loss may have replaced lost values by hand. A roll forward may
        # have restored the same values since.
        after = as_of is not None and any(
            each.generation > as_of and change.number > each.number
            for each in self.losses
            for change in missing
        )
        return Pending(missing, bool(missing) and (len(fits) > 1 or after))

    def gone(self, first: int, before: int | None = None) -> frozenset[str]:
        """Return the keys that were deleted by hand after transaction `first` and before transaction `before`."""
        return frozenset(
            key
            for each in self.changes
            if first <= each.change["txid"] and (before is None or each.change["txid"] < before)
            for key in each.change["keys"]
        )

    def lacks(self, txid: int) -> bool:
        """Return whether a roll forward left a transaction out of the table and this was not accepted since."""
        given_up = any(each.number > self.passed for each in self.losses)
        return txid in self.holes & self.given.keys() and not given_up

    def cannot_restate(self, txid: int) -> str:
        """Explain why a restatement cannot remove the rows of a transaction from the state. Return "" if it can."""
        if self.kept(txid) is not True:
            done = "the ledger was rebuilt" if txid <= self.rebuilt else "what it held was accepted"
            return f"{done} since, so state {self.state!r} may lack transaction {txid}"
        later = (each for each in self.changes if each.change["txid"] >= txid)
        if any(each.change["unknown"] for each in later):
            return f"keys of state {self.state!r} were deleted since transaction {txid}, but it is not known which ones"
        return ""


@dataclass
class _Walk:
    """Reads the repairs of a state from the newest to the oldest.

    :param name: the name of the state at the current repair.
    :param until: the last transaction of the state under that name.
    :param healed: the lowest transaction at which a later roll forward began.
    :param vouched: the last transaction that a rebuild found to be complete, by state.
    :param unwanted: numbers of the withdrawn changes.
    :param back: transactions that were taken back.
    :param mark: the newest change in the backup from which the state was restored. Later changes are lost.
    """

    name: str
    until: int | None = None
    first: int = 1
    later: list[Segment] = field(default_factory=list)
    changes: list[RepairRecord] = field(default_factory=list)
    losses: list[StateLoss] = field(default_factory=list)
    healed: int | None = None
    vouched: Mapping[str, int] | None = None
    unwanted: set[int] = field(default_factory=set)
    back: set[int] = field(default_factory=set)
    holes: Sequence[int] = ()
    passed: int = 0
    mark: float = math.inf

    def begins_after(self, each: RepairRecord) -> bool:
        """Read one repair. Return True if the name belonged to another state before this repair."""
        change = each.change
        renamed = renaming(each)
        if renamed is not None:
            return self._takes_name(*renamed)
        self.back |= {*taken_back(each)}
        if each.what == LEDGER_LOST and self.vouched is None:
            self.vouched = change.get("states", {})
        elif each.what == BACK:
            self._heals(change["txid"])
            self.mark = min(self.mark, change.get("marks", {}).get(self.name, math.inf))
        elif each.what == ROLL_FORWARD and self.name in change["states"]:
            self._takes_roll(each)
        elif change.get("state") != self.name:
            return False
        elif each.what == STATE_FORGOTTEN:
            self.first = change["txid"]
            return True
        elif each.what == ACCEPT_CHANGE and self._is_wanted(each.number):
            self.changes.insert(0, each)
        elif each.what == STATE_LOST and self.vouched is None:
            self._takes_loss(each)
        return False

    def _is_wanted(self, change: int) -> bool:
        return change <= self.mark and change not in self.unwanted

    def _takes_name(self, old: str, new: str, txid: int) -> bool:
        if new == self.name:
            self.later.append(Segment(new, txid, self.until))
            self.until = txid - 1
            self.name = old
            return False
        if old == self.name:
            self.first = txid
        return old == self.name

    def _takes_roll(self, each: RepairRecord) -> None:
        self.unwanted |= {*each.change.get("unchanged", ())}
        rolled = each.change["states"][self.name]
        if not self.passed:
            # The newest roll forward lists the holes of all earlier ones.
            self.passed = each.number
            self.holes = rolled.get(HOLES, ())
        if rolled.get("heals", True):
            self._heals(rolled["found"])

    def _heals(self, found: int) -> None:
        """Record that the state continued from a backup of transaction `found`. Later losses no longer apply."""
        self.healed = found if self.healed is None else min(self.healed, found)

    def _takes_loss(self, each: RepairRecord) -> None:
        change = each.change
        txid = change["txid"]
        if self.healed is None or self.healed >= txid:
            found, mark = change.get("found"), change.get(CHANGE, 0)
            self.losses.insert(0, StateLoss(each.number, txid, each.generation, found, mark))


def _still_there(
    changes: Sequence[RepairRecord], losses: Sequence[StateLoss]
) -> list[RepairRecord]:
    """Return the changes that no accepted loss removed, oldest first."""
    kept = (
        each
        for each in changes
        if not any(loss.change < each.number < loss.number for loss in losses)
    )
    return sorted(kept, key=lambda each: (each.change["txid"], each.number))


def since_reset(repairs: Sequence[RepairRecord]) -> Sequence[RepairRecord]:
    """Return the repairs since the last reset of the ledger. Earlier repairs do not affect the current ledger."""
    first = max((place for place, each in enumerate(repairs, 1) if each.what == RESET), default=0)
    return repairs[first:]


def taken_back(repair: RepairRecord) -> range:
    """Return the transactions that a repair has taken back."""
    change = repair.change if repair.what == BACK else {"txid": 0, "last": 0}
    return range(change["txid"] + 1, change["last"] + 1)


def all_taken_back(repairs: Iterable[RepairRecord]) -> set[int]:
    """Return the transactions that any of these repairs has taken back."""
    return {txid for each in repairs for txid in taken_back(each)}


def renaming(repair: RepairRecord) -> tuple[str, str, int] | None:
    """Return the old name, the new name and the first transaction under the new name. None for other repairs."""
    change = repair.change
    return (change["state"], change["to"], change["txid"]) if repair.what == RENAMED else None


def renamed_since(
    repairs: Sequence[RepairRecord], names: Iterable[str], txid: int
) -> dict[str, str]:
    """Return the current name of each of these states, by its name at a transaction; see `name_now`."""
    return {name: name_now(repairs, name, txid) for name in names}


class ForgottenName(str):
    """The description of a forgotten state. It never equals a name, since a new state may reuse the name."""

    __hash__ = object.__hash__
    __ne__ = object.__ne__

    def __eq__(self, other: object) -> bool:
        return self is other


def name_now(repairs: Sequence[RepairRecord], name: str, txid: int) -> str:
    """Return the current name of a state.

    :param name: the name that the state had at transaction `txid`.
    :return: the current name, or a `ForgottenName` if the state was forgotten since.
    """
    for each in since_reset(repairs):
        renamed = renaming(each)
        if renamed is not None and renamed[0] == name and renamed[2] > txid:
            name = renamed[1]
        elif (
            each.what == STATE_FORGOTTEN
            and each.change["state"] == name
            and each.change["txid"] > txid
        ):
            return ForgottenName(f"{name} (forgotten before transaction {each.change['txid']})")
    return name


class _Given(Protocol):
    """A transaction known from a receipt in the state or from the state's fence."""

    @property
    def txid(self) -> int: ...
    @property
    def birth(self) -> str: ...
    @property
    def incarnation(self) -> str: ...


def holds_for_good(given: Iterable[_Given], txid: int, birth: str, incarnation: str) -> bool:
    """Return whether a state has output from exactly this transaction that it cannot undo.

    A reset or lost ledger can repeat a txid, but never a birth.

    :param given: the receipts of transactions whose output the state cannot undo.
    """
    mine = (txid, birth, incarnation)
    return any((each.txid, each.birth, each.incarnation) == mine for each in given)


def accepted_code(repairs: Sequence[RepairRecord]) -> dict[tuple[str, str], int]:
    """Return the last transaction for which different code was accepted, by task and digest of the code."""
    accepted = dict[tuple[str, str], int]()
    for each in repairs:
        if each.what == ACCEPT_CODE:
            accepted |= dict.fromkeys(each.change["code"].items(), each.change["txid"])
    return accepted
