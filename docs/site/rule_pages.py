"""The page of rules: each section of the protocol with the tests that check it, and the files of these tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"`((?:test_|Test|check_)\w+)`")
"""A test, a class or a module of tests, or a function that a model checks in each world."""


def rules() -> str:
    """Give the page: tests/RULES.md, with the file of each test."""
    text = (ROOT / "tests/RULES.md").read_text().replace("](../docs/", "](../")
    return NAME.sub(lambda name: f"{name[0]} in {', '.join(f'`{file}`' for file in files().get(name[1], []))}", text)


def sections(page: Path) -> dict[str, str]:
    """Give the text below each heading of a page, with its level; a heading may come twice."""
    parts = re.split(r"(?m)^(##+ .*)$", page.read_text())[1:]
    found: dict[str, str] = {}
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        found[heading] = found.get(heading, "") + text
    return found


def named(text: str) -> list[str]:
    """Give the tests that a text names."""
    return NAME.findall(text)


@cache
def files() -> dict[str, list[str]]:
    """Give the files of each test, by its name."""
    found: dict[str, list[str]] = {}
    for folder in ("tests", "airflow_tx/testing"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name in {file.stem, *_names(file.read_text())}:
                found.setdefault(name, []).append(file.relative_to(ROOT).as_posix())
    return found


def _names(code: str) -> Iterator[str]:
    return (match[1] for match in re.finditer(r"(?m)^\s*(?:async )?(?:def|class) (\w+)", code))
