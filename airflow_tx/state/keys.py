"""Keys of states: as tuples, as bytes, and in the types of the key columns."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Protocol, TypeAlias

from airflow_tx.errors import StateError
from airflow_tx.state.column_types import CONVERT, converted, from_plain, json_text, to_plain

Key: TypeAlias = tuple[Any, ...]


class KeyColumns(Protocol):
    """What `Columns` says of the keys of a state."""

    @property
    def state(self) -> str: ...
    @property
    def keys(self) -> tuple[str, ...]: ...


def as_key(key: Any) -> Key:
    """Make a tuple of a key; what is no list or tuple is the key of one column."""
    return tuple(key) if isinstance(key, (list, tuple)) else (key,)


def canonical_number(value: Decimal) -> Decimal:
    """Make one Decimal of all equal ones: no zeros at its end, no minus before 0."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    kept = "".join(map(str, digits)).rstrip("0")
    if not kept:
        return Decimal(0)
    return Decimal((sign, tuple(map(int, kept)), exponent + len(digits) - len(kept)))


def _key_plain(kind: str, value: Any) -> Any:
    if kind == "double":
        return value + 0.0  # -0.0 and 0.0 are equal, so they are one key
    return str(canonical_number(value)) if kind == "numeric" else to_plain(kind, value)


def encode_key(types: Sequence[str], key: Sequence[Any]) -> bytes:
    """Write a key, as `converted` gives it, as bytes that only equal keys share: JSON, which people can read, too."""
    return json_text(
        [_key_plain(kind, value) for kind, value in zip(types, key, strict=True)]
    ).encode()


_QUICK: Mapping[str, Callable[[Any], str]] = {"text": encode_basestring, "bigint": str}


def encode_keys(types: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[bytes]:
    """Write many keys, given column by column, as `encode_key` does, in a tenth of the time."""
    if not set(types) <= _QUICK.keys():
        return [encode_key(types, key) for key in zip(*columns, strict=True)]
    quoted = [map(_QUICK[kind], column) for kind, column in zip(types, columns, strict=True)]
    return [f"[{','.join(key)}]".encode() for key in zip(*quoted, strict=True)]


def decode_key(types: Sequence[str], data: bytes) -> Key:
    return tuple(
        from_plain(kind, plain) for kind, plain in zip(types, json.loads(data), strict=True)
    )


def partition_of(key: Sequence[Any], count: int) -> int:
    """Choose one of `count` partitions: the same one for a key in every process."""
    # -0.0 is 0.0.
    text = repr([part + 0.0 if isinstance(part, float) else part for part in key])
    return zlib.crc32(text.encode()) % count


def wanted_keys(
    columns: KeyColumns, keys: Sequence[Sequence[Any]], key_types: Mapping[str, str] | None
) -> list[tuple[int, Key]]:
    """Number the keys that a state may hold, in the types of its key columns.

    Without keys that have a NULL, which no state holds, and without any before the first update.

    :param key_types: as the first update decided; None: there was none.
    :raises StateError: a key has too few or too many values, or one of another type.
    """
    normal = [as_key(key) for key in keys]
    for number, key in enumerate(normal):
        if len(key) != len(columns.keys):
            problem = (
                f"it has {len(columns.keys)} key columns ({', '.join(columns.keys) or 'none'})"
            )
            raise _no_key(columns, number, key, problem, "Give one value for each, in this order.")
    whole = [(number, key) for number, key in enumerate(normal) if None not in key]
    if key_types is None or not whole:
        return []
    if not columns.keys:
        return whole
    found = list[Sequence[Any]]()
    for name, values in zip(
        columns.keys, zip(*[key for _, key in whole], strict=True), strict=True
    ):
        kind = key_types[name]
        try:
            fitting = converted(kind, values)
        except (ValueError, TypeError, ArithmeticError):
            raise _misfit(columns, name, kind, whole, values) from None
        # As with rows of an update: 0.0 and -0.0 are one key.
        found.append([value + 0.0 for value in fitting] if kind == "double" else fitting)
    return list(zip([number for number, _ in whole], zip(*found, strict=True), strict=True))


def _misfit(
    columns: KeyColumns,
    name: str,
    kind: str,
    keys: Sequence[tuple[int, Key]],
    values: Sequence[Any],
) -> StateError:
    for (number, key), value in zip(keys, values, strict=True):
        try:
            CONVERT[kind](value)
        except (ValueError, TypeError, ArithmeticError) as error:
            return _no_key(
                columns, number, key, f"{name} = {value!r} {error}", f"The column is a {kind}."
            )
    return _no_key(columns, *keys[0], f"{name} does not fit", f"The column is a {kind}.")


def _no_key(columns: KeyColumns, number: int, key: Key, problem: str, remedy: str) -> StateError:
    return StateError(
        state=columns.state, problem=f"key {number} {str(key)[:200]}: {problem}", remedy=remedy
    )
