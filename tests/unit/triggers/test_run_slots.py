"""A waiting run yields only if the run whose turn it is lacks a run slot for the whole grace, and only the best bid."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.ledger.answers import Done
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.records import Waiter
from airflow_tx.triggers.run_slots import SlotWatch
from tests.stage import Stage
from tests.unit.bench import CountingStore, Looking

PATHS = Paths("/airflow_tx", "numbers")
GRACE = 30.0


class Airflow:
    """Transaction 1 is of run r1, whose state this tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = "queued"
        self.running = 8

        async def run_states(dag_id: str, run_ids: list[str]) -> dict[str, str]:
            return dict.fromkeys(run_ids, self.state)

        async def running_runs(dag_id: str) -> int:
            return self.running

        monkeypatch.setattr(compat, "run_states", run_states)
        monkeypatch.setattr(compat, "running_runs_async", running_runs)


class Waiting(Looking):
    """One waiting run, whose trigger looks every second."""

    def __init__(
        self, store: CountingStore, run_id: str, txid: int | None, *, limit: int | None = 8, most: int = 0
    ) -> None:
        told = {
            "dag_id": "numbers", "run_id": run_id, "txid": txid, "task_try": run_id, "limit": limit, "grace": GRACE,
            "most": most,
        }  # fmt: skip
        super().__init__(store)
        self.watch = SlotWatch(PATHS, told, clock=lambda: self.now)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


@pytest.fixture
def store() -> CountingStore:
    stage = Stage()
    stage.begun("r1", "r2", "r3")
    return stage.store


def test_a_waiting_run_yields_after_a_grace_period(store: CountingStore, airflow: Airflow) -> None:
    waiting = Waiting(store, "r2", 2)
    assert waiting.looks(GRACE) is None
    assert waiting.looks(GRACE) == {"yield": 1}


def test_no_run_yields_to_a_run_that_is_running_or_has_ended(store: CountingStore, airflow: Airflow) -> None:
    waiting = Waiting(store, "r2", 2)
    for airflow.state in ("running", "failed", "success"):
        assert waiting.looks(3 * GRACE) is None


def test_no_run_yields_while_a_run_slot_is_free(store: CountingStore, airflow: Airflow) -> None:
    airflow.running = 7
    assert Waiting(store, "r2", 2).looks(3 * GRACE) is None


def test_a_run_of_a_backfill_ignores_the_free_run_slots_of_other_runs(store: CountingStore, airflow: Airflow) -> None:
    airflow.running = 2
    assert Waiting(store, "r2", 2, limit=None).looks(3 * GRACE) == {"yield": 1}


def test_runs_yield_later_to_a_run_of_a_backfill_while_a_run_slot_seems_to_be_free(
    store: CountingStore, airflow: Airflow
) -> None:
    waiting = Waiting(store, "r2", 2, limit=None, most=8)
    airflow.running = 7
    assert waiting.looks(9 * GRACE) is None
    assert waiting.looks(2 * GRACE) == {"yield": 1}


def test_no_run_yields_again_to_a_run_that_airflow_did_not_start_after_an_earlier_yield(
    store: CountingStore, airflow: Airflow
) -> None:
    waiting = Waiting(store, "r2", 2, limit=None)
    assert waiting.looks(1) is None
    ledger = Ledger(store, PATHS)
    ledger.bid(Waiter("r3", 3, "r3", 1), overdue="")
    assert isinstance(ledger.note_yield(Waiter("r3", 3, "r3", 1)), Done)
    airflow.running = 7
    assert waiting.looks(30 * GRACE) is None


def test_the_grace_period_starts_again_after_the_other_run_was_running(store: CountingStore, airflow: Airflow) -> None:
    waiting = Waiting(store, "r2", 2)
    assert waiting.looks(GRACE - 5) is None
    airflow.state = "running"
    assert waiting.looks(5) is None
    airflow.state = "queued"
    assert waiting.looks(GRACE - 5) is None


@pytest.mark.parametrize(
    ("one", "other", "leader"),
    [(("r2", 2), ("r3", 3), "r3"), (("r3", 3), ("r4", None), "r4"), (("r4", None), ("r5", None), "r5")],
)
def test_only_the_run_with_the_better_bid_of_two_waiting_runs_yields(
    store: CountingStore, airflow: Airflow, one: Any, other: Any, leader: str
) -> None:
    waiters = [Waiting(store, *one), Waiting(store, *other)]
    events: dict[str, Any] = {}
    for _ in range(int(2 * GRACE)):
        for (run_id, _), waiting in zip((one, other), waiters, strict=True):
            event = waiting.looks(1)
            if event is not None:
                events[run_id] = event
        if events:
            break
    assert list(events) == [leader]


def test_the_run_whose_transaction_has_the_turn_never_yields(store: CountingStore, airflow: Airflow) -> None:
    assert Waiting(store, "r1", 1).looks(3 * GRACE) is None
