"""Orders of several regions under the coordinator.

Regions are added and removed, files arrive late, and a worker is killed.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from pathlib import Path

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow_client import AirflowClient
from airflow_tx.testing.eventually import eventually
from examples.example import Example, differences
from examples.ledger import history
from examples.servers import database
from examples.stored import rows

PRODUCTS = ("bolts", "nuts", "screws")
ROWS = 200
_TIMEOUT = 300


class Orders(Example):
    """Writes files of orders while the coordinator counts them."""

    name = "orders"
    files = ("orders.py",)

    def prepare(self) -> None:
        """Write two files for each of two regions."""
        self.away: Path = self.folder / "orders_away"
        self._random = random.Random(1)
        self._files = 0
        for region in ("eu", "us"):
            for number in (1, 2):
                self._write(region, f"{number:02}.csv")

    def drive(self, airflow: AirflowClient, store: Store) -> None:
        """Add new data, a late file and a new region. Remove a region for a while, and kill a task."""
        airflow.wait_dag("orders")
        airflow.wait_dag("orders_coordinator")
        self._counted(store, "the first orders")
        self._write("eu", "00.csv")
        self.say("a late file arrives: its name sorts before the files that were taken")
        self._write("asia", "01.csv")
        self.say("a new region has files")
        self._counted(store, "the late file and the new region")
        us = self.folder / "orders" / "region=us"
        us.rename(self.away)
        self.say("the folder of region us is moved away")
        self.failpoints.arm("process.before_ack", "kill", topology=self.name)
        self._write("eu", "03.csv")
        self.say("the next task is killed just before it finishes; the coordinator replays its transaction")
        self._counted(store, "the files of all regions except us")
        self.away.rename(us)
        self._write("us", "03.csv")
        self.say("the folder of region us is back, with more orders")
        self._counted(store, "the rest")
        for entry in history(store, self.paths):
            self.say(f"transaction {entry.txid}: run {entry.run_id}, attempts {entry.attempt}, {entry.status}")

    def wrong(self) -> list[str]:
        """Compare the totals with the files."""
        return differences(self._expected(), self._found())

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        return f"{self._files * ROWS} of {self._files * ROWS} orders counted once"

    def _write(self, region: str, name: str) -> None:
        folder = self.folder / "orders" / f"region={region}"
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{name}"
        with partial.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["product", "amount"])
            writer.writerows([self._random.choice(PRODUCTS), self._random.randint(1, 99)] for _ in range(ROWS))
        # The rename is atomic, since the source may list the folder at this moment.
        partial.rename(folder / name)
        self._files += 1

    def _counted(self, store: Store, what: str) -> None:
        """Wait until every order in a readable file is counted."""

        def told() -> str:
            return "\n".join(differences(self._expected(), self._found()))

        eventually(lambda: self._expected() == self._found(), _TIMEOUT, f"{what} are counted", explain=told)
        self.say(f"counted: {what}; {len(history(store, self.paths))} transactions so far")

    def _expected(self) -> dict[object, object]:
        """Compute the number of orders and their amount from the files, per region and product.

        Include a removed region.
        """
        orders: Counter[tuple[str, str]] = Counter()
        amounts: Counter[tuple[str, str]] = Counter()
        folders = {path.name: path for path in (self.folder / "orders").iterdir()}
        if self.away.exists():
            folders["region=us"] = self.away
        for name, folder in folders.items():
            for path in folder.glob("[!.]*.csv"):
                with path.open(newline="") as file:
                    for row in csv.DictReader(file):
                        group = (name.removeprefix("region="), row["product"])
                        orders[group] += 1
                        amounts[group] += int(row["amount"])
        return {group: (count, amounts[group]) for group, count in orders.items()}

    def _found(self) -> dict[object, object]:
        """Read the number of orders and their amount from the state, per region and product."""
        found = rows(database(self.folder), "SELECT region, product, orders, amount FROM order_totals")
        return {(region, product): (int(orders), int(amount)) for region, product, orders, amount in found}
