"""Fixtures of a run on the ledger in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.messages.stores import ZnodeAckers
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import Count, MemoryState
from airflow_tx.transaction.commit import write
from airflow_tx.transaction.commit.update import Update
from tests.stage import update
from tests.unit.bench import CountingStore, MemorySpec, Numbers
from tests.unit.commit.message_run import MessageRun, MessageSpec
from tests.unit.commit.run import Airflow, Run


@pytest.fixture
def state() -> MemoryState:
    return MemoryState("words", keys=["word"], values={"count": Count()})


@pytest.fixture
def make(store: CountingStore, state: MemoryState, log: Any, tmp_path: Any, monkeypatch: Any) -> Any:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))

    def run(run_id: str, updates: list[Update] | None = None, **options: Any) -> Run:
        fields = {"source": Numbers(), "max_pending": 4, "tasks": ("count",), "inside": ("count", "commit"), **options}
        spec = MemorySpec("numbers", "numbers", memory=store, **fields)
        return Run(spec, run_id, [update(state)] if updates is None else updates, log)

    return run


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


@pytest.fixture
def acker_nodes() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "LARGE_ROWS", 10)
    monkeypatch.setattr(write, "ROWS_A_WRITE", 4)


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path))


@pytest.fixture
def make_with_messages(
    store: CountingStore, acker_nodes: MemoryStore, log: Any, tmp_path: Any, monkeypatch: Any
) -> Any:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    state = MemoryState("words", keys=["word"], values={"count": Count()})

    def run(**options: Any) -> MessageRun:
        fields = {"source": Numbers(), "tasks": ("count",), "inside": ("count", "commit"), "ackers": 2, **options}
        spec = MessageSpec(
            "numbers",
            "numbers",
            memory=store,
            make_ackers=lambda: ZnodeAckers(acker_nodes, "/airflow_tx"),
            broken=[],
            **fields,
        )
        return MessageRun(spec, state, log)

    return run
