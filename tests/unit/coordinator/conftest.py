"""Lanes on the ledger in memory, whose runs are those of the world that was made last."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.coordinator import worker
from tests.unit.coordinator.lane_world import LaneWorld, ShowingStore


@pytest.fixture
def make(log: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(worker, "LOOK_EVERY", 0.05)
    worlds: list[LaneWorld] = []

    def made(kind: type[LaneWorld] = LaneWorld, **options: Any) -> LaneWorld:
        worlds.append(kind(ShowingStore(), log, **options))
        return worlds[-1]

    log.error = log.warning
    log.shown = []

    def warning(text: str, *arguments: Any, exc_info: BaseException | None = None) -> None:
        log.lines.append(text % arguments)
        log.shown.append(exc_info)

    log.warning = warning
    monkeypatch.setattr(compat, "start_run", lambda *args, **more: worlds[-1].start_run(*args, **more))
    monkeypatch.setattr(compat, "earlier_live_run", lambda *args: worlds[-1].earlier_live_run(*args))
    monkeypatch.setattr(compat, "is_paused", lambda dag_id: dag_id == worlds[-1].paused)
    monkeypatch.setattr(compat, "run_state", lambda ti, dag_id, run_id: worlds[-1].runs.get(run_id))
    return made
