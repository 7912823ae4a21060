"""Redis streams: the next entries of every stream, by id, are a transaction.

Redis 7 counts what was ever added to a stream. A position has that count up to itself, so the count of now less its own
must be the number of entries after it: less, and entries were trimmed or deleted; more, and the server forgot some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_tx.base.errors import SourceError
from airflow_tx.sources.api import Json
from airflow_tx.sources.partitions import Gone, LogBatch, LogSnapshot
from airflow_tx.sources.redis.source import (
    PAGE,
    MessageLog,
    RedisDatabase,
    RedisMessage,
    RedisSource,
)

FIRST = "0-0"
_STEP = 10_000
# Entries behind ARGV[1] up to ARGV[2], at most ARGV[3]: how many, the id of the last one, and the server's
# description of the stream at that moment. The entries stay in the stream.
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


class RedisStreamSource(RedisSource):
    """The next entries of every stream, by id, are a transaction.

        RedisStreamSource("redis_events", streams=["orders", "refunds"], max_rows_per_batch=10_000)

    Every stream is a partition; with several connections or databases, every one of them is in each. An entry is a row
    ``{"partition": ..., "id": "1700000000000-0", "message": {"field": "value", ...}}``; in Spark the message is a
    MAP<STRING, STRING>. Nothing is written to the server, and no consumer group is used: the ledger has the position.

    Redis 7 counts what was ever added to a stream, so entries that are trimmed or deleted before they are taken are
    noticed, and a server that forgot some; Redis 6.2 shows only if the last id went back. They are named and never
    skipped: the source refuses until they are back, or accepted as lost.

    It needs the commands XINFO, XRANGE and EVAL.

    :param conn_id: Airflow connection of type redis, or several.
    :param streams: the key of a stream, or several.

    The other parameters are the same as of `RedisSource`: `databases`, `kind`, `max_rows_per_batch`,
    `max_bytes_per_batch` and `target_seconds`.
    """

    def __init__(
        self,
        conn_id: str | Sequence[str] = "redis_default",
        streams: str | Sequence[str] = (),
        **options: Any,
    ) -> None:
        remedy = 'Name a stream, or several: streams=["orders"].'
        self.streams = self.named_by("streams", streams, remedy)
        super().__init__(conn_id, self.streams, **options)

    def partition_contains(self, partition: str, metadata: Any, what: str) -> bool:
        try:
            return order(metadata["after"] or "0-0") < order(what) <= order(metadata["to"])
        except ValueError:
            return False

    def partition_reaches(self, partition: str, position: Any, what: str) -> bool | None:
        try:
            return order(what) <= order(position["after"])
        except ValueError:
            return None

    def messages(self, database: RedisDatabase, key: str) -> MessageLog:
        return StreamMessages(database, key)


def order(id_: str) -> tuple[int, int]:
    milliseconds, _, number = id_.partition("-")
    return int(milliseconds), int(number)


@dataclass(frozen=True)
class StreamPosition:
    """A position in a stream.

    :param after: id of the last entry that was taken.
    :param read: how many entries were ever added up to it; None if the server does not count.
    :param deleted: the greatest id that had been deleted when the batch was decided.
    :param life: how often the server went back, so that no position comes twice.
    """

    after: str = FIRST
    read: int | None = None
    deleted: str = FIRST
    life: int = 0

    def to_json(self) -> Json:
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and (value or name != "life")
        }


@dataclass(frozen=True)
class StreamInfo:
    """The server's description of a stream, and of the entries after a position.

    :param here: whether the entry at the position is there.
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
    id_column: ClassVar[str] = "id"

    def __str__(self) -> str:
        return f"the stream {self.key}"

    def named(self, id_: int | str) -> str:
        return f"entry {id_} of the stream {self.key}"

    def snapshot(self, client: Any, position: Json) -> LogSnapshot:
        at = None if position is None else self._position(position)
        said = self._find(client, at.after if at else FIRST, "+", 0)
        if said is None:
            if at is None or at.after == FIRST:
                raise self.database.unavailable(
                    f"there is no stream {self.key} in {self.database.where}"
                )
            what = f"the stream {self.key} is gone from {self.database.where}, and every entry after {at.after}"
            return LogSnapshot(
                at, 0, Gone(what, StreamPosition(read=0, life=at.life + 1).to_json())
            )
        if at is None:
            read = None if said.added is None else said.added - said.length
            at = StreamPosition(read=read, deleted=said.deleted)
        gone = self._lost(at, said)
        if gone is None and self._doubtful(at, said):
            gone = self._walk(client, at, said.length)[2]
        return LogSnapshot(replace(at, deleted=said.deleted), self._available(at, said), gone)

    def take(self, client: Any, snapshot: LogSnapshot, count: int) -> LogBatch | Gone | None:
        at: StreamPosition = snapshot.position
        taken, after, gone = self._walk(client, at, count)
        if gone is not None or not taken:
            return gone
        rows: Json = {"after": at.after, "to": after.after, "quantity": taken}
        ended = taken < count or taken == snapshot.available
        return LogBatch(rows, after.to_json(), taken, start=at.to_json(), ended=ended)

    def _walk(
        self, client: Any, at: StreamPosition, count: int
    ) -> tuple[int, StreamPosition, Gone | None]:
        """Advance by so many entries: how many there were, the position behind them, and what is missing."""
        taken = 0
        to = at.after
        while taken < count:
            step = min(count - taken, _STEP)
            said = self._find(client, to, "+", step)
            if said is None:
                raise self.database.unavailable(
                    f"the stream {self.key} is gone from {self.database.where}"
                )
            if not taken and (gone := self._lost(at, said)):
                return 0, at, gone
            taken = taken + said.found
            to = said.to or to
            if said.found < step or to == said.final:
                # An older server did not count. Its position gets a count here: all added entries are before it.
                read = said.added if at.read is None else at.read + taken
                return (
                    taken,
                    replace(at, after=to, read=read),
                    self._gap(at, taken, said, f"up to {to}"),
                )
        return taken, replace(at, after=to, read=None if at.read is None else at.read + taken), None

    def parts(self, client: Any, rows: Any, size: int) -> list[dict[str, Any]]:
        parts = []
        found = 0
        to = rows["after"]
        while True:
            said = self._find(client, to, rows["to"], size)
            if said is None or not said.found:
                break
            parts.append({"after": to, "to": said.to, "quantity": said.found})
            found = found + said.found
            to = said.to
        if (found, to) != (rows["quantity"], rows["to"]):
            raise self._fewer(rows, f"{found} are there, the last one {to}")
        return parts

    def read(self, client: Any, part: Any) -> Iterator[RedisMessage]:
        found = 0
        after = part["after"]
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
            raise self._fewer(part, f"{found} are there")

    def _fewer(self, part: Any, there: str) -> SourceError:
        between = f"after {part['after']} up to {part['to']}"
        return self.gone(
            f"of {part['quantity']} entries {between} of the stream {self.key} {there}"
        )

    def sizes(self, client: Any, snapshot: LogSnapshot, most: int) -> Sequence[int]:
        entries = client.xrange(self.key, f"({snapshot.position.after}", "+", count=most)
        return [
            sum(len(name) + len(value) for name, value in fields.items())
            for _, fields in entries
            if fields
        ]

    def _available(self, at: StreamPosition, said: StreamInfo) -> int:
        if at.read is None or said.added is None or self._all_after(at, said):
            return said.length  # at most
        return min(max(said.added - at.read, 0), said.length)

    @staticmethod
    def _all_after(at: StreamPosition, said: StreamInfo) -> bool:
        return said.first is None or order(said.first) > order(at.after)

    def _lost(self, at: StreamPosition, said: StreamInfo) -> Gone | None:
        """Find what is gone behind a position, as far as the server's counters show it."""
        if order(said.last) < order(at.after):
            what = f"the stream {self.key} in {self.database.where} went back from {at.after} to {said.last}; what came"
            what += f" after {at.after} is gone, and the {said.length} entries that it has are taken for taken"
            after = StreamPosition(said.last, said.added, said.deleted, at.life + 1)
            return Gone(what, after.to_json(), went_back=True)
        if not self._all_after(at, said):
            return None
        return self._gap(at, said.length, said, f"before {said.first}" if said.first else "")

    def _doubtful(self, at: StreamPosition, said: StreamInfo) -> bool:
        """Whether entries behind a position may be missing that only counting shows."""
        if at.read is None or said.added is None:
            return False
        # Since the last batch an entry was deleted that may not have been taken.
        deleted = order(said.deleted) > max(order(at.after), order(at.deleted))
        # The counter says that there are entries, and there are none; or the other way round.
        ended = said.final is None or order(said.final) <= order(at.after)
        # Entries before it are there, and it is not: it was deleted, or the server forgot it.
        forgotten = not said.here and not self._all_after(at, said)
        return deleted or forgotten or (said.added <= at.read) != ended

    def _gap(self, at: StreamPosition, found: int, said: StreamInfo, until: str) -> Gone | None:
        """Compare all entries after a position with the count of the server."""
        if at.read is None or said.added is None or not (missing := said.added - at.read - found):
            return None
        where = f"the stream {self.key} in {self.database.where}"
        between = f"after {at.after}" + (f" and {until}" if until else "")
        after = StreamPosition(at.after, at.read + missing, said.deleted, at.life + 1)
        if missing > 0:
            return Gone(
                f"{missing} entries {between} of {where} are gone: trimmed or deleted",
                after.to_json(),
            )
        what = f"{where} went back: it knows {-missing} entries less than were taken; what it forgot {between} is gone"
        return Gone(what, after.to_json(), went_back=True)

    def _find(self, client: Any, after: str, to: str, count: int) -> StreamInfo | None:
        from redis.exceptions import ResponseError

        try:
            reply = client.eval(_FIND, 1, self.key, after, to, count)
        except ResponseError as error:
            if "no such key" in str(error):
                return None
            self.checked(self.key, error)
            raise
        here, found, end, length, last, first, final, added, deleted = (
            _plain(part) for part in reply
        )
        counted = None if added == -1 else added
        return StreamInfo(
            bool(here),
            found,
            end,
            length,
            last,
            first or None,
            final or None,
            counted,
            deleted or FIRST,
        )

    def _position(self, position: Json) -> StreamPosition:
        try:
            found = StreamPosition(**position)  # type: ignore[arg-type]
            order(found.after)
        except (TypeError, ValueError, AttributeError):
            raise self.foreign(position) from None
        return found


def _plain(part: Any) -> Any:
    return part.decode() if isinstance(part, bytes) else part
