"""What the tests of the operators share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base import compat
from tests.unit.bench import CountingStore
from tests.unit.statsd import StatsD


class Sleeps:
    """Stands for the clock of an event loop: a sleep takes no time, and moves the clock.

    :ivar seconds: how long each sleep would have been.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def monotonic(self) -> float:
        return sum(self.seconds)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    clock, sleep = Sleeps(), asyncio.sleep

    async def asleep(seconds: float) -> None:
        clock.seconds.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", asleep)
    return clock


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def log() -> Any:
    lines: list[str] = []

    def info(text: str, *arguments: Any) -> None:
        lines.append(text % arguments)

    return SimpleNamespace(info=info, warning=info, lines=lines)


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsD]:
    server = StatsD()
    for option, value in {"ON": "True", "HOST": "127.0.0.1", "PORT": str(server.port), "PREFIX": "airflow"}.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{option}", value)
    compat.prepare_metrics()
    yield server
    monkeypatch.undo()
    compat.prepare_metrics()
    server.socket.close()
