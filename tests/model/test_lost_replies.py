"""Trace 14: a reply lost at every step, the request done or not; the committer killed between write and mark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.errors import OutcomeUnknown, Outranked
from airflow_tx.protocol.step import Committed
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

    def multi(self, requirements: Any, writes: Any) -> None:
        self._number -= bool(writes)
        lost = writes and self._number == 0
        if not lost or self._done:
            self._store.multi(requirements, writes)
        if lost:
            raise OutcomeUnknown(paths=writes[0].path, reason="the test swallowed the reply")


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
def test_a_lost_reply_at_any_step_is_resolved_by_reading_back(
    store: Callable[[], Any], root: str, number: int, done: bool
) -> None:
    losing = LosesOneReply(store(), number, done)
    topology = Topology(lambda: losing, root, [counts("s0")])
    for run_id in ("r1", "r2"):
        run = Run(topology, run_id)
        run.begin(2)
        run.process({"a": 1, "b": 1})
        run.commit()
    assert losing._number < 0, "the reply was never lost"
    assert topology.totals() == {"a": 2, "b": 2}
    assert [topology.phase(txid) for txid in (1, 2)] == [None, None]


def test_the_same_commit_said_twice_is_one_commit(topology: Topology) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    run.process({"a": 1})
    committer = run.written()
    assert committer.mark() == Committed(1, here=True)
    assert committer.mark() == Committed(1, here=False)
    assert topology.totals() == {"a": 1}


def test_a_committer_failed_from_outside_between_its_write_and_its_mark_is_followed_by_another(
    topology: Topology,
) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    run.process({"a": 1})
    failed = run.written()
    run.commit()
    assert failed.mark() == Committed(1, here=False)
    assert topology.totals() == {"a": 1}


def test_two_committers_at_once_commit_once_and_the_outranked_one_is_refused(topology: Topology) -> None:
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
