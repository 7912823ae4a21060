"""Messages in Redis that are counted: the book's numbered keys with their cursor, and lists.

The server hands out numbers in order. One that was killed and forgot its latest messages gives their numbers again:
so a place is the next number and a digest of the message before it, which is another one then.

Source: book chapter 8 (RQ).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_tx.sources.api import Batch, Json
from airflow_tx.sources.redis.log import PAGE, Gone, Look, MessageLog, digest, sampled, spelled

NEXT_READ, NEXT_WRITE = "NEXT_READ", "NEXT_WRITE"


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
        """As the ledger keeps it."""
        found: dict[str, Json] = {"next": self.next}
        if self.last is not None:
            found["last"] = self.last
        if self.life:
            found["life"] = self.life
        return found


def _pages(first: int, end: int) -> list[range]:
    return [range(start, min(start + PAGE, end)) for start in range(first, end, PAGE)]


@dataclass(frozen=True)
class _Counted(MessageLog):
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
        if before is not None and cursor.last is not None and digest(before) != cursor.last:
            told = (
                f"{self.database.where} went back and gave numbers anew: {self.named(cursor.next - 1)} is another one"
            )
            after = replace(cursor, last=digest(before), life=cursor.life + 1)
            return Gone(f"{told} than was taken; those before {cursor.next} that were not taken", after.to_json())
        return None

    def taken(self, cursor: Cursor, count: int, last: bytes) -> Batch:
        """The batch of so many messages from the cursor on."""
        after = replace(cursor, next=cursor.next + count, last=digest(last))
        rows: Json = {"from": cursor.next, "quantity": count, "last": after.last}
        return Batch(rows, after.to_json(), count, begin=cursor.to_json())

    def check_last(self, rows: Any, last: bytes | None) -> None:
        """Refuse a batch of which messages were replaced: since numbers are given in order, the last one would be, too.

        :raises SourceError: they were.
        """
        if last is not None and digest(last) != rows["last"]:
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


@dataclass(frozen=True)
class NumberedMessages(_Counted):
    """The book's: message 17 under the key `17`, and the number of the next one under NEXT_WRITE.

    :param key: put before every key.
    :param move_cursor: whether NEXT_READ is set to where the source stands, as the book's emitter does.
    """

    move_cursor: bool = False

    def __str__(self) -> str:
        return f"messages under numbered keys ({self.key}{NEXT_WRITE})"

    def named(self, place: int | str) -> str:
        return f"message {place} (key {self.key}{place})"

    def look(self, client: Any, place: Json) -> Look:
        cursor = None if place is None else self.cursor(place)
        names = [NEXT_WRITE, NEXT_READ if cursor is None else str(cursor.next - 1)]
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.get(self.key + name)
        end, other = pipeline.execute(raise_on_error=False)
        end = self._number(NEXT_WRITE, self.checked(self.key + names[0], end))
        if cursor is None:
            if end is None:
                raise self.database.unavailable(
                    f"there is no key {self.key}{NEXT_WRITE} in {self.database.where}: nobody ever wrote there"
                )
            cursor = Cursor(self._number(NEXT_READ, self.checked(self.key + names[1], other)) or 1)
            return Look(cursor, max(end - cursor.next, 0))
        end = end or 1
        gone = self.judged(cursor, end, self.checked(self.key + names[1], other) if cursor.next > 1 else None)
        return Look(cursor, max(end - cursor.next, 0), gone)

    def take(self, client: Any, look: Look, count: int) -> Batch | Gone | None:
        cursor, end = look.place, look.place.next + look.available
        stop = min(cursor.next + count, end)
        if stop == cursor.next:
            return None
        there, last = self._all_and_last(client, cursor.next, stop)
        if not there:
            missing = next(self._missing(client, cursor.next, stop))
            if missing == cursor.next:
                return self._gap(client, cursor, end)
            stop, last = missing, self.checked(self._key(missing - 1), client.get(self._key(missing - 1)))
        return self.taken(cursor, stop - cursor.next, last)

    def passed(self, client: Any, look: Look) -> None:
        if self.move_cursor:
            client.set(self.key + NEXT_READ, look.place.next)

    def check(self, client: Any, rows: Any) -> None:
        first, end = rows["from"], rows["from"] + rows["quantity"]
        there, last = self._all_and_last(client, first, end)
        if not there:
            raise self.gone(
                f"messages {spelled(list(self._missing(client, first, end)))} of {first} to {end - 1} are gone"
            )
        self.check_last(rows, last)

    def read(self, client: Any, part: Any) -> Iterator[tuple[int | str, bytes | dict[bytes, bytes]]]:
        end = part["from"] + part["quantity"]
        for numbers in _pages(part["from"], end):
            messages = client.mget([self._key(number) for number in numbers])
            lost = [number for number, message in zip(numbers, messages, strict=True) if message is None]
            if lost:
                self._check_types(client, lost)
                raise self.gone(f"messages {spelled(lost)} of {part['from']} to {end - 1} are gone")
            yield from zip(numbers, messages, strict=True)

    def sizes(self, client: Any, look: Look) -> Sequence[int]:
        pipeline = client.pipeline(transaction=False)
        for number in range(look.place.next, look.place.next + sampled(look)):
            pipeline.strlen(self._key(number))
        return [self.checked("of a message", reply) for reply in pipeline.execute(raise_on_error=False)]

    def _gap(self, client: Any, cursor: Cursor, end: int) -> Gone:
        first = cursor.next
        after = next(self._existing(client, first, end), end)
        what = f"messages {spelled(range(first, after))} (keys {self.key}{first} ...) are not in {self.database.where}"
        return Gone(what, Cursor(after, life=cursor.life).to_json())

    def _all_and_last(self, client: Any, first: int, end: int) -> tuple[bool, Any]:
        """Whether all of these are there, and the last one."""
        pipeline = client.pipeline(transaction=False)
        pages = _pages(first, end)
        for page in pages:
            pipeline.exists(*map(self._key, page))
        pipeline.get(self._key(end - 1))
        replies = pipeline.execute(raise_on_error=False)
        *counts, last = (self.checked(self._key(end - 1), reply) for reply in replies)
        return counts == list(map(len, pages)), last

    def _missing(self, client: Any, first: int, end: int) -> Iterator[int]:
        return (number for number, there in self._each(client, first, end) if not there)

    def _existing(self, client: Any, first: int, end: int) -> Iterator[int]:
        return (number for number, there in self._each(client, first, end) if there)

    def _each(self, client: Any, first: int, end: int) -> Iterator[tuple[int, bool]]:
        for numbers in _pages(first, end):
            pipeline = client.pipeline(transaction=False)
            for number in numbers:
                pipeline.exists(self._key(number))
            yield from zip(numbers, map(bool, pipeline.execute()), strict=True)

    def _check_types(self, client: Any, numbers: Sequence[int]) -> None:
        for number in numbers[:10]:
            found = client.type(self._key(number))
            if found not in (b"none", b"string"):
                problem = f"{self.named(number)} in {self.database.where} is a {found.decode()}, not a text"
                raise self.database.refused(problem, "Put the message there, then clear the task; or skip the batch.")

    def _number(self, name: str, value: bytes | None) -> int | None:
        try:
            return None if value is None else int(value)
        except ValueError:
            problem = f"key {self.key}{name} in {self.database.where} holds {value!r:.80}, which is no number"
            raise self.database.refused(problem, "Set it to the number of the next message.") from None

    def _key(self, number: int) -> str:
        return f"{self.key}{number}"


@dataclass(frozen=True)
class ListedMessages(_Counted):
    """A list that only grows, at its end (RPUSH): the number of a message is its index, from 0 on."""

    def __str__(self) -> str:
        return f"the list {self.key}"

    def named(self, place: int | str) -> str:
        return f"message {place} of the list {self.key}"

    def look(self, client: Any, place: Json) -> Look:
        cursor = Cursor(0) if place is None else self.cursor(place)
        length, before = self._end_and(client, cursor.next - 1)
        if not length and not cursor.next:
            raise self.database.unavailable(f"there is no list {self.key} in {self.database.where}")
        gone = self.judged(cursor, length, before if cursor.next else None)
        return Look(cursor, max(length - cursor.next, 0), gone)

    def take(self, client: Any, look: Look, count: int) -> Batch | Gone | None:
        count = min(count, look.available)
        if not count:
            return None
        _, last = self._end_and(client, look.place.next + count - 1)
        if last is None:
            raise self.database.unavailable(f"the list {self.key} in {self.database.where} has become shorter")
        return self.taken(look.place, count, last)

    def check(self, client: Any, rows: Any) -> None:
        end = rows["from"] + rows["quantity"]
        length, last = self._end_and(client, end - 1)
        if length < end:
            lost = spelled(range(max(length, rows["from"]), end))
            raise self.gone(f"messages {lost} of the list {self.key} are gone, it has {length}")
        self.check_last(rows, last)

    def read(self, client: Any, part: Any) -> Iterator[tuple[int | str, bytes | dict[bytes, bytes]]]:
        end = part["from"] + part["quantity"]
        for numbers in _pages(part["from"], end):
            messages = client.lrange(self.key, numbers[0], numbers[-1])
            if len(messages) < len(numbers):
                lost = spelled(numbers[len(messages) :])
                raise self.gone(f"messages {lost} of the list {self.key} are gone")
            yield from zip(numbers, messages, strict=True)

    def sizes(self, client: Any, look: Look) -> Sequence[int]:
        first = look.place.next
        return [len(message) for message in client.lrange(self.key, first, first + sampled(look) - 1)]

    def _end_and(self, client: Any, index: int) -> tuple[int, bytes | None]:
        """How many there are, and one of them."""
        pipeline = client.pipeline(transaction=True)
        pipeline.llen(self.key)
        pipeline.lindex(self.key, max(index, 0))
        length, message = (self.checked(self.key, reply) for reply in pipeline.execute(raise_on_error=False))
        return length, message
