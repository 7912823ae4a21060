"""Whose a topology is whose own record cannot be read."""

from __future__ import annotations

import time

import pytest

from airflow_tx.ledger.api import Paths
from airflow_tx.operations.actions.ledger_places import LedgerPlace, LedgerPlaces, _Task

PLACE = LedgerPlace("orders", "zookeeper_default", Paths("/tx", "orders"))
OTHER = LedgerPlace("flights", "zookeeper_default", Paths("/tx", "flights"))


@pytest.mark.parametrize(
    ("tasks", "owner"),
    [
        ({"one": (True, PLACE)}, "one"),
        ({"one": (True, PLACE), "two": (True, OTHER)}, "one"),
        ({"one": (True, PLACE), "coordinator": (False, PLACE)}, "one"),
        ({"one": (True, PLACE), "two": (True, PLACE)}, None),
        ({"one": (True, OTHER)}, None),
    ],
)
def test_a_topology_belongs_to_the_only_dag_whose_runs_begin_its_transactions(
    tasks: dict[str, tuple[bool, LedgerPlace]], owner: str | None
) -> None:
    """Two DAGs may claim a name, and a viewer of one may not see what belongs to the other."""
    places = LedgerPlaces()
    places._tasks = {dag_id: [_Task(dag_id, begins, place)] for dag_id, (begins, place) in tasks.items()}
    places._hashes = dict.fromkeys(tasks, "")
    places._read_at = time.monotonic()
    assert places.dag_of(PLACE) == owner
