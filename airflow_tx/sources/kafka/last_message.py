"""The last message that was taken of a partition, by which a partition that was cut and written again is known.

Offsets alone do not tell: once as many messages are written again, the partition ends where it did, or behind that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

from airflow_tx.connections.kafka import KafkaAddress
from airflow_tx.sources.kafka.offsets import KafkaUnreachable, needed
from airflow_tx.sources.kafka.positions import LastMessage, OffsetRange, split_name
from airflow_tx.sources.kafka.rows import consumer_of, ends_partition, some_messages

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_BACK = 2
"""Offsets that are read first: the last message, and the marker behind it if it was written in a transaction."""
_FURTHER = 16
# One message of each partition is wanted, not the messages that follow it.
_FETCHED = {"fetch.message.max.bytes": 65536, "queued.max.messages.kbytes": 16384}


def last_messages(
    address: KafkaAddress, ranges: Mapping[str, OffsetRange], timeout: float
) -> dict[str, LastMessage]:
    """Find the last message of each range, of all partitions at once; a range without a message has none.

    :param timeout: seconds without any answer after which it gives up.
    :raises KafkaUnreachable: no answer came.
    """
    found: dict[str, LastMessage] = {}
    left = {name: each for name, each in ranges.items() if each.count > 0}
    if not left:
        return found
    back = _BACK
    with consumer_of(address, **_FETCHED) as consumer:
        while left:
            ends = {
                name: OffsetRange(max(each.start, each.end - back), each.end)
                for name, each in left.items()
            }
            last = _read_last(address, consumer, ends, timeout)
            found.update({name: _described(message) for name, message in last.items()})
            left = {
                name: OffsetRange(each.start, ends[name].start)
                for name, each in left.items()
                if name not in found and each.start < ends[name].start
            }
            back *= _FURTHER
    return found


def _read_last(
    address: KafkaAddress, consumer: Consumer, ranges: Mapping[str, OffsetRange], timeout: float
) -> dict[str, Message]:
    kafka = needed("confluent_kafka")
    places = {name: kafka.TopicPartition(*split_name(name)) for name in ranges}
    for name, place in places.items():
        place.offset = ranges[name].start
    consumer.assign(list(places.values()))
    names = {(place.topic, place.partition): name for name, place in places.items()}
    found: dict[str, Message] = {}
    left = set(ranges)
    give_up = time.monotonic() + timeout
    while left:
        messages = some_messages(consumer)
        for message in messages:
            name = names[message.topic() or "", message.partition() or 0]
            ended = ends_partition(address, message)
            offset = message.offset() or 0
            if not ended and offset < ranges[name].end:
                found[name] = message
            if name in left and (ended or offset + 1 >= ranges[name].end):
                left.remove(name)
                consumer.incremental_unassign([places[name]])
        if messages:
            give_up = time.monotonic() + timeout
        elif time.monotonic() > give_up:
            reason = f"partition {min(left)} gave no row for {timeout:g} s"
            raise KafkaUnreachable(conn_id=address.conn_id, reason=reason)
    return found


def _described(message: Message) -> LastMessage:
    offset = message.offset()
    assert offset is not None
    value = message.value()
    told = (message.timestamp(), message.key(), message.headers(), value is None)
    digest = blake2b(repr(told).encode(), digest_size=8)
    digest.update(value.encode() if isinstance(value, str) else value or b"")
    return LastMessage(offset, digest.hexdigest())
