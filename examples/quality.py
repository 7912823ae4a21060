"""Flights with wrong rows.

Tasks reject some rows, a check finds others, and a restatement counts them with a better rule.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.failpoints import Armed
from examples.cluster_airflow import ClusterAirflow
from examples.example import Example, differences
from examples.flights import write_months
from examples.servers import database
from examples.stored import rows

MONTHS = 8
BAD = 125
"""The number of rows per month whose delay has a unit, which the task cannot read."""
UNIT = " min"
CHECKED = 3
"""The month in which a check finds a flight without a distance."""
KILLED = 2
"""The month whose first commit is killed between the table and the totals."""
_WAIT = 600


class Quality(Example):
    """Rejects rows, finds other wrong rows with a check, restates the months with a better rule, kills committers."""

    name = "quality"
    files = ("quality.py",)

    def prepare(self) -> None:
        """Write one file for each month, with bad rows in each file."""
        paths = write_months(self.folder / "months")
        for path in paths[MONTHS:]:
            path.unlink()
        for month, path in enumerate(paths[:MONTHS], 1):
            _spoil(path, no_distance=month == CHECKED)

    def drive(self, airflow: LocalAirflow | ClusterAirflow, store: Store) -> None:
        """Commit the months, replay the month that a check has refused, correct a rule, and restate the months."""
        airflow.wait_dag(self.name)
        killed = self._kill(KILLED)
        runs = [f"r{month}" for month in range(1, MONTHS + 1)]
        for run_id in runs:
            airflow.trigger(self.name, run_id)
        airflow.wait_for(lambda: self._failed(airflow), _WAIT, f"transaction {CHECKED} is refused", self.name, runs[-1])
        self.say(f"a check has refused transaction {CHECKED}, and the later transactions wait: {self._counts()}")
        self.say(f"from now on, the task rejects flights without a distance: airflow tx replay quality {CHECKED}")
        airflow.command("variables", "set", "least_distance", "1")
        airflow.command("tx", "replay", self.name, str(CHECKED))
        for run_id in runs:
            airflow.wait_run(self.name, run_id, timeout=_WAIT)
        assert killed.reached
        self._aside = self._counts()[1]
        self.say(f"flights in the table, and rejected rows: {self._counts()}")
        self._restate(airflow)

    def _failed(self, airflow: LocalAirflow | ClusterAirflow) -> bool:
        return any(run["state"] == "failed" for run in airflow.runs(self.name))

    def _restate(self, airflow: LocalAirflow | ClusterAirflow) -> None:
        airflow.command("variables", "set", "delay_unit", UNIT)
        killed = self._kill(MONTHS + 2)
        months = [str(month) for month in range(1, MONTHS + 1)]
        why = "a delay may have a unit"
        self.say(
            f'the rule is corrected: airflow tx restate quality {" ".join(months)} --why "{why}"; a committer is killed'
        )
        airflow.command("tx", "restate", self.name, *months, "--why", why, timeout=_WAIT)
        assert killed.reached
        self.say(airflow.command("tx", "verify", self.name, "--values").strip().splitlines()[-1])

    def _kill(self, txid: int) -> Armed:
        where = {"topology": self.name, "txid": txid, "state": "tx_state.quality_totals"}
        return self.failpoints.arm("commit.before_write", "kill", **where)

    # --- what comes out ---------------------------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """Compare the table and the totals with the files."""
        flights = Counter[object]()
        counts = Counter[str]()
        delays = Counter[str]()
        for month, carrier, flight, delay in self._flights():
            flights[month, carrier, flight, delay] += 1
            counts[carrier] += 1
            delays[carrier] += delay or 0
        totals: dict[object, object] = {carrier: (counts[carrier], delays[carrier]) for carrier in counts}
        place = database(self.folder)
        found = Counter[object](
            tuple(row) for row in rows(place, "SELECT month, carrier, flight, delay FROM quality_flights")
        )
        summed = {
            each: (int(n), int(delay))
            for each, n, delay in rows(place, "SELECT carrier, flights, delay FROM quality_totals")
        }
        aside: dict[object, object] = {"before the rule was mended": self._aside, "now": self._counts()[1]}
        return [
            *differences({"before the rule was mended": MONTHS * BAD + 1, "now": 1}, aside),
            *differences(flights, found),
            *differences(totals, summed),
        ]

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        total = self._counts()[0]
        return (
            f"{total} of {sum(1 for _ in self._flights())} flights are once in the table and in the totals; "
            f"{self._aside - 1} of {MONTHS * BAD} were rejected until the rule was corrected"
        )

    def _flights(self) -> Iterator[tuple[str, str, str, int | None]]:
        """Compute the month, the carrier, the number and the delay of each flight from the files alone."""
        for path in sorted((self.folder / "months").glob("*.csv")):
            with path.open() as file:
                for row in csv.DictReader(file):
                    if row["distance"] == "0":
                        continue
                    delay = row["dep_delay"].removesuffix(UNIT)
                    yield row["month"], row["carrier"], row["flight"], None if delay == "NA" else int(delay)

    def _counts(self) -> list[int]:
        """Return the number of flights in the table, and of rejected rows."""
        queries = (f"SELECT count(*) FROM quality_{name}" for name in ("flights", "aside"))
        return [int(number) for query in queries for (number,) in rows(database(self.folder), query) or [(0,)]]


def _spoil(path: Path, *, no_distance: bool) -> None:
    """Add a unit to the delays of some rows in a file. If requested, remove the distance of one flight."""
    with path.open(newline="") as file:
        header, *lines = list(csv.reader(file))
    delay, distance = header.index("dep_delay"), header.index("distance")
    for line in [each for each in lines if each[delay] != "NA"][:BAD]:
        line[delay] += UNIT
    if no_distance:
        lines[-1][distance] = "0"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
