"""The source of Redis streams. A transaction takes the next entries of every stream, by id.

Redis 7 counts the entries ever added to a stream, and a position holds this count. The difference between the current
count and the position's count should be the number of entries after the position. If the stream has fewer entries, some
were trimmed or deleted. If it has more entries, the server went back.
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
# Find at most ARGV[3] entries after ARGV[1], up to ARGV[2]. Return their number, the id of the last
# one, and the server's description of the stream at that moment. The script changes nothing.
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
    """A source of Redis streams. A transaction takes the next entries of every stream, by id.

        RedisStreamSource("redis_events", streams=["orders", "refunds"], max_rows_per_batch=10_000)

    Every stream of every connection and database is a partition. An entry is a row ``{"partition": ..., "id":
    "1700000000000-0", "message": {"field": "value", ...}}``. In Spark, the message is a MAP<STRING, STRING>. The source
    writes nothing to the server and uses no consumer group, since the ledger stores the position.

    Redis 7 counts the entries ever added to a stream. The source therefore detects entries that were trimmed or deleted
    before it took them, and a server that went back. With Redis 6.2 it detects only that the last id went back. The
    source then stops and names the loss, until the entries are back or a user accepts the loss.

    The source uses the commands XINFO, XRANGE and EVAL.

    :param conn_id: one or several Airflow connections of type redis.
    :param streams: key of a stream, or several keys.

    The other parameters are the same as for `RedisSource`: `databases`, `malformed`, `kind`, `max_rows_per_batch`,
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
    :param read: number of entries ever added up to `after`, or None if the server does not count them.
    :param deleted: greatest id that was deleted before the batch was decided.
    :param life: number of times that entries were lost, which keeps positions unique.
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
    """The server's description of a stream, with the entries after a position.

    :param here: whether the entry at the position exists.
    :param found: number of entries found after the position.
    :param to: id of the last entry found.
    :param length: number of entries in the stream.
    :param last: greatest id that the stream ever had.
    :param first: id of the first entry, or None if the stream is empty.
    :param final: id of the last entry, or None if the stream is empty.
    :param added: number of entries ever added, or None if the server does not count them.
    :param deleted: greatest id that was ever deleted.
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
        """Advance the position by up to `count` entries.

        :return: the number of entries, the position after them, and the loss, if any.
        """
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
                # A position from an older server has no count, so it gets the total count.
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
            raise self._fewer(rows, f"only {found} exist, and the last one is {to}")
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
            raise self._fewer(part, f"only {found} exist")

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
            return said.length  # This count is an upper bound.
        return min(max(said.added - at.read, 0), said.length)

    @staticmethod
    def _all_after(at: StreamPosition, said: StreamInfo) -> bool:
        return said.first is None or order(said.first) > order(at.after)

    def _lost(self, at: StreamPosition, said: StreamInfo) -> Gone | None:
        """Return the loss after a position that the server's counters show, or None."""
        if order(said.last) < order(at.after):
            what = f"the stream {self.key} in {self.database.where} went back from {at.after} to {said.last}; its"
            what += f" entries after {at.after} are gone, and the {said.length} entries that it has count as taken"
            after = StreamPosition(said.last, said.added, said.deleted, at.life + 1)
            return Gone(what, after.to_json(), went_back=True)
        if not self._all_after(at, said):
            return None
        return self._gap(at, said.length, said, f"before {said.first}" if said.first else "")

    def _doubtful(self, at: StreamPosition, said: StreamInfo) -> bool:
        """Return whether the entries after a position must be counted, since some may be missing."""
        if at.read is None or said.added is None:
            return False
        # An entry was deleted after the last batch was decided, and may not have been taken.
        deleted = order(said.deleted) > max(order(at.after), order(at.deleted))
        # The counter and the last id contradict each other about whether entries follow the
        # position.
        ended = said.final is None or order(said.final) <= order(at.after)
        # The entry at the position is missing while earlier entries exist. It was deleted, or the
        # server lost it.
        forgotten = not said.here and not self._all_after(at, said)
        return deleted or forgotten or (said.added <= at.read) != ended

    def _gap(self, at: StreamPosition, found: int, said: StreamInfo, until: str) -> Gone | None:
        """Return the loss if the entries after a position do not match the server's count. Otherwise return None."""
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
        what = f"{where} went back: it lost {-missing} entries that were taken; its entries {between} may be gone, too"
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
