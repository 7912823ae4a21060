"""A message in a worker: what is emitted for it, its ack, its failure."""

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
# The sums of one worker for one acker, sent in numbered portions: a portion that is sent twice counts once.


TREES_A_PORTION = 10_000
"""Redis takes a million arguments in one command."""


class Stream:
    """The sums of one worker for one acker of one attempt.

    :param emitter: the task that registers the roots it adds; "": they are registered already.
    :param filled: called when there is something to send again.
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

        :param count: 1: it is emitted; -1: it is acked.
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
        """Send what has been added up; the roots that the acker does not know.

        A portion that was not answered is sent again, unchanged, before anything that was added since.

        :raises AckersUnavailable: it is to be called again.
        :raises StaleMessage, UnknownMessage, AckersBehind: the stream is of no more use.
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

    :param text: of the lineage.
    :param streams: of each tree, the stream to its acker, and the root.
    :ivar refusal: why no more of them are taken; None: they are.
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
    """One message that a worker has taken; it is acked once, or failed.

    :param anchors: the trees that it belongs to, and their collector.
    :param number: its random id.
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
        """The number of its transaction, the same however often that is replayed."""
        return self._anchors.lineage.origin.txid

    @property
    def attempt(self) -> int:
        """Which replay of the transaction it belongs to: keep what is made of different attempts apart."""
        return self._anchors.lineage.origin.attempt

    @property
    def reference(self) -> str:
        return f"{self._anchors.text}:{self.id:016x}"

    def emit(self, *others: Message) -> str:
        """Make a message anchored to this one, and to `others`: their trees are complete only once it is acked, too.

        :return: its reference, which may leave at once.
        :raises MessageDone: this one, or another anchor, is acked or failed already.
        :raises MixedAnchors: they are of different attempts.
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
        """Make a message that nothing waits for, and whose loss fails nothing; its reference."""
        self._check("Emit for")
        return str(Reference(Lineage(self._anchors.lineage.origin), new_id()))

    def ack(self) -> None:
        """Say that it is processed, and that all new messages are emitted.

        :raises MessageDone: it is acked or failed already.
        :raises StaleMessage: its transaction was replayed.
        """
        self._check("Ack")
        self._done = "acked"
        number = self.id
        for stream, root in self._anchors.streams:
            stream.add(root, number, -1)

    def fail(self, reason: str = "") -> None:
        """Fail its transaction at once: the attempt is not committed, and is replayed.

        :raises MessageDone: it is acked or failed already.
        :raises MessageError: the ackers do not know; the transaction is replayed when its time is up.
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
        # Once in each tree, however many of its anchors stand there: twice would cancel out.
        for (_, root), stream in trees.items():
            stream.add(root, number, 1)
        return str(Reference(Lineage(origin, tuple(trees)), number))

    def _check(self, step: str) -> None:
        if self._done:
            raise MessageDone(step=step, message=self.reference, done=self._done)
        if self._anchors.refusal is not None:
            raise self._anchors.refusal


# --- collector ----------------------------------------------------------------------------------------------------
# A worker's side: it takes messages, emits further ones anchored to them, and acks. Source: Storm's collectors.


log = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""Lineages that are kept, each a few hundred bytes; others are read again."""


class Collector:
    """Takes messages from anywhere, and tells their ackers what becomes of them.

        with Collector("redis://queues/0") as collector:
            while True:
                reference, sentence = json.loads(queue.pop())
                with collector.process(reference) as message:
                    for word in sentence.split():
                        words.push(json.dumps([message.emit(), word]))

    A thread sends the sums every `interval` seconds, for any number of messages. A worker that is killed before has
    acked no message of these, and the transaction is replayed. Make it after a fork, not before.

    :param ackers: the store of the ackers, or where it is: see `open_ackers`.
    :param topology: refuse messages of others; None: take all.
    :param interval: seconds between two sendings.
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
        """Take a message: `with` acks it at the end of the block, or fails it if the block raises an error.

        Without `with`, call `ack` or `fail` yourself after you have emitted all new messages. If the method raises an
        error, the message is not taken.

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
        """Send what has been added up until now.

        :raises AckersUnavailable: a part is still to be sent; the next call sends it.
        :raises MessageError: an acker refuses a part finally; everything else is sent.
        """
        if errors := self._send():
            raise errors[0]

    def close(self) -> None:
        """Flush, and give back the connection. Raises as `flush`."""
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
            # Messages that are in work keep theirs; a tree may have a second stream.
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
        """Fail an attempt that never becomes complete, before its time is up."""
        with suppress(MessageError):
            self._store.fail(origin, str(error))

    def _refuse(self, origin: Origin, error: MessageError) -> None:
        """Take no more messages of an attempt, and no messages that are made of open ones."""
        for anchors in list(self._anchors.values()):
            if anchors.lineage.origin == origin:
                anchors.refusal = error


def _unknown(origin: Origin, roots: list[int]) -> UnknownMessage:
    trees = ", ".join(f"{root:016x}" for root in roots[:5])
    more = f" and {len(roots) - 5} more" if len(roots) > 5 else ""
    problem = (
        f"tree {trees}{more} is complete, or was never registered; the message was acked before"
    )
    return UnknownMessage(**origin.words, problem=problem)


# --- root emitter -------------------------------------------------------------------------------------------------
# The task of a transaction as a spout: its messages are the roots of trees, registered before they leave.


class RootEmitter:
    """Emits the messages of one try of a task.

    :param ackers: among which the trees are divided.
    :ivar count: how many trees it has registered.
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
        """Make messages, each the root of a tree. No reference leaves before every acker knows its tree.

        :raises EmittedBefore: an earlier try of the task has emitted messages in this attempt.
        :raises MessageError: they cannot be registered; the task is to fail.
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
# The messages of one try of a task, also of the Spark application that does its work.


class TaskEmitter:
    """Emits messages, connected to the ackers from the first one on.

    :param ackers: among which the trees are divided; 0: they are not tracked; None: the transaction has no messages.
    :param connect: to the ackers, as long as the block.
    :param anchored: whether the transaction waits for the task.
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
        """How many trees it has begun."""
        return 0 if self._roots is None else self._roots.count

    def emit(self, count: int, *, tracked: bool) -> list[str]:
        """Make messages; their references.

        :raises TransactionDefinitionError: nothing would wait for them.
        :raises MessageError: they are refused, and would be in another try; the run is to be replayed.
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
            problem = f"task {self._task} emits messages, and is not upstream of the committer, which would not wait"
            raise self._untracked(problem, "Put it upstream of the committer")
        if self._roots is None:
            store = self._connected.enter_context(self._connect())
            self._roots = RootEmitter(store, self._origin, self._ackers, self._task)
        return self._roots.emit(count)

    def close(self) -> None:
        """Give back the connection."""
        self._connected.close()

    def _untracked(self, problem: str, remedy: str) -> TransactionDefinitionError:
        remedy = f"{remedy}, or emit(tracked=False) if nothing has to wait for them."
        topology = self._origin.topology
        return TransactionDefinitionError(topology=topology, problem=problem, remedy=remedy)
