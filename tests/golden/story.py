"""What happens to the ledger whose records are kept."""

from __future__ import annotations

from airflow_tx.ledger.records import AlarmNote, Loss, Waiter
from airflow_tx.ledger.steps import loss, replay, run_slots, watcher
from airflow_tx.ledger.steps.alarm import note_alarm
from airflow_tx.ledger.steps.step import Audit
from tests.model.driver import Run, Topology

AUDIT = Audit("ada", "the example of a record")


def story(topology: Topology) -> None:
    """Commit, replay, skip, re-admit, change rows, lose rows, yield; leave transactions of each phase open."""
    Run(topology, "r1").whole(2, {"a": 2})
    replayed = Run(topology, "r2")
    replayed.processed(1, {"b": 7})
    topology.note_replay(2, 1)
    replayed.processed(1, {"a": 1, "b": 1})
    replayed.commit()
    Run(topology, "r3").begin(3)
    topology.skip(3)
    topology.readmit(3)
    granted = Run(topology, "r3")
    granted.processed(3, {"c": 3})
    ledger = topology.ledger()
    Run(topology, "r5").begin(1)
    topology.note_skip(topology.allocated)
    Run(topology, "r6").begin(2)
    ledger.run(replay.note_changed, topology.allocated, {"totals": True}, audit=AUDIT)
    failed = Run(topology, "r7")
    failed.begin(1)
    failed.start().fail("of memory")
    topology.clock.advance(60)
    ledger.run(loss.note_losses, [Loss("", 10, 12, "rows 10 and 11")], AUDIT)
    ledger.run(note_alarm, "blocked", AlarmNote("4"))
    ledger.run(watcher.open_watcher, "asset", from_first=True)
    waiter = Waiter("r9", None, "00000099", topology.current)
    ledger.run(run_slots.bid, waiter)
    ledger.run(run_slots.note_yield, waiter)
    ledger.run(run_slots.bid, Waiter("r8", None, "00000098", topology.current))
    granted.written()
