"""Messages of Redis that are counted: what numbered keys and lists have in common.

The server hands out numbers in order. One that was killed and forgot its latest messages gives their numbers again: so
a position is the next number and a digest of the message before it, which is another one then.

Source: book chapter 8 (RQ).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_tx.sources.api import Json
from airflow_tx.sources.partitions import Gone, LogBatch, LogSnapshot
from airflow_tx.sources.redis.log import PAGE, MessageLog, message_digest, spelled


@dataclass(frozen=True)
class Cursor:
    """A position among counted messages.

    :param next: number of the message that comes next.
    :param last: digest of the one before it; None if it is unknown.
    :param life: how often numbers were given again, so that no position comes twice.
    """

    next: int
    last: str | None = None
    life: int = 0

    def to_json(self) -> Json:
        return {name: value for name, value in vars(self).items() if value or name == "next"}


def pages(first: int, end: int) -> list[range]:
    """Divide the numbers from `first` up to `end` into requests."""
    return [range(start, min(start + PAGE, end)) for start in range(first, end, PAGE)]


@dataclass(frozen=True)
class CountedMessages(MessageLog):
    id_column: ClassVar[str] = "number"

    def cursor(self, position: Json) -> Cursor:
        """Read a position of the ledger; one of another log is refused."""
        try:
            return Cursor(**position)  # type: ignore[arg-type]
        except TypeError:
            raise self.foreign(position) from None

    def loss(self, cursor: Cursor, end: int, before: bytes | None) -> Gone | None:
        """Find out whether the server went back: by its next number, and by what is before the cursor now."""
        went_back = f"{self.database.where} went back"
        if end < cursor.next:
            what = f"{went_back}: it would give {spelled(range(end, cursor.next))} again; what it held from "
            after = Cursor(end, life=cursor.life + 1)
            return Gone(
                f"{what}{cursor.next} on is gone, and it is read from {end} on", after.to_json()
            )
        if before is not None and cursor.last is not None and message_digest(before) != cursor.last:
            what = f"{went_back} and gave numbers again: {self.named(cursor.next - 1)} is another one than was taken; "
            after = replace(cursor, last=message_digest(before), life=cursor.life + 1)
            return Gone(f"{what}those before {cursor.next} that were not taken", after.to_json())
        return None

    def log_batch(self, snapshot: LogSnapshot, count: int, last: bytes) -> LogBatch:
        """Make the portion of so many messages from the cursor on."""
        cursor: Cursor = snapshot.position
        after = replace(cursor, next=cursor.next + count, last=message_digest(last))
        rows: Json = {"from": cursor.next, "quantity": count, "last": after.last}
        ended = count == snapshot.available
        return LogBatch(rows, after.to_json(), count, start=cursor.to_json(), ended=ended)

    def check_last(self, rows: Any, last: bytes | None) -> None:
        """Refuse replaced messages: since numbers are given in order, the last one would be replaced, too."""
        if last is not None and message_digest(last) != rows["last"]:
            first = rows["from"]
            end = rows["from"] + rows["quantity"]
            what = f"{self.named(end - 1)} is another one than was taken: of {first} to {end - 1} some are gone"
            raise self.gone(what)

    def parts(self, client: Any, rows: Any, size: int) -> list[dict[str, Any]]:
        self.check(client, rows)
        first = rows["from"]
        end = rows["from"] + rows["quantity"]
        return [{"from": at, "quantity": min(size, end - at)} for at in range(first, end, size)]

    @abstractmethod
    def check(self, client: Any, rows: Any) -> None:
        """Refuse a batch of which a message is gone or replaced, in as few round trips as the server allows."""
