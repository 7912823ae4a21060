"""In a real Airflow: every number of a queue, of lists and of shards is counted once, though servers and tasks die."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.state import SqlState, Sum
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.suites.state_tools import Grants
from tests.airflow.stack import FILES, NUMBERS_A_FILE, Stack, expected
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres
from tests.servers.rabbit import LocalRabbit
from tests.servers.redis import REDIS_PASSWORD, LocalRedis

pytestmark = pytest.mark.long

NUMBERS = 100
WEIGHTS = {"even": 2, "odd": 5}


@pytest.fixture
def lists() -> Iterator[LocalRedis]:
    """A Redis that loses nothing when it is killed."""
    with LocalRedis(persistence="aof") as server:
        yield server


@pytest.fixture
def shard() -> Iterator[LocalPostgres]:
    """A PostgreSQL that may be stopped: the other one is Airflow's, too."""
    with LocalPostgres() as server:
        yield server


def end(stack: Stack, dag: str, run_id: str) -> None:
    """Wait for a run, and clear what failed in it while its server was away."""
    for _ in range(3):
        if stack.airflow.wait_run(dag, run_id, state=None)["state"] == "success":
            return
        stack.airflow.clear_run(dag, run_id, only_failed=True)
    stack.airflow.wait_run(dag, run_id)


def take_the_rest(stack: Stack, dag: str) -> None:
    """Start runs until one finds nothing."""

    def nothing_left() -> bool:
        run_id = f"rest-{time.monotonic_ns()}"
        stack.airflow.trigger(dag, run_id)
        end(stack, dag, run_id)
        return stack.airflow.states(dag, run_id)["begin"] == "skipped"

    eventually(nothing_left, 600, "all numbers are taken")


def check(stack: Stack, dag: str, committed: str) -> None:
    """Clear a run that has committed, and see that every number was counted once, in order."""
    history = stack.ledger(dag).history()
    stack.airflow.clear_run(dag, committed)
    stack.airflow.wait_run(dag, committed)
    assert stack.ledger(dag).history() == history
    assert [entry.txid for entry in history] == list(range(1, len(history) + 1))
    stack.assert_counted_once(dag, NUMBERS)
    assert sum(each["rows"] for each in stack.receipts(dag)) == NUMBERS


def publish(rabbit: LocalRabbit, numbers: range) -> None:
    from pika import BasicProperties  # type: ignore[import-untyped]

    connection = rabbit.connect()
    channel = connection.channel()
    channel.queue_declare("numbers", durable=True)
    channel.confirm_delivery()
    for number in numbers:
        properties = BasicProperties(delivery_mode=2, message_id=f"m{number}")
        channel.basic_publish("", "numbers", str(number).encode(), properties)
    connection.close()


def test_every_queue_message_counts_once_although_begin_is_killed_and_the_broker_restarts(
    stack: Stack, rabbit: LocalRabbit
) -> None:
    dag, airflow = "queued", stack.airflow
    stack.connect("numbers_queue", **rabbit.airflow_connection())
    publish(rabbit, range(60))
    killed = stack.failpoints.arm("rabbit.before_ack", "kill", topology=dag, txid=1)
    airflow.wait_dag(dag)
    airflow.trigger(dag, "r1")
    airflow.wait_task(dag, "r1", "begin", "success")
    assert killed.reached

    rabbit.restart()
    publish(rabbit, range(50, NUMBERS))  # ten of them a second time
    end(stack, dag, "r1")
    take_the_rest(stack, dag)

    check(stack, dag, "r1")
    connection = rabbit.connect()
    assert connection.channel().queue_declare("numbers", passive=True).method.message_count == 0
    connection.close()


def test_every_redis_message_counts_once_although_the_server_and_a_task_are_killed(
    stack: Stack, lists: LocalRedis
) -> None:
    dag, airflow = "listed", stack.airflow
    where = {"host": "127.0.0.1", "port": lists.port, "password": REDIS_PASSWORD}
    stack.connect("numbers_lists", conn_type="redis", **where)
    lists.client().rpush("numbers", *range(60))
    lists.client().rpush("more", *range(60, 70))
    killed = stack.failpoints.arm("process.before_ack", "kill", topology=dag, txid=2)
    airflow.wait_dag(dag)
    for run_id in ("r1", "r2"):
        airflow.trigger(dag, run_id)
        airflow.wait_task(dag, run_id, "begin", "success")

    lists.restart()
    lists.client().rpush("more", *range(70, NUMBERS))
    for run_id in ("r1", "r2"):
        end(stack, dag, run_id)
    take_the_rest(stack, dag)

    assert killed.reached
    check(stack, dag, "r2")


def insert(server: LocalPostgres, database: str, numbers: range) -> None:
    engine = sa.create_engine(server.url(database), poolclass=sa.pool.NullPool)
    with engine.begin() as connected:
        connected.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS numbers (id BIGSERIAL PRIMARY KEY, number INTEGER NOT NULL)"
        )
        rows = [{"number": number} for number in numbers]
        connected.execute(sa.text("INSERT INTO numbers (number) VALUES (:number)"), rows)


def test_an_opaque_source_continues_without_a_lost_shard_and_resumes_the_shard_later(
    stack: Stack, postgres: LocalPostgres, shard: LocalPostgres
) -> None:
    dag, airflow = "sharded", stack.airflow
    places: dict[str, tuple[LocalPostgres, str]] = {
        "numbers_a": (postgres, postgres.new_database()),
        "numbers_b": (shard, shard.new_database()),
    }
    login: dict[str, Any] = {"host": "127.0.0.1", "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
    for conn_id, (server, database) in places.items():
        stack.connect(conn_id, conn_type="postgres", port=server.port, schema=database, **login)
    insert(*places["numbers_a"], range(30))
    insert(*places["numbers_b"], range(30, 60))
    killed = stack.failpoints.arm("commit.before_mark", "kill", topology=dag, txid=2)
    airflow.wait_dag(dag)
    airflow.trigger(dag, "both")
    airflow.wait_run(dag, "both")

    shard.stop()
    insert(*places["numbers_a"], range(60, 80))
    airflow.trigger(dag, "one")
    airflow.wait_run(dag, "one")
    assert killed.reached
    assert list(stack.ledger(dag).read("coordinator/meta/2")["rows"]) == ["numbers_a.numbers"]
    shard.start()
    insert(*places["numbers_b"], range(80, NUMBERS))
    take_the_rest(stack, dag)

    check(stack, dag, "one")


def test_spark_executors_look_up_values_of_a_state_although_the_driver_is_killed(
    stack: Stack, postgres: LocalPostgres, spark_connect: LocalSparkConnect
) -> None:
    dag, airflow, database = "looked_up", stack.airflow, postgres.new_database()
    weights = SqlState.from_url(postgres.url(database), table="weights", keys=["parity"], values={"weight": Sum()})
    rows = [{"parity": parity, "weight": weight} for parity, weight in WEIGHTS.items()]
    weights.raise_and_write(Grants()(1), iter(rows))
    login: dict[str, Any] = {"login": POSTGRES_USER, "password": POSTGRES_PASSWORD, "schema": database}
    stack.connect("looked_up_state", conn_type="postgres", host="127.0.0.1", port=postgres.port, **login)
    stack.connect("looked_up_spark", conn_type="spark_connect", host="127.0.0.1", port=spark_connect.port)
    killed = stack.failpoints.arm("process.before_ack", "kill", topology=dag, txid=1)
    airflow.wait_dag(dag)
    runs = [f"r{number}" for number in range(FILES)]
    for run_id in runs:
        airflow.trigger(dag, run_id)
    for run_id in runs:
        airflow.wait_run(dag, run_id, timeout=600)

    assert killed.reached
    airflow.clear_run(dag, "r0")
    airflow.wait_run(dag, "r0")
    found = expected(FILES * NUMBERS_A_FILE)
    assert stack.totals(dag) == {name: (count, total * WEIGHTS[name]) for name, (count, total) in found.items()}
    assert [entry.attempts for entry in stack.ledger(dag).history()] == [1] * FILES
    logs = [path.read_text(errors="replace") for path in airflow.home.rglob("*.log") if dag in str(path)]
    assert logs
    assert not [text for text in logs if POSTGRES_PASSWORD in text]
