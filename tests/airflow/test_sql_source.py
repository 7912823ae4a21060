"""Rows that many writers insert while transactions take them, and while their database is restarted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from airflow_tx.testing.eventually import eventually
from tests.airflow.stack import Stack
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres

DAG = "sql_source"
PRODUCTS = ("bolts", "nuts", "screws")
ENOUGH = 100
"""Orders among which one that is lost, or counted twice, may be seen."""


@pytest.fixture
def shop(stack: Stack) -> Iterator[LocalPostgres]:
    """The shop's own PostgreSQL, and the connection `sql_shop`, kept by Airflow."""
    with LocalPostgres() as server:
        known = {"connection_id": "sql_shop", "conn_type": "postgres", "host": "127.0.0.1", "port": server.port}
        login = {"login": POSTGRES_USER, "password": POSTGRES_PASSWORD, "schema": "postgres"}
        stack.airflow.call("POST", "connections", json={**known, **login})
        yield server
        stack.airflow.call("DELETE", "connections/sql_shop")


class Writers:
    """Threads that insert orders, some of them undone, each committed some time after its id was drawn."""

    def __init__(self, server: LocalPostgres, threads: int) -> None:
        # Each thread keeps its connection, because one for each row would take all of the machine.
        self._engine = sa.create_engine(server.url(), pool_size=threads, pool_pre_ping=True)
        with self._engine.begin() as connected:
            connected.exec_driver_sql(
                "CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, product TEXT NOT NULL, amount INTEGER NOT NULL)"
            )
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(seed,)) for seed in range(threads)]
        for each in self._threads:
            each.start()

    def _work(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._over.is_set():
            try:
                with self._engine.connect() as connected:
                    values = {"product": chance.choice(PRODUCTS), "amount": chance.randint(1, 99)}
                    insert = "INSERT INTO orders (product, amount) VALUES (:product, :amount)"
                    connected.execute(sa.text(insert), values)
                    self._over.wait(chance.choice([0.01, 0.05, 0.3]))
                    if chance.random() > 0.1:
                        connected.commit()
            except sa.exc.DBAPIError:  # the server is away
                self._over.wait(0.2)

    def stop(self) -> None:
        self._over.set()
        for each in self._threads:
            each.join()
        self._engine.dispose()


def _totals(server: LocalPostgres, query: str) -> dict[str, tuple[int, int]]:
    engine = sa.create_engine(server.url(), poolclass=sa.pool.NullPool)
    with engine.connect() as connected:
        return {row[0]: (int(row[1]), int(row[2])) for row in connected.execute(sa.text(query))}


def orders(server: LocalPostgres) -> int:
    """How many there are."""
    return sum(count for count, _ in _totals(server, "SELECT 'all', count(*), 0 FROM orders").values())


def _end(stack: Stack, run_id: str) -> None:
    """Wait for a run, and clear what failed in it while the database was away."""
    for _ in range(3):
        if stack.airflow.wait_run(DAG, run_id, state=None)["state"] == "success":
            return
        stack.airflow.clear_run(DAG, run_id, only_failed=True)
    stack.airflow.wait_run(DAG, run_id)


@pytest.mark.long
def test_every_order_is_counted_once_although_the_source_database_restarts(stack: Stack, shop: LocalPostgres) -> None:
    airflow = stack.airflow
    airflow.wait_dag(DAG)
    writers = Writers(shop, threads=6)
    try:
        runs = [f"r{number}" for number in range(1, 7)]
        for run_id in runs[:3]:
            airflow.trigger(DAG, run_id)
            airflow.wait_task(DAG, run_id, "begin", "success")
        airflow.wait_task(DAG, "r1", "count_orders", ("running", "success"))
        shop.restart()
        for run_id in runs[3:]:
            before = orders(shop)
            airflow.trigger(DAG, run_id)
            eventually(lambda before=before: orders(shop) > before, 240, "there are more orders")  # type: ignore[misc]
        for run_id in runs:
            _end(stack, run_id)
        eventually(lambda: orders(shop) > ENOUGH, 240, "there are enough orders")
    finally:
        writers.stop()

    def rest() -> bool:
        run_id = f"rest-{time.monotonic_ns()}"
        airflow.trigger(DAG, run_id)
        _end(stack, run_id)
        return airflow.states(DAG, run_id)["begin"] == "skipped"

    eventually(rest, 240, "all orders are counted")
    expected = _totals(shop, "SELECT product, count(*), sum(amount) FROM orders GROUP BY product")
    assert _totals(shop, "SELECT product, orders, amount FROM totals") == expected
    assert sum(count for count, _ in expected.values()) > ENOUGH
    assert len(stack.ledger(DAG).history()) >= 4
    for path in airflow.home.rglob(f"*{DAG}*/**/*.log"):
        assert POSTGRES_PASSWORD not in path.read_text(errors="replace"), path
