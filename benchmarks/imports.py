"""What our names cost a DAG file that is parsed: processor time, and modules beyond Airflow's own.

Usage: script/bench imports [how many]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.figures import machine
from tests.imports.parsing import FIRST_PAGE, NAMES, SOURCES, beyond_airflow, parse

BUDGET = 0.050
REPEATS = 8


def main(repeats: int) -> None:
    """Parse a first DAG file with each source, and one with all names; the best of several."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        parse(home, *NAMES, *SOURCES)  # compiles what was never imported before
        files = {f"a first DAG file with {source}": (*FIRST_PAGE, source) for source in SOURCES}
        for what, names in {**files, "all names, and FileSource": (*NAMES, "FileSource")}.items():
            found = [parse(home, *names) for _ in range(repeats)]
            best = min(float(each["seconds"]) for each in found)
            late = "" if best <= BUDGET else f", more than {BUDGET * 1000:.0f} ms"
            print(f"{what}: {best * 1000:.0f} ms, {len(beyond_airflow(found[0]['loaded']))} modules{late}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS)
