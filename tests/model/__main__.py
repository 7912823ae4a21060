"""`script/explore`: the sizes that are too large for every test run."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.model.explorer import explore
from tests.model.programs import Shape
from tests.model.world import Violation

LARGER = [
    Shape("opaque", 2, 2, 2),
    Shape("transactional", 1, 2, 2),
    Shape("opaque", 2, 3, 2, clears_only=True),
    Shape("transactional", 1, 3, 2, clears_only=True),
    Shape("opaque", 2, 4, 1),
    Shape("transactional", 1, 4, 1),
    Shape("opaque", 1, 1, 2, people=("skip",)),
    Shape("opaque", 2, 1, 2, people=("skip", "withdraw")),
    Shape("opaque", 1, 2, 2, clears_only=True, people=("skip",)),
    Shape("transactional", 1, 2, 2, clears_only=True, people=("skip", "yield")),
    Shape("opaque", 2, 3, 1, people=("skip", "yield")),
]


def main() -> int:
    """Explore them all; 1 if a promise was broken."""
    broken = 0
    with ProcessPoolExecutor(2) as pool:
        futures = {pool.submit(explore, shape): shape for shape in LARGER}
        for future in as_completed(futures):
            try:
                print(future.result(), flush=True)
            except Violation as violation:
                broken = 1
                print(f"{futures[future]}: BROKEN: {violation}", *violation.trail, sep="\n  ", flush=True)
    return broken


if __name__ == "__main__":
    sys.exit(main())
