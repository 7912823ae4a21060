"""Answers that write nothing are believed only if they are of one moment, and as new as anybody's."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from airflow_tx.base.errors import FailedTransaction, IncompleteBatch
from airflow_tx.ledger.answers import NotYet
from airflow_tx.ledger.api import Paths, Put
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Counter, encode
from airflow_tx.ledger.steps.step import Decision, Stamp
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.sources.memory import MemorySource
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.turn import commit_in_turn
from tests.model.driver import CountedIds, HandClock, Run, Topology
from tests.model.product import LOG


def test_a_step_decides_with_records_that_were_all_read_at_the_same_time(topology: Topology) -> None:
    store, paths = MemoryStore(), Paths("/tx", "t")
    for path in (paths.current, paths.allocated):
        store.ensure(path)
    both = [Put(path, encode(Counter(1))) for path in (paths.current, paths.allocated)]
    store.multi((), both)
    others = [2, 3]

    def step(read: Reader, stamp: Stamp, paths: Paths) -> Decision[tuple[int, int]]:
        first = read.get(Counter, paths.current).txid
        if others:  # between the two reads, somebody writes both
            number = others.pop(0)
            store.multi((), [Put(each.path, encode(Counter(number))) for each in both])
        return Decision((first, read.get(Counter, paths.allocated).txid))

    ledger = Ledger(store, paths, clock=HandClock(), ids=CountedIds())
    assert ledger.run(step) == (3, 3)


def test_a_batch_is_complete_only_when_every_task_has_acked(topology: Topology) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    run.start()
    with pytest.raises(IncompleteBatch, match="p"):
        run.committer().processed()


def test_a_committer_that_asks_for_the_turn_too_early_must_wait(topology: Topology) -> None:
    first, second = Run(topology, "r1"), Run(topology, "r2")
    first.processed(1, {"a": 1})
    second.processed(1, {"b": 1})
    early = second.committer()
    early.processed()
    assert early.ask() == NotYet(1)


class Waiting:
    """What a committer that waits for the turn of another one finds around it."""

    def __init__(self, topology: Topology, run: Run) -> None:
        begun = run.begun
        assert begun is not None
        self.store = topology.store()
        self.spec = SimpleNamespace(
            topology="trace",
            dag_id="trace",
            task_id="commit",
            id="1",
            source=MemorySource({}),
            paths=topology.paths,
            tasks=("p",),
            needed=frozenset({"p"}),
            mapped=(),
            phase=None,
            ackers=None,
            requires_proof=False,
            rejected=None,
            max_rejected=None,
            journal_time=timedelta(0),
        )
        states = {run.run_id: {"p": "success"}}
        ti = SimpleNamespace(
            dag_id="trace",
            task_id="commit",
            id="1",
            run_id=run.run_id,
            dag_version_id="v1",
            get_task_states=lambda **asked: states,
            get_dagrun_state=lambda **asked: "running",
        )
        self.commit = Commit(self.spec, begun, (), topology.ledger(), ti, LOG)  # type: ignore[arg-type]


def test_a_waiting_committer_fails_if_its_own_transaction_fails(topology: Topology) -> None:
    """Not only at its turn, which may be hours away: its run would hold its slot for nothing."""
    first, second = Run(topology, "r1"), Run(topology, "r2")
    first.processed(1, {"a": 1})
    second.processed(1, {"b": 1})
    waiting = Waiting(topology, second)
    looks = 0

    def later() -> float:
        nonlocal looks
        looks += 1
        if looks == 2:  # it has looked, and waits in its worker
            second.start().fail("of memory")
        return 0.0 if looks < 3 else 100.0

    with pytest.raises(FailedTransaction, match="of memory"):
        commit_in_turn(waiting.commit, waiting.store, patience=50.0, clock=later)
