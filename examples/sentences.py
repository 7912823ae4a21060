"""Sentences for word counts, from the examples of Storm and Trident. Each file is one batch."""

from __future__ import annotations

import csv
import random
from collections import Counter
from pathlib import Path

SENTENCES = (
    "the cow jumped over the moon",
    "the man went to the store and bought some candy",
    "four score and seven years ago",
    "how many apples can you eat",
    "the dog jumped",
)
ROWS = 100


def write_sentences(folder: Path, files: int) -> None:
    """Write files of sentences, which are the same for each call."""
    chosen = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, files + 1):
        with (folder / f"{number:02}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence"])
            writer.writerows([chosen.choice(SENTENCES)] for _ in range(ROWS))


def counted(folder: Path) -> list[Counter[str]]:
    """Count the words of each file directly, and return the counts in the order of the file names."""
    found = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            found.append(Counter(word for row in csv.DictReader(file) for word in row["sentence"].split()))
    return found
