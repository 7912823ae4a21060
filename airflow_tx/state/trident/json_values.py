"""Keys and values of Trident's maps as JSON text, for stores of texts: Redis and Memcached. Exact, and readable.

Plain JSON stays unchanged; other values are in an object of one field, whose name begins with "$".
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from airflow_tx.errors import StateError
from airflow_tx.protocol.attempt import Token
from airflow_tx.state.api import StateKind
from airflow_tx.state.column_types import json_text
from airflow_tx.state.keys import canonical_number
from airflow_tx.state.trident.values import OpaqueValue, TransactionalValue


def to_text(value: Any) -> bytes:
    """Write a value; a TypeError or ValueError if it has no form in JSON."""
    return json_text(_plain(value)).encode()


def from_text(data: bytes) -> Any:
    """Read the value that `to_text` made `data` from; a ValueError if it did not."""
    try:
        return _value(json.loads(data))
    except (LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(str(error)) from error


def from_trident(data: bytes | str, kind: str, *, committed: int) -> Any:
    """Read a value that a map of Storm's Trident has stored with the JSON serializer of its kind.

        counts = OpaqueMap(RedisMap("redis_default", prefix="counts"))
        counts.multi_put([("man",)], [from_trident(b"[7,5,3]", "opaque", committed=7)])

    :param data: what JSONOpaqueSerializer, JSONTransactionalSerializer or JSONNonTransactionalSerializer wrote.
    :param kind: of the map: "opaque", "transactional" or "non-transactional".
    :param committed: the last transaction that Storm has committed; a later one is taken out.
    :return: the value after that transaction; None: there was none.
    :raises StateError: it is no such value; or a later transaction is in it, which only an opaque value can give back.
    """
    problem = f"{str(data)[:80]} is no {kind} value of Trident"
    remedy = "Give the value as Trident's JSON serializer wrote it, and the kind of the map."
    try:
        found = json.loads(data)
        if kind == StateKind.NON_TRANSACTIONAL:
            return found
        txid, value, *prev = found
        if len(prev) == (kind == StateKind.OPAQUE) and type(txid) is int:
            if txid <= committed:
                return value
            if prev:
                return prev[0]
            problem = (
                f"{str(data)[:80]} has transaction {txid}, and Storm has committed {committed}"
            )
            remedy = "Let Storm commit what it has begun: deactivate the topology and wait; then read again."
    except (TypeError, ValueError):
        pass
    raise StateError(state="Trident", problem=problem, remedy=remedy)


def key_text(key: tuple[Any, ...]) -> str:
    """Write a key: other keys have other texts, and equal numbers of one type have one. Raises as `to_text`."""
    return json_text([_plain(_key_part(part)) for part in key])


@dataclass(frozen=True)
class MapTexts:
    """Writes and reads the keys and values of one map; a StateError that names it refuses what has no form in JSON, and
    what no map has written."""

    state: str

    def key(self, key: tuple[Any, ...]) -> str:
        try:
            return key_text(key)
        except (TypeError, ValueError) as error:
            raise self._refused(f"key {key!r}: {error}") from None

    def text(self, name: str, value: Any) -> bytes:
        """Write the value of the key that has this name in the store."""
        try:
            return to_text(value)
        except (TypeError, ValueError) as error:
            raise self._refused(f"the value of {name}: {error}") from None

    def value(self, name: str, data: bytes) -> Any:
        try:
            return from_text(data)
        except ValueError:
            raise self._refused(f"what is under {name} was not written by a map") from None

    def _refused(self, problem: str) -> StateError:
        return StateError(
            state=self.state, problem=problem, remedy="Use other keys or values, or another prefix."
        )


def _key_part(part: Any) -> Any:
    if isinstance(part, float):
        return part + 0.0  # -0.0 and 0.0
    return canonical_number(part) if isinstance(part, Decimal) and part.is_finite() else part


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value!r} is not finite")
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return _plain_dict(value)
    for kind, name, write in _WRITE:
        if isinstance(value, kind):
            return {name: write(value)}
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _plain_dict(value: dict[Any, Any]) -> Any:
    if all(isinstance(name, str) and not name.startswith("$") for name in value):
        return {name: _plain(item) for name, item in value.items()}
    return {"$dict": [[_plain(name), _plain(item)] for name, item in value.items()]}


def _plain_token(token: Token | None) -> Any:
    return None if token is None else [*token.rank, token.nonce, token.birth]


def _token(plain: Any) -> Token | None:
    return None if plain is None else Token(*plain)


def _opaque(value: OpaqueValue[Any]) -> Any:
    return [
        value.txid,
        _plain(value.value),
        _plain(value.prev),
        _plain_token(value.token),
        value.chunk,
    ]


def _transactional(value: TransactionalValue[Any]) -> Any:
    return [value.txid, _plain(value.value), _plain_token(value.token), value.chunk, value.updates]


# In this order: a datetime is a date, too.
_WRITE: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (OpaqueValue, "$opaque", _opaque),
    (TransactionalValue, "$transactional", _transactional),
    (Decimal, "$numeric", str),
    (dt.datetime, "$timestamp", lambda value: value.isoformat()),
    (dt.date, "$date", lambda value: value.isoformat()),
    (bytes, "$bytes", lambda value: base64.b64encode(value).decode()),
    (tuple, "$tuple", lambda value: [_plain(item) for item in value]),
)
_READ: Mapping[str, Callable[[Any], Any]] = {
    "$opaque": lambda p: OpaqueValue(p[0], _value(p[1]), _value(p[2]), _token(p[3]), p[4]),
    "$transactional": lambda p: TransactionalValue(p[0], _value(p[1]), _token(p[2]), p[3], p[4]),
    "$numeric": Decimal,
    "$timestamp": dt.datetime.fromisoformat,
    "$date": dt.date.fromisoformat,
    "$bytes": base64.b64decode,
    "$tuple": lambda plain: tuple(map(_value, plain)),
    "$dict": lambda plain: {_value(name): _value(item) for name, item in plain},
}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(item) for item in plain]
    if isinstance(plain, dict):
        ((name, inner), *more) = plain.items() if plain else [("", None)]
        if name.startswith("$") and not more:
            return _READ[name](inner)
        return {name: _value(item) for name, item in plain.items()}
    return plain
