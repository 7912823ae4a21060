"""JSON objects, read strictly: one object, each key once, no value that JSON has not."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from airflow_tx.rows.types import JsonNumber


def parsed_object(text: str, *, exact: bool) -> dict[str, Any]:
    """Parse a text that is one JSON object.

    :param exact: whether numbers keep their text, as `JsonNumber`.
    :raises ValueError: it is none; why, in words.
    """
    try:
        found = json.loads(
            text,
            parse_float=JsonNumber if exact else None,
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is a JSON {type(found).__name__}, not an object")
    if "\\u" in text:
        _check_characters(found)
    return found


def _constant(word: str) -> NoReturn:
    raise ValueError(f"it is no JSON ({word} is no number)")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is in an object twice")
    return found


def _check_characters(found: dict[str, Any]) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has half a surrogate pair, which is no character") from None
