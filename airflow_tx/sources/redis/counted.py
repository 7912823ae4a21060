"""Messages of Redis that are counted: what numbered keys and lists have in common.

The server hands out numbers in order. One that was killed and forgot its latest messages gives their numbers again:
so a place is the next number and a digest of the message before it, which is another one then.

Source: book chapter 8 (RQ).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_tx.sources.api import Batch, Json
from airflow_tx.sources.redis.log import PAGE, Gone, MessageLog, message_digest, spelled


@dataclass(frozen=True)
class Cursor:
    """A place among counted messages.

    :param next: number of the message that comes next.
    :param last: digest of the one before it; None if nobody knows.
    :param life: how often numbers were given anew, so that no place comes twice.
    """

    next: int
    last: str | None = None
    life: int = 0

    def to_json(self) -> Json:
        found: dict[str, Json] = {"next": self.next}
        if self.last is not None:
            found["last"] = self.last
        if self.life:
            found["life"] = self.life
        return found


def pages(first: int, end: int) -> list[range]:
    """The numbers from `first` up to `end`, as many at once as the server is asked for."""
    return [range(start, min(start + PAGE, end)) for start in range(first, end, PAGE)]


@dataclass(frozen=True)
class CountedMessages(MessageLog):
    place_name: ClassVar[str] = "number"

    def cursor(self, place: Json) -> Cursor:
        """A place as the ledger keeps it.

        :raises SourceError: it is none.
        """
        try:
            return Cursor(**place)  # type: ignore[arg-type]
        except TypeError:
            raise self.foreign(place) from None

    def judged(self, cursor: Cursor, end: int, before: bytes | None) -> Gone | None:
        """Whether the server still is where it was.

        :param end: the number that its next message gets.
        :param before: the message before the cursor; None if it is not there any more.
        """
        if end < cursor.next:
            told = f"{self.database.where} went back: it would give {spelled(range(end, cursor.next))} anew"
            after = Cursor(end, life=cursor.life + 1)
            return Gone(
                f"{told}; what it held from {cursor.next} on is gone, and it is read from {end} on", after.to_json()
            )
        if before is not None and cursor.last is not None and message_digest(before) != cursor.last:
            told = (
                f"{self.database.where} went back and gave numbers anew: {self.named(cursor.next - 1)} is another one"
            )
            after = replace(cursor, last=message_digest(before), life=cursor.life + 1)
            return Gone(f"{told} than was taken; those before {cursor.next} that were not taken", after.to_json())
        return None

    def taken(self, cursor: Cursor, count: int, last: bytes) -> Batch:
        """Make the batch of so many messages from the cursor on."""
        after = replace(cursor, next=cursor.next + count, last=message_digest(last))
        rows: Json = {"from": cursor.next, "quantity": count, "last": after.last}
        return Batch(rows, after.to_json(), count, start=cursor.to_json())

    def check_last(self, rows: Any, last: bytes | None) -> None:
        """Refuse a batch of which messages were replaced: since numbers are given in order, the last one would be, too.

        :raises SourceError: they were.
        """
        if last is not None and message_digest(last) != rows["last"]:
            first, end = rows["from"], rows["from"] + rows["quantity"]
            raise self.gone(
                f"{self.named(end - 1)} is another one than was taken: of {first} to {end - 1} some are gone"
            )

    def parts(self, client: Any, rows: Any, size: int) -> list[dict[str, Any]]:
        self.check(client, rows)
        first, end = rows["from"], rows["from"] + rows["quantity"]
        return [{"from": at, "quantity": min(size, end - at)} for at in range(first, end, size)]

    @abstractmethod
    def check(self, client: Any, rows: Any) -> None:
        """Check that all messages of a batch are there, in as few round trips as the server has to be asked in.

        :raises SourceError: one is gone, or is another one now.
        """
