"""A queue of RabbitMQ: its next messages are staged, written down in the ledger, and only then acked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from airflow_tx.connections.rabbit import RabbitBroker
from airflow_tx.errors import OtherSource, SourceError
from airflow_tx.failpoints import failpoint
from airflow_tx.protocol.batch import WHOLE, Loss
from airflow_tx.sources.api import Batch, EmittedRows, Json, Source
from airflow_tx.sources.message import declared_columns
from airflow_tx.sources.rabbit.rows import QueueRows
from airflow_tx.sources.rabbit.session import MOST, Delivery, QueueSession
from airflow_tx.sources.rabbit.taken import (
    QueueMessage,
    TakenMessages,
    is_staged,
    read_ids,
    read_taken,
)
from airflow_tx.sources.sizing import BatchSize, Limit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.protocol.attempt import TransactionAttempt

log = logging.getLogger(__name__)

_Received: TypeAlias = tuple[dict[bytes, QueueMessage], int, str]
"""Messages by their identity, the tag up to which they are to be acked, and why there are no more."""
_IDENTITIES = ("message_id", "content")


@dataclass(frozen=True)
class QueuePosition:
    """Where the source stands.

    :param queue: which one it is.
    :param taken: how many messages were taken.
    :param ids: URI of the digests of the last ids; None: they are unknown.
    """

    queue: str
    taken: int = 0
    ids: str | None = None

    def to_json(self) -> dict[str, Json]:
        return {"queue": self.queue, "taken": self.taken, "ids": self.ids}


class RabbitQueueSource(Source):
    """The next messages of a queue are a transaction.

        RabbitQueueSource("rabbit_shop", "orders", max_rows_per_batch=10_000)

    A message is a row ``{"message_id": ..., "routing_key": ..., "headers": "{}", "message": "..."}``. It is acked once
    the ledger has the transaction that it is in. One that comes again, since its ack was lost or since its publisher
    has sent it twice, is recognised by its id among the last `remember` ones, acked, and in no further transaction.

    :param conn_id: Airflow connection of type amqp.
    :param queue: its name; it exists already.
    :param schema: Spark DDL, such as ``user STRING, amount DOUBLE``: messages are JSON objects with these fields, and
        the column `message` is a STRUCT of them. Without one a message is a text.
    :param identity: ``message_id``, as the publisher has set it, or ``content``: equal messages are one.
    :param remember: how many of the last ids are remembered.
    :param max_deliveries: a message that the queue says was delivered so often before is not taken.
    :param set_aside: queue that such messages, and those without an id, are moved to; without one they are refused.
    :param max_rows_per_batch: at most so many messages in a batch; a broker hands out 65,535 at most.
    :param max_bytes_per_batch: at most so many bytes, except if one message alone has more.
    :param target_seconds: as many messages as are processed in so many seconds, by what the last transactions took.
    """

    rows_can_change: ClassVar[bool] = False
    stages: ClassVar[bool] = True
    batch_size: BatchSize

    def __init__(
        self,
        conn_id: str = "rabbitmq_default",
        queue: str = "",
        *,
        schema: str | None = None,
        identity: str = "message_id",
        remember: int = 100_000,
        max_deliveries: int = 10,
        set_aside: str | None = None,
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        target_seconds: float | None = None,
    ) -> None:
        if not conn_id or not queue:
            raise self.unusable(
                "queue", queue, 'Name an Airflow connection and a queue: ("rabbit_shop", "orders").'
            )
        if identity not in _IDENTITIES:
            raise self.unusable("identity", identity, f"Give one of {', '.join(_IDENTITIES)}.")
        for name, value in (("remember", remember), ("max_deliveries", max_deliveries)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self.unusable(name, value, "Give a whole number above 0.")
        if set_aside == queue:
            raise self.unusable("set_aside", set_aside, "Name another queue.")
        self.conn_id = conn_id
        self.queue = queue
        self.schema = schema
        self.identity = identity
        self.remember = remember
        self.max_deliveries = max_deliveries
        self.aside = set_aside
        self.batch_size = BatchSize.checked(
            type(self).__name__,
            max_rows=max_rows_per_batch,
            max_bytes=max_bytes_per_batch,
            target_seconds=target_seconds,
        )
        self.limit = self.batch_size.limit()
        self._session: QueueSession | None = None
        self._unacked: tuple[Json, int] | None = None
        """Of the batch that was decided last: its metadata, and the tag up to which it is to be acked."""

    def close(self) -> None:
        self._unacked = None
        if self._session is not None:
            session = self._session
            self._session = None
            session.close()

    # --- deciding

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        self.close()
        at = self._position(position)
        staged = self._staged
        known = self._known(at)
        tag = 0
        reason = "all were staged already"
        messages = self._new(staged.left(at.taken), known)
        if not messages:
            messages, tag, reason = self._receive(known)
        if not messages:
            return None
        failpoint("rabbit.after_receive", topology=self.topology, txid=attempt.txid)
        metadata: Json = {
            "staged": staged.stage(at.taken, list(messages.values())),
            "number": at.taken,
        }
        ids = [*known, *messages][-max(self.remember, len(messages)) :]
        after = QueuePosition(
            at.queue, at.taken + len(messages), staged.stage_ids(at.taken + len(messages), ids)
        )
        failpoint("rabbit.after_stage", topology=self.topology, txid=attempt.txid)
        self._unacked = (metadata, tag)
        return Batch(metadata, after.to_json(), len(messages), reason)

    def begun(self, txid: int, metadata: Json) -> None:
        if self._session is None or self._unacked is None or self._unacked[0] != metadata:
            return
        failpoint("rabbit.before_ack", topology=self.topology, txid=txid)
        self._session.ack(self._unacked[1], multiple=True)
        self._session.ready()
        failpoint("rabbit.after_ack", topology=self.topology, txid=txid)

    def committed(self, txid: int, metadata: Json) -> None:
        if isinstance(metadata, dict):
            self._staged.note_committed(txid, int(str(metadata["number"])))

    def refuses_again(self, metadata: Json) -> str:
        return "RabbitMQ gives a message once, and what was kept of it went after its commit"

    def cleanup_before(self, txid: int) -> None:
        self._staged.remove_before(txid)

    def backlog(self, position: Json) -> int | None:
        return self._connected().ready()

    def losses(self, position: Json) -> list[Loss]:
        at = self._position(position)
        if at.ids is None or is_staged(at.ids):
            return []
        without = QueuePosition(at.queue, at.taken).to_json()
        return [
            Loss(
                WHOLE,
                position,
                without,
                f"{_lost_ids(at)}: what is delivered again of them is counted again",
            )
        ]

    def _receive(self, known: Mapping[bytes, None]) -> _Received:
        session = self._connected()
        most = min(self.limit.rows or MOST, MOST)
        while waiting := session.ready():
            new = dict[bytes, Delivery]()
            unacked = list[int]()
            deliveries = session.receive(min(waiting, most))
            for each in deliveries:
                identity = each.message.identity(self.identity)
                if identity in known:
                    session.ack(each.tag)
                elif problem := self._problem(each):
                    self._refuse(session, each, problem)
                else:
                    unacked.append(each.tag)
                    new.setdefault(identity, each)
            if len(deliveries) > len(new):
                log.info(
                    "%s: %s messages were taken before, or set aside",
                    session.where,
                    len(deliveries) - len(new),
                )
            if new:
                return self._fitted(new, waiting - len(deliveries) + len(new), unacked)
            if not deliveries:
                break
        return {}, 0, ""

    def _fitted(self, new: Mapping[bytes, Delivery], waiting: int, unacked: list[int]) -> _Received:
        taken = dict[bytes, QueueMessage]()
        size = 0
        limit = self.limit
        if limit.rows is None or limit.rows > MOST:
            limit = Limit(
                MOST, limit.bytes, f"a broker hands out {MOST} messages at most that are not acked"
            )
        for identity, each in new.items():
            size += len(each.message.body)
            if taken and limit.bytes is not None and size > limit.bytes:
                why = Limit(reason=f"max_bytes_per_batch={limit.bytes}")
                return (
                    taken,
                    max(tag for tag in unacked if tag < each.tag),
                    why.reason_for(len(taken), waiting),
                )
            taken[identity] = each.message
        return taken, unacked[-1], limit.reason_for(len(taken), waiting)

    def _problem(self, delivery: Delivery) -> str:
        """Say why a message is not taken; "" if it is."""
        if delivery.earlier >= self.max_deliveries:
            return f"was delivered {delivery.earlier} times before, and max_deliveries={self.max_deliveries}"
        if self.identity == "message_id" and not delivery.message.message_id:
            return "has no message_id, so it could not be recognised when it is delivered again"
        return ""

    def _refuse(self, session: QueueSession, delivery: Delivery, problem: str) -> None:
        name = delivery.message.message_id or f"with routing key {delivery.message.routing_key!r}"
        if self.aside is None:
            remedy = 'Find out why; or let such messages be moved into a queue of their own: set_aside="QUEUE"'
            if not delivery.message.message_id:
                remedy += '; or let the publisher set an id, or say identity="content"'
            raise session.refused(f"message {name} of {session.where} {problem}", f"{remedy}.")
        session.set_aside(delivery, self.aside)
        log.warning(
            "Message %s of %s %s: it is in queue %s now", name, session.where, problem, self.aside
        )

    def _connected(self) -> QueueSession:
        if self._session is None:
            broker = RabbitBroker.of_connection(self.conn_id, what=type(self).__name__)
            self._session = QueueSession(broker, self.queue, repr(self))
        return self._session

    def _position(self, position: Json) -> QueuePosition:
        own = QueuePosition(f"{self.conn_id}/{self.queue}")
        try:
            found = own if position is None else QueuePosition(**position)  # type: ignore[arg-type]
        except TypeError:
            found = None
        if found is None or found.queue != own.queue:
            problem = f"position {str(position)[:80]!r} is none of queue {own.queue}"
            raise OtherSource(source=repr(self), problem=problem)
        return found

    def _known(self, at: QueuePosition) -> dict[bytes, None]:
        try:
            return {} if at.ids is None else read_ids(at.ids)
        except FileNotFoundError:
            remedy = f"Bring them back, or continue without them: {self.command('accept-loss')}"
            raise self.refused(f"{_lost_ids(at)}: no message could be recognised", remedy) from None

    @property
    def _where(self) -> str:
        return f"queue {self.queue} of connection {self.conn_id}"

    @property
    def _staged(self) -> TakenMessages:
        if not self.staging:
            raise self.refused(
                "it has no staging area", "Let a Transaction ask it, or name it with one: named()."
            )
        return TakenMessages(self.staging, f"{self.conn_id}/{self.queue}")

    def _new(
        self, messages: Iterable[QueueMessage], known: Mapping[bytes, None]
    ) -> dict[bytes, QueueMessage]:
        found = {each.identity(self.identity): each for each in messages}
        return {identity: each for identity, each in found.items() if identity not in known}

    # --- rows

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        skip = self.command("skip", attempt.txid)
        rows = QueueRows(self._where, declared_columns(self, "schema", self.schema), skip)
        messages = self._read(metadata, skip)
        return rows.of(messages) if spark is None else rows.frame(spark, messages)

    def contains(self, metadata: Json, what: str) -> bool | None:
        try:
            messages = self._read(metadata, "")
        except SourceError:
            return None  # they were removed after the commit
        return any(each.message_id == what for each in messages)

    def _read(self, metadata: Any, skip: str) -> list[QueueMessage]:
        try:
            return read_taken(metadata["staged"])
        except FileNotFoundError:
            problem = f"the messages that were staged in {metadata['staged']} are gone"
            remedy = f"Bring them back, then clear the task; if they are gone permanently: {skip}"
            raise self.refused(problem, remedy) from None


def _lost_ids(at: QueuePosition) -> str:
    return f"the ids of the messages that were taken from {at.queue} last are gone from {at.ids}"
