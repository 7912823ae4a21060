"""Short display names of batches, made from the metadata: a file, a range or an interval. Forms: docs/sources.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_tx.ledger.json_text import is_shortened

LONGEST = 120
SHOWN = 20
_PARTITIONS_SHOWN = 2
_MIDNIGHT = ("T00:00:00+00:00", "T00:00:00Z")
_DETAILS = frozenset(
    {
        "birth",
        "checksum",
        "columns",
        "digest",
        "etag",
        "hash",
        "incarnation",
        "options",
        "schema",
        "size",
        "topic_id",
    }
)
_PLACE = re.compile(r"(-?\d{1,99})(?:-(\d{1,99}))?|\[(-?\d{1,99})\]")
"""A number, an entry id such as `17-0`, or a key that consists of one number."""


def batch_in_words(metadata: Any) -> str:
    """Return a short name of a batch, such as `2013-01.csv and 2 more`, `5 to 9`, or `2013-01-01 to 2013-01-02`.

    :param metadata: metadata from the source or from a receipt.
    :return: at most `LONGEST` characters. "" if this form of metadata has no short name, so users must read the JSON.
    """
    words = _range(metadata) or _partitions(metadata) if isinstance(metadata, Mapping) else ""
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"


def batch_texts(metadata: Any, wanted: str, *, details: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the texts that a search compares: the texts in a batch's metadata, and its files with their folders.

    Each text comes with the name of the rows that it describes, such as `orders-0:7` for `orders-0:7 (5 to 9)`.

    :param wanted: the search text, case-folded. In `PARTITION:PLACE`, the place is a file, a number or an id, and the
        partition may contain colons. If the partition has the place, a text such as `orders-0:7 (5 to 9)` is yielded.
    :param details: whether to yield only texts that describe the rows without naming them, such as `digest
        content:9f86…`.
    """
    if details:
        yield from ((f"{detail} {text}", "") for detail, text in _texts(metadata) if detail)
        return
    yield from ((text, text) for detail, text in _texts(metadata) if not detail)
    has_parts = isinstance(metadata, Mapping) and not (is_shortened(metadata) or _range(metadata))
    for name, rows in metadata.items() if has_parts else ():
        begins = f"{name}:".casefold()
        if wanted.startswith(begins):
            for place, within in _places(rows, wanted.removeprefix(begins)):
                yield f"{name}:{place}{within}", f"{name}:{place}"


def _texts(value: Any, detail: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in the metadata with the name of its detail, such as `digest`, or "" if it names rows."""
    if isinstance(value, str):
        yield detail, value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, detail)
    elif isinstance(value, Mapping) and not is_shortened(value):
        for name, each in value.items():
            yield from _texts(each, detail or (name if name in _DETAILS else ""))
        folder = str(value.get("folder", "")).rstrip("/")
        yield from ((detail, f"{folder}/{name}") for name in _file_names(value))


def _places(rows: Any, wanted: str) -> Iterator[tuple[str, str]]:
    """Yield the positions in a partition: its files, and `wanted` if the partition has this number, id or plain value.

    A position inside a range comes with the range.
    """
    if isinstance(rows, Mapping):
        yield from ((name, "") for name in _file_names(rows))
        place = _place(wanted)
        after, last = _ends(rows)
        before = () if after is None else _place(after) or place
        if len(place) == len(_place(last)) and before < place <= _place(last):
            yield wanted, f" ({_range(rows)})"
    elif isinstance(rows, (int, str)) and str(rows).casefold() == wanted:
        yield str(rows), ""


def counted(count: int, unit: str) -> str:
    """Format a number with its unit, such as `1 file` or `2 files`.

    :param unit: unit in the plural.
    """
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"


def gone_in_words(keys: int) -> str:
    """Return a clause such as `2 keys are gone`."""
    return f"{counted(keys, 'keys')} {'is' if keys == 1 else 'are'} gone"


def shortened(words: list[str]) -> list[str]:
    """Shorten a list for display, since a list of thousands of partitions would be too long."""
    return words if len(words) <= SHOWN else [*words[:SHOWN], f"and {len(words) - SHOWN} more"]


def _range(metadata: Mapping[str, Any]) -> str:
    """Return a short name for the rows of one partition, or of a source without partitions."""
    if names := _file_names(metadata):
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    if "partition" in metadata:
        return f"partition {_end(metadata['partition'])}"
    first = metadata.get("from")
    after, last = _ends(metadata)
    if "birth" in metadata:
        first, last = map(metadata.get, ("first", "last"))
    if isinstance(first, int) and isinstance(last, int):
        return f"{first}" if first == last else f"{first} to {last}"
    if isinstance(first, str) and isinstance(metadata.get("to"), str):
        return f"{_end(first)} to {_end(metadata['to'])}"
    if isinstance(last, list):
        low, high = map(_key, (after, last))
        return f"after {low}, up to {high}" if low and high else f"up to {high}" if high else ""
    return f"up to {metadata['to']}" if "after" in metadata and "to" in metadata else ""


def _file_names(metadata: Any) -> list[str]:
    files = metadata.get("files") if isinstance(metadata, Mapping) else None
    return [
        str(each["name"])
        for each in (files if isinstance(files, list) else ())
        if isinstance(each, Mapping) and "name" in each
    ]


def _ends(metadata: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the position before the rows, or None if there is none, and the position of the last row.

    For numbered rows, the metadata has the number after the last row. For a table, the metadata has ranges with row
    counts.
    """
    first, count, end, upto = map(metadata.get, ("from", "quantity", "to", "upto"))
    if isinstance(first, int):
        end = first + count if isinstance(count, int) else end
        return first - 1, end - 1 if isinstance(end, int) else None
    last = upto[-1] if isinstance(upto, list) and upto else None
    return metadata.get("after", ""), last[:-1] if isinstance(last, list) else end


def _key(values: Any) -> str:
    if not isinstance(values, list) or not values:
        return ""
    texts = [_end(each.get("at", "") if isinstance(each, Mapping) else each) for each in values]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _partitions(metadata: Mapping[str, Any]) -> str:
    """Return a short name of the rows of each partition. Return "" if one of the first partitions has none."""
    some = list(metadata.items())[:_PARTITIONS_SHOWN]
    words = [(name, _range(each) if isinstance(each, Mapping) else "") for name, each in some]
    if not words or not all(text for _, text in words):
        return ""
    more = len(metadata) - len(words)
    named = ", ".join(f"{name}: {text}" for name, text in words)
    return f"{named} and {more} more" if more else named


def _place(value: Any) -> tuple[int, ...]:
    found = _PLACE.fullmatch(str(value))
    return tuple(int(each) for each in found.groups() if each) if found else ()


def _end(value: Any) -> str:
    """Format a time as a date if the time is midnight in UTC."""
    text = str(value)
    for midnight in _MIDNIGHT:
        text = text.removesuffix(midnight)
    return text
