"""The RabbitMQ source. It stages a queue's next messages, records them in the ledger, and then acks them."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from uuid import uuid4

from airflow_tx.base.connections import RabbitBroker, require_pika
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import OtherSource, RowsRefused, SourceError
from airflow_tx.base.failpoints import failpoint
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.base.rows import ColumnType, UnfitText, arrow_types_of, nested_columns_of
from airflow_tx.ledger import WHOLE, Loss, TransactionAttempt
from airflow_tx.outputs import TAKEN, open_files, quoted
from airflow_tx.sources.api import Batch, BatchSize, EmittedRows, Json, Limit, RowTypes, Source
from airflow_tx.sources.message import (
    declared_columns,
    message_batches,
    message_column,
    message_ddl,
    parsed_message,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession


# --- taken --------------------------------------------------------------------------------------------------------
# The messages that were taken from a queue. Until their transaction is committed, only the
# staging area holds them.
#
# ::
#
# <root>/@taken/<queue>/messages/<number>/<random>   the messages of a batch that begins at this number
# <root>/@taken/<queue>/ids/<number>/<random>        digests of the last ids before this number
# <root>/@taken/<queue>/committed/<txid>/<number>    the batch at this number is committed
#
# The root belongs to one incarnation of a topology. So a renamed topology keeps its messages, and another ledger with
# the same names does not find them. Two processes may stage at the same number: no file is overwritten, and only the
# files that the ledger names count.


DIGEST_SIZE = 16


@dataclass(frozen=True)
class QueueMessage:
    """A message of a queue.

    :param message_id: id of the message, or "" if the publisher has set none.
    :param routing_key: routing key of the message.
    :param headers: headers as JSON.
    :param body: content of the message.
    """

    message_id: str
    routing_key: str
    headers: str
    body: bytes

    def identity(self, by: str) -> bytes:
        """Return the message's identifying digest.

        :param by: "content" for a digest of routing key, headers and body. Otherwise the digest is of the message id.
        """
        own = json.loads(self.headers)
        parts = [self.message_id.encode()]
        if by == "content":
            # Brokers add x- headers that differ between deliveries.
            kept = {name: value for name, value in own.items() if not name.startswith("x-")}
            parts = [
                self.routing_key.encode(),
                json.dumps(kept, sort_keys=True).encode(),
                self.body,
            ]
        digest = blake2b(digest_size=DIGEST_SIZE)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()


def read_taken(uri: str) -> list[QueueMessage]:
    """Read the messages that `TakenMessages.stage` has staged.

    :raises FileNotFoundError: the file does not exist.
    """
    folder, _, name = uri.rpartition("/")
    lines = map(json.loads, open_files(folder).read(name).splitlines())
    return [QueueMessage(id_, key, headers, b64decode(body)) for id_, key, headers, body in lines]


def is_staged(uri: str) -> bool:
    """Return whether a file exists in the staging area."""
    folder, _, name = uri.rpartition("/")
    return name in open_files(folder).list("")


def read_ids(uri: str) -> dict[bytes, None]:
    """Read the digests that `TakenMessages.stage_ids` has staged, in the same order.

    :raises FileNotFoundError: the file does not exist.
    """
    folder, _, name = uri.rpartition("/")
    content = open_files(folder).read(name)
    return dict.fromkeys(
        content[at : at + DIGEST_SIZE] for at in range(0, len(content), DIGEST_SIZE)
    )


class TakenMessages:
    """The messages that a topology has taken from one queue.

    :param root: root of the topology's staging area.
    :param queue: connection and queue, such as rabbit_shop/orders.
    """

    def __init__(self, root: str, queue: str) -> None:
        self._files = open_files(root)
        self._folder = f"{TAKEN}/{quoted(queue)}"

    def stage(self, number: int, messages: Sequence[QueueMessage]) -> str:
        """Stage the messages of a batch that starts at this number, and return the file's URI."""
        # Do not use Parquet. Importing its writer would take longer than all other work of `begin`.
        lines = [
            json.dumps(
                [each.message_id, each.routing_key, each.headers, b64encode(each.body).decode()]
            )
            for each in messages
        ]
        return self._write(f"messages/{number}/{uuid4().hex}", "\n".join(lines).encode())

    def stage_ids(self, number: int, ids: Iterable[bytes]) -> str:
        """Stage the digests of the last ids before this number, and return the file's URI."""
        return self._write(f"ids/{number}/{uuid4().hex}", b"".join(ids))

    def left(self, number: int) -> list[QueueMessage]:
        """Return the staged messages from this number on, which belong to no transaction.

        :param number: number of messages that the ledger's transactions have taken.
        """
        done = {
            start
            for txid in self._numbers("committed")
            for start in self._numbers(f"committed/{txid}")
        }
        found = list[QueueMessage]()
        for at in self._numbers("messages"):
            if at >= number and at not in done:
                folder = f"{self._folder}/messages/{at}"
                for name in sorted(self._files.list(folder)):
                    found += read_taken(self._files.uri(f"{folder}/{name}"))
        return found

    def note_committed(self, txid: int, number: int) -> None:
        """Record that this transaction has committed the batch that starts at this number."""
        self._write(f"committed/{txid}/{number}", b"")

    def remove_before(self, txid: int) -> None:
        """Remove the batches of committed transactions before `txid`.

        Keep the batches of skipped transactions, for a readmission.
        """
        for each in self._numbers("committed"):
            if each >= txid:
                continue
            for number in self._numbers(f"committed/{each}"):
                self._remove(f"messages/{number}")
                for at in self._numbers("ids"):
                    # Keep the ids at `number`, since a rebuilt ledger may begin this transaction
                    # again.
                    if at < number:
                        self._remove(f"ids/{at}")
            self._remove(f"committed/{each}")

    def _numbers(self, folder: str) -> list[int]:
        return sorted(
            int(name) for name in self._files.list(f"{self._folder}/{folder}") if name.isdecimal()
        )

    def _write(self, name: str, content: bytes) -> str:
        self._files.write(f"{self._folder}/{name}", content)
        return self._files.uri(f"{self._folder}/{name}")

    def _remove(self, name: str) -> None:
        self._files.remove_tree(f"{self._folder}/{name}")


# --- rows ---------------------------------------------------------------------------------------------------------
# Convert queue messages to rows.


@dataclass(frozen=True)
class QueueRows:
    """Converts messages to rows.

    :param where: name of the queue, for errors.
    :param columns: columns of JSON messages, or None for texts.
    :param skip: command that skips the transaction, for errors.
    :param source: repr of the source, for errors.
    """

    where: str
    columns: Mapping[str, ColumnType] | None
    skip: Command
    source: str

    @property
    def ddl(self) -> str:
        """The columns of the rows, and their types."""
        message = "STRING" if self.columns is None else message_ddl(self.columns)
        return f"message_id STRING, routing_key STRING, headers STRING, message {message}"

    def of(self, messages: Sequence[QueueMessage]) -> list[dict[str, Any]]:
        """Convert messages to rows.

        :raises RowsRefused: a message cannot be read.
        """
        return [self._row(each) for each in messages]

    def batches(self, messages: Sequence[QueueMessage]) -> pa.RecordBatchReader:
        """Convert messages to record batches.

        :raises RowsRefused: a message cannot be read. The error may also occur while the batches are read.
        """
        import pyarrow as pa

        types = arrow_types_of(nested_columns_of(self.ddl))
        make = partial(self._batch, messages, types)
        batches = message_batches(make, map(self._row, messages), types, [])
        return pa.RecordBatchReader.from_batches(pa.schema(types), batches)

    def _batch(
        self, messages: Sequence[QueueMessage], types: Mapping[str, pa.DataType]
    ) -> pa.RecordBatch:
        import pyarrow as pa

        values = {
            "message_id": [each.message_id for each in messages],
            "routing_key": [each.routing_key for each in messages],
            "headers": [each.headers for each in messages],
            "message": message_column(
                [each.body for each in messages], self.columns, types["message"]
            ),
        }
        return pa.RecordBatch.from_pydict(values, pa.schema(types))

    def _row(self, message: QueueMessage) -> dict[str, Any]:
        row = asdict(message)
        body = row.pop("body")
        try:
            return {**row, "message": parsed_message(body, self.columns)}
        except ValueError as error:
            raise self._unreadable(row, error) from None

    def _unreadable(self, row: Mapping[str, Any], why: ValueError) -> RowsRefused:
        problem = f"message {row['message_id']!r} of {self.where} cannot be read"
        return RowsRefused(
            source=self.source,
            problem=f"{problem}: {why}",
            remedy=Remedy.of("Read messages as texts, without schema, or: ", self.skip),
            place=UnfitText.place_of(why, within=problem),
        )


# --- session ------------------------------------------------------------------------------------------------------
# One connection to a broker, for one queue. The broker keeps a received message until it is acked.


MOST = 65_535
"""Maximum number of unacked messages of a consumer. AMQP's prefetch count has 16 bits."""
_SILENCE = 5.0
"""Seconds without a delivery after which the remaining messages are assumed to belong to another consumer."""


@dataclass(frozen=True)
class Delivery:
    """A received message.

    :param tag: delivery tag, for the ack.
    :param message: the message.
    :param earlier: number of earlier deliveries, if the queue counts them.
    :param properties: pika's properties, for publishing the message unchanged to another queue.
    """

    tag: int
    message: QueueMessage
    earlier: int
    properties: Any


class QueueSession:
    """One process's connection to a queue.

    :param broker: address of the broker.
    :param queue: name of the queue.
    :param source: repr of the source, for errors.
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
        """Return the number of messages waiting in the queue."""
        with self._failures():
            return int(self._channel.queue_declare(self._queue, passive=True).method.message_count)

    def receive(self, wanted: int) -> list[Delivery]:
        """Receive up to `wanted` messages. There are fewer if other consumers take messages."""
        found = list[Delivery]()
        with self._failures():
            # Prefetch no more than `wanted` messages. The broker would deliver the surplus again,
            # and count it as redelivered.
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
        """Ack a message, or all received messages up to it. Only the broker's next response confirms the ack."""
        with self._failures():
            self._channel.basic_ack(tag, multiple=multiple)

    def set_aside(self, delivery: Delivery, queue: str) -> None:
        """Move a message to another queue.

        The message is published there before it is acked, so a crash may duplicate it.

        :raises SourceError: the other queue does not exist, or does not accept the message.
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
        """Close the connection. The broker returns unacked messages to the queue."""
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
        """Convert a pika error to a SourceError with a one-line message."""
        from pika.exceptions import AMQPError, ChannelClosedByBroker

        try:
            yield
        except ChannelClosedByBroker as error:
            remedy = "Correct it, then clear the task."
            if error.reply_code == 404:
                remedy = (
                    "Declare the queue, or correct its name. The source never declares a queue."
                )
            raise self.refused(f"{self.where}: {error.reply_text}", remedy) from None
        except (AMQPError, OSError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            remedy = "Nothing is lost: what was received and not acked is delivered again."
            raise self.refused(
                f"{self.where}: the broker cannot be reached ({text})", remedy
            ) from None


# --- source -------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_Received: TypeAlias = tuple[dict[bytes, QueueMessage], int, str]
"""The messages by identity, the delivery tag up to which to ack, and the reason for the batch size."""
_IDENTITIES = ("message_id", "content")


@dataclass(frozen=True)
class QueuePosition:
    """The position of a RabbitMQ source.

    :param queue: connection and queue, such as rabbit_shop/orders.
    :param taken: number of messages taken.
    :param ids: URI of the file with digests of the last message ids, or None if no id is known.
    """

    queue: str
    taken: int = 0
    ids: str | None = None

    def to_json(self) -> dict[str, Json]:
        return {"queue": self.queue, "taken": self.taken, "ids": self.ids}


class RabbitQueueSource(Source):
    """A source of a RabbitMQ queue. A transaction takes the next messages.

        RabbitQueueSource("rabbit_shop", "orders", max_rows_per_batch=10_000)

    A message is a row ``{"message_id": ..., "routing_key": ..., "headers": "{}", "message": "..."}``. The source acks a
    message once the ledger has recorded its transaction. It remembers the last `remember` ids. If such a message is
    delivered or published again, the source acks it without taking it again.

    :param conn_id: Airflow connection of type amqp.
    :param queue: name of an existing queue.
    :param schema: Spark DDL, such as ``user STRING, amount DOUBLE``, of messages that are JSON objects. The column
        `message` is then a STRUCT. By default, a message is a text.
    :param identity: what identifies a message. ``message_id`` is the id set by the publisher. ``content`` counts equal
        messages as one.
    :param remember: number of last ids to remember.
    :param max_deliveries: number of earlier deliveries after which a message is not taken, as counted by the queue.
    :param set_aside: queue for messages without an id or with too many deliveries. By default, such messages stop the
        source.
    :param max_rows_per_batch: maximum number of messages in a batch. A broker allows at most 65,535.
    :param max_bytes_per_batch: maximum number of bytes in a batch. A single message may be larger.
    :param target_seconds: seconds that a batch should take. Its size follows from the speed of the last transactions.
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
        """The metadata of the last decided batch, and the delivery tag up to which its messages are acked."""

    def close(self) -> None:
        super().close()
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
        return "RabbitMQ delivers a message once, and the staged copy is removed after the commit"

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
                f"{_lost_ids(at)}: a message that RabbitMQ delivers again counts twice",
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
                    "%s: %s messages were already taken, or were set aside",
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
                MOST, limit.bytes, f"a broker delivers at most {MOST} messages without an ack"
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
        """Return the reason for not taking a message, or "" to take it."""
        if delivery.earlier >= self.max_deliveries:
            return f"was already delivered {delivery.earlier} times, and max_deliveries={self.max_deliveries}"
        if self.identity == "message_id" and not delivery.message.message_id:
            return "has no message_id, so it could not be recognised when it is delivered again"
        return ""

    def _refuse(self, session: QueueSession, delivery: Delivery, problem: str) -> None:
        name = delivery.message.message_id or f"with routing key {delivery.message.routing_key!r}"
        if self.aside is None:
            remedy = 'Find the cause, or move such messages to another queue: set_aside="QUEUE"'
            if not delivery.message.message_id:
                remedy += '. Or let the publisher set an id, or use identity="content"'
            raise session.refused(f"message {name} of {session.where} {problem}", f"{remedy}.")
        session.set_aside(delivery, self.aside)
        log.warning(
            "Message %s of %s %s. The source moved it to queue %s",
            name,
            session.where,
            problem,
            self.aside,
        )

    def _connected(self) -> QueueSession:
        if self._session is None:
            broker = RabbitBroker.of_connection(self.conn_id, what=type(self).__name__)
            self._session = QueueSession(broker, self.queue, repr(self))
        return self._session

    def datasets(self) -> list[Dataset]:
        broker = RabbitBroker.of_connection(self.conn_id, what=type(self).__name__)
        name = self.queue if broker.virtual_host == "/" else f"{broker.virtual_host}.{self.queue}"
        return [Dataset(f"amqp://{broker.host}:{broker.port}", name)]

    def _position(self, position: Json) -> QueuePosition:
        own = QueuePosition(f"{self.conn_id}/{self.queue}")
        try:
            found = own if position is None else QueuePosition(**position)  # type: ignore[arg-type]
        except TypeError:
            found = None
        if found is None or found.queue != own.queue:
            problem = f"position {str(position)[:80]!r} is not a position of queue {own.queue}"
            raise OtherSource(source=repr(self), problem=problem)
        return found

    def _known(self, at: QueuePosition) -> dict[bytes, None]:
        try:
            return {} if at.ids is None else read_ids(at.ids)
        except FileNotFoundError:
            remedy = "Restore the ids, or continue without them: " + self.command("accept-loss")
            raise self.refused(
                f"{_lost_ids(at)}, so repeated messages could not be recognised", remedy
            ) from None

    @property
    def _where(self) -> str:
        return f"queue {self.queue} of connection {self.conn_id}"

    @property
    def _staged(self) -> TakenMessages:
        if not self.staging:
            raise self.refused(
                "it has no staging area", "Give the source to a Transaction, or set source.staging."
            )
        return TakenMessages(self.staging, f"{self.conn_id}/{self.queue}")

    def _new(
        self, messages: Iterable[QueueMessage], known: Mapping[bytes, None]
    ) -> dict[bytes, QueueMessage]:
        found = {each.identity(self.identity): each for each in messages}
        return {identity: each for identity, each in found.items() if identity not in known}

    # --- rows

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes:
        return arrow_types_of(nested_columns_of(self._rows(attempt).ddl))

    def _rows(self, attempt: TransactionAttempt) -> QueueRows:
        skip = self.command("skip", attempt.txid)
        columns = declared_columns(self, "schema", self.schema)
        return QueueRows(self._where, columns, skip, repr(self))

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        rows = self._rows(attempt)
        messages = self._read(metadata, rows.skip)
        return rows.of(messages) if spark is None else self._stage(spark, rows.batches(messages))

    def emit_arrow(self, attempt: TransactionAttempt, metadata: Json) -> pa.RecordBatchReader:
        rows = self._rows(attempt)
        return rows.batches(self._read(metadata, rows.skip))

    def contains(self, metadata: Json, what: str) -> bool | None:
        try:
            messages = self._read(metadata, None)
        except SourceError:
            return None  # the messages were removed after the commit
        return any(each.message_id == what for each in messages)

    def _read(self, metadata: Any, skip: Command | None) -> list[QueueMessage]:
        try:
            return read_taken(metadata["staged"])
        except FileNotFoundError:
            problem = f"the staged messages in {metadata['staged']} are gone"
            remedy = Remedy.of(
                "Restore the messages, then clear the task. If they are gone permanently: ", skip
            )
            raise self.refused(problem, remedy) from None


def _lost_ids(at: QueuePosition) -> str:
    return f"the ids of the last messages from {at.queue} are gone from {at.ids}"
