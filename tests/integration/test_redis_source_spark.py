"""Messages from Redis in a real Spark."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_tx.base.errors import RowsRefused, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.operators.spark import SparkBatchOperator
from airflow_tx.operators.spark_connect import SparkConnectBatchOperator
from airflow_tx.outputs.staging.area import read_output
from airflow_tx.sources.redis.numbered import RedisNumberedSource
from airflow_tx.sources.redis.source import RedisSource
from airflow_tx.sources.redis.stream import RedisStreamSource
from airflow_tx.spark.app import Failure
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.integration.spark_runs import Topology
from tests.servers.redis import REDIS_PASSWORD, LocalRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ATTEMPT = TransactionAttempt(1, 1)
MESSAGES = 45
APP = """
from airflow_tx.spark import batch_app

@batch_app
def main(spark, batch):
    batch.emit("people", batch.read().select("partition", "number", "message.*"))
"""


@pytest.fixture(scope="module")
def redis() -> Iterator[LocalRedis]:
    """Two databases of numbered messages, and a stream."""
    with LocalRedis() as running:
        for database in (0, 1):
            client = running.client(database)
            for number in range(1, MESSAGES + 1):
                client.set(str(number), json.dumps({"user": f"@{database}", "n": number}))
                client.xadd("events", {"n": str(number)})
            client.set("NEXT_WRITE", MESSAGES + 1)
        yield running


@pytest.fixture(autouse=True)
def connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, redis: LocalRedis, spark_connect: LocalSparkConnect
) -> None:
    for name in ("PATH", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        if name in os.environ:  # SparkBatchOperator adds to them
            monkeypatch.setenv(name, os.environ[name])
    monkeypatch.setenv("AIRFLOW_TX_CONN_tweets", "")  # so that what it hands over is taken back
    found = {
        "tweets": {"conn_type": "redis", "host": "127.0.0.1", "port": redis.port, "password": REDIS_PASSWORD},
        "spark_default": {"conn_type": "spark", "host": "local[1]"},
    }
    for conn_id, connection in found.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))


def people() -> RedisNumberedSource:
    return RedisNumberedSource("tweets", databases=[0, 1], schema="user STRING, n INT")


@pytest.mark.parametrize("source", [people(), RedisStreamSource("tweets", "events", databases=[0, 1])], ids=type)
def test_spark_and_python_read_the_same_rows(spark: SparkSession, source: RedisSource) -> None:
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    plain: Any = source.emit_batch(ATTEMPT, batch.metadata)
    frame: Any = source.emit_batch(ATTEMPT, batch.metadata, spark)
    found = sorted((row.asDict(True) for row in frame.collect()), key=str)
    assert found == sorted(map(dict, plain), key=str)
    assert len(found) == 2 * MESSAGES
    source.close()


def test_a_message_that_does_not_fit_the_schema_fails_the_batch_and_is_named_in_the_error(
    spark: SparkSession, redis: LocalRedis
) -> None:
    source = people()
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    before = redis.client(1).getset("17", '{"user": "@1", "n": "many"}')
    with pytest.raises(RowsRefused, match="many") as error:
        source.emit_batch(ATTEMPT, batch.metadata, spark)
    redis.client(1).set("17", before)
    failure = Failure.of(error.value)
    told = r".* refused: message 17 \(key 17\) in database 1 of connection tweets, .* cannot be read: column n INT = "
    assert failure.refused is not None
    assert str(RowsRefused.from_stored(failure.refused)) == failure.message
    assert re.match(told, failure.message)
    source.close()


def test_lost_messages_are_reported_before_a_spark_job_starts(spark: SparkSession, redis: LocalRedis) -> None:
    source = people()
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    before = redis.client(0).getdel("33")
    with pytest.raises(SourceError, match="messages 33 are gone from the range 1 to 45"):
        source.emit_batch(ATTEMPT, batch.metadata, spark)
    redis.client(0).set("33", before)
    source.close()


@pytest.mark.parametrize(
    "operator", [SparkConnectBatchOperator, pytest.param(SparkBatchOperator, marks=pytest.mark.long)]
)
def test_a_large_batch_is_read_and_no_file_or_log_contains_the_connection(
    tmp_path: Path,
    spark_connect: LocalSparkConnect,
    operator: Any,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark_connect.port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", json.dumps(connect))
    (tmp_path / "app.py").write_text(APP)
    topology = Topology(people(), tmp_path, str(tmp_path / "dag.py"))
    ti = topology.begin("r1").execute(operator(task_id="count", application="app.py"))
    rows = list(read_output(topology.area, ti.pushed["people"]))
    assert sorted((row["partition"], row["number"], row["user"], row["n"]) for row in rows) == [
        (f"tweets/{database}", number, f"@{database}", number)
        for database in (0, 1)
        for number in range(1, MESSAGES + 1)
    ]
    secret = re.compile(re.escape(REDIS_PASSWORD.encode()))
    assert not secret.search("".join(capfd.readouterr()).encode())
    # A server writes the plan of what was not released when its session ended, with all that is in it.
    found = [
        path
        for path in [*tmp_path.rglob("*"), spark_connect.log]
        if path.is_file() and secret.search(path.read_bytes())
    ]
    assert found == []
