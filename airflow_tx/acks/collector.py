"""A worker's side: it takes messages, emits further ones anchored to them, and acks. Source: Storm's collectors."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from airflow_tx.acks.api import AckerStore
from airflow_tx.acks.location import open_ackers
from airflow_tx.acks.message import Anchors, Message
from airflow_tx.acks.reference import Lineage, Origin, split
from airflow_tx.acks.stream import Stream
from airflow_tx.errors import (
    AckersBehind,
    AckersUnavailable,
    ForeignMessage,
    MessageError,
    UnknownMessage,
)

if TYPE_CHECKING:
    from typing_extensions import Self

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
            self._thread = threading.Thread(target=self._run, name="airflow_tx-acks", daemon=True)
            self._thread.start()

    def _run(self) -> None:
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
