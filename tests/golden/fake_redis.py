"""The commands of Redis that the sources use, on plain dictionaries: what is written down needs no server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeStream:
    """The ids of a stream, and how many entries were ever added to it."""

    ids: list[str] = field(default_factory=list)
    added: int = 0


@dataclass
class FakeRedis:
    values: dict[str, bytes] = field(default_factory=dict)
    lists: dict[str, list[bytes]] = field(default_factory=dict)
    streams: dict[str, FakeStream] = field(default_factory=dict)

    def add(self, stream: str, ids: list[str]) -> None:
        found = self.streams.setdefault(stream, FakeStream())
        found.ids += ids
        found.added += len(ids)

    def pipeline(self, transaction: bool = True) -> Pipeline:
        return Pipeline(self)

    def close(self) -> None:
        """Nothing is open."""

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def set(self, key: str, value: Any) -> None:
        self.values[key] = str(value).encode()

    def exists(self, *keys: str) -> int:
        return sum(key in self.values for key in keys)

    def strlen(self, key: str) -> int:
        return len(self.values.get(key, b""))

    def llen(self, key: str) -> int:
        return len(self.lists.get(key, ()))

    def lindex(self, key: str, index: int) -> bytes | None:
        return self.lists[key][index] if index < self.llen(key) else None

    def lrange(self, key: str, first: int, last: int) -> list[bytes]:
        return self.lists[key][first : last + 1]

    def xrange(self, key: str, first: str, last: str, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        behind = [each for each in self.streams[key].ids if order(each) > order(first[1:])]
        return [(each.encode(), {b"n": each.encode()}) for each in behind[:count]]

    def eval(self, script: str, keys: int, key: str, after: str, to: str, count: int) -> list[Any]:
        """Answer as the script of the stream source does, which is the only one."""
        stream = self.streams[key]
        behind = [each for each in stream.ids if order(each) > order(after) and (to == "+" or order(each) <= order(to))]
        found = behind[: int(count)]
        last = stream.ids[-1] if stream.ids else "0-0"
        ends = [stream.ids[0].encode(), last.encode()] if stream.ids else [b"", b""]
        answer = [int(after in stream.ids), len(found), found[-1].encode() if found else b"", len(stream.ids)]
        return [*answer, last.encode(), *ends, stream.added, b"0-0"]


@dataclass
class Pipeline:
    client: FakeRedis
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., None]:
        command = getattr(self.client, name)
        return lambda *given: self.calls.append((command, given))

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        return [command(*given) for command, given in self.calls]


def order(id_: str) -> tuple[int, int]:
    milliseconds, _, number = id_.partition("-")
    return int(milliseconds), int(number)
