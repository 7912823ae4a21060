"""Orders by day: some days of a backfill fail and are cleared. Then a second backfill runs all days in reverse."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.eventually import eventually
from examples.example import Example, differences
from examples.ledger import history
from examples.servers import database

FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
DAYS = 6
_TIMEOUT = 300


class Daily(Example):
    """Runs a backfill of days, two of which fail at first."""

    name = "daily_orders"
    files = ("daily_orders.py", "order_book.py")

    def prepare(self) -> None:
        """Do nothing, since the DAG computes the orders of each day."""

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Run a backfill with two failing days, which block later days until they are cleared.

        Then run a second backfill.
        """
        eventually(lambda: airflow.call("GET", f"dags/{self.name}"), 90, "the DAG is known", interval=0.3)
        airflow.pause(self.name, False)
        for txid in (2, 4):
            self.failpoints.arm("process.before_ack", "kill", topology=self.name, txid=txid)
        last = FIRST + timedelta(days=DAYS - 1)
        self.say(f"airflow backfill create for {DAYS} days; the tasks of two days are killed")
        airflow.backfill(self.name, FIRST, last)
        eventually(lambda: len(self._failed(airflow)) == 2, _TIMEOUT, "two runs have failed")
        self.say("two runs have failed, and the later days wait; the failed runs are cleared in the UI")
        for run_id in self._failed(airflow):
            airflow.clear_run(self.name, run_id)
        self._ended(airflow)
        self._tell(store)
        self.say(
            "airflow backfill create --reprocess-behavior completed --run-backwards: all days are already committed"
        )
        airflow.end_backfills(self.name)
        airflow.backfill(self.name, FIRST, last, reprocess="completed", backwards=True)
        self._ended(airflow)
        self._tell(store)
        self._starts = [datetime.fromisoformat(run["data_interval_start"]) for run in airflow.runs(self.name)]

    def wrong(self) -> list[str]:
        """Compare the totals with the orders."""
        sys.path.insert(0, str(self.folder / "dags"))
        from order_book import orders  # type: ignore[import-not-found]

        counts: Counter[str] = Counter()
        amounts: Counter[str] = Counter()
        for start in self._starts:  # The schedule has started a run as well.
            for order in orders(start, start + timedelta(days=1)):
                counts[order["product"]] += 1
                amounts[order["product"]] += order["amount"]
        self._orders = counts.total()
        connection = sqlite3.connect(f"file:{database(self.folder)}?mode=ro", uri=True)
        try:
            rows = connection.execute("SELECT product, orders, amount FROM daily_orders").fetchall()
        finally:
            connection.close()
        found = {product: (int(orders), int(amount)) for product, orders, amount in rows}
        return differences({product: (counts[product], amounts[product]) for product in counts}, found)

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        return f"{self._orders} of {self._orders} orders of {len(self._starts)} days counted once"

    def _failed(self, airflow: LocalAirflow) -> list[str]:
        return [run["dag_run_id"] for run in airflow.runs(self.name) if run["state"] == "failed"]

    def _ended(self, airflow: LocalAirflow) -> None:
        def states() -> list[str]:
            return sorted(run["state"] for run in airflow.runs(self.name))

        eventually(lambda: set(states()) == {"success"}, _TIMEOUT, "all runs succeed", explain=lambda: str(states()))
        self.say(f"{len(states())} runs have succeeded")

    def _tell(self, store: Store) -> None:
        entries = history(store, self.paths)
        attempts = " ".join(f"{entry.txid}:{entry.attempt}" for entry in entries)
        self.say(f"{len(entries)} transactions committed (txid:attempts {attempts})")
