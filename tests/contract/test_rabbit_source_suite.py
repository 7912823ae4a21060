"""The source suite over queues of a real RabbitMQ broker: classic ones, and quorum queues."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_tx.sources.api import Source
from airflow_tx.sources.rabbit import RabbitQueueSource
from airflow_tx.testing.suites.source_case import Row
from airflow_tx.testing.suites.source_suite import SourceSuite
from tests.servers.rabbit import RABBIT_PASSWORD, LocalRabbit


@pytest.mark.worth("starts RabbitMQ for all tests of this part")
class TestQueue(SourceSuite):
    """Each test has a queue of its own."""

    secrets: ClassVar[tuple[str, ...]] = (RABBIT_PASSWORD, "127.0.0.1")
    queue_type = "classic"
    gives_again: ClassVar[bool] = False
    identity = "message_id"

    @pytest.fixture(autouse=True)
    def place(self, rabbit: LocalRabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("AIRFLOW_CONN_RABBIT", json.dumps(rabbit.airflow_connection()))
        self.queue, self.staging, self.number = f"q{uuid.uuid4().hex[:8]}", tmp_path, 0
        connection = rabbit.connect()
        self.channel = connection.channel()
        self.channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": self.queue_type})
        self.channel.confirm_delivery()
        yield
        self.channel.queue_delete(self.queue)
        connection.close()

    def make(self) -> Source:
        source = RabbitQueueSource("rabbit", self.queue, max_rows_per_batch=3, identity=self.identity).named("orders")
        source.staging = str(self.staging)
        return source

    def add(self) -> list[Row]:
        return [self.publish() for _ in range(7)]

    def publish(self) -> Row:
        from pika import BasicProperties  # type: ignore[import-untyped]

        self.number += 1
        message, id_, headers = f"order {self.number}", f"m{self.number}", {"shop": self.number}
        properties = BasicProperties(delivery_mode=2, message_id=id_, headers=headers)
        self.channel.basic_publish("", self.queue, message.encode(), properties)
        return {"message_id": id_, "routing_key": self.queue, "headers": json.dumps(headers), "message": message}

    def lose_rows(self) -> None:
        next(self.staging.glob("@taken/*/messages/0/*")).unlink()


@pytest.mark.long
class TestQuorumQueue(TestQueue):
    queue_type = "quorum"


@pytest.mark.long
class TestQueueWhoseMessagesAreKnownByTheirContent(TestQueue):
    identity = "content"
