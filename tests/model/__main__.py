"""`script/explore`: the sizes that are too large for every test run."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.model.explorer import explore
from tests.model.mutants import MUTANTS, Trace, why_found
from tests.model.shapes import Shape
from tests.model.world import Violation

LARGER = [
    Shape("opaque", 2, 2, 2),
    Shape("transactional", 2, 1, 2, clears_only=True),
    Shape("opaque", 1, 1, 2, clears_only=True, varies=True),
    Shape("opaque", 1, 3, 1, clears_only=True),
    Shape("opaque", 1, 1, 2, clears_only=True, people=("skip", "withdraw")),
    Shape("opaque", 1, 3, 1, window=1, clears_only=True),
    Shape("opaque", 2, 2, 1, phase=True, clears_only=True, varies=True),
    Shape("transactional", 1, 2, 1, lags=True, clears_only=True),
    Shape("opaque", 1, 2, 2, clears_only=True, varies=True),
    Shape("opaque", 2, 2, 1, phase=True),
    Shape("opaque", 1, 2, 1, people=("recovers", "late"), replays=1),
    Shape("opaque", 1, 2, 1, lags=True),
    Shape("transactional", 1, 2, 2),
    Shape("opaque", 2, 3, 2, clears_only=True),
    Shape("transactional", 1, 3, 2, clears_only=True),
    Shape("opaque", 2, 4, 1),
    Shape("transactional", 1, 4, 1),
    Shape("opaque", 1, 1, 2, people=("skip",)),
    Shape("opaque", 2, 1, 2, people=("skip", "withdraw")),
    Shape("opaque", 1, 1, 1, people=("ahead", "lane")),
    Shape("opaque", 1, 1, 1, clears_only=True, people=("skip", "withdraw"), restates=1),
    Shape("opaque", 1, 1, 1, lags=True, restates=1),
    Shape("opaque", 1, 1, 1, shrinks=2, varies=True, restates=1),
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
        by_hand = sum(isinstance(mutant.shape, Trace) for mutant in MUTANTS)
        explored = [number for number, mutant in enumerate(MUTANTS) if isinstance(mutant.shape, Shape)]
        missed = [
            MUTANTS[number].rule for number, found in zip(explored, pool.map(finds, explored), strict=True) if not found
        ]
    print(
        f"Mutants: {len(explored) - len(missed)} found by exploration, {by_hand} are for named tests; missed: {missed}"
    )
    return 1 if missed else broken


def finds(number: int) -> bool:
    """Whether exploration finds a mutant."""
    return why_found(MUTANTS[number]) is not None


if __name__ == "__main__":
    sys.exit(main())
