"""A lane whose transactions append rows to a real Delta table: in order, exactly once, also after its process died."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_tx import append
from airflow_tx.state import DeltaTable
from airflow_tx.transaction.commit.update import Update
from tests.unit.coordinator.lane_world import Bounded, LaneWorld, killed_lanes


@dataclass
class Appending(LaneWorld):
    """A topology whose rows go into a table, each with its transaction."""

    folder: str = ""

    def update_of(self, counted: Any) -> Update:
        return append(counted, state=self.table)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(Path(self.folder, "totals"), partition_by=["key"])

    @property
    def totals(self) -> tuple[int, int]:
        rows = self.table.read()
        assert Counter(row["tx_txid"] for row in rows) == dict.fromkeys(self.history, 1)
        return sum(row["rows"] for row in rows), sum(row["sum"] for row in rows)


@pytest.fixture
def make(make: Any, tmp_path: Path) -> Any:
    numbers = count()
    return lambda **options: make(Appending, folder=str(tmp_path / str(next(numbers))), **options)


def test_rows_of_lane_transactions_are_in_the_table_once_in_txid_order(make: Any) -> None:
    world = make(source=Bounded(4))
    world.coordinate()
    world.assert_exact(4)
    assert world.runs == {}
    assert [each.txid for each in world.table.receipts()] == [1, 2, 3, 4]


def test_rows_of_a_batch_that_fails_in_the_lane_and_becomes_a_run_are_in_the_table_once(make: Any) -> None:
    def fail(batch: Any) -> None:
        if batch.txid == 2:
            raise ValueError("not this one")

    world = make(source=Bounded(3), on_batch=fail)
    with world.executing():
        world.settle()
    world.assert_exact(3)
    assert list(world.runs) == ["tx-2"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("arrives", [False, True])
def test_each_row_is_in_the_table_once_if_the_lane_process_is_killed_at_any_request(make: Any, arrives: bool) -> None:
    for world in killed_lanes(partial(make, source=Bounded(2)), arrives=arrives, most=1):
        world.assert_exact(2)
