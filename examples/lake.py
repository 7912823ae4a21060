"""Flights in a Delta table, and totals in a database. Commits are killed between the two, and one month is restated."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_tx.ledger.api import Store
from airflow_tx.state import DeltaTable
from airflow_tx.state.lake.delta import Folder
from airflow_tx.testing.airflow import LocalAirflow
from examples.cluster_airflow import ClusterAirflow
from examples.example import Example, differences
from examples.flights import write_months
from examples.readers import READERS, are_installed
from examples.servers import LAKE_VARIABLE, database
from examples.stored import rows

MONTHS = 4
LATE_AFTER = 15
"""The number of minutes beyond which a flight is late, as in the DAG."""
_WRONG = 60
_QUERY = "SELECT month, route, late, count(*) AS flights FROM t GROUP BY month, route, late"
_WAIT = 600
Counts = dict[object, object]


class Lake(Example):
    """Appends flights to a table, kills commits before they write the totals, and restates a month."""

    name = "lake"
    files = ("lake.py",)

    def prepare(self) -> None:
        """Write one file per transaction, and remove the table that an earlier run left on S3."""
        assert are_installed(), "duckdb and polars are missing: script/env readers"
        for path in write_months(self.folder / "months")[MONTHS:]:
            path.unlink()
        table = self._table
        folder = Folder(table.uri, table.options())
        for name in folder.listed(""):
            folder.remove(name)

    def drive(self, airflow: LocalAirflow | ClusterAirflow, store: Store) -> None:
        """Commit month 1 with a wrong rule. Kill the commits of month 2 and of the restatement of month 1."""
        airflow.wait_dag(self.name)
        airflow.command("variables", "set", "late_after", str(_WRONG))
        airflow.trigger(self.name, "r1")
        airflow.wait_run(self.name, "r1", timeout=_WAIT)
        self.say(f"month 1 is committed, and its flights are late by more than {_WRONG} minutes: this limit is wrong")
        airflow.command("variables", "delete", "late_after")
        self._commit_others(airflow)
        self._restate(airflow)

    def _commit_others(self, airflow: LocalAirflow | ClusterAirflow) -> None:
        where = {"topology": self.name, "txid": 2, "state": "tx_state.lake_totals"}
        paused = self.failpoints.arm("commit.before_write", "pause", **where)
        killed = self.failpoints.arm("commit.before_write", "kill", **where)
        runs = [f"r{number}" for number in range(2, MONTHS + 1)]
        for run_id in runs:
            airflow.trigger(self.name, run_id)
        airflow.wait_for(lambda: paused.reached, _WAIT, "the database is about to be written", self.name, "r2")
        self.say(f"transaction 2 is in the table and not in the database: rows by transaction {self._by_txid()}")
        paused.release()
        self.say("its committer is now killed")
        for run_id in runs:
            airflow.wait_run(self.name, run_id, timeout=_WAIT)
        assert killed.reached
        self.say(f"rows by transaction: {self._by_txid()}")

    def _restate(self, airflow: LocalAirflow | ClusterAirflow) -> None:
        self._before = self._wrong_months()
        txid = MONTHS + 1
        killed = self.failpoints.arm(
            "commit.before_write", "kill", topology=self.name, txid=txid, state="tx_state.lake_totals"
        )
        why = f"a flight is late by more than {LATE_AFTER} minutes"
        self.say(f'airflow tx restate lake 1 --why "{why}"; its committer is killed between the two states')
        airflow.command("tx", "restate", self.name, "1", "--why", why, timeout=_WAIT)
        assert killed.reached
        found = self._by_txid()
        self.say(f"rows by transaction: {found}")
        assert (found.get(1), bool(found.get(txid))) == (None, True), "month 1 was not replaced"

    # --- what comes out ---------------------------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """Compare the files with the totals in the database, and with the rows that Spark, duckdb and polars read."""
        flights = list(self._flights())
        routes = Counter[Any]((month, route, late) for month, route, _, late in flights)
        found = [] if self._before == [1] else [f"before the restatement months {self._before} differed, not [1]"]
        for name in READERS:
            read = self._read(name)
            self.say(f"{name} reads {sum(read.values())} flights")
            found += [f"{name}: {each}" for each in differences(routes, read)]
        return [*found, *self._wrong_totals(flights)]

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        total = sum(self._by_txid().values())
        once = f"in the table once, as {', '.join(READERS)} read it"
        return f"{total} of {total} flights are {once}, and in the totals of the database"

    def _wrong_totals(self, flights: Iterable[tuple[int, str, str, bool]]) -> list[str]:
        both = Counter((carrier, late) for _, _, carrier, late in flights)
        carriers = {carrier for carrier, _ in both}
        expected: Counts = {each: (both[each, True] + both[each, False], both[each, True]) for each in carriers}
        query = "SELECT carrier, flights, delayed FROM lake_totals"
        found: Counts = {each: (int(all_), int(late)) for each, all_, late in rows(database(self.folder), query)}
        return differences(expected, found)

    def _wrong_months(self) -> Sequence[int]:
        """Return the months in which the flights of the table and of the files differ."""
        routes = Counter((month, route, late) for month, route, _, late in self._flights())
        read = self._read("polars")
        return sorted(
            {month for month, route, late in routes | read if routes[month, route, late] != read[month, route, late]}
        )

    def _flights(self) -> Iterable[tuple[int, str, str, bool]]:
        """Compute the month, route and carrier of each flight, and whether it was late, from the files alone."""
        for path in sorted((self.folder / "months").glob("*.csv")):
            with path.open() as file:
                for row in csv.DictReader(file):
                    late = row["dep_delay"] != "NA" and int(row["dep_delay"]) > LATE_AFTER
                    yield int(row["month"]), f"{row['origin']}-{row['dest']}", row["carrier"], late

    def _read(self, name: str) -> Counter[Any]:
        table = self._table
        found = READERS[name](table.uri, table.options(), _QUERY)
        return Counter({(month, route, late): count for month, route, late, count in found})

    @property
    def _table(self) -> DeltaTable:
        lake = os.environ.get(LAKE_VARIABLE) or self.folder / "lake"
        return DeltaTable(f"{lake}/flights", partition_by=["month"])

    def _by_txid(self) -> dict[int | None, int]:
        return self._table.rows_by_txid()
