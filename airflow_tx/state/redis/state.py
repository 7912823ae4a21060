"""A state in Redis: one hash of values, written under a fence by scripts. Source: protocol.md §7."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_tx.connections.redis import redis_url
from airflow_tx.errors import ChunkConflict, StateError
from airflow_tx.failpoints import failpoint
from airflow_tx.state import fence
from airflow_tx.state.aggregators import Aggregator
from airflow_tx.state.api import Grant, QueryableState, StateKind, fenced_kind
from airflow_tx.state.checked_rows import CheckedRows
from airflow_tx.state.columns import checked_columns
from airflow_tx.state.keys import wanted_keys
from airflow_tx.state.redis.connection import checked_prefix
from airflow_tx.state.redis.fence import RACES, Call, FencedInRedis, FenceReading, grant_text, receipt_arguments
from airflow_tx.state.redis.rows import RedisRows
from airflow_tx.state.redis.scripts import FETCH, PUT
from airflow_tx.state.row_tally import RowTally

# Keys in one script: some 10 ms in which the server does nothing else.
KEYS_AT_ONCE = 5_000
KEYS_READ_AT_ONCE = 10_000
# Scripts that are sent before the reply to the first one is read.
PORTIONS_AT_ONCE = 4
_OVERTAKEN = f"the fence changed {RACES} times in a row between its reading and its raise"


@dataclass(frozen=True)
class _Portion:
    fields: list[bytes]
    values: list[bytes]


@dataclass(frozen=True)
class _Update:
    """What an update makes of the stored values, computed before anything is written."""

    rows: RedisRows | None
    portions: list[_Portion]

    @property
    def size(self) -> int:
        return sum(len(portion.fields) for portion in self.portions)


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

    def _parameters(self) -> dict[str, Any]:
        return {"conn_id": self.conn_id, "prefix": self.prefix}

    def raise_fence(self, grant: Grant) -> None:
        # Check, raise and the undoing of some 7,000 keys are one script. More keys are undone by further ones; until
        # the last is undone the state takes no write, and if that breaks off, the next raise continues it.
        for _ in range(RACES):
            held = self._fence.read()
            row = self._fence.raised(held, grant)
            self._stored_rows(held)
            (reply,) = self._server.run(self._fence.raise_calls(held, row, grant))
            if self._fence.has_raised(reply, held, grant):
                return
        raise self._server.refused(_OVERTAKEN, "Clear the task.")

    def write(self, grant: Grant, rows: Iterable[Mapping[str, Any]], *, chunk: int = 0, complete: bool = True) -> int:
        held, tally = self._fence.read(), RowTally.of(rows, self.added_up)
        fence.check_write(held.row, grant, state=self.name)
        update = self._update(held, grant, tally, chunk)
        if update is None:
            raise self._fence.outranked(grant)
        calls = self._put_calls(update, grant, chunk, complete, tally)
        self._put(calls, update, grant, chunk, complete)
        return update.size

    def raise_and_write(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> int:
        tally = RowTally.of(rows, self.added_up)
        given = list(tally)
        for _ in range(RACES):
            held = self._fence.read()
            row = self._fence.raised(held, grant)
            update = self._update(held, grant, given, 0)
            if update is None:
                continue
            first, *more = self._put_calls(update, grant, 0, True, tally)
            calls = [*self._fence.raise_calls(held, row, grant), first]
            raised, put = self._server.run(calls, whole=True, last=not more)
            if not self._fence.has_raised(raised, held, grant):
                continue
            if put[0] == b"undoing":  # there was too much to undo for one script
                more.insert(0, first)
            else:
                self._check(put, update, grant, 0)
            self._put(more, update, grant, 0, True)
            return update.size
        raise self._server.refused(_OVERTAKEN, "Clear the task.")

    def holds(self, txid: int) -> bool:
        if not self._fence.read().is_of(txid):
            return False
        with self._server.client() as client:
            return bool(client.exists(self._fence.key["touched"], self._fence.key["undo"]))

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        rows = self._stored_rows(self._fence.read())
        if rows is None:
            return []
        size, found = KEYS_AT_ONCE if limit is None else min(limit, KEYS_AT_ONCE), dict[bytes, bytes]()
        with self._server.client() as client:
            for field, value in client.hscan_iter(self._fence.key["values"], count=max(size, 1)):
                if limit is not None and len(found) >= limit:
                    break
                found[field] = value
        return sorted((rows.row(field, value) for field, value in found.items()), key=rows.order)

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        result = list[dict[str, Any] | None]([None] * len(keys))
        rows = self._stored_rows(self._fence.read())
        whole = wanted_keys(self.columns, keys, None if rows is None else rows.key_types)
        if rows is None:
            return result
        with self._server.client() as client:
            for start in range(0, len(whole), KEYS_READ_AT_ONCE):
                portion = whole[start : start + KEYS_READ_AT_ONCE]
                found = client.hmget(self._fence.key["values"], [rows.field(key) for _, key in portion])
                for (number, _), value in zip(portion, found, strict=True):
                    result[number] = None if value is None else rows.values(value)
        return result

    def key_types(self) -> dict[str, str] | None:
        rows = self._stored_rows(self._fence.read())
        return None if rows is None else dict(rows.key_types)

    def for_executors(self) -> RedisState:
        return self._copy_at(self._url or redis_url(self.conn_id, what="RedisState"))

    # --- an update ------------------------------------------------------------------------------------------------

    def _update(
        self, held: FenceReading, grant: Grant, rows: Iterable[Mapping[str, Any]], chunk: int
    ) -> _Update | None:
        """Compute all that will be written, from the values as they are, or as the raise of the fence will make them.

        That is the same at any time: what the transaction has touched starts from the values before it.

        :return: None: the fence holds something else by now.
        """
        stored, iterator = self._stored_rows(held), iter(rows)
        first = next(iterator, None)
        if first is None:
            return _Update(stored, [])
        checked = CheckedRows(self.columns)
        # The names are checked before the types of the store are.
        types = checked.key_types(first)
        known = stored or RedisRows(self.columns, self.kind, types)
        portions = list(checked.portions(chain([first], iterator), known.key_types, size=KEYS_AT_ONCE))
        made = list[_Portion]()
        for start in range(0, len(portions), PORTIONS_AT_ONCE):
            several = portions[start : start + PORTIONS_AT_ONCE]
            fields = [known.fields(portion) for portion in several]
            bases = self._bases(held, grant, known, fields, chunk)
            if bases is None:
                return None
            for portion, own, base in zip(several, fields, bases, strict=True):
                made.append(_Portion(own, known.updated(portion, base)))
        return _Update(known, made)

    def _bases(
        self, held: FenceReading, grant: Grant, rows: RedisRows, fields: list[list[bytes]], chunk: int
    ) -> list[list[Any]] | None:
        """Read what the keys of several portions start from, in one round trip."""
        mine = held.identity == grant_text(grant)
        arguments = [held.identity, int(held.is_of(grant.txid)), int(self.kind is StateKind.OPAQUE)]
        arguments += [_token(grant) if mine else "", _writer(grant, chunk)]
        found = list[list[Any]]()
        for answer, *rest in self._server.run([(FETCH, self._fence.keys, [*arguments, _lines(own)]) for own in fields]):
            if answer == b"moved":
                return None
            if answer == b"conflict":
                raise self._conflict(rows, rest, grant, chunk)
            found.append(json.loads(rest[0]))
        return found

    def _put_calls(self, update: _Update, grant: Grant, chunk: int, complete: bool, tally: RowTally) -> list[Call]:
        mine = [grant_text(grant), _token(grant), _writer(grant, chunk), int(self.kind is StateKind.OPAQUE)]
        schema = update.rows.schema if update.rows is not None else b""
        receipt = receipt_arguments(grant, self.name, tally.written(update.size)) if complete else [""] * 4
        parts = [[_lines(portion.fields), _lines(portion.values)] for portion in update.portions] or [[]]
        last = len(parts) - 1
        return [
            (PUT, self._fence.keys, [*mine, int(complete and number == last), schema, *receipt, *part])
            for number, part in enumerate(parts)
        ]

    def _put(self, calls: list[Call], update: _Update, grant: Grant, chunk: int, complete: bool) -> None:
        # One that completes the update waits until all others are known to be in.
        alone = 1 if complete else 0
        for start in range(0, len(calls) - alone, PORTIONS_AT_ONCE):
            for reply in self._server.run(calls[start : min(start + PORTIONS_AT_ONCE, len(calls) - alone)]):
                self._check(reply, update, grant, chunk)
            failpoint("redis_state.between_portions", state=self.name)
        for call in calls[len(calls) - alone :]:
            (reply,) = self._server.run([call], last=complete)
            self._check(reply, update, grant, chunk)

    def _check(self, reply: list[Any], update: _Update, grant: Grant, chunk: int) -> None:
        answer, *rest = reply
        if answer == b"ok":
            return
        if answer == b"outranked":
            raise self._fence.outranked(grant)
        if answer == b"restarted":
            raise self._server.restarted()
        if answer == b"undoing":
            raise self._server.refused("a roll-back is not finished", "Raise the fence again.")
        if answer == b"counts":
            problem = f"the fence counted {self._fence.vanished(reply)}"
            raise self._server.refused(problem, "The next raise of the fence says what to do.")
        assert update.rows is not None
        if answer == b"schema":
            raise update.rows.other_columns(rest[0])
        raise self._conflict(update.rows, rest, grant, chunk)

    def _conflict(self, rows: RedisRows, found: list[bytes], grant: Grant, chunk: int) -> StateError:
        field, entry = found
        other = int(entry.partition(b"|")[0].rpartition(b"/")[2])
        return ChunkConflict(state=self.name, key=rows.key(field), found=other, chunk=chunk, txid=grant.txid)

    def _stored_rows(self, held: FenceReading) -> RedisRows | None:
        """Read the columns as they are stored; None before the first update; a StateError if they are others."""
        return None if held.schema is None else RedisRows.stored(self.columns, self.kind, held.schema)


def _token(grant: Grant) -> str:
    # The fence admits one nonce per rank.
    return ".".join(map(str, grant.token.rank)) + "/"


def _writer(grant: Grant, chunk: int) -> str:
    return f"{_token(grant)}{chunk}|"


def _lines(texts: list[bytes]) -> bytes:
    return b"\n".join([*texts, b""])
