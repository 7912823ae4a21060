"""Orders, their totals and their summary change at once. A reader compares them while committers are killed."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from examples.comparing_reader import ComparingReader
from examples.example import Example, differences
from examples.servers import database
from examples.stored import rows

PRODUCTS = ("bolts", "nuts", "screws")
ROWS = 200
KILLED = ("commit.after_acquire", "commit.before_write", "commit.before_mark", "commit.after_mark")
"""The failpoints at which committers are killed, each in a separate transaction."""
_TABLES = ("orders", "totals", "summary")
_QUERY = """
    SELECT 'orders', product, count(*), sum(amount) FROM summed_orders GROUP BY product
    UNION ALL SELECT 'totals', product, orders, amount FROM summed_totals
    UNION ALL SELECT 'summary', product, orders, amount FROM order_summary"""


class OrderSummary(Example):
    """Kills committers while a reader compares the three tables."""

    name = "order_summary"
    files = ("order_summary.py",)

    def prepare(self) -> None:
        """Write one file for each transaction, and create the table of the summary."""
        chance = random.Random(1)
        folder = self.folder / "shop"
        folder.mkdir()
        for number in range(len(KILLED) + 1):
            with (folder / f"{number:02}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["product", "amount"])
                writer.writerows([chance.choice(PRODUCTS), chance.randint(1, 99)] for _ in range(ROWS))
        place = database(self.folder)
        self._url = f"sqlite:///{place}" if isinstance(place, Path) else place
        with sa.create_engine(self._url, poolclass=sa.pool.NullPool).begin() as connection:
            columns = "product TEXT, orders BIGINT, amount BIGINT, largest BIGINT"
            connection.exec_driver_sql(f"CREATE TABLE order_summary ({columns})")

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Commit one transaction. Then commit one more for each failpoint in `KILLED`."""
        airflow.wait_dag(self.name)
        airflow.trigger(self.name, "r0")
        airflow.wait_run(self.name, "r0", timeout=600)
        killed = [
            self.failpoints.arm(point, "kill", topology=self.name, txid=txid) for txid, point in enumerate(KILLED, 2)
        ]
        with ComparingReader(self._url, _QUERY, _TABLES) as self._reader:
            self.say("from now on, a reader compares orders, totals and summary")
            for point in KILLED:
                airflow.trigger(self.name, point)
            for point in KILLED:
                airflow.wait_run(self.name, point, timeout=600)
                self.say(f"a committer was killed at {point}; its transaction is committed")
            self._reader.looks()
        assert all(each.reached for each in killed)

    def wrong(self) -> list[str]:
        """Compare the tables with each other, and the table of orders with the files."""
        found = {
            product: (int(number), int(amount), int(largest))
            for product, number, amount, largest in rows(database(self.folder), "SELECT * FROM order_summary")
        }
        torn = [f"the tables differed: {each}" for each in self._reader.torn]
        return [*torn, *differences(self._expected(), found)]

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        expected = sum(number for number, _, _ in self._expected().values())
        (counted,) = rows(database(self.folder), "SELECT count(*) FROM summed_orders")
        together = self._reader.readings - len(self._reader.torn)
        return (
            f"{counted[0]} of {expected} orders counted once; "
            f"orders, totals and summary agreed in {together} of {self._reader.readings} readings"
        )

    def _expected(self) -> dict[object, tuple[int, int, int]]:
        """Compute the number of orders, their amount and the largest order per product, directly from the files."""
        amounts: dict[object, list[int]] = {}
        for product, amount in self._orders():
            amounts.setdefault(product, []).append(amount)
        return {product: (len(found), sum(found), max(found)) for product, found in amounts.items()}

    def _orders(self) -> Iterator[tuple[str, int]]:
        for path in (self.folder / "shop").glob("*.csv"):
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    yield row["product"], int(row["amount"])
