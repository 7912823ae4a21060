"""What a source needs of messages in Redis that come in an order: numbered keys, a list, a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, TypeAlias

from airflow_tx.errors import OtherSource, SourceError
from airflow_tx.sources.api import Batch, Json
from airflow_tx.sources.redis.server import RedisDatabase

Raw: TypeAlias = "bytes | dict[bytes, bytes]"
"""A message as it lies in Redis: a text, or the fields of a stream's entry."""

PAGE = 1_000
"""Messages that are asked for at once."""
_SAMPLE = 100


@dataclass(frozen=True)
class Gone:
    """Messages that come next and that the server does not have.

    :param description: which they are, in words.
    :param resume_at: the position from which there are messages again.
    """

    description: str
    resume_at: Json


@dataclass(frozen=True)
class LogSnapshot:
    """What lies behind a place.

    :param place: the place, read; None for the first look.
    :param available: how many messages there are, as the server says; some may be missing in between.
    :param gone: those that are known to be gone.
    """

    place: Any
    available: int
    gone: Gone | None = None


@dataclass(frozen=True)
class MessageLog(ABC):
    """The messages of one partition, by their place in the order.

    :param database: where they lie.
    :param key: of the list or the stream; of numbered messages, what their keys begin with.
    """

    place_name: ClassVar[str]
    """The column that tells a message's place: number or id."""

    database: RedisDatabase
    key: str

    @abstractmethod
    def look(self, client: Any, place: Json) -> LogSnapshot:
        """See what comes after a place, in one round trip.

        :param place: None: from the first message on.
        :raises PartitionUnavailable: there is nothing to look at.
        :raises SourceError: what is there is no such log, or the place is another source's.
        """

    @abstractmethod
    def take(self, client: Any, look: LogSnapshot, count: int) -> Batch | Gone | None:
        """Decide the next messages, at most `count`; those before a missing one, if one is missing.

        :return: None if there is none; `Gone` if the first one is missing.
        """

    def passed(self, client: Any, look: LogSnapshot) -> None:
        """Tell the server that everything before a place was taken, if it wants to know."""

    @abstractmethod
    def parts(self, client: Any, rows: Any, size: int) -> list[dict[str, Any]]:
        """The messages that `rows` names, cut into parts of at most `size`.

        :raises SourceError: one of them is gone, or is another one now.
        """

    @abstractmethod
    def read(self, client: Any, part: Any) -> Iterator[tuple[int | str, Raw]]:
        """Exactly the messages of a part, each with its place.

        :raises SourceError: one is gone.
        """

    @abstractmethod
    def sizes(self, client: Any, look: LogSnapshot) -> Sequence[int]:
        """Measure the bytes of some of the messages that come next."""

    @abstractmethod
    def named(self, place: int | str) -> str:
        """Word one message."""

    def count(self, part: Any) -> int:
        return int(part["quantity"])

    def gone(self, what: str) -> SourceError:
        """Make the error for a batch whose messages are gone."""
        remedy = (
            "Bring them back, then clear the task; if they are gone for good: airflow tx skip TOPOLOGY TXID --why TEXT"
        )
        return self.database.refused(f"{what} ({self.database.where})", remedy)

    def foreign(self, place: Json) -> OtherSource:
        """Make the error for a position that is none of this log."""
        problem = f"position {str(place)[:80]!r} of partition {self.database.partition} is no place of {self}"
        return OtherSource(source=self.database.source, problem=problem)

    def unlike(self, key: str, reply: Exception) -> SourceError:
        """Make the error for a key of another type."""
        problem = f"key {key!r} in {self.database.where} is not what is read there: {str(reply)[:120]}"
        return self.database.refused(problem, "Name another key, or remove this one.")

    def checked(self, key: str, reply: Any) -> Any:
        """A reply of a pipeline, unless the key is of another type.

        :raises SourceError: it is.
        """
        if isinstance(reply, Exception):
            if str(reply).startswith("WRONGTYPE"):
                raise self.unlike(key, reply)
            raise reply
        return reply


def sampled(look: LogSnapshot) -> int:
    """Return of how many messages the size is measured."""
    return min(look.available, _SAMPLE)


def message_digest(message: bytes) -> str:
    """Fingerprint a message."""
    return blake2b(message, digest_size=8).hexdigest()


def spelled(numbers: Sequence[int]) -> str:
    """Spell numbers, runs as ranges: 3, 7 to 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:10]]
    return ", ".join(told) + (" ..." if len(runs) > 10 else "")
