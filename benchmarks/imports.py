"""What our names cost a DAG file that is parsed, in processor time. Usage: script/bench imports [how many]"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.figures import machine
from tests.imports.parsing import NAMES, SOURCES, parse

BUDGET = 0.050
REPEATS = 8


def main(repeats: int) -> None:
    """Parse a DAG file with one source after the other; the best of several, as a busy machine only adds to it."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        parse(home, *NAMES, *SOURCES)  # compiles what was never imported before
        for source in SOURCES:
            best = min(float(parse(home, *NAMES, source)["seconds"]) for _ in range(repeats))
            print(f"{source}: {best * 1000:.0f} ms{'' if best <= BUDGET else f', more than {BUDGET * 1000:.0f} ms'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS)
