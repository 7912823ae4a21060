"""The page of Storm's names: a table for each part of `storm.txt`, a row for each of its lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NAMES = Path(__file__).with_name("storm.txt")
"""Lines of three cells: a name of Storm, its counterpart here, and what is different. The first one is the heading."""
COLUMNS = 3
HEAD = """# Names of Storm and Trident

Storm's transactional topologies, guaranteed message processing and Trident state: each name, and its counterpart here.
The names are from the 2.x sources. Transactional topologies were part of releases up to 1.x. To move a topology, read
[Move from Storm or Trident](../howto/move-from-storm.md).
"""


def storm() -> str:
    """Give the page."""
    return "\n".join([HEAD, *_lines(NAMES.read_text())])


def _lines(text: str) -> Iterator[str]:
    begins = False
    for line in text.splitlines():
        if line.startswith("## "):
            yield f"{line}\n"
        elif line:
            yield _row(line)
        else:
            yield ""
        if begins:
            yield "|---" * COLUMNS + "|"
        begins = line.startswith("## ")


def _row(line: str) -> str:
    cells = [cell.strip() for cell in line.split("|")]
    return "| " + " | ".join([*cells, *[""] * (COLUMNS - len(cells))]) + " |"
