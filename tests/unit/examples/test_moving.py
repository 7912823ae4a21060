"""What docs/howto/move-from-spark-submit.md shows is the difference of the two DAGs, and it is small."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "howto" / "move-from-spark-submit.md"
EXAMPLE = ROOT / "examples" / "moving"
FILES = ("daily_sales.py", "sum_up.py")
MOST = 12


def difference(file: str) -> list[str]:
    """The lines of a diff, all lines of both files."""
    plain, moved = ((EXAMPLE / kind / file).read_text().splitlines() for kind in ("plain", "transaction"))
    lines = difflib.unified_diff(plain, moved, lineterm="", n=len(plain))
    return [line.rstrip() for line in list(lines)[3:]]


def changed(sign: str) -> Iterator[str]:
    return (line for file in FILES for line in difference(file) if line.startswith(sign) and line[1:].strip())


def test_the_page_shows_the_difference_between_the_two_dags() -> None:
    page = PAGE.read_text()
    for file in FILES:
        assert "```diff\n# {}\n{}\n```".format(file, "\n".join(difference(file))) in page


def test_moving_a_dag_to_transactions_needs_at_most_twelve_new_lines() -> None:
    added = len(list(changed("+")))
    removed = len(list(changed("-")))
    assert added <= MOST
    assert f"{added} lines are new, and {removed} lines are gone" in PAGE.read_text()
