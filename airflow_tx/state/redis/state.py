"""A state in Redis: one hash of values, written under a fence by scripts. Source: protocol.md §7."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_tx.connections.redis import redis_url
from airflow_tx.errors import ChunkConflict, StateError
from airflow_tx.protocol.receipt import Receipt
from airflow_tx.state.aggregators import Aggregator
from airflow_tx.state.api import (
    FenceMoved,
    Grant,
    QueryableState,
    StateKind,
    StateWrite,
    fenced_kind,
)
from airflow_tx.state.checked_rows import CheckedRows
from airflow_tx.state.columns import checked_columns
from airflow_tx.state.keys import wanted_keys
from airflow_tx.state.redis.connection import checked_prefix
from airflow_tx.state.redis.fence import (
    Call,
    FencedInRedis,
    FenceReading,
    RedisFence,
    RedisTransaction,
    grant_text,
    receipt_arguments,
)
from airflow_tx.state.redis.rows import RedisRows
from airflow_tx.state.redis.scripts import FETCH, PUT

# Keys in one script: some 10 ms in which the server does nothing else.
KEYS_AT_ONCE = 5_000
KEYS_READ_AT_ONCE = 10_000
# Scripts that are sent before the reply to the first one is read.
PORTIONS_AT_ONCE = 4


@dataclass(frozen=True)
class _Portion:
    fields: list[bytes]
    values: list[bytes]


class RedisState(FencedInRedis, QueryableState):
    """Values per key in Redis that transactions add to, each exactly once.

    Values are in the hash `{<prefix>}:values`, which anyone may read: field `["AA","JFK"]`, value `[42,-7]`, the
    columns of each in the order of their names. A writer that a later grant has outranked changes nothing; a replay
    takes back what the attempt before it wrote; sums are exact, or refused. Up to 5,000 keys are one script, whole or
    not at all; what breaks off between several is taken back, or completed. What Redis loses after its answer is
    noticed at the next commit and named; the settings with which it loses nothing: docs/stores.md.

    :param conn_id: Airflow connection of type redis (host, port, login, password; extras db, ssl, ssl_*,
        socket_timeout, socket_connect_timeout); looked up when the state is used, not when a DAG is parsed.
    :param prefix: the keys of this state begin with it, in braces. One prefix of a database is one state.
    :param keys: key columns; [] keeps one row for everything.
    :param values: aggregator per value column: any.
    :param kind: "opaque" (a replay may have other rows) or "transactional" (it has the same output).
    :param types: key column -> type; a column without one gets the type of the first row that arrives.
    """

    def __init__(
        self,
        conn_id: str,
        *,
        prefix: str,
        keys: Sequence[str],
        values: Mapping[str, Aggregator],
        kind: StateKind | str = StateKind.OPAQUE,
        types: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(conn_id, prefix)
        self.prefix = checked_prefix(prefix, "RedisState")
        self.kind = fenced_kind(kind, state=self.name)
        self.columns = checked_columns(self, keys, values, types)

    def _transaction(self, write: StateWrite) -> AbstractContextManager[_RedisUpdate]:
        return nullcontext(_RedisUpdate(self, self._fence, write))

    def holds(self, txid: int) -> bool:
        if not self._fence.read().is_of(txid):
            return False
        with self._server.client() as client:
            return bool(client.exists(self._fence.key["touched"], self._fence.key["undo"]))

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        rows = self.stored_rows(self._fence.read())
        if rows is None:
            return []
        size = KEYS_AT_ONCE if limit is None else min(limit, KEYS_AT_ONCE)
        found = dict[bytes, bytes]()
        with self._server.client() as client:
            for field, value in client.hscan_iter(self._fence.key["values"], count=max(size, 1)):
                if limit is not None and len(found) >= limit:
                    break
                found[field] = value
        return sorted((rows.row(field, value) for field, value in found.items()), key=rows.order)

    def each_row(self) -> Iterator[tuple[Any, ...]]:
        rows = self.stored_rows(self._fence.read())
        if rows is None:
            return
        names = (*self.columns.keys, *self.columns.values)
        with self._server.client() as client:
            for field, value in client.hscan_iter(self._fence.key["values"], count=KEYS_AT_ONCE):
                yield tuple(map(rows.row(field, value).__getitem__, names))

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        result = list[dict[str, Any] | None]([None] * len(keys))
        rows = self.stored_rows(self._fence.read())
        whole = wanted_keys(self.columns, keys, None if rows is None else rows.key_types)
        if rows is None:
            return result
        with self._server.client() as client:
            for start in range(0, len(whole), KEYS_READ_AT_ONCE):
                portion = whole[start : start + KEYS_READ_AT_ONCE]
                found = client.hmget(
                    self._fence.key["values"], [rows.field(key) for _, key in portion]
                )
                for (number, _), value in zip(portion, found, strict=True):
                    result[number] = None if value is None else rows.values(value)
        return result

    def key_types(self) -> dict[str, str] | None:
        rows = self.stored_rows(self._fence.read())
        return None if rows is None else dict(rows.key_types)

    def for_executors(self) -> RedisState:
        return self._copy_at(self._url or redis_url(self.conn_id, what="RedisState"))

    def stored_rows(self, held: FenceReading) -> RedisRows | None:
        """Read the stored columns; None before the first update; a StateError if they are others."""
        return (
            None if held.schema is None else RedisRows.stored(self.columns, self.kind, held.schema)
        )


class _RedisUpdate(RedisTransaction):
    """An update of values, computed from what is stored before anything is written.

    The values are read before or after the raise of the fence. The result is the same: a key that
    the transaction has touched starts from the values before it.
    """

    def __init__(self, state: RedisState, held_by: RedisFence, write: StateWrite) -> None:
        super().__init__(held_by, write)
        self.scripts_at_once = PORTIONS_AT_ONCE
        self._columns = state.columns
        self._kind = state.kind
        self._rows = state.stored_rows(self._held)
        self._portions: list[_Portion] = []

    def put(self) -> int:
        iterator = iter(self._write.listed if self._write.raising else self._write.rows or ())
        first = next(iterator, None)
        if first is None:
            return 0
        checked = CheckedRows(self._columns)
        # The names are checked before the types of the store are.
        types = checked.key_types(first)
        self._rows = known = self._rows or RedisRows(self._columns, self._kind, types)
        portions = list(
            checked.portions(chain([first], iterator), known.key_types, size=KEYS_AT_ONCE)
        )
        for start in range(0, len(portions), PORTIONS_AT_ONCE):
            several = portions[start : start + PORTIONS_AT_ONCE]
            fields = [known.fields(portion) for portion in several]
            for portion, own, base in zip(several, fields, self._bases(known, fields), strict=True):
                self._portions.append(_Portion(own, known.updated(portion, base)))
        return sum(len(portion.fields) for portion in self._portions)

    def _bases(self, rows: RedisRows, fields: list[list[bytes]]) -> list[list[Any]]:
        """Read what the keys of several portions start from, in one round trip."""
        held = self._held
        grant = self._write.grant
        mine = held.identity == grant_text(grant)
        arguments = [
            held.identity,
            int(held.is_of(grant.txid)),
            int(self._kind is StateKind.OPAQUE),
        ]
        arguments += [_token(grant) if mine else "", self._writer]
        calls: list[Call] = [(FETCH, self._fence.keys, [*arguments, _lines(own)]) for own in fields]
        found = list[list[Any]]()
        for answer, *rest in self._fence.server.run(calls):
            if answer == b"moved":
                raise FenceMoved if self._write.raising else self._fence.outranked(grant)
            if answer == b"conflict":
                raise self._conflict(rows, rest)
            found.append(json.loads(rest[0]))
        return found

    def _calls(self, receipt: Receipt | None) -> list[Call]:
        grant = self._write.grant
        mine = [grant_text(grant), _token(grant), self._writer, int(self._kind is StateKind.OPAQUE)]
        schema = self._rows.schema if self._rows is not None else b""
        shared = [schema, *receipt_arguments(grant, receipt)]
        parts = [
            [_lines(portion.fields), _lines(portion.values)] for portion in self._portions
        ] or [[]]
        last = len(parts) - 1 if self._write.complete else len(parts)
        return [
            (PUT, self._fence.keys, [*mine, int(number == last), *shared, *part])
            for number, part in enumerate(parts)
        ]

    def _check(self, reply: list[Any]) -> None:
        super()._check(reply)
        answer, *rest = reply
        server = self._fence.server
        if answer == b"undoing":
            raise server.refused("a roll-back is not finished", "Raise the fence again.")
        if answer == b"counts":
            problem = f"the fence counted {self._fence.vanished(reply)}"
            raise server.refused(problem, "The next raise of the fence says what to do.")
        if answer != b"ok":
            assert self._rows is not None
            raise (
                self._rows.other_columns(rest[0])
                if answer == b"schema"
                else self._conflict(self._rows, rest)
            )

    def _conflict(self, rows: RedisRows, found: list[bytes]) -> StateError:
        field, entry = found
        other = int(entry.partition(b"|")[0].rpartition(b"/")[2])
        mine = {"chunk": self._write.chunk, "txid": self._write.grant.txid}
        return ChunkConflict(state=self._write.state, key=rows.key(field), found=other, **mine)

    @property
    def _writer(self) -> str:
        return f"{_token(self._write.grant)}{self._write.chunk}|"


def _token(grant: Grant) -> str:
    # The fence admits one nonce per rank.
    return ".".join(map(str, grant.token.rank)) + "/"


def _lines(texts: list[bytes]) -> bytes:
    return b"\n".join([*texts, b""])
