"""The entries of a Redis stream, by id; what is missing among them is told by what the server counts.

Redis 7 counts what was ever added to a stream. A place has that count up to itself, so the count of now less its own is
what there has to be behind it: less, and entries were trimmed or deleted; more, and the server forgot some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_tx.sources.api import Batch, Json
from airflow_tx.sources.redis.log import PAGE, Gone, LogSnapshot, MessageLog, sampled

FIRST = "0-0"
_STEP = 10_000
# Entries behind ARGV[1] up to ARGV[2], at most ARGV[3]: how many, the id of the last one, and what the server says of
# the stream at that moment. The entries themselves stay where they are.
_FIND = """
local found = {}
if ARGV[3] ~= '0' then found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], ARGV[2], 'COUNT', ARGV[3]) end
local info, said = redis.call('XINFO', 'STREAM', KEYS[1]), {}
for i = 1, #info, 2 do said[info[i]] = info[i + 1] end
local first, final = said['first-entry'], said['last-entry']
local here = #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])
return {here, #found, #found > 0 and found[#found][1] or '', said['length'], said['last-generated-id'],
    first and first[1] or '', final and final[1] or '', said['entries-added'] or -1, said['max-deleted-entry-id'] or ''}
"""


def order(id_: str) -> tuple[int, int]:
    """What ids are compared by.

    :raises ValueError: it is none.
    """
    milliseconds, _, number = id_.partition("-")
    return int(milliseconds), int(number)


@dataclass(frozen=True)
class StreamPlace:
    """A place in a stream.

    :param after: id of the last entry that was taken.
    :param read: how many entries were ever added up to it; None if the server does not count.
    :param deleted: the greatest id that had been deleted when the batch was decided.
    :param life: how often the server went back, so that no place comes twice.
    """

    after: str = FIRST
    read: int | None = None
    deleted: str = FIRST
    life: int = 0

    def to_json(self) -> Json:
        found: dict[str, Json] = {"after": self.after, "deleted": self.deleted}
        if self.read is not None:
            found["read"] = self.read
        if self.life:
            found["life"] = self.life
        return found


@dataclass(frozen=True)
class Said:
    """What the server says of a stream, and of the entries behind a place.

    :param here: whether the entry at the place is there.
    :param found: how many entries were found behind it.
    :param to: id of the last of them.
    :param length: how many entries the stream has.
    :param last: the greatest id that was ever given.
    :param first: id of the first entry there is; None if there is none.
    :param final: id of the last entry there is.
    :param added: entries that were ever added; None on a server that does not count.
    :param deleted: the greatest id that was ever deleted.
    """

    here: bool
    found: int
    to: str
    length: int
    last: str
    first: str | None
    final: str | None
    added: int | None
    deleted: str


@dataclass(frozen=True)
class StreamMessages(MessageLog):
    """The entries of a stream."""

    place_name: ClassVar[str] = "id"

    def __str__(self) -> str:
        return f"the stream {self.key}"

    def named(self, place: int | str) -> str:
        return f"entry {place} of the stream {self.key}"

    def look(self, client: Any, place: Json) -> LogSnapshot:
        at = None if place is None else self._place(place)
        said = self._find(client, at.after if at else FIRST, "+", 0)
        if said is None:
            if at is None or at.after == FIRST:
                raise self.database.unavailable(f"there is no stream {self.key} in {self.database.where}")
            told = f"the stream {self.key} is gone from {self.database.where}, and all that it had after {at.after}"
            return LogSnapshot(at, 0, Gone(told, StreamPlace(read=0, life=at.life + 1).to_json()))
        if at is None:
            at = self._beginning(said)
        gone = self._judged(at, said)
        if gone is None and self._doubtful(at, said):
            gone = self._walk(client, at, said.length)[2]
        return LogSnapshot(replace(at, deleted=said.deleted), self._available(at, said), gone)

    def take(self, client: Any, look: LogSnapshot, count: int) -> Batch | Gone | None:
        at: StreamPlace = look.place
        taken, after, gone = self._walk(client, at, count)
        if gone is not None or not taken:
            return gone
        return Batch(
            {"after": at.after, "to": after.after, "quantity": taken}, after.to_json(), taken, start=at.to_json()
        )

    def _walk(self, client: Any, at: StreamPlace, count: int) -> tuple[int, StreamPlace, Gone | None]:
        """Go on by so many entries: how many there were, the place behind them, and what is missing."""
        taken, to = 0, at.after
        while taken < count:
            step = min(count - taken, _STEP)
            said = self._find(client, to, "+", step)
            if said is None:
                raise self.database.unavailable(f"the stream {self.key} is gone from {self.database.where}")
            if not taken and (gone := self._judged(at, said)):
                return 0, at, gone
            taken, to = taken + said.found, said.to or to
            if said.found < step or to == said.final:
                # A place of a server that did not count gets its count here: all that was added is before it.
                read = said.added if at.read is None else at.read + taken
                return taken, replace(at, after=to, read=read), self._miscounted(at, said, taken, to)
        return taken, replace(at, after=to, read=None if at.read is None else at.read + taken), None

    def parts(self, client: Any, rows: Any, size: int) -> list[dict[str, Any]]:
        parts, found, to = [], 0, rows["after"]
        while True:
            said = self._find(client, to, rows["to"], size)
            if said is None or not said.found:
                break
            parts.append({"after": to, "to": said.to, "quantity": said.found})
            found, to = found + said.found, said.to
        if (found, to) != (rows["quantity"], rows["to"]):
            between = f"after {rows['after']} up to {rows['to']}"
            raise self.gone(
                f"of {rows['quantity']} entries {between} of the stream {self.key} {found} are there, the last one {to}"
            )
        return parts

    def read(self, client: Any, part: Any) -> Iterator[tuple[int | str, bytes | dict[bytes, bytes]]]:
        found, after = 0, part["after"]
        while True:
            entries = client.xrange(self.key, f"({after}", part["to"], count=PAGE)
            for id_, fields in entries:
                after = id_.decode()
                if fields is not None:
                    found += 1
                    yield after, fields
            if len(entries) < PAGE:
                break
        if found != part["quantity"]:
            between = f"after {part['after']} up to {part['to']}"
            raise self.gone(f"of {part['quantity']} entries {between} of the stream {self.key} {found} are there")

    def sizes(self, client: Any, look: LogSnapshot) -> Sequence[int]:
        entries = client.xrange(self.key, f"({look.place.after}", "+", count=sampled(look) or 1)
        return [sum(len(name) + len(value) for name, value in fields.items()) for _, fields in entries if fields]

    def _beginning(self, said: Said) -> StreamPlace:
        return StreamPlace(read=None if said.added is None else said.added - said.length, deleted=said.deleted)

    def _available(self, at: StreamPlace, said: Said) -> int:
        if at.read is None or said.added is None or self._all_after(at, said):
            return said.length  # at most
        return min(max(said.added - at.read, 0), said.length)

    @staticmethod
    def _all_after(at: StreamPlace, said: Said) -> bool:
        """Whether every entry that there is comes after the place."""
        return said.first is None or order(said.first) > order(at.after)

    def _judged(self, at: StreamPlace, said: Said) -> Gone | None:
        """Whether all that comes after a place is there, as far as the server's counters tell."""
        if order(said.last) < order(at.after):
            told = f"the stream {self.key} in {self.database.where} went back from {at.after} to {said.last}; what came"
            told += f" after {at.after} is gone, and the {said.length} entries that it has are taken for taken"
            after = StreamPlace(said.last, said.added, said.deleted, at.life + 1)
            return Gone(told, after.to_json())
        if at.read is None or said.added is None or not self._all_after(at, said):
            return None
        return self._gap(at, said.added - at.read - said.length, said, f"before {said.first}" if said.first else "")

    def _doubtful(self, at: StreamPlace, said: Said) -> bool:
        """Whether only counting tells if entries behind a place are missing."""
        if at.read is None or said.added is None:
            return False
        # Since the last batch an entry was deleted that may not have been taken.
        deleted = order(said.deleted) > max(order(at.after), order(at.deleted))
        # The counter says that there are entries, and there are none; or the other way round.
        ended = said.final is None or order(said.final) <= order(at.after)
        # Entries before it are there and it is not: it was deleted, or the server forgot it.
        forgotten = not said.here and not self._all_after(at, said)
        return deleted or forgotten or (said.added <= at.read) != ended

    def _miscounted(self, at: StreamPlace, said: Said, taken: int, to: str) -> Gone | None:
        """Whether entries are missing among those behind a place, once the last of them is counted."""
        if at.read is None or said.added is None:
            return None
        return self._gap(at, said.added - at.read - taken, said, f"up to {to}")

    def _gap(self, at: StreamPlace, missing: int, said: Said, until: str) -> Gone | None:
        if not missing or at.read is None:
            return None
        where = f"the stream {self.key} in {self.database.where}"
        between = f"after {at.after}" + (f" and {until}" if until else "")
        after = StreamPlace(at.after, at.read + missing, said.deleted, at.life + 1)
        if missing > 0:
            return Gone(f"{missing} entries {between} of {where} are gone: trimmed or deleted", after.to_json())
        told = f"{where} went back: it knows {-missing} entries less than were taken; what it forgot {between} is gone"
        return Gone(told, after.to_json())

    def _find(self, client: Any, after: str, to: str, count: int) -> Said | None:
        from redis.exceptions import ResponseError

        try:
            reply = client.eval(_FIND, 1, self.key, after, to, count)
        except ResponseError as error:
            if "no such key" in str(error):
                return None
            self.checked(self.key, error)
            raise
        here, found, end, length, last, first, final, added, deleted = (_plain(part) for part in reply)
        counted = None if added == -1 else added
        return Said(bool(here), found, end, length, last, first or None, final or None, counted, deleted or FIRST)

    def _place(self, place: Json) -> StreamPlace:
        try:
            found = StreamPlace(**place)  # type: ignore[arg-type]
            order(found.after)
        except (TypeError, ValueError, AttributeError):
            raise self.foreign(place) from None
        return found


def _plain(part: Any) -> Any:
    return part.decode() if isinstance(part, bytes) else part
