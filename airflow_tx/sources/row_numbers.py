"""A row that a person names by its number."""

from __future__ import annotations


def is_number_within(what: str, start: int, end: int) -> bool:
    """Ask whether a person typed a number from `start` on and below `end`."""
    return what.isdecimal() and start <= int(what) < end


def is_number_below(what: str, end: int) -> bool | None:
    """Ask whether a person typed a number below `end`; None: it is no number."""
    return int(what) < end if what.isdecimal() else None
