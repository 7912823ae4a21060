"""A message in a worker: what is emitted for it, its ack, its failure."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from airflow_tx.acks.api import AckerStore
from airflow_tx.acks.reference import Lineage, Reference, new_id
from airflow_tx.acks.stream import Stream
from airflow_tx.errors import MessageDone, MessageError, MixedAnchors

if TYPE_CHECKING:
    from typing_extensions import Self


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
