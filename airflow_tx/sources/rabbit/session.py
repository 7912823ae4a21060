"""One connection to a broker, for one queue. A received message belongs to the broker until it is acked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from airflow_tx.connections.rabbit import RabbitBroker, require_pika
from airflow_tx.errors import SourceError
from airflow_tx.sources.rabbit.taken import QueueMessage

MOST = 65_535
"""Messages that a broker hands out at most before the first one is acked: the number has 16 bits."""
_SILENCE = 5.0
"""Seconds after which messages that the queue had count as taken by another consumer."""


@dataclass(frozen=True)
class Delivery:
    """A message that was received.

    :param tag: by which it is acked.
    :param earlier: how often it was delivered before, as far as the queue counts.
    :param properties: of pika, to publish it elsewhere unchanged.
    """

    tag: int
    message: QueueMessage
    earlier: int
    properties: Any


class QueueSession:
    """A queue, as one process sees it.

    :param source: repr of the source that it belongs to, for messages.
    """

    def __init__(self, broker: RabbitBroker, queue: str, source: str) -> None:
        self._broker = broker
        self._queue = queue
        self._source = source
        require_pika(needed_by=source)
        with self._failures():
            self._connection = broker.connect()
            self._channel = self._connection.channel()

    @property
    def where(self) -> str:
        return f"queue {self._queue} of connection {self._broker.conn_id}"

    def ready(self) -> int:
        """Count the messages that wait in the queue."""
        with self._failures():
            return int(self._channel.queue_declare(self._queue, passive=True).method.message_count)

    def receive(self, wanted: int) -> list[Delivery]:
        """Receive so many messages; fewer, if others take them."""
        found = list[Delivery]()
        with self._failures():
            # Messages that it hands out and that are not received are delivered and counted again.
            self._channel.basic_qos(prefetch_count=wanted)
            for method, properties, body in self._channel.consume(
                self._queue, inactivity_timeout=_SILENCE
            ):
                if method is None:
                    break
                found.append(self._delivery(method, properties, body))
                if len(found) == wanted:
                    break
            self._channel.cancel()
        return found

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Let the broker forget a message, or all received ones up to it; certain after the next answer."""
        with self._failures():
            self._channel.basic_ack(tag, multiple=multiple)

    def set_aside(self, delivery: Delivery, queue: str) -> None:
        """Move a message into another queue: there before it is gone here, so it may be there twice.

        :raises SourceError: there is no such queue.
        """
        from pika.exceptions import NackError, UnroutableError  # type: ignore[import-untyped]

        with self._failures():
            self._channel.confirm_delivery()
            try:
                self._channel.basic_publish(
                    "", queue, delivery.message.body, delivery.properties, mandatory=True
                )
            except (NackError, UnroutableError):
                problem = f"message {delivery.message.message_id!r} of {self.where} cannot be set aside in {queue}"
                raise self.refused(
                    problem, f"Declare the queue {queue}, with room in it."
                ) from None
        self.ack(delivery.tag)

    def close(self) -> None:
        """Give back to the queue what was received and not acked."""
        from pika.exceptions import AMQPError

        with suppress(AMQPError, OSError):
            self._connection.close()

    def refused(self, problem: str, remedy: str) -> SourceError:
        return SourceError(source=self._source, problem=problem, remedy=remedy)

    def _delivery(self, method: Any, properties: Any, body: bytes) -> Delivery:
        headers: Mapping[str, Any] = properties.headers or {}
        deaths = [
            each.get("count", 0)
            for each in headers.get("x-death", ())
            if each.get("queue") == self._queue
        ]
        earlier = int(headers.get("x-delivery-count", 0)) + sum(map(int, deaths))
        text = json.dumps(headers, sort_keys=True, default=str)
        message = QueueMessage(properties.message_id or "", method.routing_key, text, body)
        return Delivery(method.delivery_tag, message, earlier, properties)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what pika raises into one line."""
        from pika.exceptions import AMQPError, ChannelClosedByBroker

        try:
            yield
        except ChannelClosedByBroker as error:
            remedy = "Correct it, then clear the task."
            if error.reply_code == 404:
                remedy = "Declare the queue, or correct its name; it is never made here."
            raise self.refused(f"{self.where}: {error.reply_text}", remedy) from None
        except (AMQPError, OSError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            remedy = "Nothing is lost: what was received and not acked is delivered again."
            raise self.refused(
                f"{self.where}: the broker cannot be reached ({text})", remedy
            ) from None
