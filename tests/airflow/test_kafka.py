"""In a real Airflow: from Kafka through Spark into PostgreSQL, while the broker stops and the topic grows."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.airflow.stack import Stack
from tests.servers.jars import kafka_connector_jars
from tests.servers.kafka import LocalKafka
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres
from tests.servers.spark_session import KAFKA_PASSWORD, skip_without

DAG = "kafka_pipeline"
FIRST, MORE = 1400, 500  # a batch of at most 500 for each run, in whatever order they begin


def produce(kafka: LocalKafka, numbers: range, partitions: range) -> None:
    for partition in partitions:
        own = numbers[partition - partitions.start :: len(partitions)]
        kafka.produce("events", [(f"key {number % 7}", str(number)) for number in own], partition)


def expected(numbers: range) -> dict[str, tuple[int, int]]:
    groups = {f"key {rest}": [number for number in numbers if number % 7 == rest] for rest in range(7)}
    return {key: (len(each), sum(each)) for key, each in groups.items()}


@pytest.mark.long
def test_every_event_is_counted_once_while_the_broker_stops_and_the_topic_grows(
    stack: Stack, kafka: LocalKafka, postgres: LocalPostgres, spark_connect: LocalSparkConnect
) -> None:
    skip_without(kafka_connector_jars)
    kafka.create_topic("events", 2)
    airflow = stack.airflow
    database: dict[str, Any] = {
        "port": postgres.port,
        "login": POSTGRES_USER,
        "password": POSTGRES_PASSWORD,
        "schema": postgres.new_database(),
    }
    stack.connect("kafka_events", conn_type="kafka", extra=json.dumps(kafka.client_config()))
    stack.connect("kafka_spark", conn_type="spark_connect", host="127.0.0.1", port=spark_connect.port)
    stack.connect("kafka_totals", conn_type="postgres", host="127.0.0.1", **database)
    produce(kafka, range(FIRST), range(2))
    airflow.wait_dag(DAG)
    # The first one is not committed before another one has begun.
    held = stack.failpoints.arm("commit.before_mark", "pause", topology=DAG, txid=1)
    runs = [f"r{number}" for number in range(1, 6)]
    for run_id in runs[:3]:
        airflow.trigger(DAG, run_id)
    airflow.wait_task(DAG, "r1", "begin", "success")

    kafka.stop()
    kafka.start()
    kafka.add_partitions("events", 4)
    produce(kafka, range(FIRST, FIRST + MORE), range(2, 4))
    for run_id in runs[3:]:
        airflow.trigger(DAG, run_id)
    eventually(lambda: stack.ledger(DAG).allocated > 1, 240, "a second transaction has begun")
    held.release()
    for run_id in runs:
        # A task whose tries did not outlast the broker is cleared, as a person would.
        if airflow.wait_run(DAG, run_id, state=None)["state"] != "success":
            airflow.clear_run(DAG, run_id, only_failed=True)
            airflow.wait_run(DAG, run_id)

    with sa.create_engine(postgres.url(database["schema"]), poolclass=sa.pool.NullPool).connect() as connected:
        rows = connected.execute(sa.text("SELECT key, events, total FROM kafka_totals")).all()
    assert {key: (events, int(total)) for key, events, total in rows} == expected(range(FIRST + MORE))
    history = stack.ledger(DAG).history()
    assert [entry.txid for entry in history] == list(range(1, len(history) + 1))
    assert history[1].began < history[0].ended  # they were pipelined
    logs = [path.read_text(errors="replace") for path in airflow.home.rglob("*.log") if DAG in str(path)]
    assert logs
    assert not [text for text in logs if KAFKA_PASSWORD in text]
