"""What a ledger and its states hold after a story in which each kind of record is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from airflow_tx.state.aggregators import Sum
from airflow_tx.state.api import StateKind
from airflow_tx.state.sql.state import SqlState
from airflow_tx.store.memory import MemoryStore
from tests.golden.story import story
from tests.golden.written import check_golden
from tests.model.driver import Run, Topology


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
