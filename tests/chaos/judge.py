"""What has to hold when the world is at rest: each number counted once, in order, and nothing open or left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.bug import CHANGING, CORRECTED, NUMBERED, is_mended, mended_after, output_of
from tests.chaos.dags.under_fire import REMAINDERS
from tests.chaos.ledger_watch import LedgerWatch, is_away
from tests.chaos.topology import UNRESTATED, UPSTREAM
from tests.chaos.world import World

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Counting:
    """Which transactions count, and what they count.

    :param committed: those that ended so; `replaced`: those of them that a later one has restated.
    :param first: per transaction that restates, the one whose place in the order its numbers have.
    :param late: transactions that are later than their numbers, as these were skipped before.
    :param name: of the topology; `mended`: as `mended_after` gives it.
    :param corrected: transactions, each with a number that it had from a corrected file.
    """

    committed: Set[int] = frozenset()
    replaced: Set[int] = frozenset()
    first: Mapping[int, int] = field(default_factory=dict)
    late: Set[int] = frozenset()
    name: str = ""
    mended: Mapping[int, int] = field(default_factory=dict)
    corrected: Set[tuple[int, int]] = frozenset()

    @classmethod
    def of(
        cls,
        histories: Sequence[Mapping[str, Any]],
        name: str,
        mended: Mapping[int, int],
        corrected: Set[tuple[int, int]],
    ) -> Counting:
        """Take them from the histories of all transactions, by txid."""
        committed = {each["txid"] for each in histories if each["outcome"] == "COMMITTED"}
        first = dict[int, int]()
        replaced = set[int]()
        for each in histories:
            if each["txid"] in committed and each.get("restates") is not None:
                replaced.add(each["restates"])
                first[each["txid"]] = first.get(each["restates"], each["restates"])
        late = {each["readmitted_as"] for each in histories if each["readmitted_as"] is not None}
        return cls(committed, replaced, first, late, name, mended, corrected)

    def output(self, number: int, txid: int) -> tuple[str, int]:
        """The key and the total that a transaction has given for a number."""
        value = number + CORRECTED if (txid, number) in self.corrected else number
        return output_of(value, is_mended=is_mended(self.name, self.mended, number, txid))

    def misbound(self, bindings: Sequence[Mapping[str, Any]]) -> list[str]:
        """Compare what counts with what the ledger says of runs."""
        bound = {each["txid"] for each in bindings}
        found = []
        if unbound := sorted(self.committed - self.replaced - bound):
            found.append(f"transactions {unbound} count, and no run is bound to them")
        if wrong := sorted(self.replaced & bound):
            found.append(f"transactions {wrong} were restated, and their runs are bound to them")
        return found


class Judge:
    """Compares the states and the ledgers with what the sources were given."""

    def __init__(self, world: World, watch: LedgerWatch) -> None:
        self._world, self._watch = world, watch

    def is_complete(self, name: str) -> bool:
        """Whether as many numbers as the source was given are counted, or are in batches that are skipped.

        One that reads another topology has nothing left to take from it, or to correct.
        """
        if name in UPSTREAM and self._world.ask(name, "lacking", "transactions"):
            return False
        states = self._world.ask(name, "read", "states")
        skipped = len(self._skipped(name))
        return all(
            sum(row["key"][0] in NUMBERED and row["n"] != 0 for row in rows) + skipped >= self._world.numbers[name]
            for rows in states.values()
        )

    def findings(self, name: str) -> list[str]:
        """Whatever is not as it has to be, a line each."""
        found = [f"verify: {each}" for each in self._world.ask(name, "verify", "findings")]
        found += self._of_ledger(name)
        skipped = set(self._skipped(name))
        counting = self._counting(name)
        # What is read from another topology's table says which transaction of that one it is of.
        given = self._counting(UPSTREAM[name]) if name in UPSTREAM else counting
        for state, rows in self._world.ask(name, "read", "states").items():
            expected = set(range(self._world.numbers[name])) - skipped
            found += [f"{state}: {each}" for each in wrong_rows(rows, expected, given)]
        found += counting.misbound(self._bindings(name))
        if name in UNRESTATED and counting.first:
            found.append(f"transactions {sorted(counting.first)} restate others, and a state cannot take that back")
        return [f"{name}: {each}" for each in found]

    def _of_ledger(self, name: str) -> list[str]:
        found, state = [], self._watch.look(name)
        if state.opened or not state.is_quiet:
            found.append(f"transactions {sorted(state.opened)} are open, the turn is at {state.current}")
        if left := self._watch.names(f"{name}/coordinator/acks"):
            found.append(f"acks are left: {sorted(left)}")
        if state.wanted:
            found.append(f"transactions {state.wanted} are still wanted restated")
        if state.behind:
            found.append(f"transactions {state.behind} are behind corrections")
        histories = self._histories(name)
        txids = [each["txid"] for each in histories]
        if txids != list(range(1, state.current)):
            found.append(f"the history has transactions {txids}, the turn is at {state.current}")
        ended = [each["ended"] for each in histories]
        if ended != sorted(ended):
            found.append(f"transactions ended out of order: {ended}")
        return found

    def _counting(self, name: str) -> Counting:
        corrected = self._corrected(name, self._bindings(name))
        return Counting.of(self._histories(name), name, mended_after(name), corrected)

    def _bindings(self, name: str) -> list[dict[str, Any]]:
        found = [self._watch.read(f"{name}/runs/{key}") for key in self._watch.names(f"{name}/runs")]
        return [each for each in found if each]

    def _histories(self, name: str) -> list[dict[str, Any]]:
        found = [self._watch.read(f"{name}/history/{txid}") for txid in self._watch.names(f"{name}/history")]
        return sorted(map(_as_judged, found), key=lambda each: int(each["txid"]))

    def _skipped(self, name: str) -> list[int]:
        """The numbers of skipped batches that are in no other one, as the source gives them; of what it reads, too."""
        above = self._skipped(UPSTREAM[name]) if name in UPSTREAM else []
        found = [self._watch.read(f"{name}/skipped/{txid}") for txid in self._watch.names(f"{name}/skipped")]
        batches = [each["rows"] for each in found if is_away(each)]
        numbers: list[int] = self._world.ask(name, "skipped", "numbers", batches=batches) if batches else []
        return [*above, *numbers]

    def _corrected(self, name: str, bindings: Sequence[Mapping[str, Any]]) -> set[tuple[int, int]]:
        if name != CHANGING:
            return set()
        entries = [each["entry"] for each in bindings if each.get("entry")]
        found = self._world.ask(name, "corrected", "numbers", entries=entries)
        return {(txid, number) for txid, numbers in found.items() for number in numbers}

    def figures(self) -> dict[str, int]:
        """How much there was, for the record."""
        histories = [each for name in self._world.numbers for each in self._histories(name)]
        return {
            "numbers": sum(self._world.numbers.values()),
            "transactions": len(histories),
            "attempts": sum(each["attempts"] for each in histories),
            "skipped": sum(each["outcome"] != "COMMITTED" for each in histories),
            "restated": sum(each["outcome"] == "COMMITTED" and each.get("restates") is not None for each in histories),
        }


def _as_judged(record: Mapping[str, Any]) -> dict[str, Any]:
    """Give what is judged of the record of a final transaction."""
    end = record["end"]
    return {
        "txid": record["txid"],
        "attempts": record["attempt"],
        "outcome": end["outcome"],
        "ended": end["when"],
        "readmitted_as": end.get("readmitted_as"),
        "restates": (record.get("replaces") or {}).get("txid"),
    }


def wrong_rows(rows: Sequence[Row], expected: set[int], counting: Counting) -> list[str]:
    """Compare the rows of a state with the numbers that it has to hold, each once, as the newest one gave it."""
    counted = {row["key"]: row for row in rows if row["n"] != 0}
    own = [(int(key[1:]), row) for key, row in counted.items() if key[0] in NUMBERED]
    numbers = {number for number, _ in own}
    found = []
    if lost := sorted(expected - numbers):
        found.append(f"numbers that were lost: {lost}")
    if wrong := sorted(numbers - expected):
        found.append(f"numbers that are skipped, and counted: {wrong}")
    if twice := [dict(row) for _, row in sorted(own, key=_number) if row["n"] != 1]:
        found.append(f"numbers that were not counted once: {twice}")
    if len(own) > len(numbers):
        found.append(f"numbers that were counted under two keys: {len(own) - len(numbers)}")
    if old := sorted({row["txid"] for _, row in own} - (counting.committed - counting.replaced)):
        found.append(f"transactions that do not count, and are counted: {old}")
    if wrong_totals := [
        dict(row)
        for number, row in sorted(own, key=_number)
        if row["n"] == 1 and (row["key"], row["total"]) != counting.output(number, row["txid"])
    ]:
        found.append(f"numbers whose rows are not what their transaction gave: {wrong_totals}")
    return [*found, *_out_of_order(own, counting), *_wrong_sums(own, counted)]


def _number(pair: tuple[int, Row]) -> int:
    return pair[0]


def _out_of_order(own: Sequence[tuple[int, Row]], counting: Counting) -> list[str]:
    found, latest = [], 0
    for number, row in sorted(own, key=_number):
        txid = counting.first.get(row["txid"], row["txid"])
        if txid not in counting.late:
            if txid < latest:
                found.append(f"number {number} is in transaction {txid}, a smaller one in {latest}")
            latest = max(latest, txid)
    return found


def _wrong_sums(own: Sequence[tuple[int, Row]], counted: Mapping[str, Row]) -> list[str]:
    found = []
    for rest in range(REMAINDERS):
        part = [row for number, row in own if number % REMAINDERS == rest]
        sums = {name: sum(row[name] for row in part) for name in ("n", "total", "txid")}
        row = counted.get(f"k{rest}", dict.fromkeys(sums, 0))
        if sums != {name: row[name] for name in sums}:
            found.append(f"row k{rest} is {dict(row)}, and its numbers add up to {sums}")
    return found
