"""Kills between every two steps of a transaction over a queue of RabbitMQ: each message is counted exactly once."""

from __future__ import annotations

import json
import multiprocessing
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties  # type: ignore[import-untyped]

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.integration import queue_worker
from tests.servers.rabbit import LocalRabbit

POINTS = (
    "rabbit.after_receive",
    "rabbit.after_stage",
    "begin.before_note",
    "rabbit.before_ack",
    "rabbit.after_ack",
    "worker.before_mark",
    "worker.after_mark",
)


class Shop:
    """A queue of orders, and the workers that count them."""

    def __init__(self, rabbit: LocalRabbit, hosts: str, folder: Path, queue_type: str) -> None:
        self.rabbit, self.hosts, self.folder, self.queue_type = rabbit, hosts, folder, queue_type
        self.root, self.queue = f"/rabbit-{uuid.uuid4().hex[:8]}", f"q{uuid.uuid4().hex[:8]}"
        self.failpoints = Failpoints(folder / "failpoints")
        self.environment = {
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW_CONN_RABBIT": json.dumps(rabbit.airflow_connection()),
            "AIRFLOW_CONN_COUNTS": f"sqlite:///{folder / 'counts.db'}",
            **self.failpoints.environment,
        }
        # A process in which all is loaded already forks each worker.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([queue_worker.__name__])
        self.published: list[str] = []

    def publish(self, count: int) -> None:
        connection = self.rabbit.connect()
        channel = connection.channel()
        channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": self.queue_type})
        channel.confirm_delivery()
        for _ in range(count):
            id_ = f"m{len(self.published)}"
            channel.basic_publish("", self.queue, b"{}", BasicProperties(delivery_mode=2, message_id=id_))
            self.published.append(id_)
        connection.close()

    def start(self) -> Any:
        """Start a worker."""
        arguments = (self.environment, self.hosts, self.root, self.queue)
        worker = self.context.Process(target=queue_worker.main, args=arguments, daemon=True)
        worker.start()
        return worker

    def run(self) -> int | None:
        """Let a worker run to its end; its exit code."""
        worker = self.start()
        worker.join()
        return int(worker.exitcode)

    def run_until_empty(self) -> None:
        """Start workers until the queue has nothing more; a broker may need a moment to take messages back."""

        def is_empty() -> bool:
            assert self.run() == 0
            connection = self.rabbit.connect()
            waiting = connection.channel().queue_declare(self.queue, passive=True).method.message_count
            connection.close()
            return not waiting and len(self.counted()) == len(self.published)

        eventually(is_empty, 120, "the queue is empty")

    def counted(self) -> dict[str, int]:
        return {row["message_id"]: row["n"] for row in queue_worker.counts().read()}


@pytest.fixture
def make_shop(
    rabbit: LocalRabbit, zookeeper: LocalZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Shop]]:
    def make(queue_type: str = "classic") -> Shop:
        shop = Shop(rabbit, zookeeper.hosts, tmp_path, queue_type)
        for name in ("AIRFLOW_HOME", "AIRFLOW_CONN_RABBIT", "AIRFLOW_CONN_COUNTS"):
            monkeypatch.setenv(name, shop.environment[name])
        return shop

    yield make
    if not rabbit.running:
        rabbit.start()


@pytest.mark.worth("a queue forgets what it has given: each step of a worker is a chance to lose a message")
@pytest.mark.long
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_each_message_counts_once_although_a_worker_is_killed_after_each_of_its_steps(
    make_shop: Callable[..., Shop], queue_type: str
) -> None:
    shop = make_shop(queue_type)
    shop.publish(40)
    for txid, point in enumerate(POINTS, 1):
        armed = shop.failpoints.arm(point, "kill", txid=txid)
        while not armed.reached:  # it may run out of messages which the broker has not taken back yet
            assert shop.run() in (0, -9)
    shop.publish(3)
    shop.run_until_empty()
    assert shop.counted() == dict.fromkeys(shop.published, 1)
    assert len(list(shop.folder.glob("tx_staging/*/*/@taken/*/messages/*"))) <= 1


@pytest.mark.lead
@pytest.mark.parametrize("point", ["rabbit.before_ack", pytest.param("rabbit.after_ack", marks=pytest.mark.long)])
def test_each_message_counts_once_although_the_broker_is_killed_before_or_after_the_ack(
    make_shop: Callable[..., Shop], point: str
) -> None:
    """What is acked may come again, for the broker had not written it down; its flag and order say nothing then."""
    shop = make_shop()
    shop.publish(18)
    armed = shop.failpoints.arm(point, "pause", txid=2)
    worker = shop.start()
    eventually(lambda: armed.reached, 120, "the worker stands before its ack")
    shop.rabbit.kill()
    shop.rabbit.start()
    armed.release()
    worker.join()
    shop.run_until_empty()
    assert shop.counted() == dict.fromkeys(shop.published, 1)
