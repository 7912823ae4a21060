"""Two threads on one ledger, as in a lane: what it remembers is never that of a version yet to come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_tx.ledger.api import Create, Paths, Put, Requirement, Write
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Counter, encode
from airflow_tx.ledger.steps.step import Decision, Stamp, put
from airflow_tx.ledger.store.memory import MemoryStore
from tests.model.driver import CountedIds, HandClock

PATHS = Paths("/tx", "t")


def increment(read: Reader, stamp: Stamp, paths: Paths) -> Decision[int]:
    """Count one up."""
    number = read.get(Counter, paths.current).txid + 1
    return put(paths.current, Counter(number), number)


def append(read: Reader, stamp: Stamp, paths: Paths) -> Decision[int]:
    """Create a record whose name is the number of those that are there."""
    number = len(read.names(paths.repairs))
    writes = (Create(paths.repair(number), encode(Counter(number))), Put(paths.repairs, b""))
    return Decision(number, writes, paths.repair(number))


class HeldStore(MemoryStore):
    """Lets something happen between a multi and its reply, once."""

    meanwhile: Callable[[], object] | None = None

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        super().multi(requirements, writes)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


@pytest.fixture
def store() -> HeldStore:
    made = HeldStore()
    for path in (PATHS.current, PATHS.repairs):
        made.ensure(path)
    made.multi([], [Put(PATHS.current, encode(Counter(0)))])
    return made


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def ledger_of(store: MemoryStore) -> Ledger:
    return Ledger(store, PATHS, clock=HandClock(), ids=CountedIds())


def in_thread(call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("knows", [False, True])
def test_a_late_reply_does_not_replace_a_newer_record_that_another_thread_has_written(
    store: HeldStore, steps: int, *, knows: bool
) -> None:
    shared, other = ledger_of(store), ledger_of(store)
    if knows:
        shared.run(increment)

    def meanwhile() -> None:
        for _ in range(steps):
            shared.run(increment)

    store.meanwhile = lambda: in_thread(meanwhile)
    shared.run(increment)
    other.run(increment)  # the very version that would have been taken for known
    done = shared.run(increment)
    assert done == knows + steps + 3


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_late_reply_adds_no_name_to_the_newer_list_of_names_of_another_thread(store: HeldStore, steps: int) -> None:
    shared, other = ledger_of(store), ledger_of(store)

    def meanwhile() -> None:
        for _ in range(steps):
            shared.run(append)

    store.meanwhile = lambda: in_thread(meanwhile)
    shared.run(append)
    other.run(append)
    assert shared.run(append) == steps + 2
    names = store.children(PATHS.repairs)
    assert names is not None
    assert len(names.names) == steps + 3


def test_threads_that_share_a_ledger_count_exactly_although_another_process_also_writes(
    store: HeldStore, switching: None
) -> None:
    shared, other = ledger_of(store), ledger_of(store)

    def work(ledger: Ledger) -> None:
        for _ in range(50):
            ledger.run(increment)
            ledger.run(append)

    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(work, ledger) for ledger in (shared, shared, other)]:
            each.result()
    assert other.run(increment) == 151
    assert other.run(append) == 150
