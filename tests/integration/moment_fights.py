"""Two committers that write the same states in one moment, each with attempts of its own, and a reader that looks on.

The order of the updates is another one each time. After each round all states have the last attempt, and nothing else.
Usage: moment_fights.py URL NAME SECONDS [together | mixed]
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from airflow_tx.base.errors import FenceOutranked, StateError, StateLocked
from airflow_tx.state.api import Grant, StoredState
from airflow_tx.testing.suites.state_together import apart, together
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.moments import Moments

_TOLD = ("rounds", "written", "outranked", "deadlocks", "waited too long", "looks", "torn")
ATTEMPTS = 4
"""Of each transaction; of each committer every other one."""
_PLANS: dict[str, tuple[Callable[..., object], ...]] = {"together": (together,), "mixed": (together, apart)}


def fight(moments: Moments, goes_on: Callable[[Counter[str]], bool], *, mode: str = "together") -> Counter[str]:
    """Let two committers race for one transaction after the other; what happened.

    :param goes_on: is asked before each round, with what has happened until now.
    :param mode: mixed: some attempts are written state by state, as without `together`.
    """
    found, grants, over = Counter[str](), Grants(), Event()
    moments.begin()
    first = grants(1)
    together(first, moments.states(), moments.updates(first))
    grants.final(first, *moments.states())
    # Each committer keeps its own, as a lane does: more rounds come of it.
    kept = [moments.states() for _ in range(2)]
    with ThreadPoolExecutor(3) as pool:
        reading = pool.submit(_read, moments, over)
        try:
            while goes_on(found):
                attempts = [grants(found["rounds"] + 2, attempt) for attempt in range(1, ATTEMPTS + 1)]
                writing = [
                    pool.submit(_commit, moments, states, attempts[number::2], mode)
                    for number, states in enumerate(kept)
                ]
                for each in writing:
                    found += each.result()
                last = attempts[-1]
                seen = moments.look()
                assert seen.is_of(last), (seen, last)
                grants.final(last, *moments.states())
                found["rounds"] += 1
        finally:
            over.set()
        return found + reading.result()


def _commit(moments: Moments, kept: Sequence[StoredState], attempts: Sequence[Grant], mode: str) -> Counter[str]:
    found = Counter[str]()
    for grant in attempts:
        while True:
            pairs = list(zip(kept, moments.updates(grant), strict=True))
            random.shuffle(pairs)
            states, updates = ([each[number] for each in pairs] for number in (0, 1))
            try:
                random.choice(_PLANS[mode])(grant, states, updates)
                found["written"] += 1
            except FenceOutranked:
                found["outranked"] += 1
            except StateLocked as locked:
                found["deadlocks" if "deadlock" in str(locked).lower() else "waited too long"] += 1
                continue
            except StateError as error:
                raise AssertionError(f"{type(error).__name__}: {error}") from error
            break
    return found


def _read(moments: Moments, over: Event) -> Counter[str]:
    found = Counter[str]()
    while not over.is_set():
        found["looks"] += 1
        found["torn"] += moments.look().is_torn
    return found


def main(url: str, name: str, seconds: float, mode: str = "together") -> str:
    """Fight so long, and tell what happened."""
    until = time.monotonic() + seconds
    found = fight(Moments(url, name), lambda _: time.monotonic() < until, mode=mode)
    return "  ".join(
        f"{each}={found[each]:,}"
        for each in ("rounds", "written", "outranked", "deadlocks", "looks", "torn", "waited too long")
    )


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:]))
