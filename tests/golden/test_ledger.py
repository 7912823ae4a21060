"""What a ledger and its states hold after a story in which each kind of record is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from airflow_tx.protocol import loss, replay, run_slots, watcher
from airflow_tx.protocol.alarm import note_alarm
from airflow_tx.protocol.batch import Loss
from airflow_tx.protocol.run_slots import Waiter
from airflow_tx.protocol.step import Audit
from airflow_tx.state.aggregators import Sum
from airflow_tx.state.api import StateKind
from airflow_tx.state.sql.state import SqlState
from airflow_tx.store.memory import MemoryStore
from tests.golden.written import check_golden
from tests.model.driver import Run, Topology

AUDIT = Audit("ada", "the example of a record")


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def topology(database: str) -> Topology:
    state = SqlState.from_url(database, table="totals", keys=["key"], values={"n": Sum()}, types={"key": "text"})
    store = MemoryStore()
    return Topology(lambda: store, "/golden", [state])


def records(topology: Topology) -> dict[str, str]:
    """Every record below the topology: its path there, and its text."""
    found = {}
    for path in topology.tree():
        node = topology.store().get(path)
        assert node is not None
        found[path.removeprefix(topology.paths.base) or "/"] = node.data.decode()
    return found


def rows(database: str) -> dict[str, list[dict[str, Any]]]:
    """Every table of the states."""
    engine = sqlalchemy.create_engine(database)
    with engine.connect() as connection:
        tables = sqlalchemy.inspect(connection).get_table_names()
        found = {name: connection.execute(sqlalchemy.text(f"SELECT * FROM {name}")).mappings() for name in tables}
        return {name: [dict(row) for row in all_] for name, all_ in found.items()}


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
    ledger.run(replay.note_changed, topology.allocated, {"totals": True}, AUDIT)
    failed = Run(topology, "r7")
    failed.begin(1)
    failed.start().fail("of memory")
    topology.clock.advance(60)
    ledger.run(loss.note_losses, [Loss("", 10, 12, "rows 10 and 11")], AUDIT)
    ledger.run(note_alarm, "blocked", {"of": "4"})
    ledger.run(watcher.open_watcher, "asset", from_first=True)
    waiter = Waiter("r9", None, "00000099", topology.current)
    ledger.run(run_slots.bid, waiter)
    ledger.run(run_slots.note_yield, waiter)
    ledger.run(run_slots.bid, Waiter("r8", None, "00000098", topology.current))
    granted.written()


def test_the_records_of_a_ledger_are_written_as_ever(topology: Topology) -> None:
    story(topology)
    assert topology.states[0].kind is StateKind.OPAQUE
    check_golden("ledger", records(topology))


def test_the_tables_of_a_state_are_written_as_ever(topology: Topology, database: str) -> None:
    story(topology)
    check_golden("sql_state", rows(database))


def test_the_record_of_a_rename_is_written_as_ever(topology: Topology) -> None:
    from airflow_tx.protocol.move import Mover

    Run(topology, "r1").whole(2, {"a": 2})
    Mover(topology.ledger()).close_for_deletion()
    node = topology.store().get(topology.paths.record)
    assert node is not None
    check_golden("closed_topology", {"topology": node.data.decode()})
