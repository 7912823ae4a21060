"""Trace 14: a reply lost at every step, the request done or not, and the step said again; a committer killed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import OutcomeUnknown, Outranked
from airflow_tx.ledger.answers import Committed
from airflow_tx.ledger.records import Waiter
from airflow_tx.ledger.steps import end, recovery, run_slots
from airflow_tx.ledger.steps.step import Audit
from tests.model.conftest import counts
from tests.model.driver import Run, Topology

WRITES = 7
"""Multis of one transaction: open, begin, start, ack, processed, acquire, commit."""


class LosesOneReply:
    """A store whose n-th write gets no answer, whether it was done or not."""

    def __init__(self, store: Any, number: int, done: bool) -> None:
        self._store, self._number, self._done = store, number, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def arm(self) -> None:
        """The next write gets no answer."""
        self._number = 1

    @property
    def has_lost(self) -> bool:
        return self._number <= 0

    def multi(self, requirements: Any, writes: Any) -> None:
        self._number -= bool(writes)
        lost = writes and self._number == 0
        if not lost or self._done:
            self._store.multi(requirements, writes)
        if lost:
            raise OutcomeUnknown(paths=writes[0].path, reason="the test swallowed the reply")


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
def test_a_read_resolves_the_lost_reply_of_any_step(
    store: Callable[[], Any], root: str, number: int, done: bool
) -> None:
    losing = LosesOneReply(store(), number, done)
    topology = Topology(lambda: losing, root, [counts("s0")])
    for run_id in ("r1", "r2"):
        run = Run(topology, run_id)
        run.begin(2)
        run.process({"a": 1, "b": 1})
        run.commit()
    assert losing.has_lost, "the reply was never lost"
    assert topology.totals() == {"a": 2, "b": 2}
    assert [topology.phase(txid) for txid in (1, 2)] == [None, None]


# --- skip, re-admission, yield, replay, allocation ahead ------------------------------------------------------------


def note_skip(topology: Topology) -> Any:
    Run(topology, "r1").begin(1)
    return lambda: topology.note_skip(1)


def withdraw_skip(topology: Topology) -> Any:
    note_skip(topology)()
    topology.skipper(1).acquire()
    return lambda: topology.ledger().run(end.withdraw_skip, 1)


def grant_skip(topology: Topology) -> Any:
    note_skip(topology)()
    return lambda: topology.skipper(1).ask().grant.attempt


def commit_skip(topology: Topology) -> Any:
    note_skip(topology)()
    skipper = topology.skipper(1).acquire().raise_fences().write()
    return lambda: skipper.mark().txid


def readmit(topology: Topology) -> Any:
    Run(topology, "r1").begin(1)
    topology.skip(1)
    return lambda: topology.readmit(1)


def begin_readmitted(topology: Topology) -> Any:
    readmit(topology)()
    run, own = Run(topology, "r1"), topology.ids.task_try()
    return lambda: run.begin(9, task_try=own)


def replay_readmitted(topology: Topology) -> Any:
    begin_readmitted(topology)()
    run, own = Run(topology, "r1"), topology.ids.task_try()

    def again() -> Any:
        begun = run.begin(9, task_try=own)
        return begun.attempt, begun.metadata, begun.position

    return again


def begin_of_an_allocated_run(topology: Topology) -> Any:
    topology.allocate(2)
    run, own = Run(topology, "tx-1"), topology.ids.task_try()
    return lambda: run.begin(9, task_try=own)


def bid(topology: Topology) -> Any:
    Run(topology, "r1").begin(1)
    return lambda: topology.ledger().run(run_slots.bid, Waiter("r2", None, "02", 1))


def give_way(topology: Topology) -> Any:
    Run(topology, "r1").begin(1)
    Run(topology, "r2").begin(1)
    waiter = Waiter("r2", 2, "02", 1)
    topology.ledger().run(run_slots.bid, waiter)
    return lambda: topology.ledger().run(run_slots.note_yield, waiter)


def came_back(topology: Topology) -> Any:
    give_way(topology)()
    return lambda: topology.ledger().run(run_slots.came_back, "r2")


def note_replay(topology: Topology) -> Any:
    Run(topology, "r1").begin(1)
    return lambda: topology.note_replay(1, 1).count


def note_person(topology: Topology) -> Any:
    Run(topology, "r1").begin(1)
    return lambda: topology.ledger().run(recovery.note_person, 1, Audit("ann", "the disk is back"))


def block(topology: Topology) -> Any:
    Run(topology, "r1").begin(1)
    return lambda: topology.note_replay(1, 1, limit=0)


def unblock(topology: Topology) -> Any:
    block(topology)()
    Run(topology, "r1").begin(1)
    return lambda: topology.ledger().run(recovery.unblock)


STEPS = [
    note_skip,
    withdraw_skip,
    grant_skip,
    commit_skip,
    readmit,
    begin_readmitted,
    replay_readmitted,
    begin_of_an_allocated_run,
    bid,
    give_way,
    came_back,
    note_replay,
    note_person,
    block,
    unblock,
]
TWO_GRANTS = {grant_skip}
"""A grant said again is another grant: epoch and op differ, as they must."""


def seen(topology: Topology) -> dict[str, Any]:
    """Every record, without what differs from one process to the other: ids, and how often it was written."""
    store = topology.store()
    found = {}
    for path in topology.tree():
        data = store.get(path).data
        value = json.loads(data) if data else {}
        receipt = value.get("receipt")
        for record in (value, receipt if isinstance(receipt, dict) else {}):
            for name in ("op", "nonce", "request", "incarnation", "tasks", "birth", "acks"):
                record.pop(name, None)
        found[re.sub(r"/acks/([0-9.]+)-[0-9a-f]+", r"/acks/\1", path)] = value
    return found


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("prepared", STEPS, ids=lambda step: step.__name__)
def test_a_lost_reply_of_a_step_does_not_change_its_answer_or_the_stored_records(
    store: Callable[[], Any], root: str, prepared: Callable[[Topology], Any], done: bool
) -> None:
    losing = LosesOneReply(store(), 0, done)
    answered = Topology(store, f"{root}-answered", [counts("s0")])
    lost = Topology(lambda: losing, f"{root}-lost", [counts("s0")])
    expected, step = prepared(answered)(), prepared(lost)
    losing.arm()
    assert step() == expected
    assert losing.has_lost, "the reply was never lost"
    assert seen(lost) == {path.replace("-answered", "-lost"): value for path, value in seen(answered).items()}


@pytest.mark.parametrize("prepared", [step for step in STEPS if step not in TWO_GRANTS], ids=lambda step: step.__name__)
def test_a_repeated_step_returns_the_same_answer_and_changes_no_record(
    topology: Topology, prepared: Callable[[Topology], Any]
) -> None:
    step = prepared(topology)
    first = step()
    before = seen(topology)
    assert step() == first
    assert seen(topology) == before


def test_a_repeated_commit_counts_once(topology: Topology) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    run.process({"a": 1})
    committer = run.written()
    assert committer.mark() == Committed(1, by_this_call=True)
    assert committer.mark() == Committed(1, by_this_call=False)
    assert topology.totals() == {"a": 1}


def test_a_committer_that_was_set_to_failed_after_its_write_is_replaced_by_another(
    topology: Topology,
) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    run.process({"a": 1})
    failed = run.written()
    run.commit()
    assert failed.mark() == Committed(1, by_this_call=False)
    assert topology.totals() == {"a": 1}


def test_two_simultaneous_committers_commit_once_and_the_older_one_is_refused(topology: Topology) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    run.process({"a": 1})
    older, newer = run.committer(), run.committer()
    older.acquire()
    newer.acquire()
    older.raise_fences()
    older.write()
    newer.raise_fences()
    newer.write()
    with pytest.raises(Outranked):
        older.mark()
    newer.mark()
    assert topology.totals() == {"a": 1}
