"""The messages of a worker, which takes a message, emits messages that are anchored to it, and acks or fails it."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING

from airflow_tx.base.errors import (
    AckersBehind,
    AckersUnavailable,
    EmittedBefore,
    ForeignMessage,
    MessageDone,
    MessageError,
    MixedAnchors,
    TransactionDefinitionError,
    UnknownMessage,
)
from airflow_tx.ledger import TaskTry
from airflow_tx.outputs.messages.stores import AckerStore, open_ackers
from airflow_tx.outputs.messages.tree import (
    Lineage,
    Origin,
    Portion,
    Reference,
    emitter_text,
    new_id,
    split,
)

if TYPE_CHECKING:
    from typing_extensions import Self


# --- stream -------------------------------------------------------------------------------------------------------
# A worker sends its sums to an acker in numbered portions, so a portion that is sent twice counts
# once.


TREES_A_PORTION = 10_000
"""The maximum number of trees in one portion. Redis accepts at most a million arguments in one command."""


class Stream:
    """The sums of ids that one worker sends to one acker of one attempt.

    :param store: the store of the acker.
    :param origin: the attempt.
    :param acker: the number of the acker.
    :param emitter: the task that registers the roots of the added trees, or "" if they are already registered.
    :param filled: called when the stream has sums to send.
    """

    def __init__(
        self,
        store: AckerStore,
        origin: Origin,
        acker: int,
        *,
        emitter: str = "",
        filled: Callable[[Stream], None] = lambda stream: None,
    ) -> None:
        self.origin = origin
        self._store = store
        self._acker = acker
        self._emitter = emitter
        self._filled = filled
        self._name = secrets.token_hex(8)
        self._number = 0
        self._lock = threading.Lock()
        self._sums: dict[int, tuple[int, int]] = {}
        self._acked = 0
        self._portion: Portion | None = None

    def add(self, root: int, message: int, count: int) -> None:
        """Add an id to the sum of a tree.

        :param root: the root of the tree.
        :param message: the id of the message.
        :param count: 1 if the message was emitted, -1 if it was acked.
        """
        with self._lock:
            self._acked += count < 0
            before = self._sums.get(root)
            if before is not None:
                self._sums[root] = (before[0] ^ message, before[1] + count)
                return
            first = not self._sums
            self._sums[root] = (message, count)
        if first:
            self._filled(self)

    def send(self) -> list[int]:
        """Send all sums, and return the roots that the acker does not know.

        If the acker has not confirmed a portion, that portion is sent again before later sums.

        :raises AckersUnavailable: the store does not answer. Call the method again.
        :raises StaleMessage, UnknownMessage, AckersBehind: the stream can no longer be used.
        """
        refused = list[int]()
        while (portion := self._next()) is not None:
            refused += self._store.take(self.origin, self._acker, portion)
            self._number = portion.number
            self._portion = None
        return refused

    def _next(self) -> Portion | None:
        if self._portion is None:
            with self._lock:
                sums = dict(islice(self._sums.items(), TREES_A_PORTION))
                for root in sums:
                    del self._sums[root]
                acked = self._acked
                self._acked = 0
            if sums:
                self._portion = Portion(self._name, self._number + 1, sums, self._emitter, acked)
        return self._portion


# --- message ------------------------------------------------------------------------------------------------------


class Anchors:
    """What all messages of one lineage share in a worker.

    :param lineage: the lineage.
    :param text: the text of the lineage.
    :param streams: for each tree, the stream to its acker, and the id of its root.
    :param store: the store of the ackers.
    :ivar refusal: the reason why messages of the lineage are refused, or None if they are accepted.
    """

    __slots__ = ("lineage", "refusal", "store", "streams", "text")

    def __init__(
        self,
        lineage: Lineage,
        text: str,
        streams: tuple[tuple[Stream, int], ...],
        store: AckerStore,
    ) -> None:
        self.lineage = lineage
        self.text = text
        self.streams = streams
        self.store = store
        self.refusal: MessageError | None = None


class Message:
    """A message that a worker has taken. You must ack it or fail it, exactly once.

    :param anchors: the trees that the message belongs to.
    :param number: the random id of the message.
    """

    __slots__ = ("_anchors", "_done", "id")

    def __init__(self, anchors: Anchors, number: int) -> None:
        self.id = number
        self._anchors = anchors
        self._done = ""

    @property
    def topology(self) -> str:
        return self._anchors.lineage.origin.topology

    @property
    def txid(self) -> int:
        """Return the txid of the transaction, which a replay keeps."""
        return self._anchors.lineage.origin.txid

    @property
    def attempt(self) -> int:
        """Return the attempt of the transaction. Do not mix the results of different attempts."""
        return self._anchors.lineage.origin.attempt

    @property
    def reference(self) -> str:
        return f"{self._anchors.text}:{self.id:016x}"

    def emit(self, *others: Message) -> str:
        """Create a message that is anchored to this message and to `others`.

        The trees of all anchors are complete only after the new message is acked.

        :return: the reference of the new message. You can send it immediately.
        :raises MessageDone: an anchor is already acked or failed.
        :raises MixedAnchors: the anchors belong to different attempts.
        """
        self._check("Emit for")
        number = new_id()
        if others:
            return self._emit_joined(number, others)
        anchors = self._anchors
        for stream, root in anchors.streams:
            stream.add(root, number, 1)
        return f"{anchors.text}:{number:016x}"

    def emit_unanchored(self) -> str:
        """Create a message that no transaction waits for, and return its reference. A lost one causes no replay."""
        self._check("Emit for")
        return str(Reference(Lineage(self._anchors.lineage.origin), new_id()))

    def ack(self) -> None:
        """Ack the message. Call this method after you have processed the message and have emitted all new messages.

        :raises MessageDone: the message is already acked or failed.
        :raises StaleMessage: the transaction was replayed.
        """
        self._check("Ack")
        self._done = "acked"
        number = self.id
        for stream, root in self._anchors.streams:
            stream.add(root, number, -1)

    def fail(self, reason: str = "") -> None:
        """Fail the message. The attempt of its transaction fails immediately, and the transaction is replayed.

        :param reason: the reason that the ledger records; default: the reference of the message.
        :raises MessageDone: the message is already acked or failed.
        :raises MessageError: the ackers did not store the failure. The attempt fails after `processing_timeout`.
        """
        self._check("Fail")
        self._done = "failed"
        if self._anchors.streams:
            self._anchors.store.fail(
                self._anchors.lineage.origin, reason or f"message {self.reference} was failed"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._done:
            return
        if error is None:
            self.ack()
        else:
            self.fail(f"{type(error).__name__}: {error}")

    def _emit_joined(self, number: int, others: tuple[Message, ...]) -> str:
        origin = self._anchors.lineage.origin
        trees = dict[tuple[int, int], Stream]()
        for each in (self, *others):
            each._check("Emit for")
            if each._anchors.lineage.origin != origin:
                raise MixedAnchors(first=str(origin), second=str(each._anchors.lineage.origin))
            anchors = each._anchors
            trees.update(
                {
                    tree: stream
                    for tree, (stream, _) in zip(
                        anchors.lineage.trees, anchors.streams, strict=True
                    )
                }
            )
        # Add the id only once to each tree, even if several anchors belong to it. A second XOR
        # would remove the id.
        for (_, root), stream in trees.items():
            stream.add(root, number, 1)
        return str(Reference(Lineage(origin, tuple(trees)), number))

    def _check(self, step: str) -> None:
        if self._done:
            raise MessageDone(step=step, message=self.reference, done=self._done)
        if self._anchors.refusal is not None:
            raise self._anchors.refusal


# --- collector ----------------------------------------------------------------------------------------------------
# A worker takes messages, emits further messages that are anchored to them, and acks. Source: Storm's collectors.


log = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""The maximum number of lineages that a collector caches, each a few hundred bytes. Other lineages are parsed again."""


class Collector:
    """The connection of a worker to the ackers. It takes messages from any queue, and sends acks and failures.

        with Collector("redis://queues/0") as collector:
            while True:
                reference, sentence = json.loads(queue.pop())
                with collector.process(reference) as message:
                    for word in sentence.split():
                        words.push(json.dumps([message.emit(), word]))

    A thread sends all acks every `interval` seconds. If the worker is killed before that, these messages are not acked,
    and the transaction is replayed. Create the collector after a fork, not before.

    :param ackers: the store of the ackers, or its URL or connection id, see `open_ackers`.
    :param topology: the topology whose messages are accepted, or None to accept all messages.
    :param interval: seconds between two requests to the ackers.
    """

    def __init__(
        self, ackers: AckerStore | str, *, topology: str | None = None, interval: float = 0.05
    ) -> None:
        self._store = open_ackers(ackers) if isinstance(ackers, str) else ackers
        self._topology = topology
        self._interval = interval
        self._anchors: dict[str, Anchors] = {}
        self._streams: dict[tuple[Origin, int], Stream] = {}
        self._filled: set[Stream] = set()
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def process(self, reference: str) -> Message:
        """Take a message that was read from a queue.

        A `with` block acks the message at its end, or fails it if the block raises an error. Without `with`, call
        `ack` or `fail` yourself after you have emitted all new messages. If this method raises an error, the message
        was not taken.

        :raises NotAReference: the text is not a reference to a message.
        :raises ForeignMessage: the message belongs to another topology.
        :raises StaleMessage: a newer attempt is open.
        :raises UnknownMessage: the transaction of the message is not open.
        :raises AckersUnavailable: the store of the ackers does not answer.
        """
        lineage, number = split(reference)
        anchors = self._anchors.get(lineage)
        if anchors is None:
            anchors = self._remember(lineage)
        elif anchors.refusal is not None:
            raise anchors.refusal
        return Message(anchors, number)

    def flush(self) -> None:
        """Send all acks and emitted messages immediately.

        :raises AckersUnavailable: a portion could not be sent. The next call sends it again.
        :raises MessageError: an acker has permanently refused a portion. All other portions are sent.
        """
        if errors := self._send():
            raise errors[0]

    def close(self) -> None:
        """Send all acks and emitted messages, and close the connection.

        :raises AckersUnavailable: a portion could not be sent.
        :raises MessageError: an acker has permanently refused a portion.
        """
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.flush()
        finally:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _remember(self, text: str) -> Anchors:
        lineage = Lineage.parse(text)
        origin = lineage.origin
        if self._topology not in (None, origin.topology):
            raise ForeignMessage(message=text, found=origin.topology, expected=self._topology)
        if lineage.trees:
            self._store.check(origin)
        if len(self._anchors) >= _REMEMBERED:
            # Messages in progress keep their `Anchors`, so the same tree may get a second stream.
            self._anchors = {}
            self._streams = {}
        streams = tuple((self._stream(origin, acker), root) for acker, root in lineage.trees)
        made = self._anchors[text] = Anchors(lineage, text, streams, self._store)
        return made

    def _stream(self, origin: Origin, acker: int) -> Stream:
        found = self._streams.get((origin, acker))
        if found is None:
            found = self._streams[origin, acker] = Stream(
                self._store, origin, acker, filled=self._fill
            )
        return found

    # --- sending

    def _fill(self, stream: Stream) -> None:
        self._filled.add(stream)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._send_regularly, name="airflow_tx-acks", daemon=True
            )
            self._thread.start()

    def _send_regularly(self) -> None:
        away = False
        while not self._ended.wait(self._interval):
            errors = self._send()
            for error in errors:
                if not (away and isinstance(error, AckersUnavailable)):
                    log.warning("%s", error)
            away = any(isinstance(error, AckersUnavailable) for error in errors)

    def _send(self) -> list[MessageError]:
        errors = list[MessageError]()
        with self._sending:
            for stream in self._filled.copy():
                self._filled.discard(stream)
                try:
                    if refused := stream.send():
                        errors.append(_unknown(stream.origin, refused))
                except AckersUnavailable as error:
                    self._filled.add(stream)
                    errors.append(error)
                except MessageError as error:
                    self._refuse(stream.origin, error)
                    errors.append(error)
                    if isinstance(error, AckersBehind):
                        self._fail(stream.origin, error)
        return errors

    def _fail(self, origin: Origin, error: AckersBehind) -> None:
        """Fail an attempt that can never complete, so that it does not wait for `processing_timeout`."""
        with suppress(MessageError):
            self._store.fail(origin, str(error))

    def _refuse(self, origin: Origin, error: MessageError) -> None:
        """Refuse further messages of an attempt, and messages that are anchored to its open messages."""
        for anchors in list(self._anchors.values()):
            if anchors.lineage.origin == origin:
                anchors.refusal = error


def _unknown(origin: Origin, roots: list[int]) -> UnknownMessage:
    trees = ", ".join(f"{root:016x}" for root in roots[:5])
    more = f" and {len(roots) - 5} more" if len(roots) > 5 else ""
    problem = (
        f"tree {trees}{more} is complete, or was never registered. The message was already acked"
    )
    return UnknownMessage(**origin.words, problem=problem)


# --- root emitter -------------------------------------------------------------------------------------------------
# For messages, a task of a transaction is a spout. Each message is the root of a tree, which is
# registered before the message is sent.


class RootEmitter:
    """The emitter of one try of a task.

    :param store: the store of the ackers.
    :param origin: the attempt.
    :param ackers: the number of ackers.
    :param task: the try of the task.
    :ivar count: the number of trees that the emitter has registered.
    """

    def __init__(
        self,
        store: AckerStore,
        origin: Origin,
        ackers: int,
        task: TaskTry,
    ) -> None:
        self.count = 0
        self._origin = origin
        self._store = store
        self._task = task
        emitter = emitter_text(task)
        self._streams = [
            Stream(store, self._origin, acker, emitter=emitter) for acker in range(ackers)
        ]

    def emit(self, count: int) -> list[str]:
        """Create messages, each the root of a tree, and register the trees.

        :raises EmittedBefore: an earlier try of the task has emitted messages in this attempt.
        :raises MessageError: the trees cannot be registered. The task must fail.
        """
        if not self.count:
            self._refuse_second_try()
        roots = [new_id() for _ in range(count)]
        for root in roots:
            self._streams[root % len(self._streams)].add(root, root, 1)
        for stream in self._streams:
            stream.send()
        self.count += count
        return [
            str(Reference(Lineage(self._origin, ((root % len(self._streams), root),)), root))
            for root in roots
        ]

    def _refuse_second_try(self) -> None:
        for other in self._store.report(self._origin).emitted:
            same = (other.task_id, other.map_index) == (self._task.task_id, self._task.map_index)
            if same and other.task_try != self._task.task_try:
                raise EmittedBefore(task=str(self._task), **self._origin.words)


# --- task emitter -------------------------------------------------------------------------------------------------
# This section creates the messages of one try of a task, or of its Spark application.


class TaskEmitter:
    """The emitter of a task. It connects to the ackers when the first message is created.

    :param origin: the attempt.
    :param task: the try of the task.
    :param ackers: the number of ackers, 0 if messages are not tracked, or None if the transaction has no messages.
    :param connect: a function that connects to the ackers for a `with` block.
    :param anchored: whether the transaction waits for the ack of the task.
    """

    def __init__(
        self,
        origin: Origin,
        task: TaskTry,
        ackers: int | None,
        connect: Callable[[], AbstractContextManager[AckerStore]],
        *,
        anchored: bool = True,
    ) -> None:
        self._origin = origin
        self._task = task
        self._ackers = ackers
        self._connect = connect
        self._anchored = anchored
        self._connected = ExitStack()
        self._roots: RootEmitter | None = None

    @property
    def trees(self) -> int:
        """Return the number of message trees that the task has started."""
        return 0 if self._roots is None else self._roots.count

    def emit(self, count: int, *, tracked: bool) -> list[str]:
        """Create messages, and return their references.

        :param count: the number of messages.
        :param tracked: whether the commit waits for the messages.
        :raises TransactionDefinitionError: the transaction has no ackers, or does not wait for this task.
        :raises MessageError: the ackers refuse the messages permanently, so a retry does not help. The run needs a
            replay.
        :raises AckersUnavailable: the ackers cannot be reached.
        """
        if not tracked or self._ackers == 0:
            lineage = Lineage(self._origin)
            return [str(Reference(lineage, new_id())) for _ in range(count)]
        if self._ackers is None:
            raise self._untracked(
                f"task {self._task} emits messages", "Write Transaction(..., ackers=1)"
            )
        if not self._anchored:
            problem = (
                f"task {self._task} emits messages, but is not upstream of the committer, so the committer would not "
                "wait"
            )
            raise self._untracked(problem, "Place the task upstream of the committer")
        if self._roots is None:
            store = self._connected.enter_context(self._connect())
            self._roots = RootEmitter(store, self._origin, self._ackers, self._task)
        return self._roots.emit(count)

    def close(self) -> None:
        """Close the connection to the store of the ackers."""
        self._connected.close()

    def _untracked(self, problem: str, remedy: str) -> TransactionDefinitionError:
        remedy = f"{remedy}. Or use emit(tracked=False) if no commit must wait for the messages."
        topology = self._origin.topology
        return TransactionDefinitionError(topology=topology, problem=problem, remedy=remedy)
