"""The report of the demo: differences from a direct computation, overlap of processing, and the order of commits."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from examples.stored import rows

Group = tuple[str, str]
_WIDTH = 48


@dataclass(frozen=True)
class Totals:
    """The number of flights and the sum of departure delays per (carrier, origin), and the number of all flights."""

    groups: Mapping[Group, tuple[int, int]]
    flights: int


@dataclass(frozen=True)
class Transaction:
    """A committed transaction, with the start and end times of its phases.

    :param batch: the names of the files in its batch.
    :param tries: the number of tries, by task.
    """

    txid: int
    run_id: str
    batch: str
    attempts: int
    tries: Mapping[str, int]
    began: datetime
    processed: datetime
    granted: datetime
    ended: datetime


def computed(folder: Path) -> Totals:
    """Compute the totals directly from the csv files, without Spark, Airflow or transactions."""
    flights: Counter[Group] = Counter()
    delays: Counter[Group] = Counter()
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                group = (row["carrier"], row["origin"])
                flights[group] += 1
                delays[group] += 0 if row["dep_delay"] in ("", "NA") else round(float(row["dep_delay"]))
    return Totals({group: (count, delays[group]) for group, count in flights.items()}, flights.total())


def stored(database: Path | str) -> Totals:
    """Return the totals in the database of the state."""
    found = rows(database, "SELECT carrier, origin, flights, dep_delay FROM flight_totals")
    overall = rows(database, "SELECT flights FROM flights_overall")
    groups = {(carrier, origin): (int(flights), int(delay)) for carrier, origin, flights, delay in found}
    return Totals(groups, sum(int(flights) for (flights,) in overall))


def differences(expected: Totals, found: Totals) -> list[str]:
    """Return one line for each total that differs from the direct computation."""
    lines = []
    for group in sorted(expected.groups.keys() | found.groups.keys()):
        wanted, got = expected.groups.get(group), found.groups.get(group)
        if wanted != got:
            lines.append(f"{group[0]} from {group[1]}: expected (flights, delay) {wanted}, found {got}")
    counted = sum(flights for flights, _ in found.groups.values())
    if counted != expected.flights:
        lines.append(f"flights in flight_totals: expected {expected.flights}, found {counted}")
    if found.flights != expected.flights:
        lines.append(f"flights in flights_overall: expected {expected.flights}, found {found.flights}")
    return lines


def order_violations(transactions: Sequence[Transaction]) -> list[str]:
    """Return one line for each commit that is out of order."""
    lines = []
    for before, after in pairwise(transactions):
        if after.txid != before.txid + 1:
            lines.append(f"transaction {after.txid} follows transaction {before.txid}")
        if after.granted < before.ended:
            lines.append(f"{after.txid} took the turn at {after.granted}, before {before.txid} ended at {before.ended}")
    return lines


def most_at_once(transactions: Iterable[Transaction]) -> int:
    """Return the maximum number of transactions in their processing phase at the same time."""
    moves = [(one.began, 1) for one in transactions] + [(one.processed, -1) for one in transactions]
    now = most = 0
    for _, step in sorted(moves):
        now += step
        most = max(most, now)
    return most


def table(transactions: Sequence[Transaction]) -> list[str]:
    """Return a header, and one line per transaction with its tries and its phases over time."""
    first = min(one.began for one in transactions)
    span = (max(one.ended for one in transactions) - first).total_seconds() or 1.0

    def at(moment: datetime) -> int:
        return min(_WIDTH - 1, int((moment - first).total_seconds() / span * _WIDTH))

    def bar(one: Transaction) -> str:
        cells = [" "] * _WIDTH
        cells[at(one.began) : at(one.processed) + 1] = "=" * (at(one.processed) + 1 - at(one.began))
        cells[at(one.processed) + 1 : at(one.granted)] = "." * max(0, at(one.granted) - at(one.processed) - 1)
        cells[at(one.granted) : at(one.ended) + 1] = "#" * (at(one.ended) + 1 - at(one.granted))
        return "".join(cells)

    tasks = list(transactions[0].tries)
    wide = max(len("batch"), *(len(one.batch) for one in transactions))
    header = "  ".join(
        ["txid", f"{'run':10}", f"{'batch':{wide}}", "attempt", *(f"tries:{task}" for task in tasks), "committed"]
    )
    lines = [f"{header}  = processing  . waiting for its turn  # committing"]
    for one in transactions:
        tries = "  ".join(f"{one.tries[task]:>{len(task) + 6}}" for task in tasks)
        ended = f"{(one.ended - first).total_seconds():7.1f} s"
        lines.append(
            f"{one.txid:>4}  {one.run_id:10}  {one.batch:{wide}}  {one.attempts:>7}  {tries}  {ended}  {bar(one)}"
        )
    return lines
