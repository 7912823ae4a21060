"""Checks after the tests of `.ci/run` that the tests which the tables of promises name have run.

Call it with the folders of costs that `script/test`, `script/test --hosts` and `script/test --rest` have written.
A test has to have run in one of them, and not to have skipped itself. A promise speaks of all parameters of its test,
or of those that it names: `test_a` or `test_a[lake]`. The check names a missing folder, and each long or chaotic test
that no run had time for. It does not fail for them.
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
    return {name for row in rows for name in re.findall(r"`(test_\w+(?:\[[^`]*\])?)`", row)}


def judge(names: Iterable[str], parts: Iterable[Costs]) -> tuple[list[str], list[str]]:
    """Return which of these tests did not run though they should have, and for which there was no time.

    A test with parameters is each of them that any part has begun or left out.
    """
    found = list(parts)
    ran = {test for costs in found for test in costs.ran}
    begun = ran.union(*(costs.seconds for costs in found))
    later = {test for costs in found for test in costs.later} - begun
    known: dict[str, set[str]] = {}
    for test in begun.union(later, *(costs.left_out for costs in found)):
        for name in {_name(test), _whole(_name(test))}:
            known.setdefault(name, set()).add(test)
    missed = {test for name in names for test in known.get(name, {name}) - ran}
    return sorted({_name(test) for test in missed - later}), sorted({_name(test) for test in missed & later})


def _name(test: str) -> str:
    """Return a test as a promise names it: without its file and its class, with its parameters."""
    path, bracket, parameters = test.partition("[")
    return path.rpartition("::")[2] + bracket + parameters


def _whole(name: str) -> str:
    """Return the test that a parameter belongs to."""
    return name.partition("[")[0]


def main() -> None:
    """Check the last runs, whose costs lie in the folders that are given."""
    folders = [Path(each) for each in sys.argv[1:]]
    parts = [costs for folder in folders for costs in read(folder).values()]
    if not parts:
        sys.exit(f"No record of a run in {sys.argv[1:]}: run script/test without arguments, then try again.")
    names = claimed(page.read_text() for page in TABLES)
    missed, later = judge(names, parts)
    for folder in folders:
        if not folder.is_dir():
            print(f"no record of a run: {folder}")
    for name in later:
        print(f"not run for lack of time (script/test --rest SECONDS, or --hosts): {name}")
    not_run = {_whole(name) for name in (*missed, *later)}
    whole = [name for name in names if _whole(name) not in not_run]
    print(f"{len(whole)} of {len(names)} tests that promises name have run with all parameters.")
    if missed:
        sys.exit("A promise names a test that did not run: " + ", ".join(missed))


if __name__ == "__main__":
    main()
