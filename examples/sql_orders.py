"""Orders in a shop's PostgreSQL. Many clients insert at once, some commit late, and the database is restarted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from examples.example import Example, differences
from examples.ledger import history
from tests.servers.jars import fetch_jars
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres

PRODUCTS = ("bolts", "nuts", "screws")
SELLERS = 8
RUNS = 4
_MOST = 20


class SqlOrders(Example):
    """Inserts orders while they are counted."""

    name = "sql_orders"
    files = ("sql_orders.py",)

    def prepare(self) -> None:
        """Start a PostgreSQL server with some orders, and configure Spark to read from it."""
        (jar, *_) = fetch_jars("org.postgresql", "postgresql", "42.7.7")
        self.server = LocalPostgres().start()
        self.spark = LocalSparkConnect(self.folder / "sql_spark", conf={"spark.jars": str(jar)}).start()
        self._engine = sa.create_engine(self.server.url(), pool_size=SELLERS, pool_pre_ping=True)
        self._execute("CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, product TEXT NOT NULL, amount INTEGER NOT NULL)")
        self._execute("INSERT INTO orders (product, amount) SELECT 'bolts', n % 99 FROM generate_series(1, 3000) n")

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Start runs while orders are inserted, restart the database, and start more runs until every order is read."""
        for each in self._connections():
            airflow.call("POST", "connections", json=each)
        airflow.wait_dag(self.name)
        with self._selling():
            self.say(f"{SELLERS} sellers insert orders; each commits some time after it has drawn an id, or never")
            for number in range(1, RUNS + 1):
                airflow.trigger(self.name, f"r{number}")
                if number == 2:
                    airflow.wait_task(self.name, "r1", "begin", "success", timeout=180)
                    self.server.restart()
                    self.say("the database was restarted while two transactions were open")
            for number in range(1, RUNS + 1):
                self._end(airflow, f"r{number}")
        self.say("all sales have ended")
        for number in range(1, _MOST):
            airflow.trigger(self.name, f"rest{number}")
            self._end(airflow, f"rest{number}")
            if airflow.states(self.name, f"rest{number}")["begin"] == "skipped":
                break
        for entry in history(store, self.paths):
            self.say(f"transaction {entry.txid}: run {entry.run_id}, attempts {entry.attempt}, {entry.status}")
        self.expected = self._groups("SELECT product, count(*), sum(amount) FROM orders GROUP BY product")
        self.found = self._groups("SELECT product, orders, amount FROM order_totals")
        self._engine.dispose()
        self.spark.close()
        self.server.close()

    def wrong(self) -> list[str]:
        """Compare the totals with the table of orders."""
        return differences(self.expected, self.found)

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        orders = sum(count for count, _ in self.expected.values())
        return f"{orders} of {orders} orders counted once"

    def _connections(self) -> list[dict[str, Any]]:
        shop = {"conn_type": "postgres", "schema": "postgres", "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
        known = {"shop_db": (shop, self.server.port), "shop_spark": ({"conn_type": "spark_connect"}, self.spark.port)}
        return [
            {"connection_id": conn_id, "host": "127.0.0.1", "port": port, **fields}
            for conn_id, (fields, port) in known.items()
        ]

    def _execute(self, statement: str) -> None:
        with self._engine.begin() as connected:
            connected.execute(sa.text(statement))

    def _groups(self, query: str) -> dict[object, tuple[int, int]]:
        with self._engine.connect() as connected:
            return {row[0]: (int(row[1]), int(row[2])) for row in connected.execute(sa.text(query))}

    @contextmanager
    def _selling(self) -> Iterator[None]:
        over = threading.Event()
        sellers = [threading.Thread(target=self._sell, args=(over, seed)) for seed in range(SELLERS)]
        for each in sellers:
            each.start()
        try:
            yield
        finally:
            over.set()
            for each in sellers:
                each.join()

    def _sell(self, over: threading.Event, seed: int) -> None:
        chance = random.Random(seed)
        insert = sa.text("INSERT INTO orders (product, amount) VALUES (:product, :amount)")
        while not over.is_set():
            try:
                with self._engine.connect() as connected:
                    connected.execute(insert, {"product": chance.choice(PRODUCTS), "amount": chance.randint(1, 99)})
                    over.wait(chance.choice([0.01, 0.05, 0.5]))
                    if chance.random() > 0.1:
                        connected.commit()
            except sa.exc.DBAPIError:  # The database does not respond.
                over.wait(0.2)

    def _end(self, airflow: LocalAirflow, run_id: str) -> None:
        """Wait for a run. Clear tasks that failed because the database did not respond."""
        for _ in range(3):
            if airflow.wait_run(self.name, run_id, state=None, timeout=300)["state"] == "success":
                self.say(f"run {run_id} has ended")
                return
            self.say(f"run {run_id} failed while the database was away; its failed tasks are cleared")
            airflow.clear_run(self.name, run_id, only_failed=True)
        airflow.wait_run(self.name, run_id, timeout=300)
