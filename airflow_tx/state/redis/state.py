"""A state in Redis: one hash of values, written under a fence by scripts. Source: protocol.md §7."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_tx.base.connections import redis_url
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import ChunkConflict, StateDiffers, StateError
from airflow_tx.ledger import Receipt
from airflow_tx.state.aggregators import Aggregator, Cells, Columns, checked_columns
from airflow_tx.state.api import (
    FenceMoved,
    Grant,
    QueryableState,
    StateKind,
    StateWrite,
    fenced_kind,
)
from airflow_tx.state.column_types import converted, from_plain, json_text, to_plain
from airflow_tx.state.keys import decode_key, encode_key, encode_keys, wanted_keys
from airflow_tx.state.redis.fence import (
    Call,
    FencedInRedis,
    FenceReading,
    RedisFence,
    RedisTransaction,
    checked_prefix,
    grant_text,
    receipt_arguments,
)
from airflow_tx.state.redis.scripts import FETCH, PUT
from airflow_tx.state.rows import CheckedRows

# --- rows ---------------------------------------------------------------------------------------------------------
# Convert an update's rows to the keys and values of a Redis hash, and back. Source: protocol.md §7
# (numbers are exact).


_FORMAT = 1
Field = bytes
Value = bytes


class RedisRows:
    """The form in which Redis stores a state's columns: keys and values are JSON arrays, with columns sorted by name.

    :param key_types: type by key column, from the stored schema or the first row.
    """

    def __init__(self, columns: Columns, kind: StateKind, key_types: Mapping[str, str]) -> None:
        self.columns = columns
        self.key_types = key_types
        self._keys = sorted(columns.keys)
        self._values = sorted(columns.values)
        self._types_of_keys = [key_types[key] for key in self._keys]
        self._types_of_values = [columns.values[name].type for name in self._values]
        self._sums = all(
            agg.name in ("sum", "count") and agg.type == "bigint" for agg in columns.values.values()
        )
        values = {name: [agg.name, agg.type] for name, agg in columns.values.items()}
        described = {
            "format": _FORMAT,
            "kind": kind.value,
            "keys": dict(key_types),
            "values": values,
        }
        self.schema = json_text(described).encode()

    @classmethod
    def stored(cls, columns: Columns, kind: StateKind, schema: bytes) -> RedisRows:
        """Return the columns of the stored schema. Raise StateError if the schema has other columns than the state."""
        try:
            found = json.loads(schema)
            known = found["format"]
        except (ValueError, KeyError, TypeError):
            known = "unknown"
        if known != _FORMAT:
            problem = f"its schema has format {known}, but this version supports {_FORMAT}"
            raise StateDiffers(
                state=columns.state, problem=problem, remedy="Upgrade airflow-provider-tx."
            )
        types = {
            key: columns.types.get(key) or found["keys"].get(key, "any") for key in columns.keys
        }
        mine = cls(columns, kind, types)
        if mine.schema != schema:
            raise mine.other_columns(schema)
        return mine

    def other_columns(self, schema: bytes) -> StateError:
        problem = (
            f"it exists with other columns: expected {_shown(self.schema)}, found {_shown(schema)}"
        )
        remedy = "Set another prefix for the state, or declare its earlier columns."
        return StateDiffers(state=self.columns.state, problem=problem, remedy=remedy)

    # --- keys -----------------------------------------------------------------------------------------------------

    def fields(self, portion: Sequence[Sequence[Any]]) -> list[Field]:
        """Return the keys of a portion of rows in their stored form."""
        named = self._named(portion)
        if not self._keys:
            return [b"[]"]
        return encode_keys(self._types_of_keys, [named[key] for key in self._keys])

    def field(self, key: Cells) -> Field:
        """Return a key in its stored form. Its values have the order and types of the state's key columns."""
        named = dict(zip(self.columns.keys, key, strict=True))
        return encode_key(self._types_of_keys, [named[name] for name in self._keys])

    def key(self, field: Field) -> dict[str, Any]:
        return dict(zip(self._keys, decode_key(self._types_of_keys, field), strict=True))

    # --- values ---------------------------------------------------------------------------------------------------

    def updated(self, portion: Sequence[Sequence[Any]], bases: Sequence[Any]) -> list[Value]:
        """Combine stored values with the deltas of a portion.

        :param bases: values from which each key starts, as plain JSON; None for a new key; False for a key that must
            not change.
        :raises StateError: values cannot be combined, or the result does not fit.
        """
        if (
            self._sums
            and False not in bases
            and (quick := self._summed(portion, bases)) is not None
        ):
            return quick
        names = tuple(self.columns.values)
        split = len(self.columns.keys)
        result = list[Value]()
        for row, base in zip(zip(*portion, strict=True), bases, strict=True):
            if base is False:
                result.append(b"")
                continue
            before = None if base is None else self._row(base)
            stored = None if before is None else tuple(before[name] for name in names)
            result.append(self._value(self.columns.combined(row[:split], stored, row[split:])))
        return result

    def _summed(self, portion: Sequence[Sequence[Any]], bases: Sequence[Any]) -> list[Value] | None:
        """Add up the values and the deltas of a portion of integer sums.

        Return None if a sum does not fit into 64 bits.
        """
        named = self._named(portion)
        nothing = [None] * len(self._values)
        stored = zip(*[nothing if base is None else base for base in bases], strict=True)
        sums = []
        for name, before in zip(self._values, stored, strict=True):
            added = [
                b if a is None else a if b is None else a + b
                for a, b in zip(before, named[name], strict=True)
            ]
            try:
                sums.append(converted("bigint", added))
            except ValueError:
                return None
        text = json.dumps(list(zip(*sums, strict=True)), separators=(",", ":"))
        return [f"[{row}]".encode() for row in text[2:-2].split("],[")]

    def row(self, field: Field, value: Value) -> dict[str, Any]:
        key = self.key(field)
        return {**{name: key[name] for name in self.columns.keys}, **self.values(value)}

    def values(self, value: Value) -> dict[str, Any]:
        values = self._row(json.loads(value))
        return self.columns.completed({name: values[name] for name in self.columns.values})

    def order(self, row: Mapping[str, Any]) -> Cells:
        return tuple(row[key] for key in self.columns.keys)

    def _named(self, portion: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
        # If a state has no keys, its portions have no key columns.
        return dict(zip((*self.columns.keys, *self.columns.values), portion, strict=True))

    def _row(self, plain: Iterable[Any]) -> dict[str, Any]:
        columns = zip(self._values, self._types_of_values, plain, strict=True)
        return {name: from_plain(kind, value) for name, kind, value in columns}

    def _value(self, values: Cells) -> Value:
        named = dict(zip(self.columns.values, values, strict=True))
        columns = zip(self._values, self._types_of_values, strict=True)
        plain = [to_plain(kind, named[name]) for name, kind in columns]
        return json_text(plain).encode()


def _shown(schema: bytes) -> str:
    found = json.loads(schema)
    keys = ", ".join(f"{name} {kind}" for name, kind in sorted(found["keys"].items()))
    values = ", ".join(
        f"{name} {aggregator} {kind}"
        for name, (aggregator, kind) in sorted(found["values"].items())
    )
    return f"{found['kind']} ({values}) by key ({keys})"


# --- state --------------------------------------------------------------------------------------------------------


# Maximum number of keys in one script. A script of this size blocks the server for about 10 ms.
KEYS_AT_ONCE = 5_000
KEYS_READ_AT_ONCE = 10_000
# Number of scripts that are sent before the reply to the first one is read.
PORTIONS_AT_ONCE = 4


@dataclass(frozen=True)
class _Portion:
    fields: list[bytes]
    values: list[bytes]


class RedisState(FencedInRedis, QueryableState):
    """Values per key in Redis that transactions add to, each exactly once.

    The values are in the hash `{<prefix>}:values`, which anyone may read: field `["AA","JFK"]`, value `[42,-7]`, both
    in the order of the column names. A writer that a later grant has outranked changes nothing. A replay undoes the
    writes of the earlier attempt. Sums are exact, or refused.

    One script writes up to 5,000 keys, completely or not at all. If a commit stops between two scripts, the next try
    undoes or completes it. If Redis loses data after it has confirmed a write, the next commit detects the loss.
    docs/stores.md lists the settings with which Redis loses nothing.

    :param conn_id: Airflow connection of type redis, looked up when the state is used, not when Airflow parses a DAG.
        It has host, port, login and password. Its extras are db, ssl, ssl_*, socket_timeout and socket_connect_timeout.
    :param prefix: the beginning of the keys of this state, in braces. One prefix of a database is one state.
    :param keys: key columns; [] for a state with one row.
    :param values: aggregator by value column, of any kind.
    :param kind: "opaque" (a replay may have other rows) or "transactional" (a replay has the same output).
    :param types: type by key column. A column without a type gets the type of its first row.
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

    def dataset(self) -> Dataset:
        return self._server.dataset(self.prefix)

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
        """Read the stored schema.

        Raise StateError if its columns differ from the columns of the state. Return None before the first update.
        """
        return (
            None if held.schema is None else RedisRows.stored(self.columns, self.kind, held.schema)
        )


class _RedisUpdate(RedisTransaction):
    """An update of values. The new values are computed from the stored values before anything is written.

    It does not matter whether the stored values are read before or after the fence is raised. If the transaction has
    already updated a key, the update starts from the values before the transaction.
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
        # Check the column names before the stored types.
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
        """Read the values from which the updates of several portions start, in one round trip."""
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
        for answer, *rest in self._fence.server.run_scripts(calls):
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
            raise server.refused("a roll-back has not finished", "Raise the fence again.")
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
    # The text does not need the nonce, because the fence accepts only one nonce per rank.
    return ".".join(map(str, grant.token.rank)) + "/"


def _lines(texts: list[bytes]) -> bytes:
    return b"\n".join([*texts, b""])
