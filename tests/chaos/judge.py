"""What has to hold when the world is at rest: each number counted once, in order, and nothing open or left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.chaos.dags.under_fire import REMAINDERS
from tests.chaos.ledger_watch import LedgerWatch
from tests.chaos.world import World

Row = Mapping[str, Any]


class Judge:
    """Compares the states and the ledgers with what the sources were given."""

    def __init__(self, world: World, watch: LedgerWatch) -> None:
        self._world, self._watch = world, watch

    def is_complete(self, name: str) -> bool:
        """Whether as many numbers as the source was given are counted, or are in batches that are skipped."""
        states = self._world.ask(name, "read", "states")
        skipped = len(self._skipped(name))
        return all(
            sum(row["key"].startswith("r") and row["n"] != 0 for row in rows) + skipped >= self._world.numbers[name]
            for rows in states.values()
        )

    def findings(self, name: str) -> list[str]:
        """Whatever is not as it has to be, a line each."""
        found = [f"verify: {each}" for each in self._world.ask(name, "verify", "findings")]
        found += self._of_ledger(name)
        skipped = set(self._skipped(name))
        histories = self._histories(name)
        again = {each["readmitted_as"] for each in histories if each["readmitted_as"] is not None}
        for state, rows in self._world.ask(name, "read", "states").items():
            expected = set(range(self._world.numbers[name])) - skipped
            found += [f"{state}: {each}" for each in wrong_rows(rows, expected, again)]
        return [f"{name}: {each}" for each in found]

    def _of_ledger(self, name: str) -> list[str]:
        found, state = [], self._watch.look(name)
        if state.opened or not state.is_quiet:
            found.append(f"transactions {sorted(state.opened)} are open, the turn is at {state.current}")
        if left := self._watch.names(f"{name}/coordinator/acks"):
            found.append(f"acks are left: {sorted(left)}")
        histories = self._histories(name)
        txids = [each["txid"] for each in histories]
        if txids != list(range(1, state.current)):
            found.append(f"the history has transactions {txids}, the turn is at {state.current}")
        ended = [each["ended"] for each in histories]
        if ended != sorted(ended):
            found.append(f"transactions ended out of order: {ended}")
        return found

    def _histories(self, name: str) -> list[dict[str, Any]]:
        found = [self._watch.read(f"{name}/history/{txid}") for txid in self._watch.names(f"{name}/history")]
        return sorted(found, key=lambda each: int(each["txid"]))

    def _skipped(self, name: str) -> list[int]:
        """The numbers of skipped batches that are in no other one, as the source gives them."""
        found = [self._watch.read(f"{name}/skipped/{txid}") for txid in self._watch.names(f"{name}/skipped")]
        batches = [each["rows"] for each in found if each["readmitted_as"] is None]
        numbers: list[int] = self._world.ask(name, "skipped", "numbers", batches=batches) if batches else []
        return numbers

    def figures(self) -> dict[str, int]:
        """How much there was, for the record."""
        histories = [each for name in self._world.numbers for each in self._histories(name)]
        return {
            "numbers": sum(self._world.numbers.values()),
            "transactions": len(histories),
            "attempts": sum(each["attempts"] for each in histories),
            "skipped": sum(each["outcome"] != "COMMITTED" for each in histories),
        }


def wrong_rows(rows: Sequence[Row], expected: set[int], readmitted: set[int]) -> list[str]:
    """Compare the rows of a state with the numbers that it has to hold, each once.

    :param readmitted: transactions that are later than their numbers.
    """
    counted = {row["key"]: row for row in rows if row["n"] != 0}
    own = {int(key[1:]): row for key, row in counted.items() if key.startswith("r")}
    found = []
    if lost := sorted(expected - own.keys()):
        found.append(f"numbers that were lost: {lost}")
    if wrong := sorted(own.keys() - expected):
        found.append(f"numbers that are skipped, and counted: {wrong}")
    if twice := sorted(number for number, row in own.items() if (row["n"], row["total"]) != (1, number)):
        found.append(f"numbers that were not counted once: {[dict(own[number]) for number in twice]}")
    latest = 0
    for number, row in sorted(own.items()):
        if row["txid"] not in readmitted:
            if row["txid"] < latest:
                found.append(f"number {number} is in transaction {row['txid']}, a smaller one in {latest}")
            latest = max(latest, row["txid"])
    for rest in range(REMAINDERS):
        part = [row for number, row in own.items() if number % REMAINDERS == rest]
        sums = {name: sum(row[name] for row in part) for name in ("n", "total", "txid")}
        row = counted.get(f"k{rest}", dict.fromkeys(sums, 0))
        if sums != {name: row[name] for name in sums}:
            found.append(f"row k{rest} is {dict(row)}, and its numbers add up to {sums}")
    return found
