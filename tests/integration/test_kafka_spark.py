"""Rows of Kafka on a real Spark Connect server, read by Spark's own connector."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk.exceptions import AirflowFailException
from confluent_kafka import Producer

from airflow_tx.base.errors import RowsRefused
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.operators.spark_connect import SparkConnectBatchOperator
from airflow_tx.outputs.staging.area import read_output
from airflow_tx.sources.kafka.offsets import SCHEMA
from airflow_tx.sources.kafka.source import KafkaSource
from airflow_tx.spark.connect import session
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.integration.spark_runs import Topology
from tests.servers.kafka import LocalKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ATTEMPT = TransactionAttempt(1, 1)
APP = """
from pyspark.sql import functions as F
from airflow_tx.spark import batch_app

@batch_app
def main(spark, batch):
    rows = batch.read()
    batch.emit("counts", rows.groupBy("value.user").agg(F.count("*").alias("events")))
"""


@pytest.fixture
def topic(kafka: LocalKafka) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(name, 3)
    return name


@pytest.fixture(autouse=True)
def connections(kafka: LocalKafka, spark_connect: LocalSparkConnect, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps(kafka.client_config())
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    connect = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark_connect.port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", json.dumps(connect))


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "key": row["key"] and bytes(row["key"]), "timestamp": row["timestamp"].timestamp()}


@pytest.mark.lead
@pytest.mark.worth("Spark's Kafka reader, with the jars of the docs")
def test_spark_reads_exactly_the_offsets_of_a_batch_and_returns_the_same_rows_as_python(
    kafka: LocalKafka, spark_connect: LocalSparkConnect, topic: str
) -> None:
    producer = Producer({**kafka.client_config(), "log_level": 0, "transactional.id": topic})
    producer.init_transactions(30)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 3):
        producer.begin_transaction()
        for n in range(20):
            producer.produce(topic, f"{number} {n}", f"key {n}", n % 2, headers=[("n", bytes([n]))])
        assert producer.flush(30) == 0  # what is not sent yet, an abort would not send
        end(30)
    # The markers are written after the answer to a commit.
    eventually(lambda: KafkaSource(topic=topic).backlog(None) == 6 * (20 + 2), 120, "all transactions are over")
    with session(spark_connect.url, tag="test", server="the test's") as found:
        places, rows = None, list[dict[str, Any]]()
        for limit in (70, 10_000):
            source = KafkaSource(topic=topic, max_rows_per_batch=limit, options={"minPartitions": "4"})
            batch = source.decide(ATTEMPT, places)
            assert batch is not None
            places = batch.position
            frame: Any = source.emit_batch(ATTEMPT, batch.metadata, found)
            those = sorted(
                (plain(row.asDict(True)) for row in frame.collect()), key=lambda row: (row["partition"], row["offset"])
            )
            without_spark: Any = source.emit_batch(ATTEMPT, batch.metadata)
            assert those == [plain(row) for row in without_spark]
            rows += those
        assert sorted(row["value"] for row in rows) == sorted(
            f"{number} {n}".encode() for number in (0, 2, 4) for n in range(20)
        )
        batch = KafkaSource(topic=topic, starting="latest").decide(ATTEMPT, None)
        assert batch is not None
        empty: Any = source.emit_batch(ATTEMPT, batch.metadata, found)
        assert empty.schema == frame.schema
        assert empty.collect() == []


def test_json_values_are_read_with_the_topic_columns_and_without_the_kafka_connector(
    kafka: LocalKafka, spark: SparkSession, topic: str
) -> None:
    kafka.produce(topic, [("k", '{"user": "ann", "n": 1}'), (None, None)], 1)
    source = KafkaSource(topic=topic, value_schema="user STRING, n BIGINT")
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    frame: Any = source.emit_batch(ATTEMPT, batch.metadata, spark)
    declared = SCHEMA.replace("value BINARY", "value STRUCT<user: STRING, n: BIGINT>", 1)
    assert frame.schema == spark.createDataFrame([], declared).schema
    assert [plain(row.asDict(True)) for row in frame.collect()] == [
        plain(row) for row in cast("Any", source.emit_batch(ATTEMPT, batch.metadata))
    ]


@pytest.mark.long
def test_an_application_counts_json_and_an_invalid_message_fails_only_its_batch(
    kafka: LocalKafka, spark_connect: LocalSparkConnect, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    kafka.produce(topic, ['{"user": "ann"}', '{"user": "ann"}', '{"user": "bob"}'], 0)
    source = KafkaSource(topic=topic, value_schema="user STRING")
    topology = Topology(source, tmp_path, str(tmp_path / "dag.py"))
    operator = SparkConnectBatchOperator(task_id="count", application="app.py")
    ti = topology.begin("r1").execute(operator)
    found = {row["user"]: row["events"] for row in read_output(topology.area, ti.pushed["counts"])}
    assert found == {"ann": 2, "bob": 1}

    kafka.produce(topic, ['{"user": "ann"}', "no json"], 1)
    told = rf"topic {topic}, partition 1, offset 1: it is no JSON \(.*\). Correct .* airflow tx skip (?!TOPOLOGY)\S+ 2 "
    with pytest.raises(AirflowFailException, match=told):
        topology.begin("r2").execute(operator)
    log = "".join(file.read_text(errors="replace") for file in spark_connect.folder.rglob("*.log"))
    assert log
    # Parts of the password, which may be quoted in some way. A command of Java may have --add-opens.
    assert re.findall(r".*(?:sesame|(?<!add-)opens).*", log) == []


@pytest.mark.long
def test_spark_and_python_refuse_a_value_that_does_not_fit_its_type_exactly(
    kafka: LocalKafka, spark_connect: LocalSparkConnect, topic: str
) -> None:
    kafka.produce(topic, ['{"user": "ann", "n": 19.99}'], 0)
    source = KafkaSource(topic=topic, value_schema="user STRING, n BIGINT")
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    told = f"topic {topic}, partition 0, offset 0: column n BIGINT = 19.99"
    with pytest.raises(RowsRefused, match=told):
        list(cast("Any", source.emit_batch(ATTEMPT, batch.metadata)))
    with session(spark_connect.url, tag="test", server="the test's") as found:
        with pytest.raises(RowsRefused, match=told) as refusal:
            source.emit_batch(ATTEMPT, batch.metadata, found)
    assert "it is no whole number in digits. Correct value_schema" in str(refusal.value)


@pytest.mark.long
def test_a_message_time_after_the_year_9999_is_refused_only_if_its_column_is_read(
    kafka: LocalKafka, spark_connect: LocalSparkConnect, topic: str
) -> None:
    micros = f"{topic}-micros"
    kafka.create_topic(micros, 1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    kafka.produce(micros, ["a"], 0, timestamp=1_700_000_000_000_000)
    source = KafkaSource(topic=micros)
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    told = f"topic {micros}, partition 0, offset 0: column timestamp = 1700000000000000 ms"
    with pytest.raises(RowsRefused, match=f"{told}. Read the batch with Spark and leave this column out. Or .* skip"):
        list(cast("Any", source.emit_batch(ATTEMPT, batch.metadata)))
    with session(spark_connect.url, tag="test", server="the test's") as found:
        frame: Any = source.emit_batch(ATTEMPT, batch.metadata, found)
        assert [row["value"] for row in frame.select("value").collect()] == [b"a"]
        with pytest.raises(Exception, match=told):
            frame.collect()


@pytest.mark.long
def test_rows_deleted_while_spark_reads_them_are_reported_as_lost(
    kafka: LocalKafka, spark_connect: LocalSparkConnect, topic: str
) -> None:
    kafka.produce(topic, ["a", "b", "c"], 0)
    source = KafkaSource(topic=topic)
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    with session(spark_connect.url, tag="test", server="the test's") as found:
        frame: Any = source.emit_batch(ATTEMPT, batch.metadata, found)
        kafka.delete_records(topic, 0, 2)
        with pytest.raises(Exception, match="lost") as lost:
            frame.collect()
    assert "rows of transaction 1 are gone" in str(source.explain_error(ATTEMPT, lost.value))
