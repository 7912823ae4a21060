"""A run that yielded is started again once the way is free, and what becomes of it otherwise."""

from __future__ import annotations

import time
from contextlib import nullcontext
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.base.compat import tasks
from airflow_tx.ledger.answers import Bidding, Done
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import Waiter
from airflow_tx.ledger.steps import run_slots
from airflow_tx.transaction.commit.run_slots import (
    Comeback,
    TaskRuns,
    Yielded,
    comeback,
    has_yielded,
    slots_of,
    start_yielded,
    yield_slot,
)
from airflow_tx.transaction.processing.begin import conf_of
from airflow_tx.transaction.spec import TransactionSpec
from tests.model.driver import Run, Topology
from tests.unit.bench import FakeTi, MemorySpec, Numbers, run_of
from tests.unit.commit.run import Airflow
from tests.unit.protocol.conftest import topology

__all__ = ["topology"]


@pytest.mark.parametrize(
    ("state", "is_over", "is_free", "becomes"),
    [
        ("failed", False, True, Comeback.START),
        ("failed", False, False, Comeback.WAIT),
        ("failed", True, True, Comeback.FORGET),
        ("running", False, True, Comeback.WAIT),
        ("queued", False, True, Comeback.WAIT),
        ("running", True, False, Comeback.FORGET),
        ("success", False, True, Comeback.FORGET),
        (None, False, True, Comeback.FORGET),
    ],
)
def test_the_state_of_a_run_that_yielded_decides_whether_the_run_is_started_again(
    state: Any, is_over: bool, is_free: bool, becomes: Comeback
) -> None:
    assert comeback(state, is_over=is_over, is_free=is_free) is becomes


class Runs:
    """The runs of a DAG; of those that are named several states, each is that of one question, the last one stays."""

    def __init__(self, **states: Any) -> None:
        self.states = {name: list(found) if isinstance(found, tuple) else [found] for name, found in states.items()}
        self.started: list[str] = []

    def state(self, run_id: str) -> str | None:
        found: list[str | None] = self.states.get(run_id, [None])
        return found.pop(0) if len(found) > 1 else found[0]

    def restart(self, run_id: str) -> None:
        self.started.append(run_id)

    def start(self, run_id: str, key: str) -> None:
        raise NotImplementedError


@pytest.fixture
def yielded(topology: Topology) -> Topology:
    """Transaction 1 is committed; r2, which has begun, and r9, which has not, have yielded to it."""
    first = Run(topology, "r1")
    first.processed(1, {})
    for number in (2, 3):
        Run(topology, f"r{number}").begin(1)
    ledger = topology.ledger()
    for waiter in (Waiter("r9", None, "t9", 1), Waiter("r2", 2, "t2", 1)):
        assert ledger.run(run_slots.bid, waiter) == Bidding(waiter.run_id)
        assert ledger.run(run_slots.note_yield, waiter) == Done()
    first.commit()
    return topology


def started(topology: Topology, runs: Runs, *, patience: int = 0) -> list[tuple[str, Any]]:
    found = start_yielded(topology.ledger(), runs, ["r2", "r7", "r9"], patience=patience)
    return [(run_id, txid) for txid, run_id, _ in found]


def test_all_runs_that_yielded_are_started_as_soon_as_no_earlier_transaction_needs_their_slots(
    yielded: Topology,
) -> None:
    runs = Runs(r2="failed", r9="failed")
    assert started(yielded, runs) == [("r2", 2), ("r9", None)]
    assert runs.started == ["r2", "r9"]
    assert yielded.topology.yielded == {}
    assert started(yielded, runs) == []


def test_no_run_that_yielded_is_started_while_the_next_run_waits_for_a_run_slot(yielded: Topology) -> None:
    assert started(yielded, Runs(r2="queued", r9="failed")) == []
    assert set(yielded.topology.yielded) == {"r2", "r9"}


def test_a_yielded_run_that_is_already_running_stays_listed_while_other_runs_are_started(yielded: Topology) -> None:
    runs = Runs(r2="running", r9="failed")
    assert started(yielded, runs) == [("r9", None)]
    assert (set(yielded.topology.yielded), runs.started) == ({"r2"}, ["r9"])


def test_a_yielded_run_that_needs_no_restart_is_removed_from_the_list(yielded: Topology) -> None:
    runs = Runs(r2="success", r9=None)
    assert started(yielded, runs) == []
    assert (yielded.topology.yielded, runs.started) == ({}, [])


def test_a_yielded_run_whose_transaction_became_final_is_removed_from_the_list(yielded: Topology) -> None:
    yielded.note_skip(2)
    yielded.take_skip(2)
    runs = Runs(r2="failed", r9="failed")
    assert started(yielded, runs) == [("r9", None)]
    assert yielded.topology.yielded == {}


def test_a_run_that_yielded_to_the_current_transaction_is_not_started_before_its_commit(yielded: Topology) -> None:
    ledger, waiter = yielded.ledger(), Waiter("r3", 3, "t3", 2)
    ledger.run(run_slots.bid, waiter)
    ledger.run(run_slots.note_yield, waiter)
    runs = Runs(r3="failed")
    assert list(start_yielded(ledger, runs, ["r3"])) == []
    assert runs.started == []


@pytest.mark.parametrize(
    ("states", "patience", "sleeps"),
    [
        (("running", "running", "failed"), 4, 2),
        (("running", "running", "failed"), 2, 2),
        (("running", "running", "failed"), 1, None),
        (("failed",), 4, 0),
    ],
)
def test_a_run_that_has_just_yielded_has_a_few_seconds_to_end(
    yielded: Topology, monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...], patience: int, sleeps: int | None
) -> None:
    slept = list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    found = start_yielded(yielded.ledger(), Runs(r3="running", r9=states), ["r9"], patience=patience)
    assert [run_id for _, run_id, _ in found] == ([] if sleeps is None else ["r9"])
    assert slept == [1] * (patience if sleeps is None else sleeps)


# --- who yields


def spec(topology: Topology) -> TransactionSpec:
    return MemorySpec(topology.paths.topology, "dag", Numbers(), memory=topology.store(), root=topology.paths.root)


@pytest.mark.parametrize(("run_type", "limit"), [("manual", 3), ("backfill", None)])
def test_a_waiting_run_depends_on_the_run_limit_of_its_dag_unless_it_has_its_own_run_slots(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, run_type: str, limit: int | None
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__YIELD_AFTER", "7")
    ti = FakeTi("commit", "r1")
    context = {"ti": ti, "dag": SimpleNamespace(max_active_runs=3), "dag_run": object()}
    for module in (compat, tasks):
        monkeypatch.setattr(module, "run_info", lambda context: replace(run_of("r1"), run_type=run_type))
    begin = FakeTi(spec(topology).begin, "r1", xcoms=ti.xcoms)
    for running in (5, 4):
        monkeypatch.setattr(tasks, "running_runs", lambda dag_id, running=running: running)
        compat.note_running(begin, {})
    assert slots_of(spec(topology), context, txid=7) == {
        "dag_id": "dag",
        "run_id": "r1",
        "txid": 7,
        "task_try": str(ti.id),
        "limit": limit,
        "most": 0 if limit else 5,
        "grace": 7.0,
    }


def yields_to(topology: Topology, run_id: str, txid: int | None, log: Any, **runs: str) -> None:
    ti = FakeTi("commit", run_id, runs=runs)
    topology.ledger().run(run_slots.bid, Waiter(run_id, txid, str(ti.id), 1))
    yield_slot(spec(topology), {"ti": ti, "task": SimpleNamespace()}, blocking=1, txid=txid, log=log)


def test_a_task_that_frees_its_run_slot_does_not_call_its_failure_callbacks(
    topology: Topology, airflow: Airflow, log: Any
) -> None:
    for number in (1, 2):
        Run(topology, f"r{number}").begin(1)
    ti = FakeTi("commit", "r2", runs={"r1": "queued"})
    topology.ledger().run(run_slots.bid, Waiter("r2", 2, str(ti.id), 1))
    task = SimpleNamespace(on_failure_callback=[print], email_on_failure=True)
    with pytest.raises(Yielded):
        yield_slot(spec(topology), {"ti": ti, "task": task}, blocking=1, txid=2, log=log)
    assert (task.on_failure_callback, task.email_on_failure) == ((), False)


def test_a_run_counts_as_yielded_until_it_begins_again(topology: Topology, airflow: Airflow, log: Any) -> None:
    for number in (1, 2):
        Run(topology, f"r{number}").begin(1)
    with pytest.raises(Yielded):
        yields_to(topology, "r2", 2, log, r1="queued")
    assert [has_yielded(topology.ledger(), run_id) for run_id in ("r1", "r2")] == [False, True]
    Run(topology, "r2").begin(2)
    assert "r2" in topology.topology.yielded
    assert not has_yielded(topology.ledger(), "r2")


def test_a_run_without_a_transaction_counts_as_yielded_until_it_has_a_transaction(
    topology: Topology, airflow: Airflow, log: Any
) -> None:
    Run(topology, "r1").begin(1)
    with pytest.raises(Yielded):
        yields_to(topology, "r2", None, log, r1="queued")
    assert has_yielded(topology.ledger(), "r2")
    Run(topology, "r2").begin(1)
    assert not has_yielded(topology.ledger(), "r2")


@pytest.mark.parametrize("state", ["running", "success", "failed"])
def test_no_run_yields_to_a_run_that_needs_no_run_slot(
    topology: Topology, airflow: Airflow, log: Any, state: str
) -> None:
    for number in (1, 2):
        Run(topology, f"r{number}").begin(1)
    yields_to(topology, "r2", 2, log, r1=state)
    assert topology.topology.yielded == {}


def test_no_run_yields_to_a_final_transaction(topology: Topology, airflow: Airflow, log: Any) -> None:
    first = Run(topology, "r1")
    first.processed(1, {})
    Run(topology, "r2").begin(1)
    ti = FakeTi("commit", "r2", runs={"r1": "queued"})
    topology.ledger().run(run_slots.bid, Waiter("r2", 2, str(ti.id), 1))
    first.commit()
    yield_slot(spec(topology), {"ti": ti, "task": SimpleNamespace()}, blocking=1, txid=2, log=log)
    assert topology.topology.yielded == {}


@pytest.mark.parametrize("queued", [0, 1])
def test_a_run_yields_to_a_date_without_a_transaction_only_if_a_run_of_this_date_is_queued(
    topology: Topology, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, log: Any, queued: int
) -> None:
    date, asked = datetime(2026, 1, 2, tzinfo=timezone.utc), list[Any]()

    def runs_on(*of: Any) -> int:
        asked.append(of)
        return queued

    monkeypatch.setattr(compat, "runs_on", runs_on)
    Run(topology, "r1").whole(1)
    ti = FakeTi("begin", "r3")
    topology.ledger().run(run_slots.bid, Waiter("r3", None, str(ti.id), 2))
    with pytest.raises(Yielded, match="run of 2026-01-02T00:00:00.00:00 waits") if queued else nullcontext():
        yield_slot(spec(topology), {"ti": ti, "task": SimpleNamespace()}, blocking=2, txid=None, missing=date, log=log)
    assert asked == [("dag", date, ["queued"])]
    assert set(topology.topology.yielded) == ({"r3"} if queued else set())


def test_a_restart_clears_existing_runs_and_creates_missing_runs(airflow: Airflow) -> None:
    runs = TaskRuns("numbers", FakeTi("commit", "r1", runs={"r2": "failed"}))
    assert runs.state("r2") == "failed"
    runs.restart("r2")
    runs.start("r3", "r3")
    assert airflow.started == ["r2", "r3"]
    assert airflow.confs == [None, conf_of("r3")]
    assert airflow.resets == [True, True]
