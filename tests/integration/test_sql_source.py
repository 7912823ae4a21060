"""What a source of a SQL table promises on a real PostgreSQL: whatever its writers do, every row is in one batch."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, Source
from airflow_tx.sources.sql import shard
from airflow_tx.sources.sql.source import PartitionedSqlSource, SqlSource
from airflow_tx.testing.airflow import connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.server import free_port
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, UNUSUAL_SETTINGS, LocalPostgres

ATTEMPT = TransactionAttempt(1, 1)
_SOON = 300.0  # far more than a statement takes, however busy the machine is


class Shop:
    """A database of its own, which is the connection `shop`."""

    def __init__(self, server: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self._monkeypatch = server, monkeypatch
        self.database = server.new_database()
        self.engine = sa.create_engine(server.url(self.database), poolclass=sa.pool.NullPool)
        self.connect()

    def connect(self, conn_id: str = "shop", **fields: Any) -> None:
        known: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.server.port,
            "login": POSTGRES_USER,
            "password": POSTGRES_PASSWORD,
        }
        known |= {"schema": self.database, **fields}
        self._monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", connection("postgres", **known))

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connected:
            for statement in statements:
                connected.exec_driver_sql(statement)

    def ids(self, table: str = "orders") -> list[int]:
        with self.engine.connect() as connected:
            return list(connected.exec_driver_sql(f"SELECT id FROM {table} ORDER BY id").scalars())

    @contextmanager
    def transaction(self, *statements: str) -> Iterator[Connection]:
        """One that has run some statements and is open; committed at the end."""
        with self.engine.begin() as connected:
            for statement in statements:
                connected.exec_driver_sql(statement)
            yield connected


@pytest.fixture
def shop(postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> Shop:
    made = Shop(postgres, monkeypatch)
    made.run("CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, amount INTEGER)")
    return made


def rows(source: Source, batch: Batch) -> list[Any]:
    found: Any = source.emit_batch(ATTEMPT, batch.metadata)
    return list(found)


def rest(source: SqlSource, position: Any = None) -> list[int]:
    """The ids of all batches from a position on."""
    found: list[int] = []
    while (batch := source.initialize_transaction(1, position)) is not None:
        position = batch.position
        found += [row["id"] for row in rows(source, batch)]
    return found


def refusal(act: Callable[[], object]) -> str:
    """What is told, in one line and without the password."""
    with pytest.raises(SourceError) as error:
        act()
    told = str(error.value)
    assert "\n" not in told
    assert POSTGRES_PASSWORD not in told
    return told


# --- writers that commit in another order than that of their ids ---------------------------------------------------


class Writers:
    """Threads that insert rows in transactions of their own, and note the committed ids in the order of the commits.

    The first transaction draws its id first, and commits after another one.

    :param transactions: of each thread at least; it continues until `enough` is set, since a batch takes long on a busy
        machine.
    """

    def __init__(self, shop: Shop, write: Callable[[Connection, random.Random], list[int]], transactions: int) -> None:
        self._shop, self._write, self._transactions = shop, write, transactions
        self._lock = threading.Lock()
        self._drawn, self._overtaken = threading.Event(), threading.Event()
        self.enough = threading.Event()
        self.committed: list[int] = []
        self.undone = 0

    def work(self, seed: int) -> None:
        chance = random.Random(seed)
        with self._shop.engine.connect() as connected:
            if seed == 0:
                ids = self._write(connected, chance)
                self._drawn.set()
                assert self._overtaken.wait(_SOON)
                connected.commit()
                with self._lock:
                    self.committed += ids
            assert self._drawn.wait(_SOON)
            for turn in range(100 * self._transactions):
                if turn >= self._transactions and self.enough.is_set():
                    break
                ids = self._write(connected, chance)
                time.sleep(chance.choice([0, 0, 0.002, 0.02, 0.1]))
                if chance.random() < 0.2:
                    connected.rollback()
                    self.undone += 1
                    continue
                connected.commit()
                with self._lock:
                    self.committed += ids
                self._overtaken.set()


def in_one_statement(connected: Connection, chance: random.Random) -> list[int]:
    query = sa.text("INSERT INTO orders (amount) SELECT 1 FROM generate_series(1, :rows) RETURNING id")
    return list(connected.execute(query, {"rows": chance.randint(1, 4)}).scalars())


def long_after_the_id_was_drawn(connected: Connection, chance: random.Random) -> list[int]:
    drawn = connected.execute(sa.text("SELECT nextval('orders_id_seq')")).scalar_one()
    time.sleep(chance.choice([0, 0.01, 0.05]))
    undone = connected.begin_nested()
    connected.execute(sa.text("INSERT INTO orders (amount) VALUES (2)"))
    undone.rollback()
    connected.execute(sa.text("INSERT INTO orders VALUES (:id, 1)"), {"id": drawn})
    return [int(drawn)]


@pytest.mark.parametrize("write", [in_one_statement, long_after_the_id_was_drawn])
def test_every_row_is_in_exactly_one_batch_although_writers_commit_out_of_order(
    shop: Shop, write: Callable[[Connection, random.Random], list[int]]
) -> None:
    source = SqlSource("shop", "orders")  # without a limit, so that each batch ends among the rows of now
    assert source.initialize_transaction(1, None) is None  # all is imported
    writers = Writers(shop, write, transactions=40)
    taken: list[int] = []
    position, batches = None, 0
    with ThreadPoolExecutor(12) as pool:
        working = [pool.submit(writers.work, seed) for seed in range(12)]
        while not all(each.done() for each in working):
            batch = source.initialize_transaction(1, position)
            if batch is not None:
                position, batches = batch.position, batches + 1
                taken += [row["id"] for row in rows(source, batch)]
            if batches > 2:
                writers.enough.set()
        for each in working:
            each.result()
    taken += rest(source, position)
    assert taken == sorted(taken)
    assert taken == shop.ids() == sorted(writers.committed)
    # Otherwise nothing was tried here.
    assert writers.committed != sorted(writers.committed)
    assert writers.undone
    assert batches > 2


def test_rows_ordered_by_the_start_time_of_their_transaction_are_each_in_exactly_one_batch(shop: Shop) -> None:
    shop.run("CREATE TABLE seen (id SERIAL PRIMARY KEY, at TIMESTAMPTZ NOT NULL DEFAULT now())")
    shop.run("CREATE INDEX ON seen (at, id)")
    source = SqlSource("shop", "seen", order_by=["at", "id"], settle=0, patience=0.3)
    early = shop.engine.connect()
    early.exec_driver_sql("SELECT now()")  # it has a time, and nothing of the table
    shop.run("INSERT INTO seen DEFAULT VALUES")
    assert source.initialize_transaction(1, None) is None
    early.exec_driver_sql("INSERT INTO seen DEFAULT VALUES")
    early.commit()
    early.close()
    assert rest(source) == [2, 1]


def test_a_row_ordered_by_time_is_taken_after_the_settle_time(shop: Shop) -> None:
    shop.run("CREATE TABLE seen (id SERIAL PRIMARY KEY, at TIMESTAMP NOT NULL)")
    shop.run("INSERT INTO seen (at) VALUES (localtimestamp - interval '1 hour'), (localtimestamp + interval '1 hour')")
    assert rest(SqlSource("shop", "seen", order_by=["at", "id"])) == [1]
    assert rest(SqlSource("shop", "seen", order_by=["at", "id"], settle=3_700)) == []


# --- who is waited for ---------------------------------------------------------------------------------------------


def test_the_log_names_the_open_transaction_that_delays_a_batch(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SqlSource("shop", "orders", patience=0.2)
    insert = "INSERT INTO orders (amount) VALUES (1)"
    with shop.transaction("SET application_name = 'nightly load'", insert) as early:
        pid = early.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        shop.run(insert)
        with caplog.at_level(logging.WARNING):
            assert source.initialize_transaction(1, None) is None
        assert f"pid {pid} (nightly load) since 2" in caplog.text
        assert "No row is lost" in caplog.text
        # It goes on as soon as it can: the transaction is over in the first pause, and no time passes.
        monkeypatch.setattr(shard, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: early.commit()))
        batch = SqlSource("shop", "orders", patience=20).initialize_transaction(1, None)
        assert batch is not None
        assert batch.count == 2


def test_open_transactions_that_use_no_id_of_the_table_do_not_delay_a_batch(shop: Shop) -> None:
    source = SqlSource("shop", "orders", patience=0)
    shop.run("INSERT INTO orders (amount) VALUES (1)")
    other = "UPDATE orders SET amount = 2"
    with shop.transaction("SELECT * FROM orders", other), shop.transaction("CREATE TABLE mine (id BIGSERIAL)"):
        assert rest(source) == [1]


def test_rows_with_ids_that_come_from_no_sequence_wait_for_all_open_transactions(shop: Shop) -> None:
    shop.run("CREATE TABLE given (id BIGINT PRIMARY KEY)")
    source = SqlSource("shop", "given", patience=0)
    with shop.transaction("SELECT 1") as early:
        shop.run("INSERT INTO given VALUES (2)")
        assert rest(source) == []
        early.exec_driver_sql("INSERT INTO given VALUES (1)")
    assert rest(source) == [1, 2]


def test_a_source_with_a_read_only_user_waits_for_open_transactions_of_other_users(shop: Shop) -> None:
    role = f"reader_{shop.database}"
    shop.run(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'", f"GRANT SELECT ON orders TO {role}")
    shop.connect(login=role, password="secret")
    source = SqlSource("shop", "orders", patience=0)
    with shop.transaction("INSERT INTO orders (amount) VALUES (1)"):
        shop.run("INSERT INTO orders (amount) VALUES (1)")
        assert rest(source) == []
    assert rest(source) == [1, 2]


def test_rows_with_an_id_beyond_the_sequence_wait_until_the_sequence_passes_their_ids(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    insert = "INSERT INTO orders (amount) VALUES (1)"
    shop.run(insert, "INSERT INTO orders VALUES (4, 0)")
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    assert [row["id"] for row in rows(source, batch)] == [1]
    assert "rows up to 4, but its sequence orders_id_seq is at 1" in caplog.text
    shop.run(insert, insert, "SELECT nextval('orders_id_seq')")
    assert rest(source, batch.position) == [2, 3, 4]


# --- rows that come or go behind the back of the source --------------------------------------------------------------


def test_a_late_row_stops_the_source_until_a_person_accepts_it_as_lost(shop: Shop) -> None:
    for _ in range(4):
        shop.run("INSERT INTO orders (amount) VALUES (1)")
    shop.run("DELETE FROM orders WHERE id = 2")
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    assert source.losses(batch.position) == []
    shop.run("INSERT INTO orders VALUES (2, 1)", "INSERT INTO orders (amount) VALUES (1)")
    told = refusal(lambda: source.initialize_transaction(2, batch.position))
    assert "1 row(s) of table orders came too late, they are in no batch: up to 4 there were 3" in told
    (loss,) = source.losses(batch.position)
    assert loss.position == batch.position
    assert rest(source, loss.resume_at) == [5]


def test_rows_may_be_deleted_after_a_batch_has_taken_them(shop: Shop) -> None:
    shop.run("INSERT INTO orders (amount) SELECT 1 FROM generate_series(1, 4)")
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    shop.run("DELETE FROM orders WHERE id < 3", "INSERT INTO orders (amount) VALUES (1)")
    following = source.initialize_transaction(2, batch.position)
    assert following is not None
    assert following.count == 1
    # None of the deleted ones hides a row that comes too late.
    shop.run("INSERT INTO orders VALUES (1, 1)")
    assert "1 row(s) of table orders came too late" in refusal(lambda: rest(source, following.position))


def test_a_truncated_table_is_read_from_its_start_after_a_person_accepts_the_loss(shop: Shop) -> None:
    shop.run("INSERT INTO orders (amount) SELECT 1 FROM generate_series(1, 4)")
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    shop.run("TRUNCATE orders RESTART IDENTITY", "INSERT INTO orders (amount) VALUES (1)")
    assert "table orders begins again: rows up to 4 were taken, and the last id is 1 now" in refusal(
        lambda: source.initialize_transaction(2, batch.position)
    )
    (loss,) = source.losses(batch.position)
    assert rest(source, loss.resume_at) == [1]
    shop.run("INSERT INTO orders (amount) SELECT 1 FROM generate_series(2, 4)")
    again = source.initialize_transaction(2, loss.resume_at)
    assert again is not None
    assert again.position != batch.position  # else the loss would be found at this place, too


def test_the_source_notices_a_truncated_table_that_has_more_rows_than_before(shop: Shop) -> None:
    fill = "INSERT INTO orders (amount) SELECT mod(n, 2) FROM generate_series({}) n"
    shop.run(fill.format("1, 4"))
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    # Neither a new file of the table nor new values of its rows are a new beginning.
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connected:
        connected.exec_driver_sql("VACUUM FULL orders")
    shop.run("UPDATE orders SET amount = amount + 1", fill.format("5, 5"))
    assert source.losses(batch.position) == []
    shop.run("TRUNCATE orders RESTART IDENTITY", fill.format("2, 7"))
    assert "begins again: rows up to 4 were taken, and other rows have the last of these ids now" in refusal(
        lambda: source.initialize_transaction(2, batch.position)
    )
    (loss,) = source.losses(batch.position)
    assert rest(source, loss.resume_at) == [1, 2, 3, 4, 5, 6]


def test_rows_that_moved_in_the_order_are_noticed_when_the_batch_is_read(shop: Shop) -> None:
    shop.run("CREATE TABLE seen (id SERIAL PRIMARY KEY, at TIMESTAMP NOT NULL)")
    shop.run("INSERT INTO seen (at) SELECT timestamp '2026-01-01' + n * interval '1 s' FROM generate_series(1, 3) n")
    source = SqlSource("shop", "seen", order_by=["at", "id"], kind="opaque")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    shop.run("UPDATE seen SET at = '2026-01-02' WHERE id = 2")
    told = refusal(lambda: rows(source, batch))
    assert "had 3 rows behind the beginning up to (2026-01-01T00:00:03.000000, 3), and has 2" in told
    assert rest(source) == [1, 3, 2]


# --- bad input -------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("", {"table": "nowhere"}, "the database of connection shop has no table nowhere"),
    ("", {"order_by": "number"}, "table orders has no column number; it has id, amount"),
    ("", {"columns": ["id", "total", "tax"]}, "table orders has no column total, tax; it has id, amount"),
    ("", {"order_by": "amount"}, "amount of table orders is not unique"),
    ("ALTER TABLE orders ADD u UUID UNIQUE", {"order_by": "u"}, "column u of table orders is UUID"),
    ("ALTER TABLE orders ADD j JSONB UNIQUE", {"order_by": "j"}, "column j of table orders is JSONB"),
    (
        "ALTER TABLE orders ADD n INTEGER UNIQUE; INSERT INTO orders VALUES (1, 1, NULL)",
        {"order_by": "n"},
        "table orders has rows without n (NULL)",
    ),
    ("CREATE UNIQUE INDEX ON orders (amount) WHERE amount > 1", {"order_by": "amount"}, "is not unique"),
    ("ALTER TABLE orders ADD m MONEY", {}, "column m of table orders is MONEY: no reader has its exact values"),
    (
        "CREATE TABLE old_orders () INHERITS (orders)",
        {},
        "table orders also contains the rows of old_orders, which inherit from it: its indexes do not cover these rows"
        ". ALTER TABLE old_orders NO INHERIT orders",
    ),
    ("CREATE VIEW all_orders AS SELECT * FROM orders", {"table": "all_orders"}, "id of table all_orders is not unique"),
    ("ALTER SEQUENCE orders_id_seq CACHE 20", {}, "sequence orders_id_seq of orders.id has CACHE 20"),
    ("ALTER SEQUENCE orders_id_seq CYCLE", {}, "sequence orders_id_seq of orders.id has CYCLE"),
]


@pytest.mark.parametrize(("statement", "arguments", "told"), BAD, ids=[told[:40] for *_, told in BAD])
def test_a_table_that_the_source_cannot_read_safely_is_refused_with_the_reason(
    shop: Shop, statement: str, arguments: dict[str, Any], told: str
) -> None:
    shop.run(*filter(None, statement.split("; ")))
    source = SqlSource("shop", **{"table": "orders", **arguments})
    assert told in refusal(lambda: source.initialize_transaction(1, None))


def test_an_invalid_unique_index_is_not_accepted_as_unique(shop: Shop) -> None:
    shop.run("CREATE TABLE twice (id BIGINT NOT NULL)", "INSERT INTO twice VALUES (1), (2), (2)")
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connected:
        with pytest.raises(sa.exc.IntegrityError):
            connected.exec_driver_sql("CREATE UNIQUE INDEX CONCURRENTLY twice_id ON twice (id)")
    source = SqlSource("shop", "twice")
    told = refusal(lambda: rest(source))
    assert "id of table twice is not unique" in told
    assert "its index twice_id is invalid, because PostgreSQL did not finish it" in told
    assert "then REINDEX INDEX twice_id." in told
    shop.run("DELETE FROM twice WHERE ctid = '(0,3)'", "REINDEX INDEX twice_id")
    assert rest(source) == [1, 2]


def test_unique_ids_of_partitioned_tables_and_deferred_constraints_are_accepted(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE parted (id BIGINT PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted DEFAULT",
        "CREATE TABLE late (id BIGINT UNIQUE NULLS NOT DISTINCT DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO parted VALUES (1)",
        "INSERT INTO late VALUES (1)",
    )
    assert rest(SqlSource("shop", "parted")) == rest(SqlSource("shop", "late")) == [1]


# --- values and settings ---------------------------------------------------------------------------------------------


def test_a_value_that_python_cannot_represent_is_refused_only_if_its_column_is_read(shop: Shop) -> None:
    shop.run("ALTER TABLE orders ADD at TIMESTAMP", "INSERT INTO orders VALUES (1, 1, now()), (2, 2, '20000-01-01')")
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    told = refusal(lambda: rows(source, batch))
    assert "column at of table orders is 20000-01-01 00:00:00 in the row whose id is 2" in told
    assert "Correct it, or read other columns: columns=['id', 'amount']" in told
    assert rest(SqlSource("shop", "orders", columns=["id", "amount"])) == [1, 2]


@pytest.mark.parametrize("at", ["-infinity", "0044-03-15 BC"])
def test_a_time_that_python_cannot_order_causes_a_one_line_error(shop: Shop, at: str) -> None:
    shop.run(
        "CREATE TABLE seen (id SERIAL PRIMARY KEY, at TIMESTAMPTZ NOT NULL)", f"INSERT INTO seen (at) VALUES ('{at}')"
    )
    told = refusal(lambda: rest(SqlSource("shop", "seen", order_by=["at", "id"])))
    assert f"table seen has a row whose at is '{at.split()[0]}" in told


def test_a_batch_of_rows_ordered_by_time_and_uuid_continues_at_the_position(shop: Shop) -> None:
    shop.run("CREATE TABLE seen (id UUID PRIMARY KEY, at TIMESTAMPTZ NOT NULL)")
    number = "00000000-0000-0000-0000-00000000000"
    shop.run(*(f"INSERT INTO seen VALUES ('{number}{each}', '2026-01-01')" for each in (1, 2, 3)))
    source = SqlSource("shop", "seen", order_by=["at", "id"], max_rows_per_batch=2)
    ids: list[Any] = [f"{number}{each}" for each in (1, 2, 3)]
    assert rest(source) == ids


SETTINGS = [*UNUSUAL_SETTINGS, "transform_null_equals = on"]


@pytest.fixture
def guest(shop: Shop) -> Iterator[str]:
    """A role with settings of its own, which is the connection `shop`."""
    role = f"guest_{shop.database}"
    shop.run(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'guest'")
    for setting in SETTINGS:
        shop.run(f"ALTER ROLE {role} SET {setting}")
    shop.connect(login=role, password="guest")
    yield role
    shop.run(f"DROP ROLE {role}")


def test_settings_of_a_database_role_do_not_change_the_values_that_are_read(shop: Shop, guest: str) -> None:
    shop.run(
        "ALTER TABLE orders ADD f FLOAT, ADD r REAL, ADD l INTEGER[], ADD b BYTEA, ADD at TIMESTAMPTZ, ADD day DATE, "
        "ADD i INTERVAL, ADD t TEXT, ADD x TSTZRANGE",
        r"INSERT INTO orders VALUES (1, 1, 0.1, 0.1, '{1,NULL}', '\x005c', '2026-02-01 00:00+00', '2026-02-01', "
        r"'1 mon -1 day', 'a\☃', '[2026-02-01 00:00+00,)')",
    )  # fmt: skip
    source = SqlSource("shop", "orders")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    (row,) = rows(source, batch)
    assert row == {
        "id": 1, "amount": 1, "f": 0.1, "r": 0.10000000149011612, "l": [1, None], "b": b"\x00\\",
        "at": datetime(2026, 2, 1, tzinfo=timezone.utc), "day": date(2026, 2, 1), "i": "1 mon -1 days", "t": "a\\☃",
        "x": '["2026-02-01 00:00:00+00",)',
    }  # fmt: skip
    assert row["at"].utcoffset() == timedelta()


def test_the_settle_time_of_a_time_without_zone_uses_the_time_zone_of_the_role(shop: Shop, guest: str) -> None:
    shop.run(
        "CREATE TABLE seen (id SERIAL PRIMARY KEY, at TIMESTAMP NOT NULL)",
        "INSERT INTO seen (at) VALUES (now() AT TIME ZONE 'Asia/Kathmandu' - interval '1 hour'),"
        "(now() AT TIME ZONE 'Asia/Kathmandu' + interval '1 hour')",
    )
    assert rest(SqlSource("shop", "seen", order_by=["at", "id"])) == [1]


def test_a_wrong_password_is_not_shown_in_the_error(shop: Shop) -> None:
    shop.connect(password="wr0ng/@:one")
    told = refusal(lambda: SqlSource("shop", "orders").initialize_transaction(1, None))
    assert "the database of connection shop cannot be reached" in told
    assert "password authentication failed" in told
    assert "wr0ng" not in told


def test_a_position_of_another_source_is_refused(shop: Shop) -> None:
    source = SqlSource("shop", "orders")
    for place in (17, {"last": ["a", 1], "since": None, "rows": 0}, {"taken": 3}):
        assert "is not a position in this order" in refusal(lambda: rest(source, place))  # noqa: B023


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_a_batch_has_as_many_rows_as_its_limits_allow_and_its_reason_names_the_limit(shop: Shop) -> None:
    shop.run("INSERT INTO orders (amount) SELECT 1 FROM generate_series(1, 900)")
    shop.run("ALTER TABLE orders ADD note TEXT", "UPDATE orders SET note = repeat('x', 96)")
    asked: list[tuple[dict[str, Any], str]] = [
        ({}, "all 900 rows that there were"),
        ({"max_rows_per_batch": 250}, "250 of many rows: max_rows_per_batch=250"),
        ({"max_bytes_per_batch": 10_000}, "101 of many rows: max_bytes_per_batch=10000, 99 bytes a row"),
        ({"target_seconds": 60}, "all 900 rows that there were"),
    ]
    for limits, why in asked:
        source = SqlSource("shop", "orders", **limits)
        batch = source.with_limit([]).decide(ATTEMPT, None)
        assert batch is not None
        assert batch.count is not None
        assert (batch.reason, batch.count) == (why, int(why.removeprefix("all ").split()[0]))
        assert source.backlog(batch.position) == 900 - batch.count


def test_shards_share_a_limit_and_an_unreachable_shard_keeps_its_position(shop: Shop) -> None:
    shop.run("CREATE TABLE returns (id BIGSERIAL PRIMARY KEY, amount INTEGER)")
    shop.run("INSERT INTO orders (amount) SELECT 1 FROM generate_series(1, 10)")
    shop.run("INSERT INTO returns (amount) SELECT 1 FROM generate_series(1, 2)")
    shop.connect("away", port=free_port())
    limits: dict[str, Any] = {"max_rows_per_batch": 6, "kind": "opaque"}
    source = PartitionedSqlSource(["shop", "away"], ["orders", "returns"], **limits)
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    assert isinstance(batch.metadata, dict)
    assert {name: sum(end[-1] for end in part["upto"]) for name, part in batch.metadata.items()} == {  # type: ignore[index, call-overload, misc, union-attr]
        "shop.orders": 4,
        "shop.returns": 2,
    }
    assert batch.reason == "6 of many rows: max_rows_per_batch=6"
    assert source.backlog(batch.position) == 6
    stopping = PartitionedSqlSource(["shop", "away"], "orders")
    assert "partition away.orders cannot be reached" in refusal(lambda: stopping.decide(ATTEMPT, None))


# --- a server that ends ----------------------------------------------------------------------------------------------


def test_batches_are_the_same_after_a_server_restart_and_wait_for_prepared_transactions(
    shop: Shop, postgres: LocalPostgres
) -> None:
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connected:
        connected.exec_driver_sql("ALTER SYSTEM SET max_prepared_transactions = 4")
    shop.run("INSERT INTO orders (amount) SELECT 1 FROM generate_series(1, 8)")
    source = SqlSource("shop", "orders", max_rows_per_batch=5, patience=0.2)
    first = source.initialize_transaction(1, None)
    assert first is not None
    reading = iter(source.emit_batch(ATTEMPT, first.metadata))
    postgres.stop()
    assert "cannot be reached" in refusal(lambda: source.initialize_transaction(2, first.position))
    assert "cannot be reached" in refusal(lambda: list(itertools.islice(reading, 1)))
    postgres.start()
    prepared = shop.engine.connect()
    prepared.exec_driver_sql("INSERT INTO orders (amount) VALUES (1)")
    prepared.exec_driver_sql("PREPARE TRANSACTION 'transfer'")
    prepared.close()
    shop.run("INSERT INTO orders (amount) VALUES (1)")
    second = source.initialize_transaction(2, first.position)
    assert second is None
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connected:
        connected.exec_driver_sql("COMMIT PREPARED 'transfer'")
    # The port is served again before all of the recovery is told to everybody.
    eventually(lambda: len(rows(source, first)) == 5, 60, "the first batch is read")
    assert rest(source, first.position) == [6, 7, 8, 9, 10]
