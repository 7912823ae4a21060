"""Flights of a lake: a Delta table beside a database, and a committer that is killed between the two."""

from __future__ import annotations

import csv
from collections import Counter

from airflow_tx.protocol.api import Store
from airflow_tx.state import DeltaTable
from airflow_tx.testing.airflow import LocalAirflow
from examples.example import Example, differences
from examples.flights import write_months
from examples.servers import database
from examples.stored import rows

MONTHS = 4


class Lake(Example):
    """Publishes rows that Spark has written, and kills the commit of month 2 before the database has its totals."""

    name = "lake"
    files = ("lake.py",)

    def prepare(self) -> None:
        """A file a transaction."""
        for path in write_months(self.folder / "months")[MONTHS:]:
            path.unlink()

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Kill the commit of transaction 2 between the table and the database."""
        airflow.wait_dag(self.name)
        where = {"topology": self.name, "txid": 2, "state": "tx_state.lake_totals"}
        paused = self.failpoints.arm("commit.before_write", "pause", **where)
        killed = self.failpoints.arm("commit.before_write", "kill", **where)
        runs = [f"r{number}" for number in range(1, MONTHS + 1)]
        for run_id in runs:
            airflow.trigger(self.name, run_id)
        airflow.wait_for(lambda: paused.reached, 240, "the database is about to be written", self.name, "r2")
        self.say(f"transaction 2 is in the table and not in the database: rows by transaction {self._by_txid()}")
        paused.release()
        self.say("its committer is killed now")
        for run_id in runs:
            airflow.wait_run(self.name, run_id, timeout=300)
        assert killed.reached
        self.say(f"rows by transaction: {self._by_txid()}")

    def wrong(self) -> list[str]:
        """Compare with the files: the flights of each route and month, and of each carrier."""
        found, expected = dict[object, object](), dict[object, object]()
        found.update(Counter((row["month"], row["route"], row["late"]) for row in self._table.read()))
        query = "SELECT carrier, flights, delayed FROM lake_totals"
        found.update({carrier: (int(count), int(late)) for carrier, count, late in rows(database(self.folder), query)})
        flights = Counter[tuple[str, bool]]()
        routes = Counter[object]()
        for path in sorted((self.folder / "months").glob("*.csv")):
            with path.open() as file:
                for row in csv.DictReader(file):
                    late = row["dep_delay"] != "NA" and int(row["dep_delay"]) > 15
                    routes[int(row["month"]), f"{row['origin']}-{row['dest']}", late] += 1
                    flights[row["carrier"], late] += 1
        expected.update(routes)
        carriers = {carrier for carrier, _ in flights}
        expected.update({each: (flights[each, True] + flights[each, False], flights[each, True]) for each in carriers})
        return differences(expected, found)

    def verdict(self) -> str:
        """How many there were."""
        total = sum(self._by_txid().values())
        return f"{total} of {total} flights are in the table once, and in the totals of the database"

    @property
    def _table(self) -> DeltaTable:
        return DeltaTable(self.folder / "lake" / "flights", partition_by=["month"])

    def _by_txid(self) -> dict[int | None, int]:
        return self._table.rows_by_txid()
