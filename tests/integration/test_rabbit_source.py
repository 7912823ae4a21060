"""Queues of a real RabbitMQ broker: what comes again, what cannot be taken, what is kept, and what is wrong."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pika import BasicProperties  # type: ignore[import-untyped]

from airflow_tx.base.errors import ConfigError, OtherSource, RowsRefused, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources import rabbit as rabbit_source
from airflow_tx.sources.api import Batch
from airflow_tx.sources.rabbit import RabbitQueueSource
from airflow_tx.testing.eventually import eventually
from airflow_tx.transaction.processing.begin import has_batch
from airflow_tx.transaction.processing.task import problem_of
from tests.servers.rabbit import LocalRabbit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPT = TransactionAttempt(1, 1)


class Queue:
    """A queue of its own for a test, and sources that read it."""

    def __init__(self, rabbit: LocalRabbit, staging: Path, **arguments: Any) -> None:
        self.rabbit, self.staging, self.name = rabbit, staging, f"q{uuid.uuid4().hex[:8]}"
        self.connection = rabbit.connect()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.declare(self.name, **arguments)

    def declare(self, name: str, **arguments: Any) -> None:
        self.channel.queue_declare(name, durable=True, arguments=arguments)

    def publish(self, *messages: str, **properties: Any) -> None:
        """Publish messages, whose text is their id unless the properties say otherwise."""
        for text in messages:
            own = BasicProperties(**{"delivery_mode": 2, "message_id": text, **properties})
            self.channel.basic_publish("", self.name, text.encode(), own)

    def waiting(self, name: str = "") -> int:
        return int(self.channel.queue_declare(name or self.name, passive=True).method.message_count)

    def source(self, conn_id: str = "rabbit", **arguments: Any) -> RabbitQueueSource:
        source = RabbitQueueSource(conn_id, arguments.pop("queue", self.name), **arguments).named("orders")
        source.staging = str(self.staging)
        return source

    def decide(self, position: Any = None, **arguments: Any) -> Batch | None:
        """Decide a batch, as a process that then dies: the ledger never hears of it, or it is never acked."""
        source = self.source(**arguments)
        try:
            return source.decide(ATTEMPT, position)
        finally:
            source.close()

    def take(self, position: Any = None, **arguments: Any) -> Batch:
        """Decide a batch that the ledger gets."""
        source = self.source(**arguments)
        batch = source.decide(ATTEMPT, position)
        assert batch is not None
        source.begun(1, batch.metadata)
        source.close()
        return batch

    def texts(self, batch: Batch | None, **arguments: Any) -> list[Any]:
        assert batch is not None
        rows: Any = self.source(**arguments).emit_batch(ATTEMPT, batch.metadata)
        return [row["message"] for row in rows]

    def refusal(self, position: Any = None, **arguments: Any) -> str:
        with pytest.raises((SourceError, ConfigError)) as refusal:
            self.decide(position, **arguments)
        assert "\n" not in str(refusal.value)
        return str(refusal.value)


@pytest.fixture
def queue(rabbit: LocalRabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.setenv("AIRFLOW_CONN_RABBIT", json.dumps(rabbit.airflow_connection()))
    made = Queue(rabbit, tmp_path)
    yield made
    if made.connection.is_open:
        made.connection.close()


# --- what comes again


def test_unacked_messages_are_delivered_again_and_are_not_counted_in_a_second_transaction(queue: Queue) -> None:
    queue.publish("a", "b")
    first = queue.decide()
    assert first is not None
    assert queue.waiting() == 2
    queue.publish("c")
    second = queue.take(first.position)
    assert (queue.texts(first), queue.texts(second)) == (["a", "b"], ["c"])
    assert queue.waiting() == 0
    assert queue.decide(second.position) is None


def test_a_message_published_twice_is_counted_once(queue: Queue) -> None:
    queue.publish("a", "b", "a")
    first = queue.take()
    queue.publish("b", "c", "c")
    second = queue.take(first.position)
    assert (queue.texts(first), queue.texts(second)) == (["a", "b"], ["c"])
    assert (second.count, second.reason) == (1, "the only row that there was")
    assert queue.waiting() == 0


def test_the_source_remembers_at_most_the_configured_number_of_ids(queue: Queue) -> None:
    queue.publish("a", "b")
    first = queue.take(remember=2)
    queue.publish("c")
    second = queue.take(first.position, remember=2)
    queue.publish("a", "b", "c")
    assert queue.texts(queue.take(second.position, remember=2)) == ["a"]


def test_messages_with_equal_content_count_once_if_content_is_the_identity(queue: Queue) -> None:
    queue.publish("a", "a", message_id="1")
    queue.publish("a", headers={"shop": 2})
    assert queue.texts(queue.take(identity="content")) == ["a", "a"]


@pytest.mark.parametrize("winner", [0, 1])
def test_only_messages_of_the_batch_that_the_ledger_has_bound_are_acked(queue: Queue, winner: int) -> None:
    queue.publish(*"abcdef")
    both = [queue.source(max_rows_per_batch=3), queue.source(max_rows_per_batch=3)]
    decided = [source.decide(ATTEMPT, None) for source in both]
    bound = decided[winner]
    assert bound is not None
    for source in both:  # the other run was given the same transaction
        source.begun(1, bound.metadata)
        source.close()
    assert [queue.texts(each) for each in decided] == [["a", "b", "c"], ["a", "b", "c"]]
    assert queue.texts(queue.take(bound.position)) == ["d", "e", "f"]
    assert queue.waiting() == 0


def test_staged_messages_without_a_transaction_are_taken_before_new_messages(queue: Queue) -> None:
    """A ledger that is rebuilt has forgotten open transactions, whose messages are acked."""
    queue.publish("a", "b")
    first = queue.take()
    queue.publish("c")
    queue.take(first.position)
    queue.publish("d")
    again = queue.take()
    assert queue.texts(again) == ["a", "b", "c"]
    assert queue.texts(queue.take(again.position)) == ["d"]


def test_a_coordinator_checks_for_messages_without_taking_them(queue: Queue) -> None:
    source = RabbitQueueSource("rabbit", queue.name)
    assert not has_batch(source, ATTEMPT, None)
    queue.publish("a")
    for _ in range(2):
        assert has_batch(source, ATTEMPT, None)
    assert queue.texts(queue.take()) == ["a"]


# --- what is kept


def test_a_later_commit_removes_committed_messages_and_keeps_skipped_messages(queue: Queue) -> None:
    batches: list[Batch] = []
    for text in "abc":
        queue.publish(text)
        batches.append(queue.take(batches[-1].position if batches else None))
    source = queue.source()
    for txid in (1, 3):  # the second one is skipped
        source.committed(txid, batches[txid - 1].metadata)
        source.committed(txid, batches[txid - 1].metadata)
        source.cleanup_before(txid)
    with pytest.raises(SourceError, match=r"staged messages in .* are gone\. .*airflow tx skip orders 1 "):
        queue.texts(batches[0])
    assert [queue.texts(each) for each in batches[1:]] == [["b"], ["c"]]
    assert [source.contains(each.metadata, "b") for each in batches] == [None, True, False]
    source.committed(4, batches[1].metadata)  # it was re-admitted
    source.committed(5, None)
    source.cleanup_before(5)
    with pytest.raises(SourceError):
        queue.texts(batches[1])
    queue.publish("a", "d")
    assert queue.texts(queue.take(batches[2].position)) == ["d"]


def test_lost_message_ids_stop_the_source_until_a_person_accepts_the_loss(queue: Queue) -> None:
    queue.publish("a", "b")
    first = queue.take()
    assert queue.source().losses(first.position) == []
    next(queue.staging.glob("@taken/*/ids/2/*")).unlink()
    assert "accept-loss" in queue.refusal(first.position)
    (loss,) = queue.source().losses(first.position)
    assert "counts twice" in loss.description
    queue.publish("a")
    assert queue.texts(queue.take(loss.resume_at)) == ["a"]


def test_a_position_of_another_queue_is_refused(queue: Queue) -> None:
    queue.publish("a")
    for position in ({"queue": "rabbit/other", "taken": 1, "ids": None}, 17, {"offset": 1}):
        with pytest.raises(OtherSource):
            queue.decide(position)


# --- how much


def test_a_batch_stays_within_its_limits_and_its_reason_names_the_limit(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish(*(letter * 10 for letter in "abcdefg"))
    first = queue.take(max_rows_per_batch=2)
    assert (first.count, first.reason) == (2, "2 of 7 rows: max_rows_per_batch=2")
    second = queue.take(first.position, max_bytes_per_batch=25)
    assert (second.count, second.reason) == (2, "2 of 5 rows: max_bytes_per_batch=25")
    third = queue.take(second.position, max_bytes_per_batch=5)
    assert (third.count, queue.texts(third)) == (1, ["e" * 10])
    assert queue.source().backlog(third.position) == 2
    monkeypatch.setattr(rabbit_source, "MOST", 1)
    fourth = queue.take(third.position)
    assert (fourth.count, fourth.reason.partition(": ")[0]) == (1, "1 of 2 rows")
    assert queue.texts(queue.take(fourth.position)) == ["g" * 10]


# --- what cannot be taken


def test_a_message_without_an_id_is_refused_or_moved_to_another_queue(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish("a", message_id=None)
    queue.publish("b")
    text = queue.refusal()
    for part in (f"of queue {queue.name} of connection rabbit has no message_id", 'identity="content"', "set_aside"):
        assert part in text
    aside = f"{queue.name}.bad"
    assert f"cannot be set aside in {aside}. Declare the queue {aside}" in queue.refusal(set_aside=aside)
    queue.declare(aside)
    with caplog.at_level(logging.WARNING):
        assert queue.texts(queue.take(set_aside=aside)) == ["b"]
    assert f"it is in queue {aside} now" in caplog.text
    assert (queue.waiting(), queue.waiting(aside)) == (0, 1)
    _, properties, body = queue.channel.basic_get(aside)
    assert (properties.delivery_mode, body) == (2, b"a")


@pytest.mark.parametrize("counted_by", ["x-delivery-count", "x-death"])
def test_a_message_delivered_too_often_is_reported_and_can_be_moved_to_another_queue(
    queue: Queue, counted_by: str
) -> None:
    """Its queue counts: a quorum queue what was not acked, any queue what came back from a dead letter queue."""
    if counted_by == "x-death":
        queue.name, retry = f"{queue.name}.x", f"{queue.name}.retry"
        queue.declare(queue.name, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry})
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue.name, "x-message-ttl": 1}
        queue.declare(retry, **back)
    else:
        queue.name = f"{queue.name}.quorum"
        queue.declare(queue.name, **{"x-queue-type": "quorum"})
    queue.publish("poison")
    for _ in range(3):
        method, _, _ = queue.channel.basic_get(queue.name)
        queue.channel.basic_reject(method.delivery_tag, requeue=counted_by != "x-death")
        eventually(lambda: queue.waiting() == 1, 60, "it is back")
    text = queue.refusal(max_deliveries=3)
    assert f"message poison of queue {queue.name} of connection rabbit was delivered 3 times before" in text
    assert "max_deliveries=3" in text
    aside = f"{queue.name}.bad"
    queue.declare(aside)
    eventually(lambda: queue.waiting() == 1, 60, "it is back")
    queue.publish("good")
    assert queue.texts(queue.take(max_deliveries=3, set_aside=aside)) == ["good"]
    assert (queue.waiting(), queue.waiting(aside)) == (0, 1)


@pytest.mark.parametrize(
    ("body", "schema", "why"),
    [
        (b"\xff", None, "it is not UTF-8"),
        (b"{", "n INT", "it is no JSON"),
        (b"[1]", "n INT", "it is a JSON list, not an object"),
    ],
)
def test_an_unreadable_message_fails_its_batch_and_the_error_names_the_message(
    queue: Queue, body: bytes, schema: str | None, why: str
) -> None:
    queue.channel.basic_publish("", queue.name, body, BasicProperties(message_id="m7"))
    batch = queue.take(schema=schema)
    with pytest.raises(RowsRefused, match=rf"message 'm7' of queue {queue.name} .* cannot be read: {why}.*skip orders"):
        queue.texts(batch, schema=schema)


def test_the_ledger_records_the_message_that_has_a_refused_value_but_not_the_value(queue: Queue) -> None:
    queue.channel.basic_publish("", queue.name, b'{"n": "Jane Doe"}', BasicProperties(message_id="m7"))
    with pytest.raises(RowsRefused, match='column n INT = "Jane Doe"') as refused:
        queue.texts(queue.take(schema="n INT"), schema="n INT")
    kept = problem_of(refused.value)
    assert (f"message 'm7' of queue {queue.name}" in kept, "column n INT" in kept, "Jane" in kept) == (
        True,
        True,
        False,
    )


@pytest.mark.long
@pytest.mark.spark
def test_spark_and_python_read_the_same_rows(queue: Queue, spark: SparkSession) -> None:
    queue.publish('{"n": 1, "at": "x"}', '{"n": 2}', headers={"shop": 7})
    source = queue.source(schema="n INT, at STRING")
    batch = queue.take(schema="n INT, at STRING")
    frame: Any = source.emit_batch(ATTEMPT, batch.metadata, spark)
    rows = [row.asDict(True) for row in frame.collect()]
    assert [(row["message"]["n"], row["message"]["at"], row["headers"]) for row in rows] == [
        (1, "x", '{"shop": 7}'),
        (2, None, '{"shop": 7}'),
    ]
    queue.publish('{"n": "many"}')
    worse = queue.take(batch.position, schema="n INT")
    with pytest.raises(RowsRefused, match='cannot be read: column n INT = "many": '):
        queue.source(schema="n INT").emit_batch(ATTEMPT, worse.metadata, spark)


# --- what is wrong


def test_a_wrong_login_or_a_missing_queue_causes_a_one_line_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = queue.rabbit.airflow_connection()

    def connection(**changed: Any) -> str:
        monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({**there, **changed}))
        text = queue.refusal(conn_id="other")
        assert there["password"] not in text
        return text

    assert "no queue 'nowhere'" in (found := queue.refusal(queue="nowhere"))
    assert "Declare the queue, or correct its name" in found
    assert "Connection 'other', login = 'eve' cannot be used. The broker refuses it" in connection(login="eve")
    assert "Connection 'other', schema = 'nowhere' cannot be used" in connection(schema="nowhere")
    assert "the broker cannot be reached" in connection(port=1)
    assert "the broker cannot be reached" in connection(host="nowhere.invalid")
    assert "Give the host of the broker" in connection(host=None)
    assert "needs a connection of type amqp" in connection(conn_type="redis")
    assert "extra ssl_ca_certs" in connection(extra={"ssl": True, "ssl_ca_certs": "/nowhere.pem"})
    assert "the broker cannot be reached" in connection(extra={"ssl": True})
    assert "it has no staging area" in str(_raised(queue.name))
    with pytest.raises(SourceError, match="no queue 'nowhere'"):
        RabbitQueueSource("rabbit", "nowhere").backlog(None)


def test_the_error_about_a_missing_pika_package_contains_the_install_command(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pika", None)
    assert "It needs pika: pip install 'airflow-provider-tx[rabbitmq]'" in queue.refusal()


@pytest.mark.long
def test_the_source_connects_to_a_broker_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem -subj /CN=localhost"
    subprocess.run([*made.split(), "-addext", "subjectAltName=DNS:localhost"], cwd=tmp_path, check=True)
    (tmp_path / "ca.pem").write_bytes((tmp_path / "cert.pem").read_bytes())
    with LocalRabbit(certificates=tmp_path) as broker:
        secured = {**broker.airflow_connection(), "extra": {"ssl": True, "ssl_ca_certs": str(tmp_path / "ca.pem")}}
        monkeypatch.setenv("AIRFLOW_CONN_RABBIT", json.dumps(secured))
        queue = Queue(broker, tmp_path)
        queue.publish("a")
        batch = queue.take()
        assert queue.texts(batch) == ["a"]
        monkeypatch.setenv("AIRFLOW_CONN_RABBIT", json.dumps({**secured, "extra": {"ssl": True}}))
        assert "CERTIFICATE_VERIFY_FAILED" in queue.refusal(batch.position)
        queue.connection.close()


def _raised(queue: str) -> Exception:
    with pytest.raises(SourceError) as refusal:
        RabbitQueueSource("rabbit", queue).decide(ATTEMPT, None)
    return refusal.value
