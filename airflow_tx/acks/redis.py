"""Ackers in Redis: a hash an acker, changed by one script. Source: `tree.py`, of which `take` is the same in Lua."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from airflow_tx.acks.api import not_open
from airflow_tx.acks.reference import Origin
from airflow_tx.acks.tree import Acker, Portion, Tree, TreeReport, check_number
from airflow_tx.connections.redis import RedisFailure, make_client, redis_failures
from airflow_tx.errors import (
    AckersRefused,
    AckersUnavailable,
    StaleMessage,
    UnknownMessage,
    shortened_reason,
)

# KEYS: the transaction, the prefix of its ackers, the set of txids. ARGV: attempt, birth, ackers, txid.
_OPEN = """
local found = redis.call('HMGET', KEYS[1], 'attempt', 'birth', 'ackers')
if found[1] and found[2] == ARGV[2] then
  if tonumber(found[1]) > tonumber(ARGV[1]) then return tonumber(found[1]) end
  if found[1] == ARGV[1] then return 0 end
end
for acker = 0, tonumber(found[3] or '0') - 1 do redis.call('DEL', KEYS[2] .. acker) end
redis.call('HDEL', KEYS[1], 'failed')
redis.call('HSET', KEYS[1], 'attempt', ARGV[1], 'birth', ARGV[2], 'ackers', ARGV[3])
redis.call('SADD', KEYS[3], ARGV[4])
return 0
"""

# KEYS: the transaction, the acker. ARGV: attempt, stream, number, emitter, messages that were acked, then root, XOR and
# count of each tree.
# Redis counts in 53 bits, so an XOR is taken of two halves.
_TAKE = """
local newest = redis.call('HGET', KEYS[1], 'attempt')
if not newest then return {'ended'} end
if newest ~= ARGV[1] then return {'attempt', newest} end
local last = tonumber(redis.call('HGET', KEYS[2], 'number:' .. ARGV[2]) or '0')
local number = tonumber(ARGV[3])
if last == number then return {'taken'} end
if last ~= number - 1 then return {'behind', last} end
local function half(text, from) return tonumber(text:sub(from, from + 7), 16) end
local function xor(a, b)
  return bit.tohex(bit.bxor(half(a, 1), half(b, 1))) .. bit.tohex(bit.bxor(half(a, 9), half(b, 9)))
end
local answer, roots = {'taken'}, 0
for i = 6, #ARGV, 3 do
  local field, value, count = 'tree:' .. ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local owner, tree = ARGV[2], redis.call('HGET', KEYS[2], field)
  roots = roots + 1
  if tree then
    value, count = xor(value, tree:sub(1, 16)), count + tonumber(tree:match(' (-?%d+) '))
    owner = tree:match('(%x+)$')
  end
  if not tree and ARGV[4] == '' then
    answer[#answer + 1] = ARGV[i]
  elseif count == 0 and value == '0000000000000000' then
    redis.call('HDEL', KEYS[2], field)
  else
    redis.call('HSET', KEYS[2], field, value .. ' ' .. count .. ' ' .. owner)
  end
end
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[2], 'emitter:' .. ARGV[2], ARGV[4])
  redis.call('HINCRBY', KEYS[2], 'roots:' .. ARGV[2], roots)
end
redis.call('HINCRBY', KEYS[2], 'acked', ARGV[5])
redis.call('HSET', KEYS[2], 'number:' .. ARGV[2], ARGV[3])
return answer
"""

# KEYS: the transaction. ARGV: attempt, reason.
_FAIL = """
local newest = redis.call('HGET', KEYS[1], 'attempt')
if newest == ARGV[1] then redis.call('HSETNX', KEYS[1], 'failed', ARGV[2]) end
return newest
"""

# KEYS: the transaction, the prefix of its ackers. ARGV: attempt.
_REPORT = """
local found = redis.call('HMGET', KEYS[1], 'attempt', 'ackers', 'failed')
local ackers = {}
if found[1] == ARGV[1] then
  for acker = 0, tonumber(found[2]) - 1 do ackers[acker + 1] = redis.call('HGETALL', KEYS[2] .. acker) end
end
return {found[1], found[3], ackers}
"""

# KEYS: the transaction, the prefix of its ackers, the set of txids. ARGV: txid.
_FORGET = """
for acker = 0, tonumber(redis.call('HGET', KEYS[1], 'ackers') or '0') - 1 do redis.call('DEL', KEYS[2] .. acker) end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[3], ARGV[1])
"""


class RedisAckers:
    """An `AckerStore` on a Redis server. The keys of a topology are in one slot of a cluster.

    Losses of a server that writes to no disk are noticed: the transaction is not committed, and must be replayed.

    :param parameters: of `redis.Redis`.
    :param where: for messages; no password.
    """

    def __init__(
        self, parameters: Mapping[str, Any], *, where: str, prefix: str = "airflow_tx.acks"
    ) -> None:
        self._parameters = parameters
        self._where = where
        self._prefix = prefix
        self._client = make_client(parameters, needed_by=f"the ackers at {where}")

    def open(self, origin: Origin, birth: str, ackers: int) -> None:
        keys = [*self._keys(origin), self._txids(origin)]
        newest = self._eval(_OPEN, keys, [origin.attempt, birth, ackers, origin.txid])
        if newest:
            raise StaleMessage(**origin.words, newest=newest)

    def check(self, origin: Origin) -> None:
        with self._errors():
            newest = self._client.hget(self._keys(origin)[0], "attempt")
        self._check(origin, newest)

    def take(self, origin: Origin, acker: int, portion: Portion) -> list[int]:
        transaction, ackers = self._keys(origin)
        arguments: list[Any] = [
            origin.attempt,
            portion.stream,
            portion.number,
            portion.emitter,
            portion.acked,
        ]
        for root, (value, count) in portion.changes.items():
            arguments += (f"{root:016x}", f"{value:016x}", count)
        answer, *found = self._eval(_TAKE, [transaction, f"{ackers}{acker}"], arguments)
        if answer == b"behind":
            check_number(origin, portion, found[0])
        elif answer != b"taken":
            self._check(origin, found[0] if found else None)
        return [int(root, 16) for root in found]

    def fail(self, origin: Origin, reason: str) -> None:
        self._check(
            origin,
            self._eval(
                _FAIL, self._keys(origin)[:1], [origin.attempt, shortened_reason(reason, 500)]
            ),
        )

    def report(self, origin: Origin) -> TreeReport:
        newest, failed, ackers = self._eval(_REPORT, self._keys(origin), [origin.attempt])
        self._check(origin, newest)
        return TreeReport.of(map(_acker, ackers), None if failed is None else failed.decode())

    def forget(self, origin: Origin) -> None:
        txids = self._txids(origin)
        with self._errors():
            known = self._client.smembers(txids)
        for each in sorted(int(each) for each in known):
            if each <= origin.txid:
                self._eval(_FORGET, [*self._keys(origin._replace(txid=each)), txids], [each])

    def close(self) -> None:
        self._client.close()

    def _keys(self, origin: Origin) -> list[str]:
        """The transaction's, and the prefix of its ackers'."""
        tag = self._txids(origin)
        return [f"{tag}:{origin.txid}", f"{tag}:{origin.txid}:"]

    def _txids(self, origin: Origin) -> str:
        return f"{{{self._prefix}:{origin.place}}}"

    def _check(self, origin: Origin, newest: bytes | None) -> None:
        if newest is not None and int(newest) > origin.attempt:
            raise StaleMessage(**origin.words, newest=int(newest))
        if newest is None or int(newest) < origin.attempt:
            raise UnknownMessage(**origin.words, problem=not_open(origin))

    def _eval(self, script: str, keys: list[str], arguments: list[Any]) -> Any:
        with self._errors():
            return self._client.eval(script, len(keys), *keys, *arguments)

    def _errors(self) -> AbstractContextManager[None]:
        return redis_failures(self._parameters, self._error)

    def _error(self, failure: RedisFailure) -> Exception:
        if failure.away or not failure.answered:
            return AckersUnavailable(where=self._where, reason=failure.text)
        remedy = (
            "Look into the server's log. Until it works, no transaction with messages is committed."
        )
        return AckersRefused(where=self._where, problem=failure.text, remedy=remedy)


def _acker(pairs: list[bytes]) -> Acker:
    trees = dict[int, Tree]()
    numbers = dict[str, int]()
    emitters = dict[str, str]()
    roots = dict[str, int]()
    acked = 0
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        kind, _, key = name.decode().partition(":")
        if kind == "tree":
            total, count, owner = value.decode().split(" ")
            trees[int(key, 16)] = Tree(int(total, 16), int(count), owner)
        elif kind == "number":
            numbers[key] = int(value)
        elif kind == "emitter":
            emitters[key] = value.decode()
        elif kind == "acked":
            acked = int(value)
        else:
            roots[key] = int(value)
    return Acker(
        trees,
        numbers,
        {stream: (emitter, roots[stream]) for stream, emitter in emitters.items()},
        acked,
    )
