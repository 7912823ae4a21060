"""How far sources are ahead of their topologies, as far as they can tell."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import SourceError
from airflow_tx.sources import lag
from airflow_tx.sources.api import Json, TransactionalSource
from airflow_tx.sources.files.source import FileSource
from airflow_tx.sources.lag import Lag, LagUnknown, LagWatch, lags
from airflow_tx.sources.memory import MemorySource

LONG = 300.0


class Asked(TransactionalSource):
    """A source that answers as a test says.

    :param answer: what it has, or what it raises; an event: it waits for that.
    """

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.closed = False

    def __repr__(self) -> str:
        return "Asked()"

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.unit.sources.test_lag.Asked", {}

    def initialize_transaction(self, txid: int, position: Json) -> Json:
        return None

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> list[dict[str, Any]]:
        return []

    def backlog(self, position: Json) -> int | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, threading.Event):
            self.answer.wait(LONG)
            return 1
        return self.answer  # type: ignore[no-any-return]

    def close(self) -> None:
        self.closed = True


def reason(answer: Any) -> str:
    source = Asked(answer)
    found = lags({"flights": (source, 5)}, seconds=LONG)["flights"]
    assert isinstance(found, LagUnknown)
    assert source.closed
    return str(found)


def test_a_lag_has_the_unit_of_its_source() -> None:
    rows = MemorySource({"a": [{"n": 1}, {"n": 2}], "b": [{"n": 3}]})
    found = lags({"rows": (rows, {"a": 1}), "asked": (Asked(0), None)}, seconds=LONG)
    assert found == {"rows": Lag(2, "rows"), "asked": Lag(0, "rows")}
    assert str(found["rows"]) == "2 rows"
    assert FileSource.unit == "files"


def test_the_reason_for_an_unknown_lag_has_one_line() -> None:
    told = "The lag of topology 'flights' is unknown: "
    assert reason(ValueError("it broke\nin two")) == told + "ValueError: it broke in two"
    error = SourceError(source="x", problem="it is away", remedy="Bring it back.")
    assert reason(error) == f"{told}{error}"
    assert reason(None) == told + "Asked() cannot count its rows"


def test_a_source_that_does_not_answer_does_not_delay_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over as soon as the one that answers has answered."""
    moments = [0.0, 0.0]

    def monotonic() -> float:
        if len(moments) == 1:
            for each in threading.enumerate():
                if each.name == "lag of three":
                    each.join(LONG)
        return moments.pop() if len(moments) > 1 else 1.0

    monkeypatch.setattr(lag, "time", SimpleNamespace(monotonic=monotonic))
    waiting = [threading.Event(), threading.Event()]
    asked = {"one": (Asked(waiting[0]), 1), "two": (Asked(waiting[1]), 1), "three": (Asked(3), 1)}
    found = lags(asked, seconds=1)
    for each in waiting:
        each.set()
    assert found["three"] == Lag(3, "rows")
    for name in ("one", "two"):
        assert str(found[name]).endswith("its source has not answered within 1 s")


@pytest.mark.parametrize("position", [None, {}, {"a": 0, "gone": 7}])
def test_a_partition_that_was_never_read_counts_completely_in_the_lag(position: Any) -> None:
    rows = MemorySource({"a": [{"n": 1}, {"n": 2}], "b": [{"n": 3}]})
    assert rows.backlog(position) == 3


def test_two_simultaneous_requests_query_the_source_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is made and not yet started cannot be waited for."""
    asked, starts = threading.Event(), threading.Barrier(2, timeout=LONG)

    class SlowThread(threading.Thread):
        def start(self) -> None:
            with suppress(threading.BrokenBarrierError):
                starts.wait()
            super().start()

    monkeypatch.setattr("airflow_tx.base.inquiry.Thread", SlowThread)
    watch = LagWatch("flights", lambda: Asked(asked), every=0.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(watch.latest, lambda: None)
        second = pool.submit(lambda: (starts.wait(), watch.wait(0.0)))
        assert first.result() is None
        second.result()
    asked.set()
    assert watch.wait(LONG)
    assert watch.answer == Lag(1, "rows")
