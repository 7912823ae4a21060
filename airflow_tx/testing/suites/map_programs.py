"""Random programs for maps.

A batch has several attempts by several writers, some of which fail early.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import strategies as st

from airflow_tx.testing.suites.map_tools import AnyMap, Counting, Deltas, Lost, Opened, apply, value


@dataclass(frozen=True)
class Attempt:
    """One attempt of a batch.

    :param writer: the index of the map that writes.
    :param updates: the updates of the attempt. It may end before all of them are written.
    :param ends: how its last update ends. "refused" and "unanswered" are failures, and "quiet" is a success.
    """

    writer: int
    updates: tuple[Deltas, ...]
    ends: str = "quiet"


_numbers = st.integers(-9, 9)
_ends = st.sampled_from(["refused", "unanswered", "quiet"])


@st.composite
def opaque_batches(draw: st.DrawFn) -> list[Attempt]:
    """Generate attempts of one batch with different deltas. The last attempt has the keys of all others."""
    keys = draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=4))
    some = st.lists(st.tuples(st.sampled_from(keys), _numbers), max_size=4)
    early = st.builds(Attempt, st.integers(0, 2), st.lists(some, max_size=3).map(tuple), _ends)
    final = [[(key, draw(_numbers)) for key in keys], *draw(st.lists(some, max_size=2))]
    return [*draw(st.lists(early, max_size=3)), Attempt(draw(st.integers(0, 2)), tuple(final))]


@st.composite
def transactional_batches(draw: st.DrawFn) -> list[Attempt]:
    """Generate attempts of one batch with the same updates. The earlier attempts write only some of the updates."""
    some = st.lists(st.tuples(st.sampled_from("abcde"), _numbers), max_size=4)
    final = draw(st.lists(some, min_size=1, max_size=4).map(tuple))
    early = [
        Attempt(draw(st.integers(0, 2)), final[: draw(st.integers(0, len(final)))], draw(_ends))
        for _ in range(draw(st.integers(0, 3)))
    ]
    return [*early, Attempt(draw(st.integers(0, 2)), final)]


programs = {
    "opaque": st.lists(opaque_batches(), min_size=1, max_size=4),
    "transactional": st.lists(transactional_batches(), min_size=1, max_size=4),
}
_prefixes = itertools.count()


def check_program(opened: Opened, program: list[list[Attempt]]) -> None:
    """Run all attempts of a program, and compare the values with the result of only the last attempt of each batch."""
    # Every program has its own keys. A new store for each program would take a server too long.
    prefix = f"program {next(_prefixes)}"
    expected = dict[str, int]()
    writers: list[AnyMap] = []
    stores: list[Counting] = []
    for _ in range(3):
        writers.append(opened())
        stores.append(opened.last)
    for txid, attempts in enumerate(program, 1):
        for attempt in attempts:
            _perform(writers[attempt.writer], stores[attempt.writer], txid, attempt, prefix)
        final = attempts[-1]
        writers[final.writer].commit(txid)
        for word, delta in itertools.chain(*final.updates):
            expected[word] = expected.get(word, 0) + delta
    # Other writers may still process a batch after an attempt of theirs has failed.
    for state in (writers[program[-1][-1].writer], opened()):
        assert {word: value(state, word, prefix) for word in expected} == expected


def _perform(state: AnyMap, store: Counting, txid: int, attempt: Attempt, prefix: str) -> None:
    state.begin_commit(txid)
    for number, deltas in enumerate(attempt.updates, 1):
        store.fail = (
            attempt.ends if number == len(attempt.updates) and attempt.ends != "quiet" else None
        )
        try:
            apply(state, deltas, prefix)
        except Lost:
            return
    store.fail = None
