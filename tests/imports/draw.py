"""Draws texts by a fixed seed, for a reader who marks each: natural, stiff or a riddle.

Usage: python -m tests.imports.draw [seed]. The marks of readers are in tests/VOICE.md.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterator, Mapping

from tests.imports.words import KINDS, ROOT, Text, sentences

SEED = 59
DRAWN: Mapping[str, int] = {"docstrings": 80, "comments": 40, "messages": 40, "pages": 40, "test names": 30}
LONGEST = 600
"""Characters of a text that a reader is shown."""


def test_names() -> Iterator[Text]:
    """Give the names of tests, as words."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                name = node.name.removeprefix("test_").replace("_", " ")
                yield Text(file.relative_to(ROOT).as_posix(), node.lineno, name)


def texts(kind: str) -> list[Text]:
    """List the texts of a kind; of a page each sentence."""
    if kind == "test names":
        return list(test_names())
    found = KINDS[kind]()
    if kind == "pages":
        return [Text(page.file, line, sentence) for page in found for line, sentence in sentences(page)]
    return [each for each in found if len(each.text.split()) > 2]


def drawn(seed: int = SEED) -> Iterator[tuple[str, Text]]:
    """Draw texts of each kind."""
    for kind, count in DRAWN.items():
        yield from ((kind, each) for each in random.Random(f"{seed} {kind}").sample(texts(kind), count))


def main(seed: int = SEED) -> None:
    """Print the drawn texts, numbered."""
    for number, (kind, each) in enumerate(drawn(seed), 1):
        print(f"{number}. [{kind}] {each.file}:{each.line}\n{each.text.strip()[:LONGEST]}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
