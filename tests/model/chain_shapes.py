"""The sizes of worlds in which chains are explored; `python -m tests.model.chain_shapes` prints how many each has."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

from tests.model.chain_promises import explore
from tests.model.chains import Budget, Shape

ONE = Shape(Budget(fresh=1, restates=1))
TWICE = Shape(Budget(fresh=1, restates=2))
EMPTY = Shape(Budget(fresh=1, restates=1), sizes=(0,), most=1)
"""The transaction of U has no rows, and its restatement has some."""
SKIPPED = replace(ONE, budget=Budget(fresh=1, restates=1, skips=1, readmits=1))
RESTORED = replace(ONE, budget=Budget(fresh=1, restates=1, restores=1))
SET_BACK = Shape(Budget(fresh=2, restates=1, set_back=1))
REFUSED = replace(TWICE, refused=2)

QUICK = [
    ONE,
    EMPTY,
    Shape(ONE.budget, sizes=(1, 2), counted=True),
    Shape(Budget(fresh=2, replays=1)),
    Shape(Budget(fresh=1, restates=1, skips=1)),
    TWICE,
    RESTORED,
    Shape(Budget(fresh=2, restates=1, replays=1)),
    Shape(Budget(fresh=2, restates=1, up_replays=1), sizes=(0,)),
    Shape(Budget(fresh=1, restates=2, replays=1, skips=1, readmits=1)),
    Shape(Budget(fresh=1, restates=2, withdrawn=1, replays=1)),
    Shape(Budget(fresh=1, restates=1, up_skips=1, up_readmits=1, skips=1, readmits=1)),
    replace(SKIPPED, sizes=(0,), most=1),
    Shape(Budget(fresh=2, restates=1, skips=1, readmits=1), sizes=(0,)),
    replace(RESTORED, stages=3),
    Shape(Budget(fresh=2, restates=1, restores=1), window=1),
    Shape(Budget(fresh=1, restates=2, replays=1), counted=True, sizes=(1, 2, 0)),
    Shape(Budget(fresh=2, restates=1, replays=1), lane=True),
    REFUSED,
    replace(TWICE, over=1),
    Shape(Budget(fresh=1, restates=1, set_back=1, skips=1)),
]
LARGER = [
    Shape(Budget(fresh=2, restates=2)),
    Shape(Budget(fresh=2, restates=2), refused=3),
    Shape(Budget(fresh=2, restates=1, skips=1, readmits=1, replays=1), sizes=(0,)),
    Shape(Budget(2, 2, 1, 1)),
    Shape(Budget(fresh=2, restates=2, skips=1, readmits=1)),
    Shape(Budget(2, 1, 1, 1, 1, skips=1, readmits=1, replays=1)),
    Shape(Budget(fresh=2, restates=2, replays=1), window=3, sizes=(1, 0, 2, 1), counted=True),
    Shape(Budget(fresh=1, restates=2), stages=3),
    SET_BACK,
]
LARGEST = [Shape(Budget(fresh=2, restates=2), stages=3)]
"""It takes minutes, and gigabytes."""
EVERYTHING = Budget(3, 3, 1, 2, 1, 1, 1, 3, 1, 1)
"""What walks may do."""


def main() -> None:
    """Explore all of them."""
    for shape in (*QUICK, *LARGER, *LARGEST):
        begun = process_time()
        found = explore(shape)
        print(
            f"{shape}: {found.worlds:,} worlds, {process_time() - begun:.0f} s, {found.wrong or 'none wrong'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
