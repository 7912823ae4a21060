"""What happens to the topologies of `topologies.py`, each function by the name that a kind gives."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from unittest.mock import patch

from airflow_tx.coordinator.lane import Lane
from airflow_tx.coordinator.lane_plan import lane_plan
from airflow_tx.ledger.records import AlarmNote, Waiter
from airflow_tx.ledger.steps import end, recovery, run_slots
from airflow_tx.ledger.steps.alarm import note_alarm
from airflow_tx.ledger.steps.recovery import ReplayRequest
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.transaction.commit import committer
from airflow_tx.transaction.processing.begin import key_of
from tests.integration.kinds.life import Topology, log
from tests.unit.bench import FakeTi

ANN = Audit("ann", "a bad file")


def usual(own: Topology) -> None:
    """Committed, skipped, re-admitted, restated, failed, waiting and working transactions: what a long life has."""
    _final(own)
    want_restated(own)
    own.committed("r1")
    _open(own)


def _final(own: Topology) -> None:
    own.committed("r1")
    own.failed("r2")
    own.person("skip", 2, "--yes")
    own.committed("r3")
    own.person("readmit", 2, "--yes")
    own.committed("r2")


def _open(own: Topology) -> None:
    own.failed("r4")
    own.waits("r5")
    own.begin("r6").start()


def brief(own: Topology) -> None:
    """Committed, restated, failed, waiting and working transactions: what is of interest to a state."""
    own.committed("r1")
    own.committed("r2")
    want_restated(own)
    own.committed("r1")
    _open(own)


def brief_without_restatement(own: Topology) -> None:
    """The same, of a state that cannot take back what a transaction contributed."""
    own.committed("r1")
    own.committed("r2")
    _open(own)


def reading(own: Topology) -> None:
    """The usual life of a topology that reads from another one: the book says how many rows each batch has."""
    usual(own)


def want_restated(own: Topology) -> None:
    """A person wants the first transaction restated."""
    with own.ledger() as ledger:
        ledger.run(want, WishRequest(1, key_of(own.spec, own.info("r1")), "r1"), ANN)


def all_committed(own: Topology) -> None:
    """All is well."""
    own.committed("r1")
    own.committed("r2")


def long_committed(own: Topology) -> None:
    """All is well, and another topology reads from it."""
    for number in range(1, 9):
        own.committed(f"r{number}")


def fresh(own: Topology) -> None:
    """Nothing was committed yet."""
    own.begin("r1").start()


def half_committed(own: Topology) -> None:
    """A committer has the turn, and has not marked the commit."""
    own.committed("r1")
    run = own.worked("r2")
    with patch.object(committer, "failpoint", _killed_before_mark), suppress(_Killed):
        own.commit(run)


class _Killed(BaseException):
    """The process is gone."""


def _killed_before_mark(point: str, **where: Any) -> None:
    if point == "commit.before_mark":
        raise _Killed


def blocked(own: Topology) -> None:
    """The coordinator has replayed a transaction as often as it may."""
    own.committed("r1")
    run = own.failed("r2")
    own.begin("r3").start()
    with own.ledger() as ledger:
        ledger.run(recovery.note_replay, ReplayRequest(run.begun.attempt, "it broke", counts=True, limit=0))


def late(own: Topology) -> None:
    """The oldest transaction is open for longer than it may be."""
    own.committed("r1")
    own.begin("r2").start()
    with own.ledger() as ledger:
        ledger.run(note_alarm, "late", AlarmNote(""))


def with_messages(own: Topology) -> None:
    """A task has emitted messages that nobody has acked."""
    run = own.begin("r1")
    task = run.start()
    task.messages.emit(3, tracked=True)
    run.end(task, [])


def lossy(own: Topology) -> None:
    """Rows were lost, and a person has accepted that; others are lost now."""
    own.committed("r1")
    own.person("accept-loss", "--yes")
    own.committed("r2")
    own.failed("r3")


def waiting(own: Topology) -> None:
    """A transaction is ready, and an earlier one still works."""
    own.committed("r1")
    own.begin("r2").start()
    own.waits("r3")


def to_be_restated(own: Topology) -> None:
    """Persons want transactions restated and back, and nobody has begun."""
    own.committed("r1")
    own.failed("r2")
    own.person("skip", 2, "--yes")
    want_restated(own)
    with own.ledger() as ledger:
        ledger.run(end.note_readmission, 2, ANN)


def to_be_skipped(own: Topology) -> None:
    """A person wants a transaction skipped, and it is not its turn."""
    own.committed("r1")
    own.begin("r2").start()
    own.failed("r3")
    own.person("skip", 3, "--yes")


def changed_rows(own: Topology) -> None:
    """A person has let the rows of a transaction be decided again, after it failed."""
    own.committed("r1")
    own.failed("r2")
    own.person("replay", 2, "--changed-rows")
    own.failed("r2", "it broke again")


def yielded(own: Topology) -> None:
    """Runs have given up their run slots: one with a transaction, one without."""
    own.committed("r1")
    own.failed("r2")
    waiting = own.waits("r3")
    with own.ledger() as ledger:
        for waiter in (Waiter("r3", waiting.begun.txid, "000401", 2), Waiter("r4", None, "000402", 2)):
            ledger.run(run_slots.bid, waiter)
            ledger.run(run_slots.note_yield, waiter)


def rebuilt(own: Topology) -> None:
    """ZooKeeper has lost the ledger, and a person has rebuilt it from the states."""
    own.committed("r1")
    own.committed("r2")
    with own.zookeeper() as client:
        client.delete(own.spec.paths.base, recursive=True)
    own.person("repair", "--ledger-lost", "--dag-id", own.name, "--yes")
    own.committed("r3")
    own.begin("r4").start()


def state_lost(own: Topology) -> None:
    """A state was emptied, and a person has accepted that."""
    own.committed("r1")
    own.person("repair", "--state-lost", f"tx_state.{own.name}", "--yes")
    own.committed("r2")


def emptied(own: Topology) -> None:
    """A person has begun again at the first row."""
    own.committed("r1")
    own.person("repair", "--reset", "--yes")
    own.committed("r2")


def unreadable(own: Topology) -> None:
    """A record of the ledger cannot be read."""
    own.committed("r1")
    run = own.begin("r2").start()
    with own.zookeeper() as client:
        client.set(own.spec.paths.transaction(run.begun.txid), b"{")


def without_dag(own: Topology) -> None:
    """The file of its DAG is gone."""
    usual(own)
    own.file.unlink()


def laned(own: Topology) -> None:
    """The lane has committed what there was, then a run failed."""
    with own.store() as store:
        lane = Lane(lane_plan(own.spec, own.dag), store, FakeTi("coordinate", "c"), log, patience=20.0)
        with lane.opened():
            while lane.begun < 3:
                lane.work(0.0)
            lane.wait(20.0)
            while lane.working:
                lane.wait(1.0)
    own.failed("r5")
    own.waits("r6")
