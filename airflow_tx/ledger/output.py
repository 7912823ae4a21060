"""Describe the output for a transactional state as a text that a replay can compare. Source: docs/protocol.md §7.

Two outputs are equal if they have the same keys and values. Floats in value columns may differ slightly, since their
rounding depends on the order of addition. All floats are added up, each weighted by its key and column. Two such sums
may differ by at most 1e-9 of the sum of absolute values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_tx.ledger.json_text import digest

TOLERANCE = 1e-9
_MOST = 1e300
"""Floats of at least this size are compared exactly, since their sum could be infinite."""


def output_text(
    rows: Iterable[Mapping[str, Any]], names: Iterable[str], approximate: Iterable[str]
) -> str:
    """Return a text that describes an output, regardless of row order. No rows are kept in memory.

    :param names: the columns to compare; all columns if empty.
    :param approximate: the columns whose floats may differ slightly. Each row must then have a different key.
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
    """Return whether two texts from `output_text` describe the same output."""
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
