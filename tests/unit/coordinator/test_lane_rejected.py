"""A lane whose tasks reject rows: they are in their table once, beside the values of another state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.state import DeltaTable
from tests.unit.coordinator.lane_world import Bounded, LaneWorld, killed_lanes


def reject(batch: Any) -> None:
    """Reject the row that is named by the transaction."""
    batch.reject({"number": batch.txid}, "odd")


@dataclass
class Rejecting(LaneWorld):
    """A topology whose task rejects a row of each batch."""

    folder: str = ""

    def block_options(self) -> dict[str, Any]:
        return {"rejected": self.aside}

    @property
    def aside(self) -> DeltaTable:
        return DeltaTable(Path(self.folder, "rejected"))

    @property
    def kept(self) -> list[tuple[int, str]]:
        return sorted((row["tx_txid"], row["tx_content"]) for row in self.aside.read())


@pytest.fixture
def make(make: Any, tmp_path: Path) -> Any:
    numbers = count()
    return lambda **options: make(Rejecting, folder=str(tmp_path / str(next(numbers))), on_batch=reject, **options)


def test_rejected_rows_of_lane_transactions_are_in_their_table_once(make: Any) -> None:
    world = make(source=Bounded(3))
    world.coordinate()
    world.assert_exact(3)
    assert world.runs == {}
    assert world.kept == [(txid, f'{{"number": {txid}}}') for txid in (1, 2, 3)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("arrives", [pytest.param(False, marks=pytest.mark.lead), True])
def test_each_rejected_row_is_stored_once_if_the_lane_process_is_killed_at_any_request(
    make: Any, arrives: bool
) -> None:
    kept = 0
    for world in killed_lanes(partial(make, source=Bounded(2)), arrives=arrives, most=2):
        world.assert_exact(2)
        # The task of a run rejects nothing here: the lane is what is tried.
        assert set(Counter(world.kept).values()) <= {1}
        assert {txid for txid, _ in world.kept} <= set(world.history)
        kept = max(kept, len(world.kept))
    # At the second mark: the first transaction is final, and the second one if that has arrived.
    assert kept >= 1 + arrives
