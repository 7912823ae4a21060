"""The name that a person knows a batch by, from its metadata: a file, a range, an interval. Shapes: docs/sources.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LONGEST = 120
_PARTITIONS_SHOWN = 2
_MIDNIGHT = ("T00:00:00+00:00", "T00:00:00Z")


def batch_in_words(metadata: Any) -> str:
    """Name a batch, such as `2013-01.csv and 2 more`, `5 to 9`, or `2013-01-01 to 2013-01-02`.

    :param metadata: as its source decided it, or as a receipt keeps it.
    :return: at most `LONGEST` characters; "": its shape has no name, and a person has to read the JSON.
    """
    words = _range(metadata) or _partitions(metadata) if isinstance(metadata, Mapping) else ""
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"


def counted(count: int, unit: str) -> str:
    """Write a number and its unit, such as `1 file`, `2 files`.

    :param unit: in the plural.
    """
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"


def gone_in_words(keys: int) -> str:
    """Say how many keys are gone."""
    return f"{counted(keys, 'keys')} {'is' if keys == 1 else 'are'} gone"


def _range(metadata: Mapping[str, Any]) -> str:
    """Name the rows of a source without partitions, or of one partition."""
    files = metadata.get("files")
    if isinstance(files, list):
        return _files(files)
    if "partition" in metadata:
        return f"partition {_end(metadata['partition'])}"
    first = metadata.get("from")
    if isinstance(first, int):
        return _numbers(first, metadata)
    if isinstance(first, str) and isinstance(metadata.get("to"), str):
        return f"{_end(first)} to {_end(metadata['to'])}"
    if isinstance(metadata.get("upto"), list):
        return _keys(metadata.get("after"), metadata["upto"])
    return f"up to {metadata['to']}" if "after" in metadata and "to" in metadata else ""


def _files(files: Sequence[Any]) -> str:
    names = [str(each["name"]) for each in files if isinstance(each, Mapping) and "name" in each]
    if not names:
        return ""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _numbers(first: int, metadata: Mapping[str, Any]) -> str:
    """Name numbered rows by the first and the last one; the metadata has the number after the last one."""
    count = metadata.get("quantity")
    end = metadata.get("to")
    if isinstance(count, int):
        end = first + count
    if not isinstance(end, int):
        return ""
    return f"{first}" if end - first == 1 else f"{first} to {end - 1}"


def _keys(after: Any, upto: Any) -> str:
    """Name rows of a table by the keys at both ends; the last entry of a range is how many rows it has."""
    last = _key(upto[-1][:-1]) if upto and isinstance(upto[-1], list) else ""
    first = _key(after)
    return f"after {first}, up to {last}" if first and last else f"up to {last}" if last else ""


def _key(values: Any) -> str:
    if not isinstance(values, list) or not values:
        return ""
    texts = [_end(each.get("at", "") if isinstance(each, Mapping) else each) for each in values]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _partitions(metadata: Mapping[str, Any]) -> str:
    """Name the rows by partition; "" if one of the first ones has no name."""
    some = list(metadata.items())[:_PARTITIONS_SHOWN]
    words = [(name, _range(each) if isinstance(each, Mapping) else "") for name, each in some]
    if not words or not all(text for _, text in words):
        return ""
    more = len(metadata) - len(words)
    named = ", ".join(f"{name}: {text}" for name, text in words)
    return f"{named} and {more} more" if more else named


def _end(value: Any) -> str:
    """Write a moment without a time that is midnight in UTC."""
    text = str(value)
    for midnight in _MIDNIGHT:
        text = text.removesuffix(midnight)
    return text
