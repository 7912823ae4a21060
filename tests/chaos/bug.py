"""A bug of the tasks under fire: their output is wrong for some numbers, until a person mends it and has them restated.

What is mended holds for later transactions only, so that each attempt of a transaction gives the same output. Files are
corrected, too: each number of such a file comes as a larger value.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

PER_BLOCK = 10
WRONG = 1_000_000
"""What the bug adds to a total."""
RIGHT = ("sparked", "sums")
"""Topologies without the bug."""
CHANGING = "late_files"
"""The topology whose files are corrected once they are committed."""
CORRECTED = 1_000_000_000
"""What a number of a corrected file is larger by."""

NUMBERED = "rx"
"""With one of these begins the key of a row that is about one number."""


def output_of(value: int, *, is_mended: bool) -> tuple[str, int]:
    """The key of the row of a number, and its total.

    :param value: of the number in its source.

    Of every other ten numbers, a third goes to a key that the right output does not have; another has a wrong total.
    """
    number = value % CORRECTED
    if is_mended or number // PER_BLOCK % 2 or number % 3 == 2:
        return f"r{number}", value
    return (f"x{number}", value) if number % 3 else (f"r{number}", value + WRONG)


def mend(name: str, txid: int, numbers: Collection[int]) -> None:
    """Mend the output of the numbers of a committed transaction, for transactions after it."""
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{txid}-{os.getpid()}"
    new.write_text(json.dumps(sorted(numbers)))
    new.rename(folder / str(txid))


def mended_after(name: str) -> dict[int, int]:
    """Read, per number that is mended, the first transaction after which its output is right."""
    found = dict[int, int]()
    for path in _folder(name).glob("[0-9]*"):
        for number in json.loads(path.read_text()):
            found[number] = min(int(path.name), found.get(number, int(path.name)))
    return found


def is_mended(name: str, mended: Mapping[int, int], number: int, txid: int) -> bool:
    """Whether the output of a transaction is right for a number of it."""
    return name in RIGHT or (number in mended and txid > mended[number])


def correct(file: str) -> None:
    """Correct a file of CHANGING, unless it is."""
    path = _data() / CHANGING / file
    new = path.with_name(f".{file}-{os.getpid()}")
    new.write_text(content_of([number + CORRECTED for number in numbers_of(file)]))
    new.rename(path)


def is_corrected(file: str, size: int) -> bool:
    """Whether a batch has a file as it was corrected."""
    return size != len(content_of(numbers_of(file)))


def numbers_of(file: str) -> range:
    """Read off the name of a file which numbers it has."""
    first = int(file.partition(".")[0])
    return range(first, first + PER_BLOCK)


def content_of(values: Iterable[int]) -> str:
    """Make what a file says."""
    return "\n".join(["number", *map(str, values), ""])


def _data() -> Path:
    return Path(os.environ.get("AIRFLOW_TX_DATA", "/nowhere"))


def _folder(name: str) -> Path:
    return _data() / "mended" / name
