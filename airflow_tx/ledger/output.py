"""The output that a transactional state takes, as a text to compare with a replay. Source: docs/protocol.md §7.

Two outputs are equal if they have the same keys and values. Floats of value columns may differ by what adding in
another order makes of them. The sum of all floats, each with a weight of its key and column, agrees to 1e-9 of the
sum of their sizes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_tx.ledger.json_text import digest

TOLERANCE = 1e-9
_MOST = 1e300
"""Floats of this size and above are compared exactly: their sum might be infinite."""


def output_text(
    rows: Iterable[Mapping[str, Any]], names: Iterable[str], approximate: Iterable[str]
) -> str:
    """Sum up an output, with any order of its rows; no row is kept.

    :param names: the columns that count; none: whole rows.
    :param approximate: of these the columns whose floats may differ a little; each row has another key.
    """
    columns = list(names)
    loose = {name: 16 * number % 96 for number, name in enumerate(approximate)}
    count = found = 0
    total = size = 0.0
    floats = False
    for row in rows:
        items = [(name, row.get(name)) for name in columns] if columns else sorted(row.items())
        count += 1
        near = {
            name: value
            for name, value in items
            if name in loose and isinstance(value, float) and abs(value) < _MOST
        }
        kept = [(name, ... if name in near else value) for name, value in items]
        key = _number(repr([value for _, value in kept] if columns else kept))
        found += key
        for name, value in near.items():
            weight = 1 + (key >> loose[name] & 0xFFFFFFFF) / 2**32
            total = total + weight * value
            size = size + abs(value)
            floats = True
    text = digest([count, f"{found % 2**128:032x}"])
    return f"{text} {total!r} {size!r}" if floats else text


def same_output(one: str, other: str) -> bool:
    """Compare two texts of `output_text`."""
    exact, *loose = one.split()
    other_exact, *other_loose = other.split()
    if exact != other_exact or not loose or not other_loose:
        return one == other
    total, size = loose
    other_total, other_size = other_loose
    bound = TOLERANCE * max(float(size), float(other_size))
    return abs(float(total) - float(other_total)) <= bound


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")
