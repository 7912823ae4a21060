"""Checks after `script/test` that the tests which the tables of promises name have run.

A test that is marked long, chaos or cluster runs at other times: it is named, and no fault. Any other test that did not
run fails the check, also one that was skipped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.costs import Costs, read

ROOT = Path(__file__).parents[1]
TABLES = (ROOT / "README.md", ROOT / "docs/explanation/promises.md")


def claimed(pages: Iterable[str]) -> set[str]:
    """Return the names of the tests that the rows of tables name."""
    rows = [line for page in pages for line in page.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`(test_\w+)`", row)}


def judge(names: Iterable[str], parts: Iterable[Costs]) -> tuple[list[str], list[str]]:
    """Return which of these tests did not run though they should have, and which run at other times."""
    found = list(parts)
    ran = {_name(test) for costs in found for test in costs.ran}
    later = {_name(test) for costs in found for test in costs.later}
    missed = set(names) - ran
    return sorted(missed - later), sorted(missed & later)


def _name(test: str) -> str:
    return test.partition("[")[0].rpartition("::")[2]


def main() -> None:
    """Check the last whole run, whose costs lie in the folder that is given."""
    parts = read(Path(sys.argv[1]))
    if not parts:
        sys.exit(f"{sys.argv[1]} has no record of a run: run script/test without arguments, then try again.")
    names = claimed(page.read_text() for page in TABLES)
    missed, later = judge(names, parts.values())
    for name in later:
        print(f"runs with the long tests (script/test --rest SECONDS): {name}")
    print(f"{len(names) - len(missed) - len(later)} of {len(names)} tests that promises name have run.")
    if missed:
        sys.exit("A promise names a test that did not run: " + ", ".join(missed))


if __name__ == "__main__":
    main()
