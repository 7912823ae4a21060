"""The Kafka that tests run on: it behaves like a real one, also in what goes wrong, and leaves nothing behind."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_tx.base.errors import TxError
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.processes import marked
from tests.servers.jars import JarsUnavailable, fetch_jars
from tests.servers.kafka import KAFKA_VERSION, LocalKafka
from tests.servers.spark_session import skipped_without_jars

# The tests of KafkaSource use all of it.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server() -> Iterator[LocalKafka]:
    with skipped_without_jars(), LocalKafka() as running:
        yield running


@pytest.fixture
def topic(server: LocalKafka) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    server.create_topic(name)
    return name


@pytest.fixture
def consumer(server: LocalKafka) -> Iterator[Consumer]:
    config = {"group.id": "test", "enable.auto.commit": False, "log_level": 0}
    reader = Consumer({**server.client_config(), **config})
    yield reader
    reader.close()


def _bounds(consumer: Consumer, topic: str, partition: int = 0) -> tuple[int, int]:
    """The first offset of a partition and the one behind its last."""
    bounds = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=240)
    assert bounds is not None
    return bounds


def _values(consumer: Consumer, topic: str, count: int) -> list[bytes | None]:
    """The first values of partition 0."""
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []

    def enough() -> bool:
        found.extend(consumer.consume(count - len(found), timeout=1))
        return len(found) >= count

    eventually(enough, 120, f"{count} rows are read")
    return [each.value() for each in found]


def test_messages_and_the_port_are_kept_after_a_crash(server: LocalKafka, topic: str, consumer: Consumer) -> None:
    before = server.bootstrap
    assert server.produce(topic, ["a", ("key", b"b")]) == [(0, 0), (0, 1)]

    server.kill()
    assert not server.running
    server.start()

    assert server.bootstrap == before
    assert server.produce(topic, ["c"]) == [(0, 2)]
    assert _values(consumer, topic, 3) == [b"a", b"b", b"c"]


def test_messages_are_kept_after_a_restart(server: LocalKafka, topic: str, consumer: Consumer) -> None:
    server.produce(topic, ["a"])
    server.restart()
    # Right after a start the server may not lead the partition yet.
    eventually(lambda: _bounds(consumer, topic) == (0, 1), 240, "the row is there")


def test_the_number_of_partitions_of_a_topic_can_be_increased(
    server: LocalKafka, topic: str, consumer: Consumer
) -> None:
    server.produce(topic, ["a"])
    server.add_partitions(topic, 3)
    assert server.produce(topic, ["b", "c"], partition=2) == [(2, 0), (2, 1)]
    assert [_bounds(consumer, topic, each) for each in range(3)] == [(0, 1), (0, 0), (0, 2)]


def test_deleted_records_are_gone_and_new_messages_get_the_next_offsets(
    server: LocalKafka, topic: str, consumer: Consumer
) -> None:
    server.produce(topic, map(str, range(10)))
    assert server.delete_records(topic, 0, 4) == 4
    assert _bounds(consumer, topic) == (4, 10)
    assert server.produce(topic, ["x"]) == [(0, 10)]


def test_messages_older_than_the_retention_are_deleted_soon(server: LocalKafka, consumer: Consumer) -> None:
    server.create_topic("short", config={"retention.ms": "60000"})
    an_hour_ago = int((time.time() - 3600) * 1000)
    server.produce("short", ["a", "b"], timestamp=an_hour_ago)
    eventually(lambda: _bounds(consumer, "short") == (2, 2), 240, "the old rows are deleted")


def test_a_deleted_topic_is_not_recreated_automatically(server: LocalKafka, topic: str) -> None:
    server.delete_topic(topic)
    with pytest.raises(TxError, match=f"did not take row 1 for {topic}: .*Unknown topic"):
        server.produce(topic, ["a"])


def test_a_frozen_server_answers_after_it_resumes(server: LocalKafka) -> None:
    admin = AdminClient({**server.client_config(), "log_level": 0})
    admin.list_topics(timeout=240)
    with server.frozen(), pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    assert admin.list_topics(timeout=240).brokers


@pytest.mark.usefixtures("server")
def test_only_a_client_with_the_right_password_can_connect() -> None:
    password = 'ö"\\/ ;=p'
    with LocalKafka(sasl_password=password) as closed:
        closed.create_topic("secrets")
        assert closed.produce("secrets", ["a"]) == [(0, 0)]

        refused: list[KafkaError] = []
        wrong: dict[str, Any] = {
            **closed.client_config(),
            "sasl.password": "wrong",
            "error_cb": refused.append,
            "log_level": 0,
        }
        stranger = AdminClient(wrong)
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=2)

        def told() -> bool:
            stranger.poll(0)
            return KafkaError._AUTHENTICATION in [each.code() for each in refused]

        eventually(told, 240, "the wrong password is told")
        assert password not in closed.log.read_text(encoding="utf-8")


@pytest.mark.usefixtures("server")
def test_a_closed_server_leaves_no_process_and_no_folder() -> None:
    with LocalKafka() as own:
        own.create_topic("any")
        assert marked(own.mark)
    assert not own.running
    assert not marked(own.mark)
    assert not own.data_dir.exists()


@pytest.mark.usefixtures("server")
def test_a_setting_that_kafka_refuses_is_reported_with_the_message_of_kafka() -> None:
    with (
        pytest.raises(TxError, match=r"Kafka cannot be prepared: .*log.retention.check.interval.ms") as told,
        LocalKafka(settings={"log.retention.check.interval.ms": "often"}),
    ):
        raise AssertionError("it has started")
    assert "\n" not in str(told.value)


def test_an_unreachable_jar_registry_causes_a_one_line_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_TX_JARS", str(tmp_path))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9")
    with pytest.raises(
        JarsUnavailable,
        match=f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION} cannot be fetched: .* put its jars into {tmp_path}",
    ) as told:
        fetch_jars("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, all_of_it=True)
    assert "\n" not in str(told.value)
    assert [each.name for each in tmp_path.iterdir()] == [f"org.apache.kafka-kafka_2.13-{KAFKA_VERSION}.lock"]
