"""A source of a table of MariaDB or MySQL: writers out of order, servers that cannot tell, truncated tables."""

from __future__ import annotations

import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.sql import shard
from airflow_tx.sources.sql.source import SqlSource
from airflow_tx.testing.airflow import connection
from tests.servers.mariadb import MARIADB_PASSWORD, MARIADB_USER, LocalMariaDB

ATTEMPT = TransactionAttempt(1, 1)
INSERT = "INSERT INTO orders (amount) VALUES (1)"
_SOON = 300.0  # far more than a statement takes, however busy the machine is


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> sa.Engine:
    """A database with the table `orders`, which is the connection `shop`."""
    server: LocalMariaDB = request.getfixturevalue(request.param)
    database = server.new_database()
    known = {
        "host": "127.0.0.1",
        "port": server.port,
        "login": MARIADB_USER,
        "password": MARIADB_PASSWORD,
        "schema": database,
    }
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", connection("mysql", **known))
    made = sa.create_engine(server.url(database), poolclass=sa.pool.NullPool)
    run(made, "CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, amount INTEGER)")
    return made


def run(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connected:
        for statement in statements:
            connected.exec_driver_sql(statement)


def rest(source: SqlSource, position: Any = None) -> list[int]:
    """The ids of all batches from a position on."""
    found: list[int] = []
    while (batch := source.initialize_transaction(1, position)) is not None:
        position = batch.position
        rows: Any = source.emit_batch(ATTEMPT, batch.metadata)
        found += [row["id"] for row in rows]
    return found


def test_every_row_is_in_exactly_one_batch_although_writers_commit_out_of_order(engine: sa.Engine) -> None:
    source = SqlSource("shop", "orders")
    assert source.initialize_transaction(1, None) is None  # all is imported
    lock, enough, committed = threading.Lock(), threading.Event(), list[int]()
    drawn, overtaken = threading.Event(), threading.Event()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        with engine.connect() as connected:
            if seed == 0:  # the first id is committed after another one
                number = connected.execute(sa.text(INSERT)).lastrowid
                drawn.set()
                assert overtaken.wait(_SOON)
                connected.commit()
                with lock:
                    committed.append(number)
            assert drawn.wait(_SOON)
            for turn in range(4_000):
                if turn >= 40 and enough.is_set():  # on a busy machine, a batch takes long
                    break
                number = connected.execute(sa.text(INSERT)).lastrowid
                time.sleep(chance.choice([0, 0.002, 0.02, 0.1]))
                if chance.random() < 0.2:
                    connected.rollback()
                    continue
                connected.commit()
                with lock:
                    committed.append(number)
                overtaken.set()

    taken: list[int] = []
    position, batches = None, 0
    with ThreadPoolExecutor(8) as pool:
        working = [pool.submit(work, seed) for seed in range(8)]
        while not all(each.done() for each in working):
            batch = source.initialize_transaction(1, position)
            if batch is not None:
                position, batches = batch.position, batches + 1
                rows: Any = source.emit_batch(ATTEMPT, batch.metadata)
                taken += [row["id"] for row in rows]
            if batches > 1:
                enough.set()
        for each in working:
            each.result()
    taken += rest(source, position)
    assert taken == sorted(committed)
    assert committed != sorted(committed)
    assert batches > 1


def test_writers_are_not_blocked_while_an_open_transaction_delays_a_batch(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(engine, INSERT)
    source = SqlSource("shop", "orders", patience=3)
    now, written = 0.0, 0

    def pause(seconds: float) -> None:
        """Let another writer insert a row; time passes in pauses alone."""
        nonlocal now, written
        now += seconds
        run(engine, f"SET SESSION lock_wait_timeout = {_SOON:.0f}", INSERT)
        written += 1

    monkeypatch.setattr(shard, "time", SimpleNamespace(monotonic=lambda: now, sleep=pause))
    with engine.begin() as early, caplog.at_level(logging.WARNING):
        early.exec_driver_sql(INSERT)
        assert source.initialize_transaction(1, None) is None
    assert "reads no new row of table orders: transactions that have written to it are open" in caplog.text
    assert written > 1
    assert rest(source) == list(range(1, written + 3))


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("read_only = 1", "its server is read-only, such as a replica"),
        ("auto_increment_increment = 2", "auto_increment_increment is 2: several servers hand out ids"),
    ],
)
def test_a_server_whose_settings_hide_open_transactions_is_refused(engine: sa.Engine, setting: str, told: str) -> None:
    run(engine, INSERT)
    name = setting.split()[0]
    try:
        run(engine, f"SET GLOBAL {setting}")
        with pytest.raises(SourceError, match=told):
            SqlSource("shop", "orders").initialize_transaction(1, None)
    finally:
        run(engine, f"SET GLOBAL {name} = DEFAULT")


def test_a_truncated_table_stops_the_source(engine: sa.Engine) -> None:
    run(engine, INSERT, INSERT)
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    run(engine, "TRUNCATE orders")
    with pytest.raises(
        SourceError, match="table orders begins again: rows up to 2 were taken, and the last id is 0 now"
    ):
        source.initialize_transaction(2, batch.position)
    assert "at" not in str(batch.position)


def test_a_truncated_table_that_has_more_rows_than_before_stops_the_source(engine: sa.Engine) -> None:
    run(engine, "INSERT INTO orders (amount) VALUES (1), (2)")
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    run(engine, "UPDATE orders SET amount = 7 WHERE id = 2")
    assert source.losses(batch.position) == []
    run(engine, "TRUNCATE orders", "INSERT INTO orders (amount) VALUES (3), (4), (5)")
    with pytest.raises(SourceError, match="table orders begins again: rows up to 2 were taken, and other rows have"):
        source.initialize_transaction(2, batch.position)


def test_a_source_ordered_by_a_column_without_auto_increment_reports_no_truncation(engine: sa.Engine) -> None:
    run(engine, "ALTER TABLE orders ADD seq BIGINT NOT NULL UNIQUE", "INSERT INTO orders (seq) VALUES (100), (200)")
    source = SqlSource("shop", "orders", order_by="seq")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    try:
        run(engine, "INSERT INTO orders (seq) VALUES (300)", "SET GLOBAL auto_increment_increment = 2")
        assert source.losses(batch.position) == []
        assert rest(source, batch.position) == [3]
    finally:
        run(engine, "SET GLOBAL auto_increment_increment = DEFAULT")


def test_the_settle_time_uses_the_clock_of_the_database_server(engine: sa.Engine) -> None:
    for kind in ("DATETIME(6)", "TIMESTAMP(6)"):
        table = f"seen_{kind[0]}"
        run(
            engine,
            f"CREATE TABLE {table} (at {kind} NOT NULL, id INTEGER AUTO_INCREMENT PRIMARY KEY, INDEX (at, id))",
            f"INSERT INTO {table} (at) VALUES (NOW(6) - INTERVAL 90 SECOND), (NOW(6) - INTERVAL 60 SECOND), (NOW(6))",
        )
        source = SqlSource("shop", table, order_by=["at", "id"], settle=30, max_rows_per_batch=1)
        assert rest(source) == [1, 2]


def test_a_column_whose_exact_values_cannot_be_read_is_refused_with_the_readable_columns(engine: sa.Engine) -> None:
    run(engine, "ALTER TABLE orders ADD place POINT", INSERT)
    with pytest.raises(SourceError) as refused:
        rest(SqlSource("shop", "orders"))
    told = str(refused.value)
    assert "column place of table orders is of an unknown type: no reader has its exact values" in told
    assert (
        "Read other columns: columns=['id', 'amount']; or change its type to a number, a time, a text or bytes." in told
    )
    assert rest(SqlSource("shop", "orders", columns=["id", "amount"])) == [1]


def test_a_float_is_read_as_the_number_that_the_database_uses_in_sums(engine: sa.Engine) -> None:
    run(engine, "ALTER TABLE orders ADD v FLOAT", "INSERT INTO orders (v) VALUES (12345.678), (1234567.8), (16777217)")
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    rows: Any = source.emit_batch(ATTEMPT, batch.metadata)
    with engine.connect() as connected:
        assert sum(row["v"] for row in rows) == connected.exec_driver_sql("SELECT SUM(v) FROM orders").scalar_one()
