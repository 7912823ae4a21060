"""The source suite on topics of a real Kafka, without Spark."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from confluent_kafka import Message, Producer

from airflow_tx.sources.kafka.source import KafkaSource
from airflow_tx.testing.suites.source_case import Row
from airflow_tx.testing.suites.source_suite import SourceSuite
from tests.servers.kafka import LocalKafka
from tests.servers.spark_session import KAFKA_PASSWORD

# Kafka deletes what is older than a week.
AT = int(time.time()) * 1000


@pytest.fixture(scope="module")
def producer(kafka: LocalKafka) -> Producer:
    """One for all, since a new one takes a second until it may write."""
    return Producer({**kafka.client_config(), "log_level": 0})


@pytest.mark.worth("Kafka is started and stopped, since a lost partition is a lost broker")
class TestKafkaSource(SourceSuite):
    knows_what_is_gone = True
    kind = "transactional"
    secrets = (KAFKA_PASSWORD,)

    @pytest.fixture(autouse=True)
    def place(self, kafka: LocalKafka, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        extra = json.dumps(kafka.client_config())
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        self.server, self.producer, self.number = kafka, producer, 0
        self.topic, self.partitions = f"suite-{uuid.uuid4().hex[:12]}", 2
        kafka.create_topic(self.topic, self.partitions)
        yield
        if not kafka.running:  # a test that failed while it was away
            kafka.start()

    def make(self) -> KafkaSource:
        return KafkaSource(topic=self.topic, kind=self.kind, max_rows_per_batch=6, timeout=self.patience())

    def patience(self) -> float:
        """The seconds to wait for an answer: a busy machine needs more than a test of a broker that is away."""
        return 120 if self.server.running else 2

    def add(self) -> list[Row]:
        return [row for partition in range(self.partitions) for row in self.append(partition, 5)]

    def append(self, partition: int, count: int) -> list[Row]:
        written: list[Row] = []
        for n in range(self.number, self.number + count):
            self.producer.produce(
                self.topic,
                f"row {n}",
                b"key",
                partition,
                on_delivery=lambda _, message: written.append(_row(message)),
                timestamp=AT,
            )
        assert self.producer.flush(120) == 0
        self.number += count
        return written

    def add_partition(self) -> list[Row]:
        self.server.add_partitions(self.topic, 3)
        self.producer.list_topics(self.topic)  # so that it knows
        return self.append(2, 4)

    def lose_partition(self) -> None:
        self.server.stop()

    def return_partition(self) -> None:
        self.server.start()

    def lose_rows(self) -> None:
        self.server.delete_records(self.topic, 0, 2)


def _row(message: Message) -> Row:
    assert message.error() is None
    return {
        "key": message.key(),
        "value": message.value(),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": datetime.fromtimestamp(AT / 1000, timezone.utc),
        "headers": None,
    }


@pytest.mark.long
class TestOpaqueKafkaSource(TestKafkaSource):
    kind = "opaque"
