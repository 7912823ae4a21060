"""The same of sources whose server takes long to start: a queue of RabbitMQ, and a topic of Kafka."""

from __future__ import annotations

import json

import pytest
from pika import BasicProperties  # type: ignore[import-untyped]

from tests.integration.kinds.answers import (
    check_filled_by_commands,
    check_filled_by_page,
    check_got,
    check_same,
    check_told,
)
from tests.integration.kinds.ledger import Ledger
from tests.integration.kinds.topologies import LONG_KINDS, SOURCES
from tests.servers.kafka import LocalKafka
from tests.servers.rabbit import LocalRabbit

pytestmark = pytest.mark.lead

MESSAGES = [f"m{number}" for number in range(1, 13)]


def test_commands_report_queues_and_topics_like_other_sources(
    ledger: Ledger, rabbit: LocalRabbit, kafka: LocalKafka
) -> None:
    queue, topic = (each.name for each in LONG_KINDS)
    connection = rabbit.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(f"{queue}_in", durable=True)
    for each in MESSAGES:
        channel.basic_publish("", f"{queue}_in", b"{}", BasicProperties(delivery_mode=2, message_id=each))
    kafka.create_topic(topic, 1)
    kafka.produce(topic, [("key", each) for each in MESSAGES], 0)
    told = {"conn_type": "kafka", "extra": json.dumps(kafka.client_config())}
    ledger.connect(rabbit=json.dumps(rabbit.airflow_connection()), kafka=json.dumps(told))
    ledger.live(LONG_KINDS)
    for kind in LONG_KINDS:
        answers = [*ledger.told(kind), *ledger.told_otherwise(kind)]
        check_told(answers)
        check_same(answers)
        check_got(ledger.got(kind))
    check_filled_by_commands(ledger, [*SOURCES, *LONG_KINDS], all_reasons=False)
    check_filled_by_page(ledger, [*SOURCES, *LONG_KINDS], all_reasons=False)
    connection.close()
