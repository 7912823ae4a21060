"""Runs the quick tests on every mutant of some files, in forks of one warm process; says which ones survive.

A mutant gets the tests that execute its line: first those that have killed another mutant of its function, then the
quickest, until one fails; at last a small exploration of tests/model. What was found is kept, so that a run that was
ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.forks import Forks
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.selection import Selection, is_slow

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ["airflow_tx/protocol", "airflow_tx/state/fence.py", "airflow_tx/commit"]
ROOMS = ("commit", "coordinator", "processing", "protocol", "state", "topology", "triggers")
TESTS = [*(f"tests/unit/{room}" for room in ROOMS), "tests/model", "tests/contract"]
RESULTS = ROOT / ".mutants.jsonl"
LISTED = ROOT / "tests/survivors.md"


class Run:
    """A plugin that runs the mutants instead of the tests."""

    def __init__(self, wanted: Sequence[Mutant], known: dict[str, str], given: argparse.Namespace) -> None:
        self.wanted, self.known, self.given = wanted, known, given

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not is_slow(item)]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        selection = Selection(frozenset(str(ROOT / mutant.path) for mutant in self.wanted), self.given.most)
        selection.measure(session.items)
        forks = Forks(selection, ROOT, self.given.jobs, self.given.limit)
        unknown = [mutant for mutant in self.wanted if mutant.key not in self.known]
        survivors = 0
        for number, (mutant, outcome) in enumerate(forks.run(unknown), 1):
            self.known[mutant.key] = outcome
            with RESULTS.open("a") as file:
                file.write(json.dumps({"key": mutant.key, "outcome": outcome}) + "\n")
            if not outcome.startswith("killed"):
                survivors += 1
                print(f"\n[{number}/{len(unknown)}] {shown(mutant, outcome)}", flush=True)
            elif number % 50 == 0:
                print(f"[{number}/{len(unknown)}] {survivors} survive", flush=True)
        return True


def shown(mutant: Mutant, outcome: str) -> str:
    """A survivor, as a person reads it."""
    return f"{mutant.key} {mutant.path}:{mutant.line} {mutant.function}: {mutant.what} ({outcome})\n{mutant.diff}"


def _files(names: Sequence[str]) -> Iterator[tuple[Path, int | None]]:
    for name in names:
        path, _, line = name.partition(":")
        found = ROOT / path
        for file in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            yield file, int(line) if line else None


def _known() -> dict[str, str]:
    if not RESULTS.exists():
        return {}
    entries: list[dict[str, Any]] = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {entry["key"]: entry["outcome"] for entry in entries}


def _summary(wanted: Sequence[Mutant], known: dict[str, str], *, verbose: bool) -> None:
    """Count, by file, those that were tried; a survivor is listed in tests/survivors.md, or a test is missing."""
    listed = set(re.findall(r"\b[0-9a-f]{12}\b", LISTED.read_text()))
    rows: dict[str, list[int]] = {}
    for mutant in wanted:
        outcome = known.get(mutant.key)
        row = rows.setdefault(mutant.path, [0, 0, 0, 0, 0])
        row[0] += 1
        if outcome is None:
            continue
        row[1] += 1
        row[2 if outcome.startswith("killed") else 3 if mutant.key in listed else 4] += 1
        if verbose and not outcome.startswith("killed") and mutant.key not in listed:
            print(f"\n{shown(mutant, outcome)}")
    print(f"\n{'':44}{'mutants':>9}{'tried':>9}{'killed':>9}{'listed':>9}{'survive':>9}")
    for path, row in [*rows.items(), ("in all", [sum(column) for column in zip(*rows.values(), strict=True)])]:
        print(f"{path:44}" + "".join(f"{count:9}" for count in row))


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/mutate", description=__doc__)
    parser.add_argument("files", nargs="*", default=DEFAULT, help="files, folders or file:line; default: all rules")
    parser.add_argument("--sample", type=int, help="so many mutants, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="forget what was found before")
    parser.add_argument("--survivors", action="store_true", help="try again those that have survived")
    parser.add_argument("--known", action="store_true", help="say what was found before, and try nothing")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one mutant")
    parser.add_argument("--most", type=float, default=30.0, help="seconds of tests for one mutant")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    given = parser.parse_args()
    if given.again:
        RESULTS.unlink(missing_ok=True)
    known = _known()
    if given.survivors:
        known = {key: outcome for key, outcome in known.items() if outcome.startswith("killed")}
    wanted = [
        mutant for path, line in _files(given.files) for mutant in mutants(path, ROOT) if line in (None, mutant.line)
    ]
    if given.sample is not None:
        wanted = random.Random(given.seed).sample(wanted, min(given.sample, len(wanted)))
    left = 0 if given.known else sum(mutant.key not in known for mutant in wanted)
    if left:
        began = time.monotonic()
        # Nothing of the warm process may go into the forks: no output of a test, no thread, no limit of time.
        options = ["-q", "-p", "no:cacheprovider", "-o", "timeout=0", *given.tests]
        pytest.main(options, plugins=[Run(wanted, known, given)])
        print(f"\n{left} mutants in {time.monotonic() - began:.0f} s")
    _summary(wanted, known, verbose=not left)
    return 0 if all(mutant.key in known for mutant in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
