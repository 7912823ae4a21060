"""Files and folders that match a glob. A folder that cannot be listed is an error, and never an empty one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from airflow_tx.staging.files import Listed

Listing: TypeAlias = Callable[[str], Mapping[str, Listed]]
"""Lists a folder, "" being the one that all names are relative to; OSError: it cannot be listed whole."""


def matching(pattern: str, listing: Listing) -> dict[str, Listed]:
    """Find what matches a pattern as `glob` reads it, sorted; `glob` itself skips folders that it cannot list.

    :raises OSError: a folder that the pattern leads into cannot be listed.
    """
    return dict(sorted(_matching([part for part in pattern.split("/") if part], "", listing)))


def _matching(parts: Sequence[str], within: str, listing: Listing) -> Iterator[tuple[str, Listed]]:
    part, *rest = parts
    deep = part == "**"
    if deep and rest:  # it also matches no folder
        yield from _matching(rest, within, listing)
    for name, found in listing(within).items():
        below = f"{within}/{name}" if within else name
        if not _fits(name, "*" if deep else part):
            continue
        if not rest:
            yield below, found
        # A link is followed where the pattern names it, and not by "**", which finds its files where they are.
        if (
            found.is_folder
            if deep and not found.is_link
            else rest and not deep and (found.is_folder or found.is_link)
        ):
            yield from _matching(parts if deep else rest, below, listing)
    if deep and not rest and within:
        yield within, Listed(is_folder=True)


def is_hidden(name: str) -> bool:
    """Ask whether Hadoop's readers, and so Spark, leave a name out: others write there, and have not finished."""
    return (
        name.startswith(".")
        or (name.startswith("_") and "=" not in name)
        or name.endswith("._COPYING_")
    )


def _fits(name: str, part: str) -> bool:
    return (part[:1] == name[:1] or not is_hidden(name)) and fnmatchcase(name, part)
