"""Rows of Kafka as Python dicts, for tasks that run without Spark; and the sizes of some, to guess the others'."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_tx.connections.kafka import KafkaAddress
from airflow_tx.sources.kafka.offsets import KafkaRefused, KafkaUnreachable, needed
from airflow_tx.sources.kafka.positions import OffsetRange, split_name

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

KafkaMessage = dict[str, Any]

SAMPLED_MESSAGES = 200
"""Rows whose sizes are looked at."""
_AT_ONCE = 1000


class OffsetsGone(Exception):
    """What was to be read is not there any more."""


def read_messages(address: KafkaAddress, offsets: Mapping[str, OffsetRange], timeout: float) -> Iterator[KafkaMessage]:
    """The rows at these offsets, in their order, one partition after the other.

    :param timeout: seconds without any answer after which to give up.
    :raises OffsetsGone: some are not there any more.
    :raises KafkaUnreachable: no broker answers.
    """
    with _consumer(address) as consumer:
        for name in sorted(offsets):
            if offsets[name].count:
                for message in _messages(address, consumer, name, offsets[name], timeout):
                    yield _row(message)


def sample(address: KafkaAddress, starts: Mapping[str, int], timeout: float) -> list[int]:
    """The bytes of some rows, of those that come next in the partitions.

    :raises KafkaUnreachable: no broker answers.
    """
    kafka = needed("confluent_kafka")
    sizes: list[int] = []
    with _consumer(address) as consumer:
        consumer.assign([kafka.TopicPartition(*split_name(name), start) for name, start in starts.items()])
        ended, give_up = 0, time.monotonic() + timeout
        while len(sizes) < SAMPLED_MESSAGES and ended < len(starts):
            for message in _some(consumer):
                if _problem(address, message):
                    ended += 1
                else:
                    sizes.append(_size(message))
            if time.monotonic() > give_up:
                if sizes:
                    break
                raise KafkaUnreachable(conn_id=address.conn_id, reason=f"no row came in {timeout:g} s")
    return sizes


@contextmanager
def _consumer(address: KafkaAddress) -> Iterator[Consumer]:
    settings = {
        **address.client,
        "group.id": address.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 50,
        "log_level": 0,
        "error_cb": lambda error: None,
    }
    consumer: Consumer = needed("confluent_kafka").Consumer(settings)
    try:
        yield consumer
    finally:
        consumer.close()


def _messages(
    address: KafkaAddress, consumer: Consumer, name: str, offsets: OffsetRange, timeout: float
) -> Iterator[Message]:
    kafka = needed("confluent_kafka")
    consumer.assign([kafka.TopicPartition(*split_name(name), offsets.start)])
    give_up = time.monotonic() + timeout
    while True:
        messages = _some(consumer)
        for message in messages:
            # At the end of what is committed comes a note; before it, markers and aborted rows have offsets, too.
            ended, offset = _problem(address, message), message.offset() or 0
            if offset >= offsets.end:
                return
            if not ended:
                yield message
                if offset + 1 == offsets.end:
                    return
        if messages:
            give_up = time.monotonic() + timeout
        elif time.monotonic() > give_up:
            reason = f"partition {name} gave no row for {timeout:g} s, offset {offsets.end - 1} is not reached"
            raise KafkaUnreachable(conn_id=address.conn_id, reason=reason)


def _some(consumer: Consumer) -> list[Message]:
    """Take what has come; wait a moment for the first."""
    first = consumer.poll(0.2)
    return [] if first is None else [first, *consumer.consume(_AT_ONCE, timeout=0)]


def _problem(address: KafkaAddress, message: Message) -> bool:
    """Whether it says that the partition has no more now.

    :raises OffsetsGone, KafkaRefused, KafkaUnreachable: it says that something else is wrong.
    """
    error, kafka = message.error(), needed("confluent_kafka").KafkaError
    if error is None:
        return False
    if error.code() == kafka._PARTITION_EOF:
        return True
    text = address.hide(" ".join(error.str().split()))
    if error.code() in (kafka._AUTO_OFFSET_RESET, kafka.OFFSET_OUT_OF_RANGE, kafka.UNKNOWN_TOPIC_OR_PART):
        raise OffsetsGone(text)
    if error.code() in (kafka._AUTHENTICATION, kafka._SSL, kafka.TOPIC_AUTHORIZATION_FAILED):
        raise KafkaRefused(conn_id=address.conn_id, reason=text)
    raise KafkaUnreachable(conn_id=address.conn_id, reason=text)


def _row(message: Message) -> KafkaMessage:
    kind, at = message.timestamp()
    headers: Any = message.headers()
    return {
        "key": _bytes(message.key()),
        "value": _bytes(message.value()),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": datetime.fromtimestamp(at / 1000, timezone.utc) if kind and at >= 0 else None,
        "headers": [{"key": key, "value": _bytes(value)} for key, value in headers] if headers else None,
    }


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _size(message: Message) -> int:
    return sum(len(part) for part in (message.key(), message.value()) if part is not None)
